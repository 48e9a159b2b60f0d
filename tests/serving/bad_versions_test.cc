// SPDX-License-Identifier: Apache-2.0
//
// Broken version directories next to a good one, which is asked all the time.

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/serving/get_model_status.pb.h"
#include "proto/serving/prediction_log.pb.h"
#include "tests/serving/served_models.h"
#include "tests/serving/served_process.h"
#include "tests/serving/served_test.h"
#include "tests/serving/steady_load.h"

// covers: serving: thirty broken version directories fail no request of the good version; the
//   reason of each is in the status, names that are no versions are not
// covers: serving: a version that is copied slowly counts when it is whole, one that is replaced
//   in place goes on, one that goes while it loads ends, one whose load hangs holds up no other

namespace millrace {
namespace {

using ModelVersionStatus = tensorflow::serving::ModelVersionStatus;

constexpr int64_t kGood = 1000;  // the newest: requests that name no version get it
constexpr float kGoodScale = 3;
constexpr char kData[] = "variables/variables.data-00000-of-00001";
constexpr char kIndex[] = "variables/variables.index";
constexpr char kGraph[] = "saved_model.pb";
constexpr char kMarker[] = "export_is_complete";
constexpr char kWarmUp[] = "assets.extra/tf_serving_warmup_requests";

// What is done to a copy of a sound version, and a part of the reason that the status then has.
struct BadVersion {
  std::string what;
  std::function<Status(const std::string& directory)> spoil;
  std::string reason;
  const char* from = "sound";
};

class BadVersionsTest : public ServedProcessTest {
 protected:
  void SetUp() override {
    ServedProcessTest::SetUp();
    ASSERT_OK(ExportScaling(Path("sound"), {.scale = kGoodScale}));
    ASSERT_OK(ExportScaling(Path("fails"), {.init = ScalingModel::Init::kFails}));
    ASSERT_OK(ExportScaling(Path("nan"), {.init = ScalingModel::Init::kNan}));
    ASSERT_OK(ExportScaling(Path("takes_long"), {.init = ScalingModel::Init::kTakesLong}));
    ASSERT_OK(ExportWords(Path("words")));
    ASSERT_OK(files()->RenameFile(Path("sound"), Version(kGood)));
    ASSERT_OK(CopyModel(Version(kGood), Path("sound")));
    ASSERT_OK(WriteFileAtomically(
        files(), Path("models"),
        absl::StrCat("model_config_list { config { name: 'm' base_path: '", Path("m"),
                     "' model_platform: 'tensorflow' model_version_policy { all {} } } }")));
  }
  std::vector<std::string> AllVersions() const {
    return {absl::StrCat("--model_config_file=", Path("models")),
            "--file_system_poll_wait_seconds=1", "--max_num_load_retries=0",
            "--load_retry_interval_micros=1000"};
  }

  static Status Delete(const std::string& path) { return files()->RecursivelyDelete(path); }
  static Status DeleteOne(const std::string& directory, const char* file) {
    return files()->DeleteFile(JoinPath(directory, file));
  }
  static Status Write(const std::string& path, absl::string_view bytes) {
    MR_RETURN_IF_ERROR(files()->RecursivelyCreateDirectory(Dirname(path)));
    return WriteFileAtomically(files(), path, bytes);
  }
  static Status Cut(const std::string& path, const std::function<size_t(size_t)>& to) {
    MR_ASSIGN_OR_RETURN(const std::string bytes, ReadFileToString(files(), path));
    return Write(path, absl::string_view(bytes).substr(0, to(bytes.size())));
  }
  static Status Append(const std::string& path, absl::string_view bytes) {
    MR_ASSIGN_OR_RETURN(const auto file, files()->NewAppendableFile(path));
    MR_RETURN_IF_ERROR(file->Append(bytes));
    return file->Close();
  }
  // `records` times the same log.
  static Status WriteWarmUp(const std::string& directory, int records,
                            const tensorflow::serving::PredictionLog& log) {
    const std::string path = JoinPath(directory, kWarmUp);
    MR_RETURN_IF_ERROR(files()->RecursivelyCreateDirectory(Dirname(path)));
    MR_ASSIGN_OR_RETURN(const auto writer, RecordWriter::Open(files(), path));
    for (int i = 0; i < records; ++i) MR_RETURN_IF_ERROR(writer->Write(log.SerializeAsString()));
    return writer->Close();
  }
  // Without the list of its files, the loader sees what is wrong.
  static std::function<Status(const std::string&)> Unlisted(
      std::function<Status(const std::string&)> spoil) {
    return [spoil = std::move(spoil)](const std::string& directory) -> Status {
      MR_RETURN_IF_ERROR(DeleteOne(directory, kMarker));
      return spoil(directory);
    };
  }
  static std::function<Status(const std::string&)> Graph(
      std::function<void(tensorflow::MetaGraphDef*)> change) {
    return Unlisted(
        [change = std::move(change)](const std::string& d) { return ChangeGraph(d, change); });
  }
  static tensorflow::NodeDef* NodeOf(tensorflow::MetaGraphDef* meta, const std::string& name) {
    for (tensorflow::NodeDef& node : *meta->mutable_graph_def()->mutable_node()) {
      if (node.name() == name) return &node;
    }
    ADD_FAILURE() << "no node " << name;
    return meta->mutable_graph_def()->add_node();
  }

  static std::vector<BadVersion> BadVersions();
};

std::vector<BadVersion> BadVersionsTest::BadVersions() {
  const auto cut_graph = [](const std::function<size_t(size_t)>& to) {
    return Unlisted([to](const std::string& d) { return Cut(JoinPath(d, kGraph), to); });
  };
  const auto without = [](const char* file) {
    return Unlisted([file](const std::string& d) { return DeleteOne(d, file); });
  };
  return {
      {"an empty directory",
       [](const std::string& d) -> Status {
         MR_RETURN_IF_ERROR(Delete(d));
         return files()->CreateDirectory(d);
       },
       "must have files, got none"},
      {"a file for a folder",
       [](const std::string& d) -> Status {
         MR_RETURN_IF_ERROR(Delete(d));
         return Write(d, "7");
       },
       "not complete"},
      {"no graph, which the list of files names",
       [](const std::string& d) { return DeleteOne(d, kGraph); }, kGraph},
      {"no graph", without(kGraph), "Could not find SavedModel .pb or .pbtxt"},
      {"an empty graph", cut_graph([](size_t) { return size_t{0}; }), "meta graph"},
      {"a graph of one byte", cut_graph([](size_t) { return size_t{1}; }), kGraph},
      {"half a graph", cut_graph([](size_t size) { return size / 2; }), kGraph},
      {"a graph without its last byte", cut_graph([](size_t size) { return size - 1; }), kGraph},
      {"a graph that is shorter than listed",
       [](const std::string& d) {
         return Cut(JoinPath(d, kGraph), [](size_t size) { return size - 1; });
       },
       "as 'export_is_complete' says"},
      {"a graph of other bytes", Unlisted([](const std::string& d) {
         return Write(JoinPath(d, kGraph), "this is no message");
       }),
       kGraph},
      {"a directory for the graph", Unlisted([](const std::string& d) -> Status {
         MR_RETURN_IF_ERROR(DeleteOne(d, kGraph));
         return files()->CreateDirectory(JoinPath(d, kGraph));
       }),
       kGraph},
      {"a list of files that is cut",
       [](const std::string& d) {
         return Cut(JoinPath(d, kMarker), [](size_t size) { return size - 1; });
       },
       "must begin with 'millrace export 1' and end with 'end'"},
      {"another tag", Graph([](tensorflow::MetaGraphDef* meta) {
         meta->mutable_meta_info_def()->clear_tags();
         meta->mutable_meta_info_def()->add_tags("train");
       }),
       "Could not find meta graph def matching supplied tags: { serve }"},
      {"a missing shard", without(kData), kData},
      {"a short shard", Unlisted([](const std::string& d) {
         return Cut(JoinPath(d, kData), [](size_t size) { return size - 1; });
       }),
       kData},
      {"a shard with another byte", Unlisted([](const std::string& d) -> Status {
         MR_ASSIGN_OR_RETURN(std::string bytes, ReadFileToString(files(), JoinPath(d, kData)));
         bytes[0] = static_cast<char>(bytes[0] ^ 1);
         return Write(JoinPath(d, kData), bytes);
       }),
       "fails its checksum"},
      {"a missing index", without(kIndex), "must be there, as the data of variables is"},
      {"an index of other bytes", Unlisted([](const std::string& d) {
         return Write(JoinPath(d, kIndex), "this is no table");
       }),
       kIndex},
      {"no variables",
       Unlisted([](const std::string& d) { return Delete(JoinPath(d, "variables")); }),
       "its graph has variables"},
      {"a wrong op",
       Graph([](tensorflow::MetaGraphDef* meta) { NodeOf(meta, "y")->set_op("MulAndHope"); }),
       "MulAndHope"},
      {"an input of nobody",
       Graph([](tensorflow::MetaGraphDef* meta) { NodeOf(meta, "y")->set_input(0, "nobody"); }),
       "nobody"},
      {"a cyclic graph", Graph([](tensorflow::MetaGraphDef* meta) {
         // s is an identity of w; now of t, which is one of s.
         tensorflow::NodeDef* const t = meta->mutable_graph_def()->add_node();
         *t = *NodeOf(meta, "s");
         t->set_name("t");
         t->set_input(0, "s");
         NodeOf(meta, "s")->set_input(0, "t");
       }),
       "cycle"},
      {"a signature of another graph", Graph([](tensorflow::MetaGraphDef* meta) {
         (*(*meta->mutable_signature_def())["serving_default"].mutable_outputs())["y"].set_name(
             "elsewhere:0");
       }),
       "must be a tensor of the graph, got 'elsewhere:0'"},
      {"an init op that is not there", Graph([](tensorflow::MetaGraphDef* meta) {
         meta->mutable_signature_def()->erase("__saved_model_init_op");
         auto* const ops =
             (*meta->mutable_collection_def())["saved_model_main_op"].mutable_node_list();
         ops->clear_value();
         ops->add_value("gone");
       }),
       "must be in the graph, got no such node"},
      {"an init op that fails", [](const std::string&) { return absl::OkStatus(); },
       "it is not my day", "fails"},
      {"an init op that finds a NaN", [](const std::string&) { return absl::OkStatus(); }, "NaN",
       "nan"},
      {"a missing asset", without("assets/words.txt"), "words.txt", "words"},
      {"a short asset",
       [](const std::string& d) {
         return Cut(JoinPath(d, "assets/words.txt"), [](size_t size) { return size - 1; });
       },
       "words.txt", "words"},
      {"1,001 warm-up records",
       [](const std::string& d) {
         // Records that ask for nothing are read and not run.
         return WriteWarmUp(d, 1001, {});
       },
       "Number of warmup records exceeds the maximum (1000)"},
      {"a warm-up record that fails",
       [](const std::string& d) {
         tensorflow::serving::PredictionLog log;
         auto* const request = log.mutable_predict_log()->mutable_request();
         *request = ScalingRequest("m", 1);
         request->mutable_inputs()->erase("w");
         return WriteWarmUp(d, 1, log);
       },
       "Warm-up record 0 of"},
      {"warm-up requests that are no records",
       [](const std::string& d) { return Write(JoinPath(d, kWarmUp), std::string(100, 'x')); },
       "Please verify your warmup data is in TFRecord format."},
  };
}

TEST_F(BadVersionsTest, FailNoRequestOfTheGoodOneAndSayWhy) {
  // Names that are no versions.
  for (const char* name : {"-1", "9223372036854775808", "v2", "1e3"}) {
    ASSERT_OK(CopyModel(Path("sound"), Version(name)));
  }
  // Two directories of one number: the later name counts.
  ASSERT_OK(CopyModel(Path("sound"), Version("01")));
  ASSERT_OK(CopyModel(Path("sound"), Version("1")));

  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = AllVersions()}));
  SteadyLoad load(
      {GrpcClient(*server, kGoodScale), RestClient(*server, RestAsker::Api::kRest, kGoodScale)});

  // They come while requests run, each at once, as a rename makes it.
  const std::vector<BadVersion> bad = BadVersions();
  EXPECT_GE(bad.size(), 30u);
  std::map<int64_t, const BadVersion*> by_number;
  for (const BadVersion& one : bad) {
    const int64_t number = 100 + static_cast<int64_t>(by_number.size());
    SCOPED_TRACE(one.what);
    ASSERT_OK(CopyModel(Path(one.from), Path("spoiled")));
    ASSERT_OK(one.spoil(Path("spoiled")));
    ASSERT_OK(files()->RenameFile(Path("spoiled"), Version(number)));
    by_number[number] = &one;
  }
  const bool is_root = geteuid() == 0;  // who may read all
  if (!is_root) {
    ASSERT_OK(CopyModel(Path("sound"), Version(99)));
    ASSERT_EQ(chmod(JoinPath(Version(99), kGraph).c_str(), 0), 0);
  }

  for (const auto& [number, one] : by_number) {
    SCOPED_TRACE(absl::StrCat("version ", number, ": ", one->what));
    std::string last;
    EXPECT_TRUE(AwaitServing([&, number = number, one = one] {
      const auto versions = server->StatusOf("m");
      if (!versions.ok()) {
        last = versions.status().ToString();
        return false;
      }
      const auto found = versions->find(number);
      if (found == versions->end()) return false;
      last = found->second.ShortDebugString();
      EXPECT_NE(found->second.state(), ModelVersionStatus::AVAILABLE) << last;
      return absl::StrContains(found->second.status().error_message(), one->reason);
    })) << "must say '"
        << one->reason << "', got " << last;
  }
  if (!is_root) {
    EXPECT_TRUE(AwaitServing([&] {
      const auto versions = server->StatusOf("m");
      const auto found = versions.ok() ? versions->find(99) : ServedProcess::Versions::iterator();
      return versions.ok() && found != versions->end() &&
             absl::StrContains(found->second.status().error_message(), kGraph);
    }));
  }

  ASSERT_OK_AND_ASSIGN(const auto versions, server->StatusOf("m"));
  EXPECT_EQ(versions.at(kGood).state(), ModelVersionStatus::AVAILABLE);
  EXPECT_EQ(versions.at(1).state(), ModelVersionStatus::AVAILABLE);
  // The good ones, the bad ones, and nothing else.
  EXPECT_EQ(versions.size(), 2 + bad.size() + (is_root ? 0 : 1));
  const std::string log = server->process()->output();
  EXPECT_TRUE(absl::StrContains(log, "version 1 must have one directory")) << log;
  EXPECT_TRUE(absl::StrContains(log, "got '-1' in")) << log;
  EXPECT_TRUE(absl::StrContains(log, "got '9223372036854775808' in")) << log;

  EXPECT_TRUE(load.AwaitMore(10));
  EXPECT_OK(load.Stop());
  ASSERT_OK_AND_ASSIGN(const int code, server->Terminate());
  EXPECT_EQ(code, 0);
}

TEST_F(BadVersionsTest, ThatChangeMeanwhileHarmNobody) {
  const int64_t replaced = 5, copied = 6, deleted = 7;
  ASSERT_OK(CopyModel(Path("sound"), Version(replaced)));
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = AllVersions()}));
  ASSERT_TRUE(server->AwaitState("m", kGood, ModelVersionStatus::AVAILABLE));
  ASSERT_TRUE(server->AwaitState("m", replaced, ModelVersionStatus::AVAILABLE));
  SteadyLoad load(
      {GrpcClient(*server, kGoodScale), RestClient(*server, RestAsker::Api::kV2, kGoodScale),
       [&](int i) { return Expect(kGoodScale, server->AskGrpc("m", NumberOf(i), replaced)); }});

  // Files of one that is loaded become others, in place.
  ASSERT_OK(Write(JoinPath(Version(replaced), kGraph), "this is no message"));
  ASSERT_OK(Write(JoinPath(Version(replaced), kData), "nor are these variables"));

  // One grows, and its graph comes last: it may be tried, when this test is slow, and is not taken.
  ASSERT_OK(CopyModel(Path("sound"), Path("whole")));
  ASSERT_OK(DeleteOne(Path("whole"), kMarker));
  ASSERT_OK(CopyModel(Path("whole"), Path("part")));
  ASSERT_OK(Cut(JoinPath(Path("part"), kGraph), [](size_t size) { return size / 2; }));
  ASSERT_OK(Write(JoinPath(Path("part"), "assets.extra/growing"), "."));
  ASSERT_OK(files()->RenameFile(Path("part"), Version(copied)));
  const auto status_of = [&](int64_t version) {
    const auto versions = server->StatusOf("m");
    const auto found =
        versions.ok() ? versions->find(version) : ServedProcess::Versions::iterator();
    return versions.ok() && found != versions->end() ? found->second : ModelVersionStatus();
  };
  int looks = 0;
  EXPECT_TRUE(AwaitServing([&] {
    EXPECT_OK(Append(JoinPath(Version(copied), "assets.extra/growing"), "."));
    const ModelVersionStatus status = status_of(copied);
    EXPECT_NE(status.state(), ModelVersionStatus::AVAILABLE);
    return !status.status().error_message().empty() && ++looks >= 20;
  }));
  ASSERT_OK_AND_ASSIGN(const std::string graph,
                       ReadFileToString(files(), JoinPath(Path("whole"), kGraph)));
  ASSERT_OK(Write(JoinPath(Version(copied), kGraph), graph));
  EXPECT_TRUE(server->AwaitState("m", copied, ModelVersionStatus::AVAILABLE));
  EXPECT_OK(Expect(kGoodScale, server->AskGrpc("m", 3, copied)));

  // One goes while it loads, or, on a machine that is quick, after it.
  ASSERT_OK(files()->RenameFile(Path("takes_long"), Version(deleted)));
  EXPECT_TRUE(AwaitServing([&] {
    const auto state = status_of(deleted).state();
    return state == ModelVersionStatus::LOADING || state == ModelVersionStatus::AVAILABLE;
  }));
  ASSERT_OK(Delete(Version(deleted)));
  EXPECT_TRUE(AwaitServing([&] {
    const auto state = status_of(deleted).state();
    return state == ModelVersionStatus::END || state == ModelVersionStatus::UNKNOWN;
  }));
  EXPECT_EQ(server->AskGrpc("m", 3, deleted).status().code(), absl::StatusCode::kNotFound);

  EXPECT_EQ(status_of(replaced).state(), ModelVersionStatus::AVAILABLE);
  EXPECT_TRUE(load.AwaitMore(10));
  EXPECT_OK(load.Stop());
}

TEST_F(BadVersionsTest, OneThatHangsHoldsUpNoOther) {
  const int64_t hangs = 8, later = 9;
  ASSERT_OK(ExportScaling(Path("hangs"), {.init = ScalingModel::Init::kHangs}));
  ASSERT_OK_AND_ASSIGN(const auto server, ServedProcess::Start({.args = AllVersions()}));
  SteadyLoad load(
      {GrpcClient(*server, kGoodScale), RestClient(*server, RestAsker::Api::kRest, kGoodScale)});
  ASSERT_OK(files()->RenameFile(Path("hangs"), Version(hangs)));
  EXPECT_TRUE(server->AwaitState("m", hangs, ModelVersionStatus::LOADING));
  ASSERT_OK(files()->RenameFile(Path("sound"), Version(later)));
  EXPECT_TRUE(server->AwaitState("m", later, ModelVersionStatus::AVAILABLE));
  EXPECT_OK(Expect(kGoodScale, server->AskGrpc("m", 3, later)));
  ASSERT_OK_AND_ASSIGN(const auto versions, server->StatusOf("m"));
  EXPECT_EQ(versions.at(hangs).state(), ModelVersionStatus::LOADING);
  EXPECT_TRUE(load.AwaitMore(10));
  EXPECT_OK(load.Stop());
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// inspect_events and inspect_checkpoint: on TensorFlow's files as cases.json says, on our own, and
// on what is none.

#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/histogram.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/graph.pb.h"
#include "saver/event_writer.h"
#include "saver/tensor_bundle.h"

// covers: events: `inspect_events` and `inspect_checkpoint` list TensorFlow's files exactly (3
//   event files, 23 checkpoints, one of the first format), ours and damaged ones

// covers: events: `inspect_events --tag` prints the curves of a directory's runs as CSV, JSON and
//   SVG; each damaged file is told, and all others are shown

namespace millrace {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::StartsWith;

FileSystem* Fs() { return FileSystem::Posix(); }

struct Ended {
  int code = 0;
  std::string text;
};

// `errors`: where stderr goes.
Ended Inspected(const std::string& command, const char* errors = "2>&1") {
  FILE* const pipe = popen(absl::StrCat("tools/inspect_", command, " ", errors).c_str(), "r");
  Ended ended;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    ended.text.append(buffer, n);
  }
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}

json JsonOf(const std::string& command) {
  const Ended ended = Inspected(command, "2>/dev/null");
  EXPECT_EQ(ended.code, 0) << command << "\n" << Inspected(command).text;
  const json parsed = json::parse(ended.text, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(parsed.is_discarded()) << ended.text;
  return parsed;
}

std::vector<json> CasesOfKind(const std::string& kind) {
  std::vector<json> cases;
  const std::string path = SharedDataPath("cases.json");
  if (path.empty()) return cases;
  std::ifstream file(path);
  const json all = json::parse(file, nullptr, false);
  for (const json& one : all.at("cases")) {
    if (one.at("kind") == kind) cases.push_back(one);
  }
  return cases;
}

class Inspect : public ::testing::Test {
 protected:
  Inspect()
      : directory_(JoinPath(::testing::TempDir(), absl::StrCat("inspect_", RandomHexName()))) {
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(directory_));
  }
  ~Inspect() override { Fs()->RecursivelyDelete(directory_).IgnoreError(); }
  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  const std::string directory_;
};

// --- Events --------------------------------------------------------------------------------------

TEST_F(Inspect, ListsTensorFlowsEventFilesExactly) {
  const std::vector<json> cases = CasesOfKind("events_summary");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  for (const json& one : cases) {
    json want = one;
    for (const char* key : {"name", "kind", "path", "expected_from", "source"}) want.erase(key);
    const json got =
        JsonOf(absl::StrCat("events --json ", SharedDataPath(one.at("path").get<std::string>())));
    EXPECT_EQ(got, want) << one.at("name");
  }
  EXPECT_EQ(cases.size(), 3u);
}

TEST_F(Inspect, ShowsWhatAWriterHasWritten) {
  ASSERT_OK_AND_ASSIGN(auto writer, EventWriter::Open(directory_, {.host = "a"}));
  tensorflow::GraphDef graph;
  graph.add_node();
  ASSERT_OK(writer->AddGraph(graph));
  ASSERT_OK(writer->AddScalar("loss", 0.1f, 1));
  ASSERT_OK(writer->AddScalar("loss", NAN, 9));
  Histogram histogram;
  histogram.Add(-1);
  histogram.Add(2);
  ASSERT_OK(writer->AddHistogram("weights", histogram, 9));
  ASSERT_OK(writer->Close());
  ASSERT_OK(writer->Reopen());
  ASSERT_OK(writer->AddScalar("loss", 0.25f, 10));
  ASSERT_OK(writer->Close());

  const json got = JsonOf(absl::StrCat("events ", directory_, " --json"));
  EXPECT_EQ(got.at("records"), 7);
  EXPECT_EQ(got.at("kinds"), (json{{"file_version", 2}, {"graph_def", 1}, {"summary", 4}}));
  EXPECT_EQ(got.at("graph_nodes"), 1);
  EXPECT_EQ(got.at("tags").at("loss"), (json{{"kind", "simple_value"},
                                             {"plugin", nullptr},
                                             {"count", 3},
                                             {"first_step", 1},
                                             {"last_step", 10},
                                             {"last_value", 0.25}}));
  EXPECT_EQ(got.at("tags").at("weights").at("last_min_max"), (json{-1.0, 2.0}));
  const std::string text = Inspected(absl::StrCat("events ", directory_)).text;
  EXPECT_THAT(text, HasSubstr("graph of 1 nodes\n"));
  EXPECT_THAT(text, HasSubstr("loss     simple_value       3  1..10           0.25\n"));
  EXPECT_THAT(text, HasSubstr("2 values in -1..2\n"));
}

TEST_F(Inspect, ShowsWhatIsThereOfABrokenEventFile) {
  ASSERT_OK_AND_ASSIGN(auto writer, EventWriter::Open(directory_, {.host = "a"}));
  ASSERT_OK(writer->AddScalar("first", 1, 1));
  ASSERT_OK(writer->AddScalar("second", 2, 2));
  ASSERT_OK(writer->Close());
  ASSERT_OK_AND_ASSIGN(const auto names, Fs()->GetChildren(directory_));
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(Fs(), Path(names[0])));
  ASSERT_OK(WriteFileAtomically(Fs(), Path("cut"), bytes.substr(0, bytes.size() - 1)));
  const json cut = JsonOf(absl::StrCat("events --json ", Path("cut")));
  EXPECT_EQ(cut.at("records"), 2);
  EXPECT_TRUE(cut.at("tags").contains("first"));
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  ASSERT_OK(WriteFileAtomically(Fs(), Path("bad"), bytes));
  const Ended bad = Inspected(absl::StrCat("events ", Path("bad")));
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.text, HasSubstr("first"));
  EXPECT_THAT(bad.text, HasSubstr(absl::StrCat("inspect_events: Records '", Path("bad"),
                                               "': corrupted record at ")));
}

TEST_F(Inspect, PrintsTheCurveOfATag) {
  for (const char* const run : {"", "eval"}) {
    ASSERT_OK_AND_ASSIGN(auto writer, EventWriter::Open(Path(run)));
    ASSERT_OK(writer->AddScalar("loss", 0.1f, 1));
    ASSERT_OK(writer->AddScalar("loss", 0.25f, 2));
    ASSERT_OK(writer->Close());
  }
  const auto asked = [this](const char* flag) {
    return absl::StrCat("events --tag loss ", flag, " ", directory_);
  };
  const Ended csv = Inspected(asked("--csv"));
  EXPECT_EQ(csv.code, 0);
  EXPECT_THAT(csv.text, StartsWith("run,step,wall_time,value\n.,1,"));
  EXPECT_THAT(csv.text, HasSubstr("\neval,2,"));
  const Ended svg = Inspected(asked("--svg"));
  EXPECT_EQ(svg.code, 0);
  EXPECT_THAT(svg.text, StartsWith("<svg "));
  EXPECT_THAT(svg.text, HasSubstr(absl::StrCat("loss in ", directory_)));
  EXPECT_EQ(JsonOf(asked("--json")).at("runs").at("eval").at("values"), (json{0.1, 0.25}));
  EXPECT_THAT(Inspected(asked("")).text, HasSubstr("\neval       2  1..2 "));

  const Ended none = Inspected(absl::StrCat("events --csv --tag lost ", directory_));
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.text, absl::StrCat("inspect_events: '", directory_,
                                    "': tag must be one of its scalars, got 'lost'; there are "
                                    "'loss'\n"));
  struct Case {
    std::string flags, error;
  };
  const std::vector<Case> wrong = {
      {"--csv", "argument --csv: needs --tag TAG"},
      {"--svg", "argument --svg: needs --tag TAG"},
      {"--tag=", "argument --tag: must name a scalar"},
      {"--tag loss --csv --svg", "argument --svg: not allowed with argument --csv"},
      {"--tag loss --csv --json", "argument --csv: not allowed with argument --json"},
  };
  for (const Case& c : wrong) {
    const Ended ended = Inspected(absl::StrCat("events ", c.flags, " ", directory_));
    EXPECT_EQ(ended.code, 2) << c.flags;
    EXPECT_THAT(ended.text, HasSubstr("inspect_events: error: " + c.error)) << c.flags;
  }
}

TEST_F(Inspect, TellsOfEachDamagedEventFileAndShowsTheOthers) {
  for (const char* const name : {"1.tfevents", "2.tfevents"}) {
    ASSERT_OK(WriteFileAtomically(Fs(), Path(name), "no records at all, only text"));
  }
  ASSERT_OK_AND_ASSIGN(auto writer, EventWriter::Open(directory_));
  ASSERT_OK(writer->AddScalar("loss", 1, 1));
  ASSERT_OK(writer->Close());
  for (const char* const flags : {"", "--tag loss --csv "}) {
    const Ended ended = Inspected(absl::StrCat("events ", flags, directory_));
    EXPECT_EQ(ended.code, 1) << flags;
    EXPECT_THAT(ended.text, HasSubstr("1.tfevents': corrupted record")) << flags;
    EXPECT_THAT(ended.text, HasSubstr("2.tfevents': corrupted record")) << flags;
    EXPECT_THAT(ended.text, HasSubstr(*flags == 0 ? "loss  simple_value" : ".,1,")) << flags;
  }
}

// --- Checkpoints ---------------------------------------------------------------------------------

TEST_F(Inspect, ListsTensorFlowsCheckpointsExactly) {
  const std::vector<json> cases = CasesOfKind("checkpoint_list");
  if (cases.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no cases.json";
  for (const json& one : cases) {
    const std::string prefix = JoinPath(SharedDataPath(""), one.at("path").get<std::string>());
    json got = JsonOf(absl::StrCat("checkpoint --json ", prefix));
    const std::string name = one.at("name");
    EXPECT_EQ(got.at("num_shards"), one.at("num_shards")) << name;
    EXPECT_EQ(got.at("index_block_compression"), one.at("index_block_compression")) << name;
    json want = one.at("tensors");
    json& tensors = got.at("tensors");
    ASSERT_EQ(tensors.size(), want.size()) << name;
    for (auto& [tensor, expected] : want.items()) {
      // Sums depend on the order of adding.
      if (expected.contains("sum")) {
        ASSERT_TRUE(tensors.contains(tensor)) << name << " " << tensor;
        const double sum = expected.at("sum").get<double>();
        EXPECT_NEAR(tensors[tensor].at("sum").get<double>(), sum, 1e-9 * (1 + std::fabs(sum)))
            << name << " " << tensor;
        expected.erase("sum");
        tensors[tensor].erase("sum");
      }
    }
    EXPECT_EQ(tensors, want) << name;
  }
  EXPECT_EQ(cases.size(), 23u);
}

class InspectCheckpoint : public Inspect {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(Fs(), Path("model.ckpt-7")));
    ASSERT_OK(writer->Add("dense/kernel", TensorOf<float>({2, 1}, {0.5f, INFINITY})));
    ASSERT_OK(writer->Add("global_step", Tensor::Scalar<int64_t>(7)));
    ASSERT_OK(writer->Add("names", Tensor::Of({"a", "\xff"})));
    ASSERT_OK(writer->Add("none", TensorOf<double>({0}, {})));
    ASSERT_OK(writer->Add("flags", Tensor::Of<bool>({true, false, true, true, false})));
    ASSERT_OK(writer->Finish());
  }
};

TEST_F(InspectCheckpoint, ShowsTensorsAndValues) {
  const std::string prefix = Path("model.ckpt-7");
  const json want = {
      {"num_shards", 1},
      {"index_block_compression", "none"},
      {"tensors",
       {{"dense/kernel",
         {{"dtype", "float32"},
          {"shape", {2, 1}},
          {"sha256", "afea395f255907c2"},
          {"first", {0.5, "inf"}},
          {"sum", "inf"}}},
        {"global_step",
         {{"dtype", "int64"}, {"shape", json::array()}, {"sha256", ""}, {"first", {7}}}},
        {"names", {{"dtype", "string"}, {"shape", {2}}, {"values", {"a", {{"b64", "/w=="}}}}}},
        {"none",
         {{"dtype", "float64"},
          {"shape", {0}},
          {"sha256", "e3b0c44298fc1c14"},  // of no bytes
          {"first", json::array()},
          {"sum", 0.0}}},
        {"flags",
         {{"dtype", "bool"},
          {"shape", {5}},
          {"sha256", ""},
          {"first", {true, false, true, true}}}}}}};
  json got = JsonOf(absl::StrCat("checkpoint ", prefix, " --json"));
  for (const char* tensor : {"global_step", "flags"}) {
    EXPECT_EQ(got["tensors"][tensor]["sha256"].get<std::string>().size(), 16u);
    got["tensors"][tensor]["sha256"] = want["tensors"][tensor]["sha256"];
  }
  EXPECT_EQ(got, want);

  const std::string text = Inspected("checkpoint " + prefix).text;
  EXPECT_THAT(text, StartsWith(absl::StrCat(prefix, ": 5 tensors with 10 elements in 1 files\n")));
  EXPECT_THAT(text, HasSubstr("dense/kernel  float32   [2,1]\n"));
  EXPECT_EQ(Inspected("checkpoint --tensor dense/kernel " + prefix).text, "[[0.5]\n [inf]]\n");
  for (const char* end : {".index", ".meta", ".data-00000-of-00001"}) {
    EXPECT_EQ(Inspected(absl::StrCat("checkpoint ", prefix, end, " --tensor=global_step")).text,
              "7\n");
  }
  const json step = JsonOf(absl::StrCat("checkpoint ", prefix, " --tensor global_step --json"));
  EXPECT_EQ(step, (json{{"dtype", "int64"}, {"shape", json::array()}, {"values", {7}}}));
}

TEST_F(InspectCheckpoint, TakesTheNewestOfADirectory) {
  // A line on stderr says that no state file names it.
  EXPECT_THAT(Inspected("checkpoint " + directory_, "2>/dev/null").text,
              StartsWith(Path("model.ckpt-7") + ": 5 tensors"));
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(Path("model/variables")));
  ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(Fs(), Path("model/variables/variables")));
  ASSERT_OK(writer->Add("w", Tensor::Scalar(1.0f)));
  ASSERT_OK(writer->Finish());
  EXPECT_THAT(Inspected("checkpoint " + Path("model")).text, HasSubstr("variables: 1 tensors"));
}

TEST_F(Inspect, ReadsCheckpointsOfTheFirstFormat) {
  const std::string file = SharedDataPath("session_bundle/half_plus_two/export-00000-of-00001");
  if (file.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle";
  const std::string prefix = file.substr(0, file.size() - std::string("-00000-of-00001").size());
  for (const std::string& path : {file, prefix, prefix + "-*-of-00001"}) {
    const json got = JsonOf(absl::StrCat("checkpoint --json '", path, "'"));
    EXPECT_EQ(got["num_shards"], 1);
    EXPECT_EQ(got["tensors"]["a"]["first"], json{0.5});
    EXPECT_EQ(got["tensors"]["b"]["sha256"], "d88c86f15bbea365");  // 2.0
  }
  EXPECT_EQ(Inspected(absl::StrCat("checkpoint ", prefix, " --tensor b")).text, "2.0\n");
}

TEST_F(InspectCheckpoint, DamagedFilesAreNamed) {
  const std::string data = Path("model.ckpt-7.data-00000-of-00001");
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFileToString(Fs(), data));
  bytes[0] = static_cast<char>(bytes[0] ^ 1);
  ASSERT_OK(WriteFileAtomically(Fs(), data, bytes));
  const Ended ended = Inspected(absl::StrCat("checkpoint --json ", Path("model.ckpt-7")));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.text, HasSubstr("checksum"));
  EXPECT_EQ(Inspected(absl::StrCat("checkpoint ", Path("model.ckpt-7"))).code, 0)
      << "the index is sound";
}

// --- Both ----------------------------------------------------------------------------------------

TEST_F(InspectCheckpoint, WrongFlagsAndPathsAreExplained) {
  struct Case {
    std::string command;
    int code;
    std::string text;
  };
  const std::string checkpoint = Path("model.ckpt-7");
  ASSERT_OK(Fs()->RecursivelyCreateDirectory(Path("empty")));
  const Case cases[] = {
      {"events", 2, "inspect_events: error: the following arguments are required: FILE|DIR"},
      {"events a b", 2, "error: unrecognized arguments: "},
      {"events --jsn x", 2, "did you mean 'json'?"},
      {"events /no/such", 1, "inspect_events: File '/no/such'"},
      {"events " + directory_, 1, "must have records, got none"},
      {"checkpoint --json", 2, "required: PREFIX|DIR"},
      {"checkpoint --tensor", 2, "inspect_checkpoint: error: "},
      {"checkpoint /no/such", 1, "there must be '/no/such.index' or a file of the first format"},
      {"checkpoint /no/such.data-00000-of-00001", 1, "Checkpoint '/no/such': there must be"},
      {"checkpoint " + Path("empty"), 1, "a directory must have a whole checkpoint"},
      {"checkpoint " + checkpoint + " --tensor dense/kernl", 1,
       "--tensor must name a tensor in it, got 'dense/kernl'; did you mean 'dense/kernel'?"},
  };
  for (const Case& c : cases) {
    const Ended ended = Inspected(c.command);
    EXPECT_EQ(ended.code, c.code) << c.command << "\n" << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(c.text)) << c.command;
  }
  for (const char* program : {"events", "checkpoint"}) {
    EXPECT_EQ(Inspected(absl::StrCat(program, " --help")).code, 0);
    EXPECT_THAT(Inspected(absl::StrCat(program, " -h")).text, HasSubstr("--json"));
    EXPECT_THAT(Inspected(absl::StrCat(program, " --version")).text,
                StartsWith(absl::StrCat("inspect_", program, " (Millrace) ")));
  }
}

}  // namespace
}  // namespace millrace

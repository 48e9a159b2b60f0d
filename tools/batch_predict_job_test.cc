// SPDX-License-Identifier: Apache-2.0
//
// Batch predictions of a model that is a function of the test: what is written, and what a restart
// makes of every cut of the power and of every failure of the disk.
#include "tools/batch_predict_job.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "proto/meta_graph.pb.h"
#include "saver/loaded_model.h"
#include "saver/model_signature.h"
#include "tools/local_model.h"

// covers: serving: a batch prediction writes each row once, in order, as a result or as an error
//   with file, row and reason; one bad row of a batch harms no other
// covers: serving: a batch prediction goes on after every cut of the power and every failure of the
//   disk, and asks no row of a committed part again

namespace millrace {
namespace {

using Lines = std::vector<std::string>;

SignatureTensor TensorOfSignature(DType dtype) {
  tensorflow::TensorInfo info;
  info.set_name("t:0");
  info.set_dtype(static_cast<tensorflow::DataType>(dtype));
  info.mutable_tensor_shape()->add_dim()->set_size(-1);
  return SignatureTensor(info);
}

// y = -x; it refuses every batch with 13 in it, and is away when it is asked 66.
struct Negative {
  std::map<float, int> answered;  // how often, by x
  bool is_back = false;

  LocalModel Model() {
    LocalModel model;
    model.inputs.emplace("x", TensorOfSignature(DT_FLOAT));
    model.outputs.emplace("y", TensorOfSignature(DT_FLOAT));
    model.predict = [this](const NamedTensors& inputs) -> StatusOr<NamedTensors> {
      const absl::Span<const float> x = inputs.at("x").flat<float>();
      std::vector<float> y;
      for (const float value : x) {
        if (value == 13) return InvalidArgument("x must not be 13");
        if (value == 66 && !is_back) return absl::UnavailableError("away");
        y.push_back(-value);
      }
      for (const float value : x) ++answered[value];
      MR_ASSIGN_OR_RETURN(Tensor result,
                          Tensor::FromValues<float>(Shape{static_cast<int64_t>(y.size())}, y));
      return NamedTensors{{"y", std::move(result)}};
    };
    return model;
  }
};

// Says what it is asked.
LocalModel Echo() {
  LocalModel model;
  model.inputs.emplace("s", TensorOfSignature(DT_STRING));
  model.outputs.emplace("s", TensorOfSignature(DT_STRING));
  model.predict = [](const NamedTensors& inputs) -> StatusOr<NamedTensors> { return inputs; };
  return model;
}

class BatchPredictJobTest : public ::testing::Test {
 protected:
  BatchPredictJobTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("batch_", RandomHexName()))),
        out_(JoinPath(dir_, "out")) {
    EXPECT_OK(Fs()->RecursivelyCreateDirectory(dir_));
  }
  ~BatchPredictJobTest() override { Fs()->RecursivelyDelete(dir_).IgnoreError(); }
  static FileSystem* Fs() { return FileSystem::Posix(); }

  void Write(const std::string& name, const std::string& text) const {
    EXPECT_OK(WriteFileAtomically(Fs(), JoinPath(dir_, name), text));
  }
  BatchPredictOptions Options(const std::string& pattern) const {
    return {.inputs = {JoinPath(dir_, pattern)}, .output_directory = out_};
  }
  // The lines of one kind, shard by shard.
  static std::vector<Lines> Shards(const std::string& out, const std::string& kind,
                                   int num_shards) {
    std::vector<Lines> shards;
    for (int i = 0; i < num_shards; ++i) {
      const StatusOr<std::string> text = ReadFileToString(
          Fs(), JoinPath(out, absl::StrFormat("prediction.%s-%05d-of-%05d", kind, i, num_shards)));
      EXPECT_OK(text);
      Lines lines = absl::StrSplit(text.value_or(""), '\n');
      EXPECT_EQ(lines.back(), "");
      lines.pop_back();
      shards.push_back(std::move(lines));
    }
    return shards;
  }
  // Of one shard.
  Lines Results() const { return Shards(out_, "results", 1)[0]; }
  Lines Errors() const { return Shards(out_, "errors_stats", 1)[0]; }

  const std::string dir_, out_;
};

// "base:row" and the reason.
void ExpectError(const std::string& line, const std::string& place, const std::string& reason) {
  const auto error = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(error.is_object()) << line;
  EXPECT_EQ(
      absl::StrCat(Basename(error["file"].get<std::string>()), ":", error["row"].get<int64_t>()),
      place);
  EXPECT_TRUE(absl::StrContains(error["error"].get<std::string>(), reason)) << line;
}

TEST_F(BatchPredictJobTest, WritesEachRowOnceInOrder) {
  Write("a.json", "1\n2\n\n[\n4\n");
  Write("b.json", "5\n6\n13\n{\"x\": 8}\n9\n10\n");
  Negative model;
  BatchPredictOptions options = Options("*.json");
  options.num_shards = 3;
  options.batch_size = 4;
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary, RunBatchPredict(options, model.Model()));
  EXPECT_EQ(summary.ToString(), "8 results and 2 errors");
  // Ten rows: 0 to 2, 3 to 5, 6 to 9.
  EXPECT_EQ(
      Shards(out_, "results", 3),
      (std::vector<Lines>{{"-1.0", "-2.0"}, {"-4.0", "-5.0", "-6.0"}, {"-8.0", "-9.0", "-10.0"}}));
  const std::vector<Lines> errors = Shards(out_, "errors_stats", 3);
  ASSERT_EQ(errors[0].size(), 1u);
  ExpectError(errors[0][0], "a.json:4", "INVALID_ARGUMENT: must be a JSON value, got '['");
  EXPECT_TRUE(errors[1].empty());
  ASSERT_EQ(errors[2].size(), 1u);
  ExpectError(errors[2][0], "b.json:3", "INVALID_ARGUMENT: x must not be 13");
  for (const auto& [x, times] : model.answered) EXPECT_EQ(times, 1) << x;
}

TEST_F(BatchPredictJobTest, MoreShardsThanRowsAndNoRowsAtAll) {
  Write("a.json", "1\n");
  Write("empty.json", "\n");
  Negative model;
  BatchPredictOptions options = Options("a.json");
  options.num_shards = 2;
  ASSERT_OK(RunBatchPredict(options, model.Model()));
  // One row: shard 0 has rows [0, 0), shard 1 rows [0, 1).
  EXPECT_EQ(Shards(out_, "results", 2), (std::vector<Lines>{{}, {"-1.0"}}));
  BatchPredictOptions none = Options("empty.json");
  none.output_directory = JoinPath(dir_, "none");
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary, RunBatchPredict(none, model.Model()));
  EXPECT_EQ(summary.ToString(), "0 results and 0 errors");
  EXPECT_EQ(Shards(none.output_directory, "results", 1), std::vector<Lines>{{}});
}

TEST_F(BatchPredictJobTest, RowsOfAllFormats) {
  Write("a.csv", "x\n1\n \n-2.5\nthree\n\"4\"\n");
  Negative model;
  BatchPredictOptions csv = Options("a.csv");
  csv.format = BatchRowFormat::kCsv;
  csv.has_header = true;
  ASSERT_OK(RunBatchPredict(csv, model.Model()));
  EXPECT_EQ(Results(), (Lines{"-1.0", "2.5", "-4.0"}));
  const Lines errors = Errors();
  ASSERT_EQ(errors.size(), 2u);
  ExpectError(errors[0], "a.csv:2", "input 'x' must be of float");
  ExpectError(errors[1], "a.csv:4", "got \"three\"");

  const auto echoed = [&](const std::string& file, BatchRowFormat format) {
    BatchPredictOptions options = Options(file);
    options.format = format;
    options.output_directory = JoinPath(dir_, file + ".out");
    EXPECT_OK(RunBatchPredict(options, Echo()));
    return Shards(options.output_directory, "results", 1)[0];
  };
  Write("a.txt", "it's\n\n\"b\"\n");
  EXPECT_EQ(echoed("a.txt", BatchRowFormat::kText), (Lines{"\"it's\"", "\"\"", "\"\\\"b\\\"\""}));
  Write("records.csv", "1, a\n2, b\n");
  EXPECT_EQ(echoed("records.csv", BatchRowFormat::kCsv), (Lines{"\"1, a\"", "\"2, b\""}));
  {
    ASSERT_OK_AND_ASSIGN(const auto writer, RecordWriter::Open(Fs(), JoinPath(dir_, "records")));
    ASSERT_OK(writer->Write("text"));
    ASSERT_OK(writer->Write(std::string("\0\1", 2)));
    ASSERT_OK(writer->Close());
  }
  EXPECT_EQ(echoed("records", BatchRowFormat::kRecords), (Lines{"\"text\"", "{\"b64\":\"AAE=\"}"}));
}

TEST_F(BatchPredictJobTest, AnAbsentModelEndsTheJobAndARestartGoesOn) {
  Write("a.json", "1\n2\n3\n4\n5\n66\n7\n");
  Negative model;
  BatchPredictOptions options = Options("a.json");
  options.part_rows = options.batch_size = 2;
  EXPECT_STATUS(RunBatchPredict(options, model.Model()), absl::StatusCode::kUnavailable, "away");
  model.is_back = true;
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary summary, RunBatchPredict(options, model.Model()));
  // Two batches of two were committed, each as a part.
  EXPECT_EQ(summary.ToString(), "7 results and 0 errors; 4 of these rows were done before");
  EXPECT_EQ(Results(), (Lines{"-1.0", "-2.0", "-3.0", "-4.0", "-5.0", "-66.0", "-7.0"}));
  for (const auto& [x, times] : model.answered) EXPECT_EQ(times, 1) << x;
  // Once more: it asks nothing.
  ASSERT_OK_AND_ASSIGN(const BatchPredictSummary again, RunBatchPredict(options, model.Model()));
  EXPECT_EQ(again.ToString(), "7 results and 0 errors; 7 of these rows were done before");
  for (const auto& [x, times] : model.answered) EXPECT_EQ(times, 1) << x;
}

TEST_F(BatchPredictJobTest, AnotherJobsDirectoryIsRefused) {
  Write("a.json", "1\n");
  Write("b.json", "1\n");
  Negative model;
  ASSERT_OK(RunBatchPredict(Options("a.json"), model.Model()));
  EXPECT_STATUS(RunBatchPredict(Options("b.json"), model.Model()),
                absl::StatusCode::kFailedPrecondition, "got another job's");
  BatchPredictOptions other = Options("a.json");
  other.model = "another one";
  EXPECT_STATUS(RunBatchPredict(other, model.Model()), absl::StatusCode::kFailedPrecondition,
                "delete it, or write elsewhere");
  ASSERT_OK(Fs()->RecursivelyDelete(JoinPath(out_, ".batch_predict")));
  EXPECT_STATUS(RunBatchPredict(Options("a.json"), model.Model()),
                absl::StatusCode::kFailedPrecondition, "it must have no predictions yet");
}

TEST_F(BatchPredictJobTest, WrongOptionsAreRefused) {
  Write("a.json", "1\n");
  Negative model;
  BatchPredictOptions options = Options("a.json");
  options.num_shards = 0;
  EXPECT_STATUS(RunBatchPredict(options, model.Model()), absl::StatusCode::kInvalidArgument,
                "num_shards in [1, 99999], got 64, 10000 and 0");
  options = Options("a.json");
  options.format = BatchRowFormat::kText;
  EXPECT_STATUS(RunBatchPredict(options, model.Model()), absl::StatusCode::kInvalidArgument,
                "text is for a signature with one input of strings, got 'x: float'");
  EXPECT_STATUS(RunBatchPredict(Options("none*"), model.Model()), absl::StatusCode::kNotFound,
                "it must name files, got none");
}

// Four rows in two parts, one of them an error.
class BrokenDiskTest : public BatchPredictJobTest {
 protected:
  BrokenDiskTest() { Write("a.json", "1\n2\n13\n4\n"); }
  StatusOr<BatchPredictSummary> Run(FileSystem* files, const std::string& out) {
    Negative model;
    BatchPredictOptions options = Options("a.json");
    options.part_rows = options.batch_size = 2;
    options.output_directory = out;
    options.file_system = files;
    return RunBatchPredict(options, model.Model());
  }
  // That a run on a sound disk ends what was begun in `out`.
  void ExpectFinishes(const std::string& out) {
    const StatusOr<BatchPredictSummary> summary = Run(Fs(), out);
    ASSERT_OK(summary);
    EXPECT_EQ(summary->results, 3);
    EXPECT_EQ(summary->errors, 1);
    EXPECT_EQ(Shards(out, "results", 1)[0], (Lines{"-1.0", "-2.0", "-4.0"}));
    const Lines errors = Shards(out, "errors_stats", 1)[0];
    ASSERT_EQ(errors.size(), 1u);
    ExpectError(errors[0], "a.json:3", "x must not be 13");
  }
};

TEST_F(BrokenDiskTest, GoesOnAfterEveryCutOfThePower) {
  FaultyFileSystem files(Fs(), out_);
  ASSERT_OK(Run(&files, out_));
  const std::string after = JoinPath(dir_, "after");
  for (int64_t cut = 0; cut <= files.num_operations(); ++cut) {
    for (const Loss loss : {Loss::kEverythingUnsynced, Loss::kRandom}) {
      SCOPED_TRACE(absl::StrCat("after operation ", cut, ", loss ", static_cast<int>(loss)));
      ASSERT_OK(files.RestoreCut(cut, loss, /*seed=*/static_cast<uint64_t>(cut), after));
      ExpectFinishes(after);
    }
  }
}

TEST_F(BrokenDiskTest, GoesOnAfterEveryFailure) {
  int64_t num_operations = 0;
  {
    FaultyFileSystem files(Fs(), out_);
    ASSERT_OK(Run(&files, out_));
    num_operations = files.num_operations();
  }
  for (int64_t k = 1; k <= num_operations; ++k) {
    SCOPED_TRACE(k);
    const std::string out = JoinPath(dir_, absl::StrCat("out", k));
    FaultyFileSystem files(Fs(), out);
    files.FailOperation(k, absl::ResourceExhaustedError("disk full"), /*sticky=*/true);
    // Only what is cleared away at the end may fail unseen.
    const StatusOr<BatchPredictSummary> failed = Run(&files, out);
    if (!failed.ok()) {
      EXPECT_EQ(failed.status().code(), absl::StatusCode::kResourceExhausted);
    }
    ExpectFinishes(out);
  }
}

}  // namespace
}  // namespace millrace

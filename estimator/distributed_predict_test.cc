// SPDX-License-Identifier: Apache-2.0
//
// PredictOnCluster in one process, and what it refuses. With processes: tests/cluster.
#include "estimator/distributed_predict.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "estimator/testing/line_model.h"
#include "gtest/gtest.h"

// covers: article 3-27, 3-28, 3-37: prediction on a cluster: 10,000 rows by ps, chief and two
//   workers, each row once and with the values of one process, also after kills, stops and
//   restarts; all tasks leave

namespace millrace {
namespace {

constexpr int64_t kRows = 103;

// Rows of an id and an x, in batches.
data::Dataset Rows(int64_t rows, int64_t batch) {
  std::vector<int64_t> ids;
  std::vector<float> x;
  for (int64_t i = 0; i < rows; ++i) {
    ids.push_back(i);
    x.push_back(static_cast<float>(i) / 8);
  }
  return data::Dataset::FromTensorSlices({Tensor::Vector<int64_t>(ids), Tensor::Vector<float>(x)})
      .Batch(batch);
}
const DatasetColumns kColumns = {.names = {"id", "x"}};

class DistributedPredictTest : public testing::Test {
 protected:
  DistributedPredictTest()
      : dir_(absl::StrCat(testing::TempDir(), "/predict_",
                          testing::UnitTest::GetInstance()->current_test_info()->name())),
        out_(dir_ + "/out") {
    fs()->RecursivelyDelete(dir_).IgnoreError();
  }
  static FileSystem* fs() { return FileSystem::Posix(); }

  Estimator Line(const std::string& tf_config = "") {
    const auto made = Estimator::Make(
        LineModel, {.config = *RunConfig::Make({.model_dir = dir_ + "/model", .tf_random_seed = 5},
                                               tf_config)});
    EXPECT_OK(made.status());
    return *made;
  }
  Estimator Trained() {
    Estimator line = Line();
    EXPECT_OK(line.Train(Points, {.max_steps = 3}).status());
    return line;
  }

  // "output" by id, of all files that the manifest names; each id once.
  std::map<int64_t, double> Outputs(const PredictionManifest& manifest) {
    std::map<int64_t, double> outputs;
    for (const PredictedPart& part : manifest.parts) {
      const auto text = ReadFileToString(fs(), JoinPath(out_, part.file));
      EXPECT_OK(text.status());
      int64_t rows = 0;
      for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
        const auto row = nlohmann::json::parse(line, nullptr, false);
        EXPECT_TRUE(row.is_object()) << line;
        const int64_t id = row["id"].get<int64_t>();
        EXPECT_TRUE(outputs.emplace(id, row["output"].get<double>()).second) << "twice: " << id;
        ++rows;
      }
      EXPECT_EQ(rows, part.content.rows);
    }
    return outputs;
  }
  void ExpectWhole(const Estimator& line, const std::map<int64_t, double>& outputs, int64_t rows) {
    EXPECT_EQ(outputs.size(), static_cast<size_t>(rows));
    ASSERT_OK_AND_ASSIGN(auto local, line.Predict([=] { return Input(Rows(rows, 7), kColumns); }));
    int64_t id = 0;
    for (Prediction row;; ++id) {
      ASSERT_OK_AND_ASSIGN(const bool more, local->Next(&row));
      if (!more) break;
      ASSERT_EQ(outputs.count(id), 1u) << id;
      EXPECT_EQ(static_cast<float>(outputs.at(id)), row.single().scalar<float>()) << id;
    }
    EXPECT_EQ(id, rows);
  }

  const std::string dir_, out_;
  const InputFn rows_ = [] { return Input(Rows(kRows, 10), kColumns); };
};

TEST_F(DistributedPredictTest, OneProcessPredictsEveryRowOnceAndAsPredictDoes) {
  const Estimator line = Trained();
  for (const int64_t num_parts : {0, 1, 4, 50}) {  // the last ones are empty
    SCOPED_TRACE(num_parts);
    fs()->RecursivelyDelete(out_).IgnoreError();
    ASSERT_OK_AND_ASSIGN(
        const ClusterPrediction done,
        PredictOnCluster(line, rows_,
                         {.output_dir = out_, .num_parts = num_parts, .forward_features = {"id"}}));
    EXPECT_EQ(done.own_rows, kRows);
    ASSERT_TRUE(done.manifest);
    EXPECT_EQ(done.manifest->rows(), kRows);
    EXPECT_EQ(done.manifest->parts.size(), static_cast<size_t>(std::max<int64_t>(1, num_parts)));
    EXPECT_EQ(done.manifest->checkpoint, line.latest_checkpoint());
    ExpectWhole(line, Outputs(*done.manifest), kRows);
    ASSERT_OK_AND_ASSIGN(const auto left, fs()->GetChildren(out_ + "/_job"));
    EXPECT_EQ(left, std::vector<std::string>{"job.json"}) << "attempts are removed";
  }
}

TEST_F(DistributedPredictTest, AShuffleGivesAllPartsOneOrder) {
  const Estimator line = Trained();
  const InputFn shuffled = [] {
    return Input(Rows(kRows, 1).Shuffle(50).Take(60), kColumns);  // another order takes other rows
  };
  ASSERT_OK_AND_ASSIGN(
      const ClusterPrediction done,
      PredictOnCluster(line, shuffled,
                       {.output_dir = out_, .num_parts = 6, .forward_features = {"id"}}));
  EXPECT_EQ(Outputs(*done.manifest).size(), 60u);
}

TEST_F(DistributedPredictTest, PartsMayBeFiles) {
  const Estimator line = Trained();
  ASSERT_OK(fs()->RecursivelyCreateDirectory(dir_ + "/in"));
  for (int64_t file = 0; file < 5; ++file) {
    std::string text;
    for (int64_t id = file; id < kRows; id += 5) {
      absl::StrAppend(&text, id, ",", static_cast<double>(id) / 8, "\n");
    }
    ASSERT_OK(WriteFileAtomically(fs(), absl::StrCat(dir_, "/in/part-r-0000", file), text));
  }
  ASSERT_OK(WriteFileAtomically(fs(), dir_ + "/in/_SUCCESS", ""));
  const InputFiles files = {
      .patterns = {dir_ + "/in/part-r-*", dir_ + "/in/part-r-00001"},
      .input_fn = [](const std::vector<std::string>& paths) -> StatusOr<Input> {
        return Input(
            data::Dataset::TextLines(paths)
                .Map(data::DecodeCsv({.defaults = {Tensor::Scalar(int64_t{0}), Tensor::Scalar(0.f)},
                                      .names = {"id", "x"}}))
                .Batch(9),
            kColumns);
      }};
  for (const int64_t num_parts : {2, 7}) {
    fs()->RecursivelyDelete(out_).IgnoreError();
    ASSERT_OK_AND_ASSIGN(
        const ClusterPrediction done,
        PredictOnCluster(line, files,
                         {.output_dir = out_, .num_parts = num_parts, .forward_features = {"id"}}));
    EXPECT_EQ(done.manifest->parts.size(), static_cast<size_t>(num_parts));
    ExpectWhole(line, Outputs(*done.manifest), kRows);
  }
  const InputFiles none = {.patterns = {dir_ + "/in/nothing-*"}, .input_fn = files.input_fn};
  const Status status = PredictOnCluster(line, none, {.output_dir = dir_ + "/other"}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StrContains(status.message(), "patterns must match a file, got none for '"))
      << status;
}

TEST_F(DistributedPredictTest, FinishedPredictionsAreNotRepeated) {
  const Estimator line = Trained();
  const ClusterPredictOptions options = {.output_dir = out_, .forward_features = {"id"}};
  ASSERT_OK_AND_ASSIGN(const ClusterPrediction first, PredictOnCluster(line, rows_, options));
  ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(fs(), out_ + "/manifest.json"));
  // Training continues in the meantime.
  ASSERT_OK(line.Train(Points, {.max_steps = 5}).status());
  ASSERT_OK_AND_ASSIGN(const ClusterPrediction again, PredictOnCluster(line, rows_, options));
  EXPECT_EQ(again.own_rows, 0);
  ASSERT_TRUE(again.manifest);
  EXPECT_EQ(again.manifest->checkpoint, first.manifest->checkpoint);
  EXPECT_EQ(*ReadFileToString(fs(), out_ + "/manifest.json"), text);
  // Other options than those of the predictions that are there.
  const std::string model = dir_ + "/model/";
  for (const auto& [other, said] : std::vector<std::pair<ClusterPredictOptions, std::string>>{
           {{.output_dir = out_, .format = PredictionFormat::kTfRecord},
            "has predictions with format jsonl, got tfrecord"},
           {{.output_dir = out_, .num_parts = 3}, "has predictions with num_parts 1, got 3"},
           {{.output_dir = out_, .checkpoint_path = model + "model.ckpt-5"},
            absl::StrCat("has predictions with checkpoint_path ", model, "model.ckpt-3, got ",
                         model, "model.ckpt-5; give another directory, or remove it")}}) {
    const Status status = PredictOnCluster(line, rows_, other).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(absl::StrContains(status.message(), said)) << status;
  }
}

// A process was killed in the middle: its job continues with its checkpoint and its parts.
TEST_F(DistributedPredictTest, AJobUnderWayGoesOn) {
  const Estimator line = Trained();
  const std::string checkpoint = line.latest_checkpoint();
  PredictionFiles files(fs(), out_);
  ASSERT_OK(files.WriteJob({.checkpoint = checkpoint, .num_parts = 3, .seed = 1}));
  // One part is complete, another one has begun.
  ASSERT_OK_AND_ASSIGN(auto whole, files.Begin(1, PredictionFormat::kJsonLines));
  ASSERT_OK(whole.writer->Write({"id", "output"},
                                {Tensor::Vector<int64_t>({1000}), Tensor::Vector<float>({7})}));
  ASSERT_OK(files.Commit(&whole, "before").status());
  ASSERT_OK_AND_ASSIGN(auto cut, files.Begin(2, PredictionFormat::kJsonLines));
  ASSERT_OK(cut.writer->Write({"id"}, {Tensor::Vector<int64_t>({1})}));
  ASSERT_OK(cut.writer->Flush());
  ASSERT_OK(line.Train(Points, {.max_steps = 5}).status());
  ASSERT_OK_AND_ASSIGN(
      const ClusterPrediction done,
      PredictOnCluster(line, rows_, {.output_dir = out_, .forward_features = {"id"}}));
  EXPECT_EQ(done.manifest->checkpoint, checkpoint);
  EXPECT_EQ(done.manifest->parts[1].task, "before");
  // Of eleven batches of ten, the last one with three rows, part 1 has four.
  const auto outputs = Outputs(*done.manifest);
  EXPECT_EQ(outputs.at(1000), 7);
  EXPECT_EQ(outputs.size(), static_cast<size_t>(kRows - 33 + 1));
  EXPECT_EQ(done.own_rows, kRows - 33);
}

TEST_F(DistributedPredictTest, GivesTheKeysThatItIsTold) {
  const Estimator line = Trained();
  ASSERT_OK_AND_ASSIGN(const ClusterPrediction done,
                       PredictOnCluster(line, rows_, {.output_dir = out_}));
  const auto text = ReadFileToString(fs(), out_ + "/" + done.manifest->parts[0].file);
  ASSERT_OK(text.status());
  EXPECT_TRUE(absl::StartsWith(*text, "{\"output\":")) << *text;
}

TEST_F(DistributedPredictTest, WhatCannotWorkIsRefused) {
  const Estimator line = Trained();
  const auto expect = [&](const Status& status, const std::string& said) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), said)) << status;
  };
  expect(PredictOnCluster(line, rows_, {}).status(), "output_dir must be given, got ''");
  expect(PredictOnCluster(line, InputFn(), {.output_dir = out_}).status(),
         "input_fn must be a function, got none");
  expect(PredictOnCluster(line, InputFiles{.patterns = {"a"}}, {.output_dir = out_}).status(),
         "InputFiles must have patterns and an input_fn, got no function");
  for (const int64_t parts : {int64_t{-1}, kMaxPredictionParts + 1}) {
    expect(PredictOnCluster(line, rows_, {.output_dir = out_, .num_parts = parts}).status(),
           absl::StrCat("num_parts must be 0 to 99999, got ", parts));
  }
  expect(PredictOnCluster(line, rows_, {.output_dir = out_, .worker_grace_secs = -1}).status(),
         "worker_grace_secs must be >= 0, got -1");
  expect(PredictOnCluster(line, rows_, {.output_dir = out_, .hooks = {nullptr}}).status(),
         "hooks must be hooks, got a null one");
  const auto in = [&](const char* name) {
    return ClusterPredictOptions{.output_dir = dir_ + name};
  };
  expect(PredictOnCluster(line, Points, in("/tensors")).status(),
         "input_fn must return a Dataset, got tensors");
  expect(PredictOnCluster(
             line, [] { return Input(Rows(5, 1).Repeat(), kColumns); }, in("/endless"))
             .status(),
         "input_fn must return a Dataset that ends");
  ClusterPredictOptions forward = in("/forward");
  forward.forward_features = {"name"};
  expect(PredictOnCluster(line, rows_, forward).status(),
         "forward_features must be among the features, and dense, id, x, got 'name'");
  ClusterPredictOptions keys = in("/keys");
  keys.predict_keys = {"nothing"};
  expect(PredictOnCluster(line, rows_, keys).status(), "predict_keys must");
}

TEST_F(DistributedPredictTest, AnEvaluatorHasNothingToDo) {
  const Estimator line = Line(
      "{\"cluster\": {\"chief\": [\"a:1\"], \"ps\": [\"a:2\"]}, \"task\": {\"type\": "
      "\"evaluator\", \"index\": 0}}");
  ASSERT_OK_AND_ASSIGN(const ClusterPrediction done,
                       PredictOnCluster(line, rows_, {.output_dir = out_}));
  EXPECT_FALSE(done.manifest);
  EXPECT_FALSE(fs()->FileExists(out_));
}

// Without parameter servers tasks meet only in the directory; here they run one after the other.
TEST_F(DistributedPredictTest, TasksWithoutParameterServersRestoreForThemselves) {
  const auto config = [](const std::string& type, int index) {
    return absl::StrCat("{\"cluster\": {\"chief\": [\"a:1\"], \"worker\": [\"a:2\", \"a:3\"]}, ",
                        "\"task\": {\"type\": \"", type, "\", \"index\": ", index, "}}");
  };
  const ClusterPredictOptions options = {
      .output_dir = out_, .forward_features = {"id"}, .worker_grace_secs = 0.5};
  const Status without = PredictOnCluster(Line(config("chief", 0)), rows_, options).status();
  EXPECT_EQ(without.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(absl::StrContains(without.message(), "must have a checkpoint, got none")) << without;
  const Estimator line = Trained();
  // The job that a chief has begun.
  ASSERT_OK(PredictionFiles(fs(), out_)
                .WriteJob({.checkpoint = line.latest_checkpoint(), .num_parts = 3, .seed = 1}));
  ASSERT_OK_AND_ASSIGN(const ClusterPrediction of_worker,
                       PredictOnCluster(Line(config("worker", 1)), rows_, options));
  EXPECT_EQ(of_worker.own_rows, 30);  // batches 2, 5 and 8
  EXPECT_FALSE(of_worker.manifest);
  // Worker 0 never came.
  testing::internal::CaptureStderr();
  const auto of_chief = PredictOnCluster(Line(config("chief", 0)), rows_, options);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(of_chief.status());
  EXPECT_TRUE(absl::StrContains(log,
                                "worker 0 (a:2) has shown no sign of life for 0.5 s; the chief "
                                "predicts its part 1"))
      << log;
  EXPECT_EQ(of_chief->own_rows, kRows - 30);
  ASSERT_TRUE(of_chief->manifest);
  EXPECT_EQ(of_chief->manifest->parts[0].task, "chief 0");
  EXPECT_EQ(of_chief->manifest->parts[1].task, "chief 0");
  EXPECT_EQ(of_chief->manifest->parts[2].task, "worker 1");
  ExpectWhole(line, Outputs(*of_chief->manifest), kRows);
  // Worker 0 comes too late.
  ASSERT_OK_AND_ASSIGN(const ClusterPrediction late,
                       PredictOnCluster(Line(config("worker", 0)), rows_, options));
  EXPECT_EQ(late.own_rows, 0);
}

TEST_F(DistributedPredictTest, AWorkerSaysForWhomItWaitsAndForHowLong) {
  Trained();
  const Estimator line = *Estimator::Make(
      LineModel, {.config = *RunConfig::Make(
                      {.model_dir = dir_ + "/model", .session_creation_timeout_secs = 0.5},
                      "{\"cluster\": {\"chief\": [\"host7:1\"], \"worker\": [\"a:2\"]}, "
                      "\"task\": {\"type\": \"worker\", \"index\": 0}}")});
  const Status status = PredictOnCluster(line, rows_, {.output_dir = out_}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(absl::StrContains(
      status.message(),
      absl::StrCat("waited 500ms for chief 0 (host7:1), which has begun no job in '", out_, "'")))
      << status;
}

}  // namespace
}  // namespace millrace

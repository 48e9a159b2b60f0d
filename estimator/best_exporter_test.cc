// SPDX-License-Identifier: Apache-2.0
#include "estimator/best_exporter.h"

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "estimator/testing/line_model.h"
#include "estimator/train_and_evaluate.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/placeholder.h"
#include "proto/summary.pb.h"
#include "saver/event_writer.h"

// covers: training: BestExporter exports a model better than all before, also after a restart, and
//   keeps the newest
// covers: article 0-4, 0-24: exporters after evaluations, once at the end or after each
// covers: scenario F10: latest and best exporters

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ServingInputReceiver FeedX(const Scope& scope) {
  const Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
  return {.features = {{"x", x}}, .receivers = {{"x", x}}};
}

class BestExporterTest : public testing::Test {
 protected:
  BestExporterTest()
      : dir_(absl::StrCat(testing::TempDir(), "/",
                          testing::UnitTest::GetInstance()->current_test_info()->name(), "[1]")) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
    const RunConfig config =
        *RunConfig::Make({.model_dir = dir_, .save_checkpoints_steps = 100}, "");
    EXPECT_OK(Estimator::Make(LineModel, {.config = config})->Train(Points, {.max_steps = 1}));
    estimator_ = std::make_unique<Estimator>(
        *Estimator::Make(LineModel, {.config = config, .clock = &clock_}));
  }
  static FileSystem* fs() { return FileSystem::Posix(); }

  static EvalResult Result(int64_t step, const std::map<std::string, float>& metrics) {
    EvalResult result;
    result.global_step = step;
    for (const auto& [name, value] : metrics) result.metrics[name] = Tensor::Scalar(value);
    return result;
  }

  // Writes the result as an evaluation does, of this process or an earlier one.
  void Write(const std::string& directory, const EvalResult& result) {
    auto events = EventWriter::Open(directory);
    ASSERT_OK(events.status());
    tensorflow::Summary summary;
    for (const auto& [name, value] : result.metrics) {
      summary.add_value()->set_tag(name);
      summary.mutable_value()->rbegin()->set_simple_value(static_cast<float>(result[name]));
    }
    ASSERT_OK((*events)->AddSummary(summary, result.global_step));
    ASSERT_OK((*events)->Flush());
  }

  // Whether it exports. Afterwards the clock is a second later.
  bool Exports(BestExporter* exporter, const EvalResult& result,
               const std::string& eval_name = "eval", std::optional<int64_t> began_at = {}) {
    const StatusOr<std::string> path =
        exporter->Export({.estimator = *estimator_,
                          .export_path = dir_ + "/export/best",
                          .checkpoint_path = estimator_->latest_checkpoint(),
                          .result = result,
                          .eval_dir = dir_ + "/" + eval_name,
                          .began_at = began_at});
    EXPECT_OK(path.status());
    clock_.Advance(absl::Seconds(1));
    return path.ok() && !path->empty();
  }
  std::vector<std::string> Exported() {
    return fs()->GetChildren(dir_ + "/export/best").value_or(std::vector<std::string>());
  }

  const std::string dir_;
  FakeClock clock_{absl::FromUnixSeconds(1'600'000'000)};
  std::unique_ptr<Estimator> estimator_;
};

TEST_F(BestExporterTest, ExportsTheFirstAndWhatIsBetter) {
  BestExporter best("best", ServingInputReceiverFn(FeedX));
  Write(dir_ + "/eval", Result(1, {{"loss", 0.5f}}));
  EXPECT_TRUE(Exports(&best, Result(1, {{"loss", 0.5f}}))) << "its own events do not count";
  EXPECT_FALSE(Exports(&best, Result(2, {{"loss", 0.6f}})));
  EXPECT_FALSE(Exports(&best, Result(3, {{"loss", 0.5f}}))) << "as good is not better";
  EXPECT_TRUE(Exports(&best, Result(4, {{"loss", 0.4f}})));
  EXPECT_FALSE(Exports(&best, Result(4, {{"loss", 0.4f}}))) << "asked again as the final one";
  EXPECT_EQ(Exported(), (std::vector<std::string>{"1600000000", "1600000003"}));
}

TEST_F(BestExporterTest, ARestartedProcessKnowsWhatWasBest) {
  for (const std::string eval : {"eval", "eval_named"}) {
    Write(dir_ + "/" + eval, Result(1, {{"loss", 0.5f}}));
    Write(dir_ + "/" + eval, Result(2, {{"loss", 0.3f}}));
    Write(dir_ + "/" + eval, Result(3, {{"loss", 0.9f}}));
    Write(dir_ + "/" + eval, Result(4, {{"loss", 0.4f}}));
    BestExporter best("best", ServingInputReceiverFn(FeedX));
    EXPECT_FALSE(Exports(&best, Result(4, {{"loss", 0.4f}}), eval));
    EXPECT_TRUE(Exports(&best, Result(5, {{"loss", 0.2f}}), eval));
  }
}

// Somebody has deleted the checkpoints, to train anew or from an earlier one, and not `eval`.
TEST_F(BestExporterTest, ResultsOfAnotherTrainingDoNotCount) {
  Write(dir_ + "/eval", Result(1, {{"loss", 0.1f}}));
  Write(dir_ + "/eval", Result(300, {{"loss", 0.05f}}));
  BestExporter anew("best", ServingInputReceiverFn(FeedX));
  EXPECT_TRUE(Exports(&anew, Result(2, {{"loss", 0.4f}}), "eval", -1));
  EXPECT_FALSE(Exports(&anew, Result(3, {{"loss", 0.5f}})));
  EXPECT_TRUE(Exports(&anew, Result(4, {{"loss", 0.3f}})));
  // From step 1 on: that one's result is this training's.
  testing::internal::CaptureStderr();
  BestExporter further("best", ServingInputReceiverFn(FeedX));
  EXPECT_FALSE(Exports(&further, Result(2, {{"loss", 0.4f}}), "eval", 1));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "BestExporter 'best': 1 results of steps above 1, which this training had not "
                "reached, are another one's and do not count"),
            std::string::npos);
  EXPECT_TRUE(Exports(&further, Result(3, {{"loss", 0.09f}})));
  // Where no job says when it began, what is evaluated has been reached.
  BestExporter alone("best", ServingInputReceiverFn(FeedX));
  EXPECT_TRUE(Exports(&alone, Result(200, {{"loss", 0.08f}})));
  // The same exporter in the next job: a new model, and then one that goes on.
  EXPECT_TRUE(Exports(&alone, Result(5, {{"loss", 0.7f}}), "eval", -1));
  EXPECT_FALSE(Exports(&alone, Result(6, {{"loss", 0.8f}}), "eval", 5));
}

TEST_F(BestExporterTest, AJobTellsItsExportersHowFarTrainingWas) {
  fs()->RecursivelyDelete(dir_).IgnoreError();
  // No evaluation is better.
  Write(dir_ + "/eval", Result(1, {{"loss", -1}}));
  Write(dir_ + "/eval", Result(300, {{"loss", -1}}));
  const Estimator line = *Estimator::Make(
      LineModel,
      {.config = *RunConfig::Make({.model_dir = dir_, .save_checkpoints_steps = 100}, "")});
  // Each with an exporter that knows nothing but the files.
  const auto exported = [&](int64_t max_steps) -> StatusOr<size_t> {
    MR_ASSIGN_OR_RETURN(const TrainAndEvaluateResult result,
                        TrainAndEvaluate(line, {.input_fn = Points, .max_steps = max_steps},
                                         {.input_fn = Points,
                                          .steps = 1,
                                          .exporters = {std::make_shared<BestExporter>(
                                              "best", ServingInputReceiverFn(FeedX))}}));
    return result.exports.size();
  };
  ASSERT_OK_AND_ASSIGN(const size_t anew, exported(4));
  EXPECT_EQ(anew, 1u);
  Write(dir_ + "/eval", Result(3, {{"loss", -1}}));
  ASSERT_OK_AND_ASSIGN(const size_t further, exported(8));
  EXPECT_EQ(further, 0u) << "step 3 was reached when it began";
}

TEST_F(BestExporterTest, ReadsTheFilesThatItIsTold) {
  Write(dir_ + "/eval_other", Result(1, {{"loss", 0.1f}}));
  BestExporter other("best", ServingInputReceiverFn(FeedX),
                     {.event_file_pattern = "eval_*/*.tfevents.*"});
  EXPECT_FALSE(Exports(&other, Result(2, {{"loss", 0.4f}})));
  BestExporter nothing("best", ServingInputReceiverFn(FeedX), {.event_file_pattern = ""});
  EXPECT_TRUE(Exports(&nothing, Result(2, {{"loss", 0.4f}}), "eval_other"));
  // The pattern names another evaluation's files: nothing is recovered, and the log says so.
  testing::internal::CaptureStderr();
  BestExporter wrong("best", ServingInputReceiverFn(FeedX),
                     {.event_file_pattern = "eval/*.tfevents.*"});
  EXPECT_TRUE(Exports(&wrong, Result(2, {{"loss", 0.4f}}), "eval_other"));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "event_file_pattern 'eval/*.tfevents.*' matches no file"),
            std::string::npos);
}

TEST_F(BestExporterTest, ComparesByAMetricOrAFunction) {
  BestExporter auc("best", ServingInputReceiverFn(FeedX), {.is_better = MetricIsLarger("auc")});
  Write(dir_ + "/eval", Result(1, {{"loss", 1}, {"auc", 0.8f}}));
  EXPECT_FALSE(Exports(&auc, Result(2, {{"loss", 0.1f}, {"auc", 0.7f}})));
  EXPECT_TRUE(Exports(&auc, Result(3, {{"loss", 9}, {"auc", 0.9f}})));
  BestExporter later("best", ServingInputReceiverFn(FeedX),
                     {.is_better = [](const EvalResult& best, const EvalResult& current) {
                       return current.global_step > best.global_step + 1;
                     }});
  EXPECT_FALSE(Exports(&later, Result(2, {{"loss", 1}})));
  EXPECT_TRUE(Exports(&later, Result(3, {{"loss", 1}})));
}

TEST_F(BestExporterTest, NanIsWorseThanAnyNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  BestExporter best("best", ServingInputReceiverFn(FeedX));
  EXPECT_TRUE(Exports(&best, Result(1, {{"loss", nan}})));
  EXPECT_FALSE(Exports(&best, Result(2, {{"loss", nan}})));
  EXPECT_TRUE(Exports(&best, Result(3, {{"loss", 5}})));
  EXPECT_FALSE(Exports(&best, Result(4, {{"loss", nan}})));
}

TEST_F(BestExporterTest, KeepsTheNewestAndNothingOfOthers) {
  BestExporter best("best", ServingInputReceiverFn(FeedX), {.exports_to_keep = 2});
  for (const char* name : {"mine", "temp-1600000009", "160000000"}) {
    ASSERT_OK(fs()->RecursivelyCreateDirectory(dir_ + "/export/best/" + name));
  }
  for (int step = 1; step <= 4; ++step) {
    EXPECT_TRUE(Exports(&best, Result(step, {{"loss", 1.0f / static_cast<float>(step)}})));
  }
  EXPECT_EQ(Exported(), (std::vector<std::string>{"160000000", "1600000002", "1600000003", "mine",
                                                  "temp-1600000009"}));
}

TEST_F(BestExporterTest, ADamagedEventFileIsReadAsFarAsItGoes) {
  Write(dir_ + "/eval", Result(1, {{"loss", 0.3f}}));
  const std::string file = dir_ + "/eval/events.out.tfevents.0.x";
  ASSERT_OK(WriteFileAtomically(fs(), file, "no record, but some bytes that look like none"));
  BestExporter best("best", ServingInputReceiverFn(FeedX));
  EXPECT_FALSE(Exports(&best, Result(2, {{"loss", 0.4f}})));
}

TEST_F(BestExporterTest, EventsOfOthersAreNoResults) {
  Write(dir_ + "/eval", Result(1, {{"examples/sec", 0.1f}}));
  Write(dir_ + "/eval", Result(1, {{"loss", 0.3f}}));
  Write(dir_ + "/eval", Result(2, {{"examples/sec", 0.1f}}));
  BestExporter best("best", ServingInputReceiverFn(FeedX));
  EXPECT_FALSE(Exports(&best, Result(3, {{"loss", 0.4f}})));
  EXPECT_TRUE(Exports(&best, Result(4, {{"loss", 0.2f}})));
}

TEST_F(BestExporterTest, WrongOptionsAreNamed) {
  const EvalResult result = Result(2, {{"loss", 1}});
  const ExporterCall call = {.estimator = *estimator_,
                             .export_path = dir_ + "/export/best",
                             .checkpoint_path = estimator_->latest_checkpoint(),
                             .result = result,
                             .eval_dir = dir_ + "/eval"};
  EXPECT_STATUS(
      BestExporter("b", ServingInputReceiverFn(FeedX), {.exports_to_keep = 0}).Export(call),
      kInvalid, "BestExporter 'b': exports_to_keep must be > 0, got 0");
  EXPECT_STATUS(
      BestExporter("b", ServingInputReceiverFn(FeedX), {.is_better = nullptr}).Export(call),
      kInvalid, "BestExporter 'b': is_better must be a function, got none");
  EXPECT_STATUS(
      BestExporter("b", ServingInputReceiverFn(FeedX), {.is_better = MetricIsLarger("acu")})
          .Export(call),
      absl::StatusCode::kNotFound,
      "BestExporter: results must have the metric 'acu', got loss = 1");
  EXPECT_TRUE(Exported().empty()) << "the first result is not the best of a metric that it lacks";
  BestExporter auc("b", ServingInputReceiverFn(FeedX), {.is_better = MetricIsLarger("auc")});
  const EvalResult first = Result(1, {{"auc", 0.5f}});
  ASSERT_OK(auc.Export({.estimator = *estimator_,
                        .export_path = dir_ + "/export/best",
                        .checkpoint_path = estimator_->latest_checkpoint(),
                        .result = first,
                        .eval_dir = dir_ + "/eval"}));
  EXPECT_STATUS(auc.Export(call), absl::StatusCode::kNotFound,
                "BestExporter: results must have the metric 'auc', got loss = 1");
}

}  // namespace
}  // namespace millrace

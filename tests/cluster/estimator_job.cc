// SPDX-License-Identifier: Apache-2.0
//
// One task of the jobs of estimator_cluster_test: fits a line by TrainAndEvaluate, as TF_CONFIG
// says. What it prints last is for the test.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "data/dataset.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/run_config.h"
#include "estimator/serving_input.h"
#include "estimator/testing/line_model.h"
#include "estimator/train_and_evaluate.h"
#include "graph/scope.h"
#include "ops/array/placeholder.h"

ABSL_FLAG(std::string, model_dir, "", "of all tasks");
ABSL_FLAG(int64_t, max_steps, 100, "global steps; 0: to the end of the data");
ABSL_FLAG(int64_t, rows, -1, "of training data for each trainer; -1: without end");
ABSL_FLAG(int64_t, chief_rows, 0, "of the chief; 0: as many as the others");
ABSL_FLAG(int64_t, row_ms, 5, "that a row of training data takes to come");
ABSL_FLAG(int64_t, checkpoint, 50, "steps between checkpoints");
ABSL_FLAG(double, wait_for_evaluator_secs, 0, "of the chief");
ABSL_FLAG(double, end_grace_secs, 20, "see TrainAndEvaluateOptions");
ABSL_FLAG(bool, tensorflow_ends, false, "see TrainAndEvaluateOptions");

namespace millrace {
namespace {

data::Generator Rows(int64_t rows, absl::Duration each) {
  auto random = std::make_shared<std::mt19937>(std::random_device()());
  auto left = std::make_shared<int64_t>(rows);
  return [random, left, each](data::Element* row) -> StatusOr<bool> {
    if (*left == 0) return false;
    if (*left > 0) --*left;
    Clock::Real()->SleepFor(each);
    const float x = std::uniform_real_distribution<float>(0, 1)(*random);
    *row = {Tensor::Scalar(x), Tensor::Scalar(0.8f * x + 1)};
    return true;
  };
}

Input LineInput(int64_t rows, absl::Duration each) {
  const data::ElementSpec spec = {{DT_FLOAT, PartialShape::Scalar(), "x"},
                                  {DT_FLOAT, PartialShape::Scalar(), "y"}};
  return Input(
      data::Dataset::FromGenerator(
          [=](CancellationManager*) -> StatusOr<data::Generator> { return Rows(rows, each); }, spec)
          .Batch(1),
      {.names = {"x", "y"}, .labels = {"y"}});
}

ServingInputReceiver FeedX(const Scope& scope) {
  const Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
  return {.features = {{"x", x}}, .receivers = {{"x", x}}};
}

Status Main() {
  MR_ASSIGN_OR_RETURN(const RunConfig config,
                      RunConfig::Make({.model_dir = absl::GetFlag(FLAGS_model_dir),
                                       .save_checkpoints_steps = absl::GetFlag(FLAGS_checkpoint),
                                       .experimental_max_worker_delay_secs = 0.0,
                                       .session_creation_timeout_secs = 60.0}));
  MR_ASSIGN_OR_RETURN(const Estimator line, Estimator::Make(LineModel, {.config = config}));
  const int64_t max_steps = absl::GetFlag(FLAGS_max_steps);
  const TrainSpec train = {
      .input_fn =
          [is_chief = config.is_chief()] {
            const int64_t of_chief = absl::GetFlag(FLAGS_chief_rows);
            return LineInput(is_chief && of_chief > 0 ? of_chief : absl::GetFlag(FLAGS_rows),
                             absl::Milliseconds(absl::GetFlag(FLAGS_row_ms)));
          },
      .max_steps = max_steps > 0 ? std::optional<int64_t>(max_steps) : std::nullopt};
  const EvalSpec eval = {
      .input_fn = [] { return LineInput(20, absl::ZeroDuration()); },
      .steps = 10,
      .exporters = {std::make_shared<FinalExporter>("final", ServingInputReceiverFn(FeedX))},
      .start_delay_secs = 0,
      .throttle_secs = 0};
  MR_ASSIGN_OR_RETURN(
      const TrainAndEvaluateResult result,
      TrainAndEvaluate(line, train, eval,
                       {.tensorflow_ends = absl::GetFlag(FLAGS_tensorflow_ends),
                        .wait_for_evaluator_secs = absl::GetFlag(FLAGS_wait_for_evaluator_secs),
                        .end_grace_secs = absl::GetFlag(FLAGS_end_grace_secs)}));
  std::printf("done: evaluated step %lld, %d exports\n",
              static_cast<long long>(result.evaluation ? result.evaluation->global_step : -1),
              static_cast<int>(result.exports.size()));
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Fits a line, as one task of a job (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}

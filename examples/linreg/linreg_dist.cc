// SPDX-License-Identifier: Apache-2.0
// linreg_dist: one program for every role of a cluster: TrainAndEvaluate finds out from TF_CONFIG,
// or from the flags of SetTfConfigFromFlags, whether it is a parameter server, the chief, a worker
// or the evaluator; without either it is one process that trains and evaluates.
//
//   launch --ps=1 --chief --workers=2 --evaluator -- linreg_dist --max_steps=500 --model_dir=run
//   linreg_dist --ps-hosts='a:1;b:1' --worker-hosts='c:1;d:1' --chief-hosts=e:1
//       --worker-type=worker --worker-index=1
//
// With --predict_to the tasks predict points together by PredictOnCluster:
//
//   launch --ps=1 --chief --workers=2 -- linreg_dist --model_dir=run --predict_to=predicted

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "estimator/distributed_predict.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/tf_config.h"
#include "estimator/train_and_evaluate.h"
#include "examples/linreg/line.h"
#include "train/session_run_hook.h"

ABSL_FLAG(std::string, model_dir, "linreg_model",
          "directory of checkpoints, evaluations and exports; all tasks must see it");
ABSL_FLAG(int64_t, max_steps, 500, "global steps of all trainers together");
ABSL_FLAG(int64_t, train_rows, 1000, "points that each trainer has");
ABSL_FLAG(int64_t, test_rows, 100, "points that the evaluator has");
ABSL_FLAG(int64_t, eval_steps, 50, "batches of an evaluation");
ABSL_FLAG(int64_t, batch_size, 1, "points in a step");
ABSL_FLAG(uint64_t, seed, 1, "of the points");
ABSL_FLAG(int64_t, row_ms, 20,
          "milliseconds from one training point to the next, as from a stream");
ABSL_FLAG(int64_t, save_checkpoints_steps, 100, "global steps between checkpoints");
ABSL_FLAG(double, max_worker_delay_secs, 0,
          "worker i begins 5 (i + 1) seconds later, this at most (60 in TensorFlow)");
ABSL_FLAG(double, wait_for_evaluator_secs, 0,
          "how long the chief stays until its last checkpoint has been evaluated");
ABSL_FLAG(double, trainers_grace_secs, 90,
          "how long a chief whose data has ended waits for trainers that have not come yet");
ABSL_FLAG(std::string, predict_to, "",
          "predict points with the last checkpoint, and write what it says into this directory");
ABSL_FLAG(int64_t, predict_rows, 1000, "points to predict");

namespace millrace {
namespace {

// Counts the steps of this task.
class OwnSteps : public SessionRunHook {
 public:
  std::string name() const override { return "OwnSteps"; }
  Status AfterRun(RunContext*, const RunValues&) override {
    ++steps_;
    return absl::OkStatus();
  }
  int64_t steps() const { return steps_; }

 private:
  int64_t steps_ = 0;
};

Status Main() {
  MR_ASSIGN_OR_RETURN(
      const RunConfig config,
      RunConfig::Make(
          {.save_checkpoints_steps = absl::GetFlag(FLAGS_save_checkpoints_steps),
           .experimental_max_worker_delay_secs = absl::GetFlag(FLAGS_max_worker_delay_secs)}));
  MR_ASSIGN_OR_RETURN(
      const Estimator line,
      Estimator::Make(Line, {.model_dir = absl::GetFlag(FLAGS_model_dir), .config = config}));

  const std::string predict_to = absl::GetFlag(FLAGS_predict_to);
  if (!predict_to.empty()) {
    MR_ASSIGN_OR_RETURN(const ClusterPrediction done,
                        PredictOnCluster(line,
                                         NumberedPoints(absl::GetFlag(FLAGS_predict_rows),
                                                        absl::GetFlag(FLAGS_batch_size)),
                                         {.output_dir = predict_to, .forward_features = {"id"}}));
    std::printf("This task predicted %lld points\n", static_cast<long long>(done.own_rows));
    return absl::OkStatus();
  }
  const PointsOptions train = {.rows = absl::GetFlag(FLAGS_train_rows),
                               .batch_size = absl::GetFlag(FLAGS_batch_size),
                               .seed = absl::GetFlag(FLAGS_seed),
                               .row_time = absl::Milliseconds(absl::GetFlag(FLAGS_row_ms))};
  const PointsOptions test = {.rows = absl::GetFlag(FLAGS_test_rows),
                              .batch_size = absl::GetFlag(FLAGS_batch_size),
                              .seed = absl::GetFlag(FLAGS_seed) + 1};
  const auto own_steps = std::make_shared<OwnSteps>();
  const TrainSpec train_spec = {
      .input_fn = Points(train), .max_steps = absl::GetFlag(FLAGS_max_steps), .hooks = {own_steps}};
  const EvalSpec eval_spec = {.input_fn = Points(test),
                              .steps = absl::GetFlag(FLAGS_eval_steps),
                              .exporters = {std::make_shared<FinalExporter>("line", PointReceiver)},
                              .start_delay_secs = 0,
                              .throttle_secs = 0};
  const TrainAndEvaluateOptions options = {
      .wait_for_evaluator_secs = absl::GetFlag(FLAGS_wait_for_evaluator_secs),
      .trainers_grace_secs = absl::GetFlag(FLAGS_trainers_grace_secs)};
  const auto done = TrainAndEvaluate(line, train_spec, eval_spec, options);
  if (own_steps->steps() > 0) {
    std::printf("This task did %lld steps\n", static_cast<long long>(own_steps->steps()));
  }
  MR_RETURN_IF_ERROR(done.status());
  if (done->evaluation) std::printf("Evaluation: %s\n", done->evaluation->ToString().c_str());
  for (const std::string& path : done->exports) std::printf("Result dir: %s\n", path.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Fits y = wx + b with an Estimator, in one process or as a task of a cluster (TF_CONFIG, or "
      "--ps-hosts, --worker-hosts, --chief-hosts, --worker-type and --worker-index).");
  const millrace::Status cluster = millrace::SetTfConfigFromFlags(&argc, argv);
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], cluster.ok() ? millrace::Main() : cluster);
}

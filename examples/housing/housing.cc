// SPDX-License-Identifier: Apache-2.0
// housing: trains a model of house prices with TrainAndEvaluate, alone or as a task of a cluster
// (TF_CONFIG).
//
//   housing --make_data --data_dir=data
//   housing --data_dir=data --model_dir=run --max_steps=2000

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/train_and_evaluate.h"
#include "examples/housing/houses.h"

ABSL_FLAG(bool, make_data, false, "write train.csv and eval.csv into data_dir, and end");
ABSL_FLAG(std::string, data_dir, "housing_data", "directory with train.csv and eval.csv");
ABSL_FLAG(int64_t, rows, 20000, "of train.csv; eval.csv has a quarter of that");
ABSL_FLAG(std::string, model_dir, "housing_model",
          "directory of checkpoints, evaluations and exports; all tasks must see it");
ABSL_FLAG(int64_t, max_steps, 2000, "global steps of all trainers together");
ABSL_FLAG(int64_t, batch_size, 100, "houses in a training step");
ABSL_FLAG(int64_t, eval_batch_size, 1 << 15, "houses in a step of an evaluation");
ABSL_FLAG(int64_t, eval_steps, 0, "batches of an evaluation; 0: all of eval.csv");
ABSL_FLAG(int64_t, eval_interval_secs, 300, "between checkpoints, and between evaluations");
ABSL_FLAG(double, start_delay_secs, 60, "before an evaluator's first evaluation");

namespace millrace {
namespace {

Status MakeData() {
  const std::string directory = absl::GetFlag(FLAGS_data_dir);
  const int64_t rows = absl::GetFlag(FLAGS_rows);
  if (rows < 4) return InvalidArgument("--rows must be >= 4, got ", rows);
  MR_RETURN_IF_ERROR(FileSystem::Default()->RecursivelyCreateDirectory(directory));
  MR_RETURN_IF_ERROR(WriteHouses(JoinPath(directory, "train.csv"), 1, 0, rows));
  return WriteHouses(JoinPath(directory, "eval.csv"), 2, 0, rows / 4);
}

Status Main() {
  if (absl::GetFlag(FLAGS_make_data)) return MakeData();
  const std::string data = absl::GetFlag(FLAGS_data_dir);
  const int64_t interval = absl::GetFlag(FLAGS_eval_interval_secs);
  MR_ASSIGN_OR_RETURN(const RunConfig config, RunConfig::Make({.save_checkpoints_secs = interval,
                                                               .keep_checkpoint_max = 3}));
  const Estimator estimator =
      HousePrices({.model_dir = absl::GetFlag(FLAGS_model_dir), .config = config});
  MR_ASSIGN_OR_RETURN(const ServingInputReceiverFn receiver, HouseReceiver());
  const TrainSpec train = {
      .input_fn = ReadHouses(data, "train", Mode::kTrain, absl::GetFlag(FLAGS_batch_size)),
      .max_steps = absl::GetFlag(FLAGS_max_steps)};
  EvalSpec eval = {
      .input_fn = ReadHouses(data, "eval", Mode::kEval, absl::GetFlag(FLAGS_eval_batch_size)),
      .steps = {},  // all of it
      .exporters = {std::make_shared<LatestExporter>("exporter", receiver,
                                                     LatestExporterOptions{.exports_to_keep = {}})},
      .start_delay_secs = absl::GetFlag(FLAGS_start_delay_secs),
      .throttle_secs = static_cast<double>(interval)};
  if (absl::GetFlag(FLAGS_eval_steps) != 0) eval.steps = absl::GetFlag(FLAGS_eval_steps);
  MR_ASSIGN_OR_RETURN(const TrainAndEvaluateResult done, TrainAndEvaluate(estimator, train, eval));
  if (done.evaluation) std::printf("Evaluation: %s\n", done.evaluation->ToString().c_str());
  for (const std::string& path : done.exports) std::printf("Exported: %s\n", path.c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "Estimates prices of houses, wide and deep: trains, evaluates and exports, in one process or "
      "as a task of a cluster (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}

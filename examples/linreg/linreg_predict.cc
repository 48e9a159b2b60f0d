// SPDX-License-Identifier: Apache-2.0
// linreg_predict: predicts with the last checkpoint that linreg or linreg_dist has written.
//
//   linreg_predict --model_dir=run --rows=10
//
// Predictions are pulled one by one: nothing is computed that nobody asks for.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "examples/linreg/line.h"

ABSL_FLAG(std::string, model_dir, "linreg_model", "directory of the checkpoints");
ABSL_FLAG(int64_t, rows, 10, "points to predict");
ABSL_FLAG(int64_t, batch_size, 1, "points in a step");
ABSL_FLAG(uint64_t, seed, 1, "of the points");

namespace millrace {
namespace {

Status Main() {
  const PointsOptions points = {.rows = absl::GetFlag(FLAGS_rows),
                                .batch_size = absl::GetFlag(FLAGS_batch_size),
                                .seed = absl::GetFlag(FLAGS_seed)};
  MR_ASSIGN_OR_RETURN(const Estimator line,
                      Estimator::Make(Line, {.model_dir = absl::GetFlag(FLAGS_model_dir)}));
  if (line.latest_checkpoint().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--model_dir: must have a checkpoint, got none in '", line.model_dir(),
                     "'; train first (linreg --model_dir=...)"));
  }
  return PrintPredictions(line, points);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Predicts with a model of linreg or linreg_dist.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}

// SPDX-License-Identifier: Apache-2.0
// linreg: an Estimator's four calls in one process: trains on ten rows, evaluates, exports and
// predicts ten values.
//
//   linreg --model_dir=run
//
// Started again, it trains on from its last checkpoint.

#include <cstdio>
#include <memory>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/usage.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/program_flags.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "examples/linreg/line.h"

ABSL_FLAG(std::string, model_dir, "linreg_model", "directory of checkpoints and exports");
ABSL_FLAG(int64_t, rows, 10, "points to train on, to evaluate and to predict, each");
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
  MR_RETURN_IF_ERROR(line.Train(Points(points)).status());  // to the end of the data
  MR_ASSIGN_OR_RETURN(const EvalResult result, line.Evaluate(Points(points)));
  std::printf("Evaluation: %s\n", result.ToString().c_str());
  MR_ASSIGN_OR_RETURN(const std::string exported,
                      line.ExportSavedModel(JoinPath(line.model_dir(), "test"), UnrelatedReceiver));
  std::printf("Result dir: %s\n", exported.c_str());
  return PrintPredictions(line, points);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Fits y = wx + b with an Estimator, in one process.");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}

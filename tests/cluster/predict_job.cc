// SPDX-License-Identifier: Apache-2.0
//
// One task of the jobs of predict_cluster_test: predicts points of a line by PredictOnCluster, as
// TF_CONFIG says. What it prints last is for the test.

#include <cstdint>
#include <cstdio>
#include <memory>
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
#include "estimator/distributed_predict.h"
#include "estimator/estimator.h"
#include "estimator/run_config.h"
#include "estimator/testing/line_model.h"
#include "train/session_run_hook.h"

ABSL_FLAG(std::string, model_dir, "", "of all tasks");
ABSL_FLAG(std::string, output_dir, "", "of all tasks");
ABSL_FLAG(bool, train, false, "train for some steps, and end");
ABSL_FLAG(int64_t, rows, 10000, "to predict");
ABSL_FLAG(int64_t, batch, 50, "of them");
ABSL_FLAG(int64_t, batch_ms, 0, "that a batch takes to come");
ABSL_FLAG(int64_t, num_parts, 0, "see ClusterPredictOptions");
ABSL_FLAG(std::string, format, "jsonl", "see ClusterPredictOptions");
ABSL_FLAG(double, worker_grace_secs, 20, "see ClusterPredictOptions");
ABSL_FLAG(double, end_grace_secs, 20, "see ClusterPredictOptions");
ABSL_FLAG(double, session_creation_timeout_secs, 60, "see RunConfig");

namespace millrace {
namespace {

data::Generator Rows(int64_t rows, int64_t batch, absl::Duration each) {
  auto next = std::make_shared<int64_t>(0);
  return [=](data::Element* row) -> StatusOr<bool> {
    if (*next == rows) return false;
    if (*next % batch == 0) Clock::Real()->SleepFor(each);
    *row = {Tensor::Scalar(*next), Tensor::Scalar(static_cast<float>(*next) / 64)};
    ++*next;
    return true;
  };
}

Input NumberedRows() {
  const data::ElementSpec spec = {{DT_INT64, PartialShape::Scalar(), "id"},
                                  {DT_FLOAT, PartialShape::Scalar(), "x"}};
  const int64_t rows = absl::GetFlag(FLAGS_rows), batch = absl::GetFlag(FLAGS_batch);
  const absl::Duration each = absl::Milliseconds(absl::GetFlag(FLAGS_batch_ms));
  return Input(data::Dataset::FromGenerator(
                   [=](CancellationManager*) -> StatusOr<data::Generator> {
                     return Rows(rows, batch, each);
                   },
                   spec)
                   .Batch(batch),
               {.names = {"id", "x"}});
}

// Says that a part is under way.
class Teller : public SessionRunHook {
 public:
  std::string name() const override { return "Teller"; }
  Status AfterRun(RunContext*, const RunValues&) override {
    if (++steps_ == 5) std::printf("in the middle\n");
    return absl::OkStatus();
  }

 private:
  int steps_ = 0;
};

Status Main() {
  MR_ASSIGN_OR_RETURN(const RunConfig config,
                      RunConfig::Make({.model_dir = absl::GetFlag(FLAGS_model_dir),
                                       .session_creation_timeout_secs =
                                           absl::GetFlag(FLAGS_session_creation_timeout_secs)}));
  MR_ASSIGN_OR_RETURN(const Estimator line, Estimator::Make(LineModel, {.config = config}));
  if (absl::GetFlag(FLAGS_train)) return line.Train(Points, {.max_steps = 20}).status();
  MR_ASSIGN_OR_RETURN(const PredictionFormat format,
                      ParsePredictionFormat(absl::GetFlag(FLAGS_format)));
  MR_ASSIGN_OR_RETURN(const ClusterPrediction done,
                      PredictOnCluster(line, InputFn(NumberedRows),
                                       {.output_dir = absl::GetFlag(FLAGS_output_dir),
                                        .format = format,
                                        .num_parts = absl::GetFlag(FLAGS_num_parts),
                                        .forward_features = {"id"},
                                        .hooks = {std::make_shared<Teller>()},
                                        .worker_grace_secs = absl::GetFlag(FLAGS_worker_grace_secs),
                                        .end_grace_secs = absl::GetFlag(FLAGS_end_grace_secs)}));
  std::printf("done: predicted %lld rows of %lld\n", static_cast<long long>(done.own_rows),
              static_cast<long long>(done.manifest ? done.manifest->rows() : -1));
  return absl::OkStatus();
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Predicts points of a line, as one task of a job (TF_CONFIG).");
  millrace::ParseProgramFlags(argc, argv);
  millrace::InitLogging(argv[0]);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return millrace::ReportedExitCode(argv[0], millrace::Main());
}

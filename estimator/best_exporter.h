// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_BEST_EXPORTER_H_
#define MILLRACE_ESTIMATOR_BEST_EXPORTER_H_

// BestExporter: exports a model when it was evaluated as better than every one before it.
//
//   std::make_shared<BestExporter>("best", receiver, BestExporterOptions{
//       .is_better = MetricIsLarger("auc")})
//
// Better is a smaller "loss" unless `is_better` says otherwise: MetricIsLarger and MetricIsSmaller
// with any metric of the evaluation, or a function.
//
// What was best outlives the process: with the first evaluation of a model_dir the events of
// earlier ones are read, and a process that was started again exports nothing that is worse. The
// events of the evaluation at hand (its step) do not count: they are written before the exporter is
// asked. (TensorFlow 1.15 counts them, and so never exports the first model of a job.) Nor do those
// of another training, as early stopping sees them (estimator/early_stopping.h): they are there
// when the job begins, and of steps that its checkpoints have not reached. One exporter may serve
// several jobs: what was best in another training is forgotten.
//
// Failure: InvalidArgument for exports_to_keep <= 0; of is_better, which is asked about each result
// and itself first, so that a metric that there is not is an error at the first evaluation. Event
// files that are damaged are read up to there, with a warning; events that is_better cannot compare
// are passed over.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/serving_input.h"

namespace millrace {

// Is `current` better than `best`? Of an event that was read, metrics are floats.
using IsBetterFn = std::function<StatusOr<bool>(const EvalResult& best, const EvalResult& current)>;
// By one metric; a number is better than NaN. NotFound for a result without it.
IsBetterFn MetricIsSmaller(std::string metric);
IsBetterFn MetricIsLarger(std::string metric);

struct BestExporterOptions {
  // Which of two evaluations is that of the better model: MetricIsLarger("auc").
  IsBetterFn is_better = MetricIsSmaller("loss");
  // Files with earlier results, relative to model_dir: "eval_mine/*.tfevents.*". None: those of the
  // evaluation that this exporter belongs to. "": nothing is read.
  std::optional<std::string> event_file_pattern = {};
  // Those with the largest numbers; none: all. > 0.
  std::optional<int64_t> exports_to_keep = 5;
  ExporterOptions common = {};
};

class BestExporter : public Exporter {
 public:
  BestExporter(std::string name, ServingInputReceiverFn receiver_fn,
               BestExporterOptions options = {})
      : name_(std::move(name)),
        receiver_fn_(std::move(receiver_fn)),
        options_(std::move(options)) {}
  std::string name() const override { return name_; }
  Status Check(const Estimator& estimator) const override;
  StatusOr<std::string> Export(const ExporterCall& call) override;

 private:
  Status CheckOptions() const;
  Status Recover(const ExporterCall& call);

  const std::string name_;
  const ServingInputReceiverFn receiver_fn_;
  const BestExporterOptions options_;
  std::string model_dir_;           // whose best result this is
  std::optional<EvalResult> best_;  // none yet
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_BEST_EXPORTER_H_

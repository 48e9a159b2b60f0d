// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_EXPORTER_H_
#define MILLRACE_ESTIMATOR_EXPORTER_H_

// Exporters: when TrainAndEvaluate exports a model. Each is checked before training, asked after
// every evaluation, and once more about one that turns out to be the last when nothing has
// followed; it writes below <model_dir>/export/<name>/.
//
//   FinalExporter("final", receiver)              the last checkpoint of a job, once
//   LatestExporter("latest", receiver, {.exports_to_keep = 3})      each that was evaluated
//   BestExporter("best", receiver, {.is_better = MetricIsLarger("auc")})    each that is the best
//                                     so far, by "loss" or another metric (best_exporter.h)
//
// Thread-safety: one call at a time.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/serving_input.h"

namespace millrace {

// What an exporter is asked with.
struct ExporterCall {
  const Estimator& estimator;
  std::string export_path;      // <model_dir>/export/<name>
  std::string checkpoint_path;  // that was evaluated
  const EvalResult& result;
  std::string eval_dir = "";  // <model_dir>/eval[_<name>]: where results are written, this one, too
  // No later evaluation of this job is to come: the last step was reached, or the job has ended.
  bool is_the_final_export = false;
  // In the first call of a job: the global step that its model_dir had when it began; -1: the model
  // was new. Evaluations of later steps, which were there then, are another training's.
  std::optional<int64_t> began_at = {};
};

class Exporter {
 public:
  virtual ~Exporter() = default;
  // A directory's name; others of one EvalSpec have another.
  virtual std::string name() const = 0;
  // What can be known to be wrong before training, which an error keeps from beginning. Asked by
  // the tasks that evaluate and by the chief.
  virtual Status Check(const Estimator&) const { return absl::OkStatus(); }
  // The path of what was exported; "": nothing.
  virtual StatusOr<std::string> Export(const ExporterCall& call) = 0;
};

struct ExporterOptions {
  std::map<std::string, std::string> assets_extra = {};
  bool as_text = false;
};

// Exports what was evaluated.
StatusOr<std::string> ExportEvaluated(const ExporterCall& call,
                                      const ServingInputReceiverFn& receiver_fn,
                                      const ExporterOptions& options);

// For Exporter::Check: whether the model can be built over what the receivers' function gives.
// Builds the graph that an export would have, and opens no session. The error names the feature
// that the model needs and the function does not give.
Status CheckReceiver(const Estimator& estimator, const ServingInputReceiverFn& receiver_fn);

class FinalExporter : public Exporter {
 public:
  FinalExporter(std::string name, ServingInputReceiverFn receiver_fn, ExporterOptions options = {})
      : name_(std::move(name)),
        receiver_fn_(std::move(receiver_fn)),
        options_(std::move(options)) {}
  std::string name() const override { return name_; }
  Status Check(const Estimator& estimator) const override;
  StatusOr<std::string> Export(const ExporterCall& call) override;

 private:
  const std::string name_;
  const ServingInputReceiverFn receiver_fn_;
  const ExporterOptions options_;
};

struct LatestExporterOptions {
  // Those with the largest numbers; none: all. > 0.
  std::optional<int64_t> exports_to_keep = 5;
  ExporterOptions common = {};
};

class LatestExporter : public Exporter {
 public:
  LatestExporter(std::string name, ServingInputReceiverFn receiver_fn,
                 LatestExporterOptions options = {})
      : name_(std::move(name)),
        receiver_fn_(std::move(receiver_fn)),
        options_(std::move(options)) {}
  std::string name() const override { return name_; }
  Status Check(const Estimator& estimator) const override;
  // InvalidArgument for exports_to_keep <= 0. A checkpoint is exported once, also when it turns out
  // to be the last one after that.
  StatusOr<std::string> Export(const ExporterCall& call) override;

 private:
  Status CheckOptions() const;

  const std::string name_;
  const ServingInputReceiverFn receiver_fn_;
  const LatestExporterOptions options_;
  std::string exported_;  // the checkpoint
};

// Deletes all but the `keep` newest exports of a directory: subdirectories whose names are exactly
// ten digits. What cannot be deleted is in the log and stays.
void DeleteOldExports(FileSystem* fs, const std::string& directory, int64_t keep);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_EXPORTER_H_

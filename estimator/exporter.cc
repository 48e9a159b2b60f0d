// SPDX-License-Identifier: Apache-2.0
#include "estimator/exporter.h"

#include <algorithm>

#include "core/file_system.h"
#include "core/logging.h"
#include "estimator/estimator_parts.h"

namespace millrace {

StatusOr<std::string> ExportEvaluated(const ExporterCall& call,
                                      const ServingInputReceiverFn& receiver_fn,
                                      const ExporterOptions& options) {
  return call.estimator.ExportSavedModel(call.export_path, receiver_fn,
                                         {.assets_extra = options.assets_extra,
                                          .as_text = options.as_text,
                                          .checkpoint_path = call.checkpoint_path});
}

Status CheckReceiver(const Estimator& estimator, const ServingInputReceiverFn& receiver_fn) {
  MR_RETURN_IF_ERROR(estimator.status());
  return CheckExport(estimator.parts(), receiver_fn);
}

Status FinalExporter::Check(const Estimator& estimator) const {
  return CheckReceiver(estimator, receiver_fn_);
}

StatusOr<std::string> FinalExporter::Export(const ExporterCall& call) {
  if (!call.is_the_final_export) return "";
  LogInfo("FinalExporter '", name_, "': exports '", call.checkpoint_path, "'");
  return ExportEvaluated(call, receiver_fn_, options_);
}

Status LatestExporter::CheckOptions() const {
  if (!options_.exports_to_keep || *options_.exports_to_keep > 0) return absl::OkStatus();
  return InvalidArgument("LatestExporter '", name_, "': exports_to_keep must be > 0, got ",
                         *options_.exports_to_keep);
}

Status LatestExporter::Check(const Estimator& estimator) const {
  MR_RETURN_IF_ERROR(CheckOptions());
  return CheckReceiver(estimator, receiver_fn_);
}

StatusOr<std::string> LatestExporter::Export(const ExporterCall& call) {
  MR_RETURN_IF_ERROR(CheckOptions());
  if (call.is_the_final_export && call.checkpoint_path == exported_) return "";
  MR_ASSIGN_OR_RETURN(std::string path, ExportEvaluated(call, receiver_fn_, options_.common));
  exported_ = call.checkpoint_path;
  if (options_.exports_to_keep) {
    DeleteOldExports(call.estimator.parts().file_system, call.export_path,
                     *options_.exports_to_keep);
  }
  return path;
}

void DeleteOldExports(FileSystem* fs, const std::string& directory, int64_t keep) {
  const StatusOr<std::vector<std::string>> names = fs->GetChildren(directory);
  if (!names.ok()) {
    LogWarning("Exporter: old exports in '", directory, "' stay: ", names.status().message());
    return;
  }
  std::vector<std::string> exports;
  for (const std::string& name : *names) {
    if (ExportNumber(name)) exports.push_back(name);
  }
  std::sort(exports.begin(), exports.end());
  for (size_t i = 0; i + static_cast<size_t>(std::max<int64_t>(keep, 0)) < exports.size(); ++i) {
    const std::string path = JoinPath(directory, exports[i]);
    const Status deleted = fs->RecursivelyDelete(path);
    if (!deleted.ok()) LogWarning("Exporter: '", path, "' stays: ", deleted.message());
  }
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "estimator/best_exporter.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "data/matching_files.h"
#include "estimator/estimator_parts.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_scan.h"

namespace millrace {
namespace {

StatusOr<double> MetricOf(const EvalResult& result, const std::string& metric) {
  if (result.metrics.count(metric) > 0) return result[metric];
  return absl::NotFoundError(absl::StrCat("BestExporter: results must have the metric '", metric,
                                          "', got ",
                                          result.metrics.empty() ? "none" : result.ToString()));
}

// `sign` 1: smaller is better; -1: larger.
IsBetterFn MetricIs(std::string metric, double sign) {
  return [metric = std::move(metric), sign](const EvalResult& best,
                                            const EvalResult& current) -> StatusOr<bool> {
    MR_ASSIGN_OR_RETURN(const double before, MetricOf(best, metric));
    MR_ASSIGN_OR_RETURN(const double now, MetricOf(current, metric));
    if (std::isnan(before)) return !std::isnan(now);
    return sign * now < sign * before;
  };
}

// A path in a pattern: its own characters, whatever they mean there.
std::string Literally(const std::string& path) {
  std::string pattern;
  for (const char c : path) {
    if (c == '*' || c == '?' || c == '[') {
      absl::StrAppend(&pattern, "[", std::string(1, c), "]");
    } else {
      pattern += c;
    }
  }
  return pattern;
}

// The results in an event file, in their order.
std::vector<EvalResult> ResultsIn(FileSystem* fs, const std::string& file) {
  std::vector<EvalResult> results;
  const auto warn = [&](const Status& why) {
    LogWarning("BestExporter: '", file, "' is read in part: ", why.message());
  };
  const Status status = ScanEvents(
      fs, file,
      [&](const std::string&, const tensorflow::Event& event) {
        EvalResult result;
        result.global_step = event.step();
        for (const tensorflow::Summary::Value& value : event.summary().value()) {
          const std::optional<double> number = ScalarOf(value);
          if (!number) continue;
          result.metrics[TagOf(value)] = Tensor::Scalar(static_cast<float>(*number));
        }
        if (!result.metrics.empty()) results.push_back(std::move(result));
      },
      warn);
  if (!status.ok()) warn(status);
  return results;
}

}  // namespace

IsBetterFn MetricIsSmaller(std::string metric) { return MetricIs(std::move(metric), 1); }
IsBetterFn MetricIsLarger(std::string metric) { return MetricIs(std::move(metric), -1); }

Status BestExporter::Recover(const ExporterCall& call) {
  const std::string& model_dir = call.estimator.model_dir();
  best_.reset();
  FileSystem* const fs = call.estimator.parts().file_system;
  const std::optional<std::string>& given = options_.event_file_pattern;
  if (given && given->empty()) return absl::OkStatus();
  const std::string pattern = given ? JoinPath(Literally(model_dir), *given)
                                    : JoinPath(Literally(call.eval_dir), "*.tfevents.*");
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> files, data::MatchingFiles(fs, pattern));
  if (files.empty() && given) {
    LogWarning("BestExporter '", name_, "': event_file_pattern '", *given, "' matches no file of '",
               model_dir, "'; results are written to '", call.eval_dir, "'");
  }
  const int64_t began_at = call.began_at.value_or(call.result.global_step);
  int64_t others = 0;
  for (const std::string& file : files) {
    for (EvalResult& result : ResultsIn(fs, file)) {
      if (result.global_step == call.result.global_step) continue;
      if (IsOfAnotherTraining(result.global_step, began_at)) {
        ++others;
        continue;
      }
      // What others have written there, without what is compared, is no result.
      if (!options_.is_better(result, result).ok()) continue;
      bool is_better = !best_;
      if (best_) {
        MR_ASSIGN_OR_RETURN(is_better, options_.is_better(*best_, result));
      }
      if (is_better) best_ = std::move(result);
    }
  }
  if (others > 0) {
    LogInfo("BestExporter '", name_, "': ", others, " results of steps above ", began_at,
            ", which this training had not reached, are another one's and do not count");
  }
  if (best_) {
    LogInfo("BestExporter '", name_, "': the best model so far is that of step ",
            best_->global_step, ": ", best_->ToString());
  }
  return absl::OkStatus();
}

Status BestExporter::CheckOptions() const {
  const std::string where = absl::StrCat("BestExporter '", name_, "'");
  if (options_.exports_to_keep && *options_.exports_to_keep <= 0) {
    return InvalidArgument(where, ": exports_to_keep must be > 0, got ", *options_.exports_to_keep);
  }
  if (!options_.is_better) {
    return InvalidArgument(where, ": is_better must be a function, got none");
  }
  return absl::OkStatus();
}

Status BestExporter::Check(const Estimator& estimator) const {
  MR_RETURN_IF_ERROR(CheckOptions());
  return CheckReceiver(estimator, receiver_fn_);
}

StatusOr<std::string> BestExporter::Export(const ExporterCall& call) {
  const std::string where = absl::StrCat("BestExporter '", name_, "'");
  MR_RETURN_IF_ERROR(CheckOptions());
  const bool was_another =
      best_ && call.began_at && IsOfAnotherTraining(best_->global_step, *call.began_at);
  if (model_dir_ != call.estimator.model_dir() || was_another) {
    MR_RETURN_IF_ERROR(Prefixed(where, Recover(call)));
    model_dir_ = call.estimator.model_dir();
  }
  // Says what is_better lacks with the first result, and not with the second.
  MR_RETURN_IF_ERROR(options_.is_better(call.result, call.result).status());
  if (best_) {
    MR_ASSIGN_OR_RETURN(const bool is_better, options_.is_better(*best_, call.result));
    if (!is_better) return "";
  }
  LogInfo(where, ": exports '", call.checkpoint_path,
          "', the best model so far: ", call.result.ToString());
  MR_ASSIGN_OR_RETURN(std::string path, ExportEvaluated(call, receiver_fn_, options_.common));
  best_ = call.result;
  if (options_.exports_to_keep) {
    DeleteOldExports(call.estimator.parts().file_system, call.export_path,
                     *options_.exports_to_keep);
  }
  return path;
}

}  // namespace millrace

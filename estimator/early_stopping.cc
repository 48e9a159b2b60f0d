// SPDX-License-Identifier: Apache-2.0
#include "estimator/early_stopping.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/status.h"
#include "estimator/estimator_parts.h"
#include "saver/event_scan.h"
#include "train/hooks/early_stopping.h"

namespace millrace {
namespace {

using Predicate = std::function<StatusOr<bool>()>;

// Reads the evaluations of one metric, again and again; tells once what is wrong with the files.
class EvaluationReader {
 public:
  EvaluationReader(std::string where, FileSystem* fs, std::string directory, std::string metric)
      : where_(std::move(where)),
        fs_(fs),
        directory_(std::move(directory)),
        metric_(std::move(metric)) {}

  // Training begins at `step`: what is there of another one does not count from now on.
  void BeginAt(int64_t step) {
    ignored_.clear();
    const Status status = ScanScalars(fs_, directory_, [&](const EventScalar& scalar) {
      if (IsOfAnotherTraining(scalar.step, step)) ignored_.emplace(scalar.step, scalar.wall_time);
    });
    if (!status.ok() && !absl::IsNotFound(status)) Warn(" is not read: ", status);
  }

  // By step; none where the storage does not answer: what would be missing may be the best one.
  StatusOr<std::vector<Evaluation>> Read() {
    std::map<int64_t, double> values;
    std::set<std::string> others;
    const Status status = ScanScalars(
        fs_, directory_,
        [&](const EventScalar& scalar) {
          if (ignored_.count({scalar.step, scalar.wall_time}) > 0) return;
          if (scalar.tag == metric_) {
            values[scalar.step] = scalar.value;
          } else {
            others.emplace(scalar.tag);
          }
        },
        [this](const Status& damage) { Warn(" is read in part: ", damage); });
    if (absl::IsNotFound(status)) return std::vector<Evaluation>();  // none yet
    if (!status.ok()) {
      Warn(" is not read, and stops nothing now: ", status);
      return std::vector<Evaluation>();
    }
    if (values.empty() && !others.empty()) {
      return InvalidArgument(where_, ": metric must be one that the evaluations in '", directory_,
                             "' have, got '", metric_, "'; they have ",
                             absl::StrJoin(others, ", "));
    }
    std::vector<Evaluation> evaluations;
    for (const auto& [step, value] : values) evaluations.push_back({step, value});
    return evaluations;
  }

 private:
  void Warn(const std::string& what, const Status& status) {
    if (!told_.emplace(status.message()).second) return;
    LogWarning(where_, ": '", directory_, "'", what, status.message());
  }

  const std::string where_;
  FileSystem* const fs_;
  const std::string directory_, metric_;
  std::set<std::pair<int64_t, double>> ignored_;  // steps and times of events
  std::set<std::string> told_;
};

Status Check(const std::string& where, const Estimator& estimator, const std::string& metric,
             const StopByMetric& options) {
  MR_RETURN_IF_ERROR(estimator.status());
  if (metric.empty()) return InvalidArgument(where, ": metric must be a metric's name, got ''");
  if (options.min_steps < 0) {
    return InvalidArgument(where, ": min_steps must be >= 0, got ", options.min_steps);
  }
  return absl::OkStatus();
}

// `makes`: the predicate, of what reads the evaluations. `says`: what it found, after the metric.
std::shared_ptr<SessionRunHook> MakeHook(const std::string& where, const Estimator& estimator,
                                         const std::string& metric, const StopByMetric& options,
                                         Status status, const std::string& says,
                                         const std::function<Predicate(ReadEvaluations)>& makes) {
  const Status checked = Check(where, estimator, metric, options);
  EarlyStoppingOptions hook;
  hook.status = checked.ok() ? std::move(status) : checked;
  hook.every = options.every;
  hook.reason = absl::StrCat("early stopping: ", metric, " ", says);
  if (hook.status.ok()) {
    hook.clock = estimator.parts().clock;
    hook.is_chief = estimator.config().is_chief();
    const std::string directory =
        options.eval_dir.empty() ? EvalDirectory(estimator.model_dir(), "") : options.eval_dir;
    const auto reader =
        std::make_shared<EvaluationReader>(where, estimator.parts().file_system, directory, metric);
    hook.on_begin = [reader](int64_t step) { reader->BeginAt(step); };
    hook.has_news = [made = estimator.parts().evaluations, seen = int64_t{0}]() mutable {
      const int64_t now = made->load(std::memory_order_relaxed);
      return now != std::exchange(seen, now);
    };
    hook.should_stop = makes([reader] { return reader->Read(); });
  }
  return std::make_shared<EarlyStoppingHook>(std::move(hook));
}

Status CheckMaxSteps(const std::string& where, int64_t max_steps) {
  if (max_steps > 0) return absl::OkStatus();
  return InvalidArgument(where, ": max_steps must be > 0, got ", max_steps);
}

Status CheckThreshold(const std::string& where, double threshold) {
  if (!std::isnan(threshold)) return absl::OkStatus();
  return InvalidArgument(where, ": threshold must be a number, got nan");
}

}  // namespace

std::shared_ptr<SessionRunHook> StopIfNoIncrease(const Estimator& estimator,
                                                 const std::string& metric, int64_t max_steps,
                                                 const StopByMetric& options) {
  const std::string where = "StopIfNoIncrease";
  return MakeHook(where, estimator, metric, options, CheckMaxSteps(where, max_steps),
                  absl::StrCat("has not increased for ", max_steps, " steps"),
                  [&](ReadEvaluations read) {
                    return StopIfNoIncrease(std::move(read), max_steps, options.min_steps);
                  });
}

std::shared_ptr<SessionRunHook> StopIfNoDecrease(const Estimator& estimator,
                                                 const std::string& metric, int64_t max_steps,
                                                 const StopByMetric& options) {
  const std::string where = "StopIfNoDecrease";
  return MakeHook(where, estimator, metric, options, CheckMaxSteps(where, max_steps),
                  absl::StrCat("has not decreased for ", max_steps, " steps"),
                  [&](ReadEvaluations read) {
                    return StopIfNoDecrease(std::move(read), max_steps, options.min_steps);
                  });
}

std::shared_ptr<SessionRunHook> StopIfHigher(const Estimator& estimator, const std::string& metric,
                                             double threshold, const StopByMetric& options) {
  const std::string where = "StopIfHigher";
  return MakeHook(where, estimator, metric, options, CheckThreshold(where, threshold),
                  absl::StrCat("is above ", threshold), [&](ReadEvaluations read) {
                    return StopIfHigher(std::move(read), threshold, options.min_steps);
                  });
}

std::shared_ptr<SessionRunHook> StopIfLower(const Estimator& estimator, const std::string& metric,
                                            double threshold, const StopByMetric& options) {
  const std::string where = "StopIfLower";
  return MakeHook(where, estimator, metric, options, CheckThreshold(where, threshold),
                  absl::StrCat("is below ", threshold), [&](ReadEvaluations read) {
                    return StopIfLower(std::move(read), threshold, options.min_steps);
                  });
}

}  // namespace millrace

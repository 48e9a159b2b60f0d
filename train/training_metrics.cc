// SPDX-License-Identifier: Apache-2.0
#include "train/training_metrics.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <memory>

#include "core/logging.h"
#include "core/metrics.h"
#include "core/process_metrics.h"

namespace millrace {
namespace {

// A number that is on the page once it is known.
class LastValue {
 public:
  LastValue(const char* name, const char* help) {
    ProcessMetrics().AddReader({name, help, {}}, MetricKind::kGauge,
                               [this](MetricRegistry::Emit emit) {
                                 const double value = value_.load(std::memory_order_relaxed);
                                 if (!std::isnan(value)) emit({}, value);
                               });
  }
  void Set(double value) { value_.store(value, std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{std::numeric_limits<double>::quiet_NaN()};  // relaxed: a figure
};

struct Cells {
  static Cells& Of() {
    static Cells* const cells = new Cells;
    return *cells;
  }

  MetricRegistry& registry = ProcessMetrics();
  const std::shared_ptr<MetricValue> steps =
      registry.AddCounter({"millrace_train_steps_total", "Steps of this task that succeeded.", {}})
          ->Find({});
  LastValue global_step{"millrace_train_global_step", "As this task saw it last."};
  LastValue loss{"millrace_train_loss", "Of the last step that was looked at."};
  LastValue staleness{"millrace_train_staleness_updates",
                      "Updates of other tasks between a step's read and its own update."};
  const std::shared_ptr<MetricValue> sessions =
      registry
          .AddCounter({"millrace_train_sessions_total",
                       "Sessions that became ready, the first and those after a loss.",
                       {}})
          ->Find({});
  const std::shared_ptr<MetricValue> restores =
      registry
          .AddCounter({"millrace_train_restores_total",
                       "Sessions whose variables came from a checkpoint.",
                       {}})
          ->Find({});
  MetricValues* const saves =
      registry.AddCounter({"millrace_saves_total", "Checkpoints.", {"result"}});
  const std::shared_ptr<MetricValue> saved = saves->Find({"saved"});
  const std::shared_ptr<MetricValue> failed = saves->Find({"failed"});
  const std::shared_ptr<MetricHistogram> save_seconds =
      registry
          .AddHistogram({"millrace_save_seconds", "Of checkpoints that were written.", {}},
                        ExponentialBounds(0.01, 2, 16))
          ->Find({});
};

}  // namespace

void CountTrainSteps(int64_t n) { Cells::Of().steps->Add(n); }
void NoteGlobalStep(int64_t step) {
  Cells::Of().global_step.Set(static_cast<double>(step));
  SetLogStep(step);
}
void NoteLoss(double loss) { Cells::Of().loss.Set(loss); }
void NoteStaleness(double updates) { Cells::Of().staleness.Set(updates); }

void CountTrainSession(bool restored) {
  Cells& cells = Cells::Of();
  cells.sessions->Add();
  if (restored) cells.restores->Add();
}

void CountSave(bool succeeded, absl::Duration took) {
  Cells& cells = Cells::Of();
  (succeeded ? cells.saved : cells.failed)->Add();
  if (succeeded) cells.save_seconds->Observe(absl::ToDoubleSeconds(took));
}

}  // namespace millrace

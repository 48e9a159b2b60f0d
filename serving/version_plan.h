// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_VERSION_PLAN_H_
#define MILLRACE_SERVING_VERSION_PLAN_H_

// NextSteps: what loads and unloads next, of all models, as a function of what is.
//
//   for (;;) {
//     const Plan plan = NextSteps(models, options, clock->Now());
//     if (plan.steps.empty()) break;  // ask again when a load or unload ends, or at plan.next_time
//     Apply(plan.steps);
//   }
//
// What always holds, whatever the states are that it is given:
//   * A version that is loaded, or may be, is not loaded a second time. One that is wanted again
//     while it drains waits until it is gone.
//   * Availability first (the default): a model that has an available version and wants one keeps
//     one. An unwanted one goes when a wanted one is available, when there are several (the lowest
//     go), or when nothing is wanted: TensorFlow Serving's AvailabilityPreservingPolicy.
//   * Resources first: the unwanted go first, and nothing of the model loads until they are gone.
//   * A version that fails takes nothing from another: its tries come after first tries, it never
//     makes one go, and it rests after its last try until it leaves the wanted set and comes back,
//     or its files change.
//   * A version whose thread was left behind is not tried again before that has come back.
//   * At most `max_loads` loads at a time. Models with nothing available come first, then, within a
//     model, the highest version.
//   * A model that nobody asks for wants nothing, but stays known. It rests (all its available
//   versions go) when it was idle, or when the memory limit leaves no room for one that was used
//   later; not while requests wait for it. No load begins that would exceed the limit, but one that
//   can never fit: its load refuses it.
//   * It comes to rest: after finitely many rounds without an outer event the plan is empty.
//
// An unwanted version that is loading goes on while its model has no wanted one available: where
// versions come faster than they load, each would otherwise be cancelled by the next.
//
// Thread-safety: a pure function. Failure: none.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "serving/version_state.h"

namespace millrace {

enum class LoadOrder {
  kAvailabilityFirst,  // loads before it unloads: room for two versions
  kResourcesFirst,     // unloads before it loads: a gap in which nothing is available
};

struct PlanOptions {
  LoadOrder order = LoadOrder::kAvailabilityFirst;
  int max_retries = 5;  // after the first try
  absl::Duration retry_interval = absl::Seconds(60);
  int max_loads = 2;  // at a time, of all models
  // A load that takes longer is told to end, has failed, and leaves its place: its thread is left
  // behind until it comes back by itself.
  absl::Duration max_load_time = absl::Hours(1);
  // Threads beyond max_loads that may be left behind. When all are, no load begins until one is
  // back.
  int max_left_behind = 4;
  // A model that had no request for so long rests.
  absl::Duration idle_unload = absl::InfiniteDuration();
  // Of what is loaded or loads, loads that were left behind included; the least recently used
  // models rest before more loads. 0: none.
  int64_t memory_limit = 0;
};

struct PlannedVersion {
  int64_t version = 0;
  VersionState state = VersionState::kFound;
  bool wanted = false;
  bool cancelled = false;                          // of a load: it has been told to end
  absl::Time load_began = absl::InfiniteFuture();  // of loading and warming
  int num_tries = 0;  // loads that began since it was queued for the first time
  absl::Time failed_at = absl::InfinitePast();  // the last of them; of failed and waiting
  bool files_changed = false;                   // since that one began
  bool left_behind = false;                     // the thread of that one has not come back
  int64_t num_bytes = 0;                        // that it takes, or is thought to take once loaded
};

// Each version once, in any order.
struct PlannedModel {
  std::vector<PlannedVersion> versions;
  // False: it rests. What is wanted stays known, and nothing of it loads.
  bool asked = true;
  bool has_waiting = false;                    // requests wait for a load
  absl::Time last_use = absl::InfinitePast();  // about; a load, or a request that asks, is a use
};

enum class PlanAction {
  kQueue,   // -> queued, with its first try before it
  kRetry,   // -> queued, its tries so far count
  kLoad,    // -> loading
  kWait,    // failed -> waiting
  kCancel,  // the load is to end early, by itself; no change of state yet
  kGiveUp,  // the load, which took too long -> failed; its thread is left behind
  kDrain,   // available -> draining
  kRest,    // the same; its model is not asked for any more
  kEnd,     // -> ended
};

struct PlanStep {
  size_t model = 0;    // place in the list
  size_t version = 0;  // place in its model
  PlanAction action = PlanAction::kEnd;
};

struct Plan {
  // One step of a version at most; they may be done in any order.
  std::vector<PlanStep> steps;
  // When time alone changes the plan.
  absl::Time next_time = absl::InfiniteFuture();
};

Plan NextSteps(absl::Span<const PlannedModel> models, const PlanOptions& options, absl::Time now);

}  // namespace millrace

#endif  // MILLRACE_SERVING_VERSION_PLAN_H_

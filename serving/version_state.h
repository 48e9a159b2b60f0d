// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_VERSION_STATE_H_
#define MILLRACE_SERVING_VERSION_STATE_H_

// VersionState: where a version of a model is in its life.
//
//   found -> queued -> loading -> warming -> available -> draining -> unloading -> ended
//              ^          |          |                                               |
//              |          +----------+----> failed                                   |
//              |                            |    ^                                   |
//              +---------- waiting <--------+    |  after its last try               |
//              +---------------------------------+  its files have changed           |
//              +---------------------------------------------------------------------+  wanted
//              again
//
// No longer wanted: found, queued, waiting and failed end at once. Loading and warming are
// cancelled and end when the loader has returned; or they go on, and are unloaded later, where the
// model has nothing better. Available becomes draining.
//
// Who causes what: the source (serving/version_source.h) finds. The plan (serving/version_plan.h)
// queues, loads, waits, drains, ends what has no memory. A load thread takes loading to warming, to
// available, to failed, or to ended when it was cancelled. The last request ends draining; the
// unload thread ends unloading.
//
// Thread-safety: pure functions.

#include "absl/strings/string_view.h"

namespace millrace {

enum class VersionState {
  kFound,      // it is there; it is not complete, or nothing was decided yet
  kQueued,     // for a place among the loads
  kLoading,    // a thread is in the loader
  kWarming,    // loaded; answers requests of its own first
  kAvailable,  // answers requests
  kDraining,   // takes no request; some that it took still run
  kUnloading,  // being freed
  kEnded,      // holds nothing
  kFailed,     // the last try failed
  kWaiting,    // for the time of the next try
};

// "available".
absl::string_view VersionStateName(VersionState state);

// The number of ModelVersionStatus.State (TensorFlow Serving's get_model_status.proto): START 10,
// LOADING 20, AVAILABLE 30, UNLOADING 40, END 50. There a version between two tries is LOADING, and
// one that failed for good END with its error.
int ServingStateNumber(VersionState state);

// Does the line above have an arrow from one to the other, those of the unwanted included?
bool IsLegalTransition(VersionState from, VersionState to);

// Takes, or may take, the memory of a loaded model.
constexpr bool HoldsMemory(VersionState state) {
  return state == VersionState::kLoading || state == VersionState::kWarming ||
         state == VersionState::kAvailable || state == VersionState::kDraining ||
         state == VersionState::kUnloading;
}
constexpr bool IsLoad(VersionState state) {
  return state == VersionState::kLoading || state == VersionState::kWarming;
}

}  // namespace millrace

#endif  // MILLRACE_SERVING_VERSION_STATE_H_

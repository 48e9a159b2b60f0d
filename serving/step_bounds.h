// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_STEP_BOUNDS_H_
#define MILLRACE_SERVING_STEP_BOUNDS_H_

// StepBounds: what may end a request before its answer is there, and with whom it may run.
//
// Thread-safety: a value; the manager is asked, and waits register with it, from the thread that
// runs the request.
// Failure: none.

#include "absl/time/time.h"

namespace millrace {

class CancellationManager;  // core/cancellation.h

struct StepBounds {
  // No node begins after it: DeadlineExceeded.
  absl::Time deadline = absl::InfiniteFuture();
  // Once it is cancelled no further node begins: Cancelled. Waits for other requests end.
  // Lives until the request has ended; null: nobody cancels.
  CancellationManager* cancellation = nullptr;
  // Its steps are its own, past a model's runner (serving/step_runner.h): what is no request of a
  // client takes no client's place in a queue or batch.
  bool runs_alone = false;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_STEP_BOUNDS_H_

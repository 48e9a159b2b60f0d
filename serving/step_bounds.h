// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_STEP_BOUNDS_H_
#define MILLRACE_SERVING_STEP_BOUNDS_H_

// StepBounds: what may end a request before its answer is there.
//
// Thread-safety: a value; the manager is asked, and waits register with it, from the thread that
// runs the request.
// Failure: none.

#include "absl/time/time.h"

namespace millrace {

class CancellationManager;  // core/cancellation.h

struct StepBounds {
  // Nodes that have not begun by then do not begin: DeadlineExceeded.
  absl::Time deadline = absl::InfiniteFuture();
  // Lives until the request has ended; null: nobody cancels. Asked before the step begins, and ends
  // waits for other requests: a step that runs goes on.
  CancellationManager* cancellation = nullptr;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_STEP_BOUNDS_H_

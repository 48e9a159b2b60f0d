// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_CALL_OPTIONS_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_CALL_OPTIONS_H_

// CallOptions and CallDone: how a call to a task ends, whatever it asks for. Plain data.

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/status.h"

namespace millrace {

// Called exactly once, in the calling thread or on a network thread, where it must neither block
// nor throw.
using CallDone = absl::AnyInvocable<void(const Status&)>;

struct CallOptions {
  absl::Time deadline = absl::InfiniteFuture();
  bool wait_for_ready = false;
  // May be null; outlives the call's `done`.
  CancellationManager* cancellation = nullptr;
  // When the task cannot be reached: finds out whether it refuses us (IsRefusal), which may take
  // two seconds more. Those of steps do not.
  bool asks_for_refusal = false;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_CALL_OPTIONS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_BOUNDED_CALL_H_
#define MILLRACE_CORE_BOUNDED_CALL_H_

// BoundedCall: runs what may never return (storage that hangs) on a thread of its own, so that
// the caller can stop waiting.
//
//   BoundedCall call(clock, [session] { session->Close().IgnoreError(); });
//   if (!call.WaitUntil(deadline)) LogWarning("...");
//
// What has not ended when the last BoundedCall goes is left behind: its thread goes on for as long
// as it takes. So `work` must hold all that it uses; it is destroyed on its thread before the call
// counts as ended.
//
// Thread-safety: WaitUntil from any thread.

#include <functional>
#include <memory>
#include <thread>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace millrace {

class BoundedCall {
 public:
  BoundedCall(Clock* clock, std::function<void()> work);
  ~BoundedCall();
  BoundedCall(const BoundedCall&) = delete;
  BoundedCall& operator=(const BoundedCall&) = delete;

  // True when it has ended; its thread is gone then.
  bool WaitUntil(absl::Time deadline);

 private:
  struct State {
    Mutex mu;
    CondVar changed;
    bool ended ABSL_GUARDED_BY(mu) = false;
  };
  void Join();

  Clock* const clock_;
  const std::shared_ptr<State> state_;
  Mutex join_mu_;
  std::thread thread_ ABSL_GUARDED_BY(join_mu_);
};

}  // namespace millrace

#endif  // MILLRACE_CORE_BOUNDED_CALL_H_

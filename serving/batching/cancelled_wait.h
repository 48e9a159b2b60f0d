// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_CANCELLED_WAIT_H_
#define MILLRACE_SERVING_BATCHING_CANCELLED_WAIT_H_

// CancelledWait: while it lives, the cancellation of a request wakes its thread from its wait in a
// queue.
//
// Thread-safety: made and destroyed by the thread that waits, without the queue's lock.
// Lifetime: after the destructor nothing touches the waiter.

#include "core/cancellation.h"
#include "core/mutex.h"
#include "serving/batching/batch_task.h"

namespace millrace {

class CancelledWait {
 public:
  // `cancellation` may be null. `mu` is the queue's lock, which guards `waiter`.
  CancelledWait(CancellationManager* cancellation, Mutex* mu, BatchWaiter* waiter)
      : cancellation_(cancellation) {
    if (cancellation == nullptr) return;
    is_registered_ = cancellation->Register(&token_, [mu, waiter] {
      MutexLock lock(mu);
      waiter->is_cancelled = true;
      waiter->changed.Signal();
    });
    // Nobody else has the waiter yet.
    if (!is_registered_) waiter->is_cancelled = true;
  }
  ~CancelledWait() {
    if (is_registered_) cancellation_->Deregister(token_);
  }
  CancelledWait(const CancelledWait&) = delete;
  CancelledWait& operator=(const CancelledWait&) = delete;

 private:
  CancellationManager* const cancellation_;
  CancellationManager::Token token_ = 0;
  bool is_registered_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_CANCELLED_WAIT_H_

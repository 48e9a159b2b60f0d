// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CANCELLATION_H_
#define MILLRACE_CORE_CANCELLATION_H_

// CancellationManager: tells all waits inside a step that the step is over.
//
// A waiter registers a callback before it blocks and deregisters it when it has
// what it waited for. Legal order: Register* -> (Deregister | the callback runs, once).
// StartCancel runs every registered callback exactly once, in the calling thread, oldest first,
// without holding a lock; Register after that returns false and the caller gives up itself.
// A callback that is deregistered before its turn has come does not run.
//
// Thread-safety: all methods, from any thread. A callback must not wait for another thread that
// calls Deregister of the same token.
// Lifetime: destroy it after StartCancel has returned; callbacks still registered are dropped.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>

#include "core/mutex.h"

namespace millrace {

class CancellationManager {
 public:
  using Token = int64_t;

  CancellationManager() = default;
  CancellationManager(const CancellationManager&) = delete;
  CancellationManager& operator=(const CancellationManager&) = delete;

  bool IsCancelled() const { return cancelled_.load(std::memory_order_acquire); }
  // Returns when the callbacks have run. A second call, from any thread, returns at once.
  void StartCancel();

  // False when already cancelled: `callback` is not kept and will not run.
  [[nodiscard]] bool Register(Token* token, std::function<void()> callback);
  // True: the callback will never run. False: it has run or is running; when it is running this
  // waits until it has returned (unless called from within it).
  bool Deregister(Token token);

 private:
  std::atomic<bool> cancelled_{false};  // release on cancel, acquire in IsCancelled
  Mutex mu_;
  CondVar done_cv_;  // a callback has returned
  // The callback that runs now (none: -1) and the thread that runs it.
  Token running_token_ ABSL_GUARDED_BY(mu_) = -1;
  uintptr_t canceller_thread_ ABSL_GUARDED_BY(mu_) = 0;
  Token next_token_ ABSL_GUARDED_BY(mu_) = 0;
  // By age, and of nodes: absl's tables are broken by an allocation that fails while they grow.
  std::map<Token, std::function<void()>> callbacks_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_CORE_CANCELLATION_H_

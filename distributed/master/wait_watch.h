// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_WAIT_WATCH_H_
#define MILLRACE_DISTRIBUTED_MASTER_WAIT_WATCH_H_

// WaitWatch: says every 10 s in the log what has been waited for that long, of waits that occupy no
// thread (steps).
//
// Threads: one, from the first Start on; asking costs nothing between two looks.
// Thread-safety: all methods, from any thread; Stop() not from `waits`. Failure: without a thread
// nothing is said.

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace millrace {

class WaitWatch {
 public:
  // `waits`: one line for each wait that has lasted long at this time.
  using Waits = std::function<std::vector<std::string>(absl::Time now)>;
  WaitWatch(Clock* clock, Waits waits);
  ~WaitWatch();
  WaitWatch(const WaitWatch&) = delete;
  WaitWatch& operator=(const WaitWatch&) = delete;

  // Idempotent.
  void Start() {
    if (!started_.load(std::memory_order_relaxed)) StartThread();
  }
  // For good. Idempotent.
  void Stop();

 private:
  void StartThread();
  void Watch();

  Clock* const clock_;
  const Waits waits_;
  std::atomic<bool> started_{false};  // relaxed: who sees it late asks under the lock
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_WAIT_WATCH_H_

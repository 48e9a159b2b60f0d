// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_WAIT_WATCH_H_
#define MILLRACE_DISTRIBUTED_MASTER_WAIT_WATCH_H_

// WaitWatch: says in the log what has been waited for for 10 s, of waits that occupy no thread
// (steps), and again every 10 s.
//
//   10 s old -> said, with those that get so old soon after -> all that last said again every 10 s
//
// Threads: one, from the first Start on. It looks when the oldest wait of which it has said nothing
// becomes 10 s old, and at least every 10 s; between two looks, a second or more, waits cost
// nothing.
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
  // One that goes on.
  struct Wait {
    absl::Time since;
    // "Step 7 still waits for ..."; "" when it has just ended.
    std::function<std::string()> what;
  };
  using Waits = std::function<std::vector<Wait>()>;
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

  // What the log says of it: "Step 7 still waits for ... since 10s"; "" when it has just ended.
  static std::string Line(const Wait& wait, absl::Time now);

 private:
  void StartThread();
  void Watch();
  // When to look again.
  absl::Time Look(absl::Time now);

  Clock* const clock_;
  const Waits waits_;
  std::atomic<bool> started_{false};  // relaxed: a reader that sees it late asks under the lock
  Mutex mu_;
  CondVar changed_;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
  // Of the thread.
  absl::Time looked_;                               // the last time
  absl::Time next_round_ = absl::InfiniteFuture();  // when all are said again that last
  size_t said_ = 0;                                 // since the last round
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_WAIT_WATCH_H_

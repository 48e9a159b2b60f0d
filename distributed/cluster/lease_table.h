// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_LEASE_TABLE_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_LEASE_TABLE_H_

// LeaseTable: which sessions of this task live only as long as their clients say so.
//
//   granted -> renewed ... -> dropped     its owner ends the session
//                          -> expired     nobody renewed it for the time of its lease
//
// A lease is overdue after three quarters of its time and expires when it is still so at the end of
// it. So a process that was stopped, or whose clock was set forward, first takes the renewals that
// waited for it, and ends no session whose client lives. A clock that was set back delays no end by
// more than the time of the lease.
//
// Invariant: `expired` is called once for each lease that expires, in the table's own thread,
// without a lock; what it names is not in the table any more.
// Threads: one, from the first Grant on; it sleeps until a lease is due.
// Thread-safety: all methods, from any thread; Stop() not from `expired`.

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"

namespace millrace {

// A sign of life costs one look at the clock.
class Lease {
 public:
  Lease(Clock* clock, absl::Duration time) : clock_(clock), time_(time) { Renew(); }
  void Renew() { renewed_.store(absl::ToUnixNanos(clock_->Now()), std::memory_order_relaxed); }
  absl::Time renewed() const {
    return absl::FromUnixNanos(renewed_.load(std::memory_order_relaxed));
  }
  absl::Duration time() const { return time_; }
  // As if the last sign of life had come so long ago.
  void RenewedAgo(absl::Duration ago) {
    renewed_.store(absl::ToUnixNanos(clock_->Now() - ago), std::memory_order_relaxed);
  }
  // A sign of life that lies ahead is taken as one of `now`: the clock was set back.
  void NotRenewedAfter(absl::Time now) {
    const int64_t latest = absl::ToUnixNanos(now);
    int64_t last = renewed_.load(std::memory_order_relaxed);
    // When another one comes meanwhile, that is the one that counts.
    if (last > latest) {
      renewed_.compare_exchange_strong(last, latest, std::memory_order_relaxed);
    }
  }

 private:
  Clock* const clock_;
  const absl::Duration time_;
  std::atomic<int64_t> renewed_{0};  // relaxed: only the newest value matters, nothing hangs on it
};

class LeaseTable {
 public:
  using Expired = std::function<void(const std::string& handle, absl::Duration silent)>;
  LeaseTable(Clock* clock, Expired expired);
  ~LeaseTable();
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // Null after Stop.
  std::shared_ptr<Lease> Grant(const std::string& handle, absl::Duration time);
  void Drop(const std::string& handle);
  // A lease that is not renewed any more ends after a third of its time, or `within`: somebody has
  // reason to believe that its owner is gone. One that is renewed goes on.
  void Doubt(const std::string& handle, absl::Duration within = absl::InfiniteDuration());
  // No lease expires any more. Waits for `expired`. Idempotent.
  void Stop();

 private:
  struct Entry {
    std::shared_ptr<Lease> lease;
    absl::Time expires = absl::InfiniteFuture();  // set while it is overdue
    absl::Time renewed = absl::InfiniteFuture();  // before a doubt made it older
  };
  void Watch();

  Clock* const clock_;
  const Expired expired_;
  Mutex mu_;
  CondVar changed_;
  std::map<std::string, Entry> entries_ ABSL_GUARDED_BY(mu_);
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_LEASE_TABLE_H_

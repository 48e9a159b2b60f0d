// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_RECENT_REQUESTS_H_
#define MILLRACE_DISTRIBUTED_WORKER_RECENT_REQUESTS_H_

// RecentRequests: the ids of the RecvTensor requests that a task has seen lately. A request takes
// its tensor, so one that comes twice must not be served twice.
//
// The last 100,000 are remembered.
//
// Thread-safety: all methods, from any thread.

#include <cstddef>
#include <cstdint>
#include <deque>

#include "core/hash_table.h"
#include "core/mutex.h"

namespace millrace {

class RecentRequests {
 public:
  // False when it is remembered.
  bool Add(int64_t id) {
    MutexLock lock(&mu_);
    if (!ids_.insert(id).second) return false;
    order_.push_back(id);
    if (order_.size() > kRemembered) {
      ids_.erase(order_.front());
      order_.pop_front();
    }
    return true;
  }

 private:
  static constexpr size_t kRemembered = 100'000;

  Mutex mu_;
  HashSet<int64_t> ids_ ABSL_GUARDED_BY(mu_);
  std::deque<int64_t> order_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_RECENT_REQUESTS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_MONITORING_BATCHING_OBSERVER_H_
#define MILLRACE_SERVING_MONITORING_BATCHING_OBSERVER_H_

// BatchingObserver: what one pool of batches tells of itself, for TensorFlow Serving's metrics
// batching_session:*.
//
// Thread-safety: all methods, from any thread. They take no lock.
// Lifetime: the pool holds it. Failure: none.

#include <cstdint>

#include "absl/time/time.h"

namespace millrace {

class BatchingObserver {
 public:
  virtual ~BatchingObserver() = default;
  // A request that came with `size` rows has left its queue after `waited`.
  virtual void LeftQueue(int64_t size, absl::Duration waited) = 0;
  // A batch was run: of so many rows, of which `padding` were added.
  virtual void RanBatch(int64_t size, int64_t padding) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_MONITORING_BATCHING_OBSERVER_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_BATCHING_OBSERVER_H_
#define MILLRACE_SERVING_BATCHING_BATCHING_OBSERVER_H_

// BatchingObserver: what one pool of batches tells of itself, for TensorFlow Serving's metrics
// batching_session:*. A request that can join nothing is no batch: nothing is told of it. One that
// gave up its wait was in none.
//
// Thread-safety: all methods, from any thread. They take no lock.
// Lifetime: the pool holds it. Failure: none.

#include <cstdint>

#include "absl/time/time.h"

namespace millrace {

class BatchingObserver {
 public:
  virtual ~BatchingObserver() = default;
  // A request that came with `size` rows was taken into a batch after `waited`; one that is run in
  // parts, with its first one.
  virtual void LeftQueue(int64_t size, absl::Duration waited) = 0;
  // A step is run: of so many rows, of which `padding` were added. A batch may take several.
  virtual void RanBatch(int64_t size, int64_t padding) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_BATCHING_OBSERVER_H_

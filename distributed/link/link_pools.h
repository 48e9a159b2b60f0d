// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_LINK_POOLS_H_
#define MILLRACE_DISTRIBUTED_LINK_LINK_POOLS_H_

// LinkPools: what the pools of all links of a task (core/shared_pool.h) share, a bound, and what
// they count.
//
// Thread-safety: all members. Lifetime: the links share it.

#include <atomic>
#include <cstdint>
#include <memory>

#include "core/byte_budget.h"

namespace millrace {

struct LinkPools {
  explicit LinkPools(int64_t max_bytes) : budget(std::make_shared<ByteBudget>(max_bytes)) {}

  const std::shared_ptr<ByteBudget> budget;
  // Of blocks: tensors that wait here to leave, or that others read. Pages of empty segments are
  // not counted.
  const std::shared_ptr<std::atomic<int64_t>> block_bytes =
      std::make_shared<std::atomic<int64_t>>(0);
  // Relaxed: counters.
  std::atomic<int64_t> sent_tensors{0}, sent_bytes{0};  // by pools
  std::atomic<int64_t> refused_tensors{0};              // found no room, and went through the wire
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_LINK_POOLS_H_

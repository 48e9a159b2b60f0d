// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/send_groups.h"

#include "core/dcheck.h"

namespace millrace {

SendGroups::SendGroups(const StepEdges::Peer& peer)
    : peer_(peer), missing_(std::make_unique<std::atomic<int64_t>[]>(peer.group_sizes.size())) {
  for (size_t i = 0; i < peer.group_sizes.size(); ++i) {
    missing_[i].store(peer.group_sizes[i], std::memory_order_relaxed);
  }
}

SendGroups::Next SendGroups::Add(size_t index, int64_t bytes) {
  const int group = peer_.groups[index];
  bool is_whole = false;
  if (group != StepEdges::kNoGroup) {
    const int64_t missing =
        missing_[static_cast<size_t>(group)].fetch_sub(1, std::memory_order_acq_rel);
    MR_DCHECK(missing > 0, "each tensor of a step is added once");
    is_whole = missing == 1;
  }
  const int64_t waiting = waiting_bytes_.fetch_add(bytes, std::memory_order_acq_rel) + bytes;
  if (is_whole || bytes >= kLargeBytes || waiting >= kMaxWaitingBytes) return Next::kLeave;
  return group == StepEdges::kNoGroup ? Next::kFree : Next::kWait;
}

void SendGroups::Leaving() { waiting_bytes_.exchange(0, std::memory_order_acq_rel); }

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/receipts.h"

#include <algorithm>
#include <cstddef>

#include "core/dcheck.h"

namespace millrace {
namespace {

// Steps in one RECEIVED, whose head holds 3,000.
constexpr size_t kMaxReceipts = 1000;
// Blocks in one RELEASE, whose head holds 3,000, and numbers in one FORGET.
constexpr size_t kMaxReleases = 1000;
// So much that was let go of the peer's pool, or is to be forgotten, does not wait for a message to
// go with.
constexpr int64_t kReleasedIsDueBytes = int64_t{16} << 20;

template <typename Frame>
void Append(const Frame& frame, ByteChain* chain) {
  FrameWriter writer;
  const Status status = writer.Add(frame);
  MR_DCHECK(status.ok(), "no frame has more than its head holds");
  chain->Append(writer.Finish());
}

}  // namespace

void Receipts::Add(int64_t step_id, uint64_t tensors) {
  if (tensors == 0) return;
  if (!steps_.empty() && steps_.back().step_id == step_id) {
    steps_.back().tensors += tensors;
  } else {
    steps_.push_back({step_id, tensors});
  }
}

int64_t Receipts::released_bytes() const {
  return (peer_pool_ == nullptr ? 0 : peer_pool_->released_bytes()) +
         (kept_ == nullptr ? 0 : kept_->forgotten_bytes());
}

bool Receipts::IsDue() const {
  return flushes_ || credit_.IsDue() || steps_.size() >= kMaxReceipts ||
         released_bytes() >= kReleasedIsDueBytes;
}

void Receipts::Flush() { flushes_ = credit_.owed() > 0 || !steps_.empty() || released_bytes() > 0; }

bool Receipts::Tick() {
  // Nobody waits for it to leave, but it should not wait for a message that never comes.
  const bool owes = !steps_.empty() || released_bytes() > 0;
  const bool is_old = owed_at_tick_ && owes;
  owed_at_tick_ = owes;
  if (is_old) flushes_ = true;
  return is_old;
}

void Receipts::AppendForgotten(ByteChain* chain) {
  while (kept_ != nullptr && kept_->forgotten_bytes() > 0) {
    ForgetFrame frame;
    frame.numbers = kept_->TakeForgotten(kMaxReleases);
    Append(frame, chain);
  }
}

ByteChain Receipts::Take() {
  ByteChain result;
  flushes_ = owed_at_tick_ = false;
  int64_t credit = credit_.TakeOwed();
  size_t begin = 0;
  while (credit > 0 || begin < steps_.size()) {
    ReceivedFrame frame;
    frame.credit_bytes = std::exchange(credit, 0);
    const size_t end = std::min(begin + kMaxReceipts, steps_.size());
    frame.steps.assign(steps_.begin() + static_cast<std::ptrdiff_t>(begin),
                       steps_.begin() + static_cast<std::ptrdiff_t>(end));
    Append(frame, &result);
    begin = end;
  }
  steps_.clear();
  AppendForgotten(&result);
  if (peer_pool_ == nullptr) return result;
  const std::vector<SharedSegments::Block> released = peer_pool_->TakeReleased();
  for (size_t i = 0; i < released.size(); i += kMaxReleases) {
    ReleaseFrame frame;
    for (size_t k = i; k < std::min(i + kMaxReleases, released.size()); ++k) {
      frame.blocks.push_back({released[k].segment, released[k].offset});
    }
    Append(frame, &result);
  }
  return result;
}

}  // namespace millrace

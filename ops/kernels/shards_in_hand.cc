// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/shards_in_hand.h"

#include <utility>

namespace millrace {

// --- For those who bring shards ------------------------------------------------------------------

int64_t ShardsInHand::Begin() {
  MutexLock lock(&mu_);
  ready_.clear();
  reading_.reset();
  finished_.clear();
  is_telling_ = false;
  has_nothing_ = false;
  end_.reset();
  is_stopped_ = false;
  changed_.SignalAll();
  return ++bringer_;
}

ShardsInHand::Wish ShardsInHand::AwaitWish(int64_t bringer) {
  MutexLock lock(&mu_);
  while (bringer == bringer_ && !is_stopped_ && finished_.empty() && !wants_shard() &&
         !waits_for_shard()) {
    changed_.Wait(&mu_);
  }
  Wish wish;
  wish.is_over = bringer != bringer_ || is_stopped_;
  if (wish.is_over) return wish;
  wish.finished.swap(finished_);
  is_telling_ = !wish.finished.empty();
  wish.wants_shard = wants_shard();
  wish.waits_for_shard = waits_for_shard();
  return wish;
}

void ShardsInHand::Told(int64_t bringer) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  is_telling_ = false;
  changed_.SignalAll();
}

void ShardsInHand::Put(int64_t bringer, Shard shard) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  ready_.push_back(std::move(shard));
  changed_.SignalAll();
}

void ShardsInHand::PutNothing(int64_t bringer) {
  MutexLock lock(&mu_);
  if (bringer == bringer_) has_nothing_ = true;
}

void ShardsInHand::End(int64_t bringer, Status status) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  end_ = std::move(status);
  changed_.SignalAll();
}

void ShardsInHand::Stop(int64_t bringer) {
  MutexLock lock(&mu_);
  if (bringer != bringer_) return;
  is_stopped_ = true;
  changed_.SignalAll();
}

std::vector<int64_t> ShardsInHand::TakeFinished(int64_t bringer) {
  MutexLock lock(&mu_);
  while (bringer == bringer_ && is_telling_) changed_.Wait(&mu_);
  return bringer == bringer_ ? std::exchange(finished_, {}) : std::vector<int64_t>();
}

// --- For the reader --------------------------------------------------------------------

int64_t ShardsInHand::BeginReader() {
  MutexLock lock(&mu_);
  if (reading_) ready_.push_front(*std::exchange(reading_, std::nullopt));
  changed_.SignalAll();
  return ++reader_;
}

StatusOr<std::optional<Shard>> ShardsInHand::NextShard(int64_t reader,
                                                       CancellationManager* cancellation) {
  CancellationManager::Token token = 0;
  if (!cancellation->Register(&token, [this] {
        MutexLock lock(&mu_);
        changed_.SignalAll();
      })) {
    return absl::CancelledError("ShardsInHand: the reader was cancelled");
  }
  StatusOr<std::optional<Shard>> next = [&]() -> StatusOr<std::optional<Shard>> {
    MutexLock lock(&mu_);
    if (reader == reader_ && reading_) {
      finished_.push_back(std::exchange(reading_, std::nullopt)->id);
      changed_.SignalAll();
    }
    while (reader == reader_ && !cancellation->IsCancelled() && ready_.empty() && !end_) {
      ++num_waiting_;
      changed_.SignalAll();
      changed_.Wait(&mu_);
      --num_waiting_;
    }
    if (reader != reader_ || cancellation->IsCancelled()) {
      return absl::CancelledError("ShardsInHand: the reader was cancelled");
    }
    if (!ready_.empty()) {
      reading_ = std::move(ready_.front());
      ready_.pop_front();
      has_nothing_ = false;
      changed_.SignalAll();
      return reading_;
    }
    MR_RETURN_IF_ERROR(*end_);
    return std::optional<Shard>();
  }();
  cancellation->Deregister(token);
  return next;
}

}  // namespace millrace

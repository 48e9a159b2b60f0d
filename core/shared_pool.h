// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_SHARED_POOL_H_
#define MILLRACE_CORE_SHARED_POOL_H_

// SharedPool: memory that this process writes and one other process of the host reads
// (shared_segments.h), in blocks.
//
// A pool has segments: memory files without a name (memfd), which the peer maps once. Each is
// sealed when this process has mapped it: nobody can change its size, and nobody but its owner can
// write, so the peer may read it without fear. Blocks lie in segments:
//
//   free -> held     Allocate: a Block, filled by who has it
//   held -> free     the Block is gone
//   held -> given    Give: the peer reads it
//   given -> free    Release: the peer says that it does not any more
//
// Segments come as blocks need them, each twice as large as the last one, from kFirstSegmentBytes
// up to kSegmentBytes. A block that is larger has a segment of its own, with up to a sixteenth
// more.
//
// What was used is used again: a page that both processes have mapped costs nothing more, and a
// fresh one is found, zeroed and mapped twice, which takes longer than to copy it. Within a segment
// the lowest free bytes are taken, so few pages do. A large block takes an empty segment of at most
// twice its size, the smallest one that will do, and of equal ones that which was used last: its
// bytes may still be in the caches. So a tensor that is sent in each step makes a segment once, or
// twice when the first one has not come back.
//
// A segment that is empty stays until
//   * Trim finds that it was not used for kKeepFor, or somebody was refused by the budget;
//   * this pool needs its bytes for a block that fits into no segment;
//   * it is one of a large block, and those between two powers of two have more bytes, while they
//     are empty, than had blocks at once since the last Trim but one. The smallest of them goes: a
//     larger one serves its next block too.
// Else the one that was not used for longest goes first. So sizes that take turns have their
// segments, however many there are, and sizes that change all the time keep little: of blocks that
// come one at a time less than three times the largest one.
//
// What the peer must hear of segments is News, in order. Nothing is left in the system when both
// processes have ended, however they ended.
//
// A pool takes no more of its budget than it leaves to others: of a budget that nobody else uses
// it has half, the next one half of the rest.
//
// Thread-safety: all methods. No other lock is taken, and nobody called, under the pool's.
// Lifetime: blocks keep the pool. The memory goes with the pool, given or not.
// Failure: a pool without room gives no block, nor one that has no descriptor for a segment, nor
// any more a pool whose system gives no such memory; Release is InvalidArgument for what was not
// given. Memory is asked of the system before it is written, so its lack is an answer, not a
// signal.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/byte_budget.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/status.h"

namespace millrace {

class SharedPool : public std::enable_shared_from_this<SharedPool> {
 public:
  // Of blocks. As that of tensors.
  static constexpr int64_t kAlignment = 64;
  // Of one pool; who reads it takes no more.
  static constexpr size_t kMaxSegments = 1024;
  static constexpr int64_t kFirstSegmentBytes = int64_t{4} << 20;
  static constexpr int64_t kSegmentBytes = int64_t{64} << 20;
  static constexpr absl::Duration kKeepFor = absl::Seconds(10);

  struct Options {
    // Of all segments.
    int64_t max_bytes = 0;
    // Of one at most; a block that is larger has one of its own.
    int64_t segment_bytes = kSegmentBytes;
    // What this pool shares with others; null: nothing.
    std::shared_ptr<ByteBudget> budget = nullptr;
    // Where it adds up the bytes of its blocks, held or given, with those of others; null: nowhere.
    std::shared_ptr<std::atomic<int64_t>> block_bytes = nullptr;
  };

  // A segment that was made, or is gone.
  struct News {
    uint64_t segment = 0;  // from 1 on, never again
    int64_t bytes = 0;     // 0: it is gone
    std::shared_ptr<const OwnedFd> fd;
  };

  struct Counts {
    int64_t segments = 0;
    int64_t segment_bytes = 0;
    int64_t made_segments = 0;    // so far
    int64_t held = 0, given = 0;  // blocks
  };

  // A block that this process holds; its owner fills it. Moves. Thread-compatible.
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept = default;
    Block& operator=(Block&& other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(segment_, other.segment_);
      std::swap(offset_, other.offset_);
      return *this;
    }
    ~Block() {
      if (pool_ != nullptr) pool_->Free(segment_, offset_);
    }

    explicit operator bool() const { return pool_ != nullptr; }
    char* data() const { return data_; }
    uint64_t segment() const { return segment_; }
    uint64_t offset() const { return static_cast<uint64_t>(offset_); }

    // The peer will hear of it. This is none afterwards.
    void Give() {
      pool_->Give(segment_, offset_);
      pool_ = nullptr;
    }

    // For Allocate: takes over what lies there.
    Block(std::shared_ptr<SharedPool> pool, char* data, uint64_t segment, int64_t offset)
        : pool_(std::move(pool)), data_(data), segment_(segment), offset_(offset) {}

   private:
    std::shared_ptr<SharedPool> pool_;  // null: none
    char* data_ = nullptr;
    uint64_t segment_ = 0;
    int64_t offset_ = 0;
  };

  // Whether an error of madvise, which was asked for pages, says that there are none. All others
  // mean that it could not be asked: the pages come as they are touched.
  static bool MeansNoMemory(int error);

  static std::shared_ptr<SharedPool> Make(Options options);
  ~SharedPool();
  SharedPool(const SharedPool&) = delete;
  SharedPool& operator=(const SharedPool&) = delete;

  // None when there is no room. Not initialised: what it was used for last may stand there.
  Block Allocate(int64_t bytes);
  // By the peer's word.
  Status Release(uint64_t segment, uint64_t offset);
  // Every few seconds, by a clock that does not go back: unmaps segments that are empty and were
  // not used for a while. Whether there were any, and so news.
  bool Trim(absl::Time now);
  // Since the last call, in order. A segment is in it before Allocate returns a block of it.
  std::vector<News> TakeNews();

  Counts counts() const;

 private:
  enum class Use { kFree, kHeld, kGiven };
  struct Extent {
    int64_t bytes = 0;
    Use use = Use::kFree;
  };
  // Bytes of large segments between two powers of two.
  struct LargeBytes {
    int64_t used = 0, empty = 0;        // of those with a block, and without
    int64_t most = 0, most_before = 0;  // used at once since the last Trim; between the two before
  };
  class Segment;
  using Segments = std::map<uint64_t, std::unique_ptr<Segment>>;  // by number
  using ExtentOf = std::map<int64_t, Extent>::iterator;

  explicit SharedPool(Options options);
  // Whether a block has a segment of its own.
  bool IsLarge(int64_t bytes) const;
  // Free bytes for a block in a segment that is there; null when there are none.
  Segment* FindFree(int64_t size, ExtentOf* extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Segment* FindFreeLarge(int64_t size) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With room for so many bytes; null when there is none. `gone`: empty ones that had to go for it,
  // to be destroyed without the lock.
  Segment* MakeSegment(int64_t bytes, Segments* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SwitchOff(const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Give(uint64_t segment, int64_t offset);
  void Free(uint64_t segment, int64_t offset);
  // `gone`: segments that are gone by that; to be destroyed without the lock. Allocates nothing.
  void FreeExtent(Segment* segment, ExtentOf extent, Segments* gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What more segments may take, if those that are there gave back so much.
  int64_t LeftForSegments(int64_t returned) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of an empty segment. Allocates nothing.
  void TakeOut(Segments::iterator segment, Segments* gone) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The empty segment that was not used for longest; end() when there is none.
  Segments::iterator LeastRecentlyUsed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The smallest empty segment between the powers of two that `bytes` of a large one lie between;
  // of equal ones that which was not used for longest; end() when there is none.
  Segments::iterator SmallestEmptyLarge(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  LargeBytes& LargeBytesOf(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of blocks; negative: that are free.
  void CountBlock(int64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable Mutex mu_;
  Segments segments_ ABSL_GUARDED_BY(mu_);
  std::vector<News> news_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> has_news_{false};  // relaxed: who must see a segment has seen its block before
  uint64_t last_segment_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_bytes_ ABSL_GUARDED_BY(mu_) = kFirstSegmentBytes;  // of the next segment
  int64_t refusals_ ABSL_GUARDED_BY(mu_) = 0;                     // of the budget, at the last Trim
  int64_t segment_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t block_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_use_ ABSL_GUARDED_BY(mu_) = 0;             // of a segment that became empty
  std::array<LargeBytes, 64> large_ ABSL_GUARDED_BY(mu_);  // by the power of two
  bool is_off_ ABSL_GUARDED_BY(mu_) = false;               // the system gives no such memory
};

using SharedBlock = SharedPool::Block;

}  // namespace millrace

#endif  // MILLRACE_CORE_SHARED_POOL_H_

// SPDX-License-Identifier: Apache-2.0
#include "core/shared_pool.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/buffer.h"
#include "core/byte_budget.h"
#include "core/owned_fd.h"
#include "core/shared_segments.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: memory that two tasks of a host share: what the owner says of it is checked,
//   blocks come back when the last reference goes, and all is bounded

namespace millrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

OwnedFd Copy(const OwnedFd& fd) { return OwnedFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

std::shared_ptr<SharedPool> PoolOf(int64_t max_bytes, int64_t segment_bytes,
                                   std::shared_ptr<ByteBudget> budget = nullptr) {
  return SharedPool::Make({max_bytes, segment_bytes, std::move(budget)});
}

// What the pool says, to those that read it.
void Tell(SharedPool* pool, SharedSegments* segments) {
  for (const SharedPool::News& news : pool->TakeNews()) {
    if (news.bytes == 0) {
      EXPECT_OK(segments->Remove(news.segment));
    } else {
      EXPECT_OK(segments->Add(news.segment, news.bytes, Copy(*news.fd)));
    }
  }
}

// What was released, to the pool.
void TellBack(SharedSegments* segments, SharedPool* pool) {
  for (const SharedSegments::Block& block : segments->TakeReleased()) {
    EXPECT_OK(pool->Release(block.segment, block.offset));
  }
}

OwnedFd MemoryFile(int64_t bytes, int seals) {
  OwnedFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(fd.get(), bytes), 0);
  EXPECT_EQ(::fcntl(fd.get(), F_ADD_SEALS, seals), 0);
  return fd;
}

TEST(SharedPoolTest, WhatTheOwnerWritesThePeerReads) {
  const auto pool = PoolOf(4 * kMiB, kMiB);
  const auto segments = SharedSegments::Make(4 * kMiB);
  SharedBlock block = pool->Allocate(100'000);
  ASSERT_TRUE(block);
  Tell(pool.get(), segments.get());
  std::memset(block.data(), 7, 100'000);
  const uint64_t segment = block.segment(), offset = block.offset();
  block.Give();
  EXPECT_FALSE(block);
  EXPECT_EQ(pool->counts().given, 1);
  {
    ASSERT_OK_AND_ASSIGN(const BufferRef read, segments->Take(segment, offset, 100'000));
    EXPECT_EQ(read->size(), 100'000u);
    EXPECT_TRUE(read->is_read_only());
    EXPECT_EQ(absl::string_view(static_cast<const char*>(read->data()), 100'000),
              std::string(100'000, 7));
    EXPECT_TRUE(segments->TakeReleased().empty());
  }
  EXPECT_EQ(segments->released_bytes(), 100'000);
  TellBack(segments.get(), pool.get());
  EXPECT_EQ(segments->released_bytes(), 0);
  EXPECT_EQ(pool->counts().given, 0);
  // The same memory again.
  EXPECT_EQ(pool->Allocate(100'000).offset(), offset);
  EXPECT_TRUE(pool->TakeNews().empty());
}

TEST(SharedPoolTest, BlocksLieApartAndComeBackWhole) {
  const auto pool = PoolOf(kMiB, kMiB);
  std::vector<SharedBlock> blocks;
  const int64_t size = 100'000, taken = 100'032;  // a multiple of 64
  for (;;) {
    SharedBlock block = pool->Allocate(size);
    if (!block) break;
    EXPECT_EQ(block.offset() % SharedPool::kAlignment, 0u);
    std::memset(block.data(), static_cast<int>(blocks.size()), size);
    blocks.push_back(std::move(block));
  }
  EXPECT_EQ(static_cast<int64_t>(blocks.size()), kMiB / taken);
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(blocks[i].data()[0], static_cast<char>(i));
    EXPECT_EQ(blocks[i].data()[size - 1], static_cast<char>(i));
  }
  // Every second one leaves holes that take as much again; all of them are one.
  for (size_t i = 0; i < blocks.size(); i += 2) blocks[i] = SharedBlock();
  EXPECT_FALSE(pool->Allocate(2 * size));
  blocks[0] = pool->Allocate(size);
  EXPECT_EQ(blocks[0].offset(), 0u);
  blocks.clear();
  EXPECT_TRUE(pool->Allocate(kMiB));
  EXPECT_EQ(pool->counts().segments, 1);
}

TEST(SharedPoolTest, SegmentsComeAsTheyAreNeededAndEmptyOnesStay) {
  const auto pool = PoolOf(6 * kMiB, kMiB);
  const auto segments = SharedSegments::Make(6 * kMiB);
  SharedBlock first = pool->Allocate(kMiB), second = pool->Allocate(kMiB);
  SharedBlock large = pool->Allocate(3 * kMiB);  // one of its own
  ASSERT_TRUE(first && second && large);
  EXPECT_EQ(pool->counts().segments, 3);
  EXPECT_EQ(pool->counts().segment_bytes, 5 * kMiB);
  Tell(pool.get(), segments.get());
  large = SharedBlock();
  EXPECT_EQ(pool->counts().segments, 3);
  first = SharedBlock();
  second = SharedBlock();
  for (int i = 0; i < 3; ++i) {
    first = pool->Allocate(kMiB);
    second = pool->Allocate(kMiB / 2);
    ASSERT_TRUE(first && second);
    first = SharedBlock();
    second = SharedBlock();
  }
  EXPECT_EQ(pool->counts().segments, 3);
  EXPECT_TRUE(pool->TakeNews().empty());
  // What fits only without empty ones takes the place of those that were not used for longest: the
  // large one and the one of `first`. What does not fit then leaves them.
  EXPECT_TRUE(pool->Allocate(5 * kMiB));
  EXPECT_EQ(pool->counts().segments, 2);
  EXPECT_EQ(pool->counts().segment_bytes, 6 * kMiB);
  Tell(pool.get(), segments.get());  // Remove is checked there
  first = pool->Allocate(kMiB);
  EXPECT_TRUE(first);
  EXPECT_FALSE(pool->Allocate(6 * kMiB));
  EXPECT_EQ(pool->counts().segments, 2);
  EXPECT_TRUE(pool->TakeNews().empty());
}

// covers: clusters: a tensor larger than a segment that is sent in each step makes no segment in
//   each step, and what it leaves is bounded
TEST(SharedPoolTest, ALargeBlockHasTheSegmentOfTheLastOne) {
  const auto pool = PoolOf(64 * kMiB, kMiB);
  const auto segments = SharedSegments::Make(64 * kMiB);
  const int64_t size = 8 * kMiB + 4096;
  uint64_t used = 0;
  for (int step = 0; step < 5; ++step) {
    // Of about the same size each time.
    SharedBlock block = pool->Allocate(size + 4096 * step);
    ASSERT_TRUE(block);
    if (step == 0) used = block.segment();
    EXPECT_EQ(block.segment(), used);
    EXPECT_EQ(block.offset(), 0u);
    const uint64_t segment = block.segment(), offset = block.offset();
    Tell(pool.get(), segments.get());
    std::memset(block.data(), step, static_cast<size_t>(size));
    block.Give();
    ASSERT_OK_AND_ASSIGN(BufferRef read, segments->Take(segment, offset, size + 4096 * step));
    EXPECT_EQ(static_cast<const char*>(read->data())[size - 1], static_cast<char>(step));
    read = BufferRef();
    TellBack(segments.get(), pool.get());
    EXPECT_FALSE(pool->Trim(absl::UnixEpoch() + absl::Seconds(5 * step)));
  }
  EXPECT_EQ(pool->counts().made_segments, 1);
  // Two at a time need two; each of them has the one that was used last.
  SharedBlock first = pool->Allocate(size), second = pool->Allocate(size);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(pool->counts().made_segments, 2);
  const uint64_t of_first = first.segment(), of_second = second.segment();
  second = SharedBlock();
  first = SharedBlock();
  first = pool->Allocate(size);
  EXPECT_EQ(first.segment(), of_first);
  first = SharedBlock();
  second = pool->Allocate(size);
  EXPECT_EQ(second.segment(), of_first);
  first = pool->Allocate(size);
  EXPECT_EQ(first.segment(), of_second);
}

TEST(SharedPoolTest, ALargeBlockTakesTheSmallestSegmentAndNoneOfTwiceItsSize) {
  const auto pool = PoolOf(64 * kMiB, kMiB);
  SharedBlock four = pool->Allocate(4 * kMiB), six = pool->Allocate(6 * kMiB);
  ASSERT_TRUE(four && six);
  const uint64_t of_four = four.segment(), of_six = six.segment();
  four = SharedBlock();
  six = SharedBlock();
  four = pool->Allocate(3 * kMiB);
  EXPECT_EQ(four.segment(), of_four);
  six = pool->Allocate(3 * kMiB);
  EXPECT_EQ(six.segment(), of_six);
  four = SharedBlock();
  six = SharedBlock();
  // Less than half of the smallest one; and a small block, which might stay long, takes neither.
  const SharedBlock two = pool->Allocate(2 * kMiB - 64), small = pool->Allocate(1000);
  EXPECT_EQ(pool->counts().made_segments, 4);
}

// Each turn has its blocks at once, and no two turns have any at the same time.
// covers: clusters: tensors larger than a segment whose sizes take turns, as of two signatures,
//   make no segment in each turn
TEST(SharedPoolTest, SizesThatTakeTurnsKeepTheirSegments) {
  const std::vector<std::vector<int64_t>> cases[] = {
      {{10}, {30}},
      {{30}, {10}},
      {{4}, {10}, {30}},
      {{20}, {25}, {30}},
      {{3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}},
      {{10}, {9}, {8}, {7}, {6}, {5}, {4}, {3}},
      {{3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, {30}, {10, 10, 10}},
      // Between two powers of two: neither has segments that are enough for the other.
      {{4, 4, 4, 4}, {7, 7}},
      {{7, 7}, {5, 5, 5}, {4, 4, 4, 4}},
      // A segment of the next power for a size just below one.
      {{8 * kMiB - 4096}, {15 * kMiB + kMiB / 2}},
  };
  for (const std::vector<std::vector<int64_t>>& turns : cases) {
    const auto pool = PoolOf(256 * kMiB, kMiB);
    int64_t made = 0;
    for (int round = 0; round < 10; ++round) {
      for (const std::vector<int64_t>& sizes : turns) {
        std::vector<SharedBlock> blocks;
        for (const int64_t size : sizes) {
          SharedBlock& block = blocks.emplace_back(pool->Allocate(size < 64 ? size * kMiB : size));
          ASSERT_TRUE(block);
        }
      }
      EXPECT_FALSE(pool->Trim(absl::UnixEpoch() + absl::Seconds(round)));
      // The first rounds find out which sizes serve which.
      if (round == 4) made = pool->counts().made_segments;
    }
    EXPECT_EQ(pool->counts().made_segments, made)
        << turns.size() << " turns, the first of " << turns[0][0];
  }
  // Two sizes need one segment each, from the first time on.
  const auto pool = PoolOf(64 * kMiB, kMiB);
  for (int round = 0; round < 10; ++round) {
    EXPECT_TRUE(pool->Allocate(10 * kMiB));
    EXPECT_TRUE(pool->Allocate(30 * kMiB));
  }
  EXPECT_EQ(pool->counts().made_segments, 2);
}

// Sizes that never come again, one at a time.
TEST(SharedPoolTest, EmptyLargeSegmentsHaveFewerBytesThanThreeOfTheLargest) {
  const auto pool = PoolOf(256 * kMiB, kMiB);
  int64_t most = 0;
  for (const int64_t mib : {8, 3, 12, 5, 2, 15, 7, 31, 11, 4, 13, 6, 32, 14, 28}) {
    EXPECT_TRUE(pool->Allocate(mib * kMiB));
    most = std::max(most, mib * kMiB);
    // Each of these has just its bytes. The largest one; of each lower power one that is less than
    // the next power, and so less than the largest one, half of it, a quarter, ...
    EXPECT_LT(pool->counts().segment_bytes, 3 * most);
  }
  // All of them go with time.
  EXPECT_FALSE(pool->Trim(absl::UnixEpoch()));
  EXPECT_TRUE(pool->Trim(absl::UnixEpoch() + SharedPool::kKeepFor));
  EXPECT_EQ(pool->counts().segment_bytes, 0);
}

TEST(SharedPoolTest, EmptyLargeSegmentsHaveNoMoreBytesThanWereInUseAtOnceLately) {
  const auto pool = PoolOf(64 * kMiB, kMiB);
  std::vector<SharedBlock> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(pool->Allocate(4 * kMiB));
  blocks.clear();
  EXPECT_EQ(pool->counts().segments, 4);
  const absl::Time start = absl::UnixEpoch();
  EXPECT_FALSE(pool->Trim(start));
  EXPECT_TRUE(pool->Allocate(4 * kMiB));
  EXPECT_EQ(pool->counts().segments, 4);
  // What was in use long ago does not count: when Trim was called twice since.
  EXPECT_FALSE(pool->Trim(start));
  EXPECT_TRUE(pool->Allocate(4 * kMiB));
  EXPECT_EQ(pool->counts().segments, 1);
  // The one that was used last: it serves the next one.
  EXPECT_TRUE(pool->Allocate(4 * kMiB));
  EXPECT_EQ(pool->counts().made_segments, 4);
}

TEST(SharedPoolTest, EmptyLargeSegmentsGoWhenOthersWantTheBudget) {
  const auto budget = std::make_shared<ByteBudget>(16 * kMiB);
  const auto pool = PoolOf(16 * kMiB, kMiB, budget), other = PoolOf(16 * kMiB, kMiB, budget);
  EXPECT_TRUE(pool->Allocate(8 * kMiB));
  EXPECT_FALSE(pool->Trim(absl::UnixEpoch()));
  EXPECT_FALSE(pool->Trim(absl::UnixEpoch()));
  EXPECT_FALSE(other->Allocate(5 * kMiB));  // half of what is left is less
  EXPECT_TRUE(pool->Trim(absl::UnixEpoch()));
  EXPECT_EQ(budget->left(), 16 * kMiB);
  EXPECT_TRUE(other->Allocate(5 * kMiB));
}

TEST(SharedPoolTest, BytesOfBlocksAreCountedUntilTheyAreFreeOrThePoolGoes) {
  const auto bytes = std::make_shared<std::atomic<int64_t>>(0);
  SharedPool::Options options;
  options.max_bytes = 8 * kMiB;
  options.segment_bytes = kMiB;
  options.block_bytes = bytes;
  auto pool = SharedPool::Make(options);
  SharedBlock held = pool->Allocate(1000), given = pool->Allocate(2 * kMiB);
  EXPECT_EQ(bytes->load(), 2 * kMiB + 1024);  // a multiple of 64
  const uint64_t segment = given.segment(), offset = given.offset();
  given.Give();
  held = SharedBlock();
  EXPECT_EQ(bytes->load(), 2 * kMiB);
  EXPECT_OK(pool->Release(segment, offset));
  EXPECT_EQ(bytes->load(), 0);
  given = pool->Allocate(1000);
  given.Give();
  EXPECT_EQ(bytes->load(), 1024);
  pool = nullptr;
  EXPECT_EQ(bytes->load(), 0);
}

TEST(SharedPoolTest, SegmentsBeginSmallAndGrow) {
  constexpr int64_t kFirst = SharedPool::kFirstSegmentBytes;
  const auto pool = PoolOf(64 * kFirst, 4 * kFirst);
  std::vector<SharedBlock> blocks;
  int64_t all = 0;
  for (const int64_t next : {kFirst, 2 * kFirst, 4 * kFirst, 4 * kFirst}) {
    blocks.push_back(pool->Allocate(next));
    all += next;
    EXPECT_EQ(pool->counts().segment_bytes, all);
  }
  EXPECT_EQ(pool->counts().segments, 4);
  blocks.clear();
  EXPECT_FALSE(pool->Trim(absl::UnixEpoch()));
  EXPECT_TRUE(pool->Trim(absl::UnixEpoch() + SharedPool::kKeepFor));
  EXPECT_EQ(pool->counts().segments, 0);
  // From the beginning.
  EXPECT_TRUE(pool->Allocate(1000));
  EXPECT_EQ(pool->counts().segment_bytes, kFirst);
}

TEST(SharedPoolTest, WhatIsNotUsedForAWhileIsUnmapped) {
  const auto pool = PoolOf(8 * kMiB, kMiB);
  const absl::Time start = absl::UnixEpoch();
  const auto after = [&](int seconds) { return start + absl::Seconds(seconds); };
  SharedBlock first = pool->Allocate(kMiB), second = pool->Allocate(kMiB);
  EXPECT_FALSE(pool->Trim(after(0)));
  EXPECT_FALSE(pool->Trim(after(100)));  // they are in use
  second = SharedBlock();
  EXPECT_FALSE(pool->Trim(after(105)));
  EXPECT_FALSE(pool->Trim(after(110)));
  second = pool->Allocate(kMiB);  // also for a moment
  second = SharedBlock();
  EXPECT_FALSE(pool->Trim(after(115)));
  EXPECT_FALSE(pool->Trim(after(124)));
  EXPECT_TRUE(pool->Trim(after(125)));
  EXPECT_EQ(pool->counts().segments, 1);
  EXPECT_FALSE(pool->Trim(after(1000)));
  const std::vector<SharedPool::News> news = pool->TakeNews();
  ASSERT_EQ(news.size(), 3u);  // two that came
  EXPECT_EQ(news[2].segment, 2u);
  EXPECT_EQ(news[2].bytes, 0);
}

TEST(SharedPoolTest, WhoIsRefusedGetsWhatOthersDoNotUse) {
  const auto budget = std::make_shared<ByteBudget>(4 * kMiB);
  const auto pool = PoolOf(4 * kMiB, 2 * kMiB, budget), other = PoolOf(4 * kMiB, 2 * kMiB, budget);
  const absl::Time start = absl::UnixEpoch();
  EXPECT_TRUE(pool->Allocate(2 * kMiB));
  EXPECT_FALSE(pool->Trim(start));
  EXPECT_FALSE(pool->Trim(start));
  EXPECT_FALSE(other->Allocate(2 * kMiB));  // half of what is left is less
  EXPECT_TRUE(pool->Trim(start));
  EXPECT_EQ(budget->left(), 4 * kMiB);
  EXPECT_TRUE(other->Allocate(2 * kMiB));
}

TEST(SharedPoolTest, AllIsBounded) {
  const auto budget = std::make_shared<ByteBudget>(5 * kMiB);
  const auto pool = PoolOf(2 * kMiB, kMiB, budget), other = PoolOf(2 * kMiB, kMiB, budget);
  EXPECT_FALSE(pool->Allocate(0));
  EXPECT_FALSE(pool->Allocate(-1));
  EXPECT_FALSE(pool->Allocate(INT64_MAX));
  EXPECT_FALSE(pool->Allocate(2 * kMiB + 1));
  SharedBlock a = pool->Allocate(kMiB), b = pool->Allocate(kMiB);
  EXPECT_TRUE(a && b);
  EXPECT_FALSE(pool->Allocate(1));
  SharedBlock c = other->Allocate(kMiB);
  EXPECT_TRUE(c);
  // Of the 3 MiB that the first one left it may have half: less than a whole segment more.
  SharedBlock d = other->Allocate(1);
  EXPECT_TRUE(d);
  EXPECT_EQ(other->counts().segment_bytes, kMiB + kMiB / 2);
  EXPECT_FALSE(other->Allocate(kMiB / 2));
  EXPECT_EQ(budget->left(), kMiB + kMiB / 2);
  // What is left of a bound may be less than a segment.
  const auto small = PoolOf(100'000, kMiB);
  EXPECT_TRUE(small->Allocate(64'000));
  EXPECT_LE(small->counts().segment_bytes, 100'000);
}

TEST(SharedPoolTest, ABoundIsFreeAgainWhenThePoolHasGone) {
  const auto budget = std::make_shared<ByteBudget>(2 * kMiB);
  auto pool = PoolOf(kMiB, kMiB, budget);
  SharedBlock given = pool->Allocate(1000), held = pool->Allocate(1000);
  given.Give();
  pool = nullptr;
  held.data()[0] = 1;  // a block keeps its pool
  EXPECT_EQ(budget->left(), kMiB);
  held = SharedBlock();
  EXPECT_EQ(budget->left(), 2 * kMiB);
}

TEST(SharedPoolTest, OnlyWhatWasGivenIsReleasedAndOnce) {
  const auto pool = PoolOf(kMiB, kMiB);
  SharedBlock held = pool->Allocate(1000), given = pool->Allocate(1000);
  const uint64_t segment = given.segment(), offset = given.offset();
  given.Give();
  constexpr char kRule[] = "a block that is released must have been given";
  EXPECT_STATUS(pool->Release(segment, held.offset()), absl::StatusCode::kInvalidArgument, kRule);
  EXPECT_STATUS(pool->Release(segment, offset + 64), absl::StatusCode::kInvalidArgument, kRule);
  EXPECT_STATUS(pool->Release(segment, UINT64_MAX), absl::StatusCode::kInvalidArgument, kRule);
  EXPECT_STATUS(pool->Release(segment + 1, offset), absl::StatusCode::kInvalidArgument, kRule);
  EXPECT_OK(pool->Release(segment, offset));
  EXPECT_STATUS(pool->Release(segment, offset), absl::StatusCode::kInvalidArgument, kRule);
}

// Neither this process by another way, nor the peer, can write or change the size.
TEST(SharedPoolTest, SegmentsAreSealed) {
  const auto pool = PoolOf(kMiB, kMiB);
  const SharedBlock block = pool->Allocate(1000);
  const std::vector<SharedPool::News> news = pool->TakeNews();
  ASSERT_EQ(news.size(), 1u);
  const int fd = news[0].fd->get();
  EXPECT_NE(::ftruncate(fd, 0), 0);
  EXPECT_NE(::ftruncate(fd, 2 * kMiB), 0);
  EXPECT_EQ(::pwrite(fd, "x", 1, 0), -1);
  EXPECT_EQ(::mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_NE(::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
  block.data()[0] = 'y';
}

TEST(SharedSegmentsTest, AFileThatIsNotWhatWasSaidIsRefused) {
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;
  const auto segments = SharedSegments::Make(kMiB);
  const auto refused = [&](int64_t bytes, OwnedFd fd, absl::string_view why) {
    EXPECT_STATUS(segments->Add(1, bytes, std::move(fd)), absl::StatusCode::kInvalidArgument, why);
  };
  refused(4096, MemoryFile(4096, kAll & ~F_SEAL_SHRINK), "must be sealed");
  refused(4096, MemoryFile(4096, kAll & ~F_SEAL_GROW), "must be sealed");
  refused(4096, MemoryFile(4096, kAll & ~F_SEAL_WRITE), "must be sealed");
  refused(4096, MemoryFile(4096, kAll & ~F_SEAL_SEAL), "must be sealed");
  refused(4096, MemoryFile(4096, 0), "must be sealed");
  refused(8192, MemoryFile(4096, kAll), "must have the 8192 bytes that were said, got 4096");
  refused(2048, MemoryFile(4096, kAll), "must have the 2048 bytes that were said, got 4096");
  refused(2 * kMiB, MemoryFile(2 * kMiB, kAll), "all must have at most 1048576 bytes");
  refused(INT64_MAX, MemoryFile(4096, kAll), "all must have at most 1048576 bytes");
  refused(0, MemoryFile(0, kAll), "all must have at most 1048576 bytes");
  refused(-1, MemoryFile(0, kAll), "all must have at most 1048576 bytes");
  refused(4096, OwnedFd(::open("/proc/version", O_RDONLY | O_CLOEXEC)), "must be a memory file");
  int pipes[2];
  ASSERT_EQ(::pipe2(pipes, O_CLOEXEC), 0);
  const OwnedFd other(pipes[1]);
  refused(4096, OwnedFd(pipes[0]), "must be a memory file");
  EXPECT_FALSE(segments->Add(1, 4096, OwnedFd()).ok());
  EXPECT_OK(segments->Add(1, 4096, MemoryFile(4096, kAll)));
  refused(4096, MemoryFile(4096, kAll), "its number must be above 1, got 1");
  EXPECT_STATUS(segments->Add(2, kMiB, MemoryFile(kMiB, kAll)), absl::StatusCode::kInvalidArgument,
                "got 1048576 next to 4096");
  EXPECT_OK(segments->Remove(1));
  EXPECT_OK(segments->Add(2, kMiB, MemoryFile(kMiB, kAll)));
  EXPECT_STATUS(segments->Remove(1), absl::StatusCode::kInvalidArgument, "must be there");
}

TEST(SharedSegmentsTest, BlocksLieWithinTheirSegmentAndApart) {
  const auto pool = PoolOf(kMiB, kMiB);
  const auto segments = SharedSegments::Make(kMiB);
  const SharedBlock whole = pool->Allocate(kMiB);
  Tell(pool.get(), segments.get());
  const auto size = static_cast<uint64_t>(kMiB);
  const struct {
    uint64_t segment, offset;
    int64_t bytes;
    const char* why;
  } outside[] = {
      {2, 0, 64, "its segment must be there, got number 2"},
      {1, size, 64, "must lie within"},
      {1, size - 64, 65, "must lie within"},
      {1, 0, kMiB + 1, "must lie within"},
      {1, UINT64_MAX - 63, 128, "must lie within"},
      {1, 0, INT64_MAX, "must lie within"},
      {1, 0, 0, "must lie within"},
      {1, 0, -64, "must lie within"},
      {1, 32, 64, "at a multiple of 64"},
  };
  for (const auto& c : outside) {
    EXPECT_STATUS(segments->Take(c.segment, c.offset, c.bytes), absl::StatusCode::kInvalidArgument,
                  c.why);
  }
  ASSERT_OK_AND_ASSIGN(BufferRef middle, segments->Take(1, 640, 640));
  constexpr char kApart[] = "must lie apart from those in use";
  const std::pair<uint64_t, int64_t> overlapping[] = {{640, 640}, {640, 1},  {576, 128}, {1216, 64},
                                                      {0, 641},   {0, kMiB}, {704, 64}};
  for (const auto& [offset, bytes] : overlapping) {
    EXPECT_STATUS(segments->Take(1, offset, bytes), absl::StatusCode::kInvalidArgument, kApart);
  }
  EXPECT_OK(segments->Take(1, 0, 640));
  EXPECT_OK(segments->Take(1, 1280, 64));
  EXPECT_STATUS(segments->Remove(1), absl::StatusCode::kInvalidArgument, "no block in use");
  // Until the owner may hear of it the block is in use.
  middle = BufferRef();
  EXPECT_STATUS(segments->Take(1, 640, 640), absl::StatusCode::kInvalidArgument, kApart);
  EXPECT_EQ(segments->TakeReleased().size(), 3u);
  EXPECT_OK(segments->Take(1, 640, 640));
}

TEST(SharedSegmentsTest, WhatIsReferredToStaysMapped) {
  auto pool = PoolOf(kMiB, kMiB);
  auto segments = SharedSegments::Make(kMiB);
  SharedBlock block = pool->Allocate(1000);
  Tell(pool.get(), segments.get());
  std::memset(block.data(), 3, 1000);
  block.Give();
  ASSERT_OK_AND_ASSIGN(BufferRef kept, segments->Take(1, 0, 1000));
  segments->Close();
  segments = nullptr;
  pool = nullptr;
  EXPECT_EQ(static_cast<const char*>(kept->data())[999], 3);
  std::thread([last = std::move(kept)]() mutable { last = BufferRef(); }).join();
}

TEST(SharedSegmentsTest, BuffersGoOnAnyThreadWhileTheOwnerGoes) {
  for (int round = 0; round < 20; ++round) {
    const auto pool = PoolOf(kMiB, kMiB);
    const auto segments = SharedSegments::Make(kMiB);
    std::vector<std::vector<BufferRef>> of_threads(4);
    std::vector<SharedBlock> blocks;
    for (int i = 0; i < 64; ++i) blocks.push_back(pool->Allocate(4096));
    Tell(pool.get(), segments.get());
    for (size_t i = 0; i < blocks.size(); ++i) {
      const uint64_t segment = blocks[i].segment(), offset = blocks[i].offset();
      blocks[i].Give();
      ASSERT_OK_AND_ASSIGN(BufferRef buffer, segments->Take(segment, offset, 4096));
      of_threads[i % 4].push_back(std::move(buffer));
    }
    std::vector<std::thread> threads;
    for (auto& buffers : of_threads) threads.emplace_back([&buffers] { buffers.clear(); });
    TellBack(segments.get(), pool.get());
    if (round % 2 == 0) segments->Close();
    for (std::thread& thread : threads) thread.join();
    TellBack(segments.get(), pool.get());
    if (round % 2 == 1) {
      EXPECT_EQ(pool->counts().given, 0);
    }
  }
}

}  // namespace
}  // namespace millrace

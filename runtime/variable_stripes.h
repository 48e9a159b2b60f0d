// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_VARIABLE_STRIPES_H_
#define MILLRACE_RUNTIME_VARIABLE_STRIPES_H_

// VariableStripes and RowRun: where the rows of a variable are, their locks, and how several are
// held together. Inside of VariableStorage.
//
// From the first row update on the rows lie in stripes: blocks of consecutive rows of about 16 KiB.
// Read() shares the buffer at any time; a row update that finds it shared copies the stripes it
// touches into memory of their own and leaves the buffer to its readers; when these are gone the
// stripes return, some with every row update, the rest with the next Read. A table that is not
// large and whose reader stays (the constant that it was initialised with, which several may share)
// is brought together in memory of its own after some updates.
//
// Why stripes are consecutive rows and locks are not: a walk, a copy and a stamp want memory that
// lies together; contention wants the opposite, because the frequent ids of a vocabulary are
// neighbours. So row r belongs to stripe r / rows_per_stripe, and its lock is number r mod 1024 of
// its variable (they all fit into the first-level cache). A row update on several threads sorts its
// rows by lock: one lock per run, threads take disjoint ranges of locks, and hot neighbours spread
// over them. A few rows of one thread go without locks of rows where the variable is free. Nor do
// gathers lock rows of a single number, which one instruction reads.
//
// Always true: where a stripe is changes only under the locks of all its rows, or with the variable
// locked exclusively. Nobody waits for a row lock while holding a lock that comes after it (by
// storage and number); who would, takes it only when it is free.
//
// Threads: any, with the variable locked, shared or exclusively.
// Lifetime: from the first row update after an Assign to the next Assign or Clear.
// Failure: TakeApart without memory is false, and nothing has changed.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/types/span.h"
#include "core/allocator.h"
#include "core/tensor.h"

namespace millrace {

// Held for the time of a few rows or of one stripe: about a microsecond.
class SpinLock {
 public:
  void Lock() {
    while (held_.exchange(true, std::memory_order_acquire)) WaitUntilFree();
  }
  bool TryLock() { return !held_.exchange(true, std::memory_order_acquire); }
  void Unlock() { held_.store(false, std::memory_order_release); }

 private:
  void WaitUntilFree() const {
    for (int spins = 0; held_.load(std::memory_order_relaxed); ++spins) {
      if (spins < 64) {
        __builtin_ia32_pause();
      } else {
        std::this_thread::yield();  // the holder may have lost its core
      }
    }
  }
  // acquire on lock, release on unlock: rows are plain memory.
  std::atomic<bool> held_{false};
};

// Row locks, and where the rows are: in the variable's buffer, or apart from it because a reader
// holds the buffer. Where a stripe is changes only under the locks of all its rows (or with the
// variable locked exclusively); one of them, or exclusion, is enough to look.
struct VariableStripes {
  // Few enough for runs: 4096 rows at random are some four to a lock; 64 threads on random rows
  // still rarely meet.
  static constexpr size_t kLocks = 1024;
  // Large enough that a lock, a stamp and an allocation are small against a copy, small enough that
  // a row update while there is a reader copies little: 16 KiB are 64 rows of 64 floats.
  static constexpr size_t kStripeBytes = 16 * 1024;
  static constexpr size_t kMaxRows = 256;  // <= kLocks: the rows of a stripe have different locks

  VariableStripes(int64_t rows, size_t bytes)
      : row_bytes(bytes), num_rows(static_cast<size_t>(rows)) {
    size_t rows_per_stripe = kMaxRows;
    while (rows_per_stripe > 1 && rows_per_stripe * row_bytes > kStripeBytes) rows_per_stripe /= 2;
    while ((size_t{1} << shift) < rows_per_stripe) ++shift;
    // Rows without bytes are one stripe, however many they are.
    if (row_bytes == 0) shift = 62;
    count = row_bytes == 0 ? 1 : (num_rows + rows_per_stripe - 1) >> shift;
    apart = std::make_unique<std::atomic<char*>[]>(count);
    changed_in = std::make_unique<std::atomic<uint64_t>[]>(count);
  }
  ~VariableStripes() {
    for (size_t s = 0; num_apart.load(std::memory_order_relaxed) > 0 && s < count; ++s) Free(s);
  }
  VariableStripes(const VariableStripes&) = delete;
  VariableStripes& operator=(const VariableStripes&) = delete;

  size_t rows_per_stripe() const { return size_t{1} << shift; }
  size_t stripe_bytes() const { return row_bytes << shift; }
  size_t BytesOf(size_t s) const {
    return std::min(rows_per_stripe(), num_rows - (s << shift)) * row_bytes;
  }
  static size_t LockOf(size_t row) { return row % kLocks; }
  // Of rows in one stripe or in one aligned block of at most kMaxRows: in ascending order.
  void Lock(size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) locks[LockOf(row)].Lock();
  }
  void Unlock(size_t begin, size_t end) {
    for (size_t row = begin; row < end; ++row) locks[LockOf(row)].Unlock();
  }
  // Works under the locks of all rows of a stripe.
  template <typename Work>
  auto WithStripe(size_t s, Work work) {
    const size_t begin = s << shift;
    const size_t end = std::min(begin + rows_per_stripe(), num_rows);
    Lock(begin, end);
    auto result = work();
    Unlock(begin, end);
    return result;
  }

  char* Locate(char* buffer, size_t row) const {
    char* const own = apart[row >> shift].load(std::memory_order_relaxed);
    return own == nullptr ? buffer + row * row_bytes
                          : own + (row & (rows_per_stripe() - 1)) * row_bytes;
  }
  // At the end of an update: its rows have changed in the present epoch. When a walk begins
  // meanwhile it is done again: a walk that begins after the last look at the epoch sees the
  // stamps, one that began before has a number that they reach.
  template <typename Index>
  void Stamp(absl::Span<const Index> rows) {
    uint64_t now = epoch.load(std::memory_order_seq_cst);
    for (uint64_t stamped = now - 1; stamped != now; now = epoch.load(std::memory_order_seq_cst)) {
      for (const Index row : rows) {
        std::atomic<uint64_t>& stamp = changed_in[static_cast<size_t>(row) >> shift];
        uint64_t known = stamp.load(std::memory_order_seq_cst);
        // Others stamp too: it never goes back.
        while (known < now && !stamp.compare_exchange_weak(known, now, std::memory_order_seq_cst)) {
        }
      }
      stamped = now;
    }
  }
  uint64_t ChangedIn(size_t row) const {
    return changed_in[row >> shift].load(std::memory_order_seq_cst);
  }
  bool IsAnyApart() const { return num_apart.load(std::memory_order_relaxed) > 0; }
  bool IsApart(size_t s) const { return apart[s].load(std::memory_order_relaxed) != nullptr; }
  bool IsInTarget(const char* own) const {
    const char* const begin = static_cast<const char*>(target.raw_data());
    return target.has_value() && own >= begin && own < begin + num_rows * row_bytes;
  }
  // The stripe's own memory, when it has some; its rows are then nowhere.
  void Free(size_t s) {
    char* const own = apart[s].exchange(nullptr, std::memory_order_relaxed);
    if (own == nullptr) return;
    num_apart.fetch_sub(1, std::memory_order_relaxed);
    if (!IsInTarget(own)) DefaultAllocator()->Deallocate(own, stripe_bytes());
  }
  // Copies the stripe out of the buffer, which stays as it is. False: no memory. Bytes are counted
  // in `copied`.
  bool TakeApart(size_t s, const char* buffer, int64_t* copied) {
    if (IsApart(s)) return true;
    const size_t at = (s << shift) * row_bytes;
    char* const to = target.has_value()
                         ? static_cast<char*>(target.mutable_raw_data()) + at
                         : static_cast<char*>(DefaultAllocator()->Allocate(stripe_bytes()));
    if (to == nullptr) return false;
    std::memcpy(to, buffer + at, BytesOf(s));
    *copied += static_cast<int64_t>(BytesOf(s));
    apart[s].store(to, std::memory_order_relaxed);
    num_apart.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  // Brings it back into the buffer.
  void Return(size_t s, char* buffer, int64_t* copied) {
    const char* const own = apart[s].load(std::memory_order_relaxed);
    if (own == nullptr) return;
    std::memcpy(buffer + (s << shift) * row_bytes, own, BytesOf(s));
    *copied += static_cast<int64_t>(BytesOf(s));
    Free(s);
  }
  // Brings it into the target, from wherever it is.
  void MoveToTarget(size_t s, const char* buffer, int64_t* copied) {
    const char* const own = apart[s].load(std::memory_order_relaxed);
    if (own == nullptr) {
      (void)TakeApart(s, buffer, copied);  // into the target: needs no memory
    } else if (!IsInTarget(own)) {
      char* const to = static_cast<char*>(target.mutable_raw_data()) + (s << shift) * row_bytes;
      std::memcpy(to, own, BytesOf(s));
      *copied += static_cast<int64_t>(BytesOf(s));
      // Not by Free: who looks meanwhile must not find that nothing is apart.
      apart[s].store(to, std::memory_order_relaxed);
      DefaultAllocator()->Deallocate(const_cast<char*>(own), stripe_bytes());
    }
  }
  // Exclusively, when all stripes are in the target: hands it over as the buffer.
  Tensor TakeTarget() {
    for (size_t s = 0; s < count; ++s) apart[s].store(nullptr, std::memory_order_relaxed);
    num_apart.store(0, std::memory_order_relaxed);
    return std::exchange(target, Tensor());
  }

  // Advanced by walks. Loaded by every row update: on a cache line that rarely changes.
  alignas(64) static inline std::atomic<uint64_t> epoch{1};

  const size_t row_bytes;
  const size_t num_rows;
  size_t shift = 0;
  size_t count = 0;
  // By stripe: its own memory, null when it is in the buffer. relaxed: ordered by the rows' locks.
  std::unique_ptr<std::atomic<char*>[]> apart;
  // By stripe: the epoch of the last change. seq_cst, see Stamp.
  std::unique_ptr<std::atomic<uint64_t>[]> changed_in;
  std::atomic<int64_t> num_apart{0};   // relaxed: exact when rows are excluded, a hint otherwise
  std::atomic<size_t> next_return{0};  // relaxed: where row updates go on bringing stripes back
  // Row updates while the buffer has readers, since rows were last brought together; relaxed: a
  // hint.
  std::atomic<int> updates_beside{0};
  // A buffer that all rows are moving to because a reader holds the present one. Set and taken with
  // the variable locked exclusively.
  Tensor target;
  std::array<SpinLock, kLocks> locks;
};

// The locks of a few rows, in each of several storages, held together. One by one, a row would wait
// until all stores to the row before it have left the core: that is how processors take locks.
//
// It waits only while it holds nothing (or the same row in storages before, in their order) and
// otherwise takes what is free, so that no two wait for each other, in whatever order rows come.
class RowRun {
 public:
  // More gain little, and who loses its core with them has gathers wait for that many locks.
  static constexpr size_t kMostLocks = 4;

  // `lockers`: in the order of locks; outlives the run.
  explicit RowRun(absl::Span<VariableStripes* const> lockers) : lockers_(lockers) {}
  ~RowRun() { Unlock(); }
  RowRun(const RowRun&) = delete;
  RowRun& operator=(const RowRun&) = delete;

  // Locks `row` too. False: it is not locked and the run is at its end; always true for the first.
  bool Add(size_t row) {
    const size_t lock = VariableStripes::LockOf(row);
    if (count_ == 0) {
      for (VariableStripes* s : lockers_) s->locks[lock].Lock();
    } else if (held_[count_ - 1] == lock) {
      return true;
    } else if (count_ == kMostLocks || !TryLock(lock)) {
      return false;
    }
    held_[count_++] = static_cast<uint16_t>(lock);
    return true;
  }
  // Returns how many locks there were in each storage.
  size_t Unlock() {
    for (size_t i = 0; i < count_; ++i) {
      for (VariableStripes* s : lockers_) s->locks[held_[i]].Unlock();
    }
    return std::exchange(count_, 0);
  }

 private:
  // In all storages or in none. A lock of this run is taken, too.
  bool TryLock(size_t lock) {
    for (size_t k = 0; k < lockers_.size(); ++k) {
      if (lockers_[k]->locks[lock].TryLock()) continue;
      while (k > 0) lockers_[--k]->locks[lock].Unlock();
      return false;
    }
    return true;
  }

  const absl::Span<VariableStripes* const> lockers_;
  size_t count_ = 0;
  std::array<uint16_t, kMostLocks> held_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_VARIABLE_STRIPES_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_VARIABLE_ROW_LOOPS_H_
#define MILLRACE_RUNTIME_VARIABLE_ROW_LOOPS_H_

// RowUpdateLoops: the loops of one row update: in the order of the indices, on several threads, or
// many rows at a time. Inside of VariableStorage::UpdateRows.
//
// They know no variable, only where rows are and their locks: the variables are locked and ready
// for rows, the indices checked. The updates of one row happen in the order of the indices.
//
// Threads: those of RunOnThreads, which it waits for; no two of them take the same row.
// Lifetime: one call of UpdateRows, which all that they point to outlives.
// Failure: what `update` throws passes through and leaves no row locked.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "runtime/variable_row_access.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_stripes.h"

namespace millrace {

// One of the variables whose rows make a record.
struct RecordMember {
  char* Locate(size_t row, bool is_together) const {
    return is_together ? buffer + row * row_bytes : stripes->Locate(buffer, row);
  }
  char* buffer;
  size_t row_bytes;
  VariableStripes* stripes;
  std::atomic<int64_t>* row_locks;  // counts those that were taken; relaxed
};

// The positions of `indices` by the lock of their rows, in their own order for each lock:
// positions of lock k are order[first[k]] to order[first[k + 1]].
template <size_t kLocks>
struct ByLock {
  template <typename Index>
  explicit ByLock(absl::Span<const Index> indices) : order(indices.size()) {
    for (const Index index : indices) ++first[static_cast<size_t>(index) % kLocks + 1];
    for (size_t k = 0; k < kLocks; ++k) first[k + 1] += first[k];
    std::array<uint32_t, kLocks> next;
    std::copy_n(first.begin(), kLocks, next.begin());
    for (size_t i = 0; i < indices.size(); ++i) {
      order[next[static_cast<size_t>(indices[i]) % kLocks]++] = static_cast<uint32_t>(i);
    }
  }
  std::array<uint32_t, kLocks + 1> first{};
  std::vector<uint32_t> order;
};

template <typename Index>
struct RowUpdateLoops {
  // Most members of RunSeveral.
  static constexpr size_t kFewVariables = 8;

  // One thread goes by the gradient's rows, which lie together.
  void RunInOrder() const { Run(nullptr, 0, indices.size()); }

  // On several threads where that pays, else in order.
  void RunOnThreads(const RowUpdateOptions& options) const;

  // All positions, as many different rows at a time as there are. No row is locked; at most
  // kFewVariables members.
  void RunSeveral(const RowUpdateOptions& options) const;

  absl::Span<const RecordMember> members;
  absl::Span<VariableStripes* const> lockers;  // of the members, in the order of locks
  absl::Span<const Index> indices;
  absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)> update;
  // All rows of all members are in the buffers, and stay there.
  bool is_together;
  // Nothing else reaches the variables: no row is locked.
  bool is_exclusive;

 private:
  // Positions [begin, end) of `order`, or of the indices themselves without one.
  void Run(const uint32_t* order, size_t begin, size_t end) const;
};

template <typename Index>
void RowUpdateLoops<Index>::Run(const uint32_t* order, size_t begin, size_t end) const {
  const auto position = [&](size_t p) { return order == nullptr ? p : order[p]; };
  const auto row_of = [&](size_t p) { return static_cast<size_t>(indices[position(p)]); };
  const auto prefetch = [&](size_t p) {
    const size_t row = row_of(p);
    for (const RecordMember& m : members) {
      PrefetchRow(m.Locate(row, is_together), m.row_bytes);
    }
  };
  const size_t k = members.size();
  absl::InlinedVector<char*, 4> rows(k);
  RowRun locks(lockers);
  int64_t num_locks = 0;
  for (size_t p = begin; p < std::min(end, begin + kRowsAhead); ++p) prefetch(p);
  for (size_t p = begin; p < end;) {
    size_t run_end = is_exclusive ? end : p;
    while (run_end < end && locks.Add(row_of(run_end))) ++run_end;
    for (; p < run_end; ++p) {
      if (p + kRowsAhead < end) prefetch(p + kRowsAhead);
      for (size_t j = 0; j < k; ++j) rows[j] = members[j].Locate(row_of(p), is_together);
      update(static_cast<int64_t>(position(p)), rows);
    }
    num_locks += static_cast<int64_t>(locks.Unlock());
  }
  for (const RecordMember& m : members) {
    m.row_locks->fetch_add(num_locks, std::memory_order_relaxed);
  }
}

template <typename Index>
void RowUpdateLoops<Index>::RunOnThreads(const RowUpdateOptions& options) const {
  // Below, sorting costs more than the locks it saves.
  constexpr size_t kSortFrom = 512;
  // Of the locks, as units of parallel work: enough for any machine, and long against their start.
  constexpr int64_t kParts = 64;
  constexpr size_t kLocks = VariableStripes::kLocks;
  constexpr size_t kLocksOfPart = kLocks / kParts;
  static_assert(kLocks % kParts == 0);

  const size_t n = indices.size();
  if (n < kSortFrom || n > std::numeric_limits<uint32_t>::max()) return RunInOrder();
  const ByLock<kLocks> by_lock(indices);
  options.parallel_for(
      kParts, options.row_cost_ns * static_cast<double>(n) / static_cast<double>(kParts),
      [&](int64_t begin, int64_t end) {
        Run(by_lock.order.data(), by_lock.first[static_cast<size_t>(begin) * kLocksOfPart],
            by_lock.first[static_cast<size_t>(end) * kLocksOfPart]);
      });
}

template <typename Index>
void RowUpdateLoops<Index>::RunSeveral(const RowUpdateOptions& options) const {
  constexpr size_t kMostRows = 256;  // of all variables
  static_assert(kMostRows >= kFewVariables);
  const size_t k = members.size();
  const size_t most = kMostRows / k;
  // Rows of one lock are taken for the same.
  std::array<uint64_t, VariableStripes::kLocks / 64> taken{};
  std::array<char*, kMostRows> rows;
  size_t first = 0, count = 0;
  const auto update_taken = [&] {
    if (count == 0) return;
    options.update_several(static_cast<int64_t>(first), static_cast<int64_t>(count),
                           absl::MakeConstSpan(rows.data(), count * k));
    taken.fill(0);
    first += count;
    count = 0;
  };
  for (size_t p = 0; p < indices.size(); ++p) {
    const auto row = static_cast<size_t>(indices[p]);
    const size_t lock_of_row = VariableStripes::LockOf(row);
    const uint64_t bit = uint64_t{1} << lock_of_row % 64;
    if (count == most || (taken[lock_of_row / 64] & bit) != 0) update_taken();
    taken[lock_of_row / 64] |= bit;
    for (size_t j = 0; j < k; ++j) {
      char* const at = members[j].Locate(row, is_together);
      PrefetchRow(at, members[j].row_bytes);
      rows[count * k + j] = at;
    }
    ++count;
  }
  update_taken();
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_VARIABLE_ROW_LOOPS_H_

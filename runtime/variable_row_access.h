// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_VARIABLE_ROW_ACCESS_H_
#define MILLRACE_RUNTIME_VARIABLE_ROW_ACCESS_H_

// What gathers and row updates do alike before they touch rows: check indices, fetch ahead.
//
// Thread-safety: pure functions.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "core/status.h"

namespace millrace {

// Rows that the processor fetches ahead, into the second-level cache: the fill buffers of the first
// are too few to hide DRAM latency behind copies of 256 bytes.
inline constexpr size_t kRowsAhead = 16;
// Of a row, the first lines are fetched ahead; the hardware sees the rest coming.
inline constexpr size_t kLinesAhead = 4;
inline constexpr size_t kLineBytes = 64;

inline void PrefetchRow(const char* row, size_t row_bytes) {
  const size_t bytes = std::min(row_bytes, kLinesAhead * kLineBytes);
  for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(row + at, 0, 2);
}

// InvalidArgument "indices[i] = v is not in [0, n)" for the first bad index.
template <typename Index>
Status CheckRowIndices(absl::Span<const Index> indices, int64_t num_rows) {
  bool bad = false;  // one pass without branches
  for (const Index index : indices) {
    bad |= static_cast<uint64_t>(int64_t{index}) >= static_cast<uint64_t>(num_rows);
  }
  if (!bad) return absl::OkStatus();
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= num_rows) {
      return InvalidArgument("indices[", i, "] = ", indices[i], " is not in [0, ", num_rows, ")");
    }
  }
  return absl::InternalError("an index is out of range and none is");
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_VARIABLE_ROW_ACCESS_H_

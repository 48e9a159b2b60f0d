// SPDX-License-Identifier: Apache-2.0
//
// Gathers of rows, in the order of the indices: a row is copied under its lock, or by one
// instruction.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "runtime/variable_row_access.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_stripes.h"

namespace millrace {

template <typename Index>
Status VariableStorage::GatherRows(absl::Span<const Index> indices, const Shape& table,
                                   char* out) const {
  ReaderLock lock(&mu_);
  MR_RETURN_IF_ERROR(CheckHasRows());
  if (value_.shape() != table) {
    return absl::AbortedError(absl::StrCat("Variable '", name_, "' must keep its shape ",
                                           table.ToString(), " while rows are gathered, got ",
                                           value_.shape().ToString()));
  }
  MR_RETURN_IF_ERROR(CheckRowIndices(indices, value_.dim(0)));
  const size_t row_bytes = RowBytes();
  if (row_bytes == 0) return absl::OkStatus();
  char* const base = static_cast<char*>(const_cast<void*>(value_.raw_data()));
  const Stripes* const stripes = stripes_.get();
  // Nothing goes apart while mu_ is held and no reader holds the buffer.
  const bool together = stripes == nullptr || (!frozen_ && !stripes->IsAnyApart());
  const auto row_at = [&](size_t i) {
    const size_t row = static_cast<size_t>(indices[i]);
    return together ? base + row * row_bytes : stripes->Locate(base, row);
  };
  const size_t n = indices.size();
#if !defined(__SANITIZE_THREAD__)
  // A single number is read and written by one instruction, never torn: rows of one need no locks
  // while they stay where they are.
  if (together && row_bytes == sizeof(uint32_t) && DTypeSize(dtype_) == row_bytes) {
    const auto* const from = reinterpret_cast<const uint32_t*>(base);
    for (size_t i = 0; i < n; ++i) {
      const uint32_t word = __atomic_load_n(from + indices[i], __ATOMIC_RELAXED);
      std::memcpy(out + i * sizeof(word), &word, sizeof(word));
    }
    return absl::OkStatus();
  }
#endif
  for (size_t i = 0; i < std::min(n, kRowsAhead); ++i) PrefetchRow(row_at(i), row_bytes);
  SpinLock* held = nullptr;
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) PrefetchRow(row_at(i + kRowsAhead), row_bytes);
    if (stripes != nullptr) {
      SpinLock* const wanted = &stripes_->locks[Stripes::LockOf(static_cast<size_t>(indices[i]))];
      if (wanted != held) {
        if (held != nullptr) held->Unlock();
        held = wanted;
        held->Lock();
      }
    }
    std::memcpy(out + i * row_bytes, row_at(i), row_bytes);
  }
  if (held != nullptr) held->Unlock();
  return absl::OkStatus();
}

template Status VariableStorage::GatherRows(absl::Span<const int32_t>, const Shape&, char*) const;
template Status VariableStorage::GatherRows(absl::Span<const int64_t>, const Shape&, char*) const;

}  // namespace millrace

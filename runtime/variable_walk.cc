// SPDX-License-Identifier: Apache-2.0
//
// What savers see of variables: walks over their rows, or those that have changed since an epoch,
// and the values of several at one moment.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/variable_lock_set.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_stripes.h"

namespace millrace {

uint64_t VariableStorage::NextEpoch() {
  return Stripes::epoch.fetch_add(1, std::memory_order_seq_cst) + 1;
}

StatusOr<VariableStorage::Range> VariableStorage::CopyRows(
    absl::Span<VariableStorage* const> variables, absl::Span<const Shape> shapes, Range rows,
    uint64_t since, absl::Span<char* const> outs) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MR_ASSIGN_OR_RETURN(const LockSet::Sorted sorted, LockSet::Sort(variables));
  LockSet lock(sorted, /*exclusive=*/false);
  // Rows that are looked at together: of one stripe in every variable.
  size_t block = Stripes::kMaxRows;
  bool all_changed = since == 0;
  for (size_t k = 0; k < variables.size(); ++k) {
    const VariableStorage* const v = variables[k];
    MR_RETURN_IF_ERROR(v->CheckHasRows());
    if (v->value_.shape() != shapes[k]) {
      return absl::AbortedError(absl::StrCat("Variable '", v->name_, "' must keep its shape ",
                                             shapes[k].ToString(), " while its rows are walked, ",
                                             "got ", v->value_.shape().ToString()));
    }
    if (rows.begin < 0 || rows.begin > rows.end || rows.end > v->value_.dim(0)) {
      return InvalidArgument("Variable '", v->name_, "': rows [", rows.begin, ", ", rows.end,
                             ") must be in [0, ", v->value_.dim(0), ")");
    }
    all_changed |= v->all_changed_in_ >= since;
    if (v->stripes_ != nullptr) block = std::min(block, v->stripes_->rows_per_stripe());
  }
  size_t record_bytes = 0;
  for (const VariableStorage* v : variables) record_bytes += v->RowBytes();
  if (record_bytes == 0) return rows;
  absl::InlinedVector<Stripes*, 4> lockers;
  for (const VariableStorage* v : sorted) {
    if (v->stripes_ != nullptr) lockers.push_back(v->stripes_.get());
  }
  RowRun locks(lockers);
  Range copied{rows.end, rows.end};
  bool begun = false;
  size_t most_locked = 0;  // bytes copied under one run of locks
  const size_t last = static_cast<size_t>(rows.end);
  size_t end;
  for (size_t begin = static_cast<size_t>(rows.begin); begin < last; begin = end) {
    end = std::min((begin / block + 1) * block, last);
    bool changed = all_changed;
    for (const VariableStorage* v : sorted) {
      changed = changed || (v->stripes_ != nullptr && v->stripes_->ChangedIn(begin) >= since);
    }
    if (changed) {
      if (!begun) copied.begin = static_cast<int64_t>(begin);
      // A few rows at a time: the holder of the locks may lose its core, and gathers would wait for
      // all of the stripe until it has one again.
      for (size_t row = begin; row < end;) {
        size_t run_end = row;
        while (run_end < end && locks.Add(run_end)) ++run_end;
        for (size_t k = 0; k < variables.size(); ++k) {
          const VariableStorage* const v = variables[k];
          const size_t row_bytes = v->RowBytes();
          if (row_bytes == 0) continue;
          char* const buffer = static_cast<char*>(const_cast<void*>(v->value_.raw_data()));
          char* const from =
              v->stripes_ == nullptr ? buffer + row * row_bytes : v->stripes_->Locate(buffer, row);
          std::memcpy(outs[k] + (row - static_cast<size_t>(copied.begin)) * row_bytes, from,
                      (run_end - row) * row_bytes);
        }
        if (locks.Unlock() > 0) {
          most_locked = std::max(most_locked, (run_end - row) * record_bytes);
        }
        row = run_end;
      }
    }
    if (begun && !changed) {
      copied.end = static_cast<int64_t>(begin);
      break;
    }
    begun |= changed;
  }
  const auto raise = [](std::atomic<int64_t>* most, size_t bytes) {
    int64_t known = most->load(std::memory_order_relaxed);
    while (known < static_cast<int64_t>(bytes) &&
           !most->compare_exchange_weak(known, static_cast<int64_t>(bytes),
                                        std::memory_order_relaxed)) {
    }
  };
  for (VariableStorage* v : sorted) {
    raise(&v->most_bytes_under_row_locks_, most_locked);
    raise(&v->most_bytes_held_, static_cast<size_t>(copied.end - copied.begin) * record_bytes);
  }
  return copied;
}

StatusOr<std::vector<Tensor>> VariableStorage::ReadAtOnce(
    absl::Span<VariableStorage* const> variables) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MR_ASSIGN_OR_RETURN(const LockSet::Sorted sorted, LockSet::Sort(variables));
  LockSet lock(sorted, /*exclusive=*/false);
  std::vector<Tensor> values;
  for (const VariableStorage* v : variables) {
    if (!v->value_.has_value()) return v->Uninitialized();
    values.push_back(v->stripes_ == nullptr ? v->value_ : Tensor());
  }
  return values;
}

VariableStorage::Kept VariableStorage::HowKept(const Tensor& value) const {
  ReaderLock lock(&mu_);
  if (value.shape() != value_.shape() || !value.SharesBufferWith(value_)) return Kept::kPast;
  return stripes_ == nullptr ? Kept::kWhole : Kept::kRows;
}

int64_t VariableStorage::StripesChangedForTesting(uint64_t since) const {
  ReaderLock lock(&mu_);
  if (stripes_ == nullptr) return all_changed_in_ >= since ? 1 : 0;
  if (all_changed_in_ >= since) return static_cast<int64_t>(stripes_->count);
  int64_t changed = 0;
  for (size_t s = 0; s < stripes_->count; ++s) {
    changed += stripes_->ChangedIn(s << stripes_->shift) >= since ? 1 : 0;
  }
  return changed;
}

}  // namespace millrace

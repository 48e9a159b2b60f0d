// SPDX-License-Identifier: Apache-2.0
//
// Row updates: what they check and make ready under the variables' locks, and where rows are
// written while readers hold the buffer. variable_row_loops.h has the loops.
#include <atomic>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/variable_lock_set.h"
#include "runtime/variable_row_access.h"
#include "runtime/variable_row_loops.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_stripes.h"

namespace millrace {

bool VariableStorage::IsToLeaveReader() const {
  // A checkpoint's or a step's reader is gone by then; the copy costs less than the updates did.
  constexpr int kUpdatesBeside = 256;
  constexpr size_t kMostBytes = size_t{4} << 20;  // a millisecond
  return frozen_ && stripes_->updates_beside.load(std::memory_order_relaxed) >= kUpdatesBeside &&
         stripes_->IsAnyApart() && stripes_->num_rows * stripes_->row_bytes <= kMostBytes;
}

bool VariableStorage::IsReadyForRows() const {
  return stripes_ != nullptr && !(frozen_ && !stripes_->target.has_value() && OwnsValue()) &&
         !IsToLeaveReader();
}

Status VariableStorage::MakeReadyForRows() {
  Tensor old_spare;  // freed without the lock
  WriterLock lock(&mu_);
  if (!value_.has_value()) return Uninitialized();  // cleared since the caller looked
  MR_RETURN_IF_ERROR(CheckHasRows());
  if (stripes_ == nullptr) {
    stripes_ = std::make_unique<Stripes>(value_.dim(0), RowBytes());
    frozen_ = !OwnsValue();
    old_spare = std::exchange(spare_, Tensor());
    ++generation_;
  } else if (IsToLeaveReader()) {
    stripes_->updates_beside.store(0, std::memory_order_relaxed);
    // Without memory for it rows go on while the buffer has its reader.
    if (Flatten().ok()) frozen_ = false;
  } else if (!IsReadyForRows()) {
    frozen_ = false;
  }
  return absl::OkStatus();
}

template <typename Index>
Status VariableStorage::TakeRowsApart(absl::Span<const Index> indices) {
  Stripes& stripes = *stripes_;
  if (stripes.row_bytes == 0) return absl::OkStatus();
  stripes.updates_beside.fetch_add(1, std::memory_order_relaxed);
  char* const buffer = static_cast<char*>(value_.mutable_raw_data());
  int64_t copied = 0;
  bool has_memory = true;
  for (size_t i = 0; has_memory && i < indices.size(); ++i) {
    const size_t s = static_cast<size_t>(indices[i]) >> stripes.shift;
    if (stripes.IsApart(s)) continue;
    has_memory = stripes.WithStripe(s, [&] { return stripes.TakeApart(s, buffer, &copied); });
  }
  bytes_copied_.fetch_add(copied, std::memory_order_relaxed);
  if (has_memory) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("Variable '", name_, "' must keep ", stripes.stripe_bytes(),
                   " bytes of rows for a reader, got no memory for them"));
}

Status VariableStorage::ReturnStripes(size_t most) {
  Stripes& stripes = *stripes_;
  if (!stripes.IsAnyApart()) return absl::OkStatus();
  char* const buffer = static_cast<char*>(value_.mutable_raw_data());
  int64_t copied = 0;
  size_t s = stripes.next_return.load(std::memory_order_relaxed);
  for (size_t seen = 0; most > 0 && seen < stripes.count; ++seen) {
    if (++s >= stripes.count) s = 0;
    if (!stripes.IsApart(s)) continue;
    stripes.WithStripe(s, [&] {
      stripes.Return(s, buffer, &copied);
      return true;
    });
    --most;
  }
  stripes.next_return.store(s, std::memory_order_relaxed);
  bytes_copied_.fetch_add(copied, std::memory_order_relaxed);
  return absl::OkStatus();
}

template <typename Index>
Status VariableStorage::UpdateRows(absl::Span<VariableStorage* const> variables,
                                   absl::Span<const Index> indices, const RowUpdateOptions& options,
                                   absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check,
                                   absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)>
                                       update) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Rows for which others may be kept out: some ten microseconds.
  constexpr size_t kFewRows = 1024;

  if (variables.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const LockSet::Sorted sorted, LockSet::Sort(variables));
  const bool several = options.update_several && !options.parallel_for &&
                       indices.size() <= kFewRows &&
                       variables.size() <= RowUpdateLoops<Index>::kFewVariables;
  for (bool made_ready = false;; made_ready = true) {
    {
      const LockSet lock =
          several && !options.exclusive ? LockSet(sorted) : LockSet(sorted, options.exclusive);
      MR_ASSIGN_OR_RETURN(const bool ready, CheckRowUpdate(variables, indices, made_ready, check));
      if (ready) {
        MR_RETURN_IF_ERROR(MakeRowsWritable(variables, indices));
        NoteUpdate(variables);
        WriteRows(variables, sorted, indices, options, several && lock.is_exclusive(), update);
        return absl::OkStatus();
      }
    }
    for (VariableStorage* v : variables) MR_RETURN_IF_ERROR(v->MakeReadyForRows());
  }
}

template <typename Index>
StatusOr<bool> VariableStorage::CheckRowUpdate(
    absl::Span<VariableStorage* const> variables, absl::Span<const Index> indices, bool made_ready,
    absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  absl::InlinedVector<Shape, 4> shapes;
  for (const VariableStorage* v : variables) {
    if (!v->value_.has_value()) return v->Uninitialized();
    shapes.push_back(v->value_.shape());
  }
  MR_RETURN_IF_ERROR(check(shapes));
  bool ready = true;
  for (const VariableStorage* v : variables) {
    MR_RETURN_IF_ERROR(v->CheckHasRows());
    if (v->value_.dim(0) != variables[0]->value_.dim(0)) {
      return InvalidArgument("Variables '", variables[0]->name_, "' and '", v->name_,
                             "' must have the same number of rows, got shapes ",
                             variables[0]->value_.shape().ToString(), " and ",
                             v->value_.shape().ToString());
    }
    // A buffer that is still kept the second time has found a new reader: rows work then, too.
    ready &= v->stripes_ != nullptr && (made_ready || v->IsReadyForRows());
  }
  MR_RETURN_IF_ERROR(CheckRowIndices(indices, variables[0]->value_.dim(0)));
  return ready;
}

template <typename Index>
Status VariableStorage::MakeRowsWritable(absl::Span<VariableStorage* const> variables,
                                         absl::Span<const Index> indices)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Stripes that one call returns at most: a fraction of a millisecond.
  constexpr size_t kReturnAtOnce = 32;
  for (VariableStorage* v : variables) {
    MR_RETURN_IF_ERROR(v->frozen_ ? v->TakeRowsApart(indices) : v->ReturnStripes(kReturnAtOnce));
  }
  return absl::OkStatus();
}

template <typename Index>
void VariableStorage::WriteRows(
    absl::Span<VariableStorage* const> variables, absl::Span<VariableStorage* const> by_address,
    absl::Span<const Index> indices, const RowUpdateOptions& options, bool several,
    absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)> update)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Of all variables: nothing goes apart while the locks are held. Then the loop needs no
  // stripes, which may be far from the caches.
  bool together = true;
  absl::InlinedVector<RecordMember, 4> members;
  for (VariableStorage* v : variables) {
    together &= !v->frozen_ && !v->stripes_->IsAnyApart();
    members.push_back({static_cast<char*>(v->value_.mutable_raw_data()), v->RowBytes(),
                       v->stripes_.get(), &v->row_locks_});
  }
  absl::InlinedVector<Stripes*, 4> lockers;
  for (VariableStorage* v : by_address) lockers.push_back(v->stripes_.get());
  const RowUpdateLoops<Index> loops{.members = members,
                                    .lockers = lockers,
                                    .indices = indices,
                                    .update = update,
                                    .is_together = together,
                                    .is_exclusive = options.exclusive};
  // Also when `update` throws: rows before that have changed.
  struct MarkChanged {
    ~MarkChanged() ABSL_NO_THREAD_SAFETY_ANALYSIS {
      for (VariableStorage* v : variables) {
        v->stripes_->Stamp(indices);
        v->version_.fetch_add(1, std::memory_order_release);
      }
    }
    const absl::Span<VariableStorage* const> variables;
    const absl::Span<const Index> indices;
  };
  const MarkChanged mark_changed{variables, indices};
  if (several) {
    loops.RunSeveral(options);
  } else if (options.parallel_for) {
    loops.RunOnThreads(options);
  } else {
    loops.RunInOrder();
  }
}

template Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const>, absl::Span<const int32_t>, const RowUpdateOptions&,
    absl::FunctionRef<Status(absl::Span<const Shape>)>,
    absl::FunctionRef<void(int64_t, absl::Span<char* const>)>);
template Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const>, absl::Span<const int64_t>, const RowUpdateOptions&,
    absl::FunctionRef<Status(absl::Span<const Shape>)>,
    absl::FunctionRef<void(int64_t, absl::Span<char* const>)>);

}  // namespace millrace

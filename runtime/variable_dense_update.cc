// SPDX-License-Identifier: Apache-2.0
//
// Dense updates: of whole variables, in place where nobody else holds the buffer, else into a
// second one. All rows are brought into the buffer first.
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "core/dcheck.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/variable_lock_set.h"
#include "runtime/variable_storage.h"
#include "runtime/variable_stripes.h"

namespace millrace {

Status VariableStorage::Flatten() {
  if (stripes_ == nullptr) return absl::OkStatus();
  Stripes& stripes = *stripes_;
  if (!stripes.IsAnyApart()) {
    stripes.target = Tensor();
    ++generation_;
    return absl::OkStatus();
  }
  const bool into_buffer = !stripes.target.has_value() && OwnsValue();
  if (!into_buffer && !stripes.target.has_value()) {
    MR_ASSIGN_OR_RETURN(stripes.target, Tensor::Allocate(dtype_, value_.shape()));
  }
  int64_t copied = 0;
  char* const buffer = static_cast<char*>(value_.mutable_raw_data());
  for (size_t s = 0; s < stripes.count; ++s) {
    into_buffer ? stripes.Return(s, buffer, &copied) : stripes.MoveToTarget(s, buffer, &copied);
  }
  if (!into_buffer) value_ = stripes.TakeTarget();
  MR_DCHECK(!stripes.IsAnyApart(), "a flat variable has all rows in its buffer");
  bytes_copied_.fetch_add(copied, std::memory_order_relaxed);
  ++generation_;
  return absl::OkStatus();
}

Status VariableStorage::UpdateDense(
    absl::Span<VariableStorage* const> variables,
    absl::FunctionRef<Status(absl::Span<const Tensor> old)> check,
    absl::FunctionRef<Status(absl::Span<const Tensor> old, absl::Span<Tensor> fresh)> update)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MR_ASSIGN_OR_RETURN(const LockSet::Sorted sorted, LockSet::Sort(variables));
  LockSet lock(sorted, /*exclusive=*/true);
  for (const VariableStorage* v : variables) {
    if (!v->value_.has_value()) return v->Uninitialized();
  }
  for (VariableStorage* v : variables) MR_RETURN_IF_ERROR(v->Flatten());
  absl::InlinedVector<bool, 4> in_place;
  for (const VariableStorage* v : variables) in_place.push_back(v->OwnsValue());
  absl::InlinedVector<Tensor, 4> old;
  for (const VariableStorage* v : variables) old.push_back(v->value_);
  MR_RETURN_IF_ERROR(check(old));
  NoteUpdate(variables);
  for (VariableStorage* v : variables) v->updated_whole_.store(true, std::memory_order_relaxed);

  absl::InlinedVector<Tensor, 4> fresh;
  for (size_t i = 0; i < variables.size(); ++i) {
    VariableStorage* v = variables[i];
    if (in_place[i]) {
      fresh.push_back(v->value_);
    } else if (v->spare_.has_value() && v->spare_.shape() == v->value_.shape() &&
               v->spare_.BufferIsUnique()) {
      fresh.push_back(std::exchange(v->spare_, Tensor()));
    } else {
      MR_ASSIGN_OR_RETURN(Tensor t, Tensor::Allocate(v->dtype_, v->value_.shape()));
      fresh.push_back(std::move(t));
    }
  }
  Status status;
  try {
    status = update(old, absl::MakeSpan(fresh));
  } catch (...) {
    for (size_t i = 0; i < variables.size(); ++i) {
      if (in_place[i]) variables[i]->Changed();  // in part
    }
    throw;
  }
  for (size_t i = 0; i < variables.size(); ++i) {
    VariableStorage* v = variables[i];
    MR_DCHECK(v->stripes_ == nullptr || !v->stripes_->IsAnyApart(),
              "while a variable is updated whole none of its rows goes apart");
    if (in_place[i]) {
      v->Changed();  // also after an error: it may differ
    } else if (status.ok()) {
      v->spare_ = std::exchange(v->value_, std::move(fresh[i]));
      v->frozen_ = false;
      v->Changed();
    } else {
      v->spare_ = std::move(fresh[i]);
    }
  }
  return status;
}

}  // namespace millrace

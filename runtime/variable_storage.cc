// SPDX-License-Identifier: Apache-2.0
#include "runtime/variable_storage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/uninitialized.h"
#include "runtime/variable_stripes.h"

namespace millrace {

VariableStorage::VariableStorage(std::string name, DType dtype, PartialShape shape)
    : name_(std::move(name)), dtype_(dtype), declared_shape_(std::move(shape)) {}

VariableStorage::~VariableStorage() = default;

Status VariableStorage::Uninitialized() const { return UninitializedVariable(name_); }

std::string VariableStorage::DebugString() const {
  ReaderLock lock(&mu_);
  return absl::StrCat(
      "Var '", name_, "' of type ", DTypeName(dtype_), ": ",
      value_.has_value() ? absl::StrCat("shape ", value_.shape().ToString()) : "uninitialized");
}

bool VariableStorage::IsInitialized() const { return has_value_.load(std::memory_order_acquire); }

StatusOr<Shape> VariableStorage::shape() const {
  ReaderLock lock(&mu_);
  if (!value_.has_value()) return Uninitialized();
  return value_.shape();
}

StatusOr<Tensor> VariableStorage::Read() const {
  {
    ReaderLock lock(&mu_);
    if (!value_.has_value()) return Uninitialized();
    if (stripes_ == nullptr || (frozen_ && !stripes_->IsAnyApart())) return value_;
  }
  {
    WriterLock lock(&mu_);  // waits for row updates that write into the buffer
    if (!value_.has_value()) return Uninitialized();
    if (stripes_ == nullptr || !stripes_->IsAnyApart()) {
      frozen_ = true;
      return value_;
    }
  }
  return ReadTogether();
}

Status VariableStorage::Assign(Tensor value, bool validate_shape) {
  if (value.dtype() != dtype_) {
    return InvalidArgument("Variable '", name_, "' must be assigned a ", DTypeName(dtype_),
                           " tensor, got ", DTypeName(value.dtype()));
  }
  if (validate_shape && !declared_shape_.IsCompatibleWith(value.shape())) {
    return InvalidArgument("Variable '", name_, "' must be assigned a value of shape ",
                           declared_shape_.ToString(), ", got shape ", value.shape().ToString());
  }
  // A variable lives long and is written: no memory that is somebody else's becomes its value.
  if (value.buffer() && value.buffer()->is_read_only()) {
    MR_ASSIGN_OR_RETURN(value, value.Clone());
  }
  Tensor old_value, old_spare;  // freed without the lock
  std::unique_ptr<Stripes> old_stripes;
  WriterLock lock(&mu_);
  old_stripes = std::move(stripes_);
  old_value = std::exchange(value_, std::move(value));
  old_spare = std::exchange(spare_, Tensor());
  has_value_.store(true, std::memory_order_release);
  ++generation_;
  updated_whole_.store(false, std::memory_order_relaxed);
  Changed();
  return absl::OkStatus();
}

void VariableStorage::Clear() {
  Tensor old_value, old_spare;  // freed without the lock
  std::unique_ptr<Stripes> old_stripes;
  WriterLock lock(&mu_);
  old_stripes = std::move(stripes_);
  old_value = std::exchange(value_, Tensor());
  old_spare = std::exchange(spare_, Tensor());
  has_value_.store(false, std::memory_order_release);
  ++generation_;
  updated_whole_.store(false, std::memory_order_relaxed);
  Changed();
}

void VariableStorage::Changed() {
  all_changed_in_ = Stripes::epoch.load(std::memory_order_acquire);
  version_.fetch_add(1, std::memory_order_release);
}

void VariableStorage::NoteUpdate(absl::Span<VariableStorage* const> variables) {
  for (VariableStorage* v : variables) {
    const VariableStorage* const known = v->updated_with();
    // Alone after others: the record stays what it is.
    if (known == variables[0] || (variables.size() == 1 && known != nullptr)) continue;
    v->updated_with_.store(variables[0], std::memory_order_relaxed);
  }
}

Status VariableStorage::CheckHasRows() const {
  if (!value_.has_value()) return Uninitialized();
  if (!IsMemcopyable(dtype_)) {
    return InvalidArgument("Variable '", name_,
                           "' must be of a numeric type to be used by rows, got ",
                           DTypeName(dtype_));
  }
  if (value_.rank() < 1) {
    return InvalidArgument("Variable '", name_,
                           "' must be at least a vector to be used by rows, got ", "shape ",
                           value_.shape().ToString());
  }
  return absl::OkStatus();
}

VariableStorage::Counts VariableStorage::CountsForTesting() const {
  ReaderLock lock(&mu_);
  return {bytes_copied_.load(std::memory_order_relaxed), row_locks_.load(std::memory_order_relaxed),
          stripes_ == nullptr ? 0 : stripes_->num_apart.load(std::memory_order_relaxed),
          most_bytes_under_row_locks_.load(std::memory_order_relaxed),
          most_bytes_held_.load(std::memory_order_relaxed)};
}

}  // namespace millrace

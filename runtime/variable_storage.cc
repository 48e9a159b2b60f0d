// SPDX-License-Identifier: Apache-2.0
#include "runtime/variable_storage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"

namespace millrace {
namespace {

// Rows that the processor fetches ahead: enough to hide DRAM latency behind copies of 256 bytes.
constexpr size_t kRowsAhead = 8;
// Of a row, the first lines are fetched ahead; the hardware sees the rest coming.
constexpr size_t kLinesAhead = 4;
constexpr size_t kLineBytes = 64;

template <int kForWrite>
inline void PrefetchRow(const char* row, size_t row_bytes) {
  const size_t bytes = std::min(row_bytes, kLinesAhead * kLineBytes);
  for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(row + at, kForWrite);
}

// Held for the time of one row: a few hundred nanoseconds.
class SpinLock {
 public:
  void Lock() {
    while (held_.exchange(true, std::memory_order_acquire)) WaitUntilFree();
  }
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

template <typename Index>
Status CheckIndices(absl::Span<const Index> indices, int64_t num_rows) {
  bool bad = false;  // one pass without branches
  for (const Index index : indices) {
    bad |= static_cast<uint64_t>(int64_t{index}) >= static_cast<uint64_t>(num_rows);
  }
  if (!bad) return absl::OkStatus();
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] < 0 || indices[i] >= num_rows) {
      return absl::InvalidArgumentError(
          absl::StrCat("indices[", i, "] = ", indices[i], " is not in [0, ", num_rows, ")"));
    }
  }
  return absl::InternalError("an index is out of range and none is");
}

}  // namespace

// Row r belongs to stripe r mod kCount: neighbours (the frequent ids of a vocabulary) lie apart.
struct VariableStorage::Stripes {
  static constexpr size_t kCount = 2048;
  static size_t Of(int64_t row) { return static_cast<size_t>(row) % kCount; }
  std::array<SpinLock, kCount> locks;
};

class ABSL_SCOPED_LOCKABLE VariableStorage::LockSet {
 public:
  LockSet(absl::Span<VariableStorage* const> by_address,
          bool exclusive) ABSL_NO_THREAD_SAFETY_ANALYSIS : by_address_(by_address),
                                                           exclusive_(exclusive) {
    for (VariableStorage* v : by_address_) exclusive_ ? v->mu_.Lock() : v->mu_.ReaderLock();
  }
  ~LockSet() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (VariableStorage* v : by_address_) exclusive_ ? v->mu_.Unlock() : v->mu_.ReaderUnlock();
  }
  LockSet(const LockSet&) = delete;
  LockSet& operator=(const LockSet&) = delete;

  using Sorted = absl::InlinedVector<VariableStorage*, 4>;
  // InvalidArgument when one comes twice.
  static StatusOr<Sorted> Sort(absl::Span<VariableStorage* const> variables) {
    Sorted sorted(variables.begin(), variables.end());
    std::sort(sorted.begin(), sorted.end(), std::less<VariableStorage*>());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "An update must name each variable once, got '", (*twice)->name(), "' twice"));
    }
    return sorted;
  }

 private:
  const absl::Span<VariableStorage* const> by_address_;
  const bool exclusive_;
};

VariableStorage::VariableStorage(std::string name, DType dtype, PartialShape shape)
    : name_(std::move(name)), dtype_(dtype), declared_shape_(std::move(shape)) {}

VariableStorage::~VariableStorage() = default;

Status VariableStorage::Uninitialized() const {
  return absl::FailedPreconditionError(
      absl::StrCat("Attempting to use uninitialized value ", name_));
}

bool VariableStorage::OwnsValue() const {
  return value_.num_elements() == 0 || value_.BufferIsUnique();
}

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
  for (;;) {
    Shape shape;
    {
      ReaderLock lock(&mu_);
      if (!value_.has_value()) return Uninitialized();
      if (!by_rows_) return value_;
      shape = value_.shape();
    }
    // Memory first, then the lock that keeps all rows still.
    MR_ASSIGN_OR_RETURN(Tensor copy, Tensor::Allocate(dtype_, shape));
    WriterLock lock(&mu_);
    if (!value_.has_value()) return Uninitialized();
    if (value_.shape() != shape) continue;  // assigned in between
    const absl::Span<const char> bytes = value_.bytes();
    if (!bytes.empty()) std::memcpy(copy.mutable_raw_data(), bytes.data(), bytes.size());
    return copy;
  }
}

Status VariableStorage::Assign(Tensor value, bool validate_shape) {
  if (value.dtype() != dtype_) {
    return absl::InvalidArgumentError(absl::StrCat("Variable '", name_, "' must be assigned a ",
                                                   DTypeName(dtype_), " tensor, got ",
                                                   DTypeName(value.dtype())));
  }
  if (validate_shape && !declared_shape_.IsCompatibleWith(value.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("Variable '", name_, "' must be assigned a value of shape ",
                     declared_shape_.ToString(), ", got shape ", value.shape().ToString()));
  }
  Tensor old_value, old_spare;  // freed without the lock
  WriterLock lock(&mu_);
  if (by_rows_ && value.num_elements() != 0 && !value.BufferIsUnique()) {
    MR_ASSIGN_OR_RETURN(value, value.Clone());
  }
  old_value = std::exchange(value_, std::move(value));
  old_spare = std::exchange(spare_, Tensor());
  has_value_.store(true, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
  return absl::OkStatus();
}

void VariableStorage::Clear() {
  Tensor old_value, old_spare;  // freed without the lock
  WriterLock lock(&mu_);
  old_value = std::exchange(value_, Tensor());
  old_spare = std::exchange(spare_, Tensor());
  has_value_.store(false, std::memory_order_release);
  version_.fetch_add(1, std::memory_order_release);
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
  absl::InlinedVector<bool, 4> in_place;
  for (const VariableStorage* v : variables) in_place.push_back(v->OwnsValue());
  absl::InlinedVector<Tensor, 4> old;
  for (const VariableStorage* v : variables) old.push_back(v->value_);
  MR_RETURN_IF_ERROR(check(old));

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
  const Status status = update(old, absl::MakeSpan(fresh));
  for (size_t i = 0; i < variables.size(); ++i) {
    VariableStorage* v = variables[i];
    if (in_place[i]) {
      v->version_.fetch_add(1, std::memory_order_release);  // also after an error: it may differ
    } else if (status.ok()) {
      v->spare_ = std::exchange(v->value_, std::move(fresh[i]));
      v->version_.fetch_add(1, std::memory_order_release);
    } else {
      v->spare_ = std::move(fresh[i]);
    }
  }
  return status;
}

Status VariableStorage::CheckHasRows() const {
  if (!value_.has_value()) return Uninitialized();
  if (!IsMemcopyable(dtype_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Variable '", name_, "' must be of a numeric type to be used by rows, got ",
                     DTypeName(dtype_)));
  }
  if (value_.rank() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("Variable '", name_, "' must be at least a vector to be used by rows, got ",
                     "shape ", value_.shape().ToString()));
  }
  return absl::OkStatus();
}

size_t VariableStorage::RowBytes() const {
  return static_cast<size_t>(value_.shape().NumElements(1, value_.rank())) * DTypeSize(dtype_);
}

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
  MR_RETURN_IF_ERROR(CheckIndices(indices, value_.dim(0)));
  const size_t row_bytes = RowBytes();
  if (row_bytes == 0) return absl::OkStatus();
  const char* const base = static_cast<const char*>(value_.raw_data());
  const auto row_at = [&](size_t i) { return base + static_cast<size_t>(indices[i]) * row_bytes; };
  const size_t n = indices.size();
  for (size_t i = 0; i < std::min(n, kRowsAhead); ++i) PrefetchRow<0>(row_at(i), row_bytes);
  SpinLock* held = nullptr;
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) PrefetchRow<0>(row_at(i + kRowsAhead), row_bytes);
    if (by_rows_) {
      SpinLock* const stripe = &stripes_->locks[Stripes::Of(indices[i])];
      if (stripe != held) {
        if (held != nullptr) held->Unlock();
        held = stripe;
        held->Lock();
      }
    }
    std::memcpy(out + i * row_bytes, row_at(i), row_bytes);
  }
  if (held != nullptr) held->Unlock();
  return absl::OkStatus();
}

Status VariableStorage::StartRowUpdates() {
  Tensor old_value, old_spare;  // freed without the lock
  WriterLock lock(&mu_);
  if (by_rows_) return absl::OkStatus();
  if (!value_.has_value()) return Uninitialized();  // cleared since the caller looked
  if (!OwnsValue()) {
    MR_ASSIGN_OR_RETURN(Tensor own, value_.Clone());
    old_value = std::exchange(value_, std::move(own));
  }
  old_spare = std::exchange(spare_, Tensor());
  stripes_ = std::make_unique<Stripes>();
  by_rows_ = true;
  return absl::OkStatus();
}

template <typename Index>
Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const> variables, absl::Span<const Index> indices, bool exclusive,
    absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check,
    absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)> update)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  MR_ASSIGN_OR_RETURN(const LockSet::Sorted sorted, LockSet::Sort(variables));
  for (;;) {
    {
      LockSet lock(sorted, exclusive);
      absl::InlinedVector<Shape, 4> shapes;
      for (const VariableStorage* v : variables) {
        if (!v->value_.has_value()) return v->Uninitialized();
        shapes.push_back(v->value_.shape());
      }
      MR_RETURN_IF_ERROR(check(shapes));
      bool all_by_rows = true;
      for (const VariableStorage* v : variables) {
        MR_RETURN_IF_ERROR(v->CheckHasRows());
        if (v->value_.dim(0) != variables[0]->value_.dim(0)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "Variables '", variables[0]->name_, "' and '", v->name_,
              "' must have the same number of rows, got shapes ",
              variables[0]->value_.shape().ToString(), " and ", v->value_.shape().ToString()));
        }
        all_by_rows &= v->by_rows_;
      }
      if (variables.empty()) return absl::OkStatus();
      MR_RETURN_IF_ERROR(CheckIndices(indices, variables[0]->value_.dim(0)));
      if (all_by_rows) {
        const size_t k = variables.size();
        absl::InlinedVector<char*, 4> base, rows(k);
        absl::InlinedVector<size_t, 4> row_bytes;
        for (VariableStorage* v : variables) {
          base.push_back(static_cast<char*>(v->value_.mutable_raw_data()));
          row_bytes.push_back(v->RowBytes());
        }
        constexpr size_t kNone = Stripes::kCount;
        size_t held = kNone;
        const auto unlock = [&] {
          for (VariableStorage* v : sorted) v->stripes_->locks[held].Unlock();
        };
        for (size_t i = 0; i < indices.size(); ++i) {
          const size_t row = static_cast<size_t>(indices[i]);
          if (i + kRowsAhead < indices.size()) {
            const size_t ahead = static_cast<size_t>(indices[i + kRowsAhead]);
            for (size_t j = 0; j < k; ++j) {
              PrefetchRow<1>(base[j] + ahead * row_bytes[j], row_bytes[j]);
            }
          }
          if (!exclusive && Stripes::Of(indices[i]) != held) {
            if (held != kNone) unlock();
            held = Stripes::Of(indices[i]);
            for (VariableStorage* v : sorted) v->stripes_->locks[held].Lock();
          }
          for (size_t j = 0; j < k; ++j) rows[j] = base[j] + row * row_bytes[j];
          update(static_cast<int64_t>(i), rows);
        }
        if (held != kNone) unlock();
        for (VariableStorage* v : variables) v->version_.fetch_add(1, std::memory_order_release);
        return absl::OkStatus();
      }
    }
    // At most once per variable and process: after that the loop ends.
    for (VariableStorage* v : variables) MR_RETURN_IF_ERROR(v->StartRowUpdates());
  }
}

template Status VariableStorage::GatherRows(absl::Span<const int32_t>, const Shape&, char*) const;
template Status VariableStorage::GatherRows(absl::Span<const int64_t>, const Shape&, char*) const;
template Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const>, absl::Span<const int32_t>, bool,
    absl::FunctionRef<Status(absl::Span<const Shape>)>,
    absl::FunctionRef<void(int64_t, absl::Span<char* const>)>);
template Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const>, absl::Span<const int64_t>, bool,
    absl::FunctionRef<Status(absl::Span<const Shape>)>,
    absl::FunctionRef<void(int64_t, absl::Span<char* const>)>);

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "runtime/variable_storage.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "core/dcheck.h"
#include "core/fail_point.h"
#include "runtime/variable_stripes.h"

namespace millrace {
namespace {

// Rows that the processor fetches ahead, into the second-level cache: the fill buffers of the first
// are too few to hide DRAM latency behind copies of 256 bytes.
constexpr size_t kRowsAhead = 16;
// Of a row, the first lines are fetched ahead; the hardware sees the rest coming.
constexpr size_t kLinesAhead = 4;
constexpr size_t kLineBytes = 64;

inline void PrefetchRow(const char* row, size_t row_bytes) {
  const size_t bytes = std::min(row_bytes, kLinesAhead * kLineBytes);
  for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(row + at, 0, 2);
}

template <typename Index>
Status CheckIndices(absl::Span<const Index> indices, int64_t num_rows) {
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

}  // namespace

class ABSL_SCOPED_LOCKABLE VariableStorage::LockSet {
 public:
  LockSet(absl::Span<VariableStorage* const> by_address,
          bool exclusive) ABSL_NO_THREAD_SAFETY_ANALYSIS : by_address_(by_address),
                                                           exclusive_(exclusive) {
    for (VariableStorage* v : by_address_) exclusive_ ? v->mu_.Lock() : v->mu_.ReaderLock();
  }
  // Exclusively where all are free at this moment, shared otherwise.
  explicit LockSet(absl::Span<VariableStorage* const> by_address) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : by_address_(by_address),
        exclusive_(TryLock()) {
    if (exclusive_) return;
    for (VariableStorage* v : by_address_) v->mu_.ReaderLock();
  }
  ~LockSet() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (VariableStorage* v : by_address_) exclusive_ ? v->mu_.Unlock() : v->mu_.ReaderUnlock();
  }
  LockSet(const LockSet&) = delete;
  LockSet& operator=(const LockSet&) = delete;

  bool is_exclusive() const { return exclusive_; }

  using Sorted = absl::InlinedVector<VariableStorage*, 4>;
  // InvalidArgument when one comes twice.
  static StatusOr<Sorted> Sort(absl::Span<VariableStorage* const> variables) {
    Sorted sorted(variables.begin(), variables.end());
    std::sort(sorted.begin(), sorted.end(), std::less<VariableStorage*>());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
      return InvalidArgument("An update must name each variable once, got '", (*twice)->name(),
                             "' twice");
    }
    return sorted;
  }

 private:
  bool TryLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (size_t k = 0; k < by_address_.size(); ++k) {
      if (by_address_[k]->mu_.TryLock()) continue;
      while (k > 0) by_address_[--k]->mu_.Unlock();
      return false;
    }
    return true;
  }

  const absl::Span<VariableStorage* const> by_address_;
  const bool exclusive_;
};

VariableStorage::VariableStorage(std::string name, DType dtype, PartialShape shape)
    : name_(std::move(name)), dtype_(dtype), declared_shape_(std::move(shape)) {}

VariableStorage::~VariableStorage() = default;

Status VariableStorage::Uninitialized() const {
  return FailedPrecondition("Attempting to use uninitialized value ", name_);
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

StatusOr<Tensor> VariableStorage::ReadTogether() const {
  // Copied per hold of mu_, so that an exclusive lock waits some ten microseconds.
  constexpr size_t kStripesAtOnce = 8;
  MutexLock one(&together_mu_);
  for (;;) {
    Tensor target, old_value;  // freed without the lock
    Shape shape;
    uint64_t generation;
    bool kept;  // a reader holds the buffer
    {
      ReaderLock lock(&mu_);
      if (!value_.has_value()) return Uninitialized();
      shape = value_.shape();
      generation = generation_;
      kept = !OwnsValue();
    }
    if (kept) {
      MR_ASSIGN_OR_RETURN(target, Tensor::Allocate(dtype_, shape));
      MR_RETURN_IF_ERROR(FailPoint("variable/target_allocated"));
    }
    size_t count;
    {
      WriterLock lock(&mu_);
      if (generation_ != generation) continue;
      if (stripes_ == nullptr || !stripes_->IsAnyApart()) {
        frozen_ = true;
        return value_;
      }
      if (kept) {
        stripes_->target = std::move(target);
        // The reader may have gone and rows been written in place meanwhile: from here on none is
        // written into the buffer, nor brought back to it, until the target takes its place.
        frozen_ = true;
      } else if (OwnsValue()) {
        frozen_ = false;
      } else {
        continue;
      }
      count = stripes_->count;
    }
    bool moved = true;
    for (size_t begin = 0; moved && begin < count; begin += kStripesAtOnce) {
      if (begin > 0) MR_RETURN_IF_ERROR(FailPoint("variable/stripes_moved"));
      ReaderLock lock(&mu_);
      // Another Read may have shared the buffer again; then nothing may be written into it.
      moved = generation_ == generation && (kept || !frozen_);
      if (!moved) break;
      int64_t copied = 0;
      char* const buffer = static_cast<char*>(value_.mutable_raw_data());
      for (size_t s = begin; s < std::min(count, begin + kStripesAtOnce); ++s) {
        if (!kept && !stripes_->IsApart(s)) continue;
        stripes_->WithStripe(s, [&] {
          kept ? stripes_->MoveToTarget(s, buffer, &copied) : stripes_->Return(s, buffer, &copied);
          return true;
        });
      }
      bytes_copied_.fetch_add(copied, std::memory_order_relaxed);
    }
    WriterLock lock(&mu_);
    if (!moved || generation_ != generation) continue;
    MR_DCHECK(!kept || stripes_->target.has_value(),
              "the maker of a target finds it again while the generation is the same");
    if (kept) old_value = std::exchange(value_, stripes_->TakeTarget());
    if (stripes_->IsAnyApart()) continue;
    frozen_ = true;
    return value_;
  }
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

void VariableStorage::NoteUpdate(absl::Span<VariableStorage* const> variables) {
  for (VariableStorage* v : variables) {
    const VariableStorage* const known = v->updated_with();
    // Alone after others: the record stays what it is.
    if (known == variables[0] || (variables.size() == 1 && known != nullptr)) continue;
    v->updated_with_.store(variables[0], std::memory_order_relaxed);
  }
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

// --- Row updates ---------------------------------------------------------------------------------

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

namespace {

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

}  // namespace

template <typename Index>
Status VariableStorage::UpdateRows(absl::Span<VariableStorage* const> variables,
                                   absl::Span<const Index> indices, const RowUpdateOptions& options,
                                   absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check,
                                   absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)>
                                       update) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Below, sorting costs more than the locks it saves.
  constexpr size_t kSortFrom = 512;
  // Of the locks, as units of parallel work: enough for any machine, and long against their start.
  constexpr int64_t kParts = 64;
  static_assert(Stripes::kLocks % kParts == 0);
  // Stripes that one call returns at most: a fraction of a millisecond.
  constexpr size_t kReturnAtOnce = 32;
  // Rows for which others may be kept out: some ten microseconds.
  constexpr size_t kFewRows = 1024, kFewVariables = 8;

  if (variables.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const LockSet::Sorted sorted, LockSet::Sort(variables));
  const size_t k = variables.size();
  const bool several = options.update_several && !options.parallel_for &&
                       indices.size() <= kFewRows && k <= kFewVariables;
  for (bool made_ready = false;; made_ready = true) {
    {
      const LockSet lock =
          several && !options.exclusive ? LockSet(sorted) : LockSet(sorted, options.exclusive);
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
      MR_RETURN_IF_ERROR(CheckIndices(indices, variables[0]->value_.dim(0)));
      if (ready) {
        for (VariableStorage* v : variables) {
          MR_RETURN_IF_ERROR(v->frozen_ ? v->TakeRowsApart(indices)
                                        : v->ReturnStripes(kReturnAtOnce));
        }
        NoteUpdate(variables);
        // Of all variables: nothing goes apart while the locks are held. Then the loop needs no
        // stripes, which may be far from the caches.
        bool together = true;
        for (const VariableStorage* v : variables) {
          together &= !v->frozen_ && !v->stripes_->IsAnyApart();
        }
        struct Member {
          char* buffer;
          size_t row_bytes;
          Stripes* stripes;
          char* Locate(size_t row, bool is_together) const {
            return is_together ? buffer + row * row_bytes : stripes->Locate(buffer, row);
          }
        };
        absl::InlinedVector<Member, 4> members;
        absl::InlinedVector<Stripes*, 4> lockers;  // in the order of locks
        for (VariableStorage* v : variables) {
          members.push_back(
              {static_cast<char*>(v->value_.mutable_raw_data()), v->RowBytes(), v->stripes_.get()});
        }
        for (VariableStorage* v : sorted) lockers.push_back(v->stripes_.get());
        // All positions, as many different rows at a time as there are.
        const auto run_several = [&] {
          constexpr size_t kMostRows = 256;  // of all variables
          static_assert(kMostRows >= kFewVariables);
          const size_t most = kMostRows / k;
          // Rows of one lock are taken for the same.
          std::array<uint64_t, Stripes::kLocks / 64> taken{};
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
            const size_t lock_of_row = Stripes::LockOf(row);
            const uint64_t bit = uint64_t{1} << lock_of_row % 64;
            if (count == most || (taken[lock_of_row / 64] & bit) != 0) update_taken();
            taken[lock_of_row / 64] |= bit;
            for (size_t j = 0; j < k; ++j) {
              char* const at = members[j].Locate(row, together);
              PrefetchRow(at, members[j].row_bytes);
              rows[count * k + j] = at;
            }
            ++count;
          }
          update_taken();
        };
        // Positions [begin, end) of `order`, or of the indices themselves without one.
        const auto run = [&](const uint32_t* order, size_t begin, size_t end) {
          const auto position = [&](size_t p) { return order == nullptr ? p : order[p]; };
          const auto row_of = [&](size_t p) { return static_cast<size_t>(indices[position(p)]); };
          const auto prefetch = [&](size_t p) {
            const size_t row = row_of(p);
            for (const Member& m : members) {
              PrefetchRow(m.Locate(row, together), m.row_bytes);
            }
          };
          absl::InlinedVector<char*, 4> rows(k);
          RowRun locks(lockers);
          int64_t num_locks = 0;
          for (size_t p = begin; p < std::min(end, begin + kRowsAhead); ++p) prefetch(p);
          for (size_t p = begin; p < end;) {
            size_t run_end = options.exclusive ? end : p;
            while (run_end < end && locks.Add(row_of(run_end))) ++run_end;
            for (; p < run_end; ++p) {
              if (p + kRowsAhead < end) prefetch(p + kRowsAhead);
              for (size_t j = 0; j < k; ++j) rows[j] = members[j].Locate(row_of(p), together);
              update(static_cast<int64_t>(position(p)), rows);
            }
            num_locks += static_cast<int64_t>(locks.Unlock());
          }
          for (VariableStorage* v : variables) {
            v->row_locks_.fetch_add(num_locks, std::memory_order_relaxed);
          }
        };
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
        const size_t n = indices.size();
        // One thread goes by the gradient's rows, which lie together.
        if (several && lock.is_exclusive()) {
          run_several();
        } else if (!options.parallel_for || n < kSortFrom ||
                   n > std::numeric_limits<uint32_t>::max()) {
          run(nullptr, 0, n);
        } else {
          const ByLock<Stripes::kLocks> by_lock(indices);
          constexpr size_t kLocksOfPart = Stripes::kLocks / kParts;
          options.parallel_for(
              kParts, options.row_cost_ns * static_cast<double>(n) / static_cast<double>(kParts),
              [&](int64_t begin, int64_t end) {
                run(by_lock.order.data(), by_lock.first[static_cast<size_t>(begin) * kLocksOfPart],
                    by_lock.first[static_cast<size_t>(end) * kLocksOfPart]);
              });
        }
        return absl::OkStatus();
      }
    }
    for (VariableStorage* v : variables) MR_RETURN_IF_ERROR(v->MakeReadyForRows());
  }
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

// --- Walks ---------------------------------------------------------------------------------------

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

VariableStorage::Kept VariableStorage::HowKept(const Tensor& value) const {
  ReaderLock lock(&mu_);
  if (value.shape() != value_.shape() || !value.SharesBufferWith(value_)) return Kept::kPast;
  return stripes_ == nullptr ? Kept::kWhole : Kept::kRows;
}

VariableStorage::Counts VariableStorage::CountsForTesting() const {
  ReaderLock lock(&mu_);
  return {bytes_copied_.load(std::memory_order_relaxed), row_locks_.load(std::memory_order_relaxed),
          stripes_ == nullptr ? 0 : stripes_->num_apart.load(std::memory_order_relaxed),
          most_bytes_under_row_locks_.load(std::memory_order_relaxed),
          most_bytes_held_.load(std::memory_order_relaxed)};
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

template Status VariableStorage::GatherRows(absl::Span<const int32_t>, const Shape&, char*) const;
template Status VariableStorage::GatherRows(absl::Span<const int64_t>, const Shape&, char*) const;
template Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const>, absl::Span<const int32_t>, const RowUpdateOptions&,
    absl::FunctionRef<Status(absl::Span<const Shape>)>,
    absl::FunctionRef<void(int64_t, absl::Span<char* const>)>);
template Status VariableStorage::UpdateRows(
    absl::Span<VariableStorage* const>, absl::Span<const int64_t>, const RowUpdateOptions&,
    absl::FunctionRef<Status(absl::Span<const Shape>)>,
    absl::FunctionRef<void(int64_t, absl::Span<char* const>)>);

}  // namespace millrace

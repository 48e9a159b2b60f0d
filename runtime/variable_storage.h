// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_VARIABLE_STORAGE_H_
#define MILLRACE_RUNTIME_VARIABLE_STORAGE_H_

// VariableStorage: a variable: one tensor that outlives steps, with rows.
//
// Resource variables and the reference variables of old graphs use the same storage.
//
// What always holds:
//   * a tensor that Read() returned never changes under its holder;
//   * a row that GatherRows or CopyRows copied is never torn: it is the row before or after an
//     update, and with CopyRows so are the rows of several variables (a record) together;
//   * dense updates are serial per variable; of a row update, what meets one row happens in the
//     order of the indices, however many threads take part; nothing is lost;
//   * memory is reached only in the shape that was checked under the same locks: a shape that was
//     asked for earlier may be out of date, since Assign can change it at any time;
//   * rows are copied under the lock of the whole variable only by dense updates, which pass over
//     all of it anyway, and once for a reader that stays, in tables that are not large. Read and
//     row updates copy stripe by stripe, walks a few rows at a time; gathers go on meanwhile.
//
// A reader that holds on costs memory for the stripes (blocks of consecutive rows) that are written
// meanwhile, at most one buffer of the whole. variable_stripes.h says where rows are and how they
// are locked.
//
// Stamps: a stripe knows the epoch of its last change, which is version and dirty bit for any
// number of observers: NextEpoch() begins an epoch, CopyRows(..., since e) passes over what changed
// in epoch e or later. Epochs are the process's, so that one number serves all variables. An update
// stamps its stripes at its end: an epoch that starts later sees these stamps.
//
// A record is the rows of equal number of several storages (weight and slots, of any dtype and
// width). UpdateRows locks it as a whole, CopyRows copies it as a whole.
//
// Thread-safety: all methods, from any thread. Several storages are locked in address order, row
// locks after all of the former, by storage and number.
// Failure: FailedPrecondition "Attempting to use uninitialized value <name>" and the like;
// the word "uninitialized" is part of the Supervisor's protocol.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

struct VariableStripes;  // row locks, and where the rows are: variable_stripes.h

// How a row update is done.
struct RowUpdateOptions {
  // use_locking: nothing else reaches the variables during the call.
  bool exclusive = false;
  // Runs parts of a loop on several threads and waits (KernelContext::ParallelFor); empty: the
  // calling thread alone.
  std::function<void(int64_t n, double cost_ns,
                     absl::FunctionRef<void(int64_t begin, int64_t end)> body)>
      parallel_for = nullptr;
  // What the update of one row costs, for parallel_for.
  double row_cost_ns = 100;
  // The same update of `count` different rows at once, for positions first, first + 1, ...: `rows`
  // are those of position `first` in each variable, then those of the next one. A few rows that one
  // thread updates are given so where the variables are free at this moment: then nothing else
  // reaches them during the call, and no row is locked. Empty: one by one.
  std::function<void(int64_t first, int64_t count, absl::Span<char* const> rows)> update_several =
      nullptr;
};

class VariableStorage : public Resource {
 public:
  static constexpr const char* kTypeName = "Var";

  VariableStorage(std::string name, DType dtype, PartialShape shape);
  ~VariableStorage() override;

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  // As declared; the value's shape must be compatible when validate_shape is asked for.
  const PartialShape& declared_shape() const { return declared_shape_; }
  std::string DebugString() const override;

  bool IsInitialized() const;
  // The value's shape. FailedPrecondition when uninitialised.
  StatusOr<Shape> shape() const;

  // The value at one moment: waits for row updates that are under way. Copies nothing, except
  // after row updates while another reader holds the buffer: then the stripes that are apart from
  // the buffer (or the whole, once, while that reader stays), without stopping anybody.
  // FailedPrecondition when uninitialised.
  StatusOr<Tensor> Read() const;
  // Adopts the buffer when `value` is its only holder, otherwise shares it copy-on-write; copies at
  // once what is read-only, which is memory of others. InvalidArgument when dtype differs, or the
  // shape and `validate_shape`; ResourceExhausted without memory for a copy.
  Status Assign(Tensor value, bool validate_shape);
  // Uninitialised again (DestroyResourceOp, Reset).
  void Clear();

  // One dense update of one or more variables at once (a variable and its slots).
  // `update(old, fresh)`: reads old[i] and writes every element of fresh[i]; the two may be the
  // same memory (in place). All variables are locked for the time of the call. When update returns
  // an error, nothing that had a fresh buffer of its own changes (in-place ones may have).
  // FailedPrecondition when one is uninitialised; the same storage twice is InvalidArgument.
  // Shapes are checked by the caller through shapes(): `check(old)` runs under the locks before
  // any buffer is touched.
  static Status UpdateDense(
      absl::Span<VariableStorage* const> variables,
      absl::FunctionRef<Status(absl::Span<const Tensor> old)> check,
      absl::FunctionRef<Status(absl::Span<const Tensor> old, absl::Span<Tensor> fresh)> update);

  // Copies rows indices[i] (of dimension 0) of a value of shape `table` to out + i * row_bytes.
  // Memcopyable dtypes; no row is torn. InvalidArgument "indices[i] = v is not in [0, n)" for a bad
  // index. Aborted, with nothing copied, when the value has another shape by now: ask for shape()
  // again.
  template <typename Index>
  Status GatherRows(absl::Span<const Index> indices, const Shape& table, char* out) const;

  // Row update of one or more variables of equal first dimension: for each i, `update(i, rows)`
  // gets pointers to row indices[i] of each variable, under that row's lock. It is called for
  // several i at once with parallel_for, never for two of one row; for one row in the order of i.
  // `check(shapes)`, once or more under the locks before any row is touched, sees the shapes that
  // `update` will work on: the length of a row is known only there. Indices are all checked before
  // the first row is touched, too. ResourceExhausted, with no row changed, when there is no memory
  // for stripes that a reader needs as they are. `update` holds the locks of a few other rows, too:
  // it is short and uses no variable. What it throws passes through and leaves nothing locked; rows
  // that it has changed stay changed, and count as such.
  template <typename Index>
  static Status UpdateRows(absl::Span<VariableStorage* const> variables,
                           absl::Span<const Index> indices, const RowUpdateOptions& options,
                           absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check,
                           absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)> update);

  // --- For passes over all rows, or those that changed (saver/variable_rows.h) ---

  // Begins an epoch of changes and returns its number.
  static uint64_t NextEpoch();
  // Rows [begin, end) of every variable at outs[k], in memory of their own: each record as it is
  // at one moment, a few rows at a time. Skips ahead to the first stripe with a row that changed in
  // epoch `since` or later (0: every row) and ends before the next that did not: copied is
  // the range that is returned; empty at `end`: there is none. Aborted when a variable has another
  // shape than shapes[k] by now.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  static StatusOr<Range> CopyRows(absl::Span<VariableStorage* const> variables,
                                  absl::Span<const Shape> shapes, Range rows, uint64_t since,
                                  absl::Span<char* const> outs);

  // --- For savers ---

  // What a tensor that was read is to the variable now: a value of the past; what Read() would
  // share; the same, and rows of it are updated singly: a saver that wants the rows and not this
  // moment lets go of it and walks.
  enum class Kept { kPast, kWhole, kRows };
  Kept HowKept(const Tensor& value) const;
  // The values of several variables at one moment, in the middle of no update of two of them.
  // Shares buffers, copies nothing; without a value are those whose rows are updated singly.
  // FailedPrecondition when one is uninitialised, InvalidArgument when one comes twice.
  static StatusOr<std::vector<Tensor>> ReadAtOnce(absl::Span<VariableStorage* const> variables);
  // The first variable of the last update of several at once that this one was in (of a slot: the
  // variable that it belongs to); itself when it was updated alone only, null when never. To be
  // compared, not followed.
  const VariableStorage* updated_with() const {
    return updated_with_.load(std::memory_order_relaxed);
  }
  // There was a dense update since the last Assign.
  bool is_updated_whole() const { return updated_whole_.load(std::memory_order_relaxed); }

  // Changes with every update; for caches.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

  struct Counts {
    int64_t bytes_copied = 0;   // by Read, row updates and dense updates, to keep readers' values
    int64_t row_locks = 0;      // taken by row updates
    int64_t stripes_apart = 0;  // that lie in memory of their own
    // The most that one walk has copied while it held locks of rows, and while it held the variable
    // (shared: dense updates wait, row updates do not).
    int64_t most_bytes_under_row_locks = 0;
    int64_t most_bytes_held = 0;
  };
  Counts CountsForTesting() const;
  // How many stripes have a row that changed in epoch `since` or later.
  int64_t StripesChangedForTesting(uint64_t since) const;

 private:
  using Stripes = VariableStripes;
  class LockSet;  // several storages locked in address order

  Status Uninitialized() const;
  // The value's memory has no holder but this storage.
  bool OwnsValue() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return value_.num_elements() == 0 || value_.BufferIsUnique();
  }
  // Rows can be reached: initialised, plain bytes, rank >= 1.
  Status CheckHasRows() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  size_t RowBytes() const ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return static_cast<size_t>(value_.shape().NumElements(1, value_.rank())) * DTypeSize(dtype_);
  }
  // Row updates can work: there are stripes, and the buffer is not kept for readers who have left.
  bool IsReadyForRows() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  Status MakeReadyForRows();
  // A reader of the buffer has stayed for long, and the table is not too large to be copied at
  // once.
  bool IsToLeaveReader() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // The steps of UpdateRows, under the locks of the variables. First, what it asks of them and of
  // the indices. True: they are ready for rows; `made_ready`: MakeReadyForRows was called before.
  template <typename Index>
  static StatusOr<bool> CheckRowUpdate(
      absl::Span<VariableStorage* const> variables, absl::Span<const Index> indices,
      bool made_ready, absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check);
  // Then rows are moved to where they may be written. ResourceExhausted.
  template <typename Index>
  static Status MakeRowsWritable(absl::Span<VariableStorage* const> variables,
                                 absl::Span<const Index> indices);
  // Then `update` is called for all rows and they are stamped. `several`: nobody else is there, and
  // options.update_several gets them.
  template <typename Index>
  static void WriteRows(absl::Span<VariableStorage* const> variables,
                        absl::Span<VariableStorage* const> by_address,
                        absl::Span<const Index> indices, const RowUpdateOptions& options,
                        bool several,
                        absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)> update);
  // Before rows are written while the buffer has readers: their stripes get memory of their own.
  template <typename Index>
  Status TakeRowsApart(absl::Span<const Index> indices) ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Brings up to `most` stripes back into the buffer, which nobody else holds.
  Status ReturnStripes(size_t most) ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Read when stripes are apart from the buffer: brings them together.
  StatusOr<Tensor> ReadTogether() const;
  // Brings all rows into value_, for a dense update. Exclusively.
  Status Flatten() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Changed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // An update of all of them begins.
  static void NoteUpdate(absl::Span<VariableStorage* const> variables);

  const std::string name_;
  const DType dtype_;
  const PartialShape declared_shape_;
  std::atomic<uint64_t> version_{0};    // release after a change, acquire by readers
  std::atomic<bool> has_value_{false};  // release when it gets a value, acquire in IsInitialized
  mutable std::atomic<int64_t> bytes_copied_{0};                             // relaxed: a counter
  mutable std::atomic<int64_t> row_locks_{0};                                // relaxed: a counter
  std::atomic<int64_t> most_bytes_under_row_locks_{0}, most_bytes_held_{0};  // relaxed: counters
  std::atomic<const VariableStorage*> updated_with_{nullptr};  // relaxed: written under mu_
  std::atomic<bool> updated_whole_{false};                     // relaxed: written under mu_
  // One Read at a time brings stripes together. Taken before mu_.
  mutable Mutex together_mu_;
  mutable SharedMutex mu_;  // value_ itself; access to rows holds it shared
  mutable Tensor value_ ABSL_GUARDED_BY(mu_);
  Tensor spare_ ABSL_GUARDED_BY(mu_);  // buffer for the next dense update that cannot be in place
  // Changes whenever value_ or stripes_ is another than the one a caller saw before it let go of
  // mu_.
  mutable uint64_t generation_ ABSL_GUARDED_BY(mu_) = 0;
  // Epoch of the last change of all rows at once.
  uint64_t all_changed_in_ ABSL_GUARDED_BY(mu_) = 0;
  // Set by the first row update after an Assign: rows change under mu_ held shared and the row's
  // lock.
  std::unique_ptr<Stripes> stripes_ ABSL_GUARDED_BY(mu_);
  // With stripes_: value_'s buffer must stay as it is, readers may hold it.
  mutable bool frozen_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_VARIABLE_STORAGE_H_

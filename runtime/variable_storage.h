// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_VARIABLE_STORAGE_H_
#define MILLRACE_RUNTIME_VARIABLE_STORAGE_H_

// VariableStorage: a variable: one tensor that outlives steps, with rows.
//
// Resource variables and the reference variables of old graphs use the same storage.
//
// What always holds:
//   * a tensor that Read() returned never changes under its holder;
//   * a row that GatherRows copied is never torn: it is the row before or after an update;
//   * dense updates are serial per variable; nothing is lost;
//   * memory is reached only in the shape that was checked under the same locks: a shape that was
//     asked for earlier may be out of date, since Assign can change it at any time.
//
// How: a dense update writes into the buffer in place when nobody else holds it, and
// into a recycled second buffer otherwise (one pass, no copy first). Row updates work in
// place under striped row locks; from the first row update on, Read() copies
// (under all stripes) instead of sharing, so that snapshots stay true.
//
// Thread-safety: all methods, from any thread. Several storages are locked in address order.
// Failure: FailedPrecondition "Attempting to use uninitialized value <name>" and the like;
// the word "uninitialized" is part of the Supervisor's protocol.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

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

  // A snapshot. FailedPrecondition when uninitialised.
  StatusOr<Tensor> Read() const;
  // Adopts the buffer when `value` is its only holder, otherwise shares it copy-on-write.
  // InvalidArgument when dtype differs, or the shape and `validate_shape`.
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

  // Row update of one or more variables of equal first dimension: for each i in order of its
  // choosing, `update(i, rows)` gets pointers to row indices[i] of each variable, under that row's
  // lock. With `exclusive`, under all row locks for the whole call (use_locking).
  // `check(shapes)`, once or twice under the locks before any row is touched, sees the shapes that
  // `update` will work on: the length of a row is known only there. Indices are all checked before
  // the first row is touched, too.
  template <typename Index>
  static Status UpdateRows(absl::Span<VariableStorage* const> variables,
                           absl::Span<const Index> indices, bool exclusive,
                           absl::FunctionRef<Status(absl::Span<const Shape> shapes)> check,
                           absl::FunctionRef<void(int64_t i, absl::Span<char* const> rows)> update);

  // Changes with every update; for caches and savers.
  uint64_t version() const { return version_.load(std::memory_order_acquire); }

 private:
  struct Stripes;  // locks of rows
  class LockSet;   // several storages locked in address order

  Status Uninitialized() const;
  // The value's memory has no holder but this storage.
  bool OwnsValue() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Rows can be reached: initialised, plain bytes, rank >= 1.
  Status CheckHasRows() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  size_t RowBytes() const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // Ends the sharing of the value with readers, for good.
  Status StartRowUpdates();

  const std::string name_;
  const DType dtype_;
  const PartialShape declared_shape_;
  std::atomic<uint64_t> version_{0};    // release after a change, acquire by readers
  std::atomic<bool> has_value_{false};  // release when it gets a value, acquire in IsInitialized
  mutable SharedMutex mu_;              // value_ itself; access to rows holds it shared
  Tensor value_ ABSL_GUARDED_BY(mu_);
  Tensor spare_ ABSL_GUARDED_BY(mu_);  // buffer for the next dense update that cannot be in place
  // Row updates have begun: nobody shares value_'s buffer, rows change under mu_ held shared and
  // the row's stripe. Never goes back.
  bool by_rows_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Stripes> stripes_ ABSL_GUARDED_BY(mu_);  // set with by_rows_
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_VARIABLE_STORAGE_H_

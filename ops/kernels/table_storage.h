// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_TABLE_STORAGE_H_
#define MILLRACE_OPS_KERNELS_TABLE_STORAGE_H_

// TableStorage: the resource behind the handles of table ops (ops/lookup/hash_table.h), for kernels
// that look keys up.
//
//   MR_ASSIGN_OR_RETURN(auto table, TableInput(ctx, 0));
//   MR_RETURN_IF_ERROR(table->FindWords(words, /*missing=*/-1, ids));
//
// Three kinds. A fixed table: empty -> initialised, once; it never changes after that, and is read
// without a lock. A mutable one: readers and writers take turns; each call is one moment. A dense
// one is a mutable one whose memory is laid out as TensorFlow's, because it is saved so.
//
// What a call is given is checked against the table's types and shapes here.
//
// Thread-safety: all methods, from any thread.
// Failure: as ops/lookup/lookup_table.h says. A change that fails because there is no memory
// (ResourceExhausted, std::bad_alloc) may have been done for some keys; every key has a value of
// its own then, too.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/holds_for_sessions.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"

namespace millrace {

enum class TableKind { kFixed, kMutable, kDense };
// "HashTable"
const char* TableKindName(TableKind kind);

// What a table is made with.
struct TableSpec {
  TableKind kind = TableKind::kFixed;
  DType key_dtype = DT_INVALID, value_dtype = DT_INVALID;
  Shape key_shape, value_shape;  // of one key, one value
  std::string name;              // for messages: the shared name, or the node's
  std::string session;           // whose alone it is; empty for one that sessions share

  // "HashTable 'name'"
  std::string Title() const;
  // A table that exists must be what another node asks for.
  Status CheckSame(const TableSpec& want) const;
};

// Splits a loop: body(begin, end) over [0, n), on any threads.
using TableLoop = absl::FunctionRef<void(int64_t n, double cost_ns,
                                         absl::FunctionRef<void(int64_t begin, int64_t end)> body)>;

// What fills a fixed table. Nothing of it is seen before Publish.
class TableFiller {
 public:
  virtual ~TableFiller() = default;
  // `keys` and `values` of equal shape. FailedPrecondition "HashTable has different value for same
  // key. ..."; `*wrong` is then the place of the key in `keys`.
  virtual Status Add(const Tensor& keys, const Tensor& values, int64_t* wrong) = 0;
  // The table is initialised with what was added. OK when it was already, with the same;
  // FailedPrecondition "Table was already initialized with different data." otherwise.
  virtual Status Publish() = 0;
};

class TableStorage : public Resource,
                     public HoldsForSessions,
                     public std::enable_shared_from_this<TableStorage> {
 public:
  static constexpr const char* kTypeName = "LookupTable";

  const TableSpec& spec() const { return spec_; }
  std::string DebugString() const override;
  void SessionEnded(absl::string_view session_handle) final;
  bool EndedWithSession() const final { return is_over_.load(std::memory_order_relaxed); }

  // Keys; 0 for a fixed table without content.
  virtual int64_t size() const = 0;
  virtual bool is_initialized() const { return true; }

  // The shape of the values of `keys`.
  StatusOr<Shape> ShapeOfValues(const Shape& keys) const;
  // Fills `values`, which has that shape.
  Status Find(const Tensor& keys, const Tensor& default_value, TableLoop loop,
              Tensor* values) const;
  // values[i] is the value of words[i], `missing` when there is none. For tables from strings to
  // int64 numbers; others are InvalidArgument.
  virtual Status FindWords(absl::Span<const absl::string_view> words, int64_t missing,
                           int64_t* values) const;

  Status Insert(const Tensor& keys, const Tensor& values);
  Status Remove(const Tensor& keys);
  // As Export gives them; a fixed table is initialised.
  Status Import(const Tensor& keys, const Tensor& values);
  // Outputs 0 and 1 of a kernel.
  virtual Status Export(KernelContext* ctx) const = 0;

  // Of a fixed table.
  virtual StatusOr<std::unique_ptr<TableFiller>> BeginFilling();
  Status Initialize(const Tensor& keys, const Tensor& values);

 protected:
  explicit TableStorage(TableSpec spec) : spec_(std::move(spec)) {}
  Status Refuse(absl::string_view what) const;

  // Arguments have been checked.
  virtual Status DoFind(const Tensor& keys, const Tensor& default_value, TableLoop loop,
                        Tensor* values) const = 0;
  virtual Status DoInsert(const Tensor& keys, const Tensor& values);
  virtual Status DoRemove(const Tensor& keys);
  virtual Status DoImport(const Tensor& keys, const Tensor& values);
  virtual Status DoInitialize(const Tensor& keys, const Tensor& values);

 private:
  Status CheckTypes(DType keys, DType values) const;
  Status CheckValues(const Tensor& keys, const Tensor& values) const;

  const TableSpec spec_;
  std::atomic<bool> is_over_{false};  // relaxed: a hint to the manager, which has its own lock
};

// An empty table of kind kFixed or kMutable.
StatusOr<std::shared_ptr<TableStorage>> MakeTable(TableSpec spec);

struct DenseTableOptions {
  Tensor empty_key, deleted_key;  // of the spec's key type and shape; no deleted_key: no Remove
  int64_t initial_num_buckets = 0;
  float max_load_factor = 0;
};
// An empty one of kind kDense. InvalidArgument, ResourceExhausted.
StatusOr<std::shared_ptr<TableStorage>> MakeDenseTable(TableSpec spec,
                                                       const DenseTableOptions& options);

// The table behind input i: a resource, or a reference to its container and name.
StatusOr<std::shared_ptr<TableStorage>> TableInput(KernelContext* ctx, int i);

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_TABLE_STORAGE_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_EXAMPLE_BATCH_H_
#define MILLRACE_DATA_EXAMPLE_BATCH_H_

// ExampleBatch: what the ops that parse tensorflow.Examples have in common.
//
// An op says in which form it wants features (ExampleForms, of its attrs), under which keys
// (FeatureKeys), and where its outputs are (ExampleOutputs); ParseExamples does the rest, in
// parallel over the examples:
//
//   * one pass over each example's bytes finds the features and copies those of fixed shape to
//     their place in the batch;
//   * what has another length in each example (sparse, padded and ragged features) is noted there,
//     and copied in a second pass, when the lengths of all are known.
//
// The order of features everywhere: sparse, dense, ragged.
//
// Thread-safety: values and pure functions; FeatureKeys are immutable.
// Failure: InvalidArgument; of several bad examples the first is told, on any number of threads.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/dtype.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/example_wire.h"
#include "graph/op_rule.h"

namespace millrace {

// --- Forms ---------------------------------------------------------------------------------------

// A dense feature: its shape in one example, of which the first dimension may be open (-1).
struct DenseForm {
  DType dtype = DT_INVALID;
  bool is_variable = false;  // the first dimension is as long as the example says
  std::vector<int64_t> shape = {};
  int64_t stride = 1;  // values of one example; of one row where it is variable

  // Feature number `d`. InvalidArgument names `dense_shapes[d]`, of attr `attr`.
  static StatusOr<DenseForm> Make(absl::string_view attr, size_t d, DType dtype,
                                  const PartialShape& shape);
  // The shape of default number `d` as far as it is known: the feature's, or no elements (the
  // feature is required); of a variable one, one element, the padding.
  Status CheckDefault(size_t d, const PartialShape& value) const;
};

struct ExampleForms {
  std::vector<DType> sparse = {};
  std::vector<DenseForm> dense = {};
  std::vector<DType> ragged = {};
  std::vector<DType> ragged_splits = {};  // int32 or int64

  size_t size() const { return sparse.size() + dense.size() + ragged.size(); }
};

// Reads lists of attrs that go together: `dense_types`, `shapes`, named `types_attr`,
// `shapes_attr`.
StatusOr<std::vector<DenseForm>> DenseForms(absl::string_view types_attr,
                                            absl::Span<const DType> dense_types,
                                            absl::string_view shapes_attr,
                                            absl::Span<const PartialShape> shapes,
                                            int64_t num_keys);
// InvalidArgument "<name> must have one element for each of the <n> <keys>, got <size>".
Status CheckCount(absl::string_view name, size_t size, absl::string_view keys, int64_t n);

// Which output the first tensor of each list is; the lists have a tensor per feature of the form.
struct ExampleOutputs {
  int sparse_indices = 0, sparse_values = 0, sparse_shapes = 0;
  int dense = 0;
  int ragged_values = 0, ragged_splits = 0;
};

// One example without a dimension for the batch, or several with.
enum class Batched { kNo, kYes };

// The shapes of the outputs, for rules. `batch`: the number of examples, -1: not known.
Status SetExampleShapes(RuleContext* c, const ExampleForms& forms, const ExampleOutputs& outputs,
                        Batched batched, int64_t batch);

// --- Keys ----------------------------------------------------------------------------------------

// Finds a feature's number by its key. Look-ups are as fast for keys that come from outside.
class FeatureKeys {
 public:
  // InvalidArgument for a key that is there twice.
  static StatusOr<std::shared_ptr<const FeatureKeys>> Make(std::vector<std::string> keys);

  const std::vector<std::string>& keys() const { return keys_; }
  // -1: nobody asked for it.
  int Find(absl::string_view key) const {
    for (size_t slot = Hash(key) & mask_;; slot = (slot + 1) & mask_) {
      const int feature = slots_[slot];
      if (feature < 0 || keys_[static_cast<size_t>(feature)] == key) return feature;
    }
  }

 private:
  explicit FeatureKeys(std::vector<std::string> keys);
  // Of the length and up to sixteen bytes: keys of one model differ there. Many that do not make
  // longer chains, which end at the number of keys.
  static size_t Hash(absl::string_view key);

  std::vector<std::string> keys_;
  std::vector<int> slots_;  // feature numbers, -1: none; at least one is -1
  size_t mask_ = 0;
};

// The keys of the step before, which mostly are constants: made once.
class LastFeatureKeys {
 public:
  StatusOr<std::shared_ptr<const FeatureKeys>> Get(std::vector<absl::string_view> keys) const;

 private:
  mutable Mutex mu_;
  mutable std::shared_ptr<const FeatureKeys> keys_ ABSL_GUARDED_BY(mu_);
};

// --- Examples ------------------------------------------------------------------------------------

struct ExampleInputs {
  absl::Span<const absl::string_view> serialized = {};
  // For messages: the examples' names (empty: none), and how many there are until they are counted
  // from 0 again.
  absl::Span<const std::string> names = {};
  int64_t count_to = INT64_MAX;
  absl::Span<const Tensor> dense_defaults = {};
  Batched batched = Batched::kYes;  // kNo: there is one
};

// A fresh tensor as output number `output`, of its dtype.
using AllocateExampleOutput = absl::FunctionRef<StatusOr<Tensor*>(int output, const Shape& shape)>;

// Makes the outputs. CheckDefault has been called for each default. After an error `*num_good`, if
// it is not null, is the number of the first bad example: dense features of fixed shape of those
// before it are there.
Status ParseExamples(const ExampleForms& forms, const FeatureKeys& keys,
                     const ExampleInputs& inputs, const ExampleOutputs& outputs, Arena* arena,
                     AllocateExampleOutput allocate, int64_t* num_good = nullptr);

// --- For what is parsed otherwise ----------------------------------------------------------------

FeatureKind KindOf(DType dtype);
// "float", "int64", "string".
absl::string_view NameOf(FeatureKind kind);

// The error of the first example that has one, whatever the order in which they are read.
class FirstError {
 public:
  // Examples after this one need not be read.
  int64_t limit() const { return limit_.load(std::memory_order_relaxed); }
  void Report(int64_t example, Status status);
  Status status();

 private:
  // Relaxed: it only saves work; the status is read after the parallel loop.
  std::atomic<int64_t> limit_ = INT64_MAX;
  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

// Calls visit.operator()<T>(), which returns a Status, for the element type of a feature.
template <typename Visitor>
Status VisitFeatureType(DType dtype, Visitor&& visit) {
  switch (dtype) {
    case DT_STRING:
      return visit.template operator()<std::string>();
    case DT_FLOAT:
      return visit.template operator()<float>();
    case DT_INT64:
      return visit.template operator()<int64_t>();
    default:
      return Internal("a feature cannot be of ", dtype);
  }
}

}  // namespace millrace

#endif  // MILLRACE_DATA_EXAMPLE_BATCH_H_

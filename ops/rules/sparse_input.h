// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_SPARSE_INPUT_H_
#define MILLRACE_OPS_RULES_SPARSE_INPUT_H_

// Sparse tensors as inputs of ops: what rules and kernels agree on.
//
// A rule asks CheckSparseInput whether indices [n, rank], values [n] and dense shape [rank] go
// together. What the elements say is for the kernel: SparseShape reads a dense shape, FlatPlaces
// where in it the elements stand, as numbers that one can sort, compare and divide.
//
// A dense shape may have more elements than any tensor (Shape::kMaxElements): nobody makes one of
// it. It has no more than an int64 counts.
//
// Pure functions. Failure: InvalidArgument that names the input; of an index with TensorFlow's
// words ("is out of bounds", "is out of order", "is repeated").

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/int_span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/op_rule.h"

namespace millrace {

// Which inputs of an op are a sparse tensor, and what they are called: "a_" for "a_indices".
struct SparseArgs {
  int indices = 0;
  int values = 1;  // -1: the op does not take them
  int shape = 2;   // -1: the op does not take it
  absl::string_view prefix = "";
  absl::string_view shape_name = "shape";
};

// What is known of a sparse tensor before the step; -1 for what is not.
struct SparseSize {
  int64_t count = -1;
  int64_t rank = -1;
};
StatusOr<SparseSize> CheckSparseInput(const RuleContext* c, const SparseArgs& args);

// A dense shape in a step.
struct SparseShape {
  using Ints = absl::InlinedVector<int64_t, 6>;

  Ints dims, strides;  // strides: of row-major order; of an empty shape 0
  int64_t num_elements = 1;

  int rank() const { return static_cast<int>(dims.size()); }
  std::string ToString() const;  // "[2,3]"

  // `name` is that of the input.
  static StatusOr<SparseShape> Make(IntSpan dims, absl::string_view name);
  static StatusOr<SparseShape> Of(const Tensor& shape, absl::string_view name) {
    return Make(shape.ints(), name);
  }
};

enum class PlaceOrder {
  kAny,
  kSorted,  // row-major; elements of one place stand next to each other
  kUnique,  // row-major, each place once
};

// The place of each element of `indices` (int32 or int64 [n, rank], a rule has seen to it) in
// row-major order, in [0, shape.num_elements).
StatusOr<std::vector<int64_t>> FlatPlaces(const Tensor& indices, const SparseShape& shape,
                                          PlaceOrder order, absl::string_view name = "indices");

// The numbers of elements in row-major order of their places, those of one place in their order;
// empty when they stand so already.
std::vector<int64_t> OrderOf(absl::Span<const int64_t> places);

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_SPARSE_INPUT_H_

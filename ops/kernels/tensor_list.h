// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_TENSOR_LIST_H_
#define MILLRACE_OPS_KERNELS_TENSOR_LIST_H_

// Tensor lists as they are in memory: a Variant "tensorflow::TensorList" whose tensors are the
// elements (no value: not set) and whose metadata says what is known of them, in TensorFlow's form:
//
//   varints: number of elements not set, their indices, dtype, max_num_elements;
//   then a TensorShapeProto: element_shape
//
// In this process elements that are not set are among the tensors and never among the indices;
// lists of other writers, which list their indices and leave them out, are read.
//
// Thread-safety: values.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/resource_handle.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

inline constexpr char kTensorListTypeName[] = "tensorflow::TensorList";
// A bound against lengths that only an attack has: a GiB of elements.
inline constexpr int64_t kMaxTensorListElements = int64_t{1} << 24;
// Lists in lists: a bound on the stack that their end uses. That of messages is the same.
inline constexpr int kMaxTensorListNesting = 32;

struct TensorListSpec {
  DType dtype = DT_INVALID;
  int64_t max_num_elements = -1;
  PartialShape element_shape = {};

  std::string ToMetadata() const;
};

// A list that is read. Who looks at an element checks it: a list may come from elsewhere, and is
// not passed over as a whole by ops that touch one element.
struct TensorListView {
  Status CheckElement(const Tensor& element) const;

  TensorListSpec spec;
  absl::Span<const Tensor> elements;
  std::vector<Tensor> owned;  // what `elements` is of, where the list was in another writer's form
};

// `variant` outlives the view. InvalidArgument when it is no list.
StatusOr<TensorListView> ReadTensorList(const Variant& variant);
// The list in a scalar; `name` is that of the input.
StatusOr<TensorListView> ReadTensorList(const Tensor& scalar, absl::string_view name);

// A list of its own. `elements` are of the spec's dtype and shape, or without value.
Tensor MakeTensorList(const TensorListSpec& spec, std::vector<Tensor> elements);
// The list `*scalar`, which was read without error, in memory that may be written: its elements.
// They are those of `*scalar` itself when nobody else has it, else of a copy that it becomes.
StatusOr<std::vector<Tensor>*> MutableTensorList(Tensor* scalar);

// ResourceExhausted when a list cannot have so many elements, InvalidArgument below 0.
Status CheckTensorListSize(int64_t size);
// For an element of dtype variant: that it can be put into one more list.
Status CheckTensorListNesting(const Tensor& element);

// What an int vector says of an element's shape; the scalar -1 says nothing.
StatusOr<PartialShape> ElementShapeOf(const Tensor& ints);

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_TENSOR_LIST_H_

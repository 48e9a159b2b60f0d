// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_TENSOR_LIST_H_
#define MILLRACE_OPS_CONTROL_TENSOR_LIST_H_

// Tensor lists: lists of tensors of one dtype as values: variant scalars. An op does not change a
// list, it gives another one (in the same memory when nobody else has the old one, so that a loop
// that grows a list takes constant time for each element).
//
// A list has an element_shape, which may be known in part; what is put in must agree. Ops take what
// more is known, or -1 (an int32 scalar) for nothing. Elements that were reserved and not set count
// as zeros where their shape is known.
//
// InvalidArgument, in TensorFlow's words: another dtype, a shape that contradicts, an index that is
// not there, a pop from an empty list, a variant that is no list. ResourceExhausted: a list of more
// than 2^24 elements.
//
// Gradients: a list's gradient is the list of its elements' gradients.

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// An empty list; not more than `max_num_elements` (int32 scalar; -1: any number) can be pushed.
// `element_shape`: int32 or int64 vector with -1 for unknown dimensions, or the scalar -1.
inline Output EmptyTensorList(ScopeAt at, Output element_shape, Output max_num_elements,
                              DType element_dtype) {
  return BuildOp(at, "EmptyTensorList", {element_shape, max_num_elements}, "element_dtype",
                 element_dtype);
}
// A list of `num_elements` (int32 scalar) elements that are not set.
inline Output TensorListReserve(ScopeAt at, Output element_shape, Output num_elements,
                                DType element_dtype) {
  return BuildOp(at, "TensorListReserve", {element_shape, num_elements}, "element_dtype",
                 element_dtype);
}
// The rows of `tensor`.
inline Output TensorListFromTensor(ScopeAt at, Output tensor, Output element_shape) {
  return BuildOp(at, "TensorListFromTensor", {tensor, element_shape});
}
// The next lengths[0], lengths[1], ... (int64 vector) rows of `tensor`.
inline Output TensorListSplit(ScopeAt at, Output tensor, Output element_shape, Output lengths) {
  return BuildOp(at, "TensorListSplit", {tensor, element_shape, lengths});
}
// A list whose element indices[i] (int32 vector) is row i of `tensor`. TensorListScatterV2 makes it
// `num_elements` long, or as long as the largest index asks for (-1).
inline Output TensorListScatter(ScopeAt at, Output tensor, Output indices, Output element_shape) {
  return BuildOp(at, "TensorListScatter", {tensor, indices, element_shape});
}
inline Output TensorListScatterV2(ScopeAt at, Output tensor, Output indices, Output element_shape,
                                  Output num_elements) {
  return BuildOp(at, "TensorListScatterV2", {tensor, indices, element_shape, num_elements});
}
// The list with the rows of `tensor` as its elements `indices`; longer if these ask for it.
inline constexpr struct {
  Output operator()(ScopeAt at, Output list, Output tensor, Output indices) const {
    return BuildOp(at, "TensorListScatterIntoExistingList", {list, tensor, indices});
  }
} TensorListScatterIntoExistingList;

// The list with `tensor` behind it.
inline constexpr BinaryBuilder TensorListPushBack{"TensorListPushBack"};
// For a vector of lists: row i of `tensor` behind list i.
inline constexpr BinaryBuilder TensorListPushBackBatch{"TensorListPushBackBatch"};

struct TensorListPopBackOutputs {
  Output list;
  Output tensor;
};
// The list without its last element, and that.
inline TensorListPopBackOutputs TensorListPopBack(ScopeAt at, Output list, Output element_shape,
                                                  DType element_dtype) {
  const BuiltNode node =
      BuildOp(at, "TensorListPopBack", {list, element_shape}, "element_dtype", element_dtype);
  return {node.output(0), node.output(1)};
}
// The list with element `index` (int32 scalar) set to `item`.
inline Output TensorListSetItem(ScopeAt at, Output list, Output index, Output item) {
  return BuildOp(at, "TensorListSetItem", {list, index, item});
}
inline Output TensorListGetItem(ScopeAt at, Output list, Output index, Output element_shape,
                                DType element_dtype) {
  return BuildOp(at, "TensorListGetItem", {list, index, element_shape}, "element_dtype",
                 element_dtype);
}
// Its first `size` (int32 scalar) elements, with elements that are not set behind them.
inline constexpr BinaryBuilder TensorListResize{"TensorListResize"};

struct TensorListStackAttrs {
  int64_t num_elements = -1;  // the list must have so many; -1: any number
};
// The elements, which have one shape, as rows of one tensor.
inline Output TensorListStack(ScopeAt at, Output list, Output element_shape, DType element_dtype,
                              const TensorListStackAttrs& attrs = {}) {
  return BuildOp(at, "TensorListStack", {list, element_shape}, "element_dtype", element_dtype,
                 "num_elements", attrs.num_elements);
}
// Elements `indices` (int32 vector) as rows of one tensor.
inline Output TensorListGather(ScopeAt at, Output list, Output indices, Output element_shape,
                               DType element_dtype) {
  return BuildOp(at, "TensorListGather", {list, indices, element_shape}, "element_dtype",
                 element_dtype);
}

struct TensorListConcatAttrs {
  PartialShape element_shape = {};
};
struct TensorListConcatOutputs {
  Output tensor;
  Output lengths;  // int64 vector
};
// The elements, which differ in their first dimension at most, one behind the other along it.
inline TensorListConcatOutputs TensorListConcat(ScopeAt at, Output list, DType element_dtype,
                                                const TensorListConcatAttrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "TensorListConcat", {list}, "element_dtype", element_dtype,
                                 "element_shape", attrs.element_shape);
  return {node.output(0), node.output(1)};
}
// The same; element i, where it is not set, has leading_dims[i] (int64 vector) rows of zeros.
inline TensorListConcatOutputs TensorListConcatV2(ScopeAt at, Output list, Output element_shape,
                                                  Output leading_dims, DType element_dtype) {
  const BuiltNode node = BuildOp(at, "TensorListConcatV2", {list, element_shape, leading_dims},
                                 "element_dtype", element_dtype);
  return {node.output(0), node.output(1)};
}

// How many elements, an int32 scalar.
inline constexpr UnaryBuilder TensorListLength{"TensorListLength"};
// Its element_shape as a vector of `shape_type` (int32 or int64), -1 (a scalar) for unknown rank.
inline Output TensorListElementShape(ScopeAt at, Output list, DType shape_type) {
  return BuildOp(at, "TensorListElementShape", {list}, "shape_type", shape_type);
}
// Each list of `a` (a variant tensor) with that of `b` behind it.
inline Output TensorListConcatLists(ScopeAt at, Output a, Output b, DType element_dtype) {
  return BuildOp(at, "TensorListConcatLists", {a, b}, "element_dtype", element_dtype);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_TENSOR_LIST_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_TENSOR_ARRAY_H_
#define MILLRACE_OPS_CONTROL_TENSOR_ARRAY_H_

// Tensor arrays: elements of one dtype that are written once, by any node of a step, and read.
//
// An array lives within its step. Its ops take its handle and `flow`, a float that has no meaning
// but order: an op that takes the flow of another runs after it, and gradients go along it.
// layers/tensor_array.h threads it; this header has the ops themselves.
//
// Three forms of each op: the handle is a resource (V3), two strings (V2: container and name), or a
// reference to them (V1: the oldest files). New graphs use V3. The gradients are those of V3; the
// others have none of their own.
//
// InvalidArgument, in TensorFlow's words, for: an index that is negative, or >= size where the
// array has no dynamic_size; another dtype; a shape that contradicts element_shape; a second write;
// a read of what was read before (clear_after_read) or never written, unless element_shape says
// what zeros to give; an array that was closed.

#include <string>
#include <vector>

#include "graph/node_builder.h"

namespace millrace {

struct TensorArrayAttrs {
  PartialShape element_shape = {};
  bool dynamic_size = false;              // writes behind the end make the array longer
  bool clear_after_read = true;           // an element can be read once; its memory is given back
  bool identical_element_shapes = false;  // the first element says the shape of all
  std::string tensor_array_name = "";     // for messages; the node's name when empty
};
struct TensorArrayOutputs {
  Output handle;
  Output flow;
};
// An array of `size` (int32 scalar) elements.
inline TensorArrayOutputs TensorArrayV3(ScopeAt at, Output size, DType dtype,
                                        const TensorArrayAttrs& attrs = {}) {
  const BuiltNode node =
      BuildOp(at, "TensorArrayV3", {size}, "dtype", dtype, "element_shape", attrs.element_shape,
              "dynamic_size", attrs.dynamic_size, "clear_after_read", attrs.clear_after_read,
              "identical_element_shapes", attrs.identical_element_shapes, "tensor_array_name",
              attrs.tensor_array_name);
  return {node.output(0), node.output(1)};
}
// As V3, without identical_element_shapes; give the handle only.
struct OldTensorArrayBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output size, DType dtype,
                    const TensorArrayAttrs& attrs = {}) const {
    return BuildOp(at, op, {size}, "dtype", dtype, "element_shape", attrs.element_shape,
                   "dynamic_size", attrs.dynamic_size, "clear_after_read", attrs.clear_after_read,
                   "tensor_array_name", attrs.tensor_array_name);
  }
};
inline constexpr OldTensorArrayBuilder TensorArrayV1{"TensorArray"};
inline constexpr OldTensorArrayBuilder TensorArrayV2{"TensorArrayV2"};

// The array of gradients of the array: of its size, which is final from then on, and whose elements
// are sums of what is written to them (zeros where nothing is, and the forward element's shape is
// known). One for each `source`, which stands for one calculation of gradients.
inline TensorArrayOutputs TensorArrayGradV3(ScopeAt at, Output handle, Output flow_in,
                                            const std::string& source) {
  const BuiltNode node = BuildOp(at, "TensorArrayGradV3", {handle, flow_in}, "source", source);
  return {node.output(0), node.output(1)};
}
// The same; elements have `shape_to_prepend` (int32 vector) before their forward element's shape.
inline TensorArrayOutputs TensorArrayGradWithShape(ScopeAt at, Output handle, Output flow_in,
                                                   Output shape_to_prepend,
                                                   const std::string& source) {
  const BuiltNode node = BuildOp(at, "TensorArrayGradWithShape",
                                 {handle, flow_in, shape_to_prepend}, "source", source);
  return {node.output(0), node.output(1)};
}
struct OldTensorArrayGradBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output flow_in, const std::string& source) const {
    return BuildOp(at, op, {handle, flow_in}, "source", source);
  }
};
// Its handle is a string[2], as TensorArrayV2 gives and a reference becomes.
inline constexpr OldTensorArrayGradBuilder TensorArrayGradV1{"TensorArrayGrad"};
inline constexpr OldTensorArrayGradBuilder TensorArrayGradV2{"TensorArrayGradV2"};

// `value` is element `index` (int32 scalar) from now on. The flow.
struct TensorArrayWriteBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output index, Output value, Output flow_in) const {
    return BuildOp(at, op, {handle, index, value, flow_in});
  }
};
inline constexpr TensorArrayWriteBuilder TensorArrayWriteV1{"TensorArrayWrite"};
inline constexpr TensorArrayWriteBuilder TensorArrayWriteV2{"TensorArrayWriteV2"};
inline constexpr TensorArrayWriteBuilder TensorArrayWriteV3{"TensorArrayWriteV3"};

// Element `index`.
struct TensorArrayReadBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output index, Output flow_in, DType dtype) const {
    return BuildOp(at, op, {handle, index, flow_in}, "dtype", dtype);
  }
};
inline constexpr TensorArrayReadBuilder TensorArrayReadV1{"TensorArrayRead"};
inline constexpr TensorArrayReadBuilder TensorArrayReadV2{"TensorArrayReadV2"};
inline constexpr TensorArrayReadBuilder TensorArrayReadV3{"TensorArrayReadV3"};

struct TensorArrayGatherAttrs {
  PartialShape element_shape = {};  // needed where there are no indices
};
// Elements `indices` (int32 vector), which have one shape, as rows of one tensor.
struct TensorArrayGatherBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output indices, Output flow_in, DType dtype,
                    const TensorArrayGatherAttrs& attrs = {}) const {
    return BuildOp(at, op, {handle, indices, flow_in}, "dtype", dtype, "element_shape",
                   attrs.element_shape);
  }
};
inline constexpr TensorArrayGatherBuilder TensorArrayGatherV1{"TensorArrayGather"};
inline constexpr TensorArrayGatherBuilder TensorArrayGatherV2{"TensorArrayGatherV2"};
inline constexpr TensorArrayGatherBuilder TensorArrayGatherV3{"TensorArrayGatherV3"};
// All elements, of the oldest files.
inline Output TensorArrayPack(ScopeAt at, Output handle, Output flow_in, DType dtype,
                              const TensorArrayGatherAttrs& attrs = {}) {
  return BuildOp(at, "TensorArrayPack", {handle, flow_in}, "dtype", dtype, "element_shape",
                 attrs.element_shape);
}

// The rows of `value` are elements `indices` from now on. The flow.
struct TensorArrayScatterBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output indices, Output value, Output flow_in) const {
    return BuildOp(at, op, {handle, indices, value, flow_in});
  }
};
inline constexpr TensorArrayScatterBuilder TensorArrayScatterV1{"TensorArrayScatter"};
inline constexpr TensorArrayScatterBuilder TensorArrayScatterV2{"TensorArrayScatterV2"};
inline constexpr TensorArrayScatterBuilder TensorArrayScatterV3{"TensorArrayScatterV3"};
// All elements, of the oldest files.
inline Output TensorArrayUnpack(ScopeAt at, Output handle, Output value, Output flow_in) {
  return BuildOp(at, "TensorArrayUnpack", {handle, value, flow_in});
}

struct TensorArrayConcatAttrs {
  PartialShape element_shape_except0 = {};  // needed where the array is empty
};
struct TensorArrayConcatOutputs {
  Output value;
  Output lengths;  // int64 vector
};
// All elements, which differ in their first dimension at most, one behind the other along it.
struct TensorArrayConcatBuilder {
  const char* op;
  TensorArrayConcatOutputs operator()(ScopeAt at, Output handle, Output flow_in, DType dtype,
                                      const TensorArrayConcatAttrs& attrs = {}) const {
    const BuiltNode node = BuildOp(at, op, {handle, flow_in}, "dtype", dtype,
                                   "element_shape_except0", attrs.element_shape_except0);
    return {node.output(0), node.output(1)};
  }
};
inline constexpr TensorArrayConcatBuilder TensorArrayConcatV1{"TensorArrayConcat"};
inline constexpr TensorArrayConcatBuilder TensorArrayConcatV2{"TensorArrayConcatV2"};
inline constexpr TensorArrayConcatBuilder TensorArrayConcatV3{"TensorArrayConcatV3"};

// The elements are the next lengths[0], lengths[1], ... (int64 vector, as many as elements) rows of
// `value`. The flow.
struct TensorArraySplitBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output handle, Output value, Output lengths, Output flow_in) const {
    return BuildOp(at, op, {handle, value, lengths, flow_in});
  }
};
inline constexpr TensorArraySplitBuilder TensorArraySplitV1{"TensorArraySplit"};
inline constexpr TensorArraySplitBuilder TensorArraySplitV2{"TensorArraySplitV2"};
inline constexpr TensorArraySplitBuilder TensorArraySplitV3{"TensorArraySplitV3"};

// How many elements, an int32 scalar. (handle, flow_in)
inline constexpr BinaryBuilder TensorArraySizeV1{"TensorArraySize"};
inline constexpr BinaryBuilder TensorArraySizeV2{"TensorArraySizeV2"};
inline constexpr BinaryBuilder TensorArraySizeV3{"TensorArraySizeV3"};

// Gives the elements' memory back before the step ends.
struct TensorArrayCloseBuilder {
  const char* op;
  Operation operator()(ScopeAt at, Output handle) const { return BuildOp(at, op, {handle}); }
};
inline constexpr TensorArrayCloseBuilder TensorArrayCloseV1{"TensorArrayClose"};
inline constexpr TensorArrayCloseBuilder TensorArrayCloseV2{"TensorArrayCloseV2"};
inline constexpr TensorArrayCloseBuilder TensorArrayCloseV3{"TensorArrayCloseV3"};

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_TENSOR_ARRAY_H_

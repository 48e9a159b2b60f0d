// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_SERIALIZE_TENSOR_H_
#define MILLRACE_OPS_STRINGS_SERIALIZE_TENSOR_H_

// Tensors as the bytes of a tensorflow.TensorProto, in one string.

#include "graph/node_builder.h"

namespace millrace {

// A string scalar. Unimplemented for a tensor of handles or variants.
inline constexpr UnaryBuilder SerializeTensor{"SerializeTensor"};

// The tensor again; its shape is not known before. InvalidArgument for bytes that are no
// TensorProto and for a tensor of another dtype than `out_type`.
inline Output ParseTensor(ScopeAt at, Output serialized, DType out_type) {
  return BuildOp(at, "ParseTensor", {serialized}, "out_type", out_type);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_SERIALIZE_TENSOR_H_

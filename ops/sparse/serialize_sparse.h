// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SERIALIZE_SPARSE_H_
#define MILLRACE_OPS_SPARSE_SERIALIZE_SPARSE_H_

// Sparse tensors as elements of dense ones: for queues, batches and files.
//
// A sparse tensor is three elements: its indices, values and shape, each as a serialized
// TensorProto (DT_STRING) or as a tensor (DT_VARIANT). All dtypes.

#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SerializeSparseAttrs {
  DType out_type = DT_STRING;  // or DT_VARIANT
};

// [3]
inline Output SerializeSparse(ScopeAt at, const SparseTensor& input,
                              const SerializeSparseAttrs& attrs = {}) {
  return BuildOp(at, "SerializeSparse", {input.indices, input.values, input.dense_shape},
                 "out_type", attrs.out_type);
}
// Each element of dimension 0 by itself: [dimension 0, 3]. Rank 2 or more, indices in the order of
// dimension 0.
inline Output SerializeManySparse(ScopeAt at, const SparseTensor& input,
                                  const SerializeSparseAttrs& attrs = {}) {
  return BuildOp(at, "SerializeManySparse", {input.indices, input.values, input.dense_shape},
                 "out_type", attrs.out_type);
}

// The other way: [..., 3] back as one sparse tensor with the leading dimensions before its own. Of
// shapes that differ the largest sizes count. `dtype`: that of the values. InvalidArgument for
// bytes that are no tensor, another dtype, and tensors that differ in rank.
inline SparseTensor DeserializeSparse(ScopeAt at, Output serialized_sparse, DType dtype) {
  return SparseTensorAt(BuildOp(at, "DeserializeSparse", {serialized_sparse}, "dtype", dtype), 0);
}
// Of a matrix of strings [n, 3].
inline SparseTensor DeserializeManySparse(ScopeAt at, Output serialized_sparse, DType dtype) {
  return SparseTensorAt(BuildOp(at, "DeserializeManySparse", {serialized_sparse}, "dtype", dtype),
                        0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SPARSE_SERIALIZE_SPARSE_H_

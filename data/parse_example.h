// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_PARSE_EXAMPLE_H_
#define MILLRACE_DATA_PARSE_EXAMPLE_H_

// Serialized tensorflow.Example messages as tensors, by keys.
//
//   auto parsed = ParseExample(scope, serialized, {
//       .sparse = {{.key = "words", .dtype = DT_STRING}},
//       .dense = {{.key = "x", .shape = {1}, .default_value = zero}}});
//   parsed.dense[0]                                  // [batch, 1]
//
// (By names, and from specs that also estimators know: data/parse_features.h.)
//
// A dense feature has a fixed number of values, those of its shape, in every example; or, when the
// first dimension of the shape is -1, as many as the longest example of the batch, the others
// padded with the default value (one element). A missing feature takes the default value, which has
// the feature's shape. Without a default value (no elements) a fixed feature is required.
// A sparse feature has any number of values: they come as a sparse tensor [batch, most values].
// A ragged feature, too: its values come one after the other, with where each example's begin.
//
// dtypes: float, int64, string: what an Example holds. The parts of the batch are parsed in
// parallel.
//
// Errors: InvalidArgument with the example's name (or "<unknown>") and the feature's key for bytes
// that are no Example, another dtype, another number of values and a required feature that is
// missing; of several bad examples the first is told.

#include <string>
#include <vector>

#include "core/tensor.h"
#include "graph/node_builder.h"
#include "ops/sparse/sparse_tensor.h"  // IWYU pragma: export

namespace millrace {

// One key, and what it is to become.
struct SparseKey {
  std::string key;
  DType dtype = DT_INVALID;
};
struct DenseKey {
  std::string key;
  PartialShape shape = PartialShape::Scalar();  // of one example
  // Gives the dtype. Tensor of shape [0]: the feature is required.
  Tensor default_value;
};
struct RaggedKey {
  std::string key;
  DType dtype = DT_INVALID;
  DType row_splits_dtype = DT_INT64;  // or int32
};
struct ParseExampleFeatures {
  std::vector<SparseKey> sparse = {};
  std::vector<DenseKey> dense = {};
  std::vector<RaggedKey> ragged = {};  // of ParseExampleV2 alone
};

// The values of example i are values[row_splits[i]], ..., values[row_splits[i + 1] - 1].
struct RaggedFeature {
  Output values;      // [n]
  Output row_splits;  // [batch + 1]; [0] where there is no batch
};
struct ParseExampleOutputs {
  // In the order of the features; indices: example, position.
  std::vector<SparseTensor> sparse;
  std::vector<Output> dense;
  std::vector<RaggedFeature> ragged = {};
};

// serialized: string vector. names: string vector of the same length for messages; invalid = none.
ParseExampleOutputs ParseExample(ScopeAt at, Output serialized,
                                 const ParseExampleFeatures& features, Output names = {});

// The same as later TensorFlow writes it. A scalar `serialized` is one example: no tensor has a
// dimension for the batch then, and variable features need no padding.
ParseExampleOutputs ParseExampleV2(ScopeAt at, Output serialized,
                                   const ParseExampleFeatures& features, Output names = {});

// One example, a string scalar; no tensor has a dimension for the batch.
ParseExampleOutputs ParseSingleExample(ScopeAt at, Output serialized,
                                       const ParseExampleFeatures& features);

}  // namespace millrace

#endif  // MILLRACE_DATA_PARSE_EXAMPLE_H_

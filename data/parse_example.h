// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_PARSE_EXAMPLE_H_
#define MILLRACE_DATA_PARSE_EXAMPLE_H_

// ParseExample: serialized tensorflow.Example messages as tensors.
//
//   auto parsed = ParseExample(scope, serialized, {
//       .sparse = {{.key = "words", .dtype = DT_STRING}},
//       .dense = {{.key = "x", .shape = {1}, .default_value = zero}}});
//   parsed.dense[0]                                  // [batch, 1]
//
// A dense feature has a fixed number of values, those of its shape, in every example; or, when the
// first dimension of the shape is -1, as many as the longest example of the batch, the others
// padded with the default value (one element). A missing feature takes the default value, which has
// the feature's shape. Without a default value (no elements) a fixed feature is required.
// A sparse feature has any number of values: they come as a sparse tensor [batch, most values].
//
// dtypes: float, int64, string: what an Example holds. The parts of the batch are parsed in
// parallel.
//
// Errors: InvalidArgument with the example's name (or "<unknown>") and the feature's key for bytes
// that are no Example, another dtype, another number of values and a required feature that is
// missing.

#include <string>
#include <vector>

#include "core/tensor.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/sparse/sparse_tensor.h"

namespace millrace {

struct SparseFeature {
  std::string key;
  DType dtype = DT_INVALID;
};
struct DenseFeature {
  std::string key;
  PartialShape shape = PartialShape::Scalar();  // of one example
  // Gives the dtype. Tensor of shape [0]: the feature is required.
  Tensor default_value;
};
struct ParseExampleFeatures {
  std::vector<SparseFeature> sparse = {};
  std::vector<DenseFeature> dense = {};
};

struct ParseExampleOutputs {
  // In the order of the features; indices: example, position.
  std::vector<SparseTensor> sparse;
  std::vector<Output> dense;
};

// serialized: string vector. names: string vector of the same length for messages; invalid = none.
inline ParseExampleOutputs ParseExample(ScopeAt at, Output serialized,
                                        const ParseExampleFeatures& features, Output names = {}) {
  std::vector<Output> sparse_keys, dense_keys, defaults;
  std::vector<DType> sparse_types, dense_types;
  std::vector<PartialShape> dense_shapes;
  for (const SparseFeature& f : features.sparse) {
    sparse_keys.push_back(Const(at, f.key));
    sparse_types.push_back(f.dtype);
  }
  for (const DenseFeature& f : features.dense) {
    dense_keys.push_back(Const(at, f.key));
    defaults.push_back(Const(at, f.default_value));
    dense_types.push_back(f.default_value.dtype());
    dense_shapes.push_back(f.shape);
  }
  if (!names.valid()) names = Const(at, Tensor::Vector<std::string>({}));
  const BuiltNode node = NodeBuilder(at, "ParseExample")
                             .Input(serialized)
                             .Input(names)
                             .Input(absl::MakeConstSpan(sparse_keys))
                             .Input(absl::MakeConstSpan(dense_keys))
                             .Input(absl::MakeConstSpan(defaults))
                             .Attr("Nsparse", static_cast<int64_t>(sparse_keys.size()))
                             .Attr("Ndense", static_cast<int64_t>(dense_keys.size()))
                             .Attr("sparse_types", sparse_types)
                             .Attr("Tdense", dense_types)
                             .Attr("dense_shapes", dense_shapes)
                             .Finish();
  ParseExampleOutputs result;
  const int sparse = static_cast<int>(features.sparse.size());
  for (int i = 0; i < sparse; ++i) {
    result.sparse.push_back({node.output(i), node.output(sparse + i), node.output(2 * sparse + i)});
  }
  result.dense = node.outputs(3 * sparse, static_cast<int>(features.dense.size()));
  return result;
}

}  // namespace millrace

#endif  // MILLRACE_DATA_PARSE_EXAMPLE_H_

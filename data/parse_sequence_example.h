// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_PARSE_SEQUENCE_EXAMPLE_H_
#define MILLRACE_DATA_PARSE_SEQUENCE_EXAMPLE_H_

// Serialized tensorflow.SequenceExample messages as tensors, by keys.
//
// A SequenceExample is a context, features as those of an Example, and lists of features, which
// have one feature per step: the words of a sentence, the sensor's readings over time.
//
//   auto parsed = ParseSequenceExample(scope, serialized, {
//       .context = {.dense = {{.key = "label", .default_value = zero}}},
//       .dense_lists = {{.key = "frame", .dtype = DT_FLOAT, .shape = {64}}}});
//   parsed.dense_lists[0]      // [batch, most steps, 64], padded with zeros
//   parsed.dense_lengths[0]    // [batch]
//
// Context features are those of data/parse_example.h, ragged ones excepted. A dense list has the
// values of its shape in every step. A sparse list has any number of values in each: a sparse
// tensor [batch, most steps, most values of a step].
//
// Errors: InvalidArgument with the example's name (or "<unknown>"), the key and the step for bytes
// that are no SequenceExample, another dtype, another number of values and what is required and
// missing.

#include <string>
#include <vector>

#include "data/parse_example.h"  // IWYU pragma: export
#include "graph/node_builder.h"

namespace millrace {

struct DenseListKey {
  std::string key;
  DType dtype = DT_FLOAT;
  PartialShape shape = PartialShape::Scalar();  // of one step; known whole
  // An example without the list has no steps; otherwise the list is required.
  bool missing_assumed_empty = false;
};
struct SequenceExampleFeatures {
  ParseExampleFeatures context = {};
  std::vector<SparseKey> sparse_lists = {};
  std::vector<DenseListKey> dense_lists = {};
};

// In the order of the features.
struct SequenceExampleOutputs {
  ParseExampleOutputs context;
  std::vector<SparseTensor> sparse_lists;  // indices: example, step, position
  std::vector<Output> dense_lists;
  std::vector<Output> dense_lengths;  // int64 [batch]: steps; of ParseSequenceExample alone
};

// serialized: string vector. names: string vector of the same length for messages; invalid = none.
SequenceExampleOutputs ParseSequenceExample(ScopeAt at, Output serialized,
                                            const SequenceExampleFeatures& features,
                                            Output names = {});

// One example, a string scalar: no tensor has a dimension for the batch. name: string scalar.
SequenceExampleOutputs ParseSingleSequenceExample(ScopeAt at, Output serialized,
                                                  const SequenceExampleFeatures& features,
                                                  Output name = {});

}  // namespace millrace

#endif  // MILLRACE_DATA_PARSE_SEQUENCE_EXAMPLE_H_

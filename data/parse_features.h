// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_PARSE_FEATURES_H_
#define MILLRACE_DATA_PARSE_FEATURES_H_

// Serialized tensorflow.Examples as the tensors that feature specs describe, by name.
//
//   ParsedFeatures parsed = ParseExample(scope, serialized, {
//       {"age", FixedLenFeature{.dtype = DT_INT64}},
//       {"words", VarLenFeature{.dtype = DT_STRING}}});
//   parsed.dense["age"]                // [batch]
//   parsed.sparse["words"].values
//
// One ParseExample node parses all of them (data/parse_example.h says what it promises); its keys
// are in the order of the names. What a SparseFeature is made of is parsed once, also where several
// specs or a VarLenFeature name the same key.
//
// Errors, in the scope, name the feature: a dtype that is not float, int64 or string, a shape that
// is not known whole, a default value of another dtype or number of elements, a sequence without
// allow_missing, a SparseFeature with other than one size > 0 per index key, and a key that one
// spec wants dense and another sparse, or with two dtypes.

#include <map>
#include <string>

#include "data/feature_spec.h"   // IWYU pragma: export
#include "data/parse_example.h"  // IWYU pragma: export
#include "graph/node_builder.h"

namespace millrace {

// Every name of the specs is in one of them.
struct ParsedFeatures {
  std::map<std::string, Output> dense = {};
  std::map<std::string, SparseTensor> sparse = {};
};

// `serialized`: string vector [batch]. `names`: as many strings for messages; invalid: none.
ParsedFeatures ParseExample(ScopeAt at, Output serialized, const FeatureSpecs& specs,
                            Output names = {});

}  // namespace millrace

#endif  // MILLRACE_DATA_PARSE_FEATURES_H_

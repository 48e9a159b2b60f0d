// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_FEATURE_SPEC_H_
#define MILLRACE_DATA_FEATURE_SPEC_H_

// FeatureSpec: how one feature of a tensorflow.Example becomes a tensor.
//
//   FeatureSpecs specs = {{"age", FixedLenFeature{.dtype = DT_FLOAT}},
//                         {"words", VarLenFeature{.dtype = DT_STRING}}};
//
// The same specs say what a parser makes of Examples (data/parse_features.h), what callers of an
// exported model may send (estimator/serving_input.h) and what feature columns need
// (MakeParseExampleSpec). An Example holds floats, int64s and strings, so dtypes are these three.
//
// Plain values; what is wrong with one is said where it is used.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// A fixed number of values per example: a dense tensor [batch, shape...].
struct FixedLenFeature {
  DType dtype = DT_FLOAT;
  PartialShape shape = PartialShape::Scalar();  // of one example; fully known
  // Of that shape, for examples without the feature; none: it is required.
  std::optional<Tensor> default_value = {};
};

// Any number of values: a sparse tensor [batch, most values of an example].
struct VarLenFeature {
  DType dtype = DT_FLOAT;
};

// A sparse tensor [batch, size...] whose indices are features of their own: value number k of
// feature `value_key` stands at (k-th value of each of `index_key`).
struct SparseFeature {
  std::vector<std::string> index_key;  // int64 features; one per dimension
  std::string value_key;
  DType dtype = DT_FLOAT;
  std::vector<int64_t> size;    // of the dimensions, as many as index_key has
  bool already_sorted = false;  // in every example; otherwise they are sorted here
};

// Any number of rows of a fixed shape: a dense tensor [batch, most rows of an example, shape...].
struct FixedLenSequenceFeature {
  DType dtype = DT_FLOAT;
  PartialShape shape = PartialShape::Scalar();  // of one row
  // An example without the feature has no rows. Parsers of Examples want it to be true.
  bool allow_missing = false;
  // One element, which pads shorter examples; none: 0 or "".
  std::optional<Tensor> default_value = {};
};

using FeatureSpec =
    std::variant<FixedLenFeature, VarLenFeature, SparseFeature, FixedLenSequenceFeature>;

// By the names under which the results are found; but for a SparseFeature, also the keys in the
// Example.
using FeatureSpecs = std::map<std::string, FeatureSpec>;

// What parsers want to know of a feature; the rules of specs in one place. InvalidArgument
// "<where>: feature '<name>' must ...".
//
// The default value in the feature's shape; no elements where it is required. Not for a dtype that
// an Example does not hold, a shape that is not known whole, a default of another dtype or size.
StatusOr<Tensor> DefaultOf(absl::string_view where, const std::string& name,
                           const FixedLenFeature& feature);
// The padding, a scalar. As above; and missing ones must be allowed.
StatusOr<Tensor> PaddingOf(absl::string_view where, const std::string& name,
                           const FixedLenSequenceFeature& feature);
Status CheckFeatureType(absl::string_view where, const std::string& name, DType dtype);

}  // namespace millrace

#endif  // MILLRACE_DATA_FEATURE_SPEC_H_

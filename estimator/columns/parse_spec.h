// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_PARSE_SPEC_H_
#define MILLRACE_ESTIMATOR_COLUMNS_PARSE_SPEC_H_

// MakeParseExampleSpec: what a parser of tensorflow.Examples has to read for columns.
//
//   MR_ASSIGN_OR_RETURN(FeatureSpecs specs, MakeParseExampleSpec(columns));
//   BuildParsingServingInputReceiverFn(specs);
//
// Numeric columns want a fixed number of values, all others any number of them.
//
// Failure: the error of a column; InvalidArgument for columns that want one feature in different
// ways, and for a label or weight that is also a feature of the model.

#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/feature_spec.h"
#include "estimator/columns/feature_column.h"

namespace millrace {

// Columns of all types.
StatusOr<FeatureSpecs> MakeParseExampleSpec(const std::vector<FeatureColumn>& columns);

// The same with what training needs: the label, and the weights of the examples.
struct LabelSpec {
  std::string key;
  DType dtype = DT_INVALID;  // int64 of a classifier, float of a regressor unless said here
  std::optional<Tensor> default_value = std::nullopt;  // required without one
  int64_t dimension = 1;                               // of a regressor's label
  std::optional<NumericColumn> weight_column = std::nullopt;
};
StatusOr<FeatureSpecs> ClassifierParseExampleSpec(const std::vector<FeatureColumn>& columns,
                                                  const LabelSpec& label);
StatusOr<FeatureSpecs> RegressorParseExampleSpec(const std::vector<FeatureColumn>& columns,
                                                 const LabelSpec& label);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_PARSE_SPEC_H_

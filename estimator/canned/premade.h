// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_PREMADE_H_
#define MILLRACE_ESTIMATOR_CANNED_PREMADE_H_

// What the functions that return pre-made Estimators share: their heads, the rate of their linear
// parts, and how an error of theirs becomes one of the Estimator.
//
// Inside of estimator/canned/. Failure: of the Estimator that is returned, with the caller's line.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "core/status.h"
#include "estimator/estimator.h"
#include "estimator/heads/head.h"
#include "estimator/heads/regression_head.h"
#include "layers/losses.h"

namespace millrace {

struct ClassifierHead {
  int64_t n_classes = 2;
  WeightColumn weight_column = {};
  std::vector<std::string> label_vocabulary = {};
  LossReduction loss_reduction = LossReduction::kSum;
  bool predict_all_classes = false;
};
// Of two classes, or of more.
HeadPtr HeadOf(const ClassifierHead& options, std::source_location where);

// Of the options of a classifier, or a regressor.
template <typename Options>
HeadPtr ClassifierHeadOf(const Options& options, std::source_location where) {
  return HeadOf({.n_classes = options.n_classes,
                 .weight_column = options.weight_column,
                 .label_vocabulary = options.label_vocabulary,
                 .loss_reduction = options.loss_reduction,
                 .predict_all_classes = options.predict_all_classes},
                where);
}
template <typename Options>
HeadPtr RegressorHeadOf(const Options& options, std::source_location where) {
  return RegressionHead({.label_dimension = options.label_dimension,
                         .weight_column = options.weight_column,
                         .loss_reduction = options.loss_reduction},
                        where);
}

// The first error of the columns, with the line that made the column.
template <typename Column>
Status CheckColumns(const char* field, const std::vector<Column>& columns) {
  if (columns.empty()) return InvalidArgument(field, " must be given, got none");
  for (const Column& column : columns) MR_RETURN_IF_ERROR(column.status());
  return absl::OkStatus();
}
Status CheckHiddenUnits(const char* field, const std::vector<int64_t>& hidden_units);
Status CheckDropout(const char* field, const std::optional<double>& dropout);

// min(`most`, 1 / sqrt(columns)): the learning rate of a weighted sum of so many columns, > 0.
double LinearLearningRate(double most, size_t columns);

// `model` (its function) over `options`, or `status`, that of the head coming first.
Estimator MakePremade(const char* name, std::source_location where, const HeadPtr& head,
                      const Status& status, ModelFn model, const EstimatorOptions& options);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_CANNED_PREMADE_H_

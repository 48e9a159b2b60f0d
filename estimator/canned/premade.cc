// SPDX-License-Identifier: Apache-2.0
#include "estimator/canned/premade.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "estimator/heads/binary_head.h"
#include "estimator/heads/multi_class_head.h"

namespace millrace {

HeadPtr HeadOf(const ClassifierHead& options, std::source_location where) {
  if (options.n_classes == 2) {
    return BinaryHead({.weight_column = options.weight_column,
                       .label_vocabulary = options.label_vocabulary,
                       .loss_reduction = options.loss_reduction,
                       .predict_all_classes = options.predict_all_classes},
                      where);
  }
  return MultiClassHead(options.n_classes,
                        {.weight_column = options.weight_column,
                         .label_vocabulary = options.label_vocabulary,
                         .loss_reduction = options.loss_reduction,
                         .predict_all_classes = options.predict_all_classes},
                        where);
}

Status CheckHiddenUnits(const char* field, const std::vector<int64_t>& hidden_units) {
  for (const int64_t units : hidden_units) {
    if (units < 1) return InvalidArgument(field, " must be >= 1, got ", units);
  }
  return absl::OkStatus();
}

Status CheckDropout(const char* field, const std::optional<double>& dropout) {
  if (!dropout || (*dropout >= 0 && *dropout < 1)) return absl::OkStatus();
  return InvalidArgument(field, " must be in [0, 1), got ", *dropout);
}

double LinearLearningRate(double most, size_t columns) {
  return std::min(most, 1 / std::sqrt(static_cast<double>(columns)));
}

Estimator MakePremade(const char* name, std::source_location where, const HeadPtr& head,
                      const Status& status, ModelFn model, const EstimatorOptions& options) {
  if (head == nullptr) {
    return Estimator::ErrorAt(where, InvalidArgument(name, ": head must be given, got none"));
  }
  if (!head->status().ok()) return Estimator::ErrorAt(where, head->status());
  if (!status.ok()) return Estimator::ErrorAt(where, Prefixed(name, status));
  return Estimator::MakeAt(where, std::move(model), options);
}

}  // namespace millrace

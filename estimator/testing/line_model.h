// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_TESTING_LINE_MODEL_H_
#define MILLRACE_ESTIMATOR_TESTING_LINE_MODEL_H_

// The model of tests: y = w x + b, fitted to 0.8 x + 1, with the two inputs that there are.

#include <cstdint>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "graph/scope.h"
#include "layers/losses.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_binary.h"
#include "train/gradient_descent.h"
#include "train/metrics.h"

namespace millrace {

inline EstimatorSpec LineModel(const Scope& scope, const Features& features, const Labels& labels,
                               Mode mode) {
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, 0.1f));
  const Variable b = MakeVariable(scope.WithName("b"), Const(scope, 0.1f));
  const Output y = Add(scope, Mul(scope, w.value, features["x"]), b.value);
  EstimatorSpec spec{.mode = mode, .predictions = y};
  if (mode == Mode::kPredict) return spec;
  spec.loss = MeanSquaredError(scope, labels, y);
  if (mode == Mode::kEval) {
    spec.eval_metric_ops["mse"] = metrics::MeanSquaredError(scope, labels, y);
    return spec;
  }
  spec.train_op = GradientDescentOptimizer({.learning_rate = 0.1})
                      .Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

// Two points, for ever.
inline Input Points(const Scope& scope) {
  return Input({{"x", Const(scope, Tensor::Of({0.f, 1.f}))}},
               Const(scope, Tensor::Of({1.f, 1.8f})));
}

// `rows` points as a Dataset in batches of one.
inline Input FewPoints(int64_t rows) {
  std::vector<float> x, y;
  for (int64_t i = 0; i < rows; ++i) {
    x.push_back(static_cast<float>(i) / static_cast<float>(rows));
    y.push_back(0.8f * x.back() + 1);
  }
  return Input(data::Dataset::FromTensorSlices({Tensor::Vector<float>(x), Tensor::Vector<float>(y)})
                   .Batch(1),
               {.names = {"x", "y"}, .labels = {"y"}});
}

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_TESTING_LINE_MODEL_H_

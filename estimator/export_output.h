// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_EXPORT_OUTPUT_H_
#define MILLRACE_ESTIMATOR_EXPORT_OUTPUT_H_

// ExportOutput: what a model offers to callers of an exported one, a signature each.
//
//   .export_outputs = {{"serving_default", ClassificationOutput(scores, classes)},
//                      {"predict", PredictOutput({{"scores", scores}})}}
//
//   output           method                        inputs           outputs
//   Classification   tensorflow/serving/classify   "inputs"         "classes", "scores"
//   Regression       tensorflow/serving/regress    "inputs"         "outputs"
//   Predict          tensorflow/serving/predict    all receivers    its own names
//
// Classification and Regression are for exports with exactly one receiver tensor, a string
// (serialized Examples), and are left out of others. A Predict output of one tensor without a name
// is called "output".
//
// Rules of a spec's outputs (ResolveExportOutputs): none at all is a Predict of the predictions
// under "serving_default"; a single one under another name stands under "serving_default", too;
// several must have one of that name.
//
// Values.

#include <map>
#include <string>

#include "core/status.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"

namespace millrace {

struct ExportOutput {
  enum class Kind { kClassification, kRegression, kPredict };
  Kind kind = Kind::kPredict;
  Output scores = {};        // float [batch, classes]; kClassification
  Output classes = {};       // string [batch, classes]; kClassification
  Output value = {};         // float [batch, ...]; kRegression
  Predictions outputs = {};  // kPredict
};

// One of them may be left out (Output()).
ExportOutput ClassificationOutput(Output scores, Output classes = {});
ExportOutput RegressionOutput(Output value);
ExportOutput PredictOutput(Predictions outputs);

// What of `outputs` and `predictions` becomes signatures. InvalidArgument, naming the output, for
// types that a method cannot have and when nothing says which is the default.
StatusOr<std::map<std::string, ExportOutput>> ResolveExportOutputs(
    const std::map<std::string, ExportOutput>& outputs, const Predictions& predictions);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_EXPORT_OUTPUT_H_

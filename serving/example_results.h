// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_EXAMPLE_RESULTS_H_
#define MILLRACE_SERVING_EXAMPLE_RESULTS_H_

// What Classify and Regress ask of a signature, and their results from what it computed. Rules,
// codes and texts are TensorFlow Serving's, which clients and their tests compare.
//
// Thread-safety: pure functions.
// Failure: InvalidArgument for a signature with another method (where that is checked), another
// number of tensors, and for outputs of another dtype, shape or batch size; FailedPrecondition for
// tensors that have other names. After an error nothing was added to the result.

#include <cstdint>
#include <string>

#include "core/status.h"
#include "core/tensor.h"
#include "saver/model_signature.h"

namespace tensorflow::serving {
class ClassificationResult;
class RegressionResult;
}  // namespace tensorflow::serving

namespace millrace {

// The tensors of a signature that takes examples, by their names in the graph.
struct ClassifyTensors {
  std::string examples;
  bool has_classes = false, has_scores = false;  // at least one
  std::string classes, scores;
};
struct RegressTensors {
  std::string examples, values;
};

StatusOr<ClassifyTensors> ClassifyTensorsOf(const ModelSignature& signature,
                                            bool check_method_name);
StatusOr<RegressTensors> RegressTensorsOf(const ModelSignature& signature, bool check_method_name);

// [num_examples, number of classes]; one of them may be null.
Status AddClassifications(const Tensor* classes, const Tensor* scores, int64_t num_examples,
                          tensorflow::serving::ClassificationResult* result);
// [num_examples] or [num_examples, 1].
Status AddRegressions(const Tensor& values, int64_t num_examples,
                      tensorflow::serving::RegressionResult* result);

}  // namespace millrace

#endif  // MILLRACE_SERVING_EXAMPLE_RESULTS_H_

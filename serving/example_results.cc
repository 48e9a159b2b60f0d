// SPDX-License-Identifier: Apache-2.0
#include "serving/example_results.h"

#include <map>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "proto/meta_graph.pb.h"
#include "proto/serving/classification.pb.h"
#include "proto/serving/regression.pb.h"
#include "proto/types.pb.h"

namespace millrace {
namespace {

constexpr char kInputs[] = "inputs";
constexpr char kOutputs[] = "outputs";
constexpr char kClasses[] = "classes";
constexpr char kScores[] = "scores";

// "DT_FLOAT", as TensorFlow's messages name a dtype.
std::string NumberName(DType dtype) {
  return tensorflow::DataType_Name(static_cast<tensorflow::DataType>(dtype));
}

// `kind` is "classification" or "regression".
Status CheckMethod(const ModelSignature& signature, absl::string_view kind,
                   absl::string_view method) {
  if (signature.method_name() == method) return absl::OkStatus();
  return InvalidArgument("Expected ", kind, " signature method_name to be ", method,
                         ". Was: ", signature.method_name());
}

// `kind` is "classes" or "scores".
Status CheckClassTensor(const Tensor& tensor, absl::string_view kind, DType dtype,
                        int64_t num_examples) {
  if (tensor.rank() != 2) {
    return InvalidArgument("Expected Tensor shape: [batch_size num_classes] but got ",
                           tensor.shape());
  }
  if (tensor.dtype() != dtype) {
    return InvalidArgument("Expected ", kind, " Tensor of ", NumberName(dtype),
                           ". Got: ", NumberName(tensor.dtype()));
  }
  if (tensor.dim(0) != num_examples) {
    return InvalidArgument("Expected ", kind, " output batch size of ", num_examples,
                           ". Got: ", tensor.dim(0));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<ClassifyTensors> ClassifyTensorsOf(const ModelSignature& signature,
                                            bool check_method_name) {
  if (check_method_name) {
    MR_RETURN_IF_ERROR(CheckMethod(signature, "classification", kClassifyMethod));
  }
  const auto &inputs = signature.inputs(), &outputs = signature.outputs();
  if (inputs.size() != 1) return InvalidArgument("Expected one input Tensor.");
  if (outputs.size() != 1 && outputs.size() != 2) {
    return InvalidArgument("Expected one or two output Tensors, found ", outputs.size());
  }
  const auto examples = inputs.find(kInputs);
  if (examples == inputs.end()) {
    return FailedPrecondition("No classification inputs found in SignatureDef: ",
                              signature.def().DebugString());
  }
  const auto classes = outputs.find(kClasses), scores = outputs.find(kScores);
  if (classes == outputs.end() && scores == outputs.end()) {
    return FailedPrecondition(
        "Expected classification signature outputs to contain at least one of \"", kClasses,
        "\" or \"", kScores, "\". Signature was: ", signature.def().DebugString());
  }
  ClassifyTensors tensors;
  tensors.examples = examples->second.name();
  if ((tensors.has_classes = classes != outputs.end())) tensors.classes = classes->second.name();
  if ((tensors.has_scores = scores != outputs.end())) tensors.scores = scores->second.name();
  return tensors;
}

StatusOr<RegressTensors> RegressTensorsOf(const ModelSignature& signature, bool check_method_name) {
  if (check_method_name) MR_RETURN_IF_ERROR(CheckMethod(signature, "regression", kRegressMethod));
  const auto &inputs = signature.inputs(), &outputs = signature.outputs();
  if (inputs.size() != 1) return InvalidArgument("Expected one input Tensor.");
  if (outputs.size() != 1) return InvalidArgument("Expected one output Tensor.");
  const auto examples = inputs.find(kInputs);
  if (examples == inputs.end()) {
    return FailedPrecondition("No regression inputs found in SignatureDef: ",
                              signature.def().DebugString());
  }
  const auto values = outputs.find(kOutputs);
  if (values == outputs.end()) {
    return FailedPrecondition("No regression outputs found in SignatureDef: ",
                              signature.def().DebugString());
  }
  return RegressTensors{examples->second.name(), values->second.name()};
}

Status AddClassifications(const Tensor* classes, const Tensor* scores, int64_t num_examples,
                          tensorflow::serving::ClassificationResult* result) {
  if (classes != nullptr) {
    MR_RETURN_IF_ERROR(CheckClassTensor(*classes, kClasses, DT_STRING, num_examples));
  }
  if (scores != nullptr) {
    MR_RETURN_IF_ERROR(CheckClassTensor(*scores, kScores, DT_FLOAT, num_examples));
  }
  if (classes != nullptr && scores != nullptr && classes->dim(1) != scores->dim(1)) {
    return InvalidArgument("Tensors class and score should match in dim_size(1). Got ",
                           classes->dim(1), " vs. ", scores->dim(1));
  }
  const Tensor* const either = classes != nullptr ? classes : scores;
  const int64_t num_classes = either == nullptr ? 0 : either->dim(1);
  result->mutable_classifications()->Reserve(static_cast<int>(num_examples));
  for (int64_t i = 0; i < num_examples; ++i) {
    auto* const classifications = result->add_classifications();
    classifications->mutable_classes()->Reserve(static_cast<int>(num_classes));
    for (int64_t c = 0; c < num_classes; ++c) {
      tensorflow::serving::Class* const one = classifications->add_classes();
      if (classes != nullptr) one->set_label(classes->at<std::string>(i, c));
      if (scores != nullptr) one->set_score(scores->at<float>(i, c));
    }
  }
  return absl::OkStatus();
}

Status AddRegressions(const Tensor& values, int64_t num_examples,
                      tensorflow::serving::RegressionResult* result) {
  const bool is_column = values.rank() == 2 && values.dim(1) == 1;
  if (values.rank() != 1 && !is_column) {
    return InvalidArgument(
        "Expected output Tensor shape to be either [batch_size] or [batch_size, 1] but got ",
        values.shape());
  }
  if (values.dim(0) != num_examples) {
    return InvalidArgument("Input batch size did not match output batch size: ", num_examples,
                           " vs. ", values.dim(0));
  }
  if (values.dtype() != DT_FLOAT) {
    return InvalidArgument("Expected output Tensor of DT_FLOAT.  Got: ",
                           NumberName(values.dtype()));
  }
  result->mutable_regressions()->Reserve(static_cast<int>(num_examples));
  for (const float value : values.flat<float>()) result->add_regressions()->set_value(value);
  return absl::OkStatus();
}

}  // namespace millrace

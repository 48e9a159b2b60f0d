// SPDX-License-Identifier: Apache-2.0
#include "estimator/serving_input.h"

#include <vector>

#include "data/parse_example.h"
#include "ops/array/placeholder.h"

namespace millrace {
namespace {

// The same with an open first dimension, or that of `batch_size`.
StatusOr<PartialShape> OfBatch(const PartialShape& shape, std::optional<int64_t> batch_size) {
  if (!shape.has_rank()) return shape;
  std::vector<int64_t> dims = {batch_size.value_or(-1)};
  for (int i = 1; i < shape.rank(); ++i) dims.push_back(shape.dim(i));
  return PartialShape::Make(dims);
}

Status CheckBatchSize(std::optional<int64_t> batch_size) {
  if (!batch_size || *batch_size > 0) return absl::OkStatus();
  return InvalidArgument("ServingInputReceiver: default_batch_size must be > 0, got ", *batch_size);
}

}  // namespace

StatusOr<ServingInputReceiver> ServingInputReceiverFn::operator()(const Scope& scope) const {
  if (!valid()) {
    return InvalidArgument("Estimator: serving_input_receiver_fn must be a function, got none");
  }
  StatusOr<ServingInputReceiver> receiver = call_(scope);
  MR_RETURN_IF_ERROR(scope.status());
  if (!receiver.ok()) return receiver;
  if (receiver->features.empty()) {
    return InvalidArgument("ServingInputReceiver: features must be given, got none");
  }
  if (receiver->receivers.empty()) {
    return InvalidArgument("ServingInputReceiver: receivers must be given, got none");
  }
  for (const auto& [name, tensor] : receiver->receivers.map()) {
    if (tensor.valid() && tensor.node()->graph() == scope.graph()) continue;
    return InvalidArgument("ServingInputReceiver: receivers['", name,
                           "'] must be a tensor of the scope's graph, got ",
                           tensor.valid() ? "one of another graph" : "an invalid one");
  }
  return receiver;
}

ServingInputReceiverFn BuildRawServingInputReceiverFn(std::map<std::string, RawFeature> features,
                                                      std::optional<int64_t> default_batch_size) {
  return [features = std::move(features),
          default_batch_size](const Scope& scope) -> StatusOr<ServingInputReceiver> {
    MR_RETURN_IF_ERROR(CheckBatchSize(default_batch_size));
    Features::Map tensors;
    for (const auto& [name, feature] : features) {
      MR_ASSIGN_OR_RETURN(const PartialShape shape, OfBatch(feature.shape, default_batch_size));
      tensors[name] = Placeholder(scope.WithName(name), feature.dtype, shape);
    }
    return ServingInputReceiver{.features = tensors, .receivers = tensors};
  };
}

ServingInputReceiverFn BuildParsingServingInputReceiverFn(
    std::map<std::string, FixedLenFeature> features, std::optional<int64_t> default_batch_size) {
  return [features = std::move(features),
          default_batch_size](const Scope& scope) -> StatusOr<ServingInputReceiver> {
    MR_RETURN_IF_ERROR(CheckBatchSize(default_batch_size));
    const Output serialized = Placeholder(scope.WithName("input_example_tensor"), DT_STRING,
                                          PartialShape{default_batch_size.value_or(-1)});
    ParseExampleFeatures parsed;
    for (const auto& [name, feature] : features) {
      Tensor otherwise;
      if (feature.default_value) {
        otherwise = *feature.default_value;
        if (otherwise.dtype() != feature.dtype) {
          return InvalidArgument("ServingInputReceiver: the default of feature '", name,
                                 "' must be ", feature.dtype, ", got ", otherwise.dtype());
        }
      } else {
        MR_ASSIGN_OR_RETURN(otherwise, Tensor::Zeros(feature.dtype, Shape{0}));  // required
      }
      parsed.dense.push_back({.key = name, .shape = feature.shape, .default_value = otherwise});
    }
    const ParseExampleOutputs outputs =
        ParseExample(scope.WithName("ParseExample"), serialized, parsed);
    MR_RETURN_IF_ERROR(scope.status());
    Features::Map tensors;
    size_t i = 0;
    for (const auto& [name, feature] : features) tensors[name] = outputs.dense[i++];
    return ServingInputReceiver{.features = tensors, .receivers = {{"examples", serialized}}};
  };
}

}  // namespace millrace

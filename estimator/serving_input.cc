// SPDX-License-Identifier: Apache-2.0
#include "estimator/serving_input.h"

#include <set>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "data/decode_csv.h"
#include "data/parse_features.h"
#include "graph/graph.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"

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

// A placeholder for each, of its name.
StatusOr<std::map<std::string, Output>> RawPlaceholders(
    const Scope& scope, const std::map<std::string, RawFeature>& features,
    std::optional<int64_t> batch_size) {
  MR_RETURN_IF_ERROR(CheckBatchSize(batch_size));
  std::map<std::string, Output> tensors;
  for (const auto& [name, feature] : features) {
    MR_ASSIGN_OR_RETURN(const PartialShape shape, OfBatch(feature.shape, batch_size));
    tensors[name] = Placeholder(scope.WithName(name), feature.dtype, shape);
  }
  return tensors;
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
                                                      std::optional<int64_t> default_batch_size,
                                                      std::source_location where) {
  return [features = std::move(features), default_batch_size,
          where](const Scope& given) -> StatusOr<ServingInputReceiver> {
    const Scope scope = given.BuiltAt(where);
    MR_ASSIGN_OR_RETURN(const auto tensors, RawPlaceholders(scope, features, default_batch_size));
    return ServingInputReceiver{.features = tensors, .receivers = tensors};
  };
}

ServingInputReceiverFn BuildRawSupervisedInputReceiverFn(std::map<std::string, RawFeature> features,
                                                         std::map<std::string, RawFeature> labels,
                                                         std::optional<int64_t> default_batch_size,
                                                         std::source_location where) {
  return [features = std::move(features), labels = std::move(labels), default_batch_size,
          where](const Scope& given) -> StatusOr<ServingInputReceiver> {
    const Scope scope = given.BuiltAt(where);
    for (const auto& [name, label] : labels) {
      if (features.count(name) == 0) continue;
      return InvalidArgument(
          "ServingInputReceiver: features and labels must have different names, got '", name,
          "' in both");
    }
    MR_ASSIGN_OR_RETURN(const auto inputs, RawPlaceholders(scope, features, default_batch_size));
    MR_ASSIGN_OR_RETURN(const auto wanted, RawPlaceholders(scope, labels, default_batch_size));
    Receivers::Map receivers = inputs;
    receivers.insert(wanted.begin(), wanted.end());
    return ServingInputReceiver{.features = inputs, .receivers = receivers, .labels = wanted};
  };
}

ServingInputReceiverFn BuildParsingServingInputReceiverFn(FeatureSpecs features,
                                                          std::optional<int64_t> default_batch_size,
                                                          std::source_location where) {
  return [features = std::move(features), default_batch_size,
          where](const Scope& given) -> StatusOr<ServingInputReceiver> {
    const Scope scope = given.BuiltAt(where);
    MR_RETURN_IF_ERROR(CheckBatchSize(default_batch_size));
    const Output serialized = Placeholder(scope.WithName("input_example_tensor"), DT_STRING,
                                          PartialShape{default_batch_size.value_or(-1)});
    const ParsedFeatures parsed = ParseExample(scope, serialized, features);
    MR_RETURN_IF_ERROR(scope.status());
    return ServingInputReceiver{.features = Features(parsed.dense, parsed.sparse),
                                .receivers = {{"examples", serialized}}};
  };
}

ServingInputReceiverFn BuildCsvServingInputReceiverFn(data::CsvOptions csv,
                                                      CsvServingOptions options,
                                                      std::source_location where) {
  return [csv = std::move(csv), options = std::move(options),
          where](const Scope& given) -> StatusOr<ServingInputReceiver> {
    const Scope scope = given.BuiltAt(where);
    MR_RETURN_IF_ERROR(CheckBatchSize(options.default_batch_size));
    // The rules of options, besides those of the op.
    MR_RETURN_IF_ERROR(Prefixed("ServingInputReceiver", data::CsvParser::Make(csv).status()));
    if (csv.names.empty()) {
      return InvalidArgument("ServingInputReceiver: CSV columns must have names, got none");
    }
    std::set<std::string> left_out(options.left_out.begin(), options.left_out.end());
    const Output rows = Placeholder(scope.WithName("csv_row"), DT_STRING,
                                    PartialShape{options.default_batch_size.value_or(-1)});
    std::vector<Output> defaults;
    for (const Tensor& value : csv.defaults) defaults.push_back(Const(scope, value));
    const std::vector<Output> columns =
        DecodeCSV(scope, ExpandDims(scope, rows, Const(scope, -1)), defaults,
                  {.field_delim = csv.field_delim,
                   .use_quote_delim = csv.use_quote_delim,
                   .na_value = csv.na_value,
                   .select_cols = csv.select_cols});
    MR_RETURN_IF_ERROR(scope.status());
    Features::Map features;
    for (size_t c = 0; c < columns.size(); ++c) {
      if (left_out.erase(csv.names[c]) > 0) continue;
      if (!features.emplace(csv.names[c], columns[c]).second) {
        return InvalidArgument("ServingInputReceiver: names of CSV columns must differ, got '",
                               csv.names[c], "' twice");
      }
    }
    if (!left_out.empty()) {
      return InvalidArgument("ServingInputReceiver: what is left out must be a CSV column, got '",
                             *left_out.begin(), "'");
    }
    return ServingInputReceiver{.features = features, .receivers = {{"csv_row", rows}}};
  };
}

namespace {

// Of a batch of instances, as JSON has them; InvalidArgument for what has no such form.
struct JsonForm {
  const std::string& name;
  int64_t batch;

  StatusOr<RawFeature> operator()(const FixedLenFeature& feature) const {
    if (!feature.shape.IsFullyDefined()) {
      return InvalidArgument("ServingInputReceiver: feature '", name,
                             "' must have a shape that is known whole, got ", feature.shape);
    }
    std::vector<int64_t> dims = {batch};
    if (feature.shape.num_elements() != 1 || feature.shape.rank() > 1) {
      dims.insert(dims.end(), feature.shape.dims().begin(), feature.shape.dims().end());
    }
    MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
    return RawFeature{feature.dtype, std::move(shape)};
  }
  StatusOr<RawFeature> operator()(const VarLenFeature& feature) const {
    return RawFeature{feature.dtype, PartialShape{batch}};
  }
  StatusOr<RawFeature> operator()(const SparseFeature&) const { return Refused("sparse"); }
  StatusOr<RawFeature> operator()(const FixedLenSequenceFeature&) const {
    return Refused("a sequence");
  }

 private:
  Status Refused(absl::string_view kind) const {
    return InvalidArgument("ServingInputReceiver: feature '", name,
                           "' must be FixedLen or VarLen to be served as JSON, got ", kind);
  }
};

}  // namespace

ServingInputReceiverFn BuildJsonServingInputReceiverFn(FeatureSpecs features,
                                                       std::optional<int64_t> default_batch_size,
                                                       std::source_location where) {
  return [features = std::move(features), default_batch_size,
          where](const Scope& given) -> StatusOr<ServingInputReceiver> {
    const Scope scope = given.BuiltAt(where);
    MR_RETURN_IF_ERROR(CheckBatchSize(default_batch_size));
    Features::Map tensors;
    for (const auto& [name, spec] : features) {
      MR_ASSIGN_OR_RETURN(const RawFeature form,
                          std::visit(JsonForm{name, default_batch_size.value_or(-1)}, spec));
      tensors[name] = Placeholder(scope.WithName(name), form.dtype, form.shape);
    }
    return ServingInputReceiver{.features = tensors, .receivers = tensors};
  };
}

}  // namespace millrace

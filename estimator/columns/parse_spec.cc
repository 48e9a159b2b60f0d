// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/parse_spec.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "estimator/columns/column_spec.h"

namespace millrace {
namespace {

bool SameSpec(const FeatureSpec& a, const FeatureSpec& b) {
  if (a.index() != b.index()) return false;
  const auto* fixed = std::get_if<FixedLenFeature>(&a);
  if (fixed == nullptr) return std::get<VarLenFeature>(a).dtype == std::get<VarLenFeature>(b).dtype;
  const auto& other = std::get<FixedLenFeature>(b);
  return fixed->dtype == other.dtype && fixed->shape == other.shape &&
         fixed->default_value == other.default_value;
}

std::string Text(const FeatureSpec& spec) {
  if (const auto* fixed = std::get_if<FixedLenFeature>(&spec)) {
    return absl::StrCat("a fixed number of values ", DTypeName(fixed->dtype),
                        fixed->shape.ToString(), fixed->default_value ? " with a default" : "");
  }
  return absl::StrCat("any number of values ", DTypeName(std::get<VarLenFeature>(spec).dtype));
}

Status Add(const std::string& key, FeatureSpec spec, const ColumnSpec& column,
           FeatureSpecs* specs) {
  const auto [place, added] = specs->emplace(key, spec);
  if (added || SameSpec(place->second, spec)) return absl::OkStatus();
  return OfColumn(column, InvalidArgument("MakeParseExampleSpec: columns must want feature '", key,
                                          "' in one way, got ", Text(place->second), " and ",
                                          Text(spec), " of column '", column.name, "'"));
}

// An Example has int64s, whatever integers a column takes.
DType InExamples(DType dtype) {
  return dtype == DT_STRING ? DT_STRING : IsInteger(dtype) ? DT_INT64 : DT_FLOAT;
}

Status AddColumn(const ColumnSpec& column, FeatureSpecs* specs) {
  const auto add = [&](const std::string& key, FeatureSpec spec) {
    return Add(key, std::move(spec), column, specs);
  };
  if (const auto* c = column.As<NumericSpec>()) {
    FixedLenFeature fixed = {InExamples(c->dtype), PartialShape(c->shape), c->default_value};
    return add(c->key, std::move(fixed));
  }
  if (const auto* c = column.As<BucketizedSpec>()) return AddColumn(*c->source, specs);
  if (const auto* c = column.As<HashBucketSpec>()) {
    return add(c->key, VarLenFeature{InExamples(c->dtype)});
  }
  if (const auto* c = column.As<VocabularySpec>()) return add(c->key, VarLenFeature{c->dtype});
  if (const auto* c = column.As<IdentitySpec>()) return add(c->key, VarLenFeature{DT_INT64});
  if (const auto* c = column.As<WeightedSpec>()) {
    MR_RETURN_IF_ERROR(AddColumn(*c->column, specs));
    return add(c->weight_key, VarLenFeature{InExamples(c->dtype)});
  }
  if (const auto* c = column.As<CrossedSpec>()) {
    for (const CrossedSpec::Leaf& leaf : c->leaves) {
      MR_RETURN_IF_ERROR(leaf.column == nullptr ? add(leaf.key, VarLenFeature{DT_STRING})
                                                : AddColumn(*leaf.column, specs));
    }
    return absl::OkStatus();
  }
  if (const auto* c = column.As<IndicatorSpec>()) return AddColumn(*c->column, specs);
  if (const auto* c = column.As<EmbeddingSpec>()) return AddColumn(*c->column, specs);
  const auto* c = column.As<SequenceNumericSpec>();
  return add(c->key, VarLenFeature{InExamples(c->dtype)});
}

StatusOr<FeatureSpecs> WithLabel(const char* function, const std::vector<FeatureColumn>& columns,
                                 const LabelSpec& label, FixedLenFeature label_feature) {
  MR_ASSIGN_OR_RETURN(FeatureSpecs specs, MakeParseExampleSpec(columns));
  if (label.default_value) {
    const Tensor& value = *label.default_value;
    if (value.dtype() != label_feature.dtype || value.num_elements() != label.dimension) {
      return InvalidArgument(function, ": the label's default_value must be ", label_feature.dtype,
                             " of ", label.dimension, " elements, got ", value.dtype(),
                             value.shape());
    }
    MR_ASSIGN_OR_RETURN(label_feature.default_value,
                        value.Reshaped(Shape::Vector(static_cast<size_t>(label.dimension))));
  }
  if (!specs.emplace(label.key, std::move(label_feature)).second) {
    return InvalidArgument(function, ": the label must be no feature of the model, got '",
                           label.key, "', which columns read");
  }
  if (!label.weight_column) return specs;
  MR_RETURN_IF_ERROR(label.weight_column->status());
  const auto* weight = label.weight_column->spec()->As<NumericSpec>();
  FixedLenFeature weight_feature = {InExamples(weight->dtype), PartialShape(weight->shape),
                                    weight->default_value};
  if (!specs.emplace(weight->key, std::move(weight_feature)).second) {
    return InvalidArgument(function,
                           ": the weight_column must be no feature of the model and not "
                           "the label, got '",
                           weight->key, "'");
  }
  return specs;
}

}  // namespace

StatusOr<FeatureSpecs> MakeParseExampleSpec(const std::vector<FeatureColumn>& columns) {
  FeatureSpecs specs;
  for (const FeatureColumn& column : columns) {
    MR_RETURN_IF_ERROR(column.status());
    MR_RETURN_IF_ERROR(AddColumn(*column.spec(), &specs));
  }
  return specs;
}

StatusOr<FeatureSpecs> ClassifierParseExampleSpec(const std::vector<FeatureColumn>& columns,
                                                  const LabelSpec& label) {
  constexpr char kFunction[] = "ClassifierParseExampleSpec";
  const DType dtype = label.dtype == DT_INVALID ? DT_INT64 : label.dtype;
  if (dtype != DT_INT64 && dtype != DT_STRING && dtype != DT_FLOAT) {
    return InvalidArgument(kFunction, ": the label's dtype must be int64, string or float, got ",
                           dtype);
  }
  if (label.dimension != 1) {
    return InvalidArgument(kFunction, ": the label's dimension must be 1, got ", label.dimension);
  }
  return WithLabel(kFunction, columns, label, {dtype, PartialShape(Shape{1}), std::nullopt});
}

StatusOr<FeatureSpecs> RegressorParseExampleSpec(const std::vector<FeatureColumn>& columns,
                                                 const LabelSpec& label) {
  constexpr char kFunction[] = "RegressorParseExampleSpec";
  const DType dtype = label.dtype == DT_INVALID ? DT_FLOAT : label.dtype;
  if (dtype != DT_FLOAT && dtype != DT_INT64) {
    return InvalidArgument(kFunction, ": the label's dtype must be float or int64, got ", dtype);
  }
  if (label.dimension < 1) {
    return InvalidArgument(kFunction, ": the label's dimension must be >= 1, got ",
                           label.dimension);
  }
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({label.dimension}));
  return WithLabel(kFunction, columns, label, {dtype, PartialShape(shape), std::nullopt});
}

}  // namespace millrace

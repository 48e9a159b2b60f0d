// SPDX-License-Identifier: Apache-2.0
#include "data/feature_spec.h"

namespace millrace {
namespace {

template <typename... Parts>
Status BadFeature(absl::string_view where, const std::string& name, const Parts&... parts) {
  return InvalidArgument(where, ": feature '", name, "' ", parts...);
}

StatusOr<Shape> KnownShape(absl::string_view where, const std::string& name,
                           const PartialShape& shape) {
  if (shape.IsFullyDefined()) return shape.ToShape();
  return BadFeature(where, name, "must have a shape that is known whole, got ", shape);
}

// `value` in this shape.
StatusOr<Tensor> Shaped(absl::string_view where, const std::string& name, DType dtype,
                        const Shape& shape, const Tensor& value) {
  if (value.dtype() != dtype) {
    return BadFeature(where, name, "must have a default value of ", dtype, ", got ", value.dtype());
  }
  if (value.num_elements() != shape.num_elements()) {
    return BadFeature(where, name, "must have a default value of shape ", shape, ", got shape ",
                      value.shape());
  }
  return value.Reshaped(shape);
}

}  // namespace

Status CheckFeatureType(absl::string_view where, const std::string& name, DType dtype) {
  if (dtype == DT_FLOAT || dtype == DT_INT64 || dtype == DT_STRING) return absl::OkStatus();
  return BadFeature(where, name, "must be float, int64 or string, got ", dtype);
}

StatusOr<Tensor> DefaultOf(absl::string_view where, const std::string& name,
                           const FixedLenFeature& feature) {
  MR_RETURN_IF_ERROR(CheckFeatureType(where, name, feature.dtype));
  MR_ASSIGN_OR_RETURN(const Shape shape, KnownShape(where, name, feature.shape));
  if (!feature.default_value) return Tensor::Zeros(feature.dtype, Shape{0});
  return Shaped(where, name, feature.dtype, shape, *feature.default_value);
}

StatusOr<Tensor> PaddingOf(absl::string_view where, const std::string& name,
                           const FixedLenSequenceFeature& feature) {
  MR_RETURN_IF_ERROR(CheckFeatureType(where, name, feature.dtype));
  if (!feature.allow_missing) {
    return BadFeature(where, name,
                      "of variable length must allow missing ones, got allow_missing false");
  }
  MR_RETURN_IF_ERROR(KnownShape(where, name, feature.shape).status());
  if (!feature.default_value) return Tensor::Zeros(feature.dtype, Shape());
  return Shaped(where, name, feature.dtype, Shape(), *feature.default_value);
}

}  // namespace millrace

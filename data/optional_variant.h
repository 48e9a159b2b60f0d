// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_OPTIONAL_VARIANT_H_
#define MILLRACE_DATA_OPTIONAL_VARIANT_H_

// An element, or none, as a variant scalar: what the optional ops pass on. Pure functions.

#include <optional>
#include <utility>

#include "core/resource_handle.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/element.h"

namespace millrace::data {

inline constexpr char kOptionalTypeName[] = "tensorflow::data::Optional";
inline constexpr char kHasValue[] = "value";

inline Tensor OptionalTensor(std::optional<Element> element) {
  Variant variant;
  variant.type_name = kOptionalTypeName;
  if (element) {
    variant.metadata = kHasValue;
    variant.tensors = *std::move(element);
  }
  return Tensor::Scalar<Variant>(std::move(variant));
}

// Null when there is none. InvalidArgument when the tensor is no optional.
inline StatusOr<const Element*> ElementOfOptional(const Tensor& tensor) {
  if (tensor.dtype() != DT_VARIANT || tensor.rank() != 0 ||
      tensor.raw_scalar<Variant>().type_name != kOptionalTypeName) {
    return InvalidArgument("optional must be one, got ", tensor.DebugString());
  }
  const Variant& variant = tensor.raw_scalar<Variant>();
  return variant.metadata == kHasValue ? &variant.tensors : nullptr;
}

}  // namespace millrace::data

#endif  // MILLRACE_DATA_OPTIONAL_VARIANT_H_

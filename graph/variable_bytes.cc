// SPDX-License-Identifier: Apache-2.0
#include "graph/variable_bytes.h"

#include <cstddef>
#include <optional>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"

namespace millrace {
namespace {

// Where nothing says how large a node's state is.
constexpr int64_t kUnknownBytes = 1;

int64_t BytesOfElement(DType dtype) {
  if (dtype == DT_STRING) return 8;  // of a reference to the text
  const size_t size = DTypeSize(dtype);
  return size == 0 ? 1 : static_cast<int64_t>(size);  // resources and variants
}

std::optional<int64_t> KnownBytes(const NodeAttrs& attrs) {
  const StatusOr<DType> dtype = GetAttr<DType>(attrs, "dtype");
  const StatusOr<PartialShape> partial = GetAttr<PartialShape>(attrs, "shape");
  if (!dtype.ok() || !partial.ok()) return std::nullopt;
  const StatusOr<Shape> shape = partial->ToShape();
  if (!shape.ok()) return std::nullopt;
  return shape->num_elements() * BytesOfElement(*dtype);
}

}  // namespace

int64_t VariableBytes(const NodeAttrs& attrs) { return KnownBytes(attrs).value_or(kUnknownBytes); }

bool HasVariableBytes(const NodeAttrs& attrs) { return KnownBytes(attrs).has_value(); }

}  // namespace millrace

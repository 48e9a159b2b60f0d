// SPDX-License-Identifier: Apache-2.0
#include "graph/gradient_nodes.h"

#include <utility>
#include <variant>

#include "core/shape.h"
#include "core/small_tensors.h"
#include "core/status.h"
#include "graph/node_builder.h"

namespace millrace::gradient_nodes {
namespace {

Output CastTo(const Scope& scope, Output x, DType dtype) {
  if (x.dtype() == dtype) return x;
  return NodeBuilder(scope, "Cast").Input(x).Attr("DstT", dtype).Finish().output(0);
}

}  // namespace

Output Const(const Scope& scope, absl::string_view name, const Tensor& value) {
  return NodeBuilder(scope.WithName(name), "Const")
      .Attr("dtype", value.dtype())
      .Attr("value", value)
      .Finish()
      .output(0);
}

Output FilledLike(const Scope& scope, absl::string_view name, const Output& like, float value) {
  const DType dtype = WithoutRef(like.dtype());
  const PartialShape known = scope.shape(like);
  if (!known.IsFullyDefined() || dtype == DT_VARIANT) {
    return NodeBuilder(scope.WithName(name), value == 0 ? "ZerosLike" : "OnesLike")
        .Input(like)
        .Finish()
        .output(0);
  }
  StatusOr<Tensor> scalar = ScalarTensor(dtype, static_cast<double>(value));
  StatusOr<Shape> shape = known.ToShape();
  if (!scalar.ok() || !shape.ok()) {
    scope.UpdateStatus(scalar.ok() ? shape.status() : scalar.status(), ScopeAt(scope).where);
    return Output();
  }
  if (shape->is_scalar()) return Const(scope, name, *scalar);
  const Output dims = Const(scope, "Shape", DimsTensor(*shape));
  const Output element = Const(scope, name, *scalar);
  return NodeBuilder(scope, "Fill").Input(dims).Input(element).Finish().output(0);
}

Output Identity(const Scope& scope, const Output& x) {
  return NodeBuilder(scope, "Identity").Input(x).Finish().output(0);
}

Output Concat(const Scope& scope, absl::Span<const Output> parts) {
  if (parts.size() == 1) return parts[0];
  const Output axis = Const(scope, "axis", Tensor::Scalar<int32_t>(0));
  return NodeBuilder(scope, "ConcatV2").Input(parts).Input(axis).Finish().output(0);
}

Output AddN(const Scope& scope, absl::Span<const Output> parts) {
  if (parts.size() == 1) return parts[0];
  return NodeBuilder(scope, "AddN").Input(parts).Finish().output(0);
}

Output MergeTwo(const Scope& scope, absl::string_view name, const Output& on_false,
                const Output& on_true) {
  const Output both[] = {on_false, on_true};
  return NodeBuilder(scope.WithName(name), "Merge")
      .Input(absl::MakeConstSpan(both))
      .Finish()
      .output(0);
}

namespace {

// Where all values are made, if that is one device: joined elsewhere, rows of gradients that are
// made next to their table would leave it and come back.
Scope BesideValues(const Scope& scope, const std::vector<Output>& values) {
  std::string device;
  for (const Output& one : values) {
    if (!one.valid()) return scope;
    if (device.empty()) device = one.node()->requested_device();
    if (device.empty() || one.node()->requested_device() != device) return scope;
  }
  return scope.WithDevice(device);
}

}  // namespace

Gradient Aggregate(const Scope& scope, const std::vector<Gradient>& parts) {
  if (parts.empty()) return std::monostate();
  if (parts.size() == 1) return parts[0];
  bool all_slices = true;
  for (const Gradient& g : parts)
    all_slices = all_slices && std::holds_alternative<IndexedSlices>(g);
  if (!all_slices) {
    std::vector<Output> dense;
    for (const Gradient& g : parts) dense.push_back(DenseGradient(scope, g));
    return AddN(scope, dense);
  }
  DType index_type = DT_INT32;
  for (const Gradient& g : parts) {
    if (std::get<IndexedSlices>(g).indices.dtype() != DT_INT32) index_type = DT_INT64;
  }
  std::vector<Output> values, indices;
  IndexedSlices sum;
  for (const Gradient& g : parts) {
    const IndexedSlices& slices = std::get<IndexedSlices>(g);
    values.push_back(slices.values);
    if (!sum.dense_shape.valid()) sum.dense_shape = slices.dense_shape;
  }
  const Scope beside = BesideValues(scope, values);
  for (const Gradient& g : parts) {
    indices.push_back(CastTo(beside, std::get<IndexedSlices>(g).indices, index_type));
  }
  sum.values = Concat(beside, values);
  sum.indices = Concat(beside, indices);
  return sum;
}

}  // namespace millrace::gradient_nodes

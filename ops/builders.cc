// SPDX-License-Identifier: Apache-2.0
// The builders that do more than one call, and the one that every literal ends in: in a header,
// each program that calls them would compile them.

#include <cstdint>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/small_tensors.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/distinct.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/nn/activations.h"
#include "ops/sparse/sparse_concat.h"
#include "ops/sparse/sparse_cross.h"
#include "ops/sparse/sparse_fill_empty_rows.h"
#include "ops/sparse/sparse_tensor.h"
#include "ops/sparse/sparse_to_dense.h"

namespace millrace {

Output Const(ScopeAt at, const Tensor& value) {
  return NodeBuilder(at, "Const").Attr("dtype", value.dtype()).Value(value).Finish();
}

Output ReductionAxes(ScopeAt at, Output input, const std::vector<int64_t>& axes) {
  std::vector<int32_t> values;
  for (const int64_t axis : axes) values.push_back(static_cast<int32_t>(axis));
  if (axes.empty()) {
    const PartialShape shape = at.scope.shape(input);
    if (!shape.has_rank()) {
      const Output rank = Rank(ScopeAt(at.scope.WithName("Rank"), at.where), input);
      const Output zero = Const(ScopeAt(at.scope.WithName("Const"), at.where), int32_t{0});
      const Output one = Const(ScopeAt(at.scope.WithName("Const"), at.where), int32_t{1});
      return Range(ScopeAt(at.scope.WithName("range"), at.where), zero, rank, one);
    }
    for (int32_t i = 0; i < shape.rank(); ++i) values.push_back(i);
  }
  return ConstVector<int32_t>(ScopeAt(at.scope.WithName("Const"), at.where), values);
}

Output AxesReductionBuilder::operator()(ScopeAt at, const Output& input, const Axes& axes,
                                        const ReductionAttrs& attrs) const {
  return ReductionBuilder{op}(at, input, ReductionAxes(at, input, axes.values()), attrs);
}

Output Norm(ScopeAt at, const Output& x, const Axes& axes, const ReductionAttrs& attrs) {
  const Scope scope = at.here().CompositeScope("norm");
  return Sqrt(scope, ReduceSum(scope, Mul(scope, x, x), axes, attrs));
}

Output Gelu(ScopeAt at, const Output& features, const GeluAttrs& attrs) {
  if (!at.scope.ok() || !features.valid()) return Output();
  const DType dtype = WithoutRef(features.dtype());
  if (!IsFloating(dtype)) {
    at.scope.UpdateStatus(InvalidArgument("Gelu: '", features.name(),
                                          "' must be half, bfloat16, float or double, got ", dtype),
                          at.where);
    return Output();
  }
  const Scope scope = at.here().CompositeScope("Gelu");
  const auto times = [&](double factor, const Output& x) {
    return Mul(scope, ScalarLike(scope, features, factor), x);
  };
  Output phi_twice;
  if (attrs.approximate) {
    constexpr double kScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
    const Output cube = Mul(scope, Square(scope, features), features);
    const Output t = Tanh(scope, times(kScale, Add(scope, features, times(0.044715, cube))));
    phi_twice = Add(scope, ScalarLike(scope, features, 1), t);
  } else {
    // Not 1 + erf: that is 0 where Phi is small.
    phi_twice = Erfc(scope, times(-1 / std::numbers::sqrt2, features));
  }
  return Mul(scope, times(0.5, features), phi_twice);
}

namespace {

// A tensor of one number in a scope of its own.
Output Filled(ScopeAt at, const char* name, const TensorArg& shape, DType dtype, int64_t number) {
  const Scope scope = at.here().CompositeScope(name);
  // false and "" are zeros, too.
  const StatusOr<Tensor> value =
      number == 0 ? Tensor::Zeros(dtype, Shape())
                  : (dtype == DT_BOOL ? Tensor::Scalar<bool>(true) : ScalarTensor(dtype, number));
  if (!value.ok()) {
    at.scope.UpdateStatus(
        Prefixed(absl::StrCat(name, " '", absl::StripSuffix(scope.prefix(), "/"), "'"),
                 value.status()),
        at.where);
    return Output();
  }
  return Fill(scope, shape, Const(scope, *value));
}

}  // namespace

Output Zeros(ScopeAt at, const TensorArg& shape, DType dtype) {
  return Filled(at, "zeros", shape, dtype, 0);
}
Output Ones(ScopeAt at, const TensorArg& shape, DType dtype) {
  return Filled(at, "ones", shape, dtype, 1);
}

std::vector<Output> Unstack(ScopeAt at, const Output& value, int64_t axis) {
  const PartialShape shape = at.scope.shape(value);
  const StatusOr<int> dim = ResolveAxis(axis, shape.rank());
  if (!at.scope.ok() || !value.valid()) return {};
  if (!shape.has_rank() || !dim.ok() || shape.dim(*dim) < 0 || shape.dim(*dim) > INT32_MAX) {
    at.scope.UpdateStatus(
        InvalidArgument("Unstack: dimension ", axis, " of '", value.name(),
                        "' must be known, got shape ", shape, "; Unpack takes their number"),
        at.where);
    return {};
  }
  return Unpack(at, value, static_cast<int>(shape.dim(*dim)), {.axis = axis});
}

Operation Group(ScopeAt at, absl::Span<const Operation> operations) {
  const auto no_op = [&](const Scope& scope, const std::string& device,
                         absl::Span<const Operation> after) -> Operation {
    // A device is taken as it stands, so that no field of the scope's is mixed into it.
    const Scope here = device.empty() ? scope : scope.ColocatedWith({});
    NodeBuilder builder({here, at.where}, "NoOp");
    if (!device.empty()) builder.Device(device);
    for (const Operation& operation : after) builder.ControlInput(operation);
    return builder.Finish();
  };
  // Sorted, so that the same operations give the same graph.
  std::map<std::string, std::vector<Operation>> by_device;
  for (const Operation& operation : operations) {
    if (operation.valid()) by_device[operation.node()->requested_device()].push_back(operation);
  }
  constexpr char kName[] = "group_deps";
  if (by_device.size() <= 1) {
    const std::string device = by_device.empty() ? "" : by_device.begin()->first;
    return no_op(at.scope.WithName(at.scope.RequestedName(kName)), device, operations);
  }
  const Scope inside = at.scope.CompositeScope(kName);
  std::vector<Operation> parts;
  for (const auto& [device, own] : by_device) parts.push_back(no_op(inside, device, own));
  return no_op(inside.WithName(inside.prefix()), "", parts);
}

// --- Sparse tensors ------------------------------------------------------------------------------

namespace {

// The parts of several sparse tensors, as ops take them.
struct SparseLists {
  explicit SparseLists(absl::Span<const SparseTensor> tensors) {
    for (const SparseTensor& tensor : tensors) {
      indices.push_back(tensor.indices);
      values.push_back(tensor.values);
      shapes.push_back(tensor.dense_shape);
    }
  }
  std::vector<Output> indices, values, shapes;
};

std::vector<DType> TypesOf(absl::Span<const Output> outputs) {
  std::vector<DType> types;
  for (const Output& o : outputs) types.push_back(o.valid() ? o.dtype() : DT_STRING);
  return types;
}

}  // namespace

SparseTensor SparseCross(ScopeAt at, absl::Span<const SparseTensor> sparse,
                         absl::Span<const Output> dense, const SparseCrossAttrs& attrs) {
  const SparseLists lists(sparse);
  const std::vector<DType> sparse_types = TypesOf(lists.values), dense_types = TypesOf(dense);
  bool all_strings = true;
  for (const auto& types : {sparse_types, dense_types}) {
    for (const DType type : types) all_strings = all_strings && type == DT_STRING;
  }
  const bool hashed = attrs.hashed_output;
  const BuiltNode node =
      BuildOp(at, "SparseCross", {lists.indices, lists.values, lists.shapes, dense}, "N",
              static_cast<int64_t>(sparse.size()), "sparse_types", sparse_types, "dense_types",
              dense_types, "hashed_output", hashed, "num_buckets", attrs.num_buckets, "hash_key",
              attrs.hash_key, "out_type", hashed ? DT_INT64 : DT_STRING, "internal_type",
              hashed && !all_strings ? DT_INT64 : DT_STRING);
  return SparseTensorAt(node, 0);
}

SparseTensor SparseConcat(ScopeAt at, absl::Span<const SparseTensor> inputs, int64_t concat_dim) {
  const SparseLists lists(inputs);
  return SparseTensorAt(BuildOp(at, "SparseConcat", {lists.indices, lists.values, lists.shapes},
                                "concat_dim", concat_dim),
                        0);
}

std::vector<SparseTensor> SparseSplit(ScopeAt at, Output split_dim, const SparseTensor& input,
                                      int num_split) {
  const BuiltNode node =
      BuildOp(at, "SparseSplit", {split_dim, input.indices, input.values, input.dense_shape},
              "num_split", num_split);
  std::vector<SparseTensor> parts;
  for (int i = 0; i < num_split; ++i) {
    parts.push_back({node.output(i), node.output(num_split + i), node.output(2 * num_split + i)});
  }
  return parts;
}

SparseTensor SparseRetain(ScopeAt at, const SparseTensor& input, Output to_retain) {
  const Scope inside = at.scope.CompositeScope("SparseRetain");
  const ScopeAt here(inside, at.where);
  const Output places = Reshape(here, Where(here, to_retain), Const<int32_t>(here, {-1}));
  const Output rows = Const(here, 0);
  return {GatherV2(here, input.indices, places, rows), GatherV2(here, input.values, places, rows),
          input.dense_shape};
}

SparseTensor DenseToSparse(ScopeAt at, Output dense, Output missing) {
  const Scope inside = at.scope.CompositeScope("DenseToSparse");
  const ScopeAt here(inside, at.where);
  const Output indices = Where(here, NotEqual(here, dense, missing));
  return {indices, GatherNd(here, dense, indices), ShapeOf(here, dense, {.out_type = DT_INT64})};
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_to_dense.h"

#include <cstdint>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/math/select.h"
#include "ops/rules/elements.h"
#include "ops/rules/shape_input.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// indices as [n, rank]: a vector has indices of one number, a scalar is one of them.
PartialShape AsMatrix(const PartialShape& indices) {
  if (!indices.has_rank()) return PartialShape({-1, -1});
  return {indices.rank() > 0 ? indices.dim(0) : 1, indices.rank() > 1 ? indices.dim(1) : 1};
}

struct SparseToDenseRule {
  bool validate_indices = true;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "validate_indices", &validate_indices);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape &indices = c->input(0), &values = c->input(2);
    if (indices.has_rank() && indices.rank() > 2) {
      return InvalidArgument("sparse_indices must have rank at most 2, got shape ", indices);
    }
    MR_ASSIGN_OR_RETURN(const PartialShape shape, ShapeOfInput(c, 1, "output_shape"));
    MR_RETURN_IF_ERROR(c->InputWithRank(3, 0, "default_value").status());
    const PartialShape matrix = AsMatrix(indices);
    if (shape.has_rank() && matrix.dim(1) >= 0 && matrix.dim(1) != shape.rank()) {
      return InvalidArgument("output_shape must have ", matrix.dim(1),
                             " dimensions, as many as the indices have, got shape ", shape);
    }
    if (values.has_rank() && values.rank() > 1) {
      return InvalidArgument("sparse_values must be a scalar or a vector, got shape ", values);
    }
    if (values.has_rank() && values.rank() == 1 && values.dim(0) >= 0 && matrix.dim(0) >= 0 &&
        values.dim(0) != matrix.dim(0)) {
      return InvalidArgument("sparse_values must be a scalar or have one element for each of the ",
                             matrix.dim(0), " indices, got ", values.dim(0));
    }
    return shape;
  }
};

Status RunSparseToDense(KernelContext* ctx, const SparseToDenseRule& rule) {
  const Tensor& values = ctx->input(2);
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(1), "output_shape"));
  MR_ASSIGN_OR_RETURN(
      const Tensor indices,
      ctx->input(0).Reshaped(Shape::Of(AsMatrix(PartialShape(ctx->input(0).shape())))));
  MR_ASSIGN_OR_RETURN(
      const std::vector<int64_t> places,
      FlatPlaces(indices, shape, rule.validate_indices ? PlaceOrder::kUnique : PlaceOrder::kAny,
                 "sparse_indices"));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  MR_RETURN_IF_ERROR(FillElements(ctx->input(3), out));
  const int64_t step = values.rank() == 0 ? 0 : 1;
  return VisitElements(values.dtype(), [&]<typename E>() {
    const E* value = ElementsOf<E>(values);
    E* const to = MutableElementsOf<E>(out);
    for (const int64_t place : places) {
      to[place] = *value;
      value += step;
    }
  });
}

// A value has the gradient of its place, if it is the one that stayed there; the default value
// those of all places without a value.
std::vector<Output> SparseToDenseGradient(GradientContext* c) {
  const StatusOr<SparseToDenseRule> rule = c->GetRule<SparseToDenseRule>();
  const Scope& s = c->scope();
  const Output shape = c->input(1), values = c->input(2), grad = c->dense_grad();
  const Output rest = Const(s, Tensor::Vector<int32_t>({-1}));
  const Output rank = Reshape(s, Size(s, shape), Const<int32_t>(s, {1}));
  const Output indices = Reshape(s, c->input(0), ConcatV2(s, {rest, rank}, Const(s, 0)));
  Output picked = GatherNd(s, grad, indices);
  if (!rule.ok() || !rule->validate_indices) {
    const Output numbers = Range(s, Const(s, 0), Size(s, picked), Const(s, 1));
    const Output last =
        SparseToDense(s, indices, shape, numbers, Const(s, 0), {.validate_indices = false});
    picked = Select(s, Equal(s, GatherNd(s, last, indices), numbers), picked, ZerosLike(s, picked));
  }
  const Output is_default = SparseToDense(s, indices, shape, Const(s, false), Const(s, true),
                                          {.validate_indices = false});
  const Output elsewhere = Select(s, is_default, grad, ZerosLike(s, grad));
  return {Output(), Output(), SumToInput(s, picked, values, picked), ReduceSum(s, elsewhere)};
}

const OpRegistration kSparseToDense =
    OpSpec("SparseToDense",
           "sparse_indices: Tindices, output_shape: Tindices, sparse_values: T, default_value: T "
           "-> dense: T",
           "validate_indices: bool = true; T: type; Tindices: {int32, int64}")
        .With(RuledKernelFor<SparseToDenseRule>(RunSparseToDense))
        .Gradient(SparseToDenseGradient);

}  // namespace
}  // namespace millrace

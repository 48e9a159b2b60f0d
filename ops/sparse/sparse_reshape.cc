// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_reshape.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/transpose.h"
#include "ops/rules/elements.h"
#include "ops/rules/sizes_with_rest.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- SparseReshape -------------------------------------------------------------------------------

constexpr SparseArgs kReshapeArgs{.indices = 0, .values = -1, .shape = 1, .prefix = "input_"};

struct SparseReshapeRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize input, CheckSparseInput(c, kReshapeArgs));
    MR_ASSIGN_OR_RETURN(const PartialShape new_shape, c->InputWithRank(2, 1, "new_shape"));
    c->set_output(0, {input.count, new_shape.dim(0)});
    c->set_output(1, new_shape);
    return absl::OkStatus();
  }
};

StatusOr<SparseShape> Reshaped(const SparseShape& from, IntSpan new_shape) {
  MR_ASSIGN_OR_RETURN(SizesWithRest sizes, SizesWithRest::Read("new_shape", PartialInts(new_shape),
                                                               static_cast<int>(new_shape.size())));
  if (sizes.rest) {
    sizes.open() = 1;
    MR_ASSIGN_OR_RETURN(const SparseShape others,
                        SparseShape::Make(absl::MakeConstSpan(sizes.sizes), "new_shape"));
    if (others.num_elements == 0 || from.num_elements % others.num_elements != 0) {
      return InvalidArgument("new_shape must make as many elements as input_shape ",
                             from.ToString(), ", got [", absl::StrJoin(new_shape.ToVector(), ","),
                             "]");
    }
    sizes.sizes[static_cast<size_t>(*sizes.rest)] = from.num_elements / others.num_elements;
  }
  MR_ASSIGN_OR_RETURN(const SparseShape to,
                      SparseShape::Make(absl::MakeConstSpan(sizes.sizes), "new_shape"));
  if (to.num_elements != from.num_elements) {
    return InvalidArgument("new_shape must make as many elements as input_shape ", from.ToString(),
                           ", got ", to.ToString());
  }
  return to;
}

Status RunSparseReshape(KernelContext* ctx, const SparseReshapeRule&) {
  MR_ASSIGN_OR_RETURN(const SparseShape from, SparseShape::Of(ctx->input(1), "input_shape"));
  MR_ASSIGN_OR_RETURN(const SparseShape to, Reshaped(from, ctx->input(2).ints()));
  if (to.dims == from.dims) {
    ctx->set_output(0, ctx->input(0));
    ctx->set_output(1, ctx->input(1));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> places,
                      FlatPlaces(ctx->input(0), from, PlaceOrder::kAny, "input_indices"));
  int64_t* index = indices->mutable_raw<int64_t>().data();
  for (int64_t place : places) {
    for (const int64_t stride : to.strides) {
      *index++ = place / stride;
      place %= stride;
    }
  }
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(1));
  std::copy(to.dims.begin(), to.dims.end(), shape->mutable_raw<int64_t>().begin());
  return absl::OkStatus();
}

const OpRegistration kSparseReshape =
    OpSpec("SparseReshape",
           "input_indices: int64, input_shape: int64, new_shape: int64 -> "
           "output_indices: int64, output_shape: int64")
        .With(RuledKernelFor<SparseReshapeRule>(RunSparseReshape))
        .NotDifferentiable();

// --- SparseReorder -------------------------------------------------------------------------------

struct SparseReorderRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize input, CheckSparseInput(c, {.prefix = "input_"}));
    c->set_output(0, {input.count, input.rank});
    c->set_output(1, {input.count});
    return absl::OkStatus();
  }
};

Status RunSparseReorder(KernelContext* ctx, const SparseReorderRule&) {
  const Tensor &indices = ctx->input(0), &values = ctx->input(1);
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(2), "input_shape"));
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> places,
                      FlatPlaces(indices, shape, PlaceOrder::kAny, "input_indices"));
  const std::vector<int64_t> order = OrderOf(places);
  if (order.empty()) {
    ctx->set_output(0, indices);
    ctx->set_output(1, values);
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Tensor * sorted_indices, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(Tensor * sorted_values, ctx->AllocateOutput(1));
  const int64_t rank = shape.rank();
  const int64_t* const from = indices.raw<int64_t>().data();
  int64_t* to = sorted_indices->mutable_raw<int64_t>().data();
  for (const int64_t i : order) to = std::copy_n(from + i * rank, rank, to);
  return VisitElements(values.dtype(), [&]<typename E>() {
    E* value = MutableElementsOf<E>(sorted_values);
    for (const int64_t i : order) *value++ = ElementsOf<E>(values)[i];
  });
}

// The number of each element, sorted as the elements were, says where each of them came from.
Status SparseReorderGradient(GradientContext* c) {
  if (!c->has_grad(1)) return absl::OkStatus();
  const Scope& s = c->scope();
  const Output numbers = Range(s, Const(s, 0), Size(s, c->input(1)), Const(s, 1));
  const SparseTensor sorted = SparseReorder(s, {c->input(0), numbers, c->input(2)});
  c->set_input_grad(
      1, GatherV2(s, c->dense_grad(1), InvertPermutation(s, sorted.values), Const(s, 0)));
  return absl::OkStatus();
}

const OpRegistration kSparseReorder =
    OpSpec("SparseReorder",
           "input_indices: int64, input_values: T, input_shape: int64 -> "
           "output_indices: int64, output_values: T",
           "T: type")
        .With(RuledKernelFor<SparseReorderRule>(RunSparseReorder))
        .Gradient(SparseReorderGradient);

}  // namespace
}  // namespace millrace

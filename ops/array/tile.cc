// SPDX-License-Identifier: Apache-2.0
#include "ops/array/tile.h"

#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/int_inputs.h"
#include "ops/rules/per_dimension.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// The only place that knows which (input, multiples) pairs are legal.
StatusOr<PartialShape> TiledShape(const PartialShape& input, const Ints& multiples) {
  Ints dims(multiples.size(), -1);
  for (size_t d = 0; d < multiples.size(); ++d) {
    if (multiples[d] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("multiples[", d, "] must be >= 0, got ", multiples[d]));
    }
    const int64_t dim = input.has_rank() ? input.dim(static_cast<int>(d)) : -1;
    if (dim == -1) {
      if (multiples[d] == 0) dims[d] = 0;
      continue;
    }
    MR_ASSIGN_OR_RETURN(dims[d], CheckedProduct(dim, multiples[d]));
  }
  return PartialShape::Make(dims);
}

Status TileShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape multiples_shape, c->InputWithRank(1, 1));
  MR_ASSIGN_OR_RETURN(const PartialShape input,
                      WithLength(c->input(0), multiples_shape, "multiples"));
  if (!input.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  if (const std::optional<Ints> multiples = ConstantInts(c, 1)) {
    MR_RETURN_IF_ERROR(CheckLength("multiples", multiples->size(), input.rank()));
    MR_ASSIGN_OR_RETURN(PartialShape shape, TiledShape(input, *multiples));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  // Some multiples may be known even when others are not.
  MR_ASSIGN_OR_RETURN(const PartialShape some, c->input_as_shape(1));
  if (some.has_rank()) {
    MR_RETURN_IF_ERROR(CheckLength("multiples", static_cast<size_t>(some.rank()), input.rank()));
  }
  Ints dims(static_cast<size_t>(input.rank()), -1);
  for (int d = 0; some.has_rank() && d < input.rank(); ++d) {
    if (some.dim(d) == -1 || input.dim(d) == -1) continue;
    MR_ASSIGN_OR_RETURN(dims[static_cast<size_t>(d)], CheckedProduct(some.dim(d), input.dim(d)));
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class TileKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints multiples, ctx->IntVectorInput(1, "multiples"));
    const Tensor input = ctx->TakeInput(0);
    MR_RETURN_IF_ERROR(CheckLength("multiples", multiples.size(), input.rank()));
    MR_ASSIGN_OR_RETURN(const PartialShape known, TiledShape(input.shape(), multiples));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    if (shape == input.shape()) {
      ctx->set_output(0, input);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    // Each dimension becomes two: (copy, element); all copies read the same elements.
    Ints dims;
    BoxSide from, to;
    const BoxSide dense_in = DenseSide(input.shape().dims()), dense_out = DenseSide(shape.dims());
    for (size_t d = 0; d < multiples.size(); ++d) {
      const int64_t dim = input.dim(static_cast<int>(d));
      dims.insert(dims.end(), {multiples[d], dim});
      from.strides.push_back(0);
      from.strides.push_back(dense_in.strides[d]);
      to.strides.push_back(dim * dense_out.strides[d]);
      to.strides.push_back(dense_out.strides[d]);
    }
    return CopyBox(ctx, dims, input, from, out, to);
  }
};

// An element that was copied k times gets the sum of k contributions: the gradient, seen as
// [copies, elements, copies, elements, ...], is added up over the copies.
Status TileGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output multiples = c->input(1);
  const Output shape = ShapeOf(scope, c->input(0), {.out_type = multiples.dtype()});
  const Output pairs =
      Reshape(scope, Pack(scope, {multiples, shape}, {.axis = 1}), Const<int32_t>(scope, {-1}));
  const Output axes =
      Range(scope, Const(scope, int32_t{0}), Size(scope, pairs), Const(scope, int32_t{2}));
  const Output sum = NodeBuilder(scope, "Sum")
                         .Input(Reshape(scope, c->dense_grad(0), pairs))
                         .Input(axes)
                         .Finish()
                         .output(0);
  c->set_input_grad(0, sum);
  return absl::OkStatus();
}

const OpRegistration kTile = OpSpec("Tile")
                                 .Input("input: T")
                                 .Input("multiples: Tmultiples")
                                 .Output("output: T")
                                 .Attr("T: type")
                                 .Attr("Tmultiples: {int32, int64} = DT_INT32")
                                 .Shape(TileShape)
                                 .Gradient(TileGradient);
const KernelRegistration kTileKernel = KernelFor<TileKernel>("Tile");

}  // namespace
}  // namespace millrace

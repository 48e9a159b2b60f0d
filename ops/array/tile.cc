// SPDX-License-Identifier: Apache-2.0
#include "ops/array/tile.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/math/reduction.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/per_dimension.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Output dimension d is input dimension d times multiples[d].
struct TileRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts multiples, c->IntVector(1, "multiples"));
    MR_ASSIGN_OR_RETURN(const PartialShape input, WithLength(c->input(0), multiples, "multiples"));
    if (!input.has_rank()) return input;
    Ints dims(input.dims().begin(), input.dims().end());
    for (int d = 0; d < input.rank(); ++d) {
      const std::optional<int64_t> copies = multiples.at(d);
      if (copies.value_or(0) < 0) {
        return InvalidArgument("multiples[", d, "] must be >= 0, got ", *copies);
      }
      int64_t& dim = dims[static_cast<size_t>(d)];
      if (!copies) {
        dim = -1;
      } else if (dim >= 0 || *copies == 0) {
        MR_ASSIGN_OR_RETURN(dim, CheckedProduct(std::max<int64_t>(dim, 0), *copies));
      }
    }
    return PartialShape::Make(dims);
  }
};

Status RunTile(KernelContext* ctx, const TileRule&) {
  const Tensor& input = ctx->input(0);
  const Shape& shape = ctx->output_shape(0);
  if (shape == input.shape()) return ctx->PassInput(0);
  const IntSpan multiples = ctx->input(1).ints();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
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

// An element that was copied k times gets the sum of k contributions: the gradient, seen as
// [copies, elements, copies, elements, ...], is added up over the copies.
Output TileGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output multiples = c->input(1);
  const Output shape = ShapeOf(s, c->input(0), {.out_type = multiples.dtype()});
  const Output pairs =
      Reshape(s, Pack(s, {multiples, shape}, {.axis = 1}), Const<int32_t>(s, {-1}));
  const Output copies = Range(s, Const(s, 0), Size(s, pairs), Const(s, 2));
  return Sum(s, Reshape(s, c->dense_grad(), pairs), copies);
}

const OpRegistration kTile = OpSpec("Tile", "input: T, multiples: Tmultiples -> output: T",
                                    "T: type; Tmultiples: {int32, int64} = DT_INT32")
                                 .With(RuledKernelFor<TileRule>(RunTile))
                                 .Gradient(TileGradient);

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reshape.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/rules/sizes_with_rest.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// --- Reshape, ExpandDims, Squeeze ----------------------------------------------------------------

// The -1 of `sizes`, which has a 0, for an input without elements: what the other dimensions leave
// when zeros are not counted, as in TensorFlow from 2.0 on. [0,2,3] by [0,-1] is [0,6]: a model
// that reshapes its batches gives an empty one the shape of the others.
StatusOr<int64_t> RestOfEmpty(const PartialShape& input, const Ints& sizes) {
  int64_t in = 1, out = 1;
  for (const int64_t dim : input.dims()) {
    MR_ASSIGN_OR_RETURN(in, CheckedProduct(in, std::max<int64_t>(dim, 1)));
  }
  for (const int64_t size : sizes) {
    MR_ASSIGN_OR_RETURN(out, CheckedProduct(out, std::max<int64_t>(size, 1)));
  }
  return in / out;
}

struct ReshapeRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts given, c->IntVector(1, "shape"));
    if (!given.has_size()) return PartialShape();
    MR_ASSIGN_OR_RETURN(SizesWithRest wanted, SizesWithRest::Read("shape", given, given.size()));
    int64_t product = 1;  // of the dimensions that are known
    for (const int64_t dim : wanted.sizes) {
      MR_ASSIGN_OR_RETURN(product, CheckedProduct(product, dim == -1 ? 1 : dim));
    }
    const int64_t elements = c->input(0).num_elements();
    if (elements == 0 && product == 0 && wanted.num_open == 1) {
      MR_ASSIGN_OR_RETURN(wanted.open(), RestOfEmpty(c->input(0), wanted.sizes));
      return PartialShape::Make(wanted.sizes);
    }
    const bool is_multiple = product == 0 ? elements == 0 : elements % product == 0;
    if (elements >= 0 && (wanted.num_open == 0 ? elements != product : !is_multiple)) {
      MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShape::Make(wanted.sizes));
      return InvalidArgument("Input to reshape is a tensor with ", elements,
                             " values, but the requested shape ", shape,
                             wanted.num_open > 0 ? " requires a multiple of " : " has ", product);
    }
    if (elements >= 0 && product > 0 && wanted.num_open == 1) wanted.open() = elements / product;
    return PartialShape::Make(wanted.sizes);
  }
};

struct ExpandDimsRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    // Old graphs have vectors of one element here.
    if (c->input(1).IsFullyDefined() && c->input(1).num_elements() != 1) {
      return InvalidArgument("dim must have one element, got shape ", c->input(1));
    }
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> dim,
                        c->IntScalar(1, "dim", /*allow_single=*/true));
    const PartialShape& input = c->input(0);
    if (!input.has_rank()) return input;
    const int rank = input.rank();
    if (rank >= Shape::kMaxRank) {
      return InvalidArgument("the rank must be < ", Shape::kMaxRank, ", got ", rank);
    }
    if (!dim) return PartialShape::UnknownOfRank(rank + 1);
    if (*dim < -1 - rank || *dim > rank) {
      return InvalidArgument("dim must be in [", -1 - rank, ", ", rank, "], got ", *dim);
    }
    Ints dims(input.dims().begin(), input.dims().end());
    dims.insert(dims.begin() + (*dim < 0 ? *dim + rank + 1 : *dim), 1);
    return PartialShape::Make(dims);
  }
};

struct SqueezeRule {
  Ints squeeze_dims;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "squeeze_dims", &squeeze_dims); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& input = c->input(0);
    if (!input.has_rank()) return input;
    std::vector<bool> may_go(static_cast<size_t>(input.rank()), squeeze_dims.empty());
    for (size_t i = 0; i < squeeze_dims.size(); ++i) {
      const StatusOr<int> axis = ResolveAxis(squeeze_dims[i], input.rank());
      if (!axis.ok()) {
        return InvalidArgument("squeeze_dims[", i, "] must be in [", -input.rank(), ", ",
                               input.rank(), "), got ", squeeze_dims[i]);
      }
      const int64_t dim = input.dim(*axis);
      if (dim != 1 && dim != -1) {
        return InvalidArgument("Can not squeeze dim[", *axis, "], expected a dimension of 1, got ",
                               dim);
      }
      may_go[static_cast<size_t>(*axis)] = true;
    }
    Ints dims;
    for (int d = 0; d < input.rank(); ++d) {
      const int64_t dim = input.dim(d);
      if (!may_go[static_cast<size_t>(d)] || (dim != 1 && dim != -1)) {
        dims.push_back(dim);
      } else if (dim == -1 && squeeze_dims.empty()) {
        return PartialShape();  // it may be 1 and go, or stay
      }
    }
    return PartialShape::Make(dims);
  }
};

// The same elements in the rule's shape.
template <typename Rule>
KernelSpec ReshapeKernel() {
  return RuledKernelFor<Rule>([](KernelContext* ctx, const Rule&) { return ctx->PassInput(0); },
                              KernelCost::kCheap);
}

// The same elements in the input's shape.
Output ShapedAsInput(GradientContext* c) {
  return Reshape(c->scope(), c->dense_grad(), ShapeOf(c->scope(), c->input(0)));
}

const OpRegistration kReshape = OpSpec("Reshape", "tensor: T, shape: Tshape -> output: T",
                                       "T: type; Tshape: {int32, int64} = DT_INT32")
                                    .With(ReshapeKernel<ReshapeRule>())
                                    .Gradient(ShapedAsInput)
                                    .With(PartialValueRule(ReshapedInputValue));

const OpRegistration kExpandDims = OpSpec("ExpandDims", "input: T, dim: Tdim -> output: T",
                                          "T: type; Tdim: {int32, int64} = DT_INT32")
                                       .With(ReshapeKernel<ExpandDimsRule>())
                                       .Gradient(ShapedAsInput)
                                       .With(PartialValueRule(ReshapedInputValue));

const OpRegistration kSqueeze =
    OpSpec("Squeeze", "input: T -> output: T", "T: type; squeeze_dims: list(int) >= 0 = []")
        .With(ReshapeKernel<SqueezeRule>())
        .Gradient(ShapedAsInput)
        .With(PartialValueRule(ReshapedInputValue));

// --- Shape, ShapeN, Size, Rank -------------------------------------------------------------------

// Output i is a vector of these numbers, or their only one as a scalar.
Status OutputInts(KernelContext* ctx, int i, const Shape& shape, absl::Span<const int64_t> values) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(i, shape));
  for (size_t d = 0; d < values.size(); ++d) {
    if (out->dtype() == DT_INT64) {
      out->mutable_raw<int64_t>()[d] = values[d];
    } else if (values[d] <= std::numeric_limits<int32_t>::max()) {
      out->mutable_raw<int32_t>()[d] = static_cast<int32_t>(values[d]);
    } else {
      return InvalidArgument(
          shape.is_scalar() ? "the number of elements" : absl::StrCat("dimension ", d),
          " must fit into out_type int32, got ", values[d], "; use out_type int64");
    }
  }
  return absl::OkStatus();
}

class ShapeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const absl::Span<const int64_t> dims = ctx->input(i).shape().dims();
      MR_RETURN_IF_ERROR(OutputInts(ctx, i, Shape::Vector(dims.size()), dims));
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

// Output i has as many elements as input i has dimensions.
struct ShapeRule {
  Status operator()(RuleContext* c) const {
    for (int i = 0; i < c->num_inputs(); ++i) {
      c->set_output(i, PartialShape({c->input(i).has_rank() ? c->input(i).rank() : -1}));
    }
    return absl::OkStatus();
  }
};

const OpRegistration kShape =
    OpSpec("Shape", "input: T -> output: out_type", "T: type; out_type: {int32, int64} = DT_INT32")
        .Rule<ShapeRule>()
        .NotDifferentiable()
        .With(KernelFor<ShapeKernel>())
        .With(PartialValueRule(ShapeOfInputValue, PartialValueRule::kOfShapes));

const OpRegistration kShapeN =
    OpSpec("ShapeN", "input: N * T -> output: N * out_type",
           "N: int >= 1; T: type; out_type: {int32, int64} = DT_INT32")
        .Rule<ShapeRule>()
        .NotDifferentiable()
        .With(KernelFor<ShapeKernel>())
        .With(PartialValueRule(ShapeOfInputValue, PartialValueRule::kOfShapes));

// What Size and Rank tell of a shape; nullopt while it is not known.
std::optional<int64_t> SizeOf(const PartialShape& shape) {
  if (!shape.IsFullyDefined()) return std::nullopt;
  return shape.num_elements();
}
std::optional<int64_t> RankOf(const PartialShape& shape) {
  if (!shape.has_rank()) return std::nullopt;
  return shape.rank();
}

template <std::optional<int64_t> (*kNumber)(const PartialShape&)>
class NumberKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    return OutputInts(ctx, 0, Shape(), {*kNumber(ctx->input(0).shape())});
  }
  bool may_be_expensive() const override { return false; }
};

template <std::optional<int64_t> (*kNumber)(const PartialShape&)>
std::optional<PartialValue> NumberValue(PartialValueContext* c) {
  return PartialValue{/*is_scalar=*/true, {kNumber(c->input_shape(0))}};
}

const OpRegistration kSize =
    OpSpec("Size", "input: T -> output: out_type", "T: type; out_type: {int32, int64} = DT_INT32")
        .Shape(ScalarShape)
        .NotDifferentiable()
        .With(KernelFor<NumberKernel<SizeOf>>())
        .With(PartialValueRule(NumberValue<SizeOf>, PartialValueRule::kOfShapes));

const OpRegistration kRank =
    OpSpec("Rank", "input: T -> output: int32", "T: type")
        .Shape(ScalarShape)
        .NotDifferentiable()
        .With(KernelFor<NumberKernel<RankOf>>())
        .With(PartialValueRule(NumberValue<RankOf>, PartialValueRule::kOfShapes));

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reshape.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// The gradient of an op that only changes the shape: the same elements in the input's shape.
Status ShapedAsInput(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  c->set_input_grad(0, Reshape(scope, c->dense_grad(0), ShapeOf(scope, c->input(0))));
  return absl::OkStatus();
}

// Passes input 0 on in another shape.
Status OutputReshaped(KernelContext* ctx, const Shape& shape) {
  MR_ASSIGN_OR_RETURN(Tensor out, ctx->TakeInput(0).Reshaped(shape));
  ctx->set_output(0, std::move(out));
  return absl::OkStatus();
}

// --- Reshape -------------------------------------------------------------------------------------

// The shape that Reshape gives to `input`; the only place that knows which (input, shape) pairs are
// legal. In `wanted`, -1 stands for what remains when `exact`, else for anything that is not known.
StatusOr<PartialShape> ReshapedShape(const PartialShape& input, absl::Span<const int64_t> wanted,
                                     bool exact) {
  std::vector<int64_t> dims(wanted.begin(), wanted.end());
  int num_unknown = 0;
  size_t unknown = 0;
  int64_t product = 1;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] == -1) {
      if (num_unknown++ > 0 && exact) {
        return absl::InvalidArgumentError(absl::StrCat(
            "shape must have at most one -1, got one at [", unknown, "] and one at [", i, "]"));
      }
      unknown = i;
      continue;
    }
    if (dims[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape[", i, "] must be >= -1, got ", dims[i]));
    }
    MR_ASSIGN_OR_RETURN(product, CheckedProduct(product, dims[i]));
  }
  const int64_t elements = input.num_elements();
  const auto mismatch = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShape::Make(wanted));
    return absl::InvalidArgumentError(absl::StrCat(
        "Input to reshape is a tensor with ", elements, " values, but the requested shape ",
        shape.ToString(), num_unknown > 0 ? " requires a multiple of " : " has ", product));
  };
  if (elements < 0) {
    // Without the number of elements: when nothing is left open, the input must have just that one.
    return PartialShape::Make(dims);
  }
  if (num_unknown == 0) {
    if (product != elements) return mismatch();
    return PartialShape::Make(dims);
  }
  if (product == 0) {
    if (exact) {
      return absl::InvalidArgumentError(
          absl::StrCat("shape cannot have -1 beside a dimension of 0, got -1 at [", unknown, "]"));
    }
    if (elements != 0) return mismatch();
    return PartialShape::Make(dims);
  }
  if (num_unknown == 1) {
    if (elements % product != 0) return mismatch();
    dims[unknown] = elements / product;
  }
  return PartialShape::Make(dims);
}

Status ReshapeShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 1).status());
  if (const std::optional<std::vector<int64_t>> wanted = ConstantInts(c, 1)) {
    MR_ASSIGN_OR_RETURN(PartialShape shape, ReshapedShape(c->input(0), *wanted, /*exact=*/true));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const PartialShape wanted, c->input_as_shape(1));
  if (!wanted.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape,
                      ReshapedShape(c->input(0), wanted.dims(), /*exact=*/false));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class ReshapeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> wanted, ctx->IntVectorInput(1, "shape"));
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        ReshapedShape(ctx->input(0).shape(), wanted, /*exact=*/true));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    return OutputReshaped(ctx, shape);
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kReshape = OpSpec("Reshape")
                                    .Input("tensor: T")
                                    .Input("shape: Tshape")
                                    .Output("output: T")
                                    .Attr("T: type")
                                    .Attr("Tshape: {int32, int64} = DT_INT32")
                                    .Shape(ReshapeShape)
                                    .Gradient(ShapedAsInput);
const PartialValueRule kReshapeRule("Reshape", ReshapedInputValue);
const KernelRegistration kReshapeKernel = KernelFor<ReshapeKernel>("Reshape");

// --- ExpandDims ----------------------------------------------------------------------------------

// Where ExpandDims puts the new dimension; the only place that knows which (rank, dim) are legal.
StatusOr<int> ExpandedAt(int rank, int64_t dim) {
  if (dim < -1 - int64_t{rank} || dim > rank) {
    return absl::InvalidArgumentError(
        absl::StrCat("dim must be in [", -1 - rank, ", ", rank, "], got ", dim));
  }
  if (rank >= Shape::kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("the rank must be < ", Shape::kMaxRank, ", got ", rank));
  }
  return static_cast<int>(dim < 0 ? dim + rank + 1 : dim);
}

Status ExpandDimsShape(InferenceContext* c) {
  const PartialShape& input = c->input(0);
  if (c->input(1).IsFullyDefined() && c->input(1).num_elements() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("dim must have one element, got shape ", c->input(1).ToString()));
  }
  const std::optional<int64_t> dim = ConstantInt(c, 1);
  if (!input.has_rank() || !dim) {
    if (input.has_rank() && input.rank() < Shape::kMaxRank) {
      c->set_output(0, PartialShape::UnknownOfRank(input.rank() + 1));
    }
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const int at, ExpandedAt(input.rank(), *dim));
  std::vector<int64_t> dims(input.dims().begin(), input.dims().end());
  dims.insert(dims.begin() + at, 1);
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class ExpandDimsKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& dim = ctx->input(1);
    if (dim.num_elements() != 1) {  // old graphs have vectors of one element here
      return absl::InvalidArgumentError(
          absl::StrCat("dim must have one element, got shape ", dim.shape().ToString()));
    }
    const Shape& shape = ctx->input(0).shape();
    MR_ASSIGN_OR_RETURN(const int at, ExpandedAt(shape.rank(), IntElements(dim).front()));
    return OutputReshaped(ctx, Shape(shape).WithInsertedOne(at));
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kExpandDims = OpSpec("ExpandDims")
                                       .Input("input: T")
                                       .Input("dim: Tdim")
                                       .Output("output: T")
                                       .Attr("T: type")
                                       .Attr("Tdim: {int32, int64} = DT_INT32")
                                       .Shape(ExpandDimsShape)
                                       .Gradient(ShapedAsInput);
const PartialValueRule kExpandDimsRule("ExpandDims", ReshapedInputValue);
const KernelRegistration kExpandDimsKernel = KernelFor<ExpandDimsKernel>("ExpandDims");

// --- Squeeze -------------------------------------------------------------------------------------

// The only place that knows which dimensions Squeeze may take away.
StatusOr<PartialShape> SqueezedShape(const PartialShape& input,
                                     absl::Span<const int64_t> squeeze_dims) {
  if (!input.has_rank()) return PartialShape();
  std::vector<bool> squeeze(static_cast<size_t>(input.rank()), false);
  for (size_t i = 0; i < squeeze_dims.size(); ++i) {
    const StatusOr<int> axis = ResolveAxis(squeeze_dims[i], input.rank());
    if (!axis.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("squeeze_dims[", i, "] must be in [",
                                                     -input.rank(), ", ", input.rank(), "), got ",
                                                     squeeze_dims[i]));
    }
    const int64_t dim = input.dim(*axis);
    if (dim != 1 && dim != -1) {
      return absl::InvalidArgumentError(
          absl::StrCat("Can not squeeze dim[", *axis, "], expected a dimension of 1, got ", dim));
    }
    squeeze[static_cast<size_t>(*axis)] = true;
  }
  std::vector<int64_t> dims;
  for (int d = 0; d < input.rank(); ++d) {
    if (squeeze_dims.empty()) {
      if (input.dim(d) == -1) return PartialShape();  // it may be 1 and go, or stay
      if (input.dim(d) == 1) continue;
    } else if (squeeze[static_cast<size_t>(d)]) {
      continue;
    }
    dims.push_back(input.dim(d));
  }
  return PartialShape::Make(dims);
}

Status SqueezeShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const auto squeeze_dims, c->GetAttr<std::vector<int64_t>>("squeeze_dims"));
  MR_ASSIGN_OR_RETURN(PartialShape shape, SqueezedShape(c->input(0), squeeze_dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class SqueezeKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(squeeze_dims_, c->GetAttr<std::vector<int64_t>>("squeeze_dims"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        SqueezedShape(ctx->input(0).shape(), squeeze_dims_));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    return OutputReshaped(ctx, shape);
  }
  bool may_be_expensive() const override { return false; }

 private:
  std::vector<int64_t> squeeze_dims_;
};

const OpRegistration kSqueeze = OpSpec("Squeeze")
                                    .Input("input: T")
                                    .Output("output: T")
                                    .Attr("T: type")
                                    .Attr("squeeze_dims: list(int) >= 0 = []")
                                    .Shape(SqueezeShape)
                                    .Gradient(ShapedAsInput);
const PartialValueRule kSqueezeRule("Squeeze", ReshapedInputValue);
const KernelRegistration kSqueezeKernel = KernelFor<SqueezeKernel>("Squeeze");

// --- Shape, ShapeN, Size, Rank -------------------------------------------------------------------

// Writes `value` as element i of an int32 or int64 tensor. `what` names it in the message.
Status PutInt(int64_t value, absl::string_view what, size_t i, Tensor* out) {
  if (out->dtype() == DT_INT64) {
    out->mutable_raw<int64_t>()[i] = value;
    return absl::OkStatus();
  }
  if (value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, " must fit into out_type int32, got ", value, "; use out_type int64"));
  }
  out->mutable_raw<int32_t>()[i] = static_cast<int32_t>(value);
  return absl::OkStatus();
}

class ShapeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      const Shape shape = ctx->input(i).shape();
      const Shape size = Shape::Vector(static_cast<size_t>(shape.rank()));
      MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(i, size));
      for (int d = 0; d < shape.rank(); ++d) {
        MR_RETURN_IF_ERROR(
            PutInt(shape.dim(d), absl::StrCat("dimension ", d), static_cast<size_t>(d), out));
      }
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

// Output i has as many elements as input i has dimensions.
Status ShapesOfShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    const int64_t rank = c->input(i).has_rank() ? c->input(i).rank() : -1;
    const int64_t dims[] = {rank};
    MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
    c->set_output(i, std::move(shape));
  }
  return absl::OkStatus();
}

const OpRegistration kShape = OpSpec("Shape")
                                  .Input("input: T")
                                  .Output("output: out_type")
                                  .Attr("T: type")
                                  .Attr("out_type: {int32, int64} = DT_INT32")
                                  .Shape(ShapesOfShapes)
                                  .NotDifferentiable();
const PartialValueRule kShapeRule("Shape", ShapeOfInputValue, PartialValueRule::kOfShapes);
const KernelRegistration kShapeKernel = KernelFor<ShapeKernel>("Shape");

const OpRegistration kShapeN = OpSpec("ShapeN")
                                   .Input("input: N * T")
                                   .Output("output: N * out_type")
                                   .Attr("N: int >= 1")
                                   .Attr("T: type")
                                   .Attr("out_type: {int32, int64} = DT_INT32")
                                   .Shape(ShapesOfShapes)
                                   .NotDifferentiable();
const PartialValueRule kShapeNRule("ShapeN", ShapeOfInputValue, PartialValueRule::kOfShapes);
const KernelRegistration kShapeNKernel = KernelFor<ShapeKernel>("ShapeN");

class SizeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const int64_t size = ctx->input(0).num_elements();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    return PutInt(size, "the number of elements", 0, out);
  }
  bool may_be_expensive() const override { return false; }
};

std::optional<PartialValue> SizeValue(PartialValueContext* c) {
  const PartialShape shape = c->input_shape(0);
  std::optional<int64_t> size;
  if (shape.IsFullyDefined()) size = shape.num_elements();
  return PartialValue{/*is_scalar=*/true, {size}};
}

const OpRegistration kSize = OpSpec("Size")
                                 .Input("input: T")
                                 .Output("output: out_type")
                                 .Attr("T: type")
                                 .Attr("out_type: {int32, int64} = DT_INT32")
                                 .Shape(ScalarShape)
                                 .NotDifferentiable();
const PartialValueRule kSizeRule("Size", SizeValue, PartialValueRule::kOfShapes);
const KernelRegistration kSizeKernel = KernelFor<SizeKernel>("Size");

class RankKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const int rank = ctx->input(0).rank();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<int32_t>()[0] = rank;
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

std::optional<PartialValue> RankValue(PartialValueContext* c) {
  const PartialShape shape = c->input_shape(0);
  std::optional<int64_t> rank;
  if (shape.has_rank()) rank = shape.rank();
  return PartialValue{/*is_scalar=*/true, {rank}};
}

const OpRegistration kRank = OpSpec("Rank")
                                 .Input("input: T")
                                 .Output("output: int32")
                                 .Attr("T: type")
                                 .Shape(ScalarShape)
                                 .NotDifferentiable();
const PartialValueRule kRankRule("Rank", RankValue, PartialValueRule::kOfShapes);
const KernelRegistration kRankKernel = KernelFor<RankKernel>("Rank");

}  // namespace
}  // namespace millrace

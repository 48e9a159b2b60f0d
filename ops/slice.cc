// SPDX-License-Identifier: Apache-2.0
#include "ops/slice.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <optional>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/concat.h"
#include "ops/constant.h"
#include "ops/reshape.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

Status CheckLength(const char* name, size_t length, int rank) {
  if (static_cast<int64_t>(length) != rank) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must have one element for each of the ",
                                                   rank, " dimensions, got ", length));
  }
  return absl::OkStatus();
}

// The rank that an int vector input with `n` elements gives its tensor, merged with what is known
// of the tensor.
StatusOr<PartialShape> WithLength(const PartialShape& input, const PartialShape& vector,
                                  const char* name) {
  if (!vector.has_rank() || vector.rank() != 1 || vector.dim(0) == -1) return input;
  if (!input.has_rank()) {
    if (vector.dim(0) > Shape::kMaxRank) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must have at most ", Shape::kMaxRank,
                                                     " elements, got ", vector.dim(0)));
    }
    return PartialShape::UnknownOfRank(static_cast<int>(vector.dim(0)));
  }
  RETURN_IF_ERROR(CheckLength(name, static_cast<size_t>(vector.dim(0)), input.rank()));
  return input;
}

// Output 0 as the box of these dimensions that begins at `begin` and has steps `steps`, shaped as
// `shape`. A range of whole rows shares the input's memory.
Status OutputBox(KernelContext* ctx, const Tensor& input, const Ints& begin, const Ints& steps,
                 const Ints& dims, const Shape& shape) {
  bool rows = input.rank() > 0;
  for (size_t d = 0; d < dims.size(); ++d) {
    rows = rows && (steps[d] == 1 || dims[d] == 1) &&
           (d == 0 || dims[d] == input.dim(static_cast<int>(d)));
  }
  if (input.rank() == 0 || (rows && shape.num_elements() > 0)) {
    const Tensor part = input.rank() == 0 ? input : input.Rows(begin[0], begin[0] + dims[0]);
    ASSIGN_OR_RETURN(Tensor out, part.Reshaped(shape));
    ctx->set_output(0, std::move(out));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
  if (shape.num_elements() == 0) return absl::OkStatus();
  BoxSide from = DenseSide(input.shape().dims());
  for (size_t d = 0; d < dims.size(); ++d) {
    from.origin += begin[d] * from.strides[d];
    from.strides[d] *= steps[d];
  }
  return CopyBox(ctx, dims, input, from, out, DenseSide(dims));
}

// Zero bytes (numbers); strings are empty already.
void Clear(Tensor* t) {
  absl::Span<char> bytes = t->mutable_bytes();
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

// --- Slice ---------------------------------------------------------------------------------------

// The dimensions of a slice; the only place that knows which (input, begin, size) are legal. Sizes
// and begins that are not known are nullopt; so are the dimensions.
StatusOr<PartialShape> SlicedShape(const PartialShape& input, const std::optional<Ints>& begin,
                                   const Ints& size) {
  Ints dims(size.size(), -1);
  for (size_t d = 0; d < size.size(); ++d) {
    const int64_t dim = input.has_rank() ? input.dim(static_cast<int>(d)) : -1;
    if (size[d] < -1) {
      return absl::InvalidArgumentError(absl::StrCat("size[", d, "] must be >= -1, got ", size[d]));
    }
    if (!begin) {
      if (size[d] > dim && dim != -1) {
        return absl::InvalidArgumentError(
            absl::StrCat("size[", d, "] must be at most ", dim, ", got ", size[d]));
      }
      dims[d] = size[d];  // -1 is the rest after a begin that is not known
      continue;
    }
    const int64_t from = (*begin)[d];
    if (from < 0 || (dim != -1 && from > dim)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "begin[", d, "] must be in [0, ", dim == -1 ? "?" : absl::StrCat(dim), "], got ", from));
    }
    if (dim != -1 && size[d] > dim - from) {
      return absl::InvalidArgumentError(absl::StrCat("size[", d, "] must be in [0, ", dim - from,
                                                     "] (dimension ", dim, ", begin ", from,
                                                     "), got ", size[d]));
    }
    dims[d] = size[d] != -1 ? size[d] : dim == -1 ? -1 : dim - from;
  }
  return PartialShape::Make(dims);
}

Status SliceShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const PartialShape begin_shape, c->InputWithRank(1, 1));
  ASSIGN_OR_RETURN(const PartialShape size_shape, c->InputWithRank(2, 1));
  ASSIGN_OR_RETURN(PartialShape input, WithLength(c->input(0), begin_shape, "begin"));
  ASSIGN_OR_RETURN(input, WithLength(input, size_shape, "size"));
  if (!input.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  const std::optional<Ints> begin = ConstantInts(c, 1);
  const std::optional<Ints> size = ConstantInts(c, 2);
  if (size) {
    ASSIGN_OR_RETURN(PartialShape shape, SlicedShape(input, begin, *size));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const PartialShape partial, c->input_as_shape(2));
  ASSIGN_OR_RETURN(PartialShape shape,
                   PartialShape::UnknownOfRank(input.rank()).MergeWith(partial));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class SliceKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints begin, ctx->IntVectorInput(1, "begin"));
    ASSIGN_OR_RETURN(const Ints size, ctx->IntVectorInput(2, "size"));
    const Tensor input = ctx->TakeInput(0);
    RETURN_IF_ERROR(CheckLength("begin", begin.size(), input.rank()));
    RETURN_IF_ERROR(CheckLength("size", size.size(), input.rank()));
    ASSIGN_OR_RETURN(const PartialShape known, SlicedShape(input.shape(), begin, size));
    ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    const Ints dims(shape.dims().begin(), shape.dims().end());
    return OutputBox(ctx, input, begin, Ints(dims.size(), 1), dims, shape);
  }
};

// The gradient stands where the slice was; zeros around it.
Status SliceGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output begin = c->input(1);
  const ShapeAttrs as_begin = {.out_type = begin.dtype()};
  const auto minus = [&](Output a, Output b) {
    return NodeBuilder(scope, "Sub").Input(a).Input(b).Finish().output(0);
  };
  const Output after = minus(
      minus(ShapeOf(scope, c->input(0), as_begin), ShapeOf(scope, c->output(0), as_begin)), begin);
  c->set_input_grad(0, Pad(scope, c->dense_grad(0), Pack(scope, {begin, after}, {.axis = 1})));
  return absl::OkStatus();
}

const OpRegistration kSlice = OpSpec("Slice")
                                  .Input("input: T")
                                  .Input("begin: Index")
                                  .Input("size: Index")
                                  .Output("output: T")
                                  .Attr("T: type")
                                  .Attr("Index: {int32, int64}")
                                  .Shape(SliceShape)
                                  .Gradient(SliceGradient);
const KernelRegistration kSliceKernel = KernelFor<SliceKernel>("Slice");

// --- StridedSlice --------------------------------------------------------------------------------

template <typename Context>
StatusOr<StridedSliceAttrs> ReadMasks(const Context* c) {
  StridedSliceAttrs masks;
  ASSIGN_OR_RETURN(masks.begin_mask, c->template GetAttr<int64_t>("begin_mask"));
  ASSIGN_OR_RETURN(masks.end_mask, c->template GetAttr<int64_t>("end_mask"));
  ASSIGN_OR_RETURN(masks.ellipsis_mask, c->template GetAttr<int64_t>("ellipsis_mask"));
  ASSIGN_OR_RETURN(masks.new_axis_mask, c->template GetAttr<int64_t>("new_axis_mask"));
  ASSIGN_OR_RETURN(masks.shrink_axis_mask, c->template GetAttr<int64_t>("shrink_axis_mask"));
  return masks;
}

// What a strided slice reads: for each dimension of the input where it begins, its step and how
// many elements (-1: not known), and the dimensions of the result.
struct StridedSlicePlan {
  Ints begin, steps, sizes;
  Ints result;
};

// One dimension of the input: element `item` of begin, end and strides, or none (a whole one).
struct SlicedDim {
  std::optional<size_t> item;
  bool begin_masked = true, end_masked = true, shrinks = false;
};

// Sets begin, step and size of one dimension.
Status PlanDim(const SlicedDim& dim, int d, int64_t size, const std::optional<Ints>& begin,
               const std::optional<Ints>& end, const Ints& strides, StridedSlicePlan* plan) {
  const int64_t step = dim.item ? strides[*dim.item] : 1;
  if (step == 0) {
    return absl::InvalidArgumentError(absl::StrCat("strides[", *dim.item, "] must be non-zero"));
  }
  if (dim.shrinks && step < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "only stride 1 allowed on non-range indexing, got strides[", *dim.item, "] = ", step));
  }
  plan->steps.push_back(dim.shrinks ? 1 : step);
  plan->begin.push_back(0);
  plan->sizes.push_back(dim.shrinks ? 1 : -1);
  if (size == -1) return absl::OkStatus();
  int64_t& first = plan->begin.back();
  int64_t& count = plan->sizes.back();
  if (dim.shrinks) {
    if (!begin) return absl::OkStatus();
    const int64_t index = (*begin)[*dim.item];
    first = index < 0 ? index + size : index;
    if (first < 0 || first >= size) {
      return absl::InvalidArgumentError(absl::StrCat("slice index ", index, " of dimension ", d,
                                                     " out of bounds, the dimension has ", size,
                                                     " elements"));
    }
    return absl::OkStatus();
  }
  // Where the slice may begin and end: for a negative step, between the last element and the place
  // before the first one.
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto place = [&](int64_t index) {
    return std::clamp(index < 0 ? index + size : index, low, high);
  };
  int64_t from, to;
  if (dim.begin_masked) {
    from = step > 0 ? low : high;
  } else {
    if (!begin) return absl::OkStatus();
    from = place((*begin)[*dim.item]);
  }
  if (dim.end_masked) {
    to = step > 0 ? high : low;
  } else {
    if (!end) return absl::OkStatus();
    to = place((*end)[*dim.item]);
  }
  first = from;
  const int64_t length = step > 0 ? to - from : from - to;
  // -step overflows for the smallest int64; one element then remains at most.
  const uint64_t stride =
      step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  count = length <= 0 ? 0 : static_cast<int64_t>((static_cast<uint64_t>(length) - 1) / stride) + 1;
  if (count <= 1) plan->steps.back() = 1;  // no step is taken; a huge one would overflow offsets
  return absl::OkStatus();
}

// The only place that knows which (input, begin, end, strides, masks) are legal. Values of begin
// and end that are not known are nullopt.
StatusOr<StridedSlicePlan> PlanStridedSlice(const PartialShape& input,
                                            const std::optional<Ints>& begin,
                                            const std::optional<Ints>& end, const Ints& strides,
                                            const StridedSliceAttrs& masks) {
  constexpr size_t kMaxItems = 32;  // the masks of the field have 32 bits
  const size_t n = strides.size();
  if (n > kMaxItems) {
    return absl::InvalidArgumentError(
        absl::StrCat("strides must have at most ", kMaxItems, " elements, got ", n));
  }
  const auto bit = [](int64_t mask, size_t i) { return ((mask >> i) & 1) != 0; };
  size_t ellipsis = n;  // an ellipsis that is not written stands at the end
  size_t items = 0;     // that stand for a dimension of the input
  for (size_t i = 0; i < n; ++i) {
    if (bit(masks.ellipsis_mask, i)) {
      if (ellipsis != n) {
        return absl::InvalidArgumentError(absl::StrCat(
            "ellipsis_mask must have at most one bit, got bits ", ellipsis, " and ", i));
      }
      ellipsis = i;
    } else if (!bit(masks.new_axis_mask, i)) {
      ++items;
    }
  }
  const size_t rank = static_cast<size_t>(input.rank());
  if (items > rank) {
    return absl::InvalidArgumentError(absl::StrCat("Index out of range using input dim ", rank,
                                                   "; input has only ", rank, " dims, got ", items,
                                                   " slices"));
  }
  StridedSlicePlan plan;
  int d = 0;
  const auto add = [&](const SlicedDim& dim) -> Status {
    RETURN_IF_ERROR(PlanDim(dim, d, input.dim(d), begin, end, strides, &plan));
    ++d;
    if (!dim.shrinks) plan.result.push_back(plan.sizes.back());
    return absl::OkStatus();
  };
  for (size_t i = 0; i <= n; ++i) {
    if (i == ellipsis) {
      for (size_t k = items; k < rank; ++k) RETURN_IF_ERROR(add(SlicedDim{}));
    }
    if (i == n || i == ellipsis) continue;
    if (bit(masks.new_axis_mask, i)) {
      plan.result.push_back(1);
      continue;
    }
    RETURN_IF_ERROR(add({.item = i,
                         .begin_masked = bit(masks.begin_mask, i),
                         .end_masked = bit(masks.end_mask, i),
                         .shrinks = bit(masks.shrink_axis_mask, i)}));
  }
  return plan;
}

// Inputs begin, end and strides (from input `first` on) have one length.
template <typename Lengths>
Status CheckSameLength(const Lengths& lengths) {
  if (lengths[0] != lengths[1] || lengths[0] != lengths[2]) {
    return absl::InvalidArgumentError(
        absl::StrCat("begin, end and strides must have the same length, got ", lengths[0], ", ",
                     lengths[1], ", ", lengths[2]));
  }
  return absl::OkStatus();
}

Status StridedSliceShape(InferenceContext* c) {
  for (int i = 1; i < 4; ++i) RETURN_IF_ERROR(c->InputWithRank(i, 1).status());
  ASSIGN_OR_RETURN(const StridedSliceAttrs masks, ReadMasks(c));
  const std::optional<Ints> strides = ConstantInts(c, 3);
  if (!c->input(0).has_rank() || !strides) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  const std::optional<Ints> begin = ConstantInts(c, 1), end = ConstantInts(c, 2);
  const size_t n = strides->size();
  RETURN_IF_ERROR(
      CheckSameLength(std::vector<size_t>{begin ? begin->size() : n, end ? end->size() : n, n}));
  ASSIGN_OR_RETURN(const StridedSlicePlan plan,
                   PlanStridedSlice(c->input(0), begin, end, *strides, masks));
  ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(plan.result));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// The plan of a step: all values are there, so every size is known.
StatusOr<StridedSlicePlan> PlanFromInputs(KernelContext* ctx, const Shape& input,
                                          const StridedSliceAttrs& masks) {
  ASSIGN_OR_RETURN(const Ints begin, ctx->IntVectorInput(1, "begin"));
  ASSIGN_OR_RETURN(const Ints end, ctx->IntVectorInput(2, "end"));
  ASSIGN_OR_RETURN(const Ints strides, ctx->IntVectorInput(3, "strides"));
  RETURN_IF_ERROR(CheckSameLength(std::vector<size_t>{begin.size(), end.size(), strides.size()}));
  return PlanStridedSlice(input, begin, end, strides, masks);
}

class StridedSliceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(masks_, ReadMasks(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor input = ctx->TakeInput(0);
    ASSIGN_OR_RETURN(const StridedSlicePlan plan, PlanFromInputs(ctx, input.shape(), masks_));
    ASSIGN_OR_RETURN(const Shape shape, Shape::Make(plan.result));
    return OutputBox(ctx, input, plan.begin, plan.steps, plan.sizes, shape);
  }

 private:
  StridedSliceAttrs masks_;
};

Status StridedSliceGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StridedSliceAttrs masks, ReadMasks(c));
  const Scope& scope = c->scope();
  const Output shape = ShapeOf(scope, c->input(0), {.out_type = c->input(1).dtype()});
  c->set_input_grad(0, StridedSliceGrad(scope, shape, c->input(1), c->input(2), c->input(3),
                                        c->dense_grad(0), masks));
  return absl::OkStatus();
}

OpSpec StridedSliceSpec(OpSpec spec) {
  return spec.Output("output: T")
      .Attr("T: type")
      .Attr("Index: {int32, int64}")
      .Attr("begin_mask: int = 0")
      .Attr("end_mask: int = 0")
      .Attr("ellipsis_mask: int = 0")
      .Attr("new_axis_mask: int = 0")
      .Attr("shrink_axis_mask: int = 0");
}
const OpRegistration kStridedSlice = StridedSliceSpec(OpSpec("StridedSlice")
                                                          .Input("input: T")
                                                          .Input("begin: Index")
                                                          .Input("end: Index")
                                                          .Input("strides: Index"))
                                         .Shape(StridedSliceShape)
                                         .Gradient(StridedSliceGradient);
const KernelRegistration kStridedSliceKernel = KernelFor<StridedSliceKernel>("StridedSlice");

// --- StridedSliceGrad ----------------------------------------------------------------------------

Status StridedSliceGradShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(0));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class StridedSliceGradKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(masks_, ReadMasks(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints dims, ctx->IntVectorInput(0, "shape"));
    ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    ASSIGN_OR_RETURN(const StridedSlicePlan plan, PlanFromInputs(ctx, shape, masks_));
    ASSIGN_OR_RETURN(const Shape slice, Shape::Make(plan.result));
    const Tensor& dy = ctx->input(4);
    if (dy.shape() != slice) {
      return absl::InvalidArgumentError(absl::StrCat("dy must have the shape of the slice ",
                                                     slice.ToString(), ", got ",
                                                     dy.shape().ToString()));
    }
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    Clear(out);
    BoxSide to = DenseSide(shape.dims());
    for (size_t d = 0; d < plan.sizes.size(); ++d) {
      to.origin += plan.begin[d] * to.strides[d];
      to.strides[d] *= plan.steps[d];
    }
    return CopyBox(ctx, plan.sizes, dy, DenseSide(plan.sizes), out, to);
  }

 private:
  StridedSliceAttrs masks_;
};

Status StridedSliceGradGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const StridedSliceAttrs masks, ReadMasks(c));
  c->set_input_grad(
      4, StridedSlice(c->scope(), c->dense_grad(0), c->input(1), c->input(2), c->input(3), masks));
  return absl::OkStatus();
}

const OpRegistration kStridedSliceGrad = StridedSliceSpec(OpSpec("StridedSliceGrad")
                                                              .Input("shape: Index")
                                                              .Input("begin: Index")
                                                              .Input("end: Index")
                                                              .Input("strides: Index")
                                                              .Input("dy: T"))
                                             .Shape(StridedSliceGradShape)
                                             .Gradient(StridedSliceGradGradient);
const KernelRegistration kStridedSliceGradKernel =
    KernelFor<StridedSliceGradKernel>("StridedSliceGrad");

// --- Pad, PadV2 ----------------------------------------------------------------------------------

// Of a mirrored dimension, how many elements the border itself is left out of: REFLECT 1,
// SYMMETRIC 0. Padding with a constant has no limit.
struct Mirror {
  int64_t offset = 0;
};

// The padded shape; the only place that knows which (input, paddings) are legal.
StatusOr<PartialShape> PaddedShape(const PartialShape& input, const Ints& paddings,
                                   const std::optional<Mirror>& mirror) {
  Ints dims(paddings.size() / 2, -1);
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t dim = input.has_rank() ? input.dim(static_cast<int>(d)) : -1;
    for (size_t side = 0; side < 2; ++side) {
      const int64_t padding = paddings[2 * d + side];
      if (padding < 0 || padding > Shape::kMaxElements) {
        return absl::InvalidArgumentError(
            absl::StrCat("paddings[", d, ",", side, "] must be >= 0, got ", padding));
      }
      if (mirror && dim != -1 && padding > dim - mirror->offset) {
        return absl::InvalidArgumentError(absl::StrCat(
            "paddings[", d, ",", side, "] must be <= ", std::max<int64_t>(0, dim - mirror->offset),
            " to mirror a dimension of ", dim, ", got ", padding));
      }
    }
    if (dim != -1) dims[d] = dim + paddings[2 * d] + paddings[2 * d + 1];
  }
  return PartialShape::Make(dims);
}

Status CheckPaddingsShape(const PartialShape& paddings) {
  if (paddings.has_rank() &&
      (paddings.rank() != 2 || (paddings.dim(1) != -1 && paddings.dim(1) != 2))) {
    return absl::InvalidArgumentError(
        absl::StrCat("paddings must have shape [rank,2], got ", paddings.ToString()));
  }
  return absl::OkStatus();
}

Status PadShapeOf(InferenceContext* c, const std::optional<Mirror>& mirror) {
  const PartialShape& paddings_shape = c->input(1);
  RETURN_IF_ERROR(CheckPaddingsShape(paddings_shape));
  PartialShape input = c->input(0);
  if (paddings_shape.has_rank() && paddings_shape.dim(0) != -1) {
    ASSIGN_OR_RETURN(input, WithLength(input, PartialShape({paddings_shape.dim(0)}), "paddings"));
  }
  if (!input.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  const std::optional<Ints> paddings = ConstantInts(c, 1);
  if (!paddings) {
    c->set_output(0, PartialShape::UnknownOfRank(input.rank()));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(PartialShape shape, PaddedShape(input, *paddings, mirror));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}
Status PadShape(InferenceContext* c) { return PadShapeOf(c, std::nullopt); }

// The paddings of a step, checked against the input.
StatusOr<Ints> PaddingsInput(const KernelContext* ctx) {
  const Tensor& paddings = ctx->input(1);
  RETURN_IF_ERROR(CheckPaddingsShape(paddings.shape()));
  RETURN_IF_ERROR(
      CheckLength("paddings", static_cast<size_t>(paddings.dim(0)), ctx->input(0).rank()));
  return IntElements(paddings);
}

class PadKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints paddings, PaddingsInput(ctx));
    ASSIGN_OR_RETURN(const PartialShape known,
                     PaddedShape(ctx->input(0).shape(), paddings, std::nullopt));
    ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    if (ctx->num_inputs() > 2 && !ctx->input(2).shape().is_scalar()) {
      return absl::InvalidArgumentError(absl::StrCat("constant_values must be a scalar, got shape ",
                                                     ctx->input(2).shape().ToString()));
    }
    const Tensor input = ctx->TakeInput(0);
    if (shape == input.shape()) {
      ctx->set_output(0, input);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    if (ctx->num_inputs() > 2) {
      const Tensor& value = ctx->input(2);
      RETURN_IF_ERROR(VisitElements(value.dtype(), [&]<typename E>() {
        E* to = MutableElementsOf<E>(out);
        std::fill(to, to + out->num_elements(), *ElementsOf<E>(value));
      }));
    } else {
      Clear(out);
    }
    BoxSide to = DenseSide(shape.dims());
    for (size_t d = 0; d < to.strides.size(); ++d) to.origin += paddings[2 * d] * to.strides[d];
    return CopyBox(ctx, input.shape().dims(), input, DenseSide(input.shape().dims()), out, to);
  }
};

Output SumOfAll(const Scope& scope, Output x) {
  const Output axes = Range(scope, Const(scope, int32_t{0}), Rank(scope, x), Const(scope, 1));
  return NodeBuilder(scope, "Sum").Input(x).Input(axes).Finish().output(0);
}

// The part of the gradient that is not padding; the padding's value gets the rest.
Status PadGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output grad = c->dense_grad(0);
  const Output begin = Unpack(scope, c->input(1), 2, {.axis = 1})[0];
  const Output inside =
      Slice(scope, grad, begin, ShapeOf(scope, c->input(0), {.out_type = begin.dtype()}));
  c->set_input_grad(0, inside);
  if (c->num_inputs() > 2) {
    c->set_input_grad(2, NodeBuilder(scope, "Sub")
                             .Input(SumOfAll(scope, grad))
                             .Input(SumOfAll(scope, inside))
                             .Finish()
                             .output(0));
  }
  return absl::OkStatus();
}

const OpRegistration kPad = OpSpec("Pad")
                                .Input("input: T")
                                .Input("paddings: Tpaddings")
                                .Output("output: T")
                                .Attr("T: type")
                                .Attr("Tpaddings: {int32, int64} = DT_INT32")
                                .Shape(PadShape)
                                .Gradient(PadGradient);
const KernelRegistration kPadKernel = KernelFor<PadKernel>("Pad");

const OpRegistration kPadV2 = OpSpec("PadV2")
                                  .Input("input: T")
                                  .Input("paddings: Tpaddings")
                                  .Input("constant_values: T")
                                  .Output("output: T")
                                  .Attr("T: type")
                                  .Attr("Tpaddings: {int32, int64} = DT_INT32")
                                  .Shape(PadShape)
                                  .Gradient(PadGradient);
const KernelRegistration kPadV2Kernel = KernelFor<PadKernel>("PadV2");

// --- MirrorPad, MirrorPadGrad --------------------------------------------------------------------

template <typename Context>
StatusOr<Mirror> ReadMode(const Context* c) {
  ASSIGN_OR_RETURN(const std::string mode, c->template GetAttr<std::string>("mode"));
  return Mirror{.offset = mode == "REFLECT" ? 1 : 0};
}

// For each index of a padded dimension, which index of the unpadded one it shows.
Ints MirroredIndices(int64_t dim, int64_t before, int64_t after, Mirror mirror) {
  Ints indices;
  for (int64_t i = 0; i < before; ++i) indices.push_back(before - 1 - i + mirror.offset);
  for (int64_t i = 0; i < dim; ++i) indices.push_back(i);
  for (int64_t i = 0; i < after; ++i) indices.push_back(dim - 1 - i - mirror.offset);
  return indices;
}

// Visits every element of the padded shape: visit(padded offset, unpadded offset).
template <typename Visit>
void ForEachMirrored(const Shape& unpadded, const Ints& paddings, Mirror mirror,
                     const Visit& visit) {
  const size_t rank = static_cast<size_t>(unpadded.rank());
  const auto strides = math::DenseStrides(unpadded.dims());
  std::vector<Ints> offsets(rank);  // per dimension: padded index -> offset in the unpadded tensor
  int64_t total = 1;
  for (size_t d = 0; d < rank; ++d) {
    offsets[d] = MirroredIndices(unpadded.dim(static_cast<int>(d)), paddings[2 * d],
                                 paddings[2 * d + 1], mirror);
    for (int64_t& o : offsets[d]) o *= strides[d];
    total *= static_cast<int64_t>(offsets[d].size());
  }
  if (total == 0) return;
  std::vector<size_t> index(rank, 0);
  for (int64_t padded = 0; padded < total;) {
    int64_t base = 0;
    for (size_t d = 0; d + 1 < rank; ++d) base += offsets[d][index[d]];
    if (rank == 0) {
      visit(padded++, base);
      continue;
    }
    for (int64_t last : offsets[rank - 1]) visit(padded++, base + last);
    for (size_t d = rank - 1; d-- > 0;) {
      if (++index[d] < offsets[d].size()) break;
      index[d] = 0;
    }
  }
}

Status MirrorPadShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const Mirror mirror, ReadMode(c));
  return PadShapeOf(c, mirror);
}

class MirrorPadKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(mirror_, ReadMode(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints paddings, PaddingsInput(ctx));
    const Tensor input = ctx->input(0);
    ASSIGN_OR_RETURN(const PartialShape known, PaddedShape(input.shape(), paddings, mirror_));
    ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    return VisitElements(input.dtype(), [&]<typename E>() {
      const E* from = ElementsOf<E>(input);
      E* to = MutableElementsOf<E>(out);
      ForEachMirrored(input.shape(), paddings, mirror_,
                      [=](int64_t padded, int64_t inner) { to[padded] = from[inner]; });
    });
  }

 private:
  Mirror mirror_;
};

// The shape before padding.
StatusOr<PartialShape> UnpaddedShape(const PartialShape& padded, const Ints& paddings,
                                     Mirror mirror) {
  Ints dims(paddings.size() / 2, -1);
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t dim = padded.has_rank() ? padded.dim(static_cast<int>(d)) : -1;
    const int64_t before = paddings[2 * d], after = paddings[2 * d + 1];
    if (before < 0 || after < 0 || before > Shape::kMaxElements || after > Shape::kMaxElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("paddings[", d, "] must be >= 0, got [", before, ", ", after, "]"));
    }
    if (dim == -1) continue;
    dims[d] = dim - before - after;
    if (dims[d] < 0 || std::max(before, after) > dims[d] - mirror.offset) {
      if (before == 0 && after == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("paddings[", d, "] must be what a mirrored dimension allows, got [", before,
                       ", ", after, "] in a padded dimension of ", dim));
    }
  }
  return PartialShape::Make(dims);
}

Status MirrorPadGradShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const Mirror mirror, ReadMode(c));
  RETURN_IF_ERROR(CheckPaddingsShape(c->input(1)));
  PartialShape input = c->input(0);
  if (c->input(1).has_rank() && c->input(1).dim(0) != -1) {
    ASSIGN_OR_RETURN(input, WithLength(input, PartialShape({c->input(1).dim(0)}), "paddings"));
  }
  const std::optional<Ints> paddings = ConstantInts(c, 1);
  if (!paddings || !input.has_rank()) {
    c->set_output(0, input.has_rank() ? PartialShape::UnknownOfRank(input.rank()) : PartialShape());
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(PartialShape shape, UnpaddedShape(input, *paddings, mirror));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T>
class MirrorPadGradKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    ASSIGN_OR_RETURN(mirror_, ReadMode(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints paddings, PaddingsInput(ctx));
    const Tensor grad = ctx->input(0);
    ASSIGN_OR_RETURN(const PartialShape known, UnpaddedShape(grad.shape(), paddings, mirror_));
    ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    Clear(out);
    const T* from = grad.flat<T>().data();
    T* to = out->mutable_flat<T>().data();
    ForEachMirrored(shape, paddings, mirror_,
                    [=](int64_t padded, int64_t inner) { to[inner] += from[padded]; });
    return absl::OkStatus();
  }

 private:
  Mirror mirror_;
};

Status MirrorPadGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string mode, c->GetAttr<std::string>("mode"));
  c->set_input_grad(0, MirrorPadGrad(c->scope(), c->dense_grad(0), c->input(1), mode));
  return absl::OkStatus();
}
Status MirrorPadGradGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string mode, c->GetAttr<std::string>("mode"));
  c->set_input_grad(0, MirrorPad(c->scope(), c->dense_grad(0), c->input(1), mode));
  return absl::OkStatus();
}

OpSpec MirrorPadSpec(const char* name) {
  return OpSpec(name)
      .Input("input: T")
      .Input("paddings: Tpaddings")
      .Output("output: T")
      .Attr("T: type")
      .Attr("Tpaddings: {int32, int64} = DT_INT32")
      .Attr("mode: {'REFLECT', 'SYMMETRIC'}");
}
const OpRegistration kMirrorPad =
    MirrorPadSpec("MirrorPad").Shape(MirrorPadShape).Gradient(MirrorPadGradient);
const KernelRegistration kMirrorPadKernel = KernelFor<MirrorPadKernel>("MirrorPad");
const OpRegistration kMirrorPadGrad =
    MirrorPadSpec("MirrorPadGrad").Shape(MirrorPadGradShape).Gradient(MirrorPadGradGradient);
const KernelRegistration kMirrorPadGradFloat =
    KernelFor<MirrorPadGradKernel<float>>("MirrorPadGrad").Type<float>("T");
const KernelRegistration kMirrorPadGradDouble =
    KernelFor<MirrorPadGradKernel<double>>("MirrorPadGrad").Type<double>("T");

// --- Tile ----------------------------------------------------------------------------------------

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
    ASSIGN_OR_RETURN(dims[d], CheckedProduct(dim, multiples[d]));
  }
  return PartialShape::Make(dims);
}

Status TileShape(InferenceContext* c) {
  ASSIGN_OR_RETURN(const PartialShape multiples_shape, c->InputWithRank(1, 1));
  ASSIGN_OR_RETURN(const PartialShape input, WithLength(c->input(0), multiples_shape, "multiples"));
  if (!input.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  if (const std::optional<Ints> multiples = ConstantInts(c, 1)) {
    ASSIGN_OR_RETURN(PartialShape shape, TiledShape(input, *multiples));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  // Some multiples may be known even when others are not.
  ASSIGN_OR_RETURN(const PartialShape some, c->input_as_shape(1));
  Ints dims(static_cast<size_t>(input.rank()), -1);
  for (int d = 0; some.has_rank() && d < input.rank(); ++d) {
    if (some.dim(d) == -1 || input.dim(d) == -1) continue;
    ASSIGN_OR_RETURN(dims[static_cast<size_t>(d)], CheckedProduct(some.dim(d), input.dim(d)));
  }
  ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class TileKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints multiples, ctx->IntVectorInput(1, "multiples"));
    const Tensor input = ctx->TakeInput(0);
    RETURN_IF_ERROR(CheckLength("multiples", multiples.size(), input.rank()));
    ASSIGN_OR_RETURN(const PartialShape known, TiledShape(input.shape(), multiples));
    ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    if (shape == input.shape()) {
      ctx->set_output(0, input);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
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

// --- ReverseV2 -----------------------------------------------------------------------------------

// Which dimensions turn around; the only place that knows which axes are legal.
StatusOr<std::vector<bool>> ReversedDims(int rank, const Ints& axes) {
  std::vector<bool> reversed(static_cast<size_t>(rank), false);
  for (size_t i = 0; i < axes.size(); ++i) {
    const StatusOr<int> axis = ResolveAxis(axes[i], rank);
    if (!axis.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis[", i, "] must be in [", -rank, ", ", rank, "), got ", axes[i]));
    }
    if (reversed[static_cast<size_t>(*axis)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis must name a dimension once, got ", *axis, " twice"));
    }
    reversed[static_cast<size_t>(*axis)] = true;
  }
  return reversed;
}

Status ReverseShape(InferenceContext* c) {
  RETURN_IF_ERROR(c->InputWithRank(1, 1).status());
  const std::optional<Ints> axes = ConstantInts(c, 1);
  if (axes && c->input(0).has_rank()) {
    RETURN_IF_ERROR(ReversedDims(c->input(0).rank(), *axes).status());
  }
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

class ReverseKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    ASSIGN_OR_RETURN(const Ints axes, ctx->IntVectorInput(1, "axis"));
    const Tensor input = ctx->TakeInput(0);
    ASSIGN_OR_RETURN(const std::vector<bool> reversed, ReversedDims(input.rank(), axes));
    if (axes.empty() || input.num_elements() == 0) {
      ctx->set_output(0, input);
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, input.shape()));
    const absl::Span<const int64_t> dims = input.shape().dims();
    BoxSide from = DenseSide(dims);
    for (size_t d = 0; d < reversed.size(); ++d) {
      if (!reversed[d]) continue;
      from.origin += (dims[d] - 1) * from.strides[d];
      from.strides[d] = -from.strides[d];
    }
    return CopyBox(ctx, dims, input, from, out, DenseSide(dims));
  }
};

Status ReverseGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(0, ReverseV2(c->scope(), c->dense_grad(0), c->input(1)));
  return absl::OkStatus();
}

const OpRegistration kReverseV2 =
    OpSpec("ReverseV2")
        .Input("tensor: T")
        .Input("axis: Tidx")
        .Output("output: T")
        .Attr("Tidx: {int32, int64} = DT_INT32")
        .Attr(
            "T: {uint8, int8, uint16, int16, int32, int64, bool, bfloat16, half, float, double, "
            "complex64, complex128, string}")
        .Shape(ReverseShape)
        .Gradient(ReverseGradient);
const KernelRegistration kReverseKernel = KernelFor<ReverseKernel>("ReverseV2");

}  // namespace
}  // namespace millrace

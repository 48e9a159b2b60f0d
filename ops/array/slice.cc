// SPDX-License-Identifier: Apache-2.0
#include "ops/array/slice.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/pad.h"
#include "ops/array/reshape.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/int_inputs.h"
#include "ops/rules/per_dimension.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

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
    MR_ASSIGN_OR_RETURN(Tensor out, part.Reshaped(shape));
    ctx->set_output(0, std::move(out));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
  if (shape.num_elements() == 0) return absl::OkStatus();
  BoxSide from = DenseSide(input.shape().dims());
  for (size_t d = 0; d < dims.size(); ++d) {
    from.origin += begin[d] * from.strides[d];
    from.strides[d] *= steps[d];
  }
  return CopyBox(ctx, dims, input, from, out, DenseSide(dims));
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
  MR_ASSIGN_OR_RETURN(const PartialShape begin_shape, c->InputWithRank(1, 1));
  MR_ASSIGN_OR_RETURN(const PartialShape size_shape, c->InputWithRank(2, 1));
  MR_ASSIGN_OR_RETURN(PartialShape input, WithLength(c->input(0), begin_shape, "begin"));
  MR_ASSIGN_OR_RETURN(input, WithLength(input, size_shape, "size"));
  if (!input.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  const std::optional<Ints> begin = ConstantInts(c, 1);
  const std::optional<Ints> size = ConstantInts(c, 2);
  if (begin) MR_RETURN_IF_ERROR(CheckLength("begin", begin->size(), input.rank()));
  if (size) {
    MR_RETURN_IF_ERROR(CheckLength("size", size->size(), input.rank()));
    MR_ASSIGN_OR_RETURN(PartialShape shape, SlicedShape(input, begin, *size));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const PartialShape partial, c->input_as_shape(2));
  MR_ASSIGN_OR_RETURN(PartialShape shape,
                      PartialShape::UnknownOfRank(input.rank()).MergeWith(partial));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class SliceKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints begin, ctx->IntVectorInput(1, "begin"));
    MR_ASSIGN_OR_RETURN(const Ints size, ctx->IntVectorInput(2, "size"));
    const Tensor input = ctx->TakeInput(0);
    MR_RETURN_IF_ERROR(CheckLength("begin", begin.size(), input.rank()));
    MR_RETURN_IF_ERROR(CheckLength("size", size.size(), input.rank()));
    MR_ASSIGN_OR_RETURN(const PartialShape known, SlicedShape(input.shape(), begin, size));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
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

// A slice of a vector.
std::optional<PartialValue> SliceValue(PartialValueContext* c) {
  const std::optional<PartialValue> value = c->input(0);
  const std::optional<int64_t> begin = c->input_single(1);
  const std::optional<int64_t> size = c->input_single(2);
  if (!value || value->is_scalar || !begin || !size) return std::nullopt;
  const int64_t n = static_cast<int64_t>(value->elements.size());
  if (*begin < 0 || *begin > n) return std::nullopt;
  const int64_t count = *size == -1 ? n - *begin : *size;
  if (count < 0 || count > n - *begin) return std::nullopt;
  const auto first = value->elements.begin() + *begin;
  return PartialValue{/*is_scalar=*/false, {first, first + count}};
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
const PartialValueRule kSliceRule("Slice", SliceValue);
const KernelRegistration kSliceKernel = KernelFor<SliceKernel>("Slice");

// --- StridedSlice --------------------------------------------------------------------------------

template <typename Context>
StatusOr<StridedSliceAttrs> ReadMasks(const Context* c) {
  StridedSliceAttrs masks;
  MR_ASSIGN_OR_RETURN(masks.begin_mask, c->template GetAttr<int64_t>("begin_mask"));
  MR_ASSIGN_OR_RETURN(masks.end_mask, c->template GetAttr<int64_t>("end_mask"));
  MR_ASSIGN_OR_RETURN(masks.ellipsis_mask, c->template GetAttr<int64_t>("ellipsis_mask"));
  MR_ASSIGN_OR_RETURN(masks.new_axis_mask, c->template GetAttr<int64_t>("new_axis_mask"));
  MR_ASSIGN_OR_RETURN(masks.shrink_axis_mask, c->template GetAttr<int64_t>("shrink_axis_mask"));
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
    MR_RETURN_IF_ERROR(PlanDim(dim, d, input.dim(d), begin, end, strides, &plan));
    ++d;
    if (!dim.shrinks) plan.result.push_back(plan.sizes.back());
    return absl::OkStatus();
  };
  for (size_t i = 0; i <= n; ++i) {
    if (i == ellipsis) {
      for (size_t k = items; k < rank; ++k) MR_RETURN_IF_ERROR(add(SlicedDim{}));
    }
    if (i == n || i == ellipsis) continue;
    if (bit(masks.new_axis_mask, i)) {
      plan.result.push_back(1);
      continue;
    }
    MR_RETURN_IF_ERROR(add({.item = i,
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
  for (int i = 1; i < 4; ++i) MR_RETURN_IF_ERROR(c->InputWithRank(i, 1).status());
  MR_ASSIGN_OR_RETURN(const StridedSliceAttrs masks, ReadMasks(c));
  const std::optional<Ints> strides = ConstantInts(c, 3);
  if (!c->input(0).has_rank() || !strides) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  const std::optional<Ints> begin = ConstantInts(c, 1), end = ConstantInts(c, 2);
  const size_t n = strides->size();
  MR_RETURN_IF_ERROR(
      CheckSameLength(std::vector<size_t>{begin ? begin->size() : n, end ? end->size() : n, n}));
  MR_ASSIGN_OR_RETURN(const StridedSlicePlan plan,
                      PlanStridedSlice(c->input(0), begin, end, *strides, masks));
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(plan.result));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// The plan of a step: all values are there, so every size is known.
StatusOr<StridedSlicePlan> PlanFromInputs(KernelContext* ctx, const Shape& input,
                                          const StridedSliceAttrs& masks) {
  MR_ASSIGN_OR_RETURN(const Ints begin, ctx->IntVectorInput(1, "begin"));
  MR_ASSIGN_OR_RETURN(const Ints end, ctx->IntVectorInput(2, "end"));
  MR_ASSIGN_OR_RETURN(const Ints strides, ctx->IntVectorInput(3, "strides"));
  MR_RETURN_IF_ERROR(
      CheckSameLength(std::vector<size_t>{begin.size(), end.size(), strides.size()}));
  return PlanStridedSlice(input, begin, end, strides, masks);
}

class StridedSliceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(masks_, ReadMasks(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor input = ctx->TakeInput(0);
    MR_ASSIGN_OR_RETURN(const StridedSlicePlan plan, PlanFromInputs(ctx, input.shape(), masks_));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(plan.result));
    return OutputBox(ctx, input, plan.begin, plan.steps, plan.sizes, shape);
  }

 private:
  StridedSliceAttrs masks_;
};

Status StridedSliceGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const StridedSliceAttrs masks, ReadMasks(c));
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
// A slice or one element of a vector, with known bounds.
std::optional<PartialValue> StridedSliceValue(PartialValueContext* c) {
  const std::optional<PartialValue> value = c->input(0);
  const std::optional<int64_t> stride = c->input_single(3);
  if (!value || value->is_scalar || !stride || *stride == 0) return std::nullopt;
  // The bounds are vectors of one element, known or not.
  std::optional<int64_t> bounds[2];
  for (int i = 0; i < 2; ++i) {
    const std::optional<PartialValue> bound = c->input(1 + i);
    if (!bound || bound->is_scalar || bound->elements.size() != 1) return std::nullopt;
    bounds[i] = bound->elements[0];
  }
  const auto mask = [c](const char* name) {
    const StatusOr<int64_t> bits = c->GetAttr<int64_t>(name);
    return bits.ok() ? *bits : 0;
  };
  if (mask("ellipsis_mask") != 0 || mask("new_axis_mask") != 0) return std::nullopt;
  const auto& [begin, end] = bounds;
  const bool begin_masked = (mask("begin_mask") & 1) != 0;
  const bool end_masked = (mask("end_mask") & 1) != 0;
  const int64_t n = static_cast<int64_t>(value->elements.size());
  if ((mask("shrink_axis_mask") & 1) != 0) {
    if (!begin || begin_masked || *stride < 0) return std::nullopt;
    const int64_t at = *begin < 0 ? *begin + n : *begin;
    if (at < 0 || at >= n) return std::nullopt;
    return PartialValue{/*is_scalar=*/true, {value->elements[static_cast<size_t>(at)]}};
  }
  if ((!begin && !begin_masked) || (!end && !end_masked)) return std::nullopt;
  const int64_t low = *stride > 0 ? 0 : -1;
  const int64_t high = *stride > 0 ? n : n - 1;
  const auto clamp = [&](int64_t i) { return std::clamp(i < 0 ? i + n : i, low, high); };
  const int64_t from = begin_masked ? (*stride > 0 ? low : high) : clamp(*begin);
  const int64_t to = end_masked ? (*stride > 0 ? high : low) : clamp(*end);
  // A stride beyond the length visits one element at most; cutting it avoids overflow.
  const int64_t step = std::clamp(*stride, -(n + 1), n + 1);
  PartialValue result;
  for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
    result.elements.push_back(value->elements[static_cast<size_t>(i)]);
  }
  return result;
}

const OpRegistration kStridedSlice = StridedSliceSpec(OpSpec("StridedSlice")
                                                          .Input("input: T")
                                                          .Input("begin: Index")
                                                          .Input("end: Index")
                                                          .Input("strides: Index"))
                                         .Shape(StridedSliceShape)
                                         .Gradient(StridedSliceGradient);
const PartialValueRule kStridedSliceRule("StridedSlice", StridedSliceValue);
const KernelRegistration kStridedSliceKernel = KernelFor<StridedSliceKernel>("StridedSlice");

// --- StridedSliceGrad ----------------------------------------------------------------------------

Status StridedSliceGradShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(0));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class StridedSliceGradKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(masks_, ReadMasks(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints dims, ctx->IntVectorInput(0, "shape"));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(const StridedSlicePlan plan, PlanFromInputs(ctx, shape, masks_));
    MR_ASSIGN_OR_RETURN(const Shape slice, Shape::Make(plan.result));
    const Tensor& dy = ctx->input(4);
    if (dy.shape() != slice) {
      return absl::InvalidArgumentError(absl::StrCat("dy must have the shape of the slice ",
                                                     slice.ToString(), ", got ",
                                                     dy.shape().ToString()));
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (absl::Span<char> bytes = out->mutable_bytes(); !bytes.empty()) {  // strings are empty
      std::memset(bytes.data(), 0, bytes.size());
    }
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
  MR_ASSIGN_OR_RETURN(const StridedSliceAttrs masks, ReadMasks(c));
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

}  // namespace
}  // namespace millrace

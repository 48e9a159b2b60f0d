// SPDX-License-Identifier: Apache-2.0
#include "ops/array/slice.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "ops/array/concat.h"
#include "ops/array/pad.h"
#include "ops/array/reshape.h"
#include "ops/math/cwise_binary.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/per_dimension.h"
#include "ops/rules/shape_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// What is read of one dimension: `size` elements (-1: not known) from `begin` on, `step` apart.
struct DimRange {
  int64_t begin = 0, step = 1, size = -1;
};
using DimRanges = std::vector<DimRange>;

Ints Sizes(const DimRanges& ranges) {
  Ints sizes;
  sizes.reserve(ranges.size());
  for (const DimRange& range : ranges) sizes.push_back(range.size);
  return sizes;
}

// The ranges' place in a dense tensor of this shape.
BoxSide SideOf(const Shape& shape, const DimRanges& ranges) {
  BoxSide side = DenseSide(shape.dims());
  for (size_t d = 0; d < ranges.size(); ++d) {
    side.origin += ranges[d].begin * side.strides[d];
    side.strides[d] *= ranges[d].step;
  }
  return side;
}

// Output 0 is what the rule's ranges cut out of input 0. A range of whole rows shares the input's
// memory.
template <typename Rule>
Status RunSlice(KernelContext* ctx, const Rule& rule) {
  const DimRanges& ranges = ctx->plan(rule);
  const Shape& shape = ctx->output_shape(0);
  const Tensor& input = ctx->input(0);
  bool are_rows = input.rank() > 0 && shape.num_elements() > 0;
  for (int d = 0; d < input.rank(); ++d) {
    const auto& [begin, step, size] = ranges[static_cast<size_t>(d)];
    are_rows = are_rows && (step == 1 || size == 1) && (d == 0 || size == input.dim(d));
  }
  if (are_rows || input.rank() == 0) {
    const Tensor part =
        are_rows ? input.Rows(ranges[0].begin, ranges[0].begin + ranges[0].size) : input;
    MR_ASSIGN_OR_RETURN(Tensor out, part.Reshaped(shape));
    ctx->set_output(0, std::move(out));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const Ints sizes = Sizes(ranges);
  return CopyBox(ctx, sizes, input, SideOf(input.shape(), ranges), out, DenseSide(sizes));
}

// --- Slice ---------------------------------------------------------------------------------------

// How many elements a slice takes of dimension d, which has `dim` of them (-1: not known).
StatusOr<int64_t> SlicedSize(int d, int64_t dim, std::optional<int64_t> begin,
                             std::optional<int64_t> size) {
  if (size.value_or(0) < -1) return InvalidArgument("size[", d, "] must be >= -1, got ", *size);
  if (begin && (*begin < 0 || (dim != -1 && *begin > dim))) {
    return InvalidArgument("begin[", d, "] must be in [0, ", dim == -1 ? "?" : absl::StrCat(dim),
                           "], got ", *begin);
  }
  const int64_t most = dim == -1 ? -1 : dim - begin.value_or(0);
  if (size && dim != -1 && *size > most) {
    return InvalidArgument("size[", d, "] must be in [0, ", most, "] (dimension ", dim, ", begin ",
                           begin ? absl::StrCat(*begin) : "?", "), got ", *size);
  }
  if (size == -1 && begin) return most;
  return size.value_or(-1);  // without a begin, -1 is a rest that is not known
}

struct SliceRule {
  StatusOr<Planned<DimRanges>> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts begin, c->IntVector(1, "begin"));
    MR_ASSIGN_OR_RETURN(const PartialInts size, c->IntVector(2, "size"));
    MR_ASSIGN_OR_RETURN(PartialShape input, WithLength(c->input(0), begin, "begin"));
    MR_ASSIGN_OR_RETURN(input, WithLength(input, size, "size"));
    if (!input.has_rank()) return input;
    DimRanges ranges;
    for (int d = 0; d < input.rank(); ++d) {
      MR_ASSIGN_OR_RETURN(const int64_t count,
                          SlicedSize(d, input.dim(d), begin.at(d), size.at(d)));
      ranges.push_back({.begin = begin.at(d).value_or(0), .size = count});
    }
    return WithPlan(PartialShape::Make(Sizes(ranges)), ranges);
  }
};

// The gradient stands where the slice was; zeros around it.
Output SliceGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output begin = c->input(1);
  const ShapeAttrs as_begin = {.out_type = begin.dtype()};
  const Output left_out =
      Sub(s, ShapeOf(s, c->input(0), as_begin), ShapeOf(s, c->output(0), as_begin));
  return Pad(s, c->dense_grad(), Pack(s, {begin, Sub(s, left_out, begin)}, {.axis = 1}));
}

// A slice of a vector.
std::optional<PartialValue> SliceValue(PartialValueContext* c) {
  const std::optional<PartialValue> value = c->input(0);
  const std::optional<int64_t> begin = c->input_single(1), size = c->input_single(2);
  if (!value || value->is_scalar || !begin || !size) return std::nullopt;
  const StatusOr<int64_t> count =
      SlicedSize(0, static_cast<int64_t>(value->elements.size()), begin, size);
  if (!count.ok()) return std::nullopt;
  const auto first = value->elements.begin() + *begin;
  return PartialValue{/*is_scalar=*/false, {first, first + *count}};
}

const OpRegistration kSlice = OpSpec("Slice", "input: T, begin: Index, size: Index -> output: T",
                                     "T: type; Index: {int32, int64}")
                                  .With(RuledKernelFor<SliceRule>(RunSlice))
                                  .Gradient(SliceGradient)
                                  .With(PartialValueRule(SliceValue));

// --- The rule of StridedSlice --------------------------------------------------------------------

bool Bit(int64_t mask, int i) { return ((mask >> i) & 1) != 0; }

// Elements i of begin, end and strides, with bits i of the masks, are item i.
struct StridedItems {
  StridedSliceAttrs masks;
  PartialInts begin, end, strides;

  // What item i reads of dimension d, which has `size` elements (-1: not known). An item that
  // shrinks reads one; its range is unknown while its place is.
  StatusOr<DimRange> Range(int i, int d, int64_t size) const {
    const std::optional<int64_t> first = begin.at(i), last = end.at(i), stride = strides.at(i);
    if (stride == 0) return InvalidArgument("strides[", i, "] must be non-zero");
    if (Bit(masks.shrink_axis_mask, i)) {
      if (stride.value_or(1) < 0) {
        return InvalidArgument("only stride 1 allowed on non-range indexing, got strides[", i,
                               "] = ", *stride);
      }
      if (!first || size == -1) return DimRange();
      const int64_t at = *first < 0 ? *first + size : *first;
      if (at >= 0 && at < size) return DimRange{.begin = at, .size = 1};
      return InvalidArgument("slice index ", *first, " of dimension ", d,
                             " out of bounds, the dimension has ", size, " elements");
    }
    const bool from_first = Bit(masks.begin_mask, i), to_last = Bit(masks.end_mask, i);
    if (size == -1 || !stride || (!first && !from_first) || (!last && !to_last)) return DimRange();
    // A step beyond the size reads one element at most; cut, it does not overflow.
    const int64_t step = std::clamp(*stride, -size - 1, size + 1);
    // Where the slice may begin and end: for a negative step, between the last element and the
    // place before the first one.
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    const auto place = [&](int64_t index) {
      return std::clamp(index < 0 ? index + size : index, low, high);
    };
    const int64_t from = !from_first ? place(*first) : step > 0 ? low : high;
    const int64_t to = !to_last ? place(*last) : step > 0 ? high : low;
    const int64_t length = step > 0 ? to - from : from - to;
    return DimRange{from, step, length <= 0 ? 0 : (length - 1) / std::abs(step) + 1};
  }
};

// The shape of the slice, and the range of each dimension of the input. The only place that knows
// which (input, items) are legal.
StatusOr<Planned<DimRanges>> PlanStrided(const PartialShape& input, const StridedItems& items) {
  int n = -1;
  for (const PartialInts* ints : {&items.begin, &items.end, &items.strides}) {
    if (ints->has_size()) n = ints->size();
  }
  const auto size = [n](const PartialInts& ints) { return ints.has_size() ? ints.size() : n; };
  if (size(items.begin) != n || size(items.end) != n) {
    return InvalidArgument("begin, end and strides must have the same length, got ",
                           size(items.begin), ", ", size(items.end), ", ", size(items.strides));
  }
  if (!input.has_rank() || n == -1) return PartialShape();
  constexpr int kMaxItems = 32;  // the masks of the field have 32 bits
  if (n > kMaxItems) {
    return InvalidArgument("strides must have at most ", kMaxItems, " elements, got ", n);
  }
  const uint64_t all = (uint64_t{1} << n) - 1;
  const uint64_t dots = static_cast<uint64_t>(items.masks.ellipsis_mask) & all;
  const uint64_t new_axes = static_cast<uint64_t>(items.masks.new_axis_mask) & all;
  if (std::popcount(dots) > 1) {
    return InvalidArgument("ellipsis_mask must have at most one bit, got ", dots);
  }
  // An ellipsis that is not written stands at the end.
  const int ellipsis = dots == 0 ? n : std::countr_zero(dots);
  const int num_slices = n - std::popcount(dots | new_axes);
  if (num_slices > input.rank()) {
    return InvalidArgument("Index out of range using input dim ", input.rank(), "; input has only ",
                           input.rank(), " dims, got ", num_slices, " slices");
  }
  DimRanges ranges;
  Ints result;
  ranges.reserve(static_cast<size_t>(input.rank()));
  result.reserve(static_cast<size_t>(input.rank() + n));
  for (int i = 0; i < std::max(n, ellipsis + 1); ++i) {
    const int d = static_cast<int>(ranges.size());
    if (i == ellipsis) {
      for (int k = d; k < d + input.rank() - num_slices; ++k) {
        ranges.push_back({.size = input.dim(k)});
        result.push_back(input.dim(k));
      }
    } else if (Bit(items.masks.new_axis_mask, i)) {
      result.push_back(1);
    } else {
      MR_ASSIGN_OR_RETURN(const DimRange range, items.Range(i, d, input.dim(d)));
      ranges.push_back(range);
      if (!Bit(items.masks.shrink_axis_mask, i)) result.push_back(range.size);
    }
  }
  return WithPlan(PartialShape::Make(result), std::move(ranges));
}

// --- StridedSlice, StridedSliceGrad --------------------------------------------------------------

// StridedSliceGrad has the shape of a StridedSlice's input in its place, and the slice behind.
template <bool kGrad>
struct StridedRule {
  StridedSliceAttrs masks;

  Status Init(const NodeAttrs& attrs) {
    for (const auto& [name, mask] : kStridedSliceMasks) {
      MR_RETURN_IF_ERROR(ReadAttrs(attrs, name, &(masks.*mask)));
    }
    return absl::OkStatus();
  }
  StatusOr<Planned<DimRanges>> operator()(RuleContext* c) const {
    PartialShape input = c->input(0);
    if (kGrad) {
      MR_ASSIGN_OR_RETURN(input, ShapeOfInput(c, 0, "shape"));
    }
    StridedItems items = {masks, {}, {}, {}};
    MR_ASSIGN_OR_RETURN(items.begin, c->IntVector(1, "begin"));
    MR_ASSIGN_OR_RETURN(items.end, c->IntVector(2, "end"));
    MR_ASSIGN_OR_RETURN(items.strides, c->IntVector(3, "strides"));
    MR_ASSIGN_OR_RETURN(Planned<DimRanges> slice, PlanStrided(input, items));
    if (!kGrad) return slice;
    if (slice.output.IsCompatibleWith(c->input(4))) return WithPlan(input, slice.plan);
    return InvalidArgument("dy must have the shape of the slice ", slice.output, ", got ",
                           c->input(4));
  }
};
using StridedSliceRule = StridedRule</*kGrad=*/false>;
using StridedSliceGradRule = StridedRule</*kGrad=*/true>;

Status RunStridedSliceGrad(KernelContext* ctx, const StridedSliceGradRule& rule) {
  const DimRanges& ranges = ctx->plan(rule);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(0));
  const Ints sizes = Sizes(ranges);
  return CopyBox(ctx, sizes, ctx->input(4), DenseSide(sizes), out, SideOf(out->shape(), ranges));
}

StatusOr<Output> StridedSliceGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<StridedSliceRule>());
  const Output shape = ShapeOf(c->scope(), c->input(0), {.out_type = c->input(1).dtype()});
  return StridedSliceGrad(c->scope(), shape, c->input(1), c->input(2), c->input(3), c->dense_grad(),
                          rule.masks);
}

StatusOr<std::vector<Output>> StridedSliceGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<StridedSliceGradRule>());
  const Output dy =
      StridedSlice(c->scope(), c->dense_grad(), c->input(1), c->input(2), c->input(3), rule.masks);
  return std::vector<Output>{{}, {}, {}, {}, dy};
}

// A slice or one element of a vector.
std::optional<PartialValue> StridedSliceValue(PartialValueContext* c) {
  std::optional<PartialValue> inputs[4];
  for (int i = 0; i < 4; ++i) {
    inputs[i] = c->input(i);
    if (!inputs[i] || inputs[i]->is_scalar) return std::nullopt;
  }
  StridedItems items = {
      {}, PartialInts(*inputs[1]), PartialInts(*inputs[2]), PartialInts(*inputs[3])};
  for (const auto& [name, mask] : kStridedSliceMasks) {
    items.masks.*mask = c->GetAttr<int64_t>(name).value_or(0);
  }
  const auto& elements = inputs[0]->elements;
  const auto slice = PlanStrided({static_cast<int64_t>(elements.size())}, items);
  if (!slice.ok() || slice->output.rank() > 1 || slice->plan[0].size == -1) return std::nullopt;
  PartialValue result = {/*is_scalar=*/slice->output.rank() == 0, {}};
  const auto [begin, step, size] = slice->plan[0];
  for (int64_t k = 0; k < size; ++k) {
    result.elements.push_back(elements[static_cast<size_t>(begin + k * step)]);
  }
  return result;
}

OpSpec StridedSpec(absl::string_view op, absl::string_view arguments) {
  OpSpec spec(op, arguments, "T: type; Index: {int32, int64}");
  for (const auto& [name, mask] : kStridedSliceMasks) spec.Attr(absl::StrCat(name, ": int = 0"));
  return spec;
}

const OpRegistration kStridedSlice =
    StridedSpec("StridedSlice", "input: T, begin: Index, end: Index, strides: Index -> output: T")
        .With(RuledKernelFor<StridedSliceRule>(RunSlice))
        .Gradient(StridedSliceGradient)
        .With(PartialValueRule(StridedSliceValue));

const OpRegistration kStridedSliceGrad =
    StridedSpec("StridedSliceGrad",
                "shape: Index, begin: Index, end: Index, strides: Index, dy: T -> output: T")
        .With(RuledKernelFor<StridedSliceGradRule>(RunStridedSliceGrad))
        .Gradient(StridedSliceGradGradient);

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/array/concat.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/cast.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/sizes_with_rest.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Input i, an axis that the rule has seen, of a tensor of this rank.
StatusOr<int> AxisInput(const KernelContext* ctx, int i, int rank) {
  return ResolveAxis(ctx->input(i).ints()[0], rank);
}

// Output 0 is `values` one behind the other along `axis` (each has its part of the output there,
// of whatever rank).
Status OutputJoined(KernelContext* ctx, ArgRange values, int axis) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  const int64_t before = out->shape().NumElements(0, axis);
  const int64_t row = out->num_elements() / before;
  int64_t origin = 0;
  for (const Tensor& value : ctx->inputs(values)) {
    const int64_t size = value.num_elements() / before;
    MR_RETURN_IF_ERROR(
        CopyBox(ctx, {before, size}, value, {0, {size, 1}}, out, {origin, {row, 1}}));
    origin += size;
  }
  return absl::OkStatus();
}

// Output i is the i-th part of `value` along `axis`, in the rule's shape. Parts along the first
// dimension share the tensor's memory.
Status OutputParts(KernelContext* ctx, const Tensor& value, int axis) {
  const int64_t before = value.shape().NumElements(0, axis);
  const int64_t after = value.shape().NumElements(axis + 1, value.rank());
  int64_t begin = 0;
  for (int i = 0; i < ctx->num_outputs(); ++i) {
    const Shape& shape = ctx->output_shape(i);
    const bool is_unpacked = shape.rank() < value.rank();
    const int64_t size = is_unpacked ? 1 : shape.dim(axis);
    if (axis == 0) {
      MR_ASSIGN_OR_RETURN(Tensor part, value.Rows(begin, begin + size).Reshaped(shape));
      ctx->set_output(i, std::move(part));
    } else {
      MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(i));
      MR_RETURN_IF_ERROR(CopyBox(ctx, {before, size * after}, value,
                                 {begin * after, {value.dim(axis) * after, 1}}, out,
                                 {0, {size * after, 1}}));
    }
    begin += size;
  }
  return absl::OkStatus();
}

// --- Concat, ConcatV2 ----------------------------------------------------------------------------

// `values` put together along `axis`; only their rank while it is unknown.
StatusOr<Planned<int>> Concatenated(absl::Span<const PartialShape> values,
                                    std::optional<int64_t> axis) {
  size_t first = 0;  // whose rank is known
  while (first < values.size() && !values[first].has_rank()) ++first;
  if (first == values.size()) return PartialShape();
  const int rank = values[first].rank();
  if (rank == 0) {
    return InvalidArgument("values must have rank >= 1, got scalars; Pack makes a vector of them");
  }
  MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis.value_or(0), rank));
  Ints dims(static_cast<size_t>(rank), -1);
  int64_t total = first == 0 ? 0 : -1;  // along the axis
  for (size_t i = first; i < values.size(); ++i) {
    const PartialShape& value = values[i];
    if (value.has_rank() && value.rank() != rank) {
      return InvalidArgument("values must have the same rank, got shape ", values[first],
                             " for values[", first, "] and ", value, " for values[", i, "]");
    }
    const bool adds = axis && value.has_rank() && value.dim(at) != -1 && total != -1;
    total = adds ? total + value.dim(at) : -1;
    for (int d = 0; axis && value.has_rank() && d < rank; ++d) {
      int64_t& have = dims[static_cast<size_t>(d)];
      if (d == at || value.dim(d) == -1) continue;
      if (have != -1 && have != value.dim(d)) {
        return InvalidArgument("values must agree in all dimensions but axis ", at,
                               ", got dimension ", d, " = ", have, " (values[", first,
                               "] of shape ", values[first], ") and ", value.dim(d), " (values[", i,
                               "] of shape ", value, ")");
      }
      have = value.dim(d);
    }
  }
  if (axis) dims[static_cast<size_t>(at)] = total;
  return WithPlan(PartialShape::Make(dims), at);
}

// Concat has its axis before the values, ConcatV2 behind them.
template <bool kAxisFirst>
struct ConcatRule {
  static int Axis(int num_inputs) { return kAxisFirst ? 0 : num_inputs - 1; }
  static ArgRange Values(int num_inputs) {
    return kAxisFirst ? ArgRange{1, num_inputs} : ArgRange{0, num_inputs - 1};
  }
  StatusOr<Planned<int>> operator()(RuleContext* c) const {
    const int n = c->num_inputs();
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> axis,
                        c->IntScalar(Axis(n), "axis", /*allow_single=*/true));
    return Concatenated(c->inputs(Values(n).begin, Values(n).end), axis);
  }
};

template <typename Rule>
Status RunConcat(KernelContext* ctx, const Rule& rule) {
  const ArgRange values = Rule::Values(ctx->num_inputs());
  const int64_t size = ctx->output_shape(0).num_elements();
  for (int i = values.begin; i < values.end && size > 0; ++i) {
    if (ctx->input(i).num_elements() == size) return ctx->PassInput(i);  // the others are empty
  }
  return OutputJoined(ctx, values, ctx->plan(rule));
}

// Each value gets its part of the gradient: cut out where ConcatOffset says. Where all sizes are
// known while the graph is built, they are constants.
template <typename Rule>
std::vector<Output> ConcatGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const int n = c->num_inputs();
  const Output grad = c->dense_grad();
  std::vector<Output> values, grads(static_cast<size_t>(n));
  for (int i = Rule::Values(n).begin; i < Rule::Values(n).end; ++i) values.push_back(c->input(i));
  const std::vector<Output> sizes = ShapeN(s, values);
  Output axis = c->input(Rule::Axis(n));
  if (axis.dtype() != DT_INT32) axis = Cast(s, axis, DT_INT32);
  const std::vector<Output> offsets = ConcatOffset(s, axis, sizes);
  for (size_t k = 0; k < values.size(); ++k) {
    grads[static_cast<size_t>(Rule::Values(n).begin) + k] = Slice(s, grad, offsets[k], sizes[k]);
  }
  return grads;
}

// Vectors one after the other. The axis is the only one that a vector has.
template <typename Rule>
std::optional<PartialValue> ConcatValue(PartialValueContext* c) {
  const int n = c->num_inputs();
  const std::optional<int64_t> axis = c->input_scalar(Rule::Axis(n));
  if (axis ? *axis != 0 && *axis != -1 : !c->may_assume_success()) return std::nullopt;
  PartialValue joined;
  for (int i = Rule::Values(n).begin; i < Rule::Values(n).end; ++i) {
    const std::optional<PartialValue> part = c->input(i);
    if (!part || part->is_scalar) return std::nullopt;
    joined.elements.insert(joined.elements.end(), part->elements.begin(), part->elements.end());
    if (joined.elements.size() > static_cast<size_t>(kMaxConstantElements)) return std::nullopt;
  }
  return joined;
}

using ConcatV1Rule = ConcatRule</*kAxisFirst=*/true>;
const OpRegistration kConcat =
    OpSpec("Concat", "concat_dim: int32, values: N * T -> output: T", "N: int >= 2; T: type")
        .With(RuledKernelFor<ConcatV1Rule>(RunConcat))
        .Gradient(ConcatGradient<ConcatV1Rule>)
        .With(PartialValueRule(ConcatValue<ConcatV1Rule>));

using ConcatV2Rule = ConcatRule</*kAxisFirst=*/false>;
const OpRegistration kConcatV2 = OpSpec("ConcatV2", "values: N * T, axis: Tidx -> output: T",
                                        "N: int >= 2; T: type; Tidx: {int32, int64} = DT_INT32")
                                     .With(RuledKernelFor<ConcatV2Rule>(RunConcat))
                                     .Gradient(ConcatGradient<ConcatV2Rule>)
                                     .With(PartialValueRule(ConcatValue<ConcatV2Rule>));

// --- ConcatOffset --------------------------------------------------------------------------------

struct ConcatOffsetRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> concat_dim,
                        c->IntScalar(0, "concat_dim", /*allow_single=*/true));
    MR_ASSIGN_OR_RETURN(const PartialInts first, c->IntVector(1, "shape[0]"));
    int axis = -1;
    if (concat_dim && first.has_size()) {
      MR_ASSIGN_OR_RETURN(axis, ResolveAxis(*concat_dim, first.size()));
    }
    for (int i = 1; i < c->num_inputs(); ++i) {
      const std::string name = absl::StrCat("shape[", i - 1, "]");
      MR_ASSIGN_OR_RETURN(const PartialInts dims, c->IntVector(i, name));
      MR_ASSIGN_OR_RETURN(PartialShape offset, c->InputWithRank(i, 1));
      c->set_output(i - 1, std::move(offset));
      if (!first.has_size() || !dims.has_size()) continue;
      if (dims.size() != first.size()) {
        return InvalidArgument(name, " must have ", first.size(), " elements as shape[0], got ",
                               dims.size());
      }
      for (int d = 0; axis >= 0 && d < dims.size(); ++d) {
        const std::optional<int64_t> dim = dims.at(d), want = first.at(d);
        if (d == axis || !dim || !want || *dim == *want) continue;
        return InvalidArgument("all shapes must agree in all dimensions but concat_dim ", axis,
                               ", got dimension ", d, " = ", *dim, " of ", name, " and ", *want,
                               " of shape[0]");
      }
    }
    return absl::OkStatus();
  }
};

Status RunConcatOffset(KernelContext* ctx, const ConcatOffsetRule&) {
  const int rank = static_cast<int>(ctx->input(1).num_elements());
  MR_ASSIGN_OR_RETURN(const int axis, AxisInput(ctx, 0, rank));
  int64_t offset = 0;
  for (int i = 0; i < ctx->num_outputs(); ++i) {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(i));
    out->mutable_raw<int32_t>()[static_cast<size_t>(axis)] = static_cast<int32_t>(offset);
    offset += ctx->input(i + 1).raw<int32_t>()[static_cast<size_t>(axis)];
    if (offset < 0 || offset > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("offsets must fit into int32, got ", offset);
    }
  }
  return absl::OkStatus();
}

const OpRegistration kConcatOffset =
    OpSpec("ConcatOffset", "concat_dim: int32, shape: N * int32 -> offset: N * int32",
           "N: int >= 2")
        .With(RuledKernelFor<ConcatOffsetRule>(RunConcatOffset, KernelCost::kCheap))
        .NotDifferentiable();

// --- Pack, Unpack --------------------------------------------------------------------------------

struct PackRule {
  int64_t axis = 0;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "axis", &axis); }
  StatusOr<Planned<int>> operator()(RuleContext* c) const {
    PartialShape value;
    for (int i = 0; i < c->num_inputs(); ++i) {
      StatusOr<PartialShape> merged = value.MergeWith(c->input(i));
      if (!merged.ok()) {
        return InvalidArgument("Shapes of all inputs must match: values[0].shape = ", value,
                               " != values[", i, "].shape = ", c->input(i));
      }
      value = *std::move(merged);
    }
    if (!value.has_rank()) return value;
    MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis, value.rank() + 1));
    Ints dims(value.dims().begin(), value.dims().end());
    dims.insert(dims.begin() + at, c->num_inputs());
    return WithPlan(PartialShape::Make(dims), at);
  }
};

Status RunPack(KernelContext* ctx, const PackRule& rule) {
  if (ctx->num_inputs() == 1) return ctx->PassInput(0);
  return OutputJoined(ctx, {0, ctx->num_inputs()}, ctx->plan(rule));
}

StatusOr<std::vector<Output>> PackGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const PackRule rule, c->GetRule<PackRule>());
  return Unpack(c->scope(), c->dense_grad(), c->num_inputs(), {.axis = rule.axis});
}

// Scalars as the elements of a vector.
std::optional<PartialValue> PackValue(PartialValueContext* c) {
  const StatusOr<int64_t> axis = c->GetAttr<int64_t>("axis");
  if (!axis.ok() || (*axis != 0 && *axis != -1)) return std::nullopt;
  const PartialShape out = c->output_shape();
  PartialValue packed;
  for (int i = 0; i < c->num_inputs(); ++i) {
    std::optional<PartialValue> value = c->input(i);
    // An input of which no shape says that it is a scalar may be anything.
    const bool is_scalar = c->input_shape(i) == PartialShape::Scalar();
    if (!value && (is_scalar || (out.has_rank() && out.rank() == 1))) {
      value = PartialValue::Unknown(PartialShape::Scalar());
    }
    if (!value || !value->is_scalar) return std::nullopt;
    packed.elements.push_back(value->elements[0]);
  }
  return packed;
}

const OpRegistration kPack =
    OpSpec("Pack", "values: N * T -> output: T", "N: int >= 1; T: type; axis: int = 0")
        .With(RuledKernelFor<PackRule>(RunPack))
        .Gradient(PackGradient)
        .With(PartialValueRule(PackValue));

// What is taken apart has a dimension.
Status CheckHasDims(const PartialShape& value) {
  if (!value.has_rank() || value.rank() > 0) return absl::OkStatus();
  return InvalidArgument("value must have rank >= 1, got shape []");
}

struct UnpackRule {
  int64_t num = 0, axis = 0;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "num", &num, "axis", &axis); }
  Status operator()(RuleContext* c) const {
    const PartialShape& value = c->input(0);
    MR_RETURN_IF_ERROR(CheckHasDims(value));
    if (!value.has_rank()) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis, value.rank()));
    if (value.dim(at) != -1 && value.dim(at) != num) {
      return InvalidArgument("dimension ", at, " must have the size of attr num ", num,
                             ", got shape ", value);
    }
    Ints dims(value.dims().begin(), value.dims().end());
    dims.erase(dims.begin() + at);
    MR_ASSIGN_OR_RETURN(const PartialShape part, PartialShape::Make(dims));
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, part);
    return absl::OkStatus();
  }
};

Status RunUnpack(KernelContext* ctx, const UnpackRule& rule) {
  MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(rule.axis, ctx->input(0).rank()));
  return OutputParts(ctx, ctx->input(0), axis);
}

// Of the parts; zeros for one that has none.
std::vector<Output> OutputGradients(GradientContext* c) {
  std::vector<Output> grads;
  for (int i = 0; i < c->num_outputs(); ++i) grads.push_back(c->dense_grad(i));
  return grads;
}

Status UnpackGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const UnpackRule rule, c->GetRule<UnpackRule>());
  if (rule.num == 0) return absl::OkStatus();
  c->set_input_grad(0, Pack(c->scope(), OutputGradients(c), {.axis = rule.axis}));
  return absl::OkStatus();
}

const OpRegistration kUnpack =
    OpSpec("Unpack", "value: T -> output: num * T", "num: int >= 0; T: type; axis: int = 0")
        .With(RuledKernelFor<UnpackRule>(RunUnpack))
        .Gradient(UnpackGradient);

// --- Split, SplitV -------------------------------------------------------------------------------

// The sizes of `n` equal parts of a dimension; -1 is unknown.
StatusOr<Ints> EqualSizes(int n, int64_t dim) {
  if (dim != -1 && (n < 1 || dim % n != 0)) {
    return InvalidArgument("num_split must divide the size of split_dim, got ", n, " parts of ",
                           dim);
  }
  return Ints(static_cast<size_t>(n), dim == -1 ? -1 : dim / n);
}

// The sizes of parts of which one may be given as -1: the rest.
StatusOr<Ints> GivenSizes(const PartialInts& given, int n, int64_t dim) {
  MR_ASSIGN_OR_RETURN(SizesWithRest parts, SizesWithRest::Read("size_splits", given, n));
  int64_t sum = 0;
  for (const int64_t size : parts.sizes) {
    if (size > Shape::kMaxElements - sum) {
      return InvalidArgument("the sum of size_splits must be <= ", Shape::kMaxElements,
                             ", got more");
    }
    sum += std::max<int64_t>(size, 0);
  }
  if (dim == -1) return parts.sizes;
  if (parts.num_open > 0 ? sum > dim : sum != dim) {
    return InvalidArgument("size_splits must add up to ", parts.num_open > 0 ? "at most " : "",
                           "the size of split_dim ", dim, ", got ", sum);
  }
  if (parts.num_open == 1) parts.open() = dim - sum;
  return parts.sizes;
}

// Split makes equal parts, SplitV parts of given sizes.
template <bool kSizesGiven>
struct SplitRule {
  static constexpr int kValue = kSizesGiven ? 0 : 1;
  static constexpr int kSplitDim = kSizesGiven ? 2 : 0;

  Status operator()(RuleContext* c) const {
    const int n = c->num_outputs();
    const PartialShape& value = c->input(kValue);
    MR_RETURN_IF_ERROR(CheckHasDims(value));
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> split_dim,
                        c->IntScalar(kSplitDim, "split_dim"));
    PartialInts given;
    if (kSizesGiven) {
      MR_ASSIGN_OR_RETURN(given, c->IntVector(1, "size_splits"));
      if (given.has_size() && given.size() != n) {
        return InvalidArgument("size_splits must have num_split = ", n, " elements, got ",
                               given.size());
      }
    }
    if (!value.has_rank()) return absl::OkStatus();
    if (!split_dim) {
      for (int i = 0; i < n; ++i) c->set_output(i, PartialShape::UnknownOfRank(value.rank()));
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(*split_dim, value.rank()));
    const int64_t dim = value.dim(axis);
    MR_ASSIGN_OR_RETURN(const Ints sizes,
                        kSizesGiven ? GivenSizes(given, n, dim) : EqualSizes(n, dim));
    Ints dims(value.dims().begin(), value.dims().end());
    PartialShape part;
    for (int i = 0; i < n; ++i) {
      const int64_t size = sizes[static_cast<size_t>(i)];
      if (i == 0 || size != part.dim(axis)) {
        dims[static_cast<size_t>(axis)] = size;
        MR_ASSIGN_OR_RETURN(part, PartialShape::Make(dims));
      }
      c->set_output(i, part);
    }
    return absl::OkStatus();
  }
};

template <typename Rule>
Status RunSplit(KernelContext* ctx, const Rule&) {
  const Tensor& value = ctx->input(Rule::kValue);
  MR_ASSIGN_OR_RETURN(const int axis, AxisInput(ctx, Rule::kSplitDim, value.rank()));
  return OutputParts(ctx, value, axis);
}

template <typename Rule>
Status SplitGradient(GradientContext* c) {
  const std::vector<Output> grads = OutputGradients(c);
  const Output axis = c->input(Rule::kSplitDim);
  c->set_input_grad(Rule::kValue, grads.size() == 1 ? grads[0] : ConcatV2(c->scope(), grads, axis));
  return absl::OkStatus();
}

using EqualSplitRule = SplitRule</*kSizesGiven=*/false>;
const OpRegistration kSplit = OpSpec("Split", "split_dim: int32, value: T -> output: num_split * T",
                                     "num_split: int >= 1; T: type")
                                  .With(RuledKernelFor<EqualSplitRule>(RunSplit))
                                  .Gradient(SplitGradient<EqualSplitRule>);

using SplitVRule = SplitRule</*kSizesGiven=*/true>;
const OpRegistration kSplitV =
    OpSpec("SplitV", "value: T, size_splits: Tlen, split_dim: int32 -> output: num_split * T",
           "num_split: int >= 1; T: type; Tlen: {int32, int64} = DT_INT64")
        .With(RuledKernelFor<SplitVRule>(RunSplit))
        .Gradient(SplitGradient<SplitVRule>);

}  // namespace
}  // namespace millrace

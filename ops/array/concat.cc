// SPDX-License-Identifier: Apache-2.0
#include "ops/array/concat.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/rules/elements.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Bytes that one thread copies in about 10 us; strings count as more.
constexpr double kNsPerByte = 0.1;

// Copies `rows` pieces of `size` elements, `from_step` and `to_step` elements apart.
template <typename E>
void CopyPieces(const E* from, int64_t from_step, E* to, int64_t to_step, int64_t size,
                int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const E* const piece = from + r * from_step;
    std::copy(piece, piece + size, to + r * to_step);
  }
}

// --- The rules -----------------------------------------------------------------------------------

// A shape seen from one dimension: [before, dim, after] elements.
struct AroundAxis {
  int64_t before, dim, after;
};
AroundAxis Around(const Shape& shape, int axis) {
  return {shape.NumElements(0, axis), shape.dim(axis), shape.NumElements(axis + 1, shape.rank())};
}

// The shape of `inputs` put together along `axis`, which may be unknown (nullopt).
StatusOr<PartialShape> ConcatenatedShape(absl::Span<const PartialShape> inputs,
                                         std::optional<int64_t> axis) {
  // Without an axis, only the rank: that of any input.
  PartialShape merged;
  size_t first_known = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].has_rank()) continue;
    if (!merged.has_rank()) {
      merged = PartialShape::UnknownOfRank(inputs[i].rank());
      first_known = i;
    } else if (merged.rank() != inputs[i].rank()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "values must have the same rank, got shape ", inputs[first_known].ToString(),
          " for values[", first_known, "] and ", inputs[i].ToString(), " for values[", i, "]"));
    }
  }
  if (!merged.has_rank()) return merged;
  if (merged.rank() == 0) {
    return absl::InvalidArgumentError(
        "values must have rank >= 1, got scalars; Pack makes a vector of scalars");
  }
  if (!axis) return merged;
  MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(*axis, merged.rank()));
  std::vector<int64_t> dims(static_cast<size_t>(merged.rank()), -1);
  int64_t total = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].has_rank()) {
      total = -1;
      continue;
    }
    for (int d = 0; d < merged.rank(); ++d) {
      const int64_t dim = inputs[i].dim(d);
      if (dim == -1) {
        if (d == at) total = -1;
        continue;
      }
      if (d == at) {
        if (total >= 0) total += dim;
        continue;
      }
      int64_t& have = dims[static_cast<size_t>(d)];
      if (have != -1 && have != dim) {
        return absl::InvalidArgumentError(absl::StrCat(
            "values must agree in all dimensions but axis ", at, ", got dimension ", d, " = ", have,
            " (values[", first_known, "] of shape ", inputs[first_known].ToString(), ") and ", dim,
            " (values[", i, "] of shape ", inputs[i].ToString(), ")"));
      }
      have = dim;
    }
  }
  dims[static_cast<size_t>(at)] = total;
  return PartialShape::Make(dims);
}

// The sizes of the parts of a dimension of `dim` elements (-1: not known yet), of which one may be
// given as -1.
StatusOr<std::vector<int64_t>> PartSizes(absl::Span<const int64_t> sizes, int64_t dim) {
  std::vector<int64_t> parts(sizes.begin(), sizes.end());
  std::optional<size_t> rest;
  int64_t sum = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] == -1) {
      if (rest) {
        return absl::InvalidArgumentError(absl::StrCat(
            "size_splits must have at most one -1, got one at [", *rest, "] and one at [", i, "]"));
      }
      rest = i;
      continue;
    }
    if (parts[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("size_splits[", i, "] must be >= -1, got ", parts[i]));
    }
    if (parts[i] > Shape::kMaxElements - sum) {
      return absl::InvalidArgumentError(
          absl::StrCat("the sum of size_splits must be <= ", Shape::kMaxElements, ", got more"));
    }
    sum += parts[i];
  }
  if (dim < 0) return parts;
  if (rest ? sum > dim : sum != dim) {
    return absl::InvalidArgumentError(absl::StrCat("size_splits must add up to ",
                                                   rest ? "at most " : "", "the size of split_dim ",
                                                   dim, ", got ", sum));
  }
  if (rest) parts[*rest] = dim - sum;
  return parts;
}

// The size of each of `num_split` equal parts.
StatusOr<int64_t> EqualPartSize(int64_t dim, int64_t num_split) {
  if (num_split < 1 || dim % num_split != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_split must divide the size of split_dim, got ", num_split, " parts of ", dim));
  }
  return dim / num_split;
}

// --- Concat, ConcatV2 ----------------------------------------------------------------------------

Status ConcatShapeOf(InferenceContext* c, int axis_input, int first, int end) {
  std::vector<PartialShape> inputs;
  for (int i = first; i < end; ++i) inputs.push_back(c->input(i));
  MR_ASSIGN_OR_RETURN(PartialShape shape, ConcatenatedShape(inputs, ConstantInt(c, axis_input)));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status ConcatV2Shape(InferenceContext* c) {
  return ConcatShapeOf(c, c->num_inputs() - 1, 0, c->num_inputs() - 1);
}
Status ConcatV1Shape(InferenceContext* c) { return ConcatShapeOf(c, 0, 1, c->num_inputs()); }

// Writes the values one behind the other; [before, dim, after] is the output's shape around the
// axis.
template <typename E>
void ConcatElements(KernelContext* ctx, absl::Span<const Tensor* const> values, AroundAxis out,
                    Tensor* output) {
  E* to = MutableElementsOf<E>(output);
  const int64_t row = out.dim * out.after;
  for (const Tensor* value : values) {
    if (value->num_elements() == 0) continue;
    const E* from = ElementsOf<E>(*value);
    const int64_t size = value->num_elements() / out.before;
    if (out.before == 1) {
      ctx->ParallelFor(size, kNsPerByte * sizeof(E), [=](int64_t begin, int64_t end) {
        std::copy(from + begin, from + end, to + begin);
      });
    } else {
      ctx->ParallelFor(
          out.before, kNsPerByte * sizeof(E) * static_cast<double>(size) + 1,
          [=](int64_t begin, int64_t end) { CopyPieces(from, size, to, row, size, begin, end); });
    }
    to += size;
  }
}

class ConcatKernelOf : public Kernel {
 public:
  explicit ConcatKernelOf(bool axis_first) : axis_first_(axis_first) {}
  Status Compute(KernelContext* ctx) const override {
    const int first = axis_first_ ? 1 : 0;
    const int end = axis_first_ ? ctx->num_inputs() : ctx->num_inputs() - 1;
    const Tensor& axis = ctx->input(axis_first_ ? 0 : end);
    if (axis.num_elements() != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis must be a scalar, got shape ", axis.shape().ToString()));
    }
    std::vector<PartialShape> shapes;
    std::vector<const Tensor*> values;
    for (int i = first; i < end; ++i) {
      shapes.push_back(ctx->input(i).shape());
      values.push_back(&ctx->input(i));
    }
    const int64_t wanted = IntElements(axis).front();
    MR_ASSIGN_OR_RETURN(const PartialShape known, ConcatenatedShape(shapes, wanted));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(wanted, shape.rank()));
    // All but one empty: that one is the result.
    const Tensor* only = nullptr;
    for (const Tensor* value : values) {
      if (value->num_elements() == shape.num_elements() && shape.num_elements() > 0) only = value;
    }
    if (only != nullptr) {
      ctx->set_output(0, *only);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    return VisitElements(out->dtype(), [&]<typename E>() {
      ConcatElements<E>(ctx, values, Around(shape, at), out);
    });
  }

 private:
  const bool axis_first_;
};
class ConcatV2Kernel : public ConcatKernelOf {
 public:
  ConcatV2Kernel() : ConcatKernelOf(false) {}
};
class ConcatV1Kernel : public ConcatKernelOf {
 public:
  ConcatV1Kernel() : ConcatKernelOf(true) {}
};

// Each value gets its part of the gradient: cut out where ConcatOffset says. Where all sizes are
// known while the graph is built, they are constants.
Status ConcatGradientOf(GradientContext* c, int axis_input, int first, int end) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output grad = c->dense_grad(0);
  std::vector<Output> values;
  for (int i = first; i < end; ++i) values.push_back(c->input(i));
  const std::vector<Output> sizes = ShapeN(scope, values);
  Output axis = c->input(axis_input);
  if (axis.dtype() != DT_INT32) {
    axis = NodeBuilder(scope, "Cast").Input(axis).Attr("DstT", DT_INT32).Finish().output(0);
  }
  const std::vector<Output> offsets = ConcatOffset(scope, axis, sizes);
  for (int i = first; i < end; ++i) {
    const size_t k = static_cast<size_t>(i - first);
    c->set_input_grad(i, NodeBuilder(scope, "Slice")
                             .Input(grad)
                             .Input(offsets[k])
                             .Input(sizes[k])
                             .Finish()
                             .output(0));
  }
  return absl::OkStatus();
}
Status ConcatV2Gradient(GradientContext* c) {
  return ConcatGradientOf(c, c->num_inputs() - 1, 0, c->num_inputs() - 1);
}
Status ConcatV1Gradient(GradientContext* c) { return ConcatGradientOf(c, 0, 1, c->num_inputs()); }

// Vectors [begin, end) one after the other. `axis` is the only one that a vector has.
std::optional<PartialValue> JoinedValue(PartialValueContext* c, int begin, int end, int axis) {
  const std::optional<int64_t> along = c->input_scalar(axis);
  if (!along || (*along != 0 && *along != -1)) return std::nullopt;
  PartialValue joined;
  for (int i = begin; i < end; ++i) {
    const std::optional<PartialValue> part = c->input(i);
    if (!part || part->is_scalar) return std::nullopt;
    joined.elements.insert(joined.elements.end(), part->elements.begin(), part->elements.end());
    if (joined.elements.size() > static_cast<size_t>(kMaxConstantElements)) return std::nullopt;
  }
  return joined;
}
std::optional<PartialValue> ConcatV2Value(PartialValueContext* c) {
  return JoinedValue(c, 0, c->num_inputs() - 1, c->num_inputs() - 1);
}
std::optional<PartialValue> ConcatV1Value(PartialValueContext* c) {
  return JoinedValue(c, 1, c->num_inputs(), 0);
}

const OpRegistration kConcatV2 = OpSpec("ConcatV2")
                                     .Input("values: N * T")
                                     .Input("axis: Tidx")
                                     .Output("output: T")
                                     .Attr("N: int >= 2")
                                     .Attr("T: type")
                                     .Attr("Tidx: {int32, int64} = DT_INT32")
                                     .Shape(ConcatV2Shape)
                                     .Gradient(ConcatV2Gradient);
const PartialValueRule kConcatV2Rule("ConcatV2", ConcatV2Value);
const KernelRegistration kConcatV2Kernel = KernelFor<ConcatV2Kernel>("ConcatV2");

const OpRegistration kConcat = OpSpec("Concat")
                                   .Input("concat_dim: int32")
                                   .Input("values: N * T")
                                   .Output("output: T")
                                   .Attr("N: int >= 2")
                                   .Attr("T: type")
                                   .Shape(ConcatV1Shape)
                                   .Gradient(ConcatV1Gradient);
const PartialValueRule kConcatRule("Concat", ConcatV1Value);
const KernelRegistration kConcatKernel = KernelFor<ConcatV1Kernel>("Concat");

// --- ConcatOffset --------------------------------------------------------------------------------

Status ConcatOffsetShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0).status());
  for (int i = 1; i < c->num_inputs(); ++i) {
    MR_ASSIGN_OR_RETURN(PartialShape shape, c->InputWithRank(i, 1));
    c->set_output(i - 1, std::move(shape));
  }
  return absl::OkStatus();
}

class ConcatOffsetKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int64_t concat_dim, ctx->IntScalarInput(0, "concat_dim"));
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> first, ctx->IntVectorInput(1, "shape[0]"));
    MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(concat_dim, static_cast<int>(first.size())));
    int64_t offset = 0;
    for (int i = 1; i < ctx->num_inputs(); ++i) {
      const std::string name = absl::StrCat("shape[", i - 1, "]");
      MR_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, ctx->IntVectorInput(i, name));
      if (dims.size() != first.size()) {
        return absl::InvalidArgumentError(absl::StrCat(name, " must have ", first.size(),
                                                       " elements as shape[0], got ", dims.size()));
      }
      for (size_t d = 0; d < dims.size(); ++d) {
        if (dims[d] != first[d] && d != static_cast<size_t>(axis)) {
          return absl::InvalidArgumentError(absl::StrCat(
              "all shapes must agree in all dimensions but concat_dim ", axis, ", got dimension ",
              d, " = ", dims[d], " of ", name, " and ", first[d], " of shape[0]"));
        }
      }
      MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(i - 1, Shape::Vector(dims.size())));
      absl::Span<int32_t> values = out->mutable_raw<int32_t>();
      std::fill(values.begin(), values.end(), 0);
      values[static_cast<size_t>(axis)] = static_cast<int32_t>(offset);
      offset += dims[static_cast<size_t>(axis)];
      if (offset < 0 || offset > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("offsets must fit into int32, got ", offset));
      }
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kConcatOffset = OpSpec("ConcatOffset")
                                         .Input("concat_dim: int32")
                                         .Input("shape: N * int32")
                                         .Output("offset: N * int32")
                                         .Attr("N: int >= 2")
                                         .Shape(ConcatOffsetShape)
                                         .NotDifferentiable();
const KernelRegistration kConcatOffsetKernel = KernelFor<ConcatOffsetKernel>("ConcatOffset");

// --- Pack, Unpack --------------------------------------------------------------------------------

// The shape of `n` values packed along a new dimension.
StatusOr<PartialShape> PackedShape(const PartialShape& value, int64_t n, int64_t axis) {
  if (!value.has_rank()) return PartialShape();
  MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis, value.rank() + 1));
  std::vector<int64_t> dims(value.dims().begin(), value.dims().end());
  dims.insert(dims.begin() + at, n);
  return PartialShape::Make(dims);
}

Status PackShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const int64_t axis, c->GetAttr<int64_t>("axis"));
  MR_ASSIGN_OR_RETURN(const PartialShape value, MergeAll(c, 0, c->num_inputs()));
  MR_ASSIGN_OR_RETURN(PartialShape shape, PackedShape(value, c->num_inputs(), axis));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class PackKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(axis_, c->GetAttr<int64_t>("axis"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Shape value_shape = ctx->input(0).shape();
    std::vector<const Tensor*> values;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (ctx->input(i).shape() != value_shape) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Shapes of all inputs must match: values[0].shape = ", value_shape.ToString(),
            " != values[", i, "].shape = ", ctx->input(i).shape().ToString()));
      }
      values.push_back(&ctx->input(i));
    }
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        PackedShape(value_shape, ctx->num_inputs(), axis_));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    if (values.size() == 1) {
      MR_ASSIGN_OR_RETURN(Tensor out, ctx->TakeInput(0).Reshaped(shape));
      ctx->set_output(0, std::move(out));
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis_, shape.rank()));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    return VisitElements(out->dtype(), [&]<typename E>() {
      ConcatElements<E>(ctx, values, Around(shape, at), out);
    });
  }

 private:
  int64_t axis_ = 0;
};

Status PackGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const int64_t axis, c->GetAttr<int64_t>("axis"));
  const std::vector<Output> parts =
      Unpack(c->scope(), c->dense_grad(0), c->num_inputs(), {.axis = axis});
  for (int i = 0; i < c->num_inputs(); ++i) c->set_input_grad(i, parts[static_cast<size_t>(i)]);
  return absl::OkStatus();
}

// Scalars as the elements of a vector.
std::optional<PartialValue> PackValue(PartialValueContext* c) {
  const StatusOr<int64_t> axis = c->GetAttr<int64_t>("axis");
  if (!axis.ok() || (*axis != 0 && *axis != -1)) return std::nullopt;
  const PartialShape out = c->output_shape();
  PartialValue packed;
  for (int i = 0; i < c->num_inputs(); ++i) {
    const std::optional<PartialValue> value = c->input(i);
    if (value && !value->is_scalar) return std::nullopt;
    if (!value) {
      // Not even its rank is known unless a shape says so.
      const PartialShape in = c->input_shape(i);
      if (!(in.has_rank() && in.rank() == 0) && !(out.has_rank() && out.rank() == 1)) {
        return std::nullopt;
      }
    }
    packed.elements.push_back(value ? value->elements[0] : std::nullopt);
  }
  return packed;
}

const OpRegistration kPack = OpSpec("Pack")
                                 .Input("values: N * T")
                                 .Output("output: T")
                                 .Attr("N: int >= 1")
                                 .Attr("T: type")
                                 .Attr("axis: int = 0")
                                 .Shape(PackShape)
                                 .Gradient(PackGradient);
const PartialValueRule kPackRule("Pack", PackValue);
const KernelRegistration kPackKernel = KernelFor<PackKernel>("Pack");

// The shape of one of `num` slices along `axis`.
StatusOr<PartialShape> UnpackedShape(const PartialShape& value, int64_t num, int64_t axis) {
  if (!value.has_rank()) return PartialShape();
  if (value.rank() == 0) {
    return absl::InvalidArgumentError("value must have rank >= 1, got shape []");
  }
  MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis, value.rank()));
  if (value.dim(at) != -1 && value.dim(at) != num) {
    return absl::InvalidArgumentError(absl::StrCat("dimension ", at,
                                                   " must have the size of attr num ", num,
                                                   ", got shape ", value.ToString()));
  }
  std::vector<int64_t> dims(value.dims().begin(), value.dims().end());
  dims.erase(dims.begin() + at);
  return PartialShape::Make(dims);
}

Status UnpackShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const int64_t num, c->GetAttr<int64_t>("num"));
  MR_ASSIGN_OR_RETURN(const int64_t axis, c->GetAttr<int64_t>("axis"));
  MR_ASSIGN_OR_RETURN(const PartialShape shape, UnpackedShape(c->input(0), num, axis));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, shape);
  return absl::OkStatus();
}

// Parts of a tensor along an axis: sizes[i] each, with the shapes that they get. Parts along the
// first dimension share the tensor's memory.
Status OutputParts(KernelContext* ctx, const Tensor& value, int axis,
                   absl::Span<const int64_t> sizes, absl::Span<const Shape> shapes) {
  const AroundAxis around = Around(value.shape(), axis);
  if (axis == 0) {
    int64_t begin = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      MR_ASSIGN_OR_RETURN(Tensor part, value.Rows(begin, begin + sizes[i]).Reshaped(shapes[i]));
      ctx->set_output(static_cast<int>(i), std::move(part));
      begin += sizes[i];
    }
    return absl::OkStatus();
  }
  return VisitElements(value.dtype(), [&]<typename E>() -> Status {
    const E* from = ElementsOf<E>(value);
    const int64_t row = around.dim * around.after;
    for (size_t i = 0; i < sizes.size(); ++i) {
      MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(static_cast<int>(i), shapes[i]));
      if (out->num_elements() == 0) continue;
      E* to = MutableElementsOf<E>(out);
      const int64_t size = sizes[i] * around.after;
      ctx->ParallelFor(
          around.before, kNsPerByte * sizeof(E) * static_cast<double>(size) + 1,
          [=](int64_t begin, int64_t end) { CopyPieces(from, row, to, size, size, begin, end); });
      from += size;
    }
    return absl::OkStatus();
  });
}

class UnpackKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(num_, c->GetAttr<int64_t>("num"));
    MR_ASSIGN_OR_RETURN(axis_, c->GetAttr<int64_t>("axis"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor value = ctx->TakeInput(0);
    MR_ASSIGN_OR_RETURN(const PartialShape known, UnpackedShape(value.shape(), num_, axis_));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(axis_, value.rank()));
    const std::vector<int64_t> sizes(static_cast<size_t>(num_), 1);
    const std::vector<Shape> shapes(static_cast<size_t>(num_), shape);
    return OutputParts(ctx, value, axis, sizes, shapes);
  }

 private:
  int64_t num_ = 0;
  int64_t axis_ = 0;
};

Status UnpackGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const int64_t axis, c->GetAttr<int64_t>("axis"));
  std::vector<Output> grads;
  for (int i = 0; i < c->num_outputs(); ++i) grads.push_back(c->dense_grad(i));
  if (grads.empty()) return absl::OkStatus();
  c->set_input_grad(0, Pack(c->scope(), grads, {.axis = axis}));
  return absl::OkStatus();
}

const OpRegistration kUnpack = OpSpec("Unpack")
                                   .Input("value: T")
                                   .Output("output: num * T")
                                   .Attr("num: int >= 0")
                                   .Attr("T: type")
                                   .Attr("axis: int = 0")
                                   .Shape(UnpackShape)
                                   .Gradient(UnpackGradient);
const KernelRegistration kUnpackKernel = KernelFor<UnpackKernel>("Unpack");

// --- Split, SplitV -------------------------------------------------------------------------------

StatusOr<PartialShape> WithDim(const PartialShape& shape, int axis, int64_t dim) {
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[static_cast<size_t>(axis)] = dim;
  return PartialShape::Make(dims);
}
StatusOr<Shape> WithDim(const Shape& shape, int axis, int64_t dim) {
  MR_ASSIGN_OR_RETURN(const PartialShape partial, WithDim(PartialShape(shape), axis, dim));
  return partial.ToShape();
}

// Sets all outputs to what is known without an axis: the rank.
void SetUnknownParts(InferenceContext* c, const PartialShape& value) {
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(
        i, value.has_rank() ? PartialShape::UnknownOfRank(value.rank()) : PartialShape::Unknown());
  }
}

Status SplitShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(0, 0).status());
  MR_ASSIGN_OR_RETURN(const PartialShape value, c->InputWithRankAtLeast(1, 1));
  const std::optional<int64_t> split_dim = ConstantInt(c, 0);
  if (!split_dim || !value.has_rank()) {
    SetUnknownParts(c, value);
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(*split_dim, value.rank()));
  int64_t size = -1;
  if (value.dim(axis) != -1) {
    MR_ASSIGN_OR_RETURN(size, EqualPartSize(value.dim(axis), c->num_outputs()));
  }
  MR_ASSIGN_OR_RETURN(const PartialShape part, WithDim(value, axis, size));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, part);
  return absl::OkStatus();
}

class SplitKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int64_t split_dim, ctx->IntScalarInput(0, "split_dim"));
    const Tensor value = ctx->TakeInput(1);
    if (value.rank() < 1) {
      return absl::InvalidArgumentError("value must have rank >= 1, got shape []");
    }
    MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(split_dim, value.rank()));
    MR_ASSIGN_OR_RETURN(const int64_t size, EqualPartSize(value.dim(axis), ctx->num_outputs()));
    MR_ASSIGN_OR_RETURN(const Shape shape, WithDim(value.shape(), axis, size));
    const size_t n = static_cast<size_t>(ctx->num_outputs());
    return OutputParts(ctx, value, axis, std::vector<int64_t>(n, size),
                       std::vector<Shape>(n, shape));
  }
};

Output ConcatGradients(GradientContext* c, Output axis) {
  std::vector<Output> grads;
  for (int i = 0; i < c->num_outputs(); ++i) grads.push_back(c->dense_grad(i));
  return grads.size() == 1 ? grads[0] : ConcatV2(c->scope(), grads, axis);
}
Status SplitGradient(GradientContext* c) {
  c->set_input_grad(1, ConcatGradients(c, c->input(0)));
  return absl::OkStatus();
}

const OpRegistration kSplit = OpSpec("Split")
                                  .Input("split_dim: int32")
                                  .Input("value: T")
                                  .Output("output: num_split * T")
                                  .Attr("num_split: int >= 1")
                                  .Attr("T: type")
                                  .Shape(SplitShape)
                                  .Gradient(SplitGradient);
const KernelRegistration kSplitKernel = KernelFor<SplitKernel>("Split");

Status CheckSizeSplits(int64_t size, int64_t num_split) {
  if (size != num_split) {
    return absl::InvalidArgumentError(
        absl::StrCat("size_splits must have num_split = ", num_split, " elements, got ", size));
  }
  return absl::OkStatus();
}

Status SplitVShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape value, c->InputWithRankAtLeast(0, 1));
  MR_ASSIGN_OR_RETURN(const PartialShape sizes_shape, c->InputWithRank(1, 1));
  MR_RETURN_IF_ERROR(c->InputWithRank(2, 0).status());
  if (sizes_shape.dim(0) != -1) {
    MR_RETURN_IF_ERROR(CheckSizeSplits(sizes_shape.dim(0), c->num_outputs()));
  }
  const std::optional<int64_t> split_dim = ConstantInt(c, 2);
  if (!split_dim || !value.has_rank()) {
    SetUnknownParts(c, value);
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(*split_dim, value.rank()));
  std::vector<int64_t> sizes(static_cast<size_t>(c->num_outputs()), -1);
  if (const std::optional<std::vector<int64_t>> given = ConstantInts(c, 1)) {
    MR_RETURN_IF_ERROR(CheckSizeSplits(static_cast<int64_t>(given->size()), c->num_outputs()));
    MR_ASSIGN_OR_RETURN(sizes, PartSizes(*given, value.dim(axis)));
  } else if (c->num_outputs() == 1) {
    sizes[0] = value.dim(axis);
  }
  for (int i = 0; i < c->num_outputs(); ++i) {
    MR_ASSIGN_OR_RETURN(PartialShape part, WithDim(value, axis, sizes[static_cast<size_t>(i)]));
    c->set_output(i, std::move(part));
  }
  return absl::OkStatus();
}

class SplitVKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> given, ctx->IntVectorInput(1, "size_splits"));
    MR_ASSIGN_OR_RETURN(const int64_t split_dim, ctx->IntScalarInput(2, "split_dim"));
    const Tensor value = ctx->TakeInput(0);
    if (value.rank() < 1) {
      return absl::InvalidArgumentError("value must have rank >= 1, got shape []");
    }
    MR_RETURN_IF_ERROR(CheckSizeSplits(static_cast<int64_t>(given.size()), ctx->num_outputs()));
    MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(split_dim, value.rank()));
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes, PartSizes(given, value.dim(axis)));
    std::vector<Shape> shapes;
    for (int64_t size : sizes) {
      MR_ASSIGN_OR_RETURN(Shape shape, WithDim(value.shape(), axis, size));
      shapes.push_back(std::move(shape));
    }
    return OutputParts(ctx, value, axis, sizes, shapes);
  }
};

Status SplitVGradient(GradientContext* c) {
  c->set_input_grad(0, ConcatGradients(c, c->input(2)));
  return absl::OkStatus();
}

const OpRegistration kSplitV = OpSpec("SplitV")
                                   .Input("value: T")
                                   .Input("size_splits: Tlen")
                                   .Input("split_dim: int32")
                                   .Output("output: num_split * T")
                                   .Attr("num_split: int >= 1")
                                   .Attr("T: type")
                                   .Attr("Tlen: {int32, int64} = DT_INT64")
                                   .Shape(SplitVShape)
                                   .Gradient(SplitVGradient);
const KernelRegistration kSplitVKernel = KernelFor<SplitVKernel>("SplitV");

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/array/pad.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/elements.h"
#include "ops/rules/int_inputs.h"
#include "ops/rules/per_dimension.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Zero bytes (numbers); strings are empty already.
void Clear(Tensor* t) {
  absl::Span<char> bytes = t->mutable_bytes();
  if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
}

// --- Pad, PadV2 ----------------------------------------------------------------------------------

// Of a mirrored dimension, how many elements the border itself is left out of: REFLECT 1,
// SYMMETRIC 0. Padding with a constant has no limit.
struct Mirror {
  int64_t offset = 0;
};

// No padded dimension overflows after this.
Status CheckPadding(int64_t padding, size_t d, size_t side) {
  if (padding < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("paddings[", d, ",", side, "] must be >= 0, got ", padding));
  }
  if (padding > Shape::kMaxElements) {
    return absl::InvalidArgumentError(absl::StrCat(
        "paddings[", d, ",", side, "] must be <= ", Shape::kMaxElements, ", got ", padding));
  }
  return absl::OkStatus();
}

// The padded shape; the only place that knows which (input, paddings) are legal.
StatusOr<PartialShape> PaddedShape(const PartialShape& input, const Ints& paddings,
                                   const std::optional<Mirror>& mirror) {
  Ints dims(paddings.size() / 2, -1);
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t dim = input.has_rank() ? input.dim(static_cast<int>(d)) : -1;
    for (size_t side = 0; side < 2; ++side) {
      const int64_t padding = paddings[2 * d + side];
      MR_RETURN_IF_ERROR(CheckPadding(padding, d, side));
      if (mirror && dim != -1 && padding > std::max<int64_t>(0, dim - mirror->offset)) {
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

// Output 0 is shape_of(input, paddings) when the paddings are known, else only of the same rank.
Status PaddingShape(
    InferenceContext* c,
    absl::FunctionRef<StatusOr<PartialShape>(const PartialShape&, const Ints&)> shape_of) {
  const PartialShape& paddings_shape = c->input(1);
  MR_RETURN_IF_ERROR(CheckPaddingsShape(paddings_shape));
  PartialShape input = c->input(0);
  if (paddings_shape.has_rank() && paddings_shape.dim(0) != -1) {
    MR_ASSIGN_OR_RETURN(input,
                        WithLength(input, PartialShape({paddings_shape.dim(0)}), "paddings"));
  }
  const std::optional<Ints> paddings = ConstantInts(c, 1);
  if (!paddings || !input.has_rank()) {
    c->set_output(0, input.has_rank() ? PartialShape::UnknownOfRank(input.rank()) : PartialShape());
    return absl::OkStatus();
  }
  MR_RETURN_IF_ERROR(CheckLength("paddings", paddings->size() / 2, input.rank()));
  MR_ASSIGN_OR_RETURN(PartialShape shape, shape_of(input, *paddings));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}
Status PadShapeOf(InferenceContext* c, const std::optional<Mirror>& mirror) {
  return PaddingShape(c, [&](const PartialShape& input, const Ints& paddings) {
    return PaddedShape(input, paddings, mirror);
  });
}
Status PadShape(InferenceContext* c) { return PadShapeOf(c, std::nullopt); }

// The paddings of a step, checked against the input.
StatusOr<Ints> PaddingsInput(const KernelContext* ctx) {
  const Tensor& paddings = ctx->input(1);
  MR_RETURN_IF_ERROR(CheckPaddingsShape(paddings.shape()));
  MR_RETURN_IF_ERROR(
      CheckLength("paddings", static_cast<size_t>(paddings.dim(0)), ctx->input(0).rank()));
  return IntElements(paddings);
}

class PadKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints paddings, PaddingsInput(ctx));
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        PaddedShape(ctx->input(0).shape(), paddings, std::nullopt));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    if (ctx->num_inputs() > 2 && !ctx->input(2).shape().is_scalar()) {
      return absl::InvalidArgumentError(absl::StrCat("constant_values must be a scalar, got shape ",
                                                     ctx->input(2).shape().ToString()));
    }
    const Tensor input = ctx->TakeInput(0);
    if (shape == input.shape()) {
      ctx->set_output(0, input);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    if (ctx->num_inputs() > 2) {
      const Tensor& value = ctx->input(2);
      MR_RETURN_IF_ERROR(VisitElements(value.dtype(), [&]<typename E>() {
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
  MR_ASSIGN_OR_RETURN(const std::string mode, c->template GetAttr<std::string>("mode"));
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
  // Without elements the other dimensions have no bound: nothing may be as long as they are.
  for (size_t d = 0; d < rank; ++d) {
    if (unpadded.dim(static_cast<int>(d)) + paddings[2 * d] + paddings[2 * d + 1] == 0) return;
  }
  std::vector<Ints> offsets(rank);  // per dimension: padded index -> offset in the unpadded tensor
  int64_t total = 1;
  for (size_t d = 0; d < rank; ++d) {
    offsets[d] = MirroredIndices(unpadded.dim(static_cast<int>(d)), paddings[2 * d],
                                 paddings[2 * d + 1], mirror);
    for (int64_t& o : offsets[d]) o *= strides[d];
    total *= static_cast<int64_t>(offsets[d].size());
  }
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
  MR_ASSIGN_OR_RETURN(const Mirror mirror, ReadMode(c));
  return PadShapeOf(c, mirror);
}

class MirrorPadKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(mirror_, ReadMode(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints paddings, PaddingsInput(ctx));
    const Tensor input = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const PartialShape known, PaddedShape(input.shape(), paddings, mirror_));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
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
    MR_RETURN_IF_ERROR(CheckPadding(before, d, 0));
    MR_RETURN_IF_ERROR(CheckPadding(after, d, 1));
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
  MR_ASSIGN_OR_RETURN(const Mirror mirror, ReadMode(c));
  return PaddingShape(c, [&](const PartialShape& padded, const Ints& paddings) {
    return UnpaddedShape(padded, paddings, mirror);
  });
}

template <typename T>
class MirrorPadGradKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(mirror_, ReadMode(c));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints paddings, PaddingsInput(ctx));
    const Tensor grad = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const PartialShape known, UnpaddedShape(grad.shape(), paddings, mirror_));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    Clear(out);
    const T* from = grad.raw<T>().data();
    T* to = out->mutable_raw<T>().data();
    ForEachMirrored(shape, paddings, mirror_,
                    [=](int64_t padded, int64_t inner) { to[inner] += from[padded]; });
    return absl::OkStatus();
  }

 private:
  Mirror mirror_;
};

Status MirrorPadGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::string mode, c->GetAttr<std::string>("mode"));
  c->set_input_grad(0, MirrorPadGrad(c->scope(), c->dense_grad(0), c->input(1), mode));
  return absl::OkStatus();
}
Status MirrorPadGradGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::string mode, c->GetAttr<std::string>("mode"));
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

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/array/pad.h"

#include <algorithm>
#include <string>
#include <vector>

#include "graph/gradient.h"
#include "ops/array/concat.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/elements.h"
#include "ops/rules/per_dimension.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Input 0 with each dimension resized by input 1: resized(d, dim, before, after) where dimension d
// and the paddings are known. No padding is so large that the sum of all three overflows.
template <typename Resized>
StatusOr<PartialShape> ResizedShape(RuleContext* c, const Resized& resized) {
  const Tensor* known = c->input_tensor(1);
  const PartialShape paddings = known == nullptr ? c->input(1) : known->shape();
  if (!paddings.IsCompatibleWith(PartialShape({-1, 2}))) {
    return InvalidArgument("paddings must have shape [rank,2], got ", paddings);
  }
  MR_ASSIGN_OR_RETURN(
      const PartialShape input,
      WithLength(c->input(0), paddings.has_rank() ? paddings.dim(0) : -1, "paddings"));
  if (!input.has_rank()) return input;
  if (known == nullptr) return PartialShape::UnknownOfRank(input.rank());
  const IntSpan values = known->ints();
  Ints dims(input.dims().begin(), input.dims().end());
  for (size_t d = 0; d < dims.size(); ++d) {
    for (size_t side = 0; side < 2; ++side) {
      const int64_t padding = values[2 * d + side];
      if (padding < 0 || padding > Shape::kMaxElements) {
        return InvalidArgument("paddings[", d, ",", side, "] must be ",
                               padding < 0 ? ">= 0" : absl::StrCat("<= ", Shape::kMaxElements),
                               ", got ", padding);
      }
    }
    if (dims[d] == -1) continue;
    MR_ASSIGN_OR_RETURN(dims[d], resized(d, dims[d], values[2 * d], values[2 * d + 1]));
  }
  return PartialShape::Make(dims);
}

// --- Pad, PadV2 ----------------------------------------------------------------------------------

struct PadRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    if (c->num_inputs() > 2) {
      MR_RETURN_IF_ERROR(c->InputWithRank(2, 0, "constant_values").status());
    }
    return ResizedShape(c, [](size_t, int64_t dim, int64_t before, int64_t after) {
      return StatusOr<int64_t>(before + dim + after);
    });
  }
};

Status RunPad(KernelContext* ctx, const PadRule&) {
  const Tensor& input = ctx->input(0);
  const Shape& shape = ctx->output_shape(0);
  if (shape == input.shape()) return ctx->PassInput(0);
  if (ctx->num_inputs() == 2) {
    MR_RETURN_IF_ERROR(ctx->AllocateZeros(0).status());
  } else {
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
    MR_RETURN_IF_ERROR(FillElements(ctx->input(2), out));
  }
  const IntSpan paddings = ctx->input(1).ints();
  BoxSide to = DenseSide(shape.dims());
  for (size_t d = 0; d < to.strides.size(); ++d) to.origin += paddings[2 * d] * to.strides[d];
  return CopyBox(ctx, input.shape().dims(), input, DenseSide(input.shape().dims()),
                 ctx->mutable_output(0), to);
}

// The part of the gradient that is not padding; the padding's value gets the rest.
std::vector<Output> PadGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  const Output begin = Unpack(s, c->input(1), 2, {.axis = 1})[0];
  const Output size = ShapeOf(s, c->input(0), {.out_type = begin.dtype()});
  const Output inside = Slice(s, grad, begin, size);
  if (c->num_inputs() == 2) return {inside};
  return {inside, {}, Sub(s, ReduceSum(s, grad), ReduceSum(s, inside))};
}

const OpRegistration kPad = OpSpec("Pad", "input: T, paddings: Tpaddings -> output: T",
                                   "T: type; Tpaddings: {int32, int64} = DT_INT32")
                                .With(RuledKernelFor<PadRule>(RunPad))
                                .Gradient(PadGradient);

const OpRegistration kPadV2 =
    OpSpec("PadV2", "input: T, paddings: Tpaddings, constant_values: T -> output: T",
           "T: type; Tpaddings: {int32, int64} = DT_INT32")
        .With(RuledKernelFor<PadRule>(RunPad))
        .Gradient(PadGradient);

// --- MirrorPad, MirrorPadGrad --------------------------------------------------------------------

// MirrorPadGrad goes back: its input is padded, its output is not.
template <bool kGrad>
struct MirrorRule {
  std::string mode;
  int64_t offset = 0;  // how many elements of the border itself are left out

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "mode", &mode));
    offset = mode == "REFLECT" ? 1 : 0;
    return absl::OkStatus();
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    return ResizedShape(
        c, [&](size_t d, int64_t dim, int64_t before, int64_t after) -> StatusOr<int64_t> {
          const int64_t inner = kGrad ? dim - before - after : dim;
          const int64_t most = std::max<int64_t>(0, inner - offset);
          if (before <= most && after <= most && inner >= 0)
            return kGrad ? inner : before + dim + after;
          if (kGrad) {
            return InvalidArgument("paddings[", d,
                                   "] must be what a mirrored dimension allows, got [", before,
                                   ", ", after, "] in a padded dimension of ", dim);
          }
          const int side = before > most ? 0 : 1;
          return InvalidArgument("paddings[", d, ",", side, "] must be <= ", most,
                                 " to mirror a dimension of ", dim, ", got ",
                                 side == 0 ? before : after);
        });
  }
};
using MirrorPadRule = MirrorRule</*kGrad=*/false>;
using MirrorPadGradRule = MirrorRule</*kGrad=*/true>;

// For each index of a padded dimension, which index of the unpadded one it shows.
Ints MirroredIndices(int64_t dim, int64_t before, int64_t after, int64_t offset) {
  Ints indices;
  for (int64_t i = before; i > 0; --i) indices.push_back(i - 1 + offset);
  for (int64_t i = 0; i < dim; ++i) indices.push_back(i);
  for (int64_t i = 1; i <= after; ++i) indices.push_back(dim - i - offset);
  return indices;
}

// Visits every element of the padded shape: visit(padded offset, unpadded offset).
template <typename Visit>
void ForEachMirrored(const Shape& padded, const Shape& unpadded, IntSpan paddings, int64_t offset,
                     const Visit& visit) {
  // Without elements the other dimensions have no bound: nothing may be as long as they are.
  if (padded.num_elements() == 0) return;
  const size_t rank = static_cast<size_t>(unpadded.rank());
  const auto strides = math::DenseStrides(unpadded.dims());
  // Per dimension: padded index -> offset in the unpadded tensor. The last one is the inner loop.
  std::vector<Ints> offsets = {{0}};
  for (size_t d = 0; d < rank; ++d) {
    offsets.push_back(MirroredIndices(unpadded.dim(static_cast<int>(d)), paddings[2 * d],
                                      paddings[2 * d + 1], offset));
    for (int64_t& o : offsets.back()) o *= strides[d];
  }
  std::vector<size_t> index(rank, 0);
  for (int64_t at = 0; at < padded.num_elements();) {
    int64_t base = 0;
    for (size_t d = 0; d < rank; ++d) base += offsets[d][index[d]];
    for (const int64_t last : offsets[rank]) visit(at++, base + last);
    for (size_t d = rank; d-- > 0;) {
      if (++index[d] < offsets[d].size()) break;
      index[d] = 0;
    }
  }
}

Status RunMirrorPad(KernelContext* ctx, const MirrorPadRule& rule) {
  const Tensor& input = ctx->input(0);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  return VisitElements(input.dtype(), [&]<typename E>() {
    const E* from = ElementsOf<E>(input);
    E* to = MutableElementsOf<E>(out);
    ForEachMirrored(out->shape(), input.shape(), ctx->input(1).ints(), rule.offset,
                    [=](int64_t padded, int64_t inner) { to[padded] = from[inner]; });
  });
}

template <typename T>
Status RunMirrorPadGrad(KernelContext* ctx, const MirrorPadGradRule& rule) {
  const Tensor& grad = ctx->input(0);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(0));
  const T* from = grad.raw<T>().data();
  T* to = out->mutable_raw<T>().data();
  ForEachMirrored(grad.shape(), out->shape(), ctx->input(1).ints(), rule.offset,
                  [=](int64_t padded, int64_t inner) { to[inner] += from[padded]; });
  return absl::OkStatus();
}

StatusOr<Output> MirrorPadGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<MirrorPadRule>());
  return MirrorPadGrad(c->scope(), c->dense_grad(), c->input(1), rule.mode);
}
StatusOr<Output> MirrorPadGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<MirrorPadGradRule>());
  return MirrorPad(c->scope(), c->dense_grad(), c->input(1), rule.mode);
}

constexpr char kMirrorArguments[] = "input: T, paddings: Tpaddings -> output: T";
constexpr char kMirrorAttrs[] =
    "T: type; Tpaddings: {int32, int64} = DT_INT32; mode: {'REFLECT', 'SYMMETRIC'}";

const OpRegistration kMirrorPad = OpSpec("MirrorPad", kMirrorArguments, kMirrorAttrs)
                                      .With(RuledKernelFor<MirrorPadRule>(RunMirrorPad))
                                      .Gradient(MirrorPadGradient);

const OpRegistration kMirrorPadGrad =
    OpSpec("MirrorPadGrad", kMirrorArguments, kMirrorAttrs)
        .With(RuledKernelsFor<MirrorPadGradRule, float, double>(
            "T", []<typename T>() { return &RunMirrorPadGrad<T>; }))
        .Gradient(MirrorPadGradGradient);

}  // namespace
}  // namespace millrace

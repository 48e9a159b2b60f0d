// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/bias.h"

#include <algorithm>
#include <vector>

#include "graph/gradient.h"
#include "ops/array/constant.h"
#include "ops/loops/bias.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Of BiasAdd (value, bias) and BiasAddGrad (out_backprop). Channels are the last dimension, or
// dimension 1 of NCHW, which BiasAddV1 does not have.
template <bool kGrad>
struct BiasRule {
  std::string data_format = "NHWC";

  Status Init(const NodeAttrs& attrs) {
    if (!HasAttr(attrs.node(), "data_format")) return absl::OkStatus();
    return ReadAttrs(attrs, "data_format", &data_format);
  }
  bool channels_first() const { return data_format == "NCHW"; }

  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& value = c->input(0);
    const StatusOr<PartialShape> bias = kGrad ? PartialShape{-1} : c->InputWithRank(1, 1);
    if (!bias.ok()) return InvalidArgument("bias must be a vector, got shape ", c->input(1));
    if (!value.has_rank()) return kGrad ? *bias : value;
    const int least = channels_first() ? 3 : 2;
    if (value.rank() < least) {
      return InvalidArgument(kGrad ? "out_backprop" : "value", " must have at least rank ", least,
                             channels_first() ? " for NCHW" : "", ", got rank ", value.rank());
    }
    std::vector<int64_t> dims(value.dims().begin(), value.dims().end());
    int64_t& channels = channels_first() ? dims[1] : dims.back();
    const StatusOr<PartialShape> vector = bias->MergeWith({channels});
    if (!vector.ok()) {
      return InvalidArgument("bias must have ", channels,
                             " elements, one for each channel of value ", value, ", got ",
                             bias->dim(0));
    }
    if (kGrad) return vector;
    channels = vector->dim(0);
    return PartialShape::Make(dims);
  }
};

// Nanoseconds for one element: bounded by memory.
constexpr double kElementNs = 0.5;

Status RunBiasAdd(KernelContext* ctx, const BiasRule<false>& rule, const math::BiasLoops* loops) {
  const Shape& shape = ctx->output_shape(0);
  const char* from = static_cast<const char*>(ctx->input(0).raw_data());
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0));
  if (out->num_elements() == 0) return absl::OkStatus();
  const int64_t channels = ctx->input(1).num_elements();
  char* to = static_cast<char*>(out->mutable_raw_data());
  const void* added = ctx->input(1).raw_data();
  if (rule.channels_first()) {
    const int64_t plane = shape.NumElements(2, shape.rank());
    ctx->ParallelFor(shape.NumElements(0, 2), kElementNs * static_cast<double>(plane),
                     [&](int64_t begin, int64_t end) {
                       loops->add_middle(from, added, to, begin, end, channels, plane);
                     });
    return absl::OkStatus();
  }
  const int64_t row_size = channels * static_cast<int64_t>(DTypeSize(out->dtype()));
  ctx->ParallelFor(shape.num_elements() / channels, kElementNs * static_cast<double>(channels),
                   [&](int64_t begin, int64_t end) {
                     const int64_t at = begin * row_size;
                     loops->add_last(from + at, added, to + at, end - begin, channels);
                   });
  return absl::OkStatus();
}

StatusOr<Tensor> Scratch(KernelContext* ctx, int64_t bytes) {
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({bytes}));
  return ctx->AllocateTemp(DT_UINT8, shape);
}

Status RunBiasAddGrad(KernelContext* ctx, const BiasRule<true>& rule,
                      const math::BiasLoops* loops) {
  const Tensor& grad = ctx->input(0);
  const int64_t channels = ctx->output_shape(0).dim(0);
  if (grad.num_elements() == 0) return ctx->AllocateZeros(0).status();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const char* from = static_cast<const char*>(grad.raw_data());
  const int64_t wide_size = static_cast<int64_t>(loops->wide_size);
  if (rule.channels_first()) {
    MR_ASSIGN_OR_RETURN(Tensor sums, Scratch(ctx, channels * wide_size));
    void* wide = sums.mutable_raw_data();
    const int64_t batch = grad.dim(0);
    const int64_t plane = grad.shape().NumElements(2, grad.rank());
    ctx->ParallelFor(channels, kElementNs * static_cast<double>(batch * plane),
                     [&](int64_t begin, int64_t end) {
                       loops->sum_middle(from, batch, channels, plane, begin, end, wide);
                     });
    loops->finish(wide, 1, channels, out->mutable_raw_data());
    return absl::OkStatus();
  }
  // Blocks of rows are summed apart. Their number depends on the shape alone, so the
  // result does not depend on the threads.
  constexpr int64_t kBlockElements = 1 << 15;
  const int64_t row_size = channels * static_cast<int64_t>(DTypeSize(grad.dtype()));
  const int64_t rows = grad.num_elements() / channels;
  const int64_t blocks =
      std::clamp<int64_t>(grad.num_elements() / kBlockElements, 1, std::min<int64_t>(rows, 64));
  // One block of a type that sums in itself is summed in place.
  if (blocks == 1 && loops->wide_size == DTypeSize(grad.dtype())) {
    loops->sum_last(from, rows, channels, out->mutable_raw_data());
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(Tensor sums, Scratch(ctx, blocks * channels * wide_size));
  char* wide = static_cast<char*>(sums.mutable_raw_data());
  ctx->ParallelFor(blocks, kElementNs * static_cast<double>(grad.num_elements() / blocks),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t b = begin; b < end; ++b) {
                       const int64_t first = rows / blocks * b + std::min(b, rows % blocks);
                       const int64_t count = rows / blocks + (b < rows % blocks ? 1 : 0);
                       loops->sum_last(from + first * row_size, count, channels,
                                       wide + b * channels * wide_size);
                     }
                   });
  loops->finish(wide, blocks, channels, out->mutable_raw_data());
  return absl::OkStatus();
}

StatusOr<std::vector<Output>> BiasAddGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const BiasRule<false> rule, c->GetRule<BiasRule<false>>());
  const Output g = c->dense_grad();
  return std::vector<Output>{g, BiasAddGrad(c->scope(), g, {.data_format = rule.data_format})};
}

// The gradient of a sum is the same for all its terms.
StatusOr<Output> BiasAddGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const BiasRule<true> rule, c->GetRule<BiasRule<true>>());
  const Output zeros = ZerosLike(c->scope(), c->input(0));
  return BiasAdd(c->scope(), zeros, c->dense_grad(), {.data_format = rule.data_format});
}

template <bool kGrad, typename Gradient, typename Run>
OpSpec BiasSpec(absl::string_view op, absl::string_view arguments, absl::string_view attrs,
                Gradient gradient, Run run) {
  return OpSpec(op, arguments, attrs)
      .With(RuledLoopKernelFor<BiasRule<kGrad>>(math::FindBias, run).TypesWith("T", math::FindBias))
      .Gradient(gradient);
}

constexpr char kFormatAttrs[] = "T: numbertype; data_format: {'NHWC', 'NCHW'} = 'NHWC'";
const OpRegistration kBiasAdd = BiasSpec<false>("BiasAdd", "value: T, bias: T -> output: T",
                                                kFormatAttrs, BiasAddGradient, RunBiasAdd);
const OpRegistration kBiasAddV1 = BiasSpec<false>("BiasAddV1", "value: T, bias: T -> output: T",
                                                  "T: numbertype", BiasAddGradient, RunBiasAdd);
const OpRegistration kBiasAddGrad =
    BiasSpec<true>("BiasAddGrad", "out_backprop: T -> output: T", kFormatAttrs, BiasAddGradGradient,
                   RunBiasAddGrad);

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/fused_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "absl/strings/substitute.h"
#include "graph/gradient.h"
#include "graph/later_attrs.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/loops/batch_norm.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::BatchNormLoops;
using math::ChannelLayout;

// --- Rules ---------------------------------------------------------------------------------------

// Inputs from `first` on are vectors of the channels, whose number any of them may tell.
Status CheckVectors(RuleContext* c, int first, std::initializer_list<absl::string_view> names,
                    int64_t* channels) {
  int i = first;
  for (const absl::string_view name : names) {
    const PartialShape& in = c->input(i++);
    const StatusOr<PartialShape> vector = PartialShape{*channels}.MergeWith(in);
    if (!vector.ok()) {
      return InvalidArgument(name, " must be a vector of the ",
                             *channels < 0 ? "?" : absl::StrCat(*channels), " channels, got shape ",
                             in);
    }
    *channels = vector->dim(0);
  }
  return absl::OkStatus();
}

// Forwards of x, scale, offset, mean and variance; backwards of y_backprop, x, scale and the two
// reserve spaces.
template <bool kForward>
struct NormRule {
  float epsilon = 0;
  bool training = true;
  std::string data_format;

  Status Init(const NodeAttrs& attrs) {
    return ReadAttrs(attrs, "epsilon", &epsilon, "is_training", &training, "data_format",
                     &data_format);
  }
  bool channels_first() const { return data_format == "NCHW"; }

  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(PartialShape x, c->InputWithRank(kForward ? 0 : 1, 4, "x"));
    if (!kForward) {
      const StatusOr<PartialShape> both = x.MergeWith(c->input(0));
      if (!both.ok()) {
        return InvalidArgument("y_backprop must have the shape of x ", x, ", got ", c->input(0));
      }
      x = *both;
    }
    std::vector<int64_t> dims(x.dims().begin(), x.dims().end());
    int64_t& channels = dims[channels_first() ? 1 : 3];
    if (!kForward) {
      MR_RETURN_IF_ERROR(
          CheckVectors(c, 2, {"scale", "reserve_space_1", "reserve_space_2"}, &channels));
    } else if (!training) {
      MR_RETURN_IF_ERROR(CheckVectors(c, 1, {"scale", "offset", "mean", "variance"}, &channels));
    } else {
      MR_RETURN_IF_ERROR(CheckVectors(c, 1, {"scale", "offset"}, &channels));
      for (const int i : {3, 4}) {
        if (c->input(i).IsCompatibleWith(PartialShape{0})) continue;
        return InvalidArgument(i == 3 ? "mean" : "variance",
                               " must be an empty vector for training, got shape ", c->input(i));
      }
    }
    MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
    c->set_output(0, std::move(shape));
    for (int i = 1; i < 5; ++i) c->set_output(i, {kForward || i < 3 ? channels : 0});
    if (c->num_outputs() > 5) c->set_output(5, PartialShape::Scalar());
    return absl::OkStatus();
  }
};

// --- Kernels -------------------------------------------------------------------------------------

// Nanoseconds to read one element.
constexpr double kElementNs = 0.5;
// Pieces whose sums are added up in their order: their number depends on the shape alone.
constexpr int64_t kPieceElements = 1 << 15;
constexpr int64_t kMaxPieces = 64;

ChannelLayout LayoutOf(const Shape& x, bool channels_first) {
  if (channels_first) return {x.dim(0), x.dim(1), x.dim(2) * x.dim(3)};
  return {x.dim(0) * x.dim(1) * x.dim(2), x.dim(3), 1};
}

// body(begin, end) over the outer items.
template <typename F>
void ForOuter(KernelContext* ctx, const ChannelLayout& l, F body) {
  ctx->ParallelFor(l.outer, kElementNs * static_cast<double>(l.channels * l.inner), body);
}

// body(begin, end, sums) fills `width` doubles per piece of the outer items; their totals.
template <typename F>
std::vector<double> SumOuter(KernelContext* ctx, const ChannelLayout& l, size_t width, F body) {
  const int64_t elements = l.outer * l.channels * l.inner;
  const int64_t pieces =
      std::clamp<int64_t>(elements / kPieceElements, 1, std::min<int64_t>(l.outer, kMaxPieces));
  std::vector<double> sums(static_cast<size_t>(pieces) * width);
  ctx->ParallelFor(pieces, kElementNs * static_cast<double>(elements / pieces),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t p = begin; p < end; ++p) {
                       body(l.outer * p / pieces, l.outer * (p + 1) / pieces,
                            &sums[static_cast<size_t>(p) * width]);
                     }
                   });
  for (size_t p = 1; p < static_cast<size_t>(pieces); ++p) {
    for (size_t i = 0; i < width; ++i) sums[i] += sums[p * width + i];
  }
  sums.resize(width);
  return sums;
}

const float* Floats(const KernelContext& ctx, int i) { return ctx.input(i).raw<float>().data(); }

// scale / sqrt(variance + epsilon)
std::vector<float> Factors(const float* scale, const float* variance, size_t channels,
                           float epsilon) {
  std::vector<float> factors(channels);
  for (size_t c = 0; c < channels; ++c) factors[c] = scale[c] / std::sqrt(variance[c] + epsilon);
  return factors;
}

// Sets mean, unbiased variance, mean and biased variance of the batch.
void Moments(KernelContext* ctx, const BatchNormLoops& loops, const ChannelLayout& l, const void* x,
             float* const* out) {
  const size_t n = static_cast<size_t>(l.channels);
  const int64_t count = l.outer * l.inner;
  if (n == 0) return;
  if (count == 0) {  // the mean of nothing
    for (int i = 0; i < 4; ++i) std::fill_n(out[i], n, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  const double size = static_cast<double>(count);
  const std::vector<double> sums =
      SumOuter(ctx, l, n,
               [&](int64_t begin, int64_t end, double* sum) { loops.sum(l, x, begin, end, sum); });
  for (size_t c = 0; c < n; ++c) out[0][c] = out[2][c] = static_cast<float>(sums[c] / size);
  const std::vector<double> squares =
      SumOuter(ctx, l, n, [&](int64_t begin, int64_t end, double* sum) {
        loops.squares(l, x, out[0], begin, end, sum);
      });
  for (size_t c = 0; c < n; ++c) {
    out[1][c] = static_cast<float>(squares[c] / std::max(size - 1, 1.0));
    out[3][c] = static_cast<float>(squares[c] / size);
  }
}

Status Run(KernelContext* ctx, const NormRule<true>& rule, const BatchNormLoops* loops) {
  const ChannelLayout l = LayoutOf(ctx->output_shape(0), rule.channels_first());
  const size_t n = static_cast<size_t>(l.channels);
  float* out[4];  // batch_mean, batch_variance and the two reserve spaces
  for (int i = 0; i < 4; ++i) {
    MR_ASSIGN_OR_RETURN(Tensor * t, ctx->AllocateOutput(1 + i));
    out[i] = t->mutable_raw<float>().data();
  }
  if (ctx->num_outputs() > 5) ctx->set_output(5, Tensor::Scalar(0.0f));
  const void* x = ctx->input(0).raw_data();
  if (rule.training) {
    Moments(ctx, *loops, l, x, out);
  } else {
    for (int i = 0; i < 4; ++i) std::copy_n(Floats(*ctx, 3 + i % 2), n, out[i]);
  }
  const float* mean = out[2];
  const std::vector<float> factors = Factors(Floats(*ctx, 1), out[3], n, rule.epsilon);
  const float* offset = Floats(*ctx, 2);
  MR_ASSIGN_OR_RETURN(Tensor * y, ctx->ForwardInputOrAllocateOutput({0}, 0));
  if (y->num_elements() == 0) return absl::OkStatus();
  void* to = y->mutable_raw_data();
  ForOuter(ctx, l, [&](int64_t begin, int64_t end) {
    loops->normalize(l, x, mean, factors.data(), offset, to, begin, end);
  });
  return absl::OkStatus();
}

Status Run(KernelContext* ctx, const NormRule<false>& rule, const BatchNormLoops* loops) {
  const double epsilon = static_cast<double>(rule.epsilon);
  const ChannelLayout l = LayoutOf(ctx->output_shape(0), rule.channels_first());
  const size_t n = static_cast<size_t>(l.channels);
  MR_ASSIGN_OR_RETURN(Tensor * dscale, ctx->AllocateOutput(1));
  MR_ASSIGN_OR_RETURN(Tensor * doffset, ctx->AllocateOutput(2));
  for (const int i : {3, 4}) MR_RETURN_IF_ERROR(ctx->AllocateOutput(i).status());
  const void* g = ctx->input(0).raw_data();
  const void* x = ctx->input(1).raw_data();
  const float* mean = Floats(*ctx, 3);
  const float* variance = Floats(*ctx, 4);
  const std::vector<float> factors = Factors(Floats(*ctx, 2), variance, n, rule.epsilon);
  if (ctx->input(1).num_elements() == 0) {  // whose variance is NaN
    std::fill_n(dscale->mutable_raw<float>().data(), n, 0.0f);
    std::fill_n(doffset->mutable_raw<float>().data(), n, 0.0f);
    return ctx->ForwardInputOrAllocateOutput({0}, 0).status();
  }
  const std::vector<double> sums =
      SumOuter(ctx, l, 2 * n, [&](int64_t begin, int64_t end, double* sum) {
        loops->gradient_sums(l, g, x, mean, begin, end, sum, sum + n);
      });
  std::vector<float> b(n, 0.0f), d(n, 0.0f);
  const double size = std::max(1.0, static_cast<double>(l.outer * l.inner));
  for (size_t c = 0; c < n; ++c) {
    const double spread = static_cast<double>(variance[c]) + epsilon;
    doffset->mutable_raw<float>()[c] = static_cast<float>(sums[c]);
    dscale->mutable_raw<float>()[c] = static_cast<float>(sums[n + c] / std::sqrt(spread));
    if (!rule.training) continue;
    // The batch's mean and variance move with every x.
    b[c] = static_cast<float>(-static_cast<double>(factors[c]) * sums[n + c] / (size * spread));
    d[c] = static_cast<float>(-static_cast<double>(factors[c]) * sums[c] / size);
  }
  MR_ASSIGN_OR_RETURN(Tensor * dx, ctx->ForwardInputOrAllocateOutput({0}, 0));
  void* to = dx->mutable_raw_data();
  ForOuter(ctx, l, [&](int64_t begin, int64_t end) {
    loops->gradient(l, g, x, mean, factors.data(), b.data(), d.data(), to, begin, end);
  });
  return absl::OkStatus();
}

// --- Gradient ------------------------------------------------------------------------------------

StatusOr<std::vector<Output>> NormGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<NormRule<true>>());
  NodeBuilder builder(c->scope(), absl::StrReplaceAll(c->node().op(), {{"Norm", "NormGrad"}}));
  builder.Input(c->dense_grad(0)).Input(c->input(0)).Input(c->input(1));
  for (const int i : {3, 4}) builder.Input(rule.training ? c->output(i) : c->input(i));
  if (c->num_outputs() > 5) builder.Input(c->output(5));
  builder.Attrs("epsilon", rule.epsilon, "data_format", rule.data_format, "is_training",
                rule.training);
  return builder.Finish().outputs(0, 3);
}

// The gradient of the gradient, in float. Of one channel, with m() the mean over its pixels,
// i = 1 / sqrt(variance + epsilon), h = (x - mean) i, g the gradient of y, s the scale, and V, v, w
// what flows to the gradients of x, scale and offset:
//
//   dg = s i (V - m(V) - h m(V h)) + v h + w
//   ds = sum(V i (g - m(g) - h m(g h)))
//   dx = i (G - m(G) - h m(G h)) - s i^2 h (m(V g) - m(V) m(g) - m(V h) m(g h))
//        where G = v g - s i (V m(g h) + g m(V h))
//
// With given mean and variance all m() are 0, and dx = v g i. They are of x in training: what flows
// through them is in dx, and the reserve spaces have no gradient, as in TensorFlow.
Status SecondGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const auto rule, c->GetRule<NormRule<false>>());
  const Scope& s = c->scope();
  const auto to = [&s](Output x, DType dtype) {
    return x.dtype() == dtype ? x : Cast(s, x, dtype);
  };
  const bool first = rule.channels_first();
  const Output axes = first ? Const<int32_t>(s, {0, 2, 3}) : Const<int32_t>(s, {0, 1, 2});
  const Output column = first ? Const<int32_t>(s, {1, -1, 1, 1}) : Const<int32_t>(s, {1, 1, 1, -1});
  const auto per_channel = [&](Output v) { return Reshape(s, to(v, DT_FLOAT), column); };
  const auto mean = [&](Output v) { return Mean(s, v, axes, {.keep_dims = true}); };
  const auto times = [&s](Output a, Output b) { return Mul(s, a, b); };
  const Output g = to(c->input(0), DT_FLOAT), x = to(c->input(1), DT_FLOAT);
  const Output scale = per_channel(c->input(2));
  const Output center = rule.training ? mean(x) : per_channel(c->input(3));
  const Output shifted = Sub(s, x, center);
  const Output variance = rule.training ? mean(Square(s, shifted)) : per_channel(c->input(4));
  const Output i = Rsqrt(s, Add(s, variance, Const(s, rule.epsilon)));
  const Output h = times(shifted, i);
  // Without what the means take away.
  const auto centred = [&](Output v, Output with_h) {
    return rule.training ? Sub(s, Sub(s, v, mean(v)), times(h, with_h)) : v;
  };
  std::vector<Output> dg, big_g;
  Output dx, dscale;
  if (c->has_grad(0)) {
    const Output v = to(c->dense_grad(0), DT_FLOAT);
    const Output v_h = mean(times(v, h)), g_h = mean(times(g, h)), s_i = times(scale, i);
    dg.push_back(times(s_i, centred(v, v_h)));
    dscale = Sum(s, times(times(v, i), centred(g, g_h)), axes);
    if (rule.training) {
      big_g.push_back(Neg(s, times(s_i, Add(s, times(v, g_h), times(g, v_h)))));
      const Output both =
          Sub(s, Sub(s, mean(times(v, g)), times(mean(v), mean(g))), times(v_h, g_h));
      dx = Neg(s, times(times(times(s_i, i), h), both));
    }
  }
  if (c->has_grad(1)) {
    const Output v = per_channel(c->dense_grad(1));
    dg.push_back(times(v, h));
    big_g.push_back(times(v, g));
  }
  if (c->has_grad(2)) {
    // In the shape of g, whatever the other terms are.
    dg.push_back(Add(s, ZerosLike(s, g), per_channel(c->dense_grad(2))));
  }
  if (!big_g.empty()) {
    const Output sum = big_g.size() == 1 ? big_g[0] : Add(s, big_g[0], big_g[1]);
    const Output through = times(i, centred(sum, mean(times(sum, h))));
    dx = dx.valid() ? Add(s, dx, through) : through;
  }
  if (!dg.empty()) {
    Output sum = dg[0];
    for (size_t k = 1; k < dg.size(); ++k) sum = Add(s, sum, dg[k]);
    c->set_input_grad(0, to(sum, c->input(0).dtype()));
  }
  if (dx.valid()) c->set_input_grad(1, to(dx, c->input(1).dtype()));
  if (dscale.valid()) c->set_input_grad(2, to(dscale, c->input(2).dtype()));
  return absl::OkStatus();
}

// --- Definitions ---------------------------------------------------------------------------------

// In `arguments` $0 is the type of the vectors, T or U, and $1 that of scale backwards.
template <bool kForward, typename Gradient>
OpSpec NormSpec(absl::string_view op, bool has_u, absl::string_view arguments, Gradient gradient) {
  OpSpec spec(op, absl::Substitute(arguments, has_u ? "U" : "T", has_u ? "float" : "T"),
              absl::StrCat(has_u ? "T: {half, bfloat16, float}; U: {float}" : "T: {float}",
                           "; epsilon: float = 0.0001; data_format: {'NHWC', 'NCHW'} = 'NHWC'; "
                           "is_training: bool = true"));
  if (kForward) spec.With(LaterAttr("exponential_avg_factor: float = 1.0"));
  return spec.With(RuledLoopKernelFor<NormRule<kForward>>(math::FindBatchNorm, Run))
      .Gradient(gradient);
}

constexpr char kNormArguments[] =
    "x: T, scale: $0, offset: $0, mean: $0, variance: $0 -> y: T, batch_mean: $0, "
    "batch_variance: $0, reserve_space_1: $0, reserve_space_2: $0";
const OpRegistration kNorm = NormSpec<true>("FusedBatchNorm", false, kNormArguments, NormGradient);
const OpRegistration kNormV2 =
    NormSpec<true>("FusedBatchNormV2", true, kNormArguments, NormGradient);
const OpRegistration kNormV3 = NormSpec<true>(
    "FusedBatchNormV3", true, absl::StrCat(kNormArguments, ", reserve_space_3: $0"), NormGradient);

constexpr char kGradArguments[] =
    "y_backprop: T, x: T, scale: $1, reserve_space_1: $0, reserve_space_2: $0 -> x_backprop: T, "
    "scale_backprop: $0, offset_backprop: $0, reserve_space_3: $0, reserve_space_4: $0";
constexpr char kGradV3Arguments[] =
    "y_backprop: T, x: T, scale: $1, reserve_space_1: $0, reserve_space_2: $0, reserve_space_3: $0 "
    "-> x_backprop: T, scale_backprop: $0, offset_backprop: $0, reserve_space_4: $0, "
    "reserve_space_5: $0";
const OpRegistration kNormGrad =
    NormSpec<false>("FusedBatchNormGrad", false, kGradArguments, SecondGradient);
const OpRegistration kNormGradV2 =
    NormSpec<false>("FusedBatchNormGradV2", true, kGradArguments, SecondGradient);
const OpRegistration kNormGradV3 =
    NormSpec<false>("FusedBatchNormGradV3", true, kGradV3Arguments, SecondGradient);

}  // namespace
}  // namespace millrace

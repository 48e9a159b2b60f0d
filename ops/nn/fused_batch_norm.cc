// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/fused_batch_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/loops/batch_norm.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::BatchNormLoops;
using math::ChannelLayout;

// --- Rules ---------------------------------------------------------------------------------------

struct NormAttrs {
  float epsilon = 0;
  bool channels_first = false;
  bool training = true;
};
StatusOr<NormAttrs> ReadAttrs(const tensorflow::NodeDef& node) {
  NormAttrs attrs;
  MR_ASSIGN_OR_RETURN(const std::string format, GetAttr<std::string>(node, "data_format"));
  MR_ASSIGN_OR_RETURN(attrs.epsilon, GetAttr<float>(node, "epsilon"));
  MR_ASSIGN_OR_RETURN(attrs.training, GetAttr<bool>(node, "is_training"));
  attrs.channels_first = format.substr(0, 2) == "NC";
  return attrs;
}

// The number of channels of x; -1 when unknown.
StatusOr<int64_t> ChannelsOf(const PartialShape& x, bool channels_first) {
  if (!x.has_rank()) return -1;
  if (x.rank() != 4) {
    return absl::InvalidArgumentError(absl::StrCat("x must have rank 4, got shape ", x.ToString()));
  }
  return x.dim(channels_first ? 1 : 3);
}

// A vector of the channels; gives their number when it is known from either.
StatusOr<int64_t> CheckVector(absl::string_view name, const PartialShape& shape, int64_t channels) {
  if (!shape.has_rank()) return channels;
  if (shape.rank() != 1 || (shape.dim(0) >= 0 && channels >= 0 && shape.dim(0) != channels)) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " must be a vector of the ", channels < 0 ? std::string("?") : absl::StrCat(channels),
        " channels, got shape ", shape.ToString()));
  }
  return shape.dim(0) >= 0 ? shape.dim(0) : channels;
}

// Shapes of the forward op's five inputs. The number of channels, -1 when unknown.
StatusOr<int64_t> CheckForward(const NormAttrs& attrs, absl::Span<const PartialShape> in) {
  MR_ASSIGN_OR_RETURN(int64_t channels, ChannelsOf(in[0], attrs.channels_first));
  MR_ASSIGN_OR_RETURN(channels, CheckVector("scale", in[1], channels));
  MR_ASSIGN_OR_RETURN(channels, CheckVector("offset", in[2], channels));
  const char* const names[2] = {"mean", "variance"};
  for (size_t i = 0; i < 2; ++i) {
    const PartialShape& shape = in[3 + i];
    if (!attrs.training) {
      MR_ASSIGN_OR_RETURN(channels, CheckVector(names[i], shape, channels));
    } else if (shape.has_rank() && (shape.rank() != 1 || shape.dim(0) > 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          names[i], " must be an empty vector for training, got shape ", shape.ToString()));
    }
  }
  return channels;
}

// Shapes of y_backprop, x, scale and the two reserve spaces.
StatusOr<int64_t> CheckBackward(const NormAttrs& attrs, absl::Span<const PartialShape> in) {
  MR_ASSIGN_OR_RETURN(int64_t channels, ChannelsOf(in[1], attrs.channels_first));
  if (!in[0].IsCompatibleWith(in[1])) {
    return absl::InvalidArgumentError(absl::StrCat("y_backprop must have the shape of x ",
                                                   in[1].ToString(), ", got ", in[0].ToString()));
  }
  MR_ASSIGN_OR_RETURN(channels, CheckVector("scale", in[2], channels));
  MR_ASSIGN_OR_RETURN(channels, CheckVector("reserve_space_1", in[3], channels));
  return CheckVector("reserve_space_2", in[4], channels);
}

// `x` with the number of channels, which another input may have told.
StatusOr<PartialShape> WithChannels(const PartialShape& x, int64_t channels, bool channels_first) {
  MR_ASSIGN_OR_RETURN(const PartialShape known, channels_first
                                                    ? PartialShape::Make({-1, channels, -1, -1})
                                                    : PartialShape::Make({-1, -1, -1, channels}));
  return x.MergeWith(known);
}

std::vector<PartialShape> InputShapes(InferenceContext* c) {
  std::vector<PartialShape> shapes;
  for (int i = 0; i < c->num_inputs(); ++i) shapes.push_back(c->input(i));
  return shapes;
}
std::vector<PartialShape> InputShapes(const KernelContext& ctx) {
  std::vector<PartialShape> shapes;
  for (int i = 0; i < ctx.num_inputs(); ++i) shapes.push_back(ctx.input(i).shape());
  return shapes;
}

// --- Shapes --------------------------------------------------------------------------------------

Status ForwardShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const NormAttrs attrs, ReadAttrs(c->node()));
  MR_ASSIGN_OR_RETURN(const int64_t channels, CheckForward(attrs, InputShapes(c)));
  MR_ASSIGN_OR_RETURN(PartialShape y, WithChannels(c->input(0), channels, attrs.channels_first));
  c->set_output(0, std::move(y));
  for (int i = 1; i < 5; ++i) c->set_output(i, {channels});
  if (c->num_outputs() > 5) c->set_output(5, PartialShape::Scalar());
  return absl::OkStatus();
}

Status BackwardShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const NormAttrs attrs, ReadAttrs(c->node()));
  MR_ASSIGN_OR_RETURN(const int64_t channels, CheckBackward(attrs, InputShapes(c)));
  MR_ASSIGN_OR_RETURN(const PartialShape x, c->input(0).MergeWith(c->input(1)));
  MR_ASSIGN_OR_RETURN(PartialShape dx, WithChannels(x, channels, attrs.channels_first));
  c->set_output(0, std::move(dx));
  c->set_output(1, {channels});
  c->set_output(2, {channels});
  c->set_output(3, {0});
  c->set_output(4, {0});
  return absl::OkStatus();
}

// --- Kernels -------------------------------------------------------------------------------------

// Nanoseconds to read one element.
constexpr double kElementNs = 0.5;
// Pieces whose sums are added up in their order: their number depends on the shape alone.
constexpr int64_t kPieceElements = 1 << 15;
constexpr int64_t kMaxPieces = 64;

class NormKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(attrs_, ReadAttrs(c->node()));
    loops_ = math::FindBatchNorm(c->output_type(0));
    if (loops_ == nullptr) {
      return absl::UnimplementedError(
          absl::StrCat("has no kernel for ", DTypeName(c->output_type(0))));
    }
    return absl::OkStatus();
  }

 protected:
  ChannelLayout LayoutOf(const Shape& x) const {
    if (attrs_.channels_first) return {x.dim(0), x.dim(1), x.dim(2) * x.dim(3)};
    return {x.dim(0) * x.dim(1) * x.dim(2), x.dim(3), 1};
  }

  // body(begin, end) over the outer items.
  template <typename F>
  static void ForOuter(KernelContext* ctx, const ChannelLayout& l, F body) {
    ctx->ParallelFor(l.outer, kElementNs * static_cast<double>(l.channels * l.inner), body);
  }

  // body(begin, end, sums) fills `width` doubles per piece of the outer items; their totals.
  template <typename F>
  static std::vector<double> SumOuter(KernelContext* ctx, const ChannelLayout& l, size_t width,
                                      F body) {
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

  // scale / sqrt(variance + epsilon)
  std::vector<float> Factors(const float* scale, const float* variance, size_t channels) const {
    std::vector<float> factors(channels);
    for (size_t c = 0; c < channels; ++c) {
      factors[c] = scale[c] / std::sqrt(variance[c] + attrs_.epsilon);
    }
    return factors;
  }

  NormAttrs attrs_;
  const BatchNormLoops* loops_ = nullptr;
};

class ForwardKernel : public NormKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int64_t channels, CheckForward(attrs_, InputShapes(*ctx)));
    const Shape shape = ctx->input(0).shape();
    const ChannelLayout l = LayoutOf(shape);
    const size_t n = static_cast<size_t>(channels);
    MR_ASSIGN_OR_RETURN(const Shape vector, Shape::Make({channels}));
    float* out[4];  // batch_mean, batch_variance and the two reserve spaces
    for (int i = 0; i < 4; ++i) {
      MR_ASSIGN_OR_RETURN(Tensor * t, ctx->AllocateOutput(1 + i, vector));
      out[i] = t->mutable_raw<float>().data();
    }
    if (ctx->num_outputs() > 5) ctx->set_output(5, Tensor::Scalar(0.0f));
    const void* x = ctx->input(0).raw_data();
    if (attrs_.training) {
      Moments(ctx, l, x, out);
    } else {
      for (const int i : {0, 2}) std::copy_n(ctx->input(3).raw<float>().data(), n, out[i]);
      for (const int i : {1, 3}) std::copy_n(ctx->input(4).raw<float>().data(), n, out[i]);
    }
    const float* mean = out[2];
    const std::vector<float> factors = Factors(ctx->input(1).raw<float>().data(), out[3], n);
    const float* offset = ctx->input(2).raw<float>().data();
    MR_ASSIGN_OR_RETURN(Tensor * y, ctx->ForwardInputOrAllocateOutput({0}, 0, shape));
    if (y->num_elements() == 0) return absl::OkStatus();
    void* to = y->mutable_raw_data();
    ForOuter(ctx, l, [&](int64_t begin, int64_t end) {
      loops_->normalize(l, x, mean, factors.data(), offset, to, begin, end);
    });
    return absl::OkStatus();
  }

 private:
  void Moments(KernelContext* ctx, const ChannelLayout& l, const void* x, float* const* out) const {
    const size_t n = static_cast<size_t>(l.channels);
    const int64_t count = l.outer * l.inner;
    if (n == 0) return;
    if (count == 0) {  // the mean of nothing
      for (int i = 0; i < 4; ++i) std::fill_n(out[i], n, std::numeric_limits<float>::quiet_NaN());
      return;
    }
    const double size = static_cast<double>(count);
    const std::vector<double> sums = SumOuter(
        ctx, l, n,
        [&](int64_t begin, int64_t end, double* sum) { loops_->sum(l, x, begin, end, sum); });
    for (size_t c = 0; c < n; ++c) out[0][c] = out[2][c] = static_cast<float>(sums[c] / size);
    const std::vector<double> squares =
        SumOuter(ctx, l, n, [&](int64_t begin, int64_t end, double* sum) {
          loops_->squares(l, x, out[0], begin, end, sum);
        });
    for (size_t c = 0; c < n; ++c) {
      out[1][c] = static_cast<float>(squares[c] / std::max(size - 1, 1.0));
      out[3][c] = static_cast<float>(squares[c] / size);
    }
  }
};

class BackwardKernel : public NormKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const int64_t channels, CheckBackward(attrs_, InputShapes(*ctx)));
    const Shape shape = ctx->input(1).shape();
    const ChannelLayout l = LayoutOf(shape);
    const size_t n = static_cast<size_t>(channels);
    MR_ASSIGN_OR_RETURN(const Shape vector, Shape::Make({channels}));
    MR_ASSIGN_OR_RETURN(const Shape empty, Shape::Make({0}));
    MR_ASSIGN_OR_RETURN(Tensor * dscale, ctx->AllocateOutput(1, vector));
    MR_ASSIGN_OR_RETURN(Tensor * doffset, ctx->AllocateOutput(2, vector));
    MR_RETURN_IF_ERROR(ctx->AllocateOutput(3, empty).status());
    MR_RETURN_IF_ERROR(ctx->AllocateOutput(4, empty).status());
    const void* g = ctx->input(0).raw_data();
    const void* x = ctx->input(1).raw_data();
    const float* mean = ctx->input(3).raw<float>().data();
    const float* variance = ctx->input(4).raw<float>().data();
    const std::vector<float> factors = Factors(ctx->input(2).raw<float>().data(), variance, n);
    std::vector<double> sums(2 * n);
    if (shape.num_elements() > 0) {
      sums = SumOuter(ctx, l, 2 * n, [&](int64_t begin, int64_t end, double* sum) {
        loops_->gradient_sums(l, g, x, mean, begin, end, sum, sum + n);
      });
    }
    std::vector<float> b(n, 0.0f), d(n, 0.0f);
    const double size = std::max(1.0, static_cast<double>(l.outer * l.inner));
    for (size_t c = 0; c < n; ++c) {
      const double spread = static_cast<double>(variance[c]) + static_cast<double>(attrs_.epsilon);
      doffset->mutable_raw<float>()[c] = static_cast<float>(sums[c]);
      dscale->mutable_raw<float>()[c] = static_cast<float>(sums[n + c] / std::sqrt(spread));
      if (!attrs_.training) continue;
      // The batch's mean and variance move with every x.
      b[c] = static_cast<float>(-static_cast<double>(factors[c]) * sums[n + c] / (size * spread));
      d[c] = static_cast<float>(-static_cast<double>(factors[c]) * sums[c] / size);
    }
    MR_ASSIGN_OR_RETURN(Tensor * dx, ctx->ForwardInputOrAllocateOutput({0}, 0, shape));
    if (dx->num_elements() == 0) return absl::OkStatus();
    void* to = dx->mutable_raw_data();
    ForOuter(ctx, l, [&](int64_t begin, int64_t end) {
      loops_->gradient(l, g, x, mean, factors.data(), b.data(), d.data(), to, begin, end);
    });
    return absl::OkStatus();
  }
};

// --- Gradient ------------------------------------------------------------------------------------

Status NormGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  FusedBatchNormAttrs attrs;
  MR_ASSIGN_OR_RETURN(attrs.epsilon, c->GetAttr<float>("epsilon"));
  MR_ASSIGN_OR_RETURN(attrs.data_format, c->GetAttr<std::string>("data_format"));
  MR_ASSIGN_OR_RETURN(attrs.is_training, c->GetAttr<bool>("is_training"));
  const Scope& s = c->scope();
  const Output g = c->dense_grad(0), x = c->input(0), scale = c->input(1);
  const Output mean = attrs.is_training ? c->output(3) : c->input(3);
  const Output variance = attrs.is_training ? c->output(4) : c->input(4);
  const std::string& op = c->node().op();
  FusedBatchNormGradOutputs grads;
  if (op == "FusedBatchNorm") {
    grads = FusedBatchNormGrad(s, g, x, scale, mean, variance, attrs);
  } else if (op == "FusedBatchNormV2") {
    grads = FusedBatchNormGradV2(s, g, x, scale, mean, variance, attrs);
  } else {
    grads = FusedBatchNormGradV3(s, g, x, scale, mean, variance, c->output(5), attrs);
  }
  c->set_input_grad(0, grads.x_backprop);
  c->set_input_grad(1, grads.scale_backprop);
  c->set_input_grad(2, grads.offset_backprop);
  return absl::OkStatus();
}

// Silence here would make second derivatives wrong.
Status RefuseSecondDerivative(GradientContext* c) {
  return absl::UnimplementedError(absl::StrCat(c->node().op(), " '", c->node().name(),
                                               "': the gradient of batch normalisation has no "
                                               "gradient"));
}

// --- Registration --------------------------------------------------------------------------------

// U is the type of the vectors: "T" or "U".
OpSpec Forward(absl::string_view op, const std::string& u) {
  OpSpec spec(op);
  spec.Input("x: T");
  for (const char* name : {"scale", "offset", "mean", "variance"}) {
    spec.Input(absl::StrCat(name, ": ", u));
  }
  spec.Output("y: T");
  for (const char* name : {"batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2"}) {
    spec.Output(absl::StrCat(name, ": ", u));
  }
  return spec.Shape(ForwardShape).Gradient(NormGradient);
}
OpSpec Backward(absl::string_view op, const std::string& u) {
  return OpSpec(op)
      .Input("y_backprop: T")
      .Input("x: T")
      .Input(u == "T" ? "scale: T" : "scale: float")
      .Input("reserve_space_1: " + u)
      .Input("reserve_space_2: " + u)
      .Output("x_backprop: T")
      .Output("scale_backprop: " + u)
      .Output("offset_backprop: " + u)
      .Shape(BackwardShape)
      .Gradient(RefuseSecondDerivative);
}
OpSpec WithAttrs(OpSpec spec, bool two_types) {
  spec.Attr(two_types ? "T: {half, bfloat16, float}" : "T: {float}");
  if (two_types) spec.Attr("U: {float}");
  return spec.Attr("epsilon: float = 0.0001")
      .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
      .Attr("is_training: bool = true");
}

const OpRegistration kNorm = WithAttrs(Forward("FusedBatchNorm", "T"), false);
const OpRegistration kNormV2 = WithAttrs(Forward("FusedBatchNormV2", "U"), true);
const OpRegistration kNormV3 =
    WithAttrs(Forward("FusedBatchNormV3", "U").Output("reserve_space_3: U"), true);
const KernelRegistration kNormKernel = KernelFor<ForwardKernel>("FusedBatchNorm");
const KernelRegistration kNormV2Kernel = KernelFor<ForwardKernel>("FusedBatchNormV2");
const KernelRegistration kNormV3Kernel = KernelFor<ForwardKernel>("FusedBatchNormV3");

const OpRegistration kNormGrad = WithAttrs(
    Backward("FusedBatchNormGrad", "T").Output("reserve_space_3: T").Output("reserve_space_4: T"),
    false);
const OpRegistration kNormGradV2 = WithAttrs(
    Backward("FusedBatchNormGradV2", "U").Output("reserve_space_3: U").Output("reserve_space_4: U"),
    true);
const OpRegistration kNormGradV3 = WithAttrs(Backward("FusedBatchNormGradV3", "U")
                                                 .Input("reserve_space_3: U")
                                                 .Output("reserve_space_4: U")
                                                 .Output("reserve_space_5: U"),
                                             true);
const KernelRegistration kNormGradKernel = KernelFor<BackwardKernel>("FusedBatchNormGrad");
const KernelRegistration kNormGradV2Kernel = KernelFor<BackwardKernel>("FusedBatchNormGradV2");
const KernelRegistration kNormGradV3Kernel = KernelFor<BackwardKernel>("FusedBatchNormGradV3");

}  // namespace
}  // namespace millrace

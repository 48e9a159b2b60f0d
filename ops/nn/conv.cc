// SPDX-License-Identifier: Apache-2.0
// Convolution and its gradients: ops/loops/conv2d.h with the rules of ops/rules/window.h. A kernel
// keeps a plan for each of the first shapes that it meets.
#include "ops/nn/conv.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <utility>

#include "core/mutex.h"
#include "graph/gradient.h"
#include "ops/array/reshape.h"
#include "ops/loops/cast.h"
#include "ops/loops/conv2d.h"
#include "ops/rules/window.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::Conv2DArrays;
using math::Conv2DPass;
using math::Conv2DPlan;
using math::Conv2DShape;

// --- Rules ---------------------------------------------------------------------------------------

// Of Conv2D (input, filter), Conv2DBackpropInput (input_sizes, filter, out_backprop) and
// Conv2DBackpropFilter (input, filter_sizes, out_backprop).
template <Conv2DPass kPass>
struct ConvRule {
  WindowAttrs window;

  Status Init(const NodeAttrs& attrs) { return window.Init(attrs); }
  StatusOr<Planned<WindowGeometry>> operator()(RuleContext* c) const {
    PartialShape input = c->input(0), filter = c->input(1);
    if constexpr (kPass == Conv2DPass::kInputGradient) {
      MR_ASSIGN_OR_RETURN(input, ImageSizesInput(c, 0, "input_sizes"));
    } else if constexpr (kPass == Conv2DPass::kFilterGradient) {
      MR_ASSIGN_OR_RETURN(filter, ImageSizesInput(c, 1, "filter_sizes"));
    }
    MR_ASSIGN_OR_RETURN(WindowGeometry g, SlideFilter(window, input, filter));
    if constexpr (kPass == Conv2DPass::kForward) return WithPlan(g.OutputShape(), g);
    MR_RETURN_IF_ERROR(CheckOutputGradient(g, c->input(2)));
    // Batch and output channels are those of the gradient. (The input's channels are the filter's
    // or a multiple of them.)
    const ImageShape grad = ToImageShape(c->input(2), window.channels_first);
    if constexpr (kPass == Conv2DPass::kInputGradient) {
      g.input.batch = std::max(g.input.batch, grad.batch);
      return WithPlan(g.InputShape(), g);
    }
    const auto& [rows, columns] = g.window.axes;
    return WithPlan(PartialShape::Make({rows.size, columns.size, g.filter_channels,
                                        std::max(g.output.channels, grad.channels)}),
                    g);
  }
};

// --- Kernels -------------------------------------------------------------------------------------

// Plans by shape: look-ups take no lock, entries stay until the kernel goes. Shapes beyond the
// first ones get a plan per call (oneDNN caches what is costly about them).
class PlanCache {
 public:
  std::shared_ptr<const Conv2DPlan> Get(const Conv2DShape& shape, Conv2DPass pass, DType dtype) {
    if (std::shared_ptr<const Conv2DPlan> plan = Find(shape)) return plan;
    std::shared_ptr<const Conv2DPlan> plan = math::MakeConv2DPlan(shape, pass, dtype);
    MutexLock lock(&mu_);
    const size_t size = size_.load(std::memory_order_relaxed);
    if (size < entries_.size() && Find(shape) == nullptr) {
      entries_[size] = {shape, plan};
      size_.store(size + 1, std::memory_order_release);
    }
    return plan;
  }

 private:
  std::shared_ptr<const Conv2DPlan> Find(const Conv2DShape& shape) const {
    // Acquire: sees the entries that the release above published.
    const size_t size = size_.load(std::memory_order_acquire);
    for (size_t i = 0; i < size; ++i) {
      if (entries_[i].first == shape) return entries_[i].second;
    }
    return nullptr;
  }

  // Those below size_ never change.
  std::array<std::pair<Conv2DShape, std::shared_ptr<const Conv2DPlan>>, 16> entries_;
  std::atomic<size_t> size_ = 0;
  Mutex mu_;  // for insertions
};

Conv2DShape ToConv2DShape(const WindowGeometry& g) {
  const auto& [rows, cols] = g.window.axes;
  return {.batch = g.input.batch,
          .in_rows = g.input.size[0],
          .in_cols = g.input.size[1],
          .in_channels = g.input.channels,
          .filter_rows = rows.size,
          .filter_cols = cols.size,
          .out_rows = g.output.size[0],
          .out_cols = g.output.size[1],
          .out_channels = g.output.channels,
          .stride_rows = rows.stride,
          .stride_cols = cols.stride,
          .dilation_rows = rows.dilation,
          .dilation_cols = cols.dilation,
          .pad_top = g.pad_before[0],
          .pad_bottom = g.pad_after[0],
          .pad_left = g.pad_before[1],
          .pad_right = g.pad_after[1]};
}

// The elements of `from` as those of `to`, which has its shape and the other dtype of `cast`.
void CastElements(const KernelContext& ctx, math::CastFn cast, const Tensor& from, Tensor* to) {
  const int64_t from_size = static_cast<int64_t>(DTypeSize(from.dtype()));
  const int64_t to_size = static_cast<int64_t>(DTypeSize(to->dtype()));
  const char* const source = static_cast<const char*>(from.raw_data());
  char* const target = static_cast<char*>(to->mutable_raw_data());
  ctx.ParallelFor(from.num_elements(), 0.5, [=](int64_t begin, int64_t end) {
    cast(source + begin * from_size, target + begin * to_size, end - begin);
  });
}

// Plans are for float and double: half and bfloat16 are computed as floats and rounded once.
template <Conv2DPass kPass>
class ConvKernel : public RuledKernel<ConvRule<kPass>> {
 protected:
  Status Prepare(KernelConstruction* c) override {
    const DType dtype = c->output_type(0);
    if (dtype == DT_HALF || dtype == DT_BFLOAT16) {
      widen_ = math::FindCast(dtype, DT_FLOAT, /*truncate=*/false);
      narrow_ = math::FindCast(DT_FLOAT, dtype, /*truncate=*/false);
    }
    plan_dtype_ = widen_ == nullptr ? dtype : DT_FLOAT;
    if (!this->rule().window.channels_first) return absl::OkStatus();
    return Unimplemented("data_format must be NHWC on CPU, got NCHW; transpose the images");
  }

  Status Run(KernelContext* ctx) const override {
    constexpr bool kToInput = kPass == Conv2DPass::kInputGradient;
    constexpr bool kToFilter = kPass == Conv2DPass::kFilterGradient;
    const WindowGeometry& g = ctx->plan(this->rule());
    if (g.input.channels != g.filter_channels) {
      return Unimplemented("filter must have as many input channels as the input (no groups), got ",
                           g.filter_channels, " for ", g.input.channels);
    }
    const Tensor& a = ctx->input(kToInput ? 2 : 0);
    const Tensor& b = ctx->input(kToFilter ? 2 : 1);
    if (a.num_elements() == 0 || b.num_elements() == 0) return ctx->AllocateZeros(0).status();
    MR_ASSIGN_OR_RETURN(Tensor * result, ctx->AllocateOutput(0));
    if (result->num_elements() == 0) return absl::OkStatus();
    if (widen_ == nullptr) return RunPlan(ctx, g, a, b, result);
    MR_ASSIGN_OR_RETURN(Tensor wide_a, ctx->AllocateTemp(DT_FLOAT, a.shape()));
    MR_ASSIGN_OR_RETURN(Tensor wide_b, ctx->AllocateTemp(DT_FLOAT, b.shape()));
    MR_ASSIGN_OR_RETURN(Tensor wide_result, ctx->AllocateTemp(DT_FLOAT, result->shape()));
    CastElements(*ctx, widen_, a, &wide_a);
    CastElements(*ctx, widen_, b, &wide_b);
    MR_RETURN_IF_ERROR(RunPlan(ctx, g, wide_a, wide_b, &wide_result));
    CastElements(*ctx, narrow_, wide_result, result);
    return absl::OkStatus();
  }

 private:
  Status RunPlan(KernelContext* ctx, const WindowGeometry& g, const Tensor& a, const Tensor& b,
                 Tensor* result) const {
    const std::shared_ptr<const Conv2DPlan> plan = plans_.Get(ToConv2DShape(g), kPass, plan_dtype_);
    Conv2DArrays arrays{a.raw_data(), b.raw_data(), result->mutable_raw_data(), nullptr};
    Tensor scratch;
    if (plan->scratch_bytes() > 0) {
      MR_ASSIGN_OR_RETURN(const Shape bytes,
                          Shape::Make({static_cast<int64_t>(plan->scratch_bytes())}));
      MR_ASSIGN_OR_RETURN(scratch, ctx->AllocateTemp(DT_UINT8, bytes));
      arrays.scratch = scratch.mutable_bytes().data();
    }
    plan->Begin(arrays);
    ctx->ParallelFor(plan->num_parts(), plan->part_cost_ns(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) plan->RunPart(i, arrays);
    });
    plan->End(arrays);
    return absl::OkStatus();
  }

  DType plan_dtype_ = DT_INVALID;
  math::CastFn widen_ = nullptr, narrow_ = nullptr;  // null: elements are the plan's
  mutable PlanCache plans_;
};

// --- Gradients -----------------------------------------------------------------------------------

// Of input, filter and gradient of the output each op computes one, linearly, from the other two.
// So the gradients of an op are those that it does not compute itself, with the gradient that comes
// in as what it computes.
template <Conv2DPass kPass>
StatusOr<std::vector<Output>> ConvGradient(GradientContext* c) {
  Conv2DAttrs attrs;
  MR_RETURN_IF_ERROR(ReadAttrs(c->node().attrs(), "strides", &attrs.strides, "padding",
                               &attrs.padding, "use_cudnn_on_gpu", &attrs.use_cudnn_on_gpu,
                               "explicit_paddings", &attrs.explicit_paddings, "data_format",
                               &attrs.data_format, "dilations", &attrs.dilations));
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  const Output input = kPass == Conv2DPass::kInputGradient ? g : c->input(0);
  const Output filter = kPass == Conv2DPass::kFilterGradient ? g : c->input(1);
  const Output output = kPass == Conv2DPass::kForward ? g : c->input(2);
  std::vector<Output> grads(static_cast<size_t>(c->num_inputs()));
  if (kPass != Conv2DPass::kInputGradient) {
    grads[0] = Conv2DBackpropInput(s, ShapeOf(s, c->input(0)), filter, output, attrs);
  }
  if (kPass != Conv2DPass::kFilterGradient) {
    grads[1] = Conv2DBackpropFilter(s, input, ShapeOf(s, c->input(1)), output, attrs);
  }
  if (kPass != Conv2DPass::kForward) grads[2] = Conv2D(s, input, filter, attrs);
  return grads;
}

// --- Definitions ---------------------------------------------------------------------------------

template <Conv2DPass kPass>
OpSpec ConvSpec(absl::string_view op, absl::string_view inputs) {
  return OpSpec(op, absl::StrCat(inputs, " -> output: T"),
                "T: {half, bfloat16, float, double}; strides: list(int); "
                "use_cudnn_on_gpu: bool = true; padding: {'SAME', 'VALID', 'EXPLICIT'}; "
                "explicit_paddings: list(int) = []; data_format: {'NHWC', 'NCHW'} = 'NHWC'; "
                "dilations: list(int) = [1, 1, 1, 1]")
      .With(KernelFor<ConvKernel<kPass>>().Types("T", {DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE}))
      .Gradient(ConvGradient<kPass>);
}

const OpRegistration kConv2D = ConvSpec<Conv2DPass::kForward>("Conv2D", "input: T, filter: T");
const OpRegistration kConv2DBackpropInput = ConvSpec<Conv2DPass::kInputGradient>(
    "Conv2DBackpropInput", "input_sizes: int32, filter: T, out_backprop: T");
const OpRegistration kConv2DBackpropFilter = ConvSpec<Conv2DPass::kFilterGradient>(
    "Conv2DBackpropFilter", "input: T, filter_sizes: int32, out_backprop: T");

}  // namespace
}  // namespace millrace

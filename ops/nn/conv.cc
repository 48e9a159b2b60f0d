// SPDX-License-Identifier: Apache-2.0
// Convolution and its gradients: ops/loops/conv2d.h with the rules of ops/rules/window.h. A kernel
// keeps a plan for each of the first shapes that it meets.
#include "ops/nn/conv.h"

#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "core/mutex.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
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

// input_sizes and filter_sizes: a vector of 4.
Status CheckSizesVector(absl::string_view name, const PartialShape& shape) {
  if (!shape.has_rank()) return absl::OkStatus();
  if (shape.rank() == 1 && (shape.dim(0) == 4 || shape.dim(0) < 0)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must be a vector of 4 elements, got shape ", shape.ToString()));
}

// The shape that sizes input i describes: known when the values are.
StatusOr<PartialShape> SizesInput(InferenceContext* c, int i, absl::string_view name) {
  MR_RETURN_IF_ERROR(CheckSizesVector(name, c->input(i)));
  if (const Tensor* value = c->input_tensor(i); value != nullptr && value->dtype() == DT_INT32) {
    const absl::Span<const int32_t> dims = value->raw<int32_t>();
    StatusOr<Shape> shape = Shape::Make(std::vector<int64_t>(dims.begin(), dims.end()));
    if (!shape.ok()) return Prefixed(name, shape.status());
    return PartialShape(*shape);
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(i));
  return shape.has_rank() ? shape : PartialShape::UnknownOfRank(4);
}
StatusOr<Shape> SizesInput(const KernelContext& ctx, int i, absl::string_view name) {
  MR_RETURN_IF_ERROR(CheckSizesVector(name, ctx.input(i).shape()));
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> dims, ctx.IntVectorInput(i, name));
  StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) return Prefixed(name, shape.status());
  return *std::move(shape);
}

// `known` with the sizes of `other` where it has none.
ImageShape MergeUnknown(ImageShape known, const ImageShape& other) {
  if (known.batch < 0) known.batch = other.batch;
  if (known.channels < 0) known.channels = other.channels;
  for (size_t i = 0; i < 2; ++i) {
    if (known.size[i] < 0) known.size[i] = other.size[i];
  }
  return known;
}

// --- Shapes --------------------------------------------------------------------------------------

Status ConvShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, ReadWindowAttrs(c->node()));
  MR_ASSIGN_OR_RETURN(const ConvGeometry g, SlideFilter(attrs, c->input(0), c->input(1)));
  MR_ASSIGN_OR_RETURN(PartialShape shape, FromImageShape(g.output, attrs.channels_first));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status InputGradientShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, ReadWindowAttrs(c->node()));
  MR_ASSIGN_OR_RETURN(const PartialShape sizes, SizesInput(c, 0, "input_sizes"));
  MR_ASSIGN_OR_RETURN(const ConvGeometry g, SlideFilter(attrs, sizes, c->input(1)));
  MR_RETURN_IF_ERROR(CheckOutputGradient(attrs, g, c->input(2)));
  // The batch is that of the gradient. (Channels are the filter's or a multiple of them.)
  ImageShape known;
  known.batch = ToImageShape(c->input(2), attrs.channels_first).batch;
  MR_ASSIGN_OR_RETURN(PartialShape shape,
                      FromImageShape(MergeUnknown(g.input, known), attrs.channels_first));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status FilterGradientShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, ReadWindowAttrs(c->node()));
  MR_ASSIGN_OR_RETURN(const PartialShape sizes, SizesInput(c, 1, "filter_sizes"));
  MR_ASSIGN_OR_RETURN(const ConvGeometry g, SlideFilter(attrs, c->input(0), sizes));
  MR_RETURN_IF_ERROR(CheckOutputGradient(attrs, g, c->input(2)));
  int64_t out_channels = g.output.channels;
  if (out_channels < 0) {
    out_channels = ToImageShape(c->input(2), attrs.channels_first).channels;
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make({g.filter_size[0], g.filter_size[1],
                                                              g.filter_channels, out_channels}));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// --- Kernels -------------------------------------------------------------------------------------

// Plans by shape: look-ups take no lock, entries stay until the kernel goes. Shapes beyond the
// first kMaxPlans get a plan per call (oneDNN caches what is costly about them).
class PlanCache {
 public:
  ~PlanCache() {
    for (const Entry* e = head_.load(std::memory_order_relaxed); e != nullptr;) {
      const Entry* next = e->next;
      delete e;
      e = next;
    }
  }

  std::shared_ptr<const Conv2DPlan> Get(const Conv2DShape& shape, Conv2DPass pass, DType dtype) {
    // Acquire: sees the entry that the release below published.
    if (const Entry* e = Find(head_.load(std::memory_order_acquire), shape)) return e->plan;
    std::shared_ptr<const Conv2DPlan> plan = math::MakeConv2DPlan(shape, pass, dtype);
    MutexLock lock(&mu_);
    const Entry* head = head_.load(std::memory_order_relaxed);
    if (size_ < kMaxPlans && Find(head, shape) == nullptr) {
      ++size_;
      head_.store(new Entry{shape, plan, head}, std::memory_order_release);
    }
    return plan;
  }

 private:
  static constexpr int kMaxPlans = 16;
  struct Entry {
    Conv2DShape shape;
    std::shared_ptr<const Conv2DPlan> plan;
    const Entry* next;
  };
  static const Entry* Find(const Entry* e, const Conv2DShape& shape) {
    while (e != nullptr && !(e->shape == shape)) e = e->next;
    return e;
  }

  std::atomic<const Entry*> head_ = nullptr;  // release on insertion, acquire on look-up
  Mutex mu_;
  int size_ ABSL_GUARDED_BY(mu_) = 0;
};

class ConvKernel : public Kernel {
 public:
  explicit ConvKernel(Conv2DPass pass) : pass_(pass) {}

  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(attrs_, ReadWindowAttrs(c->node()));
    dtype_ = c->output_type(0);
    if (attrs_.channels_first) {
      return absl::UnimplementedError(
          "data_format must be NHWC on CPU, got NCHW; transpose the images");
    }
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    switch (pass_) {
      case Conv2DPass::kForward: {
        const Shape& filter = ctx->input(1).shape();
        MR_ASSIGN_OR_RETURN(const ConvGeometry g,
                            SlideFilter(attrs_, ctx->input(0).shape(), filter));
        MR_ASSIGN_OR_RETURN(const PartialShape output, FromImageShape(g.output, false));
        MR_ASSIGN_OR_RETURN(const Shape shape, output.ToShape());
        return Run(ctx, g, ctx->input(0), ctx->input(1), shape);
      }
      case Conv2DPass::kInputGradient: {
        MR_ASSIGN_OR_RETURN(const Shape shape, SizesInput(*ctx, 0, "input_sizes"));
        MR_ASSIGN_OR_RETURN(const ConvGeometry g,
                            SlideFilter(attrs_, shape, ctx->input(1).shape()));
        MR_RETURN_IF_ERROR(CheckOutputGradient(attrs_, g, ctx->input(2).shape()));
        return Run(ctx, g, ctx->input(2), ctx->input(1), shape);
      }
      case Conv2DPass::kFilterGradient: {
        MR_ASSIGN_OR_RETURN(const Shape shape, SizesInput(*ctx, 1, "filter_sizes"));
        MR_ASSIGN_OR_RETURN(const ConvGeometry g,
                            SlideFilter(attrs_, ctx->input(0).shape(), shape));
        MR_RETURN_IF_ERROR(CheckOutputGradient(attrs_, g, ctx->input(2).shape()));
        return Run(ctx, g, ctx->input(0), ctx->input(2), shape);
      }
    }
    return absl::OkStatus();
  }

 private:
  Status Run(KernelContext* ctx, const ConvGeometry& g, const Tensor& a, const Tensor& b,
             const Shape& result_shape) const {
    if (g.input.channels != g.filter_channels) {
      return absl::UnimplementedError(
          absl::StrCat("filter must have as many input channels as the input (no groups), got ",
                       g.filter_channels, " for ", g.input.channels));
    }
    MR_ASSIGN_OR_RETURN(Tensor * result, ctx->AllocateOutput(0, result_shape));
    if (result->num_elements() == 0) return absl::OkStatus();
    if (a.num_elements() == 0 || b.num_elements() == 0) {
      const absl::Span<char> bytes = result->mutable_bytes();
      std::memset(bytes.data(), 0, bytes.size());
      return absl::OkStatus();
    }
    Conv2DShape s;
    s.batch = g.input.batch;
    s.in_rows = g.input.size[0];
    s.in_cols = g.input.size[1];
    s.in_channels = g.input.channels;
    s.filter_rows = g.filter_size[0];
    s.filter_cols = g.filter_size[1];
    s.out_rows = g.output.size[0];
    s.out_cols = g.output.size[1];
    s.out_channels = g.output.channels;
    s.stride_rows = attrs_.axes[0].stride;
    s.stride_cols = attrs_.axes[1].stride;
    s.dilation_rows = attrs_.axes[0].dilation;
    s.dilation_cols = attrs_.axes[1].dilation;
    s.pad_top = g.pad_before[0];
    s.pad_bottom = g.pad_after[0];
    s.pad_left = g.pad_before[1];
    s.pad_right = g.pad_after[1];
    const std::shared_ptr<const Conv2DPlan> plan = plans_.Get(s, pass_, dtype_);
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

  const Conv2DPass pass_;
  WindowAttrs attrs_;
  DType dtype_ = DT_INVALID;
  mutable PlanCache plans_;
};

KernelSpec ConvKernelFor(absl::string_view op, Conv2DPass pass) {
  return KernelSpec(op, [pass] { return std::make_unique<ConvKernel>(pass); })
      .Types("T", {DT_FLOAT, DT_DOUBLE});
}

// --- Gradients -----------------------------------------------------------------------------------

StatusOr<Conv2DAttrs> AttrsOf(const tensorflow::NodeDef& node) {
  using Ints = std::vector<int64_t>;
  Conv2DAttrs attrs;
  MR_ASSIGN_OR_RETURN(attrs.strides, GetAttr<Ints>(node, "strides"));
  MR_ASSIGN_OR_RETURN(attrs.padding, GetAttr<std::string>(node, "padding"));
  MR_ASSIGN_OR_RETURN(attrs.use_cudnn_on_gpu, GetAttr<bool>(node, "use_cudnn_on_gpu"));
  MR_ASSIGN_OR_RETURN(attrs.explicit_paddings, GetAttr<Ints>(node, "explicit_paddings"));
  MR_ASSIGN_OR_RETURN(attrs.data_format, GetAttr<std::string>(node, "data_format"));
  MR_ASSIGN_OR_RETURN(attrs.dilations, GetAttr<Ints>(node, "dilations"));
  return attrs;
}

// The convolution is linear in each operand, so the gradients of the three ops are the other two.

Status ConvGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const Conv2DAttrs attrs, AttrsOf(c->node().def()));
  const Scope& s = c->scope();
  const Output input = c->input(0), filter = c->input(1), g = c->dense_grad();
  c->set_input_grad(0, Conv2DBackpropInput(s, ShapeOf(s, input), filter, g, attrs));
  c->set_input_grad(1, Conv2DBackpropFilter(s, input, ShapeOf(s, filter), g, attrs));
  return absl::OkStatus();
}

Status InputGradientGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const Conv2DAttrs attrs, AttrsOf(c->node().def()));
  const Scope& s = c->scope();
  const Output filter = c->input(1), out_backprop = c->input(2), g = c->dense_grad();
  c->set_input_grad(1, Conv2DBackpropFilter(s, g, ShapeOf(s, filter), out_backprop, attrs));
  c->set_input_grad(2, Conv2D(s, g, filter, attrs));
  return absl::OkStatus();
}

Status FilterGradientGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const Conv2DAttrs attrs, AttrsOf(c->node().def()));
  const Scope& s = c->scope();
  const Output input = c->input(0), out_backprop = c->input(2), g = c->dense_grad();
  c->set_input_grad(0, Conv2DBackpropInput(s, ShapeOf(s, input), g, out_backprop, attrs));
  c->set_input_grad(2, Conv2D(s, input, g, attrs));
  return absl::OkStatus();
}

// --- Registration --------------------------------------------------------------------------------

OpSpec WithConvAttrs(OpSpec spec) {
  return spec.Output("output: T")
      .Attr("T: {half, bfloat16, float, double}")
      .Attr("strides: list(int)")
      .Attr("use_cudnn_on_gpu: bool = true")
      .Attr("padding: {'SAME', 'VALID', 'EXPLICIT'}")
      .Attr("explicit_paddings: list(int) = []")
      .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
      .Attr("dilations: list(int) = [1, 1, 1, 1]");
}

const OpRegistration kConv2D = WithConvAttrs(OpSpec("Conv2D").Input("input: T").Input("filter: T"))
                                   .Shape(ConvShape)
                                   .Gradient(ConvGradient);
const KernelRegistration kConv2DKernel = ConvKernelFor("Conv2D", Conv2DPass::kForward);

const OpRegistration kConv2DBackpropInput = WithConvAttrs(OpSpec("Conv2DBackpropInput")
                                                              .Input("input_sizes: int32")
                                                              .Input("filter: T")
                                                              .Input("out_backprop: T"))
                                                .Shape(InputGradientShape)
                                                .Gradient(InputGradientGradient);
const KernelRegistration kConv2DBackpropInputKernel =
    ConvKernelFor("Conv2DBackpropInput", Conv2DPass::kInputGradient);

const OpRegistration kConv2DBackpropFilter = WithConvAttrs(OpSpec("Conv2DBackpropFilter")
                                                               .Input("input: T")
                                                               .Input("filter_sizes: int32")
                                                               .Input("out_backprop: T"))
                                                 .Shape(FilterGradientShape)
                                                 .Gradient(FilterGradientGradient);
const KernelRegistration kConv2DBackpropFilterKernel =
    ConvKernelFor("Conv2DBackpropFilter", Conv2DPass::kFilterGradient);

}  // namespace
}  // namespace millrace

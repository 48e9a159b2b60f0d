// SPDX-License-Identifier: Apache-2.0
// Poolings: ops/loops/pool.h with the rules of ops/rules/window.h. Forwards, rows of the outputs
// run in parallel; backwards, where windows overlap, images (or channels of few images) do.
#include "ops/nn/pool.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/reshape.h"
#include "ops/loops/pool.h"
#include "ops/rules/int_inputs.h"
#include "ops/rules/window.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::PoolLoops;
using math::PoolShape;

// --- Rules ---------------------------------------------------------------------------------------

// `shape`, the gradient or the output of a pooling, has the shape that the pooling gives.
Status CheckPooled(absl::string_view name, const PartialShape& shape, const PoolGeometry& g,
                   bool channels_first) {
  MR_ASSIGN_OR_RETURN(const PartialShape pooled, FromImageShape(g.output, channels_first));
  if (shape.IsCompatibleWith(pooled)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have shape ", pooled.ToString(), ", got ", shape.ToString()));
}

Status CheckShapeVector(const PartialShape& shape) {
  if (!shape.has_rank() || (shape.rank() == 1 && (shape.dim(0) == 4 || shape.dim(0) < 0))) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "orig_input_shape must be a vector of 4 elements, got shape ", shape.ToString()));
}

// --- Shapes --------------------------------------------------------------------------------------

// Attrs of either kind; for the V2 ops ksize and strides are inputs `first` and `first` + 1.
// `known` says whether they could be read.
StatusOr<WindowAttrs> AttrsOf(InferenceContext* c, int first, bool* known) {
  MR_ASSIGN_OR_RETURN(WindowAttrs attrs, ReadWindowAttrs(c->node()));
  *known = true;
  if (c->num_inputs() <= first) return attrs;
  const std::optional<std::vector<int64_t>> ksize = ConstantInts(c, first);
  const std::optional<std::vector<int64_t>> strides = ConstantInts(c, first + 1);
  if (ksize) MR_RETURN_IF_ERROR(SetWindowSizes(*ksize, &attrs));
  if (strides) MR_RETURN_IF_ERROR(SetStrides(*strides, &attrs));
  *known = ksize.has_value() && strides.has_value();
  return attrs;
}

Status PoolOutputShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const std::string format, c->GetAttr<std::string>("data_format"));
  if (format == "NCHW_VECT_C") {  // of GPUs: [batch, channels / 4, rows, columns, 4]
    c->set_output(0, PartialShape::UnknownOfRank(5));
    return absl::OkStatus();
  }
  bool known;
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, AttrsOf(c, 1, &known));
  if (!known) {
    MR_ASSIGN_OR_RETURN(const PartialShape input, c->InputWithRank(0, 4));
    ImageShape image = ToImageShape(input, attrs.channels_first);
    image.size = {-1, -1};
    MR_ASSIGN_OR_RETURN(PartialShape shape, FromImageShape(image, attrs.channels_first));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, c->input(0)));
  MR_ASSIGN_OR_RETURN(PartialShape shape, FromImageShape(g.output, attrs.channels_first));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status MaxPoolGradShape(InferenceContext* c) {
  bool known;
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, AttrsOf(c, 3, &known));
  MR_ASSIGN_OR_RETURN(PartialShape input, c->InputWithRank(0, 4));
  if (known) {
    MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, input));
    MR_RETURN_IF_ERROR(CheckPooled("orig_output", c->input(1), g, attrs.channels_first));
    MR_RETURN_IF_ERROR(CheckPooled("grad", c->input(2), g, attrs.channels_first));
  }
  c->set_output(0, std::move(input));
  return absl::OkStatus();
}

Status MaxPoolGradGradShape(InferenceContext* c) {
  bool known;
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, AttrsOf(c, 3, &known));
  MR_ASSIGN_OR_RETURN(PartialShape output, c->InputWithRank(1, 4));
  StatusOr<PartialShape> input = c->input(0).MergeWith(c->input(2));
  if (!input.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("grad must have the shape of orig_input ",
                                                   c->input(0).ToString(), ", got ",
                                                   c->input(2).ToString()));
  }
  if (known) {
    MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, *input));
    MR_RETURN_IF_ERROR(CheckPooled("orig_output", output, g, attrs.channels_first));
    MR_ASSIGN_OR_RETURN(const PartialShape pooled, FromImageShape(g.output, attrs.channels_first));
    MR_ASSIGN_OR_RETURN(output, output.MergeWith(pooled));
  }
  c->set_output(0, std::move(output));
  return absl::OkStatus();
}

Status AvgPoolGradShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, ReadWindowAttrs(c->node()));
  MR_RETURN_IF_ERROR(CheckShapeVector(c->input(0)));
  PartialShape input;
  if (const std::optional<std::vector<int64_t>> dims = ConstantInts(c, 0)) {
    StatusOr<Shape> shape = Shape::Make(*dims);
    if (!shape.ok()) return Prefixed("orig_input_shape", shape.status());
    input = *shape;
  } else {
    MR_ASSIGN_OR_RETURN(input, c->input_as_shape(0));
    if (!input.has_rank()) input = PartialShape::UnknownOfRank(4);
  }
  MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, input));
  MR_RETURN_IF_ERROR(CheckPooled("grad", c->input(1), g, attrs.channels_first));
  // Batch and channels are those of the gradient.
  const ImageShape grad = ToImageShape(c->input(1), attrs.channels_first);
  ImageShape image = g.input;
  if (image.batch < 0) image.batch = grad.batch;
  if (image.channels < 0) image.channels = grad.channels;
  MR_ASSIGN_OR_RETURN(PartialShape shape, FromImageShape(image, attrs.channels_first));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// --- Kernels -------------------------------------------------------------------------------------

// What the kernels share. `kFirst`: the input that gives ksize in the V2 ops.
class PoolKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(const std::string format, c->GetAttr<std::string>("data_format"));
    if (format != "NHWC") {
      return absl::UnimplementedError(
          absl::StrCat("data_format must be NHWC on CPU, got ", format, "; transpose the images"));
    }
    MR_ASSIGN_OR_RETURN(attrs_, ReadWindowAttrs(c->node()));
    const DType dtype = c->output_type(0);
    loops_ = math::FindPool(dtype);
    if (loops_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

 protected:
  // The attrs, with ksize and strides from inputs `first` and `first` + 1 where the op has them.
  StatusOr<WindowAttrs> Attrs(const KernelContext& ctx, int first) const {
    WindowAttrs attrs = attrs_;
    if (ctx.num_inputs() <= first) return attrs;
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> ksize, ctx.IntVectorInput(first, "ksize"));
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> strides,
                        ctx.IntVectorInput(first + 1, "strides"));
    MR_RETURN_IF_ERROR(SetWindowSizes(ksize, &attrs));
    MR_RETURN_IF_ERROR(SetStrides(strides, &attrs));
    return attrs;
  }

  static StatusOr<PoolShape> ToPoolShape(const WindowAttrs& attrs, const PoolGeometry& g) {
    PoolShape s;
    s.in_rows = g.input.size[0];
    s.in_cols = g.input.size[1];
    s.channels = g.input.channels;
    s.out_rows = g.output.size[0];
    s.out_cols = g.output.size[1];
    s.window_rows = attrs.axes[0].size;
    s.window_cols = attrs.axes[1].size;
    s.stride_rows = attrs.axes[0].stride;
    s.stride_cols = attrs.axes[1].stride;
    s.pad_top = g.pad_before[0];
    s.pad_left = g.pad_before[1];
    MR_ASSIGN_OR_RETURN(const int64_t pixels, CheckedProduct(s.in_rows, s.in_cols));
    if (pixels > std::numeric_limits<int32_t>::max()) {
      return absl::UnimplementedError(
          absl::StrCat("an image must have less than 2^31 pixels, got ", pixels));
    }
    return s;
  }

  // About how long one output element takes.
  static double ElementNs(const PoolShape& s) {
    return 0.1 + 0.15 * static_cast<double>(std::min(s.window_rows, s.in_rows)) *
                     static_cast<double>(std::min(s.window_cols, s.in_cols));
  }

  // f(image, begin, end) for output rows [begin, end) of each image.
  template <typename F>
  static void ForOutputRows(KernelContext* ctx, const PoolShape& s, int64_t batch, F f) {
    const double row_ns = ElementNs(s) * static_cast<double>(s.out_cols * s.channels);
    ctx->ParallelFor(batch * s.out_rows, row_ns, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t image = begin / s.out_rows;
        const int64_t last = std::min(end, (image + 1) * s.out_rows);
        f(image, begin - image * s.out_rows, last - image * s.out_rows);
        begin = last;
      }
    });
  }

  // f(image, begin, end) for channels [begin, end) of each image: all, or 64 where images are few.
  template <typename F>
  static void ForChannels(KernelContext* ctx, const PoolShape& s, int64_t batch, F f) {
    constexpr int64_t kManyImages = 16, kChannels = 64;
    const int64_t parts = batch >= kManyImages ? 1 : (s.channels + kChannels - 1) / kChannels;
    const double part_ns = 2 * ElementNs(s) *
                           static_cast<double>(s.out_rows * s.out_cols * s.channels) /
                           static_cast<double>(parts);
    ctx->ParallelFor(batch * parts, part_ns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t part = i % parts;
        const int64_t from = parts == 1 ? 0 : part * kChannels;
        f(i / parts, from, part + 1 == parts ? s.channels : from + kChannels);
      }
    });
  }

  static int64_t InputPixels(const PoolShape& s) { return s.in_rows * s.in_cols * s.channels; }
  static int64_t OutputPixels(const PoolShape& s) { return s.out_rows * s.out_cols * s.channels; }

  WindowAttrs attrs_;
  const PoolLoops* loops_ = nullptr;
  int64_t size_ = 0;  // bytes of an element
};

const char* At(const Tensor& t, int64_t bytes) {
  return static_cast<const char*>(t.raw_data()) + bytes;
}
char* At(Tensor* t, int64_t bytes) { return static_cast<char*>(t->mutable_raw_data()) + bytes; }

template <bool kMean>
class ForwardKernel : public PoolKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& input = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, Attrs(*ctx, 1));
    MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, input.shape()));
    MR_ASSIGN_OR_RETURN(const PartialShape pooled, FromImageShape(g.output, false));
    MR_ASSIGN_OR_RETURN(const Shape shape, pooled.ToShape());
    MR_ASSIGN_OR_RETURN(const PoolShape s, ToPoolShape(attrs, g));
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0, shape));
    if (output->num_elements() == 0) return absl::OkStatus();
    const auto loop = kMean ? loops_->mean : loops_->max;
    ForOutputRows(ctx, s, g.input.batch, [&](int64_t image, int64_t begin, int64_t end) {
      loop(s, At(input, image * InputPixels(s) * size_),
           At(output, image * OutputPixels(s) * size_), begin, end);
    });
    return absl::OkStatus();
  }
};

class MaxPoolGradKernel : public PoolKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& input = ctx->input(0);
    const Tensor& grad = ctx->input(2);
    MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, Attrs(*ctx, 3));
    MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, input.shape()));
    MR_RETURN_IF_ERROR(CheckPooled("orig_output", ctx->input(1).shape(), g, false));
    MR_RETURN_IF_ERROR(CheckPooled("grad", grad.shape(), g, false));
    MR_ASSIGN_OR_RETURN(const PoolShape s, ToPoolShape(attrs, g));
    MR_ASSIGN_OR_RETURN(Tensor * result, ctx->AllocateOutput(0, input.shape()));
    if (result->num_elements() == 0) return absl::OkStatus();
    ForChannels(ctx, s, g.input.batch, [&](int64_t image, int64_t begin, int64_t end) {
      const int64_t in = image * InputPixels(s) * size_;
      loops_->max_gradient(s, At(input, in), At(grad, image * OutputPixels(s) * size_),
                           At(result, in), begin, end);
    });
    return absl::OkStatus();
  }
};

class MaxPoolGradGradKernel : public PoolKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& input = ctx->input(0);
    const Tensor& values = ctx->input(2);
    MR_ASSIGN_OR_RETURN(const WindowAttrs attrs, Attrs(*ctx, 3));
    MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs, input.shape()));
    MR_RETURN_IF_ERROR(CheckPooled("orig_output", ctx->input(1).shape(), g, false));
    if (values.shape() != input.shape()) {
      return absl::InvalidArgumentError(absl::StrCat("grad must have the shape of orig_input ",
                                                     input.shape().ToString(), ", got ",
                                                     values.shape().ToString()));
    }
    MR_ASSIGN_OR_RETURN(const PoolShape s, ToPoolShape(attrs, g));
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0, ctx->input(1).shape()));
    if (output->num_elements() == 0) return absl::OkStatus();
    ForOutputRows(ctx, s, g.input.batch, [&](int64_t image, int64_t begin, int64_t end) {
      const int64_t in = image * InputPixels(s) * size_;
      loops_->max_select(s, At(input, in), At(values, in),
                         At(output, image * OutputPixels(s) * size_), begin, end);
    });
    return absl::OkStatus();
  }
};

class AvgPoolGradKernel : public PoolKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& grad = ctx->input(1);
    MR_RETURN_IF_ERROR(CheckShapeVector(ctx->input(0).shape()));
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> dims,
                        ctx->IntVectorInput(0, "orig_input_shape"));
    StatusOr<Shape> shape = Shape::Make(dims);
    if (!shape.ok()) return Prefixed("orig_input_shape", shape.status());
    MR_ASSIGN_OR_RETURN(const PoolGeometry g, SlidePool(attrs_, *shape));
    MR_RETURN_IF_ERROR(CheckPooled("grad", grad.shape(), g, false));
    MR_ASSIGN_OR_RETURN(const PoolShape s, ToPoolShape(attrs_, g));
    MR_ASSIGN_OR_RETURN(Tensor * result, ctx->AllocateOutput(0, *shape));
    if (result->num_elements() == 0) return absl::OkStatus();
    ForChannels(ctx, s, g.input.batch, [&](int64_t image, int64_t begin, int64_t end) {
      loops_->mean_gradient(s, At(grad, image * OutputPixels(s) * size_),
                            At(result, image * InputPixels(s) * size_), begin, end);
    });
    return absl::OkStatus();
  }
};

// --- Gradients -----------------------------------------------------------------------------------

StatusOr<PoolAttrs> BuilderAttrs(const GradientContext& c) {
  using Ints = std::vector<int64_t>;
  PoolAttrs attrs;
  MR_ASSIGN_OR_RETURN(attrs.ksize, c.GetAttr<Ints>("ksize"));
  MR_ASSIGN_OR_RETURN(attrs.strides, c.GetAttr<Ints>("strides"));
  MR_ASSIGN_OR_RETURN(attrs.padding, c.GetAttr<std::string>("padding"));
  MR_ASSIGN_OR_RETURN(attrs.data_format, c.GetAttr<std::string>("data_format"));
  return attrs;
}
StatusOr<MaxPoolV2Attrs> BuilderAttrsV2(const GradientContext& c) {
  MaxPoolV2Attrs attrs;
  MR_ASSIGN_OR_RETURN(attrs.padding, c.GetAttr<std::string>("padding"));
  MR_ASSIGN_OR_RETURN(attrs.data_format, c.GetAttr<std::string>("data_format"));
  return attrs;
}

Status MaxPoolGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const PoolAttrs attrs, BuilderAttrs(*c));
  c->set_input_grad(0, MaxPoolGrad(c->scope(), c->input(0), c->output(0), c->dense_grad(), attrs));
  return absl::OkStatus();
}
Status MaxPoolV2Gradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const MaxPoolV2Attrs attrs, BuilderAttrsV2(*c));
  c->set_input_grad(0, MaxPoolGradV2(c->scope(), c->input(0), c->output(0), c->dense_grad(),
                                     c->input(1), c->input(2), attrs));
  return absl::OkStatus();
}

// Linear in grad; which elements are largest does not change.
Status MaxPoolGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const PoolAttrs attrs, BuilderAttrs(*c));
  c->set_input_grad(2,
                    MaxPoolGradGrad(c->scope(), c->input(0), c->input(1), c->dense_grad(), attrs));
  return absl::OkStatus();
}
Status MaxPoolGradV2Gradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const MaxPoolV2Attrs attrs, BuilderAttrsV2(*c));
  c->set_input_grad(2, MaxPoolGradGradV2(c->scope(), c->input(0), c->input(1), c->dense_grad(),
                                         c->input(3), c->input(4), attrs));
  return absl::OkStatus();
}
Status MaxPoolGradGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const PoolAttrs attrs, BuilderAttrs(*c));
  c->set_input_grad(2, MaxPoolGrad(c->scope(), c->input(0), c->input(1), c->dense_grad(), attrs));
  return absl::OkStatus();
}
Status MaxPoolGradGradV2Gradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const MaxPoolV2Attrs attrs, BuilderAttrsV2(*c));
  c->set_input_grad(2, MaxPoolGradV2(c->scope(), c->input(0), c->input(1), c->dense_grad(),
                                     c->input(3), c->input(4), attrs));
  return absl::OkStatus();
}

Status AvgPoolGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const PoolAttrs attrs, BuilderAttrs(*c));
  c->set_input_grad(
      0, AvgPoolGrad(c->scope(), ShapeOf(c->scope(), c->input(0)), c->dense_grad(), attrs));
  return absl::OkStatus();
}
Status AvgPoolGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const PoolAttrs attrs, BuilderAttrs(*c));
  c->set_input_grad(1, AvgPool(c->scope(), c->dense_grad(), attrs));
  return absl::OkStatus();
}

// --- Registration --------------------------------------------------------------------------------

constexpr char kMaxPoolTypes[] =
    "{half, bfloat16, float, double, int32, int64, uint8, int16, int8, uint16, qint8}";
constexpr char kRealTypes[] =
    "{float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64}";
constexpr char kFloatTypes[] = "{half, bfloat16, float, double}";
constexpr char kTwoFormats[] = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";
constexpr char kThreeFormats[] = "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'";

OpSpec WithKsize(OpSpec spec) {
  return spec.Attr("ksize: list(int) >= 4").Attr("strides: list(int) >= 4");
}
OpSpec WithPadding(OpSpec spec, const char* formats) {
  return spec.Attr("padding: {'SAME', 'VALID'}").Attr(formats);
}
OpSpec WithPoolInputs(absl::string_view op) {
  return OpSpec(op).Input("orig_input: T").Input("orig_output: T").Input("grad: T");
}
OpSpec WithKsizeInputs(OpSpec spec) { return spec.Input("ksize: int32").Input("strides: int32"); }

std::string T(absl::string_view types, absl::string_view value = "") {
  return absl::StrCat("T: ", types, value.empty() ? "" : " = ", value);
}

const OpRegistration kMaxPool = WithPadding(WithKsize(OpSpec("MaxPool")
                                                          .Attr(T(kMaxPoolTypes, "DT_FLOAT"))
                                                          .Input("input: T")
                                                          .Output("output: T")),
                                            kThreeFormats)
                                    .Shape(PoolOutputShape)
                                    .Gradient(MaxPoolGradient);
const KernelRegistration kMaxPoolKernel = KernelFor<ForwardKernel<false>>("MaxPool");

const OpRegistration kMaxPoolGrad =
    WithPadding(WithKsize(WithPoolInputs("MaxPoolGrad").Output("output: T")), kTwoFormats)
        .Attr(T(kRealTypes, "DT_FLOAT"))
        .Shape(MaxPoolGradShape)
        .Gradient(MaxPoolGradGradient);
const KernelRegistration kMaxPoolGradKernel = KernelFor<MaxPoolGradKernel>("MaxPoolGrad");

const OpRegistration kMaxPoolGradGrad =
    WithPadding(WithKsize(WithPoolInputs("MaxPoolGradGrad").Output("output: T")), kTwoFormats)
        .Attr(T(kRealTypes))
        .Shape(MaxPoolGradGradShape)
        .Gradient(MaxPoolGradGradGradient);
const KernelRegistration kMaxPoolGradGradKernel =
    KernelFor<MaxPoolGradGradKernel>("MaxPoolGradGrad");

const OpRegistration kMaxPoolV2 =
    WithPadding(WithKsizeInputs(OpSpec("MaxPoolV2")
                                    .Attr(T(kMaxPoolTypes, "DT_FLOAT"))
                                    .Input("input: T")
                                    .Output("output: T")),
                kThreeFormats)
        .Shape(PoolOutputShape)
        .Gradient(MaxPoolV2Gradient);
const KernelRegistration kMaxPoolV2Kernel = KernelFor<ForwardKernel<false>>("MaxPoolV2");

const OpRegistration kMaxPoolGradV2 =
    WithPadding(WithKsizeInputs(WithPoolInputs("MaxPoolGradV2")).Output("output: T"), kTwoFormats)
        .Attr(T(kRealTypes, "DT_FLOAT"))
        .Shape(MaxPoolGradShape)
        .Gradient(MaxPoolGradV2Gradient);
const KernelRegistration kMaxPoolGradV2Kernel = KernelFor<MaxPoolGradKernel>("MaxPoolGradV2");

const OpRegistration kMaxPoolGradGradV2 =
    WithPadding(WithKsizeInputs(WithPoolInputs("MaxPoolGradGradV2")).Output("output: T"),
                kTwoFormats)
        .Attr(T(kRealTypes))
        .Shape(MaxPoolGradGradShape)
        .Gradient(MaxPoolGradGradV2Gradient);
const KernelRegistration kMaxPoolGradGradV2Kernel =
    KernelFor<MaxPoolGradGradKernel>("MaxPoolGradGradV2");

const OpRegistration kAvgPool =
    WithPadding(WithKsize(OpSpec("AvgPool").Input("value: T").Output("output: T")), kTwoFormats)
        .Attr(T(kFloatTypes))
        .Shape(PoolOutputShape)
        .Gradient(AvgPoolGradient);
const KernelRegistration kAvgPoolKernel = KernelFor<ForwardKernel<true>>("AvgPool");

const OpRegistration kAvgPoolGrad = WithPadding(WithKsize(OpSpec("AvgPoolGrad")
                                                              .Input("orig_input_shape: int32")
                                                              .Input("grad: T")
                                                              .Output("output: T")),
                                                kTwoFormats)
                                        .Attr(T(kFloatTypes))
                                        .Shape(AvgPoolGradShape)
                                        .Gradient(AvgPoolGradGradient);
const KernelRegistration kAvgPoolGradKernel = KernelFor<AvgPoolGradKernel>("AvgPoolGrad");

}  // namespace
}  // namespace millrace

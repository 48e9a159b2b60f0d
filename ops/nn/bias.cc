// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/bias.h"

#include <algorithm>
#include <cstring>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/loops/bias.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

constexpr char kTypes[] =
    "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, uint16, complex128, half, uint32, uint64}";

// The dimension of the channels. The only place that knows which ranks are legal.
StatusOr<int> ChannelDim(absl::string_view name, int rank, bool channels_first) {
  const int least = channels_first ? 3 : 2;
  if (rank < least) {
    return absl::InvalidArgumentError(absl::StrCat(name, " must have at least rank ", least,
                                                   channels_first ? " for NCHW" : "", ", got rank ",
                                                   rank));
  }
  return channels_first ? 1 : rank - 1;
}

// The shape of value + bias; everything known of either.
StatusOr<PartialShape> BiasedShape(const PartialShape& value, const PartialShape& bias,
                                   bool channels_first) {
  if (bias.has_rank() && bias.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("bias must be a vector, got shape ", bias.ToString()));
  }
  if (!value.has_rank()) return PartialShape::Unknown();
  MR_ASSIGN_OR_RETURN(const int dim, ChannelDim("value", value.rank(), channels_first));
  if (!bias.has_rank() || bias.dim(0) < 0) return value;
  if (value.dim(dim) >= 0 && value.dim(dim) != bias.dim(0)) {
    return absl::InvalidArgumentError(absl::StrCat("bias must have ", value.dim(dim),
                                                   " elements, one for each channel of value ",
                                                   value.ToString(), ", got ", bias.dim(0)));
  }
  std::vector<int64_t> dims(value.dims().begin(), value.dims().end());
  dims[static_cast<size_t>(dim)] = bias.dim(0);
  return PartialShape::Make(dims);
}

StatusOr<bool> ChannelsFirst(const tensorflow::NodeDef& node) {
  if (!HasAttr(node, "data_format")) return false;  // BiasAddV1
  MR_ASSIGN_OR_RETURN(const std::string format, GetAttr<std::string>(node, "data_format"));
  return format.substr(0, 2) == "NC";
}

Status BiasAddShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool channels_first, ChannelsFirst(c->node()));
  MR_ASSIGN_OR_RETURN(PartialShape shape, BiasedShape(c->input(0), c->input(1), channels_first));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status BiasAddGradShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool channels_first, ChannelsFirst(c->node()));
  const PartialShape& value = c->input(0);
  int64_t channels = -1;
  if (value.has_rank()) {
    MR_ASSIGN_OR_RETURN(const int dim, ChannelDim("out_backprop", value.rank(), channels_first));
    channels = value.dim(dim);
  }
  c->set_output(0, {channels});
  return absl::OkStatus();
}

// Common to the kernels: their loops and where the channels are.
class BiasKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(channels_first_, ChannelsFirst(c->node()));
    const DType dtype = WithoutRef(c->input_type(0));
    loops_ = math::FindBias(dtype);
    if (loops_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

 protected:
  bool channels_first_ = false;
  int64_t size_ = 0;
  const math::BiasLoops* loops_ = nullptr;
};

// Nanoseconds for one element: bounded by memory.
constexpr double kElementNs = 0.5;

class BiasAddKernel : public BiasKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Shape shape = ctx->input(0).shape();
    const Tensor& bias = ctx->input(1);
    MR_RETURN_IF_ERROR(BiasedShape(shape, bias.shape(), channels_first_).status());
    const char* from = static_cast<const char*>(ctx->input(0).raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, shape));
    if (out->num_elements() == 0) return absl::OkStatus();
    const int64_t channels = bias.num_elements();
    char* to = static_cast<char*>(out->mutable_raw_data());
    const void* added = bias.raw_data();
    if (channels_first_) {
      const int64_t plane = shape.NumElements(2, shape.rank());
      ctx->ParallelFor(shape.NumElements(0, 2), kElementNs * static_cast<double>(plane),
                       [&](int64_t begin, int64_t end) {
                         loops_->add_middle(from, added, to, begin, end, channels, plane);
                       });
      return absl::OkStatus();
    }
    ctx->ParallelFor(shape.num_elements() / channels, kElementNs * static_cast<double>(channels),
                     [&](int64_t begin, int64_t end) {
                       const int64_t at = begin * channels * size_;
                       loops_->add_last(from + at, added, to + at, end - begin, channels);
                     });
    return absl::OkStatus();
  }
};

class BiasAddGradKernel : public BiasKernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& grad = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const int dim, ChannelDim("out_backprop", grad.rank(), channels_first_));
    const int64_t channels = grad.dim(dim);
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({channels}));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (channels == 0) return absl::OkStatus();
    if (grad.num_elements() == 0) {
      const absl::Span<char> bytes = out->mutable_bytes();
      std::memset(bytes.data(), 0, bytes.size());
      return absl::OkStatus();
    }
    const void* from = grad.raw_data();
    const int64_t wide_size = static_cast<int64_t>(loops_->wide_size);
    if (channels_first_) {
      MR_ASSIGN_OR_RETURN(Tensor sums, Scratch(ctx, channels * wide_size));
      void* wide = sums.mutable_raw_data();
      const int64_t batch = grad.dim(0);
      const int64_t plane = grad.shape().NumElements(2, grad.rank());
      ctx->ParallelFor(channels, kElementNs * static_cast<double>(batch * plane),
                       [&](int64_t begin, int64_t end) {
                         loops_->sum_middle(from, batch, channels, plane, begin, end, wide);
                       });
      loops_->finish(wide, 1, channels, out->mutable_raw_data());
      return absl::OkStatus();
    }
    // Blocks of rows are summed apart. Their number depends on the shape alone, so the
    // result does not depend on the threads.
    const int64_t rows = grad.num_elements() / channels;
    const int64_t blocks =
        std::clamp<int64_t>(grad.num_elements() / kBlockElements, 1, std::min<int64_t>(rows, 64));
    MR_ASSIGN_OR_RETURN(Tensor sums, Scratch(ctx, blocks * channels * wide_size));
    char* wide = static_cast<char*>(sums.mutable_raw_data());
    ctx->ParallelFor(blocks, kElementNs * static_cast<double>(grad.num_elements() / blocks),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t b = begin; b < end; ++b) {
                         const int64_t first = rows / blocks * b + std::min(b, rows % blocks);
                         const int64_t count = rows / blocks + (b < rows % blocks ? 1 : 0);
                         loops_->sum_last(static_cast<const char*>(from) + first * channels * size_,
                                          count, channels, wide + b * channels * wide_size);
                       }
                     });
    loops_->finish(wide, blocks, channels, out->mutable_raw_data());
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kBlockElements = 1 << 15;

  static StatusOr<Tensor> Scratch(KernelContext* ctx, int64_t bytes) {
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({bytes}));
    return ctx->AllocateTemp(DT_UINT8, shape);
  }
};

Status BiasAddGradient(GradientContext* c) {
  BiasAddAttrs attrs;
  if (HasAttr(c->node().def(), "data_format")) {
    MR_ASSIGN_OR_RETURN(attrs.data_format, c->GetAttr<std::string>("data_format"));
  }
  const Output g = c->dense_grad();
  c->set_input_grad(0, g);
  c->set_input_grad(1, BiasAddGrad(c->scope(), g, attrs));
  return absl::OkStatus();
}

// The gradient of a sum is the same for all its terms.
Status BiasAddGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const std::string format, c->GetAttr<std::string>("data_format"));
  c->set_input_grad(0, BiasAdd(c->scope(), ZerosLike(c->scope(), c->input(0)), c->dense_grad(),
                               {.data_format = format}));
  return absl::OkStatus();
}

const OpRegistration kBiasAdd = OpSpec("BiasAdd")
                                    .Input("value: T")
                                    .Input("bias: T")
                                    .Output("output: T")
                                    .Attr(kTypes)
                                    .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
                                    .Shape(BiasAddShape)
                                    .Gradient(BiasAddGradient);
const KernelRegistration kBiasAddKernel = KernelFor<BiasAddKernel>("BiasAdd");

const OpRegistration kBiasAddV1 = OpSpec("BiasAddV1")
                                      .Input("value: T")
                                      .Input("bias: T")
                                      .Output("output: T")
                                      .Attr(kTypes)
                                      .Shape(BiasAddShape)
                                      .Gradient(BiasAddGradient);
const KernelRegistration kBiasAddV1Kernel = KernelFor<BiasAddKernel>("BiasAddV1");

const OpRegistration kBiasAddGrad = OpSpec("BiasAddGrad")
                                        .Input("out_backprop: T")
                                        .Output("output: T")
                                        .Attr(kTypes)
                                        .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'")
                                        .Shape(BiasAddGradShape)
                                        .Gradient(BiasAddGradGradient);
const KernelRegistration kBiasAddGradKernel = KernelFor<BiasAddGradKernel>("BiasAddGrad");

}  // namespace
}  // namespace millrace

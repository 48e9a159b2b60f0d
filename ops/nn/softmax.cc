// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/softmax.h"

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/loops/softmax.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// The only place that knows which ranks are legal.
Status CheckLogits(const PartialShape& logits) {
  if (!logits.has_rank() || logits.rank() >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError("logits must have at least 1 dimension, got shape []");
}

Status SoftmaxShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckLogits(c->input(0)));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

template <bool kLog>
class SoftmaxKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType dtype = c->output_type(0);
    const math::SoftmaxLoops* loops = math::FindSoftmax(dtype);
    if (loops == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    loop_ = kLog ? loops->log_softmax : loops->softmax;
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Shape shape = ctx->input(0).shape();
    MR_RETURN_IF_ERROR(CheckLogits(shape));
    const char* x = static_cast<const char*>(ctx->input(0).raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * output, ctx->ForwardInputOrAllocateOutput({0}, 0, shape));
    if (output->num_elements() == 0) return absl::OkStatus();
    char* y = static_cast<char*>(output->mutable_raw_data());
    const int64_t columns = shape.dim(shape.rank() - 1);
    // Measured: about 2 ns for an element.
    ctx->ParallelFor(shape.num_elements() / columns, 2.0 * static_cast<double>(columns),
                     [&](int64_t begin, int64_t end) {
                       const int64_t at = begin * columns * size_;
                       loop_(x + at, y + at, end - begin, columns);
                     });
    return absl::OkStatus();
  }

 private:
  void (*loop_)(const void*, void*, int64_t, int64_t) = nullptr;
  int64_t size_ = 0;
};

// y_i depends on all x_j of its row: dx = (g - sum(g * y)) * y.
Status SoftmaxGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output y = c->output(0), g = c->dense_grad();
  const Output sum = ReduceSum(s, Mul(s, g, y), {-1}, {.keep_dims = true});
  c->set_input_grad(0, Mul(s, Sub(s, g, sum), y));
  return absl::OkStatus();
}

// dx = g - sum(g) * softmax.
Status LogSoftmaxGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output g = c->dense_grad();
  const Output sum = ReduceSum(s, g, {-1}, {.keep_dims = true});
  c->set_input_grad(0, Sub(s, g, Mul(s, sum, Exp(s, c->output(0)))));
  return absl::OkStatus();
}

const OpRegistration kSoftmax = OpSpec("Softmax")
                                    .Input("logits: T")
                                    .Output("softmax: T")
                                    .Attr("T: {half, bfloat16, float, double}")
                                    .Shape(SoftmaxShape)
                                    .Gradient(SoftmaxGradient);
const KernelRegistration kSoftmaxKernel = KernelFor<SoftmaxKernel<false>>("Softmax");

const OpRegistration kLogSoftmax = OpSpec("LogSoftmax")
                                       .Input("logits: T")
                                       .Output("logsoftmax: T")
                                       .Attr("T: {half, bfloat16, float, double}")
                                       .Shape(SoftmaxShape)
                                       .Gradient(LogSoftmaxGradient);
const KernelRegistration kLogSoftmaxKernel = KernelFor<SoftmaxKernel<true>>("LogSoftmax");

}  // namespace
}  // namespace millrace

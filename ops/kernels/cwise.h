// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_CWISE_H_
#define MILLRACE_OPS_KERNELS_CWISE_H_

// Kernels that run a loop of ops/math over all elements, in parallel: of one tensor,
// and of two tensors of one shape (gradient helpers).
//
//   const KernelRegistration kTanhKernel = UnaryKernels<math::UnaryOp::kTanh>("Tanh");
//
// The output takes the input's memory when nobody else needs it.
// Failure: InvalidArgument when the two shapes differ.

#include "core/dtype.h"
#include "core/status.h"
#include "ops/kernels/element_block.h"
#include "ops/math/binary.h"
#include "ops/math/unary.h"
#include "runtime/kernel.h"

namespace millrace {

template <math::UnaryOp kOp>
class UnaryKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType in = WithoutRef(c->input_type(0));
    fn_ = math::FindUnary(kOp, in);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(in)));
    }
    in_size_ = static_cast<int64_t>(DTypeSize(in));
    out_size_ = static_cast<int64_t>(DTypeSize(c->output_type(0)));
    may_forward_ = in == c->output_type(0);
    cost_ns_ = math::UnaryCostNs(kOp, in);
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    const char* from = static_cast<const char*>(x.raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * y, may_forward_
                                        ? ctx->ForwardInputOrAllocateOutput({0}, 0, x.shape())
                                        : ctx->AllocateOutput(0, x.shape()));
    char* to = static_cast<char*>(y->mutable_raw_data());
    ctx->ParallelBlocks(y->num_elements(), kElementBlock, cost_ns_,
                        [&](int64_t begin, int64_t end) {
                          fn_(from + begin * in_size_, to + begin * out_size_, end - begin);
                        });
    return absl::OkStatus();
  }

 private:
  math::UnaryFn fn_ = nullptr;
  int64_t in_size_ = 0;
  int64_t out_size_ = 0;
  bool may_forward_ = false;
  double cost_ns_ = 1;
};

// The two inputs have one shape, dtype and that of the result.
template <math::BinaryOp kOp>
class SameShapeKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType in = WithoutRef(c->input_type(0));
    fn_ = math::FindBinary(kOp, in);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(in)));
    }
    size_ = static_cast<int64_t>(DTypeSize(in));
    cost_ns_ = math::BinaryCostNs(kOp, in);
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    const Tensor& y = ctx->input(1);
    if (x.shape() != y.shape()) {
      return absl::InvalidArgumentError(absl::StrCat("inputs must have the same shape, got ",
                                                     x.shape().ToString(), " and ",
                                                     y.shape().ToString()));
    }
    const char* xs = static_cast<const char*>(x.raw_data());
    const char* ys = static_cast<const char*>(y.raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * z, ctx->ForwardInputOrAllocateOutput({0, 1}, 0, x.shape()));
    char* zs = static_cast<char*>(z->mutable_raw_data());
    ctx->ParallelBlocks(z->num_elements(), kElementBlock, cost_ns_,
                        [&](int64_t begin, int64_t end) {
                          fn_(xs + begin * size_, false, ys + begin * size_, false,
                              zs + begin * size_, end - begin);
                        });
    return absl::OkStatus();
  }

 private:
  math::BinaryFn fn_ = nullptr;
  int64_t size_ = 0;
  double cost_ns_ = 1;
};

// The kernel for every dtype that has a loop.
template <math::UnaryOp kOp>
KernelSpec UnaryKernels(absl::string_view op) {
  KernelSpec spec = KernelFor<UnaryKernel<kOp>>(op);
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (math::FindUnary(kOp, dtype) != nullptr) spec.Type("T", dtype);
  }
  return spec;
}

template <math::BinaryOp kOp>
KernelSpec SameShapeKernels(absl::string_view op) {
  KernelSpec spec = KernelFor<SameShapeKernel<kOp>>(op);
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (math::FindBinary(kOp, dtype) != nullptr) spec.Type("T", dtype);
  }
  return spec;
}

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_CWISE_H_

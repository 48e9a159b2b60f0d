// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_CWISE_H_
#define MILLRACE_OPS_KERNELS_CWISE_H_

// Kernels that run a loop of ops/loops over all elements, in parallel: of one tensor,
// and of two tensors of one shape (gradient helpers).
//
// A family is a table of definitions and loops; each row registers the op and its kernels for every
// dtype that has the loop:
//
//   const UnaryOps kOps = {{UnarySpec("Tanh").Gradient(TanhGradient), math::UnaryOp::kTanh}, ...};
//
// The output takes the input's memory when nobody else needs it.
// Failure: InvalidArgument when the two shapes differ.

#include <initializer_list>
#include <memory>

#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/op_registry.h"
#include "ops/kernels/element_block.h"
#include "ops/loops/binary.h"
#include "ops/loops/unary.h"
#include "runtime/kernel.h"

namespace millrace {

class UnaryKernel : public Kernel {
 public:
  explicit UnaryKernel(math::UnaryOp op) : op_(op) {}

  Status Init(KernelConstruction* c) override {
    const DType in = WithoutRef(c->input_type(0));
    fn_ = math::FindUnary(op_, in);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(in)));
    }
    in_size_ = static_cast<int64_t>(DTypeSize(in));
    out_size_ = static_cast<int64_t>(DTypeSize(c->output_type(0)));
    may_forward_ = in == c->output_type(0);
    cost_ns_ = math::UnaryCostNs(op_, in);
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
  const math::UnaryOp op_;
  math::UnaryFn fn_ = nullptr;
  int64_t in_size_ = 0;
  int64_t out_size_ = 0;
  bool may_forward_ = false;
  double cost_ns_ = 1;
};

// The two inputs have one shape, dtype and that of the result.
class SameShapeKernel : public Kernel {
 public:
  explicit SameShapeKernel(math::BinaryOp op) : op_(op) {}

  Status Init(KernelConstruction* c) override {
    const DType in = WithoutRef(c->input_type(0));
    fn_ = math::FindBinary(op_, in);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(in)));
    }
    size_ = static_cast<int64_t>(DTypeSize(in));
    cost_ns_ = math::BinaryCostNs(op_, in);
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
  const math::BinaryOp op_;
  math::BinaryFn fn_ = nullptr;
  int64_t size_ = 0;
  double cost_ns_ = 1;
};

// A kernel K(loop) of `op` for every dtype T for which find(loop, dtype) is not null. Ops on bools
// have no attr T.
template <typename K, typename Loop, typename Find>
KernelSpec LoopKernels(absl::string_view op, Loop loop, Find find) {
  KernelSpec spec(op, [loop] { return std::make_unique<K>(loop); });
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (find(loop, dtype) == nullptr) continue;
    if (dtype == DT_BOOL && find(loop, DT_FLOAT) == nullptr) continue;
    spec.Type("T", dtype);
  }
  return spec;
}

// Tables, for namespace scope.
class UnaryOps {
 public:
  struct Row {
    OpSpec op;
    math::UnaryOp loop;
  };
  UnaryOps(std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
      OpRegistration{row.op};
      KernelRegistration{LoopKernels<UnaryKernel>(row.op.name(), row.loop, math::FindUnary)};
    }
  }
};

class SameShapeOps {
 public:
  struct Row {
    OpSpec op;
    math::BinaryOp loop;
  };
  SameShapeOps(std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
      OpRegistration{row.op};
      KernelRegistration{LoopKernels<SameShapeKernel>(row.op.name(), row.loop, math::FindBinary)};
    }
  }
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_CWISE_H_

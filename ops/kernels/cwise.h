// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_CWISE_H_
#define MILLRACE_OPS_KERNELS_CWISE_H_

// Kernels that run a loop of ops/loops over all elements, in parallel: of one tensor, of two
// tensors that are broadcast together, and of two tensors of one shape (gradient helpers).
//
// A family is a table of definitions and loops; each row registers the op and its kernels for every
// dtype that has the loop:
//
//   const UnaryOps kOps = {{UnarySpec("Tanh").Gradient(TanhGradient), math::UnaryOp::kTanh}, ...};
//
// The output takes an input's memory when nobody else needs it.
// Failure: InvalidArgument when the two shapes do not fit or the loop refuses an operand (an
// integer divisor 0, a negative integer power).

#include <algorithm>
#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/base/optimization.h"
#include "core/dtype.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/op_registry.h"
#include "ops/kernels/element_block.h"
#include "ops/loops/binary.h"
#include "ops/loops/broadcast.h"
#include "ops/loops/unary.h"
#include "runtime/kernel.h"

namespace millrace {

// What element-wise kernels know of their node: the loop for its dtype, and the sizes of elements.
template <typename Op, typename Fn, Fn (*kFind)(Op, DType), double (*kCostNs)(Op, DType)>
class LoopKernel : public Kernel {
 public:
  using Loop = Op;
  static constexpr auto kFindLoop = kFind;
  explicit LoopKernel(Op op) : op_(op) {}

  Status Init(KernelConstruction* c) override {
    const DType in = WithoutRef(c->input_type(0));
    fn_ = kFind(op_, in);
    in_size_ = ElementSize(in);
    out_size_ = ElementSize(c->output_type(0));
    may_forward_ = in != DT_STRING && in == c->output_type(0);
    cost_ns_ = kCostNs(op_, in);
    return absl::OkStatus();
  }

 protected:
  // Output 0, in the memory of an input when that may be.
  StatusOr<Tensor*> AllocateResult(KernelContext* ctx, const Shape& shape) const {
    if (!may_forward_) return ctx->AllocateOutput(0, shape);
    if (ctx->num_inputs() == 1) return ctx->ForwardInputOrAllocateOutput({0}, 0, shape);
    return ctx->ForwardInputOrAllocateOutput({0, 1}, 0, shape);
  }
  // The same for inputs of the output's shape that are no more than a block of elements: there
  // counting the users of a buffer up and down costs more than the loop. An input is moved out.
  StatusOr<Tensor*> SmallResult(KernelContext* ctx) const {
    for (int i = 0; may_forward_ && i < ctx->num_inputs(); ++i) {
      const Tensor& x = ctx->input(i);
      if (!x.BufferIsUnique() || x.is_reference()) continue;
      ctx->set_output(0, ctx->TakeInput(i));
      return ctx->mutable_output(0);
    }
    return ctx->AllocateOutput(0, ctx->input(0).shape());
  }
  static const char* Bytes(const Tensor& x) { return static_cast<const char*>(x.raw_data()); }
  static char* MutableBytes(Tensor* y) { return static_cast<char*>(y->mutable_raw_data()); }

  const Op op_;
  Fn fn_ = nullptr;
  int64_t in_size_ = 0, out_size_ = 0;  // bytes of an element
  double cost_ns_ = 1;

 private:
  static int64_t ElementSize(DType dtype) {
    return static_cast<int64_t>(dtype == DT_STRING ? sizeof(std::string) : DTypeSize(dtype));
  }

  bool may_forward_ = false;
};

class UnaryKernel
    : public LoopKernel<math::UnaryOp, math::UnaryFn, math::FindUnary, math::UnaryCostNs> {
 public:
  using LoopKernel::LoopKernel;
  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    const char* const from = Bytes(x);
    if (const int64_t n = x.num_elements(); n <= kElementBlock) {
      MR_ASSIGN_OR_RETURN(Tensor * y, SmallResult(ctx));
      fn_(from, MutableBytes(y), n);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * y, AllocateResult(ctx, x.shape()));
    char* const to = MutableBytes(y);
    ctx->ParallelBlocks(y->num_elements(), kElementBlock, cost_ns_,
                        [&](int64_t begin, int64_t end) {
                          fn_(from + begin * in_size_, to + begin * out_size_, end - begin);
                        });
    return absl::OkStatus();
  }
};

// Two tensors of one shape; of any that can be broadcast together when `kBroadcasts`.
template <bool kBroadcasts>
class BinaryKernel
    : public LoopKernel<math::BinaryOp, math::BinaryFn, math::FindBinary, math::BinaryCostNs> {
 public:
  using LoopKernel::LoopKernel;
  Status Compute(KernelContext* ctx) const override {
    const Tensor& x = ctx->input(0);
    const Tensor& y = ctx->input(1);
    const bool same = x.shape() == y.shape();
    if (!same && !kBroadcasts) {
      return InvalidArgument("inputs must have the same shape, got ", x.shape(), " and ",
                             y.shape());
    }
    if (same && x.num_elements() <= kElementBlock) return RunSmall(ctx);
    Shape broadcast;
    if (!same) {
      MR_ASSIGN_OR_RETURN(broadcast, BroadcastShape(x.shape(), y.shape()));
    }
    const Shape& shape = same ? x.shape() : broadcast;
    MR_ASSIGN_OR_RETURN(Tensor * z, AllocateResult(ctx, shape));
    const char* const xs = Bytes(x);
    const char* const ys = Bytes(y);
    char* const zs = MutableBytes(z);
    if (same) {
      return RunBlocks(ctx, z->num_elements(), cost_ns_, [&](int64_t begin, int64_t end) {
        return fn_(xs + begin * in_size_, false, ys + begin * in_size_, false,
                   zs + begin * out_size_, end - begin);
      });
    }
    const BroadcastPlan plan(shape.dims(), {x.shape().dims(), y.shape().dims()});
    // Starting a run costs about 5 ns.
    const double run_size = static_cast<double>(std::max<int64_t>(1, plan.run_size()));
    const bool x_stays = plan.is_scalar_in_run(0), y_stays = plan.is_scalar_in_run(1);
    const auto run_block = [&](int64_t begin, int64_t end) {
      bool legal = true;
      plan.ForEachRun(begin, end, [&](const BroadcastPlan::Run& run) {
        legal = fn_(xs + run.offset[0] * in_size_, x_stays, ys + run.offset[1] * in_size_, y_stays,
                    zs + run.out * out_size_, run.size) &&
                legal;
      });
      return legal;
    };
    return RunBlocks(ctx, plan.num_elements(), cost_ns_ + 5 / run_size, run_block);
  }

 private:
  // Inputs of one shape, no more than a block.
  Status RunSmall(KernelContext* ctx) const {
    const int64_t n = ctx->input(0).num_elements();
    const char* const xs = Bytes(ctx->input(0));
    const char* const ys = Bytes(ctx->input(1));
    MR_ASSIGN_OR_RETURN(Tensor * z, SmallResult(ctx));
    if (ABSL_PREDICT_TRUE(fn_(xs, false, ys, false, MutableBytes(z), n))) return absl::OkStatus();
    return Refused();
  }
  Status Refused() const {
    return InvalidArgument(op_ == math::BinaryOp::kPow
                               ? "Integers to negative integer powers are not allowed"
                               : "Integer division by zero");
  }
  // run(begin, end) returns false when the loop has refused an operand.
  template <typename Run>
  Status RunBlocks(KernelContext* ctx, int64_t n, double cost_ns, const Run& run) const {
    std::atomic<bool> legal{true};  // relaxed: read after the loop has ended
    ctx->ParallelBlocks(n, kElementBlock, cost_ns, [&](int64_t begin, int64_t end) {
      if (!run(begin, end)) legal.store(false, std::memory_order_relaxed);
    });
    return legal.load(std::memory_order_relaxed) ? absl::OkStatus() : Refused();
  }
};

// What the graph knows of two tensors of one shape.
struct SameShapeRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const { return MergeAll(c, 0, 2); }
};

// A table for namespace scope. Each row registers an op and a kernel K(loop) for every dtype that
// has the loop (and that `takes` it, when given). Ops on bools have no attr T.
template <typename K>
struct LoopOps {
  struct Row {
    OpSpec op;
    typename K::Loop loop;
    bool (*takes)(DType dtype) = nullptr;
  };
  LoopOps(std::initializer_list<Row> rows) {
    for (const Row& row : rows) {
      const bool is_logical = K::kFindLoop(row.loop, DT_FLOAT) == nullptr;
      const auto takes = [&](DType dtype) {
        return K::kFindLoop(row.loop, dtype) != nullptr && !(dtype == DT_BOOL && is_logical) &&
               (row.takes == nullptr || row.takes(dtype));
      };
      OpRegistration(OpSpec(row.op).With(KernelFor<K>(row.loop).TypesWith("T", takes)));
    }
  }
};
using UnaryOps = LoopOps<UnaryKernel>;
using BinaryOps = LoopOps<BinaryKernel<true>>;
using SameShapeOps = LoopOps<BinaryKernel<false>>;

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_CWISE_H_

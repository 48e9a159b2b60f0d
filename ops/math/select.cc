// SPDX-License-Identifier: Apache-2.0
#include "ops/math/select.h"

#include <algorithm>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/scalar_like.h"
#include "ops/loops/binary.h"
#include "ops/loops/broadcast.h"
#include "ops/math/broadcast_gradient.h"
#include "ops/math/cwise_binary.h"
#include "ops/rules/elements.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Select --------------------------------------------------------------------------------------

struct SelectRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape &condition = c->input(0), &t = c->input(1), &e = c->input(2);
    StatusOr<PartialShape> merged = t.MergeWith(e);
    if (!merged.ok()) {
      return InvalidArgument("'then' and 'else' must have the same size, but received: ", t,
                             " vs. ", e);
    }
    if (!condition.has_rank() || condition.rank() == 0) return merged;
    if (condition.rank() > 1 || (merged->has_rank() && merged->rank() == 0)) {
      StatusOr<PartialShape> all = merged->MergeWith(condition);
      if (all.ok()) return all;
      return InvalidArgument(
          "the condition must be a scalar, a vector or have the shape of 'then', ", *merged,
          ", got ", condition);
    }
    // A vector chooses rows.
    if (!merged->has_rank()) return merged;
    std::vector<int64_t> dims(merged->dims().begin(), merged->dims().end());
    if (dims[0] == -1) dims[0] = condition.dim(0);
    if (dims[0] == condition.dim(0) || condition.dim(0) == -1) return PartialShape::Make(dims);
    return InvalidArgument("Number of batches of 'then' must match size of 'cond', but saw: ",
                           dims[0], " vs. ", condition.dim(0));
  }
};

// A function of its own: its pointers stay in registers, and elements are chosen without a branch.
template <typename E>
void SelectElements(const bool* condition, const E* t, const E* e, int64_t n, E* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = condition[i] ? t[i] : e[i];
}

// The inputs have the shape of the output.
Status SelectEach(KernelContext* ctx) {
  const bool* flags = ctx->input(0).raw<bool>().data();
  const Tensor& t = ctx->input(1);
  const Tensor& e = ctx->input(2);
  MR_ASSIGN_OR_RETURN(Tensor * out, IsMemcopyable(t.dtype())
                                        ? ctx->ForwardInputOrAllocateOutput({1, 2}, 0)
                                        : ctx->AllocateOutput(0));
  return VisitElements(t.dtype(), [&]<typename E>() {
    const E* ts = ElementsOf<E>(t);
    const E* es = ElementsOf<E>(e);
    E* os = MutableElementsOf<E>(out);
    ctx->ParallelFor(t.num_elements(), 0.5, [=](int64_t begin, int64_t end) {
      SelectElements(flags + begin, ts + begin, es + begin, end - begin, os + begin);
    });
  });
}

Status RunSelect(KernelContext* ctx, const SelectRule&) {
  const Tensor& condition = ctx->input(0);
  const Tensor& t = ctx->input(1);
  const Tensor& e = ctx->input(2);
  const bool* flags = condition.raw<bool>().data();
  if (condition.shape().is_scalar()) return ctx->PassInput(*flags ? 1 : 2);
  if (condition.shape() == t.shape()) return SelectEach(ctx);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const int64_t row = t.shape().NumElements(1, t.rank());
  return VisitElements(t.dtype(), [&]<typename E>() {
    const E* ts = ElementsOf<E>(t);
    const E* es = ElementsOf<E>(e);
    E* os = MutableElementsOf<E>(out);
    const double cost_ns = 5 + 0.3 * static_cast<double>(row);
    ctx->ParallelFor(t.dim(0), cost_ns, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        std::copy_n((flags[i] ? ts : es) + i * row, row, os + i * row);
      }
    });
  });
}

// The gradient goes where the value came from.
std::vector<Output> SelectGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output condition = c->input(0), grad = c->dense_grad(), zeros = ZerosLike(s, grad);
  return {Output(), Select(s, condition, grad, zeros), Select(s, condition, zeros, grad)};
}

const OpRegistration kSelect =
    OpSpec("Select", "condition: bool, t: T, e: T -> output: T", "T: type")
        .With(RuledKernelFor<SelectRule>(RunSelect))
        .Gradient(SelectGradient);

// --- SelectV2 ------------------------------------------------------------------------------------

struct SelectV2Rule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape &condition = c->input(0), &t = c->input(1), &e = c->input(2);
    StatusOr<PartialShape> all = BroadcastShape(t, e);
    if (all.ok()) all = BroadcastShape(condition, *all);
    if (all.ok()) return all;
    return InvalidArgument("condition ", condition, ", then ", t, ", and else ", e,
                           " must be broadcastable");
  }
};

// Of an operand that stays the first element counts for all.
struct Stays {
  bool condition, t, e;
};
template <bool kTStays, bool kEStays, typename E>
void SelectFrom(const bool* condition, const E* t, const E* e, int64_t n, E* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = condition[i] ? t[kTStays ? 0 : i] : e[kEStays ? 0 : i];
}
template <typename E>
void SelectRun(Stays stays, const bool* condition, const E* t, const E* e, int64_t n, E* out) {
  if (stays.condition) {
    const E* const from = *condition ? t : e;
    if (*condition ? stays.t : stays.e) {
      std::fill_n(out, n, *from);
    } else {
      std::copy_n(from, n, out);
    }
  } else if (stays.t && stays.e) {
    SelectFrom<true, true>(condition, t, e, n, out);
  } else if (stays.t) {
    SelectFrom<true, false>(condition, t, e, n, out);
  } else if (stays.e) {
    SelectFrom<false, true>(condition, t, e, n, out);
  } else {
    SelectElements(condition, t, e, n, out);
  }
}

Status RunSelectV2(KernelContext* ctx, const SelectV2Rule&) {
  const Tensor& condition = ctx->input(0);
  const Tensor& t = ctx->input(1);
  const Tensor& e = ctx->input(2);
  const Shape& shape = ctx->output_shape(0);
  const bool* flags = condition.raw<bool>().data();
  if (condition.num_elements() == 1) {
    const int chosen = *flags ? 1 : 2;
    if (ctx->input(chosen).shape() == shape) return ctx->PassInput(chosen);
  }
  if (condition.shape() == shape && t.shape() == shape && e.shape() == shape) {
    return SelectEach(ctx);
  }
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const BroadcastPlan plan(shape.dims(),
                           {condition.shape().dims(), t.shape().dims(), e.shape().dims()});
  const Stays stays = {plan.is_scalar_in_run(0), plan.is_scalar_in_run(1),
                       plan.is_scalar_in_run(2)};
  return VisitElements(t.dtype(), [&]<typename E>() {
    const E* const ts = ElementsOf<E>(t);
    const E* const es = ElementsOf<E>(e);
    E* const os = MutableElementsOf<E>(out);
    ctx->ParallelFor(plan.num_elements(), 0.5, [&](int64_t begin, int64_t end) {
      plan.ForEachRun(begin, end, [&](const BroadcastPlan::Run& run) {
        SelectRun(stays, flags + run.offset[0], ts + run.offset[1], es + run.offset[2], run.size,
                  os + run.out);
      });
    });
  });
}

// The gradient goes where the value came from, summed over the axes that were repeated.
std::vector<Output> SelectV2Gradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output condition = c->input(0), grad = c->dense_grad(), zero = ScalarLike(s, grad, 0);
  const auto sum = [&](Output chosen, int i) {
    return SumToInput(s, chosen, c->input(i), c->output(0));
  };
  return {Output(), sum(SelectV2(s, condition, grad, zero), 1),
          sum(SelectV2(s, condition, zero, grad), 2)};
}

const OpRegistration kSelectV2 =
    OpSpec("SelectV2", "condition: bool, t: T, e: T -> output: T", "T: type")
        .With(RuledKernelFor<SelectV2Rule>(RunSelectV2))
        .Gradient(SelectV2Gradient);

// --- ClipByValue ---------------------------------------------------------------------------------

struct ClipRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& t = c->input(0);
    for (const int i : {1, 2}) {
      const PartialShape& bound = c->input(i);
      if (!bound.has_rank() || bound.rank() == 0 || t.IsCompatibleWith(bound)) continue;
      return InvalidArgument(i == 1 ? "clip_value_min" : "clip_value_max",
                             " must be a scalar or have the shape of t, ", t, ", got ", bound);
    }
    return t;
  }
};

Status RunClipByValue(KernelContext* ctx, const ClipRule&) {
  const DType dtype = ctx->input_dtype(0);
  const math::BinaryFn max = math::FindBinary(math::BinaryOp::kMaximum, dtype);
  const math::BinaryFn min = math::FindBinary(math::BinaryOp::kMinimum, dtype);
  const int64_t size = static_cast<int64_t>(DTypeSize(dtype));
  const char* ts = static_cast<const char*>(ctx->input(0).raw_data());
  const char* lows = static_cast<const char*>(ctx->input(1).raw_data());
  const char* highs = static_cast<const char*>(ctx->input(2).raw_data());
  const bool low_is_scalar = ctx->input(1).shape().is_scalar();
  const bool high_is_scalar = ctx->input(2).shape().is_scalar();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0));
  char* os = static_cast<char*>(out->mutable_raw_data());
  ctx->ParallelFor(out->num_elements(), 0.5, [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 4096;  // both passes in the cache
    for (int64_t from = begin; from < end; from += kBlock) {
      const int64_t n = std::min(kBlock, end - from);
      const int64_t at = from * size;
      min(ts + at, false, high_is_scalar ? highs : highs + at, high_is_scalar, os + at, n);
      max(os + at, false, low_is_scalar ? lows : lows + at, low_is_scalar, os + at, n);
    }
  });
  return absl::OkStatus();
}

// The gradient goes to t where it is within the bounds, else to the bound that replaced it.
std::vector<Output> ClipByValueGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output t = c->input(0), grad = c->dense_grad(), zeros = ZerosLike(s, grad);
  const Output below = Less(s, t, c->input(1)), above = Greater(s, t, c->input(2));
  const auto bound_grad = [&](Output chosen, int i) {
    return SumToInput(s, Select(s, chosen, grad, zeros), c->input(i), t);
  };
  return {Select(s, LogicalOr(s, below, above), zeros, grad), bound_grad(below, 1),
          bound_grad(above, 2)};
}

const OpRegistration kClipByValue =
    OpSpec("ClipByValue", "t: T, clip_value_min: T, clip_value_max: T -> output: T",
           "T: numbertype")
        .With(RuledKernelFor<ClipRule>(RunClipByValue)
                  .TypesWith("T",
                             [](DType dtype) {
                               return math::FindBinary(math::BinaryOp::kMaximum, dtype) != nullptr;
                             }))
        .Gradient(ClipByValueGradient);

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BROADCAST_H_
#define MILLRACE_OPS_LOOPS_BROADCAST_H_

// BroadcastPlan: how to walk operands that are broadcast together by NumPy's rule.
//
// Dimensions are aligned at the right; an operand's dimension of size 1 is repeated.
// The plan drops dimensions of size 1 and joins neighbours that behave alike, so
// that equal shapes, scalars, bias rows and columns become one or two long loops.
//
//   BroadcastPlan plan(out.dims(), {x.dims(), y.dims()});
//   plan.ForEachRun(0, plan.num_elements(), [&](const BroadcastPlan::Run& run) {
//     ... run.size elements from out + run.out; operand k starts at run.offset[k] and either
//     advances with the output or, when plan.is_scalar_in_run(k), stays ...
//   });
//
// Requires: each operand's dimension is 1 or that of the output (the shape rule has checked it).
// Thread-safety: immutable after construction.

#include <array>
#include <cstdint>
#include <initializer_list>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

namespace millrace {

class BroadcastPlan {
 public:
  static constexpr int kMaxOperands = 3;

  struct Run {
    int64_t out = 0;
    std::array<int64_t, kMaxOperands> offset{};
    int64_t size = 0;
  };

  BroadcastPlan(absl::Span<const int64_t> out_dims,
                std::initializer_list<absl::Span<const int64_t>> operands);

  int64_t num_elements() const { return num_elements_; }
  // Elements of the innermost loop.
  int64_t run_size() const { return dims_.empty() ? num_elements_ : dims_.back().size; }
  // Operand k gives one element for a whole run.
  bool is_scalar_in_run(int k) const {
    return !dims_.empty() && dims_.back().stride[static_cast<size_t>(k)] == 0;
  }
  // The whole broadcast is one run.
  bool is_single_run() const { return dims_.size() <= 1; }

  // Calls `body` for pieces that cover the output elements [begin, end), in order.
  void ForEachRun(int64_t begin, int64_t end, absl::FunctionRef<void(const Run&)> body) const;

 private:
  struct Dim {
    int64_t size = 1;
    std::array<int64_t, kMaxOperands> stride{};  // 0 where the operand is repeated
  };

  absl::InlinedVector<Dim, 4> dims_;  // outermost first, all larger than 1
  int64_t num_elements_ = 1;
  int num_operands_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_OPS_LOOPS_BROADCAST_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_REDUCE_H_
#define MILLRACE_OPS_LOOPS_REDUCE_H_

// Reductions along any axes: a plan of independent tasks, and the loops that run them.
//
//   ReducePlan plan(dims, reduced);
//   scratch = plan.num_partials() * fns.partial_size bytes
//   for task in [0, plan.num_tasks()):  fns.run(plan, task, in, scratch)       // in parallel
//   fns.finish(plan, begin, end, scratch, out, count)                          // over outputs, in
//   parallel
//
// A long reduction is cut into pieces whose size depends on the shape alone; the pieces
// are then combined in order. So the result does not depend on the number of threads, and a sum
// of many floats loses less than a single running sum would.
//
// Thread-safety: a plan is immutable; the functions are pure.

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "core/dtype.h"

namespace millrace::math {

enum class ReduceOp { kSum, kMean, kProd, kMax, kMin, kAny, kAll, kHalfSumOfSquares };

class ReducePlan {
 public:
  // reduced[i]: dimension i is reduced. Requires num_elements > 0.
  ReducePlan(absl::Span<const int64_t> dims, absl::Span<const bool> reduced);

  // Elements that remain.
  int64_t num_outputs() const { return outer_kept_ * width_; }
  // Elements that become one.
  int64_t num_reduced() const { return num_reduced_; }
  int64_t num_tasks() const { return outer_kept_ * tiles_ * pieces_; }
  int64_t num_partials() const { return pieces_ * num_outputs(); }
  int64_t elements_per_task() const { return elements_per_task_; }

  // The loops over a plan, which read how the work is cut; in reduce.cc alone.
  struct Loops;

 private:
  struct Dim {
    int64_t size;
    int64_t stride;
  };
  using Dims = absl::InlinedVector<Dim, 4>;
  // The offset of combination `index` of `dims`.
  static int64_t Offset(const Dims& dims, int64_t index);

  Dims kept_;                  // outside of the innermost run, outermost first
  Dims reduced_;               // the same
  bool rows_ = false;          // the innermost run is reduced (else kept)
  int64_t width_ = 1;          // outputs of the innermost run: its length when it is kept
  int64_t row_ = 1;            // elements of the innermost run when it is reduced
  int64_t outer_kept_ = 1;     // combinations of kept_
  int64_t outer_reduced_ = 1;  // combinations of reduced_
  int64_t num_reduced_ = 1;
  // How the work is cut: columns of the innermost kept run into tiles; the sequence of things to be
  // combined (rows_: pieces of each row; else: rows) into pieces.
  int64_t tile_ = 1;
  int64_t tiles_ = 1;
  int64_t row_piece_ = 1;  // rows_: elements of a piece of a row
  int64_t row_pieces_ = 1;
  int64_t piece_ = 1;  // combinations of reduced_ (times row_pieces_) in a piece
  int64_t pieces_ = 1;
  int64_t elements_per_task_ = 1;
};

struct ReduceFns {
  // Computes the partial results of one task.
  void (*run)(const ReducePlan& plan, int64_t task, const void* in, void* partials) = nullptr;
  // Combines the partial results of outputs [begin, end).
  void (*finish)(const ReducePlan& plan, int64_t begin, int64_t end, const void* partials,
                 void* out) = nullptr;
  // The result of reducing nothing, `n` times.
  void (*fill_empty)(void* out, int64_t n) = nullptr;
  size_t partial_size = 0;
};

// All null when there is no loop for `dtype`.
ReduceFns FindReduce(ReduceOp op, DType dtype);

// out[i] = index of the first largest (kMax) or smallest (kMin) of x[i + j * inner], j < n, for
// i < inner. n >= 1.
using ArgReduceFn = void (*)(const void* x, int64_t n, int64_t inner, int64_t* out);
ArgReduceFn FindArgReduce(ReduceOp op, DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_REDUCE_H_

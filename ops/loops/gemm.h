// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_GEMM_H_
#define MILLRACE_OPS_LOOPS_GEMM_H_

// Products of row-major matrices: c[m,n] = op(a)[m,k] * op(b)[k,n].
//
// float runs in oneDNN, which picks the instruction set at run time; it is held to the
// calling thread, and parallel callers run slices of a product (GemmSlices). Where the left operand
// is zero in large part zeros are left out (ops/loops/zero_skipping_gemm.h).
// Other types run in Eigen; integers wrap.
//
// Thread-safety: pure functions. Failure: GemmError when oneDNN refuses.

#include <cstdint>
#include <stdexcept>

#include "core/dtype.h"

namespace millrace::math {

struct GemmError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Operand {
  kPlain,
  kTransposed,
  kAdjoint,  // transposed and conjugated
};

struct GemmShape {
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Operand a = Operand::kPlain;
  Operand b = Operand::kPlain;
};

// Rows [m_begin, m_end) and columns [n_begin, n_end) of c; c has n columns in memory, a and b are
// whole matrices as stored. k = 0 gives zeros.
using GemmFn = void (*)(const GemmShape& shape, const void* a, const void* b, void* c,
                        int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end);

// For half, bfloat16, float, double, int32, int64, complex64, complex128; null for others.
GemmFn FindGemm(DType dtype);

// About how long the whole product takes on one thread.
double GemmCostNs(const GemmShape& shape, DType dtype);

// How a product is cut into slices that run in parallel: by its shape alone, because a library may
// sum in another order for another number of rows or columns. Each slice reads (oneDNN: packs) the
// whole other operand again, so slices are few and wide.
class GemmSlices {
 public:
  // One of `products` products that run at once: more of them need fewer slices each. FindGemm has
  // a loop for `dtype`.
  GemmSlices(const GemmShape& shape, DType dtype, int64_t products = 1);

  int64_t count() const { return count_; }
  // About how long one slice takes.
  double cost_ns() const { return cost_ns_; }
  // Slice i in [0, count()) of c = op(a) * op(b).
  void Run(int64_t i, const void* a, const void* b, void* c) const;
  // Slices [begin, end), with the same bits; faster than one by one where that is possible.
  void RunAll(int64_t begin, int64_t end, const void* a, const void* b, void* c) const;

 private:
  // Slices [first, last) as one product.
  void RunFromTo(int64_t first, int64_t last, const void* a, const void* b, void* c) const;

  GemmShape shape_;
  GemmFn gemm_;
  bool by_rows_;
  int64_t unit_;   // slices begin at multiples of it
  int64_t units_;  // of the side that is cut
  int64_t count_;
  double cost_ns_;
};

// Makes OpenMP, which oneDNN uses, stay on the calling thread. Cheap after the first call of a
// thread.
void UseOneOpenMpThread();

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_GEMM_H_

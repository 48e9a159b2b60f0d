// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_GEMM_H_
#define MILLRACE_OPS_MATH_GEMM_H_

// Products of row-major matrices: c[m,n] = op(a)[m,k] * op(b)[k,n].
//
// float runs in oneDNN, which picks the instruction set at run time; it is held to the
// calling thread, and parallel callers slice the work themselves (GemmSlices).
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

// How a product is cut into `slices` pieces of equal work along its rows or columns.
struct GemmSlices {
  int64_t slices = 1;
  bool by_rows = true;
};
GemmSlices SliceGemm(const GemmShape& shape, int threads);

// About how long the whole product takes on one thread.
double GemmCostNs(const GemmShape& shape, DType dtype);

// Makes OpenMP, which oneDNN uses, stay on the calling thread. Cheap after the first call of a
// thread.
void UseOneOpenMpThread();

}  // namespace millrace::math

#endif  // MILLRACE_OPS_MATH_GEMM_H_

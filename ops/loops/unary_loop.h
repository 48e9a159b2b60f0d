// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_UNARY_LOOP_H_
#define MILLRACE_OPS_LOOPS_UNARY_LOOP_H_

// The loops behind FindUnary(), for the files that instantiate them.
//
// A functor F has `static W Apply(W)` for one element. A functor with a template
// `Block(const W*, W*, int64_t)` computes a block at once (vectorised by Eigen); half and bfloat16
// then go through a buffer of floats.

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "ops/loops/number.h"
#include "ops/loops/unary.h"

namespace millrace::math {

template <typename F, typename T>
void UnaryEach(const void* x_memory, void* y_memory, int64_t n) {
  const T* x = static_cast<const T*>(x_memory);
  T* y = static_cast<T*>(y_memory);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = Store<T>(F::Apply(Load(x[i])));
}

template <typename F, typename T>
void UnaryToBool(const void* x_memory, void* y_memory, int64_t n) {
  const T* x = static_cast<const T*>(x_memory);
  uint8_t* y = static_cast<uint8_t*>(y_memory);
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<uint8_t>(F::Apply(Load(x[i])));
}

template <typename F, typename T>
void UnaryBlocks(const void* x_memory, void* y_memory, int64_t n) {
  const T* x = static_cast<const T*>(x_memory);
  T* y = static_cast<T*>(y_memory);
  if constexpr (kIsNarrowFloat<T>) {
    constexpr int64_t kBlock = 256;
    float buffer[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      for (int64_t i = 0; i < size; ++i) buffer[i] = Load(x[begin + i]);
      F::Block(buffer, buffer, size);
      for (int64_t i = 0; i < size; ++i) y[begin + i] = Store<T>(buffer[i]);
    }
  } else {
    F::Block(x, y, n);
  }
}

// The loop of functor F<W> for the types of a list.
template <template <typename> typename F, typename List>
UnaryFn EachOf(DType dtype) {
  return LoopFor<List>(dtype, []<typename T>() -> UnaryFn { return &UnaryEach<F<Wide<T>>, T>; });
}

// The parts of FindUnary, one per source file.
UnaryFn FindUnaryArithmetic(UnaryOp op, DType dtype);
UnaryFn FindUnaryTranscendental(UnaryOp op, DType dtype);
UnaryFn FindUnaryComplex(UnaryOp op, DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_UNARY_LOOP_H_

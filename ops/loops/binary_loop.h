// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_BINARY_LOOP_H_
#define MILLRACE_OPS_LOOPS_BINARY_LOOP_H_

// The loops behind FindBinary(), for the files that instantiate them.
//
// A functor F has `static R Apply(W a, W b)` on the wide type; a functor that can be
// given illegal operands also has `static bool Legal(W a, W b)`.

#include <cstdint>
#include <type_traits>

#include "core/dtype.h"
#include "ops/loops/binary.h"
#include "ops/loops/number.h"

namespace millrace::math {

template <typename F, typename W>
concept Checked = requires(W a, W b) {
  { F::Legal(a, b) } -> std::same_as<bool>;
};

// T: element type; R: type of the result's elements.
template <typename F, typename T, typename R>
bool BinaryLoop(const void* x_memory, bool x_is_scalar, const void* y_memory, bool y_is_scalar,
                void* z_memory, int64_t n) {
  using W = Wide<T>;
  const T* x = static_cast<const T*>(x_memory);
  const T* y = static_cast<const T*>(y_memory);
  R* z = static_cast<R*>(z_memory);
  const auto apply = [](const W& a, const W& b) -> R {
    if constexpr (std::is_same_v<R, T>) {
      return Store<T>(F::Apply(a, b));
    } else {
      return static_cast<R>(F::Apply(a, b));
    }
  };
  if constexpr (Checked<F, W>) {
    const int64_t x_step = x_is_scalar ? 0 : 1;
    const int64_t y_step = y_is_scalar ? 0 : 1;
    for (int64_t i = 0; i < n; ++i) {
      const W a = Load(x[i * x_step]);
      const W b = Load(y[i * y_step]);
      if (!F::Legal(a, b)) return false;
      z[i] = apply(a, b);
    }
    return true;
  }
  // The three loops hold no dependence between elements: z is x, or y, or apart from both.
  if (x_is_scalar && n > 0) {
    const W a = Load(x[0]);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) z[i] = apply(a, Load(y[i]));
  } else if (y_is_scalar && n > 0) {
    const W b = Load(y[0]);
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) z[i] = apply(Load(x[i]), b);
  } else {
#pragma GCC ivdep
    for (int64_t i = 0; i < n; ++i) z[i] = apply(Load(x[i]), Load(y[i]));
  }
  return true;
}

template <typename F, typename T>
constexpr BinaryFn SameType() {
  return &BinaryLoop<F, T, T>;
}
template <typename F, typename T>
constexpr BinaryFn ToBool() {
  return &BinaryLoop<F, T, bool>;
}

// The loop of functor F<W> for the types of a list.
template <template <typename> typename F, typename List>
BinaryFn SameTypeOf(DType dtype) {
  return LoopFor<List>(dtype, []<typename T> { return SameType<F<Wide<T>>, T>(); });
}

// The parts of FindBinary, one per source file.
BinaryFn FindArithmetic(BinaryOp op, DType dtype);
BinaryFn FindComparison(BinaryOp op, DType dtype);
BinaryFn FindGradient(BinaryOp op, DType dtype);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_BINARY_LOOP_H_

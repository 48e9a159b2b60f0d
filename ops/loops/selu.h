// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_SELU_H_
#define MILLRACE_OPS_LOOPS_SELU_H_

// The constants of SELU (Klambauer et al., "Self-Normalizing Neural Networks", 2017): with them
// activations keep mean 0 and variance 1.

namespace millrace::math {

inline constexpr double kSeluScale = 1.0507009873554804934193349852946;
inline constexpr double kSeluScaleAlpha = 1.7580993408473768599402175208123;

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_SELU_H_

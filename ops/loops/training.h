// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_TRAINING_H_
#define MILLRACE_OPS_LOOPS_TRAINING_H_

// The inner loops of optimizers, one pass over all arrays.
//
// Every loop reads the old values and writes each new one once; new and old may be the
// same memory. E is half, bfloat16, float or double; hyperparameters are given in
// the type in which E computes (float for the narrow ones).
//
// Thread-safety: pure functions; parallel callers pass disjoint ranges.

#include <cstdint>

#include "ops/loops/number.h"

namespace millrace::math {

template <typename E>
struct UpdateArray {
  const E* old_value;
  E* new_value;
};

// var -= alpha * delta
template <typename E>
void GradientDescent(UpdateArray<E> var, const E* delta, Wide<E> alpha, int64_t n);

template <typename W>
struct AdamRates {
  W step;  // lr * sqrt(1 - beta2_power) / (1 - beta1_power)
  W beta1;
  W beta2;
  W epsilon;
};
// m += (g - m) (1 - beta1); v += (g^2 - v) (1 - beta2); var -= step * m / (sqrt(v) + epsilon);
// with nesterov, g (1 - beta1) + beta1 m in place of m.
template <typename E>
void Adam(UpdateArray<E> var, UpdateArray<E> m, UpdateArray<E> v, const E* grad,
          const AdamRates<Wide<E>>& rates, bool nesterov, int64_t n);

// accum += g^2 if update_slots; var -= lr * g / sqrt(accum)
template <typename E>
void Adagrad(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr, bool update_slots,
             int64_t n);

// accum = momentum * accum + g; var -= lr * accum, or with nesterov lr * g + lr * momentum * accum
template <typename E>
void Momentum(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr, Wide<E> momentum,
              bool nesterov, int64_t n);

template <typename W>
struct RmsPropRates {
  W lr;
  W rho;
  W momentum;
  W epsilon;
};
// ms += (g^2 - ms) (1 - rho); mom = momentum * mom + lr * g / sqrt(ms + epsilon); var -= mom
template <typename E>
void RmsProp(UpdateArray<E> var, UpdateArray<E> ms, UpdateArray<E> mom, const E* grad,
             const RmsPropRates<Wide<E>>& rates, int64_t n);

// The same with the variance in place of the mean square: mg += (g - mg) (1 - rho), and
// sqrt(ms - mg^2 + epsilon).
template <typename E>
void CenteredRmsProp(UpdateArray<E> var, UpdateArray<E> mg, UpdateArray<E> ms, UpdateArray<E> mom,
                     const E* grad, const RmsPropRates<Wide<E>>& rates, int64_t n);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_TRAINING_H_

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

template <typename W>
struct FtrlRates {
  W lr;
  W l1;
  W l2;
  W l2_shrinkage;  // 0 without
  W lr_power;      // <= 0; -0.5 takes roots in place of powers
};
// FTRL-Proximal: with p = -lr_power
//   new_accum = accum + g^2
//   linear += g + 2 l2_shrinkage var - (new_accum^p - accum^p) / lr var
//   var = |linear| > l1 ? (sign(linear) l1 - linear) / (new_accum^p / lr + 2 l2) : 0
template <typename E>
void Ftrl(UpdateArray<E> var, UpdateArray<E> accum, UpdateArray<E> linear, const E* grad,
          const FtrlRates<Wide<E>>& rates, int64_t n);

template <typename W>
struct AdadeltaRates {
  W lr;
  W rho;
  W epsilon;
};
// accum = rho accum + (1 - rho) g^2; u = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) g;
// var -= lr u; accum_update = rho accum_update + (1 - rho) u^2
template <typename E>
void Adadelta(UpdateArray<E> var, UpdateArray<E> accum, UpdateArray<E> accum_update, const E* grad,
              const AdadeltaRates<Wide<E>>& rates, int64_t n);

template <typename W>
struct AdaMaxRates {
  W step;  // lr / (1 - beta1_power)
  W beta1;
  W beta2;
  W epsilon;
};
// m += (g - m) (1 - beta1); v = max(beta2 v, |g|); var -= step m / (v + epsilon)
template <typename E>
void AdaMax(UpdateArray<E> var, UpdateArray<E> m, UpdateArray<E> v, const E* grad,
            const AdaMaxRates<Wide<E>>& rates, int64_t n);

// accum += g^2 if update_slots; var -= lr g / (sqrt(accum) + epsilon)
template <typename E>
void AdagradWithEpsilon(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr,
                        Wide<E> epsilon, bool update_slots, int64_t n);

template <typename W>
struct ProximalRates {
  W lr;
  W l1;
  W l2;
};
// A step of gradient descent, pulled towards 0: with p = var - lr g
//   var = sign(p) max(|p| - lr l1, 0) / (1 + lr l2)
template <typename E>
void ProximalGradientDescent(UpdateArray<E> var, const E* grad, const ProximalRates<Wide<E>>& rates,
                             int64_t n);
// The same with lr / sqrt(accum) for lr, after accum += g^2.
template <typename E>
void ProximalAdagrad(UpdateArray<E> var, UpdateArray<E> accum, const E* grad,
                     const ProximalRates<Wide<E>>& rates, int64_t n);

// Dual averaging: sum += g; squares += g^2;
// var = -lr sign(sum) max(|sum| - step l1, 0) / (step lr l2 + sqrt(squares))
template <typename E>
void AdagradDualAveraging(UpdateArray<E> var, UpdateArray<E> sum, UpdateArray<E> squares,
                          const E* grad, const ProximalRates<Wide<E>>& rates, Wide<E> step,
                          int64_t n);

template <typename W>
struct SignRates {
  W lr;
  W scale;  // alpha, logbase
  W sign_decay;
  W beta;
};
// m += (g - m) (1 - beta); with s = sign_decay sign(g) sign(m):
//   var -= lr (scale + s) g
template <typename E>
void AddSign(UpdateArray<E> var, UpdateArray<E> m, const E* grad, const SignRates<Wide<E>>& rates,
             int64_t n);
//   var -= lr exp(scale s) g
template <typename E>
void PowerSign(UpdateArray<E> var, UpdateArray<E> m, const E* grad, const SignRates<Wide<E>>& rates,
               int64_t n);

// accum = momentum accum - lr g; var += accum, or with nesterov momentum accum - lr g
template <typename E>
void KerasMomentum(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr,
                   Wide<E> momentum, bool nesterov, int64_t n);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_TRAINING_H_

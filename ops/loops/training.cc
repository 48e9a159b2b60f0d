// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/training.h"

#include <cmath>

#include "core/dtype.h"

namespace millrace::math {

template <typename E>
void GradientDescent(UpdateArray<E> var, const E* delta, Wide<E> alpha, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    var.new_value[i] = Store<E>(Load(var.old_value[i]) - alpha * Load(delta[i]));
  }
}

template <typename E>
void Adam(UpdateArray<E> var, UpdateArray<E> m, UpdateArray<E> v, const E* grad,
          const AdamRates<Wide<E>>& rates, bool nesterov, int64_t n) {
  using W = Wide<E>;
  const W step = rates.step;
  const W beta1 = rates.beta1;
  const W one_minus_beta1 = W(1) - rates.beta1;
  const W one_minus_beta2 = W(1) - rates.beta2;
  const W epsilon = rates.epsilon;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_m = Load(m.old_value[i]);
    const W old_v = Load(v.old_value[i]);
    const W new_m = old_m + (g - old_m) * one_minus_beta1;
    const W new_v = old_v + (g * g - old_v) * one_minus_beta2;
    const W direction = nesterov ? beta1 * new_m + one_minus_beta1 * g : new_m;
    const W x = Load(var.old_value[i]) - step * direction / (std::sqrt(new_v) + epsilon);
    m.new_value[i] = Store<E>(new_m);
    v.new_value[i] = Store<E>(new_v);
    var.new_value[i] = Store<E>(x);
  }
}

template <typename E>
void Adagrad(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr, bool update_slots,
             int64_t n) {
  using W = Wide<E>;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_a = Load(accum.old_value[i]);
    const W a = update_slots ? old_a + g * g : old_a;
    const W x = Load(var.old_value[i]) - lr * g / std::sqrt(a);
    accum.new_value[i] = Store<E>(a);
    var.new_value[i] = Store<E>(x);
  }
}

template <typename E>
void Momentum(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr, Wide<E> momentum,
              bool nesterov, int64_t n) {
  using W = Wide<E>;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W a = Load(accum.old_value[i]) * momentum + g;
    const W step = nesterov ? lr * g + lr * momentum * a : lr * a;
    const W x = Load(var.old_value[i]) - step;
    accum.new_value[i] = Store<E>(a);
    var.new_value[i] = Store<E>(x);
  }
}

template <typename E>
void RmsProp(UpdateArray<E> var, UpdateArray<E> ms, UpdateArray<E> mom, const E* grad,
             const RmsPropRates<Wide<E>>& rates, int64_t n) {
  using W = Wide<E>;
  const W lr = rates.lr;
  const W one_minus_rho = W(1) - rates.rho;
  const W momentum = rates.momentum;
  const W epsilon = rates.epsilon;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_ms = Load(ms.old_value[i]);
    const W new_ms = old_ms + (g * g - old_ms) * one_minus_rho;
    const W new_mom = Load(mom.old_value[i]) * momentum + lr * g / std::sqrt(new_ms + epsilon);
    const W x = Load(var.old_value[i]) - new_mom;
    ms.new_value[i] = Store<E>(new_ms);
    mom.new_value[i] = Store<E>(new_mom);
    var.new_value[i] = Store<E>(x);
  }
}

template <typename E>
void CenteredRmsProp(UpdateArray<E> var, UpdateArray<E> mg, UpdateArray<E> ms, UpdateArray<E> mom,
                     const E* grad, const RmsPropRates<Wide<E>>& rates, int64_t n) {
  using W = Wide<E>;
  const W lr = rates.lr;
  const W one_minus_rho = W(1) - rates.rho;
  const W momentum = rates.momentum;
  const W epsilon = rates.epsilon;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_ms = Load(ms.old_value[i]);
    const W old_mg = Load(mg.old_value[i]);
    const W new_ms = old_ms + (g * g - old_ms) * one_minus_rho;
    const W new_mg = old_mg + (g - old_mg) * one_minus_rho;
    const W root = std::sqrt(new_ms - new_mg * new_mg + epsilon);
    const W new_mom = Load(mom.old_value[i]) * momentum + lr * g / root;
    const W x = Load(var.old_value[i]) - new_mom;
    ms.new_value[i] = Store<E>(new_ms);
    mg.new_value[i] = Store<E>(new_mg);
    mom.new_value[i] = Store<E>(new_mom);
    var.new_value[i] = Store<E>(x);
  }
}

namespace {

// Power(a) is a^-lr_power.
template <typename E, typename Power>
inline void FtrlWith(UpdateArray<E> var, UpdateArray<E> accum, UpdateArray<E> linear, const E* grad,
                     const FtrlRates<Wide<E>>& rates, int64_t n, Power power) {
  using W = Wide<E>;
  const W one_by_lr = W(1) / rates.lr;
  const W l1 = rates.l1;
  const W two_l2 = W(2) * rates.l2;
  const W two_shrinkage = W(2) * rates.l2_shrinkage;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_a = Load(accum.old_value[i]);
    const W old_x = Load(var.old_value[i]);
    const W new_a = old_a + g * g;
    const W new_power = power(new_a);
    const W sigma = (new_power - power(old_a)) * one_by_lr;
    const W z = Load(linear.old_value[i]) + g + two_shrinkage * old_x - sigma * old_x;
    const W shrunk = (std::copysign(l1, z) - z) / (new_power * one_by_lr + two_l2);
    accum.new_value[i] = Store<E>(new_a);
    linear.new_value[i] = Store<E>(z);
    var.new_value[i] = Store<E>(std::fabs(z) > l1 ? shrunk : W(0));
  }
}

}  // namespace

template <typename E>
void Ftrl(UpdateArray<E> var, UpdateArray<E> accum, UpdateArray<E> linear, const E* grad,
          const FtrlRates<Wide<E>>& rates, int64_t n) {
  using W = Wide<E>;
  if (rates.lr_power == W(-0.5)) {
    FtrlWith<E>(var, accum, linear, grad, rates, n, [](W a) { return std::sqrt(a); });
  } else {
    const W exponent = -rates.lr_power;
    FtrlWith<E>(var, accum, linear, grad, rates, n, [=](W a) { return std::pow(a, exponent); });
  }
}

template <typename E>
void Adadelta(UpdateArray<E> var, UpdateArray<E> accum, UpdateArray<E> accum_update, const E* grad,
              const AdadeltaRates<Wide<E>>& rates, int64_t n) {
  using W = Wide<E>;
  const W lr = rates.lr, rho = rates.rho, one_minus_rho = W(1) - rates.rho, epsilon = rates.epsilon;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_b = Load(accum_update.old_value[i]);
    const W a = Load(accum.old_value[i]) * rho + g * g * one_minus_rho;
    const W u = std::sqrt(old_b + epsilon) / std::sqrt(a + epsilon) * g;
    const W x = Load(var.old_value[i]) - lr * u;
    accum.new_value[i] = Store<E>(a);
    accum_update.new_value[i] = Store<E>(old_b * rho + u * u * one_minus_rho);
    var.new_value[i] = Store<E>(x);
  }
}

template <typename E>
void AdaMax(UpdateArray<E> var, UpdateArray<E> m, UpdateArray<E> v, const E* grad,
            const AdaMaxRates<Wide<E>>& rates, int64_t n) {
  using W = Wide<E>;
  const W step = rates.step, one_minus_beta1 = W(1) - rates.beta1, beta2 = rates.beta2;
  const W epsilon = rates.epsilon;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_m = Load(m.old_value[i]);
    const W decayed = beta2 * Load(v.old_value[i]), size = std::fabs(g);
    const W new_m = old_m + (g - old_m) * one_minus_beta1;
    const W new_v = decayed < size ? size : decayed;
    const W x = Load(var.old_value[i]) - step * (new_m / (new_v + epsilon));
    m.new_value[i] = Store<E>(new_m);
    v.new_value[i] = Store<E>(new_v);
    var.new_value[i] = Store<E>(x);
  }
}

template <typename E>
void AdagradWithEpsilon(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr,
                        Wide<E> epsilon, bool update_slots, int64_t n) {
  using W = Wide<E>;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_a = Load(accum.old_value[i]);
    const W a = update_slots ? old_a + g * g : old_a;
    const W x = Load(var.old_value[i]) - lr * g / (std::sqrt(a) + epsilon);
    accum.new_value[i] = Store<E>(a);
    var.new_value[i] = Store<E>(x);
  }
}

namespace {

// sign(p) max(|p| - pull, 0)
template <typename W>
inline W TowardsZero(W p, W pull) {
  const W left = std::fabs(p) - pull;
  return std::copysign(left > 0 ? left : W(0), p);
}

}  // namespace

template <typename E>
void ProximalGradientDescent(UpdateArray<E> var, const E* grad, const ProximalRates<Wide<E>>& rates,
                             int64_t n) {
  using W = Wide<E>;
  const W lr = rates.lr, pull = rates.lr * rates.l1, divisor = W(1) + rates.lr * rates.l2;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W p = Load(var.old_value[i]) - lr * Load(grad[i]);
    var.new_value[i] = Store<E>(TowardsZero(p, pull) / divisor);
  }
}

template <typename E>
void ProximalAdagrad(UpdateArray<E> var, UpdateArray<E> accum, const E* grad,
                     const ProximalRates<Wide<E>>& rates, int64_t n) {
  using W = Wide<E>;
  const W lr = rates.lr, l1 = rates.l1, l2 = rates.l2;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W a = Load(accum.old_value[i]) + g * g;
    const W rate = lr / std::sqrt(a);
    const W p = Load(var.old_value[i]) - rate * g;
    accum.new_value[i] = Store<E>(a);
    var.new_value[i] = Store<E>(TowardsZero(p, rate * l1) / (W(1) + rate * l2));
  }
}

template <typename E>
void AdagradDualAveraging(UpdateArray<E> var, UpdateArray<E> sum, UpdateArray<E> squares,
                          const E* grad, const ProximalRates<Wide<E>>& rates, Wide<E> step,
                          int64_t n) {
  using W = Wide<E>;
  const W lr = rates.lr, pull = step * rates.l1, l2 = step * rates.lr * rates.l2;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W new_sum = Load(sum.old_value[i]) + g;
    const W new_squares = Load(squares.old_value[i]) + g * g;
    const W x = -lr * TowardsZero(new_sum, pull) / (l2 + std::sqrt(new_squares));
    sum.new_value[i] = Store<E>(new_sum);
    squares.new_value[i] = Store<E>(new_squares);
    var.new_value[i] = Store<E>(x);
  }
}

namespace {

// Factor(s) is what lr g is multiplied by, where s is sign(g) sign(m).
template <typename E, typename Factor>
inline void SignUpdate(UpdateArray<E> var, UpdateArray<E> m, const E* grad,
                       const SignRates<Wide<E>>& rates, int64_t n, Factor factor) {
  using W = Wide<E>;
  const W lr = rates.lr, one_minus_beta = W(1) - rates.beta;
  const auto sign = [](W x) { return W(x > 0 ? 1 : 0) - W(x < 0 ? 1 : 0); };
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W g = Load(grad[i]);
    const W old_m = Load(m.old_value[i]);
    const W new_m = old_m + (g - old_m) * one_minus_beta;
    const W x = Load(var.old_value[i]) - lr * factor(sign(g) * sign(new_m)) * g;
    m.new_value[i] = Store<E>(new_m);
    var.new_value[i] = Store<E>(x);
  }
}

}  // namespace

template <typename E>
void AddSign(UpdateArray<E> var, UpdateArray<E> m, const E* grad, const SignRates<Wide<E>>& rates,
             int64_t n) {
  using W = Wide<E>;
  const W alpha = rates.scale, decay = rates.sign_decay;
  SignUpdate<E>(var, m, grad, rates, n, [=](W s) { return alpha + decay * s; });
}

template <typename E>
void PowerSign(UpdateArray<E> var, UpdateArray<E> m, const E* grad, const SignRates<Wide<E>>& rates,
               int64_t n) {
  using W = Wide<E>;
  // The factor has three values.
  const W power = rates.scale * rates.sign_decay;
  const W same = std::exp(power), opposite = std::exp(-power);
  SignUpdate<E>(var, m, grad, rates, n, [=](W s) {
    return s > 0 ? same : s < 0 ? opposite : W(1);
  });
}

template <typename E>
void KerasMomentum(UpdateArray<E> var, UpdateArray<E> accum, const E* grad, Wide<E> lr,
                   Wide<E> momentum, bool nesterov, int64_t n) {
  using W = Wide<E>;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W step = lr * Load(grad[i]);
    const W a = Load(accum.old_value[i]) * momentum - step;
    const W x = Load(var.old_value[i]) + (nesterov ? a * momentum - step : a);
    accum.new_value[i] = Store<E>(a);
    var.new_value[i] = Store<E>(x);
  }
}

#define MR_INSTANTIATE(E)                                                                          \
  template void GradientDescent<E>(UpdateArray<E>, const E*, Wide<E>, int64_t);                    \
  template void Adam<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, const E*,                  \
                        const AdamRates<Wide<E>>&, bool, int64_t);                                 \
  template void Adagrad<E>(UpdateArray<E>, UpdateArray<E>, const E*, Wide<E>, bool, int64_t);      \
  template void Momentum<E>(UpdateArray<E>, UpdateArray<E>, const E*, Wide<E>, Wide<E>, bool,      \
                            int64_t);                                                              \
  template void RmsProp<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, const E*,               \
                           const RmsPropRates<Wide<E>>&, int64_t);                                 \
  template void CenteredRmsProp<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, \
                                   const E*, const RmsPropRates<Wide<E>>&, int64_t);               \
  template void Ftrl<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, const E*,                  \
                        const FtrlRates<Wide<E>>&, int64_t);                                       \
  template void Adadelta<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, const E*,              \
                            const AdadeltaRates<Wide<E>>&, int64_t);                               \
  template void AdaMax<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, const E*,                \
                          const AdaMaxRates<Wide<E>>&, int64_t);                                   \
  template void AdagradWithEpsilon<E>(UpdateArray<E>, UpdateArray<E>, const E*, Wide<E>, Wide<E>,  \
                                      bool, int64_t);                                              \
  template void ProximalGradientDescent<E>(UpdateArray<E>, const E*,                               \
                                           const ProximalRates<Wide<E>>&, int64_t);                \
  template void ProximalAdagrad<E>(UpdateArray<E>, UpdateArray<E>, const E*,                       \
                                   const ProximalRates<Wide<E>>&, int64_t);                        \
  template void AdagradDualAveraging<E>(UpdateArray<E>, UpdateArray<E>, UpdateArray<E>, const E*,  \
                                        const ProximalRates<Wide<E>>&, Wide<E>, int64_t);          \
  template void AddSign<E>(UpdateArray<E>, UpdateArray<E>, const E*, const SignRates<Wide<E>>&,    \
                           int64_t);                                                               \
  template void PowerSign<E>(UpdateArray<E>, UpdateArray<E>, const E*, const SignRates<Wide<E>>&,  \
                             int64_t);                                                             \
  template void KerasMomentum<E>(UpdateArray<E>, UpdateArray<E>, const E*, Wide<E>, Wide<E>, bool, \
                                 int64_t);
MR_INSTANTIATE(float)
MR_INSTANTIATE(double)
MR_INSTANTIATE(Half)
MR_INSTANTIATE(Bfloat16)
#undef MR_INSTANTIATE

}  // namespace millrace::math

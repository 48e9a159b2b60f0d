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
                                   const E*, const RmsPropRates<Wide<E>>&, int64_t);
MR_INSTANTIATE(float)
MR_INSTANTIATE(double)
MR_INSTANTIATE(Half)
MR_INSTANTIATE(Bfloat16)
#undef MR_INSTANTIATE

}  // namespace millrace::math

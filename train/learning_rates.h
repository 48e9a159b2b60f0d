// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_LEARNING_RATES_H_
#define MILLRACE_TRAIN_LEARNING_RATES_H_

// Learning rates that change as training goes on: Outputs of the global step, for optimizers.
//
//   const Variable step = GlobalStep(model);
//   const Output rate = ExponentialDecay(model, 0.1, step.value,
//                                        {.decay_steps = 1000, .decay_rate = 0.96});
//   AdamOptimizer({.learning_rate = LinearWarmup(model, rate, step.value, {.warmup_steps = 500})})
//       .Minimize(model, loss, {.global_step = step});
//
// The formulas and node names are TensorFlow 1.15's. `learning_rate` is a number or a floating
// scalar (another schedule, a placeholder); `global_step` an integer or floating scalar: the number
// of updates made before this one. The result is a scalar of the dtype of `learning_rate`, float
// for a number. In between everything is computed in double, so that steps beyond 2^24 are told
// apart and a staircase or a restart comes at its very step.
//
// Errors (in the Scope): InvalidArgument for steps to decay over that are not > 0, a learning rate
// or step that is no such scalar, and options out of the ranges below.

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/scope.h"
#include "ops/array/number_or_output.h"

namespace millrace {

struct DecayAttrs {
  int64_t decay_steps = 0;  // > 0
  // Must be given: >= 0; > 0 for ExponentialDecay.
  double decay_rate = std::numeric_limits<double>::quiet_NaN();
  bool staircase = false;  // step / decay_steps is rounded down: the rate stays between two stairs
};
// learning_rate * decay_rate ^ (step / decay_steps)
Output ExponentialDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                        const DecayAttrs& attrs);
// learning_rate * e ^ (-decay_rate * step / decay_steps)
Output NaturalExpDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                       const DecayAttrs& attrs);
// learning_rate / (1 + decay_rate * step / decay_steps)
Output InverseTimeDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                        const DecayAttrs& attrs);

// values[0] up to and with step boundaries[0], then values[1] up to and with boundaries[1], ...;
// the last value after the last boundary. Boundaries increase; there is one value more. float.
// `global_step`: int32 or int64.
Output PiecewiseConstant(ScopeAt at, Output global_step, const std::vector<int64_t>& boundaries,
                         const std::vector<double>& values);

struct PolynomialDecayAttrs {
  int64_t decay_steps = 0;  // > 0
  double end_learning_rate = 0.0001;
  double power = 1;  // >= 0
  // Begin again, over twice, three times, ... as many steps, when the end is reached.
  bool cycle = false;
};
// (learning_rate - end) * (1 - min(step, decay_steps) / decay_steps) ^ power + end
Output PolynomialDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                       const PolynomialDecayAttrs& attrs);

struct CosineDecayAttrs {
  int64_t decay_steps = 0;  // > 0
  double alpha = 0;         // the end, as a part of learning_rate
};
// With f = min(step, decay_steps) / decay_steps:
//   learning_rate * ((1 - alpha) * (1 + cos(pi * f)) / 2 + alpha)      (Loshchilov and Hutter,
//   2016)
Output CosineDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                   const CosineDecayAttrs& attrs);

struct CosineDecayRestartsAttrs {
  int64_t first_decay_steps = 0;  // > 0
  double t_mul = 2;               // each period is so many times as long as the one before; >= 1
  double m_mul = 1;               // and begins with so much of its rate; >= 0
  double alpha = 0;
};
// CosineDecay that begins again at the end of each period.
Output CosineDecayRestarts(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                           const CosineDecayRestartsAttrs& attrs);

struct LinearCosineDecayAttrs {
  int64_t decay_steps = 0;  // > 0
  double num_periods = 0.5;
  double alpha = 0;
  double beta = 0.001;
};
// With f = min(step, decay_steps) / decay_steps:
//   learning_rate * ((alpha + 1 - f) * (1 + cos(2 * pi * num_periods * f)) / 2 + beta)
Output LinearCosineDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                         const LinearCosineDecayAttrs& attrs);

struct LinearWarmupAttrs {
  int64_t warmup_steps = 0;  // > 0
  double start = 0;          // the begin, as a part of learning_rate; in [0, 1]
};
// learning_rate * (start + (1 - start) * min(step, warmup_steps) / warmup_steps): around another
// schedule. (TensorFlow 1.15 has none.)
Output LinearWarmup(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                    const LinearWarmupAttrs& attrs);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_LEARNING_RATES_H_

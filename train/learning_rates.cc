// SPDX-License-Identifier: Apache-2.0
#include "train/learning_rates.h"

#include <cmath>
#include <numbers>
#include <string>

#include "core/dtype.h"
#include "core/status.h"
#include "layers/weight.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"

namespace millrace {
namespace {

// A schedule while it is built: formulas in double, in the scope of its name.
class Schedule {
 public:
  // `kind` is the function, and what the result is called unless WithName says otherwise.
  Schedule(const ScopeAt& at, const char* kind, const char* default_name)
      : outer_(at.scope),
        where_(at.where),
        kind_(kind),
        name_(ReserveName(at.scope, default_name) + "/"),
        inner_(at.scope.WithSubScope(name_)) {}

  ScopeAt in() const { return ScopeAt(inner_, where_); }
  Output Number(double value) const { return Const(in(), value); }

  template <typename... Parts>
  bool Refuse(const Parts&... parts) const {
    inner_.UpdateStatus(InvalidArgument(kind_, ": ", parts...), where_);
    return false;
  }
  bool IsPositive(const char* name, int64_t steps) const {
    return steps > 0 || Refuse(name, " must be > 0, got ", steps);
  }
  bool IsAtLeast(const char* name, double value, double low) const {
    return (value >= low && std::isfinite(value)) ||
           Refuse(name, " must be finite and >= ", low, ", got ", value);
  }
  bool IsFinite(const char* name, double value) const {
    return std::isfinite(value) || Refuse(name, " must be finite, got ", value);
  }

  // Reads the arguments that all schedules have; false for bad ones.
  bool Read(const NumberOrOutput& learning_rate, const Output& global_step) {
    if (!inner_.ok()) return false;
    const Status status = CheckFloatingScalar(inner_, kind_, "learning_rate", learning_rate);
    if (!status.ok()) {
      inner_.UpdateStatus(status, where_);
      return false;
    }
    if (!IsFinite("learning_rate", learning_rate.number()) || !IsStep(global_step)) return false;
    if (learning_rate.is_number()) {
      rate_ = Const({inner_.WithName("learning_rate"), where_}, learning_rate.number());
    } else {
      dtype_ = WithoutRef(learning_rate.output().dtype());
      rate_ = ToDouble(learning_rate.output());
    }
    step_ = ToDouble(global_step);
    return inner_.ok();
  }
  // Is this a global step?
  bool IsStep(const Output& global_step) const {
    if (!global_step.valid()) {
      return Refuse("global_step must be a tensor of the graph, got an invalid Output");
    }
    if (global_step.node()->graph() != inner_.graph()) {
      return Refuse("global_step must be of the same graph, got '", global_step.name(),
                    "' of another");
    }
    const DType dtype = WithoutRef(global_step.dtype());
    if (!IsInteger(dtype) && !IsFloating(dtype)) {
      return Refuse("global_step must be a number, got ", dtype, " from '", global_step.name(),
                    "'");
    }
    const PartialShape shape = inner_.shape(global_step);
    return !shape.has_rank() || shape.rank() == 0 ||
           Refuse("global_step must be a scalar, got shape ", shape, " of '", global_step.name(),
                  "'");
  }

  Output rate() const { return rate_; }
  Output step() const { return step_; }
  // step / steps
  Output Fraction(int64_t steps) const {
    return RealDiv(in(), step_, Number(static_cast<double>(steps)));
  }
  // min(step, steps) / steps
  Output FractionUpToOne(int64_t steps) const { return Minimum(in(), Fraction(steps), Number(1)); }
  // (1 + cos(pi * halves)) / 2
  Output Cosine(Output halves) const {
    const Output cosine = Cos(in(), Mul(in(), Number(std::numbers::pi), halves));
    return Mul(in(), Number(0.5), Add(in(), Number(1), cosine));
  }
  // The value as the schedule's result, with its name.
  Output Result(Output value) const {
    const Scope named = outer_.WithName(name_);
    if (dtype_ == DT_DOUBLE) return Identity({named, where_}, value);
    return Cast({named, where_}, value, dtype_);
  }

 private:
  Output ToDouble(const Output& x) const {
    return WithoutRef(x.dtype()) == DT_DOUBLE ? x : Cast(in(), x, DT_DOUBLE);
  }

  const Scope outer_;
  const std::source_location where_;
  const char* const kind_;
  const std::string name_;  // "a/ExponentialDecay/"
  const Scope inner_;
  DType dtype_ = DT_FLOAT;
  Output rate_, step_;
};

// The argument of decay of a rate: step / decay_steps, in stairs or not.
Output Progress(const Schedule& s, const DecayAttrs& attrs) {
  const Output p = s.Fraction(attrs.decay_steps);
  return attrs.staircase ? Floor(s.in(), p) : p;
}

}  // namespace

Output ExponentialDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                        const DecayAttrs& attrs) {
  Schedule s(at, "ExponentialDecay", "ExponentialDecay");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("decay_steps", attrs.decay_steps)) {
    return Output();
  }
  if (!(attrs.decay_rate > 0 && std::isfinite(attrs.decay_rate))) {
    s.Refuse("decay_rate must be > 0, got ", attrs.decay_rate);
    return Output();
  }
  const Output factor = Pow(s.in(), s.Number(attrs.decay_rate), Progress(s, attrs));
  return s.Result(Mul(s.in(), s.rate(), factor));
}

Output NaturalExpDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                       const DecayAttrs& attrs) {
  Schedule s(at, "NaturalExpDecay", "NaturalExpDecay");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("decay_steps", attrs.decay_steps) ||
      !s.IsAtLeast("decay_rate", attrs.decay_rate, 0)) {
    return Output();
  }
  const Output exponent = Mul(s.in(), s.Number(-attrs.decay_rate), Progress(s, attrs));
  return s.Result(Mul(s.in(), s.rate(), Exp(s.in(), exponent)));
}

Output InverseTimeDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                        const DecayAttrs& attrs) {
  Schedule s(at, "InverseTimeDecay", "InverseTimeDecay");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("decay_steps", attrs.decay_steps) ||
      !s.IsAtLeast("decay_rate", attrs.decay_rate, 0)) {
    return Output();
  }
  const Output slowed = Mul(s.in(), s.Number(attrs.decay_rate), Progress(s, attrs));
  return s.Result(RealDiv(s.in(), s.rate(), Add(s.in(), s.Number(1), slowed)));
}

Output PiecewiseConstant(ScopeAt at, Output global_step, const std::vector<int64_t>& boundaries,
                         const std::vector<double>& values) {
  const Schedule s(at, "PiecewiseConstant", "PiecewiseConstant");
  if (!at.scope.ok() || !s.IsStep(global_step)) return Output();
  const DType dtype = WithoutRef(global_step.dtype());
  bool legal = (dtype == DT_INT32 || dtype == DT_INT64) ||
               s.Refuse("global_step must be int32 or int64, got ", dtype, " from '",
                        global_step.name(), "'");
  legal = legal && (!boundaries.empty() || s.Refuse("there must be boundaries, got none"));
  legal = legal && (values.size() == boundaries.size() + 1 ||
                    s.Refuse("there must be one value more than boundaries, got ", values.size(),
                             " values for ", boundaries.size(), " boundaries"));
  for (size_t i = 1; legal && i < boundaries.size(); ++i) {
    legal = boundaries[i] > boundaries[i - 1] ||
            s.Refuse("boundaries must increase, got ", boundaries[i], " after ", boundaries[i - 1]);
  }
  for (const double value : values) legal = legal && s.IsFinite("values", value);
  if (!legal) return Output();
  const ScopeAt in = s.in();
  const Output step = dtype == DT_INT64 ? global_step : Cast(in, global_step, DT_INT64);
  const Output passed = Greater(in, step, ConstVector<int64_t>(in, boundaries));
  const Output piece = ReduceSum(in, Cast(in, passed, DT_INT32), {0});
  return s.Result(Gather(in, ConstVector<double>(in, values), piece));
}

Output PolynomialDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                       const PolynomialDecayAttrs& attrs) {
  Schedule s(at, "PolynomialDecay", "PolynomialDecay");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("decay_steps", attrs.decay_steps) ||
      !s.IsAtLeast("power", attrs.power, 0) ||
      !s.IsFinite("end_learning_rate", attrs.end_learning_rate)) {
    return Output();
  }
  const ScopeAt in = s.in();
  Output p;
  if (attrs.cycle) {
    // Over the first multiple of decay_steps that is not below the step; over one of them at 0.
    const Output fraction = s.Fraction(attrs.decay_steps);
    p = RealDiv(in, fraction, Maximum(in, Ceil(in, fraction), s.Number(1)));
  } else {
    p = s.FractionUpToOne(attrs.decay_steps);
  }
  const Output end = s.Number(attrs.end_learning_rate);
  const Output rest = Pow(in, Sub(in, s.Number(1), p), s.Number(attrs.power));
  return s.Result(Add(in, Mul(in, Sub(in, s.rate(), end), rest), end));
}

Output CosineDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                   const CosineDecayAttrs& attrs) {
  Schedule s(at, "CosineDecay", "CosineDecay");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("decay_steps", attrs.decay_steps) ||
      !s.IsFinite("alpha", attrs.alpha)) {
    return Output();
  }
  const Output cosine = s.Cosine(s.FractionUpToOne(attrs.decay_steps));
  const Output decayed =
      Add(s.in(), Mul(s.in(), s.Number(1 - attrs.alpha), cosine), s.Number(attrs.alpha));
  return s.Result(Mul(s.in(), s.rate(), decayed));
}

Output CosineDecayRestarts(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                           const CosineDecayRestartsAttrs& attrs) {
  Schedule s(at, "CosineDecayRestarts", "SGDRDecay");
  if (!s.Read(learning_rate, global_step) ||
      !s.IsPositive("first_decay_steps", attrs.first_decay_steps) ||
      !s.IsAtLeast("t_mul", attrs.t_mul, 1) || !s.IsAtLeast("m_mul", attrs.m_mul, 0) ||
      !s.IsFinite("alpha", attrs.alpha)) {
    return Output();
  }
  const ScopeAt in = s.in();
  const Output one = s.Number(1);
  const Output fraction = s.Fraction(attrs.first_decay_steps);  // in first periods
  Output period, within;  // how many periods are over, how much of this one is
  if (attrs.t_mul == 1) {
    period = Floor(in, fraction);
    within = Sub(in, fraction, period);
  } else {
    // Period i begins at (t^i - 1) / (t - 1). The quotient of the logarithms may lie below a whole
    // number that it should be, by far less than this; to the next step it is more.
    constexpr double kRounding = 1e-12;
    const Output t = s.Number(attrs.t_mul), t_minus_one = s.Number(attrs.t_mul - 1);
    const Output power = Add(in, one, Mul(in, fraction, t_minus_one));
    const Output exponent = RealDiv(in, Log(in, power), s.Number(std::log(attrs.t_mul)));
    period = Floor(in, Add(in, exponent, s.Number(kRounding)));
    const Output length = Pow(in, t, period);
    const Output begin = RealDiv(in, Sub(in, length, one), t_minus_one);
    within = RealDiv(in, Sub(in, fraction, begin), length);
  }
  const Output height = Mul(in, Pow(in, s.Number(attrs.m_mul), period), s.Cosine(within));
  const Output decayed = Add(in, Mul(in, s.Number(1 - attrs.alpha), height), s.Number(attrs.alpha));
  return s.Result(Mul(in, s.rate(), decayed));
}

Output LinearCosineDecay(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                         const LinearCosineDecayAttrs& attrs) {
  Schedule s(at, "LinearCosineDecay", "LinearCosineDecay");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("decay_steps", attrs.decay_steps) ||
      !s.IsFinite("num_periods", attrs.num_periods) || !s.IsFinite("alpha", attrs.alpha) ||
      !s.IsFinite("beta", attrs.beta)) {
    return Output();
  }
  const ScopeAt in = s.in();
  const Output fraction = s.FractionUpToOne(attrs.decay_steps);
  const Output linear = Sub(in, s.Number(attrs.alpha + 1), fraction);
  const Output cosine = s.Cosine(Mul(in, s.Number(2 * attrs.num_periods), fraction));
  const Output decayed = Add(in, Mul(in, linear, cosine), s.Number(attrs.beta));
  return s.Result(Mul(in, s.rate(), decayed));
}

Output LinearWarmup(ScopeAt at, const NumberOrOutput& learning_rate, Output global_step,
                    const LinearWarmupAttrs& attrs) {
  Schedule s(at, "LinearWarmup", "LinearWarmup");
  if (!s.Read(learning_rate, global_step) || !s.IsPositive("warmup_steps", attrs.warmup_steps)) {
    return Output();
  }
  if (!(attrs.start >= 0 && attrs.start <= 1)) {
    s.Refuse("start must be in [0, 1], got ", attrs.start);
    return Output();
  }
  const ScopeAt in = s.in();
  const Output risen = Mul(in, s.Number(1 - attrs.start), s.FractionUpToOne(attrs.warmup_steps));
  return s.Result(Mul(in, s.rate(), Add(in, s.Number(attrs.start), risen)));
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/ftrl.h"

#include <utility>

#include "core/status.h"
#include "ops/training/training_ops.h"
#include "train/apply_to.h"

namespace millrace {
namespace {

constexpr char kAccum[] = "accum", kLinear[] = "linear";
constexpr char kRate[] = "learning_rate", kPower[] = "learning_rate_power";
constexpr char kL1[] = "l1_regularization_strength", kL2[] = "l2_regularization_strength";
constexpr char kShrinkage[] = "l2_shrinkage_regularization_strength";

}  // namespace

FtrlOptimizer::FtrlOptimizer(const FtrlOptions& options)
    : Optimizer({.name = options.name,
                 .use_locking = options.use_locking,
                 .hyperparameters = {{kRate, options.learning_rate},
                                     {kL1, options.l1_regularization_strength},
                                     {kL2, options.l2_regularization_strength},
                                     {kShrinkage, options.l2_shrinkage_regularization_strength},
                                     {kPower, options.learning_rate_power}},
                 .slots = {{kAccum, options.initial_accumulator_value}, {kLinear, 0}}}),
      options_(options) {}

Status FtrlOptimizer::CheckOptions(const Scope& scope) const {
  MR_RETURN_IF_ERROR(Optimizer::CheckOptions(scope));
  const std::pair<const char*, double> not_negative[] = {
      {"initial_accumulator_value", options_.initial_accumulator_value},
      {kL1, options_.l1_regularization_strength},
      {kL2, options_.l2_regularization_strength},
      {kShrinkage, options_.l2_shrinkage_regularization_strength},
  };
  for (const auto& [option, value] : not_negative) {
    if (!(value >= 0)) {
      return InvalidArgument("Ftrl '", name(), "': ", option, " must be >= 0, got ", value);
    }
  }
  if (options_.learning_rate_power <= 0) return absl::OkStatus();
  return InvalidArgument("Ftrl '", name(), "': ", kPower, " must be <= 0, got ",
                         options_.learning_rate_power);
}

Operation FtrlOptimizer::ApplyDense(const Scope& scope, const Variable& variable, Output gradient) {
  const Output accum = GetSlot(variable, kAccum).handle, linear = GetSlot(variable, kLinear).handle;
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate(kRate), l1 = rate(kL1), l2 = rate(kL2);
  const ApplyFtrlAttrs attrs = {.use_locking = use_locking()};
  if (options_.l2_shrinkage_regularization_strength > 0) {
    const Output shrinkage = rate(kShrinkage), power = rate(kPower);
    return ApplyTo(variable, ResourceApplyFtrlV2, ApplyFtrlV2, scope, accum, linear, gradient,
                   learning_rate, l1, l2, shrinkage, power, attrs);
  }
  return ApplyTo(variable, ResourceApplyFtrl, ApplyFtrl, scope, accum, linear, gradient,
                 learning_rate, l1, l2, rate(kPower), attrs);
}

Operation FtrlOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                     Output rows) {
  const Output accum = GetSlot(variable, kAccum).handle, linear = GetSlot(variable, kLinear).handle;
  const auto rate = [&](const char* name) { return Hyperparameter(scope, name, variable); };
  const Output learning_rate = rate(kRate), l1 = rate(kL1), l2 = rate(kL2);
  const ApplyFtrlAttrs attrs = {.use_locking = use_locking()};
  if (options_.l2_shrinkage_regularization_strength > 0) {
    const Output shrinkage = rate(kShrinkage), power = rate(kPower);
    return ApplyTo(variable, ResourceSparseApplyFtrlV2, SparseApplyFtrlV2, scope, accum, linear,
                   values, rows, learning_rate, l1, l2, shrinkage, power, attrs);
  }
  return ApplyTo(variable, ResourceSparseApplyFtrl, SparseApplyFtrl, scope, accum, linear, values,
                 rows, learning_rate, l1, l2, rate(kPower), attrs);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "layers/regularizers.h"

#include <cmath>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/status.h"
#include "layers/weight.h"
#include "ops/array/scalar_like.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"

namespace millrace {
namespace {

// May `regularizer` be built for the weights, with this scale?
bool IsLegal(const ScopeAt& at, const char* regularizer, double scale, const Output& weights) {
  if (!at.scope.ok()) return false;
  Status status;
  if (!(scale >= 0 && std::isfinite(scale))) {
    status = InvalidArgument(regularizer, ": scale must be >= 0, got ", scale);
  } else if (!weights.valid()) {
    status = InvalidArgument(regularizer,
                             ": weights must be a tensor of the graph, got an invalid Output");
  } else if (!IsFloating(WithoutRef(weights.dtype()))) {
    status = InvalidArgument(regularizer, ": weights must be floating, got ", weights.dtype(),
                             " from '", weights.name(), "'");
  }
  at.scope.UpdateStatus(status, at.where);
  return status.ok();
}

// scale * penalty(weights): as in TensorFlow's graphs the product has the name of the scope that
// holds its factors. Of half and bfloat16 in float: the sum may be too large for them where the
// product is not.
template <typename Penalty>
Output Scaled(const ScopeAt& at, const char* default_name, double scale, const Output& weights,
              Penalty penalty) {
  const std::string name = ReserveName(at.scope, default_name) + "/";
  const Scope inner = at.scope.WithSubScope(name), named = at.scope.WithName(name);
  const ScopeAt in(inner, at.where), result(named, at.where);
  const DType dtype = WithoutRef(weights.dtype());
  const bool is_narrow = dtype == DT_HALF || dtype == DT_BFLOAT16;
  const Output wide = is_narrow ? Cast(in, weights, DT_FLOAT) : weights;
  const Output factor = ScalarLike({inner.WithName("scale"), at.where}, wide, scale);
  const Output sum = penalty(in, wide);
  return is_narrow ? Cast(result, Mul(in, factor, sum), dtype) : Mul(result, factor, sum);
}

}  // namespace

Regularizer L1(double scale) {
  return [scale](ScopeAt at, Output weights) {
    if (!IsLegal(at, "L1", scale, weights) || scale == 0) return Output();
    return Scaled(at, "l1_regularizer", scale, weights,
                  [](ScopeAt in, const Output& w) { return ReduceSum(in, Abs(in, w)); });
  };
}

Regularizer L2(double scale) {
  return [scale](ScopeAt at, Output weights) {
    if (!IsLegal(at, "L2", scale, weights) || scale == 0) return Output();
    return Scaled(at, "l2_regularizer", scale, weights,
                  [](ScopeAt in, const Output& w) { return L2Loss(in, w); });
  };
}

Regularizer L1L2(double scale_l1, double scale_l2) {
  return [scale_l1, scale_l2](ScopeAt at, Output weights) {
    if (!IsLegal(at, "L1L2", scale_l1, weights) || !IsLegal(at, "L1L2", scale_l2, weights)) {
      return Output();
    }
    const Scope both = at.scope.CompositeScope("l1_l2_regularizer");
    const ScopeAt in(both, at.where);
    const Output l1 = L1(scale_l1)(in, weights), l2 = L2(scale_l2)(in, weights);
    if (!l1.valid()) return l2;
    return l2.valid() ? Add(in, l1, l2) : l1;
  };
}

Output AddRegularizationLoss(ScopeAt at, const Regularizer& regularizer, Output weights) {
  if (!regularizer) return Output();
  const Scope scope = at.scope.BuiltWhereCalled();
  Output loss = regularizer(ScopeAt(scope, at.where), std::move(weights));
  if (loss.valid()) at.scope.AddToNodeCollection(kRegularizationLosses, loss.name());
  return loss;
}

}  // namespace millrace

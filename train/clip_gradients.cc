// SPDX-License-Identifier: Apache-2.0
#include "train/clip_gradients.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "core/dtype.h"
#include "core/status.h"
#include "graph/gradient.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/math/add_n.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/math/select.h"

namespace millrace {
namespace {

using Gradients = std::vector<GradientAndVariable>;

// The tensor that holds a gradient's numbers; null when there is none.
Output* ValuesOf(Gradient* gradient) {
  if (Output* dense = std::get_if<Output>(gradient)) return dense;
  if (IndexedSlices* slices = std::get_if<IndexedSlices>(gradient)) return &slices->values;
  return nullptr;
}

bool Accept(const ScopeAt& at, const Status& status) {
  at.scope.UpdateStatus(status, at.where);
  return at.scope.ok();
}

bool IsNorm(const ScopeAt& at, const char* where, const NumberOrOutput& norm) {
  if (norm.is_number() && !(norm.number() > 0 && std::isfinite(norm.number()))) {
    return Accept(
        at, InvalidArgument(where, ": clip_norm must be finite and > 0, got ", norm.number()));
  }
  return Accept(at, CheckFloatingScalar(at.scope, where, "clip_norm", norm));
}

bool IsTensor(const ScopeAt& at, const char* where, const Output& t) {
  if (!t.valid()) {
    return Accept(at, InvalidArgument(where,
                                      ": t must be a tensor of the graph, got an invalid "
                                      "Output"));
  }
  if (IsFloating(WithoutRef(t.dtype()))) return at.scope.ok();
  return Accept(at, InvalidArgument(where, ": t must be floating, got ", t.dtype(), " from '",
                                    t.name(), "'"));
}

Output CastTo(ScopeAt at, const Output& x, DType dtype) {
  return x.dtype() == dtype ? x : Cast(at, x, dtype);
}

// clip(scope, t) in place of each gradient's numbers t, with nodes beside them. Nothing after an
// error.
template <typename Clip>
Gradients ClipEach(const ScopeAt& at, Gradients gradients, Clip clip) {
  for (GradientAndVariable& pair : gradients) {
    Output* values = ValuesOf(&pair.gradient);
    if (values == nullptr) continue;
    const Scope beside = at.scope.ColocatedWith(values->op());
    *values = clip(ScopeAt(beside, at.where), *values);
  }
  return at.scope.ok() ? gradients : Gradients();
}

}  // namespace

// --- Tensors -------------------------------------------------------------------------------------

Output ClipByNorm(ScopeAt at, Output t, const NumberOrOutput& clip_norm,
                  const std::vector<int64_t>& axes) {
  if (!IsTensor(at, "ClipByNorm", t) || !IsNorm(at, "ClipByNorm", clip_norm)) return Output();
  const Scope scope = at.scope.CompositeScope("clip_by_norm");
  const ScopeAt in(scope, at.where);
  const Output sum = ReduceSum(in, Mul(in, t, t), axes, {.keep_dims = true});
  // A root whose gradient at 0 is not infinite.
  const Output positive = Greater(in, sum, ScalarLike(in, sum, 0));
  const Output safe = Select(in, positive, sum, OnesLike(in, sum));
  const Output norm = Select(in, positive, Sqrt(in, safe), sum);
  const Output clip = ScalarIn(in, clip_norm, t);
  return RealDiv(in, Mul(in, t, clip), Maximum(in, norm, clip));
}

Output ClipByAverageNorm(ScopeAt at, Output t, const NumberOrOutput& clip_norm) {
  if (!IsTensor(at, "ClipByAverageNorm", t) || !IsNorm(at, "ClipByAverageNorm", clip_norm)) {
    return Output();
  }
  const Scope scope = at.scope.CompositeScope("clip_by_average_norm");
  const ScopeAt in(scope, at.where);
  const Output size = Cast(in, Size(in, t, {.out_type = DT_INT64}), WithoutRef(t.dtype()));
  const Output inverse_norm = Rsqrt(in, ReduceSum(in, Mul(in, t, t)));
  const Output clip = ScalarIn(in, clip_norm, t);
  const Output scale = Minimum(in, Mul(in, inverse_norm, size), Reciprocal(in, clip));
  return Mul(in, Mul(in, t, clip), scale);
}

// --- Gradients -----------------------------------------------------------------------------------

Output GlobalNorm(ScopeAt at, const Gradients& gradients) {
  if (!at.scope.ok()) return Output();
  const Scope scope = at.scope.CompositeScope("global_norm");
  std::vector<Output> half_squares;
  DType dtype = DT_INVALID;
  for (const GradientAndVariable& pair : gradients) {
    Gradient gradient = pair.gradient;
    const Output* values = ValuesOf(&gradient);
    if (values == nullptr) continue;
    if (!IsTensor(at, "GlobalNorm", *values)) return Output();
    const Scope beside = scope.ColocatedWith(values->op());
    half_squares.push_back(L2Loss({beside, at.where}, *values));
    const DType own = WithoutRef(values->dtype());
    if (dtype == DT_INVALID) {
      dtype = own;
    } else if (own != dtype) {
      dtype = own == DT_DOUBLE || dtype == DT_DOUBLE ? DT_DOUBLE : DT_FLOAT;
    }
  }
  if (half_squares.empty()) {
    Accept(at,
           InvalidArgument("GlobalNorm: at least one variable must have a gradient, got none for ",
                           gradients.size(), " variable(s)"));
    return Output();
  }
  const ScopeAt in(scope, at.where);
  for (Output& half : half_squares) half = CastTo(in, half, dtype);
  const Output sum = half_squares.size() == 1 ? half_squares[0] : AddN(in, half_squares);
  if (!sum.valid()) return Output();
  return Sqrt({scope.WithName("global_norm"), at.where}, Mul(in, sum, ScalarLike(in, sum, 2)));
}

Gradients ClipByGlobalNorm(ScopeAt at, Gradients gradients, const NumberOrOutput& clip_norm,
                           Output use_norm) {
  bool any = false;
  for (const GradientAndVariable& pair : gradients) any = any || HasGradient(pair.gradient);
  if (!IsNorm(at, "ClipByGlobalNorm", clip_norm)) return {};
  if (!any) return gradients;
  const Output norm = use_norm.valid() ? use_norm : GlobalNorm(at, gradients);
  if (!Accept(at, CheckFloatingScalar(at.scope, "ClipByGlobalNorm", "use_norm", norm))) return {};
  const Scope scope = at.scope.CompositeScope("clip_by_global_norm");
  const ScopeAt in(scope, at.where);
  const Output clip = ScalarIn(in, clip_norm, norm);
  const Output finite = Mul(in, clip, Minimum(in, Reciprocal(in, norm), Reciprocal(in, clip)));
  const Output nan = ScalarLike(in, norm, std::numeric_limits<double>::quiet_NaN());
  const Output scale = Select(in, IsFinite(in, norm), finite, nan);
  return ClipEach(in, std::move(gradients), [&](ScopeAt beside, const Output& t) {
    return Mul(beside, t, CastTo(beside, scale, WithoutRef(t.dtype())));
  });
}

Gradients ClipByNorm(ScopeAt at, Gradients gradients, const NumberOrOutput& clip_norm) {
  if (!IsNorm(at, "ClipByNorm", clip_norm)) return {};
  return ClipEach(at, std::move(gradients), [&](ScopeAt beside, const Output& t) {
    return ClipByNorm(beside, t, clip_norm);
  });
}

Gradients ClipByAverageNorm(ScopeAt at, Gradients gradients, const NumberOrOutput& clip_norm) {
  if (!IsNorm(at, "ClipByAverageNorm", clip_norm)) return {};
  for (GradientAndVariable& pair : gradients) {
    if (HasGradient(pair.gradient)) pair.gradient = DenseGradient(at.scope, pair.gradient);
  }
  return ClipEach(at, std::move(gradients), [&](ScopeAt beside, const Output& t) {
    return ClipByAverageNorm(beside, t, clip_norm);
  });
}

Gradients ClipByValue(ScopeAt at, Gradients gradients, const NumberOrOutput& low,
                      const NumberOrOutput& high) {
  Status status = CheckFloatingScalar(at.scope, "ClipByValue", "low", low);
  if (status.ok()) status = CheckFloatingScalar(at.scope, "ClipByValue", "high", high);
  if (status.ok() && low.is_number() && high.is_number() && !(low.number() <= high.number())) {
    status = InvalidArgument("ClipByValue: low must be <= high, got ", low.number(), " and ",
                             high.number());
  }
  if (!Accept(at, status)) return {};
  const Scope scope = at.scope.CompositeScope("clip_by_value");
  return ClipEach(
      ScopeAt(scope, at.where), std::move(gradients), [&](ScopeAt beside, const Output& t) {
        return ClipByValue(beside, t, ScalarIn(beside, low, t), ScalarIn(beside, high, t));
      });
}

// --- Options -------------------------------------------------------------------------------------

GradientClip ClipByGlobalNorm(NumberOrOutput clip_norm) {
  return [clip_norm](ScopeAt at, Gradients gradients) {
    return ClipByGlobalNorm(at, std::move(gradients), clip_norm);
  };
}
GradientClip ClipByNorm(NumberOrOutput clip_norm) {
  return [clip_norm](ScopeAt at, Gradients gradients) {
    return ClipByNorm(at, std::move(gradients), clip_norm);
  };
}
GradientClip ClipByAverageNorm(NumberOrOutput clip_norm) {
  return [clip_norm](ScopeAt at, Gradients gradients) {
    return ClipByAverageNorm(at, std::move(gradients), clip_norm);
  };
}
GradientClip ClipByValue(NumberOrOutput low, NumberOrOutput high) {
  return [low, high](ScopeAt at, Gradients gradients) {
    return ClipByValue(at, std::move(gradients), low, high);
  };
}

}  // namespace millrace

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
  return WithoutRef(x.dtype()) == dtype ? x : Cast(at, x, dtype);
}

// What norms of a dtype are computed in. The sum of the squares of 65,505 ones is infinite in half,
// and bfloat16 counts elements in steps of 256 up there.
DType NormType(DType dtype) {
  dtype = WithoutRef(dtype);
  return dtype == DT_HALF || dtype == DT_BFLOAT16 ? DT_FLOAT : dtype;
}
Output Wide(ScopeAt at, const Output& x) { return CastTo(at, x, NormType(x.dtype())); }

// clip(scope, t) in place of each gradient's numbers t, with nodes on their devices. Nothing after
// an error.
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
  const Output x = Wide(in, t);
  const Output sum = ReduceSum(in, Mul(in, x, x), axes, {.keep_dims = true});
  // A root whose gradient at 0 is not infinite.
  const Output positive = Greater(in, sum, ScalarLike(in, sum, 0));
  const Output safe = Select(in, positive, sum, OnesLike(in, sum));
  const Output norm = Select(in, positive, Sqrt(in, safe), sum);
  const Output clip = ScalarIn(in, clip_norm, x);
  const Output clipped = RealDiv(in, Mul(in, x, clip), Maximum(in, norm, clip));
  return CastTo(in, clipped, WithoutRef(t.dtype()));
}

Output ClipByAverageNorm(ScopeAt at, Output t, const NumberOrOutput& clip_norm) {
  if (!IsTensor(at, "ClipByAverageNorm", t) || !IsNorm(at, "ClipByAverageNorm", clip_norm)) {
    return Output();
  }
  const Scope scope = at.scope.CompositeScope("clip_by_average_norm");
  const ScopeAt in(scope, at.where);
  const Output x = Wide(in, t);
  const Output size = Cast(in, Size(in, t, {.out_type = DT_INT64}), WithoutRef(x.dtype()));
  const Output sum = ReduceSum(in, Mul(in, x, x));
  // Of 0 the norm of ones: as it is not clipped either way, and its gradient is finite.
  const Output is_zero = Equal(in, sum, ScalarLike(in, sum, 0));
  const Output safe = Select(in, is_zero, OnesLike(in, sum), sum);
  const Output clip = ScalarIn(in, clip_norm, x);
  const Output whole = Reciprocal(in, clip);
  const Output reduced = Minimum(in, Mul(in, Rsqrt(in, safe), size), whole);
  const Output scale = Select(in, is_zero, whole, reduced);
  return CastTo(in, Mul(in, Mul(in, x, clip), scale), WithoutRef(t.dtype()));
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
    const ScopeAt here(beside, at.where);
    half_squares.push_back(L2Loss(here, Wide(here, *values)));
    if (dtype != DT_DOUBLE) dtype = NormType(values->dtype());
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
  const Output given = use_norm.valid() ? use_norm : GlobalNorm(at, gradients);
  if (!Accept(at, CheckFloatingScalar(at.scope, "ClipByGlobalNorm", "use_norm", given))) return {};
  const Scope scope = at.scope.CompositeScope("clip_by_global_norm");
  const ScopeAt in(scope, at.where);
  const Output norm = Wide(in, given);
  const Output clip = ScalarIn(in, clip_norm, norm);
  const Output finite = Mul(in, clip, Minimum(in, Reciprocal(in, norm), Reciprocal(in, clip)));
  const Output nan = ScalarLike(in, norm, std::numeric_limits<double>::quiet_NaN());
  const Output scale = Select(in, IsFinite(in, norm), finite, nan);
  return ClipEach(in, std::move(gradients), [&](ScopeAt beside, const Output& t) {
    // A small scale is 0 in half.
    const Output x = Wide(beside, t);
    const Output clipped = Mul(beside, x, CastTo(beside, scale, WithoutRef(x.dtype())));
    return CastTo(beside, clipped, WithoutRef(t.dtype()));
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
    if (HasGradient(pair.gradient)) pair.gradient = DenseGradient(at, pair.gradient);
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

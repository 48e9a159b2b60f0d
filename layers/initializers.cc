// SPDX-License-Identifier: Apache-2.0
#include "layers/initializers.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/small_tensors.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/array/constant.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/transpose.h"
#include "ops/linalg/qr.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/random/random.h"

namespace millrace {
namespace {

// The deviation of a standard normal distribution without what is 2 or more away from 0.
constexpr double kTruncatedDeviation = 0.87962566103423978;

template <typename... Parts>
Output Fail(const ScopeAt& at, const Parts&... parts) {
  at.scope.UpdateStatus(
      InvalidArgument("Initializer '", absl::StripSuffix(at.scope.prefix(), "/"), "': ", parts...),
      at.where);
  return Output();
}

// The element of a value that is the same everywhere.
StatusOr<Tensor> Element(DType dtype, double value) {
  if (dtype != DT_BOOL) return ScalarTensor(dtype, value);
  if (value == 0 || value == 1) return Tensor::Scalar<bool>(value == 1);
  return InvalidArgument("a number must be a value of the dtype bool, got ", value);
}

Initializer Filled(const char* name, double value) {
  return
      [name = std::string(name), value](ScopeAt at, const InitialShape& of, DType dtype) -> Output {
        const StatusOr<Tensor> element = Element(dtype, value);
        if (!element.ok()) return Fail(at, element.status().message());
        const Shape& shape = of.shape;
        if (shape.is_scalar()) return Const(ScopeAt(at.scope.WithName(name), at.where), *element);
        const Scope scope = at.scope.CompositeScope(name);
        const Output dims =
            Const(ScopeAt(scope.WithName("shape_as_tensor"), at.where), DimsTensor(shape));
        return Fill(ScopeAt(scope, at.where), dims,
                    Const(ScopeAt(scope.WithName("Const"), at.where), *element));
      };
}

bool IsDeviation(double value) { return value >= 0 && std::isfinite(value); }

Output Uniform(const ScopeAt& at, const Shape& shape, DType dtype, double minval, double maxval,
               const RandomAttrs& attrs) {
  if (!IsFloating(dtype)) {
    return Fail(at, "a variable of random values must be floating, got ", dtype);
  }
  if (!(minval <= maxval) || !std::isfinite(maxval - minval)) {
    return Fail(at, "minval must be <= maxval, both finite, got ", minval, " and ", maxval);
  }
  return RandomUniform(at, shape, dtype, minval, maxval, attrs);
}

Output Normal(const ScopeAt& at, bool truncated, const Shape& shape, DType dtype, double mean,
              double stddev, const RandomAttrs& attrs) {
  if (!IsFloating(dtype)) {
    return Fail(at, "a variable of random values must be floating, got ", dtype);
  }
  if (!IsDeviation(stddev)) {
    return Fail(at, "stddev must be >= 0 and finite, got ", stddev);
  }
  return truncated ? TruncatedNormal(at, shape, dtype, mean, stddev, attrs)
                   : RandomNormal(at, shape, dtype, mean, stddev, attrs);
}

struct Fans {
  double in = 1, out = 1;
};
Fans FansOf(const Shape& shape) {
  const int rank = shape.rank();
  if (rank == 0) return {};
  const auto dim = [&](int i) { return static_cast<double>(shape.dim(i)); };
  if (rank == 1) return {dim(0), dim(0)};
  double field = 1;
  for (int i = 0; i < rank - 2; ++i) field *= dim(i);
  return {field * dim(rank - 2), field * dim(rank - 1)};
}

double FanOf(const Shape& shape, FanMode mode) {
  const Fans fans = FansOf(shape);
  switch (mode) {
    case FanMode::kFanIn:
      return fans.in;
    case FanMode::kFanOut:
      return fans.out;
    case FanMode::kFanAverage:
      return (fans.in + fans.out) / 2;
  }
  return 1;
}

}  // namespace

Initializer ZerosInitializer() { return Filled("zeros", 0); }
Initializer OnesInitializer() { return Filled("ones", 1); }
Initializer ConstantInitializer(double value) { return Filled("Const", value); }

Initializer IdentityInitializer(double gain) {
  return [gain](ScopeAt at, const InitialShape& of, DType dtype) -> Output {
    const Shape& shape = of.shape;
    if (!shape.is_matrix()) return Fail(at, "the identity must be a matrix, got shape ", shape);
    const StatusOr<Tensor> on = Element(dtype, gain), off = Element(dtype, 0);
    if (!on.ok() || !off.ok()) {
      return Fail(at, on.ok() ? off.status().message() : on.status().message());
    }
    const Scope scope = at.scope.CompositeScope("eye");
    const ScopeAt in(scope, at.where);
    // Row i of the whole has its one at column i, if it has as many columns, and a part these.
    const int64_t first = of.var_offset[0] - of.var_offset[1];
    const Output rows =
        Range(in, Const(in, first), Const(in, first + shape.dim(0)), Const(in, int64_t{1}));
    const StatusOr<Tensor> depth = ScalarTensor(DT_INT32, shape.dim(1));
    if (!depth.ok()) return Fail(at, depth.status().message());
    return OneHot(in, rows, Const(in, *depth), Const(in, *on), Const(in, *off));
  };
}

Initializer RandomUniformInitializer(const UniformInitializerAttrs& attrs) {
  return [attrs](ScopeAt at, const InitialShape& of, DType dtype) {
    return Uniform(at, of.shape, dtype, attrs.minval, attrs.maxval, {.seed = attrs.seed});
  };
}

Initializer RandomNormalInitializer(const NormalInitializerAttrs& attrs) {
  return [attrs](ScopeAt at, const InitialShape& of, DType dtype) {
    return Normal(at, /*truncated=*/false, of.shape, dtype, attrs.mean, attrs.stddev,
                  {.seed = attrs.seed});
  };
}

Initializer TruncatedNormalInitializer(const NormalInitializerAttrs& attrs) {
  return [attrs](ScopeAt at, const InitialShape& of, DType dtype) {
    return Normal(at, /*truncated=*/true, of.shape, dtype, attrs.mean, attrs.stddev,
                  {.seed = attrs.seed});
  };
}

Initializer VarianceScalingInitializer(const VarianceScalingAttrs& attrs) {
  return [attrs](ScopeAt at, const InitialShape& of, DType dtype) -> Output {
    if (!(attrs.scale > 0) || !std::isfinite(attrs.scale)) {
      return Fail(at, "scale must be > 0 and finite, got ", attrs.scale);
    }
    const double variance = attrs.scale / std::max(1.0, FanOf(of.full_shape, attrs.mode));
    const RandomAttrs seed = {.seed = attrs.seed};
    switch (attrs.distribution) {
      case ScalingDistribution::kTruncatedNormal:
        return Normal(at, /*truncated=*/true, of.shape, dtype, 0,
                      std::sqrt(variance) / kTruncatedDeviation, seed);
      case ScalingDistribution::kNormal:
        return Normal(at, /*truncated=*/false, of.shape, dtype, 0, std::sqrt(variance), seed);
      case ScalingDistribution::kUniform: {
        const double limit = std::sqrt(3 * variance);
        return Uniform(at, of.shape, dtype, -limit, limit, seed);
      }
    }
    return Output();
  };
}

Initializer GlorotUniformInitializer(const SeedAttrs& attrs) {
  return VarianceScalingInitializer({.mode = FanMode::kFanAverage,
                                     .distribution = ScalingDistribution::kUniform,
                                     .seed = attrs.seed});
}
Initializer GlorotNormalInitializer(const SeedAttrs& attrs) {
  return VarianceScalingInitializer({.mode = FanMode::kFanAverage, .seed = attrs.seed});
}
Initializer HeUniformInitializer(const SeedAttrs& attrs) {
  return VarianceScalingInitializer(
      {.scale = 2, .distribution = ScalingDistribution::kUniform, .seed = attrs.seed});
}
Initializer HeNormalInitializer(const SeedAttrs& attrs) {
  return VarianceScalingInitializer({.scale = 2, .seed = attrs.seed});
}
Initializer LecunUniformInitializer(const SeedAttrs& attrs) {
  return VarianceScalingInitializer(
      {.distribution = ScalingDistribution::kUniform, .seed = attrs.seed});
}
Initializer LecunNormalInitializer(const SeedAttrs& attrs) {
  return VarianceScalingInitializer({.seed = attrs.seed});
}

Initializer OrthogonalInitializer(const OrthogonalInitializerAttrs& attrs) {
  return [attrs](ScopeAt at, const InitialShape& of, DType dtype) -> Output {
    const Shape& shape = of.shape;
    if (dtype != DT_FLOAT && dtype != DT_DOUBLE) {
      return Fail(at, "an orthogonal value must be float or double, got ", dtype);
    }
    if (shape.rank() < 2) {
      return Fail(at, "an orthogonal value must have rank >= 2, got shape ", shape);
    }
    const StatusOr<Tensor> gain = ScalarTensor(dtype, attrs.gain);
    if (!gain.ok()) return Fail(at, gain.status().message());
    const int64_t columns = shape.dim(shape.rank() - 1);
    const int64_t rows = shape.NumElements(0, shape.rank() - 1);
    const int64_t larger = std::max(rows, columns), smaller = std::min(rows, columns);
    const StatusOr<Shape> tall = Shape::Make({larger, smaller});
    if (!tall.ok()) return Fail(at, tall.status().message());
    const Output normal = RandomNormal(at, *tall, dtype, 0, 1, {.seed = attrs.seed});
    const QrOutputs qr = Qr(at, normal);
    // The signs of r's diagonal make the distribution of q uniform.
    const Output flat = Reshape(at, qr.r, Const<int64_t>(at, {smaller * smaller}));
    const Output diagonal =
        StridedSlice(at, flat, Const<int64_t>(at, {0}), Const<int64_t>(at, {smaller * smaller}),
                     Const<int64_t>(at, {smaller + 1}));
    Output q = Mul(at, qr.q, Sign(at, diagonal));
    if (rows < columns) q = Transpose(at, q, Const<int32_t>(at, {1, 0}));
    return Mul(at, Const(at, *gain), Reshape(at, q, Const(at, DimsTensor(shape))));
  };
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_INITIALIZERS_H_
#define MILLRACE_LAYERS_INITIALIZERS_H_

// Initialisers: the values that variables begin with.
//
//   Variable w = MakeVariable(scope.WithName("w"), {784, 10}, DT_FLOAT,
//   GlorotUniformInitializer()); Dense(scope, x, 128, {.kernel_initializer =
//   TruncatedNormalInitializer({.stddev = 0.1})});
//
// An Initializer is a function that builds the nodes of a value in a scope. Any callable (ScopeAt,
// const Shape&, DType) -> Output serves; those below give TensorFlow 1.15's distributions, dtypes
// half, bfloat16, float and double (constants: all numbers, and false and true), with its random
// numbers for equal seeds (ops/random/random.h).
//
// Fans: the inputs and outputs of a unit. Of a matrix its rows and columns; of a larger rank the
// last two dimensions, each times the product of those before; of a vector of n both n. Of a part
// of a partitioned variable those of the whole.
//
// Errors (in the scope, when the initialiser is used): InvalidArgument for a deviation, scale or
// limit that gives no distribution, for a dtype and a shape that an initialiser does not take.

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "graph/scope.h"

namespace millrace {

// The shape of a value: of a whole variable, or of a part of one.
struct InitialShape {
  InitialShape(const Shape& whole) : InitialShape(whole, whole) {}  // NOLINT
  // Without an offset the part is at the beginning.
  InitialShape(Shape part, Shape whole, std::vector<int64_t> offset = {})
      : shape(std::move(part)), full_shape(std::move(whole)), var_offset(std::move(offset)) {
    var_offset.resize(static_cast<size_t>(shape.rank()));
  }
  operator const Shape&() const { return shape; }  // NOLINT: for those that do not ask for more
  Shape shape;
  Shape full_shape;
  std::vector<int64_t> var_offset;  // per dimension: where in the whole the part begins
};

using Initializer = std::function<Output(ScopeAt at, const InitialShape& shape, DType dtype)>;

// --- Constants -----------------------------------------------------------------------------------

Initializer ZerosInitializer();
Initializer OnesInitializer();
// Every element `value`, which the dtype must have.
Initializer ConstantInitializer(double value);
// A matrix (any other rank is an error) with `gain` on its diagonal and 0 elsewhere. A part has its
// part of that diagonal.
Initializer IdentityInitializer(double gain = 1);

// --- Random values -------------------------------------------------------------------------------

struct UniformInitializerAttrs {
  double minval = 0;
  double maxval = 1;
  std::optional<int64_t> seed = std::nullopt;
};
// Uniform over [minval, maxval).
Initializer RandomUniformInitializer(const UniformInitializerAttrs& attrs = {});

struct NormalInitializerAttrs {
  double mean = 0;
  double stddev = 1;
  std::optional<int64_t> seed = std::nullopt;
};
Initializer RandomNormalInitializer(const NormalInitializerAttrs& attrs = {});
// The same; what is 2 * stddev or more away from the mean is drawn again. (So the deviation of the
// values is 0.8796 * stddev.)
Initializer TruncatedNormalInitializer(const NormalInitializerAttrs& attrs = {});

enum class FanMode { kFanIn, kFanOut, kFanAverage };
enum class ScalingDistribution {
  kTruncatedNormal,  // with the deviation of the values, after truncation, as asked for
  kNormal,
  kUniform,  // over +-sqrt(3 * variance)
};
struct VarianceScalingAttrs {
  double scale = 1;
  FanMode mode = FanMode::kFanIn;
  ScalingDistribution distribution = ScalingDistribution::kTruncatedNormal;
  std::optional<int64_t> seed = std::nullopt;
};
// Mean 0, variance scale / max(1, fan).
Initializer VarianceScalingInitializer(const VarianceScalingAttrs& attrs = {});

struct SeedAttrs {
  std::optional<int64_t> seed = std::nullopt;
};
// Variance 1 / average fan (Glorot and Bengio, 2010): uniform, what layers take unless told
// otherwise, and truncated normal.
Initializer GlorotUniformInitializer(const SeedAttrs& attrs = {});
Initializer GlorotNormalInitializer(const SeedAttrs& attrs = {});
// Variance 2 / fan in (He et al., 2015).
Initializer HeUniformInitializer(const SeedAttrs& attrs = {});
Initializer HeNormalInitializer(const SeedAttrs& attrs = {});
// Variance 1 / fan in (LeCun et al., 1998).
Initializer LecunUniformInitializer(const SeedAttrs& attrs = {});
Initializer LecunNormalInitializer(const SeedAttrs& attrs = {});

struct OrthogonalInitializerAttrs {
  double gain = 1;
  std::optional<int64_t> seed = std::nullopt;
};
// Of rank 2 or more, float or double. Seen as a matrix whose columns are the last dimension, its
// rows or its columns, whichever are fewer, are orthogonal and have length `gain`; uniformly
// distributed among all such matrices. A part of a variable is orthogonal by itself.
Initializer OrthogonalInitializer(const OrthogonalInitializerAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_INITIALIZERS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RANDOM_RANDOM_H_
#define MILLRACE_OPS_RANDOM_RANDOM_H_

// Random tensors: TensorFlow's generator (Philox), so that equal seeds give equal numbers.
//
// A random op has two seeds: the graph's (Scope::SetGraphSeed) and its own.
//   neither              other numbers in every session
//   graph seed only      the op's own seed is the number of nodes that the graph has so far
//   own seed only        the graph seed counts as 87654321
// The first run of an op in a session gives the first numbers of its row, the next run the next
// ones. The numbers do not depend on how many threads make them.
//
// `shape` is an int32 or int64 vector; InvalidArgument for a negative dimension. Random ops have no
// gradient.

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/node_builder.h"
#include "ops/array/constant.h"

namespace millrace {

// --- Single ops ----------------------------------------------------------------------------------

struct RandomAttrs {
  std::optional<int64_t> seed = std::nullopt;  // the op's own
};

// The values of attrs seed and seed2.
struct SeedPair {
  int64_t seed = 0;
  int64_t seed2 = 0;
};
// By the rule above, for an op that would be made next.
inline SeedPair RandomSeed(const Scope& scope, const std::optional<int64_t>& own_seed) {
  constexpr int64_t kModulus = 2147483647, kDefaultGraphSeed = 87654321;
  const std::optional<int64_t> graph_seed = scope.graph_seed();
  if (!graph_seed && !own_seed) return {};
  const auto reduced = [](int64_t seed) { return (seed % kModulus + kModulus) % kModulus; };
  SeedPair pair = {reduced(graph_seed.value_or(kDefaultGraphSeed)),
                   reduced(own_seed ? *own_seed : int64_t{scope.graph()->num_nodes()})};
  if (pair.seed == 0 && pair.seed2 == 0) pair.seed2 = kModulus;  // two zeros would mean "no seed"
  return pair;
}

// Uniform over [0, 1): half, bfloat16, float or double.
inline Output RandomUniform(ScopeAt at, Output shape, DType dtype, const RandomAttrs& attrs = {}) {
  const SeedPair seeds = RandomSeed(at.scope, attrs.seed);
  return BuildOp(at, "RandomUniform", {shape}, "seed", seeds.seed, "seed2", seeds.seed2, "dtype",
                 dtype);
}
// Uniform over [minval, maxval): int32 or int64 scalars. InvalidArgument unless minval < maxval.
inline Output RandomUniformInt(ScopeAt at, Output shape, Output minval, Output maxval,
                               const RandomAttrs& attrs = {}) {
  const SeedPair seeds = RandomSeed(at.scope, attrs.seed);
  return BuildOp(at, "RandomUniformInt", {shape, minval, maxval}, "seed", seeds.seed, "seed2",
                 seeds.seed2);
}
// Normal with mean 0 and standard deviation 1.
inline Output RandomStandardNormal(ScopeAt at, Output shape, DType dtype,
                                   const RandomAttrs& attrs = {}) {
  const SeedPair seeds = RandomSeed(at.scope, attrs.seed);
  return BuildOp(at, "RandomStandardNormal", {shape}, "seed", seeds.seed, "seed2", seeds.seed2,
                 "dtype", dtype);
}
// The same without values that are 2 or more away from 0.
inline Output TruncatedNormal(ScopeAt at, Output shape, DType dtype,
                              const RandomAttrs& attrs = {}) {
  const SeedPair seeds = RandomSeed(at.scope, attrs.seed);
  return BuildOp(at, "TruncatedNormal", {shape}, "seed", seeds.seed, "seed2", seeds.seed2, "dtype",
                 dtype);
}
// The rows (elements of dimension 0) in random order. Any dtype.
inline Output RandomShuffle(ScopeAt at, Output value, const RandomAttrs& attrs = {}) {
  const SeedPair seeds = RandomSeed(at.scope, attrs.seed);
  return BuildOp(at, "RandomShuffle", {value}, "seed", seeds.seed, "seed2", seeds.seed2);
}

// --- Tensors of given distributions --------------------------------------------------------------
// What models start from: several nodes in a scope of their own, in TensorFlow's order (the op's
// own seed under a graph seed depends on it). float or double.

namespace random_internal {

inline Output ShapeConst(const ScopeAt& at, const Scope& scope, const millrace::Shape& shape) {
  bool fits = true;
  std::vector<int32_t> dims;
  for (int64_t d : shape.dims()) {
    fits = fits && d <= INT32_MAX;
    dims.push_back(static_cast<int32_t>(d));
  }
  const Scope named = scope.WithName("shape");
  return fits ? ConstVector<int32_t>(ScopeAt(named, at.where), dims)
              : ConstVector<int64_t>(ScopeAt(named, at.where), shape.dims());
}
inline Output NumberConst(const ScopeAt& at, const Scope& scope, const char* name, DType dtype,
                          double value) {
  const Scope named = scope.WithName(name);
  return dtype == DT_DOUBLE ? Const(ScopeAt(named, at.where), value)
                            : Const(ScopeAt(named, at.where), static_cast<float>(value));
}
inline Output Binary(const ScopeAt& at, const Scope& scope, const char* op, const char* name,
                     Output a, Output b) {
  const Scope named = scope.WithName(name);
  return NodeBuilder(ScopeAt(named, at.where), op).Input(a).Input(b).Finish().output(0);
}

}  // namespace random_internal

// Normal values, those 2 standard deviations or more away from the mean drawn again.
inline Output TruncatedNormal(ScopeAt at, const millrace::Shape& shape, DType dtype, double mean,
                              double stddev, const RandomAttrs& attrs = {}) {
  const Scope scope = at.scope.CompositeScope("truncated_normal");
  const Output dims = random_internal::ShapeConst(at, scope, shape);
  const Output mean_node = random_internal::NumberConst(at, scope, "mean", dtype, mean);
  const Output stddev_node = random_internal::NumberConst(at, scope, "stddev", dtype, stddev);
  const Output values = TruncatedNormal(ScopeAt(scope, at.where), dims, dtype, attrs);
  const Output scaled = random_internal::Binary(at, scope, "Mul", "mul", values, stddev_node);
  return random_internal::Binary(at, scope, "Add", "add", scaled, mean_node);
}
inline Output RandomNormal(ScopeAt at, const millrace::Shape& shape, DType dtype, double mean,
                           double stddev, const RandomAttrs& attrs = {}) {
  const Scope scope = at.scope.CompositeScope("random_normal");
  const Output dims = random_internal::ShapeConst(at, scope, shape);
  const Output mean_node = random_internal::NumberConst(at, scope, "mean", dtype, mean);
  const Output stddev_node = random_internal::NumberConst(at, scope, "stddev", dtype, stddev);
  const Output values = RandomStandardNormal(ScopeAt(scope, at.where), dims, dtype, attrs);
  const Output scaled = random_internal::Binary(at, scope, "Mul", "mul", values, stddev_node);
  return random_internal::Binary(at, scope, "Add", "add", scaled, mean_node);
}
// Uniform over [minval, maxval).
inline Output RandomUniform(ScopeAt at, const millrace::Shape& shape, DType dtype, double minval,
                            double maxval, const RandomAttrs& attrs = {}) {
  const Scope scope = at.scope.CompositeScope("random_uniform");
  const Output dims = random_internal::ShapeConst(at, scope, shape);
  const Output min_node = random_internal::NumberConst(at, scope, "min", dtype, minval);
  const Output max_node = random_internal::NumberConst(at, scope, "max", dtype, maxval);
  const Output values = RandomUniform(ScopeAt(scope, at.where), dims, dtype, attrs);
  const Output range = random_internal::Binary(at, scope, "Sub", "sub", max_node, min_node);
  const Output scaled = random_internal::Binary(at, scope, "Mul", "mul", values, range);
  return random_internal::Binary(at, scope, "Add", "add", scaled, min_node);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RANDOM_RANDOM_H_

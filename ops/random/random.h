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
#include <initializer_list>
#include <optional>

#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "core/small_tensors.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/math/cwise_binary.h"

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

// A random op: its seeds and `more`, names and values of attrs.
template <typename... Attrs>
Output SeededOp(ScopeAt at, const char* op, std::initializer_list<BuilderInput> inputs,
                const RandomAttrs& attrs, const Attrs&... more) {
  const SeedPair seeds = RandomSeed(at.scope, attrs.seed);
  return BuildOp(at, op, inputs, "seed", seeds.seed, "seed2", seeds.seed2, more...);
}

// Uniform over [0, 1): half, bfloat16, float or double.
inline Output RandomUniform(ScopeAt at, Output shape, DType dtype, const RandomAttrs& attrs = {}) {
  return SeededOp(at, "RandomUniform", {shape}, attrs, "dtype", dtype);
}
// Uniform over [minval, maxval): int32 or int64 scalars. InvalidArgument unless minval < maxval.
inline Output RandomUniformInt(ScopeAt at, const TensorArg& shape, const TensorArg& minval,
                               const TensorArg& maxval, const RandomAttrs& attrs = {}) {
  return SeededOp(at, "RandomUniformInt", {shape, minval, maxval}, attrs);
}
// Normal with mean 0 and standard deviation 1.
inline Output RandomStandardNormal(ScopeAt at, Output shape, DType dtype,
                                   const RandomAttrs& attrs = {}) {
  return SeededOp(at, "RandomStandardNormal", {shape}, attrs, "dtype", dtype);
}
// The same without values that are 2 or more away from 0.
inline Output TruncatedNormal(ScopeAt at, Output shape, DType dtype,
                              const RandomAttrs& attrs = {}) {
  return SeededOp(at, "TruncatedNormal", {shape}, attrs, "dtype", dtype);
}
// The rows (elements of dimension 0) in random order. Any dtype.
inline Output RandomShuffle(ScopeAt at, Output value, const RandomAttrs& attrs = {}) {
  return SeededOp(at, "RandomShuffle", {value}, attrs);
}

struct MultinomialAttrs {
  std::optional<int64_t> seed = std::nullopt;  // the op's own
  DType output_dtype = DT_INT64;               // or int32
};
// Classes drawn by their logits (unnormalised log-probabilities): [batch, num_samples] of logits
// [batch, classes] (half, bfloat16, float or double) and num_samples, an int32 scalar. A class
// whose logit is not finite is never drawn. InvalidArgument for num_samples < 0, for no class, and
// in the step for a row without a finite logit.
inline Output Multinomial(ScopeAt at, Output logits, const TensorArg& num_samples,
                          const MultinomialAttrs& attrs = {}) {
  return SeededOp(at, "Multinomial", {logits, num_samples}, {.seed = attrs.seed}, "output_dtype",
                  attrs.output_dtype);
}

// --- Tensors of given distributions --------------------------------------------------------------
// What models start from: several nodes in a scope of their own, in TensorFlow's order (the op's
// own seed under a graph seed depends on it). half, bfloat16, float or double.

namespace random_internal {

// The values of `op` * b + a; for a range from a to b: * (b - a) + a.
struct Named {
  const char* name;
  double value;
};
inline Output Scaled(ScopeAt at, const char* scope_name, const char* op,
                     const millrace::Shape& shape, DType dtype, Named a, Named b,
                     const RandomAttrs& attrs, bool is_range = false) {
  const Scope s = at.scope.CompositeScope(scope_name);
  const auto number = [&](const Named& n) {
    const StatusOr<Tensor> value = ScalarTensor(dtype, n.value);
    if (value.ok()) return Const(ScopeAt(s.WithName(n.name), at.where), *value);
    at.scope.UpdateStatus(Prefixed(absl::StrCat(op, " '", s.prefix(), n.name, "'"), value.status()),
                          at.where);
    return Output();
  };
  const Output dims = Const(ScopeAt(s.WithName("shape"), at.where), DimsTensor(shape));
  const Output a_node = number(a);
  const Output b_node = number(b);
  const Output values = SeededOp(ScopeAt(s, at.where), op, {dims}, attrs, "dtype", dtype);
  const Output scale =
      is_range ? Sub(ScopeAt(s.WithName("sub"), at.where), b_node, a_node) : b_node;
  const Output scaled = Mul(ScopeAt(s.WithName("mul"), at.where), values, scale);
  return Add(ScopeAt(s.WithName("add"), at.where), scaled, a_node);
}

}  // namespace random_internal

// Normal values, those 2 standard deviations or more away from the mean drawn again.
inline Output TruncatedNormal(ScopeAt at, const millrace::Shape& shape, DType dtype, double mean,
                              double stddev, const RandomAttrs& attrs = {}) {
  return random_internal::Scaled(at, "truncated_normal", "TruncatedNormal", shape, dtype,
                                 {"mean", mean}, {"stddev", stddev}, attrs);
}
inline Output RandomNormal(ScopeAt at, const millrace::Shape& shape, DType dtype, double mean,
                           double stddev, const RandomAttrs& attrs = {}) {
  return random_internal::Scaled(at, "random_normal", "RandomStandardNormal", shape, dtype,
                                 {"mean", mean}, {"stddev", stddev}, attrs);
}
// Uniform over [minval, maxval).
inline Output RandomUniform(ScopeAt at, const millrace::Shape& shape, DType dtype, double minval,
                            double maxval, const RandomAttrs& attrs = {}) {
  return random_internal::Scaled(at, "random_uniform", "RandomUniform", shape, dtype,
                                 {"min", minval}, {"max", maxval}, attrs, /*is_range=*/true);
}

// The same for a shape in braces: RandomNormal(m, {2, 3}). A negative size ends the program.
inline Output TruncatedNormal(ScopeAt at, std::initializer_list<int64_t> shape,
                              DType dtype = DT_FLOAT, double mean = 0, double stddev = 1,
                              const RandomAttrs& attrs = {}) {
  return TruncatedNormal(at, millrace::Shape(shape), dtype, mean, stddev, attrs);
}
inline Output RandomNormal(ScopeAt at, std::initializer_list<int64_t> shape, DType dtype = DT_FLOAT,
                           double mean = 0, double stddev = 1, const RandomAttrs& attrs = {}) {
  return RandomNormal(at, millrace::Shape(shape), dtype, mean, stddev, attrs);
}
inline Output RandomUniform(ScopeAt at, std::initializer_list<int64_t> shape,
                            DType dtype = DT_FLOAT, double minval = 0, double maxval = 1,
                            const RandomAttrs& attrs = {}) {
  return RandomUniform(at, millrace::Shape(shape), dtype, minval, maxval, attrs);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RANDOM_RANDOM_H_

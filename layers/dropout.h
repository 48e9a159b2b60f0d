// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_DROPOUT_H_
#define MILLRACE_LAYERS_DROPOUT_H_

// Dropout: elements set to 0 at random while a model trains.
//
//   output = x * (1 / (1 - rate)) * (uniform >= rate)
//
// An element is dropped with probability `rate`; the others grow so that the mean stays. x is half,
// bfloat16, float or double; the output has its shape and dtype. `rate` is a number, or a scalar
// of x's dtype that may be fed (0 when the model is used). A rate that is known to be 0 adds no
// node at all.
//
// Errors (in the Scope): InvalidArgument for an x that is not floating, a number outside [0, 1) and
// a rate that is no scalar.

#include <optional>

#include "core/dtype.h"
#include "core/shape.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/random/random.h"

namespace millrace {

struct DropoutAttrs {
  // Shape of the random mask, broadcast over x: {batch, 1, 1, channels} drops whole channels. int32
  // or int64 vector; invalid = the shape of x.
  Output noise_shape = {};
  std::optional<int64_t> seed = std::nullopt;
};

// Is x one that can be dropped? `rate` may be invalid.
inline bool MayDrop(ScopeAt at, Output x, Output rate) {
  if (!x.valid()) return false;
  if (!IsFloating(x.dtype())) {
    at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
                              "Dropout: x must be floating, got ", DTypeName(x.dtype()))),
                          at.where);
    return false;
  }
  const PartialShape shape = at.scope.shape(rate);
  if (shape.has_rank() && shape.rank() != 0) {
    at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
                              "Dropout: rate must be a scalar, got shape ", shape.ToString())),
                          at.where);
    return false;
  }
  return true;
}

// The nodes, in the scope of `in`.
inline Output DropoutNodes(ScopeAt in, Output x, Output rate, const DropoutAttrs& attrs) {
  const Output noise_shape = attrs.noise_shape.valid() ? attrs.noise_shape : ShapeOf(in, x);
  const Output uniform = RandomUniform(in, noise_shape, x.dtype(), {.seed = attrs.seed});
  const Output one = ScalarLike(in, x, 1);
  const Output scale = RealDiv(in, one, Sub(in, one, rate));
  const Output mask = Cast(in, GreaterEqual(in, uniform, rate), x.dtype());
  return Mul(in, Mul(in, x, scale), mask);
}

inline Output Dropout(ScopeAt at, Output x, Output rate, const DropoutAttrs& attrs = {}) {
  if (!rate.valid() || !MayDrop(at, x, rate)) return Output();
  const Scope scope = at.scope.CompositeScope("dropout");
  return DropoutNodes(ScopeAt(scope, at.where), x, rate, attrs);
}

inline Output Dropout(ScopeAt at, Output x, double rate, const DropoutAttrs& attrs = {}) {
  if (!(rate >= 0 && rate < 1)) {
    at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
                              "Dropout: rate must be in the range [0, 1), got ", rate)),
                          at.where);
    return Output();
  }
  if (rate == 0) return x;
  if (!MayDrop(at, x, Output())) return Output();
  const Scope scope = at.scope.CompositeScope("dropout");
  const ScopeAt in(scope, at.where);
  return DropoutNodes(in, x, ScalarLike(in, x, rate), attrs);
}

// As Dropout with rate = 1 - keep_prob: how graphs of TensorFlow 1.x say it.
inline Output DropoutByKeepProb(ScopeAt at, Output x, Output keep_prob,
                                const DropoutAttrs& attrs = {}) {
  if (!keep_prob.valid() || !MayDrop(at, x, keep_prob)) return Output();
  const Scope scope = at.scope.CompositeScope("dropout");
  const ScopeAt in(scope, at.where);
  return DropoutNodes(in, x, Sub(in, ScalarLike(in, x, 1), keep_prob), attrs);
}
inline Output DropoutByKeepProb(ScopeAt at, Output x, double keep_prob,
                                const DropoutAttrs& attrs = {}) {
  if (!(keep_prob > 0 && keep_prob <= 1)) {
    at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
                              "Dropout: keep_prob must be in the range (0, 1], got ", keep_prob)),
                          at.where);
    return Output();
  }
  return Dropout(at, x, 1 - keep_prob, attrs);
}

}  // namespace millrace

#endif  // MILLRACE_LAYERS_DROPOUT_H_

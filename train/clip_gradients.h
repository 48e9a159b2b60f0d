// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_CLIP_GRADIENTS_H_
#define MILLRACE_TRAIN_CLIP_GRADIENTS_H_

// Gradient clipping: gradients that are too large are made smaller before they are applied.
//
//   AdamOptimizer().Minimize(model, loss, {.clip = ClipByGlobalNorm(1.0)});
//
// or step by step, to look at the norm:
//
//   auto gradients = optimizer.ComputeGradients(model, loss);
//   const Output norm = GlobalNorm(model, gradients);
//   optimizer.ApplyGradients(model, ClipByGlobalNorm(model, gradients, 1.0, norm));
//
// Formulas and scopes are TensorFlow 1.15's. Variables without a gradient stay without. Gradients
// that are IndexedSlices stay so: their values are clipped as they are, rows that repeat each on
// its own. (ClipByAverageNorm alone makes them dense, as TensorFlow does.) Nodes of a gradient
// stand on its device.
//
// Gradients of half and bfloat16 are clipped in float and then rounded. (TensorFlow's squares of
// half overflow: for a norm above 256 its ClipByNorm gives zeros and its ClipByGlobalNorm NaN; its
// ClipByAverageNorm takes float alone. In float both do so for norms above 1.8e19, here, too.)
//
// `clip_norm` is a number > 0 or a floating scalar of the graph. Errors go into the Scope:
// InvalidArgument for other ones, and an empty list comes back.

#include <vector>

#include "graph/scope.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

// The root of the sum of the squares of all elements of all gradients; of slices: of their values.
// A scalar: double when one of them is, else float. InvalidArgument when there are none.
Output GlobalNorm(ScopeAt at, const std::vector<GradientAndVariable>& gradients);

// All gradients * clip_norm / max(norm, clip_norm), where norm is `use_norm` or, when that is
// invalid, GlobalNorm: their direction stays. All of them are NaN when norm is infinite or NaN, so
// that a guard sees it.
std::vector<GradientAndVariable> ClipByGlobalNorm(ScopeAt at,
                                                  std::vector<GradientAndVariable> gradients,
                                                  const NumberOrOutput& clip_norm,
                                                  Output use_norm = Output());

// Each gradient * clip_norm / max(its norm, clip_norm).
std::vector<GradientAndVariable> ClipByNorm(ScopeAt at, std::vector<GradientAndVariable> gradients,
                                            const NumberOrOutput& clip_norm);

// Each gradient, so that its norm divided by its number of elements is at most clip_norm.
std::vector<GradientAndVariable> ClipByAverageNorm(ScopeAt at,
                                                   std::vector<GradientAndVariable> gradients,
                                                   const NumberOrOutput& clip_norm);

// Each element, into [low, high] (numbers: low <= high).
std::vector<GradientAndVariable> ClipByValue(ScopeAt at, std::vector<GradientAndVariable> gradients,
                                             const NumberOrOutput& low, const NumberOrOutput& high);

// The same as MinimizeOptions::clip.
GradientClip ClipByGlobalNorm(NumberOrOutput clip_norm);
GradientClip ClipByNorm(NumberOrOutput clip_norm);
GradientClip ClipByAverageNorm(NumberOrOutput clip_norm);
GradientClip ClipByValue(NumberOrOutput low, NumberOrOutput high);

// For any floating tensor; differentiable. `axes`: the norm of each part along them, {} = of all.
Output ClipByNorm(ScopeAt at, Output t, const NumberOrOutput& clip_norm,
                  const std::vector<int64_t>& axes = {});
Output ClipByAverageNorm(ScopeAt at, Output t, const NumberOrOutput& clip_norm);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_CLIP_GRADIENTS_H_

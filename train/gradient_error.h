// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_GRADIENT_ERROR_H_
#define MILLRACE_TRAIN_GRADIENT_ERROR_H_

// GradientError: are the gradients of an op, or of a piece of a graph, those of its values?
//
//   Status right = CheckGradients(
//       [](const Scope& s, const std::vector<Output>& in) { return Shrink(s, in[0]); },
//       {Tensor::Of<double>({2, 0.2, -0.1, -3})});
//
// Each element of each input of a floating or complex type is moved by a step to both sides. The
// central difference of a weighted sum of all outputs must be the gradient that AddGradients gives
// of this sum. Real and imaginary parts are moved one after the other. The weights are drawn from a
// fixed seed, of either sign, their absolute values between 0.5 and 1.5: no element of an output is
// left out, and no two mistakes cancel. Inputs of other types are fed as they are.
//
// A difference is |gradient - central| / max(1, |gradient|, |central|); infinite where one of both
// is not finite, as Sqrt at 0. Where no gradient flows, it counts as 0. At a kink (Relu at 0) the
// two differ although both are right: choose other inputs.
//
// float64 is recommended: with float32 and narrower types, of an input or of an output, only large
// mistakes show.
//
// The outputs must be finite and depend on the inputs alone. What changes from step to step (random
// numbers) is refused; variables have no values here. The graph is run in a session of its own in
// this process, twice for each element, so the inputs should have tens of elements and not
// thousands.
//
// Thread-safety: any thread. Failure: a Status. Tensors of the caller never change.
//
// Source: TensorFlow's tf.test.compute_gradient_error. It compares whole Jacobians, and its
// differences are not divided.

#include <functional>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"

namespace millrace {

// What is checked: builds on the inputs, in this Scope, and returns what is differentiated. Errors
// of the Scope are the check's. May be called several times.
using OutputFunction = std::function<Output(const Scope&, const std::vector<Output>&)>;
using OutputsFunction =
    std::function<std::vector<Output>(const Scope&, const std::vector<Output>&)>;

struct GradientErrorOptions {
  // By how much an element is moved. 0: 1e-5, or 1e-2 where the input or an output is narrower than
  // 64 bits a number.
  double step = 0;
  // Of CheckGradients: the largest difference of a right gradient. 0: 1e-6, or 2e-2 where `step`
  // would be 1e-2.
  double tolerance = 0;
  // Inputs, by index, that are not checked, besides those of other types.
  std::vector<int> constant_inputs = {};
  // All is done twice: with inputs whose shapes are known while the graph is built, and unknown.
  // Gradients that need known shapes fail the second time.
  bool also_unknown_shapes = true;
};

// The largest difference between the two; 0 where all inputs are empty.
//
// InvalidArgument: no input is checked; an output is of another type, not finite, random, or of a
// shape that depends on the inputs' values; a gradient is not of its input's shape and type; a step
// is too small for an element. NotFound, Unimplemented: as AddGradients says. Errors of building
// and of running the graph.
StatusOr<double> GradientError(const OutputFunction& build, const std::vector<Tensor>& inputs,
                               const GradientErrorOptions& options = {});
StatusOr<double> GradientError(const OutputsFunction& build, const std::vector<Tensor>& inputs,
                               const GradientErrorOptions& options = {});

// OK when no difference is above the tolerance. Otherwise InvalidArgument, which names the element
// with the largest one and both numbers:
//
//   CheckGradients: the gradient of inputs[0] at [1,0] must be the central difference, 1.25, got
//   2.5; 1 of 4 numbers differ by more than 1e-06
//
// The errors of GradientError.
Status CheckGradients(const OutputFunction& build, const std::vector<Tensor>& inputs,
                      const GradientErrorOptions& options = {});
Status CheckGradients(const OutputsFunction& build, const std::vector<Tensor>& inputs,
                      const GradientErrorOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_TRAIN_GRADIENT_ERROR_H_

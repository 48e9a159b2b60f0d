// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_EXAMPLE_INPUT_H_
#define MILLRACE_SERVING_EXAMPLE_INPUT_H_

// The examples of a request as the tensor that Classify, Regress and MultiInference feed.
//
// Thread-safety: a pure function.
// Failure: InvalidArgument "Input is empty."; ResourceExhausted without memory.

#include "core/status.h"
#include "core/tensor.h"

namespace tensorflow::serving {
class Input;
}  // namespace tensorflow::serving

namespace millrace {

// A vector of strings, one serialized Example each. The bytes of a context stand before those of
// each example: parsers merge both, and of a feature that is in both the example's counts.
StatusOr<Tensor> SerializedExamples(const tensorflow::serving::Input& input);

}  // namespace millrace

#endif  // MILLRACE_SERVING_EXAMPLE_INPUT_H_

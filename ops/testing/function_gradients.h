// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TESTING_FUNCTION_GRADIENTS_H_
#define MILLRACE_OPS_TESTING_FUNCTION_GRADIENTS_H_

// For tests of gradients of functions: compared with finite differences, in sessions that put calls
// into the graph and in sessions that call. Failure: of the test.

#include <functional>
#include <initializer_list>
#include <vector>

#include "core/tensor.h"
#include "graph/scope.h"
#include "runtime/session.h"

namespace millrace::testing {

// For a session that puts calls into the graph, or calls.
SessionOptions CallsInlined(bool inlined);

Tensor D(std::initializer_list<double> values);

// d sum(ys) / d xs as dense tensors.
std::vector<Output> GradientsOf(const Scope& s, const std::vector<Output>& ys,
                                const std::vector<Output>& xs);

// Builds y of xs (doubles) and compares the gradients with finite differences, and, where `twice`,
// those of the sum of the squares of the gradients, too.
void ExpectGradients(const std::function<Output(const Scope&, const std::vector<Output>&)>& build,
                     const std::vector<Tensor>& values, bool twice = true);

}  // namespace millrace::testing

#endif  // MILLRACE_OPS_TESTING_FUNCTION_GRADIENTS_H_

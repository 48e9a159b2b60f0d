// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_OP_TEST_INTERNAL_H_
#define MILLRACE_RUNTIME_TESTING_OP_TEST_INTERNAL_H_

// What op_test's two halves share: running one node (op_test.cc) for single ops and, in
// topological order, for small graphs and gradients (gradient_check.cc). Not for tests.

#include <memory>
#include <optional>
#include <source_location>
#include <vector>

#include "core/status.h"
#include "graph/graph.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "runtime/function_runner.h"
#include "runtime/kernel.h"
#include "runtime/testing/op_test.h"

namespace millrace::op_test_internal {

// Failures within the scope also name the test's line.
::testing::ScopedTrace Trace(std::source_location where);

// What a handle tensor knows of its resource.
std::optional<HandleData> HandleDataOf(const Tensor& tensor);

// Runs what kernels on `device` call, node by node.
std::unique_ptr<FunctionRunner> MakeFunctionRunner(OpTestDevice* device);

StatusOr<std::unique_ptr<Kernel>> MakeNodeKernel(const Node& node, OpTestDevice* device);

// Runs the kernel as an executor does: reads references first, waits for asynchronous kernels,
// makes exceptions a Status.
StatusOr<std::vector<EdgeValue>> RunNode(const Node& node, const Kernel& kernel,
                                         OpTestDevice* device, std::vector<EdgeValue> inputs);

}  // namespace millrace::op_test_internal

#endif  // MILLRACE_RUNTIME_TESTING_OP_TEST_INTERNAL_H_

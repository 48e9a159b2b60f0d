// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TESTING_RUN_ONCE_H_
#define MILLRACE_RUNTIME_TESTING_RUN_ONCE_H_

// From a TestGraph to a step of it, without a session.

#include <memory>

#include "core/status.h"
#include "gtest/gtest.h"
#include "runtime/engine/executor.h"
#include "runtime/plan.h"
#include "runtime/testing/step_ops.h"

namespace millrace::testing {

// Null, and a failure of the test, for a graph that cannot be planned.
inline std::unique_ptr<Executor> MakeExecutor(TestGraph& graph, TestStep& step) {
  StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return nullptr;
  StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
  EXPECT_TRUE(executor.ok()) << executor.status();
  return executor.ok() ? *std::move(executor) : nullptr;
}

inline Status RunOnce(TestGraph& graph, int num_threads = 1) {
  TestStep step(num_threads);
  const std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  return executor == nullptr ? Internal("there is no executor") : executor->Run(step.context);
}

}  // namespace millrace::testing

#endif  // MILLRACE_RUNTIME_TESTING_RUN_ONCE_H_

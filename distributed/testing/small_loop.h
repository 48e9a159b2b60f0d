// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_SMALL_LOOP_H_
#define MILLRACE_DISTRIBUTED_TESTING_SMALL_LOOP_H_

// SmallLoop: a loop across two tasks.
//
//   while (i < limit) { i += 1; x = 2 x + 1 }        from i = 0, x = 1: 2^(limit + 1) - 1
//
// x is computed on the parameter server, all else on `worker`. "last" is what comes out.
// Thread-safety: a function of its arguments. Failure: fails the test.

#include <string>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"

namespace millrace {

inline Scope SmallLoop(float limit, const std::string& worker_device = "/job:worker/task:0") {
  const Scope root;
  const Scope worker = root.WithDevice(worker_device), ps = root.WithDevice("/job:ps/task:0");
  Graph* const graph = root.graph();
  const auto merge = [&](float initial) {
    const Output enter = Enter(worker, Const(worker, initial), "loop");
    return Merge(worker, {enter, enter}).output;
  };
  const auto close = [&](Output merged, Output next) {
    const Output round = NextIteration(worker, next);
    EXPECT_OK(graph->UpdateInput(merged.node(), 1, round.node(), 0));
  };
  const auto constant = [&](const Scope& scope, float value) {
    return Enter(scope, Const(scope, value), "loop", {.is_constant = true});
  };
  const Output i = merge(0), x = merge(1);
  const Output go_on = LoopCond(worker, Less(worker, i, constant(worker, limit)));
  const SwitchOutputs i_ways = Switch(worker, i, go_on), ways = Switch(worker, x, go_on);
  close(i, Add(worker, i_ways.output_true, constant(worker, 1)));
  const Output twice = Add(ps, ways.output_true, ways.output_true);
  close(x, Add(ps, twice, constant(ps, 1)));
  Identity(worker.WithName("last"), Exit(worker, ways.output_false));
  return root;
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_SMALL_LOOP_H_

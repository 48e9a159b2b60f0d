// SPDX-License-Identifier: Apache-2.0
//
// A loop whose body is on one task and whose condition is on another: real processes. It gives what
// it gives in one process, and ends with a named error when one of them is killed.
#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/resource_variable.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"

// covers: steps: a loop across two tasks gives what it gives in one process; when one is killed the
//   step ends with its name, and the next one runs

namespace millrace {
namespace {

constexpr absl::Duration kGuard = absl::Seconds(120);

// while (i < limit) { i += 1; x = body(x) }, and what it gives for x.
Output WhileBelow(const Scope& scope, const std::string& frame, Output limit, Output x,
                  const std::function<Output(const Scope&, Output)>& body) {
  Graph* const graph = scope.graph();
  const auto merge = [&](Output initial) {
    const Output enter = Enter(scope, initial, frame);
    return Merge(scope, {enter, enter}).output;
  };
  const auto close = [&](Output merged, Output next) {
    const Output round = NextIteration(scope, next);
    EXPECT_OK(graph->UpdateInput(merged.node(), 1, round.node(), 0));
  };
  // In the frame where x is.
  const Scope here = scope.WithControlDependencies({x.op()});
  const Output i = merge(Const(here, 0.0f));
  const Output value = merge(x);
  const Output bound = Enter(scope, limit, frame, {.is_constant = true});
  const Output one = Enter(scope, Const(here, 1.0f), frame, {.is_constant = true});
  const Output go_on = LoopCond(scope, Less(scope, i, bound));
  const SwitchOutputs i_ways = Switch(scope, i, go_on);
  const SwitchOutputs ways = Switch(scope, value, go_on);
  close(i, Add(scope, i_ways.output_true, one));
  // What hangs on it alone has values where the loop goes on.
  close(value, body(scope, Identity(scope, ways.output_true)));
  return Exit(scope, ways.output_false);
}

class LoopAcrossTasksTest : public ::testing::Test {
 protected:
  LoopAcrossTasksTest() : ports_(FreeClusterPorts(1, 0, 1)) {}

  std::unique_ptr<Process> Start(const char* job) {
    auto started = Process::Start({.name = job,
                                   .program = "tests/loops/task",
                                   .env = {{"TF_CONFIG", TfConfig(ports_, job, 0)}}});
    EXPECT_OK(started.status());
    EXPECT_OK((*started)->WaitForLine("listens on", kGuard).status());
    return *std::move(started);
  }
  StatusOr<std::unique_ptr<Session>> NewSessionOf(const Scope& root) {
    MR_ASSIGN_OR_RETURN(
        auto session,
        NewSession({.target = absl::StrCat("grpc://", ports_.host, ":", ports_.worker[0])}));
    MR_RETURN_IF_ERROR(session->Extend(root));
    return session;
  }
  // The body is on the ps, everything else on the worker; the inner loop's body is on the worker.
  static Output LoopInLoop(const Scope& root, Output limit) {
    const Scope worker = root.WithDevice("/job:worker/task:0");
    return WhileBelow(worker, "outer", limit, Const(worker, 1.0f), [&](const Scope&, Output x) {
      const Scope ps = root.WithDevice("/job:ps/task:0");
      const Output twice = Add(ps, x, x);
      const Output two = Const(worker.WithControlDependencies({x.op()}), 2.0f);
      return WhileBelow(ps, "inner", two, twice, [&](const Scope&, Output y) {
        const Scope back = root.WithDevice("/job:worker/task:0");
        return Add(back, y, Const(back.WithControlDependencies({y.op()}), 1.0f));
      });
    });
  }

  const ClusterPorts ports_;
};

TEST_F(LoopAcrossTasksTest, GivesWhatItGivesInOneProcess) {
  const auto ps = Start("ps"), worker = Start("worker");
  Scope root;
  const Output limit = Placeholder(root.WithDevice("/job:worker/task:0"), DT_FLOAT, {});
  const Output x = LoopInLoop(root, limit);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSessionOf(root));
  for (const float times : {0.0f, 1.0f, 5.0f, 20.0f}) {
    float want = 1;
    for (int i = 0; i < static_cast<int>(times); ++i) want = 2 * want + 2;
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                         session->Run({{limit, Tensor::Scalar(times)}}, {x}));
    EXPECT_EQ(got[0].scalar<float>(), want) << times;
  }
  ASSERT_OK(session->Close());
}

TEST_F(LoopAcrossTasksTest, EndsWithANamedErrorWhenATaskIsKilled) {
  auto ps = Start("ps");
  const auto worker = Start("worker");
  Scope root;
  const Scope on_ps = root.WithDevice("/job:ps/task:0");
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Output count = VarHandleOp(on_ps, DT_FLOAT, {}, {.shared_name = "count"});
  const Operation init = AssignVariableOp(on_ps, count, Const(on_ps, 0.0f));
  const Output read = ReadVariableOp(on_ps, count, DT_FLOAT);
  const Output limit = Placeholder(on_worker, DT_FLOAT, {});
  const Output x =
      WhileBelow(on_worker, "loop", limit, Const(on_worker, 0.0f), [&](const Scope&, Output at) {
        const Output handle = Enter(on_ps, count, "loop", {.is_constant = true});
        const Output one = Const(on_ps.WithControlDependencies({at.op()}), 1.0f);
        const Operation counted = AssignAddVariableOp(on_ps, handle, one);
        return Add(on_ps.WithControlDependencies({counted}), at, one);
      });
  ASSERT_OK_AND_ASSIGN(auto session, NewSessionOf(root));
  ASSERT_OK(session->Run({}, {}, {init}));
  Status ended;
  std::thread runs([&] { ended = session->Run({{limit, Tensor::Scalar(1e30f)}}, {x}).status(); });
  // It goes round.
  ASSERT_OK_AND_ASSIGN(const auto other, NewSessionOf(root));
  float seen = 0;
  for (const absl::Time guard = absl::Now() + kGuard; seen < 20 && absl::Now() < guard;) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, other->Run({}, {read}));
    seen = got[0].scalar<float>();
    absl::SleepFor(absl::Milliseconds(5));
  }
  EXPECT_GE(seen, 20);
  ASSERT_OK(ps->Signal(SIGKILL));
  ASSERT_OK(ps->WaitForExit(kGuard).status());
  runs.join();
  EXPECT_FALSE(ended.ok());
  EXPECT_TRUE(absl::StrContains(ended.message(), "/job:ps/replica:0/task:0")) << ended;
  // A new ps, and the next loop runs.
  ps = Start("ps");
  ASSERT_OK_AND_ASSIGN(session, NewSessionOf(root));
  ASSERT_OK(session->Run({}, {}, {init}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       session->Run({{limit, Tensor::Scalar(3.0f)}}, {x}));
  EXPECT_EQ(got[0].scalar<float>(), 3);
  ASSERT_OK(session->Close());
}

}  // namespace
}  // namespace millrace

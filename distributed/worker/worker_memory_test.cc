// SPDX-License-Identifier: Apache-2.0
//
// A step with a time limit when there is no memory.
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/arena.h"
#include "core/io_pool.h"
#include "core/notification.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "gtest/gtest.h"
#include "net/timers.h"
#include "run/training_run.h"

// covers: steps: a step with a time limit ends for each allocation that fails at its start

namespace millrace {
namespace {

using testing::Allocations;
using testing::FailAllocation;

constexpr char kTask[] = "/job:ps/replica:0/task:0";

// Wherever the memory runs out: the step ends, though its kernel never answers.
TEST(WorkerMemoryTest, AStepWithALimitEndsWhicheverAllocationFails) {
  WorkerOptions options;
  options.task = kTask;
  options.own_arena = Arena::Make(1);
  options.io_pool = IoPool::Default();
  Worker worker(std::move(options));
  ASSERT_OK(worker.CreateWorkerSession({.handle = "session"}));
  tensorflow::GraphDef graph;
  tensorflow::NodeDef* const node = graph.add_node();
  node->set_name("mute");
  node->set_op("TestSilent");
  node->set_device(std::string(kTask) + "/device:CPU:0");
  ASSERT_OK_AND_ASSIGN(const RegisteredPart registered,
                       worker.RegisterGraph({"session", std::move(graph)}));
  Timers::Real();  // its thread

  tensorflow::RunGraphRequest request;
  request.set_session_handle("session");
  request.set_graph_handle(registered.graph_handle);
  // A step that a failure has ended leaves its state to the next one, which then allocates less:
  // one step without a failure is not the end.
  int without_failure = 0;
  for (int64_t n = 1; without_failure < 3; ++n) {
    SCOPED_TRACE(n);
    request.set_step_id(n);
    tensorflow::RunGraphResponse response;
    std::vector<NamedTensor> received;
    Status status;
    Notification ended;
    CallDone done = [&](const Status& s) {
      status = s;
      ended.Notify();
    };
    const absl::Time deadline = absl::Now() + absl::Milliseconds(20);
    const int64_t before = Allocations();
    FailAllocation(n);
    worker.RunGraph(request, request, EdgesBy::kLinks, {}, /*block=*/false, deadline, nullptr,
                    &response, &received, std::move(done));
    const bool failed = Allocations() - before >= n;
    FailAllocation(0);
    const bool ended_in_time = ended.WaitFor(absl::Seconds(20));
    EndSilentKernels();
    ended.Wait();
    ASSERT_TRUE(ended_in_time);
    EXPECT_TRUE(absl::IsResourceExhausted(status) || absl::IsDeadlineExceeded(status)) << status;
    without_failure = failed ? 0 : without_failure + 1;
    if (!failed) {
      EXPECT_STATUS(status, absl::StatusCode::kDeadlineExceeded, "'mute'");
    }
  }
}

// A run that counts sessions which are not there would keep its server for ever.
TEST(WorkerMemoryTest, ASessionThatFindsNoMemoryIsCountedNowhere) {
  WorkerOptions options;
  options.task = kTask;
  options.own_arena = Arena::Make(1);
  options.io_pool = IoPool::Default();
  Worker worker(std::move(options));
  const TrainingRun run = {.name = "/a", .id = "a1", .is_chief = true, .chief = "the chief"};
  SessionOrder order = {.handle = "session", .terms = {.run = run, .lease = absl::Hours(1)}};
  // The first one makes more than the others, which allocate the same then, in the same order.
  ASSERT_OK(worker.CreateWorkerSession(order));
  ASSERT_OK(worker.DeleteWorkerSession(order.handle));
  bool failed = true;
  for (int64_t n = 1; failed; ++n) {
    SCOPED_TRACE(n);
    // A session that has ended is not opened again.
    order.handle = absl::StrCat("session ", n);
    const int64_t before = Allocations();
    FailAllocation(n);
    const Status status = worker.CreateWorkerSession(order);
    failed = Allocations() - before >= n;
    FailAllocation(0);
    // A line of the log may be lost without harm.
    ASSERT_TRUE(status.ok() || (failed && absl::IsResourceExhausted(status))) << status;
    if (status.ok()) {
      ASSERT_OK(worker.DeleteWorkerSession(order.handle));
    }
  }
  EXPECT_EQ(worker.num_sessions(), 0);
  worker.NoteRunEnd(run, {.global_step = 1});
  ASSERT_TRUE(worker.FindFinishedRun().has_value());
  EXPECT_EQ(worker.FindFinishedRun()->sessions, 0);
}

TEST(WorkerMemoryTest, ATimerIsSetAgainWithoutMemory) {
  Notification fired;
  std::atomic<int> times{0};
  int64_t allocated = 0;
  std::shared_ptr<Timer> timer;
  timer = Timers::Real()->Make([&] {
    if (++times == 3) return fired.Notify();
    const int64_t before = Allocations();
    timer->Set(absl::Now());
    allocated += Allocations() - before;
  });
  timer->Set(absl::Now());
  fired.Wait();
  EXPECT_EQ(allocated, 0);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// What a training step costs on the wire, counted: calls, messages with tensors, tensors, threads
// that network threads wake on the parameter servers, bytes, memory of tensors and blocks of
// operator new. Servers of this process talk over gRPC, and each counts
// for itself; blocks are those of the process, with what gRPC takes of them.
//
// Each figure has a bound: what it is today. Whoever makes a step cheaper lowers the bound in the
// same commit; nobody raises one. The counts of one run are printed:
//
//   bazel test //tests/cluster:wire_counts_test --test_output=all | grep 'per step'
//
// Some figures depend on who is faster, and have slack for that:
//   * messages: those of one wave leave together (graph/place/waves.h), and the last ones with the
//     end of the step, whoever is faster. Large tensors leave apart;
//   * blocks: vectors grow as messages gather;
//   * wake-ups: the thread that takes a message off the wire does what it made ready (core/visit.h)
//     and wakes another one for kernels that are worth a thread, by their measured time alone.
// Calls and tensors do not depend on it.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/allocator.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/testing/small_loop.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "tests/cluster/crossings.h"
#include "tests/cluster/process.h"
#include "tests/cluster/wire_model.h"

// covers: clusters: messages, tensors, wake-ups and allocations of a training step stay within
//   counted bounds: linear, census with one and two parameter servers, a convolutional network

namespace {

std::atomic<int64_t> blocks{0};  // by all threads; relaxed: a count

void* Allocate(size_t bytes) {
  blocks.fetch_add(1, std::memory_order_relaxed);
  void* const block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }

namespace millrace {
namespace {

constexpr int kWarmUp = 20;  // plans, connections, measured kernels, census' first epoch
constexpr int kSteps = 200;
// Of messages in a step: one of the steps before may be counted late.
constexpr double kLate = 0.05;

// Servers of this process: parameter servers, and one that trains.
struct Tasks {
  std::vector<std::unique_ptr<Server>> ps;
  std::unique_ptr<Server> chief;
  std::string tf_config;  // the chief's
};

StatusOr<Tasks> StartTasks(int num_ps) {
  Status last;
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3; ++tries) {
    ClusterPorts ports = FreeClusterPorts(num_ps + 1, 0, 0);
    ports.host = "127.0.0.1";
    ports.chief = {ports.ps.back()};
    ports.ps.pop_back();
    const auto start = [&](const std::string& tf_config) -> StatusOr<std::unique_ptr<Server>> {
      MR_ASSIGN_OR_RETURN(const ClusterConfig config, ClusterConfig::Parse(tf_config));
      return Server::Start(config);
    };
    Tasks tasks;
    tasks.tf_config = TfConfig(ports, "chief", 0);
    auto chief = start(tasks.tf_config);
    last = chief.status();
    for (int i = 0; last.ok() && i < num_ps; ++i) {
      auto ps = start(TfConfig(ports, "ps", i));
      last = ps.status();
      if (ps.ok()) tasks.ps.push_back(*std::move(ps));
    }
    if (!last.ok()) continue;
    tasks.chief = *std::move(chief);
    return tasks;
  }
  return last;
}

// Of one step, or of many.
struct Counts {
  double calls = 0;             // taken up by all tasks, renewals apart
  double messages_from_ps = 0;  // with tensors, also from one ps to another
  double messages_to_ps = 0;    // from the task that trains
  double ps_wakeups = 0;        // arena tasks of steps there; network threads give them all
  double trainer_wakeups = 0;   // likewise, and of kernels that are worth a thread
  double bytes_from_ps = 0;     // of these messages
  double bytes_to_ps = 0;
  double allocations = 0;  // of memory of tensors, in all tasks together
  double blocks = 0;       // of operator new, likewise

  std::string ToString() const {
    return absl::StrCat(calls, " calls, ", messages_from_ps, " messages from ps, ", messages_to_ps,
                        " to ps, ", ps_wakeups, " wake-ups on ps, ", trainer_wakeups,
                        " where it trains, ", bytes_from_ps, " bytes from ps, ", bytes_to_ps,
                        " to ps, ", allocations, " allocations of tensors, ", blocks, " blocks");
  }
};

Counts CountsNow(const Tasks& tasks) {
  Counts counts;
  const auto add = [&](const ServerCounts& server, double* messages, double* bytes,
                       double* wakeups) {
    for (const auto& [name, method] : server.methods) {
      if (absl::EndsWith(name, "/RenewSessions")) continue;  // by time, not by step
      counts.calls += static_cast<double>(method.calls);
    }
    for (const auto& [name, peer] : server.peers) {
      *bytes += static_cast<double>(peer.bytes_sent);
      *messages += static_cast<double>(peer.messages_sent);
    }
    *wakeups += static_cast<double>(server.wakeups);
  };
  for (const auto& ps : tasks.ps) {
    add(CountsOf(*ps), &counts.messages_from_ps, &counts.bytes_from_ps, &counts.ps_wakeups);
  }
  add(CountsOf(*tasks.chief), &counts.messages_to_ps, &counts.bytes_to_ps, &counts.trainer_wakeups);
  counts.allocations = static_cast<double>(DefaultAllocatorStats().num_allocations);
  counts.blocks = static_cast<double>(blocks.load(std::memory_order_relaxed));
  return counts;
}

Counts PerStep(const Counts& before, const Counts& after) {
  const auto per_step = [&](double Counts::*figure) {
    return (after.*figure - before.*figure) / kSteps;
  };
  return {.calls = per_step(&Counts::calls),
          .messages_from_ps = per_step(&Counts::messages_from_ps),
          .messages_to_ps = per_step(&Counts::messages_to_ps),
          .ps_wakeups = per_step(&Counts::ps_wakeups),
          .trainer_wakeups = per_step(&Counts::trainer_wakeups),
          .bytes_from_ps = per_step(&Counts::bytes_from_ps),
          .bytes_to_ps = per_step(&Counts::bytes_to_ps),
          .allocations = per_step(&Counts::allocations),
          .blocks = per_step(&Counts::blocks)};
}

struct Bounds {
  const char* model;
  int64_t batch;
  int num_ps;
  int64_t tensors_from_ps, tensors_to_ps, tensors_between_ps;
  Counts most;
};

// Trains, and compares.
void ExpectWithin(const Bounds& bounds) {
  const Counts& most = bounds.most;
  SCOPED_TRACE(absl::StrCat(bounds.model, " with ", bounds.num_ps, " ps"));
  ASSERT_OK_AND_ASSIGN(const Tasks tasks, StartTasks(bounds.num_ps));
  ASSERT_OK_AND_ASSIGN(const WireModel model,
                       MakeWireModel(bounds.model, bounds.batch, tasks.tf_config));
  ASSERT_OK_AND_ASSIGN(const auto session, BeginWireModel(model, tasks.chief->target()));
  ASSERT_OK_AND_ASSIGN(
      const Crossings crossings,
      CrossingsOfRun(session.get(), model.Feeds(), {model.loss, model.step}, {model.train}));
  ASSERT_OK_AND_ASSIGN(const auto step, PrepareWireStep(model, session.get()));
  for (int i = 0; i < kWarmUp; ++i) ASSERT_OK(step->Run(model.batch));
  const Counts before = CountsNow(tasks);
  for (int i = 0; i < kSteps; ++i) ASSERT_OK(step->Run(model.batch));
  const Counts counts = PerStep(before, CountsNow(tasks));

  const int64_t from_ps = crossings.Count("ps", "chief"), to_ps = crossings.Count("chief", "ps");
  const int64_t between_ps = crossings.Count("ps", "ps");
  const std::string all = absl::StrCat(bounds.model, " with ", bounds.num_ps,
                                       " ps, per step: ", from_ps, " tensors from ps, ", to_ps,
                                       " to ps, ", between_ps, " between ps, ", counts.ToString());
  std::printf("%s\n", all.c_str());
  SCOPED_TRACE(all);
  SCOPED_TRACE(absl::StrCat("tensors: ", absl::StrJoin(crossings.tensors, "; "),
                            "; controls: ", absl::StrJoin(crossings.controls, "; ")));

  // A step reads variables and brings gradients; fewer than so many would be counted wrongly.
  EXPECT_GT(from_ps, 0);
  EXPECT_GT(to_ps, 0);
  EXPECT_LE(from_ps, bounds.tensors_from_ps);
  EXPECT_LE(to_ps, bounds.tensors_to_ps);
  EXPECT_LE(between_ps, bounds.tensors_between_ps);

  EXPECT_GE(counts.messages_from_ps, 1);
  EXPECT_GE(counts.messages_to_ps, 1);
  EXPECT_GT(counts.bytes_from_ps, 0);
  EXPECT_GT(counts.bytes_to_ps, 0);
  EXPECT_GT(counts.allocations, 0);
  EXPECT_GT(counts.blocks, 0);
  EXPECT_LE(counts.calls, most.calls);
  EXPECT_LE(counts.messages_from_ps, most.messages_from_ps);
  EXPECT_LE(counts.messages_to_ps, most.messages_to_ps);
  EXPECT_LE(counts.ps_wakeups, most.ps_wakeups);
  EXPECT_LE(counts.bytes_from_ps, most.bytes_from_ps);
  EXPECT_LE(counts.bytes_to_ps, most.bytes_to_ps);
  EXPECT_LE(counts.allocations, most.allocations);
  EXPECT_LE(counts.blocks, most.blocks);

  EXPECT_OK(session->Close());
}

// There is no call, and bytes are the tensors' own.
TEST(WireCountsTest, ALinearStep) {
  ExpectWithin({.model = "linear",
                .batch = 10,
                .num_ps = 1,
                // w, b, the step after the update; two gradients.
                .tensors_from_ps = 3,
                .tensors_to_ps = 2,
                .tensors_between_ps = 0,
                .most = {.messages_from_ps = 2 + kLate,
                         .messages_to_ps = 1 + kLate,
                         .ps_wakeups = 0.5,
                         .bytes_from_ps = 16,
                         .bytes_to_ps = 8,
                         .allocations = 30,
                         .blocks = 260}});
}

TEST(WireCountsTest, ACensusStep) {
  ExpectWithin({.model = "census",
                .batch = 40,
                .num_ps = 1,
                // Eleven dense variables, the global step, rows of embeddings, linear sums; ids and
                // twelve gradients (two biases share one).
                .tensors_from_ps = 14,
                .tensors_to_ps = 13,
                .tensors_between_ps = 0,
                .most = {.messages_from_ps = 2.5,
                         .messages_to_ps = 2.5,
                         .ps_wakeups = 1.5,
                         .bytes_from_ps = 78'000,
                         .bytes_to_ps = 85'000,
                         .allocations = 114,
                         .blocks = 500}});
}

// The layers' tables stand on both: ids go to both, rows and sums come from both, and so do the
// gradients of them and of the shared bias.
TEST(WireCountsTest, ACensusStepWithTwoServers) {
  ExpectWithin({.model = "census",
                .batch = 40,
                .num_ps = 2,
                .tensors_from_ps = 20,
                .tensors_to_ps = 18,
                .tensors_between_ps = 0,
                .most = {.messages_from_ps = 6.5,
                         .messages_to_ps = 5.5,
                         .ps_wakeups = 1.5,
                         .bytes_from_ps = 80'000,
                         .bytes_to_ps = 90'000,
                         .allocations = 130,
                         .blocks = 900}});
}

TEST(WireCountsTest, AStepOfAConvolutionalNetwork) {
  ExpectWithin({.model = "cnn",
                .batch = 10,
                .num_ps = 1,
                // Four kernels, four biases, the step after the update; eight gradients.
                .tensors_from_ps = 9,
                .tensors_to_ps = 8,
                .tensors_between_ps = 0,
                .most = {.messages_from_ps = 2 + kLate,
                         .messages_to_ps = 1 + kLate,
                         .ps_wakeups = 1,
                         .bytes_from_ps = 44'750,
                         .bytes_to_ps = 44'750,
                         .allocations = 100,
                         .blocks = 600}});
}

// Of rounds of a loop between the ps and the chief, without what a step costs that has none.
struct LoopCounts {
  double calls = 0, tensors_from_ps = 0, tensors_to_ps = 0;
  double messages_from_ps = 0, messages_to_ps = 0;
};

int64_t TensorsSentBy(const Server& server) {
  int64_t sum = 0;
  for (const auto& [name, peer] : CountsOf(server).peers) sum += peer.tensors_sent;
  return sum;
}

void CountLoop(int rounds, LoopCounts* loop) {
  ASSERT_OK_AND_ASSIGN(const Tasks tasks, StartTasks(1));
  std::vector<LoopCounts> at;
  for (const int limit : {5, 5 + rounds}) {
    const Scope root = SmallLoop(static_cast<float>(limit), "/job:chief/task:0");
    ASSERT_OK(root.status());
    SessionOptions options;
    options.target = tasks.chief->target();
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {"last:0"}));  // it is compiled
    const auto now = [&] {
      const Counts all = CountsNow(tasks);
      return LoopCounts{.calls = all.calls,
                        .tensors_from_ps = static_cast<double>(TensorsSentBy(*tasks.ps[0])),
                        .tensors_to_ps = static_cast<double>(TensorsSentBy(*tasks.chief)),
                        .messages_from_ps = all.messages_from_ps,
                        .messages_to_ps = all.messages_to_ps};
    };
    const LoopCounts before = now();
    ASSERT_OK(session->Run({}, {"last:0"}));
    const LoopCounts after = now();
    at.push_back({.calls = after.calls - before.calls,
                  .tensors_from_ps = after.tensors_from_ps - before.tensors_from_ps,
                  .tensors_to_ps = after.tensors_to_ps - before.tensors_to_ps,
                  .messages_from_ps = after.messages_from_ps - before.messages_from_ps,
                  .messages_to_ps = after.messages_to_ps - before.messages_to_ps});
    EXPECT_OK(session->Close());
  }
  *loop = {.calls = at[1].calls - at[0].calls,
           .tensors_from_ps = at[1].tensors_from_ps - at[0].tensors_from_ps,
           .tensors_to_ps = at[1].tensors_to_ps - at[0].tensors_to_ps,
           .messages_from_ps = at[1].messages_from_ps - at[0].messages_from_ps,
           .messages_to_ps = at[1].messages_to_ps - at[0].messages_to_ps};
}

// At least one tensor of a round crosses each way (x to the ps, and back), and each of them is a
// message, as it leaves at once.
TEST(WireCountsTest, ATensorOfALoopIsAMessageAndNoCall) {
  constexpr int kRounds = 20;
  LoopCounts loop;
  ASSERT_NO_FATAL_FAILURE(CountLoop(kRounds, &loop));
  EXPECT_GE(loop.tensors_from_ps, kRounds);
  EXPECT_GE(loop.tensors_to_ps, kRounds);
  EXPECT_EQ(loop.calls, 0);
  EXPECT_EQ(loop.messages_from_ps, loop.tensors_from_ps);
  EXPECT_EQ(loop.messages_to_ps, loop.tensors_to_ps);
}

// A wake-up must be counted, or the bounds above would hold for a counter that counts nothing: what
// waits for an element of a queue is woken by the step that brings it.
TEST(WireCountsTest, AnElementOfAnotherStepWakesAThreadOnTheServer) {
  ASSERT_OK_AND_ASSIGN(const Tasks tasks, StartTasks(1));
  const Scope root;
  const Scope on_ps = root.WithDevice("/job:ps/task:0");
  const Output queue = FIFOQueueV2(on_ps, {DT_FLOAT}, {.shared_name = "elements"});
  const Operation put = QueueEnqueueV2(on_ps, queue, {Const(on_ps, 1.0f)});
  const Output taken = Identity(on_ps, QueueDequeueV2(on_ps, queue, {DT_FLOAT})[0]);
  ASSERT_OK(root.status());
  SessionOptions options;
  options.target = tasks.chief->target();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(root));
  const double before = CountsNow(tasks).ps_wakeups;
  // Once the taker was there first.
  for (int i = 0; i < 1000 && CountsNow(tasks).ps_wakeups == before; ++i) {
    std::thread taker([&] { EXPECT_OK(session->Run({}, {taken})); });
    std::this_thread::sleep_for(std::chrono::milliseconds(i));
    EXPECT_OK(session->Run({}, {}, {put}));
    taker.join();
  }
  EXPECT_GT(CountsNow(tasks).ps_wakeups, before);
  EXPECT_OK(session->Close());
}

TEST(WireCountsTest, AProcessWithoutAClusterCountsNothing) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start(ClusterConfig()));
  const ServerCounts counts = CountsOf(*server);
  EXPECT_TRUE(counts.methods.empty());
  EXPECT_EQ(counts.calls("RecvTensor"), 0);
  EXPECT_EQ(counts.wakeups, 0);
}

TEST(WireModelTest, OtherModelsAndBatchesAreRefused) {
  EXPECT_STATUS(MakeWireModel("mlp", 1, ""), absl::StatusCode::kInvalidArgument,
                "model must be linear, census, cnn or digits, got 'mlp'");
  EXPECT_STATUS(MakeWireModel("linear", 0, ""), absl::StatusCode::kInvalidArgument,
                "batch must be >= 1, got 0");
}

// The same models in one process: what the benchmark compares a cluster with.
TEST(WireModelTest, EachTrainsInOneProcess) {
  for (const char* name : {"linear", "census", "cnn"}) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const WireModel model, MakeWireModel(name, 4, ""));
    ASSERT_OK_AND_ASSIGN(const auto session, BeginWireModel(model, ""));
    ASSERT_OK_AND_ASSIGN(const auto step, PrepareWireStep(model, session.get()));
    for (int i = 0; i < 20; ++i) ASSERT_OK(step->Run(model.batch));
    ASSERT_OK_AND_ASSIGN(const auto out, step->Run(model.batch));
    EXPECT_GE(out[1].scalar<int64_t>(), 20);
    EXPECT_OK(session->Close());
  }
}

}  // namespace
}  // namespace millrace

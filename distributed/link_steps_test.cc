// SPDX-License-Identifier: Apache-2.0
//
// Whole steps over links: a master, its worker and two parameter servers in one process, over links
// within it and over links of bytes. What a master and workers promise whatever they travel on:
// distributed/master:master_links_test.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/link/link.h"
#include "distributed/master/master.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/testing/linked_tasks.h"
#include "distributed/testing/small_loop.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/in_process_control.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/resource_variable.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"
#include "runtime/transfer_trace.h"

// covers: clusters: a training step over links is two messages each way for each parameter server,
//   without a call; a loop makes no calls either
// covers: clusters: a training step that is fed the variables that the one before has read is one
//   message each way

namespace millrace {
namespace {

constexpr char kPs0[] = "/job:ps/replica:0/task:0";
constexpr char kPs1[] = "/job:ps/replica:0/task:1";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";

// Three tasks with links of a kind.
class ThreeTasks {
 public:
  explicit ThreeTasks(LinkedTasks::Kind kind) : links_(kind) {
    for (const char* task : {kPs0, kPs1, kWorker}) {
      WorkerOptions options;
      options.task = task;
      options.io_pool = IoPool::Default();
      options.source = [this](absl::string_view) -> std::shared_ptr<TensorSource> {
        asked_.fetch_add(1, std::memory_order_relaxed);
        return nullptr;
      };
      options.links = links_.of(task);
      workers_[task] = std::make_unique<Worker>(std::move(options));
      links_.Begin(workers_[task].get());
    }
    MasterOptions options;
    options.task = kWorker;
    options.cluster =
        *ClusterSpec::Make({{"ps", {"a.example:1", "b.example:1"}}, {"worker", {"c.example:1"}}});
    options.peer = [this](absl::string_view name) { return Peer(name); };
    options.links = links_.parts(kWorker);
    options.local_part = MakeLocalPart(workers_.at(kWorker).get());
    master_ = std::make_unique<Master>(std::move(options));
  }
  ~ThreeTasks() {
    master_->Shutdown(absl::AbortedError("Shutdown"));
    for (auto& [task, worker] : workers_) worker->Shutdown(absl::AbortedError("Shutdown"));
  }

  StatusOr<std::string> NewSession(const Scope& root) {
    tensorflow::CreateSessionRequest request;
    MR_ASSIGN_OR_RETURN(*request.mutable_graph_def(), root.ToGraphDef());
    tensorflow::CreateSessionResponse response;
    MR_RETURN_IF_ERROR(master_->CreateSession(request, absl::Seconds(30), 16, &response));
    return response.session_handle();
  }
  StatusOr<StepResult> Run(const std::string& session, const std::vector<std::string>& fetches,
                           const std::vector<std::string>& targets, bool feeds = false,
                           int64_t timeout_ms = 0) {
    tensorflow::RunStepRequest request;
    request.mutable_options()->set_timeout_in_ms(timeout_ms);
    return Run(session, fetches, targets, feeds, std::move(request));
  }
  // With its partition graphs.
  StatusOr<StepResult> RunTraced(const std::string& session,
                                 const std::vector<std::string>& fetches,
                                 const std::vector<std::string>& targets, bool feeds) {
    tensorflow::RunStepRequest request;
    request.mutable_options()->set_trace_level(tensorflow::RunOptions::FULL_TRACE);
    request.mutable_options()->set_output_partition_graphs(true);
    return Run(session, fetches, targets, feeds, std::move(request));
  }
  StatusOr<StepResult> Run(const std::string& session, const std::vector<std::string>& fetches,
                           const std::vector<std::string>& targets, bool feeds,
                           tensorflow::RunStepRequest request) {
    request.set_session_handle(session);
    for (const auto& fetch : fetches) request.add_fetch(fetch);
    for (const auto& target : targets) request.add_target(target);
    std::vector<NamedTensor> batch;
    if (feeds) {
      batch = {{"x", Tensor::Vector<float>({1, 2, 3}), false},
               {"y", Tensor::Vector<float>({4, 7, 10}), false}};
    }
    return master_->RunStep(request, batch);
  }
  StatusOr<StepResult> RunFed(const std::string& session, const std::vector<std::string>& fetches,
                              const std::vector<NamedTensor>& feeds) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(session);
    for (const auto& fetch : fetches) request.add_fetch(fetch);
    return master_->RunStep(request, feeds);
  }
  LinkedTasks& links() { return links_; }
  Worker& worker(const std::string& task) { return *workers_.at(task); }
  // Tensors that a step has asked for by calls: links push them.
  int64_t asked() const { return asked_.load(std::memory_order_relaxed); }
  // Until nothing waits to be acknowledged. The last steps' tasks are asked: nothing else is sent.
  // `failed`: how many failed steps a task remembers, for who comes late.
  bool Settle(std::map<std::string, int64_t> failed = {}) {
    for (const auto& [task, worker] : workers_) {
      if (!worker->AwaitTaken(absl::Now() + absl::Seconds(20))) {
        ADD_FAILURE() << task << " waits to be acknowledged";
        return false;
      }
      for (int i = 0; worker->num_steps() > failed[task]; ++i) {
        if (i == 20'000) {
          ADD_FAILURE() << worker->num_steps() << " steps are left on " << task;
          return false;
        }
        absl::SleepFor(absl::Milliseconds(1));
      }
    }
    return true;
  }

 private:
  std::shared_ptr<WorkerControl> Peer(absl::string_view name) {
    const std::string task(name);
    const auto found = workers_.find(task);
    return found == workers_.end() ? nullptr : MakeInProcessControl(found->second.get(), task);
  }

  std::atomic<int64_t> asked_{0};  // relaxed: counts only
  std::map<std::string, std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Master> master_;
  LinkedTasks links_;
};

class LinkStepsTest : public ::testing::TestWithParam<LinkedTasks::Kind> {};

SmallModel ModelOnTwo() {
  return MakeSmallModel("/job:worker/task:0", {"/job:ps/task:0", "/job:ps/task:1"});
}

// The batch lies on y = 3 x + 1.
TEST_P(LinkStepsTest, StepsTrainWithoutACall) {
  ThreeTasks tasks(GetParam());
  const SmallModel model = ModelOnTwo();
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  for (int i = 0; i < 200; ++i) ASSERT_OK(tasks.Run(session, {"loss:0"}, {"train"}, true));
  ASSERT_OK_AND_ASSIGN(const StepResult result,
                       tasks.Run(session, {model.w.value.name(), model.b.value.name()}, {}));
  ASSERT_EQ(result.fetches.size(), 2u);
  ExpectTensorNear(result.fetches[0], Tensor::Scalar(3.0f), 0, 1e-2);
  ExpectTensorNear(result.fetches[1], Tensor::Scalar(1.0f), 0, 1e-2);
  EXPECT_EQ(tasks.asked(), 0);
  EXPECT_TRUE(tasks.Settle());
}

// What has come between the worker and each ps, and how many writes that took.
struct PsCounts {
  LinkedTasks::Came there, back;
  int64_t writes_there = 0, writes_back = 0;
};
using Counts = std::map<std::string, PsCounts>;

Counts CountsOf(LinkedTasks* links) {
  Counts counts;
  for (const char* ps : {kPs0, kPs1}) {
    counts[ps] = {links->came(kWorker, ps), links->came(ps, kWorker),
                  links->num_writes(kWorker, ps), links->num_writes(ps, kWorker)};
  }
  return counts;
}

TEST_P(LinkStepsTest, ATrainingStepIsTwoWritesEachWay) {
  constexpr int kSteps = 50;
  ThreeTasks tasks(GetParam());
  const SmallModel model = ModelOnTwo();
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_OK(tasks.Run(session, {}, {"train"}, true));
    ASSERT_TRUE(tasks.Settle());
  };
  ASSERT_NO_FATAL_FAILURE(steps(3));
  LinkedTasks& links = tasks.links();
  const Counts before = CountsOf(&links);
  ASSERT_NO_FATAL_FAILURE(steps(kSteps));
  for (const char* ps : {kPs0, kPs1}) {
    const LinkedTasks::Came to_ps = links.came(kWorker, ps), from_ps = links.came(ps, kWorker);
    // RUN, and the gradient of its variable.
    EXPECT_EQ(to_ps.runs - before.at(ps).there.runs, kSteps);
    EXPECT_EQ(to_ps.tensors - before.at(ps).there.tensors, kSteps);
    EXPECT_EQ(to_ps.messages() - before.at(ps).there.messages(), 2 * kSteps);
    // The variable; the edge by which the step waits for the update; END.
    EXPECT_EQ(from_ps.ends - before.at(ps).back.ends, kSteps);
    EXPECT_EQ(from_ps.tensors - before.at(ps).back.tensors, 2 * kSteps);
    EXPECT_EQ(from_ps.messages() - before.at(ps).back.messages(), 3 * kSteps);
    // All of it was acknowledged, and no acknowledgement took a write of its own: but for those of
    // the last steps, which Settle asks for.
    EXPECT_EQ(to_ps.received - before.at(ps).there.received, 2 * kSteps);
    EXPECT_EQ(from_ps.received - before.at(ps).back.received, kSteps);
    if (GetParam() == LinkedTasks::Kind::kBytes) {
      EXPECT_LE(links.num_writes(kWorker, ps) - before.at(ps).writes_there,
                2 * kSteps + kSteps / 10);
      EXPECT_LE(links.num_writes(ps, kWorker) - before.at(ps).writes_back,
                2 * kSteps + kSteps / 10);
    }
  }
  // Each graph is bound once.
  EXPECT_LE(links.came(kWorker, kPs0).binds, 2);
}

// What is fed goes to the ps and comes back.
TEST_P(LinkStepsTest, WhatIsReadyAtOnceLeavesWithRunAndTheAnswerWithItsEnd) {
  constexpr int kSteps = 50;
  ThreeTasks tasks(GetParam());
  const Scope root;
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Output x = Placeholder(on_worker.WithName("x"), DT_FLOAT, {-1});
  const Output y = Placeholder(on_worker.WithName("y"), DT_FLOAT, {-1});
  const Output sum = Add(root.WithDevice("/job:ps/task:0"), x, y);
  Identity(on_worker.WithName("back"), sum);
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(root));
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      ASSERT_OK_AND_ASSIGN(const StepResult result, tasks.Run(session, {"back:0"}, {}, true));
      ExpectTensorEqual(result.fetches[0], Tensor::Vector<float>({5, 9, 13}));
    }
    ASSERT_TRUE(tasks.Settle());
  };
  // Until it is known what the nodes cost.
  ASSERT_NO_FATAL_FAILURE(steps(20));
  LinkedTasks& links = tasks.links();
  const LinkedTasks::Came there = links.came(kWorker, kPs0), back = links.came(kPs0, kWorker);
  const int64_t writes_there = links.num_writes(kWorker, kPs0);
  const int64_t writes_back = links.num_writes(kPs0, kWorker);
  ASSERT_NO_FATAL_FAILURE(steps(kSteps));
  EXPECT_EQ(links.came(kWorker, kPs0).messages() - there.messages(), 2 * kSteps);
  EXPECT_EQ(links.came(kWorker, kPs0).tensors - there.tensors, 2 * kSteps);
  EXPECT_EQ(links.came(kPs0, kWorker).messages() - back.messages(), 2 * kSteps);
  if (GetParam() == LinkedTasks::Kind::kBytes) {
    // RUN with both tensors, and what the step before has to acknowledge. On a busy machine a node
    // looks expensive now and then, and RUN leaves before it.
    EXPECT_LE(links.num_writes(kWorker, kPs0) - writes_there, kSteps + kSteps / 2);
    EXPECT_LE(links.num_writes(kPs0, kWorker) - writes_back, kSteps + kSteps / 2);
  }
}

// Read-ahead (train/read_ahead.h): what a step has read after its updates, the next one is fed.
// Gradients need nothing of this step from elsewhere, so they are ready with RUN; variables come
// with the end.
TEST_P(LinkStepsTest, AStepThatIsFedItsVariablesIsAWriteEachWay) {
  constexpr int kSteps = 50;
  ThreeTasks tasks(GetParam());
  const SmallModel model = ModelOnTwo();
  std::vector<std::string> reads, next;
  for (const Variable& variable : {model.w, model.b}) {
    Operation update;
    for (const Edge& edge : variable.handle.node()->out_edges()) {
      if (edge.dst->op() == "ResourceApplyGradientDescent") update = Operation(edge.dst);
    }
    ASSERT_TRUE(update.valid());
    reads.push_back(variable.value.name());
    next.push_back(ReadVariableOp(model.root.ColocatedWith(variable.handle.op())
                                      .WithControlDependencies({update})
                                      .WithName(variable.name + "_next"),
                                  variable.handle, DT_FLOAT)
                       .name());
  }
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  ASSERT_OK_AND_ASSIGN(StepResult values, tasks.Run(session, reads, {}));
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(values.fetches.size(), 2u);
      ASSERT_OK_AND_ASSIGN(values, tasks.RunFed(session, next,
                                                {{"x", Tensor::Vector<float>({1, 2, 3}), false},
                                                 {"y", Tensor::Vector<float>({4, 7, 10}), false},
                                                 {reads[0], values.fetches[0], false},
                                                 {reads[1], values.fetches[1], false}}));
    }
    ASSERT_TRUE(tasks.Settle());
  };
  // Until it is known what the nodes cost.
  ASSERT_NO_FATAL_FAILURE(steps(150));
  LinkedTasks& links = tasks.links();
  const Counts before = CountsOf(&links);
  ASSERT_NO_FATAL_FAILURE(steps(kSteps));
  for (const char* ps : {kPs0, kPs1}) {
    const LinkedTasks::Came to_ps = links.came(kWorker, ps), from_ps = links.came(ps, kWorker);
    // RUN and the gradient; the variable and END.
    EXPECT_EQ(to_ps.tensors - before.at(ps).there.tensors, kSteps);
    EXPECT_EQ(to_ps.messages() - before.at(ps).there.messages(), 2 * kSteps);
    EXPECT_EQ(from_ps.tensors - before.at(ps).back.tensors, kSteps);
    EXPECT_EQ(from_ps.messages() - before.at(ps).back.messages(), 2 * kSteps);
    if (GetParam() == LinkedTasks::Kind::kBytes) {
      // On a busy machine a node looks expensive now and then, and RUN leaves before it.
      EXPECT_LE(links.num_writes(kWorker, ps) - before.at(ps).writes_there, kSteps + kSteps / 2);
      EXPECT_LE(links.num_writes(ps, kWorker) - before.at(ps).writes_back, kSteps + kSteps / 2);
    }
  }
  // 200 steps of its own updates: the batch lies on y = 3 x + 1.
  ASSERT_OK_AND_ASSIGN(const StepResult now, tasks.Run(session, reads, {}));
  ASSERT_EQ(now.fetches.size(), 2u);
  ExpectTensorEqual(now.fetches[0], values.fetches[0]);
  ExpectTensorEqual(now.fetches[1], values.fetches[1]);
  ExpectTensorNear(now.fetches[0], Tensor::Scalar(3.0f), 0, 1e-2);
  ExpectTensorNear(now.fetches[1], Tensor::Scalar(1.0f), 0, 1e-2);
}

TEST_P(LinkStepsTest, APeerThatIsLostInMidStepEndsItAndTheNextLifeServes) {
  ThreeTasks tasks(GetParam());
  SmallModel model = ModelOnTwo();
  const Scope on_ps = model.root.WithDevice("/job:ps/task:1");
  const Output wait = TestWait(on_ps.WithName("wait"));
  const Output after =
      Identity(model.root.WithDevice("/job:worker/task:0").WithName("after"), wait);
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  Status ended;
  std::thread step([&] { ended = tasks.Run(session, {after.name()}, {}).status(); });
  while (tasks.worker(kPs1).num_steps() == 0) std::this_thread::yield();
  tasks.links().Kill(kPs1);
  step.join();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_NE(ended.message().find(kPs1), absl::string_view::npos) << ended;
  // Its part was cancelled there.
  EXPECT_TRUE(tasks.worker(kPs1).AwaitSteps(absl::Now() + absl::Seconds(20)));
  const Status down = tasks.Run(session, {after.name()}, {}).status();
  EXPECT_TRUE(absl::IsUnavailable(down)) << down;
  // The network is back.
  tasks.links().Begin(&tasks.worker(kPs1));
  EXPECT_OK(tasks.Run(session, {"loss:0"}, {"train"}, true));
  EXPECT_TRUE(tasks.Settle({{kWorker, 2}, {kPs1, 1}}));
}

TEST_P(LinkStepsTest, LateTensorsOfAFailedStepAreDropped) {
  ThreeTasks tasks(GetParam());
  const SmallModel model = ModelOnTwo();
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  ASSERT_OK(tasks.Run(session, {"loss:0"}, {"train"}, true));
  // The gradients' way is cut: the parameter servers wait until the time is over.
  tasks.links().Mute(kWorker, true);
  const Status status = tasks.Run(session, {}, {"train"}, true, /*timeout_ms=*/50).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  tasks.links().Mute(kWorker, false);
  ASSERT_OK(tasks.Run(session, {"loss:0"}, {"train"}, true));
  for (const char* task : {kPs0, kPs1, kWorker}) {
    EXPECT_EQ(tasks.worker(task).parked_bytes(), 0) << task;
  }
}

TEST_P(LinkStepsTest, AStrangersTensorsAreInNoOnesWay) {
  ThreeTasks tasks(GetParam());
  const SmallModel model = ModelOnTwo();
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  SentTensors tensors;
  tensors.step_id = 4711;
  tensors.fingerprint = 1;
  tensors.tensors.emplace_back().value = Tensor::Scalar(1.0f);
  ASSERT_OK(tasks.links().LinkOf(kPs0, kWorker)->Send(tensors));
  ASSERT_OK(tasks.links().LinkOf(kWorker, kPs0)->Send(tensors));
  for (int i = 0; i < 5; ++i) ASSERT_OK(tasks.Run(session, {"loss:0"}, {"train"}, true));
}

// A program that trains and evaluates, whose steps run at once.
TEST_P(LinkStepsTest, StepsOfSeveralThreadsShareTheLinks) {
  ThreeTasks tasks(GetParam());
  const SmallModel model = ModelOnTwo();
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(model.root));
  ASSERT_OK(tasks.Run(session, {}, {"init"}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        if (t % 2 == 0) {
          EXPECT_OK(tasks.Run(session, {"loss:0"}, {"train"}, true));
        } else {
          EXPECT_OK(tasks.Run(session, {model.w.value.name(), model.b.value.name()}, {}));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tasks.asked(), 0);
  EXPECT_TRUE(tasks.Settle());
}

// After n rounds: 1, 3, 7, ..., 2^(n + 1) - 1.
TEST_P(LinkStepsTest, ALoopEndsWithItsValueWithoutACall) {
  ThreeTasks tasks(GetParam());
  for (const int limit : {0, 1, 7, 20}) {
    ASSERT_OK_AND_ASSIGN(const std::string session,
                         tasks.NewSession(SmallLoop(static_cast<float>(limit))));
    for (int i = 0; i < 3; ++i) {
      ASSERT_OK_AND_ASSIGN(const StepResult result, tasks.Run(session, {"last:0"}, {}));
      ExpectTensorEqual(result.fetches[0],
                        Tensor::Scalar(static_cast<float>((int64_t{2} << limit) - 1)));
    }
  }
  EXPECT_EQ(tasks.asked(), 0);
  EXPECT_TRUE(tasks.Settle());
  for (const char* task : {kPs0, kPs1, kWorker}) {
    EXPECT_EQ(tasks.worker(task).parked_bytes(), 0) << task;
  }
}

// How many cross in a round is the partition's business. But each round costs the same, dead
// tensors of the last one included, each is one message, and each is acknowledged once.
TEST_P(LinkStepsTest, EachRoundOfALoopTakesTheSameTensorsAndAllAreAcknowledged) {
  ThreeTasks tasks(GetParam());
  LinkedTasks& links = tasks.links();
  const std::vector<std::pair<std::string, std::string>> ways = {{kWorker, kPs0}, {kPs0, kWorker}};
  std::vector<std::vector<int64_t>> tensors;  // by limit and way
  for (const float limit : {4.0f, 5.0f, 15.0f}) {
    ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(SmallLoop(limit)));
    std::vector<LinkedTasks::Came> before;
    for (const auto& [from, at] : ways) before.push_back(links.came(from, at));
    ASSERT_OK(tasks.Run(session, {"last:0"}, {}));
    ASSERT_TRUE(tasks.Settle());
    tensors.emplace_back();
    for (size_t i = 0; i < 2; ++i) {
      const LinkedTasks::Came after = links.came(ways[i].first, ways[i].second);
      const LinkedTasks::Came back = links.came(ways[1 - i].first, ways[1 - i].second);
      tensors.back().push_back(after.tensors - before[i].tensors);
      EXPECT_EQ(after.tensors - before[i].tensors, back.received - before[1 - i].received);
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    const int64_t of_a_round = tensors[1][i] - tensors[0][i];
    EXPECT_GE(of_a_round, 1);
    EXPECT_EQ(tensors[2][i] - tensors[1][i], 10 * of_a_round);
  }
}

// Each tensor that crossed has a line of its sender and one of its receiver.
TEST_P(LinkStepsTest, ATraceHasBothSidesOfEachTensorWithoutACall) {
  ThreeTasks tasks(GetParam());
  for (const bool is_loop : {false, true}) {
    SCOPED_TRACE(is_loop ? "loop" : "training");
    ASSERT_OK_AND_ASSIGN(const std::string session,
                         tasks.NewSession(is_loop ? SmallLoop(3) : ModelOnTwo().root));
    if (!is_loop) {
      ASSERT_OK(tasks.Run(session, {}, {"init"}));
    }
    ASSERT_OK_AND_ASSIGN(
        const StepResult result,
        tasks.RunTraced(session, {is_loop ? "last:0" : "loss:0"},
                        is_loop ? std::vector<std::string>() : std::vector<std::string>{"train"},
                        /*feeds=*/!is_loop));
    EXPECT_EQ(result.metadata.partition_graphs_size(), is_loop ? 2 : 3);
    std::multiset<std::string> sent, received;
    int num_in_loops = 0;
    for (const auto& device : result.metadata.step_stats().dev_stats()) {
      EXPECT_GT(device.node_stats_size(), 0) << device.device();
      for (const auto& line : device.node_stats()) {
        EXPECT_GT(line.all_start_nanos(), 0) << line.node_name();
        const auto side = TransferSideOf(line);
        if (!side.has_value()) continue;
        (*side == TransferSide::kSender ? sent : received).insert(line.timeline_label());
        num_in_loops += absl::StrContains(line.timeline_label(), " in iteration ") ? 1 : 0;
      }
    }
    EXPECT_FALSE(sent.empty());
    EXPECT_EQ(sent, received);
    EXPECT_EQ(num_in_loops > 0, is_loop);
  }
  EXPECT_EQ(tasks.asked(), 0);
  EXPECT_TRUE(tasks.Settle());
}

TEST_P(LinkStepsTest, ALostPeerOrAnEndOfTheTimeEndsALoopThatWaits) {
  ThreeTasks tasks(GetParam());
  ASSERT_OK_AND_ASSIGN(const std::string session, tasks.NewSession(SmallLoop(1e30f)));
  const Status late = tasks.Run(session, {"last:0"}, {}, false, /*timeout_ms=*/50).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  const int64_t before = tasks.links().came(kPs0, kWorker).tensors;
  Status ended;
  std::thread step([&] { ended = tasks.Run(session, {"last:0"}, {}).status(); });
  while (tasks.links().came(kPs0, kWorker).tensors < before + 20) std::this_thread::yield();
  tasks.links().Kill(kPs0);
  step.join();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_NE(ended.message().find(kPs0), absl::string_view::npos) << ended;
  for (const char* task : {kPs0, kWorker}) {
    EXPECT_TRUE(tasks.worker(task).AwaitSteps(absl::Now() + absl::Seconds(20)));
    EXPECT_EQ(tasks.worker(task).parked_bytes(), 0) << task;
  }
  // The network is back.
  tasks.links().Begin(&tasks.worker(kPs0));
  ASSERT_OK_AND_ASSIGN(const std::string next, tasks.NewSession(SmallLoop(3)));
  ASSERT_OK_AND_ASSIGN(const StepResult result, tasks.Run(next, {"last:0"}, {}));
  ExpectTensorEqual(result.fetches[0], Tensor::Scalar(15.0f));
}

INSTANTIATE_TEST_SUITE_P(Kinds, LinkStepsTest,
                         ::testing::Values(LinkedTasks::Kind::kInProcess,
                                           LinkedTasks::Kind::kBytes),
                         [](const auto& info) {
                           return info.param == LinkedTasks::Kind::kBytes ? "Bytes" : "InProcess";
                         });

}  // namespace
}  // namespace millrace

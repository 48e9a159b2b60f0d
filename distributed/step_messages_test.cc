// SPDX-License-Identifier: Apache-2.0
//
// What a step asks of any transport, counted between a master and workers of this process without a
// network: calls, tensors, and groups of tensors that the sender lets go together. A network may
// gather groups into one message (tests/cluster/wire_counts_test.cc counts these), never split them
// below a size.
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/master/master.h"
#include "distributed/master/master_options.h"
#include "distributed/testing/forwarding_transport.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/transport.h"
#include "distributed/worker/in_process_transport.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/state/resource_rows.h"
#include "ops/state/resource_variable.h"
#include "proto/master.pb.h"
#include "proto/worker.pb.h"

// covers: clusters: messages, tensors, wake-ups and allocations of a training step stay within
//   counted bounds: linear, census with one and two parameter servers, a convolutional network

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr int kSteps = 100;

// Relaxed, all: counts only.
struct Sent {
  std::atomic<int64_t> pulls{0}, tensors{0}, groups{0};
};

// Tensors until the next Flush or the end are a group.
class CountingSink : public PullSink {
 public:
  CountingSink(std::shared_ptr<PullSink> sink, Sent* sent) : sink_(std::move(sink)), sent_(sent) {}
  void OnTensor(uint64_t index, Tensor value, bool is_dead) override {
    sent_->tensors.fetch_add(1, std::memory_order_relaxed);
    held_.store(true, std::memory_order_relaxed);
    sink_->OnTensor(index, std::move(value), is_dead);
  }
  void Flush() override {
    CountGroup();
    sink_->Flush();
  }
  void OnDone(const Status& status) override {
    CountGroup();
    sink_->OnDone(status);
  }

 private:
  void CountGroup() {
    if (!held_.exchange(false, std::memory_order_relaxed)) return;
    sent_->groups.fetch_add(1, std::memory_order_relaxed);
  }

  const std::shared_ptr<PullSink> sink_;
  Sent* const sent_;
  std::atomic<bool> held_{false};  // relaxed: counts only
};

class StepMessagesTest : public ::testing::Test {
 protected:
  StepMessagesTest() {
    for (const char* task : {kPs, kWorker}) {
      WorkerOptions options;
      options.task = task;
      options.io_pool = IoPool::Default();
      options.peer = [this](absl::string_view name) { return Peer(name); };
      workers_[task] = std::make_unique<Worker>(std::move(options));
    }
    MasterOptions options;
    options.task = kWorker;
    options.cluster =
        *ClusterSpec::Make({{"ps", {"ps.example:2222"}}, {"worker", {"w0.example:1"}}});
    options.peer = [this](absl::string_view name) { return Peer(name); };
    master_ = std::make_unique<Master>(std::move(options));
  }
  ~StepMessagesTest() override {
    master_->Shutdown(absl::AbortedError("Shutdown"));
    for (auto& [task, worker] : workers_) worker->Shutdown(absl::AbortedError("Shutdown"));
  }

  class Counting : public ForwardingTransport {
   public:
    Counting(StepMessagesTest* test, const std::string& task)
        : ForwardingTransport(task, task), test_(test) {}
    void RunGraph(const CallOptions& o, const tensorflow::RunGraphRequest& g,
                  const tensorflow::RunGraphRequest& r, absl::Span<const NamedTensor> send,
                  bool block, tensorflow::RunGraphResponse* s, std::vector<NamedTensor>* t,
                  Done d) override {
      test_->runs_.fetch_add(1, std::memory_order_relaxed);
      ForwardingTransport::RunGraph(o, g, r, send, block, s, t, std::move(d));
    }
    void Pull(const CallOptions& o, const PullRequest& r, std::shared_ptr<PullSink> s) override {
      Sent& sent = task() == kPs ? test_->from_ps_ : test_->to_ps_;
      sent.pulls.fetch_add(1, std::memory_order_relaxed);
      ForwardingTransport::Pull(o, r, std::make_shared<CountingSink>(std::move(s), &sent));
    }

   private:
    std::shared_ptr<Transport> To() const override {
      return MakeInProcessTransport(test_->workers_.at(task()).get(), task());
    }
    StepMessagesTest* const test_;
  };

  std::shared_ptr<Transport> Peer(absl::string_view name) {
    const std::string task(name);
    if (workers_.find(task) == workers_.end()) return nullptr;
    return std::make_shared<Counting>(this, task);
  }

  // A session with the model, initialised; its handle.
  StatusOr<std::string> Begin(const SmallModel& model) {
    tensorflow::CreateSessionRequest request;
    MR_ASSIGN_OR_RETURN(*request.mutable_graph_def(), model.root.ToGraphDef());
    tensorflow::CreateSessionResponse response;
    MR_RETURN_IF_ERROR(master_->CreateSession(request, absl::Seconds(30), 16, &response));
    MR_RETURN_IF_ERROR(Run(response.session_handle(), model.init, {}));
    return response.session_handle();
  }
  Status Run(const std::string& session, const Operation& target,
             const std::vector<NamedTensor>& feeds) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(session);
    request.add_target(target.name());
    return master_->RunStep(request, feeds).status();
  }

  // So many in each of kSteps steps. The thread that sends a step's last tensor may count its group
  // after the step has ended.
  static void ExpectGroups(int64_t groups, int64_t per_step) {
    constexpr int64_t kLate = 1;
    EXPECT_LE(groups, per_step * kSteps + kLate);
    EXPECT_GE(groups, per_step * kSteps - kLate);
  }

  std::atomic<int64_t> runs_{0};  // RunGraph, of both tasks; relaxed: counts only
  Sent from_ps_, to_ps_;
  std::map<std::string, std::unique_ptr<Worker>> workers_;  // fixed before the first call
  std::unique_ptr<Master> master_;
};

TEST_F(StepMessagesTest, ALinearStepHasARunPerTaskAPullEachWayAndFourTensors) {
  const SmallModel model = MakeSmallModel();
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(const std::string session, Begin(model));
  const std::vector<NamedTensor> batch = {{"x", Tensor::Vector<float>({1, 2, 3}), false},
                                          {"y", Tensor::Vector<float>({4, 7, 10}), false}};
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_OK(Run(session, model.train, batch));
  };
  steps(5);
  const int64_t runs = runs_, from_pulls = from_ps_.pulls, to_pulls = to_ps_.pulls;
  const int64_t from_tensors = from_ps_.tensors, to_tensors = to_ps_.tensors;
  const int64_t from_groups = from_ps_.groups, to_groups = to_ps_.groups;
  steps(kSteps);
  EXPECT_EQ(runs_ - runs, 2 * kSteps);
  EXPECT_EQ(from_ps_.pulls - from_pulls, kSteps);
  EXPECT_EQ(to_ps_.pulls - to_pulls, kSteps);
  // w and b.
  EXPECT_EQ(from_ps_.tensors - from_tensors, 2 * kSteps);
  // Two gradients.
  EXPECT_EQ(to_ps_.tensors - to_tensors, 2 * kSteps);
  // Together, each way.
  ExpectGroups(from_ps_.groups - from_groups, 1);
  ExpectGroups(to_ps_.groups - to_groups, 1);
}

// Six dense variables and rows of a table, as a wide and deep model has them: ids go, rows come,
// gradients go.
TEST_F(StepMessagesTest, AStepWithRowsHasAGroupForEachWave) {
  constexpr int kDense = 6;
  const Scope root;
  const Scope on_ps = root.WithDevice("/job:ps/task:0");
  const Scope on_worker = root.WithDevice("/job:worker/task:0");
  const Variable table =
      MakeVariable(on_ps.WithName("table"), Const<float>(on_ps, {1, 2, 3, 4, 5}));
  const Output ids = Placeholder(on_worker.WithName("ids"), DT_INT32, {-1});
  // Ids are made on the worker, as columns make them from a batch.
  const Output wanted = Add(on_worker, ids, Const<int32_t>(on_worker, 1));
  const Output rows = ResourceGather(on_ps, table.handle, wanted, DT_FLOAT);
  std::vector<Variable> dense;
  std::vector<Operation> inits = {table.initializer};
  Output sum = Mul(on_worker, rows, rows);
  for (int i = 0; i < kDense; ++i) {
    dense.push_back(MakeVariable(on_ps.WithName(absl::StrCat("v", i)), Const(on_ps, 1.0f)));
    inits.push_back(dense.back().initializer);
    sum = Add(on_worker, sum, dense.back().value);
  }
  const Output gradient = Mean(on_worker, sum, Const<int32_t>(on_worker, {0}));
  std::vector<Operation> updates = {
      ResourceScatterSub(on_ps, table.handle, wanted, Mul(on_worker, rows, gradient))};
  for (int i = 0; i < kDense; ++i) {
    const Output scaled = Mul(on_worker, gradient, Const(on_worker, static_cast<float>(i + 2)));
    updates.push_back(AssignSubVariableOp(on_ps, dense[static_cast<size_t>(i)].handle, scaled));
  }
  SmallModel model;
  model.root = root;
  model.init = Group(root.WithName("init"), inits);
  model.train = Group(on_worker.WithName("train"), updates);
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(const std::string session, Begin(model));
  const std::vector<NamedTensor> batch = {{"ids", Tensor::Vector<int32_t>({0, 2, 3}), false}};
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_OK(Run(session, model.train, batch));
  };
  steps(5);
  const int64_t from_tensors = from_ps_.tensors, to_tensors = to_ps_.tensors;
  const int64_t from_groups = from_ps_.groups, to_groups = to_ps_.groups;
  steps(kSteps);
  // The dense variables and rows; ids and all gradients.
  EXPECT_EQ(from_ps_.tensors - from_tensors, (kDense + 1) * kSteps);
  EXPECT_EQ(to_ps_.tensors - to_tensors, (kDense + 2) * kSteps);
  ExpectGroups(from_ps_.groups - from_groups, 2);
  ExpectGroups(to_ps_.groups - to_groups, 2);
}

}  // namespace
}  // namespace millrace

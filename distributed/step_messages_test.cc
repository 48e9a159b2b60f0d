// SPDX-License-Identifier: Apache-2.0
//
// What a step asks of any link, counted between a master and workers of this process without a
// network: runs, tensors, and groups of tensors that the sender lets go together. A network may
// gather groups into one message (tests/cluster/wire_counts_test.cc counts these), never split them
// below a size.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/io_pool.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/master/master.h"
#include "distributed/master/master_options.h"
#include "distributed/testing/linked_tasks.h"
#include "distributed/testing/small_model.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/in_process_control.h"
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

// covers: clusters: messages, tensors, wake-ups and allocations of a training step stay within
//   counted bounds: linear, census with one and two parameter servers, a convolutional network

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr int kSteps = 100;

class StepMessagesTest : public ::testing::Test {
 protected:
  StepMessagesTest() {
    for (const char* task : {kPs, kWorker}) {
      WorkerOptions options;
      options.task = task;
      options.io_pool = IoPool::Default();
      options.links = links_.of(task);
      workers_[task] = std::make_unique<Worker>(std::move(options));
      links_.Begin(workers_[task].get());
    }
    MasterOptions options;
    options.task = kWorker;
    options.cluster =
        *ClusterSpec::Make({{"ps", {"ps.example:2222"}}, {"worker", {"w0.example:1"}}});
    options.peer = [this](absl::string_view name) { return Peer(name); };
    options.links = links_.parts(kWorker);
    options.local_part = MakeLocalPart(workers_.at(kWorker).get());
    master_ = std::make_unique<Master>(std::move(options));
  }
  ~StepMessagesTest() override {
    master_->Shutdown(absl::AbortedError("Shutdown"));
    for (auto& [task, worker] : workers_) worker->Shutdown(absl::AbortedError("Shutdown"));
  }

  std::shared_ptr<WorkerControl> Peer(absl::string_view name) {
    const auto it = workers_.find(std::string(name));
    if (it == workers_.end()) return nullptr;
    return MakeInProcessControl(it->second.get(), it->first);
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

  LinkedTasks::Came from_ps() const { return links_.came(kPs, kWorker); }
  LinkedTasks::Came to_ps() const { return links_.came(kWorker, kPs); }

  std::map<std::string, std::unique_ptr<Worker>> workers_;  // fixed before the first call
  std::unique_ptr<Master> master_;
  LinkedTasks links_{LinkedTasks::Kind::kInProcess};
};

TEST_F(StepMessagesTest, ALinearStepHasARunAndFourTensorsInAGroupEachWay) {
  const SmallModel model = MakeSmallModel();
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(const std::string session, Begin(model));
  const std::vector<NamedTensor> batch = {{"x", Tensor::Vector<float>({1, 2, 3}), false},
                                          {"y", Tensor::Vector<float>({4, 7, 10}), false}};
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) ASSERT_OK(Run(session, model.train, batch));
  };
  steps(5);
  const LinkedTasks::Came from = from_ps(), to = to_ps();
  steps(kSteps);
  EXPECT_EQ(to_ps().runs - to.runs, kSteps);
  EXPECT_EQ(from_ps().ends - from.ends, kSteps);
  // w and b.
  EXPECT_EQ(from_ps().tensors - from.tensors, 2 * kSteps);
  // Two gradients.
  EXPECT_EQ(to_ps().tensors - to.tensors, 2 * kSteps);
  // Together, each way.
  EXPECT_EQ(from_ps().tensor_messages - from.tensor_messages, kSteps);
  EXPECT_EQ(to_ps().tensor_messages - to.tensor_messages, kSteps);
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
  const LinkedTasks::Came from = from_ps(), to = to_ps();
  steps(kSteps);
  // The dense variables and rows; ids and all gradients.
  EXPECT_EQ(from_ps().tensors - from.tensors, (kDense + 1) * kSteps);
  EXPECT_EQ(to_ps().tensors - to.tensors, (kDense + 2) * kSteps);
  EXPECT_EQ(from_ps().tensor_messages - from.tensor_messages, 2 * kSteps);
  EXPECT_EQ(to_ps().tensor_messages - to.tensor_messages, 2 * kSteps);
}

}  // namespace
}  // namespace millrace

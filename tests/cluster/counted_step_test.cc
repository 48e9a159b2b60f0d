// SPDX-License-Identifier: Apache-2.0
//
// Counts what a training step of a real model costs on a cluster: calls, bytes, tensors. The
// servers live in this process and talk over gRPC, so one process's counters see both sides.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "distributed/transport/peer_counts.h"
#include "estimator/columns/column_lowering.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/model_tensors.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/normalization.h"
#include "layers/partitioner.h"
#include "layers/variable.h"
#include "net/rpc_channel.h"
#include "net/tensor_coding.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/linalg/matmul.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/nn/activations.h"
#include "ops/nn/bias.h"
#include "ops/nn/xent.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "tests/cluster/crossings.h"
#include "tests/cluster/process.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/supervisor.h"

// covers: clusters: a linear step on one server moves its variables and their gradients and nothing
//   else, with `update_ops` and a fetched count, too; with two, one message between them orders the
//   step
// covers: clusters: a table in two parts on two servers moves as many tensors as two tables
// covers: clusters: a training step costs no call
// covers: clusters: parts of a table send sums by example or each row once, whichever is fewer
// bytes covers: clusters: a row that several ids of a batch ask for crosses once each way covers:
// article 2-25: Adam with slots and beta powers on the ps, shared by all

namespace millrace {
namespace {

constexpr int kPixels = 784, kHidden = 256, kLabels = 10, kBatch = 20;
constexpr int kSteps = 50;

// Weights with some variety; the values do not matter here.
Tensor Spread(std::initializer_list<int64_t> dims) {
  Tensor t = *Tensor::Zeros(DT_FLOAT, ShapeOf(dims));
  size_t i = 0;
  for (float& v : t.mutable_flat<float>()) v = static_cast<float>(i++ * 37 % 101) / 1010 - 0.05f;
  return t;
}

// Two dense layers, cross entropy, Adam: 8 tensors of weights and slots per layer pair.
struct Model {
  explicit Model(const Scope& s) {
    x = Placeholder(s.WithName("x"), DT_FLOAT, {-1, kPixels});
    t = Placeholder(s.WithName("t"), DT_FLOAT, {-1, kLabels});
    const Variable w1 = MakeVariable(s.WithName("w1"), Const(s, Spread({kPixels, kHidden})));
    const Variable b1 = MakeVariable(s.WithName("b1"), Const(s, Spread({kHidden})));
    const Variable w2 = MakeVariable(s.WithName("w2"), Const(s, Spread({kHidden, kLabels})));
    const Variable b2 = MakeVariable(s.WithName("b2"), Const(s, Spread({kLabels})));
    const Output hidden = Relu(s, BiasAdd(s, MatMul(s, x, w1.value), b1.value));
    const Output logits = BiasAdd(s, MatMul(s, hidden, w2.value), b2.value);
    loss = ReduceMean(s, SoftmaxCrossEntropyWithLogits(s, logits, t).loss);
    step = GlobalStep(s);
    train = AdamOptimizer({.learning_rate = 1e-3}).Minimize(s, loss, {.global_step = step});
  }
  Output x, t, loss;
  Variable step;
  Operation train;
};

// The matrices: each goes to the worker, and its gradient back, in every step.
constexpr int64_t kLargeWeightBytes =
    (kPixels * kHidden + kHidden * kLabels) * int64_t{sizeof(float)};
// The biases and their gradients, Adam's powers, loss and step.
constexpr int64_t kMaxSmallBytesPerStep = 2 * (kHidden + kLabels) * int64_t{sizeof(float)} + 1024;

// Servers of this process: `num_ps` parameter servers and one worker, which comes last.
struct Servers {
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> ps_addresses;
  ClusterConfig worker_config;
  std::string target() const { return servers.back()->target(); }
};

StatusOr<Servers> StartServers(int num_ps) {
  Status last;
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3; ++tries) {
    Servers started;
    ClusterPorts ports = FreeClusterPorts(num_ps, 0, 1);
    ports.host = "127.0.0.1";
    for (int i = 0; i <= num_ps; ++i) {
      const bool is_worker = i == num_ps;
      MR_ASSIGN_OR_RETURN(
          const ClusterConfig config,
          ClusterConfig::Parse(TfConfig(ports, is_worker ? "worker" : "ps", is_worker ? 0 : i)));
      auto server = Server::Start(config);
      last = server.status();
      if (!last.ok()) break;
      if (is_worker) {
        started.worker_config = config;
      } else {
        MR_ASSIGN_OR_RETURN(started.ps_addresses.emplace_back(), config.cluster().address("ps", i));
      }
      started.servers.push_back(*std::move(server));
    }
    if (last.ok()) return started;
  }
  return last;
}

// What the tasks of `cluster` have sent each other: tensors of steps.
PeerCounts SentBy(const Servers& cluster) {
  PeerCounts sum;
  for (const auto& server : cluster.servers) {
    for (const auto& [task, counts] : CountsOf(*server).peers) {
      sum.bytes_sent += counts.bytes_sent;
      sum.tensors_sent += counts.tensors_sent;
    }
  }
  return sum;
}

// Trains two dense layers with Adam on two servers.
TEST(CountedStepTest, ATrainingStepTakesNoCallAndSendsEachTensorOnce) {
  ASSERT_OK_AND_ASSIGN(const Servers cluster, StartServers(2));
  const std::vector<std::string>& addresses = cluster.ps_addresses;
  Scope root;
  const Model model(root.WithDevice(ReplicaDeviceSetter(cluster.worker_config)));
  SupervisorOptions options;
  options.global_step = model.step;
  options.max_wait = absl::Seconds(60);
  Supervisor supervisor(root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(cluster.target()));
  Tensor labels = *Tensor::Zeros(DT_FLOAT, ShapeOf({kBatch, kLabels}));
  for (int i = 0; i < kBatch; ++i) {
    labels.mutable_flat<float>()[static_cast<size_t>(i * kLabels + i % kLabels)] = 1;
  }
  const std::vector<Feed> feeds = {{model.x, Spread({kBatch, kPixels})}, {model.t, labels}};
  const auto run = [&] {
    return session->Run(feeds, {model.loss, model.step.value}, {model.train});
  };
  float first_loss = 0, last_loss = 0;
  for (int i = 0; i < 5; ++i) {  // until plans and connections are made
    ASSERT_OK_AND_ASSIGN(const auto out, run());
    if (i == 0) first_loss = out[0].scalar<float>();
  }

  const std::map<std::string, int64_t> calls_before = RpcCallsBegun();
  const TensorCodingCounters before = GetTensorCodingCounters();
  const PeerCounts sent_before = SentBy(cluster);
  int64_t last_step = 0;
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, run());
    last_loss = out[0].scalar<float>();
    last_step = out[1].scalar<int64_t>();
  }
  const TensorCodingCounters after = GetTensorCodingCounters();
  const std::map<std::string, int64_t> calls_after = RpcCallsBegun();
  const int64_t bytes_sent = SentBy(cluster).bytes_sent - sent_before.bytes_sent;
  EXPECT_GE(last_step, kSteps);
  EXPECT_LT(last_loss, first_loss);

  // Calls, by server; the worker serves its own partition without one.
  for (const std::string& address : addresses) {
    int64_t calls = 0;
    std::vector<std::string> methods;
    for (const auto& [name, count] : calls_after) {
      if (!absl::StartsWith(name, address + "/")) continue;
      if (absl::EndsWith(name, "/RenewSessions")) continue;  // by time, not by step
      const auto old = calls_before.find(name);
      const int64_t fresh = count - (old == calls_before.end() ? 0 : old->second);
      calls += fresh;
      if (fresh > 0) methods.push_back(absl::StrCat(name, " ", fresh));
    }
    EXPECT_EQ(calls, 0) << address << ": " << absl::StrJoin(methods, ", ");
  }

  // Each matrix goes to the worker, and its gradient back.
  EXPECT_GE(bytes_sent, 2 * kLargeWeightBytes * kSteps);
  EXPECT_LE(bytes_sent, (2 * kLargeWeightBytes + kMaxSmallBytesPerStep) * kSteps);
  // Tensors' bytes are the links' own: nothing is coded.
  EXPECT_EQ(after.sent_by_reference - before.sent_by_reference, 0);
  EXPECT_EQ(after.through_proto - before.through_proto, 0);
  EXPECT_OK(supervisor.Stop());
}

// --- What a step moves -----------------------------------------------------------------------

// examples/linear: a line, gradient descent, a global step.
struct LinearModel {
  LinearModel(const Scope& s, Optimizer&& optimizer) {
    x = Placeholder(s.WithName("x"), DT_FLOAT, {-1});
    y = Placeholder(s.WithName("y"), DT_FLOAT, {-1});
    step = GlobalStep(s);
    w = MakeVariable(s.WithName("w"), Const(s, 0.5f));
    b = MakeVariable(s.WithName("b"), Const(s, 0.0f));
    const Output predicted = Add(s, Mul(s, w.value, x), b.value);
    loss = ReduceMean(s.WithName("loss"), Square(s, Sub(s, predicted, y)));
    train = optimizer.Minimize(s, loss, {.global_step = step});
    init = GlobalVariablesInitializer(s);
  }
  std::vector<Feed> Batch() const {
    return {{x, Tensor::Vector<float>({-1, 0, 1})}, {y, Tensor::Vector<float>({-4, -1, 2})}};
  }
  Variable w, b, step;
  Output x, y, loss;
  Operation train, init;
};

// Begins a session on `cluster` with the model, initialised; what that moved.
struct Running {
  std::unique_ptr<Session> session;
  Crossings init;
};
StatusOr<Running> Begin(const Servers& cluster, const Scope& root, const LinearModel& model) {
  MR_RETURN_IF_ERROR(root.status());
  SessionOptions options;
  options.target = cluster.target();
  Running result;
  MR_ASSIGN_OR_RETURN(result.session, NewSession(options));
  MR_RETURN_IF_ERROR(result.session->Extend(root));
  MR_ASSIGN_OR_RETURN(result.init, CrossingsOfRun(result.session.get(), {}, {}, {model.init}));
  return result;
}

using Names = std::vector<std::string>;

TEST(CountedStepTest, ALinearStepMovesItsVariablesAndTheirGradientsAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(const Servers cluster, StartServers(1));
  Scope root;
  const LinearModel model(root.WithDevice(ReplicaDeviceSetter(cluster.worker_config)),
                          GradientDescentOptimizer({.learning_rate = 0.1}));
  ASSERT_OK_AND_ASSIGN(const Running run, Begin(cluster, root, model));
  // Initial values that the program made as constants of its own device; nothing comes back.
  EXPECT_EQ(run.init.tensors, Names({"Const worker -> ps0", "Const_1 worker -> ps0",
                                     "global_step/Initializer/zeros worker -> ps0"}));
  EXPECT_EQ(run.init.controls, Names());
  ASSERT_OK_AND_ASSIGN(const Crossings step, CrossingsOfRun(run.session.get(), model.Batch(),
                                                            {model.loss}, {model.train}));
  EXPECT_EQ(step.tensors,
            Names({"b/Read/ReadVariableOp ps0 -> worker", "gradients/Add_grad/Sum worker -> ps0",
                   "gradients/Mul_grad/Sum worker -> ps0", "w/Read/ReadVariableOp ps0 -> worker"}));
  // The updates, the step's count and what the program runs are on one device.
  EXPECT_EQ(step.controls, Names());

  // The bytes of tensors on the wire say so, too: four floats. The loss is fetched from a server of
  // this process.
  const PeerCounts before = SentBy(cluster);
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK(run.session->Run(model.Batch(), {model.loss}, {model.train}).status());
  }
  const PeerCounts after = SentBy(cluster);
  EXPECT_EQ(after.bytes_sent - before.bytes_sent, kSteps * 4 * int64_t{sizeof(float)});
  EXPECT_EQ(after.tensors_sent - before.tensors_sent, kSteps * 4);
  ASSERT_OK_AND_ASSIGN(const auto out, run.session->Run({}, {model.step.value}));
  EXPECT_EQ(out[0].scalar<int64_t>(), 1 + kSteps);
}

// What runs with a step (moving averages), and the count that the program fetches after it.
TEST(CountedStepTest, UpdatesBesideAStepAndItsCountSendNoControl) {
  ASSERT_OK_AND_ASSIGN(const Servers cluster, StartServers(1));
  Scope root;
  const Scope s = root.WithDevice(ReplicaDeviceSetter(cluster.worker_config));
  const LinearModel model(s, MomentumOptimizer());
  const Variable mean =
      MakeVariable(s.WithName("mean"), Shape{}, DT_FLOAT, ZerosInitializer(), {.trainable = false});
  const Scope beside = s.ColocatedWith(mean.handle.op());
  const Operation moved =
      AssignAddVariableOp(beside.WithName("moved"), mean.handle, Const(beside, 0.5f));
  s.AddToNodeCollection("update_ops", moved.name());
  const Operation all = TrainWithUpdates(s.WithName("all"), model.train);
  const Output count = StepAfter(s.WithName("count"), all, model.step);
  const Operation init = GlobalVariablesInitializer(s);
  ASSERT_OK_AND_ASSIGN(const Running run, Begin(cluster, root, model));
  ASSERT_OK(run.session->Run({}, {}, {init}).status());
  ASSERT_OK_AND_ASSIGN(const Crossings step, CrossingsOfRun(run.session.get(), model.Batch(),
                                                            {model.loss, count}, {all}));
  EXPECT_EQ(step.tensors,
            Names({"b/Read/ReadVariableOp ps0 -> worker", "count ps0 -> worker",
                   "gradients/Add_grad/Sum worker -> ps0", "gradients/Mul_grad/Sum worker -> ps0",
                   "w/Read/ReadVariableOp ps0 -> worker"}));
  EXPECT_EQ(step.controls, Names());
  ASSERT_OK_AND_ASSIGN(const auto out, run.session->Run({}, {mean.value, model.step.value}));
  EXPECT_EQ(out[0].scalar<float>(), 0.5f);
  EXPECT_EQ(out[1].scalar<int64_t>(), 1);
}

// Two servers: each tells once, straight to where the step is counted, that its updates are made.
TEST(CountedStepTest, ServersTellEachOtherOnceOfTheirUpdates) {
  ASSERT_OK_AND_ASSIGN(const Servers cluster, StartServers(2));
  const Names linear = {
      "b/Read/ReadVariableOp ps0 -> worker", "gradients/Add_grad/Sum worker -> ps0",
      "gradients/Mul_grad/Sum worker -> ps1", "w/Read/ReadVariableOp ps1 -> worker"};
  struct Case {
    std::unique_ptr<Optimizer> optimizer;
    Names also;  // moved besides
    Names controls;
  };
  Case cases[2];
  cases[0] = {std::make_unique<GradientDescentOptimizer>(),
              {},
              {"GradientDescent/update/NoOp_1 ps1 -> ps0"}};
  // The powers are kept once, with the first variable by name.
  cases[1] = {
      std::make_unique<AdamOptimizer>(),
      {"beta1_power/Read/ReadVariableOp ps0 -> ps1", "beta2_power/Read/ReadVariableOp ps0 -> ps1"},
      {"Adam/updated/NoOp_1 ps1 -> ps0"}};
  for (const Case& c : cases) {
    Scope root;
    const LinearModel model(root.WithDevice(ReplicaDeviceSetter(cluster.worker_config)),
                            std::move(*c.optimizer));
    ASSERT_OK_AND_ASSIGN(const Running run, Begin(cluster, root, model));
    EXPECT_EQ(run.init.controls, Names({"init/NoOp ps0 -> worker", "init/NoOp_1 ps1 -> worker"}));
    ASSERT_OK_AND_ASSIGN(const Crossings step, CrossingsOfRun(run.session.get(), model.Batch(),
                                                              {model.loss}, {model.train}));
    Names tensors = c.also;
    tensors.insert(tensors.end(), linear.begin(), linear.end());
    std::sort(tensors.begin(), tensors.end());
    EXPECT_EQ(step.tensors, tensors);
    EXPECT_EQ(step.controls, c.controls);
  }
}

// 400 ids of ten rows, of one table whole and in two parts on two servers: ten ids and ten rows
// leave, and ten rows of gradients come back, each the sum of 40. Of a column each server that has
// a part of its table gets and gives all ten.
TEST(CountedStepTest, ARowThatManyIdsAskForCrossesOnceEachWay) {
  constexpr int kIds = 400, kRows = 10, kWidth = 32;
  std::vector<int64_t> values;
  for (int i = 0; i < kIds; ++i) values.push_back(9 * (i % kRows));
  for (const bool is_column : {false, true}) {
    for (const int num_ps : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(is_column ? "a column, " : "a layer, ", num_ps, " ps"));
      ASSERT_OK_AND_ASSIGN(const Servers cluster, StartServers(num_ps));
      Scope root;
      const Scope s = root.WithDevice(ReplicaDeviceSetter(cluster.worker_config));
      const Output ids = Placeholder(s.WithName("ids"), DT_INT64, {-1});
      const Partitioner partitioner = FixedSizePartitioner(num_ps);
      Output rows;
      if (is_column) {
        rows = InputLayer(s, Features(Features::Map{{"ids", ids}}),
                          {EmbeddingColumn(CategoricalColumnWithIdentity("ids", 100), kWidth,
                                           {.initializer = OnesInitializer()})},
                          {.partitioner = partitioner, .lowering = ColumnLowering::kFused});
      } else {
        rows = Embedding(s, ids, 100, kWidth,
                         {.initializer = OnesInitializer(), .partitioner = partitioner});
      }
      const Output loss = ReduceSum(s.WithName("loss"), Square(s, rows));
      const Operation train = GradientDescentOptimizer({.learning_rate = 0.01}).Minimize(s, loss);
      const Operation init = GlobalVariablesInitializer(s);
      ASSERT_OK(root.status());
      SessionOptions options;
      options.target = cluster.target();
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
      ASSERT_OK(session->Extend(root));
      ASSERT_OK(session->Run({}, {}, {init}).status());
      const std::vector<Feed> feeds = {{ids, Tensor::Vector<int64_t>(values)}};
      ASSERT_OK_AND_ASSIGN(const auto before, session->Run(feeds, {loss}));
      EXPECT_EQ(before[0].scalar<float>(), kIds * kWidth);
      ASSERT_OK_AND_ASSIGN(const Crossings step, CrossingsOfRun(session.get(), feeds, {}, {train}));
      // The gradient of each number of a row is 40 times 2: it is 1 - 0.01 * 80 now.
      ASSERT_OK_AND_ASSIGN(const auto after, session->Run(feeds, {loss}));
      EXPECT_NEAR(after[0].scalar<float>(), kIds * kWidth * 0.04f, 0.1f);
      SCOPED_TRACE(absl::StrJoin(step.tensors, "; "));
      EXPECT_LE(step.tensors.size(), 3u * static_cast<size_t>(num_ps));

      const PeerCounts counts_before = SentBy(cluster);
      for (int i = 0; i < kSteps; ++i) ASSERT_OK(session->Run(feeds, {}, {train}).status());
      const int64_t bytes = SentBy(cluster).bytes_sent - counts_before.bytes_sent;
      EXPECT_GT(bytes, 0);
      // Ids, rows, gradients.
      constexpr int64_t kRowBytes = kWidth * int64_t{sizeof(float)};
      const int64_t times = is_column ? num_ps : 1;
      EXPECT_LE(bytes, kSteps * times * kRows * (int64_t{sizeof(int64_t)} + 2 * kRowBytes));
      EXPECT_OK(session->Close());
    }
  }
}

// Twenty examples of fifty ids, in two parts on two servers. Of many different ids a part gives no
// more than a sum for each example; of a few that repeat, each row once. As many come back, as
// gradients, and ids go there once (of sums with their number, eight bytes and four).
TEST(CountedStepTest, PartsOfATableSendSumsOrRowsWhicheverAreFewer) {
  constexpr int kExamples = 20, kIds = 50, kRows = 1000, kWidth = 32;
  constexpr int64_t kRowBytes = kWidth * int64_t{sizeof(float)}, kIdBytes = 8 + 4;
  ASSERT_OK_AND_ASSIGN(const Servers cluster, StartServers(2));
  Scope root;
  const Scope s = root.WithDevice(ReplicaDeviceSetter(cluster.worker_config));
  const Output ids = Placeholder(s.WithName("ids"), DT_INT64, {-1});
  const Output rows = Placeholder(s.WithName("rows"), DT_INT64, {-1});
  const EmbeddingLayer sums = Embedding(s, {.ids = ids, .rows = rows}, kRows, kWidth,
                                        {.initializer = OnesInitializer(),
                                         .partitioner = FixedSizePartitioner(2),
                                         .combiner = Combiner::kSum});
  const Output loss = ReduceSum(s.WithName("loss"), sums);
  const Operation train = GradientDescentOptimizer({.learning_rate = 0.5}).Minimize(s, loss);
  const Operation init = GlobalVariablesInitializer(s);
  ASSERT_OK(root.status());
  SessionOptions options;
  options.target = cluster.target();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession(options));
  ASSERT_OK(session->Extend(root));
  for (const bool repeated : {false, true}) {
    SCOPED_TRACE(repeated ? "ids that repeat" : "different ids");
    ASSERT_OK(session->Run({}, {}, {init}).status());
    std::vector<int64_t> all, of;
    for (int64_t i = 0; i < kExamples * kIds; ++i) {
      all.push_back(repeated ? i % 2 * (kRows - 1) : i);
      of.push_back(i / kIds);
    }
    const std::vector<Feed> feeds = {{ids, Tensor::Vector<int64_t>(all)},
                                     {rows, Tensor::Vector<int64_t>(of)}};
    ASSERT_OK_AND_ASSIGN(const auto before, session->Run(feeds, {loss}));
    EXPECT_EQ(before[0].scalar<float>(), kExamples * kIds * kWidth);
    ASSERT_OK_AND_ASSIGN(const Crossings step, CrossingsOfRun(session.get(), feeds, {}, {train}));
    SCOPED_TRACE(absl::StrJoin(step.tensors, "; "));
    // To each part rows, their sums, and the gradients of these; from it the sums.
    const auto tensors = [&](const std::string& way) {
      return std::count_if(step.tensors.begin(), step.tensors.end(),
                           [&](const std::string& one) { return absl::EndsWith(one, way); });
    };
    for (const char* ps : {"ps0", "ps1"}) {
      EXPECT_LE(tensors(absl::StrCat("worker -> ", ps)), 3);
      EXPECT_EQ(tensors(absl::StrCat(ps, " -> worker")), 1);
    }
    EXPECT_EQ(tensors("ps0 -> ps1") + tensors("ps1 -> ps0"), 0);
    // 0.5 for each time that a row was asked for.
    ASSERT_OK_AND_ASSIGN(const auto after, session->Run(feeds, {loss}));
    const int64_t times = repeated ? kExamples * kIds / 2 : 1;
    const double want = kExamples * kIds * kWidth * (1 - 0.5 * static_cast<double>(times));
    EXPECT_NEAR(after[0].scalar<float>(), want, 1e-5 * std::abs(want));

    const PeerCounts counts_before = SentBy(cluster);
    for (int i = 0; i < kSteps; ++i) ASSERT_OK(session->Run(feeds, {}, {train}).status());
    const int64_t bytes = SentBy(cluster).bytes_sent - counts_before.bytes_sent;
    EXPECT_GT(bytes, 0);
    // Different ids are in order: each example but one has all of them in one part.
    const int64_t ids_sent = repeated ? 2 : kExamples * kIds;
    const int64_t numbers_sent = repeated ? 2 : kExamples + 1;
    EXPECT_LE(bytes, kSteps * (ids_sent * kIdBytes + 2 * numbers_sent * kRowBytes));
  }
  EXPECT_OK(session->Close());
}

// A step of embeddings of 1,000 rows, each cut into so many parts, which stand in turns.
struct StepOfTables {
  Crossings crossings;
  int nodes = 0;  // of the program
};
// On servers of their own: a name stands for variables of different shapes.
StatusOr<StepOfTables> RunStepOfTables(const Names& keys, int num_parts, ColumnLowering lowering) {
  MR_ASSIGN_OR_RETURN(const Servers cluster, StartServers(2));
  Scope root;
  const Scope s = root.WithDevice(ReplicaDeviceSetter(cluster.worker_config));
  Features::Map features;
  std::vector<DenseColumn> columns;
  std::vector<Feed> feeds;
  for (const std::string& key : keys) {
    features[key] = Placeholder(s.WithName(key), DT_INT64, {-1});
    feeds.emplace_back(features[key], Tensor::Vector<int64_t>({0, 999, 3, -1}));
    columns.push_back(EmbeddingColumn(CategoricalColumnWithIdentity(key, 1000), 8,
                                      {.initializer = OnesInitializer()}));
  }
  const Output rows =
      InputLayer(s, Features(features), columns,
                 {.partitioner = FixedSizePartitioner(num_parts), .lowering = lowering});
  const Output loss = ReduceSum(s.WithName("loss"), Square(s, rows));
  const Operation train = GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(s, loss);
  const Operation init = GlobalVariablesInitializer(s);
  MR_RETURN_IF_ERROR(root.status());
  StepOfTables result;
  result.nodes = root.graph()->num_nodes();
  SessionOptions options;
  options.target = cluster.target();
  MR_ASSIGN_OR_RETURN(const auto session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> first, session->Run(feeds, {loss}));
  MR_ASSIGN_OR_RETURN(result.crossings, CrossingsOfRun(session.get(), feeds, {loss}, {train}));
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> second, session->Run(feeds, {loss}));
  // Three rows of ones in each table; the gradient is two for each number of theirs.
  const float numbers = 3 * 8 * static_cast<float>(keys.size());
  for (const auto& [out, each] : {std::pair(first, 1.0f), std::pair(second, 0.8f * 0.8f)}) {
    const float loss_then = out[0].scalar<float>();
    if (std::abs(loss_then - numbers * each) > 1e-3f) {
      return InvalidArgument("loss must be ", numbers * each, ", got ", loss_then);
    }
  }
  return result;
}

// Each server is sent the ids once and the gradient once, and sends its rows once, whether they are
// a table or a part of one.
TEST(CountedStepTest, ATableInTwoPartsMovesAsManyTensorsAsTwoTables) {
  ASSERT_OK_AND_ASSIGN(const StepOfTables tables,
                       RunStepOfTables({"a", "b"}, 1, ColumnLowering::kFused));
  ASSERT_OK_AND_ASSIGN(const StepOfTables parts, RunStepOfTables({"a"}, 2, ColumnLowering::kFused));
  ASSERT_OK_AND_ASSIGN(const StepOfTables portable,
                       RunStepOfTables({"a"}, 2, ColumnLowering::kPortable));
  const auto print = [](const char* name, const StepOfTables& step) {
    std::printf("%s: %d nodes, per step %d tensors from ps, %d to ps, %d controls\n", name,
                step.nodes, static_cast<int>(step.crossings.Count("ps", "worker")),
                static_cast<int>(step.crossings.Count("worker", "ps")),
                static_cast<int>(step.crossings.controls.size()));
  };
  print("two tables", tables);
  print("a table in two parts", parts);
  print("the same, portable", portable);
  SCOPED_TRACE(absl::StrJoin(parts.crossings.tensors, "; "));
  SCOPED_TRACE(absl::StrJoin(tables.crossings.tensors, "; "));
  EXPECT_EQ(tables.crossings.tensors.size(), 6u);
  EXPECT_EQ(parts.crossings.tensors.size(), 6u);
  EXPECT_EQ(parts.crossings.controls.size(), tables.crossings.controls.size());
  for (const char* ps : {"ps0", "ps1"}) {
    EXPECT_EQ(parts.crossings.Count(ps, "worker"), tables.crossings.Count(ps, "worker")) << ps;
    EXPECT_EQ(parts.crossings.Count("worker", ps), tables.crossings.Count("worker", ps)) << ps;
  }
  // One table has a feature less, and no node more for each part.
  EXPECT_LE(parts.nodes, tables.nodes);
  EXPECT_LT(parts.nodes, portable.nodes);
}

}  // namespace
}  // namespace millrace

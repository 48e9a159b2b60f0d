// SPDX-License-Identifier: Apache-2.0
//
// Counts what a training step of a real model costs on a cluster: calls and copies. The servers
// live in this process and talk over gRPC, so one process's counters see both sides.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "distributed/transport/rpc.h"
#include "distributed/transport/tensor_coding.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/linalg/matmul.h"
#include "ops/math/reduction.h"
#include "ops/nn/activations.h"
#include "ops/nn/bias.h"
#include "ops/nn/xent.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"
#include "train/adam.h"
#include "train/supervisor.h"

namespace millrace {
namespace {

constexpr int kPixels = 784, kHidden = 256, kLabels = 10, kBatch = 20;
constexpr int kSteps = 50;
constexpr int64_t kMaxCallsPerServerAndStep = 3;

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
// Loss, step and the bias of ten labels with its gradient.
constexpr int64_t kMaxInsideBytesPerStep = 512;

TEST(CountedStepTest, ATrainingStepTakesAtMostThreeCallsPerServerAndOneCopyPerTensor) {
  constexpr int kServers = 2;
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<std::string> addresses;
  ClusterConfig worker_config;
  // Ports may be taken by others between the choice and the start.
  for (int tries = 0; tries < 3 && servers.size() != kServers + 1; ++tries) {
    servers.clear();
    addresses.clear();
    ClusterPorts ports = FreeClusterPorts(kServers, 0, 1);
    ports.host = "127.0.0.1";
    for (int i = 0; i <= kServers; ++i) {
      const bool is_worker = i == kServers;
      ASSERT_OK_AND_ASSIGN(
          const ClusterConfig config,
          ClusterConfig::Parse(TfConfig(ports, is_worker ? "worker" : "ps", is_worker ? 0 : i)));
      auto server = Server::Start(config);
      if (!server.ok()) break;
      if (is_worker) {
        worker_config = config;
      } else {
        ASSERT_OK_AND_ASSIGN(addresses.emplace_back(), config.cluster().address("ps", i));
      }
      servers.push_back(*std::move(server));
    }
  }
  ASSERT_EQ(servers.size(), size_t{kServers + 1});

  Scope root;
  const Model model(root.WithDevice(ReplicaDeviceSetter(worker_config)));
  SupervisorOptions options;
  options.global_step = model.step;
  options.max_wait = absl::Seconds(60);
  Supervisor supervisor(root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(servers.back()->target()));
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
  int64_t last_step = 0;
  for (int i = 0; i < kSteps; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, run());
    last_loss = out[0].scalar<float>();
    last_step = out[1].scalar<int64_t>();
  }
  const TensorCodingCounters after = GetTensorCodingCounters();
  const std::map<std::string, int64_t> calls_after = RpcCallsBegun();
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
    EXPECT_GE(calls, kSteps) << address << ": " << absl::StrJoin(methods, ", ");
    EXPECT_LE(calls, kMaxCallsPerServerAndStep * kSteps)
        << address << ": " << absl::StrJoin(methods, ", ");
  }

  // Copies, in bytes: large tensors leave by reference and are moved once at most on receipt; what
  // is smaller than a slice of its own is worth travels inside the message.
  const int64_t by_reference = after.sent_by_reference - before.sent_by_reference;
  const int64_t inside = after.sent_copied - before.sent_copied;
  const int64_t received_copied = after.received_copied - before.received_copied;
  EXPECT_GE(by_reference, 2 * kLargeWeightBytes * kSteps);  // or nothing was counted
  EXPECT_LE(inside, kMaxInsideBytesPerStep * kSteps);
  EXPECT_LE(received_copied, by_reference + inside);
  EXPECT_EQ(after.through_proto - before.through_proto, 0);
  RecordProperty("bytes_sent_per_step", static_cast<int>((by_reference + inside) / kSteps));
  RecordProperty("bytes_copied_per_step", static_cast<int>((received_copied + inside) / kSteps));
  EXPECT_OK(supervisor.Stop());
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// One worker in one process; what another one gives to an average is fed.
#include "train/local_sgd.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/state/resource_rows.h"
#include "runtime/session.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/optimizer.h"

// covers: training: workers train copies of the variables with any optimizer, and an outer one
// moves
//   the shared variables by what k steps have changed: with plain averaging of each step this is
//   gradient descent, with outer momentum it follows the equations; between two averages nothing
//   shared changes, and local_step needs no node of a parameter server

namespace millrace {
namespace {

constexpr double kRate = 0.25, kStart = 8;

std::unique_ptr<Optimizer> Sgd(double rate) {
  return std::make_unique<GradientDescentOptimizer>(GradientDescentOptions{.learning_rate = rate});
}
std::unique_ptr<Optimizer> Momentum(double rate, double momentum) {
  return std::make_unique<MomentumOptimizer>(
      MomentumOptions{.learning_rate = rate, .momentum = momentum});
}

// loss = (w - target)^2 / 2: the gradient is w - target.
struct Quadratic {
  Scope root;
  Output target = Placeholder(root.WithName("target"), DT_FLOAT, {});
  Variable w = MakeVariable(root.WithName("w"), Const(root, static_cast<float>(kStart)));
  Output loss = Mul(root, Square(root, Sub(root, w.value, target)), Const(root, 0.5f));
  Variable step = GlobalStep(root);
  std::unique_ptr<Session> session;

  Status Begin() {
    const Operation init = GlobalVariablesInitializer(root);
    const Operation local = LocalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    // In the order of SessionManager: copies begin with the shared values.
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    return session->Run({}, {}, {local}).status();
  }
  Status Run(const Operation& op, double to, std::vector<Feed> feeds = {}) {
    feeds.push_back({target, Tensor::Scalar(static_cast<float>(to))});
    return session->Run(feeds, {}, {op}).status();
  }
  StatusOr<double> Value(const Variable& variable) {
    MR_ASSIGN_OR_RETURN(const auto out, session->Run({}, {variable.value}));
    return double{out[0].scalar<float>()};
  }
  StatusOr<int64_t> Counted() {
    MR_ASSIGN_OR_RETURN(const auto out, session->Run({}, {step.value}));
    return out[0].scalar<int64_t>();
  }
};

// What a round of two workers applies: the mean of this one's change and of another's, which is
// fed.
class MeanWithOther : public Optimizer {
 public:
  explicit MeanWithOther(Output other)
      : Optimizer({.name = "MeanWithOther"}), other_(std::move(other)) {}
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options) override {
    std::vector<GradientAndVariable> means = gradients;
    for (GradientAndVariable& pair : means) {
      pair.gradient = Mul(at, Add(at, std::get<Output>(pair.gradient), other_), Const(at, 0.5f));
    }
    return sgd_.ApplyGradients(at, means, options);
  }

 private:
  const Output other_;
  GradientDescentOptimizer sgd_{{.learning_rate = 1}};
};

TEST(LocalSgdTest, PlainAveragingOfEachStepIsSynchronousGradientDescent) {
  Quadratic model;
  const Output other = Placeholder(model.root.WithName("other"), DT_FLOAT, {});
  LocalSgdOptimizer optimizer(Sgd(kRate), std::make_unique<MeanWithOther>(other),
                              {.average_every = 1});
  const Operation train =
      optimizer.Minimize(model.root, model.loss, {.global_step = model.step, .name = "step"});
  ASSERT_TRUE(train.valid()) << model.root.status();
  EXPECT_EQ(train.name(), "step");
  ASSERT_OK(model.Begin());
  const Variable copy = optimizer.Copy(model.root, model.w);
  EXPECT_EQ(copy.name, "w/LocalCopy");
  double w = kStart;
  for (int i = 0; i < 6; ++i) {
    // Both workers begin with w; each has a target of its own.
    const double own = i, others = -2 * i;
    ASSERT_OK(
        model.Run(train, own, {{other, Tensor::Scalar(static_cast<float>(kRate * (w - others)))}}));
    w -= kRate * ((w - own) + (w - others)) / 2;
    ASSERT_OK_AND_ASSIGN(const double shared, model.Value(model.w));
    ASSERT_OK_AND_ASSIGN(const double local, model.Value(copy));
    EXPECT_NEAR(shared, w, 1e-5) << i;
    EXPECT_EQ(local, shared) << i;
  }
  ASSERT_OK_AND_ASSIGN(const int64_t counted, model.Counted());
  EXPECT_EQ(counted, 6);
}

// Copies: c -= rate * (c - target), k times. Shared: v = momentum * v + (w - c); w -= v; c = w.
TEST(LocalSgdTest, EveryKStepsTheOuterOptimizerMovesTheSharedVariables) {
  constexpr int kEvery = 3;
  for (const double momentum : {0.0, 0.5}) {
    SCOPED_TRACE(momentum);
    Quadratic model;
    LocalSgdOptimizer optimizer(Momentum(kRate, 0.75),
                                momentum > 0 ? Momentum(1, momentum) : Sgd(1),
                                {.average_every = kEvery});
    const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = model.step});
    ASSERT_OK(model.Begin());
    const Variable copy = optimizer.Copy(model.root, model.w);
    double w = kStart, c = kStart, v = 0, own = 0;
    for (int i = 1; i <= 4 * kEvery; ++i) {
      // The worker's own steps may be run alone.
      const bool alone = i % kEvery != 0 && i > 2 * kEvery;
      ASSERT_OK(model.Run(alone ? optimizer.local_step() : train, i));
      own = 0.75 * own + (c - i);  // the inner momentum goes on
      c -= kRate * own;
      if (i % kEvery == 0) {
        v = momentum * v + (w - c);
        w -= v;
        c = w;
      }
      ASSERT_OK_AND_ASSIGN(const double shared, model.Value(model.w));
      ASSERT_OK_AND_ASSIGN(const double local, model.Value(copy));
      ASSERT_OK_AND_ASSIGN(const int64_t counted, model.Counted());
      EXPECT_NEAR(shared, w, 1e-4) << i;
      EXPECT_NEAR(local, c, 1e-4) << i;
      EXPECT_EQ(counted, i / kEvery);
    }
  }
}

// Checkpoints have the shared variables, the outer slots and the global step.
TEST(LocalSgdTest, CopiesAndInnerSlotsAreLocal) {
  Quadratic model;
  LocalSgdOptimizer optimizer(Momentum(kRate, 0.75), Momentum(1, 0.5));
  optimizer.Minimize(model.root, model.loss, {.global_step = model.step});
  ASSERT_OK(model.root.status());
  const auto names = [&](const char* collection) {
    std::vector<std::string> all;
    for (const Variable& variable : VariablesOf(model.root, collection)) {
      all.push_back(variable.name);
    }
    std::sort(all.begin(), all.end());
    return all;
  };
  EXPECT_EQ(names("variables"), std::vector<std::string>({"global_step", "w", "w/Momentum"}));
  EXPECT_EQ(names("local_variables"),
            std::vector<std::string>({"LocalSgd/steps", "w/LocalCopy", "w/LocalCopy/Momentum"}));
  EXPECT_EQ(names("trainable_variables"), std::vector<std::string>({"w"}));
  EXPECT_EQ(optimizer.GetSlot(model.w, "momentum").name, "w/LocalCopy/Momentum");
  EXPECT_EQ(optimizer.Variables(model.root).size(), 4u);  // the slots, the copy, the count
}

// Whether running `op` needs a node that asks for a device of this job.
bool NeedsJob(const Operation& op, const std::string& job) {
  std::vector<const Node*> todo = {op.node()}, seen = todo;
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    if (node->requested_device().find("/job:" + job) != std::string::npos) return true;
    const auto visit = [&](const Node* next) {
      if (next == nullptr || std::find(seen.begin(), seen.end(), next) != seen.end()) return;
      seen.push_back(next);
      todo.push_back(next);
    };
    for (const OutputRef& input : node->inputs()) visit(input.node);
    for (const Node* control : node->control_inputs()) visit(control);
  }
  return false;
}

TEST(LocalSgdTest, ALocalStepNeedsNothingOfAParameterServer) {
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0"), here = root.WithDevice("/job:worker/task:1");
  const Variable step = GlobalStep(ps);
  const Variable w = MakeVariable(ps.WithName("w"), Const(ps, 0.5f));
  const Variable table = MakeVariable(ps.WithName("table"), Const<float>(ps, {1, 2, 3}));
  LocalSgdOptimizer optimizer(Momentum(kRate, 0.75), Momentum(1, 0.5));
  const Output rows = ResourceGather(here, optimizer.Copy(here, table).handle,
                                     Const<int64_t>(here, {2, 0}), DT_FLOAT);
  const Output loss = ReduceSum(here, Square(here, Mul(here, rows, w.value)));
  const Operation train = optimizer.Minimize(here, loss, {.global_step = step});
  ASSERT_TRUE(train.valid()) << root.status();
  for (const Variable& variable : VariablesOf(root, "local_variables")) {
    EXPECT_EQ(variable.handle.node()->requested_device(), "/job:worker/task:1") << variable.name;
  }
  EXPECT_FALSE(NeedsJob(optimizer.local_step(), "ps"));
  EXPECT_TRUE(NeedsJob(train, "ps"));
}

TEST(LocalSgdTest, WrongUseIsAnError) {
  {
    Quadratic model;
    LocalSgdOptimizer(nullptr, Sgd(1)).Minimize(model.root, model.loss);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                  "LocalSgd: inner must be an optimizer, got null");
  }
  {
    Quadratic model;
    LocalSgdOptimizer(Sgd(1), nullptr).Minimize(model.root, model.loss);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                  "LocalSgd: outer must be an optimizer, got null");
  }
  {
    Quadratic model;
    LocalSgdOptimizer(Sgd(1), Sgd(1), {.average_every = 0}).Minimize(model.root, model.loss);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                  "LocalSgd: average_every must be >= 1, got 0");
  }
  {
    Quadratic model;
    LocalSgdOptimizer optimizer(Sgd(1), Sgd(1));
    optimizer.ApplyGradients(model.root, {{Const(model.root, 1.0f), model.w}});
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                  "LocalSgd: gradients must be those of ComputeGradients, got one of 'w'");
  }
  {
    Scope root;
    const Variable table = MakeVariable(root.WithName("table"), Const<float>(root, {1, 2, 3}));
    const Output loss = ReduceSum(root, ResourceGather(root.WithName("rows"), table.handle,
                                                       Const<int64_t>(root, {2, 0}), DT_FLOAT));
    LocalSgdOptimizer(Sgd(1), Sgd(1)).Minimize(root, loss);
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "LocalSgd: the loss must read variable 'table' as a whole, got ResourceGather "
                  "'rows'; build it on Copy(scope, variable)");
  }
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// Staleness is made by feeding the global step that a step has read.
#include "train/staleness_aware.h"

#include <cmath>
#include <cstdint>
#include <limits>
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
#include "runtime/session.h"
#include "train/adam.h"
#include "train/clip_gradients.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/read_ahead.h"
#include "train/testing/optimizer_losses.h"

// covers: training: gradients that are stale are scaled by a power of 1 + staleness or dropped,
//   both are counted; fresh ones give the values of the plain optimizer bit by bit; a dropped one
//   changes no variable, slot or global step; off by default, without a node

namespace millrace {
namespace {

std::unique_ptr<Optimizer> Sgd(double rate) {
  return std::make_unique<GradientDescentOptimizer>(GradientDescentOptions{.learning_rate = rate});
}
std::unique_ptr<Optimizer> Momentum() {
  return std::make_unique<MomentumOptimizer>(
      MomentumOptions{.learning_rate = 0.5, .momentum = 0.75});
}

// Runs `train` of a model, each step with gradients as stale as the test says.
class Steps {
 public:
  Steps(const Scope& root, Operation train, Variable step, const StalenessAwareOptimizer* optimizer)
      : root_(root), train_(std::move(train)), step_(std::move(step)), optimizer_(optimizer) {}

  Status Begin() {
    const Operation init = GlobalVariablesInitializer(root_);
    const Operation local = LocalVariablesInitializer(root_);
    MR_RETURN_IF_ERROR(root_.status());
    MR_ASSIGN_OR_RETURN(session_, NewSession());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run({}, {}, {init, local}).status();
  }
  // The values of `fetches` in that step.
  StatusOr<std::vector<Tensor>> RunFor(int64_t staleness, std::vector<Feed> feeds,
                                       const std::vector<FetchName>& fetches) {
    MR_ASSIGN_OR_RETURN(const int64_t now, GlobalStepNow());
    feeds.push_back({optimizer_->read_step(), Tensor::Scalar(now - staleness)});
    return session_->Run(feeds, fetches, {train_});
  }
  Status Run(int64_t staleness, std::vector<Feed> feeds = {}) {
    return RunFor(staleness, std::move(feeds), {}).status();
  }
  StatusOr<Tensor> Value(const Output& output) {
    MR_ASSIGN_OR_RETURN(auto values, session_->Run({}, {output}));
    return values[0];
  }
  StatusOr<int64_t> GlobalStepNow() {
    MR_ASSIGN_OR_RETURN(const Tensor value, Value(step_.value));
    return value.scalar<int64_t>();
  }
  // {scaled, dropped}
  StatusOr<Tensor> Counts() { return Value(optimizer_->counts().value); }

 private:
  const Scope& root_;
  const Operation train_;
  const Variable step_;
  const StalenessAwareOptimizer* const optimizer_;
  std::unique_ptr<Session> session_;
};

TEST(StalenessAwareTest, FreshGradientsGiveTheValuesOfThePlainOptimizer) {
  std::vector<Tensor> dense, slots, sparse;
  for (const bool wrap : {false, true}) {
    LinearLoss model({1, 2, 3});
    const Variable step = GlobalStep(model.root);
    StalenessAwareOptimizer aware(Momentum(), {.scale_by_staleness = 1, .drop_above = 0});
    const std::unique_ptr<Optimizer> plain = Momentum();
    Optimizer& optimizer = wrap ? static_cast<Optimizer&>(aware) : *plain;
    const Operation train =
        optimizer.Minimize(model.root, model.loss, {.global_step = step, .name = "step"});
    ASSERT_TRUE(train.valid()) << model.root.status();
    EXPECT_EQ(train.name(), "step");
    const Variable slot = optimizer.GetSlot(model.w, "momentum");
    EXPECT_EQ(slot.name, "w/Momentum");
    const Operation local = LocalVariablesInitializer(model.root);
    const Operation init = GlobalVariablesInitializer(model.root);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(model.root));
    ASSERT_OK(session->Run({}, {}, {init, local}).status());
    for (const Tensor& g : GradientTensors()) {
      ASSERT_OK(session->Run({{model.gradient, g}}, {}, {train}).status());
    }
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {model.w.value, slot.value, step.value}));
    dense.push_back(out[0]);
    slots.push_back(out[1]);
    EXPECT_EQ(out[2].scalar<int64_t>(), 3);
    if (wrap) {
      ASSERT_OK_AND_ASSIGN(const auto counts, session->Run({}, {aware.counts().value}));
      ExpectTensorEqual(counts[0], TensorOf<int64_t>({2}, {0, 0}));
      EXPECT_EQ(aware.Variables(model.root).size(), 2u);  // the slot, the counts
    }
  }
  ExpectTensorEqual(dense[1], dense[0]);
  ExpectTensorEqual(slots[1], slots[0]);
  for (const bool wrap : {false, true}) {
    TableLoss model;
    const Variable step = GlobalStep(model.root);
    StalenessAwareOptimizer aware(std::make_unique<AdamOptimizer>(),
                                  {.scale_by_staleness = 1, .drop_above = 0});
    AdamOptimizer adam;
    Optimizer& optimizer = wrap ? static_cast<Optimizer&>(aware) : adam;
    const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = step});
    const Operation local = LocalVariablesInitializer(model.root);
    const Operation init = GlobalVariablesInitializer(model.root);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(model.root));
    ASSERT_OK(session->Run({}, {}, {init, local}).status());
    for (int i = 0; i < 2; ++i) ASSERT_OK(session->Run({}, {}, {train}).status());
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {model.table.value}));
    sparse.push_back(out[0]);
  }
  ExpectTensorEqual(sparse[1], sparse[0]);
}

// w -= rate * gradient * (1 + staleness)^-power
TEST(StalenessAwareTest, StaleGradientsAreScaledByAPowerOfOnePlusStaleness) {
  for (const double power : {1.0, 0.5, 2.0}) {
    SCOPED_TRACE(power);
    LinearLoss model({0, 0, 0});
    const Variable step = GlobalStep(model.root);
    StalenessAwareOptimizer optimizer(Sgd(0.5), {.scale_by_staleness = power});
    const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = step});
    Steps steps(model.root, train, step, &optimizer);
    ASSERT_OK(steps.Begin());
    float sum = 0;  // of the scales
    for (const int64_t staleness : {1, 2, 0, 3}) {
      ASSERT_OK(
          steps.Run(staleness, {{model.gradient, TensorOf<float>({3}, {2.0f, -4.0f, 0.0f})}}));
      // Each scale is rounded once, to the gradient's float.
      sum += static_cast<float>(std::pow(1.0 + static_cast<double>(staleness), -power));
      ASSERT_OK_AND_ASSIGN(const Tensor w, steps.Value(model.w.value));
      EXPECT_FLOAT_EQ(w.flat<float>()[0], -sum);
      EXPECT_FLOAT_EQ(w.flat<float>()[1], 2 * sum);
      EXPECT_EQ(w.flat<float>()[2], 0);
    }
    ASSERT_OK_AND_ASSIGN(const int64_t counted, steps.GlobalStepNow());
    EXPECT_EQ(counted, 4);
    ASSERT_OK_AND_ASSIGN(const Tensor counts, steps.Counts());
    ExpectTensorEqual(counts, TensorOf<int64_t>({2}, {3, 0}));
    // A counter that was set back.
    ASSERT_OK(steps.Run(-5, {{model.gradient, TensorOf<float>({3}, {2.0f, -4.0f, 0.0f})}}));
    ASSERT_OK_AND_ASSIGN(const Tensor w, steps.Value(model.w.value));
    EXPECT_FLOAT_EQ(w.flat<float>()[0], -(sum + 1));
  }
}

// Rows 1, 3, 1 of the table: row 1 has the gradient 2, row 3 has 1.
TEST(StalenessAwareTest, SparseGradientsAreScaledByTheirValues) {
  TableLoss model;
  const Variable step = GlobalStep(model.root);
  StalenessAwareOptimizer optimizer(Sgd(0.5), {.scale_by_staleness = 1});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = step});
  EXPECT_FALSE(model.HasDenseGradient());
  Steps steps(model.root, train, step, &optimizer);
  ASSERT_OK(steps.Begin());
  ASSERT_OK(steps.Run(1));
  ASSERT_OK(steps.Run(3));
  // 0.5 * (1/2 + 1/4) of each gradient: exact in float.
  ASSERT_OK_AND_ASSIGN(const Tensor table, steps.Value(model.table.value));
  ExpectTensorEqual(table, TensorOf<float>({4, 2}, {0, 1, 1.25f, 2.25f, 4, 5, 5.625f, 6.625f}));
}

// With a clip the scale is that of the learning rate: what is clipped is the gradient.
TEST(StalenessAwareTest, GradientsAreClippedBeforeTheyAreScaled) {
  LinearLoss model({0});
  const Variable step = GlobalStep(model.root);
  StalenessAwareOptimizer optimizer(Sgd(1), {.scale_by_staleness = 1});
  const Operation train =
      optimizer.Minimize(model.root, model.loss, {.global_step = step, .clip = ClipByValue(-1, 1)});
  Steps steps(model.root, train, step, &optimizer);
  ASSERT_OK(steps.Begin());
  ASSERT_OK(steps.Run(3, {{model.gradient, TensorOf<float>({1}, {8.0f})}}));
  ASSERT_OK_AND_ASSIGN(const Tensor w, steps.Value(model.w.value));
  ExpectTensorEqual(w, TensorOf<float>({1}, {-0.25f}));
}

TEST(StalenessAwareTest, ADroppedGradientChangesNothingAndIsCounted) {
  LinearLoss model({1, 2, 3});
  const Variable step = GlobalStep(model.root);
  StalenessAwareOptimizer optimizer(Momentum(), {.scale_by_staleness = 1, .drop_above = 1});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = step});
  const Variable slot = optimizer.GetSlot(model.w, "momentum");
  Steps steps(model.root, train, step, &optimizer);
  ASSERT_OK(steps.Begin());
  const std::vector<Tensor> g = GradientTensors();
  const auto state = [&]() -> StatusOr<std::vector<Tensor>> {
    std::vector<Tensor> all;
    for (const Output& output : {model.w.value, slot.value, step.value}) {
      MR_ASSIGN_OR_RETURN(all.emplace_back(), steps.Value(output));
    }
    return all;
  };
  ASSERT_OK(steps.Run(0, {{model.gradient, g[0]}}));
  ASSERT_OK(steps.Run(1, {{model.gradient, g[1]}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> before, state());
  EXPECT_EQ(before[2].scalar<int64_t>(), 2);
  for (const int64_t staleness : {2, 100}) {
    ASSERT_OK(steps.Run(staleness, {{model.gradient, g[2]}}));
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> after, state());
    for (size_t i = 0; i < before.size(); ++i) ExpectTensorEqual(after[i], before[i]);
  }
  // accumulation = 0.75 * accumulation + gradient / (1 + staleness); w -= 0.5 * accumulation.
  const float first = 0.5f, second = 0.75f * first + 0.25f / 2;
  EXPECT_EQ(before[0].flat<float>()[0], 1 - 0.5f * first - 0.5f * second);
  EXPECT_EQ(before[1].flat<float>()[0], second);
  ASSERT_OK_AND_ASSIGN(const Tensor counts, steps.Counts());
  ExpectTensorEqual(counts, TensorOf<int64_t>({2}, {1, 2}));
  // And it goes on.
  ASSERT_OK(steps.Run(0, {{model.gradient, g[2]}}));
  ASSERT_OK_AND_ASSIGN(const int64_t counted, steps.GlobalStepNow());
  EXPECT_EQ(counted, 3);
}

// Adam's sparse update decays all moments by ops that no gradient leads to, and moves its powers
// after the updates.
TEST(StalenessAwareTest, ADroppedSparseGradientLeavesAdamsMomentsAndPowers) {
  TableLoss model;
  const Variable step = GlobalStep(model.root);
  StalenessAwareOptimizer optimizer(std::make_unique<AdamOptimizer>(), {.drop_above = 0});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = step});
  const Output after = StepAfter(model.root, train, step);
  Steps steps(model.root, train, step, &optimizer);
  ASSERT_OK(steps.Begin());
  ASSERT_OK(steps.Run(0));
  // m, v, the powers; and the table itself and the global step.
  std::vector<Variable> variables;
  for (const Variable& variable : optimizer.Variables(model.root)) {
    if (variable.name != optimizer.counts().name) variables.push_back(variable);
  }
  ASSERT_EQ(variables.size(), 4u);
  variables.push_back(model.table);
  variables.push_back(step);
  std::vector<Tensor> before;
  for (const Variable& variable : variables) {
    ASSERT_OK_AND_ASSIGN(before.emplace_back(), steps.Value(variable.value));
  }
  ASSERT_OK(steps.Run(1));
  for (size_t i = 0; i < variables.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const Tensor value, steps.Value(variables[i].value));
    EXPECT_EQ(value, before[i]) << variables[i].name;
  }
  ASSERT_OK_AND_ASSIGN(const Tensor counts, steps.Counts());
  ExpectTensorEqual(counts, TensorOf<int64_t>({2}, {0, 1}));
  // What waits for the step runs after a dropped one, too.
  ASSERT_OK_AND_ASSIGN(const auto out, steps.RunFor(7, {}, {after, optimizer.staleness()}));
  EXPECT_EQ(out[0].scalar<int64_t>(), 1);
  EXPECT_EQ(out[1].scalar<int64_t>(), 7);
}

// With no feed: a session's step is fresh, whatever the global step is.
TEST(StalenessAwareTest, TheReadStepIsThatOfTheVariables) {
  LinearLoss model({0});
  const Variable step = GlobalStep(model.root);
  StalenessAwareOptimizer optimizer(Sgd(1), {.drop_above = 0});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = step});
  ASSERT_OK_AND_ASSIGN(const auto out, [&]() -> StatusOr<std::vector<Tensor>> {
    const Operation init = GlobalVariablesInitializer(model.root);
    const Operation local = LocalVariablesInitializer(model.root);
    MR_RETURN_IF_ERROR(model.root.status());
    MR_ASSIGN_OR_RETURN(const auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(model.root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init, local}).status());
    const Feed feed = {model.gradient, TensorOf<float>({1}, {1.0f})};
    for (int i = 0; i < 3; ++i) {
      MR_RETURN_IF_ERROR(session->Run({feed}, {}, {train}).status());
    }
    return session->Run({feed}, {optimizer.staleness(), model.w.value});
  }());
  EXPECT_EQ(out[0].scalar<int64_t>(), 0);
  ExpectTensorEqual(out[1], TensorOf<float>({1}, {-3.0f}));
}

// On a parameter server: all that decides is next to the global step, and read-ahead feeds the
// trainer's read of it.
TEST(StalenessAwareTest, ReadAheadFeedsTheReadStepWithTheVariables) {
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0"), here = root.WithDevice("/job:worker/task:3");
  const Variable step = GlobalStep(ps);
  const Variable w = MakeVariable(ps.WithName("w"), Const(ps, 0.5f));
  const Output x = Placeholder(here.WithName("x"), DT_FLOAT, {-1});
  const Output loss = ReduceSum(here, Square(here, Mul(here, x, w.value)));
  StalenessAwareOptimizer optimizer(Sgd(0.1), {.scale_by_staleness = 1, .drop_above = 2});
  const Operation train = optimizer.Minimize(here, loss, {.global_step = step});
  ASSERT_TRUE(train.valid()) << root.status();
  EXPECT_EQ(train.node()->requested_device(), "/job:ps/task:0");
  EXPECT_EQ(optimizer.staleness().node()->requested_device(), "/job:ps/task:0");
  EXPECT_EQ(optimizer.read_step().node()->requested_device(), "/job:worker/task:3");
  EXPECT_EQ(optimizer.counts().name, "StalenessAware/counts_worker_3");
  EXPECT_EQ(optimizer.counts().handle.node()->requested_device(), "/job:ps/task:0");
  const Output after = StepAfter(root.WithName("step_after"), train, step);
  ASSERT_OK_AND_ASSIGN(
      const ReadAhead ahead,
      ReadAhead::Make(root, {.step_after = after, .global_step = step, .also = {loss}}));
  std::vector<std::string> fed;
  for (const Output& output : ahead.fed()) fed.push_back(output.name());
  EXPECT_EQ(
      fed, std::vector<std::string>({"read_ahead/global_step/There:0", "w/Read/ReadVariableOp:0"}));
  EXPECT_EQ(optimizer.read_step().node()->input(0).node, ahead.fed()[0].node());
  // What comes with the end comes after a step whose update was dropped, too.
  const Node& next = *ahead.next()[1].node()->input(0).node;
  ASSERT_EQ(next.control_inputs().size(), 1u);
  EXPECT_TRUE(next.control_inputs()[0]->traits().is_trigger);
}

TEST(StalenessAwareTest, OffItIsTheInnerOptimizer) {
  int nodes[2] = {};
  for (const bool wrap : {false, true}) {
    LinearLoss model({1, 2, 3});
    const Variable step = GlobalStep(model.root);
    StalenessAwareOptimizer off(Sgd(0.5));
    const std::unique_ptr<Optimizer> plain = Sgd(0.5);
    const Operation train = (wrap ? static_cast<Optimizer&>(off) : *plain)
                                .Minimize(model.root, model.loss, {.global_step = step});
    EXPECT_EQ(train.name(), "GradientDescent");
    EXPECT_FALSE(off.counts().valid());
    EXPECT_TRUE(VariablesOf(model.root, kStalenessCounts).empty());
    nodes[wrap ? 1 : 0] = model.root.graph()->num_nodes();
  }
  EXPECT_EQ(nodes[1], nodes[0]);
  // Nor does it need a global step then.
  LinearLoss model({1});
  StalenessAwareOptimizer off(Sgd(0.5));
  off.Minimize(model.root, model.loss);
  EXPECT_OK(model.root.status());
}

TEST(StalenessAwareTest, WrongOptionsAreErrors) {
  struct Case {
    StalenessAwareOptions options;
    const char* error;
    bool null = false, with_step = true;
  };
  const Case cases[] = {
      {{.scale_by_staleness = -1},
       "StalenessAware: scale_by_staleness must be finite and >= 0, got -1"},
      {{.scale_by_staleness = std::numeric_limits<double>::infinity()},
       "StalenessAware: scale_by_staleness must be finite and >= 0, got inf"},
      {{.drop_above = -2}, "StalenessAware: drop_above must be >= 0, got -2; leave it out"},
      {{.drop_above = 2},
       "StalenessAware: MinimizeOptions::global_step must be given, got none",
       false,
       false},
      {{.scale_by_staleness = 1}, "StalenessAware: inner must be an optimizer, got null", true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.error);
    LinearLoss model({1});
    MinimizeOptions options;
    if (c.with_step) options.global_step = GlobalStep(model.root);
    StalenessAwareOptimizer optimizer(c.null ? nullptr : Sgd(0.5), c.options);
    EXPECT_FALSE(optimizer.Minimize(model.root, model.loss, options).valid());
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument, c.error);
    EXPECT_FALSE(optimizer.GetSlot(model.w, "momentum").valid());
  }
  // The inner one's own errors are its own.
  LinearLoss model({1});
  StalenessAwareOptimizer optimizer(Sgd(std::numeric_limits<double>::infinity()),
                                    {.drop_above = 1});
  optimizer.Minimize(model.root, model.loss, {.global_step = GlobalStep(model.root)});
  EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                "GradientDescent: learning_rate must be finite, got inf");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/composite_optimizer.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adam.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/supervisor.h"
#include "train/sync_replicas.h"

// covers: training: several optimizers, each for variables of its own, are one: their values bit by
//   bit, the global step counted once, also in a synchronous round; two rounds in one step

namespace millrace {
namespace {

// loss = sum(a^2 * x) + sum(b^3): a is dense, b a table of which a step has some rows.
struct Model {
  Scope root;
  Variable a = MakeVariable(root.WithName("a"), Const(root, Tensor::Of<float>({1, -2, 3})));
  Variable b = MakeVariable(root.WithName("b"), Const(root, Tensor::Of<float>({1, 2, 3, 4})));
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {3});
  Variable step = GlobalStep(root);
  Output loss;

  Model() {
    const Output rows =
        ResourceGather(root, b.handle, Const(root, Tensor::Of<int32_t>({0, 3, 0})), DT_FLOAT);
    loss = Add(root, ReduceSum(root, Mul(root, Square(root, a.value), x)),
               ReduceSum(root, Mul(root, Square(root, rows), rows)));
  }

  // a, b and the global step after three steps.
  std::vector<Tensor> Train(const std::vector<Operation>& train) {
    EXPECT_OK(root.status());
    Supervisor supervisor(root, {.save_model_period = absl::ZeroDuration()});
    const StatusOr<std::shared_ptr<Session>> session = supervisor.ManagedSession("");
    EXPECT_OK(session.status());
    if (!session.ok()) return {};
    for (int i = 0; i < 3; ++i) {
      const float f = 0.1f * static_cast<float>(i + 1);
      EXPECT_OK((*session)->Run({{x, Tensor::Of<float>({f, 1, -f})}}, {}, train).status());
    }
    StatusOr<std::vector<Tensor>> values = (*session)->Run({}, {a.value, b.value, step.value});
    EXPECT_OK(values.status());
    EXPECT_OK(supervisor.Stop());
    return values.ok() ? *std::move(values) : std::vector<Tensor>();
  }
};

std::shared_ptr<Optimizer> Adam() {
  return std::make_shared<AdamOptimizer>(AdamOptions{.learning_rate = 0.1});
}
std::shared_ptr<Optimizer> Momentum() {
  return std::make_shared<MomentumOptimizer>(
      MomentumOptions{.learning_rate = 0.01, .momentum = 0.9});
}
std::unique_ptr<CompositeOptimizer> Both(const Model& m) {
  return std::make_unique<CompositeOptimizer>(
      std::vector<CompositeOptimizer::Part>{{Adam(), {m.a}}, {Momentum(), {m.b}}});
}

// Each part with a Minimize of its own; only the first counts the global step.
std::vector<Tensor> TrainedApart() {
  Model m;
  const std::shared_ptr<Optimizer> adam = Adam(), momentum = Momentum();
  const Operation first =
      adam->Minimize(m.root, m.loss, {.global_step = m.step, .variables = {m.a}});
  const Operation second = momentum->Minimize(m.root, m.loss, {.variables = {m.b}});
  return m.Train({first, second});
}

void ExpectSame(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectTensorEqual(got[i], want[i]);
  }
}

TEST(CompositeOptimizerTest, IsItsPartsAndCountsTheStepOnce) {
  Model m;
  const auto both = Both(m);
  const Operation train = both->Minimize(m.root, m.loss, {.global_step = m.step});
  const std::vector<Tensor> got = m.Train({train});
  ExpectSame(got, TrainedApart());
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[2].scalar<int64_t>(), 3);
  EXPECT_EQ(train.name(), "composite");
  EXPECT_EQ(both->GetSlot(m.a, "m").name, "a/Adam");
  EXPECT_EQ(both->GetSlot(m.b, "momentum").name, "b/Momentum");
  EXPECT_FALSE(both->GetSlot(m.b, "m").valid());
  EXPECT_EQ(both->GetSlotNames(), (std::vector<std::string>{"m", "momentum", "v"}));
  std::vector<std::string> names;
  for (const Variable& v : both->Variables(m.root)) names.push_back(v.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a/Adam", "a/Adam_1", "b/Momentum", "beta1_power",
                                             "beta2_power"}));
}

TEST(CompositeOptimizerTest, OneSynchronousRoundIsAroundAllParts) {
  Model m;
  SyncReplicasOptimizer optimizer(Both(m), {.replicas_to_aggregate = 1});
  const Operation train = optimizer.Minimize(m.root, m.loss, {.global_step = m.step});
  ExpectSame(m.Train({train}), TrainedApart());
}

// Neither round needs the other one to be over; each counts the step.
TEST(CompositeOptimizerTest, TwoSynchronousRoundsInOneStepDoNotBlockEachOther) {
  Model m;
  SyncReplicasOptimizer first(Adam(), {.replicas_to_aggregate = 1, .name = "first"});
  SyncReplicasOptimizer second(Momentum(), {.replicas_to_aggregate = 1, .name = "second"});
  const Operation one = first.Minimize(m.root, m.loss, {.global_step = m.step, .variables = {m.a}});
  const Operation two =
      second.Minimize(m.root, m.loss, {.global_step = m.step, .variables = {m.b}});
  std::vector<Tensor> got = m.Train({one, two});
  std::vector<Tensor> want = TrainedApart();
  ASSERT_EQ(got.size(), 3u);
  ASSERT_EQ(want.size(), 3u);
  EXPECT_EQ(got[2].scalar<int64_t>(), 2 * want[2].scalar<int64_t>());
  got.pop_back();
  want.pop_back();
  ExpectSame(got, want);
}

TEST(CompositeOptimizerTest, VariablesOfTheOptionsChooseAmongThem) {
  Model m;
  const auto both = Both(m);
  const Operation train =
      both->Minimize(m.root, m.loss, {.global_step = m.step, .variables = {m.b}});
  const std::vector<Tensor> got = m.Train({train});
  ASSERT_EQ(got.size(), 3u);
  ExpectTensorEqual(got[0], Tensor::Of<float>({1, -2, 3}));
  ExpectTensorEqual(got[1], TrainedApart()[1]);
}

TEST(CompositeOptimizerTest, AClipSeesTheGradientsOfAllParts) {
  Model m;
  size_t seen = 0;
  const auto both = Both(m);
  both->Minimize(
      m.root, m.loss,
      {.global_step = m.step, .clip = [&](ScopeAt, std::vector<GradientAndVariable> gradients) {
         seen = gradients.size();
         return gradients;
       }});
  EXPECT_OK(m.root.status());
  EXPECT_EQ(seen, 2u);
}

TEST(CompositeOptimizerTest, PartsAreChecked) {
  const auto check = [](const auto& parts_of, const std::string& text) {
    Model m;
    CompositeOptimizer optimizer(parts_of(m));
    optimizer.Minimize(m.root, m.loss, {.global_step = m.step});
    EXPECT_STATUS(m.root.status(), absl::StatusCode::kInvalidArgument, text);
  };
  using Parts = std::vector<CompositeOptimizer::Part>;
  check([](const Model&) { return Parts(); }, "composite: there must be a part, got none");
  check(
      [](const Model& m) {
        return Parts{{nullptr, {m.a}}};
      },
      "composite: each part must have an optimizer, got none in part 0");
  check(
      [](const Model& m) {
        return Parts{{Adam(), {m.a}}, {Adam(), {}}};
      },
      "composite: each part must have variables, got none in part 1");
  check(
      [](const Model& m) {
        return Parts{{Adam(), {m.a}}, {Adam(), {m.b, m.a}}};
      },
      "composite: a variable must be in one part once, got 'a' again in part 1");
  check(
      [](const Model&) {
        return Parts{{Adam(), {Variable()}}};
      },
      "composite: variables must be valid, got an invalid one in part 0");

  Model m;
  CompositeOptimizer one({{Adam(), {m.a}}});
  one.Minimize(m.root, m.loss, {.global_step = m.step, .variables = {m.b}});
  EXPECT_STATUS(m.root.status(), absl::StatusCode::kInvalidArgument,
                "composite: each variable must be in a part, got 'b' in none of 1");
}

}  // namespace
}  // namespace millrace

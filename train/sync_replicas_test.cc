// SPDX-License-Identifier: Apache-2.0
#include "train/sync_replicas.h"

#include <algorithm>
#include <cstddef>
#include <functional>
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
#include "ops/ops.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/clip_gradients.h"
#include "train/ftrl.h"
#include "train/gradient_descent.h"
#include "train/local_sgd.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/rms_prop.h"
#include "train/supervisor.h"

// covers: training: a synchronous optimizer with one trainer is the optimizer that it wraps, bit by
//   bit, dense and sparse; what it is made with is checked; a step with a NaN gives nothing

namespace millrace {
namespace {

using Make = std::function<std::unique_ptr<Optimizer>()>;

// A weight, and a table of which a step has some rows, one of them twice.
struct Model {
  Scope root;
  Variable w = MakeVariable(root.WithName("w"), Const(root, Tensor::Of<float>({1, -2, 3})));
  Variable table =
      MakeVariable(root.WithName("table"),
                   Reshape(root, Const(root, Tensor::Of<float>({1, 2, 3, 4, 5, 6, 7, 8})),
                           Const(root, Tensor::Of<int32_t>({4, 2}))));
  Output x = Placeholder(root.WithName("x"), DT_FLOAT, {3});
  Output ids = Placeholder(root.WithName("ids"), DT_INT32, {-1});
  Variable step = GlobalStep(root);
  Output loss;

  Model() {
    const Output rows = ResourceGather(root, table.handle, ids, DT_FLOAT);
    const Output all = Const(root, Tensor::Of<int32_t>({0}));
    const Output both = Const(root, Tensor::Of<int32_t>({0, 1}));
    loss = Add(root, Sum(root, Mul(root, Square(root, w.value), x), all),
               Sum(root, Square(root, rows), both));
  }
};

struct Trained {
  std::vector<Tensor> values;  // of all variables, by name
  std::vector<std::string> names;
};

Trained TrainFiveSteps(Model* model, Optimizer* optimizer, const Operation& train) {
  Trained trained;
  std::vector<Variable> variables = optimizer->Variables(model->root);
  for (const Variable& v : {model->w, model->table, model->step}) variables.push_back(v);
  std::vector<FetchName> fetches;
  for (const Variable& v : variables) {
    trained.names.push_back(v.name);
    fetches.emplace_back(v.value);
  }
  Supervisor supervisor(model->root, {.save_model_period = absl::ZeroDuration()});
  const StatusOr<std::shared_ptr<Session>> session = supervisor.ManagedSession("");
  EXPECT_OK(session.status());
  if (!session.ok()) return trained;
  for (int i = 0; i < 5; ++i) {
    const float f = 0.1f * static_cast<float>(i + 1);
    EXPECT_OK((*session)
                  ->Run({{model->x, Tensor::Of<float>({f, 1, -f})},
                         {model->ids, Tensor::Of<int32_t>({i % 3, 3, i % 3})}},
                        {}, {train})
                  .status());
  }
  StatusOr<std::vector<Tensor>> values = (*session)->Run({}, fetches);
  EXPECT_OK(values.status());
  if (values.ok()) trained.values = *std::move(values);
  EXPECT_OK(supervisor.Stop());
  return trained;
}

struct Case {
  const char* name;
  Make make;
};

class SyncReplicasOptimizerTest : public ::testing::TestWithParam<Case> {};

TEST_P(SyncReplicasOptimizerTest, WithOneTrainerItIsTheOptimizerThatItWraps) {
  Model plain, synchronous;
  const std::unique_ptr<Optimizer> inner = GetParam().make();
  const Operation one = inner->Minimize(plain.root, plain.loss, {.global_step = plain.step});
  ASSERT_OK(plain.root.status());
  SyncReplicasOptimizer optimizer(GetParam().make(), {.replicas_to_aggregate = 1});
  const Operation other =
      optimizer.Minimize(synchronous.root, synchronous.loss, {.global_step = synchronous.step});
  ASSERT_OK(synchronous.root.status());
  const Trained want = TrainFiveSteps(&plain, inner.get(), one);
  const Trained got = TrainFiveSteps(&synchronous, &optimizer, other);
  EXPECT_EQ(want.names, got.names);
  ASSERT_EQ(want.values.size(), got.values.size());
  for (size_t i = 0; i < want.values.size(); ++i) {
    SCOPED_TRACE(want.names[i]);
    ExpectTensorEqual(got.values[i], want.values[i]);
  }
  EXPECT_EQ(optimizer.GetSlotNames(), inner->GetSlotNames());
  for (const std::string& slot : inner->GetSlotNames()) {
    EXPECT_EQ(optimizer.GetSlot(synchronous.w, slot).name, inner->GetSlot(plain.w, slot).name);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, SyncReplicasOptimizerTest,
    ::testing::Values(
        Case{"GradientDescent",
             [] {
               return std::make_unique<GradientDescentOptimizer>(
                   GradientDescentOptions{.learning_rate = 0.1});
             }},
        Case{"Momentum",
             [] {
               return std::make_unique<MomentumOptimizer>(
                   MomentumOptions{.learning_rate = 0.1, .momentum = 0.9});
             }},
        Case{"Adam", [] { return std::make_unique<AdamOptimizer>(); }},
        Case{"Adagrad",
             [] {
               return std::make_unique<AdagradOptimizer>(AdagradOptions{.learning_rate = 0.1});
             }},
        Case{"Ftrl",
             [] { return std::make_unique<FtrlOptimizer>(FtrlOptions{.learning_rate = 0.1}); }},
        Case{"RMSProp",
             [] {
               return std::make_unique<RMSPropOptimizer>(RMSPropOptions{.learning_rate = 0.01});
             }}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

std::unique_ptr<Optimizer> Descent() {
  return std::make_unique<GradientDescentOptimizer>(GradientDescentOptions{.learning_rate = 0.1});
}

// What reads a slot, or a summary of it, must not wait for other trainers.
TEST(SyncReplicasGraphTest, VariablesAreReadWithoutAStep) {
  Model model;
  SyncReplicasOptimizer optimizer(std::make_unique<AdamOptimizer>(), {.replicas_to_aggregate = 2});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = model.step});
  const Operation init = GlobalVariablesInitializer(model.root);
  std::vector<FetchName> fetches;
  for (const Variable& v : optimizer.Variables(model.root)) fetches.emplace_back(v.value);
  ASSERT_GE(fetches.size(), 6u);  // two slots of two variables, two powers
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}));
  ASSERT_OK(session->Run({}, fetches));
  EXPECT_TRUE(train.valid());
}

TEST(SyncReplicasGraphTest, WithoutTheLocalInitialisersTheFirstGradientIsNotTaken) {
  Model model;
  SyncReplicasOptimizer optimizer(Descent(), {.replicas_to_aggregate = 1});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = model.step});
  const Output counts = optimizer.Counts(model.root);
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}));
  const std::vector<Feed> feeds = {{model.x, Tensor::Of<float>({1, 1, 1})},
                                   {model.ids, Tensor::Of<int32_t>({0})}};
  for (int i = 0; i < 3; ++i) ASSERT_OK(session->Run(feeds, {}, {train}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> values,
                       session->Run({}, {model.step.value, counts}));
  EXPECT_EQ(values[0].scalar<int64_t>(), 2);
  ExpectTensorEqual(values[1], Tensor::Of<int64_t>({2, 0, 1, 1}));
}

TEST(SyncReplicasGraphTest, ClipsAreOfEachGradient) {
  Model model;
  SyncReplicasOptimizer optimizer(Descent(), {.replicas_to_aggregate = 1});
  const Operation train = optimizer.Minimize(
      model.root, model.loss, {.global_step = model.step, .clip = ClipByValue(-1, 1)});
  ASSERT_OK(model.root.status());
  Supervisor supervisor(model.root, {.save_model_period = absl::ZeroDuration()});
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(""));
  ASSERT_OK(
      session->Run({{model.x, Tensor::Of<float>({1, 1, 1})}, {model.ids, Tensor::Of<int32_t>({0})}},
                   {}, {train}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> w, session->Run({}, {model.w.value}));
  ExpectTensorNear(w[0], Tensor::Of<float>({0.9f, -1.9f, 2.9f}), 1e-6, 1e-6);
  EXPECT_OK(supervisor.Stop());
}

// Which variable has it, and in which order gradients are given, makes no difference: the next
// step's updates are those of its own gradients, and no mean with rests of the failed ones.
TEST(SyncReplicasGraphTest, AStepWithANaNGivesNothing) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  Model model;
  SyncReplicasOptimizer optimizer(Descent(), {.replicas_to_aggregate = 1});
  const Operation train = optimizer.Minimize(model.root, model.loss, {.global_step = model.step});
  ASSERT_OK(model.root.status());
  Supervisor supervisor(model.root, {.save_model_period = absl::ZeroDuration()});
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(""));
  for (int i = 0; i < 10; ++i) {
    EXPECT_STATUS(
        session
            ->Run(
                {{model.x, Tensor::Of<float>({1, kNaN, 1})}, {model.ids, Tensor::Of<int32_t>({0})}},
                {}, {train})
            .status(),
        absl::StatusCode::kInvalidArgument, "the gradient of this process for 'w' must be finite");
  }
  ASSERT_OK(
      session->Run({{model.x, Tensor::Of<float>({1, 1, 1})}, {model.ids, Tensor::Of<int32_t>({3})}},
                   {}, {train}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       session->Run({}, {model.w.value, model.table.value, model.step.value}));
  ExpectTensorNear(got[0], Tensor::Of<float>({0.8f, -1.6f, 2.4f}), 1e-6, 1e-6);
  ASSERT_EQ(got[1].num_elements(), 8);
  const std::vector<float> rows = {1, 2, 3, 4, 5, 6, 5.6f, 6.4f};
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(got[1].flat<float>()[i], rows[i], 1e-6) << i;
  EXPECT_EQ(got[2].scalar<int64_t>(), 1);
  EXPECT_OK(supervisor.Stop());
}

TEST(SyncReplicasGraphTest, ItIsNotAroundLocalSgd) {
  Model model;
  const Output loss = Sum(model.root, model.w.value, Const(model.root, Tensor::Of<int32_t>({0})));
  SyncReplicasOptimizer optimizer(std::make_unique<LocalSgdOptimizer>(Descent(), Descent()),
                                  {.replicas_to_aggregate = 1});
  optimizer.Minimize(model.root, loss, {.global_step = model.step, .variables = {model.w}});
  EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                "the optimizer to wrap must train without copies, got LocalSgd");
}

TEST(SyncReplicasGraphTest, WhatItIsMadeWithIsChecked) {
  const auto check = [](std::unique_ptr<Optimizer> inner, const SyncReplicasOptions& options,
                        const std::string& text, bool has_step = true) {
    Model model;
    SyncReplicasOptimizer optimizer(std::move(inner), options);
    MinimizeOptions minimize;
    if (has_step) minimize.global_step = model.step;
    optimizer.Minimize(model.root, model.loss, minimize);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument, text);
  };
  check(Descent(), {}, "replicas_to_aggregate must be >= 1, got 0");
  check(Descent(), {.replicas_to_aggregate = -1}, "replicas_to_aggregate must be >= 1, got -1");
  check(Descent(), {.replicas_to_aggregate = 1, .backup_workers = -1},
        "backup_workers must be >= 0, got -1");
  check(Descent(), {.total_num_replicas = 2, .backup_workers = 2},
        "replicas_to_aggregate must be >= 1, got 0");
  check(Descent(), {.replicas_to_aggregate = 3, .total_num_replicas = 3, .backup_workers = 1},
        "replicas_to_aggregate + backup_workers must be <= total_num_replicas 3, got 3 + 1");
  check(Descent(), {.replicas_to_aggregate = 1, .start_wait = absl::Seconds(-1)},
        "start_wait must be >= 0, got -1s");
  check(nullptr, {.replicas_to_aggregate = 1}, "there must be an optimizer to wrap, got none");
  check(Descent(), {.replicas_to_aggregate = 1}, "Global step is required, got none", false);
}

}  // namespace
}  // namespace millrace

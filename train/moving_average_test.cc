// SPDX-License-Identifier: Apache-2.0
#include "train/moving_average.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "layers/variable_update.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/gradient_descent.h"

// covers: variables: moving averages of weights follow TensorFlow's formula and names, of resource
//   and reference variables, with a number of updates or without; they are saved, and restored
//   into the weights to evaluate and export

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// w, which each step sets to what is fed, and its average after that.
struct Averaged {
  Scope root;
  Variable w;
  Output fed, count;
  Operation moved;
  ExponentialMovingAverage average;

  Averaged(double decay, bool counts, bool use_resource = true) : average(Options(decay, counts)) {
    w = MakeVariable(root.WithName("w"), Const(root, 1.0f), {.use_resource = use_resource});
    fed = Placeholder(root.WithName("fed"), DT_FLOAT, PartialShape::Scalar());
    const Operation set = AssignVariable(root, w, fed);
    moved = average.Apply(root.WithControlDependencies({set}), {w});
  }
  ExponentialMovingAverageOptions Options(double decay, bool counts) {
    ExponentialMovingAverageOptions options = {.decay = decay};
    if (counts) {
      count = Placeholder(root.WithName("count"), DT_INT64, PartialShape::Scalar());
      options.num_updates = count;
    }
    return options;
  }
  // The average after each of `values` has been set.
  std::vector<float> After(const std::vector<float>& values) {
    std::vector<float> result;
    const Variable shadow = average.Average(w);
    const Operation init = GlobalVariablesInitializer(root);
    EXPECT_OK(root.status());
    if (!root.ok()) return result;
    const auto session = NewSession();
    EXPECT_OK((*session)->Extend(root));
    EXPECT_OK((*session)->Run({}, {}, {init}).status());
    int64_t step = 0;
    for (const float value : values) {
      std::vector<Feed> feeds = {{fed, Tensor::Scalar(value)}};
      if (count.valid()) feeds.emplace_back(count, Tensor::Scalar(step++));
      EXPECT_OK((*session)->Run(feeds, {}, {moved}).status());
      const auto out = (*session)->Run({}, {shadow.value});
      EXPECT_OK(out.status());
      if (out.ok()) result.push_back((*out)[0].scalar<float>());
    }
    return result;
  }
};

TEST(MovingAverage, FollowsItsFormula) {
  for (const bool use_resource : {true, false}) {
    SCOPED_TRACE(use_resource ? "resource" : "reference");
    Averaged plain(0.9, /*counts=*/false, use_resource);
    const std::vector<float> values = plain.After({1, 2, 3});
    ASSERT_EQ(values.size(), 3u);
    EXPECT_NEAR(values[0], 1, 1e-6);
    EXPECT_NEAR(values[1], 1.1, 1e-6);
    EXPECT_NEAR(values[2], 1.29, 1e-6);
    // Decays 0.1, 2/11, ..., and 0.9 in the end.
    Averaged counted(0.9, /*counts=*/true, use_resource);
    const std::vector<float> faster = counted.After({2, 3});
    ASSERT_EQ(faster.size(), 2u);
    EXPECT_NEAR(faster[0], 1.9, 1e-6);
    EXPECT_NEAR(faster[1], 2.8, 1e-6);
  }
}

TEST(MovingAverage, HasTensorFlowsNamesAndIsNotTrained) {
  Averaged model(0.5, false);
  ASSERT_OK(model.root.status());
  const Variable shadow = model.average.Average(model.w);
  ASSERT_TRUE(shadow.valid());
  EXPECT_EQ(shadow.name, "w/ExponentialMovingAverage");
  EXPECT_EQ(model.average.AverageName(model.w), "w/ExponentialMovingAverage");
  EXPECT_EQ(model.moved.name(), "ExponentialMovingAverage");
  EXPECT_EQ(VariablesOf(model.root).size(), 2u);
  EXPECT_EQ(VariablesOf(model.root, "trainable_variables").size(), 1u);
  const std::vector<Variable> averaged = VariablesOf(model.root, "moving_average_variables");
  ASSERT_EQ(averaged.size(), 1u);
  EXPECT_EQ(averaged[0].name, "w");
  EXPECT_FALSE(ExponentialMovingAverage().Average(model.w).valid());
  EXPECT_FALSE(model.average.Average(Variable()).valid());
}

// Random weights: the average begins with the very value that was drawn.
TEST(MovingAverage, BeginsWithTheInitialValue) {
  Scope root;
  const Variable w = MakeVariable(root.WithName("w"), Shape{100}, DT_DOUBLE,
                                  RandomUniformInitializer({.minval = 1, .maxval = 2}));
  ExponentialMovingAverage average({.decay = 0.9});
  average.Apply(root);
  const Operation init = GlobalVariablesInitializer(root);
  ASSERT_OK(root.status());
  for (int run = 0; run < 10; ++run) {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {w.value, average.Average(w).value}));
    ExpectTensorEqual(out[1], out[0]);
  }
}

// Trained with averages, evaluated from them: in another graph, which has no averages.
TEST(MovingAverage, IsRestoredIntoTheVariable) {
  const std::string path = JoinPath(::testing::TempDir(), "moving_average.ckpt");
  float averages[2] = {};
  {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 1.0f));
    const Variable b = MakeVariable(root.WithName("b"), Const(root, 2.0f));
    const Variable other =
        MakeVariable(root.WithName("other"), Const(root, 3.0f), {.trainable = false});
    const Output loss =
        ReduceSum(root, Mul(root, other.value, Add(root, Mul(root, w.value, w.value), b.value)));
    const Operation update = GradientDescentOptimizer({.learning_rate = 0.05}).Minimize(root, loss);
    ExponentialMovingAverage average({.decay = 0.5});
    const Operation train = average.Apply(root.WithControlDependencies({update}));
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(root));
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}));
    for (int step = 0; step < 4; ++step) ASSERT_OK(session->Run({}, {}, {train}));
    ASSERT_OK_AND_ASSIGN(
        const auto out,
        session->Run({}, {average.Average(w).value, average.Average(b).value, w.value, b.value}));
    for (const size_t i : {0u, 1u}) {
      averages[i] = out[i].scalar<float>();
      EXPECT_NE(averages[i], out[i + 2].scalar<float>());
    }
    ASSERT_OK(saver->Save(session.get(), path, std::nullopt));

    // In the same graph, too: the averages' own variables are left alone.
    const auto names = average.VariablesToRestore(root);
    ASSERT_EQ(names.size(), 3u);
    EXPECT_EQ(names[0].first, "w/ExponentialMovingAverage");
    EXPECT_EQ(names[0].second.name, "w");
    EXPECT_EQ(names[2].first, "other");
  }
  Scope root;
  const Variable b = MakeVariable(root.WithName("b"), Const(root, 0.0f));
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 0.0f));
  const Variable other =
      MakeVariable(root.WithName("other"), Const(root, 0.0f), {.trainable = false});
  const ExponentialMovingAverage average({.decay = 0.5});
  ASSERT_OK_AND_ASSIGN(const auto saver,
                       Saver::Make(root, {.named_variables = average.VariablesToRestore(root)}));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(saver->Restore(session.get(), path));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {w.value, b.value, other.value}));
  EXPECT_EQ(out[0].scalar<float>(), averages[0]);
  EXPECT_EQ(out[1].scalar<float>(), averages[1]);
  EXPECT_EQ(out[2].scalar<float>(), 3);
}

// Those without an average keep their names, which no checkpoint would have otherwise.
TEST(MovingAverage, RenamesOnlyWhatHasAnAverage) {
  Scope root;
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 1.0f));
  MakeVariable(root.WithName("frozen"), Const(root, 1.0f));
  const ExponentialMovingAverage average;
  std::vector<std::string> names;
  for (const auto& [name, variable] : average.VariablesToRestore(root, {w})) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"w/ExponentialMovingAverage", "frozen"}));
  names.clear();
  for (const auto& [name, variable] : average.VariablesToRestore(root)) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"w/ExponentialMovingAverage",
                                             "frozen/ExponentialMovingAverage"}));
}

// By two objects, as two calls of the C API are.
TEST(MovingAverage, RefusesToMoveAnAverageTwice) {
  for (const bool use_resource : {true, false}) {
    Scope root;
    const Variable w =
        MakeVariable(root.WithName("w"), Const(root, 1.0f), {.use_resource = use_resource});
    ExponentialMovingAverage({.decay = 0.5}).Apply(root, {w});
    ExponentialMovingAverage({.decay = 0.5, .name = "slow"}).Apply(root, {w});
    ASSERT_OK(root.status()) << "a name of its own";
    ExponentialMovingAverage({.decay = 0.9}).Apply(root, {w});
    EXPECT_STATUS(root.status(), kInvalid,
                  "ExponentialMovingAverage: the average 'w/ExponentialMovingAverage' must be "
                  "moved by one node, got 'ExponentialMovingAverage/");
  }
}

TEST(MovingAverage, RefusesANameThatIsTaken) {
  Scope root;
  MakeVariable(root.WithName("w"), Const(root, 1.0f));
  Const(root.WithName("w/ExponentialMovingAverage"), 1.0f);
  ExponentialMovingAverage().Apply(root);
  EXPECT_STATUS(root.status(), kInvalid,
                "the name 'w/ExponentialMovingAverage' must be free for the average of a variable");
}

TEST(MovingAverage, RefusesWhatHasNoAverage) {
  const auto error = [](const ExponentialMovingAverageOptions& options, DType dtype, int applied) {
    Scope root;
    if (dtype != DT_INVALID) {
      MakeVariable(root.WithName("w"), Shape{2}, dtype, ZerosInitializer());
    }
    ExponentialMovingAverage average(options);
    for (int i = 0; i < applied; ++i) average.Apply(root);
    return root.status();
  };
  EXPECT_OK(error({.decay = 0}, DT_FLOAT, 1));
  EXPECT_OK(error({.decay = 1}, DT_HALF, 1));
  for (const double decay : {-0.1, 1.1, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_STATUS(error({.decay = decay}, DT_FLOAT, 1), kInvalid,
                  "ExponentialMovingAverage: decay must be in [0, 1], got");
  }
  EXPECT_STATUS(error({.name = ""}, DT_FLOAT, 1), kInvalid, "name must be a part of names");
  EXPECT_STATUS(error({}, DT_INVALID, 1), kInvalid, "must have trainable variables, got none");
  EXPECT_STATUS(error({}, DT_INT32, 1), kInvalid, "variable 'w' must be floating, got int32");
  EXPECT_STATUS(error({}, DT_FLOAT, 2), kInvalid, "variable 'w' must be averaged once");
  const Scope other;
  EXPECT_STATUS(error({.decay = Const(other, 0.5f)}, DT_FLOAT, 1), kInvalid,
                "decay must be a number or a tensor of the same graph");
  EXPECT_STATUS(error({.num_updates = Const(other, 1.0f)}, DT_FLOAT, 1), kInvalid,
                "num_updates must be a tensor of the same graph");
  Scope root;
  MakeVariable(root.WithName("w"), Const(root, 1.0f));
  ExponentialMovingAverage({.num_updates = Const<int32_t>(root, {1, 2})}).Apply(root);
  EXPECT_STATUS(root.status(), kInvalid, "num_updates must be a scalar that is a number");
  Scope second;
  ExponentialMovingAverage().Apply(second, {Variable()});
  EXPECT_STATUS(second.status(), kInvalid, "a variable must be one of the graph");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// Hyperparameters: numbers or tensors of the graph, fed and scheduled ones, and which are refused.
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/number_or_output.h"
#include "ops/array/placeholder.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/ftrl.h"
#include "train/gradient_descent.h"
#include "train/learning_rates.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/rms_prop.h"
#include "train/testing/optimizer_losses.h"

// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another

namespace millrace {
namespace {

TEST(HyperparametersTest, MayBeFedInEachStep) {
  LinearLoss model({1, 2});
  const Output rate = Placeholder(model.root.WithName("rate"), DT_FLOAT, {});
  const Operation train =
      GradientDescentOptimizer({.learning_rate = rate}).Minimize(model.root, model.loss);
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const Tensor ones = TensorOf<float>({2}, {1, 1});
  for (const float r : {0.5f, 0.25f}) {
    ASSERT_OK(
        session->Run({{model.gradient, ones}, {rate, Tensor::Scalar(r)}}, {}, {train}).status());
  }
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
  ExpectTensorEqual(w[0], TensorOf<float>({2}, {0.25f, 1.25f}));
}

// The update of step n uses the rate of step n: the step is counted after all variables change.
TEST(HyperparametersTest, ASchedulesRateIsThatOfTheUpdatesMadeBefore) {
  LinearLoss model({0, 0});
  const Variable step = GlobalStep(model.root);
  const Output rate = PiecewiseConstant(model.root, step.value, {0, 1}, {100, 10, 1});
  const Operation train = GradientDescentOptimizer({.learning_rate = rate})
                              .Minimize(model.root, model.loss, {.global_step = step});
  const std::vector<Tensor> ones(4, TensorOf<float>({2}, {-1, 0}));
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, ones));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {100 + 10 + 1 + 1, 0}));
}

TEST(HyperparametersTest, TensorsOfAnotherDtypeAreCastNextToEachVariable) {
  Scope root;
  const Variable a = MakeVariable(root.WithName("a"), Const<float>(root, {1}));
  const Variable b = MakeVariable(root.WithName("b"), Const<double>(root, {1}));
  const Output rate = Const(root.WithName("rate"), 0.5f);
  const Output loss =
      Add(root, Cast(root, ReduceSum(root, a.value), DT_DOUBLE), ReduceSum(root, b.value));
  const Operation train = GradientDescentOptimizer({.learning_rate = rate}).Minimize(root, loss);
  const Operation init = GlobalVariablesInitializer(root);
  ASSERT_OK(root.status());
  EXPECT_EQ(root.graph()->FindNode("GradientDescent/update_a/learning_rate"), nullptr);
  const Node* cast = root.graph()->FindNode("GradientDescent/update_b/learning_rate");
  ASSERT_NE(cast, nullptr);
  EXPECT_EQ(cast->op(), "Cast");
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  ASSERT_OK(session->Run({}, {}, {train}).status());
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {a.value, b.value}));
  ExpectTensorEqual(out[0], TensorOf<float>({1}, {0.5f}));
  ExpectTensorEqual(out[1], TensorOf<double>({1}, {0.5}));
}

// With constants of the graph in place of numbers every optimizer does the same.
TEST(HyperparametersTest, TensorsDoWhatNumbersDo) {
  using Wrap = std::function<NumberOrOutput(double)>;
  using Make = std::function<std::unique_ptr<Optimizer>(const Wrap&)>;
  const Make optimizers[] = {
      [](const Wrap& n) {
        return std::make_unique<GradientDescentOptimizer>(
            GradientDescentOptions{.learning_rate = n(0.3)});
      },
      [](const Wrap& n) {
        return std::make_unique<AdagradOptimizer>(AdagradOptions{.learning_rate = n(0.3)});
      },
      [](const Wrap& n) {
        return std::make_unique<AdamOptimizer>(AdamOptions{
            .learning_rate = n(0.3), .beta1 = n(0.8), .beta2 = n(0.95), .epsilon = n(0.01)});
      },
      [](const Wrap& n) {
        return std::make_unique<MomentumOptimizer>(
            MomentumOptions{.learning_rate = n(0.3), .momentum = n(0.7)});
      },
      [](const Wrap& n) {
        return std::make_unique<RMSPropOptimizer>(RMSPropOptions{
            .learning_rate = n(0.3), .decay = n(0.8), .momentum = n(0.5), .epsilon = n(0.01)});
      },
      [](const Wrap& n) {
        return std::make_unique<FtrlOptimizer>(
            FtrlOptions{.learning_rate = n(0.3), .l1_regularization_strength = 0.01});
      }};
  for (size_t i = 0; i < std::size(optimizers); ++i) {
    SCOPED_TRACE(i);
    std::vector<std::vector<Tensor>> results;
    for (const bool tensors : {false, true}) {
      Scope root;
      const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, -2}));
      const Variable table =
          MakeVariable(root.WithName("table"), Const(root, TensorOf<float>({3, 1}, {0.5, 1, 2})));
      const Output rows =
          ResourceGather(root, table.handle, Const<int64_t>(root, {2, 0, 2}), DT_FLOAT);
      const Output loss =
          Add(root, ReduceSum(root, Square(root, w.value)), ReduceSum(root, Square(root, rows)));
      const auto optimizer = optimizers[i]([&](double number) {
        return tensors ? NumberOrOutput(Const(root, static_cast<float>(number)))
                       : NumberOrOutput(number);
      });
      const Operation train = optimizer->Minimize(root, loss);
      const Operation init = GlobalVariablesInitializer(root);
      ASSERT_OK(root.status());
      ASSERT_OK_AND_ASSIGN(auto session, NewSession());
      ASSERT_OK(session->Extend(root));
      ASSERT_OK(session->Run({}, {}, {init}).status());
      for (int step = 0; step < 3; ++step) ASSERT_OK(session->Run({}, {}, {train}).status());
      ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {w.value, table.value}));
      results.push_back(std::move(out));
    }
    ExpectTensorNear(results[1][0], results[0][0], 1e-5, 1e-6);
    ExpectTensorNear(results[1][1], results[0][1], 1e-5, 1e-6);
    EXPECT_NE(results[0][0].flat<float>()[0], 1) << "nothing moved";
  }
}

TEST(HyperparametersTest, NumbersAreConstantsWithTensorFlowsNames) {
  LinearLoss model({1});
  AdamOptimizer().Minimize(model.root, model.loss);
  for (const char* name : {"learning_rate", "beta1", "beta2", "epsilon"}) {
    const Node* node = model.root.graph()->FindNode(absl::StrCat("Adam/update_w/", name));
    ASSERT_NE(node, nullptr) << name;
    EXPECT_EQ(node->op(), "Const");
  }
}

TEST(HyperparametersTest, ThatAreNoFloatingScalarsAreErrorsByName) {
  using Minimize = std::function<void(LinearLoss*, const NumberOrOutput&)>;
  const auto with = [](auto options, auto member, auto make) -> Minimize {
    return [=](LinearLoss* model, const NumberOrOutput& bad) {
      auto own = options;
      own.*member = bad;
      make(own).Minimize(model->root, model->loss);
    };
  };
  const auto descent = [](const GradientDescentOptions& o) { return GradientDescentOptimizer(o); };
  const auto adagrad = [](const AdagradOptions& o) { return AdagradOptimizer(o); };
  const auto adam = [](const AdamOptions& o) { return AdamOptimizer(o); };
  const auto momentum = [](const MomentumOptions& o) { return MomentumOptimizer(o); };
  const auto rms_prop = [](const RMSPropOptions& o) { return RMSPropOptimizer(o); };
  const std::pair<Minimize, const char*> options[] = {
      {with(GradientDescentOptions(), &GradientDescentOptions::learning_rate, descent),
       "GradientDescent: learning_rate"},
      {with(AdagradOptions(), &AdagradOptions::learning_rate, adagrad), "Adagrad: learning_rate"},
      {with(AdamOptions(), &AdamOptions::learning_rate, adam), "Adam: learning_rate"},
      {with(AdamOptions(), &AdamOptions::beta1, adam), "Adam: beta1"},
      {with(AdamOptions(), &AdamOptions::beta2, adam), "Adam: beta2"},
      {with(AdamOptions(), &AdamOptions::epsilon, adam), "Adam: epsilon"},
      {with(MomentumOptions(), &MomentumOptions::learning_rate, momentum),
       "Momentum: learning_rate"},
      {with(MomentumOptions(), &MomentumOptions::momentum, momentum), "Momentum: momentum"},
      {with(RMSPropOptions(), &RMSPropOptions::learning_rate, rms_prop), "RMSProp: learning_rate"},
      {with(RMSPropOptions(), &RMSPropOptions::decay, rms_prop), "RMSProp: decay"},
      {with(RMSPropOptions(), &RMSPropOptions::momentum, rms_prop), "RMSProp: momentum"},
      {with(RMSPropOptions(), &RMSPropOptions::epsilon, rms_prop), "RMSProp: epsilon"},
  };
  Scope other;
  const Output foreign = Placeholder(other.WithName("far"), DT_FLOAT, {});
  struct Bad {
    std::function<Output(const Scope&)> make;
    const char* text;
  };
  const Bad bad[] = {
      {[](const Scope& s) { return Placeholder(s.WithName("x"), DT_FLOAT, {2}); },
       " must be a scalar, got shape [2] of 'x:0'; built at "},
      {[](const Scope& s) { return Placeholder(s.WithName("x"), DT_INT32, {}); },
       " must be floating, got int32 from 'x:0'"},
      {[](const Scope&) { return Output(); },
       " must be a number or a tensor of the graph, got an invalid Output"},
      {[&](const Scope&) { return foreign; },
       " must be a number or a tensor of the same graph, got 'far:0' of another"},
  };
  for (const auto& [minimize, option] : options) {
    for (const Bad& b : bad) {
      LinearLoss model({1});
      minimize(&model, b.make(model.root));
      EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                    absl::StrCat(option, b.text));
      EXPECT_EQ(SlotNames(model.root).size(), 0u) << option;
    }
  }
}

TEST(HyperparametersTest, InfiniteNanAndTooLargeNumbersAreErrorsByName) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::pair<std::function<void(LinearLoss*)>, const char*> cases[] = {
      {[&](LinearLoss* m) {
         GradientDescentOptimizer({.learning_rate = std::nan("")}).Minimize(m->root, m->loss);
       },
       "GradientDescent: learning_rate must be finite, got nan; built at "},
      {[&](LinearLoss* m) { MomentumOptimizer({.momentum = -inf}).Minimize(m->root, m->loss); },
       "Momentum: momentum must be finite, got -inf"},
      {[&](LinearLoss* m) { RMSPropOptimizer({.decay = inf}).Minimize(m->root, m->loss); },
       "RMSProp: decay must be finite, got inf"},
      {[&](LinearLoss* m) { AdagradOptimizer({.learning_rate = inf}).Minimize(m->root, m->loss); },
       "Adagrad: learning_rate must be finite, got inf"},
      {[&](LinearLoss* m) { AdamOptimizer({.epsilon = inf}).Minimize(m->root, m->loss); },
       "Adam: epsilon must be finite, got inf"},
      // A number that the variable's dtype cannot represent.
      {[&](LinearLoss* m) {
         MomentumOptimizer({.learning_rate = 1e39}).Minimize(m->root, m->loss);
       },
       "'Momentum/update_w/learning_rate': a number must be a value of the dtype float, got 1e+39, "
       "next to 'w/Read/ReadVariableOp:0'"},
  };
  for (const auto& [minimize, text] : cases) {
    LinearLoss model({1});
    minimize(&model);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument, text);
  }
}

TEST(HyperparametersTest, AFedRateThatIsNoScalarEndsTheStep) {
  LinearLoss model({1});
  const Output rate = Placeholder(model.root.WithName("rate"), DT_FLOAT);
  const Operation train =
      GradientDescentOptimizer({.learning_rate = rate}).Minimize(model.root, model.loss);
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  EXPECT_STATUS(
      session
          ->Run({{model.gradient, TensorOf<float>({1}, {1})}, {rate, TensorOf<float>({2}, {1, 1})}},
                {}, {train})
          .status(),
      absl::StatusCode::kInvalidArgument, "alpha must be a scalar, got shape [2]");
}

// In TensorFlow 1e-8 in half is 0 as well, without a warning.
TEST(HyperparametersTest, NumbersTooSmallForADtypeAreZeroWithOneWarning) {
  Scope root;
  const Tensor half = Tensor::Scalar<Half>(ToHalf(1));
  const Variable a = MakeVariable(root.WithName("a"), Const(root, half));
  const Variable b = MakeVariable(root.WithName("b"), Const(root, half));
  const Variable c = MakeVariable(root.WithName("c"), Const(root, 1.0f));
  const Output loss = Add(root, Cast(root, Mul(root, a.value, b.value), DT_FLOAT), c.value);
  AdamOptimizer optimizer;
  ::testing::internal::CaptureStderr();
  optimizer.Minimize(root, loss);
  optimizer.Minimize(root, loss);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(root.status());
  const std::string told =
      "Adam: epsilon 1e-08 is too small for half and is 0 "
      "there (first for 'a'); give a larger one";
  const size_t first = log.find(told);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("too small", first + told.size()), std::string::npos) << log;
  const Node* const epsilon = root.graph()->FindNode("Adam/update_a/epsilon");
  ASSERT_NE(epsilon, nullptr);
  ASSERT_OK_AND_ASSIGN(const Tensor value, GetAttr<Tensor>(*epsilon, "value"));
  EXPECT_EQ(ToFloat(value.scalar<Half>()), 0);
}

}  // namespace
}  // namespace millrace

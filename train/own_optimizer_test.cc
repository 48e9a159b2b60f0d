// SPDX-License-Identifier: Apache-2.0
//
// Optimizers that a program writes itself: one that wraps another, one of its own equation.
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/number_or_output.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/state/state.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/testing/optimizer_losses.h"

// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another

namespace millrace {
namespace {

// Wraps another one: its gradients are those of the scaled loss, scaled back before they are
// applied.
class LossScaling : public Optimizer {
 public:
  LossScaling(Optimizer* wrapped, float scale)
      : Optimizer({.name = "LossScaling"}), wrapped_(wrapped), scale_(scale) {}

  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const MinimizeOptions& options) override {
    return wrapped_->ComputeGradients(at, Mul(at, loss, Const(at, scale_)), options);
  }
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options) override {
    std::vector<GradientAndVariable> back = gradients;
    for (GradientAndVariable& pair : back) {
      if (auto* slices = std::get_if<IndexedSlices>(&pair.gradient)) {
        slices->values = Mul(at, slices->values, Const(at, 1 / scale_));
      } else if (HasGradient(pair.gradient)) {
        pair.gradient = Mul(at, std::get<Output>(pair.gradient), Const(at, 1 / scale_));
      }
    }
    return wrapped_->ApplyGradients(at, back, options);
  }
  Variable GetSlot(const Variable& variable, absl::string_view slot) const override {
    return wrapped_->GetSlot(variable, slot);
  }

 private:
  Optimizer* const wrapped_;
  const float scale_;
};

TEST(OwnOptimizerTest, MayWrapAnotherOne) {
  std::vector<Tensor> results;
  for (const bool wrap : {false, true}) {
    LinearLoss model({1, 2, 3});
    const Variable step = GlobalStep(model.root);
    MomentumOptimizer momentum({.learning_rate = 0.5, .momentum = 0.75});
    LossScaling scaling(&momentum, 1024);
    Optimizer& optimizer = wrap ? static_cast<Optimizer&>(scaling) : momentum;
    const Operation train =
        optimizer.Minimize(model.root, model.loss, {.global_step = step, .name = "step"});
    ASSERT_TRUE(train.valid()) << model.root.status();
    EXPECT_EQ(train.name(), "step");
    EXPECT_EQ(optimizer.GetSlot(model.w, "momentum").name, "w/Momentum");
    ASSERT_OK_AND_ASSIGN(auto out, model.Train(train, GradientTensors(), {step.value}));
    EXPECT_EQ(out[1].scalar<int64_t>(), 3);
    results.push_back(out[0]);
    if (!wrap) continue;
    // The scale is a power of two, so no bit differs. The computed gradients are 1024 times as
    // large.
    ExpectTensorEqual(results[1], results[0]);
    const auto pairs = optimizer.ComputeGradients(model.root, model.loss, {});
    ASSERT_EQ(pairs.size(), 1u);
    ASSERT_OK_AND_ASSIGN(const auto scaled,
                         model.session->Run({{model.gradient, TensorOf<float>({3}, {1, 2, 3})}},
                                            {std::get<Output>(pairs[0].gradient)}));
    ExpectTensorEqual(scaled[0], TensorOf<float>({3}, {1024, 2048, 3072}));
  }
}

// What a program needs to write for an optimizer: its data and one equation. Here variable -=
// learning_rate * sign(sum of all gradients so far).
class SignOfSum : public Optimizer {
 public:
  explicit SignOfSum(NumberOrOutput learning_rate)
      : Optimizer({.name = "SignOfSum",
                   .hyperparameters = {{"learning_rate", std::move(learning_rate)}},
                   .slots = {{"sum", 0}}}) {}

 protected:
  Operation ApplyDense(const Scope& scope, const Variable& variable, Output gradient) override {
    const Variable sum = GetSlot(variable, "sum");
    const Operation added = AssignAddVariableOp(scope, sum.handle, gradient);
    const Output now =
        ReadVariableOp(scope.WithControlDependencies({added}), sum.handle, sum.dtype);
    return AssignSubVariableOp(
        scope, variable.handle,
        Mul(scope, Sign(scope, now), Hyperparameter(scope, "learning_rate", variable)));
  }
};

TEST(OwnOptimizerTest, IsItsDataAndItsEquation) {
  LinearLoss model({1, 2, 3});
  SignOfSum optimizer(0.25);
  const Operation train = optimizer.Minimize(model.root, model.loss);
  EXPECT_EQ(SlotNames(model.root), std::vector<std::string>{"w/SignOfSum"});
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors()));
  // Sums: 0.5, 0.75, -1.25; -1, 2, 2.125; 0, 0, 1.
  ExpectTensorEqual(out[0], TensorOf<float>({3}, {0.75f, 1.75f, 2.75f}));

  SignOfSum infinite(std::numeric_limits<double>::infinity());
  LinearLoss other({1});
  infinite.Minimize(other.root, other.loss);
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "SignOfSum: learning_rate must be finite, got inf");
  TableLoss table;
  SignOfSum(0.5).Minimize(table.root, table.loss);
  EXPECT_STATUS(table.root.status(), absl::StatusCode::kUnimplemented,
                "SignOfSum: ApplySparse must be defined to update rows of "
                "'table', got none");
}

}  // namespace
}  // namespace millrace

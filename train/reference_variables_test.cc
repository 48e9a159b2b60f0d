// SPDX-License-Identifier: Apache-2.0
//
// Reference variables, as graphs before resource variables have them, are trained as resource
// variables are: by every optimizer, dense and in rows, with slots, clipping, gates, global step.
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/state/ref_variable.h"
#include "runtime/session.h"
#include "train/counted_step.h"
#include "train/moving_average.h"
#include "train/optimizer.h"
#include "train/optimizers.h"

// covers: variables: reference variables train as resource variables do, bit by bit: all
//   optimizers, dense and in rows, slots and beta powers of their kind and names, clipping, gates,
//   global step

namespace millrace {
namespace {

struct NamedOptimizer {
  const char* name;
  std::function<std::unique_ptr<Optimizer>()> make;
};

const NamedOptimizer kOptimizers[] = {
    {"GradientDescent", [] { return std::make_unique<GradientDescentOptimizer>(); }},
    {"Momentum",
     [] { return std::make_unique<MomentumOptimizer>(MomentumOptions{.use_nesterov = true}); }},
    {"Adagrad", [] { return std::make_unique<AdagradOptimizer>(); }},
    {"Adadelta",
     [] { return std::make_unique<AdadeltaOptimizer>(AdadeltaOptions{.learning_rate = 1}); }},
    {"RMSProp", [] { return std::make_unique<RMSPropOptimizer>(RMSPropOptions{.momentum = 0.5}); }},
    {"centered RMSProp",
     [] { return std::make_unique<RMSPropOptimizer>(RMSPropOptions{.centered = true}); }},
    {"Adam", [] { return std::make_unique<AdamOptimizer>(AdamOptions{.learning_rate = 0.1}); }},
    {"Ftrl", [] { return std::make_unique<FtrlOptimizer>(); }},
    {"Ftrl with shrinkage",
     [] {
       return std::make_unique<FtrlOptimizer>(
           FtrlOptions{.l2_shrinkage_regularization_strength = 0.1});
     }},
    {"ProximalGradientDescent",
     [] {
       return std::make_unique<ProximalGradientDescentOptimizer>(
           ProximalGradientDescentOptions{.l1_regularization_strength = 0.01});
     }},
    {"ProximalAdagrad",
     [] {
       return std::make_unique<ProximalAdagradOptimizer>(
           ProximalAdagradOptions{.l2_regularization_strength = 0.01});
     }},
};

// A table of which three rows are looked up, one of them twice, and a vector; both are trained.
struct Model {
  Scope root;
  Output scale, loss;
  Variable step, table, bias;

  explicit Model(bool use_resource) {
    const VariableAttrs attrs = {.use_resource = use_resource};
    step = MakeVariable(root.WithName("global_step"), Const(root, int64_t{0}),
                        {.trainable = false, .use_resource = use_resource});
    table = MakeVariable(root.WithName("table"),
                         Const(root, TensorOf<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})), attrs);
    bias = MakeVariable(root.WithName("bias"), Const(root, TensorOf<float>({2}, {1, -1})), attrs);
    scale = Placeholder(root.WithName("scale"), DT_FLOAT, PartialShape({2}));
    const Output rows = EmbeddingLookup(root, {table}, Const<int64_t>(root, {1, 3, 1}));
    const Output y = Mul(root, Add(root, rows, bias.value), scale);
    loss = ReduceSum(root, Mul(root, y, y));
  }
};

// All variables after three steps, by name.
std::vector<std::pair<std::string, Tensor>> Trained(const Model& model, const Operation& train) {
  std::vector<std::pair<std::string, Tensor>> result;
  const Operation init = GlobalVariablesInitializer(model.root);
  EXPECT_OK(model.root.status());
  if (!model.root.ok()) return result;
  const auto session = NewSession();
  EXPECT_OK(session.status());
  EXPECT_OK((*session)->Extend(model.root));
  EXPECT_OK((*session)->Run({}, {}, {init}).status());
  for (const float x : {0.5f, -0.25f, 1.0f}) {
    EXPECT_OK(
        (*session)->Run({{model.scale, TensorOf<float>({2}, {x, x / 2})}}, {}, {train}).status());
  }
  for (const Variable& variable : VariablesOf(model.root)) {
    const auto value = (*session)->Run({}, {variable.value});
    EXPECT_OK(value.status()) << variable.name;
    if (value.ok()) result.emplace_back(variable.name, (*value)[0]);
  }
  return result;
}

void ExpectSame(const std::vector<std::pair<std::string, Tensor>>& got,
                const std::vector<std::pair<std::string, Tensor>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(want[i].first);
    EXPECT_EQ(got[i].first, want[i].first);
    ExpectTensorEqual(got[i].second, want[i].second);
  }
}

int CountResourceOps(const Scope& scope) {
  int count = 0;
  for (const auto& node : scope.graph()->nodes()) {
    if (node == nullptr) continue;
    for (const DType type : node->input_types()) count += type == DT_RESOURCE ? 1 : 0;
  }
  return count;
}

TEST(ReferenceVariables, TrainAsResourceVariablesDo) {
  for (const NamedOptimizer& optimizer : kOptimizers) {
    SCOPED_TRACE(optimizer.name);
    std::vector<std::pair<std::string, Tensor>> trained[2];
    for (const bool use_resource : {true, false}) {
      const Model model(use_resource);
      const Operation train =
          optimizer.make()->Minimize(model.root, model.loss, {.global_step = model.step});
      trained[use_resource ? 1 : 0] = Trained(model, train);
      if (!use_resource) {
        EXPECT_EQ(CountResourceOps(model.root), 0) << "all is of one kind";
      }
    }
    ASSERT_FALSE(trained[1].empty());
    EXPECT_EQ(trained[1][0].second.scalar<int64_t>(), 3) << "the global step";
    ExpectSame(trained[0], trained[1]);
  }
}

TEST(ReferenceVariables, TrainWithClippingAndGates) {
  const GradientClip clips[] = {ClipByGlobalNorm(0.5), ClipByNorm(0.5)};
  for (const GradientClip& clip : clips) {
    for (const GateGradients gate :
         {GateGradients::kNone, GateGradients::kOp, GateGradients::kGraph}) {
      std::vector<std::pair<std::string, Tensor>> trained[2];
      for (const bool use_resource : {true, false}) {
        const Model model(use_resource);
        const Operation train =
            AdamOptimizer({.learning_rate = 0.1})
                .Minimize(
                    model.root, model.loss,
                    {.clip = clip, .gate_gradients = gate, .colocate_gradients_with_ops = true});
        trained[use_resource ? 1 : 0] = Trained(model, train);
      }
      ExpectSame(trained[0], trained[1]);
    }
  }
}

// Rows that no id names stay: the gradient of a table is rows, not a tensor of its size.
TEST(ReferenceVariables, GetGradientsInRows) {
  const Model model(false);
  GradientDescentOptimizer optimizer;
  const auto gradients = optimizer.ComputeGradients(model.root, model.loss);
  ASSERT_OK(model.root.status());
  ASSERT_EQ(gradients.size(), 2u);
  EXPECT_EQ(gradients[0].variable.name, "table");
  EXPECT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0].gradient));
  EXPECT_TRUE(std::holds_alternative<Output>(gradients[1].gradient));
}

TEST(ReferenceVariables, AreInParts) {
  for (const bool use_resource : {true, false}) {
    SCOPED_TRACE(use_resource ? "resource" : "reference");
    Scope root;
    const PartitionedVariable table =
        MakePartitionedVariable(root.WithName("table"), Shape{5, 2}, DT_FLOAT, 2,
                                ConstantInitializer(1), {.use_resource = use_resource});
    const Output loss =
        ReduceSum(root, EmbeddingLookup(root, table, Const<int64_t>(root, {0, 4, 4})));
    const Operation train = MomentumOptimizer({.learning_rate = 0.5}).Minimize(root, loss);
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK(session->Run({}, {}, {train}));
    ASSERT_OK_AND_ASSIGN(const auto out,
                         session->Run({}, {table.parts[0].value, table.parts[1].value}));
    ExpectTensorEqual(out[0], TensorOf<float>({3, 2}, {0.5f, 0.5f, 1, 1, 1, 1}));
    ExpectTensorEqual(out[1], TensorOf<float>({2, 2}, {1, 1, 0, 0}));
  }
}

// A loop that counts by itself: a global step of a graph that was read.
TEST(ReferenceVariables, CountAStep) {
  const Model model(false);
  const Operation update = GradientDescentOptimizer().Minimize(model.root, model.loss);
  CountedStepOptions options;
  options.global_step = model.step;
  ASSERT_OK_AND_ASSIGN(const CountedStep counted, MakeCountedStep(model.root, update, options));
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}));
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_OK_AND_ASSIGN(
        const auto out,
        session->Run({{model.scale, TensorOf<float>({2}, {0.1f, 0.1f})}}, {counted.step_after}));
    EXPECT_EQ(StepOf(out[0]), step);
  }
}

// To an op Variable the shape [] says nothing: what is made next to it would have none.
TEST(ReferenceVariables, OfTheOldestKindNeedAShapeThatIsSaid) {
  struct Use {
    const char* name;
    std::function<void(const Scope&, const Variable&)> make;
  };
  const Use uses[] = {
      {"Adam",
       [](const Scope& s, const Variable& v) {
         AdamOptimizer().Minimize(s, Mul(s, v.value, v.value), {.variables = {v}});
       }},
      {"ExponentialMovingAverage",
       [](const Scope& s, const Variable& v) {
         ExponentialMovingAverage average(ExponentialMovingAverageOptions{.decay = 0.5});
         average.Apply(s, {v});
       }},
  };
  for (const Use& use : uses) {
    for (const bool is_said : {false, true}) {
      Scope root;
      Variable v;
      v.name = "v";
      v.dtype = DT_FLOAT;
      v.handle = VariableV1(root.WithName("v"), PartialShape::Scalar(), DT_FLOAT);
      v.value = Identity(root.WithName("v/read"), v.handle);
      v.initializer = Assign(root.WithName("v/Assign"), v.handle, Const(root, 1.0f)).op();
      if (is_said) root.SetShape(v.value, PartialShape::Scalar());
      v.shape = root.shape(v.value);
      use.make(root, v);
      if (is_said) {
        EXPECT_OK(root.status()) << use.name;
        continue;
      }
      EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                    std::string(use.name) +
                        ": variable 'v' must have a shape that is known whole, got <unknown>, "
                        "which is what an op Variable with the shape [] says; tell the graph "
                        "before VariablesOf, as for a scalar: scope.SetShape(*scope.Find("
                        "\"v/read:0\"), PartialShape::Scalar())");
    }
  }
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// What all optimizers share: slots, updates and their names, options of gradients, errors.
#include "train/optimizer.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/array/slice.h"
#include "ops/control/control_flow.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/rms_prop.h"
#include "train/testing/optimizer_losses.h"

// covers: accidents: the error of a loss without a gradient names the node that cuts it
// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another
// covers: variables: parts along any axis have slots cut like them, and are trained as the whole is
// covers: article 2-13: the global step is fetched with the update, before or after it
// covers: article 2-25: Adam with slots and beta powers on the ps, shared by all

namespace millrace {
namespace {

// --- Several updates of one optimizer ------------------------------------------------------------

// As in TensorFlow, the second update of a graph uses the slots of the first; a second graph has
// its own.
TEST(OptimizerTest, MakesASlotOfAVariableOnce) {
  struct Case {
    std::unique_ptr<Optimizer> optimizer;
    std::vector<std::string> slots;
  };
  Case cases[4];
  cases[0] = {std::make_unique<MomentumOptimizer>(), {"w/Momentum"}};
  cases[1] = {std::make_unique<AdagradOptimizer>(), {"w/Adagrad"}};
  cases[2] = {std::make_unique<RMSPropOptimizer>(RMSPropOptions{.centered = true}),
              {"w/RMSProp", "w/RMSProp_1", "w/RMSProp_2"}};
  cases[3] = {std::make_unique<AdamOptimizer>(),
              {"beta1_power", "beta2_power", "w/Adam", "w/Adam_1"}};
  for (const Case& c : cases) {
    for (int graph = 0; graph < 2; ++graph) {
      LinearLoss model({1, 2});
      c.optimizer->Minimize(model.root, model.loss);
      c.optimizer->Minimize(model.root, ReduceSum(model.root, Square(model.root, model.w.value)));
      ASSERT_OK(model.root.status());
      EXPECT_EQ(SlotNames(model.root), c.slots);
    }
  }
}

TEST(OptimizerTest, SecondUpdateGoesOnWithTheVelocityOfTheFirst) {
  LinearLoss model({0, 0});
  MomentumOptimizer optimizer({.learning_rate = 1, .momentum = 0.5});
  const Operation first = optimizer.Minimize(model.root, model.loss);
  const Operation second = optimizer.Minimize(model.root, model.loss);
  const Tensor ones = TensorOf<float>({2}, {1, 0});
  ASSERT_OK(model.Train(first, {ones}).status());
  ASSERT_OK(model.session->Run({{model.gradient, ones}}, {}, {second}).status());
  ASSERT_OK_AND_ASSIGN(const auto w, model.session->Run({}, {model.w.value}));
  ExpectTensorEqual(w[0], TensorOf<float>({2}, {-1 - 1.5f, 0}));
}

// --- Slots by name -------------------------------------------------------------------------------

std::vector<std::string> NamesOf(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name);
  return names;
}

TEST(SlotsTest, AreFoundByTensorFlowsNamesAndKeptForEachGraph) {
  struct Case {
    std::unique_ptr<Optimizer> optimizer;
    std::vector<std::pair<std::string, std::string>> slots;  // sorted
    std::vector<std::string> variables;
  };
  Case cases[5];
  cases[0] = {std::make_unique<GradientDescentOptimizer>(), {}, {}};
  cases[1] = {std::make_unique<MomentumOptimizer>(), {{"momentum", "w/Momentum"}}, {"w/Momentum"}};
  cases[2] = {std::make_unique<AdagradOptimizer>(), {{"accumulator", "w/Adagrad"}}, {"w/Adagrad"}};
  cases[3] = {std::make_unique<RMSPropOptimizer>(RMSPropOptions{.centered = true}),
              {{"mg", "w/RMSProp_1"}, {"momentum", "w/RMSProp_2"}, {"rms", "w/RMSProp"}},
              {"w/RMSProp", "w/RMSProp_1", "w/RMSProp_2"}};
  cases[4] = {std::make_unique<AdamOptimizer>(),
              {{"m", "w/Adam"}, {"v", "w/Adam_1"}},
              {"beta1_power", "beta2_power", "w/Adam", "w/Adam_1"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.optimizer->name());
    LinearLoss models[2] = {LinearLoss({1, 2}), LinearLoss({3, 4})};
    for (const auto& [slot, variable] : c.slots) {
      EXPECT_FALSE(c.optimizer->GetSlot(models[0].w, slot).valid()) << "not yet made";
    }
    // In turns: an optimizer finds the slots that it made in a graph before.
    for (const size_t graph : {0u, 1u, 0u, 1u}) {
      c.optimizer->Minimize(models[graph].root, models[graph].loss);
      ASSERT_OK(models[graph].root.status());
    }
    std::vector<std::string> names;
    for (const LinearLoss& model : models) {
      names.clear();
      for (const auto& [slot, variable] : c.slots) {
        names.push_back(slot);
        const Variable found = c.optimizer->GetSlot(model.w, slot);
        ASSERT_TRUE(found.valid()) << slot;
        EXPECT_EQ(found.name, variable);
        EXPECT_EQ(found.handle.node()->graph(), model.root.graph());
      }
      EXPECT_EQ(NamesOf(c.optimizer->Variables(model.root)), c.variables);
      EXPECT_EQ(SlotNames(model.root), c.variables);
      EXPECT_FALSE(c.optimizer->GetSlot(model.w, "other").valid());
      EXPECT_FALSE(c.optimizer->GetSlot(Variable(), "m").valid());
    }
    EXPECT_EQ(c.optimizer->GetSlotNames(), names);
    EXPECT_TRUE(c.optimizer->Variables(Scope()).empty());
  }
}

TEST(SlotsTest, OfAPartAreTheSamePartOnItsDevice) {
  for (const std::vector<int64_t>& partitions : std::vector<std::vector<int64_t>>{{2, 1}, {1, 2}}) {
    Scope root;
    // The second part is on the second device.
    int made = 0;
    const Scope placed = root.WithDevice([&made](const tensorflow::NodeDef& node) -> std::string {
      return node.op() == "VarHandleOp" ? absl::StrCat("/job:ps/task:", made++ % 2) : "";
    });
    const PartitionedVariable table = MakePartitionedVariable(
        placed.WithName("table"), Shape{5, 2}, DT_FLOAT, partitions, ZerosInitializer());
    Output loss;
    for (const Variable& part : table.parts) {
      const Output sum = ReduceSum(root, Square(root, part.value));
      loss = loss.valid() ? Add(root, loss, sum) : sum;
    }
    AdamOptimizer optimizer;
    optimizer.Minimize(placed, loss);
    ASSERT_OK(root.status());
    for (size_t i = 0; i < 2; ++i) {
      const Variable& part = table.parts[i];
      for (const auto& [slot, name] : {std::pair("m", "Adam"), std::pair("v", "Adam_1")}) {
        const Variable found = optimizer.GetSlot(part, slot);
        ASSERT_TRUE(found.valid());
        EXPECT_EQ(found.name, absl::StrCat("table/part_", i, "/", name));
        EXPECT_EQ(found.handle.node()->requested_device(), absl::StrCat("/job:ps/task:", i));
        EXPECT_EQ(found.shape, part.shape);
        EXPECT_EQ(found.slice.full_name, absl::StrCat("table/", name));
        EXPECT_EQ(found.slice.full_shape, part.slice.full_shape);
        EXPECT_EQ(found.slice.var_offset, part.slice.var_offset);
        EXPECT_EQ(found.slice.var_shape, part.slice.var_shape);
      }
    }
  }
}

// Rows that are looked up, and all of the table: both are trained as in a whole table.
TEST(SlotsTest, PartsAlongAnyAxisAreTrainedAsTheWholeIs) {
  const Shape shape{5, 4};
  Tensor first = *Tensor::Allocate(DT_FLOAT, shape);
  float next = 0;
  for (float& x : first.mutable_flat<float>()) x = next += 0.25f;
  const auto trained = [&](const Partitioner& partitioner, bool sparse) -> StatusOr<Tensor> {
    Scope root;
    const PartitionedVariable table = MakeVariableInParts(
        root.WithName("table"), shape, DT_FLOAT, partitioner,
        [&](ScopeAt at, const InitialShape& part, DType) {
          return Slice(at, Const(at, first), ConstVector<int64_t>(at, part.var_offset),
                       ConstVector<int64_t>(at, part.shape.dims()));
        });
    const Output whole = WholeValue(root, table);
    const Output rows =
        sparse ? EmbeddingLookup(root, table, Const<int64_t>(root, {4, 1, 4})) : whole;
    AdagradOptimizer optimizer({.learning_rate = 0.5});
    const Operation step = optimizer.Minimize(root, ReduceSum(root, Square(root, rows)));
    const Operation init = GlobalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(const auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    for (int i = 0; i < 3; ++i) MR_RETURN_IF_ERROR(session->Run({}, {}, {step}).status());
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, session->Run({}, {whole}));
    return out[0];
  };
  for (const bool sparse : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const Tensor want, trained({}, sparse));
    for (const int axis : {0, 1}) {
      ASSERT_OK_AND_ASSIGN(const Tensor got, trained(FixedSizePartitioner(3, axis), sparse));
      ExpectTensorNear(got, want, 1e-6, 0);
    }
  }
}

// --- Options of gradients ------------------------------------------------------------------------

TEST(GradientOptionsTest, TheLossMayHaveAGradientOfItsOwn) {
  LinearLoss model({1, 2, 3});
  const Output each = Mul(model.root, model.gradient, model.w.value);
  const Operation train =
      GradientDescentOptimizer({.learning_rate = 1})
          .Minimize(model.root, each, {.grad_loss = Const<float>(model.root, {1, 10, 100})});
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, {TensorOf<float>({3}, {1, 1, 0.5f})}));
  ExpectTensorEqual(out[0], TensorOf<float>({3}, {0, -8, -47}));

  LinearLoss other({1, 2, 3});
  GradientDescentOptimizer().Minimize(
      other.root, other.loss, {.grad_loss = Const<float>(other.root.WithName("grad"), {1, 2})});
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "Gradients: grad_ys[0] 'grad:0' must have the shape of its "
                "y [], got [2]");
}

TEST(GradientOptionsTest, GatesMakeGradientsWaitForEachOther) {
  using Names = std::vector<std::string>;
  const std::pair<GateGradients, Names> cases[] = {
      {GateGradients::kNone, {}},
      {GateGradients::kOp, {"gradients/Mul_grad/tuple/group_deps"}},
      {GateGradients::kGraph, {"tuple/group_deps"}}};
  std::vector<Tensor> results;
  for (const auto& [gate, gates] : cases) {
    Scope root;
    const Variable a = MakeVariable(root.WithName("a"), Const<float>(root, {1, 2}));
    const Variable b = MakeVariable(root.WithName("b"), Const<float>(root, {3, 4}));
    const Variable table =
        MakeVariable(root.WithName("table"), Const(root, TensorOf<float>({2, 1}, {5, 6})));
    const Output rows = ResourceGather(root, table.handle, Const<int64_t>(root, {1, 1}), DT_FLOAT);
    const Output product = ReduceSum(root, Mul(root, a.value, b.value));
    const Output loss = Add(root.WithName("loss"), product, ReduceSum(root, rows));
    const Operation train = GradientDescentOptimizer({.learning_rate = 0.5})
                                .Minimize(root, loss, {.gate_gradients = gate});
    ASSERT_OK(root.status());
    Names found;
    for (const auto& node : root.graph()->nodes()) {
      if (node == nullptr || node->name().find("group_deps") == std::string::npos) continue;
      // The sum's two gradients are one and the same tensor.
      if (node->name() == "gradients/loss_grad/tuple/group_deps") continue;
      found.push_back(node->name());
      // Everything that passes the gate waits for it.
      EXPECT_EQ(node->control_inputs().size(), gate == GateGradients::kGraph ? 3u : 2u);
      int after = 0;
      for (const Edge& edge : node->out_edges()) after += edge.dst->op() == "Identity";
      EXPECT_EQ(after, gate == GateGradients::kGraph ? 3 : 2);
    }
    EXPECT_EQ(found, gates);
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}).status());
    ASSERT_OK(session->Run({}, {}, {train}).status());
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {a.value, b.value, table.value}));
    ExpectTensorEqual(out[0], TensorOf<float>({2}, {-0.5f, 0}));
    ExpectTensorEqual(out[1], TensorOf<float>({2}, {2.5f, 3}));
    ExpectTensorEqual(out[2], TensorOf<float>({2, 1}, {5, 5}));
  }
}

// The branch that is not taken has no gradient to wait for.
TEST(GradientOptionsTest, GatesLetConditionalsThrough) {
  for (const GateGradients gate :
       {GateGradients::kNone, GateGradients::kOp, GateGradients::kGraph}) {
    Scope root;
    const Output pred = Placeholder(root.WithName("pred"), DT_BOOL, {});
    const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2}));
    const Variable u = MakeVariable(root.WithName("u"), Const<float>(root, {3, 4}));
    const SwitchOutputs ways = Switch(root, w.value, pred);
    const SwitchOutputs others = Switch(root, u.value, pred);
    const Output product = Mul(root, ways.output_true, others.output_true);
    const Output square = Square(root, ways.output_false);
    const Output either = Merge(root, {square, product}).output;
    const Operation train = GradientDescentOptimizer({.learning_rate = 1})
                                .Minimize(root, ReduceSum(root, either), {.gate_gradients = gate});
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    for (const bool taken : {true, false}) {
      ASSERT_OK(session->Run({}, {}, {init}).status());
      ASSERT_OK(session->Run({{pred, Tensor::Scalar(taken)}}, {}, {train}).status());
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {w.value, u.value}));
      ExpectTensorEqual(out[0], TensorOf<float>({2}, taken ? std::initializer_list<float>{-2, -2}
                                                           : std::initializer_list<float>{-1, -2}));
      ExpectTensorEqual(out[1], TensorOf<float>({2}, taken ? std::initializer_list<float>{2, 2}
                                                           : std::initializer_list<float>{3, 4}));
    }
  }
}

TEST(GradientOptionsTest, GradientsMayStandWithTheirOps) {
  for (const bool colocate : {false, true}) {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2}));
    const Output square = Square(root.WithName("square").WithDevice("/job:far"), w.value);
    GradientDescentOptimizer().Minimize(root, ReduceSum(root, square),
                                        {.colocate_gradients_with_ops = colocate});
    ASSERT_OK(root.status());
    const Node* const product = root.graph()->FindNode("gradients/square_grad/Mul");
    ASSERT_NE(product, nullptr);
    EXPECT_EQ(product->requested_device(), colocate ? "/job:far" : "");
  }
}

// --- Updates, the global step, errors ------------------------------------------------------------

TEST(OptimizerTest, SlotsOfHugeVariablesHaveTheirShape) {
  Scope root;
  constexpr int64_t kRows = 3'000'000'000;
  const Variable table = MakeVariable(
      root.WithName("table"), Fill(root, Const<int64_t>(root, {kRows, 1}), Const(root, 1.0f)));
  const Output loss = ReduceSum(
      root, ResourceGather(root, table.handle, Const<int64_t>(root, {kRows - 1}), DT_FLOAT));
  AdagradOptimizer().Minimize(root, loss);
  ASSERT_OK(root.status());
  const std::vector<Variable> variables = VariablesOf(root, "variables");
  ASSERT_EQ(variables.size(), 2u);
  EXPECT_EQ(variables[1].name, "table/Adagrad");
  EXPECT_EQ(variables[1].shape.ToString(), "[3000000000,1]");
}

TEST(OptimizerTest, ErrorsNameTheOptimizerAndTheSourceLine) {
  {
    Scope root;
    const Output x = Placeholder(root, DT_FLOAT, {2});
    AdamOptimizer().Minimize(root, ReduceSum(root, x));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "Adam: the graph must have trainable variables, got none; built at ");
  }
  {
    Scope root;
    const Output x = Placeholder(root, DT_FLOAT, {2});
    MakeVariable(root.WithName("w"), Const(root, 1.0f));
    GradientDescentOptimizer().Minimize(root, ReduceSum(root, x));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "GradientDescent: No gradients provided for any variable, check your graph for "
                  "ops that do not support gradients, between variables 'w' and loss 'Sum:0'; of "
                  "'w': 'Sum:0' does not depend on it; built at ");
  }
  {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 1.5f));
    GradientDescentOptimizer().Minimize(root, Square(root, Floor(root.WithName("cut"), w.value)));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "of 'w': Floor 'cut' on the way passes no gradient on");
  }
  {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 1.5f));
    const Output whole = Cast(root.WithName("whole"), w.value, DT_INT32);
    GradientDescentOptimizer().Minimize(root, Cast(root, whole, DT_FLOAT));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "of 'w': Cast 'whole' on the way gives int32");
  }
  {
    LinearLoss model({1});
    AdagradOptimizer({.initial_accumulator_value = 0}).Minimize(model.root, model.loss);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                  "initial_accumulator_value must be > 0, got 0");
  }
}

TEST(OptimizerTest, AppliesNoEmptyListsOfGradients) {
  LinearLoss model({1});
  GradientDescentOptimizer().ApplyGradients(model.root, {});
  EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                "GradientDescent: No variables provided.");
  LinearLoss other({1});
  GradientDescentOptimizer().ApplyGradients(other.root, {{Gradient(), other.w}});
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "GradientDescent: No gradients provided for any variable: "
                "'w'.; built at ");
}

TEST(OptimizerTest, TheUpdateHasTheOptimizersNameOrTheOneGiven) {
  LinearLoss model({1});
  const Variable step = GlobalStep(model.root);
  const Scope in = model.root.WithSubScope("in");
  GradientDescentOptimizer optimizer;
  const Operation plain = optimizer.Minimize(in, model.loss);
  const Operation counted = optimizer.Minimize(in, model.loss, {.global_step = step});
  const Operation named = optimizer.Minimize(in, model.loss, {.name = "named"});
  ASSERT_OK(model.root.status());
  EXPECT_EQ(plain.name(), "in/GradientDescent");
  EXPECT_EQ(plain.node()->op(), "NoOp");
  EXPECT_EQ(counted.name(), "in/GradientDescent_1");
  EXPECT_EQ(counted.node()->op(), "AssignAddVariableOp");
  EXPECT_EQ(named.name(), "in/named");
}

TEST(OptimizerTest, StepAfterRunsTheUpdateAndSeesItsCount) {
  LinearLoss model({1, 2});
  // On the device of the step's variable, whatever the caller's scope says.
  const Variable step = GlobalStep(model.root.WithDevice("/job:localhost"));
  const Operation train = GradientDescentOptimizer({.learning_rate = 1})
                              .Minimize(model.root, model.loss, {.global_step = step});
  const Output after = StepAfter(model.root.WithName("now").WithDevice("/cpu:7"), train, step);
  ASSERT_OK(model.root.status());
  EXPECT_EQ(after.name(), "now:0");
  EXPECT_EQ(after.dtype(), DT_INT64);
  EXPECT_EQ(after.node()->requested_device(), step.handle.node()->requested_device());
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const Tensor ones = TensorOf<float>({2}, {1, 1});
  for (int64_t i = 1; i <= 100; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{model.gradient, ones}}, {after}));
    ASSERT_EQ(out[0].scalar<int64_t>(), i);
  }
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
  ExpectTensorEqual(w[0], TensorOf<float>({2}, {-99, -98}));
}

TEST(OptimizerTest, StepAfterNeedsAnUpdateAndAStep) {
  LinearLoss model({1});
  const Variable step = GlobalStep(model.root);
  EXPECT_FALSE(StepAfter(model.root, Operation(), step).valid());
  EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                "StepAfter: train and global_step must belong to the graph, got an invalid train");
  LinearLoss other({1});
  EXPECT_FALSE(StepAfter(other.root, other.w.initializer, Variable()).valid());
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "got an invalid global_step; built at ");
}

TEST(OptimizerTest, GlobalStepIsOneVariableAndCountsUpdates) {
  LinearLoss model({1, 1, 1});
  const Variable step = GlobalStep(model.root);
  EXPECT_EQ(GlobalStep(model.root).name, step.name);
  const Operation train =
      GradientDescentOptimizer().Minimize(model.root, model.loss, {.global_step = step});
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors(), {step.value}));
  EXPECT_EQ(out[1].scalar<int64_t>(), 3);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/read_ahead.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/control_flow.h"
#include "layers/regularizers.h"
#include "layers/variable.h"
#include "layers/variable_update.h"
#include "ops/ops.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"

// covers: training: whole reads of trainable variables and of the global step are read ahead, and
//   nothing else is: rows of tables, moving averages, ordered reads, variables in branches and
//   penalties next to their weight stay in the step

namespace millrace {
namespace {

using Names = std::vector<std::string>;

// A graph for a parameter server and one trainer; what a test adds is in `also`.
struct Model {
  Scope root;
  Scope ps = root.WithDevice("/job:ps/task:0");
  Scope here = root.WithDevice("/job:worker/task:0");
  Variable step = GlobalStep(ps);
  Output x = Placeholder(here.WithName("x"), DT_FLOAT, {-1});
  std::vector<Output> also = {};

  Variable Weight(const std::string& name, bool trainable = true) {
    return MakeVariable(ps.WithName(name), Const(ps, 0.5f), {.trainable = trainable});
  }
  Operation Minimize(const Output& loss) {
    also.push_back(loss);
    return GradientDescentOptimizer({.learning_rate = 0.1})
        .Minimize(here, loss, {.global_step = step});
  }
  StatusOr<ReadAhead> Make(const Operation& op) {
    const Output after = StepAfter(root.WithName("step_after"), op, step);
    return ReadAhead::Make(root, {.step_after = after, .global_step = step, .also = also});
  }
};

Names NamesOf(const std::vector<Output>& outputs) {
  Names names;
  for (const Output& output : outputs) names.push_back(output.name());
  return names;
}

bool RunsAfter(const Node& node, const Node* before) {
  return std::any_of(node.control_inputs().begin(), node.control_inputs().end(),
                     [&](const Node* control) { return control == before; });
}

// The node of the only update of a variable of GradientDescent.
const Node* UpdateOf(const Variable& variable) {
  for (const Edge& edge : variable.handle.node()->out_edges()) {
    if (edge.dst->op() == "ResourceApplyGradientDescent") return edge.dst;
  }
  return nullptr;
}

TEST(ReadAheadTest, AVariableIsReadAgainOnItsServerAfterTheUpdatesThere) {
  Model m;
  const Variable w = m.Weight("w"), b = m.Weight("b");
  const Output loss =
      ReduceSum(m.here, Square(m.here, Add(m.here, Mul(m.here, m.x, w.value), b.value)));
  ASSERT_OK_AND_ASSIGN(const ReadAhead ahead, m.Make(m.Minimize(loss)));
  EXPECT_EQ(NamesOf(ahead.fed()), Names({"w/Read/ReadVariableOp:0", "b/Read/ReadVariableOp:0"}));
  ASSERT_EQ(ahead.next().size(), 2u);
  ASSERT_EQ(ahead.first().size(), 2u);
  EXPECT_EQ(ahead.ToString(), "read_ahead: variables that come with the end of the step before: 2");
  const Node& next = *ahead.next()[0].node();
  EXPECT_EQ(next.op(), "Identity");
  EXPECT_EQ(next.requested_device(), "/job:worker/task:0");
  const Node& after = *next.input(0).node;
  EXPECT_EQ(after.op(), "ReadVariableOp");
  EXPECT_EQ(after.requested_device(), "/job:ps/task:0");
  ASSERT_EQ(after.control_inputs().size(), 1u);
  const Node& updated = *after.control_inputs()[0];
  EXPECT_EQ(updated.requested_device(), "/job:ps/task:0");
  for (const Variable& variable : {w, b}) {
    ASSERT_NE(UpdateOf(variable), nullptr);
    EXPECT_TRUE(RunsAfter(updated, UpdateOf(variable))) << variable.name;
  }
  // With the step's count, which is fetched with them.
  const Node* const count = m.root.graph()->FindNode("step_after");
  ASSERT_NE(count, nullptr);
  EXPECT_TRUE(RunsAfter(updated, count));
  // Who fetches the global step in a step gets the one before its count.
  for (const Edge& edge : m.step.handle.node()->out_edges()) {
    if (edge.dst->op() != "AssignAddVariableOp") continue;
    EXPECT_TRUE(RunsAfter(*edge.dst, m.step.value.node()));
  }
  // The first values are those of the reads themselves.
  EXPECT_EQ(ahead.first()[0].node()->input(0).node, w.value.node());
}

TEST(ReadAheadTest, RowsAveragesAndOrderedReadsStayInTheStep) {
  Model m;
  const Variable w = m.Weight("w"), mean = m.Weight("mean", false),
                 frozen = m.Weight("frozen", false);
  const Variable table = MakeVariable(m.ps.WithName("table"), Const<float>(m.ps, {1, 2, 3}));
  const Output ids = Placeholder(m.here.WithName("ids"), DT_INT32, {-1});
  const Output rows = ResourceGather(m.ps.WithName("rows"), table.handle, ids, DT_FLOAT);
  const Output scale = Add(m.here, Add(m.here, w.value, mean.value), frozen.value);
  const Output loss = ReduceSum(m.here, Square(m.here, Add(m.here, Mul(m.here, m.x, scale), rows)));
  const Operation train = m.Minimize(loss);
  const Operation moved = AssignAddVariable(m.ps.WithName("moved"), mean, Const(m.ps, 0.5f));
  const Output later = ReadVariable(m.ps.WithControlDependencies({train}).WithName("later"), w);
  const Output seen = Identity(m.here.WithName("seen"), later);
  m.also.push_back(seen);
  ASSERT_OK_AND_ASSIGN(const ReadAhead ahead,
                       m.Make(Group(m.here.WithName("all"), {train, moved})));
  EXPECT_EQ(NamesOf(ahead.fed()),
            Names({"w/Read/ReadVariableOp:0", "frozen/Read/ReadVariableOp:0"}));
  EXPECT_EQ(ahead.ToString(),
            "read_ahead: variables that come with the end of the step before: 2; that each step "
            "waits for: 1, 'mean'");
  EXPECT_EQ(seen.node()->input(0).node, later.node());
}

// A schedule on the task that trains reads the global step there. Who fetches the step reads it.
TEST(ReadAheadTest, TheGlobalStepIsReadAheadWhereAScheduleReadsIt) {
  Model m;
  const Variable w = m.Weight("w");
  const Output loss = ReduceSum(m.here, Square(m.here, Mul(m.here, m.x, w.value)));
  m.also.push_back(Cast(m.here.WithName("rate"), m.step.value, DT_FLOAT));
  ASSERT_OK_AND_ASSIGN(const ReadAhead ahead, m.Make(m.Minimize(loss)));
  EXPECT_EQ(NamesOf(ahead.fed()),
            Names({"read_ahead/global_step/There:0", "w/Read/ReadVariableOp:0"}));
}

// Its value does not come back from the task that trains, and the update waits until it is read.
TEST(ReadAheadTest, APenaltyNextToItsWeightReadsItThereBeforeTheUpdate) {
  Model m;
  const Variable w = m.Weight("w");
  const Output penalty = L2Loss(m.ps.WithName("penalty"), w.value);
  const Output loss =
      Add(m.here, ReduceSum(m.here, Square(m.here, Mul(m.here, m.x, w.value))), penalty);
  ASSERT_OK_AND_ASSIGN(const ReadAhead ahead, m.Make(m.Minimize(loss)));
  EXPECT_EQ(NamesOf(ahead.fed()), Names({"w/Read/ReadVariableOp:0"}));
  const Node* const read = penalty.node()->input(0).node;
  EXPECT_NE(read, w.value.node());
  EXPECT_EQ(read->op(), "ReadVariableOp");
  EXPECT_EQ(read->requested_device(), "/job:ps/task:0");
  ASSERT_NE(UpdateOf(w), nullptr);
  EXPECT_TRUE(RunsAfter(*UpdateOf(w), read));
}

// Its readers need nothing of another task, and the update comes with RUN now.
TEST(ReadAheadTest, AReadForItsServerAloneIsBeforeTheUpdate) {
  Model m;
  const Variable w = m.Weight("w");
  const Output apart = ReadVariable(m.ps.WithName("apart"), w);
  m.also.push_back(Identity(m.ps.WithName("norm"), apart));
  const Output loss = ReduceSum(m.here, Square(m.here, Mul(m.here, m.x, w.value)));
  ASSERT_OK_AND_ASSIGN(const ReadAhead ahead, m.Make(m.Minimize(loss)));
  EXPECT_EQ(NamesOf(ahead.fed()), Names({"w/Read/ReadVariableOp:0"}));
  ASSERT_NE(UpdateOf(w), nullptr);
  EXPECT_TRUE(RunsAfter(*UpdateOf(w), apart.node()));
}

TEST(ReadAheadTest, AVariableWhoseHandleGoesIntoABranchStaysInTheStep) {
  Model m;
  const Variable w = m.Weight("w"), v = m.Weight("v");
  const Output loss =
      ReduceSum(m.here, Square(m.here, Mul(m.here, m.x, Mul(m.here, w.value, v.value))));
  const Operation train = m.Minimize(loss);
  const Output pred = Placeholder(m.here.WithName("pred"), DT_BOOL, {});
  m.also.push_back(Cond(
      m.here, pred, [&](const Scope& s) { return ReadVariable(s, v); },
      [&](const Scope& s) { return Const(s, 1.0f); }));
  ASSERT_OK_AND_ASSIGN(const ReadAhead ahead, m.Make(train));
  EXPECT_EQ(NamesOf(ahead.fed()), Names({"w/Read/ReadVariableOp:0"}));
  EXPECT_EQ(ahead.ToString(),
            "read_ahead: variables that come with the end of the step before: 1; that each step "
            "waits for: 1, 'v'");
}

TEST(ReadAheadTest, NothingIsReadAheadWithoutParameterServers) {
  Scope root;
  const Variable step = GlobalStep(root);
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 0.5f));
  const Output loss = Square(root, w.value);
  const Operation train =
      GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(root, loss, {.global_step = step});
  const Output after = StepAfter(root, train, step);
  const int nodes = root.graph()->num_nodes();
  ASSERT_OK_AND_ASSIGN(
      const ReadAhead ahead,
      ReadAhead::Make(root, {.step_after = after, .global_step = step, .also = {loss}}));
  EXPECT_TRUE(ahead.empty());
  EXPECT_EQ(root.graph()->num_nodes(), nodes);
  EXPECT_EQ(ahead.ToString(),
            "read_ahead does nothing: no variable that a step reads is on a parameter server");
}

TEST(ReadAheadTest, AStepThatCountsNothingIsRefused) {
  Model m;
  EXPECT_STATUS(ReadAhead::Make(m.root, {}).status(), absl::StatusCode::kInvalidArgument,
                "ReadAhead: a step must count the global step, got an invalid step_after");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// Initial values that read other variables: the same as those of the others, drawn once.
#include "layers/initialized_value.h"

#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/control_flow.h"
#include "layers/initializers.h"
#include "layers/testing/layer_test.h"
#include "layers/variable_update.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: variables: a variable whose initial value is made of another one's has it exactly, drawn
//   once, in whatever order the initialisers run; where the other has a value, it is that one

namespace millrace {
namespace {

Variable Random(const Scope& scope, const char* name, bool use_resource = true) {
  return MakeVariable(scope.WithName(name), Shape{1000}, DT_FLOAT,
                      RandomUniformInitializer({.minval = 1, .maxval = 2}),
                      {.use_resource = use_resource});
}

int CountOps(const Scope& scope, const std::string& op) {
  int count = 0;
  for (const auto& node : scope.graph()->nodes()) count += node != nullptr && node->op() == op;
  return count;
}

TEST(InitializedValue, OfAnotherVariableIsWhatItsInitializerAssigns) {
  for (const bool use_resource : {true, false}) {
    SCOPED_TRACE(use_resource ? "resource" : "reference");
    Scope scope;
    const Variable a = Random(scope, "a", use_resource);
    // Over several ops, of one that is made of another, and of the plain value.
    const Variable b =
        MakeVariable(scope.WithName("b"), Neg(scope, Mul(scope, a.value, Const(scope, -2.0f))));
    const Variable c = MakeVariable(scope.WithName("c"), Add(scope, a.value, b.value),
                                    {.use_resource = use_resource});
    const Variable d = MakeVariable(scope.WithName("d"), c.value);
    EXPECT_EQ(CountOps(scope, "RandomUniform"), 1) << "it is drawn once";
    // In whatever order the threads take the initialisers.
    for (int run = 0; run < 20; ++run) {
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                           RunInitialized(scope, {}, {a.value, b.value, c.value, d.value}));
      const auto x = out[0].flat<float>();
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(out[1].flat<float>()[i], 2 * x[i]);
        ASSERT_EQ(out[2].flat<float>()[i], x[i] + 2 * x[i]);
      }
      ExpectTensorEqual(out[3], out[2]);
    }
  }
}

TEST(InitializedValue, OfAVariableThatHasAValueIsThatOne) {
  Scope scope;
  const Variable a = Random(scope, "a");
  const Variable b = MakeVariable(scope.WithName("b"), Mul(scope, a.value, Const(scope, 2.0f)));
  const Output explicit_value = InitializedValue(scope, a);
  const Tensor zeros = *Tensor::Zeros(DT_FLOAT, Shape{1000});
  const Operation restored = AssignVariable(scope, a, Const(scope, zeros));
  ASSERT_OK(scope.status());
  EXPECT_EQ(scope.shape(explicit_value).ToString(), "[1000]");
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK(session->Run({}, {}, {restored}));
  ASSERT_OK(session->Run({}, {}, {b.initializer}));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {b.value, explicit_value, a.value}));
  for (const Tensor& value : out) ExpectTensorEqual(value, zeros);
}

// Only what lies between a read and the initial value is copied; a value without reads stays.
TEST(InitializedValue, LeavesWhatReadsNoVariable) {
  Scope scope;
  const Variable a = Random(scope, "a");
  const Output plain = Add(scope, Const(scope, 1.0f), Const(scope, 2.0f));
  EXPECT_EQ(FromInitialValues(scope, "b", plain), plain);
  const int additions = CountOps(scope, "AddV2") + CountOps(scope, "Add");
  const Output mixed = Mul(scope, a.value, plain);
  const int products = CountOps(scope, "Mul");  // the random value has one, too
  const Output initial = FromInitialValues(scope, "b", mixed);
  ASSERT_OK(scope.status());
  EXPECT_NE(initial, mixed);
  EXPECT_EQ(scope.shape(initial).ToString(), "[1000]");
  EXPECT_EQ(CountOps(scope, "Mul"), products + 1);
  EXPECT_EQ(CountOps(scope, "AddV2") + CountOps(scope, "Add"), additions);
  EXPECT_EQ(initial.node()->input(1).node, plain.node());
  EXPECT_EQ(FromInitialValues(scope, "c", initial), initial) << "what stands for it stays";
}

TEST(InitializedValue, LeavesAValueThatComesOutOfABranch) {
  Scope scope;
  const Variable a = Random(scope, "a");
  const Output chosen = Cond(
      scope, Const(scope, true), [&](const Scope& s) { return Neg(s, a.value); },
      [&](const Scope& s) { return Square(s, a.value); });
  EXPECT_EQ(FromInitialValues(scope, "b", chosen), chosen);
  ASSERT_OK(scope.status());
}

TEST(InitializedValue, NeedsAnInitialValue) {
  Scope scope;
  const Output handle = VarHandleOp(scope.WithName("w"), DT_FLOAT, {2});
  const Variable w = AdoptVariable(scope, handle);
  // A read of it stays a read.
  EXPECT_EQ(FromInitialValues(scope, "b", w.value), w.value);
  ASSERT_OK(scope.status());
  EXPECT_FALSE(InitializedValue(scope, w).valid());
  EXPECT_STATUS(scope.status(), absl::StatusCode::kInvalidArgument,
                "InitializedValue: variable 'w' must have an initial value, got none");
}

// --- Reference variables -------------------------------------------------------------------------

TEST(ReferenceVariable, HasTensorFlowsNodes) {
  Scope scope;
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, TensorOf<float>({2}, {1, 2})),
                                  {.use_resource = false});
  ASSERT_TRUE(w.valid()) << scope.status();
  EXPECT_TRUE(w.is_reference());
  EXPECT_EQ(w.handle.node()->op(), "VariableV2");
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.initializer.name(), "w/Assign");
  EXPECT_EQ(w.initializer.node()->op(), "Assign");
  EXPECT_EQ(w.value.name(), "w/read:0");
  EXPECT_EQ(w.dtype, DT_FLOAT);
  EXPECT_EQ(scope.shape(w.value).ToString(), "[2]");
  const std::vector<Variable> again = VariablesOf(scope, "trainable_variables");
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].handle, w.handle);
  EXPECT_EQ(again[0].value, w.value);
  EXPECT_EQ(again[0].is_initialized, w.is_initialized);
  EXPECT_TRUE(again[0].is_reference());
}

TEST(ReferenceVariable, IsReportedUntilItHasAValue) {
  Scope scope;
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, 1.0f), {.use_resource = false});
  // As in a graph of TensorFlow's, which has no node that asks.
  Variable read = w;
  read.is_initialized = Output();
  const Output missing = ReportUninitializedVariables(scope, {read});
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {missing}));
  ExpectTensorEqual(out[0], TensorOf<std::string>({1}, {"w"}));
  ASSERT_OK(session->Run({}, {}, {w.initializer}));
  ASSERT_OK_AND_ASSIGN(out, session->Run({}, {missing}));
  EXPECT_EQ(out[0].num_elements(), 0);
}

TEST(ReferenceVariable, CannotBeLocal) {
  Scope scope;
  MakeVariable(scope.WithName("w"), Const(scope, 1.0f), {.local = true, .use_resource = false});
  EXPECT_STATUS(scope.status(), absl::StatusCode::kInvalidArgument,
                "Variable 'w': a local variable must use a resource, got use_resource = false");
}

TEST(VariableUpdate, ChangesEitherKindAlike) {
  for (const bool use_resource : {true, false}) {
    SCOPED_TRACE(use_resource ? "resource" : "reference");
    Scope scope;
    const Variable w =
        MakeVariable(scope.WithName("w"), Const(scope, TensorOf<float>({3, 1}, {1, 2, 3})),
                     {.use_resource = use_resource});
    const Output rows = Const<int32_t>(scope, {2, 2});
    const Output updates = Const(scope, TensorOf<float>({2, 1}, {10, 20}));
    const Output tens = Const(scope, TensorOf<float>({3, 1}, {10, 10, 10}));
    struct Case {
      Operation change;
      std::vector<float> want;
    };
    const Case cases[] = {
        {AssignVariable(scope, w, tens), {10, 10, 10}},
        {AssignAddVariable(scope, w, tens), {20, 20, 20}},
        {AssignSubVariable(scope, w, tens), {10, 10, 10}},
        {ScatterAddVariable(scope, w, rows, updates), {10, 10, 40}},
        {ScatterSubVariable(scope, w, rows, updates), {10, 10, 10}},
        {ScatterUpdateVariable(scope, w, Const<int32_t>(scope, {0}),
                               Const(scope, TensorOf<float>({1, 1}, {7}))),
         {7, 10, 10}},
    };
    ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
    for (const Case& one : cases) {
      SCOPED_TRACE(one.change.name());
      ASSERT_OK(session->Run({}, {}, {one.change}));
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {w.value}));
      for (size_t i = 0; i < one.want.size(); ++i) {
        EXPECT_EQ(out[0].flat<float>()[i], one.want[i]);
      }
    }
    // A read of its own comes after what the scope waits for.
    const Operation doubled = AssignAddVariable(scope, w, w.value);
    const Output after = ReadVariable(scope.WithControlDependencies({doubled}), w);
    ASSERT_OK(scope.status());
    ASSERT_OK(session->Extend(scope));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {after}));
    EXPECT_EQ(out[0].flat<float>()[0], 14);
    EXPECT_FALSE(AssignVariable(scope, Variable(), tens).valid());
    EXPECT_FALSE(ReadVariable(scope, Variable()).valid());
  }
}

}  // namespace
}  // namespace millrace

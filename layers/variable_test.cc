// SPDX-License-Identifier: Apache-2.0
#include "layers/variable.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "ops/array/constant.h"
#include "proto/node_def.pb.h"
#include "runtime/testing/op_test.h"

// covers: training: variables of one task stay on it and take no place on a parameter server

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(Variable, InitializerAndReadWorkTogether) {
  Scope scope;
  const Variable v = MakeVariable(scope.WithName("w"), Const(scope, TensorOf<float>({2}, {1, 2})));
  ASSERT_TRUE(v.valid()) << scope.status();
  EXPECT_EQ(v.name, "w");
  EXPECT_EQ(v.initializer.name(), "w/Assign");
  EXPECT_EQ(v.value.name(), "w/Read/ReadVariableOp:0");
  EXPECT_EQ(scope.shape(v.value).ToString(), "[2]");
  ASSERT_EQ(VariablesOf(scope).size(), 1u);
  EXPECT_EQ(VariablesOf(scope)[0].name, "w");
  EXPECT_EQ(VariablesOf(scope, "trainable_variables").size(), 1u);
  EXPECT_EQ(GlobalStep(scope).name, "global_step");
  EXPECT_EQ(GlobalStep(scope).handle.node(), GlobalStep(scope.WithSubScope("x")).handle.node());
  EXPECT_EQ(VariablesOf(scope, "trainable_variables").size(), 1u);
}

TEST(Variable, NeedsAKnownShape) {
  Scope scope;
  EXPECT_FALSE(MakeVariable(scope, TestInput(scope, DT_FLOAT, {-1})).valid());
  EXPECT_STATUS(scope.status(), kInvalid,
                "must have a fully defined shape, got [?]; "
                "SetShape says what the graph does not know");
}

TEST(Variable, OfAModelThatWasReadIsEnteredIntoTheCollections) {
  Scope scope;
  const auto handle_of = [&](const char* name) {
    return NodeBuilder(scope.WithName(name), "VarHandleOp")
        .Attr("dtype", DT_FLOAT)
        .Attr("shape", PartialShape({2}))
        .Finish()
        .output(0);
  };
  const Output handle = handle_of("w");
  const Variable w = AdoptVariable(scope, handle);
  ASSERT_TRUE(w.valid()) << scope.status();
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(scope.shape(w.value).ToString(), "[2]");
  EXPECT_FALSE(w.initializer.valid());
  AdoptVariable(scope, handle_of("moving"), {.trainable = false});
  EXPECT_EQ(VariablesOf(scope).size(), 2u);
  ASSERT_EQ(VariablesOf(scope, "trainable_variables").size(), 1u);
  EXPECT_EQ(VariablesOf(scope, "trainable_variables")[0].value.node(), w.value.node());
  EXPECT_TRUE(GlobalVariablesInitializer(scope).valid());  // of those that have initializers
  EXPECT_FALSE(AdoptVariable(scope, w.value).valid());
  EXPECT_STATUS(scope.status(), kInvalid, "must be a VarHandleOp, got ReadVariableOp");
}

// Takes variables to servers in turn, the rest to its own task.
DeviceFunction ServersInTurn(int* asked) {
  return [asked](const tensorflow::NodeDef& node) -> std::string {
    if (node.op() != "VarHandleOp") return "/job:worker/task:1";
    return absl::StrCat("/job:ps/task:", (*asked)++);
  };
}

TEST(Variable, OfOneTaskStaysWherePlainOpsGo) {
  Scope root;
  int asked = 0;
  const Scope scope = root.WithDevice(ServersInTurn(&asked)).WithSubScope("model");
  const auto device = [](const Output& output) { return output.node()->requested_device(); };
  const Variable global = MakeVariable(scope.WithName("w"), Const(scope, 1.0f));
  EXPECT_EQ(device(global.handle), "/job:ps/task:0");

  const Variable zeros = MakeVariable(scope.WithName("total"), ShapeOf({2}), DT_DOUBLE,
                                      ZerosInitializer(), {.trainable = false, .local = true});
  const Variable copy = MakeVariable(scope.WithName("w"), global.value, {.local = true});
  ASSERT_OK(root.status());
  EXPECT_EQ(asked, 1) << "no turn is taken";
  EXPECT_EQ(zeros.name, "model/total");
  EXPECT_EQ(copy.name, "model/w_1");
  for (const Variable& variable : {zeros, copy}) {
    EXPECT_EQ(variable.initializer.name(), variable.name + "/Assign");
    EXPECT_EQ(*GetAttr<std::string>(variable.handle.node()->def(), "shared_name"), variable.name);
    for (const Output& output : {variable.handle, variable.value, variable.is_initialized}) {
      EXPECT_EQ(device(output), "/job:worker/task:1") << output.name();
    }
    EXPECT_EQ(variable.initializer.node()->requested_device(), "/job:worker/task:1");
  }
  EXPECT_EQ(VariablesOf(root).size(), 1u);
  EXPECT_EQ(VariablesOf(root, "local_variables").size(), 2u);
}

TEST(PartitionedVariable, HasPartsOfNearlyEqualSize) {
  Scope scope;
  const PartitionedVariable table = MakePartitionedVariable(
      scope.WithName("table"), ShapeOf({5, 2}), DT_FLOAT, 2, ZerosInitializer());
  ASSERT_EQ(table.parts.size(), 2u) << scope.status();
  EXPECT_EQ(table.parts[0].name, "table/part_0");
  EXPECT_EQ(table.parts[0].shape.ToString(), "[3,2]");
  EXPECT_EQ(table.parts[1].shape.ToString(), "[2,2]");
  EXPECT_EQ(table.parts[1].slice.var_offset, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(table.parts[1].slice.full_name, "table");
}

}  // namespace
}  // namespace millrace

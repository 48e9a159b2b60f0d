// SPDX-License-Identifier: Apache-2.0
#include "layers/variable.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

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
  EXPECT_STATUS(scope.status(), kInvalid, "must have a fully defined shape, got [?]");
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

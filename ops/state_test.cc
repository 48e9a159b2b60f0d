// SPDX-License-Identifier: Apache-2.0
#include "ops/state.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/constant.h"
#include "ops/variable.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Table() { return TensorOf<float>({3, 2}, {0, 1, 10, 11, 20, 21}); }

Tensor Read(OpTestDevice* device, const Tensor& handle, DType dtype = DT_FLOAT) {
  return RunOp1(OpCall("ReadVariableOp").Input(handle).Attr("dtype", dtype).On(device));
}
// A handle of a variable without value.
Tensor FreshHandle(OpTestDevice* device, const std::string& name, const PartialShape& shape) {
  return RunOp1(
      OpCall("VarHandleOp").Name(name).Attr("dtype", DT_FLOAT).Attr("shape", shape).On(device));
}

TEST(ResourceVariable, IsUninitializedUntilItIsAssigned) {
  OpTestDevice device;
  const Tensor handle = FreshHandle(&device, "w", {2});
  const auto initialized = [&] {
    return RunOp1(OpCall("VarIsInitializedOp").Input(handle).On(&device)).scalar<bool>();
  };
  EXPECT_FALSE(initialized());
  ExpectOpError(OpCall("ReadVariableOp").Input(handle).Attr("dtype", DT_FLOAT).On(&device),
                kPrecondition,
                "Error while reading resource variable w from Container: localhost. This could "
                "mean that the variable was uninitialized.");
  ASSERT_OK(RunOp(
      OpCall("AssignVariableOp").Input(handle).Input(TensorOf<float>({2}, {1, 2})).On(&device)));
  EXPECT_TRUE(initialized());
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({2}, {1, 2}));
}

TEST(ResourceVariable, HandlesOfOneNameShareTheVariable) {
  OpTestDevice device;
  const auto handle = [&](const char* node) {
    return RunOp1(OpCall("VarHandleOp")
                      .Name(node)
                      .Attr("dtype", DT_FLOAT)
                      .Attr("shape", PartialShape({1}))
                      .Attr("shared_name", std::string("shared"))
                      .On(&device));
  };
  ASSERT_OK(RunOp(
      OpCall("AssignVariableOp").Input(handle("a")).Input(TensorOf<float>({1}, {7})).On(&device)));
  ExpectTensorEqual(Read(&device, handle("b")), TensorOf<float>({1}, {7}));
}

TEST(ResourceVariable, UpdatesAddAndSubtract) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("w", TensorOf<float>({2}, {1, 2}));
  ASSERT_OK(RunOp(OpCall("AssignAddVariableOp")
                      .Input(handle)
                      .Input(TensorOf<float>({2}, {10, 20}))
                      .On(&device)));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({2}, {11, 22}));
  ASSERT_OK(RunOp(
      OpCall("AssignSubVariableOp").Input(handle).Input(TensorOf<float>({2}, {1, 1})).On(&device)));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({2}, {10, 21}));
}

TEST(ResourceVariable, AReadIsASnapshot) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("w", TensorOf<float>({2}, {1, 2}));
  const Tensor before = Read(&device, handle);
  ASSERT_OK(RunOp(OpCall("AssignAddVariableOp")
                      .Input(handle)
                      .Input(TensorOf<float>({2}, {10, 20}))
                      .On(&device)));
  ASSERT_OK(RunOp(OpCall("ResourceScatterAdd")
                      .Input(handle)
                      .Input(Ints({0}))
                      .Input(TensorOf<float>({1}, {100}))
                      .On(&device)));
  ExpectTensorEqual(before, TensorOf<float>({2}, {1, 2}));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({2}, {111, 22}));
}

TEST(ResourceVariable, RefusesOtherDtypesAndShapes) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("w", TensorOf<float>({2}, {1, 2}));
  ExpectOpError(OpCall("ReadVariableOp").Input(handle).Attr("dtype", DT_INT32).On(&device),
                kInvalid, "dtype float, got attr dtype int32");
  ExpectOpError(
      OpCall("AssignVariableOp").Input(handle).Input(TensorOf<float>({3}, {1, 2, 3})).On(&device),
      kInvalid, "[3]");
  ExpectOpError(
      OpCall("AssignAddVariableOp").Input(handle).Input(TensorOf<float>({1}, {1})).On(&device),
      kInvalid, "value must have the shape of variable 'w' [2], got [1]");
  EXPECT_SHAPE_ERROR("AssignVariableOp", {{"dtype", DT_FLOAT}},
                     {ShapeInput(DT_FLOAT, "[2]"), "[3]"},
                     "value must have the variable's shape [2], got [3]");
  EXPECT_SHAPE_ERROR("ReadVariableOp", {{"dtype", DT_INT32}}, {ShapeInput(DT_FLOAT, "[2]")},
                     "the variable has dtype float, got attr dtype int32");
}

TEST(ResourceVariable, TellsItsShape) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("w", Table());
  ExpectTensorEqual(RunOp1(OpCall("VariableShape").Input(handle).On(&device)), Ints({3, 2}));
  ExpectTensorEqual(
      RunOp1(OpCall("VariableShape").Input(handle).Attr("out_type", DT_INT64).On(&device)),
      TensorOf<int64_t>({2}, {3, 2}));
  EXPECT_SHAPE("VariableShape", {}, {ShapeInput(DT_FLOAT, "[?,2]")}, "[2]");
  EXPECT_SHAPE("ReadVariableOp", {{"dtype", DT_FLOAT}}, {ShapeInput(DT_FLOAT, "[?,2]")}, "[?,2]");
}

TEST(ResourceVariable, DestroyedOnesAreGone) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("w", Table());
  ASSERT_OK(RunOp(OpCall("DestroyResourceOp").Input(handle).On(&device)));
  EXPECT_FALSE(RunOp1(OpCall("VarIsInitializedOp").Input(handle).On(&device)).scalar<bool>());
  ASSERT_OK(RunOp(OpCall("DestroyResourceOp").Input(handle).On(&device)));
  ExpectOpError(
      OpCall("DestroyResourceOp").Input(handle).Attr("ignore_lookup_error", false).On(&device),
      absl::StatusCode::kNotFound, "does not exist");
}

TEST(ResourceGather, CopiesRows) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("table", Table());
  const auto gather = [&](Tensor indices) {
    return OpCall("ResourceGather")
        .Input(handle)
        .Input(std::move(indices))
        .Attr("dtype", DT_FLOAT)
        .On(&device);
  };
  ExpectTensorEqual(RunOp1(gather(Ints({2, 0, 2}))),
                    TensorOf<float>({3, 2}, {20, 21, 0, 1, 20, 21}));
  ExpectTensorEqual(RunOp1(gather(TensorOf<int64_t>({1, 1}, {1}))),
                    TensorOf<float>({1, 1, 2}, {10, 11}));
  ExpectTensorEqual(RunOp1(gather(Ints({}))), TensorOf<float>({0, 2}, {}));
  ExpectOpError(gather(Ints({0, 3})), kInvalid, "indices[1] = 3 is not in [0, 3)");
  ExpectOpError(gather(Ints({-1})), kInvalid, "indices[0] = -1 is not in [0, 3)");
  EXPECT_SHAPE("ResourceGather", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
               {ShapeInput(DT_FLOAT, "[3,2]"), "[?,4]"}, "[?,4,2]");
  EXPECT_SHAPE_ERROR("ResourceGather", {{"dtype", DT_FLOAT}, {"Tindices", DT_INT32}},
                     {ShapeInput(DT_FLOAT, "[]"), "[?]"}, "rank >= 1");
}

TEST(ResourceGather, ManyRowsAreGatheredByManyThreads) {
  OpTestDevice device;
  std::vector<int64_t> values(1000), indices(20000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) * 7;
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int64_t>(i * 31 % 1000);
  const Tensor handle = device.VariableHandle("table", Tensor::Vector<int64_t>(values));
  const auto call = [&] {
    return OpCall("ResourceGather")
        .Input(handle)
        .Input(Tensor::Vector<int64_t>(indices))
        .Attr("dtype", DT_INT64)
        .On(&device);
  };
  const Tensor out = RunOp1(call());
  for (size_t i = 0; i < indices.size(); ++i) {
    ASSERT_EQ(out.flat<int64_t>()[i], indices[i] * 7);
  }
  indices[15000] = 1000;
  ExpectOpError(call(), kInvalid, "indices[15000] = 1000 is not in [0, 1000)");
}

TEST(ResourceGather, GradientTouchesOnlyGatheredRows) {
  Scope scope;
  const Variable v = MakeVariable(scope.WithName("table"), Const(scope, Table()));
  const Output rows = ResourceGather(scope, v.handle, Const<int32_t>(scope, {2, 0}), DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(scope, {rows}, {v.handle}));
  const IndexedSlices* slices = std::get_if<IndexedSlices>(&grads[0]);
  ASSERT_NE(slices, nullptr);
  EXPECT_EQ(scope.shape(slices->values).ToString(), "[2,2]");
}

TEST(ResourceScatter, UpdatesRows) {
  OpTestDevice device;
  const Tensor handle = device.VariableHandle("table", Table());
  const auto scatter = [&](const char* op, Tensor indices, Tensor updates) {
    return OpCall(op).Input(handle).Input(std::move(indices)).Input(std::move(updates)).On(&device);
  };
  ASSERT_OK(
      RunOp(scatter("ResourceScatterAdd", Ints({0, 0}), TensorOf<float>({2, 2}, {1, 2, 3, 4}))));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 10, 11, 20, 21}));
  ASSERT_OK(RunOp(scatter("ResourceScatterSub", Ints({1}), Tensor::Scalar<float>(10))));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 0, 1, 20, 21}));
  ASSERT_OK(RunOp(scatter("ResourceScatterUpdate", Ints({2}), TensorOf<float>({1, 2}, {5, 6}))));
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 0, 1, 5, 6}));
  // A bad index changes nothing.
  ExpectOpError(scatter("ResourceScatterAdd", Ints({0, 9}), TensorOf<float>({2, 2}, {1, 2, 3, 4})),
                kInvalid, "indices[1] = 9 is not in [0, 3)");
  ExpectTensorEqual(Read(&device, handle), TensorOf<float>({3, 2}, {4, 7, 0, 1, 5, 6}));
  ExpectOpError(scatter("ResourceScatterAdd", Ints({0}), TensorOf<float>({1, 3}, {1, 2, 3})),
                kInvalid,
                "updates must be a scalar or have the shape of indices followed by a row [1,2]");
}

TEST(RefVariable, IsAssignedUpdatedAndRead) {
  const auto variable = std::make_shared<VariableStorage>("v", DT_FLOAT, PartialShape({2}));
  ExpectTensorEqual(RunOp1(OpCall("IsVariableInitialized").InputRef(variable)),
                    Tensor::Scalar<bool>(false));
  const Tensor x = TensorOf<float>({2}, {1, 2});
  ExpectTensorEqual(RunOp1(OpCall("Assign").InputRef(variable).Input(x)), x);
  ExpectTensorEqual(RunOp1(OpCall("AssignAdd").InputRef(variable).Input(x)),
                    TensorOf<float>({2}, {2, 4}));
  ExpectTensorEqual(RunOp1(OpCall("AssignSub").InputRef(variable).Input(x)), x);
  ExpectTensorEqual(RunOp1(OpCall("IsVariableInitialized").InputRef(variable)),
                    Tensor::Scalar<bool>(true));
  ExpectOpError(OpCall("Assign").InputRef(variable).Input(TensorOf<float>({3}, {1, 2, 3})),
                kInvalid,
                "Assign requires shapes of both tensors to match. lhs shape= [2] rhs shape= [3]");
  ExpectTensorEqual(RunOp1(OpCall("Assign")
                               .InputRef(variable)
                               .Input(TensorOf<float>({1}, {9}))
                               .Attr("validate_shape", false)),
                    TensorOf<float>({1}, {9}));
  ExpectOpError(OpCall("AssignAdd").InputRef(variable).Input(x), kInvalid, "got [2]");
}

TEST(RefVariable, ScattersRows) {
  const auto variable = TestVariable("v", Table());
  ExpectTensorEqual(RunOp1(OpCall("ScatterAdd")
                               .InputRef(variable)
                               .Input(Ints({2, 2}))
                               .Input(TensorOf<float>({2, 2}, {1, 2, 3, 4}))),
                    TensorOf<float>({3, 2}, {0, 1, 10, 11, 24, 27}));
  ExpectTensorEqual(RunOp1(OpCall("ScatterSub")
                               .InputRef(variable)
                               .Input(Ints({1}))
                               .Input(Tensor::Scalar<float>(10))
                               .Attr("use_locking", true)),
                    TensorOf<float>({3, 2}, {0, 1, 0, 1, 24, 27}));
  ExpectTensorEqual(RunOp1(OpCall("ScatterUpdate")
                               .InputRef(variable)
                               .Input(TensorOf<int64_t>({1}, {0}))
                               .Input(TensorOf<float>({1, 2}, {5, 6}))),
                    TensorOf<float>({3, 2}, {5, 6, 0, 1, 24, 27}));
  ExpectOpError(OpCall("ScatterAdd")
                    .InputRef(variable)
                    .Input(Ints({3}))
                    .Input(TensorOf<float>({1, 2}, {1, 2})),
                kInvalid, "indices[0] = 3 is not in [0, 3)");
}

TEST(RefVariable, ShapesFollowTheDeclaration) {
  EXPECT_SHAPE("VariableV2", {{"shape", PartialShape({2, 3})}, {"dtype", DT_FLOAT}}, {}, "[2,3]");
  // In the oldest graphs, [] stands for a shape that is not known.
  EXPECT_SHAPE("Variable", {{"shape", PartialShape::Scalar()}, {"dtype", DT_FLOAT}}, {},
               "<unknown>");
}

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
      scope.WithName("table"), ShapeOf({5, 2}), DT_FLOAT, 2,
      [](const Scope& s, const Shape& shape, int) {
        return Fill(s, ConstVector<int64_t>(s, shape.dims()), Const(s, 0.0f));
      });
  ASSERT_EQ(table.parts.size(), 2u) << scope.status();
  EXPECT_EQ(table.parts[0].name, "table/part_0");
  EXPECT_EQ(table.parts[0].shape.ToString(), "[3,2]");
  EXPECT_EQ(table.parts[1].shape.ToString(), "[2,2]");
  EXPECT_EQ(table.parts[1].slice.var_offset(0), 3);
  EXPECT_EQ(table.parts[1].slice.full_name(), "table");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_variable.h"

#include <string>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
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

}  // namespace
}  // namespace millrace

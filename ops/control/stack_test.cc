// SPDX-License-Identifier: Apache-2.0
#include "ops/control/stack.h"

#include <memory>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: tensor arrays, tensor lists and stacks: read twice, written twice, out of range,
//   of another dtype, closed are refused in TensorFlow's words; what they hold ends with the step
//   or its last handle (buffers counted); sums of gradients do not depend on the order of writes

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class StackTest : public ::testing::Test {
 protected:
  Tensor Stack(int32_t max_size = -1, DType type = DT_FLOAT) {
    return RunOp1(OpCall("StackV2")
                      .Name("s")
                      .Input(Tensor::Scalar(max_size))
                      .Attr("elem_type", type)
                      .On(device_.get()));
  }
  OpCall Push(const Tensor& stack, const Tensor& value) {
    return OpCall("StackPushV2").Input(stack).Input(value).On(device_.get());
  }
  OpCall Pop(const Tensor& stack, DType type = DT_FLOAT) {
    return OpCall("StackPopV2").Input(stack).Attr("elem_type", type).On(device_.get());
  }
  OpCall Close(const Tensor& stack) {
    return OpCall("StackCloseV2").Input(stack).On(device_.get());
  }

  std::unique_ptr<OpTestDevice> device_ = std::make_unique<OpTestDevice>();
};

const Tensor kOne = TensorOf<float>({2}, {1, 2});
const Tensor kEmpty = TensorOf<float>({0}, {});

TEST_F(StackTest, GivesTheLastFirst) {
  const Tensor stack = Stack();
  ExpectTensorEqual(RunOp1(Push(stack, kOne)), kOne);
  ASSERT_OK(RunOp(Push(stack, kEmpty)));
  ExpectTensorEqual(RunOp1(Pop(stack)), kEmpty);
  ExpectTensorEqual(RunOp1(Pop(stack)), kOne);
  ExpectOpError(Pop(stack), kInvalid, "] is empty when calling Pop().");
}

TEST_F(StackTest, RefusesWhatIsNotLegal) {
  const Tensor stack = Stack(1);
  ExpectOpError(Push(stack, Tensor::Scalar(1)), kInvalid, "Must have type float but got int32");
  ASSERT_OK(RunOp(Push(stack, kOne)));
  ExpectOpError(Push(stack, kOne), kInvalid, "Stack[s_");
  ExpectOpError(Push(stack, kOne), kInvalid, "] overflowed its max_size (1)");
  ExpectOpError(Pop(stack, DT_INT32), kInvalid, "Must have type float but got int32");
  ASSERT_OK(RunOp(Close(stack)));
  ExpectOpError(Push(stack, kOne), kInvalid, "] has already been closed.");
  ExpectOpError(Pop(stack), kInvalid, "] has already been closed.");
  ExpectOpError(Pop(device_->VariableHandle("v", kOne)), kInvalid, "must be a Stack");
}

TEST_F(StackTest, GivesItsMemoryBackWithItsStep) {
  const Tensor large = *Tensor::Zeros(DT_FLOAT, Shape{1 << 16});
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  const Tensor stack = Stack();
  ASSERT_OK(RunOp(Push(stack, *large.Clone())));
  EXPECT_GT(DefaultAllocatorStats().bytes_in_use, before + (1 << 18) - 1);
  device_ = std::make_unique<OpTestDevice>();
  EXPECT_LT(DefaultAllocatorStats().bytes_in_use, before + (1 << 17));
  ExpectOpError(Pop(stack), absl::StatusCode::kNotFound, "/Stack does not exist.");
}

TEST_F(StackTest, InfersWhatItCan) {
  EXPECT_SHAPE("StackV2", {{"elem_type", DT_FLOAT}}, {"[]"}, "[]");
  EXPECT_SHAPE_ERROR("StackV2", {{"elem_type", DT_FLOAT}}, {"[1]"}, "max_size must have rank 0");
  EXPECT_SHAPE("StackPushV2", {}, {"[]", "[2,?]"}, "[2,?]");
  EXPECT_SHAPE("StackPopV2", {{"elem_type", DT_FLOAT}}, {"[]"}, "<unknown>");
}

TEST(StackGraph, OfReferencesWorksAsTheOther) {
  Scope s;
  const Output stack = StackV1(s, DT_FLOAT, {.stack_name = "old"});
  const Output push = StackPushV1(s, stack, Const(s, kOne));
  const Output pop = StackPopV1(s.WithControlDependencies({push.op()}), stack, DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, EvaluateGraph(s, {}, {pop}));
  ExpectTensorEqual(out[0], kOne);
  const Output again = StackPopV1(s.WithControlDependencies({pop.op()}), stack, DT_FLOAT);
  EXPECT_STATUS(EvaluateGraph(s, {}, {again}), kInvalid, "Stack[old_");
}

}  // namespace
}  // namespace millrace

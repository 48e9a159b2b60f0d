// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/constant_folding.h"

#include "absl/strings/match.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/random/random.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Two ops that give what they get at once; one says that it looks it up in a file.
OpSpec GivesItsInput(const char* name) {
  return OpSpec(name, "x: float -> y: float")
      .Shape(UnchangedShape)
      .NotDifferentiable()
      .With(KernelFor<PassInputKernel>());
}
const OpRegistration kOfItself = GivesItsInput("OfItselfForTest");
const OpRegistration kOfFile = GivesItsInput("OfFileForTest").UsesFiles();

class ConstantFoldingTest : public testing::RewriteTest {
 protected:
  Output x_ = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
};

TEST_F(ConstantFoldingTest, OnlyTheLastConstantOfAChainIsLeft) {
  const Output two = Const(root_.WithName("two"), 2.f), three = Const(root_.WithName("three"), 3.f);
  const Output product = Mul(root_.WithName("product"), two, three);
  const Output sum = Add(root_.WithName("sum"), product, two);
  Add(root_.WithName("y"), x_, sum);
  const RunSignature signature = {{"x"}, {"y"}, {}};
  EXPECT_EQ(Before(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "product = Mul(two, three)\n"
            "sum = Add(product, two)\n"
            "three = Const() float[]: 3\n"
            "two = Const() float[]: 2\n"
            "y = Add(_arg_x_0_0, sum)\n");
  EXPECT_EQ(After("constant_folding", signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "sum = Const() float[]: 8\n"
            "y = Add(_arg_x_0_0, sum)\n");
}

TEST_F(ConstantFoldingTest, EachOutputThatIsReadBecomesAConstant) {
  const Output values = Const(root_.WithName("values"), {1.f, 2.f, 3.f});
  const auto parts = Unpack(root_.WithName("parts"), values, 3);
  Add(root_.WithName("y"), parts[1], x_);
  Add(root_.WithName("z"), parts[2], x_);
  EXPECT_EQ(After("constant_folding", {{"x"}, {"y", "z"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "_retval_z_0_1 = _Retval(z)\n"
            "parts = Const() float[]: 2\n"
            "parts/output_2 = Const() float[]: 3\n"
            "y = Add(parts, _arg_x_0_0)\n"
            "z = Add(parts/output_2, _arg_x_0_0)\n");
}

TEST_F(ConstantFoldingTest, AFoldedNodeRunsAfterWhatItRanAfter) {
  const Output first = Neg(root_.WithName("first"), x_);
  const Output two = Const(root_.WithControlDependencies({first.op()}).WithName("two"), 2.f);
  const Output inner = Neg(root_.WithName("inner"), two);
  const Output second = Abs(root_.WithName("second"), x_);
  Neg(root_.WithControlDependencies({second.op()}).WithName("y"), inner);
  EXPECT_EQ(After("constant_folding", {{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "first = Neg(_arg_x_0_0)\n"
            "second = Abs(_arg_x_0_0)\n"
            "y = Const(^first, ^second) float[]: 2\n");
}

TEST_F(ConstantFoldingTest, WhatRunsAfterAFoldedNodeRunsAfterItsConstant) {
  const Output two = Const(root_.WithName("two"), 2.f);
  const Output a = Neg(root_.WithName("a"), two);
  const Output b = Neg(root_.WithControlDependencies({a.op()}).WithName("b"), two);
  Neg(root_.WithControlDependencies({b.op()}).WithName("y"), x_);
  EXPECT_EQ(After("constant_folding", {{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Const() float[]: -2\n"
            "b = Const(^a) float[]: -2\n"
            "y = Neg(_arg_x_0_0, ^b)\n");
}

TEST_F(ConstantFoldingTest, TargetsAndStatefulNodesStay) {
  const Output shape = Const(root_.WithName("shape"), {2});
  RandomUniform(root_.WithName("random"), shape, DT_FLOAT, {.seed = 1});
  Neg(root_.WithName("target"), Const(root_.WithName("one"), 1.f));
  const RunSignature signature = {{}, {"random"}, {"target"}};
  EXPECT_EQ(After("constant_folding", signature), Before(signature));
}

TEST_F(ConstantFoldingTest, WhatUsesFilesStaysThoughItsInputsAreConstants) {
  const Output two = Const(root_.WithName("two"), 2.f);
  BuildOp(root_.WithName("of_itself"), "OfItselfForTest", {two});
  BuildOp(root_.WithName("of_file"), "OfFileForTest", {two});
  EXPECT_EQ(After("constant_folding", {{}, {"of_file", "of_itself"}, {}}),
            "_retval_of_file_0_0 = _Retval(of_file)\n"
            "_retval_of_itself_0_1 = _Retval(of_itself)\n"
            "of_file = OfFileForTest(two)\n"
            "of_itself = Const() float[]: 2\n"
            "two = Const() float[]: 2\n");
}

// The step says what is wrong, at the node that is wrong.
TEST_F(ConstantFoldingTest, WhatCannotBeComputedFailsInTheStep) {
  const Output zero = Const(root_.WithName("zero"), 0), one = Const(root_.WithName("one"), 1);
  const Output vector = Const(root_.WithName("vector"), {1, 2, 3});
  Identity(root_.WithName("quotient"), FloorDiv(root_.WithName("divided"), one, zero));
  Identity(root_.WithName("picked"),
           Gather(root_.WithName("gathered"), vector, Const(root_.WithName("seven"), {7})));
  Identity(root_.WithName("raised"), Pow(root_.WithName("power"), Const(root_.WithName("two"), 2),
                                         Const(root_.WithName("minus_one"), -1)));
  const struct {
    const char* fetch;
    const char* node;
    const char* text;
  } cases[] = {{"quotient", "divided", "Integer division by zero"},
               {"picked", "gathered", "7"},
               {"raised", "power", "negative integer powers"}};
  for (const auto& c : cases) {
    const StatusOr<std::vector<Tensor>> result = ExpectSameResults({}, {c.fetch});
    EXPECT_TRUE(absl::IsInvalidArgument(result.status())) << result.status();
    EXPECT_TRUE(absl::StrContains(result.status().message(), c.text)) << result.status();
    EXPECT_TRUE(absl::StrContains(result.status().message(), c.node)) << result.status();
  }
}

TEST_F(ConstantFoldingTest, LargeConstantsAreNotMade) {
  // 10 MiB and four bytes more.
  Neg(root_.WithName("y"),
      Fill(root_.WithName("large"), Const(root_, {(10 << 18) + 1}), Const(root_, 1.f)));
  Neg(root_.WithName("z"),
      Fill(root_.WithName("fits"), Const(root_, {10 << 18}), Const(root_, 1.f)));
  const std::string text = After("constant_folding", {{}, {"y", "z"}, {}});
  EXPECT_TRUE(absl::StrContains(text, "large = Fill(")) << text;
  EXPECT_TRUE(absl::StrContains(text, "y = Neg(large)")) << text;
  EXPECT_TRUE(absl::StrContains(text, "z = Const() tensor DT_FLOAT [2621440]")) << text;
}

TEST_F(ConstantFoldingTest, BitsSurviveTheirConstant) {
  const uint32_t bits[] = {0x80000000u, 0x7fc00001u, 0xffc12345u, 0x7f800000u, 0x00000001u};
  Tensor values = TensorOf<float>({5}, {0, 0, 0, 0, 0});
  std::memcpy(values.mutable_raw_data(), bits, sizeof(bits));
  Neg(root_.WithName("y"), Const(root_.WithName("values"), values));
  Sqrt(root_.WithName("z"), Const(root_.WithName("again"), values));
  ASSERT_OK(ExpectSameResults({}, {"y", "z"}).status());
}

}  // namespace
}  // namespace millrace

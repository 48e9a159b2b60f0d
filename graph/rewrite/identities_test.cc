// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/identities.h"

#include "core/shape.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"

namespace millrace {
namespace {

class IdentitiesTest : public testing::RewriteTest {
 protected:
  Output x_ = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
};

TEST_F(IdentitiesTest, ReadersOfAnIdentityReadItsInput) {
  const Output a = Identity(root_.WithName("a"), x_);
  const Output b = StopGradient(root_.WithName("b"), a);
  Neg(root_.WithName("y"), b);
  const RunSignature signature = {{"x"}, {"y", "b"}, {}};
  EXPECT_EQ(Before(signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_b_0_1 = _Retval(b)\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Identity(_arg_x_0_0)\n"
            "b = StopGradient(a)\n"
            "y = Neg(b)\n");
  EXPECT_EQ(After("identities", signature),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_b_0_1 = _Retval(_arg_x_0_0)\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "y = Neg(_arg_x_0_0)\n");
}

TEST_F(IdentitiesTest, ATargetStays) {
  Identity(root_.WithName("a"), x_);
  EXPECT_EQ(After("identities", {{"x"}, {}, {"a"}}),
            "_arg_x_0_0 = _Arg()\n"
            "a = Identity(_arg_x_0_0)\n");
}

TEST_F(IdentitiesTest, ControlInputsPassToTheReaders) {
  const Output first = Neg(root_.WithName("first"), x_);
  const Output a = Identity(root_.WithControlDependencies({first.op()}).WithName("a"), x_);
  Neg(root_.WithName("y"), a);
  EXPECT_EQ(After("identities", {{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "first = Neg(_arg_x_0_0)\n"
            "y = Neg(_arg_x_0_0, ^first)\n");
}

TEST_F(IdentitiesTest, EdgesDoNotMultiply) {
  const Output p = Neg(root_.WithName("p"), x_), q = Abs(root_.WithName("q"), x_);
  const Output a = Identity(root_.WithControlDependencies({p.op(), q.op()}).WithName("a"), x_);
  Neg(root_.WithName("y"), a);
  Abs(root_.WithName("z"), a);
  const RunSignature signature = {{"x"}, {"y", "z"}, {}};
  EXPECT_EQ(After("identities", signature), Before(signature));
}

TEST_F(IdentitiesTest, ANoOpBetweenControlEdgesGoes) {
  const Output first = Neg(root_.WithName("first"), x_);
  const Operation a = NoOp(root_.WithControlDependencies({first.op()}).WithName("a"));
  const Operation b = NoOp(root_.WithControlDependencies({a}).WithName("b"));
  Neg(root_.WithControlDependencies({b}).WithName("y"), x_);
  EXPECT_EQ(After("identities", {{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "first = Neg(_arg_x_0_0)\n"
            "y = Neg(_arg_x_0_0, ^first)\n");
  EXPECT_EQ(After("identities", {{"x"}, {}, {"b"}}),
            "_arg_x_0_0 = _Arg()\n"
            "b = NoOp(^first)\n"
            "first = Neg(_arg_x_0_0)\n");
}

TEST_F(IdentitiesTest, TheMarkOfABranchStays) {
  const Output pred = Placeholder(root_.WithName("pred"), DT_BOOL, PartialShape::Scalar());
  const SwitchOutputs sides = Switch(root_.WithName("switch"), x_, pred);
  const Output pivot = Identity(root_.WithName("pivot"), sides.output_true);
  Const(root_.WithControlDependencies({pivot.op()}).WithName("c"), 1.f);
  const RunSignature signature = {{"x", "pred"}, {"c"}, {}};
  EXPECT_EQ(After("identities", signature), Before(signature));
}

TEST_F(IdentitiesTest, ReadingAReferenceHasItsMoment) {
  const Output v = NodeBuilder(root_.WithName("v"), "VariableV2")
                       .Attr("shape", PartialShape({2}))
                       .Attr("dtype", DT_FLOAT)
                       .Finish()
                       .output(0);
  Identity(root_.WithName("read"), v);
  const RunSignature signature = {{}, {"read"}, {}};
  EXPECT_EQ(After("identities", signature), Before(signature));
}

TEST_F(IdentitiesTest, DevicesKeepTheirEdges) {
  const Output a = Identity(root_.WithDevice("/device:CPU:1").WithName("a"), x_);
  Neg(root_.WithDevice("/device:CPU:1").WithName("y"), a);
  Neg(root_.WithDevice("/device:CPU:1").WithName("z"), a);
  const RunSignature signature = {{"x"}, {"y", "z"}, {}};
  EXPECT_EQ(After("identities", signature), Before(signature));
}

}  // namespace
}  // namespace millrace

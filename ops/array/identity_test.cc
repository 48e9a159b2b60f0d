// SPDX-License-Identifier: Apache-2.0
#include "ops/array/identity.h"

#include <complex>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

TEST(Identity, PassesEveryDtypeOnWithoutACopy) {
  const Tensor inputs[] = {TensorOf<float>({2}, {1, 2}), TensorOf<std::string>({1}, {"a"}),
                           TensorOf<bool>({}, {true}), TensorOf<int64_t>({0, 3}, {}),
                           TensorOf<std::complex<double>>({1}, {{1, 2}})};
  for (const char* op : {"Identity", "StopGradient", "PreventGradient"}) {
    for (const Tensor& x : inputs) {
      const Tensor y = RunOp1(OpCall(op).Input(x));
      ExpectTensorEqual(y, x);
      if (x.num_elements() > 0) {
        EXPECT_TRUE(y.SharesBufferWith(x)) << op;
      }
    }
    EXPECT_SHAPE(op, {}, {"[2,?]"}, "[2,?]");
  }
}

TEST(IdentityN, PassesAListOn) {
  const Tensor a = TensorOf<float>({1}, {1}), b = TensorOf<std::string>({}, {"x"});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(OpCall("IdentityN").Inputs({a, b})));
  ASSERT_EQ(out.size(), 2u);
  ExpectTensorEqual(out[0], a);
  ExpectTensorEqual(out[1], b);
}

TEST(Identity, ForwardsWhatAHandleHolds) {
  Scope scope;
  const Output handle = NodeBuilder(scope, "VarHandleOp")
                            .Attr("dtype", DT_FLOAT)
                            .Attr("shape", PartialShape({3, 4}))
                            .Finish()
                            .output(0);
  const Output same = Identity(scope, handle);
  const auto data = scope.refiner()->OutputHandle(*same.node(), 0);
  ASSERT_TRUE(data.has_value());
  EXPECT_EQ(data->shape.ToString(), "[3,4]");
}

TEST(NoOp, GroupRunsAfterAllItsOperations) {
  Scope scope;
  const Operation a = NoOp(scope.WithName("a")), b = NoOp(scope.WithName("b"));
  const Operation group = Group(scope, {a, b});
  ASSERT_TRUE(group.valid()) << scope.status();
  EXPECT_EQ(group.node()->control_inputs().size(), 2u);
  const Output x = WithDependencies(scope, {a}, Const(scope, 1.0f));
  ASSERT_TRUE(x.valid()) << scope.status();
  EXPECT_EQ(x.node()->control_inputs().size(), 1u);
}

TEST(IdentityGradients, PassOrStopOrRefuse) {
  const Tensor x = TensorOf<double>({2}, {1, 2});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) { return Identity(s, in[0]); }, {x});
  ExpectGradientsMatch(
      BuildOutputs([](const Scope& s, const std::vector<Output>& in) { return IdentityN(s, in); }),
      {x, x});
  Scope scope;
  const Output in = TestInput(scope, DT_FLOAT, {2});
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> none,
                       AddGradients(scope, {StopGradient(scope, in)}, {in}));
  EXPECT_FALSE(HasGradient(none[0]));
  EXPECT_STATUS(AddGradients(scope, {PreventGradient(scope, in, {.message = "not here"})}, {in}),
                absl::StatusCode::kNotFound, "not here");
}

}  // namespace
}  // namespace millrace

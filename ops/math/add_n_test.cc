// SPDX-License-Identifier: Apache-2.0
#include "ops/math/add_n.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(AddN, AddsAllInputs) {
  const Tensor a = Tensor::Vector<float>({1, 2});
  const Tensor b = Tensor::Vector<float>({10, 20});
  const Tensor c = Tensor::Vector<float>({100, 200});
  ExpectTensorEqual(RunOp1(OpCall("AddN").Inputs({a})), a);
  ExpectTensorEqual(RunOp1(OpCall("AddN").Inputs({a, b})), Tensor::Vector<float>({11, 22}));
  ExpectTensorEqual(RunOp1(OpCall("AddN").Inputs({a, b, c, a})), Tensor::Vector<float>({112, 224}));
  ExpectTensorEqual(
      RunOp1(OpCall("AccumulateNV2").Inputs({a, b, c}).Attr("shape", PartialShape({2}))),
      Tensor::Vector<float>({111, 222}));
  ExpectTensorEqual(
      RunOp1(OpCall("AddN").Inputs({Tensor::Vector<int8_t>({100}), Tensor::Vector<int8_t>({100})})),
      Tensor::Vector<int8_t>({-56}));
  ExpectTensorEqual(
      RunOp1(OpCall("AddN").Inputs({TensorOf<float>({0}, {}), TensorOf<float>({0}, {})})),
      TensorOf<float>({0}, {}));
  // Several blocks and tasks.
  const std::vector<float> ones(100000, 1);
  const Tensor many = Tensor::Vector<float>(ones);
  const Tensor sum = RunOp1(OpCall("AddN").Inputs({many, many, many}));
  for (const float v : sum.flat<float>()) ASSERT_EQ(v, 3);
}

TEST(AddN, RefusesDifferentShapes) {
  const Tensor a = Tensor::Vector<float>({1, 2});
  const Tensor b = Tensor::Vector<float>({1});
  ExpectOpError(OpCall("AddN").Inputs({a, b}), kInvalid,
                "input 1 must have the shape of the inputs before it, [2], got [1]");
  ExpectOpError(OpCall("AccumulateNV2").Inputs({b}).Attr("shape", PartialShape({2})), kInvalid,
                "inputs must have the shape of the attr, [2], got [1]");
  EXPECT_SHAPE("AddN", {}, {"[2,?]", "[?,3]", "<unknown>"}, "[2,3]");
  EXPECT_SHAPE_ERROR("AddN", {}, {"[2]", "[3]"}, "input 1 must have the shape");
  EXPECT_SHAPE("AccumulateNV2", {{"shape", PartialShape({2})}}, {"<unknown>", "[?]"}, "[2]");
  EXPECT_SHAPE_ERROR("AccumulateNV2", {{"shape", PartialShape({-1})}}, {"[2]", "[2]"},
                     "fully known");
}

TEST(AddN, GradientsMatch) {
  const std::vector<Tensor> inputs = {Tensor::Vector<double>({1, 2}),
                                      Tensor::Vector<double>({3, 4}),
                                      Tensor::Vector<double>({5, 6})};
  ExpectGradientsMatch(
      BuildOutput([](const Scope& s, const std::vector<Output>& in) { return AddN(s, in); }),
      inputs);
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return AccumulateNV2(s, in, {2});
                       }),
                       inputs);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/state/ref_variable.h"

#include <memory>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"
#include "runtime/variable_storage.h"

// covers: variables: updates of reference variables work in place: nothing is copied before the
//   kernel

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Table() { return TensorOf<float>({3, 2}, {0, 1, 10, 11, 20, 21}); }

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

TEST(RefVariable, UpdatesWorkInPlace) {
  const auto variable = TestVariable("v", *Tensor::Zeros(DT_FLOAT, ShapeOf({1000, 64})));
  const void* const memory = variable->Read()->raw_data();
  ASSERT_OK(RunOp(OpCall("ScatterAdd")
                      .InputRef(variable)
                      .Input(Ints({1, 500, 999}))
                      .Input(Tensor::Scalar<float>(1)))
                .status());
  EXPECT_EQ(variable->Read()->raw_data(), memory);
  ASSERT_OK(RunOp(OpCall("AssignAdd")
                      .InputRef(variable)
                      .Input(*Tensor::Zeros(DT_FLOAT, ShapeOf({1000, 64}))))
                .status());
  EXPECT_EQ(variable->Read()->raw_data(), memory);
  EXPECT_EQ(variable->CountsForTesting().bytes_copied, 0);
}

TEST(RefVariable, ShapesFollowTheDeclaration) {
  EXPECT_SHAPE("VariableV2", {{"shape", PartialShape({2, 3})}, {"dtype", DT_FLOAT}}, {}, "[2,3]");
  // In the oldest graphs, [] stands for a shape that is not known.
  EXPECT_SHAPE("Variable", {{"shape", PartialShape::Scalar()}, {"dtype", DT_FLOAT}}, {},
               "<unknown>");
}

}  // namespace
}  // namespace millrace

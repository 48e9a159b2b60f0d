// SPDX-License-Identifier: Apache-2.0
#include "ops/array/placeholder.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

TEST(Placeholder, MustBeFed) {
  ExpectOpError(OpCall("Placeholder")
                    .Name("images")
                    .Attr("dtype", DT_FLOAT)
                    .Attr("shape", PartialShape({-1, 784})),
                absl::StatusCode::kInvalidArgument,
                "You must feed a value for placeholder tensor 'images' with dtype float and shape "
                "[?,784]");
  ExpectOpError(OpCall("PlaceholderV2").Attr("dtype", DT_STRING).Attr("shape", PartialShape()),
                absl::StatusCode::kInvalidArgument, "with dtype string");
}

TEST(Placeholder, HasTheDeclaredShape) {
  Scope scope;
  EXPECT_EQ(scope.shape(Placeholder(scope, DT_FLOAT, {-1, 784})).ToString(), "[?,784]");
  EXPECT_EQ(scope.shape(Placeholder(scope, DT_FLOAT)).ToString(), "<unknown>");
  EXPECT_EQ(scope.shape(PlaceholderV2(scope, DT_FLOAT, {2})).ToString(), "[2]");
}

TEST(PlaceholderWithDefault, PassesTheDefaultOnAndDeclaresItsOwnShape) {
  const Tensor x = TensorOf<float>({2}, {1, 2});
  ExpectTensorEqual(
      RunOp1(OpCall("PlaceholderWithDefault").Input(x).Attr("shape", PartialShape({-1}))), x);
  EXPECT_SHAPE("PlaceholderWithDefault", {{"shape", PartialShape({-1})}}, {"[2]"}, "[?]");
  EXPECT_SHAPE_ERROR("PlaceholderWithDefault", {{"shape", PartialShape({3})}}, {"[2]"},
                     "the default's shape must be compatible with [3], got [2]");
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return PlaceholderWithDefault(s, in[0], {2});
      },
      {TensorOf<double>({2}, {1, 2})});
}

}  // namespace
}  // namespace millrace

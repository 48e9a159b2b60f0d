// SPDX-License-Identifier: Apache-2.0
#include "ops/array/placeholder.h"

#include <string>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/versions.pb.h"
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

// Old programs wrote [] for a shape that they did not know; only Placeholder did.
TEST(Placeholder, OfAnOldProducerThatSaysScalarIsUnknown) {
  const PartialShape scalar = PartialShape::Scalar();
  for (const auto& [producer, shape] : {std::pair(0, "<unknown>"), {21, "<unknown>"}, {22, "[]"}}) {
    Scope scope;
    scope.graph()->mutable_versions()->set_producer(producer);
    EXPECT_EQ(scope.shape(Placeholder(scope, DT_FLOAT, scalar)).ToString(), shape) << producer;
    EXPECT_EQ(scope.shape(Placeholder(scope, DT_FLOAT, {2})).ToString(), "[2]") << producer;
    EXPECT_EQ(scope.shape(PlaceholderV2(scope, DT_FLOAT, scalar)).ToString(), "[]") << producer;
    const Output keep = PlaceholderWithDefault(scope, Const(scope, 1.0f), scalar);
    EXPECT_EQ(scope.shape(keep).ToString(), "[]") << producer;
  }
}

TEST(Placeholder, OfAScalarSaysNothingOfItsShapeWhenItIsNotFed) {
  const Status status =
      RunOp(OpCall("Placeholder").Attr("dtype", DT_FLOAT).Attr("shape", PartialShape::Scalar()))
          .status();
  EXPECT_STATUS(status, absl::StatusCode::kInvalidArgument, "with dtype float");
  EXPECT_EQ(status.message().find("and shape"), std::string::npos) << status;
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

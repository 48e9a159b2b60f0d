// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_join.h"

#include <gtest/gtest.h>

#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

Tensor Text(const char* text) { return TensorOf<std::string>({}, {text}); }

TEST(StringJoin, JoinsElementByElementAndRepeatsScalars) {
  ExpectTensorEqual(RunOp1(OpCall("StringJoin").Inputs({Text("model"), Text("_temp/part")})),
                    Text("model_temp/part"));
  const Tensor list = TensorOf<std::string>({2, 1}, {"a", "b"});
  ExpectTensorEqual(
      RunOp1(OpCall("StringJoin").Inputs({list, Text("x"), list}).Attr("separator", "-")),
      TensorOf<std::string>({2, 1}, {"a-x-a", "b-x-b"}));
  const Tensor empty = TensorOf<std::string>({0}, {});
  ExpectTensorEqual(RunOp1(OpCall("StringJoin").Inputs({Text("x"), empty})), empty);
  ExpectOpError(OpCall("StringJoin").Inputs({list, TensorOf<std::string>({2}, {"a", "b"})}),
                absl::StatusCode::kInvalidArgument,
                "inputs[1] must be a scalar or have shape [2,1], got shape [2]");
}

TEST(StringJoin, ShapeIsThatOfTheInputsThatAreNoScalars) {
  EXPECT_SHAPE("StringJoin", {}, {"[]", "[]"}, "[]");
  EXPECT_SHAPE("StringJoin", {}, {"[]", "[2,?]", "[?,3]"}, "[2,3]");
  EXPECT_SHAPE("StringJoin", {}, {"[]", "<unknown>"}, "<unknown>");
  EXPECT_SHAPE("StringJoin", {}, {"[2]", "<unknown>"}, "[2]");
  EXPECT_SHAPE_ERROR("StringJoin", {}, {"[2]", "[3]"}, "inputs[1] must be a scalar");
}

}  // namespace
}  // namespace millrace

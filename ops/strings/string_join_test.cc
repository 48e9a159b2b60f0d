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

OpCall BySegment(const Tensor& inputs, const Tensor& ids, int32_t num_segments) {
  return OpCall("UnsortedSegmentJoin")
      .Input(inputs)
      .Input(ids)
      .Input(Tensor::Scalar(num_segments))
      .Attr("separator", std::string(":"));
}

TEST(UnsortedSegmentJoin, JoinsRowsOfASegmentInTheirOrder) {
  const Tensor rows = Tensor::Of({{"Y", "q", "c"}, {"Y", "6", "6"}, {"p", "G", "a"}});
  ExpectTensorEqual(RunOp1(BySegment(rows, Tensor::Of({1, 0, 1}), 3)),
                    Tensor::Of({{"Y", "6", "6"}, {"Y:p", "q:G", "c:a"}, {"", "", ""}}));
  ExpectTensorEqual(RunOp1(BySegment(Tensor::Of({{"a", "b"}, {"c", "d"}}),
                                     Tensor::Of<int64_t>({{0, 1}, {1, 0}}), 2)),
                    Tensor::Of({"a:d", "b:c"}));
  // No separator behind nothing but empty strings.
  ExpectTensorEqual(RunOp1(BySegment(Tensor::Of({"", "x", ""}), Tensor::Of({0, 0, 0}), 1)),
                    Tensor::Of({"x:"}));
  ExpectTensorEqual(
      RunOp1(BySegment(TensorOf<std::string>({0, 2}, {}), TensorOf<int32_t>({0}, {}), 2)),
      Tensor::Of({{"", ""}, {"", ""}}));
}

TEST(UnsortedSegmentJoin, RefusesWhatIsNoSegment) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const Tensor two = Tensor::Of({"a", "b"});
  ExpectOpError(BySegment(two, Tensor::Of({0, 2}), 2), kInvalid,
                "segment_ids[1] must be in [0, 2), got 2");
  ExpectOpError(BySegment(two, Tensor::Of({-1, 0}), 2), kInvalid,
                "segment_ids[0] must be in [0, 2), got -1");
  ExpectOpError(BySegment(two, Tensor::Of({0, 0}), -1), kInvalid, "num_segments must be >= 0");
  ExpectOpError(BySegment(two, Tensor::Scalar(0), 1), kInvalid,
                "segment_ids must have rank at least 1, got shape []");
  ExpectOpError(BySegment(two, Tensor::Of({0, 0, 0}), 1), kInvalid,
                "the shape of segment_ids must begin the shape of data [2], got [3]");
  EXPECT_SHAPE("UnsortedSegmentJoin", {}, {"[2,?]", "[2]", Tensor::Scalar(3)}, "[3,?]");
  EXPECT_SHAPE("UnsortedSegmentJoin", {}, {"[2,?]", "[2]", "[]"}, "[?,?]");
}

}  // namespace
}  // namespace millrace

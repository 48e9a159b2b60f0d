// SPDX-License-Identifier: Apache-2.0
#include "data/decode_csv.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: `DecodeCSV` has TensorFlow's values and errors
// covers: article 4-7: CSV records in a graph

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Decode(const Tensor& records, const std::vector<Tensor>& defaults) {
  std::vector<DType> types;
  for (const Tensor& t : defaults) types.push_back(t.dtype());
  return OpCall("DecodeCSV")
      .Input(records)
      .Inputs({defaults.begin(), defaults.end()})
      .Attr("OUT_TYPE", types);
}
const Tensor kRequired = TensorOf<int32_t>({0}, {});

TEST(DecodeCSV, GivesATensorPerField) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(Decode(Tensor::Of({{" 39, State-gov,1.5"}, {"50, Private,"}}),
                                    {kRequired, Tensor::Of({"?"}), Tensor::Scalar(-1.0f)})));
  ASSERT_EQ(got.size(), 3u);
  ExpectTensorEqual(got[0], Tensor::Of({{39}, {50}}));
  ExpectTensorEqual(got[1], Tensor::Of({{" State-gov"}, {" Private"}}));
  ExpectTensorEqual(got[2], Tensor::Of({{1.5f}, {-1.0f}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> of_one,
                       RunOp(Decode(Tensor::Scalar("7"), {kRequired})));
  ExpectTensorEqual(of_one[0], Tensor::Scalar(7));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> of_none,
                       RunOp(Decode(TensorOf<std::string>({0, 3}, {}), {kRequired, kRequired})));
  ExpectTensorEqual(of_none[1], TensorOf<int32_t>({0, 3}, {}));
}

TEST(DecodeCSV, HonoursItsAttrs) {
  const std::vector<Tensor> two = {Tensor::Scalar("none"), Tensor::Scalar(0.0)};
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(Decode(Tensor::Of({"\"a\"|x|2.5|rest", "NA|x|NA|"}), two)
                                 .Attr("field_delim", std::string("|"))
                                 .Attr("use_quote_delim", false)
                                 .Attr("na_value", std::string("NA"))
                                 .Attr("select_cols", std::vector<int64_t>{0, 2})));
  ExpectTensorEqual(got[0], Tensor::Of({"\"a\"", "none"}));
  ExpectTensorEqual(got[1], Tensor::Of({2.5, 0.0}));
}

// In TensorFlow's words; the rules in full: data/csv_test.cc.
TEST(DecodeCSV, BadRecordsAreTold) {
  const struct {
    const char* record;
    const char* text;
  } cases[] = {
      {"", "Expect 2 fields but have 0 in record 1"},
      {"1", "Expect 2 fields but have 1 in record 1"},
      {"1,2,3", "Expect 2 fields but have 3 in record 1"},
      {"1,x", "Field 1 in record 1 is not a valid int32: x"},
      {",2", "Field 0 is required but missing in record 1!"},
      {"1,2\"", "Unquoted fields cannot have quotes/CRLFs inside"},
      {"1,\"2\"3", "Quote inside a string has to be escaped by another quote"},
      {"1,\"2", "Quoted field has to end with quote followed by delim or end"},
      {"1,2147483648", "Field 1 in record 1 is not a valid int32: 2147483648"},
      {"nan,1", "Field 0 in record 1 is not a valid int32: nan"},
  };
  for (const auto& c : cases) {
    ExpectOpError(Decode(Tensor::Of({"1,2", c.record, "worse,"}), {kRequired, kRequired}), kInvalid,
                  c.text);
  }
}

TEST(DecodeCSV, WrongAttrsAndDefaultsAreTold) {
  const Tensor records = Tensor::Of({"1,2"});
  const std::vector<Tensor> two = {kRequired, kRequired};
  ExpectOpError(Decode(records, two).Attr("field_delim", std::string("||")), kInvalid,
                "field_delim should be only 1 char, got '||'");
  ExpectOpError(Decode(records, two).Attr("field_delim", std::string("")), kInvalid,
                "field_delim should be only 1 char");
  ExpectOpError(Decode(records, two).Attr("select_cols", std::vector<int64_t>{0}), kInvalid,
                "select_cols should match output size");
  ExpectOpError(Decode(records, two).Attr("select_cols", std::vector<int64_t>{1, 1}), kInvalid,
                "select_cols should be strictly increasing indices");
  ExpectOpError(Decode(records, two).Attr("select_cols", std::vector<int64_t>{-1, 1}), kInvalid,
                "select_cols should be non-negative indices");
  ExpectOpError(Decode(records, {kRequired, Tensor::Of({1, 2})}), kInvalid,
                "There should only be 1 default per field but field 1 has 2");
  ExpectOpError(Decode(records, {kRequired, Tensor::Of({{1}})}), kInvalid,
                "Shape of a default must be a length-0 or length-1 vector, or a scalar");
  ExpectOpError(Decode(records, {Tensor::Scalar(true), kRequired}), kInvalid, "OUT_TYPE");
}

TEST(DecodeCSV, InfersShapes) {
  const OpAttr types("OUT_TYPE", std::vector<DType>{DT_FLOAT, DT_STRING});
  EXPECT_SHAPE("DecodeCSV", {types}, {"[2,?]", "[]", "[0]"}, "[2,?];[2,?]");
  EXPECT_SHAPE("DecodeCSV", {types}, {"<unknown>", "[1]", "<unknown>"}, "<unknown>;<unknown>");
  EXPECT_SHAPE_ERROR("DecodeCSV", {types}, {"[2]", "[2]", "[]"}, "only be 1 default per field");
}

}  // namespace
}  // namespace millrace

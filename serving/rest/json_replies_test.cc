// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_replies.h"

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "gtest/gtest.h"
#include "serving/aliased_tensor.h"

// covers: programs: replies of the REST front have TensorFlow Serving's bytes

namespace millrace {
namespace {

std::string Reply(const std::vector<AliasedTensor>& outputs, JsonForm form) {
  const StatusOr<std::string> reply = PredictReply(outputs, form);
  return reply.ok() ? *reply : reply.status().ToString();
}

TEST(JsonRepliesTest, RowsOfOneOutput) {
  EXPECT_EQ(Reply({{"y", Tensor::Of<float>({2.5, 3, 4.5})}}, JsonForm::kRow),
            "{\n    \"predictions\": [2.5, 3.0, 4.5\n    ]\n}");
  EXPECT_EQ(
      Reply({{"y", Tensor::Of<int32_t>({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}})}}, JsonForm::kRow),
      "{\n    \"predictions\": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]\n    ]\n}");
  EXPECT_EQ(Reply({{"y", Tensor::Of<bool>({{true}, {false}})}}, JsonForm::kRow),
            "{\n    \"predictions\": [[true], [false]\n    ]\n}");
  EXPECT_EQ(Reply({{"y", Tensor::Of<float>({})}}, JsonForm::kRow), "{\n    \"predictions\": []\n}");
}

TEST(JsonRepliesTest, RowsOfSeveralOutputs) {
  EXPECT_EQ(
      Reply({{"a", Tensor::Of<float>({{1.0, 0.5}, {2.0, 0.25}})}, {"b", Tensor::Of({"u", "v"})}},
            JsonForm::kRow),
      "{\n"
      "    \"predictions\": [\n"
      "        {\n"
      "            \"a\": [1.0, 0.5],\n"
      "            \"b\": \"u\"\n"
      "        },\n"
      "        {\n"
      "            \"a\": [2.0, 0.25],\n"
      "            \"b\": \"v\"\n"
      "        }\n"
      "    ]\n"
      "}");
}

TEST(JsonRepliesTest, Columns) {
  EXPECT_EQ(Reply({{"y", Tensor::Scalar(2.5)}}, JsonForm::kColumnar), "{\n    \"outputs\": 2.5\n}");
  EXPECT_EQ(Reply({{"y", Tensor::Of<float>({{1}, {2}})}}, JsonForm::kColumnar),
            "{\n"
            "    \"outputs\": [\n"
            "        [\n"
            "            1.0\n"
            "        ],\n"
            "        [\n"
            "            2.0\n"
            "        ]\n"
            "    ]\n"
            "}");
  // Columns may differ in their first dimension.
  EXPECT_EQ(Reply({{"a", Tensor::Of<int64_t>({1})}, {"b", Tensor::Of<uint64_t>({})}},
                  JsonForm::kColumnar),
            "{\n"
            "    \"outputs\": {\n"
            "        \"a\": [\n"
            "            1\n"
            "        ],\n"
            "        \"b\": []\n"
            "    }\n"
            "}");
}

TEST(JsonRepliesTest, BytesAreBase64ByTheirAlias) {
  EXPECT_EQ(Reply({{"y_bytes", Tensor::Of({"hello"})}}, JsonForm::kRow),
            "{\n    \"predictions\": [{\n            \"b64\": \"aGVsbG8=\"\n        }\n    ]\n}");
  EXPECT_EQ(Reply({{"y_bytes", Tensor::Of({"hello", "tf"})}}, JsonForm::kColumnar),
            "{\n"
            "    \"outputs\": [\n"
            "        {\n"
            "            \"b64\": \"aGVsbG8=\"\n"
            "        },\n"
            "        {\n"
            "            \"b64\": \"dGY=\"\n"
            "        }\n"
            "    ]\n"
            "}");
  // Only of strings.
  EXPECT_EQ(Reply({{"y_bytes", Tensor::Of<uint8_t>({7})}}, JsonForm::kRow),
            "{\n    \"predictions\": [7\n    ]\n}");
}

TEST(JsonRepliesTest, EachDtypeHasItsForm) {
  EXPECT_EQ(Reply({{"y", Tensor::Of<int8_t>({-128, 127})}}, JsonForm::kRow),
            "{\n    \"predictions\": [-128, 127\n    ]\n}");
  EXPECT_EQ(Reply({{"y", Tensor::Of<uint64_t>({~uint64_t{0}})}}, JsonForm::kRow),
            "{\n    \"predictions\": [18446744073709551615\n    ]\n}");
  EXPECT_EQ(
      Reply({{"y", Tensor::Of<int64_t>({std::numeric_limits<int64_t>::min()})}}, JsonForm::kRow),
      "{\n    \"predictions\": [-9223372036854775808\n    ]\n}");
  constexpr double kInf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(Reply({{"y", Tensor::Of<double>({kInf, -kInf, kInf - kInf, 1.0 / 3})}}, JsonForm::kRow),
            "{\n    \"predictions\": [Infinity, -Infinity, NaN, 0.33333333333333331\n    ]\n}");
  EXPECT_EQ(Reply({{"y", Tensor::Of({std::string("a\"\\/\n\x01\xff")})}}, JsonForm::kRow),
            "{\n    \"predictions\": [\"a\\\"\\\\/\\n\\u0001\xff\"\n    ]\n}");
}

TEST(JsonRepliesTest, WhatHasNoFormIsRefused) {
  EXPECT_EQ(Reply({}, JsonForm::kRow), "INVALID_ARGUMENT: Cannot convert empty tensor map to JSON");
  EXPECT_EQ(Reply({{"y", Tensor::Scalar(1.0f)}}, JsonForm::kRow),
            "INVALID_ARGUMENT: Tensor name: y has no shape information ");
  EXPECT_EQ(
      Reply({{"a", Tensor::Of<float>({1, 2})}, {"b", Tensor::Of<float>({1})}}, JsonForm::kRow),
      "INVALID_ARGUMENT: Tensor name: b has inconsistent batch size: 1 expecting: 2");
  EXPECT_EQ(Reply({{"y", *Tensor::Zeros(DT_COMPLEX64, Shape{2})}}, JsonForm::kRow),
            "INVALID_ARGUMENT: Failed to write JSON value for tensor type: complex64");
  EXPECT_EQ(Reply({{"y", *Tensor::Zeros(DT_HALF, Shape{2})}}, JsonForm::kColumnar),
            "INVALID_ARGUMENT: Failed to write JSON value for tensor type: half");
}

// No elements, but 2^40 lists.
TEST(JsonRepliesTest, RepliesAreBounded) {
  const std::vector<AliasedTensor> outputs = {
      {"y", *Tensor::Zeros(DT_FLOAT, Shape{int64_t{1} << 40, 0})}};
  for (const JsonForm form : {JsonForm::kRow, JsonForm::kColumnar}) {
    const StatusOr<std::string> reply = PredictReply(outputs, form, 10000);
    EXPECT_EQ(reply.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(reply.status().message(), "JSON reply: it may have at most 10000 bytes, got more");
  }
}

TEST(JsonRepliesTest, ClassifyAndRegress) {
  const std::vector<std::vector<ClassAndScore>> examples = {
      {{.label = "a", .score = 0.25f}, {.label = "", .score = 1}}, {{.label = "b", .score = 2}}};
  EXPECT_EQ(*ClassifyReply(examples),
            "{\n    \"results\": [[[\"a\", 0.25], [\"\", 1.0]], [[\"b\", 2.0]]\n    ]\n}");
  EXPECT_EQ(ClassifyReply({}).status().message(),
            "Cannot convert empty ClassificationResults to JSON");
  EXPECT_EQ(*RegressReply({0.5f, 3.0f}), "{\n    \"results\": [0.5, 3.0]\n}");
  EXPECT_EQ(RegressReply({}).status().message(), "Cannot convert empty RegressionResults to JSON");
}

TEST(JsonRepliesTest, Errors) {
  EXPECT_EQ(ErrorReply(InvalidArgument("Malformed request: POST /v1/\"x\"")),
            "{\n    \"error\": \"Malformed request: POST /v1/\\\"x\\\"\"\n}");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "data/decode_json_example.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "data/testing/test_example.h"
#include "google/protobuf/util/json_util.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"
#include "runtime/testing/op_test.h"

// covers: input: JSON Examples decode as TensorFlow's; wrong JSON is named
// covers: article 4-7: JSON records in a graph

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Decode(const Tensor& texts) { return OpCall("DecodeJSONExample").Input(texts); }

tensorflow::Example Parsed(const std::string& bytes) {
  tensorflow::Example example;
  EXPECT_TRUE(example.ParseFromString(bytes));
  return example;
}

TEST(DecodeJSONExample, GivesTheExample) {
  const Tensor got = RunOp1(Decode(Tensor::Of({
      R"({"features": {"feature": {"age": {"int64List": {"value": ["30", 31]}},
                                   "name": {"bytesList": {"value": ["YWI="]}},
                                   "rate": {"floatList": {"value": [1.5, "NaN", "-Infinity"]}}}}})",
      R"({"features": {"feature": {"age": {"int64_list": {"value": []}}}}})", "{}"})));
  const tensorflow::Example first = Parsed(got.flat<std::string>()[0]);
  const auto& features = first.features().feature();
  ASSERT_EQ(features.size(), 3u);
  ASSERT_EQ(features.at("age").int64_list().value_size(), 2);
  EXPECT_EQ(features.at("age").int64_list().value(1), 31);
  EXPECT_EQ(features.at("name").bytes_list().value(0), "ab");
  EXPECT_EQ(features.at("rate").float_list().value(0), 1.5f);
  EXPECT_TRUE(Parsed(got.flat<std::string>()[1]).features().feature().at("age").has_int64_list());
  EXPECT_EQ(got.flat<std::string>()[2], "");
}

TEST(DecodeJSONExample, WhatProtobufPrintsComesBack) {
  const TestExample example =
      TestExample().Ints("i", {-1, INT64_MAX}).Floats("f", {0.1f, -3e30f}).Bytes("b", {"\xff\0x"});
  std::string json;
  ASSERT_TRUE(google::protobuf::util::MessageToJsonString(example.message(), &json).ok());
  const Tensor got = RunOp1(Decode(Tensor::Of<std::string>({{json}, {json}})));
  ASSERT_EQ(got.shape(), (Shape{2, 1}));
  for (const std::string& bytes : got.flat<std::string>()) {
    EXPECT_EQ(Parsed(bytes).DebugString(), example.message().DebugString());
  }
  ExpectTensorEqual(RunOp1(Decode(TensorOf<std::string>({0}, {}))), TensorOf<std::string>({0}, {}));
  EXPECT_SHAPE("DecodeJSONExample", {}, {"[2,?]"}, "[2,?]");
}

TEST(DecodeJSONExample, WrongJsonIsNamed) {
  for (const char* text :
       {"", "{", "[]", "hello", "1", R"({"features": 1})", R"({"unknown": {}})",
        R"({"features": {"feature": {"x": {"int64List": {"value": ["1.5"]}}}}})",
        R"({"features": {"feature": {"x": {"int64List": {"value": ["a"]}}}}})",
        R"({"features": {"feature": {"x": {"bytesList": {"value": ["*"]}}}}})",
        R"({"features": {"feature": {"x": {"int64List": {}, "floatList": {}}}}})",
        R"({"features": {"feature": {"x": {"int64List": {"value": [9223372036854775808]}}}}})"}) {
    ExpectOpError(Decode(Tensor::Of({"{}", text})), kInvalid,
                  "Error while parsing JSON in element 1: ");
  }
  const std::string deep = std::string(100000, '[');
  ExpectOpError(Decode(Tensor::Scalar(deep)), kInvalid,
                "Error while parsing JSON in element 0: it must be nested at most 64 deep");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_examples.h"

#include <random>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "proto/feature.pb.h"

// covers: programs: bodies of REST classify and regress requests become Examples with TensorFlow
//   Serving's acceptance and messages

namespace millrace {
namespace {

// Is it the example with these features, in the text form?
testing::AssertionResult Has(const tensorflow::Example& example, const std::string& features) {
  tensorflow::Example expected;
  if (!google::protobuf::TextFormat::ParseFromString("features {" + features + "}", &expected)) {
    return testing::AssertionFailure() << "the test's text is wrong: " << features;
  }
  if (google::protobuf::util::MessageDifferencer::Equals(example, expected)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << example.DebugString();
}

std::string Message(const std::string& body) {
  const StatusOr<JsonExamplesRequest> request = ReadExamplesRequest(body);
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << body;
  return std::string(request.status().message());
}

TEST(JsonExamplesTest, FeaturesHaveTheKindsOfTheirValues) {
  const StatusOr<JsonExamplesRequest> request = ReadExamplesRequest(
      R"({"examples": [{"names": ["foo", "bar"], "ratings": [8.0, 9e0], "age": 20},)"
      R"( {"names": "baz", "on": [true, 2, false], "none": [], "raw": [{"b64": "aGVsbG8="}, "x"]}],)"
      R"( "signature_name": "s", "other": [{"x": {"y": []}}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->signature_name, "s");
  EXPECT_FALSE(request->context.has_value());
  ASSERT_EQ(request->examples.size(), 2u);
  EXPECT_TRUE(Has(request->examples[0], R"(
      feature { key: "names" value { bytes_list { value: "foo" value: "bar" } } }
      feature { key: "ratings" value { float_list { value: 8 value: 9 } } }
      feature { key: "age" value { int64_list { value: 20 } } })"));
  EXPECT_TRUE(Has(request->examples[1], R"(
      feature { key: "names" value { bytes_list { value: "baz" } } }
      feature { key: "on" value { int64_list { value: 1 value: 2 value: 0 } } }
      feature { key: "none" value { } }
      feature { key: "raw" value { bytes_list { value: "hello" value: "x" } } })"));
}

TEST(JsonExamplesTest, TheContextMayBeAnywhere) {
  for (const char* body : {R"({"context": {"age": -9223372036854775808}, "examples": [{}]})",
                           R"({"examples": [{}], "context": {"age": [-9223372036854775808]}})"}) {
    const StatusOr<JsonExamplesRequest> request = ReadExamplesRequest(body);
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_TRUE(request->context.has_value());
    EXPECT_TRUE(Has(*request->context, R"(
        feature { key: "age" value { int64_list { value: -9223372036854775808 } } })"));
    ASSERT_EQ(request->examples.size(), 1u);
  }
}

TEST(JsonExamplesTest, LastOfEqualFeaturesCounts) {
  const StatusOr<JsonExamplesRequest> request =
      ReadExamplesRequest(R"({"examples": [{"x": 1, "x": ["a"]}], "examples": 5})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(
      Has(request->examples[0], R"(feature { key: "x" value { bytes_list { value: "a" } } })"));
}

TEST(JsonExamplesTest, ErrorsOfTheRequest) {
  EXPECT_EQ(Message(""), "JSON Parse error: The document is empty");
  EXPECT_EQ(Message(R"({"examples": [{}], "examples": [1,]})"),
            "JSON Parse error: Invalid value. at offset: 34");
  EXPECT_EQ(Message("[]"), "JSON Value: [] Is not object");
  EXPECT_EQ(
      Message(R"({"signature_name": null, "examples": [1]})"),
      "JSON Value: {\n    \"signature_name\": null,\n    \"examples\": [\n        1\n    ]\n} "
      "not formatted correctly. 'signature_name' key must be a string value.");
  EXPECT_EQ(Message("{}"),
            "JSON Value: {} When method is classify, key 'examples' is expected and was not found");
  EXPECT_EQ(Message(R"({"examples": 5})"),
            "JSON Value: {\n    \"examples\": 5\n} Expecting 'examples' value to be an list/array");
  EXPECT_EQ(Message(R"({"examples": {"x": 5}})"),
            "JSON Value: {\n    \"examples\": {\n        \"x\": 5\n    }\n} Expecting 'examples' "
            "value to be an list/array");
  EXPECT_EQ(Message(R"({"examples": []})"),
            "JSON Value: {\n    \"examples\": []\n} 'examples' value is an empty array");
}

TEST(JsonExamplesTest, ErrorsOfExamples) {
  const std::pair<const char*, const char*> cases[] = {
      {"1", "Example must be JSON object but got JSON Number"},
      {"{}, true", "Example must be JSON object but got JSON True"},
      {"null", "Example must be JSON object but got JSON Null"},
      {"\"a\"", "Example must be JSON object but got JSON String"},
      {"[{}]", "Example must be JSON object but got JSON Array"},
      {R"({"x": null})", "Feature: x has element with unexpected JSON type: Null"},
      {R"({"x": [[1]]})", "Feature: x has element with unexpected JSON type: Array"},
      {R"({"x": {"y": 1}})", "Feature: x has element with unexpected JSON type: Object"},
      {R"({"x": [{}]})", "Feature: x has element with unexpected JSON type: Object"},
      {R"({"x": {"b64": "aGVsbG8=", "y": 1}})",
       "Feature: x has element with unexpected JSON type: Object"},
      {R"({"x": {"b64": 5}})", "Feature: x has element with unexpected JSON type: Object"},
      {R"({"x": {"b64": [1]}})", "Feature: x has element with unexpected JSON type: Object"},
      {R"({"x": {"b64": "!"}})", "Unable to base64 decode"},
      {R"({"x": [1, 2.0]})", "Unexpected element type in feature: x expecting type: int64"},
      {R"({"x": [2.0, 1]})", "Unexpected element type in feature: x expecting type: float"},
      {R"({"x": ["a", true]})", "Unexpected element type in feature: x expecting type: bytes"},
      {R"({"x": [1, "a"]})", "Unexpected element type in feature: x expecting type: int64"},
      {R"({"x": [1, {"b64": "!"}]})",
       "Unexpected element type in feature: x expecting type: int64"},
      {R"({"x": 9223372036854775808})",
       "Feature: x has uint64_t element. Only int64_t is supported."},
      {R"({"x": "a"}, {"y": [1, "b"]}, 5)",
       "Unexpected element type in feature: y expecting type: int64"},
  };
  for (const auto& [examples, text] : cases) {
    EXPECT_EQ(Message(absl::StrCat("{\"examples\": [", examples, "]}")), text) << examples;
  }
  for (const char* order :
       {R"({"examples": [1], "context": 2.5})", R"({"context": 2.5, "examples": [1]})"}) {
    EXPECT_EQ(Message(order), "Example must be JSON object but got JSON Number");
  }
  // Those of the context first.
  EXPECT_EQ(Message(R"({"examples": [1], "context": {"x": null}})"),
            "Feature: x has element with unexpected JSON type: Null");
  EXPECT_EQ(Message(R"({"context": [1]})"), "Example must be JSON object but got JSON Array");
}

TEST(JsonExamplesTest, DepthAndSizesAreBounded) {
  for (const char* start : {"{\"examples\": [", "{\"context\": {\"x\": ", "{\"other\": "}) {
    EXPECT_TRUE(absl::StrContains(Message(start + std::string(100000, '[')),
                                  "nested deeper than 1000 at offset: "));
  }
  JsonLimits limits;
  limits.max_elements = 4;
  // The example, its feature, two values.
  EXPECT_TRUE(ReadExamplesRequest(R"({"examples": [{"x": [1, 2]}]})", limits).ok());
  EXPECT_EQ(ReadExamplesRequest(R"({"examples": [{"x": [1, 2, 3]}]})", limits).status().message(),
            absl::StrCat("JSON request: its features may have at most 4 values and ",
                         limits.max_bytes, " bytes, got more"));
}

TEST(JsonExamplesTest, MutatedBodiesAreReadOrRefused) {
  const std::string seed =
      R"({"signature_name": "s", "context": {"c": {"b64": "aGVsbG8="}}, "examples": )"
      R"([{"x": [1, 2], "y": 2.5}, {"x": [], "z": ["a", "b"]}]})";
  for (size_t size = 0; size < seed.size(); ++size) {
    EXPECT_TRUE(absl::StartsWith(Message(seed.substr(0, size)), "JSON Parse error: ")) << size;
  }
  std::mt19937_64 random(5);
  const char* const pieces[] = {"[", "]", "{", "}", ",", ":", "\"", "1", "null", "\"b64\":", "[]"};
  for (int round = 0; round < 10000; ++round) {
    std::string body = seed;
    for (size_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % (body.size() + 1);
      if (random() % 2 == 0) {
        body.erase(at, random() % 5);
      } else {
        body.insert(at, pieces[random() % (sizeof(pieces) / sizeof(pieces[0]))]);
      }
    }
    const StatusOr<JsonExamplesRequest> request = ReadExamplesRequest(body);
    if (request.ok()) {
      EXPECT_FALSE(request->examples.empty()) << body;
    } else {
      EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << request.status() << body;
    }
  }
}

}  // namespace
}  // namespace millrace

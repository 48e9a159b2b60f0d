// SPDX-License-Identifier: Apache-2.0
#include "serving/rest/json_tensors.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"
#include "serving/rest/json_replies.h"

// covers: programs: bodies of REST predict requests become tensors with TensorFlow Serving's
//   acceptance, messages and offsets; any bytes are read in bounded memory and depth

namespace millrace {
namespace {

JsonInputsOf Gives(const std::vector<JsonInput>& inputs) {
  return [&inputs](absl::string_view) -> StatusOr<absl::Span<const JsonInput>> {
    return absl::MakeConstSpan(inputs);
  };
}

StatusOr<JsonPredictRequest> Read(const std::vector<JsonInput>& inputs, absl::string_view body,
                                  const JsonLimits& limits = {}) {
  return ReadPredictRequest(body, Gives(inputs), limits);
}

std::vector<JsonInput> One(DType dtype) { return {{.alias = "x", .dtype = dtype}}; }

// "row x int32[2]: 1 2", or the error's code and message.
std::string Result(const std::vector<JsonInput>& inputs, absl::string_view body,
                   const JsonLimits& limits = {}) {
  const StatusOr<JsonPredictRequest> request = Read(inputs, body, limits);
  if (!request.ok()) return request.status().ToString();
  std::string text = request->form == JsonForm::kRow ? "row" : "columnar";
  for (const AliasedTensor& input : request->inputs) {
    absl::StrAppend(&text, " ", input.alias, " ", input.tensor.DebugString());
  }
  return text;
}

std::string Message(const std::vector<JsonInput>& inputs, absl::string_view body) {
  const StatusOr<JsonPredictRequest> request = Read(inputs, body);
  EXPECT_FALSE(request.ok()) << body;
  EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument) << body;
  return std::string(request.status().message());
}

Tensor OnlyTensor(DType dtype, absl::string_view body) {
  const std::vector<JsonInput> inputs = One(dtype);
  StatusOr<JsonPredictRequest> request = Read(inputs, body);
  EXPECT_TRUE(request.ok()) << request.status() << " " << body.substr(0, 1000);
  return request.ok() ? std::move(request->inputs[0].tensor) : Tensor();
}

TEST(JsonTensorsTest, RowsOfOneInput) {
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"instances": [[1,2],[3,4],[5,6]]})"),
            Tensor::Of<int32_t>({{1, 2}, {3, 4}, {5, 6}}));
  EXPECT_EQ(OnlyTensor(DT_FLOAT, R"({"instances": [1, 2.0, 3, 4, 5.003, 0.007, 0.0]})"),
            Tensor::Of<float>({1, 2, 3, 4, 5.003, 0.007, 0}));
  EXPECT_EQ(OnlyTensor(DT_DOUBLE, R"({"instances":[1.0, 2, 0.662 , 0, -0.0,1e3]})"),
            Tensor::Of<double>({1, 2, 0.662, 0, -0.0, 1000}));
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"instances": [{"x": [1]}, {"x": [2]}]})"),
            Tensor::Of<int32_t>({{1}, {2}}));
  EXPECT_EQ(OnlyTensor(DT_BOOL, R"({"instances": [true, false]})"), Tensor::Of({true, false}));
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"instances": ["foo", "b\u00e9\"\n"]})"),
            Tensor::Of({"foo", "b\xc3\xa9\"\n"}));
  // Rows that are empty lists.
  EXPECT_EQ(OnlyTensor(DT_FLOAT, R"({"instances": [[], []]})").shape(), (Shape{2, 0}));
}

TEST(JsonTensorsTest, RowsOfSeveralInputs) {
  const std::vector<JsonInput> inputs = {{.alias = "f", .dtype = DT_FLOAT},
                                         {.alias = "i", .dtype = DT_INT64},
                                         {.alias = "s", .dtype = DT_STRING}};
  StatusOr<JsonPredictRequest> request = Read(inputs, R"({"instances": [
      {"i": [[1,2],[3,4]], "s": "a", "f": [1.5, NaN]},
      {"s": {"b64": "aGVsbG8="}, "f": [Infinity, -Infinity], "i": [[5,6],[7,8]]}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->form, JsonForm::kRow);
  ASSERT_EQ(request->inputs.size(), 3u);
  EXPECT_EQ(request->inputs[0].alias, "f");
  const absl::Span<const float> f = request->inputs[0].tensor.flat<float>();
  EXPECT_EQ(request->inputs[0].tensor.shape(), (Shape{2, 2}));
  EXPECT_EQ(f[0], 1.5f);
  EXPECT_TRUE(std::isnan(f[1]));
  EXPECT_EQ(f[2], std::numeric_limits<float>::infinity());
  EXPECT_EQ(f[3], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(request->inputs[1].tensor, Tensor::Of<int64_t>({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}));
  EXPECT_EQ(request->inputs[2].tensor, Tensor::Of({"a", "hello"}));
}

TEST(JsonTensorsTest, Columns) {
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"inputs": [[[1,2],[3,4],[5,6]]]})"),
            Tensor::Of<int32_t>({{{1, 2}, {3, 4}, {5, 6}}}));
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"inputs": {"x": [1, 2], "y": {"z": [null, "b64"]}}})"),
            Tensor::Of<int32_t>({1, 2}));
  EXPECT_EQ(OnlyTensor(DT_FLOAT, R"({"inputs": 5})"), Tensor::Scalar(5.0f));
  EXPECT_EQ(OnlyTensor(DT_FLOAT, R"({"inputs": []})").shape(), (Shape{0}));
  EXPECT_EQ(OnlyTensor(DT_FLOAT, R"({"inputs": [[],[]]})").shape(), (Shape{2, 0}));
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"inputs": {"b64": "aGVsbG8="}})"), Tensor::Scalar("hello"));
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"inputs": {"x": {"b64": "aGVsbG8="}}})"),
            Tensor::Scalar("hello"));
  const std::vector<JsonInput> two = {{.alias = "a", .dtype = DT_INT32},
                                      {.alias = "b", .dtype = DT_STRING}};
  // Columns may differ in their first dimension.
  EXPECT_EQ(Result(two, R"({"inputs": {"b": ["u", "v", "w"], "a": 7, "c": [1, "x"]}})"),
            "columnar a " + Tensor::Scalar(int32_t{7}).DebugString() + " b " +
                Tensor::Of({"u", "v", "w"}).DebugString());
}

TEST(JsonTensorsTest, Base64) {
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"instances": [{"b64": "aGVsbG8="}, {"b64": "d29ybGQ="}]})"),
            Tensor::Of({"hello", "world"}));
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"instances": [[{"b64":"aGVsbG8="}, "x"], ["y", "z"]]})"),
            Tensor::Of({{"hello", "x"}, {"y", "z"}}));
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"instances": [{"x": [[{"b64": "aGVsbG8="}]]}]})"),
            Tensor::Of({{{"hello"}}}));
  EXPECT_EQ(OnlyTensor(DT_STRING, R"({"instances": ["", {"b64": ""}]})"), Tensor::Of({"", ""}));
  // An input of this name, whose value is no string or not alone.
  const std::vector<JsonInput> named = {{.alias = "b64", .dtype = DT_STRING}};
  EXPECT_EQ(Result(named, R"({"instances": [{"b64": ["aGVsbG8="]}]})"),
            "row b64 " + Tensor::Of({{"aGVsbG8="}}).DebugString());
  const std::vector<JsonInput> two = {{.alias = "a", .dtype = DT_INT32},
                                      {.alias = "b64", .dtype = DT_STRING}};
  EXPECT_EQ(Result(two, R"({"instances": [{"b64": "u", "a": 1}, {"a": 2, "b64": "v"}]})"),
            "row a " + Tensor::Of<int32_t>({1, 2}).DebugString() + " b64 " +
                Tensor::Of({"u", "v"}).DebugString());
  EXPECT_EQ(Result(two, R"({"inputs": {"b64": "u", "a": 1}})"),
            "columnar a " + Tensor::Scalar(int32_t{1}).DebugString() + " b64 " +
                Tensor::Scalar("u").DebugString());
}

TEST(JsonTensorsTest, ErrorsOfTheParserHaveItsWordsAndOffsets) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "The document is empty"},
      {"  ", "The document is empty. at offset: 2"},
      {"}", "The document is empty. at offset: 0"},
      {"{", "Missing a name for object member. at offset: 1"},
      {"{\"a\" 1}", "Missing a colon after a name of object member. at offset: 5"},
      {"{\"a\": 1 2}", "Missing a comma or '}' after an object member. at offset: 8"},
      {R"({"instances": [1,]})", "Invalid value. at offset: 17"},
      {R"({"instances": [1 2]})", "Missing a comma or ']' after an array element. at offset: 17"},
      {R"({"instances": [1, 2, tru]})", "Invalid value. at offset: 24"},
      {R"({"instances": [1, 2, 03]})",
       "Missing a comma or ']' after an array element. at offset: 22"},
      {R"({"instances": [1, 2, 3.]})", "Miss fraction part in number. at offset: 23"},
      {R"({"instances": [1, 2, 3e]})", "Miss exponent in number. at offset: 23"},
      {R"({"instances": [1, 2, -]})", "Invalid value. at offset: 22"},
      {R"({"instances": [1e400]})", "Number too big to be stored in double. at offset: 15"},
      {R"({"instances": ["a)", "Missing a closing quotation mark in string. at offset: 17"},
      {R"({"instances": ["\x"]})", "Invalid escape character in string. at offset: 16"},
      {R"({"instances": ["\ud800"]})", "The surrogate pair in string is invalid. at offset: 16"},
  };
  for (const DType dtype : {DT_INT32, DT_DOUBLE, DT_STRING, DT_HALF}) {
    for (const auto& [body, text] : cases) {
      EXPECT_EQ(Message(One(dtype), body), absl::StrCat("JSON Parse error: ", text)) << body;
    }
  }
  // They come before any other mistake, which is here at the start.
  EXPECT_EQ(Message(One(DT_INT32), R"({"instances": ["a", 1,]})"),
            "JSON Parse error: Invalid value. at offset: 22");
}

TEST(JsonTensorsTest, ErrorsOfTheRequest) {
  const std::vector<JsonInput> x = One(DT_INT32);
  EXPECT_EQ(Message(x, "[1]"), "JSON Value: [\n    1\n] Is not object");
  EXPECT_EQ(Message(x, "5"), "JSON Value: 5 Is not object");
  EXPECT_EQ(
      Message(x, R"({"signature_name": 5, "instances": [1]})"),
      "JSON Value: {\n    \"signature_name\": 5,\n    \"instances\": [\n        1\n    ]\n} not "
      "formatted correctly. 'signature_name' key must be a string value.");
  EXPECT_EQ(Message(x, R"({"instances": [1], "inputs": 1})"),
            "JSON Value: {\n    \"instances\": [\n        1\n    ],\n    \"inputs\": 1\n} Not "
            "formatted correctly expecting only one of 'inputs' or 'instances' keys to exist ");
  EXPECT_EQ(Message(x, "{}"), "Missing 'inputs' or 'instances' key");
  EXPECT_EQ(Message(x, R"({"instances": []})"),
            "JSON Value: {\n    \"instances\": []\n} No values in 'instances' array");
  EXPECT_EQ(Message(x, R"({"instances": 5})"),
            "JSON Value: {\n    \"instances\": 5\n} Expecting 'instances' to be an list/array");
  EXPECT_EQ(
      Message(x, R"({"instances": {"x": 5}})"),
      "JSON Value: {\n    \"instances\": {\n        \"x\": 5\n    }\n} Expecting 'instances' to "
      "be an list/array");
  EXPECT_EQ(Message({}, R"({"instances": [1]})"), "Failed to get input map for signature: DEFAULT");
  EXPECT_EQ(Message({}, R"({"instances": [1], "signature_name": "s"})"),
            "Failed to get input map for signature: s");
}

TEST(JsonTensorsTest, ErrorsOfRows) {
  // The elements of the list "instances"; the message behind "Failed to process element: ".
  const std::pair<const char*, const char*> cases[] = {
      {"[1,2],[3,4],[5,6,7]",
       "2 of 'instances' list. Error: INVALID_ARGUMENT: Expecting tensor size: 2 but got: 3"},
      {"[1,2],[3,4],[[5,6]]",
       "2 of 'instances' list. Error: INVALID_ARGUMENT: Expecting shape [2] but got: [1,2]"},
      {"1, [1]", "1 of 'instances' list. Error: INVALID_ARGUMENT: Expecting shape [] but got: [1]"},
      {"1, 2, 3, [1]",
       "3 of 'instances' list. Error: INVALID_ARGUMENT: Expecting shape [] but got: [1]"},
      {R"([1,2],["a","b"])",
       "1 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: \"a\" Type: String is not of "
       "expected type: int32"},
      {"1.0",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: 1.0 Type: Number is not of "
       "expected type: int32"},
      {"7, 1.5",
       "1 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: 1.5 Type: Number is not of "
       "expected type: int32"},
      {"1, 2147483648",
       "1 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: 2147483648 Type: Number is not "
       "of expected type: int32"},
      {"[1, 2, -2147483649]",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: -2147483649 Type: Number is "
       "not "
       "of expected type: int32"},
      {"NaN",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: NaN Type: Number is not of "
       "expected type: int32"},
      {"null",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: null Type: Null is not of "
       "expected type: int32"},
      {"1, true",
       "1 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: true Type: True is not of "
       "expected type: int32"},
      {"[1,[2]]",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: Encountered list at unexpected level: 1 "
       "expected < 1"},
      {"[[1],2]",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: 2 found at incorrect level: 2 "
       "in "
       "the JSON DOM. Expected at level: 2"},
      {"[[1,2],[3]]",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: Encountered list at unexpected size: 1 at "
       "level: 1 expected size: 2"},
      {"[[],[3]]",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: Encountered list at unexpected size: 1 at "
       "level: 1 expected size: 0"},
      // The length of a list counts before what is in it, and of lists the outer.
      {R"([[1,2],["a",3,4]])",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: Encountered list at unexpected size: 3 at "
       "level: 1 expected size: 2"},
      {"[[[1],[2]],[[3],[4,5],[6]]]",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: Encountered list at unexpected size: 3 at "
       "level: 1 expected size: 2"},
      {R"([[1,2],["a",3],[4,5,6]])",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: \"a\" Type: String is not of "
       "expected type: int32"},
      {R"([{"b64":"aGVsbG8="}])",
       "0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: {\n    \"b64\": "
       "\"aGVsbG8=\"\n} "
       "Type: Object is not of expected type: int32"},
      {R"({"x": 1}, {"y": 2})",
       "1 key: y of 'instances' list. Error: INVALID_ARGUMENT: JSON object: does not have named "
       "input: y"},
      {R"({"x": 1}, {"x": "a"})",
       "1 key: x of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: \"a\" Type: String is "
       "not "
       "of expected type: int32"},
      {R"({"x": 1}, {})", "1 of 'instances' list. JSON object: {} keys must be equal to: x"},
      {R"({"b64": 5})",
       "0 key: b64 of 'instances' list. Error: INVALID_ARGUMENT: JSON object: does not have named "
       "input: b64"},
  };
  for (const auto& [items, text] : cases) {
    EXPECT_EQ(Message(One(DT_INT32), absl::StrCat("{\"instances\": [", items, "]}")),
              absl::StrCat("Failed to process element: ", text))
        << items;
  }
}

TEST(JsonTensorsTest, RowsAreOfOneKind) {
  EXPECT_EQ(Message(One(DT_INT32), R"({"instances": [1, 2, {"x": 1}]})"),
            "Expecting value/list but got object at item 2 of input list");
  EXPECT_EQ(Message(One(DT_INT32), R"({"instances": [{"x": 1}, {"x": 2}, [3]]})"),
            "Expecting object but got list at item 2 of input list");
  EXPECT_EQ(Message(One(DT_STRING), R"({"instances": [{"x": "a"}, {"b64": "aGVsbG8="}]})"),
            "Expecting object but got list at item 1 of input list");
  const std::vector<JsonInput> two = {{.alias = "a", .dtype = DT_INT32},
                                      {.alias = "b", .dtype = DT_INT32}};
  EXPECT_EQ(Message(two, R"({"instances": [1]})"),
            "instances is a plain list, but expecting list of objects as multiple input tensors "
            "required as per tensorinfo_map");
  EXPECT_EQ(
      Message(two, R"({"instances": [{"a": 1}]})"),
      "Failed to process element: 0 of 'instances' list. JSON object: {\n    \"a\": 1\n} keys "
      "must be equal to: a,b");
}

TEST(JsonTensorsTest, ErrorsOfColumns) {
  const std::vector<JsonInput> two = {{.alias = "a", .dtype = DT_INT32},
                                      {.alias = "b", .dtype = DT_INT32}};
  EXPECT_EQ(Message(two, R"({"inputs": [1]})"),
            "inputs is a plain value/list, but expecting an object as multiple input tensors "
            "required as per tensorinfo_map");
  EXPECT_EQ(Message(two, R"({"inputs": {"b": 1}})"), "Missing named input: a in 'inputs' object.");
  EXPECT_EQ(Message(two, R"({"inputs": {"b": ["x"], "a": [[1], [2, 3]]}})"),
            "Encountered list at unexpected size: 2 at level: 1 expected size: 1");
  EXPECT_EQ(Message(One(DT_STRING), R"({"inputs": [{"b64": 5}]})"),
            "JSON Value: {\n    \"b64\": 5\n} not formatted correctly for base64 data");
  EXPECT_EQ(
      Message(One(DT_STRING), R"({"inputs": [{"b64": "aGVsbG8=", "c": 1}]})"),
      "JSON Value: {\n    \"b64\": \"aGVsbG8=\",\n    \"c\": 1\n} not formatted correctly for "
      "base64 data");
  EXPECT_EQ(
      Message(One(DT_STRING), R"({"inputs": [{"b64": [{"b64": "aGVsbG8="}]}]})").substr(0, 12),
      "JSON Value: ");
  EXPECT_EQ(Message(One(DT_STRING), R"({"inputs": {"b64": "!!"}})"), "Unable to base64 decode");
  EXPECT_EQ(Message(One(DT_STRING), R"({"inputs": ["a", 1]})"),
            "JSON Value: 1 Type: Number is not of expected type: string");
}

TEST(JsonTensorsTest, DtypesWithoutAFormAreUnimplemented) {
  for (const DType dtype : {DT_HALF, DT_BFLOAT16, DT_COMPLEX64, DT_QINT8}) {
    EXPECT_EQ(
        Result(One(dtype), R"({"inputs": [1.5]})"),
        absl::StrCat("UNIMPLEMENTED: Conversion of JSON Value: 1.5 to type: ", DTypeName(dtype)));
    EXPECT_EQ(Message(One(dtype), R"({"instances": [1]})"),
              absl::StrCat("Failed to process element: 0 of 'instances' list. Error: "
                           "UNIMPLEMENTED: Conversion of JSON Value: 1 to type: ",
                           DTypeName(dtype)));
  }
}

template <typename T>
void ExpectRange(const std::string& below, const std::string& above) {
  using Limits = std::numeric_limits<T>;
  const DType dtype = DTypeOf<T>;
  const std::string least = absl::StrCat(+Limits::min()), most = absl::StrCat(+Limits::max());
  // The first number of a list is read by the reader, the second by the loop.
  for (const std::string& list :
       {absl::StrCat(least, ",", most), absl::StrCat(most, " , ", least)}) {
    const Tensor tensor = OnlyTensor(dtype, absl::StrCat("{\"inputs\":[", list, "]}"));
    ASSERT_EQ(tensor.dtype(), dtype);
    EXPECT_EQ(absl::StrCat(+tensor.flat<T>()[0], ",", +tensor.flat<T>()[1]),
              absl::StrReplaceAll(list, {{" ", ""}}));
  }
  for (const std::string& value : {below, above}) {
    for (const char* before : {"", "0, ", "0, 1, "}) {
      const std::string body = absl::StrCat("{\"inputs\":[", before, value, ", 2]}");
      EXPECT_EQ(Message(One(dtype), body),
                absl::StrCat("JSON Value: ", value,
                             " Type: Number is not of expected type: ", DTypeName(dtype)));
    }
  }
}

TEST(JsonTensorsTest, IntegersAreInRange) {
  ExpectRange<int8_t>("-129", "128");
  ExpectRange<int16_t>("-32769", "32768");
  ExpectRange<int32_t>("-2147483649", "2147483648");
  ExpectRange<uint8_t>("-1", "256");
  ExpectRange<uint16_t>("-1", "65536");
  ExpectRange<uint32_t>("-1", "4294967296");
  // Beyond 64 bits a number is a decimal, and shown as a float.
  ExpectRange<int64_t>("1.5", "9223372036854775808");
  ExpectRange<uint64_t>("-1", "2.5");
  EXPECT_EQ(Message(One(DT_UINT64), R"({"inputs": 18446744073709551616})"),
            "JSON Value: 1.84467441e+19 Type: Number is not of expected type: uint64");
}

TEST(JsonTensorsTest, FloatsOverflowToInfinityAndUnderflowToZero) {
  const Tensor floats = OnlyTensor(
      DT_FLOAT, R"({"inputs": [1e39, -1e39, 1e-60, Inf, 16777217, 18446744073709551615]})");
  const float infinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(floats, Tensor::Of<float>({infinity, -infinity, 0.0f, infinity, 16777216.0f,
                                       18446744073709551616.0f}));
  const Tensor doubles = OnlyTensor(
      DT_DOUBLE, R"({"inputs": [1e-400, 0.00000000001e-2147483639, 1E-99999999999, 9e308]})");
  EXPECT_EQ(doubles, Tensor::Of<double>({0, 0, 0, std::numeric_limits<double>::infinity()}));
  // A whole number has no sign where it is 0.
  const Tensor zeros = OnlyTensor(DT_DOUBLE, R"({"inputs": [-0, -0, -0.0, -0.0]})");
  const absl::Span<const double> z = zeros.flat<double>();
  EXPECT_EQ((std::vector<bool>{std::signbit(z[0]), std::signbit(z[1]), std::signbit(z[2]),
                               std::signbit(z[3])}),
            (std::vector<bool>{false, false, true, true}));
}

// A decimal text of `digits` digits, the point somewhere among them.
std::string RandomDecimal(std::mt19937_64& random, int digits) {
  std::string text = random() % 2 == 0 ? "-" : "";
  const int point = static_cast<int>(random() % static_cast<unsigned>(digits));
  for (int i = 0; i < digits; ++i) {
    // No leading zero but one that is alone.
    const bool leading = i == 0 && point != 0;
    text.push_back(static_cast<char>('0' + (leading ? 1 + random() % 9 : random() % 10)));
    if (i == point && point + 1 < digits) {
      if (i == 0) text.back() = static_cast<char>('0' + random() % 10);
      text.push_back('.');
    }
  }
  return text;
}

TEST(JsonTensorsTest, NumbersOfFewDigitsAreStrtods) {
  std::mt19937_64 random(20261130);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> texts;
    for (int i = 0; i < 50; ++i) {
      texts.push_back(RandomDecimal(random, 1 + static_cast<int>(random() % 15)));
    }
    const Tensor tensor =
        OnlyTensor(DT_DOUBLE, absl::StrCat("{\"inputs\": [", absl::StrJoin(texts, ", "), "]}"));
    ASSERT_EQ(tensor.num_elements(), 50);
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(tensor.flat<double>()[i], std::strtod(texts[i].c_str(), nullptr)) << texts[i];
    }
  }
}

// The reader's doubles, as TensorFlow Serving's, are not always the nearest.
TEST(JsonTensorsTest, NumbersOfManyDigitsAreNearStrtods) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 5000; ++round) {
    const std::string text =
        absl::StrCat(RandomDecimal(random, 16 + static_cast<int>(random() % 10)), "e",
                     static_cast<int>(random() % 560) - 280);
    const double expected = std::strtod(text.c_str(), nullptr);
    const Tensor tensor = OnlyTensor(DT_DOUBLE, absl::StrCat("{\"inputs\": [0, ", text, "]}"));
    EXPECT_LE(std::abs(tensor.flat<double>()[1] - expected), std::abs(expected) * 2e-15) << text;
  }
}

// The loop over plain numbers gives the reader's values: the first number of a list is the
// reader's, the others are the loop's.
template <typename T>
void ExpectLoopIsReader(uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> texts, alone;
    for (int i = 0; i < 20; ++i) {
      std::string text = RandomDecimal(random, 1 + static_cast<int>(random() % 25));
      if (random() % 4 == 0) absl::StrAppend(&text, "E", static_cast<int>(random() % 30) - 15);
      if (random() % 8 == 0) text = absl::StrCat(random() >> (random() % 64));
      alone.push_back(absl::StrCat("[", text, "]"));
      texts.push_back(std::move(text));
    }
    const char* comma = random() % 2 == 0 ? "," : " ,\n\t";
    const Tensor loop = OnlyTensor(
        DTypeOf<T>, absl::StrCat("{\"instances\":[[", absl::StrJoin(texts, comma), "]]}"));
    const Tensor reader =
        OnlyTensor(DTypeOf<T>, absl::StrCat("{\"instances\":[", absl::StrJoin(alone, comma), "]}"));
    ASSERT_EQ(loop.TotalBytes(), reader.TotalBytes());
    EXPECT_EQ(
        std::memcmp(loop.raw_data(), reader.raw_data(), static_cast<size_t>(loop.TotalBytes())), 0)
        << absl::StrJoin(texts, ",");
  }
}

TEST(JsonTensorsTest, TheLoopGivesTheReadersValues) {
  ExpectLoopIsReader<double>(1);
  ExpectLoopIsReader<float>(2);
}

TEST(JsonTensorsTest, FirstOfEqualKeysCounts) {
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"instances": [1], "instances": "x"})"),
            Tensor::Of<int32_t>({1}));
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"inputs": {"x": [1], "x": ["a"]}})"),
            Tensor::Of<int32_t>({1}));
  EXPECT_EQ(OnlyTensor(DT_INT32, R"({"instances": [{"x": 1, "x": 2}, {"x": 3}]})"),
            Tensor::Of<int32_t>({1, 3}));
  const std::vector<JsonInput> inputs = One(DT_INT32);
  EXPECT_EQ(Read(inputs, R"({"signature_name": "a", "instances": [1], "signature_name": 5})")
                ->signature_name,
            "a");
}

TEST(JsonTensorsTest, TheSignatureMayFollowTheData) {
  const std::vector<JsonInput> numbers = One(DT_INT32),
                               texts = {{.alias = "t", .dtype = DT_STRING}};
  std::vector<std::string> asked;
  bool has_default = true;
  const JsonInputsOf inputs_of =
      [&](absl::string_view name) -> StatusOr<absl::Span<const JsonInput>> {
    asked.emplace_back(name);
    if (name == "texts") return absl::MakeConstSpan(texts);
    if (name.empty() && has_default) return absl::MakeConstSpan(numbers);
    return InvalidArgument("Serving signature name: \"", name, "\" not found in signature def");
  };
  const auto read = [&](absl::string_view body) {
    asked.clear();
    return ReadPredictRequest(body, inputs_of);
  };
  using Names = std::vector<std::string>;
  ASSERT_TRUE(read(R"({"instances": [1]})").ok());
  EXPECT_EQ(asked, Names{""});
  ASSERT_TRUE(read(R"({"signature_name": "texts", "instances": ["a"]})").ok());
  EXPECT_EQ(asked, Names{"texts"});
  for (const bool exists : {true, false}) {
    has_default = exists;
    StatusOr<JsonPredictRequest> request =
        read(R"({"instances": ["a"], "signature_name": "texts"})");
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->signature_name, "texts");
    EXPECT_EQ(request->inputs[0].alias, "t");
    EXPECT_EQ(request->inputs[0].tensor, Tensor::Of({"a"}));
    EXPECT_EQ(asked, (Names{"", "texts"}));
  }
  EXPECT_EQ(read(R"({"instances": ["a"], "signature_name": "u"})").status().message(),
            "Serving signature name: \"u\" not found in signature def");
  EXPECT_EQ(read("{}").status().message(),
            "Serving signature name: \"\" not found in signature def");
}

TEST(JsonTensorsTest, MoreThanJsonIsAccepted) {
  EXPECT_EQ(OnlyTensor(DT_INT32, "\xEF\xBB\xBF {\"instances\":[1,2]}} trailing"),
            Tensor::Of<int32_t>({1, 2}));
  EXPECT_EQ(OnlyTensor(DT_STRING, "{\"instances\":[\"\xff\xc0\", \"\\u0000a\"]}"),
            Tensor::Of({std::string("\xff\xc0"), std::string("\0a", 2)}));
  // The view's end is the body's.
  const std::string longer = R"({"instances": [1, 23]}4)";
  EXPECT_EQ(OnlyTensor(DT_INT32, absl::string_view(longer).substr(0, longer.size() - 1)),
            Tensor::Of<int32_t>({1, 23}));
}

TEST(JsonTensorsTest, DepthIsBounded) {
  for (const char* bracket : {"[", "{\"a\":"}) {
    for (const char* key : {"instances", "inputs", "signature_name", "other"}) {
      std::string body = absl::StrCat("{\"", key, "\":");
      for (int i = 0; i < 100000; ++i) body.append(bracket);
      const std::string message = Message(One(DT_FLOAT), body);
      EXPECT_TRUE(absl::StartsWith(
          message, "JSON Parse error: Lists and objects are nested deeper than 1000 at offset: "))
          << message;
    }
  }
  // What is within the bound, and no shape.
  std::string deep = std::string(400, '[') + "1" + std::string(400, ']');
  EXPECT_FALSE(Read(One(DT_FLOAT), absl::StrCat("{\"inputs\":", deep, "}")).ok());
  EXPECT_TRUE(Read(One(DT_FLOAT), absl::StrCat("{\"a\":", deep, ",\"inputs\":1}")).ok());
}

TEST(JsonTensorsTest, SizesAreBounded) {
  const std::vector<JsonInput> x = One(DT_FLOAT);
  JsonLimits limits;
  limits.max_elements = 3;
  EXPECT_EQ(Result(x, R"({"inputs": [1, 2, 3]})", limits),
            "columnar x " + Tensor::Of<float>({1, 2, 3}).DebugString());
  EXPECT_EQ(Result(x, R"({"inputs": [1, 2, 3, 4]})", limits),
            "INVALID_ARGUMENT: JSON request: its tensors may have at most 3 elements, got more");
  EXPECT_EQ(Result(x, R"({"instances": [1, 2, 3, 4]})", limits),
            "INVALID_ARGUMENT: JSON request: its tensors may have at most 3 elements, got more");
  limits = {};
  limits.max_bytes = 8;
  EXPECT_EQ(Result(x, R"({"inputs": [1, 2, 3]})", limits),
            "INVALID_ARGUMENT: JSON request: its tensors may have at most 8 bytes, got more");
  limits = {};
  limits.max_body_bytes = 4;
  EXPECT_EQ(Result(x, R"({"inputs": 1})", limits),
            "INVALID_ARGUMENT: JSON request: a body may have at most 4 bytes, got 13");
  limits = {};
  limits.max_shown_bytes = 20;
  EXPECT_EQ(Result(x, R"({"instances": [], "other": "a long text"})", limits),
            "INVALID_ARGUMENT: JSON Value: {\n    \"instances\": [...TRUNCATED No values in "
            "'instances' array");
}

TEST(JsonTensorsTest, ABodyThatIsCutAnywhereIsAnErrorOfTheParser) {
  const std::vector<JsonInput> inputs = {{.alias = "f", .dtype = DT_FLOAT},
                                         {.alias = "s", .dtype = DT_STRING}};
  const std::string body =
      R"({"a": [null, true, {"b": "\u00e9"}], "instances": [{"f": [1.5, -2e3, NaN], "s": {"b64": )"
      R"("aGVsbG8="}}, {"s": "x\\", "f": [-Infinity, 4, 0.125]}], "signature_name": "s"})";
  ASSERT_TRUE(Read(inputs, body).ok()) << Read(inputs, body).status();
  for (size_t size = 0; size < body.size(); ++size) {
    EXPECT_TRUE(absl::StartsWith(Message(inputs, body.substr(0, size)), "JSON Parse error: "))
        << size;
  }
}

// --- Random bodies.

Tensor RandomTensor(std::mt19937_64& random, DType dtype, const Shape& shape) {
  Tensor tensor = *Tensor::Allocate(dtype, shape);
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (dtype == DT_FLOAT) {
      const auto bits = static_cast<uint32_t>(random());
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      tensor.mutable_raw<float>()[at] = std::isfinite(value) ? value : 0.5f;
    } else if (dtype == DT_INT64) {
      tensor.mutable_raw<int64_t>()[at] = static_cast<int64_t>(random() >> (random() % 64));
    } else if (dtype == DT_UINT8) {
      tensor.mutable_raw<uint8_t>()[at] = static_cast<uint8_t>(random());
    } else if (dtype == DT_BOOL) {
      tensor.mutable_raw<bool>()[at] = random() % 2 == 0;
    } else {
      std::string text(random() % 6, '\0');
      for (char& c : text) c = static_cast<char>(random());
      tensor.mutable_raw<std::string>()[at] = text;
    }
  }
  return tensor;
}

TEST(JsonTensorsTest, WhatIsWrittenIsReadBack) {
  std::mt19937_64 random(42);
  for (int round = 0; round < 300; ++round) {
    std::vector<JsonInput> inputs;
    std::vector<AliasedTensor> tensors;
    const auto rows = static_cast<int64_t>(1 + random() % 5);
    const DType dtypes[] = {DT_FLOAT, DT_INT64, DT_UINT8, DT_BOOL, DT_STRING};
    const size_t count = 1 + random() % 3;
    for (size_t i = 0; i < count; ++i) {
      std::vector<int64_t> dims = {rows};
      for (size_t rank = random() % 4; rank > 0; --rank) {
        dims.push_back(static_cast<int64_t>(1 + random() % 4));
      }
      const DType dtype = dtypes[random() % 5];
      std::string alias = absl::StrCat("t", i, dtype == DT_STRING ? "_bytes" : "");
      tensors.push_back({alias, RandomTensor(random, dtype, *Shape::Make(dims))});
      inputs.push_back({.alias = alias, .dtype = dtype});
    }
    for (const JsonForm form : {JsonForm::kRow, JsonForm::kColumnar}) {
      StatusOr<std::string> body = PredictReply(tensors, form);
      ASSERT_TRUE(body.ok()) << body.status();
      const StatusOr<JsonPredictRequest> request =
          Read(inputs, absl::StrReplaceAll(*body, {{"\"predictions\":", "\"instances\":"},
                                                   {"\"outputs\":", "\"inputs\":"}}));
      ASSERT_TRUE(request.ok()) << request.status() << *body;
      EXPECT_EQ(request->form, form);
      for (size_t i = 0; i < count; ++i) {
        EXPECT_EQ(request->inputs[i].tensor, tensors[i].tensor) << *body;
      }
    }
  }
}

TEST(JsonTensorsTest, MutatedBodiesAreReadOrRefused) {
  const std::vector<std::vector<JsonInput>> signatures = {
      One(DT_FLOAT),  One(DT_INT8),
      One(DT_STRING), One(DT_BOOL),
      One(DT_HALF),   {{.alias = "a", .dtype = DT_DOUBLE}, {.alias = "b64", .dtype = DT_STRING}}};
  const std::string seeds[] = {
      R"({"instances": [[1, 2.5], [3, -4e1]]})",
      R"({"instances": [{"x": [true, false]}, {"x": [1]}], "signature_name": "s"})",
      R"({"inputs": {"a": [[1], [2]], "b64": {"b64": "aGVsbG8="}}, "signature_name": ""})",
      R"({"inputs": {"b64": "aGVsbG8="}, "instances": [{"b64": "x"}, null]})"};
  const char* const pieces[] = {"[",    "]",     "{",        "}",         ",",  ":",
                                "\"",   "\\",    "1",        "-",         ".5", "e-999999999",
                                "NaN",  "1e309", "\"b64\":", "\"x\":",    "[]", "{}",
                                "\xff", "null",  "true",     "[[[[[[[[[", "0",  "\"a\""};
  std::mt19937_64 random(99);
  int read = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string body = seeds[random() % 4];
    for (size_t changes = random() % 5; changes > 0; --changes) {
      const size_t at = random() % (body.size() + 1);
      switch (random() % 4) {
        case 0:
          body.erase(at, random() % 4);
          break;
        case 1:
          body.insert(at, pieces[random() % (sizeof(pieces) / sizeof(pieces[0]))]);
          break;
        case 2:
          body.insert(at, body.substr(random() % (body.size() + 1), random() % 20));
          break;
        default:
          if (at < body.size()) body[at] = static_cast<char>(random());
      }
    }
    const std::vector<JsonInput>& inputs = signatures[random() % signatures.size()];
    const StatusOr<JsonPredictRequest> request = Read(inputs, body);
    if (!request.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(request.status()) ||
                  absl::IsUnimplemented(request.status()))
          << request.status() << body;
      continue;
    }
    ++read;
    ASSERT_EQ(request->inputs.size(), inputs.size());
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_EQ(request->inputs[i].tensor.dtype(), inputs[i].dtype) << body;
    }
  }
  // Some are not changed at all, or only in their blanks.
  EXPECT_GT(read, 0);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "tools/python_literal.h"

#include <cstdint>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

std::string Repr(const std::string& text) {
  const StatusOr<PythonValue> value = ParsePythonLiteral(text);
  return value.ok() ? PythonRepr(*value) : std::string(value.status().message());
}

TEST(PythonLiteralTest, ReprOfALiteralIsPythons) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"None", "None"},
      {" True ", "True"},
      {"False", "False"},
      {"12", "12"},
      {"-0", "0"},
      {"1_000", "1000"},
      {"0x1F", "31"},
      {"0o17", "15"},
      {"0b101", "5"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"--1", "1"},
      {"2.5", "2.5"},
      {"1.", "1.0"},
      {".5", "0.5"},
      {"-1e-5", "-1e-05"},
      {"1E3", "1000.0"},
      {"'a'", "'a'"},
      {"\"it's\"", "\"it's\""},
      {"'a' \"b\"", "'ab'"},
      {"'''a\nb'''", "'a\\nb'"},
      {"'\\n\\x41\\101\\u00e9'", "'\\nAA\xc3\xa9'"},
      {"r'\\n'", "'\\\\n'"},
      {"'\\q'", "'\\\\q'"},
      {"b'\\xff'", "b'\\xff'"},
      {"[]", "[]"},
      {"[1, 'a', None,]", "[1, 'a', None]"},
      {"()", "()"},
      {"(1)", "1"},
      {"(1,)", "(1,)"},
      {"((1, 2), [3])", "((1, 2), [3])"},
      {"{}", "{}"},
      {"{\"x\": [8.0], 'y': [5]}", "{'x': [8.0], 'y': [5]}"},
      {"{'a': 1, 'b': 2, 'a': 3}", "{'a': 3, 'b': 2}"},
  };
  for (const auto& [text, repr] : cases) EXPECT_EQ(Repr(text), repr) << text;
}

TEST(PythonLiteralTest, WhatIsNoLiteralIsRefused) {
  for (const std::string text : {"",
                                 "x",
                                 "np.ones((2, 3))",
                                 "1+2",
                                 "1 2",
                                 "[1 2]",
                                 "[1,,2]",
                                 "[,]",
                                 "(",
                                 "[1",
                                 "{1}",
                                 "{[1]: 2}",
                                 "'a",
                                 "'a\nb'",
                                 "b'\xc3\xa9'",
                                 "'a' b'c'",
                                 "'\\x4'",
                                 "'\\ud800'",
                                 "True1",
                                 "012",
                                 "1__0",
                                 "1_",
                                 "0x",
                                 "0xg",
                                 "0b2",
                                 "1e",
                                 "1.5.2",
                                 "9223372036854775808",
                                 "99999999999999999999999",
                                 "nan",
                                 "inf",
                                 "1j",
                                 "__import__('os')",
                                 "[x for x in [1]]",
                                 "lambda: 1"}) {
    EXPECT_STATUS(ParsePythonLiteral(text), absl::StatusCode::kInvalidArgument, "literal: ")
        << text;
  }
}

TEST(PythonLiteralTest, NestingIsBounded) {
  const auto nested = [](int depth) {
    return std::string(static_cast<size_t>(depth), '[') +
           std::string(static_cast<size_t>(depth), ']');
  };
  EXPECT_OK(ParsePythonLiteral(nested(kMaxPythonDepth)));
  EXPECT_STATUS(ParsePythonLiteral(nested(kMaxPythonDepth + 2)), absl::StatusCode::kInvalidArgument,
                "nesting must be at most 64");
  EXPECT_FALSE(ParsePythonLiteral(std::string(1000000, '(')).ok());
}

TEST(PythonLiteralTest, TypesAreNamedAsPythonDoes) {
  EXPECT_EQ(PythonTypeText(ParsePythonLiteral("{}").value()), "<class 'dict'>");
  EXPECT_EQ(PythonTypeText(ParsePythonLiteral("None").value()), "<class 'NoneType'>");
  EXPECT_EQ(PythonStr(ParsePythonLiteral("'a'").value()), "a");
  EXPECT_EQ(PythonStr(ParsePythonLiteral("['a']").value()), "['a']");
}

Tensor FromText(const std::string& text, DType dtype) {
  StatusOr<Tensor> tensor = TensorFromPython(ParsePythonLiteral(text).value(), dtype);
  if (!tensor.ok()) {
    ADD_FAILURE() << text << ": " << tensor.status();
    return Tensor();
  }
  return *std::move(tensor);
}

TEST(PythonLiteralTest, ListsBecomeTensorsOfTheWantedType) {
  ExpectTensorEqual(FromText("[[1], [2.5]]", DT_FLOAT), TensorOf<float>({2, 1}, {1, 2.5f}));
  ExpectTensorEqual(FromText("(1, True)", DT_INT32), TensorOf<int32_t>({2}, {1, 1}));
  ExpectTensorEqual(FromText("[1.9, -1.9]", DT_INT8), TensorOf<int8_t>({2}, {1, -1}));
  ExpectTensorEqual(FromText("3", DT_INT64), TensorOf<int64_t>({}, {3}));
  ExpectTensorEqual(FromText("[0, 2]", DT_BOOL), TensorOf<bool>({2}, {false, true}));
  ExpectTensorEqual(FromText("['a', b'\\xff']", DT_STRING),
                    TensorOf<std::string>({2}, {"a", "\xff"}));
  ExpectTensorEqual(FromText("[[], []]", DT_FLOAT), TensorOf<float>({2, 0}, {}));
  ExpectTensorEqual(FromText("[0.5]", DT_HALF), TensorOf<Half>({1}, {ToHalf(0.5f)}));
  // The natural types.
  ExpectTensorEqual(FromText("[1, 2]", DT_INVALID), TensorOf<int64_t>({2}, {1, 2}));
  ExpectTensorEqual(FromText("[1, 2.0]", DT_INVALID), TensorOf<double>({2}, {1, 2}));
  ExpectTensorEqual(FromText("[True]", DT_INVALID), TensorOf<bool>({1}, {true}));
  ExpectTensorEqual(FromText("'a'", DT_INVALID), TensorOf<std::string>({}, {"a"}));
}

TEST(PythonLiteralTest, ListsThatAreNoArrayAreRefused) {
  struct Case {
    std::string text;
    DType dtype;
    std::string message;
  };
  const std::vector<Case> cases = {
      {"[[1], [2, 3]]", DT_FLOAT, "setting an array element with a sequence"},
      {"[1, [2]]", DT_FLOAT, "setting an array element with a sequence"},
      {"['a']", DT_FLOAT, "must be a number for float, got 'a'"},
      {"[None]", DT_FLOAT, "got None"},
      {"[1]", DT_STRING, "must be a string, got 1"},
      {"[300]", DT_UINT8, "number must fit uint8, got 300"},
      {"[-1]", DT_UINT8, "number must fit uint8, got -1"},
      {"[1e20]", DT_INT64, "number must fit int64, got 1e+20"},
      {"[1]", DT_RESOURCE, "got resource"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(TensorFromPython(ParsePythonLiteral(c.text).value(), c.dtype),
                  absl::StatusCode::kInvalidArgument, c.message);
  }
}

TEST(ConvertForFeedTest, NumbersAreConverted) {
  ASSERT_OK_AND_ASSIGN(Tensor got, ConvertForFeed(TensorOf<double>({2}, {0.1, 2}), DT_FLOAT));
  ExpectTensorEqual(got, TensorOf<float>({2}, {0.1f, 2}));
  ASSERT_OK_AND_ASSIGN(got, ConvertForFeed(TensorOf<int64_t>({1}, {7}), DT_FLOAT));
  ExpectTensorEqual(got, TensorOf<float>({1}, {7}));
  ASSERT_OK_AND_ASSIGN(got, ConvertForFeed(TensorOf<bool>({1}, {true}), DT_INT32));
  ExpectTensorEqual(got, TensorOf<int32_t>({1}, {1}));
  ASSERT_OK_AND_ASSIGN(got, ConvertForFeed(TensorOf<float>({1}, {-2.7f}), DT_INT32));
  ExpectTensorEqual(got, TensorOf<int32_t>({1}, {-2}));
  const Tensor same = TensorOf<float>({1}, {1});
  ASSERT_OK_AND_ASSIGN(got, ConvertForFeed(same, DT_FLOAT));
  EXPECT_TRUE(got.SharesBufferWith(same));
  EXPECT_STATUS(ConvertForFeed(same, DT_STRING), absl::StatusCode::kInvalidArgument,
                "array must be of string, got float");
  EXPECT_STATUS(ConvertForFeed(TensorOf<float>({1}, {1e20f}), DT_INT32),
                absl::StatusCode::kInvalidArgument, "number must fit int32");
}

}  // namespace
}  // namespace millrace

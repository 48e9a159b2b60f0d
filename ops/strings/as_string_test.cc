// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/as_string.h"

#include <cmath>
#include <complex>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: numbers print as TensorFlow's printf does

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Text(const Tensor& numbers, const AsStringAttrs& a = {}) {
  return OpCall("AsString")
      .Input(numbers)
      .Attr("precision", a.precision)
      .Attr("scientific", a.scientific)
      .Attr("shortest", a.shortest)
      .Attr("width", a.width)
      .Attr("fill", a.fill);
}

TEST(AsString, WritesIntegersAndBools) {
  ExpectTensorEqual(RunOp1(Text(TensorOf<int64_t>({2, 2}, {0, -1, INT64_MIN, INT64_MAX}))),
                    Tensor::Of({{"0", "-1"}, {"-9223372036854775808", "9223372036854775807"}}));
  ExpectTensorEqual(RunOp1(Text(Tensor::Of<int8_t>({-128, 127}))), Tensor::Of({"-128", "127"}));
  ExpectTensorEqual(RunOp1(Text(Tensor::Of<int16_t>({-101, 5}), {.width = 3})),
                    Tensor::Of({"-101", "  5"}));
  ExpectTensorEqual(RunOp1(Text(Tensor::Of<int32_t>({-1, 5}), {.width = 3, .fill = "0"})),
                    Tensor::Of({"-01", "005"}));
  ExpectTensorEqual(RunOp1(Text(Tensor::Of<int32_t>({-1, 5}), {.width = 3, .fill = "-"})),
                    Tensor::Of({"-1 ", "5  "}));
  ExpectTensorEqual(RunOp1(Text(Tensor::Of<int32_t>({-1, 5}), {.width = 0, .fill = "+"})),
                    Tensor::Of({"-1", "+5"}));
  ExpectTensorEqual(RunOp1(Text(Tensor::Of<bool>({false, true}))), Tensor::Of({"false", "true"}));
  ExpectTensorEqual(RunOp1(Text(TensorOf<int32_t>({0, 2}, {}))), TensorOf<std::string>({0, 2}, {}));
}

// What the C library makes of them is what TensorFlow made.
TEST(AsString, WritesFloatsAsPrintfDoes) {
  const std::vector<double> values = {0,     1,        -1,       0.5,       0.125,    -0.0,
                                      1e100, 1.5e-300, INFINITY, -INFINITY, 12345678, 2.0 / 3};
  const struct {
    AsStringAttrs attrs;
    const char* format;
  } cases[] = {
      {{}, "%f"},
      {{.shortest = true}, "%g"},
      {{.scientific = true}, "%e"},
      {{.width = 3}, "%3f"},
      {{.width = 3, .fill = "0"}, "%03f"},
      {{.shortest = true, .width = 12, .fill = "0"}, "%012g"},
      {{.shortest = true, .width = 12, .fill = " "}, "% 12g"},
      {{.shortest = true, .width = 12, .fill = "-"}, "%-12g"},
      {{.shortest = true, .width = 12, .fill = "+"}, "%+12g"},
      {{.shortest = true, .width = 12, .fill = "#"}, "%#12g"},
      {{.precision = 10, .width = 3}, "%3.10f"},
      {{.precision = 0}, "%.0f"},
      {{.precision = 10, .shortest = true, .width = 3, .fill = "0"}, "%03.10g"},
      {{.precision = 2, .scientific = true}, "%.2e"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.format);
    std::vector<std::string> texts, float_texts;
    std::vector<float> floats;
    for (const double x : values) {
      char text[400];
      std::snprintf(text, sizeof(text), c.format, x);
      texts.emplace_back(text);
      floats.push_back(static_cast<float>(x));
      std::snprintf(text, sizeof(text), c.format, static_cast<double>(floats.back()));
      float_texts.emplace_back(text);
    }
    ExpectTensorEqual(RunOp1(Text(Tensor::Vector<double>(values), c.attrs)),
                      Tensor::Vector<std::string>(texts));
    ExpectTensorEqual(RunOp1(Text(Tensor::Vector<float>(floats), c.attrs)),
                      Tensor::Vector<std::string>(float_texts));
  }
  ExpectTensorEqual(RunOp1(Text(Tensor::Scalar(std::numeric_limits<float>::quiet_NaN()))),
                    Tensor::Scalar("nan"));
}

TEST(AsString, WritesComplexNumbersAsPairs) {
  ExpectTensorEqual(RunOp1(Text(Tensor::Scalar(std::complex<float>(1, -2.5f)))),
                    Tensor::Scalar("(1.000000,-2.500000)"));
  ExpectTensorEqual(RunOp1(Text(Tensor::Scalar(std::complex<double>(1, -2.5)), {.shortest = true})),
                    Tensor::Scalar("(1,-2.5)"));
}

TEST(AsString, RefusesWhatIsNoFormat) {
  const Tensor one = Tensor::Scalar(1.0f), number = Tensor::Scalar(1);
  ExpectOpError(Text(number, {.scientific = true}), kInvalid,
                "scientific and shortest format not supported for datatype int32");
  ExpectOpError(Text(Tensor::Scalar(true), {.shortest = true}), kInvalid,
                "scientific and shortest format not supported for datatype bool");
  ExpectOpError(Text(number, {.precision = 0}), kInvalid,
                "precision not supported for datatype int32");
  ExpectOpError(Text(one, {.scientific = true, .shortest = true}), kInvalid,
                "Cannot select both scientific and shortest notation");
  ExpectOpError(Text(one, {.width = 3, .fill = "ab"}), kInvalid,
                "Fill string must be one or fewer characters");
  ExpectOpError(Text(one, {.width = 3, .fill = "%"}), kInvalid, "fill must be one of");
  ExpectOpError(Text(one, {.width = 2000000000}), kInvalid,
                "width and precision must be <= 1024, got 2000000000 and -1");
  ExpectOpError(Text(one, {.precision = 1025}), kInvalid, "width and precision must be <= 1024");
  EXPECT_SHAPE("AsString", {}, {"[2,?]"}, "[2,?]");
}

// --- StringToNumber

OpCall Numbers(const Tensor& texts, DType dtype) {
  return OpCall("StringToNumber").Input(texts).Attr("out_type", dtype);
}

TEST(StringToNumber, ReadsEachType) {
  const Tensor texts = Tensor::Of({"0", "3", "-1", "1.12", "0xF", "   -10.5", "3.40282e+38",
                                   "3.40283e+38", "-3.40283e+38", "INF"});
  ExpectTensorEqual(RunOp1(Numbers(texts, DT_FLOAT)),
                    TensorOf<float>({10}, {0, 3, -1, 1.12f, 15, -10.5f, 3.40282e+38f, INFINITY,
                                           -INFINITY, INFINITY}));
  EXPECT_TRUE(std::isnan(RunOp1(Numbers(Tensor::Scalar("NAN"), DT_DOUBLE)).scalar<double>()));
  ExpectTensorEqual(RunOp1(Numbers(Tensor::Of({"1.12", "1e-300"}), DT_DOUBLE)),
                    Tensor::Of<double>({1.12, 1e-300}));
  ExpectTensorEqual(RunOp1(Numbers(Tensor::Of({"-2147483648", "   2147483647 "}), DT_INT32)),
                    Tensor::Of<int32_t>({INT32_MIN, INT32_MAX}));
  ExpectTensorEqual(RunOp1(Numbers(Tensor::Of({"-9223372036854775808"}), DT_INT64)),
                    Tensor::Of<int64_t>({INT64_MIN}));
  ExpectTensorEqual(RunOp1(Numbers(TensorOf<std::string>({0, 1}, {}), DT_FLOAT)),
                    TensorOf<float>({0, 1}, {}));
}

TEST(StringToNumber, NamesTheFirstTextThatIsNoNumber) {
  const struct {
    const char* text;
    DType dtype;
  } cases[] = {{"10foobar", DT_FLOAT},   {"", DT_FLOAT},
               {"10foobar", DT_DOUBLE},  {"3.14", DT_INT32},
               {"2147483648", DT_INT32}, {"-2147483649", DT_INT32},
               {"10foobar", DT_INT64},   {"9223372036854775808", DT_INT64}};
  for (const auto& c : cases) {
    ExpectOpError(Numbers(Tensor::Of({"1", c.text, "worse"}), c.dtype), kInvalid,
                  std::string("StringToNumberOp could not correctly convert string: ") + c.text);
  }
  std::vector<std::string> many(20000, "1");
  many[7000] = "first";
  many[7001] = many[19999] = "later";
  ExpectOpError(Numbers(Tensor::Vector<std::string>(many), DT_FLOAT), kInvalid,
                "could not correctly convert string: first");
  EXPECT_SHAPE("StringToNumber", {}, {"[2,?]"}, "[2,?]");
}

}  // namespace
}  // namespace millrace

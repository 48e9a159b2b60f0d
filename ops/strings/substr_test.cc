// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/substr.h"

#include <limits>
#include <string>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Part(const Tensor& texts, const Tensor& pos, const Tensor& len,
            const std::string& unit = "BYTE") {
  return OpCall("Substr").Input(texts).Input(pos).Input(len).Attr("unit", unit);
}
template <typename T>
OpCall Part(const char* text, T pos, T len, const std::string& unit = "BYTE") {
  return Part(Tensor::Scalar(text), Tensor::Scalar(pos), Tensor::Scalar(len), unit);
}

TEST(Substr, CutsBytes) {
  ExpectTensorEqual(RunOp1(Part("Hello", 1, 3)), Tensor::Scalar("ell"));
  ExpectTensorEqual(RunOp1(Part<int64_t>("Hello", -4, 3)), Tensor::Scalar("ell"));
  ExpectTensorEqual(RunOp1(Part("Hello", 1, 30)), Tensor::Scalar("ello"));
  ExpectTensorEqual(RunOp1(Part("Hello", 5, 1)), Tensor::Scalar(""));
  ExpectTensorEqual(RunOp1(Part("Hello", 2, -1)), Tensor::Scalar("llo"));
  ExpectTensorEqual(RunOp1(Part("", 0, 3)), Tensor::Scalar(""));
  ExpectTensorEqual(RunOp1(Part<int64_t>("Hello", 1, INT64_MAX)), Tensor::Scalar("ello"));
}

TEST(Substr, CutsCharacters) {
  const char* const text = "H\u00c3ll\u00d3\U0001f604";
  const std::string unit = "UTF8_CHAR";
  ExpectTensorEqual(RunOp1(Part(text, 1, 3, unit)), Tensor::Scalar("\u00c3ll"));
  ExpectTensorEqual(RunOp1(Part(text, -5, 3, unit)), Tensor::Scalar("\u00c3ll"));
  ExpectTensorEqual(RunOp1(Part(text, 4, 9, unit)), Tensor::Scalar("\u00d3\U0001f604"));
  ExpectTensorEqual(RunOp1(Part(text, -1, 9, unit)), Tensor::Scalar("\U0001f604"));
  ExpectTensorEqual(RunOp1(Part(text, 6, 1, unit)), Tensor::Scalar(""));
  ExpectTensorEqual(RunOp1(Part<int64_t>(text, 3, INT64_MAX, unit)),
                    Tensor::Scalar("l\u00d3\U0001f604"));
  ExpectOpError(Part(text, 7, 1, unit), kInvalid, "pos 7 out of range for string at index 0");
  ExpectOpError(Part(text, -7, 1, unit), kInvalid, "pos -7 out of range for string at index 0");
  ExpectOpError(Part<int64_t>(text, INT64_MIN, INT64_MIN, unit), kInvalid,
                "pos -9223372036854775808 out of range");
}

TEST(Substr, PlacesAreByElementOrBroadcast) {
  const Tensor texts = Tensor::Of({{"ten", "eleven"}, {"twelve", "thirteen"}});
  ExpectTensorEqual(RunOp1(Part(texts, Tensor::Of({{0, 1}, {2, 3}}), Tensor::Of({{1, 2}, {3, 4}}))),
                    Tensor::Of({{"t", "le"}, {"elv", "rtee"}}));
  ExpectTensorEqual(RunOp1(Part(texts, Tensor::Of({1, 2}), Tensor::Of({2, 1}))),
                    Tensor::Of({{"en", "e"}, {"we", "i"}}));
  ExpectTensorEqual(
      RunOp1(Part(Tensor::Of({"abc", "def"}), Tensor::Of({{0}, {1}}), Tensor::Of({{1}, {2}}))),
      Tensor::Of({{"a", "d"}, {"bc", "ef"}}));
  ExpectTensorEqual(RunOp1(Part(Tensor::Scalar("thirteen"), Tensor::Of<int64_t>({0, 4}),
                                Tensor::Of<int64_t>({4, 4}))),
                    Tensor::Of({"thir", "teen"}));
  ExpectTensorEqual(
      RunOp1(Part(TensorOf<std::string>({0, 2}, {}), Tensor::Scalar(1), Tensor::Scalar(1))),
      TensorOf<std::string>({0, 2}, {}));
}

TEST(Substr, RefusesWhatIsNotThere) {
  ExpectOpError(Part("Hello", 7, 3), kInvalid, "pos 7 out of range for string b'Hello' at index 0");
  ExpectOpError(Part("Hello", -6, 3), kInvalid, "pos -6 out of range for string b'Hello'");
  ExpectOpError(Part(Tensor::Of({"good", "bad"}), Tensor::Scalar(4), Tensor::Scalar(1)), kInvalid,
                "pos 4 out of range for string b'bad' at index 1");
  ExpectOpError(Part(Tensor::Of({"a", "b"}), Tensor::Of({0, 0}), Tensor::Of({1, 1, 1})), kInvalid,
                "pos and len should have the same shape, got: [2] vs. [3]");
  ExpectOpError(Part(Tensor::Of({"a", "b"}), Tensor::Of({0, 0, 0}), Tensor::Of({1, 1, 1})),
                kInvalid, "[2]");
  EXPECT_SHAPE("Substr", {}, {"[2,?]", "[]", "[]"}, "[2,?]");
  EXPECT_SHAPE("Substr", {}, {"[2,1]", "[3]", "[?]"}, "[2,3]");
  EXPECT_SHAPE("Substr", {}, {"<unknown>", "[]", "[]"}, "<unknown>");
  EXPECT_SHAPE_ERROR("Substr", {}, {"[2]", "[2]", "[3]"}, "pos and len should have the same shape");
}

TEST(StringLength, CountsBytesOrCharacters) {
  const Tensor texts = Tensor::Of({{"abc", ""}, {"\u00c3\u65e5", "\U0001f604"}});
  const auto length = [&](const std::string& unit) {
    return RunOp1(OpCall("StringLength").Input(texts).Attr("unit", unit));
  };
  ExpectTensorEqual(length("BYTE"), Tensor::Of({{3, 0}, {5, 4}}));
  ExpectTensorEqual(length("UTF8_CHAR"), Tensor::Of({{3, 0}, {2, 1}}));
  ExpectTensorEqual(RunOp1(OpCall("StringLength").Input(TensorOf<std::string>({0}, {}))),
                    TensorOf<int32_t>({0}, {}));
  EXPECT_SHAPE("StringLength", {}, {"[2,?]"}, "[2,?]");
  ExpectOpError(OpCall("StringLength").Input(texts).Attr("unit", std::string("WORD")), kInvalid,
                "unit");
}

}  // namespace
}  // namespace millrace

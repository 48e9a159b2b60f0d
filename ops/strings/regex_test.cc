// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/regex.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: regexes match and replace as TensorFlow's

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The same by both ops.
OpCall Replace(const Tensor& texts, const std::string& pattern, const std::string& rewrite,
               bool all = true) {
  return OpCall("RegexReplace")
      .Input(texts)
      .Input(Tensor::Scalar(pattern))
      .Input(Tensor::Scalar(rewrite))
      .Attr("replace_global", all);
}
OpCall StaticReplace(const Tensor& texts, const std::string& pattern, const std::string& rewrite,
                     bool all = true) {
  return OpCall("StaticRegexReplace")
      .Input(texts)
      .Attr("pattern", pattern)
      .Attr("rewrite", rewrite)
      .Attr("replace_global", all);
}
void ExpectReplaced(const Tensor& texts, const std::string& pattern, const std::string& rewrite,
                    bool all, const Tensor& want) {
  ExpectTensorEqual(RunOp1(Replace(texts, pattern, rewrite, all)), want);
  ExpectTensorEqual(RunOp1(StaticReplace(texts, pattern, rewrite, all)), want);
}

OpCall Match(const Tensor& texts, const std::string& pattern) {
  return OpCall("RegexFullMatch").Input(texts).Input(Tensor::Scalar(pattern));
}
OpCall StaticMatch(const Tensor& texts, const std::string& pattern) {
  return OpCall("StaticRegexFullMatch").Input(texts).Attr("pattern", pattern);
}

TEST(RegexReplace, ReplacesAllMatchesOrTheFirst) {
  const Tensor texts = Tensor::Of({"abababab", "abcabcabc", ""});
  ExpectReplaced(texts, "ab", "abc", true, Tensor::Of({"abcabcabcabc", "abccabccabcc", ""}));
  ExpectReplaced(texts, "ab", "abc", false, Tensor::Of({"abcababab", "abccabcabc", ""}));
  ExpectReplaced(Tensor::Of({{"a:foo"}, {"b:bar"}}), "^(a:|b:)", "", true,
                 Tensor::Of({{"foo"}, {"bar"}}));
  ExpectReplaced(Tensor::Scalar("\u00e4x"), ".", "<\\0>", true, Tensor::Scalar("<\u00e4><x>"));
  ExpectReplaced(Tensor::Scalar("key=value"), "(\\w+)=(\\w+)", "\\2=\\1", true,
                 Tensor::Scalar("value=key"));
  ExpectReplaced(TensorOf<std::string>({0, 3}, {}), "a", "b", true,
                 TensorOf<std::string>({0, 3}, {}));
}

TEST(RegexFullMatch, WantsTheWholeString) {
  const Tensor texts = Tensor::Of({{"abaaba", "abcdabcde"}, {"acdcba", "ebcda"}});
  const Tensor want = Tensor::Of<bool>({{true, false}, {true, false}});
  ExpectTensorEqual(RunOp1(Match(texts, "a.*a")), want);
  ExpectTensorEqual(RunOp1(StaticMatch(texts, "a.*a")), want);
  ExpectTensorEqual(RunOp1(Match(Tensor::Of({"", "a"}), "")), Tensor::Of<bool>({true, false}));
  ExpectTensorEqual(RunOp1(StaticMatch(TensorOf<std::string>({0}, {}), "a")),
                    TensorOf<bool>({0}, {}));
}

TEST(Regex, WhatIsNoPatternIsNamed) {
  const Tensor text = Tensor::Scalar("a");
  const char* const kText = "Invalid pattern: A[, error: missing ]";
  ExpectOpError(Replace(text, "A[", ""), kInvalid, kText);
  ExpectOpError(StaticReplace(text, "A[", ""), kInvalid, kText);
  ExpectOpError(Match(text, "A["), kInvalid, kText);
  ExpectOpError(StaticMatch(text, "A["), kInvalid, kText);
  ExpectOpError(Match(text, "(a{1000}){1000}{1000}"), kInvalid, "Invalid pattern");
}

TEST(Regex, ARewriteOfAGroupThatIsNotThereIsRefused) {
  const Tensor text = Tensor::Scalar("a");
  ExpectOpError(Replace(text, "(a)", "\\2"), kInvalid, "Invalid rewrite: \\2, error: ");
  ExpectOpError(StaticReplace(text, "(a)", "\\2"), kInvalid, "Invalid rewrite: \\2, error: ");
  ExpectOpError(StaticReplace(text, "(a)", "a\\"), kInvalid, "Invalid rewrite: a\\");
}

// A backtracking matcher would take 2^30 steps.
TEST(Regex, TimeIsLinearInTheText) {
  const Tensor text = Tensor::Scalar(std::string(30, 'a') + "!");
  ExpectTensorEqual(RunOp1(Match(text, "(a+)+")), Tensor::Scalar(false));
}

TEST(Regex, ShapesAreKept) {
  EXPECT_SHAPE("RegexReplace", {}, {"[2,?]", "[]", "[]"}, "[2,?]");
  EXPECT_SHAPE("RegexFullMatch", {}, {"<unknown>", "[]"}, "<unknown>");
  EXPECT_SHAPE("StaticRegexFullMatch", {{"pattern", std::string("a")}}, {"[3]"}, "[3]");
  EXPECT_SHAPE_ERROR("RegexReplace", {}, {"[2]", "[1]", "[]"}, "pattern must have rank 0");
  EXPECT_SHAPE_ERROR("RegexReplace", {}, {"[2]", "[]", "[1]"}, "rewrite must have rank 0");
  EXPECT_SHAPE_ERROR("RegexFullMatch", {}, {"[2]", "[1]"}, "pattern must have rank 0");
}

}  // namespace
}  // namespace millrace

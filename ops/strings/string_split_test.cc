// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_split.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: strings split as TensorFlow splits them

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(StringSplit, MakesASparseMatrixOfWords) {
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out,
                       RunOp(OpCall("StringSplit")
                                 .Input(Strings({"hello  world", "", "a,b"}))
                                 .Input(Tensor::Scalar(" ,"))));
  ExpectTensorEqual(out[0], TensorOf<int64_t>({4, 2}, {0, 0, 0, 1, 2, 0, 2, 1}));
  ExpectTensorEqual(out[1], Strings({"hello", "world", "a", "b"}));
  ExpectTensorEqual(out[2], TensorOf<int64_t>({2}, {3, 2}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("StringSplit")
                                      .Input(Strings({",a,,b"}))
                                      .Input(Tensor::Scalar(","))
                                      .Attr("skip_empty", false)));
  ExpectTensorEqual(out[1], Strings({"", "a", "", "b"}));
  ASSERT_OK_AND_ASSIGN(
      out, RunOp(OpCall("StringSplit").Input(Strings({"abc"})).Input(Tensor::Scalar(""))));
  ExpectTensorEqual(out[1], Strings({"a", "b", "c"}));
  ASSERT_OK_AND_ASSIGN(out,
                       RunOp(OpCall("StringSplit").Input(Strings({})).Input(Tensor::Scalar(" "))));
  ExpectTensorEqual(out[0], TensorOf<int64_t>({0, 2}, {}));
  ExpectTensorEqual(out[2], TensorOf<int64_t>({2}, {0, 0}));
  ExpectOpError(OpCall("StringSplit").Input(Tensor::Scalar("a")).Input(Tensor::Scalar(" ")),
                kInvalid, "input must be a vector, got shape []");
  ExpectOpError(OpCall("StringSplit").Input(Strings({"a"})).Input(Strings({" "})), kInvalid,
                "delimiter must be a scalar, got shape [1]");
  EXPECT_SHAPE("StringSplit", {}, {"[3]", "[]"}, "[?,2];[?];[2]");
}

// The words of Python's str.split, but for one: where a split at blanks was the last allowed one,
// TensorFlow has a word also of nothing.
TEST(StringSplitV2, SplitsAsPythonDoes) {
  const struct {
    const char* text;
    const char* sep;
    int64_t maxsplit;
    std::vector<std::string> words;
  } cases[] = {
      {"pigs on the wing", "", -1, {"pigs", "on", "the", "wing"}},
      {"  pigs \t on\n the wing ", "", -1, {"pigs", "on", "the", "wing"}},
      {"", "", -1, {}},
      {"   ", "", -1, {}},
      {" a  b c", "", 1, {"a", "b c"}},
      {" a  b ", "", 2, {"a", "b", ""}},
      {" a  b ", "", 0, {" a  b "}},
      {"1<>2<>3", "<>", -1, {"1", "2", "3"}},
      {"<><>4<>5<><>6<>", "<>", -1, {"", "", "4", "5", "", "6", ""}},
      {"1<>2<>3", "<>", 1, {"1", "2<>3"}},
      {"1<>2", "<>", 5, {"1", "2"}},
      {"", ",", -1, {""}},
      {"1,2", ",", 0, {"1,2"}},
      {"aaa", "aa", -1, {"", "a"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(OpCall("StringSplitV2")
                                                                  .Input(Strings({c.text}))
                                                                  .Input(Tensor::Scalar(c.sep))
                                                                  .Attr("maxsplit", c.maxsplit)));
    ExpectTensorEqual(out[1], Tensor::Vector<std::string>(c.words));
    ExpectTensorEqual(out[2], Tensor::Vector<int64_t>({1, static_cast<int64_t>(c.words.size())}));
  }
}

TEST(StringSplitV2, MakesASparseMatrixOfWords) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> out,
      RunOp(OpCall("StringSplitV2").Input(Strings({"a b", "", "c"})).Input(Tensor::Scalar(""))));
  ExpectTensorEqual(out[0], TensorOf<int64_t>({3, 2}, {0, 0, 0, 1, 2, 0}));
  ExpectTensorEqual(out[1], Strings({"a", "b", "c"}));
  ExpectTensorEqual(out[2], TensorOf<int64_t>({2}, {3, 2}));
  ExpectOpError(OpCall("StringSplitV2").Input(Tensor::Scalar("a")).Input(Tensor::Scalar(" ")),
                kInvalid, "input must be a vector, got shape []");
  ExpectOpError(OpCall("StringSplitV2").Input(Strings({"a"})).Input(Strings({" "})), kInvalid,
                "sep must be a scalar, got shape [1]");
  EXPECT_SHAPE("StringSplitV2", {}, {"[?]", "[]"}, "[?,2];[?];[2]");
}

TEST(ReduceJoin, JoinsAlongDimensionsInTheirOrder) {
  const Tensor a = TensorOf<std::string>({2, 2}, {"a", "b", "c", "d"});
  const auto call = [&](Tensor dims) {
    return OpCall("ReduceJoin").Input(a).Input(std::move(dims));
  };
  ExpectTensorEqual(RunOp1(call(Tensor::Scalar<int32_t>(0))), Strings({"ac", "bd"}));
  ExpectTensorEqual(RunOp1(call(Ints({-1}))), Strings({"ab", "cd"}));
  ExpectTensorEqual(RunOp1(call(Ints({0, 1}))), Tensor::Scalar("acbd"));
  ExpectTensorEqual(RunOp1(call(Ints({1, 0}))), Tensor::Scalar("abcd"));
  ExpectTensorEqual(RunOp1(call(Ints({}))), a);
  const Tensor cube = TensorOf<std::string>(
      {2, 2, 3}, {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"});
  ExpectTensorEqual(RunOp1(OpCall("ReduceJoin").Input(cube).Input(Ints({2, 0}))),
                    Strings({"abcghi", "defjkl"}));
  ExpectTensorEqual(RunOp1(call(Ints({0})).Attr("keep_dims", true)),
                    TensorOf<std::string>({1, 2}, {"ac", "bd"}));
  ExpectTensorEqual(RunOp1(call(Ints({0})).Attr("separator", std::string("."))),
                    Strings({"a.c", "b.d"}));
  ExpectTensorEqual(
      RunOp1(OpCall("ReduceJoin").Input(TensorOf<std::string>({2, 0}, {})).Input(Ints({1}))),
      Strings({"", ""}));
  ExpectOpError(call(Ints({2})), kInvalid, "reduction_indices[0] must be in [-2, 2), got 2");
  ExpectOpError(call(Ints({1, -1})), kInvalid, "reduction_indices must name a dimension once");
  EXPECT_SHAPE("ReduceJoin", {}, {"[2,?,3]", Ints({0})}, "[?,3]");
  EXPECT_SHAPE("ReduceJoin", {{"keep_dims", true}}, {"[2,?,3]", "[1]"}, "[?,?,?]");
}

}  // namespace
}  // namespace millrace

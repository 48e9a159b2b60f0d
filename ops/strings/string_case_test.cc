// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_case.h"

#include <string>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

OpCall Call(const char* op, const Tensor& texts) { return OpCall(op).Input(texts); }

TEST(StringCase, ChangesAsciiLettersAlone) {
  const Tensor texts = Tensor::Of({{"Pigs on The Wing", "aNIMALS"}, {" \u00d3\u00dc 1", ""}});
  ExpectTensorEqual(RunOp1(Call("StringLower", texts)),
                    Tensor::Of({{"pigs on the wing", "animals"}, {" \u00d3\u00dc 1", ""}}));
  ExpectTensorEqual(RunOp1(Call("StringUpper", texts)),
                    Tensor::Of({{"PIGS ON THE WING", "ANIMALS"}, {" \u00d3\u00dc 1", ""}}));
}

TEST(StringCase, ChangesAllLettersOfUtf8) {
  const Tensor texts = Tensor::Of({"\u00d3\u00f3S\u00df", "a"});
  const std::string utf8 = "utf-8";
  ExpectTensorEqual(RunOp1(Call("StringLower", texts).Attr("encoding", utf8)),
                    Tensor::Of({"\u00f3\u00f3s\u00df", "a"}));
  ExpectTensorEqual(RunOp1(Call("StringUpper", texts).Attr("encoding", utf8)),
                    Tensor::Of({"\u00d3\u00d3SSS", "A"}));
}

TEST(StringStrip, TakesBlanksFromBothEnds) {
  ExpectTensorEqual(
      RunOp1(Call("StringStrip", Tensor::Of({"  hello ", "\t a b\r\n", " \n", "", "x"}))),
      Tensor::Of({"hello", "a b", "", "", "x"}));
}

TEST(StringCase, KeepsShapesAndRefusesOtherEncodings) {
  for (const char* op : {"StringLower", "StringUpper", "StringStrip"}) {
    EXPECT_SHAPE(op, {}, {"[2,?]"}, "[2,?]");
    EXPECT_SHAPE(op, {}, {"<unknown>"}, "<unknown>");
    ExpectTensorEqual(RunOp1(Call(op, TensorOf<std::string>({2, 0}, {}))),
                      TensorOf<std::string>({2, 0}, {}));
    ExpectTensorEqual(RunOp1(Call(op, Tensor::Scalar("1"))), Tensor::Scalar("1"));
  }
  for (const char* op : {"StringLower", "StringUpper"}) {
    ExpectOpError(Call(op, Tensor::Scalar("a")).Attr("encoding", std::string("latin-1")),
                  absl::StatusCode::kInvalidArgument,
                  "only utf-8 or '' (no encoding) is supported, received latin-1");
  }
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/base64.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: base64 is TensorFlow's; wrong input is named

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Encode(const Tensor& bytes, bool pad) {
  return OpCall("EncodeBase64").Input(bytes).Attr("pad", pad);
}
OpCall Decode(const Tensor& texts) { return OpCall("DecodeBase64").Input(texts); }

// RFC 4648, section 10, and bytes whose text tells the URL-safe alphabet.
const Tensor kBytes = Tensor::Of({"", "f", "fo", "foo", "foob", "fooba", "foobar", "\xfb\xff\xfe"});
const Tensor kPadded =
    Tensor::Of({"", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy", "-__-"});
const Tensor kBare = Tensor::Of({"", "Zg", "Zm8", "Zm9v", "Zm9vYg", "Zm9vYmE", "Zm9vYmFy", "-__-"});

TEST(Base64, IsThatOfTheStandard) {
  ExpectTensorEqual(RunOp1(Encode(kBytes, true)), kPadded);
  ExpectTensorEqual(RunOp1(Encode(kBytes, false)), kBare);
  ExpectTensorEqual(RunOp1(Decode(kPadded)), kBytes);
  ExpectTensorEqual(RunOp1(Decode(kBare)), kBytes);
}

TEST(Base64, EveryByteComesBack) {
  std::vector<std::string> all;
  for (size_t size = 0; size < 300; ++size) {
    std::string bytes;
    for (size_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(i * 7 + size));
    all.push_back(bytes);
  }
  const Tensor bytes = Tensor::Vector<std::string>(all);
  for (const bool pad : {false, true}) {
    ExpectTensorEqual(RunOp1(Decode(RunOp1(Encode(bytes, pad)))), bytes);
  }
}

TEST(Base64, OtherTextsAreRefused) {
  for (const char* text : {"a", "abcde", "Zm9vY", "Zm8=\n"}) {
    ExpectOpError(Decode(Tensor::Of({"Zg", text})), kInvalid,
                  "Base64 string length cannot be 1 modulo 4.");
  }
  for (const char* text :
       {"==", "Zm9=vYg=", "!@#$", "Zm+v", "Zm/v", "Z===", "Zg=", "=Zm8", "\xff\xff"}) {
    ExpectOpError(Decode(Tensor::Of({"Zg", text})), kInvalid, "Invalid character found in base64.");
  }
  ExpectTensorEqual(RunOp1(Decode(TensorOf<std::string>({0, 2}, {}))),
                    TensorOf<std::string>({0, 2}, {}));
  EXPECT_SHAPE("EncodeBase64", {}, {"[2,?]"}, "[2,?]");
  EXPECT_SHAPE("DecodeBase64", {}, {"<unknown>"}, "<unknown>");
}

}  // namespace
}  // namespace millrace

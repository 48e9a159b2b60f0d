// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_signature.h"

#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/sha256.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: outside: a request to a store of objects is signed as the published examples say

namespace millrace {
namespace {

// The examples of "Signature Calculations for the Authorization Header" of Amazon S3's reference.
const S3Keys& ExampleKeys() {
  static const S3Keys* const keys =
      new S3Keys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"};
  return *keys;
}

std::string SignatureOf(S3Request request, absl::string_view body) {
  request.host = "examplebucket.s3.amazonaws.com";
  const Status status = SignS3Request(ExampleKeys(), "us-east-1", absl::FromUnixSeconds(1369353600),
                                      HexOf(*Sha256(body)), &request);
  EXPECT_OK(status);
  const std::string& text = request.headers["authorization"];
  return text.substr(text.find("Signature=") + 10);
}

TEST(S3SignatureTest, GetOfARangeIsThePublishedExample) {
  EXPECT_EQ(SignatureOf({.path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}, ""),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(S3SignatureTest, PutIsThePublishedExample) {
  EXPECT_EQ(SignatureOf({.method = "PUT",
                         .path = "/test$file.text",
                         .headers = {{"date", "Fri, 24 May 2013 00:00:00 GMT"},
                                     {"x-amz-storage-class", "REDUCED_REDUNDANCY"}}},
                        "Welcome to Amazon S3."),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
}

TEST(S3SignatureTest, QueryWithoutValueIsThePublishedExample) {
  EXPECT_EQ(SignatureOf({.path = "/", .query = {{"lifecycle", ""}}}, ""),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(S3SignatureTest, ListingIsThePublishedExampleInAnyOrderOfItsQuery) {
  const std::string want = "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7";
  EXPECT_EQ(SignatureOf({.path = "/", .query = {{"max-keys", "2"}, {"prefix", "J"}}}, ""), want);
  EXPECT_EQ(SignatureOf({.path = "/", .query = {{"prefix", "J"}, {"max-keys", "2"}}}, ""), want);
}

TEST(S3SignatureTest, SessionTokenIsAHeaderThatIsSigned) {
  S3Request request{.host = "h", .path = "/"};
  S3Keys keys = ExampleKeys();
  keys.session_token = "token";
  ASSERT_OK(SignS3Request(keys, "r", absl::UnixEpoch(), "00", &request));
  EXPECT_EQ(request.headers["x-amz-security-token"], "token");
  EXPECT_NE(request.headers["authorization"].find("x-amz-security-token"), std::string::npos);
}

// Cases 1, 2 and 6 of RFC 4231.
TEST(S3SignatureTest, HmacIsTheOneOfTheStandard) {
  EXPECT_EQ(HexOf(*HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HexOf(*HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HexOf(*HmacSha256(std::string(131, '\xaa'),
                              "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(S3SignatureTest, EveryByteIsEncodedAndDecoded) {
  std::string all;
  for (int i = 0; i < 256; ++i) all.push_back(static_cast<char>(i));
  EXPECT_EQ(UriDecode(UriEncode(all, false)), all);
  EXPECT_EQ(UriEncode("a b/%2F+\xc3\xa9~", true), "a%20b/%252F%2B%C3%A9~");
  EXPECT_EQ(UriEncode("/", false), "%2F");
  EXPECT_EQ(EncodedQuery({{"b", "x y"}, {"a", ""}}), "a=&b=x%20y");
}

}  // namespace
}  // namespace millrace

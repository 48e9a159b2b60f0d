// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/hash_bucket.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/strings/sip_hash.h"
#include "runtime/testing/op_test.h"

// covers: input: strings hash to the buckets that TensorFlow published (FarmHash, SipHash, its old
//   hash)

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Buckets(const char* op, const Tensor& texts, int64_t num_buckets) {
  return OpCall(op).Input(texts).Attr("num_buckets", num_buckets);
}
OpCall Strong(const Tensor& texts, int64_t num_buckets, const std::vector<int64_t>& key) {
  return Buckets("StringToHashBucketStrong", texts, num_buckets).Attr("key", key);
}

TEST(StringToHashBucket, EachKindHasTensorFlowsBuckets) {
  const Tensor texts = Tensor::Of({"a", "b", "c"});
  ExpectTensorEqual(RunOp1(Buckets("StringToHashBucketFast", Tensor::Of({"a", "b", "c", "d"}), 10)),
                    Tensor::Of<int64_t>({9, 2, 2, 5}));
  ExpectTensorEqual(RunOp1(Buckets("StringToHashBucket", texts, 10)),
                    Tensor::Of<int64_t>({8, 0, 7}));
  ExpectTensorEqual(RunOp1(Buckets("StringToHashBucket", Tensor::Scalar("hello"), 10)),
                    Tensor::Scalar<int64_t>(8));
  ExpectTensorEqual(RunOp1(Strong(texts, 10, {98765, 132})), Tensor::Of<int64_t>({4, 2, 8}));
}

// The fingerprint of "Hello" has its highest bit set, that of "World", too.
TEST(StringToHashBucket, HashesAreUnsigned) {
  ExpectTensorEqual(RunOp1(Buckets("StringToHashBucketFast", Tensor::Of({"Hello", "World"}), 1000)),
                    Tensor::Of<int64_t>({151, 472}));
}

TEST(StringToHashBucket, ManyStringsHaveTheBucketsThatEachHasAlone) {
  std::vector<std::string> texts;
  for (int i = 0; i < 5000; ++i) texts.push_back("text " + std::to_string(i));
  const Tensor all = Tensor::Vector<std::string>(texts);
  for (const char* op : {"StringToHashBucketFast", "StringToHashBucket"}) {
    const Tensor buckets = RunOp1(Buckets(op, all, 97));
    for (const size_t i : {size_t{0}, size_t{1}, size_t{2499}, size_t{4999}}) {
      EXPECT_EQ(buckets.flat<int64_t>()[i],
                RunOp1(Buckets(op, Tensor::Scalar(texts[i]), 97)).scalar<int64_t>());
    }
  }
}

TEST(StringToHashBucket, KeepsTheShape) {
  for (const char* op : {"StringToHashBucketFast", "StringToHashBucket"}) {
    EXPECT_SHAPE(op, {{"num_buckets", int64_t{3}}}, {"[2,?]"}, "[2,?]");
    EXPECT_SHAPE(op, {{"num_buckets", int64_t{3}}}, {"<unknown>"}, "<unknown>");
    ExpectTensorEqual(RunOp1(Buckets(op, TensorOf<std::string>({0, 2}, {}), 5)),
                      TensorOf<int64_t>({0, 2}, {}));
    ExpectTensorEqual(RunOp1(Buckets(op, Tensor::Of({"a", ""}), 1)), Tensor::Of<int64_t>({0, 0}));
    ExpectOpError(Buckets(op, Tensor::Scalar("a"), 0), kInvalid, "num_buckets");
  }
  ExpectTensorEqual(RunOp1(Strong(TensorOf<std::string>({0}, {}), 5, {1, 2})),
                    TensorOf<int64_t>({0}, {}));
  ExpectOpError(Strong(Tensor::Scalar("a"), 5, {98765}), kInvalid,
                "Key must have 2 elements, got 1");
  ExpectOpError(Strong(Tensor::Scalar("a"), 5, {1, 2, 3}), kInvalid,
                "Key must have 2 elements, got 3");
}

// The values of the paper's appendix, of the bytes 0, 1, 2, ... under the key 0, 1, ..., 15.
TEST(SipHash, HasThePublishedValues) {
  const SipKey key = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
  std::string data;
  const auto next = [&] { data.push_back(static_cast<char>(data.size())); };
  EXPECT_EQ(SipHash24(key, data), 0x726fdb47dd0e0e31u);
  next();
  EXPECT_EQ(SipHash24(key, data), 0x74f839c593dc67fdu);
  while (data.size() < 8) next();
  EXPECT_EQ(SipHash24(key, data), 0x93f5f5799a932462u);
  while (data.size() < 15) next();
  EXPECT_EQ(SipHash24(key, data), 0xa129ca6149be45e5u);
}

}  // namespace
}  // namespace millrace

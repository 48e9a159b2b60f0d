// SPDX-License-Identifier: Apache-2.0
// What TensorFlow's nodes give for the same columns: //estimator/columns:column_values_test.
#include "ops/columns/column_ids.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/fingerprint64.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/node_def.pb.h"
#include "runtime/testing/op_test.h"

// covers: columns: the fused ops give ids of texts, words, identities, buckets and crosses

namespace millrace {
namespace {

using Kind = IdColumn::Kind;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// The node that the builder makes, to be run alone.
OpCall Ids(const std::vector<Tensor>& features, const std::vector<IdColumn>& columns) {
  Scope scope;
  std::vector<Output> inputs;
  for (const Tensor& feature : features) inputs.push_back(Const(scope, feature));
  const Output built = ColumnIds(scope, inputs, columns);
  OpCall call("_ColumnIds");
  call.Inputs({features.begin(), features.end()});
  if (!built.valid()) {
    ADD_FAILURE() << scope.status();
    return call;
  }
  for (const auto& [name, value] : built.node()->def().attr()) {
    if (name != "Tfeatures") call.Attr(name, value);
  }
  return call;
}

Tensor Words() { return Tensor::Of({"red", "green"}); }

TEST(ColumnIds, HashTexts) {
  // Buckets that TensorFlow gives (//ops/strings:hash_bucket_test).
  ExpectTensorEqual(RunOp1(Ids({Tensor::Of({"a", "b", "", "d"})},
                               {{.kind = Kind::kHash, .feature = 0, .size = 10}})),
                    TensorOf<int64_t>({1, 4}, {9, 2, -1, 5}));
  const auto bucket = [](const char* text) { return FingerprintBucket(text, 1000); };
  ExpectTensorEqual(RunOp1(Ids({Tensor::Of<int64_t>({7, -1, -12})},
                               {{.kind = Kind::kHash, .feature = 0, .size = 1000}})),
                    TensorOf<int64_t>({1, 3}, {bucket("7"), -1, bucket("-12")}));
}

TEST(ColumnIds, LookWordsUp) {
  const Tensor texts = Tensor::Of({"green", "", "pink", "red"});
  const IdColumn words = {.kind = Kind::kWords, .feature = 0, .vocabulary = Words()};
  IdColumn with_default = words, with_buckets = words;
  with_default.default_value = 1;
  with_buckets.num_oov_buckets = 5;
  const int64_t pink = 2 + FingerprintBucket("pink", 5);
  ExpectTensorEqual(RunOp1(Ids({texts}, {words, with_default, with_buckets})),
                    TensorOf<int64_t>({3, 4}, {1, -1, -1, 0, 1, -1, 1, 0, 1, -1, pink, 0}));

  const Tensor numbers = TensorOf<int32_t>({3, 1}, {30, -1, 7});
  const IdColumn integers = {
      .kind = Kind::kWords, .feature = 0, .vocabulary = Tensor::Of<int64_t>({20, 30})};
  IdColumn others = integers;
  others.num_oov_buckets = 5;
  const int64_t seven = 2 + FingerprintBucket("7", 5);
  ExpectTensorEqual(RunOp1(Ids({numbers}, {integers, others})),
                    TensorOf<int64_t>({2, 3}, {1, -1, -1, 1, -1, seven}));
}

TEST(ColumnIds, KeepIdentities) {
  const IdColumn strict = {.kind = Kind::kIdentity, .name = "kind", .feature = 0, .size = 5};
  ExpectTensorEqual(RunOp1(Ids({Tensor::Of<int64_t>({4, -1, 0})}, {strict})),
                    TensorOf<int64_t>({1, 3}, {4, -1, 0}));
  IdColumn lenient = strict;
  lenient.default_value = 3;
  ExpectTensorEqual(RunOp1(Ids({Tensor::Of<int64_t>({5, -1, -2})}, {lenient})),
                    TensorOf<int64_t>({1, 3}, {3, -1, 3}));
  for (const int64_t wrong : {int64_t{5}, int64_t{-2}}) {
    ExpectOpError(Ids({TensorOf<int64_t>({2}, {1, wrong})}, {strict}), kInvalid,
                  "column 'kind': ids must be in [0, 5), got ");
  }
}

TEST(ColumnIds, PutNumbersIntoBuckets) {
  const float nan = std::nanf("");
  ExpectTensorEqual(
      RunOp1(Ids({TensorOf<float>({5}, {17, 18, 30, -1, nan})},
                 {{.kind = Kind::kBuckets, .feature = 0, .boundaries = {18, 25, 30}}})),
      TensorOf<int64_t>({1, 5}, {0, 1, 3, 0, 3}));
}

TEST(ColumnIds, CrossWhatIsThere) {
  const std::vector<Tensor> features = {Tensor::Of({"x", "", "y", "x"}),
                                        Tensor::Of({"red", "red", "pink", ""}),
                                        Tensor::Of<int64_t>({5, 6, 7, 8})};
  const IdColumn words = {.kind = Kind::kWords, .feature = 1, .vocabulary = Words()};
  const IdColumn cross = {.kind = Kind::kCross,
                          .size = 1000,
                          .hash_key = 0xDECAFCAFFEu,
                          .leaves = {{.feature = 0}, {.column = 0}, {.feature = 2}}};
  const auto id = [](const char* text, int64_t word, int64_t number) {
    uint64_t hash = FingerprintCat64(0xDECAFCAFFEu, Fingerprint64(text));
    hash = FingerprintCat64(hash, static_cast<uint64_t>(word));
    return static_cast<int64_t>(FingerprintCat64(hash, static_cast<uint64_t>(number)) % 1000);
  };
  // "pink" is no word: it counts as -1.
  ExpectTensorEqual(
      RunOp1(Ids(features, {words, cross})),
      TensorOf<int64_t>({2, 4}, {0, 0, -1, -1, id("x", 0, 5), -1, id("y", -1, 7), -1}));
}

TEST(ColumnIds, MayHaveNoExamples) {
  ExpectTensorEqual(RunOp1(Ids({*Tensor::Zeros(DT_STRING, Shape{0})},
                               {{.kind = Kind::kHash, .feature = 0, .size = 10},
                                {.kind = Kind::kCross, .size = 10, .leaves = {{.column = 0}}}})),
                    TensorOf<int64_t>({2, 0}, {}));
}

TEST(ColumnIds, DoNotDependOnTheNumberOfThreads) {
  std::vector<std::string> texts;
  std::vector<float> numbers;
  for (int i = 0; i < 20'000; ++i) {
    texts.push_back(i % 7 == 0 ? "" : std::to_string(i % 97));
    numbers.push_back(static_cast<float>(i % 50));
  }
  const OpCall call = Ids({Tensor::Vector<std::string>(absl::MakeConstSpan(texts)),
                           Tensor::Vector<float>(absl::MakeConstSpan(numbers))},
                          {{.kind = Kind::kHash, .feature = 0, .size = 100},
                           {.kind = Kind::kBuckets, .feature = 1, .boundaries = {10, 20}},
                           {.kind = Kind::kCross,
                            .size = 1'000'000,
                            .leaves = {{.feature = 0}, {.column = 1}, {.column = 0}}}});
  OpTestDevice one(1), four(4);
  ExpectTensorEqual(RunOp1(OpCall(call).On(&one)), RunOp1(OpCall(call).On(&four)));
}

TEST(ColumnIds, RefuseFeaturesThatDoNotFit) {
  const IdColumn hashed = {.kind = Kind::kHash, .name = "h", .feature = 0, .size = 10};
  IdColumn other = hashed;
  other.feature = 1;
  const auto refuses = [&](std::vector<Tensor> features, std::vector<IdColumn> columns,
                           const char* text) {
    Scope own;
    std::vector<Output> inputs;
    for (const Tensor& feature : features) inputs.push_back(Const(own, feature));
    EXPECT_FALSE(ColumnIds(own, inputs, columns).valid());
    EXPECT_STATUS(own.status(), kInvalid, text);
  };
  refuses({Tensor::Of({{"a", "b"}})}, {hashed},
          "feature 0 must have one value per example, got shape [1,2]");
  refuses({Tensor::Of({"a", "b"}), Tensor::Of({"a"})}, {hashed, other},
          "features must have as many examples, got 1 of feature 1 and 2 of feature 0");
  refuses({Tensor::Of({"a"})}, {other}, "column 'h': its feature must be in [0, 1), got 1");
  refuses({Tensor::Of({1.0f})}, {hashed},
          "column 'h': its feature must be string, int32 or int64, got float");
  refuses({Tensor::Of({"a"})}, {{.kind = Kind::kBuckets, .feature = 0, .boundaries = {1}}},
          "its feature must be float, got string");
  refuses({Tensor::Of({"a"})}, {{.kind = Kind::kHash, .feature = 0}}, "size must be >= 1, got 0");
  refuses({Tensor::Of({1.0f})}, {{.kind = Kind::kBuckets, .feature = 0, .boundaries = {2, 1}}},
          "boundaries must be sorted numbers");
  refuses({Tensor::Of({"a"})},
          {{.kind = Kind::kWords, .feature = 0, .vocabulary = Words(), .default_value = 2}},
          "default_value must be -1 or in [0, 2), got 2");
  refuses({Tensor::Of({"a"})}, {{.kind = Kind::kCross, .size = 10, .leaves = {{.column = 0}}}},
          "columns of a cross must be in front of it, got 0 at 0");
  refuses({Tensor::Of({"a"})}, {{.kind = Kind::kCross, .size = 10}},
          "counts must say what the lists have, got 0 where 0 are left");
  ExpectOpError(Ids({Tensor::Of({"a"})}, {{.kind = Kind::kWords,
                                           .name = "w",
                                           .feature = 0,
                                           .vocabulary = Tensor::Of({"a", "a"})}}),
                kInvalid, "column 'w': words must be different, got 'a' twice");
}

// Attrs that no builder makes.
TEST(ColumnIds, RefuseListsThatDoNotFit) {
  const auto call = [] {
    return Ids({Tensor::Of({"a"})}, {{.kind = Kind::kHash, .feature = 0, .size = 10}});
  };
  ExpectOpError(call().Attr("kinds", std::vector<std::string>{"hash", "hash"}), kInvalid,
                "the lists of columns must have 2 elements as kinds, got 1");
  ExpectOpError(call().Attr("kinds", std::vector<std::string>{"other"}), kInvalid,
                "kinds must be hash, words, integers, identity, buckets or cross, got 'other'");
  ExpectOpError(call().Attr("leaf_columns", std::vector<int64_t>{1}), kInvalid,
                "leaf_columns and leaf_features must be as many, got 1 and 0");
}

}  // namespace
}  // namespace millrace

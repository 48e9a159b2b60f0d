// SPDX-License-Identifier: Apache-2.0
#include "data/parse_features.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "data/testing/test_example.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: input: Examples become tensors by feature spec

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Output Serialized(const Scope& scope, const std::vector<std::string>& examples) {
  return Const(scope, Tensor::Vector<std::string>(examples));
}

TEST(ParseFeatures, EachKindIsFoundByItsName) {
  Scope root;
  ParsedFeatures parsed = ParseExample(
      root,
      Serialized(root, {TestExample().Ints("age", {30}).Bytes("words", {"a", "b"}),
                        TestExample().Floats("rows", {1, 2, 3, 4})}),
      {{"age", FixedLenFeature{.dtype = DT_INT64, .default_value = Tensor::Scalar(int64_t{-1})}},
       {"words", VarLenFeature{.dtype = DT_STRING}},
       {"rows", FixedLenSequenceFeature{.dtype = DT_FLOAT, .shape = {2}, .allow_missing = true}},
       {"one", FixedLenFeature{
                   .dtype = DT_STRING, .shape = {1}, .default_value = Tensor::Scalar("none")}}});
  ASSERT_OK(root.status());
  EXPECT_EQ(parsed.dense.size(), 3u);
  EXPECT_EQ(root.shape(parsed.dense["age"]).ToString(), "[2]");
  EXPECT_EQ(root.shape(parsed.dense["rows"]).ToString(), "[2,?,2]");
  const SparseTensor words = parsed.sparse["words"];
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      EvaluateGraph(root, {},
                    {parsed.dense["age"], parsed.dense["rows"], parsed.dense["one"], words.indices,
                     words.values, words.dense_shape}));
  ExpectTensorEqual(got[0], Tensor::Of<int64_t>({30, -1}));
  ExpectTensorEqual(got[1], Tensor::Of<float>({{{0, 0}, {0, 0}}, {{1, 2}, {3, 4}}}));
  ExpectTensorEqual(got[2], Tensor::Of({{"none"}, {"none"}}));
  ExpectTensorEqual(got[3], Tensor::Of<int64_t>({{0, 0}, {0, 1}}));
  ExpectTensorEqual(got[4], Tensor::Of({"a", "b"}));
  ExpectTensorEqual(got[5], Tensor::Of<int64_t>({2, 2}));
}

TEST(ParseFeatures, SparseFeaturesHaveTheirIndicesFromOtherFeatures) {
  Scope root;
  const Output serialized = Serialized(
      root, {TestExample().Ints("row", {0, 1}).Ints("col", {5, 0}).Floats("v", {.5f, 2}),
             TestExample(), TestExample().Ints("row", {2}).Ints("col", {3}).Floats("v", {-1})});
  ParsedFeatures parsed = ParseExample(root, serialized,
                                       {{"m", SparseFeature{.index_key = {"row", "col"},
                                                            .value_key = "v",
                                                            .dtype = DT_FLOAT,
                                                            .size = {4, 10},
                                                            .already_sorted = true}},
                                        {"by_col", SparseFeature{.index_key = {"col"},
                                                                 .value_key = "v",
                                                                 .dtype = DT_FLOAT,
                                                                 .size = {10},
                                                                 .already_sorted = true}},
                                        {"col", VarLenFeature{.dtype = DT_INT64}}});
  ASSERT_OK(root.status());
  const SparseTensor m = parsed.sparse["m"], by_col = parsed.sparse["by_col"];
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(root, {},
                                     {m.indices, m.values, m.dense_shape, by_col.indices,
                                      by_col.dense_shape, parsed.sparse["col"].values}));
  ExpectTensorEqual(got[0], Tensor::Of<int64_t>({{0, 0, 5}, {0, 1, 0}, {2, 2, 3}}));
  ExpectTensorEqual(got[1], Tensor::Of({.5f, 2.f, -1.f}));
  ExpectTensorEqual(got[2], Tensor::Of<int64_t>({3, 4, 10}));
  ExpectTensorEqual(got[3], Tensor::Of<int64_t>({{0, 5}, {0, 0}, {2, 3}}));
  ExpectTensorEqual(got[4], Tensor::Of<int64_t>({3, 10}));
  ExpectTensorEqual(got[5], Tensor::Of<int64_t>({5, 0, 3}));
}

TEST(ParseFeatures, IndicesOfSparseFeaturesAreSortedUnlessTheyAre) {
  Scope root;
  const Output serialized = Serialized(root, {TestExample().Ints("i", {7, 2}).Floats("v", {1, 2}),
                                              TestExample().Ints("i", {0}).Floats("v", {3})});
  ParsedFeatures parsed = ParseExample(
      root, serialized, {{"m", SparseFeature{.index_key = {"i"}, .value_key = "v", .size = {9}}}});
  ASSERT_OK(root.status());
  const SparseTensor m = parsed.sparse["m"];
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(root, {}, {m.indices, m.values, m.dense_shape}));
  ExpectTensorEqual(got[0], Tensor::Of<int64_t>({{0, 2}, {0, 7}, {1, 0}}));
  ExpectTensorEqual(got[1], Tensor::Of<float>({2, 1, 3}));
  ExpectTensorEqual(got[2], Tensor::Of<int64_t>({2, 9}));
}

TEST(ParseFeatures, WrongSpecsAreTheScopesErrorWithTheFeaturesName) {
  const struct {
    FeatureSpecs specs;
    const char* text;
  } cases[] = {
      {{{"x", FixedLenFeature{.dtype = DT_INT32}}},
       "feature 'x' must be float, int64 or string, got int32"},
      {{{"x", VarLenFeature{.dtype = DT_DOUBLE}}}, "feature 'x' must be float, int64 or string"},
      {{{"x", FixedLenFeature{.shape = {-1}}}},
       "feature 'x' must have a shape that is known whole, got [?]"},
      {{{"x", FixedLenFeature{.default_value = Tensor::Scalar(7)}}},
       "feature 'x' must have a default value of float, got int32"},
      {{{"x", FixedLenFeature{.shape = {2}, .default_value = Tensor::Scalar(7.f)}}},
       "feature 'x' must have a default value of shape [2], got shape []"},
      {{{"x", FixedLenSequenceFeature{}}}, "feature 'x' of variable length must allow missing"},
      {{{"x", FixedLenSequenceFeature{.allow_missing = true,
                                      .default_value = Tensor::Of<float>({1, 2})}}},
       "feature 'x' must have a default value of shape [], got shape [2]"},
      {{{"x", SparseFeature{.index_key = {}, .value_key = "v", .size = {}}}},
       "feature 'x' must have one size for each of at least one index key, got 0 for 0"},
      {{{"x", SparseFeature{.index_key = {"i"}, .value_key = "v", .size = {3, 4}}}},
       "feature 'x' must have one size for each of at least one index key, got 2 for 1"},
      {{{"x", SparseFeature{.index_key = {"i"}, .value_key = "v", .size = {0}}}},
       "feature 'x' must have sizes > 0, got 0"},
      {{{"i", VarLenFeature{.dtype = DT_STRING}},
        {"x", SparseFeature{.index_key = {"i"}, .value_key = "v", .size = {3}}}},
       "feature 'x' must have one dtype for key 'i', got string and int64"},
      {{{"i", FixedLenFeature{.dtype = DT_INT64}},
        {"x", SparseFeature{.index_key = {"i"}, .value_key = "v", .size = {3}}}},
       "feature 'i' must be either dense or sparse, got both"},
  };
  for (const auto& c : cases) {
    Scope root;
    const ParsedFeatures parsed = ParseExample(root, Serialized(root, {}), c.specs);
    EXPECT_STATUS(root.status(), kInvalid, c.text);
    EXPECT_TRUE(parsed.dense.empty() && parsed.sparse.empty());
  }
}

TEST(ParseFeatures, NamesOfExamplesAreInMessages) {
  Scope root;
  const Output serialized = Serialized(root, {TestExample()});
  ParsedFeatures parsed =
      ParseExample(root, serialized, {{"x", FixedLenFeature{}}}, Serialized(root, {"file 3"}));
  ASSERT_OK(root.status());
  EXPECT_STATUS(EvaluateGraph(root, {}, {parsed.dense["x"]}), kInvalid,
                "Name: file 3, Feature: x (data type: float) is required but could not be found.");
}

}  // namespace
}  // namespace millrace

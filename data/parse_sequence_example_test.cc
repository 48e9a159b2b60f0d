// SPDX-License-Identifier: Apache-2.0
#include "data/parse_sequence_example.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "data/testing/test_example.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/example.pb.h"
#include "runtime/testing/op_test.h"

// covers: input: SequenceExamples become tensors with steps

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
using Strings = std::vector<std::string>;

class Sequence {
 public:
  template <typename T>
  Sequence& Context(const std::string& key, const std::vector<T>& values) {
    AddValues(values, &(*message_.mutable_context()->mutable_feature())[key]);
    return *this;
  }
  // One step.
  template <typename T>
  Sequence& Step(const std::string& key, const std::vector<T>& values) {
    AddValues(values, List(key)->add_feature());
    return *this;
  }
  Sequence& UnsetStep(const std::string& key) {
    List(key)->add_feature();
    return *this;
  }
  Sequence& EmptyList(const std::string& key) {
    List(key);
    return *this;
  }
  operator std::string() const { return message_.SerializeAsString(); }  // NOLINT

 private:
  tensorflow::FeatureList* List(const std::string& key) {
    return &(*message_.mutable_feature_lists()->mutable_feature_list())[key];
  }
  tensorflow::SequenceExample message_;
};

struct Parsed {
  std::vector<Tensor> context_dense, context_sparse, sparse_lists, dense_lists, lengths;
};

std::vector<Output> Parts(const std::vector<SparseTensor>& tensors) {
  std::vector<Output> parts;
  for (const SparseTensor& t : tensors) {
    parts.insert(parts.end(), {t.indices, t.values, t.dense_shape});
  }
  return parts;
}

// By the builders, so that they are tested, too.
StatusOr<Parsed> Run(const Scope& scope, const SequenceExampleOutputs& outputs) {
  std::vector<Output> fetches;
  std::vector<size_t> ends;
  for (const std::vector<Output>& part :
       {outputs.context.dense, Parts(outputs.context.sparse), Parts(outputs.sparse_lists),
        outputs.dense_lists, outputs.dense_lengths}) {
    fetches.insert(fetches.end(), part.begin(), part.end());
    ends.push_back(fetches.size());
  }
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> got, EvaluateGraph(scope, {}, fetches));
  Parsed parsed;
  size_t begin = 0;
  std::vector<Tensor>* const parts[] = {&parsed.context_dense, &parsed.context_sparse,
                                        &parsed.sparse_lists, &parsed.dense_lists, &parsed.lengths};
  for (size_t p = 0; p < ends.size(); ++p) {
    parts[p]->assign(got.begin() + static_cast<ptrdiff_t>(begin),
                     got.begin() + static_cast<ptrdiff_t>(ends[p]));
    begin = ends[p];
  }
  return parsed;
}
StatusOr<Parsed> Batch(const Strings& examples, const SequenceExampleFeatures& features,
                       const Strings& names = {}) {
  Scope root;
  const Output serialized = Const(root, Tensor::Vector<std::string>(examples));
  return Run(root, ParseSequenceExample(root, serialized, features,
                                        Const(root, Tensor::Vector<std::string>(names))));
}
StatusOr<Parsed> Single(const std::string& example, const SequenceExampleFeatures& features,
                        const std::string& name = "") {
  Scope root;
  return Run(root,
             ParseSingleSequenceExample(root, Const(root, example), features, Const(root, name)));
}

const Sequence kTwoSteps = Sequence()
                               .Context<int64_t>("label", {7})
                               .Context<std::string>("tags", {"x", "y"})
                               .Step<float>("frame", {1, 2})
                               .Step<float>("frame", {3, 4})
                               .Step<std::string>("words", {"a"})
                               .Step<std::string>("words", {})
                               .Step<std::string>("words", {"b", "c"});
const Sequence kOneStep = Sequence().Context<int64_t>("label", {8}).Step<float>("frame", {5, 6});

const SequenceExampleFeatures kFeatures = {
    .context = {.sparse = {{"tags", DT_STRING}},
                .dense = {{"label", PartialShape::Scalar(), TensorOf<int64_t>({0}, {})}}},
    .sparse_lists = {{"words", DT_STRING}},
    .dense_lists = {{.key = "frame", .dtype = DT_FLOAT, .shape = {2}}}};

TEST(ParseSequenceExample, PadsStepsToTheLongestExample) {
  ASSERT_OK_AND_ASSIGN(const Parsed got, Batch({kTwoSteps, kOneStep}, kFeatures));
  ExpectTensorEqual(got.context_dense[0], Tensor::Of<int64_t>({7, 8}));
  ExpectTensorEqual(got.context_sparse[0], Tensor::Of<int64_t>({{0, 0}, {0, 1}}));
  ExpectTensorEqual(got.context_sparse[1], Tensor::Of({"x", "y"}));
  ExpectTensorEqual(got.context_sparse[2], Tensor::Of<int64_t>({2, 2}));
  ExpectTensorEqual(got.sparse_lists[0], Tensor::Of<int64_t>({{0, 0, 0}, {0, 2, 0}, {0, 2, 1}}));
  ExpectTensorEqual(got.sparse_lists[1], Tensor::Of({"a", "b", "c"}));
  ExpectTensorEqual(got.sparse_lists[2], Tensor::Of<int64_t>({2, 3, 2}));
  ExpectTensorEqual(got.dense_lists[0], Tensor::Of<float>({{{1, 2}, {3, 4}}, {{5, 6}, {0, 0}}}));
  ExpectTensorEqual(got.lengths[0], Tensor::Of<int64_t>({2, 1}));
}

TEST(ParseSingleSequenceExample, HasNoDimensionForTheBatch) {
  ASSERT_OK_AND_ASSIGN(const Parsed got, Single(kTwoSteps, kFeatures));
  ExpectTensorEqual(got.context_dense[0], Tensor::Scalar(int64_t{7}));
  ExpectTensorEqual(got.context_sparse[0], Tensor::Of<int64_t>({{0}, {1}}));
  ExpectTensorEqual(got.context_sparse[2], Tensor::Of<int64_t>({2}));
  ExpectTensorEqual(got.sparse_lists[0], Tensor::Of<int64_t>({{0, 0}, {2, 0}, {2, 1}}));
  ExpectTensorEqual(got.sparse_lists[2], Tensor::Of<int64_t>({3, 2}));
  ExpectTensorEqual(got.dense_lists[0], Tensor::Of<float>({{1, 2}, {3, 4}}));
  EXPECT_TRUE(got.lengths.empty());
}

TEST(ParseSequenceExample, ListsThatAreMissingAreEmptyOrRequired) {
  SequenceExampleFeatures features = {.dense_lists = {{.key = "n", .dtype = DT_INT64}}};
  const char* const kText =
      "Name: <unknown>, Feature list 'n' is required but could not be found.  Did you mean to "
      "include it in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?";
  EXPECT_STATUS(Batch({Sequence()}, features), kInvalid, kText);
  EXPECT_STATUS(Single(Sequence(), features), kInvalid, kText);
  EXPECT_STATUS(Single(Sequence(), features, "e7"), kInvalid, "Name: e7, Feature list 'n' is");
  features.dense_lists[0].missing_assumed_empty = true;
  ASSERT_OK_AND_ASSIGN(const Parsed batch,
                       Batch({Sequence(), Sequence().Step<int64_t>("n", {5})}, features));
  ExpectTensorEqual(batch.dense_lists[0], Tensor::Of<int64_t>({{0}, {5}}));
  ExpectTensorEqual(batch.lengths[0], Tensor::Of<int64_t>({0, 1}));
  ASSERT_OK_AND_ASSIGN(const Parsed single, Single(Sequence().EmptyList("n"), features));
  ExpectTensorEqual(single.dense_lists[0], TensorOf<int64_t>({0}, {}));
  ASSERT_OK_AND_ASSIGN(const Parsed none, Batch({}, features));
  ExpectTensorEqual(none.dense_lists[0], TensorOf<int64_t>({0, 0}, {}));
}

// What is not there is nothing: no values of a sparse step, and not those of a dense one.
TEST(ParseSequenceExample, StepsWithoutAValue) {
  const Sequence sequence =
      Sequence().UnsetStep("s").Step<int64_t>("s", {3}).UnsetStep("s").UnsetStep("d");
  ASSERT_OK_AND_ASSIGN(const Parsed got, Batch({sequence}, {.sparse_lists = {{"s", DT_INT64}}}));
  ExpectTensorEqual(got.sparse_lists[0], Tensor::Of<int64_t>({{0, 1, 0}}));
  ExpectTensorEqual(got.sparse_lists[2], Tensor::Of<int64_t>({1, 3, 1}));
  EXPECT_STATUS(Batch({sequence}, {.dense_lists = {{.key = "d", .dtype = DT_INT64}}}), kInvalid,
                "Name: <unknown>, Feature list: d, Index: 0.  Number of int64 values != expected.  "
                "values size: 0 but output shape: []");
}

TEST(ParseSequenceExample, BadExamplesAreNamed) {
  const Sequence ints = Sequence().Step<int64_t>("x", {1}).Step<int64_t>("x", {1, 2});
  const struct {
    std::string example;
    SequenceExampleFeatures features;
    const char* text;
  } cases[] = {
      {ints,
       {.dense_lists = {{.key = "x", .dtype = DT_INT64}}},
       "Name: second, Feature list: x, Index: 1.  Number of int64 values != expected.  values "
       "size: 2 but output shape: []"},
      {ints,
       {.sparse_lists = {{"x", DT_STRING}}},
       "Name: second, Feature list: x, Index: 0.  Data types don't match. Data type: int64 but "
       "expected type: string"},
      {"garbage",
       {.sparse_lists = {{"x", DT_STRING}}},
       "Name: second, Index: 1.  Could not parse example input"},
      // A list whose bytes are no features.
      {std::string("\x12\x09\x0a\x07\x0a\x01x\x12\x02\x0a\x05", 11),
       {.sparse_lists = {{"x", DT_STRING}}},
       "is no tensorflow.SequenceExample"},
      {Sequence().Context<float>("c", {1}),
       {.context = {.dense = {{"c", PartialShape::Scalar(), TensorOf<int64_t>({0}, {})}}}},
       "Name: second, Key: c, Index: 1.  Data types don't match."},
      {Sequence(),
       {.context = {.dense = {{"c", PartialShape::Scalar(), TensorOf<int64_t>({0}, {})}}}},
       "Name: second, Feature: c (data type: int64) is required but could not be found."},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const std::string good = Sequence().Context<int64_t>("c", {1}).Step<int64_t>("x", {1});
    const bool is_string = !c.features.sparse_lists.empty();
    const std::string first = is_string ? std::string(Sequence()) : good;
    EXPECT_STATUS(Batch({first, c.example}, c.features, {"first", "second"}), kInvalid, c.text);
  }
}

// Each ends in a value or an error, never elsewhere.
TEST(ParseSequenceExample, EveryTruncationAndFlippedByteEnds) {
  const std::string good = kTwoSteps;
  int parsed = 0;
  const auto check = [&](const std::string& bytes) { parsed += Batch({bytes}, kFeatures).ok(); };
  for (size_t size = 0; size <= good.size(); ++size) check(good.substr(0, size));
  for (size_t i = 0; i < good.size(); ++i) {
    for (const int flip : {1, 2, 4, 8, 16, 32, 64, 128}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ flip);
      check(bad);
    }
  }
  EXPECT_GT(parsed, 10);  // flipped values
}

TEST(ParseSequenceExample, InfersShapes) {
  Scope root;
  const SequenceExampleOutputs batch =
      ParseSequenceExample(root, TestInput(root, DT_STRING, {-1}), kFeatures);
  const SequenceExampleOutputs single =
      ParseSingleSequenceExample(root, TestInput(root, DT_STRING, {}), kFeatures);
  ASSERT_OK(root.status());
  EXPECT_EQ(root.shape(batch.context.dense[0]).ToString(), "[?]");
  EXPECT_EQ(root.shape(batch.sparse_lists[0].indices).ToString(), "[?,3]");
  EXPECT_EQ(root.shape(batch.sparse_lists[0].dense_shape).ToString(), "[3]");
  EXPECT_EQ(root.shape(batch.dense_lists[0]).ToString(), "[?,?,2]");
  EXPECT_EQ(root.shape(batch.dense_lengths[0]).ToString(), "[?]");
  EXPECT_EQ(root.shape(single.context.dense[0]).ToString(), "[]");
  EXPECT_EQ(root.shape(single.sparse_lists[0].indices).ToString(), "[?,2]");
  EXPECT_EQ(root.shape(single.dense_lists[0]).ToString(), "[?,2]");
}

TEST(ParseSequenceExample, WrongKeysAreTheScopesError) {
  Scope root;
  ParseSequenceExample(root, TestInput(root, DT_STRING, {-1}),
                       {.dense_lists = {{.key = "x", .shape = {-1}}}});
  EXPECT_STATUS(root.status(), kInvalid,
                "feature_list_dense_shapes[0] must be known whole, got [?]");
  Scope twice;
  ParseSequenceExample(twice, TestInput(twice, DT_STRING, {-1}),
                       {.sparse_lists = {{"x", DT_FLOAT}, {"x", DT_INT64}}});
  EXPECT_STATUS(twice.status(), kInvalid, "keys must differ, got 'x' for two features");
  Scope ragged;
  ParseSequenceExample(ragged, TestInput(ragged, DT_STRING, {-1}),
                       {.context = {.ragged = {{"x", DT_FLOAT}}}});
  EXPECT_STATUS(ragged.status(), kInvalid, "features must be sparse or dense, got ragged 'x'");
}

}  // namespace
}  // namespace millrace

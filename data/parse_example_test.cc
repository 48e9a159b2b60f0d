// SPDX-License-Identifier: Apache-2.0
#include "data/parse_example.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "data/testing/test_example.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: input: Examples become dense, sparse, padded and ragged tensors by key; of several errors
//   the first is named

namespace millrace {
namespace {

using Strings = std::vector<std::string>;

Tensor StringVector(const Strings& values) {
  return Tensor::Vector<std::string>(absl::MakeConstSpan(values));
}

struct Features {
  std::vector<SparseKey> sparse = {};
  std::vector<DenseKey> dense = {};
  Strings names = {};
};

OpCall Call(const Strings& examples, const Features& features) {
  std::vector<OpInput> sparse_keys, dense_keys, defaults;
  std::vector<DType> sparse_types, dense_types;
  std::vector<PartialShape> shapes;
  for (const SparseKey& f : features.sparse) {
    sparse_keys.push_back(Tensor::Scalar<std::string>(f.key));
    sparse_types.push_back(f.dtype);
  }
  for (const DenseKey& f : features.dense) {
    dense_keys.push_back(Tensor::Scalar<std::string>(f.key));
    defaults.push_back(f.default_value);
    dense_types.push_back(f.default_value.dtype());
    shapes.push_back(f.shape);
  }
  return OpCall("ParseExample")
      .Input(StringVector(examples))
      .Input(StringVector(features.names))
      .Inputs(sparse_keys)
      .Inputs(dense_keys)
      .Inputs(defaults)
      .Attr("Nsparse", static_cast<int64_t>(sparse_types.size()))
      .Attr("Ndense", static_cast<int64_t>(dense_types.size()))
      .Attr("sparse_types", sparse_types)
      .Attr("Tdense", dense_types)
      .Attr("dense_shapes", shapes);
}

const Tensor kRequiredFloat = TensorOf<float>({0}, {});

TEST(ParseExample, FixedDenseFeatures) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Call({TestExample().Floats("x", {1, 2}).Ints("n", {7}).Bytes("s", {"a"}),
                  TestExample().Floats("x", {3, 4}).Ints("n", {-8}).Bytes("other", {"b"}),
                  TestExample().Floats("x", {5, 6}).Ints("n", {9}).Unset("s")},
                 {.dense = {{"x", {1, 2}, kRequiredFloat},
                            {"n", PartialShape::Scalar(), TensorOf<int64_t>({}, {0})},
                            {"s", {1}, TensorOf<std::string>({1}, {"none"})}}})));
  ExpectTensorEqual(got[0], TensorOf<float>({3, 1, 2}, {1, 2, 3, 4, 5, 6}));
  ExpectTensorEqual(got[1], TensorOf<int64_t>({3}, {7, -8, 9}));
  ExpectTensorEqual(got[2], TensorOf<std::string>({3, 1}, {"a", "none", "none"}));
}

TEST(ParseExample, VariableDenseFeaturesArePadded) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(Call({TestExample().Ints("v", {1, 2, 3, 4}).Bytes("w", {"a"}),
                                   TestExample().Ints("v", {5, 6}), TestExample()},
                                  {.dense = {{"v", {-1, 2}, TensorOf<int64_t>({}, {-1})},
                                             {"w", {-1}, TensorOf<std::string>({1}, {"pad"})}}})));
  ExpectTensorEqual(got[0],
                    TensorOf<int64_t>({3, 2, 2}, {1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1, -1}));
  ExpectTensorEqual(got[1], TensorOf<std::string>({3, 1}, {"a", "pad", "pad"}));
}

TEST(ParseExample, SparseFeatures) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Call({TestExample().Floats("f", {1, 2}), TestExample().Bytes("b", {"x"}),
                  TestExample().Floats("f", {3}).Bytes("b", {"y", "z"})},
                 {.sparse = {{"f", DT_FLOAT}, {"b", DT_STRING}, {"absent", DT_INT64}}})));
  ASSERT_EQ(got.size(), 9u);
  ExpectTensorEqual(got[0], TensorOf<int64_t>({3, 2}, {0, 0, 0, 1, 2, 0}));
  ExpectTensorEqual(got[1], TensorOf<int64_t>({3, 2}, {1, 0, 2, 0, 2, 1}));
  ExpectTensorEqual(got[2], TensorOf<int64_t>({0, 2}, {}));
  ExpectTensorEqual(got[3], TensorOf<float>({3}, {1, 2, 3}));
  ExpectTensorEqual(got[4], TensorOf<std::string>({3}, {"x", "y", "z"}));
  ExpectTensorEqual(got[5], TensorOf<int64_t>({0}, {}));
  ExpectTensorEqual(got[6], TensorOf<int64_t>({2}, {3, 2}));
  ExpectTensorEqual(got[7], TensorOf<int64_t>({2}, {3, 2}));
  ExpectTensorEqual(got[8], TensorOf<int64_t>({2}, {3, 0}));
}

TEST(ParseExample, OfTwoEntriesWithOneKeyTheLastCounts) {
  const std::string twice =
      std::string(TestExample().Floats("x", {1})) + std::string(TestExample().Floats("x", {2}));
  const std::string unset_last =
      std::string(TestExample().Floats("x", {1})) + std::string(TestExample().Unset("x"));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Call({twice, unset_last}, {.dense = {{"x", {1}, TensorOf<float>({1}, {-1})}}})));
  ExpectTensorEqual(got[0], TensorOf<float>({2, 1}, {2, -1}));
}

TEST(ParseExample, EmptyBatches) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(Call({}, {.sparse = {{"s", DT_FLOAT}},
                                       .dense = {{"x", {2}, kRequiredFloat},
                                                 {"v", {-1}, TensorOf<int64_t>({}, {0})}}})));
  ExpectTensorEqual(got[0], TensorOf<int64_t>({0, 2}, {}));
  ExpectTensorEqual(got[2], TensorOf<int64_t>({2}, {0, 0}));
  ExpectTensorEqual(got[3], TensorOf<float>({0, 2}, {}));
  ExpectTensorEqual(got[4], TensorOf<int64_t>({0, 0}, {}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none, RunOp(Call({TestExample()}, {})));
  EXPECT_TRUE(none.empty());
}

TEST(ParseExample, ManyExamplesOnSeveralThreads) {
  Strings examples;
  for (int64_t i = 0; i < 5000; ++i) {
    TestExample e;
    e.Ints("i", {i});
    std::vector<float> values;
    for (int64_t k = 0; k < i % 3; ++k) values.push_back(static_cast<float>(i));
    e.Floats("f", values);
    examples.push_back(e);
  }
  OpTestDevice device(4);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Call(examples, {.sparse = {{"f", DT_FLOAT}},
                            .dense = {{"i", PartialShape::Scalar(), TensorOf<int64_t>({0}, {})}}})
                .On(&device)));
  ASSERT_EQ(got[0].dim(0), 4999);
  size_t at = 0;
  for (int64_t i = 0; i < 5000; ++i) {
    ASSERT_EQ(got[3].flat<int64_t>()[static_cast<size_t>(i)], i);
    for (int64_t k = 0; k < i % 3; ++k, ++at) {
      ASSERT_EQ(got[0].flat<int64_t>()[2 * at], i);
      ASSERT_EQ(got[0].flat<int64_t>()[2 * at + 1], k);
      ASSERT_EQ(got[1].flat<float>()[at], static_cast<float>(i));
    }
  }
}

TEST(ParseExample, BadExamplesAreNamed) {
  const Tensor zero = TensorOf<float>({1}, {0});
  const Tensor pad = TensorOf<float>({}, {0});
  struct Case {
    Strings examples;
    Features features;
    const char* text;
  };
  const Case cases[] = {
      {{TestExample().Floats("x", {1}), TestExample()},
       {.dense = {{"x", {1}, kRequiredFloat}}, .names = {"first", "second"}},
       "Name: second, Feature: x (data type: float) is required but could not be found."},
      {{TestExample()},
       {.dense = {{"x", {1}, kRequiredFloat}}},
       "Name: <unknown>, Feature: x (data type: float) is required but could not be found."},
      {{TestExample().Unset("x")}, {.dense = {{"x", {1}, kRequiredFloat}}}, "is required"},
      {{TestExample().Ints("x", {1})},
       {.dense = {{"x", {1}, zero}}, .names = {"e"}},
       "Name: e, Key: x, Index: 0.  Data types don't match. Data type: int64 but expected type: "
       "float"},
      {{TestExample(), TestExample().Bytes("x", {"1"})},
       {.sparse = {{"x", DT_INT64}}},
       "Name: <unknown>, Key: x, Index: 1.  Data types don't match. Data type: string but "
       "expected type: int64"},
      {{TestExample().Floats("x", {1, 2})},
       {.dense = {{"x", {1}, zero}}},
       "Key: x, Index: 0.  Number of float values != expected.  values size: 2 but output shape: "
       "[1]"},
      {{TestExample().Floats("x", {})}, {.dense = {{"x", {1}, zero}}}, "values size: 0"},
      {{TestExample().Floats("x", {1, 2, 3})},
       {.dense = {{"x", {-1, 2}, pad}}},
       "values size: 3 but output shape: [?,2]"},
      {{TestExample(), "garbage"},
       {.dense = {{"x", {1}, zero}}},
       "Name: <unknown>, Index: 1.  Could not parse example input"},
      {{TestExample()},
       {.names = {"a", "b"}},
       "names must be empty or have one element for each of "
       "the 1 examples, got 2"},
      {{TestExample()},
       {.sparse = {{"x", DT_FLOAT}}, .dense = {{"x", {1}, zero}}},
       "keys must differ, got 'x' for two features"},
      {{TestExample()},
       {.dense = {{"x", {2}, zero}}},
       "dense_defaults[0] must have shape [2] of the feature or no elements, got [1]"},
      {{TestExample()},
       {.dense = {{"x", {-1}, kRequiredFloat}}},
       "dense_defaults[0] of a feature of variable length must have 1 element"},
      {{TestExample()},
       {.dense = {{"x", {2, -1}, zero}}},
       "dense_shapes[0] may leave only its first dimension open, got [2,?]"},
      {{TestExample()},
       {.dense = {{"x", {-1, 0}, pad}}},
       "dense_shapes[0] with an open first dimension must have other dimensions > 0"},
      {{TestExample()},
       {.dense = {{"x", PartialShape::Unknown(), zero}}},
       "dense_shapes[0] must have a known rank"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    ExpectOpError(Call(c.examples, c.features), absl::StatusCode::kInvalidArgument, c.text);
  }
}

TEST(ParseExample, TheFirstBadExampleIsReportedWhateverTheThreads) {
  Strings examples(2000, TestExample().Floats("x", {1}));
  examples[700] = TestExample().Ints("x", {1});
  examples[701] = "garbage";
  examples[1999] = "garbage";
  OpTestDevice device(4);
  for (int i = 0; i < 5; ++i) {
    ExpectOpError(Call(examples, {.dense = {{"x", {1}, kRequiredFloat}}}).On(&device),
                  absl::StatusCode::kInvalidArgument, "Index: 700.  Data types don't match");
  }
}

TEST(ParseExample, InputsOfOtherShapesAreRefused) {
  ExpectOpError(OpCall("ParseExample")
                    .Input(Tensor::Scalar<std::string>(""))
                    .Input(StringVector({}))
                    .Inputs({})
                    .Inputs({})
                    .Inputs({})
                    .Attr("Nsparse", int64_t{0})
                    .Attr("Ndense", int64_t{0})
                    .Attr("sparse_types", std::vector<DType>{})
                    .Attr("Tdense", std::vector<DType>{})
                    .Attr("dense_shapes", std::vector<PartialShape>{}),
                absl::StatusCode::kInvalidArgument, "serialized must be a vector, got shape []");
}

TEST(ParseExample, ShapesFromAttrs) {
  Scope scope;
  const Output serialized = TestInput(scope, DT_STRING, {-1});
  const ParseExampleOutputs parsed =
      ParseExample(scope, serialized,
                   {.sparse = {{"a", DT_INT64}},
                    .dense = {{"x", {2, 3}, TensorOf<float>({0}, {})},
                              {"v", {-1, 2}, TensorOf<int64_t>({}, {0})}}});
  ASSERT_OK(scope.status());
  EXPECT_EQ(scope.shape(parsed.sparse[0].indices).ToString(), "[?,2]");
  EXPECT_EQ(scope.shape(parsed.sparse[0].values).ToString(), "[?]");
  EXPECT_EQ(scope.shape(parsed.sparse[0].dense_shape).ToString(), "[2]");
  EXPECT_EQ(parsed.sparse[0].values.dtype(), DT_INT64);
  EXPECT_EQ(scope.shape(parsed.dense[0]).ToString(), "[?,2,3]");
  EXPECT_EQ(scope.shape(parsed.dense[1]).ToString(), "[?,?,2]");
  Tensor examples = StringVector(
      {TestExample().Ints("a", {5}).Floats("x", {1, 2, 3, 4, 5, 6}).Ints("v", {7, 8})});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(scope, {{serialized, examples}},
                                     {parsed.sparse[0].values, parsed.dense[0], parsed.dense[1]}));
  ExpectTensorEqual(got[0], TensorOf<int64_t>({1}, {5}));
  ExpectTensorEqual(got[1], TensorOf<float>({1, 2, 3}, {1, 2, 3, 4, 5, 6}));
  ExpectTensorEqual(got[2], TensorOf<int64_t>({1, 1, 2}, {7, 8}));
}

// --- ParseExampleV2 and ParseSingleExample

OpCall CallV2(const Tensor& serialized, const ParseExampleFeatures& features,
              const Strings& names = {}) {
  Strings sparse_keys, dense_keys, ragged_keys;
  std::vector<OpInput> defaults;
  std::vector<DType> sparse_types, dense_types, ragged_types, split_types;
  std::vector<PartialShape> shapes;
  for (const SparseKey& f : features.sparse) {
    sparse_keys.push_back(f.key);
    sparse_types.push_back(f.dtype);
  }
  for (const DenseKey& f : features.dense) {
    dense_keys.push_back(f.key);
    defaults.push_back(f.default_value);
    dense_types.push_back(f.default_value.dtype());
    shapes.push_back(f.shape);
  }
  for (const RaggedKey& f : features.ragged) {
    ragged_keys.push_back(f.key);
    ragged_types.push_back(f.dtype);
    split_types.push_back(f.row_splits_dtype);
  }
  return OpCall("ParseExampleV2")
      .Input(serialized)
      .Input(StringVector(names))
      .Input(StringVector(sparse_keys))
      .Input(StringVector(dense_keys))
      .Input(StringVector(ragged_keys))
      .Inputs(defaults)
      .Attr("num_sparse", static_cast<int64_t>(sparse_types.size()))
      .Attr("sparse_types", sparse_types)
      .Attr("Tdense", dense_types)
      .Attr("dense_shapes", shapes)
      .Attr("ragged_value_types", ragged_types)
      .Attr("ragged_split_types", split_types);
}

const ParseExampleFeatures kAllForms = {
    .sparse = {{"s", DT_STRING}},
    .dense = {{"d", {2}, TensorOf<float>({2}, {-1, -2})}, {"v", {-1}, TensorOf<int64_t>({}, {9})}},
    .ragged = {{"r", DT_INT64, DT_INT32}, {"q", DT_FLOAT, DT_INT64}}};
const TestExample kFull = TestExample()
                              .Bytes("s", {"a", "b"})
                              .Floats("d", {1, 2})
                              .Ints("v", {4, 5})
                              .Ints("r", {6, 300, -1})
                              .Floats("q", {.5f});

TEST(ParseExampleV2, ABatchHasSparseDenseAndRaggedFeatures) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(CallV2(StringVector({kFull, TestExample(), TestExample().Ints("r", {7})}), kAllForms)));
  ASSERT_EQ(got.size(), 9u);
  ExpectTensorEqual(got[0], Tensor::Of<int64_t>({{0, 0}, {0, 1}}));
  ExpectTensorEqual(got[1], Tensor::Of({"a", "b"}));
  ExpectTensorEqual(got[2], Tensor::Of<int64_t>({3, 2}));
  ExpectTensorEqual(got[3], Tensor::Of<float>({{1, 2}, {-1, -2}, {-1, -2}}));
  ExpectTensorEqual(got[4], Tensor::Of<int64_t>({{4, 5}, {9, 9}, {9, 9}}));
  ExpectTensorEqual(got[5], Tensor::Of<int64_t>({6, 300, -1, 7}));
  ExpectTensorEqual(got[6], Tensor::Of({.5f}));
  ExpectTensorEqual(got[7], Tensor::Of<int32_t>({0, 3, 3, 4}));
  ExpectTensorEqual(got[8], Tensor::Of<int64_t>({0, 1, 1, 1}));
}

TEST(ParseExampleV2, AScalarIsOneExampleWithoutABatch) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(CallV2(Tensor::Scalar<std::string>(kFull), kAllForms)));
  ExpectTensorEqual(got[0], Tensor::Of<int64_t>({{0}, {1}}));
  ExpectTensorEqual(got[2], Tensor::Of<int64_t>({2}));
  ExpectTensorEqual(got[3], Tensor::Of<float>({1, 2}));
  ExpectTensorEqual(got[4], Tensor::Of<int64_t>({4, 5}));
  ExpectTensorEqual(got[5], Tensor::Of<int64_t>({6, 300, -1}));
  ExpectTensorEqual(got[7], TensorOf<int32_t>({0}, {}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none, RunOp(CallV2(StringVector({}), kAllForms)));
  ExpectTensorEqual(none[3], TensorOf<float>({0, 2}, {}));
  ExpectTensorEqual(none[7], Tensor::Of<int32_t>({0}));
}

TEST(ParseExampleV2, BadExamplesAndAttrsAreNamed) {
  const ParseExampleFeatures required = {.dense = {{"x", {1}, kRequiredFloat}}};
  ExpectOpError(CallV2(StringVector({TestExample()}), required, {"e"}),
                absl::StatusCode::kInvalidArgument,
                "Name: e, Feature: x (data type: float) is required but could not be found.");
  ExpectOpError(CallV2(Tensor::Scalar<std::string>(TestExample()), required),
                absl::StatusCode::kInvalidArgument,
                "Feature: x (data type: float) is required but could not be found.");
  ExpectOpError(CallV2(Tensor::Scalar<std::string>(TestExample().Ints("x", {1})), required),
                absl::StatusCode::kInvalidArgument, "Key: x.  Data types don't match.");
  ExpectOpError(CallV2(StringVector({TestExample().Floats("r", {1})}), kAllForms),
                absl::StatusCode::kInvalidArgument, "Key: r, Index: 0.  Data types don't match.");
  ExpectOpError(CallV2(Tensor::Of({{"a"}}), required), absl::StatusCode::kInvalidArgument,
                "serialized must be a vector or a scalar, got shape [1,1]");
  ExpectOpError(CallV2(StringVector({TestExample()}), required, {"a", "b"}),
                absl::StatusCode::kInvalidArgument,
                "names must be empty or have one element for each of the 1 examples, got 2");
  ExpectOpError(CallV2(StringVector({}), {.sparse = {{"x", DT_FLOAT}}})
                    .Attr("num_sparse", int64_t{0})
                    .Attr("sparse_types", std::vector<DType>{}),
                absl::StatusCode::kInvalidArgument,
                "sparse_keys must have 0 elements, as the types say, got 1");
}

TEST(ParseExampleV2, InfersShapes) {
  Scope scope;
  const ParseExampleOutputs batch =
      ParseExampleV2(scope, TestInput(scope, DT_STRING, {5}), kAllForms);
  const ParseExampleOutputs single =
      ParseExampleV2(scope, TestInput(scope, DT_STRING, PartialShape::Scalar()), kAllForms);
  const ParseExampleOutputs unknown =
      ParseExampleV2(scope, TestInput(scope, DT_STRING, PartialShape()), kAllForms);
  ASSERT_OK(scope.status());
  EXPECT_EQ(scope.shape(batch.dense[0]).ToString(), "[5,2]");
  EXPECT_EQ(scope.shape(batch.ragged[0].row_splits).ToString(), "[6]");
  EXPECT_EQ(batch.ragged[0].row_splits.dtype(), DT_INT32);
  EXPECT_EQ(scope.shape(single.dense[0]).ToString(), "[2]");
  EXPECT_EQ(scope.shape(single.sparse[0].indices).ToString(), "[?,1]");
  EXPECT_EQ(scope.shape(single.ragged[0].row_splits).ToString(), "[0]");
  EXPECT_EQ(scope.shape(unknown.dense[0]).ToString(), "<unknown>");
}

TEST(ParseSingleExample, GivesTensorsOfOneExample) {
  Scope scope;
  const Output serialized = TestInput(scope, DT_STRING, PartialShape::Scalar());
  const ParseExampleOutputs parsed =
      ParseSingleExample(scope, serialized, {.sparse = kAllForms.sparse, .dense = kAllForms.dense});
  ASSERT_OK(scope.status());
  EXPECT_EQ(scope.shape(parsed.dense[0]).ToString(), "[2]");
  const std::vector<Output> fetches = {parsed.sparse[0].indices, parsed.sparse[0].values,
                                       parsed.sparse[0].dense_shape, parsed.dense[0],
                                       parsed.dense[1]};
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      EvaluateGraph(scope, {{serialized, Tensor::Scalar<std::string>(kFull)}}, fetches));
  ExpectTensorEqual(got[0], Tensor::Of<int64_t>({{0}, {1}}));
  ExpectTensorEqual(got[1], Tensor::Of({"a", "b"}));
  ExpectTensorEqual(got[2], Tensor::Of<int64_t>({2}));
  ExpectTensorEqual(got[3], Tensor::Of<float>({1, 2}));
  ExpectTensorEqual(got[4], Tensor::Of<int64_t>({4, 5}));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> missing,
      EvaluateGraph(scope, {{serialized, Tensor::Scalar<std::string>(TestExample())}}, fetches));
  ExpectTensorEqual(missing[0], TensorOf<int64_t>({0, 1}, {}));
  ExpectTensorEqual(missing[3], Tensor::Of<float>({-1, -2}));
  ExpectTensorEqual(missing[4], TensorOf<int64_t>({0}, {}));
  EXPECT_STATUS(EvaluateGraph(scope, {{serialized, Tensor::Scalar("garbage")}}, fetches),
                absl::StatusCode::kInvalidArgument, "is no tensorflow.Example");
}

TEST(ParseSingleExample, AttrsMustAgree) {
  const auto call = [](int64_t num_sparse, const Strings& keys) {
    return OpCall("ParseSingleExample")
        .Input(Tensor::Scalar(""))
        .Inputs({})
        .Attr("num_sparse", num_sparse)
        .Attr("sparse_keys", keys)
        .Attr("dense_keys", Strings{})
        .Attr("sparse_types", std::vector<DType>(2, DT_FLOAT))
        .Attr("Tdense", std::vector<DType>{})
        .Attr("dense_shapes", std::vector<PartialShape>{});
  };
  ExpectOpError(call(1, {"a", "b"}), absl::StatusCode::kInvalidArgument,
                "num_sparse (1) must match the size of sparse_keys (2)");
  ExpectOpError(call(2, {"a", "a"}), absl::StatusCode::kInvalidArgument,
                "keys must differ, got 'a' for two features");
}

// Keys of all lengths, with the same beginnings and ends.
TEST(ParseExample, FindsEveryKeyAmongMany) {
  ParseExampleFeatures features;
  TestExample example;
  for (int i = 0; i < 300; ++i) {
    const std::string key = "feature/" + std::string(static_cast<size_t>(i % 40), '_') +
                            std::to_string(i) + "/common/suffix";
    example.Ints(key, {i}).Ints("not " + key, {-i});
    features.dense.push_back({key, PartialShape::Scalar(), TensorOf<int64_t>({0}, {})});
  }
  Features wanted;
  wanted.dense = features.dense;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, RunOp(Call({example}, wanted)));
  for (int64_t i = 0; i < 300; ++i) {
    EXPECT_EQ(got[static_cast<size_t>(i)].flat<int64_t>()[0], i);
  }
}

}  // namespace
}  // namespace millrace

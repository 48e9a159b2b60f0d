// SPDX-License-Identifier: Apache-2.0
#include "data/parse_example.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/example.pb.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

using Strings = std::vector<std::string>;

class Example {
 public:
  Example& Floats(const std::string& key, const std::vector<float>& values) {
    auto* list = Of(key)->mutable_float_list();
    for (const float v : values) list->add_value(v);
    return *this;
  }
  Example& Ints(const std::string& key, const std::vector<int64_t>& values) {
    auto* list = Of(key)->mutable_int64_list();
    for (const int64_t v : values) list->add_value(v);
    return *this;
  }
  Example& Bytes(const std::string& key, const Strings& values) {
    auto* list = Of(key)->mutable_bytes_list();
    for (const std::string& v : values) list->add_value(v);
    return *this;
  }
  Example& Unset(const std::string& key) {
    Of(key);
    return *this;
  }
  operator std::string() const { return example_.SerializeAsString(); }  // NOLINT

 private:
  tensorflow::Feature* Of(const std::string& key) {
    return &(*example_.mutable_features()->mutable_feature())[key];
  }
  tensorflow::Example example_;
};

Tensor StringVector(const Strings& values) {
  return Tensor::Vector<std::string>(absl::MakeConstSpan(values));
}

struct Features {
  std::vector<SparseFeature> sparse = {};
  std::vector<DenseFeature> dense = {};
  Strings names = {};
};

OpCall Call(const Strings& examples, const Features& features) {
  std::vector<OpInput> sparse_keys, dense_keys, defaults;
  std::vector<DType> sparse_types, dense_types;
  std::vector<PartialShape> shapes;
  for (const SparseFeature& f : features.sparse) {
    sparse_keys.push_back(Tensor::Scalar<std::string>(f.key));
    sparse_types.push_back(f.dtype);
  }
  for (const DenseFeature& f : features.dense) {
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
      RunOp(Call({Example().Floats("x", {1, 2}).Ints("n", {7}).Bytes("s", {"a"}),
                  Example().Floats("x", {3, 4}).Ints("n", {-8}).Bytes("other", {"b"}),
                  Example().Floats("x", {5, 6}).Ints("n", {9}).Unset("s")},
                 {.dense = {{"x", {1, 2}, kRequiredFloat},
                            {"n", PartialShape::Scalar(), TensorOf<int64_t>({}, {0})},
                            {"s", {1}, TensorOf<std::string>({1}, {"none"})}}})));
  ExpectTensorEqual(got[0], TensorOf<float>({3, 1, 2}, {1, 2, 3, 4, 5, 6}));
  ExpectTensorEqual(got[1], TensorOf<int64_t>({3}, {7, -8, 9}));
  ExpectTensorEqual(got[2], TensorOf<std::string>({3, 1}, {"a", "none", "none"}));
}

TEST(ParseExample, VariableDenseFeaturesArePadded) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       RunOp(Call({Example().Ints("v", {1, 2, 3, 4}).Bytes("w", {"a"}),
                                   Example().Ints("v", {5, 6}), Example()},
                                  {.dense = {{"v", {-1, 2}, TensorOf<int64_t>({}, {-1})},
                                             {"w", {-1}, TensorOf<std::string>({1}, {"pad"})}}})));
  ExpectTensorEqual(got[0],
                    TensorOf<int64_t>({3, 2, 2}, {1, 2, 3, 4, 5, 6, -1, -1, -1, -1, -1, -1}));
  ExpectTensorEqual(got[1], TensorOf<std::string>({3, 1}, {"a", "pad", "pad"}));
}

TEST(ParseExample, SparseFeatures) {
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Call({Example().Floats("f", {1, 2}), Example().Bytes("b", {"x"}),
                  Example().Floats("f", {3}).Bytes("b", {"y", "z"})},
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
      std::string(Example().Floats("x", {1})) + std::string(Example().Floats("x", {2}));
  const std::string unset_last =
      std::string(Example().Floats("x", {1})) + std::string(Example().Unset("x"));
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
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none, RunOp(Call({Example()}, {})));
  EXPECT_TRUE(none.empty());
}

TEST(ParseExample, ManyExamplesOnSeveralThreads) {
  Strings examples;
  for (int64_t i = 0; i < 5000; ++i) {
    Example e;
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
      {{Example().Floats("x", {1}), Example()},
       {.dense = {{"x", {1}, kRequiredFloat}}, .names = {"first", "second"}},
       "Name: second, Feature: x (data type: float) is required but could not be found."},
      {{Example()},
       {.dense = {{"x", {1}, kRequiredFloat}}},
       "Name: <unknown>, Feature: x (data type: float) is required but could not be found."},
      {{Example().Unset("x")}, {.dense = {{"x", {1}, kRequiredFloat}}}, "is required"},
      {{Example().Ints("x", {1})},
       {.dense = {{"x", {1}, zero}}, .names = {"e"}},
       "Name: e, Key: x, Index: 0.  Data types don't match. Data type: int64 but expected type: "
       "float"},
      {{Example(), Example().Bytes("x", {"1"})},
       {.sparse = {{"x", DT_INT64}}},
       "Name: <unknown>, Key: x, Index: 1.  Data types don't match. Data type: string but "
       "expected type: int64"},
      {{Example().Floats("x", {1, 2})},
       {.dense = {{"x", {1}, zero}}},
       "Key: x, Index: 0.  Number of float values != expected.  values size: 2 but output shape: "
       "[1]"},
      {{Example().Floats("x", {})}, {.dense = {{"x", {1}, zero}}}, "values size: 0"},
      {{Example().Floats("x", {1, 2, 3})},
       {.dense = {{"x", {-1, 2}, pad}}},
       "values size: 3 but output shape: [?,2]"},
      {{Example(), "garbage"},
       {.dense = {{"x", {1}, zero}}},
       "Name: <unknown>, Index: 1.  Could not parse example input"},
      {{Example()},
       {.names = {"a", "b"}},
       "names must be empty or have one element for each of "
       "the 1 examples, got 2"},
      {{Example()},
       {.sparse = {{"x", DT_FLOAT}}, .dense = {{"x", {1}, zero}}},
       "keys must differ, got 'x' for two features"},
      {{Example()},
       {.dense = {{"x", {2}, zero}}},
       "dense_defaults[0] must have shape [2] of the feature or no elements, got [1]"},
      {{Example()},
       {.dense = {{"x", {-1}, kRequiredFloat}}},
       "dense_defaults[0] of a feature of variable length must have 1 element"},
      {{Example()},
       {.dense = {{"x", {2, -1}, zero}}},
       "dense_shapes[0] may leave only its first dimension open, got [2,?]"},
      {{Example()},
       {.dense = {{"x", {-1, 0}, pad}}},
       "dense_shapes[0] with an open first dimension must have other dimensions > 0"},
      {{Example()},
       {.dense = {{"x", PartialShape::Unknown(), zero}}},
       "dense_shapes[0] must have a known rank"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    ExpectOpError(Call(c.examples, c.features), absl::StatusCode::kInvalidArgument, c.text);
  }
}

TEST(ParseExample, TheFirstBadExampleIsReportedWhateverTheThreads) {
  Strings examples(2000, Example().Floats("x", {1}));
  examples[700] = Example().Ints("x", {1});
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
  Tensor examples =
      StringVector({Example().Ints("a", {5}).Floats("x", {1, 2, 3, 4, 5, 6}).Ints("v", {7, 8})});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(scope, {{serialized, examples}},
                                     {parsed.sparse[0].values, parsed.dense[0], parsed.dense[1]}));
  ExpectTensorEqual(got[0], TensorOf<int64_t>({1}, {5}));
  ExpectTensorEqual(got[1], TensorOf<float>({1, 2, 3}, {1, 2, 3, 4, 5, 6}));
  ExpectTensorEqual(got[2], TensorOf<int64_t>({1, 1, 2}, {7, 8}));
}

}  // namespace
}  // namespace millrace

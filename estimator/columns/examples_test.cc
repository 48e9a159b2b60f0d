// SPDX-License-Identifier: Apache-2.0
// The same people as dense columns of a table and as serialized tensorflow.Examples: what columns
// make of both is the same, so a model may be trained on the one and serve the other.
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/parse_features.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/parse_spec.h"
#include "estimator/columns/testing/column_values.h"
#include "estimator/model_tensors.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/example.pb.h"

namespace millrace {
namespace {

struct Person {
  float age;
  std::string education, occupation, gender;  // "": not known
  int64_t children;                           // -1: not known
};
const std::vector<Person>& People() {
  static const auto* const people =
      new std::vector<Person>{{25, " 11th", " Machine-op-inspct", " Male", 2},
                              {38, " HS-grad", "", " Female", -1},
                              {51, "", " Sales", "", 0},
                              {19, " Masters", " Prof-specialty", " Other", 3}};
  return *people;
}

std::vector<DenseColumn> Columns() {
  const auto sum = [](const CategoricalColumn& column) {
    return EmbeddingColumn(column, 1, {.combiner = Combiner::kSum, .initializer = RowNumbers()});
  };
  const BucketizedColumn ages(NumericColumn("age"), {18, 25, 30, 35, 40, 45, 50});
  const auto gender = CategoricalColumnWithVocabularyList("gender", {" Female", " Male"});
  return {NumericColumn("age"), ages, IndicatorColumn(gender),
          sum(CategoricalColumnWithHashBucket("education", 1000)),
          IndicatorColumn(CategoricalColumnWithIdentity("children", 4)),
          // Text keys that do not stand last: TensorFlow would hash them otherwise.
          sum(CrossedColumn({"education", ages}, 100'000)),
          sum(CrossedColumn({"occupation", gender, "education"}, 100'000))};
}

Features DenseFeatures(const Scope& scope) {
  std::vector<float> age;
  std::vector<std::string> education, occupation, gender;
  std::vector<int64_t> children;
  for (const Person& person : People()) {
    age.push_back(person.age);
    education.push_back(person.education);
    occupation.push_back(person.occupation);
    gender.push_back(person.gender);
    children.push_back(person.children);
  }
  return {{"age", ConstVector<float>(scope, age)},
          {"education", ConstVector<std::string>(scope, education)},
          {"occupation", ConstVector<std::string>(scope, occupation)},
          {"gender", ConstVector<std::string>(scope, gender)},
          {"children", ConstVector<int64_t>(scope, children)}};
}

std::vector<std::string> SerializedExamples() {
  std::vector<std::string> serialized;
  for (const Person& person : People()) {
    tensorflow::Example example;
    auto& features = *example.mutable_features()->mutable_feature();
    features["age"].mutable_float_list()->add_value(person.age);
    const auto text = [&](const char* key, const std::string& value) {
      if (!value.empty()) features[key].mutable_bytes_list()->add_value(value);
    };
    text("education", person.education);
    text("occupation", person.occupation);
    text("gender", person.gender);
    if (person.children >= 0) features["children"].mutable_int64_list()->add_value(person.children);
    serialized.push_back(example.SerializeAsString());
  }
  return serialized;
}

TEST(Examples, GiveWhatDenseFeaturesGive) {
  const std::vector<DenseColumn> columns = Columns();
  Scope dense;
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> want,
                       RunColumns(dense, {InputLayer(dense, DenseFeatures(dense), columns)}));

  ASSERT_OK_AND_ASSIGN(const FeatureSpecs specs,
                       MakeParseExampleSpec({columns.begin(), columns.end()}));
  Scope parsed;
  const Output serialized = ConstVector<std::string>(parsed, SerializedExamples());
  const ParsedFeatures features = ParseExample(parsed, serialized, specs);
  const Output input = InputLayer(parsed, Features(features.dense, features.sparse), columns);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, RunColumns(parsed, {input}));
  ExpectTensorEqual(got[0], want[0]);
  EXPECT_EQ(want[0].shape(), (Shape{4, 1 + 8 + 1 + 2 + 4 + 1 + 1}));
}

}  // namespace
}  // namespace millrace

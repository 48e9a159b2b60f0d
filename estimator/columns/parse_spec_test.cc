// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/parse_spec.h"

#include <string>
#include <variant>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: columns: columns have TensorFlow's names; bad arguments are named, with the line that
//   made the column
// covers: columns: the parse spec has what a parser of Examples must read

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// "fixed float[2]", "any string".
std::string TextOf(const FeatureSpecs& specs, const std::string& key) {
  const auto found = specs.find(key);
  if (found == specs.end()) return "none";
  if (const auto* any = std::get_if<VarLenFeature>(&found->second)) {
    return "any " + DTypeName(any->dtype);
  }
  const auto& fixed = std::get<FixedLenFeature>(found->second);
  return "fixed " + DTypeName(fixed.dtype) + fixed.shape.ToString();
}

TEST(ParseSpec, HasWhatEachKindOfColumnReads) {
  const auto words = CategoricalColumnWithHashBucket("words", 10);
  const NumericColumn age("age", {.shape = {2}, .default_value = {7}});
  ASSERT_OK_AND_ASSIGN(
      const FeatureSpecs specs,
      MakeParseExampleSpec(
          {age, BucketizedColumn(age, {18}), EmbeddingColumn(words, 2), words,
           NumericColumn("count", {.dtype = DT_INT32}), NumericColumn("d", {.dtype = DT_DOUBLE}),
           CategoricalColumnWithHashBucket("number", 10, DT_INT32),
           IndicatorColumn(CategoricalColumnWithVocabularyList("level", {3, 5})),
           CategoricalColumnWithIdentity("id", 4),
           WeightedCategoricalColumn(CategoricalColumnWithIdentity("wid", 4), "weights"),
           CrossedColumn({"text", BucketizedColumn(NumericColumn("cents"), {1}),
                          CrossedColumn({"inner", "words"}, 5)},
                         10),
           SequenceNumericColumn("steps"),
           IndicatorColumn(SequenceCategoricalColumnWithIdentity("clicks", 4))}));
  const std::pair<const char*, const char*> want[] = {
      {"age", "fixed float[2]"}, {"words", "any string"},     {"count", "fixed int64[1]"},
      {"d", "fixed float[1]"},   {"number", "any int64"},     {"level", "any int64"},
      {"id", "any int64"},       {"wid", "any int64"},        {"weights", "any float"},
      {"text", "any string"},    {"cents", "fixed float[1]"}, {"inner", "any string"},
      {"steps", "any float"},    {"clicks", "any int64"}};
  for (const auto& [key, text] : want) EXPECT_EQ(TextOf(specs, key), text) << key;
  EXPECT_EQ(specs.size(), std::size(want));
  ExpectTensorEqual(*std::get<FixedLenFeature>(specs.at("age")).default_value,
                    Tensor::Of({7.0f, 7.0f}));
  EXPECT_FALSE(std::get<FixedLenFeature>(specs.at("count")).default_value);
}

TEST(ParseSpec, OneFeatureInTwoWaysIsRefused) {
  EXPECT_STATUS(
      MakeParseExampleSpec({NumericColumn("x"), CategoricalColumnWithHashBucket("x", 3)}).status(),
      kInvalid,
      "MakeParseExampleSpec: columns must want feature 'x' in one way, got a fixed number of "
      "values float[1] and any number of values string of column 'x'; column made at ");
  EXPECT_STATUS(MakeParseExampleSpec({CategoricalColumnWithHashBucket("x", 0)}).status(), kInvalid,
                "num_buckets must be >= 1");
  EXPECT_STATUS(MakeParseExampleSpec(
                    {WeightedCategoricalColumn(CategoricalColumnWithHashBucket("x", 3), "x")})
                    .status(),
                kInvalid, "must want feature 'x' in one way");
}

TEST(ParseSpec, ClassifiersAndRegressorsHaveLabelsAndWeights) {
  const std::vector<FeatureColumn> columns = {NumericColumn("x")};
  ASSERT_OK_AND_ASSIGN(const FeatureSpecs classifier,
                       ClassifierParseExampleSpec(columns, {.key = "y"}));
  EXPECT_EQ(TextOf(classifier, "y"), "fixed int64[1]");
  ASSERT_OK_AND_ASSIGN(
      const FeatureSpecs regressor,
      RegressorParseExampleSpec(columns, {.key = "y",
                                          .default_value = Tensor::Of({1.0f, 2.0f}),
                                          .dimension = 2,
                                          .weight_column = NumericColumn("w")}));
  EXPECT_EQ(TextOf(regressor, "y"), "fixed float[2]");
  EXPECT_EQ(TextOf(regressor, "w"), "fixed float[1]");

  const struct {
    StatusOr<FeatureSpecs> result;
    const char* message;
  } cases[] = {
      {ClassifierParseExampleSpec(columns, {.key = "x"}),
       "the label must be no feature of the model, got 'x'"},
      {ClassifierParseExampleSpec(columns, {.key = "y", .dtype = DT_BOOL}),
       "dtype must be int64, string or float, got bool"},
      {ClassifierParseExampleSpec(columns, {.key = "y", .dimension = 2}),
       "dimension must be 1, got 2"},
      {RegressorParseExampleSpec(columns, {.key = "y", .dtype = DT_STRING}),
       "dtype must be float or int64, got string"},
      {RegressorParseExampleSpec(columns, {.key = "y", .dimension = 0}),
       "dimension must be >= 1, got 0"},
      {RegressorParseExampleSpec(columns, {.key = "y", .default_value = Tensor::Scalar(1)}),
       "default_value must be float of 1 elements, got int32[]"},
      {RegressorParseExampleSpec(columns, {.key = "y", .weight_column = NumericColumn("y")}),
       "the weight_column must be no feature of the model and not the label, got 'y'"},
  };
  for (const auto& c : cases) EXPECT_STATUS(c.result.status(), kInvalid, c.message);
}

}  // namespace
}  // namespace millrace

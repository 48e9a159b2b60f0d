// SPDX-License-Identifier: Apache-2.0
#include "estimator/columns/feature_column.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "estimator/columns/column_spec.h"
#include "estimator/columns/vocabulary_size.h"
#include "gtest/gtest.h"

// covers: columns: columns have TensorFlow's names; bad arguments are named, with the line that
//   made the column

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::string FileWith(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(FeatureColumn, IsNamedAfterItsFeatures) {
  const NumericColumn age("age");
  const BucketizedColumn ages(age, {18, 25});
  const auto occupation = CategoricalColumnWithHashBucket("occupation", 100);
  const auto gender = CategoricalColumnWithVocabularyList("gender", {"Female", "Male"});
  EXPECT_EQ(age.name(), "age");
  EXPECT_EQ(ages.name(), "age_bucketized");
  EXPECT_EQ(occupation.name(), "occupation");
  EXPECT_EQ(IndicatorColumn(gender).name(), "gender_indicator");
  EXPECT_EQ(EmbeddingColumn(occupation, 8).name(), "occupation_embedding");
  EXPECT_EQ(WeightedCategoricalColumn(gender, "w").name(), "gender_weighted_by_w");
  EXPECT_EQ(CrossedColumn({"race", ages, "occupation"}, 1000).name(),
            "age_bucketized_X_occupation_X_race");
  EXPECT_EQ(FeatureColumn().name(), "");
}

TEST(FeatureColumn, SharedEmbeddingsHaveOneTableAndNamesOfTheirOwn) {
  const auto watched = CategoricalColumnWithIdentity("watched", 10);
  const auto liked = CategoricalColumnWithIdentity("liked", 10);
  const std::vector<DenseColumn> shared =
      SharedEmbeddingColumns({watched, WeightedCategoricalColumn(liked, "w")}, 4);
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(shared[0].name(), "watched_shared_embedding");
  EXPECT_EQ(shared[1].name(), "liked_weighted_by_w_shared_embedding");
  for (const DenseColumn& column : shared) {
    EXPECT_OK(column.status());
    EXPECT_EQ(column.spec()->As<EmbeddingSpec>()->shared_name,
              "liked_weighted_by_w_watched_shared_embedding");
  }
}

TEST(FeatureColumn, CrossesAreFlatInTheDeclaredOrder) {
  const auto inner = CrossedColumn({"b", "a"}, 10);
  const BucketizedColumn ages(NumericColumn("age"), {18});
  const auto cross = CrossedColumn({ages, inner, "c"}, 100);
  const auto& leaves = cross.spec()->As<CrossedSpec>()->leaves;
  ASSERT_EQ(leaves.size(), 4u);
  EXPECT_EQ(leaves[0].column->name, "age_bucketized");
  EXPECT_EQ(leaves[1].key, "b");
  EXPECT_EQ(leaves[2].key, "a");
  EXPECT_EQ(leaves[3].key, "c");
  EXPECT_EQ(cross.spec()->As<CrossedSpec>()->hash_key, 0xDECAFCAFFEu);
  EXPECT_EQ(cross.name(), "a_X_age_bucketized_X_b_X_c");
}

TEST(FeatureColumn, KnowsHowManyIdsItHas) {
  const BucketizedColumn buckets(NumericColumn("x", {.shape = {3}}), {0, 1});
  EXPECT_EQ(NumIds(*buckets.spec()), 9);
  EXPECT_EQ(NumIds(*CategoricalColumnWithHashBucket("x", 7).spec()), 7);
  EXPECT_EQ(
      NumIds(*CategoricalColumnWithVocabularyList("x", {"a", "b"}, {.num_oov_buckets = 3}).spec()),
      5);
  EXPECT_EQ(NumIds(*CategoricalColumnWithVocabularyList("x", {0, 7, 9}).spec()), 3);
  EXPECT_EQ(NumIds(*WeightedCategoricalColumn(CategoricalColumnWithIdentity("x", 6), "w").spec()),
            6);
  EXPECT_EQ(NumIds(*CrossedColumn({"a", "b"}, 11).spec()), 11);
}

TEST(FeatureColumn, VocabularyFilesAreCountedUnlessASizeIsGiven) {
  const std::string file = FileWith("words.txt", "a\nb\nc\n");
  EXPECT_EQ(NumIds(*CategoricalColumnWithVocabularyFile("x", file).spec()), 3);
  EXPECT_EQ(NumIds(*CategoricalColumnWithVocabularyFile("x", file, {.num_oov_buckets = 2}).spec()),
            5);
  EXPECT_EQ(NumIds(*CategoricalColumnWithVocabularyFile("x", file, {.vocabulary_size = 2}).spec()),
            2);
  // The size that is said is believed until the table is filled.
  EXPECT_OK(CategoricalColumnWithVocabularyFile("x", "/none", {.vocabulary_size = 2}).status());
  EXPECT_STATUS(CategoricalColumnWithVocabularyFile("x", "/none").status(),
                absl::StatusCode::kNotFound, "CategoricalColumnWithVocabularyFile 'x': ");
  EXPECT_STATUS(CategoricalColumnWithVocabularyFile("x", FileWith("empty.txt", "")).status(),
                kInvalid, "vocabulary_file must have one or more lines, got none in '");
}

TEST(VocabularySize, CountsALastLineWithoutNewline) {
  EXPECT_EQ(*CountVocabularyLines(FileWith("1.txt", "a\nb")), 2);
  EXPECT_EQ(*CountVocabularyLines(FileWith("2.txt", "a\nb\n")), 2);
  EXPECT_EQ(*CountVocabularyLines(FileWith("3.txt", "\n\n")), 2);
  EXPECT_EQ(*CountVocabularyLines(FileWith("4.txt", "")), 0);
  // More than one piece.
  std::string large;
  for (int i = 0; i < 50'000; ++i) large += "word\n";
  EXPECT_EQ(*CountVocabularyLines(FileWith("5.txt", large + "last")), 50'001);
}

TEST(FeatureColumn, BadArgumentsAreNamed) {
  const NumericColumn age("age"), pair("pair", {.shape = {2, 2}});
  const auto hashed = CategoricalColumnWithHashBucket("h", 10);
  const auto ids = CategoricalColumnWithIdentity("i", 10);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    FeatureColumn column;
    std::string message;
  } cases[] = {
      {FeatureColumn(), "FeatureColumn: the column must be one, got none"},
      {NumericColumn("x", {.shape = {0}}),
       "NumericColumn 'x': shape must have dimensions >= 1, got [0]"},
      {NumericColumn("x", {.dtype = DT_STRING}), "dtype must be a number, got string"},
      {NumericColumn("x", {.shape = {3}, .default_value = {1, 2}}),
       "default_value must have 1 number or those of the shape, 3, got 2"},
      {NumericColumn("x", {.default_value = {0.5}, .dtype = DT_INT64}),
       "default_value must be of integers, as dtype int64 is, got 0.5"},
      {BucketizedColumn(pair, {1}),
       "BucketizedColumn 'pair_bucketized': the numeric column must have a shape of rank 1, got "
       "[2,2]"},
      {BucketizedColumn(age, {}), "boundaries must be one or more, got none"},
      {BucketizedColumn(age, {2, 1}), "boundaries must increase, got 2 before 1"},
      {BucketizedColumn(age, {1, 1}), "boundaries must increase, got 1 before 1"},
      {BucketizedColumn(age, {nan}), "boundaries must be numbers, got nan"},
      {BucketizedColumn(NumericColumn("x", {.shape = {int64_t{1} << 30}}), {1}),
       "elements and buckets must make fewer than 2^31 ids, got 1073741824 and 2"},
      {BucketizedColumn(NumericColumn(), {1}), "the column must be one, got none"},
      {CategoricalColumnWithHashBucket("x", 0), "num_buckets must be >= 1, got 0"},
      {CategoricalColumnWithHashBucket("x", 3, DT_FLOAT),
       "dtype must be string or an integer, got float"},
      {CategoricalColumnWithVocabularyList("x", std::vector<std::string>()),
       "vocabulary must have one or more words, got none"},
      {CategoricalColumnWithVocabularyList("x", {"a", "b", "a"}),
       "vocabulary must have each word once, got 'a' twice"},
      {CategoricalColumnWithVocabularyList("x", {1, 1}), "got '1' twice"},
      {CategoricalColumnWithVocabularyList("x", {"a"}, {.num_oov_buckets = -1}),
       "num_oov_buckets must be >= 0, got -1"},
      {CategoricalColumnWithVocabularyList("x", {"a"}, {.default_value = 0, .num_oov_buckets = 1}),
       "default_value must not be given together with num_oov_buckets, got 0 and 1"},
      {CategoricalColumnWithVocabularyList("x", {"a"}, {.default_value = 1}),
       "default_value must be -1 or in [0, 1), got 1"},
      {CategoricalColumnWithVocabularyFile("x", ""), "vocabulary_file must be a path, got ''"},
      {CategoricalColumnWithVocabularyFile("x", "f", {.vocabulary_size = 0}),
       "vocabulary_size must be >= 1, got 0"},
      {CategoricalColumnWithVocabularyFile("x", "f", {.vocabulary_size = 1, .dtype = DT_FLOAT}),
       "dtype must be string or int64, got float"},
      {CategoricalColumnWithIdentity("x", 0), "num_buckets must be >= 1, got 0"},
      {CategoricalColumnWithIdentity("x", 3, 3), "default_value must be in [0, 3), got 3"},
      {WeightedCategoricalColumn(ids, "w", DT_STRING), "dtype must be a number, got string"},
      {WeightedCategoricalColumn(WeightedCategoricalColumn(ids, "w"), "v"),
       "the column must not have weights already"},
      {CrossedColumn({"a"}, 10), "CrossedColumn 'a': keys must be two or more, got 1"},
      {CrossedColumn({"a", "b"}, 0), "num_buckets must be >= 1, got 0"},
      {CrossedColumn({"a", ""}, 3), "keys must be features or columns, got ''"},
      {CrossedColumn({"a", hashed}, 3), "give its feature's key"},
      {CrossedColumn({"a", WeightedCategoricalColumn(ids, "w")}, 3),
       "keys must not be columns with weights, got 'i_weighted_by_w'"},
      {EmbeddingColumn(ids, 0), "EmbeddingColumn 'i_embedding': dimension must be >= 1, got 0"},
      {EmbeddingColumn(ids, 2, {.ckpt_to_load_from = "c"}),
       "ckpt_to_load_from and tensor_name_in_ckpt must be given together, got 'c' and ''"},
      {EmbeddingColumn(ids, 2, {.max_norm = 0.0}), "max_norm must be > 0, got 0"},
      {EmbeddingColumn(CategoricalColumnWithHashBucket("x", int64_t{1} << 40), 2),
       "EmbeddingColumn 'x_embedding'"},
      {SharedEmbeddingColumns({}, 2)[0], "columns must be one or more, got none"},
      {SharedEmbeddingColumns({ids, hashed}, 2)[1], "columns must be of one kind"},
      {SharedEmbeddingColumns({ids, CategoricalColumnWithIdentity("j", 11)}, 2)[0],
       "columns must have as many ids, got 10 of 'i' and 11 of 'j'"},
      {SequenceNumericColumn("x", {.shape = {-1}}),
       "SequenceNumericColumn 'x': shape must have dimensions >= 1, got [-1]"},
  };
  for (const auto& c : cases) EXPECT_STATUS(c.column.status(), kInvalid, c.message);
}

TEST(FeatureColumn, TheFirstErrorStaysWithTheLineThatMadeIt) {
  const int line = __LINE__ + 1;
  const auto bad = CategoricalColumnWithHashBucket("x", 0);
  const DenseColumn embedding = EmbeddingColumn(bad, -3);
  EXPECT_EQ(embedding.name(), "x_embedding");
  EXPECT_STATUS(embedding.status(), kInvalid,
                "CategoricalColumnWithHashBucket 'x': num_buckets must be >= 1, got 0; column made "
                "at estimator/columns/feature_column_test.cc:" +
                    std::to_string(line));
  EXPECT_STATUS(CrossedColumn({"y", CrossedColumn({"a"}, 1)}, 3).status(), kInvalid,
                "CrossedColumn 'a': keys must be two or more");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
// The ids that categorical columns give: literals, and TensorFlow's values.
#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/testing/column_values.h"
#include "estimator/model_tensors.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "ops/array/placeholder.h"
#include "ops/sparse/sparse_tensor.h"
#include "proto/meta_graph.pb.h"

// covers: columns: '' and -1 of dense features are missing, nothing is in sparse ones; words
//   outside of a vocabulary; identities out of range
// covers: columns: buckets: closed on the left, ids of their own per element, one-hot depth n + 1,
//   NaN

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Texts = std::vector<std::vector<std::string>>;
using Ids = std::vector<std::vector<int64_t>>;

// The sums of ids of each example, and their numbers.
#define EXPECT_IDS(scope, features, column, ...)                                        \
  do {                                                                                  \
    ASSERT_OK_AND_ASSIGN(const Tensor expect_ids_out, IdSums(scope, features, column)); \
    ExpectTensorEqual(expect_ids_out, Matrix<float>(__VA_ARGS__));                      \
  } while (false)

// --- Hash buckets --------------------------------------------------------------------------------

TEST(HashBuckets, AreFingerprintsModuloTheirNumber) {
  Scope root;
  const Output letters = Const(root, Tensor::Of({"a", "b", "c", "d"}));
  EXPECT_IDS(root, Features({{"x", letters}}), CategoricalColumnWithHashBucket("x", 10),
             {{9, 1}, {2, 1}, {2, 1}, {5, 1}});
}

// covers: columns: hash buckets, crosses: the values of TensorFlow for the census example, with and
//   without spaces, dense and sparse
// covers: article 0-14: the columns of the notebook
TEST(HashBuckets, OfCensusAreTensorFlows) {
  Scope root;
  const Output occupation = Const(
      root,
      Tensor::Of({" Machine-op-inspct", " Adm-clerical", " Exec-managerial", " Handlers-cleaners",
                  " ?", " Prof-specialty", "Machine-op-inspct", "Adm-clerical", "Exec-managerial",
                  "Handlers-cleaners", "?", "Prof-specialty"}));
  EXPECT_IDS(root, Features({{"occupation", occupation}}),
             CategoricalColumnWithHashBucket("occupation", 100),
             {{46, 1},
              {49, 1},
              {4, 1},
              {70, 1},
              {0, 1},
              {42, 1},
              {11, 1},
              {96, 1},
              {0, 1},
              {10, 1},
              {65, 1},
              {79, 1}});
  Scope other;
  const Output country = Const(other, Tensor::Of({" United-States", " Cuba", " Holand-Netherlands",
                                                  "United-States", "Cuba", "Holand-Netherlands"}));
  EXPECT_IDS(other, Features({{"c", country}}), CategoricalColumnWithHashBucket("c", 100),
             {{48, 1}, {38, 1}, {54, 1}, {87, 1}, {99, 1}, {84, 1}});
}

TEST(HashBuckets, IntegersAreHashedAsDecimalText) {
  for (const DType dtype : {DT_INT32, DT_INT64}) {
    Scope root;
    const Output numbers = Cast(root, Const<int32_t>(root, {12, -7}), dtype);
    const Output texts = Const(root, Tensor::Of({"12", "-7"}));
    ASSERT_OK_AND_ASSIGN(const Tensor of_numbers,
                         IdSums(root, Features({{"x", numbers}}),
                                CategoricalColumnWithHashBucket("x", 1000, dtype)));
    Scope other;
    ASSERT_OK_AND_ASSIGN(const Tensor of_texts,
                         IdSums(other, Features({{"x", Const(other, Tensor::Of({"12", "-7"}))}}),
                                CategoricalColumnWithHashBucket("x", 1000)));
    ExpectTensorEqual(of_numbers, of_texts);
  }
}

TEST(HashBuckets, OfADenseFeatureEmptyTextsAreMissing) {
  Scope root;
  const Output x = Const(root, Tensor::Of({{"a", ""}, {"", ""}, {"", "d"}}));
  EXPECT_IDS(root, Features({{"x", x}}), CategoricalColumnWithHashBucket("x", 10),
             {{9, 1}, {0, 0}, {5, 1}});
}

TEST(HashBuckets, OfASparseFeatureEverythingCounts) {
  Scope root;
  const SparseTensor x = SparseConst(root, Texts{{"a", "d"}, {}, {""}, {}});
  // Fingerprint64("") = 11160318154034397263.
  EXPECT_IDS(root, Features({{"x", x}}), CategoricalColumnWithHashBucket("x", 10),
             {{14, 2}, {0, 0}, {3, 1}, {0, 0}});
}

// --- Vocabularies --------------------------------------------------------------------------------

TEST(Vocabularies, GiveThePlaceOfAWordAndNothingForOthers) {
  Scope root;
  const SparseTensor x = SparseConst(root, Texts{{"red", "blue"}, {"pink"}, {"blue", "pink"}, {}});
  EXPECT_IDS(root, Features({{"x", x}}),
             CategoricalColumnWithVocabularyList("x", {"green", "red", "blue"}),
             {{3, 2}, {0, 0}, {2, 1}, {0, 0}});
}

TEST(Vocabularies, OthersMayHaveADefaultOrBuckets) {
  Scope root;
  const Output x = Const(root, Tensor::Of({"red", "pink", "a", "b"}));
  EXPECT_IDS(root, Features({{"x", x}}),
             CategoricalColumnWithVocabularyList("x", {"green", "red"}, {.default_value = 1}),
             {{1, 1}, {1, 1}, {1, 1}, {1, 1}});
  Scope buckets;
  // Fingerprint64 of "a" and "b" end in 9 and 2 (mod 10).
  const Output y = Const(buckets, Tensor::Of({"red", "a", "b"}));
  EXPECT_IDS(buckets, Features({{"x", y}}),
             CategoricalColumnWithVocabularyList("x", {"green", "red"}, {.num_oov_buckets = 10}),
             {{1, 1}, {2 + 9, 1}, {2 + 2, 1}});
}

TEST(Vocabularies, MayBeOfIntegers) {
  for (const DType dtype : {DT_INT32, DT_INT64}) {
    Scope root;
    const Output x = Cast(root, Const(root, Matrix<int32_t>({{100, -1}, {7, 100}, {5, 5}})), dtype);
    EXPECT_IDS(root, Features({{"x", x}}), CategoricalColumnWithVocabularyList("x", {7, 100}),
               {{1, 1}, {1, 2}, {0, 0}});
  }
}

TEST(Vocabularies, MayBeFilesOfWhichTheFirstLinesCount) {
  const std::string path = testing::TempDir() + "/colours.txt";
  std::ofstream(path) << "green\nred\nblue\n";
  Scope root;
  const Output x = Const(root, Tensor::Of({"red", "blue", "pink"}));
  EXPECT_IDS(root, Features({{"x", x}}), CategoricalColumnWithVocabularyFile("x", path),
             {{1, 1}, {2, 1}, {0, 0}});
  Scope two;
  const Output y = Const(two, Tensor::Of({"red", "blue", "a"}));
  EXPECT_IDS(
      two, Features({{"x", y}}),
      CategoricalColumnWithVocabularyFile("x", path, {.vocabulary_size = 2, .num_oov_buckets = 1}),
      {{1, 1}, {2, 1}, {2, 1}});
  // An export takes the file along.
  EXPECT_EQ(root.collections()->count("asset_filepaths"), 1u);
}

TEST(Vocabularies, AFileShorterThanItsSizeIsAnErrorWhenTheTableIsFilled) {
  const std::string path = testing::TempDir() + "/short.txt";
  std::ofstream(path) << "green\n";
  Scope root;
  const Output x = Const(root, Tensor::Of({"green"}));
  EXPECT_STATUS(IdSums(root, Features({{"x", x}}),
                       CategoricalColumnWithVocabularyFile("x", path, {.vocabulary_size = 5})),
                kInvalid, "short.txt");
}

// --- Identity ------------------------------------------------------------------------------------

TEST(IdentityIds, AreTheFeature) {
  Scope root;
  const Output x = Const(root, Matrix<int64_t>({{0, 3}, {-1, 2}, {-1, -1}}));
  EXPECT_IDS(root, Features({{"x", x}}), CategoricalColumnWithIdentity("x", 4),
             {{3, 2}, {2, 1}, {0, 0}});
  Scope narrow;
  EXPECT_IDS(narrow, Features({{"x", Const<int32_t>(narrow, {1, 2})}}),
             CategoricalColumnWithIdentity("x", 4), {{1, 1}, {2, 1}});
}

TEST(IdentityIds, OutOfRangeAreAnErrorOfTheStepOrTheDefault) {
  const struct {
    int64_t id;
    const char* shown;
  } cases[] = {{4, "[4]"}, {-2, "[-2]"}};
  for (const auto& c : cases) {
    Scope root;
    EXPECT_STATUS(
        IdSums(root, Features({{"x", Const<int64_t>(root, {c.id})}}),
               CategoricalColumnWithIdentity("x", 4)),
        kInvalid,
        std::string("CategoricalColumnWithIdentity x: ids must be in [0, 4), got] ") + c.shown);
  }
  // -1 in a sparse feature is no missing value.
  Scope sparse;
  EXPECT_STATUS(IdSums(sparse, Features({{"x", SparseConst(sparse, Ids{{-1}})}}),
                       CategoricalColumnWithIdentity("x", 4)),
                kInvalid, "ids must be in [0, 4)");
  Scope root;
  EXPECT_IDS(root, Features({{"x", SparseConst(root, Ids{{1, 4}, {-1}, {-2, 100}})}}),
             CategoricalColumnWithIdentity("x", 4, 3), {{4, 2}, {3, 1}, {6, 2}});
}

// --- Buckets -------------------------------------------------------------------------------------

TEST(Buckets, AreClosedOnTheLeft) {
  Scope root;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  const Output x = Const<float>(root, {-inf, 17.9f, 18, 24.9f, 25, 100, inf, nan});
  const BucketizedColumn column(NumericColumn("x"), {18, 25});
  EXPECT_IDS(root, Features({{"x", x}}), column,
             {{0, 1}, {0, 1}, {1, 1}, {1, 1}, {2, 1}, {2, 1}, {2, 1}, {2, 1}});
  Scope dense;
  const Output y = Const<float>(dense, {17, 18, 25});
  ASSERT_OK_AND_ASSIGN(const Tensor one_hot, DenseValues(dense, Features({{"x", y}}), column));
  ExpectTensorEqual(one_hot, Matrix<float>({{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}));
}

TEST(Buckets, OfSeveralElementsHaveIdsOfTheirOwn) {
  const BucketizedColumn column(NumericColumn("x", {.shape = {2}}), {0, 10});
  Scope root;
  const Output x = Const(root, Matrix<float>({{-1, 5}, {10, -3}}));
  EXPECT_IDS(root, Features({{"x", x}}), column, {{0 + 3 + 1, 2}, {2 + 3 + 0, 2}});
  Scope dense;
  const Output y = Const(dense, Matrix<float>({{-1, 5}, {10, -3}}));
  ASSERT_OK_AND_ASSIGN(const Tensor one_hot, DenseValues(dense, Features({{"x", y}}), column));
  ExpectTensorEqual(one_hot, Matrix<float>({{1, 0, 0, 0, 1, 0}, {0, 0, 1, 1, 0, 0}}));
}

TEST(Buckets, AreOfTheNormalizedNumber) {
  Scope root;
  const NumericColumn half("x",
                           {.dtype = DT_INT64, .normalizer = [](const Scope& s, const Output& x) {
                              return Div(s, x, Const(s, int64_t{2}));
                            }});
  EXPECT_IDS(root, Features({{"x", Const<int64_t>(root, {3, 4})}}), BucketizedColumn(half, {2}),
             {{0, 1}, {1, 1}});
}

// --- Crosses -------------------------------------------------------------------------------------

// TensorFlow's own test of SparseCross.
TEST(Crosses, AreTensorFlowsHashes) {
  const auto ids = [](uint64_t hash_key, const Tensor& want) {
    Scope root;
    const Features features = {{"a", SparseConst(root, Texts{{"batch1-FC1-F1"}})},
                               {"b", SparseConst(root, Texts{{"batch1-FC2-F1"}})},
                               {"c", SparseConst(root, Texts{{"batch1-FC3-F1"}})}};
    ASSERT_OK_AND_ASSIGN(
        const Tensor got,
        IdSums(root, features, CrossedColumn({"a", "b", "c"}, 100, {.hash_key = hash_key})));
    ExpectTensorEqual(got, want);
  };
  ids(0xDECAFCAFFE, Matrix<float>({{83, 1}}));
  ids(0xDECAFCAFFF, Matrix<float>({{31, 1}}));
}

// The census example's crosses, for the person of its test.json.
struct Person {
  const char *education, *race, *occupation, *country;
};
constexpr Person kAsInTheFile = {" 11th", " Black", " Machine-op-inspct", " United-States"};
constexpr Person kTrimmed = {"11th", "Black", "Machine-op-inspct", "United-States"};

TEST(Crosses, OfCensusAreTensorFlows) {
  const auto race = CategoricalColumnWithVocabularyList(
      "race", {"Amer-Indian-Eskimo", "Asian-Pac-Islander", "Black", "Other", "White"});
  const BucketizedColumn ages(NumericColumn("age"), {18, 25, 30, 35, 40, 45, 50, 55, 60, 65});
  // The vocabulary has no space before a word: looked up as it is in the file, nothing is found.
  const auto race_in_file = CategoricalColumnWithVocabularyList(
      "race", {" Amer-Indian-Eskimo", " Asian-Pac-Islander", " Black", " Other", " White"});
  const struct {
    Person person;
    CategoricalColumn race;
    float education_occupation, country_occupation, age_race_occupation;
  } cases[] = {{kAsInTheFile, race_in_file, 2155, 9933, 606053},
               {kTrimmed, race, 2555, 5365, 844746}};
  for (const auto& c : cases) {
    for (const bool sparse : {false, true}) {
      const auto text = [&](const Scope& s, const char* value) -> DenseOrSparse {
        if (sparse) return SparseConst(s, Texts{{value}});
        return Const(s, Tensor::Of({value}));
      };
      const auto expect = [&](const CategoricalColumn& cross, float want) {
        Scope root;
        const Features features = {{"education", text(root, c.person.education)},
                                   {"race", text(root, c.person.race)},
                                   {"occupation", text(root, c.person.occupation)},
                                   {"native_country", text(root, c.person.country)},
                                   {"age", Const<float>(root, {25})}};
        ASSERT_OK_AND_ASSIGN(const Tensor got, IdSums(root, features, cross));
        ExpectTensorEqual(got, Matrix<float>({{want, 1}}));
      };
      expect(CrossedColumn({"education", "occupation"}, 10'000), c.education_occupation);
      expect(CrossedColumn({"native_country", "occupation"}, 10'000), c.country_occupation);
      expect(CrossedColumn({ages, c.race, "occupation"}, 1'000'000), c.age_race_occupation);
    }
  }
}

// covers: columns: crosses keep the declared order; `tf_compat_cross_order` has TensorFlow's
TEST(Crosses, KeepTheDeclaredOrderHoweverFeaturesCome) {
  const BucketizedColumn ages(NumericColumn("age"), {18});
  const auto values = [&](bool sparse, const CategoricalColumn& cross) -> StatusOr<Tensor> {
    Scope root;
    const Features features = {{"word", sparse ? DenseOrSparse(SparseConst(root, Texts{{"a"}}))
                                               : DenseOrSparse(Const(root, Tensor::Of({"a"})))},
                               {"age", Const<float>(root, {20})}};
    return IdSums(root, features, cross);
  };
  const auto ours = CrossedColumn({"word", ages}, 1'000'000);
  const auto tf = CrossedColumn({"word", ages}, 1'000'000, {.tf_compat_cross_order = true});
  const auto reversed = CrossedColumn({ages, "word"}, 1'000'000);
  ASSERT_OK_AND_ASSIGN(const Tensor dense, values(false, ours));
  ASSERT_OK_AND_ASSIGN(const Tensor sparse, values(true, ours));
  ASSERT_OK_AND_ASSIGN(const Tensor behind, values(false, reversed));
  EXPECT_NE(dense, behind);
  ExpectTensorEqual(dense, sparse);
  // TensorFlow's trap: dense features are hashed last, sparse ones in their place.
  ASSERT_OK_AND_ASSIGN(const Tensor tf_dense, values(false, tf));
  ASSERT_OK_AND_ASSIGN(const Tensor tf_sparse, values(true, tf));
  ExpectTensorEqual(tf_dense, behind);
  ExpectTensorEqual(tf_sparse, dense);
}

TEST(Crosses, HaveAnIdForEachCombinationAndNoneWhereSomethingIsMissing) {
  Scope root;
  const Features features = {{"a", SparseConst(root, Texts{{"x", "y"}, {"x"}, {}, {"x"}})},
                             {"b", SparseConst(root, Texts{{"1", "2", "3"}, {}, {"1"}, {"2"}})}};
  const Output counts =
      InputLayer(root, features,
                 {EmbeddingColumn(CrossedColumn({"a", "b"}, 1000), 1,
                                  {.combiner = Combiner::kSum, .initializer = OnesInitializer()})});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {counts}));
  ExpectTensorEqual(out[0], Matrix<float>({{6}, {0}, {0}, {1}}));

  // Of dense features '' is missing; for TensorFlow it is a value.
  for (const bool tf : {false, true}) {
    Scope dense;
    const Features texts = {{"a", Const(dense, Tensor::Of({"x", ""}))},
                            {"b", Const(dense, Tensor::Of({"1", "2"}))}};
    ASSERT_OK_AND_ASSIGN(
        const Tensor got,
        DenseValues(
            dense, texts,
            EmbeddingColumn(CrossedColumn({"a", "b"}, 1000, {.tf_compat_cross_order = tf}), 1,
                            {.combiner = Combiner::kSum, .initializer = OnesInitializer()})));
    ExpectTensorEqual(got, Matrix<float>({{1}, {tf ? 1.0f : 0.0f}}));
  }
}

// Words outside of a vocabulary are -1 in a cross, and count there.
TEST(Crosses, TakeIntegersAndIdsAsTheyAre) {
  const auto colour = CategoricalColumnWithVocabularyList("colour", {"green", "red"});
  Scope root;
  const Features features = {{"colour", Const(root, Tensor::Of({"red", "pink"}))},
                             {"n", Const<int32_t>(root, {5, 6})}};
  ASSERT_OK_AND_ASSIGN(const Tensor got,
                       IdSums(root, features, CrossedColumn({colour, "n"}, 1000)));
  Scope same;
  const Features ids = {{"c", Const(same, Matrix<int64_t>({{1}, {-1}}))},
                        {"n", Const<int64_t>(same, {5, 6})}};
  const SparseTensor c = {Const(same, Matrix<int64_t>({{0, 0}, {1, 0}})),
                          Const<int64_t>(same, {1, -1}), Const<int64_t>(same, {2, 1})};
  ASSERT_OK_AND_ASSIGN(const Tensor want,
                       IdSums(same, Features({{"c", c}, {"n", Const<int64_t>(same, {5, 6})}}),
                              CrossedColumn({"c", "n"}, 1000)));
  ExpectTensorEqual(got, want);
  EXPECT_EQ(got.flat<float>()[1], 1);
  EXPECT_EQ(got.flat<float>()[3], 1);
}

// --- Features of any shape -----------------------------------------------------------------------

TEST(CategoricalFeatures, MayHaveAnyRankThatIsKnownLater) {
  const auto column = CategoricalColumnWithIdentity("x", 10);
  const std::pair<Tensor, Tensor> cases[] = {
      {Tensor::Of<int64_t>({1, 2}), Matrix<float>({{1, 1}, {2, 1}})},
      {Tensor::Of<int64_t>({{1, 2}, {3, -1}}), Matrix<float>({{3, 2}, {3, 1}})}};
  for (const auto& [value, want] : cases) {
    Scope root;
    const Output x = Placeholder(root, DT_INT64, PartialShape::Unknown());
    const Output y = InputLayer(
        root, Features({{"x", x}}),
        {EmbeddingColumn(column, 1, {.combiner = Combiner::kSum, .initializer = RowNumbers()})});
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {y}, {{x, value}}));
    EXPECT_EQ(out[0].flat<float>()[0], want.flat<float>()[0]);
    EXPECT_EQ(out[0].flat<float>()[1], want.flat<float>()[2]);
  }
  Scope root;
  const Output x = Placeholder(root, DT_INT64, PartialShape::Unknown());
  const Output y = InputLayer(root, Features({{"x", x}}), {IndicatorColumn(column)});
  EXPECT_STATUS(RunColumns(root, {y}, {{x, Tensor::Scalar(int64_t{1})}}), kInvalid, "");
}

TEST(CategoricalFeatures, MayBeEmpty) {
  Scope root;
  const Features features = {{"x", Const(root, *Tensor::Zeros(DT_STRING, Shape{0}))},
                             {"n", Const(root, *Tensor::Zeros(DT_FLOAT, Shape{0, 1}))}};
  const auto words = CategoricalColumnWithHashBucket("x", 10);
  const BucketizedColumn buckets(NumericColumn("n"), {1});
  const Output deep = InputLayer(root, features,
                                 {EmbeddingColumn(words, 3), IndicatorColumn(words), buckets,
                                  EmbeddingColumn(CrossedColumn({"x", buckets}, 10), 2)});
  const Output wide =
      LinearModel(root, features, {words, buckets, CrossedColumn({"x", buckets}, 10)});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunColumns(root, {deep, wide}));
  EXPECT_EQ(out[0].shape(), (Shape{0, 17}));
  EXPECT_EQ(out[1].shape(), (Shape{0, 1}));
}

}  // namespace
}  // namespace millrace

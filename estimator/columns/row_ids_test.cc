// SPDX-License-Identifier: Apache-2.0
//
// Ids that are made of rows give the model that the rows give: values of layers in both lowerings,
// for columns of all kinds, with values that are missing.
#include "estimator/columns/row_ids.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/row_function.h"
#include "data/testing/dataset_testing.h"
#include "estimator/columns/feature_column.h"
#include "estimator/columns/given_ids.h"
#include "estimator/columns/input_layer.h"
#include "estimator/columns/linear_model.h"
#include "estimator/columns/shared_ids.h"
#include "estimator/columns/testing/column_values.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: columns: ids made of rows before the shuffle give the model that the rows give, in both
//   lowerings, with missing and unknown values; seeded orders and states stay; ids of another
//   column of the same name are not taken; an id out of range names its line

namespace millrace {
namespace {

using data::Dataset;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Rows with names: words, integers and numbers, some missing, and a label.
Dataset Rows(int64_t n) {
  std::mt19937 random(7);
  const auto draw = [&](int below) {
    return static_cast<int>(random() % static_cast<unsigned>(below));
  };
  const char* const texts[] = {"", "red", "green", "blue", "pink", "a rather long word of its own"};
  std::vector<std::string> s1, s2, other;
  std::vector<int64_t> i1, in5, label;
  std::vector<int32_t> i2;
  std::vector<float> age;
  std::vector<double> x;
  for (int64_t i = 0; i < n; ++i) {
    s1.emplace_back(texts[draw(6)]);
    s2.emplace_back(texts[draw(6)]);
    other.emplace_back(texts[draw(6)]);
    i1.push_back(draw(7) - 1);
    i2.push_back(draw(9) - 2);
    in5.push_back(draw(6) - 1);
    const int years = draw(70);
    age.push_back(years == 13 ? std::nanf("") : static_cast<float>(years));
    x.push_back(draw(100) / 50.0 - 1);
    label.push_back(i);
  }
  const std::vector<std::string> names = {"s1", "i1", "s2", "i2", "in5", "age", "x", "other", "y"};
  const Dataset rows = Dataset::FromTensorSlices(
      {Tensor::Vector<std::string>(s1), Tensor::Vector<int64_t>(i1),
       Tensor::Vector<std::string>(s2), Tensor::Vector<int32_t>(i2), Tensor::Vector<int64_t>(in5),
       Tensor::Vector<float>(age), Tensor::Vector<double>(x), Tensor::Vector<std::string>(other),
       Tensor::Vector<int64_t>(label)});
  data::ElementSpec spec = rows.spec();
  for (size_t i = 0; i < names.size(); ++i) spec[i].name = names[i];
  // A function of rows, as DecodeCsv is one: what it gives come in blocks.
  class Named : public data::RowFunction {
   public:
    explicit Named(data::ElementSpec spec) : spec_(std::move(spec)) {}
    std::string Name() const override { return "Named"; }
    StatusOr<data::ElementSpec> OutputSpec(const data::ElementSpec&) const override {
      return spec_;
    }
    StatusOr<data::Element> Call(const data::Element& element, Arena*) const override {
      return element;
    }
    Status CallBlock(const data::Block& in, Arena*, data::Block* out, Status*) const override {
      *out = in;
      return absl::OkStatus();
    }

   private:
    const data::ElementSpec spec_;
  };
  return rows.Map(std::make_shared<const Named>(std::move(spec)));
}

// The same rows, one by one.
Dataset OneByOne(const Dataset& rows) {
  return rows.Map([](data::Element row) -> StatusOr<data::Element> { return row; },
                  {.spec = rows.spec()});
}

std::set<std::string> NamesOf(const Dataset& dataset) {
  std::set<std::string> names;
  for (const data::ComponentSpec& component : dataset.spec()) names.insert(component.name);
  return names;
}

// The first `n` rows as features of a graph.
StatusOr<Features> FeaturesOf(const Scope& scope, const Dataset& rows, int64_t n) {
  const Dataset batches = rows.Batch(n);
  MR_ASSIGN_OR_RETURN(const auto iterator, batches.MakeIterator());
  data::Element batch;
  MR_ASSIGN_OR_RETURN(const bool more, iterator->Next(&batch));
  if (!more) return InvalidArgument("there are no rows");
  Features::Map features;
  for (size_t i = 0; i < batch.size(); ++i) {
    features[batches.spec()[i].name] = Const(scope, batch[i]);
  }
  return Features(features);
}

Initializer Different() {
  return [](ScopeAt at, const InitialShape& part, DType dtype) {
    return Cos(at, Mul(at, RowNumbers()(at, part, dtype), Const(at, 0.7f)));
  };
}

CategoricalColumn Colour() {
  return CategoricalColumnWithVocabularyList("s2", {"red", "green", "blue"});
}
BucketizedColumn Ages() { return BucketizedColumn(NumericColumn("age"), {18, 25, 30, 60}); }

std::vector<FeatureColumn> WideColumns() {
  return {CategoricalColumnWithHashBucket("s1", 5),
          Colour(),
          CategoricalColumnWithHashBucket("i2", 7, DT_INT32),
          CategoricalColumnWithVocabularyList("i1", std::vector<int64_t>{3, 5, 0}),
          CategoricalColumnWithIdentity("in5", 5),
          Ages(),
          NumericColumn("x"),
          CrossedColumn({"s1", "s2"}, 50),
          CrossedColumn({Ages(), Colour(), "i1"}, int64_t{1} << 40, {.hash_key = 77})};
}
std::vector<DenseColumn> DeepColumns() {
  const auto hashed = CategoricalColumnWithHashBucket("s1", 5);
  return {NumericColumn("x"),
          NumericColumn("i2"),
          IndicatorColumn(Colour()),
          IndicatorColumn(CategoricalColumnWithIdentity("i2", 4, 1)),
          EmbeddingColumn(hashed, 3, {.initializer = Different()}),
          EmbeddingColumn(CrossedColumn({"i1", "s2"}, 20), 2,
                          {.combiner = Combiner::kSqrtN, .initializer = Different()}),
          IndicatorColumn(
              CategoricalColumnWithVocabularyList("s1", {"red", "pink"}, {.num_oov_buckets = 3})),
          BucketizedColumn(NumericColumn("x"), {-0.5, 0.5})};
}
// Without what no variable can be made for.
std::vector<FeatureColumn> SmallWideColumns() {
  std::vector<FeatureColumn> columns = WideColumns();
  columns.back() = CrossedColumn({Ages(), Colour(), "i1"}, 1000, {.hash_key = 77});
  return columns;
}

enum class How { kPortable, kFused, kShared };

// The values of an input layer and of a linear model.
StatusOr<std::vector<Tensor>> LayersOf(const Dataset& rows, How how,
                                       const std::vector<DenseColumn>& dense,
                                       const std::vector<FeatureColumn>& wide) {
  Scope root;
  MR_ASSIGN_OR_RETURN(const Features features, FeaturesOf(root, rows, 300));
  SharedIds shared;
  if (how == How::kShared) shared = MakeSharedIds(root, features, dense, wide);
  const ColumnLowering lowering =
      how == How::kPortable ? ColumnLowering::kPortable : ColumnLowering::kFused;
  const LinearModelOutput linear = LinearModel(
      root, features, wide,
      {.units = 2, .sparse_combiner = Combiner::kMean, .lowering = lowering, .shared_ids = shared});
  const Output matrix =
      InputLayer(root, features, dense, {.lowering = lowering, .shared_ids = shared});
  MR_RETURN_IF_ERROR(root.status());
  // Weights begin as zeros: other ones tell rows apart.
  std::vector<Operation> sets;
  for (const PartitionedVariable& weights : linear.weights) {
    const Variable& table = weights.parts[0];
    const Output values =
        Different()(root, InitialShape(*root.shape(table.value).ToShape()), DT_FLOAT);
    sets.push_back(AssignVariableOp(root, table.handle, values));
  }
  const Operation set = Group(root, sets);
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  const Operation variables = GlobalVariablesInitializer(root), tables = TablesInitializer(root);
  MR_RETURN_IF_ERROR(root.status());
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {variables, tables}).status());
  MR_RETURN_IF_ERROR(session->Run({}, {}, {set}).status());
  return session->Run({}, {matrix, linear});
}

TEST(GiveIds, GivesTheSameModel) {
  const Dataset rows = Rows(300);
  const std::vector<DenseColumn> dense = DeepColumns();
  const std::vector<FeatureColumn> wide = SmallWideColumns();
  const Dataset given = GiveIds(rows, dense, wide);
  ASSERT_OK(given.status());
  const std::set<std::string> names = NamesOf(given);
  for (const char* gone : {"s1", "s2"}) EXPECT_EQ(names.count(gone), 0u) << gone;
  for (const char* kept : {"i1", "i2", "in5", "age", "x", "other", "y"}) {
    EXPECT_EQ(names.count(kept), 1u) << kept;
  }
  EXPECT_EQ(names.size(), 7u + 12u);
  for (const How how : {How::kPortable, How::kFused, How::kShared}) {
    SCOPED_TRACE(static_cast<int>(how));
    ASSERT_OK_AND_ASSIGN(const auto want, LayersOf(rows, how, dense, wide));
    for (const Dataset& dataset : {given, GiveIds(OneByOne(rows), dense, wide)}) {
      ASSERT_OK_AND_ASSIGN(const auto got, LayersOf(dataset, how, dense, wide));
      ExpectTensorEqual(got[0], want[0]);
      ExpectTensorEqual(got[1], want[1]);
    }
  }
}

TEST(GiveIds, HasRoomForManyIds) {
  const Dataset given = GiveIds(Rows(20), {}, WideColumns());
  int large = 0;
  for (const data::ComponentSpec& component : given.spec()) {
    if (!absl::StartsWith(component.name, "_ids/")) continue;
    const bool is_large = absl::StrContains(component.name, "_X_i1");
    EXPECT_EQ(component.dtype, is_large ? DT_INT64 : DT_INT32) << component.name;
    large += is_large;
  }
  EXPECT_EQ(large, 1);
  data::ExpectKeepsItsSpec(given.Batch(7));
}

// Which elements come when.
TEST(GiveIds, KeepsSeededOrdersAndStates) {
  const data::ShuffleOptions seeds = {.seed = 3, .seed2 = 4};
  const Dataset rows = Rows(90), given = GiveIds(rows, DeepColumns(), SmallWideColumns());
  ASSERT_OK(given.status());
  const auto labels = [&](const Dataset& dataset) {
    const auto spec = dataset.spec();
    size_t at = 0;
    while (spec[at].name != "y") ++at;
    return data::TextOf(dataset.Shuffle(40, seeds).Repeat(2).Batch(16).Map(
        [at](data::Element batch) -> StatusOr<data::Element> { return data::Element{batch[at]}; },
        {.spec = {{DT_INT64, PartialShape::Unknown()}}}));
  };
  EXPECT_EQ(labels(given), labels(rows));
  data::ExpectStatesGoOn(GiveIds(Rows(9), {}, SmallWideColumns()).Shuffle(4, seeds).Batch(2));
  data::ExpectStatesGoOn(GiveIds(Rows(5), DeepColumns(), {}).Repeat(2));
}

TEST(GiveIds, LeavesWhatTheGraphMakes) {
  const Dataset rows = Rows(5);
  const auto hashed = CategoricalColumnWithHashBucket("s1", 5);
  const NumericColumnOptions halved = {.normalizer = [](const Scope& scope, const Output& x) {
    return Mul(scope, x, Const(scope, 0.5f));
  }};
  // Nothing can be made: the dataset is the same.
  for (const FeatureColumn& column : std::vector<FeatureColumn>{
           WeightedCategoricalColumn(hashed, "x"), CategoricalColumnWithHashBucket("none", 5),
           CrossedColumn({"s1", "s2"}, 9, {.tf_compat_cross_order = true}),
           BucketizedColumn(NumericColumn("age", halved), {1}), NumericColumn("x")}) {
    const Dataset given = GiveIds(rows, {}, {column});
    EXPECT_EQ(given.node(), rows.node()) << column.name();
  }
  // A text that one column reads in the graph stays, though others do not.
  EXPECT_EQ(
      NamesOf(GiveIds(rows, {},
                      {hashed, CrossedColumn({"s1", "s2"}, 9, {.tf_compat_cross_order = true})}))
          .count("s1"),
      1u);
  EXPECT_EQ(NamesOf(GiveIds(rows, {}, {hashed})).count("s1"), 0u);
  EXPECT_EQ(NamesOf(GiveIds(rows, {}, {hashed}, {.keep = {"s1"}})).count("s1"), 1u);
}

TEST(GiveIds, GivesIdsOnce) {
  const Dataset rows = Rows(5);
  const auto hashed = CategoricalColumnWithHashBucket("s1", 5);
  const Dataset once = GiveIds(rows, {}, {hashed}, {.keep = {"s1"}});
  EXPECT_EQ(GiveIds(once, {}, {hashed}, {.keep = {"s1"}}).node(), once.node());
  const Dataset more = GiveIds(once, {IndicatorColumn(Colour())}, {hashed});
  EXPECT_EQ(NamesOf(more).size(), more.spec().size());
  EXPECT_EQ(NamesOf(more).count(GivenIdsName(*hashed.spec())), 1u);
}

// What is in a saved shuffle are ids.
TEST(GiveIds, RefusesAStateOfOtherColumns) {
  const auto iterator = [](int64_t buckets) {
    return GiveIds(Rows(9), {}, {CategoricalColumnWithHashBucket("s1", buckets)})
        .Shuffle(4)
        .MakeIterator();
  };
  ASSERT_OK_AND_ASSIGN(const auto five, iterator(5));
  ASSERT_OK_AND_ASSIGN(const std::string state, five->Save());
  ASSERT_OK_AND_ASSIGN(const auto again, iterator(5));
  EXPECT_OK(again->Restore(state));
  ASSERT_OK_AND_ASSIGN(const auto six, iterator(6));
  EXPECT_STATUS(six->Restore(state), kInvalid, "GiveIds(");
}

// Ids are those of the column whose they are, whatever else has its name.
TEST(GiveIds, AreNoOtherColumns) {
  const Dataset rows = Rows(300);
  const auto hashed = CategoricalColumnWithHashBucket("s1", 5);
  const auto other = CategoricalColumnWithHashBucket("s1", 6);
  EXPECT_NE(GivenIdsName(*hashed.spec()), GivenIdsName(*other.spec()));
  for (const How how : {How::kPortable, How::kFused, How::kShared}) {
    EXPECT_STATUS(LayersOf(GiveIds(rows, {}, {hashed}), how, {NumericColumn("x")}, {other}),
                  kInvalid, "feature 's1' must be one of those given, '_ids/s1/");
    // A cross counts words that are none as -1, and what is missing as missing: ids do not tell.
    const std::vector<FeatureColumn> cross = {CrossedColumn({Colour(), "s1"}, 1000), Colour()};
    const Dataset given = GiveIds(rows, {IndicatorColumn(Colour())}, {}, {.keep = {"s2"}});
    ASSERT_OK_AND_ASSIGN(const auto want, LayersOf(rows, how, {IndicatorColumn(Colour())}, cross));
    ASSERT_OK_AND_ASSIGN(const auto got, LayersOf(given, how, {IndicatorColumn(Colour())}, cross));
    ExpectTensorEqual(got[0], want[0]);
    ExpectTensorEqual(got[1], want[1]);
  }
}

TEST(GiveIds, TellsTheLineOfAnIdOutOfRange) {
  const std::string path = JoinPath(::testing::TempDir(), "row_ids.csv");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, "a,1\nb,2\nc,7\nd,-1\ne,-2\nf,0\n"));
  const Dataset rows = Dataset::TextLines({path}).Map(data::DecodeCsv(
      {.defaults = {Tensor::Scalar(""), Tensor::Scalar(int64_t{-1})}, .names = {"word", "kind"}}));
  const Dataset given = GiveIds(rows, {}, {CategoricalColumnWithIdentity("kind", 3)});
  const auto bad = [&](int line, int got) {
    return absl::StrCat("<Text lines '", path, "', line ", line,
                        ": column 'kind': ids must be in [0, 3), got ", got, ">");
  };
  EXPECT_EQ(data::ElementsOf(given), (std::vector<std::string>{"a|1|1", "b|2|2", bad(3, 7),
                                                               "d|-1|-1", bad(5, -2), "f|0|0"}));
  EXPECT_EQ(data::ElementsOf(given.IgnoreErrors().Batch(9)),
            std::vector<std::string>{"[a b d f]|[1 2 -1 0]|[1 2 -1 0]"});
  // In blocks, which end before a bad row. What was gathered before an error is lost, as ever.
  EXPECT_EQ(data::ElementsOf(given.Batch(2)),
            (std::vector<std::string>{"[a b]|[1 2]|[1 2]", bad(3, 7), bad(5, -2), "[f]|[0]|[0]"}));
  EXPECT_EQ(data::ElementsOf(given.Batch(9)),
            (std::vector<std::string>{bad(3, 7), bad(5, -2), "[f]|[0]|[0]"}));
}

TEST(GiveIds, RefusesWhatItDoesNotKnow) {
  const auto hashed = CategoricalColumnWithHashBucket("s1", 5);
  const Dataset unknown =
      Rows(3).Map([](data::Element row) -> StatusOr<data::Element> { return row; });
  EXPECT_STATUS(GiveIds(unknown, {}, {hashed}).status(), kInvalid,
                "GiveIds: the types and names of the rows' components must be known, got none");
  EXPECT_STATUS(GiveIds(Rows(3), {}, {hashed}, {.keep = {"s9"}}).status(), kInvalid, "got 's9'");
  EXPECT_STATUS(GiveIds(Rows(3), {}, {CategoricalColumnWithHashBucket("s1", 0)}).status(), kInvalid,
                "GiveIds");
  EXPECT_EQ(GiveIds(Dataset::Error(InvalidArgument("none")), {}, {hashed}).status().message(),
            "none");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "layers/embedding.h"

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/embedding_sparse.h"
#include "layers/testing/layer_test.h"
#include "ops/ops.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"

// covers: variables: parts of a table on other tasks are looked up in few nodes and add up the rows
//   of an example where that is fewer bytes; values and gradients are those of the whole table
// covers: values: layers give the values of their formulas, TensorFlow's variable names, gradients
//   of finite differences, and train

namespace millrace {
namespace {

// Row i of a table of two columns is [i, 10 i], in whatever parts.
Initializer RowNumbers() {
  return [first = int64_t{0}](ScopeAt at, const Shape& shape, DType dtype) mutable {
    Tensor t = *Tensor::Allocate(DT_DOUBLE, shape);
    size_t k = 0;
    for (double& v : t.mutable_flat<double>()) {
      v = static_cast<double>(first + static_cast<int64_t>(k / 2)) * (k % 2 == 0 ? 1 : 10);
      ++k;
    }
    first += shape.dim(0);
    return Cast(at, Const(at, t), dtype);
  };
}

TEST(Embedding, LooksUpRowsWhateverTheParts) {
  for (const int parts : {0, 1, 3}) {
    Scope scope;
    const Output ids = Placeholder(scope, DT_INT64, {-1, 2});
    const EmbeddingLayer y =
        Embedding(scope, ids, 7, 2,
                  {.initializer = RowNumbers(),
                   .partitioner = parts == 0 ? Partitioner() : FixedSizePartitioner(parts)});
    ASSERT_OK(scope.status());
    EXPECT_EQ(y.table.parts.size(), parts == 3 ? 3u : 1u);
    ASSERT_OK_AND_ASSIGN(
        const std::vector<Tensor> out,
        RunInitialized(scope, {{ids, TensorOf<int64_t>({2, 2}, {6, 0, 3, 3})}}, {y}));
    ExpectTensorEqual(out[0], TensorOf<float>({2, 2, 2}, {6, 60, 0, 0, 3, 30, 3, 30}));
  }
}

TEST(Embedding, NamesVariablesAsTensorFlowsLayers) {
  Scope scope;
  const Output ids = Placeholder(scope, DT_INT32, {-1});
  Embedding(scope, ids, 10, 4);
  Embedding(scope, ids, 10, 4, {.partitioner = FixedSizePartitioner(2)});
  Linear(scope.WithName("wide"), {.ids = ids, .rows = ids}, 5);
  ASSERT_OK(scope.status());
  EXPECT_EQ(
      NamesOf(scope, "trainable_variables"),
      std::vector<std::string>({"embedding/embeddings", "embedding_1/embeddings/part_0",
                                "embedding_1/embeddings/part_1", "wide/weights", "wide/bias"}));
}

// How the ids of each ResourceGather are made, by op.
std::vector<std::string> MakersOfIds(const Scope& scope) {
  std::vector<std::string> ops;
  for (const auto& node : scope.graph()->nodes()) {
    if (node->op() == "ResourceGather") ops.push_back(node->input(1).node->op());
  }
  return ops;
}
int CountOf(const Scope& scope, absl::string_view op) {
  int count = 0;
  for (const auto& node : scope.graph()->nodes()) count += node->op() == op ? 1 : 0;
  return count;
}

// Variables go to `variables`, the rest to `others`.
DeviceFunction Tasks(std::string variables, std::string others) {
  return [variables, others](const tensorflow::NodeDef& node) {
    return node.op() == "VarHandleOp" ? variables : others;
  };
}

TEST(EmbeddingLookup, ATableOnAnotherTaskGivesEachRowOnce) {
  using Ops = std::vector<std::string>;
  const std::string ps = "/job:ps/task:0", worker = "/job:worker/task:1";
  const struct {
    std::string variables, others;
    int parts;
    Ops makers;
    int uniques;
  } cases[] = {
      {ps, worker, 1, {"Unique"}, 1},
      {ps, worker + "/device:CPU:0", 1, {"Unique"}, 1},
      {ps, "", 1, {"Unique"}, 1},
      {ps, "/cpu:0", 1, {"Unique"}, 1},
      {"/job:worker/task:0", worker, 1, {"Unique"}, 1},
      {ps, worker, 2, {"_PartRows", "_PartRows"}, 1},
      // On the task that the ids are on, and where no task is asked for.
      {ps, ps, 1, {"Placeholder"}, 0},
      {"/job:ps/replica:0/task:0", ps, 1, {"Placeholder"}, 0},
      {ps + "/device:CPU:0", ps + "/device:CPU:1", 1, {"Placeholder"}, 0},
      {"", "", 1, {"Placeholder"}, 0},
      {"/cpu:0", "", 1, {"Placeholder"}, 0},
      {"", worker, 1, {"Placeholder"}, 0},
      {ps, ps, 2, {"DynamicPartition", "DynamicPartition"}, 0},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.variables, ", ", c.others, ", ", c.parts));
    Scope root;
    const Scope scope = root.WithDevice(Tasks(c.variables, c.others));
    const Output ids = Placeholder(scope, DT_INT64, {-1});
    Embedding(scope, ids, 7, 2, {.partitioner = FixedSizePartitioner(c.parts)});
    ASSERT_OK(scope.status());
    EXPECT_EQ(MakersOfIds(scope), c.makers);
    EXPECT_EQ(CountOf(scope, "Unique"), c.uniques);
    // Ids that are different already are not made so again.
    Embedding(scope, {.ids = ids, .rows = ids}, 7, 2);
    ASSERT_OK(scope.status());
    EXPECT_EQ(MakersOfIds(scope).back(), "Unique");
    EXPECT_EQ(CountOf(scope, "Unique"), c.uniques + 1);
  }
}

// As it is built for a cluster: here the task that is named is this process.
TEST(EmbeddingLookup, RowsOfAnotherTaskHaveTheShapeOfTheirIds) {
  const Tensor three = TensorOf<float>({2}, {3, 30});
  const struct {
    Tensor ids, rows;
    PartialShape shape;
    std::string known;  // of the rows, before the step; "": nothing
  } cases[] = {
      {Tensor::Scalar<int64_t>(3), three, PartialShape::Scalar(), "[2]"},
      {TensorOf<int64_t>({0}, {}), TensorOf<float>({0, 2}, {}), {-1}, "[?,2]"},
      {TensorOf<int64_t>({4}, {6, 3, 6, 3}),
       TensorOf<float>({4, 2}, {6, 60, 3, 30, 6, 60, 3, 30}),
       {-1},
       "[?,2]"},
      {TensorOf<int64_t>({2, 2}, {6, 0, 6, 6}),
       TensorOf<float>({2, 2, 2}, {6, 60, 0, 0, 6, 60, 6, 60}),
       {-1, 2},
       "[?,2,2]"},
      {TensorOf<int64_t>({1, 3}, {1, 1, 1}), TensorOf<float>({1, 3, 2}, {1, 10, 1, 10, 1, 10}),
       PartialShape::Unknown(), ""},
  };
  for (const int parts : {1, 3}) {
    for (const auto& c : cases) {
      SCOPED_TRACE(absl::StrCat(c.ids.shape().ToString(), ", ", parts));
      Scope root;
      const Scope scope = root.WithDevice(Tasks("/job:localhost/replica:0/task:0", ""));
      const Output ids = Placeholder(scope, DT_INT64, c.shape);
      const EmbeddingLayer y =
          Embedding(scope, ids, 7, 2,
                    {.initializer = RowNumbers(), .partitioner = FixedSizePartitioner(parts)});
      ASSERT_OK(scope.status());
      EXPECT_EQ(CountOf(scope, "Unique"), 1);
      if (!c.known.empty()) {
        EXPECT_EQ(scope.shape(y).ToString(), c.known);
      }
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                           RunInitialized(scope, {{ids, c.ids}}, {y}));
      ExpectTensorEqual(out[0], c.rows);
    }
  }
}

// Of a table whose rows are looked up once: of each row the sum, in the order of its ids.
TEST(EmbeddingLookup, GradientsOfRowsOfAnotherTaskAreAddedUpBeforeTheyLeave) {
  for (const std::string& table : {std::string(), std::string("/job:localhost/task:0")}) {
    SCOPED_TRACE(table);
    Scope root;
    const Scope scope = root.WithDevice(Tasks(table, ""));
    const Output ids = Placeholder(scope, DT_INT64, {-1});
    const Output factors = Placeholder(scope, DT_FLOAT, {-1, 2});
    const EmbeddingLayer rows = Embedding(scope, ids, 7, 2, {.initializer = RowNumbers()});
    const Output y = Mul(scope, rows, factors);
    ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients,
                         AddGradients(scope, {y}, {rows.table.parts[0].handle}));
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0]));
    const auto& slices = std::get<IndexedSlices>(gradients[0]);
    EXPECT_EQ(slices.unique_indices, !table.empty());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                         RunInitialized(scope,
                                        {{ids, TensorOf<int64_t>({3}, {5, 2, 5})},
                                         {factors, TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6})}},
                                        {slices.indices, slices.values}));
    if (table.empty()) {
      ExpectTensorEqual(out[0], TensorOf<int64_t>({3}, {5, 2, 5}));
      ExpectTensorEqual(out[1], TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
    } else {
      ExpectTensorEqual(out[0], TensorOf<int64_t>({2}, {5, 2}));
      ExpectTensorEqual(out[1], TensorOf<float>({2, 2}, {6, 8, 3, 4}));
    }
  }
}

// Each part, too, gets one gradient for each of its rows that were looked up.
TEST(EmbeddingLookup, GradientsOfPartsOnAnotherTaskAreOfDifferentRows) {
  Scope root;
  const Scope scope = root.WithDevice(Tasks("/job:localhost/task:0", ""));
  const Output ids = Placeholder(scope, DT_INT64, {-1});
  const Output factors = Placeholder(scope, DT_FLOAT, {-1, 2});
  const EmbeddingLayer rows = Embedding(
      scope, ids, 7, 2, {.initializer = RowNumbers(), .partitioner = FixedSizePartitioner(2)});
  const Output y = Mul(scope, rows, factors);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Gradient> gradients,
      AddGradients(scope, {y}, {rows.table.parts[0].handle, rows.table.parts[1].handle}));
  std::vector<FetchName> fetches;
  for (const Gradient& gradient : gradients) {
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradient));
    const auto& slices = std::get<IndexedSlices>(gradient);
    EXPECT_TRUE(slices.unique_indices);
    fetches.emplace_back(slices.indices);
    fetches.emplace_back(slices.values);
  }
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> out,
      RunInitialized(scope,
                     {{ids, TensorOf<int64_t>({4}, {5, 2, 5, 4})},
                      {factors, TensorOf<float>({4, 2}, {1, 2, 3, 4, 5, 6, 7, 8})}},
                     fetches));
  // Parts of 4 and 3 rows.
  ExpectTensorEqual(out[0], TensorOf<int64_t>({1}, {2}));
  ExpectTensorEqual(out[1], TensorOf<float>({1, 2}, {3, 4}));
  ExpectTensorEqual(out[2], TensorOf<int64_t>({2}, {1, 0}));
  ExpectTensorEqual(out[3], TensorOf<float>({2, 2}, {6, 8, 7, 8}));
}

// Every strategy, and ids that no part has.
TEST(EmbeddingLookup, PartsOnAnotherTaskGiveWhatLocalOnesGive) {
  for (const PartitionStrategy strategy : {PartitionStrategy::kMod, PartitionStrategy::kDiv}) {
    std::vector<std::vector<Tensor>> results;
    for (const std::string& table : {std::string(), std::string("/job:localhost/task:0")}) {
      Scope root;
      const Scope scope = root.WithDevice(Tasks(table, ""));
      const Output ids = Placeholder(scope, DT_INT32, {-1});
      std::vector<Variable> parts;
      for (const int64_t rows : {3, 2, 2}) {
        parts.push_back(MakeVariable(scope.WithName("t"), *Shape::Make({rows, 2}), DT_FLOAT,
                                     RandomUniformInitializer({.seed = 7 + rows})));
      }
      const Output y = EmbeddingLookup(scope, parts, ids, {.strategy = strategy});
      const Output portable =
          EmbeddingLookup(scope, parts, ids, {.strategy = strategy, .portable = true});
      EXPECT_EQ(CountOf(scope, "_PartRows"), table.empty() ? 0 : 1);
      ASSERT_OK_AND_ASSIGN(
          results.emplace_back(),
          RunInitialized(scope, {{ids, Tensor::Vector<int32_t>({6, 0, 3, 6, 2})}}, {y, portable}));
      ExpectTensorEqual(results.back()[0], results.back()[1]);
      if (table.empty()) continue;
      ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
      for (const int32_t wrong : {-1, 7}) {
        if (wrong == 7 && strategy == PartitionStrategy::kMod) continue;  // row 2 of two, there
        EXPECT_STATUS(session->Run({{ids, Tensor::Vector<int32_t>({0, wrong})}}, {y}),
                      absl::StatusCode::kInvalidArgument,
                      absl::StrCat("ids[1] = ", wrong, " is not in [0, "));
      }
    }
    ExpectTensorEqual(results[0][0], results[1][0]);
  }
}

// Parts of 5,000,000,000 rows, which an int32 id is not divided by.
TEST(EmbeddingLookup, SmallIdsFindTheirRowsInAHugeTable) {
  Scope scope;
  const PartitionedVariable table = MakePartitionedVariable(
      scope.WithName("t"), Shape{10'000'000'000, 1}, DT_FLOAT, 2, ZerosInitializer());
  const Output ids = Placeholder(scope, DT_INT32, {-1});
  ASSERT_TRUE(EmbeddingLookup(scope, table, ids).valid()) << scope.status();
  Node* const rows = scope.graph()->FindNode("embedding_lookup/DynamicPartition");
  ASSERT_NE(rows, nullptr);
  const Output first = Cast(scope, Output(rows, 0), DT_INT64);
  const Output second = Cast(scope, Output(rows, 1), DT_INT64);
  ASSERT_OK(scope.status());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(scope));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      session->Run({{ids, Tensor::Vector<int32_t>({5, 0, 2147483647})}}, {first, second}));
  ExpectTensorEqual(got[0], Tensor::Vector<int64_t>({5, 0, 2147483647}));
  ExpectTensorEqual(got[1], Tensor::Vector<int64_t>({}));
}

// Examples {1, 2, 2}, {} and {4} of the table of row numbers.
TEST(EmbeddingLookupSparse, CombinesTheRowsOfEachExample) {
  const float r3 = std::sqrt(3.0f);
  struct Case {
    Combiner combiner;
    bool weighted;  // 1, 1, 2 and 0.5
    Tensor first, last;
  };
  const float root = std::sqrt(6.0f);
  const Case cases[] = {
      {Combiner::kSum, false, TensorOf<float>({2}, {5, 50}), TensorOf<float>({2}, {4, 40})},
      {Combiner::kMean, false, TensorOf<float>({2}, {5.0f / 3, 50.0f / 3}),
       TensorOf<float>({2}, {4, 40})},
      {Combiner::kSqrtN, false, TensorOf<float>({2}, {5 / r3, 50 / r3}),
       TensorOf<float>({2}, {4, 40})},
      {Combiner::kSum, true, TensorOf<float>({2}, {7, 70}), TensorOf<float>({2}, {2, 20})},
      {Combiner::kMean, true, TensorOf<float>({2}, {1.75f, 17.5f}), TensorOf<float>({2}, {4, 40})},
      {Combiner::kSqrtN, true, TensorOf<float>({2}, {7 / root, 70 / root}),
       TensorOf<float>({2}, {4, 40})},
  };
  for (const Case& c : cases) {
    for (const bool counted : {false, true}) {
      for (const int parts : {1, 2}) {
        Scope scope;
        const Output ids = Placeholder(scope, DT_INT64, {-1});
        const Output rows = Placeholder(scope, DT_INT64, {-1});
        IdLists lists = {.ids = ids, .rows = rows};
        if (c.weighted) lists.weights = Const(scope, TensorOf<float>({4}, {1, 1, 2, 0.5f}));
        // One example more than the last one with ids.
        if (counted) lists.num_rows = Const(scope, int64_t{4});
        const EmbeddingLayer y = Embedding(scope, lists, 6, 2,
                                           {.initializer = RowNumbers(),
                                            .partitioner = FixedSizePartitioner(parts),
                                            .combiner = c.combiner});
        EXPECT_EQ(scope.shape(y).ToString(), counted ? "[4,2]" : "[?,2]");
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                             RunInitialized(scope,
                                            {{ids, TensorOf<int64_t>({4}, {1, 2, 2, 4})},
                                             {rows, TensorOf<int64_t>({4}, {0, 0, 0, 2})}},
                                            {y}));
        ASSERT_EQ(out[0].dim(0), counted ? 4 : 3);
        const Tensor zeros = TensorOf<float>({1, 2}, {0, 0});
        ExpectTensorNear(*out[0].Rows(0, 1).Reshaped(Shape{2}), c.first, 1e-6, 0);
        ExpectTensorEqual(out[0].Rows(1, 2), zeros);
        ExpectTensorNear(*out[0].Rows(2, 3).Reshaped(Shape{2}), c.last, 1e-6, 0);
        if (counted) ExpectTensorEqual(out[0].Rows(3, 4), zeros);
      }
    }
  }
}

TEST(EmbeddingLookupSparse, LooksUpEachIdOnce) {
  Scope scope;
  const Output ids = Placeholder(scope, DT_INT32, {-1});
  Embedding(scope, {.ids = ids, .rows = ids}, 6, 2);
  ASSERT_OK(scope.status());
  EXPECT_EQ(MakersOfIds(scope), std::vector<std::string>({"Unique"}));
}

// Ids of 7 examples, one of them without any.
enum class ListKind { kMany, kRepeated, kOne };
// Many different ids an example; many of few ids; one id an example, also repeated.
IdLists ListsOf(const Scope& scope, ListKind kind, bool counted) {
  std::vector<int64_t> ids, rows;
  for (int64_t example = 0; example < 7; ++example) {
    if (example == 3) continue;
    const int64_t count = kind == ListKind::kOne ? 1 : 9;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t id = example * 31 + i * 17;
      ids.push_back(kind == ListKind::kMany ? id % 23 : id % 2 * 22);
      rows.push_back(example);
    }
  }
  IdLists lists = {.ids = ConstVector<int64_t>(scope, ids),
                   .rows = ConstVector<int64_t>(scope, rows)};
  if (counted) lists.num_rows = Const(scope, int64_t{8});
  return lists;
}

// Of a table in `parts` (0: whole) on another task.
struct OfTable {
  std::vector<Tensor> values;  // the result, and each part's dense gradient
  int part_lists = 0, row_sums = 0, gathers = 0;
};
OfTable Combined(ListKind kind, bool counted, int parts, Combiner combiner) {
  OfTable result;
  Scope root;
  const Scope scope = root.WithDevice(Tasks("/job:localhost/replica:0/task:0", ""));
  int64_t first = 0;
  const Initializer numbers = [&first](ScopeAt at, const Shape& shape, DType dtype) {
    Tensor t = *Tensor::Allocate(DT_DOUBLE, shape);
    for (double& v : t.mutable_flat<double>()) v = std::sin(static_cast<double>(first++));
    return Cast(at, Const(at, t), dtype);
  };
  const EmbeddingLayer y =
      Embedding(scope, ListsOf(scope, kind, counted), 23, 5,
                {.initializer = numbers,
                 .partitioner = parts == 0 ? Partitioner() : FixedSizePartitioner(parts),
                 .combiner = combiner});
  result.part_lists = CountOf(scope, "_PartLists");
  result.row_sums = CountOf(scope, "_RowSums");
  result.gathers = CountOf(scope, "ResourceGather");
  std::vector<Output> handles;
  for (const Variable& part : y.table.parts) handles.push_back(part.handle);
  const auto gradients = AddGradients(scope, {Square(scope, y)}, handles);
  EXPECT_OK(gradients);
  if (!gradients.ok()) return result;
  std::vector<FetchName> fetches = {y};
  for (const Gradient& gradient : *gradients) {
    EXPECT_TRUE(std::holds_alternative<IndexedSlices>(gradient));
    if (const auto* slices = std::get_if<IndexedSlices>(&gradient)) {
      EXPECT_TRUE(slices->unique_indices);
    }
    fetches.emplace_back(DenseGradient(scope, gradient));
  }
  auto values = RunInitialized(scope, {}, fetches);
  EXPECT_OK(values);
  result.values = std::move(values).value_or(std::vector<Tensor>());
  return result;
}

TEST(EmbeddingLookupSparse, PartsOnAnotherTaskGiveTheValuesAndGradientsOfTheWhole) {
  for (const ListKind kind : {ListKind::kMany, ListKind::kRepeated, ListKind::kOne}) {
    for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
      for (const bool counted : {false, true}) {
        const OfTable whole = Combined(kind, counted, 0, combiner);
        ASSERT_EQ(whole.values.size(), 2u);
        EXPECT_EQ(whole.part_lists, 0);
        for (const int parts : {2, 3}) {
          SCOPED_TRACE(absl::StrCat("lists ", kind == ListKind::kMany ? "many" : "few", ", ", parts,
                                    " parts"));
          const OfTable cut = Combined(kind, counted, parts, combiner);
          // One node here, one for each part there.
          EXPECT_EQ(cut.part_lists, 1);
          EXPECT_EQ(cut.row_sums, parts);
          EXPECT_EQ(cut.gathers, 0);
          ASSERT_EQ(cut.values.size(), static_cast<size_t>(parts) + 1);
          if (kind == ListKind::kMany) {
            ExpectTensorNear(cut.values[0], whole.values[0], 1e-6, 1e-6);
          } else {
            // Rows are added up here, in the order of the ids.
            ExpectTensorEqual(cut.values[0], whole.values[0]);
          }
          int64_t row = 0;
          for (size_t i = 1; i < cut.values.size(); ++i) {
            const int64_t rows = cut.values[i].dim(0);
            ExpectTensorNear(cut.values[i], whole.values[1].Rows(row, row + rows), 1e-5, 1e-5);
            row += rows;
          }
          EXPECT_EQ(row, 23);
        }
      }
    }
  }
}

// What leaves the parts: 54 ids of 6 examples in 23 rows are 6 sums of a part at most.
TEST(EmbeddingLookupSparse, PartsGiveNoMoreThanASumForEachExampleOrEachRowOnce) {
  for (const ListKind kind : {ListKind::kMany, ListKind::kRepeated, ListKind::kOne}) {
    Scope root;
    const Scope scope = root.WithDevice(Tasks("/job:localhost/replica:0/task:0", ""));
    const IdLists lists = ListsOf(scope, kind, false);
    // Wide enough for ids to be nothing next to rows.
    Embedding(scope, lists, 23, 64, {.partitioner = FixedSizePartitioner(2)});
    std::vector<FetchName> given = {Unique(scope, lists.ids).y};
    for (const auto& node : scope.graph()->nodes()) {
      if (node->op() == "_RowSums") given.emplace_back(Output(node.get(), 0));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {}, given));
    ASSERT_EQ(out.size(), 3u);
    const int64_t different = out[0].num_elements(), sent = out[1].dim(0) + out[2].dim(0);
    if (kind == ListKind::kMany) {
      EXPECT_EQ(different, 23);
      EXPECT_LE(sent, 12);
    } else {
      EXPECT_EQ(different, 2);
      EXPECT_EQ(sent, 2);
    }
  }
}

TEST(EmbeddingLookupSparse, ListsWithWeightsAreCombinedHere) {
  Scope root;
  const Scope scope = root.WithDevice(Tasks("/job:localhost/replica:0/task:0", ""));
  IdLists lists = ListsOf(scope, ListKind::kMany, false);
  lists.weights = Cast(scope, OnesLike(scope, lists.ids), DT_FLOAT);
  Embedding(scope, lists, 23, 5, {.partitioner = FixedSizePartitioner(2)});
  ASSERT_OK(scope.status());
  EXPECT_EQ(CountOf(scope, "_PartLists"), 0);
  EXPECT_EQ(CountOf(scope, "_PartRows"), 1);
}

// Rows of ids {1, 2, 2, 6}, {} and {4}; the second one has the row of id 0 made 0.
TEST(EmbeddingLookupSparse, SparseTensorsAreCombinedByPartsWhereTheyMayBe) {
  const std::string table_device = "/job:localhost/replica:0/task:0";
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
    std::vector<Tensor> results;
    for (const bool portable : {true, false}) {
      Scope root;
      const Scope scope = root.WithDevice(Tasks(table_device, ""));
      const PartitionedVariable table =
          MakePartitionedVariable(scope.WithName("t"), Shape{7, 2}, DT_FLOAT, 2, RowNumbers());
      const SparseTensor ids = {
          Const(scope, TensorOf<int64_t>({5, 2}, {0, 0, 0, 1, 0, 2, 0, 5, 2, 0})),
          Const<int64_t>(scope, {1, 2, 2, 6, 4}), Const<int64_t>(scope, {3, 6})};
      const Output y = SafeEmbeddingLookupSparse(scope, table, ids, {},
                                                 {.combiner = combiner, .portable = portable});
      EXPECT_EQ(CountOf(scope, "_PartLists"), portable ? 0 : 1);
      EXPECT_EQ(CountOf(scope, "_PartRows"), 0);
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {}, {y}));
      results.push_back(out[0]);
      // What needs the rows themselves.
      SafeEmbeddingLookupSparse(scope, table, ids, {},
                                {.combiner = combiner, .max_norm = 1.0, .portable = portable});
      EXPECT_EQ(CountOf(scope, "_PartRows"), portable ? 0 : 1);
      ASSERT_OK(scope.status());
    }
    EXPECT_EQ(results[0].shape(), (Shape{3, 2}));
    ExpectTensorNear(results[1], results[0], 1e-6, 0);
  }
}

// Two look-ups of one table: what each gives a part is joined next to it.
TEST(EmbeddingLookupSparse, GradientsOfSeveralLookUpsAreJoinedBesideTheirPart) {
  const std::string device = "/job:localhost/replica:0/task:0";
  Scope root;
  // As ReplicaDeviceSetter: what asks for a device gets it.
  const Scope scope = root.WithDevice([device](const tensorflow::NodeDef& node) {
    return node.op() == "VarHandleOp" ? device : node.device();
  });
  const PartitionedVariable table =
      MakePartitionedVariable(scope.WithName("t"), Shape{23, 5}, DT_FLOAT, 2, OnesInitializer());
  std::vector<Output> sums;
  for (const ListKind kind : {ListKind::kMany, ListKind::kOne}) {
    sums.push_back(EmbeddingLookupSparse(scope, table, ListsOf(scope, kind, true), Combiner::kSum));
  }
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Gradient> gradients,
      AddGradients(scope, {AddN(scope, sums)}, {table.parts[0].handle, table.parts[1].handle}));
  std::vector<FetchName> fetches;
  for (const Gradient& gradient : gradients) {
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradient));
    const auto& slices = std::get<IndexedSlices>(gradient);
    EXPECT_EQ(slices.values.node()->op(), "ConcatV2");
    EXPECT_EQ(slices.values.node()->requested_device(), device);
    EXPECT_EQ(slices.indices.node()->requested_device(), device);
    fetches.emplace_back(ReduceSum(scope, slices.values));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {}, fetches));
  // Each of 54 + 6 ids gives its row a gradient of five ones.
  EXPECT_EQ(out[0].scalar<float>() + out[1].scalar<float>(), 5 * (54 + 6));
}

TEST(EmbeddingLookupSparse, GradientsAreSparseAndThoseOfTheFormula) {
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
    Scope scope;
    const Output weights = Placeholder(scope, DT_DOUBLE, {4});
    const EmbeddingLayer y =
        Embedding(scope,
                  {.ids = Const<int32_t>(scope, {1, 2, 2, 4}),
                   .rows = Const<int32_t>(scope, {0, 0, 1, 1}),
                   .num_rows = Const(scope, int32_t{3}),
                   .weights = weights},
                  6, 2, {.dtype = DT_DOUBLE, .initializer = RowNumbers(), .combiner = combiner});
    ExpectLayerGradientsMatch(scope, y, {{weights, TensorOf<double>({4}, {0.7, 1.5, -0.4, 2})}});
    ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients,
                         AddGradients(scope, {y}, {y.table.parts[0].handle}));
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0]));
    const auto& slices = std::get<IndexedSlices>(gradients[0]);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                         RunInitialized(scope, {{weights, TensorOf<double>({4}, {1, 1, 1, 3})}},
                                        {slices.indices, slices.values}));
    EXPECT_TRUE(slices.unique_indices);
    ExpectTensorEqual(out[0], TensorOf<int32_t>({3}, {1, 2, 4}));
    // d sum(y) / d row: weight / divisor, added up over the examples.
    const double first = combiner == Combiner::kSum    ? 1
                         : combiner == Combiner::kMean ? 1 / 2.0
                                                       : 1 / std::sqrt(2.0);
    const double second = combiner == Combiner::kSum    ? 1
                          : combiner == Combiner::kMean ? 1 / 4.0
                                                        : 1 / std::sqrt(10.0);
    ExpectTensorNear(out[1],
                     TensorOf<double>({3, 2}, {first, first, first + second, first + second,
                                               3 * second, 3 * second}),
                     1e-12, 0);
  }
}

TEST(Linear, AddsTheWeightsOfIdsAndTheBias) {
  Scope scope;
  const Output ids = Placeholder(scope, DT_INT64, {-1});
  const Output rows = Placeholder(scope, DT_INT64, {-1});
  const LinearLayer y = Linear(scope, {.ids = ids, .rows = rows}, 4,
                               {.units = 2,
                                .weights_initializer = RowNumbers(),
                                .bias_initializer = ConstantInitializer(0.5),
                                .partitioner = FixedSizePartitioner(2)});
  ASSERT_OK(scope.status());
  EXPECT_EQ(y.weights.parts.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunInitialized(scope,
                                      {{ids, TensorOf<int64_t>({3}, {1, 3, 2})},
                                       {rows, TensorOf<int64_t>({3}, {0, 0, 1})}},
                                      {y}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 2}, {4.5f, 40.5f, 2.5f, 20.5f}));
}

TEST(Embedding, IdsOutsideOfTheTableFailTheStep) {
  for (const int parts : {1, 2}) {
    Scope scope;
    const Output ids = Placeholder(scope, DT_INT64, {-1});
    const Output y = Embedding(scope, ids, 6, 2, {.partitioner = FixedSizePartitioner(parts)});
    for (const int64_t id : {int64_t{-1}, int64_t{6}}) {
      EXPECT_STATUS(RunInitialized(scope, {{ids, TensorOf<int64_t>({1}, {id})}}, {y}),
                    absl::StatusCode::kInvalidArgument, "");
    }
  }
}

TEST(Embedding, BadArgumentsAreErrorsOfTheScope) {
  const auto ints = [](const Scope& s, const char* name = "ids", const PartialShape& shape = {-1}) {
    return Placeholder(s.WithName(name), DT_INT64, shape);
  };
  ExpectBadCalls({
      {[&](const Scope& s) { return Embedding(s, ints(s), 0, 2); },
       "Embedding 'm/embedding': num_ids and dimension must be >= 1, got 0 and 2"},
      {[&](const Scope& s) { return Embedding(s, ints(s), int64_t{1} << 40, 1 << 20); },
       "Embedding 'm/embedding': "},
      {[&](const Scope& s) {
         return Embedding(s, Placeholder(s.WithName("f"), DT_FLOAT, {-1}), 5, 2);
       },
       "Embedding 'm/embedding': ids must be int32 or int64, got float from 'm/f:0'"},
      {[&](const Scope& s) { return Embedding(s, Output(), 5, 2); },
       "ids must be the output of a node, got an invalid Output"},
      {[&](const Scope& s) {
         return Embedding(s, ints(s), 5, 2, {.partitioner = FixedSizePartitioner(0)});
       },
       "Partitioner returned zero partitions for some axes: [0, 1]"},
      {[&](const Scope& s) {
         return Embedding(s, {.ids = ints(s, "ids", {2, 2}), .rows = ints(s)}, 5, 2);
       },
       "ids must have rank 1, got shape [2,2]"},
      {[&](const Scope& s) {
         return Embedding(s, {.ids = ints(s, "ids", {3}), .rows = ints(s, "rows", {2})}, 5, 2);
       },
       "rows must be as long as ids, got shape [2] for [3]"},
      {[&](const Scope& s) {
         return Linear(s, {.ids = ints(s), .rows = ints(s), .num_rows = ints(s, "n", {1})}, 5);
       },
       "Linear 'm/linear': num_rows must have rank 0, got shape [1] of 'm/n:0'"},
      {[&](const Scope& s) {
         return Linear(
             s, {.ids = ints(s), .rows = ints(s), .num_rows = Const(s.WithName("n"), 1.0f)}, 5);
       },
       "num_rows must be int32 or int64, got float from 'm/n:0'"},
      {[&](const Scope& s) {
         return Linear(s, {.ids = ints(s), .rows = ints(s), .weights = ints(s, "w")}, 5);
       },
       "weights must have the table's dtype float, got int64 from 'm/w:0'"},
      {[&](const Scope& s) {
         return Linear(s, {.ids = ints(s), .rows = ints(s)}, 5, {.units = 0});
       },
       "Linear 'm/linear': num_ids and units must be >= 1, got 5 and 0"},
      {[&](const Scope& s) {
         return EmbeddingLookupSparse(s, PartitionedVariable(), {.ids = ints(s), .rows = ints(s)});
       },
       "EmbeddingLookupSparse 'm/embedding_lookup_sparse': the table must be a variable"},
  });
}

}  // namespace
}  // namespace millrace

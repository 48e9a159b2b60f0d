// SPDX-License-Identifier: Apache-2.0
#include "ops/array/dynamic_partition.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(DynamicPartition, DealsRowsOutInTheirOrder) {
  const auto call = [](Tensor data, Tensor partitions, int64_t n) {
    return OpCall("DynamicPartition")
        .Input(std::move(data))
        .Input(std::move(partitions))
        .Attr("num_partitions", n);
  };
  ASSERT_OK_AND_ASSIGN(
      std::vector<Tensor> parts,
      RunOp(call(TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}), Ints({1, 0, 1}), 3)));
  ExpectTensorEqual(parts[0], TensorOf<float>({1, 2}, {3, 4}));
  ExpectTensorEqual(parts[1], TensorOf<float>({2, 2}, {1, 2, 5, 6}));
  ExpectTensorEqual(parts[2], TensorOf<float>({0, 2}, {}));
  ASSERT_OK_AND_ASSIGN(parts, RunOp(call(TensorOf<std::string>({2, 2}, {"a", "b", "c", "d"}),
                                         TensorOf<int32_t>({2, 2}, {0, 1, 1, 0}), 2)));
  ExpectTensorEqual(parts[1], TensorOf<std::string>({2}, {"b", "c"}));
  ExpectOpError(call(Ints({1, 2}), Ints({0, 2}), 2), kInvalid,
                "partitions[1] = 2 is not in [0, 2)");
  ExpectOpError(call(Ints({1, 2}), Ints({0}), 2), kInvalid,
                "the shape of partitions must begin the shape of data [2], got [1]");
  EXPECT_SHAPE("DynamicPartition", {{"num_partitions", int64_t{2}}}, {"[4,?,3]", "[4]"},
               "[?,?,3];[?,?,3]");
}

TEST(DynamicStitch, PutsRowsWhereTheIndicesSay) {
  for (const char* op : {"DynamicStitch", "ParallelDynamicStitch"}) {
    const auto call = [op](std::vector<OpInput> indices, std::vector<OpInput> data) {
      return OpCall(op).Inputs(std::move(indices)).Inputs(std::move(data));
    };
    ExpectTensorEqual(RunOp1(call({Ints({2, 0}), Tensor::Scalar<int32_t>(3)},
                                  {TensorOf<float>({2, 1}, {1, 2}), TensorOf<float>({1}, {3})})),
                      TensorOf<float>({4, 1}, {2, 0, 1, 3}));
    ExpectTensorEqual(RunOp1(call({Ints({0}), Ints({0})}, {Ints({1}), Ints({2})})), Ints({2}));
    ExpectTensorEqual(RunOp1(call({Ints({})}, {TensorOf<float>({0, 3}, {})})),
                      TensorOf<float>({0, 3}, {}));
    ExpectOpError(call({Ints({-1})}, {Ints({1})}), kInvalid, "indices[0][0] must be >= 0, got -1");
    ExpectOpError(call({Ints({0, 1})}, {Ints({1})}), kInvalid,
                  "data[0].shape = [1] does not start with indices[0].shape = [2]");
    ExpectOpError(call({Ints({0}), Ints({1})},
                       {TensorOf<float>({1, 1}, {1}), TensorOf<float>({1, 2}, {1, 2})}),
                  kInvalid, "all data must have the same row shape");
    EXPECT_SHAPE(op, {}, {Ints({0, 4}), "[2,?]"}, "[5,?]");
    EXPECT_SHAPE(op, {}, {"[2]", "[2,3]"}, "[?,3]");
  }
}

TEST(DynamicPartitionGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({3, 2}, {1, -2, 3, 4, 5, -6});
  ExpectGradientsMatch(BuildOutputs([](const Scope& s, const std::vector<Output>& in) {
                         return DynamicPartition(s, in[0], Const<int32_t>(s, {1, 0, 1}), 3);
                       }),
                       {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return DynamicStitch(s, {Const<int32_t>(s, {3, 0, 1}), Const<int32_t>(s, {4, 2, 5})}, in);
      },
      {x, x});
}

// A table of 5 rows in 2 parts; row r is [10 r, 10 r + 1]. Parts have the rows that `strategy`
// says.
struct Table {
  OpTestDevice device;
  Scope scope;
  std::vector<Variable> parts;

  explicit Table(PartitionStrategy strategy) {
    const std::vector<std::vector<int>> rows =
        strategy == PartitionStrategy::kMod ? std::vector<std::vector<int>>{{0, 2, 4}, {1, 3}}
                                            : std::vector<std::vector<int>>{{0, 1, 2}, {3, 4}};
    for (size_t p = 0; p < rows.size(); ++p) {
      std::vector<double> values;
      for (int r : rows[p]) values.insert(values.end(), {10.0 * r, 10.0 * r + 1});
      const Tensor value = *Tensor::FromValues<double>(
          *Shape::Make({static_cast<int64_t>(rows[p].size()), 2}), values);
      const std::string name = absl::StrCat("table", p);
      parts.push_back(MakeVariable(scope.WithName(name), Const(scope, value)));
      handles.push_back(device.VariableHandle(name, value));
    }
  }
  std::vector<Tensor> handles;
};

TEST(EmbeddingLookup, FindsEveryRowUnderBothStrategies) {
  for (const PartitionStrategy strategy : {PartitionStrategy::kMod, PartitionStrategy::kDiv}) {
    Table table(strategy);
    const Output ids = TestInput(table.scope, DT_INT64, {-1, 2});
    const Output rows = EmbeddingLookup(table.scope, table.parts, ids, {.strategy = strategy});
    ASSERT_TRUE(rows.valid()) << table.scope.status();
    EXPECT_EQ(table.scope.shape(rows).ToString(), "[?,2,2]");
    ASSERT_OK_AND_ASSIGN(
        std::vector<Tensor> out,
        EvaluateGraph(table.scope, {{ids, TensorOf<int64_t>({3, 2}, {4, 0, 1, 1, 2, 3})}}, {rows},
                      &table.device));
    ExpectTensorEqual(out[0],
                      TensorOf<double>({3, 2, 2}, {40, 41, 0, 1, 10, 11, 10, 11, 20, 21, 30, 31}));
    ASSERT_OK_AND_ASSIGN(out, EvaluateGraph(table.scope, {{ids, TensorOf<int64_t>({0, 2}, {})}},
                                            {rows}, &table.device));
    ExpectTensorEqual(out[0], TensorOf<double>({0, 2, 2}, {}));
    EXPECT_STATUS(EvaluateGraph(table.scope, {{ids, TensorOf<int64_t>({1, 2}, {0, 5})}}, {rows},
                                &table.device)
                      .status(),
                  kInvalid, "");
  }
}

TEST(EmbeddingLookup, GradientOfEachPartIsSlices) {
  Table table(PartitionStrategy::kMod);
  const Output ids = Const<int32_t>(table.scope, {4, 1});
  const Output rows = EmbeddingLookup(table.scope, table.parts, ids);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Gradient> grads,
      AddGradients(table.scope, {rows}, {table.parts[0].handle, table.parts[1].handle}));
  for (const Gradient& g : grads) EXPECT_TRUE(std::holds_alternative<IndexedSlices>(g));
}

TEST(EmbeddingLookup, GradientMatchesFiniteDifferences) {
  Table table(PartitionStrategy::kDiv);
  GradientCheckOptions options;
  options.device = &table.device;
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        std::vector<Variable> parts(2);
        for (size_t p = 0; p < 2; ++p) {
          parts[p].name = absl::StrCat("p", p);
          parts[p].handle = in[p];
          parts[p].dtype = DT_DOUBLE;
          parts[p].shape = PartialShape({p == 0 ? 3 : 2, 2});
        }
        return EmbeddingLookup(s, parts, Const<int32_t>(s, {4, 0, 4}),
                               {.strategy = PartitionStrategy::kDiv});
      },
      table.handles, options);
}

TEST(EmbeddingLookup, RefusesPartsThatAreNoTable) {
  {
    Scope scope;
    EXPECT_FALSE(EmbeddingLookup(scope, std::vector<Variable>(), Const(scope, 1)).valid());
    EXPECT_STATUS(scope.status(), kInvalid, "the table must have >= 1 part, got 0");
  }
  {
    Scope scope;
    const Variable a = MakeVariable(scope, Const(scope, TensorOf<float>({2, 2}, {1, 2, 3, 4})));
    const Variable b = MakeVariable(scope, Const(scope, TensorOf<float>({2, 1}, {1, 2})));
    EXPECT_FALSE(EmbeddingLookup(scope, {a, b}, Const(scope, 1)).valid());
    EXPECT_STATUS(scope.status(), kInvalid, "all parts must have rows of shape [2]");
  }
  {
    Table table(PartitionStrategy::kMod);
    std::swap(table.parts[0], table.parts[1]);
    EXPECT_FALSE(EmbeddingLookup(table.scope, table.parts, Const(table.scope, 1),
                                 {.strategy = PartitionStrategy::kDiv})
                     .valid());
    EXPECT_STATUS(table.scope.status(), kInvalid, "must have 3 of the 5 rows, got 2");
  }
}

}  // namespace
}  // namespace millrace

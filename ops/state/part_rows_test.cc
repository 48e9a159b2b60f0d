// SPDX-License-Identifier: Apache-2.0
#include "ops/state/part_rows.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/distinct.h"
#include "ops/array/indices.h"
#include "runtime/testing/op_test.h"

// covers: variables: ids are divided among the parts of a table; each part gives its rows once or
//   sums by example, whichever is fewer bytes; gradients are of different rows

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Ints = std::vector<int64_t>;

Tensor Ids(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }
Tensor Numbers(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

OpCall Rows(const Tensor& ids, int64_t n, const Ints& ends) {
  return OpCall("_PartRows").Input(ids).Attr("N", n).Attr("ends", ends);
}
OpCall Lists(const Tensor& ids, const Tensor& examples, const Ints& ends, int64_t row_bytes) {
  return OpCall("_PartLists")
      .Input(ids)
      .Input(examples)
      .Attr("N", static_cast<int64_t>(ends.size()))
      .Attr("ends", ends)
      .Attr("row_bytes", row_bytes);
}
OpCall Sums(OpTestDevice* device, const Tensor& table, const Tensor& rows, const Tensor& sums,
            DType dtype = DT_FLOAT) {
  return OpCall("_RowSums").Input(table).Input(rows).Input(sums).Attr("dtype", dtype).On(device);
}
OpCall Grad(const Tensor& gradient, const Tensor& rows, const Tensor& sums) {
  return OpCall("_RowSumsGrad").Input(gradient).Input(rows).Input(sums);
}

void ExpectOutputs(const OpCall& call, const std::vector<Tensor>& want) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, RunOp(call));
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectTensorEqual(got[i], want[i]);
  }
}

// --- _PartRows -----------------------------------------------------------------------------------

TEST(PartRows, DividesConsecutiveRows) {
  // Of a table of 7 rows: 3, none, 4.
  ExpectOutputs(
      Rows(Ids({6, 0, 2, 3, 0}), 3, {3, 3, 7}),
      {Ids({0, 2, 0}), Ids({}), Ids({3, 0}), Numbers({1, 2, 4}), Numbers({}), Numbers({0, 3})});
  ExpectOutputs(Rows(Numbers({4, 1}), 2, {2, 5}),
                {Numbers({1}), Numbers({2}), Numbers({1}), Numbers({0})});
  ExpectOutputs(Rows(Ids({}), 1, {2}), {Ids({}), Numbers({})});
}

TEST(PartRows, DividesRowsInTurn) {
  ExpectOutputs(Rows(Ids({5, 0, 3, 4}), 2, {}),
                {Ids({0, 2}), Ids({2, 1}), Numbers({1, 3}), Numbers({0, 2})});
}

TEST(PartRows, RefusesIdsWithoutARow) {
  ExpectOpError(Rows(Ids({0, 7}), 2, {3, 7}), kInvalid, "ids[1] = 7 is not in [0, 7)");
  ExpectOpError(Rows(Numbers({-1}), 2, {3, 7}), kInvalid, "ids[0] = -1 is not in [0, 7)");
  ExpectOpError(Rows(Ids({-3}), 2, {}), kInvalid, "ids[0] = -3 is not in [0, ");
  ExpectOpError(Rows(Ids({0}), 2, {3}), kInvalid, "ends must have N = 2 elements, got 1");
  ExpectOpError(Rows(Ids({0}), 2, {3, 2}), kInvalid, "ends must not decrease from 0 on, got 2");
  ExpectOpError(Rows(TensorOf<int64_t>({1, 1}, {0}), 1, {3}), kInvalid, "ids must have rank 1");
}

// Rows that are different stay so in each part; where they are in the list is another matter.
TEST(PartRows, OfDifferentIdsAreDifferent) {
  Scope scope;
  const Output ids = Const<int64_t>(scope, {4, 0, 4});
  const PartRowsOutputs any = PartRows(scope, ids, 2, {3, 5});
  EXPECT_FALSE(IsDistinct(any.rows[0]));
  const PartRowsOutputs different = PartRows(scope, Unique(scope, ids).y, 2, {3, 5});
  EXPECT_TRUE(IsDistinct(different.rows[0]));
  EXPECT_TRUE(IsDistinct(different.rows[1]));
  EXPECT_FALSE(IsDistinct(different.places[0]));
  ASSERT_OK(scope.status());
}

// --- _PartLists ----------------------------------------------------------------------------------

// Examples {0, 1, 2, 3}, {} and {0} of parts of 2 and 3 rows. The second part has two ids of one
// example: it gives their sum. The first one gives its two rows, of which one is picked twice.
TEST(PartLists, GivesSumsWhereExamplesAreFewerThanRows) {
  ExpectOutputs(Lists(Ids({0, 1, 2, 3, 0}), Ids({0, 0, 0, 0, 2}), {2, 5}, 400),
                // Part 0 has two rows and two examples: sums of its three ids would be more bytes.
                {Ids({0, 1}), Ids({0, 1}), Numbers({0, 1}), Numbers({0, 0}), Numbers({0, 1, 2, 0}),
                 Ids({0, 0, 0, 2})});
}

TEST(PartLists, GivesRowsWhereIdsRepeat) {
  // Four examples of one id each, three of them the same; the other part has none.
  ExpectOutputs(Lists(Numbers({1, 1, 0, 1}), Numbers({0, 1, 2, 3}), {2, 4}, 8),
                {Numbers({1, 0}), Numbers({}), Numbers({0, 1}), Numbers({}), Numbers({0, 0, 1, 0}),
                 Numbers({0, 1, 2, 3})});
}

TEST(PartLists, GivesRowsOfASmallTable) {
  // Two ids of one example: 2 * 12 + 2 * 1 bytes for a sum, 2 * 12 + 2 * 2 for rows of a byte.
  ExpectOutputs(Lists(Ids({0, 1}), Ids({5, 5}), {2}, 1),
                {Ids({0, 1}), Numbers({0, 0}), Numbers({0}), Ids({5})});
  // Three ids, two of them the same: 3 * 12 + 2 against 2 * 12 + 4.
  ExpectOutputs(Lists(Ids({0, 1, 0}), Ids({5, 5, 5}), {2}, 1),
                {Ids({0, 1}), Numbers({0, 1}), Numbers({0, 1, 0}), Ids({5, 5, 5})});
}

TEST(PartLists, HasNothingForNoIds) {
  ExpectOutputs(Lists(Ids({}), Numbers({}), {2, 5}, 4),
                {Ids({}), Ids({}), Numbers({}), Numbers({}), Numbers({}), Numbers({})});
}

TEST(PartLists, RefusesWrongLists) {
  ExpectOpError(Lists(Ids({5}), Ids({0}), {2, 5}, 4), kInvalid, "ids[0] = 5 is not in [0, 5)");
  ExpectOpError(Lists(Ids({0, 1}), Ids({0}), {2, 5}, 4), kInvalid,
                "examples must be as long as ids, got shape [1] for [2]");
  ExpectOpError(Lists(Ids({0}), Ids({0}), {2, 5}, 0), kInvalid, "row_bytes");
}

// --- _RowSums ------------------------------------------------------------------------------------

TEST(RowSums, AddsUpRowsInTheirOrder) {
  OpTestDevice device;
  const Tensor table =
      device.VariableHandle("table", TensorOf<float>({3, 2}, {0, 1, 10, 11, 20, 21}));
  ExpectTensorEqual(RunOp1(Sums(&device, table, Ids({2, 0, 2, 1}), Numbers({0, 1, 0, 1}))),
                    TensorOf<float>({2, 2}, {40, 42, 10, 12}));
  ExpectTensorEqual(RunOp1(Sums(&device, table, Numbers({2, 0}), Numbers({0, 1}))),
                    TensorOf<float>({2, 2}, {20, 21, 0, 1}));
  ExpectTensorEqual(RunOp1(Sums(&device, table, Ids({}), Numbers({}))),
                    TensorOf<float>({0, 2}, {}));
  EXPECT_SHAPE("_RowSums", {{"dtype", DT_FLOAT}, {"T", DT_INT64}},
               {ShapeInput(DT_FLOAT, "[3,2]"), "[4]", "[?]"}, "[?,2]");
}

TEST(RowSums, RefusesWhatIsNoListOfSums) {
  OpTestDevice device;
  const Tensor table = device.VariableHandle("table", TensorOf<float>({2, 1}, {0, 1}));
  const auto fails = [&](const Tensor& rows, const Tensor& sums, const std::string& text) {
    ExpectOpError(Sums(&device, table, rows, sums), kInvalid, text);
  };
  fails(Ids({0, 2}), Numbers({0, 0}), "indices[1] = 2 is not in [0, 2)");
  fails(Ids({0, -1}), Numbers({0, 1}), "indices[1] = -1 is not in [0, 2)");
  fails(Ids({0, 1}), Numbers({0, 2}), "sums[1] = 2 is not in [0, 2)");
  fails(Ids({0}), Numbers({-1}), "sums[0] = -1 is not in [0, 1)");
  fails(Ids({0}), Numbers({0, 0}), "rows and sums must be vectors of one length, got shapes [1]");
  ExpectOpError(Sums(&device, table, Ids({0}), Numbers({0}), DT_DOUBLE), kInvalid, "dtype");
  ExpectOpError(Grad(TensorOf<float>({1, 1}, {1}), Ids({0, 1}), Numbers({0, 1})), kInvalid,
                "sums must be < 1, the rows of gradient, got 1");
}

TEST(RowSumsGrad, AddsUpTheGradientsOfEachRow) {
  ExpectOutputs(Grad(TensorOf<float>({2, 2}, {1, 2, 10, 20}), Ids({5, 3, 5}), Numbers({0, 0, 1})),
                {Ids({5, 3}), TensorOf<float>({2, 2}, {11, 22, 1, 2})});
  ExpectOutputs(Grad(TensorOf<double>({0, 2}, {}), Numbers({}), Numbers({})),
                {Numbers({}), TensorOf<double>({0, 2}, {})});
}

TEST(RowSums, GradientIsOfDifferentRows) {
  Scope scope;
  const Variable table =
      MakeVariable(scope.WithName("table"), Const(scope, TensorOf<float>({2, 1}, {1, 2})));
  const Output sums = RowSums(scope, table.handle, Const<int32_t>(scope, {1, 1}),
                              Const<int32_t>(scope, {0, 0}), DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients,
                       AddGradients(scope, {sums}, {table.handle}));
  ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0]));
  EXPECT_TRUE(std::get<IndexedSlices>(gradients[0]).unique_indices);
}

}  // namespace
}  // namespace millrace

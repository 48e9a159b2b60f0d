// SPDX-License-Identifier: Apache-2.0
#include "ops/array/gather.h"

#include <complex>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/distinct.h"
#include "ops/array/indices.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
// [[0 1], [10 11], [20 21]]
Tensor Table() { return TensorOf<float>({3, 2}, {0, 1, 10, 11, 20, 21}); }

OpCall Call(Tensor params, Tensor indices, int32_t axis, int64_t batch_dims = 0) {
  return OpCall("GatherV2")
      .Input(std::move(params))
      .Input(std::move(indices))
      .Input(Int(axis))
      .Attr("batch_dims", batch_dims);
}

TEST(Gather, PicksSlicesAlongAnyAxis) {
  ExpectTensorEqual(RunOp1(Call(Table(), Ints({2, 0, 2}), 0)),
                    TensorOf<float>({3, 2}, {20, 21, 0, 1, 20, 21}));
  ExpectTensorEqual(RunOp1(Call(Table(), TensorOf<int64_t>({1, 2}, {1, 1}), -1)),
                    TensorOf<float>({3, 1, 2}, {1, 1, 11, 11, 21, 21}));
  ExpectTensorEqual(RunOp1(Call(Table(), Int(1), 0)), TensorOf<float>({2}, {10, 11}));
  ExpectTensorEqual(RunOp1(Call(Table(), Ints({}), 0)), TensorOf<float>({0, 2}, {}));
  ExpectTensorEqual(
      RunOp1(OpCall("Gather").Input(TensorOf<std::string>({2}, {"a", "b"})).Input(Ints({1, 0}))),
      TensorOf<std::string>({2}, {"b", "a"}));
}

TEST(Gather, BatchDimensionsBelongTogether) {
  // Row b of indices picks from row b of params.
  const Tensor params = TensorOf<int32_t>({2, 3}, {0, 1, 2, 10, 11, 12});
  const Tensor indices = TensorOf<int32_t>({2, 2}, {2, 0, 1, 1});
  ExpectTensorEqual(RunOp1(Call(params, indices, 1, 1)), TensorOf<int32_t>({2, 2}, {2, 0, 11, 11}));
  ExpectOpError(Call(params, indices, 0, 1), kInvalid, "batch_dims must be <= axis 0, got 1");
  ExpectOpError(Call(params, Ints({1, 2, 0}), 1, 1), kInvalid,
                "params and indices must agree in batch dimension 0");
}

TEST(Gather, RefusesIndicesAndAxesOutside) {
  ExpectOpError(Call(Table(), TensorOf<int32_t>({2, 1}, {0, 3}), 0), kInvalid,
                "indices[1,0] = 3 is not in [0, 3)");
  ExpectOpError(Call(Table(), Ints({-1}), 0), kInvalid, "indices[0] = -1 is not in [0, 3)");
  ExpectOpError(Call(Table(), Ints({0}), 2), kInvalid, "axis must be in [-2, 2), got 2");
  ExpectOpError(Call(Tensor::Scalar<float>(1), Ints({0}), 0), kInvalid, "rank");
  ExpectOpError(Call(TensorOf<float>({0, 2}, {}), Ints({0}), 0), kInvalid,
                "indices[0] = 0 is not in [0, 0)");
}

TEST(Gather, ShapeFunctionPutsIndicesIntoParams) {
  EXPECT_SHAPE("GatherV2", {{"Tindices", DT_INT32}}, {"[3,?,5]", "[?,7]", Int(1)}, "[3,?,7,5]");
  EXPECT_SHAPE("GatherV2", {{"Tindices", DT_INT32}, {"Taxis", DT_INT32}}, {"[3,4]", "[7]", "[]"},
               "[?,?]");
  EXPECT_SHAPE("GatherV2", {{"Tindices", DT_INT32}}, {"<unknown>", "[7]", Int(0)}, "<unknown>");
  EXPECT_SHAPE("Gather", {{"Tindices", DT_INT32}}, {"[3,4]", "[?]"}, "[?,4]");
  EXPECT_SHAPE_ERROR("GatherV2", {{"Tindices", DT_INT32}}, {"[3,4]", "[7]", Int(2)}, "axis");
}

TEST(GatherNd, PicksByCoordinates) {
  const auto call = [](Tensor indices) {
    return OpCall("GatherNd").Input(Table()).Input(std::move(indices));
  };
  ExpectTensorEqual(RunOp1(call(TensorOf<int32_t>({2, 2}, {2, 1, 0, 0}))),
                    TensorOf<float>({2}, {21, 0}));
  ExpectTensorEqual(RunOp1(call(TensorOf<int64_t>({1, 1}, {1}))),
                    TensorOf<float>({1, 2}, {10, 11}));
  ExpectTensorEqual(RunOp1(call(TensorOf<int32_t>({0, 2}, {}))), TensorOf<float>({0}, {}));
  ExpectOpError(call(TensorOf<int32_t>({2, 2}, {0, 0, 2, 2})), kInvalid,
                "indices[1] = [2,2] does not index into shape [3,2]");
  ExpectOpError(call(TensorOf<int32_t>({1, 3}, {0, 0, 0})), kInvalid,
                "the last dimension of indices must be at most 2");
  EXPECT_SHAPE("GatherNd", {{"Tindices", DT_INT32}}, {"[3,4,5]", "[?,2]"}, "[?,5]");
  EXPECT_SHAPE("GatherNd", {{"Tindices", DT_INT32}}, {"[3,4,5]", "[?,?]"}, "<unknown>");
}

TEST(ScatterNd, AddsUpRepeatedIndices) {
  const auto call = [](Tensor indices, Tensor updates, Tensor shape) {
    return OpCall("ScatterNd")
        .Input(std::move(indices))
        .Input(std::move(updates))
        .Input(std::move(shape));
  };
  ExpectTensorEqual(RunOp1(call(TensorOf<int32_t>({3, 1}, {1, 3, 1}),
                                TensorOf<float>({3}, {1, 2, 4}), Ints({4}))),
                    TensorOf<float>({4}, {0, 5, 0, 2}));
  ExpectTensorEqual(
      RunOp1(call(TensorOf<int32_t>({1, 1}, {1}), TensorOf<int64_t>({1, 2}, {7, 8}), Ints({2, 2}))),
      TensorOf<int64_t>({2, 2}, {0, 0, 7, 8}));
  ExpectOpError(call(TensorOf<int32_t>({1, 1}, {4}), TensorOf<float>({1}, {1}), Ints({4})),
                kInvalid, "indices[0] = [4] does not index into shape [4]");
  ExpectOpError(call(TensorOf<int32_t>({2, 1}, {0, 1}), TensorOf<float>({1}, {1}), Ints({4})),
                kInvalid, "updates must have shape [2]");
  ExpectOpError(call(TensorOf<int32_t>({1, 1}, {0}), TensorOf<float>({1}, {1}), Ints({-4})),
                kInvalid, "-4");
  EXPECT_SHAPE("ScatterNd", {}, {"[?,1]", "[?,3]", Ints({4, 3})}, "[4,3]");
  ExpectTensorEqual(
      RunOp1(call(TensorOf<int32_t>({3, 1}, {1, 0, 1}),
                  TensorOf<Half>({3}, {ToHalf(1.5f), ToHalf(2), ToHalf(-4)}), Ints({3}))),
      TensorOf<Half>({3}, {ToHalf(2), ToHalf(-2.5f), ToHalf(0)}));
  ExpectTensorEqual(
      RunOp1(call(TensorOf<int32_t>({2, 1}, {1, 1}),
                  TensorOf<Bfloat16>({2}, {ToBfloat16(1.5f), ToBfloat16(2)}), Ints({2}))),
      TensorOf<Bfloat16>({2}, {ToBfloat16(0), ToBfloat16(3.5f)}));
}

TEST(GatherGradients, OfAxis0AreSlices) {
  Scope scope;
  const Output table = TestInput(scope, DT_FLOAT, {3, 2});
  const Output rows = GatherV2(scope, table, Const<int32_t>(scope, {2, 0}), Const(scope, 0));
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(scope, {rows}, {table}));
  EXPECT_TRUE(std::holds_alternative<IndexedSlices>(grads[0]));
  EXPECT_FALSE(std::get<IndexedSlices>(grads[0]).unique_indices);
}

TEST(GatherGradients, OfDifferentRowsAreKnownToBeSo) {
  const struct {
    bool with_counts, takes_places;
    bool are_known;
  } cases[] = {{false, false, true}, {true, false, true}, {false, true, false}};
  for (const auto& c : cases) {
    Scope scope;
    const Output table = TestInput(scope, DT_FLOAT, {3, 2});
    const Output ids = Const<int32_t>(scope, {2, 0, 2});
    Output y, places;
    if (c.with_counts) {
      y = UniqueWithCounts(scope, ids).y;
    } else {
      const UniqueOutputs unique = Unique(scope, ids);
      y = unique.y;
      places = unique.idx;
    }
    const Output rows = GatherV2(scope, table, c.takes_places ? places : y, Const(scope, 0));
    ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(scope, {rows}, {table}));
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(grads[0]));
    EXPECT_EQ(std::get<IndexedSlices>(grads[0]).unique_indices, c.are_known);
  }
  EXPECT_FALSE(IsDistinct(Output()));
}

// Of rows that one coordinate each names; an optimizer leaves the other rows alone.
TEST(GatherGradients, OfRowsByCoordinatesAreSlices) {
  Scope scope;
  const Output table = TestInput(scope, DT_FLOAT, {3, 2});
  const Output rows = GatherNd(scope, table, Const(scope, TensorOf<int32_t>({2, 1}, {2, 0})));
  const Output one = GatherNd(scope, table, Const(scope, TensorOf<int32_t>({1, 2}, {2, 0})));
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> of_rows, AddGradients(scope, {rows}, {table}));
  EXPECT_TRUE(std::holds_alternative<IndexedSlices>(of_rows[0]));
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> of_one, AddGradients(scope, {one}, {table}));
  EXPECT_TRUE(std::holds_alternative<Output>(of_one[0]));
}

TEST(GatherGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3, 2}, {1, -2, 3, 4, 5, -6, 7, 8, 9, 10, 11, 12});
  for (const int32_t axis : {0, 1, 2, -1, -2}) {
    ExpectGradientsMatch(
        [axis](const Scope& s, const std::vector<Output>& in) {
          return GatherV2(s, in[0], Const(s, TensorOf<int32_t>({2, 2}, {1, 0, 1, 1})),
                          Const(s, axis));
        },
        {x});
  }
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return GatherV2(s, in[0], Const(s, TensorOf<int64_t>({2, 2}, {1, 0, 1, 1})), Const(s, 2),
                        {.batch_dims = 1});
      },
      {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return GatherNd(s, in[0], Const(s, TensorOf<int32_t>({3, 1}, {1, 0, 1})));
      },
      {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return GatherNd(s, in[0], Const(s, TensorOf<int32_t>({3, 2}, {1, 0, 1, 1, 1, 0})));
      },
      {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return ScatterNd(s, Const(s, TensorOf<int32_t>({2, 1}, {1, 1})), in[0],
                         Const<int32_t>(s, {3, 3, 2}));
      },
      {x});
}

}  // namespace
}  // namespace millrace

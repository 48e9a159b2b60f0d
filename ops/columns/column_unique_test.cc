// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/column_unique.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: columns: rows that are looked up once and picked by place are those of the ids, and so
//   are their gradients

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Texts = std::vector<std::string>;
using Ints = std::vector<int64_t>;

OpCall Unique(const Tensor& ids, const Ints& from) {
  return OpCall("_ColumnUnique").Input(ids).Attr("from", from);
}
OpCall Pick(const Tensor& rows, const Tensor& places, const Ints& widths) {
  return OpCall("_ColumnPick").Input(rows).Input(places).Attr("widths", widths);
}
OpCall PickGrad(const Tensor& gradient, const Tensor& places, const Tensor& rows,
                const Ints& widths) {
  return OpCall("_ColumnPickGrad").Input(gradient).Input(places).Input(rows).Attr("widths", widths);
}

TEST(ColumnUnique, GivesEachIdOnceInTheOrderInWhichItComes) {
  const Tensor ids = TensorOf<int64_t>({3, 4}, {5, 5, -1, 5, 9, 9, 9, 9, 4, 3, 2, 4});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(Unique(ids, {2, 0})));
  // The shorter row repeats its first id.
  ExpectTensorEqual(out[0], TensorOf<int64_t>({2, 3}, {4, 3, 2, 5, -1, 5}));
  ExpectTensorEqual(out[1], TensorOf<int32_t>({2, 4}, {0, 1, 2, 0, 0, 0, 1, 0}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> one, RunOp(Unique(ids, {1})));
  ExpectTensorEqual(one[0], TensorOf<int64_t>({1, 1}, {9}));
  ExpectTensorEqual(one[1], TensorOf<int32_t>({1, 4}, {0, 0, 0, 0}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none,
                       RunOp(Unique(*Tensor::Zeros(DT_INT64, Shape{1, 0}), {0, 0})));
  ExpectTensorEqual(none[0], *Tensor::Zeros(DT_INT64, Shape{2, 0}));
  ExpectTensorEqual(none[1], *Tensor::Zeros(DT_INT32, Shape{2, 0}));
}

TEST(ColumnUnique, NumbersManyIds) {
  constexpr int64_t kBatch = 5000, kDifferent = 1499;
  Ints ids;
  for (int64_t i = 0; i < 2 * kBatch; ++i) {
    ids.push_back((i * 2654435761) % kDifferent * 1'000'003 - 7);
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(Unique(*Tensor::FromValues<int64_t>(Shape{2, kBatch}, ids), {0, 1})));
  ASSERT_EQ(out[0].shape(), (Shape{2, kDifferent}));
  const auto unique = out[0].flat<int64_t>();
  const auto places = out[1].flat<int32_t>();
  for (size_t row = 0; row < 2; ++row) {
    const auto own = unique.subspan(row * kDifferent, kDifferent);
    EXPECT_EQ(std::set<int64_t>(own.begin(), own.end()).size(), static_cast<size_t>(kDifferent));
    for (size_t i = row * kBatch; i < (row + 1) * kBatch; ++i) {
      ASSERT_EQ(own[static_cast<size_t>(places[i])], ids[i]);
    }
  }
}

TEST(ColumnUnique, RefusesRowsThatAreNotThere) {
  const Tensor ids = TensorOf<int64_t>({2, 1}, {0, 0});
  ExpectOpError(Unique(ids, {2}), kInvalid, "from must be < 2, the rows of ids, got 2");
  ExpectOpError(Unique(ids, {0, -1}), kInvalid, "from must be >= 0, got -1");
  ExpectOpError(Unique(TensorOf<int64_t>({2}, {0, 0}), {0}), kInvalid, "ids must have rank 2");
}

TEST(ColumnPick, TakesTheNumbersOfEachColumnFromItsPlace) {
  const Tensor rows = TensorOf<float>({3, 3}, {1, 2, 3, 10, 20, 30, 100, 200, 300});
  const Tensor places = TensorOf<int32_t>({2, 2}, {2, 0, 1, 1});
  ExpectTensorEqual(RunOp1(Pick(rows, places, {1, 2})),
                    TensorOf<float>({2, 3}, {100, 20, 30, 1, 20, 30}));
  ExpectTensorEqual(RunOp1(Pick(*Tensor::Zeros(DT_FLOAT, Shape{0, 3}),
                                *Tensor::Zeros(DT_INT32, Shape{2, 0}), {1, 2})),
                    *Tensor::Zeros(DT_FLOAT, Shape{0, 3}));
  ExpectOpError(Pick(rows, places, {1, 1}), kInvalid,
                "rows must have 2 numbers each, got shape [3,3]");
  ExpectOpError(Pick(rows, places, {3}), kInvalid, "places must be of 1 columns, got shape [2,2]");
  ExpectOpError(Pick(rows, places, {3, 0}), kInvalid, "widths must be >= 1");
  ExpectOpError(Pick(rows, places, {1, INT64_MAX}), kInvalid, "their sum below 2^63");
  ExpectOpError(Pick(rows, TensorOf<int32_t>({2}, {0, 0}), {1, 2}), kInvalid,
                "places must have rank 2");
  ExpectOpError(Pick(TensorOf<float>({3}, {1, 2, 3}), places, {1, 2}), kInvalid,
                "rows must have rank 2");
  for (const int32_t wrong : {3, -1}) {
    ExpectOpError(Pick(rows, TensorOf<int32_t>({2, 2}, {2, 0, 1, wrong}), {1, 2}), kInvalid,
                  absl::StrCat("places must be in [0, 3), got ", wrong));
  }
}

TEST(ColumnPickGrad, AddsUpWhatWasPickedFromOnePlace) {
  const Tensor gradient = TensorOf<float>({3, 3}, {1, 2, 3, 10, 20, 30, 100, 200, 300});
  const Tensor places = TensorOf<int32_t>({2, 3}, {1, 0, 1, 0, 0, 0});
  const Tensor rows = TensorOf<float>({2, 3}, {7, 7, 7, 7, 7, 7});
  ExpectTensorEqual(RunOp1(PickGrad(gradient, places, rows, {1, 2})),
                    TensorOf<float>({2, 3}, {10, 222, 333, 101, 0, 0}));
  ExpectTensorEqual(
      RunOp1(PickGrad(*Tensor::Zeros(DT_FLOAT, Shape{0, 3}), *Tensor::Zeros(DT_INT32, Shape{2, 0}),
                      *Tensor::Zeros(DT_FLOAT, Shape{0, 3}), {1, 2})),
      *Tensor::Zeros(DT_FLOAT, Shape{0, 3}));
  ExpectOpError(PickGrad(rows, places, rows, {1, 2}), kInvalid,
                "gradient must have shape [3,3], got [2,3]");
  ExpectOpError(PickGrad(gradient, places, TensorOf<float>({1, 3}, {7, 7, 7}), {1, 2}), kInvalid,
                "places must be in [0, 1), got 1");
  ExpectOpError(PickGrad(gradient, places, TensorOf<float>({2, 2}, {7, 7, 7, 7}), {1, 2}), kInvalid,
                "rows must have 3 numbers each, got shape [2,2]");
}

TEST(ColumnPick, MatchesFiniteDifferences) {
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& x) {
        return ColumnPick(s, x[0], x[1], {1, 2});
      },
      {TensorOf<float>({3, 3}, {1, 2, -1, .5f, .25f, 3, -2, 1, 0}),
       TensorOf<int32_t>({2, 4}, {2, 0, 2, 2, 1, 1, 0, 1})});
}

// Two columns of one table and one of another; no id has no row.
TEST(ColumnPick, OfALayerOfDifferentIdsIsThatLayer) {
  OpTestDevice device;
  const Tensor a = device.VariableHandle("a", TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}));
  const Tensor b = device.VariableHandle("b", TensorOf<float>({2, 1}, {10, 20}));
  const auto layer = [&](const Tensor& ids) {
    return OpCall("_ColumnLayer")
        .Input(ids)
        .Inputs({})
        .Inputs({a, b})
        .Attr("N", int64_t{0})
        .Attr("kinds", Texts{"rows", "rows", "rows"})
        .Attr("from", Ints{0, 1, 2})
        .Attr("of_table", Ints{0, 1, 0})
        .Attr("offsets", Ints{0, 2, 3})
        .Attr("widths", Ints{2, 1, 2})
        .Attr("width", int64_t{5})
        .On(&device);
  };
  const Tensor ids =
      TensorOf<int64_t>({3, 6}, {2, 0, 2, -1, 1, 0, 1, 1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> unique, RunOp(Unique(ids, {0, 1, 2})));
  EXPECT_EQ(unique[0].shape(), (Shape{3, 4}));
  const Tensor rows = RunOp1(layer(unique[0]));
  ExpectTensorEqual(RunOp1(Pick(rows, unique[1], {2, 1, 2})), RunOp1(layer(ids)));
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
// Equal to TensorFlow's nodes, also after steps of optimizers:
// //estimator/columns:column_values_test.
#include "ops/columns/column_layer.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: columns: the fused layer of columns has the values and gradients of the portable ops

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Texts = std::vector<std::string>;
using Ints = std::vector<int64_t>;

// Numbers at 0, a one among three at 2, a row of the table at 5: [batch, 7].
OpCall Layer(OpTestDevice* device, const Tensor& ids, const Tensor& numbers, const Tensor& table) {
  return OpCall("_ColumnLayer")
      .Input(ids)
      .Inputs({numbers})
      .Inputs({table})
      .Attr("kinds", Texts{"numbers", "one_hot", "rows"})
      .Attr("from", Ints{0, 0, 1})
      .Attr("of_table", Ints{-1, -1, 0})
      .Attr("offsets", Ints{0, 2, 5})
      .Attr("widths", Ints{2, 3, 2})
      .Attr("width", int64_t{7})
      .On(device);
}

Tensor Table() { return TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}); }
Tensor Numbers() { return TensorOf<float>({2, 2}, {.5f, .25f, -1, 0}); }

TEST(ColumnLayer, PutsPartsSideBySide) {
  OpTestDevice device;
  const Tensor table = device.VariableHandle("table", Table());
  ExpectTensorEqual(
      RunOp1(Layer(&device, TensorOf<int64_t>({2, 2}, {2, -1, 0, 2}), Numbers(), table)),
      TensorOf<float>({2, 7}, {.5f, .25f, 0, 0, 1, 1, 2, -1, 0, 0, 0, 0, 5, 6}));
  // Of numbers only the count matters; no id is zeros.
  ExpectTensorEqual(RunOp1(Layer(&device, TensorOf<int64_t>({2, 1}, {-1, -1}),
                                 TensorOf<float>({1, 1, 2}, {7, 8}), table)),
                    TensorOf<float>({1, 7}, {7, 8, 0, 0, 0, 0, 0}));
  ExpectTensorEqual(
      RunOp1(Layer(&device, TensorOf<int64_t>({2, 0}, {}), TensorOf<float>({0, 2}, {}), table)),
      TensorOf<float>({0, 7}, {}));
}

TEST(ColumnLayer, AddsUpPartsThatOverlap) {
  OpTestDevice device;
  const Tensor a = device.VariableHandle("a", TensorOf<float>({2, 1}, {1, 2}));
  const Tensor b = device.VariableHandle("b", TensorOf<float>({2, 1}, {10, 20}));
  ExpectTensorEqual(RunOp1(OpCall("_ColumnLayer")
                               .Input(TensorOf<int64_t>({2, 3}, {0, 1, -1, 1, -1, 0}))
                               .Inputs({})
                               .Inputs({a, b})
                               .Attr("N", int64_t{0})
                               .Attr("kinds", Texts{"rows", "rows"})
                               .Attr("from", Ints{0, 1})
                               .Attr("of_table", Ints{0, 1})
                               .Attr("offsets", Ints{0, 0})
                               .Attr("widths", Ints{1, 1})
                               .Attr("width", int64_t{1})
                               .On(&device)),
                    TensorOf<float>({3, 1}, {21, 2, 10}));
}

// Rows 1 and 2 of a table of four.
OpCall PartLayer(OpTestDevice* device, const Tensor& ids, const Tensor& part) {
  return OpCall("_ColumnLayer")
      .Input(ids)
      .Inputs({})
      .Inputs({part})
      .Attr("N", int64_t{0})
      .Attr("kinds", Texts{"rows"})
      .Attr("from", Ints{0})
      .Attr("of_table", Ints{0})
      .Attr("offsets", Ints{0})
      .Attr("widths", Ints{2})
      .Attr("width", int64_t{2})
      .Attr("row_begins", Ints{1})
      .Attr("row_ends", Ints{3})
      .Attr("row_counts", Ints{4})
      .On(device);
}

TEST(ColumnLayer, GivesTheRowsOfAPartAndZerosForOthers) {
  OpTestDevice device;
  const Tensor part = device.VariableHandle("part", TensorOf<float>({2, 2}, {3, 4, 5, 6}));
  ExpectTensorEqual(
      RunOp1(PartLayer(&device, TensorOf<int64_t>({1, 6}, {0, 1, 2, 3, -1, 1}), part)),
      TensorOf<float>({6, 2}, {0, 0, 3, 4, 5, 6, 0, 0, 0, 0, 3, 4}));
  // All of them are here: they are not their rows.
  ExpectTensorEqual(RunOp1(PartLayer(&device, TensorOf<int64_t>({1, 2}, {2, 1}), part)),
                    TensorOf<float>({2, 2}, {5, 6, 3, 4}));
  // None is here.
  ExpectTensorEqual(RunOp1(PartLayer(&device, TensorOf<int64_t>({1, 2}, {0, 3}), part)),
                    TensorOf<float>({2, 2}, {0, 0, 0, 0}));
}

TEST(ColumnLayer, OfAllPartsIsThatOfTheWhole) {
  OpTestDevice device;
  const Tensor whole = device.VariableHandle("whole", TensorOf<float>({3, 1}, {1, 2, 3}));
  const Tensor first = device.VariableHandle("first", TensorOf<float>({2, 1}, {10, 20}));
  const Tensor second = device.VariableHandle("second", TensorOf<float>({1, 1}, {30}));
  ExpectTensorEqual(RunOp1(OpCall("_ColumnLayer")
                               .Input(TensorOf<int64_t>({1, 4}, {2, 0, -1, 1}))
                               .Inputs({})
                               .Inputs({whole, first, second})
                               .Attr("N", int64_t{0})
                               .Attr("kinds", Texts{"rows", "rows", "rows"})
                               .Attr("from", Ints{0, 0, 0})
                               .Attr("of_table", Ints{0, 1, 2})
                               .Attr("offsets", Ints{0, 1, 1})
                               .Attr("widths", Ints{1, 1, 1})
                               .Attr("width", int64_t{2})
                               .Attr("row_begins", Ints{0, 0, 2})
                               .Attr("row_ends", Ints{-1, 2, 3})
                               .Attr("row_counts", Ints{-1, 3, 3})
                               .On(&device)),
                    TensorOf<float>({4, 2}, {3, 30, 1, 10, 0, 0, 2, 20}));
}

TEST(ColumnLayer, RefusesPartsThatDoNotFit) {
  OpTestDevice device;
  const Tensor ids = TensorOf<int64_t>({1, 1}, {0});
  const Tensor part = device.VariableHandle("part", TensorOf<float>({2, 2}, {3, 4, 5, 6}));
  const auto layer = [&] { return PartLayer(&device, ids, part); };
  // No part of the table has it.
  ExpectOpError(PartLayer(&device, TensorOf<int64_t>({1, 2}, {3, 4}), part), kInvalid,
                "ids of table 'part' must be in [0, 4), got 4");
  const Tensor longer = device.VariableHandle("longer", *Tensor::Zeros(DT_FLOAT, Shape{3, 2}));
  ExpectOpError(PartLayer(&device, ids, longer), kInvalid,
                "table 'longer' must have the rows [1, 3) of 4, got shape [3,2]");
  ExpectOpError(layer().Attr("row_begins", Ints{-1}), kInvalid,
                "table 0 must have rows within [0, 4), got [-1, 3)");
  ExpectOpError(layer().Attr("row_begins", Ints{4}), kInvalid,
                "table 0 must have rows within [0, 4), got [4, 3)");
  ExpectOpError(layer().Attr("row_counts", Ints{2}), kInvalid,
                "table 0 must have rows within [0, 2), got [1, 3)");
  ExpectOpError(layer().Attr("row_begins", Ints{}), kInvalid,
                "the lists of rows must have 1 elements as there are tables, got 0");
  ExpectOpError(layer().Attr("row_ends", Ints{3, 4}), kInvalid,
                "the lists of rows must have 1 elements as there are tables, got 2");
}

TEST(ColumnLayer, RefusesWhatDoesNotFit) {
  OpTestDevice device;
  const Tensor table = device.VariableHandle("table", Table());
  const Tensor ids = TensorOf<int64_t>({2, 2}, {0, 0, 0, 0});
  const auto layer = [&] { return Layer(&device, ids, Numbers(), table); };
  ExpectOpError(Layer(&device, TensorOf<int64_t>({2, 2}, {0, 0, 1, 3}), Numbers(), table), kInvalid,
                "ids of table 'table' must be in [0, 3), got 3");
  ExpectOpError(Layer(&device, ids, TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6}), table), kInvalid,
                "numbers 0 must have 2 for each of 2 examples, got shape [2,3]");
  ExpectOpError(Layer(&device, ids, TensorOf<float>({1, 2}, {1, 2}), table), kInvalid,
                "numbers 0 must have 2 for each of 2 examples, got shape [1,2]");
  ExpectOpError(Layer(&device, TensorOf<int64_t>({1, 2}, {0, 0}), Numbers(), table), kInvalid,
                "part 2 must have ids < 1, got 1");
  ExpectOpError(Layer(&device, TensorOf<int64_t>({2}, {0, 0}), Numbers(), table), kInvalid,
                "ids must have rank 2");
  const Tensor wide = device.VariableHandle("wide", TensorOf<float>({1, 3}, {1, 2, 3}));
  ExpectOpError(Layer(&device, ids, Numbers(), wide), kInvalid,
                "table 'wide' must have shape [?,2], got [1,3]");
  ExpectOpError(layer().Attr("width", int64_t{6}), kInvalid,
                "part 2 must be within the width 6, got 2 numbers from 5 on");
  ExpectOpError(layer().Attr("offsets", Ints{0, 2, -1}), kInvalid, "part 2 must be within");
  ExpectOpError(layer().Attr("of_table", Ints{-1, -1, 1}), kInvalid,
                "part 2 must have a table in [0, 1), got 1");
  ExpectOpError(layer().Attr("from", Ints{1, 0, 1}), kInvalid,
                "part 0 must have the numbers 0, got 1");
  ExpectOpError(layer().Attr("from", Ints{0, -1, 1}), kInvalid,
                "part 1 must have ids >= 0, got -1");
  ExpectOpError(layer().Attr("from", Ints{0}), kInvalid,
                "the lists of parts must have 3 elements as kinds, got 1");
  ExpectOpError(layer().Attr("kinds", Texts{"numbers", "one_hot", "column"}), kInvalid,
                "kinds must be numbers, one_hot or rows, got 'column'");
}

TEST(ColumnLayerGrad, HasEachRowOnce) {
  // Two parts of one table, and one of another.
  const auto call = [](const Tensor& ids, const Tensor& gradient) {
    return OpCall("_ColumnLayerGrad")
        .Input(ids)
        .Input(gradient)
        .Attr("K", int64_t{2})
        .Attr("kinds", Texts{"rows", "one_hot", "rows", "rows"})
        .Attr("from", Ints{0, 0, 1, 1})
        .Attr("of_table", Ints{0, -1, 0, 1})
        .Attr("offsets", Ints{0, 1, 2, 3})
        .Attr("widths", Ints{1, 1, 1, 2})
        .Attr("width", int64_t{5});
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(call(TensorOf<int64_t>({2, 3}, {7, 4, 7, 4, -1, 7}),
                                  TensorOf<float>({3, 5}, {1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 100,
                                                           200, 300, 400, 500}))));
  // The second example has no id in the second column: row 0 is there, with nothing.
  ExpectTensorEqual(out[0], Tensor::Of<int64_t>({7, 4, 0}));
  ExpectTensorEqual(out[2], TensorOf<float>({3, 1}, {1 + 100 + 300, 10 + 3, 0}));
  ExpectTensorEqual(out[1], Tensor::Of<int64_t>({4, 0, 7}));
  ExpectTensorEqual(out[3], TensorOf<float>({3, 2}, {4, 5, 0, 0, 400, 500}));

  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none,
                       RunOp(call(TensorOf<int64_t>({2, 0}, {}), TensorOf<float>({0, 5}, {}))));
  ExpectTensorEqual(none[3], TensorOf<float>({0, 2}, {}));
  ExpectOpError(call(TensorOf<int64_t>({2, 1}, {0, 0}), TensorOf<float>({1, 4}, {1, 2, 3, 4})),
                kInvalid, "gradient must have shape [1,5], got [1,4]");
}

// Of no id the row 0 is there, with nothing: in the part that has it.
TEST(ColumnLayerGrad, OfAPartHasItsRowsAlone) {
  const auto call = [](int64_t begin, int64_t end) {
    return OpCall("_ColumnLayerGrad")
        .Input(TensorOf<int64_t>({1, 5}, {3, -1, 1, 3, 2}))
        .Input(TensorOf<float>({5, 1}, {1, 10, 100, 1000, 10000}))
        .Attr("K", int64_t{1})
        .Attr("kinds", Texts{"rows"})
        .Attr("from", Ints{0})
        .Attr("of_table", Ints{0})
        .Attr("offsets", Ints{0})
        .Attr("widths", Ints{1})
        .Attr("width", int64_t{1})
        .Attr("row_begins", Ints{begin})
        .Attr("row_ends", Ints{end})
        .Attr("row_counts", Ints{6});
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> first, RunOp(call(0, 2)));
  ExpectTensorEqual(first[0], Tensor::Of<int64_t>({0, 1}));
  ExpectTensorEqual(first[1], TensorOf<float>({2, 1}, {0, 100}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> second, RunOp(call(2, 4)));
  ExpectTensorEqual(second[0], Tensor::Of<int64_t>({1, 0}));
  ExpectTensorEqual(second[1], TensorOf<float>({2, 1}, {1001, 10000}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none, RunOp(call(4, 6)));
  ExpectTensorEqual(none[0], *Tensor::Zeros(DT_INT64, Shape{0}));
  ExpectTensorEqual(none[1], TensorOf<float>({0, 1}, {}));
}

TEST(ColumnLayerGrad, CountsManyIds) {
  const int64_t n = 5000;
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back((i * 2654435761) % 1499 * 1'000'003);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("_ColumnLayerGrad")
                                 .Input(*Tensor::FromValues<int64_t>(Shape{1, n}, ids))
                                 .Input(*Tensor::FromValues<float>(
                                     Shape{n, 1}, std::vector<float>(static_cast<size_t>(n), 1)))
                                 .Attr("K", int64_t{1})
                                 .Attr("kinds", Texts{"rows"})
                                 .Attr("from", Ints{0})
                                 .Attr("of_table", Ints{0})
                                 .Attr("offsets", Ints{0})
                                 .Attr("widths", Ints{1})
                                 .Attr("width", int64_t{1})));
  ASSERT_EQ(out[0].num_elements(), 1499);
  float sum = 0;
  for (const float count : out[1].flat<float>()) sum += count;
  EXPECT_EQ(sum, static_cast<float>(n));
}

}  // namespace
}  // namespace millrace

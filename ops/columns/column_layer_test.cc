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

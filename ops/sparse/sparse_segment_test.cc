// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_segment.h"

#include <cmath>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are combined by segments as TensorFlow does; wrong indices and
//   shapes are refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Rows() { return Tensor::Of<float>({{1, 2, 3, 4}, {-1, -2, -3, -4}, {5, 6, 7, 8}}); }

OpCall Call(const char* op, Tensor data, Tensor indices, Tensor ids) {
  return OpCall(op).Input(std::move(data)).Input(std::move(indices)).Input(std::move(ids));
}

TEST(SparseSegment, AddsUpRowsByIndex) {
  // The examples of TensorFlow's documentation.
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSum", Rows(), Ints({0, 1}), Ints({0, 0}))),
                    Tensor::Of<float>({{0, 0, 0, 0}}));
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSum", Rows(), Ints({0, 1}), Ints({0, 1}))),
                    Tensor::Of<float>({{1, 2, 3, 4}, {-1, -2, -3, -4}}));
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSum", Rows(), Ints({0, 1, 2}), Ints({0, 0, 1}))),
                    Tensor::Of<float>({{0, 0, 0, 0}, {5, 6, 7, 8}}));
  // Repeated rows, segments without rows.
  const Tensor indices = Tensor::Of<int64_t>({2, 0, 2, 2}), ids = Ints({1, 1, 1, 3});
  ExpectTensorEqual(
      RunOp1(Call("SparseSegmentSum", Rows(), indices, ids)),
      Tensor::Of<float>({{0, 0, 0, 0}, {11, 14, 17, 20}, {0, 0, 0, 0}, {5, 6, 7, 8}}));
  const float third = 3;
  ExpectTensorEqual(RunOp1(Call("SparseSegmentMean", Rows(), indices, ids)),
                    TensorOf<float>({4, 4}, {0, 0, 0, 0, 11 / third, 14 / third, 17 / third,
                                             20 / third, 0, 0, 0, 0, 5, 6, 7, 8}));
  const float root = std::sqrt(3.0f);
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSqrtN", Rows(), indices, ids)),
                    TensorOf<float>({4, 4}, {0, 0, 0, 0, 11 / root, 14 / root, 17 / root, 20 / root,
                                             0, 0, 0, 0, 5, 6, 7, 8}));
  // Vectors have rows of one element.
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSum", Tensor::Vector<double>({1.0, 10.0, 100.0}),
                                Ints({1, 2, 1, 0, 0, 0}), Ints({0, 0, 2, 2, 2, 2}))),
                    Tensor::Vector<double>({110.0, 0.0, 13.0}));
  // Nothing.
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSum", Rows(), Ints({}), Ints({}))),
                    TensorOf<float>({0, 4}, {}));
  ExpectTensorEqual(
      RunOp1(Call("SparseSegmentMean", TensorOf<float>({0, 4}, {}), Ints({}), Ints({}))),
      TensorOf<float>({0, 4}, {}));
  ExpectTensorEqual(
      RunOp1(Call("SparseSegmentSum", TensorOf<float>({3, 0}, {}), Ints({1}), Ints({2}))),
      TensorOf<float>({3, 0}, {}));
}

TEST(SparseSegment, TakesTheNumberOfSegments) {
  const auto call = [](const char* op, Tensor ids, Tensor n) {
    return Call(op, Rows(), Ints({2, 0}), std::move(ids)).Input(std::move(n));
  };
  const Tensor four = Tensor::Scalar<int64_t>(4), three = Tensor::Scalar<int32_t>(3);
  ExpectTensorEqual(RunOp1(call("SparseSegmentSumWithNumSegments", Ints({1, 1}), four)),
                    Tensor::Of<float>({{0, 0, 0, 0}, {6, 8, 10, 12}, {0, 0, 0, 0}, {0, 0, 0, 0}}));
  ExpectTensorEqual(RunOp1(call("SparseSegmentMeanWithNumSegments", Ints({0, 2}), three)),
                    Tensor::Of<float>({{5, 6, 7, 8}, {0, 0, 0, 0}, {1, 2, 3, 4}}));
  ExpectTensorEqual(RunOp1(call("SparseSegmentSqrtNWithNumSegments", Ints({0, 2}), three)),
                    Tensor::Of<float>({{5, 6, 7, 8}, {0, 0, 0, 0}, {1, 2, 3, 4}}));
  ExpectTensorEqual(
      RunOp1(Call("SparseSegmentSumWithNumSegments", Rows(), Ints({}), Ints({})).Input(three)),
      Tensor::Of<float>({{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}));
  ExpectOpError(call("SparseSegmentSumWithNumSegments", Ints({1, 3}), three), kInvalid,
                "segment_ids must be < num_segments, got 3 for num_segments 3");
  ExpectOpError(call("SparseSegmentSumWithNumSegments", Ints({1, 1}), Tensor::Scalar<int32_t>(-1)),
                kInvalid, "num_segments must be >= 0, got -1");
  ExpectOpError(call("SparseSegmentSumWithNumSegments", Ints({1, 1}), Ints({3})), kInvalid,
                "num_segments must be a scalar, got shape [1]");
  EXPECT_SHAPE("SparseSegmentMeanWithNumSegments", {{"Tnumsegments", DT_INT64}},
               {"[?,5]", "[?]", "[?]", Tensor::Scalar<int64_t>(7)}, "[7,5]");
}

TEST(SparseSegment, ComputesEveryTypeInItsOwnWay) {
  const int32_t max = std::numeric_limits<int32_t>::max();
  ExpectTensorEqual(
      RunOp1(Call("SparseSegmentSum", Tensor::Of<int32_t>({max, 1}), Ints({0, 1}), Ints({0, 0}))),
      Tensor::Of<int32_t>({std::numeric_limits<int32_t>::min()}));
  ExpectTensorEqual(RunOp1(Call("SparseSegmentSum", Tensor::Of<uint8_t>({{200, 1}, {100, 2}}),
                                Ints({0, 1}), Ints({0, 0}))),
                    Tensor::Of<uint8_t>({{44, 3}}));
  // In half 2048 + 1 is 2048 again: sums are made in float and rounded once. Of any width.
  for (const int64_t width : {1, 3, 300}) {
    Tensor data = *Tensor::Allocate(DT_HALF, Shape({2, width}));
    for (int64_t j = 0; j < 2 * width; ++j) {
      data.mutable_flat<Half>()[static_cast<size_t>(j)] = ToHalf(j < width ? 2048 : 1);
    }
    const Tensor sums =
        RunOp1(Call("SparseSegmentSum", data, Ints({0, 1, 1, 1, 1}), Ints({0, 0, 0, 0, 0})));
    for (const Half sum : sums.flat<Half>()) EXPECT_EQ(ToFloat(sum), 2052);
  }
}

// [rows, width], each row full of its number.
Tensor RowsOf(DType dtype, int64_t width, const std::vector<float>& numbers) {
  Tensor rows = *Tensor::Allocate(dtype, Shape({static_cast<int64_t>(numbers.size()), width}));
  for (int64_t i = 0; i < rows.num_elements(); ++i) {
    const float number = numbers[static_cast<size_t>(i / width)];
    const size_t at = static_cast<size_t>(i);
    if (dtype == DT_HALF) {
      rows.mutable_flat<Half>()[at] = ToHalf(number);
    } else {
      rows.mutable_flat<Bfloat16>()[at] = ToBfloat16(number);
    }
  }
  return rows;
}

// Where the numbers next to the largest one are 2 apart, adding a 1 to it changes nothing: these
// sums are right only in float, with their quotients rounded once.
TEST(SparseSegment, MeansOfNarrowFloatsAreMadeInFloat) {
  struct Case {
    DType dtype;
    float large;
    float mean;    // (large + 4) / 5
    float sqrt_n;  // (large + 8) / 3
  };
  for (const Case& c : {Case{DT_HALF, 2048, 410.5f, 685.5f}, Case{DT_BFLOAT16, 256, 52, 88}}) {
    for (const int64_t width : {1, 3, 300}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(c.dtype), " of width ", width));
      const Tensor data = RowsOf(c.dtype, width, {c.large, 1});
      const Tensor five = Ints({0, 1, 1, 1, 1}), nine = Ints({0, 1, 1, 1, 1, 1, 1, 1, 1});
      const Tensor of_five = Ints({1, 1, 1, 1, 1}), of_nine = Ints({1, 1, 1, 1, 1, 1, 1, 1, 1});
      const Tensor segments = Tensor::Scalar<int32_t>(3);
      ExpectTensorEqual(RunOp1(Call("SparseSegmentMean", data, five, of_five)),
                        RowsOf(c.dtype, width, {0, c.mean}));
      ExpectTensorEqual(RunOp1(Call("SparseSegmentSqrtN", data, nine, of_nine)),
                        RowsOf(c.dtype, width, {0, c.sqrt_n}));
      ExpectTensorEqual(
          RunOp1(Call("SparseSegmentMeanWithNumSegments", data, five, of_five).Input(segments)),
          RowsOf(c.dtype, width, {0, c.mean, 0}));
      ExpectTensorEqual(
          RunOp1(Call("SparseSegmentSqrtNWithNumSegments", data, nine, of_nine).Input(segments)),
          RowsOf(c.dtype, width, {0, c.sqrt_n, 0}));
    }
  }
  ExpectOpError(Call("SparseSegmentMean", Tensor::Of<int32_t>({1, 2}), Ints({0}), Ints({0})),
                kInvalid, "int32");
}

// Row 1 gets the large number, and four times a 1: a quarter of 4, or half of 2.
TEST(SparseSegmentGrad, SumsOfNarrowFloatsAreMadeInFloat) {
  const Tensor indices = Ints({1, 1, 1, 1, 1}), ids = Ints({0, 1, 1, 1, 1});
  const Tensor rows = Tensor::Scalar<int32_t>(3);
  for (const auto& [dtype, large] : {std::pair(DT_HALF, 2048.0f), std::pair(DT_BFLOAT16, 256.0f)}) {
    for (const int64_t width : {1, 3, 300}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(dtype), " of width ", width));
      const Tensor want = RowsOf(dtype, width, {0, large + 4, 0});
      ExpectTensorEqual(
          RunOp1(Call("SparseSegmentMeanGrad", RowsOf(dtype, width, {large, 4}), indices, ids)
                     .Input(rows)),
          want);
      ExpectTensorEqual(
          RunOp1(Call("SparseSegmentSqrtNGrad", RowsOf(dtype, width, {large, 2}), indices, ids)
                     .Input(rows)),
          want);
      ExpectTensorEqual(
          RunOp1(Call("SparseSegmentMeanGrad", RowsOf(dtype, width, {large}), Ints({}), Ints({}))
                     .Input(rows)),
          RowsOf(dtype, width, {0, 0, 0}));
    }
  }
}

// What an embedding of half or bfloat16 trains with: the gradient, and the gradient of that.
TEST(SparseSegmentGrad, IsBuiltForNarrowFloats) {
  for (const DType dtype : {DT_HALF, DT_BFLOAT16}) {
    for (const auto& op : {SparseSegmentMean, SparseSegmentSqrtN}) {
      SCOPED_TRACE(absl::StrCat(op.op, " of ", DTypeName(dtype)));
      Scope s;
      const Output x = TestInput(s, dtype, PartialShape({2, 2}));
      const Output weight = TestInput(s, dtype, PartialShape({1, 2}));
      // Row 1 four times: 4 of 4 rows.
      const Output y = op(s, x, Const<int32_t>(s, {1, 1, 1, 1}), Const<int32_t>(s, {0, 0, 0, 0}));
      ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> first,
                           AddGradients(s, {y}, {x}, {.grad_ys = {weight}}));
      ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> second,
                           AddGradients(s, {std::get<Output>(first[0])}, {weight}));
      ASSERT_OK_AND_ASSIGN(
          const std::vector<Tensor> out,
          EvaluateGraph(s, {{x, RowsOf(dtype, 2, {1, 2})}, {weight, RowsOf(dtype, 2, {3})}},
                        {std::get<Output>(first[0]), std::get<Output>(second[0])}));
      const float factor = op.op == SparseSegmentMean.op ? 1 : 2;  // 4 / 4, 4 / root of 4
      ExpectTensorEqual(out[0], RowsOf(dtype, 2, {0, 3 * factor}));
      ExpectTensorEqual(out[1], RowsOf(dtype, 2, {factor}));
    }
  }
}

// Rows are added in their order, whatever the number of rows, of columns and of threads.
TEST(SparseSegment, SumsDoNotDependOnThreads) {
  OpTestDevice one(1), four(4);
  for (const int64_t width : {1, 7, 64}) {
    std::vector<float> table(static_cast<size_t>(1000 * width));
    for (size_t i = 0; i < table.size(); ++i) {
      table[i] = static_cast<float>(i * 7919 % 1000) * 0.001f + 1e-4f;
    }
    std::vector<int32_t> indices, ids;
    for (int32_t segment = 0; segment < 3000; ++segment) {
      for (int32_t i = 0; i < segment % 9; ++i) {
        indices.push_back((segment * 31 + i * 17) % 1000);
        ids.push_back(segment);
      }
    }
    std::vector<float> expected(static_cast<size_t>(3000 * width));
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t j = 0; j < width; ++j) {
        expected[static_cast<size_t>(ids[i] * width + j)] +=
            table[static_cast<size_t>(indices[i] * width + j)];
      }
    }
    ASSERT_OK_AND_ASSIGN(const Tensor data, Tensor::FromValues<float>(Shape({1000, width}), table));
    const auto call = [&](OpTestDevice* device) {
      return RunOp1(Call("SparseSegmentSum", data, Tensor::Vector<int32_t>(indices),
                         Tensor::Vector<int32_t>(ids))
                        .On(device));
    };
    const Tensor sums = call(&one);
    ExpectTensorEqual(sums, call(&four));
    ASSERT_OK_AND_ASSIGN(const Tensor want, Tensor::FromValues<float>(sums.shape(), expected));
    ExpectTensorEqual(sums, want);
  }
}

TEST(SparseSegment, RefusesListsThatDoNotFit) {
  ExpectOpError(Call("SparseSegmentSum", Rows(), Ints({0, 3}), Ints({0, 0})), kInvalid,
                "indices[1] = 3 is not in [0, 3)");
  ExpectOpError(Call("SparseSegmentSum", Rows(), Ints({-1, 0}), Ints({0, 0})), kInvalid,
                "indices[0] = -1 is not in [0, 3)");
  ExpectOpError(Call("SparseSegmentMean", Rows(), Ints({0, 1}), Ints({1, 0})), kInvalid,
                "segment ids are not increasing: segment_ids[1] must be >= 1, got 0");
  ExpectOpError(Call("SparseSegmentMean", Rows(), Ints({0, 1}), Ints({-1, 0})), kInvalid,
                "segment_ids[0] must be >= 0, got -1");
  ExpectOpError(Call("SparseSegmentSum", Rows(), Ints({0, 1}), Ints({0})), kInvalid,
                "segment_ids must have one id for each of the 2 indices, got 1");
  ExpectOpError(Call("SparseSegmentSum", Rows(), Tensor::Of<int32_t>({{0}}), Ints({0})), kInvalid,
                "indices must have rank 1, got shape [1,1]");
  ExpectOpError(Call("SparseSegmentSum", Tensor::Scalar(1.0f), Ints({0}), Ints({0})), kInvalid,
                "data must have rank at least 1");
  // Two thousand million rows of four floats.
  const Status status =
      RunOp(Call("SparseSegmentSum", Rows(), Ints({0}), Ints({2147483647}))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_SHAPE("SparseSegmentSum", {}, {"[4,?]", "[3]", Ints({0, 0, 5})}, "[6,?]");
  EXPECT_SHAPE("SparseSegmentSum", {}, {"[4,3]", "[?]", "[?]"}, "[?,3]");
  EXPECT_SHAPE("SparseSegmentSum", {}, {"<unknown>", "[?]", "[?]"}, "<unknown>");
}

TEST(SparseSegmentGrad, SharesTheGradientOfASegment) {
  const auto call = [](const char* op, Tensor grad, Tensor indices, Tensor ids, int32_t rows) {
    return Call(op, std::move(grad), std::move(indices), std::move(ids))
        .Input(Tensor::Scalar(rows));
  };
  const Tensor grad = Tensor::Of<double>({{4.0, 8.0}, {1.0, 2.0}});
  // Ids of gradients need no order.
  ExpectTensorEqual(
      RunOp1(call("SparseSegmentMeanGrad", grad, Ints({3, 0, 3}), Ints({1, 0, 0}), 4)),
      Tensor::Of<double>({{2.0, 4.0}, {0.0, 0.0}, {0.0, 0.0}, {3.0, 6.0}}));
  ExpectTensorEqual(
      RunOp1(call("SparseSegmentSqrtNGrad", grad, Ints({1, 1, 1, 1}), Ints({0, 0, 0, 0}), 2)),
      Tensor::Of<double>({{0.0, 0.0}, {8.0, 16.0}}));
  ExpectTensorEqual(
      RunOp1(call("SparseSegmentMeanGrad", TensorOf<float>({0, 2}, {}), Ints({}), Ints({}), 1)),
      Tensor::Of<float>({{0, 0}}));
  ExpectOpError(call("SparseSegmentMeanGrad", grad, Ints({4}), Ints({0}), 4), kInvalid,
                "indices[0] = 4 is not in [0, 4)");
  ExpectOpError(call("SparseSegmentMeanGrad", grad, Ints({0}), Ints({2}), 4), kInvalid,
                "segment_ids[0] = 2 is not in [0, 2)");
  ExpectOpError(call("SparseSegmentSqrtNGrad", grad, Ints({0}), Ints({-1}), 4), kInvalid,
                "segment_ids[0] = -1 is not in [0, 2)");
  ExpectOpError(call("SparseSegmentSqrtNGrad", grad, Ints({0}), Ints({0}), -4), kInvalid,
                "output_dim0 must be >= 0, got -4");
  EXPECT_SHAPE("SparseSegmentMeanGrad", {}, {"[?,3]", "[?]", "[?]", Tensor::Scalar<int32_t>(9)},
               "[9,3]");
}

TEST(SparseSegment, GradientsMatchFiniteDifferences) {
  const Tensor x = Tensor::Of<double>({{1.0, -2.0}, {3.0, 4.0}, {5.0, -6.0}});
  const auto indices = [](const Scope& s) { return Const<int32_t>(s, {2, 0, 2, 2}); };
  const auto ids = [](const Scope& s) { return Const<int32_t>(s, {0, 0, 0, 2}); };
  for (const auto& op : {SparseSegmentSum, SparseSegmentMean, SparseSegmentSqrtN}) {
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return op(s, in[0], indices(s), ids(s));
        },
        {x});
  }
  for (const auto& op : {SparseSegmentSumWithNumSegments, SparseSegmentMeanWithNumSegments,
                         SparseSegmentSqrtNWithNumSegments}) {
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return op(s, in[0], indices(s), ids(s), Const(s, 4));
        },
        {x});
  }
  for (const auto& op : {SparseSegmentMeanGrad, SparseSegmentSqrtNGrad}) {
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return op(s, in[0], indices(s), ids(s), Const(s, 4));
        },
        {x});
  }
}

}  // namespace
}  // namespace millrace

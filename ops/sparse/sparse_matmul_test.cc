// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_matmul.h"

#include <complex>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

// covers: values: sparse tensors are multiplied as TensorFlow does; wrong indices and shapes are
//   refused by name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// [[. 2 .] [1 . 3]]
Tensor Indices() { return Tensor::Of<int64_t>({{1, 2}, {0, 1}, {1, 0}}); }
Tensor Values() { return Tensor::Vector<double>({3.0, 2.0, 1.0}); }
Tensor DenseShape() { return Tensor::Of<int64_t>({2, 3}); }

OpCall MatMul(Tensor indices, Tensor values, Tensor shape, Tensor b, bool adjoint_a = false,
              bool adjoint_b = false) {
  return OpCall("SparseTensorDenseMatMul")
      .Input(std::move(indices))
      .Input(std::move(values))
      .Input(std::move(shape))
      .Input(std::move(b))
      .Attr("adjoint_a", adjoint_a)
      .Attr("adjoint_b", adjoint_b);
}

TEST(SparseMatMul, MultipliesMatrices) {
  ExpectTensorEqual(RunOp1(MatMul(Indices(), Values(), DenseShape(),
                                  TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6}))),
                    TensorOf<double>({2, 2}, {6, 8, 16, 20}));
  ExpectTensorEqual(RunOp1(MatMul(Indices(), Values(), DenseShape(),
                                  TensorOf<double>({2, 3}, {1, 3, 5, 2, 4, 6}), false, true)),
                    TensorOf<double>({2, 2}, {6, 8, 16, 20}));
  ExpectTensorEqual(
      RunOp1(MatMul(Indices(), Values(), DenseShape(), TensorOf<double>({2, 1}, {10, 100}), true)),
      TensorOf<double>({3, 1}, {100, 20, 300}));
  ExpectTensorEqual(RunOp1(MatMul(Indices(), Values(), DenseShape(),
                                  TensorOf<double>({1, 2}, {10, 100}), true, true)),
                    TensorOf<double>({3, 1}, {100, 20, 300}));
  // Elements of one place add up; int32.
  ExpectTensorEqual(
      RunOp1(MatMul(Tensor::Of<int32_t>({{0, 0}, {0, 0}}), Tensor::Of<int32_t>({2, 3}),
                    Tensor::Of<int64_t>({1, 1}), Tensor::Of<int32_t>({{7}}))),
      Tensor::Of<int32_t>({{35}}));
  using C = std::complex<float>;
  ExpectTensorEqual(
      RunOp1(MatMul(Tensor::Of<int64_t>({{0, 0}}), TensorOf<C>({1}, {{1, 2}}),
                    Tensor::Of<int64_t>({1, 1}), TensorOf<C>({1, 1}, {{3, 4}}), true, true)),
      TensorOf<C>({1, 1}, {std::conj(C(1, 2)) * std::conj(C(3, 4))}));
  // Nothing.
  const Tensor none = TensorOf<int64_t>({0, 2}, {});
  ExpectTensorEqual(RunOp1(MatMul(none, TensorOf<float>({0}, {}), Tensor::Of<int64_t>({2, 0}),
                                  TensorOf<float>({0, 2}, {}))),
                    Tensor::Of<float>({{0, 0}, {0, 0}}));
  ExpectTensorEqual(RunOp1(MatMul(none, TensorOf<float>({0}, {}), Tensor::Of<int64_t>({0, 1}),
                                  Tensor::Of<float>({{1, 2}}))),
                    TensorOf<float>({0, 2}, {}));
}

TEST(SparseMatMul, DoesNotDependOnThreads) {
  constexpr int64_t kRows = 60, kInner = 200, kColumns = 150;
  std::vector<int64_t> indices;
  std::vector<float> values, b;
  for (int64_t i = 0; i < 20000; ++i) {
    indices.insert(indices.end(), {i * 31 % kRows, i * 17 % kInner});
    values.push_back(1.0f / static_cast<float>(i + 1));
  }
  for (int64_t i = 0; i < kInner * kColumns; ++i) b.push_back(static_cast<float>(i % 101) * 0.01f);
  const auto run = [&](int threads) {
    OpTestDevice device(threads);
    return RunOp1(MatMul(*Tensor::FromValues<int64_t>(Shape({20000, 2}), indices),
                         Tensor::Vector<float>(values), Tensor::Of<int64_t>({kRows, kInner}),
                         *Tensor::FromValues<float>(Shape({kInner, kColumns}), b))
                      .On(&device));
  };
  ExpectTensorEqual(run(1), run(4));
}

TEST(SparseMatMul, RefusesWhatDoesNotFit) {
  const Tensor b = TensorOf<double>({3, 1}, {1, 2, 3});
  ExpectOpError(
      MatMul(Tensor::Of<int64_t>({{0, 3}}), Tensor::Vector<double>({1.0}), DenseShape(), b),
      kInvalid, "a_indices[0,1] = 3 is out of bounds: need 0 <= index < 3");
  ExpectOpError(
      MatMul(Tensor::Of<int64_t>({{-1, 0}}), Tensor::Vector<double>({1.0}), DenseShape(), b),
      kInvalid, "a_indices[0,0] = -1 is out of bounds: need 0 <= index < 2");
  ExpectOpError(MatMul(Indices(), Values(), DenseShape(), b, true), kInvalid,
                "a and b must agree in the inner dimension, got 2 and 3");
  ExpectOpError(MatMul(Indices(), Values(), DenseShape(), b, false, true), kInvalid,
                "a and b must agree in the inner dimension, got 3 and 1");
  ExpectOpError(MatMul(Indices(), Values(), Tensor::Of<int64_t>({2, 3, 1}), b), kInvalid,
                "a_indices must have one column for each of the 3 dimensions of a_shape");
  ExpectOpError(MatMul(Tensor::Of<int64_t>({{0}}), Tensor::Vector<double>({1.0}),
                       Tensor::Of<int64_t>({2}), b),
                kInvalid, "a_shape must be that of a matrix, got 1 dimensions");
  ExpectOpError(MatMul(Indices(), Values(), Tensor::Of<int64_t>({-2, 3}), b), kInvalid,
                "a_shape[0] must be >= 0, got -2");
  ExpectOpError(MatMul(Indices(), Values(), DenseShape(), Tensor::Vector<double>({1.0})), kInvalid,
                "b");
  EXPECT_SHAPE("SparseTensorDenseMatMul", {{"adjoint_a", true}},
               {"[?,2]", "[?]", Tensor::Of<int64_t>({4, 5}), "[4,?]"}, "[5,?]");
  EXPECT_SHAPE("SparseTensorDenseMatMul", {{"adjoint_b", true}}, {"[?,2]", "[?]", "[2]", "[7,?]"},
               "[?,7]");
}

TEST(SparseMatMul, GradientsMatchFiniteDifferences) {
  for (const bool adjoint_a : {false, true}) {
    for (const bool adjoint_b : {false, true}) {
      const BuildOutput build = [=](const Scope& s, const std::vector<Output>& in) {
        return SparseTensorDenseMatMul(s, {Const(s, Indices()), in[0], Const(s, DenseShape())},
                                       in[1], {.adjoint_a = adjoint_a, .adjoint_b = adjoint_b});
      };
      const int64_t inner = adjoint_a ? 2 : 3;
      const Shape shape = adjoint_b ? Shape({2, inner}) : Shape({inner, 2});
      const std::vector<double> numbers = {1, -2, 3, 4, -5, 6};
      const std::vector<std::complex<double>> pairs = {{1, 2},   {-2, 1}, {3, 0},
                                                       {0.5, 4}, {1, -5}, {6, 1}};
      const size_t n = static_cast<size_t>(shape.num_elements());
      ExpectGradientsMatch(build, {Values(), *Tensor::FromValues<double>(
                                                 shape, absl::MakeConstSpan(numbers).first(n))});
      ExpectGradientsMatch(build, {TensorOf<std::complex<double>>({3}, {{1, -1}, {2, 0.5}, {0, 3}}),
                                   *Tensor::FromValues<std::complex<double>>(
                                       shape, absl::MakeConstSpan(pairs).first(n))});
    }
  }
}

}  // namespace
}  // namespace millrace

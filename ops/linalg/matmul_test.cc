// SPDX-License-Identifier: Apache-2.0
#include "ops/linalg/matmul.h"

#include <complex>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Small integers, so that every type computes them exactly. Deterministic.
template <typename T>
Tensor Matrix(const Shape& shape, int seed) {
  Tensor t = Tensor::Allocate(DTypeOf<T>, shape).value();
  const absl::Span<T> values = t.mutable_flat<T>();
  for (size_t i = 0; i < values.size(); ++i) {
    const int v = static_cast<int>((i * 7 + static_cast<size_t>(seed) * 13) % 11) - 5;
    if constexpr (std::is_same_v<T, Half>) {
      values[i] = ToHalf(static_cast<float>(v));
    } else if constexpr (std::is_same_v<T, Bfloat16>) {
      values[i] = ToBfloat16(static_cast<float>(v));
    } else if constexpr (std::is_same_v<T, std::complex<float>> ||
                         std::is_same_v<T, std::complex<double>>) {
      values[i] = T(static_cast<typename T::value_type>(v),
                    static_cast<typename T::value_type>((v * 3) % 5));
    } else {
      values[i] = static_cast<T>(v);
    }
  }
  return t;
}

template <typename T>
auto Value(const T& v) {
  if constexpr (std::is_same_v<T, Half> || std::is_same_v<T, Bfloat16>) {
    return ToFloat(v);
  } else {
    return v;
  }
}

// The product by its definition.
template <typename T>
Tensor Reference(const Tensor& a, const Tensor& b, bool ta, bool tb, int64_t m, int64_t n,
                 int64_t k, bool conjugate) {
  Tensor c = Tensor::Allocate(DTypeOf<T>, Shape::Make({m, n}).value()).value();
  const auto at = [](const Tensor& t, int64_t i) {
    return Value(t.flat<T>()[static_cast<size_t>(i)]);
  };
  using V = decltype(at(a, 0));
  const auto factor = [&](V v, bool transposed) {
    if constexpr (std::is_same_v<T, std::complex<float>> ||
                  std::is_same_v<T, std::complex<double>>) {
      return conjugate && transposed ? std::conj(v) : v;
    } else {
      return v;
    }
  };
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      V sum = V(0);
      for (int64_t p = 0; p < k; ++p) {
        sum += factor(at(a, ta ? p * m + i : i * k + p), ta) *
               factor(at(b, tb ? j * k + p : p * n + j), tb);
      }
      T& out = c.mutable_flat<T>()[static_cast<size_t>(i * n + j)];
      if constexpr (std::is_same_v<T, Half>) {
        out = ToHalf(sum);
      } else if constexpr (std::is_same_v<T, Bfloat16>) {
        out = ToBfloat16(sum);
      } else {
        out = sum;
      }
    }
  }
  return c;
}

template <typename T>
void ExpectProducts(int64_t m, int64_t n, int64_t k) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(DTypeOf<T>), " ", m, "x", k, "x", n, " ", ta, tb));
      const Tensor a = Matrix<T>(ta ? ShapeOf({k, m}) : ShapeOf({m, k}), 1);
      const Tensor b = Matrix<T>(tb ? ShapeOf({n, k}) : ShapeOf({k, n}), 2);
      ExpectTensorEqual(
          RunOp1(
              OpCall("MatMul").Input(a).Input(b).Attr("transpose_a", ta).Attr("transpose_b", tb)),
          Reference<T>(a, b, ta, tb, m, n, k, false));
      ExpectTensorEqual(
          RunOp1(OpCall("BatchMatMul").Input(a).Input(b).Attr("adj_x", ta).Attr("adj_y", tb)),
          Reference<T>(a, b, ta, tb, m, n, k, true));
    }
  }
}

TEST(MatMul, EqualsTheDefinitionForEveryTypeAndTranspose) {
  ExpectProducts<float>(3, 4, 5);
  ExpectProducts<double>(3, 4, 5);
  ExpectProducts<int32_t>(3, 4, 5);
  ExpectProducts<int64_t>(3, 4, 5);
  ExpectProducts<Half>(3, 4, 5);
  ExpectProducts<Bfloat16>(2, 3, 2);
  ExpectProducts<std::complex<float>>(3, 2, 4);
  ExpectProducts<std::complex<double>>(3, 2, 4);
}

// Large enough for oneDNN and for more than one slice, along rows and along columns.
TEST(MatMul, SlicesEqualTheDefinition) {
  ExpectProducts<float>(130, 33, 70);
  ExpectProducts<float>(5, 150, 64);
  ExpectProducts<float>(1, 300, 100);
  ExpectProducts<double>(130, 33, 70);
  ExpectProducts<double>(5, 150, 64);
}

TEST(MatMul, EmptyMatricesGiveZerosOrNothing) {
  ExpectTensorEqual(
      RunOp1(
          OpCall("MatMul").Input(TensorOf<float>({2, 0}, {})).Input(TensorOf<float>({0, 2}, {}))),
      TensorOf<float>({2, 2}, {0, 0, 0, 0}));
  ExpectTensorEqual(RunOp1(OpCall("MatMul")
                               .Input(TensorOf<float>({0, 3}, {}))
                               .Input(TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6}))),
                    TensorOf<float>({0, 2}, {}));
  ExpectTensorEqual(RunOp1(OpCall("BatchMatMul")
                               .Input(TensorOf<double>({1, 2, 0}, {}))
                               .Input(TensorOf<double>({1, 0, 1}, {}))),
                    TensorOf<double>({1, 2, 1}, {0, 0}));
  ExpectTensorEqual(RunOp1(OpCall("BatchMatMulV2")
                               .Input(TensorOf<float>({0, 2, 2}, {}))
                               .Input(TensorOf<float>({2, 2}, {1, 2, 3, 4}))),
                    TensorOf<float>({0, 2, 2}, {}));
}

TEST(MatMul, RefusesWhatIsNoProduct) {
  const Tensor a = TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  ExpectOpError(OpCall("MatMul").Input(a).Input(a), kInvalid,
                "Matrix size-incompatible: In[0]: [2,3], In[1]: [2,3]");
  ExpectOpError(OpCall("MatMul").Input(Tensor::Vector<float>({1})).Input(a), kInvalid, "[1]");
  ExpectOpError(OpCall("BatchMatMul").Input(Tensor::Vector<float>({1})).Input(a), kInvalid, "[1]");
  const Tensor x = TensorOf<float>({2, 1, 1}, {1, 2});
  const Tensor y = TensorOf<float>({3, 1, 1}, {1, 2, 3});
  ExpectOpError(OpCall("BatchMatMul").Input(x).Input(y), kInvalid,
                "In[0] and In[1] must have equal batch dimensions, got [2,1,1] and [3,1,1]");
  ExpectOpError(OpCall("BatchMatMulV2").Input(x).Input(y), kInvalid,
                "In[0] and In[1] must have compatible batch dimensions");
  // Broadcasting is for V2.
  ExpectOpError(OpCall("BatchMatMul").Input(x).Input(TensorOf<float>({1, 1, 1}, {1})), kInvalid,
                "equal batch dimensions");
}

TEST(MatMul, InfersShapes) {
  EXPECT_SHAPE("MatMul", {}, {"[2,3]", "[3,4]"}, "[2,4]");
  EXPECT_SHAPE("MatMul", {{"transpose_b", true}}, {"[2,3]", "[?,3]"}, "[2,?]");
  EXPECT_SHAPE("MatMul", {{"transpose_a", true}}, {"[3,?]", "<unknown>"}, "[?,?]");
  EXPECT_SHAPE_ERROR("MatMul", {}, {"[2,3]", "[4,5]"}, "Matrix size-incompatible");
  EXPECT_SHAPE_ERROR("MatMul", {}, {"[2,3,4]", "[4,5]"}, "rank 2");
  EXPECT_SHAPE("BatchMatMul", {}, {"[7,2,3]", "[?,3,4]"}, "[7,2,4]");
  EXPECT_SHAPE("BatchMatMul", {{"adj_x", true}}, {"[7,3,2]", "<unknown>"}, "[7,2,?]");
  EXPECT_SHAPE("BatchMatMulV2", {}, {"[7,1,2,3]", "[5,3,4]"}, "[7,5,2,4]");
  EXPECT_SHAPE("BatchMatMulV2", {}, {"[2,3]", "[5,3,4]"}, "[5,2,4]");
  EXPECT_SHAPE("BatchMatMulV2", {}, {"<unknown>", "[5,3,4]"}, "<unknown>");
  EXPECT_SHAPE_ERROR("BatchMatMulV2", {}, {"[2,2,3]", "[5,3,4]"}, "batch dimensions");
}

TEST(BatchMatMul, MultipliesEachPair) {
  const Tensor x = TensorOf<float>({2, 1, 2}, {1, 2, 3, 4});
  const Tensor y = TensorOf<float>({2, 2, 1}, {5, 6, 7, 8});
  ExpectTensorEqual(RunOp1(OpCall("BatchMatMul").Input(x).Input(y)),
                    TensorOf<float>({2, 1, 1}, {17, 53}));
  // [2,1] x [3] batches: all six pairs.
  const Tensor a = TensorOf<int32_t>({2, 1, 1, 1}, {2, 3});
  const Tensor b = TensorOf<int32_t>({3, 1, 1}, {10, 20, 30});
  ExpectTensorEqual(RunOp1(OpCall("BatchMatMulV2").Input(a).Input(b)),
                    TensorOf<int32_t>({2, 3, 1, 1}, {20, 40, 60, 30, 60, 90}));
}

// One large pair is sliced, with a batch of fewer products than threads.
TEST(BatchMatMul, SlicedProductEqualsMatMul) {
  const Tensor x = Matrix<float>(ShapeOf({100, 50}), 3);
  const Tensor y = Matrix<float>(ShapeOf({50, 40}), 4);
  const Tensor want = RunOp1(OpCall("MatMul").Input(x).Input(y));
  const Tensor got =
      RunOp1(OpCall("BatchMatMulV2").Input(x.Reshaped(ShapeOf({1, 100, 50})).value()).Input(y));
  ExpectTensorEqual(got.Reshaped(ShapeOf({100, 40})).value(), want);
}

TEST(MatMul, GradientsMatch) {
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Shape a = ta ? ShapeOf({3, 2}) : ShapeOf({2, 3});
      const Shape b = tb ? ShapeOf({2, 3}) : ShapeOf({3, 2});
      ExpectGradientsMatch(BuildOutput([=](const Scope& s, const std::vector<Output>& in) {
                             return MatMul(s, in[0], in[1], {.transpose_a = ta, .transpose_b = tb});
                           }),
                           {Matrix<double>(a, 1), Matrix<double>(b, 2)});
      ExpectGradientsMatch(BuildOutput([=](const Scope& s, const std::vector<Output>& in) {
                             return BatchMatMul(s, in[0], in[1], {.adj_x = ta, .adj_y = tb});
                           }),
                           {Matrix<double>(a, 3), Matrix<double>(b, 4)});
    }
  }
}

TEST(BatchMatMul, BroadcastGradientsMatch) {
  const auto product = BuildOutput(
      [](const Scope& s, const std::vector<Output>& in) { return BatchMatMulV2(s, in[0], in[1]); });
  ExpectGradientsMatch(
      product, {Matrix<double>(ShapeOf({2, 1, 2, 3}), 1), Matrix<double>(ShapeOf({2, 3, 2}), 2)});
  ExpectGradientsMatch(product,
                       {Matrix<double>(ShapeOf({2, 3}), 1), Matrix<double>(ShapeOf({2, 3, 2}), 2)});
  ExpectGradientsMatch(
      product, {Matrix<double>(ShapeOf({2, 2, 3}), 1), Matrix<double>(ShapeOf({2, 3, 2}), 2)});
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/math/scan.h"

#include <complex>
#include <variant>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Call(absl::string_view op, const Tensor& x, int32_t axis, bool exclusive, bool reverse) {
  return RunOp1(OpCall(op)
                    .Input(x)
                    .Input(Tensor::Scalar<int32_t>(axis))
                    .Attr("exclusive", exclusive)
                    .Attr("reverse", reverse));
}

TEST(Scan, RunsFromEitherEnd) {
  const Tensor x = Tensor::Vector<float>({2, 3, 4});
  ExpectTensorEqual(Call("Cumsum", x, 0, false, false), Tensor::Vector<float>({2, 5, 9}));
  ExpectTensorEqual(Call("Cumsum", x, 0, true, false), Tensor::Vector<float>({0, 2, 5}));
  ExpectTensorEqual(Call("Cumsum", x, 0, false, true), Tensor::Vector<float>({9, 7, 4}));
  ExpectTensorEqual(Call("Cumsum", x, 0, true, true), Tensor::Vector<float>({7, 4, 0}));
  ExpectTensorEqual(Call("Cumprod", x, 0, false, false), Tensor::Vector<float>({2, 6, 24}));
  ExpectTensorEqual(Call("Cumprod", x, -1, true, true), Tensor::Vector<float>({12, 4, 1}));
}

TEST(Scan, RunsAlongAnyAxis) {
  const Tensor x = TensorOf<int32_t>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  ExpectTensorEqual(Call("Cumsum", x, 0, false, false),
                    TensorOf<int32_t>({2, 2, 2}, {1, 2, 3, 4, 6, 8, 10, 12}));
  ExpectTensorEqual(Call("Cumsum", x, 1, false, false),
                    TensorOf<int32_t>({2, 2, 2}, {1, 2, 4, 6, 5, 6, 12, 14}));
  ExpectTensorEqual(Call("Cumsum", x, 2, false, false),
                    TensorOf<int32_t>({2, 2, 2}, {1, 3, 3, 7, 5, 11, 7, 15}));
  ExpectTensorEqual(Call("Cumprod", TensorOf<int8_t>({0, 3}, {}), 1, false, false),
                    TensorOf<int8_t>({0, 3}, {}));
}

TEST(Scan, LinesWithoutElementsTakeNoTime) {
  ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make({int64_t{1} << 40, 0}));
  ASSERT_OK_AND_ASSIGN(const Tensor none, Tensor::Zeros(DT_FLOAT, shape));
  EXPECT_EQ(RunOp1(OpCall("Cumsum").Input(none).Input(Tensor::Scalar<int32_t>(1))).shape(), shape);
}

TEST(Scan, RefusesBadAxes) {
  for (const char* op : {"Cumsum", "Cumprod"}) {
    for (const int32_t axis : {1, -2}) {
      ExpectOpError(
          OpCall(op).Input(Tensor::Vector<float>({1})).Input(Tensor::Scalar<int32_t>(axis)),
          kInvalid, absl::StrCat("Expected scan axis in the range [-1, 1), but got ", axis));
    }
    ExpectOpError(OpCall(op).Input(Tensor::Vector<float>({1})).Input(Tensor::Vector<int32_t>({0})),
                  kInvalid, "axis must be a scalar, got shape [1]");
    EXPECT_SHAPE(op, {}, {"[2,?]", "[]"}, "[2,?]");
    EXPECT_SHAPE_ERROR(op, {}, {"[2,3]", Tensor::Scalar<int32_t>(2)}, "Expected scan axis");
  }
}

TEST(Scan, GradientsMatch) {
  const Tensor x = TensorOf<double>({2, 3}, {0.3, -1.2, 2.5, 0.7, -0.9, 1.1});
  for (const bool exclusive : {false, true}) {
    for (const bool reverse : {false, true}) {
      const ScanAttrs attrs = {.exclusive = exclusive, .reverse = reverse};
      ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                             return Cumsum(s, in[0], Const(s, int32_t{1}), attrs);
                           }),
                           {x});
      ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                             return Cumprod(s, in[0], Const(s, int32_t{1}), attrs);
                           }),
                           {x});
    }
  }
}

// Values by the sum over j >= i of grad[j] * product of x[k], k <= j, k != i.
TEST(Scan, GradientOfProductsIsRightAtZeros) {
  struct Case {
    std::vector<double> x;
    ScanAttrs attrs;
    std::vector<double> gradient;
  };
  const ScanAttrs exclusive = {.exclusive = true}, reverse = {.reverse = true};
  const ScanAttrs both = {.exclusive = true, .reverse = true};
  const Case cases[] = {
      {{0, 2, 3}, {}, {9, 0, 0}},
      {{2, 3, 0}, {}, {4, 2, 6}},
      {{2, 0, 0, 3}, {}, {1, 2, 0, 0}},
      {{0, 0}, {}, {1, 0}},
      {{0, 2, 3}, exclusive, {3, 0, 0}},
      {{2, 3, 0}, exclusive, {4, 2, 0}},
      {{2, 0, 0, 3}, exclusive, {1, 2, 0, 0}},
      {{0, 2, 3}, reverse, {6, 3, 3}},
      {{2, 3, 0}, reverse, {0, 0, 10}},
      {{2, 0, 0, 3}, reverse, {0, 0, 3, 1}},
      {{0, 2, 3}, both, {0, 3, 3}},
      {{2, 3, 0}, both, {0, 0, 4}},
  };
  for (const Case& c : cases) {
    Scope s;
    const Output x = TestInput(s, DT_DOUBLE, PartialShape({-1}));
    const Output y = Cumprod(s, x, Const(s, int32_t{0}), c.attrs);
    ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> grads, AddGradients(s, {y}, {x}));
    const Output gradient = std::get<Output>(grads[0]);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                         EvaluateGraph(s, {{x, Tensor::Vector<double>(c.x)}}, {gradient}));
    ExpectTensorEqual(out[0], Tensor::Vector<double>(c.gradient));
  }
}

// The sum of all second derivatives by x[m] and another one of the sum of all products, by their
// definition: products[j] has a derivative by x[i] and x[m] where it contains both, the product of
// the others.
std::vector<double> SecondDerivatives(const std::vector<double>& x, const ScanAttrs& attrs) {
  const int n = static_cast<int>(x.size());
  const auto contains = [&](int j, int k) {
    if (k == j) return !attrs.exclusive;
    return attrs.reverse ? k > j : k < j;
  };
  std::vector<double> sums(x.size(), 0);
  for (int j = 0; j < n; ++j) {
    for (int m = 0; m < n; ++m) {
      for (int i = 0; i < n; ++i) {
        if (i == m || !contains(j, i) || !contains(j, m)) continue;
        double product = 1;
        for (int k = 0; k < n; ++k) {
          if (k != i && k != m && contains(j, k)) product *= x[static_cast<size_t>(k)];
        }
        sums[static_cast<size_t>(m)] += product;
      }
    }
  }
  return sums;
}

TEST(Scan, SecondGradientOfProductsIsRightAtZeros) {
  // By hand: x0 x1 gives x0 and x1 a 1, x0 x1 x2 gives x1 and x2 a 2, x0 x1 x2 x3 those a 6.
  EXPECT_EQ(SecondDerivatives({2, 0, 0, 3}, {}), (std::vector<double>{1, 9, 8, 0}));
  const std::vector<double> lines[] = {
      {2, 3, 5},    {0, 2, 3},          {2, 3, 0},    {0, 0},
      {2, 0, 0, 3}, {0, 3, 0, 2},       {3, 2, 0, 0}, {0, 0, 0, 5},
      {0, 0, 0, 0}, {2, 0, 3, 0, 5, 0}, {7, 0},       {-0.5, 0, 0.25, 0, -3},
  };
  for (const bool exclusive : {false, true}) {
    for (const bool reverse : {false, true}) {
      const ScanAttrs attrs = {.exclusive = exclusive, .reverse = reverse};
      for (const std::vector<double>& line : lines) {
        Scope s;
        const Output x = TestInput(s, DT_DOUBLE, PartialShape({-1}));
        const Output y = Cumprod(s, x, Const(s, int32_t{0}), attrs);
        ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> first, AddGradients(s, {y}, {x}));
        ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> second,
                             AddGradients(s, {std::get<Output>(first[0])}, {x}));
        const Tensor at = Tensor::Vector<double>(line);
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                             EvaluateGraph(s, {{x, at}}, {std::get<Output>(second[0])}));
        SCOPED_TRACE(
            absl::StrCat("exclusive ", exclusive, ", reverse ", reverse, " of ", at.DebugString()));
        ExpectTensorNear(out[0], Tensor::Vector<double>(SecondDerivatives(line, attrs)), 1e-12, 0);
      }
    }
  }
}

TEST(Scan, SecondGradientsOfProductsWithZerosMatch) {
  // Rows with two zeros, one and three; columns with two. Weights of both orders, complex numbers.
  const Tensor x = TensorOf<double>({3, 4}, {0.3, 0, 2.5, 0, 0.7, 0, 1.1, -2, 0, 0.4, 0, 0});
  const Tensor complex = TensorOf<std::complex<double>>({3}, {{0, 0}, {0.3, 0.8}, {0, 0}});
  const auto gradient = [](const ScanAttrs& attrs, int32_t axis) {
    return BuildOutput([=](const Scope& s, const std::vector<Output>& in) {
      const Output y = Cumprod(s, in[0], Const(s, axis), attrs);
      const auto gradients = AddGradients(s, {y}, {in[0]}, {.grad_ys = {in[1]}});
      return gradients.ok() ? std::get<Output>((*gradients)[0]) : Output();
    });
  };
  const Tensor weights = TensorOf<double>({3, 4}, {1, -2, 0.5, 3, 2, 1, -1, 0.3, 0.7, 2, -3, 1.5});
  const Tensor of_complex = TensorOf<std::complex<double>>({3}, {{1, 2}, {-0.5, 1}, {2, -0.3}});
  for (const bool exclusive : {false, true}) {
    for (const bool reverse : {false, true}) {
      const ScanAttrs attrs = {.exclusive = exclusive, .reverse = reverse};
      for (const int32_t axis : {0, 1}) ExpectGradientsMatch(gradient(attrs, axis), {x, weights});
      ExpectGradientsMatch(gradient(attrs, 0), {complex, of_complex});
    }
  }
}

TEST(Scan, GradientsOfProductsWithZerosMatch) {
  // Rows without a 0, with one and with two; columns with one.
  const Tensor x = TensorOf<double>({3, 3}, {0.3, -1.2, 2.5, 0.7, 0, 1.1, 0, 0.4, 0});
  const Tensor complex = TensorOf<std::complex<double>>({3}, {{0.3, 0.8}, {0, 0}, {-1, 2}});
  for (const bool exclusive : {false, true}) {
    for (const bool reverse : {false, true}) {
      const ScanAttrs attrs = {.exclusive = exclusive, .reverse = reverse};
      for (const int32_t axis : {0, 1}) {
        ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                               return Cumprod(s, in[0], Const(s, axis), attrs);
                             }),
                             {x});
      }
      ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                             return Cumprod(s, in[0], Const(s, int32_t{0}), attrs);
                           }),
                           {complex});
    }
  }
}

}  // namespace
}  // namespace millrace

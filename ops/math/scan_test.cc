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

// SPDX-License-Identifier: Apache-2.0
#include "ops/linalg/qr.h"

#include <cmath>
#include <complex>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/linalg/matmul.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

// By Gram and Schmidt: r11 = sqrt(35), r12 = 44 / r11, r22 = sqrt(56 - r12^2); the signs are those
// of numpy.linalg.qr.
TEST(Qr, IsThatOfHouseholdersMethod) {
  const OpCall call = OpCall("Qr").Input(TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunOp(call));
  ExpectTensorNear(
      out[0],
      TensorOf<double>({3, 2}, {-0.16903085094570325, 0.89708522714506, -0.50709255283710986,
                                0.27602622373694213, -0.84515425472851657, -0.34503277967117707}),
      1e-12, 1e-12);
  ExpectTensorNear(
      out[1],
      TensorOf<double>({2, 2}, {-5.9160797830996161, -7.437357441610946, 0, 0.82807867121082846}),
      1e-12, 1e-12);
}

// q r is the input, and the columns of q are orthonormal.
template <typename T>
void ExpectDecomposes(const Tensor& input, bool full_matrices, std::vector<int64_t> q_dims,
                      std::vector<int64_t> r_dims) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("Qr").Input(input).Attr("full_matrices", full_matrices)));
  EXPECT_EQ(out[0].shape(), *Shape::Make(q_dims));
  EXPECT_EQ(out[1].shape(), *Shape::Make(r_dims));
  ExpectTensorNear(RunOp1(OpCall("BatchMatMul").Input(out[0]).Input(out[1])), input, 1e-4, 1e-5);
  const Tensor squares =
      RunOp1(OpCall("BatchMatMul").Input(out[0]).Input(out[0]).Attr("adj_x", true));
  const int64_t p = q_dims.back();
  const absl::Span<const T> values = squares.raw<T>();
  for (int64_t i = 0; i < squares.num_elements(); ++i) {
    const bool on_diagonal = i % (p * p) % (p + 1) == 0;
    EXPECT_LT(std::abs(values[static_cast<size_t>(i)] - T(on_diagonal ? 1 : 0)), 1e-5) << i;
  }
}

TEST(Qr, DecomposesStacksOfMatricesOfAllForms) {
  const Tensor stack = TensorOf<float>({2, 3, 2}, {1, 2, 3, 4, 5, 6, 0, -1, 2, 2, 7, 1});
  ExpectDecomposes<float>(stack, false, {2, 3, 2}, {2, 2, 2});
  ExpectDecomposes<float>(stack, true, {2, 3, 3}, {2, 3, 2});
  const Tensor wide = TensorOf<double>({2, 3}, {1, 2, 3, 4, 5, 6});
  ExpectDecomposes<double>(wide, false, {2, 2}, {2, 3});
  ExpectDecomposes<double>(wide, true, {2, 2}, {2, 3});
  using C = std::complex<double>;
  ExpectDecomposes<C>(TensorOf<C>({2, 2}, {{1, 2}, {0, 1}, {-3, 1}, {2, 2}}), false, {2, 2},
                      {2, 2});
}

TEST(Qr, OfNothingIsNothing) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(OpCall("Qr").Input(TensorOf<float>({3, 0}, {}))));
  EXPECT_EQ(out[0].shape(), (Shape{3, 0}));
  EXPECT_EQ(out[1].shape(), (Shape{0, 0}));
  EXPECT_OK(RunOp(OpCall("Qr").Input(TensorOf<float>({0, 2, 2}, {}))));
}

TEST(Qr, InfersShapes) {
  EXPECT_SHAPE("Qr", {}, {"[5,3]"}, "[5,3];[3,3]");
  EXPECT_SHAPE("Qr", {}, {"[7,3,5]"}, "[7,3,3];[7,3,5]");
  EXPECT_SHAPE("Qr", {{"full_matrices", true}}, {"[5,3]"}, "[5,5];[5,3]");
  EXPECT_SHAPE("Qr", {}, {"[?,3]"}, "[?,?];[?,3]");
  EXPECT_SHAPE("Qr", {}, {"<unknown>"}, "<unknown>;<unknown>");
  EXPECT_SHAPE_ERROR("Qr", {}, {"[3]"}, "input must have rank at least 2");
  ExpectOpError(OpCall("Qr").Input(TensorOf<float>({3}, {1, 2, 3})),
                absl::StatusCode::kInvalidArgument, "input must have rank at least 2");
}

}  // namespace
}  // namespace millrace

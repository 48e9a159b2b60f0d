// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/activations.h"

#include <cmath>
#include <complex>
#include <limits>
#include <variant>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Tensor Call(absl::string_view op, const Tensor& x) { return RunOp1(OpCall(op).Input(x)); }

// Values of an independent implementation (Python's math, 17 digits, rounded to float).
TEST(Activations, ComputeFloats) {
  const Tensor x = Tensor::Vector<float>({-3, -0.5, 0, 0.5, 7});
  ExpectTensorEqual(Call("Relu", x), Tensor::Vector<float>({0, 0, 0, 0.5, 7}));
  ExpectTensorEqual(Call("Relu6", x), Tensor::Vector<float>({0, 0, 0, 0.5, 6}));
  ExpectTensorNear(Call("Elu", x), Tensor::Vector<float>({-0.95021293f, -0.39346934f, 0, 0.5, 7}),
                   1e-6, 0);
  ExpectTensorNear(Call("Selu", x),
                   Tensor::Vector<float>({-1.6705687f, -0.69175817f, 0, 0.52535049f, 7.3549069f}),
                   1e-6, 0);
  ExpectTensorNear(
      Call("Softplus", x),
      Tensor::Vector<float>({0.048587352f, 0.47407698f, 0.69314718f, 0.97407698f, 7.0009115f}),
      1e-6, 0);
  ExpectTensorNear(Call("Softsign", x),
                   Tensor::Vector<float>({-0.75f, -0.33333333f, 0, 0.33333333f, 0.875f}), 1e-6, 0);
  ExpectTensorNear(Call("LeakyRelu", x), Tensor::Vector<float>({-0.6f, -0.1f, 0, 0.5, 7}), 1e-6, 0);
  ExpectTensorNear(RunOp1(OpCall("LeakyRelu").Input(x).Attr("alpha", 0.5f)),
                   Tensor::Vector<float>({-1.5f, -0.25f, 0, 0.5, 7}), 1e-6, 0);
}

TEST(Activations, ComputeIntegersAndHalf) {
  ExpectTensorEqual(Call("Relu", Tensor::Vector<int32_t>({-3, 3})),
                    Tensor::Vector<int32_t>({0, 3}));
  ExpectTensorEqual(Call("Relu6", Tensor::Vector<uint8_t>({3, 200})),
                    Tensor::Vector<uint8_t>({3, 6}));
  ExpectTensorEqual(Call("Relu", TensorOf<Half>({2}, {ToHalf(-1), ToHalf(2)})),
                    TensorOf<Half>({2}, {ToHalf(0), ToHalf(2)}));
  ExpectTensorEqual(RunOp1(OpCall("ReluGrad")
                               .Input(Tensor::Vector<int64_t>({5, 6}))
                               .Input(Tensor::Vector<int64_t>({-1, 1}))),
                    Tensor::Vector<int64_t>({0, 6}));
}

TEST(Activations, KeepNanAndLimits) {
  for (const char* op : {"Relu", "Relu6", "Elu", "Selu", "Softplus", "Softsign", "LeakyRelu"}) {
    SCOPED_TRACE(op);
    // Long enough for the vector loop.
    std::vector<float> x(17, kNan);
    x[3] = 1;
    const Tensor y = Call(op, Tensor::Vector<float>(x));
    EXPECT_TRUE(std::isnan(y.flat<float>()[0]));
    EXPECT_TRUE(std::isnan(y.flat<float>()[16]));
    EXPECT_FALSE(std::isnan(y.flat<float>()[3]));
    ExpectTensorEqual(Call(op, TensorOf<double>({0}, {})), TensorOf<double>({0}, {}));
  }
  const std::vector<float> x = {-kInf, -kInf, -kInf, -kInf, kInf, kInf, kInf, kInf};
  const Tensor softplus = Call("Softplus", Tensor::Vector<float>(x));
  EXPECT_NEAR(softplus.flat<float>()[0], 0, 1e-38);
  EXPECT_EQ(softplus.flat<float>()[7], kInf);
  const Tensor elu = Call("Elu", Tensor::Vector<float>(x));
  EXPECT_EQ(elu.flat<float>()[0], -1);
  EXPECT_EQ(elu.flat<float>()[7], kInf);
}

// A block boundary of the exponential units lies at 1,024 elements.
TEST(Activations, LongEluEqualsShortOnes) {
  std::vector<double> x(2500), want(2500);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = 0.01 * (static_cast<double>(i) - 1250);
    want[i] = x[i] < 0 ? std::expm1(x[i]) : x[i];
  }
  ExpectTensorNear(Call("Elu", Tensor::Vector<double>(x)), Tensor::Vector<double>(want), 1e-13, 0);
}

TEST(Activations, RefuseDifferentShapes) {
  for (const char* op : {"ReluGrad", "Relu6Grad", "EluGrad", "SeluGrad", "SoftplusGrad",
                         "SoftsignGrad", "LeakyReluGrad"}) {
    ExpectOpError(OpCall(op).Input(Tensor::Vector<float>({1, 2})).Input(Tensor::Vector<float>({1})),
                  absl::StatusCode::kInvalidArgument,
                  "inputs must have the same shape, got [2] and [1]");
    EXPECT_SHAPE(op, {}, {"[2,?]", "[?,3]"}, "[2,3]");
    EXPECT_SHAPE_ERROR(op, {}, {"[2]", "[3]"}, "[2]");
  }
  EXPECT_SHAPE("Relu", {}, {"[2,?]"}, "[2,?]");
}

TEST(Activations, GradientsMatch) {
  const Tensor x = TensorOf<double>({2, 3}, {-1.3, 0.4, 2.2, -0.2, 5.1, 6.8});
  for (const UnaryBuilder& op : {Relu, Relu6, Elu, Selu, Softplus, Softsign}) {
    ExpectGradientsMatch(
        BuildOutput([op](const Scope& s, const std::vector<Output>& in) { return op(s, in[0]); }),
        {x});
  }
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return LeakyRelu(s, in[0], {.alpha = 0.3f});
                       }),
                       {x});
}

// --- Gelu ----------------------------------------------------------------------------------------

Tensor GeluOf(const Tensor& x, const GeluAttrs& attrs) {
  Scope s;
  const Output y = Gelu(s, Const(s, x), attrs);
  const StatusOr<std::vector<Tensor>> out = EvaluateGraph(s, {}, {y});
  EXPECT_OK(out.status());
  return out.ok() ? (*out)[0] : Tensor();
}

// Values of Python's math.erfc and math.tanh.
TEST(Gelu, IsTheInputTimesTheNormalDistribution) {
  const Tensor x = TensorOf<double>({2, 3}, {-10, -1, -0.5, 0, 0.5, 3});
  ExpectTensorNear(
      GeluOf(x, {}),
      TensorOf<double>({2, 3}, {-7.619853024160593e-23, -0.15865525393145707, -0.15426876936299344,
                                0, 0.34573123063700656, 2.99595030590511}),
      1e-14, 0);
  ExpectTensorNear(GeluOf(x, {.approximate = true}),
                   TensorOf<double>({2, 3}, {0, -0.15880800939172324, -0.15428599017485606, 0,
                                             0.34571400982514394, 2.996362607918227}),
                   1e-14, 0);
  // Small products of small numbers, not rounded to 0 (1 + erf would be).
  EXPECT_NEAR(GeluOf(x, {}).flat<double>()[0] / -7.619853024160593e-23, 1, 1e-12);
}

TEST(Gelu, TakesAllFloats) {
  for (const bool approximate : {false, true}) {
    SCOPED_TRACE(approximate);
    const GeluAttrs attrs = {.approximate = approximate};
    ExpectTensorNear(GeluOf(Tensor::Vector<float>({-1, 0.5}), attrs),
                     Tensor::Vector<float>({-0.1587f, 0.34572f}), 2e-3, 0);
    const Tensor half = GeluOf(TensorOf<Half>({2}, {ToHalf(-1), ToHalf(0.5f)}), attrs);
    EXPECT_NEAR(ToFloat(half.flat<Half>()[0]), -0.1587f, 2e-3);
    EXPECT_NEAR(ToFloat(half.flat<Half>()[1]), 0.34572f, 2e-3);
    const Tensor brain = GeluOf(TensorOf<Bfloat16>({2}, {ToBfloat16(-1), ToBfloat16(0.5f)}), attrs);
    EXPECT_NEAR(ToFloat(brain.flat<Bfloat16>()[0]), -0.1587f, 2e-2);
    EXPECT_NEAR(ToFloat(brain.flat<Bfloat16>()[1]), 0.34572f, 2e-2);
    ExpectTensorEqual(GeluOf(TensorOf<float>({0, 3}, {}), attrs), TensorOf<float>({0, 3}, {}));
    EXPECT_EQ(GeluOf(Tensor::Vector<float>({kInf}), attrs).flat<float>()[0], kInf);
  }
}

TEST(Gelu, RefusesOtherTypes) {
  for (const Tensor& x : {Tensor::Scalar(int32_t{1}), Tensor::Scalar(std::complex<float>(1))}) {
    Scope s;
    const Output in = Const(s.WithName("x"), x);
    EXPECT_FALSE(Gelu(s, in).valid());
    EXPECT_STATUS(
        s.status(), absl::StatusCode::kInvalidArgument,
        "Gelu: 'x:0' must be half, bfloat16, float or double, got " + DTypeName(x.dtype()));
  }
}

TEST(Gelu, GradientsOfBothOrdersMatch) {
  const Tensor x = TensorOf<double>({2, 3}, {-3, -1, -0.1, 0, 0.7, 2});
  for (const bool approximate : {false, true}) {
    SCOPED_TRACE(approximate);
    const auto gelu = [=](const Scope& s, const std::vector<Output>& in) {
      return Gelu(s, in[0], {.approximate = approximate});
    };
    ExpectGradientsMatch(BuildOutput(gelu), {x});
    ExpectGradientsMatch(BuildOutput([=](const Scope& s, const std::vector<Output>& in) {
                           const auto gradients = AddGradients(s, {gelu(s, in)}, in);
                           return gradients.ok() ? std::get<Output>((*gradients)[0]) : Output();
                         }),
                         {x});
  }
}

TEST(Activations, GradientsOfGradientHelpersMatch) {
  const Tensor g = TensorOf<double>({4}, {1.2, -0.4, 0.7, 2.0});
  const Tensor x = TensorOf<double>({4}, {-0.6, 0.4, 2.2, -0.2});
  for (const BinaryBuilder& op :
       {ReluGrad, Relu6Grad, EluGrad, SeluGrad, SoftplusGrad, SoftsignGrad}) {
    ExpectGradientsMatch(BuildOutput([op](const Scope& s, const std::vector<Output>& in) {
                           return op(s, in[0], in[1]);
                         }),
                         {g, x});
  }
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return LeakyReluGrad(s, in[0], in[1]);
                       }),
                       {g, x});
}

}  // namespace
}  // namespace millrace

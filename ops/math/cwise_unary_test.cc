// SPDX-License-Identifier: Apache-2.0
#include "ops/math/cwise_unary.h"

#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Tensor Call(absl::string_view op, const Tensor& x) { return RunOp1(OpCall(op).Input(x)); }

struct Function {
  const char* op;
  double (*reference)(double);
  double low, high;  // where it is compared
};

double Sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

const Function kFunctions[] = {
    {"Abs", [](double x) { return std::abs(x); }, -5, 5},
    {"Neg", [](double x) { return -x; }, -5, 5},
    {"Sign", &Sign, -5, 5},
    {"Square", [](double x) { return x * x; }, -5, 5},
    {"Reciprocal", [](double x) { return 1 / x; }, 0.1, 5},
    {"Inv", [](double x) { return 1 / x; }, -5, -0.1},
    {"Sqrt", [](double x) { return std::sqrt(x); }, 0, 9},
    {"Rsqrt", [](double x) { return 1 / std::sqrt(x); }, 0.1, 9},
    {"Exp", [](double x) { return std::exp(x); }, -20, 20},
    {"Expm1", [](double x) { return std::expm1(x); }, -1, 5},
    {"Log", [](double x) { return std::log(x); }, 1e-6, 100},
    {"Log1p", [](double x) { return std::log1p(x); }, -0.9, 5},
    {"Sigmoid", [](double x) { return 1 / (1 + std::exp(-x)); }, -20, 20},
    {"Tanh", [](double x) { return std::tanh(x); }, -10, 10},
    {"Sin", [](double x) { return std::sin(x); }, -10, 10},
    {"Cos", [](double x) { return std::cos(x); }, -10, 10},
    {"Tan", [](double x) { return std::tan(x); }, -1.5, 1.5},
    {"Asin", [](double x) { return std::asin(x); }, -1, 1},
    {"Acos", [](double x) { return std::acos(x); }, -1, 1},
    {"Atan", [](double x) { return std::atan(x); }, -5, 5},
    {"Sinh", [](double x) { return std::sinh(x); }, -5, 5},
    {"Cosh", [](double x) { return std::cosh(x); }, -5, 5},
    {"Asinh", [](double x) { return std::asinh(x); }, -5, 5},
    {"Acosh", [](double x) { return std::acosh(x); }, 1, 5},
    {"Atanh", [](double x) { return std::atanh(x); }, -0.9, 0.9},
    {"Erf", [](double x) { return std::erf(x); }, -4, 4},
    {"Erfc", [](double x) { return std::erfc(x); }, -4, 4},
    {"Floor", [](double x) { return std::floor(x); }, -5, 5},
    {"Ceil", [](double x) { return std::ceil(x); }, -5, 5},
    {"Round", [](double x) { return std::nearbyint(x); }, -5, 5},
    {"Rint", [](double x) { return std::nearbyint(x); }, -5, 5},
};

// 1,001 points: several vector registers and a rest.
TEST(CwiseUnary, AgreesWithTheStandardLibrary) {
  constexpr size_t kPoints = 1001;
  for (const Function& f : kFunctions) {
    SCOPED_TRACE(f.op);
    std::vector<double> x(kPoints), y(kPoints);
    std::vector<float> xf(kPoints), yf(kPoints);
    for (size_t i = 0; i < kPoints; ++i) {
      xf[i] =
          static_cast<float>(f.low + (f.high - f.low) * static_cast<double>(i) / (kPoints - 1.0));
      if (xf[i] > static_cast<float>(f.high)) xf[i] = static_cast<float>(f.high);
      x[i] = static_cast<double>(xf[i]);
      y[i] = f.reference(x[i]);
      yf[i] = static_cast<float>(y[i]);
    }
    ExpectTensorNear(Call(f.op, Tensor::Vector<double>(x)), Tensor::Vector<double>(y), 1e-14,
                     1e-15);
    ExpectTensorNear(Call(f.op, Tensor::Vector<float>(xf)), Tensor::Vector<float>(yf), 1e-6, 2e-7);
    ExpectTensorEqual(Call(f.op, TensorOf<float>({0, 2}, {})), TensorOf<float>({0, 2}, {}));
    ExpectTensorNear(Call(f.op, TensorOf<Half>({1}, {ToHalf(xf[600])})),
                     TensorOf<Half>({1}, {ToHalf(static_cast<float>(f.reference(
                                             static_cast<double>(ToFloat(ToHalf(xf[600]))))))}),
                     2e-3, 1e-4);
  }
}

TEST(CwiseUnary, NanAndInfinitiesHaveTheirLimits) {
  for (const Function& f : kFunctions) {
    if (std::string(f.op) == "Sign") continue;  // compares, so NaN gives 0
    SCOPED_TRACE(f.op);
    const Tensor y = Call(f.op, Tensor::Vector<float>({kNan, 1, kNan, 1, 1, 1, 1, 1, kNan}));
    EXPECT_TRUE(std::isnan(y.flat<float>()[0]));
    EXPECT_TRUE(std::isnan(y.flat<float>()[8]));
    EXPECT_FALSE(std::isnan(y.flat<float>()[1]));
  }
  const struct {
    const char* op;
    float minus, plus;
  } limits[] = {{"Exp", 0, kInf},     {"Expm1", -1, kInf},   {"Sigmoid", 0, 1},
                {"Tanh", -1, 1},      {"Log", kNan, kInf},   {"Log1p", kNan, kInf},
                {"Sqrt", kNan, kInf}, {"Rsqrt", kNan, 0},    {"Atan", -1.5707964f, 1.5707964f},
                {"Erf", -1, 1},       {"Erfc", 2, 0},        {"Reciprocal", 0, 0},
                {"Abs", kInf, kInf},  {"Floor", -kInf, kInf}};
  for (const auto& limit : limits) {
    SCOPED_TRACE(limit.op);
    // Enough elements for the vector loop.
    const Tensor x = Tensor::Vector<float>({-kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf,
                                            kInf, kInf, kInf, kInf, kInf, kInf, kInf, kInf});
    const Tensor y = Call(limit.op, x);
    ExpectTensorNear(Tensor::Vector<float>({y.flat<float>()[0], y.flat<float>()[15]}),
                     Tensor::Vector<float>({limit.minus, limit.plus}), 1e-6, 0);
  }
  ExpectTensorEqual(
      Call("Log", Tensor::Vector<float>({0, 0, 0, 0, 0, 0, 0, 0})),
      Tensor::Vector<float>({-kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf, -kInf}));
}

TEST(CwiseUnary, RoundsHalvesToEven) {
  for (const char* op : {"Round", "Rint"}) {
    ExpectTensorEqual(Call(op, Tensor::Vector<float>({0.5, 1.5, 2.5, -0.5, -1.5})),
                      Tensor::Vector<float>({0, 2, 2, -0.0f, -2}));
  }
  ExpectTensorEqual(Call("Round", Tensor::Vector<int32_t>({3, -3})),
                    Tensor::Vector<int32_t>({3, -3}));
}

TEST(CwiseUnary, ComputesIntegersAndWraps) {
  constexpr int32_t kMin = std::numeric_limits<int32_t>::min();
  ExpectTensorEqual(Call("Abs", Tensor::Vector<int32_t>({-3, 3, kMin})),
                    Tensor::Vector<int32_t>({3, 3, kMin}));
  ExpectTensorEqual(Call("Neg", Tensor::Vector<int64_t>({5, -5})),
                    Tensor::Vector<int64_t>({-5, 5}));
  ExpectTensorEqual(Call("Square", Tensor::Vector<int32_t>({-3, 65536})),
                    Tensor::Vector<int32_t>({9, 0}));
  ExpectTensorEqual(Call("Sign", Tensor::Vector<int64_t>({-7, 0, 7})),
                    Tensor::Vector<int64_t>({-1, 0, 1}));
}

TEST(CwiseUnary, ComputesComplexNumbers) {
  using C = std::complex<double>;
  const C z(0.5, -1.25);
  const auto expect = [&](const char* op, C want) {
    SCOPED_TRACE(op);
    ExpectTensorNear(Call(op, TensorOf<C>({1}, {z})), TensorOf<C>({1}, {want}), 1e-12, 0);
  };
  expect("Neg", -z);
  expect("Exp", std::exp(z));
  expect("Log", std::log(z));
  expect("Sqrt", std::sqrt(z));
  expect("Tanh", std::tanh(z));
  expect("Square", z * z);
  expect("Reciprocal", 1.0 / z);
  expect("Sign", z / std::abs(z));
  expect("Conj", std::conj(z));
}

TEST(CwiseUnary, TestsForSpecialValues) {
  const Tensor x = Tensor::Vector<float>({1, kInf, -kInf, kNan});
  ExpectTensorEqual(Call("IsNan", x), Tensor::Vector<bool>({false, false, false, true}));
  ExpectTensorEqual(Call("IsInf", x), Tensor::Vector<bool>({false, true, true, false}));
  ExpectTensorEqual(Call("IsFinite", x), Tensor::Vector<bool>({true, false, false, false}));
  ExpectTensorEqual(Call("IsNan", TensorOf<Half>({2}, {ToHalf(kNan), ToHalf(1)})),
                    Tensor::Vector<bool>({true, false}));
  ExpectTensorEqual(Call("LogicalNot", Tensor::Vector<bool>({true, false})),
                    Tensor::Vector<bool>({false, true}));
}

TEST(CwiseUnary, InfersTheInputsShape) {
  EXPECT_SHAPE("Exp", {}, {"[2,?]"}, "[2,?]");
  EXPECT_SHAPE("IsNan", {}, {"<unknown>"}, "<unknown>");
  EXPECT_SHAPE("SigmoidGrad", {}, {"[2,?]", "[?,3]"}, "[2,3]");
  EXPECT_SHAPE_ERROR("TanhGrad", {}, {"[2]", "[3]"}, "[2]");
}

TEST(CwiseUnary, GradientHelpersRefuseDifferentShapes) {
  for (const char* op :
       {"SigmoidGrad", "TanhGrad", "SqrtGrad", "RsqrtGrad", "ReciprocalGrad", "InvGrad"}) {
    ExpectOpError(OpCall(op).Input(Tensor::Vector<float>({1, 2})).Input(Tensor::Vector<float>({1})),
                  absl::StatusCode::kInvalidArgument,
                  "inputs must have the same shape, got [2] and [1]");
  }
}

using Builder = UnaryBuilder;
using HelperBuilder = BinaryBuilder;

TEST(CwiseUnary, GradientsMatch) {
  const Tensor x = TensorOf<double>({2, 2}, {0.3, 0.8, 0.55, 0.12});
  for (const Builder op :
       {Abs,   Neg,  millrace::Sign, Square,  Reciprocal, Inv,   Sqrt, Rsqrt, Exp,
        Expm1, Log,  Log1p,          Sigmoid, Tanh,       Sin,   Cos,  Tan,   Asin,
        Acos,  Atan, Sinh,           Cosh,    Asinh,      Atanh, Erf,  Erfc}) {
    ExpectGradientsMatch(
        BuildOutput([op](const Scope& s, const std::vector<Output>& in) { return op(s, in[0]); }),
        {x});
  }
  ExpectGradientsMatch(
      BuildOutput([](const Scope& s, const std::vector<Output>& in) { return Acosh(s, in[0]); }),
      {TensorOf<double>({2}, {1.5, 3})});
}

TEST(CwiseUnary, GradientsOfGradientHelpersMatch) {
  const Tensor y = TensorOf<double>({3}, {0.3, -0.8, 0.55});
  const Tensor dy = TensorOf<double>({3}, {1.2, 0.4, -0.7});
  for (const HelperBuilder op :
       {SigmoidGrad, TanhGrad, SqrtGrad, RsqrtGrad, ReciprocalGrad, InvGrad}) {
    ExpectGradientsMatch(BuildOutput([op](const Scope& s, const std::vector<Output>& in) {
                           return op(s, in[0], in[1]);
                         }),
                         {y, dy});
  }
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/math/cwise_binary.h"

#include <cmath>
#include <complex>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/math/reduction.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Tensor Call(absl::string_view op, const Tensor& x, const Tensor& y) {
  return RunOp1(OpCall(op).Input(x).Input(y));
}
Tensor Floats(std::initializer_list<float> values) { return Tensor::Vector<float>(values); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Bools(std::initializer_list<bool> values) { return Tensor::Vector<bool>(values); }

// `op` as TensorFlow 2 says it for ==: any shapes may be compared.
OpCall CompareAny(const char* op, Tensor x, Tensor y) {
  return OpCall(op).Input(std::move(x)).Input(std::move(y)).Attr("incompatible_shape_error", false);
}

TEST(Equal, ShapesThatDoNotFitAreNotEqualWhereTheNodeAllowsThem) {
  const Tensor two = TensorOf<float>({2}, {1, 2}), three = TensorOf<float>({3}, {1, 2, 3});
  ExpectTensorEqual(RunOp1(CompareAny("Equal", two, three)), Tensor::Scalar<bool>(false));
  ExpectTensorEqual(RunOp1(CompareAny("NotEqual", two, three)), Tensor::Scalar<bool>(true));
  ExpectTensorEqual(RunOp1(CompareAny("Equal", TensorOf<std::string>({2, 2}, {"a", "b", "c", "d"}),
                                      TensorOf<std::string>({3}, {"a", "b", "c"}))),
                    Tensor::Scalar<bool>(false));
  ExpectTensorEqual(RunOp1(CompareAny("Equal", TensorOf<float>({0}, {}), two)),
                    Tensor::Scalar<bool>(false));
  // Shapes that fit are compared as ever.
  ExpectTensorEqual(RunOp1(CompareAny("Equal", two, TensorOf<float>({2}, {1, 3}))),
                    TensorOf<bool>({2}, {true, false}));
  ExpectTensorEqual(RunOp1(CompareAny("NotEqual", TensorOf<float>({2, 1}, {1, 2}), three)),
                    TensorOf<bool>({2, 3}, {false, true, true, true, false, true}));
  ExpectTensorEqual(RunOp1(CompareAny("Equal", three, Tensor::Scalar<float>(2))),
                    TensorOf<bool>({3}, {false, true, false}));
  for (const char* op : {"Equal", "NotEqual"}) {
    ExpectOpError(OpCall(op).Input(two).Input(three), absl::StatusCode::kInvalidArgument,
                  "Incompatible shapes: [2] vs. [3]");
    ExpectOpError(OpCall(op).Input(two).Input(three).Attr("incompatible_shape_error", true),
                  absl::StatusCode::kInvalidArgument, "Incompatible shapes: [2] vs. [3]");
  }
}

TEST(Equal, ShapeIsKnownWhereShapesAreKnownToFitOrNot) {
  const OpAttr any("incompatible_shape_error", false);
  EXPECT_SHAPE("Equal", {any}, {"[2]", "[3]"}, "[]");
  EXPECT_SHAPE("NotEqual", {any}, {"[?,2]", "[?,3]"}, "[]");
  EXPECT_SHAPE("Equal", {any}, {"[2,1]", "[3]"}, "[2,3]");
  EXPECT_SHAPE("Equal", {any}, {"[?,3]", "[]"}, "[?,3]");
  EXPECT_SHAPE("Equal", {any}, {"[?]", "[3]"}, "<unknown>");
  EXPECT_SHAPE("Equal", {any}, {"<unknown>", "<unknown>"}, "<unknown>");
  EXPECT_SHAPE("Equal", {}, {"[?]", "[3]"}, "[3]");
  EXPECT_SHAPE_ERROR("Equal", {}, {"[2]", "[3]"}, "Incompatible shapes: [2] vs. [3]");
}

TEST(CwiseBinary, ComputesFloats) {
  const Tensor x = Floats({7, -7, 7, -7});
  const Tensor y = Floats({2, 2, -2, -2});
  ExpectTensorEqual(Call("Add", x, y), Floats({9, -5, 5, -9}));
  ExpectTensorEqual(Call("AddV2", x, y), Floats({9, -5, 5, -9}));
  ExpectTensorEqual(Call("Sub", x, y), Floats({5, -9, 9, -5}));
  ExpectTensorEqual(Call("Mul", x, y), Floats({14, -14, -14, 14}));
  ExpectTensorEqual(Call("Div", x, y), Floats({3.5, -3.5, -3.5, 3.5}));
  ExpectTensorEqual(Call("RealDiv", x, y), Floats({3.5, -3.5, -3.5, 3.5}));
  ExpectTensorEqual(Call("FloorDiv", x, y), Floats({3, -4, -4, 3}));
  ExpectTensorEqual(Call("FloorMod", x, y), Floats({1, 1, -1, -1}));
  ExpectTensorEqual(Call("Mod", x, y), Floats({1, -1, 1, -1}));
  ExpectTensorEqual(Call("TruncateMod", x, y), Floats({1, -1, 1, -1}));
  ExpectTensorEqual(Call("Pow", x, y), Floats({49, 49, 1.0f / 49, 1.0f / 49}));
  ExpectTensorEqual(Call("Maximum", x, y), Floats({7, 2, 7, -2}));
  ExpectTensorEqual(Call("Minimum", x, y), Floats({2, -7, -2, -7}));
  ExpectTensorEqual(Call("SquaredDifference", x, y), Floats({25, 81, 81, 25}));
  ExpectTensorEqual(Call("DivNoNan", Floats({1, 0, kNan}), Floats({0, 0, 0})), Floats({0, 0, 0}));
  ExpectTensorEqual(Call("MulNoNan", Floats({kInf, kNan, 2}), Floats({0, 0, 3})),
                    Floats({0, 0, 6}));
  ExpectTensorNear(Call("Atan2", Floats({1, -1}), Floats({-1, 0})),
                   Floats({2.3561945f, -1.5707963f}), 1e-6, 0);
}

TEST(CwiseBinary, IntegersRoundAsTheirNamesSay) {
  const Tensor x = Ints({7, -7, 7, -7});
  const Tensor y = Ints({2, 2, -2, -2});
  ExpectTensorEqual(Call("Div", x, y), Ints({3, -3, -3, 3}));
  ExpectTensorEqual(Call("TruncateDiv", x, y), Ints({3, -3, -3, 3}));
  ExpectTensorEqual(Call("FloorDiv", x, y), Ints({3, -4, -4, 3}));
  ExpectTensorEqual(Call("FloorMod", x, y), Ints({1, 1, -1, -1}));
  ExpectTensorEqual(Call("TruncateMod", x, y), Ints({1, -1, 1, -1}));
  ExpectTensorEqual(Call("Pow", Ints({2, -3, 0, 10}), Ints({10, 3, 0, 1})),
                    Ints({1024, -27, 1, 10}));
}

TEST(CwiseBinary, IntegerOverflowWraps) {
  constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
  ExpectTensorEqual(Call("Add", TensorOf<int64_t>({1}, {kMax64}), TensorOf<int64_t>({1}, {1})),
                    TensorOf<int64_t>({1}, {kMin64}));
  ExpectTensorEqual(Call("Mul", TensorOf<int16_t>({1}, {300}), TensorOf<int16_t>({1}, {300})),
                    TensorOf<int16_t>({1}, {24464}));
  ExpectTensorEqual(Call("Sub", TensorOf<uint8_t>({1}, {1}), TensorOf<uint8_t>({1}, {2})),
                    TensorOf<uint8_t>({1}, {255}));
  // The one quotient that does not exist.
  for (const char* op : {"Div", "FloorDiv", "TruncateDiv"}) {
    ExpectTensorEqual(Call(op, TensorOf<int64_t>({1}, {kMin64}), TensorOf<int64_t>({1}, {-1})),
                      TensorOf<int64_t>({1}, {kMin64}));
  }
  for (const char* op : {"FloorMod", "TruncateMod"}) {
    ExpectTensorEqual(Call(op, TensorOf<int64_t>({1}, {kMin64}), TensorOf<int64_t>({1}, {-1})),
                      TensorOf<int64_t>({1}, {0}));
  }
}

TEST(CwiseBinary, RefusesIllegalOperands) {
  for (const char* op : {"Div", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod"}) {
    ExpectOpError(OpCall(op).Input(Ints({1, 2})).Input(Ints({1, 0})), kInvalid,
                  "Integer division by zero");
    // Through a broadcast, too.
    ExpectOpError(OpCall(op).Input(TensorOf<int32_t>({2, 1}, {1, 2})).Input(Ints({1, 0})), kInvalid,
                  "Integer division by zero");
  }
  ExpectOpError(OpCall("Pow").Input(Ints({2})).Input(Ints({-1})), kInvalid,
                "Integers to negative integer powers are not allowed");
  ExpectOpError(
      OpCall("Add").Input(TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6})).Input(Floats({1, 2})),
      kInvalid, "Incompatible shapes: [2,3] vs. [2]");
}

TEST(CwiseBinary, ComputesNarrowAndComplexTypesAndStrings) {
  const auto half = [](float v) { return ToHalf(v); };
  ExpectTensorEqual(
      Call("Add", TensorOf<Half>({2}, {half(1), half(0.5)}), TensorOf<Half>({1}, {half(2)})),
      TensorOf<Half>({2}, {half(3), half(2.5)}));
  ExpectTensorEqual(Call("Mul", TensorOf<Bfloat16>({1}, {ToBfloat16(3)}),
                         TensorOf<Bfloat16>({1}, {ToBfloat16(2)})),
                    TensorOf<Bfloat16>({1}, {ToBfloat16(6)}));
  using C = std::complex<float>;
  ExpectTensorEqual(Call("Mul", TensorOf<C>({1}, {{1, 2}}), TensorOf<C>({1}, {{3, -1}})),
                    TensorOf<C>({1}, {{5, 5}}));
  ExpectTensorEqual(
      Call("Add", TensorOf<std::string>({2}, {"a", ""}), TensorOf<std::string>({}, {"xyz"})),
      TensorOf<std::string>({2}, {"axyz", "xyz"}));
  ExpectTensorEqual(
      Call("Equal", TensorOf<std::string>({2}, {"a", "b"}), TensorOf<std::string>({2}, {"a", "c"})),
      Bools({true, false}));
}

TEST(CwiseBinary, ComparesNumbers) {
  const Tensor x = Floats({1, 2, 3, kNan});
  const Tensor y = Floats({2, 2, 2, kNan});
  ExpectTensorEqual(Call("Equal", x, y), Bools({false, true, false, false}));
  ExpectTensorEqual(Call("NotEqual", x, y), Bools({true, false, true, true}));
  ExpectTensorEqual(Call("Less", x, y), Bools({true, false, false, false}));
  ExpectTensorEqual(Call("LessEqual", x, y), Bools({true, true, false, false}));
  ExpectTensorEqual(Call("Greater", x, y), Bools({false, false, true, false}));
  ExpectTensorEqual(Call("GreaterEqual", x, y), Bools({false, true, true, false}));
  ExpectTensorEqual(Call("Less", TensorOf<int8_t>({2}, {-1, 1}), TensorOf<int8_t>({}, {0})),
                    Bools({true, false}));
  ExpectTensorEqual(Call("Less", TensorOf<uint8_t>({2}, {255, 1}), TensorOf<uint8_t>({}, {2})),
                    Bools({false, true}));
  const Tensor a = Bools({false, false, true, true});
  const Tensor b = Bools({false, true, false, true});
  ExpectTensorEqual(Call("LogicalAnd", a, b), Bools({false, false, false, true}));
  ExpectTensorEqual(Call("LogicalOr", a, b), Bools({false, true, true, true}));
  ExpectTensorEqual(Call("Equal", a, b), Bools({true, false, false, true}));
}

TEST(CwiseBinary, BroadcastsAnyRank) {
  ExpectTensorEqual(Call("Sub", TensorOf<float>({2, 2}, {1, 2, 3, 4}), Floats({10, 20})),
                    TensorOf<float>({2, 2}, {-9, -18, -7, -16}));
  ExpectTensorEqual(Call("Sub", TensorOf<float>({2, 1}, {1, 2}), Floats({10, 20})),
                    TensorOf<float>({2, 2}, {-9, -19, -8, -18}));
  ExpectTensorEqual(Call("Sub", Tensor::Scalar<float>(1), TensorOf<float>({1, 2}, {1, 2})),
                    TensorOf<float>({1, 2}, {0, -1}));
  ExpectTensorEqual(Call("Add", TensorOf<int32_t>({2, 1, 3}, {0, 1, 2, 3, 4, 5}),
                         TensorOf<int32_t>({2, 1}, {10, 20})),
                    TensorOf<int32_t>({2, 2, 3}, {10, 11, 12, 20, 21, 22, 13, 14, 15, 23, 24, 25}));
  ExpectTensorEqual(Call("Add", TensorOf<float>({0, 3}, {}), TensorOf<float>({1, 3}, {1, 2, 3})),
                    TensorOf<float>({0, 3}, {}));
  ExpectTensorEqual(Call("Add", TensorOf<float>({0}, {}), Tensor::Scalar<float>(1)),
                    TensorOf<float>({0}, {}));
}

// All alternating patterns of four dimensions against a plain index computation, larger than one
// task.
TEST(CwiseBinary, BroadcastsLikeAPlainLoop) {
  const int64_t sizes[] = {3, 40, 5, 70};
  for (int x_mask = 0; x_mask < 16; ++x_mask) {
    for (int y_mask = 0; y_mask < 16; ++y_mask) {
      std::vector<int64_t> xd, yd, zd;
      for (int d = 0; d < 4; ++d) {
        xd.push_back((x_mask >> d & 1) != 0 ? sizes[d] : 1);
        yd.push_back((y_mask >> d & 1) != 0 ? sizes[d] : 1);
        zd.push_back(std::max(xd.back(), yd.back()));
      }
      ASSERT_OK_AND_ASSIGN(const Shape xs, Shape::Make(xd));
      ASSERT_OK_AND_ASSIGN(const Shape ys, Shape::Make(yd));
      ASSERT_OK_AND_ASSIGN(const Shape zs, Shape::Make(zd));
      ASSERT_OK_AND_ASSIGN(Tensor x, Tensor::Allocate(DT_INT32, xs));
      ASSERT_OK_AND_ASSIGN(Tensor y, Tensor::Allocate(DT_INT32, ys));
      ASSERT_OK_AND_ASSIGN(Tensor want, Tensor::Allocate(DT_INT32, zs));
      for (int64_t i = 0; i < xs.num_elements(); ++i) {
        x.mutable_flat<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
      }
      for (int64_t i = 0; i < ys.num_elements(); ++i) {
        y.mutable_flat<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(1000003 * i);
      }
      for (int64_t i = 0; i < zs.num_elements(); ++i) {
        int64_t rest = i, xi = 0, yi = 0, x_step = 1, y_step = 1;
        for (size_t d = 4; d-- > 0;) {
          const int64_t index = rest % zd[d];
          rest /= zd[d];
          if (xd[d] != 1) xi += index * x_step;
          if (yd[d] != 1) yi += index * y_step;
          x_step *= xd[d];
          y_step *= yd[d];
        }
        want.mutable_flat<int32_t>()[static_cast<size_t>(i)] =
            x.flat<int32_t>()[static_cast<size_t>(xi)] - y.flat<int32_t>()[static_cast<size_t>(yi)];
      }
      // Without the checks of RunOp1, which would be slow here: one plain evaluation.
      Scope scope;
      const Output a = TestInput(scope, DT_INT32), b = TestInput(scope, DT_INT32);
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                           EvaluateGraph(scope, {{a, x}, {b, y}}, {Sub(scope, a, b)}));
      ASSERT_TRUE(got[0] == want) << "x " << xs.ToString() << " y " << ys.ToString();
    }
  }
}

TEST(CwiseBinary, InfersShapes) {
  EXPECT_SHAPE("Add", {}, {"[2,3]", "[3]"}, "[2,3]");
  EXPECT_SHAPE("Add", {}, {"[?,3]", "[3]"}, "[?,3]");
  EXPECT_SHAPE("Add", {}, {"[2,1]", "[1,?]"}, "[2,?]");
  EXPECT_SHAPE("Add", {}, {"<unknown>", "[3]"}, "<unknown>");
  EXPECT_SHAPE("Less", {}, {"[4,1]", "[5]"}, "[4,5]");
  EXPECT_SHAPE_ERROR("Mul", {}, {"[2,3]", "[4]"}, "Incompatible shapes: [2,3] vs. [4]");
}

// --- Gradients -----------------------------------------------------------------------------------

using Builder = BinaryBuilder;

TEST(CwiseBinary, GradientsMatchForEveryBroadcast) {
  const Tensor full = TensorOf<double>({2, 3}, {1.5, -0.5, 2, 0.7, -1.2, 0.4});
  const Tensor row = TensorOf<double>({3}, {0.3, 2.1, -1.7});
  const Tensor column = TensorOf<double>({2, 1}, {0.6, -1.9});
  const Tensor scalar = Tensor::Scalar<double>(1.3);
  const std::vector<std::pair<Tensor, Tensor>> pairs = {{full, full.Clone().value()},
                                                        {full, row},
                                                        {row, full},
                                                        {full, column},
                                                        {column, row},
                                                        {scalar, full},
                                                        {scalar, scalar}};
  for (const Builder op : {Add, Sub, Mul, RealDiv, SquaredDifference}) {
    for (const auto& [x, y] : pairs) {
      ExpectGradientsMatch(BuildOutput([op](const Scope& s, const std::vector<Output>& in) {
                             return op(s, in[0], in[1]);
                           }),
                           {x, y});
    }
  }
}

TEST(CwiseBinary, TheSquaredDifferenceOfComplexNumbersIsReal) {
  using C = std::complex<float>;
  const Tensor x = TensorOf<C>({2}, {C(3, 4), C(1, -1)});
  const Tensor y = TensorOf<C>({2}, {C(0, 0), C(2, 1)});
  ExpectTensorEqual(Call("SquaredDifference", x, y), TensorOf<C>({2}, {C(25, 0), C(5, 0)}));
  // Its gradient is 2 (x - y) times the real part of what comes in.
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return SquaredDifference(s, in[0], in[1]);
                       }),
                       {TensorOf<std::complex<double>>({2}, {{0.5, 1.5}, {-1, 2}}),
                        TensorOf<std::complex<double>>({1}, {{2, -0.25}})});
}

TEST(CwiseBinary, GradientsMatchForTheOthers) {
  const Tensor x = TensorOf<double>({2, 2}, {0.4, 1.5, 2.5, 0.9});
  const Tensor y = TensorOf<double>({2}, {1.7, -0.8});
  for (const Builder op :
       {AddV2, Div, DivNoNan, MulNoNan, FloorMod, Pow, Maximum, Minimum, Atan2}) {
    ExpectGradientsMatch(BuildOutput([op](const Scope& s, const std::vector<Output>& in) {
                           return op(s, in[0], in[1]);
                         }),
                         {x, y});
  }
}

TEST(CwiseBinary, EqualStaticShapesAddNoReduction) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2, 3});
  const Output y = TestInput(scope, DT_FLOAT, {2, 3});
  const Output z = Mul(scope, x, y);
  const std::vector<Output> ys = {z}, xs = {x, y};
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> gradients, AddGradients(scope, ys, xs));
  ASSERT_EQ(gradients.size(), 2u);
  for (const auto& node : scope.graph()->nodes()) {
    ASSERT_NE(node->op(), "BroadcastGradientArgs");
    ASSERT_NE(node->op(), "Sum");
  }
}

// --- BroadcastTo and the arguments of gradients --------------------------------------------------

TEST(BroadcastTo, RepeatsEveryDtype) {
  ExpectTensorEqual(RunOp1(OpCall("BroadcastTo")
                               .Input(TensorOf<std::string>({2, 1}, {"a", "b"}))
                               .Input(Ints({2, 2}))),
                    TensorOf<std::string>({2, 2}, {"a", "a", "b", "b"}));
  ExpectTensorEqual(RunOp1(OpCall("BroadcastTo").Input(Floats({1, 2})).Input(Ints({2, 2}))),
                    TensorOf<float>({2, 2}, {1, 2, 1, 2}));
  ExpectTensorEqual(RunOp1(OpCall("BroadcastTo")
                               .Input(Tensor::Scalar<int8_t>(3))
                               .Input(TensorOf<int64_t>({1}, {3}))),
                    TensorOf<int8_t>({3}, {3, 3, 3}));
  ExpectTensorEqual(RunOp1(OpCall("BroadcastTo").Input(Floats({1})).Input(Ints({0}))),
                    TensorOf<float>({0}, {}));
  EXPECT_SHAPE("BroadcastTo", {}, {"[1,3]", Ints({2, 3})}, "[2,3]");
  EXPECT_SHAPE("BroadcastTo", {}, {"[1,3]", "[2]"}, "[?,?]");
  EXPECT_SHAPE_ERROR("BroadcastTo", {}, {"[2,3]", Ints({3})}, "Incompatible shapes");
  for (const Tensor& shape : {Ints({3}), Ints({2, 3, 1}), Ints({3, 2})}) {
    ExpectOpError(OpCall("BroadcastTo").Input(TensorOf<float>({2, 2}, {1, 2, 3, 4})).Input(shape),
                  kInvalid, "Incompatible shapes");
  }
  ExpectOpError(OpCall("BroadcastTo").Input(Floats({1})).Input(Ints({-1})), kInvalid, "-1");
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return BroadcastTo(s, in[0], Const<int32_t>(s, {2, 3, 2}));
                       }),
                       {TensorOf<double>({3, 1}, {1, 2, 3})});
}

TEST(BroadcastArgs, GivesTheShapeAndTheRepeatedAxes) {
  ExpectTensorEqual(Call("BroadcastArgs", Ints({2, 1}), Ints({3})), Ints({2, 3}));
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> axes,
      RunOp(OpCall("BroadcastGradientArgs").Input(Ints({2, 1, 4})).Input(Ints({3, 4}))));
  ExpectTensorEqual(axes[0], Ints({1}));
  ExpectTensorEqual(axes[1], Ints({0}));
  // An axis where both have 1 is listed too, but not of equal shapes.
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> ones,
      RunOp(OpCall("BroadcastGradientArgs").Input(Ints({1, 2})).Input(Ints({1, 1}))));
  ExpectTensorEqual(ones[0], Ints({0}));
  ExpectTensorEqual(ones[1], Ints({0, 1}));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> none,
                       RunOp(OpCall("BroadcastGradientArgs").Input(Ints({2})).Input(Ints({2}))));
  ExpectTensorEqual(none[0], Ints({}));
  ExpectTensorEqual(none[1], Ints({}));
  ExpectOpError(OpCall("BroadcastGradientArgs").Input(Ints({2})).Input(Ints({3})), kInvalid,
                "Incompatible shapes: [2] vs. [3]");
  ExpectOpError(OpCall("BroadcastArgs").Input(Ints({-2})).Input(Ints({3})), kInvalid, "-2");
  EXPECT_SHAPE("BroadcastArgs", {}, {"[2]", "[3]"}, "[3]");
  EXPECT_SHAPE_ERROR("BroadcastArgs", {}, {Ints({2}), Ints({3})},
                     "Incompatible shapes: [2] vs. [3]");
  EXPECT_SHAPE("BroadcastGradientArgs", {}, {"[2]", "[3]"}, "[?];[?]");
}

}  // namespace
}  // namespace millrace

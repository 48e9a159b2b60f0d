// SPDX-License-Identifier: Apache-2.0
#include "ops/math/reduction.h"

#include <cmath>
#include <complex>
#include <limits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

Tensor Call(absl::string_view op, const Tensor& x, const Tensor& axes, bool keep_dims = false) {
  return RunOp1(OpCall(op).Input(x).Input(axes).Attr("keep_dims", keep_dims));
}

const Tensor& Matrix() {
  static const Tensor* t = new Tensor(TensorOf<float>({2, 3}, {1, -2, 3, 4, 5, -6}));
  return *t;
}

TEST(Reduction, ReducesAxes) {
  ExpectTensorEqual(Call("Sum", Matrix(), Ints({0})), TensorOf<float>({3}, {5, 3, -3}));
  ExpectTensorEqual(Call("Sum", Matrix(), Ints({1})), TensorOf<float>({2}, {2, 3}));
  ExpectTensorEqual(Call("Sum", Matrix(), Ints({-1}), true), TensorOf<float>({2, 1}, {2, 3}));
  ExpectTensorEqual(Call("Sum", Matrix(), Ints({0, 1})), Tensor::Scalar<float>(5));
  ExpectTensorEqual(Call("Sum", Matrix(), Ints({1, 0}), true), TensorOf<float>({1, 1}, {5}));
  ExpectTensorEqual(Call("Sum", Matrix(), Ints({})), Matrix());
  ExpectTensorEqual(Call("Sum", Matrix(), Tensor::Scalar<int64_t>(0)),
                    TensorOf<float>({3}, {5, 3, -3}));
  ExpectTensorEqual(Call("Mean", Matrix(), Ints({1})), TensorOf<float>({2}, {2.0f / 3, 1}));
  ExpectTensorEqual(Call("Prod", Matrix(), Ints({1})), TensorOf<float>({2}, {-6, -120}));
  ExpectTensorEqual(Call("Max", Matrix(), Ints({0})), TensorOf<float>({3}, {4, 5, 3}));
  ExpectTensorEqual(Call("Min", Matrix(), Ints({0})), TensorOf<float>({3}, {1, -2, -6}));
  const Tensor flags = TensorOf<bool>({2, 2}, {true, false, true, true});
  ExpectTensorEqual(Call("Any", flags, Ints({1})), TensorOf<bool>({2}, {true, true}));
  ExpectTensorEqual(Call("All", flags, Ints({1})), TensorOf<bool>({2}, {false, true}));
  ExpectTensorEqual(Call("All", flags, Ints({0, 1})), Tensor::Scalar<bool>(false));
  ExpectTensorEqual(Call("Sum", Tensor::Scalar<float>(3), Ints({})), Tensor::Scalar<float>(3));
}

TEST(Reduction, ComputesEveryType) {
  ExpectTensorEqual(Call("Sum", TensorOf<int8_t>({3}, {100, 100, 1}), Ints({0})),
                    Tensor::Scalar<int8_t>(-55));
  ExpectTensorEqual(Call("Mean", TensorOf<int32_t>({2}, {-3, -4}), Ints({0})),
                    Tensor::Scalar<int32_t>(-3));
  ExpectTensorEqual(Call("Max", TensorOf<uint8_t>({2}, {200, 3}), Ints({0})),
                    Tensor::Scalar<uint8_t>(200));
  ExpectTensorEqual(Call("Sum", TensorOf<Half>({2}, {ToHalf(1.5), ToHalf(2)}), Ints({0})),
                    Tensor::Scalar<Half>(ToHalf(3.5)));
  using C = std::complex<float>;
  ExpectTensorEqual(Call("Prod", TensorOf<C>({2}, {{1, 1}, {1, -1}}), Ints({0})),
                    Tensor::Scalar<C>({2, 0}));
  ExpectTensorEqual(Call("Sum", TensorOf<int64_t>({2}, {int64_t{1} << 40, 1}), Ints({0})),
                    Tensor::Scalar<int64_t>((int64_t{1} << 40) + 1));
}

TEST(Reduction, NothingGivesTheNeutralElement) {
  const Tensor none = TensorOf<float>({0, 2}, {});
  ExpectTensorEqual(Call("Sum", none, Ints({0})), TensorOf<float>({2}, {0, 0}));
  ExpectTensorEqual(Call("Mean", none, Ints({0})), TensorOf<float>({2}, {kNan, kNan}));
  ExpectTensorEqual(Call("Prod", none, Ints({0})), TensorOf<float>({2}, {1, 1}));
  ExpectTensorEqual(Call("Max", none, Ints({0})), TensorOf<float>({2}, {-kInf, -kInf}));
  ExpectTensorEqual(Call("Min", none, Ints({0})), TensorOf<float>({2}, {kInf, kInf}));
  ExpectTensorEqual(Call("Max", TensorOf<int32_t>({0}, {}), Ints({0})),
                    Tensor::Scalar<int32_t>(std::numeric_limits<int32_t>::lowest()));
  ExpectTensorEqual(Call("Any", TensorOf<bool>({0}, {}), Ints({0})), Tensor::Scalar<bool>(false));
  ExpectTensorEqual(Call("All", TensorOf<bool>({0}, {}), Ints({0})), Tensor::Scalar<bool>(true));
  ExpectTensorEqual(Call("Sum", none, Ints({1})), TensorOf<float>({0}, {}));
}

TEST(Reduction, NanWins) {
  std::vector<float> values(200, 1);
  values[131] = kNan;
  const Tensor row = Tensor::Vector<float>(values);
  const Tensor matrix = row.Reshaped(ShapeOf({100, 2})).value();
  for (const char* op : {"Max", "Min", "Sum"}) {
    EXPECT_TRUE(std::isnan(Call(op, row, Ints({0})).flat<float>()[0])) << op;
    EXPECT_TRUE(std::isnan(Call(op, matrix, Ints({0})).flat<float>()[1])) << op;
    EXPECT_EQ(Call(op, matrix, Ints({0})).flat<float>()[0], op == std::string("Sum") ? 100 : 1);
  }
}

TEST(Reduction, RefusesBadAxes) {
  const struct {
    Tensor axes;
    const char* text;
  } cases[] = {
      {Ints({2}), "Invalid reduction dimension"},
      {Ints({-3}), "Invalid reduction dimension"},
      {Ints({0, 0}), "Axes contains duplicate dimension: 0"},
      {Ints({1, -1}), "Axes contains duplicate dimension: 1"},
      {TensorOf<int32_t>({1, 1}, {0}),
       "reduction_indices must be a scalar or a vector, got shape [1,1]"},
      {TensorOf<int64_t>({1}, {int64_t{1} << 40}), "Invalid reduction dimension"},
  };
  for (const char* op : {"Sum", "Mean", "Prod", "Max", "Min"}) {
    for (const auto& c : cases) {
      ExpectOpError(OpCall(op).Input(Matrix()).Input(c.axes), kInvalid, c.text);
      EXPECT_SHAPE_ERROR(op, {}, {"[2,3]", c.axes}, c.text);
    }
  }
}

TEST(Reduction, InfersShapes) {
  EXPECT_SHAPE("Sum", {}, {"[2,?,4]", Ints({0})}, "[?,4]");
  EXPECT_SHAPE("Sum", {{"keep_dims", true}}, {"[2,?,4]", Ints({-1})}, "[2,?,1]");
  EXPECT_SHAPE("Sum", {{"keep_dims", true}}, {"[2,3]", "[1]"}, "[?,?]");
  EXPECT_SHAPE("Sum", {}, {"[2,3,4]", "[2]"}, "[?]");
  EXPECT_SHAPE("Sum", {}, {"[2,3,4]", "[?]"}, "<unknown>");
  EXPECT_SHAPE("Any", {}, {"<unknown>", Ints({0})}, "<unknown>");
  EXPECT_SHAPE_ERROR("Sum", {}, {"[2,3]", "[3]"}, "at most 2 axes");
}

// Every pattern of reduced dimensions of a rank-4 tensor, in sizes that make several tasks, against
// a plain index computation.
TEST(Reduction, ReducesLikeAPlainLoop) {
  const int64_t sizes[] = {5, 130, 7, 33};
  const Shape shape = ShapeOf({5, 130, 7, 33});
  Tensor x = Tensor::Allocate(DT_INT64, shape).value();
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    x.mutable_flat<int64_t>()[static_cast<size_t>(i)] = i * 7919 % 100003;
  }
  for (int mask = 1; mask < 16; ++mask) {
    std::vector<int32_t> axes;
    std::vector<int64_t> kept;
    for (int d = 0; d < 4; ++d) {
      if ((mask >> d & 1) != 0) {
        axes.push_back(d);
      } else {
        kept.push_back(sizes[d]);
      }
    }
    Tensor sum = Tensor::Zeros(DT_INT64, Shape::Make(kept).value()).value();
    Tensor max = Tensor::Zeros(DT_INT64, Shape::Make(kept).value()).value();
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      int64_t rest = i, at = 0, step = 1;
      for (int d = 3; d >= 0; --d) {
        const int64_t index = rest % sizes[d];
        rest /= sizes[d];
        if ((mask >> d & 1) == 0) {
          at += index * step;
          step *= sizes[d];
        }
      }
      const int64_t v = x.flat<int64_t>()[static_cast<size_t>(i)];
      sum.mutable_flat<int64_t>()[static_cast<size_t>(at)] += v;
      int64_t& m = max.mutable_flat<int64_t>()[static_cast<size_t>(at)];
      m = std::max(m, v);
    }
    SCOPED_TRACE(mask);
    ExpectTensorEqual(Call("Sum", x, Tensor::Vector<int32_t>(axes)), sum);
    ExpectTensorEqual(Call("Max", x, Tensor::Vector<int32_t>(axes)), max);
  }
}

// A running float sum of 16 million ones would stop at 2^24 and lose 0.1s long before.
TEST(Reduction, LongFloatSumsStayExact) {
  std::vector<float> values(3000000, 0.1f);
  const Tensor x = Tensor::Vector<float>(values);
  const float want = static_cast<float>(3000000 * static_cast<double>(0.1f));
  ExpectTensorNear(Call("Sum", x, Ints({0})), Tensor::Scalar<float>(want), 1e-6, 0);
  const Tensor tall = x.Reshaped(ShapeOf({1500000, 2})).value();
  ExpectTensorNear(Call("Sum", tall, Ints({0})), TensorOf<float>({2}, {want / 2, want / 2}), 1e-6,
                   0);
}

TEST(Reduction, ResultDoesNotDependOnThreads) {
  std::vector<float> values(400000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const Tensor x = Tensor::Vector<float>(values);
  OpTestDevice one(1), four(4);
  for (const Shape& shape : {ShapeOf({400000}), ShapeOf({4000, 100}), ShapeOf({2, 100, 2000})}) {
    const Tensor t = x.Reshaped(shape).value();
    const auto sum = [&](OpTestDevice* device) {
      return RunOp1(OpCall("Sum").Input(t).Input(Ints({0})).On(device));
    };
    EXPECT_TRUE(sum(&one) == sum(&four));
  }
}

TEST(ArgReduction, TakesTheFirstOfEquals) {
  const Tensor x = TensorOf<float>({2, 3}, {1, 5, 5, -2, -2, -3});
  const auto call = [&](const char* op, int32_t axis) {
    return RunOp1(OpCall(op).Input(x).Input(Tensor::Scalar<int32_t>(axis)));
  };
  ExpectTensorEqual(call("ArgMax", 1), Tensor::Vector<int64_t>({1, 0}));
  ExpectTensorEqual(call("ArgMin", -1), Tensor::Vector<int64_t>({0, 2}));
  ExpectTensorEqual(call("ArgMax", 0), Tensor::Vector<int64_t>({0, 0, 0}));
  ExpectTensorEqual(call("ArgMin", 0), Tensor::Vector<int64_t>({1, 1, 1}));
  ExpectTensorEqual(RunOp1(OpCall("ArgMax")
                               .Input(x)
                               .Input(Tensor::Scalar<int64_t>(1))
                               .Attr("output_type", DT_INT32)),
                    Ints({1, 0}));
  ExpectTensorEqual(RunOp1(OpCall("ArgMax")
                               .Input(TensorOf<int8_t>({2, 2, 2}, {1, 2, 3, 4, 8, 7, 6, 5}))
                               .Input(Tensor::Scalar<int32_t>(1))),
                    TensorOf<int64_t>({2, 2}, {1, 1, 0, 0}));
  ExpectTensorEqual(
      RunOp1(OpCall("ArgMax").Input(TensorOf<float>({0, 2}, {})).Input(Tensor::Scalar<int32_t>(1))),
      TensorOf<int64_t>({0}, {}));
}

TEST(ArgReduction, RefusesBadDimensions) {
  for (const char* op : {"ArgMax", "ArgMin"}) {
    for (const int32_t axis : {2, -3}) {
      ExpectOpError(OpCall(op).Input(Matrix()).Input(Tensor::Scalar<int32_t>(axis)), kInvalid,
                    absl::StrCat("Expected dimension in the range [-2, 2), but got ", axis));
    }
    ExpectOpError(OpCall(op).Input(TensorOf<float>({2, 0}, {})).Input(Tensor::Scalar<int32_t>(1)),
                  kInvalid, "Reduction axis 1 is empty in shape [2,0]");
    ExpectOpError(OpCall(op).Input(Matrix()).Input(Ints({0})), kInvalid,
                  "dimension must be a scalar, got shape [1]");
    EXPECT_SHAPE(op, {}, {"[2,?,4]", Tensor::Scalar<int32_t>(0)}, "[?,4]");
    EXPECT_SHAPE(op, {}, {"[2,?,4]", "[]"}, "[?,?]");
    EXPECT_SHAPE_ERROR(op, {}, {"[2,3]", Tensor::Scalar<int32_t>(2)}, "Expected dimension");
    EXPECT_SHAPE_ERROR(op, {}, {"[2,3]", "[1]"}, "dimension must be a scalar, got shape [1]");
  }
}

TEST(L2Loss, IsHalfTheSumOfSquares) {
  ExpectTensorEqual(RunOp1(OpCall("L2Loss").Input(TensorOf<float>({2, 1}, {3, -4}))),
                    Tensor::Scalar<float>(12.5));
  ExpectTensorEqual(RunOp1(OpCall("L2Loss").Input(Tensor::Scalar<double>(2))),
                    Tensor::Scalar<double>(2));
  ExpectTensorEqual(RunOp1(OpCall("L2Loss").Input(TensorOf<float>({0}, {}))),
                    Tensor::Scalar<float>(0));
  EXPECT_SHAPE("L2Loss", {}, {"[2,?]"}, "[]");
  ExpectGradientsMatch(
      BuildOutput([](const Scope& s, const std::vector<Output>& in) { return L2Loss(s, in[0]); }),
      {TensorOf<double>({3}, {1, -2, 0.5})});
}

TEST(Reduction, GradientsMatch) {
  const Tensor x = TensorOf<double>({2, 3, 2}, {0.3, -1.2, 2.5, 0.7, -0.9, 1.1,  //
                                                1.9, 0.6, -2.1, 3.3, 0.2, -0.4});
  for (const ReductionBuilder& op : {Sum, Mean, Prod, Max, Min}) {
    for (const std::vector<int32_t>& axes :
         std::vector<std::vector<int32_t>>{{0}, {1}, {-1}, {0, 2}, {2, 1}, {0, 1, 2}, {}}) {
      for (const bool keep_dims : {false, true}) {
        ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                               return op(s, in[0], ConstVector<int32_t>(s, axes),
                                         {.keep_dims = keep_dims});
                             }),
                             {x});
      }
    }
  }
}

TEST(Reduction, GradientOfAProductWithZerosMatches) {
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return ReduceProd(s, in[0], {1});
                       }),
                       {TensorOf<double>({3, 3}, {0, 2, 3, 0, 0, 5, 1, 2, 3})});
}

TEST(Reduction, ReduceHelpersTakeAllAxesByDefault) {
  Scope scope;
  const Output known = TestInput(scope, DT_FLOAT, {2, 3});
  const Output unknown = TestInput(scope, DT_FLOAT);
  const std::vector<Output> fetches = {ReduceSum(scope.WithName("total"), known),
                                       ReduceSum(scope, unknown),
                                       ReduceMean(scope, known, {0}, {.keep_dims = true})};
  ASSERT_OK(scope.status());
  EXPECT_EQ(fetches[0].node()->name(), "total");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> values,
                       EvaluateGraph(scope, {{known, Matrix()}, {unknown, Matrix()}}, fetches));
  ExpectTensorEqual(values[0], Tensor::Scalar<float>(5));
  ExpectTensorEqual(values[1], Tensor::Scalar<float>(5));
  ExpectTensorEqual(values[2], TensorOf<float>({1, 3}, {2.5, 1.5, -1.5}));
}

}  // namespace
}  // namespace millrace

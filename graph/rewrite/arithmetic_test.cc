// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/arithmetic.h"

#include <complex>
#include <cstring>
#include <functional>
#include <limits>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/rewrite/testing/rewrite_test.h"
#include "graph/scope.h"
#include "graph/signature.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/add_n.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"

namespace millrace {
namespace {

using Build = std::function<Output(const Scope&, Output x)>;

class ArithmeticTest : public testing::RewriteTest {};

TEST_F(ArithmeticTest, NeutralOperandsGo) {
  const Output n = Placeholder(root_.WithName("n"), DT_INT32, {-1});
  const Output a = Add(root_.WithName("a"), n, Const(root_.WithName("zero"), 0));
  const Output b = Mul(root_.WithName("b"), Const(root_.WithName("one"), 1), a);
  Neg(root_.WithName("y"), b);
  const RunSignature signature = {{"n"}, {"y"}, {}};
  EXPECT_EQ(Before(signature),
            "_arg_n_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "a = Add(_arg_n_0_0, zero)\n"
            "b = Mul(one, a)\n"
            "one = Const() int32[]: 1\n"
            "y = Neg(b)\n"
            "zero = Const() int32[]: 0\n");
  EXPECT_EQ(After("arithmetic", signature),
            "_arg_n_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "y = Neg(_arg_n_0_0)\n");
}

TEST_F(ArithmeticTest, TwoSignsCancel) {
  const Output x = Placeholder(root_.WithName("x"), DT_FLOAT, {2});
  const Output inner = Neg(root_.WithName("inner"), x);
  Exp(root_.WithName("y"), Neg(root_.WithName("outer"), inner));
  EXPECT_EQ(After("arithmetic", {{"x"}, {"y"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "y = Exp(_arg_x_0_0)\n");
  EXPECT_EQ(After("arithmetic", {{"x"}, {"y", "inner"}, {}}),
            "_arg_x_0_0 = _Arg()\n"
            "_retval_inner_0_1 = _Retval(inner)\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "inner = Neg(_arg_x_0_0)\n"
            "y = Exp(_arg_x_0_0)\n");
}

TEST_F(ArithmeticTest, WhatTheConstantRanAfterStillRunsBefore) {
  const Output n = Placeholder(root_.WithName("n"), DT_INT32, {-1});
  const Output first = Abs(root_.WithName("first"), n);
  const Output zero = Const(root_.WithControlDependencies({first.op()}).WithName("zero"), 0);
  Neg(root_.WithName("y"), Add(root_.WithName("a"), n, zero));
  EXPECT_EQ(After("arithmetic", {{"n"}, {"y"}, {}}),
            "_arg_n_0_0 = _Arg()\n"
            "_retval_y_0_0 = _Retval(y)\n"
            "first = Abs(_arg_n_0_0)\n"
            "y = Neg(_arg_n_0_0, ^first)\n");
}

// Values on which a rewrite of floats may go wrong: signed zeros, infinities, quiet and signalling
// NaNs with payloads, denormal numbers.
Tensor HardFloats() {
  const uint32_t bits[] = {0x00000000u, 0x80000000u, 0x7f800000u, 0xff800000u,
                           0x7fc00001u, 0xffc12345u, 0x7f800001u, 0xff812345u,
                           0x00000001u, 0x807fffffu, 0x3f800000u, 0x7f7fffffu};
  Tensor values = *Tensor::Allocate(DT_FLOAT, ShapeOf({12}));
  std::memcpy(values.mutable_raw_data(), bits, sizeof(bits));
  return values;
}
Tensor HardDoubles() {
  const uint64_t bits[] = {0x0000000000000000u, 0x8000000000000000u, 0x7ff0000000000000u,
                           0xfff0000000000000u, 0x7ff8000000000001u, 0xfff8000000012345u,
                           0x7ff0000000000001u, 0xfff0000000012345u, 0x0000000000000001u,
                           0x800fffffffffffffu, 0x3ff0000000000000u, 0x7fefffffffffffffu};
  Tensor values = *Tensor::Allocate(DT_DOUBLE, ShapeOf({12}));
  std::memcpy(values.mutable_raw_data(), bits, sizeof(bits));
  return values;
}

struct Case {
  const char* name;
  Tensor x;
  Build build;
  bool goes;  // whether the node `y` is gone
};

template <typename T>
Build With(BinaryBuilder op, T constant) {
  return [op, constant](const Scope& s, Output x) {
    return op(s, x, Const(s.WithName("constant"), Tensor::Scalar<T>(constant)));
  };
}
// The same of a sum, which has no signalling NaN.
template <typename T>
Build AfterSum(BinaryBuilder op, T constant) {
  return [op, constant](const Scope& s, Output x) {
    return op(s, Add(s.WithName("sum"), x, x), Const(s.WithName("constant"), constant));
  };
}
Build Twice(UnaryBuilder op) {
  return [op](const Scope& s, Output x) { return op(s, op(s.WithName("inner"), x)); };
}

TEST(ArithmeticTableTest, ResultsAreEqualBitForBitWhetherTheNodeGoesOrStays) {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor ints = TensorOf<int32_t>(
      {4}, {0, -1, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()});
  const Tensor complexes =
      TensorOf<std::complex<float>>({4}, {{0.f, -0.f}, {-0.f, 0.f}, {inf, -1.f}, {-0.f, -inf}});
  const std::vector<Case> cases = {
      {"f x+0", HardFloats(), With(Add, 0.f), false},
      {"f x+-0", HardFloats(), With(Add, -0.f), false},
      {"f sum+0", HardFloats(), AfterSum(Add, 0.f), false},
      {"f sum+-0", HardFloats(), AfterSum(Add, -0.f), true},
      {"f sum-0", HardFloats(), AfterSum(Sub, 0.f), true},
      {"f sum--0", HardFloats(), AfterSum(Sub, -0.f), false},
      {"f x*1", HardFloats(), With(Mul, 1.f), false},
      {"f sum*1", HardFloats(), AfterSum(Mul, 1.f), true},
      {"f sum*0", HardFloats(), AfterSum(Mul, 0.f), false},
      {"f sum/1", HardFloats(), AfterSum(RealDiv, 1.f), true},
      {"f sum floordiv 1", HardFloats(), AfterSum(FloorDiv, 1.f), false},
      {"d sum+-0", HardDoubles(), AfterSum(AddV2, -0.), true},
      {"d sum*1", HardDoubles(), AfterSum(Mul, 1.), true},
      {"d sum/1", HardDoubles(), AfterSum(Div, 1.), true},
      {"d x/1", HardDoubles(), With(Div, 1.), false},
      {"f --x", HardFloats(), Twice(Neg), true},
      {"d --x", HardDoubles(), Twice(Neg), true},
      {"f 1/1/x", HardFloats(), Twice(Reciprocal), false},
      {"i x+0", ints, With(AddV2, 0), true},
      {"i x-0", ints, With(Sub, 0), true},
      {"i x*1", ints, With(Mul, 1), true},
      {"i x*0", ints, With(Mul, 0), false},
      {"i x/1", ints, With(Div, 1), true},
      {"i x floordiv 1", ints, With(FloorDiv, 1), true},
      {"i x truncatediv 1", ints, With(TruncateDiv, 1), true},
      {"i --x", ints, Twice(Neg), true},
      {"c x*1", complexes, With(Mul, std::complex<float>(1, 0)), false},
      {"c x+-0", complexes, With(Add, std::complex<float>(-0.f, -0.f)), false},
      {"c conj conj", complexes, Twice(Conj), true},
      {"c --x", complexes, Twice(Neg), true},
      {"b not not", TensorOf<bool>({2}, {true, false}), Twice(LogicalNot), true},
      {"i constant - x", ints,
       [](const Scope& s, Output x) { return Sub(s, Const(s.WithName("zero"), 0), x); }, false},
      {"i one element more", ints,
       [](const Scope& s, Output x) {
         return Add(s, x, Const(s.WithName("constant"), TensorOf<int32_t>({1, 1}, {0})));
       },
       false},
      {"i known shape", ints,
       [](const Scope& s, Output x) {
         return Add(s, x, Const(s.WithName("constant"), TensorOf<int32_t>({4}, {0, 0, 0, 0})));
       },
       true},
      {"f one addend", HardFloats(), [](const Scope& s, Output x) { return AddN(s, {x}); }, true},
      {"f two addends", HardFloats(),
       [](const Scope& s, Output x) {
         return AddN(s, {x, x});
       },
       false},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    class Graph : public testing::RewriteTest {
     public:
      void TestBody() override {}
      void Check(const Case& c) {
        const Output x = Placeholder(root_.WithName("x"), c.x.dtype(), c.x.shape());
        Identity(root_.WithName("out"), c.build(root_.WithName("y"), x));
        const std::string text = After("arithmetic", {{"x"}, {"out"}, {}});
        EXPECT_EQ(text.find("\ny = ") == std::string::npos, c.goes) << text;
        ASSERT_OK(ExpectSameResults({{"x", c.x}}, {"out"}).status());
      }
    };
    Graph().Check(c);
  }
}

// A vector of zeros may broadcast what it is added to.
TEST_F(ArithmeticTest, ShapesThatAreNotKnownToStayKeepTheNode) {
  const Output n = Placeholder(root_.WithName("n"), DT_INT32);
  const Output zeros = Const(root_.WithName("zeros"), {0, 0});
  Neg(root_.WithName("y"), Add(root_.WithName("a"), n, zeros));
  const RunSignature signature = {{"n"}, {"y"}, {}};
  EXPECT_EQ(After("arithmetic", signature), Before(signature));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       ExpectSameResults({{"n", TensorOf<int32_t>({1}, {3})}}, {"y"}));
  EXPECT_EQ(y[0], TensorOf<int32_t>({2}, {-3, -3}));
}

}  // namespace
}  // namespace millrace

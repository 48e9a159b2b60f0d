// SPDX-License-Identifier: Apache-2.0
#include "tools/numpy_format.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/resource_handle.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// 0, 1, 2, ... in this shape.
Tensor Iota(std::initializer_list<int64_t> dims) {
  Tensor tensor = Tensor::Allocate(DT_INT32, ShapeOf(dims)).value();
  int32_t next = 0;
  for (int32_t& v : tensor.mutable_flat<int32_t>()) v = next++;
  return tensor;
}

TEST(NumpyFormatTest, FloatsAreShortestWithPointsAligned) {
  struct Case {
    Tensor tensor;
    std::string text;
  };
  const std::vector<Case> cases = {
      {TensorOf<float>({2, 1}, {2.5f, 3}), "[[2.5]\n [3. ]]"},
      {TensorOf<float>({3}, {1, 10.25f, -0.5f}), "[ 1.   10.25 -0.5 ]"},
      {TensorOf<float>({1}, {0.1f}), "[0.1]"},
      {TensorOf<double>({1}, {static_cast<double>(0.1f)}), "[0.1]"},
      {TensorOf<float>({1}, {123456.789f}), "[123456.79]"},
      {TensorOf<float>({2}, {0.6461204f, -8.34077f}), "[ 0.6461204 -8.34077  ]"},
      {TensorOf<double>({3}, {1, 2.718281828459045, 7.38905609893065}),
       "[1.         2.71828183 7.3890561 ]"},
      {TensorOf<double>({2}, {2.0 / 3, 1}), "[0.66666667 1.        ]"},
      {TensorOf<double>({9}, {0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2}),
       "[0.   0.25 0.5  0.75 1.   1.25 1.5  1.75 2.  ]"},
      // Rounding carries into the integer part.
      {TensorOf<double>({1}, {0.9999999999}), "[1.]"},
      {TensorOf<float>({2}, {0, -0.f}), "[ 0. -0.]"},
      {TensorOf<Half>({2}, {ToHalf(0.1f), ToHalf(2.5f)}), "[0.1 2.5]"},
      {TensorOf<Bfloat16>({2}, {ToBfloat16(1.5f), ToBfloat16(-2)}), "[ 1.5 -2. ]"},
      {TensorOf<float>({1}, {99999999.f}), "[1.e+08]"},
      {TensorOf<double>({1}, {99999999}), "[99999999.]"},
  };
  for (const Case& c : cases) EXPECT_EQ(NumpyString(c.tensor), c.text);
}

TEST(NumpyFormatTest, RangeOfMagnitudesDecidesAboutScientific) {
  struct Case {
    Tensor tensor;
    std::string text;
  };
  const std::vector<Case> cases = {
      {TensorOf<float>({2}, {1e-5f, 1}), "[1.e-05 1.e+00]"},
      {TensorOf<float>({1}, {1e8f}), "[1.e+08]"},
      {TensorOf<double>({1}, {0.0001}), "[0.0001]"},
      // The nearest float32 is below 1e-4.
      {TensorOf<float>({1}, {0.0001f}), "[1.e-04]"},
      {TensorOf<double>({2}, {1000, 1}), "[1000.    1.]"},
      {TensorOf<double>({2}, {1001, 1}), "[1.001e+03 1.000e+00]"},
      {TensorOf<float>({2}, {16777216, 1}), "[1.6777216e+07 1.0000000e+00]"},
      {TensorOf<double>({2}, {1e100, -1}), "[ 1.e+100 -1.e+000]"},
      {TensorOf<double>({2}, {1.0 / 3 * 1e-9, 0}), "[3.33333333e-10 0.00000000e+00]"},
      // Zeros have no say.
      {TensorOf<float>({3}, {0, 0, 5}), "[0. 0. 5.]"},
  };
  for (const Case& c : cases) EXPECT_EQ(NumpyString(c.tensor), c.text);
}

TEST(NumpyFormatTest, NotANumberAndInfinitiesFillTheSameWidth) {
  EXPECT_EQ(NumpyString(TensorOf<float>({2}, {kNan, 1})), "[nan  1.]");
  EXPECT_EQ(NumpyString(TensorOf<float>({3}, {kInf, -kInf, 1.5f})), "[ inf -inf  1.5]");
  EXPECT_EQ(NumpyString(TensorOf<float>({2}, {kNan, kNan})), "[nan nan]");
  EXPECT_EQ(NumpyString(TensorOf<float>({2}, {kInf, 1e-10f})), "[   inf 1.e-10]");
  EXPECT_EQ(NumpyString(TensorOf<float>({2}, {kInf, 1.25f})), "[ inf 1.25]");
}

TEST(NumpyFormatTest, ScalarsAreBare) {
  struct Case {
    Tensor tensor;
    std::string text;
  };
  const std::vector<Case> cases = {
      {Tensor::Scalar(2.5f), "2.5"},
      {Tensor::Scalar(3.f), "3.0"},
      {Tensor::Scalar(0.1f), "0.1"},
      {Tensor::Scalar(-0.f), "-0.0"},
      {Tensor::Scalar(0.1 + 0.2), "0.30000000000000004"},
      {Tensor::Scalar(1e-5f), "1e-05"},
      {Tensor::Scalar(1.5e20f), "1.5e+20"},
      {Tensor::Scalar(1e15), "1000000000000000.0"},
      {Tensor::Scalar(1e16), "1e+16"},
      {Tensor::Scalar(1e-300), "1e-300"},
      {Tensor::Scalar(kNan), "nan"},
      {Tensor::Scalar(-kInf), "-inf"},
      {Tensor::Scalar(ToHalf(0.1f)), "0.1"},
      {Tensor::Scalar(int32_t{-7}), "-7"},
      {Tensor::Scalar(uint8_t{200}), "200"},
      {Tensor::Scalar(true), "True"},
      {Tensor::Scalar(std::string("0")), "b'0'"},
      {Tensor::Scalar(std::complex<double>(1, -2.5)), "(1-2.5j)"},
      {Tensor::Scalar(std::complex<float>(0, 2)), "2j"},
  };
  for (const Case& c : cases) EXPECT_EQ(NumpyString(c.tensor), c.text);
}

TEST(NumpyFormatTest, IntegersAlignToTheWidest) {
  EXPECT_EQ(NumpyString(TensorOf<int32_t>({2, 2}, {1, 20, 3, 4})), "[[ 1 20]\n [ 3  4]]");
  EXPECT_EQ(NumpyString(TensorOf<int8_t>({3}, {-128, 0, 5})), "[-128    0    5]");
  EXPECT_EQ(NumpyString(TensorOf<uint64_t>({2}, {18446744073709551615u, 1})),
            "[18446744073709551615                    1]");
  EXPECT_EQ(NumpyString(TensorOf<QInt8>({2}, {QInt8{-3}, QInt8{4}})), "[-3  4]");
}

TEST(NumpyFormatTest, BooleansAreFiveWide) {
  EXPECT_EQ(NumpyString(TensorOf<bool>({2}, {true, false})), "[ True False]");
  EXPECT_EQ(NumpyString(TensorOf<bool>({1}, {true})), "[ True]");
}

TEST(NumpyFormatTest, StringsAreReprsOfBytes) {
  EXPECT_EQ(NumpyString(TensorOf<std::string>({1, 2}, {"0", "1"})), "[[b'0' b'1']]");
  EXPECT_EQ(NumpyString(TensorOf<std::string>({2}, {"long", "s"})), "[b'long' b's']");
  EXPECT_EQ(PythonBytesRepr("it's"), "b\"it's\"");
  EXPECT_EQ(PythonBytesRepr("'\""), "b'\\'\"'");
  EXPECT_EQ(PythonBytesRepr(absl::string_view("\0\t\n\r\\\x7f\xff~", 8)),
            "b'\\x00\\t\\n\\r\\\\\\x7f\\xff~'");
}

TEST(NumpyFormatTest, ComplexNumbersAlignBothParts) {
  EXPECT_EQ(NumpyString(TensorOf<std::complex<double>>({2}, {{1, 2}, {3.5, -1}})),
            "[1. +2.j 3.5-1.j]");
}

TEST(NumpyFormatTest, ArraysWithoutElementsAreBrackets) {
  EXPECT_EQ(NumpyString(TensorOf<float>({0}, {})), "[]");
  EXPECT_EQ(NumpyString(TensorOf<float>({2, 0, 3}, {})), "[]");
}

TEST(NumpyFormatTest, BlankLinesSeparateMatrices) {
  EXPECT_EQ(NumpyString(Iota({2, 3, 4})),
            "[[[ 0  1  2  3]\n"
            "  [ 4  5  6  7]\n"
            "  [ 8  9 10 11]]\n"
            "\n"
            " [[12 13 14 15]\n"
            "  [16 17 18 19]\n"
            "  [20 21 22 23]]]");
  EXPECT_EQ(NumpyString(Iota({2, 1, 1, 1})), "[[[[0]]]\n\n\n [[[1]]]]");
}

TEST(NumpyFormatTest, RowsWrapAtSeventyFiveCharacters) {
  EXPECT_EQ(NumpyString(Iota({30})),
            "[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n"
            " 24 25 26 27 28 29]");
  Tensor zeros = Tensor::Zeros(DT_FLOAT, ShapeOf({30})).value();
  EXPECT_EQ(NumpyString(zeros),
            "[0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0.\n"
            " 0. 0. 0. 0. 0. 0.]");
  // One level deeper: an indent more and a bracket to close more.
  EXPECT_EQ(NumpyString(Iota({1, 30})),
            "[[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23\n"
            "  24 25 26 27 28 29]]");
  // A word that is too long for any line stands alone.
  const std::string word(80, 'x');
  EXPECT_EQ(NumpyString(TensorOf<std::string>({2}, {word, "y"})), "[b'" + word + "'\n b'y']");
}

TEST(NumpyFormatTest, MoreThanAThousandElementsAreSummarised) {
  EXPECT_EQ(NumpyString(Iota({10000})), "[   0    1    2 ... 9997 9998 9999]");
  EXPECT_EQ(NumpyString(Iota({100, 100})),
            "[[   0    1    2 ...   97   98   99]\n"
            " [ 100  101  102 ...  197  198  199]\n"
            " [ 200  201  202 ...  297  298  299]\n"
            " ...\n"
            " [9700 9701 9702 ... 9797 9798 9799]\n"
            " [9800 9801 9802 ... 9897 9898 9899]\n"
            " [9900 9901 9902 ... 9997 9998 9999]]");
  // A dimension of six is shown whole; what is hidden has no say about widths.
  Tensor wide = Tensor::Zeros(DT_INT32, ShapeOf({6, 200})).value();
  wide.mutable_flat<int32_t>()[100] = 1000000;
  EXPECT_EQ(NumpyString(wide),
            "[[0 0 0 ... 0 0 0]\n"
            " [0 0 0 ... 0 0 0]\n"
            " [0 0 0 ... 0 0 0]\n"
            " [0 0 0 ... 0 0 0]\n"
            " [0 0 0 ... 0 0 0]\n"
            " [0 0 0 ... 0 0 0]]");
  EXPECT_EQ(NumpyString(Iota({1000})).find("..."), std::string::npos);
}

TEST(NumpyFormatTest, WhatNumpyDoesNotHaveIsNamed) {
  EXPECT_EQ(NumpyString(Tensor()), "<no value>");
  EXPECT_EQ(NumpyString(Tensor::Scalar(ResourceHandle())), "<resource>");
}

}  // namespace
}  // namespace millrace

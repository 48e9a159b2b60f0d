// SPDX-License-Identifier: Apache-2.0
//
// Expressions with numpy's calls. What is wanted is what numpy 1.23 gives.

#include "tools/numpy_call.h"

#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tools/numpy_format.h"
#include "tools/python_literal.h"

// covers: programs: `--input_exprs` takes zeros, ones, full, array and arange of numpy, with types,
//   and evaluates nothing

namespace millrace {
namespace {

StatusOr<Tensor> Evaluated(const std::string& text, DType dtype = DT_INVALID) {
  MR_ASSIGN_OR_RETURN(const PythonValue value, ParsePythonExpression(text));
  return TensorFromPython(value, dtype);
}

TEST(NumpyCall, MakesWhatNumpyMakes) {
  struct Case {
    std::string expression;
    DType dtype;
    std::string shape;
    std::string text;  // as numpy prints it
  };
  const std::vector<Case> cases = {
      {"np.ones((2, 1))", DT_DOUBLE, "[2,1]", "[[1.]\n [1.]]"},
      {"numpy.ones(2)", DT_DOUBLE, "[2]", "[1. 1.]"},
      {"np.ones([2], np.int32)", DT_INT32, "[2]", "[1 1]"},
      {"np.ones(shape=(1,), dtype='float32')", DT_FLOAT, "[1]", "[1.]"},
      {"np.zeros(())", DT_DOUBLE, "[]", "0.0"},
      {"np.zeros((2, 0))", DT_DOUBLE, "[2,0]", "[]"},
      {"np.zeros(2, dtype=bool)", DT_BOOL, "[2]", "[False False]"},
      {"np.zeros(1, np.complex64)", DT_COMPLEX64, "[1]", "[0.+0.j]"},
      {"np.full((1, 2), 7)", DT_INT64, "[1,2]", "[[7 7]]"},
      {"np.full(2, 1.5)", DT_DOUBLE, "[2]", "[1.5 1.5]"},
      {"np.full(2, 1.5, np.int8)", DT_INT8, "[2]", "[1 1]"},
      {"np.full(2, -np.inf, dtype=np.float32)", DT_FLOAT, "[2]", "[-inf -inf]"},
      {"np.full(fill_value=True, shape=1)", DT_BOOL, "[1]", "[ True]"},
      {"np.array([[1, 2], [3, 4]])", DT_INT64, "[2,2]", "[[1 2]\n [3 4]]"},
      {"np.array([1, 2.5])", DT_DOUBLE, "[2]", "[1.  2.5]"},
      {"np.array([1.5, -2.5], dtype=np.int32)", DT_INT32, "[2]", "[ 1 -2]"},
      {"np.array(3)", DT_INT64, "[]", "3"},
      {"np.asarray([1], '<f4')", DT_FLOAT, "[1]", "[1.]"},
      {"np.array(np.ones(2), np.int64)", DT_INT64, "[2]", "[1 1]"},
      {"np.array([np.ones(2), np.zeros(2)])", DT_DOUBLE, "[2,2]", "[[1. 1.]\n [0. 0.]]"},
      {"[np.arange(2), [5, 6]]", DT_INT64, "[2,2]", "[[0 1]\n [5 6]]"},
      {"(np.zeros(1, bool), np.ones(1, bool))", DT_BOOL, "[2,1]", "[[False]\n [ True]]"},
      {"np.arange(3)", DT_INT64, "[3]", "[0 1 2]"},
      {"np.arange(1, 4)", DT_INT64, "[3]", "[1 2 3]"},
      {"np.arange(5, 0, -2)", DT_INT64, "[3]", "[5 3 1]"},
      {"np.arange(3, 1)", DT_INT64, "[0]", "[]"},
      {"np.arange(3, step=2)", DT_INT64, "[2]", "[0 2]"},
      {"np.arange(stop=2)", DT_INT64, "[2]", "[0 1]"},
      {"np.arange(0, 1, 0.25)", DT_DOUBLE, "[4]", "[0.   0.25 0.5  0.75]"},
      {"np.arange(3.0)", DT_DOUBLE, "[3]", "[0. 1. 2.]"},
      {"np.arange(0, 0.3, 0.1)", DT_DOUBLE, "[3]", "[0.  0.1 0.2]"},
      {"np.arange(3, dtype=np.float32)", DT_FLOAT, "[3]", "[0. 1. 2.]"},
      {"np.arange(0.5, 3, dtype=int)", DT_INT64, "[3]", "[0 1 2]"},
      {"np.arange(0, 1, 0.5, np.float16)", DT_HALF, "[2]", "[0.  0.5]"},
      {"np.arange(9223372036854775806, 9223372036854775807)", DT_INT64, "[1]",
       "[9223372036854775806]"},
      {"np.float32(1.5)", DT_FLOAT, "[]", "1.5"},
      {"np.int64(-3)", DT_INT64, "[]", "-3"},
      {"[np.float32(1.5), 2]", DT_DOUBLE, "[2]", "[1.5 2. ]"},
      {"[np.inf, -np.inf, +np.pi]", DT_DOUBLE, "[3]", "[       inf       -inf 3.14159265]"},
      {" np . ones (2)", DT_INVALID, "", ""},
      {"(np.zeros((0, 784)))", DT_DOUBLE, "[0,784]", "[]"},
      {"(np.ones(1, np.complex64))", DT_COMPLEX64, "[1]", "[1.+0.j]"},
      {"((np.float32(1.5)))", DT_FLOAT, "[]", "1.5"},
      {"np.arange(np.int64(3))", DT_INT64, "[3]", "[0 1 2]"},
      {"np.ones(np.int32(2))", DT_DOUBLE, "[2]", "[1. 1.]"},
      {"np.ones ( 2 , )", DT_DOUBLE, "[2]", "[1. 1.]"},
      {"[1, 2]", DT_INT64, "[2]", "[1 2]"},
  };
  for (const Case& c : cases) {
    if (c.dtype == DT_INVALID) {
      EXPECT_FALSE(Evaluated(c.expression).ok()) << c.expression;
      continue;
    }
    const StatusOr<Tensor> got = Evaluated(c.expression);
    ASSERT_OK(got.status()) << c.expression;
    EXPECT_EQ(got->dtype(), c.dtype) << c.expression;
    EXPECT_EQ(got->shape().ToString(), c.shape) << c.expression;
    EXPECT_EQ(NumpyString(*got), c.text) << c.expression;
  }
}

TEST(NumpyCall, TakesTheTypeThatTheModelAsksFor) {
  ASSERT_OK_AND_ASSIGN(const Tensor single, Evaluated("np.full(2, 0.1)", DT_FLOAT));
  ExpectTensorEqual(single, Tensor::Of({0.1f, 0.1f}));
  ASSERT_OK_AND_ASSIGN(const Tensor whole, Evaluated("np.arange(0, 2, 0.5)", DT_INT32));
  ExpectTensorEqual(whole, Tensor::Of<int32_t>({0, 0, 1, 1}));
  ASSERT_OK_AND_ASSIGN(const Tensor words, Evaluated("np.array(['a', 'b'])", DT_STRING));
  ExpectTensorEqual(words, Tensor::Of<std::string>({"a", "b"}));
  ASSERT_OK_AND_ASSIGN(const Tensor objects, Evaluated("np.full(2, 'x', dtype=object)", DT_STRING));
  ExpectTensorEqual(objects, Tensor::Of<std::string>({"x", "x"}));
  EXPECT_STATUS(Evaluated("np.ones(2)", DT_STRING), absl::StatusCode::kInvalidArgument,
                "array must be of string, got double");
}

TEST(NumpyCall, WhatIsWrongIsNamed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"np.ones()", "np.ones: shape must be given, got none"},
      {"np.ones(-1)", "np.ones: shape must be integers >= 0, got -1"},
      {"np.ones((2, 1.5))", "np.ones: shape must be integers >= 0, got (2, 1.5)"},
      {"np.ones(2, np.float33)", "must begin a literal or one of np.arange()"},
      {"np.ones(2, 'f16')",
       "np.ones: dtype must be a type that tensors have, such as np.float32 "
       "or 'int64', got 'f16'"},
      {"np.ones(2, 3)", "np.ones: dtype must be a type that tensors have"},
      {"np.ones(2, float, 'C')", "np.ones: arguments must be at most shape, dtype, got 3 of them"},
      {"np.ones(2, order='C')", "np.ones: arguments must be at most shape, dtype, got 'order'"},
      {"np.ones(2, shape=2)", "np.ones: shape must be given once, got it again"},
      {"np.ones(dtype=int, 2)", "must begin an argument with a name, as the one before it"},
      {"np.ones((100000, 100000))", "np.ones: the array must have less than 134217728 elements"},
      {"np.ones((9223372036854775807, 9223372036854775807))", ""},
      {"np.full(2)", "np.full: fill_value must be given, got none"},
      {"np.full(2, [1, 2])", "np.full: fill_value must be one value, got [1, 2]"},
      {"np.full(2, None)", "element must be a number"},
      {"np.array([1, [2]])", "np.array: setting an array element with a sequence"},
      {"np.array(300, np.int8)", "np.array: number must fit int8, got 300"},
      {"np.array({})", "np.array: "},
      {"np.array(float)", "np.array: "},
      {"np.arange()", "np.arange: stop must be given, got none"},
      {"np.arange(0, 1, 0)", "np.arange: step must not be 0, got 0"},
      {"np.arange('a')", "np.arange: start, stop and step must be numbers, got 'a'"},
      {"np.arange(np.nan)", "np.arange: start, stop and step must make a finite number"},
      {"np.arange(np.inf)", "np.arange: start, stop and step must make a finite number"},
      {"np.arange(1e300)", "np.arange: the array must have less than"},
      {"np.arange(9223372036854775807)", "np.arange: the array must have less than"},
      {"np.arange(3, dtype=bool)", "np.arange: dtype must be of real numbers, got bool"},
      {"np.arange(1e200, 2e200, 1e200, int)", "np.arange: start and step must fit the type"},
      {"[np.ones(65537)]", "an array in a list must have at most 65536 elements, got [65537]"},
      {"[np.ones(1, np.complex64)]", "an array in a list must be of real numbers, got complex64"},
      {"{np.ones(1): 2}", "must begin after a hashable key"},
      {"np.onez(2)", "got 'onez'; did you mean 'ones'?"},
      {"np.random.rand(2)", "must begin a literal or one of np.arange()"},
      {"np.load('a.npy')", "got 'load'"},
      {"np.ones(2).astype(int)", "must begin the end, got '.astype(int)'"},
      {"np.ones(2) * 3", "must begin the end, got '* 3'"},
      {"np.ones(2)[0]", "must begin the end, got '[0]'"},
      {"np.ones((2,1)", "must begin ',' or ')'"},
      {"np.ones(2, 2 2)", "must begin ',' or ')'"},
      {"-np.ones(2)", "must begin a number behind a sign"},
      {"np.float32", "must begin a value, not a type"},
      {"[float]", "must begin a value, not a type"},
      {"np", "must begin a literal or one of np.arange()"},
      {"np.", "must begin a literal or one of np.arange()"},
      {"ones(2)", "must begin a literal or one of np.arange()"},
      {"float('inf')", "must begin a value, not a type"},
      {"__import__('os').system('true')", "must begin a literal"},
      {"[x for x in [1]]", "must begin a literal or one of np.arange()"},
      {"lambda: 1", "must begin a literal or one of np.arange()"},
      {"open('/etc/passwd')", "must begin a literal or one of np.arange()"},
  };
  for (const auto& [expression, message] : cases) {
    EXPECT_STATUS(Evaluated(expression), absl::StatusCode::kInvalidArgument, message) << expression;
  }
  std::string nested = "1";
  for (int i = 0; i < 70; ++i) nested = "np.array(" + nested + ")";
  EXPECT_STATUS(Evaluated(nested), absl::StatusCode::kInvalidArgument, "nesting must be at most");
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "np.array(";
  EXPECT_STATUS(Evaluated(deep), absl::StatusCode::kInvalidArgument, "nesting must be at most");
}

}  // namespace
}  // namespace millrace

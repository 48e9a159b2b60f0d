// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_TESTING_TENSOR_TESTING_H_
#define MILLRACE_CORE_TESTING_TENSOR_TESTING_H_

// Tensors and statuses in tests.
//
//   ASSERT_OK_AND_ASSIGN(Tensor y, Run(TensorOf<float>({2, 2}, {1, 2, 3, 4})));
//   ExpectTensorNear(y, TensorOf<float>({2}, {3, 7}), 1e-6, 0);
//   EXPECT_STATUS(Run(Tensor()), absl::StatusCode::kInvalidArgument, "input 0");
//
// A function that finds a difference fails the current test (not fatally) and goes on.

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "gtest/gtest.h"

namespace millrace {

// A tensor of these values in row-major order: TensorOf<int64_t>({2, 1}, {7, 8}), a scalar by
// TensorOf<float>({}, {1}). Fails the test, and is no value, when their number is not that of
// the dimensions.
template <typename T>
Tensor TensorOf(std::initializer_list<int64_t> dims, std::initializer_list<T> values) {
  StatusOr<Shape> shape = Shape::Make(dims);
  if (!shape.ok()) {
    ADD_FAILURE() << "TensorOf: " << shape.status();
    return Tensor();
  }
  StatusOr<Tensor> tensor =
      Tensor::FromValues<T>(*shape, absl::MakeConstSpan(values.begin(), values.size()));
  if (!tensor.ok()) {
    ADD_FAILURE() << "TensorOf: " << tensor.status();
    return Tensor();
  }
  return *std::move(tensor);
}

// The shape of these dimensions; fails the test, and is a scalar, when there is none.
Shape ShapeOf(std::initializer_list<int64_t> dims);

// Same dtype, shape and values; NaN equals NaN, 0 equals -0.
void ExpectTensorEqual(const Tensor& got, const Tensor& want);

// Same dtype and shape, and |got - want| <= atol + rtol * |want| for each element. NaN is near
// NaN only, an infinity near itself only. Elements that are no numbers must be equal.
void ExpectTensorNear(const Tensor& got, const Tensor& want, double rtol, double atol);

namespace testing_internal {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

::testing::AssertionResult IsOk(const char* expression, const absl::Status& status);
::testing::AssertionResult HasStatus(const char* expression, const absl::Status& status,
                                     absl::StatusCode code, absl::string_view substring);

}  // namespace testing_internal
}  // namespace millrace

// The expression is a Status or a StatusOr.
#define EXPECT_OK(...)                            \
  EXPECT_TRUE(::millrace::testing_internal::IsOk( \
      #__VA_ARGS__, ::millrace::testing_internal::StatusOf(__VA_ARGS__)))
#define ASSERT_OK(...)                            \
  ASSERT_TRUE(::millrace::testing_internal::IsOk( \
      #__VA_ARGS__, ::millrace::testing_internal::StatusOf(__VA_ARGS__)))

// Assigns the value of a StatusOr to `lhs`, which may declare a variable; ends the test function
// when there is none.
#define ASSERT_OK_AND_ASSIGN(lhs, ...) \
  MR_ASSERT_OK_AND_ASSIGN_INNER(MR_STATUS_CONCAT(millrace_test_or_, __LINE__), lhs, __VA_ARGS__)
#define MR_ASSERT_OK_AND_ASSIGN_INNER(tmp, lhs, ...)                           \
  auto tmp = (__VA_ARGS__);                                                    \
  ASSERT_TRUE(::millrace::testing_internal::IsOk(#__VA_ARGS__, tmp.status())); \
  lhs = std::move(tmp).value()

// `expr` has this code, and its message contains `substring`.
#define EXPECT_STATUS(expr, code, substring)           \
  EXPECT_TRUE(::millrace::testing_internal::HasStatus( \
      #expr, ::millrace::testing_internal::StatusOf(expr), (code), (substring)))

#endif  // MILLRACE_CORE_TESTING_TENSOR_TESTING_H_

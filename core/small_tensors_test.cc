// SPDX-License-Identifier: Apache-2.0
#include "core/small_tensors.h"

#include <cstdint>
#include <limits>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ScalarTensor, IsTheNumberInTheDtype) {
  ExpectTensorEqual(*ScalarTensor(DT_FLOAT, 0.1), Tensor::Scalar<float>(0.1f));
  ExpectTensorEqual(*ScalarTensor(DT_DOUBLE, 0.1), Tensor::Scalar<double>(0.1));
  ExpectTensorEqual(*ScalarTensor(DT_HALF, 0.5), Tensor::Scalar<Half>(ToHalf(0.5f)));
  ExpectTensorEqual(*ScalarTensor(DT_BFLOAT16, int64_t{2}),
                    Tensor::Scalar<Bfloat16>(ToBfloat16(2)));
  ExpectTensorEqual(*ScalarTensor(DT_COMPLEX64, 2.0), Tensor::Scalar<std::complex<float>>({2, 0}));
  ExpectTensorEqual(*ScalarTensor(DT_INT32, 3.0), Tensor::Scalar<int32_t>(3));
  ExpectTensorEqual(*ScalarTensor(DT_INT8, int64_t{-128}), Tensor::Scalar<int8_t>(-128));
  ExpectTensorEqual(*ScalarTensor(DT_UINT8, int64_t{255}), Tensor::Scalar<uint8_t>(255));
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  ExpectTensorEqual(*ScalarTensor(DT_INT64, kLargest), Tensor::Scalar<int64_t>(kLargest));
  ExpectTensorEqual(*ScalarTensor(DT_FLOAT, std::numeric_limits<double>::infinity()),
                    Tensor::Scalar<float>(std::numeric_limits<float>::infinity()));
}

TEST(ScalarTensor, RefusesWhatTheDtypeDoesNotHave) {
  EXPECT_STATUS(ScalarTensor(DT_INT32, 1.5), kInvalid,
                "a number must be a value of the dtype int32, got 1.5");
  EXPECT_STATUS(ScalarTensor(DT_INT32, int64_t{1} << 31), kInvalid, "got 2147483648");
  EXPECT_STATUS(ScalarTensor(DT_INT64, 9223372036854775808.0), kInvalid, "dtype int64");
  EXPECT_STATUS(ScalarTensor(DT_INT32, std::numeric_limits<double>::quiet_NaN()), kInvalid,
                "got nan");
  EXPECT_STATUS(ScalarTensor(DT_UINT8, int64_t{-1}), kInvalid, "got -1");
  EXPECT_STATUS(ScalarTensor(DT_UINT16, 65536.0), kInvalid, "got 65536");
  EXPECT_STATUS(ScalarTensor(DT_FLOAT, 1e39), kInvalid, "dtype float, got 1e+39");
  EXPECT_STATUS(ScalarTensor(DT_HALF, int64_t{70000}), kInvalid, "dtype half, got 70000");
  for (const DType dtype : {DT_STRING, DT_BOOL, DT_RESOURCE, DT_QINT8, DT_INVALID, DT_FLOAT_REF}) {
    EXPECT_STATUS(ScalarTensor(dtype, 1.0), kInvalid,
                  "must be an integer, floating or complex one");
  }
}

TEST(DimsTensor, IsInt32WhereAllDimensionsFit) {
  ExpectTensorEqual(DimsTensor(Shape{2, 3}), Tensor::Vector<int32_t>({2, 3}));
  ExpectTensorEqual(DimsTensor(Shape()), Tensor::Vector<int32_t>({}));
  ExpectTensorEqual(DimsTensor(Shape{int64_t{1} << 31, 2}),
                    Tensor::Vector<int64_t>({int64_t{1} << 31, 2}));
}

}  // namespace
}  // namespace millrace

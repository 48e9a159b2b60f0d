// SPDX-License-Identifier: Apache-2.0
#include "train/loss_guard.h"

#include <limits>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using absl::StatusCode;

TEST(CheckLossIsFiniteTest, LargeLossesAreNoErrorEvenWhenTheirSumIs) {
  EXPECT_OK(CheckLossIsFinite(TensorOf<double>({2}, {1.7e308, 1.7e308}), 3));
  EXPECT_OK(CheckLossIsFinite(TensorOf<float>({0}, {}), 3));
  EXPECT_STATUS(CheckLossIsFinite(TensorOf<float>({}, {std::numeric_limits<float>::infinity()}), 3),
                StatusCode::kInvalidArgument, "got inf at global step 3");
}

}  // namespace
}  // namespace millrace

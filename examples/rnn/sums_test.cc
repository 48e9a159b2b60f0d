// SPDX-License-Identifier: Apache-2.0
#include "examples/rnn/sums.h"

#include <algorithm>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(DrawSumsTest, TwoMarkedNumbersMakeTheSum) {
  std::mt19937_64 random(1);
  ASSERT_OK_AND_ASSIGN(const SumsBatch batch, DrawSums(200, 10, &random));
  const float* step = batch.steps.flat<float>().data();
  const int32_t* lengths = batch.lengths.flat<int32_t>().data();
  const float* sums = batch.sums.flat<float>().data();
  int32_t shortest = 10, longest = 0;
  double error_of_one = 0;
  for (int64_t i = 0; i < 200; ++i, step += 20) {
    const int32_t length = lengths[i];
    shortest = std::min(shortest, length);
    longest = std::max(longest, length);
    float sum = 0;
    int marks = 0;
    for (int64_t t = 0; t < 10; ++t) {
      if (t >= length) {
        EXPECT_EQ(step[2 * t], 0);
        EXPECT_EQ(step[2 * t + 1], 0);
        continue;
      }
      EXPECT_GE(step[2 * t], 0);
      EXPECT_LT(step[2 * t], 1);
      marks += step[2 * t + 1] == 1;
      sum += step[2 * t] * step[2 * t + 1];
    }
    EXPECT_EQ(marks, 2);
    EXPECT_FLOAT_EQ(sums[i], sum);
    error_of_one += (sum - 1) * (sum - 1) / 200;
  }
  EXPECT_EQ(shortest, 5);
  EXPECT_EQ(longest, 10);
  EXPECT_NEAR(error_of_one, 1.0 / 6, 0.04);
}

TEST(DrawSumsTest, EqualGeneratorsEqualBatches) {
  std::mt19937_64 random(7), again(7);
  ASSERT_OK_AND_ASSIGN(const SumsBatch a, DrawSums(5, 6, &random));
  ASSERT_OK_AND_ASSIGN(const SumsBatch b, DrawSums(5, 6, &again));
  ExpectTensorEqual(a.steps, b.steps);
  ExpectTensorEqual(a.sums, b.sums);
}

}  // namespace
}  // namespace millrace

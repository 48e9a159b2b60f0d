// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/auc.h"

#include <cstddef>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"

// covers: training: AUC is exact, by ranks; examples to one are read off its moving mean

namespace millrace::scaling {
namespace {

TEST(AucTest, IsTheShareOfPairsInTheRightOrder) {
  EXPECT_EQ(RankAuc({1, 2, 3, 4}, {0, 0, 1, 1}), 1);
  EXPECT_EQ(RankAuc({4, 3, 2, 1}, {0, 0, 1, 1}), 0);
  EXPECT_EQ(RankAuc({7, 7, 7, 7}, {0, 1, 0, 1}), 0.5);
  // Of the six pairs (1.5 of 0.5, 1, 2; 2 of the same): 2 right, 1 wrong; 2 right, 1 equal.
  EXPECT_DOUBLE_EQ(RankAuc({0.5f, 1.5f, 1, 2, 2}, {0, 1, 0, 1, 0}), 4.5 / 6);

  std::mt19937_64 random(5);
  std::vector<float> scores, labels;
  for (int i = 0; i < 200; ++i) {
    scores.push_back(static_cast<float>(random() % 50));
    labels.push_back(static_cast<float>(random() % 2));
  }
  double right = 0, pairs = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    for (size_t j = 0; j < scores.size(); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      ++pairs;
      right += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  EXPECT_DOUBLE_EQ(RankAuc(scores, labels), right / pairs);
}

TEST(AucTest, WhatSaysNothingIsAHalf) {
  EXPECT_EQ(RankAuc({}, {}), 0.5);
  EXPECT_EQ(RankAuc({1, 2}, {1, 1}), 0.5);
  EXPECT_EQ(RankAuc({1, std::numeric_limits<float>::quiet_NaN()}, {0, 1}), 0.5);
  EXPECT_EQ(RankAuc({1, std::numeric_limits<float>::infinity()}, {0, 1}), 1);
}

TEST(AucTest, AStraightLineIsItsOwnMovingMean) {
  std::vector<AucPoint> line;
  for (int i = 1; i <= 8; ++i) line.push_back({100.0 * i, 10.0 * i, 0.5 + 0.05 * i});
  const std::vector<AucPoint> smoothed = Smoothed(line, 300);
  ASSERT_EQ(smoothed.size(), 6);
  EXPECT_DOUBLE_EQ(smoothed[0].examples, 200);
  EXPECT_DOUBLE_EQ(smoothed[5].auc, 0.5 + 0.05 * 7);
  EXPECT_TRUE(Smoothed(line, 900).empty());
  // Points that are far from each other are their own means.
  ASSERT_EQ(Smoothed(line, 80).size(), 8);
  EXPECT_DOUBLE_EQ(Smoothed(line, 80)[3].auc, line[3].auc);
  const std::optional<AucPoint> at = Reached(smoothed, 0.68);
  ASSERT_TRUE(at);
  EXPECT_NEAR(at->examples, 360, 1e-9);
  EXPECT_NEAR(at->time, 36, 1e-9);
}

TEST(AucTest, TheFirstTimeCounts) {
  const std::vector<AucPoint> curve = {{1, 1, 0.5}, {2, 3, 0.7}, {3, 5, 0.6}, {4, 7, 0.8}};
  EXPECT_DOUBLE_EQ(Reached(curve, 0.6)->examples, 1.5);
  EXPECT_DOUBLE_EQ(Reached(curve, 0.6)->time, 2);
  EXPECT_DOUBLE_EQ(Reached(curve, 0.4)->examples, 1);
  EXPECT_DOUBLE_EQ(Reached(curve, 0.8)->examples, 4);
  EXPECT_FALSE(Reached(curve, 0.9));
  EXPECT_FALSE(Reached({}, 0.1));
}

}  // namespace
}  // namespace millrace::scaling

// SPDX-License-Identifier: Apache-2.0
#include "core/histogram.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/summary.pb.h"

// covers: events: a histogram has TensorFlow's limits, and each value its bucket

namespace millrace {
namespace {

using ::testing::ElementsAre;

tensorflow::HistogramProto Of(const std::vector<double>& values) {
  Histogram histogram;
  for (const double value : values) histogram.Add(value);
  tensorflow::HistogramProto proto;
  histogram.WriteTo(&proto);
  return proto;
}

TEST(Histogram, HasTensorFlowsLimits) {
  const std::vector<double>& limits = Histogram::Limits();
  ASSERT_EQ(limits.size(), 1551u);
  EXPECT_TRUE(std::is_sorted(limits.begin(), limits.end()));
  EXPECT_EQ(limits.front(), -DBL_MAX);
  EXPECT_EQ(limits.back(), DBL_MAX);
  EXPECT_EQ(limits[775], 0);
  EXPECT_EQ(limits[776], 1e-12);
  EXPECT_EQ(limits[777], 1e-12 * 1.1);
  EXPECT_EQ(limits[778], 1e-12 * 1.1 * 1.1);  // a product, not a power
  EXPECT_NEAR(limits[1549], 9.92e19, 0.01e19);
  for (size_t i = 0; i < limits.size(); ++i) EXPECT_EQ(limits[i], -limits[1550 - i]);
}

TEST(Histogram, OfOneZeroHasThreeBuckets) {
  const tensorflow::HistogramProto proto = Of({0.0});
  EXPECT_THAT(proto.bucket_limit(), ElementsAre(0, 1e-12, DBL_MAX));
  EXPECT_THAT(proto.bucket(), ElementsAre(0, 1, 0));
  EXPECT_EQ(proto.num(), 1);
  EXPECT_EQ(proto.min(), 0);
  EXPECT_EQ(proto.max(), 0);
}

TEST(Histogram, OfNothingHasOneEmptyBucket) {
  const tensorflow::HistogramProto proto = Of({});
  EXPECT_THAT(proto.bucket_limit(), ElementsAre(DBL_MAX));
  EXPECT_THAT(proto.bucket(), ElementsAre(0));
  EXPECT_EQ(proto.num(), 0);
  EXPECT_EQ(proto.min(), DBL_MAX);
  EXPECT_EQ(proto.max(), -DBL_MAX);
}

TEST(Histogram, AddsUp) {
  const tensorflow::HistogramProto proto = Of({-2, 3, 3, 0.5});
  EXPECT_EQ(proto.num(), 4);
  EXPECT_EQ(proto.min(), -2);
  EXPECT_EQ(proto.max(), 3);
  EXPECT_EQ(proto.sum(), 4.5);
  EXPECT_EQ(proto.sum_squares(), 22.25);
  double counted = 0;
  for (const double count : proto.bucket()) counted += count;
  EXPECT_EQ(counted, 4);
}

// The bucket of a value ends at the first limit above it: every limit, its neighbours, and others.
TEST(Histogram, FindsTheFirstLimitAboveAValue) {
  const std::vector<double>& limits = Histogram::Limits();
  std::vector<double> values = {0.0, -0.0, DBL_MIN, -DBL_MIN, 4.9e-324, -DBL_MAX, 1e-13, 1e300};
  for (const double limit : limits) {
    if (std::fabs(limit) == DBL_MAX) continue;
    values.insert(values.end(), {limit, std::nextafter(limit, 1e300), std::nextafter(limit, -1e300),
                                 limit * 1.04});
  }
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-14, 22);
  for (int i = 0; i < 2000; ++i) {
    const double value = std::pow(10, exponent(random));
    values.insert(values.end(), {value, -value});
  }
  for (const double value : values) {
    const double want = *std::upper_bound(limits.begin(), limits.end(), value);
    const tensorflow::HistogramProto proto = Of({value});
    double got = 0;
    for (int i = 0; i < proto.bucket_size(); ++i) {
      if (proto.bucket(i) == 1) got = proto.bucket_limit(i);
    }
    ASSERT_EQ(got, want) << value;
  }
  EXPECT_EQ(Of({DBL_MAX}).bucket().rbegin()[0], 1);  // there is none above it
}

}  // namespace
}  // namespace millrace

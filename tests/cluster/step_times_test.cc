// SPDX-License-Identifier: Apache-2.0
#include "tests/cluster/step_times.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: the percentiles of a benchmark's steps are right to 1.1 %, those of several
//   processes together too

namespace millrace {
namespace {

// Half of the 2.2 % between two sizes, and what rounding does.
void ExpectNear(absl::Duration time, absl::Duration expected) {
  EXPECT_GE(time, 0.98 * expected);
  EXPECT_LE(time, 1.02 * expected);
}

TEST(StepTimesTest, PercentilesAreThoseOfTheSteps) {
  StepTimes times;
  EXPECT_EQ(times.Percentile(50), absl::ZeroDuration());
  for (int us = 1; us <= 1000; ++us) times.Add(absl::Microseconds(us));
  EXPECT_EQ(times.count(), 1000);
  ExpectNear(times.Percentile(50), absl::Microseconds(500));
  ExpectNear(times.Percentile(99), absl::Microseconds(990));
  ExpectNear(times.Percentile(0), absl::Microseconds(1));
  ExpectNear(times.Percentile(100), absl::Microseconds(1000));
}

TEST(StepTimesTest, NoTimeIsTooShortOrTooLong) {
  StepTimes times;
  times.Add(absl::ZeroDuration());
  times.Add(-absl::Seconds(1));  // a clock that was set
  times.Add(absl::InfiniteDuration());
  EXPECT_EQ(times.count(), 3);
  EXPECT_LE(times.Percentile(50), absl::Nanoseconds(2));
  EXPECT_GE(times.Percentile(100), absl::Hours(24));
}

TEST(StepTimesTest, LinesGiveTheSameTimesAgain) {
  StepTimes times, read, all;
  for (absl::Duration time = absl::Nanoseconds(100); time < absl::Hours(24); time *= 1.05) {
    times.Add(time);
  }
  const std::vector<std::string> lines = times.ToLines();
  EXPECT_GT(lines.size(), 1u);
  for (const std::string& line : lines) {
    EXPECT_LT(line.size(), 1024u);
    EXPECT_EQ(line.find(' '), std::string::npos);
    EXPECT_OK(read.AddLine(line));
  }
  EXPECT_EQ(read.count(), times.count());
  EXPECT_EQ(read.ToLines(), lines);
  all.Add(times);
  all.Add(read);
  EXPECT_EQ(all.count(), 2 * times.count());
  EXPECT_EQ(all.Percentile(99), times.Percentile(99));
}

TEST(StepTimesTest, ALineThatIsNoneAddsNothing) {
  StepTimes times;
  for (const char* line :
       {"", "1", "1:", "1:0", "1:-1", "-1:1", "1536:1", "1:1,x", "1:1:1", "1:1;2:1"}) {
    EXPECT_STATUS(times.AddLine(line), absl::StatusCode::kInvalidArgument,
                  "StepTimes: a line must be <size>:<count>,..., got '");
  }
  EXPECT_EQ(times.count(), 0);
}

}  // namespace
}  // namespace millrace

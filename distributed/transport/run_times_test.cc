// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/run_times.h"

#include <cstdint>
#include <limits>

#include "distributed/transport/transport.pb.h"
#include "gtest/gtest.h"
#include "proto/worker.pb.h"

namespace millrace {
namespace {

// The report of a worker, as its receiver reads it.
tensorflow::RunGraphResponse Answer(int64_t begun_ns, int64_t ended_ns) {
  tensorflow::RunGraphResponse sent;
  sent.set_status_error_message("kept");
  AddWorkerTimes(begun_ns, ended_ns, &sent);
  tensorflow::RunGraphResponse response;
  EXPECT_TRUE(response.ParseFromString(sent.SerializeAsString()));
  EXPECT_EQ(response.status_error_message(), "kept");
  return response;
}

TEST(RunTimesTest, AnAnswerHasTheTimesOfBothSides) {
  tensorflow::RunGraphResponse response = Answer(1'700, 2'700);
  EXPECT_FALSE(ClockExchangeOf(response).has_value());
  AddCallerTimes(1'000, 2'100, &response);
  const auto exchange = ClockExchangeOf(response);
  ASSERT_TRUE(exchange.has_value());
  EXPECT_EQ(exchange->asked_ns, 1'000);
  EXPECT_EQ(exchange->begun_ns, 1'700);
  EXPECT_EQ(exchange->ended_ns, 2'700);
  EXPECT_EQ(exchange->answered_ns, 2'100);
}

TEST(RunTimesTest, AnAnswerOfAnotherProgramHasNoExchange) {
  tensorflow::RunGraphResponse response;
  AddCallerTimes(1'000, 2'100, &response);
  EXPECT_FALSE(ClockExchangeOf(response).has_value());
}

TEST(RunTimesTest, WhatAWorkerSaysOfTheCallersClockDoesNotCount) {
  wire::RunTimes forged;
  forged.set_begun_ns(1'700);
  forged.set_ended_ns(2'700);
  forged.set_asked_ns(5);
  forged.set_answered_ns(9'999);
  tensorflow::RunGraphResponse response;
  ASSERT_TRUE(response.ParseFromString(forged.SerializeAsString()));
  AddCallerTimes(1'000, 2'100, &response);
  const auto exchange = ClockExchangeOf(response);
  ASSERT_TRUE(exchange.has_value());
  EXPECT_EQ(exchange->asked_ns, 1'000);
  EXPECT_EQ(exchange->answered_ns, 2'100);
}

TEST(RunTimesTest, TimesThatAreNotOfOneCallAreNoExchange) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const struct {
    const char* what;
    int64_t begun, ended;
  } cases[] = {
      {"not told", 0, 0},
      {"before 1970", -5, 10},
      {"far in the future", 1'700, kMax},
      {"an end before the beginning", 2'700, 1'700},
      {"more time at the worker than between question and answer", 1'000, 2'101},
  };
  for (const auto& test : cases) {
    tensorflow::RunGraphResponse response = Answer(test.begun, test.ended);
    AddCallerTimes(1'000, 2'100, &response);
    EXPECT_FALSE(ClockExchangeOf(response).has_value()) << test.what;
  }
}

}  // namespace
}  // namespace millrace

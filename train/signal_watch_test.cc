// SPDX-License-Identifier: Apache-2.0
#include "train/signal_watch.h"

#include <signal.h>

#include "core/notification.h"
#include "core/termination.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: a watch reports the first signal and restores the handlers

namespace millrace {
namespace {

TEST(SignalWatchTest, TheFirstSignalIsTold) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Notification told;
    int got = 0;
    ASSERT_OK_AND_ASSIGN(const auto watch, SignalWatch::Start([&](int number) {
                           got = number;
                           told.Notify();
                         }));
    EXPECT_EQ(watch->signal(), 0);
    ASSERT_EQ(::raise(signal), 0);
    EXPECT_EQ(watch->signal(), signal);
    told.Wait();
    EXPECT_EQ(got, signal);
  }
}

TEST(SignalWatchTest, WithoutASignalNothingIsCalledAndTheHandlersAreThoseOfBefore) {
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &before), 0);
  int calls = 0;
  {
    ASSERT_OK_AND_ASSIGN(const auto watch, SignalWatch::Start([&](int) { ++calls; }));
    struct sigaction during = {};
    ASSERT_EQ(::sigaction(SIGTERM, nullptr, &during), 0);
    EXPECT_NE(during.sa_handler, before.sa_handler);
  }
  EXPECT_EQ(calls, 0);
  struct sigaction after = {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST(SignalWatchTest, ASignalThatCameBeforeIsReportedWhileATerminationRequestLives) {
  const TerminationRequest request;
  ASSERT_EQ(::raise(SIGTERM), 0);
  Notification told;
  ASSERT_OK_AND_ASSIGN(const auto watch, SignalWatch::Start([&](int) { told.Notify(); }));
  told.Wait();
}

TEST(SignalWatchTest, TheDestructorWaitsForTheCall) {
  Notification called, may_return;
  bool returned = false;
  {
    ASSERT_OK_AND_ASSIGN(const auto watch, SignalWatch::Start([&](int) {
                           called.Notify();
                           may_return.Wait();
                           returned = true;
                         }));
    ASSERT_EQ(::raise(SIGTERM), 0);
    called.Wait();
    may_return.Notify();
  }
  EXPECT_TRUE(returned);
}

}  // namespace
}  // namespace millrace

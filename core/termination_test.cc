// SPDX-License-Identifier: Apache-2.0
#include "core/termination.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>

#include "gtest/gtest.h"

// covers: training: SIGTERM and SIGINT are handled only while an object requests them; the second
//   one ends the process

namespace millrace {
namespace {

bool Readable(int fd) {
  pollfd event = {fd, POLLIN, 0};
  return ::poll(&event, 1, 0) == 1 && (event.revents & POLLIN) != 0;
}

TEST(TerminationRequestTest, TheFirstSignalIsSeenAndForgottenWithTheLastRequest) {
  for (const int signal : {SIGTERM, SIGINT}) {
    auto request = std::make_unique<TerminationRequest>();
    EXPECT_EQ(request->signal(), 0);
    EXPECT_FALSE(Readable(request->fd()));
    ASSERT_EQ(::raise(signal), 0);
    EXPECT_EQ(request->signal(), signal);
    EXPECT_TRUE(Readable(request->fd()));
    const auto later = std::make_unique<TerminationRequest>();
    EXPECT_EQ(later->signal(), signal);
    request.reset();
    EXPECT_EQ(later->signal(), signal);
  }
  EXPECT_EQ(TerminationRequest().signal(), 0);
}

TEST(TerminationRequestTest, WhatSignalsDidBeforeTheyDoAgain) {
  struct sigaction own = {};
  own.sa_handler = [](int) {};
  struct sigaction former = {};
  ASSERT_EQ(::sigaction(SIGINT, &own, &former), 0);
  {
    const TerminationRequest outer;
    { const TerminationRequest inner; }
    ASSERT_EQ(::raise(SIGINT), 0);
    EXPECT_EQ(outer.signal(), SIGINT);
  }
  struct sigaction current = {};
  ASSERT_EQ(::sigaction(SIGINT, &former, &current), 0);
  EXPECT_EQ(current.sa_handler, own.sa_handler);
}

TEST(TerminationRequestTest, AnIgnoredSignalStaysIgnored) {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction former = {};
  ASSERT_EQ(::sigaction(SIGINT, &ignore, &former), 0);
  {
    const TerminationRequest request;
    ASSERT_EQ(::raise(SIGINT), 0);
    EXPECT_EQ(request.signal(), 0);
    ASSERT_EQ(::raise(SIGTERM), 0);
    EXPECT_EQ(request.signal(), SIGTERM);
  }
  ASSERT_EQ(::sigaction(SIGINT, &former, &ignore), 0);
  EXPECT_EQ(ignore.sa_handler, SIG_IGN);
}

TEST(TerminationRequestTest, ARequestThatIsSentTwiceIsOne) {
  const TerminationRequest request;
  ASSERT_EQ(::raise(SIGTERM), 0);
  ASSERT_EQ(::raise(SIGTERM), 0);
  EXPECT_EQ(request.signal(), SIGTERM);
}

TEST(TerminationRequestTest, AHandlerThatSomebodySetMeanwhileStays) {
  struct sigaction former = {};
  {
    const TerminationRequest request;
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    ASSERT_EQ(::sigaction(SIGINT, &ignore, nullptr), 0);
  }
  former.sa_handler = SIG_DFL;
  struct sigaction current = {};
  ASSERT_EQ(::sigaction(SIGINT, &former, &current), 0);
  EXPECT_EQ(current.sa_handler, SIG_IGN);
}

TEST(TerminationRequestDeathTest, TheSecondSignalEndsTheProcessAtOnce) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        const TerminationRequest request;
        ::raise(SIGINT);
        if (request.signal() == SIGINT) ::raise(SIGTERM);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(TerminationRequestDeathTest, WithoutARequestASignalEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        { const TerminationRequest request; }
        ::raise(SIGTERM);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace millrace

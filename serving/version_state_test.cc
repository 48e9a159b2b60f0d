// SPDX-License-Identifier: Apache-2.0
#include "serving/version_state.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

// covers: serving: each state of a version has a way to its end and the number of TensorFlow
//   Serving's status

namespace millrace {
namespace {

using State = VersionState;

constexpr State kAll[] = {State::kFound,     State::kQueued,   State::kLoading,   State::kWarming,
                          State::kAvailable, State::kDraining, State::kUnloading, State::kEnded,
                          State::kFailed,    State::kWaiting};

TEST(VersionStateTest, NumbersAreThoseOfModelVersionStatus) {
  EXPECT_EQ(ServingStateNumber(State::kFound), 10);
  EXPECT_EQ(ServingStateNumber(State::kQueued), 10);
  EXPECT_EQ(ServingStateNumber(State::kLoading), 20);
  EXPECT_EQ(ServingStateNumber(State::kWarming), 20);
  EXPECT_EQ(ServingStateNumber(State::kWaiting), 20);
  EXPECT_EQ(ServingStateNumber(State::kAvailable), 30);
  EXPECT_EQ(ServingStateNumber(State::kDraining), 40);
  EXPECT_EQ(ServingStateNumber(State::kUnloading), 40);
  EXPECT_EQ(ServingStateNumber(State::kEnded), 50);
  EXPECT_EQ(ServingStateNumber(State::kFailed), 50);
}

TEST(VersionStateTest, NamesDiffer) {
  std::set<std::string> names;
  for (const State state : kAll) names.insert(std::string(VersionStateName(state)));
  EXPECT_EQ(names.size(), std::size(kAll));
}

TEST(VersionStateTest, EachStateIsReachedAndEnds) {
  std::set<State> reached = {State::kFound};
  for (size_t round = 0; round < std::size(kAll); ++round) {
    for (const State from : kAll) {
      for (const State to : kAll) {
        if (reached.contains(from) && IsLegalTransition(from, to)) reached.insert(to);
      }
    }
  }
  EXPECT_EQ(reached.size(), std::size(kAll));

  std::set<State> ending = {State::kEnded};
  for (size_t round = 0; round < std::size(kAll); ++round) {
    for (const State from : kAll) {
      for (const State to : kAll) {
        if (ending.contains(to) && IsLegalTransition(from, to)) ending.insert(from);
      }
    }
  }
  EXPECT_EQ(ending.size(), std::size(kAll));
}

TEST(VersionStateTest, AvailableVersionEndsByDrainingAndUnloadingOnly) {
  for (const State to : kAll) {
    EXPECT_EQ(IsLegalTransition(State::kAvailable, to), to == State::kDraining);
    EXPECT_EQ(IsLegalTransition(State::kDraining, to), to == State::kUnloading);
    EXPECT_EQ(IsLegalTransition(State::kUnloading, to), to == State::kEnded);
  }
}

}  // namespace
}  // namespace millrace

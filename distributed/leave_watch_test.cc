// SPDX-License-Identifier: Apache-2.0
#include "distributed/leave_watch.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: a server that must end serves open sessions until they close
// covers: article 2-8: `Join` until a signal, exit code 0; leaves by itself when the run has ended

namespace millrace {
namespace {

constexpr char kChief[] = "/job:master/replica:0/task:0";

class FakeSessions : public WatchedSessions {
 public:
  const std::string& task() const override { return task_; }
  std::vector<Worker::OpenedSession> OpenSessions() const override { return open; }
  void Ask(const std::string& task, Heard heard) override {
    asked.push_back(task);
    if (answer.has_value()) {
      heard(*answer, incarnation);
    } else {
      unanswered.push_back(std::move(heard));
    }
  }
  std::string Whereabouts(const std::string& task) const override {
    return absl::StrCat(task, " at chief.example:2222");
  }

  std::vector<Worker::OpenedSession> open;
  std::vector<std::string> asked;
  std::vector<Heard> unanswered;
  std::optional<Status> answer = absl::OkStatus();
  uint64_t incarnation = 7;

 private:
  const std::string task_ = "/job:ps/replica:0/task:0";
};

class LeaveWatchTest : public ::testing::Test {
 protected:
  static Worker::OpenedSession Session(const std::string& master, int steps = 0) {
    Worker::OpenedSession session;
    session.handle = "s";
    session.master_task = master;
    session.incarnation = 7;
    session.running_steps = steps;
    return session;
  }
  // As the server does, for so long; whether it leaves.
  bool LeavesWithin(absl::Duration time) {
    for (absl::Duration t; t < time; t += absl::Milliseconds(250)) {
      if (watch_.IsDone()) return true;
      clock_.Advance(absl::Milliseconds(250));
    }
    return watch_.IsDone();
  }

  FakeClock clock_;
  FakeSessions sessions_;
  LeaveWatch watch_{&sessions_, absl::Seconds(25), &clock_};
};

TEST_F(LeaveWatchTest, WithoutSessionsItLeavesAtOnce) { EXPECT_TRUE(watch_.IsDone()); }

TEST_F(LeaveWatchTest, OpenSessionsKeepItUntilTheyCloseAndTheLogNamesThem) {
  sessions_.open = {Session(kChief, 1)};
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(LeavesWithin(absl::Seconds(24)));
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* since : {"0 ago", "10s ago", "20s ago"}) {
    EXPECT_TRUE(absl::StrContains(
        log, absl::StrCat("Server of /job:ps/replica:0/task:0 was told to end ", since)))
        << log;
  }
  EXPECT_TRUE(absl::StrContains(
      log, "1 of /job:master/replica:0/task:0 at chief.example:2222 (running steps: 1)"))
      << log;
  sessions_.open.clear();
  EXPECT_TRUE(watch_.IsDone());
}

TEST_F(LeaveWatchTest, ItLeavesAtTheEndOfTheGraceAndSaysWhomItLeaves) {
  sessions_.open = {Session(""), Session("/job:ps/replica:0/task:0")};
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(LeavesWithin(absl::Milliseconds(24'750)));
  EXPECT_TRUE(LeavesWithin(absl::Milliseconds(250)));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(log,
                                "leaves although these sessions are open: 1 of a master that "
                                "did not say who it is"))
      << log;
  // Neither who is unknown nor the server's own task is asked.
  EXPECT_TRUE(sessions_.asked.empty());
}

TEST_F(LeaveWatchTest, AMasterThatCannotBeReachedTwiceKeepsNobody) {
  sessions_.open = {Session(kChief)};
  sessions_.answer = absl::UnavailableError("Connection refused");
  EXPECT_FALSE(LeavesWithin(absl::Milliseconds(750)));
  sessions_.answer = absl::OkStatus();
  EXPECT_FALSE(LeavesWithin(absl::Seconds(3)));
  sessions_.answer = absl::UnavailableError("Connection refused");
  EXPECT_TRUE(LeavesWithin(absl::Seconds(3)));
  EXPECT_EQ(sessions_.asked[0], kChief);
}

TEST_F(LeaveWatchTest, AMasterThatHasBecomeAnotherProcessKeepsNobody) {
  sessions_.open = {Session(kChief)};
  sessions_.incarnation = 8;
  EXPECT_FALSE(watch_.IsDone());
  EXPECT_TRUE(watch_.IsDone());
}

TEST_F(LeaveWatchTest, AMasterThatDoesNotAnswerIsThereAndIsAskedOnce) {
  sessions_.open = {Session(kChief)};
  sessions_.answer = std::nullopt;
  EXPECT_FALSE(LeavesWithin(absl::Seconds(5)));
  EXPECT_EQ(sessions_.asked.size(), 1u);
  sessions_.unanswered[0](absl::DeadlineExceededError("Deadline Exceeded"), 0);
  EXPECT_FALSE(LeavesWithin(absl::Seconds(5)));
  EXPECT_EQ(sessions_.asked.size(), 2u);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "run/run_watch.h"

#include <deque>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "run/run_registry.h"
#include "run/training_run.h"

// covers: training: servers and trainers share one rule for how long an end must stand before it is
//   believed
// covers: clusters: a server that leaves after its run logs what it waits for
// covers: clusters: leaving is bounded, even if storage hangs

namespace millrace {
namespace {

// A worker whose last run is 'a1'.
class FakeRuns : public WatchedRuns {
 public:
  const std::string& task() const override { return task_; }
  std::optional<RunRegistry::Finished> FindFinishedRun() const override {
    if (!end.has_value()) return std::nullopt;
    RunRegistry::Finished finished;
    finished.run = run;
    finished.end = *end;
    finished.sessions = sessions;
    return finished;
  }
  int64_t num_run_claims() const override { return claims; }
  void NoteRunEnd(const TrainingRun& of, const RunEnd& e) override {
    run = of;
    end = e;
  }
  void EndSessionsOfRun(const TrainingRun&, const RunEnd&) override {
    ++ended;
    sessions = 0;
  }

  TrainingRun run = {.name = "/a", .id = "a1"};
  std::optional<RunEnd> end;
  int sessions = 0;
  int64_t claims = 0;
  int ended = 0;

 private:
  const std::string task_ = "/job:ps/replica:0/task:0";
};

class RunWatchTest : public ::testing::Test {
 protected:
  RunWatchTest() { EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(logdir_)); }
  ~RunWatchTest() override { FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError(); }

  void Watch(absl::Duration grace, absl::Duration stale_grace = absl::Seconds(60),
             bool with_logdir = true) {
    RunWatch::Options options;
    if (with_logdir) options.logdir = logdir_;
    options.grace = grace;
    options.stale_grace = stale_grace;
    options.clock = &clock_;
    options.background = [this](std::function<void()> work) -> std::function<bool()> {
      ++readings_;
      if (!hangs_) work();
      return [hangs = hangs_] { return !hangs; };
    };
    watch_ = std::make_unique<RunWatch>(&runs_, std::move(options));
  }
  // Asks the watch every 250 ms, as the server does: whether it says to leave within `time`.
  bool LeavesWithin(absl::Duration time) {
    for (absl::Duration t; t < time; t += absl::Milliseconds(250)) {
      if (watch_->IsDone()) return true;
      clock_.Advance(absl::Milliseconds(250));
    }
    return watch_->IsDone();
  }
  void WriteRun(const std::string& token) {
    ASSERT_OK(WriteRunFile(FileSystem::Posix(), logdir_,
                           {.id = "a1", .name = "/a", .token = token, .epoch = 1}));
  }
  void WriteEnd(const std::string& token, int64_t step) {
    ASSERT_OK(WriteRunEnd(FileSystem::Posix(), logdir_,
                          {.id = "a1", .token = token, .global_step = step, .reason = "done"}));
  }

  const std::string logdir_ = absl::StrCat(::testing::TempDir(), "/watch_", RandomHexName());
  FakeClock clock_;
  FakeRuns runs_;
  int readings_ = 0;
  bool hangs_ = false;
  std::unique_ptr<RunWatch> watch_;
};

TEST_F(RunWatchTest, LeavesWhenTheRunHasEndedItsSessionsHaveClosedAndWaitersHaveHeard) {
  Watch(absl::Seconds(60), absl::Seconds(60), /*with_logdir=*/false);
  EXPECT_FALSE(LeavesWithin(absl::Hours(1)));
  runs_.end = RunEnd{.global_step = 1};
  runs_.sessions = 1;
  EXPECT_FALSE(LeavesWithin(absl::Seconds(29)));
  runs_.sessions = 0;
  EXPECT_TRUE(LeavesWithin(absl::Milliseconds(250)));
  EXPECT_EQ(runs_.ended, 0);
  EXPECT_EQ(readings_, 0);
}

TEST_F(RunWatchTest, StaysAskableForSomeSecondsAfterAnEndWithoutSessions) {
  Watch(absl::Seconds(10));
  EXPECT_FALSE(LeavesWithin(absl::Seconds(1)));
  runs_.end = RunEnd{.global_step = 1};
  EXPECT_FALSE(LeavesWithin(absl::Milliseconds(2500)));
  EXPECT_TRUE(LeavesWithin(absl::Seconds(1)));
}

TEST_F(RunWatchTest, SessionsThatStayOpenEndInTheMiddleOfTheGraceAndHearItInTheRest) {
  Watch(absl::Seconds(8));
  runs_.end = RunEnd{.global_step = 1};
  runs_.sessions = 2;
  EXPECT_FALSE(LeavesWithin(absl::Milliseconds(3500)));
  EXPECT_EQ(runs_.ended, 0);
  EXPECT_FALSE(LeavesWithin(absl::Seconds(4)));
  EXPECT_EQ(runs_.ended, 1);
  EXPECT_TRUE(LeavesWithin(absl::Seconds(1)));
}

// Every read runs out of memory.
class ThrowingFiles : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string&) override {
    throw std::bad_alloc();
  }
};

TEST_F(RunWatchTest, AReadThatThrowsIsAReadThatFailed) {
  WriteRun("t");
  // Never deleted: a read that is left behind still uses it.
  static ThrowingFiles* const files = new ThrowingFiles(FileSystem::Posix(), logdir_);
  ::testing::internal::CaptureStderr();
  for (const bool on_thread : {false, true}) {
    RunWatch::Options options;
    options.logdir = logdir_;
    options.grace = absl::Seconds(1);
    options.clock = &clock_;
    options.file_system = files;
    if (!on_thread) {
      options.background = [](std::function<void()> work) -> std::function<bool()> {
        work();
        return [] { return true; };
      };
    }
    watch_ = std::make_unique<RunWatch>(&runs_, std::move(options));
    runs_.end = RunEnd{.global_step = 1};
    // A read on a thread may return at any time.
    const absl::Time hang = absl::Now() + absl::Seconds(60);
    while (!watch_->IsDone() && absl::Now() < hang) clock_.Advance(absl::Milliseconds(1));
    EXPECT_TRUE(watch_->IsDone());
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("Reading of a run's directory: out of memory"), std::string::npos) << log;
}

TEST_F(RunWatchTest, AnEndThatStoodInTheDirectoryCountsAfterTheStaleGrace) {
  WriteRun("t");
  WriteEnd("t", 7);
  Watch(absl::Seconds(4), absl::Seconds(60));
  EXPECT_FALSE(LeavesWithin(absl::Seconds(58)));
  EXPECT_FALSE(runs_.end.has_value());
  EXPECT_TRUE(LeavesWithin(absl::Seconds(7)));
  EXPECT_EQ(runs_.end->global_step, 7);
}

TEST_F(RunWatchTest, AChiefThatTrainsFurtherKeepsTheServerUntilItsOwnEnd) {
  WriteRun("t");
  WriteEnd("t", 7);
  Watch(absl::Seconds(6), absl::Seconds(3));
  EXPECT_FALSE(LeavesWithin(absl::Seconds(1)));
  WriteRun("u");
  ++runs_.claims;
  EXPECT_FALSE(LeavesWithin(absl::Minutes(5)));
  // The end is only in the directory: the chief died before it told the server.
  WriteEnd("u", 9);
  EXPECT_TRUE(LeavesWithin(absl::Seconds(6)));
  EXPECT_EQ(runs_.end->global_step, 9);
}

TEST_F(RunWatchTest, AnOldEndIsNotToldWhenAChiefHasClaimedTheRunMeanwhile) {
  WriteRun("t");
  WriteEnd("t", 7);
  Watch(absl::Seconds(1), absl::Seconds(60));
  EXPECT_FALSE(LeavesWithin(absl::Seconds(4)));
  ++runs_.claims;
  EXPECT_FALSE(LeavesWithin(absl::Minutes(5)));
  EXPECT_FALSE(runs_.end.has_value());
  runs_.end = RunEnd{.global_step = 8};
  EXPECT_TRUE(LeavesWithin(absl::Seconds(3)));
}

TEST_F(RunWatchTest, StaysWhileAnotherChiefHasTheDirectorySinceTheEndWasSeen) {
  WriteRun("t");
  Watch(absl::Seconds(60));
  runs_.end = RunEnd{.global_step = 7};
  runs_.sessions = 1;
  EXPECT_FALSE(LeavesWithin(absl::Seconds(2)));
  WriteRun("u");
  runs_.sessions = 0;
  EXPECT_FALSE(LeavesWithin(absl::Minutes(10)));
  WriteEnd("u", 9);
  EXPECT_TRUE(LeavesWithin(absl::Seconds(6)));
}

TEST_F(RunWatchTest, StorageThatHangsIsReadOnceWarnedOfAndKeepsNobodyForEver) {
  hangs_ = true;
  Watch(absl::Seconds(4));
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(LeavesWithin(absl::Seconds(30)));
  EXPECT_EQ(readings_, 1);
  runs_.end = RunEnd{.global_step = 7};
  EXPECT_TRUE(LeavesWithin(absl::Seconds(6)));
  EXPECT_EQ(readings_, 1);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("must be readable within 10s, got no answer"), std::string::npos) << log;
}

TEST_F(RunWatchTest, TheLogSaysWhatItWaitsFor) {
  Watch(absl::Minutes(10));
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(LeavesWithin(absl::Minutes(5)));
  std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("waits for the end of a training run"), std::string::npos) << log;
  EXPECT_EQ(log.find('\n'), log.size() - 1) << "once while it trains: " << log;
  runs_.end = RunEnd{.global_step = 7};
  runs_.sessions = 2;
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(LeavesWithin(absl::Seconds(25)));
  log = ::testing::internal::GetCapturedStderr();
  const std::string line = "waits for 2 sessions of run '/a' (a1), which has ended";
  size_t times = 0;
  for (size_t at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) ++times;
  EXPECT_EQ(times, 3u) << log;
}

}  // namespace
}  // namespace millrace

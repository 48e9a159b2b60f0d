// SPDX-License-Identifier: Apache-2.0
#include "core/paced_thread.h"

#include <sys/resource.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "core/background_thread.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Time goes on by work and sleep alone.
class WorkClock final : public LoadPace::TimeSource {
 public:
  absl::Duration Now() override { return now_; }
  absl::Duration Cpu() override { return cpu_; }
  void Sleep(absl::Duration duration) override {
    now_ += duration;
    slept_ += duration;
    sleeps_.push_back(duration);
    if (to_cancel_ != nullptr) to_cancel_->StartCancel();
  }
  void Work(absl::Duration duration) {
    now_ += duration;
    cpu_ += duration;
  }
  void Wait(absl::Duration duration) { now_ += duration; }  // as for a disk
  void CancelInSleep(CancellationManager* to_cancel) { to_cancel_ = to_cancel; }

  absl::Duration slept() const { return slept_; }
  const std::vector<absl::Duration>& sleeps() const { return sleeps_; }

 private:
  absl::Duration now_ = absl::Seconds(1000), cpu_ = absl::Seconds(3), slept_;
  std::vector<absl::Duration> sleeps_;
  CancellationManager* to_cancel_ = nullptr;
};

class LoadPaceTest : public ::testing::Test {
 protected:
  void Begin(double share) {
    pace_.SetShare(share);
    pace_.AddServing(1);
    pace_.Point(&mark_, nullptr);  // the begin of the first piece
  }
  void Piece(absl::Duration work) {
    clock_.Work(work);
    pace_.Point(&mark_, nullptr);
  }

  WorkClock clock_;
  LoadPace pace_{&clock_};
  LoadPace::Mark mark_;
};

// covers: serving: while something serves, loads take their share of a core and sleep for the rest
TEST_F(LoadPaceTest, AQuarterOfACoreSleepsThreeTimesWhatItUsed) {
  Begin(0.25);
  for (int i = 0; i < 10; ++i) Piece(absl::Milliseconds(2));
  EXPECT_EQ(clock_.slept(), absl::Milliseconds(60));
  EXPECT_EQ(clock_.sleeps().size(), 10u);
}

// A piece of 0.1 ms owes 0.3 ms: that is slept for once it is a millisecond, after the fourth.
TEST_F(LoadPaceTest, SmallDebtsArePaidTogether) {
  Begin(0.25);
  for (int i = 0; i < 3; ++i) Piece(absl::Microseconds(100));
  EXPECT_TRUE(clock_.sleeps().empty());
  Piece(absl::Microseconds(100));
  ASSERT_EQ(clock_.sleeps().size(), 1u);
  EXPECT_EQ(clock_.slept(), absl::Microseconds(1200));
}

TEST_F(LoadPaceTest, AWaitWithinAPieceCounts) {
  Begin(0.25);
  clock_.Wait(absl::Milliseconds(3));
  Piece(absl::Milliseconds(1));  // a quarter of these 4 ms
  EXPECT_EQ(clock_.slept(), absl::ZeroDuration());
  // What one piece waited for longer is not saved up for the next ones.
  clock_.Wait(absl::Seconds(10));
  Piece(absl::Milliseconds(1));
  Piece(absl::Milliseconds(1));
  EXPECT_EQ(clock_.slept(), absl::Milliseconds(3));
}

// Two threads that take turns on one clock: together they have the share.
TEST_F(LoadPaceTest, ThreadsShareTheShare) {
  Begin(0.25);
  LoadPace::Mark other;
  pace_.Point(&other, nullptr);
  const absl::Duration began = clock_.Now();
  for (int i = 0; i < 5; ++i) {
    clock_.Work(absl::Milliseconds(2));
    pace_.Point(&mark_, nullptr);
    // The other thread's processor time: as if it began now.
    other.cpu = clock_.Cpu();
    clock_.Work(absl::Milliseconds(2));
    pace_.Point(&other, nullptr);
    mark_.cpu = clock_.Cpu();
  }
  EXPECT_EQ(clock_.Now() - began, absl::Milliseconds(80));  // 20 ms of work
}

TEST_F(LoadPaceTest, ALongPieceOwesNoMoreThanABound) {
  Begin(0.5);
  Piece(absl::Seconds(5));
  EXPECT_EQ(clock_.slept(), absl::ZeroDuration());  // due 40 ms after its begin
  clock_.Work(LoadPace::kLongestPiece);
  pace_.Point(&mark_, nullptr);
  EXPECT_EQ(clock_.slept(), LoadPace::kLongestPiece);
}

// covers: serving: with nothing that serves, or a share of 1, loads do not sleep
TEST_F(LoadPaceTest, NoSleepWithoutASharedCoreOrWithoutOneWhoServes) {
  pace_.Point(&mark_, nullptr);
  Piece(absl::Milliseconds(10));
  pace_.AddServing(1);
  EXPECT_FALSE(pace_.is_on());  // the share is 1
  Piece(absl::Milliseconds(10));
  pace_.SetShare(0.1);
  pace_.AddServing(-1);
  EXPECT_FALSE(pace_.is_on());
  Piece(absl::Milliseconds(10));
  EXPECT_TRUE(clock_.sleeps().empty());
  // What was done before something served owes nothing.
  pace_.AddServing(1);
  EXPECT_TRUE(pace_.is_on());
  Piece(absl::Milliseconds(10));
  EXPECT_TRUE(clock_.sleeps().empty());
  Piece(absl::Milliseconds(10));
  EXPECT_EQ(clock_.slept(), absl::Milliseconds(90));
}

// covers: serving: a load that is cancelled does not sleep on
TEST_F(LoadPaceTest, SleepsAreShortAndEndWithACancellation) {
  Begin(0.05);
  Piece(absl::Milliseconds(10));
  EXPECT_EQ(clock_.slept(), absl::Milliseconds(190));
  for (const absl::Duration sleep : clock_.sleeps()) EXPECT_LE(sleep, LoadPace::kLongestSleep);
  CancellationManager cancellation;
  clock_.CancelInSleep(&cancellation);
  const size_t before = clock_.sleeps().size();
  for (int i = 0; i < 3; ++i) {
    clock_.Work(absl::Milliseconds(10));
    pace_.Point(&mark_, &cancellation);
  }
  EXPECT_EQ(clock_.sleeps().size(), before + 1);
}

TEST_F(LoadPaceTest, ALargerShareForgivesWhatIsOwed) {
  Begin(0.01);
  clock_.Work(absl::Milliseconds(20));
  CancellationManager cancelled;
  cancelled.StartCancel();
  pace_.Point(&mark_, &cancelled);  // owes nearly two seconds, and does not sleep
  pace_.SetShare(0.5);
  Piece(absl::Milliseconds(2));
  EXPECT_EQ(clock_.slept(), absl::Milliseconds(2));
}

// However many pieces did not sleep for theirs: 20 ms at a share of 0.01 are the most.
TEST_F(LoadPaceTest, NoMoreIsOwedThanByOneLongestPiece) {
  Begin(0.01);
  CancellationManager cancelled;
  cancelled.StartCancel();
  for (int i = 0; i < 10; ++i) {
    clock_.Work(LoadPace::kLongestPiece);
    pace_.Point(&mark_, &cancelled);
  }
  Piece(absl::Milliseconds(2));
  EXPECT_LE(clock_.slept(), LoadPace::kLongestPiece / 0.01);
}

TEST(PacedThreadTest, WorkForOtherThreadsTakesTheCancellationAlong) {
  EXPECT_EQ(CancellationOfPace(), nullptr);
  CancellationManager cancellation;
  {
    const PaceUntilCancelled pace(&cancellation);
    EXPECT_EQ(CancellationOfPace(), &cancellation);
  }
  EXPECT_EQ(CancellationOfPace(), nullptr);
}

TEST(PacedThreadTest, OnlyPacedThreadsHavePoints) {
  const int64_t before = NumPacePointsForTesting();
  EXPECT_FALSE(IsPacedThread());
  PacePoint();
  EXPECT_EQ(NumPacePointsForTesting(), before);
  std::thread paced([&] {
    BecomePacedThread();
    EXPECT_TRUE(IsPacedThread());
    EXPECT_TRUE(IsBackgroundThread());
    PacePoint();
  });
  paced.join();
  EXPECT_EQ(NumPacePointsForTesting(), before + 1);
}

// covers: serving: what a load does in one long call runs at low priority while something serves
TEST(PacedThreadTest, LongCallsHaveALowPriorityWhileThereIsAPace) {
  const int own = ::getpriority(PRIO_PROCESS, 0);
  int nice = -1;
  bool was_paced = true;
  const auto call = [&]() -> Status {
    nice = ::getpriority(PRIO_PROCESS, 0);
    was_paced = IsPacedThread();
    return absl::AbortedError("as the call says");
  };
  LoadPace* const pace = LoadPace::OfProcess();
  pace->SetShare(0.5);
  std::thread paced([&] {
    BecomePacedThread();
    EXPECT_EQ(AtLowPriority(call).message(), "as the call says");
    EXPECT_EQ(nice, own);  // nothing serves
    pace->AddServing(1);
    EXPECT_EQ(AtLowPriority(call).message(), "as the call says");
    EXPECT_GE(nice, 10);
    EXPECT_GE(nice, own);
    EXPECT_FALSE(was_paced);
    EXPECT_EQ(::getpriority(PRIO_PROCESS, 0), own);
    EXPECT_THROW(
        AtLowPriority([]() -> Status { throw std::runtime_error("thrown"); }).IgnoreError(),
        std::runtime_error);
  });
  paced.join();
  nice = -1;
  EXPECT_EQ(AtLowPriority(call).message(), "as the call says");
  EXPECT_EQ(nice, own);  // this thread is not paced
  pace->AddServing(-1);
  pace->SetShare(1);
}

}  // namespace
}  // namespace millrace

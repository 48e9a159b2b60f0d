// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/lease_keeper.h"

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/watched_clock.h"
#include "gtest/gtest.h"
#include "run/tell_again.h"

// covers: clusters: renewing is one call per task and period, and takes no thread without sessions;
//   a session that its task has lost ends steps at once

namespace millrace {
namespace {

using Handles = std::vector<std::string>;

// Answers at once, or never.
class FakeHost : public SessionHost {
 public:
  explicit FakeHost(std::string name) : name_(std::move(name)) {}
  const std::string& name() const override { return name_; }
  void Renew(const Handles& handles, absl::Duration, Renewed done) override {
    Status status;
    Handles lost;
    {
      MutexLock lock(&mu);
      renewed.push_back(handles);
      if (is_silent) {
        unanswered.push_back(std::move(done));
        return;
      }
      status = answer;
      lost = unknown;
    }
    done(status, lost);
  }
  void End(const std::string& handle, absl::Duration, Done done) override {
    MutexLock lock(&mu);
    ended.push_back(handle);
    done(answer);
  }
  std::vector<Handles> TakeRenewed() {
    MutexLock lock(&mu);
    return std::exchange(renewed, {});
  }
  Handles TakeEnded() {
    MutexLock lock(&mu);
    return std::exchange(ended, {});
  }

  Mutex mu;
  std::vector<Handles> renewed ABSL_GUARDED_BY(mu);
  Handles ended ABSL_GUARDED_BY(mu);
  std::vector<Renewed> unanswered ABSL_GUARDED_BY(mu);
  Handles unknown ABSL_GUARDED_BY(mu);
  Status answer ABSL_GUARDED_BY(mu);
  bool is_silent ABSL_GUARDED_BY(mu) = false;

 private:
  const std::string name_;
};

class LeaseKeeperTest : public ::testing::Test {
 protected:
  // What was never answered holds the host that holds it.
  ~LeaseKeeperTest() override {
    for (const std::shared_ptr<FakeHost>& host : {a_, b_}) {
      std::vector<SessionHost::Renewed> unanswered;
      MutexLock lock(&host->mu);
      unanswered.swap(host->unanswered);
    }
  }
  void AwaitNoThread() {
    while (keeper_.has_thread()) std::this_thread::yield();
  }

  WatchedClock clock_;
  const std::shared_ptr<FakeHost> a_ = std::make_shared<FakeHost>("a");
  const std::shared_ptr<FakeHost> b_ = std::make_shared<FakeHost>("b");
  LeaseKeeper keeper_{&clock_, absl::Seconds(10)};
};

TEST_F(LeaseKeeperTest, EachTaskGetsOneCallAPeriodForAllItsSessions) {
  keeper_.Keep(a_, "1");
  keeper_.Keep(a_, "2");
  keeper_.Keep(b_, "1");
  clock_.AdvanceAndSettle(absl::Seconds(9));
  EXPECT_TRUE(a_->TakeRenewed().empty());
  for (int i = 0; i < 3; ++i) {
    clock_.AdvanceAndSettle(absl::Seconds(i == 0 ? 1 : 10));
    EXPECT_EQ(a_->TakeRenewed(), (std::vector<Handles>{{"1", "2"}}));
    EXPECT_EQ(b_->TakeRenewed(), (std::vector<Handles>{{"1"}}));
  }
  keeper_.Forget("a", "1");
  keeper_.Forget("b", "1");
  keeper_.Forget("b", "never");
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed(), (std::vector<Handles>{{"2"}}));
  EXPECT_TRUE(b_->TakeRenewed().empty());
}

TEST_F(LeaseKeeperTest, WhoMayBeDoubtedRenewsAtOnceAndThenAsUsual) {
  keeper_.RenewNow();  // nothing is kept
  keeper_.Keep(a_, "1");
  keeper_.Keep(b_, "1");
  clock_.AdvanceAndSettle(absl::Seconds(4));
  EXPECT_TRUE(a_->TakeRenewed().empty());
  {
    MutexLock lock(&a_->mu);
    a_->is_silent = true;  // its connection is broken, too
  }
  keeper_.RenewNow();
  for (const auto& host : {a_, b_}) {
    size_t times = 0;
    while ((times = host->TakeRenewed().size()) == 0) std::this_thread::yield();
    EXPECT_EQ(times, 1u);
  }
  for (int i = 1; i < 6; ++i) {
    clock_.AdvanceAndSettle(absl::Seconds(1));
    EXPECT_EQ(a_->TakeRenewed().size(), 1u) << i;
    EXPECT_EQ(b_->TakeRenewed().size(), 1u) << i;
  }
  clock_.AdvanceAndSettle(absl::Seconds(1));  // the end of the doubt, and of the period
  a_->TakeRenewed();
  b_->TakeRenewed();
  clock_.AdvanceAndSettle(absl::Seconds(9));
  EXPECT_TRUE(b_->TakeRenewed().empty());
}

TEST_F(LeaseKeeperTest, AClockThatIsSetBackDelaysNoRenewalByMoreThanAPeriod) {
  keeper_.Keep(a_, "1");
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed().size(), 1u);
  clock_.AdvanceAndSettle(-absl::Hours(1));
  EXPECT_TRUE(a_->TakeRenewed().empty());
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed().size(), 1u);
}

TEST_F(LeaseKeeperTest, ThereIsAThreadOnlyWhileThereIsASession) {
  EXPECT_FALSE(keeper_.has_thread());
  for (int i = 0; i < 3; ++i) {
    keeper_.Keep(a_, "1");
    EXPECT_TRUE(keeper_.has_thread());
    clock_.AdvanceAndSettle(absl::Seconds(10));
    EXPECT_EQ(a_->TakeRenewed().size(), 1u);
    keeper_.Forget("a", "1");
    AwaitNoThread();
  }
}

TEST_F(LeaseKeeperTest, ATaskThatDoesNotAnswerIsNotAskedAgainUntilItHas) {
  {
    MutexLock lock(&a_->mu);
    a_->is_silent = true;
  }
  keeper_.Keep(a_, "1");
  keeper_.Keep(b_, "1");
  for (int i = 0; i < 5; ++i) clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed().size(), 1u);
  EXPECT_EQ(b_->TakeRenewed().size(), 5u);
  {
    MutexLock lock(&a_->mu);
    a_->unanswered.front()(absl::UnavailableError("gone"), {});
    a_->is_silent = false;
  }
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed().size(), 1u);
}

TEST_F(LeaseKeeperTest, ATaskThatCouldNotBeAskedIsAskedAgainSoonerThanOthers) {
  const auto answer = [&](const Status& status) {
    MutexLock lock(&a_->mu);
    a_->answer = status;
  };
  answer(absl::UnavailableError("gone"));
  keeper_.Keep(a_, "1");
  keeper_.Keep(b_, "1");
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed().size(), 1u);
  for (int i = 0; i < 2; ++i) {
    clock_.AdvanceAndSettle(absl::Seconds(2));
    EXPECT_TRUE(a_->TakeRenewed().empty());
    clock_.AdvanceAndSettle(absl::Milliseconds(500));
    EXPECT_EQ(a_->TakeRenewed().size(), 1u);
    answer(absl::DeadlineExceededError("late"));
  }
  answer(absl::OkStatus());
  clock_.AdvanceAndSettle(absl::Milliseconds(2500));
  EXPECT_EQ(a_->TakeRenewed().size(), 1u);
  clock_.AdvanceAndSettle(absl::Milliseconds(2499));
  EXPECT_TRUE(a_->TakeRenewed().empty());
  EXPECT_EQ(b_->TakeRenewed().size(), 1u);
}

// Each task has leases: a proxy, perhaps, whose task is not there.
TEST_F(LeaseKeeperTest, AnotherProgramInTheTasksPlaceIsAskedAgain) {
  {
    MutexLock lock(&a_->mu);
    a_->answer = absl::UnimplementedError("what?");
  }
  keeper_.Keep(a_, "1");
  for (int i = 0; i < 3; ++i) clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed().size(), 3u);
}

TEST_F(LeaseKeeperTest, TheEndOfASessionIsToldAgainAfterThePausesAndThenLeftToTheLease) {
  {
    MutexLock lock(&a_->mu);
    a_->answer = absl::UnavailableError("gone");
  }
  keeper_.Keep(b_, "keeps the thread");
  Status told;
  keeper_.End(a_, "1", [&](const Status& status) { told = status; });
  EXPECT_STATUS(told, absl::StatusCode::kUnavailable, "gone");
  EXPECT_EQ(a_->TakeEnded(), Handles{"1"});
  keeper_.EndLater(a_, "2");  // told by its caller
  const auto after = [&](absl::Duration time) {
    clock_.AdvanceAndSettle(time);
    return a_->TakeEnded();
  };
  for (const absl::Duration pause : kTellAgainAfter) {
    EXPECT_EQ(after(pause - absl::Milliseconds(1)), Handles());
    EXPECT_EQ(after(absl::Milliseconds(1)), (Handles{"1", "2"}));
  }
  EXPECT_EQ(after(absl::Seconds(100)), Handles());
}

// Clients may open and close sessions for as long as a task is away.
TEST_F(LeaseKeeperTest, EndsThatATaskDoesNotHearAreBoundedInNumber) {
  keeper_.Keep(b_, "keeps the thread");
  for (int i = 0; i < 10'100; ++i) keeper_.EndLater(a_, absl::StrCat(i));
  clock_.AdvanceAndSettle(kTellAgainAfter[0]);
  EXPECT_EQ(a_->TakeEnded().size(), 10'000u);
}

TEST_F(LeaseKeeperTest, ASessionThatEndsIsNotRenewedAndAHostThatRefusesIsNotAskedAgain) {
  {
    MutexLock lock(&a_->mu);
    a_->answer = absl::InternalError("no");
  }
  keeper_.Keep(b_, "keeps the thread");
  keeper_.Keep(a_, "1");
  keeper_.End(a_, "1");
  EXPECT_EQ(a_->TakeEnded(), Handles{"1"});
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeEnded(), Handles());
  EXPECT_TRUE(a_->TakeRenewed().empty());
}

TEST_F(LeaseKeeperTest, WhoseSessionItsHostDoesNotKnowHearsOfItOnceAndItIsKeptNoLonger) {
  int lost = 0, not_lost = 0;
  keeper_.Keep(a_, "1", [&] { ++lost; });
  keeper_.Keep(a_, "2", [&] { ++not_lost; });
  keeper_.Keep(b_, "1", [&] { ++not_lost; });
  {
    MutexLock lock(&a_->mu);
    a_->unknown = {"1", "never"};
  }
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(a_->TakeRenewed(), (std::vector<Handles>{{"1", "2"}}));
  clock_.AdvanceAndSettle(absl::Seconds(10));
  EXPECT_EQ(a_->TakeRenewed(), (std::vector<Handles>{{"2"}}));
  EXPECT_EQ(lost, 1);
  EXPECT_EQ(not_lost, 0);
}

TEST_F(LeaseKeeperTest, AnEndThatWasHeardIsNotToldAgain) {
  keeper_.EndLater(a_, "1");
  clock_.Settle();
  clock_.Advance(absl::Seconds(1));
  AwaitNoThread();
  EXPECT_EQ(a_->TakeEnded(), Handles{"1"});
}

TEST_F(LeaseKeeperTest, AnAnswerAfterTheEndIsHarmless) {
  {
    MutexLock lock(&a_->mu);
    a_->is_silent = true;
  }
  keeper_.Keep(a_, "1");
  clock_.AdvanceAndSettle(absl::Seconds(10));
  keeper_.Stop();
  keeper_.Keep(a_, "2");
  EXPECT_FALSE(keeper_.has_thread());
  MutexLock lock(&a_->mu);
  ASSERT_EQ(a_->unanswered.size(), 1u);
  a_->unanswered.front()(absl::OkStatus(), {});
}

}  // namespace
}  // namespace millrace

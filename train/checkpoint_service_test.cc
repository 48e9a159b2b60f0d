// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_service.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/guarded_saver.h"
#include "train/stop_time.h"

// covers: training: a lost checkpoint is tried again with pauses while training continues; each
//   failure is in the log with path and bytes, its files are deleted; storage that hangs is named
//   every 10 s

namespace millrace {
namespace {

using absl::StatusCode;

// Saves fail with the queued errors, one each in their order; when none is left they succeed.
class ScriptedSaver : public Saver {
 public:
  StatusOr<std::string> Save(Session*, const std::string& prefix,
                             std::optional<int64_t> step) override {
    const std::string path = absl::StrCat(prefix, "-", step.value_or(-1));
    MutexLock lock(&mu_);
    Status status;
    if (!errors_.empty()) {
      status = errors_.front();
      errors_.pop_front();
    }
    saves_.push_back(status.ok() ? path : "");
    changed_.SignalAll();
    while (hangs_) changed_.Wait(&mu_);
    if (!status.ok()) return status;
    return path;
  }
  Status Restore(Session*, const std::string&) override { return absl::OkStatus(); }
  Status RecoverLastCheckpoints(const std::vector<std::string>&) override {
    return absl::OkStatus();
  }
  std::vector<std::string> last_checkpoints() const override { return {}; }
  const tensorflow::SaverDef& def() const override { return def_; }

  void FailNext(std::deque<Status> errors) {
    MutexLock lock(&mu_);
    errors_ = std::move(errors);
  }
  void Hang(bool hangs) {
    MutexLock lock(&mu_);
    hangs_ = hangs;
    changed_.SignalAll();
  }
  // The path of save `number`, counted from 1; "" when it failed.
  std::string AwaitSave(size_t number) {
    MutexLock lock(&mu_);
    while (saves_.size() < number) changed_.Wait(&mu_);
    return saves_[number - 1];
  }
  size_t saves() {
    MutexLock lock(&mu_);
    return saves_.size();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::deque<Status> errors_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> saves_ ABSL_GUARDED_BY(mu_);
  bool hangs_ ABSL_GUARDED_BY(mu_) = false;
  tensorflow::SaverDef def_;
};

class CheckpointServiceTest : public ::testing::Test {
 protected:
  // Threads that are left behind still use this.
  struct Shared {
    ScriptedSaver scripted;
    FakeClock clock;
    GuardedSaver saver{"Test", &scripted, [] { return absl::OkStatus(); }, &clock};
    std::atomic<int64_t> step{0};
    Mutex mu;
    std::vector<Status> errors ABSL_GUARDED_BY(mu);
    Notification told_of_error;
    std::optional<CheckpointService> service;
  };
  CheckpointServiceTest() {
    auto session = NewSession();
    EXPECT_OK(session.status());
    session_ = *std::move(session);
  }
  ~CheckpointServiceTest() override {
    s_->scripted.Hang(false);
    s_->service->End(Grace(absl::Seconds(60)));
  }

  CheckpointService& Make(absl::Duration period) {
    Shared* const s = s_.get();
    s->service.emplace(CheckpointServiceOptions{
        .speaker = "Test",
        .saver = &s->saver,
        .directory = "dir",
        .path = "dir/m",
        .period = period,
        .recovery_wait = absl::Seconds(1),
        .variable_bytes = 12,
        .clock = &s->clock,
        .read_step = [s](Session*) -> StatusOr<int64_t> { return s->step.load(); },
        .on_error =
            [s](const Status& error) {
              {
                MutexLock lock(&s->mu);
                s->errors.push_back(error);
              }
              s->told_of_error.Notify();
            },
        // Shared holds itself until the thread that uses it has ended.
        .keep_alive = [s = s_]() -> std::shared_ptr<const void> { return s; }});
    return *s->service;
  }
  StopTime Grace(absl::Duration grace) const { return {grace, s_->clock.Now() + grace}; }
  // Advances the clock until `done` is notified.
  void AdvanceUntil(const Notification& done) {
    while (!done.WaitFor(absl::Milliseconds(5))) s_->clock.Advance(absl::Seconds(1));
  }

  const std::shared_ptr<Shared> s_ = std::make_shared<Shared>();
  std::shared_ptr<Session> session_;
};

TEST_F(CheckpointServiceTest, TheFirstComesAtOnceAndTheOthersByTheirPeriod) {
  CheckpointService& service = Make(absl::Seconds(600));
  service.Begin(session_, 0);
  EXPECT_EQ(s_->scripted.AwaitSave(1), "dir/m-0");
  for (int i = 1; i <= 3; ++i) {
    s_->step = 10 * i;
    s_->clock.AwaitWaiters(1);
    s_->clock.Advance(absl::Seconds(599));
    s_->clock.AwaitWaiters(1);
    EXPECT_EQ(s_->scripted.saves(), static_cast<size_t>(i));
    s_->clock.Advance(absl::Seconds(1));
    EXPECT_EQ(s_->scripted.AwaitSave(static_cast<size_t>(i) + 1), absl::StrCat("dir/m-", 10 * i));
  }
  EXPECT_TRUE(service.End(Grace(absl::Seconds(5))));
  s_->clock.Advance(absl::Hours(1));
  EXPECT_EQ(s_->scripted.saves(), 4u);
}

TEST_F(CheckpointServiceTest, AFailedSaveIsRetriedWithGrowingPausesUntilItSucceeds) {
  CheckpointService& service = Make(absl::Hours(1));
  s_->scripted.FailNext(std::deque<Status>(8, absl::ResourceExhaustedError("disk full")));
  service.Begin(session_, 0);
  EXPECT_EQ(s_->scripted.AwaitSave(1), "");
  size_t tries = 1;
  for (const int wait : {1, 2, 4, 8, 16, 32, 60, 60}) {
    s_->clock.AwaitWaiters(1);
    EXPECT_STATUS(s_->saver.failure(), StatusCode::kResourceExhausted,
                  "Test: checkpoint not written: disk full; 'dir/m-0' has 12 bytes of variables");
    s_->clock.Advance(absl::Seconds(wait) - absl::Nanoseconds(1));
    s_->clock.AwaitWaiters(1);
    EXPECT_EQ(s_->scripted.saves(), tries);
    s_->clock.Advance(absl::Nanoseconds(1));
    ++tries;
    EXPECT_EQ(s_->scripted.AwaitSave(tries), tries == 9 ? "dir/m-0" : "");
  }
  // The pause is short again.
  s_->clock.AwaitWaiters(1);
  EXPECT_OK(s_->saver.failure());
  s_->scripted.FailNext({absl::UnavailableError("away")});
  s_->clock.Advance(absl::Hours(1));
  EXPECT_EQ(s_->scripted.AwaitSave(10), "");
  s_->clock.AwaitWaiters(1);
  s_->clock.Advance(absl::Seconds(1));
  EXPECT_EQ(s_->scripted.AwaitSave(11), "dir/m-0");
  EXPECT_TRUE(service.End(Grace(absl::Seconds(5))));
  EXPECT_OK(s_->saver.failure());
}

TEST_F(CheckpointServiceTest, AnErrorThatNoRetryMendsEndsTheServiceAndIsReported) {
  CheckpointService& service = Make(absl::Seconds(600));
  s_->scripted.FailNext({absl::InvalidArgumentError("no such variable")});
  service.Begin(session_, 0);
  s_->told_of_error.Wait();
  {
    MutexLock lock(&s_->mu);
    ASSERT_EQ(s_->errors.size(), 1u);
    EXPECT_STATUS(s_->errors[0], StatusCode::kInvalidArgument,
                  "Test: checkpoint not written: no such variable");
  }
  s_->clock.Advance(absl::Hours(1));
  EXPECT_TRUE(service.End(Grace(absl::Seconds(5))));
  EXPECT_EQ(s_->scripted.saves(), 1u);
}

TEST_F(CheckpointServiceTest, ASaveOfTheProgramsThatFailsIsTriedAgainByTheService) {
  CheckpointService& service = Make(absl::ZeroDuration());
  EXPECT_EQ(*service.Save(1), "") << "there is no session yet";
  service.Begin(session_, 0);
  s_->scripted.FailNext({absl::ResourceExhaustedError("disk full")});
  s_->step = 3;
  EXPECT_EQ(*service.Save(2), "");
  EXPECT_EQ(*service.Save(3), "") << "it is in its pause";
  EXPECT_EQ(s_->scripted.saves(), 1u);
  s_->clock.AwaitWaiters(1);
  s_->clock.Advance(absl::Seconds(1));
  EXPECT_EQ(s_->scripted.AwaitSave(2), "dir/m-3");
  s_->clock.AwaitWaiters(1);
  EXPECT_EQ(*service.Save(4), "dir/m-4");
  s_->scripted.FailNext({absl::InvalidArgumentError("never")});
  EXPECT_STATUS(service.Save(5).status(), StatusCode::kInvalidArgument, "never");
  // A lost session is an error for the caller, who opens a new one.
  s_->scripted.FailNext({absl::UnavailableError("server is gone")});
  EXPECT_STATUS(service.Save(6).status(), StatusCode::kUnavailable, "server is gone");
}

// What could not be saved with one session is saved with the next.
TEST_F(CheckpointServiceTest, APendingSaveIsMadeWithTheNextSession) {
  CheckpointService& service = Make(absl::ZeroDuration());
  service.Begin(session_, 0);
  s_->scripted.FailNext({absl::ResourceExhaustedError("disk full")});
  EXPECT_EQ(*service.Save(2), "");
  EXPECT_TRUE(service.End(Grace(absl::Seconds(5))));
  s_->step = 7;
  service.Begin(session_, 7);
  EXPECT_EQ(s_->scripted.AwaitSave(2), "dir/m-7");
}

TEST_F(CheckpointServiceTest, ASaveThatHangsIsLeftBehindAndNoLastOneFollows) {
  CheckpointService& service = Make(absl::Seconds(600));
  s_->scripted.Hang(true);
  service.Begin(session_, 0);
  s_->scripted.AwaitSave(1);
  Notification ended;
  bool in_time = true;
  std::thread thread([&] {
    in_time = service.End(Grace(absl::Seconds(20)));
    ended.Notify();
  });
  AdvanceUntil(ended);
  thread.join();
  EXPECT_FALSE(in_time);
  EXPECT_TRUE(service.left_behind());
  const Status last =
      service.SaveLast(in_time, /*with_others=*/false, Grace(absl::Seconds(20))).status();
  EXPECT_STATUS(last, StatusCode::kDeadlineExceeded,
                "Test: last checkpoint not written: the one before it did not end within 20s");
  EXPECT_EQ(ExitCode(last), kExitRetryable);
  EXPECT_EQ(s_->scripted.saves(), 1u);
}

TEST_F(CheckpointServiceTest, TheLastOneIsWrittenOnceAndTriedUntilTheTimeIsOver) {
  CheckpointService& service = Make(absl::ZeroDuration());
  service.Begin(session_, 0);
  s_->step = 5;
  EXPECT_EQ(*service.Save(5), "dir/m-5");
  EXPECT_TRUE(service.End(Grace(absl::Seconds(5))));
  EXPECT_EQ(*service.SaveLast(true, false, Grace(absl::Seconds(20))), "dir/m-5");
  EXPECT_EQ(s_->scripted.saves(), 1u) << "it was there";
  s_->step = 6;
  s_->scripted.FailNext(std::deque<Status>(100, absl::ResourceExhaustedError("disk full")));
  Notification ended;
  Status last;
  std::thread thread([&] {
    last = service.SaveLast(true, false, Grace(absl::Seconds(20))).status();
    ended.Notify();
  });
  AdvanceUntil(ended);
  thread.join();
  EXPECT_STATUS(last, StatusCode::kResourceExhausted,
                "Test: last checkpoint not written: disk full");
  EXPECT_EQ(ExitCode(last), kExitRetryable);
  EXPECT_GT(s_->scripted.saves(), 2u);
  s_->scripted.FailNext({});
  EXPECT_EQ(*service.SaveLast(true, false, Grace(absl::Seconds(20))), "dir/m-6");
}

TEST_F(CheckpointServiceTest, NothingBeginsAfterItHasRefused) {
  CheckpointService& service = Make(absl::Seconds(600));
  service.Refuse();
  service.Begin(session_, 0);
  s_->clock.Advance(absl::Hours(2));
  EXPECT_TRUE(service.End(Grace(absl::Seconds(5))));
  EXPECT_EQ(s_->scripted.saves(), 0u);
}

}  // namespace
}  // namespace millrace

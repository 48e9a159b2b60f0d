// SPDX-License-Identifier: Apache-2.0
//
// How other threads and signals stop a loop.
#include <signal.h>
#include <unistd.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/control/queue.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/testing/hooked_model.h"
#include "train/testing/monitored_session_fixture.h"

// covers: training: SIGTERM and Ctrl-C, and other threads, end a loop with a last checkpoint and
//   143, also in a wait for other tasks, in a step or a restore that hangs, and in a recovery

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

TEST_F(MonitoredSessionTest, AnotherThreadMayEndTheRun) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  std::thread other([&] { session->RequestStop("enough"); });
  other.join();
  // The stop may come between ShouldStop and Run: that Run still runs.
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_TRUE(session->ShouldStop());
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kFailedPrecondition,
                "Run called even after should_stop requested.");
  EXPECT_OK(session->Close());
  ASSERT_EQ(servers_.ends().size(), 1u);
  EXPECT_EQ(servers_.ends()[0].reason, "enough");
}

TEST_F(MonitoredSessionTest, ALeaveCountsAlsoAfterARequestToStop) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  Calls();
  session->RequestStop("enough");
  session->RequestLeave(absl::CancelledError("another time"));
  EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                StatusCode::kCancelled, "another time");
  EXPECT_EQ(Calls(), "a.end");
  EXPECT_EQ(servers_.ends().size(), 0u);
}

TEST_F(MonitoredSessionTest, AWaitForANewSessionEndsWhenSomebodyLeaves) {
  for (const bool with_sessions : {true, false}) {
    SCOPED_TRACE(with_sessions);
    ASSERT_OK(servers_.Restart());
    servers_.FailCreations({});
    const Model model;
    // Without new sessions the creator waits. With them the loop does: each one is lost again.
    a_.on_created = [&](RunContext*, const CreatedSession& created) {
      return created.is_recovery ? absl::UnavailableError("gone again") : absl::OkStatus();
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}, /*max_recoveries=*/1'000'000));
    const size_t before = servers_.runs().size();
    servers_.FailRuns({absl::UnavailableError("gone")});
    if (!with_sessions) {
      servers_.FailCreations(std::deque<Status>(1'000'000, absl::UnavailableError("away")));
    }
    std::thread other([&] {
      while (servers_.runs().size() < before + 3) Clock::Real()->SleepFor(absl::Milliseconds(1));
      session->RequestLeave(WithExitCode(absl::CancelledError("another time"), 143));
    });
    const Status status =
        session->Loop([&] { return session->Run({}, {}, {model.count}).status(); });
    other.join();
    // A session was lost on the way, and no checkpoint was kept.
    EXPECT_TRUE(absl::StrContains(status.message(), "another time")) << status;
    EXPECT_GE(ExitCode(status), kExitRetryable) << status;
    servers_.FailCreations({});
  }
}

TEST_F(MonitoredSessionTest, SigtermEndsTheLoopWithALastCheckpointAndItsExitCode) {
  creator_options.checkpoint_dir = dir_;
  for (const int number : {SIGTERM, SIGINT}) {
    ASSERT_OK(servers_.Restart());
    const Model model;
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&saver, &a_}));
    Calls();
    int runs = 0;
    const Status status = session->Loop([&] {
      if (++runs == 3) ::raise(number);
      return session->Run({}, {}, {model.count}).status();
    });
    EXPECT_STATUS(status, StatusCode::kCancelled,
                  number == SIGTERM ? "ended by SIGTERM" : "ended by SIGINT");
    EXPECT_EQ(ExitCode(status), 128 + number);
    EXPECT_EQ(runs, 3);
    EXPECT_EQ(Calls(), "a.before a.after a.before a.after a.before a.after a.end");
    const int64_t step = number == SIGTERM ? 3 : 6;
    EXPECT_EQ(LatestCheckpoint(fs_, dir_), absl::StrCat(dir_, "/model.ckpt-", step));
  }
  EXPECT_EQ(servers_.ends().size(), 0u) << "the run is to go on";
}

TEST_F(MonitoredSessionTest, SigtermEndsTheWaitForTheChief) {
  const Model model;
  const int before = servers_.sessions_made();
  std::thread other([&] {
    while (servers_.sessions_made() == before) Clock::Real()->SleepFor(absl::Milliseconds(1));
    ::kill(::getpid(), SIGTERM);
  });
  const Status status =
      MonitoredSession::Open(
          model.root, std::make_unique<WorkerSessionCreator>(model.root, creator_options), {})
          .status();
  other.join();
  EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
  EXPECT_EQ(ExitCode(status), 143);
}

// A chief that starts again restores a checkpoint while the disk or a server hangs.
TEST_F(MonitoredSessionTest, ASignalIsHeardWhileASessionIsRestored) {
  class HungRestore : public Saver {
   public:
    explicit HungRestore(std::unique_ptr<Saver> saver) : saver_(std::move(saver)) {}
    StatusOr<std::string> Save(Session* session, const std::string& prefix,
                               std::optional<int64_t> step) override {
      return saver_->Save(session, prefix, step);
    }
    Status Restore(Session*, const std::string&) override {
      hangs.Notify();
      wait();
      return absl::CancelledError("Session has been closed.");
    }
    Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
      return saver_->RecoverLastCheckpoints(paths);
    }
    std::vector<std::string> last_checkpoints() const override {
      return saver_->last_checkpoints();
    }
    const tensorflow::SaverDef& def() const override { return saver_->def(); }
    Notification hangs;
    std::function<void()> wait;

   private:
    const std::unique_ptr<Saver> saver_;
  };
  creator_options.checkpoint_dir = dir_;
  {
    const Model model;
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&saver}));
    ASSERT_OK(session->Close());
  }
  for (const bool ends_with_session : {true, false}) {
    SCOPED_TRACE(ends_with_session);
    ASSERT_OK(servers_.Restart());
    const int made = servers_.sessions_made(), closed = servers_.sessions_closed();
    FakeClock clock;
    Notification open, ended;
    const Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    HungRestore saver(std::move(real));
    saver.wait = [&] { ends_with_session ? servers_.AwaitClosed(closed + 1) : open.Wait(); };
    SessionCreatorOptions of_creator = creator_options;
    of_creator.scaffold.saver = &saver;
    of_creator.clock = &clock;
    std::thread thread([&] {
      MonitoredSessionOptions options;
      options.hooks = {&a_};
      options.clock = &clock;
      const Status status =
          MonitoredSession::Open(model.root,
                                 std::make_unique<ChiefSessionCreator>(model.root, of_creator),
                                 std::move(options))
              .status();
      EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
      EXPECT_EQ(ExitCode(status), 143);
      ended.Notify();
    });
    saver.hangs.Wait();
    const absl::Time begin = clock.Now();
    ASSERT_EQ(::raise(SIGTERM), 0);
    while (!ended.WaitFor(absl::Milliseconds(20))) {
      if (clock.Now() < begin + MonitoredSessionOptions().signal_grace) {
        clock.Advance(absl::Seconds(1));
      }
    }
    thread.join();
    EXPECT_EQ(Calls(), "a.begin");
    open.Notify();
    servers_.AwaitDestroyed(made + 1);
  }
}

TEST_F(MonitoredSessionTest, AWorkerWhoseServersEndWithTheSignalHasLeft) {
  const Model chief, model;
  ASSERT_OK_AND_ASSIGN(const auto of_chief, Open(chief, {}));
  ASSERT_OK_AND_ASSIGN(
      const auto session,
      MonitoredSession::Open(
          model.root, std::make_unique<WorkerSessionCreator>(model.root, creator_options), {}));
  const Status status = session->Loop([&] {
    ::raise(SIGTERM);
    servers_.FailRuns({absl::UnavailableError("gone")});
    return session->Run({}, {}, {model.count}).status();
  });
  EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
  EXPECT_EQ(ExitCode(status), 143);
  while (!of_chief->ShouldStop()) std::this_thread::yield();  // it hears of the signal by itself
  EXPECT_EQ(ExitCode(of_chief->Close()), 143);
}

TEST_F(MonitoredSessionTest, AfterASignalAStepThatHangsIsClosedAndWhatWasTrainedIsSaved) {
  creator_options.target = "";
  creator_options.checkpoint_dir = dir_;
  for (const bool saves : {true, false}) {
    SCOPED_TRACE(saves);
    const Model model;
    const Output queue = FIFOQueueV2(model.root.WithName("queue"), {DT_FLOAT});
    const Output taken = QueueDequeueV2(model.root.WithName("take"), queue, {DT_FLOAT})[0];
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    MonitoredSessionOptions options;
    options.stop_grace = absl::Seconds(3);
    if (saves) options.hooks = {&saver};
    ASSERT_OK_AND_ASSIGN(
        const auto session,
        MonitoredSession::Open(model.root,
                               std::make_unique<ChiefSessionCreator>(model.root, creator_options),
                               std::move(options)));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    const Status status = session->Loop([&] {
      ::raise(SIGTERM);
      return session->Run({}, {taken}).status();
    });
    if (saves) {
      EXPECT_STATUS(status, StatusCode::kCancelled,
                    absl::StrCat("ended by SIGTERM; saved ", dir_, "/model.ckpt-1"));
      EXPECT_EQ(ExitCode(status), 143);
      EXPECT_EQ(LatestCheckpoint(fs_, dir_), absl::StrCat(dir_, "/model.ckpt-1"));
    } else {
      EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
      EXPECT_EQ(ExitCode(status), kExitRetryable) << "nothing was kept";
    }
  }
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// What SIGTERM and Ctrl-C do to a Supervisor.
#include <signal.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/control/queue.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/supervisor.h"
#include "train/testing/hung_file_system.h"
#include "train/testing/shared_variables.h"
#include "train/testing/supervisor_fixture.h"
#include "train/testing/watched_saver.h"

// covers: training: after SIGTERM or Ctrl-C no step starts, the last checkpoint is written and the
//   session closed; a step, wait or restore that hangs ends within a cluster manager's grace
//   period; an unwritten checkpoint changes the exit code
// covers: article 2-10: each service can be off

namespace millrace {
namespace {

using absl::StatusCode;
using Model = SupervisedModel;

TEST_F(SupervisorTest, ASignalAsksToStopAndStopSaysHowToEnd) {
  for (const int signal : {SIGTERM, SIGINT}) {
    for (const bool is_chief : {true, false}) {
      SCOPED_TRACE(absl::StrCat(signal, is_chief ? " chief" : " worker"));
      FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
      RestartParameterServers();
      struct sigaction before = {};
      ASSERT_EQ(::sigaction(signal, nullptr, &before), 0);
      Model chief_model, model;
      Supervisor chief(chief_model.root, Options());
      ASSERT_OK(chief.ManagedSession(kSharedTarget).status());
      EXPECT_OK(chief.Stop());
      SupervisorOptions options = Options();
      options.is_chief = is_chief;
      Supervisor supervisor(model.root, options);
      const int closed = cluster_.sessions_closed();
      ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
      ASSERT_OK(session->Run({}, {}, {model.count}).status());
      EXPECT_FALSE(supervisor.ShouldStop());
      EXPECT_EQ(supervisor.signal(), 0);
      ASSERT_EQ(::raise(signal), 0);
      EXPECT_TRUE(supervisor.ShouldStop());  // at once: no further step
      EXPECT_EQ(supervisor.signal(), signal);
      const Status stopped = supervisor.Stop();
      const std::string name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
      EXPECT_EQ(stopped.message(),
                absl::StrCat("Supervisor: ended by ", name,
                             is_chief ? "; saved " + logdir_ + "/model.ckpt-1" : ""));
      EXPECT_EQ(ExitCode(stopped), 128 + signal);
      EXPECT_EQ(cluster_.sessions_closed(), closed + 1);
      // The job continues another time: its run has not ended.
      EXPECT_TRUE(cluster_.ends().empty());
      EXPECT_EQ(supervisor.Stop(), stopped);
      struct sigaction after = {};
      ASSERT_EQ(::sigaction(signal, nullptr, &after), 0);
      EXPECT_EQ(after.sa_handler, before.sa_handler);
    }
  }
}

TEST_F(SupervisorTest, ASignalEndsTheWaitForTheChief) {
  FakeClock clock;
  Model model;
  SupervisorOptions options = Options();
  options.is_chief = false;
  options.clock = &clock;
  Supervisor worker(model.root, options);
  std::thread thread([&] {
    const Status status = worker.ManagedSession(kSharedTarget).status();
    EXPECT_STATUS(status, StatusCode::kCancelled, "Supervisor: ended by SIGTERM");
    EXPECT_EQ(ExitCode(status), 128 + SIGTERM);
  });
  clock.AwaitWaiters(1);
  ASSERT_EQ(::raise(SIGTERM), 0);
  thread.join();
  EXPECT_EQ(ExitCode(worker.Stop()), 128 + SIGTERM);
  EXPECT_EQ(cluster_.sessions_closed(), cluster_.sessions_made());
}

// A restore hangs with the disk or with a server.
TEST_F(SupervisorTest, ASignalIsHeardWhileASessionIsRestored) {
  class HungRestore : public WatchedSaver {
   public:
    using WatchedSaver::WatchedSaver;
    Status Restore(Session*, const std::string&) override {
      hangs.Notify();
      wait();
      return absl::CancelledError("Session has been closed.");
    }
    Notification hangs;
    std::function<void()> wait;
  };
  SaveOne();
  for (const bool ends_with_session : {true, false}) {
    SCOPED_TRACE(ends_with_session);
    RestartParameterServers();
    const int made = cluster_.sessions_made(), closed = cluster_.sessions_closed();
    FakeClock clock;
    Notification open;
    Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    HungRestore saver(std::move(real));
    saver.wait = [&] { ends_with_session ? cluster_.AwaitClosed(closed + 1) : open.Wait(); };
    {
      SupervisorOptions options = Options();
      options.saver = &saver;
      options.clock = &clock;
      options.init_fn = [](Session*) { return absl::InternalError("must not be called"); };
      Supervisor supervisor(model.root, options);
      Notification ended;
      std::thread thread([&] {
        const Status status = supervisor.ManagedSession(kSharedTarget).status();
        EXPECT_STATUS(status, StatusCode::kCancelled, "Supervisor: ended by SIGTERM");
        const Status stopped = supervisor.Stop();
        EXPECT_EQ(stopped, status);
        EXPECT_EQ(ExitCode(stopped), 128 + SIGTERM);
        ended.Notify();
      });
      saver.hangs.Wait();
      const absl::Time begin = clock.Now();
      ASSERT_EQ(::raise(SIGTERM), 0);
      while (!ended.WaitFor(absl::Milliseconds(20))) {
        if (clock.Now() < begin + SupervisorOptions().signal_grace) {
          clock.Advance(absl::Seconds(1));
        }
      }
      thread.join();
    }
    open.Notify();
    cluster_.AwaitDestroyed(made + 1);
  }
}

TEST_F(SupervisorTest, SignalsMayBeLeftAlone) {
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &before), 0);
  Model model;
  SupervisorOptions options = Options();
  options.handle_signals = false;
  Supervisor supervisor(model.root, options);
  ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
  struct sigaction during = {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &during), 0);
  EXPECT_EQ(during.sa_handler, before.sa_handler);
}

// A step that waits for a value that never comes ends only when its session is closed.
TEST_F(SupervisorTest, AStepThatHangsIsEndedAndWhatWasTrainedIsSaved) {
  Model model;
  const Output queue = FIFOQueueV2(model.root, {DT_FLOAT});
  const Output never = QueueDequeueV2(model.root, queue, {DT_FLOAT})[0];
  SupervisorOptions options = Options();
  FakeClock clock;
  options.clock = &clock;
  Supervisor supervisor(model.root, options);
  Notification steps;
  std::thread thread([&] {
    steps.Wait();
    ASSERT_EQ(::raise(SIGTERM), 0);
    // Cluster managers kill after 30 s: the step gets 10 s of that, the checkpoint 10 s more.
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(10));
  });
  const Status status = RunStepsWithRecovery(
      &supervisor, "", 3, [](Session*) { return absl::OkStatus(); },
      [&](Session* session) -> StatusOr<bool> {
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
        steps.Notify();
        MR_RETURN_IF_ERROR(session->Run({}, {never}).status());
        return true;
      });
  thread.join();
  EXPECT_OK(status);  // Stop reports the signal
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
  const Status stopped = supervisor.Stop();
  EXPECT_STATUS(stopped, StatusCode::kCancelled, "Supervisor: ended by SIGTERM");
  EXPECT_EQ(ExitCode(stopped), 128 + SIGTERM);
}

TEST_F(SupervisorTest, AfterASignalTheWaitForStorageThatHangsEndsInTheGrace) {
  const int made = cluster_.sessions_made();
  HungFileSystem storage(logdir_);
  FakeClock clock;
  {
    Model model;
    SupervisorOptions options = Options();
    options.file_system = &storage;
    options.clock = &clock;
    Supervisor supervisor(model.root, options);
    ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
    ASSERT_EQ(::raise(SIGTERM), 0);
    EXPECT_TRUE(supervisor.ShouldStop());
    Status stopped;
    std::thread thread([&] { stopped = supervisor.Stop(); });
    // Stop first waits a while for steps that others still count.
    while (!storage.hangs.WaitFor(absl::Milliseconds(5))) clock.Advance(absl::Milliseconds(100));
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(20));
    thread.join();
    EXPECT_STATUS(stopped, StatusCode::kDeadlineExceeded,
                  "last checkpoint not written: it did not end within 20s, and is left behind");
    EXPECT_EQ(ExitCode(stopped), kExitRetryable);
  }
  storage.open.Notify();
  cluster_.AwaitDestroyed(made + 1);
}

// A cluster manager that ends this task ends the parameter servers, too.
TEST_F(SupervisorTest, ASessionThatIsLostAfterASignalIsNotRecovered) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int sessions = 0;
  EXPECT_OK(RunStepsWithRecovery(
      &supervisor, kSharedTarget, 3,
      [&](Session*) {
        ++sessions;
        return absl::OkStatus();
      },
      [&](Session*) -> StatusOr<bool> {
        EXPECT_EQ(::raise(SIGTERM), 0);
        EXPECT_TRUE(supervisor.ShouldStop());
        return absl::UnavailableError("ps is stopping");
      }));
  EXPECT_EQ(sessions, 1);
  EXPECT_EQ(ExitCode(supervisor.Stop()), 128 + SIGTERM);
}

// Another task counts a step while the first checkpoint is written.
class CountedMeanwhile : public WatchedSaver {
 public:
  CountedMeanwhile(std::unique_ptr<Saver> saver, const Operation* count)
      : WatchedSaver(std::move(saver)), count_(count) {}
  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> step) override {
    auto path = WatchedSaver::Save(session, prefix, step);
    if (++saves_ == 1) {
      EXPECT_OK(session->Run({}, {}, {*count_}).status());
    }
    return path;
  }

 private:
  const Operation* const count_;
  int saves_ = 0;
};

// Steps that others count while the last checkpoint is written belong in it.
TEST_F(SupervisorTest, AfterASignalTheLastCheckpointHasTheStepsThatOthersStillCount) {
  Model model;
  ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
  CountedMeanwhile saver(std::move(real), &model.count);
  SupervisorOptions options = Options();
  options.saver = &saver;
  Supervisor supervisor(model.root, options);
  ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
  ASSERT_EQ(::raise(SIGTERM), 0);
  EXPECT_TRUE(supervisor.ShouldStop());
  EXPECT_EQ(ExitCode(supervisor.Stop()), 128 + SIGTERM);
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
}

// A last checkpoint that was written counts, even when later steps cannot be added to it.
TEST_F(SupervisorTest, AfterASignalTheLastCheckpointThatWasWrittenCounts) {
  Model model;
  ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
  CountedMeanwhile saver(std::move(real), &model.count);
  saver.FailInTurn({absl::OkStatus(), absl::UnavailableError("ps is stopping")});
  SupervisorOptions options = Options();
  options.saver = &saver;
  Supervisor supervisor(model.root, options);
  ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
  ASSERT_EQ(::raise(SIGTERM), 0);
  EXPECT_TRUE(supervisor.ShouldStop());
  const Status stopped = supervisor.Stop();
  EXPECT_EQ(stopped.message(),
            absl::StrCat("Supervisor: ended by SIGTERM; saved ", logdir_, "/model.ckpt-0"));
  EXPECT_EQ(ExitCode(stopped), 128 + SIGTERM);
}

}  // namespace
}  // namespace millrace

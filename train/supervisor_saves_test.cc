// SPDX-License-Identifier: Apache-2.0
//
// The checkpoints of a Supervisor: when its service saves, and how training and Stop go on when a
// save fails, is lost or hangs.
#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/saver.pb.h"
#include "run/run_file.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/supervisor.h"
#include "train/testing/hung_file_system.h"
#include "train/testing/shared_variables.h"
#include "train/testing/supervisor_fixture.h"
#include "train/testing/watched_saver.h"

// covers: training: a missing last checkpoint is the result of `Stop`; storage that hangs blocks no
//   `Stop`
// covers: training: one Saver for all threads of a chief, with every option of a save; a failure
//   hides no later success, and a success no later failure

namespace millrace {
namespace {

using absl::StatusCode;
using Model = SupervisedModel;

TEST_F(SupervisorTest, TheSaverTakesTheOptionsOfASave) {
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       supervisor.saver()->SaveAs(session.get(), logdir_ + "/best", 3,
                                                  {.latest_filename = "best_checkpoint"}));
  EXPECT_EQ(path, logdir_ + "/best-3");
  FileSystem* const fs = FileSystem::Posix();
  EXPECT_EQ(LatestCheckpoint(fs, logdir_, "best_checkpoint"), path);
  ASSERT_EQ(supervisor.saver()->last_checkpoints_with_time().size(), 1u);
  EXPECT_GT(supervisor.saver()->last_checkpoints_with_time()[0].time_s, 0);
  // A restart does not look there, so Stop writes a checkpoint of its own.
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(fs, logdir_), logdir_ + "/model.ckpt-0");
}

TEST_F(SupervisorTest, TheChiefSavesAtOnceAndInEachPeriod) {
  FakeClock clock;
  Model model;
  ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
  WatchedSaver saver(std::move(real));
  SupervisorOptions options = Options();
  options.saver = &saver;
  options.clock = &clock;
  options.save_model_period = absl::Seconds(600);
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(saver.AwaitSave(1), logdir_ + "/model.ckpt-0");
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(600));
  EXPECT_EQ(saver.AwaitSave(2), logdir_ + "/model.ckpt-1");
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
  EXPECT_TRUE(FileSystem::Posix()->FileExists(logdir_ + "/model.ckpt-1.meta"));
}

TEST_F(SupervisorTest, OnlyAnErrorThatNoRetryMendsStopsTheTraining) {
  for (const Status& error : {absl::InvalidArgumentError("no name of a file"),
                              absl::UnimplementedError("no such format")}) {
    RestartParameterServers();
    Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    WatchedSaver saver(std::move(real));
    saver.FailWith(error);
    SupervisorOptions options = Options();
    options.saver = &saver;
    options.save_model_period = absl::Seconds(600);
    Supervisor supervisor(model.root, options);
    EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
    while (!supervisor.ShouldStop()) std::this_thread::yield();
    const Status stopped = supervisor.Stop();
    EXPECT_STATUS(stopped, error.code(),
                  absl::StrCat("Supervisor: checkpoint not written: ", error.message()));
    EXPECT_EQ(ExitCode(stopped), kExitError);
  }
}

// Any error of a file may go away: somebody frees space or mounts the disk again.
TEST_F(SupervisorTest, AFullDiskEndsNoTrainingAndTheSaveIsRetried) {
  for (const Status& error :
       {absl::ResourceExhaustedError("File 'x': write: No space left on device"),
        absl::PermissionDeniedError("File 'x': open: Read-only file system"),
        absl::UnknownError("File 'x': write: Input/output error"),
        absl::NotFoundError("File 'x': open: No such file or directory")}) {
    for (const bool by_service : {true, false}) {
      SCOPED_TRACE(absl::StrCat(by_service ? "the service: " : "the program: ", error.message()));
      FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
      RestartParameterServers();
      Model model;
      ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
      WatchedSaver saver(std::move(real));
      saver.FailInTurn({error, error, error});
      SupervisorOptions options = Options();
      options.saver = &saver;
      if (by_service) options.save_model_period = absl::Seconds(600);
      Supervisor supervisor(model.root, options);
      ::testing::internal::CaptureStderr();
      ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
      if (!by_service) {
        ASSERT_OK_AND_ASSIGN(const std::string none, supervisor.Save(0));
        EXPECT_EQ(none, "");
      }
      EXPECT_EQ(saver.AwaitSave(3), "");
      EXPECT_FALSE(supervisor.ShouldStop());
      EXPECT_EQ(saver.AwaitSave(4), logdir_ + "/model.ckpt-0");
      ASSERT_OK(session->Run({}, {}, {model.count}).status());
      supervisor.RequestStop();
      const Status stopped = supervisor.Stop();
      const std::string log = ::testing::internal::GetCapturedStderr();
      EXPECT_OK(stopped);
      EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
      for (const char* wait : {"1ms", "2ms", "4ms"}) {
        EXPECT_TRUE(absl::StrContains(
            log, absl::StrCat("Supervisor: checkpoint not written: ", error.message(), "; '",
                              logdir_, "/model.ckpt-0' has 16 bytes of variables; it is tried ",
                              "again in ", wait)))
            << log;
      }
    }
  }
}

TEST_F(SupervisorTest, WithoutALastCheckpointStopSaysSoAndTheExitCodeAsksForARetry) {
  const Status full = absl::ResourceExhaustedError("No space left on device");
  for (const bool is_signal : {false, true}) {
    SCOPED_TRACE(is_signal);
    RestartParameterServers();
    Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    WatchedSaver saver(std::move(real));
    saver.FailWith(full);
    SupervisorOptions options = Options();
    options.saver = &saver;
    options.stop_grace = absl::Milliseconds(500);
    Supervisor supervisor(model.root, options);
    ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
    if (is_signal) {
      ASSERT_EQ(::raise(SIGTERM), 0);
      EXPECT_TRUE(supervisor.ShouldStop());
    } else {
      supervisor.RequestStop();
    }
    const Status stopped = supervisor.Stop();
    EXPECT_STATUS(stopped, full.code(),
                  absl::StrCat("Supervisor: ", is_signal ? "ended by SIGTERM: Supervisor: " : "",
                               "last checkpoint not written: No space left on device"));
    EXPECT_EQ(ExitCode(stopped), kExitRetryable);
    EXPECT_EQ(supervisor.Stop(), stopped);
    // The run has not ended: the parameter servers still hold what was trained.
    EXPECT_TRUE(cluster_.ends().empty());
    EXPECT_FALSE(FileSystem::Posix()->FileExists(RunEndFilePath(logdir_)));
  }
}

TEST_F(SupervisorTest, TheLastCheckpointIsTriedAgainInTheGrace) {
  Model model;
  ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
  WatchedSaver saver(std::move(real));
  const Status full = absl::ResourceExhaustedError("No space left on device");
  saver.FailInTurn({full, full, full});
  SupervisorOptions options = Options();
  options.saver = &saver;
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  supervisor.RequestStop();
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
  EXPECT_EQ(cluster_.ends().size(), 1u);
}

TEST_F(SupervisorTest, ASaveThatIsLostIsTriedAgainAndTheOthersKeepTheirTimes) {
  for (const Status& loss :
       {absl::UnavailableError("ps is gone"), absl::AbortedError("restarted")}) {
    RestartParameterServers();
    FakeClock clock;
    Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    WatchedSaver saver(std::move(real));
    saver.FailInTurn({loss, loss});
    SupervisorOptions options = Options();
    options.saver = &saver;
    options.clock = &clock;
    options.recovery_wait = absl::Seconds(1);
    options.save_model_period = absl::Seconds(600);
    Supervisor supervisor(model.root, options);
    ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
    EXPECT_EQ(saver.AwaitSave(1), "");
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(1));
    EXPECT_EQ(saver.AwaitSave(2), "");
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(2));
    EXPECT_EQ(saver.AwaitSave(3), logdir_ + "/model.ckpt-0");
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(597));
    EXPECT_EQ(saver.AwaitSave(4), logdir_ + "/model.ckpt-1");
    EXPECT_OK(supervisor.Stop());
    FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
  }
}

TEST_F(SupervisorTest, StopReturnsTheServicesLastFailureUntilASaveSucceeds) {
  for (const bool succeeds_later : {false, true}) {
    RestartParameterServers();
    Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    WatchedSaver saver(std::move(real));
    saver.FailWith(absl::UnavailableError("storage is away"));
    SupervisorOptions options = Options();
    options.saver = &saver;
    options.save_model_period = absl::Seconds(600);
    Supervisor supervisor(model.root, options);
    ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
    saver.AwaitSave(2);
    EXPECT_FALSE(supervisor.ShouldStop());
    // The program writes the last checkpoint itself.
    EXPECT_STATUS(supervisor.SaveLast().status(), StatusCode::kUnavailable, "storage is away");
    if (succeeds_later) {
      saver.FailWith(absl::OkStatus());
      EXPECT_OK(supervisor.SaveLast().status());
    }
    const Status stopped = supervisor.Stop();
    if (succeeds_later) {
      EXPECT_OK(stopped);
    } else {
      EXPECT_STATUS(stopped, StatusCode::kUnavailable,
                    "Supervisor: checkpoint not written: storage is away");
    }
  }
}

TEST_F(SupervisorTest, StorageThatHangsHoldsUpNoStop) {
  for (const bool in_service : {true, false}) {
    SCOPED_TRACE(in_service);
    RestartParameterServers();
    const int sessions = cluster_.sessions_made();
    HungFileSystem storage(logdir_);
    {
      Model model;
      SupervisorOptions options = Options();
      options.file_system = &storage;
      options.stop_grace = absl::Milliseconds(10);
      if (in_service) options.save_model_period = absl::Seconds(600);
      Supervisor supervisor(model.root, options);
      ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
      if (in_service) storage.hangs.Wait();
      supervisor.RequestStop();
      const Status stopped = supervisor.Stop();
      EXPECT_EQ(stopped.code(), StatusCode::kDeadlineExceeded) << stopped;
      EXPECT_TRUE(absl::StrContains(stopped.message(),
                                    in_service ? "last checkpoint not written: the one before it "
                                                 "did not end within 10ms"
                                               : "last checkpoint not written: it did not end "
                                                 "within 10ms, and is left behind"))
          << stopped;
      EXPECT_EQ(supervisor.Stop(), stopped);
    }
    // Without its last checkpoint, training is not reported as over.
    EXPECT_TRUE(cluster_.ends().empty());
    EXPECT_FALSE(storage.FileExists(RunEndFilePath(logdir_)));
    storage.open.Notify();
    cluster_.AwaitDestroyed(sessions + 1);
  }
}

TEST_F(SupervisorTest, AStopDoesNotWaitForeverForASave) {
  // A Saver that blocks until its session is closed, as when a server is gone.
  class BlockedSaver : public Saver {
   public:
    StatusOr<std::string> Save(Session*, const std::string&, std::optional<int64_t>) override {
      saving.Notify();
      cluster->AwaitClosed(1);
      return absl::CancelledError("Session has been closed.");
    }
    Status Restore(Session*, const std::string&) override { return absl::OkStatus(); }
    Status RecoverLastCheckpoints(const std::vector<std::string>&) override {
      return absl::OkStatus();
    }
    std::vector<std::string> last_checkpoints() const override { return {}; }
    const tensorflow::SaverDef& def() const override { return def_; }
    Notification saving;
    SharedVariables* cluster = nullptr;

   private:
    tensorflow::SaverDef def_;
  };
  Model model;
  BlockedSaver saver;
  saver.cluster = &cluster_;
  SupervisorOptions options = Options();
  options.saver = &saver;
  options.save_model_period = absl::Seconds(600);
  options.stop_grace = absl::Milliseconds(1);
  Supervisor supervisor(model.root, options);
  EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
  saver.saving.Wait();
  // There is no last checkpoint, and Stop says so.
  EXPECT_STATUS(supervisor.Stop(), StatusCode::kDeadlineExceeded,
                "last checkpoint not written: the one before it did not end within 1ms");
}

// No one could end a retry that begins now: it would keep the session for ever.
TEST_F(SupervisorTest, ASaveThatFailsWhileStopMakesTheLastCheckpointIsNotTriedAgain) {
  class FailsSlowly : public WatchedSaver {
   public:
    using WatchedSaver::WatchedSaver;
    StatusOr<std::string> Save(Session* session, const std::string& prefix,
                               std::optional<int64_t> step) override {
      if (++saves_ > 1) {
        heard.Wait();
        return WatchedSaver::Save(session, prefix, step);
      }
      begun.Notify();
      may_fail.Wait();
      return absl::ResourceExhaustedError("No space left on device");
    }
    Notification begun, may_fail, heard;

   private:
    int saves_ = 0;  // one at a time
  };
  FakeClock clock;
  Model model;
  ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
  FailsSlowly saver(std::move(real));
  SupervisorOptions options = Options();
  options.saver = &saver;
  options.clock = &clock;
  std::weak_ptr<Session> kept;
  {
    Supervisor supervisor(model.root, options);
    ASSERT_OK_AND_ASSIGN(auto session, supervisor.ManagedSession(""));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    kept = session;
    session.reset();
    std::thread saving([&] { EXPECT_OK(supervisor.Save(7).status()); });
    saver.begun.Wait();
    std::thread stopping([&] { supervisor.Stop().IgnoreError(); });
    clock.AwaitWaiters(1);  // for the last checkpoint, which waits for this one
    saver.may_fail.Notify();
    saving.join();
    saver.heard.Notify();
    stopping.join();
  }
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
  EXPECT_TRUE(kept.expired());
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// The run of a Supervisor's directory: its sessions, which of two chiefs has it, and its end.
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/saver.pb.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/supervisor.h"
#include "train/testing/hung_file_system.h"
#include "train/testing/shared_variables.h"
#include "train/testing/supervisor_fixture.h"

// covers: training: the older of two chiefs saves no more and names the owner; a run's end holds
//   until a chief continues
// covers: training: a job without a logdir reports what it lacks; a named one ends for all tasks
// covers: training: files that dead saves of a run left are deleted and nothing else, also where
//   all checkpoints are kept

namespace millrace {
namespace {

using Model = SupervisedModel;

TEST_F(SupervisorTest, SessionsAreForTheRunOfTheDirectory) {
  Model model;
  Supervisor chief(model.root, Options());
  ASSERT_OK(chief.ManagedSession(kSharedTarget).status());
  Model worker_model;
  SupervisorOptions options = Options();
  options.is_chief = false;
  options.logdir = logdir_ + "/";
  Supervisor worker(worker_model.root, options);
  ASSERT_OK(worker.ManagedSession(kSharedTarget).status());
  const std::vector<TrainingRun> runs = cluster_.runs();
  ASSERT_EQ(runs.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunFile(FileSystem::Posix(), logdir_));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(runs[0].name, logdir_);
  EXPECT_EQ(runs[0].id, file->id);
  EXPECT_TRUE(runs[0].is_chief);
  EXPECT_EQ(runs[0].epoch, 1);
  EXPECT_EQ(runs[1].name, logdir_);
  EXPECT_EQ(runs[1].id, "");
  EXPECT_FALSE(runs[1].is_chief);
}

TEST_F(SupervisorTest, WithoutADirectoryThereIsNoRun) {
  Model model;
  SupervisorOptions options = Options();
  options.logdir = "";
  Supervisor supervisor(model.root, options);
  ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
  EXPECT_TRUE(cluster_.runs()[0].empty());
}

TEST_F(SupervisorTest, ARunWithoutADirectoryHasTheNameItWasGivenAndAnEnd) {
  for (const bool is_chief : {true, false}) {
    Model model;
    SupervisorOptions options = Options();
    options.is_chief = is_chief;
    options.logdir = "";
    options.session.run = {.name = "job7"};
    Supervisor supervisor(model.root, options);
    ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
    const TrainingRun run = cluster_.runs().back();
    EXPECT_EQ(run.name, "job7");
    EXPECT_EQ(run.is_chief, is_chief);
    EXPECT_EQ(run.id.empty(), !is_chief);
    // The next session belongs to the same run.
    ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
    EXPECT_EQ(cluster_.runs().back().id, run.id);
    supervisor.RequestStop();
    EXPECT_OK(supervisor.Stop());
    EXPECT_EQ(cluster_.ends().size(), 1u);
  }
}

TEST_F(SupervisorTest, TheOlderOfTwoChiefsMaySaveNoMore) {
  Model older_model, newer_model;
  Supervisor older(older_model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, older.ManagedSession(kSharedTarget));
  ASSERT_OK(older.saver()->Save(session.get(), older.save_path(), 1).status());
  Supervisor newer(newer_model.root, Options());
  ASSERT_OK(newer.ManagedSession(kSharedTarget).status());
  const Status refused = older.saver()->Save(session.get(), older.save_path(), 2).status();
  EXPECT_TRUE(IsFenced(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), ", process ")) << refused;
  EXPECT_TRUE(IsFenced(older.ManagedSession(kSharedTarget).status()));
  older.RequestStop();
  EXPECT_OK(newer.saver()->Save(session.get(), newer.save_path(), 3).status());
  EXPECT_TRUE(cluster_.ends().empty());
}

// Storage that hangs stands in for a process that is paused in the middle of a save.
TEST_F(SupervisorTest, AChiefThatIsTakenOverInMidSaveLeavesTheStateFileToTheNewerOne) {
  HungFileSystem storage(logdir_);
  Model older_model, newer_model;
  SupervisorOptions options = Options();
  options.file_system = &storage;
  Supervisor older(older_model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, older.ManagedSession(kSharedTarget));
  Status refused;
  std::thread thread(
      [&] { refused = older.saver()->Save(session.get(), older.save_path(), 1).status(); });
  storage.hangs.Wait();
  Supervisor newer(newer_model.root, Options());
  const auto its_session = newer.ManagedSession(kSharedTarget);
  EXPECT_OK(its_session.status());
  if (its_session.ok()) {
    EXPECT_OK(newer.saver()->Save(its_session->get(), newer.save_path(), 2).status());
  }
  storage.open.Notify();
  thread.join();
  EXPECT_TRUE(IsFenced(refused)) << refused;
  const auto state = ReadCheckpointState(FileSystem::Posix(), logdir_);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->latest, newer.save_path() + "-2");
}

// The newer chief deletes what dead saves left. It cannot know that the older chief is only paused.
TEST_F(SupervisorTest, AnOlderChiefWhosePartsWereSweptHearsWhoHasTheRunAndNotWhichFileIsGone) {
  class SweptSaver : public Saver {
   public:
    StatusOr<std::string> Save(Session*, const std::string&, std::optional<int64_t>) override {
      meanwhile();
      return absl::NotFoundError("part-00000-of-00001.index");
    }
    Status Restore(Session*, const std::string&) override { return absl::OkStatus(); }
    Status RecoverLastCheckpoints(const std::vector<std::string>&) override {
      return absl::OkStatus();
    }
    std::vector<std::string> last_checkpoints() const override { return {}; }
    const tensorflow::SaverDef& def() const override { return def_; }
    std::function<void()> meanwhile;

   private:
    tensorflow::SaverDef def_;
  };
  Model newer_model;
  Supervisor newer(newer_model.root, Options());
  SweptSaver saver;
  saver.meanwhile = [&] { EXPECT_OK(newer.ManagedSession(kSharedTarget).status()); };
  Model model;
  SupervisorOptions options = Options();
  options.saver = &saver;
  Supervisor older(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, older.ManagedSession(kSharedTarget));
  const Status refused = older.saver()->Save(session.get(), older.save_path(), 1).status();
  EXPECT_TRUE(IsFenced(refused)) << refused;
}

TEST_F(SupervisorTest, TheCheckpointServiceOfTheOlderOfTwoChiefsStopsItsTraining) {
  FakeClock clock;
  Model older_model, newer_model;
  SupervisorOptions options = Options();
  options.clock = &clock;
  options.save_model_period = absl::Seconds(600);
  Supervisor older(older_model.root, options);
  ASSERT_OK(older.ManagedSession(kSharedTarget).status());
  clock.AwaitWaiters(1);  // the first checkpoint is there
  Supervisor newer(newer_model.root, Options());
  ASSERT_OK(newer.ManagedSession(kSharedTarget).status());
  clock.Advance(absl::Seconds(600));
  while (!older.ShouldStop()) std::this_thread::yield();
  const Status stopped = older.Stop();
  EXPECT_TRUE(IsFenced(stopped)) << stopped;
  EXPECT_EQ(ExitCode(stopped), kExitError);  // do not start it again
}

TEST_F(SupervisorTest, AnAskedStopIsTheEndOfTheRunAndOthersLeave) {
  {
    Model model;
    Supervisor chief(model.root, Options());
    ASSERT_OK_AND_ASSIGN(const auto session, chief.ManagedSession(kSharedTarget));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    chief.RequestStop(absl::OutOfRangeError("reached step 1 of 1"));
    EXPECT_OK(chief.Stop());
  }
  const std::string path = logdir_ + "/model.ckpt-1";
  const RunEnd end = {.global_step = 1, .checkpoint = path, .reason = "reached step 1 of 1"};
  EXPECT_EQ(cluster_.ends(), std::vector<RunEnd>{end});
  const int sessions = cluster_.sessions_made();
  RestartParameterServers();
  Model model;
  SupervisorOptions options = Options();
  options.is_chief = false;
  options.last_step = 1;
  Supervisor worker(model.root, options);
  int calls = 0;
  ::testing::internal::CaptureStderr();
  const Status status = RunWithRecovery(&worker, kSharedTarget, 3, [&calls](Session*) {
    ++calls;
    return absl::OkStatus();
  });
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_OK(status);
  EXPECT_EQ(calls, 0);
  EXPECT_TRUE(absl::StrContains(log, "has ended at step 1: reached step 1 of 1")) << log;
  EXPECT_EQ(cluster_.sessions_made(), sessions);
  EXPECT_EQ(worker.run_end(), end);
  EXPECT_TRUE(worker.ShouldStop());
  EXPECT_OK(worker.Stop());

  // A new chief continues the same run.
  Model more;
  Supervisor chief(more.root, Options());
  ASSERT_OK(chief.ManagedSession(kSharedTarget).status());
  EXPECT_EQ(chief.start(), Supervisor::Start::kRestored);
  EXPECT_EQ(cluster_.runs().front().id, cluster_.runs().back().id);
  EXPECT_EQ(cluster_.runs().back().epoch, 2);
  ASSERT_OK_AND_ASSIGN(const auto none, ReadRunEnd(FileSystem::Posix(), logdir_));
  EXPECT_FALSE(none.has_value());
}

TEST_F(SupervisorTest, OnlyARequestedStopWithoutErrorsEndsTheRun) {
  const struct {
    const char* what;
    std::function<void(Supervisor*)> stop;
  } kCases[] = {
      {"no request", [](Supervisor* s) { EXPECT_OK(s->Stop()); }},
      {"an error",
       [](Supervisor* s) {
         s->RequestStop(absl::DataLossError("bad"));
         EXPECT_FALSE(s->Stop().ok());
       }},
      {"an error after all",
       [](Supervisor* s) {
         s->RequestStop();
         s->RequestStop(absl::CancelledError("SIGTERM"));
         EXPECT_FALSE(s->Stop().ok());
       }},
      {"the destructor", [](Supervisor* s) { s->RequestStop(); }},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    Model model;
    {
      Supervisor chief(model.root, Options());
      ASSERT_OK(chief.ManagedSession(kSharedTarget).status());
      c.stop(&chief);
    }
    EXPECT_TRUE(cluster_.ends().empty());
    EXPECT_FALSE(FileSystem::Posix()->FileExists(RunEndFilePath(logdir_)));
  }
}

// A save whose process died leaves the directory of its parts.
TEST_F(SupervisorTest, WhatDeadSavesOfTheRunLeftIsSweptAndNothingElse) {
  SaveOne();
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const auto run, ReadRunFile(fs, logdir_));
  const std::string own =
      absl::StrCat(logdir_, "/model.ckpt-7_temp_", run->id.substr(0, 16), "0123456789abcdef");
  const std::string other = absl::StrCat(logdir_, "/model.ckpt-7_temp_", std::string(32, 'e'));
  for (const std::string& directory : {own, other}) {
    ASSERT_OK(fs->RecursivelyCreateDirectory(directory));
    ASSERT_OK(WriteFileAtomically(fs, directory + "/part-00000-of-00001.index", "x"));
  }
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  for (const int64_t step : {8, 9}) {
    ASSERT_OK(supervisor.saver()->Save(session.get(), supervisor.save_path(), step).status());
  }
  EXPECT_FALSE(fs->FileExists(own));
  EXPECT_TRUE(fs->FileExists(other));
}

}  // namespace
}  // namespace millrace

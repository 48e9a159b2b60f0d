// SPDX-License-Identifier: Apache-2.0
//
// Supervisor::Stop: the first error, the closed session, and the last checkpoint where storage
// works. supervisor_saves_test.cc has storage that fails.
#include <cmath>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "train/loss_guard.h"
#include "train/supervisor.h"
#include "train/testing/shared_variables.h"
#include "train/testing/supervisor_fixture.h"

// covers: training: `Stop` saves the last step, also where a step counter does not count; not a
//   lost or non-finite state; a directory that cannot be written is refused before training
// covers: article 2-12: a managed session, `ShouldStop`, a loop to a step; the end of data is a
//   clean end

namespace millrace {
namespace {

using absl::StatusCode;
using Model = SupervisedModel;

// --- Stopping ------------------------------------------------------------------------------------

TEST_F(SupervisorTest, StopClosesTheSessionAndTellsTheFirstError) {
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
  EXPECT_FALSE(supervisor.ShouldStop());
  supervisor.RequestStop(absl::DataLossError("first"));
  supervisor.RequestStop(absl::InternalError("second"));
  EXPECT_TRUE(supervisor.ShouldStop());
  EXPECT_EQ(supervisor.Stop(), absl::DataLossError("first"));
  EXPECT_EQ(supervisor.Stop(), absl::DataLossError("first"));
  EXPECT_EQ(cluster_.sessions_closed(), 1);
}

TEST_F(SupervisorTest, ARequestForASessionAfterAStopIsRefusedAndStopClosesTheFormerOne) {
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  supervisor.RequestStop(absl::DataLossError("bad input"));
  EXPECT_EQ(supervisor.ManagedSession(kSharedTarget).status(), absl::DataLossError("bad input"));
  EXPECT_EQ(supervisor.Stop(), absl::DataLossError("bad input"));
  EXPECT_EQ(cluster_.sessions_closed(), 1);
}

TEST_F(SupervisorTest, AStopWhileTheSessionIsPreparedIsNotOvertakenByItsServices) {
  Model model;
  SupervisorOptions options = Options();
  options.save_model_period = absl::Seconds(600);
  Supervisor* stopped = nullptr;
  options.init_fn = [&](Session*) { return stopped->Stop(); };
  Supervisor supervisor(model.root, options);
  stopped = &supervisor;
  EXPECT_STATUS(supervisor.ManagedSession(kSharedTarget).status(), StatusCode::kCancelled,
                "a stop has been requested");
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), std::nullopt);
  EXPECT_EQ(cluster_.sessions_closed(), 1);
}

TEST_F(SupervisorTest, WhatAFunctionOfTheOptionsThrowsReachesTheCaller) {
  Model model;
  SupervisorOptions options = Options();
  options.init_fn = [](Session*) -> Status { throw std::runtime_error("no weights"); };
  Supervisor supervisor(model.root, options);
  EXPECT_THROW(supervisor.ManagedSession(kSharedTarget).IgnoreError(), std::runtime_error);
  supervisor.NothingToSave();
  EXPECT_OK(supervisor.Stop());
}

TEST_F(SupervisorTest, SeveralThreadsMayStopAtOnce) {
  SupervisorOptions options = Options();
  options.save_model_period = absl::Seconds(600);
  for (int i = 0; i < 20; ++i) {
    Model model;
    Supervisor supervisor(model.root, options);
    ASSERT_OK(supervisor.ManagedSession(kSharedTarget).status());
    std::vector<std::thread> threads;
    for (int k = 0; k < 4; ++k) {
      threads.emplace_back([&] { EXPECT_OK(supervisor.Stop()); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST_F(SupervisorTest, TheEndOfInputIsACleanStop) {
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
  supervisor.RequestStop(absl::OutOfRangeError("no more"));
  EXPECT_OK(supervisor.Stop());
}

// --- The last checkpoint -------------------------------------------------------------------------

TEST_F(SupervisorTest, StopSavesWhatWasTrainedAndSaysWhere) {
  SupervisorOptions options = Options();
  options.save_model_period = absl::Seconds(600);  // the default
  FakeClock clock;
  options.clock = &clock;
  Model model;
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  clock.AwaitWaiters(1);  // the first checkpoint is there, without any step
  for (int i = 0; i < 1000; ++i) ASSERT_OK(session->Run({}, {}, {model.count}).status());
  ASSERT_OK(session->Run({}, {}, {model.grow}).status());
  ::testing::internal::CaptureStderr();
  EXPECT_OK(supervisor.Stop());
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string path = logdir_ + "/model.ckpt-1000";
  EXPECT_TRUE(
      absl::StrContains(log, absl::StrCat("Supervisor: saved ", path, " at global step 1000")))
      << log;
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), path);
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(FileSystem::Posix(), path));
  ASSERT_OK_AND_ASSIGN(const Tensor w, reader->Read("w"));
  EXPECT_EQ(w.scalar<float>(), 11);
}

TEST_F(SupervisorTest, AStepThatWasJustSavedIsNotSavedAgain) {
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  ASSERT_OK(supervisor.saver()->Save(session.get(), supervisor.save_path(), 1).status());
  ::testing::internal::CaptureStderr();
  EXPECT_OK(supervisor.Stop());
  EXPECT_FALSE(absl::StrContains(::testing::internal::GetCapturedStderr(), "Supervisor: saved"));
}

TEST_F(SupervisorTest, ACounterThatDoesNotCountDoesNotHideWhatWasTrained) {
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  ASSERT_OK(supervisor.saver()->Save(session.get(), supervisor.save_path(), 0).status());
  ASSERT_OK(session->Run({}, {}, {model.grow}).status());
  EXPECT_OK(supervisor.Stop());
  ASSERT_OK_AND_ASSIGN(const auto reader,
                       BundleReader::Open(FileSystem::Posix(), logdir_ + "/model.ckpt-0"));
  ASSERT_OK_AND_ASSIGN(const Tensor w, reader->Read("w"));
  EXPECT_EQ(w.scalar<float>(), 11);
}

TEST_F(SupervisorTest, TheLastCheckpointMayComeBeforeTheEndAndIsTheLast) {
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_EQ(*supervisor.SaveLast(), "");  // no session
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  ASSERT_OK_AND_ASSIGN(const std::string path, supervisor.SaveLast());
  EXPECT_EQ(path, logdir_ + "/model.ckpt-1");
  // Other workers may go on while this program exports.
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), path);
}

TEST_F(SupervisorTest, WhatIsLostOrNotFiniteIsNotSaved) {
  struct Case {
    Status reason;
    bool saved;
  };
  const Case cases[] = {
      {absl::UnavailableError("ps is gone"), false},
      {absl::AbortedError("ps restarted"), false},
      {Prefixed("worker 1", CheckLossIsFinite(TensorOf<float>({}, {NAN}), 1)), false},
      {absl::DataLossError("bad record"), true},
      {absl::InvalidArgumentError("bad shape"), true},
      {absl::OutOfRangeError("end of data"), true},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.reason.ToString());
    FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
    RestartParameterServers();
    Model model;
    Supervisor supervisor(model.root, Options());
    ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    supervisor.RequestStop(c.reason);
    EXPECT_EQ(supervisor.Stop(), absl::IsOutOfRange(c.reason) ? absl::OkStatus() : c.reason);
    EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_).has_value(), c.saved);
  }
}

TEST_F(SupervisorTest, OnlyTheChiefWithADirectorySavesAndTheDestructorDoesNot) {
  {
    Model model;
    Supervisor chief(model.root, Options());
    ASSERT_OK_AND_ASSIGN(const auto session, chief.ManagedSession(kSharedTarget));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    Model worker_model;
    SupervisorOptions options = Options();
    options.is_chief = false;
    Supervisor worker(worker_model.root, options);
    EXPECT_OK(worker.ManagedSession(kSharedTarget).status());
    EXPECT_OK(worker.Stop());
  }
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), std::nullopt);
}

TEST_F(SupervisorTest, ALastCheckpointThatCannotBeWrittenIsAnError) {
  Model model;
  SupervisorOptions options = Options();
  options.stop_grace = absl::Milliseconds(10);
  Supervisor supervisor(model.root, options);
  EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK(fs->RecursivelyDelete(logdir_));
  ASSERT_OK(WriteFileAtomically(fs, logdir_, "a file"));
  const Status status = supervisor.Stop();
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), "Supervisor: last checkpoint not written: "))
      << status;
  ASSERT_OK(fs->DeleteFile(logdir_));
}

}  // namespace
}  // namespace millrace

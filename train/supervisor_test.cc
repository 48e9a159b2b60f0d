// SPDX-License-Identifier: Apache-2.0
//
// How training starts: the chief adopts, restores or initialises variables; other tasks wait.
#include "train/supervisor.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/notification.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"
#include "proto/saver.pb.h"
#include "saver/tensor_bundle.h"
#include "train/testing/shared_variables.h"
#include "train/testing/supervisor_fixture.h"

// covers: training: `Stop` saves the last step, also where a step counter does not count; not a
//   lost or non-finite state; a directory that cannot be written is refused before training
// covers: article 2-9: Supervisor: initialises or restores, others wait; services
// covers: article 2-10: each service can be off

namespace millrace {
namespace {

using absl::StatusCode;
using Model = SupervisedModel;

// --- The chief -----------------------------------------------------------------------------------

TEST_F(SupervisorTest, FreshChiefInitialisesOnceAndCallsInitFn) {
  Model model;
  SupervisorOptions options = Options();
  int calls = 0;
  options.init_fn = [&](Session*) {
    ++calls;
    return absl::OkStatus();
  };
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(supervisor.start(), Supervisor::Start::kInitialized);
  EXPECT_EQ(supervisor.restored_checkpoint(), "");
  EXPECT_EQ(Float(session.get(), model.w.value), 1);
  EXPECT_EQ(Float(session.get(), model.b.value), 2);
  EXPECT_EQ(Step(session.get(), model), 0);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(supervisor.save_path(), logdir_ + "/model.ckpt");
}

TEST_F(SupervisorTest, ChiefRestoresTheLatestCheckpointOfItsDirectory) {
  const std::string path = SaveOne();
  RestartParameterServers();
  Model model;
  SupervisorOptions options = Options();
  options.init_fn = [](Session*) { return absl::InternalError("must not be called"); };
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(supervisor.start(), Supervisor::Start::kRestored);
  EXPECT_EQ(supervisor.restored_checkpoint(), path);
  EXPECT_EQ(Float(session.get(), model.w.value), 11);
  EXPECT_EQ(Step(session.get(), model), 1);
  // This process will delete what an earlier one saved.
  EXPECT_EQ(supervisor.saver()->last_checkpoints(), std::vector<std::string>{path});
}

TEST_F(SupervisorTest, AWarmStartTakesAnotherDirectorysCheckpointAndKeepsItsOwn) {
  const std::string elsewhere = SaveOne();
  RestartParameterServers();
  Model model;
  SupervisorOptions options = Options();
  options.logdir = logdir_ + "/own";
  options.begin_from = elsewhere;
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(supervisor.restored_checkpoint(), elsewhere);
  EXPECT_EQ(Float(session.get(), model.w.value), 11);
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), options.logdir),
            options.logdir + "/model.ckpt-1");
}

TEST_F(SupervisorTest, ChiefAdoptsWhatTheServersHoldInsteadOfRestoring) {
  SaveOne();
  Model model;
  {
    Supervisor before(model.root, Options());
    ASSERT_OK_AND_ASSIGN(const auto session, before.ManagedSession(kSharedTarget));
    ASSERT_OK(session->Run({}, {}, {model.grow, model.count}).status());
  }
  Model again;
  Supervisor supervisor(again.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(supervisor.start(), Supervisor::Start::kAdopted);
  EXPECT_EQ(supervisor.restored_checkpoint(), "");
  EXPECT_EQ(Float(session.get(), again.w.value), 21);
  EXPECT_EQ(Step(session.get(), again), 2);
}

TEST_F(SupervisorTest, ChiefRestoresOnlyWhatIsMissing) {
  const std::string path = SaveOne();
  RestartParameterServers();
  {
    // One of two servers has kept its variable.
    Model model;
    ASSERT_OK(Variables()->Extend(model.root));
    const Feed kept(model.w.initializer.node()->input(1).node->name(), TensorOf<float>({}, {7}));
    ASSERT_OK(Variables()->Run({kept}, {}, {model.w.initializer}).status());
  }
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(supervisor.start(), Supervisor::Start::kRestored);
  EXPECT_EQ(supervisor.restored_checkpoint(), path);
  EXPECT_EQ(Float(session.get(), model.w.value), 7);
  EXPECT_EQ(Float(session.get(), model.b.value), 2);
  EXPECT_EQ(Step(session.get(), model), 1);
}

// The nodes of the caller's Saver are found by what they do, not by the name of its restore op.
TEST_F(SupervisorTest, WhatIsMissingIsRestoredByTheCallersSaverWhateverItIsCalled) {
  SaveOne();
  RestartParameterServers();
  Model model;
  ASSERT_OK_AND_ASSIGN(const auto made, Saver::Make(model.root));
  AssignVariableOp(model.root.WithName("reset"), model.w.handle, Const(model.root, 99.f));
  Node* const restore = model.root.graph()->FindNode(made->def().restore_op_name());
  ASSERT_NE(restore, nullptr);
  tensorflow::SaverDef def = made->def();
  def.set_restore_op_name(
      Group(model.root.WithName("restore_everything"), {Operation(restore)}).name());
  const auto saver = Saver::FromDef(def);
  {
    ASSERT_OK(Variables()->Extend(model.root));
    ASSERT_OK(Variables()->Run({}, {}, {model.b.initializer}).status());
  }
  SupervisorOptions options = Options();
  options.saver = saver.get();
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(supervisor.start(), Supervisor::Start::kRestored);
  EXPECT_EQ(Float(session.get(), model.w.value), 11);
  EXPECT_EQ(Step(session.get(), model), 1);
}

TEST_F(SupervisorTest, ChiefWithoutCheckpointInitialisesOnlyWhatIsMissing) {
  Model first;
  ASSERT_OK(Variables()->Extend(first.root));
  const Feed kept(first.w.initializer.node()->input(1).node->name(), TensorOf<float>({}, {7}));
  ASSERT_OK(Variables()->Run({kept}, {}, {first.w.initializer}).status());
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  EXPECT_EQ(Float(session.get(), model.w.value), 7);
  EXPECT_EQ(Float(session.get(), model.b.value), 2);
  EXPECT_EQ(Step(session.get(), model), 0);
}

TEST_F(SupervisorTest, AnInitOperationOfTheCallerStartsAfreshAndTheLogSaysInitialized) {
  Model first;
  ASSERT_OK(Variables()->Extend(first.root));
  const Feed kept(first.w.initializer.node()->input(1).node->name(), TensorOf<float>({}, {7}));
  ASSERT_OK(Variables()->Run({kept}, {}, {first.w.initializer}).status());
  Model model;
  SupervisorOptions options = Options();
  options.init_op = GlobalVariablesInitializer(model.root);
  Supervisor supervisor(model.root, options);
  ::testing::internal::CaptureStderr();
  const auto session = supervisor.ManagedSession(kSharedTarget);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(session.status());
  EXPECT_EQ(Float(session->get(), model.w.value), 1);
  EXPECT_TRUE(absl::StrContains(log, "Supervisor: initialized 3 variables at global step 0"))
      << log;
}

TEST_F(SupervisorTest, ADamagedOnlyCheckpointIsAnErrorAndNotAFreshStart) {
  const std::string path = SaveOne();
  RestartParameterServers();
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const std::string index, ReadFileToString(fs, BundleIndexPath(path)));
  ASSERT_OK(WriteFileAtomically(fs, BundleIndexPath(path), index.substr(0, index.size() / 2)));
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_STATUS(supervisor.ManagedSession(kSharedTarget).status(), StatusCode::kDataLoss,
                BundleIndexPath(path));
}

TEST_F(SupervisorTest, WithoutDirectoryNothingIsSavedOrRestored) {
  Model model;
  SupervisorOptions options = Options();
  options.logdir = "";
  Supervisor supervisor(model.root, options);
  EXPECT_EQ(supervisor.saver(), nullptr);
  EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
}

TEST_F(SupervisorTest, AnErrorOfTheScopeShowsInManagedSession) {
  Model model;
  MakeVariable(model.root.WithName("bad"), Placeholder(model.root, DT_FLOAT, {-1}));
  ASSERT_FALSE(model.root.ok());
  Supervisor supervisor(model.root, Options());
  EXPECT_FALSE(supervisor.status().ok());
  EXPECT_EQ(supervisor.ManagedSession(kSharedTarget).status(), supervisor.status());
}

TEST_F(SupervisorTest, AnInitOperationThatForgetsAVariableIsNamed) {
  Model model;
  SupervisorOptions options = Options();
  options.init_op = model.w.initializer;
  Supervisor supervisor(model.root, options);
  EXPECT_STATUS(supervisor.ManagedSession(kSharedTarget).status(), StatusCode::kFailedPrecondition,
                "variables not initialized: b, global_step");
}

TEST_F(SupervisorTest, LocalVariablesAreInitialisedByEveryTask) {
  Model chief_model;
  MakeVariable(chief_model.root.WithName("local"), Const(chief_model.root, 5.f), {.local = true});
  Supervisor chief(chief_model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, chief.ManagedSession(kSharedTarget));
  const auto local = session->Run({}, {"local/Read/ReadVariableOp"});
  ASSERT_OK(local.status());
  EXPECT_EQ((*local)[0].scalar<float>(), 5);
  // They are not saved.
  ASSERT_OK_AND_ASSIGN(const std::string path,
                       chief.saver()->Save(session.get(), chief.save_path(), 0));
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(FileSystem::Posix(), path));
  EXPECT_FALSE(reader->Contains("local"));
  EXPECT_TRUE(reader->Contains("w"));
}

// --- Directories that cannot be written ----------------------------------------------------------

TEST_F(SupervisorTest, ADirectoryThatCannotBeWrittenIsRefusedBeforeTraining) {
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK(fs->RecursivelyCreateDirectory(logdir_));
  const std::string file = logdir_ + "/file";
  ASSERT_OK(WriteFileAtomically(fs, file, "not a directory"));
  for (const std::string& logdir : {file, file + "/run"}) {
    Model model;
    SupervisorOptions options = Options();
    options.logdir = logdir;
    Supervisor supervisor(model.root, options);
    EXPECT_FALSE(supervisor.status().ok());
    EXPECT_TRUE(absl::StrContains(supervisor.status().message(),
                                  absl::StrCat("Supervisor: logdir '", logdir,
                                               "' must be a directory that can be written, got ")))
        << supervisor.status();
    EXPECT_EQ(supervisor.ManagedSession(kSharedTarget).status(), supervisor.status());
    // Only the chief needs the directory.
    options.is_chief = false;
    EXPECT_OK(Supervisor(Model().root, options).status());
  }
  EXPECT_EQ(cluster_.sessions_made(), 0);
  ASSERT_OK_AND_ASSIGN(const auto left, fs->GetChildren(logdir_));
  EXPECT_EQ(left, std::vector<std::string>{"file"});
}

TEST_F(SupervisorTest, AChiefThatFindsNoSpaceForItsRunMayBeStartedAgain) {
  class FullFileSystem : public FaultyFileSystem {
   public:
    FullFileSystem(const std::string& root, std::string name)
        : FaultyFileSystem(FileSystem::Posix(), root), name_(std::move(name)) {}
    StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
      if (absl::StrContains(path, name_)) {
        return absl::ResourceExhaustedError("No space left on device");
      }
      return FaultyFileSystem::NewExclusiveFile(path);
    }

   private:
    const std::string name_;
  };
  for (const char* name : {".writable_", "run_owner-"}) {
    FullFileSystem full(logdir_, name);
    Model model;
    SupervisorOptions options = Options();
    options.file_system = &full;
    Supervisor supervisor(model.root, options);
    const Status status = supervisor.ManagedSession(kSharedTarget).status();
    EXPECT_STATUS(status, StatusCode::kResourceExhausted, "No space left on device");
    EXPECT_EQ(ExitCode(status), kExitRetryable);
  }
}

// --- Other tasks ---------------------------------------------------------------------------------

TEST_F(SupervisorTest, WorkerWaitsUntilTheChiefHasInitialised) {
  FakeClock clock;
  Model worker_model;
  SupervisorOptions options = Options();
  options.is_chief = false;
  options.clock = &clock;
  options.recovery_wait = absl::Seconds(1);
  options.max_wait = absl::Seconds(100);
  Supervisor worker(worker_model.root, options);
  Notification ready;
  std::thread thread([&] {
    const auto session = worker.ManagedSession(kSharedTarget);
    EXPECT_OK(session.status());
    ready.Notify();
  });
  clock.AwaitWaiters(1);
  EXPECT_FALSE(ready.HasBeenNotified());
  Model model;
  Supervisor chief(model.root, Options());
  EXPECT_OK(chief.ManagedSession(kSharedTarget).status());
  clock.Advance(absl::Seconds(1));
  ready.Wait();
  thread.join();
  EXPECT_EQ(worker.start(), Supervisor::Start::kWaited);
}

TEST_F(SupervisorTest, WorkerGivesUpAfterMaxWaitAndNamesWhatIsMissing) {
  Model model;
  SupervisorOptions options = Options();
  options.is_chief = false;
  options.recovery_wait = absl::Seconds(1);
  options.max_wait = absl::Milliseconds(1);
  Supervisor worker(model.root, options);
  EXPECT_STATUS(worker.ManagedSession(kSharedTarget).status(), StatusCode::kDeadlineExceeded,
                "variables not initialized: w, b, global_step");
}

TEST_F(SupervisorTest, AStopEndsTheWait) {
  FakeClock clock;
  Model model;
  SupervisorOptions options = Options();
  options.is_chief = false;
  options.clock = &clock;
  Supervisor worker(model.root, options);
  std::thread thread([&] {
    EXPECT_STATUS(worker.ManagedSession(kSharedTarget).status(), StatusCode::kCancelled,
                  "a stop has been requested");
  });
  clock.AwaitWaiters(1);
  worker.RequestStop();
  thread.join();
  EXPECT_TRUE(worker.ShouldStop());
  EXPECT_OK(worker.Stop());
}

TEST_F(SupervisorTest, ASessionThatCannotBeMadeYetIsTriedAgain) {
  cluster_.FailCreations(
      {absl::UnavailableError("ps is not there"), absl::AbortedError("ps restarted")});
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_OK(supervisor.ManagedSession(kSharedTarget).status());
  EXPECT_EQ(cluster_.sessions_made(), 1);
  cluster_.FailCreations({absl::InvalidArgumentError("bad target")});
  EXPECT_STATUS(supervisor.ManagedSession(kSharedTarget).status(), StatusCode::kInvalidArgument,
                "bad target");
}

}  // namespace
}  // namespace millrace

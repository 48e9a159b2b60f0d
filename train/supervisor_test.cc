// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <signal.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <stdexcept>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/queue.h"
#include "ops/state/state.h"
#include "proto/saver.pb.h"
#include "run/run_file.h"
#include "saver/tensor_bundle.h"
#include "train/testing/shared_variables.h"

// covers: training: `Stop` saves the last step, also where a step counter does not count; not a
//   lost or non-finite state; a directory that cannot be written is refused before training
// covers: training: a missing last checkpoint is the result of `Stop`; storage that hangs blocks no
//   `Stop`
// covers: training: the older of two chiefs saves no more and names the owner; a run's end holds
//   until a chief continues
// covers: training: one Saver for all threads of a chief, with every option of a save; a failure
//   hides no later success, and a success no later failure
// covers: training: a job without a logdir reports what it lacks; a named one ends for all tasks
// covers: training: the count of recoveries restarts after progress; only the lost step runs again,
//   with its batch
// covers: training: variables that another client resets are restored from the last checkpoint and
//   every task trains on
// covers: training: files that dead saves of a run left are deleted and nothing else, also where
//   all checkpoints are kept
// covers: training: after SIGTERM or Ctrl-C no step starts, the last checkpoint is written and the
//   session closed; a step, wait or restore that hangs ends within a cluster manager's grace
//   period; an unwritten checkpoint changes the exit code
// covers: article 2-9: Supervisor: initialises or restores, others wait; services
// covers: article 2-10: each service can be off
// covers: article 2-12: a managed session, `ShouldStop`, a loop to a step; the end of data is a
//   clean end

namespace millrace {
namespace {

using absl::StatusCode;

// A graph with w = 1, b = 2, a step counter and operations that change them.
struct Model {
  Model() {
    w = MakeVariable(root.WithName("w"), Const(root, 1.f));
    b = MakeVariable(root.WithName("b"), Const(root, 2.f));
    step = GlobalStep(root);
    count = AssignAddVariableOp(root.WithName("count"), step.handle, Const(root, int64_t{1}));
    grow = AssignAddVariableOp(root.WithName("grow"), w.handle, Const(root, 10.f));
  }
  Scope root;
  Variable w, b, step;
  Operation count, grow;
};

class SupervisorTest : public ::testing::Test {
 protected:
  SupervisorTest()
      : logdir_(JoinPath(::testing::TempDir(), absl::StrCat("supervisor_", RandomHexName()))) {
    RestartParameterServers();
  }
  ~SupervisorTest() override { FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError(); }

  // Nothing is initialised any more.
  void RestartParameterServers() { ASSERT_OK(cluster_.Restart()); }
  std::shared_ptr<Session> Variables() { return cluster_.variables(); }
  SupervisorOptions Options() {
    SupervisorOptions options;
    options.logdir = logdir_;
    options.save_model_period = absl::ZeroDuration();
    options.recovery_wait = absl::Milliseconds(1);
    options.max_wait = absl::Seconds(60);
    return options;
  }
  static float Float(Session* session, Output output) {
    const auto out = session->Run({}, {output});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<float>() : -1;
  }
  static int64_t Step(Session* session, const Model& model) {
    const auto out = session->Run({}, {model.step.value});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<int64_t>() : -1;
  }
  // A checkpoint of w = 11, b = 2, step 1.
  std::string SaveOne() {
    Model model;
    Supervisor supervisor(model.root, Options());
    const auto session = supervisor.ManagedSession(kSharedTarget);
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Run({}, {}, {model.count, model.grow}).status());
    const auto path = supervisor.saver()->Save(session->get(), supervisor.save_path(), 1);
    EXPECT_OK(path.status());
    EXPECT_OK(supervisor.Stop());
    return path.ok() ? *path : "";
  }

  const std::string logdir_;
  SharedVariables cluster_;
};

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
  // What an earlier process saved is this one's to delete later.
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
    // One server of two has kept its variable.
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

TEST_F(SupervisorTest, AnInitOperationOfTheCallerBeginsAnewAndIsNotSaidToAdopt) {
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

TEST_F(SupervisorTest, ADamagedOnlyCheckpointIsAnErrorAndNotANewBeginning) {
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

TEST_F(SupervisorTest, ASessionThatIsAskedForAfterAStopLeavesTheFormerOneToBeClosed) {
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
  options.save_model_period = absl::Seconds(600);  // as it is by default
  FakeClock clock;
  options.clock = &clock;
  Model model;
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kSharedTarget));
  clock.AwaitWaiters(1);  // the first checkpoint is there: it has none of the steps
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
  // Whoever starts again does not look there: Stop writes one of its own.
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(fs, logdir_), logdir_ + "/model.ckpt-0");
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
    // Somebody else's business.
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

// --- The save service ----------------------------------------------------------------------------

// A Saver that tells each of its saves to the test.
class WatchedSaver : public Saver {
 public:
  explicit WatchedSaver(std::unique_ptr<Saver> saver) : saver_(std::move(saver)) {}
  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> step) override {
    Status error;
    {
      MutexLock lock(&mu_);
      error = error_;
      if (error.ok() && !errors_.empty()) {
        error = errors_.front();
        errors_.pop_front();
      }
    }
    StatusOr<std::string> path =
        error.ok() ? saver_->Save(session, prefix, step) : StatusOr<std::string>(error);
    MutexLock lock(&mu_);
    paths_.push_back(path.ok() ? *path : "");
    changed_.SignalAll();
    return path;
  }
  Status Restore(Session* session, const std::string& path) override {
    return saver_->Restore(session, path);
  }
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
    return saver_->RecoverLastCheckpoints(paths);
  }
  std::vector<std::string> last_checkpoints() const override { return saver_->last_checkpoints(); }
  const tensorflow::SaverDef& def() const override { return saver_->def(); }

  // All saves, until it is OK.
  void FailWith(const Status& error) {
    MutexLock lock(&mu_);
    error_ = error;
  }
  // One after the other; OK entries save.
  void FailInTurn(std::deque<Status> errors) {
    MutexLock lock(&mu_);
    errors_ = std::move(errors);
  }
  std::string AwaitSave(size_t number) {
    MutexLock lock(&mu_);
    while (paths_.size() < number) changed_.Wait(&mu_);
    return paths_[number - 1];
  }

 private:
  const std::unique_ptr<Saver> saver_;
  Mutex mu_;
  CondVar changed_;
  Status error_ ABSL_GUARDED_BY(mu_);
  std::deque<Status> errors_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> paths_ ABSL_GUARDED_BY(mu_);
};

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

TEST_F(SupervisorTest, OnlyASaveThatNoTryCanMendStopsTheTraining) {
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

// Whatever files can fail with: somebody may see to it.
TEST_F(SupervisorTest, AFullDiskEndsNoTrainingAndTheNextSaveAfterItIsMade) {
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

TEST_F(SupervisorTest, WithoutALastCheckpointStopSaysSoAndTheCodeIsThatOfAnotherTry) {
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
    // The run is to go on: parameter servers have what was trained.
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

TEST_F(SupervisorTest, TheLastFailureOfTheServiceIsThatOfStopUntilASaveSucceeds) {
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
    // The program sees to the last checkpoint itself.
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

// Real files, but whoever makes a meta graph waits until the gate is open.
class HungFileSystem : public FaultyFileSystem {
 public:
  explicit HungFileSystem(const std::string& root) : FaultyFileSystem(FileSystem::Posix(), root) {}
  StatusOr<std::unique_ptr<WritableFile>> NewExclusiveFile(const std::string& path) override {
    if (absl::StrContains(path, ".meta")) {
      if (!hangs.HasBeenNotified()) hangs.Notify();
      open.Wait();
    }
    return FaultyFileSystem::NewExclusiveFile(path);
  }
  Notification hangs, open;
};

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
    // Nobody is told that training is over without its last checkpoint.
    EXPECT_TRUE(cluster_.ends().empty());
    EXPECT_FALSE(storage.FileExists(RunEndFilePath(logdir_)));
    storage.open.Notify();
    cluster_.AwaitDestroyed(sessions + 1);
  }
}

TEST_F(SupervisorTest, AStopDoesNotWaitForeverForASave) {
  // A Saver that blocks until its session is closed, as one does whose server is gone.
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
  // There is no last checkpoint, which nobody may take for one.
  EXPECT_STATUS(supervisor.Stop(), StatusCode::kDeadlineExceeded,
                "last checkpoint not written: the one before it did not end within 1ms");
}

// What tries it again would be nobody's to end, and keep the session for ever.
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

// --- Signals -------------------------------------------------------------------------------------

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
      EXPECT_TRUE(supervisor.ShouldStop());  // not one step more
      EXPECT_EQ(supervisor.signal(), signal);
      const Status stopped = supervisor.Stop();
      const std::string name = signal == SIGTERM ? "SIGTERM" : "SIGINT";
      EXPECT_EQ(stopped.message(),
                absl::StrCat("Supervisor: ended by ", name,
                             is_chief ? "; saved " + logdir_ + "/model.ckpt-1" : ""));
      EXPECT_EQ(ExitCode(stopped), 128 + signal);
      EXPECT_EQ(cluster_.sessions_closed(), closed + 1);
      // The job is to go on.
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

// Somebody restores while the disk hangs, or a server does.
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

// Nobody can end a step that waits for what does not come but who closes its session.
TEST_F(SupervisorTest, AStepThatHangsIsEndedAndWhatWasTrainedIsSavedBesideIt) {
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
    // Cluster managers kill after 30 s: the step has a third of that, the checkpoint another one.
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
  EXPECT_OK(status);  // Stop says it
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
  const Status stopped = supervisor.Stop();
  EXPECT_STATUS(stopped, StatusCode::kCancelled, "Supervisor: ended by SIGTERM");
  EXPECT_EQ(ExitCode(stopped), 128 + SIGTERM);
}

TEST_F(SupervisorTest, AfterASignalStorageThatHangsIsNotWaitedForUntilSomebodyKills) {
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
    // It looks for a while whether others still count.
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

// Who asks this task to end asks the parameter servers, too.
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

// What others count while the last checkpoint is written belongs into it.
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

// What cannot be added to a last checkpoint that was written does not take it back.
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

// --- Recovery ------------------------------------------------------------------------------------

TEST_F(SupervisorTest, ALostParameterServerMeansANewSessionFromTheCheckpoint) {
  Model model;
  Supervisor supervisor(model.root, Options());
  std::vector<float> began_with;
  const Status status =
      RunWithRecovery(&supervisor, kSharedTarget, 5, [&](Session* session) -> Status {
        began_with.push_back(Float(session, model.w.value));
        if (began_with.size() == 3) return absl::OkStatus();
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.grow}).status());
        MR_RETURN_IF_ERROR(supervisor.saver()->Save(session, supervisor.save_path(), 1).status());
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.grow}).status());  // lost
        RestartParameterServers();
        return began_with.size() == 1 ? absl::UnavailableError("ps is gone")
                                      : absl::AbortedError("ps restarted");
      });
  EXPECT_OK(status);
  EXPECT_EQ(began_with, (std::vector<float>{1, 11, 21}));
  EXPECT_EQ(cluster_.sessions_made(), 3);
}

TEST_F(SupervisorTest, RecoveryGivesUpAfterItsLastSession) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_STATUS(RunWithRecovery(&supervisor, kSharedTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::UnavailableError("ps is gone");
                                }),
                StatusCode::kUnavailable, "ps is gone; gave up after 2 new sessions");
  EXPECT_EQ(runs, 3);
}

TEST_F(SupervisorTest, RecoveriesAreCountedAnewAfterProgress) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_OK(RunWithRecovery(&supervisor, kSharedTarget, 2, [&](Session* session) -> Status {
    if (++runs == 8) return absl::OkStatus();
    // Every other session gets on.
    if (runs % 2 == 0) MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
    return absl::UnavailableError("ps is gone");
  }));
  EXPECT_EQ(runs, 8);
  EXPECT_STATUS(RunWithRecovery(&supervisor, kSharedTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::UnavailableError("ps is gone");
                                }),
                StatusCode::kUnavailable, "gave up after 2 new sessions");
  EXPECT_EQ(runs, 11);
}

TEST_F(SupervisorTest, OnlyTheStepThatWasLostIsRunAgain) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int sessions = 0, tries = 0;
  std::vector<int> steps;
  int next = 0;
  EXPECT_OK(RunStepsWithRecovery(
      &supervisor, kSharedTarget, 5,
      [&](Session*) {
        ++sessions;
        return absl::OkStatus();
      },
      [&](Session* session) -> StatusOr<bool> {
        if (++tries == 3) return absl::AbortedError("ps restarted");
        MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
        steps.push_back(next++);
        return next < 5;
      }));
  EXPECT_EQ(sessions, 2);
  EXPECT_EQ(tries, 6);
  EXPECT_EQ(steps, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST_F(SupervisorTest, VariablesThatWereResetAreRestoredAndTrainingGoesOn) {
  const std::string path = SaveOne();
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_OK(RunWithRecovery(&supervisor, kSharedTarget, 5, [&](Session* session) -> Status {
    if (++runs == 1) {
      RestartParameterServers();
      MR_ASSIGN_OR_RETURN(const auto other, NewSession({.target = kSharedTarget}));
      MR_RETURN_IF_ERROR(other->Extend(model.root));
      return other->Run({}, {}, {model.grow}).status();
    }
    EXPECT_EQ(Float(session, model.w.value), 11);
    return absl::OkStatus();
  }));
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(supervisor.restored_checkpoint(), path);
}

// --- Whose run, and its end ----------------------------------------------------------------------

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
    // The next session is of the same one.
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

// Storage that hangs stands for a process that is stopped in the middle of a save.
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

// The newer one sweeps what dead saves have left, and cannot know who is only stopped.
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
  EXPECT_EQ(ExitCode(stopped), kExitError);  // not to be started again
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

  // A chief goes on with the same run.
  Model more;
  Supervisor chief(more.root, Options());
  ASSERT_OK(chief.ManagedSession(kSharedTarget).status());
  EXPECT_EQ(chief.start(), Supervisor::Start::kRestored);
  EXPECT_EQ(cluster_.runs().front().id, cluster_.runs().back().id);
  EXPECT_EQ(cluster_.runs().back().epoch, 2);
  ASSERT_OK_AND_ASSIGN(const auto none, ReadRunEnd(FileSystem::Posix(), logdir_));
  EXPECT_FALSE(none.has_value());
}

TEST_F(SupervisorTest, WhatIsNoGoalIsNoEnd) {
  const struct {
    const char* what;
    std::function<void(Supervisor*)> stop;
  } kCases[] = {
      {"nobody asked", [](Supervisor* s) { EXPECT_OK(s->Stop()); }},
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

// A save that died leaves the directory of its parts.
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

TEST_F(SupervisorTest, OtherErrorsAreNotTriedAgain) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_STATUS(RunWithRecovery(&supervisor, kSharedTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::InvalidArgumentError("NaN");
                                }),
                StatusCode::kInvalidArgument, "NaN");
  EXPECT_EQ(runs, 1);
}

TEST(CheckLossIsFiniteTest, LargeLossesAreNoErrorEvenWhenTheirSumIs) {
  EXPECT_OK(CheckLossIsFinite(TensorOf<double>({2}, {1.7e308, 1.7e308}), 3));
  EXPECT_OK(CheckLossIsFinite(TensorOf<float>({0}, {}), 3));
  EXPECT_STATUS(CheckLossIsFinite(TensorOf<float>({}, {std::numeric_limits<float>::infinity()}), 3),
                StatusCode::kInvalidArgument, "got inf at global step 3");
}

}  // namespace
}  // namespace millrace

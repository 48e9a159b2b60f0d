// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <cmath>
#include <deque>
#include <limits>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/saver.pb.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

using absl::StatusCode;

// "cluster://": sessions that share one session's variables, as sessions of a cluster share those
// of the parameter servers.
struct Cluster {
  Mutex mu;
  std::shared_ptr<Session> variables ABSL_GUARDED_BY(mu);
  // What the next sessions fail with at creation; OK entries succeed.
  std::deque<Status> creations ABSL_GUARDED_BY(mu);
  int sessions_made ABSL_GUARDED_BY(mu) = 0;
  int sessions_closed ABSL_GUARDED_BY(mu) = 0;
  CondVar closed;
};
Cluster* cluster = nullptr;

// Has a graph of its own: its nodes carry the session's number inside, the variables' shared names
// do not.
class ClusterSession : public Session {
 public:
  ClusterSession(std::shared_ptr<Session> variables, int number)
      : variables_(std::move(variables)), prefix_(absl::StrCat("session_", number, "/")) {}

  Status DoExtend(const tensorflow::GraphDef& graph) override {
    tensorflow::GraphDef mine = graph;
    for (tensorflow::NodeDef& node : *mine.mutable_node()) {
      node.set_name(Mine(node.name()));
      for (std::string& input : *node.mutable_input()) input = Mine(input);
      const auto group = node.mutable_attr()->find("_class");
      if (group == node.mutable_attr()->end()) continue;
      for (std::string& name : *group->second.mutable_list()->mutable_s()) {
        name = absl::StrCat("loc:@", Mine(name.substr(5)));
      }
    }
    return variables_->Extend(mine);
  }
  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                      absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName> targets,
                                      tensorflow::RunMetadata* metadata) override {
    std::vector<Feed> my_feeds;
    for (const Feed& feed : feeds) my_feeds.emplace_back(Mine(feed.name.name()), feed.value);
    std::vector<FetchName> my_fetches, my_targets;
    for (const FetchName& name : fetches) my_fetches.emplace_back(Mine(name.name()));
    for (const FetchName& name : targets) my_targets.emplace_back(Mine(name.name()));
    return variables_->Run(options, my_feeds, my_fetches, my_targets, metadata);
  }
  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature&) override {
    return absl::UnimplementedError("not used by a Supervisor");
  }
  Status Close() override {
    MutexLock lock(&cluster->mu);
    ++cluster->sessions_closed;
    cluster->closed.SignalAll();
    return absl::OkStatus();
  }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return variables_->ListDevices();
  }

 protected:
  void AddSourceLines(std::vector<std::pair<std::string, std::string>>) override {}

 private:
  std::string Mine(absl::string_view name) const {
    const bool control = absl::ConsumePrefix(&name, "^");
    return absl::StrCat(control ? "^" : "", prefix_, name);
  }

  const std::shared_ptr<Session> variables_;
  const std::string prefix_;
};

const SessionFactoryRegistration registration(
    "cluster://", [](const SessionOptions&) -> StatusOr<std::unique_ptr<Session>> {
      MutexLock lock(&cluster->mu);
      Status status;
      if (!cluster->creations.empty()) {
        status = cluster->creations.front();
        cluster->creations.pop_front();
      }
      MR_RETURN_IF_ERROR(status);
      ++cluster->sessions_made;
      return std::make_unique<ClusterSession>(cluster->variables, cluster->sessions_made);
    });

constexpr char kTarget[] = "cluster://";

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
    cluster = &cluster_;
    RestartParameterServers();
  }
  ~SupervisorTest() override {
    FileSystem::Posix()->RecursivelyDelete(logdir_).IgnoreError();
    cluster = nullptr;
  }

  // Nothing is initialised any more.
  void RestartParameterServers() {
    StatusOr<std::unique_ptr<Session>> session = NewSession();
    ASSERT_OK(session.status());
    MutexLock lock(&cluster_.mu);
    cluster_.variables = *std::move(session);
  }
  std::shared_ptr<Session> Variables() {
    MutexLock lock(&cluster_.mu);
    return cluster_.variables;
  }
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
  int SessionsMade() {
    MutexLock lock(&cluster_.mu);
    return cluster_.sessions_made;
  }

  // A checkpoint of w = 11, b = 2, step 1.
  std::string SaveOne() {
    Model model;
    Supervisor supervisor(model.root, Options());
    const auto session = supervisor.ManagedSession(kTarget);
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Run({}, {}, {model.count, model.grow}).status());
    const auto path = supervisor.saver()->Save(session->get(), supervisor.save_path(), 1);
    EXPECT_OK(path.status());
    EXPECT_OK(supervisor.Stop());
    return path.ok() ? *path : "";
  }

  const std::string logdir_;
  Cluster cluster_;
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
  EXPECT_EQ(supervisor.start(), Supervisor::Start::kRestored);
  EXPECT_EQ(supervisor.restored_checkpoint(), path);
  EXPECT_EQ(Float(session.get(), model.w.value), 11);
  EXPECT_EQ(Step(session.get(), model), 1);
  // What an earlier process saved is this one's to delete later.
  EXPECT_EQ(supervisor.saver()->last_checkpoints(), std::vector<std::string>{path});
}

TEST_F(SupervisorTest, ChiefAdoptsWhatTheServersHoldInsteadOfRestoring) {
  SaveOne();
  Model model;
  {
    Supervisor before(model.root, Options());
    ASSERT_OK_AND_ASSIGN(const auto session, before.ManagedSession(kTarget));
    ASSERT_OK(session->Run({}, {}, {model.grow, model.count}).status());
  }
  Model again;
  Supervisor supervisor(again.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  const auto session = supervisor.ManagedSession(kTarget);
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
  EXPECT_STATUS(supervisor.ManagedSession(kTarget).status(), StatusCode::kDataLoss,
                BundleIndexPath(path));
}

TEST_F(SupervisorTest, WithoutDirectoryNothingIsSavedOrRestored) {
  Model model;
  SupervisorOptions options = Options();
  options.logdir = "";
  Supervisor supervisor(model.root, options);
  EXPECT_EQ(supervisor.saver(), nullptr);
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
}

TEST_F(SupervisorTest, AnErrorOfTheScopeShowsInManagedSession) {
  Model model;
  MakeVariable(model.root.WithName("bad"), Placeholder(model.root, DT_FLOAT, {-1}));
  ASSERT_FALSE(model.root.ok());
  Supervisor supervisor(model.root, Options());
  EXPECT_FALSE(supervisor.status().ok());
  EXPECT_EQ(supervisor.ManagedSession(kTarget).status(), supervisor.status());
}

TEST_F(SupervisorTest, AnInitOperationThatForgetsAVariableIsNamed) {
  Model model;
  SupervisorOptions options = Options();
  options.init_op = model.w.initializer;
  Supervisor supervisor(model.root, options);
  EXPECT_STATUS(supervisor.ManagedSession(kTarget).status(), StatusCode::kFailedPrecondition,
                "variables not initialized: b, global_step");
}

TEST_F(SupervisorTest, LocalVariablesAreInitialisedByEveryTask) {
  Model chief_model;
  MakeVariable(chief_model.root.WithName("local"), Const(chief_model.root, 5.f), {.local = true});
  Supervisor chief(chief_model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, chief.ManagedSession(kTarget));
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
    const auto session = worker.ManagedSession(kTarget);
    EXPECT_OK(session.status());
    ready.Notify();
  });
  clock.AwaitWaiters(1);
  EXPECT_FALSE(ready.HasBeenNotified());
  Model model;
  Supervisor chief(model.root, Options());
  EXPECT_OK(chief.ManagedSession(kTarget).status());
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
  EXPECT_STATUS(worker.ManagedSession(kTarget).status(), StatusCode::kDeadlineExceeded,
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
    EXPECT_STATUS(worker.ManagedSession(kTarget).status(), StatusCode::kCancelled,
                  "a stop has been requested");
  });
  clock.AwaitWaiters(1);
  worker.RequestStop();
  thread.join();
  EXPECT_TRUE(worker.ShouldStop());
  EXPECT_OK(worker.Stop());
}

TEST_F(SupervisorTest, ASessionThatCannotBeMadeYetIsTriedAgain) {
  {
    MutexLock lock(&cluster_.mu);
    cluster_.creations = {absl::UnavailableError("ps is not there"),
                          absl::AbortedError("ps restarted")};
  }
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
  EXPECT_EQ(SessionsMade(), 1);
  {
    MutexLock lock(&cluster_.mu);
    cluster_.creations = {absl::InvalidArgumentError("bad target")};
  }
  EXPECT_STATUS(supervisor.ManagedSession(kTarget).status(), StatusCode::kInvalidArgument,
                "bad target");
}

// --- Stopping ------------------------------------------------------------------------------------

TEST_F(SupervisorTest, StopClosesTheSessionAndTellsTheFirstError) {
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
  EXPECT_FALSE(supervisor.ShouldStop());
  supervisor.RequestStop(absl::DataLossError("first"));
  supervisor.RequestStop(absl::InternalError("second"));
  EXPECT_TRUE(supervisor.ShouldStop());
  EXPECT_EQ(supervisor.Stop(), absl::DataLossError("first"));
  EXPECT_EQ(supervisor.Stop(), absl::DataLossError("first"));
  MutexLock lock(&cluster_.mu);
  EXPECT_EQ(cluster_.sessions_closed, 1);
}

TEST_F(SupervisorTest, ASessionThatIsAskedForAfterAStopLeavesTheFormerOneToBeClosed) {
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
  supervisor.RequestStop(absl::DataLossError("bad input"));
  EXPECT_EQ(supervisor.ManagedSession(kTarget).status(), absl::DataLossError("bad input"));
  EXPECT_EQ(supervisor.Stop(), absl::DataLossError("bad input"));
  MutexLock lock(&cluster_.mu);
  EXPECT_EQ(cluster_.sessions_closed, 1);
}

TEST_F(SupervisorTest, AStopWhileTheSessionIsPreparedIsNotOvertakenByItsServices) {
  Model model;
  SupervisorOptions options = Options();
  options.save_model_period = absl::Seconds(600);
  Supervisor* stopped = nullptr;
  options.init_fn = [&](Session*) { return stopped->Stop(); };
  Supervisor supervisor(model.root, options);
  stopped = &supervisor;
  EXPECT_STATUS(supervisor.ManagedSession(kTarget).status(), StatusCode::kCancelled,
                "a stop has been requested");
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), std::nullopt);
  MutexLock lock(&cluster_.mu);
  EXPECT_EQ(cluster_.sessions_closed, 1);
}

TEST_F(SupervisorTest, SeveralThreadsMayStopAtOnce) {
  SupervisorOptions options = Options();
  options.save_model_period = absl::Seconds(600);
  for (int i = 0; i < 20; ++i) {
    Model model;
    Supervisor supervisor(model.root, options);
    ASSERT_OK(supervisor.ManagedSession(kTarget).status());
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
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
  supervisor.RequestStop(absl::OutOfRangeError("no more"));
  EXPECT_OK(supervisor.Stop());
}

// --- The last checkpoint -------------------------------------------------------------------------

TEST_F(SupervisorTest, StopSavesWhatWasTrainedAndSaysWhere) {
  SupervisorOptions options = Options();
  options.save_model_period = absl::Seconds(600);  // as it is by default
  Model model;
  Supervisor supervisor(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  ASSERT_OK(supervisor.saver()->Save(session.get(), supervisor.save_path(), 1).status());
  ::testing::internal::CaptureStderr();
  EXPECT_OK(supervisor.Stop());
  EXPECT_FALSE(absl::StrContains(::testing::internal::GetCapturedStderr(), "Supervisor: saved"));
}

TEST_F(SupervisorTest, ACounterThatDoesNotCountDoesNotHideWhatWasTrained) {
  Model model;
  Supervisor supervisor(model.root, Options());
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
    ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
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
    ASSERT_OK_AND_ASSIGN(const auto session, chief.ManagedSession(kTarget));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    Model worker_model;
    SupervisorOptions options = Options();
    options.is_chief = false;
    Supervisor worker(worker_model.root, options);
    EXPECT_OK(worker.ManagedSession(kTarget).status());
    EXPECT_OK(worker.Stop());
  }
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), std::nullopt);
}

TEST_F(SupervisorTest, ALastCheckpointThatCannotBeWrittenIsAnError) {
  Model model;
  Supervisor supervisor(model.root, Options());
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
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
    EXPECT_EQ(supervisor.ManagedSession(kTarget).status(), supervisor.status());
    // Somebody else's business.
    options.is_chief = false;
    EXPECT_OK(Supervisor(Model().root, options).status());
  }
  EXPECT_EQ(SessionsMade(), 0);
  ASSERT_OK_AND_ASSIGN(const auto left, fs->GetChildren(logdir_));
  EXPECT_EQ(left, std::vector<std::string>{"file"});
}

// --- The save service ----------------------------------------------------------------------------

// A Saver that tells each of its saves to the test.
class WatchedSaver : public Saver {
 public:
  explicit WatchedSaver(std::unique_ptr<Saver> saver) : saver_(std::move(saver)) {}
  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> step) override {
    StatusOr<std::string> path = error_.ok() ? saver_->Save(session, prefix, step) : error_;
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

  void FailWith(const Status& error) { error_ = error; }  // before it is used
  std::string AwaitSave(size_t number) {
    MutexLock lock(&mu_);
    while (paths_.size() < number) changed_.Wait(&mu_);
    return paths_[number - 1];
  }

 private:
  const std::unique_ptr<Saver> saver_;
  Status error_;
  Mutex mu_;
  CondVar changed_;
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
  ASSERT_OK_AND_ASSIGN(const auto session, supervisor.ManagedSession(kTarget));
  EXPECT_EQ(saver.AwaitSave(1), logdir_ + "/model.ckpt-0");
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(600));
  EXPECT_EQ(saver.AwaitSave(2), logdir_ + "/model.ckpt-1");
  EXPECT_OK(supervisor.Stop());
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), logdir_), logdir_ + "/model.ckpt-1");
  EXPECT_TRUE(FileSystem::Posix()->FileExists(logdir_ + "/model.ckpt-1.meta"));
}

TEST_F(SupervisorTest, ASaveThatFailsStopsTheTraining) {
  Model model;
  ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
  WatchedSaver saver(std::move(real));
  saver.FailWith(absl::ResourceExhaustedError("the disk is full"));
  SupervisorOptions options = Options();
  options.saver = &saver;
  options.save_model_period = absl::Seconds(600);
  Supervisor supervisor(model.root, options);
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
  saver.AwaitSave(1);
  EXPECT_STATUS(supervisor.Stop(), StatusCode::kResourceExhausted,
                "checkpoint not written: the disk is full");
}

TEST_F(SupervisorTest, AStopDoesNotWaitForeverForASave) {
  // A Saver that blocks until its session is closed, as one does whose server is gone.
  class BlockedSaver : public Saver {
   public:
    StatusOr<std::string> Save(Session*, const std::string&, std::optional<int64_t>) override {
      saving.Notify();
      MutexLock lock(&cluster->mu);
      while (cluster->sessions_closed == 0) cluster->closed.Wait(&cluster->mu);
      return absl::CancelledError("Session has been closed.");
    }
    Status Restore(Session*, const std::string&) override { return absl::OkStatus(); }
    Status RecoverLastCheckpoints(const std::vector<std::string>&) override {
      return absl::OkStatus();
    }
    std::vector<std::string> last_checkpoints() const override { return {}; }
    const tensorflow::SaverDef& def() const override { return def_; }
    Notification saving;

   private:
    tensorflow::SaverDef def_;
  };
  Model model;
  BlockedSaver saver;
  SupervisorOptions options = Options();
  options.saver = &saver;
  options.save_model_period = absl::Seconds(600);
  options.stop_grace = absl::Milliseconds(1);
  Supervisor supervisor(model.root, options);
  EXPECT_OK(supervisor.ManagedSession(kTarget).status());
  saver.saving.Wait();
  // There is no last checkpoint, which nobody may take for one.
  EXPECT_STATUS(supervisor.Stop(), StatusCode::kDeadlineExceeded,
                "last checkpoint not written: the one before it did not end within 1ms");
}

// --- Recovery ------------------------------------------------------------------------------------

TEST_F(SupervisorTest, ALostParameterServerMeansANewSessionFromTheCheckpoint) {
  Model model;
  Supervisor supervisor(model.root, Options());
  std::vector<float> began_with;
  const Status status = RunWithRecovery(&supervisor, kTarget, 5, [&](Session* session) -> Status {
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
  EXPECT_EQ(SessionsMade(), 3);
}

TEST_F(SupervisorTest, RecoveryGivesUpAfterItsLastSession) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_STATUS(RunWithRecovery(&supervisor, kTarget, 2,
                                [&](Session*) {
                                  ++runs;
                                  return absl::UnavailableError("ps is gone");
                                }),
                StatusCode::kUnavailable, "ps is gone; gave up after 2 new sessions");
  EXPECT_EQ(runs, 3);
}

TEST_F(SupervisorTest, OtherErrorsAreNotTriedAgain) {
  Model model;
  Supervisor supervisor(model.root, Options());
  int runs = 0;
  EXPECT_STATUS(RunWithRecovery(&supervisor, kTarget, 2,
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

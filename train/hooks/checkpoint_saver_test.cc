// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/checkpoint_saver.h"

#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/import_export.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "proto/saver.pb.h"
#include "saver/saver.h"
#include "train/hooks/stop_at_step.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

// covers: training: the checkpoint hook saves once per step, never a state just restored, and again
//   after a full disk
// covers: scenario F8: checkpoints: how often, how many, continuing

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

// Notes what it was asked to save; fails as it is told.
class FakeSaver : public Saver {
 public:
  explicit FakeSaver(FakeClock* clock) : clock_(clock) {}
  StatusOr<std::string> Save(Session*, const std::string& prefix,
                             std::optional<int64_t> step) override {
    if (const std::shared_ptr<Notification> mine = gate; mine != nullptr) {
      reached.Notify();
      mine->Wait();
    }
    steps.push_back(*step);
    clock_->Advance(took);
    Status status;
    if (!failures.empty()) {
      status = failures.front();
      failures.pop_front();
    }
    MutexLock lock(&mu_);
    ++ended_;
    changed_.SignalAll();
    if (!status.ok()) return status;
    return absl::StrCat(prefix, "-", *step);
  }
  Status Restore(Session*, const std::string&) override { return absl::OkStatus(); }
  Status RecoverLastCheckpoints(const std::vector<std::string>&) override {
    return absl::OkStatus();
  }
  std::vector<std::string> last_checkpoints() const override { return {}; }
  const tensorflow::SaverDef& def() const override { return def_; }

  void AwaitSaves(size_t number) {
    MutexLock lock(&mu_);
    while (ended_ < number) changed_.Wait(&mu_);
  }
  std::string Steps() {
    const std::string text = absl::StrJoin(steps, " ");
    steps.clear();
    return text;
  }
  std::vector<int64_t> steps;
  std::deque<Status> failures;
  absl::Duration took = absl::ZeroDuration();
  std::shared_ptr<Notification> gate;  // when given: a save waits for it, and says so
  Notification reached;

 private:
  FakeClock* const clock_;
  tensorflow::SaverDef def_;
  Mutex mu_;
  CondVar changed_;
  size_t ended_ ABSL_GUARDED_BY(mu_) = 0;
};

class RecordingListener : public CheckpointSaverListener {
 public:
  Status Begin(HookSetup*) override { return Note("begin", -1); }
  Status BeforeSave(Session*, int64_t step) override { return Note("before", step); }
  StatusOr<bool> AfterSave(Session*, int64_t step, const std::string&) override {
    MR_RETURN_IF_ERROR(Note("after", step));
    return step == stop_at;
  }
  Status End(Session*, int64_t step) override { return Note("end", step); }
  int64_t stop_at = -1;
  std::vector<std::string> calls;

 private:
  Status Note(const char* what, int64_t step) {
    calls.push_back(step < 0 ? what : absl::StrCat(what, step));
    return absl::OkStatus();
  }
};

class NotingWriter : public SummaryWriter {
 public:
  Status AddScalar(absl::string_view tag, double value, int64_t step) override {
    notes.push_back(absl::StrCat(tag, "=", value, "@", step));
    return absl::OkStatus();
  }
  Status AddSummary(absl::string_view, int64_t) override { return absl::OkStatus(); }
  Status AddGraph(const tensorflow::GraphDef& graph) override {
    notes.push_back(graph.node_size() > 0 ? "graph" : "empty graph");
    return absl::OkStatus();
  }
  Status AddMetaGraph(absl::string_view) override { return absl::OkStatus(); }
  Status AddRunMetadata(absl::string_view, const tensorflow::RunMetadata&, int64_t) override {
    return absl::OkStatus();
  }
  Status AddSessionEvent(SessionEvent event, int64_t step, absl::string_view checkpoint) override {
    EXPECT_EQ(event, SessionEvent::kCheckpoint);
    notes.push_back(absl::StrCat(Basename(checkpoint), "@", step));
    return absl::OkStatus();
  }
  Status Flush() override { return absl::OkStatus(); }
  std::vector<std::string> notes;
};

class CheckpointSaverTest : public ::testing::Test {
 protected:
  CheckpointSaverTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("saver_hook_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~CheckpointSaverTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  CheckpointSaverOptions Options(Every every, bool fake = true) {
    CheckpointSaverOptions options;
    options.checkpoint_dir = dir_;
    options.every = every;
    if (fake) options.saver = &saver_;
    options.clock = &clock_;
    return options;
  }
  StatusOr<std::unique_ptr<MonitoredSession>> Open(const Model& model,
                                                   std::vector<SessionRunHook*> hooks,
                                                   const std::string& checkpoint_dir = "") {
    SessionCreatorOptions creator;
    creator.target = kSharedTarget;
    creator.checkpoint_dir = checkpoint_dir;
    MonitoredSessionOptions options;
    options.hooks = std::move(hooks);
    options.recovery_wait = absl::ZeroDuration();
    options.clock = &clock_;
    return MonitoredSession::Open(
        model.root, std::make_unique<ChiefSessionCreator>(model.root, creator), std::move(options));
  }
  Status Train(MonitoredSession* session, const Model& model, int steps) {
    for (int i = 0; i < steps; ++i) {
      MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
    }
    return absl::OkStatus();
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  SharedVariables servers_;
  FakeClock clock_;
  FakeSaver saver_{&clock_};
};

// covers: article 1-6: no checkpoint without progress, none twice
TEST_F(CheckpointSaverTest, SavesAtTheBeginEachSoManyStepsAndAtTheEndAndNoStepTwice) {
  const Model model;
  CheckpointSaverHook hook(Options(3));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  EXPECT_EQ(saver_.Steps(), "0");
  ASSERT_OK(Train(session.get(), model, 7));
  EXPECT_EQ(saver_.Steps(), "3 6");
  ASSERT_OK(Train(session.get(), model, 2));
  EXPECT_EQ(saver_.Steps(), "9");
  EXPECT_OK(session->Close());
  EXPECT_EQ(saver_.Steps(), "");
  EXPECT_EQ(hook.stats().saves, 4);
  EXPECT_EQ(hook.stats().last_checkpoint, dir_ + "/model.ckpt-9");
}

TEST_F(CheckpointSaverTest, TheLastOneIsWrittenWhenStepsCameAfterTheOneBefore) {
  const Model model;
  CheckpointSaverHook hook(Options(3));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ASSERT_OK(Train(session.get(), model, 4));
  EXPECT_OK(session->Close());
  EXPECT_EQ(saver_.Steps(), "0 3 4");
}

TEST_F(CheckpointSaverTest, AStepThatOthersHaveCountedPastIsSavedOnce) {
  const Model model;
  CheckpointSaverHook hook(Options(10));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.Steps();
  ASSERT_OK(Train(session.get(), model, 1));
  // Another task's.
  for (int i = 0; i < 12; ++i) {
    ASSERT_OK(session->raw_session()->Run({}, {}, {model.count}).status());
  }
  ASSERT_OK(Train(session.get(), model, 3));
  EXPECT_EQ(saver_.Steps(), "14");
}

// covers: article 1-2: a checkpoint every 300 s, the last three are kept
TEST_F(CheckpointSaverTest, ByTimeACheckpointIsWrittenWhileTrainingGoesOn) {
  const Model model;
  RecordingListener listener;
  CheckpointSaverOptions options = Options(absl::Seconds(60));
  options.listeners = {&listener};
  CheckpointSaverHook hook(options);
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  EXPECT_EQ(saver_.Steps(), "0");
  const auto gate = std::make_shared<Notification>();
  saver_.gate = gate;
  ASSERT_OK(Train(session.get(), model, 2));
  clock_.Advance(absl::Seconds(61));
  // The third one starts it, and the next ones do not wait; one at a time.
  ASSERT_OK(Train(session.get(), model, 3));
  saver_.reached.Wait();
  clock_.Advance(absl::Seconds(61));
  ASSERT_OK(Train(session.get(), model, 3));
  saver_.gate = nullptr;
  gate->Notify();
  EXPECT_OK(session->Close());
  EXPECT_EQ(saver_.Steps(), "3 8");
  EXPECT_EQ(absl::StrJoin(listener.calls, " "),
            "begin before0 after0 before3 after3 before8 after8 end8");
}

TEST_F(CheckpointSaverTest, ByTimeStorageThatIsFullIsTriedAgainToo) {
  const Model model;
  CheckpointSaverHook hook(Options(absl::Seconds(60)));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.failures = {absl::ResourceExhaustedError("no space left")};
  clock_.Advance(absl::Seconds(61));
  ASSERT_OK(Train(session.get(), model, 1));
  saver_.AwaitSaves(2);
  while (hook.stats().failures == 0) ASSERT_OK(Train(session.get(), model, 1));
  EXPECT_EQ(hook.stats().saves, 1);
  clock_.Advance(absl::Seconds(1));
  ASSERT_OK(Train(session.get(), model, 1));
  saver_.AwaitSaves(3);
  while (hook.stats().saves == 1) ASSERT_OK(Train(session.get(), model, 1));
  EXPECT_OK(session->Close());
}

// A loop that ended with an error leaves nothing in a hook that lives on.
TEST_F(CheckpointSaverTest, AHookKeepsNoSessionAlive) {
  CheckpointSaverHook hook(Options(10));
  {
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  }
  servers_.AwaitDestroyed(1);
}

TEST_F(CheckpointSaverTest, StorageThatHangsHoldsUpTheEndForItsGraceAndIsLeftBehind) {
  const Model model;
  FakeClock clock;
  CheckpointSaverOptions options = Options(100);
  options.clock = &clock;
  options.stop_grace = absl::Seconds(10);
  CheckpointSaverHook hook(options);
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ASSERT_OK(Train(session.get(), model, 1));
  const auto gate = std::make_shared<Notification>();
  saver_.gate = gate;
  std::thread time([&] {
    saver_.reached.Wait();
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(10));
  });
  EXPECT_STATUS(session->Close(), StatusCode::kDeadlineExceeded,
                "CheckpointSaverHook.End: last checkpoint not written: a checkpoint did not end "
                "within 10s, and is left behind");
  time.join();
  gate->Notify();
  // This test's Saver outlives what was left behind.
  saver_.AwaitSaves(2);
}

// covers: article 1-6: no checkpoint without progress, none twice
TEST_F(CheckpointSaverTest, AJustRestoredCheckpointIsNotWrittenAgain) {
  {
    const Model model;
    CheckpointSaverHook hook(Options(100, /*fake=*/false));
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}, dir_));
    ASSERT_OK(Train(session.get(), model, 5));
    EXPECT_OK(session->Close());
    EXPECT_EQ(hook.stats().saves, 2);
  }
  ASSERT_OK(servers_.Restart());
  const Model model;
  CheckpointSaverHook hook(Options(100, /*fake=*/false));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}, dir_));
  EXPECT_EQ(hook.stats().saves, 0);
  EXPECT_OK(session->Close());
  EXPECT_EQ(hook.stats().saves, 0);
  EXPECT_EQ(LatestCheckpoint(fs_, dir_), dir_ + "/model.ckpt-5");
}

TEST_F(CheckpointSaverTest, WhatIsInARestoredCheckpointCountsNotItsName) {
  ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_));
  {
    // Others have counted to 3 while what is called after step 2 was written.
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(model.root));
    ASSERT_OK(session->Run({}, {}, {model.w.initializer, model.step.initializer}).status());
    for (int i = 0; i < 3; ++i) ASSERT_OK(session->Run({}, {}, {model.count}).status());
    ASSERT_OK(saver->Save(session.get(), dir_ + "/model.ckpt", 2).status());
  }
  const Model model;
  CheckpointSaverHook hook(Options(100));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}, dir_));
  EXPECT_EQ(saver_.Steps(), "") << "all that the session begins with is in it";
  ASSERT_OK(Train(session.get(), model, 1));
  EXPECT_OK(session->Close());
  EXPECT_EQ(saver_.Steps(), "4");
}

TEST_F(CheckpointSaverTest, ACheckpointThatWasRestoredFromElsewhereIsWrittenHere) {
  std::string elsewhere;
  {
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto saver, Saver::Make(model.root));
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(model.root));
    ASSERT_OK(session->Run({}, {}, {model.w.initializer, model.step.initializer}).status());
    ASSERT_OK_AND_ASSIGN(elsewhere, saver->Save(session.get(), dir_ + "/old/model.ckpt", 0));
  }
  const Model model;
  CheckpointSaverHook hook(Options(100));
  SessionCreatorOptions options;
  options.checkpoint_path = elsewhere;
  MonitoredSessionOptions session_options;
  session_options.hooks = {&hook};
  ASSERT_OK_AND_ASSIGN(const auto session,
                       SingularMonitoredSession(model.root, options, std::move(session_options)));
  EXPECT_EQ(saver_.Steps(), "0");
}

TEST_F(CheckpointSaverTest, AfterALossNothingThatWasWrittenIsWrittenAgain) {
  const Model model;
  CheckpointSaverHook hook(Options(2));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ASSERT_OK(Train(session.get(), model, 2));
  EXPECT_EQ(saver_.Steps(), "0 2");
  servers_.FailRuns({absl::UnavailableError("gone")});
  ASSERT_OK(Train(session.get(), model, 1));
  EXPECT_EQ(session->recoveries(), 1);
  EXPECT_EQ(saver_.Steps(), "");
}

TEST_F(CheckpointSaverTest, StorageThatIsFullIsTriedAgainEverMoreRarelyAndTrainingGoesOn) {
  const Model model;
  CheckpointSaverHook hook(Options(10));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.Steps();
  const Status full = absl::ResourceExhaustedError("no space left");
  saver_.failures = {full, full};
  ASSERT_OK(Train(session.get(), model, 11));
  EXPECT_EQ(saver_.Steps(), "10");
  clock_.Advance(absl::Seconds(1));
  ASSERT_OK(Train(session.get(), model, 2));
  EXPECT_EQ(saver_.Steps(), "12");
  clock_.Advance(absl::Seconds(1));
  ASSERT_OK(Train(session.get(), model, 1));
  EXPECT_EQ(saver_.Steps(), "");
  clock_.Advance(absl::Seconds(1));
  ASSERT_OK(Train(session.get(), model, 3));
  EXPECT_EQ(saver_.Steps(), "15");
  EXPECT_EQ(hook.stats().failures, 2);
  ASSERT_OK(Train(session.get(), model, 5));
  // The period goes on from when it was due.
  EXPECT_EQ(saver_.Steps(), "20");
}

TEST_F(CheckpointSaverTest, StorageThatStaysFullIsToldAtTheEnd) {
  const Model model;
  CheckpointSaverHook hook(Options(10));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.failures = std::deque<Status>(5, absl::ResourceExhaustedError("no space left"));
  ASSERT_OK(Train(session.get(), model, 11));
  EXPECT_STATUS(session->Close(), StatusCode::kResourceExhausted,
                "CheckpointSaverHook.End: last checkpoint not written: no space left");
}

TEST_F(CheckpointSaverTest, StorageThatIsAwayIsNoLostSession) {
  const Model model;
  CheckpointSaverHook hook(Options(1));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.failures = {absl::UnavailableError("the file server does not answer")};
  ASSERT_OK(Train(session.get(), model, 1));
  EXPECT_EQ(session->recoveries(), 0);
  EXPECT_EQ(hook.stats().failures, 1);
}

TEST_F(CheckpointSaverTest, WhatNoTryCanMendEndsTheTraining) {
  const Model model;
  CheckpointSaverHook hook(Options(1));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.failures = {absl::InvalidArgumentError("no name of a file")};
  EXPECT_STATUS(session->Loop([&] { return Train(session.get(), model, 1); }),
                StatusCode::kInvalidArgument, "CheckpointSaverHook.AfterRun: no name of a file");
}

// As of a Supervisor (train/save_retry.h): somebody may see to it.
TEST_F(CheckpointSaverTest, WhateverElseFilesFailWithIsTriedAgain) {
  const Model model;
  CheckpointSaverHook hook(Options(1));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.failures = {absl::PermissionDeniedError("read only"), absl::UnknownError("I/O error")};
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(Train(session.get(), model, 1));
    clock_.Advance(absl::Minutes(1));
  }
  EXPECT_EQ(hook.stats().failures, 2);
  EXPECT_OK(session->Close());
}

TEST_F(CheckpointSaverTest, ListenersHearOfEachSaveInOrderAndMayAskForTheStop) {
  const Model model;
  RecordingListener listener;
  listener.stop_at = 2;
  CheckpointSaverOptions options = Options(1);
  options.listeners = {&listener};
  CheckpointSaverHook hook(options);
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  EXPECT_OK(session->Loop([&] { return Train(session.get(), model, 1); }));
  EXPECT_EQ(absl::StrJoin(listener.calls, " "),
            "begin before0 after0 before1 after1 before2 after2 end2");
}

// covers: article 1-4: the duration of a save is measured and logged
TEST_F(CheckpointSaverTest, TheDurationOfASaveIsMeasuredAndTold) {
  const Model model;
  NotingWriter writer;
  CheckpointSaverOptions options = Options(2);
  options.writer = &writer;
  CheckpointSaverHook hook(options);
  saver_.took = absl::Milliseconds(1500);
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  saver_.took = absl::Milliseconds(500);
  ASSERT_OK(Train(session.get(), model, 2));
  EXPECT_EQ(hook.stats().last, absl::Milliseconds(500));
  EXPECT_EQ(hook.stats().longest, absl::Milliseconds(1500));
  EXPECT_EQ(hook.stats().total, absl::Seconds(2));
  EXPECT_EQ(absl::StrJoin(writer.notes, " "),
            "graph model.ckpt-0@0 checkpoint/save_secs=1.5@0 model.ckpt-2@2 "
            "checkpoint/save_secs=0.5@2");
}

TEST_F(CheckpointSaverTest, TheGraphIsBesideTheCheckpoints) {
  const Model model;
  CheckpointSaverHook hook(Options(2));
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ASSERT_OK_AND_ASSIGN(const auto graph, ReadGraphDef(fs_, dir_ + "/graph.pbtxt"));
  EXPECT_GT(graph.node_size(), 5);
}

TEST_F(CheckpointSaverTest, TwoSaversOfOneDirectoryAreRefused) {
  const Model model;
  CheckpointSaverHook one(Options(2));
  CheckpointSaverOptions options = Options(3);
  options.checkpoint_dir += "/";
  options.checkpoint_basename = "other";
  CheckpointSaverHook two(options);
  EXPECT_STATUS(Open(model, {&one, &two}).status(), StatusCode::kAlreadyExists,
                "CheckpointSaverHook.Begin: the checkpoints in '");
}

// covers: article 1-5: by seconds or by steps, not both
TEST_F(CheckpointSaverTest, OptionsThatCannotWorkAreRefused) {
  {
    const Model model;
    CheckpointSaverHook hook(Options(0));
    EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                  "every must be > 0, got 0 steps");
  }
  {
    const Model model;
    CheckpointSaverOptions options = Options(1);
    options.checkpoint_dir = "";
    CheckpointSaverHook hook(options);
    EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                  "checkpoint_dir must be a directory");
  }
  Scope root;
  CheckpointSaverHook hook(Options(1));
  SessionCreatorOptions creator;
  MonitoredSessionOptions options;
  options.hooks = {&hook};
  EXPECT_STATUS(MonitoredSession::Open(root, std::make_unique<ChiefSessionCreator>(root, creator),
                                       std::move(options))
                    .status(),
                StatusCode::kFailedPrecondition, "the graph must have a global step, got none");
}

}  // namespace
}  // namespace millrace

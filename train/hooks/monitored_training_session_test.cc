// SPDX-License-Identifier: Apache-2.0
#include "train/hooks/monitored_training_session.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "run/training_run.h"
#include "saver/saver.h"
#include "train/hooks/stop_at_step.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

// covers: article 1-3: training goes on from the checkpoint after a death
// covers: article 3-18: MonitoredTrainingSession and MonitoredSession without an Estimator

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

// Looks at what is in the directory when it is called.
class LookingHook : public SessionRunHook {
 public:
  LookingHook(std::string who, std::string dir, std::vector<std::string>* calls)
      : who_(std::move(who)), dir_(std::move(dir)), calls_(calls) {}
  std::string name() const override { return who_; }
  Status AfterCreateSession(RunContext*, const CreatedSession&) override { return Note("created"); }
  Status End(const LoopEnd&) override { return Note("end"); }

 private:
  Status Note(const char* what) {
    const auto latest = LatestCheckpoint(FileSystem::Posix(), dir_);
    calls_->push_back(absl::StrCat(who_, ".", what, " ", latest ? Basename(*latest) : "none"));
    return absl::OkStatus();
  }
  const std::string who_, dir_;
  std::vector<std::string>* const calls_;
};

class MonitoredTrainingSessionTest : public ::testing::Test {
 protected:
  MonitoredTrainingSessionTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("mts_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~MonitoredTrainingSessionTest() override {
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }
  MonitoredTrainingSessionOptions Options() const {
    MonitoredTrainingSessionOptions options;
    options.target = kSharedTarget;
    options.checkpoint_dir = dir_;
    options.max_wait = absl::Seconds(60);
    options.recovery_wait = absl::Milliseconds(1);
    return options;
  }

  const std::string dir_;
  SharedVariables servers_;
  std::vector<std::string> calls_;
};

TEST_F(MonitoredTrainingSessionTest, TheChiefsHooksAreItsOwnThenTheUsers) {
  const Model model;
  LookingHook chief_only("chief_only", dir_, &calls_), user("user", dir_, &calls_);
  StopAtStepHook stop({.last_step = 3});
  MonitoredTrainingSessionOptions options = Options();
  options.hooks = {&user, &stop};
  options.chief_only_hooks = {&chief_only};
  ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(model.root, options));
  EXPECT_OK(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }));
  EXPECT_EQ(absl::StrJoin(calls_, ", "),
            "chief_only.created none, user.created model.ckpt-0, chief_only.end model.ckpt-0, "
            "user.end model.ckpt-3");
  ASSERT_EQ(servers_.ends().size(), 1u);
  EXPECT_EQ(servers_.ends()[0], (RunEnd{.global_step = 3,
                                        .checkpoint = dir_ + "/model.ckpt-3",
                                        .reason = "reached step 3 of 3"}));
}

TEST_F(MonitoredTrainingSessionTest, AWorkerHasTheUsersHooksAloneAndWaitsForTheChief) {
  const Model chief, worker;
  LookingHook chief_only("chief_only", dir_, &calls_), user("user", dir_, &calls_);
  MonitoredTrainingSessionOptions options = Options();
  ASSERT_OK_AND_ASSIGN(const auto of_chief, MonitoredTrainingSession(chief.root, options));
  StopAtStepHook stop({.last_step = 2});
  options.is_chief = false;
  options.hooks = {&user, &stop};
  options.chief_only_hooks = {&chief_only};
  ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(worker.root, options));
  EXPECT_OK(session->Loop([&] { return session->Run({}, {}, {worker.count}).status(); }));
  EXPECT_EQ(absl::StrJoin(calls_, ", "), "user.created model.ckpt-0, user.end model.ckpt-0");
  EXPECT_EQ(servers_.ends().size(), 0u) << "a worker ended the run";
}

TEST_F(MonitoredTrainingSessionTest, AJobThatIsStartedAgainGoesOnFromItsCheckpointUntilItIsDone) {
  for (const int64_t last_step : {4, 6, 6}) {
    ASSERT_OK(servers_.Restart());
    const Model model;
    StopAtStepHook stop({.last_step = last_step});
    MonitoredTrainingSessionOptions options = Options();
    options.hooks = {&stop};
    ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(model.root, options));
    int runs = 0;
    EXPECT_OK(session->Loop([&] {
      ++runs;
      return session->Run({}, {}, {model.count}).status();
    }));
    calls_.push_back(absl::StrCat(runs));
  }
  EXPECT_EQ(absl::StrJoin(calls_, " "), "4 2 0");
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), dir_), dir_ + "/model.ckpt-6");
}

TEST_F(MonitoredTrainingSessionTest, WithoutADirectoryNothingIsKept) {
  Scope root;
  MonitoredTrainingSessionOptions options;
  options.log_step_count_every = 0;
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 3.f));
  ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(root, options));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {w.value}));
  EXPECT_EQ(out[0].scalar<float>(), 3);
  EXPECT_OK(session->Close());
}

TEST_F(MonitoredTrainingSessionTest, ASecondSaverOfTheDirectoryIsRefused) {
  const Model model;
  CheckpointSaverHook own({.checkpoint_dir = dir_, .every = 10});
  MonitoredTrainingSessionOptions options = Options();
  options.hooks = {&own};
  EXPECT_STATUS(MonitoredTrainingSession(model.root, options).status(), StatusCode::kAlreadyExists,
                "must be written by one hook, got a second one after CheckpointSaverHook");
  // Whatever the directory is called.
  const Model third;
  CheckpointSaverHook same({.checkpoint_dir = dir_ + "/../" + Basename(dir_) + "/./", .every = 10});
  options.hooks = {&same};
  EXPECT_STATUS(MonitoredTrainingSession(third.root, options).status(), StatusCode::kAlreadyExists,
                "must be written by one hook");
  const Model other;
  options.hooks = {&own};
  options.save_checkpoint_every = 0;
  EXPECT_OK(MonitoredTrainingSession(other.root, options).status());
}

TEST_F(MonitoredTrainingSessionTest, OptionsThatCannotWorkAreRefused) {
  const Model model;
  CheckpointSaverListener listener;
  MonitoredTrainingSessionOptions options = Options();
  options.saving_listeners = {&listener};
  options.save_checkpoint_every = 0;
  EXPECT_STATUS(MonitoredTrainingSession(model.root, options).status(),
                StatusCode::kInvalidArgument, "saving_listeners must come with checkpoint_dir");
  options = Options();
  options.log_step_count_every = -1;
  EXPECT_STATUS(MonitoredTrainingSession(model.root, options).status(),
                StatusCode::kInvalidArgument, "log_step_count_every must be >= 0, got -1");
  EXPECT_EQ(servers_.sessions_made(), 0);
}

}  // namespace
}  // namespace millrace

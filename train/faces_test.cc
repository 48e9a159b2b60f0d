// SPDX-License-Identifier: Apache-2.0

// Supervisor, Train and MonitoredSession, the faces of the training engine (train/training_job.h),
// make one promise: a chief that ends writes a last checkpoint.

#include <signal.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "train/hooks/monitored_training_session.h"
#include "train/hooks/stop_at_step.h"
#include "train/supervisor.h"
#include "train/testing/hooked_model.h"
#include "train/train.h"

// covers: training: Train, Supervisor and MonitoredSession write a last checkpoint however the job
//   ends

namespace millrace {
namespace {

constexpr int64_t kSteps = 3;

// Why a program ends after kSteps steps. Only with kGoal is that its last step (GoalOf).
enum class Ending { kGoal, kSignal, kError };

// Trains kSteps steps in `dir` and ends that way. No checkpoint is due before the end.
using Face = std::function<Status(const std::string& dir, Ending ending)>;

int64_t GoalOf(Ending ending) { return ending == Ending::kGoal ? kSteps : 100 * kSteps; }

// The program's own part of step `step`, counted from 1: the signal or the error, if any.
Status OwnPart(int64_t step, Ending ending) {
  if (step == kSteps && ending == Ending::kSignal) ::raise(SIGTERM);
  return step > kSteps ? absl::DataLossError("bad record") : absl::OkStatus();
}

Status WithSupervisor(const std::string& dir, Ending ending) {
  const HookedModel model;
  Supervisor supervisor(model.root, {.logdir = dir, .save_model_period = absl::ZeroDuration()});
  MR_ASSIGN_OR_RETURN(const auto session, supervisor.ManagedSession(""));
  for (int64_t step = 1; !supervisor.ShouldStop(); ++step) {
    Status status = OwnPart(step, ending);
    if (status.ok()) status = session->Run({}, {}, {model.count}).status();
    if (!status.ok() || step == GoalOf(ending)) supervisor.RequestStop(status);
  }
  return supervisor.Stop();
}

Status WithTrain(const std::string& dir, Ending ending) {
  const HookedModel model;
  int64_t step = 0;
  TrainOptions options;
  options.data = [&]() -> FeedsOrEnd {
    MR_RETURN_IF_ERROR(OwnPart(++step, ending));
    return Feeds{};
  };
  options.steps = GoalOf(ending);
  options.dir = dir;
  options.save_every = 0;
  options.progress = false;
  return Train(model.root, model.count, options).status();
}

Status WithMonitoredSession(const std::string& dir, Ending ending) {
  const HookedModel model;
  StopAtStepHook stop({.last_step = GoalOf(ending)});
  MR_ASSIGN_OR_RETURN(
      const auto session,
      MonitoredTrainingSession(
          model.root, {.checkpoint_dir = dir, .hooks = {&stop}, .save_checkpoint_every = 1000}));
  int64_t step = 0;
  return session->Loop([&]() -> Status {
    MR_RETURN_IF_ERROR(OwnPart(++step, ending));
    return session->Run({}, {}, {model.count}).status();
  });
}

class FacesTest : public testing::TestWithParam<Face> {
 protected:
  FacesTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("faces_", RandomHexName()))) {}
  ~FacesTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  // The global step that the latest checkpoint holds; -1 without a checkpoint.
  int64_t SavedStep() const {
    const auto latest = LatestCheckpoint(FileSystem::Posix(), dir_);
    if (!latest) return -1;
    const auto reader = BundleReader::Open(FileSystem::Posix(), *latest);
    EXPECT_OK(reader.status());
    const auto step = (*reader)->Read("global_step");
    EXPECT_OK(step.status());
    return step->scalar<int64_t>();
  }

  const std::string dir_;
};

TEST_P(FacesTest, AtItsGoalWhatWasTrainedIsSaved) {
  EXPECT_OK(GetParam()(dir_, Ending::kGoal));
  EXPECT_EQ(SavedStep(), kSteps);
}

TEST_P(FacesTest, AfterASignalWhatWasTrainedIsSavedAndTheNextCallGoesOnFromIt) {
  EXPECT_EQ(ExitCode(GetParam()(dir_, Ending::kSignal)), 128 + SIGTERM);
  EXPECT_EQ(SavedStep(), kSteps);
  EXPECT_EQ(ExitCode(GetParam()(dir_, Ending::kSignal)), 128 + SIGTERM);
  EXPECT_EQ(SavedStep(), 2 * kSteps);
}

TEST_P(FacesTest, AfterAnErrorOfTheProgramWhatWasTrainedIsSaved) {
  EXPECT_STATUS(GetParam()(dir_, Ending::kError), absl::StatusCode::kDataLoss, "bad record");
  EXPECT_EQ(SavedStep(), kSteps);
}

std::string NameOf(const testing::TestParamInfo<Face>& face) {
  static constexpr const char* kNames[] = {"Supervisor", "Train", "MonitoredSession"};
  return kNames[face.index];
}

INSTANTIATE_TEST_SUITE_P(All, FacesTest,
                         testing::Values(Face(WithSupervisor), Face(WithTrain),
                                         Face(WithMonitoredSession)),
                         NameOf);

}  // namespace
}  // namespace millrace

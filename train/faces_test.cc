// SPDX-License-Identifier: Apache-2.0

// What all faces of the training engine (train/training_job.h) promise alike, whatever a program
// calls: the last checkpoint of a chief that ends.

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

namespace millrace {
namespace {

constexpr int64_t kSteps = 3;

// Trains kSteps steps in `dir`, in whose middle no checkpoint is due. `by_signal`: the goal is
// further away, and SIGTERM comes with the last of these steps.
using Face = std::function<Status(const std::string& dir, bool by_signal)>;

Status WithSupervisor(const std::string& dir, bool by_signal) {
  const HookedModel model;
  Supervisor supervisor(model.root, {.logdir = dir, .save_model_period = absl::ZeroDuration()});
  MR_ASSIGN_OR_RETURN(const auto session, supervisor.ManagedSession(""));
  for (int64_t step = 1; !supervisor.ShouldStop(); ++step) {
    MR_RETURN_IF_ERROR(session->Run({}, {}, {model.count}).status());
    if (step < kSteps) continue;
    if (by_signal) {
      ::raise(SIGTERM);
    } else {
      supervisor.RequestStop();
    }
  }
  return supervisor.Stop();
}

Status WithTrain(const std::string& dir, bool by_signal) {
  const HookedModel model;
  int64_t step = 0;
  TrainOptions options;
  options.data = [&]() -> FeedsOrEnd {
    if (++step == kSteps && by_signal) ::raise(SIGTERM);
    return Feeds{};
  };
  options.steps = by_signal ? 100 * kSteps : kSteps;
  options.dir = dir;
  options.save_every = 0;
  options.progress = false;
  return Train(model.root, model.count, options).status();
}

Status WithMonitoredSession(const std::string& dir, bool by_signal) {
  const HookedModel model;
  StopAtStepHook stop({.last_step = by_signal ? 100 * kSteps : kSteps});
  MR_ASSIGN_OR_RETURN(
      const auto session,
      MonitoredTrainingSession(
          model.root, {.checkpoint_dir = dir, .hooks = {&stop}, .save_checkpoint_every = 1000}));
  int64_t step = 0;
  return session->Loop([&] {
    if (++step == kSteps && by_signal) ::raise(SIGTERM);
    return session->Run({}, {}, {model.count}).status();
  });
}

class FacesTest : public testing::TestWithParam<Face> {
 protected:
  FacesTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("faces_", RandomHexName()))) {}
  ~FacesTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  // Of the latest checkpoint, by what is in it.
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
  EXPECT_OK(GetParam()(dir_, /*by_signal=*/false));
  EXPECT_EQ(SavedStep(), kSteps);
}

TEST_P(FacesTest, AfterASignalWhatWasTrainedIsSavedAndTheNextCallGoesOnFromIt) {
  EXPECT_EQ(ExitCode(GetParam()(dir_, /*by_signal=*/true)), 128 + SIGTERM);
  EXPECT_EQ(SavedStep(), kSteps);
  EXPECT_EQ(ExitCode(GetParam()(dir_, /*by_signal=*/true)), 128 + SIGTERM);
  EXPECT_EQ(SavedStep(), 2 * kSteps);
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

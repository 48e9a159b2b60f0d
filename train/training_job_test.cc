// SPDX-License-Identifier: Apache-2.0
#include "train/training_job.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "saver/saver.h"
#include "train/job_sessions.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

namespace millrace {
namespace {

using absl::StatusCode;

class TrainingJobTest : public ::testing::Test {
 protected:
  TrainingJobTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("engine_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~TrainingJobTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  // The job of a chief that keeps checkpoints at `path` in dir_.
  std::shared_ptr<TrainingJob> MakeJob(const HookedModel& model, const std::string& path) {
    JobSessionsOptions of_sessions;
    of_sessions.manager.name = "Test";
    of_sessions.manager.checkpoint_dir = dir_;
    auto sessions = JobSessions::Make(model.root, of_sessions);
    EXPECT_OK(sessions.status());
    auto job = std::make_shared<TrainingJob>(TrainingJobOptions{.speaker = "Test"});
    job->SetSessions(*std::move(sessions));
    job->KeepCheckpoints({.directory = dir_, .path = path.empty() ? "" : JoinPath(dir_, path)});
    return job;
  }
  std::string Latest() const {
    return LatestCheckpoint(FileSystem::Posix(), dir_).value_or("none");
  }

  const std::string dir_;
  SharedVariables servers_;
};

TEST_F(TrainingJobTest, AGoalEndsTheRunUnlessSomebodyLeaves) {
  for (const bool leaves : {false, true}) {
    const HookedModel model;
    const auto job = MakeJob(model, "model.ckpt");
    ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
    ASSERT_OK(job->Use(ready, kSharedTarget));
    const size_t ends = servers_.ends().size();
    job->RequestStop("reached the goal");
    job->RequestStop("another one");
    if (leaves) job->RequestLeave(absl::OkStatus());
    EXPECT_OK(job->Stop());
    ASSERT_EQ(servers_.ends().size(), ends + (leaves ? 0 : 1));
    if (!leaves) {
      EXPECT_EQ(servers_.ends().back().reason, "reached the goal");
    }
  }
}

TEST_F(TrainingJobTest, AfterARequestToStopThereIsNoSession) {
  const HookedModel model;
  const auto job = MakeJob(model, "model.ckpt");
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  EXPECT_FALSE(job->WaitForStop(absl::Now() + absl::Milliseconds(1)));
  job->RequestLeave(absl::DataLossError("bad input"));
  EXPECT_TRUE(job->WaitForStop(absl::InfiniteFuture()));
  // The session that became ready meanwhile is closed, and no other one is opened.
  EXPECT_STATUS(job->Use(ready, kSharedTarget), StatusCode::kDataLoss, "bad input");
  EXPECT_EQ(servers_.sessions_closed(), servers_.sessions_made());
  EXPECT_STATUS(job->Open(kSharedTarget).status(), StatusCode::kDataLoss, "bad input");
  EXPECT_STATUS(job->Stop(), StatusCode::kDataLoss, "bad input");
}

TEST_F(TrainingJobTest, WithoutAPathTheLastCheckpointHasTheNameOfTheOneBeforeIt) {
  const HookedModel model;
  const auto job = MakeJob(model, "");
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  ASSERT_OK(job->Use(ready, kSharedTarget));
  ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
  const Status error = absl::InternalError("of a step");
  ASSERT_OK_AND_ASSIGN(const std::string none, job->SaveLastAfter(error));
  EXPECT_EQ(none, "") << "nobody keeps checkpoints";
  ASSERT_OK(job->Use(ready, kSharedTarget));
  ASSERT_OK(job->saver()->Save(ready.session.get(), JoinPath(dir_, "mine"), 1).status());
  ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
  for (const Status& lost : {absl::UnavailableError("ps is gone"), absl::AbortedError("again")}) {
    ASSERT_OK_AND_ASSIGN(const std::string nothing, job->SaveLastAfter(lost));
    EXPECT_EQ(nothing, "");
  }
  ASSERT_OK_AND_ASSIGN(const std::string saved, job->SaveLastAfter(error));
  EXPECT_EQ(saved, JoinPath(dir_, "mine-2"));
  EXPECT_EQ(Latest(), saved);
  EXPECT_OK(job->Stop());
}

TEST_F(TrainingJobTest, TheStatusOfAnEndSaysWhichCheckpointIsKept) {
  const Status why = WithExitCode(absl::CancelledError("ended by SIGTERM"), 143);
  EXPECT_EQ(WithWhatIsKept(why, ""), why);
  const Status saved = WithWhatIsKept(why, "run/model.ckpt-7");
  EXPECT_STATUS(saved, StatusCode::kCancelled, "ended by SIGTERM; saved run/model.ckpt-7");
  EXPECT_EQ(ExitCode(saved), 143);
  const Status full = WithExitCode(absl::ResourceExhaustedError("disk is full"), kExitRetryable);
  const Status lost = WithWhatIsKept(why, full);
  EXPECT_STATUS(lost, StatusCode::kResourceExhausted, "ended by SIGTERM: disk is full");
  EXPECT_EQ(ExitCode(lost), kExitRetryable);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/job_sessions.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/fail_point.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

// covers: training: a directory of another model is refused in one sentence, with whose it is and
//   since when, and left as it is
// covers: training: the end tells the step of its checkpoint, and how many updates that lacks
// covers: training: of two chiefs of one directory the newer one has it; the servers hear of the
//   end also when the directory cannot be written

namespace millrace {
namespace {

class JobSessionsTest : public ::testing::Test {
 protected:
  JobSessionsTest()
      : fs_(FileSystem::Posix()),
        dir_(JoinPath(::testing::TempDir(), absl::StrCat("job_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~JobSessionsTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  JobSessionsOptions Options(bool is_chief = true) {
    JobSessionsOptions options;
    options.is_chief = is_chief;
    options.manager.name = "Test";
    options.manager.checkpoint_dir = dir_;
    options.manager.recovery_wait = absl::Milliseconds(1);
    return options;
  }

  FileSystem* const fs_;
  const std::string dir_;
  SharedVariables servers_;
};

TEST_F(JobSessionsTest, AChiefTellsTheDirectoryAndTheServersWhatWasReached) {
  const HookedModel model;
  ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
  ASSERT_OK_AND_ASSIGN(const std::string saved,
                       job->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 1));
  ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  const RunEnd end = {.global_step = 1, .checkpoint = saved, .reason = "done"};
  EXPECT_EQ(servers_.ends(), std::vector<RunEnd>{end});
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->reason, "done");
}

// Other trainers count on between the chief's last save and its word of the end.
TEST_F(JobSessionsTest, TheEndIsThatOfTheLastCheckpointAndSaysHowManyUpdatesItLacks) {
  const HookedModel model;
  ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  const auto count = [&](int times) {
    for (int i = 0; i < times; ++i) {
      ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
    }
  };
  count(5);
  // Another trainer's update is in it although its name is older: what is in it decides.
  ASSERT_OK_AND_ASSIGN(const std::string saved,
                       job->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 4));
  count(2);
  ::testing::internal::CaptureStderr();
  ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(log, "is of step 5 and lacks 2 updates")) << log;
  const RunEnd end = {.global_step = 5, .checkpoint = saved, .reason = "done"};
  EXPECT_EQ(servers_.ends(), std::vector<RunEnd>{end});
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->global_step, 5);
  EXPECT_EQ(file->updates_after_checkpoint, 2);

  // Nothing was lost by an end right after a save, and without a checkpoint the count is all.
  ASSERT_OK(job->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 7).status());
  ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  EXPECT_EQ(servers_.ends().back().global_step, 7);
  ASSERT_OK_AND_ASSIGN(const auto whole, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->updates_after_checkpoint, 0);
}

TEST_F(JobSessionsTest, TheEndHasTheStepOfItsCheckpointWhereTheCountCannotBeRead) {
  const HookedModel model;
  ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
  ASSERT_OK_AND_ASSIGN(const std::string saved,
                       job->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 1));
  servers_.FailRuns({absl::UnavailableError("gone")});
  ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  const RunEnd end = {.global_step = 1, .checkpoint = saved, .reason = "done"};
  EXPECT_EQ(servers_.ends(), std::vector<RunEnd>{end});
  ASSERT_OK_AND_ASSIGN(const auto file, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(file.has_value());
  EXPECT_EQ(file->global_step, 1);
  EXPECT_EQ(file->updates_after_checkpoint, 0);
}

TEST_F(JobSessionsTest, AnEndWithoutASaveOfItsOwnTellsWhatWasCounted) {
  {
    const HookedModel model;
    ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
    ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
    ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
    ASSERT_OK(job->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 1).status());
  }
  for (const int64_t goal : {0, 1}) {
    ASSERT_OK(servers_.Restart());
    const HookedModel model;
    JobSessionsOptions options = Options();
    options.manager.last_step = goal;
    ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, options));
    ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
    ASSERT_OK(ready.session->Run({}, {}, {model.count}).status());
    ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
    EXPECT_EQ(servers_.ends().back().global_step, goal == 0 ? 2 : 1)
        << "a restored checkpoint is the end where it reaches the goal";
    EXPECT_EQ(servers_.ends().back().checkpoint, JoinPath(dir_, "model.ckpt-1"));
    ASSERT_OK_AND_ASSIGN(const auto file, ReadRunEnd(fs_, dir_));
    ASSERT_TRUE(file.has_value());
    EXPECT_EQ(file->updates_after_checkpoint, 1);
  }
}

TEST_F(JobSessionsTest, TheServersHearOfTheEndAlsoWhenTheDirectoryCannotBeWritten) {
  const HookedModel model;
  ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  ASSERT_OK(fs_->RecursivelyDelete(dir_));
  ASSERT_OK(WriteFileAtomically(fs_, dir_, "not a directory"));
  EXPECT_FALSE(job->TellEnd(ready.session.get(), {.reason = "done"}).ok());
  EXPECT_EQ(servers_.ends().size(), 1u);
}

TEST_F(JobSessionsTest, AChiefThatWasTakenOverTellsNobodyAndSavesNothing) {
  const HookedModel model, newer_model;
  ASSERT_OK_AND_ASSIGN(const auto older, JobSessions::Make(model.root, Options()));
  ASSERT_OK_AND_ASSIGN(const auto ready, older->Open(kSharedTarget));
  ASSERT_OK_AND_ASSIGN(const auto newer, JobSessions::Make(newer_model.root, Options()));
  ASSERT_OK(newer->Open(kSharedTarget).status());
  EXPECT_TRUE(IsFenced(older->TellEnd(ready.session.get(), {.reason = "done"})));
  EXPECT_TRUE(IsFenced(
      older->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 0).status()));
  EXPECT_TRUE(servers_.ends().empty());
}

TEST_F(JobSessionsTest, ATaskThatIsNotTheChiefMakesNoDirectoryAndTellsNobody) {
  const HookedModel model, chief_model;
  ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options(false)));
  EXPECT_FALSE(fs_->FileExists(dir_));
  ASSERT_OK_AND_ASSIGN(const auto chief, JobSessions::Make(chief_model.root, Options()));
  ASSERT_OK(chief->Open(kSharedTarget).status());
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  EXPECT_EQ(ready.start, SessionManager::Start::kWaited);
  EXPECT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  EXPECT_TRUE(servers_.ends().empty());
}

TEST_F(JobSessionsTest, ADirectoryOfAnotherModelIsRefusedInOneSentenceAndLeftAsItIs) {
  {
    const HookedModel model;
    ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
    ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
    ASSERT_OK(job->saver()->Save(ready.session.get(), JoinPath(dir_, "model.ckpt"), 7).status());
    ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  }
  ASSERT_OK_AND_ASSIGN(const auto owner, ReadRunFile(fs_, dir_));
  ASSERT_TRUE(owner.has_value());
  const auto open = [this](const Tensor& w, const char* name) {
    EXPECT_OK(servers_.Restart());
    Scope root;
    MakeVariable(root.WithName(name), Const(root, w));
    GlobalStep(root);
    const auto job = JobSessions::Make(root, Options());
    EXPECT_OK(job.status());
    return (*job)->Open(kSharedTarget).status();
  };
  const std::string where = absl::StrCat("Test: logdir '", dir_,
                                         "' must hold checkpoints of this model, got another "
                                         "model's: '",
                                         JoinPath(dir_, "model.ckpt-7"), "' ");
  const std::string what_to_do = "; give this program another logdir, or move that one away";
  const std::string whose = absl::StrCat("; '", dir_, "' is that of ", owner->chief, ", since ",
                                         owner->since, what_to_do);
  const Status renamed = open(Tensor::Scalar(1.f), "b");
  EXPECT_STATUS(renamed, absl::StatusCode::kFailedPrecondition, where);
  EXPECT_STATUS(renamed, absl::StatusCode::kFailedPrecondition, "lacks 1 ('b'; built at ");
  EXPECT_STATUS(
      renamed, absl::StatusCode::kFailedPrecondition,
      absl::StrCat(") of the 2 variables of this one, has 1 ('w') that this one has not", whose));
  EXPECT_STATUS(
      open(Tensor::Of({1.f, 2.f}), "w"), absl::StatusCode::kFailedPrecondition,
      absl::StrCat(where, "differs in 1 ('w' must be float [2], got float []; built at "));
  EXPECT_STATUS(open(Tensor::Scalar<int32_t>(1), "w"), absl::StatusCode::kFailedPrecondition,
                "'w' must be int32 [], got float []");
  // The run there, its owner and its end are as they were.
  ASSERT_OK_AND_ASSIGN(const auto still, ReadRunFile(fs_, dir_));
  ASSERT_TRUE(still.has_value());
  EXPECT_EQ(still->token, owner->token);
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  EXPECT_TRUE(end.has_value());
  EXPECT_OK(open(Tensor::Scalar(5.f), "w")) << "this is the model";

  // A checkpoint that came from elsewhere.
  ASSERT_OK(fs_->DeleteFile(RunFilePath(dir_)));
  EXPECT_STATUS(open(Tensor::Scalar(1.f), "b"), absl::StatusCode::kFailedPrecondition,
                "' has no run.json that says whose it is, and that checkpoint is of 20");
}

TEST_F(JobSessionsTest, TheNextChiefAndTheEndOfTheRunSweepWhatKilledSavesLeft) {
  const std::string prefix = JoinPath(dir_, "model.ckpt");
  const auto has = [&](int step) {
    return fs_->FileExists(absl::StrCat(prefix, "-", step, ".index"));
  };
  // Six are there afterwards, five are listed, as after a kill.
  const auto save = [&](JobSessions* job, Session* session, int first) {
    for (int step = first; step < first + 6; ++step) {
      const ScopedFailPoints killed(
          step == first + 5 ? "saver/before_delete=error:resource_exhausted" : "");
      EXPECT_OK(job->saver()->Save(session, prefix, step).status());
    }
    EXPECT_TRUE(has(first));
    EXPECT_EQ(ReadCheckpointState(fs_, dir_)->all.size(), 5u);
  };
  {
    const HookedModel model;
    ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
    ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
    save(job.get(), ready.session.get(), 1);
  }
  // A user's own, with the run's prefix and another.
  for (const char* name : {"model.ckpt-100", "best-1"}) {
    for (const char* suffix : {".index", ".data-00000-of-00001"}) {
      ASSERT_OK(WriteFileAtomically(fs_, JoinPath(dir_, absl::StrCat(name, suffix)), "own"));
    }
  }
  ASSERT_OK(servers_.Restart());
  const HookedModel model;
  ASSERT_OK_AND_ASSIGN(const auto job, JobSessions::Make(model.root, Options()));
  ASSERT_OK_AND_ASSIGN(const auto ready, job->Open(kSharedTarget));
  EXPECT_EQ(ready.restored_checkpoint, absl::StrCat(prefix, "-6"));
  EXPECT_FALSE(has(1));
  for (const int step : {2, 3, 4, 5, 6, 100}) EXPECT_TRUE(has(step)) << step;
  save(job.get(), ready.session.get(), 7);
  ASSERT_OK(job->TellEnd(ready.session.get(), {.reason = "done"}));
  EXPECT_FALSE(has(7));
  for (const int step : {8, 9, 10, 11, 12, 100}) EXPECT_TRUE(has(step)) << step;
  EXPECT_TRUE(fs_->FileExists(JoinPath(dir_, "best-1.index")));
}

TEST_F(JobSessionsTest, ADirectoryThatCannotBeWrittenIsRefusedByTheNameOfItsOption) {
  ASSERT_OK(WriteFileAtomically(fs_, dir_, "not a directory"));
  const HookedModel model;
  JobSessionsOptions options = Options();
  options.directory_option = "checkpoint_dir";
  const Status status = JobSessions::Make(model.root, options).status();
  EXPECT_TRUE(absl::StrContains(status.message(),
                                absl::StrCat("Test: checkpoint_dir '", dir_,
                                             "' must be a directory that can be written, got ")))
      << status;
}

}  // namespace
}  // namespace millrace

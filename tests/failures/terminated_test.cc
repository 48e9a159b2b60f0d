// SPDX-License-Identifier: Apache-2.0
//
// SIGTERM to the tasks of a job, as a cluster manager ends or moves it: what was acknowledged is in
// the last checkpoint, and the job goes on from it. docs/failures.md has the table.
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/failures/ledger.h"
#include "tests/failures/ledger_job.h"

// covers: training: processes that receive SIGTERM leave a last checkpoint

namespace millrace {
namespace {

// All trainers step, and a checkpoint is not what the last one was.
void AwaitTraining(LedgerJob* job) {
  ASSERT_OK(job->AwaitSteps("chief-0").status());
  ASSERT_OK(job->AwaitSteps("worker-0").status());
}

void ExpectTrainersEnd(LedgerJob* job) {
  job->Measured("the chief has ended after", job->ExpectExit("chief-0", 128 + SIGTERM));
  job->ExpectExit("worker-0", 128 + SIGTERM);
  job->ExpectOutput("chief-0", "Supervisor: ended by SIGTERM; saved ");
}

// What the job came to after so many lives of its variables.
void ExpectNothingWasLost(LedgerJob* job, int lives) {
  ASSERT_NO_FATAL_FAILURE(AwaitTraining(job));
  job->ExpectEndsWell();
  job->ExpectAcknowledgedAreSaved();
  // A step that was acknowledged while the last checkpoint was written counts as lost there.
  const LedgerReport report = job->ExpectLedgerHolds(std::numeric_limits<int64_t>::max());
  EXPECT_EQ(report.lives, lives);
}

void TrainersFirst(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  int rounds = 0;
  for (const std::vector<std::string>& order : std::vector<std::vector<std::string>>{
           {"chief-0", "worker-0"}, {"worker-0", "chief-0"}, {"chief-0", "worker-0"}}) {
    SCOPED_TRACE(absl::StrJoin(order, " "));
    ASSERT_NO_FATAL_FAILURE(AwaitTraining(&job));
    for (const std::string& task : order) job.Terminate(task);
    ASSERT_NO_FATAL_FAILURE(ExpectTrainersEnd(&job));
    job.Terminate("ps-0");
    job.ExpectExit("ps-0", 0);
    job.ExpectAcknowledgedAreSaved();
    ++rounds;
    for (const char* task : {"ps-0", "chief-0", "worker-0"}) ASSERT_OK(job.StartTask(task));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingWasLost(&job, rounds + 1));
}

// The chief alone is moved: the others train on, and it adopts what they have done.
void ChiefAlone(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitTraining(&job));
  job.Terminate("chief-0");
  job.ExpectExit("chief-0", 128 + SIGTERM);
  ASSERT_OK(job.AwaitSteps("worker-0", 10).status());
  ASSERT_OK(job.StartTask("chief-0"));
  ASSERT_NO_FATAL_FAILURE(ExpectNothingWasLost(&job, 1));
}

// The ps alone is moved, under trainers that live and are not told: they train on as long as it may
// stay, then wait for it by its name. What is newer than the checkpoint is lost with it.
void PsAlone(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitTraining(&job));
  ASSERT_OK(job.AwaitSaved().status());
  job.Terminate("ps-0");
  ASSERT_OK(job.task("ps-0")->WaitForLine("was told to end", kGuard).status());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.Measured("the ps has ended after", job.ExpectExit("ps-0", 0));
  job.ExpectOutput("ps-0", "leaves although these sessions are open: 1 of /job:chief/");
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  for (const char* task : {"chief-0", "worker-0"}) {
    ASSERT_OK(job.task(task)
                  ->WaitForLine("still waiting for response from worker: /job:ps/", kGuard)
                  .status());
  }
  ASSERT_OK(job.StartTask("ps-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration chief, job.AwaitSteps("chief-0"));
  job.Measured("the chief steps again, restored, after", chief);
  ASSERT_OK(job.AwaitSession("chief-0", "restored"));
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(at_stake).lives, 2);
}

// A cluster manager that ends a job asks all of its tasks in one moment, in any order.
void AllAtOnce(const char* name) {
  constexpr int kRounds = 10;
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  std::vector<std::string> order = {"chief-0", "ps-0", "worker-0"};
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE(absl::StrJoin(order, " "));
    ASSERT_NO_FATAL_FAILURE(AwaitTraining(&job));
    for (const std::string& task : order) job.Terminate(task);
    ASSERT_NO_FATAL_FAILURE(ExpectTrainersEnd(&job));
    job.Measured("the ps has ended after", job.ExpectExit("ps-0", 0));
    job.ExpectAcknowledgedAreSaved();
    for (const std::string& task : order) ASSERT_OK(job.StartTask(task));
    std::next_permutation(order.begin(), order.end());
  }
  ASSERT_NO_FATAL_FAILURE(ExpectNothingWasLost(&job, kRounds + 1));
}

TEST(TerminatedTest, AllTasksInOneMoment) { RunAtOnce({{"all_are_terminated", AllAtOnce}}); }

TEST(TerminatedTest, TheTrainers) {
  RunAtOnce({{"trainers_are_terminated", TrainersFirst}, {"chief_is_terminated", ChiefAlone}});
}

TEST(TerminatedTest, TheParameterServerAlone) { RunAtOnce({{"ps_is_terminated", PsAlone}}); }

}  // namespace
}  // namespace millrace

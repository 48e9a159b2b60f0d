// SPDX-License-Identifier: Apache-2.0
//
// kill -9 of each role, and where it is started again. docs/failures.md has the table.
#include <cstdint>
#include <string>

#include "core/exit_code.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/failures/ledger.h"
#include "tests/failures/ledger_job.h"

// covers: clusters: ps, chief, worker, evaluator × killed and started again (same address, another
//   one), stopped, partitioned, disk full: the others act as `docs/failures.md` says, and no
//   acknowledged step is lost or applied twice beyond it
// covers: article 1-3: training goes on from the checkpoint after a death
// covers: article 3-39: any process may be killed at any time
// covers: scenario F4: each role killed

namespace millrace {
namespace {

void PsComesAgain(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("ps-0");
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  ASSERT_OK(job.StartTask("ps-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration chief, job.AwaitSteps("chief-0"));
  job.Measured("the chief steps again, restored, after", chief);
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSession("chief-0", "restored"));
  job.ExpectEndsWell();
  const LedgerReport report = job.ExpectLedgerHolds(at_stake);
  EXPECT_EQ(report.lives, 2);
  EXPECT_GE(report.lost, 1);
}

void PsComesAgainBeforeACheckpoint(const char* name) {
  LedgerJob job(name, {.args = {"--save_secs=3600"}});
  ASSERT_OK(job.Start());
  // The first checkpoint is there at once.
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.Kill("ps-0");
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  ASSERT_OK(job.StartTask("ps-0"));
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(at_stake).lives, 2);
}

void PsComesAgainElsewhere(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("ps-0");
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  job.MoveTask("ps-0", /*through_proxies=*/true);
  ASSERT_OK(job.StartTask("ps-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration chief, job.AwaitSteps("chief-0"));
  job.Measured("the chief steps again, restored, after", chief);
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(at_stake).lives, 2);
}

// A ps that stays away for longer than trainers may wait: they have named it, and give up, to be
// started again.
void PsStaysAway(const char* name) {
  LedgerJob job(name, {.args = {"--session_timeout_secs=15"}});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("ps-0");
  job.ExpectExit("chief-0", kExitRetryable);
  job.ExpectExit("worker-0", kExitRetryable);
  for (const char* task : {"chief-0", "worker-0"}) {
    job.ExpectOutput(task, "still waiting for response from worker: /job:ps/replica:0/task:0");
    job.ExpectOutput(task, "got none from /job:ps/replica:0/task:0 at 127.0.0.1:");
  }
  job.ExpectLedgerHolds(0);
}

void ChiefComesAgain(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("chief-0");
  // The others need no chief to train.
  ASSERT_OK(job.AwaitSteps("worker-0", 10).status());
  ASSERT_OK(job.StartTask("chief-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration chief, job.AwaitSteps("chief-0"));
  job.Measured("the chief steps again, having adopted, after", chief);
  ASSERT_OK(job.AwaitSession("chief-0", "adopted"));
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void ChiefComesAgainElsewhere(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("chief-0");
  job.MoveTask("chief-0", /*through_proxies=*/true);
  ASSERT_OK(job.StartTask("chief-0"));
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void WorkerComesAgain(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.Kill("worker-0");
  ASSERT_OK(job.AwaitSteps("chief-0", 10).status());
  ASSERT_OK(job.StartTask("worker-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration worker, job.AwaitSteps("worker-0"));
  job.Measured("the worker steps again after", worker);
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void WorkerStaysAway(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.Kill("worker-0");
  ASSERT_OK(job.AwaitSteps("chief-0", 10).status());
  job.ExpectEndsWell({"worker-0"});
  const LedgerReport report = job.ExpectLedgerHolds(0);
  EXPECT_EQ(report.lives, 1);
  EXPECT_EQ(report.lost, 0) << "the chief noticed";
}

void WorkerComesAgainElsewhere(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.Kill("worker-0");
  job.MoveTask("worker-0", /*through_proxies=*/true);
  ASSERT_OK(job.StartTask("worker-0"));
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

// The ps has its old address. Steps travel on the link that the worker has dialled.
void WorkerComesAgainWhereNobodyLooks(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.Kill("worker-0");
  job.MoveTask("worker-0", /*through_proxies=*/false);
  ASSERT_OK(job.StartTask("worker-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration worker, job.AwaitSteps("worker-0"));
  job.Measured("the worker steps again after", worker);
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void EvaluatorComesAgain(const char* name) {
  LedgerJob job(name, {.evaluator = true});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.task("evaluator-0")->WaitForLine("Evaluated step", kGuard).status());
  job.Kill("evaluator-0");
  ASSERT_OK(job.AwaitSteps("chief-0", 5).status());
  ASSERT_OK(job.AwaitSaved().status());
  ASSERT_OK(job.StartTask("evaluator-0"));
  ASSERT_OK(job.task("evaluator-0")->WaitForLine("Evaluated step", kGuard).status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0) << "a trainer noticed";
  job.ExpectOutput("evaluator-0", "The run has ended at step ");
}

void AllComeAgain(const char* name) {
  LedgerJob job(name, {.evaluator = true});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.KillAll();
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  // In the order that is the worst.
  for (const char* task : {"evaluator-0", "worker-0", "chief-0", "ps-0"}) {
    ASSERT_OK(job.StartTask(task));
  }
  ASSERT_OK_AND_ASSIGN(const absl::Duration worker, job.AwaitSteps("worker-0"));
  job.Measured("the worker steps again after", worker);
  ASSERT_OK(job.AwaitSession("chief-0", "restored"));
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(at_stake).lives, 2);
}

TEST(KilledTest, TheParameterServer) {
  RunAtOnce({{"ps_comes_again", PsComesAgain},
             {"ps_stays_away", PsStaysAway},
             {"ps_comes_again_before_a_checkpoint", PsComesAgainBeforeACheckpoint},
             {"ps_comes_again_elsewhere", PsComesAgainElsewhere}});
}

TEST(KilledTest, TheChief) {
  RunAtOnce({{"chief_comes_again", ChiefComesAgain},
             {"chief_comes_again_elsewhere", ChiefComesAgainElsewhere}});
}

TEST(KilledTest, TheWorker) {
  RunAtOnce({{"worker_comes_again", WorkerComesAgain},
             {"worker_stays_away", WorkerStaysAway},
             {"worker_comes_again_elsewhere", WorkerComesAgainElsewhere},
             {"worker_comes_again_where_nobody_looks", WorkerComesAgainWhereNobodyLooks}});
}

TEST(KilledTest, TheEvaluatorAndAll) {
  RunAtOnce({{"evaluator_comes_again", EvaluatorComesAgain}, {"all_come_again", AllComeAgain}});
}

}  // namespace
}  // namespace millrace

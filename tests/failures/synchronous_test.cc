// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training, and kill -9, SIGSTOP and SIGTERM of each role: the others are held up, and
// go on. docs/failures.md has the table.
#include <signal.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/failures/ledger.h"
#include "tests/failures/ledger_job.h"

// covers: clusters: synchronous training × ps, chief, worker killed, a worker stopped or
// terminated:
//   the others go on without it, and with it when it comes again; each global step has the
//   gradients of those that gave

namespace millrace {
namespace {

constexpr int kWorkers = 2, kTrainers = kWorkers + 1;
// What a fault may cost the others: its round is given up, and what they were at work on for this
// round comes too late.
constexpr int64_t kDroppedByAFault = 2 * (kTrainers - 1);
constexpr char kExpired[] = "nobody has renewed its lease";
// Longer than kGuard: who waits for the lease of a dead trainer fails the test.
constexpr char kLongLease[] = "--lease_secs=600";

LedgerJobOptions Synchronous() {
  return {.workers = kWorkers, .sync = kTrainers, .args = {kLongLease}};
}

// All trainers make steps together.
void AwaitAll(LedgerJob* job) {
  ASSERT_OK(job->AwaitSteps("chief-0").status());
  for (int i = 0; i < kWorkers; ++i) {
    ASSERT_OK(job->AwaitSteps(absl::StrCat("worker-", i)).status());
  }
}

LedgerReport ExpectEndsSynchronously(LedgerJob* job, int faults, int64_t at_stake = 0,
                                     const std::vector<std::string>& gone = {}) {
  job->ExpectEndsWell(gone);
  const LedgerReport report = job->ExpectLedgerHolds(at_stake);
  EXPECT_GT(report.shared, 0) << job->name() << ": no step had several trainers";
  EXPECT_LE(report.dropped, faults * kDroppedByAFault) << job->name();
  return report;
}

void WorkerIsKilled(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  job.Kill("worker-1");
  ASSERT_OK_AND_ASSIGN(const absl::Duration others, job.AwaitSteps("chief-0"));
  job.Measured("the others step again after", others);
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.StartTask("worker-1"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration again, job.AwaitSteps("worker-1"));
  job.Measured("the worker steps with them again after", again);
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  EXPECT_EQ(ExpectEndsSynchronously(&job, 1).lives, 1);
}

void WorkerStaysAway(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  job.Kill("worker-0");
  ASSERT_OK(job.AwaitSteps("chief-0", 10).status());
  const LedgerReport report = ExpectEndsSynchronously(&job, 1, 0, {"worker-0"});
  EXPECT_EQ(report.lives, 1);
  EXPECT_EQ(report.lost, 0) << "the others waited, and lost no session";
}

void ChiefIsKilled(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("chief-0");
  ASSERT_OK_AND_ASSIGN(const absl::Duration others, job.AwaitSteps("worker-0", 10));
  job.Measured("the workers step again, without a chief, after", others);
  ASSERT_OK(job.StartTask("chief-0"));
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  ASSERT_OK(job.AwaitSession("chief-0", "adopted"));
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  EXPECT_EQ(ExpectEndsSynchronously(&job, 1).lives, 1);
}

void PsIsKilled(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  ASSERT_OK(job.AwaitSaved().status());
  job.Kill("ps-0");
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  ASSERT_OK(job.StartTask("ps-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration chief, job.AwaitSteps("chief-0"));
  job.Measured("all step again, restored, after", chief);
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  ASSERT_OK(job.AwaitSession("chief-0", "restored"));
  EXPECT_EQ(ExpectEndsSynchronously(&job, 1, at_stake).lives, 2);
}

void AllAreKilled(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  ASSERT_OK(job.AwaitSaved().status());
  job.KillAll();
  ASSERT_OK_AND_ASSIGN(const int64_t at_stake, job.StepsAtStake());
  for (const char* task : {"worker-1", "worker-0", "chief-0", "ps-0"}) {
    ASSERT_OK(job.StartTask(task));
  }
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  EXPECT_EQ(ExpectEndsSynchronously(&job, 1, at_stake).lives, 2);
}

// Its session ends, and the others go on; what it gives then is of no session, and it joins anew.
void WorkerStopsForLongerThanItsLease(const char* name) {
  LedgerJobOptions options = Synchronous();
  // It mostly sleeps: a lease does not end while a step runs.
  options.args = {"--lease_secs=10", "--lease_period_secs=1", "--steps_per_second=10"};
  LedgerJob job(name, options);
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  constexpr int kTries = 5;
  bool is_over = false;
  for (int i = 0; i < kTries && !is_over; ++i) {
    job.Pause("worker-0");
    is_over = job.task("ps-0")->WaitForLine(kExpired, absl::Seconds(25)).ok();
    // The others go on without it.
    if (is_over) {
      EXPECT_OK(job.AwaitSteps("chief-0").status());
    }
    job.Continue("worker-0");
  }
  ASSERT_TRUE(is_over) << name << ": no lease ended\n" << job.task("ps-0")->output();
  ASSERT_OK_AND_ASSIGN(const absl::Duration again, job.AwaitSteps("worker-0"));
  job.Measured("the worker steps with the others again after", again);
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  const LedgerReport report = ExpectEndsSynchronously(&job, kTries);
  EXPECT_EQ(report.lives, 1);
  EXPECT_GE(report.lost, 1);
}

void WorkerStopsForAMoment(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  job.Pause("worker-0");
  // The others wait for it: the ps says so after ten seconds.
  ASSERT_OK(job.task("ps-0")->WaitForLine("waits for /job:worker/", kGuard).status());
  job.Continue("worker-0");
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  const LedgerReport report = ExpectEndsSynchronously(&job, 0);
  EXPECT_EQ(report.lives, 1);
  EXPECT_EQ(report.lost, 0) << "no session ended";
}

// It ends with its step, which is one of all; the others go on.
void WorkerIsTerminated(const char* name) {
  LedgerJob job(name, Synchronous());
  ASSERT_OK(job.Start());
  ASSERT_NO_FATAL_FAILURE(AwaitAll(&job));
  job.Terminate("worker-1");
  job.Measured("the worker has ended after", job.ExpectExit("worker-1", 128 + SIGTERM));
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  const LedgerReport report = ExpectEndsSynchronously(&job, 0, 0, {"worker-1"});
  EXPECT_EQ(report.lives, 1);
  EXPECT_EQ(report.lost, 0) << "the others waited, and lost no session";
}

TEST(SynchronousTest, ATaskIsKilled) {
  RunAtOnce({{"sync_worker_is_killed", WorkerIsKilled},
             {"sync_worker_stays_away", WorkerStaysAway},
             {"sync_chief_is_killed", ChiefIsKilled},
             {"sync_ps_is_killed", PsIsKilled},
             {"sync_all_are_killed", AllAreKilled}},
            /*at_once=*/2);
}

TEST(SynchronousTest, AWorkerIsStoppedOrTerminated) {
  RunAtOnce({{"sync_worker_stops_for_longer_than_its_lease", WorkerStopsForLongerThanItsLease},
             {"sync_worker_stops_for_a_moment", WorkerStopsForAMoment},
             {"sync_worker_is_terminated", WorkerIsTerminated}},
            /*at_once=*/2);
}

}  // namespace
}  // namespace millrace

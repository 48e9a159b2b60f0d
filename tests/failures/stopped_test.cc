// SPDX-License-Identifier: Apache-2.0
//
// SIGSTOP of each role, and SIGCONT: for a moment, for longer than a lease, for longer than the
// keepalive, and while somebody else takes its place.
#include <signal.h>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/failures/ledger.h"
#include "tests/failures/ledger_job.h"

// covers: clusters: ps, chief, worker, evaluator × killed and started again (same address, another
//   one), stopped, partitioned, disk full: the others act as `docs/failures.md` says, and no
//   acknowledged step is lost or applied twice beyond it
// covers: article 1-3: training goes on from the checkpoint after a death

namespace millrace {
namespace {

constexpr absl::Duration kMoment = absl::Seconds(3);
// Longer than kShortLease, shorter than the keepalive (net/grpc_settings.h: 30 s).
constexpr absl::Duration kLongerThanALease = absl::Seconds(16);
// Long enough for a busy machine to renew it in time.
const char* const kShortLease[] = {"--lease_secs=10", "--lease_period_secs=1"};
constexpr char kExpired[] = "nobody has renewed its lease";

LedgerJobOptions WithShortLease() { return {.args = {kShortLease[0], kShortLease[1]}}; }

// The task is away for so long: nothing else can be waited for.
void PauseFor(LedgerJob* job, const char* task, absl::Duration time) {
  job->Pause(task);
  Clock::Real()->SleepFor(time);
  job->Continue(task);
}

// Pauses `task` until the ps has ended a session by its lease: not while a step runs in it, and it
// may have been stopped in one.
void PauseUntilItsLeaseIsOver(LedgerJob* job, const char* task) {
  constexpr int kTries = 5;
  for (int i = 0; i < kTries; ++i) {
    job->Pause(task);
    const auto expired = job->task("ps-0")->WaitForLine(kExpired, absl::Seconds(25));
    job->Continue(task);
    if (expired.ok()) return;
  }
  ADD_FAILURE() << job->name() << ": no lease ended\n" << job->task("ps-0")->output();
}

void PsForAMoment(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  PauseFor(&job, "ps-0", kMoment);
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0);
}

void PsForLongerThanALease(const char* name) {
  LedgerJob job(name, WithShortLease());
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  PauseFor(&job, "ps-0", kLongerThanALease);
  // It takes the renewals that waited for it before it looks at its leases.
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  EXPECT_FALSE(job.task("ps-0")->FindLastLine(kExpired).has_value());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0);
}

void PsForLongerThanTheKeepalive(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  const absl::Time begin = absl::Now();
  job.Pause("ps-0");
  ASSERT_OK(job.AwaitLost("worker-0").status());
  job.Measured("the worker hears of it after", absl::Now() - begin);
  job.Continue("ps-0");
  ASSERT_OK_AND_ASSIGN(const absl::Duration again, job.AwaitSteps("worker-0"));
  job.Measured("the worker steps again after", again);
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  // The variables are where they were.
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void ChiefForAMoment(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.Pause("chief-0");
  ASSERT_OK(job.AwaitSteps("worker-0", 10).status());
  job.Continue("chief-0");
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void ChiefForLongerThanItsLease(const char* name) {
  LedgerJob job(name, WithShortLease());
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  ASSERT_NO_FATAL_FAILURE(PauseUntilItsLeaseIsOver(&job, "chief-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration chief, job.AwaitSteps("chief-0"));
  job.Measured("the chief steps again, having adopted, after", chief);
  ASSERT_OK(job.AwaitSession("chief-0", "adopted"));
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  const LedgerReport report = job.ExpectLedgerHolds(0);
  EXPECT_EQ(report.lives, 1);
  EXPECT_GE(report.lost, 1);
}

// It comes back to a run that another chief has.
void ChiefIsSucceeded(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.Pause("chief-0");
  job.MoveTask("chief-0", /*through_proxies=*/true);
  ASSERT_OK(job.StartTask("chief-0", /*beside=*/true));
  ASSERT_OK(job.task("chief-0")->WaitForLine("Supervisor: adopted all", kGuard).status());
  ASSERT_OK(job.former()->Signal(SIGCONT));
  ASSERT_OK_AND_ASSIGN(const int code, job.former()->WaitForExit(kGuard));
  EXPECT_EQ(code, 1) << job.former()->output();
  EXPECT_TRUE(job.former()->FindLastLine("the other one trains").has_value())
      << job.former()->output();
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  // No checkpoint of the former one's, none of its steps.
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void WorkerForAMoment(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.Pause("worker-0");
  ASSERT_OK(job.AwaitSteps("chief-0", 10).status());
  job.Continue("worker-0");
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0);
}

void WorkerForLongerThanItsLease(const char* name) {
  LedgerJob job(name, WithShortLease());
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_NO_FATAL_FAILURE(PauseUntilItsLeaseIsOver(&job, "worker-0"));
  ASSERT_OK_AND_ASSIGN(const absl::Duration worker, job.AwaitSteps("worker-0"));
  job.Measured("the worker steps again after", worker);
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.ExpectEndsWell();
  const LedgerReport report = job.ExpectLedgerHolds(0);
  EXPECT_EQ(report.lives, 1);
  EXPECT_GE(report.lost, 1);
}

void Evaluator(const char* name) {
  LedgerJob job(name, {.evaluator = true});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.task("evaluator-0")->WaitForLine("Evaluated step", kGuard).status());
  job.Pause("evaluator-0");
  ASSERT_OK(job.AwaitSaved().status());
  ASSERT_OK(job.AwaitSteps("chief-0", 10).status());
  job.Continue("evaluator-0");
  size_t line = job.task("evaluator-0")->lines().size();
  ASSERT_OK(job.task("evaluator-0")->WaitForLine("Evaluated step", kGuard, &line).status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0);
}

TEST(StoppedTest, EachRole) {
  RunAtOnce({{"ps_stops_for_longer_than_the_keepalive", PsForLongerThanTheKeepalive},
             {"ps_stops_for_longer_than_a_lease", PsForLongerThanALease},
             {"ps_stops_for_a_moment", PsForAMoment},
             {"chief_stops_for_a_moment", ChiefForAMoment},
             {"chief_stops_for_longer_than_its_lease", ChiefForLongerThanItsLease},
             {"chief_stops_and_is_succeeded", ChiefIsSucceeded},
             {"worker_stops_for_a_moment", WorkerForAMoment},
             {"worker_stops_for_longer_than_its_lease", WorkerForLongerThanItsLease},
             {"evaluator_stops", Evaluator}});
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// Networks between a trainer and the ps that break: one way and both ways, for a moment and for as
// long as it takes to be noticed, reset connections, slow ones.
//
// Steps travel over gRPC links. Each process has MILLRACE_UNIX_LINKS=0: a link within the host
// would pass the proxies by.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/failures/ledger.h"
#include "tests/failures/ledger_job.h"
#include "tests/failures/tcp_proxy.h"

// covers: clusters: ps, chief, worker, evaluator × killed and started again (same address, another
//   one), stopped, partitioned, disk full: the others act as `docs/failures.md` says, and no
//   acknowledged step is lost or applied twice beyond it
// covers: article 1-3: training goes on from the checkpoint after a death

namespace millrace {
namespace {

using Flow = TcpProxy::Flow;

constexpr absl::Duration kMoment = absl::Seconds(4);
constexpr char kPs[] = "ps-0";
// Its name in messages.
constexpr char kPsTask[] = "/job:ps/replica:0/task:0";

// Few steps: a dozen jobs run beside each other.
LedgerJobOptions Slow() {
  return {.args = {"--steps_per_second=8", "--lease_secs=5", "--lease_period_secs=1"}};
}

std::string OtherThan(const std::string& trainer) {
  return trainer == "chief-0" ? "worker-0" : "chief-0";
}

// What a step ends with when its network is gone: what passes (a new session is opened), and who is
// missing, with the address that `trainer` has for it.
void ExpectNamesThePs(LedgerJob* job, const std::string& trainer, const std::string& line) {
  EXPECT_TRUE(absl::StrContains(line, "UNAVAILABLE")) << line;
  EXPECT_TRUE(absl::StrContains(line, kPsTask)) << line;
  // And why: "the peer must answer within ...", "Task at ... must be reachable, got: ...".
  const std::string link =
      absl::StrCat("Link to ", kPsTask, " at 127.0.0.1:", job->proxy(trainer, kPs)->port());
  EXPECT_TRUE(absl::StrContains(line, link)) << line;
}

enum class Lost { kToPs, kFromPs, kBothWays };

// Until the trainer hears that the ps is not reachable: at the keepalive's end.
void PartitionUntilItIsNoticed(const char* name, const std::string& trainer, Lost lost) {
  LedgerJob job(name, Slow());
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  const absl::Time begin = absl::Now();
  if (lost != Lost::kFromPs) job.Set(trainer, kPs, Flow::kSwallowed);
  if (lost != Lost::kToPs) job.Set(kPs, trainer, Flow::kSwallowed);
  ASSERT_OK_AND_ASSIGN(const std::string line, job.AwaitLost(trainer));
  job.Measured("the trainer hears of it after", absl::Now() - begin);
  ExpectNamesThePs(&job, trainer, line);
  // Nobody else is held up.
  ASSERT_OK(job.AwaitSteps(OtherThan(trainer)).status());
  job.Heal();
  ASSERT_OK_AND_ASSIGN(const absl::Duration again, job.AwaitSteps(trainer));
  job.Measured("the trainer steps again after", again);
  ASSERT_OK(job.AwaitSteps(OtherThan(trainer)).status());
  ASSERT_OK(job.AwaitSaved().status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void WorkerToPs(const char* name) { PartitionUntilItIsNoticed(name, "worker-0", Lost::kToPs); }
void PsToWorker(const char* name) { PartitionUntilItIsNoticed(name, "worker-0", Lost::kFromPs); }
void WorkerAndPs(const char* name) { PartitionUntilItIsNoticed(name, "worker-0", Lost::kBothWays); }
void ChiefToPs(const char* name) { PartitionUntilItIsNoticed(name, "chief-0", Lost::kToPs); }
void PsToChief(const char* name) { PartitionUntilItIsNoticed(name, "chief-0", Lost::kFromPs); }
void ChiefAndPs(const char* name) { PartitionUntilItIsNoticed(name, "chief-0", Lost::kBothWays); }

void PsAndAll(const char* name) {
  LedgerJob job(name, Slow());
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  job.SetBoth("chief-0", kPs, Flow::kSwallowed);
  job.SetBoth("worker-0", kPs, Flow::kSwallowed);
  ASSERT_OK_AND_ASSIGN(const std::string line, job.AwaitLost("worker-0"));
  ExpectNamesThePs(&job, "worker-0", line);
  job.Heal();
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

// Shorter than the keepalive: TCP sends again what was lost, and nobody hears of it.
void AMoment(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  for (const bool both : {false, true}) {
    for (const char* trainer : {"worker-0", "chief-0"}) {
      job.Set(trainer, kPs, Flow::kHeld);
      if (both) job.Set(kPs, trainer, Flow::kHeld);
      Clock::Real()->SleepFor(kMoment / 2);
      job.Heal();
      ASSERT_OK(job.AwaitSteps(trainer).status());
    }
  }
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0);
}

// Again and again: each is a lost session, and the next one is there at once.
void ResetConnections(const char* name) {
  constexpr int kTimes = 10;
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSaved().status());
  for (int i = 0; i < kTimes; ++i) {
    const std::string trainer = i % 2 == 0 ? "worker-0" : "chief-0";
    job.proxy(trainer, kPs)->Cut();
    if (i % 4 < 2) job.proxy(kPs, trainer)->Cut();
    ASSERT_OK(job.AwaitSteps(trainer).status());
  }
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

// Whether a step is in a checkpoint twice, whose answer was lost before.
bool HasRepeated(LedgerJob* job) {
  if (!job->AwaitSaved().ok()) return false;
  const auto report = job->Audit();
  return report.ok() && report->repeated > 0;
}

// The ps does the step, its answer gets lost with the connection: the trainer does the step again.
void LostAnswers(const char* name) {
  // More on a machine so busy that the ps comes to none of the steps while their answers get lost.
  constexpr int kTimes = 5;
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  const absl::Time hang = absl::Now() + kGuard;
  for (int i = 0; i < kTimes || (!HasRepeated(&job) && absl::Now() < hang); ++i) {
    ASSERT_OK(job.AwaitSteps("worker-0").status());
    TcpProxy* const proxy = job.proxy("worker-0", kPs);
    proxy->Set(TcpProxy::Way::kOut, Flow::kSwallowed);
    // A step is under way soon, and the ps has done its part of it.
    Clock::Real()->SleepFor(absl::Milliseconds(500));
    proxy->Cut();
    proxy->Heal();
  }
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.ExpectEndsWell();
  const LedgerReport report = job.ExpectLedgerHolds(0);
  EXPECT_GE(report.lost, 1);
  // The semantics that docs/failures.md tells of; never more often than answers were lost.
  EXPECT_GE(report.repeated, 1);
  EXPECT_LE(report.repeated, report.lost);
}

// A limit of the program's own is its own error, not a session that is lost. It counts for saves,
// too, so only the worker has it: a disk may take its time.
void AStepLimit(const char* name) {
  LedgerJob job(name, {.args_of = {{"worker-0", {"--step_timeout_ms=8000"}}}});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.SetBoth("worker-0", kPs, Flow::kSwallowed);
  ASSERT_OK_AND_ASSIGN(const std::string line, job.AwaitLost("worker-0"));
  EXPECT_TRUE(absl::StrContains(line, "DEADLINE_EXCEEDED")) << line;
  // The tensor, and who was to send it.
  EXPECT_TRUE(absl::StrContains(line, "the step waited for ")) << line;
  EXPECT_TRUE(absl::StrContains(line, kPsTask)) << line;
  job.Measured("the worker has ended after", job.ExpectExit("worker-0", 1));
  ASSERT_OK(job.AwaitSteps("chief-0").status());
  job.ExpectEndsWell({"worker-0"});
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void SlowNetwork(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  job.proxy("worker-0", kPs)->Delay(absl::Milliseconds(200));
  job.proxy(kPs, "worker-0")->Delay(absl::Milliseconds(100));
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSteps("chief-0", 10).status());
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lost, 0);
}

class PartitionedTest : public ::testing::Test {
 protected:
  // For the processes that are started.
  static void SetUpTestSuite() { ::setenv("MILLRACE_UNIX_LINKS", "0", 1); }
};

TEST_F(PartitionedTest, UntilItIsNoticed) {
  const std::vector<LedgerCase> cases = {
      {"worker_to_ps", WorkerToPs}, {"ps_to_worker", PsToWorker}, {"worker_and_ps", WorkerAndPs},
      {"chief_to_ps", ChiefToPs},   {"ps_to_chief", PsToChief},   {"chief_and_ps", ChiefAndPs},
      {"ps_and_all", PsAndAll}};
  RunAtOnce(cases, static_cast<int>(cases.size()));
}

TEST_F(PartitionedTest, ForAMomentAndUnreliable) {
  RunAtOnce({{"a_moment", AMoment},
             {"reset_connections", ResetConnections},
             {"lost_answers", LostAnswers},
             {"a_step_limit", AStepLimit},
             {"slow_network", SlowNetwork}});
}

}  // namespace
}  // namespace millrace

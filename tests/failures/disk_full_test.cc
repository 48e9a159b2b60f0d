// SPDX-License-Identifier: Apache-2.0
//
// No space for a checkpoint where the ps writes its part, and where the chief commits it.
//
// A limit on the size of files (RLIMIT_FSIZE) stands for the full disk of the ps: its writes fail
// in the middle of a file, with EFBIG, and somebody else can lift it. The chief's, which writes its
// ledger as well, is a fail point.
#include <signal.h>
#include <sys/resource.h>

#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "saver/saver.h"
#include "tests/cluster/process.h"
#include "tests/failures/ledger_job.h"

namespace millrace {
namespace {

// Files of `process` may have so many bytes.
void LimitFiles(Process* process, rlim_t bytes) {
  rlimit limit;
  ASSERT_EQ(prlimit(process->pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = bytes;
  ASSERT_EQ(prlimit(process->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
}

// What the chief's end leaves behind: the last checkpoint, whole, and a worker that trains.
void ExpectNothingIsLost(LedgerJob* job) {
  EXPECT_TRUE(absl::StrContains(job->task("chief-0")->output(), "RESOURCE_EXHAUSTED"))
      << job->task("chief-0")->output();
  const auto latest = LatestCheckpoint(FileSystem::Posix(), job->log_dir());
  ASSERT_TRUE(latest.has_value());
  EXPECT_TRUE(CheckpointExists(FileSystem::Posix(), *latest)) << *latest;
  ASSERT_OK(job->AwaitSteps("worker-0", 5).status());
}

void OfThePs(const char* name) {
  LedgerJob job(name);
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  ASSERT_NO_FATAL_FAILURE(LimitFiles(job.task("ps-0"), 100000));
  job.Measured("the chief ends after", job.ExpectExit("chief-0", 1));
  job.ExpectOutput("chief-0", "model.ckpt-");
  ASSERT_NO_FATAL_FAILURE(ExpectNothingIsLost(&job));
  // Still full: a chief that comes again adopts, and ends again when it saves.
  ASSERT_OK(job.StartTask("chief-0"));
  job.ExpectExit("chief-0", 1);
  ASSERT_NO_FATAL_FAILURE(ExpectNothingIsLost(&job));
  ASSERT_NO_FATAL_FAILURE(LimitFiles(job.task("ps-0"), RLIM_INFINITY));
  ASSERT_OK(job.StartTask("chief-0"));
  ASSERT_OK(job.AwaitSaved().status());
  ASSERT_OK(job.AwaitSession("chief-0", "adopted"));
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
}

void OfTheChief(const char* name) {
  for (const char* where : {"saver/before_save", "saver/before_state"}) {
    LedgerJob job(name, {.env = {{"chief-0",
                                  {{"MILLRACE_FAIL_POINTS",
                                    std::string(where) + "=error:resource_exhausted,after=2"}}}}});
    ASSERT_OK(job.Start());
    job.ExpectExit("chief-0", 1);
    job.ExpectOutput("chief-0", where);
    ASSERT_NO_FATAL_FAILURE(ExpectNothingIsLost(&job));
    job.SetEnvironment("chief-0", {});
    ASSERT_OK(job.StartTask("chief-0"));
    ASSERT_OK(job.AwaitSaved().status());
    job.ExpectEndsWell();
    EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
  }
}

TEST(DiskFullTest, OfThePsAndOfTheChief) {
  // Processes inherit it: a write beyond the limit is an error then, not the end.
  signal(SIGXFSZ, SIG_IGN);
  RunAtOnce({{"disk_of_the_ps", OfThePs}, {"disk_of_the_chief", OfTheChief}});
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// No space for a checkpoint where the ps writes its part, and where the chief commits it.
//
// A limit on the size of files (RLIMIT_FSIZE) stands for the full disk of the ps: its writes fail
// in the middle of a file, with EFBIG, and somebody else can lift it. The chief's, which writes its
// ledger as well, is a fail point.
#include <signal.h>
#include <sys/resource.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "saver/saver.h"
#include "tests/cluster/process.h"
#include "tests/failures/ledger_job.h"

// covers: clusters: ps, chief, worker, evaluator × killed and started again (same address, another
//   one), stopped, partitioned, disk full: the others act as `docs/failures.md` says, and no
//   acknowledged step is lost or applied twice beyond it
// covers: article 1-3: training goes on from the checkpoint after a death

namespace millrace {
namespace {

// Files of `process` may have so many bytes.
void LimitFiles(Process* process, rlim_t bytes) {
  rlimit limit;
  ASSERT_EQ(prlimit(process->pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = bytes;
  ASSERT_EQ(prlimit(process->pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
}

// The chief has said so often that a save failed, with its path, and trains on.
void ExpectTrainsOn(LedgerJob* job, absl::string_view why, int saves) {
  size_t from = 0;
  for (int i = 0; i < saves; ++i) {
    ASSERT_OK_AND_ASSIGN(
        const std::string line,
        job->task("chief-0")->WaitForLine("Supervisor: checkpoint not written: ", kGuard, &from));
    EXPECT_TRUE(absl::StrContains(line, why)) << line;
    EXPECT_TRUE(absl::StrContains(line, job->log_dir() + "/model.ckpt-")) << line;
    EXPECT_TRUE(absl::StrContains(line, " bytes of variables; it is tried again in ")) << line;
  }
  ASSERT_OK(job->AwaitSteps("chief-0", 20).status());
  ASSERT_OK(job->AwaitSteps("worker-0").status());
  const auto latest = LatestCheckpoint(FileSystem::Posix(), job->log_dir());
  ASSERT_TRUE(latest.has_value());
  EXPECT_TRUE(CheckpointExists(FileSystem::Posix(), *latest)) << *latest;
}

// Of saves that failed.
void ExpectNothingIsLeft(const LedgerJob& job) {
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const auto names, fs->GetChildren(job.log_dir()));
  for (const std::string& name : names) {
    EXPECT_FALSE(absl::StrContains(name, "_temp_") || absl::StrContains(name, ".tempstate"))
        << name;
    const size_t data = name.find(".data-");
    if (data == std::string::npos) continue;
    EXPECT_TRUE(fs->FileExists(JoinPath(job.log_dir(), name.substr(0, data) + ".index"))) << name;
  }
}

void OfThePs(const char* name) {
  LedgerJob job(name, {.args = {"--stop_grace_secs=5"}});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.AwaitSteps("worker-0").status());
  ASSERT_OK(job.AwaitSaved().status());
  ASSERT_NO_FATAL_FAILURE(LimitFiles(job.task("ps-0"), 100000));
  ASSERT_NO_FATAL_FAILURE(ExpectTrainsOn(&job, "File too large", 3));
  // Asked to end while it is full: it says that there is no last checkpoint, and what the ps holds
  // is adopted by who comes next.
  job.Terminate("chief-0");
  job.Measured("the chief ends after", job.ExpectExit("chief-0", kExitRetryable));
  job.ExpectOutput("chief-0", "ended by SIGTERM: Supervisor: last checkpoint not written: ");
  ExpectNothingIsLeft(job);
  ASSERT_OK(job.StartTask("chief-0"));
  ASSERT_NO_FATAL_FAILURE(ExpectTrainsOn(&job, "File too large", 2));
  ASSERT_NO_FATAL_FAILURE(LimitFiles(job.task("ps-0"), RLIM_INFINITY));
  ASSERT_OK_AND_ASSIGN(const absl::Duration saved, job.AwaitSaved());
  job.Measured("a checkpoint is there after", saved);
  ASSERT_OK(job.AwaitSession("chief-0", "adopted"));
  job.ExpectEndsWell();
  EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
  ExpectNothingIsLeft(job);
}

void OfTheChief(const char* name) {
  for (const char* where : {"saver/before_save", "saver/before_state"}) {
    LedgerJob job(
        name, {.env = {{"chief-0",
                        {{"MILLRACE_FAIL_POINTS",
                          std::string(where) + "=error:resource_exhausted,after=2,times=4"}}}}});
    ASSERT_OK(job.Start());
    ASSERT_NO_FATAL_FAILURE(ExpectTrainsOn(&job, where, 4));
    ASSERT_OK(job.AwaitSaved().status());
    job.ExpectEndsWell();
    EXPECT_EQ(job.ExpectLedgerHolds(0).lives, 1);
    ExpectNothingIsLeft(job);
  }
}

TEST(DiskFullTest, OfThePsAndOfTheChief) {
  // Processes inherit it: a write beyond the limit is an error then, not the end.
  signal(SIGXFSZ, SIG_IGN);
  RunAtOnce({{"disk_of_the_ps", OfThePs}, {"disk_of_the_chief", OfTheChief}});
}

}  // namespace
}  // namespace millrace

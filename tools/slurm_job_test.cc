// SPDX-License-Identifier: Apache-2.0
//
// submit --backend slurm: its script, and what it does with the tasks of a Slurm that
// tools/testing/fake_slurm.py plays. tests/jobs/slurm_test.sh does it with Debian's.

#include "tools/slurm_job.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/job_config.h"
#include "tools/job_state.h"
#include "tools/run_program.h"
#include "tools/task_record.h"

// covers: programs: a job of Slurm's: the script ends, restarts and counts its tasks as launch does
// covers: scenario F21: the batch script for Slurm

namespace millrace {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSubmit[] = "tools/submit";
constexpr char kTask[] = "tools/testing/fake_task";

std::string Contents(const std::string& path) {
  const StatusOr<std::string> text = ReadFileToString(FileSystem::Posix(), path);
  return text.ok() ? *text : "";
}

ProgramEnd EndOf(const std::vector<std::string>& argv) {
  const StatusOr<ProgramEnd> end = RunProgram(argv);
  EXPECT_OK(end.status());
  if (!end.ok()) return {.code = -1, .output = "", .complaint = ""};
  return *end;
}

JobState Planned(std::vector<std::string> command) {
  return {.name = "census1",
          .id = "0123",
          .command = std::move(command),
          .job_dir = "/shared/out",
          .log_dir = "/shared/out/job/logs"};
}

TEST(RunProgramTest, GivesCodeAndOutputAndNoShellReadsTheWords) {
  const ProgramEnd end =
      EndOf({"sh", "-c", "echo \"$1\"; echo two >&2; exit 3", "x", "a; b 'c $d"});
  EXPECT_EQ(end.code, 3);
  EXPECT_EQ(end.output, "a; b 'c $d\n");
  EXPECT_EQ(end.complaint, "two\n");
  EXPECT_EQ(EndOf({"sh", "-c", "kill -9 $$"}).code, 137);
  EXPECT_STATUS(RunProgram({"no_such_program"}), absl::StatusCode::kNotFound,
                "program 'no_such_program' must be installed, got no such file");
  EXPECT_STATUS(RunProgram({"sh", "-c", "yes"}), absl::StatusCode::kResourceExhausted,
                "output must have at most 1048576 bytes");
}

TEST(SlurmScriptTest, RolesAreRanks) {
  JobConfig config = {.scale_tier = "STANDARD_1", .evaluator_count = 1};
  ASSERT_OK_AND_ASSIGN(const JobTasks tasks, TasksOf(config));
  ASSERT_OK_AND_ASSIGN(const std::string script,
                       SlurmScript(Planned({"census", "--name=it's a \"b\" $c", ""}), tasks,
                                   {.restarts = 3, .sbatch = {"--partition=long", "-A me"}}));
  for (const char* line : {
           "#!/bin/bash\n",
           "#SBATCH --job-name=census1\n#SBATCH --ntasks=9\n"
           "#SBATCH --output=/shared/out/job/logs/slurm.log\n",
           "#SBATCH --requeue\n#SBATCH --partition=long\n#SBATCH -A me\nfolder=/shared/out/job\n",
           "trainers=\"0 5 6 7 8\"\nevaluators=\"1\"\nvital=\"0 2 3 4\"\nrestarts=3\n",
           "MILLRACE_PS_TASKS=3 MILLRACE_EVALUATOR_TASKS=1\n",
           "MILLRACE_CHIEF_JOB=chief MILLRACE_JOB_NAME=census1 MILLRACE_JOB_DIR=/shared/out\n",
           "task census '--name=it'\\''s a \"b\" $c' '' &\n",
       }) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(script, Not(ContainsRegex("%[a-z_]+%")));
  const std::vector<TaskRecord> ranks = TasksByRank(tasks);
  ASSERT_EQ(ranks.size(), 9u);
  EXPECT_EQ(ranks[0].job, "chief");
  EXPECT_EQ(ranks[1].job, "evaluator");
  EXPECT_EQ(ranks[2].job, "ps");
  EXPECT_EQ(ranks[8].job, "worker");
  EXPECT_EQ(ranks[8].index, 3);
}

TEST(SlurmScriptTest, WhatWouldLeaveItsLineIsRefused) {
  const JobTasks tasks = {.tier = "BASIC"};
  const auto script = [&tasks](const std::string& dir, const std::string& option) {
    JobState job = Planned({"x"});
    job.job_dir = dir;
    job.log_dir = dir + "/job/logs";
    SlurmScriptOptions options;
    if (!option.empty()) options.sbatch = {option};
    return SlurmScript(job, tasks, options);
  };
  EXPECT_STATUS(script("/a\nb", ""), absl::StatusCode::kInvalidArgument,
                "the job's directory must be one line for Slurm, got '/a\\nb'");
  EXPECT_STATUS(script("/a%b", ""), absl::StatusCode::kInvalidArgument, "must have no '\"', '%'");
  EXPECT_STATUS(script("/a", "--x\nrm"), absl::StatusCode::kInvalidArgument,
                "--sbatch must be one line for Slurm");
  EXPECT_STATUS(script("/a", "long"), absl::StatusCode::kInvalidArgument,
                "--sbatch must be an option of sbatch, got 'long'");
  ASSERT_OK_AND_ASSIGN(const std::string blank, script("/a b", ""));
  EXPECT_THAT(blank, HasSubstr("#SBATCH --output=\"/a b/job/logs/slurm.log\"\n"));
  EXPECT_THAT(blank, HasSubstr("folder='/a b/job'\n"));
}

// With processes.
class SlurmJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = JoinPath(::testing::TempDir(),
                     absl::StrCat("slurm_job_test_", getpid(), "_",
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    FileSystem* const files = FileSystem::Posix();
    for (const char* folder : {"bin", "slurm"}) {
      ASSERT_OK(files->RecursivelyCreateDirectory(JoinPath(root_, folder)));
    }
    char* const here = realpath("tools/testing/fake_slurm.py", nullptr);
    ASSERT_NE(here, nullptr);
    for (const char* name : {"sbatch", "srun", "scancel", "squeue", "scontrol"}) {
      ASSERT_EQ(symlink(here, JoinPath(root_, absl::StrCat("bin/", name)).c_str()), 0);
    }
    std::free(here);
    setenv("MILLRACE_JOBS_DIR", (root_ + "/jobs").c_str(), 1);
    setenv("FAKE_SLURM", (root_ + "/slurm").c_str(), 1);
    static const std::string path = std::getenv("PATH");
    setenv("PATH", absl::StrCat(root_, "/bin:", path).c_str(), 1);
    gate_ = root_ + "/gate";
    ASSERT_EQ(mkfifo(gate_.c_str(), 0600), 0);
    gate_fd_ = open(gate_.c_str(), O_RDWR | O_CLOEXEC);
  }
  void TearDown() override {
    OpenGate();
    EndOf({kSubmit, "stop", "a", "--kill"});
  }
  void OpenGate() {
    if (gate_fd_ >= 0) close(gate_fd_);
    gate_fd_ = -1;
  }

  ProgramEnd Submit(std::vector<std::string> flags, const std::vector<std::string>& task) {
    flags.insert(flags.begin(), {kSubmit, "a", "--backend=slurm"});
    flags.insert(flags.end(), {"--", kTask});
    flags.insert(flags.end(), task.begin(), task.end());
    return EndOf(flags);
  }
  // One ps, master and workers.
  ProgramEnd SubmitCluster(std::vector<std::string> flags, const std::vector<std::string>& task) {
    flags.insert(flags.end(), {"--parameter-server-count=1", "--worker-count=2"});
    return Submit(std::move(flags), task);
  }
  ProgramEnd Command(std::vector<std::string> words) {
    words.insert(words.begin(), kSubmit);
    return EndOf(words);
  }
  // Until a task's log has the text; the bound of the test's time ends one that has failed.
  void AwaitLine(int rank, const std::string& text) {
    while (!absl::StrContains(Contents(absl::StrCat(root_, "/jobs/a/job/logs/task-", rank, ".log")),
                              text)) {
      usleep(10'000);
    }
  }
  std::string Log(int rank) {
    return Contents(absl::StrCat(root_, "/jobs/a/job/logs/task-", rank, ".log"));
  }

  std::string root_, gate_;
  int gate_fd_ = -1;
};

TEST_F(SlurmJobTest, ARunEndsWithItsPsAndItsStateIsSeen) {
  const ProgramEnd submitted =
      SubmitCluster({}, {"ps=config;say:up;until_term", absl::StrCat("*=config;await:", gate_)});
  EXPECT_EQ(submitted.code, 0) << submitted.complaint;
  EXPECT_THAT(submitted.output,
              ContainsRegex("job 'a' is Slurm's job 1, CUSTOM: 1 master, 2 workers, 1 ps"));
  for (int rank = 0; rank < 4; ++rank) AwaitLine(rank, rank == 1 ? "up\n" : "config ");
  EXPECT_THAT(Command({"list"}).output, ContainsRegex("\na +RUNNING +slurm +CUSTOM "));
  EXPECT_THAT(Submit({}, {}).complaint, HasSubstr("got 'a', RUNNING, slurm job 1"));
  OpenGate();
  const ProgramEnd wait = Command({"wait", "a"});
  EXPECT_EQ(wait.code, 0) << wait.output << wait.complaint;
  EXPECT_THAT(Log(1), HasSubstr("got SIGTERM\n"));
  const std::string described = Command({"describe", "a"}).output;
  EXPECT_THAT(described, ContainsRegex("state +SUCCEEDED, slurm job 1\n"));
  EXPECT_THAT(described, ContainsRegex("worker 1 +exit 0 .*done\n"));
  EXPECT_THAT(Command({"logs", "a", "--task=ps/0"}).output, HasSubstr("up\ngot SIGTERM\n"));
  EXPECT_THAT(Command({"logs", "a"}).output, HasSubstr("[ps 0] up\n"));
}

TEST_F(SlurmJobTest, EachTaskLearnsItsRoleFromItsRank) {
  EXPECT_EQ(SubmitCluster({"--chief", "--evaluator"}, {"*=config"}).code, 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 0);
  const std::string cluster =
      "config ..cluster.:..chief.:..localhost:1[0-9]+..,.ps.:..localhost:1[0-9]+..,"
      ".worker.:..localhost:1[0-9]+.,.localhost:1[0-9]+...,.task.:..type.:.";
  for (const auto& [rank, task] :
       std::vector<std::pair<int, std::string>>{{0, "chief.,.index.:0"},
                                                {1, "evaluator.,.index.:0"},
                                                {2, "ps.,.index.:0"},
                                                {3, "worker.,.index.:0"},
                                                {4, "worker.,.index.:1"}}) {
    EXPECT_THAT(Log(rank), ContainsRegex(cluster + task));
  }
}

TEST_F(SlurmJobTest, ARetryableEndIsRequeuedAndAnotherIsNot) {
  EXPECT_EQ(SubmitCluster({"--restarts=2"},
                          {"ps=until_term", "worker=until_term",
                           absl::StrCat("master=say:try;once:", root_, "/once;exit:137;say:fine")})
                .code,
            0);
  AwaitLine(0, "fine");
  // Its workers wait for SIGTERM for ever: they are no reason to end.
  EXPECT_EQ(Command({"stop", "a"}).code, 0);
  EXPECT_EQ(Log(0), "try\ntry\nfine\n");
  EXPECT_THAT(Command({"describe", "a"}).output, HasSubstr("restarted 1 times"));

  EXPECT_EQ(SubmitCluster({"--restarts=2", "--again"},
                          {"ps=until_term", "worker=until_term", "master=say:once;exit:3"})
                .code,
            0);
  const ProgramEnd wait = Command({"wait", "a"});
  EXPECT_EQ(wait.code, 3) << wait.output;
  EXPECT_THAT(wait.output, HasSubstr("FAILED"));
  EXPECT_EQ(Contents(root_ + "/jobs/a/job/logs.2/task-0.log"), "once\n");
}

TEST_F(SlurmJobTest, ADeadPsEndsTheJobAndAKilledWorkerDoesNot) {
  EXPECT_EQ(SubmitCluster({}, {absl::StrCat("ps=say:up;await:", gate_, ";exit:5"),
                               "worker0=signal:9", "*=say:up;until_term"})
                .code,
            0);
  for (const int rank : {0, 1, 3}) AwaitLine(rank, "up");
  while (Contents(root_ + "/jobs/a/job/ends/2").empty()) usleep(10'000);
  EXPECT_THAT(Command({"describe", "a"}).output, ContainsRegex("worker 0 +exit 137"));
  EXPECT_THAT(Command({"list"}).output, HasSubstr("RUNNING"));
  OpenGate();
  EXPECT_EQ(Command({"wait", "a"}).code, 5);
  EXPECT_THAT(Log(0), HasSubstr("got SIGTERM"));
}

TEST_F(SlurmJobTest, StopEndsWhatRunsAndCancelsWhatWaits) {
  EXPECT_EQ(Submit({}, {"*=say:up;until_term;exit:143"}).code, 0);
  AwaitLine(0, "up");
  const ProgramEnd stop = Command({"stop", "a"});
  EXPECT_EQ(stop.code, 0) << stop.complaint;
  EXPECT_THAT(stop.output, HasSubstr("job 'a' STOPPED"));
  EXPECT_EQ(Command({"wait", "a"}).code, 143);

  const int hold = open((root_ + "/slurm/hold").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  close(hold);
  EXPECT_EQ(Submit({"--again"}, {"*=say:never"}).code, 0);
  EXPECT_THAT(Command({"list"}).output, ContainsRegex("\na +QUEUED "));
  EXPECT_THAT(Command({"stop", "a"}).output, HasSubstr("job 'a' STOPPED"));
  EXPECT_EQ(Contents(root_ + "/jobs/a/job/logs.2/task-0.log"), "");
}

TEST_F(SlurmJobTest, WhatSbatchRefusesHasFailed) {
  const int refuse = open((root_ + "/slurm/refuse").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  close(refuse);
  const ProgramEnd end = Submit({}, {"*=say:never"});
  EXPECT_EQ(end.code, 1);
  EXPECT_THAT(end.complaint,
              HasSubstr("submit: sbatch must take the job, got code 1: sbatch: error: "
                        "invalid partition specified: none; the script is '"));
  EXPECT_EQ(Command({"wait", "a"}).code, 1);
  EXPECT_THAT(Submit({"--job-dir=s3://bucket/x"}, {}).complaint, Not(HasSubstr("sbatch must")));
}

TEST_F(SlurmJobTest, ADryRunShowsTheScriptAndKeepsNothing) {
  const ProgramEnd end =
      Submit({"--dry-run", "--scale-tier=STANDARD_1", "--sbatch=--partition=long",
              "--sbatch=--time=10:00", "--job-dir=" + root_ + "/out"},
             {"--flag"});
  EXPECT_EQ(end.code, 0) << end.complaint;
  EXPECT_THAT(end.output, HasSubstr("#SBATCH --ntasks=8\n"));
  EXPECT_THAT(end.output, HasSubstr("#SBATCH --partition=long\n#SBATCH --time=10:00\n"));
  EXPECT_THAT(end.output, HasSubstr(absl::StrCat(kTask, " --flag --job-dir ", root_, "/out &\n")));
  EXPECT_FALSE(FileSystem::Posix()->FileExists(root_ + "/out"));
  // A shell takes it.
  const std::string path = root_ + "/script";
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), path, end.output));
  EXPECT_EQ(EndOf({"bash", "-n", path}).complaint, "");
}

}  // namespace
}  // namespace millrace

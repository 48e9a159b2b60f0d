// SPDX-License-Identifier: Apache-2.0
//
// submit with processes: it runs tools/testing/fake_task.

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/job_state.h"
#include "tools/task_record.h"

// covers: programs: a submitted job goes on when its terminal is gone; its state, logs and exit
//   codes are files in its directory; list, describe, logs, stop and wait read them
// covers: programs: two submits of one name or directory: the second is refused and names the first
// covers: programs: stop ends a job in order, also one that has not started; a supervisor that was
//   killed leaves no task, and its job is seen to be lost
// covers: programs: a full disk for logs or for the state ends no submitted job
// covers: programs: the table at the end of launch is JSON for programs
// covers: article 0-32: submit: job name, scale tier, job directory, what is after -- goes to all
// covers: article 0-36: submit shows the lines of a job as they come, of some tasks only
// covers: article 2-27: submit takes gcloud's config.yaml
// covers: scenario F20: a job by scale tier, by config.yaml, by counts; its failure and its code

namespace millrace {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

constexpr char kSubmit[] = "tools/submit";
constexpr char kTask[] = "tools/testing/fake_task";

struct Ended {
  int code = -1;  // 1000 + n for signal n
  std::string output;
};

// Runs a program to its end; stdout and stderr together.
Ended RunProgram(const std::vector<std::string>& words) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  std::vector<std::string> copy = words;
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    execv(argv[0], argv.data());
    _exit(127);
  }
  close(ends[1]);
  Ended ended;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    ended.output.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  ended.code = WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended;
}

class SubmitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = JoinPath(::testing::TempDir(),
                     absl::StrCat("submit_test_", getpid(), "_",
                                  ::testing::UnitTest::GetInstance()->current_test_info()->name()));
    ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(root_));
    setenv("MILLRACE_JOBS_DIR", (root_ + "/jobs").c_str(), 1);
    gate_ = Path("gate");
    ASSERT_EQ(mkfifo(gate_.c_str(), 0600), 0);
    gate_fd_ = open(gate_.c_str(), O_RDWR | O_CLOEXEC);
  }
  void TearDown() override {
    OpenGate();
    for (const std::string& name : submitted_) RunProgram({kSubmit, "stop", name, "--kill"});
  }

  std::string Path(const std::string& name) const { return JoinPath(root_, name); }
  // Tasks that do "await:<gate_>" go on.
  void OpenGate() {
    if (gate_fd_ >= 0) close(gate_fd_);
    gate_fd_ = -1;
  }

  Ended Submit(const std::string& name, std::vector<std::string> flags,
               const std::vector<std::string>& task) {
    submitted_.push_back(name);
    flags.insert(flags.begin(), {kSubmit, name});
    flags.insert(flags.end(), {"--", kTask});
    flags.insert(flags.end(), task.begin(), task.end());
    return RunProgram(flags);
  }
  Ended Command(std::vector<std::string> words) {
    words.insert(words.begin(), kSubmit);
    return RunProgram(words);
  }
  Json Describe(const std::string& name) {
    const Ended ended = Command({"describe", name, "--json"});
    EXPECT_EQ(ended.code, 0) << ended.output;
    return Json::parse(ended.output, nullptr, false);
  }
  // Waits until the job's logs have this text, by the command itself.
  void AwaitLine(const std::string& name, const std::string& text) {
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(ends[1], 1);
      execl(kSubmit, kSubmit, "logs", name.c_str(), "--follow", nullptr);
      _exit(127);
    }
    close(ends[1]);
    std::string output;
    char buffer[4096];
    for (ssize_t n;
         !absl::StrContains(output, text) && (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
      output.append(buffer, static_cast<size_t>(n));
    }
    EXPECT_THAT(output, HasSubstr(text));
    close(ends[0]);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }

  std::string root_, gate_;
  int gate_fd_ = -1;
  std::vector<std::string> submitted_;
};

TEST_F(SubmitTest, ATierRunsAndItsStateLogsAndCodesAreFiles) {
  const std::string dir = Path("out");
  const Ended ended = Submit("census1", {"--scale-tier", "STANDARD_1", "--job_dir=" + dir},
                             {"ps=say:up;until_term", absl::StrCat("master=await:", gate_, ";job"),
                              "*=say:three", "--train-steps", "5"});
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (const char* ps : {"ps 0", "ps 1", "ps 2"}) AwaitLine("census1", absl::StrCat(ps, "] up"));
  OpenGate();
  EXPECT_THAT(ended.output,
              HasSubstr(absl::StrCat("submit: job 'census1' runs, STANDARD_1: 1 master, 4 workers, "
                                     "3 ps; directory ",
                                     dir, "\n")));
  const Ended wait = Command({"wait", "census1"});
  EXPECT_EQ(wait.code, 0) << wait.output;
  EXPECT_THAT(wait.output, HasSubstr("submit: job 'census1' SUCCEEDED: done\n"));

  // From the directory alone, as another machine reads it.
  ASSERT_OK_AND_ASSIGN(const JobState state, ReadJobState(FileSystem::Posix(), dir));
  EXPECT_EQ(PhaseName(state.phase), "SUCCEEDED");
  EXPECT_EQ(state.exit_code, 0);
  EXPECT_EQ(state.tier, "STANDARD_1");
  ASSERT_EQ(state.tasks.size(), 8u);
  for (const TaskRecord& task : state.tasks) {
    EXPECT_EQ(task.exit_code, 0) << task.job << task.index;
    EXPECT_EQ(task.starts, 1);
  }
  ASSERT_OK_AND_ASSIGN(const std::string master,
                       ReadFileToString(FileSystem::Posix(), dir + "/job/logs/master-0.log"));
  EXPECT_EQ(master, absl::StrCat("job census1 in ", dir, " --train-steps 5 --job-dir ", dir, "\n"));
  ASSERT_OK_AND_ASSIGN(const std::string all,
                       ReadFileToString(FileSystem::Posix(), dir + "/job/logs/all.log"));
  EXPECT_THAT(all, HasSubstr("[worker 3] three\n"));
  EXPECT_THAT(all, HasSubstr("submit: job ended with code 0\n"));
  EXPECT_FALSE(FileSystem::Posix()->FileExists(dir + "/job/lock"));

  const Ended described = Command({"describe", "--job-dir", dir});
  EXPECT_EQ(described.code, 0);
  for (const char* line : {"job +census1\n", "state +SUCCEEDED\n", "exit code +0\n",
                           "tier +STANDARD_1\n", "master 0 +exit 0 +[0-9.]+ +1 +done\n"}) {
    EXPECT_THAT(described.output, ContainsRegex(line));
  }
  EXPECT_EQ(Command({"logs", "census1", "--task=worker/1"}).output, "three\n");
  EXPECT_EQ(Command({"logs", "census1", "--task", "worker-0,worker/3"}).output,
            "[worker 0] three\n[worker 3] three\n");
  EXPECT_EQ(Command({"logs", "census1"}).output, all);
  const Ended none = Command({"logs", "census1", "--task=worker/4"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.output, HasSubstr("must have the tasks of --task, got 'worker-4'"));
}

TEST_F(SubmitTest, TheArticlesConfigIsTaken) {
  std::ofstream(Path("config.yaml")) << "trainingInput:\n"
                                        "  # Use a cluster with many workers.\n"
                                        "  scaleTier: CUSTOM\n"
                                        "  workerCount: 1\n"
                                        "  parameterServerCount: 1\n"
                                        "  region: us-central1\n"
                                        "  args: ['ps=until_term', 'worker=say:hello', '*=job']\n";
  const Ended ended = Submit("job01",
                             {"--package-path=trainer", "--module-name=trainer.task",
                              "--region=us-central1", "--config=" + Path("config.yaml")},
                             {});
  EXPECT_EQ(ended.code, 0) << ended.output;
  for (const char* text :
       {"submit: warning: --module-name means nothing here and is ignored\n",
        "config.yaml:6:3: 'trainingInput.region' means nothing here and is ignored\n",
        "CUSTOM: 1 master, 1 workers, 1 ps"}) {
    EXPECT_THAT(ended.output, HasSubstr(text));
  }
  EXPECT_EQ(Command({"wait", "job01"}).code, 0);
  // Without --job-dir the program gets none.
  EXPECT_EQ(Command({"logs", "job01", "--task=master"}).output,
            absl::StrCat("job job01 in ", root_, "/jobs/job01\n"));
}

TEST_F(SubmitTest, GoesOnWhenItsTerminalIsGone) {
  int reader = -1, writer = -1;
  if (openpty(&reader, &writer, nullptr, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "there are no pseudo-terminals here: " << std::strerror(errno);
  }
  // A copy of it in the shell would keep the terminal.
  fcntl(reader, F_SETFD, FD_CLOEXEC);
  submitted_.push_back("a");
  const std::string task = absl::StrCat("master=say:up;await:", gate_, ";say:went on");
  const pid_t shell = fork();
  if (shell == 0) {
    setsid();
    ioctl(writer, TIOCSCTTY, 0);
    for (int fd : {0, 1, 2}) dup2(writer, fd);
    // Stays in the session of the terminal until it is hung up.
    execl("/bin/sh", "sh", "-c", "\"$0\" a -- \"$1\" \"$2\"; read line", kSubmit, kTask,
          task.c_str(), nullptr);
    _exit(127);
  }
  close(writer);
  std::string screen;
  char buffer[4096];
  for (ssize_t n; !absl::StrContains(screen, "submit stop a ends it") &&
                  (n = read(reader, buffer, sizeof(buffer))) > 0;) {
    screen.append(buffer, static_cast<size_t>(n));
  }
  AwaitLine("a", "[master 0] up");
  close(reader);  // hangs up
  int status = 0;
  waitpid(shell, &status, 0);
  EXPECT_EQ(Describe("a")["state"], "RUNNING");
  OpenGate();
  const Ended wait = Command({"wait", "a"});
  EXPECT_EQ(wait.code, 0) << wait.output;
  EXPECT_EQ(Command({"logs", "a", "--task=master"}).output, "up\nwent on\n");
}

TEST_F(SubmitTest, ASecondSubmitIsRefusedAndNamesTheFirst) {
  const std::string dir = Path("out");
  const std::vector<std::string> task = {absl::StrCat("master=say:up;await:", gate_)};
  EXPECT_EQ(Submit("first", {"--job-dir=" + dir, "--no-job-dir-argument"}, task).code, 0);
  // The directory.
  const Ended other = Submit("other", {"--job-dir=" + dir}, task);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.output,
              ContainsRegex("submit: directory '.*/out' must be of no other job, got 'first', "
                            "(RUNNING|PREPARING) on .*, pid [0-9]+\n"));
  // The name.
  const Ended again = Submit("first", {"--job-dir=" + Path("out2")}, task);
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.output, ContainsRegex("submit: job 'first' must be one job, got another in "
                                          "'.*/out', (RUNNING|PREPARING) on .*, pid [0-9]+; "));
  EXPECT_EQ(Command({"describe", "other"}).code, 1);
  OpenGate();
  EXPECT_EQ(Command({"wait", "first"}).code, 0);

  // A job that is over keeps its name and directory, until somebody says that he goes on there.
  const Ended over = Submit("first", {"--job-dir=" + dir}, {"*=say:second"});
  EXPECT_EQ(over.code, 1);
  EXPECT_THAT(over.output, HasSubstr("got 'first', SUCCEEDED; --again goes on there\n"));
  EXPECT_EQ(Submit("first", {"--job-dir=" + dir, "--again"}, {"*=say:second"}).code, 0);
  EXPECT_EQ(Command({"wait", "first"}).code, 0);
  EXPECT_EQ(Describe("first")["attempt"], 2);
  EXPECT_EQ(Command({"logs", "first", "--task=master"}).output, "second\n");
  ASSERT_OK_AND_ASSIGN(const std::string former,
                       ReadFileToString(FileSystem::Posix(), dir + "/job/logs/master-0.log"));
  EXPECT_EQ(former, "up\n");
}

TEST_F(SubmitTest, OfManySubmitsAtOnceOneRuns) {
  const std::vector<std::string> task = {absl::StrCat("master=await:", gate_)};
  submitted_.push_back("one");
  std::vector<Ended> ended(8);
  std::vector<std::thread> threads;
  for (Ended& one : ended) {
    threads.emplace_back([&one, &task] {
      one = RunProgram({kSubmit, "one", "--", kTask, task[0]});
    });
  }
  for (std::thread& thread : threads) thread.join();
  int ran = 0;
  for (const Ended& one : ended) {
    ran += one.code == 0 ? 1 : 0;
    if (one.code != 0) {
      EXPECT_EQ(one.code, 1);
      EXPECT_THAT(one.output, ContainsRegex("must be of no other job, got.*\\bone\\b"));
    }
  }
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(Describe("one")["attempt"], 1);
}

TEST_F(SubmitTest, StopEndsTheTrainersThenThePs) {
  EXPECT_EQ(Submit("a", {"--worker-count=1", "--parameter-server-count=1"},
                   {"ps=say:up;until_term", "*=say:up;until_term;exit:143"})
                .code,
            0);
  for (const char* task : {"ps 0", "master 0", "worker 0"}) {
    AwaitLine("a", absl::StrCat("[", task, "] up"));
  }
  const Ended stop = Command({"stop", "a"});
  EXPECT_EQ(stop.code, 0) << stop.output;
  EXPECT_THAT(stop.output, HasSubstr("submit: job 'a' STOPPED: asked to end\n"));
  EXPECT_EQ(Command({"wait", "a"}).code, 143);
  const std::string all = Command({"logs", "a"}).output;
  EXPECT_LT(all.find("[master 0] got SIGTERM"), all.find("[ps 0] got SIGTERM"));
  EXPECT_THAT(Command({"stop", "a"}).output, HasSubstr("is over already: STOPPED"));
}

TEST_F(SubmitTest, StopKillsTasksThatDoNotEnd) {
  EXPECT_EQ(Submit("a", {}, {"*=ignore_term;say:up;forever"}).code, 0);
  AwaitLine("a", "[master 0] up");
  const Ended asked = Command({"stop", "a", "--no-wait"});
  EXPECT_THAT(asked.output, HasSubstr("is asked to stop"));
  EXPECT_EQ(Command({"wait", "a", "--timeout=1"}).code, 124);
  EXPECT_EQ(Describe("a")["state"], "STOPPING");
  EXPECT_EQ(Command({"stop", "a", "--kill"}).code, 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 137);
  EXPECT_EQ(Describe("a")["tasks"][0]["signal"], 9);
}

TEST_F(SubmitTest, AJobThatIsStoppedWhileItStartsStartsNoTask) {
  EXPECT_EQ(Submit("a", {}, {"*=say:first"}).code, 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 0);
  // Its next start waits here for a reader.
  const std::string logs = root_ + "/jobs/a/job/logs.2";
  ASSERT_OK(FileSystem::Posix()->CreateDirectory(logs));
  ASSERT_EQ(mkfifo((logs + "/all.log").c_str(), 0600), 0);
  EXPECT_EQ(Submit("a", {"--again"}, {"*=say:second"}).code, 0);
  EXPECT_EQ(Describe("a")["state"], "PREPARING");
  EXPECT_EQ(Command({"stop", "a", "--no-wait"}).code, 0);
  const int reader = open((logs + "/all.log").c_str(), O_RDONLY | O_CLOEXEC);
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = read(reader, buffer, sizeof(buffer))) > 0;) {
    all.append(buffer, static_cast<size_t>(n));
  }
  close(reader);
  EXPECT_EQ(Command({"wait", "a"}).code, 143);
  EXPECT_THAT(all, Not(HasSubstr(" started, pid ")));
  EXPECT_THAT(all, Not(HasSubstr("[master 0]")));
  EXPECT_EQ(Describe("a")["state"], "STOPPED");
  EXPECT_EQ(Describe("a")["tasks"][0]["starts"], 0);
}

TEST_F(SubmitTest, ASupervisorThatWasKilledLeavesNoTaskAndItsJobIsLost) {
  const std::string fifo = Path("held");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const int held = open(fifo.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  EXPECT_EQ(Submit("a", {}, {absl::StrCat("*=open:", fifo, ";say:up;forever")}).code, 0);
  AwaitLine("a", "[master 0] up");
  const Json state = Describe("a");
  EXPECT_EQ(state["state"], "RUNNING");
  kill(state["supervisor_pid"].get<int>(), SIGKILL);
  // The end of its task, which had the file open.
  fcntl(held, F_SETFL, 0);
  char c;
  EXPECT_EQ(read(held, &c, 1), 0);
  close(held);
  const Ended wait = Command({"wait", "a"});
  EXPECT_EQ(wait.code, 128) << wait.output;
  EXPECT_THAT(wait.output, HasSubstr("submit: job 'a' LOST on "));
  EXPECT_THAT(Command({"list"}).output, ContainsRegex("\na +LOST +local +BASIC "));
  EXPECT_THAT(Submit("a", {}, {"*=say:x"}).output, HasSubstr("LOST; --again goes on there"));
  EXPECT_EQ(Submit("a", {"--again"}, {"*=say:x"}).code, 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 0);
}

TEST_F(SubmitTest, AFailureIsTheJobsCodeAndItsReason) {
  const Ended ended = Submit("a", {"--stream-logs"}, {"*=say:no such file: x;exit:7"});
  EXPECT_EQ(ended.code, 7) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("[master 0] no such file: x\n"));
  EXPECT_THAT(ended.output,
              HasSubstr("submit: job 'a' FAILED: master 0: not asked; last line: no such file: x"));
  EXPECT_EQ(Command({"wait", "a"}).code, 7);
  EXPECT_EQ(Describe("a")["exit_code"], 7);
}

TEST_F(SubmitTest, ADeadPsStartsAgain) {
  EXPECT_EQ(Submit("a", {"--worker-count=1", "--parameter-server-count=1", "--restarts=1"},
                   {absl::StrCat("ps=once:", Path("once"), ";signal:9;say:again;until_term"),
                    absl::StrCat("*=await:", gate_)})
                .code,
            0);
  AwaitLine("a", "[ps 0] again");
  OpenGate();
  EXPECT_EQ(Command({"wait", "a"}).code, 0);
  EXPECT_EQ(Describe("a")["tasks"][0]["starts"], 2);
}

TEST_F(SubmitTest, AFullDiskForLogsEndsNoJob) {
  EXPECT_EQ(Submit("a", {}, {"*=say:first"}).code, 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 0);
  // Files that take no byte.
  const std::string logs = root_ + "/jobs/a/job/logs.2";
  ASSERT_OK(FileSystem::Posix()->CreateDirectory(logs));
  for (const char* name : {"all.log", "worker-0.log"}) {
    ASSERT_EQ(symlink("/dev/full", JoinPath(logs, name).c_str()), 0);
  }
  // And one that cannot be made.
  ASSERT_OK(FileSystem::Posix()->CreateDirectory(JoinPath(logs, "ps-0.log")));
  EXPECT_EQ(Submit("a", {"--again", "--worker-count=1", "--parameter-server-count=1"},
                   {"ps=until_term", "*=lines:2000;say:last"})
                .code,
            0);
  const Ended wait = Command({"wait", "a"});
  EXPECT_EQ(wait.code, 0) << wait.output;
  // The others are whole.
  ASSERT_OK_AND_ASSIGN(const std::string master,
                       ReadFileToString(FileSystem::Posix(), JoinPath(logs, "master-0.log")));
  EXPECT_TRUE(absl::EndsWith(master, "line 1999\nlast\n"));
}

TEST_F(SubmitTest, AStateThatCannotBeWrittenEndsNoJob) {
  const std::string dir = Path("out");
  EXPECT_EQ(
      Submit("a", {"--job-dir=" + dir}, {absl::StrCat("*=say:up;await:", gate_, ";say:went on")})
          .code,
      0);
  AwaitLine("a", "[master 0] up");
  // A folder without its name takes no state; the supervisor has its log open.
  ASSERT_EQ(rename((dir + "/job").c_str(), (dir + "/away").c_str()), 0);
  OpenGate();
  // What it says when it could not write; then the folder is back.
  std::string all;
  while (!absl::StrContains(all, "the job's state cannot be written; tries again")) {
    ASSERT_OK_AND_ASSIGN(all, ReadFileToString(FileSystem::Posix(), dir + "/away/logs/all.log"));
  }
  ASSERT_EQ(rename((dir + "/away").c_str(), (dir + "/job").c_str()), 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 0);
  EXPECT_EQ(Command({"logs", "a", "--task=master"}).output, "up\nwent on\n");
}

TEST_F(SubmitTest, ListShowsAllJobsInTheirOrder) {
  EXPECT_EQ(Command({"list"}).output, "job  state  backend  tier  submitted  seconds  directory\n");
  EXPECT_EQ(Submit("b", {}, {"*=say:x"}).code, 0);
  EXPECT_EQ(Command({"wait", "b"}).code, 0);
  EXPECT_EQ(Submit("a", {"--chief", "--evaluator"}, {"*=exit:3"}).code, 0);
  EXPECT_EQ(Command({"wait", "a"}).code, 3);
  const Ended list = Command({"list"});
  EXPECT_THAT(list.output, ContainsRegex("\nb +SUCCEEDED +local +BASIC .*\na +FAILED +local "));
  const Json json = Json::parse(Command({"list", "--json"}).output, nullptr, false);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["name"], "b");
  EXPECT_EQ(json[1]["exit_code"], 3);
  EXPECT_EQ(json[1]["tasks"][1]["task"], "evaluator 0");
  // One whose directory is gone is no job any more, and its name is free.
  ASSERT_OK(FileSystem::Posix()->RecursivelyDelete(root_ + "/jobs/b"));
  EXPECT_THAT(Command({"list"}).output, Not(HasSubstr("\nb ")));
  EXPECT_EQ(Submit("b", {"--job-dir=" + Path("other")}, {"*=say:x"}).code, 0);
  EXPECT_EQ(Command({"wait", "b"}).code, 0);
}

TEST_F(SubmitTest, ADryRunRunsNothing) {
  const Ended ended =
      Submit("a", {"--dry-run", "--scale-tier=premium-1", "--job-dir=" + Path("x")}, {"--flag"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.output,
            absl::StrCat("submit: would run job 'a', PREMIUM_1: 1 master, 19 workers, 11 ps; "
                         "directory ",
                         Path("x"), "\nsubmit: each task would run: ", kTask, " --flag --job-dir ",
                         Path("x"), "\n"));
  EXPECT_FALSE(FileSystem::Posix()->FileExists(Path("x")));
  EXPECT_EQ(Command({"describe", "a"}).code, 1);
}

TEST_F(SubmitTest, WhatCannotRunIsSaidAtOnce) {
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{}, 2, "a job's name must be given, got none"},
      {{"--", kTask}, 2, "a job's name must be given, got none"},
      {{"a"}, 1, "a program must follow --, got none"},
      {{"a", kTask}, 2, "a program must follow --, got 'tools/testing/fake_task' after 'a'"},
      {{"a", "--bogus", "--", kTask}, 2, "unrecognized arguments: --bogus"},
      {{"a", "--scale_teir=BASIC", "--", kTask}, 2, "did you mean 'scale-tier'?"},
      {{"1a", "--", kTask}, 1, "a job's name must be a letter"},
      {{"list", "--", kTask}, 2, "'list' is a command of submit and no name of a job"},
      {{"stop", "--scale-tier=BASIC", "--", kTask}, 2, "'stop' is a command of submit"},
      {{"a", "--scale-tier=BASIC_GPU", "--", kTask},
       1,
       "scale tier BASIC_GPU must not be asked for: tensors are in the memory of the CPU here"},
      {{"a", "--worker-count=2", "--", kTask}, 1, "parameterServerCount must be >= 1"},
      {{"a", "--worker-count=x", "--", kTask}, 2, "argument --worker-count: must be an integer"},
      {{"a", "--restarts=-1", "--", kTask}, 2, "argument --restarts: must be an integer"},
      {{"a", "--", "no_such_program"}, 1, "got 'no_such_program', which is no file"},
      {{"a", "--", "/etc/passwd"}, 1, "got '/etc/passwd', which must not be run"},
      {{"a", "--job-dir=abc://x", "--", kTask}, 1, "abc"},
      {{"a", "--job-dir=", "--", kTask}, 1, "--job-dir must be a directory, got ''"},
      {{"a", "--config=" + Path("none"), "--", kTask}, 1, "none"},
      {{"logs"}, 1, "a job's name must follow, or --job-dir, got none"},
      {{"logs", "a", "b"}, 2, "unrecognized arguments: b"},
      {{"logs", "nobody"}, 1, "job 'nobody' must have been submitted, got no such job in"},
      {{"wait", "--job-dir", root_}, 1, "must be that of a job, got none"},
      {{"wait", "a", "--job-dir", root_}, 1, "by its name or by --job-dir, got both"},
      {{"list", "a"}, 2, "unrecognized arguments: a"},
  };
  for (const Case& c : cases) {
    const Ended ended = Command(c.words);
    EXPECT_EQ(ended.code, c.code) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr(c.message));
  }
  EXPECT_EQ(Command({"list"}).output, "job  state  backend  tier  submitted  seconds  directory\n");
}

TEST_F(SubmitTest, HelpAndVersionExitWithZero) {
  EXPECT_THAT(Command({"--help"}).output, HasSubstr("--scale-tier TIER"));
  EXPECT_THAT(Command({"--version"}).output, HasSubstr("submit (Millrace) "));
  for (const char* command : {"list", "describe", "logs", "stop", "wait"}) {
    const Ended help = Command({command, "--help"});
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.output, HasSubstr(absl::StrCat("usage: submit ", command)));
  }
}

TEST_F(SubmitTest, TheTableOfLaunchIsJsonForPrograms) {
  const std::vector<std::string> job = {
      "--ps=1", "--chief",       "--workers=1",   "--",
      kTask,    "ps=until_term", "worker=exit:7", "chief=say:bad \xff"};
  const auto launch = [&job](const std::string& json) {
    std::vector<std::string> words = {"tools/launch", "--json=" + json};
    words.insert(words.end(), job.begin(), job.end());
    return RunProgram(words);
  };
  const Ended ended = launch("-");
  EXPECT_EQ(ended.code, 7);
  std::vector<std::string> lines = absl::StrSplit(ended.output, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines[lines.size() - 2], "launch: job ended with code 7");
  const Json last = Json::parse(lines.back(), nullptr, false);
  EXPECT_EQ(last["code"], 7);
  ASSERT_EQ(last["tasks"].size(), 3u);
  EXPECT_EQ(last["tasks"][2]["task"], "worker 0");
  EXPECT_EQ(last["tasks"][2]["exit_code"], 7);
  EXPECT_EQ(last["tasks"][2]["state"], "ended");
  EXPECT_EQ(last["tasks"][1]["why"], "done");
  EXPECT_TRUE(last["tasks"][2]["signal"].is_null());

  EXPECT_EQ(launch(Path("table.json")).code, 7);
  ASSERT_OK_AND_ASSIGN(const std::string text,
                       ReadFileToString(FileSystem::Posix(), Path("table.json")));
  EXPECT_EQ(Json::parse(text, nullptr, false)["tasks"].size(), 3u);
  // A place that cannot be is said before the job runs; one that fails, with the job's code.
  EXPECT_THAT(launch("abc://x").output, Not(HasSubstr("started")));
  const Ended nowhere = launch(Path("no/such/table.json"));
  EXPECT_EQ(nowhere.code, 7);
  EXPECT_THAT(nowhere.output, HasSubstr("launch: --json: "));
}

}  // namespace
}  // namespace millrace

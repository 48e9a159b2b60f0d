// SPDX-License-Identifier: Apache-2.0
//
// The rules of tools/local_cluster.h, each with processes: launch runs tools/testing/fake_task.

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/cores.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/cluster_task.h"
#include "tools/local_cluster.h"
#include "tools/task_output.h"
#include "tools/task_threads.h"

// covers: programs: the table at a job's end says why each task ended; the progress of all trainers
//   is one line; only the lines of some tasks are shown, and the last ones of any that fails
// covers: programs: Ctrl-C on a cluster, also one that a person types on the terminal, reaches each
//   task once, trainers before parameter servers, and leaves no process; trainers that share
//   nothing are refused; the exit code tells a failed last save
// covers: programs: a cluster whose Estimator nobody evaluates says so in its first line
// covers: programs: tasks that share a host divide its cores, unless the user says with how many
//   threads they compute; launch says how many and why
// covers: programs: launch starts and ends workers of a job that runs, within bounds; all of them
//   are in the cluster from the beginning; one that was asked to end fails no job
// covers: article 0-35: all roles as processes of one machine
// covers: article 0-36: lines with their task's name, some tasks only, a file for each
// covers: article 3-32: a launcher: ports, logs per role, exit codes, kills by recorded pid only
// covers: scenario F20: a launcher of processes of one machine

namespace millrace {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kLaunch[] = "tools/launch";
constexpr char kTask[] = "tools/testing/fake_task";

// A path that nobody has used.
std::string TempPath(const std::string& name) {
  static int next = 0;
  return JoinPath(::testing::TempDir(),
                  absl::StrCat("launch_test_", getpid(), "_", ++next, "_", name));
}

std::string MakeFifo(const std::string& name) {
  const std::string path = TempPath(name);
  EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
  return path;
}

// Tasks that do "await:<path>" go on when it is opened.
class Gate {
 public:
  Gate() : path_(MakeFifo("gate")), holder_(open(path_.c_str(), O_RDWR | O_CLOEXEC)) {}
  ~Gate() { Open(); }
  void Open() {
    if (holder_ >= 0) close(holder_);
    holder_ = -1;
  }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
  int holder_;
};

// A running launch whose output is read by the test.
class Launched {
 public:
  // `terminal`: its output is one; `controlling`: its own, too, as in a person's shell.
  Launched(std::vector<std::string> flags, const std::vector<std::string>& task,
           bool terminal = false, bool controlling = false) {
    flags.insert(flags.begin(), kLaunch);
    flags.push_back("--");
    flags.push_back(kTask);
    flags.insert(flags.end(), task.begin(), task.end());
    int reader = -1, writer = -1;
    if (terminal) {
      EXPECT_EQ(openpty(&reader, &writer, nullptr, nullptr, nullptr), 0);
    } else {
      int ends[2];
      EXPECT_EQ(pipe(ends), 0);
      reader = ends[0];
      writer = ends[1];
    }
    pid_ = fork();
    if (pid_ == 0) {
      if (controlling && (setsid() < 0 || ioctl(writer, TIOCSCTTY, 0) != 0)) _exit(126);
      dup2(writer, 1);
      dup2(writer, 2);
      close(reader);
      close(writer);
      std::vector<char*> argv;
      for (std::string& f : flags) argv.push_back(f.data());
      argv.push_back(nullptr);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(writer);
    reader_ = reader;
  }
  ~Launched() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(reader_);
  }

  // Reads until the output has this text, so many times, or ends.
  bool ReadUntil(const std::string& text, int times = 1) {
    const auto count = [&] {
      int n = 0;
      for (size_t at = output_.find(text); at != output_.npos; at = output_.find(text, at + 1)) ++n;
      return n;
    };
    while (count() < times) {
      char buffer[4096];
      const ssize_t n = read(reader_, buffer, sizeof(buffer));
      if (n <= 0) return false;  // a terminal without processes is an error
      output_.append(buffer, static_cast<size_t>(n));
    }
    return true;
  }
  void Signal(int signal) { kill(pid_, signal); }
  // What a person types; the terminal makes SIGINT of "\x03" for its foreground group.
  void Type(absl::string_view keys) {
    EXPECT_EQ(write(reader_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  // Waits for the end; the exit code, 1000 + n for signal n.
  int Wait() {
    ReadUntil("\x01 never there");
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFSIGNALED(status) ? 1000 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  const std::string& output() const { return output_; }

 private:
  pid_t pid_ = -1;
  int reader_ = -1;
  std::string output_;
};

// Waits until nobody has the FIFO open: every process that did is gone.
void AwaitGone(const std::string& fifo, int reader) {
  char c;
  pollfd fd = {reader, POLLIN, 0};
  // The bound only ends a test that has failed.
  ASSERT_EQ(poll(&fd, 1, 30000), 1) << fifo << " is still held by a process";
  EXPECT_EQ(read(reader, &c, 1), 0);
}

TEST(LaunchTest, EachTaskGetsItsTfConfig) {
  Gate gate;
  Launched launch({"--ps=1", "--master", "--workers=2", "--evaluator"},
                  {"ps=config;until_term", absl::StrCat("*=config;await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("[ps 0] config"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  std::map<std::string, std::string> configs;
  for (absl::string_view line : absl::StrSplit(launch.output(), '\n')) {
    const size_t at = line.find("] config ");
    if (at != line.npos)
      configs[std::string(line.substr(1, at - 1))] = std::string(line.substr(at));
  }
  ASSERT_EQ(configs.size(), 5u) << launch.output();
  std::map<std::string, std::string> addresses;
  for (absl::string_view line : absl::StrSplit(launch.output(), '\n')) {
    const size_t started = line.find(" started at "), pid = line.find(", pid ");
    if (started == line.npos) continue;
    addresses[std::string(line.substr(8, started - 8))] =
        std::string(line.substr(started + 12, pid - started - 12));
  }
  ASSERT_EQ(addresses.size(), 4u);
  const std::string cluster =
      absl::StrCat("{\"cluster\": {\"ps\": [\"", addresses["ps 0"], "\"], \"master\": [\"",
                   addresses["master 0"], "\"], \"worker\": [\"", addresses["worker 0"], "\", \"",
                   addresses["worker 1"], "\"]}, \"task\": ");
  for (const auto& [task, config] : configs) {
    const std::vector<std::string> words = absl::StrSplit(task, ' ');
    EXPECT_EQ(config, absl::StrCat("] config ", cluster, "{\"type\": \"", words[0],
                                   "\", \"index\": ", words[1],
                                   "}, \"environment\": \"cloud\"} progress plain"));
    if (words[0] != "evaluator") {
      EXPECT_THAT(addresses[task], HasSubstr("127.0.0.1:"));
    }
  }
}

TEST(LaunchTest, LinesAreNamedAndWrittenToOneFilePerTask) {
  const std::string logs = TempPath("logs");
  Launched launch({"--ps=1", "--chief", "--workers=1", absl::StrCat("--log_dir=", logs)},
                  {"ps=until_term", "chief=say:one;err:two", "worker=say:three"});
  EXPECT_EQ(launch.Wait(), 0);
  for (const char* line : {"[chief 0] one\n", "[chief 0] two\n", "[worker 0] three\n"}) {
    const size_t at = launch.output().find(line);
    EXPECT_NE(at, std::string::npos) << line << launch.output();
    EXPECT_EQ(launch.output().rfind(line), at) << "twice: " << line;
  }
  ASSERT_OK_AND_ASSIGN(const std::string chief,
                       ReadFileToString(FileSystem::Posix(), logs + "/chief-0.log"));
  EXPECT_EQ(chief, "one\ntwo\n");
  ASSERT_OK_AND_ASSIGN(const std::string worker,
                       ReadFileToString(FileSystem::Posix(), logs + "/worker-0.log"));
  EXPECT_EQ(worker, "three\n");
}

TEST(LaunchTest, ATaskInheritsNoFileOfTheLaunchers) {
  // What this program hands on, as whoever started it did.
  std::string inherited = "fds";
  for (int fd = 0; fd < 1024; ++fd) {
    const int flags = fcntl(fd, F_GETFD);
    if (fd <= 2 || (flags >= 0 && (flags & FD_CLOEXEC) == 0)) absl::StrAppend(&inherited, " ", fd);
  }
  Launched launch({"--master"}, {"master=fds"});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("[master 0] ", inherited, "\n")));
}

TEST(LaunchTest, PsAreAskedToEndWhenAllTrainersHave) {
  Gate gate;
  Launched launch({"--ps=2", "--master", "--workers=1"},
                  {"ps=say:up;until_term", absl::StrCat("*=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("[ps 0] up"));
  EXPECT_TRUE(launch.ReadUntil("[ps 1] up"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("launch: all trainers have ended; ending ps\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[ps 0] got SIGTERM\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[ps 1] got SIGTERM\n"));
  for (const char* row : {"ps 0           exit 0", "ps 1           exit 0", "master 0       exit 0",
                          "worker 0       exit 0"}) {
    EXPECT_THAT(launch.output(), HasSubstr(row));
  }
  EXPECT_THAT(launch.output(), HasSubstr("launch: job ended with code 0\n"));
}

TEST(LaunchTest, AKilledWorkerDoesNotFailTheJob) {
  // The master ends after the worker is gone.
  Gate gate;
  Launched launch({"--ps=1", "--master", "--workers=2"},
                  {"ps=until_term", "worker1=say:up;signal:9",
                   absl::StrCat("master=await:", gate.path(), ";say:master ends")});
  EXPECT_TRUE(
      launch.ReadUntil("launch: worker 1 was killed by signal 9 (Killed); the job goes on\n"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("[worker 1] up\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[master 0] master ends\n"));
  EXPECT_THAT(launch.output(), HasSubstr("launch: worker 1       signal 9"));
}

TEST(LaunchTest, AWorkerThatFailsByItselfFailsTheJobAtItsEnd) {
  Gate gate;
  Launched launch(
      {"--ps=1", "--master", "--workers=2"},
      {"ps=say:up;until_term", "worker1=exit:7", absl::StrCat("master=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("[ps 0] up"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 7);
  EXPECT_THAT(launch.output(), HasSubstr("launch: worker 1 ended with code 7; the job goes on\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[ps 0] got SIGTERM\n"));
}

TEST(LaunchTest, AJobWhoseOnlyWorkersWereKilledFails) {
  Launched launch({"--ps=1", "--workers=2"}, {"ps=until_term", "*=signal:9"});
  EXPECT_EQ(launch.Wait(), 137);
}

TEST(LaunchTest, ADeadPsEndsTheJobWithItsCode) {
  Gate gate;
  Launched launch({"--ps=1", "--master", "--workers=1"},
                  {absl::StrCat("ps=await:", gate.path(), ";exit:3"), "*=say:up;until_term"});
  EXPECT_TRUE(launch.ReadUntil("[master 0] up"));
  EXPECT_TRUE(launch.ReadUntil("[worker 0] up"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 3);
  EXPECT_THAT(launch.output(), HasSubstr("launch: ps 0 ended with code 3; the job ends\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[master 0] got SIGTERM\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[worker 0] got SIGTERM\n"));
}

TEST(LaunchTest, AKilledMasterEndsTheJobWithItsSignal) {
  Launched launch({"--ps=1", "--master", "--workers=1"}, {"master=signal:9", "*=until_term"});
  EXPECT_EQ(launch.Wait(), 137);
  EXPECT_THAT(launch.output(),
              HasSubstr("launch: master 0 was killed by signal 9 (Killed); the job ends\n"));
}

TEST(LaunchTest, TheTableSaysHowLongEachTaskRanAndWhyItEnded) {
  Gate gate;
  Launched launch({"--ps=1", "--chief", "--workers=3", "--evaluator"},
                  {"ps=until_term", "worker0=say:no such file: x;say: ;exit:7", "worker1=signal:9",
                   absl::StrCat("*=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("launch: worker 0 ended with code 7; the job goes on\n"));
  EXPECT_TRUE(launch.ReadUntil("launch: worker 1 was killed by signal 9"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 7);
  const std::vector<std::string> rows = {
      "task +ended +seconds +starts +why",
      "ps 0 +exit 0 +[0-9.]+ +1 +asked to end: all trainers had ended",
      "chief 0 +exit 0 +[0-9.]+ +1 +done",
      "worker 0 +exit 7 +[0-9.]+ +1 +not asked; last line: no such file: x",
      "worker 1 +signal 9 +[0-9.]+ +1 +Killed, not by launch",
      "worker 2 +exit 0 +[0-9.]+ +1 +done",
      "evaluator 0 +exit 0 +[0-9.]+ +1 +done"};
  for (const std::string& row : rows) {
    EXPECT_THAT(launch.output(), ContainsRegex(absl::StrCat("launch: ", row, "\n")));
  }
}

TEST(LaunchTest, TheTableShowsTheTextOfAMessageAndNotItsPlace) {
  struct Case {
    std::string said;
    std::string text;
  };
  const std::vector<Case> cases = {
      {"err:Tile 'x': multiples[1] must be >= 0, got -3;err:\t [[{{node x}}]]",
       "Tile 'x': multiples[1] must be >= 0, got -3"},
      {"err:E1129 01:55:03.123456 12345 session.cc:55] the disk is full", "the disk is full"},
      {"say:first;say:second;say:   ;say:", "second"},
      {"say:  only this", "only this"},
      {"say:E11 is no log line] here", "E11 is no log line] here"},
  };
  for (const Case& c : cases) {
    Launched launch({"--workers=1"}, {absl::StrCat("worker=", c.said, ";exit:1")});
    EXPECT_EQ(launch.Wait(), 1) << c.said;
    EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("last line: ", c.text, "\n"))) << c.said;
  }
}

TEST(LaunchTest, AnEvaluatorThatFailsByItselfFailsTheJobAtItsEnd) {
  Gate gate;
  Launched launch({"--ps=1", "--chief", "--evaluator"},
                  {"ps=until_term", "evaluator=exit:3", absl::StrCat("*=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("launch: evaluator 0 ended with code 3; the job goes on\n"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 3);
}

TEST(LaunchTest, AKilledEvaluatorDoesNotFailTheJob) {
  Gate gate;
  Launched launch({"--ps=1", "--chief", "--evaluator"},
                  {"ps=until_term", "evaluator=signal:9", absl::StrCat("*=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("launch: evaluator 0 was killed by signal 9"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
}

TEST(LaunchTest, ADeadEvaluatorStartsAgainWhileRestartsAreLeft) {
  const std::string once = TempPath("once");
  Launched launch({"--chief", "--evaluator", "--restarts=1"},
                  {absl::StrCat("evaluator=once:", once, ";signal:9;say:judged")});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("starting it again (1 of 1)\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[evaluator 0] judged\n"));
  EXPECT_THAT(launch.output(), ContainsRegex("launch: evaluator 0 +exit 0 +[0-9.]+ +2 +done\n"));
}

TEST(LaunchTest, TheEvaluatorIsWaitedForWhenATrainerSucceededAndAskedToEndWhenNoneDid) {
  Gate gate;
  Launched good({"--ps=1", "--workers=2", "--evaluator"},
                {"ps=until_term", "worker0=exit:1", "worker1=say:ok",
                 absl::StrCat("evaluator=await:", gate.path(), ";say:judged")});
  EXPECT_TRUE(good.ReadUntil("launch: all trainers have ended; ending ps\n"));
  gate.Open();
  EXPECT_EQ(good.Wait(), 1);
  EXPECT_THAT(good.output(), ContainsRegex("launch: evaluator 0 +exit 0 +[0-9.]+ +1 +done\n"));

  Gate failing;
  Launched bad({"--ps=1", "--workers=2", "--evaluator"},
               {absl::StrCat("worker=await:", failing.path(), ";exit:1"),
                "evaluator=say:up;until_term", "ps=until_term"});
  EXPECT_TRUE(bad.ReadUntil("[evaluator 0] up\n"));
  failing.Open();
  EXPECT_EQ(bad.Wait(), 1);
  EXPECT_THAT(bad.output(), HasSubstr("[evaluator 0] got SIGTERM\n"));
  EXPECT_THAT(bad.output(), ContainsRegex("launch: evaluator 0 +exit 0 +[0-9.]+ +1 +asked to end: "
                                          "no trainer had succeeded\n"));
}

TEST(LaunchTest, OnlyTheLinesOfSomeTasksAreShownAndTheLastOfOneThatFails) {
  const std::string logs = TempPath("logs");
  Gate gate;
  Launched launch(
      {"--ps=1", "--chief", "--workers=3", "--show=chief,worker-1",
       absl::StrCat("--log_dir=", logs)},
      {"ps=say:ps up;until_term", "worker0=say:zero", "worker1=say:one", "worker2=lines:100;exit:3",
       absl::StrCat("chief=say:first;await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("launch: worker 2 ended with code 3"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 3);
  EXPECT_THAT(launch.output(), HasSubstr("[chief 0] first\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[worker 1] one\n"));
  EXPECT_THAT(launch.output(), Not(HasSubstr("[worker 0]")));
  EXPECT_THAT(launch.output(), Not(HasSubstr("[ps 0]")));
  EXPECT_THAT(launch.output(), Not(HasSubstr("[worker 2] line 79\n")));
  EXPECT_THAT(launch.output(), HasSubstr("launch: the last 20 lines of worker 2, which --show "
                                         "leaves out:\n[worker 2] line 80\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[worker 2] line 99\n"));
  ASSERT_OK_AND_ASSIGN(const std::string log,
                       ReadFileToString(FileSystem::Posix(), logs + "/worker-0.log"));
  EXPECT_EQ(log, "zero\n");
}

TEST(LaunchTest, ADeadMasterStartsAgainWithTheSameConfig) {
  const std::string once = TempPath("once");
  Launched launch({"--ps=1", "--master", "--restarts=1"},
                  {"ps=until_term", absl::StrCat("master=config;once:", once, ";exit:5")});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(),
              HasSubstr("launch: master 0 ended with code 5; starting it again (1 of 1)\n"));
  std::vector<std::string> configs;
  for (absl::string_view line : absl::StrSplit(launch.output(), '\n')) {
    if (absl::StrContains(line, "] config ")) configs.emplace_back(line);
  }
  ASSERT_EQ(configs.size(), 2u);
  EXPECT_EQ(configs[0], configs[1]);
}

TEST(LaunchTest, RestartsAreCountedOverAllTasks) {
  Launched launch({"--ps=1", "--master", "--restarts=2"}, {"ps=exit:4", "master=until_term"});
  EXPECT_EQ(launch.Wait(), 4);
  EXPECT_THAT(launch.output(), HasSubstr("starting it again (1 of 2)"));
  EXPECT_THAT(launch.output(), HasSubstr("starting it again (2 of 2)"));
  EXPECT_THAT(launch.output(), HasSubstr("launch: ps 0 ended with code 4; the job ends\n"));
}

TEST(LaunchTest, APortInUseGivesAllTasksNewPorts) {
  const std::string once = TempPath("once");
  Launched launch({"--ps=1", "--master", "--workers=1"},
                  {"ps=config;until_term",
                   absl::StrCat("worker=once:", once,
                                ";err:Server: 127.0.0.1:1 must be free, got: port is in use;once:",
                                once, "2;exit:1"),
                   "master=say:master"});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("in use; all tasks start again on new ports (1 of 3)\n"));
  // Two generations of every task.
  for (const char* task : {"ps 0", "master 0", "worker 0"}) {
    const std::string text = absl::StrCat("launch: ", task, " started at ");
    const size_t first = launch.output().find(text);
    const size_t second = launch.output().find(text, first + 1);
    ASSERT_NE(second, std::string::npos) << task;
    EXPECT_NE(launch.output().substr(first, text.size() + 16),
              launch.output().substr(second, text.size() + 16));
    EXPECT_EQ(launch.output().find(text, second + 1), std::string::npos);
  }
}

TEST(LaunchTest, PortsThatStayInUseEndTheJobAfterThreeRetries) {
  Launched launch({"--master"}, {"master=say:port is in use;exit:1"});
  EXPECT_EQ(launch.Wait(), 1);
  EXPECT_THAT(launch.output(), HasSubstr("(3 of 3)"));
  EXPECT_THAT(launch.output(),
              HasSubstr("found its port in use again after 3 times new ports; the job ends"));
}

TEST(LaunchTest, APortInUseThatATaskGotOverIsNotWhyItEnded) {
  Gate gate;
  Launched launch(
      {"--ps=1", "--master", "--workers=1"},
      {"ps=until_term", "worker=say:port is in use, trying the next one;lines:60;exit:3",
       absl::StrCat("master=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("launch: worker 0 ended with code 3; the job goes on\n"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 3);
  EXPECT_THAT(launch.output(), Not(HasSubstr("new ports")));
}

TEST(LaunchTest, ARestartedTaskThatLosesItsPortIsDead) {
  const std::string once = TempPath("once");
  Launched launch(
      {"--ps=1", "--master", "--restarts=1"},
      {absl::StrCat("ps=once:", once, ";exit:9;say:port is in use;exit:1"), "master=until_term"});
  EXPECT_EQ(launch.Wait(), 1);
  EXPECT_THAT(launch.output(), Not(HasSubstr("new ports")));
}

TEST(LaunchTest, ATaskThatWasRestartedMayLoseTheNewPortOfAllLikeAnyOther) {
  const std::string ps = TempPath("ps"), worker = TempPath("worker");
  Gate ps_goes_on, worker_goes_on, master_ends;
  Launched launch({"--ps=1", "--master", "--workers=1", "--restarts=1"},
                  {absl::StrCat("ps=once:", ps, "1;exit:9;await:", ps_goes_on.path(), ";once:", ps,
                                "2;say:port is in use;once:", ps, "3;exit:1;until_term"),
                   absl::StrCat("worker=await:", worker_goes_on.path(), ";once:", worker,
                                "1;say:port is in use;once:", worker, "2;exit:1"),
                   absl::StrCat("master=await:", master_ends.path())});
  // By itself, ...
  EXPECT_TRUE(launch.ReadUntil("launch: ps 0 ended with code 9; starting it again (1 of 1)\n"));
  worker_goes_on.Open();
  // ... with all because of the worker, ...
  EXPECT_TRUE(launch.ReadUntil("worker 0 found its port"));
  EXPECT_TRUE(launch.ReadUntil("launch: ps 0 started at ", 3));
  ps_goes_on.Open();
  // ... and with all because of its own port.
  EXPECT_TRUE(launch.ReadUntil("ps 0 found its port"));
  EXPECT_TRUE(launch.ReadUntil("in use; all tasks start again on new ports (2 of 3)\n"));
  master_ends.Open();
  EXPECT_EQ(launch.Wait(), 0);
}

TEST(LaunchTest, ASignalEndsEveryTaskAndLeavesNoProcess) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string fifo = MakeFifo(absl::StrCat("fifo", signal));
    const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
    // The worker has a child that would outlive it; all hold the FIFO open.
    const std::string holding = absl::StrCat("open:", fifo, ";");
    Launched launch({"--ps=1", "--master", "--workers=1"},
                    {absl::StrCat("ps=", holding, "say:up;until_term"),
                     absl::StrCat("worker=", holding, "child;say:up;until_term"),
                     absl::StrCat("master=", holding, "say:up;until_term;exit:143")});
    EXPECT_TRUE(launch.ReadUntil("[ps 0] up"));
    EXPECT_TRUE(launch.ReadUntil("[worker 0] up"));
    EXPECT_TRUE(launch.ReadUntil("[master 0] up"));
    launch.Signal(signal);
    EXPECT_EQ(launch.Wait(), 128 + signal);
    EXPECT_THAT(launch.output(), HasSubstr("passing it on to all tasks"));
    AwaitGone(fifo, reader);
    close(reader);
  }
}

TEST(LaunchTest, AnInterruptReachesTrainersFirstAndEveryTaskOnce) {
  const std::string fifo = MakeFifo("trainers");
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  Gate gate;
  const std::string trainer =
      absl::StrCat("open:", fifo, ";until_int;await:", gate.path(), ";pending;say:saved;exit:130");
  Launched launch(
      {"--ps=1", "--master", "--workers=1", "--evaluator"},
      {absl::StrCat("ps=until_int;alone:", fifo, ";pending"), absl::StrCat("*=", trainer)});
  for (const char* task : {"ps 0", "master 0", "worker 0", "evaluator 0"}) {
    EXPECT_TRUE(launch.ReadUntil(absl::StrCat("[", task, "] ready\n"))) << task;
  }
  launch.Signal(SIGINT);
  for (const char* task : {"master 0", "worker 0", "evaluator 0"}) {
    EXPECT_TRUE(launch.ReadUntil(absl::StrCat("[", task, "] got SIGINT\n"))) << task;
  }
  gate.Open();
  EXPECT_EQ(launch.Wait(), 130);
  for (const char* task : {"ps 0", "master 0", "worker 0", "evaluator 0"}) {
    EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("[", task, "] SIGINT is not pending\n")));
    const char* const code = absl::StartsWith(task, "ps") ? "0" : "130";
    EXPECT_THAT(launch.output(), ContainsRegex(absl::StrCat("launch: ", task, " +exit ", code)));
  }
  EXPECT_THAT(launch.output(), HasSubstr("[master 0] saved\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[ps 0] alone\n"));
  EXPECT_THAT(launch.output(), HasSubstr("launch: job ended with code 130\n"));
  close(reader);
}

// The terminal sends it to the launcher's group, in which no task is: one each, from the launcher.
TEST(LaunchTest, CtrlCOnATerminalReachesEveryTaskOnce) {
  int reader = -1, writer = -1;
  if (openpty(&reader, &writer, nullptr, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "there are no pseudo-terminals here: " << std::strerror(errno);
  }
  close(reader);
  close(writer);
  Gate gate;
  const std::string task = absl::StrCat("until_int;await:", gate.path(), ";pending;exit:130");
  Launched launch({"--ps=1", "--master", "--workers=1"}, {absl::StrCat("*=", task)},
                  /*terminal=*/true, /*controlling=*/true);
  for (const char* name : {"ps 0", "master 0", "worker 0"}) {
    EXPECT_TRUE(launch.ReadUntil(absl::StrCat("[", name, "] ready\r\n"))) << name;
  }
  launch.Type("\x03");
  for (const char* name : {"master 0", "worker 0"}) {
    EXPECT_TRUE(launch.ReadUntil(absl::StrCat("[", name, "] got SIGINT\r\n"))) << name;
  }
  gate.Open();
  EXPECT_EQ(launch.Wait(), 130);
  for (const char* name : {"ps 0", "master 0", "worker 0"}) {
    EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("[", name, "] SIGINT is not pending\r\n")));
    EXPECT_THAT(launch.output(), ContainsRegex(absl::StrCat("launch: ", name, " +exit 130")));
  }
}

TEST(LaunchTest, AfterASignalTheCodeIsWhatTheTasksSay) {
  const struct {
    const char *master, *worker, *evaluator;
    int code;
  } kCases[] = {
      {"143", "143", "143", 143},
      {"128", "143", "143", 128},  // it could not save its last
                                   // checkpoint
      {"1", "143", "143", 1},
      {"0", "0", "0", 0},  // all had done their work
      {"0", "143", "0", 143},
      {"0", "0", "143", 143},
      {"0", "1", "0", 1},
  };
  for (const auto& c : kCases) {
    const std::string until = "say:up;until_term;exit:";
    Launched launch(
        {"--ps=1", "--master", "--workers=1", "--evaluator"},
        {"ps=until_term", absl::StrCat("master=", until, c.master),
         absl::StrCat("worker=", until, c.worker), absl::StrCat("evaluator=", until, c.evaluator)});
    for (const char* task : {"master 0", "worker 0", "evaluator 0"}) {
      EXPECT_TRUE(launch.ReadUntil(absl::StrCat("[", task, "] up\n"))) << task;
    }
    launch.Signal(SIGTERM);
    EXPECT_EQ(launch.Wait(), c.code) << launch.output();
    EXPECT_THAT(launch.output(), HasSubstr(absl::StrCat("job ended with code ", c.code, "\n")));
  }
}

TEST(LaunchTest, ATaskThatWritesWithoutEndDoesNotKeepSignalsAway) {
  Launched launch({"--ps=1", "--master", "--workers=1"},
                  {"ps=until_term", "worker=flood", "master=say:up;until_term"});
  EXPECT_TRUE(launch.ReadUntil("[master 0] up"));
  EXPECT_TRUE(launch.ReadUntil("[worker 0] f\n"));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(), 143);
  EXPECT_THAT(launch.output(), HasSubstr("passing it on to all tasks"));
  EXPECT_THAT(launch.output(), HasSubstr("[master 0] got SIGTERM\n"));
}

TEST(LaunchTest, ASecondSignalKillsTasksThatDoNotEnd) {
  Launched launch({"--master"}, {"master=ignore_term;say:up;forever"});
  EXPECT_TRUE(launch.ReadUntil("[master 0] up"));
  launch.Signal(SIGTERM);
  EXPECT_TRUE(launch.ReadUntil("passing it on to all tasks"));
  launch.Signal(SIGTERM);
  EXPECT_EQ(launch.Wait(), 137);  // it could not end as it was asked
  EXPECT_THAT(launch.output(), HasSubstr("second signal: killing all tasks"));
  EXPECT_THAT(launch.output(), HasSubstr("launch: master 0       signal 9"));
  // It was not given the time.
  EXPECT_THAT(launch.output(), Not(HasSubstr("did not end within")));
}

TEST(LaunchTest, TasksDieWithALauncherThatIsKilled) {
  const std::string fifo = MakeFifo("fifo");
  const int reader = open(fifo.c_str(), O_RDONLY | O_NONBLOCK);
  Launched launch({"--ps=1", "--master"}, {absl::StrCat("*=open:", fifo, ";say:up;forever")});
  EXPECT_TRUE(launch.ReadUntil("[ps 0] up"));
  EXPECT_TRUE(launch.ReadUntil("[master 0] up"));
  launch.Signal(SIGKILL);
  EXPECT_EQ(launch.Wait(), 1009);
  AwaitGone(fifo, reader);
  close(reader);
}

TEST(LaunchTest, APsThatIgnoresSigtermIsKilledAfterTheGrace) {
  Gate gate;
  Launched launch({"--ps=1", "--master", "--grace_secs=2"},
                  {"ps=ignore_term;say:up;forever", absl::StrCat("master=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("[ps 0] up"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("launch: ps 0 did not end within 2 s and was killed\n"));
}

TEST(LaunchTest, ATerminalShowsTheMastersStatusAtTheBottom) {
  int reader = -1, writer = -1;
  if (openpty(&reader, &writer, nullptr, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "there are no pseudo-terminals here: " << std::strerror(errno);
  }
  close(reader);
  close(writer);
  Gate gate;
  Launched launch({"--ps=1", "--master", "--workers=1"},
                  {"ps=config;until_term",
                   absl::StrCat("master=config;status:step 1/3;await:", gate.path(),
                                ";status:step 2/3  ;say:  done"),
                   "worker=config"},
                  /*terminal=*/true);
  EXPECT_TRUE(launch.ReadUntil("\r\x1b[K[master 0] step 1/3"));
  // The ps is ended with the trainers, whether it has said its line by then or not.
  EXPECT_TRUE(launch.ReadUntil("progress plain\r\n"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("\"environment\": \"cloud\"} progress live\r\n"));
  EXPECT_THAT(launch.output(), HasSubstr("\"environment\": \"cloud\"} progress plain\r\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[master 0] step 2/3    done\r\n"));
}

TEST(LaunchTest, ATerminalShowsTheProgressOfAllTrainersInOneLine) {
  int reader = -1, writer = -1;
  if (openpty(&reader, &writer, nullptr, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "there are no pseudo-terminals here: " << std::strerror(errno);
  }
  close(reader);
  close(writer);
  Gate gate;
  const std::string trainer = absl::StrCat("status:step 1/3  loss 2;await:", gate.path());
  Launched launch({"--ps=1", "--chief", "--workers=2", "--evaluator"},
                  {"ps=until_term", "evaluator=status:step 7", absl::StrCat("*=", trainer)},
                  /*terminal=*/true);
  EXPECT_TRUE(launch.ReadUntil("\r\x1b[K[chief 0] step 1/3  loss 2 | [worker 0] step 1/3"));
  EXPECT_TRUE(launch.ReadUntil(" | [worker 1] step 1/3"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("[worker 1] step 1/3  loss 2\r\n"));
  // Its status is none of a trainer's: it is shown when it is a line.
  EXPECT_THAT(launch.output(), Not(HasSubstr("| [evaluator 0]")));
  EXPECT_THAT(launch.output(), HasSubstr("[evaluator 0] step 7\r\n"));
}

TEST(LaunchTest, ATerminalShowsWhatRunsWhereTheProgramShowsNothing) {
  int reader = -1, writer = -1;
  if (openpty(&reader, &writer, nullptr, nullptr, nullptr) != 0) {
    GTEST_SKIP() << "there are no pseudo-terminals here: " << std::strerror(errno);
  }
  close(reader);
  close(writer);
  Gate gate;
  Launched launch({"--ps=1", "--master"},
                  {"ps=until_term", absl::StrCat("master=say:up;await:", gate.path())},
                  /*terminal=*/true);
  EXPECT_TRUE(launch.ReadUntil("\r\x1b[Klaunch: 0:0"));
  EXPECT_TRUE(launch.ReadUntil(", running: ps 0, master 0"));
  EXPECT_TRUE(launch.ReadUntil("[master 0] up\r\n"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
}

TEST(LaunchTest, ALongSilenceIsBrokenByWhatRuns) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  Gate gate;
  std::thread reader([&] {
    std::string output;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
      output.append(buffer, static_cast<size_t>(n));
      if (absl::StrContains(output, ", running: master 0\n")) gate.Open();
    }
  });
  LocalClusterOptions options;
  options.chief = "master";
  options.command = {kTask, absl::StrCat("master=say:up;await:", gate.path())};
  options.output_fd = ends[1];
  options.silence = absl::Milliseconds(1);
  const auto code = RunLocalCluster(options);
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_EQ(code.value_or(-1), 0);
}

TEST(LaunchTest, ASlowReaderOfANonBlockingFileGetsEveryLine) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
  std::string output;
  std::atomic<bool> ended = false;  // so that a launcher that writes nothing is no endless wait
  std::thread reader([&] {
    // Begins when the pipe is full: its last page has no room for a line.
    pollfd full = {ends[1], POLLOUT, 0};
    while (!ended && poll(&full, 1, 0) == 1) std::this_thread::yield();
    char buffer[4096];
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
      output.append(buffer, static_cast<size_t>(n));
    }
  });
  LocalClusterOptions options;
  options.chief = "master";
  options.command = {kTask, "master=lines:10000"};
  options.output_fd = ends[1];
  const auto code = RunLocalCluster(options);
  ended = true;
  close(ends[1]);
  reader.join();
  close(ends[0]);
  EXPECT_EQ(code.value_or(-1), 0);
  size_t lines = 0;
  for (absl::string_view line : absl::StrSplit(output, '\n')) {
    if (absl::StartsWith(line, "[master 0] line ")) ++lines;
  }
  EXPECT_EQ(lines, 10000u);
}

// MILLRACE_NUM_THREADS of this process and of those that it starts; what it was is restored.
class ThreadsVariable {
 public:
  explicit ThreadsVariable(const char* text) {
    if (const char* former = std::getenv(kNumThreadsVariable)) former_ = former;
    Set(text);
  }
  ~ThreadsVariable() { Set(former_ ? former_->c_str() : nullptr); }

 private:
  static void Set(const char* text) {
    if (text == nullptr) {
      unsetenv(kNumThreadsVariable);
    } else {
      setenv(kNumThreadsVariable, text, 1);
    }
  }
  std::optional<std::string> former_;
};

TEST(LaunchTest, TheTasksShareTheCoresUnlessTheUserSaysOtherwise) {
  const int cores = UsableCores();  // launch inherits what limits this process
  // The chief and two workers: the ps and the evaluator do not count.
  const int share = std::max(1, cores / 3);
  struct Case {
    const char* variable;  // null: not set
    const char* flag;      // "": not given
    int threads;           // of each task
    std::string reason;
  };
  const std::vector<Case> cases = {
      {nullptr, "", share,
       absl::StrCat(cores, cores == 1 ? " core" : " cores",
                    " for 3 trainers; --threads_per_task=N changes it")},
      {"", "", share, " for 3 trainers; "},
      {"5", "", 5, "MILLRACE_NUM_THREADS=5"},
      {"0", "", cores, "as many threads as cores compute in each task: MILLRACE_NUM_THREADS=0"},
      {nullptr, "--threads_per_task=4", 4, "--threads_per_task=4"},
      {"5", "--threads_per_task=4", 4, "--threads_per_task=4"},
      {"many", "--threads_per_task=4", 4, "--threads_per_task=4"},
      {nullptr, "--threads_per_task=0", cores, "stays as it is, not set"},
      {"5", "--threads_per_task=0", 5, "stays as it is, '5'"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(c.variable == nullptr ? "not set" : c.variable, " ", c.flag));
    const ThreadsVariable variable(c.variable);
    std::vector<std::string> flags = {"--ps=1", "--chief", "--workers=2", "--evaluator"};
    if (*c.flag != '\0') flags.push_back(c.flag);
    // The trainers stay until the ps, which ends with them, has spoken.
    Gate gate;
    Launched launch(flags,
                    {"ps=threads;until_term", absl::StrCat("*=threads;await:", gate.path())});
    EXPECT_TRUE(launch.ReadUntil("[ps 0] threads"));
    gate.Open();
    EXPECT_EQ(launch.Wait(), 0);
    for (const char* task : {"ps 0", "chief 0", "worker 0", "worker 1", "evaluator 0"}) {
      EXPECT_THAT(launch.output(),
                  HasSubstr(absl::StrCat("[", task, "] threads ", c.threads, "\n")));
    }
    const size_t reason = launch.output().find(c.reason);
    ASSERT_NE(reason, std::string::npos) << launch.output();
    EXPECT_LT(reason, launch.output().find("launch: ps 0 started")) << launch.output();
  }
}

TEST(LaunchTest, ANumberOfThreadsThatIsNoneStartsNothing) {
  for (const char* text : {"many", "-1", "2000"}) {
    const ThreadsVariable variable(text);
    Launched launch({"--ps=1", "--chief"}, {"*=say:up"});
    EXPECT_EQ(launch.Wait(), 1);
    EXPECT_EQ(launch.output(),
              absl::StrCat("launch: MILLRACE_NUM_THREADS must be an integer in [0, "
                           "1024], got '",
                           text, "'; 0 is as many threads as cores\n"));
  }
}

TEST(LaunchTest, ARestartedTaskHasTheThreadsOfTheFirst) {
  const ThreadsVariable variable(nullptr);
  Launched launch({"--chief", "--restarts=1", "--threads_per_task=3"},
                  {absl::StrCat("chief=threads;once:", TempPath("once"), ";exit:5")});
  EXPECT_EQ(launch.Wait(), 0);
  const std::string line = "[chief 0] threads 3\n";
  const size_t first = launch.output().find(line);
  ASSERT_NE(first, std::string::npos) << launch.output();
  EXPECT_NE(launch.output().find(line, first + 1), std::string::npos) << launch.output();
}

TEST(TaskThreadsTest, TrainersDivideTheCoresAndTheUserHasTheLastWord) {
  struct Case {
    int cores, trainers;
    std::optional<int> flag;
    const char* variable;
    std::optional<int> per_task;
    std::string text;
  };
  const std::string more = "; --threads_per_task=N changes it";
  const std::vector<Case> cases = {
      {2, 3, {}, nullptr, 1, "1 thread computes in each task: 2 cores for 3 trainers" + more},
      {1, 1, {}, nullptr, 1, "1 thread computes in each task: 1 core for 1 trainer" + more},
      {2, 1, {}, nullptr, 2, "2 threads compute in each task: 2 cores for 1 trainer" + more},
      {4, 4, {}, nullptr, 1, "1 thread computes in each task: 4 cores for 4 trainers" + more},
      {4, 3, {}, nullptr, 1, "1 thread computes in each task: 4 cores for 3 trainers" + more},
      {4, 2, {}, "", 2, "2 threads compute in each task: 4 cores for 2 trainers" + more},
      {64, 7, {}, nullptr, 9, "9 threads compute in each task: 64 cores for 7 trainers" + more},
      {64,
       1001,
       {},
       nullptr,
       1,
       "1 thread computes in each task: 64 cores for 1001 trainers" + more},
      {4096,
       1,
       {},
       nullptr,
       1024,
       "1024 threads compute in each task: 4096 cores for 1 trainer" + more},
      {4, 2, {}, "7", {}, "7 threads compute in each task: MILLRACE_NUM_THREADS=7"},
      {4, 2, {}, "0", {}, "as many threads as cores compute in each task: MILLRACE_NUM_THREADS=0"},
      {4, 2, 1, "7", 1, "1 thread computes in each task: --threads_per_task=1"},
      {4, 2, 1, "many", 1, "1 thread computes in each task: --threads_per_task=1"},
      {4,
       2,
       0,
       "7",
       {},
       "--threads_per_task=0: MILLRACE_NUM_THREADS of the tasks stays as it is, '7'"},
      {4,
       2,
       0,
       nullptr,
       {},
       "--threads_per_task=0: MILLRACE_NUM_THREADS of the tasks stays as it is, not set"},
  };
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const TaskThreads threads,
                         ThreadsOfTasks(c.cores, c.trainers, c.flag, c.variable));
    EXPECT_EQ(threads.text, c.text);
    EXPECT_EQ(threads.per_task, c.per_task) << c.text;
  }
  EXPECT_STATUS(ThreadsOfTasks(4, 2, 1025, nullptr), absl::StatusCode::kInvalidArgument,
                "launch: --threads_per_task must be in [0, 1024], got 1025");
  EXPECT_STATUS(ThreadsOfTasks(4, 2, -1, nullptr), absl::StatusCode::kInvalidArgument, "got -1");
  EXPECT_STATUS(ThreadsOfTasks(4, 2, {}, "x"), absl::StatusCode::kInvalidArgument,
                "launch: MILLRACE_NUM_THREADS must be an integer in [0, 1024], got 'x'");
}

// Of a command of the shell: what it wrote, and its exit code.
struct Ended {
  std::string output;
  int code = -1;
};

Ended RunInShell(const std::string& command) {
  Ended ended;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    ended.output.append(buffer, n);
  }
  const int status = pclose(pipe);
  if (WIFEXITED(status)) ended.code = WEXITSTATUS(status);
  return ended;
}

// 30 tasks need more files than the 24 that the shell allows.
TEST(LaunchTest, ManyTasksOpenTheFilesThatTheyNeedOrAreRefused) {
  const std::string job = absl::StrCat(kLaunch, " --ps=1 --workers=29 --threads_per_task=1 -- ",
                                       kTask, " 'ps=until_term' '*=file_limit' 2>&1");
  const Ended raised = RunInShell(absl::StrCat("ulimit -Sn 24 && exec ", job));
  EXPECT_EQ(raised.code, 0) << raised.output;
  for (int i = 0; i < 29; ++i) {
    EXPECT_THAT(raised.output, HasSubstr(absl::StrCat("[worker ", i, "] file limit 24\n")));
  }
  const Ended refused = RunInShell(absl::StrCat("ulimit -Sn 24 && ulimit -Hn 40 && exec ", job));
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("launch: 30 tasks need a limit of "));
  EXPECT_THAT(refused.output, HasSubstr(" open files, got 40; "));
  EXPECT_THAT(refused.output, Not(HasSubstr(" started at ")));
}

TEST(LaunchTest, AProgramThatCannotRunFailsTheJobAndSaysWhy) {
  const std::string no_program = TempPath("no_program");
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), no_program, "not a program"));
  const struct {
    std::string program;
    std::string why;
  } cases[] = {{"/no/such/program", "no such program"}, {no_program, "Permission denied"}};
  for (const auto& c : cases) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    LocalClusterOptions options;
    options.chief = "master";
    options.command = {c.program};
    options.output_fd = ends[1];
    ASSERT_OK_AND_ASSIGN(const int code, RunLocalCluster(options));
    close(ends[1]);
    EXPECT_EQ(code, 127);
    std::string output(4096, '\0');
    output.resize(static_cast<size_t>(read(ends[0], output.data(), output.size())));
    close(ends[0]);
    EXPECT_THAT(output,
                HasSubstr(absl::StrCat("launch: cannot run '", c.program, "': ", c.why, "\n")));
  }
}

// What TF_CONFIG says of the cluster, in the line of `task`.
std::string ClusterIn(const std::string& output, const std::string& task) {
  const size_t line = output.find(absl::StrCat("[", task, "] config "));
  if (line == std::string::npos) return "";
  const size_t begin = output.find("{\"cluster\"", line), end = output.find("\"task\"", line);
  return output.substr(begin, end - begin);
}

TEST(LaunchTest, WorkersComeAndGoWhileTheJobRuns) {
  Gate gate;
  const std::string await = absl::StrCat("config;await:", gate.path());
  // Worker 1 waits for SIGTERM, and when it comes again has nothing to do.
  Launched launch({"--ps=1", "--chief", "--workers=1..2"},
                  {"ps=until_term", absl::StrCat("chief=", await), absl::StrCat("worker0=", await),
                   absl::StrCat("worker1=config;once:", TempPath("once"), ";until_term")});
  EXPECT_TRUE(launch.ReadUntil("[chief 0] config"));
  EXPECT_TRUE(launch.ReadUntil("[worker 0] config"));
  EXPECT_THAT(launch.output(), HasSubstr("launch: 1 workers, up to 2: kill -USR1 "));
  EXPECT_THAT(launch.output(), Not(HasSubstr("worker 1 started")));
  launch.Signal(SIGUSR2);
  EXPECT_TRUE(launch.ReadUntil("launch: got SIGUSR2: ends no worker, 1 must run and 1 do\n"));
  launch.Signal(SIGUSR1);
  EXPECT_TRUE(launch.ReadUntil("launch: got SIGUSR1: starting worker 1\n"));
  EXPECT_TRUE(launch.ReadUntil("[worker 1] config"));
  launch.Signal(SIGUSR1);
  EXPECT_TRUE(launch.ReadUntil(
      "launch: got SIGUSR1: starts no worker, all 2 run or have done their work\n"));
  launch.Signal(SIGUSR2);
  EXPECT_TRUE(launch.ReadUntil("launch: got SIGUSR2: asking worker 1 to end\n"));
  EXPECT_TRUE(launch.ReadUntil(
      "launch: worker 1 ended with code 0, as it was asked to; workers that run: 1\n"));
  launch.Signal(SIGUSR1);
  EXPECT_TRUE(launch.ReadUntil("launch: got SIGUSR1: starting worker 1\n", 2));
  EXPECT_TRUE(launch.ReadUntil("[worker 1] config", 2));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), ContainsRegex("launch: worker 1 +exit 0 +[0-9.]+ +2 +done\n"));
  // It was in the cluster before it was started.
  const std::string cluster = ClusterIn(launch.output(), "chief 0");
  EXPECT_THAT(cluster, ContainsRegex("\"worker\": .\"[^\"]+\", \"[^\"]+\"."));
  EXPECT_EQ(ClusterIn(launch.output(), "worker 1"), cluster);
}

TEST(LaunchTest, AWorkerThatDoesNotEndWhenItIsAskedIsKilledAndFailsNoJob) {
  Gate gate;
  Launched launch({"--ps=1", "--chief", "--workers=1..3", "--grace_secs=1"},
                  {"ps=until_term", "worker1=ignore_term;say:up;forever",
                   absl::StrCat("*=await:", gate.path())});
  EXPECT_TRUE(launch.ReadUntil("launch: worker 0 started"));
  launch.Signal(SIGUSR1);
  EXPECT_TRUE(launch.ReadUntil("[worker 1] up"));
  launch.Signal(SIGUSR2);
  EXPECT_TRUE(
      launch.ReadUntil("launch: worker 1 was killed by signal 9 (Killed), as it was asked to; "
                       "workers that run: 1\n"));
  gate.Open();
  EXPECT_EQ(launch.Wait(), 0);
  for (const char* row :
       {"worker 1 +signal 9 +[0-9.]+ +1 +killed: it did not end when asked: launch got SIGUSR2",
        "worker 2 +- +0.0 +0 +never started"}) {
    EXPECT_THAT(launch.output(), ContainsRegex(absl::StrCat("launch: ", row, "\n")));
  }
}

TEST(LaunchTest, BadOptionsAreRefused) {
  struct Case {
    LocalClusterOptions options;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{.workers = 1}, "a program must follow"},
      {{.ps = 1, .command = {"x"}}, "must have a trainer"},
      {{.ps = -1, .workers = 1, .command = {"x"}}, "must be in [0, 1000], got -1"},
      {{.chief = "boss", .command = {"x"}}, "got 'boss'"},
      {{.ps = 1, .workers = 3, .max_workers = 2, .command = {"x"}},
       "launch: --workers=MIN..MAX must have MIN <= MAX, got 3..2"},
      {{.workers = 1, .threads_per_task = -1, .command = {"x"}},
       "launch: --threads_per_task must be in [0, 1024], got -1"},
      {{.workers = 2, .command = {"x"}},
       "launch: 2 trainers must share their variables on parameter servers, got --ps=0"},
      {{.ps = 1, .workers = 2, .no_ps = true, .command = {"x"}},
       "launch: --no_ps must be given without a ps, got --ps=1"},
      {{.chief = "master", .workers = 2, .evaluator = true, .command = {"x"}},
       "launch: 3 trainers"},
      {{.workers = 1, .host = "no such host", .command = {"x"}}, "got 'no such host'"},
      // An address of another machine (of a network for documentation).
      {{.workers = 1, .host = "192.0.2.1", .command = {"x"}}, "got '192.0.2.1'"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(RunLocalCluster(c.options), absl::StatusCode::kInvalidArgument, c.message);
  }
}

TEST(LaunchTest, WrongFlagsExitWithTwo) {
  const std::vector<std::vector<std::string>> cases = {{},
                                                       {"--master", "--chief"},
                                                       {"--workers=x"},
                                                       {"--bogus"},
                                                       {"--workers=-1"},
                                                       {"--ps=1", "--workers=3..2"},
                                                       {"--ps=1", "--workers=1..x"},
                                                       {"--ps=1", "--chief", "--workers=.."},
                                                       {"--ps=1", "--chief", "--workers=0..0"},
                                                       {"--ps=1", "--workers=1..1001"},
                                                       {"--ps=1"},
                                                       {"--master", "--grace_secs=0"},
                                                       {"--master", "--threads_per_task=-1"},
                                                       {"--master", "--threads_per_task=1025"},
                                                       {"--master", "--threads_per_task=x"},
                                                       {"--master", "--threads_per_task="},
                                                       {"--master", "--show=boss"},
                                                       {"--master", "--show=worker-x"},
                                                       {"--master", "--show=ps,"}};
  for (const auto& flags : cases) {
    Launched launch(flags, {});
    EXPECT_EQ(launch.Wait(), 2);
    EXPECT_THAT(launch.output(), HasSubstr("usage: launch"));
    EXPECT_THAT(launch.output(), HasSubstr("launch: error: "));
  }
}

TEST(LaunchTest, AFilterThatShowsNobodyIsRefused) {
  Launched launch({"--ps=1", "--chief", "--workers=2", "--show=worker,worker-2"}, {"*=say:up"});
  EXPECT_EQ(launch.Wait(), 1);
  EXPECT_EQ(launch.output(), "launch: --show must name tasks of this job, got 'worker-2'\n");
}

TEST(LaunchTest, TrainersThatShareNothingAreRefused) {
  Launched launch({"--master", "--workers=1"}, {"*=say:up"});
  EXPECT_EQ(launch.Wait(), 1);
  EXPECT_EQ(launch.output(),
            "launch: 2 trainers must share their variables on parameter servers, got --ps=0: each "
            "would train a model of its own; add --ps=1 (or --no_ps, if the program trains "
            "nothing)\n");
}

TEST(LaunchTest, ProgramsThatTrainNothingNeedNoPs) {
  Launched launch({"--no_ps", "--workers=2"}, {"*=say:up"});
  EXPECT_EQ(launch.Wait(), 0);
  EXPECT_THAT(launch.output(), HasSubstr("[worker 0] up\n"));
  EXPECT_THAT(launch.output(), HasSubstr("[worker 1] up\n"));
}

TEST(LaunchTest, TheFirstLineOfAJobThatNobodyEvaluatesSaysSo) {
  constexpr char kVariable[] = "MILLRACE_MASTER_AS_CHIEF";
  struct Case {
    std::vector<std::string> flags;
    const char* as_chief;  // of the environment; null: not set
    bool is_said;
  };
  const std::vector<Case> cases = {
      {{"--chief"}, nullptr, true},
      {{"--ps=1", "--chief", "--workers=1"}, nullptr, true},
      {{"--chief", "--evaluator"}, nullptr, false},
      {{"--master"}, nullptr, false},
      {{"--master"}, "0", false},
      {{"--master"}, "1", true},
      {{"--master", "--evaluator"}, "1", false},
      {{"--workers=1"}, nullptr, false},  // no job of an Estimator: it has no chief
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(absl::StrCat(absl::StrJoin(c.flags, " "), " ", c.as_chief ? c.as_chief : ""));
    if (c.as_chief != nullptr) setenv(kVariable, c.as_chief, 1);
    Launched launch(c.flags, {"ps=until_term", "*=say:up"});
    EXPECT_EQ(launch.Wait(), 0);
    unsetenv(kVariable);
    const size_t at = launch.output().find("launch: no evaluator: ");
    if (c.is_said) {
      EXPECT_EQ(at, 0u) << launch.output();
      EXPECT_THAT(launch.output(), HasSubstr("exported; --evaluator starts one\n"));
    } else {
      EXPECT_EQ(at, std::string::npos) << launch.output();
    }
  }
}

TEST(LaunchTest, HelpAndVersionExitWithZero) {
  for (const char* flag : {"--help", "-h", "--version"}) {
    Launched launch({"--workers=1", flag}, {});
    EXPECT_EQ(launch.Wait(), 0);
    EXPECT_THAT(launch.output(), HasSubstr(flag == std::string("--version") ? "launch (Millrace) "
                                                                            : "--grace_secs N"));
  }
}

TEST(TaskOutputTest, ReturnsMakeAStatusAndNewlinesMakeLines) {
  TaskOutput output;
  std::vector<std::string> lines;
  EXPECT_FALSE(output.Add("plain\nhalf", &lines));
  EXPECT_EQ(lines, std::vector<std::string>({"plain"}));
  EXPECT_FALSE(output.Add(" line\n", &lines));
  EXPECT_EQ(lines.back(), "half line");
  EXPECT_TRUE(output.Add("\rstep 1", &lines));
  EXPECT_EQ(output.status(), "step 1");
  EXPECT_TRUE(output.Add("\rstep 2  ", &lines));
  EXPECT_EQ(output.status(), "step 2");
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_TRUE(output.Add("\n", &lines));
  EXPECT_EQ(output.status(), "");
  EXPECT_EQ(lines.back(), "step 2");
}

TEST(TaskOutputTest, StatusesThatDoNotFitAreShortenedThenCounted) {
  const std::vector<TaskStatus> statuses = {{"chief 0", "step 3/9  loss 1"},
                                            {"worker 0", "step 2/9  loss 2"},
                                            {"worker 1", "step 1/9  loss 3"},
                                            {"worker 2", "step 1/9  loss 4"}};
  const std::string chief = "[chief 0] step 3/9  loss 1";
  EXPECT_EQ(JoinStatuses({}, 10), "");
  EXPECT_EQ(JoinStatuses(absl::MakeConstSpan(statuses).first(2), 80),
            chief + " | [worker 0] step 2/9  loss 2");
  EXPECT_EQ(JoinStatuses(absl::MakeConstSpan(statuses).first(2), 50),
            chief + " | [worker 0] step 2/9");
  EXPECT_EQ(JoinStatuses(statuses, 53), chief + " | [worker 0] step 2/9 | +2");
  EXPECT_EQ(JoinStatuses(statuses, 52), chief + " | +3");
  EXPECT_EQ(JoinStatuses(statuses, 10), "[chief 0] ");
}

TEST(TaskOutputTest, AReturnAtTheEndOfALineKeepsIt) {
  TaskOutput output;
  std::vector<std::string> lines;
  output.Add("dos\r\n", &lines);
  EXPECT_EQ(lines, std::vector<std::string>({"dos"}));
  // A status that is ended by '\r' instead of begun.
  EXPECT_TRUE(output.Add("step 1\r", &lines));
  EXPECT_EQ(output.status(), "step 1");
  output.Finish(&lines);
  EXPECT_EQ(lines.back(), "step 1");
  EXPECT_EQ(output.status(), "");
}

TEST(TaskOutputTest, AnEndlessLineIsCutNotCollected) {
  TaskOutput output;
  std::vector<std::string> lines;
  output.Add(std::string(200000, 'x'), &lines);
  EXPECT_EQ(lines.size(), 3u);
  output.Finish(&lines);
  size_t total = 0;
  for (const std::string& line : lines) total += line.size();
  EXPECT_EQ(total, 200000u);
}

}  // namespace
}  // namespace millrace

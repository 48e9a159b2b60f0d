// SPDX-License-Identifier: Apache-2.0
//
// Whose variables, when training is over, and what a signal leaves: jobs as processes, without a
// launcher.
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "saver/saver.h"
#include "tests/cluster/process.h"

// covers: training: a checkpoint that takes long is named in the log while a task waits for it
// covers: clusters: processes without a launcher: a second job on used servers initialises; a task
//   that starts after the end leaves within 30 s, also after a restart of the server; a job
//   restarted with more steps continues for all; SIGTERM leaves 143 and a checkpoint; a ps does not
//   wait for a killed trainer; a chief stopped during a save commits nothing after its successor

namespace millrace {
namespace {

constexpr char kProgram[] = "examples/linear/linear_train";
constexpr absl::Duration kStartTime = absl::Seconds(60);
constexpr absl::Duration kLineTime = absl::Seconds(60);
constexpr int kMaxPortTries = 3;
// The bound of the promise: from its start until a late task has left.
constexpr absl::Duration kLeaveTime = absl::Seconds(30);

class RunLifeTest : public ::testing::Test {
 protected:
  RunLifeTest()
      : directory_(JoinPath(::testing::TempDir(), absl::StrCat("run_life_", RandomHexName()))) {
    FileSystem::Posix()->RecursivelyCreateDirectory(directory_).IgnoreError();
  }
  ~RunLifeTest() override {
    processes_.clear();
    FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError();
  }

  std::string logs(const std::string& name) const { return JoinPath(directory_, name); }

  // Starts a parameter server on a free port.
  void StartPs(const std::string& log_dir) {
    for (int i = 0; i < kMaxPortTries; ++i) {
      ports_ = FreeClusterPorts(1, 1, 1);
      const Status started = StartTask("ps-0", log_dir);
      if (started.ok()) return;
      if (!EndedBecausePortIsInUse(task("ps-0"))) {
        ASSERT_OK(started);
      }
    }
    FAIL() << "no free port";
  }
  Status StartTask(const std::string& name, const std::string& log_dir,
                   const std::vector<std::string>& args = {}) {
    const std::vector<std::string> parts = absl::StrSplit(name, '-');
    ProcessOptions options;
    options.name = name;
    options.program = kProgram;
    options.args = {absl::StrCat("--log_dir=", logs(log_dir)), "--session_timeout_secs=120"};
    options.args.insert(options.args.end(), args.begin(), args.end());
    options.env["TF_CONFIG"] = TfConfig(ports_, parts[0], std::atoi(parts[1].c_str()));
    started_[name] = absl::Now();
    MR_ASSIGN_OR_RETURN(processes_[name], Process::Start(options));
    return processes_[name]->WaitForLine("listens on", kStartTime).status();
  }
  // A program without a cluster: variables in its own process.
  Status StartAlone(const std::string& name, const std::string& log_dir,
                    const std::vector<std::string>& args,
                    const std::map<std::string, std::string>& env = {}) {
    ProcessOptions options;
    options.name = name;
    options.program = kProgram;
    options.args = {absl::StrCat("--log_dir=", logs(log_dir))};
    options.args.insert(options.args.end(), args.begin(), args.end());
    options.env = env;
    started_[name] = absl::Now();
    MR_ASSIGN_OR_RETURN(processes_[name], Process::Start(options));
    return processes_[name]->WaitForLine("First step is", kStartTime).status();
  }
  Process* task(const std::string& name) { return processes_.at(name).get(); }
  void Kill(const std::string& name) {
    EXPECT_OK(task(name)->Signal(SIGKILL));
    EXPECT_OK(task(name)->WaitForExit(absl::Seconds(20)).status());
  }
  // Ends with `code` within `time` of now; says how long that took, and since when it runs.
  void ExpectEnds(const std::string& name, int code, absl::Duration time = kLeaveTime) {
    const absl::Time begin = absl::Now();
    const auto ended = task(name)->WaitForExit(time);
    std::printf("%s ended after %.1f s, of %.0f s; %.1f s since it was started\n", name.c_str(),
                absl::ToDoubleSeconds(absl::Now() - begin), absl::ToDoubleSeconds(time),
                absl::ToDoubleSeconds(absl::Now() - started_[name]));
    EXPECT_OK(ended.status());
    EXPECT_EQ(ended.value_or(-1), code) << task(name)->output();
  }
  void ExpectLeavesWell(const std::string& name, absl::Duration time = kLeaveTime) {
    ExpectEnds(name, 0, time);
  }
  void ExpectSays(const std::string& name, const std::string& text) {
    EXPECT_TRUE(absl::StrContains(task(name)->output(), text)) << task(name)->output();
  }

  const std::string directory_;
  ClusterPorts ports_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::map<std::string, absl::Time> started_;
};

TEST_F(RunLifeTest, ASecondJobOnUsedServersInitialisesAndTheFirstAdopts) {
  const std::vector<std::string> args = {"--max_steps=100000", "--checkpoint=20",
                                         "--steps_per_second=100"};
  ASSERT_NO_FATAL_FAILURE(StartPs("first"));
  ASSERT_OK(StartTask("master-0", "first", args));
  ASSERT_OK(task("master-0")->WaitForLine("Saved ", kLineTime).status());
  Kill("master-0");
  // A fresh directory: not the first job's weights.
  ASSERT_OK(StartTask("master-0", "second", args));
  ASSERT_OK(task("master-0")
                ->WaitForLine("Supervisor: initialized 3 variables at global step 0", kLineTime)
                .status());
  ASSERT_OK(task("master-0")->WaitForLine("First step is 0", kLineTime).status());
  Kill("master-0");
  // The first one's chief is started again: its own are still there.
  ASSERT_OK(StartTask("master-0", "first", args));
  EXPECT_OK(
      task("master-0")->WaitForLine("Supervisor: adopted all 3 variables", kLineTime).status());
}

TEST_F(RunLifeTest, WhoComesAfterTheEndLeavesAlsoWhenTheServerWasRestarted) {
  const std::vector<std::string> args = {"--max_steps=100", "--checkpoint=50"};
  ASSERT_NO_FATAL_FAILURE(StartPs("run"));
  ASSERT_OK(StartTask("master-0", "run", args));
  ExpectLeavesWell("master-0", absl::Seconds(120));
  // The server has seen the end.
  ExpectLeavesWell("ps-0");
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(FileSystem::Posix(), logs("run")));
  EXPECT_TRUE(end.has_value());
  if (end.has_value()) {
    EXPECT_EQ(end->goal, 100);
  }
  // One that knows nothing, and a worker that comes only now. What either does, the log shows also
  // when the former server is still there, or nobody wrote an end.
  processes_.erase("ps-0");
  ASSERT_OK(StartTask("ps-0", "run"));
  ASSERT_OK(StartTask("worker-0", "run", args));
  ExpectLeavesWell("worker-0");
  ExpectSays("worker-0", "has ended at step 100: reached step 100 of 100");
  // Unless the chief trains further: stale_grace (distributed/server.h).
  ExpectLeavesWell("ps-0", absl::Seconds(120));
}

TEST_F(RunLifeTest, AJobThatIsStartedAgainWithMoreStepsGoesOnForAll) {
  ASSERT_NO_FATAL_FAILURE(StartPs("run"));
  const std::vector<std::string> first = {"--max_steps=100", "--checkpoint=50"};
  ASSERT_OK(StartTask("master-0", "run", first));
  ASSERT_OK(StartTask("worker-0", "run", first));
  ExpectLeavesWell("master-0", absl::Seconds(120));
  ExpectLeavesWell("worker-0");
  ExpectLeavesWell("ps-0");
  // The others are there before the chief, and know of the end only.
  const std::vector<std::string> more = {"--max_steps=400", "--checkpoint=20",
                                         "--steps_per_second=100"};
  ASSERT_OK(StartTask("ps-0", "run"));
  ASSERT_OK(StartTask("worker-0", "run", more));
  ASSERT_OK(task("worker-0")->WaitForLine("leaves unless a chief goes on", kLineTime).status());
  ASSERT_OK(StartTask("master-0", "run", more));
  ExpectLeavesWell("master-0", absl::Seconds(120));
  ExpectLeavesWell("worker-0");
  ExpectLeavesWell("ps-0");
  ExpectSays("master-0", "which had ended at global step 10");
  ExpectSays("worker-0", "Step: ");  // trained
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(FileSystem::Posix(), logs("run")));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->goal, 400);
  EXPECT_GE(end->global_step, 400);
}

TEST_F(RunLifeTest, AWorkerThatWaitsWhileTheServerIsRestartedJoins) {
  const std::vector<std::string> args = {"--max_steps=300", "--checkpoint=20",
                                         "--steps_per_second=100"};
  ASSERT_NO_FATAL_FAILURE(StartPs("run"));
  ASSERT_OK(StartTask("worker-0", "run", args));
  // For the chief, whom nobody has started: said after ten seconds.
  ASSERT_OK(task("worker-0")->WaitForLine("waiting for", kLineTime).status());
  Kill("ps-0");
  ASSERT_OK(StartTask("ps-0", "run"));
  ASSERT_OK(StartTask("master-0", "run", args));
  ExpectLeavesWell("worker-0", absl::Seconds(60));
  ExpectLeavesWell("master-0");
  ExpectLeavesWell("ps-0");
  ExpectSays("worker-0", "Step: ");  // trained
}

TEST_F(RunLifeTest, SigtermInMidJobLeavesACheckpointFromWhichTheJobGoesOn) {
  const std::vector<std::string> args = {"--max_steps=100000", "--checkpoint=50",
                                         "--steps_per_second=100"};
  ASSERT_NO_FATAL_FAILURE(StartPs("run"));
  ASSERT_OK(StartTask("master-0", "run", args));
  ASSERT_OK(StartTask("worker-0", "run", args));
  ASSERT_OK(task("worker-0")->WaitForLine("Step: ", kLineTime).status());
  EXPECT_OK(task("master-0")->Signal(SIGTERM));
  EXPECT_OK(task("worker-0")->Signal(SIGTERM));
  ExpectEnds("master-0", 128 + SIGTERM);
  ExpectEnds("worker-0", 128 + SIGTERM);
  EXPECT_OK(task("ps-0")->Signal(SIGTERM));
  ExpectLeavesWell("ps-0");
  const auto saved = LatestCheckpoint(FileSystem::Posix(), logs("run"));
  ASSERT_TRUE(saved.has_value());
  ExpectSays("master-0", absl::StrCat("; saved ", *saved));
  ExpectSays("worker-0", "; the chief keeps the checkpoints");
  // No end: the job is to go on, from that step.
  EXPECT_FALSE(FileSystem::Posix()->FileExists(RunEndFilePath(logs("run"))));
  ASSERT_OK(StartTask("ps-0", "run"));
  ASSERT_OK(StartTask("master-0", "run", args));
  EXPECT_OK(
      task("master-0")
          ->WaitForLine(absl::StrCat("Supervisor: restored 3 variables from ", *saved,
                                     " at global step ", saved->substr(saved->rfind('-') + 1)),
                        kLineTime)
          .status());
}

// As cluster managers do it; the server hears it first, which is the worst order.
TEST_F(RunLifeTest, SigtermToAllTasksAtOnceLeavesTheChiefsLastCheckpoint) {
  const std::vector<std::string> args = {"--max_steps=100000", "--checkpoint=50",
                                         "--steps_per_second=100"};
  ASSERT_NO_FATAL_FAILURE(StartPs("run"));
  ASSERT_OK(StartTask("master-0", "run", args));
  ASSERT_OK(StartTask("worker-0", "run", args));
  ASSERT_OK(task("worker-0")->WaitForLine("Step: ", kLineTime).status());
  EXPECT_OK(task("ps-0")->Signal(SIGTERM));
  ASSERT_OK(task("ps-0")->WaitForLine("stays for", kLineTime).status());
  EXPECT_OK(task("master-0")->Signal(SIGTERM));
  EXPECT_OK(task("worker-0")->Signal(SIGTERM));
  ExpectEnds("master-0", 128 + SIGTERM);
  ExpectEnds("worker-0", 128 + SIGTERM);
  // Not by the end of its grace: everybody has closed.
  ExpectLeavesWell("ps-0");
  EXPECT_FALSE(task("ps-0")->FindLastLine("leaves although").has_value()) << task("ps-0")->output();
  const auto saved = LatestCheckpoint(FileSystem::Posix(), logs("run"));
  ASSERT_TRUE(saved.has_value()) << task("master-0")->output();
  ExpectSays("master-0", absl::StrCat("; saved ", *saved));
}

TEST_F(RunLifeTest, AServerThatIsToldToEndDoesNotWaitForATrainerThatWasKilled) {
  ASSERT_NO_FATAL_FAILURE(StartPs("run"));
  ASSERT_OK(StartTask("master-0", "run", {"--max_steps=100000", "--steps_per_second=100"}));
  ASSERT_OK(task("master-0")->WaitForLine("First step is", kLineTime).status());
  Kill("master-0");
  EXPECT_OK(task("ps-0")->Signal(SIGTERM));
  ExpectLeavesWell("ps-0");
  EXPECT_FALSE(task("ps-0")->FindLastLine("leaves although").has_value()) << task("ps-0")->output();
}

// Storage that hangs: here for a quarter of a minute.
TEST_F(RunLifeTest, ACheckpointThatTakesLongIsNamedWhileItIsAwaited) {
  const std::vector<std::string> args = {"--max_steps=100", "--checkpoint=20"};
  ASSERT_OK(StartAlone("trainer", "run", args,
                       {{"MILLRACE_FAIL_POINTS", "saver/after_save=sleep_ms:15000,times=1"}}));
  EXPECT_OK(task("trainer")
                ->WaitForLine(
                    absl::StrCat("Supervisor: waits for the checkpoint '",
                                 logs("run/model.ckpt-20"), "', which is being written since 10s"),
                    kLineTime)
                .status());
  ExpectLeavesWell("trainer", kLineTime);
}

// Stopped between the files of a checkpoint and the commit, which a fail point makes long.
TEST_F(RunLifeTest, AChiefThatIsStoppedInMidSaveCommitsNothingAfterItsSuccessor) {
  const std::vector<std::string> args = {"--max_steps=100000", "--checkpoint=20",
                                         "--steps_per_second=100"};
  FileSystem* const fs = FileSystem::Posix();
  const std::string half = logs("run/model.ckpt-40");
  ASSERT_OK(StartAlone("older", "run", args,
                       {{"MILLRACE_FAIL_POINTS", "saver/after_save=sleep_ms:4000,after=1"}}));
  // Its parts are gone when it is whole.
  const auto is_whole = [&] {
    const auto names = fs->GetChildren(logs("run"));
    return fs->FileExists(half + ".index") && names.ok() &&
           std::none_of(names->begin(), names->end(), [](const std::string& name) {
             return absl::StrContains(name, "model.ckpt-40_temp");
           });
  };
  const absl::Time deadline = absl::Now() + kLineTime;
  while (!is_whole() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_TRUE(is_whole()) << task("older")->output();
  ASSERT_OK(task("older")->Signal(SIGSTOP));
  EXPECT_EQ(LatestCheckpoint(fs, logs("run")), logs("run/model.ckpt-20"));

  ASSERT_OK(StartAlone("newer", "run", args));
  ExpectSays("newer", "First step is 20");
  ASSERT_OK(task("newer")->WaitForLine("Saved ", kLineTime).status());
  ASSERT_OK(task("newer")->WaitForLine("model.ckpt-80", kLineTime).status());
  EXPECT_OK(task("older")->Signal(SIGCONT));
  ExpectEnds("older", 1);
  ExpectSays("older", "fenced by ");
  EXPECT_FALSE(task("older")->FindLastLine("Saved " + half).has_value()) << task("older")->output();
  // The other one goes on, with its own.
  EXPECT_OK(task("newer")->WaitForLine("model.ckpt-200", kLineTime).status());
  EXPECT_OK(task("newer")->Signal(SIGTERM));
  ExpectEnds("newer", 128 + SIGTERM);
  const auto latest = LatestCheckpoint(fs, logs("run"));
  ASSERT_TRUE(latest.has_value());
  ExpectSays("newer", absl::StrCat("; saved ", *latest));
}

}  // namespace
}  // namespace millrace

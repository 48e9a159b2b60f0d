// SPDX-License-Identifier: Apache-2.0
//
// Whose variables, and when training is over: jobs as processes, without a launcher.
#include <signal.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/run_file.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/cluster/process.h"

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
    MR_ASSIGN_OR_RETURN(processes_[name], Process::Start(options));
    return processes_[name]->WaitForLine("listens on", kStartTime).status();
  }
  Process* task(const std::string& name) { return processes_.at(name).get(); }
  void Kill(const std::string& name) {
    EXPECT_OK(task(name)->Signal(SIGKILL));
    EXPECT_OK(task(name)->WaitForExit(absl::Seconds(20)).status());
  }
  void ExpectLeavesWell(const std::string& name, absl::Duration time = kLeaveTime) {
    const auto code = task(name)->WaitForExit(time);
    EXPECT_OK(code.status());
    EXPECT_EQ(code.value_or(-1), 0) << task(name)->output();
  }

  const std::string directory_;
  ClusterPorts ports_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
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
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->goal, 100);
  // One that knows nothing, and a worker that comes only now.
  ASSERT_OK(StartTask("ps-0", "run"));
  ASSERT_OK(StartTask("worker-0", "run", args));
  ExpectLeavesWell("worker-0");
  EXPECT_TRUE(absl::StrContains(task("worker-0")->output(), "has ended at step "))
      << task("worker-0")->output();
  // Unless the chief trains further: stale_grace (distributed/server.h).
  ExpectLeavesWell("ps-0", absl::Seconds(120));
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// The end of a run whose tasks have finite data: it is recorded when every trainer's data has
// ended, or its lease.
#include <signal.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"

// covers: training: with finite data the run ends when the data of every trainer has ended, or its
//   lease, and the last checkpoint has all of it
// covers: article 1-14: finite data end the training after the data of all trainers; a warning with
//   several trainers
// covers: scenario F18: data of several trainers: the run ends after the data of the slowest one

namespace millrace {
namespace {

constexpr char kProgram[] = "tests/cluster/rows_trainer";
constexpr absl::Duration kTime = absl::Seconds(60);
constexpr int kMaxPortTries = 3;

class FiniteDataTest : public ::testing::Test {
 protected:
  FiniteDataTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("finite_data_", RandomHexName()))) {
    EXPECT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
    for (int i = 0; i < kMaxPortTries; ++i) {
      ports_ = FreeClusterPorts(1, 1, 2);
      if (StartTask("ps-0", {}).ok()) return;
      if (!EndedBecausePortIsInUse(task("ps-0"))) break;
    }
    ADD_FAILURE() << "no parameter server";
  }
  ~FiniteDataTest() override {
    tasks_.clear();
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }

  Status StartTask(const std::string& name, std::vector<std::string> args) {
    const std::vector<std::string> parts = absl::StrSplit(name, '-');
    ProcessOptions options;
    options.name = name;
    options.program = kProgram;
    options.args = std::move(args);
    options.args.push_back(absl::StrCat("--dir=", run_dir()));
    options.env["TF_CONFIG"] = TfConfig(ports_, parts[0], std::atoi(parts[1].c_str()));
    MR_ASSIGN_OR_RETURN(tasks_[name], Process::Start(options));
    return tasks_[name]->WaitForLine("listens on", kTime).status();
  }
  Process* task(const std::string& name) { return tasks_.at(name).get(); }
  void ExpectEnds(const std::string& name) {
    const auto code = task(name)->WaitForExit(kTime);
    EXPECT_OK(code.status());
    EXPECT_EQ(code.value_or(-1), 0) << task(name)->output();
  }
  // The end's step, whose checkpoint must be there and have as many rows.
  int64_t EndStep() {
    const auto end = ReadRunEnd(FileSystem::Posix(), run_dir());
    EXPECT_OK(end.status());
    if (!end.ok() || !end->has_value()) return -1;
    EXPECT_EQ((*end)->reason, "no more rows");
    const std::string checkpoint = absl::StrCat(run_dir(), "/model.ckpt-", (*end)->global_step);
    EXPECT_EQ((*end)->checkpoint, checkpoint);
    const auto reader = BundleReader::Open(FileSystem::Posix(), checkpoint);
    EXPECT_OK(reader.status());
    if (!reader.ok()) return -1;
    const auto sum = (*reader)->Read("sum");
    EXPECT_OK(sum.status());
    EXPECT_EQ(sum.ok() ? sum->scalar<float>() : -1, static_cast<float>((*end)->global_step));
    return (*end)->global_step;
  }
  std::string run_dir() const { return dir_ + "/run"; }

  const std::string dir_;
  ClusterPorts ports_;
  std::map<std::string, std::unique_ptr<Process>> tasks_;
};

TEST_F(FiniteDataTest, TheRunEndsWithTheDataOfTheSlowestTrainer) {
  // The chief has least to do, and another one is done before it looks.
  ASSERT_OK(StartTask("worker-1", {"--rows=20"}));
  ASSERT_OK(StartTask("master-0", {"--rows=10", "--trainers=3", "--save_steps=50"}));
  ASSERT_OK(StartTask("worker-0", {"--rows=150", "--row_ms=10"}));
  for (const char* name : {"master-0", "worker-0", "worker-1", "ps-0"}) ExpectEnds(name);
  EXPECT_EQ(EndStep(), 10 + 150 + 20);
}

TEST_F(FiniteDataTest, ATrainerThatDiesIsWaitedForNoLongerThanItsLease) {
  ASSERT_OK(StartTask("worker-0", {"--rows=100000", "--row_ms=5"}));
  ASSERT_OK(StartTask("master-0", {"--rows=20", "--trainers=2", "--save_steps=20"}));
  ASSERT_OK(task("worker-0")->WaitForLine("row 100", kTime).status());
  // The chief's data has ended, and the worker's has not: checkpoints are written all the same.
  ASSERT_OK(task("master-0")
                ->WaitForLine("the run goes on until the data of other trainers has ended: "
                              "/job:worker/replica:0/task:0",
                              kTime)
                .status());
  ASSERT_OK(task("master-0")->WaitForLine("model.ckpt-", kTime).status());
  EXPECT_FALSE(task("master-0")->exit_code().has_value());
  ASSERT_OK(task("worker-0")->Signal(SIGKILL));
  for (const char* name : {"master-0", "ps-0"}) ExpectEnds(name);
  EXPECT_GE(EndStep(), 20 + 100);
}

}  // namespace
}  // namespace millrace

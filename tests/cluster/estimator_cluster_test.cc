// SPDX-License-Identifier: Apache-2.0
//
// TrainAndEvaluate as processes: ps, chief, two workers and an evaluator that start in any order,
// lose one another, and all leave with 0 when training is over.

#include <signal.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "estimator/estimator_parts.h"
#include "estimator/evaluation_done.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "saver/saver.h"
#include "tests/cluster/process.h"

// covers: article 3-39: any process may be killed at any time
// covers: scenario F17: data, hooks and checkpoints that end an evaluator's wait

namespace millrace {
namespace {

constexpr char kProgram[] = "tests/cluster/estimator_job";
constexpr absl::Duration kLineTime = absl::Seconds(60);
// For a job to end; nothing here takes as long but on a machine that is busy.
constexpr absl::Duration kEndTime = absl::Seconds(150);

// "worker-1".
using Tasks = std::vector<std::string>;

class EstimatorClusterTest : public testing::Test {
 protected:
  EstimatorClusterTest()
      : dir_(JoinPath(testing::TempDir(), absl::StrCat("estimator_", RandomHexName()))) {}
  ~EstimatorClusterTest() override {
    const bool failed = HasFailure();
    for (auto& [task, process] : processes_) {
      if (failed) std::printf("---- %s\n%s\n", task.c_str(), process->output().c_str());
    }
    processes_.clear();
    fs()->RecursivelyDelete(dir_).IgnoreError();
  }
  static FileSystem* fs() { return FileSystem::Posix(); }
  std::string model_dir() const { return dir_ + "/model"; }

  // The ports of the tasks of the cluster; the evaluator has none.
  void SetTasks(const Tasks& tasks) {
    tasks_ = tasks;
    cluster_.clear();
    for (const std::string& task : tasks) {
      const std::string job = task.substr(0, task.find('-'));
      if (job == "evaluator") continue;
      cluster_[job].push_back(absl::StrCat("\"localhost:", FreePort(), "\""));
    }
  }
  std::string TfConfigOf(const std::string& task) const {
    const std::string cluster =
        absl::StrJoin(cluster_, ", ", [](std::string* out, const auto& job) {
          absl::StrAppend(out, "\"", job.first, "\": [", absl::StrJoin(job.second, ", "), "]");
        });
    const size_t dash = task.find('-');
    return absl::StrCat("{\"cluster\": {", cluster, "}, \"task\": {\"type\": \"",
                        task.substr(0, dash), "\", \"index\": ", task.substr(dash + 1), "}}");
  }
  void Start(const std::string& task) {
    std::vector<std::string> args = {absl::StrCat("--model_dir=", model_dir())};
    args.insert(args.end(), args_.begin(), args_.end());
    ASSERT_OK_AND_ASSIGN(auto process, Process::Start({.name = task,
                                                       .program = kProgram,
                                                       .args = args,
                                                       .env = {{"TF_CONFIG", TfConfigOf(task)}}}));
    processes_[task] = std::move(process);
  }
  void StartAll(Tasks order) {
    for (const std::string& task : order) Start(task);
  }
  // The code with which a task ends.
  int CodeOf(const std::string& task) {
    const auto code = processes_.at(task)->WaitForExit(kEndTime);
    EXPECT_OK(code.status()) << task;
    return code.value_or(-1);
  }
  void ExpectAllDone(const Tasks& tasks) {
    for (const std::string& task : tasks) EXPECT_EQ(CodeOf(task), 0) << task;
  }
  // The step of the last checkpoint, which is the one that the end names and the evaluator has
  // evaluated last.
  int64_t ExpectLastIsEvaluated() {
    const auto end = ReadRunEnd(fs(), model_dir());
    const auto done = ReadEvaluationDone(fs(), model_dir());
    const auto latest = LatestCheckpoint(fs(), model_dir());
    EXPECT_TRUE(end.ok() && *end && done.ok() && *done && latest);
    if (!(end.ok() && *end && done.ok() && *done && latest)) return -1;
    EXPECT_EQ((*done)->id, (*end)->id);
    EXPECT_TRUE(HasLastCheckpointOf(**done, **end));
    // Of the values that were evaluated. Others may have counted on before the end was recorded.
    const auto step = GlobalStepIn(fs(), *latest);
    EXPECT_EQ((*done)->global_step, step.ok() ? step->value_or(-1) : -1) << step.status();
    EXPECT_LE((*done)->global_step, (*end)->global_step);
    EXPECT_EQ((*done)->checkpoint, Basename(*latest));
    EXPECT_EQ(Basename((*end)->checkpoint), Basename(*latest));
    const auto said = processes_.at("evaluator-0")->FindLastLine("done: evaluated step ");
    EXPECT_TRUE(said && absl::StrContains(*said, absl::StrCat("step ", (*done)->global_step, ",")))
        << said.value_or("nothing");
    return (*done)->global_step;
  }
  size_t num_exports() const {
    const auto names = fs()->GetChildren(model_dir() + "/export/final");
    return names.ok() ? names->size() : 0;
  }
  void AwaitCheckpoint(const std::string& task) {
    EXPECT_OK(processes_.at(task)->WaitForLine("evaluated ", kLineTime).status());
  }

  const std::string dir_;
  Tasks tasks_;
  std::vector<std::string> args_;
  std::map<std::string, std::vector<std::string>> cluster_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

const Tasks& FiveTasks() {
  static const auto* const tasks =
      new Tasks{"ps-0", "chief-0", "worker-0", "worker-1", "evaluator-0"};
  return *tasks;
}

TEST_F(EstimatorClusterTest, FiveTasksInAnyOrderTrainEvaluateAndLeave) {
  SetTasks(FiveTasks());
  args_ = {"--max_steps=300"};
  Tasks order = FiveTasks();
  const auto seed = static_cast<unsigned>(RandomUint64());
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", absl::StrJoin(order, ", ")));
  StartAll(order);
  ExpectAllDone(order);
  EXPECT_GE(ExpectLastIsEvaluated(), 300);
  EXPECT_EQ(num_exports(), 1u);
  for (const char* trainer : {"chief-0", "worker-0", "worker-1"}) {
    EXPECT_TRUE(processes_.at(trainer)->FindLastLine("Loss for final step")) << trainer;
  }
  // All of them once more have nothing to do.
  processes_.clear();
  args_.push_back("--end_grace_secs=1");
  StartAll(order);
  ExpectAllDone(order);
  EXPECT_EQ(num_exports(), 1u) << "the last checkpoint is exported once";
}

TEST_F(EstimatorClusterTest, AllDataOfAllTrainersIsTrainedAndTheLastCheckpointEvaluated) {
  SetTasks(FiveTasks());
  // The chief's end first, and it ends the run.
  args_ = {"--max_steps=1000", "--rows=60", "--chief_rows=5", "--row_ms=20"};
  StartAll(FiveTasks());
  ExpectAllDone(FiveTasks());
  EXPECT_EQ(ExpectLastIsEvaluated(), 5 + 2 * 60);
}

// covers: article 3-25: the evaluator leaves when the last checkpoint is evaluated, and says so
TEST_F(EstimatorClusterTest, TheChiefStaysUntilTheEvaluatorIsDone) {
  SetTasks({"ps-0", "chief-0", "evaluator-0"});
  args_ = {"--max_steps=60", "--wait_for_evaluator_secs=100"};
  StartAll({"ps-0", "chief-0"});
  EXPECT_OK(processes_.at("chief-0")->WaitForLine("Loss for final step", kEndTime).status());
  EXPECT_FALSE(processes_.at("chief-0")->exit_code().has_value());
  Start("evaluator-0");
  ExpectAllDone({"ps-0", "chief-0", "evaluator-0"});
  EXPECT_TRUE(processes_.at("chief-0")->FindLastLine("the last checkpoint is evaluated"));
}

// Who is killed after the first evaluation, and whether it is started again.
struct Kill {
  std::string task;
  bool again;
};
class EstimatorKillTest : public EstimatorClusterTest, public testing::WithParamInterface<Kill> {};

TEST_P(EstimatorKillTest, TheOthersFinishAndTheLastCheckpointIsEvaluated) {
  SetTasks(FiveTasks());
  args_ = {"--max_steps=600", "--row_ms=20"};
  StartAll(FiveTasks());
  AwaitCheckpoint("evaluator-0");
  const Kill& kill = GetParam();
  ASSERT_OK(processes_.at(kill.task)->Signal(SIGKILL));
  EXPECT_EQ(CodeOf(kill.task), 128 + SIGKILL);
  Tasks left = FiveTasks();
  if (kill.again) {
    Start(kill.task);
  } else {
    left.erase(std::find(left.begin(), left.end(), kill.task));
  }
  ExpectAllDone(left);
  EXPECT_GE(ExpectLastIsEvaluated(), 600);
}

INSTANTIATE_TEST_SUITE_P(All, EstimatorKillTest,
                         testing::Values(Kill{"ps-0", true}, Kill{"chief-0", true},
                                         Kill{"evaluator-0", true}, Kill{"worker-0", false}),
                         [](const auto& info) {
                           return info.param.task.substr(0, info.param.task.find('-'));
                         });

// covers: article 3-22: a master is a chief that evaluates; or becomes a chief
// covers: scenario F5: a master, and one made a chief
TEST_F(EstimatorClusterTest, AMasterTrainsAndEvaluates) {
  SetTasks({"ps-0", "master-0", "worker-0"});
  args_ = {"--max_steps=600"};
  StartAll(tasks_);
  ExpectAllDone(tasks_);
  const auto said = processes_.at("master-0")->FindLastLine("done: evaluated step ");
  ASSERT_TRUE(said);
  EXPECT_TRUE(absl::EndsWith(*said, ", 1 exports")) << *said;
  // Summaries are worker 0's, whose steps go on while the master evaluates.
  EXPECT_TRUE(processes_.at("worker-0")->FindLastLine("global_step/sec"));
  EXPECT_FALSE(processes_.at("master-0")->FindLastLine("global_step/sec"));
}

TEST_F(EstimatorClusterTest, InTensorFlowsWayAPsStays) {
  SetTasks({"ps-0", "chief-0", "evaluator-0"});
  args_ = {"--max_steps=60", "--tensorflow_ends"};
  StartAll(tasks_);
  ExpectAllDone({"chief-0", "evaluator-0"});
  EXPECT_FALSE(processes_.at("ps-0")->exit_code().has_value());
  ASSERT_OK(processes_.at("ps-0")->Signal(SIGTERM));
  EXPECT_EQ(CodeOf("ps-0"), 0);
}

// covers: article 3-35: two chiefs, two tasks of one address: refused
// covers: scenario F25: wrong configurations: one line, exit code 1
TEST_F(EstimatorClusterTest, WrongConfigurationsEndWithOneAndOneMessage) {
  struct Case {
    std::string tf_config, message;
  };
  const std::vector<Case> cases = {
      {R"({"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief", "index": 0}})",
       "TF_CONFIG: cluster.chief must have exactly 1 task, got 2"},
      {R"({"task": {"type": "evaluator", "index": 0}})",
       "TF_CONFIG: task.type must be 'worker' without a cluster, got 'evaluator'"},
      {R"({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief"}})",
       "TF_CONFIG: task.index must be an integer >= 0, got none"},
      {R"({"cluster": {"chief": ["a:1"]}, "task": {"type": "chief", "index": "x"}})",
       "TF_CONFIG: task.index must be an integer >= 0"},
      {R"({"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 1}})",
       "TF_CONFIG: task.index must be 0 for the evaluator"},
  };
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const auto process,
                         Process::Start({.program = kProgram,
                                         .args = {absl::StrCat("--model_dir=", model_dir())},
                                         .env = {{"TF_CONFIG", c.tf_config}}}));
    ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kLineTime));
    EXPECT_EQ(code, 1) << c.tf_config;
    EXPECT_TRUE(absl::StrContains(process->output(), c.message)) << process->output();
  }
}

}  // namespace
}  // namespace millrace

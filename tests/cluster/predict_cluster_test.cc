// SPDX-License-Identifier: Apache-2.0
//
// PredictOnCluster as processes: ps, chief and two workers that start in any order, lose one
// another, and all leave with 0 when every row is predicted once.

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/crc32c.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "estimator/prediction_files.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "tests/cluster/process.h"

// covers: article 3-27, 3-28, 3-37: prediction on a cluster: 10,000 rows by ps, chief and two
//   workers, each row once and with the values of one process, also after kills, stops and
//   restarts; all tasks leave
// covers: scenario F15: (a) prediction by a cluster, each row once

namespace millrace {
namespace {

constexpr char kProgram[] = "tests/cluster/predict_job";
constexpr absl::Duration kLineTime = absl::Seconds(60);
constexpr absl::Duration kEndTime = absl::Seconds(150);
constexpr int64_t kRows = 10000;

using Tasks = std::vector<std::string>;
const Tasks& FourTasks() {
  static const auto* const tasks = new Tasks{"ps-0", "chief-0", "worker-0", "worker-1"};
  return *tasks;
}

class PredictClusterTest : public testing::Test {
 protected:
  PredictClusterTest()
      : dir_(JoinPath(testing::TempDir(), absl::StrCat("predict_", RandomHexName()))) {
    SetTasks(FourTasks());
    // A checkpoint, and what one process says.
    RunAlone({"--train"});
    RunAlone({absl::StrCat("--output_dir=", dir_, "/local")});
    local_ = Outputs(dir_ + "/local", nullptr);
    EXPECT_EQ(local_.size(), static_cast<size_t>(kRows));
  }
  ~PredictClusterTest() override {
    const bool failed = HasFailure();
    for (auto& [task, process] : processes_) {
      if (failed) std::printf("---- %s\n%s\n", task.c_str(), process->output().c_str());
    }
    processes_.clear();
    fs()->RecursivelyDelete(dir_).IgnoreError();
  }
  static FileSystem* fs() { return FileSystem::Posix(); }
  std::string output_dir() const { return dir_ + "/out"; }

  void SetTasks(const Tasks& tasks) {
    for (const std::string& task : tasks) {
      cluster_[task.substr(0, task.find('-'))].push_back(
          absl::StrCat("\"localhost:", FreePort(), "\""));
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
  void RunAlone(std::vector<std::string> args) {
    args.push_back(absl::StrCat("--model_dir=", dir_, "/model"));
    ASSERT_OK_AND_ASSIGN(
        auto process,
        Process::Start({.program = kProgram, .args = args, .env = {{"TF_CONFIG", ""}}}));
    ASSERT_OK_AND_ASSIGN(const int code, process->WaitForExit(kEndTime));
    ASSERT_EQ(code, 0) << process->output();
  }
  void Start(const std::string& task) {
    std::vector<std::string> args = {absl::StrCat("--model_dir=", dir_, "/model"),
                                     absl::StrCat("--output_dir=", output_dir())};
    args.insert(args.end(), args_.begin(), args_.end());
    ASSERT_OK_AND_ASSIGN(auto process, Process::Start({.name = task,
                                                       .program = kProgram,
                                                       .args = args,
                                                       .env = {{"TF_CONFIG", TfConfigOf(task)}}}));
    processes_[task] = std::move(process);
  }
  void StartAll(const Tasks& order) {
    for (const std::string& task : order) Start(task);
  }
  void AwaitLine(const std::string& task, absl::string_view line) {
    EXPECT_OK(processes_.at(task)->WaitForLine(line, kLineTime).status()) << task;
  }
  int CodeOf(const std::string& task) {
    const auto code = processes_.at(task)->WaitForExit(kEndTime);
    EXPECT_OK(code.status()) << task;
    return code.value_or(-1);
  }
  void ExpectAllDone(const Tasks& tasks) {
    for (const std::string& task : tasks) EXPECT_EQ(CodeOf(task), 0) << task;
  }

  // What the files of the manifest say of each id; each is there once.
  std::map<int64_t, double> Outputs(const std::string& directory, std::set<std::string>* tasks) {
    std::map<int64_t, double> outputs;
    const auto manifest = ReadPredictionManifest(fs(), directory);
    EXPECT_OK(manifest.status());
    EXPECT_TRUE(manifest.ok() && *manifest) << "no manifest in " << directory;
    if (!manifest.ok() || !*manifest) return outputs;
    for (const PredictedPart& part : (*manifest)->parts) {
      if (tasks != nullptr) tasks->insert(part.task);
      const auto text = ReadFileToString(fs(), JoinPath(directory, part.file));
      EXPECT_OK(text.status());
      EXPECT_EQ(Crc32c(*text), part.content.crc32c) << part.file;
      for (absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
        const auto row = nlohmann::json::parse(line, nullptr, false);
        EXPECT_TRUE(row.is_object()) << part.file << ": " << line;
        if (!row.is_object()) continue;
        const bool first =
            outputs.emplace(row["id"].get<int64_t>(), row["output"].get<double>()).second;
        EXPECT_TRUE(first) << "twice: " << line;
      }
    }
    return outputs;
  }
  // Every row once, as one process says it; returns who predicted.
  std::set<std::string> ExpectWhole() {
    std::set<std::string> tasks;
    const std::map<int64_t, double> outputs = Outputs(output_dir(), &tasks);
    EXPECT_EQ(outputs.size(), static_cast<size_t>(kRows));
    EXPECT_TRUE(outputs == local_);
    const auto names = fs()->GetChildren(output_dir() + "/_job");
    EXPECT_OK(names.status());
    for (const std::string& name : *names) {
      EXPECT_FALSE(absl::StartsWith(name, "part-")) << name << " was left behind";
    }
    const auto end = ReadRunEnd(fs(), output_dir() + "/_job");
    EXPECT_TRUE(end.ok() && *end && (*end)->reason == "all rows are predicted");
    return tasks;
  }

  const std::string dir_;
  std::vector<std::string> args_;
  std::map<std::string, std::vector<std::string>> cluster_;
  std::map<int64_t, double> local_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

TEST_F(PredictClusterTest, FourTasksInAnyOrderPredictEachRowOnceAndLeave) {
  args_ = {"--batch_ms=5", "--num_parts=7"};
  Tasks order = FourTasks();
  const auto seed = static_cast<unsigned>(RandomUint64());
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  SCOPED_TRACE(absl::StrCat("seed ", seed, ": ", absl::StrJoin(order, ", ")));
  StartAll(order);
  ExpectAllDone(order);
  EXPECT_EQ(ExpectWhole(), (std::set<std::string>{"chief 0", "worker 0", "worker 1"}));
  EXPECT_TRUE(processes_.at("chief-0")->FindLastLine("rows of 10000"));
  // The checkpoint came to the parameter server once.
  EXPECT_TRUE(processes_.at("chief-0")->FindLastLine("restored"));
  EXPECT_FALSE(processes_.at("worker-0")->FindLastLine("restored"));
  // All of them once more have nothing to do.
  processes_.clear();
  args_.push_back("--end_grace_secs=1");
  StartAll(order);
  ExpectAllDone(order);
  EXPECT_TRUE(processes_.at("worker-1")->FindLastLine("has all predictions already: 10000 rows"));
}

// Who is ended in the middle, how, and whether it is started again.
struct Loss {
  const char* task;
  bool again;
};
class PredictLossTest : public PredictClusterTest, public testing::WithParamInterface<Loss> {};

TEST_P(PredictLossTest, EachRowIsPredictedOnceAllTheSame) {
  const std::string lost = GetParam().task;
  args_ = {"--batch_ms=25", "--worker_grace_secs=4", "--end_grace_secs=3"};
  StartAll(FourTasks());
  AwaitLine(lost == "ps-0" ? "worker-0" : lost, "in the middle");
  ASSERT_OK(processes_.at(lost)->Signal(SIGKILL));
  EXPECT_EQ(CodeOf(lost), 128 + SIGKILL);
  Tasks left = FourTasks();
  if (GetParam().again) {
    Start(lost);
  } else {
    left.erase(std::find(left.begin(), left.end(), lost));
  }
  ExpectAllDone(left);
  const std::set<std::string> tasks = ExpectWhole();
  if (!GetParam().again) {
    EXPECT_EQ(tasks, (std::set<std::string>{"chief 0", "worker 0"}));
    EXPECT_TRUE(processes_.at("chief-0")->FindLastLine("has shown no sign of life for 4 s"));
  }
}

INSTANTIATE_TEST_SUITE_P(Losses, PredictLossTest,
                         testing::Values(Loss{"worker-1", true}, Loss{"worker-1", false},
                                         Loss{"chief-0", true}, Loss{"ps-0", true}),
                         [](const auto& info) {
                           const std::string task = info.param.task;
                           return absl::StrCat(task.substr(0, task.find('-')),
                                               info.param.again ? "_again" : "_gone");
                         });

// It wakes up when everything is done, with its own attempt in the hand.
TEST_F(PredictClusterTest, AWorkerThatWasStoppedLeavesAndAddsNothing) {
  args_ = {"--batch_ms=25", "--worker_grace_secs=3", "--end_grace_secs=3"};
  StartAll(FourTasks());
  AwaitLine("worker-1", "in the middle");
  ASSERT_OK(processes_.at("worker-1")->Signal(SIGSTOP));
  ExpectAllDone({"chief-0", "worker-0"});
  ASSERT_OK_AND_ASSIGN(const std::string manifest,
                       ReadFileToString(fs(), output_dir() + "/manifest.json"));
  ASSERT_OK(processes_.at("worker-1")->Signal(SIGCONT));
  ExpectAllDone({"worker-1", "ps-0"});
  EXPECT_EQ(*ReadFileToString(fs(), output_dir() + "/manifest.json"), manifest);
  EXPECT_EQ(ExpectWhole(), (std::set<std::string>{"chief 0", "worker 0"}));
}

// covers: article 3-29: a waiting task names the task that it waits for, and gives up
TEST_F(PredictClusterTest, AParameterServerThatIsMissingIsNamedAndNotWaitedForForEver) {
  args_ = {"--session_creation_timeout_secs=14"};
  StartAll({"chief-0", "worker-0"});
  for (const char* task : {"chief-0", "worker-0"}) {
    AwaitLine(task, "/job:ps/replica:0/task:0");
    const int code = CodeOf(task);
    EXPECT_GE(code, 128) << "worth another try";
    EXPECT_TRUE(processes_.at(task)->FindLastLine("DEADLINE_EXCEEDED")) << task;
  }
  EXPECT_FALSE(fs()->FileExists(output_dir() + "/manifest.json"));
}

// covers: article 3-29: a waiting task names the task that it waits for, and gives up
TEST_F(PredictClusterTest, AChiefThatIsMissingIsNamed) {
  args_ = {"--session_creation_timeout_secs=12"};
  StartAll({"ps-0", "worker-0"});
  AwaitLine("worker-0", "waits for chief 0 (localhost:");
  EXPECT_GE(CodeOf("worker-0"), 128);
  EXPECT_TRUE(processes_.at("worker-0")->FindLastLine("waited 12s for chief 0 (localhost:"));
}

TEST_F(PredictClusterTest, TasksThatWereToldOtherThingsSaySo) {
  args_ = {"--batch_ms=25", "--worker_grace_secs=1"};
  StartAll({"ps-0", "chief-0"});
  AwaitLine("chief-0", "in the middle");
  args_.push_back("--format=tfrecord");
  Start("worker-0");
  EXPECT_EQ(CodeOf("worker-0"), 1);
  EXPECT_TRUE(processes_.at("worker-0")
                  ->FindLastLine("has a job under way with format jsonl, got tfrecord"));
  ExpectAllDone({"ps-0", "chief-0"});
  EXPECT_EQ(ExpectWhole(), (std::set<std::string>{"chief 0"}));
}

TEST_F(PredictClusterTest, AChiefThatIsToldToEndGoesOnAnotherTime) {
  args_ = {"--batch_ms=25", "--end_grace_secs=3"};
  StartAll(FourTasks());
  AwaitLine("chief-0", "in the middle");
  ASSERT_OK(processes_.at("chief-0")->Signal(SIGTERM));
  EXPECT_EQ(CodeOf("chief-0"), 143);
  EXPECT_FALSE(fs()->FileExists(output_dir() + "/manifest.json"));
  Start("chief-0");
  ExpectAllDone(FourTasks());
  ExpectWhole();
}

}  // namespace
}  // namespace millrace

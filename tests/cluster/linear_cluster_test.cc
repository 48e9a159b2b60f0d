// SPDX-License-Identifier: Apache-2.0
//
// A job of 1 ps, 1 master and 2 workers as processes, some of which die.
//
// Each kill test is run --repetitions=N times in a row (1 by default).
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/meta_graph.pb.h"
#include "saver/saved_model.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"

// covers: clusters: worker, master, parameter server killed and restarted, in any start order
// covers: article 2-1: asynchronous data parallel training without an Estimator

namespace millrace {
namespace {

int repetitions = 1;

constexpr char kProgram[] = "examples/linear/linear_train";
constexpr int kMaxPortTries = 3;
// For a process to begin to listen, on a busy machine.
constexpr absl::Duration kStartTime = absl::Seconds(60);
// For a line of a running job.
constexpr absl::Duration kLineTime = absl::Seconds(60);
// For the others to end after a task was killed: the bound of the promise.
constexpr absl::Duration kEndTime = absl::Seconds(120);
// For a ps to leave when training is over: the bound of the promise.
constexpr absl::Duration kLeaveTime = absl::Seconds(30);

// The number behind `label` in `line`.
std::optional<int64_t> NumberAfter(const std::string& line, const std::string& label) {
  const size_t at = line.find(label);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + label.size();
  const size_t end = line.find_first_not_of("0123456789", begin);
  int64_t number = 0;
  if (!absl::SimpleAtoi(line.substr(begin, end - begin), &number)) return std::nullopt;
  return number;
}

bool Contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

struct Job {
  int ps = 1, masters = 1, workers = 2;
  std::vector<std::string> args = {};
  // The order in which tasks start; those left out start afterwards.
  std::vector<std::string> first = {};
};

// The processes of one job.
class JobProcesses {
 public:
  explicit JobProcesses(Job job)
      : job_(std::move(job)),
        directory_(JoinPath(::testing::TempDir(), absl::StrCat("linear_", RandomHexName()))) {
    FileSystem::Posix()->RecursivelyCreateDirectory(directory_).IgnoreError();
  }
  ~JobProcesses() {
    processes_.clear();
    FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError();
  }

  std::string log_dir() const { return JoinPath(directory_, "logs"); }
  std::string model_dir() const { return JoinPath(directory_, "model"); }

  // All tasks listen, each on a port of its own.
  Status Start() {
    Status status;
    for (int i = 0; i < kMaxPortTries; ++i) {
      processes_.clear();
      ports_ = FreeClusterPorts(job_.ps, job_.masters, job_.workers);
      status = StartAll();
      if (status.ok()) return status;
      bool in_use = false;
      for (auto& [name, process] : processes_) in_use |= EndedBecausePortIsInUse(process.get());
      if (!in_use) return status;
    }
    return status;
  }

  // Starts one task, perhaps again; the former process must have ended.
  Status StartTask(const std::string& name) {
    const std::vector<std::string> parts = absl::StrSplit(name, '-');
    ProcessOptions options;
    options.name = name;
    options.program = kProgram;
    options.args = {absl::StrCat("--log_dir=", log_dir()), "--session_timeout_secs=60"};
    if (parts[0] == "master") {
      options.args.push_back(absl::StrCat("--model_dir=", model_dir()));
    }
    options.args.insert(options.args.end(), job_.args.begin(), job_.args.end());
    options.env["TF_CONFIG"] = TfConfig(ports_, parts[0], std::atoi(parts[1].c_str()));
    MR_ASSIGN_OR_RETURN(processes_[name], Process::Start(options));
    return processes_[name]->WaitForLine("listens on", kStartTime).status();
  }

  Process* task(const std::string& name) { return processes_.at(name).get(); }

  void Kill(const std::string& name) {
    EXPECT_OK(task(name)->Signal(SIGKILL));
    const auto code = task(name)->WaitForExit(absl::Seconds(20));
    EXPECT_OK(code.status());
    EXPECT_EQ(code.value_or(0), 128 + SIGKILL) << name << " ended before it was killed:\n"
                                               << task(name)->output();
  }

  // Trainers end with 0 within `time` from now, then the ps, which nobody tells but the chief.
  void ExpectAllEndWell(absl::Duration time, const std::vector<std::string>& killed = {}) {
    const absl::Time deadline = absl::Now() + time;
    for (const bool is_ps : {false, true}) {
      for (auto& [name, process] : processes_) {
        if (absl::StartsWith(name, "ps-") != is_ps) continue;
        if (Contains(killed, name)) continue;
        const auto code = process->WaitForExit(is_ps ? kLeaveTime : deadline - absl::Now());
        EXPECT_OK(code.status());
        if (!code.ok()) continue;
        EXPECT_EQ(*code, 0) << name << ":\n" << process->output();
        EXPECT_FALSE(process->left_processes()) << name;
      }
    }
  }

  // What the master printed last: the whole job is done.
  void ExpectTrained(int64_t max_steps) {
    const auto line = task("master-0")->FindLastLine("Final step: ");
    ASSERT_TRUE(line.has_value()) << task("master-0")->output();
    EXPECT_GE(NumberAfter(*line, "Final step: ").value_or(-1), max_steps) << *line;
    float w = 0, b = 0;
    ASSERT_EQ(std::sscanf(line->c_str(), "Final step: %*d, w = %f, b = %f", &w, &b), 2) << *line;
    EXPECT_NEAR(w, 3, 0.05);
    EXPECT_NEAR(b, -1, 0.05);
  }

  // The exported model is what was trained, and carries nothing of the cluster.
  void ExpectExportWorks() {
    ASSERT_OK_AND_ASSIGN(const SavedModelBundle model,
                         LoadSavedModel({}, model_dir(), {kSavedModelTagServe}));
    const auto& signature = model.meta_graph_def->signature_def().at(kDefaultServingSignature);
    const auto out =
        model.session->Run({{signature.inputs().at("x").name(), TensorOf<float>({3}, {-1, 0, 2})}},
                           {signature.outputs().at("y").name()});
    ASSERT_OK(out.status());
    ExpectTensorNear((*out)[0], TensorOf<float>({3}, {-4, -1, 5}), 0, 0.2);
    for (const tensorflow::NodeDef& node : model.meta_graph_def->graph_def().node()) {
      EXPECT_EQ(node.device(), "") << node.name();
    }
  }

 private:
  Status StartAll() {
    std::vector<std::string> names = job_.first;
    const auto add = [&names](const std::string& job, int tasks) {
      for (int i = 0; i < tasks; ++i) {
        const std::string name = absl::StrCat(job, "-", i);
        if (!Contains(names, name)) names.push_back(name);
      }
    };
    add("ps", job_.ps);
    add("master", job_.masters);
    add("worker", job_.workers);
    for (const std::string& name : names) MR_RETURN_IF_ERROR(StartTask(name));
    return absl::OkStatus();
  }

  const Job job_;
  const std::string directory_;
  ClusterPorts ports_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

// Long enough to be disturbed in the middle: about 4 s with three trainers.
std::vector<std::string> LongJob() {
  return {"--max_steps=1000", "--checkpoint=50", "--steps_per_second=90"};
}

TEST(LinearClusterTest, AllTasksEndWithZeroAndTheModelIsTrained) {
  JobProcesses job({.args = {"--max_steps=1000"}});
  ASSERT_OK(job.Start());
  job.ExpectAllEndWell(kEndTime);
  job.ExpectTrained(1000);
  job.ExpectExportWorks();
}

TEST(LinearClusterTest, AnyStartOrderWillDo) {
  for (const std::vector<std::string>& first :
       {std::vector<std::string>{"worker-1", "master-0", "worker-0", "ps-0"},
        std::vector<std::string>{"worker-0", "ps-0", "worker-1", "master-0"}}) {
    SCOPED_TRACE(first.back());
    JobProcesses job({.args = {"--max_steps=1000"}, .first = first});
    ASSERT_OK(job.Start());
    job.ExpectAllEndWell(kEndTime);
    job.ExpectTrained(1000);
  }
}

TEST(LinearClusterTest, TwoParameterServersShareTheVariables) {
  JobProcesses job({.ps = 2, .args = {"--max_steps=600"}});
  ASSERT_OK(job.Start());
  job.ExpectAllEndWell(kEndTime);
  job.ExpectTrained(600);
  job.ExpectExportWorks();
}

TEST(LinearClusterTest, AKilledWorkerStopsNobody) {
  for (int i = 0; i < repetitions; ++i) {
    SCOPED_TRACE(absl::StrCat("repetition ", i));
    JobProcesses job({.args = LongJob()});
    ASSERT_OK(job.Start());
    ASSERT_OK(job.task("worker-1")->WaitForLine("Step: 2", kLineTime));
    job.Kill("worker-1");
    job.ExpectAllEndWell(kEndTime, {"worker-1"});
    job.ExpectTrained(1000);
    job.ExpectExportWorks();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LinearClusterTest, ARestartedMasterAdoptsWhatTheServersHold) {
  for (int i = 0; i < repetitions; ++i) {
    SCOPED_TRACE(absl::StrCat("repetition ", i));
    JobProcesses job({.args = LongJob()});
    ASSERT_OK(job.Start());
    Process* master = job.task("master-0");
    ASSERT_OK_AND_ASSIGN(const std::string saved, master->WaitForLine("Saved ", kLineTime));
    job.Kill("master-0");
    ASSERT_OK(job.StartTask("master-0"));
    master = job.task("master-0");
    ASSERT_OK_AND_ASSIGN(const std::string adopted,
                         master->WaitForLine("Supervisor: adopted all 3 variables", kLineTime));
    ASSERT_OK_AND_ASSIGN(const std::string first, master->WaitForLine("First step is ", kLineTime));
    const int64_t saved_step = NumberAfter(saved, "model.ckpt-").value_or(INT64_MAX);
    const int64_t adopted_step = NumberAfter(adopted, "at global step ").value_or(-1);
    // The workers go on while the master looks.
    EXPECT_GE(adopted_step, saved_step);
    EXPECT_GE(NumberAfter(first, "First step is ").value_or(-1), adopted_step);
    job.ExpectAllEndWell(kEndTime);
    job.ExpectTrained(1000);
    job.ExpectExportWorks();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LinearClusterTest, TheFirstStepOfARestartedMasterIsTheOneItAdopted) {
  for (int i = 0; i < repetitions; ++i) {
    SCOPED_TRACE(absl::StrCat("repetition ", i));
    JobProcesses job(
        {.workers = 0, .args = {"--max_steps=300", "--checkpoint=50", "--steps_per_second=150"}});
    ASSERT_OK(job.Start());
    ASSERT_OK(job.task("master-0")->WaitForLine("Saved ", kLineTime).status());
    job.Kill("master-0");
    ASSERT_OK(job.StartTask("master-0"));
    Process* const master = job.task("master-0");
    ASSERT_OK_AND_ASSIGN(const std::string adopted,
                         master->WaitForLine("Supervisor: adopted all 3 variables", kLineTime));
    ASSERT_OK_AND_ASSIGN(const std::string first, master->WaitForLine("First step is ", kLineTime));
    const int64_t step = NumberAfter(first, "First step is ").value_or(-1);
    EXPECT_GE(step, 50);
    EXPECT_EQ(NumberAfter(adopted, "at global step "), step);
    job.ExpectAllEndWell(kEndTime);
    job.ExpectTrained(300);
    job.ExpectExportWorks();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LinearClusterTest, ARestartedParameterServerGetsTheCheckpointBack) {
  for (int i = 0; i < repetitions; ++i) {
    SCOPED_TRACE(absl::StrCat("repetition ", i));
    JobProcesses job({.args = LongJob()});
    ASSERT_OK(job.Start());
    Process* const master = job.task("master-0");
    size_t from = 0;
    ASSERT_OK(master->WaitForLine("Saved ", kLineTime, &from).status());
    ASSERT_OK(master->WaitForLine("Saved ", kLineTime, &from).status());
    // A worker that has no session yet has none to lose.
    for (const char* name : {"worker-0", "worker-1"}) {
      ASSERT_OK(job.task(name)->WaitForLine("First step is ", kLineTime).status());
    }
    job.Kill("ps-0");
    // Everyone notices before there is a server again.
    for (const char* name : {"master-0", "worker-0", "worker-1"}) {
      ASSERT_OK(job.task(name)->WaitForLine("The session was lost", absl::Seconds(30)).status());
    }
    const auto last_saved = master->FindLastLine("Saved ");
    ASSERT_OK(job.StartTask("ps-0"));
    ASSERT_OK_AND_ASSIGN(const std::string restored,
                         master->WaitForLine("Supervisor: restored 3 variables", kLineTime, &from));
    ASSERT_OK_AND_ASSIGN(const std::string first,
                         master->WaitForLine("First step is ", kLineTime, &from));
    const int64_t step = NumberAfter(*last_saved, "model.ckpt-").value_or(-1);
    EXPECT_GE(step, 100);
    EXPECT_EQ(NumberAfter(restored, "model.ckpt-"), step);
    // What the file holds: workers went on between the master's decision to save and the save.
    ASSERT_OK_AND_ASSIGN(
        const auto checkpoint,
        BundleReader::Open(FileSystem::Posix(),
                           JoinPath(job.log_dir(), absl::StrCat("model.ckpt-", step))));
    ASSERT_OK_AND_ASSIGN(const Tensor stored, checkpoint->Read("global_step"));
    const int64_t stored_step = stored.scalar<int64_t>();
    EXPECT_GE(stored_step, step);
    // And they may begin again before the master looks.
    const int64_t restored_step = NumberAfter(restored, "at global step ").value_or(-1);
    EXPECT_GE(restored_step, stored_step);
    EXPECT_LE(restored_step, stored_step + 20);
    EXPECT_GE(NumberAfter(first, "First step is ").value_or(-1), restored_step);
    job.ExpectAllEndWell(kEndTime);
    job.ExpectTrained(1000);
    job.ExpectExportWorks();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LinearClusterTest, AParameterServerThatComesBackUnnoticedIsNotTakenForTheOldOne) {
  JobProcesses job({.args = LongJob()});
  ASSERT_OK(job.Start());
  ASSERT_OK(job.task("master-0")->WaitForLine("Saved ", kLineTime).status());
  job.Kill("ps-0");
  ASSERT_OK(job.StartTask("ps-0"));
  ASSERT_OK(job.task("master-0")->WaitForLine("Supervisor: restored 3 variables", kLineTime));
  job.ExpectAllEndWell(kEndTime);
  job.ExpectTrained(1000);
}

// --- The same under the launcher -----------------------------------------------------------------

struct LaunchCase {
  const char* name;
  const char* killed;    // a task, once two checkpoints are there; null: nobody
  const char* evidence;  // a line of the output afterwards
};

TEST(LinearClusterTest, TheLauncherEndsWithZeroWhoeverIsKilled) {
  const LaunchCase cases[] = {
      {"nobody", nullptr, "[master 0] Exported "},
      {"worker", "worker 1", "launch: worker 1 was killed"},
      {"master", "master 0", "Supervisor: adopted all 3 variables"},
      {"ps", "ps 0", "Supervisor: restored 3 variables"},
  };
  for (const LaunchCase& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string directory =
        JoinPath(::testing::TempDir(), absl::StrCat("launch_", RandomHexName()));
    ProcessOptions options;
    options.name = "launch";
    options.program = "tools/launch";
    options.args = {"--ps=1", "--master", "--workers=2", "--restarts=1", "--", kProgram};
    for (const std::string& arg : LongJob()) options.args.push_back(arg);
    options.args.push_back(absl::StrCat("--log_dir=", JoinPath(directory, "logs")));
    options.args.push_back(absl::StrCat("--model_dir=", JoinPath(directory, "model")));
    ASSERT_OK_AND_ASSIGN(const auto launch, Process::Start(options));
    size_t from = 0;
    for (int i = 0; i < 2; ++i) {
      ASSERT_OK(launch->WaitForLine("[master 0] Saved ", kStartTime, &from).status());
    }
    if (c.killed != nullptr) {
      ASSERT_OK_AND_ASSIGN(
          const std::string line,
          launch->WaitForLine(absl::StrCat("launch: ", c.killed, " started"), kLineTime));
      const int64_t pid = NumberAfter(line, "pid ").value_or(0);
      ASSERT_GT(pid, 1) << line;
      ASSERT_EQ(kill(static_cast<pid_t>(pid), SIGKILL), 0);
    }
    const auto code = launch->WaitForExit(kEndTime);
    EXPECT_OK(code.status());
    EXPECT_EQ(code.value_or(-1), 0) << launch->output();
    EXPECT_TRUE(launch->FindLastLine(c.evidence).has_value()) << launch->output();
    EXPECT_TRUE(FileSystem::Posix()->FileExists(JoinPath(directory, "model/saved_model.pb")));
    EXPECT_FALSE(launch->left_processes());
    FileSystem::Posix()->RecursivelyDelete(directory).IgnoreError();
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    absl::string_view flag = argv[i];
    if (!absl::ConsumePrefix(&flag, "--repetitions=") ||
        !absl::SimpleAtoi(flag, &millrace::repetitions)) {
      std::fprintf(stderr, "usage: %s [--repetitions=N]\n", argv[0]);
      return 1;
    }
  }
  return RUN_ALL_TESTS();
}

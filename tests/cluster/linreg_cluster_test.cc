// SPDX-License-Identifier: Apache-2.0
//
// TrainAndEvaluate as five processes (ps, chief, two workers, evaluator) of examples/linreg's
// linreg_dist: started in any order, killed, with data that end.
//
// --orders=N random start orders (2), --repetitions=N of each kill (1), --downtime_ms=N before a
// killed task is started again (500), --max_steps=N of the jobs with kills (600), --seed=N of the
// orders (printed).
#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "estimator/estimator_parts.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "saver/event_reader.h"
#include "saver/saver.h"
#include "tests/cluster/connections.h"
#include "tests/cluster/process.h"

// covers: article 2-15: the chief judges all test images while the others train on; an evaluator
//   does better
// covers: article 1-3: training goes on from the checkpoint after a death
// covers: article 3-2: device filters: ps and itself; a filtered task blocks no other
// covers: article 3-19: much data: parallel over parameter servers
// covers: article 3-20: roles master, chief, evaluator
// covers: article 3-21: with a chief, worker 0 is nothing special; global ids
// covers: article 3-23: the evaluator evaluates new checkpoints
// covers: article 3-30: 1,000 rows, batches of one, 500 steps, evaluations of 50 steps, no delays
// covers: article 3-39: any process may be killed at any time
// covers: article 4-11: workers never talk to each other
// covers: scenario F2: ps, chief, workers, evaluator in any order, to their end
// covers: scenario F4: each role killed

namespace millrace {
namespace {

int orders = 2, repetitions = 1, downtime_ms = 500, kill_steps = 600;
uint64_t seed = 0;

constexpr char kProgram[] = "examples/linreg/linreg_dist";
constexpr int kMaxPortTries = 3;
// For five processes to do their work and to leave: the promise is 20 s, and the test's machine is
// shared.
constexpr absl::Duration kEndTime = absl::Seconds(180);
constexpr absl::Duration kCheckpointTime = absl::Seconds(90);

const std::vector<std::string>& AllTasks() {
  static const auto* const tasks =
      new std::vector<std::string>{"ps-0", "chief-0", "worker-0", "worker-1", "evaluator-0"};
  return *tasks;
}

std::optional<int64_t> NumberAfter(const std::string& line, const std::string& label) {
  const size_t at = line.find(label);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + label.size();
  int64_t number = 0;
  if (!absl::SimpleAtoi(line.substr(begin, line.find_first_not_of("0123456789", begin) - begin),
                        &number)) {
    return std::nullopt;
  }
  return number;
}

struct Evaluation {
  int64_t step = 0;
  float mse = 0;
};

// The evaluations in a directory, in the order in which they were written.
std::vector<Evaluation> Evaluations(const std::string& directory) {
  std::vector<Evaluation> evaluations;
  auto events = EventReader::Open(FileSystem::Posix(), directory);
  if (!events.ok()) return evaluations;
  while (true) {
    const auto event = (*events)->Next();
    if (!event.ok()) {
      EXPECT_TRUE(absl::IsOutOfRange(event.status())) << event.status();
      return evaluations;
    }
    for (const auto& value : event->summary().value()) {
      if (value.tag() == "mse") evaluations.push_back({event->step(), value.simple_value()});
    }
  }
}

class LinregJob {
 public:
  explicit LinregJob(std::vector<std::string> args)
      : args_(std::move(args)),
        directory_(JoinPath(::testing::TempDir(), absl::StrCat("linreg_", RandomHexName()))) {}
  ~LinregJob() {
    processes_.clear();
    FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError();
  }

  const std::string& model_dir() const { return directory_; }
  Process* task(const std::string& name) { return processes_.at(name).get(); }

  // One after the other, without waiting for anything.
  Status Start(const std::vector<std::string>& order) {
    ports_ = FreeClusterPorts(1, 1, 2);
    ports_.chief.swap(ports_.master);
    for (const std::string& name : order) MR_RETURN_IF_ERROR(StartTask(name));
    return absl::OkStatus();
  }

  // Perhaps again; the former process must have ended.
  Status StartTask(const std::string& name) {
    const std::vector<std::string> parts = absl::StrSplit(name, '-');
    ProcessOptions options;
    options.name = name;
    options.program = kProgram;
    options.args = {absl::StrCat("--model_dir=", directory_)};
    options.args.insert(options.args.end(), args_.begin(), args_.end());
    options.env["TF_CONFIG"] = TfConfig(ports_, parts[0], std::atoi(parts[1].c_str()));
    MR_ASSIGN_OR_RETURN(processes_[name], Process::Start(options));
    return absl::OkStatus();
  }

  void Kill(const std::string& name) {
    EXPECT_OK(task(name)->Signal(SIGKILL));
    const auto code = task(name)->WaitForExit(absl::Seconds(20));
    EXPECT_EQ(code.value_or(0), 128 + SIGKILL) << name << " ended before it was killed:\n"
                                               << task(name)->output();
  }

  // Until there is a checkpoint of this step or a later one.
  Status WaitForCheckpoint(int64_t step) {
    const absl::Time deadline = absl::Now() + kCheckpointTime;
    while (absl::Now() < deadline) {
      const auto latest = LatestCheckpoint(FileSystem::Posix(), directory_);
      if (NumberAfter(latest.value_or(""), "model.ckpt-").value_or(-1) >= step) {
        return absl::OkStatus();
      }
      if (const auto code = task("chief-0")->WaitForExit(absl::Milliseconds(20)); code.ok()) {
        return absl::FailedPreconditionError(absl::StrCat("the chief has ended with ", *code,
                                                          " before step ", step, ":\n",
                                                          task("chief-0")->output()));
      }
    }
    return absl::DeadlineExceededError(
        absl::StrCat("no checkpoint of step ", step, ":\n", task("chief-0")->output()));
  }

  // All but `killed` end by themselves, with 0.
  void ExpectAllEndWell(const std::set<std::string>& killed = {}) {
    const absl::Time begin = absl::Now();
    for (const std::string& name : AllTasks()) {
      if (killed.count(name) > 0) continue;
      const auto code = task(name)->WaitForExit(begin + kEndTime - absl::Now());
      EXPECT_EQ(code.value_or(-1), 0) << name << ": " << code.status() << "\n"
                                      << task(name)->output();
      EXPECT_FALSE(task(name)->left_processes()) << name;
      std::printf("%s ended after %s\n", name.c_str(),
                  absl::FormatDuration(absl::Now() - begin).c_str());
    }
  }

  // The run's last checkpoint is that of `step` at least, and it was evaluated as the last one.
  void ExpectLastCheckpointEvaluated(int64_t step) {
    const auto end = ReadRunEnd(FileSystem::Posix(), directory_);
    ASSERT_OK(end.status());
    ASSERT_TRUE(end->has_value()) << "the run has no end:\n" << task("chief-0")->output();
    EXPECT_GE((*end)->global_step, step);
    const auto latest = LatestCheckpoint(FileSystem::Posix(), directory_);
    const int64_t last = NumberAfter(latest.value_or(""), "model.ckpt-").value_or(-1);
    EXPECT_GE(last, step);
    const std::vector<Evaluation> evaluated = evaluations();
    ASSERT_FALSE(evaluated.empty()) << task("evaluator-0")->output();
    // Others count between the name of a checkpoint and its values: these are what is evaluated.
    const auto stored = GlobalStepIn(FileSystem::Posix(), latest.value_or(""));
    EXPECT_EQ(evaluated.back().step, stored.ok() ? stored->value_or(-1) : -1)
        << stored.status() << "\n"
        << task("evaluator-0")->output();
    for (size_t i = 1; i < evaluated.size(); ++i) {
      // w and b go from 0.1 towards 0.8 and 1.
      EXPECT_LT(evaluated[i].mse, evaluated[0].mse)
          << "of steps " << evaluated[i].step << " and " << evaluated[0].step;
    }
    EXPECT_TRUE(FileSystem::Posix()->FileExists(JoinPath(directory_, "evaluation_done")))
        << task("evaluator-0")->output();
  }

  std::vector<Evaluation> evaluations() const { return Evaluations(JoinPath(directory_, "eval")); }

  int64_t StepsOf(const std::string& name) {
    const auto line = task(name)->FindLastLine("This task did ");
    return line ? NumberAfter(*line, "This task did ").value_or(-1) : -1;
  }

  // Somebody else got a port first: nobody's fault.
  bool LostAPort() {
    bool lost = false;
    for (auto& [name, process] : processes_) lost |= EndedBecausePortIsInUse(process.get());
    return lost;
  }

  std::map<std::string, pid_t> pids() const {
    std::map<std::string, pid_t> pids;
    for (const auto& [name, process] : processes_) pids[name] = process->pid();
    return pids;
  }

 private:
  const std::vector<std::string> args_;
  const std::string directory_;
  ClusterPorts ports_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

// A job that runs: all five were started and none of them lost its port while the first
// checkpoint was made.
StatusOr<std::unique_ptr<LinregJob>> StartedJob(const std::vector<std::string>& args,
                                                const std::vector<std::string>& order) {
  Status status;
  for (int i = 0; i < kMaxPortTries; ++i) {
    auto job = std::make_unique<LinregJob>(args);
    MR_RETURN_IF_ERROR(job->Start(order));
    status = job->WaitForCheckpoint(0);
    if (status.ok()) return job;
    if (!job->LostAPort()) break;
  }
  return status;
}

// Enough data for ever, so that the steps end the job.
std::vector<std::string> KillArgs() {
  return {absl::StrCat("--max_steps=", kill_steps), "--train_rows=1000000"};
}

// covers: article 3-33: no start order, no sleep
TEST(LinregClusterTest, FiveTasksStartedInAnyOrderTrainEvaluateAndLeave) {
  std::mt19937_64 random(seed);
  for (int i = 0; i < orders; ++i) {
    std::vector<std::string> order = AllTasks();
    std::shuffle(order.begin(), order.end(), random);
    SCOPED_TRACE(absl::StrJoin(order, ", "));
    std::printf("order %d: %s\n", i, absl::StrJoin(order, ", ").c_str());
    ASSERT_OK_AND_ASSIGN(const auto job, StartedJob({"--max_steps=500"}, order));
    std::set<std::pair<std::string, std::string>> connections;
    while (!job->task("chief-0")->WaitForExit(absl::Milliseconds(20)).ok()) {
      connections.merge(ConnectionsBetween(job->pids()));
      ASSERT_FALSE(::testing::Test::HasFailure());
    }
    job->ExpectAllEndWell();
    job->ExpectLastCheckpointEvaluated(500);
    std::set<int64_t> evaluated;
    for (const Evaluation& evaluation : job->evaluations()) {
      EXPECT_TRUE(evaluated.insert(evaluation.step).second)
          << evaluation.step << " was evaluated twice";
    }
    for (const char* trainer : {"chief-0", "worker-0", "worker-1"}) {
      EXPECT_GE(job->StepsOf(trainer), 20) << trainer << ":\n" << job->task(trainer)->output();
      // What shows that the tables were read.
      EXPECT_EQ(connections.count({std::min<std::string>(trainer, "ps-0"),
                                   std::max<std::string>(trainer, "ps-0")}),
                1u)
          << trainer;
    }
    for (const auto& [a, b] : connections) {
      EXPECT_TRUE(a == b || a == "ps-0" || b == "ps-0") << a << " is connected with " << b;
    }
    EXPECT_EQ(connections.count({"evaluator-0", "ps-0"}), 0u);
    ASSERT_OK_AND_ASSIGN(const auto exports, FileSystem::Posix()->GetChildren(
                                                 JoinPath(job->model_dir(), "export/line")));
    EXPECT_EQ(exports.size(), 1u) << absl::StrJoin(exports, ", ");
    if (::testing::Test::HasFailure()) return;
  }
}

// Killed after step 100, started again a while later.
void KillAndStartAgain(const std::string& name) {
  for (int i = 0; i < repetitions; ++i) {
    SCOPED_TRACE(absl::StrCat("repetition ", i));
    ASSERT_OK_AND_ASSIGN(const auto job, StartedJob(KillArgs(), AllTasks()));
    ASSERT_OK(job->WaitForCheckpoint(100));
    job->Kill(name);
    absl::SleepFor(absl::Milliseconds(downtime_ms));
    ASSERT_OK(job->StartTask(name));
    job->ExpectAllEndWell();
    job->ExpectLastCheckpointEvaluated(kill_steps);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(LinregClusterTest, AKilledParameterServerThatComesAgainCostsStepsOnly) {
  KillAndStartAgain("ps-0");
}

TEST(LinregClusterTest, AKilledChiefThatComesAgainEndsTheRun) { KillAndStartAgain("chief-0"); }

TEST(LinregClusterTest, AKilledEvaluatorThatComesAgainEvaluatesTheLastCheckpoint) {
  KillAndStartAgain("evaluator-0");
}

TEST(LinregClusterTest, AWorkerThatIsKilledForGoodStopsNobody) {
  for (int i = 0; i < repetitions; ++i) {
    SCOPED_TRACE(absl::StrCat("repetition ", i));
    ASSERT_OK_AND_ASSIGN(const auto job, StartedJob(KillArgs(), AllTasks()));
    ASSERT_OK(job->WaitForCheckpoint(100));
    job->Kill("worker-1");
    job->ExpectAllEndWell({"worker-1"});
    job->ExpectLastCheckpointEvaluated(kill_steps);
    if (::testing::Test::HasFailure()) return;
  }
}

// covers: article 3-25: the evaluator leaves when the last checkpoint is evaluated, and says so
// A task that was away at the end, and all that come once more afterwards.
TEST(LinregClusterTest, TasksThatComeAfterTheEndLeave) {
  ASSERT_OK_AND_ASSIGN(const auto job, StartedJob({"--max_steps=200"}, AllTasks()));
  job->ExpectAllEndWell();
  job->ExpectLastCheckpointEvaluated(200);
  const size_t evaluations = job->evaluations().size();
  for (const std::string& name : AllTasks()) {
    if (name == "chief-0") continue;
    ASSERT_OK(job->StartTask(name));
  }
  job->ExpectAllEndWell({"chief-0"});
  EXPECT_EQ(job->evaluations().size(), evaluations) << "nothing is evaluated twice";
  job->ExpectLastCheckpointEvaluated(200);
}

// covers: article 3-26: it leaves also when max_steps is never reached
TEST(LinregClusterTest, DataThatEndEndTheRunWhenAllTrainersHaveSeenTheirs) {
  ASSERT_OK_AND_ASSIGN(const auto job,
                       StartedJob({"--max_steps=1000", "--train_rows=100"}, AllTasks()));
  job->ExpectAllEndWell();
  int64_t steps = 0;
  for (const char* trainer : {"chief-0", "worker-0", "worker-1"}) {
    EXPECT_EQ(job->StepsOf(trainer), 100) << trainer << ":\n" << job->task(trainer)->output();
    steps += job->StepsOf(trainer);
  }
  job->ExpectLastCheckpointEvaluated(steps);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  millrace::seed = std::random_device()();
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const auto flag = [&arg](absl::string_view name, auto* value) {
      absl::string_view rest = arg;
      return absl::ConsumePrefix(&rest, name) && absl::SimpleAtoi(rest, value);
    };
    if (!flag("--orders=", &millrace::orders) && !flag("--repetitions=", &millrace::repetitions) &&
        !flag("--downtime_ms=", &millrace::downtime_ms) &&
        !flag("--max_steps=", &millrace::kill_steps) && !flag("--seed=", &millrace::seed)) {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 1;
    }
  }
  std::printf("seed %llu\n", static_cast<unsigned long long>(millrace::seed));
  return RUN_ALL_TESTS();
}

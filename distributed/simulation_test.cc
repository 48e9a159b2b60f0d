// SPDX-License-Identifier: Apache-2.0
//
// A small training job on a simulated network (testing/simulation.h): parameter servers, a chief
// and another trainer, whose steps add one to a variable on each ps. Each seed is another job with
// other faults, all of one kind. What must hold of every one of them is in Job::Check*.
//
//   bazel test //distributed:simulation_links_test --test_arg=--simulate=partition/17
//
// runs one of them and prints what happened. --seeds=N runs N of each kind instead of 1,000 (50
// under sanitizers). Steps travel over links (testing/simulated_links.h); with
// MILLRACE_UNIX_LINKS=1 in the environment all tasks are on one host: simulation_pairs_test.
#include "distributed/testing/simulation.h"

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/master/master.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/testing/simulated_links.h"
#include "distributed/testing/simulated_network.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/resource_variable.h"
#include "run/training_run.h"

// covers: clusters: jobs end under network loss, delay, cuts and restarts: no step lost or
//   repeated, no session, graph or step left, one unfenced chief, every call ended once; 150
//   seeds of each kind of fault over links, 60 with pairs of links (`docs/simulation.md`)

namespace millrace {
namespace {

enum class Kind { kLostRequest, kLostAnswer, kDelay, kPartition, kRestart };
constexpr Kind kKinds[] = {Kind::kLostRequest, Kind::kLostAnswer, Kind::kDelay, Kind::kPartition,
                           Kind::kRestart};
const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kLostRequest:
      return "lost_request";
    case Kind::kLostAnswer:
      return "lost_answer";
    case Kind::kDelay:
      return "delay";
    case Kind::kPartition:
      return "partition";
    case Kind::kRestart:
      return "restart";
  }
  return "";
}

// Whether all tasks of a job are on one host, and their steps on links within it.
bool WithinHost() {
  const char* const unix_links = std::getenv("MILLRACE_UNIX_LINKS");
  return unix_links != nullptr && absl::string_view(unix_links) == "1";
}

// Faults happen for so long; then the job must come to its end.
constexpr absl::Duration kFaults = absl::Seconds(100);
constexpr absl::Duration kEnd = absl::Hours(2);
constexpr absl::Duration kLease = absl::Seconds(60);
constexpr absl::Duration kLongestDelay = absl::Seconds(90);
constexpr int kCalmSteps = 3;  // of each trainer, after the last fault

using Life = SimulatedNetwork::Life;

std::string TaskName(absl::string_view job, int task) {
  return absl::StrCat("/job:", job, "/replica:0/task:", task);
}

// One more on each ps, on the way of a training step: from the worker to the ps and back.
tensorflow::GraphDef MakeGraph(const std::string& worker, int num_ps) {
  Scope root;
  const Scope on_worker = root.WithDevice(worker);
  const Output one = Placeholder(on_worker.WithName("one"), DT_FLOAT, PartialShape::Scalar());
  for (int i = 0; i < num_ps; ++i) {
    const Scope on_ps = root.WithDevice(TaskName("ps", i));
    const Output v =
        VarHandleOp(on_ps.WithName(absl::StrCat("v", i)), DT_FLOAT, PartialShape::Scalar());
    AssignVariableOp(on_ps.WithName(absl::StrCat("init", i)), v, Const(on_ps, 0.0f));
    Identity(on_worker.WithName(absl::StrCat("is_init", i)), VarIsInitializedOp(on_ps, v));
    const Output by = Mul(on_worker, one, Const(on_worker, 1.0f));
    const Operation add = AssignAddVariableOp(on_ps, v, by);
    const Output sum = ReadVariableOp(on_ps.WithControlDependencies({add}), v, DT_FLOAT);
    Identity(on_worker.WithName(absl::StrCat("sum", i)), sum);
    Identity(on_worker.WithName(absl::StrCat("twice", i)), Add(on_ps, sum, sum));
    Identity(on_worker.WithName(absl::StrCat("value", i)), ReadVariableOp(on_ps, v, DT_FLOAT));
  }
  return *root.ToGraphDef();
}
const tensorflow::GraphDef& GraphOf(const std::string& worker, int num_ps) {
  static auto* const graphs = new std::map<std::pair<std::string, int>, tensorflow::GraphDef>;
  const auto [it, is_new] = graphs->try_emplace({worker, num_ps});
  if (is_new) it->second = MakeGraph(worker, num_ps);
  return it->second;
}

// What arrived at one life of a ps, and what became of it.
struct Ledger {
  struct Part {
    int64_t attempt = 0;  // 0: not an adding step
    bool is_init = false;
    bool answered_ok = false;
  };
  std::map<int64_t, Part> parts;          // by call, so in the order of their beginning
  bool late_init = false;                 // one ran after a step had added
  int done = 0;                           // adding parts that were answered OK by the ps
  std::map<std::string, int64_t> epochs;  // of chiefs' sessions
  int64_t newest_epoch = 0;
  std::set<int64_t> of_fenced;  // calls that arrived when a newer chief had the run
};

struct Task {
  std::shared_ptr<Life> life;
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Master> master;
  // Of its trainer.
  bool has_trainer = false, has_left = true;
  bool is_chief = false;
  int64_t epoch = 0;
  int64_t attempt = 0;      // of the step that it waits for
  bool is_init = false;     // it waits for an initialising step
  bool is_at_goal = false;  // and only keeps its session
  bool has_session = false;
  std::set<std::string> compiled;  // signatures of sessions
};

class Job {
 public:
  Job(Kind kind, uint64_t seed)
      : kind_(kind),
        sim_(seed * std::size(kKinds) + static_cast<uint64_t>(kind)),
        net_(&sim_),
        links_(&sim_, &net_, WithinHost()) {
    num_ps_ = 1 + static_cast<int>(sim_.Draw(2));
    std::map<int, std::string> ps;
    std::vector<std::string> addresses;
    for (int i = 0; i < num_ps_; ++i) addresses.push_back(absl::StrCat("ps", i, ":1"));
    cluster_ = *ClusterSpec::Make({{"ps", addresses}, {"worker", {"w0:1", "w1:1", "w2:1"}}});
    Observe();
    for (int i = 0; i < num_ps_; ++i) StartTask(TaskName("ps", i));
    StartTrainer(TaskName("worker", 0), /*is_chief=*/true);
    StartTrainer(TaskName("worker", 1), /*is_chief=*/false);
    PlanFaults();
  }
  ~Job() {
    net_.rates = {};
    for (Task* const task : Running()) Kill(task);
    sim_.Run(
        [this] {
          return std::all_of(tasks_.begin(), tasks_.end(),
                             [](const auto& t) { return t->has_left; });
        },
        kEnd);
    for (const auto& task : tasks_) Bury(task.get());
    // Ways that were lost let go of their links when their ends have heard of it.
    sim_.Run([] { return false; }, absl::Minutes(1));
  }

  // The whole life of the job.
  void Run() {
    const auto trainers_are = [this](auto what) {
      return [this, what] {
        for (const Task* const task : Running()) {
          if (task->has_trainer && !task->has_left && !what(*task)) return false;
        }
        return true;
      };
    };
    sim_.After(kFaults, [this]() -> Simulation::Place* {
      net_.rates = {};
      HealAll();
      faults_are_over_ = true;
      return nullptr;
    });
    const bool at_goal = sim_.Run(
        [&] {
          return faults_are_over_ && NumTrainers() > 0 && num_down_ == 0 &&
                 trainers_are([](const Task& t) { return t.is_at_goal; })();
        },
        kEnd);
    if (!at_goal) return Hang("come to their last step");
    // Every end that was not heard, and every lease that nobody renews, is over by now.
    sim_.Run([] { return false; }, kLongestDelay + kLease * 1.5);
    CheckSessions(NumTrainers());
    closing_ = true;
    if (!sim_.Run(trainers_are([](const Task& t) { return t.has_left; }), kEnd)) {
      return Hang("close their sessions");
    }
    sim_.Run([] { return false; }, absl::Seconds(20));
    CheckSessions(0);
    CheckPlans();
    // Failed steps are kept for ten minutes, for who comes late to hear why.
    sim_.Run([] { return false; }, absl::Minutes(11));
    CheckLedgers();
    if (net_.calls_begun() != net_.calls_ended()) {
      sim_.Violated(absl::StrCat("all calls must have ended, got", net_.OpenCalls()));
    }
  }

  Simulation& simulation() { return sim_; }
  int answered() const { return answered_; }
  int unheard() const { return unheard_; }
  int fenced() const { return fenced_; }
  int late_inits() const { return late_inits_; }

 private:
  // --- Tasks

  Task* StartTask(const std::string& name) {
    tasks_.push_back(std::make_unique<Task>());
    Task* const task = tasks_.back().get();
    task->life = net_.Begin(name);
    WorkerOptions options;
    options.task = name;
    options.own_arena = task->life->place->arena();
    options.io_pool = IoPool::Default();
    options.clock = task->life->place->clock();
    options.timers = task->life->place->timers();
    options.links = links_.of(task->life);
    task->worker = std::make_unique<Worker>(std::move(options));
    net_.Attach(task->life, task->worker.get());
    links_.Attach(task->life);
    return task;
  }

  void StartTrainer(const std::string& name, bool is_chief) {
    Task* const task = StartTask(name);
    MasterOptions options;
    options.task = name;
    options.cluster = cluster_;
    options.clock = task->life->place->clock();
    options.log_clock = options.clock;
    options.timers = task->life->place->timers();
    options.lease = kLease;
    options.peer = [this, life = task->life](absl::string_view peer) {
      return net_.WayTo(life, peer);
    };
    options.links = links_.parts(task->life);
    options.local_part = net_.LocalPartOf(task->life);
    task->master = std::make_unique<Master>(std::move(options));
    task->life->master = task->master.get();
    task->is_chief = is_chief;
    if (is_chief) task->epoch = ++last_epoch_;
    task->has_trainer = true;
    task->has_left = false;
    sim_.Spawn(task->life->place, [this, task] {
      Train(task);
      task->has_left = true;
    });
  }

  // Its process is gone: nobody hears of it any more. What it was made of is destroyed when its
  // trainer has noticed.
  void Kill(Task* task) {
    net_.Kill(task->life);
    links_.Kill(task->life);
    sim_.After(absl::ZeroDuration(), [task] { return task->life->place; });
  }
  void Bury(Task* task) {
    if (task->worker == nullptr || !task->has_left) return;
    sim_.Release(task->life->place);
    if (task->master != nullptr) task->master->Shutdown(absl::AbortedError("Shutdown"));
    task->life->master = nullptr;
    task->worker->Shutdown(absl::AbortedError("Shutdown"));
    task->master.reset();
    task->worker.reset();
  }
  std::vector<Task*> Running() const {
    std::vector<Task*> result;
    for (const auto& task : tasks_) {
      if (!task->life->is_over) result.push_back(task.get());
    }
    return result;
  }
  int NumTrainers() const {
    int n = 0;
    for (const Task* const task : Running()) n += task->has_trainer && !task->has_left ? 1 : 0;
    return n;
  }
  Task* Find(const std::string& name) const {
    for (Task* const task : Running()) {
      if (task->life->task == name) return task;
    }
    return nullptr;
  }
  bool IsPs(const Life& life) const { return absl::StartsWith(life.task, "/job:ps/"); }

  // --- Faults

  template <typename F>
  void AtSomeTime(absl::Duration first, F what) {
    sim_.After(first + sim_.DrawTime(kFaults - first), [what]() -> Simulation::Place* {
      what();
      return nullptr;
    });
  }
  void PlanFaults() {
    const double rate = 0.01 + 0.01 * static_cast<double>(sim_.Draw(10));
    switch (kind_) {
      case Kind::kLostRequest:
        net_.rates.lost_request = rate;
        break;
      case Kind::kLostAnswer:
        net_.rates.lost_answer = rate;
        break;
      case Kind::kDelay:
        net_.rates.long_delay = rate;
        net_.rates.longest_delay = kLongestDelay;
        net_.rates.usual_delay = absl::Milliseconds(1 + 400 * static_cast<int>(sim_.Draw(2)));
        break;
      case Kind::kPartition:
        for (int i = 1 + static_cast<int>(sim_.Draw(4)); i > 0; --i) {
          AtSomeTime(absl::ZeroDuration(), [this] { CutSomething(); });
        }
        // Who starts tasks takes the chief for dead, and starts another one.
        if (sim_.Chance(0.3)) {
          AtSomeTime(absl::Seconds(10),
                     [this] { StartTrainer(TaskName("worker", 2), /*is_chief=*/true); });
        }
        break;
      case Kind::kRestart:
        for (int i = 1 + static_cast<int>(sim_.Draw(3)); i > 0; --i) {
          AtSomeTime(absl::ZeroDuration(), [this] { RestartSomething(); });
        }
        break;
    }
  }
  void CutSomething() {
    const std::string worker = TaskName("worker", static_cast<int>(sim_.Draw(2)));
    const bool from_all = sim_.Chance(0.5), there = sim_.Chance(0.7), back = sim_.Chance(0.7);
    const int one = static_cast<int>(sim_.Draw(static_cast<uint64_t>(num_ps_)));
    for (int i = 0; i < num_ps_; ++i) {
      if (!from_all && i != one) continue;
      if (there || !back) Cut(worker, TaskName("ps", i));
      if (back) Cut(TaskName("ps", i), worker);
    }
    sim_.After(absl::Seconds(1) + sim_.DrawTime(absl::Seconds(100)),
               [this]() -> Simulation::Place* {
                 HealAll();
                 return nullptr;
               });
  }
  void Cut(const std::string& from, const std::string& to) {
    net_.Cut(from, to);
    links_.Cut(from, to);
  }
  void HealAll() {
    net_.HealAll();
    links_.HealAll();
  }
  void RestartSomething() {
    const std::vector<Task*> running = Running();
    Task* const task = running[sim_.Draw(running.size())];
    const std::string name = task->life->task;
    const bool has_trainer = task->has_trainer, is_chief = task->is_chief;
    Kill(task);
    ++num_down_;
    sim_.After(sim_.DrawTime(absl::Seconds(20)),
               [this, name, has_trainer, is_chief]() -> Simulation::Place* {
                 --num_down_;
                 if (has_trainer) {
                   StartTrainer(name, is_chief);
                 } else {
                   StartTask(name);
                 }
                 return nullptr;
               });
    BuryLater(task);
  }
  void BuryLater(Task* task) {
    sim_.After(absl::Seconds(1), [this, task]() -> Simulation::Place* {
      if (task->has_left) {
        Bury(task);
      } else {
        BuryLater(task);
      }
      return nullptr;
    });
  }

  // --- Trainers

  void Sleep(Task* task, absl::Duration time) { task->life->place->clock()->SleepFor(time); }
  bool IsOver(Task* task) const { return task->life->is_over; }

  std::vector<std::string> Names(absl::string_view prefix, absl::string_view suffix) const {
    std::vector<std::string> names;
    for (int i = 0; i < num_ps_; ++i) names.push_back(absl::StrCat(prefix, i, suffix));
    return names;
  }
  StatusOr<StepResult> RunStep(Task* task, const std::string& session,
                               const std::vector<std::string>& fetches,
                               const std::vector<std::string>& targets, bool feed = false) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(session);
    for (const auto& fetch : fetches) request.add_fetch(fetch);
    for (const auto& target : targets) request.add_target(target);
    // Some have a limit. Not the first, which compiles: with a limit it does so in a pool, whose
    // threads a simulation does not know.
    const std::string what =
        absl::StrCat(session, absl::StrJoin(fetches, ","), ";", absl::StrJoin(targets, ","));
    const bool has_limit = sim_.Chance(0.5);
    if (has_limit && task->compiled.count(what) != 0) {
      request.mutable_options()->set_timeout_in_ms(
          absl::ToInt64Milliseconds(absl::Seconds(1) + sim_.DrawTime(absl::Seconds(20))));
    }
    std::vector<NamedTensor> feeds;
    if (feed) feeds.push_back({"one:0", Tensor::Scalar(1.0f), false});
    StatusOr<StepResult> result = task->master->RunStep(request, feeds);
    if (result.ok()) task->compiled.insert(what);
    return result;
  }

  // What a trainer does until `closing_`: open a session, step; when it is told that the session is
  // of no more use, another one.
  void Train(Task* task) {
    while (!IsOver(task) && !closing_) {
      tensorflow::CreateSessionRequest request;
      *request.mutable_graph_def() = GraphOf(task->life->task, num_ps_);
      TrainingRun run = {.name = "/run"};
      if (task->is_chief) {
        run.id = "run1";
        run.is_chief = true;
        run.chief = absl::StrCat("chief ", task->epoch);
        run.epoch = task->epoch;
      }
      AddSessionTerms({.run = run}, &request);
      tensorflow::CreateSessionResponse response;
      Status status = task->master->CreateSessionFor(&task->life->killed, request,
                                                     absl::Seconds(60), 16, &response);
      if (status.ok()) {
        task->has_session = true;
        status = TrainIn(task, response.session_handle());
        task->has_session = false;
        task->is_at_goal = false;
        tensorflow::CloseSessionRequest close;
        close.set_session_handle(response.session_handle());
        if (!IsOver(task)) task->master->CloseSession(close).IgnoreError();
      }
      if (IsOver(task)) return;
      if (IsFenced(status)) {
        ++fenced_;
        return;
      }
      if (!status.ok() && !absl::IsAborted(status) && !absl::IsUnavailable(status) &&
          !absl::IsDeadlineExceeded(status) &&
          !absl::StrContains(status.message(), "uninitialized")) {
        sim_.Violated(absl::StrCat(ShortTask(task->life->task),
                                   " must hear what it can recover from, got ", status.ToString()));
      }
      Sleep(task, absl::Seconds(1));
    }
  }

  Status TrainIn(Task* task, const std::string& session) {
    for (;;) {
      MR_ASSIGN_OR_RETURN(const StepResult initialised,
                          RunStep(task, session, Names("is_init", ":0"), {}));
      std::vector<std::string> missing;
      for (int i = 0; i < num_ps_; ++i) {
        if (!initialised.fetches[static_cast<size_t>(i)].scalar<bool>()) {
          missing.push_back(absl::StrCat("init", i));
        }
      }
      if (missing.empty()) break;
      if (task->is_chief) {
        task->is_init = true;
        const Status status = RunStep(task, session, {}, missing).status();
        task->is_init = false;
        MR_RETURN_IF_ERROR(status);
      } else {
        if (closing_ || IsOver(task)) return absl::OkStatus();
        Sleep(task, absl::Seconds(1));
      }
    }
    // Several tensors each way.
    std::vector<std::string> sums = Names("sum", ":0");
    for (std::string& name : Names("twice", ":0")) sums.push_back(std::move(name));
    for (int calm_steps = 0;;) {
      if (IsOver(task) || closing_) return absl::OkStatus();
      if (calm_steps == kCalmSteps) {
        task->is_at_goal = true;
        Sleep(task, absl::Seconds(1));
        continue;
      }
      const bool is_calm = faults_are_over_ && num_down_ == 0;
      const int64_t attempt = ++last_attempt_;
      task->attempt = attempt;
      sim_.TraceLine(absl::StrCat(ShortTask(task->life->task), " attempts step ", attempt));
      const StatusOr<StepResult> result = RunStep(task, session, sums, {}, /*feed=*/true);
      task->attempt = 0;
      sim_.TraceLine(absl::StrCat(ShortTask(task->life->task), " step ", attempt, ": ",
                                  result.status().ToString()));
      ++(result.ok() ? answered_ : unheard_);
      MR_RETURN_IF_ERROR(result.status());
      answered_ok_.insert(attempt);
      if (is_calm) ++calm_steps;
      Sleep(task, sim_.DrawTime(absl::Seconds(is_calm ? 1 : 12)));
    }
  }

  // --- What is seen on the way

  void Observe() {
    net_.observer.step_arrives = [this](const Life& at, int64_t call) {
      if (IsPs(at)) ledgers_[&at].parts[call] = call_of_[call];
    };
    net_.observer.step_begins = [this](const Life& from, int64_t call) {
      for (const auto& task : tasks_) {
        if (task->life.get() == &from) {
          call_of_[call] = {task->attempt, task->is_init, false};
        }
      }
    };
    net_.observer.step_of_session = [this](const Life& at, const std::string& session,
                                           int64_t call) {
      Ledger& ledger = ledgers_[&at];
      const auto it = ledger.epochs.find(session);
      if (it != ledger.epochs.end() && it->second < ledger.newest_epoch) {
        ledger.of_fenced.insert(call);
      }
    };
    net_.observer.session_opened = [this](const Life& at, const SessionOrder& order,
                                          const Status& status) {
      const TrainingRun& run = order.terms.run;
      if (!status.ok() || !run.is_chief) return;
      Ledger& ledger = ledgers_[&at];
      ledger.epochs[order.handle] = run.epoch;
      ledger.newest_epoch = std::max(ledger.newest_epoch, run.epoch);
    };
    net_.observer.step_answers = [this](const Life& at, int64_t call, const Status& status) {
      if (!IsPs(at) || !status.ok()) return;
      Ledger& ledger = ledgers_[&at];
      Ledger::Part& part = ledger.parts[call];
      part.answered_ok = true;
      if (part.attempt != 0) ++ledger.done;
      if (part.is_init && ledger.done > 0) ledger.late_init = true;
      if (ledger.of_fenced.count(call) != 0) {
        sim_.Violated(absl::StrCat(ShortTask(at.task), " ran step #", call,
                                   " of a chief whose run another one had taken over"));
      }
    };
  }

  // --- What must hold

  void Hang(absl::string_view of) {
    sim_.Violated(absl::StrCat("trainers must ", of, " within ", absl::FormatDuration(kEnd),
                               ", got none after it; open calls:", net_.OpenCalls()));
  }
  void CheckSessions(int expected) {
    for (const Task* const task : Running()) {
      const int wanted = IsPs(*task->life) ? expected : task->has_session ? 1 : 0;
      if (task->worker->num_sessions() != wanted) {
        sim_.Violated(absl::StrCat(ShortTask(task->life->task), " must have ", wanted,
                                   " sessions, one for each live client, got ",
                                   task->worker->num_sessions()));
      }
    }
  }
  void CheckPlans() {
    for (const Task* const task : Running()) {
      if (task->worker->num_plans() != 0) {
        sim_.Violated(absl::StrCat(ShortTask(task->life->task),
                                   " must have no graph without a session, got ",
                                   task->worker->num_plans()));
      }
    }
  }
  // Last sessions look: at the variables, and at what is left of the steps before. (Steps are
  // forgotten when others begin.)
  void CheckLedgers() {
    std::vector<float> values;
    for (Task* const task : Running()) {
      if (task->master != nullptr && !Look(task, &values)) return;
    }
    sim_.Run([] { return false; }, absl::Seconds(10));
    for (Task* const task : Running()) {
      if (task->worker->num_steps() != 0) {
        sim_.Violated(absl::StrCat(ShortTask(task->life->task),
                                   " must have forgotten all steps, got ",
                                   task->worker->num_steps()));
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      Task* const ps = Find(TaskName("ps", static_cast<int>(i)));
      CheckLedger(*ps->life, static_cast<int>(values[i]));
    }
  }
  bool Look(Task* task, std::vector<float>* values) {
    values->clear();
    task->has_left = false;
    sim_.Spawn(task->life->place, [&] {
      const auto look = [&]() -> Status {
        tensorflow::CreateSessionRequest request;
        *request.mutable_graph_def() = GraphOf(task->life->task, num_ps_);
        AddSessionTerms({.run = {.name = "/run"}}, &request);
        tensorflow::CreateSessionResponse response;
        MR_RETURN_IF_ERROR(task->master->CreateSession(request, absl::Seconds(60), 16, &response));
        MR_ASSIGN_OR_RETURN(const StepResult result,
                            RunStep(task, response.session_handle(), Names("value", ":0"), {}));
        for (const Tensor& value : result.fetches) values->push_back(value.scalar<float>());
        tensorflow::CloseSessionRequest close;
        close.set_session_handle(response.session_handle());
        return task->master->CloseSession(close);
      };
      const Status status = look();
      if (!status.ok()) {
        sim_.Violated(absl::StrCat("a last session must work, got ", status.ToString()));
      }
      task->has_left = true;
    });
    if (sim_.Run([&] { return task->has_left; }, kEnd)) return true;
    Hang("read the variables");
    return false;
  }
  void CheckLedger(const Life& ps, int value) {
    Ledger& ledger = ledgers_[&ps];
    std::set<int64_t> heard, unheard;
    for (const auto& [call, part] : ledger.parts) {
      if (part.attempt == 0) continue;
      (answered_ok_.count(part.attempt) != 0 ? heard : unheard).insert(part.attempt);
    }
    if (ledger.late_init) ++late_inits_;
    const int least = ledger.late_init ? 0 : static_cast<int>(heard.size());
    const int most = static_cast<int>(heard.size() + unheard.size());
    sim_.TraceLine(absl::StrCat(ShortTask(ps.task), " has ", value, "; heard ", heard.size(),
                                ", unheard ", unheard.size()));
    if (value < least || value > most || (!ledger.late_init && value < ledger.done)) {
      sim_.Violated(absl::StrCat(ShortTask(ps.task), " must have added between ", least, " and ",
                                 most, " times, at least the ", ledger.done,
                                 " that it answered, got ", value));
    }
  }

  const Kind kind_;
  Simulation sim_;
  SimulatedNetwork net_;
  SimulatedLinks links_;
  int num_ps_ = 1;
  ClusterSpec cluster_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::map<const Life*, Ledger> ledgers_;
  std::map<int64_t, Ledger::Part> call_of_;
  std::set<int64_t> answered_ok_;
  int64_t last_attempt_ = 0, last_epoch_ = 0;
  int num_down_ = 0;
  bool faults_are_over_ = false, closing_ = false;
  int answered_ = 0, unheard_ = 0, fenced_ = 0, late_inits_ = 0;
};

// --- The tests -----------------------------------------------------------------------------------

// One thread works at a time: none has to be woken on another core.
void StayOnOneCore() {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return;
  const char* const shard = std::getenv("GTEST_SHARD_INDEX");
  int left = (shard == nullptr ? 0 : std::atoi(shard)) % std::max(CPU_COUNT(&allowed), 1);
  for (size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || left-- > 0) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    static_cast<void>(sched_setaffinity(0, sizeof(one), &one));
    return;
  }
}

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSeeds = 50;
#else
constexpr int kSeeds = 1000;
#endif
struct Flags {
  int seeds = kSeeds;
  std::string simulate;  // "kind/seed"
};
Flags& TheFlags() {
  static Flags flags;
  return flags;
}
constexpr int kParts = 5;

struct Outcome {
  std::string trace;
  std::vector<std::string> violations;
  int64_t events = 0;
  int answered = 0, unheard = 0, fenced = 0, late_inits = 0;
};
Outcome Simulate(Kind kind, uint64_t seed) {
  Outcome outcome;
  Job job(kind, seed);
  job.Run();
  outcome.trace = job.simulation().trace();
  outcome.violations = job.simulation().violations();
  outcome.events = job.simulation().num_events();
  outcome.answered = job.answered();
  outcome.unheard = job.unheard();
  outcome.fenced = job.fenced();
  outcome.late_inits = job.late_inits();
  return outcome;
}

class SimulationTest : public ::testing::TestWithParam<std::tuple<int, Kind>> {};

TEST_P(SimulationTest, EveryJobEndsWellWhateverItsNetworkDoes) {
  const auto [part, kind] = GetParam();
  const int n = TheFlags().seeds / kParts;
  Outcome sum;
  for (int i = 0; i < n; ++i) {
    const auto seed = static_cast<uint64_t>(part * n + i);
    const Outcome outcome = Simulate(kind, seed);
    sum.events += outcome.events;
    sum.answered += outcome.answered;
    sum.unheard += outcome.unheard;
    sum.fenced += outcome.fenced;
    sum.late_inits += outcome.late_inits;
    if (!outcome.violations.empty()) {
      FAIL() << outcome.trace << absl::StrJoin(outcome.violations, "\n")
             << "\nto repeat it: bazel test //distributed:simulation_"
             << (WithinHost() ? "pairs_test" : "links_test")
             << " --test_arg=--simulate=" << NameOf(kind) << "/" << seed;
    }
  }
  std::printf(
      "%s: %d jobs, %ld events, %d steps answered, %d failed, %d chiefs fenced, "
      "%d late initialisations\n",
      NameOf(kind), n, static_cast<long>(sum.events), sum.answered, sum.unheard, sum.fenced,
      sum.late_inits);
  // The faults happen.
  EXPECT_GT(sum.answered, 0);
  if (n >= 20) {
    EXPECT_GT(sum.unheard, n / 10);
    if (kind == Kind::kPartition) {
      EXPECT_GT(sum.fenced, 0);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Kinds, SimulationTest,
                         ::testing::Combine(::testing::Range(0, kParts),
                                            ::testing::ValuesIn(kKinds)),
                         [](const auto& info) {
                           return absl::StrCat(NameOf(std::get<1>(info.param)), "_",
                                               std::get<0>(info.param));
                         });

TEST(SimulationReplayTest, OneSeedGivesTheSameTraceTwiceAndAnotherSeedAnother) {
  for (const Kind kind : kKinds) {
    std::set<std::string> traces;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      const std::string first = Simulate(kind, seed).trace;
      const std::string second = Simulate(kind, seed).trace;
      ASSERT_EQ(first, second) << NameOf(kind) << "/" << seed;
      traces.insert(first);
    }
    EXPECT_EQ(traces.size(), 10u);
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  using namespace millrace;  // NOLINT: the program is this test
  ::testing::InitGoogleTest(&argc, argv);
  SetMinLogLevel(LogLevel::kError);
  StayOnOneCore();
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    // Fewer would leave parts without any.
    if (absl::ConsumePrefix(&arg, "--seeds=") && absl::SimpleAtoi(arg, &TheFlags().seeds) &&
        TheFlags().seeds >= kParts) {
      continue;
    }
    if (absl::ConsumePrefix(&arg, "--simulate=")) {
      TheFlags().simulate = std::string(arg);
      continue;
    }
    std::fprintf(
        stderr, "simulation_test: flags are --seeds=N (N >= %d) and --simulate=kind/seed, got %s\n",
        kParts, argv[i]);
    return 1;
  }
  if (const std::string& one = TheFlags().simulate; !one.empty()) {
    for (const Kind kind : kKinds) {
      absl::string_view seed = one;
      int64_t number;
      if (!absl::ConsumePrefix(&seed, absl::StrCat(NameOf(kind), "/")) ||
          !absl::SimpleAtoi(seed, &number)) {
        continue;
      }
      const Outcome outcome = Simulate(kind, static_cast<uint64_t>(number));
      std::printf("%s%s\n", outcome.trace.c_str(), absl::StrJoin(outcome.violations, "\n").c_str());
      return outcome.violations.empty() ? 0 : 1;
    }
    std::fprintf(stderr, "simulation_test: there is no job %s\n", one.c_str());
    return 1;
  }
  return RUN_ALL_TESTS();
}

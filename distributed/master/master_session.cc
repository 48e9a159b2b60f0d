// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/master_session.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/run_finder.h"
#include "distributed/master/task_calls.h"
#include "distributed/master/task_connector.h"
#include "distributed/transport/worker_control.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "run/tell_again.h"
#include "runtime/plan.h"

namespace millrace {

MasterSession::MasterSession(std::shared_ptr<const MasterOptions> options, LeaseKeeper* keeper,
                             IoPool* compiles, std::string handle, tensorflow::ConfigProto config,
                             SessionTerms terms, absl::Duration timeout, int max_cached_plans)
    : options_(std::move(options)),
      keeper_(keeper),
      compiles_(compiles),
      handle_(std::move(handle)),
      config_(std::move(config)),
      timeout_(timeout),
      compiler_(OperationFetch::kIsAnError, static_cast<size_t>(std::max(max_cached_plans, 1)),
                kMaxCachedPlanBytes, FedShapes::kInferred,
                [this](const Graph& graph, const RunSignature& signature) {
                  return CompileStep(graph, signature, Target());
                }),
      run_(std::move(terms.run)),
      held_bytes_(static_cast<int64_t>(config_.ByteSizeLong())) {}

namespace {

// Between two questions whether a run's name is free: its owner may be a chief that was killed,
// whose lease ends within a minute.
constexpr absl::Duration kAskAgain = absl::Seconds(1);

// What tasks are told: they know runs by their ids.
TrainingRun KnownRun(const TrainingRun& run) { return run.id.empty() ? TrainingRun() : run; }

}  // namespace

// --- Tasks ---------------------------------------------------------------------------------------

StatusOr<std::vector<std::string>> MasterSession::TasksFromTheStart() const {
  const std::vector<std::string> filters(config_.device_filters().begin(),
                                         config_.device_filters().end());
  std::vector<std::string> result = {options_->task};
  for (const std::string& job : options_->cluster.jobs()) {
    for (const int task : options_->cluster.tasks(job)) {
      const std::string name = absl::StrCat("/job:", job, "/replica:0/task:", task);
      if (name == options_->task) continue;
      bool wanted = job == "ps";
      if (!filters.empty()) {
        MR_ASSIGN_OR_RETURN(wanted, PassesDeviceFilters(name, filters));
      }
      if (wanted) result.push_back(name);
    }
  }
  return result;
}

// Without filters, a node may ask for any task of the cluster.
StatusOr<std::vector<std::string>> MasterSession::TasksNamedBy(
    const tensorflow::GraphDef& graph) const {
  std::vector<std::string> result;
  if (config_.device_filters_size() > 0) return result;
  absl::flat_hash_set<std::string> seen;
  for (const tensorflow::NodeDef& node : graph.node()) {
    if (node.device().empty() || !seen.insert(node.device()).second) continue;
    MR_ASSIGN_OR_RETURN(const DeviceName name, DeviceName::Parse(node.device()));
    if (!name.job) continue;
    const std::vector<int> tasks = options_->cluster.tasks(*name.job);
    if (tasks.empty()) continue;  // the placer says which devices there are
    int task = name.task.value_or(tasks.front());
    if (!name.task) {
      // Any task of the job will do; one that is connected already does.
      const DeviceName own = *DeviceName::Parse(options_->task);
      if (own.job == name.job || *name.job == "ps") continue;
    }
    if (std::find(tasks.begin(), tasks.end(), task) == tasks.end()) continue;
    result.push_back(absl::StrCat("/job:", *name.job, "/replica:0/task:", task));
  }
  return result;
}

Status MasterSession::Connect(const std::vector<std::string>& tasks, WaitEnds ends) {
  std::vector<std::shared_ptr<WorkerControl>> fresh;
  absl::flat_hash_set<std::string> seen;
  {
    MutexLock lock(&mu_);
    for (const std::string& task : tasks) {
      if (tasks_.count(task) != 0 || !seen.insert(task).second) continue;
      std::shared_ptr<WorkerControl> control = options_->peer(task);
      if (control == nullptr) {
        return InvalidArgument("Session: task ", task, " must be in the cluster");
      }
      fresh.push_back(std::move(control));
    }
  }
  if (fresh.empty()) return absl::OkStatus();
  ends.closing = &setup_;
  AwaitOptions await;
  await.own_task = options_->task;
  await.timeout = timeout_;
  await.clock = options_->clock;
  await.timers = options_->timers;
  await.ends = ends;
  const absl::Time deadline = options_->clock->Now() + timeout_;
  const auto connect = [&](std::vector<ReachedTask>* reached) -> StatusOr<std::string> {
    MR_ASSIGN_OR_RETURN(*reached, AwaitTasks(fresh, await));
    await.timeout = deadline - options_->clock->Now();
    MR_RETURN_IF_ERROR(FindRun(*reached, await));
    await.timeout = deadline - options_->clock->Now();
    return OpenOn(*reached, await);
  };
  std::vector<ReachedTask> reached;
  const StatusOr<std::string> handle = connect(&reached);
  std::vector<OpenSession> unused;
  Status closed;
  {
    MutexLock lock(&mu_);
    closed = closed_;
    if (!handle.ok()) return closed.ok() ? handle.status() : closed;
    for (const ReachedTask& task : reached) {
      OpenSession open = {task.control, *handle};
      // Another Extend may have been faster.
      if (!closed.ok() || tasks_.count(task.control->task()) != 0) {
        unused.push_back(std::move(open));
        continue;
      }
      tasks_.emplace(task.control->task(), std::move(open));
      devices_.insert(devices_.end(), task.devices.begin(), task.devices.end());
    }
  }
  for (const OpenSession& open : unused) EndWorkerSession(open, keeper_, options_->timers);
  return closed;
}

StatusOr<std::string> MasterSession::OpenOn(absl::Span<const ReachedTask> reached,
                                            AwaitOptions await) {
  Clock* const clock = options_->clock;
  const absl::Time deadline = clock->Now() + await.timeout;
  SessionOrder order;
  order.isolated = config_.isolate_session_state();
  // The workers learn whose session it is, so that those of this task's earlier lives can go.
  if (const auto own = OwnDevices(reached); !own.empty()) {
    order.opener = {options_->task, own.front().incarnation()};
  }
  order.terms = {.run = KnownRun(run()), .lease = options_->lease};
  const auto lost = [weak = weak_from_this()](const OpenSession& session) {
    if (const auto self = weak.lock()) self->AskWhyLost(session);
  };
  EndableWait wait(await.ends, "its run", clock);
  for (;;) {
    {
      MutexLock lock(&mu_);
      order.handle = absl::StrCat(handle_, ".", ++attempts_);
    }
    await.timeout = deadline - clock->Now();
    const Status opened = OpenWorkerSessions(reached, order, keeper_, await, lost);
    if (opened.ok()) return order.handle;
    if (!TellsOfBusyRun(opened) || clock->Now() >= deadline) return opened;
    if (wait.IsTimeToSay()) {
      LogInfo("CreateSession still waiting for its run: ", opened.message());
    }
    MR_RETURN_IF_ERROR(wait.Until(std::min(deadline, clock->Now() + kAskAgain)));
  }
}

void MasterSession::AskWhyLost(const OpenSession& lost) {
  {
    MutexLock lock(&mu_);
    if (!closed_.ok()) return;
    ++asking_;
  }
  // A task tells callers of an ended session why it has ended.
  const auto hear = [self = shared_from_this(), lost](const Status& answer) {
    if (answer.ok() || TellsOfUnknownGraph(answer)) return self->Asked();  // it is there after all
    if (self->is_closed()) return self->Asked();
    const auto end = [self, lost](const Status& why) {
      if (self->is_closed()) return self->Asked();
      LogWarning("Session ", self->handle_, " on ", self->options_->task, ": ",
                 Whereabouts(*lost.task), " has lost it: ", why.message());
      self->Break(why);
      self->Asked();
    };
    if (TellsOfRestart(answer)) {
      self->ExplainRestart(lost.task, 0, FromTask(lost.task->task(), answer), end);
    } else if (IsUnanswered(answer)) {
      end(absl::AbortedError(absl::StrCat("Worker '", lost.task->task(), "' has lost session ",
                                          lost.handle, " and does not say why (", answer.message(),
                                          "); open a new session")));
    } else {
      end(FromTask(lost.task->task(), answer));
    }
  };
  CallOptions options = CallWithin(kCleanupTimeout, options_->timers);
  options.cancellation = &setup_;
  lost.task->DeregisterGraph(options, lost.handle, /*graph_handle=*/"", hear);
}

bool MasterSession::is_closed() const {
  MutexLock lock(&mu_);
  return !closed_.ok();
}

void MasterSession::Asked() {
  MutexLock lock(&mu_);
  MR_DCHECK(asking_ > 0, "AskWhyLost counts a question, which is answered once");
  --asking_;
  step_ended_.SignalAll();
}

void MasterSession::Break(const Status& why) {
  MR_DCHECK(!why.ok(), "a session breaks for a reason: its later steps end with it");
  std::vector<std::shared_ptr<MasterStep>> running;
  Status broken;
  {
    MutexLock lock(&mu_);
    if (broken_.ok()) broken_ = why;
    broken = broken_;
    for (MasterStep* step : running_) running.push_back(step->shared_from_this());
  }
  for (const auto& step : running) step->Fail(broken);
}

TrainingRun MasterSession::run() const {
  MutexLock lock(&mu_);
  return run_;
}

// The parameter servers keep what belongs to a run, or, when there are none, every other task that
// is not this task: its own worker learns of the run from this master.
Status MasterSession::FindRun(absl::Span<const ReachedTask> reached, const AwaitOptions& await) {
  {
    MutexLock lock(&mu_);
    if (run_.empty() || run_.is_chief || run_found_) return absl::OkStatus();
  }
  std::vector<std::shared_ptr<WorkerControl>> keepers, others;
  for (const ReachedTask& task : reached) {
    if (absl::StartsWith(task.control->task(), "/job:ps/")) keepers.push_back(task.control);
    if (task.control->task() != options_->task) others.push_back(task.control);
  }
  if (keepers.empty()) keepers = std::move(others);
  if (keepers.empty()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const std::string id, AwaitRun(keepers, run(), await));
  MutexLock lock(&mu_);
  run_.id = id;
  run_found_ = true;
  return absl::OkStatus();
}

Status MasterSession::EndRun(const RunEnd& end) {
  std::vector<OpenSession> left;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(closed_);
    if (run_.empty() || !run_.is_chief) {
      return FailedPrecondition("EndRun: the session must be of the chief of a run, got ",
                                run_.empty() ? "one of no run" : "another trainer's");
    }
    for (const auto& [name, open] : tasks_) left.push_back(open);
  }
  // The chief is about to leave, and nobody else tells.
  Status result;
  TellAgain rounds;
  while (!left.empty()) {
    TaskCalls calls(static_cast<int>(left.size()),
                    absl::StrCat("Session ", handle_, ", which tells of the end of its run"),
                    options_->clock);
    for (size_t k = 0; k < left.size(); ++k) {
      left[k].task->EndRun(CallWithin(kTellTimeout, options_->timers), left[k].handle, end,
                           calls.Done(static_cast<int>(k), *left[k].task));
    }
    const std::vector<Status>& statuses = calls.Wait();
    const std::optional<absl::Duration> pause = rounds.NextPause();
    std::vector<OpenSession> unanswered;
    for (size_t k = 0; k < left.size(); ++k) {
      const Status& status = statuses[k];
      if (pause && IsUnanswered(status)) {
        LogInfo("Session ", handle_, " tells ", Whereabouts(*left[k].task),
                " again that its run has ended: it has not answered");
        unanswered.push_back(left[k]);
      } else if (!status.ok() && result.ok()) {
        result = FromTask(left[k].task->task(), status);
      }
    }
    left = std::move(unanswered);
    if (!left.empty()) options_->clock->SleepFor(*pause);
  }
  return result;
}

StatusOr<RunTrainers> MasterSession::FindTrainers() {
  std::vector<OpenSession> asked;
  std::string id;
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(closed_);
    if (run_.empty()) {
      return FailedPrecondition("FindTrainers: the session must be of a run, got one of none");
    }
    id = run_.id;
    for (const auto& [name, open] : tasks_) asked.push_back(open);
  }
  std::vector<FoundRun> answers(asked.size());
  TaskCalls calls(static_cast<int>(asked.size()),
                  absl::StrCat("Session ", handle_, ", which asks who trains its run"),
                  options_->clock);
  for (size_t i = 0; i < asked.size(); ++i) {
    asked[i].task->FindRun(CallWithin(kTellTimeout, options_->timers), /*name=*/"", id, &answers[i],
                           calls.Done(static_cast<int>(i), *asked[i].task));
  }
  const std::vector<Status>& statuses = calls.Wait();
  std::set<std::string> training, ended;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (!statuses[i].ok()) return FromTask(asked[i].task->task(), statuses[i]);
    training.insert(answers[i].trainers.begin(), answers[i].trainers.end());
    ended.insert(answers[i].former_trainers.begin(), answers[i].former_trainers.end());
  }
  RunTrainers trainers;
  trainers.training.assign(training.begin(), training.end());
  for (const std::string& task : ended) {
    if (training.count(task) == 0) trainers.ended.push_back(task);
  }
  return trainers;
}

std::vector<tensorflow::DeviceAttributes> MasterSession::OwnDevices(
    absl::Span<const ReachedTask> reached) const {
  for (const ReachedTask& task : reached) {
    if (task.control->task() == options_->task) return task.devices;
  }
  std::vector<tensorflow::DeviceAttributes> result;
  MutexLock lock(&mu_);
  for (const tensorflow::DeviceAttributes& device : devices_) {
    if (IsOwn(device)) result.push_back(device);
  }
  return result;
}

bool MasterSession::IsOwn(const tensorflow::DeviceAttributes& device) const {
  return absl::StartsWith(device.name(), absl::StrCat(options_->task, "/"));
}

Status MasterSession::Create(const WaitEnds& ends) {
  if (config_.use_per_session_threads() || config_.session_inter_op_thread_pool_size() > 0) {
    return absl::InvalidArgumentError(
        "Distributed session does not support session thread pool options.");
  }
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> tasks, TasksFromTheStart());
  return Connect(tasks, ends);
}

void MasterSession::ListDevices(tensorflow::ListDevicesResponse* response) const {
  MutexLock lock(&mu_);
  for (const auto& device : devices_) {
    *(IsOwn(device) ? response->add_local_device() : response->add_remote_device()) = device;
  }
}

void MasterSession::ExplainRestart(std::shared_ptr<WorkerControl> task, int64_t step_id,
                                   const Status& error, absl::AnyInvocable<void(Status)> done) {
  auto devices = std::make_shared<std::vector<tensorflow::DeviceAttributes>>();
  const std::shared_ptr<WorkerControl> control = task;  // also when the answer is its last owner
  CallOptions options = CallWithin(kCleanupTimeout, options_->timers);
  options.cancellation = &setup_;
  control->GetStatus(
      options, devices.get(),
      [self = shared_from_this(), task = std::move(task), devices, step_id, error,
       done = std::move(done)](const Status& status) mutable {
        uint64_t found = 0;
        if (status.ok() && !devices->empty()) found = devices->front().incarnation();
        Status result = error;
        {
          MutexLock lock(&self->mu_);
          const uint64_t expected =
              IncarnationOf(self->devices_, absl::StrCat(task->task(), "/device:CPU:0"));
          if (!status.ok() && !self->closed_.ok()) {
            result = self->closed_;  // closing has ended the question
          } else if (found == 0 || found != expected) {
            result = absl::AbortedError(absl::StrCat(
                "Worker '", task->task(), "' restarted",
                step_id == 0 ? "" : absl::StrCat(" during step ", step_id), " (incarnation ",
                expected, " expected, ", found == 0 ? "none" : absl::StrCat(found),
                " found); variables there are lost, restore from a checkpoint"));
          }
          if (self->broken_.ok()) self->broken_ = result;
        }
        done(std::move(result));
      });
}

// --- Graph ---------------------------------------------------------------------------------------

Status MasterSession::Usable() const {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(closed_);
  return broken_;
}

Status MasterSession::Extend(const tensorflow::GraphDef& graph, int64_t version,
                             const WaitEnds& ends, int64_t* new_version) {
  MR_RETURN_IF_ERROR(Usable());
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> tasks, TasksNamedBy(graph));
  MR_RETURN_IF_ERROR(Connect(tasks, ends));
  MutexLock lock(&extend_mu_);
  if (version != version_) {
    return absl::AbortedError(
        absl::StrCat("Current version is ", version_, " but caller expected ", version, "."));
  }
  const auto num_bytes = static_cast<int64_t>(graph.ByteSizeLong());
  {
    MutexLock held(&mu_);
    MR_RETURN_IF_ERROR(Hold("ExtendSession", num_bytes));
  }
  const Status extended = compiler_.Extend(graph);
  if (!extended.ok()) {
    MutexLock held(&mu_);
    held_bytes_ -= num_bytes;
    return extended;
  }
  *new_version = ++version_;
  return absl::OkStatus();
}

CompileTarget MasterSession::Target() {
  CompileTarget target;
  target.own_task = options_->task;
  target.session_handle = handle_;
  target.config = &config_;
  target.timers = options_->timers;
  target.links = options_->links;
  target.local_part = options_->local_part;
  target.placements = &placements_;
  target.warned_of_missing_gpu = &warned_of_missing_gpu_;
  target.cancellation = &setup_;
  target.clock = options_->clock;
  target.on_phase = [this](std::string phase) {
    MutexLock lock(&mu_);
    compiles_now_ = std::move(phase);
  };
  target.explain = [this](const std::shared_ptr<WorkerControl>& task, const Status& answer) {
    TaskCalls explained(1, absl::StrCat("Session ", handle_, ", which asks who a task is"),
                        options_->clock);
    ExplainRestart(task, 0, answer, explained.Done(0, *task));
    return explained.Wait()[0];
  };
  MutexLock lock(&mu_);
  target.devices = devices_;
  target.tasks = tasks_;
  return target;
}

absl::Time MasterSession::DeadlineOf(const tensorflow::RunOptions& options) const {
  const int64_t limit_ms =
      options.timeout_in_ms() > 0 ? options.timeout_in_ms() : config_.operation_timeout_in_ms();
  return limit_ms > 0 ? options_->timers->Now() + absl::Milliseconds(limit_ms)
                      : absl::InfiniteFuture();
}

StatusOr<std::shared_ptr<const MasterBinding>> MasterSession::Bind(const RunSignature& names,
                                                                   absl::Time deadline) {
  MR_RETURN_IF_ERROR(Usable());
  const std::string key = SignatureKey(names);
  if (deadline == absl::InfiniteFuture()) {
    return compiler_.Bind(key, [&names] { return names; });
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const MasterBinding> binding, compiler_.Find(key));
  if (binding != nullptr) return binding;
  const auto compiled = compiling_.Await(
      key,
      [self = shared_from_this(), key, names] {
        return self->compiler_.Bind(key, [&names] { return names; });
      },
      compiles_, options_->timers->clock(), deadline);
  if (compiled.has_value()) return *compiled;
  std::string phase;
  {
    MutexLock lock(&mu_);
    phase = compiles_now_;
  }
  // Worded like the end of a step that has begun.
  return TimedOutWaitingFor(absl::StrCat("its signature on ", options_->task,
                                         ", which is compiled before the step can begin: ", phase));
}

// --- Steps ---------------------------------------------------------------------------------------

Status MasterSession::Runnable(const MasterBinding& binding, absl::Span<const Tensor> feeds,
                               const MasterStepOptions& options) const {
  MR_RETURN_IF_ERROR(Usable());
  MR_RETURN_IF_ERROR(CheckFeeds(binding.bound, binding.feed_rules, feeds));
  return CheckRunOptions(config_, options.run);
}

void MasterSession::Run(std::shared_ptr<const MasterBinding> binding,
                        absl::Span<const Tensor> feeds, const MasterStepOptions& options,
                        StepDone done) {
  if (binding->compiled == nullptr) {
    return done(NoExceptions("Run", [&]() -> StatusOr<StepResult> {
      MR_RETURN_IF_ERROR(Runnable(*binding, feeds, options));
      StepResult result;
      result.fetches.resize(binding->bound.results.size());
      ArrangeResults(binding->bound, feeds, {}, absl::MakeSpan(result.fetches));
      return result;
    }));
  }
  std::shared_ptr<MasterStep> step;
  MasterStepOptions limited;
  const Status status = NoExceptions("Run", [&]() -> Status {
    MR_RETURN_IF_ERROR(Runnable(*binding, feeds, options));
    limited = options;
    if (limited.deadline == absl::InfiniteFuture()) limited.deadline = DeadlineOf(options.run);
    step = std::make_shared<MasterStep>(shared_from_this(), std::move(binding),
                                        options_->log_clock->Now(), options_->timers);
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(closed_);  // perhaps since the check
    running_.insert(step.get());
    return absl::OkStatus();
  });
  if (!status.ok()) return done(status);
  step->Start(feeds, limited, std::move(done));
  if (options.block) step->Wait();
}

StatusOr<StepResult> MasterSession::RunAndWait(std::shared_ptr<const MasterBinding> binding,
                                               absl::Span<const Tensor> feeds,
                                               const tensorflow::RunOptions& options,
                                               absl::Time deadline) {
  StatusOr<StepResult> result = absl::InternalError("Step ended without a result");
  MasterStepOptions step;
  step.run = options;
  step.deadline = deadline;
  Run(std::move(binding), feeds, step,
      [&result](StatusOr<StepResult> r) { result = std::move(r); });
  return result;
}

bool MasterSession::has_running_steps() const {
  MutexLock lock(&mu_);
  return !running_.empty();
}

std::vector<WaitWatch::Wait> MasterSession::WaitsOfSteps() const {
  std::vector<std::shared_ptr<MasterStep>> steps;
  {
    MutexLock lock(&mu_);
    for (MasterStep* step : running_) {
      if (auto kept = step->weak_from_this().lock()) steps.push_back(std::move(kept));
    }
  }
  std::vector<WaitWatch::Wait> result;
  for (const auto& step : steps) {
    result.push_back({step->begun(), [self = shared_from_this(), step]() -> std::string {
                        const std::string tasks = step->WaitsFor();
                        if (tasks.empty()) return tasks;
                        return absl::StrCat("Step ", step->id(), " of session ", self->handle_,
                                            " on ", self->options_->task, " still waits for ",
                                            tasks);
                      }});
  }
  return result;
}

void MasterSession::StepEnded(MasterStep* step) {
  MutexLock lock(&mu_);
  const size_t erased = running_.erase(step);
  MR_DCHECK(erased == 1, "Run lists a step before it starts, and it ends once");
  step_ended_.SignalAll();
}

Status MasterSession::Hold(absl::string_view method, int64_t num_bytes) {
  const int64_t limit = options_->limits.max_graph_bytes;
  if (num_bytes > limit - held_bytes_) {
    return BeyondLimit(absl::StrCat(method, " on ", options_->task),
                       "bytes of a session's graph and callables", "max_graph_bytes", limit,
                       held_bytes_ + num_bytes);
  }
  held_bytes_ += num_bytes;
  return absl::OkStatus();
}

StatusOr<int64_t> MasterSession::AddCallable(std::shared_ptr<const MasterBinding> binding,
                                             const tensorflow::RunOptions& options,
                                             int64_t num_bytes) {
  MutexLock lock(&mu_);
  const auto n = static_cast<int64_t>(callables_.size());
  if (n >= options_->limits.max_callables) {
    return BeyondLimit(absl::StrCat("MakeCallable on ", options_->task), "callables of a session",
                       "max_callables", options_->limits.max_callables, n + 1);
  }
  MR_RETURN_IF_ERROR(Hold("MakeCallable", num_bytes));
  const int64_t id = next_callable_++;
  callables_[id] = {std::move(binding), options, num_bytes};
  return id;
}

StatusOr<MasterSession::Callable> MasterSession::FindCallable(int64_t id) const {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(closed_);
  const auto it = callables_.find(id);
  if (it == callables_.end()) {
    return InvalidArgument("No such callable handle: ", id);
  }
  return it->second;
}

Status MasterSession::RemoveCallable(int64_t id) {
  std::shared_ptr<const MasterBinding> dropped;  // its graphs are deregistered without the lock
  MutexLock lock(&mu_);
  const auto it = callables_.find(id);
  if (it == callables_.end()) {
    return InvalidArgument("No such callable handle: ", id);
  }
  dropped = std::move(it->second.binding);
  held_bytes_ -= it->second.num_bytes;
  callables_.erase(it);
  return absl::OkStatus();
}

void MasterSession::BeginClose(const Status& status) {
  std::vector<std::shared_ptr<MasterStep>> running;
  {
    MutexLock lock(&mu_);
    if (closed_.ok()) closed_ = status;
    for (MasterStep* step : running_) running.push_back(step->shared_from_this());
  }
  for (const auto& step : running) step->Fail(status);
  // The tasks drop their graphs together with the session.
  for (const auto& entry : compiler_.Close(status)) {
    if (entry.binding->compiled != nullptr) entry.binding->compiled->Forget();
  }
  setup_.StartCancel();
}

bool MasterSession::StepsEndBefore(absl::Time deadline) {
  MutexLock lock(&mu_);
  const auto is_quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return running_.empty() && asking_ == 0;
  };
  while (!is_quiet() && options_->clock->Now() < deadline) {
    options_->clock->WaitUntil(&step_ended_, &mu_, deadline);
  }
  return is_quiet();
}

void MasterSession::AwaitSteps(absl::Time deadline) {
  if (StepsEndBefore(deadline)) return;
  const absl::Time now = options_->log_clock->Now();
  for (const WaitWatch::Wait& step : WaitsOfSteps()) {
    const std::string line = WaitWatch::Line(step, now);
    if (!line.empty()) LogWarning(line, "; it is left behind, its session ends");
  }
}

std::vector<OpenSession> MasterSession::TakeOpen() {
  std::map<int64_t, Callable> callables;
  std::vector<OpenSession> open;
  {
    MutexLock lock(&mu_);
    MR_DCHECK(!closed_.ok(), "BeginClose comes first: from then on Connect adds no task");
    callables.swap(callables_);
    for (auto& [name, session] : std::exchange(tasks_, {})) open.push_back(std::move(session));
  }
  for (const auto& [id, callable] : callables) {
    if (callable.binding->compiled != nullptr) callable.binding->compiled->Forget();
  }
  return open;
}

void MasterSession::CloseAll(absl::Span<const std::shared_ptr<MasterSession>> sessions,
                             const Status& status, const MasterOptions& options,
                             LeaseKeeper* keeper) {
  if (sessions.empty()) return;
  for (const auto& session : sessions) session->BeginClose(status);
  const absl::Time deadline = options.clock->Now() + options.close_bound;
  std::vector<OpenSession> open;
  for (const auto& session : sessions) {
    session->AwaitSteps(deadline);
    for (OpenSession& on_task : session->TakeOpen()) open.push_back(std::move(on_task));
  }
  if (!open.empty()) CloseWorkerSessions(open, keeper, options.clock, options.timers);
}

void MasterSession::Close(const Status& status) {
  const std::shared_ptr<MasterSession> self = shared_from_this();
  CloseAll({&self, 1}, status, *options_, keeper_);
}

}  // namespace millrace

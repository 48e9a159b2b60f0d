// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker.h"

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "distributed/link/frame.h"
#include "distributed/worker/graph_table.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/shared_plans.h"
#include "distributed/worker/step_rendezvous.h"
#include "distributed/worker/worker_step.h"
#include "net/call_limits.h"
#include "runtime/engine/executor.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/session/compile_path.h"
#include "runtime/session/function_runtime.h"

namespace millrace {
namespace {

// Who lives hears, too, that the link is closed, and renews at once.
constexpr absl::Duration kDoubtAfterClose = absl::Seconds(4);

}  // namespace

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)),
      devices_(options_.task, options_.num_cpu_devices),
      steps_(std::make_shared<StepTable>(options_.clock, options_.limits)),
      plans_(options_.task),
      running_(&options_),
      runs_(
          options_.task, options_.clock, options_.run_linger,
          [this] { return devices_.MakeContainer(); }, options_.limits.max_run_note_bytes),
      sessions_(&options_, &devices_, &runs_, &leases_),
      leases_(options_.clock, [this](const std::string& handle, absl::Duration silent) {
        LeaseExpired(handle, silent);
      }) {}

Worker::~Worker() {
  Shutdown(absl::AbortedError("Shutdown"));
  AwaitSteps(absl::InfiniteFuture());
  // Iterators may call functions, which keep the devices.
  ClearAllOf(devices_.shared());
}

// --- Sessions ------------------------------------------------------------------------------------

StatusOr<std::shared_ptr<WorkerSession>> Worker::FindSession(const std::string& handle) {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(shut_down_);
  return sessions_.FindAndRenew(handle);
}

Status Worker::CreateWorkerSession(const SessionOrder& order, SessionFrom from) {
  return NoExceptions("CreateWorkerSession", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<WorkerSession> session,
                        WorkerSession::Of(order, &options_, from));
    Status opened;
    {
      MutexLock lock(&mu_);
      MR_RETURN_IF_ERROR(shut_down_);
      MR_RETURN_IF_ERROR(opens_);
      // Calls overtake each other: its master has given it up.
      MR_RETURN_IF_ERROR(sessions_.EndOf(session->handle));
      opened = sessions_.Open(session);
    }
    FinishEnds();
    return opened;
  });
}

void Worker::FinishEnds() {
  std::vector<std::shared_ptr<WorkerSession>> ending;
  std::vector<std::pair<std::shared_ptr<WorkerStep>, Status>> steps;
  std::vector<RunRegistry::Freed> freed;
  {
    MutexLock lock(&mu_);
    ending = sessions_.TakeEnding();
    for (const auto& over : ending) {
      for (auto& step : running_.Of(over->life.get())) {
        steps.emplace_back(std::move(step), over->life->ended());
      }
    }
    freed = runs_.TakeFreed();
  }
  for (const auto& [step, why] : steps) step->Cancel(why);
  // What sessions that are over have sent is nobody's to take. After the steps: one that ends well
  // meanwhile is found here, or finds that it was cancelled.
  if (!ending.empty()) steps_->DropOfEndedSessions();
  for (const auto& session : ending) session->DropAll();
  for (const RunRegistry::Freed& run : freed) FreeContainer(options_.task, run);
}

void Worker::DoubtSessions(const std::set<std::string>& handles) {
  for (const std::string& handle : handles) leases_.Doubt(handle, kDoubtAfterClose);
}

void Worker::LeaseExpired(const std::string& handle, absl::Duration silent) {
  std::vector<std::string> too_many;
  bool is_idle = false;
  {
    MutexLock lock(&mu_);
    WorkerSession* const session = sessions_.Find(handle);
    if (session == nullptr) return;
    // Somebody waits for its step: a call whose client is gone is cancelled, and its step with it.
    if (session->lease != nullptr && running_.CountOf(session->life.get()) > 0) {
      session->lease = leases_.Grant(handle, session->lease->time());
      // It was in doubt, and its step is at its end.
      if (silent < session->lease->time()) leases_.Doubt(handle, kDoubtAfterClose);
      return;
    }
    is_idle = session->may_be_idle();
    if (is_idle) too_many = sessions_.BeIdle(session);
  }
  if (is_idle) {
    for (const std::string& ended : too_many) {
      LogInfo(options_.task, ": session ", ended, " ends: it is the longest idle of more than ",
              options_.limits.max_idle_sessions, " (ServerLimits::max_idle_sessions)");
    }
    return FinishEnds();
  }
  LogInfo(options_.task, ": session ", handle, " ends: nobody has renewed its lease for ",
          absl::FormatDuration(silent));
  const Status why =
      absl::AbortedError(absl::StrCat("Session handle is not found: ", handle, ". Its lease on ",
                                      options_.task, " has expired: nobody renewed it for ",
                                      absl::FormatDuration(silent), "; open a new session"));
  {
    MutexLock lock(&mu_);
    if (!sessions_.End(handle, why)) return;
  }
  FinishEnds();
}

Status Worker::DeleteWorkerSession(const std::string& session_handle) {
  {
    MutexLock lock(&mu_);
    sessions_.Close(session_handle);
  }
  FinishEnds();
  return absl::OkStatus();
}

std::vector<std::string> Worker::RenewSessions(absl::Span<const std::string> handles) {
  std::vector<std::string> unknown;
  MutexLock lock(&mu_);
  for (const std::string& handle : handles) {
    if (!sessions_.Renew(handle)) unknown.push_back(handle);
  }
  return unknown;
}

std::vector<Worker::OpenedSession> Worker::OpenSessions() const {
  std::vector<OpenedSession> result;
  MutexLock lock(&mu_);
  for (const auto& [handle, session] : sessions_.open()) {
    result.push_back({handle, session->opener.task, session->opener.incarnation,
                      running_.CountOf(session->life.get())});
  }
  return result;
}

int Worker::num_sessions() const {
  MutexLock lock(&mu_);
  return static_cast<int>(sessions_.open().size());
}

int64_t Worker::num_wakeups() const {
  std::set<std::shared_ptr<const WorkerPlan>> plans;  // sessions may share one
  {
    MutexLock lock(&mu_);
    for (const auto& [handle, session] : sessions_.open()) {
      for (auto& plan : session->graphs.Plans()) plans.insert(std::move(plan));
    }
  }
  int64_t wakeups = 0;
  for (const auto& plan : plans) {
    for (const StepPart& part : plan->parts) wakeups += part.executor->counters().wakeups;
  }
  return wakeups;
}

// --- Runs ----------------------------------------------------------------------------------------

FoundRun Worker::FindRun(absl::string_view name, absl::string_view id) const {
  MutexLock lock(&mu_);
  FoundRun found = runs_.Find(name, id);
  // A caller that knows only the name waits for the run.
  if (found.state == FoundRun::State::kUnknown || !name.empty()) return found;
  const std::set<std::string> open = sessions_.TrainersOf(found.run.id);
  found.trainers.assign(open.begin(), open.end());
  for (const std::string& task : runs_.TrainersOf(found.run.id)) {
    if (open.count(task) == 0) found.former_trainers.push_back(task);
  }
  return found;
}

Status Worker::EndRun(const std::string& session_handle, const RunEnd& end) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<WorkerSession> session, FindSession(session_handle));
  if (session->run.empty()) {
    return FailedPrecondition(options_.task, ": session ", session_handle,
                              " must be of a run to end it, got one of none");
  }
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(runs_.End(session->run, end));
  }
  FinishEnds();
  return absl::OkStatus();
}

void Worker::NoteRunEnd(const TrainingRun& run, const RunEnd& end) {
  {
    MutexLock lock(&mu_);
    runs_.NoteEnd(run, end);
  }
  FinishEnds();
}

std::optional<RunRegistry::Finished> Worker::FindFinishedRun() const {
  MutexLock lock(&mu_);
  if (sessions_.HasOneWithoutRun()) return std::nullopt;
  return runs_.FindFinished();
}

int64_t Worker::num_run_claims() const {
  MutexLock lock(&mu_);
  return runs_.num_claims();
}

void Worker::EndSessionsOfRun(const TrainingRun& run, const RunEnd& end) {
  {
    MutexLock lock(&mu_);
    sessions_.EndAllOfRun(run.id, RunEndedError(options_.task, run, end));
  }
  FinishEnds();
}

// --- Containers ----------------------------------------------------------------------------------

Status Worker::CheckMayClear(absl::string_view method, absl::Span<const std::string> containers,
                             int master_sessions) const {
  MutexLock lock(&mu_);
  return sessions_.CheckMayClear(method, containers, master_sessions);
}

Status Worker::CleanupAll(absl::Span<const std::string> containers) {
  devices_.ClearContainers(containers);
  for (const std::string& container : containers) {
    std::shared_ptr<RunResources> of_run;
    {
      MutexLock lock(&mu_);
      of_run = runs_.ContainerOf(container);
    }
    if (of_run != nullptr) ClearAllOf(DevicesOf(*of_run));
  }
  return absl::OkStatus();
}

// --- Graphs and steps ----------------------------------------------------------------------------

StatusOr<RegisteredPart> Worker::RegisterGraph(PartOrder order) {
  return NoExceptions("RegisterGraph", [&] { return RegisterOrThrow(&order); });
}

StatusOr<RegisteredPart> Worker::RegisterOrThrow(PartOrder* order) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<WorkerSession> session,
                      FindSession(order->session_handle));
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(takes_);
  }
  const auto num_bytes = static_cast<int64_t>(order->graph_def.ByteSizeLong());
  MR_RETURN_IF_ERROR(session->graphs.CheckRoomFor(num_bytes));
  const int64_t kernels = session->kernels->size() + session->functions->stats().functions;
  if (kernels >= options_.limits.max_session_kernels) {
    return BeyondLimit(absl::StrCat("RegisterGraph on ", options_.task),
                       "stateful kernels and functions of a session", "max_session_kernels",
                       options_.limits.max_session_kernels, kernels + 1);
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<RegisteredGraph> registered,
                      BuildRegisteredGraph(order, session->plan_owner(), &plans_, options_.task));
  registered->num_bytes = num_bytes;
  RegisteredPart part;
  MR_ASSIGN_OR_RETURN(part.graph_handle, session->graphs.Add(std::move(registered)));
  if (options_.links != nullptr) part.link_version = kLinkVersion;
  return part;
}

Status Worker::DeregisterGraph(const std::string& session_handle, const std::string& graph_handle) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<WorkerSession> session, FindSession(session_handle));
  return session->graphs.Drop(graph_handle);
}

void Worker::RunGraph(const tensorflow::RunGraphRequest& graph,
                      const tensorflow::RunGraphRequest& step, EdgesBy edges_by,
                      absl::Span<const NamedTensor> send, bool block, absl::Time deadline,
                      CancellationManager* cancellation, tensorflow::RunGraphResponse* response,
                      std::vector<NamedTensor>* received, CallDone done) {
  std::shared_ptr<WorkerSession> session;
  const auto find = [&]() -> StatusOr<std::shared_ptr<RegisteredGraph>> {
    MR_RETURN_IF_ERROR(FailPoint("worker/run_graph"));
    MR_ASSIGN_OR_RETURN(session, FindSession(graph.session_handle()));
    return session->graphs.Find(graph.graph_handle());
  };
  std::shared_ptr<WorkerStep> run;
  const Status status = NoExceptions("RunGraph", [&]() -> Status {
    StatusOr<std::shared_ptr<RegisteredGraph>> registered = find();
    // Tasks that wait for this one's tensors must hear of it too.
    const auto refuse = [&](const Status& why) {
      steps_->Refuse(step.step_id(), Derived(why));
      return why;
    };
    if (!registered.ok()) return refuse(registered.status());
    run = std::make_shared<WorkerStep>(&options_, steps_, *std::move(registered),
                                       graph.session_handle(), session->life, step.step_id(),
                                       [this](WorkerStep* ended) { running_.Remove(ended); });
    Status ended;
    {
      MutexLock lock(&mu_);
      MR_RETURN_IF_ERROR(shut_down_);
      ended = session->life->ended();  // since it was found
      if (ended.ok()) ended = takes_;
      if (ended.ok()) running_.Add(run.get(), session->life.get());
    }
    return ended.ok() ? ended : refuse(ended);
  });
  if (!status.ok()) return done(status);
  run->Start(step, edges_by, send, block, deadline, cancellation, response, received,
             std::move(done));
}

Status Worker::CleanupGraph(int64_t step_id) {
  steps_->Cleanup(step_id, absl::AbortedError(absl::StrCat("Cleanup ", step_id)));
  return absl::OkStatus();
}

void Worker::RecvTensor(const tensorflow::RecvTensorRequest& request,
                        CancellationManager* cancellation,
                        absl::AnyInvocable<void(const Status&, Tensor, bool)> done) {
  const StatusOr<RendezvousKey> key = RendezvousKey::Parse(request.rendezvous_key());
  Status status = key.status();
  if (status.ok()) status = devices_.CheckIncarnation(key->src_incarnation);
  if (status.ok() && request.request_id() != 0 && !recv_requests_.Add(request.request_id())) {
    status = absl::AbortedError("The same RecvTensor (GrpcWorker) request was received twice.");
  }
  if (!status.ok()) return done(status, Tensor(), false);
  steps_->FindOrExpect(request.step_id())
      ->ServeTensor(request.rendezvous_key(), cancellation, std::move(done));
}

// --- The end -------------------------------------------------------------------------------------

void Worker::StopOpening(const Status& status) {
  MutexLock lock(&mu_);
  if (opens_.ok()) opens_ = status;
}

void Worker::StopTaking(const Status& status) {
  MutexLock lock(&mu_);
  if (opens_.ok()) opens_ = status;
  if (takes_.ok()) takes_ = status;
}

void Worker::Shutdown(const Status& status) {
  leases_.Stop();
  {
    MutexLock lock(&mu_);
    if (shut_down_.ok()) shut_down_ = status;
  }
  for (const auto& run : running_.All()) run->Cancel(status);
  steps_->AbortAll(status);
  running_.AwaitCancelled();
}

}  // namespace millrace

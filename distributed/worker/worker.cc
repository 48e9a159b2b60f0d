// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/transport/session_terms.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/worker_step.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "runtime/device.h"
#include "runtime/engine/executor.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/session.h"
#include "runtime/session/compile_path.h"
#include "runtime/session/function_runtime.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

using DeviceList = std::vector<std::shared_ptr<Device>>;

constexpr size_t kTrackedRequests = 100'000;
// Ended sessions whose masters can still hear why.
constexpr size_t kRememberedSessions = 1000;
// TensorFlow's masters and ours make 16. The programs that open sessions decide how much is
// remembered.
constexpr size_t kMaxHandleBytes = 256;

// A handle that is not ours may have any length, and messages about it are kept.
absl::string_view Shown(absl::string_view handle) { return handle.substr(0, kMaxHandleBytes); }

int64_t VariableBytes(const ResourceManager& resources) {
  int64_t bytes = 0;
  for (const auto& variable : resources.All<VariableStorage>()) {
    if (const auto shape = variable->shape(); shape.ok()) {
      bytes += shape->num_elements() * static_cast<int64_t>(DTypeSize(variable->dtype()));
    }
  }
  return bytes;
}

// Which process opened a session; no task when its master did not say.
struct Opener {
  std::string task;
  uint64_t incarnation = 0;

  static Opener Of(const tensorflow::CreateWorkerSessionRequest& request);
  bool IsEarlierLifeOf(const Opener& other) const {
    return !task.empty() && task == other.task && incarnation != other.incarnation;
  }
};

Opener Opener::Of(const tensorflow::CreateWorkerSessionRequest& request) {
  Opener opener;
  for (const tensorflow::DeviceAttributes& device : request.cluster_device_attributes()) {
    const StatusOr<std::string> task = TaskOfDevice(device.name());
    if (!task.ok() || (!opener.task.empty() && *task != opener.task)) return Opener();
    if (opener.task.empty()) opener = {*task, device.incarnation()};
  }
  return opener;
}

// The container of a run: devices like the task's, with resources of their own.
struct DevicesOfRun : RunResources {
  explicit DevicesOfRun(DeviceList list) : devices(std::move(list)) {}
  const DeviceList devices;
};

// Of a container that this worker has made.
const DeviceList& DevicesOf(const std::shared_ptr<RunResources>& container) {
  return static_cast<const DevicesOfRun&>(*container).devices;
}

}  // namespace

struct Worker::Session {
  std::string handle;
  Opener opener;
  TrainingRun run;               // empty: none
  std::shared_ptr<Lease> lease;  // null: none
  DeviceList devices;
  bool isolated = false;
  const std::shared_ptr<KernelStore> kernels = std::make_shared<KernelStore>();
  // What kernels of this session call; stateful ones outlive the graphs that they were built for.
  std::shared_ptr<FunctionRuntime> functions;

  // Ends when it leaves the list. What its steps send is waited for so long (StepTable).
  const std::shared_ptr<SessionLife> life = std::make_shared<SessionLife>();

  Mutex mu;
  std::map<std::string, std::shared_ptr<RegisteredGraph>> graphs ABSL_GUARDED_BY(mu);
};

// --- Worker --------------------------------------------------------------------------------------

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)),
      steps_(std::make_shared<StepTable>(options_.clock)),
      plans_(options_.task),
      runs_(options_.task, options_.clock, options_.run_linger,
            [this] { return std::make_shared<DevicesOfRun>(MakeDevices()); }),
      leases_(options_.clock, [this](const std::string& handle, absl::Duration silent) {
        LeaseExpired(handle, silent);
      }) {
  for (int i = 0; i < std::max(options_.num_cpu_devices, 1); ++i) {
    auto device = std::make_shared<Device>();
    device->name = absl::StrCat(options_.task, "/device:CPU:", i);
    device->type = "CPU";
    device->incarnation = RandomUint64();
    device->resources = std::make_unique<ResourceManager>(device->name);
    devices_.push_back(std::move(device));
  }
}

Worker::~Worker() {
  Shutdown(absl::AbortedError("Shutdown"));
  AwaitSteps(absl::InfiniteFuture());
  // Iterators may call functions, which keep the devices.
  for (const auto& device : devices_) device->resources->ClearAll();
}

std::vector<tensorflow::DeviceAttributes> Worker::DeviceAttributes() const {
  std::vector<tensorflow::DeviceAttributes> result;
  for (const auto& device : devices_) {
    tensorflow::DeviceAttributes& attributes = result.emplace_back();
    attributes.set_name(device->name);
    attributes.set_device_type(device->type);
    attributes.set_incarnation(device->incarnation);
    attributes.set_memory_limit(int64_t{256} << 20);  // what TensorFlow says of CPUs
  }
  return result;
}

// The same devices with other resources.
std::vector<std::shared_ptr<Device>> Worker::MakeDevices() const {
  DeviceList result;
  for (const auto& shared : devices_) {
    auto own = std::make_shared<Device>();
    own->name = shared->name;
    own->type = shared->type;
    own->incarnation = shared->incarnation;
    own->resources = std::make_unique<ResourceManager>(own->name);
    result.push_back(std::move(own));
  }
  return result;
}

// --- Sessions ------------------------------------------------------------------------------------

StatusOr<std::shared_ptr<Worker::Session>> Worker::FindSession(const std::string& handle) const {
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(shut_down_);
  const auto it = sessions_.find(handle);
  if (it != sessions_.end()) {
    if (it->second->lease != nullptr) it->second->lease->Renew();
    return it->second;
  }
  if (const auto why = ended_.find(handle); why != ended_.end()) return why->second;
  return absl::AbortedError(absl::StrCat("Session handle is not found: ", Shown(handle),
                                         ". Possibly this worker (\"", options_.task,
                                         "\") just restarted."));
}

Status Worker::CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest& request) {
  return NoExceptions("CreateWorkerSession", [&]() -> Status {
    if (request.session_handle().size() > kMaxHandleBytes) {
      return InvalidArgument("CreateWorkerSession on ", options_.task,
                             ": session_handle must have at most ", kMaxHandleBytes, " bytes, got ",
                             request.session_handle().size());
    }
    MR_ASSIGN_OR_RETURN(SessionTerms terms, SessionTermsOf(request));
    auto session = std::make_shared<Session>();
    session->handle = request.session_handle();
    session->opener = Opener::Of(request);
    session->isolated = request.isolate_session_state();
    // A master that does not say who the chief is, is it itself.
    if (terms.run.is_chief && terms.run.chief.empty()) {
      terms.run.chief =
          absl::StrCat(session->opener.task, ", incarnation ", session->opener.incarnation);
    }
    session->run = terms.run;
    Status opened;
    {
      MutexLock lock(&mu_);
      MR_RETURN_IF_ERROR(shut_down_);
      MR_RETURN_IF_ERROR(opens_);
      // Calls overtake each other: its master has given it up.
      if (const auto why = ended_.find(session->handle); why != ended_.end()) return why->second;
      for (auto it = sessions_.begin(); it != sessions_.end();) {
        const auto old = it++;
        if (!old->second->opener.IsEarlierLifeOf(session->opener)) continue;
        // Its master may live: two programs may take themselves for the same task.
        if (old->second->lease != nullptr) {
          leases_.Doubt(old->first);
        } else {
          BeginEnd(old, absl::AbortedError(absl::StrCat("Session handle is not found: ", old->first,
                                                        ". It was opened by ", session->opener.task,
                                                        " before that task restarted.")));
        }
      }
      // A second call of one master is a retry of the first.
      if (const auto it = sessions_.find(session->handle); it != sessions_.end()) {
        if (it->second->lease != nullptr) it->second->lease->Renew();
      } else {
        // Before the run is claimed.
        if (const auto n = static_cast<int64_t>(sessions_.size());
            n >= options_.limits.max_sessions) {
          opened =
              BeyondLimit(absl::StrCat("CreateWorkerSession on ", options_.task), "open sessions",
                          "max_sessions", options_.limits.max_sessions, n + 1);
        }
        std::shared_ptr<RunResources> container;  // of the run, once it is open
        if (opened.ok() && !session->run.empty()) {
          StatusOr<std::shared_ptr<RunResources>> of_run = runs_.Open(session->run);
          opened = of_run.status();
          if (opened.ok()) container = *std::move(of_run);
        }
        try {
          if (container != nullptr) session->devices = DevicesOf(container);
          if (session->isolated) {
            session->devices = MakeDevices();
          } else if (session->run.empty()) {
            session->devices = devices_;
          }
          session->functions = FunctionsOn(session->devices, session->kernels);
          if (opened.ok()) {
            if (terms.lease > absl::ZeroDuration()) {
              session->lease = leases_.Grant(session->handle, terms.lease);
            }
            MR_DCHECK(!session->devices.empty(),
                      "the devices of an open session are its run's, its own or the task's");
            sessions_.emplace(session->handle, session);
            runs_.NoteTrainer(session->run, session->opener.task);
          }
        } catch (...) {
          // A session that is not in the list is counted nowhere.
          leases_.Drop(session->handle);
          if (opened.ok() && !session->run.empty()) runs_.Close(session->run);
          throw;
        }
        if (opened.ok() && session->run.is_chief) {
          for (auto it = sessions_.begin(); it != sessions_.end();) {
            const auto old = it++;
            if (old->second->run.empty()) continue;
            if (const Status check = runs_.Check(old->second->run); !check.ok()) {
              BeginEnd(old, check);
            }
          }
        }
      }
    }
    FinishEnds();
    return opened;
  });
}

void Worker::BeginEnd(std::map<std::string, std::shared_ptr<Session>>::iterator it,
                      const Status& why) {
  MR_DCHECK(!why.ok(), "a session ends for a reason: its steps and its master hear it");
  std::shared_ptr<Session> session = std::move(it->second);
  sessions_.erase(it);
  session->life->End(why);
  last_ended_ = options_.clock->Now();
  if (session->lease != nullptr) leases_.Drop(session->handle);
  if (!session->run.empty()) runs_.Close(session->run);
  RememberEnd(session->handle, why);
  ending_.push_back(std::move(session));
}

void Worker::RememberEnd(const std::string& handle, const Status& why) {
  if (ended_.emplace(handle, why).second) ended_order_.push_back(handle);
  if (ended_order_.size() > kRememberedSessions) {
    ended_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

void Worker::FinishEnds() {
  std::vector<std::shared_ptr<Session>> ending;
  std::vector<std::pair<std::shared_ptr<WorkerStep>, Status>> steps;
  std::vector<RunRegistry::Freed> freed;
  {
    MutexLock lock(&mu_);
    ending.swap(ending_);
    for (const auto& [step, session] : running_) {
      for (const auto& over : ending) {
        if (over.get() == session)
          steps.emplace_back(step->shared_from_this(), over->life->ended());
      }
    }
    freed = runs_.TakeFreed();
  }
  for (const auto& [step, why] : steps) step->Cancel(why);
  // What sessions that are over have sent is nobody's to pull. After the steps: one that ends well
  // meanwhile is found here, or finds that it was cancelled.
  if (!ending.empty()) {
    steps_->DropOfEndedSessions();
  }
  for (const auto& session : ending) {
    // Plans may hold what belongs to the session.
    std::map<std::string, std::shared_ptr<RegisteredGraph>> graphs;
    {
      MutexLock lock(&session->mu);
      graphs.swap(session->graphs);
    }
    graphs.clear();
    for (const auto& device : session->devices) {
      device->resources->TellSessionEnded(session->handle);
    }
  }
  for (const RunRegistry::Freed& run : freed) {
    int64_t bytes = 0;
    const DeviceList& devices = DevicesOf(run.resources);
    for (const auto& device : devices) bytes += VariableBytes(*device->resources);
    for (const auto& device : devices) device->resources->ClearAll();
    LogInfo(options_.task, ": the container of run '", run.run.name, "' (", run.run.id,
            ") was freed, with ", bytes, " bytes of variables: ", run.reason);
  }
}

void Worker::EndSession(const std::string& handle, const Status& why) {
  {
    MutexLock lock(&mu_);
    const auto it = sessions_.find(handle);
    if (it == sessions_.end()) return;
    BeginEnd(it, why);
  }
  FinishEnds();
}

void Worker::LeaseExpired(const std::string& handle, absl::Duration silent) {
  {
    MutexLock lock(&mu_);
    const auto it = sessions_.find(handle);
    if (it == sessions_.end()) return;
    Session* const session = it->second.get();
    const bool is_running = std::any_of(running_.begin(), running_.end(),
                                        [session](const auto& r) { return r.second == session; });
    // Somebody waits for its step: a call whose client is gone is cancelled, and its step with it.
    if (is_running && session->lease != nullptr) {
      session->lease = leases_.Grant(handle, session->lease->time());
      return;
    }
  }
  LogInfo(options_.task, ": session ", handle, " ends: nobody has renewed its lease for ",
          absl::FormatDuration(silent));
  EndSession(handle, absl::AbortedError(
                         absl::StrCat("Session handle is not found: ", handle, ". Its lease on ",
                                      options_.task, " has expired: nobody renewed it for ",
                                      absl::FormatDuration(silent), "; open a new session")));
}

Status Worker::DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest& request) {
  const std::string& handle = request.session_handle();
  const Status closed = absl::AbortedError(
      absl::StrCat("Session handle is not found: ", Shown(handle), ". It has been closed."));
  {
    MutexLock lock(&mu_);
    if (const auto it = sessions_.find(handle); it != sessions_.end()) {
      BeginEnd(it, closed);
    } else if (handle.size() <= kMaxHandleBytes) {
      RememberEnd(handle, closed);
    }
  }
  FinishEnds();
  return absl::OkStatus();
}

std::vector<std::string> Worker::RenewSessions(absl::Span<const std::string> handles) {
  std::vector<std::string> unknown;
  MutexLock lock(&mu_);
  for (const std::string& handle : handles) {
    const auto it = sessions_.find(handle);
    if (it == sessions_.end()) {
      unknown.push_back(handle);
    } else if (it->second->lease != nullptr) {
      it->second->lease->Renew();
    }
  }
  return unknown;
}

// --- Runs ----------------------------------------------------------------------------------------

FoundRun Worker::FindRun(absl::string_view name, absl::string_view id) const {
  MutexLock lock(&mu_);
  FoundRun found = runs_.Find(name, id);
  // A caller that knows only the name waits for the run.
  if (found.state == FoundRun::State::kUnknown || !name.empty()) return found;
  std::set<std::string> open;
  for (const auto& [handle, session] : sessions_) {
    if (session->run.id != found.run.id || session->run.is_chief) continue;
    open.insert(session->opener.task);
  }
  found.trainers.assign(open.begin(), open.end());
  for (const std::string& task : runs_.TrainersOf(found.run.id)) {
    if (open.count(task) == 0) found.former_trainers.push_back(task);
  }
  return found;
}

Status Worker::EndRun(const std::string& session_handle, const RunEnd& end) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(session_handle));
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
  for (const auto& [handle, session] : sessions_) {
    if (session->run.empty()) return std::nullopt;
  }
  return runs_.FindFinished();
}

int64_t Worker::num_run_claims() const {
  MutexLock lock(&mu_);
  return runs_.num_claims();
}

void Worker::EndSessionsOfRun(const TrainingRun& run, const RunEnd& end) {
  {
    MutexLock lock(&mu_);
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      const auto old = it++;
      if (old->second->run.id == run.id) BeginEnd(old, RunEndedError(options_.task, run, end));
    }
  }
  FinishEnds();
}

// --- Graphs --------------------------------------------------------------------------------------

Status Worker::RegisterGraph(tensorflow::RegisterGraphRequest request, std::unique_ptr<Graph> graph,
                             tensorflow::RegisterGraphResponse* response) {
  return NoExceptions("RegisterGraph",
                      [&] { return RegisterOrThrow(&request, std::move(graph), response); });
}

Status Worker::RegisterOrThrow(tensorflow::RegisterGraphRequest* request,
                               std::unique_ptr<Graph> graph,
                               tensorflow::RegisterGraphResponse* response) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                      FindSession(request->session_handle()));
  {
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(takes_);
  }
  auto registered = std::make_shared<RegisteredGraph>();
  registered->num_bytes = static_cast<int64_t>(request->ByteSizeLong());
  const auto check_limits = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(session->mu) -> Status {
    const ServerLimits& limits = options_.limits;
    int64_t graphs = 1, bytes = registered->num_bytes;
    for (const auto& [handle, other] : session->graphs) {
      ++graphs;
      bytes += other->num_bytes;
    }
    const std::string where = absl::StrCat("RegisterGraph on ", options_.task);
    if (graphs > limits.max_graphs) {
      return BeyondLimit(where, "graphs of a session", "max_graphs", limits.max_graphs, graphs);
    }
    if (bytes <= limits.max_graph_bytes) return absl::OkStatus();
    return BeyondLimit(where, "bytes of a session's graphs", "max_graph_bytes",
                       limits.max_graph_bytes, bytes);
  };
  {
    MutexLock lock(&session->mu);
    MR_RETURN_IF_ERROR(check_limits());
  }
  const PlanOwner owner = {session->devices, session->kernels, session->functions, session->run.id,
                           session->isolated};
  std::vector<tensorflow::NodeDef> transfers;
  if (graph != nullptr) {
    transfers = TransfersIn(*graph);
    MR_ASSIGN_OR_RETURN(registered->plan, plans_.Build(std::move(graph), owner));
  } else {
    transfers = TransfersIn(request->graph_def());
    MR_ASSIGN_OR_RETURN(registered->plan,
                        plans_.FindOrBuild(std::move(*request->mutable_graph_def()), owner));
    registered->transfers = transfers;
  }
  StatusOr<StepEdges> edges = StepEdges::Of(*registered->plan->graph, transfers,
                                            TransfersOf(registered->plan->parts), options_.task);
  MR_RETURN_IF_ERROR(edges.status());
  registered->edges = std::make_shared<const StepEdges>(*std::move(edges));
  const std::string handle = RandomHexName();
  MutexLock lock(&session->mu);
  MR_RETURN_IF_ERROR(check_limits());
  session->graphs[handle] = std::move(registered);
  response->set_graph_handle(handle);
  return absl::OkStatus();
}

Status Worker::DeregisterGraph(const tensorflow::DeregisterGraphRequest& request) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                      FindSession(request.session_handle()));
  std::shared_ptr<RegisteredGraph> dropped;
  MutexLock lock(&session->mu);
  const auto it = session->graphs.find(request.graph_handle());
  if (it == session->graphs.end()) {
    return absl::AbortedError(
        absl::StrCat("Graph handle is not found: ", Shown(request.graph_handle())));
  }
  dropped = std::move(it->second);
  session->graphs.erase(it);
  return absl::OkStatus();
}

void Worker::RunGraph(const tensorflow::RunGraphRequest& graph,
                      const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send,
                      bool block, absl::Time deadline, CancellationManager* cancellation,
                      tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
                      Transport::Done done) {
  std::shared_ptr<Session> session;
  const auto find = [&]() -> StatusOr<std::shared_ptr<RegisteredGraph>> {
    MR_RETURN_IF_ERROR(FailPoint("worker/run_graph"));
    MR_ASSIGN_OR_RETURN(session, FindSession(graph.session_handle()));
    MutexLock lock(&session->mu);
    const auto it = session->graphs.find(graph.graph_handle());
    if (it == session->graphs.end()) {
      return absl::AbortedError(
          absl::StrCat("Graph handle is not found: ", Shown(graph.graph_handle())));
    }
    return it->second;
  };
  std::shared_ptr<WorkerStep> run;
  const Status status = NoExceptions("RunGraph", [&]() -> Status {
    StatusOr<std::shared_ptr<RegisteredGraph>> registered = find();
    // Tasks that wait for this one's tensors must hear of it too.
    const auto refuse = [&](const Status& why) {
      const std::shared_ptr<StepRendezvous> expected = steps_->FindOrExpect(step.step_id());
      steps_->End(expected.get(), Derived(why));
      return why;
    };
    if (!registered.ok()) return refuse(registered.status());
    run = std::make_shared<WorkerStep>(&options_, steps_, *std::move(registered),
                                       graph.session_handle(), session->life, step.step_id(),
                                       [this](WorkerStep* ended) { StepEnded(ended); });
    Status ended;
    {
      MutexLock lock(&mu_);
      MR_RETURN_IF_ERROR(shut_down_);
      ended = session->life->ended();  // since it was found
      if (ended.ok()) ended = takes_;
      if (ended.ok()) running_.emplace(run.get(), session.get());
    }
    return ended.ok() ? ended : refuse(ended);
  });
  if (!status.ok()) return done(status);
  run->Start(step, send, block, deadline, cancellation, response, received, std::move(done));
}

void Worker::StepEnded(WorkerStep* run) {
  MutexLock lock(&mu_);
  const size_t erased = running_.erase(run);
  MR_DCHECK(erased == 1, "RunGraph lists a step before it starts, and it ends once");
  step_ended_.SignalAll();
}

Status Worker::CleanupGraph(int64_t step_id) {
  steps_->Cleanup(step_id, absl::AbortedError(absl::StrCat("Cleanup ", step_id)));
  return absl::OkStatus();
}

Status Worker::CheckMayClear(absl::string_view method, absl::Span<const std::string> containers,
                             int master_sessions) const {
  const auto refuse = [&](const auto&... got) {
    return absl::PermissionDeniedError(absl::StrCat(
        method, " on ", options_.task, ": who clears variables must be a member of the cluster, ",
        "who shows a token (MILLRACE_TOKEN_FILE) or a certificate, or nobody's variables may be ",
        "there, got a caller that need not show either, and ", got...));
  };
  MutexLock lock(&mu_);
  const int open = std::max(master_sessions, static_cast<int>(sessions_.size()));
  if (open > 0) return refuse(open, " open sessions");
  for (const std::string& container : containers) {
    if (runs_.ContainerOf(container) != nullptr) {
      return refuse("container '", Shown(container), "', which belongs to a training run");
    }
  }
  const absl::Duration ago = options_.clock->Now() - last_ended_;
  if (ago >= options_.run_linger) return absl::OkStatus();
  return refuse("a session that ended ", absl::FormatDuration(absl::Trunc(ago, absl::Seconds(1))),
                " ago, of the ", absl::FormatDuration(options_.run_linger),
                " (ServerOptions::run_linger) in which its client may come again");
}

Status Worker::CleanupAll(absl::Span<const std::string> containers) {
  for (const auto& device : devices_) {
    if (containers.empty()) device->resources->ClearContainer("");
    for (const std::string& container : containers) device->resources->ClearContainer(container);
  }
  for (const std::string& container : containers) {
    std::shared_ptr<RunResources> of_run;
    {
      MutexLock lock(&mu_);
      of_run = runs_.ContainerOf(container);
    }
    if (of_run == nullptr) continue;
    for (const auto& device : DevicesOf(of_run)) device->resources->ClearAll();
  }
  return absl::OkStatus();
}

Status Worker::CheckIncarnation(uint64_t expected) const {
  for (const auto& device : devices_) {
    if (device->incarnation == expected) return absl::OkStatus();
  }
  return absl::AbortedError(absl::StrCat(
      "RecvTensor expects a different device incarnation: ", expected, " vs. ",
      devices_[0]->incarnation, ". Your worker job (\"", options_.task,
      "\") was probably restarted; variables there are lost, restore from a checkpoint"));
}

void Worker::RecvTensor(const tensorflow::RecvTensorRequest& request,
                        CancellationManager* cancellation,
                        absl::AnyInvocable<void(const Status&, Tensor, bool)> done) {
  const StatusOr<RendezvousKey> key = RendezvousKey::Parse(request.rendezvous_key());
  Status status = key.status();
  if (status.ok()) status = CheckIncarnation(key->src_incarnation);
  if (status.ok() && request.request_id() != 0) {
    MutexLock lock(&mu_);
    if (!request_ids_.insert(request.request_id()).second) {
      status = absl::AbortedError("The same RecvTensor (GrpcWorker) request was received twice.");
    } else {
      request_order_.push_back(request.request_id());
      if (request_order_.size() > kTrackedRequests) {
        request_ids_.erase(request_order_.front());
        request_order_.pop_front();
      }
    }
  }
  if (!status.ok()) return done(status, Tensor(), false);
  steps_->FindOrExpect(request.step_id())
      ->ServeTensor(request.rendezvous_key(), cancellation, std::move(done));
}

void Worker::Pull(const PullRequest& request, std::shared_ptr<PullSink> sink,
                  CancellationManager* cancellation) {
  const Status status = CheckIncarnation(request.src_incarnation);
  if (!status.ok()) return sink->OnDone(status);
  steps_->FindOrExpect(request.step_id)->ServePull(request, std::move(sink), cancellation);
}

std::vector<Worker::OpenedSession> Worker::OpenSessions() const {
  std::vector<OpenedSession> result;
  MutexLock lock(&mu_);
  for (const auto& [handle, session] : sessions_) {
    OpenedSession& opened = result.emplace_back();
    opened.handle = handle;
    opened.master_task = session->opener.task;
    opened.incarnation = session->opener.incarnation;
    for (const auto& [run, of] : running_) opened.running_steps += of == session.get() ? 1 : 0;
  }
  return result;
}

void Worker::StopOpening(const Status& status) {
  MutexLock lock(&mu_);
  if (opens_.ok()) opens_ = status;
}

void Worker::StopTaking(const Status& status) {
  MutexLock lock(&mu_);
  if (opens_.ok()) opens_ = status;
  if (takes_.ok()) takes_ = status;
}

bool Worker::AwaitSteps(absl::Time deadline) {
  MutexLock lock(&mu_);
  while (!running_.empty() && options_.clock->Now() < deadline) {
    options_.clock->WaitUntil(&step_ended_, &mu_, deadline);
  }
  return running_.empty();
}

std::vector<std::shared_ptr<WorkerStep>> Worker::RunningSteps() const {
  std::vector<std::shared_ptr<WorkerStep>> running;
  MutexLock lock(&mu_);
  for (const auto& [run, session] : running_) {
    // One that has just ended waits for the lock to say so.
    if (auto step = run->weak_from_this().lock()) running.push_back(std::move(step));
  }
  return running;
}

void Worker::Shutdown(const Status& status) {
  leases_.Stop();
  {
    MutexLock lock(&mu_);
    if (shut_down_.ok()) shut_down_ = status;
  }
  for (const auto& run : RunningSteps()) run->Cancel(status);
  steps_->AbortAll(status);
  const absl::Time deadline = options_.clock->Now() + options_.shutdown_bound;
  if (AwaitSteps(deadline - std::min(kAnswerTime, options_.shutdown_bound / 2))) return;
  std::vector<std::pair<std::shared_ptr<WorkerStep>, Status>> overdue;
  for (auto& run : RunningSteps()) {
    const Status waits = run->EndOverdue();
    overdue.emplace_back(std::move(run), waits);
  }
  if (AwaitSteps(deadline)) return;
  for (const auto& run : RunningSteps()) {
    const auto it = std::find_if(overdue.begin(), overdue.end(),
                                 [&run](const auto& entry) { return entry.first == run; });
    LogWarning(options_.task, ": ", run->Name(), " has not ended ",
               absl::FormatDuration(options_.shutdown_bound), " after it was cancelled (",
               it == overdue.end() ? "" : it->second.message(), "); it is left behind");
    run->LeaveSilent();
  }
}

int Worker::num_sessions() const {
  MutexLock lock(&mu_);
  return static_cast<int>(sessions_.size());
}

}  // namespace millrace

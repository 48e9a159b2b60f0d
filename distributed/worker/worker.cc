// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/deterministic_bytes.h"
#include "core/exceptions.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/sha256.h"
#include "distributed/server_limits.h"
#include "distributed/transport/session_terms.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/worker_step.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "graph/place/device_name.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "runtime/device.h"
#include "runtime/executor.h"
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
// TensorFlow's masters and ours make 16. Whoever opens sessions decides how much is remembered.
constexpr size_t kMaxHandleBytes = 256;

bool IsTransfer(const tensorflow::NodeDef& node) {
  return node.op() == "_Send" || node.op() == "_HostSend" || node.op() == "_Recv" ||
         node.op() == "_HostRecv";
}

// A handle that is not ours may have any length, and messages about it are kept.
absl::string_view Shown(absl::string_view handle) { return handle.substr(0, kMaxHandleBytes); }

// The partition with other tasks named by the order in which they appear, so that partitions made
// for different workers are equal. Their incarnations are left out.
Status MakeCanonical(absl::string_view own_task, tensorflow::GraphDef* graph) {
  std::map<std::string, std::string> names;  // task -> job name that stands for it
  for (tensorflow::NodeDef& node : *graph->mutable_node()) {
    if (!IsTransfer(node)) continue;
    for (const char* attr : {"send_device", "recv_device"}) {
      MR_ASSIGN_OR_RETURN(const std::string device, GetAttr<std::string>(node, attr));
      MR_ASSIGN_OR_RETURN(const std::string task, TaskOfDevice(device));
      if (task == own_task) continue;
      MR_ASSIGN_OR_RETURN(DeviceName name, DeviceName::Parse(device));
      std::string& job = names[task];
      if (job.empty()) job = absl::StrCat("peer", names.size() - 1);
      name.job = job;
      name.replica = 0;
      name.task = 0;
      SetAttr(name.ToString(), &(*node.mutable_attr())[attr]);
      if (absl::string_view(attr) == "send_device") {
        SetAttr(int64_t{0}, &(*node.mutable_attr())["send_device_incarnation"]);
      }
    }
  }
  return absl::OkStatus();
}

// The state of its stateful nodes lives in resources, where every plan finds it, and not in
// kernels.
bool KeepsStateInResources(const Graph& graph) {
  // Whatever is in a function.
  for (const auto& function : graph.library().functions()) {
    if (graph.library().IsStateful(*function)) return false;
  }
  const auto is_resource = [](DType t) { return t == DT_RESOURCE || IsRef(t); };
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || !node->is_stateful() || absl::StartsWith(node->op(), "_")) continue;
    const auto inputs = node->input_types(), outputs = node->output_types();
    if (std::none_of(inputs.begin(), inputs.end(), is_resource) &&
        std::none_of(outputs.begin(), outputs.end(), is_resource)) {
      return false;
    }
  }
  return true;
}

std::shared_ptr<FunctionRuntime> FunctionsOn(const DeviceList& devices,
                                             std::shared_ptr<KernelStore> kernels) {
  return FunctionRuntime::Make(tensorflow::ConfigProto(), devices, std::move(kernels));
}

// What StepEdges need of a graph: all nodes and edges, attrs of those that transfer.
tensorflow::GraphDef EdgesOf(const tensorflow::GraphDef& graph) {
  tensorflow::GraphDef def;
  for (const tensorflow::NodeDef& node : graph.node()) {
    tensorflow::NodeDef* const copy = def.add_node();
    if (IsTransfer(node)) {
      *copy = node;
    } else {
      copy->set_name(node.name());
      copy->set_op(node.op());
      *copy->mutable_input() = node.input();
    }
  }
  return def;
}
tensorflow::GraphDef EdgesOf(const Graph& graph) {
  tensorflow::GraphDef def;
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    if (node->is_send() || node->is_recv()) {
      *def.add_node() = graph.NodeToDef(*node);
      continue;
    }
    tensorflow::NodeDef* const copy = def.add_node();
    copy->set_name(node->name());
    copy->set_op(node->op());
    for (const OutputRef& input : node->inputs()) {
      if (input.node != nullptr) copy->add_input(TensorNameString(*input.node, input.index));
    }
    for (const Node* control : node->control_inputs()) {
      copy->add_input(absl::StrCat("^", control->name()));
    }
  }
  return def;
}

// The same for equal graphs, and nobody can make a graph with that of another. The bytes of large
// constants are read where they are: a copy of them would be the largest thing in the process.
// `graph` is left as it was, unless this fails.
StatusOr<std::string> DigestOf(tensorflow::GraphDef* graph) {
  std::vector<std::pair<std::string*, std::string>> taken;  // place, content
  std::string large;                                        // whose contents, and their digests
  for (int i = 0; i < graph->node_size(); ++i) {
    tensorflow::NodeDef& node = *graph->mutable_node(i);
    const auto value = node.mutable_attr()->find("value");
    if (value == node.mutable_attr()->end() || !value->second.has_tensor()) continue;
    std::string* const content = value->second.mutable_tensor()->mutable_tensor_content();
    if (content->size() < kDetachedConstantBytes) continue;
    MR_ASSIGN_OR_RETURN(const std::string digest, Sha256(*content));
    absl::StrAppend(&large, i, ":", digest);
    taken.emplace_back(content, std::string());
    content->swap(taken.back().second);
  }
  const std::string bytes = DeterministicBytes(*graph);
  for (auto& [place, content] : taken) place->swap(content);
  if (bytes.empty() && graph->node_size() > 0) {
    return InvalidArgument(
        "RegisterGraph: a graph without its large constants must be below 2 GiB");
  }
  MR_ASSIGN_OR_RETURN(const std::string of_large, Sha256(large));
  MR_ASSIGN_OR_RETURN(const std::string of_rest, Sha256(bytes));
  return of_large + of_rest;
}

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
        if (opened.ok() && !session->run.empty()) {
          const auto container = runs_.Open(session->run);
          opened = container.status();
          if (opened.ok()) session->devices = DevicesOf(*container);
        }
        try {
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
  // Who asks by the name only waits for the run.
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

StatusOr<std::shared_ptr<const WorkerPlan>> Worker::FindOrBuildPlan(tensorflow::GraphDef canonical,
                                                                    Session* session) {
  MR_ASSIGN_OR_RETURN(std::string digest, DigestOf(&canonical));
  // Plans know their devices, and those of a run are its own. A step may keep a plan longer than
  // the run's container lives: the devices must be those of the one that is there now.
  absl::StrAppend(&digest, session->run.id);
  if (!session->isolated) {
    MutexLock lock(&mu_);
    const auto it = plans_.find(digest);
    if (it != plans_.end()) {
      auto plan = it->second.lock();
      if (plan != nullptr && plan->devices == session->devices) return plan;
    }
  }
  auto graph = std::make_unique<Graph>();
  ImportOptions import;
  import.allow_internal_names = true;
  MR_RETURN_IF_ERROR(ImportGraphDef(std::move(canonical), import, graph.get()));
  for (const auto& node : graph->nodes()) {
    if (node != nullptr) node->set_assigned_device(node->requested_device());
  }
  const bool shared = !session->isolated && KeepsStateInResources(*graph);
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const WorkerPlan> plan,
                      BuildPlan(std::move(graph), session, shared));
  if (shared) {
    MutexLock lock(&mu_);
    std::weak_ptr<const WorkerPlan>& place = plans_[digest];
    // Somebody else may have been faster.
    auto other = place.lock();
    if (other != nullptr && other->devices == plan->devices) return other;
    place = plan;
    for (auto it = plans_.begin(); it != plans_.end();) {
      it = it->second.expired() ? plans_.erase(it) : std::next(it);
    }
  }
  return plan;
}

StatusOr<std::shared_ptr<const WorkerPlan>> Worker::BuildPlan(std::unique_ptr<const Graph> own,
                                                              Session* session, bool shared) {
  const Graph& graph = *own;
  const auto find_device = [session](absl::string_view name) -> Device* {
    for (const auto& device : session->devices) {
      if (device->name == name) return device.get();
    }
    return nullptr;
  };
  std::vector<DeviceInfo> devices;
  for (const auto& device : session->devices) {
    devices.push_back({device->name, device->type, device->incarnation});
  }
  auto plan = std::make_shared<WorkerPlan>();
  plan->devices = session->devices;
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    if (find_device(node->assigned_device()) == nullptr) {
      return InvalidArgument("RegisterGraph on ", options_.task, ": node '", node->name(),
                             "' must be placed on a device of this task, got '",
                             node->assigned_device(), "'");
    }
    int* const places = node->op() == "_Arg"      ? &plan->num_args
                        : node->op() == "_Retval" ? &plan->num_results
                                                  : nullptr;
    if (places == nullptr) continue;
    MR_ASSIGN_OR_RETURN(const int64_t index, GetAttr<int64_t>(node->def(), "index"));
    if (index >= kMaxNodeArgs) {
      return InvalidArgument("RegisterGraph on ", options_.task, ": node '", node->name(),
                             "': index must be below ", kMaxNodeArgs, ", got ", index);
    }
    *places = std::max(*places, static_cast<int>(index) + 1);
  }
  const PartitionOptions cut = PartitionOptionsFor(CutBy::kDeviceOfTask, devices);
  MR_ASSIGN_OR_RETURN(const GraphPartitions parts, PartitionGraph(graph, cut));
  for (const auto& [name, part] : parts) FillIncarnations(part.get(), cut.get_incarnation);
  plan->functions = session->functions;
  if (shared && !graph.library().empty()) {
    plan->functions = FunctionsOn(plan->devices, std::make_shared<KernelStore>());
  }
  MR_ASSIGN_OR_RETURN(plan->parts,
                      BuildParts(parts, find_device, shared ? nullptr : session->kernels.get(),
                                 plan->functions.get(), nullptr));
  plan->graph = std::move(own);
  return std::shared_ptr<const WorkerPlan>(std::move(plan));
}

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
  StatusOr<StepEdges> edges;
  if (graph != nullptr) {
    const tensorflow::GraphDef wire = EdgesOf(*graph);
    MR_ASSIGN_OR_RETURN(registered->plan,
                        BuildPlan(std::move(graph), session.get(), /*shared=*/false));
    edges = StepEdges::Of(wire, TransfersOf(registered->plan->parts), options_.task);
  } else {
    tensorflow::GraphDef canonical = std::move(*request->mutable_graph_def());
    const tensorflow::GraphDef wire = EdgesOf(canonical);
    MR_RETURN_IF_ERROR(MakeCanonical(options_.task, &canonical));
    for (const tensorflow::NodeDef& node : wire.node()) {
      if (IsTransfer(node)) registered->transfers.push_back(node);
    }
    MR_ASSIGN_OR_RETURN(registered->plan, FindOrBuildPlan(std::move(canonical), session.get()));
    edges = StepEdges::Of(wire, TransfersOf(registered->plan->parts), options_.task);
  }
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
  running_.erase(run);
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
        "there, got a caller of whom neither is asked, and ", got...));
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

int Worker::num_plans() const {
  MutexLock lock(&mu_);
  return static_cast<int>(std::count_if(plans_.begin(), plans_.end(),
                                        [](const auto& p) { return !p.second.expired(); }));
}

}  // namespace millrace

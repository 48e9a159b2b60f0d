// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/fail_point.h"
#include "core/hash64.h"
#include "core/random_bits.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/partition.h"
#include "runtime/executor.h"
#include "runtime/plan.h"
#include "runtime/step_stats.h"

namespace millrace {
namespace {

constexpr size_t kTrackedRequests = 100'000;

std::string SerializeDeterministic(const tensorflow::GraphDef& graph) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.SetSerializationDeterministic(true);
  graph.SerializePartialToCodedStream(&out);
  out.Trim();
  return bytes;
}

bool IsTransfer(const tensorflow::NodeDef& node) {
  return node.op() == "_Send" || node.op() == "_HostSend" || node.op() == "_Recv" ||
         node.op() == "_HostRecv";
}

// The partition with other tasks named by the order in which they appear, so that partitions made
// for different workers are equal. Their incarnations are left out.
Status MakeCanonical(absl::string_view own_task, tensorflow::GraphDef* graph) {
  std::map<std::string, std::string> names;  // task -> job name that stands for it
  for (tensorflow::NodeDef& node : *graph->mutable_node()) {
    if (!IsTransfer(node)) continue;
    for (const char* attr : {"send_device", "recv_device"}) {
      ASSIGN_OR_RETURN(const std::string device, GetAttr<std::string>(node, attr));
      ASSIGN_OR_RETURN(const std::string task, TaskOfDevice(device));
      if (task == own_task) continue;
      ASSIGN_OR_RETURN(DeviceName name, DeviceName::Parse(device));
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
  const auto is_resource = [](DType t) { return t == DT_RESOURCE || IsRef(t); };
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || !node->is_stateful() || IsTransfer(node->def())) continue;
    const auto inputs = node->input_types(), outputs = node->output_types();
    if (std::none_of(inputs.begin(), inputs.end(), is_resource) &&
        std::none_of(outputs.begin(), outputs.end(), is_resource)) {
      return false;
    }
  }
  return true;
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

}  // namespace

struct Worker::Session {
  std::string handle;
  Opener opener;
  std::vector<std::shared_ptr<Device>> devices;
  bool isolated = false;
  KernelStore kernels;

  Mutex mu;
  std::map<std::string, std::shared_ptr<RegisteredGraph>> graphs ABSL_GUARDED_BY(mu);
};

struct Worker::SharedPlan {
  struct Part {
    Device* device;
    std::unique_ptr<Executor> executor;
  };
  std::vector<std::shared_ptr<Device>> devices;  // keeps those of `parts`
  std::vector<Part> parts;
};

struct Worker::RegisteredGraph {
  std::shared_ptr<const SharedPlan> plan;
  std::shared_ptr<const StepEdges> edges;
  tensorflow::GraphDef graph;  // for RunMetadata.partition_graphs
};

// One RunGraph. Kept by the executors' callbacks until the last of them has come.
class Worker::StepRun : public std::enable_shared_from_this<StepRun> {
 public:
  StepRun(Worker* worker, std::shared_ptr<RegisteredGraph> graph, const std::string& session,
          int64_t step_id)
      : worker_(worker),
        graph_(std::move(graph)),
        step_resources_(absl::StrCat(worker->options_.task, "/step")) {
    contexts_.resize(graph_->plan->parts.size());
    for (size_t i = 0; i < contexts_.size(); ++i) {
      StepContext& context = contexts_[i];
      context.step_id = step_id;
      context.device = graph_->plan->parts[i].device;
      context.cancellation = &cancellation_;
      context.arena = worker->options_.arena;
      context.io_pool = worker->options_.io_pool;
      context.step_resources = &step_resources_;
      context.session_handle = session;
    }
  }

  void Start(const tensorflow::RunGraphRequest& request, absl::Span<const NamedTensor> send,
             bool block, absl::Time deadline, CancellationManager* cancellation,
             tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
             Transport::Done done);
  // The step ends with `status`, unless it fails by itself first.
  void Cancel(const Status& status);

 private:
  Status Prepare(const tensorflow::RunGraphRequest& request, absl::Span<const NamedTensor> send);
  void AskPeers();
  void Execute(bool block, absl::Time deadline);
  void PartEnded(const Status& status);
  void Finish();
  void CollectResults();
  Status CollectResult(const std::string& wire_key);

  Worker* const worker_;
  const std::shared_ptr<RegisteredGraph> graph_;
  std::shared_ptr<StepRendezvous> rendezvous_;  // set once, under mu_, before anything runs
  CancellationManager cancellation_;
  ResourceManager step_resources_;
  std::vector<StepContext> contexts_;
  std::unique_ptr<StepStatsCollector> stats_;
  bool record_graphs_ = false;
  std::vector<std::string> recv_keys_;
  tensorflow::RunGraphResponse* response_ = nullptr;
  std::vector<NamedTensor>* received_ = nullptr;
  Transport::Done done_;
  CancellationManager* outer_ = nullptr;
  CancellationManager::Token outer_token_ = 0;
  std::atomic<int> parts_left_{0};  // acq_rel: the last part finishes the run

  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
  Status cancelled_with_ ABSL_GUARDED_BY(mu_);
};

// Puts what a peer sends into the step's rendezvous.
class Worker::IncomingPull : public PullSink {
 public:
  IncomingPull(std::shared_ptr<StepRendezvous> rendezvous, std::shared_ptr<const StepEdges> edges,
               const StepEdges::Peer* peer)
      : rendezvous_(std::move(rendezvous)), edges_(std::move(edges)), peer_(peer) {}
  void OnTensor(uint64_t index, Tensor value, bool is_dead) override {
    received_.fetch_add(1, std::memory_order_relaxed);
    if (index >= peer_->keys.size()) {
      return rendezvous_->StartAbort(absl::InternalError(
          absl::StrCat("Pull from ", peer_->task, ": a tensor's number must be below ",
                       peer_->keys.size(), ", got ", index)));
    }
    // An error means that the step was aborted, which says why.
    rendezvous_->Send(peer_->keys[index], std::move(value), is_dead).IgnoreError();
  }
  void OnDone(const Status& status) override {
    if (!status.ok()) return rendezvous_->StartAbort(status);
    const size_t received = received_.load(std::memory_order_relaxed);
    if (received < peer_->keys.size()) {
      rendezvous_->StartAbort(
          absl::InternalError(absl::StrCat("Pull from ", peer_->task, ": all ", peer_->keys.size(),
                                           " tensors must arrive, got ", received)));
    }
  }

 private:
  const std::shared_ptr<StepRendezvous> rendezvous_;
  const std::shared_ptr<const StepEdges> edges_;
  const StepEdges::Peer* const peer_;  // in *edges_
  std::atomic<size_t> received_{0};    // relaxed: OnDone comes after every OnTensor
};

// --- Worker --------------------------------------------------------------------------------------

Worker::Worker(WorkerOptions options)
    : options_(std::move(options)), steps_(std::make_shared<StepTable>(options_.clock)) {
  for (int i = 0; i < std::max(options_.num_cpu_devices, 1); ++i) {
    auto device = std::make_shared<Device>();
    device->name = absl::StrCat(options_.task, "/device:CPU:", i);
    device->type = "CPU";
    device->incarnation = RandomUint64();
    device->resources = std::make_unique<ResourceManager>(device->name);
    devices_.push_back(std::move(device));
  }
}

Worker::~Worker() { Shutdown(absl::AbortedError("Shutdown")); }

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

StatusOr<std::shared_ptr<Worker::Session>> Worker::FindSession(const std::string& handle) const {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(shut_down_);
  const auto it = sessions_.find(handle);
  if (it == sessions_.end()) {
    return absl::AbortedError(absl::StrCat("Session handle is not found: ", handle,
                                           ". Possibly this worker (\"", options_.task,
                                           "\") just restarted."));
  }
  return it->second;
}

Status Worker::CreateWorkerSession(const tensorflow::CreateWorkerSessionRequest& request) {
  auto session = std::make_shared<Session>();
  session->handle = request.session_handle();
  session->opener = Opener::Of(request);
  session->isolated = request.isolate_session_state();
  for (const auto& shared : devices_) {
    if (!session->isolated) {
      session->devices.push_back(shared);
      continue;
    }
    auto own = std::make_shared<Device>();
    own->name = shared->name;
    own->type = shared->type;
    own->incarnation = shared->incarnation;
    own->resources = std::make_unique<ResourceManager>(own->name);
    session->devices.push_back(std::move(own));
  }
  std::vector<std::shared_ptr<Session>> ended;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(shut_down_);
    for (auto it = sessions_.begin(); it != sessions_.end();) {
      if (it->second->opener.IsEarlierLifeOf(session->opener)) {
        ended.push_back(std::move(it->second));
        it = sessions_.erase(it);
      } else {
        ++it;
      }
    }
    // A second call of one master is a retry of the first.
    sessions_.emplace(session->handle, std::move(session));
  }
  for (const auto& old : ended) DropGraphs(old.get());
  return absl::OkStatus();
}

// When the session is in the list no more: plans may hold what belongs to it.
void Worker::DropGraphs(Session* session) {
  std::map<std::string, std::shared_ptr<RegisteredGraph>> graphs;
  MutexLock lock(&session->mu);
  graphs.swap(session->graphs);
}

Status Worker::DeleteWorkerSession(const tensorflow::DeleteWorkerSessionRequest& request) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    const auto it = sessions_.find(request.session_handle());
    if (it == sessions_.end()) return absl::OkStatus();
    session = std::move(it->second);
    sessions_.erase(it);
  }
  DropGraphs(session.get());
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<const Worker::SharedPlan>> Worker::FindOrBuildPlan(
    const tensorflow::GraphDef& canonical, Session* session) {
  const std::string bytes = SerializeDeterministic(canonical);
  const std::pair<uint64_t, uint64_t> fingerprint(Hash64(bytes), Hash64(bytes, bytes.size()));
  if (!session->isolated) {
    MutexLock lock(&mu_);
    const auto it = plans_.find(fingerprint);
    if (it != plans_.end()) {
      if (auto plan = it->second.lock()) return plan;
    }
  }
  Graph graph;
  ImportOptions import;
  import.allow_internal_names = true;
  RETURN_IF_ERROR(ImportGraphDef(canonical, import, &graph));
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    node->set_assigned_device(node->requested_device());
    const bool known =
        std::any_of(session->devices.begin(), session->devices.end(),
                    [&](const auto& d) { return d->name == node->assigned_device(); });
    if (!known) {
      return absl::InvalidArgumentError(absl::StrCat(
          "RegisterGraph on ", options_.task, ": node '", node->name(),
          "' must be placed on a device of this task, got '", node->assigned_device(), "'"));
    }
  }
  const auto incarnation = [session](absl::string_view name) -> uint64_t {
    for (const auto& device : session->devices) {
      if (device->name == name) return device->incarnation;
    }
    return 0;
  };
  const bool shared = !session->isolated && KeepsStateInResources(graph);
  auto plan = std::make_shared<SharedPlan>();
  plan->devices = session->devices;
  PartitionOptions partition;
  partition.new_name_mark = std::string("_G");
  partition.get_incarnation = incarnation;
  ASSIGN_OR_RETURN(GraphPartitions parts, PartitionGraph(graph, partition));
  for (const auto& [name, part] : parts) {
    FillIncarnations(part.get(), incarnation);
    const auto device = std::find_if(session->devices.begin(), session->devices.end(),
                                     [&, &n = name](const auto& d) { return d->name == n; });
    ASSIGN_OR_RETURN(std::shared_ptr<const Plan> built,
                     Plan::Build(*part, device->get(), shared ? nullptr : &session->kernels));
    ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor, Executor::Make(std::move(built)));
    plan->parts.push_back({device->get(), std::move(executor)});
  }
  if (shared) {
    MutexLock lock(&mu_);
    std::weak_ptr<const SharedPlan>& place = plans_[fingerprint];
    // Somebody else may have been faster.
    if (auto other = place.lock()) return other;
    place = plan;
    for (auto it = plans_.begin(); it != plans_.end();) {
      it = it->second.expired() ? plans_.erase(it) : std::next(it);
    }
  }
  return std::shared_ptr<const SharedPlan>(std::move(plan));
}

Status Worker::RegisterGraph(const tensorflow::RegisterGraphRequest& request,
                             tensorflow::RegisterGraphResponse* response) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  tensorflow::GraphDef canonical = request.graph_def();
  RETURN_IF_ERROR(MakeCanonical(options_.task, &canonical));
  auto registered = std::make_shared<RegisteredGraph>();
  registered->graph = request.graph_def();
  ASSIGN_OR_RETURN(registered->plan, FindOrBuildPlan(canonical, session.get()));
  ASSIGN_OR_RETURN(StepEdges edges, StepEdges::Of(registered->graph, canonical, options_.task));
  registered->edges = std::make_shared<const StepEdges>(std::move(edges));
  const std::string handle = RandomHexName();
  MutexLock lock(&session->mu);
  session->graphs[handle] = std::move(registered);
  response->set_graph_handle(handle);
  return absl::OkStatus();
}

Status Worker::DeregisterGraph(const tensorflow::DeregisterGraphRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  std::shared_ptr<RegisteredGraph> dropped;
  MutexLock lock(&session->mu);
  const auto it = session->graphs.find(request.graph_handle());
  if (it == session->graphs.end()) {
    return absl::AbortedError(absl::StrCat("Graph handle is not found: ", request.graph_handle()));
  }
  dropped = std::move(it->second);
  session->graphs.erase(it);
  return absl::OkStatus();
}

void Worker::RunGraph(const tensorflow::RunGraphRequest& request,
                      absl::Span<const NamedTensor> send, bool block, absl::Time deadline,
                      CancellationManager* cancellation, tensorflow::RunGraphResponse* response,
                      std::vector<NamedTensor>* received, Transport::Done done) {
  const auto find = [&]() -> StatusOr<std::shared_ptr<RegisteredGraph>> {
    RETURN_IF_ERROR(FailPoint("worker/run_graph"));
    ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
    MutexLock lock(&session->mu);
    const auto it = session->graphs.find(request.graph_handle());
    if (it == session->graphs.end()) {
      return absl::AbortedError(
          absl::StrCat("Graph handle is not found: ", request.graph_handle()));
    }
    return it->second;
  };
  StatusOr<std::shared_ptr<RegisteredGraph>> graph = find();
  if (!graph.ok()) {
    // Tasks that wait for this one's tensors must hear of it too.
    const std::shared_ptr<StepRendezvous> step = steps_->FindOrExpect(request.step_id());
    steps_->End(step.get(), Derived(graph.status()));
    return done(graph.status());
  }
  auto run = std::make_shared<StepRun>(this, *std::move(graph), request.session_handle(),
                                       request.step_id());
  Status refused;
  {
    MutexLock lock(&mu_);
    refused = shut_down_;
    if (refused.ok()) running_.insert(run.get());
  }
  if (!refused.ok()) return done(refused);
  run->Start(request, send, block, deadline, cancellation, response, received, std::move(done));
}

void Worker::RunEnded(StepRun* run) {
  MutexLock lock(&mu_);
  running_.erase(run);
  run_ended_.SignalAll();
}

Status Worker::CleanupGraph(int64_t step_id) {
  steps_->Cleanup(step_id, absl::AbortedError(absl::StrCat("Cleanup ", step_id)));
  return absl::OkStatus();
}

Status Worker::CleanupAll(absl::Span<const std::string> containers) {
  for (const auto& device : devices_) {
    if (containers.empty()) device->resources->ClearContainer("");
    for (const std::string& container : containers) device->resources->ClearContainer(container);
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

Status Worker::Push(int64_t step_id, absl::Span<const NamedTensor> tensors) {
  return steps_->Push(step_id, tensors);
}

void Worker::Shutdown(const Status& status) {
  std::vector<std::shared_ptr<StepRun>> running;
  {
    MutexLock lock(&mu_);
    if (shut_down_.ok()) shut_down_ = status;
    for (StepRun* run : running_) running.push_back(run->shared_from_this());
  }
  for (const auto& run : running) run->Cancel(status);
  running.clear();
  steps_->AbortAll(status);
  MutexLock lock(&mu_);
  while (!running_.empty()) run_ended_.Wait(&mu_);
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

// --- A step --------------------------------------------------------------------------------------

void Worker::StepRun::Start(const tensorflow::RunGraphRequest& request,
                            absl::Span<const NamedTensor> send, bool block, absl::Time deadline,
                            CancellationManager* cancellation,
                            tensorflow::RunGraphResponse* response,
                            std::vector<NamedTensor>* received, Transport::Done done) {
  const std::shared_ptr<StepRun> self = shared_from_this();
  done_ = std::move(done);
  response_ = response;
  received_ = received;
  StatusOr<std::shared_ptr<StepRendezvous>> started =
      worker_->steps_->Start(request.step_id(), graph_->edges);
  Status status = started.status();
  if (started.ok()) {
    {
      MutexLock lock(&mu_);
      rendezvous_ = *std::move(started);
    }
    status = Prepare(request, send);
  }
  if (status.ok() && cancellation != nullptr) {
    if (cancellation->Register(&outer_token_, [self] {
          self->Cancel(absl::CancelledError("Step was cancelled by the master."));
        })) {
      outer_ = cancellation;
    } else {
      status = Derived(absl::CancelledError("Step was cancelled by the master."));
    }
  }
  if (!status.ok()) {
    MutexLock lock(&mu_);
    status_ = status;
  } else {
    AskPeers();
    // Small tensors that are ready at once leave together.
    std::optional<StepRendezvous::Cork> cork;
    if (!block) cork.emplace(rendezvous_.get());
    return Execute(block, deadline);
  }
  Finish();
}

Status Worker::StepRun::Prepare(const tensorflow::RunGraphRequest& request,
                                absl::Span<const NamedTensor> send) {
  if (request.exec_opts().record_timeline()) stats_ = std::make_unique<StepStatsCollector>();
  record_graphs_ = request.exec_opts().record_partition_graphs();
  recv_keys_.assign(request.recv_key().begin(), request.recv_key().end());
  for (StepContext& context : contexts_) context.rendezvous = rendezvous_;
  for (const NamedTensor& tensor : send) {
    ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(tensor.name));
    RETURN_IF_ERROR(rendezvous_->Send(key, tensor.value, tensor.is_dead));
  }
  return absl::OkStatus();
}

void Worker::StepRun::AskPeers() {
  for (const StepEdges::Peer& peer : graph_->edges->recvs) {
    const std::shared_ptr<Transport> transport =
        worker_->options_.peer ? worker_->options_.peer(peer.task) : nullptr;
    if (transport == nullptr) {
      rendezvous_->StartAbort(absl::InvalidArgumentError(
          absl::StrCat("Step on ", worker_->options_.task, ": tensors must come from a task of ",
                       "the cluster, got ", peer.task)));
      return;
    }
    PullRequest request;
    request.step_id = rendezvous_->step_id();
    request.dst_task = worker_->options_.task;
    request.num_keys = peer.keys.size();
    request.fingerprint = peer.fingerprint;
    request.src_incarnation = peer.src_incarnation;
    CallOptions options;
    options.cancellation = rendezvous_->cancellation();
    transport->Pull(options, request,
                    std::make_shared<IncomingPull>(rendezvous_, graph_->edges, &peer));
  }
}

void Worker::StepRun::Execute(bool block, absl::Time deadline) {
  const std::shared_ptr<StepRun> self = shared_from_this();
  const std::vector<SharedPlan::Part>& parts = graph_->plan->parts;
  ExecutorOptions options;
  options.stats = stats_.get();
  options.deadline = deadline;
  if (block) {
    std::vector<PartitionRun> runs;
    for (size_t i = 0; i < parts.size(); ++i) {
      runs.push_back({parts[i].executor.get(), &contexts_[i]});
    }
    const Status status = RunPartitions(runs, options);
    {
      MutexLock lock(&mu_);
      status_ = status;
    }
    return Finish();
  }
  parts_left_.store(static_cast<int>(parts.size()) + 1, std::memory_order_relaxed);
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].executor->RunAsync(contexts_[i], options,
                                [self](Status status) { self->PartEnded(status); });
  }
  PartEnded(absl::OkStatus());
}

void Worker::StepRun::PartEnded(const Status& status) {
  if (!status.ok()) {
    MutexLock lock(&mu_);
    if (status_.ok() || (IsDerived(status_) && !IsDerived(status))) status_ = status;
  }
  if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) Finish();
}

void Worker::StepRun::Cancel(const Status& status) {
  std::shared_ptr<StepRendezvous> rendezvous;
  {
    MutexLock lock(&mu_);
    if (!cancelled_with_.ok()) return;
    cancelled_with_ = status;
    rendezvous = rendezvous_;
  }
  if (rendezvous != nullptr) rendezvous->StartAbort(Derived(status));
  cancellation_.StartCancel();
}

void Worker::StepRun::CollectResults() {
  for (const std::string& key : recv_keys_) {
    const Status status = CollectResult(key);
    if (status.ok()) continue;
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = status;
    return;
  }
}

Status Worker::StepRun::CollectResult(const std::string& wire_key) {
  ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(wire_key));
  // Shared: who aborts the step at this moment may call back after this function.
  struct Slot {
    Mutex mu;
    bool filled ABSL_GUARDED_BY(mu) = false;
    Status status ABSL_GUARDED_BY(mu);
    NamedTensor tensor ABSL_GUARDED_BY(mu);
  };
  auto slot = std::make_shared<Slot>();
  rendezvous_->RecvAsync(key, [slot](const Status& status, Tensor value, bool is_dead) {
    MutexLock lock(&slot->mu);
    slot->filled = true;
    slot->status = status;
    slot->tensor.value = std::move(value);
    slot->tensor.is_dead = is_dead;
  });
  {
    // The sends have run: the value is there, or will never be.
    MutexLock lock(&slot->mu);
    if (slot->filled) {
      RETURN_IF_ERROR(slot->status);
      slot->tensor.name = wire_key;
      received_->push_back(std::move(slot->tensor));
      return absl::OkStatus();
    }
  }
  const Status missing = absl::InternalError(
      absl::StrCat("Step on ", worker_->options_.task, ": '", wire_key,
                   "' must have been sent when all nodes have run, got nothing"));
  rendezvous_->StartAbort(missing);
  return missing;
}

void Worker::StepRun::Finish() {
  const std::shared_ptr<StepRun> self = shared_from_this();
  if (outer_ != nullptr) outer_->Deregister(outer_token_);
  Status status;
  {
    MutexLock lock(&mu_);
    status = status_;
  }
  if (status.ok()) {
    CollectResults();
    MutexLock lock(&mu_);
    status = status_;
  } else {
    // What the step was told to end with, when it only obeyed.
    MutexLock lock(&mu_);
    if (IsDerived(status) && !cancelled_with_.ok()) {
      status = absl::IsCancelled(cancelled_with_) ? Derived(cancelled_with_) : cancelled_with_;
    }
  }
  if (stats_ != nullptr) stats_->TakeInto(response_->mutable_step_stats());
  if (record_graphs_) *response_->add_partition_graph() = graph_->graph;
  if (rendezvous_ != nullptr) {
    worker_->steps_->End(rendezvous_.get(), status.ok() ? status : Derived(status));
  }
  Transport::Done done = std::move(done_);
  Worker* const worker = worker_;
  done(status);
  worker->RunEnded(this);
}

// --- The way to it within the process ------------------------------------------------------------

namespace {

class InProcessTransport : public Transport {
 public:
  InProcessTransport(Worker* worker, const std::string& address)
      : worker_(worker), address_(address) {}

  const std::string& task() const override { return worker_->task(); }
  const std::string& address() const override { return address_; }
  bool is_local() const override { return true; }

  void GetStatus(const CallOptions&, tensorflow::GetStatusResponse* response, Done done) override {
    for (const tensorflow::DeviceAttributes& device : worker_->DeviceAttributes()) {
      *response->add_device_attributes() = device;
    }
    done(absl::OkStatus());
  }
  void CreateWorkerSession(const CallOptions&,
                           const tensorflow::CreateWorkerSessionRequest& request,
                           Done done) override {
    done(worker_->CreateWorkerSession(request));
  }
  void DeleteWorkerSession(const CallOptions&,
                           const tensorflow::DeleteWorkerSessionRequest& request,
                           Done done) override {
    done(worker_->DeleteWorkerSession(request));
  }
  void RegisterGraph(const CallOptions&, const tensorflow::RegisterGraphRequest& request,
                     tensorflow::RegisterGraphResponse* response, Done done) override {
    done(worker_->RegisterGraph(request, response));
  }
  void DeregisterGraph(const CallOptions&, const tensorflow::DeregisterGraphRequest& request,
                       Done done) override {
    done(worker_->DeregisterGraph(request));
  }
  void CleanupGraph(const CallOptions&, const tensorflow::CleanupGraphRequest& request,
                    Done done) override {
    done(worker_->CleanupGraph(request.step_id()));
  }
  void CleanupAll(const CallOptions&, const tensorflow::CleanupAllRequest& request,
                  Done done) override {
    const std::vector<std::string> containers(request.container().begin(),
                                              request.container().end());
    done(worker_->CleanupAll(containers));
  }
  void RunGraph(const CallOptions& options, const tensorflow::RunGraphRequest& request,
                absl::Span<const NamedTensor> send, bool block,
                tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
                Done done) override {
    worker_->RunGraph(request, send, block, options.deadline, options.cancellation, response,
                      received, std::move(done));
  }
  void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                  NamedTensor* tensor, Done done) override {
    worker_->RecvTensor(
        request, options.cancellation,
        [tensor, done = std::move(done)](const Status& status, Tensor value, bool is_dead) mutable {
          tensor->value = std::move(value);
          tensor->is_dead = is_dead;
          done(status);
        });
  }
  void Pull(const CallOptions& options, const PullRequest& request,
            std::shared_ptr<PullSink> sink) override {
    worker_->Pull(request, std::move(sink), options.cancellation);
  }
  void Push(const CallOptions&, int64_t step_id, absl::Span<const NamedTensor> tensors,
            Done done) override {
    done(worker_->Push(step_id, tensors));
  }

 private:
  Worker* const worker_;
  const std::string address_;
};

}  // namespace

std::shared_ptr<Transport> MakeInProcessTransport(Worker* worker, const std::string& address) {
  return std::make_shared<InProcessTransport>(worker, address);
}

}  // namespace millrace

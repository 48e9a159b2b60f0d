// SPDX-License-Identifier: Apache-2.0
#include "distributed/master.h"

#include <algorithm>
#include <list>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "distributed/rpc.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/import_export.h"
#include "graph/partition.h"
#include "graph/placer.h"
#include "graph/prune.h"
#include "runtime/constant_evaluator.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"

namespace millrace {
namespace {

// How often the log names the tasks that have not answered.
constexpr absl::Duration kWaitLogPeriod = absl::Seconds(10);
// One attempt to reach a task that is not there yet.
constexpr absl::Duration kConnectAttempt = absl::Seconds(10);
constexpr absl::Duration kConnectPause = absl::Milliseconds(100);
// For calls that only tidy up.
constexpr absl::Duration kCleanupTimeout = absl::Seconds(5);
// Setting up a session or graph on a task that has answered already.
constexpr absl::Duration kSetupTimeout = absl::Minutes(10);

// How long a step whose tasks only pass on an error waits for the one that had it.
constexpr absl::Duration kRootCauseGrace = absl::Seconds(1);

// Step ids are positive and leave room, as TensorFlow's do.
int64_t NewStepId() {
  for (;;) {
    const int64_t id = static_cast<int64_t>(RandomUint64() & ((uint64_t{1} << 56) - 1));
    if (id != 0) return id;
  }
}

bool TellsOfRestart(const Status& status) {
  return absl::IsAborted(status) &&
         (absl::StrContains(status.message(), "Session handle is not found") ||
          absl::StrContains(status.message(), "a different device incarnation"));
}

Status FromTask(const std::string& task, const Status& status) {
  if (IsDerived(status)) return status;
  return Status(status.code(), absl::StrCat("From ", task, ":\n", status.message()));
}

// Waits for several calls.
class Calls {
 public:
  explicit Calls(int n) : left_(n), statuses_(static_cast<size_t>(n)) {}
  Transport::Done Done(int i) {
    return [this, i](const Status& status) {
      statuses_[static_cast<size_t>(i)] = status;
      left_.Decrement();
    };
  }
  // By call.
  const std::vector<Status>& Wait() {
    left_.Wait();
    return statuses_;
  }

 private:
  BlockingCounter left_;
  std::vector<Status> statuses_;
};

// A signature, ready to run.
struct CompiledStep {
  struct Part {
    std::shared_ptr<Transport> transport;
    std::string handle;
  };
  ~CompiledStep();

  std::string session_handle;
  std::vector<Part> parts;  // the master's own task last
  int own_part = -1;        // index in parts, or -1
  RunSignature signature;
  std::vector<DType> feed_types;
  std::vector<PartialShape> feed_shapes;
  std::vector<std::string> feed_keys;  // "" for a feed that nothing needs
  std::vector<std::string> recv_keys;  // distinct
  std::vector<size_t> fetch_index;     // of fetch i in recv_keys
};

CompiledStep::~CompiledStep() {
  for (const Part& part : parts) {
    auto request = std::make_shared<tensorflow::DeregisterGraphRequest>();
    request->set_session_handle(session_handle);
    request->set_create_worker_session_called(true);
    request->set_graph_handle(part.handle);
    CallOptions options;
    options.deadline = absl::Now() + kCleanupTimeout;
    // Nobody waits: a task that is gone has forgotten the graph anyway.
    part.transport->DeregisterGraph(options, *request, [request](const Status&) {});
  }
}

std::string SignatureKey(const RunSignature& s) {
  return absl::StrCat(absl::StrJoin(s.feeds, ","), "->", absl::StrJoin(s.fetches, ","), "/",
                      absl::StrJoin(s.targets, ","));
}

// Two texts of one node: attrs in any order, defaults given or not.
std::string CanonicalNode(tensorflow::NodeDef node) {
  if (const OpEntry* op = LookUpOp(node.op())) AddDefaultAttrs(op->def, &node);
  node.clear_experimental_debug_info();
  for (std::string& input : *node.mutable_input()) {
    if (absl::EndsWith(input, ":0")) input.resize(input.size() - 2);
  }
  std::map<std::string, std::string> attrs;
  for (const auto& [name, value] : node.attr()) attrs[name] = value.SerializeAsString();
  node.clear_attr();
  std::string text = node.SerializeAsString();
  for (const auto& [name, value] : attrs) absl::StrAppend(&text, "\n", name, "=", value);
  return text;
}

// Nodes that the graph has already must be the same again.
Status AddToGraph(const tensorflow::GraphDef& def, Graph* graph) {
  if (graph->num_nodes() == 0) return ImportGraphDef(def, ImportOptions(), graph);
  tensorflow::GraphDef fresh;
  *fresh.mutable_versions() = def.versions();
  *fresh.mutable_library() = def.library();
  absl::flat_hash_set<std::string> fresh_names;
  for (const tensorflow::NodeDef& node : def.node()) {
    const Node* const existing = graph->FindNode(node.name());
    if (existing == nullptr) {
      *fresh.add_node() = node;
      fresh_names.insert(node.name());
    } else if (CanonicalNode(graph->NodeToDef(*existing)) != CanonicalNode(node)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "GraphDef node '", node.name(),
          "': a name that the session has must keep its definition, got another one (op ",
          node.op(), ", was ", existing->op(), ")"));
    }
  }
  if (fresh.node_size() == 0) return absl::OkStatus();
  ImportOptions options;
  for (const tensorflow::NodeDef& node : fresh.node()) {
    for (const std::string& input : node.input()) {
      const StatusOr<TensorName> name = ParseTensorName(input);
      if (!name.ok() || fresh_names.contains(name->node)) continue;
      Node* const source = graph->FindNode(name->node);
      if (source == nullptr) continue;  // the import names what is missing
      options.input_map[input] = {source, std::max(name->index, 0)};
    }
  }
  return ImportGraphDef(fresh, options, graph);
}

struct StepOptions {
  tensorflow::RunOptions run;
  bool block = true;
  CancellationManager* cancellation = nullptr;
};

}  // namespace

class Master::Session : public std::enable_shared_from_this<Session> {
 public:
  Session(const MasterOptions* options, std::string handle, tensorflow::ConfigProto config,
          absl::Duration timeout, int max_cached_plans)
      : options_(options),
        handle_(std::move(handle)),
        config_(std::move(config)),
        timeout_(timeout),
        max_cached_plans_(static_cast<size_t>(std::max(max_cached_plans, 1))) {}

  const std::string& handle() const { return handle_; }

  // Connects to the tasks that the session needs from the start.
  Status Create(CancellationManager* shutdown);
  Status Extend(const tensorflow::GraphDef& graph, int64_t version, CancellationManager* shutdown,
                int64_t* new_version);
  StatusOr<std::shared_ptr<CompiledStep>> Compile(const RunSignature& signature);
  void Run(std::shared_ptr<CompiledStep> compiled, absl::Span<const Tensor> feeds,
           const StepOptions& options, StepDone done);
  // Blocks.
  StatusOr<StepResult> RunAndWait(std::shared_ptr<CompiledStep> compiled,
                                  absl::Span<const Tensor> feeds,
                                  const tensorflow::RunOptions& options);
  int64_t AddCallable(std::shared_ptr<CompiledStep> compiled,
                      const tensorflow::RunOptions& options);
  StatusOr<std::pair<std::shared_ptr<CompiledStep>, tensorflow::RunOptions>> FindCallable(
      int64_t id) const;
  Status RemoveCallable(int64_t id);
  void ListDevices(tensorflow::ListDevicesResponse* response) const;
  // Ends all steps with `status`, waits for them, closes the session on all tasks.
  void Close(const Status& status);
  std::vector<std::shared_ptr<Transport>> Tasks() const;

 private:
  friend class RunningStep;
  class RunningStep;
  struct Connection;

  StatusOr<std::vector<std::string>> TasksFromTheStart() const;
  StatusOr<std::vector<std::string>> TasksNamedBy(const tensorflow::GraphDef& graph) const;
  Status Connect(const std::vector<std::string>& tasks, CancellationManager* shutdown);
  StatusOr<std::shared_ptr<CompiledStep>> Build(const RunSignature& signature);
  Status RegisterParts(std::map<std::string, tensorflow::GraphDef> parts, CompiledStep* compiled);
  uint64_t IncarnationOf(absl::string_view device) const;
  // The first device of a task; 0 when it is not connected.
  uint64_t TaskIncarnation(const std::string& task) const;
  // Asks a task that forgot the session who it is now; `done` gets the error for the step.
  void ExplainRestart(std::shared_ptr<Transport> task, int64_t step_id, const Status& error,
                      absl::AnyInvocable<void(Status)> done);
  Status Usable() const;

  const MasterOptions* const options_;
  const std::string handle_;
  const tensorflow::ConfigProto config_;
  const absl::Duration timeout_;
  const size_t max_cached_plans_;

  // Compiling and extending, one at a time.
  Mutex graph_mu_;
  Graph graph_ ABSL_GUARDED_BY(graph_mu_);
  int64_t version_ ABSL_GUARDED_BY(graph_mu_) = 0;
  StatefulPlacements placements_ ABSL_GUARDED_BY(graph_mu_);

  mutable Mutex mu_;
  CondVar step_ended_;
  Status closed_ ABSL_GUARDED_BY(mu_);
  Status broken_ ABSL_GUARDED_BY(mu_);  // a task restarted
  std::map<std::string, std::shared_ptr<Transport>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<tensorflow::DeviceAttributes> devices_ ABSL_GUARDED_BY(mu_);  // own first
  using Recent = std::list<std::pair<std::string, std::shared_ptr<CompiledStep>>>;
  Recent recent_ ABSL_GUARDED_BY(mu_);  // most recently used first
  absl::flat_hash_map<std::string, Recent::iterator> compiled_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, std::pair<std::shared_ptr<CompiledStep>, tensorflow::RunOptions>> callables_
      ABSL_GUARDED_BY(mu_);
  int64_t next_callable_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_set<RunningStep*> running_ ABSL_GUARDED_BY(mu_);
};

// --- Connecting ----------------------------------------------------------------------------------

// What the attempts to reach several tasks share; they may end after the wait for them.
struct Master::Session::Connection {
  struct Task {
    std::shared_ptr<Transport> transport;
    bool asked = false;
    bool answered = false;
    absl::Time next_attempt = absl::InfinitePast();
    std::string last_error = "no answer yet";
    std::shared_ptr<tensorflow::GetStatusResponse> response;
  };
  Mutex mu;
  CondVar changed;
  bool shut_down ABSL_GUARDED_BY(mu) = false;
  std::vector<Task> tasks ABSL_GUARDED_BY(mu);
  CancellationManager attempts;
};

StatusOr<std::vector<std::string>> Master::Session::TasksFromTheStart() const {
  const std::vector<std::string> filters(config_.device_filters().begin(),
                                         config_.device_filters().end());
  std::vector<std::string> result = {options_->task};
  for (const std::string& job : options_->cluster.jobs()) {
    for (const int task : options_->cluster.tasks(job)) {
      const std::string name = absl::StrCat("/job:", job, "/replica:0/task:", task);
      if (name == options_->task) continue;
      bool wanted = job == "ps";
      if (!filters.empty()) {
        ASSIGN_OR_RETURN(wanted, PassesDeviceFilters(name, filters));
      }
      if (wanted) result.push_back(name);
    }
  }
  return result;
}

// Without filters, a node may ask for any task of the cluster.
StatusOr<std::vector<std::string>> Master::Session::TasksNamedBy(
    const tensorflow::GraphDef& graph) const {
  std::vector<std::string> result;
  if (config_.device_filters_size() > 0) return result;
  absl::flat_hash_set<std::string> seen;
  for (const tensorflow::NodeDef& node : graph.node()) {
    if (node.device().empty() || !seen.insert(node.device()).second) continue;
    ASSIGN_OR_RETURN(const DeviceName name, DeviceName::Parse(node.device()));
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

Status Master::Session::Connect(const std::vector<std::string>& tasks,
                                CancellationManager* shutdown) {
  auto connection = std::make_shared<Connection>();
  Clock* const clock = options_->clock;
  const absl::Time deadline = clock->Now() + timeout_;
  {
    MutexLock lock(&mu_);
    MutexLock inner(&connection->mu);
    for (const std::string& task : tasks) {
      const bool twice =
          std::any_of(connection->tasks.begin(), connection->tasks.end(),
                      [&](const Connection::Task& t) { return t.transport->task() == task; });
      if (tasks_.count(task) != 0 || twice) continue;
      std::shared_ptr<Transport> transport = options_->peer(task);
      if (transport == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("Session: task ", task, " must be in the cluster"));
      }
      connection->tasks.emplace_back().transport = std::move(transport);
    }
    if (connection->tasks.empty()) return absl::OkStatus();
  }
  CancellationManager::Token token;
  if (!shutdown->Register(&token, [connection] {
        MutexLock lock(&connection->mu);
        connection->shut_down = true;
        connection->changed.SignalAll();
      })) {
    return absl::AbortedError("Session: the server must be running, got one that has stopped");
  }
  absl::Time next_log = clock->Now() + kWaitLogPeriod;
  Status status;
  for (;;) {
    // Calls are begun without the lock: an answer may come in this thread.
    std::vector<size_t> to_ask;
    std::vector<std::string> missing;
    absl::Time wake = std::min(deadline, next_log);
    {
      MutexLock lock(&connection->mu);
      const absl::Time now = clock->Now();
      for (size_t i = 0; i < connection->tasks.size(); ++i) {
        Connection::Task& task = connection->tasks[i];
        if (task.answered) continue;
        missing.push_back(absl::StrCat(task.transport->task(), " at ", task.transport->address()));
        if (task.asked) continue;
        if (task.next_attempt <= now) {
          task.asked = true;
          task.response = std::make_shared<tensorflow::GetStatusResponse>();
          to_ask.push_back(i);
        } else {
          wake = std::min(wake, task.next_attempt);
        }
      }
      if (missing.empty()) break;
      if (connection->shut_down) {
        status = absl::AbortedError("Session: the server was stopped while it waited for tasks");
        break;
      }
      if (now >= next_log) {
        for (const std::string& task : missing) {
          LogInfo("CreateSession still waiting for response from worker: ", task);
        }
        next_log = now + kWaitLogPeriod;
      }
      if (now >= deadline) {
        std::vector<std::string> errors;
        for (const Connection::Task& task : connection->tasks) {
          if (!task.answered) errors.push_back(task.last_error);
        }
        status = absl::DeadlineExceededError(
            absl::StrCat("Session on ", options_->task, ": all its tasks must answer within ",
                         absl::FormatDuration(timeout_), ", got none from ",
                         absl::StrJoin(missing, ", "), " (", errors.front(), ")"));
        break;
      }
      if (to_ask.empty()) {
        clock->WaitUntil(&connection->changed, &connection->mu, wake);
        continue;
      }
    }
    for (const size_t i : to_ask) {
      std::shared_ptr<Transport> transport;
      std::shared_ptr<tensorflow::GetStatusResponse> response;
      {
        MutexLock lock(&connection->mu);
        transport = connection->tasks[i].transport;
        response = connection->tasks[i].response;
      }
      CallOptions options;
      options.wait_for_ready = true;
      options.deadline = absl::Now() + kConnectAttempt;
      options.cancellation = &connection->attempts;
      transport->GetStatus(options, response.get(),
                           [connection, response, clock, i](const Status& answer) {
                             MutexLock lock(&connection->mu);
                             Connection::Task& task = connection->tasks[i];
                             task.asked = false;
                             task.answered = answer.ok() && response->device_attributes_size() > 0;
                             task.last_error = std::string(answer.message());
                             task.next_attempt = clock->Now() + kConnectPause;
                             connection->changed.SignalAll();
                           });
    }
  }
  shutdown->Deregister(token);
  if (!status.ok()) {
    connection->attempts.StartCancel();
    return status;
  }
  // All are there: the session is made known to them.
  std::vector<Connection::Task> found;
  {
    MutexLock lock(&connection->mu);
    found = connection->tasks;
  }
  tensorflow::CreateWorkerSessionRequest request;
  request.set_session_handle(handle_);
  request.set_isolate_session_state(config_.isolate_session_state());
  Calls calls(static_cast<int>(found.size()));
  for (size_t i = 0; i < found.size(); ++i) {
    CallOptions options;
    options.deadline = absl::Now() + kSetupTimeout;
    found[i].transport->CreateWorkerSession(options, request, calls.Done(static_cast<int>(i)));
  }
  const std::vector<Status>& created = calls.Wait();
  for (size_t i = 0; i < found.size(); ++i) {
    if (!created[i].ok()) return FromTask(found[i].transport->task(), created[i]);
  }
  MutexLock lock(&mu_);
  for (const Connection::Task& task : found) {
    tasks_[task.transport->task()] = task.transport;
    for (const auto& device : task.response->device_attributes()) devices_.push_back(device);
  }
  return absl::OkStatus();
}

Status Master::Session::Create(CancellationManager* shutdown) {
  if (config_.use_per_session_threads() || config_.session_inter_op_thread_pool_size() > 0) {
    return absl::InvalidArgumentError(
        "Distributed session does not support session thread pool options.");
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> tasks, TasksFromTheStart());
  return Connect(tasks, shutdown);
}

std::vector<std::shared_ptr<Transport>> Master::Session::Tasks() const {
  MutexLock lock(&mu_);
  std::vector<std::shared_ptr<Transport>> result;
  for (const auto& [name, task] : tasks_) result.push_back(task);
  return result;
}

void Master::Session::ListDevices(tensorflow::ListDevicesResponse* response) const {
  MutexLock lock(&mu_);
  for (const auto& device : devices_) {
    const bool own = absl::StartsWith(device.name(), absl::StrCat(options_->task, "/"));
    *(own ? response->add_local_device() : response->add_remote_device()) = device;
  }
}

uint64_t Master::Session::IncarnationOf(absl::string_view device) const {
  MutexLock lock(&mu_);
  for (const auto& known : devices_) {
    if (known.name() == device) return known.incarnation();
  }
  return 0;
}

uint64_t Master::Session::TaskIncarnation(const std::string& task) const {
  return IncarnationOf(absl::StrCat(task, "/device:CPU:0"));
}

// --- Graph ---------------------------------------------------------------------------------------

Status Master::Session::Usable() const {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(closed_);
  return broken_;
}

Status Master::Session::Extend(const tensorflow::GraphDef& graph, int64_t version,
                               CancellationManager* shutdown, int64_t* new_version) {
  RETURN_IF_ERROR(Usable());
  ASSIGN_OR_RETURN(const std::vector<std::string> tasks, TasksNamedBy(graph));
  RETURN_IF_ERROR(Connect(tasks, shutdown));
  MutexLock lock(&graph_mu_);
  if (version != version_) {
    return absl::AbortedError(
        absl::StrCat("Current version is ", version_, " but caller expected ", version, "."));
  }
  RETURN_IF_ERROR(AddToGraph(graph, &graph_));
  *new_version = ++version_;
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<CompiledStep>> Master::Session::Compile(const RunSignature& signature) {
  RETURN_IF_ERROR(Usable());
  const std::string key = SignatureKey(signature);
  const auto find = [&]() -> std::shared_ptr<CompiledStep> {
    MutexLock lock(&mu_);
    const auto it = compiled_.find(key);
    if (it == compiled_.end()) return nullptr;
    recent_.splice(recent_.begin(), recent_, it->second);
    return it->second->second;
  };
  if (auto found = find()) return found;
  std::shared_ptr<CompiledStep> fresh;
  {
    MutexLock lock(&graph_mu_);
    if (auto found = find()) return found;  // somebody else was faster
    ASSIGN_OR_RETURN(fresh, Build(signature));
  }
  std::shared_ptr<CompiledStep> dropped;  // its graphs are deregistered without the lock
  MutexLock lock(&mu_);
  const auto [it, inserted] = compiled_.emplace(key, Recent::iterator());
  if (!inserted) return it->second->second;
  recent_.emplace_front(key, fresh);
  it->second = recent_.begin();
  if (recent_.size() > max_cached_plans_) {
    dropped = std::move(recent_.back().second);
    compiled_.erase(recent_.back().first);
    recent_.pop_back();
  }
  return fresh;
}

StatusOr<std::shared_ptr<CompiledStep>> Master::Session::Build(const RunSignature& signature)
    ABSL_NO_THREAD_SAFETY_ANALYSIS {
  auto compiled = std::make_shared<CompiledStep>();
  compiled->session_handle = handle_;
  compiled->signature = signature;
  std::vector<DeviceInfo> devices;
  {
    MutexLock lock(&mu_);
    for (const auto& device : devices_) {
      devices.push_back({device.name(), device.device_type(), device.incarnation()});
    }
  }
  RunGraphOptions run_options;
  run_options.client_terminated = true;
  run_options.device = absl::StrCat(options_->task, "/device:CPU:0");
  run_options.incarnation = TaskIncarnation(options_->task);
  ASSIGN_OR_RETURN(millrace::RunGraph run, BuildRunGraph(graph_, signature, run_options));

  KernelRegistrySupport kernels;
  PlacementOptions placement;
  placement.allow_soft_placement = config_.allow_soft_placement();
  placement.log_device_placement = config_.log_device_placement();
  placement.default_device = run_options.device;
  placement.stateful_placements = &placements_;
  RETURN_IF_ERROR(PlaceGraph(run.graph.get(), devices, &kernels, placement));

  const auto key_of = [](const Node& node) -> StatusOr<std::string> {
    ASSIGN_OR_RETURN(const std::string device, GetAttr<std::string>(node.def(), "send_device"));
    ASSIGN_OR_RETURN(const std::string name, GetAttr<std::string>(node.def(), "tensor_name"));
    ASSIGN_OR_RETURN(const int64_t incarnation,
                     GetAttr<int64_t>(node.def(), "send_device_incarnation"));
    return RendezvousKey::Make(device, static_cast<uint64_t>(incarnation), device, name, 0, 0);
  };
  compiled->feed_types = run.signature.feed_types;
  for (const Node* node : run.signature.feed_nodes) {
    std::string key;
    PartialShape shape;
    if (node != nullptr) {
      ASSIGN_OR_RETURN(key, key_of(*node));
      const auto shapes = GetAttr<std::vector<PartialShape>>(node->def(), "_output_shapes");
      if (shapes.ok() && shapes->size() == 1) shape = shapes->front();
    }
    compiled->feed_keys.push_back(std::move(key));
    compiled->feed_shapes.push_back(std::move(shape));
  }
  for (const Node* node : run.signature.fetch_nodes) {
    ASSIGN_OR_RETURN(const std::string key, key_of(*node));
    const auto it = std::find(compiled->recv_keys.begin(), compiled->recv_keys.end(), key);
    compiled->fetch_index.push_back(static_cast<size_t>(it - compiled->recv_keys.begin()));
    if (it == compiled->recv_keys.end()) compiled->recv_keys.push_back(key);
  }

  PartitionOptions partition;
  partition.new_name_mark = std::string("_S");
  partition.node_to_loc = [](const Node& node) {
    const StatusOr<std::string> task = TaskOfDevice(node.assigned_device());
    return task.ok() ? *task : std::string();
  };
  partition.get_incarnation = [this](absl::string_view device) { return IncarnationOf(device); };
  std::map<std::string, tensorflow::GraphDef> parts;
  RETURN_IF_ERROR(PartitionGraph(*run.graph, partition, &parts));
  RETURN_IF_ERROR(RegisterParts(std::move(parts), compiled.get()));
  return compiled;
}

Status Master::Session::RegisterParts(std::map<std::string, tensorflow::GraphDef> parts,
                                      CompiledStep* compiled) {
  std::vector<tensorflow::RegisterGraphRequest> requests;
  std::vector<std::shared_ptr<Transport>> transports;
  for (const bool own : {false, true}) {
    for (auto& [task, graph] : parts) {
      if ((task == options_->task) != own) continue;
      MutexLock lock(&mu_);
      const auto it = tasks_.find(task);
      if (it == tasks_.end()) {
        return absl::InternalError(
            absl::StrCat("Session: a partition must be for a task of it, got ", task));
      }
      if (own) compiled->own_part = static_cast<int>(transports.size());
      transports.push_back(it->second);
      tensorflow::RegisterGraphRequest& request = requests.emplace_back();
      request.set_session_handle(handle_);
      request.set_create_worker_session_called(true);
      request.mutable_graph_def()->Swap(&graph);
      *request.mutable_graph_options() = config_.graph_options();
    }
  }
  std::vector<tensorflow::RegisterGraphResponse> responses(requests.size());
  Calls calls(static_cast<int>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    CallOptions options;
    options.deadline = absl::Now() + kSetupTimeout;
    transports[i]->RegisterGraph(options, requests[i], &responses[i],
                                 calls.Done(static_cast<int>(i)));
  }
  Status first;
  const std::vector<Status>& statuses = calls.Wait();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (statuses[i].ok()) {
      compiled->parts.push_back({transports[i], responses[i].graph_handle()});
    } else if (first.ok()) {
      if (TellsOfRestart(statuses[i])) {
        Notification explained;
        ExplainRestart(transports[i], 0, statuses[i], [&](Status status) {
          first = std::move(status);
          explained.Notify();
        });
        explained.Wait();
      } else {
        first = FromTask(transports[i]->task(), statuses[i]);
      }
    }
  }
  return first;
}

// --- Steps ---------------------------------------------------------------------------------------

class Master::Session::RunningStep : public std::enable_shared_from_this<RunningStep> {
 public:
  RunningStep(std::shared_ptr<Session> session, std::shared_ptr<CompiledStep> compiled,
              StepDone done)
      : session_(std::move(session)),
        compiled_(std::move(compiled)),
        done_(std::move(done)),
        step_id_(NewStepId()) {
    const size_t n = compiled_->parts.size();
    requests_.resize(n);
    responses_.resize(n);
    received_.resize(n);
    left_ = static_cast<int>(n) + 1;
  }

  void Start(absl::Span<const Tensor> feeds, const StepOptions& options);
  // Instead of Start.
  void Refuse(const Status& status) { done_(status); }
  // The step ends with `status`, unless it has failed before.
  void Fail(const Status& status);
  // In the thread that started a blocking step.
  void Wait();

 private:
  void PartDone(size_t part, const Status& status);
  void Record(const Status& status, int part);
  void Drop();
  void End();
  void Complete(Status status);
  StatusOr<StepResult> TakeResult();

  const std::shared_ptr<Session> session_;
  const std::shared_ptr<CompiledStep> compiled_;
  StepDone done_;
  const int64_t step_id_;
  CancellationManager cancellation_;
  std::vector<tensorflow::RunGraphRequest> requests_;
  std::vector<tensorflow::RunGraphResponse> responses_;
  std::vector<std::vector<NamedTensor>> received_;
  std::vector<NamedTensor> send_;
  bool record_graphs_ = false;
  bool trace_ = false;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::shared_ptr<RpcTimer> timer_;
  CancellationManager* outer_ = nullptr;
  CancellationManager::Token outer_token_ = 0;
  Notification ended_;

  Mutex mu_;
  int left_ ABSL_GUARDED_BY(mu_);
  Status status_ ABSL_GUARDED_BY(mu_);
  int failed_part_ ABSL_GUARDED_BY(mu_) = -1;
  std::shared_ptr<RpcTimer> grace_ ABSL_GUARDED_BY(mu_);
};

void Master::Session::RunningStep::Start(absl::Span<const Tensor> feeds,
                                         const StepOptions& options) {
  const std::shared_ptr<RunningStep> self = shared_from_this();
  int64_t timeout_ms = options.run.timeout_in_ms();
  if (timeout_ms <= 0) timeout_ms = session_->config_.operation_timeout_in_ms();
  if (timeout_ms > 0) deadline_ = absl::Now() + absl::Milliseconds(timeout_ms);
  trace_ = options.run.trace_level() > tensorflow::RunOptions::NO_TRACE;
  record_graphs_ = options.run.output_partition_graphs();
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (compiled_->feed_keys[i].empty()) continue;
    send_.push_back({compiled_->feed_keys[i], feeds[i], false});
  }
  if (!options.block && deadline_ != absl::InfiniteFuture()) {
    timer_ = RpcTimer::Start(deadline_, [weak = weak_from_this()] {
      if (const auto step = weak.lock()) {
        step->Fail(absl::DeadlineExceededError("Timed out waiting for notification"));
      }
    });
  }
  if (options.cancellation != nullptr) {
    if (options.cancellation->Register(&outer_token_, [weak = weak_from_this()] {
          if (const auto step = weak.lock()) {
            step->Fail(absl::CancelledError("Step was cancelled by its caller"));
          }
        })) {
      outer_ = options.cancellation;
    } else {
      Fail(absl::CancelledError("Step was cancelled by its caller"));
    }
  }
  // The own part comes last: it may keep this thread busy.
  for (size_t i = 0; i < compiled_->parts.size(); ++i) {
    const bool own = static_cast<int>(i) == compiled_->own_part;
    tensorflow::RunGraphRequest& request = requests_[i];
    request.set_session_handle(compiled_->session_handle);
    request.set_create_worker_session_called(true);
    request.set_graph_handle(compiled_->parts[i].handle);
    request.set_step_id(step_id_);
    request.set_store_errors_in_response_body(true);
    if (trace_) request.mutable_exec_opts()->set_record_timeline(true);
    if (record_graphs_) request.mutable_exec_opts()->set_record_partition_graphs(true);
    if (own) {
      for (const std::string& key : compiled_->recv_keys) request.add_recv_key(key);
    }
    CallOptions call;
    call.cancellation = &cancellation_;
    if (own && options.block) call.deadline = deadline_;
    compiled_->parts[i].transport->RunGraph(
        call, request, own ? absl::MakeConstSpan(send_) : absl::Span<const NamedTensor>(),
        own && options.block, &responses_[i], &received_[i],
        [self, i](const Status& status) { self->PartDone(i, status); });
  }
  Drop();
}

void Master::Session::RunningStep::Record(const Status& status, int part) {
  {
    MutexLock lock(&mu_);
    if (status_.ok() || (IsDerived(status_) && !IsDerived(status))) {
      status_ = status;
      failed_part_ = part;
    }
    if (IsDerived(status)) {
      // Another task has failed, and its own account of it is on the way: it is waited for.
      if (grace_ == nullptr) {
        grace_ = RpcTimer::Start(absl::Now() + kRootCauseGrace, [weak = weak_from_this()] {
          if (const auto step = weak.lock()) step->cancellation_.StartCancel();
        });
      }
      return;
    }
  }
  cancellation_.StartCancel();
}

void Master::Session::RunningStep::Fail(const Status& status) { Record(status, -1); }

void Master::Session::RunningStep::PartDone(size_t part, const Status& status) {
  if (absl::IsCancelled(status) && cancellation_.IsCancelled()) {
    Record(Derived(status), static_cast<int>(part));
  } else if (!status.ok()) {
    // The step's own time limit needs no sender.
    const bool timed_out = absl::IsDeadlineExceeded(status) &&
                           static_cast<int>(part) == compiled_->own_part &&
                           absl::Now() >= deadline_;
    Record(timed_out || TellsOfRestart(status)
               ? status
               : FromTask(compiled_->parts[part].transport->task(), status),
           static_cast<int>(part));
  }
  Drop();
}

void Master::Session::RunningStep::Drop() {
  {
    MutexLock lock(&mu_);
    if (--left_ > 0) return;
  }
  End();
}

void Master::Session::RunningStep::End() {
  if (timer_ != nullptr) timer_->Cancel();
  if (outer_ != nullptr) outer_->Deregister(outer_token_);
  Status status;
  int part;
  std::shared_ptr<RpcTimer> grace;
  {
    MutexLock lock(&mu_);
    status = status_;
    part = failed_part_;
    grace = grace_;
  }
  if (grace != nullptr) grace->Cancel();
  if (part >= 0 && TellsOfRestart(status)) {
    // A pull that met another incarnation failed in the receiver's part: the sender restarted.
    std::shared_ptr<Transport> task = compiled_->parts[static_cast<size_t>(part)].transport;
    for (const CompiledStep::Part& other : compiled_->parts) {
      if (absl::StrContains(status.message(), absl::StrCat("\"", other.transport->task(), "\""))) {
        task = other.transport;
      }
    }
    return session_->ExplainRestart(
        task, step_id_, status,
        [self = shared_from_this()](Status explained) { self->Complete(std::move(explained)); });
  }
  Complete(std::move(status));
}

void Master::Session::RunningStep::Complete(Status status) {
  const std::shared_ptr<RunningStep> self = shared_from_this();
  StatusOr<StepResult> result =
      status.ok() ? TakeResult() : StatusOr<StepResult>(WithoutDerivedMark(status));
  StepDone done = std::move(done_);
  {
    MutexLock lock(&session_->mu_);
    session_->running_.erase(this);
    session_->step_ended_.SignalAll();
  }
  done(std::move(result));
  ended_.Notify();
}

StatusOr<StepResult> Master::Session::RunningStep::TakeResult() {
  StepResult result;
  if (compiled_->own_part >= 0) {
    std::vector<NamedTensor>& own = received_[static_cast<size_t>(compiled_->own_part)];
    std::vector<NamedTensor*> by_key(compiled_->recv_keys.size());
    for (NamedTensor& tensor : own) {
      const auto it =
          std::find(compiled_->recv_keys.begin(), compiled_->recv_keys.end(), tensor.name);
      if (it != compiled_->recv_keys.end()) {
        by_key[static_cast<size_t>(it - compiled_->recv_keys.begin())] = &tensor;
      }
    }
    for (size_t i = 0; i < compiled_->fetch_index.size(); ++i) {
      NamedTensor* const tensor = by_key[compiled_->fetch_index[i]];
      if (tensor == nullptr || tensor->is_dead) {
        return absl::InvalidArgumentError(absl::StrCat(
            "The tensor returned for ", compiled_->signature.fetches[i], " was not valid."));
      }
      result.fetches.push_back(tensor->value);
    }
    // A caller may be the only one to hold what it fetched.
    by_key.clear();
    own.clear();
  }
  if (trace_ || record_graphs_) {
    for (tensorflow::RunGraphResponse& response : responses_) {
      for (auto& device : *response.mutable_step_stats()->mutable_dev_stats()) {
        result.metadata.mutable_step_stats()->add_dev_stats()->Swap(&device);
      }
      for (auto& graph : *response.mutable_partition_graph()) {
        result.metadata.add_partition_graphs()->Swap(&graph);
      }
    }
  }
  return result;
}

void Master::Session::RunningStep::Wait() {
  if (deadline_ == absl::InfiniteFuture()) return ended_.Wait();
  if (ended_.WaitFor(deadline_ - absl::Now())) return;
  Fail(absl::DeadlineExceededError("Timed out waiting for notification"));
  ended_.Wait();
}

void Master::Session::ExplainRestart(std::shared_ptr<Transport> task, int64_t step_id,
                                     const Status& error, absl::AnyInvocable<void(Status)> done) {
  auto response = std::make_shared<tensorflow::GetStatusResponse>();
  CallOptions options;
  options.deadline = absl::Now() + kCleanupTimeout;
  Transport* const transport = task.get();
  transport->GetStatus(
      options, response.get(),
      [self = shared_from_this(), task = std::move(task), response, step_id, error,
       done = std::move(done)](const Status& status) mutable {
        const uint64_t expected = self->TaskIncarnation(task->task());
        uint64_t found = 0;
        if (status.ok() && response->device_attributes_size() > 0) {
          found = response->device_attributes(0).incarnation();
        }
        Status result = error;
        if (found == 0 || found != expected) {
          result = absl::AbortedError(absl::StrCat(
              "Worker '", task->task(), "' restarted",
              step_id == 0 ? "" : absl::StrCat(" during step ", step_id), " (incarnation ",
              expected, " expected, ", found == 0 ? "none" : absl::StrCat(found),
              " found); variables there are lost, restore from a checkpoint"));
        }
        {
          MutexLock lock(&self->mu_);
          if (self->broken_.ok()) self->broken_ = result;
        }
        done(std::move(result));
      });
}

void Master::Session::Run(std::shared_ptr<CompiledStep> compiled, absl::Span<const Tensor> feeds,
                          const StepOptions& options, StepDone done) {
  const auto check = [&]() -> Status {
    RETURN_IF_ERROR(Usable());
    const RunSignature& signature = compiled->signature;
    if (feeds.size() != signature.feeds.size()) {
      return absl::InvalidArgumentError(absl::StrCat("Run: ", signature.feeds.size(),
                                                     " tensors must be fed, got ", feeds.size()));
    }
    for (size_t i = 0; i < feeds.size(); ++i) {
      if (!feeds[i].has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("Cannot feed Tensor '", signature.feeds[i],
                                                       "' without a value, got an empty Tensor"));
      }
      if (compiled->feed_types[i] != DT_INVALID && feeds[i].dtype() != compiled->feed_types[i]) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Cannot feed value of type ", DTypeName(feeds[i].dtype()), " for Tensor '",
            signature.feeds[i], "', which has type ", DTypeName(compiled->feed_types[i])));
      }
      if (!compiled->feed_shapes[i].IsCompatibleWith(feeds[i].shape())) {
        return absl::InvalidArgumentError(absl::StrCat(
            "Cannot feed value of shape ", feeds[i].shape().ToString(), " for Tensor '",
            signature.feeds[i], "', which has shape ", compiled->feed_shapes[i].ToString()));
      }
    }
    return absl::OkStatus();
  };
  Status status = check();
  if (!status.ok()) return done(status);
  auto step =
      std::make_shared<RunningStep>(shared_from_this(), std::move(compiled), std::move(done));
  {
    MutexLock lock(&mu_);
    status = closed_;  // perhaps since the check
    if (status.ok()) running_.insert(step.get());
  }
  if (!status.ok()) return step->Refuse(status);
  step->Start(feeds, options);
  if (options.block) step->Wait();
}

StatusOr<StepResult> Master::Session::RunAndWait(std::shared_ptr<CompiledStep> compiled,
                                                 absl::Span<const Tensor> feeds,
                                                 const tensorflow::RunOptions& options) {
  StatusOr<StepResult> result = absl::InternalError("Step ended without a result");
  StepOptions step;
  step.run = options;
  Run(std::move(compiled), feeds, step,
      [&result](StatusOr<StepResult> r) { result = std::move(r); });
  return result;
}

int64_t Master::Session::AddCallable(std::shared_ptr<CompiledStep> compiled,
                                     const tensorflow::RunOptions& options) {
  MutexLock lock(&mu_);
  const int64_t id = next_callable_++;
  callables_[id] = {std::move(compiled), options};
  return id;
}

StatusOr<std::pair<std::shared_ptr<CompiledStep>, tensorflow::RunOptions>>
Master::Session::FindCallable(int64_t id) const {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(closed_);
  const auto it = callables_.find(id);
  if (it == callables_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("No such callable handle: ", id));
  }
  return it->second;
}

Status Master::Session::RemoveCallable(int64_t id) {
  std::shared_ptr<CompiledStep> dropped;
  MutexLock lock(&mu_);
  const auto it = callables_.find(id);
  if (it == callables_.end()) {
    return absl::InvalidArgumentError(absl::StrCat("No such callable handle: ", id));
  }
  dropped = std::move(it->second.first);
  callables_.erase(it);
  return absl::OkStatus();
}

void Master::Session::Close(const Status& status) {
  std::vector<std::shared_ptr<RunningStep>> running;
  {
    MutexLock lock(&mu_);
    if (closed_.ok()) closed_ = status;
    for (RunningStep* step : running_) running.push_back(step->shared_from_this());
  }
  for (const auto& step : running) step->Fail(status);
  running.clear();
  Recent recent;
  decltype(callables_) callables;
  std::map<std::string, std::shared_ptr<Transport>> tasks;
  {
    MutexLock lock(&mu_);
    while (!running_.empty()) step_ended_.Wait(&mu_);
    compiled_.clear();
    recent.swap(recent_);
    callables.swap(callables_);
    tasks.swap(tasks_);
  }
  // The tasks drop their graphs together with the session.
  for (auto& [key, compiled] : recent) compiled->parts.clear();
  for (auto& [id, callable] : callables) callable.first->parts.clear();
  if (tasks.empty()) return;
  tensorflow::DeleteWorkerSessionRequest request;
  request.set_session_handle(handle_);
  Calls calls(static_cast<int>(tasks.size()));
  int i = 0;
  for (const auto& [name, task] : tasks) {
    CallOptions options;
    options.deadline = absl::Now() + kCleanupTimeout;
    task->DeleteWorkerSession(options, request, calls.Done(i++));
  }
  calls.Wait();  // a task that is gone has nothing to delete
}

// --- Master --------------------------------------------------------------------------------------

Master::Master(MasterOptions options) : options_(std::move(options)) {}
Master::~Master() { Shutdown(absl::AbortedError("Shutdown")); }

StatusOr<std::shared_ptr<Master::Session>> Master::FindSession(const std::string& handle,
                                                               absl::string_view hint) const {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(shut_down_);
  const auto it = sessions_.find(handle);
  if (it == sessions_.end()) {
    return absl::AbortedError(absl::StrCat("Session ", handle, " is not found.", hint));
  }
  return it->second;
}

Status Master::CreateSession(const tensorflow::CreateSessionRequest& request,
                             absl::Duration timeout, int max_cached_plans,
                             tensorflow::CreateSessionResponse* response) {
  tensorflow::ConfigProto config = options_.default_config;
  if (request.config().device_filters_size() > 0) config.clear_device_filters();
  config.MergeFrom(request.config());
  auto session = std::make_shared<Session>(&options_, RandomHexName(), std::move(config), timeout,
                                           max_cached_plans);
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(shut_down_);
  }
  Status status = session->Create(&shutdown_);
  int64_t version = 0;
  if (status.ok() && request.graph_def().node_size() > 0) {
    status = session->Extend(request.graph_def(), 0, &shutdown_, &version);
  }
  if (status.ok()) {
    MutexLock lock(&mu_);
    status = shut_down_;
    if (status.ok()) sessions_[session->handle()] = session;
  }
  if (!status.ok()) {
    session->Close(status);
    return status;
  }
  response->set_session_handle(session->handle());
  response->set_graph_version(version);
  return absl::OkStatus();
}

Status Master::ExtendSession(const tensorflow::ExtendSessionRequest& request,
                             tensorflow::ExtendSessionResponse* response) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  int64_t version = 0;
  RETURN_IF_ERROR(
      session->Extend(request.graph_def(), request.current_graph_version(), &shutdown_, &version));
  response->set_new_graph_version(version);
  return absl::OkStatus();
}

namespace {

RunSignature SignatureOf(const tensorflow::RunStepRequest& request,
                         absl::Span<const NamedTensor> feeds, std::vector<Tensor>* values) {
  RunSignature signature;
  for (const NamedTensor& feed : feeds) {
    signature.feeds.push_back(feed.name);
    values->push_back(feed.value);
  }
  signature.fetches.assign(request.fetch().begin(), request.fetch().end());
  signature.targets.assign(request.target().begin(), request.target().end());
  return signature;
}

}  // namespace

StatusOr<StepResult> Master::RunStep(const tensorflow::RunStepRequest& request,
                                     absl::Span<const NamedTensor> feeds) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  std::vector<Tensor> values;
  const RunSignature signature = SignatureOf(request, feeds, &values);
  ASSIGN_OR_RETURN(std::shared_ptr<CompiledStep> compiled, session->Compile(signature));
  return session->RunAndWait(std::move(compiled), values, request.options());
}

void Master::RunStepAsync(const tensorflow::RunStepRequest& request,
                          absl::Span<const NamedTensor> feeds, CancellationManager* cancellation,
                          StepDone done) {
  const StatusOr<std::shared_ptr<Session>> session = FindSession(request.session_handle());
  if (!session.ok()) return done(session.status());
  std::vector<Tensor> values;
  const RunSignature signature = SignatureOf(request, feeds, &values);
  StatusOr<std::shared_ptr<CompiledStep>> compiled = (*session)->Compile(signature);
  if (!compiled.ok()) return done(compiled.status());
  StepOptions options;
  options.run = request.options();
  options.block = false;
  options.cancellation = cancellation;
  (*session)->Run(*std::move(compiled), values, options, std::move(done));
}

Status Master::MakeCallable(const tensorflow::MakeCallableRequest& request,
                            tensorflow::MakeCallableResponse* response) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  const tensorflow::CallableOptions& options = request.options();
  if (options.tensor_connection_size() > 0) {
    return absl::UnimplementedError("MakeCallable: tensor connections are not supported");
  }
  RunSignature signature;
  signature.feeds.assign(options.feed().begin(), options.feed().end());
  signature.fetches.assign(options.fetch().begin(), options.fetch().end());
  signature.targets.assign(options.target().begin(), options.target().end());
  ASSIGN_OR_RETURN(std::shared_ptr<CompiledStep> compiled, session->Compile(signature));
  response->set_handle(session->AddCallable(std::move(compiled), options.run_options()));
  return absl::OkStatus();
}

StatusOr<StepResult> Master::RunCallable(const tensorflow::RunCallableRequest& request,
                                         absl::Span<const Tensor> feeds,
                                         const tensorflow::RunOptions* options) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  ASSIGN_OR_RETURN(auto callable, session->FindCallable(request.handle()));
  return session->RunAndWait(std::move(callable.first), feeds,
                             options == nullptr ? callable.second : *options);
}

void Master::RunCallableAsync(const tensorflow::RunCallableRequest& request,
                              absl::Span<const Tensor> feeds, CancellationManager* cancellation,
                              StepDone done) {
  const StatusOr<std::shared_ptr<Session>> session = FindSession(request.session_handle());
  if (!session.ok()) return done(session.status());
  auto callable = (*session)->FindCallable(request.handle());
  if (!callable.ok()) return done(callable.status());
  StepOptions options;
  options.run = callable->second;
  options.block = false;
  options.cancellation = cancellation;
  (*session)->Run(std::move(callable->first), feeds, options, std::move(done));
}

Status Master::ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  return session->RemoveCallable(request.handle());
}

Status Master::CloseSession(const tensorflow::CloseSessionRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                   FindSession(request.session_handle(), " Possibly, this master has restarted."));
  {
    MutexLock lock(&mu_);
    sessions_.erase(session->handle());
  }
  session->Close(absl::CancelledError("Session has been closed."));
  return absl::OkStatus();
}

Status Master::ListDevices(const tensorflow::ListDevicesRequest& request,
                           tensorflow::ListDevicesResponse* response) {
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(shut_down_);
    if (sessions_.count(request.session_handle()) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Session ", request.session_handle(),
                       " is not found. Possibly, this master has restarted."));
    }
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(request.session_handle()));
  session->ListDevices(response);
  return absl::OkStatus();
}

Status Master::Reset(const tensorflow::ResetRequest& request) {
  std::map<std::string, std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(&mu_);
    RETURN_IF_ERROR(shut_down_);
    sessions.swap(sessions_);
  }
  for (const auto& [handle, session] : sessions) {
    session->Close(absl::CancelledError("Session has been closed by a reset of its master."));
  }
  const std::vector<std::string> filters(request.device_filters().begin(),
                                         request.device_filters().end());
  std::vector<std::shared_ptr<Transport>> tasks;
  for (const std::string& job : options_.cluster.jobs()) {
    for (const int task : options_.cluster.tasks(job)) {
      const std::string name = absl::StrCat("/job:", job, "/replica:0/task:", task);
      ASSIGN_OR_RETURN(const bool wanted, PassesDeviceFilters(name, filters));
      if (!wanted && name != options_.task) continue;
      if (auto transport = options_.peer(name)) tasks.push_back(std::move(transport));
    }
  }
  tensorflow::CleanupAllRequest cleanup;
  *cleanup.mutable_container() = request.container();
  Calls calls(static_cast<int>(tasks.size()));
  for (size_t i = 0; i < tasks.size(); ++i) {
    CallOptions options;
    options.deadline = absl::Now() + kCleanupTimeout;
    tasks[i]->CleanupAll(options, cleanup, calls.Done(static_cast<int>(i)));
  }
  const std::vector<Status>& statuses = calls.Wait();
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (!statuses[i].ok()) return FromTask(tasks[i]->task(), statuses[i]);
  }
  return absl::OkStatus();
}

void Master::Shutdown(const Status& status) {
  std::map<std::string, std::shared_ptr<Session>> sessions;
  {
    MutexLock lock(&mu_);
    if (shut_down_.ok()) shut_down_ = status;
    sessions.swap(sessions_);
  }
  shutdown_.StartCancel();
  for (const auto& [handle, session] : sessions) session->Close(status);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/io_pool.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/termination.h"
#include "distributed/cluster/link_environment.h"
#include "distributed/grpc_session.h"
#include "distributed/leave_watch.h"
#include "distributed/link/grpc_wire.h"
#include "distributed/link/link.h"
#include "distributed/master/link_parts.h"
#include "distributed/master/master.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/master/master_service.h"
#include "distributed/server_counts.h"
#include "distributed/server_links.h"
#include "distributed/task_link_end.h"
#include "distributed/task_metrics.h"
#include "distributed/transport/grpc_control.h"
#include "distributed/transport/peer_counts.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/in_process_control.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "distributed/worker/worker_service.h"
#include "formats/graph_files.h"
#include "net/duplex_call.h"
#include "net/health_service.h"
#include "net/http/metrics_page.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "proto/config.pb.h"
#include "run/found_run.h"
#include "run/run_registry.h"
#include "run/run_watch.h"
#include "run/training_run.h"
#include "runtime/session/compile_path.h"

namespace millrace {
namespace {

// Threads that wait for calls, by the number of cores. Few: each one that has nothing to do is
// woken for events that another one takes. They run steps too, and are replaced meanwhile
// (net/call_threads.h).
constexpr int kMinPollers = 1;
constexpr int kMaxPollers = 4;
constexpr int kCoresPerPoller = 16;
// How often a server that leaves by itself looks whether its time has come.
constexpr int kAskPeriodMs = 250;
// How long a task may take to say who it is.
constexpr absl::Duration kAskTimeout = absl::Seconds(5);

// The end of a server, for those who wait for it.
class StopEvent {
 public:
  StopEvent() : fd_(::eventfd(0, EFD_CLOEXEC)) {}
  ~StopEvent() {
    if (fd_ >= 0) ::close(fd_);
  }
  StopEvent(const StopEvent&) = delete;
  StopEvent& operator=(const StopEvent&) = delete;

  void Notify() {
    notified_.store(true, std::memory_order_release);
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof(one));
  }
  enum class Event { kNotified, kSignal, kDone };
  // Blocks until Notify, until `request` (may be null: never) has a signal, or until `is_done`,
  // which is asked now and then (may be null: never).
  Event Wait(const TerminationRequest* request, const std::function<bool()>& is_done) {
    // Without a descriptor only signal() and the flag tell.
    const bool looks = request != nullptr && request->fd() < 0;
    const int period_ms = is_done == nullptr && !looks && fd_ >= 0 ? -1 : kAskPeriodMs;
    for (;;) {
      // A negative descriptor is passed over.
      pollfd events[2] = {{fd_, POLLIN, 0}, {request == nullptr ? -1 : request->fd(), POLLIN, 0}};
      // Whatever hinders it passes: a server must not take that for its end.
      while (::poll(events, 2, period_ms) < 0) {
        if (errno != EINTR) Clock::Real()->SleepFor(absl::Milliseconds(100));
      }
      if ((events[1].revents & POLLIN) != 0 || (looks && request->signal() != 0)) {
        return Event::kSignal;
      }
      if (notified_.load(std::memory_order_acquire)) return Event::kNotified;
      if (is_done != nullptr && is_done()) return Event::kDone;
    }
  }

 private:
  // Readable, for good, once notified; -1 when the system had no descriptor left.
  const int fd_;
  std::atomic<bool> notified_{false};  // release: a reader that sees it sees what came before
};

// Calls that make or keep a session on this server keep this; after Stop it only refuses.
struct ServerCore {
  ~ServerCore() {
    // Sessions first: they end their steps on the worker.
    master->Shutdown(absl::AbortedError("Shutdown"));
    worker->Shutdown(absl::AbortedError("Shutdown"));
  }

  std::shared_ptr<WorkerControl> Peer(absl::string_view task) {
    MutexLock lock(&mu);
    const auto it = peers.find(task);
    if (it != peers.end()) return it->second;
    std::shared_ptr<RpcChannel> channel = ChannelLocked(task);
    if (channel == nullptr) return nullptr;
    std::shared_ptr<WorkerControl> control = MakeGrpcControl(std::string(task), std::move(channel));
    peers[std::string(task)] = control;
    return control;
  }
  // Null for a task that is not in the cluster.
  std::shared_ptr<RpcChannel> Channel(absl::string_view task) {
    MutexLock lock(&mu);
    return ChannelLocked(task);
  }
  std::shared_ptr<RpcChannel> ChannelLocked(absl::string_view task)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    const auto address = addresses.find(task);
    if (address == addresses.end()) return nullptr;
    std::shared_ptr<RpcChannel>& channel = channels[std::string(task)];
    if (channel == nullptr) channel = RpcChannel::Make(address->second, credentials);
    return channel;
  }

  ServerLimits limits;
  std::shared_ptr<const Credentials> credentials;  // fixed after Start, like the addresses
  Mutex mu;
  std::map<std::string, std::string, std::less<>> addresses;  // by task; fixed after Start
  std::shared_ptr<const PeerCounters> peer_counters;          // likewise
  std::map<std::string, std::shared_ptr<WorkerControl>, std::less<>> peers ABSL_GUARDED_BY(mu);
  std::map<std::string, std::shared_ptr<RpcChannel>> channels ABSL_GUARDED_BY(mu);
  ServerLinks links;  // closed by Stop; ends of links keep the core until they hear so
  const std::shared_ptr<LinkParts> link_parts = std::make_shared<LinkParts>(&links);
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Master> master;
  absl::Duration stop_grace;
  std::atomic<bool> is_leaving{false};  // relaxed: what probes see; once told to end
};

// The worker, as a RunWatch asks it.
class WorkerRuns : public WatchedRuns {
 public:
  // `worker` outlives it.
  explicit WorkerRuns(Worker* worker) : worker_(worker) {}
  const std::string& task() const override { return worker_->task(); }
  std::optional<RunRegistry::Finished> FindFinishedRun() const override {
    return worker_->FindFinishedRun();
  }
  int64_t num_run_claims() const override { return worker_->num_run_claims(); }
  void NoteRunEnd(const TrainingRun& run, const RunEnd& end) override {
    worker_->NoteRunEnd(run, end);
  }
  void EndSessionsOfRun(const TrainingRun& run, const RunEnd& end) override {
    worker_->EndSessionsOfRun(run, end);
  }

 private:
  Worker* const worker_;
};

// The worker and the tasks of its masters, as a LeaveWatch asks them.
class ServedSessions : public WatchedSessions {
 public:
  explicit ServedSessions(std::shared_ptr<ServerCore> core) : core_(std::move(core)) {}
  const std::string& task() const override { return core_->worker->task(); }
  std::vector<Worker::OpenedSession> OpenSessions() const override {
    return core_->worker->OpenSessions();
  }
  void Ask(const std::string& task, Heard heard) override {
    const std::shared_ptr<WorkerControl> peer = core_->Peer(task);
    if (peer == nullptr) return;
    CallOptions options;
    options.deadline = absl::Now() + kAskTimeout;
    auto devices = std::make_shared<std::vector<tensorflow::DeviceAttributes>>();
    peer->GetStatus(options, devices.get(),
                    [devices, heard = std::move(heard)](const Status& status) {
                      const bool known = status.ok() && !devices->empty();
                      heard(status, known ? devices->front().incarnation() : 0);
                    });
  }
  std::string Whereabouts(const std::string& task) const override {
    const std::shared_ptr<WorkerControl> peer = core_->Peer(task);
    return peer == nullptr ? task : absl::StrCat(task, " at ", peer->address());
  }

 private:
  const std::shared_ptr<ServerCore> core_;
};

// What calls use, until the last of them has ended.
struct Served {
  explicit Served(std::shared_ptr<ServerCore> c) : core(std::move(c)) {}
  const std::shared_ptr<ServerCore> core;
  MasterPools pools;
};

bool IsLoopback(absl::string_view host) {
  return host == "localhost" || host == "[::1]" || absl::StartsWith(host, "127.");
}

class GrpcServer : public Server {
 public:
  GrpcServer(std::shared_ptr<ServerCore> core, std::string host, absl::Duration stop_bound)
      : core_(std::move(core)), host_(std::move(host)), stop_bound_(stop_bound) {}
  ~GrpcServer() override { Stop(); }

  Status Listen(const std::string& address) {
    RpcServer::Options options;
    options.address = address;
    options.handler_bound = stop_bound_;
    options.credentials = core_->credentials;
    options.limits = core_->limits;
    options.num_pollers =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / kCoresPerPoller,
                   kMinPollers, kMaxPollers);
    options.handlers = WorkerHandlers(core_->worker.get());
    auto served = std::make_shared<Served>(core_);
    options.handlers.merge(
        MasterHandlers(core_->master.get(), &served->pools,
                       [worker = core_->worker.get()](absl::Span<const std::string> containers,
                                                      int master_sessions) {
                         return worker->CheckMayClear("Reset", containers, master_sessions);
                       }));
    AddNamesOfStubs(&options.handlers);
    health_ = HealthService::Create(
        {.look =
             [core = core_] {
               return [core](absl::string_view name) { return HealthOf(*core, name); };
             },
         .known_names =
             "\"\", the name or the job of this task, or the id of a run that it knows"});
    options.handlers.merge(health_->Handlers());
    options.duplex_handlers[kLinkMethod] = [links =
                                                &core_->links](std::shared_ptr<DuplexCall> call) {
      links->Accept(std::move(call));
    };
    options.keep = std::move(served);
    MR_ASSIGN_OR_RETURN(rpc_, RpcServer::Start(std::move(options)));
    port_ = rpc_->port();
    RegisterLocalMaster(own_address(),
                        std::shared_ptr<MasterInterface>(core_, core_->master.get()));
    SetLogTask(absl::StrReplaceAll(core_->worker->task(), {{"/replica:0", ""}}));
    metrics_.emplace([this] { return Figures(); });
    LogInfo("Server of ", core_->worker->task(), " listens on ", own_address());
    const Credentials& shown = *core_->credentials;
    if (!shown.token.empty() && !shown.is_tls() && !IsLoopback(host_)) {
      LogWarning("Server of ", core_->worker->task(),
                 ": the token travels without TLS, and who can read the network can read it; set "
                 "MILLRACE_CERTIFICATE_FILE, MILLRACE_KEY_FILE and MILLRACE_CA_FILE");
    }
    return absl::OkStatus();
  }

  std::string target() const override { return absl::StrCat("grpc://", own_address()); }
  int port() const override { return port_; }

  ServerCounts counts() const {
    ServerCounts counts;
    if (rpc_ != nullptr) {
      for (const auto& [name, method] : rpc_->counts()) {
        counts.methods[name] = {.calls = method.calls, .messages = method.messages};
      }
    }
    counts.wakeups = core_->worker->num_wakeups();
    counts.unix_links = core_->links.num_unix_links();
    counts.pooled_tensors = core_->links.num_pooled_tensors();
    counts.unpooled_tensors = core_->links.num_unpooled_tensors();
    counts.pooled_bytes = core_->links.pooled_bytes();
    counts.kept_tensors = core_->links.num_kept_tensors();
    counts.bytes_kept_at_peers = core_->links.bytes_kept_at_peers();
    counts.bytes_kept_for_peers = core_->links.bytes_kept_for_peers();
    counts.peers = core_->peer_counters->Read();
    return counts;
  }

  Status Join(const JoinOptions& options) override {
    std::function<bool()> is_done;
    WorkerRuns runs(core_->worker.get());
    RunWatch watch(
        &runs,
        {.logdir = options.logdir, .grace = options.grace, .stale_grace = options.stale_grace});
    if (options.exit_when_done) is_done = [&watch] { return watch.IsDone(); };
    // Until this returns: the second signal ends the process.
    const TerminationRequest request;
    StopEvent::Event event = stopped_event_.Wait(&request, is_done);
    if (event == StopEvent::Event::kSignal) {
      LogInfo("Server of ", core_->worker->task(), " was told to end");
      NoteLeaving();
      core_->master->StopOpening(Stopping());
      core_->worker->StopOpening(Stopping());
      ServedSessions sessions(core_);
      LeaveWatch leave(&sessions, options.signal_grace);
      event = stopped_event_.Wait(
          nullptr, [&] { return leave.IsDone() || (is_done != nullptr && is_done()); });
    }
    if (event != StopEvent::Event::kNotified) Stop();
    return absl::OkStatus();
  }

  void Stop() override {
    MutexLock lock(&stop_mu_);
    if (std::exchange(stopped_, true)) return;
    NoteLeaving();
    if (health_ != nullptr) health_->End();
    if (rpc_ != nullptr) UnregisterLocalMaster(own_address());
    const absl::Time deadline = absl::Now() + core_->stop_grace;
    const bool drained = Drain(deadline);
    core_->master->Shutdown(absl::AbortedError("Shutdown"));
    core_->worker->Shutdown(absl::AbortedError("Shutdown"));
    core_->links.CloseAll(Stopping());
    // What is on its way may still arrive.
    if (rpc_ != nullptr) rpc_->Shutdown(drained ? deadline : absl::InfinitePast());
    const std::string exchanged = core_->peer_counters->ToString();
    if (!exchanged.empty()) {
      LogInfo("Server of ", core_->worker->task(), ": tensors of steps: ", exchanged);
    }
    metrics_.reset();
    stopped_event_.Notify();
  }

 private:
  // "" and the names of the task: while it takes sessions. A run by its id: while it is trained
  // here.
  static Health HealthOf(const ServerCore& core, absl::string_view name) {
    const bool serves = !core.is_leaving.load(std::memory_order_relaxed);
    const auto health = [serves](bool is_well) {
      return is_well && serves ? Health::kServing : Health::kNotServing;
    };
    const std::string& task = core.worker->task();
    const std::string short_name = absl::StrReplaceAll(task, {{"/replica:0", ""}});
    // "/job:ps/task:0" -> "ps"
    const absl::string_view job = absl::StripPrefix(
        absl::string_view(short_name).substr(0, short_name.find("/task:")), "/job:");
    if (name.empty() || name == task || name == short_name || name == job) return health(true);
    switch (core.worker->FindRun("", name).state) {
      case FoundRun::State::kUnknown:
        return Health::kServiceUnknown;
      case FoundRun::State::kClaimed:
        return health(true);
      default:
        return Health::kNotServing;
    }
  }
  TaskFigures Figures() const {
    TaskFigures figures;
    figures.task = core_->worker->task();
    figures.is_serving = !core_->is_leaving.load(std::memory_order_relaxed);
    figures.counts = counts();
    for (const Worker::OpenedSession& session : core_->worker->OpenSessions()) {
      figures.sessions.push_back(
          {.master = session.master_task, .running_steps = session.running_steps});
    }
    return figures;
  }
  void NoteLeaving() {
    if (core_->is_leaving.exchange(true, std::memory_order_relaxed)) return;
    if (health_ != nullptr) health_->NoteChange();
  }
  Status Stopping() const {
    return absl::UnavailableError(absl::StrCat("Server of ", core_->worker->task(), " at ",
                                               own_address(),
                                               " must take calls, got one that is stopping"));
  }
  // What runs may end, and what was sent may be taken; nothing begins any more. False when
  // something is left at `deadline`.
  bool Drain(absl::Time deadline) {
    core_->master->StopTaking(Stopping());
    core_->worker->StopTaking(Stopping());
    if (!core_->master->AwaitSteps(deadline) || !core_->worker->AwaitSteps(deadline)) {
      LogInfo("Server of ", core_->worker->task(), ": cancels the steps that still run after ",
              absl::FormatDuration(core_->stop_grace));
      return false;
    }
    if (core_->worker->AwaitTaken(deadline)) return true;
    LogInfo("Server of ", core_->worker->task(), ": drops tensors that other tasks have not taken ",
            "within ", absl::FormatDuration(core_->stop_grace));
    return false;
  }
  std::string own_address() const { return absl::StrCat(host_, ":", port_); }

  const std::shared_ptr<ServerCore> core_;
  const std::string host_;
  const absl::Duration stop_bound_;
  StopEvent stopped_event_;
  std::shared_ptr<HealthService> health_;
  std::unique_ptr<RpcServer> rpc_;
  int port_ = 0;
  std::optional<TaskMetrics> metrics_;
  Mutex stop_mu_;
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;
};

// A process has one set of roots: servers that are given none leave it alone.
Status SetFileRoots(std::vector<std::string> roots) {
  const char* const text = std::getenv("MILLRACE_FILE_ROOTS");
  if (roots.empty() && text != nullptr) {
    roots = absl::StrSplit(text, ':', absl::SkipEmpty());
    // Without a root every path would be open.
    if (roots.empty() && *text != '\0') {
      return InvalidArgument("Server: MILLRACE_FILE_ROOTS must name a directory, got '", text,
                             "'; unset it to leave all paths open");
    }
  }
  return roots.empty() ? absl::OkStatus() : SetGraphFileRoots(roots);
}

// One process without a cluster: sessions in it need no server.
class LocalServer : public Server {
 public:
  std::string target() const override { return ""; }
  int port() const override { return 0; }
  // Nobody trains here but this process itself.
  Status Join(const JoinOptions&) override {
    const TerminationRequest request;
    stopped_event_.Wait(&request, nullptr);
    return absl::OkStatus();
  }
  void Stop() override { stopped_event_.Notify(); }

 private:
  StopEvent stopped_event_;
};

// "EndRun" of "/millrace.WorkerControl/EndRun".
bool IsNamed(absl::string_view method, absl::string_view name) {
  return absl::EndsWith(method, absl::StrCat("/", name));
}

}  // namespace

int64_t ServerCounts::calls(absl::string_view method) const {
  int64_t sum = 0;
  for (const auto& [name, counted] : methods) sum += IsNamed(name, method) ? counted.calls : 0;
  return sum;
}

int64_t ServerCounts::messages(absl::string_view method) const {
  int64_t sum = 0;
  for (const auto& [name, counted] : methods) sum += IsNamed(name, method) ? counted.messages : 0;
  return sum;
}

ServerCounts CountsOf(const Server& server) {
  const auto* const grpc = dynamic_cast<const GrpcServer*>(&server);
  return grpc == nullptr ? ServerCounts() : grpc->counts();
}

namespace {

// What the options leave to the environment.
struct Wires {
  bool within_host = true;
  int64_t shared_bytes = 0;
};

StatusOr<Wires> WiresOf(const ServerOptions& options) {
  Wires wires;
  // A word that is none is refused also when the options decide.
  MR_ASSIGN_OR_RETURN(const bool within_host, UnixLinksOfEnvironment());
  wires.within_host = options.unix_links.value_or(within_host);
  MR_ASSIGN_OR_RETURN(wires.shared_bytes,
                      LinkSharedBytesOfEnvironment(options.limits.max_link_shared_bytes));
  return wires;
}

}  // namespace

StatusOr<std::unique_ptr<Server>> Server::Start(const ClusterConfig& cluster,
                                                const ServerOptions& options) {
  MR_RETURN_IF_ERROR(StartMetricsPageOfEnvironment(HealthOfTasks));
  if (cluster.is_local()) return std::unique_ptr<Server>(std::make_unique<LocalServer>());
  const StatusOr<std::string> address = cluster.cluster().address(cluster.job(), cluster.task());
  if (!address.ok()) {
    return InvalidArgument("Server: this process must be a task of the ", "cluster, got ",
                           cluster.task_device());
  }
  MR_ASSIGN_OR_RETURN(const Wires wires, WiresOf(options));
  MR_RETURN_IF_ERROR(SetFileRoots(options.file_roots));
  auto core = std::make_shared<ServerCore>();
  core->limits = options.limits;
  core->limits.max_link_shared_bytes = wires.shared_bytes;
  MR_ASSIGN_OR_RETURN(core->credentials, options.security.has_value()
                                             ? Credentials::Load(*options.security)
                                             : ClusterCredentials());

  const auto name_of = [](absl::string_view job, int task) {
    return absl::StrCat("/job:", job, "/replica:0/task:", task);
  };
  for (const std::string& job : cluster.cluster().jobs()) {
    for (const int task : cluster.cluster().tasks(job)) {
      core->addresses[name_of(job, task)] = *cluster.cluster().address(job, task);
    }
  }
  std::vector<std::string> tasks;
  for (const auto& [task, of_task] : core->addresses) tasks.push_back(task);
  core->peer_counters = std::make_shared<PeerCounters>(tasks);
  WorkerOptions worker;  // it and the master borrow the core, whose members they are
  worker.task = name_of(cluster.job(), cluster.task());
  tensorflow::ConfigProto config = ConfigProtoOf(options.config);
  const auto cpus = config.device_count().find("CPU");
  if (cpus != config.device_count().end()) worker.num_cpu_devices = cpus->second;
  if (const int threads = ComputeThreads(config); threads > 0) {
    worker.own_arena = Arena::Make(threads);
  }
  worker.io_pool = IoPool::Default();
  worker.run_linger = options.run_linger;
  worker.shutdown_bound = options.stop_bound;
  worker.limits = core->limits;
  worker.source = [core = core.get()](absl::string_view task) -> std::shared_ptr<TensorSource> {
    std::shared_ptr<RpcChannel> channel = core->Channel(task);
    return channel == nullptr ? nullptr : MakeGrpcTensorSource(std::move(channel));
  };
  worker.peer_counters = core->peer_counters;
  worker.links = &core->links;
  const std::string own = worker.task;
  core->worker = std::make_unique<Worker>(std::move(worker));
  ServerLinksOptions links;
  links.task = own;
  links.incarnation = core->worker->DeviceAttributes()[0].incarnation();
  links.limits = core->limits;
  links.unix_links = wires.within_host;
  links.channel = [weak = std::weak_ptr<ServerCore>(core)](
                      const std::string& task) -> std::shared_ptr<RpcChannel> {
    const std::shared_ptr<ServerCore> alive = weak.lock();
    return alive == nullptr ? nullptr : alive->Channel(task);
  };
  links.address = [addresses = core->addresses](const std::string& name) {
    const auto found = addresses.find(name);
    return found == addresses.end() ? std::string() : found->second;
  };
  links.make_end = [weak = std::weak_ptr<ServerCore>(core)]() -> std::shared_ptr<LinkEnd> {
    const std::shared_ptr<ServerCore> alive = weak.lock();
    if (alive == nullptr) return nullptr;
    // A link may be the last to keep the core, and hear so on a thread of the network.
    return std::make_shared<TaskLinkEnd>(
        LetGoOn(IoPool::Default(), std::shared_ptr<Worker>(alive, alive->worker.get())),
        alive->link_parts,
        // The other end doubts that this task's sessions live.
        [weak] {
          // It may be the last that holds the server.
          IoPool::Default()->Schedule([weak] {
            const std::shared_ptr<ServerCore> core = weak.lock();
            if (core != nullptr && core->master != nullptr) core->master->RenewLeases();
          });
        });
  };
  core->links.Open(std::move(links));
  core->peers[own] = MakeInProcessControl(core->worker.get(), *address);
  MasterOptions master;
  master.task = own;
  master.cluster = cluster.cluster();
  master.default_config = std::move(config);
  master.lease = options.lease;
  master.limits = core->limits;
  master.lease_period = options.lease_period;
  master.close_bound = options.stop_bound;
  master.peer = [core = core.get()](absl::string_view task) { return core->Peer(task); };
  master.local_part = MakeLocalPart(core->worker.get());
  master.links = core->link_parts;
  core->master = std::make_unique<Master>(std::move(master));

  core->stop_grace = options.stop_grace;
  auto server = std::make_unique<GrpcServer>(
      std::move(core), address->substr(0, address->rfind(':')), options.stop_bound);
  MR_RETURN_IF_ERROR(server->Listen(*address));
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace millrace

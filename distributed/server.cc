// SPDX-License-Identifier: Apache-2.0
#include "distributed/server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/io_pool.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "distributed/grpc_session.h"
#include "distributed/master/master.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/transport/grpc_transport.h"
#include "distributed/transport/in_process_transport.h"
#include "distributed/transport/rpc.h"
#include "distributed/transport/transport.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "runtime/session/compile_path.h"

namespace millrace {
namespace {

// Calls of remote clients that may wait for other tasks at the same time.
constexpr int kMasterThreads = 64;
// Threads that receive calls. They run steps, so there are as many as may compute at once, and
// some.
constexpr int kMinPollers = 4;
constexpr int kMaxPollers = 16;

// Readable once SIGTERM or SIGINT has come, for good; -1 while they are not handled.
std::atomic<int> signal_event{-1};
// Servers in Join(). Lock-free, so a signal handler may read it.
std::atomic<int> num_joined{0};
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void OnTerminationSignal(int signal) {
  const int saved = errno;
  if (num_joined.load(std::memory_order_acquire) == 0) {
    // Nobody waits to be ended: the program ends as if nothing handled the signal.
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  } else {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written =
        ::write(signal_event.load(std::memory_order_acquire), &one, sizeof(one));
  }
  errno = saved;
}

// Whoever makes or keeps a session on this server keeps this; after Stop it only refuses.
struct ServerCore {
  explicit ServerCore(const ServerOptions& options) : options(options) {}
  ~ServerCore() {
    // Sessions first: they end their steps on the worker.
    master->Shutdown(absl::AbortedError("Shutdown"));
    worker->Shutdown(absl::AbortedError("Shutdown"));
  }

  std::shared_ptr<Transport> Peer(absl::string_view task) {
    MutexLock lock(&mu);
    const auto it = peers.find(task);
    if (it != peers.end()) return it->second;
    const auto address = addresses.find(task);
    if (address == addresses.end()) return nullptr;
    std::shared_ptr<Transport> transport =
        MakeGrpcTransport(std::string(task), RpcChannel::Make(address->second));
    peers[std::string(task)] = transport;
    return transport;
  }

  const ServerOptions options;
  Mutex mu;
  std::map<std::string, std::string, std::less<>> addresses;  // by task; fixed after Start
  std::map<std::string, std::shared_ptr<Transport>, std::less<>> peers ABSL_GUARDED_BY(mu);
  std::unique_ptr<Worker> worker;
  std::unique_ptr<Master> master;
};

class GrpcServer : public Server {
 public:
  explicit GrpcServer(std::shared_ptr<ServerCore> core, std::string host)
      : core_(std::move(core)), host_(std::move(host)), stop_event_(::eventfd(0, EFD_CLOEXEC)) {}
  ~GrpcServer() override {
    Stop();
    ::close(stop_event_);
  }

  Status Listen(const std::string& address) {
    RpcServer::Options options;
    options.address = address;
    options.num_pollers =
        std::clamp(static_cast<int>(std::thread::hardware_concurrency()), kMinPollers, kMaxPollers);
    options.handlers = WorkerHandlers(core_->worker.get());
    options.handlers.merge(MasterHandlers(core_->master.get(), &master_pool_));
    MR_ASSIGN_OR_RETURN(rpc_, RpcServer::Start(std::move(options)));
    port_ = rpc_->port();
    RegisterLocalMaster(own_address(),
                        std::shared_ptr<MasterInterface>(core_, core_->master.get()));
    LogInfo("Server of ", core_->worker->task(), " listens on ", own_address());
    return absl::OkStatus();
  }

  std::string target() const override { return absl::StrCat("grpc://", own_address()); }
  int port() const override { return port_; }

  Status Join() override {
    num_joined.fetch_add(1, std::memory_order_acq_rel);
    pollfd events[2] = {{stop_event_, POLLIN, 0},
                        {signal_event.load(std::memory_order_acquire), POLLIN, 0}};
    // A negative descriptor is passed over.
    while (::poll(events, 2, -1) < 0 && errno == EINTR) {
    }
    num_joined.fetch_sub(1, std::memory_order_acq_rel);
    if ((events[1].revents & POLLIN) != 0) {
      LogInfo("Server of ", core_->worker->task(), " was told to end");
      Stop();
    }
    return absl::OkStatus();
  }

  void Stop() override {
    MutexLock lock(&stop_mu_);
    if (std::exchange(stopped_, true)) return;
    if (rpc_ != nullptr) UnregisterLocalMaster(own_address());
    core_->master->Shutdown(absl::AbortedError("Shutdown"));
    core_->worker->Shutdown(absl::AbortedError("Shutdown"));
    if (rpc_ != nullptr) rpc_->Shutdown();
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_event_, &one, sizeof(one));
  }

 private:
  std::string own_address() const { return absl::StrCat(host_, ":", port_); }

  const std::shared_ptr<ServerCore> core_;
  const std::string host_;
  const int stop_event_;  // readable once stopped
  IoPool master_pool_{kMasterThreads};
  std::unique_ptr<RpcServer> rpc_;
  int port_ = 0;
  Mutex stop_mu_;
  bool stopped_ ABSL_GUARDED_BY(stop_mu_) = false;
};

}  // namespace

StatusOr<std::unique_ptr<Server>> Server::Start(const ClusterConfig& cluster,
                                                const ServerOptions& options) {
  if (cluster.is_local()) {
    return absl::InvalidArgumentError(
        "Server: a cluster must be configured (TF_CONFIG), got one process without a cluster");
  }
  const StatusOr<std::string> address = cluster.cluster().address(cluster.job(), cluster.task());
  if (!address.ok()) {
    return InvalidArgument("Server: this process must be a task of the ", "cluster, got ",
                           cluster.task_device());
  }
  auto core = std::make_shared<ServerCore>(options);

  const auto name_of = [](absl::string_view job, int task) {
    return absl::StrCat("/job:", job, "/replica:0/task:", task);
  };
  for (const std::string& job : cluster.cluster().jobs()) {
    for (const int task : cluster.cluster().tasks(job)) {
      core->addresses[name_of(job, task)] = *cluster.cluster().address(job, task);
    }
  }
  // Borrowed: the worker and the master are members of the core.
  const auto peer = [core = core.get()](absl::string_view task) { return core->Peer(task); };
  WorkerOptions worker;
  worker.task = name_of(cluster.job(), cluster.task());
  const auto cpus = options.config.device_count().find("CPU");
  if (cpus != options.config.device_count().end()) worker.num_cpu_devices = cpus->second;
  if (const int threads = ComputeThreads(options.config); threads > 0) {
    worker.own_arena = Arena::Make(threads);
  }
  worker.io_pool = IoPool::Default();
  worker.peer = peer;
  const std::string own = worker.task;
  core->worker = std::make_unique<Worker>(std::move(worker));
  core->peers[own] = MakeInProcessTransport(core->worker.get(), *address);
  MasterOptions master;
  master.task = own;
  master.cluster = cluster.cluster();
  master.default_config = options.config;
  master.peer = peer;
  core->master = std::make_unique<Master>(std::move(master));

  auto server =
      std::make_unique<GrpcServer>(std::move(core), address->substr(0, address->rfind(':')));
  MR_RETURN_IF_ERROR(server->Listen(*address));
  return std::unique_ptr<Server>(std::move(server));
}

void HandleTerminationSignals() {
  static const bool once = [] {
    signal_event.store(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), std::memory_order_release);
    struct sigaction action = {};
    action.sa_handler = OnTerminationSignal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGTERM, &action, nullptr);
    ::sigaction(SIGINT, &action, nullptr);
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/grpc_session.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/clock.h"
#include "core/exceptions.h"
#include "core/hash_table.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/lease_keeper.h"
#include "distributed/master/grpc_master.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/session_terms.h"
#include "graph/op_registry.h"
#include "graph/signature.h"
#include "net/rpc_channel.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "run/run_session.h"
#include "run/tell_again.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "runtime/session/run_key.h"
#include "runtime/source_lines.h"

namespace millrace {
namespace {

constexpr char kScheme[] = "grpc://";

// A shorter lease ends sessions of clients that live on a busy machine; masters take none above.
constexpr absl::Duration kMinLease = absl::Seconds(1);
constexpr absl::Duration kMaxLease = absl::Hours(24);
// Of the keys of Runs by names that are kept; what is kept for them is a few times as large. A
// program that needs more makes names up, and gains nothing.
constexpr size_t kMaxKeptBytes = size_t{1} << 20;

// Registries of the process, like that of session factories; here while servers live.
struct LocalMasters {
  Mutex mu;
  std::map<std::string, std::shared_ptr<MasterInterface>> by_address ABSL_GUARDED_BY(mu);
};
LocalMasters& local_masters() {
  static LocalMasters* const masters = new LocalMasters;
  return *masters;
}

struct FoundMaster {
  std::shared_ptr<MasterInterface> master;
  std::shared_ptr<SessionHost> host;  // the same when it is in another process, else null
};

class GrpcSession : public Session, private RunSession {
 public:
  // `keeper`: of a session whose master is in another process; else null.
  GrpcSession(FoundMaster master, LeaseKeeper* keeper, std::string handle, bool is_of_run,
              TrainingRun run, int64_t operation_timeout_ms)
      : shared_(std::make_shared<Shared>()),
        is_of_run_(is_of_run),
        run_(std::move(run)),
        host_(std::move(master.host)),
        keeper_(keeper) {
    shared_->operation_timeout_ms = operation_timeout_ms;
    shared_->master = std::move(master.master);
    shared_->handle = std::move(handle);
    if (keeper_ != nullptr) keeper_->Keep(host_, shared_->handle);
  }
  ~GrpcSession() override {
    const Status closed = Close();
    if (!closed.ok()) LogInfo("Session was not closed properly: ", closed.ToString());
  }

  Status DoExtend(const tensorflow::GraphDef& graph) override {
    return NoExceptions("Extend", [&] { return ExtendOrThrow(graph); });
  }

  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                      absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName> targets,
                                      tensorflow::RunMetadata* metadata) override {
    return NoExceptions("Run",
                        [&] { return RunOrThrow(options, feeds, fetches, targets, metadata); });
  }

  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature& signature) override {
    return NoExceptions("Prepare", [&] { return PrepareOrThrow(signature); });
  }

  Status Close() override {
    return NoExceptions("Close", [&]() -> Status {
      {
        MutexLock lock(&shared_->mu);
        if (shared_->closed) return absl::OkStatus();
        shared_->closed = true;
        shared_->Forget();
      }
      tensorflow::CloseSessionRequest request;
      request.set_session_handle(shared_->handle);
      if (keeper_ != nullptr) keeper_->Forget(host_->name(), shared_->handle);
      const Status status = shared_->master->CloseSession(request);
      if (keeper_ != nullptr && IsUnanswered(status)) keeper_->EndLater(host_, shared_->handle);
      return status;
    });
  }

  RunSession* run_session() override { return is_of_run_ ? this : nullptr; }
  std::string run_id() const override { return run_.id; }
  Status EndRun(const RunEnd& end) override {
    return NoExceptions("EndRun", [&]() -> Status {
      MR_RETURN_IF_ERROR(shared_->Open());
      return shared_->master->EndRun(shared_->handle, end);
    });
  }
  StatusOr<RunTrainers> OtherTrainers() override {
    StatusOr<RunTrainers> trainers = RunTrainers();
    MR_RETURN_IF_ERROR(NoExceptions("OtherTrainers", [&]() -> Status {
      MR_RETURN_IF_ERROR(shared_->Open());
      if (run_.empty()) return absl::OkStatus();
      trainers = shared_->master->FindTrainers(shared_->handle);
      return trainers.status();
    }));
    return trainers;
  }

  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    MR_RETURN_IF_ERROR(shared_->Open());
    tensorflow::ListDevicesRequest request;
    request.set_session_handle(shared_->handle);
    tensorflow::ListDevicesResponse response;
    MR_RETURN_IF_ERROR(shared_->master->ListDevices(request, &response));
    std::vector<tensorflow::DeviceAttributes> devices(response.local_device().begin(),
                                                      response.local_device().end());
    devices.insert(devices.end(), response.remote_device().begin(), response.remote_device().end());
    return devices;
  }

 protected:
  void AddSourceLines(std::vector<std::pair<std::string, std::string>> lines) override {
    shared_->lines.Add(std::move(lines));
  }

 private:
  struct Wanted {
    BoundSignature bound;
    // What the master is asked for: feeds in the caller's order, and the canonical fetches. When
    // everything that is fetched was fed, all of it: the master knows which names there are.
    RunSignature sent;
  };
  struct Shared {
    std::shared_ptr<MasterInterface> master;
    std::string handle;
    int64_t operation_timeout_ms = 0;  // of steps without a limit of their own; 0: none
    SourceLines lines;
    Mutex mu;
    bool closed ABSL_GUARDED_BY(mu) = false;
    HashSet<std::string> operations ABSL_GUARDED_BY(mu);  // nodes without outputs
    // What Runs by names resolved to, by their MakeRunKey: since the last Extend, which may make an
    // operation of a name that was unknown.
    HashMap<std::string, std::shared_ptr<const Wanted>> kept ABSL_GUARDED_BY(mu);
    size_t kept_bytes ABSL_GUARDED_BY(mu) = 0;  // of its keys

    Status Open() {
      MutexLock lock(&mu);
      return closed ? absl::CancelledError("Session has been closed.") : absl::OkStatus();
    }
    // The master has the same rule; the client waits no longer than that either.
    tensorflow::RunOptions Limited(const tensorflow::RunOptions& options) const {
      tensorflow::RunOptions limited = options;
      if (limited.timeout_in_ms() <= 0) limited.set_timeout_in_ms(operation_timeout_ms);
      return limited;
    }
    Status Complete(const Status& status) const { return lines.Complete(status); }
    StatusOr<Wanted> Resolve(const Signature& names) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      Wanted wanted;
      const auto is_operation = [this](const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
        return operations.contains(name);
      };
      MR_ASSIGN_OR_RETURN(wanted.bound, BindSignature(names, is_operation));
      wanted.sent = wanted.bound.signature;
      for (size_t i = 0; i < names.feeds.size(); ++i) {
        wanted.sent.feeds[i] = CanonicalTensorName(names.feeds[i]);
      }
      if (!wanted.bound.runs()) {
        for (const std::string& fetch : names.fetches) {
          wanted.sent.fetches.push_back(CanonicalTensorName(fetch));
        }
      }
      return wanted;
    }
    // The same for a Run by names, which resolves equal names once.
    StatusOr<std::shared_ptr<const Wanted>> ResolveOnce(absl::Span<const Feed> feeds,
                                                        absl::Span<const FetchName> fetches,
                                                        absl::Span<const FetchName> targets) {
      thread_local std::string key;
      MakeRunKey(feeds, fetches, targets, &key);
      MutexLock lock(&mu);
      if (const auto it = kept.find(key); it != kept.end()) return it->second;
      MR_ASSIGN_OR_RETURN(Wanted wanted, Resolve(NamesOf(feeds, fetches, targets)));
      auto resolved = std::make_shared<const Wanted>(std::move(wanted));
      if (key.size() > kMaxKeptBytes) return resolved;
      if (kept_bytes + key.size() > kMaxKeptBytes) Forget();
      kept.emplace(key, resolved);
      kept_bytes += key.size();
      return resolved;
    }
    void Forget() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
      kept.clear();
      kept_bytes = 0;
    }
  };
  static StatusOr<std::vector<Tensor>> Arrange(const Wanted& wanted, absl::Span<const Tensor> fed,
                                               std::vector<Tensor> fetched) {
    // A master may be another program.
    if (fetched.size() != wanted.sent.fetches.size()) {
      return Internal("Session: the master must answer with ", wanted.sent.fetches.size(),
                      " tensors, got ", fetched.size());
    }
    if (!wanted.bound.runs()) return fetched;
    std::vector<Tensor> results(wanted.bound.results.size());
    ArrangeResults(wanted.bound, fed, absl::MakeSpan(fetched), absl::MakeSpan(results));
    return results;
  }

  class Prepared : public PreparedStep {
   public:
    explicit Prepared(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
    ~Prepared() override {
      if (handle == 0 || !shared_->Open().ok()) return;
      tensorflow::ReleaseCallableRequest request;
      request.set_session_handle(shared_->handle);
      request.set_handle(handle);
      shared_->master->ReleaseCallable(request).IgnoreError();  // gone with its session otherwise
    }
    StatusOr<std::vector<Tensor>> Run(absl::Span<const Tensor> feeds) override {
      return NoExceptions("Run", [&] { return RunWith(nullptr, feeds, nullptr); });
    }
    StatusOr<std::vector<Tensor>> Run(const tensorflow::RunOptions& options,
                                      absl::Span<const Tensor> feeds,
                                      tensorflow::RunMetadata* metadata) override {
      return NoExceptions("Run", [&] { return RunWith(&options, feeds, metadata); });
    }

    Wanted wanted;
    int64_t handle = 0;

   private:
    StatusOr<std::vector<Tensor>> RunWith(const tensorflow::RunOptions* options,
                                          absl::Span<const Tensor> feeds,
                                          tensorflow::RunMetadata* metadata) {
      MR_RETURN_IF_ERROR(shared_->Open());
      MR_RETURN_IF_ERROR(CheckFeedsGiven(wanted.bound, feeds));
      tensorflow::RunCallableRequest request;
      request.set_session_handle(shared_->handle);
      request.set_handle(handle);
      tensorflow::RunOptions limited;
      if (shared_->operation_timeout_ms > 0) {
        limited = shared_->Limited(options == nullptr ? limited : *options);
        options = &limited;
      }
      StatusOr<StepResult> ran = shared_->master->RunCallable(request, feeds, options);
      if (!ran.ok()) return shared_->Complete(ran.status());
      if (metadata != nullptr) metadata->Swap(&ran->metadata);
      return Arrange(wanted, feeds, std::move(ran->fetches));
    }
    const std::shared_ptr<Shared> shared_;
  };

  Status ExtendOrThrow(const tensorflow::GraphDef& graph) {
    MR_RETURN_IF_ERROR(shared_->Open());
    MutexLock lock(&extend_mu_);
    const auto request = NewMessage<tensorflow::ExtendSessionRequest>();
    request->set_session_handle(shared_->handle);
    request->set_current_graph_version(version_);
    *request->mutable_graph_def() = graph;
    tensorflow::ExtendSessionResponse response;
    MR_RETURN_IF_ERROR(shared_->Complete(shared_->master->ExtendSession(*request, &response)));
    version_ = response.new_graph_version();
    MutexLock names(&shared_->mu);
    shared_->Forget();
    for (const tensorflow::NodeDef& node : graph.node()) {
      const OpEntry* const op = LookUpOp(node.op());
      if (op != nullptr && op->def.output_arg_size() == 0) shared_->operations.insert(node.name());
    }
    return absl::OkStatus();
  }

  StatusOr<std::vector<Tensor>> RunOrThrow(const tensorflow::RunOptions& options,
                                           absl::Span<const Feed> feeds,
                                           absl::Span<const FetchName> fetches,
                                           absl::Span<const FetchName> targets,
                                           tensorflow::RunMetadata* metadata) {
    MR_RETURN_IF_ERROR(shared_->Open());
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<const Wanted> wanted,
                        shared_->ResolveOnce(feeds, fetches, targets));
    tensorflow::RunStepRequest request;
    request.set_session_handle(shared_->handle);
    for (const std::string& fetch : wanted->sent.fetches) request.add_fetch(fetch);
    for (const std::string& target : wanted->sent.targets) request.add_target(target);
    *request.mutable_options() = shared_->Limited(options);
    std::vector<NamedTensor> values;
    std::vector<Tensor> fed;
    for (size_t i = 0; i < feeds.size(); ++i) {
      values.push_back({wanted->sent.feeds[i], feeds[i].value, false});
      fed.push_back(feeds[i].value);
    }
    MR_RETURN_IF_ERROR(CheckFeedsGiven(wanted->bound, fed));
    StatusOr<StepResult> ran = shared_->master->RunStep(request, values);
    if (!ran.ok()) return shared_->Complete(ran.status());
    if (metadata != nullptr) metadata->Swap(&ran->metadata);
    return Arrange(*wanted, fed, std::move(ran->fetches));
  }

  StatusOr<std::unique_ptr<PreparedStep>> PrepareOrThrow(const Signature& signature) {
    MR_RETURN_IF_ERROR(shared_->Open());
    auto step = std::make_unique<Prepared>(shared_);
    {
      MutexLock lock(&shared_->mu);
      MR_ASSIGN_OR_RETURN(step->wanted, shared_->Resolve(signature));
    }
    const RunSignature& sent = step->wanted.sent;
    tensorflow::MakeCallableRequest request;
    request.set_session_handle(shared_->handle);
    for (const std::string& feed : sent.feeds) request.mutable_options()->add_feed(feed);
    for (const std::string& fetch : sent.fetches) request.mutable_options()->add_fetch(fetch);
    for (const std::string& target : sent.targets) request.mutable_options()->add_target(target);
    tensorflow::MakeCallableResponse response;
    MR_RETURN_IF_ERROR(shared_->Complete(shared_->master->MakeCallable(request, &response)));
    step->handle = response.handle();
    return std::unique_ptr<PreparedStep>(std::move(step));
  }

  const std::shared_ptr<Shared> shared_;
  const bool is_of_run_;
  const TrainingRun run_;                    // as the master has found it; empty: it knows no runs
  const std::shared_ptr<SessionHost> host_;  // null: the master is in this process
  LeaseKeeper* const keeper_;
  Mutex extend_mu_;
  int64_t version_ ABSL_GUARDED_BY(extend_mu_) = 0;
};

StatusOr<FoundMaster> FindMaster(const std::string& target) {
  absl::string_view address = target;
  if (!absl::ConsumePrefix(&address, kScheme) || address.empty()) {
    return InvalidArgument("Session: target must be grpc://host:port, got '", target, "'");
  }
  LocalMasters& local = local_masters();
  {
    MutexLock lock(&local.mu);
    const auto it = local.by_address.find(std::string(address));
    if (it != local.by_address.end()) return FoundMaster{it->second, nullptr};
  }
  const std::shared_ptr<RemoteMaster> remote =
      MakeGrpcMaster(RpcChannel::Make(std::string(address)));
  return FoundMaster{remote, remote};
}

// Of the sessions that this process has on masters elsewhere. Never destroyed: sessions may outlive
// whatever would do that.
LeaseKeeper* KeeperWithPeriod(absl::Duration period) {
  struct Keepers {
    Mutex mu;
    std::map<absl::Duration, LeaseKeeper*> by_period ABSL_GUARDED_BY(mu);
  };
  static Keepers* const keepers = new Keepers;
  MutexLock lock(&keepers->mu);
  LeaseKeeper*& keeper = keepers->by_period[period];
  if (keeper == nullptr) keeper = new LeaseKeeper(Clock::Real(), period);
  return keeper;
}

// The chief that is this process, when it does not say who it is.
const std::string& OwnChief() {
  static const std::string* const chief = [] {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    return new std::string(absl::StrCat("process ", ::getpid(), " on ",
                                        absl::string_view(host).substr(0, 128), ", ",
                                        RandomHexName()));
  }();
  return *chief;
}

StatusOr<std::unique_ptr<Session>> NewGrpcSession(const SessionOptions& options) {
  return NoExceptions("NewSession", [&]() -> StatusOr<std::unique_ptr<Session>> {
    MR_RETURN_IF_ERROR(CheckRun(*options.run));
    MR_ASSIGN_OR_RETURN(FoundMaster master, FindMaster(options.target));
    SessionTerms terms = {.run = *options.run};
    if (terms.run.is_chief && terms.run.chief.empty()) terms.run.chief = OwnChief();
    LeaseKeeper* keeper = nullptr;
    if (master.host != nullptr && options.lease > absl::ZeroDuration()) {
      terms.lease = std::clamp(options.lease, kMinLease, kMaxLease);
      keeper = KeeperWithPeriod(terms.lease / 3);
    }
    tensorflow::CreateSessionRequest request;
    *request.mutable_config() = ConfigProtoOf(options.config);
    const int64_t timeout_ms = request.config().operation_timeout_in_ms();
    request.set_target(options.target);
    AddSessionTerms(terms, &request);
    tensorflow::CreateSessionResponse response;
    MR_RETURN_IF_ERROR(master.master->CreateSession(request, options.creation_timeout,
                                                    options.max_cached_plans, &response));
    TrainingRun run;
    // A master that knows no runs says nothing, and what it would say badly is not worth the
    // session.
    if (const StatusOr<SessionTerms> found = SessionTermsOf(response); found.ok()) run = found->run;
    return std::unique_ptr<Session>(
        std::make_unique<GrpcSession>(std::move(master), keeper, response.session_handle(),
                                      !options.run->empty(), std::move(run), timeout_ms));
  });
}

Status ResetGrpcTarget(const SessionOptions& options, absl::Span<const std::string> containers) {
  MR_ASSIGN_OR_RETURN(const FoundMaster found, FindMaster(options.target));
  tensorflow::ResetRequest request;
  for (const std::string& container : containers) request.add_container(container);
  *request.mutable_device_filters() = ConfigProtoOf(options.config).device_filters();
  return found.master->Reset(request);
}

const SessionFactoryRegistration kFactory(kScheme, NewGrpcSession, ResetGrpcTarget);

}  // namespace

void RegisterLocalMaster(const std::string& address, std::shared_ptr<MasterInterface> master) {
  LocalMasters& local = local_masters();
  MutexLock lock(&local.mu);
  local.by_address[address] = std::move(master);
}

void UnregisterLocalMaster(const std::string& address) {
  std::shared_ptr<MasterInterface> dropped;
  LocalMasters& local = local_masters();
  MutexLock lock(&local.mu);
  const auto it = local.by_address.find(address);
  if (it == local.by_address.end()) return;
  dropped = std::move(it->second);
  local.by_address.erase(it);
}

}  // namespace millrace

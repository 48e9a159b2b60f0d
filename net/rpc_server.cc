// SPDX-License-Identifier: Apache-2.0
#include "net/rpc_server.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/visit.h"
#include "net/call_guard.h"
#include "net/call_threads.h"
#include "net/duplex_stream.h"
#include "net/grpc_events.h"
#include "net/grpc_settings.h"
#include "net/grpc_status.h"
#include "net/listen_address.h"
#include "net/poll_turns.h"
#include "net/visit_call.h"

namespace millrace {
namespace {

// How long answers may take, at least, to leave a server that shuts down.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);
// Calls that the server can take up without asking for each anew.
constexpr int kAcceptedAhead = 16;
// How soon a server that had no memory to accept a call tries again.
constexpr absl::Duration kAcceptAgain = absl::Milliseconds(100);

// Above any machine's memory; gRPC counts in it.
constexpr int64_t kMaxQuotaBytes = int64_t{1} << 50;

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(const Credentials& credentials) {
  if (!credentials.is_tls()) return grpc::InsecureServerCredentials();
  const bool is_mutual = !credentials.ca.empty() && credentials.require_client_certificate;
  grpc::SslServerCredentialsOptions options(
      is_mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_root_certs = credentials.ca;
  options.pem_key_cert_pairs.push_back({credentials.key, credentials.certificate});
  return grpc::SslServerCredentials(options);
}

// Open while the server's queue takes operations; outlives the server for calls that end late.
struct Gate {
  SharedMutex mu;
  bool closed ABSL_GUARDED_BY(mu) = false;
};

class GrpcRpcServer;
std::shared_ptr<CallGuard> GuardOf(const GrpcRpcServer* server);

// A method, and what was done for it.
struct ServedMethod {
  RpcServer::Handler handler;
  std::function<void(std::shared_ptr<DuplexCall>)> duplex;  // instead of it
  // Relaxed: counts only.
  std::atomic<int64_t> calls{0}, messages{0};
};

// What calls need, those too that end after the server.
struct ServedMethods {
  ServedMethod* Find(const std::string& method) const {
    const auto it = by_name.find(method);
    return it == by_name.end() ? nullptr : it->second.get();
  }
  std::shared_ptr<const void> keep;  // goes last
  std::map<std::string, std::unique_ptr<ServedMethod>> by_name;
};

// Events: accepted -> request read -> (written)* -> finished; `over` when gRPC is done with it.
class GrpcServerCall : public ServerCall,
                       public LongCall,
                       public std::enable_shared_from_this<GrpcServerCall> {
 public:
  GrpcServerCall(GrpcRpcServer* server, std::shared_ptr<const ServedMethods> methods,
                 std::shared_ptr<Gate> gate)
      : server_(server),
        methods_(std::move(methods)),
        gate_(std::move(gate)),
        guard_(GuardOf(server)),
        stream_(&context_) {}

  void Accept();
  void RunCall() override;
  const std::string& call_name() const override { return context_.method(); }

  const std::string& method() const override { return context_.method(); }
  absl::Time deadline() const override {
    const auto deadline = context_.deadline();
    // gRPC's "none" is the end of its clock.
    if (deadline > std::chrono::system_clock::now() + std::chrono::hours(24 * 365 * 10)) {
      return absl::InfiniteFuture();
    }
    return absl::FromChrono(deadline);
  }
  CancellationManager* cancellation() override { return &cancellation_; }
  const CallLimits& limits() const override { return guard_->limits(); }
  absl::string_view peer() const override { return ticket_.peer(); }
  bool is_from_member() const override { return guard_->callers_are_members(); }
  void Write(const grpc::ByteBuffer& message, absl::AnyInvocable<void()> written) override {
    ReaderLock lock(&gate_->mu);
    if (gate_->closed) return;
    has_written_.store(true, std::memory_order_relaxed);
    CountMessage();
    written_ = std::move(written);
    stream_.Write(message, write_.Arm(shared_from_this(), &GrpcServerCall::Written));
  }
  void Finish(const grpc::ByteBuffer& message) override {
    ReaderLock lock(&gate_->mu);
    if (gate_->closed || answered_.exchange(true, std::memory_order_relaxed)) return;
    CountMessage();
    stream_.WriteAndFinish(message, grpc::WriteOptions(), grpc::Status::OK,
                           finish_.Arm(shared_from_this(), &GrpcServerCall::Finished));
  }
  void FinishWithStatus(const Status& status) override {
    const grpc::Status answer = ToGrpcStatus(status);
    ReaderLock lock(&gate_->mu);
    if (gate_->closed || answered_.exchange(true, std::memory_order_relaxed)) return;
    stream_.Finish(answer, finish_.Arm(shared_from_this(), &GrpcServerCall::Finished));
  }

  // Of a DuplexCall; as StreamSide says.
  bool BeginRead(grpc::ByteBuffer* message, void* tag) {
    ReaderLock lock(&gate_->mu);
    if (gate_->closed) return false;
    stream_.Read(message, tag);
    return true;
  }
  bool BeginWrite(const grpc::ByteBuffer& message, void* tag) {
    ReaderLock lock(&gate_->mu);
    if (gate_->closed) return false;
    CountMessage();
    stream_.Write(message, tag);
    return true;
  }
  bool BeginFinish(void* tag) {
    ReaderLock lock(&gate_->mu);
    if (gate_->closed || answered_.exchange(true, std::memory_order_relaxed)) return false;
    stream_.Finish(grpc::Status::OK, tag);
    return true;
  }
  void Cancel() { context_.TryCancel(); }
  // On the thread of an event, last.
  void RunVisit(Visit::Work* work);

 private:
  void Accepted(bool ok);
  void Converse();
  void RequestRead(bool ok);
  Status TakeRequest(bool ok);
  void HandlerThrew();
  void CountMessage() {
    MR_DCHECK(served_ != nullptr, "only a handler, which its method has, sends messages");
    served_->messages.fetch_add(1, std::memory_order_relaxed);
  }
  void Written(bool) {
    // A client that is gone is noticed through `over`.
    absl::AnyInvocable<void()> written = std::move(written_);
    written_ = nullptr;
    try {
      if (written) written();
    } catch (...) {
      HandlerThrew();
    }
  }
  void Finished(bool) {}
  void Over(bool) {
    if (context_.IsCancelled()) cancellation_.StartCancel();
  }

  GrpcRpcServer* const server_;  // used by events only: they end before the server does
  const std::shared_ptr<const ServedMethods> methods_;
  const std::shared_ptr<Gate> gate_;
  ServedMethod* served_ = nullptr;  // of *methods_
  // Relaxed, both: gRPC orders the operations of a call; these only choose among them.
  std::atomic<bool> answered_{false}, has_written_{false};
  const std::shared_ptr<CallGuard> guard_;
  CallGuard::Ticket ticket_;
  CancellationManager cancellation_;
  grpc::GenericServerContext context_;
  grpc::GenericServerAsyncReaderWriter stream_;
  grpc::ByteBuffer request_;
  absl::AnyInvocable<void()> written_;
  OwnedEvent<GrpcServerCall> accept_, read_, write_, finish_, over_;
};

// The called side of a DuplexCall.
class ServerSide : public StreamSide {
 public:
  ServerSide(std::shared_ptr<GrpcServerCall> call, const PolledQueue& queue)
      : call_(std::move(call)), link_(queue) {}
  Status Begin() override { return absl::OkStatus(); }
  bool Read(grpc::ByteBuffer* message, void* tag) override {
    return call_->BeginRead(message, tag);
  }
  bool Write(const grpc::ByteBuffer& message, void* tag) override {
    return call_->BeginWrite(message, tag);
  }
  bool EndWrites(void* tag) override { return call_->BeginFinish(tag); }
  bool Finish(void* tag) override { return call_->BeginFinish(tag); }
  void Cancel() override { call_->Cancel(); }
  void Result(bool, absl::AnyInvocable<void(const Status&)> done) override {
    // gRPC does not say why, nor whether the client or the connection ended it.
    done(absl::UnavailableError("the caller has ended the call, or its process has ended"));
  }
  void RunVisit(Visit::Work* work) override { call_->RunVisit(work); }

 private:
  const std::shared_ptr<GrpcServerCall> call_;
  const PolledQueue::Link link_;
};

class GrpcRpcServer : public RpcServer {
 public:
  GrpcRpcServer() = default;
  ~GrpcRpcServer() override { Shutdown(absl::InfinitePast()); }

  Status Listen(Options options);
  int port() const override { return port_; }
  std::map<std::string, MethodCounts> counts() const override;
  int num_waiting_calls() const override { return threads_->num_waiting(); }
  void Shutdown(absl::Time answers_until) override;

  void AcceptNext();
  CallThreads* threads() { return threads_.get(); }
  // Before Listen.
  void Guard(std::shared_ptr<CallGuard> guard) { guard_ = std::move(guard); }
  const std::shared_ptr<CallGuard>& guard() const { return guard_; }
  grpc::AsyncGenericService* service() { return &service_; }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }
  const PolledQueue& polled() const { return *polled_; }

 private:
  bool PollOne();
  void AcceptOwed() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  std::shared_ptr<const ServedMethods> methods_;  // set before the first call
  std::string address_;
  absl::Duration handler_bound_;
  std::shared_ptr<CallGuard> guard_;
  grpc::AsyncGenericService service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::optional<PolledQueue> polled_;  // of queue_
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CallThreads> threads_;  // set before the first call
  int port_ = 0;
  // Calls that could not be accepted for want of memory. Relaxed: a reader that sees it late looks
  // again.
  std::atomic<int> owed_{0};
  Mutex mu_;
  bool accepting_ ABSL_GUARDED_BY(mu_) = true;
  bool shut_down_ ABSL_GUARDED_BY(mu_) = false;
};

std::shared_ptr<CallGuard> GuardOf(const GrpcRpcServer* server) { return server->guard(); }

void GrpcServerCall::Accept() {
  context_.AsyncNotifyWhenDone(over_.Arm(shared_from_this(), &GrpcServerCall::Over));
  server_->service()->RequestCall(&context_, &stream_, server_->queue(), server_->queue(),
                                  accept_.Arm(shared_from_this(), &GrpcServerCall::Accepted));
}

void GrpcServerCall::Accepted(bool ok) {
  if (!ok) {
    // The server shuts down; gRPC gives no end to a call that never began.
    over_.Disarm();
    return;
  }
  server_->AcceptNext();
  ServedMethod* served = nullptr;
  const Status admitted = NoExceptions("RpcServer", [&] {
    served = methods_->Find(method());  // its name may be text that gRPC makes now
    const bool is_heavy =
        served != nullptr && !served->duplex && served->handler.weight == CallWeight::kHeavy;
    return guard_->Admit(context_, is_heavy ? CallKind::kHeavy : CallKind::kOther, &ticket_);
  });
  if (!admitted.ok()) return FinishWithStatus(admitted);
  if (served != nullptr && served->duplex) {
    served_ = served;
    return Converse();
  }
  ReaderLock lock(&gate_->mu);
  if (gate_->closed) return;
  stream_.Read(&request_, read_.Arm(shared_from_this(), &GrpcServerCall::RequestRead));
}

void GrpcServerCall::Converse() {
  served_->calls.fetch_add(1, std::memory_order_relaxed);
  try {
    auto side = std::make_shared<ServerSide>(shared_from_this(), server_->polled());
    served_->duplex(std::make_shared<DuplexStream>(std::move(side), /*is_called=*/true));
  } catch (...) {
    FinishWithStatus(StatusOfException(method()));
  }
}

void GrpcServerCall::RunVisit(Visit::Work* work) { RunVisitOn(server_->threads(), work); }

void GrpcServerCall::RequestRead(bool ok) {
  const Status taken = NoExceptions(method(), [&] { return TakeRequest(ok); });
  if (!taken.ok()) {
    request_.Clear();
    return FinishWithStatus(taken);
  }
  const CallWeight weight = served_->handler.weight;
  if (weight == CallWeight::kLight) return RunCall();
  try {
    server_->threads()->Run(shared_from_this(), weight == CallWeight::kUrgent
                                                    ? CallThreads::Urgency::kUrgent
                                                    : CallThreads::Urgency::kNormal);
  } catch (...) {
    HandlerThrew();
  }
}

Status GrpcServerCall::TakeRequest(bool ok) {
  if (!ok) return InvalidArgument(method(), ": a call must have one request, got none");
  MR_RETURN_IF_ERROR(ticket_.TakeRequest(method(), request_.Length()));
  served_ = methods_->Find(method());
  if (served_ == nullptr) {
    return Unimplemented("Method must be one of this server, got ", method());
  }
  served_->calls.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

void GrpcServerCall::RunCall() {
  MR_DCHECK(served_ != nullptr, "a call without a handler is refused with its request");
  try {
    grpc::ByteBuffer request;
    request.Swap(&request_);  // to move it is to copy it
    served_->handler(shared_from_this(), request);
  } catch (...) {
    HandlerThrew();
  }
}

// The call ends, unless it has been answered. What the handler has left open of it is ignored.
void GrpcServerCall::HandlerThrew() {
  const Status status = StatusOfException(method());
  try {
    LogWarning(status.message());
    // A stream may be in the middle of a message.
    if (!has_written_.load(std::memory_order_relaxed)) return FinishWithStatus(status);
  } catch (...) {
  }
  if (!answered_.load(std::memory_order_relaxed)) context_.TryCancel();
}

void GrpcRpcServer::AcceptNext() {
  MutexLock lock(&mu_);
  owed_.fetch_add(1, std::memory_order_relaxed);
  AcceptOwed();
}

void GrpcRpcServer::AcceptOwed() {
  while (owed_.load(std::memory_order_relaxed) > 0) {
    try {
      if (accepting_) std::make_shared<GrpcServerCall>(this, methods_, gate_)->Accept();
    } catch (const std::bad_alloc&) {
      return;  // PollOne tries again
    }
    owed_.fetch_sub(1, std::memory_order_relaxed);
  }
}

bool GrpcRpcServer::PollOne() {
  void* tag;
  bool ok;
  absl::Time limit = absl::InfiniteFuture();
  if (owed_.load(std::memory_order_relaxed) > 0) {
    MutexLock lock(&mu_);
    AcceptOwed();
    limit = absl::Now() + kAcceptAgain;
  }
  switch (polled_->Next(&tag, &ok, limit)) {
    case grpc::CompletionQueue::SHUTDOWN:
      return false;
    case grpc::CompletionQueue::TIMEOUT:
      return true;
    case grpc::CompletionQueue::GOT_EVENT:
      break;
  }
  HandleEvent(tag, ok);
  return true;
}

Status AddPorts(const std::vector<std::string>& addresses,
                const std::shared_ptr<grpc::ServerCredentials>& credentials,
                grpc::ServerBuilder* builder, std::vector<int>* ports) {
  ports->resize(addresses.size());  // gRPC writes to them later
  for (size_t i = 0; i < addresses.size(); ++i) {
    MR_RETURN_IF_ERROR(CheckListenAddress(addresses[i]));
    builder->AddListeningPort(addresses[i], credentials, &(*ports)[i]);
  }
  return absl::OkStatus();
}

// What gRPC may hold for callers, in part or whole.
size_t ReceiveQuota(const CallLimits& limits) {
  const int64_t pending = std::clamp<int64_t>(limits.max_pending_bytes, 0, kMaxQuotaBytes);
  return static_cast<size_t>(pending + CallLimits::kReceiveSlackBytes);
}

Status GrpcRpcServer::Listen(Options options) {
  std::vector<std::string> addresses = {options.address};
  addresses.insert(addresses.end(), options.more_addresses.begin(), options.more_addresses.end());
  address_ = options.address;
  handler_bound_ = options.handler_bound;
  auto methods = std::make_shared<ServedMethods>();
  methods->keep = std::move(options.keep);
  for (auto& [name, handler] : options.handlers) {
    auto method = std::make_unique<ServedMethod>();
    method->handler = std::move(handler);
    methods->by_name[name] = std::move(method);
  }
  for (auto& [name, duplex] : options.duplex_handlers) {
    auto method = std::make_unique<ServedMethod>();
    method->duplex = std::move(duplex);
    methods->by_name[name] = std::move(method);
  }
  methods_ = std::move(methods);
  grpc::ServerBuilder builder;
  std::vector<int> ports;
  MR_RETURN_IF_ERROR(
      AddPorts(addresses, ServerCredentialsOf(guard_->credentials()), &builder, &ports));
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::clamp<int64_t>(guard_->limits().max_message_bytes, 1, INT32_MAX)));
  builder.SetMaxSendMessageSize(INT32_MAX);
  // Requests that never come to their end are counted by nobody else.
  grpc::ResourceQuota quota;
  quota.Resize(ReceiveQuota(guard_->limits()));
  builder.SetResourceQuota(quota);
  for (const auto& [name, value] : options.channel_arguments) {
    int number = 0;
    if (absl::SimpleAtoi(value, &number)) {
      builder.AddChannelArgument(name, number);
    } else {
      builder.AddChannelArgument(name, value);
    }
  }
  // A second process on the port must fail, not share it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kKeepalive)));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTimeout)));
  // Half of what clients keep to.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             static_cast<int>(absl::ToInt64Milliseconds(kKeepalive / 2)));
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.RegisterAsyncGenericService(&service_);
  queue_ = builder.AddCompletionQueue();
  polled_.emplace(queue_.get());
  server_ = builder.BuildAndStart();
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (server_ != nullptr && ports[i] != 0) continue;
    return FailedPrecondition("Server: ", addresses[i], " must be free, got: port is in use");
  }
  // Of a unix socket gRPC says 1.
  if (!IsUnixAddress(address_)) port_ = ports[0];
  CallThreads::Options threads;
  threads.owner = "Server";
  threads.num_pollers = options.num_pollers;
  threads.max_normal = options.max_heavy_calls;
  threads.poll_one = [this] { return PollOne(); };
  MR_ASSIGN_OR_RETURN(threads_, CallThreads::Start(std::move(threads)));
  for (int i = 0; i < kAcceptedAhead; ++i) AcceptNext();
  return absl::OkStatus();
}

std::map<std::string, RpcServer::MethodCounts> GrpcRpcServer::counts() const {
  std::map<std::string, MethodCounts> counts;
  for (const auto& [name, method] : methods_->by_name) {
    const int64_t calls = method->calls.load(std::memory_order_relaxed);
    if (calls == 0) continue;
    counts[name] = {.calls = calls, .messages = method->messages.load(std::memory_order_relaxed)};
  }
  return counts;
}

void GrpcRpcServer::Shutdown(absl::Time answers_until) {
  {
    MutexLock lock(&mu_);
    if (std::exchange(shut_down_, true)) return;
    accepting_ = false;
  }
  if (polled_) polled_->Close();
  // Answers on their way may leave; what is open afterwards is cancelled. The pollers run on until
  // the last call has ended.
  if (server_ != nullptr) {
    server_->Shutdown(absl::ToChronoTime(std::max(answers_until, absl::Now() + kShutdownGrace)));
  }
  if (queue_ != nullptr) {
    {
      WriterLock lock(&gate_->mu);
      gate_->closed = true;
      queue_->Shutdown();
    }
    if (threads_ == nullptr) HandleLastEvents(queue_.get());
  }
  if (threads_ == nullptr) return;
  for (const std::string& call : threads_->Shutdown(absl::Now() + handler_bound_)) {
    LogWarning("Server at ", address_, ": does not wait any longer for ", call,
               ", which is left behind");
  }
}

}  // namespace

StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(Options options) {
  KeepFreedMemory();
  if (options.credentials == nullptr) options.credentials = std::make_shared<Credentials>();
  MR_RETURN_IF_ERROR(options.credentials->CheckServer());
  auto server = std::make_unique<GrpcRpcServer>();
  server->Guard(std::make_shared<CallGuard>(options.credentials, options.limits));
  MR_RETURN_IF_ERROR(server->Listen(std::move(options)));
  return std::unique_ptr<RpcServer>(std::move(server));
}

}  // namespace millrace

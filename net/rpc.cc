// SPDX-License-Identifier: Apache-2.0
#include "net/rpc.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/resource_quota.h>
#include <malloc.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/visit.h"
#include "net/call_guard.h"
#include "net/call_metadata.h"
#include "net/call_threads.h"
#include "net/peer_probe.h"
#include "net/status_payloads.h"

namespace millrace {
namespace {

// Threads that wait for answers. One that a message has given work does that itself (core/visit.h)
// while another one waits.
constexpr int kClientPollers = 2;
// How long answers may take, at least, to leave a server that shuts down.
constexpr absl::Duration kShutdownGrace = absl::Milliseconds(500);
// Calls that the server can take up without asking for each anew.
constexpr int kAcceptedAhead = 16;
// Looks at peers at the same time, in all channels.
constexpr int kProbes = 16;
// How soon a server that had no memory to accept a call tries again.
constexpr absl::Duration kAcceptAgain = absl::Milliseconds(100);

// Above any machine's memory; gRPC counts in it.
constexpr int64_t kMaxQuotaBytes = int64_t{1} << 50;
// What malloc keeps free at the end of a heap before it gives memory back to the system.
constexpr int kMallocKeepsBytes = 64 << 20;

// gRPC holds messages in small pieces of malloc and frees them soon after. With glibc's own limit
// of 128 KiB each megabyte of a tensor then costs new pages: a third of the time of a large pull
// (transport_benchmark). For the whole process; limits that the user sets are left alone.
void KeepFreedMemory() {
  static const bool done = [] {
    if (std::getenv("GLIBC_TUNABLES") == nullptr &&
        std::getenv("MALLOC_TRIM_THRESHOLD_") == nullptr) {
      mallopt(M_TRIM_THRESHOLD, kMallocKeepsBytes);
    }
    return true;
  }();
  static_cast<void>(done);
}

// What a completion queue hands back.
class Event {
 public:
  virtual void Proceed(bool ok) = 0;

 protected:
  ~Event() = default;
};

// One of the operations of `Owner` that may be under way at the same time. While it is, it keeps
// the owner alive.
template <typename Owner>
class OwnedEvent final : public Event {
 public:
  using Method = void (Owner::*)(bool);
  void* Arm(std::shared_ptr<Owner> owner, Method method) {
    MR_DCHECK(owner_ == nullptr, "an operation begins again after its last event has come");
    owner_ = std::move(owner);
    method_ = method;
    return static_cast<Event*>(this);
  }
  void Disarm() { owner_ = nullptr; }
  void Proceed(bool ok) override {
    MR_DCHECK(owner_ != nullptr, "an operation that was begun gives one event");
    const std::shared_ptr<Owner> owner = std::move(owner_);
    owner_ = nullptr;
    (owner.get()->*method_)(ok);
  }

 private:
  std::shared_ptr<Owner> owner_;
  Method method_ = nullptr;
};

// No exception ends the thread, and so the process. Those of handlers end their calls.
void Handle(void* tag, bool ok) {
  try {
    static_cast<Event*>(tag)->Proceed(ok);
  } catch (...) {
    const Status status = StatusOfException("Network thread");
    NoExceptions("Network thread", [&] {
      LogWarning(status.message());
      return status;
    }).IgnoreError();
  }
}

void Poll(grpc::CompletionQueue* queue) {
  void* tag;
  bool ok;
  while (queue->Next(&tag, &ok)) Handle(tag, ok);
}

// For all channels of the process; never destroyed, like the arena and the I/O pool.
struct Client {
  grpc::CompletionQueue queue;
  std::unique_ptr<CallThreads> threads;
};
Client* TheClient() {
  static Client* const client = [] {
    auto made = std::make_unique<Client>();
    CallThreads::Options options;
    options.num_pollers = kClientPollers;
    options.poll_one = [queue = &made->queue] {
      void* tag;
      bool ok;
      if (!queue->Next(&tag, &ok)) return false;
      Handle(tag, ok);
      return true;
    };
    StatusOr<std::unique_ptr<CallThreads>> threads = CallThreads::Start(std::move(options));
    if (!threads.ok()) {
      // Of `made` nothing is in use: no thread was started. The next call tries again.
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again),
                              std::string(threads.status().message()));
    }
    made->threads = *std::move(threads);
    return made.release();
  }();
  return client;
}
grpc::CompletionQueue* ClientQueue() { return &TheClient()->queue; }

// What a message to this client made ready.
class ClientVisit final : public LongCall {
 public:
  explicit ClientVisit(Visit::Work* work) : work_(work) {}
  void RunCall() override {
    if (Visit::Work* const work = std::exchange(work_, nullptr)) Visit::Run(work);
  }
  const std::string& call_name() const override {
    static const std::string* const name = new std::string("a step's work behind a message");
    return *name;
  }

 private:
  Visit::Work* work_;
};

// As the last thing that an event of the client does: polls no more until the work is done.
void RunOnClient(Visit::Work* work) {
  std::shared_ptr<ClientVisit> visit;
  try {
    visit = std::make_shared<ClientVisit>(work);
    TheClient()->threads->Run(visit, CallThreads::Urgency::kNormal);
  } catch (...) {
    // No memory. Nobody else would run it, and steps wait for it.
    if (visit == nullptr) return Visit::Run(work);
    visit->RunCall();
  }
}

// Whom a channel calls, and what it shows there.
struct Callee {
  std::string address;
  std::shared_ptr<const Credentials> credentials;
  std::shared_ptr<PeerProbe> probe;
};

// Looks at peers that cannot be called; never behind files. Never destroyed, like the queue.
IoPool* ProbePool() {
  static IoPool* const pool = new IoPool(kProbes);
  return pool;
}

// One of kProbes, or none: a call whose peer there is no probe for ends without an explanation.
// Behind the many tasks of a job that are not there yet, and whose hosts take seconds to say so,
// one that has come would be asked again late.
class ProbePlace {
 public:
  ProbePlace() : has_(Taken().fetch_add(1, std::memory_order_relaxed) < kProbes) {
    if (!has_) Taken().fetch_sub(1, std::memory_order_relaxed);
  }
  ProbePlace(ProbePlace&& other) noexcept : has_(std::exchange(other.has_, false)) {}
  ~ProbePlace() {
    if (has_) Taken().fetch_sub(1, std::memory_order_relaxed);
  }
  bool has() const { return has_; }

 private:
  // Relaxed: a bound, no protocol.
  static std::atomic<int>& Taken() {
    static std::atomic<int> taken{0};
    return taken;
  }
  bool has_;
};

// `cancelled_here`: this side has cancelled the call.
Status FromGrpc(const Callee& callee, const grpc::Status& status, bool cancelled_here) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = static_cast<absl::StatusCode>(status.error_code());
  const std::string& message = status.error_message();
  // The connection ended under the call; gRPC says Unknown to that.
  if (code == absl::StatusCode::kUnknown && message == "Stream removed") {
    code = absl::StatusCode::kUnavailable;
  }
  // A server that goes away cancels what is open; handlers that say Cancelled say why.
  if (code == absl::StatusCode::kCancelled && !cancelled_here &&
      (message.empty() || absl::EqualsIgnoreCase(message, "cancelled"))) {
    code = absl::StatusCode::kUnavailable;
  }
  // One with payloads is what the task itself says, of another one that it cannot reach.
  if (code == absl::StatusCode::kUnavailable && status.error_details().empty()) {
    return absl::UnavailableError(
        absl::StrCat("Task at ", callee.address, " must be reachable, got: ", message));
  }
  if (code == absl::StatusCode::kResourceExhausted &&
      absl::StrContains(message, "Received message larger than max")) {
    return Status(code, absl::StrCat("Task at ", callee.address, ": a request must be at most ",
                                     "ServerLimits::max_message_bytes there, got: ", message));
  }
  return WithPayloads(Status(code, message), status.error_details());
}

grpc::Status ToGrpcOrThrow(const Status& status) {
  std::string message(status.message());
  // As long as gRPC writes it: it escapes what is not printable ASCII.
  size_t written = 0, length = 0;
  for (; length < message.size() && written < kMaxStatusMessage; ++length) {
    const char c = message[length];
    written += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
  }
  if (length < message.size()) {
    message.resize(length);
    message += " ... [truncated]";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, PayloadBytes(status));
}

// Without its text when there is no memory for it: the call must end.
grpc::Status ToGrpc(const Status& status) {
  if (status.ok()) return grpc::Status();
  try {
    return ToGrpcOrThrow(status);
  } catch (...) {
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string());
  }
}

// Keeps a call and its CancellationManager together.
class CancelOnRequest {
 public:
  // False when it is cancelled already.
  bool Begin(CancellationManager* manager, std::shared_ptr<grpc::ClientContext> context) {
    if (manager == nullptr) return true;
    if (!manager->Register(&token_, [context] { context->TryCancel(); })) return false;
    manager_ = manager;
    return true;
  }
  // Whether the call was cancelled through the manager.
  bool End() {
    if (manager_ == nullptr) return false;
    return !std::exchange(manager_, nullptr)->Deregister(token_);
  }

 private:
  CancellationManager* manager_ = nullptr;
  CancellationManager::Token token_ = 0;
};

std::shared_ptr<grpc::ClientContext> MakeContext(const Callee& callee, const RpcOptions& options) {
  auto context = std::make_shared<grpc::ClientContext>();
  if (options.deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(options.deadline));
  }
  context->set_wait_for_ready(options.wait_for_ready);
  context->AddMetadata(kWireVersionKey, absl::StrCat(kWireVersion));
  if (!callee.credentials->token.empty()) {
    context->AddMetadata(kTokenKey, absl::StrCat(kTokenPrefix, callee.credentials->token));
  }
  return context;
}

Status CancelledBeforeStart() { return absl::CancelledError("Call was cancelled before it began"); }

// Both kinds of calls: End is heard once, from the first that says it.
class UnaryCall : public std::enable_shared_from_this<UnaryCall> {
 public:
  UnaryCall(std::shared_ptr<const Callee> callee, bool asks_for_refusal,
            RpcChannel::UnaryDone&& done)
      : callee_(std::move(callee)), asks_for_refusal_(asks_for_refusal), done_(std::move(done)) {}

  void Start(grpc::GenericStub* stub, const std::string& method, const RpcOptions& options,
             const grpc::ByteBuffer& request) {
    context_ = MakeContext(*callee_, options);
    reader_ = stub->PrepareUnaryCall(context_.get(), method, request, ClientQueue());
    if (!cancel_.Begin(options.cancellation, context_)) {
      // A call that was prepared must be started to be freed.
      context_->TryCancel();
    }
    reader_->StartCall();
    reader_->Finish(&response_, &status_, event_.Arm(shared_from_this(), &UnaryCall::Finished));
  }
  void End(const Status& status) {
    // Relaxed: gRPC orders what happens to a call; this only chooses among it.
    if (ended_.exchange(true, std::memory_order_relaxed)) return;
    cancel_.End();
    done_(status, response_);
  }

 private:
  void Finished(bool) {
    const bool cancelled = cancel_.End();
    const Status status =
        NoExceptions("Call", [&] { return FromGrpc(*callee_, status_, cancelled); });
    if (!asks_for_refusal_ || !absl::IsUnavailable(status)) return End(status);
    ProbePlace place;
    if (!place.has()) return End(status);
    const Status asked = NoExceptions("Call", [&] {
      ProbePool()->Schedule([self = shared_from_this(), status, place = std::move(place)] {
        self->End(NoExceptions("Call", [&] { return self->callee_->probe->Explain(status); }));
      });
      return absl::OkStatus();
    });
    if (!asked.ok()) End(status);
  }

  const std::shared_ptr<const Callee> callee_;
  const bool asks_for_refusal_;
  RpcChannel::UnaryDone done_;
  std::atomic<bool> ended_{false};
  std::shared_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncResponseReader> reader_;
  grpc::ByteBuffer response_;
  grpc::Status status_;
  CancelOnRequest cancel_;
  OwnedEvent<UnaryCall> event_;
};

// Events: the request is written | a message has come, one after the other | finished. The call
// is over when the last of them has come.
class StreamCall : public std::enable_shared_from_this<StreamCall> {
 public:
  StreamCall(std::shared_ptr<const Callee> callee, RpcChannel::OnMessage&& on_message,
             RpcChannel::StreamDone&& done)
      : callee_(std::move(callee)), on_message_(std::move(on_message)), done_(std::move(done)) {}

  void Start(grpc::GenericStub* stub, const std::string& method, const RpcOptions& options,
             const grpc::ByteBuffer& request) {
    context_ = MakeContext(*callee_, options);
    // Headers, request and end of the client's side leave in one piece; StartCall gives no event.
    context_->set_initial_metadata_corked(true);
    stream_ = stub->PrepareCall(context_.get(), method, ClientQueue());
    if (!cancel_.Begin(options.cancellation, context_)) context_->TryCancel();
    stream_->StartCall(nullptr);
    stream_->WriteLast(request, grpc::WriteOptions(),
                       wrote_.Arm(shared_from_this(), &StreamCall::Wrote));
    ReadNext();
  }
  void End(const Status& status) {
    if (ended_.exchange(true, std::memory_order_relaxed)) return;
    cancel_.End();
    done_(status);
  }

 private:
  void Wrote(bool) {}  // when it fails, so do the read and the end
  void ReadNext() { stream_->Read(&message_, read_.Arm(shared_from_this(), &StreamCall::Read)); }
  void Read(bool ok) {
    Visit visit;
    const bool expects_another = ok && ExpectsAnother();
    // Steps wait for the work, whatever is thrown below.
    struct AtReturn {
      ~AtReturn() {
        if (work != nullptr) RunOnClient(work);
      }
      Visit::Work* const work;
    } const at_return{visit.End()};
    message_.Clear();  // the work may last, the bytes need not
    if (expects_another) {
      ReadNext();
    } else {
      stream_->Finish(&status_, finish_.Arm(shared_from_this(), &StreamCall::Finished));
    }
    // From here on other threads may be in this call.
  }
  bool ExpectsAnother() {
    const StatusOr<bool> another = NoExceptions("Stream", [&] { return on_message_(message_); });
    if (another.ok()) return *another;
    error_ = another.status();
    // The end comes only behind what the peer still sends, and nobody reads that.
    context_->TryCancel();
    return false;
  }
  void Finished(bool) {
    const bool cancelled = cancel_.End();
    End(!error_.ok() ? error_ : NoExceptions("Stream", [&] {
      return FromGrpc(*callee_, status_, cancelled);
    }));
  }

  const std::shared_ptr<const Callee> callee_;
  RpcChannel::OnMessage on_message_;
  RpcChannel::StreamDone done_;
  std::atomic<bool> ended_{false};  // relaxed, as in UnaryCall
  Status error_;                    // of on_message_
  std::shared_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer message_;
  grpc::Status status_;
  CancelOnRequest cancel_;
  OwnedEvent<StreamCall> wrote_, read_, finish_;
};

grpc::ChannelArguments ChannelArguments() {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(INT32_MAX);
  args.SetMaxSendMessageSize(INT32_MAX);
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(absl::ToInt64Milliseconds(kKeepalive)));
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
              static_cast<int>(absl::ToInt64Milliseconds(kKeepaliveTimeout)));
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A step is never run twice by the transport; retries would also hold on to what was sent.
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return args;
}

struct CallCounts {
  Mutex mu;
  std::map<std::string, int64_t> by_name ABSL_GUARDED_BY(mu);
};
CallCounts& call_counts() {
  static CallCounts* const counts = new CallCounts;
  return *counts;
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Credentials& credentials) {
  if (!credentials.is_tls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = credentials.ca;  // without one those of the system
  options.pem_private_key = credentials.key;
  options.pem_cert_chain = credentials.certificate;
  return grpc::SslCredentials(options);
}

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

class GrpcRpcChannel : public RpcChannel {
 public:
  GrpcRpcChannel(const std::string& address, std::shared_ptr<const Credentials> credentials)
      : callee_(std::make_shared<const Callee>(
            Callee{address, credentials, std::make_shared<PeerProbe>(address, credentials)})),
        stub_(grpc::CreateCustomChannel(address, ChannelCredentialsOf(*callee_->credentials),
                                        ChannelArguments())) {}

  void Unary(const std::string& method, const RpcOptions& options, const grpc::ByteBuffer& request,
             UnaryDone done) override {
    std::shared_ptr<UnaryCall> call;
    const Status begun = NoExceptions(method, [&]() -> Status {
      MR_RETURN_IF_ERROR(Begin(method, options));
      call = std::make_shared<UnaryCall>(callee_, options.asks_for_refusal, std::move(done));
      call->Start(&stub_, method, options, request);
      return absl::OkStatus();
    });
    if (begun.ok()) return;
    if (call != nullptr) return call->End(begun);
    done(begun, grpc::ByteBuffer());
  }
  void Stream(const std::string& method, const RpcOptions& options, const grpc::ByteBuffer& request,
              OnMessage on_message, StreamDone done) override {
    std::shared_ptr<StreamCall> call;
    const Status begun = NoExceptions(method, [&]() -> Status {
      MR_RETURN_IF_ERROR(Begin(method, options));
      call = std::make_shared<StreamCall>(callee_, std::move(on_message), std::move(done));
      call->Start(&stub_, method, options, request);
      return absl::OkStatus();
    });
    if (begun.ok()) return;
    if (call != nullptr) return call->End(begun);
    done(begun);
  }
  const std::string& address() const override { return callee_->address; }

 private:
  Status Begin(const std::string& method, const RpcOptions& options) {
    {
      CallCounts& counts = call_counts();
      MutexLock lock(&counts.mu);
      ++counts.by_name[absl::StrCat(callee_->address, method)];
    }
    const bool cancelled = options.cancellation != nullptr && options.cancellation->IsCancelled();
    return cancelled ? CancelledBeforeStart() : absl::OkStatus();
  }

  const std::shared_ptr<const Callee> callee_;
  grpc::GenericStub stub_;
};

// A channel that has nothing to show: its credentials cannot be read.
class UselessChannel : public RpcChannel {
 public:
  UselessChannel(std::string address, Status why)
      : address_(std::move(address)), why_(std::move(why)) {}
  void Unary(const std::string&, const RpcOptions&, const grpc::ByteBuffer&,
             UnaryDone done) override {
    done(why_, grpc::ByteBuffer());
  }
  void Stream(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, OnMessage,
              StreamDone done) override {
    done(why_);
  }
  const std::string& address() const override { return address_; }

 private:
  const std::string address_;
  const Status why_;
};

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
    const grpc::Status answer = ToGrpc(status);
    ReaderLock lock(&gate_->mu);
    if (gate_->closed || answered_.exchange(true, std::memory_order_relaxed)) return;
    stream_.Finish(answer, finish_.Arm(shared_from_this(), &GrpcServerCall::Finished));
  }

 private:
  void Accepted(bool ok);
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

class GrpcRpcServer : public RpcServer {
 public:
  GrpcRpcServer() = default;
  ~GrpcRpcServer() override { Shutdown(absl::InfinitePast()); }

  Status Listen(Options options);
  int port() const override { return port_; }
  std::map<std::string, MethodCounts> counts() const override;
  void Shutdown(absl::Time answers_until) override;

  void AcceptNext();
  CallThreads* threads() { return threads_.get(); }
  // Before Listen.
  void Guard(std::shared_ptr<CallGuard> guard) { guard_ = std::move(guard); }
  const std::shared_ptr<CallGuard>& guard() const { return guard_; }
  grpc::AsyncGenericService* service() { return &service_; }
  grpc::ServerCompletionQueue* queue() { return queue_.get(); }

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
  const Status admitted =
      NoExceptions(method(), [this] { return guard_->Admit(context_, &ticket_); });
  if (!admitted.ok()) return FinishWithStatus(admitted);
  ReaderLock lock(&gate_->mu);
  if (gate_->closed) return;
  stream_.Read(&request_, read_.Arm(shared_from_this(), &GrpcServerCall::RequestRead));
}

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
    const grpc::ByteBuffer request = std::exchange(request_, grpc::ByteBuffer());
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
  if (owed_.load(std::memory_order_relaxed) == 0) {
    if (!queue_->Next(&tag, &ok)) return false;
  } else {
    {
      MutexLock lock(&mu_);
      AcceptOwed();
    }
    switch (queue_->AsyncNext(&tag, &ok, absl::ToChronoTime(absl::Now() + kAcceptAgain))) {
      case grpc::CompletionQueue::SHUTDOWN:
        return false;
      case grpc::CompletionQueue::TIMEOUT:
        return true;
      case grpc::CompletionQueue::GOT_EVENT:
        break;
    }
  }
  Handle(tag, ok);
  return true;
}

// gRPC binds what it can of the addresses of a host name and is content with one; here each of
// this machine must be free.
Status CheckFree(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return FailedPrecondition("Server: the host of its own address ", address,
                              " must be known, got: ", gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  bool local = false;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    const bool bound = bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    const int error = bound ? 0 : errno;
    // Two sockets may bind one port as long as none listens.
    const bool in_use = error == EADDRINUSE || (bound && listen(fd, 1) != 0 && errno == EADDRINUSE);
    close(fd);
    if (in_use) {
      return FailedPrecondition("Server: ", address,
                                " must be free, got: port is in use by another process");
    }
    if (error == EACCES) {
      return FailedPrecondition("Server: ", address,
                                " must be open to this user, got: ", std::strerror(error));
    }
    local |= bound;
  }
  if (!local) {
    return FailedPrecondition("Server: the host of its own address ", address,
                              " must be one of this machine, got one that cannot be bound");
  }
  return absl::OkStatus();
}

// What gRPC may hold for callers, in part or whole.
size_t ReceiveQuota(const CallLimits& limits) {
  const int64_t pending = std::clamp<int64_t>(limits.max_pending_bytes, 0, kMaxQuotaBytes);
  return static_cast<size_t>(pending + CallLimits::kReceiveSlackBytes);
}

Status GrpcRpcServer::Listen(Options options) {
  const std::string& address = options.address;
  MR_RETURN_IF_ERROR(CheckFree(address));
  address_ = address;
  handler_bound_ = options.handler_bound;
  auto methods = std::make_shared<ServedMethods>();
  methods->keep = std::move(options.keep);
  for (auto& [name, handler] : options.handlers) {
    auto method = std::make_unique<ServedMethod>();
    method->handler = std::move(handler);
    methods->by_name[name] = std::move(method);
  }
  methods_ = std::move(methods);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, ServerCredentialsOf(guard_->credentials()), &port_);
  builder.SetMaxReceiveMessageSize(
      static_cast<int>(std::clamp<int64_t>(guard_->limits().max_message_bytes, 1, INT32_MAX)));
  builder.SetMaxSendMessageSize(INT32_MAX);
  // Requests that never come to their end are counted by nobody else.
  grpc::ResourceQuota quota;
  quota.Resize(ReceiveQuota(guard_->limits()));
  builder.SetResourceQuota(quota);
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
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port_ == 0) {
    return FailedPrecondition("Server: ", address, " must be free, got: port is in use");
  }
  CallThreads::Options threads;
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
    if (threads_ == nullptr) Poll(queue_.get());
  }
  if (threads_ == nullptr) return;
  for (const std::string& call : threads_->Shutdown(absl::Now() + handler_bound_)) {
    LogWarning("Server at ", address_, ": does not wait any longer for ", call,
               ", which is left behind");
  }
}

}  // namespace

std::shared_ptr<RpcChannel> RpcChannel::Make(const std::string& address,
                                             std::shared_ptr<const Credentials> credentials) {
  KeepFreedMemory();
  if (credentials == nullptr) {
    StatusOr<std::shared_ptr<const Credentials>> own = ClusterCredentials();
    if (!own.ok()) return std::make_shared<UselessChannel>(address, own.status());
    credentials = *std::move(own);
  }
  return std::make_shared<GrpcRpcChannel>(address, std::move(credentials));
}

StatusOr<grpc::ByteBuffer> RpcChannel::Call(const std::string& method, const RpcOptions& options,
                                            const grpc::ByteBuffer& request) {
  Notification done;
  Status status;
  grpc::ByteBuffer response;
  Unary(method, options, request, [&](const Status& s, const grpc::ByteBuffer& r) {
    status = s;
    response = r;
    done.Notify();
  });
  done.Wait();
  MR_RETURN_IF_ERROR(status);
  return response;
}

std::map<std::string, int64_t> RpcCallsBegun() {
  CallCounts& counts = call_counts();
  MutexLock lock(&counts.mu);
  return counts.by_name;
}

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

// SPDX-License-Identifier: Apache-2.0
#include "net/rpc_channel.h"

#include <grpc/grpc.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/before_wait.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/visit.h"
#include "net/call_metadata.h"
#include "net/client_threads.h"
#include "net/duplex_stream.h"
#include "net/grpc_events.h"
#include "net/grpc_settings.h"
#include "net/grpc_status.h"
#include "net/peer_probe.h"
#include "net/poll_turns.h"

namespace millrace {
namespace {

// Looks at peers at the same time, in all channels.
constexpr int kProbes = 16;

// Calls to one address.
struct CallCounts {
  Mutex mu;
  std::map<std::string, int64_t> by_method ABSL_GUARDED_BY(mu);
};
// Its channels share theirs; a call makes no name of both to be counted by.
struct AllCallCounts {
  Mutex mu;
  std::map<std::string, std::shared_ptr<CallCounts>> by_address ABSL_GUARDED_BY(mu);
};
AllCallCounts& all_call_counts() {
  static AllCallCounts* const counts = new AllCallCounts;
  return *counts;
}
std::shared_ptr<CallCounts> CallCountsOf(const std::string& address) {
  AllCallCounts& all = all_call_counts();
  MutexLock lock(&all.mu);
  std::shared_ptr<CallCounts>& counts = all.by_address[address];
  if (counts == nullptr) counts = std::make_shared<CallCounts>();
  return counts;
}

// Whom a channel calls, and what it shows there.
struct Callee {
  std::string address;
  std::shared_ptr<const Credentials> credentials;
  std::shared_ptr<PeerProbe> probe;
  std::shared_ptr<CallCounts> counts;
};

void CountCall(const Callee& callee, const std::string& method) {
  MutexLock lock(&callee.counts->mu);
  ++callee.counts->by_method[method];
}

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

// Calls `done` with the error of a call, explained if its callee cannot be reached: then later, and
// on another thread.
void Explain(const std::shared_ptr<const Callee>& callee, const Status& status,
             const std::function<void(const Status&)>& done) {
  if (!absl::IsUnavailable(status)) return done(status);
  ProbePlace place;
  if (!place.has()) return done(status);
  const Status asked = NoExceptions("Call", [&] {
    ProbePool()->Schedule([callee, done, status, place = std::move(place)] {
      done(NoExceptions("Call", [&] { return callee->probe->Explain(status); }));
    });
    return absl::OkStatus();
  });
  if (!asked.ok()) done(status);
}

// Keeps a call and its CancellationManager together. Destroyed before the call's context.
class CancelOnRequest {
 public:
  CancelOnRequest() = default;
  CancelOnRequest(const CancelOnRequest&) = delete;
  CancelOnRequest& operator=(const CancelOnRequest&) = delete;
  ~CancelOnRequest() { End(); }

  // False when it is cancelled already.
  bool Begin(CancellationManager* manager, grpc::ClientContext* context) {
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

// What a call says of itself, and how long it may take.
void Fill(const Callee& callee, const RpcOptions& options, grpc::ClientContext* context) {
  if (options.deadline != absl::InfiniteFuture()) {
    context->set_deadline(absl::ToChronoTime(options.deadline));
  }
  context->set_wait_for_ready(options.wait_for_ready);
  context->AddMetadata(kWireVersionKey, absl::StrCat(kWireVersion));
  if (!callee.credentials->token.empty()) {
    context->AddMetadata(kTokenKey, absl::StrCat(kTokenPrefix, callee.credentials->token));
  }
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
    Fill(*callee_, options, &context_);
    reader_ = stub->PrepareUnaryCall(&context_, method, request, ClientQueue());
    if (!cancel_.Begin(options.cancellation, &context_)) {
      // A call that was prepared must be started to be freed.
      context_.TryCancel();
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
        NoExceptions("Call", [&] { return FromGrpcStatus(callee_->address, status_, cancelled); });
    if (!asks_for_refusal_) return End(status);
    const Status asked = NoExceptions("Call", [&] {
      Explain(callee_, status,
              [self = shared_from_this()](const Status& explained) { self->End(explained); });
      return absl::OkStatus();
    });
    if (!asked.ok()) End(status);
  }

  const std::shared_ptr<const Callee> callee_;
  const bool asks_for_refusal_;
  RpcChannel::UnaryDone done_;
  std::atomic<bool> ended_{false};
  grpc::ClientContext context_;
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
    Fill(*callee_, options, &context_);
    // Headers, request and end of the client's side leave in one piece; StartCall gives no event.
    context_.set_initial_metadata_corked(true);
    stream_ = stub->PrepareCall(&context_, method, ClientQueue());
    if (!cancel_.Begin(options.cancellation, &context_)) context_.TryCancel();
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
    context_.TryCancel();
    return false;
  }
  void Finished(bool) {
    const bool cancelled = cancel_.End();
    End(!error_.ok() ? error_ : NoExceptions("Stream", [&] {
      return FromGrpcStatus(callee_->address, status_, cancelled);
    }));
  }

  const std::shared_ptr<const Callee> callee_;
  RpcChannel::OnMessage on_message_;
  RpcChannel::StreamDone done_;
  std::atomic<bool> ended_{false};  // relaxed, as in UnaryCall
  Status error_;                    // of on_message_
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer message_;
  grpc::Status status_;
  CancelOnRequest cancel_;
  OwnedEvent<StreamCall> wrote_, read_, finish_;
};

// The calling side of a DuplexCall.
class ClientSide : public StreamSide, public std::enable_shared_from_this<ClientSide> {
 public:
  ClientSide(std::shared_ptr<const Callee> callee, std::shared_ptr<grpc::Channel> channel,
             std::string method)
      : callee_(std::move(callee)), channel_(std::move(channel)), method_(std::move(method)) {}

  Status Begin() override {
    CountCall(*callee_, method_);
    Fill(*callee_, RpcOptions(), &context_);
    link_.emplace(PolledClientQueue());
    context_.set_initial_metadata_corked(true);
    grpc::GenericStub stub(channel_);
    stream_ = stub.PrepareCall(&context_, method_, ClientQueue());
    // Headers leave with the first message. (gRPC sends them by the operation of writes, so with an
    // event of their own a message would have to wait for it.)
    stream_->StartCall(nullptr);
    return absl::OkStatus();
  }
  bool Read(grpc::ByteBuffer* message, void* tag) override {
    stream_->Read(message, tag);
    return true;
  }
  bool Write(const grpc::ByteBuffer& message, void* tag) override {
    stream_->Write(message, tag);
    return true;
  }
  bool EndWrites(void* tag) override {
    stream_->WritesDone(tag);
    return true;
  }
  bool Finish(void* tag) override {
    stream_->Finish(&status_, tag);
    return true;
  }
  void Cancel() override { context_.TryCancel(); }
  void Result(bool was_heard, absl::AnyInvocable<void(const Status&)> done) override {
    const Status status = NoExceptions("Stream", [&] {
      return FromGrpcStatus(callee_->address, status_, /*cancelled_here=*/false);
    });
    if (was_heard) return done(status);
    done_ = std::move(done);
    const Status asked = NoExceptions("Stream", [&] {
      Explain(callee_, status,
              [self = shared_from_this()](const Status& explained) { self->Explained(explained); });
      return absl::OkStatus();
    });
    if (!asked.ok()) Explained(status);
  }
  void RunVisit(Visit::Work* work) override { RunOnClient(work); }

 private:
  void Explained(const Status& status) {
    absl::AnyInvocable<void(const Status&)> done = std::move(done_);
    done(status);
  }

  const std::shared_ptr<const Callee> callee_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::string method_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::Status status_;
  absl::AnyInvocable<void(const Status&)> done_;  // while it is asked why there is no peer
  std::optional<PolledQueue::Link> link_;
};

// A call that cannot begin.
class EndedCall : public DuplexCall {
 public:
  explicit EndedCall(Status why) : why_(std::move(why)) {}
  void Start(std::shared_ptr<User> user) override { user->OnEnded(why_, /*by_peer=*/false); }
  void Write(const grpc::ByteBuffer&) override {}
  void Close() override {}

 private:
  const Status why_;
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

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Credentials& credentials) {
  if (!credentials.is_tls()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = credentials.ca;  // without one those of the system
  options.pem_private_key = credentials.key;
  options.pem_cert_chain = credentials.certificate;
  return grpc::SslCredentials(options);
}

class GrpcRpcChannel : public RpcChannel {
 public:
  GrpcRpcChannel(const std::string& address, std::shared_ptr<const Credentials> credentials)
      : callee_(std::make_shared<const Callee>(
            Callee{address, credentials, std::make_shared<PeerProbe>(address, credentials),
                   CallCountsOf(address)})),
        channel_(grpc::CreateCustomChannel(address, ChannelCredentialsOf(*callee_->credentials),
                                           ChannelArguments())),
        stub_(channel_) {}

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
  std::shared_ptr<DuplexCall> Duplex(const std::string& method) override {
    return std::make_shared<DuplexStream>(std::make_shared<ClientSide>(callee_, channel_, method),
                                          /*is_called=*/false);
  }
  const std::string& address() const override { return callee_->address; }

 private:
  Status Begin(const std::string& method, const RpcOptions& options) {
    CountCall(*callee_, method);
    const bool cancelled = options.cancellation != nullptr && options.cancellation->IsCancelled();
    return cancelled ? CancelledBeforeStart() : absl::OkStatus();
  }

  const std::shared_ptr<const Callee> callee_;
  const std::shared_ptr<grpc::Channel> channel_;
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
  std::shared_ptr<DuplexCall> Duplex(const std::string&) override {
    return std::make_shared<EndedCall>(why_);
  }
  const std::string& address() const override { return address_; }

 private:
  const std::string address_;
  const Status why_;
};

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

std::shared_ptr<DuplexCall> RpcChannel::Duplex(const std::string& method) {
  return std::make_shared<EndedCall>(
      Unimplemented("Channel to ", address(), ": has no calls of both directions, got ", method));
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
  BeforeWait::Run();
  done.Wait();
  MR_RETURN_IF_ERROR(status);
  return response;
}

std::map<std::string, int64_t> RpcCallsBegun() {
  std::map<std::string, int64_t> result;
  AllCallCounts& all = all_call_counts();
  MutexLock lock(&all.mu);
  for (const auto& [address, counts] : all.by_address) {
    MutexLock of_address(&counts->mu);
    for (const auto& [method, calls] : counts->by_method) {
      result[absl::StrCat(address, method)] = calls;
    }
  }
  return result;
}

}  // namespace millrace

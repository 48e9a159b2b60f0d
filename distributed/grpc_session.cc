// SPDX-License-Identifier: Apache-2.0
#include "distributed/grpc_session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/clock.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/new_message.h"
#include "core/random_bits.h"
#include "core/refusal.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/lease_keeper.h"
#include "distributed/master/master_interface.h"
#include "distributed/transport/grpc_transport.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "distributed/transport/transport.h"
#include "distributed/transport/transport.pb.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/signature.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "run/run_session.h"
#include "run/tell_again.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "runtime/source_lines.h"

namespace millrace {
namespace {

constexpr char kScheme[] = "grpc://";

// Fields with tensors.
constexpr int kRunStepFeed = 2;       // RunStepRequest.feed
constexpr int kRunStepTensor = 1;     // RunStepResponse.tensor
constexpr int kRunCallableFeed = 3;   // RunCallableRequest.feed
constexpr int kRunCallableFetch = 1;  // RunCallableResponse.fetch

// How often the log says that a master is missing.
constexpr absl::Duration kWaitLogPeriod = absl::Seconds(10);
// For calls that only set up or tidy up.
constexpr absl::Duration kControlTimeout = absl::Minutes(10);
constexpr absl::Duration kCloseTimeout = absl::Seconds(30);
// A shorter lease ends sessions of clients that live on a busy machine; masters take none above.
constexpr absl::Duration kMinLease = absl::Seconds(1);
constexpr absl::Duration kMaxLease = absl::Hours(24);

// Registries of the process, like that of session factories; here while servers live.
struct LocalMasters {
  Mutex mu;
  std::map<std::string, std::shared_ptr<MasterInterface>> by_address ABSL_GUARDED_BY(mu);
};
LocalMasters& local_masters() {
  static LocalMasters* const masters = new LocalMasters;
  return *masters;
}

StatusOr<grpc::ByteBuffer> Encode(const google::protobuf::MessageLite& message) {
  MessageWriter writer;
  writer.AddMessage(message);
  return writer.Finish();
}

// The call's own time was over: gRPC's text, in which no master answers.
bool HadNoAnswer(const Status& status) {
  return absl::IsDeadlineExceeded(status) && status.message() == "Deadline Exceeded";
}

// --- The client's side of the wire ---------------------------------------------------------------

class GrpcMaster : public MasterInterface, public SessionHost {
 public:
  explicit GrpcMaster(std::shared_ptr<RpcChannel> channel) : channel_(std::move(channel)) {}

  Status CreateSession(const tensorflow::CreateSessionRequest& request, absl::Duration timeout, int,
                       tensorflow::CreateSessionResponse* response) override {
    const absl::Time deadline = absl::Now() + timeout;
    MR_RETURN_IF_ERROR(AwaitServer(timeout, deadline));
    RpcOptions options;
    // The master gives up at the deadline that it sees with the call.
    options.deadline = deadline;
    options.wait_for_ready = true;
    const Status status = Call("CreateSession", options, request, response);
    if (HadNoAnswer(status)) {
      return absl::DeadlineExceededError(absl::StrCat(
          "Session: the master at ", channel_->address(), " and its tasks must answer ", "within ",
          absl::FormatDuration(timeout), ", got no answer"));
    }
    return status;
  }
  Status ExtendSession(const tensorflow::ExtendSessionRequest& request,
                       tensorflow::ExtendSessionResponse* response) override {
    if (request.ByteSizeLong() > static_cast<size_t>(kMaxMessageBytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Session: a graph must be below 2 GiB to travel, got ",
                       request.ByteSizeLong(), " bytes; keep large constants in files"));
    }
    return Call("ExtendSession", Control(), request, response);
  }
  StatusOr<StepResult> RunStep(const tensorflow::RunStepRequest& request,
                               absl::Span<const NamedTensor> feeds) override {
    tensorflow::RunStepRequest message = request;
    message.set_store_errors_in_response_body(true);
    MessageWriter writer;
    writer.AddMessage(message);
    for (const NamedTensor& feed : feeds) {
      MR_RETURN_IF_ERROR(writer.AddNamedTensor(kRunStepFeed, feed.name, feed.value));
    }
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer answer,
                        CallStep("RunStep", request.options().timeout_in_ms(), &writer));
    tensorflow::RunStepResponse response;
    std::vector<DecodedTensor> tensors;
    MR_RETURN_IF_ERROR(DecodeMessage("RunStepResponse", answer, kRunStepTensor,
                                     TensorField::kNamedOrIndexed, &tensors, &response));
    if (response.status_code() != 0) {
      return WithPayloadsOf(Status(static_cast<absl::StatusCode>(response.status_code()),
                                   response.status_error_message()),
                            response);
    }
    if (tensors.size() != static_cast<size_t>(request.fetch_size())) {
      return Internal("RunStepResponse: ", request.fetch_size(), " tensors must be there, got ",
                      tensors.size());
    }
    return ResultOf(std::move(tensors), response.mutable_metadata());
  }
  Status MakeCallable(const tensorflow::MakeCallableRequest& request,
                      tensorflow::MakeCallableResponse* response) override {
    return Call("MakeCallable", Control(), request, response);
  }
  StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest& request,
                                   absl::Span<const Tensor> feeds,
                                   const tensorflow::RunOptions* options) override {
    MessageWriter writer;
    writer.AddMessage(request);
    for (const Tensor& feed : feeds) MR_RETURN_IF_ERROR(writer.AddTensor(kRunCallableFeed, feed));
    const int64_t timeout_ms = options == nullptr ? 0 : options->timeout_in_ms();
    if (timeout_ms > 0) AddStepLimit(absl::Now() + absl::Milliseconds(timeout_ms), &writer);
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer answer,
                        CallStep("RunCallable", timeout_ms, &writer));
    tensorflow::RunCallableResponse response;
    std::vector<DecodedTensor> tensors;
    MR_RETURN_IF_ERROR(DecodeMessage("RunCallableResponse", answer, kRunCallableFetch,
                                     TensorField::kTensor, &tensors, &response));
    return ResultOf(std::move(tensors), response.mutable_metadata());
  }
  Status ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) override {
    return Call("ReleaseCallable", Control(), request, nullptr);
  }
  Status CloseSession(const tensorflow::CloseSessionRequest& request) override {
    RpcOptions options;
    options.deadline = absl::Now() + kCloseTimeout;
    return Call("CloseSession", options, request, nullptr);
  }
  Status ListDevices(const tensorflow::ListDevicesRequest& request,
                     tensorflow::ListDevicesResponse* response) override {
    return Call("ListDevices", Control(), request, response);
  }
  Status Reset(const tensorflow::ResetRequest& request) override {
    return Call("Reset", Control(), request, nullptr);
  }
  Status EndRun(const std::string& session_handle, const RunEnd& end) override {
    wire::EndRunRequest request;
    request.set_session_handle(session_handle);
    ToWire(end, request.mutable_end());
    RpcOptions options;
    options.deadline = absl::Now() + kCloseTimeout;
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, Encode(request));
    return channel_->Call(absl::StrCat(kOwnMasterService, "EndRun"), options, bytes).status();
  }
  StatusOr<RunTrainers> FindTrainers(const std::string& session_handle) override {
    wire::FindTrainersRequest request;
    request.set_session_handle(session_handle);
    RpcOptions options;
    options.deadline = absl::Now() + kCloseTimeout;
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, Encode(request));
    MR_ASSIGN_OR_RETURN(
        const grpc::ByteBuffer answer,
        channel_->Call(absl::StrCat(kOwnMasterService, "FindTrainers"), options, bytes));
    wire::FindTrainersResponse response;
    MR_RETURN_IF_ERROR(DecodeMessage("FindTrainersResponse", answer, &response));
    RunTrainers trainers;
    trainers.training.assign(response.trainer().begin(), response.trainer().end());
    trainers.ended.assign(response.former_trainer().begin(), response.former_trainer().end());
    return trainers;
  }

  const std::string& name() const override { return channel_->address(); }
  // A session that the master does not know any more is found out by the client's next call.
  void Renew(const std::vector<std::string>& handles, absl::Duration timeout,
             Renewed done) override {
    wire::RenewSessionsRequest request;
    for (const std::string& handle : handles) request.add_session_handle(handle);
    Begin(absl::StrCat(kOwnMasterService, "RenewSessions"), request, timeout,
          [done = std::move(done)](const Status& status) mutable { done(status, {}); });
  }
  void End(const std::string& handle, absl::Duration timeout, Done done) override {
    tensorflow::CloseSessionRequest request;
    request.set_session_handle(handle);
    Begin(absl::StrCat(kMasterService, "CloseSession"), request, timeout,
          [done = std::move(done)](const Status& status) mutable {
            // What is not there has ended.
            done(absl::IsAborted(status) ? absl::OkStatus() : status);
          });
  }

 private:
  void Begin(const std::string& method, const google::protobuf::MessageLite& request,
             absl::Duration timeout, Done done) {
    const StatusOr<grpc::ByteBuffer> message = Encode(request);
    if (!message.ok()) return done(message.status());
    RpcOptions options;
    options.deadline = absl::Now() + timeout;
    channel_->Unary(method, options, *message,
                    [done = std::move(done)](const Status& status,
                                             const grpc::ByteBuffer&) mutable { done(status); });
  }
  // Says every 10 s that the master is missing.
  Status AwaitServer(absl::Duration timeout, absl::Time deadline) {
    absl::Time next_log = absl::Now() + kWaitLogPeriod;
    std::string why;
    for (;;) {
      RpcOptions options;
      // Does not wait for a connection: why there is none is said only without.
      options.deadline = std::min(deadline, next_log);
      options.asks_for_refusal = true;
      MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, Encode(tensorflow::GetStatusRequest()));
      const Status status =
          channel_->Call(absl::StrCat(kWorkerService, "GetStatus"), options, bytes).status();
      if (!absl::IsDeadlineExceeded(status) && !absl::IsUnavailable(status)) return status;
      if (absl::IsUnavailable(status)) why = absl::StrCat(" (", status.message(), ")");
      if (IsRefusal(status)) return status;
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("Session: the master at ", channel_->address(), " must answer within ",
                         absl::FormatDuration(timeout), ", got no answer", why));
      }
      if (absl::Now() >= next_log) {
        LogInfo("CreateSession still waiting for response from master: ", channel_->address());
        next_log = absl::Now() + kWaitLogPeriod;
      }
      // It may come at once.
      if (absl::IsUnavailable(status)) absl::SleepFor(absl::Milliseconds(100));
    }
  }
  static RpcOptions Control() {
    RpcOptions options;
    options.deadline = absl::Now() + kControlTimeout;
    return options;
  }
  // A call that is longer than the step's limit: the master says what the step waited for.
  StatusOr<grpc::ByteBuffer> CallStep(const char* method, int64_t timeout_ms,
                                      MessageWriter* request) {
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, request->Finish());
    const absl::Duration limit = absl::Milliseconds(timeout_ms);
    RpcOptions options;
    if (timeout_ms > 0) options.deadline = absl::Now() + limit + kStepAnswerSlack;
    StatusOr<grpc::ByteBuffer> answer =
        channel_->Call(absl::StrCat(kMasterService, method), options, bytes);
    if (timeout_ms <= 0 || !HadNoAnswer(answer.status())) return answer;
    return absl::DeadlineExceededError(absl::StrCat(
        "Session: the master at ", channel_->address(), " must end a step within its limit of ",
        absl::FormatDuration(limit), " and answer within ", absl::FormatDuration(kStepAnswerSlack),
        " more, got no answer; it hangs or does not know the limit"));
  }
  static StepResult ResultOf(std::vector<DecodedTensor> tensors,
                             tensorflow::RunMetadata* metadata) {
    StepResult result;
    for (DecodedTensor& tensor : tensors) result.fetches.push_back(std::move(tensor.value));
    result.metadata.Swap(metadata);
    return result;
  }
  Status Call(const char* method, const RpcOptions& options,
              const google::protobuf::MessageLite& request,
              google::protobuf::MessageLite* response) {
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, Encode(request));
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer answer,
                        channel_->Call(absl::StrCat(kMasterService, method), options, bytes));
    return response == nullptr ? absl::OkStatus() : DecodeMessage(method, answer, response);
  }

  const std::shared_ptr<RpcChannel> channel_;
};

// --- The server's side ---------------------------------------------------------------------------

void Respond(ServerCall* call, const Status& status,
             const google::protobuf::MessageLite& response) {
  FinishWith(call, [&]() -> StatusOr<grpc::ByteBuffer> {
    MR_RETURN_IF_ERROR(status);
    return Encode(response);
  });
}

// Runs `body`, which answers `call`, on the pool. What it throws is the answer.
template <typename Body>
void Schedule(IoPool* pool, std::shared_ptr<ServerCall> call, Body body) {
  pool->Schedule([call = std::move(call), body = std::move(body)]() mutable {
    try {
      body();
    } catch (...) {
      call->FinishWithStatus(StatusOfException(call->method()));
    }
  });
}

// A method without tensors, which may block and so leaves the poller.
template <typename Request, typename Response>
RpcServer::Handler Blocking(const char* name, IoPool* pool,
                            std::function<Status(ServerCall*, const Request&, Response*)> method) {
  return [name, pool, method](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
    auto request = std::make_shared<Request>();
    const Status status = DecodeMessage(name, bytes, request.get());
    if (!status.ok()) return call->FinishWithStatus(status);
    Schedule(pool, call, [name, call, request, method] {
      Response response;
      const Status result =
          NoExceptions(name, [&] { return method(call.get(), *request, &response); });
      Respond(call.get(), result, response);
    });
  };
}

StatusOr<grpc::ByteBuffer> EncodeStep(const tensorflow::RunStepRequest& request,
                                      StatusOr<StepResult> result) {
  MessageWriter writer;
  tensorflow::RunStepResponse response;
  Status status = result.status();
  for (int i = 0; status.ok() && i < request.fetch_size(); ++i) {
    status = writer.AddNamedTensor(kRunStepTensor, request.fetch(i),
                                   result->fetches[static_cast<size_t>(i)]);
  }
  if (!status.ok() && !request.store_errors_in_response_body()) return status;
  if (status.ok()) {
    response.mutable_metadata()->Swap(&result->metadata);
  } else {
    response.set_status_code(static_cast<tensorflow::error::Code>(status.code()));
    response.set_status_error_message(WireText(status.message()));
    AddPayloads(status, &response);
  }
  writer.AddMessage(response);
  return writer.Finish();
}

void ServeRunStep(Master* master, IoPool* pool, std::shared_ptr<ServerCall> call,
                  const grpc::ByteBuffer& bytes) {
  auto request = std::make_shared<tensorflow::RunStepRequest>();
  std::vector<DecodedTensor> tensors;
  const Status read =
      DecodeMessage("RunStepRequest", bytes, kRunStepFeed, TensorField::kNamedOrIndexed, &tensors,
                    request.get(), call->limits().max_splat_bytes);
  if (!read.ok()) return call->FinishWithStatus(read);
  std::vector<NamedTensor> feeds;
  for (DecodedTensor& tensor : tensors) {
    feeds.push_back({std::move(tensor.name), std::move(tensor.value), false});
  }
  // The signature may have to be compiled, which waits for other tasks.
  Schedule(pool, call, [master, call, request, feeds = std::move(feeds)] {
    master->RunStepAsync(
        *request, feeds, call->cancellation(), [call, request](StatusOr<StepResult> result) {
          FinishWith(call.get(), [&] { return EncodeStep(*request, std::move(result)); });
        });
  });
}

void ServeRunCallable(Master* master, std::shared_ptr<ServerCall> call,
                      const grpc::ByteBuffer& bytes) {
  tensorflow::RunCallableRequest request;
  std::vector<DecodedTensor> tensors;
  const Status read =
      DecodeMessage("RunCallableRequest", bytes, kRunCallableFeed, TensorField::kTensor, &tensors,
                    &request, call->limits().max_splat_bytes);
  if (!read.ok()) return call->FinishWithStatus(read);
  std::vector<Tensor> feeds;
  for (DecodedTensor& tensor : tensors) feeds.push_back(std::move(tensor.value));
  tensorflow::RunOptions options;
  const absl::Time deadline = StepDeadlineOf(request);
  const bool limited = deadline != absl::InfiniteFuture();
  if (limited) {
    options.set_timeout_in_ms(
        std::max(int64_t{1}, absl::ToInt64Milliseconds(deadline - absl::Now())));
  }
  master->RunCallableAsync(request, feeds, limited ? &options : nullptr, call->cancellation(),
                           [call](StatusOr<StepResult> result) {
                             FinishWith(call.get(), [&]() -> StatusOr<grpc::ByteBuffer> {
                               MR_RETURN_IF_ERROR(result.status());
                               MessageWriter writer;
                               tensorflow::RunCallableResponse response;
                               response.mutable_metadata()->Swap(&result->metadata);
                               writer.AddMessage(response);
                               for (const Tensor& tensor : result->fetches) {
                                 MR_RETURN_IF_ERROR(writer.AddTensor(kRunCallableFetch, tensor));
                               }
                               return writer.Finish();
                             });
                           });
}

// --- The session ---------------------------------------------------------------------------------

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
    absl::flat_hash_set<std::string> operations ABSL_GUARDED_BY(mu);  // nodes without outputs

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
    StatusOr<Wanted> Resolve(const Signature& names) {
      Wanted wanted;
      MR_ASSIGN_OR_RETURN(wanted.bound, BindSignature(names, [this](const std::string& name) {
                            MutexLock lock(&mu);
                            return operations.contains(name);
                          }));
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
    MR_ASSIGN_OR_RETURN(const Wanted wanted, shared_->Resolve(NamesOf(feeds, fetches, targets)));
    tensorflow::RunStepRequest request;
    request.set_session_handle(shared_->handle);
    for (const std::string& fetch : wanted.sent.fetches) request.add_fetch(fetch);
    for (const std::string& target : wanted.sent.targets) request.add_target(target);
    *request.mutable_options() = shared_->Limited(options);
    std::vector<NamedTensor> values;
    std::vector<Tensor> fed;
    for (size_t i = 0; i < feeds.size(); ++i) {
      values.push_back({wanted.sent.feeds[i], feeds[i].value, false});
      fed.push_back(feeds[i].value);
    }
    MR_RETURN_IF_ERROR(CheckFeedsGiven(wanted.bound, fed));
    StatusOr<StepResult> ran = shared_->master->RunStep(request, values);
    if (!ran.ok()) return shared_->Complete(ran.status());
    if (metadata != nullptr) metadata->Swap(&ran->metadata);
    return Arrange(wanted, fed, std::move(ran->fetches));
  }

  StatusOr<std::unique_ptr<PreparedStep>> PrepareOrThrow(const Signature& signature) {
    MR_RETURN_IF_ERROR(shared_->Open());
    auto step = std::make_unique<Prepared>(shared_);
    MR_ASSIGN_OR_RETURN(step->wanted, shared_->Resolve(signature));
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
  auto remote = std::make_shared<GrpcMaster>(RpcChannel::Make(std::string(address)));
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

std::shared_ptr<MasterInterface> MakeGrpcMaster(std::shared_ptr<RpcChannel> channel) {
  return std::make_shared<GrpcMaster>(std::move(channel));
}

namespace {

using Handlers = std::map<std::string, RpcServer::Handler>;

// The methods that TensorFlow's masters lack: training runs, and leases of sessions.
void AddRunMethods(Master* master, IoPool* pool, Handlers* handlers) {
  (*handlers)[absl::StrCat(kOwnMasterService, "EndRun")] =
      Blocking<wire::EndRunRequest, wire::EndRunResponse>(
          "EndRun", pool,
          [master](ServerCall*, const wire::EndRunRequest& request, wire::EndRunResponse*) {
            return master->EndRun(request.session_handle(), FromWire(request.end()));
          });
  (*handlers)[absl::StrCat(kOwnMasterService, "FindTrainers")] =
      Blocking<wire::FindTrainersRequest, wire::FindTrainersResponse>(
          "FindTrainers", pool,
          [master](ServerCall*, const wire::FindTrainersRequest& request,
                   wire::FindTrainersResponse* response) -> Status {
            MR_ASSIGN_OR_RETURN(const RunTrainers trainers,
                                master->FindTrainers(request.session_handle()));
            for (const std::string& task : trainers.training) response->add_trainer(task);
            for (const std::string& task : trainers.ended) response->add_former_trainer(task);
            return absl::OkStatus();
          });
  // On the poller: a renewal must not wait for those who occupy the pool.
  (*handlers)[absl::StrCat(kOwnMasterService, "RenewSessions")] =
      [master](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
        wire::RenewSessionsRequest request;
        wire::RenewSessionsResponse response;
        const Status status = NoExceptions("RenewSessions", [&]() -> Status {
          MR_RETURN_IF_ERROR(DecodeMessage("RenewSessions", bytes, &request));
          const std::vector<std::string> handles(request.session_handle().begin(),
                                                 request.session_handle().end());
          for (const std::string& handle : master->RenewSessions(handles)) {
            response.add_unknown(handle);
          }
          return absl::OkStatus();
        });
        Respond(call.get(), status, response);
      };
}

}  // namespace

Handlers MasterHandlers(Master* master, MasterPools* pools, CheckResetFn check_reset) {
  IoPool* const pool = &pools->calls;
  using namespace tensorflow;  // NOLINT: the messages of a whole service
  Handlers handlers;
  const auto add = [&](const char* method, RpcServer::Handler handler) {
    handlers[absl::StrCat(kMasterService, method)] = std::move(handler);
  };
  add("CreateSession", Blocking<CreateSessionRequest, CreateSessionResponse>(
                           "CreateSession", &pools->waits,
                           [master](ServerCall* call, const CreateSessionRequest& request,
                                    CreateSessionResponse* response) {
                             absl::Duration timeout = call->deadline() - absl::Now();
                             if (call->deadline() == absl::InfiniteFuture()) {
                               timeout = SessionOptions().creation_timeout;
                             }
                             // The answer must arrive before the client's own end.
                             timeout -= std::min(absl::Milliseconds(500), timeout / 10);
                             return master->CreateSessionFor(call->cancellation(), request, timeout,
                                                             kDefaultMaxCachedPlans, response);
                           }));
  add("ExtendSession", Blocking<ExtendSessionRequest, ExtendSessionResponse>(
                           "ExtendSession", &pools->waits,
                           [master](ServerCall* call, const ExtendSessionRequest& request,
                                    ExtendSessionResponse* response) {
                             return master->ExtendSessionFor(call->cancellation(), request,
                                                             response);
                           }));
  add("MakeCallable", Blocking<MakeCallableRequest, MakeCallableResponse>(
                          "MakeCallable", pool,
                          [master](ServerCall*, const MakeCallableRequest& request,
                                   MakeCallableResponse* response) {
                            return master->MakeCallable(request, response);
                          }));
  add("ReleaseCallable",
      Blocking<ReleaseCallableRequest, ReleaseCallableResponse>(
          "ReleaseCallable", pool,
          [master](ServerCall*, const ReleaseCallableRequest& request, ReleaseCallableResponse*) {
            return master->ReleaseCallable(request);
          }));
  add("CloseSession",
      Blocking<CloseSessionRequest, CloseSessionResponse>(
          "CloseSession", &pools->closes,
          [master](ServerCall*, const CloseSessionRequest& request, CloseSessionResponse*) {
            return master->CloseSession(request);
          }));
  add("ListDevices",
      Blocking<ListDevicesRequest, ListDevicesResponse>(
          "ListDevices", pool,
          [master](ServerCall*, const ListDevicesRequest& request, ListDevicesResponse* response) {
            return master->ListDevices(request, response);
          }));
  // It clears this task's own worker too, whose sessions may be those of other tasks' masters.
  add("Reset", Blocking<ResetRequest, ResetResponse>(
                   "Reset", &pools->closes,
                   [master, check_reset = std::move(check_reset)](
                       ServerCall* call, const ResetRequest& request, ResetResponse*) -> Status {
                     if (!call->is_from_member()) {
                       const std::vector<std::string> containers(request.container().begin(),
                                                                 request.container().end());
                       MR_RETURN_IF_ERROR(check_reset(containers, master->num_sessions()));
                     }
                     return master->Reset(request);
                   }));
  AddRunMethods(master, pool, &handlers);
  add("RunStep", [master, pool](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
    ServeRunStep(master, pool, std::move(call), bytes);
  });
  add("RunCallable", [master](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
    ServeRunCallable(master, std::move(call), bytes);
  });
  // The others are heavy: they run steps, or what they decode may be large.
  for (const char* method : {"CloseSession", "ListDevices", "ReleaseCallable", "Reset"}) {
    handlers[absl::StrCat(kMasterService, method)].weight = CallWeight::kLight;
  }
  for (const char* method : {"EndRun", "FindTrainers", "RenewSessions"}) {
    handlers[absl::StrCat(kOwnMasterService, method)].weight = CallWeight::kLight;
  }
  return handlers;
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/grpc_master.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "core/refusal.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/master/master_messages.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"
#include "run/training_run.h"

namespace millrace {
namespace {

// How often the log says that a master is missing.
constexpr absl::Duration kWaitLogPeriod = absl::Seconds(10);
// For calls that only set up or tidy up.
constexpr absl::Duration kControlTimeout = absl::Minutes(10);
constexpr absl::Duration kCloseTimeout = absl::Seconds(30);

// The call's own time was over: gRPC's text, in which no master answers.
bool HadNoAnswer(const Status& status) {
  return absl::IsDeadlineExceeded(status) && status.message() == "Deadline Exceeded";
}

class GrpcMaster : public RemoteMaster {
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
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    return channel_->Call(absl::StrCat(kOwnMasterService, "EndRun"), options, bytes).status();
  }
  StatusOr<RunTrainers> FindTrainers(const std::string& session_handle) override {
    wire::FindTrainersRequest request;
    request.set_session_handle(session_handle);
    RpcOptions options;
    options.deadline = absl::Now() + kCloseTimeout;
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
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
    const StatusOr<grpc::ByteBuffer> message = EncodeMessage(request);
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
      MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes,
                          EncodeMessage(tensorflow::GetStatusRequest()));
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
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer bytes, EncodeMessage(request));
    MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer answer,
                        channel_->Call(absl::StrCat(kMasterService, method), options, bytes));
    return response == nullptr ? absl::OkStatus() : DecodeMessage(method, answer, response);
  }

  const std::shared_ptr<RpcChannel> channel_;
};

}  // namespace

std::shared_ptr<RemoteMaster> MakeGrpcMaster(std::shared_ptr<RpcChannel> channel) {
  return std::make_shared<GrpcMaster>(std::move(channel));
}

}  // namespace millrace

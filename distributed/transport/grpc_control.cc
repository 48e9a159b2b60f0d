// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/grpc_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/transport.pb.h"
#include "distributed/transport/unary_call.h"
#include "net/tensor_coding.h"
#include "run/training_run.h"

namespace millrace {
namespace {

// Writes a request that is one message, which outlives it.
auto Fields(const google::protobuf::MessageLite& request) {
  return [&request](MessageWriter* writer) {
    writer->AddMessage(request);
    return absl::OkStatus();
  };
}

FoundRun::State StateOf(wire::FindRunResponse::State state) {
  switch (state) {
    case wire::FindRunResponse::CLAIMED:
      return FoundRun::State::kClaimed;
    case wire::FindRunResponse::ENDED:
      return FoundRun::State::kEnded;
    case wire::FindRunResponse::SUPERSEDED:
      return FoundRun::State::kSuperseded;
    default:
      return FoundRun::State::kUnknown;
  }
}
class GrpcControl : public WorkerControl {
 public:
  GrpcControl(std::string task, std::shared_ptr<RpcChannel> channel)
      : task_(std::move(task)), channel_(std::move(channel)) {}

  const std::string& task() const override { return task_; }
  const std::string& address() const override { return channel_->address(); }

  void GetStatus(const CallOptions& options, tensorflow::GetStatusResponse* response,
                 Done done) override {
    Simple("GetStatus", options, tensorflow::GetStatusRequest(), response, std::move(done));
  }
  void CreateWorkerSession(const CallOptions& options,
                           const tensorflow::CreateWorkerSessionRequest& request,
                           Done done) override {
    Simple("CreateWorkerSession", options, request, nullptr, std::move(done));
  }
  void DeleteWorkerSession(const CallOptions& options,
                           const tensorflow::DeleteWorkerSessionRequest& request,
                           Done done) override {
    Simple("DeleteWorkerSession", options, request, nullptr, std::move(done));
  }
  void RenewSessions(const CallOptions& options, absl::Span<const std::string> handles,
                     std::vector<std::string>* unknown, Done done) override {
    Own<wire::RenewSessionsRequest, wire::RenewSessionsResponse>(
        "RenewSessions", options, std::move(done),
        [&](wire::RenewSessionsRequest* request) {
          for (const std::string& handle : handles) request->add_session_handle(handle);
        },
        [unknown](const wire::RenewSessionsResponse& response) {
          unknown->assign(response.unknown().begin(), response.unknown().end());
        });
  }
  void FindRun(const CallOptions& options, const std::string& name, const std::string& id,
               FoundRun* found, Done done) override {
    Own<wire::FindRunRequest, wire::FindRunResponse>(
        "FindRun", options, std::move(done),
        [&](wire::FindRunRequest* request) {
          request->set_name(name);
          request->set_id(id);
        },
        [found](const wire::FindRunResponse& response) {
          found->state = StateOf(response.state());
          found->run = FromWire(response.run());
          found->end = FromWire(response.end());
          found->trainers.assign(response.trainer().begin(), response.trainer().end());
          found->former_trainers.assign(response.former_trainer().begin(),
                                        response.former_trainer().end());
        });
  }
  void EndRun(const CallOptions& options, const std::string& session_handle, const RunEnd& end,
              Done done) override {
    Own<wire::EndRunRequest, wire::EndRunResponse>(
        "EndRun", options, std::move(done),
        [&](wire::EndRunRequest* request) {
          request->set_session_handle(session_handle);
          ToWire(end, request->mutable_end());
        },
        [](const wire::EndRunResponse&) {});
  }
  void RegisterGraph(const CallOptions& options, const tensorflow::RegisterGraphRequest& request,
                     tensorflow::RegisterGraphResponse* response, Done done) override {
    BeginUnary(
        channel_.get(), kWorkerService, "RegisterGraph", options, std::move(done),
        [&](MessageWriter* writer) -> Status {
          if (request.ByteSizeLong() > static_cast<size_t>(kMaxMessageBytes)) {
            return absl::ResourceExhaustedError(
                absl::StrCat("RegisterGraph on ", task_, ": a partition must be below 2 GiB, got ",
                             request.ByteSizeLong(), " bytes; keep large constants in files"));
          }
          writer->AddMessage(request);
          return absl::OkStatus();
        },
        [response](const grpc::ByteBuffer& answer) {
          return DecodeMessage("RegisterGraph", answer, response);
        });
  }
  void DeregisterGraph(const CallOptions& options,
                       const tensorflow::DeregisterGraphRequest& request, Done done) override {
    Simple("DeregisterGraph", options, request, nullptr, std::move(done));
  }
  void CleanupAll(const CallOptions& options, const tensorflow::CleanupAllRequest& request,
                  Done done) override {
    Simple("CleanupAll", options, request, nullptr, std::move(done));
  }

 private:
  void Simple(const char* method, const CallOptions& options,
              const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response,
              Done done) {
    BeginUnary(channel_.get(), kWorkerService, method, options, std::move(done), Fields(request),
               [response, method](const grpc::ByteBuffer& answer) {
                 return response == nullptr ? absl::OkStatus()
                                            : DecodeMessage(method, answer, response);
               });
  }

  // A method of this program's own, without tensors: `fill` makes the request, `take` gets the
  // answer before `done`.
  template <typename Request, typename Response, typename Fill, typename Take>
  void Own(const char* method, const CallOptions& options, Done done, const Fill& fill, Take take) {
    BeginUnary(
        channel_.get(), kTransportService, method, options, std::move(done),
        [&fill](MessageWriter* writer) {
          Request request;
          fill(&request);
          writer->AddMessage(request);
          return absl::OkStatus();
        },
        [method, take = std::move(take)](const grpc::ByteBuffer& answer) -> Status {
          Response response;
          MR_RETURN_IF_ERROR(DecodeMessage(method, answer, &response));
          take(response);
          return absl::OkStatus();
        });
  }

  const std::string task_;
  const std::shared_ptr<RpcChannel> channel_;
};

}  // namespace

std::shared_ptr<WorkerControl> MakeGrpcControl(const std::string& task,
                                               std::shared_ptr<RpcChannel> channel) {
  return std::make_shared<GrpcControl>(task, std::move(channel));
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/grpc_control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/unary_call.h"
#include "net/tensor_coding.h"
#include "proto/worker_control.pb.h"
#include "run/training_run.h"

namespace millrace {
namespace {

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

  void GetStatus(const CallOptions& options, std::vector<tensorflow::DeviceAttributes>* devices,
                 Done done) override {
    Call<wire::GetStatusRequest, wire::GetStatusResponse>(
        "GetStatus", options, std::move(done), [](wire::GetStatusRequest*) {},
        [devices](const wire::GetStatusResponse& response) {
          devices->assign(response.device().begin(), response.device().end());
        });
  }
  void CreateWorkerSession(const CallOptions& options, const SessionOrder& order,
                           Done done) override {
    Call<wire::CreateWorkerSessionRequest, wire::CreateWorkerSessionResponse>(
        "CreateWorkerSession", options, std::move(done),
        [&](wire::CreateWorkerSessionRequest* request) {
          request->set_session_handle(order.handle);
          request->set_master_task(order.opener.task);
          request->set_master_incarnation(order.opener.incarnation);
          ToWire(order.terms, request->mutable_terms());
          request->set_isolated(order.isolated);
        });
  }
  void DeleteWorkerSession(const CallOptions& options, const std::string& session_handle,
                           Done done) override {
    Call<wire::DeleteWorkerSessionRequest, wire::DeleteWorkerSessionResponse>(
        "DeleteWorkerSession", options, std::move(done),
        [&](wire::DeleteWorkerSessionRequest* request) {
          request->set_session_handle(session_handle);
        });
  }
  void RenewSessions(const CallOptions& options, absl::Span<const std::string> handles,
                     std::vector<std::string>* unknown, Done done) override {
    Call<wire::RenewSessionsRequest, wire::RenewSessionsResponse>(
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
    Call<wire::FindRunRequest, wire::FindRunResponse>(
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
    Call<wire::EndRunRequest, wire::EndRunResponse>("EndRun", options, std::move(done),
                                                    [&](wire::EndRunRequest* request) {
                                                      request->set_session_handle(session_handle);
                                                      ToWire(end, request->mutable_end());
                                                    });
  }
  void RegisterGraph(const CallOptions& options, PartOrder order, RegisteredPart* part,
                     Done done) override {
    BeginUnary(
        channel_.get(), kControlService, "RegisterGraph", options, std::move(done),
        [&](MessageWriter* writer) -> Status {
          order.Flatten();
          wire::RegisterGraphRequest request;
          request.set_session_handle(order.session_handle);
          request.mutable_graph_def()->Swap(&order.graph_def);
          if (request.ByteSizeLong() > static_cast<size_t>(kMaxMessageBytes)) {
            return absl::ResourceExhaustedError(
                absl::StrCat("RegisterGraph on ", task_, ": a partition must be below 2 GiB, got ",
                             request.ByteSizeLong(), " bytes; keep large constants in files"));
          }
          writer->AddMessage(request);
          return absl::OkStatus();
        },
        [part](const grpc::ByteBuffer& answer) -> Status {
          wire::RegisterGraphResponse response;
          MR_RETURN_IF_ERROR(DecodeMessage("RegisterGraph", answer, &response));
          part->graph_handle = response.graph_handle();
          part->link_version = response.link_version();
          return absl::OkStatus();
        });
  }
  void DeregisterGraph(const CallOptions& options, const std::string& session_handle,
                       const std::string& graph_handle, Done done) override {
    Call<wire::DeregisterGraphRequest, wire::DeregisterGraphResponse>(
        "DeregisterGraph", options, std::move(done), [&](wire::DeregisterGraphRequest* request) {
          request->set_session_handle(session_handle);
          request->set_graph_handle(graph_handle);
        });
  }
  void CleanupAll(const CallOptions& options, absl::Span<const std::string> containers,
                  Done done) override {
    Call<wire::CleanupAllRequest, wire::CleanupAllResponse>(
        "CleanupAll", options, std::move(done), [&](wire::CleanupAllRequest* request) {
          for (const std::string& container : containers) request->add_container(container);
        });
  }

 private:
  // `fill` makes the request, `take` gets the answer before `done`.
  template <typename Request, typename Response, typename Fill, typename Take>
  void Call(const char* method, const CallOptions& options, Done done, const Fill& fill,
            Take take) {
    BeginUnary(
        channel_.get(), kControlService, method, options, std::move(done),
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
  template <typename Request, typename Response, typename Fill>
  void Call(const char* method, const CallOptions& options, Done done, const Fill& fill) {
    Call<Request, Response>(method, options, std::move(done), fill, [](const Response&) {});
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

// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker_service.h"

#include <functional>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/worker_control.h"
#include "distributed/transport/worker_messages.h"
#include "distributed/worker/foreign_requests.h"
#include "distributed/worker/step_edges.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"
#include "proto/worker_control.pb.h"

namespace millrace {
namespace {

wire::FindRunResponse::State ToWire(FoundRun::State state) {
  switch (state) {
    case FoundRun::State::kUnknown:
      return wire::FindRunResponse::UNKNOWN;
    case FoundRun::State::kClaimed:
      return wire::FindRunResponse::CLAIMED;
    case FoundRun::State::kEnded:
      return wire::FindRunResponse::ENDED;
    case FoundRun::State::kSuperseded:
      return wire::FindRunResponse::SUPERSEDED;
  }
  return wire::FindRunResponse::UNKNOWN;
}

void Respond(ServerCall* call, const google::protobuf::MessageLite& response) {
  FinishWith(call, [&] { return EncodeMessage(response); });
}

// A method without tensors, answered at once.
template <typename Request, typename Response>
RpcServer::Handler Plain(const char* name, std::function<Status(Request&, Response*)> method) {
  return [name, method](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
    Request request;
    Response response;
    const Status status = NoExceptions(name, [&]() -> Status {
      MR_RETURN_IF_ERROR(DecodeMessage(name, bytes, &request));
      return method(request, &response);
    });
    if (!status.ok()) return call->FinishWithStatus(status);
    Respond(call.get(), response);
  };
}

// A foreign master's RunGraph under way.
struct RunGraphCall {
  std::shared_ptr<ServerCall> call;
  tensorflow::RunGraphRequest request;
  tensorflow::RunGraphResponse response;
  std::vector<NamedTensor> received;
};

// The message that answers a step that ended with `status`; an error is what the call ends with.
StatusOr<grpc::ByteBuffer> EncodeRun(RunGraphCall* run, const Status& status) {
  MessageWriter writer;
  Status failed = status;
  for (const NamedTensor& tensor : run->received) {
    if (!failed.ok()) break;
    if (tensor.is_dead) {
      failed = InvalidArgument("The tensor returned for ", tensor.name, " was not valid.");
      break;
    }
    failed = writer.AddNamedTensor(kRunGraphRecv, tensor.name, tensor.value);
  }
  if (!failed.ok() && !run->request.store_errors_in_response_body()) return failed;
  run->response.set_status_code(static_cast<tensorflow::error::Code>(failed.code()));
  run->response.set_status_error_message(WireText(failed.message()));
  AddPayloads(failed, &run->response);
  writer.AddMessage(run->response);
  return writer.Finish();
}

void ServeRunGraph(Worker* worker, std::shared_ptr<ServerCall> call,
                   const grpc::ByteBuffer& bytes) {
  auto run = std::make_shared<RunGraphCall>();
  run->call = std::move(call);
  std::vector<DecodedTensor> tensors;
  const Status read =
      DecodeMessage("RunGraphRequest", bytes, kRunGraphSend, TensorField::kNamedOrIndexed, &tensors,
                    &run->request, run->call->limits().max_splat_bytes);
  if (!read.ok()) return run->call->FinishWithStatus(read);
  const std::vector<NamedTensor> send = ToNamed(std::move(tensors));
  // Masters of our own have links: this one is foreign. The time of its call is its step's.
  worker->RunGraph(run->request, run->request, EdgesBy::kRecvTensor, send, /*block=*/false,
                   absl::InfiniteFuture(), run->call->cancellation(), &run->response,
                   &run->received, [run](const Status& status) {
                     FinishWith(run->call.get(), [&] { return EncodeRun(run.get(), status); });
                   });
}

void ServeRecvTensor(Worker* worker, std::shared_ptr<ServerCall> call,
                     const grpc::ByteBuffer& bytes) {
  tensorflow::RecvTensorRequest request;
  const Status read = DecodeMessage("RecvTensorRequest", bytes, &request);
  if (!read.ok()) return call->FinishWithStatus(read);
  CancellationManager* const cancellation = call->cancellation();
  worker->RecvTensor(request, cancellation,
                     [call](const Status& status, Tensor value, bool is_dead) {
                       FinishWith(call.get(), [&]() -> StatusOr<grpc::ByteBuffer> {
                         MR_RETURN_IF_ERROR(status);
                         tensorflow::RecvTensorResponse response;
                         response.set_is_dead(is_dead);
                         response.set_send_start_micros(absl::ToUnixMicros(absl::Now()));
                         MessageWriter writer;
                         writer.AddMessage(response);
                         if (!is_dead) {
                           MR_RETURN_IF_ERROR(writer.AddTensor(kRecvTensorTensor, value));
                         }
                         return writer.Finish();
                       });
                     });
}

using Handlers = std::map<std::string, RpcServer::Handler>;

void Add(const char* service, const char* method, RpcServer::Handler handler, Handlers* handlers) {
  (*handlers)[absl::StrCat(service, method)] = std::move(handler);
}

void Weigh(CallWeight weight, const char* service, std::initializer_list<const char*> methods,
           Handlers* handlers) {
  for (const char* method : methods) (*handlers)[absl::StrCat(service, method)].weight = weight;
}

// What a worker cleans for a caller.
Status CleanFor(Worker* worker, bool is_from_member,
                const google::protobuf::RepeatedPtrField<std::string>& names) {
  const std::vector<std::string> containers(names.begin(), names.end());
  // Anybody may call a server without a token.
  if (!is_from_member) MR_RETURN_IF_ERROR(worker->CheckMayClear("CleanupAll", containers));
  return worker->CleanupAll(containers);
}

template <typename Request, typename Response>
RpcServer::Handler CleanupAll(Worker* worker) {
  return [worker](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
    const bool is_from_member = call->is_from_member();
    Plain<Request, Response>("CleanupAll", [&](const Request& request, Response*) {
      return CleanFor(worker, is_from_member, request.container());
    })(std::move(call), bytes);
  };
}

// What foreign masters say: what the task is, their sessions and graphs, what steps leave behind.
void AddForeignMethods(Worker* worker, Handlers* handlers) {
  using namespace tensorflow;  // NOLINT: the messages of a whole service
  Add(kWorkerService, "GetStatus",
      Plain<GetStatusRequest, GetStatusResponse>(
          "GetStatus",
          [worker](const GetStatusRequest&, GetStatusResponse* response) {
            for (const auto& device : worker->DeviceAttributes()) {
              *response->add_device_attributes() = device;
            }
            return absl::OkStatus();
          }),
      handlers);
  Add(kWorkerService, "CreateWorkerSession",
      Plain<CreateWorkerSessionRequest, CreateWorkerSessionResponse>(
          "CreateWorkerSession",
          [worker](const CreateWorkerSessionRequest& request, CreateWorkerSessionResponse*) {
            return worker->CreateWorkerSession(OrderOf(request), SessionFrom::kAnotherProcess);
          }),
      handlers);
  Add(kWorkerService, "DeleteWorkerSession",
      Plain<DeleteWorkerSessionRequest, DeleteWorkerSessionResponse>(
          "DeleteWorkerSession",
          [worker](const DeleteWorkerSessionRequest& request, DeleteWorkerSessionResponse*) {
            return worker->DeleteWorkerSession(request.session_handle());
          }),
      handlers);
  Add(kWorkerService, "RegisterGraph",
      Plain<RegisterGraphRequest, RegisterGraphResponse>(
          "RegisterGraph",
          [worker](RegisterGraphRequest& request, RegisterGraphResponse* response) -> Status {
            MR_ASSIGN_OR_RETURN(const RegisteredPart part,
                                worker->RegisterGraph(OrderOf(std::move(request))));
            response->set_graph_handle(part.graph_handle);
            return absl::OkStatus();
          }),
      handlers);
  Add(kWorkerService, "DeregisterGraph",
      Plain<DeregisterGraphRequest, DeregisterGraphResponse>(
          "DeregisterGraph",
          [worker](const DeregisterGraphRequest& request, DeregisterGraphResponse*) {
            return worker->DeregisterGraph(request.session_handle(), request.graph_handle());
          }),
      handlers);
  Add(kWorkerService, "CleanupGraph",
      Plain<CleanupGraphRequest, CleanupGraphResponse>(
          "CleanupGraph",
          [worker](const CleanupGraphRequest& request, CleanupGraphResponse*) {
            return worker->CleanupGraph(request.step_id());
          }),
      handlers);
  Add(kWorkerService, "CleanupAll", CleanupAll<CleanupAllRequest, CleanupAllResponse>(worker),
      handlers);
}

// What our own masters say: the same of sessions and graphs, without steps.
void AddControlMethods(Worker* worker, Handlers* handlers) {
  Add(kControlService, "GetStatus",
      Plain<wire::GetStatusRequest, wire::GetStatusResponse>(
          "GetStatus",
          [worker](const wire::GetStatusRequest&, wire::GetStatusResponse* response) {
            for (const auto& device : worker->DeviceAttributes()) {
              *response->add_device() = device;
            }
            return absl::OkStatus();
          }),
      handlers);
  Add(kControlService, "CreateWorkerSession",
      Plain<wire::CreateWorkerSessionRequest, wire::CreateWorkerSessionResponse>(
          "CreateWorkerSession",
          [worker](const wire::CreateWorkerSessionRequest& request,
                   wire::CreateWorkerSessionResponse*) {
            const SessionOrder order = {
                .handle = request.session_handle(),
                .opener = {request.master_task(), request.master_incarnation()},
                .terms = FromWire(request.terms()),
                .isolated = request.isolated()};
            return worker->CreateWorkerSession(order, SessionFrom::kAnotherProcess);
          }),
      handlers);
  Add(kControlService, "DeleteWorkerSession",
      Plain<wire::DeleteWorkerSessionRequest, wire::DeleteWorkerSessionResponse>(
          "DeleteWorkerSession",
          [worker](const wire::DeleteWorkerSessionRequest& request,
                   wire::DeleteWorkerSessionResponse*) {
            return worker->DeleteWorkerSession(request.session_handle());
          }),
      handlers);
  Add(kControlService, "RegisterGraph",
      Plain<wire::RegisterGraphRequest, wire::RegisterGraphResponse>(
          "RegisterGraph",
          [worker](wire::RegisterGraphRequest& request,
                   wire::RegisterGraphResponse* response) -> Status {
            PartOrder order;
            order.session_handle = request.session_handle();
            order.graph_def.Swap(request.mutable_graph_def());
            MR_ASSIGN_OR_RETURN(const RegisteredPart part, worker->RegisterGraph(std::move(order)));
            response->set_graph_handle(part.graph_handle);
            response->set_link_version(static_cast<uint32_t>(part.link_version));
            return absl::OkStatus();
          }),
      handlers);
  Add(kControlService, "DeregisterGraph",
      Plain<wire::DeregisterGraphRequest, wire::DeregisterGraphResponse>(
          "DeregisterGraph",
          [worker](const wire::DeregisterGraphRequest& request, wire::DeregisterGraphResponse*) {
            return worker->DeregisterGraph(request.session_handle(), request.graph_handle());
          }),
      handlers);
  Add(kControlService, "CleanupAll",
      CleanupAll<wire::CleanupAllRequest, wire::CleanupAllResponse>(worker), handlers);
}

// One entry for each master.
void TellSessions(const Worker& worker, wire::GetPeerCountsResponse::AllOpenSessions* told) {
  std::map<std::string, wire::GetPeerCountsResponse::OpenSessions*> by_master;
  for (const Worker::OpenedSession& session : worker.OpenSessions()) {
    wire::GetPeerCountsResponse::OpenSessions*& of_master = by_master[session.master_task];
    if (of_master == nullptr) {
      of_master = told->add_of_master();
      of_master->set_master(WireText(session.master_task));
    }
    of_master->set_sessions(of_master->sessions() + 1);
    of_master->set_running_steps(of_master->running_steps() + session.running_steps);
  }
}

// What the task has exchanged with others, and whose sessions it has.
void AddCountsMethod(Worker* worker, Handlers* handlers) {
  Add(kControlService, "GetPeerCounts",
      Plain<wire::GetPeerCountsRequest, wire::GetPeerCountsResponse>(
          "GetPeerCounts",
          [worker](const wire::GetPeerCountsRequest&, wire::GetPeerCountsResponse* response) {
            TellSessions(*worker, response->mutable_open_sessions());
            if (worker->peer_counters() == nullptr) return absl::OkStatus();
            for (const auto& [task, counts] : worker->peer_counters()->Read()) {
              wire::GetPeerCountsResponse::Peer* const peer = response->add_peer();
              peer->set_task(task);
              peer->set_bytes_sent(counts.bytes_sent);
              peer->set_messages_sent(counts.messages_sent);
              peer->set_tensors_sent(counts.tensors_sent);
              peer->set_queued_ns(counts.queued_ns);
              peer->set_bytes_received(counts.bytes_received);
              peer->set_messages_received(counts.messages_received);
              peer->set_tensors_received(counts.tensors_received);
            }
            return absl::OkStatus();
          }),
      handlers);
}

// Leases of sessions, and the training runs that they belong to.
void AddRunMethods(Worker* worker, Handlers* handlers) {
  Add(kControlService, "RenewSessions",
      Plain<wire::RenewSessionsRequest, wire::RenewSessionsResponse>(
          "RenewSessions",
          [worker](const wire::RenewSessionsRequest& request,
                   wire::RenewSessionsResponse* response) {
            const std::vector<std::string> handles(request.session_handle().begin(),
                                                   request.session_handle().end());
            for (const std::string& handle : worker->RenewSessions(handles)) {
              response->add_unknown(handle);
            }
            return absl::OkStatus();
          }),
      handlers);
  Add(kControlService, "FindRun",
      Plain<wire::FindRunRequest, wire::FindRunResponse>(
          "FindRun",
          [worker](const wire::FindRunRequest& request, wire::FindRunResponse* response) {
            const FoundRun found = worker->FindRun(request.name(), request.id());
            response->set_state(ToWire(found.state));
            ToWire(found.run, response->mutable_run());
            ToWire(found.end, response->mutable_end());
            for (const std::string& trainer : found.trainers) response->add_trainer(trainer);
            for (const std::string& former : found.former_trainers) {
              response->add_former_trainer(former);
            }
            return absl::OkStatus();
          }),
      handlers);
  Add(kControlService, "EndRun",
      Plain<wire::EndRunRequest, wire::EndRunResponse>(
          "EndRun",
          [worker](const wire::EndRunRequest& request, wire::EndRunResponse*) {
            return worker->EndRun(request.session_handle(), FromWire(request.end()));
          }),
      handlers);
}

// Steps and their tensors.
void AddStepMethods(Worker* worker, Handlers* handlers) {
  using namespace tensorflow;  // NOLINT: the messages of a whole service
  // RPCs are counted and steps traced elsewhere; these are there because clients may call them.
  Add(kWorkerService, "Logging",
      Plain<LoggingRequest, LoggingResponse>(
          "Logging", [](const LoggingRequest&, LoggingResponse*) { return absl::OkStatus(); }),
      handlers);
  Add(kWorkerService, "Tracing",
      Plain<TracingRequest, TracingResponse>(
          "Tracing", [](const TracingRequest&, TracingResponse*) { return absl::OkStatus(); }),
      handlers);
  const auto bind = [worker](auto serve) {
    return [worker, serve](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
      serve(worker, std::move(call), bytes);
    };
  };
  Add(kWorkerService, "RunGraph", bind(ServeRunGraph), handlers);
  Add(kWorkerService, "RecvTensor", bind(ServeRecvTensor), handlers);
}

}  // namespace

Handlers WorkerHandlers(Worker* worker) {
  Handlers handlers;
  AddForeignMethods(worker, &handlers);
  AddControlMethods(worker, &handlers);
  AddCountsMethod(worker, &handlers);
  AddRunMethods(worker, &handlers);
  AddStepMethods(worker, &handlers);
  // All others are heavy: they run kernels, build graphs or decode tensors.
  Weigh(CallWeight::kLight, kWorkerService, {"GetStatus", "RecvTensor", "Logging", "Tracing"},
        &handlers);
  Weigh(CallWeight::kLight, kControlService,
        {"GetStatus", "RenewSessions", "FindRun", "GetPeerCounts"}, &handlers);
  // They cancel steps and free what belonged to them.
  Weigh(CallWeight::kUrgent, kWorkerService,
        {"DeleteWorkerSession", "DeregisterGraph", "CleanupGraph"}, &handlers);
  Weigh(CallWeight::kUrgent, kControlService, {"DeleteWorkerSession", "DeregisterGraph", "EndRun"},
        &handlers);
  return handlers;
}

}  // namespace millrace

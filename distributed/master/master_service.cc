// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/master_service.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/tensor.h"
#include "distributed/master/master_messages.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/service_names.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"
#include "proto/master.pb.h"
#include "proto/worker_control.pb.h"
#include "run/training_run.h"
#include "runtime/session.h"

namespace millrace {
namespace {

void Respond(ServerCall* call, const Status& status,
             const google::protobuf::MessageLite& response) {
  FinishWith(call, [&]() -> StatusOr<grpc::ByteBuffer> {
    MR_RETURN_IF_ERROR(status);
    return EncodeMessage(response);
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

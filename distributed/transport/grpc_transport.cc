// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/grpc_transport.h"

#include <deque>
#include <initializer_list>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "distributed/transport/transport.pb.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"

namespace millrace {
namespace {

// Fields with tensors.
constexpr int kRunGraphSend = 3;      // RunGraphRequest.send
constexpr int kRunGraphRecv = 1;      // RunGraphResponse.recv
constexpr int kRecvTensorTensor = 1;  // RecvTensorResponse.tensor
constexpr int kPulled = 1;            // PullResponse.tensor

// Tensors of this size leave at once; smaller ones may wait for Flush.
constexpr int64_t kHoldBelowBytes = 64 << 10;
// Of one message of several tensors; far from the limit of 2 GiB.
constexpr int64_t kMaxBatchBytes = 256 << 20;

RpcOptions ToRpcOptions(const CallOptions& options) {
  RpcOptions rpc;
  rpc.deadline = options.deadline;
  rpc.wait_for_ready = options.wait_for_ready;
  rpc.cancellation = options.cancellation;
  rpc.asks_for_refusal = options.asks_for_refusal;
  return rpc;
}

StatusOr<grpc::ByteBuffer> Encode(const google::protobuf::MessageLite& message) {
  MessageWriter writer;
  writer.AddMessage(message);
  return writer.Finish();
}

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

Status StatusFromBody(int code, const std::string& message) {
  return code == 0 ? absl::OkStatus() : Status(static_cast<absl::StatusCode>(code), message);
}

std::vector<NamedTensor> ToNamed(std::vector<DecodedTensor> tensors) {
  std::vector<NamedTensor> result;
  for (DecodedTensor& tensor : tensors) {
    result.push_back({std::move(tensor.name), std::move(tensor.value), tensor.is_dead});
  }
  return result;
}

// --- The calling side ----------------------------------------------------------------------------

class GrpcTransport : public Transport {
 public:
  GrpcTransport(std::string task, std::shared_ptr<RpcChannel> channel)
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
    Begin(
        kWorkerService, "RegisterGraph", ToRpcOptions(options), std::move(done),
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
  void CleanupGraph(const CallOptions& options, const tensorflow::CleanupGraphRequest& request,
                    Done done) override {
    Simple("CleanupGraph", options, request, nullptr, std::move(done));
  }
  void CleanupAll(const CallOptions& options, const tensorflow::CleanupAllRequest& request,
                  Done done) override {
    Simple("CleanupAll", options, request, nullptr, std::move(done));
  }

  void RunGraph(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
                const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send, bool,
                tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
                Done done) override {
    RpcOptions call = ToRpcOptions(options);
    call.deadline += kStepAnswerSlack;
    Begin(
        kWorkerService, "RunGraph", call, std::move(done),
        [&](MessageWriter* writer) -> Status {
          writer->AddMessage(graph);
          if (&step != &graph) writer->AddMessage(step);  // parsers merge the two
          AddStepLimit(options.deadline, writer);
          for (const NamedTensor& tensor : send) {
            MR_RETURN_IF_ERROR(writer->AddNamedTensor(kRunGraphSend, tensor.name, tensor.value));
          }
          return absl::OkStatus();
        },
        [response, received](const grpc::ByteBuffer& answer) -> Status {
          std::vector<DecodedTensor> tensors;
          MR_RETURN_IF_ERROR(DecodeMessage("RunGraphResponse", answer, kRunGraphRecv,
                                           TensorField::kNamedOrIndexed, &tensors, response));
          for (NamedTensor& tensor : ToNamed(std::move(tensors))) {
            received->push_back(std::move(tensor));
          }
          return WithPayloadsOf(
              StatusFromBody(response->status_code(), response->status_error_message()), *response);
        });
  }

  void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                  NamedTensor* tensor, Done done) override {
    Begin(kWorkerService, "RecvTensor", ToRpcOptions(options), std::move(done), Fields(request),
          [tensor](const grpc::ByteBuffer& answer) -> Status {
            tensorflow::RecvTensorResponse rest;
            std::vector<DecodedTensor> tensors;
            MR_RETURN_IF_ERROR(DecodeMessage("RecvTensorResponse", answer, kRecvTensorTensor,
                                             TensorField::kTensor, &tensors, &rest));
            tensor->is_dead = rest.is_dead();
            if (!tensors.empty()) tensor->value = std::move(tensors.back().value);
            return absl::OkStatus();
          });
  }

  void Pull(const CallOptions& options, const PullRequest& request,
            std::shared_ptr<PullSink> sink) override {
    const Status begun = NoExceptions("Pull", [&]() -> Status {
      wire::PullRequest wire;
      wire.set_step_id(request.step_id);
      wire.set_dst_task(request.dst_task);
      wire.set_num_keys(request.num_keys);
      wire.set_fingerprint(request.fingerprint);
      wire.set_src_incarnation(request.src_incarnation);
      MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer message, Encode(wire));
      // What the last message says.
      struct End {
        bool has_come = false;
        Status status;
      };
      auto end = std::make_shared<End>();
      channel_->Stream(
          absl::StrCat(kTransportService, "Pull"), ToRpcOptions(options), message,
          [sink, end](const grpc::ByteBuffer& part) -> StatusOr<bool> {
            wire::PullResponse rest;
            std::vector<DecodedTensor> tensors;
            MR_RETURN_IF_ERROR(DecodeMessage("PullResponse", part, kPulled,
                                             TensorField::kNamedOrIndexed, &tensors, &rest));
            for (DecodedTensor& tensor : tensors) {
              sink->OnTensor(tensor.index, std::move(tensor.value), tensor.is_dead);
            }
            if (!rest.last()) return true;
            end->status =
                WithPayloadsOf(StatusFromBody(rest.status_code(), rest.status_message()), rest);
            end->has_come = true;
            return false;
          },
          [sink, end](const Status& status) {
            sink->OnDone(NoExceptions("Pull", [&]() -> Status {
              if (end->has_come) return end->status;
              if (!status.ok()) return status;
              return absl::UnavailableError("all tensors must arrive, got an early end");
            }));
          });
      return absl::OkStatus();
    });
    if (!begun.ok()) sink->OnDone(begun);
  }

 private:
  // One call: `write` makes the request, `read` takes the answer. `done` hears once what comes of
  // it, and of what they throw.
  template <typename Write, typename Read>
  void Begin(const char* service, const char* method, const RpcOptions& options, Done done,
             const Write& write, Read read) {
    // Kept until the channel has it: what becomes of it when that throws is not known.
    std::shared_ptr<Done> kept;
    const Status begun = NoExceptions(method, [&]() -> Status {
      MessageWriter writer;
      MR_RETURN_IF_ERROR(write(&writer));
      MR_ASSIGN_OR_RETURN(const grpc::ByteBuffer message, writer.Finish());
      const std::string name = absl::StrCat(service, method);
      kept = std::make_shared<Done>(std::move(done));
      RpcChannel::UnaryDone answered = [kept, method, read = std::move(read)](
                                           const Status& status,
                                           const grpc::ByteBuffer& answer) mutable {
        (*kept)(!status.ok() ? status : NoExceptions(method, [&] { return read(answer); }));
      };
      channel_->Unary(name, options, message, std::move(answered));
      return absl::OkStatus();
    });
    if (!begun.ok()) (kept == nullptr ? done : *kept)(begun);
  }
  void Simple(const char* method, const CallOptions& options,
              const google::protobuf::MessageLite& request, google::protobuf::MessageLite* response,
              Done done) {
    Begin(kWorkerService, method, ToRpcOptions(options), std::move(done), Fields(request),
          [response, method](const grpc::ByteBuffer& answer) {
            return response == nullptr ? absl::OkStatus() : DecodeMessage(method, answer, response);
          });
  }

  // A method of this program's own, without tensors: `fill` makes the request, `take` gets the
  // answer before `done`.
  template <typename Request, typename Response, typename Fill, typename Take>
  void Own(const char* method, const CallOptions& options, Done done, const Fill& fill, Take take) {
    Begin(
        kTransportService, method, ToRpcOptions(options), std::move(done),
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

// --- The serving side ----------------------------------------------------------------------------

void Respond(ServerCall* call, const google::protobuf::MessageLite& response) {
  FinishWith(call, [&] { return Encode(response); });
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

// Sends what is pulled as it comes: one message at a time, and what gathers meanwhile together.
class PullStream : public PullSink, public std::enable_shared_from_this<PullStream> {
 public:
  explicit PullStream(std::shared_ptr<ServerCall> call) : call_(std::move(call)) {}

  void OnTensor(uint64_t index, Tensor value, bool is_dead) override {
    MutexLock lock(&mu_);
    if (done_) return;
    Status added;
    try {
      // What has gathered and a large tensor may be too much for one message.
      if (value.TotalBytes() >= kMaxBatchBytes) Cut();
      added = writer_.AddIndexedTensor(kPulled, index, value, is_dead);
      if (added.ok() && writer_.num_bytes() >= kMaxBatchBytes) Cut();
    } catch (...) {
      // The writer may hold half of the tensor.
      added = StatusOfException("Pull");
      is_broken_ = true;
    }
    if (!added.ok()) return Fail(added);
    if (writer_.num_bytes() >= kHoldBelowBytes || !ready_.empty()) Send();
  }
  void Flush() override {
    MutexLock lock(&mu_);
    Send();
  }
  void OnDone(const Status& status) override {
    MutexLock lock(&mu_);
    if (done_) return;
    error_ = status;
    done_ = true;
    Send();
  }

 private:
  // A tensor cannot travel. The puller hears of it now: the rest may depend on what it would send.
  void Fail(const Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done_) return;
    error_ = status;
    done_ = true;
    ready_.clear();
    Send();
  }
  void Cut() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writer_.num_bytes() == 0) return;
    StatusOr<grpc::ByteBuffer> message = writer_.Finish();
    if (message.ok()) {
      ready_.push_back(*std::move(message));
    } else {
      Fail(message.status());
    }
  }
  void Send() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    try {
      SendOrThrow();
    } catch (...) {
      done_ = finished_ = true;
      ready_.clear();
      call_->FinishWithStatus(StatusOfException("Pull"));
    }
  }
  void SendOrThrow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done_ && ready_.empty()) {
      finished_ = true;
      // The trailers hold less of an error's text than a message does.
      if (is_broken_) return call_->FinishWithStatus(error_);
      wire::PullResponse last;
      last.set_last(true);
      last.set_status_code(static_cast<int>(error_.code()));
      last.set_status_message(WireText(error_.message()));
      AddPayloads(error_, &last);
      writer_.AddMessage(last);
      const StatusOr<grpc::ByteBuffer> message = writer_.Finish();
      if (!message.ok()) return call_->FinishWithStatus(message.status());
      return call_->Finish(*message);
    }
    if (ready_.empty()) Cut();
    if (ready_.empty()) return;
    const grpc::ByteBuffer message = std::move(ready_.front());
    ready_.pop_front();
    absl::AnyInvocable<void()> written = [self = shared_from_this()] { self->Written(); };
    writing_ = true;
    call_->Write(message, std::move(written));
  }
  void Written() {
    MutexLock lock(&mu_);
    writing_ = false;
    Send();
  }

  const std::shared_ptr<ServerCall> call_;
  Mutex mu_;
  MessageWriter writer_ ABSL_GUARDED_BY(mu_);
  std::deque<grpc::ByteBuffer> ready_ ABSL_GUARDED_BY(mu_);
  Status error_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
};

// A RunGraph under way.
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
  worker->RunGraph(run->request, run->request, send, /*block=*/false, StepDeadlineOf(run->request),
                   run->call->cancellation(), &run->response, &run->received,
                   [run](const Status& status) {
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

void ServePull(Worker* worker, std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
  wire::PullRequest wire;
  const Status read = DecodeMessage("PullRequest", bytes, &wire);
  if (!read.ok()) return call->FinishWithStatus(read);
  PullRequest request;
  request.step_id = wire.step_id();
  request.dst_task = wire.dst_task();
  request.num_keys = wire.num_keys();
  request.fingerprint = wire.fingerprint();
  request.src_incarnation = wire.src_incarnation();
  CancellationManager* const cancellation = call->cancellation();
  worker->Pull(request, MakePullStream(std::move(call)), cancellation);
}

}  // namespace

std::shared_ptr<Transport> MakeGrpcTransport(const std::string& task,
                                             std::shared_ptr<RpcChannel> channel) {
  return std::make_shared<GrpcTransport>(task, std::move(channel));
}

std::shared_ptr<PullSink> MakePullStream(std::shared_ptr<ServerCall> call) {
  return std::make_shared<PullStream>(std::move(call));
}

std::map<std::string, RpcServer::Handler> WorkerHandlers(Worker* worker) {
  using namespace tensorflow;  // NOLINT: the messages of a whole service
  std::map<std::string, RpcServer::Handler> handlers;
  const auto add = [&](const char* service, const char* method, RpcServer::Handler handler) {
    handlers[absl::StrCat(service, method)] = std::move(handler);
  };
  const auto weigh = [&](CallWeight weight, const char* service,
                         std::initializer_list<const char*> methods) {
    for (const char* method : methods) handlers[absl::StrCat(service, method)].weight = weight;
  };
  add(kWorkerService, "GetStatus",
      Plain<GetStatusRequest, GetStatusResponse>(
          "GetStatus", [worker](const GetStatusRequest&, GetStatusResponse* response) {
            for (const auto& device : worker->DeviceAttributes()) {
              *response->add_device_attributes() = device;
            }
            return absl::OkStatus();
          }));
  add(kWorkerService, "CreateWorkerSession",
      Plain<CreateWorkerSessionRequest, CreateWorkerSessionResponse>(
          "CreateWorkerSession",
          [worker](const CreateWorkerSessionRequest& request, CreateWorkerSessionResponse*) {
            return worker->CreateWorkerSession(request);
          }));
  add(kWorkerService, "DeleteWorkerSession",
      Plain<DeleteWorkerSessionRequest, DeleteWorkerSessionResponse>(
          "DeleteWorkerSession",
          [worker](const DeleteWorkerSessionRequest& request, DeleteWorkerSessionResponse*) {
            return worker->DeleteWorkerSession(request);
          }));
  add(kWorkerService, "RegisterGraph",
      Plain<RegisterGraphRequest, RegisterGraphResponse>(
          "RegisterGraph",
          [worker](RegisterGraphRequest& request, RegisterGraphResponse* response) {
            return worker->RegisterGraph(std::move(request), nullptr, response);
          }));
  add(kWorkerService, "DeregisterGraph",
      Plain<DeregisterGraphRequest, DeregisterGraphResponse>(
          "DeregisterGraph",
          [worker](const DeregisterGraphRequest& request, DeregisterGraphResponse*) {
            return worker->DeregisterGraph(request);
          }));
  add(kWorkerService, "CleanupGraph",
      Plain<CleanupGraphRequest, CleanupGraphResponse>(
          "CleanupGraph", [worker](const CleanupGraphRequest& request, CleanupGraphResponse*) {
            return worker->CleanupGraph(request.step_id());
          }));
  add(kWorkerService, "CleanupAll",
      [worker](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
        const bool is_from_member = call->is_from_member();
        Plain<CleanupAllRequest, CleanupAllResponse>(
            "CleanupAll", [&](const CleanupAllRequest& request, CleanupAllResponse*) -> Status {
              const std::vector<std::string> containers(request.container().begin(),
                                                        request.container().end());
              // Anybody may call a server without a token.
              if (!is_from_member) {
                MR_RETURN_IF_ERROR(worker->CheckMayClear("CleanupAll", containers));
              }
              return worker->CleanupAll(containers);
            })(std::move(call), bytes);
      });
  add(kTransportService, "RenewSessions",
      Plain<wire::RenewSessionsRequest, wire::RenewSessionsResponse>(
          "RenewSessions", [worker](const wire::RenewSessionsRequest& request,
                                    wire::RenewSessionsResponse* response) {
            const std::vector<std::string> handles(request.session_handle().begin(),
                                                   request.session_handle().end());
            for (const std::string& handle : worker->RenewSessions(handles)) {
              response->add_unknown(handle);
            }
            return absl::OkStatus();
          }));
  add(kTransportService, "FindRun",
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
          }));
  add(kTransportService, "EndRun",
      Plain<wire::EndRunRequest, wire::EndRunResponse>(
          "EndRun", [worker](const wire::EndRunRequest& request, wire::EndRunResponse*) {
            return worker->EndRun(request.session_handle(), FromWire(request.end()));
          }));
  // RPCs are counted and steps traced elsewhere; these are there because clients may call them.
  add(kWorkerService, "Logging",
      Plain<LoggingRequest, LoggingResponse>(
          "Logging", [](const LoggingRequest&, LoggingResponse*) { return absl::OkStatus(); }));
  add(kWorkerService, "Tracing",
      Plain<TracingRequest, TracingResponse>(
          "Tracing", [](const TracingRequest&, TracingResponse*) { return absl::OkStatus(); }));
  const auto bind = [worker](auto serve) {
    return [worker, serve](std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& bytes) {
      serve(worker, std::move(call), bytes);
    };
  };
  add(kWorkerService, "RunGraph", bind(ServeRunGraph));
  add(kWorkerService, "RecvTensor", bind(ServeRecvTensor));
  add(kTransportService, "Pull", bind(ServePull));
  // All others are heavy: they run kernels, build graphs or decode tensors.
  weigh(CallWeight::kLight, kWorkerService, {"GetStatus", "RecvTensor", "Logging", "Tracing"});
  weigh(CallWeight::kLight, kTransportService, {"RenewSessions", "FindRun", "Pull"});
  // They cancel steps and free what belonged to them.
  weigh(CallWeight::kUrgent, kWorkerService,
        {"DeleteWorkerSession", "DeregisterGraph", "CleanupGraph"});
  weigh(CallWeight::kUrgent, kTransportService, {"EndRun"});
  return handlers;
}

void AddNamesOfStubs(decltype(RpcServer::Options::handlers)* handlers) {
  decltype(RpcServer::Options::handlers) added;
  for (const auto& [name, handler] : *handlers) {
    absl::string_view rest = name;
    if (absl::ConsumePrefix(&rest, "/tensorflow.grpc.")) {
      added.emplace(absl::StrCat("/tensorflow.", rest), handler);
    }
  }
  handlers->merge(added);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker_service.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/transport/grpc_transport.h"
#include "distributed/transport/run_times.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/step_limit.h"
#include "distributed/transport/transport.pb.h"
#include "distributed/transport/worker_messages.h"
#include "net/status_payloads.h"
#include "net/tensor_coding.h"

namespace millrace {
namespace {

// Of one message of several tensors; far from the limit of 2 GiB.
constexpr int64_t kMaxBatchBytes = 256 << 20;

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

// The buffer of a pull: tensors gather until Flush, or until they are too much for one message. One
// message is written at a time; what Flush asks for meanwhile follows in one. The network is given
// a message without the lock, because the thread that gives it may write to the socket: the thread
// that hears that it was written, and those that bring tensors, do not wait for that.
class PullStream : public PullSink, public std::enable_shared_from_this<PullStream> {
 public:
  PullStream(std::shared_ptr<ServerCall> call, std::shared_ptr<PeerCounter> counter, bool trace)
      : call_(std::move(call)), counter_(std::move(counter)), trace_(trace) {}

  void OnSendTimes(uint64_t index, const SendTimes& times) override {
    if (!trace_) return;
    MutexLock lock(&mu_);
    try {
      ready_ns_[index] = times.ready_ns;
    } catch (...) {
      // Without memory for its time a tensor travels without it.
    }
  }
  void OnTensor(uint64_t index, Tensor value, bool is_dead) override {
    Outgoing out;
    {
      MutexLock lock(&mu_);
      Add(index, value, is_dead, &out);
    }
    Give(&out);
  }
  void Flush() override {
    Outgoing out;
    {
      MutexLock lock(&mu_);
      is_due_ = writer_.num_bytes() > 0;
      Take(&out);
    }
    Give(&out);
  }
  void OnDone(const Status& status) override {
    Outgoing out;
    {
      MutexLock lock(&mu_);
      if (done_) return;
      error_ = status;
      done_ = true;
      Take(&out);
    }
    Give(&out);
  }

 private:
  // What a thread has taken under the lock and gives to the network without it.
  struct Outgoing {
    enum class Kind { kNothing, kWrite, kFinish, kFinishWithStatus };
    Kind kind = Kind::kNothing;
    grpc::ByteBuffer message;
    Status status;
  };
  // That leaves when the one before it has left.
  struct Parcel {
    Parcel() = default;
    Parcel(Parcel&& other) noexcept { *this = std::move(other); }
    Parcel& operator=(Parcel&& other) noexcept {
      message.Swap(&other.message);  // to move it is to copy it
      tensors = other.tensors;
      since_ns = other.since_ns;
      return *this;
    }
    grpc::ByteBuffer message;
    int64_t tensors = 0;
    int64_t since_ns = 0;  // when its first tensor came
  };
  void Add(uint64_t index, const Tensor& value, bool is_dead, Outgoing* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done_) return;
    Status added;
    try {
      // What has gathered and a large tensor may be too much for one message.
      if (value.TotalBytes() >= kMaxBatchBytes) Cut(out);
      if (counter_ != nullptr && gathered_ == 0) since_ns_ = NowNanos();
      added = writer_.AddIndexedTensor(kPulled, index, value, is_dead);
      if (added.ok()) ++gathered_;
      if (added.ok() && trace_) AddSendTime(index);
      if (added.ok() && writer_.num_bytes() >= kMaxBatchBytes) Cut(out);
    } catch (...) {
      // The writer may hold half of the tensor.
      added = StatusOfException("Pull");
      is_broken_ = true;
    }
    if (!added.ok()) return Fail(added, out);
    if (!ready_.empty()) Take(out);
  }
  // Goes with the tensor, in one message.
  void AddSendTime(uint64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto ready = ready_ns_.find(index);
    if (ready == ready_ns_.end()) return;
    wire::SendTime* const time = times_.add_send_time();
    time->set_index(index);
    time->set_ready_ns(ready->second);
    ready_ns_.erase(ready);
  }
  // Behind all tensors of a message, which leaves now.
  void AddTimes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (times_.send_time().empty()) return;
    times_.set_left_ns(absl::GetCurrentTimeNanos());
    writer_.AddMessage(times_);
    times_.Clear();
  }
  // A tensor cannot travel. The puller hears of it now: the rest may depend on what it would send.
  void Fail(const Status& status, Outgoing* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done_) return;
    error_ = status;
    done_ = true;
    ready_.clear();
    Take(out);
  }
  void Cut(Outgoing* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writer_.num_bytes() == 0) return;
    is_due_ = false;
    const int64_t tensors = std::exchange(gathered_, 0);
    AddTimes();
    StatusOr<grpc::ByteBuffer> message = writer_.Finish();
    if (!message.ok()) return Fail(message.status(), out);
    Parcel& parcel = ready_.emplace_back();
    parcel.message.Swap(&*message);
    parcel.tensors = tensors;
    parcel.since_ns = since_ns_;
  }
  // What may leave now. Until it was written, or for good, there is nothing more to take.
  void Take(Outgoing* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    try {
      TakeOrThrow(out);
    } catch (...) {
      EndWith(StatusOfException("Pull"), out);
    }
  }
  void EndWith(const Status& status, Outgoing* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    done_ = finished_ = true;
    ready_.clear();
    out->kind = Outgoing::Kind::kFinishWithStatus;
    out->status = status;
  }
  void TakeOrThrow(Outgoing* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done_ && ready_.empty()) {
      finished_ = true;
      // The trailers hold less of an error's text than a message does.
      if (is_broken_) return EndWith(error_, out);
      wire::PullResponse last;
      last.set_last(true);
      last.set_status_code(static_cast<int>(error_.code()));
      last.set_status_message(WireText(error_.message()));
      AddPayloads(error_, &last);
      AddTimes();
      writer_.AddMessage(last);
      StatusOr<grpc::ByteBuffer> message = writer_.Finish();
      if (!message.ok()) return EndWith(message.status(), out);
      Count(*message, gathered_, since_ns_);
      out->message.Swap(&*message);
      out->kind = Outgoing::Kind::kFinish;
      return;
    }
    if (ready_.empty()) Cut(out);
    if (ready_.empty()) return;
    Parcel parcel = std::move(ready_.front());
    ready_.erase(ready_.begin());
    Count(parcel.message, parcel.tensors, parcel.since_ns);
    out->message.Swap(&parcel.message);
    out->kind = Outgoing::Kind::kWrite;
    writing_ = true;
  }
  // Without the lock.
  void Give(Outgoing* out) {
    try {
      switch (out->kind) {
        case Outgoing::Kind::kNothing:
          return;
        case Outgoing::Kind::kWrite:
          return call_->Write(out->message, [self = shared_from_this()] { self->Written(); });
        case Outgoing::Kind::kFinish:
          return call_->Finish(out->message);
        case Outgoing::Kind::kFinishWithStatus:
          return call_->FinishWithStatus(out->status);
      }
    } catch (...) {
      const Status status = StatusOfException("Pull");
      {
        MutexLock lock(&mu_);
        EndWith(status, out);
      }
      call_->FinishWithStatus(status);
    }
  }
  // As it is given to the network.
  void Count(const grpc::ByteBuffer& message, int64_t tensors, int64_t since_ns) {
    if (counter_ == nullptr) return;
    counter_->AddSent(static_cast<int64_t>(message.Length()), tensors,
                      tensors == 0 ? 0 : NowNanos() - since_ns);
  }
  static int64_t NowNanos() {
    return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  void Written() {
    Outgoing out;
    {
      MutexLock lock(&mu_);
      writing_ = false;
      if (is_due_ || done_ || !ready_.empty()) Take(&out);
    }
    Give(&out);
  }

  const std::shared_ptr<ServerCall> call_;
  const std::shared_ptr<PeerCounter> counter_;  // may be null
  const bool trace_;
  Mutex mu_;
  std::map<uint64_t, int64_t> ready_ns_ ABSL_GUARDED_BY(mu_);  // by index; of tensors to come
  wire::PullResponse times_ ABSL_GUARDED_BY(mu_);              // of the tensors in writer_
  MessageWriter writer_ ABSL_GUARDED_BY(mu_);
  int64_t gathered_ ABSL_GUARDED_BY(mu_) = 0;                  // tensors in writer_
  int64_t since_ns_ ABSL_GUARDED_BY(mu_) = 0;                  // when the first of them came
  absl::InlinedVector<Parcel, 1> ready_ ABSL_GUARDED_BY(mu_);  // nearly always one or none
  Status error_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_due_ ABSL_GUARDED_BY(mu_) = false;  // what writer_ has does not wait for Flush
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
  int64_t begun_ns = 0;  // the request came
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
  if (run->request.exec_opts().record_timeline()) {
    AddWorkerTimes(run->begun_ns, absl::GetCurrentTimeNanos(), &writer);
  }
  return writer.Finish();
}

void ServeRunGraph(Worker* worker, std::shared_ptr<ServerCall> call,
                   const grpc::ByteBuffer& bytes) {
  auto run = std::make_shared<RunGraphCall>();
  run->call = std::move(call);
  run->begun_ns = absl::GetCurrentTimeNanos();  // whether the step is traced is not known yet
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
  request.dst_task = std::move(*wire.mutable_dst_task());
  request.num_keys = wire.num_keys();
  request.fingerprint = wire.fingerprint();
  request.src_incarnation = wire.src_incarnation();
  request.trace = wire.trace();
  CancellationManager* const cancellation = call->cancellation();
  const PeerCounters* const counters = worker->peer_counters();
  std::shared_ptr<PeerCounter> counter =
      counters == nullptr ? nullptr : counters->Find(request.dst_task);
  worker->Pull(request, MakePullStream(std::move(call), std::move(counter), request.trace),
               cancellation);
}

}  // namespace

std::shared_ptr<PullSink> MakePullStream(std::shared_ptr<ServerCall> call,
                                         std::shared_ptr<PeerCounter> counter, bool trace) {
  return std::make_shared<PullStream>(std::move(call), std::move(counter), trace);
}

namespace {

using Handlers = std::map<std::string, RpcServer::Handler>;

void Add(const char* service, const char* method, RpcServer::Handler handler, Handlers* handlers) {
  (*handlers)[absl::StrCat(service, method)] = std::move(handler);
}

void Weigh(CallWeight weight, const char* service, std::initializer_list<const char*> methods,
           Handlers* handlers) {
  for (const char* method : methods) (*handlers)[absl::StrCat(service, method)].weight = weight;
}

// What the task is, and the sessions that masters have here.
void AddSessionMethods(Worker* worker, Handlers* handlers) {
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
            return worker->CreateWorkerSession(request, SessionFrom::kAnotherProcess);
          }),
      handlers);
  Add(kWorkerService, "DeleteWorkerSession",
      Plain<DeleteWorkerSessionRequest, DeleteWorkerSessionResponse>(
          "DeleteWorkerSession",
          [worker](const DeleteWorkerSessionRequest& request, DeleteWorkerSessionResponse*) {
            return worker->DeleteWorkerSession(request);
          }),
      handlers);
}

// The partitions of a session, and what their steps leave behind.
void AddGraphMethods(Worker* worker, Handlers* handlers) {
  using namespace tensorflow;  // NOLINT: the messages of a whole service
  Add(kWorkerService, "RegisterGraph",
      Plain<RegisterGraphRequest, RegisterGraphResponse>(
          "RegisterGraph",
          [worker](RegisterGraphRequest& request, RegisterGraphResponse* response) {
            return worker->RegisterGraph(std::move(request), nullptr, response);
          }),
      handlers);
  Add(kWorkerService, "DeregisterGraph",
      Plain<DeregisterGraphRequest, DeregisterGraphResponse>(
          "DeregisterGraph",
          [worker](const DeregisterGraphRequest& request, DeregisterGraphResponse*) {
            return worker->DeregisterGraph(request);
          }),
      handlers);
  Add(kWorkerService, "CleanupGraph",
      Plain<CleanupGraphRequest, CleanupGraphResponse>(
          "CleanupGraph",
          [worker](const CleanupGraphRequest& request, CleanupGraphResponse*) {
            return worker->CleanupGraph(request.step_id());
          }),
      handlers);
  Add(
      kWorkerService, "CleanupAll",
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
      },
      handlers);
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
  Add(kTransportService, "GetPeerCounts",
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
  Add(kTransportService, "RenewSessions",
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
  Add(kTransportService, "FindRun",
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
  Add(kTransportService, "EndRun",
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
  Add(kTransportService, "Pull", bind(ServePull), handlers);
}

}  // namespace

Handlers WorkerHandlers(Worker* worker) {
  Handlers handlers;
  AddSessionMethods(worker, &handlers);
  AddGraphMethods(worker, &handlers);
  AddCountsMethod(worker, &handlers);
  AddRunMethods(worker, &handlers);
  AddStepMethods(worker, &handlers);
  // All others are heavy: they run kernels, build graphs or decode tensors.
  Weigh(CallWeight::kLight, kWorkerService, {"GetStatus", "RecvTensor", "Logging", "Tracing"},
        &handlers);
  Weigh(CallWeight::kLight, kTransportService,
        {"RenewSessions", "FindRun", "GetPeerCounts", "Pull"}, &handlers);
  // They cancel steps and free what belonged to them.
  Weigh(CallWeight::kUrgent, kWorkerService,
        {"DeleteWorkerSession", "DeregisterGraph", "CleanupGraph"}, &handlers);
  Weigh(CallWeight::kUrgent, kTransportService, {"EndRun"}, &handlers);
  return handlers;
}

}  // namespace millrace

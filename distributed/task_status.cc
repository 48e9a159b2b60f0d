// SPDX-License-Identifier: Apache-2.0
#include "distributed/task_status.h"

#include <grpcpp/support/byte_buffer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/exceptions.h"
#include "core/mutex.h"
#include "core/refusal.h"
#include "core/status.h"
#include "distributed/transport/service_names.h"
#include "graph/device_name.h"
#include "net/rpc_channel.h"
#include "net/tensor_coding.h"
#include "proto/worker.pb.h"
#include "proto/worker_control.pb.h"

namespace millrace {
namespace {

// A call that cannot reach its peer ends at its deadline, and then looks twice for kProbeTime.
constexpr absl::Duration kReasons = absl::Seconds(5);

TaskAnswer::State StateOf(const Status& error) {
  if (IsRefusal(error)) return TaskAnswer::State::kRefuses;
  switch (error.code()) {
    case absl::StatusCode::kFailedPrecondition:  // another version of the wire
    case absl::StatusCode::kUnimplemented:       // a server of gRPC, and no task
    case absl::StatusCode::kInvalidArgument:
      return TaskAnswer::State::kRefuses;
    default:
      return TaskAnswer::State::kAbsent;
  }
}

std::string ReasonOf(const Status& error, const std::string& address, absl::Duration timeout) {
  if (absl::IsDeadlineExceeded(error)) {
    return absl::StrCat("Task at ", address, " must answer within ", absl::FormatDuration(timeout),
                        ", got no answer");
  }
  if (absl::IsUnimplemented(error)) {
    return absl::StrCat(
        "Task at ", address,
        " must be a task of a cluster, got a server that is none: ", error.message());
  }
  return std::string(error.message());
}

// Without replica 0, as a cluster's configuration names tasks; what is no name stays as it is.
std::string ShortTaskName(const std::string& name) {
  StatusOr<DeviceName> parsed = DeviceName::Parse(name);
  if (!parsed.ok() || !parsed->job) return name;
  if (parsed->replica == 0) parsed->replica.reset();
  return parsed->Task().ToString();
}

void TakeIdentity(const tensorflow::GetStatusResponse& answer, TaskAnswer* status) {
  for (const tensorflow::DeviceAttributes& device : answer.device_attributes()) {
    status->devices.push_back(
        {device.name(), device.device_type(), device.incarnation(), device.memory_limit()});
  }
  status->state = TaskAnswer::State::kOther;
  const std::string& address = status->asked.address;
  if (status->devices.empty()) {
    status->reason = absl::StrCat("Task at ", address, " must say its devices, got none");
    return;
  }
  const TaskAnswer::Device& first = status->devices.front();
  const StatusOr<DeviceName> name = DeviceName::Parse(first.name);
  if (!name.ok() || !name->job || !name->task) {
    status->reason = absl::StrCat("Task at ", address,
                                  " must say its job and index, got a device '", first.name, "'");
    return;
  }
  status->task = ShortTaskName(first.name);
  status->job = *name->job;
  status->index = *name->task;
  status->incarnation = first.incarnation;
  if (!status->asked.task.empty() && status->asked.task != status->task) {
    status->reason = absl::StrCat("Task at ", address, " must be ", status->asked.task, ", got ",
                                  status->task, "; does the cluster name the right port?");
    return;
  }
  status->state = TaskAnswer::State::kAnswers;
  status->reason.clear();
}

void TakeCounts(const wire::GetPeerCountsResponse& answer, TaskAnswer* status) {
  std::map<std::string, PeerCounts> peers;
  for (const wire::GetPeerCountsResponse::Peer& peer : answer.peer()) {
    PeerCounts& counts = peers[ShortTaskName(peer.task())];
    counts.bytes_sent = peer.bytes_sent();
    counts.messages_sent = peer.messages_sent();
    counts.tensors_sent = peer.tensors_sent();
    counts.queued_ns = peer.queued_ns();
    counts.bytes_received = peer.bytes_received();
    counts.messages_received = peer.messages_received();
    counts.tensors_received = peer.tensors_received();
  }
  status->peers = std::move(peers);
  if (!answer.has_open_sessions()) return;
  std::vector<TaskAnswer::Sessions> sessions;
  for (const auto& open : answer.open_sessions().of_master()) {
    sessions.push_back({ShortTaskName(open.master()), open.sessions(), open.running_steps()});
  }
  status->sessions = std::move(sessions);
}

// The answers to one Ask; calls that end late write here, where nobody reads any more.
struct Answers {
  Mutex mu;
  CondVar changed;
  std::vector<TaskAnswer> tasks ABSL_GUARDED_BY(mu);
  size_t open_calls ABSL_GUARDED_BY(mu) = 0;
};

// Calls `method` of task `i`; `take` gets its status under the lock when the call has ended.
template <typename Request, typename Response, typename Take>
void Call(RpcChannel* channel, const std::string& method, const RpcOptions& options,
          const std::shared_ptr<Answers>& answers, size_t i, Take take) {
  const auto ended = [answers, method, i, take](const Status& status,
                                                const grpc::ByteBuffer& bytes) {
    Response response;
    const Status read = NoExceptions(method, [&]() -> Status {
      MR_RETURN_IF_ERROR(status);
      return DecodeMessage(method, bytes, &response);
    });
    MutexLock lock(&answers->mu);
    TaskAnswer* const task = &answers->tasks[i];
    const Status taken = NoExceptions(method, [&]() -> Status {
      take(read, response, task);
      return absl::OkStatus();
    });
    taken.IgnoreError();  // out of memory: it stays absent
    --answers->open_calls;
    answers->changed.SignalAll();
  };
  const StatusOr<grpc::ByteBuffer> request = EncodeMessage(Request());
  if (!request.ok()) return ended(request.status(), grpc::ByteBuffer());
  channel->Unary(method, options, *request, ended);
}

}  // namespace

absl::string_view TaskStateName(TaskAnswer::State state) {
  switch (state) {
    case TaskAnswer::State::kAnswers:
      return "answers";
    case TaskAnswer::State::kOther:
      return "other";
    case TaskAnswer::State::kRefuses:
      return "refuses";
    case TaskAnswer::State::kAbsent:
      break;
  }
  return "absent";
}

TaskAsker::TaskAsker(std::vector<AskedTask> tasks) : tasks_(std::move(tasks)) {
  for (const AskedTask& task : tasks_) channels_.push_back(RpcChannel::Make(task.address));
}

TaskAsker::~TaskAsker() = default;

std::vector<TaskAnswer> TaskAsker::Ask(absl::Duration timeout) {
  const auto answers = std::make_shared<Answers>();
  RpcOptions options;
  options.deadline = absl::Now() + timeout;
  {
    MutexLock lock(&answers->mu);
    answers->open_calls = 2 * tasks_.size();
    for (const AskedTask& asked : tasks_) {
      TaskAnswer& status = answers->tasks.emplace_back();
      status.asked = asked;
      status.reason = ReasonOf(absl::DeadlineExceededError(""), asked.address, timeout);
    }
  }
  // Calls are begun without the lock: an answer may come in this thread.
  for (size_t i = 0; i < tasks_.size(); ++i) {
    options.asks_for_refusal = true;
    Call<tensorflow::GetStatusRequest, tensorflow::GetStatusResponse>(
        channels_[i].get(), absl::StrCat(kWorkerService, "GetStatus"), options, answers, i,
        [timeout](const Status& read, const tensorflow::GetStatusResponse& answer,
                  TaskAnswer* status) {
          if (read.ok()) return TakeIdentity(answer, status);
          status->state = StateOf(read);
          status->reason = ReasonOf(read, status->asked.address, timeout);
        });
    // Why it cannot be called is asked for once.
    options.asks_for_refusal = false;
    Call<wire::GetPeerCountsRequest, wire::GetPeerCountsResponse>(
        channels_[i].get(), absl::StrCat(kControlService, "GetPeerCounts"), options, answers, i,
        [](const Status& read, const wire::GetPeerCountsResponse& answer, TaskAnswer* status) {
          if (read.ok()) TakeCounts(answer, status);
        });
  }
  const absl::Time end = options.deadline + kReasons;
  MutexLock lock(&answers->mu);
  while (answers->open_calls > 0) {
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) break;
    answers->changed.WaitWithTimeout(&answers->mu, left);
  }
  return answers->tasks;
}

}  // namespace millrace

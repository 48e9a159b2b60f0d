// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_TRANSPORT_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_TRANSPORT_H_

// Transport: how this task reaches the worker of another one (or its own).
//
// Calls are those of TensorFlow's WorkerService, with tensors next to the messages instead of in
// them, and one that moves many tensors of a step at once:
//   Pull  everything that the peer's partition of a step sends to one task, each tensor as it
//         becomes ready; one call per step and pair of tasks.
// In-process and gRPC implementations exist; callers cannot tell them apart.
//
// Thread-safety: all methods, from any thread; they throw nothing. `done` is called exactly once,
// in the calling thread or on a network thread, where it must neither block nor throw. Requests and
// results outlive it.
// Failure: what the worker says; Unavailable when it cannot be reached; Cancelled and
// DeadlineExceeded by the options of the call; ResourceExhausted without memory for the request or
// the answer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "core/tensor.h"
#include "proto/worker.pb.h"
#include "run/found_run.h"  // IWYU pragma: export
#include "run/training_run.h"

namespace millrace {

// A tensor on its way, under a rendezvous key or the name that a client gave it.
struct NamedTensor {
  std::string name;
  Tensor value;
  bool is_dead = false;
  // Of RecvTensor: when it left, in nanoseconds since the epoch by the sender's clock; 0: not told.
  int64_t sent_ns = 0;
};

struct CallOptions {
  absl::Time deadline = absl::InfiniteFuture();
  bool wait_for_ready = false;
  // May be null; outlives the call's `done`.
  CancellationManager* cancellation = nullptr;
  // When the task cannot be reached: finds out whether it refuses us (IsRefusal), which may take
  // two seconds more. RunGraph and Pull do not.
  bool asks_for_refusal = false;
};

// All that one partition sends to one task: the receiver's request for it.
struct PullRequest {
  int64_t step_id = 0;
  std::string dst_task;
  // Of the rendezvous keys, sorted: both sides must have been cut from one graph.
  uint64_t num_keys = 0;
  uint64_t fingerprint = 0;
  // Of the sending task's first device. Aborted when it has another one.
  uint64_t src_incarnation = 0;
  // The step is traced: the sink wants OnSendTimes.
  bool trace = false;
};

// By the sender's clock, in nanoseconds since the epoch.
struct SendTimes {
  int64_t ready_ns = 0;
  int64_t left_ns = 0;  // 0: it is about to leave
};

// Where pulled tensors go. Methods are called one at a time by the in-process transport and on
// receipt; the sending side's own sinks say what they allow.
class PullSink {
 public:
  virtual ~PullSink() = default;
  // Of a traced step, perhaps: before OnTensor of the same index, by the same thread.
  virtual void OnSendTimes(uint64_t /*index*/, const SendTimes& /*times*/) {}
  // The tensor of key number `index` of the sorted keys. Any thread; several at once.
  virtual void OnTensor(uint64_t index, Tensor value, bool is_dead) = 0;
  // Of a step that is pushed, whose loops send without being asked: the tensor of key number
  // `index` of those in loops, in an iteration of a frame. It leaves at once. Any thread; also
  // after OnDone.
  virtual void OnTensorInLoop(uint64_t /*index*/, uint64_t /*frame_id*/, int64_t /*iteration*/,
                              Tensor /*value*/, bool /*is_dead*/) {}
  // More may take a while: what was given so far should leave now. Until this or the end a sink
  // may keep it.
  virtual void Flush() {}
  // The end, once: after all tensors (but those of loops), or an error.
  virtual void OnDone(const Status& status) = 0;
};

class Graph;

class Transport {
 public:
  using Done = absl::AnyInvocable<void(const Status&)>;

  virtual ~Transport() = default;

  // "/job:ps/replica:0/task:0"
  virtual const std::string& task() const = 0;
  // "host:port"; for messages.
  virtual const std::string& address() const = 0;
  // The worker lives in this process.
  virtual bool is_local() const { return false; }

  virtual void GetStatus(const CallOptions& options, tensorflow::GetStatusResponse* response,
                         Done done) = 0;
  virtual void CreateWorkerSession(const CallOptions& options,
                                   const tensorflow::CreateWorkerSessionRequest& request,
                                   Done done) = 0;
  virtual void DeleteWorkerSession(const CallOptions& options,
                                   const tensorflow::DeleteWorkerSessionRequest& request,
                                   Done done) = 0;
  // Of sessions that were opened with a lease, or with a run (session_terms.h). `unknown` gets the
  // handles of sessions that are not there. A task that has none of these three answers
  // Unimplemented; a transport to another one must forward them, or sessions expire.
  virtual void RenewSessions(const CallOptions& options, absl::Span<const std::string> handles,
                             std::vector<std::string>* unknown, Done done) = 0;
  virtual void FindRun(const CallOptions& options, const std::string& name, const std::string& id,
                       FoundRun* found, Done done) = 0;
  virtual void EndRun(const CallOptions& options, const std::string& session_handle,
                      const RunEnd& end, Done done) = 0;
  virtual void RegisterGraph(const CallOptions& options,
                             const tensorflow::RegisterGraphRequest& request,
                             tensorflow::RegisterGraphResponse* response, Done done) = 0;
  // The same with the graph outside of the request, its nodes placed; null when it is in the
  // request. It stays a graph when the worker lives in this process.
  virtual void RegisterGraph(const CallOptions& options,
                             const tensorflow::RegisterGraphRequest& request,
                             std::unique_ptr<Graph> graph,
                             tensorflow::RegisterGraphResponse* response, Done done);
  virtual void DeregisterGraph(const CallOptions& options,
                               const tensorflow::DeregisterGraphRequest& request, Done done) = 0;
  virtual void CleanupGraph(const CallOptions& options,
                            const tensorflow::CleanupGraphRequest& request, Done done) = 0;
  virtual void CleanupAll(const CallOptions& options, const tensorflow::CleanupAllRequest& request,
                          Done done) = 0;

  // `send` goes into request.send, `received` comes from response.recv: by rendezvous keys, or for
  // a graph with _Arg and _Retval nodes by position, without names (null without a result). The
  // error of the step is `done`'s status, never in the response. With `block` a local worker runs
  // the step to its end in the calling thread before it returns. The request is `graph` and `step`
  // together: what is the same for all steps of a graph (handles, flags), and this step's id and
  // options. They may be one message. `options.deadline` is that of the step: it ends then, within
  // kAnswerTime (runtime/engine/executor.h) and the way of the answer, and the error says what it
  // waited for.
  virtual void RunGraph(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
                        const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send,
                        bool block, tensorflow::RunGraphResponse* response,
                        std::vector<NamedTensor>* received, Done done) = 0;

  // One tensor by its key; for what Pull does not cover.
  virtual void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                          NamedTensor* tensor, Done done) = 0;
  // The sink lives until its OnDone.
  virtual void Pull(const CallOptions& options, const PullRequest& request,
                    std::shared_ptr<PullSink> sink) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_TRANSPORT_H_

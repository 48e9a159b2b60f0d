// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_TRANSPORT_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_TRANSPORT_H_

// Transport: how this task reaches the worker of another one (or its own).
//
// Calls are those of TensorFlow's WorkerService that open sessions and register graphs, and our own
// that keep sessions and runs. A master's steps travel on links (distributed/link); of them only
// the part of the master's own task is a call. In-process and gRPC implementations exist.
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
  // two seconds more. Those of steps do not.
  bool asks_for_refusal = false;
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
  virtual void CleanupAll(const CallOptions& options, const tensorflow::CleanupAllRequest& request,
                          Done done) = 0;

  // The part of a step that the worker of this process runs for its own master, in which it
  // exchanges tensors by links; Unimplemented elsewhere. `send` and `received` are by rendezvous
  // keys, or for a graph with _Arg and _Retval nodes by position, without names (null without a
  // result). The error of the step is `done`'s status, never in the response. With `block` the step
  // runs to its end in the calling thread before this returns. The request is `graph` and `step`
  // together: what is the same for all steps of a graph (handles, flags), and this step's id and
  // options. They may be one message. `options.deadline` is that of the step: it ends then, within
  // kAnswerTime (runtime/engine/executor.h), and the error says what it waited for.
  virtual void RunGraph(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
                        const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send,
                        bool block, tensorflow::RunGraphResponse* response,
                        std::vector<NamedTensor>* received, Done done);

  // One tensor by its key: how the steps of foreign masters get what they receive.
  virtual void RecvTensor(const CallOptions& options, const tensorflow::RecvTensorRequest& request,
                          NamedTensor* tensor, Done done) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_TRANSPORT_H_

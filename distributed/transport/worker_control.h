// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_CONTROL_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_CONTROL_H_

// WorkerControl: the calls by which this task controls the worker of another one (or its own):
// sessions, graphs, runs.
//
// Calls are those of TensorFlow's WorkerService that open sessions and register graphs, and our own
// that keep sessions and runs. Steps are no calls: they travel on links (distributed/link); the
// part of a master's own task is local_part.h, and tensors of foreign masters' steps are fetched
// from a tensor_source.h. In-process and gRPC implementations exist.
//
// Thread-safety: all methods, from any thread; they throw nothing. `done` is called exactly once,
// in the calling thread or on a network thread, where it must neither block nor throw. Requests and
// results outlive it.
// Failure: what the worker says; Unavailable when it cannot be reached; Cancelled and
// DeadlineExceeded by the options of the call; ResourceExhausted without memory for the request or
// the answer.

#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "distributed/transport/call_options.h"  // IWYU pragma: export
#include "proto/worker.pb.h"
#include "run/found_run.h"  // IWYU pragma: export
#include "run/training_run.h"

namespace millrace {

class Graph;

class WorkerControl {
 public:
  using Done = CallDone;

  virtual ~WorkerControl() = default;

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
  // Unimplemented; what stands before another one must forward them, or sessions expire.
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
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_CONTROL_H_

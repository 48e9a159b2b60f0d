// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_CONTROL_H_
#define MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_CONTROL_H_

// WorkerControl: the calls by which this task controls the worker of another one (or its own):
// sessions, graphs, runs.
//
// On the wire they are the methods of our own service (proto/worker_control.proto). Steps are no
// calls: they travel on links (distributed/link); the part of a master's own task is local_part.h,
// and tensors of foreign masters' steps are fetched from a tensor_source.h. In-process and gRPC
// implementations exist.
//
// Thread-safety: all methods, from any thread; they throw nothing. `done` is called exactly once,
// in the calling thread or on a network thread, where it must neither block nor throw. Results
// outlive it; what is asked for has been read when the call returns.
// Failure: what the worker says; Unavailable when it cannot be reached; Cancelled and
// DeadlineExceeded by the options of the call; ResourceExhausted without memory for the request or
// the answer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "distributed/transport/call_options.h"  // IWYU pragma: export
#include "distributed/transport/session_terms.h"
#include "proto/device_attributes.pb.h"
#include "proto/graph.pb.h"
#include "run/found_run.h"  // IWYU pragma: export
#include "run/training_run.h"

namespace millrace {

class Graph;

// Which process opened a session; no task when its master did not say.
struct SessionOpener {
  std::string task;
  uint64_t incarnation = 0;

  bool IsEarlierLifeOf(const SessionOpener& other) const {
    return !task.empty() && task == other.task && incarnation != other.incarnation;
  }
};

// A session that a master wants on a task.
struct SessionOrder {
  std::string handle = {};  // one that no other session has had
  SessionOpener opener = {};
  SessionTerms terms = {};
  bool isolated = false;  // it has resources of its own
};

// A part of a graph that a master wants in a session. Either `graph` or `graph_def`.
struct PartOrder {
  std::string session_handle;
  tensorflow::GraphDef graph_def;
  // Its nodes are placed. It stays a graph when the worker lives in this process.
  std::unique_ptr<Graph> graph;

  // Makes a graph_def of the graph, if there is one: others cannot have it otherwise.
  void Flatten();
  PartOrder();
  PartOrder(std::string session, tensorflow::GraphDef def);
  PartOrder(PartOrder&& other) noexcept;
  PartOrder& operator=(PartOrder&& other) noexcept;
  ~PartOrder();
};

struct RegisteredPart {
  std::string graph_handle = {};
  uint64_t link_version = 0;  // kLinkVersion of the task; 0: it has no links
};

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

  // What devices the task has: at least one, which tells its incarnation.
  virtual void GetStatus(const CallOptions& options,
                         std::vector<tensorflow::DeviceAttributes>* devices, Done done) = 0;
  virtual void CreateWorkerSession(const CallOptions& options, const SessionOrder& order,
                                   Done done) = 0;
  virtual void DeleteWorkerSession(const CallOptions& options, const std::string& session_handle,
                                   Done done) = 0;
  // Of sessions that were opened with a lease, or with a run. `unknown` gets the handles of
  // sessions that are not there. What stands before another control must forward these three, or
  // sessions expire.
  virtual void RenewSessions(const CallOptions& options, absl::Span<const std::string> handles,
                             std::vector<std::string>* unknown, Done done) = 0;
  virtual void FindRun(const CallOptions& options, const std::string& name, const std::string& id,
                       FoundRun* found, Done done) = 0;
  virtual void EndRun(const CallOptions& options, const std::string& session_handle,
                      const RunEnd& end, Done done) = 0;
  virtual void RegisterGraph(const CallOptions& options, PartOrder order, RegisteredPart* part,
                             Done done) = 0;
  virtual void DeregisterGraph(const CallOptions& options, const std::string& session_handle,
                               const std::string& graph_handle, Done done) = 0;
  // None named: the default container.
  virtual void CleanupAll(const CallOptions& options, absl::Span<const std::string> containers,
                          Done done) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TRANSPORT_WORKER_CONTROL_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_LINK_END_H_
#define MILLRACE_DISTRIBUTED_WORKER_LINK_END_H_

// WorkerLinkEnd: the worker behind one link to another task: edges of steps by number, parts of
// steps that a master at the other end runs here, cancellations, receipts.
//
//   BIND number -> RUN number -> the part runs -> [report] -> END     what the peer's master asks
//   for TENSORS, RECEIVED, CANCEL                                what the peer's worker says
//
// A part that was begun here ends with END on the same link; CANCEL of its step, and the loss of
// the link, cancel it. A report that cannot be sent is left out, and the log says why. What comes
// after the loss goes nowhere.
//
// What a peer can make it keep is bounded: ServerLimits::max_graphs graphs, with handles of 256
// bytes (handles.h), and max_calls_of_connection parts that run.
// Threads, order: as LinkEnd. Lifetime: it keeps the worker, or what owns it, until OnLost has
// returned. Failure: a step ends with what Worker::RunGraph says, in END; Unimplemented for what no
// master of this kind asks for (arguments, results); InvalidArgument for a number that is
// not bound, or the reason for which the last BIND was not taken. A peer that binds a number to two
// graphs loses the link.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "core/status.h"
#include "distributed/link/link.h"
#include "distributed/transport/peer_counts.h"
#include "distributed/worker/worker.h"

namespace millrace {

class WorkerLinkEnd : public LinkEnd {
 public:
  explicit WorkerLinkEnd(std::shared_ptr<Worker> worker);

  void OnOpen(std::shared_ptr<Link> link) override;
  void OnBind(BindFrame bind) override;
  void OnUnbind(uint64_t number) override;
  void OnRun(RunFrame run) override;
  // Edges; else nothing.
  void OnTensors(SentTensors tensors) override;
  // When their step takes them, or is over: tensors of a step that has not begun are not the
  // peer's to forget.
  bool acknowledges_edges() const override { return true; }
  // Nothing: no part of this worker's runs elsewhere.
  void OnEnd(EndFrame end) override;
  void OnCancel(int64_t step_id, const Status& status) override;
  void OnReceived(int64_t step_id, uint64_t tensors) override;
  void OnRefused(int64_t step_id, const Status& status) override;
  void OnLost(const Status& status, bool by_peer) override;

 private:
  struct BoundGraph {
    std::string session_handle, graph_handle;
  };
  // Parts that run here for the peer's master; shared with them.
  struct Runs;
  class Part;

  // Closes the link for what the memory does not suffice for.
  void Guarded(const char* what, absl::FunctionRef<Status()> body);
  Status CheckMayBind(const BoundGraph& graph) const;
  Status Begin(const RunFrame& run);

  const std::shared_ptr<Worker> worker_;
  const std::shared_ptr<Runs> runs_;
  // By the thread that calls.
  std::shared_ptr<Link> link_;            // null before OnOpen and after OnLost
  std::shared_ptr<PeerCounter> counter_;  // may be null
  std::map<uint64_t, BoundGraph> graphs_;
  Status not_bound_;  // why the last graph was not bound that could not be
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_LINK_END_H_

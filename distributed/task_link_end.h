// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TASK_LINK_END_H_
#define MILLRACE_DISTRIBUTED_TASK_LINK_END_H_

// TaskLinkEnd: the task behind a link: its worker, and the master whose steps have parts at the
// other end. END is for the master, all else for the worker; both hear of the link's life.
//
// Threads, order, failure: as LinkEnd. Lifetime: it keeps both until OnLost has returned, and parts
// that it has begun keep the worker until they have ended. Threads of the network let go of it: see
// LetGoOn.

#include <memory>

#include "absl/functional/any_invocable.h"
#include "core/io_pool.h"
#include "distributed/link/link.h"
#include "distributed/master/link_parts.h"
#include "distributed/worker/link_end.h"
#include "distributed/worker/worker.h"

namespace millrace {

// The same worker, for ends of links: who owns it is let go on a thread of `pool` when the last
// copy is gone, because what ends with it waits for steps, and threads of the network must not.
// `pool` outlives the copies.
std::shared_ptr<Worker> LetGoOn(IoPool* pool, std::shared_ptr<Worker> worker);

class TaskLinkEnd : public LinkEnd {
 public:
  // `lost`: called once when the link is lost, whoever closed it.
  TaskLinkEnd(std::shared_ptr<Worker> worker, std::shared_ptr<LinkParts> parts,
              absl::AnyInvocable<void()> lost);

  void OnOpen(std::shared_ptr<Link> link) override;
  void OnBind(BindFrame bind) override;
  void OnUnbind(uint64_t number) override;
  void OnRun(RunFrame run) override;
  void OnTensors(SentTensors tensors) override;
  bool acknowledges_edges() const override { return worker_.acknowledges_edges(); }
  void OnEnd(EndFrame end) override;
  void OnCancel(int64_t step_id, const Status& status) override;
  void OnReceived(int64_t step_id, uint64_t tensors) override;
  void OnRefused(int64_t step_id, const Status& status) override;
  void OnLost(const Status& status, bool by_peer) override;

 private:
  WorkerLinkEnd worker_;
  const std::shared_ptr<LinkParts> parts_;
  absl::AnyInvocable<void()> lost_;
  std::shared_ptr<Link> link_;  // null before OnOpen and after OnLost; by the thread that calls
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TASK_LINK_END_H_

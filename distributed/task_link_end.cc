// SPDX-License-Identifier: Apache-2.0
#include "distributed/task_link_end.h"

#include <utility>

#include "core/exceptions.h"

namespace millrace {

std::shared_ptr<Worker> LetGoOn(IoPool* pool, std::shared_ptr<Worker> worker) {
  Worker* const borrowed = worker.get();
  return std::shared_ptr<Worker>(borrowed, [pool, owner = std::move(worker)](Worker*) mutable {
    // Without memory for the task it goes here.
    NoExceptions("Link", [&]() -> Status {
      pool->Schedule([last = std::move(owner)]() mutable { last.reset(); });
      return absl::OkStatus();
    }).IgnoreError();
  });
}

TaskLinkEnd::TaskLinkEnd(std::shared_ptr<Worker> worker, std::shared_ptr<LinkParts> parts,
                         absl::AnyInvocable<void()> lost)
    : worker_(std::move(worker)), parts_(std::move(parts)), lost_(std::move(lost)) {}

void TaskLinkEnd::OnOpen(std::shared_ptr<Link> link) {
  link_ = link;
  const Status opened = NoExceptions("Link", [&]() -> Status {
    parts_->OnOpen(link);
    return absl::OkStatus();
  });
  worker_.OnOpen(link);
  if (!opened.ok()) link->Close(opened);
}

void TaskLinkEnd::OnBind(BindFrame bind) { worker_.OnBind(std::move(bind)); }
void TaskLinkEnd::OnUnbind(uint64_t number) { worker_.OnUnbind(number); }
void TaskLinkEnd::OnRun(RunFrame run) { worker_.OnRun(run); }
void TaskLinkEnd::OnTensors(SentTensors tensors) {
  if (tensors.purpose != TensorsPurpose::kReport) return worker_.OnTensors(std::move(tensors));
  if (link_ != nullptr) parts_->OnReport(link_.get(), std::move(tensors));
}
void TaskLinkEnd::OnEnd(EndFrame end) {
  if (link_ != nullptr) parts_->OnEnd(link_.get(), std::move(end));
}
void TaskLinkEnd::OnCancel(int64_t step_id, const Status& status) {
  worker_.OnCancel(step_id, status);
}
void TaskLinkEnd::OnReceived(int64_t step_id, uint64_t tensors) {
  worker_.OnReceived(step_id, tensors);
}
void TaskLinkEnd::OnRefused(int64_t step_id, const Status& status) {
  // Of edges and reports alike; a step that lacks either cannot end well. The worker would take a
  // report for an edge, and keep the reason for a step that never begins there.
  if (link_ != nullptr && parts_->OnRefused(link_.get(), step_id, status)) return;
  worker_.OnRefused(step_id, status);
}
void TaskLinkEnd::OnLost(const Status& status, bool by_peer) {
  const std::shared_ptr<Link> link = std::move(link_);
  link_ = nullptr;
  worker_.OnLost(status, by_peer);
  if (link != nullptr) parts_->OnLost(link.get(), LossOfLink(status));
  if (lost_ != nullptr) lost_();
  lost_ = nullptr;  // it may keep its server
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/link_parts.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"

namespace millrace {
namespace {

// Not 0, which would be no limit: a step whose time is over has the shortest one.
int64_t MicrosecondsOf(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return 0;
  return std::max(int64_t{1}, absl::ToInt64Microseconds(timeout));
}

Status CancelledByMaster() { return absl::CancelledError("Step was cancelled by the master."); }

}  // namespace

void LinkParts::Run(const LinkedGraph& graph, int64_t step_id, absl::Duration timeout,
                    CancellationManager* cancellation, Done done) {
  std::shared_ptr<Part> part;
  const Status asked = NoExceptions("RUN", [&]() -> Status {
    part = std::make_shared<Part>();
    part->cancellation = cancellation;
    PeerLinks::Got got = [self = shared_from_this(), graph, step_id, timeout,
                          part](StatusOr<std::shared_ptr<Link>> link) {
      const Status begun = NoExceptions("RUN", [&]() -> Status {
        MR_RETURN_IF_ERROR(link.status());
        return self->RunOn(*link, graph, step_id, timeout, part);
      });
      if (begun.ok()) return;
      if (part->is_registered) part->cancellation->Deregister(part->token);
      part->done(begun);
    };
    part->done = std::move(done);
    links_->Get(graph.task, std::move(got));
    return absl::OkStatus();
  });
  if (!asked.ok()) (part != nullptr && part->done ? part->done : done)(asked);
}

Status LinkParts::RunOn(const std::shared_ptr<Link>& link, const LinkedGraph& graph,
                        int64_t step_id, absl::Duration timeout,
                        const std::shared_ptr<Part>& part) {
  // Before anything can end the part: its caller, who owns the cancellation, is then gone.
  part->is_registered =
      part->cancellation->Register(&part->token, [weak = weak_from_this(), link, step_id] {
        if (const auto self = weak.lock()) self->Cancel(link, step_id);
      });
  if (!part->is_registered) return CancelledByMaster();
  BindFrame bind;
  bind.session_handle = graph.session_handle;
  bind.graph_handle = graph.graph_handle;
  bool is_bound = false;
  MR_RETURN_IF_ERROR(Add(link.get(), graph, step_id, part, &bind.number, &is_bound));
  // Another thread may be about to send the same BIND; its RUN and ours each need one before them.
  LinkCork cork;
  Status sent = is_bound ? absl::OkStatus() : link->Send(bind);
  if (sent.ok() && !is_bound) NoteBound(link.get(), graph);
  RunFrame run;
  run.step_id = step_id;
  run.number = bind.number;
  run.timeout_us = MicrosecondsOf(timeout);
  if (sent.ok()) sent = link->Send(run);
  if (!sent.ok()) End(link.get(), step_id, sent);
  return absl::OkStatus();
}

Status LinkParts::Add(const Link* link, const LinkedGraph& graph, int64_t step_id,
                      const std::shared_ptr<Part>& part, uint64_t* number, bool* is_bound) {
  MutexLock lock(&mu_);
  const auto it = open_.find(link);
  if (it == open_.end()) {
    return absl::UnavailableError(
        absl::StrCat("Link to ", graph.task, ": it was lost before the step was sent"));
  }
  // A Cancel that found nothing here had set this before.
  if (part->cancellation->IsCancelled()) return CancelledByMaster();
  OfLink& of_link = it->second;
  Bound& bound = of_link.bound[{graph.session_handle, graph.graph_handle}];
  if (bound.number == 0) bound.number = ++of_link.last_number;
  if (!of_link.parts.emplace(step_id, part).second) {
    return absl::InternalError(
        absl::StrCat("Step ", step_id, " must have one part on ", graph.task, ", got two"));
  }
  *number = bound.number;
  *is_bound = bound.is_sent;
  return absl::OkStatus();
}

void LinkParts::NoteBound(const Link* link, const LinkedGraph& graph) {
  MutexLock lock(&mu_);
  const auto it = open_.find(link);
  if (it != open_.end()) {
    it->second.bound[{graph.session_handle, graph.graph_handle}].is_sent = true;
  }
}

void LinkParts::Forget(const LinkedGraph& graph) {
  std::vector<std::pair<std::shared_ptr<Link>, uint64_t>> unbound;
  {
    MutexLock lock(&mu_);
    for (auto& [key, of_link] : open_) {
      if (of_link.link->peer().task != graph.task) continue;
      const auto it = of_link.bound.find({graph.session_handle, graph.graph_handle});
      if (it == of_link.bound.end()) continue;
      unbound.emplace_back(of_link.link, it->second.number);
      of_link.bound.erase(it);
    }
  }
  for (const auto& [link, number] : unbound) link->Send(UnbindFrame{number}).IgnoreError();
}

std::shared_ptr<LinkParts::Part> LinkParts::Take(const Link* link, int64_t step_id) {
  MutexLock lock(&mu_);
  const auto it = open_.find(link);
  if (it == open_.end()) return nullptr;
  const auto found = it->second.parts.find(step_id);
  if (found == it->second.parts.end()) return nullptr;
  std::shared_ptr<Part> part = std::move(found->second);
  it->second.parts.erase(found);
  return part;
}

void LinkParts::End(const Link* link, int64_t step_id, const Status& status) {
  const std::shared_ptr<Part> part = Take(link, step_id);
  if (part == nullptr) return;
  part->cancellation->Deregister(part->token);
  part->done(status);
}

void LinkParts::Cancel(const std::shared_ptr<Link>& link, int64_t step_id) {
  const std::shared_ptr<Part> part = Take(link.get(), step_id);
  if (part == nullptr) return;
  link->Send(CancelFrame{step_id, CancelledByMaster()}).IgnoreError();
  part->done(CancelledByMaster());
}

void LinkParts::OnOpen(std::shared_ptr<Link> link) {
  MutexLock lock(&mu_);
  open_[link.get()].link = link;
}

void LinkParts::OnEnd(const Link* link, EndFrame end) {
  if (end.status.ok() && (end.num_results > 0 || end.has_report)) {
    end.status = absl::UnimplementedError(
        absl::StrCat("Step ", end.step_id, ": what a link runs must have no results, got ",
                     end.num_results, end.has_report ? " and a report" : ""));
  }
  End(link, end.step_id, end.status);
}

void LinkParts::OnLost(const Link* link, const Status& status) {
  OfLink lost;
  {
    MutexLock lock(&mu_);
    const auto it = open_.find(link);
    if (it == open_.end()) return;
    lost = std::move(it->second);
    open_.erase(it);
  }
  for (const auto& [step_id, part] : lost.parts) {
    part->cancellation->Deregister(part->token);
    part->done(status);
  }
}

int64_t LinkParts::num_bound() const {
  int64_t bound = 0;
  MutexLock lock(&mu_);
  for (const auto& [key, of_link] : open_) bound += static_cast<int64_t>(of_link.bound.size());
  return bound;
}

}  // namespace millrace

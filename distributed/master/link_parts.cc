// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/link_parts.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/dtype.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "distributed/transport/run_times.h"

namespace millrace {
namespace {

// Not 0, which would be no limit: a step whose time is over has the shortest one.
int64_t MicrosecondsUntil(absl::Time deadline, absl::Time now) {
  if (deadline == absl::InfiniteFuture()) return 0;
  return std::max(int64_t{1}, absl::ToInt64Microseconds(deadline - now));
}

// A report above it takes longer to parse than to hand to another thread, and PING would wait.
constexpr int64_t kMaxBytesParsedByReader = 1 << 20;

Status CancelledByMaster() { return absl::CancelledError("Step was cancelled by the master."); }

}  // namespace

void LinkParts::Run(const LinkedGraph& graph, int64_t step_id, absl::Time deadline,
                    CancellationManager* cancellation, Done done, const LinkedReport& report) {
  std::shared_ptr<Part> part;
  const Status begun = NoExceptions("RUN", [&]() -> Status {
    auto made = std::make_shared<Part>();
    made->step_id = step_id;
    made->report = report;
    // From here on whoever ends the part calls `done`: its caller, who owns the cancellation, may
    // then be gone.
    made->cancellation = cancellation;
    made->done = std::move(done);
    part = std::move(made);
    part->is_registered = cancellation->Register(&part->token, [weak = weak_from_this(), part] {
      if (const auto self = weak.lock()) self->Cancel(part);
    });
    if (!part->is_registered) return CancelledByMaster();
    links_->Get(graph.task, [self = shared_from_this(), graph, deadline,
                             part](StatusOr<std::shared_ptr<Link>> link) {
      const Status sent = NoExceptions("RUN", [&]() -> Status {
        MR_RETURN_IF_ERROR(link.status());
        return self->RunOn(*link, graph, deadline, part);
      });
      if (!sent.ok()) self->End(part, sent);
    });
    return absl::OkStatus();
  });
  if (begun.ok()) return;
  if (part == nullptr) return done(begun);
  End(part, begun);
}

Status LinkParts::RunOn(const std::shared_ptr<Link>& link, const LinkedGraph& graph,
                        absl::Time deadline, const std::shared_ptr<Part>& part) {
  BindFrame bind;
  bind.session_handle = graph.session_handle;
  bind.graph_handle = graph.graph_handle;
  bool is_bound = false;
  MR_RETURN_IF_ERROR(Add(link, graph, part, &bind.number, &is_bound));
  if (bind.number == 0) return absl::OkStatus();  // it has ended: it was cancelled
  // Another thread may be about to send the same BIND; its RUN and ours each need one before them.
  LinkCork cork;
  if (!is_bound) {
    MR_RETURN_IF_ERROR(link->Send(bind));
    if (!NoteBound(link.get(), graph, bind.number)) {
      // Nobody else takes back what was bound behind its UNBIND.
      link->Send(UnbindFrame{bind.number}).IgnoreError();
      return CancelledByMaster();  // graphs are forgotten when no part of them is left
    }
  }
  RunFrame run;
  run.step_id = part->step_id;
  run.number = bind.number;
  run.wants_trace = part->report.wants_trace;
  run.wants_graphs = part->report.wants_graphs;
  if (run.wants_trace) {
    MutexLock lock(&mu_);
    part->asked_ns = absl::GetCurrentTimeNanos();
  }
  run.timeout_us = MicrosecondsUntil(deadline, clock_->Now());
  MR_RETURN_IF_ERROR(link->Send(run));
  {
    MutexLock lock(&mu_);
    part->is_sent = true;
    if (!part->is_cancelled) return absl::OkStatus();
  }
  link->Send(CancelFrame{part->step_id, CancelledByMaster()}).IgnoreError();
  return absl::OkStatus();
}

Status LinkParts::Add(const std::shared_ptr<Link>& link, const LinkedGraph& graph,
                      const std::shared_ptr<Part>& part, uint64_t* number, bool* is_bound) {
  MutexLock lock(&mu_);
  if (part->has_ended) return absl::OkStatus();
  const auto it = open_.find(link.get());
  if (it == open_.end()) {
    return absl::UnavailableError(
        absl::StrCat("Link to ", graph.task, ": it was lost before the step was sent"));
  }
  OfLink& of_link = it->second;
  Bound& bound = of_link.bound[{graph.session_handle, graph.graph_handle}];
  if (bound.number == 0) bound.number = ++of_link.last_number;
  if (!of_link.parts.emplace(part->step_id, part).second) {
    return absl::InternalError(
        absl::StrCat("Step ", part->step_id, " must have one part on ", graph.task, ", got two"));
  }
  part->link = link;
  part->number = bound.number;
  *number = bound.number;
  *is_bound = bound.is_sent;
  return absl::OkStatus();
}

void LinkParts::ForgetBind(OfLink* link, const Part& part) {
  for (auto& [handles, bound] : link->bound) {
    if (bound.number == part.number) bound.is_sent = false;
  }
}

bool LinkParts::NoteBound(const Link* link, const LinkedGraph& graph, uint64_t number) {
  MutexLock lock(&mu_);
  const auto it = open_.find(link);
  if (it == open_.end()) return true;  // RUN hears of the loss
  const auto bound = it->second.bound.find({graph.session_handle, graph.graph_handle});
  if (bound == it->second.bound.end() || bound->second.number != number) return false;
  bound->second.is_sent = true;
  return true;
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

bool LinkParts::Take(const std::shared_ptr<Part>& part) {
  MutexLock lock(&mu_);
  if (part->has_ended) return false;
  part->has_ended = true;
  if (part->link == nullptr) return true;
  const auto it = open_.find(part->link.get());
  if (it != open_.end()) it->second.parts.erase(part->step_id);
  return true;
}

void LinkParts::End(const std::shared_ptr<Part>& part, const Status& status) {
  if (!Take(part)) return;
  if (part->is_registered) part->cancellation->Deregister(part->token);
  // From here on the part is this thread's alone.
  if (!status.ok() || !part->report.is_wanted()) return part->done(status);
  const auto end = [self = shared_from_this(), part] {
    part->done(NoExceptions("END", [&] { return self->TakeReport(part.get()); }));
  };
  if (!HasLargeReport(*part)) return end();
  const Status scheduled = NoExceptions("END", [&]() -> Status {
    IoPool::Default()->Schedule(end);
    return absl::OkStatus();
  });
  if (!scheduled.ok()) end();  // without memory for the task
}

bool LinkParts::HasLargeReport(const Part& part) {
  MutexLock lock(&mu_);
  return part.report_bytes.has_value() &&
         part.report_bytes.num_elements() > kMaxBytesParsedByReader;
}

void LinkParts::Cancel(const std::shared_ptr<Part>& part) {
  std::shared_ptr<Link> link;
  if (!Take(part)) return;
  {
    // CANCEL goes behind RUN: who sends that sends this, too.
    MutexLock lock(&mu_);
    part->is_cancelled = true;
    if (part->is_sent) link = part->link;
  }
  if (link != nullptr) {
    link->Send(CancelFrame{part->step_id, CancelledByMaster()}).IgnoreError();
  }
  part->done(CancelledByMaster());
}

void LinkParts::OnOpen(std::shared_ptr<Link> link) {
  MutexLock lock(&mu_);
  open_[link.get()].link = link;
}

std::shared_ptr<LinkParts::Part> LinkParts::Find(const Link* link, int64_t step_id) {
  const auto it = open_.find(link);
  if (it == open_.end()) return nullptr;
  const auto found = it->second.parts.find(step_id);
  return found == it->second.parts.end() ? nullptr : found->second;
}

void LinkParts::OnEnd(const Link* link, EndFrame end) {
  std::shared_ptr<Part> part;
  {
    MutexLock lock(&mu_);
    part = Find(link, end.step_id);
    if (part == nullptr) return;
    if (end.status.ok() && end.num_results > 0) {
      end.status = absl::UnimplementedError(absl::StrCat(
          "Step ", end.step_id, ": what a link runs must have no results, got ", end.num_results));
    }
    if (end.status.ok() && end.has_report && !part->report.is_wanted()) {
      end.status = absl::InternalError(
          absl::StrCat("Step ", end.step_id,
                       ": a part must have a report when one is wanted, got one that is ", "not"));
    }
    if (end.status.ok() && end.has_report) {
      part->is_over = true;
      if (part->report.wants_trace) part->answered_ns = absl::GetCurrentTimeNanos();
      if (!part->report_bytes.has_value()) return;
    }
    // What a BIND that was refused is told by (WorkerLinkEnd).
    if (absl::IsResourceExhausted(end.status) || absl::IsInvalidArgument(end.status)) {
      ForgetBind(&open_.find(link)->second, *part);
    }
  }
  End(part, end.status);
}

void LinkParts::OnReport(const Link* link, SentTensors tensors) {
  Status wrong;
  std::shared_ptr<Part> part;
  {
    MutexLock lock(&mu_);
    part = Find(link, tensors.step_id);
    if (part == nullptr) return;
    const Tensor* const value = tensors.tensors.size() == 1 && !tensors.tensors[0].is_dead
                                    ? &tensors.tensors[0].value
                                    : nullptr;
    if (!part->report.is_wanted() || part->report_bytes.has_value() || value == nullptr ||
        value->dtype() != DT_UINT8 || value->num_elements() > INT32_MAX) {
      wrong = absl::InternalError(absl::StrCat(
          "Step ", tensors.step_id,
          ": a part must have one report of bytes when it is wanted, got another tensor"));
    } else {
      part->report_bytes = std::move(tensors.tensors[0].value);
      if (!part->is_over) return;
    }
  }
  End(part, wrong);
}

bool LinkParts::OnRefused(const Link* link, int64_t step_id, const Status& status) {
  std::shared_ptr<Part> part;
  std::shared_ptr<Link> held;
  {
    MutexLock lock(&mu_);
    part = Find(link, step_id);
    // The step's own part hears of edges; a report is no one's but ours.
    if (part == nullptr || !part->report.is_wanted()) return false;
    held = part->link;
  }
  End(part, status.ok() ? absl::InternalError("Link: what is refused must have a reason") : status);
  // If it was an edge, the part may still run.
  held->Send(CancelFrame{step_id, CancelledByMaster()}).IgnoreError();
  return true;
}

Status LinkParts::TakeReport(Part* part) {
  Tensor bytes;
  int64_t asked_ns = 0, answered_ns = 0;
  {
    MutexLock lock(&mu_);  // a peer that answers too early races with RUN
    std::swap(bytes, part->report_bytes);
    asked_ns = part->asked_ns;
    answered_ns = part->answered_ns;
    if (!part->is_over) return absl::OkStatus();  // END had none
  }
  tensorflow::RunGraphResponse* const response = part->report.response;
  if (!response->ParseFromArray(bytes.flat<uint8_t>().data(),
                                static_cast<int>(bytes.num_elements()))) {
    return absl::InternalError(absl::StrCat("Step ", part->step_id,
                                            ": its report must be a RunGraphResponse, got ",
                                            bytes.num_elements(), " other bytes"));
  }
  if (part->report.wants_trace) AddCallerTimes(asked_ns, answered_ns, response);
  return absl::OkStatus();
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
  for (const auto& [step_id, part] : lost.parts) End(part, status);
}

int64_t LinkParts::num_bound() const {
  int64_t bound = 0;
  MutexLock lock(&mu_);
  for (const auto& [key, of_link] : open_) bound += static_cast<int64_t>(of_link.bound.size());
  return bound;
}

}  // namespace millrace

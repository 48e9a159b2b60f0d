// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/worker_step.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "distributed/link/link.h"
#include "distributed/transport/peer_counts.h"
#include "distributed/transport/tensor_source.h"
#include "distributed/worker/peer_error.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/shared_plans.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/trace_transfer.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_context.h"

namespace millrace {
WorkerStep::WorkerStep(const WorkerOptions* options, std::shared_ptr<StepTable> steps,
                       std::shared_ptr<const RegisteredGraph> graph, const std::string& session,
                       std::shared_ptr<const SessionLife> life, int64_t step_id,
                       std::function<void(WorkerStep*)> ended)
    : options_(options),
      own_arena_(options->own_arena),
      steps_(std::move(steps)),
      graph_(std::move(graph)),
      life_(std::move(life)),
      ended_(std::move(ended)),
      step_resources_(absl::StrCat(options->task, "/step")) {
  contexts_.resize(graph_->plan->parts.size());
  for (size_t i = 0; i < contexts_.size(); ++i) {
    StepContext& context = contexts_[i];
    context.step_id = step_id;
    context.device = graph_->plan->parts[i].device;
    context.cancellation = &cancellation_;
    context.cancel_aborts_rendezvous = true;  // Cancel and Begin, and failed parts
    context.arena = own_arena_ != nullptr ? own_arena_.get() : Arena::Default();
    context.io_pool = options_->io_pool;
    context.step_resources = &step_resources_;
    context.session_handle = session;
    context.loans = loans_.get();
  }
}

void WorkerStep::Start(const tensorflow::RunGraphRequest& request, EdgesBy edges_by,
                       absl::Span<const NamedTensor> send, bool block, absl::Time deadline,
                       CancellationManager* cancellation, tensorflow::RunGraphResponse* response,
                       std::vector<NamedTensor>* received, CallDone done) {
  const std::shared_ptr<WorkerStep> self = shared_from_this();
  done_ = std::move(done);
  response_ = response;
  received_ = received;
  const Status status = NoExceptions("RunGraph", [&] {
    if (!block && deadline != absl::InfiniteFuture()) MakeTimer();
    return Begin(request, edges_by, send, cancellation);
  });
  if (!status.ok()) {
    {
      MutexLock lock(&mu_);
      status_ = status;
    }
    return Finish();
  }
  MR_DCHECK(rendezvous_ != nullptr, "Begin is OK only with a rendezvous");
  // Small tensors that are ready at once leave together.
  LinkCork link_cork;
  std::optional<StepRendezvous::Cork> cork;
  if (!block) cork.emplace(rendezvous_.get());
  Execute(block, deadline);
}

Status WorkerStep::Begin(const tensorflow::RunGraphRequest& request, EdgesBy edges_by,
                         absl::Span<const NamedTensor> send, CancellationManager* cancellation) {
  const bool by_links = edges_by == EdgesBy::kLinks;
  MR_ASSIGN_OR_RETURN(std::shared_ptr<StepRendezvous> started,
                      steps_->Start(request.step_id(), graph_->edges, life_, loans_,
                                    by_links ? FetchTensor() : FetchFor(request.step_id())));
  Status cancelled;
  {
    MutexLock lock(&mu_);
    rendezvous_ = std::move(started);
    cancelled = cancelled_with_;
  }
  if (!cancelled.ok()) rendezvous_->StartAbort(Derived(cancelled));  // Cancel found none
  MR_RETURN_IF_ERROR(Prepare(request, send));
  if (cancellation != nullptr) {
    if (!cancellation->Register(&outer_token_, [self = shared_from_this()] {
          self->Cancel(absl::CancelledError("Step was cancelled by the master."));
        })) {
      return Derived(absl::CancelledError("Step was cancelled by the master."));
    }
    outer_ = cancellation;
  }
  if (by_links) return LinkPeers();
  rendezvous_->ReceivePushes(nullptr);
  return absl::OkStatus();
}

Status WorkerStep::Prepare(const tensorflow::RunGraphRequest& request,
                           absl::Span<const NamedTensor> send) {
  if (request.exec_opts().record_timeline()) {
    stats_ = std::make_shared<StepStatsCollector>();
    rendezvous_->TraceSends();
  }
  record_graphs_ = request.exec_opts().record_partition_graphs();
  recv_keys_.assign(request.recv_key().begin(), request.recv_key().end());
  const WorkerPlan& plan = *graph_->plan;
  args_.reserve(std::min(static_cast<size_t>(plan.num_args), send.size()));
  for (int i = 0; i < plan.num_args && static_cast<size_t>(i) < send.size(); ++i) {
    args_.push_back(send[static_cast<size_t>(i)].value);
  }
  results_.resize(static_cast<size_t>(plan.num_results));
  for (StepContext& context : contexts_) {
    context.rendezvous = rendezvous_;
    context.args = args_;
    context.results = absl::MakeSpan(results_);
  }
  for (const NamedTensor& tensor : send) {
    if (tensor.name.empty()) continue;  // by position
    MR_ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(tensor.name));
    MR_RETURN_IF_ERROR(rendezvous_->Send(key, tensor.value, tensor.is_dead));
  }
  return absl::OkStatus();
}

FetchTensor WorkerStep::FetchFor(int64_t step_id) {
  // Called by kernels of the step, which keep it.
  return [this, step_id](const std::string& task, const std::string& wire_key,
                         Rendezvous::DoneCallback done) {
    const std::shared_ptr<TensorSource> source =
        options_->source ? options_->source(task) : nullptr;
    if (source == nullptr) {
      return done(InvalidArgument("Step on ", options_->task, ": tensors must come from a task of ",
                                  "the cluster, got ", task),
                  Tensor(), false);
    }
    struct Call {
      std::string task;
      std::shared_ptr<StepRendezvous> rendezvous;  // has the cancellation
      tensorflow::RecvTensorRequest request;
      NamedTensor tensor;
      Rendezvous::DoneCallback done;
      std::shared_ptr<StepStatsCollector> stats;
      int64_t asked_ns = 0;
    };
    auto call = std::make_shared<Call>();
    call->task = task;
    call->rendezvous = rendezvous_;
    call->request.set_step_id(step_id);
    call->request.set_rendezvous_key(wire_key);
    call->done = std::move(done);
    call->stats = stats_;
    if (stats_ != nullptr) call->asked_ns = absl::GetCurrentTimeNanos();
    CallOptions options;
    options.cancellation = call->rendezvous->cancellation();
    source->RecvTensor(options, call->request, &call->tensor, [call](const Status& status) {
      if (call->stats != nullptr && status.ok()) {
        const int64_t sent_ns = call->tensor.sent_ns;
        TraceTransfer(call->request.rendezvous_key(), call->tensor.value.TotalBytes(),
                      {.send = {.ready_ns = sent_ns, .left_ns = sent_ns},
                       .asked_ns = call->asked_ns,
                       .arrived_ns = absl::GetCurrentTimeNanos()},
                      call->stats.get());
      }
      // A step that was aborted has cancelled the call.
      const Status aborted = status.ok() ? status : call->rendezvous->aborted();
      call->done(aborted.ok() ? RecvTensorError(call->task, status) : aborted,
                 std::move(call->tensor.value), call->tensor.is_dead);
    });
  };
}

Status WorkerStep::LinkPeers() {
  const StepEdges& edges = *graph_->edges;
  if (edges.recvs.empty() && edges.sends.empty()) {
    rendezvous_->ReceivePushes(nullptr);
    return absl::OkStatus();
  }
  if (options_->links == nullptr) {
    const std::string& peer = (edges.recvs.empty() ? edges.sends : edges.recvs)[0].task;
    return FailedPrecondition("Step on ", options_->task,
                              ": this task must have links to exchange ", "tensors with ", peer,
                              ", got none");
  }
  arriving_ = std::make_shared<ArrivingEdges>(rendezvous_, graph_->edges, stats_);
  rendezvous_->ReceivePushes(arriving_);
  for (const StepEdges::Peer& peer : graph_->edges->recvs) {
    options_->links->Get(
        peer.task, [steps = steps_, arriving = arriving_, edges = graph_->edges,
                    rendezvous = rendezvous_, &peer](StatusOr<std::shared_ptr<Link>> link) {
          if (!link.ok()) {
            rendezvous->LoseReceiver(peer.task);
            // All that it sends may have come: then it may have left.
            PushedMessage lost;
            lost.kind = PushedMessage::Kind::kLost;
            lost.task = peer.task;
            lost.error = link.status();
            return arriving->OnPushed(std::move(lost));
          }
          arriving->Expect(peer.task, *link);
          // Who lost it meanwhile may not have found this step.
          if (!steps->IsOpen(link->get())) {
            PushedMessage lost;
            lost.kind = PushedMessage::Kind::kLost;
            lost.task = peer.task;
            lost.link = link->get();
            lost.error = absl::UnavailableError("its link was lost as the step began");
            arriving->OnPushed(std::move(lost));
          }
        });
  }
  for (size_t i = 0; i < edges.sends.size(); ++i) {
    const StepEdges::Peer& peer = edges.sends[i];
    // What is ready before there is a link waits in its place.
    std::shared_ptr<PeerCounter> counter;
    if (options_->peer_counters != nullptr) counter = options_->peer_counters->Find(peer.task);
    options_->links->Get(peer.task, [rendezvous = rendezvous_, edges = graph_->edges, counter,
                                     reads = graph_->sent_reads[i], is_traced = stats_ != nullptr,
                                     &peer](StatusOr<std::shared_ptr<Link>> link) {
      if (!link.ok()) {
        return rendezvous->FailPushes(peer.task, PushToError(peer.task, link.status()));
      }
      rendezvous->Push(
          peer, link->get(),
          std::make_shared<LinkSink>(*link, rendezvous, edges, &peer, counter, reads, is_traced));
    });
  }
  return absl::OkStatus();
}

void WorkerStep::Execute(bool block, absl::Time deadline) {
  const std::shared_ptr<WorkerStep> self = shared_from_this();
  const std::vector<StepPart>& parts = graph_->plan->parts;
  ExecutorOptions options;
  options.stats = stats_.get();
  options.deadline = deadline;
  options.keep = self;
  absl::InlinedVector<PartitionRun, 4> runs;
  const Status status = NoExceptions("RunGraph", [&]() -> Status {
    for (size_t i = 0; i < parts.size(); ++i) {
      contexts_[i].deadline = options.deadline;
      contexts_[i].stats = options.stats;
      runs.push_back({parts[i].executor.get(), &contexts_[i]});
    }
    return block ? RunPartitions(runs, options) : absl::OkStatus();
  });
  if (block || !status.ok()) return PartsEnded(status);
  parts_.Start(runs, options, [self](const Status& ended) { self->PartsEnded(ended); });
  started_.store(true, std::memory_order_release);
  MutexLock lock(&mu_);
  if (timer_ != nullptr) timer_->Set(deadline);
}

// A step that began without it could not be ended when there is no memory left for it.
void WorkerStep::MakeTimer() {
  MutexLock lock(&mu_);
  timer_ = options_->timers->Make([weak = weak_from_this()] {
    if (const auto step = weak.lock()) step->TimeIsOver();
  });
}

// Without a timer the step has ended, maybe just now and by the timer's own thread: options_ may be
// gone with the worker.
void WorkerStep::SetTimerIn(absl::Duration pause) {
  MutexLock lock(&mu_);
  if (timer_ != nullptr) timer_->Set(options_->timers->Now() + pause);
}

void WorkerStep::TimeIsOver() {
  MR_DCHECK(started_.load(std::memory_order_acquire),
            "Execute sets the timer after it has started the parts");
  if (!overdue_.exchange(true, std::memory_order_relaxed)) {
    parts_.EndOverdue().IgnoreError();
    SetTimerIn(kAnswerTime);
  } else if (!parts_.LeaveSilent()) {
    SetTimerIn(kLookAgain);
  }
}

Status WorkerStep::EndOverdue() {
  if (!started_.load(std::memory_order_acquire)) {
    return TimedOutWaitingFor("a kernel that keeps its thread");
  }
  if (overdue_.exchange(true, std::memory_order_relaxed)) return TimedOutWaitingFor("");
  return parts_.EndOverdue();
}

void WorkerStep::LeaveSilent() {
  // False while the timer's thread is in EndOverdue: it sets the timer again.
  if (overdue_.load(std::memory_order_relaxed)) parts_.LeaveSilent();
}

std::string WorkerStep::Name() const {
  if (contexts_.empty()) return "an empty step";
  return absl::StrCat("step ", contexts_[0].step_id, " of session ", contexts_[0].session_handle);
}

void WorkerStep::PartsEnded(const Status& status) {
  {
    MutexLock lock(&mu_);
    MR_DCHECK(status_.ok(), "results, which may fail, are collected after the parts have ended");
    status_ = status;
  }
  Finish();
}

void WorkerStep::Cancel(const Status& status) {
  std::shared_ptr<StepRendezvous> rendezvous;
  {
    MutexLock lock(&mu_);
    if (is_over_ || !cancelled_with_.ok()) return;
    cancelled_with_ = status;
    rendezvous = rendezvous_;
  }
  if (rendezvous != nullptr) rendezvous->StartAbort(Derived(status));
  cancellation_.StartCancel();
}

void WorkerStep::CollectResults() {
  received_->reserve(results_.size() + recv_keys_.size());
  for (Tensor& result : results_) {
    const bool is_dead = !result.has_value();
    received_->push_back({"", std::move(result), is_dead});
  }
  for (const std::string& key : recv_keys_) {
    const Status status = CollectResult(key);
    if (status.ok()) continue;
    MutexLock lock(&mu_);
    if (status_.ok()) status_ = status;
    return;
  }
}

Status WorkerStep::CollectResult(const std::string& wire_key) {
  MR_ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(wire_key));
  // Shared: who aborts the step at this moment may call back after this function.
  struct Slot {
    Mutex mu;
    bool filled ABSL_GUARDED_BY(mu) = false;
    Status status ABSL_GUARDED_BY(mu);
    NamedTensor tensor ABSL_GUARDED_BY(mu);
  };
  auto slot = std::make_shared<Slot>();
  rendezvous_->RecvAsync(key, [slot](const Status& status, Tensor value, bool is_dead) {
    MutexLock lock(&slot->mu);
    slot->filled = true;
    slot->status = status;
    slot->tensor.value = std::move(value);
    slot->tensor.is_dead = is_dead;
  });
  {
    // The sends have run: the value is there, or will never be.
    MutexLock lock(&slot->mu);
    if (slot->filled) {
      MR_RETURN_IF_ERROR(slot->status);
      slot->tensor.name = wire_key;
      received_->push_back(std::move(slot->tensor));
      return absl::OkStatus();
    }
  }
  const Status missing = absl::InternalError(
      absl::StrCat("Step on ", options_->task, ": '", wire_key,
                   "' must have been sent when all nodes have run, got nothing"));
  rendezvous_->StartAbort(missing);
  return missing;
}

void WorkerStep::Finish() {
  const std::shared_ptr<WorkerStep> self = shared_from_this();
  // What is left to send, the answer and acknowledgements leave together.
  LinkCork cork;
  if (outer_ != nullptr) outer_->Deregister(outer_token_);
  std::shared_ptr<Timer> timer;
  {
    MutexLock lock(&mu_);
    timer = std::move(timer_);
  }
  if (timer != nullptr) timer->Cancel();
  // Without memory for its answer a step fails, and ends all the same.
  Status status = NoExceptions("RunGraph", [&] { return Answer(); });
  if (rendezvous_ != nullptr) {
    const Status ended = NoExceptions("RunGraph", [&]() -> Status {
      steps_->End(rendezvous_.get(), status.ok() ? status : Derived(status));
      return absl::OkStatus();
    });
    if (status.ok()) status = ended;
  }
  // Before the caller hears of it: the next caller finds what was given back. A step that ended
  // well settles when the last of what it sent is taken.
  if (EndAndSeeIfGivenUp()) {
    loans_->GiveBack();
  } else if (!status.ok() && rendezvous_ != nullptr && rendezvous_->has_lost_receiver()) {
    // It did not fail by itself.
    loans_->GiveBack();
  } else if (!status.ok()) {
    loans_->Settle();
  }
  MR_DCHECK(done_ != nullptr,
            "a step finishes once: in Start when it cannot begin, else after its last part");
  CallDone done = std::move(done_);
  NoExceptions("RunGraph", [&]() -> Status {
    done(status);
    return absl::OkStatus();
  }).IgnoreError();
  // After the answer, which may have travelled by the same links.
  if (arriving_ != nullptr) arriving_->Flush();
  ended_(this);
}

bool WorkerStep::EndAndSeeIfGivenUp() {
  MutexLock lock(&mu_);
  is_over_ = true;
  return !cancelled_with_.ok();
}

Status WorkerStep::Answer() {
  Status status;
  {
    MutexLock lock(&mu_);
    status = status_;
  }
  if (status.ok()) {
    CollectResults();
    MutexLock lock(&mu_);
    status = status_;
  } else {
    // What the step was told to end with, when it only obeyed.
    MutexLock lock(&mu_);
    if (IsDerived(status) && !cancelled_with_.ok()) {
      status = absl::IsCancelled(cancelled_with_) ? Derived(cancelled_with_) : cancelled_with_;
    }
  }
  if (stats_ != nullptr) stats_->TakeInto(response_->mutable_step_stats());
  if (!record_graphs_) return status;
  tensorflow::GraphDef* const graph = response_->add_partition_graph();
  graph_->plan->graph->ToGraphDef(graph, 0, /*assigned=*/true);
  std::map<absl::string_view, const tensorflow::NodeDef*> transfers;
  for (const tensorflow::NodeDef& node : graph_->transfers) transfers[node.name()] = &node;
  for (tensorflow::NodeDef& node : *graph->mutable_node()) {
    const auto it = transfers.find(node.name());
    if (it != transfers.end()) node = *it->second;
  }
  return status;
}

}  // namespace millrace

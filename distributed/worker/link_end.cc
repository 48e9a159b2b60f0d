// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/link_end.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/io_pool.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/visit.h"
#include "core/visiting.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/run_times.h"
#include "distributed/worker/handles.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/step_table.h"
#include "net/call_limits.h"
#include "proto/worker.pb.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

// Threads of the network that begin parts at once, in the process: as many as run calls.
constexpr int kMaxStarts = 16;

// Threads for those that no visit takes. A part may block its thread until another one has run, so
// the arena, whose threads are as few as the cores, has none for it.
constexpr int kMaxPartThreads = 64;
IoPool* PartPool() {
  static IoPool* const pool = new IoPool(kMaxPartThreads);
  return pool;
}

}  // namespace

struct WorkerLinkEnd::Runs {
  Mutex mu;
  std::map<int64_t, std::shared_ptr<Part>> parts ABSL_GUARDED_BY(mu);  // by step
};

// One RUN: the work of a visit, or of a thread of its own.
class WorkerLinkEnd::Part final : public Visit::Work, public std::enable_shared_from_this<Part> {
 public:
  Part(std::shared_ptr<Worker> worker, std::shared_ptr<Runs> runs, std::shared_ptr<Link> link,
       const BoundGraph& graph, const RunFrame& run)
      : worker_(std::move(worker)), runs_(std::move(runs)), link_(std::move(link)) {
    request_.set_session_handle(graph.session_handle);
    request_.set_graph_handle(graph.graph_handle);
    request_.set_create_worker_session_called(true);
    request_.set_step_id(run.step_id);
    if (run.wants_trace) request_.mutable_exec_opts()->set_record_timeline(true);
    if (run.wants_graphs) request_.mutable_exec_opts()->set_record_partition_graphs(true);
    if (run.wants_trace) begun_ns_ = absl::GetCurrentTimeNanos();
    if (run.timeout_us > 0) deadline_ = worker_->Now() + absl::Microseconds(run.timeout_us);
  }

  // By the visit, once its thread has given up polling. A part that the visit does not take must
  // not keep the thread from reading: the link, with PING, and a RUN that waits for the visit's
  // end.
  void Start() {
    kept_ = shared_from_this();
    if (Visit::Offer(this, kMaxStarts)) return;
    const std::shared_ptr<Part> self = std::move(kept_);
    if (!IsVisiting()) return Begin();
    PartPool()->Schedule([self] { self->Begin(); });
  }
  void RunVisit() noexcept override {
    const std::shared_ptr<Part> self = std::move(kept_);
    Begin();
  }
  void Cancel() { cancellation_.StartCancel(); }

 private:
  void Begin() noexcept {
    // What is ready at once leaves together, and the end of a short part with it.
    LinkCork cork;
    const Status begun = NoExceptions("RUN", [&]() -> Status {
      worker_->RunGraph(request_, request_, EdgesBy::kLinks, {}, /*block=*/false, deadline_,
                        &cancellation_, &response_, &received_,
                        [self = shared_from_this()](const Status& status) { self->End(status); });
      return absl::OkStatus();
    });
    if (!begun.ok()) End(begun);
  }
  void End(const Status& status) {
    EndFrame end;
    end.step_id = request_.step_id();
    end.status = status;
    if (status.ok() && !received_.empty()) {
      end.status = Unimplemented("Step ", request_.step_id(), " on ", worker_->task(),
                                 ": what a link runs must have no results, got ", received_.size());
    }
    {
      MutexLock lock(&runs_->mu);
      const auto it = runs_->parts.find(request_.step_id());
      if (it != runs_->parts.end() && it->second.get() == this) runs_->parts.erase(it);
    }
    if (end.status.ok() && request_.has_exec_opts()) {
      const Status reported = NoExceptions("END", [this] { return Report(); });
      end.has_report = reported.ok();
      // The part has ended well, and others use what it has pushed: an error would drop that.
      if (!reported.ok()) {
        LogWarning(worker_->task(), ": step ", request_.step_id(), " ends without its trace and ",
                   "graphs: ", reported.message());
      }
    }
    // A link that is lost tells the peer as much.
    link_->Send(std::move(end)).IgnoreError();
  }

  // Sends costs and graphs, which may have megabytes, before END.
  Status Report() {
    if (begun_ns_ != 0) AddWorkerTimes(begun_ns_, absl::GetCurrentTimeNanos(), &response_);
    const size_t num_bytes = response_.ByteSizeLong();
    if (num_bytes > size_t{INT32_MAX}) {
      return absl::ResourceExhaustedError(
          absl::StrCat("Step ", request_.step_id(), " on ", worker_->task(),
                       ": its trace and graphs must be below 2 GiB, got ", num_bytes, " bytes"));
    }
    SentTensors report;
    report.step_id = request_.step_id();
    report.purpose = TensorsPurpose::kReport;
    SentTensor& tensor = report.tensors.emplace_back();
    MR_ASSIGN_OR_RETURN(tensor.value,
                        Tensor::Allocate(DT_UINT8, Shape{static_cast<int64_t>(num_bytes)}));
    if (!response_.SerializeToArray(tensor.value.mutable_flat<uint8_t>().data(),
                                    static_cast<int>(num_bytes))) {
      return Internal("Step ", request_.step_id(), ": its report must be written, got an error");
    }
    return link_->Send(std::move(report));
  }

  const std::shared_ptr<Worker> worker_;
  const std::shared_ptr<Runs> runs_;
  const std::shared_ptr<Link> link_;
  int64_t begun_ns_ = 0;  // of a traced step
  tensorflow::RunGraphRequest request_;
  tensorflow::RunGraphResponse response_;
  std::vector<NamedTensor> received_;
  absl::Time deadline_ = absl::InfiniteFuture();
  CancellationManager cancellation_;
  std::shared_ptr<Part> kept_;  // until the visit runs it
};

WorkerLinkEnd::WorkerLinkEnd(std::shared_ptr<Worker> worker)
    : worker_(std::move(worker)), runs_(std::make_shared<Runs>()) {}

void WorkerLinkEnd::Guarded(const char* what, absl::FunctionRef<Status()> body) {
  const std::shared_ptr<Link> link = link_;  // the body may end with OnLost
  if (link == nullptr) return;
  const Status status = NoExceptions(what, body);
  if (!status.ok()) link->Close(status);
}

void WorkerLinkEnd::OnOpen(std::shared_ptr<Link> link) {
  link_ = std::move(link);
  Guarded("Link", [this]() -> Status {
    if (const PeerCounters* const counters = worker_->peer_counters()) {
      counter_ = counters->Find(link_->peer().task);
    }
    worker_->steps()->LinkOpened(
        link_.get(), [weak = std::weak_ptr<Link>(link_)](absl::AnyInvocable<void()> answered) {
          if (const std::shared_ptr<Link> link = weak.lock()) link->Ask(std::move(answered));
        });
    return absl::OkStatus();
  });
}

// --- Parts of the peer's steps -------------------------------------------------------------------

void WorkerLinkEnd::OnBind(BindFrame bind) {
  Guarded("BIND", [&]() -> Status {
    const BoundGraph graph = {std::move(bind.session_handle), std::move(bind.graph_handle)};
    auto it = graphs_.find(bind.number);
    if (it == graphs_.end()) {
      const Status may_bind = CheckMayBind(graph);
      if (!may_bind.ok()) {
        not_bound_ = may_bind;
        return absl::OkStatus();
      }
      it = graphs_.emplace(bind.number, graph).first;
    }
    // Masters may say the same twice, from two threads.
    const BoundGraph& bound = it->second;
    if (bound.session_handle == graph.session_handle && bound.graph_handle == graph.graph_handle) {
      return absl::OkStatus();
    }
    return InvalidArgument("BIND on ", worker_->task(), ": a number must stand for one graph, got ",
                           bind.number, " for graph ", bound.graph_handle, " and for ",
                           graph.graph_handle);
  });
}

Status WorkerLinkEnd::CheckMayBind(const BoundGraph& graph) const {
  const size_t longest = std::max(graph.session_handle.size(), graph.graph_handle.size());
  if (longest > kMaxHandleBytes) {
    return InvalidArgument("BIND on ", worker_->task(), ": a handle must have at most ",
                           kMaxHandleBytes, " bytes, got ", longest);
  }
  const auto bound = static_cast<int64_t>(graphs_.size());
  if (bound < worker_->limits().max_graphs) return absl::OkStatus();
  return BeyondLimit(absl::StrCat("BIND on ", worker_->task()), "graphs of one link", "max_graphs",
                     worker_->limits().max_graphs, bound + 1);
}

void WorkerLinkEnd::OnUnbind(uint64_t number) { graphs_.erase(number); }

void WorkerLinkEnd::OnRun(RunFrame run) {
  Guarded("RUN", [&]() -> Status {
    EndFrame end;
    end.step_id = run.step_id;
    end.status = Begin(run);
    if (end.status.ok()) return absl::OkStatus();
    // What has come for it goes, and tasks that wait for its tensors hear of it. One that came
    // twice has begun.
    if (!absl::IsAlreadyExists(end.status)) {
      worker_->steps()->Refuse(run.step_id, Derived(end.status));
    }
    link_->Send(std::move(end)).IgnoreError();
    return absl::OkStatus();
  });
}

Status WorkerLinkEnd::Begin(const RunFrame& run) {
  const auto graph = graphs_.find(run.number);
  if (graph == graphs_.end()) {
    if (!not_bound_.ok()) return not_bound_;
    return InvalidArgument("RUN of step ", run.step_id, " on ", worker_->task(),
                           ": its graph must be bound, got number ", run.number);
  }
  if (run.num_args > 0) {
    return Unimplemented("RUN of step ", run.step_id, " on ", worker_->task(),
                         ": all arguments must be of the master's own part, got ", run.num_args);
  }
  const auto part = std::make_shared<Part>(worker_, runs_, link_, graph->second, run);
  {
    MutexLock lock(&runs_->mu);
    const auto running = static_cast<int64_t>(runs_->parts.size());
    if (running >= worker_->limits().max_calls_of_connection) {
      return BeyondLimit(absl::StrCat("RUN of step ", run.step_id, " on ", worker_->task()),
                         "parts that run for one link", "max_calls_of_connection",
                         worker_->limits().max_calls_of_connection, running + 1);
    }
    if (!runs_->parts.emplace(run.step_id, part).second) {
      return absl::AlreadyExistsError(
          absl::StrCat("RUN of step ", run.step_id, " must come once by a link, got it twice"));
    }
  }
  part->Start();
  return absl::OkStatus();
}

void WorkerLinkEnd::OnEnd(EndFrame) {}

// --- Edges ---------------------------------------------------------------------------------------

void WorkerLinkEnd::OnTensors(SentTensors tensors) {
  if (tensors.purpose != TensorsPurpose::kEdges) return;
  Guarded("TENSORS", [&]() -> Status {
    const int64_t step_id = tensors.step_id;
    PushedMessage message;
    message.task = link_->peer().task;
    message.link = link_.get();
    message.creditor = link_;
    message.tensors = std::move(tensors);
    if (counter_ != nullptr) {
      counter_->AddReceived(BytesThatTravel(message.tensors),
                            static_cast<int64_t>(message.tensors.tensors.size()));
    }
    worker_->steps()->TakePushed(step_id, std::move(message));
    return absl::OkStatus();
  });
}

void WorkerLinkEnd::OnReceived(int64_t step_id, uint64_t tensors) {
  if (link_ == nullptr) return;
  worker_->steps()->Received(step_id, link_->peer().task, link_.get(), tensors);
}

void WorkerLinkEnd::OnRefused(int64_t step_id, const Status& status) {
  Guarded("TENSORS", [&]() -> Status {
    PushedMessage message;
    message.kind = PushedMessage::Kind::kFailed;
    message.task = link_->peer().task;
    message.link = link_.get();
    message.error = status;
    worker_->steps()->TakePushed(step_id, std::move(message));
    return absl::OkStatus();
  });
}

// --- Ends ----------------------------------------------------------------------------------------

void WorkerLinkEnd::OnCancel(int64_t step_id, const Status& status) {
  Guarded("CANCEL", [&]() -> Status {
    std::shared_ptr<Part> part;
    {
      MutexLock lock(&runs_->mu);
      const auto it = runs_->parts.find(step_id);
      if (it != runs_->parts.end()) part = it->second;
    }
    if (part != nullptr) part->Cancel();
    // The peer's own part has failed, perhaps: what it says of that was only passed on here.
    PushedMessage message;
    message.kind = PushedMessage::Kind::kFailed;
    message.task = link_->peer().task;
    message.link = link_.get();
    message.error = Derived(status);
    worker_->steps()->PushFailed(step_id, std::move(message));
    return absl::OkStatus();
  });
}

void WorkerLinkEnd::OnLost(const Status& status, bool by_peer) {
  const std::shared_ptr<Link> link = std::move(link_);
  link_ = nullptr;
  if (link == nullptr) return;  // it never opened
  std::map<int64_t, std::shared_ptr<Part>> parts;
  {
    MutexLock lock(&runs_->mu);
    parts.swap(runs_->parts);
  }
  for (const auto& [step_id, part] : parts) part->Cancel();
  if (by_peer && !graphs_.empty()) {
    std::set<std::string> sessions;
    for (const auto& [number, graph] : graphs_) sessions.insert(graph.session_handle);
    worker_->DoubtSessions(sessions);
  }
  NoExceptions("Link", [&]() -> Status {
    worker_->steps()->LinkLost(link->peer().task, link.get(), LossOfLink(status));
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace millrace

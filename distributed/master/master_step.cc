// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/master_step.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "core/before_wait.h"
#include "core/clock.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/network_seat.h"
#include "core/random_bits.h"
#include "distributed/link/link.h"
#include "distributed/master/link_parts.h"
#include "distributed/master/task_calls.h"
#include "distributed/transport/run_times.h"
#include "graph/signature.h"
#include "runtime/engine/executor.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

// How long a step whose tasks only pass on an error waits for the one that had it.
constexpr absl::Duration kRootCauseGrace = absl::Seconds(1);
// After the deadline: for kernels to answer, then for the parts' answers to come here.
const absl::Duration kTimedOutGrace = kAnswerTime + absl::Milliseconds(250);

// Step ids are positive and leave room, as TensorFlow's do.
int64_t NewStepId() {
  for (;;) {
    const int64_t id = static_cast<int64_t>(RandomUint64() & ((uint64_t{1} << 56) - 1));
    if (id != 0) return id;
  }
}

}  // namespace

MasterStep::MasterStep(std::shared_ptr<MasterStepOwner> owner,
                       std::shared_ptr<const SignatureBinding<CompiledStep>> binding,
                       absl::Time now, Timers* timers)
    : owner_(std::move(owner)),
      binding_(std::move(binding)),
      compiled_(binding_->compiled.get()),
      timers_(timers),
      step_id_(NewStepId()),
      begun_(now) {
  const size_t n = compiled_->parts.size();
  responses_.resize(n);
  left_ = static_cast<int>(n) + 1;
  answered_.resize(n);
}

void MasterStep::Start(absl::Span<const Tensor> feeds, const MasterStepOptions& options,
                       StepDone done) {
  const std::shared_ptr<MasterStep> self = shared_from_this();
  done_ = std::move(done);
  size_t begun = 0;
  try {
    StartOrThrow(feeds, options, &begun);
  } catch (...) {
    Fail(StatusOfException("Run"));
    for (; begun < compiled_->parts.size(); ++begun) Drop();
  }
  Drop();
}

void MasterStep::StartOrThrow(absl::Span<const Tensor> feeds, const MasterStepOptions& options,
                              size_t* begun) {
  const std::shared_ptr<MasterStep> self = shared_from_this();
  deadline_ = options.deadline;
  trace_ = options.run.trace_level() > tensorflow::RunOptions::NO_TRACE;
  record_graphs_ = options.run.output_partition_graphs();
  feeds_.assign(feeds.begin(), feeds.end());
  send_.resize(feeds.size());
  for (size_t i = 0; i < feeds.size(); ++i) send_[binding_->bound.feed_to[i]].value = feeds[i];
  if (!options.block && deadline_ != absl::InfiniteFuture()) {
    timer_ = timers_->Start(deadline_ + kTimedOutGrace, [weak = weak_from_this()] {
      if (const auto step = weak.lock()) {
        step->Fail(TimedOutWaitingFor(""));
      }
    });
  }
  if (options.cancellation != nullptr) {
    if (options.cancellation->Register(&outer_token_, [weak = weak_from_this()] {
          if (const auto step = weak.lock()) {
            step->Fail(absl::CancelledError("Step was cancelled by its caller"));
          }
        })) {
      outer_ = options.cancellation;
    } else {
      Fail(absl::CancelledError("Step was cancelled by its caller"));
    }
  }
  request_.set_step_id(step_id_);
  if (trace_) request_.mutable_exec_opts()->set_record_timeline(true);
  if (record_graphs_) request_.mutable_exec_opts()->set_record_partition_graphs(true);
  // RUN and what the own part sends at once leave together.
  LinkCork cork;
  // What the own part waits for, this thread takes off the network.
  std::optional<SeatWish> wish;
  if (compiled_->links != nullptr && options.block) wish.emplace();
  // The own part comes last: it may keep this thread busy.
  for (size_t i = 0; i < compiled_->parts.size(); ++i) {
    if (static_cast<int>(i) != compiled_->own_part) {
      ++*begun;
      compiled_->links->Run(compiled_->parts[i].linked, step_id_, deadline_, &cancellation_,
                            [self, i](const Status& status) { self->PartDone(i, status); },
                            {trace_, record_graphs_, &responses_[i]});
      continue;
    }
    CallOptions call;
    call.cancellation = &cancellation_;
    call.deadline = deadline_;
    ++*begun;
    compiled_->local_part->Run(call, compiled_->parts[i].request, request_, send_, options.block,
                               &responses_[i], &received_,
                               [self, i](const Status& status) { self->PartDone(i, status); });
  }
}

void MasterStep::Record(const Status& status, int part) {
  MR_DCHECK(!status.ok(), "only what ends a step is recorded");
  {
    MutexLock lock(&mu_);
    if (status_.ok() || (IsDerived(status_) && !IsDerived(status))) {
      status_ = status;
      failed_part_ = part;
    }
    if (IsDerived(status)) {
      // Another task has failed, and its own account of it is on the way: it is waited for.
      if (grace_ == nullptr) {
        const absl::Duration grace =
            absl::IsDeadlineExceeded(status) ? kTimedOutGrace : kRootCauseGrace;
        grace_ = timers_->Start(timers_->Now() + grace, [weak = weak_from_this()] {
          if (const auto step = weak.lock()) step->cancellation_.StartCancel();
        });
      }
      return;
    }
  }
  cancellation_.StartCancel();
}

// The others' time is over, too: they are left to say what they waited for.
void MasterStep::RecordTimedOut(size_t part, const Status& status) {
  MutexLock lock(&mu_);
  if (const absl::string_view names = WaitedFor(status); !names.empty()) {
    waited_for_[part] = static_cast<int>(part) == compiled_->own_part
                            ? std::string(names)
                            : absl::StrCat(names, " on ", compiled_->parts[part].control->task());
  }
  if (!status_.ok() && !IsDerived(status_)) return;
  status_ = TimedOutWaitingFor("");
  failed_part_ = -1;
}

void MasterStep::Fail(const Status& status) { Record(status, -1); }

std::string MasterStep::WaitsFor() {
  std::string tasks;
  MutexLock lock(&mu_);
  for (size_t i = 0; i < answered_.size(); ++i) {
    if (answered_[i]) continue;
    absl::StrAppend(&tasks, tasks.empty() ? "" : ", ", Whereabouts(*compiled_->parts[i].control));
  }
  return tasks;
}

void MasterStep::PartDone(size_t part, const Status& status) {
  {
    MutexLock lock(&mu_);
    MR_DCHECK(!answered_[part], "each call is answered once");
    answered_[part] = true;
  }
  if (absl::IsCancelled(status) && cancellation_.IsCancelled()) {
    Record(Derived(status), static_cast<int>(part));
  } else if (!status.ok()) {
    if (IsTimedOut(status)) {
      RecordTimedOut(part, status);
    } else {
      Record(TellsOfRestart(status) ? status
                                    : FromTask(compiled_->parts[part].control->task(), status),
             static_cast<int>(part));
    }
  }
  Drop();
}

void MasterStep::Drop() {
  {
    MutexLock lock(&mu_);
    MR_DCHECK(left_ > 0, "each part is dropped once, by its answer or by Start, and Start itself");
    if (--left_ > 0) return;
  }
  End();
}

void MasterStep::End() {
  if (timer_ != nullptr) timer_->Cancel();
  if (outer_ != nullptr) outer_->Deregister(outer_token_);
  Status status;
  int part;
  std::shared_ptr<Timer> grace;
  {
    MutexLock lock(&mu_);
    status = status_;
    part = failed_part_;
    if (IsTimedOut(status)) {
      status = TimedOutWaitingFor(absl::StrJoin(
          waited_for_, ", ",
          [](std::string* out, const auto& of_part) { out->append(of_part.second); }));
    }
    grace = grace_;
  }
  if (grace != nullptr) grace->Cancel();
  if (part >= 0 && (TellsOfRestart(status) || TellsOfOtherRelease(status))) {
    // A link that another release refused failed in the receiver's or the sender's part: the one
    // that it names restarted.
    std::shared_ptr<WorkerControl> task = compiled_->parts[static_cast<size_t>(part)].control;
    for (const CompiledStep::Part& other : compiled_->parts) {
      const std::string& name = other.control->task();
      for (const std::string& named :
           {absl::StrCat("\"", name, "\""), absl::StrCat("Push from ", name, ": "),
            absl::StrCat("Push to ", name, ": ")}) {
        if (absl::StrContains(status.message(), named)) task = other.control;
      }
    }
    return owner_->ExplainRestart(
        task, step_id_, status,
        [self = shared_from_this()](Status explained) { self->Complete(std::move(explained)); });
  }
  Complete(std::move(status));
}

void MasterStep::Complete(Status status) {
  const std::shared_ptr<MasterStep> self = shared_from_this();
  StatusOr<StepResult> result = NoExceptions("Run", [&]() -> StatusOr<StepResult> {
    if (status.ok()) return TakeResult();
    return WithoutDerivedMark(status);
  });
  StepDone done = std::move(done_);
  owner_->StepEnded(this);
  done(std::move(result));
  MutexLock lock(&mu_);
  ended_ = true;
  seated_.Signal();
  ended_cv_.SignalAll();
}

StatusOr<StepResult> MasterStep::TakeResult() {
  StepResult result;
  std::vector<Tensor> fetched(compiled_->signature.fetches.size());
  if (compiled_->own_part >= 0) {
    for (size_t i = 0; i < fetched.size() && i < received_.size(); ++i) {
      fetched[i] = std::move(received_[i].value);
    }
  }
  MR_RETURN_IF_ERROR(CheckFetched(compiled_->signature, fetched));
  result.fetches.resize(binding_->bound.results.size());
  ArrangeResults(binding_->bound, feeds_, absl::MakeSpan(fetched), absl::MakeSpan(result.fetches));
  if (trace_) TakeTrace(result.metadata.mutable_step_stats());
  if (record_graphs_) {
    for (tensorflow::RunGraphResponse& response : responses_) {
      for (auto& graph : *response.mutable_partition_graph()) {
        result.metadata.add_partition_graphs()->Swap(&graph);
      }
    }
  }
  return result;
}

void MasterStep::TakeTrace(tensorflow::StepStats* stats) {
  std::map<std::string, tensorflow::DeviceStepStats*> devices;
  std::vector<TracedPart> parts;
  for (size_t i = 0; i < responses_.size(); ++i) {
    const WorkerControl& control = *compiled_->parts[i].control;
    parts.push_back({control.task(), control.is_local(), ClockExchangeOf(responses_[i])});
    for (auto& device : *responses_[i].mutable_step_stats()->mutable_dev_stats()) {
      tensorflow::DeviceStepStats*& merged = devices[device.device()];
      if (merged == nullptr) {
        merged = stats->add_dev_stats();
        merged->Swap(&device);
      } else {
        // What another task received from this device.
        merged->MergeFrom(device);
      }
    }
  }
  owner_->trace_clocks()->Align(parts, absl::GetCurrentTimeNanos(), stats);
  for (auto& [name, device] : devices) {
    auto* const lines = device->mutable_node_stats();
    std::stable_sort(lines->pointer_begin(), lines->pointer_end(),
                     [](const tensorflow::NodeExecStats* a, const tensorflow::NodeExecStats* b) {
                       return a->all_start_nanos() < b->all_start_nanos();
                     });
  }
}

void MasterStep::Wait() {
  // A step within a node of another one: RUN may be held by a cork further out on this thread.
  BeforeWait::Run();
  const bool is_real = timers_->clock() == Clock::Real();
  std::optional<SeatWish> wish;
  if (compiled_->links != nullptr) wish.emplace();
  const auto wait_until = [this, is_real](absl::Time deadline) {
    MutexLock lock(&mu_);
    while (!ended_) {
      if (!is_real) {
        if (timers_->clock()->WaitUntil(&ended_cv_, &mu_, deadline)) break;
      } else if (absl::Now() >= deadline) {
        break;
      } else {
        seated_.Wait(&mu_, deadline);
      }
    }
    return ended_;
  };
  if (wait_until(deadline_ + kTimedOutGrace)) return;
  Fail(TimedOutWaitingFor(""));
  wait_until(absl::InfiniteFuture());
}

}  // namespace millrace

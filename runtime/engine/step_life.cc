// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_life.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/dcheck.h"

namespace millrace {
namespace {

// More would hide the rest of the message.
constexpr size_t kNamesInMessage = 8;

// Made before any step, so that a step without memory has them.
const Status no_memory = absl::ResourceExhaustedError("out of memory");
const Status no_memory_derived = Derived(no_memory);
const Status timed_out = TimedOutWaitingFor("");

Status DerivedOrNoMemory(const Status& status) {
  try {
    return Derived(status);
  } catch (const std::bad_alloc&) {
    return no_memory_derived;
  }
}

}  // namespace

const Status& NoMemory() { return no_memory; }

Status StepTimedOut(absl::Span<const std::string> names) {
  try {
    if (names.empty()) return timed_out;
    const size_t shown = std::min(names.size(), kNamesInMessage);
    std::string text = absl::StrJoin(names.subspan(0, shown), ", ");
    if (shown < names.size()) absl::StrAppend(&text, " and ", names.size() - shown, " more");
    return TimedOutWaitingFor(text);
  } catch (const std::bad_alloc&) {
    return timed_out;
  }
}

Status TimedOutOf(absl::Span<Step* const> steps) {
  std::vector<std::string> names;
  try {
    for (const Step* const step : steps) step->AppendSilentKernels(&names);
  } catch (const std::bad_alloc&) {
    // Then without the others' names.
  }
  return StepTimedOut(names);
}

void StepLife::Begin(const StepStart& start) {
  MR_DCHECK(context_ == nullptr, "a recycled step begins after its last end");
  context_ = start.context;
  cancellation_ = start.context->cancellation;
  deadline_ = start.deadline;
  has_deadline_ = start.deadline != absl::InfiniteFuture();
  host_ = start.host;
  end_ = start.end;
  solo_ = true;
  failed_.store(false, std::memory_order_relaxed);
  parts_.store(kActive, std::memory_order_relaxed);
}

Status StepLife::End() {
  MR_DCHECK(context_ != nullptr, "a step ends once");
  context_ = nullptr;
  cancellation_ = nullptr;
  if (!failed()) return absl::OkStatus();
  MutexLock lock(&mu_);
  return std::exchange(status_, absl::OkStatus());
}

bool StepLife::TryOrphan() {
  uint64_t parts = parts_.load(std::memory_order_acquire);
  do {
    if (parts == 0 || (parts & kActiveMask) != 0) return false;
  } while (!parts_.compare_exchange_weak(parts, parts | kOrphan, std::memory_order_acq_rel,
                                         std::memory_order_acquire));
  return true;
}

void StepLife::TellEnded(Step* step) {
  MR_DCHECK(host_ != nullptr || end_ != nullptr, "somebody waits for the end of each step");
  if (host_ != nullptr) return host_->StepEnded();
  end_->StepEnded(step);
}

void StepLife::Fail(const Status& error) noexcept {
  MR_DCHECK(!error.ok(), "a step fails with an error");
  Status status = error;
  // An effect of the cancellation, not a cause of its own.
  if (absl::IsCancelled(status) && cancellation_ != nullptr && cancellation_->IsCancelled()) {
    status = DerivedOrNoMemory(status);
  }
  {
    MutexLock lock(&mu_);
    if (failed_.exchange(true, std::memory_order_relaxed)) {
      // The call that cancelled the step may tell its reason later than the calls that it took
      // along.
      if (IsDerived(status_) && !IsDerived(status)) status_ = status;
      return;
    }
    status_ = status;
  }
  const Status derived = DerivedOrNoMemory(status);
  // Waits must end: what fails for want of memory is tried once more.
  for (int attempt = 0; attempt < 2; ++attempt) {
    try {
      if (context_->rendezvous != nullptr) context_->rendezvous->StartAbort(derived);
      if (cancellation_ != nullptr) cancellation_->StartCancel();
      return;
    } catch (const std::bad_alloc&) {
    }
  }
}

void StepLife::FailNode(const Plan& plan, const Plan::Node& node, const Status& status) noexcept {
  try {
    Fail(NodeError(status, plan.op(node), *node.name));
  } catch (const std::bad_alloc&) {
    Fail(no_memory);
  }
}

void StepLife::FailOverdue(const Status& status) noexcept {
  if (cancellation_ != nullptr && cancellation_->IsCancelled()) {
    FailCancelled();
  } else {
    Fail(status);
  }
}

void StepLife::FailCancelled() noexcept {
  try {
    Fail(Derived(absl::CancelledError("Step was cancelled.")));
  } catch (const std::bad_alloc&) {
    Fail(no_memory_derived);
  }
}

Status StepLife::status() {
  MutexLock lock(&mu_);
  return status_;
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/step_table.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "core/dcheck.h"
#include "core/exceptions.h"
#include "distributed/cluster/kept_status.h"
#include "distributed/worker/peer_error.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

constexpr absl::Duration kSweepPeriod = absl::Seconds(30);
// After which AwaitTaken asks again: what is taken behind an answer is in the next one.
constexpr absl::Duration kAskAgain = absl::Milliseconds(100);

}  // namespace

StepTable::StepTable(Clock* clock, const ServerLimits& limits)
    : clock_(clock),
      max_untaken_(limits.max_untaken_steps),
      max_untaken_bytes_(limits.max_untaken_bytes),
      parked_(std::make_shared<ParkedBytes>(limits.max_parked_bytes)),
      failed_(limits.max_failed_step_bytes),
      next_sweep_(clock->Now() + kSweepPeriod) {}

StepTable::~StepTable() {
  Steps left;
  {
    MutexLock lock(&mu_);
    left.swap(steps_);
  }
  for (const auto& [id, kept] : left) kept.step->StartAbort(StepIsOver(id));
}

std::shared_ptr<StepRendezvous> StepTable::FindOrExpect(int64_t step_id) {
  std::shared_ptr<StepRendezvous> step;
  Status aborted;
  {
    MutexLock lock(&mu_);
    const auto it = steps_.find(step_id);
    if (it != steps_.end()) {
      step = it->second.step;
    } else {
      step = std::make_shared<StepRendezvous>(step_id, weak_from_this(), clock_, parked_);
      if (const Status* const why = failed_.Find(step_id)) {
        aborted = *why;
      } else {
        steps_.emplace(step_id, Kept{step, untaken_.end()});
      }
    }
    if (aborted.ok()) aborted = aborted_;
  }
  if (!aborted.ok()) step->StartAbort(aborted);
  return step;
}

StatusOr<std::shared_ptr<StepRendezvous>> StepTable::Start(
    int64_t step_id, std::shared_ptr<const StepEdges> edges,
    std::shared_ptr<const SessionLife> session, std::shared_ptr<StepLoans> loans,
    FetchTensor fetch) {
  Sweep();
  std::shared_ptr<StepRendezvous> step = FindOrExpect(step_id);
  const Status started = NoExceptions("Step", [&] {
    return step->Start(std::move(edges), std::move(session), std::move(loans), std::move(fetch),
                       clock_->Now());
  });
  if (!started.ok()) {
    // Its waits end with this error; a step that runs already belongs to another call.
    if (!absl::IsAlreadyExists(started)) End(step.get(), started);
    return started;
  }
  return step;
}

void StepTable::Refuse(int64_t step_id, const Status& why) {
  Sweep();  // perhaps nothing ever starts here
  const std::shared_ptr<StepRendezvous> expected = TakeExpected(step_id, why);
  if (expected == nullptr) return;
  expected->DropParked();
  expected->StartAbort(why);
}

std::shared_ptr<StepRendezvous> StepTable::TakeExpected(int64_t step_id, const Status& why) {
  MutexLock lock(&mu_);
  const auto it = steps_.find(step_id);
  if (it != steps_.end() && it->second.step->is_started()) return nullptr;
  RememberFailure(step_id, why);
  return it == steps_.end() ? nullptr : Take(it);
}

// --- What is pushed ------------------------------------------------------------------------------

std::shared_ptr<StepRendezvous> StepTable::Find(int64_t step_id) const {
  MutexLock lock(&mu_);
  const auto it = steps_.find(step_id);
  return it == steps_.end() ? nullptr : it->second.step;
}

void StepTable::TakePushed(int64_t step_id, PushedMessage message) {
  const std::shared_ptr<StepRendezvous> step = FindOrExpect(step_id);
  const Status taken = step->TakePushed(std::move(message));
  if (taken.ok()) return;
  step->StartAbort(taken);
  Refuse(step_id, taken);  // not one that was started meanwhile: that ends by itself
}

void StepTable::PushFailed(int64_t step_id, PushedMessage message) {
  const std::shared_ptr<StepRendezvous> step = Find(step_id);
  if (step == nullptr) return;
  if (step->is_started()) return step->TakePushed(std::move(message)).IgnoreError();
  // A stranger has no tensors of it here.
  if (!step->HasParkedOf(message.task)) return;
  const Status why = Derived(message.error);
  if (const auto expected = TakeExpected(step_id, why)) expected->StartAbort(why);
}

void StepTable::Received(int64_t step_id, absl::string_view task, const Link* link,
                         uint64_t tensors) {
  const std::shared_ptr<StepRendezvous> step = Find(step_id);
  if (step != nullptr) step->Received(task, link, tensors);
}

void StepTable::LinkOpened(const Link* link, AskReceipts ask) {
  MutexLock lock(&mu_);
  open_links_[link] = std::move(ask);
  parked_->set_links(static_cast<int64_t>(open_links_.size()));
}

bool StepTable::IsOpen(const Link* link) const {
  MutexLock lock(&mu_);
  return open_links_.count(link) != 0;
}

void StepTable::LinkLost(absl::string_view task, const Link* link, const Status& status) {
  std::vector<std::shared_ptr<StepRendezvous>> running, over;
  {
    MutexLock lock(&mu_);
    open_links_.erase(link);
    parked_->set_links(static_cast<int64_t>(open_links_.size()));
    for (const auto& [id, kept] : steps_) {
      (kept.untaken == untaken_.end() ? running : over).push_back(kept.step);
    }
  }
  for (const auto& step : running) {
    // First: what waits for tensors of the peer may end by the message.
    const bool awaits_receipt = step->AwaitsReceipt(task, link);
    if (awaits_receipt) step->LoseReceiver(task);
    if (step->is_started() || step->HasParkedOf(task)) {
      PushedMessage lost;
      lost.kind = PushedMessage::Kind::kLost;
      lost.task = std::string(task);
      lost.link = link;
      lost.error = status;
      // No room to keep it: the loss, which passes, is what late comers hear, and not the bound.
      if (!step->TakePushed(std::move(lost)).ok()) {
        const Status why = PushFromError(task, status);
        Refuse(step->step_id(), why);
        step->StartAbort(why);  // one that was started meanwhile
      }
    }
    // Its master would wait for a part that the peer cannot run to its end.
    if (awaits_receipt) step->FailPushes(task, PushToError(task, status));
  }
  for (const auto& step : over) {
    if (step->AwaitsReceipt(task, link)) GiveUp(step->step_id());
  }
}

void StepTable::End(StepRendezvous* step, const Status& status) {
  if (!status.ok()) {
    Sweep();  // perhaps nothing ever starts here
    step->StartAbort(status);
    EndFailed(step);
  } else if (step->EndRun()) {
    AllTaken(step);
  } else {
    EndUntaken(step);
  }
}

void StepTable::EndFailed(StepRendezvous* step) {
  std::shared_ptr<StepRendezvous> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = steps_.find(step->step_id());
  // Its master has cleaned it up, or it had failed before it began.
  if (it == steps_.end() || it->second.step.get() != step) return;
  RememberFailure(step->step_id(), step->aborted());
  dropped = Take(it);
}

void StepTable::EndUntaken(StepRendezvous* step) {
  std::vector<int64_t> too_much;
  {
    MutexLock lock(&mu_);
    const auto it = steps_.find(step->step_id());
    // Its master has cleaned it up, or all of it was taken just now.
    if (it == steps_.end() || it->second.step.get() != step) return;
    const std::shared_ptr<const SessionLife> session = step->session();
    UntakenSum& of_session = untaken_of_[session.get()];
    // A tensor may just be on its way to be taken.
    const int64_t num_bytes = std::max<int64_t>(step->untaken_bytes(), 0);
    untaken_.push_back({step->step_id(), clock_->Now(), session, num_bytes});
    it->second.untaken = std::prev(untaken_.end());
    ++of_session.steps;
    of_session.num_bytes += num_bytes;
    UntakenSum left = of_session;
    for (const Untaken& oldest : untaken_) {
      if (left.steps <= max_untaken_ && (left.num_bytes <= max_untaken_bytes_ || left.steps == 1)) {
        break;
      }
      if (oldest.session != session) continue;
      too_much.push_back(oldest.step_id);
      --left.steps;
      left.num_bytes -= oldest.num_bytes;
    }
  }
  for (const int64_t id : too_much) GiveUp(id);
  GiveUpUnwanted(step);
}

void StepTable::GiveUpUnwanted(StepRendezvous* step) {
  if (step->aborted().ok()) return;
  {
    MutexLock lock(&mu_);
    const auto it = steps_.find(step->step_id());
    if (it == steps_.end() || it->second.step.get() != step) return;
    if (it->second.untaken == untaken_.end()) return;  // it runs: its end finds that it failed
  }
  GiveUp(step->step_id());
}

bool StepTable::AwaitTaken(absl::Time deadline) {
  for (;;) {
    std::map<const Link*, AskReceipts> asks;
    {
      MutexLock lock(&mu_);
      if (!WaitsForTaken()) return true;
      if (clock_->Now() >= deadline) return false;
      for (const Untaken& untaken : untaken_) {
        const auto it = steps_.find(untaken.step_id);
        if (it == steps_.end() || !it->second.step->IsWanted()) continue;
        asks.merge(AsksOf(*it->second.step));
      }
    }
    for (const auto& [link, ask] : asks) ask([] {});
    MutexLock lock(&mu_);
    const absl::Time until = std::min(deadline, clock_->Now() + kAskAgain);
    ++awaiting_taken_;
    while (WaitsForTaken() && clock_->Now() < until) clock_->WaitUntil(&taken_, &mu_, until);
    --awaiting_taken_;
  }
}

std::map<const Link*, StepTable::AskReceipts> StepTable::AsksOf(const StepRendezvous& step) const {
  std::map<const Link*, AskReceipts> asks;
  for (const Link* const link : step.OwingLinks()) {
    const auto it = open_links_.find(link);
    if (it != open_links_.end() && it->second) asks.insert(*it);
  }
  return asks;
}

bool StepTable::WaitsForTaken() const {
  for (const Untaken& untaken : untaken_) {
    const auto it = steps_.find(untaken.step_id);
    if (it != steps_.end() && it->second.step->IsWanted()) return true;
  }
  return false;
}

void StepTable::DropOfEndedSessions() {
  struct Ended {
    std::shared_ptr<StepRendezvous> step;
    Status why;
    std::map<const Link*, AskReceipts> asks;
  };
  std::vector<Ended> ended;
  {
    MutexLock lock(&mu_);
    for (Untaken& untaken : untaken_) {
      if (untaken.is_ending) continue;
      const auto it = steps_.find(untaken.step_id);
      MR_DCHECK(it != steps_.end(), "Take removes a step from both lists");
      const Status why = Derived(it->second.step->EndOfSession());
      if (why.ok()) continue;
      ended.push_back({it->second.step, why, AsksOf(*it->second.step)});
      untaken.is_ending = true;
    }
  }
  struct Question {
    AskReceipts ask;
    std::vector<std::shared_ptr<void>> steps;  // all_have_answered, of each
  };
  std::map<const Link*, Question> questions;
  for (const Ended& of : ended) {
    // At the end of its last user: when the last task that was asked has answered, or its link is
    // lost; at once when none is.
    const std::shared_ptr<void> all_have_answered(
        nullptr, [table = weak_from_this(), step = of.step, why = of.why](void*) {
          const std::shared_ptr<StepTable> kept = table.lock();
          if (kept == nullptr) return;
          NoExceptions("Step", [&]() -> Status {
            kept->DropEnded(step, why);
            return absl::OkStatus();
          }).IgnoreError();
        });
    for (const auto& [link, ask] : of.asks) {
      Question& question = questions[link];
      question.ask = ask;
      question.steps.push_back(all_have_answered);
    }
  }
  for (auto& [link, question] : questions) question.ask([steps = std::move(question.steps)] {});
  LookForTaken();
}

void StepTable::DropEnded(const std::shared_ptr<StepRendezvous>& step, const Status& why) {
  {
    MutexLock lock(&mu_);
    const auto it = steps_.find(step->step_id());
    if (it == steps_.end() || it->second.step != step) return;
    RememberFailure(it->first, why);
    Take(it);
  }
  // First: what is given back is not to be taken by others as well.
  step->StartAbort(why);
  if (const std::shared_ptr<StepLoans> loans = step->loans()) loans->GiveBack();
  LookForTaken();
}

void StepTable::LookForTaken() {
  MutexLock lock(&mu_);
  if (awaiting_taken_ > 0) taken_.SignalAll();
}

void StepTable::Cleanup(int64_t step_id, const Status& status) {
  const std::shared_ptr<StepLoans> loans = Forget(step_id, status);
  if (loans != nullptr) loans->Settle();
}

std::shared_ptr<StepLoans> StepTable::Forget(int64_t step_id, const Status& status) {
  std::shared_ptr<StepRendezvous> step;
  {
    MutexLock lock(&mu_);
    failed_.Erase(step_id);
    const auto it = steps_.find(step_id);
    if (it == steps_.end()) return nullptr;
    step = Take(it);
  }
  step->StartAbort(status);
  std::shared_ptr<StepLoans> loans = step->loans();
  LookForTaken();
  return loans;
}

void StepTable::GiveUp(int64_t step_id) {
  const std::shared_ptr<StepLoans> loans = Forget(step_id, StepIsOver(step_id));
  if (loans != nullptr) loans->GiveBack();
}

std::shared_ptr<StepRendezvous> StepTable::Take(Steps::iterator it) {
  std::shared_ptr<StepRendezvous> step = std::move(it->second.step);
  if (it->second.untaken != untaken_.end()) {
    const auto of_session = untaken_of_.find(it->second.untaken->session.get());
    MR_DCHECK(of_session != untaken_of_.end() && of_session->second.steps > 0,
              "EndUntaken counts what it lists");
    of_session->second.num_bytes -= it->second.untaken->num_bytes;
    if (--of_session->second.steps == 0) untaken_of_.erase(of_session);
    untaken_.erase(it->second.untaken);
  }
  steps_.erase(it);
  return step;
}

void StepTable::RememberFailure(int64_t step_id, const Status& why) {
  if (failed_.Find(step_id) != nullptr) return;
  const Status kept = KeptStatus(why);
  failed_.Put(step_id, kept, KeptBytes(kept), clock_->Now());
}

void StepTable::AbortAll(const Status& status) {
  std::vector<std::shared_ptr<StepRendezvous>> all;
  {
    MutexLock lock(&mu_);
    aborted_ = status;
    for (const auto& [id, kept] : steps_) all.push_back(kept.step);
  }
  for (const auto& step : all) step->StartAbort(status);
}

void StepTable::Sweep() {
  const absl::Time now = clock_->Now();
  std::vector<int64_t> expired;
  std::vector<std::shared_ptr<StepRendezvous>> never_begun;  // destroyed without the lock
  {
    MutexLock lock(&mu_);
    if (now < next_sweep_) return;
    next_sweep_ = now + kSweepPeriod;
    failed_.DropBefore(now - kEndedExpiry);
    for (const Untaken& untaken : untaken_) {
      if (now - untaken.at <= kEndedExpiry) break;
      expired.push_back(untaken.step_id);
    }
    for (const auto& [id, kept] : steps_) {
      if (kept.step->HasParkedSince(now - kEndedExpiry)) never_begun.push_back(kept.step);
    }
  }
  for (const int64_t id : expired) GiveUp(id);
  for (const auto& step : never_begun) {
    const Status why = StepIsOver(step->step_id());
    if (const auto expected = TakeExpected(step->step_id(), why)) expected->StartAbort(why);
  }
}

void StepTable::AllTaken(StepRendezvous* step) {
  std::shared_ptr<StepRendezvous> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = steps_.find(step->step_id());
  if (it == steps_.end() || it->second.step.get() != step) return;
  dropped = Take(it);
  if (awaiting_taken_ > 0) taken_.SignalAll();
}

void StepTable::WaitGivenUp(StepRendezvous* step) {
  std::shared_ptr<StepRendezvous> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = steps_.find(step->step_id());
  if (it == steps_.end() || it->second.step.get() != step || !step->EndUnused()) return;
  dropped = Take(it);
}

int64_t StepTable::num_steps() const {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(steps_.size() + failed_.size());
}

int64_t StepTable::failed_bytes() const {
  MutexLock lock(&mu_);
  return failed_.bytes();
}

}  // namespace millrace

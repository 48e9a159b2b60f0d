// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/step_table.h"

#include <utility>
#include <vector>

#include "core/exceptions.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

constexpr absl::Duration kSweepPeriod = absl::Seconds(30);

}  // namespace

StepTable::StepTable(Clock* clock) : clock_(clock), next_sweep_(clock->Now() + kSweepPeriod) {}

StepTable::~StepTable() {
  std::unordered_map<int64_t, std::shared_ptr<StepRendezvous>> left;
  {
    MutexLock lock(&mu_);
    left.swap(steps_);
  }
  for (const auto& [id, step] : left) step->StartAbort(StepIsOver(id));
}

std::shared_ptr<StepRendezvous> StepTable::FindOrExpect(int64_t step_id) {
  std::shared_ptr<StepRendezvous> step;
  Status aborted;
  {
    MutexLock lock(&mu_);
    const auto it = steps_.find(step_id);
    if (it != steps_.end()) {
      step = it->second;
    } else {
      step = std::make_shared<StepRendezvous>(step_id, weak_from_this(), clock_);
      steps_.emplace(step_id, step);
    }
    aborted = aborted_;
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

void StepTable::End(StepRendezvous* step, const Status& status) {
  if (!status.ok()) {
    Sweep();  // perhaps nothing ever starts here
    step->StartAbort(status);
  } else if (step->EndRun()) {
    return AllPulled(step);
  }
  // Stays until everything was fetched, or (after an error) for those who come too late.
  MutexLock lock(&mu_);
  ended_.push_back({step->step_id(), clock_->Now(), status.ok()});
}

bool StepTable::AwaitPulls(absl::Time deadline) {
  MutexLock lock(&mu_);
  ++awaiting_pulls_;
  while (WaitsForPulls() && clock_->Now() < deadline) {
    clock_->WaitUntil(&pulled_, &mu_, deadline);
  }
  --awaiting_pulls_;
  return !WaitsForPulls();
}

bool StepTable::WaitsForPulls() const {
  for (const Ended& ended : ended_) {
    if (!ended.well) continue;
    const auto it = steps_.find(ended.step_id);
    if (it != steps_.end() && it->second->IsWanted()) return true;
  }
  return false;
}

void StepTable::DropOfEndedSessions() {
  std::vector<std::pair<std::shared_ptr<StepRendezvous>, Status>> dropped;
  std::vector<std::shared_ptr<StepLoans>> loans;
  {
    MutexLock lock(&mu_);
    for (const Ended& ended : ended_) {
      if (!ended.well) continue;
      const auto it = steps_.find(ended.step_id);
      if (it == steps_.end()) continue;
      const Status why = it->second->EndOfSession();
      if (why.ok()) continue;
      dropped.emplace_back(it->second, Derived(why));
      if (auto of_step = it->second->loans()) loans.push_back(std::move(of_step));
    }
  }
  // First: what is given back is not to be pulled as well.
  for (const auto& [step, why] : dropped) step->StartAbort(why);
  for (const auto& loan : loans) loan->GiveBack();
  LookForPulls();
}

void StepTable::LookForPulls() {
  MutexLock lock(&mu_);
  if (awaiting_pulls_ > 0) pulled_.SignalAll();
}

void StepTable::Cleanup(int64_t step_id, const Status& status) {
  const std::shared_ptr<StepLoans> loans = Forget(step_id, status);
  if (loans != nullptr) loans->Settle();
}

std::shared_ptr<StepLoans> StepTable::Forget(int64_t step_id, const Status& status) {
  std::shared_ptr<StepRendezvous> step;
  {
    MutexLock lock(&mu_);
    const auto it = steps_.find(step_id);
    if (it == steps_.end()) return nullptr;
    step = std::move(it->second);
    steps_.erase(it);
  }
  step->StartAbort(status);
  std::shared_ptr<StepLoans> loans = step->loans();
  LookForPulls();
  return loans;
}

void StepTable::AbortAll(const Status& status) {
  std::vector<std::shared_ptr<StepRendezvous>> all;
  {
    MutexLock lock(&mu_);
    aborted_ = status;
    for (const auto& [id, step] : steps_) all.push_back(step);
  }
  for (const auto& step : all) step->StartAbort(status);
}

void StepTable::Sweep() {
  const absl::Time now = clock_->Now();
  std::vector<int64_t> expired;
  {
    MutexLock lock(&mu_);
    if (now < next_sweep_ && ended_.size() <= kMaxEnded) return;
    next_sweep_ = now + kSweepPeriod;
    while (!ended_.empty() &&
           (now - ended_.front().at > kEndedExpiry || ended_.size() > kMaxEnded)) {
      expired.push_back(ended_.front().step_id);
      ended_.pop_front();
    }
  }
  for (const int64_t id : expired) {
    const std::shared_ptr<StepLoans> loans = Forget(id, StepIsOver(id));
    if (loans != nullptr) loans->GiveBack();
  }
}

void StepTable::AllPulled(StepRendezvous* step) {
  std::shared_ptr<StepRendezvous> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = steps_.find(step->step_id());
  if (it == steps_.end() || it->second.get() != step) return;
  dropped = std::move(it->second);
  steps_.erase(it);
  if (awaiting_pulls_ > 0) pulled_.SignalAll();
}

void StepTable::WaitGivenUp(StepRendezvous* step) {
  std::shared_ptr<StepRendezvous> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = steps_.find(step->step_id());
  if (it == steps_.end() || it->second.get() != step || !step->EndUnused()) return;
  dropped = std::move(it->second);
  steps_.erase(it);
}

int64_t StepTable::num_steps() const {
  MutexLock lock(&mu_);
  return static_cast<int64_t>(steps_.size());
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/coordinator.h"

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "core/bounded_call.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/mutex.h"

namespace millrace {

struct Coordinator::State {
  explicit State(Clock* c) : clock(c) {}

  struct Thread {
    std::string name;
    std::unique_ptr<BoundedCall> call;
  };

  Clock* const clock;
  Mutex mu;
  CondVar changed;  // a stop, or the end of a thread
  // Written under mu, and read without it by loops that ask in each step: release, acquire.
  std::atomic<bool> stop = false;
  bool joined ABSL_GUARDED_BY(mu) = false;
  Status first_error ABSL_GUARDED_BY(mu);
  int running ABSL_GUARDED_BY(mu) = 0;
  std::vector<Thread> threads ABSL_GUARDED_BY(mu);
};

Coordinator::Coordinator(Clock* clock) : state_(std::make_shared<State>(clock)) {}
Coordinator::Coordinator(std::shared_ptr<State> state) : state_(std::move(state)) {}

void Coordinator::RequestStop(const Status& reason) const {
  const bool is_error = !reason.ok() && !absl::IsOutOfRange(reason);
  MutexLock lock(&state_->mu);
  if (is_error && state_->joined) {
    LogWarning("Coordinator: an error after the end: ", reason.message());
    return;
  }
  if (is_error) state_->first_error.Update(reason);
  state_->stop = true;
  state_->changed.SignalAll();
}

bool Coordinator::ShouldStop() const { return state_->stop.load(std::memory_order_acquire); }

bool Coordinator::WaitForStop(absl::Time deadline) const {
  MutexLock lock(&state_->mu);
  while (!state_->stop && state_->clock->Now() < deadline) {
    state_->clock->WaitUntil(&state_->changed, &state_->mu, deadline);
  }
  return state_->stop;
}

Status Coordinator::error() const {
  MutexLock lock(&state_->mu);
  return state_->first_error;
}

Status Coordinator::ClearStop() const {
  MutexLock lock(&state_->mu);
  if (state_->running > 0) {
    return FailedPrecondition("Coordinator: a stop is forgotten when all threads have ended, got ",
                              state_->running, " that run; Join first");
  }
  state_->stop = state_->joined = false;
  state_->first_error = absl::OkStatus();
  state_->threads.clear();
  return absl::OkStatus();
}

void Coordinator::Start(std::string name, std::function<Status(const Coordinator&)> body) const {
  MutexLock lock(&state_->mu);
  ++state_->running;
  auto call = std::make_unique<BoundedCall>(
      state_->clock, [mine = Coordinator(state_), body = std::move(body)]() mutable {
        const Status status = body(mine);
        body = nullptr;
        if (!status.ok()) mine.RequestStop(status);
        MutexLock lock(&mine.state_->mu);
        MR_DCHECK(mine.state_->running > 0, "Start counts a thread before it begins");
        --mine.state_->running;
        mine.state_->changed.SignalAll();
      });
  state_->threads.push_back({std::move(name), std::move(call)});
}

void Coordinator::StartLooper(std::string name, absl::Duration period,
                              std::function<Status()> tick) const {
  Start(std::move(name),
        [period, tick = std::move(tick), clock = state_->clock](const Coordinator& coordinator) {
          absl::Time next = clock->Now();
          while (!coordinator.WaitForStop(next)) {
            MR_RETURN_IF_ERROR(tick());
            const absl::Time now = clock->Now();
            next += period;
            if (next <= now) next = now + period;
          }
          return absl::OkStatus();
        });
}

Status Coordinator::Join(const ThreadJoinOptions& options) const {
  std::vector<State::Thread> threads;
  {
    MutexLock lock(&state_->mu);
    while (!state_->stop && state_->running > 0) state_->changed.Wait(&state_->mu);
    threads.swap(state_->threads);
  }
  const absl::Time deadline = state_->clock->Now() + options.stop_grace;
  std::vector<std::string> live;
  for (const State::Thread& thread : threads) {
    if (!thread.call->WaitUntil(deadline)) live.push_back(thread.name);
  }
  threads.clear();  // leaves behind threads that have not ended
  MutexLock lock(&state_->mu);
  state_->joined = true;
  if (live.empty()) return state_->first_error;
  const std::string text = absl::StrCat(
      "Coordinator: threads must end within ", absl::FormatDuration(options.stop_grace),
      " of a stop, got threads still running: ", absl::StrJoin(live, ", "));
  if (options.ignore_live_threads || !state_->first_error.ok()) {
    LogWarning(text);
    return state_->first_error;
  }
  return absl::DeadlineExceededError(text);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/job_signals.h"

#include <signal.h>

#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/logging.h"

namespace millrace {
namespace {

// How long the step that runs may take to end; where checkpoints are kept, which part of the grace.
constexpr absl::Duration kStepTime = absl::Seconds(1);
constexpr int kStepPart = 2;

}  // namespace

void JobSignals::Watch() {
  MutexLock lock(&mu_);
  if (watch_ != nullptr || ending_) return;
  StatusOr<std::unique_ptr<SignalWatch>> started =
      SignalWatch::Start([this](int signal) { OnSignal(signal); });
  if (started.ok()) {
    watch_ = *std::move(started);
  } else {
    LogWarning(options_.speaker,
               ": signals end the program without a last checkpoint: ", started.status().message());
  }
}

int JobSignals::Note() {
  MutexLock lock(&mu_);
  const int signal = watch_ != nullptr ? watch_->signal() : 0;
  if (signal != 0) NoteLocked(signal);
  return noted_ ? noted_->signal : 0;
}

void JobSignals::NoteLocked(int signal) {
  if (noted_) return;
  noted_ = {.signal = signal, .at = options_.clock->Now()};
  const char* const name = signal == SIGINT ? "SIGINT" : "SIGTERM";
  LogInfo(options_.speaker, ": got ", name, ", ends with the step that runs",
          options_.keeps_checkpoints() ? " and a last checkpoint" : "",
          "; another one ends the program at once");
  options_.request_leave(WithExitCode(
      absl::CancelledError(absl::StrCat(options_.speaker, ": ended by ", name)), 128 + signal));
}

void JobSignals::OnSignal(int signal) {
  absl::Duration time;
  {
    MutexLock lock(&mu_);
    if (ending_) return;
    NoteLocked(signal);
    time = options_.keeps_checkpoints() ? options_.grace / kStepPart : kStepTime;
    const absl::Time until = noted_->at + time;
    while (!ending_ && options_.clock->Now() < until) {
      options_.clock->WaitUntil(&changed_, &mu_, until);
    }
    if (ending_) return;
  }
  options_.end_step(time);
}

void JobSignals::EndBegins() {
  MutexLock lock(&mu_);
  ending_ = true;
  changed_.SignalAll();
}

void JobSignals::Unwatch() {
  std::unique_ptr<SignalWatch> watch;  // which may be in end_step, and is waited for without a lock
  MutexLock lock(&mu_);
  watch = std::move(watch_);
}

std::optional<JobSignals::Noted> JobSignals::noted() const {
  MutexLock lock(&mu_);
  return noted_;
}

}  // namespace millrace

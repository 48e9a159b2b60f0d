// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/wait_watch.h"

#include <system_error>
#include <utility>

#include "core/exceptions.h"
#include "core/logging.h"
#include "core/status.h"
#include "distributed/master/task_calls.h"

namespace millrace {
namespace {

// Of one look: a hundred steps that wait for one task say the same.
constexpr size_t kMaxLines = 5;

}  // namespace

WaitWatch::WaitWatch(Clock* clock, Waits waits) : clock_(clock), waits_(std::move(waits)) {}
WaitWatch::~WaitWatch() { Stop(); }

void WaitWatch::StartThread() {
  MutexLock lock(&mu_);
  if (stopped_ || started_.exchange(true, std::memory_order_relaxed)) return;
  try {
    thread_ = std::thread([this] { Watch(); });
  } catch (const std::system_error&) {
    LogWarning("The system gives no thread that says for whom steps wait");
  }
}

void WaitWatch::Stop() {
  std::thread thread;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

void WaitWatch::Watch() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      const absl::Time next = clock_->Now() + kWaitLogPeriod;
      while (!stopped_ && clock_->Now() < next) clock_->WaitUntil(&changed_, &mu_, next);
      if (stopped_) return;
    }
    // What cannot be told for want of memory is left out of this look.
    NoExceptions("WaitWatch", [&] {
      const std::vector<std::string> lines = waits_(clock_->Now());
      for (size_t i = 0; i < lines.size() && i < kMaxLines; ++i) LogInfo(lines[i]);
      if (lines.size() > kMaxLines) LogInfo("and ", lines.size() - kMaxLines, " more steps wait");
      return absl::OkStatus();
    }).IgnoreError();
  }
}

}  // namespace millrace

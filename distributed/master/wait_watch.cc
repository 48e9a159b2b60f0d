// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/wait_watch.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/status.h"
#include "distributed/master/task_calls.h"

namespace millrace {
namespace {

// In 10 s: a hundred steps that wait for one task say the same.
constexpr size_t kMaxLines = 5;
// Between two looks, however many steps begin one after the other.
constexpr absl::Duration kLeastPause = absl::Seconds(1);

}  // namespace

WaitWatch::WaitWatch(Clock* clock, Waits waits) : clock_(clock), waits_(std::move(waits)) {}
WaitWatch::~WaitWatch() { Stop(); }

void WaitWatch::StartThread() {
  MutexLock lock(&mu_);
  if (stopped_ || started_.exchange(true, std::memory_order_relaxed)) return;
  try {
    thread_ = std::thread([this] { Watch(); });
  } catch (const std::system_error&) {
    LogWarning("The system gives no thread that says what steps wait for");
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

std::string WaitWatch::Line(const Wait& wait, absl::Time now) {
  const std::string what = wait.what();
  if (what.empty()) return what;
  return absl::StrCat(what, " since ",
                      absl::FormatDuration(absl::Trunc(now - wait.since, absl::Milliseconds(1))));
}

void WaitWatch::Watch() {
  looked_ = clock_->Now();
  absl::Time next = looked_ + kWaitLogPeriod;
  for (;;) {
    {
      MutexLock lock(&mu_);
      while (!stopped_ && clock_->Now() < next) clock_->WaitUntil(&changed_, &mu_, next);
      if (stopped_) return;
    }
    const absl::Time now = clock_->Now();
    next = now + kWaitLogPeriod;
    // What cannot be told for want of memory is left out of this look.
    NoExceptions("WaitWatch", [&] {
      next = Look(now);
      return absl::OkStatus();
    }).IgnoreError();
    looked_ = now;
  }
}

absl::Time WaitWatch::Look(absl::Time now) {
  const bool is_round = now >= next_round_;
  if (is_round) {
    next_round_ = absl::InfiniteFuture();
    said_ = 0;
  }
  const bool begins = said_ == 0;
  absl::Time next = now + kWaitLogPeriod;
  size_t more = 0;
  for (const Wait& wait : waits_()) {
    const absl::Time due = wait.since + kWaitLogPeriod;
    if (due > now) {
      next = std::min(next, due);
      continue;
    }
    if (!is_round && due <= looked_) continue;  // the next round's
    const std::string line = Line(wait, now);
    if (line.empty()) continue;
    next_round_ = std::min(next_round_, now + kWaitLogPeriod);
    MR_DCHECK(said_ <= kMaxLines, "a round begins with none said and stops at the bound");
    if (said_ == kMaxLines) {
      ++more;
    } else {
      ++said_;
      LogInfo(line);
    }
  }
  if (begins && more > 0) LogInfo("and ", more, " more steps wait");
  return std::max(std::min(next, next_round_), now + kLeastPause);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "net/call_threads.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// What one thread does; on its stack.
struct Self {
  std::shared_ptr<LongCall> call;  // that it runs; null: none
  absl::Time since;
  bool gave_up = false;  // polling, since it last began to
};

thread_local Self* this_thread = nullptr;

}  // namespace

struct CallThreads::State : std::enable_shared_from_this<CallThreads::State> {
  // Calls of one urgency, by its number.
  static constexpr int kLanes = 3;
  struct Lane {
    int max = 0;
    int running = 0;
    std::deque<std::shared_ptr<LongCall>> waiting;
  };

  explicit State(Options o) : options(std::move(o)), min_polling((options.num_pollers + 1) / 2) {
    lanes[0].max = std::max(options.max_normal, 1);
    lanes[1].max = std::max(options.max_urgent, 1);
    lanes[2].max = std::numeric_limits<int>::max();
  }

  bool StartThread();
  void Main();
  bool MayPollAgain();

  const Options options;
  const int min_polling;
  mutable Mutex mu;
  CondVar unparked, ended;
  // Threads that poll, or are on their way to it.
  int polling ABSL_GUARDED_BY(mu) = 0;
  int parked ABSL_GUARDED_BY(mu) = 0;
  int unpark ABSL_GUARDED_BY(mu) = 0;  // of those, as many are to poll, and counted there
  int threads ABSL_GUARDED_BY(mu) = 0;
  bool over ABSL_GUARDED_BY(mu) = false;
  Lane lanes[kLanes] ABSL_GUARDED_BY(mu);
  std::set<Self*> selves ABSL_GUARDED_BY(mu);
};

// Of a thread that is counted already, as one that polls. False when the system gives none.
bool CallThreads::State::StartThread() {
  try {
    std::thread([self = shared_from_this()] { self->Main(); }).detach();
    return true;
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  MutexLock lock(&mu);
  MR_DCHECK(polling > 0 && threads > 0, "a thread is counted before the system is asked for it");
  --polling;
  --threads;
  ended.SignalAll();
  return false;
}

void CallThreads::State::Main() {
  Self self;
  this_thread = &self;
  {
    MutexLock lock(&mu);
    try {
      selves.insert(&self);
    } catch (const std::bad_alloc&) {
      // What it runs is not named, then.
    }
  }
  for (;;) {
    const bool more = options.poll_one();
    if (self.gave_up) {
      self.gave_up = false;
      if (MayPollAgain()) continue;
      break;
    }
    if (more) continue;
    MutexLock lock(&mu);
    MR_DCHECK(polling > 0, "a thread that has not given up is counted among those that poll");
    --polling;
    over = true;
    unparked.SignalAll();
    ended.SignalAll();
    break;
  }
  this_thread = nullptr;
  MutexLock lock(&mu);
  selves.erase(&self);
  --threads;
  ended.SignalAll();
}

// Of a thread that has run a call. Parks it while enough others poll.
bool CallThreads::State::MayPollAgain() {
  MutexLock lock(&mu);
  if (over) return false;
  if (polling < options.num_pollers) {
    ++polling;
    return true;
  }
  ++parked;
  const absl::Time until = options.clock->Now() + options.idle;
  while (unpark == 0 && !over && options.clock->Now() < until) {
    options.clock->WaitUntil(&unparked, &mu, until);
  }
  --parked;
  if (unpark == 0) return false;
  --unpark;
  MR_DCHECK(unpark <= parked, "only parked threads are asked to poll, each at most once");
  return true;
}

StatusOr<std::unique_ptr<CallThreads>> CallThreads::Start(Options options) {
  options.num_pollers = std::max(options.num_pollers, 1);
  const int wanted = options.num_pollers;
  auto state = std::make_shared<State>(std::move(options));
  int started = 0;
  {
    MutexLock lock(&state->mu);
    state->polling = wanted;
    state->threads = wanted;
  }
  for (int i = 0; i < wanted; ++i) started += state->StartThread() ? 1 : 0;
  if (started == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat(state->options.owner, ": the system must give one thread, got none"));
  }
  return std::unique_ptr<CallThreads>(new CallThreads(std::move(state)));
}

CallThreads::~CallThreads() { Shutdown(absl::InfinitePast()); }

void CallThreads::Run(std::shared_ptr<LongCall> call, Urgency urgency) {
  State& state = *state_;
  Self* const self = this_thread;
  MR_DCHECK(self != nullptr && !self->gave_up,
            "Run is the last thing that a thread does in poll_one: it still polls");
  const int lane = static_cast<int>(urgency);
  bool needs_thread = false;
  {
    MutexLock lock(&state.mu);
    if (state.lanes[lane].running >= state.lanes[lane].max) {
      state.lanes[lane].waiting.push_back(std::move(call));
      return;
    }
    if (state.polling <= state.min_polling) {
      ++state.polling;
      if (state.parked > state.unpark) {
        ++state.unpark;
        state.unparked.Signal();
      } else {
        ++state.threads;
        needs_thread = true;
      }
    }
    ++state.lanes[lane].running;
    --state.polling;
  }
  self->gave_up = true;
  if (needs_thread && !state.StartThread()) {
    MutexLock lock(&state.mu);
    if (state.polling == 0) {
      // This is the last one that polls. Another one can take the call later, if any runs one.
      ++state.polling;
      self->gave_up = false;
      if (state.lanes[lane].running > 1) {
        --state.lanes[lane].running;
        state.lanes[lane].waiting.push_back(std::move(call));
        return;
      }
    }
  }
  for (;;) {
    {
      MutexLock lock(&state.mu);
      self->call = call;
      self->since = state.options.clock->Now();
    }
    call->RunCall();
    const std::shared_ptr<LongCall> over = std::move(call);  // goes without the lock
    MutexLock lock(&state.mu);
    self->call = nullptr;
    if (state.lanes[lane].waiting.empty() || state.over) {
      --state.lanes[lane].running;
      return;
    }
    call = std::move(state.lanes[lane].waiting.front());
    state.lanes[lane].waiting.pop_front();
  }
}

std::vector<std::string> CallThreads::Shutdown(absl::Time deadline) {
  State& state = *state_;
  std::deque<std::shared_ptr<LongCall>> dropped[State::kLanes];
  std::vector<std::string> left;
  MutexLock lock(&state.mu);
  for (int i = 0; i < State::kLanes; ++i) dropped[i].swap(state.lanes[i].waiting);
  // Who polls hears of the end: it is waited for.
  for (;;) {
    const absl::Time until = state.polling > 0 ? absl::InfiniteFuture() : deadline;
    if (state.threads == 0 || state.options.clock->Now() >= until) break;
    state.options.clock->WaitUntil(&state.ended, &state.mu, until);
  }
  if (state.threads == 0) return left;
  const absl::Time now = state.options.clock->Now();
  for (const Self* const self : state.selves) {
    if (self->call == nullptr) continue;
    left.push_back(
        absl::StrCat(self->call->call_name(), " since ", absl::FormatDuration(now - self->since)));
  }
  return left;
}

int CallThreads::num_threads() const {
  MutexLock lock(&state_->mu);
  return state_->threads;
}

int CallThreads::num_waiting() const {
  MutexLock lock(&state_->mu);
  size_t waiting = 0;
  for (const State::Lane& lane : state_->lanes) waiting += lane.waiting.size();
  return static_cast<int>(waiting);
}

}  // namespace millrace

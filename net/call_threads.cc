// SPDX-License-Identifier: Apache-2.0
#include "net/call_threads.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/before_wait.h"
#include "core/dcheck.h"
#include "core/mutex.h"

namespace millrace {
namespace {

// How long a visit may keep the place of a thread that polls without saying that it will be long.
constexpr absl::Duration kPatience = absl::Milliseconds(2);

// What one thread does; on its stack.
struct Self {
  std::shared_ptr<LongCall> call;  // that it runs; null: none
  absl::Time since;
  bool is_listed = false;  // in `selves`
  bool keeps_place = false;
  uint64_t place = 0;    // its number, of all that were kept
  bool gave_up = false;  // polling, since it last began to; its own to look at
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

  bool StartThread(bool polls);
  void Main(bool polls);
  bool MayPollAgain();
  bool Park() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  int num_free() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return parked - unpark - (watch == Watch::kWanted ? 1 : 0);
  }
  bool CallThread() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Keeping a place.
  bool KeepPlace(Self* self) ABSL_LOCKS_EXCLUDED(mu);
  void GiveUpPlace(Self* self) noexcept ABSL_LOCKS_EXCLUDED(mu);
  bool TakePlace(uint64_t kept_before) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  const Options options;
  const int min_polling;
  mutable Mutex mu;
  CondVar unparked, ended;
  // Threads that poll, are on their way to it, or keep their place.
  int polling ABSL_GUARDED_BY(mu) = 0;
  int keeping ABSL_GUARDED_BY(mu) = 0;           // of these, threads that run a visit meanwhile
  uint64_t places_kept ABSL_GUARDED_BY(mu) = 0;  // so far
  // The parked thread that looks after visits that keep a place.
  enum class Watch { kNone, kWanted, kOn };
  Watch watch ABSL_GUARDED_BY(mu) = Watch::kNone;
  int parked ABSL_GUARDED_BY(mu) = 0;
  int unpark ABSL_GUARDED_BY(mu) = 0;  // of those, as many are to poll, and counted there
  int threads ABSL_GUARDED_BY(mu) = 0;
  bool over ABSL_GUARDED_BY(mu) = false;
  Lane lanes[kLanes] ABSL_GUARDED_BY(mu);
  std::set<Self*> selves ABSL_GUARDED_BY(mu);
};

// Of a thread that is counted already, as one that polls if it is to. False when the system gives
// none.
bool CallThreads::State::StartThread(bool polls) {
  try {
    std::thread([self = shared_from_this(), polls] { self->Main(polls); }).detach();
    return true;
  } catch (const std::system_error&) {
  } catch (const std::bad_alloc&) {
  }
  MutexLock lock(&mu);
  MR_DCHECK(threads > 0 && (!polls || polling > 0),
            "a thread is counted before the system is asked for it");
  if (polls) --polling;
  --threads;
  ended.SignalAll();
  return false;
}

void CallThreads::State::Main(bool polls) {
  Self self;
  this_thread = &self;
  {
    MutexLock lock(&mu);
    try {
      self.is_listed = selves.insert(&self).second;
    } catch (const std::bad_alloc&) {
      // What it runs is not named, then.
    }
    if (!polls) polls = Park();
  }
  while (polls) {
    const bool more = options.poll_one();
    if (self.gave_up) {
      self.gave_up = false;
      polls = MayPollAgain();
      continue;
    }
    if (more) continue;
    MutexLock lock(&mu);
    MR_DCHECK(polling > 0, "a thread that has not given up is counted among those that poll");
    --polling;
    over = true;
    // Shutdown does not wait for visits without an end.
    while (TakePlace(places_kept)) --polling;
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
  return Park();
}

// Until the thread is to poll, and is counted there; false when it is to end. A parked thread may
// be the watch meanwhile.
bool CallThreads::State::Park() {
  ++parked;
  bool is_watch = false;
  uint64_t seen = 0;
  absl::Time until = options.clock->Now() + options.idle;
  while (unpark == 0 && !over) {
    if (watch == Watch::kWanted) {
      watch = Watch::kOn;
      is_watch = true;
      seen = places_kept;
      until = options.clock->Now() + kPatience;
    }
    const absl::Time now = options.clock->Now();
    // The clock may have been set back.
    if (is_watch) until = std::min(until, now + kPatience);
    if (now < until) {
      options.clock->WaitUntil(&unparked, &mu, until);
      continue;
    }
    if (!is_watch) break;
    // Visits that go on since then have had their time.
    if (TakePlace(seen)) {
      ++unpark;
      break;
    }
    is_watch = places_kept != seen;
    seen = places_kept;
    if (!is_watch) watch = Watch::kNone;
    until = options.clock->Now() + (is_watch ? kPatience : options.idle);
  }
  if (is_watch) watch = Watch::kNone;
  --parked;
  if (unpark == 0) return false;
  --unpark;
  MR_DCHECK(unpark <= parked, "only parked threads are asked to poll, each at most once");
  return true;
}

// One more thread polls, and is counted. True: it must be started.
bool CallThreads::State::CallThread() {
  ++polling;
  if (num_free() > 0) {
    ++unpark;
    unparked.Signal();
    return false;
  }
  ++threads;
  return true;
}

// --- Keeping a place
//
// Most visits last some microseconds, and to wake a thread that polls meanwhile costs as much as
// they do. So the thread of a visit is still counted among those that poll, until the visit says
// that it waits or works for long (core/before_wait.h), or until the watch finds it there a second
// time. The watch is a parked thread that looks every kPatience while visits come, so it costs
// steps that follow each other nothing that counts.

// False when nobody would look after it.
bool CallThreads::State::KeepPlace(Self* self) {
  bool needs_thread = false;
  {
    MutexLock lock(&mu);
    if (over || !self->is_listed || polling > min_polling) return false;
    if (watch == Watch::kNone) {
      needs_thread = num_free() == 0;
      watch = Watch::kWanted;
      if (needs_thread) {
        ++threads;
      } else {
        unparked.Signal();
      }
    }
    self->keeps_place = true;
    self->place = ++places_kept;
    ++keeping;
  }
  if (!needs_thread || StartThread(/*polls=*/false)) return true;
  MutexLock lock(&mu);
  // Nobody has looked meanwhile, or another parked thread does.
  if (watch == Watch::kWanted) watch = Watch::kNone;
  if (watch == Watch::kOn || !self->keeps_place) return true;
  self->keeps_place = false;
  --keeping;
  return false;
}

// Another thread polls in its place, if it still has it.
void CallThreads::State::GiveUpPlace(Self* self) noexcept {
  bool needs_thread;
  {
    MutexLock lock(&mu);
    if (!self->keeps_place) return;
    self->keeps_place = false;
    --keeping;
    --polling;
    needs_thread = polling < min_polling && CallThread();
  }
  if (!needs_thread || StartThread(/*polls=*/true)) return;
  MutexLock lock(&mu);
  if (polling > 0 || over) return;
  // The last one. Steps wait for this visit, so it goes on; then its thread polls.
  ++polling;
  self->keeps_place = true;
  ++keeping;
}

// Of one of the visits that have kept it since then, if there is one.
bool CallThreads::State::TakePlace(uint64_t kept_before) {
  if (keeping == 0) return false;
  for (Self* const self : selves) {
    if (!self->keeps_place || self->place > kept_before) continue;
    self->keeps_place = false;
    --keeping;
    return true;
  }
  return false;
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
  for (int i = 0; i < wanted; ++i) started += state->StartThread(/*polls=*/true) ? 1 : 0;
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
  if (urgency == Urgency::kVisit && state.KeepPlace(self)) return RunInPlace(std::move(call));
  const int lane = static_cast<int>(urgency);
  bool needs_thread = false;
  {
    MutexLock lock(&state.mu);
    if (state.lanes[lane].running >= state.lanes[lane].max) {
      state.lanes[lane].waiting.push_back(std::move(call));
      return;
    }
    if (state.polling <= state.min_polling) needs_thread = state.CallThread();
    ++state.lanes[lane].running;
    --state.polling;
  }
  self->gave_up = true;
  if (needs_thread && !state.StartThread(/*polls=*/true)) {
    MutexLock lock(&state.mu);
    if (state.polling == 0 && !state.over) {
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

void CallThreads::RunInPlace(std::shared_ptr<LongCall> call) {
  class Place : private BeforeWait {
   public:
    explicit Place(State* state) : state_(state) {}

   private:
    void Do() noexcept override {
      if (!std::exchange(given_up_, true)) state_->GiveUpPlace(this_thread);
    }
    State* const state_;
    bool given_up_ = false;
  };
  State& state = *state_;
  Self* const self = this_thread;
  {
    MutexLock lock(&state.mu);
    self->call = call;
    self->since = state.options.clock->Now();
  }
  {
    const Place place(&state);
    call->RunCall();
  }
  MutexLock lock(&state.mu);
  self->call = nullptr;
  self->gave_up = !self->keeps_place;
  if (!self->keeps_place) return;
  self->keeps_place = false;
  --state.keeping;
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

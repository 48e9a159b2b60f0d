// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/simulation.h"

#include <linux/futex.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace millrace {
namespace {

// How long, on the machine's clock, a thread may take to come to its next wait.
constexpr absl::Duration kRealPatience = absl::Seconds(120);
// How long a thread that has ended, or one that stays, is waited for.
constexpr absl::Duration kLastMoment = absl::Seconds(5);
// Turns of the threads of a place before all of them wait.
constexpr int kMaxTurns = 1000;
// Waits of a thread, one after the other, that were over before they began.
constexpr int64_t kMaxWaitsInVain = 100'000;

// The first nanosecond at which `time` has come. absl's times are finer: who waits for a moment
// between two would wait for ever when the clock stopped at the first.
int64_t NanosAt(absl::Time time) {
  const int64_t nanos = absl::ToUnixNanos(time);
  return absl::FromUnixNanos(nanos) < time ? nanos + 1 : nanos;
}

int64_t NumThreads() {
  struct stat task;
  return stat("/proc/self/task", &task) == 0 ? static_cast<int64_t>(task.st_nlink) - 2 : -1;
}

// The kernel's futex itself: std::atomic's wait yields before it sleeps, which costs milliseconds
// on a machine whose cores are busy.
void HandOver(std::atomic<uint32_t>* turn) {
  turn->store(1, std::memory_order_release);
  syscall(SYS_futex, turn, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}
void AwaitTurn(std::atomic<uint32_t>* turn) {
  while (turn->load(std::memory_order_acquire) == 0) {
    syscall(SYS_futex, turn, FUTEX_WAIT_PRIVATE, 0, nullptr, nullptr, 0);
  }
  turn->store(0, std::memory_order_relaxed);
}

}  // namespace

struct Simulation::Thread {
  Simulation* simulation = nullptr;
  Place* place = nullptr;
  int64_t number = 0;
  std::atomic<uint32_t> turn{0};  // acquire by the thread, release by who hands it over
  CondVar* cv = nullptr;
  absl::Time deadline = absl::InfiniteFuture();
  uint64_t seen = 0;  // the place's happened_ at its last turn
};

// Of the thread itself; its end hands the turn back.
struct Simulation::Registration {
  std::unique_ptr<Thread> thread;
  ~Registration() {
    if (thread != nullptr) thread->simulation->Unregister(thread.release());
  }
  static Registration& OfThisThread() {
    static thread_local Registration registration;
    return registration;
  }
};

// Far ahead of the machine's: whoever compares a simulated deadline with that finds it in time.
absl::Time Simulation::Start() { return absl::FromUnixSeconds(int64_t{4'102'444'800}); }  // 2100

Simulation::Simulation(uint64_t seed)
    : names_(seed * 2 + 1),
      state_(seed),
      now_(absl::ToUnixNanos(Start())),
      loop_(std::this_thread::get_id()) {
  Arena::Default();
  Timers::Real();
  other_threads_ = NumThreads();
}

Simulation::~Simulation() {
  for (std::thread& thread : spawned_) thread.join();
  // Who has been joined is counted for a moment more, which is long on a busy machine: the next
  // simulation would wait for a thread that is no more.
  const absl::Time patience = absl::Now() + kLastMoment;
  while (NumThreads() > other_threads_ && absl::Now() < patience) std::this_thread::yield();
}

Simulation::Place* Simulation::AddPlace(std::string name) {
  places_.push_back(std::unique_ptr<Place>(new Place(this, std::move(name))));
  return places_.back().get();
}

// --- What the seed decides -----------------------------------------------------------------------

uint64_t Simulation::Draw(uint64_t below) {
  // SplitMix64.
  uint64_t x = state_ += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return (x ^ (x >> 31)) % below;
}

absl::Duration Simulation::DrawTime(absl::Duration longest) {
  return absl::Microseconds(static_cast<int64_t>(
      Draw(static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Microseconds(longest), 1)))));
}

bool Simulation::Chance(double probability) {
  return static_cast<double>(Draw(1 << 20)) < probability * (1 << 20);
}

Simulation::EventId Simulation::At(absl::Time when, Event event) {
  const EventId id{std::max(when, Now()), next_event_++};
  events_.emplace(id, std::move(event));
  return id;
}

void Simulation::TraceLine(absl::string_view line) {
  absl::StrAppendFormat(&trace_, "%12.6f  %s\n", absl::ToDoubleSeconds(elapsed()), line);
}

void Simulation::Violated(absl::string_view what) {
  TraceLine(absl::StrCat("VIOLATED: ", what));
  violations_.push_back(absl::StrFormat("at %.6f s: %s", absl::ToDoubleSeconds(elapsed()), what));
}

// --- Turns ---------------------------------------------------------------------------------------

void Simulation::Spawn(Place* place, absl::AnyInvocable<void()> body) {
  spawned_.emplace_back([this, place, body = std::move(body)]() mutable {
    Yield(Register(place), /*has_turn=*/false);
    body();
  });
  After(absl::ZeroDuration(), [place] { return place; });
}

Simulation::Thread* Simulation::Register(Place* place) {
  Registration& registration = Registration::OfThisThread();
  registration.thread = std::make_unique<Thread>();
  Thread* const thread = registration.thread.get();
  thread->simulation = this;
  thread->place = place;
  MutexLock lock(&mu_);
  thread->number = next_thread_++;
  return thread;
}

void Simulation::Unregister(Thread* thread) {
  Place* const place = thread->place;
  bool had_turn;
  {
    MutexLock lock(&mu_);
    --registered_;
    had_turn = !place->released_.load(std::memory_order_relaxed);
    place->threads_.erase(std::find(place->threads_.begin(), place->threads_.end(), thread));
    place->Act();
  }
  delete thread;
  if (had_turn) HandOver(&loop_turn_);
}

void Simulation::Yield(Thread* thread, bool has_turn) {
  if (!has_turn) {
    // From now on the loop knows it.
    MutexLock lock(&mu_);
    ++registered_;
    thread->place->threads_.push_back(thread);
  } else {
    HandOver(&loop_turn_);
  }
  AwaitTurn(&thread->turn);
}

bool Simulation::Wait(Place* place, CondVar* cv, Mutex* mu,
                      absl::Time deadline) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static thread_local int64_t in_vain = 0;
  if (Now() >= deadline) {
    // Time does not move while it has its turn.
    if (++in_vain == kMaxWaitsInVain) {
      std::fprintf(stderr, "%sSimulation: a thread at %s goes round without waiting\n",
                   trace_.c_str(), place->name().c_str());
      std::abort();
    }
    return true;
  }
  in_vain = 0;
  if (place->released_.load(std::memory_order_relaxed)) {
    cv->WaitWithTimeout(mu, absl::Milliseconds(1));
    return false;
  }
  if (std::this_thread::get_id() == loop_) {
    // Nobody could end this wait.
    std::fprintf(stderr, "%sSimulation: an event at %s waits; callbacks must not\n", trace_.c_str(),
                 place->name().c_str());
    std::abort();
  }
  Thread* thread = Registration::OfThisThread().thread.get();
  const bool is_new = thread == nullptr;
  if (is_new) thread = Register(place);
  thread->cv = cv;
  thread->deadline = deadline;
  mu->Unlock();
  Yield(thread, !is_new);
  mu->Lock();
  return Now() >= deadline;
}

// Threads that have been started and did not wait yet, or are about to be gone.
void Simulation::AwaitStrangers() {
  const auto known = [this] {
    MutexLock lock(&mu_);
    return registered_ + other_threads_;
  };
  absl::Time patience = absl::InfiniteFuture();
  while (NumThreads() != known()) {
    if (patience == absl::InfiniteFuture()) patience = absl::Now() + kRealPatience;
    if (absl::Now() > patience) {
      std::fprintf(stderr, "%sSimulation: %ld threads are not those of the simulation (%ld)\n",
                   trace_.c_str(), static_cast<long>(NumThreads()), static_cast<long>(known()));
      std::abort();
    }
    std::this_thread::yield();
  }
}

void Simulation::Resume(Thread* thread) {
  HandOver(&thread->turn);
  AwaitTurn(&loop_turn_);
}

// A thread has seen everything that happened before its turn, and what it did itself.
void Simulation::Settle(Place* place) {
  if (place->released_.load(std::memory_order_relaxed)) return;
  ++place->happened_;
  for (int turns = 0;; ++turns) {
    Thread* next = nullptr;
    {
      MutexLock lock(&mu_);
      for (Thread* const thread : place->threads_) {
        if (next == nullptr && thread->seen < place->happened_) next = thread;
      }
    }
    if (next == nullptr) return;
    if (turns == kMaxTurns) {
      return Violated(absl::StrCat("threads at ", place->name(), " go round without waiting"));
    }
    const uint64_t actions = place->actions_;
    const CondVar* const cv = next->cv;
    const absl::Time deadline = next->deadline;
    next->seen = place->happened_;
    Resume(next);
    // Act, too, tells that it has ended.
    if (place->actions_ == actions && next->cv == cv && next->deadline == deadline) continue;
    AwaitStrangers();
    ++place->happened_;
    MutexLock lock(&mu_);
    for (Thread* const thread : place->threads_) {
      if (thread == next) next->seen = place->happened_;
    }
  }
}

std::pair<absl::Time, Simulation::Place*> Simulation::NextWake() const {
  std::pair<absl::Time, Place*> next{absl::InfiniteFuture(), nullptr};
  MutexLock lock(&mu_);
  for (const auto& place : places_) {
    if (place->released_.load(std::memory_order_relaxed)) continue;
    for (const Thread* const thread : place->threads_) {
      if (thread->deadline < next.first) next = {thread->deadline, place.get()};
    }
  }
  return next;
}

bool Simulation::Run(absl::FunctionRef<bool()> over, absl::Duration bound) {
  const absl::Time end = Now() + bound;
  AwaitStrangers();
  while (!over()) {
    const auto [wake, waiting] = NextWake();
    const absl::Time event =
        events_.empty() ? absl::InfiniteFuture() : events_.begin()->first.first;
    const absl::Time next = std::min(wake, event);
    if (next > end) {
      now_.store(absl::ToUnixNanos(end), std::memory_order_relaxed);
      return false;
    }
    now_.store(std::max(NanosAt(next), now_.load(std::memory_order_relaxed)),
               std::memory_order_relaxed);
    Place* place = waiting;
    if (event <= wake) {
      Event what = std::move(events_.begin()->second);
      events_.erase(events_.begin());
      place = what();
      AwaitStrangers();
    }
    if (place != nullptr) Settle(place);
  }
  return true;
}

void Simulation::Release(Place* place) {
  MutexLock lock(&mu_);
  if (place->released_.exchange(true)) return;
  for (Thread* const thread : place->threads_) HandOver(&thread->turn);
}

// --- Places --------------------------------------------------------------------------------------

class Simulation::Place::PlaceTimer : public Timer,
                                      public std::enable_shared_from_this<PlaceTimer> {
 public:
  PlaceTimer(Place* place, absl::AnyInvocable<void()> fire)
      : place_(place), fire_(std::move(fire)) {}
  void Set(absl::Time when) override {
    if (is_set_) return;
    is_set_ = true;
    place_->Act();
    event_ = place_->simulation_->At(when, [self = shared_from_this()] {
      self->is_set_ = false;
      self->fire_();
      return self->place_;
    });
  }
  void Cancel() override {
    if (!std::exchange(is_set_, false)) return;
    place_->simulation_->Cancel(event_);
  }

 private:
  Place* const place_;
  absl::AnyInvocable<void()> fire_;
  bool is_set_ = false;
  EventId event_;
};

class Simulation::Place::PlaceArena : public Arena {
 public:
  explicit PlaceArena(Place* place) : place_(place) {}
  int num_threads() const override { return 1; }
  void Schedule(absl::AnyInvocable<void()> task) override {
    place_->Act();
    place_->simulation_->After(absl::ZeroDuration(),
                               [place = place_, task = std::move(task)]() mutable {
                                 task();
                                 return place;
                               });
  }
  void ParallelFor(int64_t n, double,
                   absl::FunctionRef<void(int64_t begin, int64_t end)> body) override {
    if (n > 0) body(0, n);
  }

 private:
  Place* const place_;
};

Simulation::Place::Place(Simulation* simulation, std::string name)
    : simulation_(simulation),
      name_(std::move(name)),
      clock_(this),
      timers_(this),
      arena_(std::make_shared<PlaceArena>(this)) {}

void Simulation::Place::PlaceClock::SleepFor(absl::Duration duration) {
  Mutex mu;
  CondVar cv;
  const absl::Time end = Now() + duration;
  MutexLock lock(&mu);
  while (Now() < end && !place_->sleepless_) WaitUntil(&cv, &mu, end);
}

std::shared_ptr<Timer> Simulation::Place::PlaceTimers::Make(absl::AnyInvocable<void()> fire) {
  return std::make_shared<PlaceTimer>(place_, std::move(fire));
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_SIMULATION_H_
#define MILLRACE_DISTRIBUTED_TESTING_SIMULATION_H_

// Simulation: several tasks in one process, whose time and turns a seed decides.
//
// One thread works at a time. The loop (the thread that calls Run) moves the clock to whatever
// comes next: an event, or the time for which a thread waits; and hands the turn to the threads
// that wait, one after the other, until all of them wait again. So there is nothing that the
// kernel's scheduler could decide: names are drawn from the seed (ScopedRandomSeed), and a thread
// that the simulated code starts belongs to the simulation from its first wait on a place's clock
// on; until then everybody waits for it.
//
// A place is one life of a task: it has a clock, timers and an arena for what lives there. All
// clocks of a simulation show the same time.
//
// Invariants, which are checked: the loop never waits (an answer's callback that would is a fault
// of who gave it); no thread goes round without waiting; every thread that is started comes to a
// wait.
// Not simulated: code that waits in other ways than on the clock that it was given (the executor of
// a step that blocks its caller), memory order between threads, threads of Arena::Default().
//
// Threads: the constructor, Run and Release by one thread; the rest by who has the turn.
// Lifetime: one at a time in a process. Threads of it have ended when it is destroyed: Release
// places, and destroy what lives there, before.
// Failure: violations, as sentences.

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/arena.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "net/timers.h"

namespace millrace {

class Simulation {
 public:
  class Place;
  // Where an event happened: threads that wait there look again. Null: nowhere.
  using Event = absl::AnyInvocable<Place*()>;
  using EventId = std::pair<absl::Time, int64_t>;

  explicit Simulation(uint64_t seed);
  ~Simulation();
  Simulation(const Simulation&) = delete;
  Simulation& operator=(const Simulation&) = delete;

  // It lives as long as the simulation.
  Place* AddPlace(std::string name);

  absl::Time Now() const { return absl::FromUnixNanos(now_.load(std::memory_order_relaxed)); }
  absl::Duration elapsed() const { return Now() - Start(); }
  EventId At(absl::Time when, Event event);
  EventId After(absl::Duration delay, Event event) { return At(Now() + delay, std::move(event)); }
  void Cancel(const EventId& id) { events_.erase(id); }

  // By the seed. Uniform: in [0, below), and in [0, longest).
  uint64_t Draw(uint64_t below);
  absl::Duration DrawTime(absl::Duration longest);
  bool Chance(double probability);

  // A thread of `place`, which runs `body` from the next event on.
  void Spawn(Place* place, absl::AnyInvocable<void()> body);

  // Until `over`, which is asked after each event. False when `bound` of simulated time has passed
  // before.
  bool Run(absl::FunctionRef<bool()> over, absl::Duration bound);
  // Threads that wait at `place` go on by themselves, as they would without a simulation: what
  // lives there is about to be destroyed, by this thread.
  void Release(Place* place);

  // One line, with the time.
  void TraceLine(absl::string_view line);
  const std::string& trace() const { return trace_; }
  void Violated(absl::string_view what);
  const std::vector<std::string>& violations() const { return violations_; }
  int64_t num_events() const { return next_event_; }

 private:
  struct Thread;
  struct Registration;
  static absl::Time Start();
  bool Wait(Place* place, CondVar* cv, Mutex* mu, absl::Time deadline);
  Thread* Register(Place* place);
  void Unregister(Thread* thread);
  void Yield(Thread* thread, bool has_turn);
  void Resume(Thread* thread);
  void AwaitStrangers();
  void Settle(Place* place);
  std::pair<absl::Time, Place*> NextWake() const;

  ScopedRandomSeed names_;
  uint64_t state_;
  std::atomic<int64_t> now_;  // nanoseconds; relaxed: turns order it
  std::map<EventId, Event> events_;
  int64_t next_event_ = 0;
  std::deque<std::unique_ptr<Place>> places_;
  std::vector<std::thread> spawned_;
  std::string trace_;
  std::vector<std::string> violations_;
  const std::thread::id loop_;
  int64_t other_threads_ = 0;           // that were there before
  std::atomic<uint32_t> loop_turn_{0};  // acquire by the loop, release by who hands it over

  mutable Mutex mu_;
  int64_t registered_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_thread_ ABSL_GUARDED_BY(mu_) = 0;
};

class Simulation::Place {
 public:
  const std::string& name() const { return name_; }
  Clock* clock() { return &clock_; }
  Timers* timers() { return &timers_; }
  // Tasks run as events, loops in the caller.
  std::shared_ptr<Arena> arena() { return arena_; }
  // Ends sleeps at once.
  void EndSleeps() { sleepless_ = true; }
  // Who changes anything outside of it says so: its other threads look again.
  void Act() { ++actions_; }
  Simulation* simulation() { return simulation_; }

 private:
  friend class Simulation;
  Place(Simulation* simulation, std::string name);

  class PlaceClock : public Clock {
   public:
    explicit PlaceClock(Place* place) : place_(place) {}
    absl::Time Now() override { return place_->simulation_->Now(); }
    bool WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) override {
      return place_->simulation_->Wait(place_, cv, mu, deadline);
    }
    void SleepFor(absl::Duration duration) override;

   private:
    Place* const place_;
  };
  class PlaceTimer;
  class PlaceTimers : public Timers {
   public:
    explicit PlaceTimers(Place* place) : place_(place) {}
    Clock* clock() override { return place_->clock(); }
    std::shared_ptr<Timer> Make(absl::AnyInvocable<void()> fire) override;

   private:
    Place* const place_;
  };
  class PlaceArena;

  Simulation* const simulation_;
  const std::string name_;
  PlaceClock clock_;
  PlaceTimers timers_;
  std::shared_ptr<Arena> arena_;
  bool sleepless_ = false;
  uint64_t actions_ = 0, happened_ = 0;
  // Relaxed reads by its own threads, which see it by their turn.
  std::atomic<bool> released_{false};
  std::vector<Thread*> threads_;  // mu_
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_SIMULATION_H_

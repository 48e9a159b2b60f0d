// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_CALL_THREADS_H_
#define MILLRACE_NET_CALL_THREADS_H_

// CallThreads: the threads of a server's port. Some poll for events, the others run calls.
//
// The thread that took a call off the network runs it, because a hand-over would cost a small step
// more than all the rest. Before it runs one that may take long it gives up polling; when fewer
// than half of the pollers would be left then, another thread takes its place: one that is parked,
// or a new one.
//
//   polling -> running -> polling                       pollers were missing
//                      -> parked -> polling             another one gave up
//                                -> ended               nothing to do for a while
//
// A visit (core/visit.h) is mostly short: its thread keeps its place among those that poll until
// the visit is about to wait or to work for long (core/before_wait.h), or has lasted two
// milliseconds or so.
//
// Invariants: at least half of `num_pollers` threads always poll or keep their place, whatever the
// calls do (one less while the system gives no further thread, but never none as long as any call
// can end); of each urgency at most as many calls run as its bound says, the others wait in order.
// Urgent calls and visits never wait for others.
//
// Thread-safety: all methods, from any thread, but Run.
// Lifetime: threads that Shutdown has left behind hold what they need themselves.
// Failure: Start is ResourceExhausted when the system gives no thread at all.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"

namespace millrace {

// What may take long.
class LongCall {
 public:
  virtual ~LongCall() = default;
  // On one thread, once. Must not throw.
  virtual void RunCall() = 0;
  // For messages; as long as the call lives.
  virtual const std::string& call_name() const = 0;
};

class CallThreads {
 public:
  enum class Urgency {
    kNormal,  // steps, graphs, files
    kUrgent,  // what ends others: must not wait behind those
    kVisit,   // what a message made ready: calls that run wait for it, and its own bound is how
              // many were offered (core/visit.h)
  };
  struct Options {
    std::string owner = "";  // whose threads they are, for messages: "Server"
    int num_pollers = 4;
    int max_normal = 64;
    int max_urgent = 16;
    // How long a thread that has nothing to do stays.
    absl::Duration idle = absl::Seconds(10);
    Clock* clock = Clock::Real();
    // Takes one event and handles it; false when there will be none any more. Must not throw.
    // Called on many threads at once, until each has heard false; outlives Shutdown only on threads
    // that are left in a call, which do not poll again.
    std::function<bool()> poll_one;
  };

  static StatusOr<std::unique_ptr<CallThreads>> Start(Options options);
  ~CallThreads();
  CallThreads(const CallThreads&) = delete;
  CallThreads& operator=(const CallThreads&) = delete;

  // Only inside of poll_one, as the last thing that it does: runs the call now, in this thread, or
  // later, in another one.
  void Run(std::shared_ptr<LongCall> call, Urgency urgency);

  // Once poll_one says false: waits until all threads have ended, at most until `deadline` of the
  // clock. Calls that still wait for a thread are dropped. Returns what still runs then, by name
  // and since when; its threads are left behind.
  std::vector<std::string> Shutdown(absl::Time deadline);

  // For tests.
  int num_threads() const;
  int num_waiting() const;

 private:
  struct State;
  void RunInPlace(std::shared_ptr<LongCall> call);
  explicit CallThreads(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_NET_CALL_THREADS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_NETWORK_SEAT_H_
#define MILLRACE_CORE_NETWORK_SEAT_H_

// NetworkSeat: the place in which a thread that waits for a message takes it off the network
// itself. Otherwise a thread of the network would take it and wake the one that waits: two
// switches of threads where one will do.
//
//   SeatWish wish;                                  // this thread waits for messages
//   MutexLock lock(&mu);
//   while (!condition) seated.Wait(&mu, limit);     // SeatedCondVar seated;
//   ...
//   seated.Signal();                                // by who made the condition true, with mu held
//
// A process may have a seat at each kind of network, and one of them is in use: the first one of
// Rank whose links carry steps. It is for one thread at a time; who finds it taken, or has sat
// there for long, waits as in a CondVar. While a thread sits there it does for others what threads
// of the network do between two polls: it reads, decodes and hands on, and never runs kernels or
// calls that may block.
//
// Threads: as each method says. Lifetime: a seat lives as long as the process. Failure: none.

#include "absl/time/time.h"
#include "core/mutex.h"

namespace millrace {

class NetworkSeat {
 public:
  enum Rank { kSameHost, kNetwork, kNumRanks };

  virtual ~NetworkSeat() = default;
  // Any thread. Whether what it serves carries steps.
  virtual bool has_links() const = 0;
  // Any thread. False: another one has it.
  virtual bool Take() = 0;
  // By who has taken it. Handles what comes, and returns after that, after a Wake since Take, or
  // when `limit` has passed; perhaps also without a reason.
  virtual void Serve(absl::Time limit) noexcept = 0;
  // By who has taken it.
  virtual void Leave() = 0;
  // Any thread: whoever has the seat returns from Serve. Nothing when nobody has it.
  virtual void Wake() noexcept = 0;

  // That is in use; null when there is none.
  static NetworkSeat* OfProcess();
  // For good; the first one of a rank counts.
  static void SetOfProcess(NetworkSeat* seat, Rank rank);
};

// While one lives, waits of its thread in a SeatedCondVar use the seat. The thread holds no lock
// then that a method of a LinkEnd may take.
class SeatWish {
 public:
  SeatWish();
  ~SeatWish();
  SeatWish(const SeatWish&) = delete;
  SeatWish& operator=(const SeatWish&) = delete;

 private:
  const bool outer_;
};

// A condition variable for one thread at a time.
class SeatedCondVar {
 public:
  // Longer than most steps, and too short to keep other ones from the seat.
  static constexpr absl::Duration kMaxSitting = absl::Milliseconds(20);

  // A thread that has waited for `max_sitting` in all leaves the seat to others.
  explicit SeatedCondVar(absl::Duration max_sitting = kMaxSitting) : max_sitting_(max_sitting) {}
  // Returns when signalled, at `limit`, or without a reason: always in a loop on the condition.
  void Wait(Mutex* mu, absl::Time limit);
  // With the lock of Wait held.
  void Signal();

 private:
  CondVar cv_;
  // Of the thread that waits, while it has the seat and nobody has signalled; under the lock of
  // Wait.
  NetworkSeat* seat_ = nullptr;
  const void* sitter_ = nullptr;
  const absl::Duration max_sitting_;
  absl::Time sits_until_ = absl::InfinitePast();  // from the first wait with a wish on
};

}  // namespace millrace

#endif  // MILLRACE_CORE_NETWORK_SEAT_H_

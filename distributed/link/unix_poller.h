// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_POLLER_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_POLLER_H_

// UnixPoller: the threads that wait for the Unix sockets of this process.
//
// One epoll descriptor, at which kPollers threads sleep; nothing spins and no timer runs. The
// thread that takes an event off the epoll descriptor handles it. What the event made ready
// (core/visit.h) the same thread runs afterwards, when it has given up polling, so that a long
// visit keeps neither its own socket nor others waiting (net/call_threads.h).
//
// An event comes once, then the source has to be armed again: while a thread handles a source, no
// other thread is woken for it.
//
// A thread that waits for a message may sit down at the descriptor itself (core/network_seat.h).
// What its events make ready of other steps runs on other threads. While steps follow each other
// the poller's threads leave the descriptor to it, and come back 1 ms after it was there last.
//
// Made when the first socket comes, and never destroyed, like the threads of gRPC's clients.
//
// Thread-safety: all methods, from any thread. Lifetime: the poller keeps a source from Add to
// Remove, and while a thread is in its OnReady. The caller closes the descriptor, after Remove.
// Failure: Shared and Add are ResourceExhausted while the system gives no descriptor, memory or
// thread; the next call tries again.

#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/mutex.h"
#include "core/network_seat.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "core/visit.h"
#include "net/call_threads.h"

namespace millrace {

class UnixPoller final : private NetworkSeat {
 public:
  // What owns a descriptor.
  class Source {
   public:
    // `is_link`: it carries steps, for which threads wait in the seat.
    explicit Source(bool is_link = false);
    virtual ~Source() = default;
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

    // The descriptor is ready for what it was armed for, or was a moment ago, or is broken. Arms
    // it again before it returns, or removes it. Returns what became ready, null if nothing.
    // A second thread may call it when the source is armed outside of OnReady.
    virtual Visit::Work* OnReady() = 0;

    // Of no other source of the process, before or after.
    uint64_t id() const { return id_; }
    bool is_link() const { return is_link_; }

   private:
    const uint64_t id_;
    const bool is_link_;
  };

  // One more than what a long visit takes away.
  static constexpr int kPollers = 2;

  static StatusOr<UnixPoller*> Shared();

  // Whether this thread serves in the seat: its own step may be ready meanwhile.
  static bool IsInSeat();

  // `events`: EPOLLIN, EPOLLOUT or both. Armed from now on: OnReady may come before this returns.
  Status Add(std::shared_ptr<Source> source, int fd, uint32_t events);
  // One more event, also when the descriptor is ready already.
  void Arm(const Source& source, int fd, uint32_t events);
  // No OnReady begins any more, but one that has begun goes on.
  void Remove(const Source& source, int fd);

 private:
  UnixPoller(OwnedFd epoll, OwnedFd wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}
  static StatusOr<std::unique_ptr<UnixPoller>> Start();
  // The source goes without the lock; null when it was not there.
  std::shared_ptr<Source> TakeOut(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One event, or none before `limit`; who sits in the seat is awake then.
  std::optional<uint64_t> AwaitEvent(absl::Time limit);
  // What became ready, null if nothing.
  Visit::Work* Handle(uint64_t event) noexcept;
  void PollOne();
  // Threads of the poller do not poll while the seat is in use.
  void StandAside();
  // One that has taken what was meant for the thread in the seat.
  void HandOnWake();

  bool has_links() const override;
  bool Take() override;
  void Serve(absl::Time limit) noexcept override;
  void Leave() override;
  void Wake() noexcept override;

  const OwnedFd epoll_;
  const OwnedFd wake_;                    // an eventfd; each write is one event for one thread
  std::unique_ptr<CallThreads> threads_;  // set before the first Add

  mutable Mutex mu_;
  std::unordered_map<uint64_t, std::shared_ptr<Source>> sources_ ABSL_GUARDED_BY(mu_);
  int num_links_ ABSL_GUARDED_BY(mu_) = 0;  // of these

  //   free -> asleep -> awake -> free       Take, an event, Leave
  Mutex seat_mu_;
  CondVar awake_;                                                     // or unused again
  absl::Time used_ ABSL_GUARDED_BY(seat_mu_) = absl::InfinitePast();  // when it was left by sleep
  bool has_watch_ ABSL_GUARDED_BY(seat_mu_) = false;  // a thread in StandAside looks at the time
  bool is_taken_ ABSL_GUARDED_BY(seat_mu_) = false;
  bool is_asleep_ ABSL_GUARDED_BY(seat_mu_) = false;  // who has it, until an event
  uint64_t times_awake_ ABSL_GUARDED_BY(seat_mu_) = 0;
  int num_aside_ ABSL_GUARDED_BY(seat_mu_) = 0;  // threads in HandOnWake
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_POLLER_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_ACCEPTOR_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_ACCEPTOR_H_

// UnixAcceptor: where peers on the same host open links over Unix sockets to this task.
//
//   auto acceptor = UnixAcceptor::Listen();
//   auto offer = (*acceptor)->Offer([](StatusOr<std::unique_ptr<ByteWire>> wire) { ... });
//   // offer->Encode() travels in HELLO of the link that is dialled; there: DialUnix(*offer)
//
// An offer:
//
//   open -> taken up     a process of our user said its nonce: the wire
//        -> expired      nobody did within max_offer_age: DeadlineExceeded
//        -> gone         the acceptor went before: Unavailable
//
// `accepted` hears which, once. A connection:
//
//   half open -> proven      by the nonce of an open offer, which no other one can say again
//             -> dropped     another user; another nonce, or one that was said before or too late;
//                            closed; nothing said within max_proof; the oldest of too many
//
// What is dropped is counted and hears nothing but the end.
//
// Thread-safety: all methods, from any thread. Tick has to be called every few seconds, by the
// owner: without it nothing expires, and a system that was out of descriptors is not asked again.
// `accepted` is called without a lock, on a thread of the poller or the one that calls Tick or
// destroys the acceptor; one that was begun may still run when the acceptor is gone.
// Failure: Listen and Offer return a Status, and callers stay on the link that they have.

#include <sys/types.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/unix_offer.h"

namespace millrace {

struct UnixAcceptorOptions {
  // Of peers that have heard of their offers and have not dialled.
  int max_offers = 1024;
  // A peer says its nonce as it connects: only strangers stay half open.
  int max_half_open = 64;
  absl::Duration max_proof = absl::Seconds(5);
  absl::Duration max_offer_age = absl::Seconds(30);
  Clock* clock = Clock::Real();  // outlives the acceptor
  // Whose processes may connect; another one in tests.
  uid_t user = ::geteuid();
};

class UnixAcceptor {
 public:
  using Accepted = absl::AnyInvocable<void(StatusOr<std::unique_ptr<ByteWire>>)>;
  struct Counts {
    int64_t proven = 0;
    int64_t other_user = 0;
    int64_t wrong_nonce = 0;
    int64_t closed = 0;  // by the peer, before it had said all
    int64_t silent = 0;
    int64_t too_many = 0;
    int64_t rests = 0;  // the system had no descriptor, or no memory, until the next Tick
  };

  // On a socket with a random name.
  static StatusOr<std::unique_ptr<UnixAcceptor>> Listen(UnixAcceptorOptions options = {});
  ~UnixAcceptor();
  UnixAcceptor(const UnixAcceptor&) = delete;
  UnixAcceptor& operator=(const UnixAcceptor&) = delete;

  // ResourceExhausted beyond max_offers; `accepted` is not called then.
  StatusOr<UnixOffer> Offer(Accepted accepted);
  // Looks at the clock.
  void Tick();

  Counts counts() const;
  int num_half_open() const;

 private:
  class State;
  explicit UnixAcceptor(std::shared_ptr<State> state);

  const std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_ACCEPTOR_H_

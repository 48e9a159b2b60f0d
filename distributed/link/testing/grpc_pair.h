// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_GRPC_PAIR_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_GRPC_PAIR_H_

// CountedWire: a wire that counts, so that a test knows when nothing is on its way.
// GrpcPair: two links over gRPC and a loopback socket, in this process.
//
// Thread-safety: a WireCounts: any thread. Failure: a GrpcPair that does not settle within a minute
// fails the test.

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "core/mutex.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/link_kinds.h"

namespace millrace {

// Of both ends of a wire.
class WireCounts {
 public:
  struct End {
    bool is_started = false, is_closing = false, is_closed = false;
    int64_t written_bytes = 0, read_bytes = 0;  // read: the user's call has returned
    int64_t busy = 0;  // writes that have not left, and calls of the user that run
  };

  // False when the time is over before nothing is on its way.
  bool AwaitQuiet();
  bool IsClosed(int end) const;

  // Of wires: changes counts under the lock.
  template <typename Change>
  void Count(int end, Change change) {
    MutexLock lock(&mu_);
    change(&ends_[end]);
    changed_.SignalAll();
  }

 private:
  bool IsQuiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  End ends_[2] ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<ByteWire> MakeCountedWire(std::unique_ptr<ByteWire> wire,
                                          std::shared_ptr<WireCounts> counts, int end);

// The worker dials the ps.
std::unique_ptr<LinkPair> MakeGrpcPair(const LinkPeer& worker, const LinkPeer& ps);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_GRPC_PAIR_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_BYTE_WIRE_H_
#define MILLRACE_DISTRIBUTED_LINK_BYTE_WIRE_H_

// ByteWire: a way for bytes between two processes, in order, in both directions. A network that has
// one gets a Link by byte_link.h: three methods are all that there is to implement.
//
// Threads. Start, Write and Close: any thread; they do not wait. OnBytes, OnFilled, OnDescriptor
// and OnClosed are called one at a time; OnWritten at any time, also before Write has returned
// false, but on another thread: never within Write. Lifetime. A wire keeps its user from Start
// until OnClosed has returned. The user owns the wire: it may be destroyed when the wire lets go of
// the user. Failure. OnClosed comes exactly once after Start, last, whoever closed the wire or
// however it broke. Bytes that were written may not have arrived then.

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"

namespace millrace {

class ByteWire {
 public:
  class User {
   public:
    virtual ~User() = default;
    // The next bytes, in pieces of any size.
    virtual void OnBytes(absl::string_view bytes) = 0;
    // Instead of OnBytes, for networks that read into memory that they are given: the place of the
    // next bytes, empty when there is none; then how many of it are filled.
    virtual absl::Span<char> Place() = 0;
    virtual void OnFilled(size_t num_bytes) = 0;
    // A descriptor that the peer has sent along with one of the next bytes, of wires that pass
    // them. Called as OnBytes. Who does not expect it lets it close. One that is not open: it found
    // no room in this process, and the wire is about to close.
    virtual void OnDescriptor(OwnedFd /*descriptor*/) {}
    // What Write was given has left, and the next may be given.
    virtual void OnWritten() = 0;
    // `status` is an error. `by_peer`: the other process closed it or ended.
    virtual void OnClosed(const Status& status, bool by_peer) = 0;
  };

  virtual ~ByteWire() = default;
  // Whether descriptors in what is written reach the peer; else they are dropped.
  virtual bool passes_descriptors() const { return false; }
  // Whether the network may take megabytes that the peer is far from reading: the link then keeps
  // large tensors back, so that the rest can overtake them.
  virtual bool takes_megabytes() const { return false; }
  // Once, first.
  virtual void Start(std::shared_ptr<User> user) = 0;
  // One at a time. True: the bytes have left. False: they will, then OnWritten is called; or the
  // wire is closed, then it is not.
  virtual bool Write(ByteChain bytes) = 0;
  // As Write, but this thread writes nothing: false, then OnWritten on a thread of the wire.
  // A wire whose Write always returns false has no other way.
  virtual bool WriteLater(ByteChain bytes) { return Write(std::move(bytes)); }
  // What is being written need not arrive. More than once and at any time after Start.
  virtual void Close() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_BYTE_WIRE_H_

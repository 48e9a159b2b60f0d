// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TESTING_RAW_LINK_H_
#define MILLRACE_DISTRIBUTED_TESTING_RAW_LINK_H_

// RawLink: one end of a link that says any bytes: what a program of another kind may send, and a
// stranger. It says nothing by itself and answers nothing, PING neither.
//
//   const auto link = RawLink::Dial("127.0.0.1:2222");
//   link->Say(FrameBytes(hello));
//   const std::optional<HelloFrame> answer = link->AwaitHello();
//
// Threads: one at a time. Lifetime: a wire that is still open is closed by the destructor, which
// does not wait. Failure: what does not come within a minute fails the test.

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/frame.h"
#include "net/rpc_channel.h"

namespace millrace {

class RawLink {
 public:
  // Over gRPC, to the server on "host:port". It hears of the call with the first Say.
  static std::unique_ptr<RawLink> Dial(const std::string& address);
  // On the connection of `channel`, which others may share.
  static std::unique_ptr<RawLink> Dial(RpcChannel* channel);
  // On a wire that is not started.
  explicit RawLink(std::unique_ptr<ByteWire> wire);
  ~RawLink();
  RawLink(const RawLink&) = delete;
  RawLink& operator=(const RawLink&) = delete;

  // Returns when the bytes have left, or the wire is closed.
  void Say(absl::string_view bytes);
  // HELLO of the other end; nullopt when the wire was closed before it came.
  std::optional<HelloFrame> AwaitHello();
  // What BYE says; OK when the wire was closed without one.
  Status AwaitFarewell();
  bool is_closed() const;
  // Frames that have come, HELLO and BYE too.
  int num_frames() const;

 private:
  class State;

  const std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TESTING_RAW_LINK_H_

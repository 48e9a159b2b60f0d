// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_COUNTED_WIRES_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_COUNTED_WIRES_H_

// CountedWires: the two ends of a real way for bytes, counted, so that a test can wait until
// nothing is on its way instead of sleeping.
//
//   CountedWires wires;
//   auto first = wires.Count(0, std::move(one_end)), second = wires.Count(1, std::move(other_end));
//   ... Start, Write ...
//   EXPECT_TRUE(wires.Settle());
//
// Threads: any. Lifetime: the wires may outlive this. Failure: Settle is false after a minute.

#include <cstdint>
#include <memory>

#include "distributed/link/byte_wire.h"

namespace millrace {

class CountedWires {
 public:
  CountedWires();
  ~CountedWires();
  CountedWires(const CountedWires&) = delete;
  CountedWires& operator=(const CountedWires&) = delete;

  // `wire` is end 0 or 1, each once.
  std::unique_ptr<ByteWire> Count(int end, std::unique_ptr<ByteWire> wire);

  // Until the bytes that each end wrote have been read by the other one and every call of a user
  // has returned; or, once an end is closed, until both have returned from OnClosed.
  bool Settle();

  // That the user of `end` was called with, so far.
  int64_t read_bytes(int end) const;

 private:
  class Wire;
  struct Flight;

  const std::shared_ptr<Flight> flight_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_COUNTED_WIRES_H_

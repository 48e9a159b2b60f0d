// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_BYTE_LINK_ENDS_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_BYTE_LINK_ENDS_H_

// ByteLinkEnds: links, or bare wires, at both ends of a simulated way (simulated_wire.h), in a time
// of its own: end 0 is a worker, end 1 a ps.
// RawPeer: a peer that speaks bytes, at one of them.
//
// Threads: one. Lifetime: what the ends call outlives them, as they close their links as they go.
// Failure: a link that goes round fails the test.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/testing/link_kinds.h"
#include "distributed/link/testing/simulated_wire.h"
#include "gtest/gtest.h"

namespace millrace {

class ByteLinkEnds {
 public:
  explicit ByteLinkEnds(uint64_t seed = 1, SimulatedWay::Options way_options = {})
      : time(seed), way(SimulatedWay::Make(&time, way_options)) {
    for (int end = 0; end < 2; ++end) {
      options[end].task = end == 0 ? "/job:worker/replica:0/task:0" : "/job:ps/replica:0/task:0";
      options[end].incarnation = end == 0 ? 41 : 42;
      options[end].clock = time.clock();
    }
    options[0].peer_task = options[1].task;
  }
  ~ByteLinkEnds() {
    way->GoOnReading(0);
    way->GoOnReading(1);
    for (const std::shared_ptr<ByteLink>& link : links) {
      if (link == nullptr) continue;
      link->Close(absl::AbortedError("the test is over"));
      link->Close(absl::AbortedError("the test is over"));  // does not wait for the peer
    }
    EXPECT_TRUE(time.Run());
    for (const std::shared_ptr<RecordingEnd>& end : ends) end->LetGo();
  }
  ByteLinkEnds(const ByteLinkEnds&) = delete;
  ByteLinkEnds& operator=(const ByteLinkEnds&) = delete;

  void Open(int end) { links[end] = ByteLink::Open(way->TakeWire(end), ends[end], options[end]); }
  void OpenBoth() {
    Open(0);
    Open(1);
    EXPECT_TRUE(time.Run());
  }
  // The owner of the link at `end` Ticks every second; what that sends arrives at last.
  void Pass(int end, int64_t seconds) {
    for (int64_t second = 0; second < seconds; ++second) {
      time.clock()->Advance(absl::Seconds(1));
      links[end]->Tick();
    }
    EXPECT_TRUE(time.Run());
  }

  SeededTime time;
  const std::shared_ptr<SimulatedWay> way;
  ByteLinkOptions options[2];
  const std::shared_ptr<RecordingEnd> ends[2] = {std::make_shared<RecordingEnd>(),
                                                 std::make_shared<RecordingEnd>()};
  std::shared_ptr<ByteLink> links[2];
};

// Keeps what it hears.
class RawPeer : public ByteWire::User {
 public:
  void OnBytes(absl::string_view bytes) override { received.append(bytes.data(), bytes.size()); }
  absl::Span<char> Place() override { return {}; }
  void OnFilled(size_t) override {}
  void OnWritten() override {}
  void OnClosed(const Status&, bool by_peer) override {
    is_closed = true;
    closed_by_peer = by_peer;
  }

  std::string received;
  bool is_closed = false, closed_by_peer = false;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_BYTE_LINK_ENDS_H_

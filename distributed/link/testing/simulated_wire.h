// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_SIMULATED_WIRE_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_SIMULATED_WIRE_H_

// SimulatedWay: the two ends of a way for bytes (byte_wire.h), whose delays and cuts a seed
// decides.
//
// Bytes arrive in order, in pieces of any size, some by OnBytes and some in place, and descriptors
// with them if the way passes them. A writer has to
// wait while more than `buffer_bytes` are under way, as with a socket. Faults are asked for:
//   * the way is lost after so many bytes, in the middle of whatever they are: both ends hear it,
//     at different times, up to 30 s later;
//   * an end stops reading, and goes on;
//   * an end closes: what it wrote still arrives, then the end of the stream.
//
// SeededTime is the time of a test of its own. distributed/testing/simulation.h can take its place
// when whole tasks are simulated.
//
// Threads: one. Lifetime: the time outlives the way's events; wires may be destroyed at any time
// after they were closed. Failure: none.

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/owned_fd.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_wire.h"

namespace millrace {

class SimulatedTime {
 public:
  virtual ~SimulatedTime() = default;
  virtual void Later(absl::Duration delay, std::function<void()> event) = 0;
  // Below `below` > 0.
  virtual uint64_t Draw(uint64_t below) = 0;
};

class SeededTime : public SimulatedTime {
 public:
  explicit SeededTime(uint64_t seed) : random_(seed) {}
  void Later(absl::Duration delay, std::function<void()> event) override;
  uint64_t Draw(uint64_t below) override { return random_() % below; }

  FakeClock* clock() { return &clock_; }
  // Runs events until none is left. False after `max_events`: something goes round.
  bool Run(int64_t max_events = 2'000'000);
  // Runs those of the next `duration`, and moves the clock that far.
  bool RunFor(absl::Duration duration, int64_t max_events = 2'000'000);

 private:
  void RunFirst();

  FakeClock clock_;
  std::mt19937_64 random_;
  std::multimap<absl::Time, std::function<void()>> events_;  // equal times: in order of Later
};

class SimulatedWay : public std::enable_shared_from_this<SimulatedWay> {
 public:
  struct Options {
    // Of one piece, at most.
    uint64_t max_piece_bytes = 100'000;
    uint64_t buffer_bytes = 64 << 10;
    absl::Duration longest_delay = absl::Milliseconds(3);
    // As a Unix socket: each comes in a piece with the first byte of its own, one at a time.
    bool passes_descriptors = false;
    bool takes_megabytes = false;
    // Else none finds room where it comes.
    bool has_room_for_descriptors = true;
  };

  static std::shared_ptr<SimulatedWay> Make(SimulatedTime* time, const Options& options);

  // Of end 0 and end 1, once each.
  std::unique_ptr<ByteWire> TakeWire(int end);

  void StopReading(int end);
  void GoOnReading(int end);
  // After so many more bytes from `end` have arrived.
  void BreakAfter(int end, uint64_t bytes);

  // Of Write by `end`, so far.
  int64_t num_writes(int end) const { return ends_[end].num_writes; }
  uint64_t written_bytes(int end) const { return ends_[end].written_bytes; }
  // Written by `end` and not read by the other one.
  uint64_t bytes_under_way(int end) const { return ends_[end].out.size(); }

 private:
  class Wire;
  struct End {
    std::shared_ptr<ByteWire::User> user;
    std::string out;  // on its way from this end to the other one
    // What comes with a byte of `out`, which is so many bytes from its begin.
    std::deque<std::pair<uint64_t, std::shared_ptr<const OwnedFd>>> descriptors;
    bool writer_waits = false;  // until `out` is shorter
    bool is_closed = false;     // by this end: `out` arrives, then the end
    bool is_stopped = false;    // does not read
    bool has_event = false;     // for the next piece to this end
    bool breaks = false;        // after `breaks_after` bytes of `out`
    uint64_t breaks_after = 0;
    int64_t num_writes = 0;
    uint64_t written_bytes = 0;
  };

  SimulatedWay(SimulatedTime* time, const Options& options) : time_(time), options_(options) {}
  void Start(int end, std::shared_ptr<ByteWire::User> user);
  bool Write(int end, const ByteChain& bytes, bool later);
  void Close(int end);
  absl::Duration Delay();
  // Lets the next piece arrive at `end` later, if there is one and it is read.
  void Schedule(int end);
  void Arrive(int end);
  void Break();
  // The user hears that it is over, once.
  void TellClosed(int end, absl::Duration delay, const char* why, bool by_peer);

  SimulatedTime* const time_;
  const Options options_;
  End ends_[2];
  bool is_broken_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_SIMULATED_WIRE_H_

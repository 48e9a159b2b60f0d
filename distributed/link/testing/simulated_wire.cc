// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/testing/simulated_wire.h"

#include <fcntl.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/owned_fd.h"
#include "core/status.h"

namespace millrace {

// --- SeededTime

void SeededTime::Later(absl::Duration delay, std::function<void()> event) {
  events_.emplace(clock_.Now() + delay, std::move(event));
}

void SeededTime::RunFirst() {
  const auto first = events_.begin();
  if (first->first > clock_.Now()) clock_.Advance(first->first - clock_.Now());
  const std::function<void()> event = std::move(first->second);
  events_.erase(first);
  event();
}

bool SeededTime::Run(int64_t max_events) {
  for (int64_t i = 0; i < max_events; ++i) {
    if (events_.empty()) return true;
    RunFirst();
  }
  return false;
}

bool SeededTime::RunFor(absl::Duration duration, int64_t max_events) {
  const absl::Time end = clock_.Now() + duration;
  for (int64_t i = 0; i < max_events; ++i) {
    if (events_.empty() || events_.begin()->first > end) {
      clock_.Advance(end - clock_.Now());
      return true;
    }
    RunFirst();
  }
  return false;
}

// --- SimulatedWay

class SimulatedWay::Wire : public ByteWire {
 public:
  Wire(std::shared_ptr<SimulatedWay> way, int end) : way_(std::move(way)), end_(end) {}
  bool passes_descriptors() const override { return way_->options_.passes_descriptors; }
  bool takes_megabytes() const override { return way_->options_.takes_megabytes; }
  void Start(std::shared_ptr<User> user) override { way_->Start(end_, std::move(user)); }
  bool Write(ByteChain bytes) override { return way_->Write(end_, bytes, /*later=*/false); }
  bool WriteLater(ByteChain bytes) override { return way_->Write(end_, bytes, /*later=*/true); }
  void Close() override { way_->Close(end_); }

 private:
  const std::shared_ptr<SimulatedWay> way_;
  const int end_;
};

std::shared_ptr<SimulatedWay> SimulatedWay::Make(SimulatedTime* time, const Options& options) {
  return std::shared_ptr<SimulatedWay>(new SimulatedWay(time, options));
}

std::unique_ptr<ByteWire> SimulatedWay::TakeWire(int end) {
  return std::make_unique<Wire>(shared_from_this(), end);
}

absl::Duration SimulatedWay::Delay() {
  const int64_t longest = absl::ToInt64Nanoseconds(options_.longest_delay);
  return absl::Nanoseconds(static_cast<int64_t>(time_->Draw(static_cast<uint64_t>(longest) + 1)));
}

void SimulatedWay::Start(int end, std::shared_ptr<ByteWire::User> user) {
  ends_[end].user = std::move(user);
  Schedule(end);
}

bool SimulatedWay::Write(int end, const ByteChain& bytes, bool later) {
  End& from = ends_[end];
  if (is_broken_ || from.is_closed || ends_[1 - end].is_closed) return !later;  // lost
  ++from.num_writes;
  from.written_bytes += static_cast<uint64_t>(bytes.num_bytes());
  for (const ByteChain::Piece& piece : bytes.pieces()) {
    if (options_.passes_descriptors && piece.descriptor() != nullptr) {
      from.descriptors.emplace_back(from.out.size(), piece.descriptor());
    }
    from.out.append(piece.bytes().data(), piece.bytes().size());
  }
  Schedule(1 - end);
  if (from.out.size() > options_.buffer_bytes) {
    from.writer_waits = true;
    return false;
  }
  if (!later && time_->Draw(2) == 0) return true;
  time_->Later(Delay(), [way = shared_from_this(), end] {
    // A copy: the user may let go of the way.
    const std::shared_ptr<ByteWire::User> user = way->ends_[end].user;
    if (user != nullptr) user->OnWritten();
  });
  return false;
}

void SimulatedWay::Schedule(int end) {
  End& to = ends_[end];
  const End& from = ends_[1 - end];
  if (to.has_event || to.is_stopped || to.is_closed || is_broken_ || to.user == nullptr) return;
  if (from.out.empty() && !from.is_closed) return;
  to.has_event = true;
  time_->Later(Delay(), [way = shared_from_this(), end] { way->Arrive(end); });
}

void SimulatedWay::Arrive(int end) {
  End& to = ends_[end];
  End& from = ends_[1 - end];
  to.has_event = false;
  if (to.is_stopped || to.is_closed || is_broken_) return;
  if (from.out.empty()) {
    if (from.is_closed) TellClosed(end, absl::ZeroDuration(), "the end of the stream", true);
    return;
  }
  const std::shared_ptr<ByteWire::User> user = to.user;
  if (user == nullptr) return;
  uint64_t n = 1 + time_->Draw(std::min<uint64_t>(from.out.size(), options_.max_piece_bytes));
  if (from.breaks) n = std::min(n, from.breaks_after);
  const absl::Span<char> place = user->Place();
  bool in_place = !place.empty() && time_->Draw(2) == 0;
  std::shared_ptr<const OwnedFd> descriptor;
  if (!from.descriptors.empty()) {
    const uint64_t at = from.descriptors.front().first;
    if (in_place && at < std::min<uint64_t>(n, place.size())) {
      if (at > 0) n = at;
      in_place = at > 0;
    }
    if (!in_place && at < n) {
      descriptor = std::move(from.descriptors.front().second);
      from.descriptors.pop_front();
      if (!from.descriptors.empty()) n = std::min(n, from.descriptors.front().first);
    }
  }
  if (in_place) n = std::min<uint64_t>(n, place.size());
  const std::string piece = from.out.substr(0, static_cast<size_t>(n));
  from.out.erase(0, static_cast<size_t>(n));
  for (auto& [at, later] : from.descriptors) at -= n;
  if (from.breaks) from.breaks_after -= n;
  if (from.writer_waits && from.out.size() <= options_.buffer_bytes) {
    from.writer_waits = false;
    time_->Later(Delay(), [way = shared_from_this(), writer = 1 - end] {
      const std::shared_ptr<ByteWire::User> told = way->ends_[writer].user;
      if (told != nullptr) told->OnWritten();
    });
  }
  if (descriptor != nullptr) {
    user->OnDescriptor(options_.has_room_for_descriptors
                           ? OwnedFd(::fcntl(descriptor->get(), F_DUPFD_CLOEXEC, 0))
                           : OwnedFd());
  }
  if (in_place) {
    std::copy(piece.begin(), piece.end(), place.begin());
    user->OnFilled(piece.size());
  } else if (!piece.empty()) {
    user->OnBytes(piece);
  }
  if (from.breaks && from.breaks_after == 0) return Break();
  Schedule(end);
}

void SimulatedWay::StopReading(int end) { ends_[end].is_stopped = true; }

void SimulatedWay::GoOnReading(int end) {
  ends_[end].is_stopped = false;
  Schedule(end);
}

void SimulatedWay::BreakAfter(int end, uint64_t bytes) {
  ends_[end].breaks = true;
  ends_[end].breaks_after = bytes;
  if (bytes == 0) Break();
}

void SimulatedWay::Break() {
  if (is_broken_) return;
  is_broken_ = true;
  for (int end = 0; end < 2; ++end) {
    ends_[end].out.clear();
    ends_[end].descriptors.clear();
    TellClosed(end, absl::Milliseconds(static_cast<int64_t>(time_->Draw(30'000))),
               "the connection was lost", false);
  }
}

void SimulatedWay::Close(int end) {
  End& closing = ends_[end];
  if (closing.is_closed) return;
  closing.is_closed = true;
  ends_[1 - end].out.clear();  // nobody reads it
  ends_[1 - end].descriptors.clear();
  TellClosed(end, absl::ZeroDuration(), "closed here", false);
  if (ends_[1 - end].writer_waits) {
    ends_[1 - end].writer_waits = false;
    time_->Later(Delay(), [way = shared_from_this(), writer = 1 - end] {
      const std::shared_ptr<ByteWire::User> told = way->ends_[writer].user;
      if (told != nullptr) told->OnWritten();
    });
  }
  Schedule(1 - end);
}

void SimulatedWay::TellClosed(int end, absl::Duration delay, const char* why, bool by_peer) {
  time_->Later(delay, [way = shared_from_this(), end, why, by_peer] {
    const std::shared_ptr<ByteWire::User> user = std::move(way->ends_[end].user);
    way->ends_[end].user = nullptr;
    if (user != nullptr) user->OnClosed(absl::UnavailableError(why), by_peer);
  });
}

}  // namespace millrace

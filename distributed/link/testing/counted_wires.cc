// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/testing/counted_wires.h"

#include <cstddef>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"

namespace millrace {

struct CountedWires::Flight {
  struct End {
    int64_t written = 0;  // counted before Write
    int64_t read = 0;     // counted after the call of the user
    int writes = 0;       // that have not ended, with their OnWritten
    bool is_closed = false;
    bool has_heard = false;  // OnClosed has returned
  };

  bool IsSettled() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    if (ends[0].is_closed || ends[1].is_closed) return ends[0].has_heard && ends[1].has_heard;
    return ends[0].written == ends[1].read && ends[1].written == ends[0].read &&
           ends[0].writes == 0 && ends[1].writes == 0;
  }
  template <typename Change>
  void Count(int end, Change change) {
    MutexLock lock(&mu);
    change(ends[end]);
    if (IsSettled()) settled.SignalAll();
  }

  Mutex mu;
  CondVar settled;
  End ends[2] ABSL_GUARDED_BY(mu);
};

class CountedWires::Wire final : public ByteWire {
 public:
  Wire(std::shared_ptr<Flight> flight, int end, std::unique_ptr<ByteWire> wire)
      : flight_(std::move(flight)), end_(end), wire_(std::move(wire)) {}

  void Start(std::shared_ptr<User> user) override {
    wire_->Start(std::make_shared<CountedUser>(flight_, end_, std::move(user)));
  }
  bool Write(ByteChain bytes) override {
    flight_->Count(end_, [&](Flight::End& end) {
      end.written += bytes.num_bytes();
      ++end.writes;
    });
    const bool has_left = wire_->Write(std::move(bytes));
    if (has_left) flight_->Count(end_, [](Flight::End& end) { --end.writes; });
    return has_left;
  }
  void Close() override {
    flight_->Count(end_, [](Flight::End& end) { end.is_closed = true; });
    wire_->Close();
  }

 private:
  class CountedUser final : public User {
   public:
    CountedUser(std::shared_ptr<Flight> flight, int end, std::shared_ptr<User> user)
        : flight_(std::move(flight)), end_(end), user_(std::move(user)) {}

    void OnBytes(absl::string_view bytes) override {
      user_->OnBytes(bytes);
      CountRead(bytes.size());
    }
    absl::Span<char> Place() override { return user_->Place(); }
    void OnFilled(size_t num_bytes) override {
      user_->OnFilled(num_bytes);
      CountRead(num_bytes);
    }
    void OnWritten() override {
      user_->OnWritten();
      flight_->Count(end_, [](Flight::End& end) { --end.writes; });
    }
    void OnClosed(const Status& status, bool by_peer) override {
      flight_->Count(end_, [](Flight::End& end) { end.is_closed = true; });
      user_->OnClosed(status, by_peer);
      flight_->Count(end_, [](Flight::End& end) { end.has_heard = true; });
    }

   private:
    void CountRead(size_t num_bytes) {
      flight_->Count(end_, [&](Flight::End& end) { end.read += static_cast<int64_t>(num_bytes); });
    }

    const std::shared_ptr<Flight> flight_;
    const int end_;
    const std::shared_ptr<User> user_;
  };

  const std::shared_ptr<Flight> flight_;
  const int end_;
  const std::unique_ptr<ByteWire> wire_;
};

CountedWires::CountedWires() : flight_(std::make_shared<Flight>()) {}

CountedWires::~CountedWires() = default;

std::unique_ptr<ByteWire> CountedWires::Count(int end, std::unique_ptr<ByteWire> wire) {
  return std::make_unique<Wire>(flight_, end, std::move(wire));
}

bool CountedWires::Settle() {
  const absl::Time until = absl::Now() + absl::Minutes(1);
  MutexLock lock(&flight_->mu);
  while (!flight_->IsSettled()) {
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    flight_->settled.WaitWithTimeout(&flight_->mu, left);
  }
  return true;
}

int64_t CountedWires::read_bytes(int end) const {
  MutexLock lock(&flight_->mu);
  return flight_->ends[end].read;
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/testing/raw_link.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>

#include "absl/functional/function_ref.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/grpc_wire.h"
#include "gtest/gtest.h"
#include "net/rpc_channel.h"

namespace millrace {
namespace {

constexpr absl::Duration kHang = absl::Minutes(1);

}  // namespace

// Owns the wire, which keeps it until it is closed, as a ByteLink does.
class RawLink::State : public ByteWire::User, private FrameReader::Owner {
 public:
  explicit State(std::unique_ptr<ByteWire> wire) : wire_(std::move(wire)), reader_(this) {}

  ByteWire* wire() { return wire_.get(); }

  // ByteWire::User.
  void OnBytes(absl::string_view bytes) override { EXPECT_OK(reader_.Read(bytes)); }
  absl::Span<char> Place() override { return {}; }
  void OnFilled(size_t) override {}
  void OnWritten() override {
    MutexLock lock(&mu_);
    is_writing_ = false;
    changed_.SignalAll();
  }
  void OnClosed(const Status&, bool) override {
    MutexLock lock(&mu_);
    is_closed_ = true;
    changed_.SignalAll();
  }

  void Say(absl::string_view bytes) {
    {
      MutexLock lock(&mu_);
      if (is_closed_) return;
      is_writing_ = true;
    }
    ByteChain chain;
    chain.Append(bytes);
    const bool has_left = wire_->Write(std::move(chain));
    MutexLock lock(&mu_);
    if (has_left) is_writing_ = false;
    Await("what was said to leave", [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return !is_writing_; });
  }
  std::optional<HelloFrame> AwaitHello() {
    MutexLock lock(&mu_);
    Await("HELLO", [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return hello_.has_value(); });
    return hello_;
  }
  Status AwaitFarewell() {
    MutexLock lock(&mu_);
    Await("the end", [] { return false; });
    return farewell_;
  }
  bool is_closed() const {
    MutexLock lock(&mu_);
    return is_closed_;
  }
  int num_frames() const {
    MutexLock lock(&mu_);
    return num_frames_;
  }

 private:
  // FrameReader::Owner.
  Status OnFrame(LinkFrame frame, int64_t) override {
    MutexLock lock(&mu_);
    ++num_frames_;
    if (const auto* const hello = std::get_if<HelloFrame>(&frame)) hello_ = *hello;
    if (const auto* const bye = std::get_if<ByeFrame>(&frame)) farewell_ = bye->status;
    changed_.SignalAll();
    return absl::OkStatus();
  }
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame&) override { return absl::Span<char>(); }

  // Until `is_so`, or the wire is closed.
  void Await(const char* what, absl::FunctionRef<bool()> is_so) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Time hang = absl::Now() + kHang;
    while (!is_so() && !is_closed_) {
      const absl::Duration left = hang - absl::Now();
      if (left <= absl::ZeroDuration()) {
        ADD_FAILURE() << "a raw link waits for " << what;
        return;
      }
      changed_.WaitWithTimeout(&mu_, left);
    }
  }

  const std::unique_ptr<ByteWire> wire_;
  FrameReader reader_;  // by the reading thread alone
  mutable Mutex mu_;
  CondVar changed_;
  bool is_writing_ ABSL_GUARDED_BY(mu_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  int num_frames_ ABSL_GUARDED_BY(mu_) = 0;
  std::optional<HelloFrame> hello_ ABSL_GUARDED_BY(mu_);
  Status farewell_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<RawLink> RawLink::Dial(const std::string& address) {
  // The connection may outlive the channel.
  return Dial(RpcChannel::Make(address).get());
}

std::unique_ptr<RawLink> RawLink::Dial(RpcChannel* channel) {
  return std::make_unique<RawLink>(DialGrpcWire(channel));
}

RawLink::RawLink(std::unique_ptr<ByteWire> wire)
    : state_(std::make_shared<State>(std::move(wire))) {
  state_->wire()->Start(state_);
}

RawLink::~RawLink() { state_->wire()->Close(); }

void RawLink::Say(absl::string_view bytes) { state_->Say(bytes); }

std::optional<HelloFrame> RawLink::AwaitHello() { return state_->AwaitHello(); }

Status RawLink::AwaitFarewell() { return state_->AwaitFarewell(); }

bool RawLink::is_closed() const { return state_->is_closed(); }

int RawLink::num_frames() const { return state_->num_frames(); }

}  // namespace millrace

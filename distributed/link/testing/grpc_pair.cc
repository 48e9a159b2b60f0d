// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/testing/grpc_pair.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/grpc_wire.h"
#include "gtest/gtest.h"
#include "net/duplex_call.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "net/security.h"

namespace millrace {
namespace {

constexpr absl::Duration kHang = absl::Minutes(1);

class CountedUser : public ByteWire::User {
 public:
  CountedUser(std::shared_ptr<ByteWire::User> user, std::shared_ptr<WireCounts> counts, int end)
      : user_(std::move(user)), counts_(std::move(counts)), end_(end) {}

  void OnBytes(absl::string_view bytes) override {
    user_->OnBytes(bytes);
    AddRead(bytes.size());
  }
  absl::Span<char> Place() override { return user_->Place(); }
  void OnFilled(size_t num_bytes) override {
    user_->OnFilled(num_bytes);
    AddRead(num_bytes);
  }
  void OnDescriptor(OwnedFd descriptor) override { user_->OnDescriptor(std::move(descriptor)); }
  // The write that has left was busy, and so is the user until it has written more.
  void OnWritten() override {
    user_->OnWritten();
    counts_->Count(end_, [](WireCounts::End* end) { --end->busy; });
  }
  void OnClosed(const Status& status, bool by_peer) override {
    user_->OnClosed(status, by_peer);
    counts_->Count(end_, [](WireCounts::End* end) { end->is_closed = true; });
  }

 private:
  void AddRead(size_t num_bytes) {
    counts_->Count(
        end_, [&](WireCounts::End* end) { end->read_bytes += static_cast<int64_t>(num_bytes); });
  }

  const std::shared_ptr<ByteWire::User> user_;
  const std::shared_ptr<WireCounts> counts_;
  const int end_;
};

class CountedWire : public ByteWire {
 public:
  CountedWire(std::unique_ptr<ByteWire> wire, std::shared_ptr<WireCounts> counts, int end)
      : wire_(std::move(wire)), counts_(std::move(counts)), end_(end) {}

  bool passes_descriptors() const override { return wire_->passes_descriptors(); }
  bool takes_megabytes() const override { return wire_->takes_megabytes(); }
  void Start(std::shared_ptr<User> user) override {
    wire_->Start(std::make_shared<CountedUser>(std::move(user), counts_, end_));
    counts_->Count(end_, [](WireCounts::End* end) { end->is_started = true; });
  }
  bool Write(ByteChain bytes) override {
    CountWrite(bytes);
    return HasLeft(wire_->Write(std::move(bytes)));
  }
  bool WriteLater(ByteChain bytes) override {
    CountWrite(bytes);
    return HasLeft(wire_->WriteLater(std::move(bytes)));
  }
  void Close() override {
    counts_->Count(end_, [](WireCounts::End* end) { end->is_closing = true; });
    wire_->Close();
  }

 private:
  void CountWrite(const ByteChain& bytes) {
    counts_->Count(end_, [&](WireCounts::End* end) {
      end->written_bytes += bytes.num_bytes();
      ++end->busy;
    });
  }
  bool HasLeft(bool has_left) {
    if (has_left) counts_->Count(end_, [](WireCounts::End* end) { --end->busy; });
    return has_left;
  }

  const std::unique_ptr<ByteWire> wire_;
  const std::shared_ptr<WireCounts> counts_;
  const int end_;
};

class GrpcPair : public LinkPair {
 public:
  GrpcPair(const LinkPeer& worker, const LinkPeer& ps) : worker_(worker), ps_(ps) {
    RpcServer::Options options;
    options.address = "127.0.0.1:0";
    options.duplex_handlers[kLinkMethod] = [this](std::shared_ptr<DuplexCall> call) {
      ByteLinkOptions link;
      link.task = ps_.task;
      link.incarnation = ps_.incarnation;
      link.waits_for_hello = true;
      ByteLink::Open(MakeCountedWire(AcceptGrpcWire(std::move(call)), counts_, 1), ps_end, link);
    };
    StatusOr<std::unique_ptr<RpcServer>> server = RpcServer::Start(std::move(options));
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
  }
  ~GrpcPair() override {
    for (const auto& end : {worker_end, ps_end}) {
      if (end->link() != nullptr) end->link()->Close(absl::AbortedError("the test is over"));
    }
    if (is_open_) Settle();
    for (const auto& end : {worker_end, ps_end}) end->LetGo();
    if (server_ != nullptr) server_->Shutdown(absl::Now());
  }
  void Settle() override {
    if (!is_open_) Open();
    EXPECT_TRUE(counts_->AwaitQuiet()) << "bytes are still on their way";
  }

 private:
  void Open() {
    is_open_ = true;
    if (server_ == nullptr) return;
    channel_ = RpcChannel::Make(absl::StrCat("127.0.0.1:", server_->port()),
                                std::make_shared<const Credentials>());
    ByteLinkOptions link;
    link.task = worker_.task;
    link.incarnation = worker_.incarnation;
    link.peer_task = ps_.task;
    link.peer_incarnation = ps_.incarnation;
    ByteLink::Open(MakeCountedWire(DialGrpcWire(channel_.get()), counts_, 0), worker_end, link);
  }

  const LinkPeer worker_, ps_;
  const std::shared_ptr<WireCounts> counts_ = std::make_shared<WireCounts>();
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<RpcChannel> channel_;
  bool is_open_ = false;
};

}  // namespace

bool WireCounts::IsQuiet() const {
  if (ends_[0].is_closing || ends_[1].is_closing || ends_[0].is_closed || ends_[1].is_closed) {
    return ends_[0].is_closed && ends_[1].is_closed;
  }
  return ends_[0].is_started && ends_[1].is_started && ends_[0].busy == 0 && ends_[1].busy == 0 &&
         ends_[0].written_bytes == ends_[1].read_bytes &&
         ends_[1].written_bytes == ends_[0].read_bytes;
}

bool WireCounts::AwaitQuiet() {
  const absl::Time hang = absl::Now() + kHang;
  MutexLock lock(&mu_);
  while (!IsQuiet()) {
    const absl::Duration left = hang - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    changed_.WaitWithTimeout(&mu_, left);
  }
  return true;
}

bool WireCounts::IsClosed(int end) const {
  MutexLock lock(&mu_);
  return ends_[end].is_closed;
}

std::unique_ptr<ByteWire> MakeCountedWire(std::unique_ptr<ByteWire> wire,
                                          std::shared_ptr<WireCounts> counts, int end) {
  return std::make_unique<CountedWire>(std::move(wire), std::move(counts), end);
}

std::unique_ptr<LinkPair> MakeGrpcPair(const LinkPeer& worker, const LinkPeer& ps) {
  return std::make_unique<GrpcPair>(worker, ps);
}

}  // namespace millrace

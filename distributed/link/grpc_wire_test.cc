// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/grpc_wire.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_wire.h"
#include "gtest/gtest.h"
#include "net/duplex_call.h"
#include "net/rpc_channel.h"
#include "net/rpc_server.h"
#include "net/security.h"

namespace millrace {
namespace {

constexpr absl::Duration kHang = absl::Seconds(30);

// Writes down what a wire says.
class Listener : public ByteWire::User {
 public:
  void OnBytes(absl::string_view bytes) override {
    MutexLock lock(&mu_);
    bytes_.append(bytes.data(), bytes.size());
    changed_.SignalAll();
  }
  absl::Span<char> Place() override { return {}; }
  void OnFilled(size_t) override {}
  void OnWritten() override {
    MutexLock lock(&mu_);
    ++written_;
    changed_.SignalAll();
  }
  void OnClosed(const Status& status, bool by_peer) override {
    MutexLock lock(&mu_);
    ++closes_;
    status_ = status;
    by_peer_ = by_peer;
    changed_.SignalAll();
  }

  // False when it takes too long.
  bool AwaitBytes(size_t n) {
    return Await([&] { return bytes_.size() >= n; });
  }
  bool AwaitWritten(int n) {
    return Await([&] { return written_ >= n; });
  }
  bool AwaitClosed() {
    return Await([&] { return closes_ > 0; });
  }
  std::string bytes() {
    MutexLock lock(&mu_);
    return bytes_;
  }
  Status status() {
    MutexLock lock(&mu_);
    EXPECT_EQ(closes_, 1);
    return status_;
  }
  bool by_peer() {
    MutexLock lock(&mu_);
    return by_peer_;
  }

 private:
  template <typename Condition>
  bool Await(Condition condition) {
    const absl::Time hang = absl::Now() + kHang;
    MutexLock lock(&mu_);
    while (!condition()) {
      if (absl::Now() >= hang) return false;
      changed_.WaitWithTimeout(&mu_, absl::Seconds(1));
    }
    return true;
  }

  Mutex mu_;
  CondVar changed_;
  std::string bytes_;
  int written_ = 0;
  int closes_ = 0;
  Status status_;
  bool by_peer_ = false;
};

// A server with links, or without.
class LinkServer {
 public:
  explicit LinkServer(bool has_links = true,
                      std::shared_ptr<const Credentials> credentials = nullptr) {
    RpcServer::Options options;
    options.address = "127.0.0.1:0";
    options.credentials = std::move(credentials);
    if (has_links) {
      options.duplex_handlers[kLinkMethod] = [this](std::shared_ptr<DuplexCall> call) {
        std::unique_ptr<ByteWire> wire = AcceptGrpcWire(std::move(call));
        ByteWire* const started = wire.get();
        const auto listener = std::make_shared<Listener>();
        {
          MutexLock lock(&mu_);
          wires_.push_back(std::move(wire));
          listeners_.push_back(listener);
          changed_.SignalAll();
        }
        started->Start(listener);
      };
    }
    auto server = RpcServer::Start(std::move(options));
    EXPECT_OK(server);
    if (server.ok()) server_ = *std::move(server);
  }

  int port() const { return server_->port(); }
  int num_wires() {
    MutexLock lock(&mu_);
    return static_cast<int>(wires_.size());
  }
  // Of the last call; there is one.
  std::pair<ByteWire*, std::shared_ptr<Listener>> Accepted() {
    const absl::Time hang = absl::Now() + kHang;
    MutexLock lock(&mu_);
    while (wires_.empty() && absl::Now() < hang) changed_.WaitWithTimeout(&mu_, absl::Seconds(1));
    EXPECT_FALSE(wires_.empty());
    return {wires_.back().get(), listeners_.back()};
  }
  void Shutdown() { server_->Shutdown(absl::InfinitePast()); }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<std::unique_ptr<ByteWire>> wires_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<RpcServer> server_;
};

struct Dialled {
  explicit Dialled(int port, std::shared_ptr<const Credentials> credentials = nullptr)
      : channel(RpcChannel::Make(absl::StrCat("127.0.0.1:", port), std::move(credentials))),
        wire(DialGrpcWire(channel.get())) {
    wire->Start(listener);
  }
  const std::shared_ptr<RpcChannel> channel;
  const std::unique_ptr<ByteWire> wire;
  const std::shared_ptr<Listener> listener = std::make_shared<Listener>();
};

ByteChain Chain(absl::string_view bytes) {
  ByteChain chain;
  chain.Append(bytes);
  return chain;
}

// A socket that listens on a port of its own.
class ListeningSocket {
 public:
  ListeningSocket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_, 10), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
  }
  ~ListeningSocket() { close(fd_); }
  int fd() const { return fd_; }
  int port() const { return port_; }

 private:
  const int fd_;
  int port_ = 0;
};

// Hands bytes on between callers and a port of this machine, until both connections end as those of
// a process that is killed: by the kernel.
class Relay {
 public:
  explicit Relay(int to_port) : thread_([this, to_port] { Run(to_port); }) {}
  ~Relay() { Kill(); }
  int port() const { return socket_.port(); }
  void Kill() {
    if (!thread_.joinable()) return;
    is_killed_ = true;
    thread_.join();
  }

 private:
  static int Connect(int port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return fd;
  }
  // False when there is no more.
  static bool Hand(int from, int to) {
    char buffer[1 << 16];
    const ssize_t n = read(from, buffer, sizeof(buffer));
    for (ssize_t at = 0; at < n;) {
      const ssize_t written = send(to, buffer + at, static_cast<size_t>(n - at), MSG_NOSIGNAL);
      if (written <= 0) return false;
      at += written;
    }
    return n > 0;
  }
  // One connection: a channel has no more.
  void Run(int to_port) {
    pollfd caller = {socket_.fd(), POLLIN, 0};
    while (poll(&caller, 1, 10) == 0) {
      if (is_killed_) return;
    }
    const int fds[2] = {accept(socket_.fd(), nullptr, nullptr), Connect(to_port)};
    bool goes_on = true;
    while (goes_on && !is_killed_) {
      pollfd both[2] = {{fds[0], POLLIN, 0}, {fds[1], POLLIN, 0}};
      poll(both, 2, 10);
      for (int i = 0; i < 2; ++i) {
        if (both[i].revents != 0) goes_on = goes_on && Hand(fds[i], fds[1 - i]);
      }
    }
    for (const int fd : fds) close(fd);
  }

  const ListeningSocket socket_;
  std::atomic<bool> is_killed_{false};
  std::thread thread_;  // last: uses the others
};

// covers: clusters: bytes of a wire over gRPC arrive in order in both directions, from where they
//   lie, and their memory is let go of once they have left
TEST(GrpcWireTest, BytesArriveInOrderAndTheirMemoryIsLetGoOf) {
  LinkServer server;
  std::atomic<int> released{0};
  std::string block(300'000, 'b');
  {
    Dialled dialled(server.port());
    ByteChain chain = Chain("head");
    chain.AppendReference(
        Buffer::External(block.data(), block.size(), [&] { released.fetch_add(1); }), block);
    chain.Append(std::string(10'000, 't'));
    EXPECT_FALSE(dialled.wire->Write(std::move(chain)));
    ASSERT_TRUE(dialled.listener->AwaitWritten(1));
    dialled.wire->Write(Chain("end"));
    const auto [wire, listener] = server.Accepted();
    ASSERT_TRUE(listener->AwaitBytes(310'007));
    EXPECT_EQ(listener->bytes(), absl::StrCat("head", block, std::string(10'000, 't'), "end"));
    wire->Write(Chain("answer"));
    ASSERT_TRUE(dialled.listener->AwaitBytes(6));
    EXPECT_EQ(dialled.listener->bytes(), "answer");
    dialled.wire->Close();
    dialled.wire->Close();
    ASSERT_TRUE(dialled.listener->AwaitClosed() && listener->AwaitClosed());
    EXPECT_FALSE(dialled.listener->status().ok());
    EXPECT_FALSE(dialled.listener->by_peer());
    EXPECT_FALSE(listener->status().ok());
    EXPECT_TRUE(listener->by_peer());
    // Without effect.
    EXPECT_FALSE(dialled.wire->Write(Chain("late")));
    wire->Close();
  }
  // gRPC frees what it has sent when it comes to it.
  for (int i = 0; i < 1000 && released == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(released, 1);
}

// covers: clusters: what was written before the wire was closed arrives, as the farewell of a link
//   must
TEST(GrpcWireTest, AFarewellArrives) {
  LinkServer server;
  Dialled dialled(server.port());
  dialled.wire->Write(Chain("hello"));
  const auto [wire, listener] = server.Accepted();
  ASSERT_TRUE(listener->AwaitBytes(5));
  wire->Write(Chain("bye"));
  wire->Close();
  ASSERT_TRUE(dialled.listener->AwaitClosed());
  EXPECT_EQ(dialled.listener->bytes(), "bye");
  EXPECT_TRUE(dialled.listener->by_peer());
  ASSERT_TRUE(listener->AwaitClosed());
  EXPECT_FALSE(listener->by_peer());
}

// covers: clusters: the end of the peer's process is heard at once at either end of a wire, as the
//   peer's
TEST(GrpcWireTest, ThePeersEndIsHeardAsThePeers) {
  LinkServer server;
  Relay relay(server.port());
  Dialled dialled(relay.port());
  dialled.wire->Write(Chain("hello"));
  const auto [wire, listener] = server.Accepted();
  ASSERT_TRUE(listener->AwaitBytes(5));
  wire->Write(Chain("hello"));
  ASSERT_TRUE(dialled.listener->AwaitBytes(5));
  const absl::Time killed = absl::Now();
  relay.Kill();
  ASSERT_TRUE(dialled.listener->AwaitClosed() && listener->AwaitClosed());
  EXPECT_LT(absl::Now() - killed, absl::Seconds(10));  // no keepalive was needed
  EXPECT_TRUE(dialled.listener->by_peer());
  EXPECT_STATUS(dialled.listener->status(), absl::StatusCode::kUnavailable, "must be reachable");
  EXPECT_TRUE(listener->by_peer());
  EXPECT_STATUS(listener->status(), absl::StatusCode::kUnavailable, "its process has ended");
}

TEST(GrpcWireTest, AServerThatShutsDownClosesItsWires) {
  LinkServer server;
  Dialled dialled(server.port());
  dialled.wire->Write(Chain("hello"));
  const auto [wire, listener] = server.Accepted();
  ASSERT_TRUE(listener->AwaitBytes(5));
  wire->Write(Chain("hello"));
  ASSERT_TRUE(dialled.listener->AwaitBytes(5));
  server.Shutdown();
  ASSERT_TRUE(dialled.listener->AwaitClosed() && listener->AwaitClosed());
  EXPECT_TRUE(dialled.listener->by_peer());
}

// covers: clusters: who dials what is no task with links hears what was found there
TEST(GrpcWireTest, WhatIsNoTaskWithLinksIsNamed) {
  {
    LinkServer without(/*has_links=*/false);
    Dialled dialled(without.port());
    dialled.wire->Write(Chain("hello"));
    ASSERT_TRUE(dialled.listener->AwaitClosed());
    EXPECT_STATUS(dialled.listener->status(), absl::StatusCode::kFailedPrecondition,
                  "the task must have links (/millrace.Link/Connect), got: Method must be one of "
                  "this server");
    EXPECT_FALSE(dialled.listener->by_peer());
  }
  int nobody;
  {
    const ListeningSocket socket;
    nobody = socket.port();
  }
  Dialled dialled(nobody);
  dialled.wire->Write(Chain("hello"));
  ASSERT_TRUE(dialled.listener->AwaitClosed());
  EXPECT_STATUS(dialled.listener->status(), absl::StatusCode::kUnavailable,
                absl::StrCat("127.0.0.1:", nobody));
  EXPECT_FALSE(dialled.listener->by_peer());
  // A program that answers in a language of its own.
  const ListeningSocket web;
  std::thread server([&] {
    for (int i = 0; i < 2; ++i) {  // the dial, and the look at why it failed
      pollfd caller = {web.fd(), POLLIN, 0};
      if (poll(&caller, 1, i == 0 ? 10'000 : 1000) <= 0) return;
      const int fd = accept(web.fd(), nullptr, nullptr);
      constexpr char kAnswer[] = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
      send(fd, kAnswer, sizeof(kAnswer) - 1, MSG_NOSIGNAL);
      close(fd);
    }
  });
  Dialled misled(web.port());
  misled.wire->Write(Chain("hello"));
  EXPECT_TRUE(misled.listener->AwaitClosed());
  server.join();
  EXPECT_STATUS(misled.listener->status(), absl::StatusCode::kUnavailable,
                absl::StrCat("127.0.0.1:", web.port()));
  EXPECT_FALSE(misled.listener->by_peer());
}

// covers: clusters: a link is refused without the cluster's token, before a byte of it is read
TEST(GrpcWireTest, AWrongTokenIsRefusedBeforeAByteIsRead) {
  const auto with_token = [](const std::string& token) {
    auto credentials = std::make_shared<Credentials>();
    credentials->token = token;
    return credentials;
  };
  LinkServer server(/*has_links=*/true, with_token("cluster-0123456789"));
  for (const char* token : {"", "another-0123456789"}) {
    Dialled dialled(server.port(), with_token(token));
    dialled.wire->Write(Chain("hello"));
    ASSERT_TRUE(dialled.listener->AwaitClosed());
    EXPECT_STATUS(dialled.listener->status(), absl::StatusCode::kUnauthenticated,
                  "callers must show the token of this cluster");
    EXPECT_FALSE(dialled.listener->by_peer());
  }
  EXPECT_EQ(server.num_wires(), 0);
  Dialled member(server.port(), with_token("cluster-0123456789"));
  member.wire->Write(Chain("hello"));
  EXPECT_TRUE(server.Accepted().second->AwaitBytes(5));
  member.wire->Close();
  EXPECT_TRUE(member.listener->AwaitClosed());
}

TEST(GrpcWireTest, AWireThatIsClosedAtOnceEnds) {
  LinkServer server;
  for (int i = 0; i < 20; ++i) {
    Dialled dialled(server.port());
    if (i % 2 == 1) dialled.wire->Write(Chain("hello"));
    dialled.wire->Close();
    ASSERT_TRUE(dialled.listener->AwaitClosed());
    EXPECT_FALSE(dialled.listener->by_peer());
  }
}

}  // namespace
}  // namespace millrace

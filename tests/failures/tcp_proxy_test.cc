// SPDX-License-Identifier: Apache-2.0
#include "tests/failures/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using Flow = TcpProxy::Flow;
using Way = TcpProxy::Way;

constexpr int kGuardMs = 30000;
// Long enough for bytes of a broken proxy to arrive.
constexpr int kSilenceMs = 100;

// A socket that is closed with its owner.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

  void Send(const std::string& text) {
    ASSERT_EQ(send(fd_, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // `n` bytes; fewer when the peer ends or nothing comes.
  std::string Receive(size_t n) {
    std::string text;
    char buffer[4096];
    while (text.size() < n && Readable(kGuardMs)) {
      const ssize_t got = recv(fd_, buffer, std::min(sizeof buffer, n - text.size()), 0);
      if (got <= 0) break;
      text.append(buffer, static_cast<size_t>(got));
    }
    return text;
  }
  bool Readable(int ms) {
    pollfd fd = {fd_, POLLIN, 0};
    return poll(&fd, 1, ms) > 0;
  }
  // 0: an end; < 0: a reset.
  ssize_t ReceiveEnd() {
    char byte;
    return Readable(kGuardMs) ? recv(fd_, &byte, 1, 0) : 1;
  }

 private:
  const int fd_;
};

sockaddr_in Address(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

class TcpProxyTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = std::make_unique<Socket>(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = Address(0);
    socklen_t size = sizeof address;
    ASSERT_EQ(bind(listener_->fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
    ASSERT_EQ(listen(listener_->fd(), 8), 0);
    ASSERT_EQ(getsockname(listener_->fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    ASSERT_OK_AND_ASSIGN(proxy_, TcpProxy::Start(port_));
  }
  // A connection through the proxy; null where none could be made.
  std::unique_ptr<Socket> Dial() {
    auto dialled = std::make_unique<Socket>(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in address = Address(proxy_->port());
    if (connect(dialled->fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      return nullptr;
    }
    return dialled;
  }
  std::unique_ptr<Socket> Accept() {
    return listener_->Readable(kGuardMs)
               ? std::make_unique<Socket>(accept(listener_->fd(), nullptr, nullptr))
               : nullptr;
  }
  void Connect() {
    client_ = Dial();
    ASSERT_NE(client_, nullptr);
    task_ = Accept();
    ASSERT_NE(task_, nullptr);
  }

  int port_ = 0;
  std::unique_ptr<Socket> listener_;
  std::unique_ptr<TcpProxy> proxy_;
  std::unique_ptr<Socket> client_, task_;
};

TEST_F(TcpProxyTest, ForwardsBothWaysAndTheEnd) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  client_->Send("ping");
  EXPECT_EQ(task_->Receive(4), "ping");
  task_->Send("answer");
  EXPECT_EQ(client_->Receive(6), "answer");
  EXPECT_EQ(proxy_->bytes(Way::kIn), 4);
  EXPECT_EQ(proxy_->bytes(Way::kOut), 6);
  EXPECT_EQ(proxy_->connections(), 1);
  shutdown(client_->fd(), SHUT_WR);
  EXPECT_EQ(task_->ReceiveEnd(), 0);
  task_->Send("late");
  EXPECT_EQ(client_->Receive(4), "late");
}

TEST_F(TcpProxyTest, MoreThanItKeepsArrivesInOrder) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  std::string text(8 << 20, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 31 >> 7);
  std::thread sender([&] { client_->Send(text); });
  EXPECT_TRUE(task_->Receive(text.size()) == text);
  sender.join();
}

TEST_F(TcpProxyTest, AHeldWayIsSilentAndGoesOnWhereItStopped) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  proxy_->Set(Way::kIn, Flow::kHeld);
  client_->Send("held");
  task_->Send("passes");
  EXPECT_EQ(client_->Receive(6), "passes");
  EXPECT_FALSE(task_->Readable(kSilenceMs));
  const std::unique_ptr<Socket> second = Dial();
  EXPECT_FALSE(listener_->Readable(kSilenceMs)) << "a connection came through";
  proxy_->Heal();
  EXPECT_EQ(task_->Receive(4), "held");
  EXPECT_NE(Accept(), nullptr);
}

TEST_F(TcpProxyTest, ASwallowedWayLosesBytesAndTheConnectionWithThem) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  proxy_->Set(Way::kOut, Flow::kSwallowed);
  task_->Send("lost");
  client_->Send("passes");
  EXPECT_EQ(task_->Receive(6), "passes");
  EXPECT_FALSE(client_->Readable(kSilenceMs));
  proxy_->Heal();
  EXPECT_LT(client_->ReceiveEnd(), 0);
  EXPECT_LT(task_->ReceiveEnd(), 0);
  ASSERT_NO_FATAL_FAILURE(Connect());
  task_->Send("new");
  EXPECT_EQ(client_->Receive(3), "new");
}

TEST_F(TcpProxyTest, AConnectionThatLostNothingSurvivesTheHealing) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  proxy_->Set(Way::kOut, Flow::kSwallowed);
  proxy_->Heal();
  task_->Send("whole");
  EXPECT_EQ(client_->Receive(5), "whole");
}

TEST_F(TcpProxyTest, CutResetsWhatIsOpenAndNothingElse) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  client_->Send("x");
  ASSERT_EQ(task_->Receive(1), "x");
  proxy_->Cut();
  EXPECT_LT(client_->ReceiveEnd(), 0);
  EXPECT_LT(task_->ReceiveEnd(), 0);
  ASSERT_NO_FATAL_FAILURE(Connect());
  client_->Send("y");
  EXPECT_EQ(task_->Receive(1), "y");
}

TEST_F(TcpProxyTest, DelayedBytesArriveLaterAndInOrder) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const absl::Duration delay = absl::Milliseconds(50);
  proxy_->Delay(delay);
  const absl::Time sent = absl::Now();
  client_->Send("a");
  client_->Send("b");
  EXPECT_EQ(task_->Receive(2), "ab");
  EXPECT_GE(absl::Now() - sent, delay);
}

TEST_F(TcpProxyTest, ATaskThatDoesNotListenResets) {
  listener_.reset();
  const std::unique_ptr<Socket> client = Dial();
  if (client != nullptr) {
    EXPECT_LE(client->ReceiveEnd(), 0);
  }
}

TEST_F(TcpProxyTest, AnotherTargetGetsTheNextConnections) {
  ASSERT_OK_AND_ASSIGN(const auto first, TcpProxy::Start(1));  // nobody listens there
  first->SetTarget(port_);
  Socket client(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in address = Address(first->port());
  ASSERT_EQ(connect(client.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_NE(Accept(), nullptr);
}

}  // namespace
}  // namespace millrace

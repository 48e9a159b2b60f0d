// SPDX-License-Identifier: Apache-2.0
#include "serving/front/node_client.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/owned_fd.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using Result = NodeExchange::Result;

// Each connection gets its replies, one per request of the body "x", and is closed.
class NodeClientTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/client_test_XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    dir_ = name;
    path_ = absl::StrCat(dir_, "/node");
  }
  void TearDown() override {
    if (server_.joinable()) server_.join();
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }
  // Takes as many connections as there are lists.
  void Serve(std::vector<std::vector<std::string>> replies) {
    listener_ = OwnedFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    std::memcpy(at.sun_path, path_.data(), path_.size());
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)), 0);
    ASSERT_EQ(listen(listener_.get(), 10), 0);
    server_ = std::thread([this, replies = std::move(replies)] {
      for (const std::vector<std::string>& of_connection : replies) {
        OwnedFd fd(accept(listener_.get(), nullptr, nullptr));
        for (const std::string& reply : of_connection) {
          std::string request;
          char byte;
          while (request.find("\r\n\r\nx") == std::string::npos &&
                 recv(fd.get(), &byte, 1, 0) == 1) {
            request += byte;
          }
          requests_.push_back(request);
          send(fd.get(), reply.data(), reply.size(), MSG_NOSIGNAL);
        }
        fd.Close();
        ++num_closed_;
        num_closed_.notify_all();
      }
      listener_.Close();
    });
  }
  static std::string ReplyOf(absl::string_view body) {
    return absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(),
                        "\r\nContent-Type: text/plain\r\n\r\n", body);
  }
  NodeExchange Post(NodeClient* client, absl::Duration time = absl::Seconds(60)) {
    return client->Post("/x", "application/json", "x", absl::Now() + time);
  }

  std::string dir_, path_;
  OwnedFd listener_;
  std::atomic<int> num_closed_{0};     // connections
  std::vector<std::string> requests_;  // the server's, until it is joined
  std::thread server_;
};

TEST_F(NodeClientTest, NobodyListens) {
  NodeClient client(path_);
  EXPECT_FALSE(client.CanConnect());
  EXPECT_EQ(Post(&client).result, Result::kRefused);
}

TEST_F(NodeClientTest, AConnectionIsKeptForTheNextRequest) {
  Serve({{ReplyOf("one"), ReplyOf("two")}});
  NodeClient client(path_);
  const NodeExchange one = Post(&client);
  ASSERT_EQ(one.result, Result::kReplied) << one.why;
  EXPECT_EQ(one.reply.status, 200);
  EXPECT_EQ(one.reply.body, "one");
  EXPECT_EQ(one.reply.header("content-type"), "text/plain");
  EXPECT_EQ(Post(&client).reply.body, "two");
}

TEST_F(NodeClientTest, AcceptIsHandedOn) {
  Serve({{ReplyOf("one"), ReplyOf("two")}});
  NodeClient client(path_);
  EXPECT_EQ(
      client.Post("/x", "application/json", "x", absl::Now() + absl::Seconds(60), "a/b").reply.body,
      "one");
  EXPECT_EQ(Post(&client).reply.body, "two");
  server_.join();
  ASSERT_EQ(requests_.size(), 2u);
  EXPECT_NE(requests_[0].find("\r\nAccept: a/b\r\n\r\nx"), std::string::npos) << requests_[0];
  EXPECT_EQ(requests_[1].find("Accept"), std::string::npos) << requests_[1];
}

// covers: serving: a connection that a node has closed costs the front's next request nothing
TEST_F(NodeClientTest, AKeptConnectionThatWasClosedIsReplacedBeforeAByteIsSent) {
  Serve({{ReplyOf("one")}, {ReplyOf("two")}});
  NodeClient client(path_);
  EXPECT_EQ(Post(&client).reply.body, "one");
  num_closed_.wait(0);
  const NodeExchange two = Post(&client);
  ASSERT_EQ(two.result, Result::kReplied) << two.why;
  EXPECT_EQ(two.reply.body, "two");
}

TEST_F(NodeClientTest, KeptConnectionsEndWhenTheyAreDropped) {
  Serve({{ReplyOf("one"), ReplyOf("two")}});
  NodeClient client(path_);
  EXPECT_EQ(Post(&client).reply.body, "one");
  client.DropKept();
  num_closed_.wait(0);  // its server waits for another request, or for the end
}

TEST_F(NodeClientTest, WhatBreaksOffAfterARequestIsNotSentAgain) {
  for (const char* const reply :
       {"", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfour",
        "HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "SSH-2.0\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"}) {
    SCOPED_TRACE(reply);
    Serve({{reply}});
    NodeClient client(path_);
    EXPECT_EQ(Post(&client).result, Result::kBroken);
    server_.join();
    FileSystem::Posix()->DeleteFile(path_).IgnoreError();
  }
}

TEST_F(NodeClientTest, AReplyThatIsTooLargeIsNotRead) {
  Serve({{ReplyOf("three")}});
  NodeClient client(path_, /*max_kept=*/1, /*max_reply_bytes=*/4);
  EXPECT_EQ(Post(&client).result, Result::kBroken);
}

TEST_F(NodeClientTest, ADeadlineEndsTheWait) {
  // The second reply is to a request that does not come: the connection stays open.
  Serve({{"", ""}});
  NodeClient client(path_);
  EXPECT_EQ(Post(&client, absl::Milliseconds(1)).result, Result::kTimedOut);
}

}  // namespace
}  // namespace millrace

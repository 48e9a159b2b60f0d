// SPDX-License-Identifier: Apache-2.0
//
// The client against a server of raw bytes, which says what no sound server would.
#include "serving/client/http_client.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: serving: the HTTP client reads bodies by length, in chunks and to the end; broken,
// endless
//   and too large answers are errors

namespace millrace {
namespace {

// Takes one connection at a time, reads a request to the end of its headers, says its bytes and
// closes. With nothing to say it keeps the connection open until its end.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer)
      : answer_(std::move(answer)), listens_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = {};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    EXPECT_EQ(bind(listens_.get(), reinterpret_cast<const sockaddr*>(&at), size), 0);
    EXPECT_EQ(listen(listens_.get(), 1), 0);
    EXPECT_EQ(getsockname(listens_.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
    if (!answer_.empty()) thread_ = std::thread([this] { Serve(); });
  }
  ~OneAnswer() {
    if (thread_.joinable()) thread_.join();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  // Behind the call.
  std::string request() {
    thread_.join();
    return request_;
  }

 private:
  void Serve() {
    const OwnedFd peer(accept(listens_.get(), nullptr, nullptr));
    char piece[4096];
    while (!absl::StrContains(request_, "\r\n\r\n")) {
      const ssize_t got = recv(peer.get(), piece, sizeof(piece), 0);
      if (got <= 0) return;
      request_.append(piece, static_cast<size_t>(got));
    }
    absl::string_view left = answer_;
    while (!left.empty()) {
      const ssize_t sent = send(peer.get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;
      left.remove_prefix(static_cast<size_t>(sent));
    }
  }

  const std::string answer_;
  const OwnedFd listens_;
  int port_ = 0;
  std::string request_;
  std::thread thread_;
};

StatusOr<HttpAnswer> Asked(const std::string& address, int64_t max_body_bytes = 1000) {
  return HttpCall(address, {.target = "/x",
                            .deadline = absl::Now() + absl::Minutes(1),
                            .max_body_bytes = max_body_bytes});
}

TEST(HttpClient, ReadsBodiesOfAllForms) {
  const struct {
    const char* answer;
    int status;
    const char* body;
  } cases[] = {
      {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, "abc"},
      {"HTTP/1.1 404 Not Found\r\ncontent-length:3\r\n\r\nabcdef", 404, "abc"},
      {"HTTP/1.0 200 OK\r\n\r\nto the end", 200, "to the end"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0"
       "\r\n\r\n",
       200, "abc0123456789"},
      {"HTTP/1.1 100 Continue\r\nContent-Length: 7\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n"
       "\r\nx",
       200, "x"},
      {"HTTP/1.1 204 No Content\r\n\r\n", 204, ""},
      {"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", 200, ""},
  };
  for (const auto& c : cases) {
    OneAnswer server(c.answer);
    const StatusOr<HttpAnswer> got = Asked(server.address());
    ASSERT_OK(got);
    EXPECT_EQ(got->status, c.status) << c.answer;
    EXPECT_EQ(got->body, c.body) << c.answer;
  }
}

TEST(HttpClient, SaysWhatItAsks) {
  OneAnswer server("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
  ASSERT_OK(HttpCall(server.address(), {.method = "POST",
                                        .target = "/v1/models/m:predict",
                                        .body = "{}",
                                        .deadline = absl::Now() + absl::Minutes(1)}));
  const std::string address = server.address();
  const std::string request = server.request();
  EXPECT_TRUE(absl::StartsWith(request, absl::StrCat("POST /v1/models/m:predict HTTP/1.1\r\nHost: ",
                                                     address, "\r\nConnection: close\r\n")))
      << request;
  EXPECT_TRUE(
      absl::StrContains(request, "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n"))
      << request;
}

TEST(HttpClient, BadAnswersAreErrors) {
  const struct {
    std::string answer;
    absl::StatusCode code;
    const char* text;
  } cases[] = {
      {"SSH-2.0-x\r\n", absl::StatusCode::kInvalidArgument,
       "must be one of HTTP/1, got 'SSH-2.0-x'"},
      {"HTTP/1.1 abc\r\n\r\n", absl::StatusCode::kInvalidArgument, "must be one of HTTP/1"},
      {"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", absl::StatusCode::kInvalidArgument, "-1"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", absl::StatusCode::kUnknown,
       "the connection ended within the answer"},
      {"HTTP/1.1 200 OK\r\nContent-Le", absl::StatusCode::kUnknown, "ended within the answer"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", absl::StatusCode::kInvalidArgument,
       "gzip"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
       absl::StatusCode::kInvalidArgument, "xyz"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n",
       absl::StatusCode::kResourceExhausted, "must have at most 1000 bytes"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nFFFFFFFFFF\r\n",
       absl::StatusCode::kResourceExhausted, "must have at most 1000 bytes"},
      {absl::StrCat("HTTP/1.1 200 OK\r\n\r\n", std::string(1001, 'x')),
       absl::StatusCode::kResourceExhausted, "must have at most 1000 bytes"},
      {absl::StrCat("HTTP/1.1 200 OK\r\nX: ", std::string(100'000, 'x')),
       absl::StatusCode::kResourceExhausted, "a line of the answer must have at most"},
  };
  for (const auto& c : cases) {
    OneAnswer server(c.answer);
    EXPECT_STATUS(Asked(server.address()), c.code, c.text) << c.answer.substr(0, 80);
  }
}

TEST(HttpClient, ASilentServerEndsAtTheDeadline) {
  OneAnswer server("");  // the kernel takes the connection
  const StatusOr<HttpAnswer> got =
      HttpCall(server.address(), {.deadline = absl::Now() + absl::Milliseconds(1)});
  EXPECT_STATUS(got, absl::StatusCode::kDeadlineExceeded, "must come before the deadline");
}

TEST(HttpClient, AddressesWithoutAServerAreUnavailable) {
  EXPECT_STATUS(Asked("unix:/nobody/listens/here"), absl::StatusCode::kUnavailable,
                "Server at unix:/nobody/listens/here must be reachable, got: ");
  EXPECT_STATUS(Asked("nowhere"), absl::StatusCode::kInvalidArgument,
                "address must be host:port or unix:/path, got 'nowhere'");
  EXPECT_STATUS(Asked("unix:"), absl::StatusCode::kInvalidArgument, "1 to 107 characters, got ''");
}

TEST(HttpClient, PartsOfTargetsAreEscaped) {
  EXPECT_EQ(UrlEscaped("half_plus-2.x~"), "half_plus-2.x~");
  EXPECT_EQ(UrlEscaped("a b/\xc3\xa4:%"), "a%20b%2F%C3%A4%3A%25");
}

}  // namespace
}  // namespace millrace

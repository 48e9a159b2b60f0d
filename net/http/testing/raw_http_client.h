// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_TESTING_RAW_HTTP_CLIENT_H_
#define MILLRACE_NET_HTTP_TESTING_RAW_HTTP_CLIENT_H_

// RawHttpClient: a socket on which a test sends any bytes, and that reads HTTP/1.1 replies.
//
// Thread-compatible.
// Failure: a read ends with what came when the peer closed or kReplyTime is over, which is a bound
// for tests that fail and proves nothing. Nothing raises SIGPIPE.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/owned_fd.h"

namespace millrace {

struct RawHttpReply {
  int status = 0;                              // 0: none came
  std::map<std::string, std::string> headers;  // names in lower case; the last one of a name
  std::string body;                            // what came of it

  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? "" : it->second;
  }
};

class RawHttpClient {
 public:
  static constexpr int kReplyTimeSeconds = 60;

  // To 127.0.0.1. connected() says whether it worked.
  explicit RawHttpClient(int port) {
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    Connect(AF_INET, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }
  explicit RawHttpClient(const std::string& unix_path) {
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    std::strncpy(to.sun_path, unix_path.c_str(), sizeof(to.sun_path) - 1);
    Connect(AF_UNIX, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  }

  bool connected() const { return fd_.open(); }
  int fd() const { return fd_.get(); }

  // False when the peer takes no more.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // `has_body` false: of a HEAD. 1xx replies are skipped and counted.
  RawHttpReply ReadReply(bool has_body = true) {
    RawHttpReply reply;
    while (true) {
      reply = RawHttpReply();
      size_t end;
      while ((end = read_.find("\r\n\r\n")) == std::string::npos) {
        if (!Fill()) return reply;
      }
      const std::string head = read_.substr(0, end);
      read_.erase(0, end + 4);
      bool first = true;
      for (absl::string_view line : absl::StrSplit(head, "\r\n")) {
        if (first) {
          // "HTTP/1.1 200 OK"
          if (line.size() < 12 || !absl::SimpleAtoi(line.substr(9, 3), &reply.status)) return {};
          first = false;
          continue;
        }
        const size_t colon = line.find(':');
        if (colon == absl::string_view::npos) continue;
        reply.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
            std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
      }
      if (reply.status >= 200) break;
      ++num_interim_;
    }
    size_t length = 0;
    if (!has_body || reply.status == 204 || reply.status == 304) return reply;
    if (!absl::SimpleAtoi(reply.header("content-length"), &length)) return reply;
    while (read_.size() < length && Fill()) {
    }
    reply.body = read_.substr(0, length);
    read_.erase(0, length);
    return reply;
  }
  RawHttpReply Ask(absl::string_view request) {
    Send(request);
    return ReadReply();
  }
  // How many 1xx replies ReadReply skipped.
  int num_interim() const { return num_interim_; }

  // True when the peer closed, in order or not, and nothing was left to read.
  bool IsAtEnd() { return read_.empty() && !Fill() && closed_; }

  void CloseWriting() { shutdown(fd_.get(), SHUT_WR); }
  void Close() { fd_.Close(); }

 private:
  void Connect(int family, const sockaddr* to, socklen_t size) {
    OwnedFd fd(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval time = {kReplyTimeSeconds, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
    if (fd.open() && connect(fd.get(), to, size) == 0) fd_ = std::move(fd);
  }
  bool Fill() {
    char piece[16 << 10];
    ssize_t got;
    do {
      got = recv(fd_.get(), piece, sizeof(piece), 0);  // a process that was stopped is interrupted
    } while (got < 0 && errno == EINTR);
    if (got > 0) {
      read_.append(piece, static_cast<size_t>(got));
      return true;
    }
    closed_ = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    return false;
  }

  OwnedFd fd_;
  std::string read_;  // what came and is part of no reply yet
  int num_interim_ = 0;
  bool closed_ = false;
};

// "POST /x" with Host, further header lines (each with its end) and a body with its length.
inline std::string HttpRequestText(absl::string_view method, absl::string_view target,
                                   absl::string_view body = "", absl::string_view headers = "") {
  return absl::StrCat(method, " ", target, " HTTP/1.1\r\nHost: test\r\n", headers,
                      body.empty() ? "" : absl::StrCat("Content-Length: ", body.size(), "\r\n"),
                      "\r\n", body);
}

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_TESTING_RAW_HTTP_CLIENT_H_

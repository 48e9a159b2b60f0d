// SPDX-License-Identifier: Apache-2.0
#include "serving/front/node_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace millrace {
namespace {

using Result = NodeExchange::Result;

NodeExchange Failed(Result result, std::string why) {
  return {.result = result, .why = std::move(why)};
}

// One request and its reply on one connection.
class Exchange {
 public:
  Exchange(int fd, absl::Time deadline, size_t max_reply_bytes)
      : fd_(fd), deadline_(deadline), max_reply_bytes_(max_reply_bytes) {}

  NodeExchange Run(absl::string_view head, absl::string_view body) {
    // A reply may come before all is written (too large, say): then the rest is not sent.
    const bool whole = Write(head) && Write(body);
    if (!whole && num_sent_ == 0) {
      return Failed(timed_out_ ? Result::kNotSent : Result::kRefused, why_);
    }
    if (timed_out_) return Failed(Result::kTimedOut, why_);
    NodeExchange exchange;
    if (!Read(&exchange.reply)) {
      return Failed(timed_out_ ? Result::kTimedOut : Result::kBroken, why_);
    }
    may_keep_ = may_keep_ && whole;
    exchange.result = Result::kReplied;
    return exchange;
  }
  bool may_keep() const { return may_keep_; }

 private:
  bool Says(std::string why) {
    why_ = std::move(why);
    return false;
  }
  // Waits until one of `events` is there.
  bool Wait(short events, short* seen) {
    while (true) {
      pollfd fd = {.fd = fd_, .events = events, .revents = 0};
      const absl::Duration left = deadline_ - absl::Now();
      // A millisecond more than what is left, so that the last wait is no spin.
      const int64_t ms =
          left <= absl::ZeroDuration()
              ? 0
              : std::min<int64_t>(absl::ToInt64Milliseconds(left) + 1, int64_t{1} << 30);
      const int ready = poll(&fd, 1, static_cast<int>(ms));
      if (ready < 0 && errno != EINTR) return Says(absl::StrCat("poll: ", std::strerror(errno)));
      if (ready > 0) {
        *seen = fd.revents;
        return true;
      }
      if (absl::Now() < deadline_) continue;
      timed_out_ = true;
      return Says("its deadline has come");
    }
  }
  bool Write(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent > 0) {
        num_sent_ += static_cast<size_t>(sent);
        bytes.remove_prefix(static_cast<size_t>(sent));
        continue;
      }
      if (sent < 0 && errno == EINTR) continue;
      if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
        return Says(absl::StrCat("the connection takes no more: ", std::strerror(errno)));
      }
      short seen = 0;
      if (!Wait(POLLOUT | POLLIN, &seen)) return false;
      if ((seen & POLLIN) != 0) return Says("it has answered before it read the request");
    }
    return true;
  }
  // False at the end of the stream, too.
  bool Fill() {
    char piece[64 << 10];
    while (true) {
      const ssize_t got = recv(fd_, piece, sizeof(piece), MSG_DONTWAIT);
      if (got > 0) {
        read_.append(piece, static_cast<size_t>(got));
        return true;
      }
      if (got == 0) return Says("the connection ended before the reply");
      if (errno == EINTR) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {
        return Says(absl::StrCat("the connection ended before the reply: ", std::strerror(errno)));
      }
      short seen = 0;
      if (!Wait(POLLIN, &seen)) return false;
    }
  }
  bool Read(NodeReply* reply) {
    do {
      size_t end;
      while ((end = read_.find("\r\n\r\n")) == std::string::npos) {
        if (read_.size() > NodeClient::kMaxHeaderBytes) return Says("its reply has no end of head");
        if (!Fill()) return false;
      }
      if (!ReadHead(absl::string_view(read_).substr(0, end), reply)) return false;
      read_.erase(0, end + 4);
    } while (reply->status < 200);
    if (reply->status == 204 || reply->status == 304) return true;
    const absl::string_view length_text = reply->header("content-length");
    uint64_t length = 0;
    if (!absl::SimpleAtoi(length_text, &length) || !reply->header("transfer-encoding").empty()) {
      return Says("its reply has no Content-Length");
    }
    if (length > max_reply_bytes_) {
      return Says(
          absl::StrCat("its reply must have at most ", max_reply_bytes_, " bytes, got ", length));
    }
    while (read_.size() < length) {
      if (!Fill()) return false;
    }
    // More than was asked for: nothing that follows could be trusted.
    if (read_.size() > length) may_keep_ = false;
    read_.resize(static_cast<size_t>(length));
    reply->body = std::move(read_);
    return true;
  }
  bool ReadHead(absl::string_view head, NodeReply* reply) {
    *reply = NodeReply();
    const std::vector<absl::string_view> lines = absl::StrSplit(head, "\r\n");
    // "HTTP/1.1 200 OK"
    if (!absl::StartsWith(lines[0], "HTTP/1.1 ") ||
        !absl::SimpleAtoi(lines[0].substr(9, 3), &reply->status) || reply->status < 100) {
      return Says("its reply is no HTTP/1.1");
    }
    for (size_t i = 1; i < lines.size(); ++i) {
      const size_t colon = lines[i].find(':');
      if (colon == absl::string_view::npos) return Says("its reply has a header without a colon");
      reply->headers.emplace_back(
          absl::AsciiStrToLower(lines[i].substr(0, colon)),
          std::string(absl::StripAsciiWhitespace(lines[i].substr(colon + 1))));
    }
    may_keep_ = !absl::EqualsIgnoreCase(reply->header("connection"), "close");
    return true;
  }

  const int fd_;
  const absl::Time deadline_;
  const size_t max_reply_bytes_;
  size_t num_sent_ = 0;
  bool timed_out_ = false, may_keep_ = false;
  std::string read_, why_;
};

}  // namespace

absl::string_view NodeReply::header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

OwnedFd NodeClient::Connect(int* error) const {
  sockaddr_un to = {};
  to.sun_family = AF_UNIX;
  *error = ENAMETOOLONG;
  if (path_.size() >= sizeof(to.sun_path)) return OwnedFd();
  std::memcpy(to.sun_path, path_.data(), path_.size());
  OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int connected;
  do {
    connected = connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to));
  } while (connected != 0 && errno == EINTR);
  *error = connected == 0 ? 0 : errno;
  return connected == 0 ? std::move(fd) : OwnedFd();
}

bool NodeClient::CanConnect() const {
  int error = 0;
  return Connect(&error).open();
}

void NodeClient::DropKept() {
  MutexLock lock(&mu_);
  kept_.clear();
}

OwnedFd NodeClient::TakeKept() {
  const absl::Time oldest = absl::Now() - kKeptTime;
  MutexLock lock(&mu_);
  while (!kept_.empty()) {
    Kept last = std::move(kept_.back());
    kept_.pop_back();
    pollfd fd = {.fd = last.fd.get(), .events = POLLIN, .revents = 0};
    // Readable without a request: its server has closed it, or speaks out of turn.
    if (last.since >= oldest && poll(&fd, 1, 0) == 0) return std::move(last.fd);
  }
  return OwnedFd();
}

void NodeClient::Keep(OwnedFd fd) {
  MutexLock lock(&mu_);
  if (kept_.size() < max_kept_) kept_.push_back({.fd = std::move(fd), .since = absl::Now()});
}

NodeExchange NodeClient::Post(absl::string_view target, absl::string_view content_type,
                              absl::string_view body, absl::Time deadline,
                              absl::string_view accept) {
  std::string head =
      absl::StrCat("POST ", target, " HTTP/1.1\r\nHost: node\r\nContent-Type: ", content_type,
                   "\r\nContent-Length: ", body.size(), "\r\n");
  if (!accept.empty()) absl::StrAppend(&head, "Accept: ", accept, "\r\n");
  head += "\r\n";
  return Ask(head, body, deadline);
}

NodeExchange NodeClient::Get(absl::string_view target, absl::Time deadline) {
  return Ask(absl::StrCat("GET ", target, " HTTP/1.1\r\nHost: node\r\n\r\n"), "", deadline);
}

NodeExchange NodeClient::Ask(absl::string_view head, absl::string_view body, absl::Time deadline) {
  while (true) {
    OwnedFd fd = TakeKept();
    const bool kept = fd.open();
    if (!kept) {
      int error = 0;
      fd = Connect(&error);
      if (!fd.open()) {
        const bool refused = error == ECONNREFUSED || error == ENOENT;
        return Failed(refused ? Result::kRefused : Result::kNotSent,
                      absl::StrCat("no connection: ", std::strerror(error)));
      }
    }
    Exchange exchange(fd.get(), deadline, max_reply_bytes_);
    NodeExchange done = exchange.Run(head, body);
    if (done.result == Result::kReplied && exchange.may_keep()) Keep(std::move(fd));
    // Its server closed it between the look and the first byte: the next one is tried, a new one at
    // last.
    if ((done.result == Result::kRefused || done.result == Result::kNotSent) && kept) continue;
    return done;
  }
}

}  // namespace millrace

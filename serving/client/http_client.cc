// SPDX-License-Identifier: Apache-2.0
#include "serving/client/http_client.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "core/owned_fd.h"

namespace millrace {
namespace {

constexpr size_t kMaxHeadBytes = 64 << 10;
constexpr size_t kPieceBytes = 64 << 10;
// A line of a chunked body: its size in hexadecimal digits, and extensions.
constexpr size_t kMaxChunkLine = 4 << 10;
constexpr char kEnd[] = "\r\n";

// Until `events` may be had, or the deadline.
Status AwaitEvents(int fd, short events, const std::string& address, absl::Time deadline) {
  while (true) {
    const absl::Duration left = deadline - absl::Now();
    // Rounded up: a poll of 0 ms just before the deadline would spin.
    const int64_t ms = std::clamp<int64_t>(
        absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))), 0, 1 << 30);
    pollfd wait = {fd, events, 0};
    const int ready = poll(&wait, 1, static_cast<int>(ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return absl::UnknownError(absl::StrCat(address, ": ", std::strerror(errno)));
    }
    if (absl::Now() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat(address, ": the answer must come before the deadline, got none"));
    }
  }
}

Status ConnectTo(const sockaddr* to, socklen_t size, const std::string& address,
                 absl::Time deadline, OwnedFd* connected) {
  OwnedFd fd(socket(to->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int error = fd.open() ? 0 : errno;
  if (error == 0 && connect(fd.get(), to, size) != 0) error = errno;
  if (error == EINPROGRESS) {
    MR_RETURN_IF_ERROR(AwaitEvents(fd.get(), POLLOUT, address, deadline));
    socklen_t length = sizeof(error);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  }
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("Server at ", address, " must be reachable, got: ", std::strerror(error)));
  }
  *connected = std::move(fd);
  return absl::OkStatus();
}

StatusOr<OwnedFd> Connected(const std::string& address, absl::Time deadline) {
  OwnedFd fd;
  absl::string_view path = address;
  if (absl::ConsumePrefix(&path, "unix:")) {
    sockaddr_un to = {};
    to.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof(to.sun_path)) {
      return InvalidArgument("the path of a unix socket must have 1 to ", sizeof(to.sun_path) - 1,
                             " characters, got '", path, "'");
    }
    std::memcpy(to.sun_path, path.data(), path.size());
    MR_RETURN_IF_ERROR(
        ConnectTo(reinterpret_cast<const sockaddr*>(&to), sizeof(to), address, deadline, &fd));
    return fd;
  }
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == address.size()) {
    return InvalidArgument("address must be host:port or unix:/path, got '", address, "'");
  }
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), address.c_str() + colon + 1, &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(
        "Server at ", address, " must have a known host and a port, got: ", gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  Status status = absl::UnavailableError(absl::StrCat("Server at ", address, ": no address"));
  for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
    status = ConnectTo(to->ai_addr, to->ai_addrlen, address, deadline, &fd);
    if (status.ok()) return fd;
    if (absl::IsDeadlineExceeded(status)) break;
  }
  return status;
}

// The bytes of one connection.
class HttpConversation {
 public:
  HttpConversation(OwnedFd fd, std::string address, absl::Time deadline)
      : fd_(std::move(fd)), address_(std::move(address)), deadline_(deadline) {}

  // A server may answer before it has read everything, and close: what it says is read then.
  Status Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        bytes.remove_prefix(static_cast<size_t>(sent));
      } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        MR_RETURN_IF_ERROR(AwaitEvents(fd_.get(), POLLOUT, address_, deadline_));
      } else if (errno == EPIPE || errno == ECONNRESET) {
        return absl::OkStatus();
      } else if (errno != EINTR) {
        return Broken(std::strerror(errno));
      }
    }
    return absl::OkStatus();
  }

  // Up to the end of a line of at most `max_bytes`, which is left out.
  StatusOr<std::string> ReadLine(size_t max_bytes) {
    size_t from = 0;
    while (true) {
      const size_t end = read_.find(kEnd, from);
      const size_t length = end == std::string::npos ? read_.size() : end;
      if (length > max_bytes) {
        return absl::ResourceExhaustedError(absl::StrCat(
            address_, ": a line of the answer must have at most ", max_bytes, " bytes, got more"));
      }
      if (end != std::string::npos) {
        std::string line = read_.substr(0, end);
        read_.erase(0, end + 2);
        return line;
      }
      from = read_.empty() ? 0 : read_.size() - 1;  // "\r" may be its last
      MR_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) return Broken("the connection ended within the answer");
    }
  }

  Status ReadBytes(int64_t count, std::string* out) {
    const size_t wanted = out->size() + static_cast<size_t>(count);
    while (true) {
      const size_t take = std::min(read_.size(), wanted - out->size());
      out->append(read_, 0, take);
      read_.erase(0, take);
      if (out->size() == wanted) return absl::OkStatus();
      MR_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) return Broken("the connection ended within the answer");
    }
  }

  Status ReadToEnd(int64_t max_bytes, std::string* out) {
    while (true) {
      out->append(std::exchange(read_, std::string()));
      if (static_cast<int64_t>(out->size()) > max_bytes) return TooLong(max_bytes);
      MR_ASSIGN_OR_RETURN(const bool more, Fill());
      if (!more) return absl::OkStatus();
    }
  }

  Status TooLong(int64_t max_bytes) const {
    return absl::ResourceExhaustedError(
        absl::StrCat(address_, ": the answer must have at most ", max_bytes, " bytes, got more"));
  }
  Status NoAnswer(absl::string_view got) const {
    return InvalidArgument(address_, ": the answer must be one of HTTP/1, got '",
                           absl::CEscape(got.substr(0, 60)), "'");
  }

 private:
  Status Broken(absl::string_view why) const {
    return absl::UnknownError(absl::StrCat("Server at ", address_, " must answer, got: ", why));
  }
  // False at the end.
  StatusOr<bool> Fill() {
    const size_t before = read_.size();
    read_.resize(before + kPieceBytes);
    while (true) {
      const ssize_t got = recv(fd_.get(), read_.data() + before, kPieceBytes, 0);
      const int error = errno;
      if (got >= 0) {
        read_.resize(before + static_cast<size_t>(got));
        return got > 0;
      }
      if (error == EINTR) continue;
      const Status waited = error == EAGAIN || error == EWOULDBLOCK
                                ? AwaitEvents(fd_.get(), POLLIN, address_, deadline_)
                                : Broken(std::strerror(error));
      if (waited.ok()) continue;
      read_.resize(before);
      return waited;
    }
  }

  const OwnedFd fd_;
  const std::string address_;
  const absl::Time deadline_;
  std::string read_;  // what came and was not asked for yet
};

struct HttpHead {
  int status = 0;
  std::optional<int64_t> length;
  bool is_chunked = false;
};

StatusOr<HttpHead> ReadHead(HttpConversation* with) {
  HttpHead head;
  size_t left = kMaxHeadBytes;
  bool is_first = true;
  while (true) {
    MR_ASSIGN_OR_RETURN(const std::string line, with->ReadLine(left));
    left -= std::min(left, line.size() + 2);
    if (std::exchange(is_first, false)) {
      // "HTTP/1.1 200 OK"
      if (line.size() < 12 || !absl::StartsWith(line, "HTTP/1.") ||
          !absl::SimpleAtoi(line.substr(9, 3), &head.status) || head.status < 100) {
        return with->NoAnswer(line);
      }
      continue;
    }
    if (line.empty()) {
      if (head.status >= 200) return head;
      head = HttpHead();  // 1xx: the answer follows
      is_first = true;
      continue;
    }
    const size_t colon = line.find(':');
    if (colon == std::string::npos) return with->NoAnswer(line);
    const absl::string_view name = absl::string_view(line).substr(0, colon);
    const absl::string_view value =
        absl::StripAsciiWhitespace(absl::string_view(line).substr(colon + 1));
    if (absl::EqualsIgnoreCase(name, "content-length")) {
      int64_t length = 0;
      if (!absl::SimpleAtoi(value, &length) || length < 0) return with->NoAnswer(line);
      head.length = length;
    } else if (absl::EqualsIgnoreCase(name, "transfer-encoding")) {
      if (!absl::EqualsIgnoreCase(value, "chunked")) return with->NoAnswer(line);
      head.is_chunked = true;
    }
  }
}

Status ReadChunks(HttpConversation* with, int64_t max_bytes, std::string* body) {
  while (true) {
    MR_ASSIGN_OR_RETURN(const std::string line, with->ReadLine(kMaxChunkLine));
    const std::string digits(
        absl::StripAsciiWhitespace(absl::string_view(line).substr(0, line.find(';'))));
    int64_t size = 0;
    if (!absl::SimpleHexAtoi(digits, &size) || size < 0) return with->NoAnswer(line);
    if (size == 0) return absl::OkStatus();  // what may follow are headers; the connection ends
    if (size > max_bytes - static_cast<int64_t>(body->size())) return with->TooLong(max_bytes);
    MR_RETURN_IF_ERROR(with->ReadBytes(size, body));
    MR_ASSIGN_OR_RETURN(const std::string end, with->ReadLine(kMaxChunkLine));
    if (!end.empty()) return with->NoAnswer(end);
  }
}

}  // namespace

std::string UrlEscaped(absl::string_view part) {
  std::string escaped;
  for (const char c : part) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::StrContains("-._~", c)) {
      escaped.push_back(c);
    } else {
      const char byte[] = {c};
      absl::StrAppend(&escaped, "%",
                      absl::AsciiStrToUpper(absl::BytesToHexString(absl::string_view(byte, 1))));
    }
  }
  return escaped;
}

StatusOr<HttpAnswer> HttpCall(const std::string& address, const HttpAsk& ask) {
  MR_ASSIGN_OR_RETURN(OwnedFd fd, Connected(address, ask.deadline));
  HttpConversation with(std::move(fd), address, ask.deadline);
  const std::string host = absl::StartsWith(address, "unix:") ? "localhost" : address;
  MR_RETURN_IF_ERROR(with.Send(absl::StrCat(
      ask.method, " ", ask.target, " HTTP/1.1\r\nHost: ", host, "\r\nConnection: close\r\n",
      ask.token.empty() ? "" : absl::StrCat("Authorization: Bearer ", ask.token, "\r\n"),
      ask.body.empty() ? ""
                       : absl::StrCat("Content-Type: application/json\r\nContent-Length: ",
                                      ask.body.size(), "\r\n"),
      "\r\n")));
  MR_RETURN_IF_ERROR(with.Send(ask.body));
  MR_ASSIGN_OR_RETURN(const HttpHead head, ReadHead(&with));
  HttpAnswer answer = {.status = head.status};
  if (head.status == 204 || head.status == 304) return answer;
  if (head.is_chunked) {
    MR_RETURN_IF_ERROR(ReadChunks(&with, ask.max_body_bytes, &answer.body));
  } else if (head.length.has_value()) {
    if (*head.length > ask.max_body_bytes) return with.TooLong(ask.max_body_bytes);
    MR_RETURN_IF_ERROR(with.ReadBytes(*head.length, &answer.body));
  } else {
    MR_RETURN_IF_ERROR(with.ReadToEnd(ask.max_body_bytes, &answer.body));
  }
  return answer;
}

}  // namespace millrace

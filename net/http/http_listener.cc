// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_listener.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

constexpr absl::string_view kUnix = "unix:";
constexpr int kMaxPort = 65'535;

Status NotFree(const std::string& address, int error) {
  const absl::string_view rule = error == EADDRINUSE ? "must be free"
                                 : error == EACCES   ? "must be open to this user"
                                                     : "must be one of this machine";
  return FailedPrecondition("HTTP server: the address ", address, " ", rule,
                            ", got: ", std::strerror(error));
}

// errno, or 0.
int Listen(int fd, const sockaddr* at, socklen_t size) {
  // The kernel cuts it to net.core.somaxconn.
  constexpr int kBacklog = 4'096;
  return bind(fd, at, size) == 0 && listen(fd, kBacklog) == 0 ? 0 : errno;
}

OwnedFd NewSocket(int family) {
  return OwnedFd(socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// A socket file whose server is gone.
bool IsStale(const sockaddr_un& at) {
  struct stat file;
  if (lstat(at.sun_path, &file) != 0 || !S_ISSOCK(file.st_mode)) return false;
  const OwnedFd fd = NewSocket(AF_UNIX);
  return connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0 &&
         errno == ECONNREFUSED;
}

}  // namespace

StatusOr<HttpListener> HttpListener::Open(const std::string& address) {
  HttpListener listener;
  listener.address_ = address;
  if (absl::StartsWith(address, kUnix)) {
    const std::string path = address.substr(kUnix.size());
    sockaddr_un at = {};
    at.sun_family = AF_UNIX;
    if (path.empty() || path.size() >= sizeof(at.sun_path)) {
      return InvalidArgument("HTTP server: the path of a unix socket must have 1 to ",
                             sizeof(at.sun_path) - 1, " characters, got '", path, "'");
    }
    std::memcpy(at.sun_path, path.data(), path.size());
    const sockaddr* const where = reinterpret_cast<const sockaddr*>(&at);
    listener.fd_ = NewSocket(AF_UNIX);
    int error = listener.fd_.open() ? Listen(listener.fd_.get(), where, sizeof(at)) : errno;
    if (error == EADDRINUSE && IsStale(at)) {
      unlink(at.sun_path);
      error = Listen(listener.fd_.get(), where, sizeof(at));
    }
    if (error != 0) return NotFree(address, error);
    listener.unix_path_ = path;
    return listener;
  }

  const size_t colon = address.rfind(':');
  int port = -1;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
      port < 0 || port > kMaxPort) {
    return InvalidArgument("HTTP server: an address must be host:port or unix:/path, got '",
                           address, "'");
  }
  const std::string shown_host = address.substr(0, colon);
  std::string host = shown_host.empty() ? "0.0.0.0" : shown_host;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found);
      error != 0) {
    return FailedPrecondition("HTTP server: the host of the address ", address,
                              " must be known, got: ", gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    OwnedFd fd = NewSocket(a->ai_family);
    if (!fd.open()) {
      error = errno;
      continue;
    }
    const int one = 1;
    setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->ai_family == AF_INET6) {
      setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    }
    error = Listen(fd.get(), a->ai_addr, a->ai_addrlen);
    if (error != 0) continue;
    sockaddr_storage bound = {};
    socklen_t size = sizeof(bound);
    if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
      return NotFree(address, errno);
    }
    listener.port_ =
        ntohs(a->ai_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port
                                       : reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
    listener.address_ = absl::StrCat(shown_host, ":", listener.port_);
    listener.fd_ = std::move(fd);
    return listener;
  }
  return NotFree(address, error);
}

void HttpListener::Close() {
  if (!fd_.open()) return;
  if (!unix_path_.empty()) unlink(unix_path_.c_str());
  fd_.Close();
}

std::string SocketAddressText(const sockaddr* address, bool with_port) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address != nullptr && address->sa_family == AF_INET) {
    const sockaddr_in* const v4 = reinterpret_cast<const sockaddr_in*>(address);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return with_port ? absl::StrCat(text, ":", ntohs(v4->sin_port)) : text;
  }
  if (address != nullptr && address->sa_family == AF_INET6) {
    const sockaddr_in6* const v6 = reinterpret_cast<const sockaddr_in6*>(address);
    inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
    return with_port ? absl::StrCat("[", text, "]:", ntohs(v6->sin6_port)) : text;
  }
  return with_port ? "unix" : "";
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "net/listen_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace millrace {
namespace {

constexpr absl::string_view kUnix = "unix:";

// gRPC binds what it can of the addresses of a host name and is content with one; here each of
// this machine must be free.
Status CheckFree(const std::string& address) {
  const size_t colon = address.rfind(':');
  std::string host = address.substr(0, colon);
  const std::string port = address.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return FailedPrecondition("Server: the host of its own address ", address,
                              " must be known, got: ", gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  bool local = false;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->ai_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    const bool bound = bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    const int error = bound ? 0 : errno;
    // Two sockets may bind one port as long as none listens.
    const bool in_use = error == EADDRINUSE || (bound && listen(fd, 1) != 0 && errno == EADDRINUSE);
    close(fd);
    if (in_use) {
      return FailedPrecondition("Server: ", address,
                                " must be free, got: port is in use by another process");
    }
    if (error == EACCES) {
      return FailedPrecondition("Server: ", address,
                                " must be open to this user, got: ", std::strerror(error));
    }
    local |= bound;
  }
  if (!local) {
    return FailedPrecondition("Server: the host of its own address ", address,
                              " must be one of this machine, got one that cannot be bound");
  }
  return absl::OkStatus();
}

// gRPC replaces a socket's file, whoever listens there.
Status CheckFreeUnix(const std::string& address) {
  const absl::string_view path = absl::StripPrefix(address, kUnix);
  sockaddr_un at = {};
  at.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(at.sun_path)) {
    return InvalidArgument("Server: the path of a unix socket must have 1 to ",
                           sizeof(at.sun_path) - 1, " characters, got '", path, "'");
  }
  std::memcpy(at.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return absl::OkStatus();  // gRPC will say so
  const int error =
      connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0 ? 0 : errno;
  close(fd);
  if (error == ENOENT) return absl::OkStatus();
  if (error == ECONNREFUSED) {
    struct stat file;
    if (lstat(at.sun_path, &file) == 0 && S_ISSOCK(file.st_mode)) return absl::OkStatus();
    return FailedPrecondition("Server: ", address, " must be a socket or not there, got a file");
  }
  return FailedPrecondition(
      "Server: ", address, " must be free, got: ",
      error == 0 || error == EAGAIN ? "another process listens there" : std::strerror(error));
}

}  // namespace

bool IsUnixAddress(const std::string& address) { return absl::StartsWith(address, kUnix); }

Status CheckListenAddress(const std::string& address) {
  return IsUnixAddress(address) ? CheckFreeUnix(address) : CheckFree(address);
}

}  // namespace millrace

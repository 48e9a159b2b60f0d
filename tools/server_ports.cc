// SPDX-License-Identifier: Apache-2.0
#include "tools/server_ports.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/owned_fd.h"
#include "core/random_bits.h"

namespace millrace {
namespace {

// Ports that the system does not give to connections: a connection that got a task's port before
// the task binds it would keep it, or even connect to itself.
struct PortRange {
  int low = 10240, high = 32767;
};

PortRange PortsForServers() {
  int first = 0, last = 0;
  FILE* file = std::fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
  if (file == nullptr) return PortRange();
  const int read = std::fscanf(file, "%d %d", &first, &last);
  std::fclose(file);
  if (read != 2) return PortRange();
  if (first > 12000) return {10240, first - 1};
  if (last < 63000) return {last + 1, 65535};
  return PortRange();  // No range is free of connections.
}

}  // namespace

StatusOr<std::vector<int>> FreeServerPorts(const std::string& host, size_t count,
                                           std::set<int>* used) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const auto bad_host = [&host](const char* reason) {
    return absl::InvalidArgumentError(absl::StrCat(
        "launch: --host must be an address of this machine, got '", host, "': ", reason));
  };
  if (const int error = getaddrinfo(host.c_str(), "0", &hints, &found); error != 0) {
    return bad_host(gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> address(found, freeaddrinfo);
  const PortRange range = PortsForServers();
  const auto width = static_cast<uint64_t>(range.high - range.low + 1);
  std::vector<int> ports;
  // A few tasks among thousands of ports: far more tries than are ever needed.
  for (int tries = 0; ports.size() < count; ++tries) {
    if (tries == 100000) {
      return absl::UnavailableError(absl::StrCat("launch: ", count, " free ports in [", range.low,
                                                 ", ", range.high, "] are needed, got ",
                                                 ports.size()));
    }
    const int port = range.low + static_cast<int>(RandomUint64() % width);
    if (used->count(port) > 0) continue;
    const uint16_t wire_port = htons(static_cast<uint16_t>(port));
    if (address->ai_family == AF_INET6) {
      reinterpret_cast<sockaddr_in6*>(address->ai_addr)->sin6_port = wire_port;
    } else {
      reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_port = wire_port;
    }
    const OwnedFd fd(socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd.open())
      return absl::InternalError(absl::StrCat("launch: socket: ", std::strerror(errno)));
    if (bind(fd.get(), address->ai_addr, address->ai_addrlen) != 0) {
      if (errno == EADDRINUSE || errno == EACCES) continue;
      return bad_host(std::strerror(errno));
    }
    used->insert(port);
    ports.push_back(port);
  }
  return ports;
}

}  // namespace millrace

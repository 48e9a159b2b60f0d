// SPDX-License-Identifier: Apache-2.0
#include "core/testing/free_port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <set>

#include "core/mutex.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Above the ports of well-known services, below Linux's ephemeral ports (from 32768).
constexpr int kFirstPort = 12000;
constexpr int kLastPort = 32000;
constexpr int kMaxTries = 1000;

// Can a server without SO_REUSEPORT listen there, on any address?
bool IsFree(int port) {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool v6 = fd >= 0;
  const int s = v6 ? fd : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (s < 0) return false;
  // As servers do: a connection in TIME_WAIT does not occupy a port.
  const int one = 1;
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  int result = -1;
  if (v6) {
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    result = bind(s, reinterpret_cast<sockaddr*>(&address), sizeof address);
  } else {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    result = bind(s, reinterpret_cast<sockaddr*>(&address), sizeof address);
  }
  // Two sockets may be bound with SO_REUSEADDR; only one may listen.
  if (result == 0) result = listen(s, 1);
  close(s);
  return result == 0;
}

}  // namespace

int FreePort() {
  static Mutex mu;
  static std::set<int> given;
  // Not a constant seed: tests in other processes look for ports at the same time.
  static std::mt19937 random{std::random_device()()};
  MutexLock lock(&mu);
  std::uniform_int_distribution<int> ports(kFirstPort, kLastPort);
  for (int i = 0; i < kMaxTries; ++i) {
    const int port = ports(random);
    if (given.count(port) == 0 && IsFree(port)) {
      given.insert(port);
      return port;
    }
  }
  ADD_FAILURE() << "no free port in [" << kFirstPort << "," << kLastPort << "] after " << kMaxTries
                << " tries";
  return 0;
}

std::vector<int> FreePorts(int n) {
  std::vector<int> ports;
  for (int i = 0; i < n; ++i) ports.push_back(FreePort());
  return ports;
}

}  // namespace millrace

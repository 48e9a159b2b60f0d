// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_LISTENER_H_
#define MILLRACE_NET_HTTP_HTTP_LISTENER_H_

// HttpListener: a socket that listens at an address that a user gave.
//
// Thread-compatible. Lifetime: closes its socket and removes the file of a unix socket.
// Failure: InvalidArgument for what is no address, FailedPrecondition for one that is taken, not of
// this machine or not open to this user.

#include <sys/socket.h>

#include <string>

#include "core/owned_fd.h"
#include "core/status.h"

namespace millrace {

class HttpListener {
 public:
  // "host:port", "[::1]:port", ":port" or "unix:/path". The first address of a host name that can
  // be bound; the file of a unix socket that nobody listens on is replaced.
  static StatusOr<HttpListener> Open(const std::string& address);
  HttpListener(HttpListener&&) noexcept = default;
  HttpListener& operator=(HttpListener&&) noexcept = default;
  ~HttpListener() { Close(); }

  int fd() const { return fd_.get(); }  // does not block
  int port() const { return port_; }    // 0 for a unix socket
  // As it was given, with the port that it got.
  const std::string& address() const { return address_; }
  void Close();

 private:
  HttpListener() = default;
  OwnedFd fd_;
  std::string address_, unix_path_;
  int port_ = 0;
};

// "127.0.0.1:1234", "[::1]:1234", "unix". Without the port: the host alone, "" for a unix socket.
std::string SocketAddressText(const sockaddr* address, bool with_port);

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_LISTENER_H_

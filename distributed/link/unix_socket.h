// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_SOCKET_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_SOCKET_H_

// What both sides of a Unix link ask of the system.
//
// Sockets have abstract names: they are known within one network namespace, and go with the last
// process that has the socket. Nothing is left in the file system, after kill -9 neither.
//
// Thread-safety: pure functions, from any thread. Failure: see each.

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <string>

#include "absl/strings/string_view.h"
#include "core/owned_fd.h"
#include "core/status.h"

namespace millrace {

struct AbstractAddress {
  // `name` has at most 100 bytes.
  explicit AbstractAddress(absl::string_view name);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address;
  socklen_t num_bytes;
};

// A stream socket that never blocks and that no child process inherits. Unavailable when the system
// gives none.
StatusOr<OwnedFd> NewUnixSocket();

// PermissionDenied unless the process at the other end of the connected `socket` belongs to `user`.
Status CheckPeerUser(int socket, uid_t user);

// Of errno.
std::string SystemErrorText(int error);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_SOCKET_H_

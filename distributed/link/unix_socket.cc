// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_socket.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"

namespace millrace {

AbstractAddress::AbstractAddress(absl::string_view name) : address() {
  MR_DCHECK(name.size() <= 100, "names of sockets are our own");
  address.sun_family = AF_UNIX;
  // An abstract name is behind a zero, and as long as the address says.
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::copy_n(name.data(), length, address.sun_path + 1);
  num_bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

StatusOr<OwnedFd> NewUnixSocket() {
  OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.open()) {
    return absl::UnavailableError(
        absl::StrCat("Unix link: the system must give a socket, got ", SystemErrorText(errno)));
  }
  return socket;
}

Status CheckPeerUser(int socket, uid_t user) {
  ucred peer = {};
  socklen_t num_bytes = sizeof(peer);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &num_bytes) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "Unix link: the system must say who the peer is, got ", SystemErrorText(errno)));
  }
  if (peer.uid == user) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("Unix link: both tasks must belong to one user, got ", user, " here and ",
                   peer.uid, " at the peer"));
}

std::string SystemErrorText(int error) { return std::generic_category().message(error); }

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_dial.h"

#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/owned_fd.h"
#include "distributed/link/unix_poller.h"
#include "distributed/link/unix_socket.h"
#include "distributed/link/unix_wire.h"

namespace millrace {

StatusOr<std::unique_ptr<ByteWire>> DialUnix(const UnixOffer& offer, uid_t user) {
  return NoExceptions("Unix link", [&]() -> StatusOr<std::unique_ptr<ByteWire>> {
    MR_ASSIGN_OR_RETURN(UnixPoller* const poller, UnixPoller::Shared());
    MR_ASSIGN_OR_RETURN(OwnedFd socket, NewUnixSocket());
    const AbstractAddress address(offer.SocketName());
    // Comes at once: the peer's system has room in its queue, or says that it has none.
    if (::connect(socket.get(), address.get(), address.num_bytes) != 0) {
      return absl::UnavailableError(
          absl::StrCat("Unix link: the peer's socket must be on this host and take a connection, "
                       "got ",
                       SystemErrorText(errno)));
    }
    // Before the nonce: a name is free once its process has ended, and anyone may take it then.
    MR_RETURN_IF_ERROR(CheckPeerUser(socket.get(), user));
    const ssize_t sent =
        ::send(socket.get(), offer.nonce.data(), offer.nonce.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent != static_cast<ssize_t>(offer.nonce.size())) {
      return absl::UnavailableError(
          absl::StrCat("Unix link: the peer must take the nonce of its offer, got ",
                       sent < 0 ? SystemErrorText(errno) : absl::StrCat(sent, " bytes")));
    }
    return MakeUnixWire(poller, std::move(socket));
  });
}

}  // namespace millrace

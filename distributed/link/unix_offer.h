// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_OFFER_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_OFFER_H_

// UnixOffer: what a task tells the one that it dials, in HELLO of their link, so that the peer can
// open a link over a Unix socket if it is on the same host.
//
//   offer := version u8, host 16 bytes, socket 16 bytes, nonce 16 bytes
//
// The nonce is a secret of the two tasks and is of use once. The peer decides neither how long an
// offer is nor where it leads: all sockets of offers have names that begin with kNamePrefix.
//
// A value. Thread-safety: pure functions. Failure: Decode is InvalidArgument for other bytes.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

struct UnixOffer {
  static constexpr size_t kRandomBytes = 16;
  static constexpr size_t kEncodedBytes = 1 + 3 * kRandomBytes;
  static constexpr uint8_t kOfferVersion = 1;
  static constexpr char kNamePrefix[] = "millrace-link-";

  using RandomBytes = std::array<char, kRandomBytes>;

  RandomBytes host = {};  // as ThisHost says there
  RandomBytes socket = {};
  RandomBytes nonce = {};

  // Abstract, without the zero before it: the prefix and `socket` in hexadecimal digits.
  std::string SocketName() const;

  std::string Encode() const;
  static StatusOr<UnixOffer> Decode(absl::string_view bytes);

  // What the system has drawn when this host started (its boot id), the same in all containers of
  // the host; zeros when it does not say.
  static RandomBytes ThisHost();
  // From the operating system. Unavailable when it refuses: then nothing may be offered.
  static StatusOr<RandomBytes> Random();
  // Takes as long wherever they differ.
  static bool AreSame(const RandomBytes& a, const RandomBytes& b);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_OFFER_H_

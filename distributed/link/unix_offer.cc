// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_offer.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "distributed/link/unix_socket.h"

namespace millrace {
namespace {

absl::string_view BytesOf(const UnixOffer::RandomBytes& random) {
  return absl::string_view(random.data(), random.size());
}

// "f3c1a6e0-5b7d-4c39-9e56-0f2a81d4c7b3"
UnixOffer::RandomBytes ReadBootId() {
  UnixOffer::RandomBytes host = {};
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string text;
  std::getline(file, text);
  const std::string bytes = absl::HexStringToBytes(absl::StrReplaceAll(text, {{"-", ""}}));
  if (bytes.size() == host.size()) std::copy(bytes.begin(), bytes.end(), host.begin());
  return host;
}

}  // namespace

std::string UnixOffer::SocketName() const {
  return absl::StrCat(kNamePrefix, absl::BytesToHexString(BytesOf(socket)));
}

std::string UnixOffer::Encode() const {
  return absl::StrCat(std::string(1, static_cast<char>(kOfferVersion)), BytesOf(host),
                      BytesOf(socket), BytesOf(nonce));
}

StatusOr<UnixOffer> UnixOffer::Decode(absl::string_view bytes) {
  // The version first: another one may have another length.
  const unsigned version = bytes.empty() ? 0 : static_cast<uint8_t>(bytes.front());
  if (version != kOfferVersion) {
    return InvalidArgument("Unix offer: version must be ", unsigned{kOfferVersion}, ", got ",
                           bytes.empty() ? "no bytes" : absl::StrCat(version));
  }
  if (bytes.size() != kEncodedBytes) {
    return InvalidArgument("Unix offer: must have ", kEncodedBytes, " bytes, got ", bytes.size());
  }
  UnixOffer offer;
  const char* next = bytes.data() + 1;
  for (RandomBytes* const field : {&offer.host, &offer.socket, &offer.nonce}) {
    std::copy_n(next, kRandomBytes, field->data());
    next += kRandomBytes;
  }
  return offer;
}

UnixOffer::RandomBytes UnixOffer::ThisHost() {
  static const RandomBytes host = ReadBootId();
  return host;
}

StatusOr<UnixOffer::RandomBytes> UnixOffer::Random() {
  RandomBytes random;
  ssize_t got = -1;
  do {
    got = ::getrandom(random.data(), random.size(), 0);
  } while (got < 0 && errno == EINTR);
  // Up to 256 bytes come whole.
  if (got == static_cast<ssize_t>(random.size())) return random;
  return absl::UnavailableError(
      absl::StrCat("Unix offer: the system must give random bytes, got ", SystemErrorText(errno)));
}

bool UnixOffer::AreSame(const RandomBytes& a, const RandomBytes& b) {
  // Not to be left early: how long a wrong nonce takes must not tell how much of it is right.
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < kRandomBytes; ++i) {
    difference = static_cast<unsigned char>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace millrace

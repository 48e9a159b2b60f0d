// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_offer.h"

#include <cstddef>
#include <fstream>
#include <string>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

UnixOffer Numbered() {
  UnixOffer offer;
  for (size_t i = 0; i < UnixOffer::kRandomBytes; ++i) {
    offer.host[i] = static_cast<char>(0xa0 + i);
    offer.socket[i] = static_cast<char>(0xf0 + i);
    offer.nonce[i] = static_cast<char>(i);
  }
  return offer;
}

TEST(UnixOfferTest, IsItsBytes) {
  const UnixOffer offer = Numbered();
  const std::string bytes = offer.Encode();
  EXPECT_EQ(bytes, std::string("\x01"
                               "\xa0\xa1\xa2\xa3\xa4\xa5\xa6\xa7\xa8\xa9\xaa\xab\xac\xad\xae\xaf"
                               "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9\xfa\xfb\xfc\xfd\xfe\xff"
                               "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f",
                               49));
  const StatusOr<UnixOffer> again = UnixOffer::Decode(bytes);
  ASSERT_OK(again);
  EXPECT_EQ(again->host, offer.host);
  EXPECT_EQ(again->socket, offer.socket);
  EXPECT_EQ(again->nonce, offer.nonce);
}

// covers: clusters: an offer of a Unix link leads nowhere but to sockets of such links, whatever a
//   peer says in it
TEST(UnixOfferTest, LeadsToSocketsOfLinksOnly) {
  EXPECT_EQ(Numbered().SocketName(), "millrace-link-f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff");
  EXPECT_EQ(UnixOffer().SocketName(), "millrace-link-00000000000000000000000000000000");
}

TEST(UnixOfferTest, OtherBytesAreRefused) {
  const std::string bytes = Numbered().Encode();
  EXPECT_STATUS(UnixOffer::Decode(""), absl::StatusCode::kInvalidArgument,
                "Unix offer: version must be 1, got no bytes");
  for (size_t size = 1; size < bytes.size(); ++size) {
    SCOPED_TRACE(size);
    EXPECT_STATUS(UnixOffer::Decode(bytes.substr(0, size)), absl::StatusCode::kInvalidArgument,
                  "Unix offer: must have 49 bytes, got " + std::to_string(size));
  }
  EXPECT_STATUS(UnixOffer::Decode(bytes + "x"), absl::StatusCode::kInvalidArgument,
                "Unix offer: must have 49 bytes, got 50");
  std::string other = bytes;
  other[0] = 2;
  EXPECT_STATUS(UnixOffer::Decode(other), absl::StatusCode::kInvalidArgument,
                "Unix offer: version must be 1, got 2");
  other[0] = static_cast<char>(0xff);
  EXPECT_STATUS(UnixOffer::Decode(other), absl::StatusCode::kInvalidArgument, "got 255");
}

TEST(UnixOfferTest, EachBitOfANonceCounts) {
  const UnixOffer::RandomBytes nonce = Numbered().nonce;
  EXPECT_TRUE(UnixOffer::AreSame(nonce, nonce));
  for (size_t i = 0; i < UnixOffer::kRandomBytes; ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      UnixOffer::RandomBytes other = nonce;
      other[i] = static_cast<char>(other[i] ^ (1 << bit));
      EXPECT_FALSE(UnixOffer::AreSame(nonce, other)) << i << " " << bit;
    }
  }
}

// covers: clusters: an offer names its host, so that no task dials a socket of another host
TEST(UnixOfferTest, AHostIsTheSameEachTime) {
  const UnixOffer::RandomBytes host = UnixOffer::ThisHost();
  EXPECT_EQ(UnixOffer::ThisHost(), host);
  std::ifstream boot_id("/proc/sys/kernel/random/boot_id");
  std::string text;
  if (!std::getline(boot_id, text)) GTEST_SKIP() << "this system has no boot id";
  EXPECT_NE(host, UnixOffer::RandomBytes());
}

TEST(UnixOfferTest, RandomBytesDiffer) {
  ASSERT_OK_AND_ASSIGN(const UnixOffer::RandomBytes one, UnixOffer::Random());
  ASSERT_OK_AND_ASSIGN(const UnixOffer::RandomBytes other, UnixOffer::Random());
  EXPECT_FALSE(UnixOffer::AreSame(one, other));
  EXPECT_FALSE(UnixOffer::AreSame(one, UnixOffer::RandomBytes()));
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_same_host.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/same_host.h"
#include "distributed/link/testing/system_state.h"
#include "distributed/link/unix_offer.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr absl::Duration kHang = absl::Minutes(1);

// What became of an offer.
struct Heard {
  Notification done;
  StatusOr<std::unique_ptr<ByteWire>> wire;

  static SameHost::Came In(const std::shared_ptr<Heard>& heard) {
    return [heard](StatusOr<std::unique_ptr<ByteWire>> wire) {
      heard->wire = std::move(wire);
      heard->done.Notify();
    };
  }
};

TEST(UnixSameHostTest, AnOfferIsTaken) {
  const int before = NumFds();
  const std::unique_ptr<SameHost> offers = MakeUnixSameHost(), takes = MakeUnixSameHost();
  EXPECT_EQ(NumFds(), before);  // no socket before the first offer
  const auto heard = std::make_shared<Heard>();
  ASSERT_OK_AND_ASSIGN(const std::string offer, offers->Offer(Heard::In(heard)));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ByteWire> wire, takes->Take(offer));
  EXPECT_NE(wire, nullptr);
  ASSERT_TRUE(heard->done.WaitFor(kHang));
  ASSERT_OK(heard->wire);
  EXPECT_NE(*heard->wire, nullptr);
}

// covers: clusters: a task of another host takes no offer, and dials nothing
TEST(UnixSameHostTest, OffersOfOthersAreNotTaken) {
  const std::unique_ptr<SameHost> host = MakeUnixSameHost();
  const auto heard = std::make_shared<Heard>();
  ASSERT_OK_AND_ASSIGN(const std::string bytes, host->Offer(Heard::In(heard)));
  ASSERT_OK_AND_ASSIGN(UnixOffer offer, UnixOffer::Decode(bytes));
  offer.host[3] = static_cast<char>(offer.host[3] ^ 1);
  EXPECT_STATUS(host->Take(offer.Encode()), absl::StatusCode::kNotFound,
                "the offer must be of this host, got another one's");
  EXPECT_STATUS(host->Take("no offer"), absl::StatusCode::kInvalidArgument,
                "Unix offer: version must be 1, got 110");
  // Of a network namespace in which there is no such socket.
  offer.host = UnixOffer::ThisHost();
  offer.socket[3] = static_cast<char>(offer.socket[3] ^ 1);
  EXPECT_STATUS(host->Take(offer.Encode()), absl::StatusCode::kUnavailable,
                "the peer's socket must be on this host and take a connection");
  UnixAcceptorOptions other;
  other.user = ::geteuid() + 1;
  const std::unique_ptr<SameHost> wary = MakeUnixSameHost(other);
  EXPECT_STATUS(wary->Take(bytes), absl::StatusCode::kPermissionDenied, "");
  EXPECT_FALSE(heard->done.HasBeenNotified());
}

TEST(UnixSameHostTest, AnOfferExpires) {
  FakeClock clock;
  UnixAcceptorOptions options;
  options.clock = &clock;
  const std::unique_ptr<SameHost> host = MakeUnixSameHost(options);
  host->Tick();  // before the first offer
  const auto heard = std::make_shared<Heard>();
  ASSERT_OK(host->Offer(Heard::In(heard)));
  clock.Advance(absl::Seconds(29));
  host->Tick();
  EXPECT_FALSE(heard->done.HasBeenNotified());
  clock.Advance(absl::Seconds(1));
  host->Tick();
  ASSERT_TRUE(heard->done.HasBeenNotified());
  EXPECT_STATUS(heard->wire, absl::StatusCode::kDeadlineExceeded, "got no connection");
}

TEST(UnixSameHostTest, NothingIsOfferedAfterClose) {
  const std::unique_ptr<SameHost> host = MakeUnixSameHost();
  const auto heard = std::make_shared<Heard>();
  ASSERT_OK_AND_ASSIGN(const std::string offer, host->Offer(Heard::In(heard)));
  host->Close();
  ASSERT_TRUE(heard->done.HasBeenNotified());
  EXPECT_STATUS(heard->wire, absl::StatusCode::kUnavailable, "takes no more connections");
  EXPECT_STATUS(host->Offer(Heard::In(std::make_shared<Heard>())), absl::StatusCode::kUnavailable,
                "takes no more connections");
  host->Tick();
  host->Close();
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_acceptor.h"

#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/owned_fd.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/testing/system_state.h"
#include "distributed/link/unix_dial.h"
#include "distributed/link/unix_offer.h"
#include "distributed/link/unix_socket.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// What became of an offer.
struct Heard {
  Notification done;
  StatusOr<std::unique_ptr<ByteWire>> wire;

  static UnixAcceptor::Accepted In(const std::shared_ptr<Heard>& heard) {
    return [heard](StatusOr<std::unique_ptr<ByteWire>> wire) {
      heard->wire = std::move(wire);
      heard->done.Notify();
    };
  }
};

// The bytes and the end of a wire.
class Listener : public ByteWire::User {
 public:
  void OnBytes(absl::string_view bytes) override {
    MutexLock lock(&mu_);
    received_.append(bytes.data(), bytes.size());
    changed_.SignalAll();
  }
  absl::Span<char> Place() override { return {}; }
  void OnFilled(size_t) override {}
  void OnWritten() override {}
  void OnClosed(const Status&, bool by_peer) override {
    MutexLock lock(&mu_);
    is_closed_ = true;
    by_peer_ = by_peer;
    changed_.SignalAll();
  }

  // That came before the end, or until there are so many.
  std::string Await(size_t num_bytes) {
    MutexLock lock(&mu_);
    while (received_.size() < num_bytes && !is_closed_) changed_.Wait(&mu_);
    return received_;
  }
  // True when the peer closed it.
  bool AwaitClosed() {
    MutexLock lock(&mu_);
    while (!is_closed_) changed_.Wait(&mu_);
    return by_peer_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::string received_ ABSL_GUARDED_BY(mu_);
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  bool by_peer_ ABSL_GUARDED_BY(mu_) = false;
};

class UnixAcceptorTest : public ::testing::Test {
 protected:
  UnixAcceptorTest() { options_.clock = &clock_; }

  void Listen() {
    StatusOr<std::unique_ptr<UnixAcceptor>> acceptor = UnixAcceptor::Listen(options_);
    ASSERT_OK(acceptor);
    acceptor_ = *std::move(acceptor);
  }
  UnixOffer Offer(const std::shared_ptr<Heard>& heard) {
    const StatusOr<UnixOffer> offer = acceptor_->Offer(Heard::In(heard));
    EXPECT_OK(offer);
    return offer.ok() ? *offer : UnixOffer();
  }
  // A connection that has said nothing.
  static OwnedFd Connect(const UnixOffer& offer) {
    OwnedFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_TRUE(socket.open());
    const AbstractAddress address(offer.SocketName());
    EXPECT_EQ(::connect(socket.get(), address.get(), address.num_bytes), 0);
    return socket;
  }
  // Waits until the other side has closed it, without having said anything.
  static void ExpectClosed(const OwnedFd& socket) {
    char byte;
    EXPECT_LE(::recv(socket.get(), &byte, 1, 0), 0);
  }
  // The wire of a dialler that is refused.
  static void ExpectRefused(StatusOr<std::unique_ptr<ByteWire>> wire) {
    ASSERT_OK(wire);
    const auto user = std::make_shared<Listener>();
    (*wire)->Start(user);
    EXPECT_TRUE(user->AwaitClosed());
    EXPECT_EQ(user->Await(0), "");
  }
  // Bytes go both ways.
  static void ExpectConnected(StatusOr<std::unique_ptr<ByteWire>> dialled, Heard* heard) {
    ASSERT_OK(dialled);
    ASSERT_TRUE(heard->done.WaitFor(absl::Minutes(1)));
    ASSERT_OK(heard->wire);
    const std::unique_ptr<ByteWire> wires[2] = {*std::move(dialled), *std::move(heard->wire)};
    std::shared_ptr<Listener> users[2];
    for (int end = 0; end < 2; ++end) {
      users[end] = std::make_shared<Listener>();
      wires[end]->Start(users[end]);
      ByteChain bytes;
      bytes.Append(end == 0 ? "ping" : "pong");
      EXPECT_TRUE(wires[end]->Write(std::move(bytes)));
    }
    EXPECT_EQ(users[0]->Await(4), "pong");
    EXPECT_EQ(users[1]->Await(4), "ping");
    wires[0]->Close();
    EXPECT_FALSE(users[0]->AwaitClosed());
    EXPECT_TRUE(users[1]->AwaitClosed());
  }

  FakeClock clock_;
  UnixAcceptorOptions options_;
  std::unique_ptr<UnixAcceptor> acceptor_;
};

// covers: clusters: two tasks of a host that have an offer of each other open a Unix link
TEST_F(UnixAcceptorTest, AnOfferIsTakenUp) {
  Listen();
  std::shared_ptr<Heard> heard[3];
  UnixOffer offers[3];
  for (int i = 0; i < 3; ++i) {
    heard[i] = std::make_shared<Heard>();
    offers[i] = Offer(heard[i]);
  }
  // In another order, by what travels.
  for (const int i : {1, 2, 0}) {
    ASSERT_OK_AND_ASSIGN(const UnixOffer offer, UnixOffer::Decode(offers[i].Encode()));
    ExpectConnected(DialUnix(offer), heard[i].get());
  }
  EXPECT_EQ(acceptor_->counts().proven, 3);
  EXPECT_EQ(acceptor_->num_half_open(), 0);
}

// covers: clusters: the nonce of a Unix link is of use once, in time, and as it was offered
TEST_F(UnixAcceptorTest, ANonceIsOfUseOnceAndInTime) {
  Listen();
  const auto heard = std::make_shared<Heard>();
  const UnixOffer offer = Offer(heard);
  UnixOffer wrong = offer;
  wrong.nonce[15] = static_cast<char>(wrong.nonce[15] ^ 1);
  ExpectRefused(DialUnix(wrong));
  EXPECT_FALSE(heard->done.HasBeenNotified());
  ExpectConnected(DialUnix(offer), heard.get());
  ExpectRefused(DialUnix(offer));  // said again

  const auto late = std::make_shared<Heard>();
  const UnixOffer late_offer = Offer(late);
  clock_.Advance(options_.max_offer_age);
  ExpectRefused(DialUnix(late_offer));
  ASSERT_TRUE(late->done.HasBeenNotified());
  EXPECT_STATUS(late->wire, absl::StatusCode::kDeadlineExceeded,
                "Unix link: the peer must take up the offer within 30s, got no connection");
  EXPECT_EQ(acceptor_->counts().wrong_nonce, 3);
  EXPECT_EQ(acceptor_->counts().proven, 1);
}

TEST_F(UnixAcceptorTest, AnOfferThatNobodyTakesUpExpires) {
  Listen();
  const auto first = std::make_shared<Heard>(), second = std::make_shared<Heard>();
  Offer(first);
  clock_.Advance(absl::Seconds(10));
  Offer(second);
  clock_.Advance(absl::Seconds(20) - absl::Nanoseconds(1));
  acceptor_->Tick();
  EXPECT_FALSE(first->done.HasBeenNotified());
  clock_.Advance(absl::Nanoseconds(1));
  acceptor_->Tick();
  EXPECT_TRUE(first->done.HasBeenNotified());
  EXPECT_FALSE(second->done.HasBeenNotified());
}

TEST_F(UnixAcceptorTest, OffersAreBounded) {
  options_.max_offers = 2;
  Listen();
  const auto heard = std::make_shared<Heard>();
  Offer(std::make_shared<Heard>());
  Offer(std::make_shared<Heard>());
  EXPECT_STATUS(acceptor_->Offer(Heard::In(heard)), absl::StatusCode::kResourceExhausted,
                "offers that no peer has taken up must be at most 2");
  EXPECT_FALSE(heard->done.HasBeenNotified());
}

TEST_F(UnixAcceptorTest, ANonceMayComeInPieces) {
  Listen();
  const auto heard = std::make_shared<Heard>();
  const UnixOffer offer = Offer(heard);
  const OwnedFd socket = Connect(offer);
  ASSERT_EQ(::send(socket.get(), offer.nonce.data(), 7, 0), 7);
  Await("it is half open", [&] { return acceptor_->num_half_open() == 1; });
  EXPECT_FALSE(heard->done.HasBeenNotified());
  const std::string rest = std::string(offer.nonce.data() + 7, 9) + "hello";
  ASSERT_EQ(::send(socket.get(), rest.data(), rest.size(), 0), 14);
  ASSERT_TRUE(heard->done.WaitFor(absl::Minutes(1)));
  ASSERT_OK(heard->wire);
  // What follows the nonce is the wire's.
  const auto user = std::make_shared<Listener>();
  (*heard->wire)->Start(user);
  EXPECT_EQ(user->Await(5), "hello");
  (*heard->wire)->Close();
  EXPECT_FALSE(user->AwaitClosed());
  EXPECT_EQ(acceptor_->num_half_open(), 0);
}

// covers: clusters: a connection to a task's Unix socket that says nothing is dropped in time
TEST_F(UnixAcceptorTest, AConnectionThatSaysNothingIsDropped) {
  Listen();
  const UnixOffer offer = Offer(std::make_shared<Heard>());
  const OwnedFd silent = Connect(offer), slow = Connect(offer);
  ASSERT_EQ(::send(slow.get(), offer.nonce.data(), 15, 0), 15);
  Await("both are half open", [&] { return acceptor_->num_half_open() == 2; });
  clock_.Advance(options_.max_proof - absl::Nanoseconds(1));
  acceptor_->Tick();
  EXPECT_EQ(acceptor_->num_half_open(), 2);
  clock_.Advance(absl::Nanoseconds(1));
  acceptor_->Tick();
  EXPECT_EQ(acceptor_->num_half_open(), 0);
  ExpectClosed(silent);
  ExpectClosed(slow);
  EXPECT_EQ(acceptor_->counts().silent, 2);
}

TEST_F(UnixAcceptorTest, AConnectionThatClosesIsForgotten) {
  Listen();
  const UnixOffer offer = Offer(std::make_shared<Heard>());
  OwnedFd socket = Connect(offer);
  ASSERT_EQ(::send(socket.get(), offer.nonce.data(), 3, 0), 3);
  Await("it is half open", [&] { return acceptor_->num_half_open() == 1; });
  socket.Close();
  Await("it is forgotten", [&] { return acceptor_->counts().closed == 1; });
  EXPECT_EQ(acceptor_->num_half_open(), 0);
}

// covers: clusters: a thousand half-open connections to a task's Unix socket: it keeps few, and who
//   has an offer still comes in
TEST_F(UnixAcceptorTest, AThousandHalfOpenConnections) {
  constexpr int kConnections = 1000;
  rlimit limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit before = limit;
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GT(limit.rlim_cur, rlim_t{kConnections + 200}) << "the system must give descriptors";
  Listen();
  const auto heard = std::make_shared<Heard>();
  const UnixOffer offer = Offer(heard);
  std::vector<OwnedFd> strangers;
  for (int i = 0; i < kConnections; ++i) strangers.push_back(Connect(offer));
  Await("all were accepted",
        [&] { return acceptor_->counts().too_many == kConnections - options_.max_half_open; });
  EXPECT_EQ(acceptor_->num_half_open(), options_.max_half_open);
  ExpectClosed(strangers.front());
  ExpectConnected(DialUnix(offer), heard.get());
  acceptor_ = nullptr;
  for (const OwnedFd& stranger : strangers) ExpectClosed(stranger);
  strangers.clear();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

// covers: clusters: a task that has no descriptor for a connection neither spins nor loses it
TEST_F(UnixAcceptorTest, WithoutDescriptorsItRestsUntilTheNextTick) {
  Listen();
  const auto heard = std::make_shared<Heard>();
  const UnixOffer offer = Offer(heard);
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  OwnedFd highest(::dup(0));
  rlimit limit = before;
  limit.rlim_cur = static_cast<rlim_t>(highest.get()) + 20;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<OwnedFd> taken;
  for (;;) {
    OwnedFd one(::dup(0));
    if (!one.open()) break;
    taken.push_back(std::move(one));
  }
  ASSERT_FALSE(taken.empty());
  taken.pop_back();  // for the one that dials
  StatusOr<std::unique_ptr<ByteWire>> dialled = DialUnix(offer);
  Await("there is no descriptor", [&] { return acceptor_->counts().rests > 0; });
  acceptor_->Tick();
  Await("there is none yet", [&] { return acceptor_->counts().rests > 1; });
  EXPECT_EQ(acceptor_->counts().rests, 2);  // and was not asked for again and again
  taken.clear();
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  acceptor_->Tick();
  ExpectConnected(std::move(dialled), heard.get());
}

// covers: clusters: both sides of a Unix link refuse a process of another user, the dialling one
//   before it has said anything
TEST_F(UnixAcceptorTest, AnotherUserIsRefused) {
  options_.user = ::geteuid() + 1;
  Listen();
  const auto heard = std::make_shared<Heard>();
  const UnixOffer offer = Offer(heard);
  ExpectClosed(Connect(offer));
  // Perhaps closed before the nonce has been sent.
  StatusOr<std::unique_ptr<ByteWire>> dialled = DialUnix(offer);
  if (dialled.ok()) ExpectRefused(std::move(dialled));
  Await("both were refused", [&] { return acceptor_->counts().other_user == 2; });
  EXPECT_FALSE(heard->done.HasBeenNotified());

  options_.user = ::geteuid();
  Listen();
  const UnixOffer own = Offer(std::make_shared<Heard>());
  EXPECT_STATUS(DialUnix(own, ::geteuid() + 1), absl::StatusCode::kPermissionDenied,
                "Unix link: both tasks must belong to one user");
  Await("it went without a word", [&] { return acceptor_->counts().closed == 1; });
  EXPECT_EQ(acceptor_->counts().wrong_nonce, 0);
}

// covers: clusters: an offer of a task that is on another host, or has ended, is a Status at once
TEST_F(UnixAcceptorTest, AnOfferFromElsewhereIsAStatus) {
  UnixOffer offer;
  ASSERT_OK_AND_ASSIGN(offer.socket, UnixOffer::Random());
  EXPECT_STATUS(DialUnix(offer), absl::StatusCode::kUnavailable,
                "Unix link: the peer's socket must be on this host and take a connection, got "
                "Connection refused");
}

TEST_F(UnixAcceptorTest, TheEndOfAnAcceptorEndsItsOffersAndConnections) {
  Listen();
  const auto heard = std::make_shared<Heard>();
  const UnixOffer offer = Offer(heard);
  const OwnedFd half_open = Connect(offer);
  Await("it is half open", [&] { return acceptor_->num_half_open() == 1; });
  acceptor_ = nullptr;
  ASSERT_TRUE(heard->done.HasBeenNotified());
  EXPECT_STATUS(heard->wire, absl::StatusCode::kUnavailable, "takes no more connections");
  ExpectClosed(half_open);
  EXPECT_STATUS(DialUnix(offer), absl::StatusCode::kUnavailable, "Connection refused");
}

TEST_F(UnixAcceptorTest, NoDescriptorIsLeft) {
  // What a process has once.
  ASSERT_OK(UnixAcceptor::Listen());
  const int before = NumFds();
  for (int i = 0; i < 20; ++i) {
    options_.max_half_open = 3;
    Listen();
    const auto heard = std::make_shared<Heard>(), never_started = std::make_shared<Heard>();
    const UnixOffer offer = Offer(heard), other = Offer(never_started);
    std::vector<OwnedFd> strangers;
    for (int j = 0; j < 5; ++j) strangers.push_back(Connect(offer));
    ExpectConnected(DialUnix(offer), heard.get());
    ExpectRefused(DialUnix(offer));
    ASSERT_OK(DialUnix(other));
    ASSERT_TRUE(never_started->done.WaitFor(absl::Minutes(1)));
    clock_.Advance(absl::Seconds(5));
    if (i % 2 == 0) acceptor_->Tick();
  }
  acceptor_ = nullptr;
  Await("no descriptor is left", [&] { return NumFds() <= before; });
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_acceptor.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <list>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/visit.h"
#include "distributed/link/unix_poller.h"
#include "distributed/link/unix_socket.h"
#include "distributed/link/unix_wire.h"

namespace millrace {
namespace {

// Connections that the system keeps until they are taken; diallers beyond hear at once that there
// is no room.
constexpr int kBacklog = 128;
// Taken for one event, before other sockets have their turn.
constexpr int kAcceptsPerEvent = 32;

}  // namespace

class UnixAcceptor::State final : public UnixPoller::Source,
                                  public std::enable_shared_from_this<UnixAcceptor::State> {
 public:
  State(UnixPoller* poller, OwnedFd listener, const UnixOffer::RandomBytes& name,
        const UnixAcceptorOptions& options)
      : poller_(poller), listener_(std::move(listener)), name_(name), options_(options) {}

  Status Begin() { return poller_->Add(shared_from_this(), listener_.get(), EPOLLIN); }
  StatusOr<UnixOffer> Offer(Accepted accepted);
  void Tick();
  void Stop();
  Counts counts() const {
    MutexLock lock(&mu_);
    return counts_;
  }
  int num_half_open() const {
    MutexLock lock(&mu_);
    return static_cast<int>(half_open_.size());
  }

  // Of the listener.
  Visit::Work* OnReady() override;

 private:
  struct OpenOffer {
    UnixOffer::RandomBytes nonce;
    absl::Time since;
    Accepted accepted;
  };

  // A connection whose nonce has not come whole.
  class HalfOpen final : public UnixPoller::Source, public std::enable_shared_from_this<HalfOpen> {
   public:
    HalfOpen(std::shared_ptr<State> state, OwnedFd socket, absl::Time since)
        : state_(std::move(state)), socket_(std::move(socket)), since_(since) {}

    Visit::Work* OnReady() override {
      state_->Hear(shared_from_this());
      return nullptr;
    }
    // By one thread at a time: the one that accepted it, then who takes its event.
    enum class Proof { kPart, kWhole, kNone };
    Proof ReadProof();
    const UnixOffer::RandomBytes& nonce() const { return nonce_; }
    OwnedFd TakeSocket() { return std::move(socket_); }

    int fd() const { return socket_.get(); }
    absl::Time since() const { return since_; }

   private:
    const std::shared_ptr<State> state_;
    OwnedFd socket_;
    const absl::Time since_;
    UnixOffer::RandomBytes nonce_ = {};
    size_t nonce_bytes_ = 0;
  };

  // False when the listener has no more, or must rest.
  bool AcceptOne();
  void Welcome(OwnedFd socket);
  void Hear(const std::shared_ptr<HalfOpen>& connection);
  void Prove(HalfOpen* connection);
  // Whether it was half open; it is not any more.
  bool Forget(const HalfOpen& connection);
  void Arm() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { poller_->Arm(*this, listener_.get(), EPOLLIN); }

  UnixPoller* const poller_;
  const OwnedFd listener_;
  const UnixOffer::RandomBytes name_;
  const UnixAcceptorOptions options_;

  mutable Mutex mu_;
  bool is_stopped_ ABSL_GUARDED_BY(mu_) = false;
  // The system had no descriptor or no memory; the listener is armed again by Tick.
  bool is_resting_ ABSL_GUARDED_BY(mu_) = false;
  std::list<OpenOffer> offers_ ABSL_GUARDED_BY(mu_);  // oldest first
  // By id, so the oldest first.
  std::map<uint64_t, std::shared_ptr<HalfOpen>> half_open_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

// --- Offers

StatusOr<UnixOffer> UnixAcceptor::State::Offer(Accepted accepted) {
  UnixOffer offer;
  offer.host = UnixOffer::ThisHost();
  offer.socket = name_;
  MR_ASSIGN_OR_RETURN(offer.nonce, UnixOffer::Random());
  const absl::Time now = options_.clock->Now();
  MutexLock lock(&mu_);
  if (static_cast<int64_t>(offers_.size()) >= options_.max_offers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("Unix link: offers that no peer has taken up must be at most ",
                     options_.max_offers, " (max_offers), got one more"));
  }
  offers_.push_back({offer.nonce, now, std::move(accepted)});
  return offer;
}

void UnixAcceptor::State::Tick() {
  std::list<OpenOffer> expired;
  std::vector<std::shared_ptr<HalfOpen>> dropped;  // go without the lock
  const absl::Time now = options_.clock->Now();
  {
    MutexLock lock(&mu_);
    while (!offers_.empty() && now - offers_.front().since >= options_.max_offer_age) {
      expired.splice(expired.end(), offers_, offers_.begin());
    }
    while (!half_open_.empty() && now - half_open_.begin()->second->since() >= options_.max_proof) {
      dropped.push_back(half_open_.begin()->second);
      half_open_.erase(half_open_.begin());
      poller_->Remove(*dropped.back(), dropped.back()->fd());
      ++counts_.silent;
    }
    if (is_resting_ && !is_stopped_) {
      is_resting_ = false;
      Arm();
    }
  }
  for (OpenOffer& offer : expired) {
    offer.accepted(absl::DeadlineExceededError(
        absl::StrCat("Unix link: the peer must take up the offer within ",
                     absl::FormatDuration(options_.max_offer_age), ", got no connection")));
  }
}

void UnixAcceptor::State::Stop() {
  std::list<OpenOffer> gone;
  std::map<uint64_t, std::shared_ptr<HalfOpen>> dropped;  // go without the lock
  {
    MutexLock lock(&mu_);
    is_stopped_ = true;
    gone.swap(offers_);
    dropped.swap(half_open_);
    for (const auto& [id, connection] : dropped) poller_->Remove(*connection, connection->fd());
    poller_->Remove(*this, listener_.get());
  }
  // Nobody connects any more, whoever still holds this.
  ::shutdown(listener_.get(), SHUT_RDWR);
  for (OpenOffer& offer : gone) {
    offer.accepted(absl::UnavailableError("Unix link: the task takes no more connections"));
  }
}

// --- Connections

Visit::Work* UnixAcceptor::State::OnReady() {
  for (int i = 0; i < kAcceptsPerEvent; ++i) {
    if (!AcceptOne()) break;
  }
  MutexLock lock(&mu_);
  if (!is_stopped_ && !is_resting_) Arm();
  return nullptr;
}

bool UnixAcceptor::State::AcceptOne() {
  OwnedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.open()) {
    const int error = errno;
    if (error == EINTR || error == ECONNABORTED) return true;
    if (error == EAGAIN || error == EWOULDBLOCK) return false;
    LogWarning("Unix link: connections wait until the system can take one, got ",
               SystemErrorText(error));
    // It would be ready again at once, and again refused.
    MutexLock lock(&mu_);
    is_resting_ = true;
    ++counts_.rests;
    return false;
  }
  if (!CheckPeerUser(socket.get(), options_.user).ok()) {
    MutexLock lock(&mu_);
    ++counts_.other_user;
    return true;
  }
  const Status status = NoExceptions("Unix link", [&] {
    Welcome(std::move(socket));
    return absl::OkStatus();
  });
  if (!status.ok()) LogError("a connection was dropped: ", status.message());
  return true;
}

void UnixAcceptor::State::Welcome(OwnedFd socket) {
  const auto connection =
      std::make_shared<HalfOpen>(shared_from_this(), std::move(socket), options_.clock->Now());
  // Most have said all by now, and need no event.
  switch (connection->ReadProof()) {
    case HalfOpen::Proof::kWhole:
      return Prove(connection.get());
    case HalfOpen::Proof::kNone: {
      MutexLock lock(&mu_);
      ++counts_.closed;
      return;
    }
    case HalfOpen::Proof::kPart:
      break;
  }
  std::shared_ptr<HalfOpen> oldest;  // goes without the lock
  MutexLock lock(&mu_);
  if (is_stopped_) return;
  if (!half_open_.empty() && static_cast<int64_t>(half_open_.size()) >= options_.max_half_open) {
    // Who says nothing must not keep out who does.
    oldest = half_open_.begin()->second;
    half_open_.erase(half_open_.begin());
    poller_->Remove(*oldest, oldest->fd());
    ++counts_.too_many;
  }
  half_open_.emplace(connection->id(), connection);
  if (!poller_->Add(connection, connection->fd(), EPOLLIN).ok()) half_open_.erase(connection->id());
}

UnixAcceptor::State::HalfOpen::Proof UnixAcceptor::State::HalfOpen::ReadProof() {
  while (nonce_bytes_ < nonce_.size()) {
    // No more than that: what follows is the wire's.
    const ssize_t got = ::recv(socket_.get(), nonce_.data() + nonce_bytes_,
                               nonce_.size() - nonce_bytes_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Proof::kPart;
    if (got <= 0) return Proof::kNone;
    nonce_bytes_ += static_cast<size_t>(got);
  }
  return Proof::kWhole;
}

void UnixAcceptor::State::Hear(const std::shared_ptr<HalfOpen>& connection) {
  const HalfOpen::Proof proof = connection->ReadProof();
  if (proof == HalfOpen::Proof::kPart) {
    MutexLock lock(&mu_);
    if (half_open_.contains(connection->id())) {
      poller_->Arm(*connection, connection->fd(), EPOLLIN);
    }
    return;
  }
  if (!Forget(*connection)) return;  // dropped meanwhile
  if (proof == HalfOpen::Proof::kWhole) return Prove(connection.get());
  MutexLock lock(&mu_);
  ++counts_.closed;
}

bool UnixAcceptor::State::Forget(const HalfOpen& connection) {
  MutexLock lock(&mu_);
  if (half_open_.erase(connection.id()) == 0) return false;
  poller_->Remove(connection, connection.fd());
  return true;
}

void UnixAcceptor::State::Prove(HalfOpen* connection) {
  Tick();  // what has expired must not be taken up
  std::list<OpenOffer> found;
  {
    MutexLock lock(&mu_);
    auto same = offers_.end();
    // All of them are looked at: the time says nothing about any.
    for (auto it = offers_.begin(); it != offers_.end(); ++it) {
      if (UnixOffer::AreSame(it->nonce, connection->nonce())) same = it;
    }
    if (same == offers_.end()) {
      ++counts_.wrong_nonce;
      return;
    }
    ++counts_.proven;
    found.splice(found.end(), offers_, same);
  }
  found.front().accepted(NoExceptions("Unix link", [&]() -> StatusOr<std::unique_ptr<ByteWire>> {
    return MakeUnixWire(poller_, connection->TakeSocket());
  }));
}

// --- UnixAcceptor

StatusOr<std::unique_ptr<UnixAcceptor>> UnixAcceptor::Listen(UnixAcceptorOptions options) {
  return NoExceptions("Unix link", [&]() -> StatusOr<std::unique_ptr<UnixAcceptor>> {
    MR_ASSIGN_OR_RETURN(UnixPoller* const poller, UnixPoller::Shared());
    UnixOffer offer;
    MR_ASSIGN_OR_RETURN(offer.socket, UnixOffer::Random());
    MR_ASSIGN_OR_RETURN(OwnedFd listener, NewUnixSocket());
    const AbstractAddress address(offer.SocketName());
    if (::bind(listener.get(), address.get(), address.num_bytes) != 0 ||
        ::listen(listener.get(), kBacklog) != 0) {
      return absl::UnavailableError(absl::StrCat(
          "Unix link: the system must let the task listen, got ", SystemErrorText(errno)));
    }
    auto state = std::make_shared<State>(poller, std::move(listener), offer.socket, options);
    MR_RETURN_IF_ERROR(state->Begin());
    return std::unique_ptr<UnixAcceptor>(new UnixAcceptor(std::move(state)));
  });
}

UnixAcceptor::UnixAcceptor(std::shared_ptr<State> state) : state_(std::move(state)) {}

UnixAcceptor::~UnixAcceptor() { state_->Stop(); }

StatusOr<UnixOffer> UnixAcceptor::Offer(Accepted accepted) {
  return NoExceptions("Unix link", [&] { return state_->Offer(std::move(accepted)); });
}

void UnixAcceptor::Tick() { state_->Tick(); }

UnixAcceptor::Counts UnixAcceptor::counts() const { return state_->counts(); }

int UnixAcceptor::num_half_open() const { return state_->num_half_open(); }

}  // namespace millrace

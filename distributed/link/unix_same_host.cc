// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_same_host.h"

#include <string>
#include <utility>

#include "core/mutex.h"
#include "core/status.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/unix_dial.h"
#include "distributed/link/unix_offer.h"

namespace millrace {
namespace {

class UnixSameHost : public SameHost {
 public:
  explicit UnixSameHost(UnixAcceptorOptions options) : options_(options) {}

  StatusOr<std::string> Offer(Came came) override {
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<UnixAcceptor> acceptor, Acceptor());
    MR_ASSIGN_OR_RETURN(const UnixOffer offer, acceptor->Offer(std::move(came)));
    return offer.Encode();
  }

  StatusOr<std::unique_ptr<ByteWire>> Take(const std::string& bytes) override {
    MR_ASSIGN_OR_RETURN(const UnixOffer offer, UnixOffer::Decode(bytes));
    if (!UnixOffer::AreSame(offer.host, UnixOffer::ThisHost())) {
      return absl::NotFoundError("Unix link: the offer must be of this host, got another one's");
    }
    return DialUnix(offer, options_.user);
  }

  void Tick() override {
    std::shared_ptr<UnixAcceptor> acceptor;
    {
      MutexLock lock(&mu_);
      acceptor = acceptor_;
    }
    if (acceptor != nullptr) acceptor->Tick();
  }

  void Close() override {
    std::shared_ptr<UnixAcceptor> acceptor;  // goes without the lock
    MutexLock lock(&mu_);
    is_closed_ = true;
    acceptor.swap(acceptor_);
  }

 private:
  StatusOr<std::shared_ptr<UnixAcceptor>> Acceptor() {
    MutexLock lock(&mu_);
    if (is_closed_) {
      return absl::UnavailableError("Unix link: the task takes no more connections");
    }
    if (acceptor_ == nullptr) {
      MR_ASSIGN_OR_RETURN(acceptor_, UnixAcceptor::Listen(options_));
    }
    return acceptor_;
  }

  const UnixAcceptorOptions options_;
  Mutex mu_;
  bool is_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<UnixAcceptor> acceptor_ ABSL_GUARDED_BY(mu_);  // null until the first offer
};

}  // namespace

std::unique_ptr<SameHost> MakeUnixSameHost(UnixAcceptorOptions options) {
  return std::make_unique<UnixSameHost>(options);
}

}  // namespace millrace

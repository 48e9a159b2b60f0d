// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/testing/unix_pair.h"

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/testing/grpc_pair.h"
#include "distributed/link/unix_acceptor.h"
#include "distributed/link/unix_dial.h"
#include "distributed/link/unix_offer.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

class UnixPair : public LinkPair {
 public:
  UnixPair(const LinkPeer& worker, const LinkPeer& ps, int64_t max_pool_bytes)
      : worker_(worker), ps_(ps), max_pool_bytes_(max_pool_bytes) {}
  ~UnixPair() override {
    for (const auto& end : {worker_end, ps_end}) {
      if (end->link() != nullptr) end->link()->Close(absl::AbortedError("the test is over"));
    }
    if (is_open_) Settle();
    for (const auto& end : {worker_end, ps_end}) end->LetGo();
  }
  void Settle() override {
    if (!is_open_) Open();
    EXPECT_TRUE(is_open_ && counts_->AwaitQuiet()) << "bytes are still on their way";
  }

 private:
  // What became of the offer.
  struct Accepted {
    Notification heard;
    StatusOr<std::unique_ptr<ByteWire>> wire;
  };

  void Open() {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<UnixAcceptor> acceptor, UnixAcceptor::Listen());
    const auto accepted = std::make_shared<Accepted>();
    ASSERT_OK_AND_ASSIGN(const UnixOffer offer,
                         acceptor->Offer([accepted](StatusOr<std::unique_ptr<ByteWire>> wire) {
                           accepted->wire = std::move(wire);
                           accepted->heard.Notify();
                         }));
    ASSERT_OK_AND_ASSIGN(std::unique_ptr<ByteWire> dialled, DialUnix(offer));
    ASSERT_TRUE(accepted->heard.WaitFor(absl::Minutes(1)));
    ASSERT_OK(accepted->wire);
    ByteLinkOptions worker;
    worker.task = worker_.task;
    worker.incarnation = worker_.incarnation;
    worker.peer_task = ps_.task;
    worker.peer_incarnation = ps_.incarnation;
    ByteLinkOptions ps;
    ps.task = ps_.task;
    ps.incarnation = ps_.incarnation;
    worker.max_pool_bytes = ps.max_pool_bytes = max_pool_bytes_;
    is_open_ = true;
    ByteLink::Open(MakeCountedWire(std::move(dialled), counts_, 0), worker_end, worker);
    ByteLink::Open(MakeCountedWire(*std::move(accepted->wire), counts_, 1), ps_end, ps);
  }

  const LinkPeer worker_, ps_;
  const int64_t max_pool_bytes_;
  const std::shared_ptr<WireCounts> counts_ = std::make_shared<WireCounts>();
  bool is_open_ = false;
};

}  // namespace

std::unique_ptr<LinkPair> MakeUnixPair(const LinkPeer& worker, const LinkPeer& ps,
                                       int64_t max_pool_bytes) {
  return std::make_unique<UnixPair>(worker, ps, max_pool_bytes);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/server_links.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <utility>

#include "core/byte_budget.h"
#include "core/dcheck.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/grpc_wire.h"
#include "distributed/link/unix_same_host.h"
#include "graph/device_name.h"

namespace millrace {
namespace {

// A name is kept as long as its link.
constexpr size_t kMaxTaskNameBytes = 256;

// "/job:ps/replica:0/task:0"
bool IsTaskName(const std::string& task) {
  if (task.size() > kMaxTaskNameBytes) return false;
  const StatusOr<DeviceName> name = DeviceName::Parse(task);
  return name.ok() && name->job && name->replica && name->task && name->Task().ToString() == task;
}

// Of a link that opens when its task is gone.
class NoTask : public LinkEnd {
 public:
  void OnOpen(std::shared_ptr<Link> link) override {
    link->Close(absl::UnavailableError("the server has stopped"));
  }
  void OnBind(BindFrame) override {}
  void OnUnbind(uint64_t) override {}
  void OnRun(RunFrame) override {}
  void OnTensors(SentTensors) override {}
  void OnEnd(EndFrame) override {}
  void OnCancel(int64_t, const Status&) override {}
  void OnReceived(int64_t, uint64_t) override {}
  void OnRefused(int64_t, const Status&) override {}
  void OnLost(const Status&, bool) override {}
};

}  // namespace

void ServerLinks::Open(ServerLinksOptions options) {
  MR_DCHECK(table_ == nullptr, "links are opened once");
  LinkTableOptions table;
  table.link.task = options.task;
  table.link.incarnation = options.incarnation;
  table.link.address = std::move(options.address);
  table.link.max_queued_bytes = options.limits.max_queued_bytes;
  table.link.max_splat_bytes = options.limits.max_splat_bytes;
  table.link.transfers.max_tensor_bytes = options.limits.max_tensor_bytes;
  // As the requests of all callers have.
  table.link.transfers.pending = std::make_shared<ByteBudget>(options.limits.max_pending_bytes);
  table.link.transfers.max_transfers = options.limits.max_transfers;
  pools_ = std::make_shared<LinkPools>(options.limits.max_link_shared_bytes);
  table.link.max_pool_bytes = options.limits.max_link_shared_bytes;
  table.link.pools = pools_;
  const int64_t max_kept_bytes = std::max(options.limits.max_kept_bytes, int64_t{0});
  kept_ = std::make_shared<KeptCounts>(max_kept_bytes);
  table.link.max_kept_bytes = max_kept_bytes;
  table.link.kept_counts = kept_;
  table.dial = [channel = options.channel, own = options.task](
                   const std::string& task) -> StatusOr<std::unique_ptr<ByteWire>> {
    const std::shared_ptr<RpcChannel> way = channel(task);
    if (way == nullptr) {
      return InvalidArgument("Link of ", own, ": it must lead to a task of the cluster, got ",
                             task);
    }
    return DialGrpcWire(way.get());
  };
  table.make_end = [make_end = std::move(options.make_end)](const LinkPeer&) {
    std::shared_ptr<LinkEnd> end = make_end();
    return end != nullptr ? end : std::make_shared<NoTask>();
  };
  table.can_dial = [channel = std::move(options.channel)](const std::string& task) {
    return channel(task) != nullptr;
  };
  table.check_peer = [](const LinkPeer& peer) -> Status {
    if (IsTaskName(peer.task)) return absl::OkStatus();
    return InvalidArgument("Link: a caller must have the name of a task, got '",
                           peer.task.substr(0, kMaxTaskNameBytes), "'");
  };
  if (options.unix_links) table.same_host = MakeUnixSameHost();
  table_ = std::make_unique<LinkTable>(std::move(table));
}

void ServerLinks::Get(absl::string_view task, Got got) {
  table_->Get(std::string(task), std::move(got));
}

void ServerLinks::Accept(std::shared_ptr<DuplexCall> call) {
  table_->Accept(AcceptGrpcWire(std::move(call)));
}

void ServerLinks::CloseAll(const Status& reason) {
  if (table_ != nullptr) table_->CloseAll(reason);
}

int ServerLinks::num_unix_links() const { return table_ == nullptr ? 0 : table_->num_pairs(); }

int64_t ServerLinks::num_pooled_tensors() const {
  return pools_ == nullptr ? 0 : pools_->sent_tensors.load(std::memory_order_relaxed);
}

int64_t ServerLinks::num_unpooled_tensors() const {
  return pools_ == nullptr ? 0 : pools_->refused_tensors.load(std::memory_order_relaxed);
}

int64_t ServerLinks::pooled_bytes() const {
  return pools_ == nullptr ? 0 : pools_->block_bytes->load(std::memory_order_relaxed);
}

int64_t ServerLinks::num_kept_tensors() const {
  return kept_ == nullptr ? 0 : kept_->kept_tensors.load(std::memory_order_relaxed);
}

int64_t ServerLinks::bytes_kept_at_peers() const {
  return kept_ == nullptr ? 0 : kept_->bytes_at_peers.load(std::memory_order_relaxed);
}

int64_t ServerLinks::bytes_kept_for_peers() const {
  return kept_ == nullptr ? 0 : kept_->bytes_for_peers.load(std::memory_order_relaxed);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_SERVER_LINKS_H_
#define MILLRACE_DISTRIBUTED_SERVER_LINKS_H_

// ServerLinks: the links of a server's task to the others of its cluster, over gRPC: one call of
// both directions for each pair of tasks (/millrace.Link/Connect), whoever dialled. Two tasks of
// one host offer each other a Unix socket by it, which carries their steps (link_table.h).
//
// A link is dialled when a step needs it. A task that this one's cluster does not name, as a master
// that was added later, has a link when it dials: it may call this task, too. This one waits for
// such a dial as long as for an answer to its own.
//
//   made -> open (Open) -> closed (CloseAll)
//
// Threads: all methods, from any; Open once, before the port is open and before a step runs.
// Lifetime: it outlives the worker and the master. Links may live longer.
// Failure: as LinkTable; FailedPrecondition for a task that does not know links.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/kept_tensors.h"
#include "distributed/link/link.h"
#include "distributed/link/link_pools.h"
#include "distributed/link/link_table.h"
#include "distributed/link/peer_links.h"
#include "net/duplex_call.h"
#include "net/rpc_channel.h"

namespace millrace {

struct ServerLinksOptions {
  std::string task;
  uint64_t incarnation = 0;
  // The way to a task; null for one that is not in the cluster. Called until CloseAll.
  std::function<std::shared_ptr<RpcChannel>(const std::string& task)> channel;
  // Where a task of the cluster listens, for messages; empty for others. May be null.
  std::function<std::string(const std::string& task)> address;
  // Those of one link; max_pending_bytes is of all links together.
  ServerLimits limits;
  // Whether tasks of this host are offered Unix sockets, and may offer them.
  bool unix_links = true;
  // The task behind the links; null when it is gone.
  std::function<std::shared_ptr<LinkEnd>()> make_end;
};

class ServerLinks : public PeerLinks {
 public:
  void Open(ServerLinksOptions options);
  void Get(absl::string_view task, Got got) override;
  // For RpcServer::Options::duplex_handlers.
  void Accept(std::shared_ptr<DuplexCall> call);
  // Both ends hear `reason`, an error.
  void CloseAll(const Status& reason);
  // Tasks to which steps go over a Unix socket now.
  int num_unix_links() const;
  // Tensors that were copied into shared memory to be sent, on all links so far.
  int64_t num_pooled_tensors() const;
  // Tensors that found no room there, and went through the socket.
  int64_t num_unpooled_tensors() const;
  // Bytes of tensors that lie there now: they wait to leave, or others read them.
  int64_t pooled_bytes() const;
  // Tensors that left without their bytes, as their receiver has kept them, on all links so far.
  int64_t num_kept_tensors() const;
  // What other tasks keep for this one now, and this one for others.
  int64_t bytes_kept_at_peers() const;
  int64_t bytes_kept_for_peers() const;

 private:
  std::shared_ptr<LinkPools> pools_;  // as table_
  std::shared_ptr<KeptCounts> kept_;  // as table_
  std::unique_ptr<LinkTable> table_;  // set by Open
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_SERVER_LINKS_H_

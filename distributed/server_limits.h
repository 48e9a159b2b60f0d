// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_SERVER_LIMITS_H_
#define MILLRACE_DISTRIBUTED_SERVER_LIMITS_H_

// ServerLimits: how much callers may take of a server, all together if not said otherwise.
//
// What is beyond a limit is refused with ResourceExhausted, which names the limit, before it is
// decoded or allocated. A graph that a member runs may take memory without a limit: its ops do.
//
// Plain data. Sizes in bytes.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace millrace {

struct ServerLimits {
  // Of one request; gRPC's own limit by default.
  int64_t max_message_bytes = INT32_MAX;
  // Of all requests that are being served: received whole. Those that come in parts and never end
  // are gRPC's to count (grpc::ResourceQuota), with what it needs itself: when all that it holds
  // passes max_pending_bytes + kReceiveSlackBytes, it breaks off calls, anybody's, until it does
  // not. A tensor that stays where it was received counts until it is freed.
  int64_t max_pending_bytes = int64_t{16} << 30;
  static constexpr int64_t kReceiveSlackBytes = int64_t{64} << 20;
  // Elements of one request's tensors that it does not list: TensorFlow's messages may give the
  // last value of a tensor once, however often it is repeated.
  int64_t max_splat_bytes = int64_t{32} << 20;
  // Calls that are being served, those that wait included.
  int64_t max_calls = 20'000;
  // Of these, on one connection: a process has one to each address that it calls, a program of
  // another kind may have more.
  int64_t max_calls_of_connection = 5'000;
  // Sessions of clients at the master, and of masters at the worker: each so many.
  int64_t max_sessions = 10'000;
  // In one session of a master: signatures that a client refers to by number. Each keeps its
  // partitions registered.
  int64_t max_callables = 10'000;
  // In one session of a worker. Bytes: of the registered messages.
  int64_t max_graphs = 10'000;
  int64_t max_graph_bytes = int64_t{8} << 30;
  // Tensors that were pushed to steps which have not begun here.
  int64_t max_parked_bytes = int64_t{1} << 30;
};

// `where`: "RegisterGraph on /job:ps/task:0"; `what`: "graphs of one session"; `name` is the
// limit's in ServerLimits.
inline Status BeyondLimit(absl::string_view where, absl::string_view what, absl::string_view name,
                          int64_t limit, int64_t got) {
  return absl::ResourceExhaustedError(absl::StrCat(where, ": ", what, " must be at most ", limit,
                                                   " (ServerLimits::", name, "), got ", got));
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_SERVER_LIMITS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_CALL_LIMITS_H_
#define MILLRACE_NET_CALL_LIMITS_H_

// CallLimits: how much the calls of a server may take, all together if not said otherwise.
//
// What is beyond a limit is refused with ResourceExhausted, which names the limit, before it is
// decoded or allocated. Messages call a limit ServerLimits::<name>: that is where the options of a
// server have it.
//
// Plain data. Sizes in bytes.

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/status.h"

namespace millrace {

struct CallLimits {
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
  // Calls that are being served, those that wait included: of heavy ones, and as many of all others
  // (net/call_guard.h).
  int64_t max_calls = 20'000;
  // Of these, on one connection: a process has one to each address that it calls, a program of
  // another kind may have more.
  int64_t max_calls_of_connection = 5'000;
  // Of others than heavy ones, in place of both; 0: as above.
  int64_t max_other_calls = 0;
};

// `where`: "RegisterGraph on /job:ps/task:0"; `what`: "graphs of one session"; `name` is the
// limit's.
inline Status BeyondLimit(absl::string_view where, absl::string_view what, absl::string_view name,
                          int64_t limit, int64_t got) {
  return absl::ResourceExhaustedError(absl::StrCat(where, ": ", what, " must be at most ", limit,
                                                   " (ServerLimits::", name, "), got ", got));
}

}  // namespace millrace

#endif  // MILLRACE_NET_CALL_LIMITS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_CLIENT_CALL_RETRIES_H_
#define MILLRACE_SERVING_CLIENT_CALL_RETRIES_H_

// Retries of calls that the server surely did not run.
//
// That is so when the call never had a connection (refused, host unknown: net/not_sent.h), and when
// a batching queue refused it because it was full. A connection that broke under a call is neither:
// its request may have run. Nor is any other answer of a server.
//
// Between two tries the caller's thread sleeps: 100 ms, doubled with each try up to 2 s, times a
// random number of [0.5, 1), so that clients that lost one server do not come back all at once. A
// wait that would end behind the deadline is not begun.
//
// Thread-safety: functions, from any thread; CallWithRetries blocks, never on a poller.
// Failure: the status of the last try, with the number of tries behind it where there were several.

#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "net/rpc_channel.h"

namespace millrace {

// Whether a call that ended so was surely not run, and may find a server later.
bool SurelyDidNotRun(const Status& status);

// The wait behind try number `tries` (1: the first), `random` of [0, 1).
absl::Duration RetryWait(int tries, double random);

struct CallRetries {
  absl::Time deadline;  // by the clock; of all tries together
  int max_retries = 0;
  Clock* clock = Clock::Real();
};

StatusOr<grpc::ByteBuffer> CallWithRetries(RpcChannel* channel, const std::string& method,
                                           const grpc::ByteBuffer& request,
                                           const CallRetries& retries);

}  // namespace millrace

#endif  // MILLRACE_SERVING_CLIENT_CALL_RETRIES_H_

// SPDX-License-Identifier: Apache-2.0
#include "serving/client/call_retries.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/random_bits.h"
#include "core/refusal.h"
#include "net/not_sent.h"
#include "net/peer_probe.h"

namespace millrace {
namespace {

constexpr absl::Duration kFirstWait = absl::Milliseconds(100), kLongestWait = absl::Seconds(2);

// The text of Unavailable for a request that was not queued, TensorFlow Serving's and ours.
constexpr absl::string_view kNotQueued =
    "The batch scheduling queue to which this task was submitted is full";

// Of [0, 1).
double RandomFraction() { return static_cast<double>(RandomUint64() >> 11) * 0x1p-53; }

}  // namespace

bool SurelyDidNotRun(const Status& status) {
  if (!absl::IsUnavailable(status) || IsRefusal(status)) return false;
  return WasNotSent(status) || absl::StrContains(status.message(), kNotQueued);
}

absl::Duration RetryWait(int tries, double random) {
  // 2^10 × 100 ms is above the longest wait: more doublings change nothing.
  const double doubled = std::ldexp(1.0, std::clamp(tries - 1, 0, 10));
  return std::min(kFirstWait * doubled, kLongestWait) * (0.5 + random / 2);
}

StatusOr<grpc::ByteBuffer> CallWithRetries(RpcChannel* channel, const std::string& method,
                                           const grpc::ByteBuffer& request,
                                           const CallRetries& retries) {
  for (int tries = 1;; ++tries) {
    // A probe asks hosts, and may last beyond the deadline: only where that is far.
    const bool probes = !absl::StartsWith(channel->address(), "unix:") &&
                        retries.deadline - retries.clock->Now() > 2 * kProbeTime;
    StatusOr<grpc::ByteBuffer> reply =
        channel->Call(method, {.deadline = retries.deadline, .asks_for_refusal = probes}, request);
    if (reply.ok()) return reply;
    const absl::Duration wait = RetryWait(tries, RandomFraction());
    if (tries > retries.max_retries || !SurelyDidNotRun(reply.status()) ||
        retries.clock->Now() + wait >= retries.deadline) {
      return tries == 1 ? reply.status()
                        : Suffixed(reply.status(), absl::StrCat("; after ", tries, " tries"));
    }
    retries.clock->SleepFor(wait);
  }
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_TRACE_TRANSFER_H_
#define MILLRACE_DISTRIBUTED_WORKER_TRACE_TRANSFER_H_

// TraceTransfer: a tensor that came from another task, as lines of the step's trace: one of the
// device that received it, and one of the device that sent it, by that task's clock.
//
// The receiver writes both. The sender's part of the step may have ended, and its trace may be on
// the way to the master, before the tensor leaves; so the sender's times travel with the tensor.
//
// Thread-safety: any thread; the collector locks. Failure: none; without the sender's times there
// is no line of the sender, and without memory, as for a key that is none, no line at all.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "distributed/worker/push_sink.h"
#include "runtime/step_stats.h"

namespace millrace {

struct TransferTimes {
  SendTimes send;  // zeros: not told
  int64_t asked_ns = 0;
  int64_t arrived_ns = 0;
};

// `num_bytes`: of the elements.
void TraceTransfer(absl::string_view wire_key, int64_t num_bytes, const TransferTimes& times,
                   StepStatsCollector* stats);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_TRACE_TRANSFER_H_

// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/trace_transfer.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "distributed/transport/run_times.h"
#include "runtime/rendezvous.h"
#include "runtime/transfer_trace.h"

namespace millrace {

void TraceTransfer(absl::string_view wire_key, int64_t num_bytes, const TransferTimes& times,
                   StepStatsCollector* stats) {
  // Called by the network, which must not hear of it when there is no memory for a trace.
  NoExceptions("Trace", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const RendezvousKey key, RendezvousKey::Parse(wire_key));
    std::string tensor = key.edge_name;
    std::string root;
    uint64_t frame_id = 0;
    int64_t iteration = 0;
    if (RendezvousKey::SplitFrame(wire_key, &root, &frame_id, &iteration)) {
      absl::StrAppend(&tensor, " in iteration ", iteration, " of frame ", frame_id);
    }
    const std::string label = TransferLabel(tensor, num_bytes, key.src_device, key.dst_device);
    if (IsTraceTime(times.send.ready_ns) && IsTraceTime(times.send.left_ns)) {
      stats->Add(key.src_device, TransferStats(TransferSide::kSender, label, num_bytes,
                                               times.send.ready_ns, times.send.left_ns));
    }
    stats->Add(key.dst_device, TransferStats(TransferSide::kReceiver, label, num_bytes,
                                             times.asked_ns, times.arrived_ns));
    return absl::OkStatus();
  }).IgnoreError();
}

}  // namespace millrace

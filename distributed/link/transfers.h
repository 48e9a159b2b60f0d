// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TRANSFERS_H_
#define MILLRACE_DISTRIBUTED_LINK_TRANSFERS_H_

// IncomingTransfers: the tensors of one link that are arriving in parts.
//
//   announced -> complete           TENSORS, then CHUNKs in order until all bytes are there
//   announced, dropped -> gone      the peer ends the step with an error and sends no more of it
//   dropped -> gone                 its CHUNKs were skipped as they came
//
// A transfer is dropped as soon as it is announced when it passes a limit or when there is no
// memory for it. Memory is not touched until bytes come; all transfers together stay within a
// bound.
//
// Thread-compatible: the reading thread of a link. Failure: InvalidArgument when a peer breaks the
// order above, after which the link ends.

#include <cstdint>
#include <map>
#include <memory>
#include <set>

#include "absl/types/span.h"
#include "core/byte_budget.h"
#include "core/status.h"
#include "distributed/link/frame.h"

namespace millrace {

struct TransferLimits {
  // Of one tensor. Messages call it ServerLimits::max_tensor_bytes.
  int64_t max_tensor_bytes = int64_t{16} << 30;
  // Of all that are arriving on the link.
  int64_t max_pending_bytes = int64_t{16} << 30;
  // Instead of that: of all that are arriving on this link and on the others that share it.
  std::shared_ptr<ByteBudget> pending;
  // Transfers at a time; a step of any graph has fewer large edges.
  int64_t max_transfers = 10'000;
};

class IncomingTransfers {
 public:
  // A tensor all of whose bytes are there: entry.value.
  struct Whole {
    int64_t step_id = 0;
    TensorsPurpose purpose = TensorsPurpose::kEdges;
    uint64_t fingerprint = 0;
    TensorEntry entry;
  };

  explicit IncomingTransfers(const TransferLimits& limits);
  ~IncomingTransfers() { EndAll(); }
  IncomingTransfers(const IncomingTransfers&) = delete;
  IncomingTransfers& operator=(const IncomingTransfers&) = delete;

  // `entry`, of `frame`, comes in parts. InvalidArgument for a number that is not above all before
  // it and for bytes that are not those of the shape. ResourceExhausted beyond a limit: then the
  // transfer is dropped, and only its step is harmed.
  Status Announce(const TensorsFrame& frame, const TensorEntry& entry);

  // Where the bytes of a chunk belong; empty for a dropped transfer. InvalidArgument for a transfer
  // that is not open and for a chunk that is not the next one of its transfer.
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame& chunk);
  // The chunk that PlaceFor was asked for last is in its place. The tensor when it is whole now;
  // null otherwise, and for a dropped one.
  std::unique_ptr<Whole> Filled(const ChunkFrame& chunk);

  // The peer sends no more of the step, but for a report: its other transfers are gone. Costs as
  // much as there are of them.
  void EndStep(int64_t step_id);
  // The link is lost.
  void EndAll();

  // Of this link.
  int64_t pending_bytes() const { return pending_bytes_; }
  int64_t num_transfers() const { return static_cast<int64_t>(open_.size()); }

 private:
  struct Transfer {
    std::unique_ptr<Whole> tensor;  // null: dropped
    int64_t step_id = 0;
    uint64_t num_bytes = 0;
    uint64_t filled = 0;
  };

  void LetGoOf(int64_t bytes);

  const TransferLimits limits_;
  const std::shared_ptr<ByteBudget> pending_;
  std::map<uint64_t, Transfer> open_;               // by number
  std::map<int64_t, std::set<uint64_t>> of_steps_;  // the numbers of each step that has any
                                                    // but a report
  uint64_t last_ = 0;                               // announced
  int64_t pending_bytes_ = 0;                       // taken of *pending_
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TRANSFERS_H_

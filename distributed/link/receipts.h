// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_RECEIPTS_H_
#define MILLRACE_DISTRIBUTED_LINK_RECEIPTS_H_

// Receipts: what an end of a ByteLink owes its peer for what has come: credit, word of tensors that
// steps have received, and blocks of the peer's pool that nobody here reads any more; and word of
// tensors that the peer need not keep any more (kept_tensors.h).
//
// RECEIVED, RELEASE and FORGET ride on the next write, so they cost no message of their own while
// steps run. They leave alone when much is owed, when the owner flushes, or when two Ticks found
// them owed.
//
// Thread-compatible: its owner has a lock. Only blocks are released, and tensors
// forgotten, without it, on any thread. Lifetime: it shares the peer's pool, and what the peer
// keeps. Failure: that of the peer's credit (credit.h).

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/shared_segments.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/kept_tensors.h"

namespace millrace {

class Receipts {
 public:
  // `peer_pool`: null without pools. `kept`: may be null.
  Receipts(int64_t window_bytes, std::shared_ptr<SharedSegments> peer_pool,
           std::shared_ptr<KeptByPeer> kept)
      : credit_(window_bytes), peer_pool_(std::move(peer_pool)), kept_(std::move(kept)) {}

  // As ReceiveCredit.
  Status Received(int64_t bytes) { return credit_.Received(bytes); }
  Status ReceivedPooled(int64_t credit, int64_t frame_bytes, int64_t pooled_bytes) {
    return credit_.ReceivedPooled(credit, frame_bytes, pooled_bytes);
  }
  void HoldCredit(int64_t bytes) { credit_.Hold(bytes); }
  void LetGoOfCredit(int64_t bytes) { credit_.LetGo(bytes); }

  // So many tensors of the step were received.
  void Add(int64_t step_id, uint64_t tensors);

  // What is owed leaves alone.
  bool IsDue() const;
  // Does not wait for a message to go with.
  void Flush();
  // True when it has been owed since the last Tick: it leaves alone then.
  bool Tick();
  // All that is owed, in frames; the caller writes them.
  ByteChain Take();

 private:
  // What of the peer's pool was let go, and what it need not keep.
  int64_t released_bytes() const;
  void AppendForgotten(ByteChain* chain);

  ReceiveCredit credit_;
  const std::shared_ptr<SharedSegments> peer_pool_;  // may be null
  const std::shared_ptr<KeptByPeer> kept_;           // may be null
  std::vector<ReceivedFrame::Step> steps_;
  bool flushes_ = false;
  bool owed_at_tick_ = false;  // and nothing has left since
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_RECEIPTS_H_

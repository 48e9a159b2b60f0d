// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_SEND_QUEUE_H_
#define MILLRACE_DISTRIBUTED_LINK_SEND_QUEUE_H_

// SendQueue: what waits to leave on a ByteLink, in which order it leaves, and the credit that the
// peer gives for it.
//
// What leaves next, in one write of about kBatchBytes:
//   1. messages as they were sent. TENSORS need credit; without it they, and all TENSORS after
//      them, wait, and messages without tensors pass them. Those that tensors leave no room for
//      leave with the same write, up to as much again;
//   2. CHUNKs of large tensors, one tensor after the other; its first one announces it, so the
//      peer has memory for one of them at a time. If a write had no room for a CHUNK, the next
//      one begins with it, unless what waits was sent before that tensor. With bounds_parts, no
//      more of them are on their way than the line needs (parts_window.h).
//
// What waits counts as its cost(): of messages, of tensors, and of these without edges of steps,
// which are references to what the step has anyway. Its owner keeps the bounds.
//
// Thread-compatible: its owner has a lock. Adding and dropping allocate and free nothing under it.
// Failure: that of the peer's credit (credit.h), after which the link ends. Fill may throw when
// there is no memory: then what it has taken is lost, and nothing may leave any more.

#include <algorithm>
#include <cstdint>
#include <list>
#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/parts_window.h"

namespace millrace {

class SendQueue {
 public:
  // As much leaves in one write.
  static constexpr int64_t kBatchBytes = int64_t{256} << 10;

  // One frame without tensors.
  struct Message {
    int64_t cost() const;

    std::string bytes;
    uint64_t order = 0;  // given by the queue
  };
  // What was taken out, for the owner to free without its lock.
  struct Dropped {
    std::list<Message> messages;
    std::list<OutgoingFrame> frames;
    std::list<OutgoingTransfer> transfers;
  };

  // `bounds_parts`: the owner sends marks (NeedsMark) and says what was answered.
  explicit SendQueue(bool bounds_parts = false) : bounds_parts_(bounds_parts) {}

  // All of them, behind what waits.
  void Add(std::list<Message>* messages);
  // `cost`: that of `tensors`.
  void Add(OutgoingTensors* tensors, int64_t cost);
  // The tensors of a step, but for a report.
  void DropStep(int64_t step_id, Dropped* dropped);
  void DropTensors(Dropped* dropped);
  void DropMessages(Dropped* dropped);

  // Adds what leaves next to `batch`, which has what leaves before it in the same write.
  void Fill(absl::Time now, ByteChain* batch);

  // The peer's; as SendCredit.
  Status OpenCredit(int64_t window_bytes) { return credit_.Open(window_bytes); }
  Status ReturnCredit(int64_t bytes) { return credit_.Return(bytes); }
  // Or for an answer to a mark.
  absl::Duration WaitedForCredit(absl::Time now) const {
    return std::max(credit_.Waited(now), parts_.Waited(now));
  }

  // Of what has left; as PartsWindow.
  bool NeedsMark() const { return bounds_parts_ && parts_.NeedsMark(); }
  int64_t Mark(absl::Time now) { return parts_.Mark(now); }
  void Arrived(int64_t mark, absl::Time now) { parts_.Arrived(mark, now); }

  int64_t message_bytes() const { return message_bytes_; }
  int64_t tensor_bytes() const { return tensor_bytes_; }
  int64_t bounded_bytes() const { return bounded_bytes_; }  // of these, without edges

 private:
  // Of tensors that begin to wait; negative: that have left, or were dropped.
  void Count(TensorsPurpose purpose, int64_t bytes);
  void FillMessage(ByteChain* batch);
  // The first frame. False without credit.
  bool FillFrame(absl::Time now, ByteChain* batch);
  // Whether there is one that may leave, but for credit.
  bool HasChunk(absl::Time now);
  // Of the first transfer. False without credit.
  bool FillChunk(absl::Time now, ByteChain* batch);

  std::list<Message> messages_;
  std::list<OutgoingFrame> frames_;
  std::list<OutgoingTransfer> transfers_;
  uint64_t last_order_ = 0;
  uint64_t last_transfer_ = 0;  // its number
  bool chunk_is_due_ = false;   // the last write had no room for one
  SendCredit credit_;
  const bool bounds_parts_;
  PartsWindow parts_;
  int64_t message_bytes_ = 0, tensor_bytes_ = 0, bounded_bytes_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_SEND_QUEUE_H_

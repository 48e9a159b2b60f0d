// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_OUTGOING_TENSORS_H_
#define MILLRACE_DISTRIBUTED_LINK_OUTGOING_TENSORS_H_

// OutgoingTensors: one message's tensors as they will leave a ByteLink: frames, large tensors in
// parts, and tensors that are copied into a pool which the peer reads.
//
//   OutgoingTensors outgoing(message, pool, counts);
//   do {
//     outgoing.Next();          // frames and transfers are ready
//     queue.Add(&outgoing);     // send_queue.h; it has none afterwards
//   } while (!outgoing.is_done());
//
// Which way a tensor goes:
//   * in the pool: floats from kMinPooledBytes on, and all else of up to 1 MiB, while there is
//   room;
//   * in parts: others above kMaxWholeBytes;
//   * whole, within a frame: the rest.
// What the peer is to keep does not go in the pool, and what it has kept has no bytes.
// A tensor that finds no room in the pool goes in parts, at once: nothing waits for a pool,
// whatever its reader keeps. Frames refer to the tensors' bytes, or to those in the pool. What
// needs no copy is ready first. After that each frame of 16 MiB in the pool, if the message may
// leave in pieces: edges of steps may, and other messages are refused or taken as a whole.
//
// Threads: one, without a lock, as it copies much. Lifetime: the message and the pool outlive it;
// what was made ready does not refer to them. Failure: an error for what no frame can say; what was
// not ready by then goes, with its blocks.

#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "core/shared_pool.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"
#include "distributed/link/link_pools.h"
#include "distributed/link/wire_tensor.h"

namespace millrace {

// One TENSORS frame that waits.
struct OutgoingFrame {
  // What it takes while it waits: its bytes, those in the pool, and its place in a queue.
  int64_t cost() const;

  uint64_t order = 0;  // given by the queue
  int64_t step_id = 0;
  TensorsPurpose purpose = TensorsPurpose::kEdges;
  ByteChain bytes;
  // With tensors in the pool, or that the peer has kept: what `bytes` are but for the credit, which
  // is known as they leave.
  TensorsFrame frame;
  std::vector<SharedBlock> blocks;
  int64_t pooled_bytes = 0;
  int64_t kept_bytes = 0;  // of tensors that the peer has kept
};

// A large tensor, of which `sent` bytes have left in CHUNKs.
struct OutgoingTransfer {
  // What it takes while it waits: the bytes that have not left, and its place in a queue.
  int64_t cost() const;

  uint64_t order = 0;  // given by the queue
  int64_t step_id = 0;
  TensorsFrame announcement;  // leaves with the first chunk
  WireTensor value;
  uint64_t sent = 0;
};

class OutgoingTensors {
 public:
  // Larger tensors come in parts.
  static constexpr int64_t kMaxWholeBytes = int64_t{64} << 10;
  // Smaller tensors do not lie in a pool; a peer whose tensor does breaks the link.
  static constexpr int64_t kMinPooledBytes = int64_t{64} << 10;

  // `pool`: null: none. `counts`: of what goes into it; may be null.
  OutgoingTensors(const SentTensors& message, SharedPool* pool, LinkPools* counts);

  // Goes on until something may leave, or all is ready.
  Status Next();
  bool is_done() const { return is_done_; }

  TensorsPurpose purpose() const { return frame_.purpose; }
  // Ready, in the order in which they leave. The caller takes them out.
  std::list<OutgoingFrame> frames;
  std::list<OutgoingTransfer> transfers;

 private:
  // Whether a pool saves a copy, or as much in other ways.
  static bool IsForPool(const WireTensor& value);
  // All that needs no copy; the others are in for_pool_ then.
  Status AddUncopied();
  // The tensor's place in the pool; none when it has none.
  SharedBlock CopyToPool(const WireTensor& value);
  // Its bytes are `whole_bytes` of the frame, or `block`; or the peer has kept them.
  Status Add(TensorEntry entry, int64_t whole_bytes, SharedBlock block);
  Status AddPooled(TensorEntry entry, SharedBlock block);
  Status AddTransfer(TensorEntry entry);
  // What was added is in `frames`.
  Status EndFrame();

  const SentTensors& message_;
  SharedPool* const pool_;    // null: none
  LinkPools* const counts_;   // may be null
  bool has_uncopied_ = true;  // AddUncopied comes next
  bool is_done_ = false;
  std::vector<TensorEntry> for_pool_;
  size_t next_for_pool_ = 0;
  // The frame that is being made.
  TensorsFrame frame_;
  uint64_t head_bytes_ = 0;
  int64_t tensor_bytes_ = 0, pooled_bytes_ = 0, kept_bytes_ = 0;
  std::vector<SharedBlock> blocks_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_OUTGOING_TENSORS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_BYTE_LINK_H_
#define MILLRACE_DISTRIBUTED_LINK_BYTE_LINK_H_

// ByteLink: a Link over a way for bytes (byte_wire.h), by the frames of frame.h. All networks share
// it: greeting, parts, credit, order and bounds are written once.
//
// Each end sends HELLO first and nothing else until the peer's HELLO has come; what is sent
// meanwhile waits. Who was dialled may answer HELLO with its own or with BYE (waits_for_hello). A
// peer of another version, of another task or incarnation than was dialled, with a window that is
// too small, or that `admit` does not take is refused with BYE, which tells it why.
//
// What leaves next, in one write of about kBatchBytes:
//   1. RECEIVED, when something else leaves or enough is owed;
//   2. messages as they were sent. TENSORS need credit; without it they, and all TENSORS after
//      them, wait, and messages without tensors pass them;
//   3. CHUNKs of large tensors, one tensor after the other.
// So RUN, END and CANCEL wait for one write at most while a gigabyte travels.
//
// Frames are made when a message is sent and refer to the tensors' bytes; what waits costs
// references.
//
// Threads, order, failure: as Link. Tick has to be called every few seconds, from any thread, by
// who owns the link: it notices a peer that is silent or returns no credit. Nothing else waits for
// time.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"
#include "distributed/link/transfers.h"
#include "distributed/link/wire_tensor.h"

namespace millrace {

struct ByteLinkOptions {
  // Of this task; HELLO says it.
  std::string task;
  uint64_t incarnation = 0;
  // Who was dialled. Empty and 0: anyone, which is for who was dialled by others.
  std::string peer_task;
  uint64_t peer_incarnation = 0;
  // Called with the peer's HELLO, before OnOpen, by the thread that reads, without a lock: an error
  // refuses the peer. Null: nobody else is asked.
  std::function<Status(const LinkPeer& peer)> admit;
  // For who was dialled: HELLO leaves once the peer was admitted. A peer that is refused, or whose
  // link is closed before, gets BYE alone: it has not been open for a moment.
  bool waits_for_hello = false;

  // What the peer may have on its way to here; at least kMinWindowBytes.
  int64_t window_bytes = kDefaultWindowBytes;
  // Of tensors that wait to be sent, and of messages without tensors.
  int64_t max_queued_bytes = int64_t{4} << 30;
  int64_t max_queued_message_bytes = int64_t{16} << 20;
  // Of elements that the tensors of one frame do not list.
  int64_t max_splat_bytes = int64_t{32} << 20;
  TransferLimits transfers;

  // For Tick. A peer that stops for a minute, and goes on, keeps its link when max_silence allows
  // it.
  absl::Duration max_greeting = absl::Seconds(10);  // until the peer's HELLO
  absl::Duration ping_after = absl::Seconds(10);    // of silence
  absl::Duration max_silence = absl::Seconds(30);
  absl::Duration max_wait_for_credit = absl::Minutes(2);
  absl::Duration max_farewell = absl::Seconds(1);  // until BYE has left
  Clock* clock = Clock::Real();                    // outlives the link
};

class ByteLink : public Link, private ByteWire::User, private FrameReader::Owner {
 public:
  // As much leaves in one write, and waits at most behind a cork.
  static constexpr int64_t kBatchBytes = int64_t{256} << 10;
  // Larger tensors come in parts.
  static constexpr int64_t kMaxWholeBytes = int64_t{64} << 10;

  // Starts the wire. `end` is kept until its OnLost has returned.
  static std::shared_ptr<ByteLink> Open(std::unique_ptr<ByteWire> wire,
                                        std::shared_ptr<LinkEnd> end, ByteLinkOptions options);

  Status Send(LinkMessage message) override;
  void Flush() override;
  int64_t queued_bytes() const override;
  void Close(const Status& reason) override;

  // Looks at the clock.
  void Tick();

 private:
  // opening -> open -> closing -> closed; any of them -> closed. Closing: BYE is on its way.
  enum class State { kOpening, kOpen, kClosing, kClosed };
  struct QueuedMessage {
    uint64_t order = 0;
    std::string bytes;
  };
  struct QueuedTensors {
    uint64_t order = 0;
    int64_t step_id = 0;
    int64_t tensor_bytes = 0;  // in `bytes`
    ByteChain bytes;           // one TENSORS frame
  };
  struct OutgoingTransfer {
    uint64_t number = 0;
    int64_t step_id = 0;
    WireTensor value;
    uint64_t sent = 0;
  };
  // What was taken out under the lock and is freed after it.
  struct Dropped {
    std::deque<QueuedTensors> tensors;
    std::deque<OutgoingTransfer> transfers;
  };

  ByteLink(std::unique_ptr<ByteWire> wire, std::shared_ptr<LinkEnd> end, ByteLinkOptions options);

  // ByteWire::User.
  void OnBytes(absl::string_view bytes) override;
  absl::Span<char> Place() override;
  void OnFilled(size_t num_bytes) override;
  void OnWritten() override;
  void OnClosed(const Status& status, bool by_peer) override;

  // FrameReader::Owner.
  Status OnFrame(LinkFrame frame, int64_t num_bytes) override;
  StatusOr<absl::Span<char>> PlaceFor(const ChunkFrame& chunk) override;

  // --- Sending
  Status Queue(const BindFrame& frame);
  Status Queue(const UnbindFrame& frame);
  Status Queue(const RunFrame& frame);
  Status Queue(const SentTensors& message);
  Status Queue(const EndFrame& frame);
  Status Queue(const CancelFrame& frame);
  // `bytes`: one frame without tensors. With `ended_step`, nothing more of it leaves.
  Status QueueMessage(ByteChain bytes, const int64_t* ended_step = nullptr);
  Status MayQueue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropStep(int64_t step_id, Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropAll(Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes until the wire is busy or nothing may leave.
  void Pump();
  ByteChain NextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddMessages(ByteChain* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ReceiptsAreDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ByteChain TakeReceipts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Receiving, by the thread that reads
  void Reading(absl::FunctionRef<Status()> read);
  Status Greet(const HelloFrame& hello);
  Status Take(HelloFrame frame, int64_t num_bytes);
  Status Take(BindFrame frame, int64_t num_bytes);
  Status Take(UnbindFrame frame, int64_t num_bytes);
  Status Take(RunFrame frame, int64_t num_bytes);
  Status Take(TensorsFrame frame, int64_t num_bytes);
  Status Take(ChunkFrame frame, int64_t num_bytes);
  Status Take(EndFrame frame, int64_t num_bytes);
  Status Take(CancelFrame frame, int64_t num_bytes);
  Status Take(ReceivedFrame frame, int64_t num_bytes);
  Status Take(PingFrame frame, int64_t num_bytes);
  Status Take(PongFrame frame, int64_t num_bytes);
  Status Take(ByeFrame frame, int64_t num_bytes);
  Status CountReceived(int64_t num_bytes);
  // Tells the peer that so many tensors of the step are in memory, now or with the next message.
  void AddReceipt(int64_t step_id, uint64_t tensors);
  // Not for less: what a cork holds would leave early.
  void PumpIfDue();
  // The tensor, or none after the step was refused.
  bool TakeTensor(int64_t step_id, TensorEntry* entry, int64_t* splat_bytes, SentTensor* tensor);

  // Ends the link without a farewell.
  void Lose(const Status& status, bool by_peer);
  bool is_over() const;
  std::string Name() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ByteLinkOptions options_;
  const std::unique_ptr<ByteWire> wire_;
  // By the reading thread alone.
  std::shared_ptr<LinkEnd> end_;  // null after OnLost
  FrameReader reader_;
  IncomingTransfers incoming_;
  bool greeted_ = false;

  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpening;
  std::string hello_ ABSL_GUARDED_BY(mu_);      // empty once it leaves
  bool hello_waits_ ABSL_GUARDED_BY(mu_);       // until the peer was admitted
  std::string peer_name_ ABSL_GUARDED_BY(mu_);  // for messages
  Status lost_ ABSL_GUARDED_BY(mu_);            // why, from closing on
  bool lost_by_peer_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t last_order_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_transfer_ ABSL_GUARDED_BY(mu_) = 0;
  std::deque<QueuedMessage> messages_ ABSL_GUARDED_BY(mu_);
  std::deque<QueuedTensors> tensors_ ABSL_GUARDED_BY(mu_);
  std::deque<OutgoingTransfer> transfers_ ABSL_GUARDED_BY(mu_);
  int64_t queued_message_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t queued_tensor_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  SendCredit send_credit_ ABSL_GUARDED_BY(mu_);
  ReceiveCredit receive_credit_ ABSL_GUARDED_BY(mu_);
  std::vector<ReceivedFrame::Step> owed_steps_ ABSL_GUARDED_BY(mu_);
  bool flushes_ ABSL_GUARDED_BY(mu_) = false;  // what is owed leaves alone
  absl::Time since_ ABSL_GUARDED_BY(mu_);      // the peer was heard, or the state began
  bool pinged_ ABSL_GUARDED_BY(mu_) = false;   // since then
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_BYTE_LINK_H_

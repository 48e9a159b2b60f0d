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
// HELLO may offer who is dialled a second way between the two tasks, in bytes that mean nothing
// here; the answer says whether it is taken. So both ends know it before they are open.
//
// Each write has what is owed to the peer (receipts.h), then messages and tensors as they were
// sent, as far as there is credit, then parts of large tensors (send_queue.h). So RUN, END and
// CANCEL wait for one write at most while gigabytes travel, and small tensors do not keep large
// ones from leaving. A thread that sends writes a few times; what else waits leaves on the wire's
// own threads.
//
// Frames are made when a message is sent and refer to the tensors' bytes (outgoing_tensors.h); what
// waits costs references.
//
// Where the wire passes descriptors and both ends allow it (max_pool_bytes), floats of 64 KiB and
// more, and other tensors up to 1 MiB, do not go through the wire: the thread that sends copies
// them into a pool of this end (core/shared_pool.h), and the frame says where they lie. While the
// pool is full they travel as elsewhere. The receiver hands floats over where they lie, read-only,
// and copies all else out (peer_pool.h). Each block is released when its tensor is gone: RELEASE
// rides as RECEIVED does, and at the latest two Ticks later. The last reference may go on any
// thread, under any lock: it makes a note and sends nothing.
//
// Where both ends allow it (max_kept_bytes), a sender may have its peer keep a tensor, which then
// need not travel again (kept_tensors.h). FORGET rides as RELEASE does.
//
// Threads, order, failure: as Link. Tick has to be called every few seconds, from any thread, by
// who owns the link: it notices a peer that does not answer PING, takes nothing or returns no
// credit, and unmaps what its pool does not use. Nothing else waits for time. The link's time
// passes by Ticks and at most 5 s from one to the next, so a process that was stopped, or whose
// clock was set, does not lose its links.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "core/shared_pool.h"
#include "core/shared_segments.h"
#include "core/status.h"
#include "distributed/link/byte_chain.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/credit.h"
#include "distributed/link/frame.h"
#include "distributed/link/kept_tensors.h"
#include "distributed/link/link.h"
#include "distributed/link/link_pools.h"
#include "distributed/link/outgoing_tensors.h"
#include "distributed/link/peer_pool.h"
#include "distributed/link/receipts.h"
#include "distributed/link/send_queue.h"
#include "distributed/link/transfers.h"

namespace millrace {

struct ByteLinkOptions {
  // Of this task; HELLO says it.
  std::string task;
  uint64_t incarnation = 0;
  // Who was dialled. Empty and 0: anyone, which is for who was dialled by others.
  std::string peer_task;
  uint64_t peer_incarnation = 0;
  // Where a task listens, for messages; empty: that is not known. Called as the link is made and as
  // `admit` is. Null: of none.
  std::function<std::string(const std::string& task)> address;
  // Called with the peer's HELLO, before OnOpen, by the thread that reads, without a lock: an error
  // refuses the peer. Null: nobody else is asked.
  std::function<Status(const LinkPeer& peer)> admit;
  // Of a task that was dialled: it sends HELLO after it has admitted the peer. A peer that it
  // refuses gets BYE alone, so the peer's end of the link never opens.
  bool waits_for_hello = false;
  // Of a task that dials: HELLO says it. At most kMaxFrameOfferBytes; empty: nothing is offered.
  std::string offer;
  // Of a task that was dialled, with waits_for_hello: whether it takes what the caller, which was
  // admitted, offers. Called as `admit`, after it. Null: no.
  std::function<bool(const LinkPeer& peer, const std::string& offer)> takes_offer;

  // What the peer may have on its way to here; at least kMinWindowBytes.
  int64_t window_bytes = kDefaultWindowBytes;
  // Of tensors that wait to be sent and are no edges of steps, and of messages without tensors:
  // their frames, the bytes of tensors, and what their places in a queue take.
  int64_t max_queued_bytes = int64_t{4} << 30;
  int64_t max_queued_message_bytes = int64_t{16} << 20;
  // Of elements that the tensors of one frame, or a large tensor, do not list.
  int64_t max_splat_bytes = int64_t{32} << 20;
  TransferLimits transfers;
  // Of this end's pool, and of what it maps of the peer's; 0: no pools.
  int64_t max_pool_bytes = 0;
  // Of tensors that this end keeps for the peer, and has the peer keep, which says how much it
  // takes; 0: none.
  int64_t max_kept_bytes = 0;
  // What all links of the task count; may be null.
  std::shared_ptr<KeptCounts> kept_counts;
  // Called when the peer's pool is what ends the link, by the thread that reads, without a lock,
  // before that: a segment or a block that cannot be had. Null: nobody is told.
  std::function<void()> on_bad_pool;
  // What it shares with other links; null: nothing.
  std::shared_ptr<LinkPools> pools;

  // For Tick. A peer that stops for a minute, and goes on, keeps its link when max_silence allows
  // it.
  absl::Duration max_greeting = absl::Seconds(10);  // until the peer's HELLO
  absl::Duration ping_after = absl::Seconds(10);    // of silence
  absl::Duration max_silence = absl::Seconds(30);   // the PING's time included; above ping_after
  absl::Duration max_wait_for_credit = absl::Minutes(2);  // of one frame
  absl::Duration max_wait_for_write = absl::Minutes(2);   // of one write, some 100 KiB
  absl::Duration max_farewell = absl::Seconds(1);         // until BYE has left
  Clock* clock = Clock::Real();                           // outlives the link
};

// "Link to <task>", with " at <address>" where that is known: how messages about a link begin.
std::string LinkName(const ByteLinkOptions& options, const std::string& task);

class ByteLink : public Link, private ByteWire::User, private FrameReader::Owner {
 public:
  // Starts the wire. `end` is kept until its OnLost has returned.
  static std::shared_ptr<ByteLink> Open(std::unique_ptr<ByteWire> wire,
                                        std::shared_ptr<LinkEnd> end, ByteLinkOptions options);

  Status Send(LinkMessage message) override;
  void Flush() override;
  void HoldCredit(int64_t bytes) override;
  void LetGoOfCredit(int64_t bytes) override;
  void Acknowledge(int64_t step_id, uint64_t tensors) override;
  void Ask(absl::AnyInvocable<void()> answered) override;
  int64_t queued_bytes() const override;
  void Close(const Status& reason) override;

  // Looks at the clock.
  void Tick();
  // Asks an open peer, unless it has not answered yet, for a sign of life.
  void Ping();
  // For how long it has not given one since it was asked; zero when it has.
  absl::Duration Unanswered() const;

 private:
  // opening -> open -> closing -> closed; any of them -> closed. Closing: BYE is on its way.
  enum class State { kOpening, kOpen, kClosing, kClosed };
  // Waits for the answer to PING number `ping`, or to a later one.
  struct Question {
    uint64_t ping = 0;
    absl::AnyInvocable<void()> answered;
  };
  // What was taken out under the lock and is freed after it.
  struct Dropped {
    SendQueue::Dropped queued;
    std::list<Question> questions;
  };

  ByteLink(std::unique_ptr<ByteWire> wire, std::shared_ptr<LinkEnd> end, ByteLinkOptions options);

  // ByteWire::User.
  void OnBytes(absl::string_view bytes) override;
  absl::Span<char> Place() override;
  void OnFilled(size_t num_bytes) override;
  void OnDescriptor(OwnedFd descriptor) override;
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
  // All that is ready of it; it has none afterwards.
  Status Queue(OutgoingTensors* outgoing);
  // Null without pools.
  std::shared_ptr<SharedPool> PoolForSending() const;
  Status Queue(const EndFrame& frame);
  Status Queue(const CancelFrame& frame);
  // `bytes`: one frame without tensors. With `ended_step`, nothing more of it leaves.
  Status QueueMessage(ByteChain bytes, const int64_t* ended_step = nullptr);
  Status MayQueue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // But for messages without tensors.
  void DropAll(Dropped* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Writes until the wire is busy or nothing may leave. Loses the link when there is no memory.
  void Pump();
  // What a cork holds leaves when it is enough for a write.
  void PumpUnlessCorked();
  void WriteOn();
  ByteChain NextBatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AddSegments(ByteChain* batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // --- Receiving, by the thread that reads
  void Reading(absl::FunctionRef<Status()> read);
  Status Greet(const HelloFrame& hello);
  std::string Hello(bool takes_offer) const;
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
  Status Take(SegmentFrame frame, int64_t num_bytes);
  Status Take(ReleaseFrame frame, int64_t num_bytes);
  Status Take(ForgetFrame frame, int64_t num_bytes);
  Status CountReceived(int64_t num_bytes);
  // Tells the peer that so many tensors of the step are in memory, now or with the next message.
  void AddReceipt(int64_t step_id, uint64_t tensors);
  // Not for less: what a cork holds would leave early.
  void PumpIfDue();
  void SendPing();
  // The tensor, or false after the step was refused. An error ends the link.
  StatusOr<bool> TakeTensor(int64_t step_id, TensorEntry* entry, int64_t* splat_bytes,
                            SentTensor* tensor);

  // With a farewell. A link that is closing already: `cuts_farewell`, or nothing changes.
  void End(const Status& reason, bool cuts_farewell);
  // Ends the link without a farewell.
  void Lose(const Status& status, bool by_peer);
  bool is_over() const;
  // Of waits; stands still while nobody Ticks.
  absl::Time LinkTime() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ByteLinkOptions options_;
  const std::unique_ptr<ByteWire> wire_;
  // By the reading thread alone.
  std::shared_ptr<LinkEnd> end_;  // null after OnLost
  FrameReader reader_;
  IncomingTransfers incoming_;
  bool greeted_ = false;
  // The peer's pool; null without pools.
  const std::shared_ptr<SharedSegments> segments_;
  PeerPool peer_pool_;
  // By the reading thread alone.
  KeptForPeer kept_for_peer_;
  const std::shared_ptr<KeptByPeer> kept_;

  mutable Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpening;
  std::string hello_ ABSL_GUARDED_BY(mu_);  // empty once it leaves
  bool hello_waits_ ABSL_GUARDED_BY(mu_);   // until the peer was admitted
  std::string name_ ABSL_GUARDED_BY(mu_);   // for messages
  Status lost_ ABSL_GUARDED_BY(mu_);        // why, from closing on
  bool lost_by_peer_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time writing_since_ ABSL_GUARDED_BY(mu_);  // with writing_
  SendQueue queue_ ABSL_GUARDED_BY(mu_);
  // Of this end; null without pools, before the link is open and when it is lost.
  std::shared_ptr<SharedPool> pool_ ABSL_GUARDED_BY(mu_);
  Receipts receipts_ ABSL_GUARDED_BY(mu_);
  uint64_t pings_ ABSL_GUARDED_BY(mu_) = 0, pongs_ ABSL_GUARDED_BY(mu_) = 0;  // sent; answered
  std::list<Question> questions_ ABSL_GUARDED_BY(mu_);
  absl::Time link_time_ ABSL_GUARDED_BY(mu_) = absl::UnixEpoch();  // at the last Tick
  absl::Time ticked_at_ ABSL_GUARDED_BY(mu_);                      // by the clock; or made
  absl::Time since_ ABSL_GUARDED_BY(mu_) = absl::UnixEpoch();      // heard, or the state began
  bool pinged_ ABSL_GUARDED_BY(mu_) = false;                       // since then
  absl::Time pinged_at_ ABSL_GUARDED_BY(mu_);                      // with pinged_
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_BYTE_LINK_H_

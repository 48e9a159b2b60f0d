// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_LINK_H_
#define MILLRACE_DISTRIBUTED_LINK_LINK_H_

// Link and LinkEnd: the long-lived connection of two tasks, on which steps travel.
//
// A link has two ends, each with a task behind it; it is the same in both directions, whoever
// dialled. What one end Sends, the other one's LinkEnd is called with. Whole tensors go in and come
// out: frames, parts, credit and greetings are the link's own.
//
// States of a link, as an end sees them:
//
//   opening -> open -> lost        OnOpen, then messages, then OnLost
//   opening ---------> lost        it never came to be: OnLost alone
//
// Order. Messages without tensors (BIND, UNBIND, RUN, END, CANCEL) arrive in the order in which
// they were sent, and before tensors that were sent after them. Tensors may be overtaken by what
// was sent after them: large ones by small ones, and all of them by messages without tensors while
// the peer is slow. So a receiver counts (RunFrame::num_args, EndFrame::num_results), and an END
// that is an error, or a CANCEL, drops what its sender still holds of the step, but for a report:
// that part has ended well, and its master waits for it.
//
// Threads. Send, Flush, queued_bytes and Close: any thread, also within a call of a LinkEnd; none
// of them waits for the peer. An end's methods are called one at a time, by whichever thread takes
// the message off the network, without a lock of the link's; they must neither block nor throw.
// What they make ready runs as a Visit (core/visit.h), after the thread has given up polling.
//
// Send, Flush, Close and the end of a cork may call the methods of both ends before they return: a
// link within a process does, also OnLost. So hold no lock meanwhile that a method of either end
// takes, and keep a LinkEnd's members in such a state that its methods may be called.
//
// Back-pressure. A sender is never blocked: what the peer does not take waits here as references to
// the tensors. Edges of steps (kEdges) wait without a bound: the steps have them anyway, a model
// may be of any size, and a peer that takes nothing loses the link in time. How much else may wait
// is bounded (the link's options); beyond it Send refuses tensors with ResourceExhausted, and the
// link goes on. Messages without tensors are always taken until they, too, pass a bound of their
// own: then the link is lost.
//
// Nothing waits for a timer. A message leaves at once unless a LinkCork of its thread holds it.
// Acknowledgements (OnReceived) ride on the next message in their direction, or leave with Flush,
// before the answer to the peer's Ask and before a farewell.
//
// Lifetime. A link lives until it is lost and nobody holds it; it keeps its LinkEnd until OnLost
// has returned. An owner who is done with a link Closes it: dropping it is not enough.
//
// Failure. OnLost comes exactly once, last, and says why. From then on, and from a little before,
// Send returns the same error as LossOfLink makes it, which is what steps end with. What the peer
// did with the last messages is not known: who needs to know asks on a new link.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "core/before_wait.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/frame.h"  // IWYU pragma: export
#include "distributed/link/kept_tensors.h"

namespace millrace {

class Link;

// Who is at the other end, by its own HELLO.
struct LinkPeer {
  std::string task;
  uint64_t incarnation = 0;
  // It was dialled, and has taken what this end offered: another link carries the steps.
  bool takes_offer = false;
};

struct SentTensor {
  uint32_t index = 0;
  Tensor value;  // none when it is dead
  bool is_dead = false;
  bool in_loop = false;
  uint64_t frame_id = 0;  // with in_loop
  int64_t iteration = 0;  // with in_loop
  // Of a traced step, by the sender's clock: when it was ready and when it left; 0: not told.
  int64_t ready_ns = 0, left_ns = 0;
  // To be sent, of an entry of Link::kept_by_peer: the peer keeps the tensor; with is_kept, it has
  // it, and `value` does not travel. As it came: is_kept alone, which tells that it did not travel.
  uint64_t keep_number = 0;
  bool is_kept = false;
};

// Tensors of one step; each once.
struct SentTensors {
  int64_t step_id = 0;
  TensorsPurpose purpose = TensorsPurpose::kEdges;
  uint64_t fingerprint = 0;  // of the sorted keys of the two tasks, with kEdges
  std::vector<SentTensor> tensors;
};

using LinkMessage =
    std::variant<BindFrame, UnbindFrame, RunFrame, SentTensors, EndFrame, CancelFrame>;

// InvalidArgument for what no link sends: a tensor that is neither dead nor has a value, that is a
// reference to a variable, or that is there twice outside of loops; a negative iteration; a CANCEL
// without an error.
Status CheckSendable(const LinkMessage& message);

// What steps end with that wait for something of a link that was lost, or that did not come to be:
// Unavailable, as a new link may do, for all that may pass: also a want of memory, which need not
// be the step's own. What would be the same on each new link keeps its code, so that no job tries
// for ever: bytes or a peer that break the rules, another version, no right to a link.
Status LossOfLink(const Status& status);

// The task behind an end of a link.
//
// What comes is a stranger's until it is checked: steps, numbers, indices and fingerprints may be
// any. The end bounds what it keeps for steps that have not begun and for graphs that are bound.
class LinkEnd {
 public:
  virtual ~LinkEnd() = default;

  // First, once. The end keeps the link as long as it wants to send.
  virtual void OnOpen(std::shared_ptr<Link> link) = 0;
  virtual void OnBind(BindFrame bind) = 0;
  virtual void OnUnbind(uint64_t number) = 0;
  virtual void OnRun(RunFrame run) = 0;
  // Some of the peer's SentTensors, each tensor once; a large one comes alone when it is whole.
  virtual void OnTensors(SentTensors tensors) = 0;
  // False: the link acknowledges tensors as it gives them. True: those of TensorsPurpose::kEdges
  // are acknowledged when this end, or the step behind it, says so by Link::Acknowledge; others are
  // not, so that a receipt is an edge's.
  virtual bool acknowledges_edges() const { return false; }
  virtual void OnEnd(EndFrame end) = 0;
  virtual void OnCancel(int64_t step_id, const Status& status) = 0;
  // So many more tensors that this end sent for the step are in the peer's memory, or, if the
  // peer's end acknowledges them itself, taken by their step there.
  virtual void OnReceived(int64_t step_id, uint64_t tensors) = 0;
  // A tensor of the step came and could not be taken (too large, no memory, no such tensor), and
  // will not come again: the step cannot go on here. The link does.
  virtual void OnRefused(int64_t step_id, const Status& status) = 0;
  // Last, once. `by_peer`: the peer closed it or its process ended; otherwise the way broke, or
  // this end closed it.
  virtual void OnLost(const Status& status, bool by_peer) = 0;
};

class Link : public std::enable_shared_from_this<Link> {
 public:
  virtual ~Link() = default;

  // Known from OnOpen on.
  const LinkPeer& peer() const { return peer_; }
  // What the peer keeps of what this end sends; null: nothing, as within a process. The same from
  // OnOpen on.
  const std::shared_ptr<KeptByPeer>& kept_by_peer() const { return kept_by_peer_; }

  // OK when the message is on its way: not that it arrives. Fails when the link is lost or closed
  // (why), for what cannot travel (InvalidArgument, Unimplemented), and for tensors beyond the
  // bound (ResourceExhausted); nothing of the message is sent then. A message of tensors is taken
  // whatever its size when no other tensors that are bounded wait.
  virtual Status Send(LinkMessage message) = 0;
  // What a cork holds back leaves, and what is owed to the peer.
  virtual void Flush() = 0;
  // For ends that acknowledge edges: the peer may hear that so many tensors of the step which came
  // by this link were taken, or dropped. It does with the next message.
  virtual void Acknowledge(int64_t step_id, uint64_t tensors) = 0;
  // `answered` is called once what the peer had acknowledged when it answered has been heard
  // (OnReceived), or destroyed without being called when the link is lost before. Within a call of
  // the end, or as Send calls it.
  virtual void Ask(absl::AnyInvocable<void()> answered) = 0;
  // For an end that keeps tensors beyond its bounds: the peer sends so many bytes less of tensors
  // until they are let go, once. Messages without tensors go on. HoldCredit: within OnTensors, and
  // under any lock. A link within a process has no credit.
  virtual void HoldCredit(int64_t /*bytes*/) {}
  virtual void LetGoOfCredit(int64_t /*bytes*/) {}
  // What messages that have not left take, as the bounds count it: the bytes of tensors and frames,
  // and a little for each of them.
  virtual int64_t queued_bytes() const = 0;
  // The peer hears `reason`, an error, once the messages without tensors before it have left;
  // tensors that wait are dropped. This end hears it from OnLost. A second call does not wait for
  // that.
  virtual void Close(const Status& reason) = 0;

 protected:
  // Before OnOpen.
  void set_peer(LinkPeer peer) { peer_ = std::move(peer); }
  void set_kept_by_peer(std::shared_ptr<KeptByPeer> kept) { kept_by_peer_ = std::move(kept); }

 private:
  LinkPeer peer_;
  std::shared_ptr<KeptByPeer> kept_by_peer_;
};

// While one lives, what its thread sends on any link may wait until it ends, so that it leaves
// together. Other threads are not held: what they send on a link takes along what is held there.
// Corks of one thread nest; the outermost counts.
//
// A cork ends early when its thread waits within a step, or begins a node of a step that takes long
// (core/before_wait.h). Whoever waits in other ways for an answer must not be corked.
class LinkCork final : private BeforeWait {
 public:
  LinkCork();
  ~LinkCork();
  LinkCork(const LinkCork&) = delete;
  LinkCork& operator=(const LinkCork&) = delete;

  // For links: whether a cork of this thread will Flush `link`.
  static bool Holds(Link* link);

 private:
  void Do() noexcept override;

  bool is_outermost_;  // until it ends early
  absl::InlinedVector<std::shared_ptr<Link>, 4> links_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_LINK_H_

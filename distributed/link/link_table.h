// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_LINK_TABLE_H_
#define MILLRACE_DISTRIBUTED_LINK_LINK_TABLE_H_

// LinkTable: the links of a process, at most one open link to each task.
//
// A link comes to be because this task dialled (Get) or because the other one did (Accept). When
// both dial at once, the link that the task with the smaller name dialled is kept. Who was dialled
// decides by HELLO: it answers HELLO or refuses with BYE, and until then neither end is open. So
// nothing was sent on a link that is refused.
//
//   none -> dialling -> open -> none      the peer answered
//        -> admitted -> open -> none      the peer dialled, and this task has answered
//   dialling -> admitted                  both dialled, and the peer's name is smaller
//   dialling -> expecting                 both dialled, the peer's link is on its way;
//   none -> expecting                     there is no way to the task: it has to dial
//   expecting -> admitted | dialling      it comes, or is dialled again
//   any of them -> none                   lost, refused, or not there in time
//
// A task has the link that is open until it is lost; another one of the same task is refused. When
// a program with another incarnation dials, the task has restarted, or two programs were started as
// one task. So the open link is asked for a sign of life (PING), and the caller comes again in a
// second: while the first program answers, the second one is refused, which says so. If there is
// none for 3 s, the new link takes the place of the old one, and may open before that one's OnLost.
//
// Two tasks of one host have a pair of links (LinkTableOptions::same_host). The one that was
// dialled is the witness: by it each end knows who the other one is, and it carries nothing else.
// The carrier, over the way within the host, is the link that Find and Get give and that has an
// end.
//
//   who dials offers the way in HELLO -> the other one takes it, dials the carrier, and says so in
//   its HELLO -> the carrier opens -> the task's state is open
//
// So both know which link carries steps before either sends one, and a step has one link only. Both
// links are lost together: a witness closes when its carrier is lost; a carrier whose witness was
// lost is read on for 2 s, as the peer's last messages may still be in it, but has no new steps.
// A pair whose carrier does not open within 3 s is given up: who dialled dials again, and offers
// nothing for a minute. What cannot be taken is not: then the link that was dialled carries steps.
// Both are a line in the log.
//
// Threads: all methods, from any thread; none of them waits. No lock is held while a callback, a
// dialler or an end is called. Callbacks must not block.
// Lifetime: links outlive the table until they are lost; the destructor is CloseAll.
// Failure: of a link, as Link says. Bounds: links that have not said HELLO, and links; who is
// beyond one is refused as Unavailable, because the next attempt may find room.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/link/byte_link.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/link.h"
#include "distributed/link/same_host.h"
#include "net/timers.h"

namespace millrace {

struct LinkTableOptions {
  // A way to the task, not started. Must not wait: that the task cannot be reached is the wire's
  // OnClosed. Null: this task never dials.
  std::function<StatusOr<std::unique_ptr<ByteWire>>(const std::string& task)> dial;
  // Whether `dial` knows the way to a task: this task waits for the dial of one to which there is
  // none. Null: to all.
  std::function<bool(const std::string& task)> can_dial;
  // The end of a link that opens: its OnOpen follows, and only then Find and Get give the link. A
  // link that never opens has none. Not null, and returns none that is null.
  std::function<std::shared_ptr<LinkEnd>(const LinkPeer& peer)> make_end;
  // Whether a task that dialled may have a link; what it is refused with. Null: any.
  std::function<Status(const LinkPeer& peer)> check_peer;
  // The way to tasks of this host. Null: none.
  std::shared_ptr<SameHost> same_host;

  // Of each link: task and incarnation are this task's. Peer and HELLO are the table's to say, and
  // the clock is that of `timers`.
  ByteLinkOptions link;

  absl::Duration max_wait = absl::Seconds(10);   // of Get
  absl::Duration tick_every = absl::Seconds(1);  // and how late Get's limit may be noticed
  // Links that others dialled and that have not said HELLO. Beyond it the oldest is closed.
  int max_unheard_links = 256;
  // Links that others dialled; beyond it they are refused.
  int max_accepted_links = 10'000;
  Timers* timers = Timers::Real();  // outlives all links
};

class LinkTable {
 public:
  // An open link, or why there is none. Called once.
  using Done = absl::AnyInvocable<void(StatusOr<std::shared_ptr<Link>> link)>;

  explicit LinkTable(LinkTableOptions options);
  ~LinkTable();
  LinkTable(const LinkTable&) = delete;
  LinkTable& operator=(const LinkTable&) = delete;

  // The open link to the task, or null.
  std::shared_ptr<Link> Find(const std::string& task) const;
  // The open link: at once, within this call, when there is one; otherwise once the link that is on
  // its way, or is dialled now, has opened. It is not dialled again when that fails: the error is
  // then LossOfLink's. After max_wait it is Unavailable. `done` runs in this thread, on a thread of
  // the network or on that of timers.
  void Get(const std::string& task, Done done);
  // A way that another task has dialled, not started.
  void Accept(std::unique_ptr<ByteWire> wire);
  // All that are open, in the order of their tasks.
  std::vector<std::shared_ptr<Link>> OpenLinks() const;
  // Links that are not lost yet, open or not; both of a pair.
  int num_links() const;
  // Tasks whose open link is a carrier.
  int num_pairs() const;

  // Closes all links with `reason`, an error, which those that wait in Get hear, too. What comes
  // later is refused with it. Ends hear OnLost later. A second call changes nothing.
  void CloseAll(const Status& reason);

 private:
  class Links;  // lives as long as any link

  const std::shared_ptr<Links> links_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_LINK_TABLE_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_LINK_PARTS_H_
#define MILLRACE_DISTRIBUTED_MASTER_LINK_PARTS_H_

// LinkParts: the parts of this task's steps that other tasks run for it, by their links.
//
//   Run -> [BIND, for the first run of a graph by a link] RUN -> [report] END -> `done`
//
// A part whose costs or graphs are wanted has ended when END and the report have come, in either
// order, or with an END that has none: its task could not send it, and the log there says why.
// A part ends with its END, with the loss of its link, or with its cancellation, which the task is
// told and does not have to answer: what it says later is dropped. As with calls.
//
// Invariant: `done` of a part is called once, without a lock.
// Threads: all methods, from any thread. A large report is parsed, and its part ends, on the
// IoPool: the thread that reads the link reads on. Lifetime: `links` and `clock` outlive the last
// Run. It keeps nothing of a link that was lost. Failure: what the worker's part ends with; why
// there is no link, or it was lost; Cancelled.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/link.h"
#include "distributed/link/peer_links.h"
#include "proto/worker.pb.h"

namespace millrace {

// A registered part on its task.
struct LinkedGraph {
  std::string task;
  std::string session_handle, graph_handle;
};

// What a part is to say of itself.
struct LinkedReport {
  bool wants_trace = false, wants_graphs = false;
  // Outlives `done`, which finds it filled when the part has ended well and had one.
  tensorflow::RunGraphResponse* response = nullptr;
  bool is_wanted() const { return wants_trace || wants_graphs; }
};

class LinkParts : public std::enable_shared_from_this<LinkParts> {
 public:
  using Done = absl::AnyInvocable<void(const Status&)>;

  // `clock`: of deadlines.
  explicit LinkParts(PeerLinks* links, Clock* clock = Clock::Real())
      : links_(links), clock_(clock) {}
  LinkParts(const LinkParts&) = delete;
  LinkParts& operator=(const LinkParts&) = delete;

  // Runs a part, which takes no arguments and gives no results, until `deadline` (InfiniteFuture:
  // without a limit), which is the task's to keep: RUN says how much time is left as it is sent,
  // however long the link took to open. `cancellation` outlives `done`.
  void Run(const LinkedGraph& graph, int64_t step_id, absl::Time deadline,
           CancellationManager* cancellation, Done done, const LinkedReport& report = {});
  // The graph is not run any more: its number on the task's link is free.
  void Forget(const LinkedGraph& graph);

  // By the ends of links.
  void OnOpen(std::shared_ptr<Link> link);
  void OnEnd(const Link* link, EndFrame end);
  // The tensors of a kReport.
  void OnReport(const Link* link, SentTensors tensors);
  // Something of a step that came by the link could not be taken: a report, perhaps. True: a part
  // that needs its report has ended for that, and with it its step, whose other parts its master
  // cancels.
  bool OnRefused(const Link* link, int64_t step_id, const Status& status);
  void OnLost(const Link* link, const Status& status);

  // For tests: graphs that are bound, on all links.
  int64_t num_bound() const;

 private:
  // waiting for a link -> in a link's list -> ended; waiting -> ended
  struct Part {
    int64_t step_id = 0;
    Done done;
    CancellationManager* cancellation = nullptr;  // until `done`
    CancellationManager::Token token = 0;
    bool is_registered = false;
    LinkedReport report;
    // Guarded by mu_.
    int64_t asked_ns = 0, answered_ns = 0;  // of a traced part: RUN was sent, END came
    bool is_over = false;                   // END has come, and waits for the report
    Tensor report_bytes;                    // none until it has come
    std::shared_ptr<Link> link;             // null while it waits for one
    uint64_t number = 0;                    // of its graph, on the link
    bool is_sent = false;                   // RUN
    bool has_ended = false, is_cancelled = false;
  };
  struct Bound {
    uint64_t number = 0;
    bool is_sent = false;  // BIND; until then each RUN has one of its own before it
  };
  struct OfLink {
    std::shared_ptr<Link> link;
    std::map<std::pair<std::string, std::string>, Bound> bound;  // by session and graph handle
    uint64_t last_number = 0;
    std::map<int64_t, std::shared_ptr<Part>> parts;  // by step
  };

  // OK when the part was sent, or needs not be sent any more.
  Status RunOn(const std::shared_ptr<Link>& link, const LinkedGraph& graph, absl::Time deadline,
               const std::shared_ptr<Part>& part);
  // Takes a part into the list, and says by which number its graph goes: 0 when it has ended.
  Status Add(const std::shared_ptr<Link>& link, const LinkedGraph& graph,
             const std::shared_ptr<Part>& part, uint64_t* number, bool* is_bound);
  // The part may have failed because its graph was not bound, for want of room that may be there at
  // the next try: each BIND is sent again.
  void ForgetBind(OfLink* link, const Part& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // BIND was sent. False when the number stands for the graph no more: it was forgotten meanwhile.
  bool NoteBound(const Link* link, const LinkedGraph& graph, uint64_t number);
  // The part of a step that runs by the link; null when it was cancelled, or is a stranger's.
  std::shared_ptr<Part> Find(const Link* link, int64_t step_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // By who ends the part.
  bool HasLargeReport(const Part& part);
  Status TakeReport(Part* part);
  // Whether the caller is the one that ends the part.
  bool Take(const std::shared_ptr<Part>& part);
  void End(const std::shared_ptr<Part>& part, const Status& status);
  // By its cancellation.
  void Cancel(const std::shared_ptr<Part>& part);

  PeerLinks* const links_;
  Clock* const clock_;
  mutable Mutex mu_;
  std::map<const Link*, OfLink> open_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_LINK_PARTS_H_

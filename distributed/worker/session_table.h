// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_SESSION_TABLE_H_
#define MILLRACE_DISTRIBUTED_WORKER_SESSION_TABLE_H_

// SessionTable: the worker sessions of one task, and why others are not open any more.
//
//   open -> ending   by End, Close, or another's Open: its life ends, its run and lease let go of
//                    it, and later calls hear why
//   ending -> gone   the worker takes it (TakeEnding), and ends its steps and graphs without a lock
//
// Invariants: a session that is open has devices, counts in its run, and holds its lease. A handle
// that has ended, or was closed before it was opened, is refused as long as it is remembered: the
// last of each kind are, in ServerLimits::max_ended_session_bytes. Whoever closes handles that
// nobody has opened drives out no reason of a session that was open.
//
// Sessions that nobody closes end with their leases. One without (WorkerSession::may_be_idle) is
// idle when it was not used for ServerLimits::idle_session_time, and ends only when
// max_idle_sessions others have been idle for a shorter time: an honest job without a lease may
// pause, and loses its session only among a hundred others that do.
//
// Thread-safety: none; its worker's lock, under which it calls the registry and the leases.
// Lifetime: options, devices, registry and leases outlive it.
// Failure: Aborted for a session that is not here; what the registry says of its run;
// ResourceExhausted beyond ServerLimits::max_sessions.

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "distributed/cluster/aged_map.h"
#include "distributed/cluster/lease_table.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/task_devices.h"
#include "distributed/worker/worker_options.h"
#include "distributed/worker/worker_session.h"
#include "run/run_registry.h"

namespace millrace {

class SessionTable {
 public:
  using Sessions = std::map<std::string, std::shared_ptr<WorkerSession>>;  // by handle

  SessionTable(const WorkerOptions* options, const TaskDevices* devices, RunRegistry* runs,
               LeaseTable* leases);

  const Sessions& open() const { return open_; }
  // Null when it is not open.
  WorkerSession* Find(const std::string& handle) const;
  // For a call in the session: it renews the lease.
  StatusOr<std::shared_ptr<WorkerSession>> FindAndRenew(const std::string& handle);
  // False when it is not open.
  bool Renew(const std::string& handle);
  // A session that may be idle is, from now until it is used. The handles of those that have ended
  // for it.
  std::vector<std::string> BeIdle(WorkerSession* session);
  // OK for one that is open, and for one that nothing is known of.
  Status EndOf(const std::string& handle) const;

  // A second call with one handle is a retry of the first, and renews it. Sessions of the opener's
  // earlier life end: at once, or, with a lease, when nobody renews it soon (LeaseTable::Doubt).
  // When a chief's session opens, those end that its claim on the run refuses.
  Status Open(const std::shared_ptr<WorkerSession>& session);
  // False when it is not open. `why` is not OK.
  bool End(const std::string& handle, const Status& why);
  void EndAllOfRun(absl::string_view run_id, const Status& why);
  // Its master closes it: a call that opens it and comes later is refused.
  void Close(const std::string& handle);
  // Those that have ended since the last call.
  std::vector<std::shared_ptr<WorkerSession>> TakeEnding();

  // The tasks that have a session of the run open, without its chief's.
  std::set<std::string> TrainersOf(absl::string_view run_id) const;
  bool HasOneWithoutRun() const;
  // As Worker::CheckMayClear.
  Status CheckMayClear(absl::string_view method, absl::Span<const std::string> containers,
                       int master_sessions) const;

 private:
  void EndEarlierLivesOf(const SessionOpener& opener);
  // Claims its run, gives it devices and lease, and lists it.
  Status Add(const std::shared_ptr<WorkerSession>& session);
  // The sessions that their run refuses.
  void EndRefused();
  void End(Sessions::iterator it, const Status& why);
  // Somebody uses it: renews its lease, or gives it one when it was idle.
  void Use(WorkerSession* session);
  // For later calls. The first reason counts.
  using Ends = AgedMap<std::string, Status>;
  void RememberEnd(const std::string& handle, const Status& why, Ends* ends);

  const WorkerOptions* const options_;
  const TaskDevices* const devices_;
  RunRegistry* const runs_;
  LeaseTable* const leases_;
  Sessions open_;
  std::vector<std::shared_ptr<WorkerSession>> ending_;
  absl::Time last_ended_ = absl::InfinitePast();
  // Those that are idle; the longest first. Bounded by their number.
  AgedMap<std::string, bool> idle_;
  // Why sessions ended that their masters may not know of; and those that were closed first.
  Ends ended_, never_opened_;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_SESSION_TABLE_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LEAVE_WATCH_H_
#define MILLRACE_DISTRIBUTED_LEAVE_WATCH_H_

// LeaveWatch: whether a server that was told to end (SIGTERM) may leave, and which clients it stays
// for.
//
//   told to end -> sessions are open -> none is left whose master lives -> may leave
//                                    '-> the grace is over -----------> may leave
//
// Who ends a job tells all its tasks at once, and a chief needs its parameter servers for the last
// checkpoint: they stay until the sessions that are open have closed.
//
// A master is gone when its task cannot be reached, twice in a row, or has become another process;
// each is asked once a second. One that did not say who it is, or does not answer, counts as there.
//
// Thread-safety: none, all in one thread; IsDone never blocks. Failure: none.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "distributed/worker/worker.h"

namespace millrace {

// What the watch asks of its server.
class WatchedSessions {
 public:
  // OK and the incarnation of the task's device, or why there is no answer.
  using Heard = std::function<void(const Status&, uint64_t incarnation)>;
  virtual ~WatchedSessions() = default;
  virtual const std::string& task() const = 0;
  virtual std::vector<Worker::OpenedSession> OpenSessions() const = 0;
  // Asks another task who it is. `heard` is called in any thread, perhaps after the watch has gone;
  // never for a task that is not in the cluster.
  virtual void Ask(const std::string& task, Heard heard) = 0;
  // "<task> at <host:port>"
  virtual std::string Whereabouts(const std::string& task) const = 0;
};

class LeaveWatch {
 public:
  // `sessions` and `clock` outlive it.
  LeaveWatch(WatchedSessions* sessions, absl::Duration grace, Clock* clock = Clock::Real());
  ~LeaveWatch();
  LeaveWatch(const LeaveWatch&) = delete;
  LeaveWatch& operator=(const LeaveWatch&) = delete;

  // To be asked some times a second.
  bool IsDone();

 private:
  struct Masters;  // what they have answered

  bool IsGone(const Worker::OpenedSession& session) const;
  void Ask(const std::string& task, absl::Time now);
  std::string ForWhom(const std::vector<Worker::OpenedSession>& open) const;

  WatchedSessions* const sessions_;
  Clock* const clock_;
  const absl::Time begun_;
  const absl::Time end_;
  absl::Time next_say_;
  std::map<std::string, absl::Time> next_ask_;  // by task
  const std::shared_ptr<Masters> masters_;      // answers may come after the end
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LEAVE_WATCH_H_

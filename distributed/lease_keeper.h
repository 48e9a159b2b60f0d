// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LEASE_KEEPER_H_
#define MILLRACE_DISTRIBUTED_LEASE_KEEPER_H_

// LeaseKeeper: keeps sessions of this process on other tasks alive, and sees to it that they end
// there.
//
// Every period each task gets one call that renews all sessions on it; one that has not answered
// the last is not asked again until it has. A session whose end could not be told is told of it
// again, after 1 s and after 5 s more; then it is left to its lease.
//
// Threads: one, while there is anything to keep or to end. Calls are begun there and answered
// wherever their host does it.
// Thread-safety: all methods, from any thread.
// Lifetime: calls under way keep what they need. Stop() gives up what is not done.
// Failure: none that anybody could act on; a task that has not got leases is not asked again.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

// A task that sessions are kept on. `done` is called once, in any thread.
class SessionHost {
 public:
  using Done = absl::AnyInvocable<void(const Status&)>;
  virtual ~SessionHost() = default;
  // Sessions on hosts of one name are renewed together.
  virtual const std::string& name() const = 0;
  virtual void Renew(const std::vector<std::string>& handles, absl::Duration timeout,
                     Done done) = 0;
  virtual void End(const std::string& handle, absl::Duration timeout, Done done) = 0;
};

class LeaseKeeper {
 public:
  LeaseKeeper(Clock* clock, absl::Duration period);
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  absl::Duration period() const { return period_; }
  void Keep(std::shared_ptr<SessionHost> host, const std::string& handle);
  void Forget(const std::string& host, const std::string& handle);
  // After a call that should have ended the session and was not answered.
  void EndLater(std::shared_ptr<SessionHost> host, const std::string& handle);
  // Idempotent.
  void Stop();

  bool has_thread() const;  // for tests

 private:
  struct Shared;

  const absl::Duration period_;
  const std::shared_ptr<Shared> shared_;  // answers may come after the end
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LEASE_KEEPER_H_

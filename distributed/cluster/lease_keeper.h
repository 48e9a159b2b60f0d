// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_LEASE_KEEPER_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_LEASE_KEEPER_H_

// LeaseKeeper: keeps sessions of this process on other tasks alive, and sees to it that they end
// there.
//
// Every period each task gets one call that renews all sessions on it. It must answer within half a
// period; after a call that was not answered the next one comes a quarter of a period later, so
// that a few that are lost end no lease. A session that its task does not know any more is lost:
// its owner hears of it, and it is kept no longer. A task that does not answer when it is told that
// a session is over is told again (run/tell_again.h); then the session is left to its lease.
//
// Threads: one, while there is anything to keep or to tell again. Calls are begun there (the first
// of End by its caller) and answered wherever their host does it.
// Thread-safety: all methods, from any thread; `lost` and `told` come without a lock.
// Lifetime: calls under way keep what they need. Stop() gives up what is not done.
// Failure: a task that does not know the call is asked again, as one that does not answer, because
// something else has its place for a while. One that refuses to end a session is in the log.

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
  // `unknown`: those that are not there (any more).
  using Renewed = absl::AnyInvocable<void(const Status&, const std::vector<std::string>& unknown)>;
  virtual ~SessionHost() = default;
  // Sessions on hosts of one name are renewed together.
  virtual const std::string& name() const = 0;
  virtual void Renew(const std::vector<std::string>& handles, absl::Duration timeout,
                     Renewed done) = 0;
  virtual void End(const std::string& handle, absl::Duration timeout, Done done) = 0;
};

class LeaseKeeper {
 public:
  LeaseKeeper(Clock* clock, absl::Duration period);
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  absl::Duration period() const { return period_; }
  using Lost = absl::AnyInvocable<void()>;
  // `lost` (may be null) is called once, when the host says that it does not know the session.
  void Keep(std::shared_ptr<SessionHost> host, const std::string& handle, Lost lost = nullptr);
  // Now, all of them, and each second for a while: a host may have reason to doubt that this
  // process lives, or have it a moment later.
  void RenewNow();
  void Forget(const std::string& host, const std::string& handle);
  // Forgets the session and tells its host that it is over: now, and again as long as nobody
  // answers. `told` (may be null) gets what came of the first call.
  void End(std::shared_ptr<SessionHost> host, const std::string& handle,
           SessionHost::Done told = nullptr);
  // The same after a first call of the caller's own that was not answered.
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

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_LEASE_KEEPER_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_ENDABLE_WAIT_H_
#define MILLRACE_DISTRIBUTED_MASTER_ENDABLE_WAIT_H_

// EndableWait: a wait of a session's master for other tasks, which the end of the server, of the
// client, or of the session ends early, together with the calls that belong to it.
//
//   EndableWait wait(ends, "its run", clock);
//   while (<not there>) {
//     if (wait.IsTimeToSay()) LogInfo(...);
//     MR_RETURN_IF_ERROR(wait.Until(next));
//   }
//
// Thread-safety: Wake and the waker from any thread; the rest belongs to the thread that waits,
// never a poller.
// Lifetime: `ends` and `clock` outlive it. Calls may end after it: they are cancelled, and who
// answers then keeps `keep()` for their CallOptions.
// Failure: Aborted when the server stops, Cancelled when the client has gone or the session is
// closed.

#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

// Each may be null: nothing of the kind ends the wait.
struct WaitEnds {
  CancellationManager* shutdown = nullptr;
  CancellationManager* caller = nullptr;
  CancellationManager* closing = nullptr;
};

class EndableWait {
 public:
  // What calls use, and those who answer them.
  class Shared {
   public:
    // The wait looks again.
    void Wake();
    // Started when the wait has ended, however it did.
    CancellationManager* calls() { return &calls_; }

   private:
    friend class EndableWait;
    void End(const Status& status);

    CancellationManager calls_;
    Mutex mu_;
    CondVar changed_;
    bool woken_ ABSL_GUARDED_BY(mu_) = false;
    Status ended_ ABSL_GUARDED_BY(mu_);
  };

  // `for_what` is waited for: "its run"; for messages.
  EndableWait(const WaitEnds& ends, const std::string& for_what, Clock* clock);
  ~EndableWait();
  EndableWait(const EndableWait&) = delete;
  EndableWait& operator=(const EndableWait&) = delete;

  const std::shared_ptr<Shared>& keep() const { return shared_; }
  CancellationManager* calls() const { return shared_->calls(); }
  // OK until something has ended it.
  Status ended() const;
  // Blocks until `until`, until somebody wakes it (perhaps before this call), or until it has
  // ended: ended().
  Status Until(absl::Time until);
  // True every 10 s, the first time then: the log is to name what is missing.
  bool IsTimeToSay();
  absl::Time next_say() const { return next_say_; }

 private:
  struct Registration {
    CancellationManager* manager;
    CancellationManager::Token token;
  };
  void EndWith(CancellationManager* manager, Status status, Registration* registration);

  Clock* const clock_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  absl::Time next_say_;
  Registration shutdown_ = {}, caller_ = {}, closing_ = {};
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_ENDABLE_WAIT_H_

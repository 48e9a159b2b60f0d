// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_SESSION_LIFE_H_
#define MILLRACE_DISTRIBUTED_WORKER_SESSION_LIFE_H_

// SessionLife: whether a worker session is open, and why it has ended. The session and the steps
// that it began share it: a step may end well before its session does and be asked for its tensors
// after that.
//
// Thread-safety: all methods.

#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

class SessionLife {
 public:
  // Not OK; the first one counts.
  void End(const Status& why) {
    MutexLock lock(&mu_);
    if (ended_.ok()) ended_ = why;
  }
  // OK while it is open.
  Status ended() const {
    MutexLock lock(&mu_);
    return ended_;
  }

 private:
  mutable Mutex mu_;
  Status ended_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_SESSION_LIFE_H_

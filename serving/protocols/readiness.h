// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_PROTOCOLS_READINESS_H_
#define MILLRACE_SERVING_PROTOCOLS_READINESS_H_

// Readiness: whether a model server as a whole is there for requests, as probes see it; and the
// signal that something which probes see may have changed.
//
//   starting -> ready -> stopping
//        +------------------^
//
// The server causes both: ready when its start has finished, stopping when its stop begins.
//
// Thread-safety: all methods, from any thread. Failure: none.

#include <cstdint>

#include "core/mutex.h"

namespace millrace {

class Readiness {
 public:
  enum class Phase { kStarting, kReady, kStopping };

  Phase phase() const {
    MutexLock lock(&mu_);
    return phase_;
  }
  bool is_ready() const { return phase() == Phase::kReady; }

  // Nothing once it stops.
  void SetReady() { Move(Phase::kReady); }
  void SetStopping() { Move(Phase::kStopping); }

  // Something else that probes see may have changed: a version of a model. Takes no other lock and
  // does not wait.
  void NoteChange() {
    MutexLock lock(&mu_);
    ++changes_;
    changed_.SignalAll();
  }
  // Changes so far, those of the phase included.
  int64_t changes() const {
    MutexLock lock(&mu_);
    return changes_;
  }
  // Until changes() is not `seen`. Returns what it is then.
  int64_t AwaitChange(int64_t seen) const {
    MutexLock lock(&mu_);
    while (changes_ == seen) changed_.Wait(&mu_);
    return changes_;
  }

 private:
  void Move(Phase phase) {
    MutexLock lock(&mu_);
    if (phase_ == Phase::kStopping) return;
    phase_ = phase;
    ++changes_;
    changed_.SignalAll();
  }

  mutable Mutex mu_;
  mutable CondVar changed_;
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kStarting;
  int64_t changes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_PROTOCOLS_READINESS_H_

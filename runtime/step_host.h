// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_STEP_HOST_H_
#define MILLRACE_RUNTIME_STEP_HOST_H_

// StepHost: the thread inside of Run or RunPartitions: it waits for its steps and takes on their
// work meanwhile.
//
// While the thread works it is offered nothing but expensive nodes that it made ready itself; once
// its own work is used up it parks, and whatever turns up then is handed to it before any arena
// thread is woken.
//
// Invariant: Next returns null exactly when every step has finished, or the deadline has passed.
//
// Threads: made, asked and destroyed by the host thread; Offer and StepFinished from any.
// Lifetime: outlives the last StepFinished. A kernel may call Run: hosts of one thread nest.
// Failure: TakeStatus is the error of a step that failed by itself, if there is one, else of one
// that was taken along (Derived).

#include <atomic>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/status.h"

namespace millrace {

class FlatStep;

class StepHost {
 public:
  explicit StepHost(int num_steps);
  ~StepHost();
  StepHost(const StepHost&) = delete;
  StepHost& operator=(const StepHost&) = delete;

  // Whether this thread takes a loop of `step` upon itself. Only for steps that are not finished.
  bool Offer(FlatStep* step, bool expensive);
  void StepFinished(const Status& status);

  // The next step to work for; null when all have finished. `timed_out` is set and null returned
  // when `deadline` passes first. `waits` counts the times that the thread parked.
  FlatStep* Next(absl::Time deadline, std::atomic<int64_t>* waits, bool* timed_out);
  Status TakeStatus();

 private:
  StepHost* const outer_;  // Run may be called from within a kernel
  Mutex mu_;
  CondVar cv_;
  bool parked_ ABSL_GUARDED_BY(mu_) = false;
  int unfinished_ ABSL_GUARDED_BY(mu_);
  absl::InlinedVector<FlatStep*, 4> offered_ ABSL_GUARDED_BY(mu_);
  Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_STEP_HOST_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STEP_HOST_H_
#define MILLRACE_RUNTIME_ENGINE_STEP_HOST_H_

// StepHost: the thread inside of Run or RunPartitions: it waits for its steps and takes on their
// work meanwhile. Where it waits for messages it takes them off the network itself
// (core/network_seat.h).
//
// While the thread works it is offered nothing but cheap nodes that it made ready itself; once
// its own work is used up it parks, and whatever turns up then is handed to it before any arena
// thread is woken.
//
// Threads: made, asked and destroyed by the host thread; Offer and StepEnded from any.
// Lifetime: outlives its steps, those excepted that were abandoned. A kernel may call Run: hosts of
// one thread nest.
// Failure: none; nothing here allocates.

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/network_seat.h"
#include "runtime/engine/step.h"

namespace millrace {

class StepHost {
 public:
  explicit StepHost(int num_steps);
  ~StepHost();
  StepHost(const StepHost&) = delete;
  StepHost& operator=(const StepHost&) = delete;

  // Whether this thread takes a loop of `step` upon itself. Only for steps that have not ended.
  bool Offer(Step* step, bool expensive);
  // The last thing that is done to a step by another thread; its result is the host's to take.
  void StepEnded();

  enum class Turn { kWork, kAllEnded, kTimeIsOver };
  // What to do next; kWork: a loop of `*step`. Parks until there is something, kTimeIsOver when
  // `limit` passes first. `waits` counts the times that the thread parked.
  Turn Next(absl::Time limit, std::atomic<int64_t>* waits, Step** step);

 private:
  StepHost* const outer_;  // Run may be called from within a kernel
  Mutex mu_;
  SeatedCondVar seated_;
  bool parked_ ABSL_GUARDED_BY(mu_) = false;
  int unfinished_ ABSL_GUARDED_BY(mu_);
  Step* offered_ ABSL_GUARDED_BY(mu_) = nullptr;  // a list, through Step::host_place
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STEP_HOST_H_

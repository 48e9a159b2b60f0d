// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_STEP_CONTEXT_H_
#define MILLRACE_RUNTIME_STEP_CONTEXT_H_

// StepContext and KernelFrame: what executors fill in before they run a kernel. Op authors see both
// through the methods of KernelContext (runtime/kernel.h) only.
//
// Lifetime: a StepContext outlives the kernels of its step, a KernelFrame the kernel's run
// (asynchronous kernels: until `done`).

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/tensor.h"
#include "runtime/device.h"
#include "runtime/rendezvous.h"
#include "runtime/resource_manager.h"
#include "runtime/step_memory.h"

namespace millrace {

class StepLoans;
class StepStatsCollector;

// What all kernels of one step share. Owned by the code that runs the step.
struct StepContext {
  int64_t step_id = 0;
  Device* device = nullptr;
  std::shared_ptr<Rendezvous> rendezvous;
  CancellationManager* cancellation = nullptr;
  // Whoever starts the cancellation aborts the rendezvous first: receivers that wait there need not
  // be told by both.
  bool cancel_aborts_rendezvous = false;
  Arena* arena = nullptr;
  IoPool* io_pool = nullptr;
  // Resources that end with the step (temporary variables, tensor arrays).
  ResourceManager* step_resources = nullptr;
  std::shared_ptr<StepMemory> memory;  // null: the step's memory is neither limited nor watched
  std::string session_handle;
  StepLoans* loans = nullptr;  // may be null (runtime/step_loans.h)
  // Fed tensors by _Arg index and where _Retval puts its tensor; null outside of a session's step.
  // The step of a function takes its arguments out of `own_args` instead.
  absl::Span<const Tensor> args;
  absl::Span<Tensor> own_args;
  absl::Span<Tensor> results;
  // For the steps of functions that kernels of this one call: when the time is over, where traces
  // go (null: nowhere), in how many calls this step is itself.
  absl::Time deadline = absl::InfiniteFuture();
  StepStatsCollector* stats = nullptr;
  int call_depth = 0;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_STEP_CONTEXT_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_LOOPS_HOOKS_H_
#define MILLRACE_TESTS_LOOPS_HOOKS_H_

// Hooks: the kernels of the graphs that lower.h makes. They note what runs, and compare it with
// what a program must do (program.h); one of them may cancel the step.
//
// Nodes are known by the last part of their names: a node of a function has where it is called from
// in front.
//
// Thread-safety: kernels run on any thread; Begin and ExpectOutcome between steps, by one.
// Lifetime: one at a time; outlives every step.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "runtime/kernel.h"
#include "tests/loops/program.h"

namespace millrace::loops {

class Hooks {
 public:
  Hooks();
  ~Hooks();
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  // Before a step. The op that runs as number `cancel_after` cancels it; 0: none does.
  void Begin(int64_t cancel_after);
  // After it: fails the test unless it has ended with `status` as it must.
  void ExpectOutcome(const Outcome& want, const Status& status);

 private:
  class Answerer;
  void NoteRun(const std::string& name, KernelContext* ctx);
  // Computes the op's value into its output.
  Status ComputeMix(KernelContext* ctx, uint32_t fails_in);

  Mutex mu_;
  std::map<std::string, int> runs_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::vector<uint32_t>> outputs_ ABSL_GUARDED_BY(mu_);
  int64_t left_ ABSL_GUARDED_BY(mu_) = 0;
  const std::unique_ptr<Answerer> answerer_;
};

}  // namespace millrace::loops

#endif  // MILLRACE_TESTS_LOOPS_HOOKS_H_

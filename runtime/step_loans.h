// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_STEP_LOANS_H_
#define MILLRACE_RUNTIME_STEP_LOANS_H_

// StepLoans: what the kernels of one step have taken from resources that outlive it (an element of
// a queue), and what is to be done when it never reaches the client that it was taken for.
//
//   open -> settled      the step ended well and what it sends has left, or it failed by itself:
//                        what it took is gone, as its other effects stay
//        -> given back   the step was cancelled, or its session ended before what it sends was
//                        asked for: its caller is gone
//
// A kernel lends with Lend(); the code that runs the step says how it ended. The first that is said
// counts; what is lent afterwards is dealt with at once.
//
// Thread-safety: all methods, from any thread. What was lent goes back in the reverse order,
// without a lock, in the thread that says so: it must not block nor throw. Lifetime: a loan keeps
// what it needs; a step that nobody says anything of has settled.

#include <vector>

#include "absl/functional/any_invocable.h"
#include "core/mutex.h"

namespace millrace {

class KernelContext;

class StepLoans {
 public:
  using GiveBackFn = absl::AnyInvocable<void()>;

  // The loans of the step whose kernel this is; null where steps cannot lose what they took for
  // others: in sessions of this process.
  static StepLoans* Of(const KernelContext& ctx);

  void Lend(GiveBackFn give_back);
  void Settle();
  void GiveBack();

 private:
  enum class State { kOpen, kSettled, kGivenBack };
  std::vector<GiveBackFn> End(State how);

  Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kOpen;
  std::vector<GiveBackFn> loans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_STEP_LOANS_H_

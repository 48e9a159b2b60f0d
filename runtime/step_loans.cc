// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_loans.h"

#include <utility>

#include "core/dcheck.h"
#include "runtime/kernel.h"
#include "runtime/step_context.h"

namespace millrace {

StepLoans* StepLoans::Of(const KernelContext& ctx) { return ctx.step().loans; }

void StepLoans::Lend(GiveBackFn give_back) {
  {
    MutexLock lock(&mu_);
    if (state_ == State::kOpen) {
      loans_.push_back(std::move(give_back));
      return;
    }
    if (state_ == State::kSettled) return;
  }
  give_back();  // a kernel that ended after its step was given up
}

std::vector<StepLoans::GiveBackFn> StepLoans::End(State how) {
  MutexLock lock(&mu_);
  MR_DCHECK(state_ == State::kOpen || loans_.empty(),
            "Lend keeps loans of an open step only, and the first end takes them");
  if (state_ == State::kOpen) state_ = how;
  return std::exchange(loans_, {});
}

void StepLoans::Settle() { End(State::kSettled); }

void StepLoans::GiveBack() {
  std::vector<GiveBackFn> loans = End(State::kGivenBack);
  for (auto loan = loans.rbegin(); loan != loans.rend(); ++loan) (*loan)();
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_DCHECK_H_
#define MILLRACE_CORE_DCHECK_H_

// MR_DCHECK: what must hold where a protocol changes its state.
//
//   MR_DCHECK(phase == Phase::kPinned, "only Close unpins a step, and only one that it has
//   pinned");
//
// The sentence says why the condition always holds: it is read as a comment, and printed with the
// condition and its line when it is false; then the process ends. A check is for our own
// invariants: what a graph, file, message, flag or peer can cause is a Status, never a check.
//
// Off in a release: one predicted branch on a constant-initialised flag. On in sanitizer builds,
// and in each process that starts with MILLRACE_DCHECK=1 in its environment: .bazelrc gives it to
// all tests, and they to the processes that they start.
//
// Thread-safety: the flag is written before main only.

#include "absl/base/optimization.h"

namespace millrace {
namespace dcheck_internal {

extern bool are_on;  // written before main
[[noreturn]] void Fail(const char* condition, const char* sentence, const char* file, int line);

}  // namespace dcheck_internal

// Are checks on in this process?
inline bool DChecksAreOn() { return dcheck_internal::are_on; }

}  // namespace millrace

#define MR_DCHECK(condition, sentence)                                                      \
  do {                                                                                      \
    if (ABSL_PREDICT_FALSE(::millrace::DChecksAreOn()) && ABSL_PREDICT_FALSE(!(condition))) \
      ::millrace::dcheck_internal::Fail(#condition, sentence, __FILE__, __LINE__);          \
  } while (false)

#endif  // MILLRACE_CORE_DCHECK_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_THREAD_NUMBER_H_
#define MILLRACE_CORE_THREAD_NUMBER_H_

// ThreadNumber: a small number of the calling thread, for choosing among places of which each
// thread has a favourite: two threads that write to the same cache line cost each other more than
// the step that they count.
//
// Numbers are dense: a thread gets the lowest that no living thread has, when it first asks, and
// keeps it. Of more than kThreadNumbers threads at once some share one, and a thread that is ending
// may share its with its successor: a number is a preference, not an identity.
//
// Any thread. Does not fail. The first call of a thread sees to it that its end gives the number
// back, for which the C library may allocate; the others do not.

#include "absl/base/optimization.h"

namespace millrace {

inline constexpr int kThreadNumbers = 128;

namespace thread_number_internal {
inline constinit thread_local int number = -1;
int Take();
}  // namespace thread_number_internal

// In [0, kThreadNumbers).
inline int ThreadNumber() {
  const int number = thread_number_internal::number;
  return ABSL_PREDICT_TRUE(number >= 0) ? number : thread_number_internal::Take();
}

}  // namespace millrace

#endif  // MILLRACE_CORE_THREAD_NUMBER_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_END_LIMITS_H_
#define MILLRACE_RUN_RUN_END_LIMITS_H_

// How much of a RunEnd (run/training_run.h) a Status keeps, and is taken from other processes:
// the first kMaxReasonBytes of the reason, and no checkpoint above kMaxCheckpointBytes.

#include <cstddef>

namespace millrace {

inline constexpr size_t kMaxReasonBytes = 512;
inline constexpr size_t kMaxCheckpointBytes = 1024;

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_END_LIMITS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_KEPT_STATUS_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_KEPT_STATUS_H_

// KeptStatus: how much of an error a task keeps for callers that come late.
//
// Texts hold what strangers chose: names of nodes, what their kernels say. The beginning of one
// tells why; payloads tell programs what kind of end it was, and stay whole.
//
// Thread-safety: functions of their arguments.

#include <cstddef>
#include <cstdint>

#include "core/status.h"

namespace millrace {

inline constexpr size_t kMaxKeptMessageBytes = 1024;

// The same status with at most kMaxKeptMessageBytes of its text, and " ... [truncated]".
Status KeptStatus(const Status& status);
// What a status holds on the heap, about.
int64_t KeptBytes(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_KEPT_STATUS_H_

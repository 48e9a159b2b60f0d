// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_STEP_WIRE_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_STEP_WIRE_H_

// StepWire: what the steps of a master's sessions travel on.
//
// Thread-safety: functions of their arguments and the environment.
// Failure: InvalidArgument for a name that is none, a MILLRACE_UNIX_LINKS that is neither 0 nor 1,
// or a MILLRACE_LINK_SHARED_BYTES that is no number from 0 on.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

enum class StepWire {
  kCalls,  // a call for each part of a step, and one for each pair of tasks
  kLinks,  // the links of the tasks (distributed/link), where all tasks of a step have them
};

// Of "calls"; or of "links", "unix" or "grpc", which are kLinks.
StatusOr<StepWire> StepWireOf(absl::string_view name);
// That of the environment variable MILLRACE_WIRE; kLinks when it is not set, or empty.
StatusOr<StepWire> StepWireOfEnvironment();

// Whether tasks of one host may have links within it, over a Unix socket: unless MILLRACE_WIRE is
// "grpc", or the environment variable MILLRACE_UNIX_LINKS is "0". Its "1" and an empty one leave it
// to the other variable.
StatusOr<bool> UnixLinksOfEnvironment();

// ServerLimits::max_link_shared_bytes of this process: that of the environment variable
// MILLRACE_LINK_SHARED_BYTES; `otherwise` when it is not set, or empty.
StatusOr<int64_t> LinkSharedBytesOfEnvironment(int64_t otherwise);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_STEP_WIRE_H_

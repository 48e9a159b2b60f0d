// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_DIRECT_SESSION_H_
#define MILLRACE_RUNTIME_SESSION_DIRECT_SESSION_H_

// The session of this process (target ""): compiles signatures of its graph into plans and runs
// them in the threads that call Run.
//
// It owns its devices (device_count["CPU"] of them, default 1, named
// /job:localhost/replica:0/task:0/device:CPU:i) with their resources, the stateful kernels by node
// name, and where stateful nodes were placed; all of it outlives single signatures.
//
// Compiling: runtime/session/compile_path.h, kept by a SignatureCompiler. The time limit of a Run
// covers it: a Run by names whose time is over is DeadlineExceeded then, its signature is compiled
// further on another thread, and a later Run finds it.
//
// Thread-safety: as session.h says; compiling and Extend take turns, cached steps pass them by. A
// prepared step, and one by names that its thread has used lately, takes one lock, which is its
// own, and writes to nothing that steps of other threads write to.
// Lifetime: a PreparedStep keeps what it needs; after Close it fails. Failure: session.h.

#include <cstdint>
#include <memory>
#include <optional>

#include "core/clock.h"
#include "core/status.h"
#include "runtime/session.h"

namespace millrace {

// NewSession with target "" or "local" does the same. `clock` (outlives the session) measures the
// time that a Run's limit leaves for its step.
StatusOr<std::unique_ptr<Session>> NewDirectSession(const SessionOptions& options,
                                                    Clock* clock = Clock::Real());

// What a direct session did so far; for tests.
struct DirectSessionStats {
  int64_t compilations = 0;
  int64_t cached_signatures = 0;
  int64_t cached_bytes = 0;    // what these hold
  int64_t wakeups = 0;         // of the executors that are cached now
  int64_t blocking_waits = 0;  // likewise
};
// Nothing for a session of another kind.
std::optional<DirectSessionStats> StatsOfDirectSession(const Session& session);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_DIRECT_SESSION_H_

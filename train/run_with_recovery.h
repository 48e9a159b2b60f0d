// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_RUN_WITH_RECOVERY_H_
#define MILLRACE_TRAIN_RUN_WITH_RECOVERY_H_

// RunWithRecovery (train/supervisor.h) for a loop that counts its steps.

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "core/status.h"

namespace millrace {

class Session;     // runtime/session.h
class Supervisor;  // train/supervisor.h

// `own_steps` tells how many steps `body` has run, in all sessions together: a task whose own steps
// all fail gives up although others train on (train/job_recovery.h).
Status RunCountedWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                              absl::FunctionRef<int64_t()> own_steps,
                              absl::FunctionRef<Status(Session*)> body);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_RUN_WITH_RECOVERY_H_

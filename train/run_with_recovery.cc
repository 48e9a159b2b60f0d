// SPDX-License-Identifier: Apache-2.0

// RunWithRecovery and RunStepsWithRecovery: a Supervisor's sessions, one after another.
#include "train/run_with_recovery.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "core/logging.h"
#include "core/status.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "train/job_recovery.h"
#include "train/session_manager.h"
#include "train/supervisor.h"

namespace millrace {
namespace {

// OK, said in one line, when `status` says that the run has ended: nothing is left to do.
Status EndedWell(const Status& status) {
  const std::optional<RunEnd> end = RunEndOf(status);
  if (!end) return status;
  LogInfo(status.message());
  return absl::OkStatus();
}

}  // namespace

Status RunCountedWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                              absl::FunctionRef<int64_t()> own_steps,
                              absl::FunctionRef<Status(Session*)> body) {
  JobRecovery recovery({.speaker = "Supervisor",
                        .max_losses = max_recoveries,
                        .longest_pause = supervisor->options().recovery_wait});
  while (true) {
    const StatusOr<std::shared_ptr<Session>> session = supervisor->ManagedSession(target);
    if (!session.ok()) {
      return supervisor->signal() != 0 ? absl::OkStatus() : EndedWell(session.status());
    }
    recovery.SessionBegan(supervisor->first_step(), own_steps());
    const Status status = body(session->get());
    // Who asked this task to end may have asked the parameter servers, too, and a step that did not
    // end had its session closed.
    if (supervisor->signal() != 0 && (IsSessionLost(status) || absl::IsCancelled(status))) {
      return absl::OkStatus();
    }
    if (!IsSessionLost(status)) return EndedWell(status);
    MR_RETURN_IF_ERROR(recovery.NoteLoss(status));
    supervisor->WaitForStop(recovery.pause());
  }
}

Status RunWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                       absl::FunctionRef<Status(Session*)> body) {
  return RunCountedWithRecovery(
      supervisor, target, max_recoveries, [supervisor] { return supervisor->first_step(); }, body);
}

Status RunStepsWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                            absl::FunctionRef<Status(Session*)> begin,
                            absl::FunctionRef<StatusOr<bool>(Session*)> step) {
  int64_t own_steps = 0;
  return RunCountedWithRecovery(
      supervisor, target, max_recoveries, [&own_steps] { return own_steps; },
      [&](Session* session) -> Status {
        MR_RETURN_IF_ERROR(begin(session));
        while (!supervisor->ShouldStop()) {
          MR_ASSIGN_OR_RETURN(const bool more, step(session));
          ++own_steps;
          if (!more) break;
        }
        return absl::OkStatus();
      });
}

}  // namespace millrace

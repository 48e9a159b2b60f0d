// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_SESSION_H_
#define MILLRACE_RUN_RUN_SESSION_H_

// RunSession: what a session on a cluster knows of its training run, and can say of it.
//
//   if (RunSession* const run = session->run_session()) {
//     MR_RETURN_IF_ERROR(run->EndRun({.global_step = step, .reason = "reached the last step"}));
//   }
//
// A session of no run, and one in this process, has none (runtime/session.h).
//
// Thread-safety: all methods, from any thread. Lifetime: that of its session.
// Failure: the session's, when it is closed or lost; that of the tasks.

#include <string>

#include "core/status.h"
#include "run/training_run.h"

namespace millrace {

class RunSession {
 public:
  virtual ~RunSession() = default;
  // "" when the master of the session knows no runs.
  virtual std::string run_id() const = 0;
  // By the chief, before the session is closed: tells all its tasks that training of the run is
  // over, so that later sessions of the run hear of it. FailedPrecondition when the run is not this
  // session's: another chief has it.
  virtual Status EndRun(const RunEnd& end) = 0;
  // Which other tasks train the run, or have trained it, as far as the session's tasks know; the
  // chief is not among them.
  virtual StatusOr<RunTrainers> OtherTrainers() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_SESSION_H_

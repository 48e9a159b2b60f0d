// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_MONITORED_SESSION_H_
#define MILLRACE_TRAIN_MONITORED_SESSION_H_

// MonitoredSession: a training loop's session: hooks run with each step, a lost session is made
// anew, the end is orderly.
//
//   StopAtStepHook stop({.last_step = 1000});
//   NanTensorHook nan(loss);
//   MR_ASSIGN_OR_RETURN(auto session, MonitoredTrainingSession(root, {
//       .checkpoint_dir = "run", .hooks = {&stop, &nan}}));
//   return session->Loop([&] { return session->Run({{x, Next()}}, {}, {train}).status(); });
//
// Queue runners of the graph (train/queue_runner.h) are started with each session.
//
// Loop runs its function until somebody asks for the stop, then closes the session. OutOfRange out
// of it is the end of data, a clean end: of this task, when others train the run, too. A chief
// waits for them: the run ends when the data of every trainer has ended, or its lease. Loop is
// this, for a loop of one's own:
//
//   while (!session->ShouldStop()) MR_RETURN_IF_ERROR(...Run...);   // out: closed without End
//   return session->Close();
//
// The order in which hooks are called, and what their errors do, is in
// train/session_run_hook.h. When a session is lost (IsSessionLost), a new one is made through
// the creator (the chief adopts and restores, others wait for that) and the step that met it is run
// again: nobody knows whether it was applied (at least once, see docs/training_runs.md). After
// max_recoveries losses in a row, without a step of this task that took the global step further,
// the loss itself is the error.
//
// SIGTERM and Ctrl-C, from Open until Close has returned (handle_signals), make the task leave: the
// loop ends with the step that runs, hooks are called End, with which the chief's saver writes the
// last checkpoint, and Close returns Cancelled with the exit code 143 or 130: the run is to go on
// another time. Waits for other tasks, in Open and in a recovery, end at once. A step that does not
// end is not waited for: after a second (of a chief: half of signal_grace) its session is closed
// under it. A second signal ends the process at once.
//
//   open -> open      Run; a session that is lost is replaced within it
//   open -> closed    Close and Loop, with End of the hooks when nothing went wrong; the
//                     destructor, without
//
// Thread-safety: thread-compatible, but for RequestStop and RequestLeave; threads of hooks talk to
// their Coordinator.
// Lifetime: hooks outlive it. The graph is finalized.
// Failure: Open and Run return RunEndedError (exit code 0) when the run has ended elsewhere; Loop
// takes that for a clean end. FailedPrecondition for a Run after the stop.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/summary_writer.h"

namespace millrace {

struct MonitoredSessionOptions {
  // In the order in which they are called; they outlive the session.
  std::vector<SessionRunHook*> hooks = {};
  // What hooks write to, when nobody else owns it; destroyed after them.
  std::unique_ptr<SummaryWriter> own_writer = nullptr;
  // Those of them that nobody else owns, destroyed with the session.
  std::vector<std::unique_ptr<SessionRunHook>> own_hooks = {};
  // In a row; 0: a lost session is an error as any other.
  int max_recoveries = 20;
  // The chief of a run in a cluster whose data has ended waits for the data of other trainers, and
  // writes checkpoints meanwhile, before it ends the run. Off: its end is theirs.
  bool await_trainers = true;
  // That the cluster has, this one and the chief among them; those that have not come before
  // trainers_grace has passed since this one began are not waited for. 0: not known, and nobody is
  // waited for tasks that have not come yet.
  int num_trainers = 0;
  absl::Duration trainers_grace = absl::Seconds(20);
  // The longest wait before a session is made anew, at most 2 s; the first time there is none.
  absl::Duration recovery_wait = absl::Seconds(1);
  // How long the threads of hooks may take to end.
  absl::Duration stop_grace = absl::Seconds(120);
  // After a signal, where it is less: who sent it kills what goes on for longer. A chief has half
  // of it for the step that runs, and the rest for a checkpoint meanwhile.
  absl::Duration signal_grace = absl::Seconds(20);
  // Off: signals do what they did before.
  bool handle_signals = true;
  // Why the loop has ended well is a line of the log.
  bool logs_end = false;
  Clock* clock = Clock::Real();
};

class MonitoredLoop;  // train/monitored_loop.h

// What the function of RunStepFn is given.
class StepContext {
 public:
  explicit StepContext(MonitoredLoop* loop) : loop_(loop) {}
  // Without hooks; until the function returns.
  Session* session() const;
  // With hooks. A lost session is not replaced within it: the function returns the error, and is
  // called again with the next session.
  StatusOr<std::vector<Tensor>> RunWithHooks(const std::vector<Feed>& feeds,
                                             const std::vector<FetchName>& fetches,
                                             const std::vector<FetchName>& targets = {}) const;
  // Ends the loop; what it returns (OutOfRange) is for the function to return at once.
  [[nodiscard]] Status RequestStop(absl::string_view reason = "the step function asked to") const;

 private:
  MonitoredLoop* const loop_;
};

// A step that is named once and run often. Valid as long as its session, also after recoveries.
class MonitoredStep {
 public:
  MonitoredStep() = default;
  MonitoredStep(MonitoredLoop* loop, size_t step) : loop_(loop), step_(step) {}
  // As MonitoredSession::Run. `feeds` in the order of Prepare; one place of `results` per fetched
  // tensor, without a value after an error. Allocates nothing by itself.
  Status RunInto(absl::Span<const Tensor> feeds, absl::Span<Tensor> results) const;

 private:
  MonitoredLoop* loop_ = nullptr;
  size_t step_ = 0;
};

class MonitoredSession {
 public:
  // Begin of the hooks, the graph completed and finalized, a session, AfterCreateSession.
  static StatusOr<std::unique_ptr<MonitoredSession>> Open(ScopeAt at,
                                                          std::unique_ptr<SessionCreator> creator,
                                                          MonitoredSessionOptions options);
  ~MonitoredSession();  // closes as after an error
  MonitoredSession(const MonitoredSession&) = delete;
  MonitoredSession& operator=(const MonitoredSession&) = delete;

  // One step with hooks. The same names as in one of the last runs are looked up once.
  StatusOr<std::vector<Tensor>> Run(const std::vector<Feed>& feeds,
                                    const std::vector<FetchName>& fetches,
                                    const std::vector<FetchName>& targets = {});
  // For loops that count microseconds.
  StatusOr<MonitoredStep> Prepare(const std::vector<FetchName>& feeds,
                                  const std::vector<FetchName>& fetches,
                                  const std::vector<FetchName>& targets = {});
  // Several runs that belong together, with and without hooks: `step` is called with each session
  // until it returns something else than a lost session.
  Status RunStepFn(absl::FunctionRef<Status(const StepContext&)> step);

  // The loop is to end: asked for by a hook, a step function, a thread of a hook, a signal or those
  // below; after the end of data; when closed.
  bool ShouldStop() const;
  // As RunContext says, from any thread: the loop ends with the run under way. A wait for other
  // tasks, in a recovery, ends at once, and Run returns why: `result`, or Cancelled.
  void RequestStop(absl::string_view reason);
  void RequestLeave(const Status& result);
  // Runs `body` until ShouldStop, then Close with what it returned.
  Status Loop(absl::FunctionRef<Status()> body);
  // Ends the loop. `status`: what it ended with; OK and OutOfRange are good ends, and so is the
  // end of the run elsewhere (one line in the log). End of the hooks (not when the last Run had
  // failed, nor without a session; then a chief whose hooks have written checkpoints writes the
  // last one itself, unless the session is lost, the NaN guard has spoken or another chief has the
  // run); threads of hooks are stopped; the end of the run is told when the goal was reached or the
  // data has ended. OK, or the first of: `status`, the last Run's error, a thread's, a hook's in
  // End, what RequestLeave was given (or the signal). Later calls return the same.
  Status Close(const Status& status = absl::OkStatus());
  // Why the loop has ended, for people: what RequestStop was given ("reached step 1000 of 1000"),
  // that the data has ended, that the run has ended elsewhere, an error's text; "" before Close.
  const std::string& end_reason() const;

  // The session of the moment, without hooks: until the next Run, which may replace it. Null when
  // there is none.
  Session* raw_session() const;
  // Sessions made since Open, besides the first one.
  int recoveries() const;

 private:
  explicit MonitoredSession(std::unique_ptr<MonitoredLoop> loop);
  const std::unique_ptr<MonitoredLoop> loop_;
};

// TensorFlow's: no recovery, the first loss is the caller's. On the chief of `options`; in one
// process, as a rule.
StatusOr<std::unique_ptr<MonitoredSession>> SingularMonitoredSession(
    ScopeAt at, SessionCreatorOptions options, MonitoredSessionOptions session = {});

}  // namespace millrace

#endif  // MILLRACE_TRAIN_MONITORED_SESSION_H_

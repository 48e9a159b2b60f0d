// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SESSION_RUN_HOOK_H_
#define MILLRACE_TRAIN_SESSION_RUN_HOOK_H_

// SessionRunHook: what a training loop does in addition to its step: saves, reports, guards, stops.
//
//   class LossPrinter : public SessionRunHook {
//     std::string name() const override { return "LossPrinter"; }
//     Status Begin(HookSetup* setup) override {
//       loss_group_ = setup->AddGroup({.fetches = {loss_}});
//       return absl::OkStatus();
//     }
//     StatusOr<GroupMask> BeforeRun(RunContext* context) override {
//       return context->run_number() % 100 == 0 ? MaskOf(loss_group_) : kNoGroups;
//     }
//     Status AfterRun(RunContext*, const RunValues& values) override {
//       if (values.has(loss_group_)) Print(values.value(loss_group_));
//       return absl::OkStatus();
//     }
//   };
//
// What a hook may want of a step it declares in Begin, in groups (fetches, operations to run,
// tensors that it feeds) that are numbered from 0 on. Before each run it answers which groups that
// run is to have. A MonitoredSession compiles a step for each set of groups that is asked for, so a
// step that only runs costs no names, no look-ups and no allocation. A hook that has nothing to ask
// for returns kNoGroups.
//
// Order of calls, for the hooks in the order in which they were given (AfterRun of guards before
// that of the others, so that nobody saves what a guard refuses):
//
//   Begin                    once, of all; the graph may change, and is finalized afterwards
//   AfterCreateSession       of all, for each session: the first, and each that follows a lost one
//   { BeforeRun of all, the step, AfterRun of all }   for each run
//   WhileOthersTrain         of all, some times a second: the data of a chief has ended, that of
//                            other trainers has not
//   End                      once, of all, when the loop has ended well; the session is alive
//
//   what happens                 then
//   a stop was requested         the run under way is finished, AfterRun of all, End
//   OutOfRange out of the step   (end of data; also when BeforeRun or AfterRun of a hook returns
//                                it) no AfterRun for that step; End
//   the session is lost          (IsSessionLost) no AfterRun for that step; a new session,
//                                AfterCreateSession of all, and the same step once more from
//                                BeforeRun on; bounded (MonitoredSessionOptions::max_recoveries)
//   any other error              no AfterRun for that step, no End; where a hook has written
//                                checkpoints the session writes the last one itself, when it is
//                                closed in order and the error says nothing against it
//   the run has ended elsewhere  (RunEndOf) as any other error, but the loop has ended well
//
// What a hook's own error does ("lost": one for which IsSessionLost is true, which a hook returns
// when a step of its own met it; a hook whose own service is away returns another code):
//
//   in                   a lost session               any other error
//   Begin                as any other                 opening fails with it; no other method of
//                                                     any hook is called
//   AfterCreateSession   another session is made      opening, or the run that needed the session,
//                                                     fails with it; later hooks are not called,
//                                                     and the next run makes another session
//   BeforeRun            a new session, and the same  the step is not run; Run returns the error;
//                        run from its begin           no AfterRun; no End
//   AfterRun             the same: the step is run    Run returns the error, the step has been run;
//                        again, its results are lost  later hooks are not called; no End
//   End                  as any other                 End of the other hooks is called all the
//                                                     same; Close returns the first error, and the
//                                                     end of the run is told to nobody
//
// "No End" is undone by a later run that succeeds: a program may go on after an error. The error
// that Run, Open or Close returns begins with the hook's name and the method.
//
// Who may ask for the stop: a hook in AfterCreateSession (of the first session: no step is run
// then), BeforeRun and AfterRun (RequestStop: the goal is reached, and the chief's hook ends the
// run for all tasks; RequestLeave: this task leaves, the run is to go on); a listener of
// checkpoints; the step function of RunStepFn; threads of the Coordinator.
//
// Variables may be made in Begin only, and must be the same in every task.
//
// Thread-safety: a hook is called from one thread at a time, the one that uses the session.
// Lifetime: a hook outlives the session that it was given to, and may be given to the next one
// then: Begin forgets what was before.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/coordinator.h"
#include "train/session_manager.h"

namespace tensorflow {
class RunMetadata;
class RunOptions;
}  // namespace tensorflow

namespace millrace {

// Bit i: group i of the hook.
using GroupMask = uint64_t;
inline constexpr GroupMask kNoGroups = 0;
// Of all hooks of a session together.
inline constexpr int kMaxHookGroups = 64;
inline constexpr GroupMask MaskOf(int group) { return GroupMask{1} << group; }

// What a hook may ask a run for.
struct HookGroup {
  std::vector<Output> fetches = {};
  std::vector<Operation> targets = {};  // run without a result
  std::vector<Output> feeds = {};       // values by RunContext::Feed, in each run with this group
};

// What Begin is given. Valid in Begin only.
class HookSetup {
 public:
  // `at`: the graph's root, and the line that opened the session.
  explicit HookSetup(ScopeAt at) : scope_(at.scope.BuiltWhereCalled()), opened_at_(at.where) {}

  // The root of the graph, for what a hook adds to it.
  const Scope& scope() const { return scope_; }
  // The same for hooks of the library: their nodes name the line that opened the session.
  Scope scope_of_session() const { return scope_.BuiltAt(opened_at_); }
  // The number of the group: 0, 1, ...
  int AddGroup(HookGroup group);
  // The graph's step counter; FailedPrecondition when it has none.
  StatusOr<Variable> GlobalStep() const;
  // That training ends at this global step, for code that waits for it or shows how far it is.
  void SetLastStep(int64_t step) { last_step_ = step; }
  // By several hooks: the last one's; 0 when none has said so.
  int64_t last_step() const { return last_step_; }
  // The same for what is not known before the first session: that training ends so many steps
  // behind the global step with which that begins.
  void SetNumSteps(int64_t steps) { num_steps_ = steps; }
  int64_t num_steps() const { return num_steps_; }
  // That the hook has `what` for itself ("checkpoints in 'run'"). AlreadyExists, naming the other
  // hook, when another one of this session has.
  Status Claim(const std::string& what);

  // For the session: the hook whose Begin comes next, and what the former has added.
  void StartHook(std::string name);
  std::vector<HookGroup> TakeGroups() { return std::exchange(groups_, {}); }

 private:
  const Scope scope_;
  const std::source_location opened_at_;
  std::string hook_;
  std::vector<HookGroup> groups_;
  std::vector<std::pair<std::string, std::string>> claims_;  // what, by which hook
  int64_t last_step_ = 0, num_steps_ = 0;
};

// What AfterCreateSession is given.
struct CreatedSession {
  std::shared_ptr<Session> session;
  // Of this session: threads that use it are started here, hold it, and are stopped before it is
  // closed, or after, when it was lost. One that ends with a lost session makes the next run begin
  // a new one.
  Coordinator coordinator;
  std::shared_ptr<Saver> saver;  // of the chief; may be none
  SessionManager::Start start = SessionManager::Start::kInitialized;
  std::string restored_checkpoint = "";  // "" unless restored
  int64_t global_step = -1;              // -1: there is none
  // As SetLastStep and SetNumSteps have said, the earlier of both; 0: nobody knows.
  int64_t last_step = 0;
  bool is_recovery = false;  // follows one that was lost
};

struct RunState;  // train/run_state.h

// One run, as one of its hooks sees it. Valid in the call that it is given to.
class RunContext {
 public:
  RunContext(RunState* run, size_t hook) : run_(run), hook_(hook) {}

  // For steps of the hook's own; they cost a run each, of names.
  Session* session() const;
  // How many runs of this MonitoredSession came before, those that failed apart.
  int64_t run_number() const;
  // Of the session's clock, which is asked once for BeforeRun and once for AfterRun of all hooks.
  absl::Time now() const;

  // The goal is reached: the loop ends, and on the chief the run with it. `reason` is for people:
  // "reached step 1000".
  void RequestStop(absl::string_view reason) const;
  // This task leaves, the run is to go on. `result` is what Close returns then.
  void RequestLeave(const Status& result) const;
  // What was trained since the last checkpoint is not worth one.
  void NothingToSave() const;
  bool nothing_to_save() const;
  bool stop_requested() const;

  // BeforeRun only: the value of a feed of one of the hook's groups, for this run.
  void Feed(int group, int index, Tensor value) const;
  // BeforeRun only: what the step is to record besides. Merged with what others ask for: the higher
  // trace level, the longer timeout, any flag. Such a run costs a message.
  void MergeOptions(const tensorflow::RunOptions& options) const;

 private:
  RunState* const run_;
  const size_t hook_;
};

// Where the tensors of a group are among those of all hooks.
struct GroupRange {
  size_t first = 0;
  size_t size = 0;
};

// What a run has brought a hook, by its own groups. Valid in the call that it is given to.
class RunValues {
 public:
  // `ranges`: of the hook's groups, in `results`.
  RunValues(GroupMask mask, absl::Span<const GroupRange> ranges, absl::Span<const Tensor> results,
            const tensorflow::RunMetadata* metadata)
      : mask_(mask), ranges_(ranges), results_(results), metadata_(metadata) {}

  // Was the group asked for?
  bool has(int group) const {
    return group >= 0 && group < kMaxHookGroups && (mask_ & MaskOf(group)) != 0;
  }
  // Of a group that was not asked for, and past its end: a tensor without a value.
  const Tensor& value(int group, int index = 0) const;
  // Of a run with MergeOptions; else null.
  const tensorflow::RunMetadata* metadata() const { return metadata_; }

 private:
  const GroupMask mask_;
  const absl::Span<const GroupRange> ranges_;
  const absl::Span<const Tensor> results_;
  const tensorflow::RunMetadata* const metadata_;
};

// What End is given.
struct LoopEnd {
  Session* session = nullptr;
  // NothingToSave was said.
  bool nothing_to_save = false;
};

class SessionRunHook {
 public:
  virtual ~SessionRunHook() = default;
  // For people: "StopAtStepHook".
  virtual std::string name() const = 0;
  virtual Status Begin(HookSetup* setup);
  virtual Status AfterCreateSession(RunContext* context, const CreatedSession& created);
  virtual StatusOr<GroupMask> BeforeRun(RunContext* context);
  virtual Status AfterRun(RunContext* context, const RunValues& values);
  // No run is under way. A lost session: a new one, AfterCreateSession, and on; any other error
  // ends the loop with it, without End.
  virtual Status WhileOthersTrain(RunContext* context);
  virtual Status End(const LoopEnd& end);
  // Its AfterRun judges what the others may keep; always the same.
  virtual bool is_guard() const { return false; }
  // It writes the checkpoints of the loop: nobody need add a hook that does; always the same.
  virtual bool keeps_checkpoints() const { return false; }
};

// A fetched global step, int32 or int64; -1 for anything else.
int64_t StepIn(const Tensor& value);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SESSION_RUN_HOOK_H_

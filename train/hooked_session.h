// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKED_SESSION_H_
#define MILLRACE_TRAIN_HOOKED_SESSION_H_

// HookedSession: runs a program's steps with what hooks ask for, in one session after another.
//
// It knows the order of the calls (train/session_run_hook.h) and nothing of recovery: an
// error leaves it as it is, and its owner (train/monitored_session.h) begins another session.
//
// A step of the program is named once (AddStep). For each set of groups that the hooks ask for with
// it a step of both is prepared in the session, at most kMaxPreparedSteps for each of the
// program's; a run takes it by a number. Where a session prepares nothing (Unimplemented), steps
// are run by their names.
//
//   Begin -> Start -> (Run ...) -> Start, for another session -> ... -> End
//
// Thread-safety: thread-compatible.
// Lifetime: hooks and clock outlive it; the session of the last Start as long as there are runs.
// Failure: of hooks, with their name and method in front; InvalidArgument when a tensor is fed
// twice, by hooks or a hook and the program, or a hook answers with groups that it has not.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "train/run_state.h"
#include "train/session_run_hook.h"

namespace tensorflow {
class RunMetadata;
}  // namespace tensorflow

namespace millrace {

// Kept of each step of the program; hooks with periods ask for a handful.
inline constexpr size_t kMaxPreparedSteps = 16;

class HookedSession {
 public:
  HookedSession(const Scope& scope, std::vector<SessionRunHook*> hooks, Clock* clock);
  ~HookedSession();

  // Begin of all hooks.
  Status Begin();
  // What hooks have said in Begin; 0 when none has.
  int64_t last_step() const { return last_step_; }
  // The same as a session knows it, the first of which began at `first_step`.
  int64_t LastStepFrom(int64_t first_step) const;
  // AfterCreateSession of all. Steps are prepared anew.
  Status Start(const CreatedSession& created);
  // Forgets the session: no run until the next Start.
  void Drop();

  // A step of the program, whose number it returns.
  size_t AddStep(std::vector<FetchName> feeds, std::vector<FetchName> fetches,
                 std::vector<FetchName> targets);
  // The same lists as a step before have its number; the last few are remembered.
  size_t FindOrAddStep(absl::Span<const Feed> feeds, absl::Span<const FetchName> fetches,
                       absl::Span<const FetchName> targets);
  // Results that the step has: one per fetched tensor.
  size_t num_results(size_t step) const { return steps_[step].num_results; }
  size_t num_feeds(size_t step) const { return steps_[step].feeds.size(); }
  // BeforeRun of all, the step, AfterRun of all. `results`: num_results places, without values
  // after an error.
  Status Run(size_t step, absl::Span<const Tensor> feeds, absl::Span<Tensor> results);

  // WhileOthersTrain of all.
  Status WhileOthersTrain();
  // End of all hooks, in their order; the first error.
  Status End();

  const RunState& run() const { return run_; }
  RunState* mutable_run() { return &run_; }

 private:
  // A step of the program together with some groups.
  struct Prepared {
    GroupMask mask = kNoGroups;
    std::unique_ptr<PreparedStep> step;  // none: by the names
    std::vector<FetchName> feeds, fetches, targets;
    std::vector<size_t> hook_feeds;                // which of RunState::feeds follow the program's
    std::vector<std::vector<GroupRange>> results;  // by hook, then by group
    size_t num_hook_results = 0;                   // they come first
    int64_t last_used = 0;
  };
  struct Step {
    std::vector<FetchName> feeds, fetches, targets;
    size_t num_results = 0;
    bool by_name = false;  // found by FindOrAddStep, which may replace it
    int64_t last_used = 0;
    std::vector<Prepared> prepared = {};
  };
  struct Hook {
    SessionRunHook* hook = nullptr;
    std::string name;
    std::vector<HookGroup> groups = {};
    int first_bit = 0;  // of its groups in the mask of all
  };

  Step MakeStep(std::vector<FetchName> feeds, std::vector<FetchName> fetches,
                std::vector<FetchName> targets) const;
  StatusOr<GroupMask> AskHooks();
  StatusOr<Prepared*> Prepare(Step* step, GroupMask mask);
  Status CheckHookFeeds(const Prepared& prepared, size_t num_program_feeds) const;
  Status RunPrepared(const Prepared& prepared, absl::Span<const Tensor> feeds);

  const Scope scope_;
  std::vector<Hook> hooks_;
  std::vector<size_t> after_run_order_;  // of hooks_: guards first
  Clock* const clock_;
  int64_t last_step_ = 0, num_steps_ = 0;
  int64_t uses_ = 0;
  std::vector<Step> steps_;
  RunState run_;
  std::vector<Tensor> feed_values_, results_;  // of the run under way; kept for their memory
  std::unique_ptr<tensorflow::RunMetadata> metadata_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKED_SESSION_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_EARLY_STOPPING_H_
#define MILLRACE_TRAIN_HOOKS_EARLY_STOPPING_H_

// EarlyStoppingHook: ends training when a predicate says so, a metric that an evaluator measures
// has stopped getting better, say.
//
//   EarlyStoppingHook hook({.is_chief = true,
//                           .should_stop = StopIfNoDecrease(read_losses, 5000)});
//
// Of an Estimator a metric's name is enough (estimator/early_stopping.h).
//
// The chief asks the predicate and tells the others through a variable where all see it,
// "signal_early_stopping/STOP"; every task gives the hook. Where TensorFlow's is a variable of the
// model, which checkpoints keep, this one is none: a job that is started again after an early end,
// with more patience, is not stopped by what its checkpoint remembers, and a checkpoint from before
// the hook restores. That it has a value is the signal.
//
// A chief that goes on with what was trained before asks before its first step, too: one that is
// started again after an early end, with no more patience, leaves without a step. The others, which
// are ready as soon as the variables are, wait until it has asked ("signal_early_stopping/ASKED"),
// and leave with it.
//
// Failure: of the predicate, as the hook's in AfterRun or AfterCreateSession; InvalidArgument for a
// period that is none. A chief that does not say within 30 s whether it has asked (it lacks the
// hook, or died) is not waited for any longer; a warning says so.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "graph/scope.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/session_run_hook.h"

namespace millrace {

struct EarlyStoppingOptions {
  bool is_chief = true;
  // Asked on the chief alone.
  std::function<StatusOr<bool>()> should_stop = {};
  // Called on the chief before its first question: training goes on after this global step; -1: the
  // model is new. What is known of later steps by then is another training's.
  std::function<void(int64_t step)> on_begin = {};
  // Runs of the chief, or time, between two questions. The first comes with the first run; before
  // it where the session's variables were trained before.
  Every every = absl::Seconds(60);
  // Called on the chief after each run, so it must be cheap: whether there is something to ask
  // about since it was called last, whatever `every` says. For evaluations that this process makes.
  std::function<bool()> has_news = {};
  // Why training ended then, for people.
  std::string reason = "early stopping";
  // For functions that make hooks: what is wrong with what they were given, which Begin returns.
  Status status = {};
  // For the wait for the chief.
  Clock* clock = Clock::Real();
};

class EarlyStoppingHook : public SessionRunHook {
 public:
  explicit EarlyStoppingHook(EarlyStoppingOptions options) : options_(std::move(options)) {}
  std::string name() const override { return "EarlyStoppingHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;

 private:
  // Asks the predicate; when it says so, the stop of all tasks.
  Status Ask(RunContext* context);
  // Until the chief of a new session has asked; notes what it has decided.
  Status AwaitChief(RunContext* context) const;

  const EarlyStoppingOptions options_;
  Operation signal_, clear_;           // STOP
  Operation say_asked_, clear_asked_;  // ASKED
  Output is_signalled_, is_asked_;
  int group_ = 0;
  StepTimer timer_;
  bool signalled_ = false;
};

// What one evaluation has measured.
struct Evaluation {
  int64_t global_step = 0;
  double value = 0;
};
// All there are of one metric, by step. An evaluator's event files, say.
using ReadEvaluations = std::function<StatusOr<std::vector<Evaluation>>()>;

// Predicates. Evaluations below `min_steps` do not count.
std::function<StatusOr<bool>()> StopIfHigher(ReadEvaluations read, double threshold,
                                             int64_t min_steps = 0);
std::function<StatusOr<bool>()> StopIfLower(ReadEvaluations read, double threshold,
                                            int64_t min_steps = 0);
// When the best one is `max_steps` older than a later one. One that is not a number (a metric of
// no examples) is never the best of several.
std::function<StatusOr<bool>()> StopIfNoIncrease(ReadEvaluations read, int64_t max_steps,
                                                 int64_t min_steps = 0);
std::function<StatusOr<bool>()> StopIfNoDecrease(ReadEvaluations read, int64_t max_steps,
                                                 int64_t min_steps = 0);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_EARLY_STOPPING_H_

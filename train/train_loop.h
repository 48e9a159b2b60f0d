// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TRAIN_LOOP_H_
#define MILLRACE_TRAIN_TRAIN_LOOP_H_

// TrainLoop: the loop of Train (train/train.h) in the sessions of a Supervisor: steps with their
// feeds, and what is due between them: progress, checkpoints, evaluations, the export.
//
// A batch is kept until its step is done, so that none is lost with a session. What is read ahead
// is of one session: each begins with a read of its own.
//
// Thread-safety: thread-compatible. Lifetime: what it is made of outlives it.
// Failure: as Train.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "train/counted_step.h"
#include "train/every.h"
#include "train/progress.h"
#include "train/read_ahead.h"
#include "train/step_trace.h"
#include "train/supervisor.h"
#include "train/train.h"
#include "train/train_events.h"

namespace millrace {

// When something is to be done again.
class Due {
 public:
  Due() = default;
  Due(const Every& every, int64_t step, absl::Time now) : every_(every) { Next(step, now); }
  bool AtStep(int64_t step) const { return step >= step_; }
  bool AtTime(absl::Time now) const { return now >= time_; }
  // Multiples of the steps, however many a step of other tasks has skipped.
  void Next(int64_t step, absl::Time now) {
    if (every_.steps() > 0) step_ = (step / every_.steps() + 1) * every_.steps();
    if (every_.time() > absl::ZeroDuration()) time_ = now + every_.time();
  }

 private:
  Every every_;
  int64_t step_ = std::numeric_limits<int64_t>::max();
  absl::Time time_ = absl::InfiniteFuture();
};

class TrainLoop {
 public:
  // `step`: of the graph `model`, which the supervisor has completed. `events`: null for none.
  TrainLoop(const Scope& model, const CountedStep& step, const ReadAhead& ahead,
            const TrainOptions& options, Supervisor* supervisor, TrainEvents* events);
  // Until the steps are done, the data ends, or a signal or an error comes; stops the supervisor.
  StatusOr<TrainResult> Run();

 private:
  bool exports() const { return options_.is_chief && !options_.export_to.empty(); }
  // One session's life, from ready to the end of training or to its loss.
  Status RunInSession(Session* session);

  // What is read ahead, before the first step and after a pause.
  Status ReadNow(Session* session);
  // The global step after the own one; notes how stale that was.
  int64_t Counted(const Tensor& steps);
  void NoteStaleness(int64_t read_at, int64_t after);

  // What is due besides training; almost always nothing.
  Status AfterStep(Session* session);

  void Look();
  // What TensorBoard shows of this step, unless it was shown before.
  void Show();
  Status Evaluate(Session* session);

  Status AtEnd(Session* session, bool exported);
  // What a StalenessAwareOptimizer has scaled and dropped; nothing where there is none.
  void SayStalenessCounts(Session* session);

  // A last checkpoint, and the error that says how to end the program.
  Status EndedBy(int signal);

  std::optional<double> ShownLoss() const;
  void Say(const std::string& line);

  const Scope& model_;
  const CountedStep& counted_;
  const ReadAhead& ahead_;
  const TrainOptions& options_;
  Supervisor* const supervisor_;
  TrainEvents* const events_;
  Clock* const clock_;
  Progress progress_;
  std::unique_ptr<StepTrace> trace_;  // while Run runs

  TrainResult result_;
  Status failed_;                 // of the data
  bool idle_ = false;             // the steps were done before
  std::optional<Feeds> pending_;  // of the step that is next, or was lost
  bool at_goal_ = false;
  std::string goal_;  // in words

  // Of the session.
  int64_t step_ = 0;
  int64_t evaluated_at_ = -1;
  // Of what is read ahead, for the next step, and the global step that was counted then; none: to
  // be read now.
  std::vector<Tensor> values_;
  int64_t read_at_ = 0;
  Due save_, eval_, report_, summary_;
  int64_t shown_at_ = -1;  // the step that was shown last
  // Since when steps are counted for the rate: from the first own step of a session on, which makes
  // ready what the others use. -1: there was none.
  int64_t rate_from_ = -1;
  absl::Time rate_since_;
  absl::Time now_;  // at the last look
  int steps_per_look_ = 1, until_look_ = 1;
  double recent_staleness_ = 0, recent_steps_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TRAIN_LOOP_H_

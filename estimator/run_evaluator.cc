// SPDX-License-Identifier: Apache-2.0
#include "estimator/run_evaluator.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/evaluation_done.h"
#include "estimator/evaluation_round.h"
#include "run/end_belief.h"
#include "run/run_file.h"

namespace millrace {
namespace {

// Between two looks at model_dir; also where throttle_secs is 0.
constexpr absl::Duration kPoll = absl::Seconds(1);
constexpr absl::Duration kReportPeriod = absl::Minutes(10);

class Evaluator {
 public:
  Evaluator(const Estimator& estimator, std::optional<int64_t> max_steps, const EvalSpec& spec,
            const TrainAndEvaluateOptions& options)
      : model_dir_(estimator.model_dir()),
        clock_(estimator.parts().clock),
        fs_(estimator.parts().file_system),
        spec_(spec),
        options_(options),
        end_grace_(absl::Seconds(options.end_grace_secs)),
        max_steps_(max_steps),
        belief_({.grace = end_grace_, .last_step = max_steps_}),
        round_(estimator, spec, max_steps) {}

  StatusOr<TrainAndEvaluateResult> Run() {
    if (spec_.throttle_secs == 0) {
      LogWarning(
          "Estimator: throttle_secs is 0: the evaluator looks for checkpoints once a second");
    }
    LogInfo("Estimator: the evaluator waits ", spec_.start_delay_secs,
            " s (start_delay_secs) and then for checkpoints in '", model_dir_, "'");
    if (WaitUntil(clock_->Now() + absl::Seconds(spec_.start_delay_secs))) return Leave();
    last_new_ = clock_->Now();
    while (true) {
      const absl::Time begin = clock_->Now();
      if (IsOver()) return Leave();
      MR_ASSIGN_OR_RETURN(const EvaluationRound::Outcome outcome,
                          round_.EvaluateLatest(/*is_last=*/false));
      Report(outcome);
      const bool is_new = outcome == EvaluationRound::Outcome::kEvaluated;
      if (is_new) last_new_ = clock_->Now();
      if (round_.reached_max_steps()) {
        // A later checkpoint may be the last one: tasks count beyond the last step.
        if (options_.tensorflow_ends) return Result("max_steps is evaluated");
        if (!WaitUntil(clock_->Now() + end_grace_)) {
          LogInfo("Estimator: max_steps is evaluated, and no end of the run is recorded");
        }
        return Leave("max_steps is evaluated");
      }
      const absl::Duration idle = clock_->Now() - last_new_;
      if (options_.evaluator_idle_timeout_secs > 0 &&
          idle >= absl::Seconds(options_.evaluator_idle_timeout_secs)) {
        const std::string reason =
            absl::StrCat("no new checkpoint for ", absl::FormatDuration(idle));
        LogInfo("Estimator: ", reason, "; the evaluator leaves");
        return Leave(reason);
      }
      const absl::Time next = std::max(begin + absl::Seconds(spec_.throttle_secs),
                                       clock_->Now() + (is_new ? absl::ZeroDuration() : kPoll));
      if (WaitUntil(next)) return Leave();
    }
  }

 private:
  // Whether the end of the run is believed.
  bool IsOver() {
    if (options_.tensorflow_ends) return false;
    const StatusOr<std::optional<RunEndFile>> read = ReadRunEnd(fs_, model_dir_);
    if (!read.ok()) {
      if (!read_failed_) LogWarning("Estimator: ", read.status().message());
      read_failed_ = true;
      return false;
    }
    read_failed_ = false;
    end_ = *read;
    const absl::Time now = clock_->Now();
    const bool is_new = belief_.Hear(EndBelief::ToldBy(end_), now);
    if (is_new && !belief_.is_believed(now)) {
      LogInfo("Estimator: an end of training at step ", end_->global_step,
              " stands in model_dir; it counts unless a chief comes within ",
              absl::FormatDuration(end_grace_));
    }
    return belief_.is_believed(now);
  }

  // True: the end came before.
  bool WaitUntil(absl::Time time) {
    while (true) {
      if (IsOver()) return true;
      const absl::Time now = clock_->Now();
      if (now >= time) return false;
      clock_->SleepFor(std::min(kPoll, time - now));
    }
  }

  void Report(EvaluationRound::Outcome outcome) {
    if (outcome == EvaluationRound::Outcome::kEvaluated) {
      reported_ = absl::InfinitePast();
      return;
    }
    const absl::Time now = clock_->Now();
    if (now - reported_ < kReportPeriod) return;
    reported_ = now;
    if (outcome == EvaluationRound::Outcome::kMissingCheckpoint) {
      LogWarning("Estimator: the evaluator waits for the first checkpoint in '", model_dir_, "'");
    } else {
      LogInfo("Estimator: the evaluator waits for a checkpoint after step ",
              round_.evaluated_step());
    }
  }

  TrainAndEvaluateResult Result(const std::string& reason) const {
    TrainAndEvaluateResult result = round_.result();
    result.reason = reason;
    return result;
  }

  // `otherwise`: why it leaves without an end of the run.
  StatusOr<TrainAndEvaluateResult> Leave(const std::string& otherwise = "") {
    const std::string checkpoint = end_ ? end_->checkpoint : "";
    const std::string& reason = end_ ? end_->reason : otherwise;
    if (end_) {
      LogInfo("Estimator: training has ended at step ", end_->global_step, " (", end_->reason, ")");
      // Of an evaluator before this one.
      const auto done = ReadEvaluationDone(fs_, model_dir_);
      if (done.ok() && *done && HasLastCheckpointOf(**done, *end_)) {
        LogInfo("Estimator: the evaluator leaves; the last checkpoint, of step ",
                (*done)->global_step, ", is evaluated");
        return Result(reason);
      }
    }
    MR_ASSIGN_OR_RETURN(const EvaluationRound::Outcome outcome, round_.EvaluateLast(checkpoint));
    if (outcome == EvaluationRound::Outcome::kMissingCheckpoint) {
      LogWarning("Estimator: training has ended without a checkpoint; nothing is evaluated");
    }
    const std::optional<EvalResult>& last = round_.result().evaluation;
    if (last && (end_ || round_.reached_max_steps())) {
      MR_RETURN_IF_ERROR(
          Prefixed("Estimator", WriteEvaluationDone(fs_, model_dir_,
                                                    {.id = end_ ? end_->id : "",
                                                     .global_step = last->global_step,
                                                     .checkpoint = Basename(last->checkpoint)})));
    }
    LogInfo("Estimator: the evaluator leaves; the last evaluation was at step ",
            round_.evaluated_step());
    return Result(reason);
  }

  const std::string& model_dir_;
  Clock* const clock_;
  FileSystem* const fs_;
  const EvalSpec& spec_;
  const TrainAndEvaluateOptions& options_;
  const absl::Duration end_grace_;
  const std::optional<int64_t> max_steps_;
  EndBelief belief_;
  EvaluationRound round_;
  std::optional<RunEndFile> end_;
  bool read_failed_ = false;
  absl::Time last_new_, reported_ = absl::InfinitePast();
};

}  // namespace

StatusOr<TrainAndEvaluateResult> RunEvaluator(const Estimator& estimator,
                                              std::optional<int64_t> max_steps,
                                              const EvalSpec& spec,
                                              const TrainAndEvaluateOptions& options) {
  return Evaluator(estimator, max_steps, spec, options).Run();
}

}  // namespace millrace

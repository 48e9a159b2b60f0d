// SPDX-License-Identifier: Apache-2.0
#include "estimator/evaluation_round.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "saver/saver.h"

namespace millrace {
namespace {

// A loss that is not a number is the best one only while there is no other.
bool IsBetter(const EvalResult& result, const std::optional<EvalResult>& best) {
  if (!best) return true;
  const double loss = result["loss"], former = (*best)["loss"];
  return loss < former || (std::isnan(former) && !std::isnan(loss));
}

// The step of the latest checkpoint; -1 without one; nullopt where it does not tell.
std::optional<int64_t> StepSoFar(const Estimator& estimator) {
  const std::string latest = estimator.latest_checkpoint();
  if (latest.empty()) return -1;
  return GlobalStepIn(estimator.parts().file_system, latest).value_or(std::nullopt);
}

}  // namespace

EvaluationRound::EvaluationRound(const Estimator& estimator, const EvalSpec& spec,
                                 std::optional<int64_t> max_steps)
    : estimator_(estimator), spec_(spec), max_steps_(max_steps), began_at_(StepSoFar(estimator)) {}

StatusOr<EvaluationRound::Outcome> EvaluationRound::EvaluateLatest(bool is_last) {
  const std::string latest = estimator_.latest_checkpoint();
  if (latest.empty()) return Outcome::kMissingCheckpoint;
  if (latest == evaluated_) {
    if (is_last && !exported_final_) MR_RETURN_IF_ERROR(Export(/*is_final=*/true));
    return Outcome::kNoNewCheckpoint;
  }
  MR_RETURN_IF_ERROR(Evaluate(latest, is_last));
  return Outcome::kEvaluated;
}

StatusOr<EvaluationRound::Outcome> EvaluationRound::EvaluateLast(const std::string& checkpoint) {
  FileSystem* const fs = estimator_.parts().file_system;
  if (checkpoint.empty() || !CheckpointExists(fs, checkpoint)) {
    return EvaluateLatest(/*is_last=*/true);
  }
  if (checkpoint == evaluated_) {
    if (!exported_final_) MR_RETURN_IF_ERROR(Export(/*is_final=*/true));
    return Outcome::kNoNewCheckpoint;
  }
  MR_RETURN_IF_ERROR(Evaluate(checkpoint, /*is_last=*/true));
  return Outcome::kEvaluated;
}

Status EvaluationRound::Evaluate(std::string checkpoint, bool is_last) {
  FileSystem* const fs = estimator_.parts().file_system;
  while (true) {
    StatusOr<EvalResult> evaluated =
        estimator_.Evaluate(spec_.input_fn, {.steps = spec_.steps,
                                             .hooks = spec_.hooks,
                                             .checkpoint_path = checkpoint,
                                             .name = spec_.name});
    if (evaluated.ok()) {
      evaluated_ = checkpoint;
      exported_final_ = false;
      result_.evaluation = *std::move(evaluated);
      ++result_.num_evaluations;
      if (IsBetter(*result_.evaluation, result_.best_evaluation)) {
        result_.best_evaluation = result_.evaluation;
      }
      const Status exported = Export(is_last || reached_max_steps());
      // The exporters read the checkpoint again.
      if (exported.ok() || CheckpointExists(fs, checkpoint)) return exported;
      LogWarning("Estimator: '", checkpoint,
                 "' was deleted before it was exported: ", exported.message());
      evaluated_.clear();
    } else {
      if (CheckpointExists(fs, checkpoint)) return evaluated.status();
      LogWarning("Estimator: '", checkpoint,
                 "' was deleted while it was evaluated: ", evaluated.status().message());
    }
    const std::string latest = estimator_.latest_checkpoint();
    if (latest.empty() || latest == checkpoint) {
      return evaluated.ok() ? absl::NotFoundError(absl::StrCat("Estimator: '", checkpoint,
                                                               "' must stay until it is exported, "
                                                               "got none"))
                            : evaluated.status();
    }
    checkpoint = latest;
  }
}

Status EvaluationRound::Export(bool is_final) {
  const std::string eval_dir = EvalDirectory(estimator_.model_dir(), spec_.name);
  const std::optional<int64_t> began_at = std::exchange(began_at_, std::nullopt);
  for (const auto& exporter : spec_.exporters) {
    const std::string path = JoinPath(JoinPath(estimator_.model_dir(), "export"), exporter->name());
    MR_ASSIGN_OR_RETURN(std::string exported, exporter->Export({.estimator = estimator_,
                                                                .export_path = path,
                                                                .checkpoint_path = evaluated_,
                                                                .result = *result_.evaluation,
                                                                .eval_dir = eval_dir,
                                                                .is_the_final_export = is_final,
                                                                .began_at = began_at}));
    if (!exported.empty()) result_.exports.push_back(std::move(exported));
  }
  // Some keep the last few only.
  FileSystem* const fs = estimator_.parts().file_system;
  std::erase_if(result_.exports, [fs](const std::string& path) { return !fs->FileExists(path); });
  exported_final_ = is_final;
  return absl::OkStatus();
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "run/run_choice.h"

#include <utility>

#include "run/training_run.h"

namespace millrace {

RunChoice::RunChoice() noexcept = default;
RunChoice::RunChoice(TrainingRun run) : run_(std::make_unique<TrainingRun>(std::move(run))) {}
RunChoice::RunChoice(const RunChoice& other)
    : run_(other.run_ == nullptr ? nullptr : std::make_unique<TrainingRun>(*other.run_)) {}
RunChoice::RunChoice(RunChoice&& other) noexcept = default;
RunChoice& RunChoice::operator=(TrainingRun run) {
  **this = std::move(run);
  return *this;
}
RunChoice& RunChoice::operator=(const RunChoice& other) { return *this = RunChoice(other); }
RunChoice& RunChoice::operator=(RunChoice&& other) noexcept = default;
RunChoice::~RunChoice() = default;

const TrainingRun& RunChoice::operator*() const {
  static const TrainingRun& none = *new TrainingRun;
  return run_ == nullptr ? none : *run_;
}

TrainingRun& RunChoice::operator*() {
  if (run_ == nullptr) run_ = std::make_unique<TrainingRun>();
  return *run_;
}

}  // namespace millrace

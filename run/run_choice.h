// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_CHOICE_H_
#define MILLRACE_RUN_RUN_CHOICE_H_

// RunChoice: the TrainingRun in options that many sources see and few set. It holds the run by
// value, and its header does without the run's.
//
//   options.run = {.name = "job7"};   // with run/training_run.h
//   options.run->name                 // "" when no run was chosen
//
// Thread-safety: a value. Failure: none.

#include <memory>

namespace millrace {

struct TrainingRun;

class RunChoice {
 public:
  RunChoice() noexcept;        // no run
  RunChoice(TrainingRun run);  // NOLINT
  RunChoice(const RunChoice& other);
  RunChoice(RunChoice&& other) noexcept;
  RunChoice& operator=(TrainingRun run);
  RunChoice& operator=(const RunChoice& other);
  RunChoice& operator=(RunChoice&& other) noexcept;
  ~RunChoice();

  const TrainingRun& operator*() const;
  TrainingRun& operator*();
  const TrainingRun* operator->() const { return &**this; }
  TrainingRun* operator->() { return &**this; }

 private:
  std::unique_ptr<TrainingRun> run_;  // null: an empty one
};

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_CHOICE_H_

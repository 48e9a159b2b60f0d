// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_FOUND_RUN_H_
#define MILLRACE_RUN_FOUND_RUN_H_

// FoundRun: what a task answers to the question for a run.
//
// Plain data.

#include <string>
#include <vector>

#include "run/training_run.h"

namespace millrace {

// What a task knows of a training run.
struct FoundRun {
  enum class State {
    kUnknown,     // no chief has claimed it there
    kClaimed,     //
    kEnded,       //
    kSuperseded,  // another run has its name
  };
  State state = State::kUnknown;
  TrainingRun run = {};  // with its newest chief
  RunEnd end = {};       // of one that has ended
  // Tasks whose trainers, its chief apart, have a session of it open there, and which have had one;
  // "": one that did not say who it is. Only for callers that ask by the id alone.
  std::vector<std::string> trainers = {}, former_trainers = {};
};

}  // namespace millrace

#endif  // MILLRACE_RUN_FOUND_RUN_H_

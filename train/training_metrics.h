// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TRAINING_METRICS_H_
#define MILLRACE_TRAIN_TRAINING_METRICS_H_

// TrainingMetrics: what the training of this process adds to ProcessMetrics. docs/metrics.md lists
// it. Every loop of the process counts into the same cells.
//
// Thread-safety: all functions, from any thread; each is one or two atomic operations.
// Lifetime: for ever. Failure: none.

#include <cstdint>

#include "absl/time/time.h"

namespace millrace {

// Steps of this task's own that succeeded.
void CountTrainSteps(int64_t n);
// As this task saw them last; lines of the log in JSON have the step, too. The series of the loss
// and of the staleness appear with their first value.
void NoteGlobalStep(int64_t step);
void NoteLoss(double loss);
void NoteStaleness(double updates);  // of other tasks between a step's read and its own update
// A session that is ready to train. `restored`: its variables came from a checkpoint.
void CountTrainSession(bool restored);
void CountSave(bool succeeded, absl::Duration took);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TRAINING_METRICS_H_

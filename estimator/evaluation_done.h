// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_EVALUATION_DONE_H_
#define MILLRACE_ESTIMATOR_EVALUATION_DONE_H_

// EvaluationDone: that an evaluator has evaluated the last checkpoint of a run, in the file
// `evaluation_done` of model_dir: JSON, replaced as a whole. For chiefs that wait for it and for
// managers of clusters.
//
// It says of which run it is: that of an older run, or of an earlier end of the same run, is below
// the end that a chief waits for.
//
// Failure: of the files; DataLoss for a file that is none.

#include <cstdint>
#include <optional>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "run/run_file.h"

namespace millrace {

inline constexpr char kEvaluationDoneFile[] = "evaluation_done";

struct EvaluationDone {
  std::string id = "";          // of the run; "": nobody has recorded its end
  int64_t global_step = -1;     // that was evaluated
  std::string checkpoint = "";  // its name in model_dir
};

// Whether `end` is the end of a run whose last checkpoint was evaluated. The checkpoint decides,
// not the step: trainers count on while it is written.
bool HasLastCheckpointOf(const EvaluationDone& done, const RunEndFile& end);

// nullopt: there is none.
StatusOr<std::optional<EvaluationDone>> ReadEvaluationDone(FileSystem* fs,
                                                           const std::string& model_dir);
Status WriteEvaluationDone(FileSystem* fs, const std::string& model_dir,
                           const EvaluationDone& done);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_EVALUATION_DONE_H_

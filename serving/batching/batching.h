// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_BATCHING_H_
#define MILLRACE_SERVING_BATCHING_BATCHING_H_

// Batching: how a server batches the requests of its models, and the runner of each version.
//
//   MR_ASSIGN_OR_RETURN(const auto batching, Batching::Create({}));
//   options.runner = *batching->RunnerOf("model 'census' version 3", directory);
//   ServedModel::Load(..., options);
//
// Without parameters a batch is what waits when a thread becomes free (LeaderBatcher); with them
// batches close as TensorFlow Serving's do (TimedBatcher). With `per_model` the parameters of a
// version are its file batching_params.pbtxt, of the server's only the threads count, and a version
// without that file is not batched: all as in TensorFlow Serving.
//
// Thread-safety: all methods, from any thread.
// Lifetime: runners keep what they need. Threads of batches are started by Create: they have its
// priority.
// Failure: of a version's file, as ReadBatchParameters, with its name; what reading it says.

#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batching_observer.h"
#include "serving/batching/step_batcher.h"
#include "serving/step_runner.h"

namespace millrace {

inline constexpr char kBatchParametersFile[] = "batching_params.pbtxt";

struct BatchingOptions {
  std::optional<BatchParameters> parameters = std::nullopt;
  bool per_model = false;
  // Without parameters: batches, and requests alone, that run at a time. 0: one per core.
  int max_running = 0;
  FileSystem* file_system = FileSystem::Default();
  Clock* clock = Clock::Real();  // outlives all runners
  std::shared_ptr<BatchingObserver> observer = nullptr;
};

class Batching {
 public:
  static StatusOr<std::unique_ptr<Batching>> Create(const BatchingOptions& options);

  // `label` names the version in the log. Null: it is not batched.
  StatusOr<std::shared_ptr<StepRunner>> RunnerOf(const std::string& label,
                                                 const std::string& directory) const;

 private:
  Batching(const BatchingOptions& options, std::shared_ptr<StepBatcher> batcher);

  const BatchingOptions options_;
  const std::shared_ptr<StepBatcher> batcher_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_BATCHING_H_

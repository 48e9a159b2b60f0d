// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_SHARED_FILES_H_
#define MILLRACE_ESTIMATOR_SHARED_FILES_H_

// SharedFiles: input of an Estimator that its trainers share out among themselves: what an input
// function returns in place of a Dataset.
//
//   auto train = [] {
//     return Input(SharedFiles{.files = {"clicks/part-*"},
//                              .read = [](const data::Shard& shard) -> StatusOr<data::Dataset> {
//                                return data::Dataset::TextLines({shard.file})
//                                    .Shuffle(10000).Map(columns).Batch(128);
//                              },
//                              .num_epochs = 5},
//                  {.names = {"x", "y"}, .labels = {"y"}});
//   };
//
// Training: shards come from a work queue on the first parameter server, each once an epoch to the
// trainer that asks next; train/hooks/share_out_hook.h has what is promised. The chief lists the
// files, once. Epochs are those of the run (the model_dir): Train that is called again goes on
// behind the shards that are done. Evaluation and prediction read all shards, once.
//
// What `read` returns is all that happens to the elements: batches, too.
//
// Failure: InvalidArgument without files or function; NotFound for a pattern that matches nothing;
// FailedPrecondition for several trainers without a parameter server.

#include <memory>

#include "core/file_system.h"
#include "core/status.h"
#include "data/dataset.h"
#include "estimator/input_fn.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "train/session_run_hook.h"

namespace millrace {

struct SharedDataset {
  data::Dataset dataset;
  std::shared_ptr<SessionRunHook> hook;  // that brings the shards; null: all are read here
};

// `root`: of the model's graph.
StatusOr<SharedDataset> MakeSharedDataset(const Scope& root, const SharedFiles& shared,
                                          bool is_training, const RunConfig& config,
                                          FileSystem* file_system);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_SHARED_FILES_H_

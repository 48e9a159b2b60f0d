// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_WARM_START_SAVER_H_
#define MILLRACE_ESTIMATOR_WARM_START_SAVER_H_

// WarmStartSaver: the nodes that restore what a WarmStart says, and the checkpoint that it means.
//
// Failure of Make: as WarmStart.

#include <memory>
#include <string>

#include "core/file_system.h"
#include "core/status.h"
#include "estimator/warm_start.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

// The checkpoint of a directory, a prefix or a SavedModel. NotFound.
StatusOr<std::string> WarmStartCheckpoint(FileSystem* fs, const std::string& from);

class WarmStartSaver {
 public:
  // Adds the nodes, before the graph is finalized.
  static StatusOr<std::shared_ptr<WarmStartSaver>> Make(const Scope& scope, const WarmStart& from,
                                                        FileSystem* fs);
  Status Restore(Session* session) const;

 private:
  WarmStartSaver(std::string checkpoint, std::unique_ptr<Saver> saver)
      : checkpoint_(std::move(checkpoint)), saver_(std::move(saver)) {}
  const std::string checkpoint_;
  const std::unique_ptr<Saver> saver_;  // none: nothing is restored
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_WARM_START_SAVER_H_

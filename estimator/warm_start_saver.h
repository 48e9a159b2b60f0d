// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_WARM_START_SAVER_H_
#define MILLRACE_ESTIMATOR_WARM_START_SAVER_H_

// WarmStartSaver: the nodes that restore what a WarmStart says, and the checkpoint that it means.
//
// What follows a vocabulary goes through this process, in pieces of a few megabytes along axis 0,
// and a part of a variable at a time along axis 1; everything else is restored where the variables
// are.
//
// Failure of Make: as WarmStart.

#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "estimator/warm_start.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

// The checkpoint of a directory, a prefix or a SavedModel. NotFound.
StatusOr<std::string> WarmStartCheckpoint(FileSystem* fs, const std::string& from);

class RemappedVariable;

class WarmStartSaver {
 public:
  // Adds the nodes, before the graph is finalized.
  static StatusOr<std::shared_ptr<WarmStartSaver>> Make(const Scope& scope, const WarmStart& from,
                                                        FileSystem* fs);
  ~WarmStartSaver();
  Status Restore(Session* session) const;

 private:
  WarmStartSaver(std::string checkpoint, FileSystem* fs);
  const std::string checkpoint_;
  FileSystem* const fs_;
  std::unique_ptr<Saver> saver_;  // none: nothing is restored as it is
  std::vector<std::unique_ptr<RemappedVariable>> remapped_;
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_WARM_START_SAVER_H_

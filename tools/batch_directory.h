// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_DIRECTORY_H_
#define MILLRACE_TOOLS_BATCH_DIRECTORY_H_

// BatchDirectory: the files of a batch prediction: what the job is, the shards, and their end.
//
//   OUT/prediction.results-00000-of-00003          predictions, as a server's reply has them
//   OUT/prediction.errors_stats-00000-of-00003     {"file": ..., "row": 7, "error": ...}
//   OUT/.batch_predict/job.json                    what the job is; another one is refused
//   OUT/.batch_predict/parts/                      what is done (tools/batch_parts.h)
//   OUT/.batch_predict/claims/                     who does what, with several tasks
//   OUT/.batch_predict/done.json                   the shards are whole
//   OUT/.batch_predict/lock                        held by who may write job.json and shards
//
// Each file gets its name when it is whole and synced. Shards are made of the parts, all of them
// again after a crash; two processes that make them of the same parts do each other no harm.
//
// Thread-safety: thread-compatible; any number of processes, as their locks say.
// Failure: FailedPrecondition for a directory of another job, DataLoss for files that are none of
// these, that of the files.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"
#include "tools/batch_parts.h"

namespace millrace {

// Lines of both kinds.
struct BatchLineCounts {
  int64_t results = 0, errors = 0;
};

class BatchDirectory {
 public:
  // `job`: what it is, a JSON object. Nothing is done yet.
  BatchDirectory(FileSystem* fs, std::string directory, std::string job, int num_shards);

  FileSystem* file_system() const { return fs_; }
  const std::string& parts() const { return parts_; }
  const std::string& claims() const { return claims_; }
  const std::string& done() const { return done_; }
  Status Create() const;                   // before all others
  Status CreateParts(bool claimed) const;  // `claimed`: by several tasks
  // OUT/.batch_predict/NAME, as FileSystem::TryLockFile: Unavailable when somebody has it.
  StatusOr<std::unique_ptr<FileLock>> TryLock(const std::string& name,
                                              const std::string& holder) const;

  // That job.json says `job`; false without one. FailedPrecondition, with what differs.
  StatusOr<bool> HasBegun() const;
  // Takes the directory for the job, or finds that it has it.
  Status Begin() const;
  // None until the shards are whole.
  StatusOr<std::optional<BatchLineCounts>> Finished() const;
  // Of parts that have all rows. `after_part`: after each that was read.
  StatusOr<BatchLineCounts> WriteShards(const std::vector<BatchPart>& parts,
                                        absl::FunctionRef<void()> after_part) const;
  // Of a finished job: parts and claims. What a crash leaves goes with the next run.
  void Clear() const;

 private:
  FileSystem* const fs_;
  const std::string directory_, job_, state_, parts_, claims_, done_;
  const int num_shards_;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_DIRECTORY_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BUNDLE_PLACE_H_
#define MILLRACE_SAVER_BUNDLE_PLACE_H_

// How a bundle gets its names: beside another one under the same prefix, which stays whole until
// one rename replaces its index, and beside others who give names under that prefix at the same
// time.
//
// Thread-safety: any thread.
// Failure: Unavailable when others name files under the prefix for too long, with who they are; of
// files, with their path.

#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// While it lives, this thread alone gives files their names under a prefix: two that look at what
// stands there before either has written its index would take the same names, and the data of one
// would come under the index of the other.
//
// Threads of this process take turns by the text of the prefix. Other processes, on this machine or
// another one, are kept out by a lock of `<prefix>.lock`, which ends with the process that holds
// it. Where files cannot be locked (FileSystem::TryLockFile says where, NFS among them) only the
// first holds, and the log says so once.
class PrefixHold {
 public:
  // Files get their names within a few syncs of a disk: who holds on for longer is stopped, or
  // waits for a disk that does not answer.
  static constexpr absl::Duration kPatience = absl::Minutes(2);

  // Waits until nobody else holds the prefix, and says every 10 s in the log for whom; Unavailable
  // after `patience`.
  static StatusOr<std::unique_ptr<PrefixHold>> Take(FileSystem* fs, const std::string& prefix,
                                                    Clock* clock = Clock::Real(),
                                                    absl::Duration patience = kPatience);
  ~PrefixHold();
  PrefixHold(const PrefixHold&) = delete;
  PrefixHold& operator=(const PrefixHold&) = delete;

 private:
  explicit PrefixHold(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string prefix_;
  std::unique_ptr<FileLock> lock_;  // null where files cannot be locked
};

// How a bundle takes the place of another under its prefix: its data files have other names, so
// the old one is whole until the new index replaces the old index, which is atomic.
struct Placement {
  int num_shards;      // of the new bundle, with an empty data file at the end if need be
  int old_shards = 0;  // of the bundle that is replaced; 0 when there is none
};

Placement PlaceBundle(FileSystem* fs, const std::string& prefix, int num_shards);

// Before the index of the new bundle: completes its data files.
Status FinishData(FileSystem* fs, const std::string& prefix, int num_data_files,
                  const Placement& place);

// After the index: what the old bundle leaves behind.
void DeleteReplacedData(FileSystem* fs, const std::string& prefix, const Placement& place);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BUNDLE_PLACE_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BUNDLE_PLACE_H_
#define MILLRACE_SAVER_BUNDLE_PLACE_H_

// How a bundle gets its names: next to another one under the same prefix, which stays whole until
// one rename replaces its index, and at once with other writers of that prefix at the same
// time.
//
// Thread-safety: any thread.
// Failure: DeadlineExceeded when others name files under the prefix for too long, with who they are
// (not Unavailable: no task and no session is lost); what `stop` says; of files, with their path.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "saver/bundle_format.h"

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
  // Files get their names within a few syncs of a disk: a writer that holds on for longer is
  // stopped, or waits for a disk that does not answer.
  static constexpr absl::Duration kPatience = absl::Minutes(2);

  // Waits until nobody else holds the prefix, and says every 10 s in the log for which process;
  // DeadlineExceeded after `patience`. `stop`, asked several times a second while it waits, ends
  // the wait with its error.
  static StatusOr<std::unique_ptr<PrefixHold>> Take(FileSystem* fs, const std::string& prefix,
                                                    Clock* clock = Clock::Real(),
                                                    absl::Duration patience = kPatience,
                                                    const std::function<Status()>& stop = nullptr);
  ~PrefixHold();
  PrefixHold(const PrefixHold&) = delete;
  PrefixHold& operator=(const PrefixHold&) = delete;

 private:
  explicit PrefixHold(std::string prefix) : prefix_(std::move(prefix)) {}

  const std::string prefix_;
  std::unique_ptr<FileLock> lock_;  // null where files cannot be locked
};

// Makes a bundle of data files, which are on the disk under other names, and of the entries that
// refer to them by their numbers: under `prefix`, held meanwhile. It takes the place of a bundle
// that stands there: its data files have another number in their names (an empty one more when the
// numbers would agree), so the old one is whole until the new index replaces the old index, which
// is atomic. The old data is deleted afterwards. Durable when it returns OK. An index that stands
// there and cannot be read now, though it may be whole, is an error.
//
// On an error, a full disk for instance, the data files have their old names again, nothing new is
// left, and it can be tried again; unless the index may have its name: then they stay. The fail
// points are passed before each data file gets its name and after the last one did. `stop` ends the
// wait for the prefix, and nothing after it.
Status GiveBundleItsNames(FileSystem* fs, const std::string& prefix,
                          absl::Span<const std::string> data_files, const BundleEntries& entries,
                          const char* before_data_rename, const char* after_data_rename,
                          const std::function<Status()>& stop = nullptr);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BUNDLE_PLACE_H_

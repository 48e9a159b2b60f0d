// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_CLAIMS_H_
#define MILLRACE_TOOLS_BATCH_CLAIMS_H_

// BatchClaims: which task of a job does which piece of work, said by files in a directory that all
// tasks share.
//
//   DIR/<item>.00000      the first claim of an item: "worker 1", a token, a dot for each beat
//   DIR/<item>.00001      another task has taken it over
//
//   of an item:  free -> claimed (a file that this task alone has created)
//                  ^________|  given up, silent for `takeover`, or by this task before it was
//                              started again; the next one to claim it creates the next number
//
// A claim is alive while its file grows, by the clock of who looks: the clocks of the machines need
// not agree. A task that slept for longer finds its work taken over, and may end it all the same:
// claims save work twice done, they do not keep two from doing it. What comes of an item must
// therefore be the same whoever does it, and how often.
//
// Claims are not durable: after a power cut items may be free again.
//
// Thread-safety: thread-compatible; any number of processes.
// Failure: that of the files. A beat that cannot be written is left out.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// One that this task holds. Its end gives it up, so that others need not wait.
class BatchClaim {
 public:
  BatchClaim(std::unique_ptr<WritableFile> file, absl::Duration period, Clock* clock)
      : file_(std::move(file)), period_(period), clock_(clock), beaten_(clock->Now()) {}
  BatchClaim(BatchClaim&&) = default;
  BatchClaim& operator=(BatchClaim&&) = delete;
  ~BatchClaim();

  // To be called between pieces of the work: says that the task lives, when it is time to.
  void Beat();

 private:
  std::unique_ptr<WritableFile> file_;  // null: moved from
  const absl::Duration period_;
  Clock* const clock_;
  absl::Time beaten_;
};

class BatchClaims {
 public:
  // `holder`: "worker 1", another one for each task. It must be sure that no process before it
  // holds claims by this name. `clock` must outlive this and its claims.
  BatchClaims(FileSystem* fs, std::string directory, std::string holder, absl::Duration takeover,
              Clock* clock);

  // Finds out what is claimed, and which claims live: of the items that are `open`, work to be done
  // (no call is made of others). What it finds holds until the next call.
  Status Look(absl::FunctionRef<bool(absl::string_view item)> open);

  // As the last Look found it.
  bool IsFree(const std::string& item) const;
  // "worker 1"; "" when nobody has claimed it.
  std::string HolderOf(const std::string& item) const;
  // When its claim last grew, as far as was looked; InfinitePast without a claim.
  absl::Time LastSignOf(const std::string& item) const;

  // None when it is not free, or another task was faster.
  StatusOr<std::optional<BatchClaim>> TryClaim(const std::string& item);

 private:
  struct Seen {
    int number = -1;        // the last claim's; -1: none
    bool is_read = false;   // what follows is known
    std::string text = {};  // the file's
    absl::Time since = {};  // when it became that
  };
  std::string PathOf(const std::string& item, int number) const;

  FileSystem* const fs_;
  const std::string directory_, holder_, token_;
  const absl::Duration takeover_;
  Clock* const clock_;
  std::map<std::string, Seen, std::less<>> seen_;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_CLAIMS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_VERSION_SOURCE_H_
#define MILLRACE_SERVING_VERSION_SOURCE_H_

// VersionSource: which versions of one model there are below its base path, and which are wanted.
//
//   VersionSource source("census", "/models/census", VersionPolicy(), options);
//   MR_ASSIGN_OR_RETURN(const FoundVersions found, source.Poll(loaded));
//
// A version is a directory whose name is an integer by absl::SimpleAtoi: 5, 005. Of two names of
// one number the last one counts, by their order as texts. Other names are ignored, those out of
// [0, 2^63) with a warning where they are numbers.
//
// A version counts once it is complete, and then until its directory is gone; files that change
// afterwards change its fingerprint only, when they are complete again. Complete means:
//   * there are files, and where there is `variables/variables.index`, the data files that it names
//     exist and are as long as it says; and
//   * the list of its files that exporters write last (saver/export_marker.h) is there, and they
//   are
//     as it says; or there is no such list, and the newest change of a file or directory is
//     `settle_time` old, or the list of files with sizes and times is that of a poll at least half
//     of `settle_time` ago (clocks of file servers may be ahead). An empty list counts as none.
// Lists and indexes may come before the files that they name: until all are there, and while files
// come, the version settles.
// With `trust_new_versions` each directory counts at once, as in TensorFlow Serving.
//
// What is not complete is never wanted and takes no other version's place: "latest" means the
// latest complete ones. The reason is in FoundVersions::incomplete.
//
// Bounds: at most kMostNames names in the base path, kMostFiles files and directories in a version,
// kMostDepth levels. A poll looks only into versions that could be wanted, and not into those that
// the caller has loaded.
//
// Thread-safety: one Poll at a time.
// Failure: Poll fails, and changes nothing, when the base path cannot be listed: NotFound when it
// is absent, FailedPrecondition when it is no directory. An empty base path wants nothing.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "saver/export_marker.h"  // IWYU pragma: export

namespace millrace {

// Which of a model's versions are wanted.
struct VersionPolicy {
  enum class Kind { kLatest, kAll, kSpecific };
  Kind kind = Kind::kLatest;
  int64_t num_latest = 1;         // kLatest: the highest; less than 1 counts as 1
  std::vector<int64_t> specific;  // kSpecific
};

struct FoundVersion {
  int64_t version = 0;
  std::string directory;
  uint64_t fingerprint = 0;  // of names, sizes and times of its files when they were last complete
  int64_t num_bytes = 0;     // of its files when they were last looked at; 0: never
};

struct IncompleteVersion {
  int64_t version = 0;
  std::string directory;
  Status reason;
  bool settles = false;  // nothing is wrong with it so far; time will tell
};

struct FoundVersions {
  std::vector<FoundVersion> wanted;           // ascending
  std::vector<IncompleteVersion> incomplete;  // ascending; only those that would be wanted
  std::vector<std::string> warnings;          // of this poll; each is logged when it appears
};

class VersionSource {
 public:
  struct Options {
    FileSystem* file_system = FileSystem::Default();  // outlives the source
    Clock* clock = Clock::Real();                     // the same
    bool trust_new_versions = false;
    absl::Duration settle_time = absl::Seconds(2);
  };
  static constexpr size_t kMostNames = 100000;
  static constexpr size_t kMostFiles = 10000;
  static constexpr int kMostDepth = 16;
  // What is not complete after so many times `settle_time` is not said to settle any more.
  static constexpr int kSettleTimes = 20;

  VersionSource(std::string model, std::string base_path, VersionPolicy policy, Options options);
  VersionSource(const VersionSource&) = delete;
  VersionSource& operator=(const VersionSource&) = delete;

  // `loaded`, ascending: versions whose files need not be looked at: they count, and keep the
  // fingerprint that they had.
  StatusOr<FoundVersions> Poll(absl::Span<const int64_t> loaded = {});

  // Of the names, sizes and times of all files below a directory.
  static StatusOr<uint64_t> FingerprintOf(FileSystem* file_system, const std::string& directory);

 private:
  // The files of a version at one moment.
  struct Listing {
    uint64_t fingerprint = 0;
    size_t num_files = 0, num_entries = 0;
    uint64_t num_bytes = 0;
    double newest = 0;  // seconds since the epoch, directories included
    bool is_marked = false;
    bool has_index = false, has_data = false;  // of variables/variables
  };
  // What is known of a version from poll to poll.
  struct Known {
    std::string name;                           // of its directory
    bool counts = false;                        // it was complete once
    absl::Time since = absl::InfiniteFuture();  // when it was first looked at
    uint64_t fingerprint = 0;                   // of then, or later
    uint64_t seen = 0;                          // the listing of the last poll
    absl::Time seen_since;                      // the first poll with that listing
    bool is_seen = false;                       // both are set
    uint64_t checked = 0;                       // the listing whose parts were checked
    bool is_checked = false;                    // it is set
    Status parts;                               // what the check said
    int64_t num_bytes = 0;                      // of all files, when they were last looked at
  };

  StatusOr<std::map<int64_t, std::string>> ListVersions(std::vector<std::string>* warnings) const;
  static Status List(FileSystem* fs, const std::string& directory, const std::string& relative,
                     int depth, Listing* listing);
  Status CheckVariables(const std::string& directory, const Listing& listing) const;
  // The variables, and what the exporter listed.
  Status CheckParts(const std::string& directory, const Listing& listing) const;
  // Ok: it counts. `settles` as in IncompleteVersion.
  Status Look(int64_t version, const std::string& directory, Known* known, bool* settles) const;
  void Warn(const std::vector<std::string>& warnings);

  const std::string model_;
  const std::string base_path_;
  const VersionPolicy policy_;
  const Options options_;
  std::map<int64_t, Known> known_;
  std::set<std::string> warned_;  // by the last poll
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_VERSION_SOURCE_H_

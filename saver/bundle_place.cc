// SPDX-License-Identifier: Apache-2.0
#include "saver/bundle_place.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/process_name.h"
#include "core/table_reader.h"
#include "saver/bundle_format.h"
#include "saver/bundle_paths.h"

namespace millrace {
namespace {

// Between two looks at a lock of another process.
constexpr absl::Duration kFirstPause = absl::Milliseconds(1);
constexpr absl::Duration kLongestPause = absl::Milliseconds(100);
constexpr absl::Duration kBetweenReports = absl::Seconds(10);

// Held by threads of this process.
struct Held {
  Mutex mu;
  CondVar released;
  std::set<std::string> prefixes ABSL_GUARDED_BY(mu);
};
Held& AllHeld() {
  static Held* const held = new Held;
  return *held;
}

std::string Where(const std::string& prefix) { return absl::StrCat("Checkpoint '", prefix, "': "); }

// Waiting, with a report now and then.
class Patience {
 public:
  Patience(Clock* clock, absl::Duration patience, const std::string& prefix)
      : prefix_(prefix),
        begin_(clock->Now()),
        deadline_(begin_ + patience),
        report_(begin_ + kBetweenReports) {}

  absl::Time next() const { return std::min(report_, deadline_); }
  // Not OK: it is over. `why`: who is waited for.
  Status Check(absl::Time now, absl::string_view why) {
    if (now >= deadline_) {
      return absl::UnavailableError(absl::StrCat(
          Where(prefix_), "one save at a time must give files their names under this prefix, got ",
          "another one at it for ", absl::FormatDuration(deadline_ - begin_), ": ", why));
    }
    if (now >= report_) {
      LogWarning(Where(prefix_), "waiting since ", absl::FormatDuration(now - begin_),
                 " to give files their names: ", why);
      report_ = now + kBetweenReports;
    }
    return absl::OkStatus();
  }

 private:
  const std::string prefix_;
  const absl::Time begin_, deadline_;
  absl::Time report_;
};

}  // namespace

StatusOr<std::unique_ptr<PrefixHold>> PrefixHold::Take(FileSystem* fs, const std::string& prefix,
                                                       Clock* clock, absl::Duration patience) {
  Patience waiting(clock, patience, prefix);
  {
    Held& held = AllHeld();
    MutexLock lock(&held.mu);
    while (!held.prefixes.insert(prefix).second) {
      clock->WaitUntil(&held.released, &held.mu, waiting.next());
      MR_RETURN_IF_ERROR(waiting.Check(clock->Now(), "another thread of this process"));
    }
  }
  auto hold = std::unique_ptr<PrefixHold>(new PrefixHold(prefix));
  for (absl::Duration pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    StatusOr<std::unique_ptr<FileLock>> locked =
        fs->TryLockFile(BundleLockPath(prefix), ProcessName());
    if (locked.ok()) {
      hold->lock_ = *std::move(locked);
      return hold;
    }
    if (absl::IsUnimplemented(locked.status())) {
      static std::once_flag once;
      std::call_once(once, [&] {
        LogWarning(Where(prefix),
                   "nothing keeps other processes from giving files their names under "
                   "one prefix at the same time: ",
                   locked.status().message());
      });
      return hold;
    }
    if (!absl::IsUnavailable(locked.status())) {
      return Prefixed(absl::StrCat("Checkpoint '", prefix, "'"), locked.status());
    }
    MR_RETURN_IF_ERROR(waiting.Check(clock->Now(), locked.status().message()));
    clock->SleepFor(pause);
  }
}

PrefixHold::~PrefixHold() {
  lock_.reset();  // before a thread of this process finds the lock taken by its own
  Held& held = AllHeld();
  MutexLock lock(&held.mu);
  held.prefixes.erase(prefix_);
  held.released.SignalAll();
}

Placement PlaceBundle(FileSystem* fs, const std::string& prefix, int num_shards) {
  Placement place{num_shards};
  if (!fs->FileExists(BundleIndexPath(prefix))) return place;
  const auto table = TableReader::Open(fs, BundleIndexPath(prefix));
  if (!table.ok()) return place;  // nothing that could be kept
  const auto header = CheckedHeader(prefix, **table);
  if (!header.ok()) return place;
  place.old_shards = header->num_shards();
  if (place.old_shards == num_shards) ++place.num_shards;
  return place;
}

Status FinishData(FileSystem* fs, const std::string& prefix, int num_data_files,
                  const Placement& place) {
  if (place.old_shards == 0) return absl::OkStatus();
  for (int i = num_data_files; i < place.num_shards; ++i) {
    MR_RETURN_IF_ERROR(WriteSynced(fs, BundleDataPath(prefix, i, place.num_shards), ""));
  }
  // The index must not come before the names of what it refers to: it ends the old bundle.
  return fs->SyncDirectory(Dirname(prefix));
}

void DeleteReplacedData(FileSystem* fs, const std::string& prefix, const Placement& place) {
  for (int i = 0; i < place.old_shards; ++i) {
    fs->DeleteFile(BundleDataPath(prefix, i, place.old_shards)).IgnoreError();
  }
}

}  // namespace millrace

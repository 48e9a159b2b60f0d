// SPDX-License-Identifier: Apache-2.0
#include "saver/bundle_place.h"

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/process_name.h"
#include "core/random_bits.h"
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
  Patience(Clock* clock, absl::Duration patience, const std::string& prefix,
           const std::function<Status()>& stop)
      : prefix_(prefix),
        stop_(stop),
        begin_(clock->Now()),
        deadline_(begin_ + patience),
        report_(begin_ + kBetweenReports) {}

  // When to look again.
  absl::Time next(absl::Time now) const {
    const absl::Time due = std::min(report_, deadline_);
    return stop_ ? std::min(due, now + kLongestPause) : due;
  }
  // Not OK: it is over. `why`: what is waited for.
  Status Check(absl::Time now, absl::string_view why) {
    if (stop_) MR_RETURN_IF_ERROR(stop_());
    if (now >= deadline_) {
      return absl::DeadlineExceededError(absl::StrCat(
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
  const std::function<Status()>& stop_;
  const absl::Time begin_, deadline_;
  absl::Time report_;
};

}  // namespace

StatusOr<std::unique_ptr<PrefixHold>> PrefixHold::Take(FileSystem* fs, const std::string& prefix,
                                                       Clock* clock, absl::Duration patience,
                                                       const std::function<Status()>& stop) {
  Patience waiting(clock, patience, prefix, stop);
  {
    Held& held = AllHeld();
    MutexLock lock(&held.mu);
    while (!held.prefixes.insert(prefix).second) {
      clock->WaitUntil(&held.released, &held.mu, waiting.next(clock->Now()));
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
  const size_t erased = held.prefixes.erase(prefix_);
  MR_DCHECK(erased == 1, "a prefix has one holder, which gives it back once");
  held.released.SignalAll();
}

namespace {

// How a bundle takes the place of another.
struct Placement {
  int num_shards;      // of the new bundle, with an empty data file at the end if need be
  int old_shards = 0;  // of the bundle that is replaced; 0 when there is none
};

// Of an index: there is nothing that could be kept. Other errors say only that it cannot be read
// now (no descriptor left, an error of the disk): the bundle may be whole.
bool IsNoBundle(const Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) ||
         absl::IsFailedPrecondition(status) || absl::IsUnimplemented(status);
}

StatusOr<Placement> PlaceBundle(FileSystem* fs, const std::string& prefix, int num_shards) {
  Placement place{num_shards};
  if (!fs->FileExists(BundleIndexPath(prefix))) return place;
  const StatusOr<int> old_shards = [&]() -> StatusOr<int> {
    MR_ASSIGN_OR_RETURN(const auto table, TableReader::Open(fs, BundleIndexPath(prefix)));
    MR_ASSIGN_OR_RETURN(const auto header, CheckedHeader(prefix, *table));
    return header.num_shards();
  }();
  if (IsNoBundle(old_shards.status())) return place;
  MR_ASSIGN_OR_RETURN(place.old_shards, old_shards);
  if (place.old_shards == num_shards) ++place.num_shards;
  return place;
}

// A whole file, durable except for its name. On an error there is none.
Status WriteSynced(FileSystem* fs, const std::string& path, absl::string_view data) {
  const Status written = [&]() -> Status {
    MR_ASSIGN_OR_RETURN(auto file, fs->NewWritableFile(path));
    MR_RETURN_IF_ERROR(file->Append(data));
    MR_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  }();
  if (!written.ok()) fs->DeleteFile(path).IgnoreError();
  return written;
}

// Whether a file holds these bytes: what a rename came to that failed, and may have been done all
// the same (on NFS, where the answer to it was lost). Asked by opening it, because NFS looks there
// at the server; names alone may be remembered.
enum class Holds { kYes, kNo, kUnknown };
Holds FileHolds(FileSystem* fs, const std::string& path, absl::string_view bytes) {
  const StatusOr<std::string> read = ReadFileToString(fs, path, bytes.size() + 1);
  if (read.ok()) return *read == bytes ? Holds::kYes : Holds::kNo;
  const bool is_another =
      absl::IsNotFound(read.status()) || absl::IsResourceExhausted(read.status());
  return is_another ? Holds::kNo : Holds::kUnknown;
}

}  // namespace

Status GiveBundleItsNames(FileSystem* fs, const std::string& prefix,
                          absl::Span<const std::string> data_files, const BundleEntries& entries,
                          const char* before_data_rename, const char* after_data_rename,
                          const std::function<Status()>& stop) {
  MR_ASSIGN_OR_RETURN(const auto hold,
                      PrefixHold::Take(fs, prefix, Clock::Real(), PrefixHold::kPatience, stop));
  const int num_files = static_cast<int>(data_files.size());
  MR_ASSIGN_OR_RETURN(const Placement place, PlaceBundle(fs, prefix, num_files));
  const auto data_path = [&](int i) { return BundleDataPath(prefix, i, place.num_shards); };
  const std::string index = BundleIndexPath(prefix);
  const std::string temporary = absl::StrCat(index, ".tempstate", RandomHexName());
  int num_named = 0;
  bool may_be_named = false;  // the index
  const Status named = [&]() -> Status {
    for (; num_named < num_files; ++num_named) {
      MR_RETURN_IF_ERROR(FailPoint(before_data_rename));
      MR_RETURN_IF_ERROR(
          fs->RenameFile(data_files[static_cast<size_t>(num_named)], data_path(num_named)));
    }
    MR_RETURN_IF_ERROR(FailPoint(after_data_rename));
    if (place.old_shards > 0) {
      for (; num_named < place.num_shards; ++num_named) {
        MR_RETURN_IF_ERROR(WriteSynced(fs, data_path(num_named), ""));
      }
      // The index must not come before the names of what it refers to: it ends the old bundle.
      MR_RETURN_IF_ERROR(fs->SyncDirectory(Dirname(prefix)));
    }
    MR_DCHECK(num_named == place.num_shards, "the index comes after the names that it refers to");
    MR_RETURN_IF_ERROR(FailPoint("saver/before_index"));
    const std::string bytes = BundleIndex(place.num_shards, entries);
    MR_RETURN_IF_ERROR(WriteSynced(fs, temporary, bytes));
    MR_RETURN_IF_ERROR(FailPoint("saver/after_index_sync"));
    const Status renamed = fs->RenameFile(temporary, index);
    if (renamed.ok()) return renamed;
    const Holds ours = FileHolds(fs, index, bytes);
    if (ours == Holds::kYes) {
      LogWarning(Where(prefix),
                 "the index has its name, though giving it failed: ", renamed.message());
      return absl::OkStatus();
    }
    may_be_named = ours == Holds::kUnknown || !fs->FileExists(temporary);
    return renamed;
  }();
  if (!named.ok()) {
    // Nothing refers to the data yet.
    if (!may_be_named) {
      while (num_named-- > 0) {
        if (num_named < num_files) {
          fs->RenameFile(data_path(num_named), data_files[static_cast<size_t>(num_named)])
              .IgnoreError();
        } else {
          fs->DeleteFile(data_path(num_named)).IgnoreError();
        }
      }
    }
    if (fs->FileExists(temporary)) fs->DeleteFile(temporary).IgnoreError();
    return named;
  }
  MR_RETURN_IF_ERROR(FailPoint("saver/after_index_rename"));
  MR_RETURN_IF_ERROR(fs->SyncDirectory(Dirname(prefix)));
  for (int i = 0; i < place.old_shards; ++i) {
    fs->DeleteFile(BundleDataPath(prefix, i, place.old_shards)).IgnoreError();
  }
  return absl::OkStatus();
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "saver/bundle_place.h"

#include <set>

#include "core/mutex.h"
#include "core/table_reader.h"
#include "saver/bundle_format.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

struct Held {
  Mutex mu;
  CondVar released;
  std::set<std::string> prefixes ABSL_GUARDED_BY(mu);
};
Held& AllHeld() {
  static Held* const held = new Held;
  return *held;
}

}  // namespace

PrefixHold::PrefixHold(const std::string& prefix) : prefix_(prefix) {
  Held& held = AllHeld();
  MutexLock lock(&held.mu);
  while (!held.prefixes.insert(prefix_).second) held.released.Wait(&held.mu);
}

PrefixHold::~PrefixHold() {
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

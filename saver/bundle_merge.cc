// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/fail_point.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "saver/bundle_format.h"
#include "saver/bundle_place.h"
#include "saver/tensor_bundle.h"

namespace millrace {

Status MergeBundles(FileSystem* fs, absl::Span<const std::string> parts, const std::string& merged,
                    bool delete_parts, const std::function<Status()>& stop) {
  const std::string where = absl::StrCat("Checkpoint '", merged, "': ");
  if (parts.empty()) {
    return InvalidArgument(where, "a merge must have at least one part, got none");
  }
  // Everything is read and checked before the first file is touched.
  BundleEntries all;
  std::vector<std::string> data_files;  // in the new order
  int num_shards = 0;
  std::vector<std::string> unique;
  for (const std::string& part : parts) {
    if (std::find(unique.begin(), unique.end(), part) != unique.end()) continue;
    unique.push_back(part);
    MR_ASSIGN_OR_RETURN(auto table, TableReader::Open(fs, BundleIndexPath(part)));
    MR_ASSIGN_OR_RETURN(const auto header, CheckedHeader(part, *table));
    const int first_shard = num_shards;
    num_shards += header.num_shards();
    for (int i = 0; i < header.num_shards(); ++i) {
      const std::string path = BundleDataPath(part, i, header.num_shards());
      if (!fs->FileExists(path)) {
        return absl::NotFoundError(absl::StrCat(where, "data file '", path, "' is missing"));
      }
      data_files.push_back(path);
    }
    auto it = table->NewIterator();
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      if (it->key().empty()) continue;
      tensorflow::BundleEntryProto entry;
      if (!entry.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) {
        return absl::DataLossError(absl::StrCat("Checkpoint '", part, "': the entry of '",
                                                it->key(), "' cannot be parsed"));
      }
      const std::string key(it->key());
      if (entry.shard_id() < 0 || entry.shard_id() >= header.num_shards()) {
        return absl::DataLossError(absl::StrCat(
            "Checkpoint '", part, "': tensor '", IsSliceKey(key) ? "(a slice)" : key,
            "': its shard must be in [0, ", header.num_shards(), "), got ", entry.shard_id()));
      }
      const auto found = all.find(key);
      if (found == all.end()) {
        if (entry.slices_size() == 0) entry.set_shard_id(entry.shard_id() + first_shard);
        all.emplace(key, std::move(entry));
        continue;
      }
      tensorflow::BundleEntryProto& known = found->second;
      if (known.slices_size() == 0 || entry.slices_size() == 0) {
        return InvalidArgument(where, "tensor '", key, "' must be in one part, got it in two");
      }
      if (known.dtype() != entry.dtype() ||
          known.shape().SerializeAsString() != entry.shape().SerializeAsString()) {
        return InvalidArgument(where, "slices of tensor '", key,
                               "' must agree on dtype and full shape, got two");
      }
      known.mutable_slices()->MergeFrom(entry.slices());
    }
    MR_RETURN_IF_ERROR(it->status());
  }
  if (!Dirname(merged).empty()) MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(Dirname(merged)));
  MR_RETURN_IF_ERROR(GiveBundleItsNames(fs, merged, data_files, all,
                                        "saver/merge_before_data_rename", "saver/after_merge_data",
                                        stop));
  if (!delete_parts) return absl::OkStatus();
  MR_RETURN_IF_ERROR(FailPoint("saver/before_part_delete"));
  for (const std::string& part : unique) {
    if (part == merged) continue;
    MR_RETURN_IF_ERROR(fs->DeleteFile(BundleIndexPath(part)));
  }
  for (const std::string& part : unique) {
    // Fails while another part's files are in it, or somebody else's: then it stays.
    if (!Dirname(part).empty() && Dirname(part) != Dirname(merged)) {
      fs->DeleteDirectory(Dirname(part)).IgnoreError();
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace

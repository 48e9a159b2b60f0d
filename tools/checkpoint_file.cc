// SPDX-License-Identifier: Apache-2.0
#include "tools/checkpoint_file.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/table_reader.h"
#include "saver/checkpoint_name.h"
#include "saver/checkpoint_v1.h"
#include "saver/tensor_bundle.h"

namespace millrace {
namespace {

template <typename Reader>
void Take(std::shared_ptr<Reader> reader, CheckpointFile* checkpoint) {
  for (const auto& entry : reader->entries()) {
    checkpoint->entries.push_back({entry.name, entry.dtype, entry.shape});
  }
  checkpoint->read = [reader](const std::string& name) { return reader->Read(name); };
}

Status LookForCompression(FileSystem* fs, const std::string& path, CheckpointFile* checkpoint) {
  MR_ASSIGN_OR_RETURN(const auto table, TableReader::Open(fs, path));
  MR_ASSIGN_OR_RETURN(const bool is_compressed, table->HasSnappyBlocks());
  checkpoint->is_compressed = checkpoint->is_compressed || is_compressed;
  return absl::OkStatus();
}

}  // namespace

const CheckpointFile::Entry* CheckpointFile::Find(const std::string& name) const {
  const auto found =
      std::lower_bound(entries.begin(), entries.end(), name,
                       [](const Entry& entry, const std::string& n) { return entry.name < n; });
  return found == entries.end() || found->name != name ? nullptr : &*found;
}

StatusOr<CheckpointFile> CheckpointFile::Open(FileSystem* fs, const std::string& path) {
  CheckpointFile checkpoint;
  MR_ASSIGN_OR_RETURN(checkpoint.prefix, CheckpointNamed(fs, path));
  const std::string index = BundleIndexPath(checkpoint.prefix);
  if (fs->FileExists(index)) {
    MR_ASSIGN_OR_RETURN(std::shared_ptr<BundleReader> reader,
                        BundleReader::Open(fs, checkpoint.prefix));
    checkpoint.num_shards = reader->num_shards();
    Take(std::move(reader), &checkpoint);
    MR_RETURN_IF_ERROR(LookForCompression(fs, index, &checkpoint));
    return checkpoint;
  }
  const std::vector<std::string> files = CheckpointV1Files(fs, checkpoint.prefix);
  if (files.empty()) {
    return absl::NotFoundError(absl::StrCat("Checkpoint '", checkpoint.prefix, "': there must be '",
                                            index, "' or a file of the first format, got neither"));
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<CheckpointV1Reader> reader,
                      CheckpointV1Reader::Open(fs, checkpoint.prefix));
  checkpoint.num_shards = static_cast<int>(files.size());
  Take(std::move(reader), &checkpoint);
  for (const std::string& file : files) {
    MR_RETURN_IF_ERROR(LookForCompression(fs, file, &checkpoint));
  }
  return checkpoint;
}

}  // namespace millrace

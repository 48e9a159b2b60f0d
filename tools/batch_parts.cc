// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_parts.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "core/random_bits.h"

namespace millrace {

std::string BatchPart::Name() const {
  return absl::StrFormat("part-%015d-%015d-%d", begin, end, lines);
}

std::optional<BatchPart> BatchPart::Of(absl::string_view name) {
  const std::vector<absl::string_view> fields = absl::StrSplit(name, '-');
  BatchPart part;
  if (fields.size() != 4 || fields[0] != "part" || !absl::SimpleAtoi(fields[1], &part.begin) ||
      !absl::SimpleAtoi(fields[2], &part.end) || !absl::SimpleAtoi(fields[3], &part.lines) ||
      part.Name() != name) {
    return std::nullopt;
  }
  return part;
}

StatusOr<std::vector<BatchPart>> FindBatchParts(FileSystem* fs, const std::string& directory,
                                                std::vector<std::string>* others) {
  std::vector<BatchPart> parts;
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs->GetChildren(directory));
  for (const std::string& name : names) {  // sorted, and so are the parts by their digits
    const std::optional<BatchPart> part = BatchPart::Of(name);
    if (part) {
      parts.push_back(*part);
    } else {
      others->push_back(name);
    }
  }
  return parts;
}

Status CheckBatchPartsFollow(const std::vector<BatchPart>& parts, const std::string& directory) {
  int64_t done = 0;
  for (const BatchPart& part : parts) {
    if (part.begin != done || part.end <= part.begin || part.lines < 0) {
      return absl::DataLossError(absl::StrCat(
          "'", JoinPath(directory, part.Name()),
          "': parts must follow each other, got a gap before it: row ", done, " is missing"));
    }
    done = part.end;
  }
  return absl::OkStatus();
}

StatusOr<BatchPartWriter> BatchPartWriter::Create(FileSystem* fs, const std::string& directory) {
  std::string path = JoinPath(directory, absl::StrCat("tmp-", RandomHexName()));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, fs->NewExclusiveFile(path));
  return BatchPartWriter(fs, directory, std::move(path), std::move(file));
}

BatchPartWriter::~BatchPartWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  fs_->DeleteFile(path_).IgnoreError();
}

Status BatchPartWriter::Append(absl::string_view lines) {
  bytes_ += static_cast<int64_t>(lines.size());
  return file_->Append(lines);
}

Status BatchPartWriter::Commit(const BatchPart& part) {
  MR_RETURN_IF_ERROR(file_->Sync());
  MR_RETURN_IF_ERROR(file_->Close());
  const std::string target = JoinPath(directory_, part.Name());
  if (fs_->FileExists(target)) return absl::OkStatus();  // the end of this deletes the file
  MR_RETURN_IF_ERROR(fs_->RenameFile(path_, target));
  file_.reset();
  return fs_->SyncDirectory(directory_);
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "data/new_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/random_bits.h"

namespace millrace::data {

NewFile::NewFile(FileSystem* fs, std::string path, std::string temporary,
                 std::unique_ptr<WritableFile> file)
    : fs_(fs), path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}

StatusOr<std::unique_ptr<NewFile>> NewFile::Create(FileSystem* fs, const std::string& path) {
  const std::string directory = Dirname(path);
  if (!directory.empty()) MR_RETURN_IF_ERROR(fs->RecursivelyCreateDirectory(directory));
  const std::string temporary = absl::StrCat(path, ".tmp", RandomHexName());
  MR_ASSIGN_OR_RETURN(auto file, fs->NewWritableFile(temporary));
  return std::unique_ptr<NewFile>(new NewFile(fs, path, temporary, std::move(file)));
}

NewFile::~NewFile() {
  if (committed_) return;
  file_ = nullptr;
  records_ = nullptr;
  fs_->DeleteFile(temporary_).IgnoreError();
}

Status NewFile::BeginRecords(Compression compression) {
  records_ = std::make_unique<RecordWriter>(std::move(file_), compression);
  return absl::OkStatus();
}

Status NewFile::Close() {
  if (records_ != nullptr) {
    const auto records = std::move(records_);
    MR_RETURN_IF_ERROR(records->Sync());
    return records->Close();
  }
  if (file_ == nullptr) return absl::OkStatus();
  const auto file = std::move(file_);
  MR_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

Status NewFile::Commit() {
  MR_RETURN_IF_ERROR(Close());
  MR_RETURN_IF_ERROR(fs_->RenameFile(temporary_, path_));
  committed_ = true;
  return fs_->SyncDirectory(Dirname(path_));
}

}  // namespace millrace::data

// SPDX-License-Identifier: Apache-2.0
#include "saver/event_reader.h"

#include <climits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace millrace {

StatusOr<std::vector<std::string>> EventFiles(FileSystem* fs, const std::string& directory) {
  MR_ASSIGN_OR_RETURN(std::vector<std::string> names, fs->GetChildren(directory));
  std::erase_if(names, [](const std::string& n) { return !absl::StrContains(n, "tfevents"); });
  for (std::string& name : names) name = JoinPath(directory, name);
  return names;
}

StatusOr<std::unique_ptr<EventReader>> EventReader::Open(FileSystem* fs, const std::string& path) {
  MR_ASSIGN_OR_RETURN(const bool is_directory, fs->IsDirectory(path));
  std::unique_ptr<EventReader> reader(new EventReader(fs, path, is_directory));
  if (!is_directory) MR_RETURN_IF_ERROR(reader->OpenAt(path, 0));
  return reader;
}

Status EventReader::OpenAt(const std::string& file, uint64_t offset) {
  // The size first: what comes between is read again.
  MR_ASSIGN_OR_RETURN(const uint64_t size, fs_->GetFileSize(file));
  MR_ASSIGN_OR_RETURN(reader_, RecordReader::Open(fs_, file, RecordCompression::kNone, offset));
  file_ = file;
  size_ = size;
  offset_ = offset;
  loss_ = absl::OkStatus();
  return absl::OkStatus();
}

StatusOr<bool> EventReader::Advance() {
  if (!file_.empty() && loss_.ok()) {
    const StatusOr<uint64_t> size = fs_->GetFileSize(file_);
    if (size.ok() && *size > size_) {
      MR_RETURN_IF_ERROR(OpenAt(file_, offset_));
      return true;
    }
  }
  if (is_directory_) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> files, EventFiles(fs_, path_));
    for (const std::string& file : files) {
      if (file <= file_) continue;
      const StatusOr<bool> is_directory = fs_->IsDirectory(file);
      // Deleted since it was listed, or a link to nothing.
      if (absl::IsNotFound(is_directory.status())) continue;
      MR_RETURN_IF_ERROR(is_directory.status());
      if (*is_directory) continue;
      const Status opened = OpenAt(file, 0);
      if (absl::IsNotFound(opened)) continue;
      MR_RETURN_IF_ERROR(opened);
      return true;
    }
  }
  return false;
}

StatusOr<tensorflow::Event> EventReader::Next() {
  for (;;) {
    if (reader_ == nullptr) {
      MR_ASSIGN_OR_RETURN(const bool more, Advance());
      if (!more && !loss_.ok()) return loss_;
      if (!more) {
        return absl::OutOfRangeError(absl::StrCat("Events '", path_, "': no more events"));
      }
    }
    const StatusOr<absl::string_view> record = reader_->Next();
    if (!record.ok()) {
      const bool is_end = absl::IsOutOfRange(record.status()) || reader_->is_cut();
      offset_ = reader_->offset();
      reader_ = nullptr;
      if (is_end) continue;
      loss_ = record.status();
      return loss_;
    }
    tensorflow::Event event;
    if (record->size() <= INT_MAX &&
        event.ParseFromArray(record->data(), static_cast<int>(record->size()))) {
      return event;
    }
    loss_ = absl::DataLossError(absl::StrCat("Records '", file_, "': the record before ",
                                             reader_->offset(), " must be an Event message, got ",
                                             record->size(), " bytes that are none"));
    reader_ = nullptr;
    return loss_;
  }
}

}  // namespace millrace

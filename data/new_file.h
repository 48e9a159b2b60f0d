// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_NEW_FILE_H_
#define MILLRACE_DATA_NEW_FILE_H_

// NewFile: a file that is there whole or not at all.
//
//   MR_ASSIGN_OR_RETURN(auto file, NewFile::Create(fs, "words.txt"));
//   MR_RETURN_IF_ERROR(file->Append("a\n"));
//   MR_RETURN_IF_ERROR(file->Commit());
//
// It is written under another name next to its own (`<path>.tmp<random>`) and renamed when it is on
// the device; without Commit nothing is left of it. Several files of one job are closed (Close)
// before the first is committed, so that what can fail has failed by then.
//
// Thread-safety: thread-compatible. Failure: the file system's.

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/compression.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"

namespace millrace::data {

class NewFile {
 public:
  // Makes the directory where it is missing.
  static StatusOr<std::unique_ptr<NewFile>> Create(FileSystem* fs, const std::string& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  const std::string& path() const { return path_; }
  Status Append(absl::string_view data) { return file_->Append(data); }
  // Instead of Append: records.
  Status BeginRecords(Compression compression);
  Status WriteRecord(absl::string_view record) { return records_->Write(record); }

  // All that was written is on the device.
  Status Close();
  // Closes, and gives it its name.
  Status Commit();

 private:
  NewFile(FileSystem* fs, std::string path, std::string temporary,
          std::unique_ptr<WritableFile> file);

  FileSystem* const fs_;
  const std::string path_, temporary_;
  std::unique_ptr<WritableFile> file_;  // null once it is closed or the record writer's
  std::unique_ptr<RecordWriter> records_;
  bool committed_ = false;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_NEW_FILE_H_

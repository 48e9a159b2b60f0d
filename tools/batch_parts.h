// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_PARTS_H_
#define MILLRACE_TOOLS_BATCH_PARTS_H_

// BatchPart: what a batch prediction has done of some rows that follow each other, in a file that
// is there whole or not at all:
//
//   DIR/part-BEGIN-END-LINES     rows [BEGIN, END) of all that are read
//   DIR/tmp-...                  somebody writes it
//
// A part is written once: a second task that has done the same rows leaves the first one's file.
//
// Thread-safety: thread-compatible; any number of processes. Failure: that of the files.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// Rows [begin, end) that were read, and how many lines they have: none for a blank row.
struct BatchPart {
  int64_t begin = 0, end = 0, lines = 0;

  std::string Name() const;
  static std::optional<BatchPart> Of(absl::string_view name);
};

// Those in `directory`, by their rows; in `others` the names that are no part's.
StatusOr<std::vector<BatchPart>> FindBatchParts(FileSystem* fs, const std::string& directory,
                                                std::vector<std::string>* others);
// DataLoss, which names `directory`, unless they have all rows from the first on, each once.
Status CheckBatchPartsFollow(const std::vector<BatchPart>& parts, const std::string& directory);

// A part's lines. Without a Commit there is nothing of it.
class BatchPartWriter {
 public:
  static StatusOr<BatchPartWriter> Create(FileSystem* fs, const std::string& directory);
  BatchPartWriter(BatchPartWriter&&) = default;
  BatchPartWriter& operator=(BatchPartWriter&&) = delete;
  ~BatchPartWriter();

  Status Append(absl::string_view lines);
  int64_t bytes() const { return bytes_; }
  // The last call.
  Status Commit(const BatchPart& part);

 private:
  BatchPartWriter(FileSystem* fs, std::string directory, std::string path,
                  std::unique_ptr<WritableFile> file)
      : fs_(fs), directory_(std::move(directory)), path_(std::move(path)), file_(std::move(file)) {}

  FileSystem* const fs_;
  const std::string directory_, path_;
  std::unique_ptr<WritableFile> file_;  // null: moved from, or committed
  int64_t bytes_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_PARTS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_EVENT_READER_H_
#define MILLRACE_SAVER_EVENT_READER_H_

// EventReader: the events of a file, or of all event files of a directory in the order of their
// names (which begin with their times), also while they grow.
//
//   MR_ASSIGN_OR_RETURN(auto events, EventReader::Open(fs, "run/eval"));
//   for (;;) {
//     StatusOr<tensorflow::Event> event = events->Next();
//     if (absl::IsOutOfRange(event.status())) break;   // later there may be more
//     MR_RETURN_IF_ERROR(event.status());
//     ...
//   }
//
// A record that is not whole at the end of a file is no error: its writer is not done with it, or
// died. A file is read to its end before the next one; what is added to it afterwards, next to a
// newer file, is not seen. One that is deleted before it is opened is passed over.
//
// The files are not trusted. Failure: OutOfRange at the end of what is there, and Next may be asked
// again; DataLoss with file and place for bytes that are wrong: the rest of that file is lost, and
// Next goes on with the next file or, in the last one, repeats the error.
//
// Thread-safety: one thread at a time.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/record.h"
#include "core/status.h"
#include "proto/event.pb.h"

namespace millrace {

// The event files of a directory ("tfevents" in their names), sorted. As GetChildren.
StatusOr<std::vector<std::string>> EventFiles(FileSystem* fs, const std::string& directory);

class EventReader {
 public:
  // NotFound when there is no such file or directory. `fs` outlives the reader.
  static StatusOr<std::unique_ptr<EventReader>> Open(FileSystem* fs, const std::string& path);

  StatusOr<tensorflow::Event> Next();

  // The file of the last event; "" before the first one.
  const std::string& file() const { return file_; }

 private:
  EventReader(FileSystem* fs, std::string path, bool is_directory)
      : fs_(fs), path_(std::move(path)), is_directory_(is_directory) {}

  // Opens the file anew when it has grown, or the next one. False: there is nothing more.
  StatusOr<bool> Advance();
  Status OpenAt(const std::string& file, uint64_t offset);

  FileSystem* const fs_;
  const std::string path_;
  const bool is_directory_;
  std::string file_;                      // its path
  uint64_t size_ = 0;                     // of the file when it was opened
  uint64_t offset_ = 0;                   // of the next record, when there is no reader
  Status loss_;                           // of this file
  std::unique_ptr<RecordReader> reader_;  // null at its end
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_EVENT_READER_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_EXTERNAL_SORT_H_
#define MILLRACE_DATA_EXTERNAL_SORT_H_

// ExternalSort: sorts byte strings, as many as the disk holds, in a bounded amount of memory.
//
//   ExternalSort sort({.max_bytes = 64 << 20, .directory = "work"});
//   MR_RETURN_IF_ERROR(sort.Add("b"));
//   MR_RETURN_IF_ERROR(sort.Add("a"));
//   MR_RETURN_IF_ERROR(sort.Finish());
//   while (true) {
//     MR_ASSIGN_OR_RETURN(const bool more, sort.Next());
//     if (!more) break;
//     Use(sort.record());  // "a", then "b"
//   }
//
// The order is that of the bytes, unsigned; equal records all come. PutOrderedString and
// PutOrderedUint (core/coding.h) make keys whose bytes are ordered as texts and numbers are.
//
// How: what does not fit is sorted and written as a run to a file of the directory; runs are merged
// at the end, kFanIn at a time. The files are deleted when they have been read, and by the
// destructor; what a killed process leaves is under names that begin with "sort-".
//
// Memory: max_bytes for records and their places (16 bytes each, and the copy while there come to
// be more) while they are added, kFanIn buffers of kMergeBytes while runs are merged, and the
// largest record. A single record may be larger than max_bytes.
//
// Thread-safety: thread-compatible. Failure: the file system's; DataLoss for a run that is not as
// it was written.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"

namespace millrace::data {

struct ExternalSortOptions {
  size_t max_bytes = size_t{256} << 20;
  std::string directory = ".";  // of the runs; made when it is needed
  FileSystem* file_system = FileSystem::Default();
};

class ExternalSort {
 public:
  static constexpr size_t kFanIn = 16;
  static constexpr size_t kMergeBytes = size_t{64} << 10;

  explicit ExternalSort(ExternalSortOptions options);
  ~ExternalSort();
  ExternalSort(const ExternalSort&) = delete;
  ExternalSort& operator=(const ExternalSort&) = delete;

  Status Add(absl::string_view record);
  // No more is added.
  Status Finish();
  // After Finish: the next record in order; false at the end.
  StatusOr<bool> Next();
  // Of the last Next; valid until the next.
  absl::string_view record() const { return record_; }

  int64_t num_records() const { return num_records_; }
  // Runs that were written, those of merges included.
  int64_t num_runs() const { return num_runs_; }

 private:
  class Run;
  class Merge;

  // Memory that is asked for at a time.
  size_t BlockBytes() const;
  // What memory there would be with `size` bytes more.
  size_t BytesWith(size_t size) const;
  StatusOr<std::string> NewRun();
  // Writes what is in memory.
  Status Spill();
  Status MergeRuns(size_t count);
  StatusOr<std::unique_ptr<Merge>> OpenMerge(size_t count);

  const ExternalSortOptions options_;
  std::vector<std::unique_ptr<char[]>> blocks_;
  char* free_ = nullptr;  // of the last block
  size_t free_bytes_ = 0, block_bytes_ = 0;
  std::vector<absl::string_view> records_;  // in the blocks
  size_t next_ = 0;                         // of those in memory, when there are no runs
  std::vector<std::string> paths_;          // of runs, oldest first
  std::unique_ptr<Merge> merge_;
  std::string name_;  // of the runs, without number
  int64_t num_records_ = 0, num_runs_ = 0;
  absl::string_view record_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_EXTERNAL_SORT_H_

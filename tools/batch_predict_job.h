// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_PREDICT_JOB_H_
#define MILLRACE_TOOLS_BATCH_PREDICT_JOB_H_

// A batch prediction: asks a model about every row of files, and writes a line for each.
//
//   OUT/prediction.results-00000-of-00003          predictions, as a server's reply has them
//   OUT/prediction.errors_stats-00000-of-00003     {"file": ..., "row": 7, "error": ...}
//
// Every row is in one of the two, once, in the order of files and rows; shard i has the i-th part
// of the rows. "row" counts from 1 within its file, without a header. When a batch fails, its rows
// are asked one by one, and those that fail alone are errors. A server that is away, overloaded or
// too slow, or does not let us in, is no row's fault: the job ends with its status.
//
// A restart goes on where the job stopped, also after kill -9 and a power cut. The unit is a part:
// the lines of some thousand rows, written to a temporary file, synced and renamed. One rename
// commits results and errors together, and a part's name says which rows it has:
//
//   OUT/.batch_predict/job.json                           what the job is; another one is refused
//   OUT/.batch_predict/parts/part-BEGIN-END-LINES         rows [BEGIN, END) of all that are read
//   OUT/.batch_predict/done.json                          the shards are whole
//
// The shards are made of the parts at the end, when their sizes are known; that is repeated as it
// is after a crash. (Lengths of growing shards in a journal would save the second writing, and need
// files that can be cut, which file systems of stores cannot do.) A restart of a finished job says
// what it did.
//
// Thread-safety: functions. Two processes: the second is refused by a lock, where the file system
// has one.
// Failure: InvalidArgument and FailedPrecondition for options and a directory of another job; the
// errors of files, a damaged one included: what was committed stays.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "tools/local_model.h"

namespace millrace {

enum class BatchRowFormat {
  kJson,     // a value in each line that is not blank (tools/instances.h)
  kCsv,      // a record: a value per input by the names of the columns; without names a string
  kRecords,  // TFRecord files: each record is a string, often a serialized Example
  kText,     // each line is a string
};

struct BatchPredictOptions {
  std::vector<std::string> inputs;  // patterns (data/matching_files.h)
  BatchRowFormat format = BatchRowFormat::kJson;
  // Of kCsv, as data/row_files.h has them.
  bool has_header = false;
  std::vector<std::string> columns = {};
  char field_delim = ',';

  std::string output_directory;
  int num_shards = 1;
  int batch_size = 64;
  // What is asked, in words: a restart must ask the same.
  std::string model = "";
  // A part is committed behind the batch that reaches one of these.
  int64_t part_rows = 10'000;
  int64_t part_bytes = int64_t{64} << 20;
  absl::Duration part_time = absl::Seconds(10);

  FileSystem* file_system = FileSystem::Posix();
  Clock* clock = Clock::Real();
};

struct BatchPredictSummary {
  int64_t results = 0, errors = 0;
  int64_t done_before = 0;  // of both, by earlier runs

  // "980 results and 20 errors; 400 of these rows were done before"
  std::string ToString() const;
};

StatusOr<BatchPredictSummary> RunBatchPredict(const BatchPredictOptions& options,
                                              const LocalModel& model);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_PREDICT_JOB_H_

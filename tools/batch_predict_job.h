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
// the lines of some thousand rows, written to a temporary file, synced and renamed
// (tools/batch_parts.h). One rename commits results and errors together, and a part's name says
// which rows it has. The shards are made of the parts at the end, when their sizes are known
// (tools/batch_directory.h). (Lengths of growing shards in a journal would save the second writing,
// and need files that can be cut, which file systems of stores cannot do.) A restart of a finished
// job says what it did.
//
// Several tasks, on machines that share OUT, do one job together (tools/batch_predict_tasks.h).
//
// Thread-safety: functions. Two processes that are no tasks, or the same task: the second is
// refused by a lock, where the file system has one.
// Failure: InvalidArgument and FailedPrecondition for options and a directory of another job; the
// errors of files, a damaged one included: what was committed stays. DeadlineExceeded for a task
// that has waited for others in vain.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "tools/batch_rows.h"
#include "tools/local_model.h"

namespace millrace {

// Which of several tasks this process is.
struct BatchPredictTask {
  int index = 0, num_tasks = 1;
  std::string name = "";  // "worker 1"; another one for each task
  // Work is taken from a task that shows no sign of life for so long. Longer than a call of the
  // model takes: otherwise work is done twice.
  absl::Duration takeover = absl::Seconds(60);
  // Without anything to do, until somebody has done a part. Longer than `takeover`.
  absl::Duration max_wait = absl::Hours(1);
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
  // What is asked, in words: a restart, and each task, must ask the same.
  std::string model = "";
  // A part is committed behind the batch that reaches one of these; with tasks, when it has exactly
  // part_rows.
  int64_t part_rows = 10'000;
  int64_t part_bytes = int64_t{64} << 20;
  absl::Duration part_time = absl::Seconds(10);
  // None: this process does it alone.
  std::optional<BatchPredictTask> task = {};

  FileSystem* file_system = FileSystem::Default();
  Clock* clock = Clock::Real();

  BatchRowsOptions Rows() const;
};

struct BatchPredictSummary {
  int64_t results = 0, errors = 0;
  int64_t done_before = 0;  // of both, by earlier runs
  // With several tasks: who says it, and how many rows it has done now.
  std::string task = "";
  int64_t own = 0;

  // "980 results and 20 errors; 400 of these rows were done before"; "...; 300 by worker 1 now".
  std::string ToString() const;
};

StatusOr<BatchPredictSummary> RunBatchPredict(const BatchPredictOptions& options,
                                              const LocalModel& model);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_PREDICT_JOB_H_

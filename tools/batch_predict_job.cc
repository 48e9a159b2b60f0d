// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_predict_job.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/row_files.h"
#include "nlohmann/json.hpp"
#include "tools/batch_directory.h"
#include "tools/batch_parts.h"
#include "tools/batch_predict_tasks.h"

namespace millrace {
namespace {

using nlohmann::ordered_json;

constexpr int kMaxShards = 99'999;  // what five digits can name

// What the job is, so that a restart and all tasks do the same.
StatusOr<std::string> JobText(const BatchPredictOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                      data::FindFiles(options.file_system, options.inputs));
  ordered_json inputs = ordered_json::array();
  for (const std::string& file : files) {
    MR_ASSIGN_OR_RETURN(const uint64_t bytes, options.file_system->GetFileSize(file));
    inputs.push_back({{"file", file}, {"bytes", bytes}});
  }
  ordered_json job = {{"model", options.model},
                      {"format", static_cast<int>(options.format)},
                      {"has_header", options.has_header},
                      {"columns", options.columns},
                      {"field_delim", std::string(1, options.field_delim)},
                      {"num_shards", options.num_shards},
                      {"inputs", inputs}};
  if (options.task) {
    job["num_tasks"] = options.task->num_tasks;
    job["part_rows"] = options.part_rows;
  }
  return absl::StrCat(job.dump(2, ' ', false, ordered_json::error_handler_t::replace), "\n");
}

// By this process alone.
class BatchPredictJob {
 public:
  BatchPredictJob(const BatchPredictOptions& options, const LocalModel& model,
                  const BatchDirectory& directory)
      : options_(options), model_(model), directory_(directory), fs_(options.file_system) {}

  StatusOr<BatchPredictSummary> Run() {
    MR_RETURN_IF_ERROR(directory_.Create());
    const StatusOr<std::unique_ptr<FileLock>> lock = directory_.TryLock("lock", "batch_predict");
    if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();
    MR_RETURN_IF_ERROR(directory_.Begin());
    MR_ASSIGN_OR_RETURN(std::optional<BatchLineCounts> done, directory_.Finished());
    int64_t done_before = done ? done->results + done->errors : 0;
    if (!done) {
      MR_RETURN_IF_ERROR(FindParts());
      for (const BatchPart& part : parts_) done_before += part.lines;
      MR_RETURN_IF_ERROR(AskAll());
      MR_ASSIGN_OR_RETURN(done, directory_.WriteShards(parts_, [] {}));
    }
    directory_.Clear();
    return BatchPredictSummary{
        .results = done->results, .errors = done->errors, .done_before = done_before};
  }

 private:
  // Those of earlier runs, which follow each other without a gap; deletes what is half written.
  Status FindParts() {
    MR_RETURN_IF_ERROR(directory_.CreateParts(/*claimed=*/false));
    std::vector<std::string> others;
    MR_ASSIGN_OR_RETURN(parts_, FindBatchParts(fs_, directory_.parts(), &others));
    for (const std::string& name : others) {
      MR_RETURN_IF_ERROR(fs_->DeleteFile(JoinPath(directory_.parts(), name)));
    }
    return CheckBatchPartsFollow(parts_, directory_.parts());
  }
  int64_t RowsDone() const { return parts_.empty() ? 0 : parts_.back().end; }

  Status AskAll() {
    MR_ASSIGN_OR_RETURN(BatchRows rows, BatchRows::Open(options_.Rows(), model_));
    std::optional<BatchRow> row;
    while (rows.num_read() < RowsDone()) {
      MR_ASSIGN_OR_RETURN(const bool more, rows.Next(&row));
      if (more) continue;
      return absl::DataLossError(absl::StrCat("The inputs must have the ", RowsDone(),
                                              " rows that are done, got ", rows.num_read()));
    }
    bool more = true;
    while (more) MR_RETURN_IF_ERROR(AskPart(&rows, &more));
    return absl::OkStatus();
  }

  // The next one; `more`: there may be others behind it.
  Status AskPart(BatchRows* rows, bool* more) {
    MR_ASSIGN_OR_RETURN(BatchPartWriter writer, BatchPartWriter::Create(fs_, directory_.parts()));
    const absl::Time begun = options_.clock->Now();
    BatchPart part = {.begin = RowsDone()};
    std::vector<BatchRow> batch;
    std::optional<BatchRow> row;
    while (true) {
      MR_ASSIGN_OR_RETURN(*more, rows->Next(&row));
      if (row) batch.push_back(*std::move(row));
      if (*more && batch.size() < static_cast<size_t>(options_.batch_size)) continue;
      std::string lines;
      MR_RETURN_IF_ERROR(AskBatchRows(
          batch, rows->are_json(), model_, [] {}, &lines));
      MR_RETURN_IF_ERROR(writer.Append(lines));
      part.lines += static_cast<int64_t>(batch.size());
      batch.clear();
      part.end = rows->num_read();
      if (!*more || part.end - part.begin >= options_.part_rows ||
          writer.bytes() >= options_.part_bytes ||
          options_.clock->Now() - begun >= options_.part_time) {
        break;
      }
    }
    if (part.end == part.begin) return absl::OkStatus();
    MR_RETURN_IF_ERROR(writer.Commit(part));
    parts_.push_back(part);
    return absl::OkStatus();
  }

  const BatchPredictOptions& options_;
  const LocalModel& model_;
  const BatchDirectory& directory_;
  FileSystem* const fs_;
  std::vector<BatchPart> parts_;
};

Status CheckTask(const BatchPredictTask& task) {
  if (task.num_tasks < 1 || task.index < 0 || task.index >= task.num_tasks) {
    return InvalidArgument("batch_predict: the task's index must be in [0, ", task.num_tasks,
                           "), the number of tasks, got ", task.index);
  }
  if (task.takeover <= absl::ZeroDuration() || task.max_wait <= task.takeover) {
    return InvalidArgument(
        "batch_predict: the time after which a task takes over must be > 0, and the longest wait "
        "longer than it, got ",
        absl::FormatDuration(task.takeover), " and ", absl::FormatDuration(task.max_wait));
  }
  return absl::OkStatus();
}

}  // namespace

BatchRowsOptions BatchPredictOptions::Rows() const {
  return {.inputs = inputs,
          .format = format,
          .has_header = has_header,
          .columns = columns,
          .field_delim = field_delim,
          .file_system = file_system};
}

std::string BatchPredictSummary::ToString() const {
  return absl::StrCat(
      results, " results and ", errors, " errors",
      done_before == 0 ? "" : absl::StrCat("; ", done_before, " of these rows were done before"),
      task.empty() ? "" : absl::StrCat("; ", own, " by ", task, " now"));
}

StatusOr<BatchPredictSummary> RunBatchPredict(const BatchPredictOptions& options,
                                              const LocalModel& model) {
  if (options.batch_size < 1 || options.part_rows < 1 || options.num_shards < 1 ||
      options.num_shards > kMaxShards) {
    return InvalidArgument(
        "batch_predict: batch_size and part_rows must be >= 1, num_shards in [1, ", kMaxShards,
        "], got ", options.batch_size, ", ", options.part_rows, " and ", options.num_shards);
  }
  if (options.task) MR_RETURN_IF_ERROR(CheckTask(*options.task));
  MR_RETURN_IF_ERROR(CheckBatchRowInputs(options.Rows(), model));
  MR_ASSIGN_OR_RETURN(std::string job, JobText(options));
  const BatchDirectory directory(options.file_system, options.output_directory, std::move(job),
                                 options.num_shards);
  if (options.task) return RunBatchPredictTask(options, model, directory);
  return BatchPredictJob(options, model, directory).Run();
}

}  // namespace millrace

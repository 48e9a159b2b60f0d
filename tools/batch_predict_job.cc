// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_predict_job.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "data/row_files.h"
#include "formats/json_value.h"
#include "nlohmann/json.hpp"
#include "saver/loaded_model.h"
#include "tools/instances.h"
#include "tools/prediction_table.h"

namespace millrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr char kState[] = ".batch_predict", kParts[] = "parts";
constexpr char kResults[] = "prediction.results", kErrors[] = "prediction.errors_stats";
// How a line of a part begins: which of the two files it is for.
constexpr char kResultMark = 'r', kErrorMark = 'e';
constexpr int kMaxShards = 99'999;  // what five digits can name

// --- Rows ----------------------------------------------------------------------------------------

struct Row {
  std::string file;
  int64_t number = 0;  // in its file, from 1
  std::string text = "";
  Status error;  // it is no row
};

// The rows of all files, and of each what the model is asked.
class BatchRows {
 public:
  static StatusOr<BatchRows> Open(const BatchPredictOptions& options, const LocalModel& model) {
    data::RowFilesOptions of_files = {.has_header = options.has_header,
                                      .columns = options.columns,
                                      .file_system = options.file_system};
    of_files.field_delim = options.field_delim;
    if (options.format == BatchRowFormat::kCsv) of_files.format = data::RowFormat::kCsv;
    if (options.format == BatchRowFormat::kRecords) of_files.format = data::RowFormat::kExamples;
    MR_ASSIGN_OR_RETURN(auto rows, data::RowFiles::Open(options.inputs, std::move(of_files)));
    return BatchRows(options.format, std::move(rows), &model);
  }

  // False at the end. Of a row that is blank, and no instance, there is none.
  StatusOr<bool> Next(std::optional<Row>* row) {
    row->reset();
    const StatusOr<bool> more = rows_->Next();
    if (!more.ok() && !rows_->row_is_bad()) return more.status();
    if (more.ok() && !*more) return false;
    ++num_read_;
    if (rows_->file() != file_) {
      file_ = rows_->file();
      number_ = 0;
    }
    ++number_;
    Row next = {.file = file_, .number = number_, .error = more.status()};
    if (next.error.ok()) {
      if (format_ == BatchRowFormat::kCsv && !rows_->columns().empty()) {
        next.text = JsonOfFields();
      } else {
        absl::string_view text = rows_->row();
        if (format_ == BatchRowFormat::kJson) {
          text = absl::StripAsciiWhitespace(text);
          if (text.empty()) return true;
        }
        next.text = std::string(text);
      }
    }
    *row = std::move(next);
    return true;
  }

  // Rows are values of JSON, or else strings.
  bool are_json() const {
    return format_ == BatchRowFormat::kJson ||
           (format_ == BatchRowFormat::kCsv && !rows_->columns().empty());
  }
  int64_t num_read() const { return num_read_; }

 private:
  BatchRows(BatchRowFormat format, std::unique_ptr<data::RowFiles> rows, const LocalModel* model)
      : format_(format), rows_(std::move(rows)), model_(model) {}

  // {"age": 25, "workclass": " Private"}: numbers where the model takes numbers.
  std::string JsonOfFields() const {
    json object = json::object();
    for (size_t i = 0; i < rows_->fields().size(); ++i) {
      const std::string& column = rows_->columns()[i];
      const std::string& field = rows_->fields()[i];
      const auto input = model_->inputs.find(column);
      json value;
      if (input != model_->inputs.end() && input->second.dtype() != DT_STRING) {
        value = json::parse(absl::StripAsciiWhitespace(field), nullptr, /*allow_exceptions=*/false);
      }
      // What is no number is told by what reads the instance.
      if (!value.is_number() && !value.is_boolean()) value = json(ToJson(field));
      object[column] = std::move(value);
    }
    return object.dump();
  }

  BatchRowFormat format_;
  std::unique_ptr<data::RowFiles> rows_;
  const LocalModel* model_;
  std::string file_;
  int64_t number_ = 0, num_read_ = 0;
};

// --- Questions -----------------------------------------------------------------------------------

// No row's fault: the whole job ends.
bool EndsJob(const Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kResourceExhausted:
      return true;
    default:
      return absl::StartsWith(status.message(), "Servable not found for request");
  }
}

// A line for each row.
StatusOr<std::vector<std::string>> AskedTogether(absl::Span<const Row* const> rows, bool are_json,
                                                 const LocalModel& model) {
  Instances instances;
  if (are_json) {
    std::string lines;
    for (const Row* row : rows) absl::StrAppend(&lines, row->text, "\n");
    MR_ASSIGN_OR_RETURN(instances, JsonInstances(lines, model.inputs));
  } else {
    std::vector<std::string> strings;
    for (const Row* row : rows) strings.push_back(row->text);
    MR_ASSIGN_OR_RETURN(instances, StringInstances(std::move(strings), model.inputs));
  }
  MR_ASSIGN_OR_RETURN(const NamedTensors outputs, model.predict(instances.inputs));
  return PredictionLines(outputs, instances.count);
}

std::string ErrorLine(const Row& row, const Status& error) {
  absl::string_view message = error.message();
  absl::ConsumePrefix(&message, "line 1: ");  // of the row alone
  const ordered_json line = {
      {"file", row.file},
      {"row", row.number},
      {"error", absl::StrCat(absl::StatusCodeToString(error.code()), ": ", message)}};
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

// Appends the marked line of each row, in their order.
Status AskRows(absl::Span<const Row> rows, bool are_json, const LocalModel& model,
               std::string* lines) {
  std::vector<const Row*> good;
  for (const Row& row : rows) {
    if (row.error.ok()) good.push_back(&row);
  }
  std::vector<std::string> together;
  if (!good.empty()) {
    StatusOr<std::vector<std::string>> asked = AskedTogether(good, are_json, model);
    if (asked.ok()) {
      together = *std::move(asked);
    } else if (EndsJob(asked.status()) && !absl::IsResourceExhausted(asked.status())) {
      return asked.status();
    }
  }
  size_t at = 0;
  for (const Row& row : rows) {
    Status error = row.error;
    std::string result;
    if (error.ok() && !together.empty()) {
      result = std::move(together[at++]);
    } else if (error.ok()) {
      const Row* const alone[] = {&row};
      StatusOr<std::vector<std::string>> asked = AskedTogether(alone, are_json, model);
      if (asked.ok()) {
        result = std::move((*asked)[0]);
      } else {
        error = asked.status();
        if (EndsJob(error)) return error;
      }
    }
    lines->push_back(error.ok() ? kResultMark : kErrorMark);
    absl::StrAppend(lines, error.ok() ? result : ErrorLine(row, error), "\n");
  }
  return absl::OkStatus();
}

// --- Progress ------------------------------------------------------------------------------------

// Rows [begin, end) that were read, and how many lines they have.
struct Part {
  int64_t begin = 0, end = 0, lines = 0;

  std::string Name() const { return absl::StrFormat("part-%015d-%015d-%d", begin, end, lines); }
  static std::optional<Part> Of(absl::string_view name) {
    const std::vector<absl::string_view> fields = absl::StrSplit(name, '-');
    Part part;
    if (fields.size() != 4 || fields[0] != "part" || !absl::SimpleAtoi(fields[1], &part.begin) ||
        !absl::SimpleAtoi(fields[2], &part.end) || !absl::SimpleAtoi(fields[3], &part.lines) ||
        part.Name() != name) {
      return std::nullopt;
    }
    return part;
  }
};

std::string ShardName(absl::string_view kind, int shard, int num_shards) {
  return absl::StrFormat("%s-%05d-of-%05d", kind, shard, num_shards);
}

class BatchPredictJob {
 public:
  BatchPredictJob(const BatchPredictOptions& options, const LocalModel& model)
      : options_(options),
        model_(model),
        fs_(options.file_system),
        state_(JoinPath(options.output_directory, kState)),
        parts_directory_(JoinPath(state_, kParts)) {}

  StatusOr<BatchPredictSummary> Run() {
    MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(state_));
    const StatusOr<std::unique_ptr<FileLock>> lock =
        fs_->TryLockFile(JoinPath(state_, "lock"), "batch_predict");
    if (!lock.ok() && !absl::IsUnimplemented(lock.status())) return lock.status();
    MR_RETURN_IF_ERROR(Begin());
    MR_ASSIGN_OR_RETURN(std::optional<BatchPredictSummary> done, Finished());
    if (!done) {
      MR_RETURN_IF_ERROR(FindParts());
      const int64_t done_before = NumLines();
      MR_RETURN_IF_ERROR(AskAll());
      MR_ASSIGN_OR_RETURN(done, WriteShards());
      done->done_before = done_before;
    }
    // Nothing needs them any more; what a crash leaves goes with the next run.
    fs_->RecursivelyDelete(parts_directory_).IgnoreError();
    return *done;
  }

 private:
  // What the job is, so that a restart goes on with the same.
  StatusOr<std::string> Description() const {
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                        data::FindFiles(fs_, options_.inputs));
    ordered_json inputs = ordered_json::array();
    for (const std::string& file : files) {
      MR_ASSIGN_OR_RETURN(const uint64_t bytes, fs_->GetFileSize(file));
      inputs.push_back({{"file", file}, {"bytes", bytes}});
    }
    const ordered_json job = {{"model", options_.model},
                              {"format", static_cast<int>(options_.format)},
                              {"has_header", options_.has_header},
                              {"columns", options_.columns},
                              {"field_delim", std::string(1, options_.field_delim)},
                              {"num_shards", options_.num_shards},
                              {"inputs", inputs}};
    return absl::StrCat(job.dump(2, ' ', false, ordered_json::error_handler_t::replace), "\n");
  }

  // Takes the directory for this job, or finds that it has it.
  Status Begin() {
    MR_ASSIGN_OR_RETURN(const std::string job, Description());
    const std::string path = JoinPath(state_, "job.json");
    if (fs_->FileExists(path)) {
      MR_ASSIGN_OR_RETURN(const std::string before, ReadFileToString(fs_, path));
      if (before == job) return absl::OkStatus();
      return FailedPrecondition("'", options_.output_directory,
                                "': it must be of the same model, inputs, format and number of "
                                "shards, got another job's ('",
                                path, "'); delete it, or write elsewhere");
    }
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                        fs_->GetChildren(options_.output_directory));
    for (const std::string& name : names) {
      if (!absl::StartsWith(name, kResults) && !absl::StartsWith(name, kErrors)) continue;
      return FailedPrecondition("'", options_.output_directory,
                                "': it must have no predictions yet, got '", name, "'");
    }
    // The directory's name must last as long as the shards next to it.
    MR_RETURN_IF_ERROR(WriteFileAtomically(fs_, path, job));
    return fs_->SyncDirectory(options_.output_directory);
  }

  // What an earlier run has said at its end.
  StatusOr<std::optional<BatchPredictSummary>> Finished() const {
    const std::string path = JoinPath(state_, "done.json");
    if (!fs_->FileExists(path)) return std::optional<BatchPredictSummary>();
    MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs_, path));
    const json done = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!done.is_object() || !done.contains("results") || !done["results"].is_number_integer() ||
        !done.contains("errors") || !done["errors"].is_number_integer()) {
      return absl::DataLossError(
          absl::StrCat("'", path, "': it must have the numbers of results and errors, got '",
                       absl::string_view(text).substr(0, 60), "'"));
    }
    BatchPredictSummary summary = {.results = done["results"].get<int64_t>(),
                                   .errors = done["errors"].get<int64_t>()};
    summary.done_before = summary.results + summary.errors;
    return std::optional<BatchPredictSummary>(summary);
  }

  // Those of earlier runs, which follow each other without a gap; deletes what is half written.
  Status FindParts() {
    MR_RETURN_IF_ERROR(fs_->RecursivelyCreateDirectory(parts_directory_));
    MR_RETURN_IF_ERROR(fs_->SyncDirectory(state_));
    MR_ASSIGN_OR_RETURN(const std::vector<std::string> names, fs_->GetChildren(parts_directory_));
    for (const std::string& name : names) {  // sorted, and so are the parts by their digits
      const std::optional<Part> part = Part::Of(name);
      if (!part) {
        MR_RETURN_IF_ERROR(fs_->DeleteFile(JoinPath(parts_directory_, name)));
        continue;
      }
      if (part->begin != RowsDone() || part->end <= part->begin || part->lines < 0) {
        return absl::DataLossError(absl::StrCat("'", JoinPath(parts_directory_, name),
                                                "': parts must follow each other, got a gap before "
                                                "it: row ",
                                                RowsDone(), " is missing"));
      }
      parts_.push_back(*part);
    }
    return absl::OkStatus();
  }
  int64_t RowsDone() const { return parts_.empty() ? 0 : parts_.back().end; }
  int64_t NumLines() const {
    int64_t lines = 0;
    for (const Part& part : parts_) lines += part.lines;
    return lines;
  }

  Status AskAll() {
    MR_ASSIGN_OR_RETURN(BatchRows rows, BatchRows::Open(options_, model_));
    std::optional<Row> row;
    while (rows.num_read() < RowsDone()) {
      MR_ASSIGN_OR_RETURN(const bool more, rows.Next(&row));
      if (more) continue;
      return absl::DataLossError(absl::StrCat("The inputs must have the ", RowsDone(),
                                              " rows that are done, got ", rows.num_read()));
    }
    std::vector<Row> batch;
    std::string lines;
    int64_t num_lines = 0;
    absl::Time begun = options_.clock->Now();
    while (true) {
      MR_ASSIGN_OR_RETURN(const bool more, rows.Next(&row));
      if (row) batch.push_back(*std::move(row));
      if (more && batch.size() < static_cast<size_t>(options_.batch_size)) continue;
      MR_RETURN_IF_ERROR(AskRows(batch, rows.are_json(), model_, &lines));
      num_lines += static_cast<int64_t>(batch.size());
      batch.clear();
      const Part part = {.begin = RowsDone(), .end = rows.num_read(), .lines = num_lines};
      if (part.end > part.begin && (!more || part.end - part.begin >= options_.part_rows ||
                                    static_cast<int64_t>(lines.size()) >= options_.part_bytes ||
                                    options_.clock->Now() - begun >= options_.part_time)) {
        MR_RETURN_IF_ERROR(
            WriteFileAtomically(fs_, JoinPath(parts_directory_, part.Name()), lines));
        parts_.push_back(part);
        lines.clear();
        num_lines = 0;
        begun = options_.clock->Now();
      }
      if (!more) return absl::OkStatus();
    }
  }

  // The two files of one shard, under other names until they are whole.
  struct Shard {
    std::unique_ptr<WritableFile> results, errors;
  };
  StatusOr<Shard> OpenShard() {
    Shard shard;
    MR_ASSIGN_OR_RETURN(shard.results, fs_->NewWritableFile(JoinPath(state_, kResults)));
    MR_ASSIGN_OR_RETURN(shard.errors, fs_->NewWritableFile(JoinPath(state_, kErrors)));
    return shard;
  }
  Status CloseShard(Shard shard, int number) {
    for (WritableFile* file : {shard.results.get(), shard.errors.get()}) {
      MR_RETURN_IF_ERROR(file->Sync());
      MR_RETURN_IF_ERROR(file->Close());
    }
    for (const char* kind : {kResults, kErrors}) {
      MR_RETURN_IF_ERROR(fs_->RenameFile(
          JoinPath(state_, kind),
          JoinPath(options_.output_directory, ShardName(kind, number, options_.num_shards))));
    }
    return absl::OkStatus();
  }

  StatusOr<BatchPredictSummary> WriteShards() {
    const int64_t total = NumLines();
    BatchPredictSummary summary;
    int number = 0;
    int64_t line_number = 0;
    MR_ASSIGN_OR_RETURN(Shard shard, OpenShard());
    const auto end_of_shard = [&] { return total * (number + 1) / options_.num_shards; };
    for (const Part& part : parts_) {
      const std::string path = JoinPath(parts_directory_, part.Name());
      MR_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(fs_, path));
      int64_t lines = 0;
      for (absl::string_view left = text; !left.empty(); ++lines, ++line_number) {
        const size_t end = left.find('\n');
        if (end == absl::string_view::npos || end == 0 || lines == part.lines) {
          return absl::DataLossError(
              absl::StrCat("'", path, "': it must have ", part.lines, " whole lines, got others"));
        }
        while (line_number >= end_of_shard()) {
          MR_RETURN_IF_ERROR(CloseShard(std::move(shard), number));
          ++number;
          MR_ASSIGN_OR_RETURN(shard, OpenShard());
        }
        const bool is_result = left[0] == kResultMark;
        (is_result ? summary.results : summary.errors) += 1;
        WritableFile* const file = is_result ? shard.results.get() : shard.errors.get();
        MR_RETURN_IF_ERROR(file->Append(left.substr(1, end)));  // with its end
        left.remove_prefix(end + 1);
      }
      if (lines != part.lines) {
        return absl::DataLossError(
            absl::StrCat("'", path, "': it must have ", part.lines, " lines, got ", lines));
      }
    }
    while (true) {  // the rest have no rows
      MR_RETURN_IF_ERROR(CloseShard(std::move(shard), number));
      if (++number == options_.num_shards) break;
      MR_ASSIGN_OR_RETURN(shard, OpenShard());
    }
    MR_RETURN_IF_ERROR(fs_->SyncDirectory(options_.output_directory));
    const ordered_json done = {{"results", summary.results}, {"errors", summary.errors}};
    MR_RETURN_IF_ERROR(
        WriteFileAtomically(fs_, JoinPath(state_, "done.json"), absl::StrCat(done.dump(), "\n")));
    return summary;
  }

  const BatchPredictOptions& options_;
  const LocalModel& model_;
  FileSystem* const fs_;
  const std::string state_, parts_directory_;
  std::vector<Part> parts_;
};

// A signature of strings, for rows that are.
Status CheckInputs(const BatchPredictOptions& options, const LocalModel& model) {
  const bool are_strings =
      options.format == BatchRowFormat::kText || options.format == BatchRowFormat::kRecords ||
      (options.format == BatchRowFormat::kCsv && !options.has_header && options.columns.empty());
  return are_strings ? StringInstances({}, model.inputs).status() : absl::OkStatus();
}

}  // namespace

std::string BatchPredictSummary::ToString() const {
  return absl::StrCat(
      results, " results and ", errors, " errors",
      done_before == 0 ? "" : absl::StrCat("; ", done_before, " of these rows were done before"));
}

StatusOr<BatchPredictSummary> RunBatchPredict(const BatchPredictOptions& options,
                                              const LocalModel& model) {
  if (options.batch_size < 1 || options.part_rows < 1 || options.num_shards < 1 ||
      options.num_shards > kMaxShards) {
    return InvalidArgument(
        "batch_predict: batch_size and part_rows must be >= 1, num_shards in [1, ", kMaxShards,
        "], got ", options.batch_size, ", ", options.part_rows, " and ", options.num_shards);
  }
  MR_RETURN_IF_ERROR(CheckInputs(options, model));
  return BatchPredictJob(options, model).Run();
}

}  // namespace millrace

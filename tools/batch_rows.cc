// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_rows.h"

#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/dtype.h"
#include "formats/json_value.h"
#include "nlohmann/json.hpp"
#include "saver/loaded_model.h"
#include "tools/instances.h"
#include "tools/prediction_table.h"

namespace millrace {

using nlohmann::json;
using nlohmann::ordered_json;

StatusOr<BatchRows> BatchRows::Open(const BatchRowsOptions& options, const LocalModel& model) {
  data::RowFilesOptions of_files = {.has_header = options.has_header,
                                    .columns = options.columns,
                                    .file_system = options.file_system};
  of_files.field_delim = options.field_delim;
  if (options.format == BatchRowFormat::kCsv) of_files.format = data::RowFormat::kCsv;
  if (options.format == BatchRowFormat::kRecords) of_files.format = data::RowFormat::kExamples;
  MR_ASSIGN_OR_RETURN(auto rows, data::RowFiles::Open(options.inputs, std::move(of_files)));
  return BatchRows(options.format, std::move(rows), &model);
}

StatusOr<bool> BatchRows::Next(std::optional<BatchRow>* row) {
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
  BatchRow next = {.file = file_, .number = number_, .error = more.status()};
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

bool BatchRows::are_json() const {
  return format_ == BatchRowFormat::kJson ||
         (format_ == BatchRowFormat::kCsv && !rows_->columns().empty());
}

std::string BatchRows::JsonOfFields() const {
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
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Status CheckBatchRowInputs(const BatchRowsOptions& options, const LocalModel& model) {
  const bool are_strings =
      options.format == BatchRowFormat::kText || options.format == BatchRowFormat::kRecords ||
      (options.format == BatchRowFormat::kCsv && !options.has_header && options.columns.empty());
  return are_strings ? StringInstances({}, model.inputs).status() : absl::OkStatus();
}

namespace {

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
StatusOr<std::vector<std::string>> AskedTogether(absl::Span<const BatchRow* const> rows,
                                                 bool are_json, const LocalModel& model) {
  Instances instances;
  if (are_json) {
    std::string lines;
    for (const BatchRow* row : rows) absl::StrAppend(&lines, row->text, "\n");
    MR_ASSIGN_OR_RETURN(instances, JsonInstances(lines, model.inputs));
  } else {
    std::vector<std::string> strings;
    for (const BatchRow* row : rows) strings.push_back(row->text);
    MR_ASSIGN_OR_RETURN(instances, StringInstances(std::move(strings), model.inputs));
  }
  MR_ASSIGN_OR_RETURN(const NamedTensors outputs, model.predict(instances.inputs));
  return PredictionLines(outputs, instances.count);
}

std::string ErrorLine(const BatchRow& row, const Status& error) {
  absl::string_view message = error.message();
  absl::ConsumePrefix(&message, "line 1: ");  // of the row alone
  const ordered_json line = {
      {"file", row.file},
      {"row", row.number},
      {"error", absl::StrCat(absl::StatusCodeToString(error.code()), ": ", message)}};
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

Status AskBatchRows(absl::Span<const BatchRow> rows, bool are_json, const LocalModel& model,
                    absl::FunctionRef<void()> after_call, std::string* lines) {
  std::vector<const BatchRow*> good;
  for (const BatchRow& row : rows) {
    if (row.error.ok()) good.push_back(&row);
  }
  std::vector<std::string> together;
  if (!good.empty()) {
    StatusOr<std::vector<std::string>> asked = AskedTogether(good, are_json, model);
    after_call();
    if (asked.ok()) {
      together = *std::move(asked);
    } else if (EndsJob(asked.status()) && !absl::IsResourceExhausted(asked.status())) {
      return asked.status();
    }
  }
  size_t at = 0;
  for (const BatchRow& row : rows) {
    Status error = row.error;
    std::string result;
    if (error.ok() && !together.empty()) {
      result = std::move(together[at++]);
    } else if (error.ok()) {
      const BatchRow* const alone[] = {&row};
      StatusOr<std::vector<std::string>> asked = AskedTogether(alone, are_json, model);
      after_call();
      if (asked.ok()) {
        result = std::move((*asked)[0]);
      } else {
        error = asked.status();
        if (EndsJob(error)) return error;
      }
    }
    lines->push_back(error.ok() ? kBatchResultMark : kBatchErrorMark);
    absl::StrAppend(lines, error.ok() ? result : ErrorLine(row, error), "\n");
  }
  return absl::OkStatus();
}

}  // namespace millrace

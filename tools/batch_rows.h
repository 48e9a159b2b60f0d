// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_ROWS_H_
#define MILLRACE_TOOLS_BATCH_ROWS_H_

// BatchRows: the rows of all files of a batch prediction, in the order of files and rows.
// AskBatchRows: what a model says of some of them, a line for each.
//
// Thread-safety: thread-compatible. Failure: that of the files; AskBatchRows has that of a model
// that is away, overloaded or too slow, or does not let us in: no row's fault. What is wrong in a
// row is no error: it becomes that row's line.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/status.h"
#include "data/row_files.h"
#include "tools/local_model.h"

namespace millrace {

enum class BatchRowFormat {
  kJson,     // a value in each line that is not blank (tools/instances.h)
  kCsv,      // a record: a value per input by the names of the columns; without names a string
  kRecords,  // TFRecord files: each record is a string, often a serialized Example
  kText,     // each line is a string
};

struct BatchRowsOptions {
  std::vector<std::string> inputs;  // patterns (data/matching_files.h)
  BatchRowFormat format = BatchRowFormat::kJson;
  // Of kCsv, as data/row_files.h has them.
  bool has_header = false;
  std::vector<std::string> columns = {};
  char field_delim = ',';
  FileSystem* file_system = FileSystem::Default();
};

struct BatchRow {
  std::string file;
  int64_t number = 0;  // in its file, from 1, without a header
  std::string text = "";
  Status error;  // it is no row
};

class BatchRows {
 public:
  // `model` must outlive it.
  static StatusOr<BatchRows> Open(const BatchRowsOptions& options, const LocalModel& model);

  // False at the end. None of a row that is blank, and no instance.
  StatusOr<bool> Next(std::optional<BatchRow>* row);
  // Of all files, blank ones too.
  int64_t num_read() const { return num_read_; }
  // Rows are values of JSON, or else strings.
  bool are_json() const;

 private:
  BatchRows(BatchRowFormat format, std::unique_ptr<data::RowFiles> rows, const LocalModel* model)
      : format_(format), rows_(std::move(rows)), model_(model) {}
  // {"age": 25, "workclass": " Private"}: numbers where the model takes numbers.
  std::string JsonOfFields() const;

  BatchRowFormat format_;
  std::unique_ptr<data::RowFiles> rows_;
  const LocalModel* model_;
  std::string file_;
  int64_t number_ = 0, num_read_ = 0;
};

// Rows that are strings are for a signature of strings: InvalidArgument.
Status CheckBatchRowInputs(const BatchRowsOptions& options, const LocalModel& model);

// How a line begins: which of the two files it is for.
inline constexpr char kBatchResultMark = 'r', kBatchErrorMark = 'e';

// Appends the marked line of each row, in their order. When the model refuses them together, they
// are asked one by one, and those that fail alone are errors. `after_call`: after each call of the
// model.
Status AskBatchRows(absl::Span<const BatchRow> rows, bool are_json, const LocalModel& model,
                    absl::FunctionRef<void()> after_call, std::string* lines);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_ROWS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_CSV_H_
#define MILLRACE_DATA_CSV_H_

// DecodeCsv: text records as columns, by TensorFlow's rules (a dialect of RFC 4180).
// CsvDataset: the rows of CSV files.
//
//   const CsvOptions columns = {
//       .defaults = {Tensor::Scalar(int64_t{0}), Tensor::Scalar("")},
//       .names = {"age", "workclass"}};
//   Dataset rows = CsvDataset({"census.csv"}, columns, {.has_header = true}).Batch(40);
//
// CsvDataset reads records that go on over lines inside quotes and checks headers
// (Dataset::CsvRecords), then decodes them. Lines of TextLines are records where no field has a
// newline.
//
// A record has one field per column, separated by `field_delim`. A field that is empty or equal to
// `na_value` takes the column's default; a column whose default has no elements is required. int32,
// int64, float and double fields may have blanks around them; strings keep theirs. Around a missing
// value there may be blanks in all of them; blanks alone are a missing number, and a text.
//
// With `use_quote_delim` a field may be quoted as a whole: then it may contain delimiters and
// newlines, and a doubled quote stands for one. Newlines before a field are skipped; elsewhere
// outside of quotes they are errors, as quotes are. A record without a character has no field.
//
// With `select_cols` only these columns (ascending, from 0) are parsed, and the record is not
// looked at behind the last of them.
//
// Batches are parsed as a whole, in the memory that the file was read to, on the threads of the
// arena; texts stay there until somebody needs a tensor of them. The first bad record is the one
// that is told, on any number of threads.
//
// Errors, in TensorFlow's words (f: which of the parsed fields; i: which record of the element,
// from 0), behind "column 'age': " where columns have names:
//   "Field f is required but missing in record i!"
//   "Field f in record i is not a valid int32: <text>"
//   "Expect n fields but have m in record i"
//   "Unquoted fields cannot have quotes/CRLFs inside"
//   "Quote inside a string has to be escaped by another quote"
//   "Quoted field has to end with quote followed by delim or end"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/block.h"
#include "data/dataset.h"  // IWYU pragma: export
#include "data/row_function.h"

namespace millrace {
class Arena;
class CsvCuts;  // formats/csv_cuts.h
}  // namespace millrace

namespace millrace::data {

struct CsvOptions {
  // One per column: its dtype, and its default in one element or none.
  std::vector<Tensor> defaults = {};
  std::vector<std::string> names = {};  // of the components; empty: none
  std::string field_delim = ",";        // one character
  bool use_quote_delim = true;
  std::string na_value = {};
  std::vector<int64_t> select_cols = {};  // empty: all
};

// Elements of one string component, of any shape; gives one component per column, of that shape.
// InvalidArgument for options that can never work.
StatusOr<std::shared_ptr<const RowFunction>> DecodeCsv(CsvOptions options);

struct CsvFileOptions {
  // The first record of each file names its columns, as CsvOptions::names says, each in its place
  // (that of select_cols, behind which there may be others). Without names it is not looked at.
  bool has_header = false;
  FileOptions file = {};
};

// The rows of CSV files, one after the other: Dataset::CsvRecords, then DecodeCsv.
Dataset CsvDataset(std::vector<std::string> paths, CsvOptions options, CsvFileOptions files = {});

// CsvParser: the same for records that are in memory. Immutable; any thread.
class CsvParser {
 public:
  static StatusOr<CsvParser> Make(CsvOptions options);

  size_t num_columns() const { return options_.defaults.size(); }
  DType dtype(size_t column) const { return options_.defaults[column].dtype(); }
  const CsvOptions& options() const { return options_; }

  // Column c of record i goes to element i of `columns[c]`, of dtype(c). Returns how many records
  // before the first bad one there are; its error is `*error`, where it is record number
  // `index % records_per_element`.
  int64_t Parse(absl::Span<const absl::string_view> records, int64_t records_per_element,
                Arena* arena, absl::Span<Tensor> columns, Status* error) const;
  // The same for elements of one record, of whose columns those of strings have no tensor: their
  // texts stay where they are, in the records, in this parser's defaults and in memory that is
  // added to the column's owners.
  int64_t ParseInPlace(absl::Span<const absl::string_view> records, Arena* arena,
                       absl::Span<Column> columns, Status* error) const;

 private:
  struct Target;  // where a column goes
  class Copies;
  explicit CsvParser(CsvOptions options);
  // Record number `index` of its element to element `at` of each column.
  Status ParseRecord(absl::string_view record, int64_t at, int64_t index,
                     absl::Span<const Target> targets, CsvCuts* cuts, Copies* copies) const;
  Status ParseByRules(absl::string_view record, int64_t at, int64_t index,
                      absl::Span<const Target> targets, Copies* copies) const;
  int64_t ParseTo(absl::Span<const absl::string_view> records, int64_t records_per_element,
                  Arena* arena, absl::Span<const Target> targets, std::vector<BufferRef>* owners,
                  Status* error) const;
  Status SetField(const Target& target, absl::string_view text, int64_t at, int64_t index) const;
  // The error with the column's name before it, where columns have names.
  Status OfColumn(size_t column, Status status) const;
  // Where SetField cannot at once: missing, or no value of the type.
  Status SetMissing(const Target& target, absl::string_view text, int64_t at, int64_t index) const;

  CsvOptions options_;
  char delim_;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_CSV_H_

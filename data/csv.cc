// SPDX-License-Identifier: Apache-2.0
#include "data/csv.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/arena.h"
#include "core/buffer.h"
#include "core/mutex.h"
#include "core/parse_number.h"
#include "data/block.h"
#include "formats/csv_cuts.h"
#include "formats/csv_fields.h"

namespace millrace::data {
namespace {

// A field costs about this much: what the arena cuts by.
constexpr double kFieldNs = 6;

// Of a header as far as it is looked at: select_cols may name a column that no file has.
constexpr size_t kMostNamedColumns = 1 << 16;

Status NotValid(size_t field, int64_t index, DType dtype, absl::string_view text) {
  const bool has_mark = absl::StartsWith(text, "\xef\xbb\xbf");
  return InvalidArgument("Field ", field, " in record ", index, " is not a valid ", dtype, ": ",
                         text, has_mark ? "; a byte order mark is in front of it" : "");
}

class CsvFunction : public RowFunction {
 public:
  explicit CsvFunction(CsvParser parser) : parser_(std::move(parser)) {}
  std::string Name() const override { return "DecodeCsv"; }

  StatusOr<ElementSpec> OutputSpec(const ElementSpec& input) const override {
    PartialShape shape;
    if (!input.empty()) {
      if (input.size() != 1 || input[0].dtype != DT_STRING) {
        return InvalidArgument("DecodeCsv: elements must be one string component, got ",
                               SpecText(input));
      }
      shape = input[0].shape;
    }
    ElementSpec spec;
    for (size_t c = 0; c < parser_.num_columns(); ++c) {
      const std::vector<std::string>& names = parser_.options().names;
      spec.push_back({parser_.dtype(c), shape, names.empty() ? std::string() : names[c]});
    }
    return spec;
  }

  StatusOr<Element> Call(const Element& element, Arena* arena) const override {
    if (element.size() != 1 || element[0].dtype() != DT_STRING) {
      return InvalidArgument("DecodeCsv: elements must be one string component, got ",
                             SpecText(SpecOf(element)));
    }
    const absl::Span<const std::string> texts = element[0].raw<std::string>();
    const std::vector<absl::string_view> records(texts.begin(), texts.end());
    MR_ASSIGN_OR_RETURN(Element columns, Columns(element[0].shape()));
    Status error;
    const int64_t all = static_cast<int64_t>(records.size());
    if (parser_.Parse(records, std::max<int64_t>(all, 1), arena, absl::MakeSpan(columns), &error) !=
        all) {
      return error;
    }
    return columns;
  }

  Status CallBlock(const Block& in, Arena* arena, Block* out, Status* error) const override {
    if (in.columns.size() != 1) {
      return InvalidArgument("DecodeCsv: elements must be one string component, got ",
                             in.columns.size());
    }
    const Column& column = in.columns[0];
    if (column.stacked.has_value() && column.stacked.dtype() != DT_STRING) {
      return InvalidArgument("DecodeCsv: elements must be strings, got ", column.stacked.dtype());
    }
    std::vector<absl::string_view> copied;
    if (column.stacked.has_value()) {
      const absl::Span<const std::string> texts = column.stacked.raw<std::string>();
      copied.assign(texts.begin(), texts.end());
    }
    const std::vector<absl::string_view>& records =
        column.stacked.has_value() ? copied : column.strings;
    out->rows = in.rows;
    if (column.stacked.has_value() && column.stacked.rank() != 1) {
      return CallElements(records, column.stacked.shape(), arena, out, error);
    }
    const Shape shape = Shape::Vector(records.size());
    out->columns.clear();
    for (size_t c = 0; c < parser_.num_columns(); ++c) {
      Column& made = out->columns.emplace_back();
      if (parser_.dtype(c) == DT_STRING) {
        made.owners = column.owners;
        if (column.stacked.has_value()) made.owners.push_back(column.stacked.buffer());
      } else {
        MR_ASSIGN_OR_RETURN(made.stacked, Tensor::Allocate(parser_.dtype(c), shape));
      }
    }
    out->rows = parser_.ParseInPlace(records, arena, absl::MakeSpan(out->columns), error);
    if (out->rows == in.rows) return absl::OkStatus();
    for (Column& made : out->columns) {
      if (made.stacked.has_value()) {
        made.stacked = made.stacked.Rows(0, out->rows);
      } else {
        made.strings.resize(static_cast<size_t>(out->rows));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Elements of several records: row by row, into tensors of `shape`.
  Status CallElements(absl::Span<const absl::string_view> records, const Shape& shape, Arena* arena,
                      Block* out, Status* error) const {
    MR_ASSIGN_OR_RETURN(Element columns, Columns(shape));
    const int64_t per_row = std::max<int64_t>(shape.NumElements(1, shape.rank()), 1);
    const int64_t good = parser_.Parse(records, per_row, arena, absl::MakeSpan(columns), error);
    const int64_t rows = out->rows;
    if (good < static_cast<int64_t>(records.size())) out->rows = good / per_row;
    out->columns.clear();
    for (Tensor& tensor : columns) {
      const bool whole = out->rows == rows;
      out->columns.push_back({.stacked = whole ? std::move(tensor) : tensor.Rows(0, out->rows)});
    }
    return absl::OkStatus();
  }

  StatusOr<Element> Columns(const Shape& shape) const {
    Element columns;
    for (size_t c = 0; c < parser_.num_columns(); ++c) {
      MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(parser_.dtype(c), shape));
      columns.push_back(std::move(tensor));
    }
    return columns;
  }

  const CsvParser parser_;
};

}  // namespace

CsvParser::CsvParser(CsvOptions options)
    : options_(std::move(options)), delim_(options_.field_delim[0]) {}

StatusOr<CsvParser> CsvParser::Make(CsvOptions options) {
  constexpr absl::string_view kWhere = "DecodeCsv";
  if (options.defaults.empty()) {
    return InvalidArgument(kWhere, ": there must be at least one column, got none");
  }
  for (size_t c = 0; c < options.defaults.size(); ++c) {
    const Tensor& value = options.defaults[c];
    switch (value.dtype()) {
      case DT_INT32:
      case DT_INT64:
      case DT_FLOAT:
      case DT_DOUBLE:
      case DT_STRING:
        break;
      default:
        return InvalidArgument(kWhere, ": the default of column ", c,
                               " must be int32, int64, float, double or string, got ",
                               value.dtype());
    }
    if (value.rank() > 1 || value.num_elements() > 1) {
      return InvalidArgument(kWhere, ": the default of column ", c,
                             " must have one element or none, got shape ", value.shape());
    }
  }
  if (!options.names.empty() && options.names.size() != options.defaults.size()) {
    return InvalidArgument(kWhere, ": there must be ", options.defaults.size(), " names, got ",
                           options.names.size());
  }
  if (options.field_delim.size() != 1) {
    return InvalidArgument(kWhere, ": field_delim must be one character, got '",
                           options.field_delim, "'");
  }
  const char delim = options.field_delim[0];
  if (delim == '\n' || delim == '\r' || (delim == '"' && options.use_quote_delim)) {
    return InvalidArgument(kWhere, ": field_delim must be no newline and no quote, got code ",
                           static_cast<int>(delim));
  }
  const std::vector<int64_t>& cols = options.select_cols;
  if (!cols.empty() && cols.size() != options.defaults.size()) {
    return InvalidArgument(kWhere, ": select_cols must name one column for each of ",
                           options.defaults.size(), " defaults, got ", cols.size());
  }
  for (size_t i = 0; i < cols.size(); ++i) {
    if (cols[i] < 0 || (i > 0 && cols[i] <= cols[i - 1])) {
      return InvalidArgument(kWhere, ": select_cols must be >= 0 and strictly increasing, got ",
                             cols[i], i > 0 ? absl::StrCat(" after ", cols[i - 1]) : "");
    }
  }
  // Vectors, as columns are.
  for (Tensor& value : options.defaults) {
    MR_ASSIGN_OR_RETURN(value,
                        value.Reshaped(Shape::Vector(static_cast<size_t>(value.num_elements()))));
  }
  return CsvParser(std::move(options));
}

struct CsvParser::Target {
  size_t column;
  DType dtype;
  const Tensor* standard;  // what missing fields are
  void* data;
  bool in_place = false;  // of strings: `data` are views

  template <typename T>
  T& at(int64_t i) const {
    return static_cast<T*>(data)[i];
  }
};

// The texts of one thread that no record has as they are: those with doubled quotes.
class CsvParser::Copies {
 public:
  explicit Copies(std::vector<BufferRef>* owners, Mutex* mu) : owners_(owners), mu_(mu) {}

  std::string* scratch() { return &scratch_; }
  // `text` where it stays: itself, unless it is in the scratch.
  StatusOr<absl::string_view> Kept(absl::string_view text) {
    if (text.data() != scratch_.data()) return text;
    if (room_ < text.size()) {
      const size_t size = std::max(kChunk, text.size());
      BufferRef chunk = Buffer::Allocate(DefaultAllocator(), size);
      if (!chunk) return absl::ResourceExhaustedError("DecodeCsv: there is no memory for a field");
      next_ = static_cast<char*>(chunk->data());
      room_ = size;
      MutexLock lock(mu_);
      owners_->push_back(std::move(chunk));
    }
    char* const to = next_;
    std::memcpy(to, text.data(), text.size());
    next_ += text.size();
    room_ -= text.size();
    return absl::string_view(to, text.size());
  }

 private:
  static constexpr size_t kChunk = 4096;

  std::string scratch_;
  std::vector<BufferRef>* const owners_;
  Mutex* const mu_;  // for *owners_
  char* next_ = nullptr;
  size_t room_ = 0;
};

Status CsvParser::OfColumn(size_t column, Status status) const {
  if (options_.names.empty()) return status;
  return Prefixed(absl::StrCat("column '", options_.names[column], "'"), status);
}

Status CsvParser::SetMissing(const Target& target, absl::string_view text, int64_t at,
                             int64_t index) const {
  if (!IsMissingField(text, options_.na_value, target.dtype == DT_STRING)) {
    return OfColumn(target.column, NotValid(target.column, index, target.dtype, text));
  }
  if (target.standard->num_elements() == 0) {
    return OfColumn(target.column,
                    InvalidArgument("Field ", target.column, " is required but missing in record ",
                                    index, "!"));
  }
  switch (target.dtype) {
    case DT_INT32:
      target.at<int32_t>(at) = target.standard->raw_scalar<int32_t>();
      break;
    case DT_INT64:
      target.at<int64_t>(at) = target.standard->raw_scalar<int64_t>();
      break;
    case DT_FLOAT:
      target.at<float>(at) = target.standard->raw_scalar<float>();
      break;
    case DT_DOUBLE:
      target.at<double>(at) = target.standard->raw_scalar<double>();
      break;
    default:
      if (target.in_place) {
        target.at<absl::string_view>(at) = target.standard->raw_scalar<std::string>();
      } else {
        target.at<std::string>(at) = target.standard->raw_scalar<std::string>();
      }
  }
  return absl::OkStatus();
}

inline Status CsvParser::SetField(const Target& target, absl::string_view text, int64_t at,
                                  int64_t index) const {
  bool is_set = false;
  if (!text.empty() && text != options_.na_value) {
    switch (target.dtype) {
      case DT_INT32:
        is_set = ParseNumber(text, &target.at<int32_t>(at));
        break;
      case DT_INT64:
        is_set = ParseNumber(text, &target.at<int64_t>(at));
        break;
      case DT_FLOAT:
        is_set = ParseNumber(text, &target.at<float>(at));
        break;
      case DT_DOUBLE:
        is_set = ParseNumber(text, &target.at<double>(at));
        break;
      default:
        if (!options_.na_value.empty() && IsMissingField(text, options_.na_value, true)) break;
        if (target.in_place) {
          target.at<absl::string_view>(at) = text;
        } else {
          target.at<std::string>(at).assign(text.data(), text.size());
        }
        is_set = true;
    }
  }
  return is_set ? absl::OkStatus() : SetMissing(target, text, at, index);
}

Status CsvParser::ParseRecord(absl::string_view record, int64_t at, int64_t index,
                              absl::Span<const Target> targets, CsvCuts* cuts,
                              Copies* copies) const {
  const size_t fields = record.empty() ? 0 : cuts->Cut(record);
  if (fields == 0) return ParseByRules(record, at, index, targets, copies);
  const std::vector<int64_t>& cols = options_.select_cols;
  const size_t wanted = cols.empty() ? targets.size() : static_cast<size_t>(cols.back()) + 1;
  // What is wrong with it is told where the rules are.
  if (cols.empty() ? fields != wanted : fields < wanted) {
    return ParseByRules(record, at, index, targets, copies);
  }
  size_t begin = 0;
  for (size_t c = 0; c < targets.size(); ++c) {
    size_t field = c;
    if (!cols.empty()) {
      field = static_cast<size_t>(cols[c]);
      if (field > 0) begin = cuts->end(field - 1) + 1;
    }
    const size_t end = cuts->end(field);
    Status status = SetField(targets[c], record.substr(begin, end - begin), at, index);
    if (!status.ok()) return status;
    begin = end + 1;
  }
  return absl::OkStatus();
}

Status CsvParser::ParseByRules(absl::string_view record, int64_t at, int64_t index,
                               absl::Span<const Target> targets, Copies* copies) const {
  CsvFields fields(record, delim_, options_.use_quote_delim, copies->scratch());
  const std::vector<int64_t>& cols = options_.select_cols;
  size_t parsed = 0;   // fields that go to a column
  Status first_error;  // of a value: a wrong number of fields, or a bad quote, comes before it
  absl::string_view text;
  for (int64_t field = 0; cols.empty() || parsed < cols.size(); ++field) {
    const StatusOr<bool> more = fields.Next(&text);
    const bool is_wanted = cols.empty() ? parsed < targets.size() : cols[parsed] == field;
    if (!more.ok()) return is_wanted ? OfColumn(parsed, more.status()) : more.status();
    if (!*more) break;
    if (!cols.empty() && !is_wanted) continue;
    if (parsed < targets.size() && first_error.ok()) {
      const Target& target = targets[parsed];
      if (target.in_place) {
        MR_ASSIGN_OR_RETURN(text, copies->Kept(text));
      }
      first_error = SetField(target, text, at, index);
    }
    ++parsed;
  }
  if (parsed != targets.size()) {
    const bool has_name = parsed < options_.names.size();
    return InvalidArgument(
        "Expect ", targets.size(), " fields but have ", parsed, " in record ", index,
        has_name ? absl::StrCat("; column '", options_.names[parsed], "' is missing") : "");
  }
  return first_error;
}

int64_t CsvParser::Parse(absl::Span<const absl::string_view> records, int64_t records_per_element,
                         Arena* arena, absl::Span<Tensor> columns, Status* error) const {
  std::vector<Target> targets;
  for (size_t c = 0; c < columns.size(); ++c) {
    targets.push_back({c, dtype(c), &options_.defaults[c], columns[c].mutable_raw_data()});
  }
  return ParseTo(records, records_per_element, arena, targets, nullptr, error);
}

int64_t CsvParser::ParseInPlace(absl::Span<const absl::string_view> records, Arena* arena,
                                absl::Span<Column> columns, Status* error) const {
  std::vector<Target> targets;
  for (size_t c = 0; c < columns.size(); ++c) {
    Column& column = columns[c];
    const Tensor& standard = options_.defaults[c];
    if (dtype(c) != DT_STRING) {
      targets.push_back({c, dtype(c), &standard, column.stacked.mutable_raw_data()});
      continue;
    }
    column.strings.resize(records.size());
    if (standard.buffer()) column.owners.push_back(standard.buffer());
    targets.push_back({c, DT_STRING, &standard, column.strings.data(), /*in_place=*/true});
  }
  std::vector<BufferRef> owners;
  const int64_t good = ParseTo(records, 1, arena, targets, &owners, error);
  for (Column& column : columns) {
    if (column.stacked.has_value()) continue;
    column.owners.insert(column.owners.end(), owners.begin(), owners.end());
  }
  return good;
}

int64_t CsvParser::ParseTo(absl::Span<const absl::string_view> records, int64_t records_per_element,
                           Arena* arena, absl::Span<const Target> targets,
                           std::vector<BufferRef>* owners, Status* error) const {
  const int64_t all = static_cast<int64_t>(records.size());
  const std::vector<int64_t>& cols = options_.select_cols;
  // A record's last column says how far it is looked at; one that is too far is never reached.
  constexpr int64_t kMostCuts = 1 << 16;
  const size_t num_cuts =
      static_cast<size_t>(cols.empty() ? static_cast<int64_t>(targets.size()) : cols.back() + 1);
  const bool by_cuts = num_cuts <= kMostCuts;
  // Records behind a bad one are of no interest. Relaxed: what is written is ordered by the loop.
  std::atomic<int64_t> first_bad{all};
  Mutex mu;
  arena->ParallelFor(
      all, kFieldNs * static_cast<double>(targets.size()), [&](int64_t begin, int64_t end) {
        Copies copies(owners, &mu);
        CsvCuts cuts(delim_, options_.use_quote_delim ? '"' : '\0', by_cuts ? num_cuts : 1);
        for (int64_t i = begin; i < end; ++i) {
          if (first_bad.load(std::memory_order_relaxed) < i) return;
          const absl::string_view record = records[static_cast<size_t>(i)];
          const int64_t index = i % records_per_element;
          Status status = by_cuts ? ParseRecord(record, i, index, targets, &cuts, &copies)
                                  : ParseByRules(record, i, index, targets, &copies);
          if (status.ok()) continue;
          MutexLock lock(&mu);
          if (i < first_bad.load(std::memory_order_relaxed)) {
            first_bad.store(i, std::memory_order_relaxed);
            *error = std::move(status);
          }
          return;
        }
      });
  return first_bad.load(std::memory_order_relaxed);
}

StatusOr<std::shared_ptr<const RowFunction>> DecodeCsv(CsvOptions options) {
  MR_ASSIGN_OR_RETURN(CsvParser parser, CsvParser::Make(std::move(options)));
  return std::make_shared<const CsvFunction>(std::move(parser));
}

Dataset CsvDataset(std::vector<std::string> paths, CsvOptions options, CsvFileOptions files) {
  StatusOr<std::shared_ptr<const RowFunction>> decode = DecodeCsv(options);
  if (!decode.ok()) return Dataset::Error(decode.status());
  CsvRecordsOptions records = {.field_delim = options.field_delim[0],
                               .use_quote_delim = options.use_quote_delim,
                               .has_header = files.has_header,
                               .file = files.file};
  const std::vector<int64_t>& cols = options.select_cols;
  if (files.has_header && !options.names.empty()) {
    records.more_columns = !cols.empty();
    for (size_t c = 0; c < options.names.size(); ++c) {
      const size_t place = cols.empty() ? c : static_cast<size_t>(cols[c]);
      if (!cols.empty() && place >= kMostNamedColumns) break;
      records.columns.resize(place + 1);
      records.columns[place] = options.names[c];
    }
  }
  return Dataset::CsvRecords(std::move(paths), std::move(records)).Map(std::move(decode));
}

}  // namespace millrace::data

// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/table_file.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/byte_reader.h"
#include "core/dtype.h"
#include "core/line_reader.h"
#include "core/logging.h"
#include "core/parse_number.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "ops/lookup/table_initializer.h"

namespace millrace {
namespace {

// Entries that are handed to the table together.
constexpr int64_t kBatch = 4096;

// `what`: "Key" or "Value".
Status CheckColumn(absl::string_view what, int64_t index, DType dtype) {
  if (index < kWholeLine) {
    return InvalidArgument(what, " index must be >= ", kWholeLine, ", got ", index);
  }
  if (index == kLineNumber && dtype != DT_INT64) {
    return InvalidArgument(what, " index for line number requires table ",
                           what == "Key" ? "key" : "value", " dtype of int64, got ", dtype);
  }
  if (index == kWholeLine && dtype != DT_STRING && dtype != DT_INT32 && dtype != DT_INT64) {
    return InvalidArgument(what, " index for whole line requires string or integer table ",
                           what == "Key" ? "key" : "value", ", got ", dtype);
  }
  if (dtype == DT_BOOL) return InvalidArgument(what, "s of bool cannot be read from a file");
  return absl::OkStatus();
}

// The n-th (from 0 on) of the parts between delimiters; `*columns` counts them when there is none.
std::optional<absl::string_view> Column(absl::string_view line, char delimiter, int64_t n,
                                        int64_t* columns) {
  for (int64_t i = 0;; ++i) {
    const size_t end = line.find(delimiter);
    if (i == n) return line.substr(0, end);
    if (end == absl::string_view::npos) {
      *columns = i + 1;
      return std::nullopt;
    }
    line.remove_prefix(end + 1);
  }
}

// Element `i` of `out` from a line of a file.
Status ReadField(absl::string_view line, int64_t line_number, const TableFileLayout& layout,
                 int64_t index, int64_t i, Tensor* out) {
  const size_t at = static_cast<size_t>(i);
  if (index == kLineNumber) {
    out->mutable_raw<int64_t>()[at] = line_number - 1;
    return absl::OkStatus();
  }
  std::optional<absl::string_view> text = line;
  int64_t columns = 0;
  if (index >= 0) text = Column(line, layout.delimiter, index, &columns);
  if (!text) {
    return InvalidArgument("it must have at least ", index + 1, " columns, got ", columns);
  }
  bool parsed = true;
  switch (out->dtype()) {
    case DT_STRING:
      out->mutable_raw<std::string>()[at].assign(text->data(), text->size());
      break;
    case DT_INT32:
      parsed = ParseNumber(*text, &out->mutable_raw<int32_t>()[at]);
      break;
    case DT_INT64:
      parsed = ParseNumber(*text, &out->mutable_raw<int64_t>()[at]);
      break;
    case DT_FLOAT:
      parsed = ParseNumber(*text, &out->mutable_raw<float>()[at]);
      break;
    case DT_DOUBLE:
      parsed = ParseNumber(*text, &out->mutable_raw<double>()[at]);
      break;
    default:
      parsed = false;
      break;
  }
  if (parsed) return absl::OkStatus();
  return InvalidArgument("Field must be a valid ", out->dtype(), ", got '", *text, "'");
}

}  // namespace

Status FillTableFromFile(FileSystem* fs, const std::string& path, const TableFileLayout& layout,
                         CancellationManager* cancellation, TableStorage* table) {
  const std::string label = absl::StrCat("Table file '", path, "'");
  const TableSpec& spec = table->spec();
  MR_RETURN_IF_ERROR(CheckColumn("Key", layout.key_index, spec.key_dtype));
  MR_RETURN_IF_ERROR(CheckColumn("Value", layout.value_index, spec.value_dtype));
  if (layout.vocab_size == 0 || layout.vocab_size < -1) {
    return InvalidArgument("vocab_size must be >= 1, or -1 for all lines, got ", layout.vocab_size);
  }
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<TableFiller> filler, table->BeginFilling());
  if (table->is_initialized()) return absl::OkStatus();

  MR_ASSIGN_OR_RETURN(auto bytes, ByteReader::Open(fs, path, label, Compression::kNone));
  LineReader reader(label, std::move(bytes));
  const int64_t most = layout.vocab_size;
  bool at_end = false;
  int64_t entries = 0;
  while (!at_end && entries != most) {
    if (cancellation != nullptr && cancellation->IsCancelled()) {
      return absl::CancelledError(absl::StrCat(label, ": the step was cancelled"));
    }
    const int64_t room = most < 0 ? kBatch : std::min(kBatch, most - entries);
    MR_ASSIGN_OR_RETURN(Tensor keys, Tensor::Allocate(spec.key_dtype, Shape({room})));
    MR_ASSIGN_OR_RETURN(Tensor values, Tensor::Allocate(spec.value_dtype, Shape({room})));
    const int64_t first_line = reader.line_number() + 1;
    int64_t n = 0;
    for (; n < room; ++n) {
      MR_ASSIGN_OR_RETURN(const std::optional<absl::string_view> line, reader.Next());
      at_end = !line;
      if (at_end) break;
      const auto of_line = [&](const Status& status) {
        return Prefixed(absl::StrCat(label, " line ", reader.line_number()), status);
      };
      if (line->empty()) return of_line(InvalidArgument("it must not be empty"));
      const int64_t number = reader.line_number();
      MR_RETURN_IF_ERROR(of_line(ReadField(*line, number, layout, layout.key_index, n, &keys)));
      MR_RETURN_IF_ERROR(of_line(ReadField(*line, number, layout, layout.value_index, n, &values)));
    }
    int64_t wrong = 0;
    const Status added = filler->Add(keys.Rows(0, n), values.Rows(0, n), &wrong);
    if (absl::IsFailedPrecondition(added)) {
      return Prefixed(absl::StrCat(label, " line ", first_line + wrong), added);
    }
    MR_RETURN_IF_ERROR(added);
    entries += n;
  }
  if (entries == 0) return InvalidArgument(label, ": it must have lines, got none");
  if (most > 0 && entries < most) {
    return InvalidArgument(label, ": it must have as many lines as vocab_size says, ", most,
                           ", got ", entries);
  }
  if (most > 0) {
    MR_ASSIGN_OR_RETURN(const std::optional<absl::string_view> more, reader.Next());
    if (more)
      LogWarning(label, ": the lines behind the first ", most, " (vocab_size) are not used");
  }
  return filler->Publish();
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// csv_to_tfrecord: typed columns of CSV files as TFRecords of tf.Example.
//
//   csv_to_tfrecord --input 'census/part-*' --output census/part-r --shards 4
//                   --schema 'age:int64,occupation:string,income:float=0'
//
// A field that is empty or --na_value has its column's default, or its feature is left out. Rows go
// to shards in turns; the files appear at the end, all or none. A bad row ends it, or is left out
// and counted (--ignore_errors).
//
// Exit codes: 0, 1 with the reason on stderr, 2 for wrong flags.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/compression.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/parse_number.h"
#include "core/program.h"
#include "core/status.h"
#include "data/example_builder.h"
#include "data/new_file.h"
#include "data/row_files.h"
#include "formats/csv_fields.h"
#include "tools/command_line.h"
#include "tools/refused_rows.h"
#include "tools/row_flags.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "csv_to_tfrecord";
constexpr int kMaxShards = 10'000;

ProgramHelp Help() {
  std::vector<FlagSpec> flags = {
      {.name = "output",
       .value = "FILE",
       .help = "the TFRecord file; with --shards N the files FILE-00000 to FILE-<N-1>",
       .required = true},
      {.name = "schema",
       .value = "NAME:TYPE[=DEFAULT],...",
       .help = "the columns: int64, float or string; string[] and so on for lists; '-' for one "
               "that is left out. With --header any of them by name, else all in their order",
       .required = true},
      {.name = "na_value", .value = "TEXT", .help = "a field that is missing, as an empty one is"},
      {.name = "list_delim", .value = "CHARACTER", .help = "between the values of a list (;)"},
      {.name = "shards", .value = "N", .help = "files, which get rows in turns"},
      {.name = "output_compression", .value = "GZIP|ZLIB", .help = "of the files"}};
  return {.name = kProgram,
          .about = "Writes typed columns of CSV files as TFRecords of tf.Example.",
          .flags = WithRowFlags(WithRefusedRowsFlags(std::move(flags)))};
}

enum class Type { kInt64, kFloat, kString };
struct Column {
  std::string name;
  Type type = Type::kString;
  bool is_list = false;
  bool has_default = false;
  std::string standard = {};
  size_t field = 0;
};

const char* TypeName(Type type) {
  switch (type) {
    case Type::kInt64:
      return "int64";
    case Type::kFloat:
      return "float";
    case Type::kString:
      break;
  }
  return "string";
}

// Fields as values of the features of one example.
class ExampleOfFields {
 public:
  ExampleOfFields(std::vector<Column> columns, std::string na_value, char list_delim)
      : columns_(std::move(columns)), na_value_(std::move(na_value)), list_delim_(list_delim) {}

  StatusOr<absl::string_view> Make(const std::vector<std::string>& fields) {
    for (const Column& column : columns_) {
      absl::string_view text = fields[column.field];
      const bool is_missing = IsMissingField(text, na_value_, column.type == Type::kString);
      if (is_missing && !column.has_default) continue;
      const Status added = Add(column, is_missing ? column.standard : text);
      if (added.ok()) continue;
      example_.Finish();  // what was added before
      return added;
    }
    return example_.Finish();
  }
  // A default must be of its type.
  Status CheckDefaults() {
    for (const Column& column : columns_) {
      if (column.has_default)
        MR_RETURN_IF_ERROR(Prefixed("--schema", Add(column, column.standard)));
    }
    example_.Finish();
    return absl::OkStatus();
  }

 private:
  Status Add(const Column& column, absl::string_view text) {
    std::vector<absl::string_view> parts = {text};
    if (column.is_list) parts = absl::StrSplit(text, list_delim_);
    switch (column.type) {
      case Type::kInt64:
        MR_RETURN_IF_ERROR(Parse(column, parts, &ints_));
        example_.AddInts(column.name, ints_);
        break;
      case Type::kFloat:
        MR_RETURN_IF_ERROR(Parse(column, parts, &floats_));
        example_.AddFloats(column.name, floats_);
        break;
      case Type::kString:
        texts_.clear();
        for (const absl::string_view part : parts) texts_.emplace_back(part);
        example_.AddTexts(column.name, texts_);
        break;
    }
    return absl::OkStatus();
  }
  template <typename T>
  static Status Parse(const Column& column, const std::vector<absl::string_view>& parts,
                      std::vector<T>* values) {
    values->clear();
    for (const absl::string_view part : parts) {
      T value{};
      if (!ParseNumber(part, &value)) {
        return InvalidArgument("column '", column.name, "' must be ", TypeName(column.type),
                               ", got '", part, "'");
      }
      values->push_back(value);
    }
    return absl::OkStatus();
  }

  const std::vector<Column> columns_;
  const std::string na_value_;
  const char list_delim_;
  data::ExampleBuilder example_;
  std::vector<int64_t> ints_;
  std::vector<float> floats_;
  std::vector<std::string> texts_;
};

// "age:int64=0".
StatusOr<Column> ParseColumn(const std::string& text) {
  Column column;
  const size_t colon = text.find(':');
  column.name = text.substr(0, colon);
  if (colon == std::string::npos || column.name.empty()) {
    return InvalidArgument("--schema: '", text, "' must be NAME:TYPE or -");
  }
  std::string type = text.substr(colon + 1);
  const size_t equals = type.find('=');
  if (equals != std::string::npos) {
    column.has_default = true;
    column.standard = type.substr(equals + 1);
    type.resize(equals);
  }
  if (absl::EndsWith(type, "[]")) {
    column.is_list = true;
    type.resize(type.size() - 2);
  }
  if (type == "int64") {
    column.type = Type::kInt64;
  } else if (type == "float") {
    column.type = Type::kFloat;
  } else if (type != "string") {
    return InvalidArgument("--schema: the type of '", column.name,
                           "' must be int64, float or string, or a list of one, got '", type, "'");
  }
  return column;
}

// What the columns of files without a header are called.
std::vector<std::string> SchemaNames(const std::string& text) {
  std::vector<std::string> names;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    part = absl::StripAsciiWhitespace(part);
    names.emplace_back(part.substr(0, part.find(':')));
  }
  return names;
}

StatusOr<std::vector<Column>> ParseSchema(const std::string& text, const data::RowFiles& rows) {
  std::vector<Column> columns;
  std::set<std::string> names;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& text_of_part : parts) {
    const std::string part(absl::StripAsciiWhitespace(text_of_part));
    if (part == "-") continue;
    MR_ASSIGN_OR_RETURN(Column column, ParseColumn(part));
    if (!names.insert(column.name).second) {
      return InvalidArgument("--schema: names must be different, got '", column.name, "' twice");
    }
    const StatusOr<size_t> field = rows.FindColumn(column.name);
    MR_RETURN_IF_ERROR(Prefixed("--schema", field.status()));
    column.field = *field;
    columns.push_back(std::move(column));
  }
  if (columns.empty()) return InvalidArgument("--schema must have a column, got '", text, "'");
  return columns;
}

Status Run(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const int shards, flags.IntValue("shards", 0, 1, kMaxShards));
  Compression compression = Compression::kNone;
  if (flags.has("output_compression")) {
    MR_ASSIGN_OR_RETURN(
        compression, ParseCompression("--output_compression", flags.value("output_compression")));
  }
  const std::string list_delim = flags.has("list_delim") ? flags.value("list_delim") : ";";
  if (list_delim.size() != 1) {
    return InvalidArgument("--list_delim must be one character, got '", list_delim, "'");
  }
  MR_ASSIGN_OR_RETURN(const auto rows,
                      OpenRows(flags, {.format = data::RowFormat::kCsv,
                                       .columns = SchemaNames(flags.value("schema"))}));
  std::vector<std::string> outputs;
  for (int i = 0; i < std::max(shards, 1); ++i) {
    outputs.push_back(shards == 0 ? flags.value("output")
                                  : absl::StrFormat("%s-%05d", flags.value("output"), i));
  }
  MR_ASSIGN_OR_RETURN(RefusedRows refused, RefusedRows::Make(kProgram, flags, *rows, outputs));
  MR_ASSIGN_OR_RETURN(std::vector<Column> columns, ParseSchema(flags.value("schema"), *rows));
  ExampleOfFields example(std::move(columns), flags.value("na_value"), list_delim[0]);
  MR_RETURN_IF_ERROR(example.CheckDefaults());

  std::vector<std::unique_ptr<data::NewFile>> files;
  for (const std::string& path : outputs) {
    MR_ASSIGN_OR_RETURN(auto file, data::NewFile::Create(FileSystem::Default(), path));
    MR_RETURN_IF_ERROR(file->BeginRecords(compression));
    files.push_back(std::move(file));
  }
  size_t shard = 0;
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, refused.Next(rows.get()));
    if (!more) break;
    const StatusOr<absl::string_view> record = example.Make(rows->fields());
    if (!record.ok()) {
      MR_RETURN_IF_ERROR(refused.Refuse(*rows, Prefixed(rows->Where(), record.status())));
      continue;
    }
    MR_RETURN_IF_ERROR(refused.Keep());
    MR_RETURN_IF_ERROR(files[shard]->WriteRecord(*record));
    shard = (shard + 1) % files.size();
  }
  for (const auto& file : files) MR_RETURN_IF_ERROR(file->Close());
  MR_RETURN_IF_ERROR(refused.Finish(*rows));
  for (const auto& file : files) MR_RETURN_IF_ERROR(file->Commit());
  std::cout << flags.value("output") << ": " << refused.kept() << " examples in " << files.size()
            << " files, of " << rows->files().size() << " files\n";
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  EnterCallersDirectory();
  int exit_code = kExitOk;
  const auto flags = CommandLine::ParseOrExplain(Help(), args, &exit_code);
  if (!flags) return exit_code;
  const Status status = Run(*flags);
  if (!status.ok()) std::cerr << kProgram << ": " << status.message() << "\n";
  return ExitCode(status);
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  return millrace::Main(std::vector<std::string>(argv + 1, argv + argc));
}

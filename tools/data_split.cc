// SPDX-License-Identifier: Apache-2.0
//
// data_split: rows into several files by a hash of a key: the same row goes to the same file in
// every run, whatever the order of the rows, and rows of one key stay together.
//
//   data_split --input 'census/*.csv' --header --column id --splits train=0.8,eval=0.2
//              --output_dir split
//
// A row's part is decided by Fingerprint64 of --seed and its key alone; within a file rows keep
// their order. CSV records (--column, --csv, files named .csv or .tsv) may go on over lines inside
// quotes. All files appear at the end, or none. A bad row ends it, or is left out and counted
// (--ignore_errors).
//
// Exit codes: 0, 1 with the reason on stderr, 2 for wrong flags.

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/compression.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/fingerprint64.h"
#include "core/program.h"
#include "core/status.h"
#include "data/new_file.h"
#include "data/row_files.h"
#include "tools/command_line.h"
#include "tools/refused_rows.h"
#include "tools/row_flags.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "data_split";
// So far from 1 a sum of decimal fractions may be.
constexpr double kSumSlack = 1e-9;

ProgramHelp Help() {
  std::vector<FlagSpec> flags = {{.name = "output_dir",
                                  .value = "DIR",
                                  .help = "for <name>.csv, <name>.txt or <name>.tfrecord",
                                  .required = true},
                                 {.name = "splits",
                                  .value = "NAME=RATIO,...",
                                  .help = "'train=0.8,eval=0.2'; what is left to 1 is left out",
                                  .required = true}};
  for (FlagSpec& flag : ValueFlags("the key")) flags.push_back(std::move(flag));
  flags.push_back({.name = "csv", .help = "the files are CSV, whole records the key"});
  flags.push_back({.name = "records", .help = "the files are TFRecords, whole records the key"});
  flags.push_back({.name = "seed", .value = "TEXT", .help = "another one gives another split"});
  flags.push_back({.name = "output_compression",
                   .value = "GZIP|ZLIB",
                   .help = "of the files that are written, if they are TFRecords"});
  return {.name = kProgram,
          .about =
              "Splits rows into files by a hash of a column, a feature or the whole row:\n"
              "always alike, and rows of one key together.",
          .flags = WithRowFlags(WithRefusedRowsFlags(std::move(flags)))};
}

struct Split {
  std::string name;
  double until;  // rows whose hash, as a number in [0, 1), is below
  std::unique_ptr<data::NewFile> file = nullptr;
  int64_t rows = 0;
};

StatusOr<std::vector<Split>> ParseSplits(const std::string& text) {
  std::vector<Split> splits;
  std::set<std::string> names;
  double sum = 0;
  for (const std::string& part : Names(text)) {
    const size_t equals = part.find('=');
    const std::string name = part.substr(0, equals);
    double ratio = 0;
    const bool has_ratio =
        equals != std::string::npos && absl::SimpleAtod(part.substr(equals + 1), &ratio);
    if (!has_ratio || !(ratio > 0) || !(ratio <= 1)) {
      return InvalidArgument("--splits: '", part, "' must be NAME=RATIO with a ratio in (0, 1]");
    }
    bool is_name = !name.empty() && name[0] != '.';
    for (const char c : name) {
      is_name = is_name && (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' ||
                            c == '-' || c == '.');
    }
    if (!is_name || !names.insert(name).second) {
      return InvalidArgument(
          "--splits: names must be different and of letters, digits and _-., "
          "got '",
          name, "'");
    }
    sum += ratio;
    splits.push_back({name, sum});
  }
  if (splits.empty()) return InvalidArgument("--splits must name files, got '", text, "'");
  if (sum > 1 + kSumSlack) return InvalidArgument("--splits must sum to at most 1, got ", sum);
  if (std::abs(sum - 1) <= kSumSlack) splits.back().until = 1;
  return splits;
}

// A number in [0, 1) that is a function of the seed and the values alone.
double HashOf(const std::string& seed, const std::vector<std::string>& values) {
  std::string key = absl::StrCat(seed, "\n", values.size());
  for (const std::string& value : values) absl::StrAppend(&key, "\n", value.size(), ":", value);
  return static_cast<double>(Fingerprint64(key) >> 11) * 0x1p-53;
}

Status Run(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(std::vector<Split> splits, ParseSplits(flags.value("splits")));
  const bool is_csv = flags.has("column") || flags.has("csv");
  const bool is_records = flags.has("feature") || flags.has("records");
  if (is_csv && is_records) {
    return InvalidArgument(
        "--column and --csv are for CSV files; --records and --feature for TFRecords");
  }
  Compression compression = Compression::kNone;
  if (flags.has("output_compression")) {
    if (!is_records) return InvalidArgument("--output_compression is for TFRecords, got text");
    MR_ASSIGN_OR_RETURN(
        compression, ParseCompression("--output_compression", flags.value("output_compression")));
  }
  data::RowFilesOptions otherwise;
  otherwise.format = is_records ? data::RowFormat::kExamples
                     : is_csv   ? data::RowFormat::kCsv
                                : data::RowFormat::kLines;
  // A record must not be torn where its text has a line break.
  otherwise.csv_by_name = true;
  otherwise.any_delim = !is_csv && !flags.has("field_delim");
  MR_ASSIGN_OR_RETURN(const auto rows, OpenRows(flags, std::move(otherwise)));
  const char* const ending = is_records ? ".tfrecord" : is_csv ? ".csv" : ".txt";
  std::vector<std::string> outputs;
  for (const Split& split : splits) {
    outputs.push_back(JoinPath(flags.value("output_dir"), absl::StrCat(split.name, ending)));
  }
  MR_ASSIGN_OR_RETURN(RefusedRows refused, RefusedRows::Make(kProgram, flags, *rows, outputs));
  MR_ASSIGN_OR_RETURN(const RowValues row_values, RowValues::Make(flags, *rows));
  for (size_t i = 0; i < splits.size(); ++i) {
    Split& split = splits[i];
    MR_ASSIGN_OR_RETURN(split.file, data::NewFile::Create(FileSystem::Default(), outputs[i]));
    if (is_records) MR_RETURN_IF_ERROR(split.file->BeginRecords(compression));
    if (flags.has("header")) {
      MR_RETURN_IF_ERROR(split.file->Append(absl::StrCat(rows->header(), "\n")));
    }
  }
  const std::string seed = flags.value("seed");
  std::vector<std::string> values;
  std::string line;
  int64_t left_out = 0;
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, refused.Next(rows.get()));
    if (!more) break;
    const Status got = row_values.Get(*rows, &values);
    if (!got.ok()) {
      MR_RETURN_IF_ERROR(refused.Refuse(*rows, got));
      continue;
    }
    MR_RETURN_IF_ERROR(refused.Keep());
    const double hash = HashOf(seed, values);
    size_t i = 0;
    while (i < splits.size() && hash >= splits[i].until) ++i;
    if (i == splits.size()) {
      ++left_out;
      continue;
    }
    ++splits[i].rows;
    if (is_records) {
      MR_RETURN_IF_ERROR(splits[i].file->WriteRecord(rows->row()));
    } else {
      line.assign(rows->row().data(), rows->row().size());
      line += '\n';
      MR_RETURN_IF_ERROR(splits[i].file->Append(line));
    }
  }
  for (Split& split : splits) MR_RETURN_IF_ERROR(split.file->Close());
  MR_RETURN_IF_ERROR(refused.Finish(*rows));
  for (Split& split : splits) {
    MR_RETURN_IF_ERROR(split.file->Commit());
    std::cout << split.file->path() << ": " << split.rows << " rows\n";
  }
  if (left_out > 0) std::cout << "left out: " << left_out << " rows\n";
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

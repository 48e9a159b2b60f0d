// SPDX-License-Identifier: Apache-2.0
//
// vocab_gen: the vocabulary of a column, a feature or of lines: its different values, the most
// frequent first, one a line, as tables and vocabulary columns read it.
//
//   vocab_gen --input 'census/part-*' --header --column occupation --output words.txt
//
// Values that come equally often are ordered by their bytes, so equal data give an equal file,
// whatever the order and number of the files. Empty values are missing ones. Memory is bounded
// (--max_memory_mb): what does not fit is counted through temporary files. A bad row ends it, or is
// left out and counted (--ignore_errors).
//
// Exit codes: 0, 1 with the reason on stderr, 2 for wrong flags.

#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "core/coding.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/program.h"
#include "core/status.h"
#include "data/external_sort.h"
#include "data/new_file.h"
#include "data/row_files.h"
#include "data/spilling_counter.h"
#include "tools/command_line.h"
#include "tools/refused_rows.h"
#include "tools/row_flags.h"

namespace millrace {
namespace {

constexpr char kProgram[] = "vocab_gen";

ProgramHelp Help() {
  std::vector<FlagSpec> flags = {
      {.name = "output", .value = "FILE", .help = "one word a line", .required = true}};
  for (FlagSpec& flag : ValueFlags("the words")) flags.push_back(std::move(flag));
  const std::vector<FlagSpec> own = {
      {.name = "split",
       .value = "CHARACTERS",
       .help = "values are cut into words at each of these characters"},
      {.name = "min_count", .value = "N", .help = "words that come less often are left out (1)"},
      {.name = "top_k", .value = "N", .help = "only the N most frequent words (0: all)"},
      {.name = "oov", .value = "WORD", .help = "a last line that stands for all other words"},
      {.name = "counts", .help = "each line has the word's count behind a tabulator"}};
  flags.insert(flags.end(), own.begin(), own.end());
  for (FlagSpec& flag : MemoryFlags()) flags.push_back(std::move(flag));
  return {.name = kProgram,
          .about =
              "Writes the different values of a CSV column, of a tf.Example feature or of\n"
              "lines, the most frequent first; equally frequent ones by their bytes.",
          .flags = WithRowFlags(WithRefusedRowsFlags(std::move(flags)))};
}

StatusOr<int64_t> Count(const CommandLine& flags, const char* name, int64_t fallback, int64_t low) {
  if (!flags.has(name)) return fallback;
  int64_t value = 0;
  if (absl::SimpleAtoi(flags.value(name), &value) && value >= low) return value;
  return InvalidArgument("--", name, " must be an integer >= ", low, ", got '", flags.value(name),
                         "'");
}

struct Totals {
  int64_t values = 0, words = 0, rare = 0, written = 0;
};

Status CountWords(const CommandLine& flags, data::RowFiles* rows, RefusedRows* refused,
                  data::SpillingCounter* counter, Totals* totals) {
  MR_ASSIGN_OR_RETURN(const RowValues row_values, RowValues::Make(flags, *rows));
  const std::string cuts = flags.value("split");
  std::vector<std::string> values;
  std::vector<absl::string_view> words;  // of the row at hand
  const auto find_words = [&]() -> Status {
    words.clear();
    MR_RETURN_IF_ERROR(row_values.Get(*rows, &values));
    for (const std::string& value : values) {
      if (cuts.empty()) {
        words.push_back(value);
        continue;
      }
      for (const absl::string_view word : absl::StrSplit(value, absl::ByAnyChar(cuts))) {
        words.push_back(word);
      }
    }
    for (const absl::string_view word : words) {
      if (word.find_first_of("\n\r") == absl::string_view::npos) continue;
      return InvalidArgument(rows->Where(), ": a word must be without line breaks, got '", word,
                             "'");
    }
    return absl::OkStatus();
  };
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, refused->Next(rows));
    if (!more) return refused->Finish(*rows);
    const Status found = find_words();
    if (!found.ok()) {
      MR_RETURN_IF_ERROR(refused->Refuse(*rows, found));
      continue;
    }
    for (const absl::string_view word : words) {
      if (word.empty()) continue;
      ++totals->values;
      MR_RETURN_IF_ERROR(counter->Add(word));
    }
    MR_RETURN_IF_ERROR(refused->Keep());
  }
}

// The words, the most frequent first.
Status WriteWords(const CommandLine& flags, int64_t top_k, data::ExternalSort* sorted,
                  data::NewFile* file, Totals* totals) {
  const bool with_counts = flags.has("counts");
  const std::string oov = flags.value("oov");
  while (top_k == 0 || totals->written < top_k) {
    MR_ASSIGN_OR_RETURN(const bool more, sorted->Next());
    if (!more) break;
    absl::string_view word = sorted->record();
    uint64_t rank = 0;
    if (!GetOrderedUint(&word, &rank)) return Internal("vocab_gen: a count must be readable");
    if (flags.has("oov") && word == oov) {
      return InvalidArgument("--oov must be no word of the data, got '", oov, "'");
    }
    const uint64_t count = static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) - rank;
    MR_RETURN_IF_ERROR(file->Append(with_counts ? absl::StrCat(word, "\t", count, "\n")
                                                : absl::StrCat(word, "\n")));
    ++totals->written;
  }
  if (!flags.has("oov")) return absl::OkStatus();
  return file->Append(with_counts ? absl::StrCat(oov, "\t0\n") : absl::StrCat(oov, "\n"));
}

Status Run(const CommandLine& flags) {
  MR_ASSIGN_OR_RETURN(const int64_t min_count, Count(flags, "min_count", 1, 1));
  MR_ASSIGN_OR_RETURN(const int64_t top_k, Count(flags, "top_k", 0, 0));
  const std::string oov = flags.value("oov");
  if (flags.has("oov") && (oov.empty() || oov.find_first_of("\n\r") != std::string::npos)) {
    return InvalidArgument("--oov must be a word without line breaks, got '", oov, "'");
  }
  const std::string output = flags.value("output");
  MR_ASSIGN_OR_RETURN(data::ExternalSortOptions memory, SortOptions(flags, output));
  memory.max_bytes /= 2;
  MR_ASSIGN_OR_RETURN(const auto rows, OpenRows(flags, {.format = data::RowFormat::kLines}));
  MR_ASSIGN_OR_RETURN(RefusedRows refused, RefusedRows::Make(kProgram, flags, *rows, {output}));
  MR_ASSIGN_OR_RETURN(const auto file, data::NewFile::Create(FileSystem::Default(), output));

  Totals totals;
  data::SpillingCounter counter(1, memory);
  MR_RETURN_IF_ERROR(CountWords(flags, rows.get(), &refused, &counter, &totals));
  MR_RETURN_IF_ERROR(counter.Finish());
  // Again, by count: the largest has the least key.
  data::ExternalSort sorted(memory);
  std::string key;
  while (true) {
    MR_ASSIGN_OR_RETURN(const bool more, counter.Next());
    if (!more) break;
    ++totals.words;
    const int64_t count = counter.counts()[0];
    if (count < min_count) {
      ++totals.rare;
      continue;
    }
    key.clear();
    PutOrderedUint(&key, static_cast<uint64_t>(std::numeric_limits<int64_t>::max() - count));
    key += counter.key();
    MR_RETURN_IF_ERROR(sorted.Add(key));
  }
  MR_RETURN_IF_ERROR(sorted.Finish());
  MR_RETURN_IF_ERROR(WriteWords(flags, top_k, &sorted, file.get(), &totals));
  MR_RETURN_IF_ERROR(file->Commit());
  std::cout << output << ": " << totals.written << " of " << totals.words << " words ("
            << totals.rare << " too rare) of " << totals.values << " values in " << refused.kept()
            << " rows of " << rows->files().size() << " files\n";
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

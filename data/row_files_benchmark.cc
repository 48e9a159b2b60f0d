// SPDX-License-Identifier: Apache-2.0
// What preparing data costs: rows of CSV and TFRecord files, examples written, words counted and
// records sorted, in memory and through temporary files.
//   bazel run -c opt //data:row_files_benchmark
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/file_system.h"
#include "data/example_builder.h"
#include "data/external_sort.h"
#include "data/new_file.h"
#include "data/row_files.h"
#include "data/spilling_counter.h"

namespace millrace::data {
namespace {

FileSystem* const kFiles = FileSystem::Posix();
const std::string kDirectory =
    (std::filesystem::temp_directory_path() / "row_files_benchmark").string();
constexpr int64_t kRows = 100'000;

void Must(const Status& status) {
  if (!status.ok()) std::abort();
}

// As census rows: 15 columns.
std::string CsvFile() {
  std::string text;
  for (int64_t i = 0; i < kRows; ++i) {
    absl::StrAppend(&text, i % 90, ", Private, ", i * 7919 % 1'000'000,
                    ", Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, "
                    "2174, 0, 40, United-States, <=50K\n");
  }
  const std::string path = absl::StrCat(kDirectory, "/rows.csv");
  Must(kFiles->RecursivelyCreateDirectory(kDirectory));
  Must(WriteFileAtomically(kFiles, path, text));
  return path;
}

void CsvRows(benchmark::State& state) {
  const std::string path = CsvFile();
  for (auto _ : state) {
    auto rows = RowFiles::Open({path}, {.format = RowFormat::kCsv}).value();
    while (rows->Next().value()) benchmark::DoNotOptimize(rows->fields().data());
  }
  state.SetItemsProcessed(state.iterations() * kRows);
  state.SetBytesProcessed(state.iterations() *
                          static_cast<int64_t>(kFiles->GetFileSize(path).value()));
}
BENCHMARK(CsvRows)->Unit(benchmark::kMillisecond);

void ExamplesWritten(benchmark::State& state) {
  const std::vector<std::string> text = {" Never-married"};
  for (auto _ : state) {
    auto file = NewFile::Create(kFiles, absl::StrCat(kDirectory, "/examples")).value();
    Must(file->BeginRecords(Compression::kNone));
    ExampleBuilder example;
    for (int64_t i = 0; i < kRows; ++i) {
      for (const char* name : {"age", "fnlwgt", "education_num", "gain", "loss", "hours"}) {
        example.AddInts(name, {i});
      }
      for (const char* name : {"workclass", "education", "marital", "occupation", "relationship",
                               "race", "gender", "country", "income"}) {
        example.AddTexts(name, text);
      }
      Must(file->WriteRecord(example.Finish()));
    }
  }
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(ExamplesWritten)->Unit(benchmark::kMillisecond);

// Arguments: different words, memory in MiB.
void WordsCounted(benchmark::State& state) {
  std::mt19937_64 random(1);
  std::vector<std::string> words;
  for (int64_t i = 0; i < kRows; ++i) {
    words.push_back(
        absl::StrCat("a word with number ", random() % static_cast<uint64_t>(state.range(0))));
  }
  int64_t spills = 0;
  for (auto _ : state) {
    SpillingCounter counter(
        1, {.max_bytes = static_cast<size_t>(state.range(1)) << 20, .directory = kDirectory});
    for (const std::string& word : words) Must(counter.Add(word));
    Must(counter.Finish());
    while (counter.Next().value()) benchmark::DoNotOptimize(counter.counts().data());
    spills = counter.num_spills();
  }
  state.SetItemsProcessed(state.iterations() * kRows);
  state.counters["spills"] = static_cast<double>(spills);
}
BENCHMARK(WordsCounted)
    ->Args({1000, 64})
    ->Args({100'000, 64})
    ->Args({100'000, 2})
    ->Unit(benchmark::kMillisecond);

// Argument: memory in MiB; the records are about 4 MiB.
void RecordsSorted(benchmark::State& state) {
  std::mt19937_64 random(1);
  std::vector<std::string> records;
  for (int64_t i = 0; i < kRows; ++i) records.push_back(absl::StrCat(random(), random()));
  int64_t runs = 0;
  for (auto _ : state) {
    ExternalSort sort(
        {.max_bytes = static_cast<size_t>(state.range(0)) << 20, .directory = kDirectory});
    for (const std::string& record : records) Must(sort.Add(record));
    Must(sort.Finish());
    while (sort.Next().value()) benchmark::DoNotOptimize(sort.record().data());
    runs = sort.num_runs();
  }
  state.SetItemsProcessed(state.iterations() * kRows);
  state.counters["runs"] = static_cast<double>(runs);
}
BENCHMARK(RecordsSorted)->Arg(64)->Arg(1)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace::data

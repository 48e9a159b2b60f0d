// SPDX-License-Identifier: Apache-2.0
//
// bazel run -c opt //data:dataset_benchmark: what rows cost on their way to a batch. Times are per
// batch or element as the names say; "copy" is the part that no iterator can save.

#include <chrono>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/arena.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "data/block.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/iterator.h"
#include "data/row_function.h"

// covers: article 0-7: datasets with parallel maps and prefetch

namespace millrace::data {
namespace {

std::unique_ptr<Iterator> Open(benchmark::State& state, const Dataset& dataset) {
  StatusOr<std::unique_ptr<Iterator>> iterator = dataset.MakeIterator();
  if (iterator.ok()) return *std::move(iterator);
  state.SkipWithError(iterator.status().ToString().c_str());
  return nullptr;
}

std::string TemporaryPath() {
  return (std::filesystem::temp_directory_path() / ("dataset_benchmark_" + RandomHexName()))
      .string();
}

// Takes one element per iteration of an endless dataset.
void Consume(benchmark::State& state, const Dataset& endless, int64_t rows_per_element) {
  const std::unique_ptr<Iterator> iterator = Open(state, endless);
  if (iterator == nullptr) return;
  Element element;
  for (auto _ : state) {
    const StatusOr<bool> more = iterator->Next(&element);
    if (!more.ok() || !*more) {
      state.SkipWithError(more.ok() ? "it has ended" : more.status().ToString().c_str());
      return;
    }
  }
  state.SetItemsProcessed(state.iterations() * rows_per_element);
}

constexpr int64_t kImages = 10000, kPixels = 784;

// 100 images of 784 floats.
void CopyBatch(benchmark::State& state) {
  const std::vector<float> images(kImages * kPixels, 1.0f);
  int64_t at = 0;
  for (auto _ : state) {
    StatusOr<Tensor> batch = Tensor::Allocate(DT_FLOAT, Shape{100, kPixels});
    std::memcpy(batch->mutable_raw_data(), images.data() + at * kPixels,
                100 * kPixels * sizeof(float));
    benchmark::DoNotOptimize(batch->raw_data());
    at = (at + 100) % kImages;
  }
}
BENCHMARK(CopyBatch);

void BatchFromMemory(benchmark::State& state) {
  StatusOr<Tensor> images = Tensor::Zeros(DT_FLOAT, Shape{kImages, kPixels});
  Consume(state, Dataset::FromTensorSlices({*images}).Repeat().Batch(100), 100);
}
BENCHMARK(BatchFromMemory);

void SmallBatchFromMemory(benchmark::State& state) {
  StatusOr<Tensor> numbers = Tensor::Zeros(DT_FLOAT, Shape{kImages});
  Consume(state, Dataset::FromTensorSlices({*numbers}).Repeat().Batch(32), 32);
}
BENCHMARK(SmallBatchFromMemory);

// Per element.
const Dataset& Numbers() {
  static const Dataset* const numbers = new Dataset(Dataset::Range(1 << 20).Repeat());
  return *numbers;
}
void Elements(benchmark::State& state) { Consume(state, Numbers(), 1); }
BENCHMARK(Elements);
void ShuffledElements(benchmark::State& state) { Consume(state, Numbers().Shuffle(10000), 1); }
BENCHMARK(ShuffledElements);
void PrefetchedElements(benchmark::State& state) { Consume(state, Numbers().Prefetch(1000), 1); }
BENCHMARK(PrefetchedElements)->UseRealTime();
// Items per second are elements.
void ShuffledBatches(benchmark::State& state) {
  Consume(state, Numbers().Shuffle(10000).Batch(100), 100);
}
BENCHMARK(ShuffledBatches);
void ShuffledPrefetchedBatches(benchmark::State& state) {
  Consume(state, Numbers().Shuffle(10000).Batch(100).Prefetch(10), 100);
}
BENCHMARK(ShuffledPrefetchedBatches)->UseRealTime();

// A function of about 1 us, by 1 and by 2 calls at once.
void MapOfOneMicrosecond(benchmark::State& state) {
  const MapFunction work = [](Element element) -> StatusOr<Element> {
    double x = 1;
    for (int i = 0; i < 250; ++i) benchmark::DoNotOptimize(x = x * 0.5 + 1.0);
    return element;
  };
  Consume(state, Numbers().Map(work, {.num_parallel_calls = state.range(0)}).Batch(100), 100);
}
BENCHMARK(MapOfOneMicrosecond)->Arg(1)->Arg(2)->UseRealTime();

// Records of range(0) bytes, 64 MB of them, with checksums, in the page cache.
void Records(benchmark::State& state) {
  const std::string path = TemporaryPath();
  const size_t size = static_cast<size_t>(state.range(0));
  const int64_t count = (int64_t{64} << 20) / state.range(0);
  {
    auto writer = RecordWriter::Open(FileSystem::Posix(), path);
    std::string record(size, 'p');
    for (size_t i = 0; i < size; ++i) record[i] = static_cast<char>(i * 31);
    for (int64_t i = 0; i < count; ++i) (*writer)->Write(record).IgnoreError();
    (*writer)->Close().IgnoreError();
  }
  // Blocks of records are looked at where they were read to, as a parser does.
  class Count : public RowFunction {
   public:
    std::string Name() const override { return "Count"; }
    StatusOr<ElementSpec> OutputSpec(const ElementSpec&) const override {
      return ElementSpec{{DT_INT64, PartialShape::Scalar()}};
    }
    StatusOr<Element> Call(const Element&, Arena*) const override {
      return Element{Tensor::Scalar(int64_t{1})};
    }
    Status CallBlock(const Block& in, Arena*, Block* out, Status*) const override {
      out->rows = in.rows;
      out->columns.clear();
      MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({in.rows}));
      MR_ASSIGN_OR_RETURN(Tensor ones, Tensor::Zeros(DT_INT64, shape));
      out->columns.push_back({.stacked = std::move(ones)});
      return absl::OkStatus();
    }
  };
  const Dataset records = Dataset::Records({path}).Map(std::make_shared<const Count>()).Batch(100);
  for (auto _ : state) {
    const std::unique_ptr<Iterator> iterator = Open(state, records);
    Element element;
    int64_t rows = 0;
    for (;;) {
      const StatusOr<bool> more = iterator->Next(&element);
      if (!more.ok() || !*more) break;
      rows += element[0].dim(0);
    }
    if (rows != count) state.SkipWithError("records are missing");
  }
  state.SetBytesProcessed(state.iterations() * (int64_t{64} << 20));
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(Records)->Arg(256)->Arg(4096)->Arg(102400)->UseRealTime()->Unit(benchmark::kMillisecond);

// A text file of 15 columns.
std::string CsvFile() {
  const std::string path = TemporaryPath();
  std::string bytes;
  for (int i = 0; i < 20000; ++i) {
    absl::StrAppend(
        &bytes, i % 90, ", State-gov, ", 77516 + i,
        ", Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, "
        "0, 40, United-States, <=50K\n");
  }
  WriteFileAtomically(FileSystem::Posix(), path, bytes).IgnoreError();
  return path;
}

CsvOptions CsvColumns() {
  const Tensor number = Tensor::Scalar(0.0f), text = Tensor::Scalar("");
  return {.defaults = {number, text, number, text, number, text, text, text, text, text, number,
                       number, number, text, text}};
}

// Its lines, parsed in batches of 40; items are lines.
void CsvBatches(benchmark::State& state) {
  const std::string path = CsvFile();
  const Dataset lines = Dataset::TextLines({path});
  const auto parse = DecodeCsv(CsvColumns());
  Consume(state,
          state.range(0) == 0
              ? lines.Map(parse).Repeat().Batch(40)
              : lines.Map([parse](Element line) { return (*parse)->Call(line, Arena::Default()); })
                    .Repeat()
                    .Batch(40),
          40);
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(CsvBatches)->Arg(0)->Arg(1)->ArgName("one_by_one")->UseRealTime();

// The same as CSV records, which may go on over lines, and without bad ones.
void CsvFileBatches(benchmark::State& state) {
  const std::string path = CsvFile();
  const Dataset rows = CsvDataset({path}, CsvColumns());
  Consume(state, (state.range(0) == 0 ? rows : rows.IgnoreErrors()).Repeat().Batch(40), 40);
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(CsvFileBatches)->Arg(0)->Arg(1)->ArgName("ignore_errors")->UseRealTime();

// Rows like the census's, of words of many lengths.
std::string CensusLikeRows() {
  const char* const words[] = {" Private",        " Self-emp-not-inc",
                               " Bachelors",      " HS-grad",
                               " Some-college",   " Married-civ-spouse",
                               " Never-married",  " Divorced",
                               " Prof-specialty", " Exec-managerial",
                               " Sales",          " Husband",
                               " Not-in-family",  " White",
                               " United-States"};
  uint64_t random = 1;
  const auto next = [&random](uint64_t n) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return (random >> 33) % n;
  };
  const auto word = [&] { return words[next(std::size(words))]; };
  std::string bytes;
  for (int i = 0; i < 30000; ++i) {
    absl::StrAppend(&bytes, 17 + next(70), ",", word(), ", ", next(500000), ",", word(), ", ");
    absl::StrAppend(&bytes, 1 + next(16), ",", word(), ",", word(), ",", word(), ",", word());
    absl::StrAppend(&bytes, ",", word(), ", ", next(12) == 0 ? next(99999) : 0, ", 0, ");
    absl::StrAppend(&bytes, 20 + next(50), ",", word(), next(4) == 0 ? ", >50K\n" : ", <=50K\n");
  }
  return bytes;
}

// They are read and shuffled; `cached`: read once.
Dataset ShuffledRows(const std::string& path, int64_t batch, bool cached = false) {
  const Tensor number = Tensor::Scalar(int32_t{0}), text = Tensor::Scalar("");
  const Dataset rows = Dataset::TextLines({path}).Map(
      DecodeCsv({.defaults = {number, text, number, text, number, text, text, text, text, text,
                              number, number, number, text, text}}));
  return (cached ? rows.Cache() : rows).Shuffle(10 * batch).Repeat().Batch(batch);
}

// In batches of range(0). Items are rows.
void ShuffledCsvBatches(benchmark::State& state) {
  const std::string path = TemporaryPath();
  WriteFileAtomically(FileSystem::Posix(), path, CensusLikeRows()).IgnoreError();
  Consume(state, ShuffledRows(path, state.range(0), state.range(1) != 0), state.range(0));
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(ShuffledCsvBatches)
    ->ArgNames({"batch", "cached"})
    ->Args({40, 0})
    ->Args({1024, 0})
    ->Args({40, 1})
    ->Args({1024, 1});

// The same of 18 numbers a row, as ids are.
void ShuffledNumberBatches(benchmark::State& state) {
  std::vector<Tensor> columns;
  for (int i = 0; i < 18; ++i) columns.push_back(*Tensor::Zeros(DT_INT32, Shape{30000}));
  const int64_t batch = state.range(0);
  Consume(state, Dataset::FromTensorSlices(columns).Shuffle(10 * batch).Repeat().Batch(batch),
          batch);
}
BENCHMARK(ShuffledNumberBatches)->Arg(40)->Arg(1024);

// How long steps of range(1) us wait for such batches, which the I/O pool makes ahead: "waited" is
// a part of the time.
void StepsOnCsvBatches(benchmark::State& state) {
  const std::string path = TemporaryPath();
  WriteFileAtomically(FileSystem::Posix(), path, CensusLikeRows()).IgnoreError();
  const std::unique_ptr<Iterator> iterator =
      Open(state, ShuffledRows(path, state.range(0)).Prefetch(kAutotune));
  if (iterator == nullptr) return;
  const auto step = std::chrono::microseconds(state.range(1));
  Element element;
  for (auto _ : state) {
    const StatusOr<bool> more = iterator->Next(&element);
    if (!more.ok() || !*more) return state.SkipWithError("it has ended");
    const auto end = std::chrono::steady_clock::now() + step;
    while (std::chrono::steady_clock::now() < end) benchmark::DoNotOptimize(element.data());
  }
  const IteratorTimes times = iterator->times();
  state.counters["waited"] = absl::FDivDuration(times.waited, times.waited + times.consumed);
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(StepsOnCsvBatches)
    ->ArgNames({"batch", "step_us"})
    ->Args({40, 100})
    ->Args({1024, 1500})
    ->UseRealTime();

}  // namespace
}  // namespace millrace::data

// SPDX-License-Identifier: Apache-2.0
// Tables: a batch of words looked up in a vocabulary, against the standard library's map; a
// vocabulary read from a file.
//   bazel run -c opt //ops/kernels:table_benchmark
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "benchmark/benchmark.h"
#include "core/file_system.h"
#include "core/tensor.h"
#include "ops/kernels/table_file.h"
#include "ops/kernels/table_storage.h"
#include "ops/lookup/table_initializer.h"

namespace millrace {
namespace {

constexpr int64_t kBatch = 1024;

std::string Word(int64_t i) { return absl::StrCat("occupation_", i * 7919 % 1000003); }

std::shared_ptr<TableStorage> Vocabulary(int64_t size, TableKind kind) {
  TableSpec spec;
  spec.kind = kind;
  spec.key_dtype = DT_STRING;
  spec.value_dtype = DT_INT64;
  spec.name = "vocabulary";
  auto table = MakeTable(spec).value();
  Tensor words = Tensor::Allocate(DT_STRING, Shape({size})).value();
  Tensor ids = Tensor::Allocate(DT_INT64, Shape({size})).value();
  for (int64_t i = 0; i < size; ++i) {
    words.mutable_raw<std::string>()[static_cast<size_t>(i)] = Word(i);
    ids.mutable_raw<int64_t>()[static_cast<size_t>(i)] = i;
  }
  if (!table->Import(words, ids).ok()) std::abort();
  return table;
}

// Three of four are in the vocabulary.
Tensor Batch(int64_t vocabulary) {
  std::mt19937_64 random(7);
  Tensor words = Tensor::Allocate(DT_STRING, Shape({kBatch})).value();
  for (std::string& word : words.mutable_raw<std::string>()) {
    const int64_t i = static_cast<int64_t>(random() % static_cast<uint64_t>(vocabulary));
    word = random() % 4 == 0 ? absl::StrCat("unknown_", i) : Word(i);
  }
  return words;
}

void RunHere(int64_t n, double, absl::FunctionRef<void(int64_t, int64_t)> body) { body(0, n); }

// Arguments: vocabulary, kind.
void FindStrings(benchmark::State& state) {
  const auto table = Vocabulary(state.range(0), static_cast<TableKind>(state.range(1)));
  const Tensor words = Batch(state.range(0)), missing = Tensor::Scalar<int64_t>(-1);
  Tensor ids = Tensor::Allocate(DT_INT64, Shape({kBatch})).value();
  for (auto _ : state) {
    benchmark::DoNotOptimize(table->Find(words, missing, RunHere, &ids));
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(FindStrings)->Args({100, 0})->Args({10'000, 0})->Args({10'000, 1})->Args({1'000'000, 0});

// The same of views: fields of a line that nobody copies.
void FindWords(benchmark::State& state) {
  const auto table = Vocabulary(state.range(0), TableKind::kFixed);
  const Tensor words = Batch(state.range(0));
  const std::vector<absl::string_view> views(words.raw<std::string>().begin(),
                                             words.raw<std::string>().end());
  std::vector<int64_t> ids(kBatch);
  for (auto _ : state) {
    benchmark::DoNotOptimize(table->FindWords(views, -1, ids.data()));
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(FindWords)->Arg(100)->Arg(10'000)->Arg(1'000'000);

// TensorFlow's way.
void StandardMap(benchmark::State& state) {
  std::unordered_map<std::string, int64_t> map;
  for (int64_t i = 0; i < state.range(0); ++i) map.emplace(Word(i), i);
  const Tensor words = Batch(state.range(0));
  std::vector<int64_t> ids(kBatch);
  for (auto _ : state) {
    size_t i = 0;
    for (const std::string& word : words.raw<std::string>()) {
      const auto found = map.find(word);
      ids[i++] = found == map.end() ? -1 : found->second;
    }
    benchmark::DoNotOptimize(ids.data());
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(StandardMap)->Arg(100)->Arg(10'000)->Arg(1'000'000);

// Argument: lines.
void ReadVocabulary(benchmark::State& state) {
  std::string text;
  for (int64_t i = 0; i < state.range(0); ++i) absl::StrAppend(&text, Word(i), "\n");
  const std::string path = (std::filesystem::temp_directory_path() /
                            absl::StrCat("table_benchmark_", state.range(0), ".txt"))
                               .string();
  if (!WriteFileAtomically(FileSystem::Posix(), path, text).ok()) std::abort();
  TableSpec spec;
  spec.key_dtype = DT_STRING;
  spec.value_dtype = DT_INT64;
  spec.name = "vocabulary";
  for (auto _ : state) {
    const auto table = MakeTable(spec).value();
    const Status filled = FillTableFromFile(FileSystem::Posix(), path,
                                            {.key_index = kWholeLine, .value_index = kLineNumber},
                                            nullptr, table.get());
    if (!filled.ok()) state.SkipWithError("cannot be filled");
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(ReadVocabulary)->Arg(10'000)->Arg(1'000'000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace

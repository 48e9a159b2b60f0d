// SPDX-License-Identifier: Apache-2.0
//
// bazel run -c opt //data:parse_benchmark: what it costs to read Examples and CSV. Items are
// examples or rows. MILLRACE_NUM_THREADS=1 for one thread.
//
// Protobuf's own parser runs next to ours, on the same bytes, in the same run; it makes messages
// only (into memory that it uses again), from which nobody has made tensors yet.

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/cancellation.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/tensor.h"
#include "data/csv.h"
#include "data/dataset.h"
#include "data/decode_csv.h"
#include "data/iterator.h"
#include "data/parse_features.h"
#include "data/parse_rows.h"
#include "google/protobuf/arena.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "proto/example.pb.h"
#include "runtime/session.h"

namespace millrace {
namespace {

// --- Examples

constexpr int kFeatures = 40, kBatch = 128;

// 16 floats, 12 ints, 12 strings, as a table's row has them.
tensorflow::Example Row(int i) {
  tensorflow::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  for (int f = 0; f < kFeatures; ++f) {
    tensorflow::Feature& feature = features[absl::StrCat("column_", f)];
    if (f < 16) {
      feature.mutable_float_list()->add_value(static_cast<float>(i * f) / 7);
    } else if (f < 28) {
      feature.mutable_int64_list()->add_value(i * f * 31);
    } else {
      feature.mutable_bytes_list()->add_value(absl::StrCat("category ", (i * 7 + f) % 50));
    }
  }
  return example;
}
FeatureSpecs Specs(bool sparse) {
  FeatureSpecs specs;
  for (int f = 0; f < kFeatures; ++f) {
    const DType dtype = f < 16 ? DT_FLOAT : f < 28 ? DT_INT64 : DT_STRING;
    const std::string key = absl::StrCat("column_", f);
    if (sparse && dtype == DT_STRING) {
      specs[key] = VarLenFeature{.dtype = dtype};
    } else {
      specs[key] = FixedLenFeature{.dtype = dtype, .shape = {1}};
    }
  }
  return specs;
}
const std::vector<std::string>& Rows() {
  static const auto* const rows = [] {
    auto* made = new std::vector<std::string>;
    for (int i = 0; i < kBatch; ++i) made->push_back(Row(i).SerializeAsString());
    return made;
  }();
  return *rows;
}

// A step of one thread that feeds `fed` and fetches `fetches`.
void RunSteps(benchmark::State& state, const Scope& root, const Tensor& fed,
              const std::vector<std::string>& fetches, int64_t items) {
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  const Status extended = session.ok() ? (*session)->Extend(root) : session.status();
  if (!extended.ok()) return state.SkipWithError(extended.ToString().c_str());
  auto step = (*session)->Prepare({.feeds = {"x"}, .fetches = fetches});
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
  const std::vector<Tensor> feeds = {fed};
  for (auto _ : state) {
    auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError("Run");
    benchmark::DoNotOptimize(out);
  }
  state.SetItemsProcessed(state.iterations() * items);
}

// 40 features of 128 examples; with `sparse` the strings are sparse tensors.
void ParseExamples(benchmark::State& state) {
  Scope root;
  const Output serialized = Placeholder(root.WithName("x"), DT_STRING, {-1});
  const ParsedFeatures parsed = ParseExample(root, serialized, Specs(state.range(0) != 0));
  std::vector<std::string> fetches;
  for (const auto& [name, output] : parsed.dense) fetches.push_back(output.name());
  for (const auto& [name, tensor] : parsed.sparse) {
    fetches.insert(fetches.end(), {tensor.indices.name(), tensor.values.name()});
  }
  RunSteps(state, root, Tensor::Vector<std::string>(Rows()), fetches, kBatch);
}
BENCHMARK(ParseExamples)->ArgName("sparse")->Arg(0)->Arg(1)->UseRealTime();

void ProtobufParse(benchmark::State& state) {
  tensorflow::Example example;
  for (auto _ : state) {
    for (const std::string& row : Rows()) {
      if (!example.ParseFromString(row)) return state.SkipWithError("Parse");
      benchmark::DoNotOptimize(example);
    }
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(ProtobufParse)->UseRealTime();

// The same on an arena, of which each batch uses the memory again.
void ProtobufParseOnArena(benchmark::State& state) {
  std::vector<char> block(4 << 20);
  google::protobuf::Arena arena(block.data(), block.size());
  for (auto _ : state) {
    for (const std::string& row : Rows()) {
      auto* const example = google::protobuf::Arena::CreateMessage<tensorflow::Example>(&arena);
      if (!example->ParseFromString(row)) return state.SkipWithError("Parse");
      benchmark::DoNotOptimize(example);
    }
    arena.Reset();
  }
  state.SetItemsProcessed(state.iterations() * kBatch);
}
BENCHMARK(ProtobufParseOnArena)->UseRealTime();

// --- CSV

constexpr int64_t kCsvRows = 200000;

// CENSUS_CSV, a file of the census' columns; else one of made-up people, made once.
const std::string& CensusFile() {
  static const auto* const path = [] {
    if (const char* const given = std::getenv("CENSUS_CSV")) return new std::string(given);
    const char* const words[] = {"Private",   "Self-emp-not-inc",
                                 "HS-grad",   "Some-college",
                                 "Divorced",  "Married-civ-spouse",
                                 "Sales",     "Machine-op-inspct",
                                 "Own-child", "White",
                                 "Male",      "United-States"};
    std::string bytes;
    uint32_t x = 1;
    const auto next = [&](uint32_t n) { return (x = x * 1664525 + 1013904223) / 65536 % n; };
    const auto word = [&] { return words[next(12)]; };
    for (int64_t i = 0; i < kCsvRows; ++i) {
      absl::StrAppend(&bytes, 17 + next(70), ", ", word(), ", ", 12285 + 20 * next(60000), ", ",
                      word(), ", ", 1 + next(16), ", ", word(), ", ", word(), ", ", word(), ", ");
      absl::StrAppend(&bytes, word(), ", ", word(), ", ", next(3) == 0 ? 2174 : 0, ", ",
                      next(4) == 0 ? 1902 : 0, ", ", 1 + next(99), ", ", word(), ", ",
                      next(4) == 0 ? ">50K\n" : "<=50K\n");
    }
    auto* made = new std::string(
        (std::filesystem::temp_directory_path() / ("parse_benchmark_" + RandomHexName())).string());
    WriteFileAtomically(FileSystem::Posix(), *made, bytes).IgnoreError();
    std::atexit([] { FileSystem::Posix()->DeleteFile(CensusFile()).IgnoreError(); });
    return made;
  }();
  return *path;
}

// One pass; items are rows.
void CountRows(benchmark::State& state, const data::Dataset& batches) {
  int64_t count = 0;
  for (auto _ : state) {
    auto iterator = batches.MakeIterator();
    if (!iterator.ok()) return state.SkipWithError(iterator.status().ToString().c_str());
    for (data::Element batch;;) {
      const StatusOr<bool> more = (*iterator)->Next(&batch);
      if (!more.ok()) return state.SkipWithError(more.status().ToString().c_str());
      if (!*more) break;
      count += batch[0].dim(0);
    }
  }
  state.SetItemsProcessed(count);
}

// 15 columns, six of them numbers; batches of range(0) rows.
void CsvFile(benchmark::State& state) {
  const Tensor number = Tensor::Scalar(0.0f), text = Tensor::Scalar("");
  const data::Dataset rows =
      data::Dataset::TextLines({CensusFile()})
          .Map(data::DecodeCsv({.defaults = {number, text, number, text, number, text, text, text,
                                             text, text, number, number, number, text, text}}))
          .Batch(state.range(0));
  CountRows(state, rows);
}
BENCHMARK(CsvFile)->Arg(40)->Arg(1024)->UseRealTime()->Unit(benchmark::kMillisecond);

// The same rows as Examples in a file of records; in batches of 40.
void RecordFile(benchmark::State& state) {
  constexpr int kColumns = 15;
  const auto is_number = [](int c) { return c == 0 || c == 2 || c == 4 || (c >= 10 && c < 13); };
  FeatureSpecs specs;
  for (int c = 0; c < kColumns; ++c) {
    specs[absl::StrCat("column_", c)] =
        FixedLenFeature{.dtype = is_number(c) ? DT_FLOAT : DT_STRING};
  }
  const std::string path =
      (std::filesystem::temp_directory_path() / ("parse_benchmark_" + RandomHexName())).string();
  auto writer = RecordWriter::Open(FileSystem::Posix(), path);
  for (int i = 0; i < 50000; ++i) {
    tensorflow::Example example;
    auto& features = *example.mutable_features()->mutable_feature();
    for (int c = 0; c < kColumns; ++c) {
      tensorflow::Feature& feature = features[absl::StrCat("column_", c)];
      if (is_number(c)) {
        feature.mutable_float_list()->add_value(static_cast<float>(i * c % 1000));
      } else {
        feature.mutable_bytes_list()->add_value(absl::StrCat("some word ", i * c % 10));
      }
    }
    (*writer)->Write(example.SerializeAsString()).IgnoreError();
  }
  (*writer)->Close().IgnoreError();
  const data::Dataset rows =
      data::Dataset::Records({path}).Map(data::ParseExampleRows(specs)).Batch(40);
  CountRows(state, rows);
  FileSystem::Posix()->DeleteFile(path).IgnoreError();
}
BENCHMARK(RecordFile)->UseRealTime()->Unit(benchmark::kMillisecond);

// The same rows from a function of the program, 15 scalars at a time; in batches of 40.
void Generator(benchmark::State& state) {
  const Tensor number = Tensor::Scalar(1.5f), text = Tensor::Scalar("some word 7");
  data::Element row;
  data::ElementSpec spec;
  for (int c = 0; c < 15; ++c) {
    row.push_back(c % 5 < 2 ? number : text);
    spec.push_back({row.back().dtype(), PartialShape::Scalar()});
  }
  const auto make = [row](CancellationManager*) -> StatusOr<data::Generator> {
    return data::Generator([row, left = 50000](data::Element* element) mutable -> StatusOr<bool> {
      if (left-- == 0) return false;
      *element = row;
      return true;
    });
  };
  CountRows(state, data::Dataset::FromGenerator(make, spec).Batch(40));
}
BENCHMARK(Generator)->UseRealTime()->Unit(benchmark::kMillisecond);

// What a served model is sent: 40 records in a step.
void DecodeCsvOp(benchmark::State& state) {
  Scope root;
  const Output records = Placeholder(root.WithName("x"), DT_STRING, {-1});
  std::vector<Output> defaults;
  for (int i = 0; i < 15; ++i) {
    defaults.push_back(i % 3 == 0 ? Const(root, 0.0f) : Const(root, ""));
  }
  std::vector<std::string> fetches;
  for (const Output& column : DecodeCSV(root, records, defaults)) fetches.push_back(column.name());
  const std::vector<std::string> lines(
      40,
      "39, State-gov, a,77516, Bachelors, x,13, Never-married, y,2174, Adm-clerical, z,40, "
      "United-States, <=50K");
  RunSteps(state, root, Tensor::Vector<std::string>(lines), fetches, 40);
}
BENCHMARK(DecodeCsvOp)->UseRealTime();

}  // namespace
}  // namespace millrace

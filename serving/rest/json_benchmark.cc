// SPDX-License-Identifier: Apache-2.0
// Bytes of JSON per second, read into tensors and written from them.
//
//   bazel run -c opt //serving/rest:json_benchmark
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "benchmark/benchmark.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "serving/aliased_tensor.h"
#include "serving/rest/json_replies.h"
#include "serving/rest/json_tensors.h"

namespace millrace {
namespace {

constexpr size_t kBodyBytes = 1 << 20;

// A body of about 1 MB: rows of `columns` values, or without rows when that is 0.
template <typename Value>
std::string Body(size_t columns, const Value& value) {
  std::vector<std::string> items;
  for (size_t bytes = 0; bytes < kBodyBytes;) {
    std::string item = value();
    if (columns > 0) {
      std::vector<std::string> row(columns);
      for (std::string& text : row) text = value();
      item = absl::StrCat("[", absl::StrJoin(row, ", "), "]");
    }
    bytes += item.size() + 2;
    items.push_back(std::move(item));
  }
  return absl::StrCat("{\"instances\": [", absl::StrJoin(items, ", "), "]}");
}

void Read(benchmark::State& state, DType dtype, const std::string& body) {
  const std::vector<JsonInput> inputs = {{.alias = "x", .dtype = dtype}};
  const JsonInputsOf inputs_of = [&](absl::string_view) -> StatusOr<absl::Span<const JsonInput>> {
    return absl::MakeConstSpan(inputs);
  };
  for (auto _ : state) {
    StatusOr<JsonPredictRequest> request = ReadPredictRequest(body, inputs_of);
    if (!request.ok()) state.SkipWithError(request.status().ToString().c_str());
    benchmark::DoNotOptimize(request);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(body.size()));
}

// Six decimals, as most programs write floats; the argument is the length of a row.
void ReadFloats(benchmark::State& state) {
  std::mt19937_64 random(1);
  Read(state, DT_FLOAT, Body(static_cast<size_t>(state.range(0)), [&] {
         return absl::StrCat("0.", 100000 + random() % 900000);
       }));
}
BENCHMARK(ReadFloats)->Arg(0)->Arg(4)->Arg(784);

// Sixteen decimals, as Python writes doubles.
void ReadDoubles(benchmark::State& state) {
  std::mt19937_64 random(1);
  Read(state, DT_DOUBLE, Body(static_cast<size_t>(state.range(0)), [&] {
         return absl::StrCat("0.", 1000000000000000 + random() % 9000000000000000);
       }));
}
BENCHMARK(ReadDoubles)->Arg(784);

// With exponents: all of them are RapidJSON's.
void ReadExponents(benchmark::State& state) {
  std::mt19937_64 random(1);
  Read(state, DT_FLOAT, Body(static_cast<size_t>(state.range(0)), [&] {
         return absl::StrCat("1.", 10000 + random() % 90000, "e-05");
       }));
}
BENCHMARK(ReadExponents)->Arg(784);

void ReadInt64s(benchmark::State& state) {
  std::mt19937_64 random(1);
  Read(state, DT_INT64,
       Body(static_cast<size_t>(state.range(0)), [&] { return absl::StrCat(random() % 1000000); }));
}
BENCHMARK(ReadInt64s)->Arg(784);

void ReadStrings(benchmark::State& state) {
  std::mt19937_64 random(1);
  Read(state, DT_STRING, Body(static_cast<size_t>(state.range(0)), [&] {
         return absl::StrCat("\"", std::string(static_cast<size_t>(random() % 40), 'a'), "\"");
       }));
}
BENCHMARK(ReadStrings)->Arg(16);

// One row of a small model: what a request costs.
void ReadOneRow(benchmark::State& state) {
  Read(state, DT_FLOAT, R"({"instances": [1.0, 2.0, 5.0]})");
}
BENCHMARK(ReadOneRow);

void WriteFloats(benchmark::State& state) {
  std::mt19937_64 random(1);
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, Shape{128, state.range(0)});
  for (float& value : tensor.mutable_raw<float>()) {
    value = static_cast<float>(random() % 1000000) / 1000000;
  }
  const std::vector<AliasedTensor> outputs = {{"y", tensor}};
  size_t bytes = 0;
  for (auto _ : state) {
    StatusOr<std::string> reply = PredictReply(outputs, JsonForm::kRow);
    bytes += reply->size();
    benchmark::DoNotOptimize(reply);
  }
  state.SetBytesProcessed(static_cast<int64_t>(bytes));
}
BENCHMARK(WriteFloats)->Arg(784);

}  // namespace
}  // namespace millrace

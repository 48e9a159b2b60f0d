// SPDX-License-Identifier: Apache-2.0
//
// What a training loop pays for an event: the call, not the disk.

#include <cstdlib>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/file_system.h"
#include "core/histogram.h"
#include "core/random_bits.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "saver/event_writer.h"

namespace millrace {
namespace {

// Into memory: what is measured is not the disk of the day.
std::string Directory() {
  return JoinPath("/dev/shm", "event_writer_benchmark_" + RandomHexName());
}

struct Writer {
  Writer() : directory(Directory()), writer(*EventWriter::Open(directory)) {}
  ~Writer() {
    writer->Close().IgnoreError();
    FileSystem::Posix()->RecursivelyDelete(directory).IgnoreError();
  }
  const std::string directory;
  const std::shared_ptr<EventWriter> writer;
};

void Check(benchmark::State& state, const Status& status) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

void BM_AddScalar(benchmark::State& state) {
  Writer w;
  int64_t step = 0;
  for (auto _ : state) Check(state, w.writer->AddScalar("model/loss", 0.5f, ++step));
}
BENCHMARK(BM_AddScalar)->UseRealTime();

// The same through messages, as a summary op's bytes come.
void BM_AddSerializedSummary(benchmark::State& state) {
  Writer w;
  tensorflow::Summary summary;
  summary.add_value()->set_tag("model/loss");
  summary.mutable_value(0)->set_simple_value(0.5f);
  const std::string bytes = summary.SerializeAsString();
  int64_t step = 0;
  for (auto _ : state) Check(state, w.writer->AddSerializedSummary(bytes, ++step));
}
BENCHMARK(BM_AddSerializedSummary)->UseRealTime();

void BM_HistogramAdd(benchmark::State& state) {
  std::vector<double> values(4096);
  for (double& v : values) v = static_cast<double>(RandomUint64() % 20001) / 1e4 - 1;
  Histogram histogram;
  for (auto _ : state) {
    for (const double v : values) histogram.Add(v);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(values.size()));
}
BENCHMARK(BM_HistogramAdd);

}  // namespace
}  // namespace millrace

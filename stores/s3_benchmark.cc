// SPDX-License-Identifier: Apache-2.0
//
// A file of 256 MB, written to and read from the fake store (which is slower than a real one's
// network: compare with curl against the same server).

#include <memory>
#include <string>

#include "benchmark/benchmark.h"
#include "core/file_system.h"
#include "core/status.h"
#include "stores/s3_file_system.h"
#include "stores/s3_service.h"
#include "stores/testing/fake_s3.h"

namespace millrace {
namespace {

constexpr size_t kBytes = 256 << 20;
constexpr char kPath[] = "s3://bucket/large";

struct Store {
  std::unique_ptr<FakeS3> server = *FakeS3::Start();
  S3FileSystem files{[this] {
    S3Options options = server->Options();
    options.part_bytes = S3Options().part_bytes;
    return options;
  }()};
};

void Write(benchmark::State& state) {
  Store store;
  const std::string bytes(kBytes, 'x');
  for (auto _ : state) {
    const Status status = WriteFileAtomically(&store.files, kPath, bytes);
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  }
  state.SetBytesProcessed(static_cast<int64_t>(kBytes) * state.iterations());
}
BENCHMARK(Write)->UseRealTime();

void Read(benchmark::State& state) {
  Store store;
  const Status status = WriteFileAtomically(&store.files, kPath, std::string(kBytes, 'x'));
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  for (auto _ : state) {
    benchmark::DoNotOptimize(ReadFileToString(&store.files, kPath));
  }
  state.SetBytesProcessed(static_cast<int64_t>(kBytes) * state.iterations());
}
BENCHMARK(Read)->UseRealTime();

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "core/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "core/allocator.h"
#include "core/version.h"

namespace millrace {

MetricRegistry& ProcessMetrics() {
  static MetricRegistry* const registry = [] {
    auto* const made = new MetricRegistry;
    AddProcessReaders(made);
    return made;
  }();
  return *registry;
}

void AddProcessReaders(MetricRegistry* registry) {
  using Emit = MetricRegistry::Emit;
  const auto gauge = [registry](const char* name, const char* help, double (*read)()) {
    registry->AddReader({name, help, {}}, MetricKind::kGauge,
                        [read](Emit emit) { emit({}, read()); });
  };
  registry->AddReader({"millrace_build_info", "1, for its labels.", {"version"}},
                      MetricKind::kGauge, [](Emit emit) { emit({kVersion}, 1); });
  gauge("millrace_process_resident_bytes", "Memory of the process.",
        [] { return static_cast<double>(ProcessResidentBytes()); });
  registry->AddReader({"millrace_process_cpu_seconds_total", "Of all cores.", {}},
                      MetricKind::kCounter, [](Emit emit) { emit({}, ProcessCpuSeconds()); });
  gauge("millrace_tensor_bytes_in_use", "Memory of tensors.",
        [] { return static_cast<double>(DefaultAllocatorStats().bytes_in_use); });
  gauge("millrace_tensor_peak_bytes_in_use", "The most so far.",
        [] { return static_cast<double>(DefaultAllocatorStats().peak_bytes_in_use); });
  gauge("millrace_tensor_bytes_cached", "Kept for the next tensors.",
        [] { return static_cast<double>(DefaultAllocatorStats().bytes_cached); });
}

int64_t ProcessResidentBytes() {
  // In pages: the size, then what is in memory. Not a file that has a size.
  std::ifstream file("/proc/self/statm");
  int64_t size = 0, resident = 0;
  if (!(file >> size >> resident)) return 0;
  return resident * ::sysconf(_SC_PAGESIZE);
}

double ProcessCpuSeconds() {
  rusage usage = {};
  if (::getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace millrace

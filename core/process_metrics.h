// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_PROCESS_METRICS_H_
#define MILLRACE_CORE_PROCESS_METRICS_H_

// ProcessMetrics: the registry of what this process says of itself to Prometheus: its training, its
// task of a cluster, its memory. docs/metrics.md lists the names.
//
//   const std::shared_ptr<MetricValue> saves =
//       ProcessMetrics().AddCounter({"millrace_saves_total", "Checkpoints.", {}})->Find({});  //
//       once
//   saves->Add();
//
// A model server has a registry of its own (serving/monitoring) with the readers of the process.
//
// Thread-safety: all functions, from any thread. Lifetime: the registry lives for ever.
// Failure: none; what the system does not say is 0.

#include <cstdint>

#include "core/metrics.h"

namespace millrace {

// With AddProcessReaders from its first use on.
MetricRegistry& ProcessMetrics();

// millrace_build_info, millrace_process_*, millrace_tensor_*.
void AddProcessReaders(MetricRegistry* registry);

// Memory of the process that is not swapped out.
int64_t ProcessResidentBytes();
// Of all threads so far, in the kernel and out of it.
double ProcessCpuSeconds();

}  // namespace millrace

#endif  // MILLRACE_CORE_PROCESS_METRICS_H_

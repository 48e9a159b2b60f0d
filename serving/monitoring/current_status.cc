// SPDX-License-Identifier: Apache-2.0
#include "serving/monitoring/current_status.h"

#include <cstdint>

#include "absl/strings/string_view.h"
#include "core/allocator.h"
#include "core/process_metrics.h"
#include "core/version.h"

namespace millrace {

ServerStatus CurrentStatus(const ModelVersions& versions, const ServerMetrics& metrics) {
  return {.build = kVersion,
          .uptime = metrics.uptime(),
          .num_running = metrics.num_running(),
          .num_waiting = metrics.num_waiting(),
          .tensor_bytes = DefaultAllocatorStats().bytes_in_use,
          .resident_bytes = ProcessResidentBytes(),
          .models = versions.GetStatuses(),
          .running_of = [&metrics](absl::string_view model, int64_t version) {
            return metrics.num_running(model, version);
          }};
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "graph/table_parts.h"

#include <utility>

#include "core/status.h"
#include "graph/device_name.h"
#include "proto/node_def.pb.h"

namespace millrace {

TablesInParts TablesInParts::On(int num_ps, int64_t above, DeviceFunction places) {
  TablesInParts tables{.places = std::move(places)};
  if (above == 0) return tables;
  tables.max_parts = num_ps;
  tables.min_part_bytes = above;
  return tables;
}

std::string TablesInParts::operator()(const tensorflow::NodeDef& node) const {
  return places ? places(node) : node.device();
}

TablesInParts TablesInPartsOf(const Scope& scope) {
  const auto& devices = scope.home()->devices;
  for (auto it = devices.rbegin(); it != devices.rend(); ++it) {
    const auto& [device, function] = *it;
    if (function) {
      const auto* const tables = function.target<TablesInParts>();
      if (tables == nullptr) continue;
      return {.max_parts = tables->max_parts, .min_part_bytes = tables->min_part_bytes};
    }
    const StatusOr<DeviceName> name = DeviceName::Parse(device);
    if (name.ok() && name->task) return {};
  }
  return {};
}

}  // namespace millrace

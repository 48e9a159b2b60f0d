// SPDX-License-Identifier: Apache-2.0
#include "layers/crosses_tasks.h"

#include "core/status.h"
#include "graph/device_name.h"
#include "graph/graph.h"

namespace millrace {

bool CrossesTasks(absl::string_view device, const Output& beside) {
  const StatusOr<DeviceName> there = DeviceName::Parse(device);
  if (!there.ok() || there->Task().empty()) return false;
  const StatusOr<DeviceName> here = DeviceName::Parse(beside.node()->requested_device());
  return here.ok() && (here->Task().empty() || !here->Task().IsCompatible(there->Task()));
}

}  // namespace millrace

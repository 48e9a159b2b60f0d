// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/step_wire.h"

#include <cstdlib>

namespace millrace {

StatusOr<StepWire> StepWireOf(absl::string_view name) {
  if (name == "calls") return StepWire::kCalls;
  if (name == "links") return StepWire::kLinks;
  return InvalidArgument("MILLRACE_WIRE must be 'calls' or 'links', got '", name, "'");
}

StatusOr<StepWire> StepWireOfEnvironment() {
  const char* const name = std::getenv("MILLRACE_WIRE");
  return name == nullptr || *name == '\0' ? StepWire::kLinks : StepWireOf(name);
}

}  // namespace millrace

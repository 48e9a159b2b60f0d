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

StatusOr<bool> UnixLinksOfEnvironment() {
  const char* const text = std::getenv("MILLRACE_UNIX_LINKS");
  const absl::string_view value = text == nullptr ? "" : text;
  if (value == "0") return false;
  if (value.empty() || value == "1") return true;
  return InvalidArgument("MILLRACE_UNIX_LINKS must be '0' or '1', got '", value, "'");
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/step_wire.h"

#include <cstdlib>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(StepWireTest, TheEnvironmentChoosesAndLinksAreTheDefault) {
  ::unsetenv("MILLRACE_WIRE");
  EXPECT_EQ(StepWireOfEnvironment().value(), StepWire::kLinks);
  const struct {
    const char* name;
    StepWire wire;
  } kCases[] = {{"", StepWire::kLinks}, {"calls", StepWire::kCalls}, {"links", StepWire::kLinks}};
  for (const auto& c : kCases) {
    ::setenv("MILLRACE_WIRE", c.name, 1);
    EXPECT_EQ(StepWireOfEnvironment().value(), c.wire) << c.name;
  }
  ::setenv("MILLRACE_WIRE", "pigeons", 1);
  EXPECT_STATUS(StepWireOfEnvironment().status(), absl::StatusCode::kInvalidArgument,
                "MILLRACE_WIRE must be 'calls' or 'links', got 'pigeons'");
  ::unsetenv("MILLRACE_WIRE");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/step_wire.h"

#include <cstdint>
#include <cstdlib>
#include <string>

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
  } kCases[] = {{"", StepWire::kLinks},
                {"links", StepWire::kLinks},
                {"unix", StepWire::kLinks},
                {"grpc", StepWire::kLinks},
                {"calls", StepWire::kCalls}};
  for (const auto& c : kCases) {
    ::setenv("MILLRACE_WIRE", c.name, 1);
    EXPECT_EQ(StepWireOfEnvironment().value(), c.wire) << c.name;
  }
  ::setenv("MILLRACE_WIRE", "pigeons", 1);
  EXPECT_STATUS(StepWireOfEnvironment().status(), absl::StatusCode::kInvalidArgument,
                "MILLRACE_WIRE must be 'links', 'unix', 'grpc' or 'calls', got 'pigeons'");
  ::unsetenv("MILLRACE_WIRE");
}

TEST(StepWireTest, UnixLinksAreSwitchedOffByTheEnvironment) {
  ::unsetenv("MILLRACE_WIRE");
  ::unsetenv("MILLRACE_UNIX_LINKS");
  EXPECT_TRUE(UnixLinksOfEnvironment().value());
  const struct {
    const char* text;
    bool on;
  } kCases[] = {{"", true}, {"1", true}, {"0", false}};
  for (const auto& c : kCases) {
    ::setenv("MILLRACE_UNIX_LINKS", c.text, 1);
    EXPECT_EQ(UnixLinksOfEnvironment().value(), c.on) << c.text;
  }
  for (const char* const text : {"off", "2", " 0"}) {
    ::setenv("MILLRACE_UNIX_LINKS", text, 1);
    EXPECT_STATUS(UnixLinksOfEnvironment().status(), absl::StatusCode::kInvalidArgument,
                  std::string("MILLRACE_UNIX_LINKS must be '0' or '1', got '") + text + "'");
  }
  ::unsetenv("MILLRACE_UNIX_LINKS");
}

TEST(StepWireTest, TheEnvironmentSaysHowMuchALinkShares) {
  ::unsetenv("MILLRACE_LINK_SHARED_BYTES");
  EXPECT_EQ(LinkSharedBytesOfEnvironment(5).value(), 5);
  const struct {
    const char* text;
    int64_t bytes;
  } kCases[] = {{"", 5}, {"0", 0}, {"1073741824", int64_t{1} << 30}};
  for (const auto& c : kCases) {
    ::setenv("MILLRACE_LINK_SHARED_BYTES", c.text, 1);
    EXPECT_EQ(LinkSharedBytesOfEnvironment(5).value(), c.bytes) << c.text;
  }
  for (const char* const text : {"-1", "1G", "much", "99999999999999999999"}) {
    ::setenv("MILLRACE_LINK_SHARED_BYTES", text, 1);
    EXPECT_STATUS(LinkSharedBytesOfEnvironment(5).status(), absl::StatusCode::kInvalidArgument,
                  std::string("MILLRACE_LINK_SHARED_BYTES must be >= 0, got '") + text + "'");
  }
  ::unsetenv("MILLRACE_LINK_SHARED_BYTES");
}

TEST(StepWireTest, UnixLinksAreOffWhereEitherVariableSaysSo) {
  const struct {
    const char *wire, *unix_links;
    bool on;
  } kCases[] = {{"grpc", "", false},  {"grpc", "1", false}, {"grpc", "0", false},
                {"unix", "", true},   {"unix", "0", false}, {"links", "1", true},
                {"calls", "", true},     // others' steps may take them
                {"pigeons", "", true}};  // who asks for the wire hears of it
  for (const auto& c : kCases) {
    ::setenv("MILLRACE_WIRE", c.wire, 1);
    ::setenv("MILLRACE_UNIX_LINKS", c.unix_links, 1);
    EXPECT_EQ(UnixLinksOfEnvironment().value(), c.on) << c.wire << ", " << c.unix_links;
  }
  ::unsetenv("MILLRACE_WIRE");
  ::unsetenv("MILLRACE_UNIX_LINKS");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/link_environment.h"

#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(LinkEnvironmentTest, WhatIsNoWireIsRefused) {
  ::unsetenv("MILLRACE_UNIX_LINKS");
  for (const char* const wire : {"calls", "pigeons", "Links", " unix"}) {
    ::setenv("MILLRACE_WIRE", wire, 1);
    EXPECT_STATUS(
        UnixLinksOfEnvironment().status(), absl::StatusCode::kInvalidArgument,
        std::string("MILLRACE_WIRE must be 'links', 'unix' or 'grpc', got '") + wire + "'");
  }
  ::unsetenv("MILLRACE_WIRE");
}

TEST(LinkEnvironmentTest, UnixLinksAreSwitchedOffByTheEnvironment) {
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

TEST(LinkEnvironmentTest, TheEnvironmentSaysHowMuchALinkShares) {
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

TEST(LinkEnvironmentTest, UnixLinksAreOffWhereEitherVariableSaysSo) {
  const struct {
    const char *wire, *unix_links;
    bool on;
  } kCases[] = {{"grpc", "", false}, {"grpc", "1", false}, {"grpc", "0", false},
                {"unix", "", true},  {"unix", "0", false}, {"links", "1", true},
                {"links", "", true}, {"", "", true},       {"", "0", false}};
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

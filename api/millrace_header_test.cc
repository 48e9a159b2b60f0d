// SPDX-License-Identifier: Apache-2.0
//
// What programs outside include: first, so that it stands alone.

#include <millrace/millrace.h>

// Every header of protobuf defines it.
#ifdef GOOGLE_PROTOBUF_VERSION
constexpr bool kHasProtobuf = true;
#else
constexpr bool kHasProtobuf = false;
#endif

// A source of this repository that sees a header by both paths sees it once.
#include "gtest/gtest.h"
#include "runtime/session.h"

// covers: outside: `#include <millrace/millrace.h>` knows no protobuf; linking `//:millrace`
//   registers every op, local sessions and `grpc://`

namespace millrace {
namespace {

TEST(MillraceHeader, IsFreeOfProtobuf) { EXPECT_FALSE(kHasProtobuf); }

TEST(MillraceHeader, SaysTheVersion) {
  EXPECT_STREQ(kVersion, MILLRACE_VERSION);
  EXPECT_EQ(std::string(kVersion).find_first_not_of("0123456789."), std::string::npos);
}

// Linking //:millrace is enough: the ops, local sessions and grpc:// are registered.
TEST(MillraceLibrary, RunsAStep) {
  Scope root;
  const Output x = Const(root, 2.0f);
  const Output y = Mul(root, x, x);
  const StatusOr<std::unique_ptr<Session>> session = NewSession();
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Extend(root).ok());
  const StatusOr<std::vector<Tensor>> out = (*session)->Run({}, {y});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ((*out)[0].scalar<float>(), 4.0f);
}

TEST(MillraceLibrary, HasSessionsOnClusters) {
  const Status status = NewSession({.target = "grpc://"}).status();
  EXPECT_FALSE(absl::IsNotFound(status)) << status;
}

}  // namespace
}  // namespace millrace

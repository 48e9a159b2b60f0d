// SPDX-License-Identifier: Apache-2.0
#include "ops/state/count_up_to.h"

#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "runtime/session.h"
#include "runtime/testing/op_test.h"

// covers: training: `CountUpTo` gives each number below its limit once and then the end

namespace millrace {
namespace {

using absl::StatusCode;

TEST(CountUpToTest, GivesEachNumberBelowTheLimitOnceAndThenTheEnd) {
  for (const DType dtype : {DT_INT32, DT_INT64}) {
    Scope root;
    const Variable v = MakeVariable(
        root.WithName("v"), dtype == DT_INT32 ? Const(root, int32_t{3}) : Const(root, int64_t{3}));
    const Output count = ResourceCountUpTo(root, v.handle, 5, dtype);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    EXPECT_STATUS(session->Run({}, {count}).status(), StatusCode::kFailedPrecondition,
                  "uninitialized");
    ASSERT_OK(session->Run({}, {}, {v.initializer}).status());
    for (const int64_t expected : {3, 4}) {
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {count}));
      EXPECT_EQ(dtype == DT_INT32 ? out[0].scalar<int32_t>() : out[0].scalar<int64_t>(), expected);
    }
    for (int i = 0; i < 2; ++i) {
      EXPECT_STATUS(session->Run({}, {count}).status(), StatusCode::kOutOfRange,
                    "Reached limit of 5");
    }
    ASSERT_OK_AND_ASSIGN(const auto now, session->Run({}, {v.value}));
    EXPECT_EQ(dtype == DT_INT32 ? now[0].scalar<int32_t>() : now[0].scalar<int64_t>(), 5);
  }
}

TEST(CountUpToTest, RefusesWhatDoesNotCount) {
  Scope root;
  const Variable v = MakeVariable(root.WithName("v"), Const(root, int64_t{3}));
  const Output count = ResourceCountUpTo(root, v.handle, 5, DT_INT32);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {v.initializer}).status());
  EXPECT_STATUS(session->Run({}, {count}).status(), StatusCode::kInvalidArgument,
                "the variable must be int32, got int64");
  const Variable row = MakeVariable(root.WithName("row"), Const(root, {int64_t{3}, int64_t{4}}));
  ResourceCountUpTo(root, row.handle, 5, DT_INT64);
  EXPECT_STATUS(root.status(), StatusCode::kInvalidArgument,
                "the variable must be a scalar, got shape [2]");
}

}  // namespace
}  // namespace millrace

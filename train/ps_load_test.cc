// SPDX-License-Identifier: Apache-2.0
#include "train/ps_load.h"

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/math/reduction.h"
#include "ops/state/resource_variable.h"
#include "train/adam.h"

// covers: clusters: the chief's log names the bytes of each ps and what helps where one has too
//   many

namespace millrace {
namespace {

// A vector of so many floats.
Variable FloatsOn(const Scope& root, const std::string& name, int64_t size,
                  const std::string& device) {
  return MakeVariable(root.WithDevice(device).WithName(name), Shape{size}, DT_FLOAT,
                      ZerosInitializer());
}

std::string TextOf(const Scope& root, absl::Span<const int> tasks = {}) {
  EXPECT_OK(root.status());
  return PsLoad::Of(*root.graph(), tasks).ToString();
}

TEST(PsLoadTest, EachParameterServerHasItsBytes) {
  Scope root;
  FloatsOn(root, "a", 10, "/job:ps/task:0");
  FloatsOn(root, "b", 6, "/job:ps/task:1");
  FloatsOn(root, "c", 3, "/job:ps/task:1/device:CPU:0");
  FloatsOn(root, "mine", 100, "/job:worker/task:0");
  FloatsOn(root, "free", 100, "");
  EXPECT_EQ(TextOf(root),
            "variables on the parameter servers: /job:ps/task:0 40 bytes, /job:ps/task:1 36 bytes");
}

// 48 against a mean of 32 is 1.5 times, and no more; 52 against 34 is.
TEST(PsLoadTest, MoreThanOneAndAHalfMeansIsSaid) {
  Scope even;
  FloatsOn(even, "a", 12, "/job:ps/task:0");
  FloatsOn(even, "b", 4, "/job:ps/task:1");
  EXPECT_EQ(TextOf(even),
            "variables on the parameter servers: /job:ps/task:0 48 bytes, /job:ps/task:1 16 bytes");
  Scope uneven;
  FloatsOn(uneven, "a", 13, "/job:ps/task:0");
  FloatsOn(uneven, "b", 4, "/job:ps/task:1");
  EXPECT_EQ(TextOf(uneven),
            "variables on the parameter servers: /job:ps/task:0 52 bytes, /job:ps/task:1 16 bytes; "
            "/job:ps/task:0 has 1.5 times the mean: cut 'a', 52 bytes, into parts with a "
            "partitioner");
}

// 160 bytes against 40: the mean is 100, and no variable has more than 40.
TEST(PsLoadTest, SmallVariablesNeedAnotherPlacing) {
  Scope root;
  for (int i = 0; i < 4; ++i) FloatsOn(root, "v", 10, "/job:ps/task:1");
  FloatsOn(root, "w", 10, "/job:ps/task:0");
  EXPECT_EQ(
      TextOf(root),
      "variables on the parameter servers: /job:ps/task:0 40 bytes, /job:ps/task:1 160 bytes; "
      "/job:ps/task:1 has 1.6 times the mean: BalancedDeviceSetter places variables by their "
      "bytes");
}

// Of three tasks one has nothing: 40 bytes of 40 are three times the mean.
TEST(PsLoadTest, ParameterServersWithoutVariablesCount) {
  Scope root;
  FloatsOn(root, "a", 10, "/job:ps/task:4");
  EXPECT_EQ(TextOf(root, {1, 4, 7}),
            "variables on the parameter servers: /job:ps/task:1 0 bytes, /job:ps/task:4 40 bytes, "
            "/job:ps/task:7 0 bytes; /job:ps/task:4 has 3 times the mean: cut 'a', 40 bytes, into "
            "parts with a partitioner");
}

TEST(PsLoadTest, SizesThatAreNotKnownAreNamed) {
  Scope root;
  FloatsOn(root, "a", 1, "/job:ps/task:0");
  VarHandleOp(root.WithDevice("/job:ps/task:1").WithName("b"), DT_FLOAT, PartialShape{-1, 3});
  VarHandleOp(root.WithDevice("/job:ps/task:1").WithName("c"), DT_FLOAT, PartialShape{2});
  EXPECT_EQ(TextOf(root),
            "variables on the parameter servers: /job:ps/task:0 4 bytes, /job:ps/task:1 9 bytes, "
            "without 1 whose size is not known");
}

// Adam: two slots for each variable; its two powers stand with the first.
TEST(PsLoadTest, SlotsCount) {
  Scope root;
  const Variable w = FloatsOn(root, "w", 10, "/job:ps/task:1");
  AdamOptimizer({.learning_rate = 0.1}).Minimize(root, ReduceMean(root, w.value));
  const PsLoad load = PsLoad::Of(*root.graph());
  EXPECT_OK(root.status());
  ASSERT_EQ(load.tasks.size(), 1u);
  EXPECT_EQ(load.tasks[0].task, 1);
  EXPECT_EQ(load.tasks[0].bytes, 3 * 40 + 2 * 4);
}

TEST(PsLoadTest, NothingIsSaidOfLessThanTwo) {
  Scope root;
  EXPECT_EQ(PsLoad::Of(*root.graph()).Fullest(), nullptr);
  EXPECT_EQ(PsLoad::Of(*root.graph()).FullestInMeans(), 0);
  FloatsOn(root, "a", 1, "/job:ps/task:0");
  testing::internal::CaptureStderr();
  LogPsLoad("Train", PsLoad::Of(*root.graph()));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  testing::internal::CaptureStderr();
  LogPsLoad("Train", PsLoad::Of(*root.graph(), {0, 1}));
  EXPECT_NE(testing::internal::GetCapturedStderr().find(
                "Train: variables on the parameter servers: /job:ps/task:0 4 bytes, "
                "/job:ps/task:1 0 bytes; /job:ps/task:0 has 2 times the mean: cut 'a'"),
            std::string::npos);
}

}  // namespace
}  // namespace millrace

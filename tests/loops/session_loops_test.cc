// SPDX-License-Identifier: Apache-2.0
//
// Loops through a Session: on one device and on two, what is refused, what ends in time, and that
// the next Run works.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "proto/config.pb.h"
#include "runtime/session.h"

// covers: steps: loops through a session: on one device and on two; what is inside can be neither
//   fetched nor fed; a loop without end ends at its deadline, and the next step runs

namespace millrace {
namespace {

// limit (fed), result = the number of iterations, and names of what is inside.
struct Loop {
  Output limit, merge, body, result;
};

// for (i = 0; i < limit; i += 1), the body on `body_scope`.
Loop AddLoop(const Scope& scope, const Scope& body_scope) {
  Loop loop;
  loop.limit = Placeholder(scope.WithName("limit"), DT_FLOAT, {});
  const Output enter = Enter(scope, Const(scope, 0.0f), "loop");
  const Output bound = Enter(scope, loop.limit, "loop", {.is_constant = true});
  const Output one = Enter(scope, Const(scope, 1.0f), "loop", {.is_constant = true});
  loop.merge = Merge(scope.WithName("i"), {enter, enter}).output;
  const SwitchOutputs ways =
      Switch(scope, loop.merge, LoopCond(scope, Less(scope, loop.merge, bound)));
  loop.body = Add(body_scope.WithName("body"), ways.output_true, one);
  const Output next = NextIteration(scope, loop.body);
  EXPECT_OK(scope.graph()->UpdateInput(loop.merge.node(), 1, next.node(), 0));
  loop.result = Exit(scope.WithName("result"), ways.output_false);
  return loop;
}

class SessionLoopsTest : public ::testing::TestWithParam<int> {
 protected:
  SessionLoopsTest()
      : loop_(AddLoop(root_.WithDevice("/device:CPU:0"),
                      root_.WithDevice(absl::StrCat("/device:CPU:", GetParam() - 1)))) {
    SessionOptions options;
    options.config.device_count["CPU"] = GetParam();
    auto session = NewSession(options);
    EXPECT_OK(session.status());
    session_ = *std::move(session);
    EXPECT_OK(session_->Extend(root_));
  }
  void ExpectRuns(float times) {
    const auto out = session_->Run({{loop_.limit, Tensor::Scalar(times)}}, {loop_.result});
    ASSERT_OK(out.status());
    EXPECT_EQ((*out)[0].scalar<float>(), times);
  }

  Scope root_;
  Loop loop_;
  std::unique_ptr<Session> session_;
};

INSTANTIATE_TEST_SUITE_P(Devices, SessionLoopsTest, ::testing::Values(1, 2),
                         [](const auto& info) { return absl::StrCat("On", info.param); });

TEST_P(SessionLoopsTest, ALoopRunsAsOftenAsItIsTold) {
  for (const float times : {0.0f, 1.0f, 10.0f, 1000.0f}) ExpectRuns(times);
}

TEST_P(SessionLoopsTest, WhatIsInsideCanBeNeitherFetchedNorFed) {
  const Status fetched =
      session_->Run({{loop_.limit, Tensor::Scalar(3.0f)}}, {loop_.body}).status();
  EXPECT_STATUS(fetched, absl::StatusCode::kInvalidArgument, "must be outside of loops");
  EXPECT_STATUS(fetched, absl::StatusCode::kInvalidArgument, "of loop 'loop'");
  const Status fed =
      session_
          ->Run({{loop_.limit, Tensor::Scalar(3.0f)}, {loop_.merge, Tensor::Scalar(0.0f)}},
                {loop_.result})
          .status();
  EXPECT_STATUS(fed, absl::StatusCode::kInvalidArgument, "all inputs must come from one frame");
  ExpectRuns(3);
}

TEST_P(SessionLoopsTest, ALoopThatDoesNotEndIsEndedByItsDeadline) {
  ExpectRuns(3);
  const int64_t bytes = DefaultAllocatorStats().bytes_in_use;
  tensorflow::RunOptions options;
  options.set_timeout_in_ms(50);
  const Status status =
      session_->Run(options, {{loop_.limit, Tensor::Scalar(1e30f)}}, {loop_.result}, {}, nullptr)
          .status();
  EXPECT_STATUS(status, absl::StatusCode::kDeadlineExceeded, "Timed out");
  ExpectRuns(3);
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, bytes);
}

}  // namespace
}  // namespace millrace

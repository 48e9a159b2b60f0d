// SPDX-License-Identifier: Apache-2.0
#include "ops/training/sync_replicas.h"

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: training: the means of synchronous rounds are over all gradients of the round and no
//   other, dense and sparse; what is not finite or does not fit is refused with its trainer's name

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Rows of two.
Tensor Matrix(const std::vector<std::vector<float>>& rows) {
  Tensor matrix = *Tensor::Zeros(DT_FLOAT, Shape{static_cast<int64_t>(rows.size()), 2});
  size_t i = 0;
  for (const std::vector<float>& row : rows) {
    for (const float value : row) matrix.mutable_flat<float>()[i++] = value;
  }
  return matrix;
}

class SyncReplicasOpsTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_OK_AND_ASSIGN(session_, NewSession()); }
  Status RunOp(const Operation& op) {
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run({}, {}, {op}).status();
  }
  StatusOr<std::vector<Tensor>> Values(const std::vector<Output>& outputs) {
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run({}, {outputs.begin(), outputs.end()});
  }
  Operation Apply(const Output& accumulator, int64_t round, const Tensor& gradient,
                  const std::string& trainer = "worker 3") {
    return SyncReplicasApply(root_, accumulator, Const(root_, round), Const(root_, gradient),
                             trainer);
  }
  Operation ApplyRows(const Output& accumulator, int64_t round, const Tensor& indices,
                      const Tensor& values, const std::string& trainer = "worker 3") {
    return SyncReplicasApplyRows(root_, accumulator, Const(root_, round), Const(root_, indices),
                                 Const(root_, values), trainer);
  }
  StatusOr<Tensor> Take(const Output& accumulator, int64_t round, int64_t least = 1) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> values,
                        Values({SyncReplicasTake(root_, accumulator, Const(root_, round),
                                                 Const(root_, least), DT_FLOAT)}));
    return values[0];
  }

  const Scope root_;
  const Output dense_ =
      SyncReplicasAccumulator(root_, DT_FLOAT, PartialShape(Shape{2}), {.shared_name = "w"});
  const Output sparse_ = SyncReplicasAccumulator(root_, DT_FLOAT, PartialShape(Shape{10, 2}),
                                                 {.is_sparse = true, .shared_name = "table"});
  std::unique_ptr<Session> session_;
};

TEST_F(SyncReplicasOpsTest, ARoundHasItsOwnGradientsAndNoOthers) {
  ASSERT_OK(RunOp(Apply(dense_, 7, Tensor::Of<float>({1, 10}))));
  ASSERT_OK(RunOp(Apply(dense_, 7, Tensor::Of<float>({3, 30}), "worker 4")));
  // Twice in one round: a step that was cancelled, or whose session was lost, runs again.
  ASSERT_OK(RunOp(Apply(dense_, 7, Tensor::Of<float>({3, 30}), "worker 4")));
  ASSERT_OK(RunOp(Apply(dense_, 6, Tensor::Of<float>({100, 100}))));  // too late
  ASSERT_OK_AND_ASSIGN(const Tensor mean, Take(dense_, 7));
  ExpectTensorEqual(mean, Tensor::Of<float>({2, 20}));
  ASSERT_OK(RunOp(Apply(dense_, 7, Tensor::Of<float>({100, 100}))));  // too late
  // Of a round that was given up: dropped by the first gradient of the next.
  ASSERT_OK(RunOp(Apply(dense_, 8, Tensor::Of<float>({100, 100}))));
  ASSERT_OK(RunOp(Apply(dense_, 9, Tensor::Of<float>({5, 50}))));
  ASSERT_OK_AND_ASSIGN(const Tensor next, Take(dense_, 9));
  ExpectTensorEqual(next, Tensor::Of<float>({5, 50}));
}

TEST_F(SyncReplicasOpsTest, ATakeOfTooLittleIsAbortedAndTheNextRoundWorks) {
  constexpr int64_t kFirst = 1'700'000'000'000'000;  // numbers of rounds are times
  constexpr auto kAborted = absl::StatusCode::kAborted;
  EXPECT_STATUS(Take(dense_, kFirst), kAborted,
                "1 gradients for round 1700000000000000 must be "
                "there, got 0 for round 0");
  ASSERT_OK(RunOp(Apply(dense_, kFirst + 1, Tensor::Of<float>({2, 4}))));
  EXPECT_STATUS(Take(dense_, kFirst + 1, 2), kAborted, "2 gradients");
  ASSERT_OK(RunOp(Apply(dense_, kFirst + 2, Tensor::Of<float>({2, 4}))));
  // The late take of a round that was given up leaves the next one's gradients alone.
  EXPECT_STATUS(Take(dense_, kFirst + 1), kAborted, "the round is over");
  ASSERT_OK_AND_ASSIGN(const Tensor mean, Take(dense_, kFirst + 2));
  ExpectTensorEqual(mean, Tensor::Of<float>({2, 4}));
  // The rounds begin anew, far below.
  EXPECT_STATUS(Take(dense_, 5), kAborted, "");
  ASSERT_OK(RunOp(Apply(dense_, 6, Tensor::Of<float>({3, 6}))));
  ASSERT_OK_AND_ASSIGN(const Tensor anew, Take(dense_, 6));
  ExpectTensorEqual(anew, Tensor::Of<float>({3, 6}));
}

// Row 4 is in one of two gradients: its mean is over both, as in one batch of both's rows.
TEST_F(SyncReplicasOpsTest, TheMeanOfARowIsOverAllGradients) {
  ASSERT_OK(RunOp(
      ApplyRows(sparse_, 1, Tensor::Of<int64_t>({4, 1, 4}), Matrix({{1, 2}, {10, 20}, {3, 4}}))));
  ASSERT_OK(RunOp(ApplyRows(sparse_, 1, Tensor::Of<int64_t>({1}), Matrix({{2, 2}}), "worker 4")));
  const SyncReplicasRows rows = SyncReplicasTakeRows(root_, sparse_, Const(root_, int64_t{1}),
                                                     Const(root_, int64_t{2}), DT_FLOAT);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> taken, Values({rows.indices, rows.values}));
  ExpectTensorEqual(taken[0], Tensor::Of<int64_t>({1, 4}));
  ExpectTensorEqual(taken[1], Matrix({{6, 11}, {2, 3}}));
}

TEST_F(SyncReplicasOpsTest, WhatIsNotFiniteOrDoesNotFitIsRefusedWithItsTrainersName) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_STATUS(RunOp(Apply(dense_, 1, Tensor::Of<float>({0, bad}))), kInvalid,
                  "SyncReplicas: the gradient of worker 3 for 'w' must be finite, got an infinite "
                  "number or NaN at element 1");
  }
  EXPECT_STATUS(RunOp(Apply(dense_, 1, Tensor::Of<float>({1, 2, 3}))), kInvalid,
                "SyncReplicas: the gradient of worker 3 for 'w': Shape mismatch: expected [2], got "
                "[3]");
  EXPECT_STATUS(RunOp(ApplyRows(sparse_, 1, Tensor::Of<int64_t>({10}), Matrix({{1, 2}}))), kInvalid,
                "index is 10 exceeded 10");
  EXPECT_STATUS(RunOp(Apply(sparse_, 1, Tensor::Of<float>({1, 2}))), kInvalid,
                "SyncReplicas: accumulator 'table' must be dense for this op, got the other form");
  const Output other =
      SyncReplicasAccumulator(root_, DT_FLOAT, PartialShape(Shape{3}), {.shared_name = "w"});
  ASSERT_OK(RunOp(Apply(dense_, 1, Tensor::Of<float>({1, 2}))));
  EXPECT_STATUS(RunOp(Apply(other, 1, Tensor::Of<float>({1, 2, 3}))), kInvalid, "has shape");
}

TEST_F(SyncReplicasOpsTest, ARoundOfOneTrainer) {
  const Output rounds = SyncReplicasRounds(root_, {.shared_name = "rounds"});
  const Output join = SyncReplicasJoin(root_, rounds, "worker 3");
  const Output round = SyncReplicasRound(root_, rounds, "worker 3");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> joined, Values({join}));
  const SyncReplicasGiven gave = SyncReplicasGive(root_, rounds, round);
  const Output done =
      SyncReplicasDone(root_.WithControlDependencies({gave.leads.op()}), rounds, round);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> values,
                       Values({round, gave.leads, gave.next_round, done}));
  const int64_t first = joined[0].scalar<int64_t>();
  EXPECT_EQ(values[0].scalar<int64_t>(), first);
  EXPECT_TRUE(values[1].scalar<bool>());
  EXPECT_EQ(values[2].scalar<int64_t>(), first + 1);
  EXPECT_EQ(values[3].scalar<int64_t>(), first + 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> counts,
                       Values({SyncReplicasCounts(root_, rounds)}));
  ExpectTensorEqual(counts[0], Tensor::Of<int64_t>({1, 0, 0, 1}));
  ASSERT_OK(RunOp(SyncReplicasLeave(root_, rounds)));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> left, Values({SyncReplicasCounts(root_, rounds)}));
  ExpectTensorEqual(left[0], Tensor::Of<int64_t>({1, 0, 0, 0}));
  EXPECT_STATUS(Values({SyncReplicasRounds(root_, {.replicas_to_aggregate = 0})}), kInvalid,
                "replicas_to_aggregate must be >= 1, got 0");
}

}  // namespace
}  // namespace millrace

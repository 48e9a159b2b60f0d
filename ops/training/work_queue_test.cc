// SPDX-License-Identifier: Apache-2.0
#include "ops/training/work_queue.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/kernels/work_queue.h"
#include "ops/ops.h"
#include "runtime/session.h"

// covers: training: ops fill a work queue, take shards in a step that waits for others, save its
//   state and restore it

namespace millrace {
namespace {

class WorkQueueOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    queue_ = WorkQueueHandle(root_.WithName("queue"));
    taken_ = WorkQueueTake(root_, queue_, Const(root_, false));
    waiting_ = WorkQueueTake(root_, queue_, Const(root_, true));
    ids_ = Placeholder(root_, DT_INT64);
    done_ = WorkQueueDone(root_, queue_, ids_);
    saved_ = WorkQueueSave(root_, queue_);
    state_ = Placeholder(root_, DT_STRING, PartialShape::Scalar());
    restore_ = WorkQueueRestore(root_, queue_, state_);
    ledger_ = WorkQueueLedger(root_, queue_);
    ASSERT_OK_AND_ASSIGN(session_, NewSession());
  }
  Status Fill(const std::vector<std::string>& files, int64_t epochs) {
    std::vector<int64_t> begins(files.size(), 0), ends(files.size(), -1);
    const Operation fill = WorkQueueFill(
        root_, queue_, ConstVector<std::string>(root_, files), ConstVector<int64_t>(root_, begins),
        ConstVector<int64_t>(root_, ends), Const(root_, epochs), Const(root_, int64_t{0}));
    return Run({}, {}, {fill}).status();
  }
  StatusOr<std::vector<Tensor>> Run(const FeedList& feeds, const FetchList& fetches,
                                    const FetchList& targets = {}) {
    MR_RETURN_IF_ERROR(root_.status());
    MR_RETURN_IF_ERROR(session_->Extend(root_));
    return session_->Run(feeds, fetches, targets);
  }
  // The file and the id.
  StatusOr<std::pair<std::string, int64_t>> Take(const TakenShard& shard) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> got, Run({}, {shard.file, shard.id}));
    return std::pair(got[0].scalar<std::string>(), got[1].scalar<int64_t>());
  }
  StatusOr<int64_t> Done(const std::vector<int64_t>& ids) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> got,
                        Run({{ids_, Tensor::Vector<int64_t>(ids)}}, {done_}));
    return got[0].scalar<int64_t>();
  }

  const Scope root_;
  Output queue_, ids_, done_, saved_, state_;
  TakenShard taken_, waiting_;
  Operation restore_;
  WorkQueueCounts ledger_;
  std::unique_ptr<Session> session_;
};

TEST_F(WorkQueueOpsTest, ShardsAreTakenAndDoneAndTheLedgerCountsThem) {
  ASSERT_OK(Fill({"a", "b"}, 1));
  ASSERT_OK_AND_ASSIGN(const auto first, Take(taken_));
  ASSERT_OK_AND_ASSIGN(const auto second, Take(waiting_));
  EXPECT_EQ(first.first, "a");
  EXPECT_EQ(second.first, "b");
  ASSERT_OK_AND_ASSIGN(const auto none, Take(taken_));
  EXPECT_EQ(none.second, -1);
  // An id that nobody holds is late.
  EXPECT_EQ(*Done({first.second, second.second, 77}), 2);
  EXPECT_STATUS(Take(taken_), absl::StatusCode::kOutOfRange, "work queue 'queue' are done");
  EXPECT_STATUS(Take(waiting_), absl::StatusCode::kOutOfRange, "work queue 'queue' are done");
  ASSERT_OK_AND_ASSIGN(
      const auto counts,
      Run({}, {ledger_.handed_out, ledger_.done, ledger_.given_back, ledger_.late, ledger_.held}));
  EXPECT_EQ(counts[0].scalar<int64_t>(), 2);
  EXPECT_EQ(counts[1].scalar<int64_t>(), 2);
  EXPECT_EQ(counts[2].scalar<int64_t>(), 0);
  EXPECT_EQ(counts[3].scalar<int64_t>(), 1);
  EXPECT_EQ(counts[4].scalar<int64_t>(), 0);
}

TEST_F(WorkQueueOpsTest, ATakeWaitsForTheFillOfAnotherStep) {
  ASSERT_OK(root_.status());
  ASSERT_OK(session_->Extend(root_));
  StatusOr<std::vector<Tensor>> taken = absl::UnknownError("");
  std::thread taker([&] { taken = session_->Run({}, {waiting_.file}); });
  const Status filled = Fill({"a"}, 1);
  if (!filled.ok()) session_->Close().IgnoreError();  // ends the wait
  taker.join();
  ASSERT_OK(filled);
  ASSERT_OK(taken);
  EXPECT_EQ((*taken)[0].scalar<std::string>(), "a");
}

TEST_F(WorkQueueOpsTest, ASessionThatLeavesDoesNotWait) {
  const Operation leave = WorkQueueLeave(root_, queue_);
  ASSERT_OK(root_.status());
  ASSERT_OK(session_->Extend(root_));
  Status taken;
  std::thread taker([&] { taken = session_->Run({}, {waiting_.file}).status(); });
  // Also where the take comes later.
  EXPECT_OK(session_->Run({}, {}, {leave}).status());
  taker.join();
  EXPECT_STATUS(taken, absl::StatusCode::kCancelled, "the take of a shard was cancelled");
}

TEST_F(WorkQueueOpsTest, AStateIsRestoredAndOneThatIsNoneIsNamed) {
  ASSERT_OK(Fill({"a", "b", "c"}, 1));
  ASSERT_OK_AND_ASSIGN(const auto first, Take(taken_));
  ASSERT_OK(Done({first.second}));
  ASSERT_OK(Take(taken_));
  ASSERT_OK_AND_ASSIGN(const auto saved, Run({}, {saved_}));
  ASSERT_OK(Take(taken_));
  ASSERT_OK(Run({{state_, saved[0]}}, {}, {restore_}));
  ASSERT_OK_AND_ASSIGN(const auto again, Take(taken_));
  EXPECT_EQ(again.first, "b");
  EXPECT_STATUS(Run({{state_, Tensor::Scalar<std::string>("?")}}, {}, {restore_}),
                absl::StatusCode::kDataLoss, "got line 1 '?'");
}

TEST_F(WorkQueueOpsTest, AListMustBeVectorsOfOneLength) {
  const Operation fill = WorkQueueFill(
      root_, queue_, ConstVector<std::string>(root_, {"a", "b"}), ConstVector<int64_t>(root_, {0}),
      ConstVector<int64_t>(root_, {1, 2}), Const(root_, int64_t{1}), Const(root_, int64_t{0}));
  EXPECT_STATUS(Run({}, {}, {fill}), absl::StatusCode::kInvalidArgument,
                "files, begins and ends must be vectors of one length, got [2], [1] and [2]");
}

TEST_F(WorkQueueOpsTest, AHandleOfAnotherKindIsRefused) {
  const Output variable = VarHandleOp(root_, DT_FLOAT, PartialShape(Shape{}));
  EXPECT_FALSE(Run({}, {WorkQueueSave(root_, variable)}).ok());
}

}  // namespace
}  // namespace millrace

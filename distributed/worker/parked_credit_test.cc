// SPDX-License-Identifier: Apache-2.0
//
// What other tasks push for steps that have not begun, beyond the bound: their links hold back
// credit.
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "core/clock.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/credit.h"
#include "distributed/link/link.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/step_rendezvous.h"
#include "distributed/worker/step_table.h"
#include "gtest/gtest.h"

// covers: clusters: tensors that come early, beyond the bound, stop their sender instead of failing
//   their step; they go on when it begins or is over

namespace millrace {
namespace {

constexpr char kPeer[] = "/job:worker/replica:0/task:0";

// Counts what is held back.
class CreditLink : public Link {
 public:
  Status Send(LinkMessage) override { return absl::OkStatus(); }
  void Flush() override {}
  void Acknowledge(int64_t, uint64_t) override {}
  void Ask(absl::AnyInvocable<void()>) override {}
  int64_t queued_bytes() const override { return 0; }
  void Close(const Status&) override {}
  void HoldCredit(int64_t bytes) override { held += bytes; }
  void LetGoOfCredit(int64_t bytes) override { held -= bytes; }
  int64_t held = 0;
};

class Receiver : public PushReceiver {
 public:
  void OnPushed(PushedMessage message) override {
    tensors += static_cast<int64_t>(message.tensors.tensors.size());
  }
  int64_t tensors = 0;
};

class ParkedCreditTest : public ::testing::Test {
 protected:
  // 5,000 bytes of one tensor, as they are counted.
  void Push(int64_t step_id) {
    PushOf(step_id, *Tensor::Zeros(DT_INT8, Shape{5'000 - 2 * PushedMessage::kOverheadBytes}));
  }
  void PushOf(int64_t step_id, Tensor value) {
    PushedMessage message;
    message.task = kPeer;
    message.link = link_.get();
    message.creditor = link_;
    message.tensors.step_id = step_id;
    message.tensors.tensors.emplace_back().value = std::move(value);
    steps_->TakePushed(step_id, std::move(message));
  }
  Status FailureOf(int64_t step_id) { return steps_->FindOrExpect(step_id)->aborted(); }

  static ServerLimits Limits() {
    ServerLimits limits;
    limits.max_parked_bytes = 10'000;
    return limits;
  }
  FakeClock clock_;
  const std::shared_ptr<CreditLink> link_ = std::make_shared<CreditLink>();
  const std::shared_ptr<StepTable> steps_ = std::make_shared<StepTable>(&clock_, Limits());
};

TEST_F(ParkedCreditTest, BeyondTheBoundCreditIsHeldUntilTheStepBeginsOrIsOver) {
  Push(1);
  Push(2);
  EXPECT_EQ(link_->held, 0);
  Push(2);
  Push(3);
  EXPECT_EQ(link_->held, 10'000);
  EXPECT_EQ(steps_->parked_bytes(), 20'000);
  for (const int64_t step : {1, 2, 3}) EXPECT_OK(FailureOf(step));
  // It begins.
  const auto receiver = std::make_shared<Receiver>();
  const std::shared_ptr<StepRendezvous> second = steps_->FindOrExpect(2);
  second->ReceivePushes(receiver);
  EXPECT_EQ(receiver->tensors, 2);
  EXPECT_EQ(link_->held, 5'000);
  // It never will.
  steps_->Refuse(3, absl::CancelledError("by its master"));
  EXPECT_EQ(link_->held, 0);
  EXPECT_EQ(steps_->parked_bytes(), 5'000);
}

// The credit of a large tensor is returned as its bytes come, so it is there whole, whatever its
// size, and behind it what its sender still had credit for. What is more than credit allows is a
// stranger's; and as more than that may be an honest one's fault in time only, it passes.
TEST_F(ParkedCreditTest, EachOpenLinkMayBringWhatItsSenderHasCreditFor) {
  const Tensor large = *Tensor::Zeros(DT_INT8, Shape{kDefaultWindowBytes + 1});
  steps_->LinkOpened(link_.get());
  for (const int64_t step : {1, 2}) Push(step);
  for (const int64_t step : {3, 4}) PushOf(step, large);
  Push(5);
  EXPECT_GT(link_->held, 2 * kDefaultWindowBytes);
  for (const int64_t step : {1, 2, 3, 4, 5}) EXPECT_OK(FailureOf(step));
  PushOf(6, large);
  EXPECT_STATUS(FailureOf(6), absl::StatusCode::kUnavailable, "max_parked_bytes");
  // With two links there is twice the room, until one is lost.
  CreditLink other;
  steps_->LinkOpened(&other);
  for (const int64_t step : {7, 8, 9}) PushOf(step, large);
  for (const int64_t step : {7, 8, 9}) EXPECT_OK(FailureOf(step));
  steps_->LinkLost("/job:worker/replica:0/task:1", &other, absl::UnavailableError("lost"));
  Push(10);
  EXPECT_STATUS(FailureOf(10), absl::StatusCode::kUnavailable, "max_parked_bytes");
  // What is let go is room again.
  for (const int64_t step : {3, 4, 7, 8, 9}) {
    steps_->Refuse(step, absl::CancelledError("by its master"));
  }
  PushOf(11, large);
  EXPECT_OK(FailureOf(11));
  for (const int64_t step : {1, 2, 5, 11}) {
    steps_->Refuse(step, absl::CancelledError("by its master"));
  }
  EXPECT_EQ(link_->held, 0);
  EXPECT_EQ(steps_->parked_bytes(), 0);
}

// The link is open again at the next try, so the job must not end for it.
TEST_F(ParkedCreditTest, AStepThatCannotKeepTheLossOfItsLinkFailsWithTheLossAndIsForgotten) {
  Push(1);
  Push(1);
  steps_->LinkLost(kPeer, link_.get(), absl::UnavailableError("Socket closed"));
  EXPECT_STATUS(FailureOf(1), absl::StatusCode::kUnavailable,
                "Push from /job:worker/replica:0/task:0: Socket closed");
  EXPECT_EQ(steps_->parked_bytes(), 0);
  clock_.Advance(2 * StepTable::kEndedExpiry);
  steps_->Sweep();
  EXPECT_EQ(steps_->num_steps(), 0);
}

TEST_F(ParkedCreditTest, WhatIsKeptAtTheEndOfATaskHoldsNothing) {
  for (const int64_t step : {1, 2, 3}) Push(step);
  EXPECT_EQ(link_->held, 5'000);
  steps_->AbortAll(absl::AbortedError("Shutdown"));
  EXPECT_EQ(link_->held, 0);
  EXPECT_EQ(steps_->parked_bytes(), 0);
}

}  // namespace
}  // namespace millrace

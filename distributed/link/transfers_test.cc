// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/transfers.h"

#include <cstdint>
#include <cstring>
#include <memory>

#include "absl/types/span.h"
#include "core/byte_budget.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: tensors that arrive in parts stay within their receiver's limits, one that does
//   not is skipped, and parts that do not fit together are refused

namespace millrace {
namespace {

TensorsFrame OfStep(int64_t step_id) {
  TensorsFrame frame;
  frame.step_id = step_id;
  return frame;
}

// So many floats.
TensorEntry Parts(uint64_t transfer, int64_t elements) {
  TensorEntry entry;
  entry.index = 3;
  entry.transfer = transfer;
  entry.dtype = DT_FLOAT;
  entry.shape = *Shape::Make({elements});
  entry.num_bytes = elements * 4;
  return entry;
}

// The tensor, if it is whole with this chunk.
std::unique_ptr<IncomingTransfers::Whole> Put(IncomingTransfers* transfers, const ChunkFrame& chunk,
                                              const char* bytes) {
  const StatusOr<absl::Span<char>> place = transfers->PlaceFor(chunk);
  EXPECT_OK(place);
  if (!place.ok()) return nullptr;
  EXPECT_EQ(place->size(), chunk.num_bytes);
  std::memcpy(place->data(), bytes, place->size());
  return transfers->Filled(chunk);
}

TEST(TransfersTest, PartsOfSeveralTensorsInTurns) {
  IncomingTransfers transfers((TransferLimits()));
  const float values[] = {1, 2, 3};
  const char* const bytes = reinterpret_cast<const char*>(values);
  ASSERT_OK(transfers.Announce(OfStep(7), Parts(1, 3)));
  ASSERT_OK(transfers.Announce(OfStep(8), Parts(5, 2)));
  EXPECT_EQ(transfers.pending_bytes(), 20);
  EXPECT_TRUE(Put(&transfers, {1, 0, 5}, bytes) == nullptr);
  EXPECT_TRUE(Put(&transfers, {5, 0, 7}, bytes) == nullptr);
  const auto second = Put(&transfers, {5, 7, 1}, bytes + 7);
  ASSERT_TRUE(second != nullptr);
  EXPECT_EQ(second->step_id, 8);
  const auto first = Put(&transfers, {1, 5, 7}, bytes + 5);
  ASSERT_TRUE(first != nullptr);
  EXPECT_EQ(first->step_id, 7);
  EXPECT_EQ(first->entry.index, 3u);
  int64_t splat_bytes = 0;
  ASSERT_OK_AND_ASSIGN(const Tensor tensor, first->entry.value.TakeTensor(&splat_bytes));
  ExpectTensorEqual(tensor, Tensor::Vector<float>({1, 2, 3}));
  EXPECT_EQ(transfers.pending_bytes(), 0);
  EXPECT_EQ(transfers.num_transfers(), 0);
}

TEST(TransfersTest, WhatPassesALimitIsSkipped) {
  TransferLimits limits;
  limits.max_tensor_bytes = 400;
  limits.max_pending_bytes = 600;
  limits.max_transfers = 3;
  IncomingTransfers transfers(limits);
  EXPECT_STATUS(transfers.Announce(OfStep(1), Parts(1, 101)), absl::StatusCode::kResourceExhausted,
                "Link: bytes of a tensor must be at most 400 (ServerLimits::max_tensor_bytes), got "
                "404");
  ASSERT_OK(transfers.Announce(OfStep(2), Parts(2, 100)));
  EXPECT_STATUS(transfers.Announce(OfStep(3), Parts(3, 51)), absl::StatusCode::kResourceExhausted,
                "must be at most 200 (ServerLimits::max_pending_bytes), got 204");
  EXPECT_STATUS(transfers.Announce(OfStep(4), Parts(4, 1)), absl::StatusCode::kResourceExhausted,
                "must be at most 3 (ServerLimits::max_transfers), got 4");
  EXPECT_EQ(transfers.pending_bytes(), 400);
  // Those that are dropped are skipped to their ends, and do not gather.
  ASSERT_TRUE(absl::IsResourceExhausted(transfers.Announce(OfStep(5), Parts(5, 50))));
  EXPECT_EQ(transfers.num_transfers(), 5);
  const ChunkFrame all = {1, 0, 404};
  ASSERT_OK_AND_ASSIGN(const absl::Span<char> place, transfers.PlaceFor(all));
  EXPECT_TRUE(place.empty());
  EXPECT_TRUE(transfers.Filled(all) == nullptr);
  EXPECT_EQ(transfers.num_transfers(), 4);
  ASSERT_TRUE(absl::IsResourceExhausted(transfers.Announce(OfStep(6), Parts(6, 1))));
  ASSERT_TRUE(absl::IsResourceExhausted(transfers.Announce(OfStep(6), Parts(7, 1))));
  EXPECT_STATUS(transfers.Announce(OfStep(6), Parts(8, 1)), absl::StatusCode::kInvalidArgument,
                "transfers that are dropped must end, got 6 that have not");
}

// Each caller may open a link: a bound of each would be none of the task.
TEST(TransfersTest, LinksMayShareTheBoundOfWhatArrives) {
  TransferLimits limits;
  limits.pending = std::make_shared<ByteBudget>(600);
  IncomingTransfers first(limits);
  auto second = std::make_unique<IncomingTransfers>(limits);
  ASSERT_OK(first.Announce(OfStep(1), Parts(1, 100)));
  EXPECT_STATUS(second->Announce(OfStep(2), Parts(1, 51)), absl::StatusCode::kResourceExhausted,
                "must be at most 200 (ServerLimits::max_pending_bytes), got 204");
  ASSERT_OK(second->Announce(OfStep(2), Parts(2, 50)));
  EXPECT_EQ(first.pending_bytes(), 400);
  EXPECT_EQ(second->pending_bytes(), 200);
  EXPECT_EQ(limits.pending->left(), 0);
  // One that is beyond another limit takes nothing, and what is gone is room for the others.
  TransferLimits none = limits;
  none.max_tensor_bytes = 3;
  IncomingTransfers third(none);
  ASSERT_TRUE(absl::IsResourceExhausted(third.Announce(OfStep(1), Parts(1, 1))));
  second->EndStep(2);
  EXPECT_EQ(limits.pending->left(), 200);
  ASSERT_OK(second->Announce(OfStep(3), Parts(3, 50)));
  second.reset();
  EXPECT_EQ(limits.pending->left(), 200);
  first.EndAll();
  EXPECT_EQ(limits.pending->left(), 600);
}

TEST(TransfersTest, AStepThatEndsTakesItsTransfersAlong) {
  IncomingTransfers transfers((TransferLimits()));
  ASSERT_OK(transfers.Announce(OfStep(7), Parts(1, 100)));
  ASSERT_OK(transfers.Announce(OfStep(8), Parts(2, 100)));
  ASSERT_OK(transfers.Announce(OfStep(7), Parts(3, 100)));
  transfers.EndStep(7);
  EXPECT_EQ(transfers.num_transfers(), 1);
  EXPECT_EQ(transfers.pending_bytes(), 400);
  EXPECT_STATUS(transfers.PlaceFor({3, 0, 4}), absl::StatusCode::kInvalidArgument,
                "a chunk must be of a transfer that is open, got number 3");
  transfers.EndAll();
  EXPECT_EQ(transfers.pending_bytes(), 0);
  transfers.EndStep(8);
}

TEST(TransfersTest, AReportOutlivesTheEndOfItsStep) {
  IncomingTransfers transfers((TransferLimits()));
  TensorsFrame report = OfStep(7);
  report.purpose = TensorsPurpose::kReport;
  ASSERT_OK(transfers.Announce(OfStep(7), Parts(1, 100)));
  ASSERT_OK(transfers.Announce(report, Parts(2, 1)));
  ASSERT_OK(transfers.Announce(report, Parts(3, 100)));
  transfers.EndStep(7);
  EXPECT_EQ(transfers.num_transfers(), 2);
  const float value = 1;
  const auto whole = Put(&transfers, {2, 0, 4}, reinterpret_cast<const char*>(&value));
  ASSERT_TRUE(whole != nullptr);
  EXPECT_EQ(whole->purpose, TensorsPurpose::kReport);
  EXPECT_EQ(transfers.pending_bytes(), 400);
  transfers.EndAll();
  EXPECT_EQ(transfers.num_transfers(), 0);
  EXPECT_EQ(transfers.pending_bytes(), 0);
}

// A stranger announces as much as it may, then cancels steps that are none: each costs a look-up,
// not a walk over all transfers, which took minutes here.
TEST(TransfersTest, StepsThatAreNotThereCostNothing) {
  IncomingTransfers transfers((TransferLimits()));
  for (uint64_t number = 1; number <= 10'000; ++number) {
    ASSERT_OK(transfers.Announce(OfStep(static_cast<int64_t>(number)), Parts(number, 1)));
  }
  for (int64_t step = 20'000; step < 1'020'000; ++step) transfers.EndStep(step);
  EXPECT_EQ(transfers.num_transfers(), 10'000);
  // One that has arrived whole is not ended again.
  const float value = 1;
  ASSERT_TRUE(Put(&transfers, {7, 0, 4}, reinterpret_cast<const char*>(&value)) != nullptr);
  transfers.EndStep(7);
  EXPECT_EQ(transfers.num_transfers(), 9'999);
  for (int64_t step = 1; step <= 10'000; ++step) transfers.EndStep(step);
  EXPECT_EQ(transfers.num_transfers(), 0);
  EXPECT_EQ(transfers.pending_bytes(), 0);
}

}  // namespace
}  // namespace millrace

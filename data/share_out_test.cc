// SPDX-License-Identifier: Apache-2.0
#include "data/share_out.h"

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"
#include "ops/kernels/shards_in_hand.h"

// covers: training: a shard is finished when the element behind its last one is asked for; a
//   reader that begins anew begins with the shard that the one before was reading

namespace millrace::data {
namespace {

const ElementSpec kSpec = {{DT_INT64, PartialShape::Scalar()}};

// `begin` to `end`.
StatusOr<Dataset> Numbers(const Shard& shard) {
  if (shard.file == "missing") return absl::NotFoundError("missing: no such file");
  return Dataset::Range(shard.begin, shard.end);
}

class ShareOutTest : public ::testing::Test {
 protected:
  void Put(int64_t id, int64_t begin, int64_t end) {
    source_->Put(bringer_, {"f", begin, end, 0, id});
  }
  std::unique_ptr<Iterator> Reader() {
    auto reader = ReadShards(source_, Numbers, kSpec).MakeIterator();
    EXPECT_OK(reader);
    return *std::move(reader);
  }
  // The next number; -1: the end.
  static int64_t Next(Iterator* reader) {
    Element element;
    const StatusOr<bool> more = reader->Next(&element);
    EXPECT_OK(more);
    return more.ok() && *more ? element[0].scalar<int64_t>() : -1;
  }
  std::vector<int64_t> Finished() { return source_->TakeFinished(bringer_); }
  using Ids = std::vector<int64_t>;

  const std::shared_ptr<ShardsInHand> source_ = std::make_shared<ShardsInHand>();
  int64_t bringer_ = source_->Begin();
};

TEST_F(ShareOutTest, AShardIsFinishedWhenTheElementBehindItIsAskedFor) {
  const auto reader = Reader();
  Put(1, 10, 12);
  Put(2, 20, 21);
  Put(3, 30, 30);  // empty
  source_->End(bringer_, absl::OkStatus());
  EXPECT_EQ(Next(reader.get()), 10);
  EXPECT_EQ(Next(reader.get()), 11);
  EXPECT_EQ(Finished(), Ids());
  EXPECT_EQ(Next(reader.get()), 20);
  EXPECT_EQ(Finished(), Ids{1});
  EXPECT_EQ(Next(reader.get()), -1);
  EXPECT_EQ(Finished(), (Ids{2, 3}));
  EXPECT_EQ(Next(reader.get()), -1);
  EXPECT_EQ(Finished(), Ids());
}

TEST_F(ShareOutTest, WhatIsWishedIsAShardAheadAndOneWhenTheReaderWaits) {
  const auto reader = Reader();
  std::thread reads([&] {
    EXPECT_EQ(Next(reader.get()), 10);
    EXPECT_EQ(Next(reader.get()), -1);
  });
  ShardsInHand::Wish wish = source_->AwaitWish(bringer_);
  EXPECT_TRUE(wish.waits_for_shard);
  EXPECT_EQ(wish.finished, Ids());
  Put(1, 10, 11);
  // One ahead, or, when the reader is quick, the next one with the first finished.
  wish = source_->AwaitWish(bringer_);
  while (wish.wants_shard) {
    EXPECT_FALSE(wish.waits_for_shard);
    source_->PutNothing(bringer_);
    wish = source_->AwaitWish(bringer_);
  }
  Ids finished = wish.finished;
  while (!wish.waits_for_shard) {
    source_->Told(bringer_);
    wish = source_->AwaitWish(bringer_);
    finished.insert(finished.end(), wish.finished.begin(), wish.finished.end());
  }
  EXPECT_EQ(finished, Ids{1});
  source_->End(bringer_, absl::OkStatus());
  reads.join();
}

TEST_F(ShareOutTest, AReaderThatBeginsAnewBeginsWithWhatWasRead) {
  const auto first = Reader();
  Put(1, 10, 12);
  EXPECT_EQ(Next(first.get()), 10);
  const auto second = Reader();
  EXPECT_EQ(Next(second.get()), 10);
  EXPECT_EQ(Next(second.get()), 11);
  // The other one may read what it has, and gets no shard.
  EXPECT_EQ(Next(first.get()), 11);
  EXPECT_STATUS(first->Next(), absl::StatusCode::kCancelled,
                "ShardsInHand: the reader was cancelled");
  EXPECT_EQ(Finished(), Ids());
}

TEST_F(ShareOutTest, WhatAnOlderBringerDoesHasNoEffect) {
  Put(1, 10, 11);
  const auto reader = Reader();
  EXPECT_EQ(Next(reader.get()), 10);
  const int64_t older = bringer_;
  bringer_ = source_->Begin();
  EXPECT_TRUE(source_->AwaitWish(older).is_over);
  source_->Put(older, {"f", 70, 71, 0, 7});
  source_->End(older, absl::InternalError("of another session"));
  source_->Stop(older);
  Put(2, 20, 21);
  EXPECT_EQ(Next(reader.get()), 20);
  EXPECT_EQ(Finished(), Ids()) << "the shard that was read was forgotten";
  source_->End(bringer_, absl::OkStatus());
  EXPECT_EQ(Next(reader.get()), -1);
  EXPECT_EQ(Finished(), Ids{2});
  source_->Stop(bringer_);
  EXPECT_TRUE(source_->AwaitWish(bringer_).is_over);
}

TEST_F(ShareOutTest, ErrorsComeToTheReaderAndFinishNothing) {
  const auto reader = Reader();
  source_->Put(bringer_, {"missing", 0, -1, 0, 1});
  EXPECT_STATUS(reader->Next(), absl::StatusCode::kNotFound, "missing: no such file");
  EXPECT_EQ(Finished(), Ids());
  source_->End(bringer_, absl::UnavailableError("the server went away"));
  EXPECT_STATUS(reader->Next(), absl::StatusCode::kUnavailable, "the server went away");
}

TEST_F(ShareOutTest, AReaderThatWaitsIsCancelled) {
  const auto reader = Reader();
  std::thread reads([&] { EXPECT_FALSE(reader->Next().ok()); });
  while (!source_->AwaitWish(bringer_).waits_for_shard) {
  }
  reader->Cancel();
  reads.join();
}

TEST_F(ShareOutTest, ItsPositionIsNotSaved) {
  EXPECT_STATUS(Reader()->Save(), absl::StatusCode::kFailedPrecondition,
                "the queue's state is in the checkpoint");
}

TEST_F(ShareOutTest, PartsAndAllShardsWithoutAQueue) {
  const auto rows = [](const Shard& shard) -> StatusOr<Dataset> {
    return PartOf(shard, Dataset::Range(6));
  };
  EXPECT_EQ(
      TextOf(ReadAllShards({{"a", 1, 3}, {"b", 4, -1}, {"c", 0, 1}, {"d", 7, -1}}, rows, kSpec)),
      "1 2 4 5 0");
}

}  // namespace
}  // namespace millrace::data

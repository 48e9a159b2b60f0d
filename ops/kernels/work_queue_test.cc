// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/work_queue.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: a work queue hands each shard of an epoch out once, gives back what ended
//   sessions held, and goes on from a saved state, in every order of a few events

namespace millrace {
namespace {

using Taken = WorkQueue::Taken;

std::vector<FileRange> Files(int count) {
  std::vector<FileRange> shards;
  for (int i = 0; i < count; ++i) shards.push_back({.file = absl::StrCat("f", i)});
  return shards;
}

std::shared_ptr<WorkQueue> FilledQueue(WorkQueue::Content content) {
  auto queue = std::make_shared<WorkQueue>("q");
  EXPECT_OK(queue->Fill(std::move(content)));
  return queue;
}

// Of a take that ends at once.
StatusOr<std::optional<Taken>> TakeNow(WorkQueue* queue, const std::string& session) {
  StatusOr<std::optional<Taken>> result = absl::InternalError("not called");
  queue->Take(session, nullptr, /*may_wait=*/false, [&](auto taken) { result = std::move(taken); });
  return result;
}

// A take that may wait; `result` is empty as long as it does.
struct Waiting {
  std::optional<StatusOr<std::optional<Taken>>> result;
};
std::shared_ptr<Waiting> TakeAndWait(WorkQueue* queue, const std::string& session,
                                     CancellationManager* cancellation = nullptr) {
  auto waiting = std::make_shared<Waiting>();
  queue->Take(session, cancellation, /*may_wait=*/true,
              [waiting](auto taken) { waiting->result = std::move(taken); });
  return waiting;
}

// "f0 f2 f1": the order of one trainer that does all, without its epochs.
std::string OrderOf(WorkQueue* queue) {
  std::string order;
  while (true) {
    const auto taken = TakeNow(queue, "s");
    if (!taken.ok() || !taken->has_value()) return order;
    absl::StrAppend(&order, order.empty() ? "" : " ", (*taken)->shard.file);
    EXPECT_TRUE(queue->Done("s", (*taken)->id));
  }
}

// --- Every order of a few events -----------------------------------------------------------------

// A queue, two trainers that may die and come again, restarts of all, and what must be so.
class Trial {
 public:
  Trial(int shards, int epochs, uint64_t seed)
      : content_{.shards = Files(shards), .num_epochs = epochs, .shuffle_seed = seed},
        queue_(FilledQueue(content_)) {}

  static constexpr int kEvents = 7;
  void Do(int event) {
    switch (event) {
      case 0:
      case 1:
        return Take(event);
      case 2:
      case 3:
        return Finish(event - 2);
      case 4:
      case 5:
        return Die(event - 4);
      default:
        return Restart();
    }
  }
  // The rest without deaths.
  void Drain() {
    for (int trainer = 0; trainer < 2; ++trainer) {
      while (!held_[trainer].empty()) Finish(trainer);
    }
    while (true) {
      const auto taken = TakeNow(queue_.get(), Session(0));
      if (absl::IsOutOfRange(taken.status())) break;
      ASSERT_OK(taken);
      ASSERT_TRUE(taken->has_value()) << "nothing is held, so there is a shard or the end";
      Got(0, **taken);
      Finish(0);
    }
  }
  void Check() const {
    std::map<std::pair<int64_t, std::string>, int> times = done_;
    for (int64_t epoch = 0; epoch < content_.num_epochs; ++epoch) {
      for (const FileRange& shard : content_.shards) {
        EXPECT_EQ(times[std::pair(epoch, shard.file)], 1) << "epoch " << epoch << " " << shard.file;
        times.erase(std::pair(epoch, shard.file));
      }
    }
    EXPECT_TRUE(times.empty()) << "a shard or an epoch that is none";
    // Each handing out ended as done or given back.
    const WorkQueue::Ledger ledger = queue_->ledger();
    EXPECT_EQ(ledger.held, 0);
    EXPECT_EQ(ledger.late, 0);
    EXPECT_EQ(ledger.handed_out, ledger.done + ledger.given_back);
    EXPECT_EQ(handed_out_, static_cast<int64_t>(times_done_) + lost_);
  }

 private:
  std::string Session(int trainer) const { return absl::StrCat(trainer, "/", life_[trainer]); }
  void Got(int trainer, const Taken& taken) {
    ++handed_out_;
    held_[trainer].push_back(taken);
    // One holder at a time, and never after it was done.
    const std::pair<int64_t, std::string> work(taken.epoch, taken.shard.file);
    EXPECT_TRUE(holders_.insert(work).second) << taken.shard.file << " is held twice";
    EXPECT_EQ(done_.count(work), 0u) << taken.shard.file << " was done before";
  }
  void Take(int trainer) {
    const auto taken = TakeNow(queue_.get(), Session(trainer));
    if (absl::IsOutOfRange(taken.status())) {
      EXPECT_TRUE(holders_.empty()) << "the end came while shards were held";
      return;
    }
    ASSERT_OK(taken);
    if (taken->has_value()) Got(trainer, **taken);
  }
  void Finish(int trainer) {
    if (held_[trainer].empty()) return;
    const Taken taken = held_[trainer].front();
    held_[trainer].erase(held_[trainer].begin());
    EXPECT_TRUE(queue_->Done(Session(trainer), taken.id));
    holders_.erase(std::pair(taken.epoch, taken.shard.file));
    ++done_[std::pair(taken.epoch, taken.shard.file)];
    ++times_done_;
  }
  void Drop(int trainer) {
    lost_ += static_cast<int64_t>(held_[trainer].size());
    for (const Taken& taken : held_[trainer]) {
      holders_.erase(std::pair(taken.epoch, taken.shard.file));
    }
    held_[trainer].clear();
  }
  void Die(int trainer) {
    queue_->SessionEnded(Session(trainer));
    Drop(trainer);
    ++life_[trainer];
  }
  // Of the parameter server and all trainers, from a checkpoint of now.
  void Restart() {
    const std::string state = queue_->Save();
    queue_ = std::make_shared<WorkQueue>("q");
    EXPECT_OK(queue_->Restore(state));
    EXPECT_EQ(queue_->Save(), state) << "before it is filled it knows what was restored";
    EXPECT_OK(queue_->Fill(content_));
    for (int trainer = 0; trainer < 2; ++trainer) {
      Drop(trainer);
      ++life_[trainer];
    }
  }

  const WorkQueue::Content content_;
  std::shared_ptr<WorkQueue> queue_;
  int life_[2] = {0, 0};
  std::vector<Taken> held_[2];
  std::set<std::pair<int64_t, std::string>> holders_;
  std::map<std::pair<int64_t, std::string>, int> done_;  // how often
  int64_t handed_out_ = 0, times_done_ = 0, lost_ = 0;
};

// 7 events in each of 7^5 orders of five, then the rest: each shard of each epoch is done once, and
// by one trainer at a time. (A shard that a dead trainer had trained without Done is trained
// again: at least once.)
TEST(WorkQueueTest, InEveryOrderOfEventsEachShardOfAnEpochIsDoneOnce) {
  constexpr int kLength = 5;
  int orders = 1;
  for (int i = 0; i < kLength; ++i) orders *= Trial::kEvents;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{7}}) {
    for (int order = 0; order < orders && !::testing::Test::HasFailure(); ++order) {
      SCOPED_TRACE(absl::StrCat("order ", order, ", seed ", seed));
      Trial trial(/*shards=*/2, /*epochs=*/2, seed);
      for (int i = 0, rest = order; i < kLength; ++i, rest /= Trial::kEvents) {
        trial.Do(rest % Trial::kEvents);
      }
      trial.Drain();
      trial.Check();
    }
  }
}

// --- Orders --------------------------------------------------------------------------------------

TEST(WorkQueueTest, WithoutASeedShardsGoOutInTheOrderOfTheList) {
  EXPECT_EQ(OrderOf(FilledQueue({.shards = Files(3), .num_epochs = 2}).get()), "f0 f1 f2 f0 f1 f2");
}

TEST(WorkQueueTest, ASeedGivesEachEpochAnOrderOfItsOwnWhichIsTheSameEachTime) {
  const WorkQueue::Content content = {.shards = Files(8), .num_epochs = 2, .shuffle_seed = 3};
  const std::string order = OrderOf(FilledQueue(content).get());
  EXPECT_EQ(OrderOf(FilledQueue(content).get()), order);
  const std::string first = order.substr(0, order.size() / 2);
  const std::string second = order.substr(order.size() / 2 + 1);
  EXPECT_EQ(first.size(), second.size());  // all names have two letters
  EXPECT_NE(first, second);
  EXPECT_NE(first, OrderOf(FilledQueue({.shards = Files(8)}).get()));
}

TEST(WorkQueueTest, WhatADeadTrainerHeldGoesOutFirst) {
  const auto queue = FilledQueue({.shards = Files(3)});
  ASSERT_OK_AND_ASSIGN(const auto first, TakeNow(queue.get(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto second, TakeNow(queue.get(), "a"));
  queue->SessionEnded("a");
  ASSERT_OK_AND_ASSIGN(const auto again, TakeNow(queue.get(), "b"));
  EXPECT_EQ(again->shard, first->shard);
  EXPECT_NE(again->id, first->id);
  // What the dead one says late does not count.
  EXPECT_FALSE(queue->Done("a", first->id));
  EXPECT_FALSE(queue->Done("a", again->id));
  EXPECT_EQ(queue->ledger().late, 2);
  EXPECT_TRUE(queue->Done("b", again->id));
}

TEST(WorkQueueTest, TheNextEpochDoesNotWaitForTheLastShardOfOne) {
  const auto queue = FilledQueue({.shards = Files(1), .num_epochs = 2});
  ASSERT_OK_AND_ASSIGN(const auto slow, TakeNow(queue.get(), "slow"));
  ASSERT_OK_AND_ASSIGN(const auto other, TakeNow(queue.get(), "quick"));
  EXPECT_EQ(slow->epoch, 0);
  EXPECT_EQ(other->epoch, 1);
}

// --- Waiting -------------------------------------------------------------------------------------

TEST(WorkQueueTest, TheLastShardsAreWaitedForAndTheEndComesWithTheLastDone) {
  const auto queue = FilledQueue({.shards = Files(1)});
  ASSERT_OK_AND_ASSIGN(const auto held, TakeNow(queue.get(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto none, TakeNow(queue.get(), "b"));
  EXPECT_FALSE(none.has_value());
  const auto b = TakeAndWait(queue.get(), "b");
  const auto c = TakeAndWait(queue.get(), "c");
  EXPECT_FALSE(b->result.has_value());
  queue->SessionEnded("a");  // b gets it, c goes on waiting
  ASSERT_TRUE(b->result.has_value());
  ASSERT_OK(*b->result);
  EXPECT_EQ((**b->result)->shard, held->shard);
  EXPECT_FALSE(c->result.has_value());
  EXPECT_TRUE(queue->Done("b", (**b->result)->id));
  ASSERT_TRUE(c->result.has_value());
  EXPECT_STATUS(c->result->status(), absl::StatusCode::kOutOfRange,
                "all shards of work queue 'q' are done");
}

TEST(WorkQueueTest, ATakeWaitsUntilTheQueueIsFilledAndTheFirstFillCounts) {
  const auto queue = std::make_shared<WorkQueue>("q");
  const auto waiting = TakeAndWait(queue.get(), "a");
  EXPECT_FALSE(waiting->result.has_value());
  ASSERT_OK(queue->Fill({.shards = {{"first"}}}));
  ASSERT_OK(queue->Fill({.shards = {{"second"}}}));
  ASSERT_TRUE(waiting->result.has_value());
  ASSERT_OK(*waiting->result);
  EXPECT_EQ((**waiting->result)->shard.file, "first");
  EXPECT_TRUE(queue->Done("a", (**waiting->result)->id));
  EXPECT_STATUS(TakeNow(queue.get(), "a"), absl::StatusCode::kOutOfRange, "are done");
}

TEST(WorkQueueTest, TakesOfStepsAndSessionsThatEndLeaveTheLine) {
  const auto queue = FilledQueue({.shards = Files(1)});
  ASSERT_OK(TakeNow(queue.get(), "a"));
  CancellationManager step, over;
  const auto cancelled = TakeAndWait(queue.get(), "b", &step);
  const auto ended = TakeAndWait(queue.get(), "c");
  step.StartCancel();
  queue->SessionEnded("c");
  for (const auto& waiting : {cancelled, ended}) {
    ASSERT_TRUE(waiting->result.has_value());
    EXPECT_STATUS(waiting->result->status(), absl::StatusCode::kCancelled,
                  "the take of a shard was cancelled");
  }
  // A step that is over gets nothing, also where there is something.
  queue->SessionEnded("a");
  over.StartCancel();
  const auto late = TakeAndWait(queue.get(), "a", &over);
  EXPECT_STATUS(late->result->status(), absl::StatusCode::kCancelled, "cancelled");
  EXPECT_EQ(queue->ledger().held, 0);
}

TEST(WorkQueueTest, ASessionThatLeavesTakesNothingMoreAndKeepsWhatItHolds) {
  const auto queue = FilledQueue({.shards = Files(2), .num_epochs = 1});
  ASSERT_OK_AND_ASSIGN(const auto held, TakeNow(queue.get(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto of_b, TakeNow(queue.get(), "b"));
  const auto waiting = TakeAndWait(queue.get(), "a");
  EXPECT_FALSE(waiting->result.has_value());
  queue->Leave("a");
  ASSERT_TRUE(waiting->result.has_value());
  EXPECT_STATUS(waiting->result->status(), absl::StatusCode::kCancelled, "cancelled");
  EXPECT_STATUS(TakeNow(queue.get(), "a"), absl::StatusCode::kCancelled, "cancelled");
  EXPECT_TRUE(queue->Done("a", held->id));
  EXPECT_TRUE(queue->Done("b", of_b->id));
  EXPECT_STATUS(TakeNow(queue.get(), "b"), absl::StatusCode::kOutOfRange, "are done");
}

TEST(WorkQueueTest, ALeaveOfAStepThatIsOverIsNone) {
  const auto queue = FilledQueue({.shards = Files(1)});
  CancellationManager step;
  queue->SessionEnded("a");
  step.StartCancel();
  queue->Leave("a", &step);
  EXPECT_OK(TakeNow(queue.get(), "a"));
}

TEST(WorkQueueTest, ATakeDoesNotWaitForShardsOfItsOwnSession) {
  const auto queue = FilledQueue({.shards = Files(3)});
  ASSERT_OK_AND_ASSIGN(const auto of_a, TakeNow(queue.get(), "a"));
  ASSERT_OK_AND_ASSIGN(const auto of_b, TakeNow(queue.get(), "b"));
  ASSERT_OK_AND_ASSIGN(const auto of_c, TakeNow(queue.get(), "c"));
  const auto b = TakeAndWait(queue.get(), "b"), a = TakeAndWait(queue.get(), "a");
  EXPECT_TRUE(queue->Done("c", of_c->id));
  EXPECT_FALSE(a->result.has_value());
  EXPECT_FALSE(b->result.has_value());
  // Only the shard of a is held now: b goes on waiting; a, behind it in line, does not.
  EXPECT_TRUE(queue->Done("b", of_b->id));
  EXPECT_FALSE(b->result.has_value());
  for (const auto& waiting : {a, TakeAndWait(queue.get(), "a")}) {
    ASSERT_TRUE(waiting->result.has_value());
    EXPECT_STATUS(waiting->result->status(), absl::StatusCode::kOutOfRange,
                  "all shards of work queue 'q' are done or its own");
  }
  // One that may not wait has no shard yet.
  ASSERT_OK_AND_ASSIGN(const auto none, TakeNow(queue.get(), "a"));
  EXPECT_FALSE(none.has_value());
  queue->SessionEnded("a");
  ASSERT_TRUE(b->result.has_value());
  ASSERT_OK(*b->result);
  EXPECT_EQ((**b->result)->shard, of_a->shard);
}

TEST(WorkQueueTest, WhatAStepGivesBackGoesOutFirstUnlessItIsDone) {
  const auto queue = FilledQueue({.shards = Files(2)});
  ASSERT_OK_AND_ASSIGN(const auto first, TakeNow(queue.get(), "a"));
  queue->GiveBack("b", first->id);  // it does not hold it
  EXPECT_EQ(queue->ledger().held, 1);
  queue->GiveBack("a", first->id);
  EXPECT_EQ(queue->ledger().held, 0);
  EXPECT_EQ(queue->ledger().given_back, 1);
  EXPECT_FALSE(queue->Done("a", first->id));
  ASSERT_OK_AND_ASSIGN(const auto again, TakeNow(queue.get(), "b"));
  EXPECT_EQ(again->shard, first->shard);
  EXPECT_TRUE(queue->Done("b", again->id));
  queue->GiveBack("b", again->id);
  EXPECT_EQ(queue->ledger().given_back, 1);
  EXPECT_EQ(OrderOf(queue.get()), "f1");
}

// --- Saved states --------------------------------------------------------------------------------

// The state of a queue of `before`, of which f0 is done and f1 held, taken up by one of `after`.
std::shared_ptr<WorkQueue> TakenUp(WorkQueue::Content before, WorkQueue::Content after) {
  const auto queue = FilledQueue(std::move(before));
  const auto first = TakeNow(queue.get(), "a");
  EXPECT_TRUE(first.ok() && first->has_value() && queue->Done("a", (*first)->id));
  EXPECT_OK(TakeNow(queue.get(), "a"));
  auto next = std::make_shared<WorkQueue>("next");
  EXPECT_OK(next->Restore(queue->Save()));
  EXPECT_OK(next->Fill(std::move(after)));
  return next;
}

TEST(WorkQueueTest, AListThatHasGrownIsDoneWithItsNewFiles) {
  EXPECT_EQ(OrderOf(TakenUp({.shards = Files(2)}, {.shards = Files(4)}).get()), "f1 f2 f3");
}

TEST(WorkQueueTest, AShardThatIsGoneFromTheListIsForgotten) {
  EXPECT_EQ(OrderOf(TakenUp({.shards = Files(3)}, {.shards = {{"f2"}, {"f0"}}}).get()), "f2");
  // Also one of an earlier epoch: f0 of epoch 1 is done, f0 of epoch 0 held.
  const auto queue = FilledQueue({.shards = Files(1), .num_epochs = 3});
  ASSERT_OK(TakeNow(queue.get(), "a"));
  ASSERT_OK(TakeNow(queue.get(), "a"));
  auto next = std::make_shared<WorkQueue>("next");
  ASSERT_OK(next->Restore(queue->Save()));
  ASSERT_OK(next->Fill({.shards = {{"other"}}, .num_epochs = 3}));
  EXPECT_EQ(OrderOf(next.get()), "other other");  // of epochs 1 and 2
}

TEST(WorkQueueTest, MoreEpochsThanBeforeGoOnAndFewerEnd) {
  const WorkQueue::Content one = {.shards = Files(2)}, two = {.shards = Files(2), .num_epochs = 2};
  EXPECT_EQ(OrderOf(TakenUp(one, two).get()), "f1 f0 f1");
  const auto queue = FilledQueue(two);
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto taken, TakeNow(queue.get(), "a"));
    ASSERT_TRUE(queue->Done("a", taken->id));
  }
  auto next = std::make_shared<WorkQueue>("next");
  ASSERT_OK(next->Restore(queue->Save()));
  ASSERT_OK(next->Fill(one));
  EXPECT_STATUS(TakeNow(next.get(), "a"), absl::StatusCode::kOutOfRange, "are done");
}

TEST(WorkQueueTest, ARestoreTakesAwayWhatIsHeld) {
  const auto queue = FilledQueue({.shards = Files(2)});
  const std::string begin = queue->Save();
  ASSERT_OK_AND_ASSIGN(const auto taken, TakeNow(queue.get(), "a"));
  ASSERT_OK(queue->Restore(begin));
  EXPECT_FALSE(queue->Done("a", taken->id));
  EXPECT_EQ(queue->ledger().given_back, 1);
  EXPECT_EQ(OrderOf(queue.get()), "f0 f1");
}

TEST(WorkQueueTest, FileNamesMayHaveAnyBytes) {
  const std::vector<FileRange> shards = {{"a b\n'\xff", 3, 7}, {"a b\n'\xff", 7, -1}, {"x", 0, 0}};
  const auto queue = FilledQueue({.shards = shards});
  ASSERT_OK_AND_ASSIGN(const auto taken, TakeNow(queue.get(), "a"));
  ASSERT_TRUE(queue->Done("a", taken->id));
  ASSERT_OK_AND_ASSIGN(const WorkQueueState state, WorkQueueState::Parse(queue->Save()));
  EXPECT_EQ(state.done, std::vector<FileRange>{shards[0]});
}

TEST(WorkQueueTest, WhatIsNoStateIsRefusedAndChangesNothing) {
  const auto queue = FilledQueue({.shards = Files(1)});
  for (const std::string& text :
       {std::string("no state"), std::string("millrace work queue 1"),
        std::string("millrace work queue 1\nepoch -1\n"),
        std::string("millrace work queue 1\nepoch 0\nshard 0 -1 f0\n"),
        std::string("millrace work queue 1\nepoch 0\ndone 0 f0\n"),
        std::string("millrace work queue 1\nepoch 0\ndone 0 -1 \n"),
        std::string("millrace work queue 1\nepoch 0\ndone 0 -1 f0"),
        std::string("millrace work queue 1\nepoch 0\nopen 0 0 -1 f0\n"),
        std::string("millrace work queue 1\nepoch 1\nopen -1 0 -1 f0\n"),
        std::string("millrace work queue 1\nepoch 1\nopen 0 0 -1 f0\nopen 0 0 -1 f0\n"),
        std::string("millrace work queue 1\nepoch 9223372036854775806\n"),
        std::string("millrace work queue 1\nepoch 9223372036854775807\n")}) {
    EXPECT_STATUS(queue->Restore(text), absl::StatusCode::kDataLoss,
                  "WorkQueue 'q': the state of a work queue must have its epoch and shards, got "
                  "line ")
        << text;
  }
  EXPECT_EQ(OrderOf(queue.get()), "f0");
}

TEST(WorkQueueTest, ListsThatCannotBeAreRefused) {
  const auto refused = [](WorkQueue::Content content, const std::string& message) {
    EXPECT_STATUS(std::make_shared<WorkQueue>("q")->Fill(std::move(content)),
                  absl::StatusCode::kInvalidArgument, message);
  };
  refused({}, "WorkQueue 'q': there must be at least one shard, got none");
  refused({.shards = {{""}}}, "a shard must name a file, got ''");
  refused({.shards = {{"f", -1}}},
          "a shard must begin at 0 or later and end behind that, or at -1, got 'f' [-1, -1)");
  refused({.shards = {{"f", 5, 4}}}, "got 'f' [5, 4)");
  refused({.shards = {{"f", 0, -2}}}, "got 'f' [0, -2)");
  refused({.shards = {{"f"}, {"g"}, {"f"}}}, "shards must differ, got 'f' [0, -1) twice");
  refused({.shards = {{"f"}}, .num_epochs = 0}, "num_epochs must be > 0, or -1, got 0");
}

}  // namespace
}  // namespace millrace

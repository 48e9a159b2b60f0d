// SPDX-License-Identifier: Apache-2.0
#include "ops/kernels/sync_rounds.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: rounds of synchronous training: one of those that gave leads, once as many have
//   given as are asked for or as live; who dies, leaves, comes late or fails in its update holds up
//   nobody

namespace millrace {
namespace {

// One that trains: what its last Give or Join came to.
struct Trainer {
  std::string session;
  int64_t round = -2;  // of its next gradient
  std::optional<StatusOr<SyncRounds::Given>> given = {};
  std::optional<StatusOr<int64_t>> joined = {};

  bool leads() const { return given && given->ok() && (*given)->leads; }
  bool goes_on() const { return given && given->ok() && !(*given)->leads; }
};

class SyncRoundsTest : public ::testing::Test {
 protected:
  void Make(int64_t replicas, absl::Duration start_wait = absl::Seconds(30)) {
    rounds_ = std::make_shared<SyncRounds>(
        SyncRoundsSpec{.replicas = replicas, .start_wait = start_wait, .name = "r"}, &clock_);
  }
  void Join(Trainer* t) {
    t->joined.reset();
    rounds_->Join(t->session, absl::StrCat("trainer ", t->session), &cancellation_,
                  [t](StatusOr<int64_t> round) {
                    t->joined = round;
                    if (round.ok()) t->round = *round;
                  });
  }
  void Give(Trainer* t, CancellationManager* cancellation = nullptr) {
    t->given.reset();
    rounds_->Give(t->session, t->round, cancellation == nullptr ? &cancellation_ : cancellation,
                  [this, t](StatusOr<SyncRounds::Given> given) {
                    t->given = given;
                    if (given.ok()) t->round = given->next_round;
                    if (t->leads()) ++times_led_[t->round - 1];
                  });
  }
  int64_t RoundOf(const std::string& session) {
    const StatusOr<int64_t> round =
        rounds_->RoundOf(session, absl::StrCat("trainer ", session), &cancellation_);
    EXPECT_OK(round.status());
    return round.ok() ? *round : -3;
  }
  void Done(Trainer* t) { EXPECT_EQ(rounds_->Done(t->session, t->round - 1), t->round); }

  FakeClock clock_{absl::UnixEpoch() + absl::Hours(1)};
  CancellationManager cancellation_;
  std::map<int64_t, int> times_led_;  // by round
  std::shared_ptr<SyncRounds> rounds_;
};

TEST_F(SyncRoundsTest, TheLastOfARoundLeadsAndTheOthersGoOnWhenItIsDone) {
  Make(2);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  ASSERT_TRUE(a.joined && b.joined);
  const int64_t first = a.round;
  EXPECT_EQ(first, b.round);
  EXPECT_EQ(first, absl::ToUnixMicros(clock_.Now()));
  Give(&a);
  EXPECT_FALSE(a.given);
  EXPECT_EQ(rounds_->WaitsFor(), "has 1 of 2 gradients, waits for trainer b");
  Give(&b);
  EXPECT_FALSE(a.given);
  ASSERT_TRUE(b.leads());
  EXPECT_EQ(b.round, first + 1);
  EXPECT_EQ(rounds_->WaitsFor(), "waits for the update of trainer b");
  Done(&b);
  ASSERT_TRUE(a.goes_on());
  EXPECT_EQ(a.round, first + 1);
  EXPECT_EQ(RoundOf("a"), first + 1);
  EXPECT_EQ(RoundOf("b"), first + 1);
  const SyncRounds::Counts counts = rounds_->counts();
  EXPECT_EQ(counts.rounds, 1);
  EXPECT_EQ(counts.given_up, 0);
  EXPECT_EQ(counts.late, 0);
  EXPECT_EQ(counts.trainers, 2);
}

TEST_F(SyncRoundsTest, WhoLeavesIsNotWaitedFor) {
  Make(3);
  Trainer a{"a"}, b{"b"}, c{"c"};
  for (Trainer* t : {&a, &b, &c}) Join(t);
  Give(&a);
  Give(&b);
  rounds_->SessionEnded("c");
  ASSERT_TRUE(b.leads());
  EXPECT_FALSE(a.given);
  Done(&b);
  ASSERT_TRUE(a.goes_on());
  // What a trainer gave before it left counts; its own step is told of the end.
  Give(&a);
  rounds_->SessionEnded("a");
  EXPECT_STATUS(a.given->status(), absl::StatusCode::kCancelled, "was cancelled");
  Give(&b);
  EXPECT_TRUE(b.leads());
  EXPECT_EQ(rounds_->counts().trainers, 1);
  rounds_->SessionEnded("nobody");
}

TEST_F(SyncRoundsTest, WhenTheLeaderDiesItsRoundIsGivenUp) {
  Make(2);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  const int64_t first = a.round;
  Give(&a);
  Give(&b);
  ASSERT_TRUE(b.leads());
  rounds_->SessionEnded("b");
  ASSERT_TRUE(a.goes_on());
  EXPECT_EQ(a.round, first + 1);
  EXPECT_EQ(rounds_->counts().given_up, 1);
  // Its step may still come to its end.
  EXPECT_EQ(rounds_->Done("b", first), first + 1);
  EXPECT_EQ(rounds_->counts().rounds, 0);
  Give(&a);
  EXPECT_TRUE(a.leads());
}

TEST_F(SyncRoundsTest, AnUpdateThatFailedIsGivenUpByTheLeadersNextStep) {
  Make(2);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  const int64_t first = a.round;
  Give(&a);
  Give(&b);
  ASSERT_TRUE(b.leads());
  EXPECT_EQ(RoundOf("b"), first + 1);
  EXPECT_TRUE(a.goes_on());
  EXPECT_EQ(rounds_->counts().given_up, 1);
}

TEST_F(SyncRoundsTest, GradientsThatComeTooLateAreCountedAndTheirTrainersGoOn) {
  Make(1);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  const int64_t first = b.round;
  Give(&a);
  ASSERT_TRUE(a.leads());
  // While the update runs there is nothing to go on with.
  Give(&b);
  EXPECT_FALSE(b.given);
  Trainer c{"c"};
  Join(&c);
  EXPECT_FALSE(c.joined);
  Done(&a);
  ASSERT_TRUE(b.goes_on() && c.joined);
  EXPECT_EQ(b.round, first + 1);
  EXPECT_EQ(c.round, first + 1);
  EXPECT_EQ(rounds_->counts().late, 1);
  // Between two rounds: at once.
  Give(&a);
  Done(&a);
  Give(&c);
  ASSERT_TRUE(c.goes_on());
  EXPECT_EQ(c.round, first + 2);
  EXPECT_EQ(rounds_->counts().late, 2);
}

TEST_F(SyncRoundsTest, TheStartWaitsForAllForSomeTime) {
  Make(3, absl::Seconds(30));
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  Give(&a);
  std::promise<bool> b_leads;
  rounds_->Give("b", b.round, &cancellation_, [&](StatusOr<SyncRounds::Given> given) {
    b_leads.set_value(given.ok() && given->leads);
  });
  EXPECT_EQ(rounds_->WaitsFor(), "waits at its start for 3 trainers, 2 have joined");
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(29));
  EXPECT_EQ(rounds_->WaitsFor(), "waits at its start for 3 trainers, 2 have joined");
  // However late the thread looks.
  std::future<bool> leads = b_leads.get_future();
  while (leads.wait_for(std::chrono::milliseconds(1)) != std::future_status::ready) {
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_TRUE(leads.get());
  rounds_->Done("b", b.round);
  EXPECT_TRUE(a.goes_on());
}

TEST_F(SyncRoundsTest, ATimeWithoutTrainersIsANewStart) {
  Make(2);
  Trainer a{"a"}, b{"b"}, c{"c"}, d{"d"};
  Join(&a);
  Join(&b);
  const int64_t first = a.round;
  Give(&a);
  rounds_->SessionEnded("a");
  rounds_->SessionEnded("b");
  EXPECT_EQ(rounds_->counts().given_up, 1) << "a's gradient is of nobody's round";
  Join(&c);
  EXPECT_EQ(c.round, first + 1);
  Give(&c);
  EXPECT_FALSE(c.given);
  Join(&d);
  Give(&d);
  EXPECT_TRUE(d.leads());
}

TEST_F(SyncRoundsTest, AStepThatIsCancelledMayBeRunAgain) {
  Make(2);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  CancellationManager of_step;
  Give(&a, &of_step);
  of_step.StartCancel();
  EXPECT_STATUS(a.given->status(), absl::StatusCode::kCancelled, "was cancelled");
  Give(&a);
  EXPECT_FALSE(a.given) << "one gradient of one trainer";
  Give(&b);
  EXPECT_TRUE(b.leads());
  CancellationManager over;
  over.StartCancel();
  Trainer late{"a", a.round};
  Give(&late, &over);
  EXPECT_STATUS(late.given->status(), absl::StatusCode::kCancelled, "was cancelled");
}

TEST_F(SyncRoundsTest, WhoHasNotJoinedHoldsNoRound) {
  Make(1);
  Trainer a{"a", 5};
  Give(&a);
  EXPECT_STATUS(a.given->status(), absl::StatusCode::kFailedPrecondition,
                "run the local initialisers");
  // A step that asks for its round joins, for the next step.
  a.round = RoundOf("a");
  EXPECT_EQ(a.round, SyncRounds::kNoRound);
  Give(&a);
  ASSERT_TRUE(a.goes_on());
  EXPECT_EQ(rounds_->counts().late, 1);
  Give(&a);
  EXPECT_TRUE(a.leads());
}

TEST_F(SyncRoundsTest, OptionsAreChecked) {
  EXPECT_STATUS((SyncRoundsSpec{.replicas = 0, .name = "r"}.Check()),
                absl::StatusCode::kInvalidArgument,
                "SyncReplicas 'r': replicas_to_aggregate must be >= 1, got 0");
  Make(2);
  EXPECT_OK(rounds_->Agree({.replicas = 1})) << "nobody has joined";
  Trainer a{"a"};
  Join(&a);
  EXPECT_OK(rounds_->Agree({.replicas = 1}));
  EXPECT_STATUS(rounds_->Agree({.replicas = 3}), absl::StatusCode::kInvalidArgument,
                "must be the same for all trainers, got 3 where others have 1");
  rounds_->SessionEnded("a");
  EXPECT_OK(rounds_->Agree({.replicas = 3}));
}

// Its session was lost while it waited; the next one gives the same batch again.
TEST_F(SyncRoundsTest, ATrainerThatComesBackCountsOnce) {
  Make(2);
  Trainer a{"a"}, b{"b"}, again{"c"};
  const auto join_as_a = [&](Trainer* t) {
    rounds_->Join(t->session, "the same task", &cancellation_,
                  [t](StatusOr<int64_t> round) { t->round = round.value_or(-3); });
  };
  join_as_a(&a);
  Join(&b);
  Give(&a);
  rounds_->SessionEnded("a");
  join_as_a(&again);
  EXPECT_EQ(again.round, b.round);
  Give(&again);
  EXPECT_FALSE(again.given) << "b's gradient is not there";
  EXPECT_EQ(rounds_->WaitsFor(), "has 1 of 2 gradients, waits for trainer b");
  Give(&b);
  ASSERT_TRUE(b.leads());
  EXPECT_EQ((*b.given)->gradients, 2);
}

TEST_F(SyncRoundsTest, AnUpdateThatIsCancelledIsGivenUpAtOnce) {
  Make(2);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  CancellationManager of_step;
  Give(&a);
  Give(&b, &of_step);
  ASSERT_TRUE(b.leads());
  of_step.StartCancel();
  EXPECT_TRUE(a.goes_on());
  EXPECT_EQ(rounds_->counts().given_up, 1);
  // After an update it means nothing.
  CancellationManager of_next;
  b.round = RoundOf("b");
  Give(&a);
  Give(&b, &of_next);
  ASSERT_TRUE(b.leads());
  Done(&b);
  of_next.StartCancel();
  EXPECT_EQ(rounds_->counts().given_up, 1);
  EXPECT_EQ(rounds_->counts().rounds, 1);
}

// A step that is under way has read its variables before it asks for its round.
TEST_F(SyncRoundsTest, WhoLeftItsRoundsEndOutIsLateInTheNext) {
  Make(1);
  Trainer a{"a"}, b{"b"};
  Join(&a);
  Join(&b);
  rounds_->SessionEnded("b");
  Join(&b);
  CancellationManager of_step;
  const int64_t first = a.round;
  Make(2);
  Join(&a);
  Join(&b);
  Trainer c{"c"};
  Join(&c);
  Give(&a, &of_step);
  of_step.StartCancel();
  Give(&b);
  ASSERT_TRUE(b.leads());
  Done(&b);
  EXPECT_EQ(RoundOf("a"), first);
  a.round = RoundOf("a");
  Give(&a);
  ASSERT_TRUE(a.goes_on());
  EXPECT_EQ(rounds_->counts().late, 1);
}

// Steps of a session that is over may still be on their way to their end.
TEST_F(SyncRoundsTest, AStepThatIsCancelledDoesNotJoin) {
  Make(1);
  CancellationManager over;
  over.StartCancel();
  EXPECT_STATUS(rounds_->RoundOf("a", "trainer a", &over).status(), absl::StatusCode::kCancelled,
                "was cancelled");
  bool was_told = false;
  rounds_->Join("a", "trainer a", &over, [&](StatusOr<int64_t> round) {
    was_told = true;
    EXPECT_STATUS(round.status(), absl::StatusCode::kCancelled, "was cancelled");
  });
  EXPECT_TRUE(was_told);
  EXPECT_EQ(rounds_->counts().trainers, 0);
}

// Trainers that come, give, lead, fail and go, in any order. There is never more
// than one leader; a round's number is never led twice; and once nothing new happens, all that live
// come through a round together.
TEST_F(SyncRoundsTest, AnyHistoryGoesOn) {
  constexpr int kHistories = 1000, kEvents = 60, kMost = 5;
  for (int seed = 0; seed < kHistories; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int replicas = 1 + below(4);
    Make(replicas, absl::ZeroDuration());
    std::map<int, std::unique_ptr<Trainer>> live;
    std::vector<std::unique_ptr<Trainer>> gone;
    times_led_.clear();
    int next_session = 0;
    const auto leader = [&]() -> Trainer* {
      Trainer* found = nullptr;
      for (auto& [id, t] : live) {
        if (!t->leads()) continue;
        EXPECT_EQ(found, nullptr) << "two lead";
        found = t.get();
      }
      return found;
    };
    const auto is_free = [](const Trainer& t) {  // between two steps
      return t.joined && (!t.given || t.goes_on() || !t.given->ok()) && t.round >= -1;
    };
    // `given` of one that waits is empty, as that of one that has not begun: told apart by `busy`.
    std::map<Trainer*, bool> busy;
    for (int event = 0; event < kEvents; ++event) {
      Trainer* const l = leader();
      switch (below(6)) {
        case 0:
          if (live.size() < kMost) {
            auto t = std::make_unique<Trainer>(Trainer{absl::StrCat("s", next_session)});
            Join(t.get());
            live.emplace(next_session++, std::move(t));
          }
          break;
        case 1:
          if (!live.empty()) {
            auto it = std::next(live.begin(), below(static_cast<int>(live.size())));
            gone.push_back(std::move(it->second));
            live.erase(it);
            rounds_->SessionEnded(gone.back()->session);
          }
          break;
        case 2:
          if (l != nullptr) {
            const int64_t next = rounds_->Done(l->session, l->round - 1);
            EXPECT_EQ(next, l->round);
            l->given = StatusOr<SyncRounds::Given>(SyncRounds::Given{false, next});
          }
          break;
        case 3:
          if (l != nullptr && below(3) == 0) {  // its update has failed, it begins again
            l->given.reset();
            l->round = RoundOf(l->session);
            l->joined = l->round;
            busy[l] = false;
          }
          break;
        default:
          for (auto& [id, t] : live) {
            if (is_free(*t) && (!busy[t.get()] || t->given) && below(2) == 0) {
              busy[t.get()] = true;
              Give(t.get());
              break;
            }
          }
      }
    }
    // The end: who leads is done, all that are free give; so a round is over for all.
    const int64_t rounds_before = rounds_->counts().rounds;
    for (int i = 0; i < 3 * kMost && !live.empty(); ++i) {
      if (Trainer* const l = leader(); l != nullptr) {
        const int64_t next = rounds_->Done(l->session, l->round - 1);
        l->given = StatusOr<SyncRounds::Given>(SyncRounds::Given{false, next});
      }
      for (auto& [id, t] : live) {
        if (is_free(*t) && (!busy[t.get()] || t->given)) {
          busy[t.get()] = true;
          Give(t.get());
        }
      }
    }
    if (!live.empty()) {
      EXPECT_GT(rounds_->counts().rounds, rounds_before) << rounds_->DebugString();
    }
    for (const auto& [round, times] : times_led_) EXPECT_EQ(times, 1) << round;
    rounds_.reset();
  }
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "run/run_registry.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: clusters: a second job on a used parameter server initialises and never sees the first
//   one's variables; a chief that returns adopts its own run's; the state of a run that is over is
//   freed

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
using State = FoundRun::State;

TrainingRun Chief(const std::string& name, const std::string& id, const std::string& who = "chief",
                  int64_t epoch = 0) {
  return {.name = name, .id = id, .is_chief = true, .chief = who, .epoch = epoch};
}
TrainingRun Trainer(const std::string& name, const std::string& id) {
  return {.name = name, .id = id};
}

class RunRegistryTest : public ::testing::Test {
 protected:
  // The container of the run; null when the session is refused.
  RunResources* Open(const TrainingRun& run) {
    const auto resources = runs_.Open(run);
    EXPECT_OK(resources);
    return resources.ok() ? resources->get() : nullptr;
  }
  // The ids of the containers that were freed since the last call.
  std::vector<std::string> TakeFreed() {
    std::vector<std::string> ids;
    for (const auto& freed : runs_.TakeFreed()) {
      EXPECT_NE(freed.resources, nullptr);
      EXPECT_NE(freed.reason, "");
      ids.push_back(freed.run.id);
    }
    return ids;
  }

  FakeClock clock_;
  RunRegistry runs_{kPs, &clock_, absl::Minutes(10), std::make_shared<RunResources>};
};

using Ids = std::vector<std::string>;

TEST_F(RunRegistryTest, EachRunHasAContainerOfItsOwn) {
  RunResources* const a = Open(Chief("/a", "a1"));
  RunResources* const b = Open(Chief("/b", "b1"));
  EXPECT_NE(a, b);
  EXPECT_EQ(Open(Trainer("/a", "a1")), a);
  EXPECT_EQ(Open(Trainer("/b", "b1")), b);
}

TEST_F(RunRegistryTest, AChiefThatComesAgainFindsWhatItsRunHeld) {
  RunResources* const a = Open(Chief("/a", "a1", "process 1"));
  runs_.Close(Chief("/a", "a1", "process 1"));
  clock_.Advance(absl::Hours(100));
  EXPECT_EQ(TakeFreed(), Ids());
  EXPECT_EQ(Open(Chief("/a", "a1", "process 2")), a);
}

TEST_F(RunRegistryTest, TheNewestChiefFencesTheOlderOneInAnyOrder) {
  const TrainingRun first = Chief("/a", "a1", "first", 1), second = Chief("/a", "a1", "second", 2);
  Open(first);
  EXPECT_OK(runs_.Check(first));
  Open(second);
  EXPECT_STATUS(runs_.Check(first), absl::StatusCode::kFailedPrecondition,
                "fenced by second, epoch 2");
  EXPECT_TRUE(IsFenced(runs_.Check(first)));
  EXPECT_TRUE(IsFenced(runs_.Open(first).status()));
  EXPECT_TRUE(IsFenced(runs_.End(first, {})));
  EXPECT_OK(runs_.Check(second));
  Open(second);  // again
  // Another server may hear of the newer chief first.
  RunRegistry other(kPs, &clock_, absl::Minutes(10), std::make_shared<RunResources>);
  EXPECT_OK(other.Open(second));
  EXPECT_TRUE(IsFenced(other.Open(first).status()));
}

TEST_F(RunRegistryTest, WithoutEpochsTheLastToComeIsTheNewestAndTheOlderOneStaysFenced) {
  const TrainingRun first = Chief("/a", "a1", "first"), second = Chief("/a", "a1", "second");
  Open(first);
  Open(second);
  EXPECT_TRUE(IsFenced(runs_.Check(first)));
  EXPECT_TRUE(IsFenced(runs_.Open(first).status()));
  EXPECT_OK(runs_.Check(second));
}

TEST_F(RunRegistryTest, TrainersThatAreNotTheChiefAreNotFenced) {
  Open(Chief("/a", "a1", "first", 1));
  Open(Trainer("/a", "a1"));
  Open(Chief("/a", "a1", "second", 2));
  EXPECT_OK(runs_.Check(Trainer("/a", "a1")));
}

TEST_F(RunRegistryTest, ARunThatHasEndedRefusesTrainersAndTellsItsEnd) {
  const TrainingRun chief = Chief("/a", "a1"), trainer = Trainer("/a", "a1");
  const RunEnd end = {.global_step = 100, .checkpoint = "/a/ckpt-100", .reason = "done"};
  Open(chief);
  Open(trainer);
  EXPECT_STATUS(runs_.End(trainer, end), absl::StatusCode::kFailedPrecondition,
                "must be told by a session of its chief");
  EXPECT_OK(runs_.End(chief, end));
  EXPECT_OK(runs_.Check(trainer));  // an open session continues
  EXPECT_EQ(RunEndOf(runs_.Open(trainer).status()), end);
  EXPECT_EQ(runs_.Find("/a", "").state, State::kEnded);
  EXPECT_EQ(runs_.Find("/a", "").end, end);
}

TEST_F(RunRegistryTest, AnEndThatALogdirTellsIsAnEndOfARunThatNobodyClaimed) {
  runs_.NoteEnd(Trainer("/a", "a1"), {.global_step = 7});
  EXPECT_EQ(runs_.Find("/a", "").state, State::kEnded);
  EXPECT_EQ(RunEndOf(runs_.Open(Trainer("/a", "a1")).status()), (RunEnd{.global_step = 7}));
}

TEST_F(RunRegistryTest, AChiefMayTrainARunFurtherThatHasEnded) {
  RunResources* const a = Open(Chief("/a", "a1", "process 1"));
  EXPECT_OK(runs_.End(Chief("/a", "a1", "process 1"), {}));
  EXPECT_EQ(Open(Chief("/a", "a1", "process 2")), a);
  EXPECT_EQ(runs_.Find("/a", "").state, State::kClaimed);
  EXPECT_EQ(Open(Trainer("/a", "a1")), a);
}

TEST_F(RunRegistryTest, ARunIsFoundByItsNameOnceAChiefHasClaimedIt) {
  EXPECT_EQ(runs_.Find("/a", "").state, State::kUnknown);
  Open(Trainer("/a", "a1"));
  EXPECT_EQ(runs_.Find("/a", "").state, State::kUnknown);
  EXPECT_EQ(runs_.Find("", "a1").state, State::kUnknown);
  Open(Chief("/a", "a1", "somebody", 3));
  EXPECT_EQ(runs_.Find("/a", "").state, State::kClaimed);
  EXPECT_EQ(runs_.Find("/a", "").run.id, "a1");
  EXPECT_EQ(runs_.Find("/other", "a1").run.chief, "somebody");
  EXPECT_EQ(runs_.Find("/b", "").state, State::kUnknown);
}

TEST_F(RunRegistryTest, ANewRunOfTheSameNameSupersedesTheOlderOne) {
  const TrainingRun old_chief = Chief("/a", "a1", "old"), old_trainer = Trainer("/a", "a1");
  RunResources* const old = Open(old_chief);
  Open(old_trainer);
  // Two jobs of one logdir: while the first one's chief has a session, the second waits.
  const Status busy = runs_.Open(Chief("/a", "a2", "new")).status();
  EXPECT_STATUS(busy, absl::StatusCode::kUnavailable,
                "Run '/a' (a2) of new must wait until no other run of its name is trained, got a1 "
                "of old, with 2 sessions");
  EXPECT_TRUE(TellsOfBusyRun(busy));
  EXPECT_OK(runs_.Check(old_chief));
  EXPECT_EQ(runs_.Find("/a", "a2").state, State::kUnknown);
  runs_.Close(old_chief);
  EXPECT_NE(Open(Chief("/a", "a2", "new")), old);
  EXPECT_TRUE(IsFenced(runs_.Check(old_chief)));
  EXPECT_TRUE(IsFenced(runs_.Open(old_chief).status()));
  EXPECT_STATUS(runs_.Check(old_trainer), absl::StatusCode::kAborted,
                "run a2 of new supersedes; open a new session");
  EXPECT_EQ(runs_.Find("/a", "").run.id, "a2");
  EXPECT_EQ(runs_.Find("/a", "a1").state, State::kSuperseded);
  EXPECT_EQ(TakeFreed(), Ids());
  runs_.Close(old_trainer);
  EXPECT_EQ(TakeFreed(), Ids{"a1"});
  // The same chief, whose logdir was emptied, need not wait.
  EXPECT_NE(Open(Chief("/a", "a3", "new")), nullptr);
  EXPECT_EQ(runs_.Find("/a", "").run.id, "a3");
}

TEST_F(RunRegistryTest, TheContainerOfARunThatHasEndedIsFreedWithItsLastSession) {
  const TrainingRun chief = Chief("/a", "a1"), trainer = Trainer("/a", "a1");
  RunResources* const a = Open(chief);
  Open(trainer);
  EXPECT_OK(runs_.End(chief, {}));
  runs_.Close(chief);
  EXPECT_EQ(TakeFreed(), Ids());
  EXPECT_NE(runs_.ContainerOf("a1"), nullptr);
  const std::shared_ptr<RunResources> keep = runs_.ContainerOf("a1");
  runs_.Close(trainer);
  EXPECT_EQ(TakeFreed(), Ids{"a1"});
  EXPECT_EQ(runs_.ContainerOf("a1"), nullptr);
  EXPECT_EQ(runs_.Find("/a", "").state, State::kEnded);  // latecomers still hear of it
  EXPECT_NE(Open(chief), a);
}

TEST_F(RunRegistryTest, ARunWithoutSessionsLosesItsContainerOnlyToAnother) {
  const TrainingRun a = Chief("/a", "a1"), b = Chief("/b", "b1");
  Open(a);
  runs_.Close(a);
  Open(b);
  runs_.Close(b);
  EXPECT_EQ(TakeFreed(), Ids());
  clock_.Advance(absl::Minutes(9));
  Open(Chief("/c", "c1"));
  EXPECT_EQ(TakeFreed(), Ids());  // both were used lately
  clock_.Advance(absl::Minutes(1));
  Open(Trainer("/c", "c1"));
  EXPECT_EQ(TakeFreed(), Ids());  // no other run needs the room
  Open(b);
  EXPECT_EQ(TakeFreed(), Ids{"a1"});
}

TEST_F(RunRegistryTest, ARunWithASessionKeepsItsContainerForEver) {
  Open(Chief("/a", "a1"));
  clock_.Advance(absl::Hours(100));
  Open(Chief("/b", "b1"));
  EXPECT_EQ(TakeFreed(), Ids());
}

TEST_F(RunRegistryTest, ATaskHasFinishedWhenItsNewestRunHasEndedAndNoOtherIsUsed) {
  const TrainingRun a = Chief("/a", "a1"), b = Chief("/b", "b1");
  EXPECT_FALSE(runs_.FindFinished().has_value());
  Open(a);
  Open(b);
  EXPECT_FALSE(runs_.FindFinished().has_value());
  clock_.Advance(absl::Seconds(5));
  EXPECT_OK(runs_.End(b, {.global_step = 9}));
  EXPECT_FALSE(runs_.FindFinished().has_value());  // a is still trained
  runs_.Close(a);
  const auto finished = runs_.FindFinished();
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->run.id, "b1");
  EXPECT_EQ(finished->end.global_step, 9);
  EXPECT_EQ(finished->ended, clock_.Now());
  EXPECT_EQ(finished->sessions, 1);
  Open(b);  // trained further
  EXPECT_FALSE(runs_.FindFinished().has_value());
}

TEST_F(RunRegistryTest, RunsAreBoundedInNumberAndTheOldestThatAreOverAreForgotten) {
  for (int i = 0; i < 1000; ++i) {
    const TrainingRun run = Chief(absl::StrCat("/", i), absl::StrCat("r", i));
    Open(run);
    if (i % 2 == 0) {
      EXPECT_OK(runs_.End(run, {}));
      runs_.Close(run);
      clock_.Advance(absl::Seconds(1));
    }
  }
  EXPECT_EQ(TakeFreed().size(), 500u);
  for (int i = 0; i < 500; ++i) {
    EXPECT_EQ(runs_.Find(absl::StrCat("/", 2 * i), "").state, State::kEnded);
    Open(Chief(absl::StrCat("/more", i), absl::StrCat("m", i)));
    EXPECT_EQ(runs_.Find(absl::StrCat("/", 2 * i), "").state, State::kUnknown);
  }
  EXPECT_STATUS(runs_.Open(Chief("/one", "more")).status(), absl::StatusCode::kResourceExhausted,
                "at most 1000 runs may be under way");
}

// Each has a container, which nobody has used since: they must not keep a newcomer out for good.
TEST_F(RunRegistryTest, RunsThatWereLeftMakePlaceWhenTheirTimeIsOver) {
  for (int i = 0; i < 1000; ++i) {
    const TrainingRun run = Trainer("", absl::StrCat("r", i));
    Open(run);
    runs_.Close(run);
  }
  EXPECT_STATUS(runs_.Open(Chief("/a", "a1")).status(), absl::StatusCode::kResourceExhausted,
                "at most 1000 runs may be under way");
  clock_.Advance(absl::Minutes(10));
  const TrainingRun used = Trainer("/used", "r7");
  Open(used);
  Open(Chief("/a", "a1"));
  EXPECT_EQ(TakeFreed().size(), 999u);
  EXPECT_NE(runs_.ContainerOf("r7"), nullptr);
}

TEST_F(RunRegistryTest, NamesThatRunsHaveSeenHaveABoundAndEachRunHasRoomOfItsOwn) {
  constexpr int64_t kBound = 64 << 10;
  RunRegistry runs(kPs, &clock_, absl::Minutes(10), std::make_shared<RunResources>, kBound);
  const TrainingRun stranger = Trainer("", "s1"), honest = Trainer("/a", "a1");
  EXPECT_OK(runs.Open(stranger));
  for (int i = 0; i < 100 * kBound / 256; ++i) {
    runs.NoteTrainer(stranger, absl::StrCat(std::string(250, 'x'), i));
    ASSERT_LE(runs.note_bytes(), kBound);
  }
  for (int i = 0; i < 1000; ++i) {
    const TrainingRun chief = Chief("", "s1", absl::StrCat(std::string(200, 'x'), i));
    EXPECT_OK(runs.Open(chief));
    runs.Close(chief);
  }
  EXPECT_LE(runs.note_bytes(), kBound);
  EXPECT_OK(runs.Open(honest));
  std::set<std::string> tasks;
  for (int i = 0; i < 50; ++i) {
    tasks.insert(absl::StrCat("/job:worker/replica:0/task:", i));
    runs.NoteTrainer(honest, absl::StrCat("/job:worker/replica:0/task:", i));
  }
  EXPECT_EQ(runs.TrainersOf("a1"), tasks);
  EXPECT_LE(runs.note_bytes(), kBound + RunRegistry::kOwnNoteBytes);
}

TEST_F(RunRegistryTest, AnInvalidRunIsRefused) {
  EXPECT_STATUS(runs_.Open({.name = "/a"}).status(), absl::StatusCode::kInvalidArgument,
                "run '/a' must have an id here, got none");
  EXPECT_STATUS(runs_.Open({.name = "/a", .id = "../x"}).status(),
                absl::StatusCode::kInvalidArgument, "letters and digits");
}

}  // namespace
}  // namespace millrace

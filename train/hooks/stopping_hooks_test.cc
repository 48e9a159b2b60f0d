// SPDX-License-Identifier: Apache-2.0
//
// Hooks that end a loop, or hold it back.
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/hooks/early_stopping.h"
#include "train/hooks/global_step_waiter.h"
#include "train/hooks/nan_tensor.h"
#include "train/hooks/stop_at_checkpoint_step.h"
#include "train/hooks/stop_at_step.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/supervisor.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

// covers: training: a chief that is started again after an early stop leaves without a step, and
//   its workers with it
// covers: training: stopping hooks stop at a step, wait for their turn and stop early by
//   evaluations

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

class StoppingHooksTest : public ::testing::Test {
 protected:
  StoppingHooksTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("stopping_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~StoppingHooksTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  StatusOr<std::unique_ptr<MonitoredSession>> Open(const Model& model,
                                                   std::vector<SessionRunHook*> hooks,
                                                   bool is_chief = true,
                                                   Clock* clock = Clock::Real()) {
    SessionCreatorOptions creator;
    creator.target = kSharedTarget;
    creator.max_wait = absl::Seconds(60);
    MonitoredSessionOptions options;
    options.hooks = std::move(hooks);
    options.recovery_wait = absl::ZeroDuration();
    options.clock = clock;
    std::unique_ptr<SessionCreator> made;
    if (is_chief) {
      made = std::make_unique<ChiefSessionCreator>(model.root, creator);
    } else {
      made = std::make_unique<WorkerSessionCreator>(model.root, creator);
    }
    return MonitoredSession::Open(model.root, std::move(made), std::move(options));
  }
  int64_t Step(Session* session, const Model& model) {
    const auto out = session->Run({}, {model.step.value});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<int64_t>() : -1;
  }
  // Runs until the stop; how often.
  int RunsOf(MonitoredSession* session, const Model& model) {
    int runs = 0;
    EXPECT_OK(session->Loop([&] {
      ++runs;
      return session->Run({}, {}, {model.count}).status();
    }));
    return runs;
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  SharedVariables servers_;
};

// --- StopAtStep ----------------------------------------------------------------------------------

TEST_F(StoppingHooksTest, TheLoopEndsAtTheLastStepAndNotAStepLater) {
  const Model model;
  StopAtStepHook hook({.last_step = 5});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  EXPECT_EQ(RunsOf(session.get(), model), 5);
}

TEST_F(StoppingHooksTest, NumStepsCountsFromTheSessionThatCameFirstAndNotFromARecovery) {
  {
    const Model model;
    StopAtStepHook hook({.num_steps = 3});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
    EXPECT_EQ(RunsOf(session.get(), model), 3);
  }
  // The servers hold step 3.
  const Model model;
  StopAtStepHook hook({.num_steps = 4});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  servers_.FailRuns({absl::UnavailableError("gone")});
  EXPECT_EQ(RunsOf(session.get(), model), 3);
  EXPECT_EQ(session->recoveries(), 1);
}

TEST_F(StoppingHooksTest, AJobThatIsDoneRunsNoStep) {
  const Model first;
  StopAtStepHook hook({.last_step = 2});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(first, {&hook}));
  EXPECT_EQ(RunsOf(session.get(), first), 2);
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto again, Open(model, {&hook}));
  EXPECT_TRUE(again->ShouldStop());
  EXPECT_EQ(RunsOf(again.get(), model), 0);
}

TEST_F(StoppingHooksTest, StepsOfOthersCount) {
  const Model model;
  StopAtStepHook hook({.last_step = 10});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  for (int i = 0; i < 8; ++i) {
    ASSERT_OK(session->raw_session()->Run({}, {}, {model.count}).status());
  }
  EXPECT_EQ(RunsOf(session.get(), model), 2);
}

TEST_F(StoppingHooksTest, ExactlyOneOfLastStepAndNumStepsIsAsked) {
  for (const StopAtStepOptions& options :
       std::vector<StopAtStepOptions>{{},
                                      {.last_step = 1, .num_steps = 1},
                                      {.last_step = -1},
                                      {.last_step = 1, .num_steps = -1}}) {
    const Model model;
    StopAtStepHook hook(options);
    EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                  "StopAtStepHook.Begin: exactly one of last_step and num_steps must be > 0, got ");
  }
}

// --- The NaN guard -------------------------------------------------------------------------------

TEST_F(StoppingHooksTest, ALossThatIsNanIsAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const Model model;
    NanTensorHook hook(model.y);
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
    ASSERT_OK(session->Run({{model.x, Tensor::Scalar(1.f)}}, {}, {model.count}).status());
    const Status status = session->Loop([&] {
      return session->Run({{model.x, Tensor::Scalar(bad)}}, {}, {model.count}).status();
    });
    EXPECT_TRUE(IsLossNotFinite(status)) << status;
    EXPECT_STATUS(status, StatusCode::kInvalidArgument,
                  "NanTensorHook.AfterRun: NaN guard: the loss must be finite, got ");
  }
}

// The saver is the chief's own and comes first, as in MonitoredTrainingSession.
TEST_F(StoppingHooksTest, WhatTheGuardRefusesIsInNoCheckpointThatIsDueWithTheSameStep) {
  for (const NanPolicy policy : {NanPolicy::kError, NanPolicy::kStop}) {
    ASSERT_OK(servers_.Restart());
    const Model model;
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1});
    NanTensorHook nan(model.y, policy);
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&saver, &nan}));
    ASSERT_OK(session->Run({{model.x, Tensor::Scalar(1.f)}}, {}, {model.count}).status());
    const Tensor bad = Tensor::Scalar(std::numeric_limits<float>::quiet_NaN());
    const Status status = session->Loop([&] {
      return session->Run({{model.x, bad}}, {}, {model.count}).status();
    });
    EXPECT_EQ(IsLossNotFinite(status), policy == NanPolicy::kError) << status;
    EXPECT_EQ(LatestCheckpoint(fs_, dir_), JoinPath(dir_, "model.ckpt-1"));
  }
}

TEST_F(StoppingHooksTest, OrAnOrderlyEndWithoutACheckpointOfWhatIsBroken) {
  const Model model;
  NanTensorHook nan(model.y, NanPolicy::kStop);
  CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 100});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&nan, &saver}));
  EXPECT_EQ(saver.stats().saves, 1);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  EXPECT_OK(session->Loop([&] {
    return session->Run({{model.x, Tensor::Scalar(bad)}}, {}, {model.count}).status();
  }));
  EXPECT_EQ(saver.stats().saves, 1);
  EXPECT_EQ(servers_.ends().size(), 0u);
}

TEST_F(StoppingHooksTest, ALossThatIsNoNumberIsRefused) {
  const Model model;
  NanTensorHook hook(model.step.value);
  EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                "the loss must be float or double, got int64");
}

// --- GlobalStepWaiter ----------------------------------------------------------------------------

TEST_F(StoppingHooksTest, AWaitingTaskStartsWhenOthersHaveReachedTheStep) {
  const Model chief, model;
  ASSERT_OK_AND_ASSIGN(const auto of_chief, Open(chief, {}));
  FakeClock clock;
  GlobalStepWaiterHook hook({.wait_until_step = 3, .clock = &clock});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}, true, &clock));
  std::thread others([&] {
    for (int i = 0; i < 3; ++i) {
      clock.AwaitWaiters(1);
      EXPECT_OK(of_chief->Run({}, {}, {chief.count}).status());
      clock.Advance(absl::Milliseconds(500));
    }
  });
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  others.join();
  EXPECT_EQ(Step(session->raw_session(), model), 4);
  // Once is enough.
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
}

// --- StopAtCheckpointStep ------------------------------------------------------------------------

TEST_F(StoppingHooksTest, StepsAreReadFromTheNamesOfCheckpoints) {
  EXPECT_EQ(StepOfCheckpoint("run-2/model.ckpt-120"), 120);
  EXPECT_EQ(StepOfCheckpoint("m-00000012"), 12);
  EXPECT_EQ(StepOfCheckpoint("model.ckpt"), -1);
  EXPECT_EQ(StepOfCheckpoint("model-last"), -1);
}

TEST_F(StoppingHooksTest, AWorkerStaysUntilTheCheckpointOfTheLastStepIsThere) {
  const Model chief, model;
  CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 100});
  ASSERT_OK_AND_ASSIGN(const auto of_chief, Open(chief, {&saver}));
  FakeClock clock;
  StopAtCheckpointStepHook hook({.checkpoint_dir = dir_, .last_step = 2, .clock = &clock});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}, /*is_chief=*/false, &clock));
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_FALSE(session->ShouldStop());
  std::thread chief_ends([&] {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(1));
    clock.AwaitWaiters(1);
    EXPECT_OK(of_chief->Close());
    clock.Advance(absl::Seconds(1));
  });
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  chief_ends.join();
  EXPECT_TRUE(session->ShouldStop());
  EXPECT_OK(session->Close());
}

TEST_F(StoppingHooksTest, AWorkerWhoseCheckpointNeverComesEndsWithAnError) {
  const Model model;
  FakeClock clock;
  StopAtCheckpointStepHook hook(
      {.checkpoint_dir = dir_, .last_step = 1, .max_wait = absl::Seconds(3), .clock = &clock});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}, true, &clock));
  std::thread time([&] {
    for (int i = 0; i < 3; ++i) {
      clock.AwaitWaiters(1);
      clock.Advance(absl::Seconds(1));
    }
  });
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kDeadlineExceeded,
                "a checkpoint of step 1 must be in '");
  time.join();
}

// --- Early stopping ------------------------------------------------------------------------------

TEST_F(StoppingHooksTest, ThePredicatesOfEarlyStopping) {
  const std::vector<Evaluation> losses = {{0, 9}, {100, 5}, {200, 4}, {300, 4.5}, {400, 4}};
  const auto read = [&] { return losses; };
  struct Case {
    std::function<StatusOr<bool>()> predicate;
    bool want;
  };
  const std::vector<Case> cases = {{StopIfHigher(read, 8), true},
                                   {StopIfHigher(read, 9), false},
                                   {StopIfHigher(read, 8, 100), false},
                                   {StopIfLower(read, 4), false},
                                   {StopIfLower(read, 4.1), true},
                                   {StopIfLower(read, 4.1, 500), false},
                                   {StopIfNoDecrease(read, 200), true},
                                   {StopIfNoDecrease(read, 201), false},
                                   {StopIfNoDecrease(read, 100), true},
                                   {StopIfNoIncrease(read, 400), true},
                                   {StopIfNoIncrease(read, 401), false},
                                   {StopIfNoIncrease(read, 300, 100), true},
                                   {StopIfNoIncrease(read, 301, 100), false}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const StatusOr<bool> got = cases[i].predicate();
    ASSERT_OK(got.status());
    EXPECT_EQ(*got, cases[i].want) << "case " << i;
  }
  // A metric without a value is never the best one; while all are so, nothing has got better.
  for (const bool later_is_good : {true, false}) {
    const double later = later_is_good ? 0.7 : std::nan("");
    const std::vector<Evaluation> aucs = {{0, std::nan("")}, {100, later}, {200, std::nan("")}};
    const auto read_aucs = [&] { return aucs; };
    EXPECT_EQ(*StopIfNoIncrease(read_aucs, 200)(), !later_is_good);
    EXPECT_EQ(*StopIfNoDecrease(read_aucs, 200)(), !later_is_good);
    EXPECT_TRUE(*StopIfNoIncrease(read_aucs, 100)());
    EXPECT_FALSE(*StopIfHigher(read_aucs, 0.8)());
    EXPECT_FALSE(*StopIfLower(read_aucs, 0.6)());
  }
  const auto fails = [] { return absl::NotFoundError("no events"); };
  EXPECT_STATUS(StopIfLower(fails, 1)().status(), StatusCode::kNotFound, "no events");
}

TEST_F(StoppingHooksTest, TheChiefsDecisionStopsTheOthersAndIsForgottenByTheNextJob) {
  bool stop = false;
  int asked = 0;
  const auto decide = [&]() -> StatusOr<bool> {
    ++asked;
    return stop;
  };
  const Model chief, worker;
  EarlyStoppingHook of_chief({.is_chief = true, .should_stop = decide, .every = 2});
  EarlyStoppingHook of_worker({.is_chief = false});
  ASSERT_OK_AND_ASSIGN(const auto chief_session, Open(chief, {&of_chief}));
  ASSERT_OK_AND_ASSIGN(const auto worker_session, Open(worker, {&of_worker}, /*is_chief=*/false));
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(chief_session->Run({}, {}, {chief.count}).status());
    ASSERT_OK(worker_session->Run({}, {}, {worker.count}).status());
  }
  EXPECT_EQ(asked, 2);
  EXPECT_FALSE(worker_session->ShouldStop());
  stop = true;
  ASSERT_OK(chief_session->Run({}, {}, {chief.count}).status());
  EXPECT_FALSE(chief_session->ShouldStop());
  ASSERT_OK(chief_session->Run({}, {}, {chief.count}).status());
  EXPECT_TRUE(chief_session->ShouldStop());
  ASSERT_OK(worker_session->Run({}, {}, {worker.count}).status());
  EXPECT_TRUE(worker_session->ShouldStop());
  EXPECT_OK(chief_session->Close());
  EXPECT_OK(worker_session->Close());

  // The servers still hold the signal; who goes on, with more patience, clears it.
  stop = false;
  const Model later_chief, later_worker;
  ASSERT_OK_AND_ASSIGN(const auto again, Open(later_chief, {&of_chief}));
  ASSERT_OK_AND_ASSIGN(const auto other, Open(later_worker, {&of_worker}, /*is_chief=*/false));
  ASSERT_OK(other->Run({}, {}, {later_worker.count}).status());
  EXPECT_FALSE(other->ShouldStop());
}

// The run after the evaluation asks, not the one that `every` names.
TEST_F(StoppingHooksTest, NewsAreAskedAboutAtOnce) {
  const Model model;
  int asked = 0;
  bool news = false, stop = false;
  EarlyStoppingHook hook({.should_stop =
                              [&] {
                                ++asked;
                                return stop;
                              },
                          .every = 1000,
                          .has_news = [&] { return std::exchange(news, false); }});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  const auto run = [&] { return session->Run({}, {}, {model.count}).status(); };
  for (int i = 0; i < 3; ++i) ASSERT_OK(run());
  EXPECT_EQ(asked, 1) << "with the first run";
  news = true;
  ASSERT_OK(run());
  EXPECT_EQ(asked, 2);
  ASSERT_OK(run());
  EXPECT_EQ(asked, 2) << "once about the same news";
  EXPECT_FALSE(session->ShouldStop());
  news = stop = true;
  ASSERT_OK(run());
  EXPECT_TRUE(session->ShouldStop());
  EXPECT_OK(session->Close());
}

TEST_F(StoppingHooksTest, AChiefThatIsStartedAgainAfterAnEarlyStopLeavesWithoutAStep) {
  {
    const Model model;
    EarlyStoppingHook hook({.should_stop = [] { return true; }});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
    EXPECT_EQ(RunsOf(session.get(), model), 1) << "a new model is asked about after its first step";
  }
  int asked = 0;
  bool stop = true;
  const auto decide = [&]() -> StatusOr<bool> {
    ++asked;
    return stop;
  };
  {
    // The servers hold what was trained.
    const Model model;
    EarlyStoppingHook hook({.should_stop = decide, .reason = "early stopping: no patience"});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
    EXPECT_TRUE(session->ShouldStop());
    EXPECT_EQ(RunsOf(session.get(), model), 0);
    EXPECT_EQ(session->end_reason(), "early stopping: no patience");
    EXPECT_EQ(asked, 1);
  }
  {
    // With more patience it goes on, and the question before the first step was the first of two.
    stop = false;
    const Model model;
    EarlyStoppingHook hook({.should_stop = decide, .every = 2});
    StopAtStepHook last({.last_step = 4});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &last}));
    EXPECT_EQ(RunsOf(session.get(), model), 3);
    EXPECT_EQ(asked, 3);
    EXPECT_EQ(session->end_reason(), "reached step 4 of 4");
  }
  const Model model;
  EarlyStoppingHook fails({.should_stop = [] { return absl::DataLossError("torn"); }});
  EXPECT_STATUS(Open(model, {&fails}).status(), StatusCode::kDataLoss,
                "EarlyStoppingHook.AfterCreateSession: torn");
}

TEST_F(StoppingHooksTest, TheHookSaysWhereTrainingBegins) {
  std::vector<int64_t> begins;
  for (const int64_t last_step : {2, 4}) {
    const Model model;
    EarlyStoppingHook hook({.should_stop = [] { return false; },
                            .on_begin = [&](int64_t step) { begins.push_back(step); }});
    StopAtStepHook last({.last_step = last_step});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &last}));
    EXPECT_EQ(RunsOf(session.get(), model), 2);
  }
  EXPECT_EQ(begins, (std::vector<int64_t>{-1, 2})) << "a new model, and what the servers hold";
}

// Its session is ready as soon as the variables are: before the chief has asked.
TEST_F(StoppingHooksTest, AWorkerThatIsStartedAgainWithItsChiefLeavesWithoutAStep) {
  {
    const Model model;  // what was trained before
    EarlyStoppingHook hook({.should_stop = [] { return false; }});
    StopAtStepHook last({.last_step = 3});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &last}));
    EXPECT_EQ(RunsOf(session.get(), model), 3);
  }
  for (const bool stop : {true, false}) {
    Notification asks, answer, worker_is_done;
    const auto decide = [&]() -> StatusOr<bool> {
      asks.Notify();
      answer.Wait();
      return stop;
    };
    const Model chief, worker;
    EarlyStoppingHook of_chief({.should_stop = decide, .every = 1000});
    EarlyStoppingHook of_worker({.is_chief = false, .reason = "early stopping: no patience"});
    std::thread chief_thread([&] {
      const auto session = Open(chief, {&of_chief});
      EXPECT_OK(session.status());
      worker_is_done.Wait();
      if (!session.ok()) return;
      EXPECT_EQ((*session)->ShouldStop(), stop);
      EXPECT_OK((*session)->Close());
    });
    asks.Wait();
    const int made = servers_.sessions_made();
    std::thread worker_thread([&] {
      const auto session = Open(worker, {&of_worker}, /*is_chief=*/false);
      EXPECT_OK(session.status());
      if (session.ok()) {
        EXPECT_EQ((*session)->ShouldStop(), stop) << "before its first step";
        EXPECT_OK((*session)->Close());
        EXPECT_EQ((*session)->end_reason() == "early stopping: no patience", stop);
      }
      worker_is_done.Notify();
    });
    while (servers_.sessions_made() == made) std::this_thread::yield();
    answer.Notify();
    chief_thread.join();
    worker_thread.join();
  }
}

TEST_F(StoppingHooksTest, AChiefWithoutTheHookIsNotWaitedForForEver) {
  const Model chief, worker;
  ASSERT_OK_AND_ASSIGN(const auto chief_session, Open(chief, {}));
  FakeClock clock(absl::UnixEpoch());
  EarlyStoppingHook of_worker({.is_chief = false, .clock = &clock});
  std::thread time([&] {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(31));
  });
  testing::internal::CaptureStderr();
  const auto session = Open(worker, {&of_worker}, /*is_chief=*/false);
  const std::string log = testing::internal::GetCapturedStderr();
  time.join();
  ASSERT_OK(session.status());
  EXPECT_FALSE((*session)->ShouldStop());
  EXPECT_NE(log.find("EarlyStoppingHook: the chief has not said within 30s"), std::string::npos)
      << log;
}

TEST_F(StoppingHooksTest, WhatWasWrongWhenTheHookWasMadeIsSaidAtItsBegin) {
  const Model model;
  EarlyStoppingHook hook(
      {.should_stop = [] { return false; }, .status = absl::InvalidArgumentError("no metric")});
  EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                "EarlyStoppingHook.Begin: no metric");
}

TEST_F(StoppingHooksTest, TheSignalIsInNoCheckpoint) {
  const Model model;
  EarlyStoppingHook hook({.should_stop = [] { return true; }});
  CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &saver}));
  EXPECT_EQ(RunsOf(session.get(), model), 1);
  ASSERT_OK(servers_.Restart());
  // A model that never had the hook restores from it.
  const Model plain;
  SessionCreatorOptions creator;
  creator.checkpoint_path = saver.stats().last_checkpoint;
  ASSERT_OK_AND_ASSIGN(const auto restored, SingularMonitoredSession(plain.root, creator));
  EXPECT_EQ(Step(restored->raw_session(), plain), 1);
}

TEST_F(StoppingHooksTest, AChiefWithoutAPredicateIsRefused) {
  const Model model;
  EarlyStoppingHook hook({.is_chief = true});
  EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                "should_stop must be given on the chief, got none");
}

}  // namespace
}  // namespace millrace

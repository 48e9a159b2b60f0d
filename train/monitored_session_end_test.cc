// SPDX-License-Identifier: Apache-2.0
//
// The end of a run: loops report it and learn of it, also when the data ends.
#include <signal.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "saver/saver.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/testing/hooked_model.h"
#include "train/testing/monitored_session_fixture.h"

// covers: training: with finite data the run ends when the data of every trainer has ended, or its
//   lease, and the last checkpoint has all of it

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

// --- The end of the run --------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, AChiefThatReachedItsGoalTellsTheEndOfTheRun) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  a_.on_after = [](RunContext* context, const RunValues&) {
    context->RequestStop("reached step 1");
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  EXPECT_OK(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }));
  ASSERT_EQ(servers_.ends().size(), 1u);
  EXPECT_EQ(servers_.ends()[0], (RunEnd{.global_step = 1, .reason = "reached step 1"}));
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->global_step, 1);
  EXPECT_EQ(end->reason, "reached step 1");
}

TEST_F(MonitoredSessionTest, LeavingOrClosingEndsNoRun) {
  creator_options.checkpoint_dir = dir_;
  {
    const Model model;
    a_.on_after = [](RunContext* context, const RunValues&) {
      context->RequestStop("reached step 1");
      context->RequestLeave(absl::CancelledError("SIGTERM"));
      return absl::OkStatus();
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
    Calls();
    EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                  StatusCode::kCancelled, "SIGTERM");
    EXPECT_EQ(Calls(), "a.before a.after a.end");
  }
  {
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {}));
    EXPECT_OK(session->Close());
  }
  EXPECT_EQ(servers_.ends().size(), 0u);
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs_, dir_));
  EXPECT_FALSE(end.has_value());
}

TEST_F(MonitoredSessionTest, ATaskThatHearsOfTheEndOfItsRunHasEndedWell) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  Calls();
  servers_.FailRuns({RunEndedError("worker", {.name = "run", .id = "1"}, {.global_step = 7})});
  EXPECT_OK(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }));
  EXPECT_EQ(Calls(), "a.before");
}

TEST_F(MonitoredSessionTest, AnOlderChiefIsRefusedItsNextCheckpoint) {
  creator_options.checkpoint_dir = dir_;
  const Model older, newer;
  Saver* saver = nullptr;
  a_.on_created = [&](RunContext*, const CreatedSession& created) {
    saver = created.saver.get();
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto first, Open(older, {&a_}));
  ASSERT_OK(saver->Save(first->raw_session(), dir_ + "/m", 0).status());
  ASSERT_OK_AND_ASSIGN(const auto second, Open(newer, {}));
  EXPECT_TRUE(IsFenced(saver->Save(first->raw_session(), dir_ + "/m", 1).status()));
}

// --- Data that ends ------------------------------------------------------------------------------

constexpr char kOther[] = "/job:worker/replica:0/task:0";

TEST_F(MonitoredSessionTest, TrainersThatAreMissingAreAwaitedForTheGrace) {
  creator_options.checkpoint_dir = dir_;
  int looks = 0;
  a_.on_others = [&](RunContext*) {
    if (++looks == 2) servers_.SetOtherTrainers({{.ended = {kOther}}});
    return absl::OkStatus();
  };
  for (const absl::Duration grace : {absl::Hours(1), absl::ZeroDuration()}) {
    looks = 0;
    servers_.SetOtherTrainers({{}});
    const Model model;
    MonitoredSessionOptions options;
    options.hooks = {&a_};
    options.num_trainers = 2;
    options.trainers_grace = grace;
    ASSERT_OK_AND_ASSIGN(
        const auto session,
        MonitoredSession::Open(model.root,
                               std::make_unique<ChiefSessionCreator>(model.root, creator_options),
                               std::move(options)));
    EXPECT_OK(session->Loop([] { return absl::OutOfRangeError("no more rows"); }));
    EXPECT_EQ(looks, grace > absl::ZeroDuration() ? 2 : 0);
  }
  EXPECT_EQ(servers_.ends().size(), 2u);
}

TEST_F(MonitoredSessionTest, TheChiefEndsTheRunWhenTheDataOfEveryTrainerHasEnded) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 2});
  // The other trainer counts on, and its servers are lost once.
  int looks = 0;
  a_.on_others = [&](RunContext* context) -> Status {
    MR_RETURN_IF_ERROR(context->session()->Run({}, {}, {model.count}).status());
    if (++looks == 2) servers_.FailRuns({absl::UnavailableError("gone")});
    if (looks == 4) servers_.SetOtherTrainers({{.ended = {kOther}}});
    return absl::OkStatus();
  };
  servers_.SetOtherTrainers({{.training = {kOther}}});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&saver, &a_}));
  Calls();
  int runs = 0;
  EXPECT_OK(session->Loop([&] {
    if (++runs == 2) return absl::OutOfRangeError("no more rows");
    return session->Run({}, {}, {model.count}).status();
  }));
  EXPECT_EQ(session->recoveries(), 1);
  const std::string calls = Calls();
  EXPECT_TRUE(absl::StartsWith(calls, "a.before a.after a.others a.others a.created a.others a.o"))
      << calls;
  EXPECT_TRUE(absl::EndsWith(calls, "a.others a.end")) << calls;
  // Saves still come by steps; the last one has the steps of the other trainer.
  EXPECT_GE(saver.stats().saves, 3);
  ASSERT_EQ(servers_.ends().size(), 1u);
  EXPECT_GE(servers_.ends()[0].global_step, 5);
  EXPECT_EQ(servers_.ends()[0].checkpoint,
            absl::StrCat(dir_, "/model.ckpt-", servers_.ends()[0].global_step));
  EXPECT_EQ(servers_.ends()[0].reason, "no more rows");
}

TEST_F(MonitoredSessionTest, WaitingForOtherTrainersEndsWithALeaveAndCanBeSwitchedOff) {
  creator_options.checkpoint_dir = dir_;
  servers_.SetOtherTrainers({{.training = {kOther}}});
  {
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
    Calls();
    a_.on_others = [&](RunContext*) {
      ::raise(SIGTERM);
      return absl::OkStatus();
    };
    const Status status = session->Loop([] { return absl::OutOfRangeError("no more rows"); });
    EXPECT_EQ(ExitCode(status), 143) << status;
    EXPECT_EQ(Calls(), "a.others a.end");
    EXPECT_EQ(servers_.ends().size(), 0u);
  }
  {
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
    Calls();
    a_.on_others = [&](RunContext*) { return absl::InternalError("no"); };
    EXPECT_STATUS(session->Loop([] { return absl::OutOfRangeError("no more rows"); }),
                  StatusCode::kInternal, "a.WhileOthersTrain: no");
    EXPECT_EQ(Calls(), "a.others");
  }
  const Model model;
  MonitoredSessionOptions options;
  options.hooks = {&a_};
  options.await_trainers = false;
  ASSERT_OK_AND_ASSIGN(
      const auto session,
      MonitoredSession::Open(model.root,
                             std::make_unique<ChiefSessionCreator>(model.root, creator_options),
                             std::move(options)));
  Calls();
  EXPECT_OK(session->Loop([] { return absl::OutOfRangeError("no more rows"); }));
  EXPECT_EQ(Calls(), "a.end");
  EXPECT_EQ(servers_.ends().size(), 1u);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "train/monitored_session.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/control/queue.h"
#include "proto/config.pb.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "saver/saver.h"
#include "train/coordinator.h"
#include "train/hooks/checkpoint_saver.h"
#include "train/session_manager.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

// covers: training: hooks are called in one order, at the end, after the end of data, an error in
//   each of their methods and a lost session; a lost session is replaced and the step repeated,
//   with a bound; a hook's error names the hook
// covers: training: SIGTERM and Ctrl-C, and other threads, end a loop with a last checkpoint and
//   143, also in a wait for other tasks, in a step or a restore that hangs, and in a recovery
// covers: training: with finite data the run ends when the data of every trainer has ended, or its
//   lease, and the last checkpoint has all of it
// covers: article 3-6: five methods of a hook, in one order

namespace millrace {
namespace {

using absl::StatusCode;

using Model = HookedModel;

// Writes down what is called, and does what a test says.
class RecordingHook : public SessionRunHook {
 public:
  RecordingHook(std::string who, std::vector<std::string>* calls)
      : who_(std::move(who)), calls_(calls) {}
  std::string name() const override { return who_; }
  Status Begin(HookSetup* setup) override {
    Note("begin");
    if (on_begin) return on_begin(setup);
    return absl::OkStatus();
  }
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override {
    Note("created");
    if (on_created) return on_created(context, created);
    return absl::OkStatus();
  }
  StatusOr<GroupMask> BeforeRun(RunContext* context) override {
    Note("before");
    if (on_before) return on_before(context);
    return kNoGroups;
  }
  Status AfterRun(RunContext* context, const RunValues& values) override {
    Note("after");
    if (on_after) return on_after(context, values);
    return absl::OkStatus();
  }
  Status WhileOthersTrain(RunContext* context) override {
    Note("others");
    if (on_others) return on_others(context);
    return absl::OkStatus();
  }
  Status End(const LoopEnd& end) override {
    Note("end");
    if (on_end) return on_end(end);
    return absl::OkStatus();
  }

  std::function<Status(HookSetup*)> on_begin;
  std::function<Status(RunContext*, const CreatedSession&)> on_created;
  std::function<StatusOr<GroupMask>(RunContext*)> on_before;
  std::function<Status(RunContext*, const RunValues&)> on_after;
  std::function<Status(RunContext*)> on_others;
  std::function<Status(const LoopEnd&)> on_end;

 private:
  void Note(const char* what) { calls_->push_back(absl::StrCat(who_, ".", what)); }

  const std::string who_;
  std::vector<std::string>* const calls_;
};

class MonitoredSessionTest : public ::testing::Test {
 protected:
  MonitoredSessionTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("monitored_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~MonitoredSessionTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  SessionCreatorOptions ChiefOptions() const {
    SessionCreatorOptions options;
    options.target = kSharedTarget;
    options.recovery_wait = absl::Milliseconds(1);
    options.max_wait = absl::Seconds(60);
    return options;
  }
  StatusOr<std::unique_ptr<MonitoredSession>> Open(const Model& model,
                                                   std::vector<SessionRunHook*> hooks,
                                                   int max_recoveries = 20) const {
    MonitoredSessionOptions options;
    options.hooks = std::move(hooks);
    options.max_recoveries = max_recoveries;
    options.recovery_wait = absl::Milliseconds(1);
    return MonitoredSession::Open(
        model.root, std::make_unique<ChiefSessionCreator>(model.root, creator_options),
        std::move(options));
  }
  std::string Calls() {
    const std::string text = absl::StrJoin(calls_, " ");
    calls_.clear();
    return text;
  }
  static int64_t Step(MonitoredSession* session, const Model& model) {
    const auto out = session->raw_session()->Run({}, {model.step.value});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<int64_t>() : -1;
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  SharedVariables servers_;
  SessionCreatorOptions creator_options = ChiefOptions();
  std::vector<std::string> calls_;
  RecordingHook a_{"a", &calls_}, b_{"b", &calls_};
};

// --- The order of calls --------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, HooksAreCalledInOrderUntilTheStopThatOneOfThemAskedFor) {
  const Model model;
  a_.on_begin = [&](HookSetup* setup) {
    Const(setup->scope().WithName("of_a"), 1.f);
    return setup->scope().status();
  };
  b_.on_after = [](RunContext* context, const RunValues&) {
    if (context->run_number() == 1) context->RequestStop("two are enough");
    return absl::OkStatus();
  };
  a_.on_end = [](const LoopEnd& end) {
    return end.session->Run({}, {"w/Read/ReadVariableOp"}).status();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  EXPECT_EQ(Calls(), "a.begin b.begin a.created b.created");
  EXPECT_NE(model.root.graph()->FindNode("of_a"), nullptr);
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_FALSE(session->ShouldStop());
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_TRUE(session->ShouldStop());
  EXPECT_EQ(Calls(), "a.before b.before a.after b.after a.before b.before a.after b.after");
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kFailedPrecondition,
                "Run called even after should_stop requested.");
  EXPECT_OK(session->Close());
  EXPECT_OK(session->Close());
  EXPECT_EQ(Calls(), "a.end b.end");
  EXPECT_EQ(session->raw_session(), nullptr);
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kFailedPrecondition,
                "Run must come before Close");
}

TEST_F(MonitoredSessionTest, TheGraphIsFinalizedAfterBegin) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {}));
  Const(model.root, 1.f);
  EXPECT_STATUS(model.root.status(), StatusCode::kFailedPrecondition, "finalized");
}

TEST_F(MonitoredSessionTest, TheEndOfDataInAStepIsACleanEndWithoutAfterRun) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  int runs = 0;
  EXPECT_OK(session->Loop([&] {
    if (++runs == 2) servers_.FailRuns({absl::OutOfRangeError("no more rows")});
    return session->Run({}, {}, {model.count}).status();
  }));
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(Calls(),
            "a.begin b.begin a.created b.created a.before b.before a.after b.after "
            "a.before b.before a.end b.end");
}

TEST_F(MonitoredSessionTest, TheEndOfTheProgramsOwnDataIsACleanEnd) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  Calls();
  EXPECT_OK(session->Loop([&] { return absl::OutOfRangeError("no more rows"); }));
  EXPECT_EQ(Calls(), "a.end");
}

TEST_F(MonitoredSessionTest, AfterAnErrorThereIsNeitherAfterRunNorEnd) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  Calls();
  servers_.FailRuns({absl::InternalError("a bad kernel")});
  EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                StatusCode::kInternal, "a bad kernel");
  EXPECT_EQ(Calls(), "a.before b.before");
  EXPECT_EQ(servers_.sessions_closed(), 1);
}

TEST_F(MonitoredSessionTest, AnErrorThatTheProgramLeavesWithWithoutClosingHasNoEndEither) {
  const Model model;
  {
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    Calls();
  }
  EXPECT_EQ(Calls(), "");
  EXPECT_EQ(servers_.sessions_closed(), 1);
}

TEST_F(MonitoredSessionTest, AProgramMayGoOnAfterAnError) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  servers_.FailRuns({absl::InvalidArgumentError("a bad row")});
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kInvalidArgument,
                "a bad row");
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  Calls();
  EXPECT_OK(session->Close());
  EXPECT_EQ(Calls(), "a.end");
}

TEST_F(MonitoredSessionTest, AfterALostSessionTheSameStepIsRunAgainInANewOne) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  std::vector<bool> recoveries;
  b_.on_created = [&](RunContext*, const CreatedSession& created) {
    recoveries.push_back(created.is_recovery);
    EXPECT_EQ(created.start, SessionManager::Start::kAdopted);
    EXPECT_EQ(created.global_step, 1);
    return absl::OkStatus();
  };
  ASSERT_OK(session->Run({}, {}, {model.count}).status());
  Calls();
  servers_.FailRuns({absl::UnavailableError("a server went away")});
  ASSERT_OK_AND_ASSIGN(const auto out,
                       session->Run({{model.x, Tensor::Scalar(5.f)}}, {model.y}, {model.count}));
  EXPECT_EQ(out[0].scalar<float>(), 5);
  EXPECT_EQ(Calls(), "a.before b.before a.created b.created a.before b.before a.after b.after");
  EXPECT_EQ(recoveries, std::vector<bool>{true});
  EXPECT_EQ(session->recoveries(), 1);
  EXPECT_EQ(Step(session.get(), model), 2);
  EXPECT_EQ(servers_.sessions_made(), 2);
  EXPECT_EQ(servers_.sessions_closed(), 1);
  EXPECT_OK(session->Close());
  EXPECT_EQ(Calls(), "a.end b.end");
}

TEST_F(MonitoredSessionTest, AChiefWhoseServersWereRestartedGoesOnFromItsCheckpoint) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  Saver* saver = nullptr;
  a_.on_created = [&](RunContext*, const CreatedSession& created) {
    saver = created.saver.get();
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  ASSERT_OK(session->Run({}, {}, {model.count, model.grow}).status());
  ASSERT_OK(saver->Save(session->raw_session(), dir_ + "/m", 1).status());
  ASSERT_OK(session->Run({}, {}, {model.count, model.grow}).status());
  ASSERT_OK(servers_.Restart());
  servers_.FailRuns({absl::AbortedError("restarted")});
  ASSERT_OK(session->Run({}, {}, {model.count, model.grow}).status());
  EXPECT_EQ(Step(session.get(), model), 2);
}

TEST_F(MonitoredSessionTest, RecoveriesInARowAreBounded) {
  const Model model;
  a_.on_before = [](RunContext*) { return absl::UnavailableError("never there"); };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}, /*max_recoveries=*/3));
  EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                StatusCode::kUnavailable, "never there; gave up after 3 new sessions in a row");
  EXPECT_EQ(servers_.sessions_made(), 4);
}

TEST_F(MonitoredSessionTest, ASessionThatBeginsFurtherCountsAnew) {
  const Model model;
  int asked = 0;
  a_.on_before = [&](RunContext*) -> StatusOr<GroupMask> {
    if (++asked % 2 == 1) return absl::UnavailableError("each second time");
    return kNoGroups;
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}, /*max_recoveries=*/2));
  for (int i = 0; i < 5; ++i) ASSERT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_EQ(session->recoveries(), 5);
}

TEST_F(MonitoredSessionTest, ASingularSessionLeavesTheFirstLossToItsCaller) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session,
                       SingularMonitoredSession(model.root, creator_options, {.hooks = {&a_}}));
  Calls();
  servers_.FailRuns({absl::UnavailableError("a server went away")});
  EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                StatusCode::kUnavailable, "a server went away");
  EXPECT_EQ(Calls(), "a.before");
}

// --- Errors of hooks -----------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, WhatAHooksErrorDoesInEachOfItsMethods) {
  struct Case {
    const char* method;
    const char* message;
    const char* calls;
  };
  for (const Case& c : std::vector<Case>{
           {"begin", "b.Begin: no", "a.begin b.begin"},
           {"created", "b.AfterCreateSession: no", "a.begin b.begin c.begin a.created b.created"},
           {"before", "b.BeforeRun: no",
            "a.begin b.begin c.begin a.created b.created c.created a.before b.before"},
           {"after", "b.AfterRun: no",
            "a.begin b.begin c.begin a.created b.created c.created a.before b.before c.before "
            "a.after b.after"},
           {"end", "b.End: no",
            "a.begin b.begin c.begin a.created b.created c.created a.before b.before c.before "
            "a.after b.after c.after a.end b.end c.end"}}) {
    SCOPED_TRACE(c.method);
    ASSERT_OK(servers_.Restart());
    calls_.clear();
    const std::string method = c.method;
    const Status no = absl::InternalError("no");
    RecordingHook a("a", &calls_), b("b", &calls_), last("c", &calls_);
    if (method == "begin") b.on_begin = [&](HookSetup*) { return no; };
    if (method == "created") b.on_created = [&](RunContext*, const CreatedSession&) { return no; };
    if (method == "before") b.on_before = [&](RunContext*) { return no; };
    if (method == "after") b.on_after = [&](RunContext*, const RunValues&) { return no; };
    if (method == "end") b.on_end = [&](const LoopEnd&) { return no; };
    last.on_after = [](RunContext* context, const RunValues&) {
      context->RequestStop("enough");
      return absl::OkStatus();
    };
    const Model model;
    const size_t ends = servers_.ends().size();
    Status status;
    auto session = Open(model, {&a, &b, &last});
    status = session.status();
    if (session.ok()) {
      status = (*session)->Loop([&] { return (*session)->Run({}, {}, {model.count}).status(); });
    }
    EXPECT_STATUS(status, StatusCode::kInternal, c.message);
    EXPECT_EQ(Calls(), c.calls);
    EXPECT_EQ(servers_.ends().size(), ends) << "the end of the run was told";
  }
}

TEST_F(MonitoredSessionTest, ALostSessionThatAHookMeetsIsReplacedWhereverItMeetsIt) {
  for (const std::string method : {"created", "before", "after"}) {
    SCOPED_TRACE(method);
    ASSERT_OK(servers_.Restart());
    calls_.clear();
    int times = 0;
    const auto lost_once = [&]() -> Status {
      return ++times == 1 ? absl::UnavailableError("gone") : absl::OkStatus();
    };
    RecordingHook a("a", &calls_);
    if (method == "created") {
      a.on_created = [&](RunContext*, const CreatedSession&) { return lost_once(); };
    }
    if (method == "before") {
      a.on_before = [&](RunContext*) -> StatusOr<GroupMask> {
        MR_RETURN_IF_ERROR(lost_once());
        return kNoGroups;
      };
    }
    if (method == "after") a.on_after = [&](RunContext*, const RunValues&) { return lost_once(); };
    const Model model;
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a}));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    EXPECT_EQ(session->recoveries(), 1);
    // At least once: what AfterRun lost had been counted.
    EXPECT_EQ(Step(session.get(), model), method == "after" ? 2 : 1);
    EXPECT_OK(session->Close());
  }
}

// b has not seen the session that a has met a loss in: for b the next one is the first.
TEST_F(MonitoredSessionTest, ARecoveryFollowsASessionThatAllHooksHaveSeen) {
  const Model model;
  int sessions = 0;
  a_.on_created = [&](RunContext*, const CreatedSession& created) -> Status {
    EXPECT_EQ(created.is_recovery, sessions == 2);
    return ++sessions == 1 ? absl::UnavailableError("gone") : absl::OkStatus();
  };
  b_.on_created = [&](RunContext*, const CreatedSession& created) -> Status {
    EXPECT_EQ(created.is_recovery, sessions == 3);
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  servers_.FailRuns({absl::UnavailableError("gone")});
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_EQ(Calls(),
            "a.begin b.begin a.created a.created b.created a.before b.before a.created b.created "
            "a.before b.before a.after b.after");
}

TEST_F(MonitoredSessionTest, TheEndOfDataOutOfAHookIsACleanEnd) {
  for (const std::string method : {"before", "after"}) {
    SCOPED_TRACE(method);
    const Model model;
    calls_.clear();
    RecordingHook a("a", &calls_), b("b", &calls_);
    const Status end = absl::OutOfRangeError("no more rows");
    if (method == "before") a.on_before = [&](RunContext*) { return end; };
    if (method == "after") a.on_after = [&](RunContext*, const RunValues&) { return end; };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a, &b}));
    Calls();
    EXPECT_OK(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }));
    EXPECT_EQ(Calls(), method == "before" ? "a.before a.end b.end"
                                          : "a.before b.before a.after a.end b.end");
  }
}

TEST_F(MonitoredSessionTest, ASessionThatAHookHasRefusedIsUsedByNoRun) {
  const Model model;
  int sessions = 0;
  a_.on_created = [&](RunContext*, const CreatedSession&) -> Status {
    if (++sessions == 2) return absl::InternalError("no");
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  servers_.FailRuns({absl::UnavailableError("gone")});
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kInternal,
                "a.AfterCreateSession: no");
  Calls();
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_EQ(Calls(), "a.created b.created a.before b.before a.after b.after");
}

TEST_F(MonitoredSessionTest, AtTheEndALossIsAnErrorAndTheOtherHooksEndAllTheSame) {
  const Model model;
  a_.on_end = [](const LoopEnd&) { return absl::UnavailableError("gone"); };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  Calls();
  EXPECT_STATUS(session->Close(), StatusCode::kUnavailable, "a.End: gone");
  EXPECT_EQ(Calls(), "a.end b.end");
  EXPECT_EQ(servers_.sessions_made(), 1);
}

// --- What hooks ask for --------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, GroupsAreFetchedWhenAskedForAndNotOtherwise) {
  for (const std::string& target : {std::string(kSharedTarget), std::string()}) {
    SCOPED_TRACE(target);
    creator_options.target = target;
    ASSERT_OK(servers_.Restart());
    const Model model;
    int w_group = -1, step_group = -1, grow_group = -1;
    a_.on_begin = [&](HookSetup* setup) -> Status {
      w_group = setup->AddGroup({.fetches = {model.w.value, model.w.value}});
      step_group = setup->AddGroup({.fetches = {model.step.value}});
      return absl::OkStatus();
    };
    b_.on_begin = [&](HookSetup* setup) -> Status {
      grow_group = setup->AddGroup({.targets = {model.grow}});
      return absl::OkStatus();
    };
    a_.on_before = [&](RunContext* context) -> StatusOr<GroupMask> {
      return context->run_number() % 2 == 0 ? MaskOf(w_group)
                                            : MaskOf(w_group) | MaskOf(step_group);
    };
    b_.on_before = [&](RunContext* context) -> StatusOr<GroupMask> {
      return context->run_number() == 2 ? MaskOf(grow_group) : kNoGroups;
    };
    std::vector<std::string> seen;
    a_.on_after = [&](RunContext*, const RunValues& values) {
      EXPECT_TRUE(values.has(w_group));
      EXPECT_EQ(values.value(w_group, 0).scalar<float>(), values.value(w_group, 1).scalar<float>());
      EXPECT_FALSE(values.value(w_group, 2).has_value());
      EXPECT_FALSE(values.value(7).has_value());
      EXPECT_EQ(values.value(step_group).has_value(), values.has(step_group));
      seen.push_back(values.has(step_group) ? "both" : "w");
      return absl::OkStatus();
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
    for (int i = 0; i < 4; ++i) {
      const Tensor x = Tensor::Scalar(static_cast<float>(i));
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{model.x, x}}, {model.y, model.count}));
      ASSERT_EQ(out.size(), 1u);
      EXPECT_EQ(out[0].scalar<float>(), static_cast<float>(i));
    }
    EXPECT_EQ(absl::StrJoin(seen, " "), "w both w both");
    ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
    EXPECT_EQ(w[0].scalar<float>(), 11);
    EXPECT_OK(session->Close());
  }
}

TEST_F(MonitoredSessionTest, APreparedStepGivesWhatRunGives) {
  creator_options.target = "";
  const Model model;
  int group = -1;
  float seen = 0;
  a_.on_begin = [&](HookSetup* setup) {
    group = setup->AddGroup({.fetches = {model.y}});
    return absl::OkStatus();
  };
  a_.on_before = [&](RunContext*) { return MaskOf(group); };
  a_.on_after = [&](RunContext*, const RunValues& values) {
    seen = values.value(group).scalar<float>();
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  ASSERT_OK_AND_ASSIGN(const MonitoredStep step,
                       session->Prepare({model.x}, {model.y}, {model.count}));
  const Tensor feed = Tensor::Scalar(3.f);
  Tensor result;
  ASSERT_OK(step.RunInto(absl::MakeConstSpan(&feed, 1), absl::MakeSpan(&result, 1)));
  EXPECT_EQ(result.scalar<float>(), 3);
  EXPECT_EQ(seen, 3);
  EXPECT_STATUS(step.RunInto({}, absl::MakeSpan(&result, 1)), StatusCode::kInvalidArgument,
                "a step of 1 feeds and 1 results must be given as many, got 0 and 1");
  EXPECT_FALSE(result.has_value());
  EXPECT_STATUS(MonitoredStep().RunInto({}, {}), StatusCode::kFailedPrecondition, "got none");
}

TEST_F(MonitoredSessionTest, AHookFeedsTheGroupsThatItAskedFor) {
  for (const std::string& target : {std::string(kSharedTarget), std::string()}) {
    SCOPED_TRACE(target);
    creator_options.target = target;
    const Model model;
    int group = -1;
    bool gives = true;
    a_.on_begin = [&](HookSetup* setup) {
      group = setup->AddGroup({.feeds = {model.x}});
      return absl::OkStatus();
    };
    a_.on_before = [&](RunContext* context) {
      if (gives) context->Feed(group, 0, Tensor::Scalar(7.f));
      return MaskOf(group);
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {model.y}));
    EXPECT_EQ(out[0].scalar<float>(), 7);
    EXPECT_STATUS(session->Run({{model.x, Tensor::Scalar(1.f)}}, {model.y}).status(),
                  StatusCode::kInvalidArgument,
                  "a.BeforeRun: tensor 'x:0' must be fed once, got a feed of the program, too");
    gives = false;
    EXPECT_STATUS(session->Run({}, {model.y}).status(), StatusCode::kInvalidArgument,
                  "tensor 'x:0' must be given a value by the hook that asked to feed it, got none");
    gives = true;
    EXPECT_OK(session->Run({}, {model.y}).status());
  }
}

TEST_F(MonitoredSessionTest, TwoHooksThatFeedOneTensorAreRefusedByName) {
  const Model model;
  for (RecordingHook* hook : {&a_, &b_}) {
    hook->on_begin = [&](HookSetup* setup) {
      setup->AddGroup({.feeds = {model.x}});
      return absl::OkStatus();
    };
    hook->on_before = [](RunContext* context) {
      context->Feed(0, 0, Tensor::Scalar(7.f));
      return MaskOf(0);
    };
  }
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_, &b_}));
  EXPECT_STATUS(session->Run({}, {model.y}).status(), StatusCode::kInvalidArgument,
                "b.BeforeRun: tensor 'x:0' must be fed once, got a feed of a, too");
}

TEST_F(MonitoredSessionTest, GroupsThatCannotBeAreRefused) {
  {
    const Model model;
    a_.on_begin = [&](HookSetup* setup) {
      for (int i = 0; i <= kMaxHookGroups; ++i) setup->AddGroup({});
      return absl::OkStatus();
    };
    EXPECT_STATUS(Open(model, {&a_}).status(), StatusCode::kInvalidArgument,
                  "a.Begin: all hooks of a session together must have at most 64 groups, got 65");
  }
  {
    const Model model, other;
    a_.on_begin = [&](HookSetup* setup) {
      setup->AddGroup({.fetches = {other.y}});
      return absl::OkStatus();
    };
    EXPECT_STATUS(Open(model, {&a_}).status(), StatusCode::kInvalidArgument,
                  "fetches and feeds must be of the session's graph, got 'y:0' of another");
  }
  const Model model;
  a_.on_begin = nullptr;
  a_.on_before = [](RunContext*) { return MaskOf(2); };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  EXPECT_STATUS(session->Run({}, {model.w.value}).status(), StatusCode::kInvalidArgument,
                "a.BeforeRun: the groups must be of those that Begin has added, 0 of them, got "
                "the mask 4");
}

TEST_F(MonitoredSessionTest, AHookThatAsksForATraceGetsOne) {
  creator_options.target = "";
  const Model model;
  a_.on_before = [](RunContext* context) {
    tensorflow::RunOptions options;
    options.set_trace_level(tensorflow::RunOptions::FULL_TRACE);
    if (context->run_number() == 1) context->MergeOptions(options);
    // Another one's wish does not take the trace away.
    if (context->run_number() == 1) context->MergeOptions(tensorflow::RunOptions());
    return kNoGroups;
  };
  std::vector<int> devices;
  a_.on_after = [&](RunContext*, const RunValues& values) {
    devices.push_back(
        values.metadata() == nullptr ? -1 : values.metadata()->step_stats().dev_stats_size());
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  for (int i = 0; i < 3; ++i) ASSERT_OK(session->Run({}, {model.w.value}).status());
  EXPECT_EQ(devices, (std::vector<int>{-1, 1, -1}));
}

TEST_F(MonitoredSessionTest, MoreSetsOfGroupsAndStepsThanAreKeptAreNoError) {
  creator_options.target = "";
  const Model model;
  a_.on_begin = [&](HookSetup* setup) {
    for (int i = 0; i < 6; ++i) setup->AddGroup({.fetches = {model.w.value}});
    return absl::OkStatus();
  };
  a_.on_before = [](RunContext* context) {
    return static_cast<GroupMask>(context->run_number() % 64);
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  for (int round = 0; round < 130; ++round) {
    std::vector<FetchName> fetches(static_cast<size_t>(1 + round % 20), model.w.value);
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, fetches));
    EXPECT_EQ(out.size(), fetches.size());
  }
}

// --- The step function ---------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, AStepFunctionRunsWithAndWithoutHooksAndIsCalledAgainAfterALoss) {
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  Calls();
  int calls = 0;
  EXPECT_OK(session->Loop([&] {
    return session->RunStepFn([&](const StepContext& context) -> Status {
      ++calls;
      MR_RETURN_IF_ERROR(context.session()->Run({}, {model.w.value}).status());
      if (calls == 1) servers_.FailRuns({absl::AbortedError("gone")});
      MR_RETURN_IF_ERROR(context.RunWithHooks({}, {}, {model.count}).status());
      return context.RequestStop("done");
    });
  }));
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(Calls(), "a.before a.created a.before a.after a.end");
}

// --- Threads of hooks ----------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, AThreadsErrorEndsTheLoopWithoutEnd) {
  const Model model;
  Notification failed;
  a_.on_created = [&](RunContext*, const CreatedSession& created) {
    created.coordinator.Start("reader", [&](const Coordinator& c) -> Status {
      c.RequestStop(absl::DataLossError("a torn file"));
      failed.Notify();
      return absl::OkStatus();
    });
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  failed.Wait();
  Calls();
  EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                StatusCode::kDataLoss, "a torn file");
  EXPECT_EQ(Calls(), "");
}

TEST_F(MonitoredSessionTest, AThreadThatMeetsALostSessionMakesTheNextRunBeginANewOne) {
  const Model model;
  Notification lost;
  a_.on_created = [&](RunContext*, const CreatedSession& created) {
    if (created.is_recovery) return absl::OkStatus();
    created.coordinator.Start("reader", [&](const Coordinator& c) -> Status {
      c.RequestStop(absl::UnavailableError("gone"));
      lost.Notify();
      return absl::OkStatus();
    });
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  lost.Wait();
  EXPECT_FALSE(session->ShouldStop());
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_EQ(session->recoveries(), 1);
  EXPECT_OK(session->Close());
}

TEST_F(MonitoredSessionTest, ThreadsOfASessionEndBeforeIt) {
  const Model model;
  bool ended = false;
  a_.on_created = [&](RunContext*, const CreatedSession& created) {
    created.coordinator.Start("waiter", [&](const Coordinator& c) -> Status {
      c.WaitForStop();
      EXPECT_EQ(servers_.sessions_closed(), 0);
      ended = true;
      return absl::OkStatus();
    });
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  EXPECT_OK(session->Close());
  EXPECT_TRUE(ended);
}

TEST_F(MonitoredSessionTest, AThreadThatIsBlockedInTheSessionHoldsUpNoError) {
  creator_options.target = "";
  const Model model;
  const Output queue = FIFOQueueV2(model.root.WithName("queue"), {DT_FLOAT});
  const Output taken = QueueDequeueV2(model.root.WithName("take"), queue, {DT_FLOAT})[0];
  Status of_thread;
  Notification blocked, ended;
  a_.on_created = [&](RunContext*, const CreatedSession& created) {
    created.coordinator.Start("reader", [&, session = created.session](const Coordinator&) {
      blocked.Notify();
      of_thread = session->Run({}, {taken}).status();
      ended.Notify();
      return absl::OkStatus();
    });
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  blocked.Wait();
  // The threads of hooks have two minutes, the test has one.
  EXPECT_STATUS(session->Loop([] { return absl::InternalError("a bad row"); }),
                StatusCode::kInternal, "a bad row");
  ended.Wait();
  EXPECT_STATUS(of_thread, StatusCode::kCancelled, "");
}

// --- Stops of other threads, signals -------------------------------------------------------------

TEST_F(MonitoredSessionTest, AnotherThreadMayEndTheRun) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  std::thread other([&] { session->RequestStop("enough"); });
  other.join();
  // It may come between the question and the run.
  EXPECT_OK(session->Run({}, {}, {model.count}).status());
  EXPECT_TRUE(session->ShouldStop());
  EXPECT_STATUS(session->Run({}, {}, {model.count}).status(), StatusCode::kFailedPrecondition,
                "Run called even after should_stop requested.");
  EXPECT_OK(session->Close());
  ASSERT_EQ(servers_.ends().size(), 1u);
  EXPECT_EQ(servers_.ends()[0].reason, "enough");
}

TEST_F(MonitoredSessionTest, OrLeaveForThisTaskWhicheverWasFirst) {
  creator_options.checkpoint_dir = dir_;
  const Model model;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
  Calls();
  session->RequestStop("enough");
  session->RequestLeave(absl::CancelledError("another time"));
  EXPECT_STATUS(session->Loop([&] { return session->Run({}, {}, {model.count}).status(); }),
                StatusCode::kCancelled, "another time");
  EXPECT_EQ(Calls(), "a.end");
  EXPECT_EQ(servers_.ends().size(), 0u);
}

TEST_F(MonitoredSessionTest, AWaitForANewSessionEndsWhenSomebodyLeaves) {
  for (const bool with_sessions : {true, false}) {
    SCOPED_TRACE(with_sessions);
    ASSERT_OK(servers_.Restart());
    servers_.FailCreations({});
    const Model model;
    // Without sessions the creator waits, else the loop does: each new one is lost.
    a_.on_created = [&](RunContext*, const CreatedSession& created) {
      return created.is_recovery ? absl::UnavailableError("gone again") : absl::OkStatus();
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}, /*max_recoveries=*/1'000'000));
    const size_t before = servers_.runs().size();
    servers_.FailRuns({absl::UnavailableError("gone")});
    if (!with_sessions) {
      servers_.FailCreations(std::deque<Status>(1'000'000, absl::UnavailableError("away")));
    }
    std::thread other([&] {
      while (servers_.runs().size() < before + 3) Clock::Real()->SleepFor(absl::Milliseconds(1));
      session->RequestLeave(WithExitCode(absl::CancelledError("another time"), 143));
    });
    const Status status =
        session->Loop([&] { return session->Run({}, {}, {model.count}).status(); });
    other.join();
    // A session was lost on the way, and nothing was kept of it.
    EXPECT_TRUE(absl::StrContains(status.message(), "another time")) << status;
    EXPECT_GE(ExitCode(status), kExitRetryable) << status;
    servers_.FailCreations({});
  }
}

TEST_F(MonitoredSessionTest, SigtermEndsTheLoopWithALastCheckpointAndItsExitCode) {
  creator_options.checkpoint_dir = dir_;
  for (const int number : {SIGTERM, SIGINT}) {
    ASSERT_OK(servers_.Restart());
    const Model model;
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&saver, &a_}));
    Calls();
    int runs = 0;
    const Status status = session->Loop([&] {
      if (++runs == 3) ::raise(number);
      return session->Run({}, {}, {model.count}).status();
    });
    EXPECT_STATUS(status, StatusCode::kCancelled,
                  number == SIGTERM ? "ended by SIGTERM" : "ended by SIGINT");
    EXPECT_EQ(ExitCode(status), 128 + number);
    EXPECT_EQ(runs, 3);
    EXPECT_EQ(Calls(), "a.before a.after a.before a.after a.before a.after a.end");
    const int64_t step = number == SIGTERM ? 3 : 6;
    EXPECT_EQ(LatestCheckpoint(fs_, dir_), absl::StrCat(dir_, "/model.ckpt-", step));
  }
  EXPECT_EQ(servers_.ends().size(), 0u) << "the run is to go on";
}

TEST_F(MonitoredSessionTest, SigtermEndsTheWaitForTheChief) {
  const Model model;
  const int before = servers_.sessions_made();
  std::thread other([&] {
    while (servers_.sessions_made() == before) Clock::Real()->SleepFor(absl::Milliseconds(1));
    ::kill(::getpid(), SIGTERM);
  });
  const Status status =
      MonitoredSession::Open(
          model.root, std::make_unique<WorkerSessionCreator>(model.root, creator_options), {})
          .status();
  other.join();
  EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
  EXPECT_EQ(ExitCode(status), 143);
}

// The chief of a job that is started again restores while the disk hangs, or a server does.
TEST_F(MonitoredSessionTest, ASignalIsHeardWhileASessionIsRestored) {
  class HungRestore : public Saver {
   public:
    explicit HungRestore(std::unique_ptr<Saver> saver) : saver_(std::move(saver)) {}
    StatusOr<std::string> Save(Session* session, const std::string& prefix,
                               std::optional<int64_t> step) override {
      return saver_->Save(session, prefix, step);
    }
    Status Restore(Session*, const std::string&) override {
      hangs.Notify();
      wait();
      return absl::CancelledError("Session has been closed.");
    }
    Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override {
      return saver_->RecoverLastCheckpoints(paths);
    }
    std::vector<std::string> last_checkpoints() const override {
      return saver_->last_checkpoints();
    }
    const tensorflow::SaverDef& def() const override { return saver_->def(); }
    Notification hangs;
    std::function<void()> wait;

   private:
    const std::unique_ptr<Saver> saver_;
  };
  creator_options.checkpoint_dir = dir_;
  {
    const Model model;
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&saver}));
    ASSERT_OK(session->Close());
  }
  for (const bool ends_with_session : {true, false}) {
    SCOPED_TRACE(ends_with_session);
    ASSERT_OK(servers_.Restart());
    const int made = servers_.sessions_made(), closed = servers_.sessions_closed();
    FakeClock clock;
    Notification open, ended;
    const Model model;
    ASSERT_OK_AND_ASSIGN(auto real, Saver::Make(model.root));
    HungRestore saver(std::move(real));
    saver.wait = [&] { ends_with_session ? servers_.AwaitClosed(closed + 1) : open.Wait(); };
    SessionCreatorOptions of_creator = creator_options;
    of_creator.scaffold.saver = &saver;
    of_creator.clock = &clock;
    std::thread thread([&] {
      MonitoredSessionOptions options;
      options.hooks = {&a_};
      options.clock = &clock;
      const Status status =
          MonitoredSession::Open(model.root,
                                 std::make_unique<ChiefSessionCreator>(model.root, of_creator),
                                 std::move(options))
              .status();
      EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
      EXPECT_EQ(ExitCode(status), 143);
      ended.Notify();
    });
    saver.hangs.Wait();
    const absl::Time begin = clock.Now();
    ASSERT_EQ(::raise(SIGTERM), 0);
    while (!ended.WaitFor(absl::Milliseconds(20))) {
      if (clock.Now() < begin + MonitoredSessionOptions().signal_grace) {
        clock.Advance(absl::Seconds(1));
      }
    }
    thread.join();
    EXPECT_EQ(Calls(), "a.begin");
    open.Notify();
    servers_.AwaitDestroyed(made + 1);
  }
}

TEST_F(MonitoredSessionTest, AWorkerWhoseServersWentWithTheSignalHasLeft) {
  const Model chief, model;
  ASSERT_OK_AND_ASSIGN(const auto of_chief, Open(chief, {}));
  ASSERT_OK_AND_ASSIGN(
      const auto session,
      MonitoredSession::Open(
          model.root, std::make_unique<WorkerSessionCreator>(model.root, creator_options), {}));
  const Status status = session->Loop([&] {
    ::raise(SIGTERM);
    servers_.FailRuns({absl::UnavailableError("gone")});
    return session->Run({}, {}, {model.count}).status();
  });
  EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
  EXPECT_EQ(ExitCode(status), 143);
  EXPECT_EQ(ExitCode(of_chief->Close()), 143);
}

TEST_F(MonitoredSessionTest, AStepThatHangsIsSavedBesideAndClosedAfterASignal) {
  creator_options.target = "";
  creator_options.checkpoint_dir = dir_;
  for (const bool saves : {true, false}) {
    SCOPED_TRACE(saves);
    const Model model;
    const Output queue = FIFOQueueV2(model.root.WithName("queue"), {DT_FLOAT});
    const Output taken = QueueDequeueV2(model.root.WithName("take"), queue, {DT_FLOAT})[0];
    CheckpointSaverHook saver({.checkpoint_dir = dir_, .every = 1000});
    MonitoredSessionOptions options;
    options.stop_grace = absl::Seconds(3);
    if (saves) options.hooks = {&saver};
    ASSERT_OK_AND_ASSIGN(
        const auto session,
        MonitoredSession::Open(model.root,
                               std::make_unique<ChiefSessionCreator>(model.root, creator_options),
                               std::move(options)));
    ASSERT_OK(session->Run({}, {}, {model.count}).status());
    const Status status = session->Loop([&] {
      ::raise(SIGTERM);
      return session->Run({}, {taken}).status();
    });
    if (saves) {
      EXPECT_STATUS(status, StatusCode::kCancelled,
                    absl::StrCat("ended by SIGTERM; saved ", dir_, "/model.ckpt-1"));
      EXPECT_EQ(ExitCode(status), 143);
      EXPECT_EQ(LatestCheckpoint(fs_, dir_), absl::StrCat(dir_, "/model.ckpt-1"));
    } else {
      EXPECT_STATUS(status, StatusCode::kCancelled, "ended by SIGTERM");
      EXPECT_EQ(ExitCode(status), kExitRetryable) << "nothing was kept";
    }
  }
}

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

TEST_F(MonitoredSessionTest, WhoLeavesOrJustStopsEndsNoRun) {
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

// --- Data that ends ---

constexpr char kOther[] = "/job:worker/replica:0/task:0";

TEST_F(MonitoredSessionTest, TrainersThatAreToComeAreWaitedForForAWhile) {
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
  // By steps, as before; the last one has what the other trainer has counted.
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

// --- Options -------------------------------------------------------------------------------------

TEST_F(MonitoredSessionTest, OptionsThatCannotWorkAreRefusedBeforeAnySession) {
  {
    const Model model;
    EXPECT_STATUS(Open(model, {}, -1).status(), StatusCode::kInvalidArgument,
                  "max_recoveries must be >= 0");
  }
  {
    const Model model;
    SessionCreatorOptions options = creator_options;
    options.checkpoint_dir = dir_;
    options.checkpoint_path = dir_ + "/m-1";
    EXPECT_STATUS(SingularMonitoredSession(model.root, options).status(),
                  StatusCode::kInvalidArgument, "checkpoint_path must come without");
  }
  {
    const Model model;
    model.root.AddToNodeCollection("local_init_op", model.count.name());
    model.root.AddToNodeCollection("local_init_op", model.grow.name());
    EXPECT_STATUS(Open(model, {}).status(), StatusCode::kInvalidArgument,
                  "collection 'local_init_op' must have one element, got 2");
  }
  {
    const Model model;
    EXPECT_STATUS(Open(model, {&a_, &b_, &a_}).status(), StatusCode::kInvalidArgument,
                  "each hook must be given once, got a twice");
    EXPECT_STATUS(Open(model, {nullptr}).status(), StatusCode::kInvalidArgument, "got a null one");
  }
  EXPECT_EQ(servers_.sessions_made(), 0);
}

TEST_F(MonitoredSessionTest, TheOneElementOfACollectionIsTheDefault) {
  const Model model;
  model.root.AddToNodeCollection("local_init_op", model.grow.name());
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {}));
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
  EXPECT_EQ(w[0].scalar<float>(), 11);
}

TEST_F(MonitoredSessionTest, ASingularSessionRestoresTheCheckpointThatItIsGiven) {
  std::string path;
  {
    const Model model;
    Saver* saver = nullptr;
    a_.on_created = [&](RunContext*, const CreatedSession& created) {
      saver = created.saver.get();
      return absl::OkStatus();
    };
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&a_}));
    ASSERT_OK(session->Run({}, {}, {model.grow}).status());
    ASSERT_OK_AND_ASSIGN(path, saver->Save(session->raw_session(), dir_ + "/m", 5));
  }
  const Model model;
  SessionCreatorOptions options;
  options.checkpoint_path = path;
  ASSERT_OK_AND_ASSIGN(const auto session, SingularMonitoredSession(model.root, options));
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
  EXPECT_EQ(w[0].scalar<float>(), 11);
}

TEST_F(MonitoredSessionTest, AWorkerWaitsUntilTheChiefHasSeenToTheValues) {
  const Model chief, worker;
  SessionCreatorOptions options = creator_options;
  options.max_wait = absl::Milliseconds(20);
  const auto open = [&](const Model& model) {
    return MonitoredSession::Open(model.root,
                                  std::make_unique<WorkerSessionCreator>(model.root, options), {});
  };
  EXPECT_STATUS(open(worker).status(), StatusCode::kDeadlineExceeded, "session was not ready");
  ASSERT_OK_AND_ASSIGN(const auto of_chief, Open(chief, {}));
  const Model later;
  ASSERT_OK_AND_ASSIGN(const auto session, open(later));
  EXPECT_OK(session->Run({}, {}, {later.count}).status());
  EXPECT_EQ(Step(of_chief.get(), chief), 1);
}

}  // namespace
}  // namespace millrace

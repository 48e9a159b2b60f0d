// SPDX-License-Identifier: Apache-2.0
//
// The order in which a loop calls its hooks, lost sessions, step functions, options.
#include "train/monitored_session.h"

#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "saver/saver.h"
#include "train/session_manager.h"
#include "train/testing/hooked_model.h"
#include "train/testing/monitored_session_fixture.h"

// covers: training: hooks are called in one order, at the end, after the end of data, an error in
//   each of their methods and a lost session; a lost session is replaced and the step repeated,
//   with a bound; a hook's error names the hook
// covers: article 3-6: five methods of a hook, in one order

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

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

TEST_F(MonitoredSessionTest, ASessionThatIsDestroyedWithoutCloseHasNoEnd) {
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

TEST_F(MonitoredSessionTest, ASessionThatMadeProgressResetsTheCount) {
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

TEST_F(MonitoredSessionTest, AWorkerWaitsUntilTheChiefHasInitialised) {
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

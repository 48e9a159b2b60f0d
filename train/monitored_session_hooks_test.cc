// SPDX-License-Identifier: Apache-2.0
//
// What hooks do to a loop: their errors, what they fetch, feed and trace, their threads.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/control/queue.h"
#include "proto/config.pb.h"
#include "runtime/session.h"
#include "train/coordinator.h"
#include "train/monitored_session.h"
#include "train/session_run_hook.h"
#include "train/testing/hooked_model.h"
#include "train/testing/monitored_session_fixture.h"
#include "train/testing/recording_hook.h"
#include "train/testing/shared_variables.h"

// covers: training: hooks are called in one order, at the end, after the end of data, an error in
//   each of their methods and a lost session; a lost session is replaced and the step repeated,
//   with a bound; a hook's error names the hook

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

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

TEST_F(MonitoredSessionTest, ALostSessionIsReplacedInWhicheverMethodAHookMeetsIt) {
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
    // Steps run at least once: the step whose AfterRun met the loss had been counted.
    EXPECT_EQ(Step(session.get(), model), method == "after" ? 2 : 1);
    EXPECT_OK(session->Close());
  }
}

// Hook a meets a loss before hook b sees the session: for b the next session is the first.
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

TEST_F(MonitoredSessionTest, TheEndOfDataFromAHookIsACleanEnd) {
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

TEST_F(MonitoredSessionTest, ALossAtTheEndIsAnErrorAndTheOtherHooksStillEnd) {
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
    // Later options without a trace do not take it away.
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
  // Threads of hooks may take two minutes to end; the test has one.
  EXPECT_STATUS(session->Loop([] { return absl::InternalError("a bad row"); }),
                StatusCode::kInternal, "a bad row");
  ended.Wait();
  EXPECT_STATUS(of_thread, StatusCode::kCancelled, "");
}

}  // namespace
}  // namespace millrace

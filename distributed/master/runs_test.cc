// SPDX-License-Identifier: Apache-2.0
//
// Whose variables those on a parameter server are, and how long sessions live there: masters and
// workers within one process, over wires that can be cut, on clocks that stand still.

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/master/master.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/testing/faulty_wire.h"
#include "distributed/testing/forwarding_control.h"
#include "distributed/testing/linked_tasks.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/watched_clock.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/foreign_requests.h"
#include "distributed/worker/in_process_control.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "distributed/worker/worker_session.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "run/tell_again.h"
#include "run/training_run.h"
#include "runtime/holds_for_sessions.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/step_loans.h"
#include "runtime/testing/step_ops.h"

// covers: clusters: a second job of a logdir waits and says for which job
// covers: clusters: a second job on a used parameter server initialises and never sees the first
//   one's variables; a chief that returns adopts its own run's; the state of a run that is over is
//   freed
// covers: clusters: of two chiefs of a run the older one's steps are refused, on every server
//   alike, and it cannot come back
// covers: clusters: a task that starts after the end of a run, or waits for it, learns of the end;
//   the server then leaves, by message or by reading the logdir, and stays for a chief that trains
//   further
// covers: clusters: 100 partitions, both ways and one way, leave as many sessions as there are
//   clients
// covers: clusters: a late message of an attempt to open a session harms no other
// covers: clusters: a session without a lease that nobody uses ends only among too many of them
// covers: clusters: the end of a session returns the elements that its client did not receive
// covers: clusters: when a session ends its steps are cancelled with the reason, and resources that
//   held state for it are notified

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0";
constexpr char kWorker0[] = "/job:worker/replica:0/task:0";
constexpr char kWorker1[] = "/job:worker/replica:0/task:1";
using Wire = FaultyWire::State;

TrainingRun Chief(const std::string& name, const std::string& id, int64_t epoch = 1,
                  const std::string& who = "the chief") {
  return {.name = name, .id = id, .is_chief = true, .chief = who, .epoch = epoch};
}

class RunsTest : public ::testing::Test {
 protected:
  RunsTest() {
    cluster_ = *ClusterSpec::Make(
        {{"ps", {"ps.example:2222"}}, {"worker", {"w0.example:1", "w1.example:1"}}});
    for (const char* task : {kPs, kWorker0, kWorker1}) StartTask(task);
  }
  ~RunsTest() override {
    for (auto& [task, master] : masters_) master->Shutdown(absl::AbortedError("Shutdown"));
    for (auto& [task, worker] : workers_) worker->Shutdown(absl::AbortedError("Shutdown"));
    testing::ClearHooks();
  }

  // The ps has a clock of its own: its leases are watched there. Masters' keepers use
  // master_clock_.
  void StartTask(const std::string& task) {
    WorkerOptions options;
    options.task = task;
    options.io_pool = IoPool::Default();
    options.clock = task == kPs ? &ps_clock_ : Clock::Real();
    options.links = links_.of(task);
    workers_[task] = std::make_unique<Worker>(std::move(options));
    links_.Begin(workers_[task].get());
    wires_[task] = std::make_shared<FaultyWire>(MakeInProcessControl(workers_[task].get(), task));
    if (task == kPs) return;
    MasterOptions master;
    master.task = task;
    master.cluster = cluster_;
    master.lease_period = absl::Seconds(10);
    master.clock = task == kWorker0 ? &master_clock_ : Clock::Real();
    master.links = links_.parts(task);
    master.local_part = MakeLocalPart(workers_.at(task).get());
    master.peer = [this, task](absl::string_view name) -> std::shared_ptr<WorkerControl> {
      if (name == task) return MakeInProcessControl(workers_.at(task).get(), task);
      if (task == kWorker0 && name == kPs && way_to_ps_ != nullptr) return way_to_ps_;
      return Peer(name);
    };
    masters_[task] = std::make_unique<Master>(std::move(master));
  }
  std::shared_ptr<WorkerControl> Peer(absl::string_view name) {
    const auto it = wires_.find(std::string(name));
    return it == wires_.end() ? nullptr : it->second;
  }
  StatusOr<std::string> Create(const TrainingRun& run, const std::string& task = kWorker0,
                               absl::Duration timeout = absl::Seconds(30),
                               absl::Duration lease = absl::ZeroDuration(),
                               std::string* run_id = nullptr) {
    tensorflow::CreateSessionRequest request;
    AddSessionTerms({.run = run, .lease = lease}, &request);
    MR_ASSIGN_OR_RETURN(*request.mutable_graph_def(),
                        MakeSmallModel(absl::StrCat(task)).root.ToGraphDef());
    tensorflow::CreateSessionResponse response;
    MR_RETURN_IF_ERROR(masters_.at(task)->CreateSession(request, timeout, 16, &response));
    if (run_id != nullptr) {
      MR_ASSIGN_OR_RETURN(const SessionTerms terms, SessionTermsOf(response));
      *run_id = terms.run.id;
    }
    return response.session_handle();
  }
  Status Close(const std::string& session, const std::string& task = kWorker0) {
    tensorflow::CloseSessionRequest request;
    request.set_session_handle(session);
    return masters_.at(task)->CloseSession(request);
  }
  StatusOr<StepResult> Run(const std::string& session, const std::vector<std::string>& fetches,
                           const std::vector<std::string>& targets,
                           const std::string& task = kWorker0) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(session);
    for (const auto& fetch : fetches) request.add_fetch(fetch);
    for (const auto& target : targets) request.add_target(target);
    std::vector<NamedTensor> feeds;
    if (targets == std::vector<std::string>{"train"}) {
      feeds = {{"x", Tensor::Vector<float>({1, 2, 3}), false},
               {"y", Tensor::Vector<float>({4, 7, 10}), false}};
    }
    return masters_.at(task)->RunStep(request, feeds);
  }
  StatusOr<float> ReadW(const std::string& session, const std::string& task = kWorker0) {
    MR_ASSIGN_OR_RETURN(const StepResult result,
                        Run(session, {"w/Read/ReadVariableOp:0"}, {}, task));
    return result.fetches[0].scalar<float>();
  }
  Worker& ps() { return *workers_.at(kPs); }
  FaultyWire& wire() { return *wires_.at(kPs); }
  // Of calls to the ps, and of its links.
  void Break(Wire how) {
    wire().Set(how);
    links_.Kill(kPs);
  }
  void Mend() {
    wire().Set(Wire::kWhole);
    links_.Begin(&ps());
  }

  ClusterSpec cluster_;
  WatchedClock ps_clock_, master_clock_;
  std::map<std::string, std::unique_ptr<Worker>> workers_;
  LinkedTasks links_{LinkedTasks::Kind::kInProcess};
  std::map<std::string, std::shared_ptr<FaultyWire>> wires_;
  std::shared_ptr<WorkerControl> way_to_ps_;  // of worker 0's master; null: the wire
  std::map<std::string, std::unique_ptr<Master>> masters_;
};

// --- Whose variables -----------------------------------------------------------------------------

TEST_F(RunsTest, ASecondJobOnTheSameParameterServerInitialisesAndNeverSeesTheFirst) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Create(Chief("/first", "f1")));
  ASSERT_OK(Run(first, {}, {"init"}));
  ASSERT_OK(Run(first, {}, {"train"}));
  ASSERT_OK_AND_ASSIGN(const float trained, ReadW(first));
  ASSERT_NE(trained, 0.0f);

  ASSERT_OK_AND_ASSIGN(const std::string second, Create(Chief("/second", "s1")));
  EXPECT_STATUS(ReadW(second).status(), absl::StatusCode::kFailedPrecondition, "w");
  ASSERT_OK(Run(second, {}, {"init"}));
  EXPECT_EQ(*ReadW(second), 0.0f);
  EXPECT_EQ(*ReadW(first), trained);

  // Who is of no run sees neither.
  ASSERT_OK_AND_ASSIGN(const std::string none, Create({}));
  EXPECT_FALSE(ReadW(none).ok());
}

TEST_F(RunsTest, AChiefThatComesAgainAdoptsWhatItsRunHolds) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Create(Chief("/a", "a1", 1, "process 1")));
  ASSERT_OK(Run(first, {}, {"init"}));
  ASSERT_OK(Run(first, {}, {"train"}));
  ASSERT_OK_AND_ASSIGN(const float trained, ReadW(first));
  ASSERT_OK(Close(first));
  ASSERT_OK_AND_ASSIGN(const std::string again, Create(Chief("/a", "a1", 2, "process 2")));
  EXPECT_EQ(*ReadW(again), trained);
}

TEST_F(RunsTest, ATrainerFindsTheRunByItsNameAndTrainsItsVariables) {
  ASSERT_OK_AND_ASSIGN(const std::string chief, Create(Chief("/a", "a1")));
  ASSERT_OK(Run(chief, {}, {"init"}));
  ASSERT_OK(Run(chief, {}, {"train"}));
  std::string id;
  ASSERT_OK_AND_ASSIGN(const std::string trainer,
                       Create({.name = "/a"}, kWorker1, absl::Seconds(30), {}, &id));
  EXPECT_EQ(id, "a1");
  EXPECT_EQ(*ReadW(trainer, kWorker1), *ReadW(chief));
  ASSERT_OK(Run(trainer, {}, {"train"}, kWorker1));
  EXPECT_EQ(*ReadW(trainer, kWorker1), *ReadW(chief));
}

TEST_F(RunsTest, ATrainerThatComesFirstWaitsForTheChief) {
  StatusOr<std::string> trainer = absl::UnknownError("not yet");
  std::thread waiting([&] { trainer = Create({.name = "/a"}, kWorker1); });
  ASSERT_OK(Create(Chief("/a", "a1")));
  waiting.join();
  EXPECT_OK(trainer);
}

TEST_F(RunsTest, ATrainerThatWaitsInVainNamesTheRunAndWhoDoesNotKnowIt) {
  StatusOr<std::string> trainer = absl::UnknownError("not yet");
  std::thread waiting([&] { trainer = Create({.name = "/a"}, kWorker0, absl::Seconds(15)); });
  master_clock_.AdvanceAndSettle(absl::Seconds(11));  // "still waiting" is in the log
  master_clock_.Advance(absl::Seconds(5));
  waiting.join();
  EXPECT_STATUS(trainer.status(), absl::StatusCode::kDeadlineExceeded,
                "the chief of run '/a' must open a session within 15s, got none: not known to "
                "/job:ps/replica:0/task:0 at /job:ps/replica:0/task:0");
}

TEST_F(RunsTest, TheEndOfTheServerEndsTheWaitForTheChief) {
  StatusOr<std::string> trainer = absl::UnknownError("not yet");
  std::thread waiting([&] { trainer = Create({.name = "/a"}); });
  master_clock_.Settle();
  masters_.at(kWorker0)->Shutdown(absl::AbortedError("Shutdown"));
  waiting.join();
  EXPECT_EQ(trainer.status().code(), absl::StatusCode::kAborted) << trainer.status();
}

// --- Fencing -------------------------------------------------------------------------------------

TEST_F(RunsTest, UpdatesOfAnOlderChiefAreRefusedAndItCannotComeBack) {
  ASSERT_OK_AND_ASSIGN(const std::string older, Create(Chief("/a", "a1", 1, "the older one")));
  ASSERT_OK(Run(older, {}, {"init"}));
  ASSERT_OK_AND_ASSIGN(const std::string newer,
                       Create(Chief("/a", "a1", 2, "the newer one"), kWorker1));
  const Status refused = Run(older, {}, {"train"}).status();
  EXPECT_TRUE(IsFenced(refused)) << refused;
  EXPECT_STATUS(refused, absl::StatusCode::kFailedPrecondition, "fenced by the newer one, epoch 2");
  EXPECT_EQ(*ReadW(newer, kWorker1), 0.0f);
  ASSERT_OK(Run(newer, {}, {"train"}, kWorker1));
  const Status again = Create(Chief("/a", "a1", 1, "the older one")).status();
  EXPECT_TRUE(IsFenced(again)) << again;
  EXPECT_TRUE(IsFenced(masters_.at(kWorker0)->EndRun(older, {})));
  ASSERT_OK(Run(newer, {}, {"train"}, kWorker1));
}

TEST_F(RunsTest, AChiefThatRecoversIsNoSecondChief) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Create(Chief("/a", "a1")));
  ASSERT_OK(Run(first, {}, {"init"}));
  ASSERT_OK_AND_ASSIGN(const std::string second, Create(Chief("/a", "a1")));
  EXPECT_OK(Run(second, {}, {"train"}));
  EXPECT_OK(Run(first, {}, {"train"}));
}

TEST_F(RunsTest, ATrainerOfARunThatWasSupersededFindsTheNewOne) {
  ASSERT_OK(Create(Chief("/a", "a1")));
  ASSERT_OK_AND_ASSIGN(const std::string trainer, Create({.name = "/a"}, kWorker1));
  ASSERT_OK_AND_ASSIGN(const std::string fresh, Create(Chief("/a", "a2")));
  ASSERT_OK(Run(fresh, {}, {"init"}));
  EXPECT_STATUS(Run(trainer, {}, {"train"}, kWorker1).status(), absl::StatusCode::kAborted,
                "supersedes; open a new session");
  std::string id;
  ASSERT_OK_AND_ASSIGN(const std::string again,
                       Create({.name = "/a"}, kWorker1, absl::Seconds(30), {}, &id));
  EXPECT_EQ(id, "a2");
  EXPECT_OK(Run(again, {}, {"train"}, kWorker1));
}

TEST_F(RunsTest, AJobThatWasGivenAnothersLogdirWaitsNamedAsLongAsThatOnesChiefLives) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Create(Chief("/a", "a1")));
  ASSERT_OK(Run(first, {}, {"init"}));
  const TrainingRun other = Chief("/a", "a2", 1, "another chief");
  EXPECT_STATUS(Create(other, kWorker1, absl::Milliseconds(10)), absl::StatusCode::kUnavailable,
                "Run '/a' (a2) of another chief must wait until no other run of its name is "
                "trained, got a1 of the chief");
  EXPECT_OK(Run(first, {}, {"train"}));
  ASSERT_OK(Close(first));
  EXPECT_OK(Create(other, kWorker1));
}

// Ends of sessions arrive when the test says so, long after their caller has stopped waiting.
class LateEnds : public ForwardingControl {
 public:
  explicit LateEnds(std::shared_ptr<WorkerControl> to)
      : ForwardingControl(to->task(), to->address()), to_(std::move(to)) {}
  void DeleteWorkerSession(const CallOptions&, const std::string& handle, Done done) override {
    {
      MutexLock lock(&mu_);
      late_.push_back(handle);
    }
    done(absl::DeadlineExceededError("Deadline Exceeded"));
  }
  size_t num_late() {
    MutexLock lock(&mu_);
    return late_.size();
  }
  void Arrive() {
    std::vector<std::string> late;
    {
      MutexLock lock(&mu_);
      late.swap(late_);
    }
    for (const std::string& handle : late) {
      to_->DeleteWorkerSession({}, handle, [](const Status& status) { EXPECT_OK(status); });
    }
  }

 private:
  std::shared_ptr<WorkerControl> To() const override { return to_; }
  const std::shared_ptr<WorkerControl> to_;
  Mutex mu_;
  std::vector<std::string> late_ ABSL_GUARDED_BY(mu_);
};

TEST_F(RunsTest, TheLateEndOfAnAttemptThatFailedEndsNoOtherSession) {
  ASSERT_OK_AND_ASSIGN(const std::string first, Create(Chief("/a", "a1"), kWorker1));
  const auto late = std::make_shared<LateEnds>(Peer(kPs));
  way_to_ps_ = late;
  StatusOr<std::string> second = absl::UnknownError("not yet");
  Notification created;
  std::thread creating([&] {
    second = Create(Chief("/a", "a2", 1, "another chief"));
    created.Notify();
  });
  // The run is busy: the first attempt is given up.
  while (late->num_late() == 0) std::this_thread::yield();
  ASSERT_OK(Close(first, kWorker1));
  while (!created.WaitFor(absl::Milliseconds(1))) master_clock_.Advance(absl::Milliseconds(100));
  creating.join();
  ASSERT_OK(second);
  EXPECT_EQ(ps().num_sessions(), 1);
  late->Arrive();
  EXPECT_EQ(ps().num_sessions(), 1);
  EXPECT_OK(Run(*second, {}, {"init"}));
  EXPECT_OK(Run(*second, {}, {"train"}));
}

// --- The end of a run ----------------------------------------------------------------------------

TEST_F(RunsTest, WhoComesAfterTheEndHearsOfItAtOnce) {
  const RunEnd end = {.global_step = 1000, .checkpoint = "/a/ckpt-1000", .reason = "done"};
  ASSERT_OK_AND_ASSIGN(const std::string chief, Create(Chief("/a", "a1")));
  ASSERT_OK(Run(chief, {}, {"init"}));
  ASSERT_OK_AND_ASSIGN(const std::string trainer, Create({.name = "/a"}, kWorker1));
  ASSERT_OK(masters_.at(kWorker0)->EndRun(chief, end));
  EXPECT_OK(Run(trainer, {}, {"train"}, kWorker1));  // who is there may finish
  const Status late = Create({.name = "/a"}, kWorker1).status();
  EXPECT_EQ(RunEndOf(late), end) << late;
  EXPECT_STATUS(late, absl::StatusCode::kFailedPrecondition, "that has ended at step 1000: done");
  ASSERT_OK(Close(chief));
  ASSERT_OK(Close(trainer, kWorker1));
  EXPECT_EQ(RunEndOf(Create({.name = "/a", .id = "a1"}, kWorker1).status()), end);
}

TEST_F(RunsTest, AChiefHearsWhoTrainsItsRunAndWhoHas) {
  const auto trainers = [&](const std::string& chief) {
    const auto found = masters_.at(kWorker0)->FindTrainers(chief);
    EXPECT_OK(found.status());
    return found.ok() ? absl::StrCat(absl::StrJoin(found->training, " "), "; ",
                                     absl::StrJoin(found->ended, " "))
                      : "";
  };
  ASSERT_OK_AND_ASSIGN(const std::string chief, Create(Chief("/a", "a1")));
  ASSERT_OK(Create(Chief("/b", "b1")));
  ASSERT_OK(Create({.name = "/b"}, kWorker1));  // another run's
  EXPECT_EQ(trainers(chief), "; ");
  ASSERT_OK_AND_ASSIGN(const std::string first,
                       Create({.name = "/a"}, kWorker1, absl::Seconds(30), absl::Seconds(60)));
  EXPECT_EQ(trainers(chief), absl::StrCat(kWorker1, "; "));
  ASSERT_OK(Close(first, kWorker1));
  EXPECT_EQ(trainers(chief), absl::StrCat("; ", kWorker1));
  ASSERT_OK(Create({.name = "/a"}, kWorker1));
  EXPECT_EQ(trainers(chief), absl::StrCat(kWorker1, "; "));
  ASSERT_OK_AND_ASSIGN(const std::string none, Create({}));
  EXPECT_STATUS(masters_.at(kWorker0)->FindTrainers(none).status(),
                absl::StatusCode::kFailedPrecondition, "must be of a run, got one of none");
  wire().Set(Wire::kCut);
  EXPECT_EQ(masters_.at(kWorker0)->FindTrainers(chief).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(RunsTest, OnlyTheChiefCanEndARun) {
  ASSERT_OK(Create(Chief("/a", "a1")));
  ASSERT_OK_AND_ASSIGN(const std::string trainer, Create({.name = "/a"}, kWorker1));
  ASSERT_OK_AND_ASSIGN(const std::string none, Create({}));
  EXPECT_STATUS(masters_.at(kWorker1)->EndRun(trainer, {}), absl::StatusCode::kFailedPrecondition,
                "must be of the chief of a run, got another trainer's");
  EXPECT_STATUS(masters_.at(kWorker0)->EndRun(none, {}), absl::StatusCode::kFailedPrecondition,
                "got one of no run");
  EXPECT_OK(Create({.name = "/a"}, kWorker1));
}

TEST_F(RunsTest, AnEndWhoseAnswerIsLostIsToldAgainAndThenReported) {
  ASSERT_OK_AND_ASSIGN(const std::string chief, Create(Chief("/a", "a1")));
  wire().Set(Wire::kDeaf);
  const absl::Time begun = master_clock_.Now();
  ::testing::internal::CaptureStderr();
  Status told;
  Notification has_told;
  std::thread end([&] {
    told = masters_.at(kWorker0)->EndRun(chief, {.global_step = 5});
    has_told.Notify();
  });
  while (!has_told.WaitFor(absl::Milliseconds(1))) master_clock_.Advance(absl::Milliseconds(100));
  end.join();
  EXPECT_STATUS(told, absl::StatusCode::kUnavailable, "From /job:ps");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(" tells /job:ps/replica:0/task:0 at "), std::string::npos) << log;
  EXPECT_NE(log.find(" again that its run has ended: it has not answered"), std::string::npos);
  absl::Duration pauses;
  for (const absl::Duration pause : kTellAgainAfter) pauses += pause;
  EXPECT_GE(master_clock_.Now() - begun, pauses);
  wire().Set(Wire::kWhole);
  EXPECT_EQ(RunEndOf(Create({.name = "/a"}, kWorker1).status()), (RunEnd{.global_step = 5}));
}

TEST_F(RunsTest, TheVariablesOfARunThatHasEndedAreFreedWithItsLastSession) {
  ASSERT_OK_AND_ASSIGN(const std::string chief, Create(Chief("/a", "a1")));
  ASSERT_OK(Run(chief, {}, {"init"}));
  ASSERT_OK(masters_.at(kWorker0)->EndRun(chief, {}));
  ASSERT_OK(Close(chief));
  ASSERT_OK_AND_ASSIGN(const std::string again, Create(Chief("/a", "a1", 2, "process 2")));
  EXPECT_STATUS(ReadW(again).status(), absl::StatusCode::kFailedPrecondition, "w");
}

TEST_F(RunsTest, AResetOfTheDefaultContainerLeavesRunsAlone) {
  ASSERT_OK_AND_ASSIGN(const std::string chief, Create(Chief("/a", "a1")));
  ASSERT_OK(Run(chief, {}, {"init"}));
  ASSERT_OK(ps().CleanupAll({}));
  EXPECT_OK(ReadW(chief));
  ASSERT_OK(ps().CleanupAll({"a1"}));
  EXPECT_STATUS(ReadW(chief).status(), absl::StatusCode::kFailedPrecondition, "w");
}

// --- Leases --------------------------------------------------------------------------------------

TEST_F(RunsTest, AMasterRenewsItsSessionsWithOneCallAPeriodAndNoneWithoutSessions) {
  ASSERT_OK_AND_ASSIGN(const std::string a, Create({}));
  ASSERT_OK_AND_ASSIGN(const std::string b, Create({}));
  for (int i = 1; i <= 30; ++i) {
    master_clock_.AdvanceAndSettle(absl::Seconds(10));
    EXPECT_EQ(wire().renewals(), i);
    ps_clock_.AdvanceAndSettle(absl::Seconds(10));
  }
  EXPECT_EQ(ps().num_sessions(), 2);
  ASSERT_OK(Close(a));
  ASSERT_OK(Close(b));
  EXPECT_EQ(ps().num_sessions(), 0);
  master_clock_.Advance(absl::Hours(1));
  EXPECT_EQ(wire().renewals(), 30);
}

TEST_F(RunsTest, ASessionWhoseMasterIsCutOffExpires) {
  ASSERT_OK_AND_ASSIGN(const std::string session, Create({}));
  ASSERT_OK(Run(session, {}, {"init"}));
  wire().Set(Wire::kCut);
  ps_clock_.AdvanceAndSettle(absl::Seconds(45));
  EXPECT_EQ(ps().num_sessions(), 1);
  ps_clock_.AdvanceAndSettle(absl::Seconds(15));
  EXPECT_EQ(ps().num_sessions(), 0);
  wire().Set(Wire::kWhole);
  EXPECT_STATUS(Run(session, {}, {"train"}).status(), absl::StatusCode::kAborted,
                "Its lease on /job:ps/replica:0/task:0 has expired");
}

TEST_F(RunsTest, AChiefThatRunsNothingLearnsThatAParameterServerHasLostItsSession) {
  ASSERT_OK_AND_ASSIGN(const std::string session, Create({}));
  ASSERT_OK(Run(session, {}, {"init"}));
  // One step waits on its own task, and would for ever.
  Notification waits;
  testing::SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    ASSERT_TRUE(ctx->step().cancellation->Register(
        &token, [shared] { (*shared)(absl::CancelledError("cancelled")); }));
    waits.Notify();
  });
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(session);
  extend.set_current_graph_version(1);
  extend.mutable_graph_def()->mutable_versions()->set_producer(134);
  tensorflow::NodeDef* const node = extend.mutable_graph_def()->add_node();
  node->set_name("probe");
  node->set_op("TestProbeAsync");
  node->set_device(absl::StrCat(kWorker0, "/device:CPU:0"));
  (*node->mutable_attr())["N"].set_i(0);
  (*node->mutable_attr())["M"].set_i(0);
  (*node->mutable_attr())["hook"].set_s("wait");
  tensorflow::ExtendSessionResponse extended;
  ASSERT_OK(masters_.at(kWorker0)->ExtendSession(extend, &extended));
  Status ended;
  std::thread step([&] { ended = Run(session, {}, {"probe"}).status(); });
  waits.Wait();
  // The master is not heard of, and what it hears first is the answer to a renewal.
  wire().Set(Wire::kCut);
  ps_clock_.AdvanceAndSettle(absl::Seconds(45));
  ps_clock_.AdvanceAndSettle(absl::Seconds(15));
  ASSERT_EQ(ps().num_sessions(), 0);
  wire().Set(Wire::kWhole);
  ASSERT_OK(Create({}));  // keeps the keeper's thread
  ::testing::internal::CaptureStderr();
  master_clock_.AdvanceAndSettle(absl::Seconds(10));
  step.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("/job:ps/replica:0/task:0 at /job:ps/replica:0/task:0 has lost it"),
            std::string::npos)
      << log;
  const char* const why = "Its lease on /job:ps/replica:0/task:0 has expired";
  EXPECT_STATUS(ended, absl::StatusCode::kAborted, why);
  // No step has to go there to find it out.
  wire().Set(Wire::kCut);
  EXPECT_STATUS(Run(session, {}, {"train"}).status(), absl::StatusCode::kAborted, why);
  wire().Set(Wire::kWhole);
  EXPECT_OK(Close(session));
  EXPECT_OK(Create({}));
}

// Questions why a session was lost are answered when the test says so.
class HeldQuestions : public ForwardingControl {
 public:
  explicit HeldQuestions(std::shared_ptr<WorkerControl> to)
      : ForwardingControl(to->task(), to->address()), to_(std::move(to)) {}
  void DeregisterGraph(const CallOptions& options, const std::string&, const std::string&,
                       Done done) override {
    cancellation_ = options.cancellation;
    done_ = std::move(done);
    asked_.Notify();
  }
  void AwaitQuestion() { asked_.Wait(); }
  bool was_given_up() const { return cancellation_ != nullptr && cancellation_->IsCancelled(); }
  void Answer(const Status& status) { std::exchange(done_, nullptr)(status); }

 private:
  std::shared_ptr<WorkerControl> To() const override { return to_; }
  const std::shared_ptr<WorkerControl> to_;
  CancellationManager* cancellation_ = nullptr;
  Done done_;
  Notification asked_;
};

TEST_F(RunsTest, ClosingEndsTheQuestionWhyASessionIsLostWhoseAnswerMayOutliveTheMaster) {
  const auto held = std::make_shared<HeldQuestions>(Peer(kPs));
  way_to_ps_ = held;
  ASSERT_OK_AND_ASSIGN(const std::string session, Create({}));
  wire().Set(Wire::kCut);
  ps_clock_.AdvanceAndSettle(absl::Seconds(45));
  ps_clock_.AdvanceAndSettle(absl::Seconds(15));
  ASSERT_EQ(ps().num_sessions(), 0);
  wire().Set(Wire::kWhole);
  master_clock_.Advance(absl::Seconds(10));
  held->AwaitQuestion();
  EXPECT_FALSE(held->was_given_up());
  Notification closed;
  std::thread closing([&] {
    EXPECT_OK(Close(session));
    closed.Notify();
  });
  while (!closed.WaitFor(absl::Milliseconds(1))) master_clock_.Advance(absl::Seconds(1));
  closing.join();
  EXPECT_TRUE(held->was_given_up());
  masters_.erase(kWorker0);
  ::testing::internal::CaptureStderr();
  held->Answer(absl::AbortedError("Session handle is not found: it. Possibly it restarted"));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST_F(RunsTest, AChiefThatRunsNothingLearnsThatItWasSucceeded) {
  ASSERT_OK_AND_ASSIGN(const std::string older, Create(Chief("/a", "a1", 1, "the older one")));
  ASSERT_OK(Create(Chief("/a", "a1", 2, "the newer one"), kWorker1));
  ASSERT_OK(Create({}));  // keeps the keeper's thread
  master_clock_.AdvanceAndSettle(absl::Seconds(10));
  wire().Set(Wire::kCut);
  const Status fenced = Run(older, {}, {"train"}).status();
  EXPECT_TRUE(IsFenced(fenced)) << fenced;
}

TEST_F(RunsTest, AHundredPartitionsLeaveAsManySessionsAsThereAreClients) {
  ASSERT_OK_AND_ASSIGN(const std::string other, Create({}, kWorker1));
  ASSERT_OK_AND_ASSIGN(const std::string steady, Create({}));
  ASSERT_OK_AND_ASSIGN(std::string session, Create({}));
  ASSERT_OK(Run(session, {}, {"init"}));
  const auto all_live = [&] {
    ASSERT_OK(Run(session, {}, {"train"}));
    ASSERT_OK(Run(steady, {}, {"train"}));
    ASSERT_OK(Run(other, {}, {"train"}, kWorker1));
  };
  int most = 0;
  for (int i = 0; i < 100; ++i) {
    const bool is_cut = i % 2 == 0;
    Break(is_cut ? Wire::kCut : Wire::kDeaf);
    EXPECT_STATUS(Run(session, {}, {"train"}).status(), absl::StatusCode::kUnavailable, kPs);
    if (!is_cut) {
      EXPECT_EQ(Create({}).status().code(), absl::StatusCode::kUnavailable);
    }
    ASSERT_OK(Close(session));
    // Longer than the end is told again and again.
    for (int k = 0; k < 4; ++k) {
      master_clock_.AdvanceAndSettle(absl::Seconds(9));
      ps_clock_.AdvanceAndSettle(absl::Seconds(9));
    }
    Mend();
    ASSERT_OK_AND_ASSIGN(session, Create({}));
    all_live();
    most = std::max(most, ps().num_sessions());
  }
  EXPECT_GE(most, 4);  // what partitions leave behind
  for (int k = 0; k < 10; ++k) {
    all_live();
    ps_clock_.AdvanceAndSettle(absl::Seconds(9));
  }
  EXPECT_EQ(ps().num_sessions(), 3);
}

TEST_F(RunsTest, AnEndThatWasNotHeardIsToldAgainWhenTheWayIsWhole) {
  ASSERT_OK(Create({}));  // keeps the keeper's thread
  ASSERT_OK_AND_ASSIGN(const std::string session, Create({}));
  wire().Set(Wire::kCut);
  ASSERT_OK(Close(session));
  EXPECT_EQ(ps().num_sessions(), 2);
  wire().Set(Wire::kWhole);
  master_clock_.AdvanceAndSettle(absl::Seconds(1));
  EXPECT_EQ(ps().num_sessions(), 1);
}

TEST_F(RunsTest, ASessionOfAMasterWithoutLeasesLivesUntilItIsDeleted) {
  ASSERT_OK(ps().CreateWorkerSession({.handle = "foreign"}));
  ASSERT_OK(Create({}));  // starts the thread that watches
  ps_clock_.AdvanceAndSettle(absl::Hours(1));
  ps_clock_.AdvanceAndSettle(absl::Hours(1));
  EXPECT_EQ(ps().num_sessions(), 1);
}

TEST_F(RunsTest, ASessionOfARemoteClientIsALeaseAtItsMaster) {
  Master& master = *masters_.at(kWorker0);
  ASSERT_OK_AND_ASSIGN(const std::string own, Create({}));
  // The clock has one waiter that is watched: the keeper's; so this master is asked directly.
  MasterOptions options;
  options.task = kWorker0;
  options.cluster = cluster_;
  WatchedClock clock;
  options.clock = &clock;
  options.peer = [this](absl::string_view name) -> std::shared_ptr<WorkerControl> {
    return MakeInProcessControl(workers_.at(std::string(name)).get(), std::string(name));
  };
  options.local_part = MakeLocalPart(workers_.at(kWorker0).get());
  Master remote(std::move(options));
  tensorflow::CreateSessionRequest request;
  AddSessionTerms({.lease = absl::Seconds(60)}, &request);
  tensorflow::CreateSessionResponse live, dead;
  ASSERT_OK(remote.CreateSession(request, absl::Seconds(30), 16, &live));
  ASSERT_OK(remote.CreateSession(request, absl::Seconds(30), 16, &dead));
  const int sessions = ps().num_sessions();
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(remote.RenewSessions({live.session_handle()}).empty());
    clock.AdvanceAndSettle(absl::Seconds(10));
  }
  EXPECT_EQ(remote.num_sessions(), 1);
  // What ends there is told by another thread than the one that watches leases.
  const absl::Time guard = absl::Now() + absl::Seconds(60);
  while (ps().num_sessions() == sessions && absl::Now() < guard) std::this_thread::yield();
  EXPECT_EQ(ps().num_sessions(), sessions - 1);
  EXPECT_EQ(remote.RenewSessions({live.session_handle(), dead.session_handle()}),
            std::vector<std::string>{dead.session_handle()});
  EXPECT_EQ(master.num_sessions(), 1);
  remote.Shutdown(absl::AbortedError("Shutdown"));
}

// A client that asked for no lease, as TensorFlow's do, may pause for as long as it likes.
TEST_F(RunsTest, ASessionOfARemoteClientWithoutALeaseEndsOnlyAmongTooManyIdleOnes) {
  MasterOptions options;
  options.task = kWorker0;
  options.cluster = cluster_;
  options.limits.max_idle_sessions = 1;
  WatchedClock clock;
  options.clock = &clock;
  options.peer = [this](absl::string_view name) -> std::shared_ptr<WorkerControl> {
    return MakeInProcessControl(workers_.at(std::string(name)).get(), std::string(name));
  };
  options.local_part = MakeLocalPart(workers_.at(kWorker0).get());
  const absl::Duration idle = options.limits.idle_session_time;
  Master remote(std::move(options));
  const auto pass = [&] {
    clock.AdvanceAndSettle(idle * 0.75);
    clock.AdvanceAndSettle(idle * 0.25);
  };
  const tensorflow::CreateSessionRequest request;
  CancellationManager caller;
  tensorflow::CreateSessionResponse own, first, second;
  ASSERT_OK(remote.CreateSession(request, absl::Seconds(30), 16, &own));
  ASSERT_OK(remote.CreateSessionFor(&caller, request, absl::Seconds(30), 16, &first));
  for (int i = 0; i < 10; ++i) pass();
  EXPECT_EQ(remote.num_sessions(), 2);
  // Used again, it is idle from then on: the other one is for longer.
  ASSERT_OK(remote.CreateSessionFor(&caller, request, absl::Seconds(30), 16, &second));
  clock.AdvanceAndSettle(idle * 0.5);
  EXPECT_TRUE(remote.RenewSessions({first.session_handle()}).empty());
  clock.AdvanceAndSettle(idle * 0.25);
  clock.AdvanceAndSettle(idle * 0.25);
  EXPECT_EQ(remote.num_sessions(), 3);
  clock.AdvanceAndSettle(idle * 0.25);
  clock.AdvanceAndSettle(idle * 0.25);
  EXPECT_EQ(
      remote.RenewSessions({own.session_handle(), first.session_handle(), second.session_handle()}),
      std::vector<std::string>{second.session_handle()});
  remote.Shutdown(absl::AbortedError("Shutdown"));
}

// --- What a session held -------------------------------------------------------------------------

class Tokens : public Resource, public HoldsForSessions {
 public:
  static constexpr const char* kTypeName = "TestTokens";
  std::string DebugString() const override { return "tokens"; }
  void SessionEnded(absl::string_view session) override {
    MutexLock lock(&mu_);
    ended_.emplace_back(session);
  }
  std::vector<std::string> ended() const {
    MutexLock lock(&mu_);
    return ended_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::string> ended_ ABSL_GUARDED_BY(mu_);
};

class WorkerSessionsTest : public RunsTest {
 protected:
  Status Open(const std::string& handle, const SessionTerms& terms) {
    return ps().CreateWorkerSession({.handle = handle, .terms = terms});
  }
  // A graph whose one node calls the hook.
  std::string Register(const std::string& session, const std::string& hook) {
    tensorflow::GraphDef graph;
    graph.mutable_versions()->set_producer(134);
    tensorflow::NodeDef* const node = graph.add_node();
    node->set_name("probe");
    node->set_op("TestProbeAsync");
    node->set_device(absl::StrCat(kPs, "/device:CPU:0"));
    (*node->mutable_attr())["N"].set_i(0);
    (*node->mutable_attr())["M"].set_i(0);
    (*node->mutable_attr())["hook"].set_s(hook);
    const auto part = ps().RegisterGraph({session, std::move(graph)});
    EXPECT_OK(part);
    return part.ok() ? part->graph_handle : std::string();
  }
  struct Step {
    tensorflow::RunGraphRequest request;
    tensorflow::RunGraphResponse response;
    std::vector<NamedTensor> received;
    Notification ended;
    Status status;
  };
  void Start(const std::string& session, const std::string& graph, Step* step) {
    step->request.set_session_handle(session);
    step->request.set_graph_handle(graph);
    step->request.set_step_id(++last_step_);
    ps().RunGraph(step->request, step->request, EdgesBy::kLinks, {}, false, absl::InfiniteFuture(),
                  nullptr, &step->response, &step->received, [step](const Status& status) {
                    step->status = status;
                    step->ended.Notify();
                  });
  }
  int64_t last_step_ = 0;
};

TEST_F(WorkerSessionsTest, AResourceIsToldOfEverySessionThatEndsHoweverItEnds) {
  std::shared_ptr<Tokens> tokens;
  testing::SetAsyncHook("take", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto found = ctx->step().device->resources->LookupOrCreate<Tokens>(
        "", "tokens", [] { return std::make_shared<Tokens>(); });
    if (found.ok()) tokens = *found;
    done(found.status());
  });
  const TrainingRun older = Chief("/a", "a1", 1, "older"), newer = Chief("/a", "a1", 2, "newer");
  ASSERT_OK(Open("older", {.run = older}));
  Step step;
  Start("older", Register("older", "take"), &step);
  step.ended.Wait();
  ASSERT_OK(step.status);
  const TrainingRun trainer = {.name = "/a", .id = "a1"};
  ASSERT_OK(Open("closed", {.run = trainer}));
  ASSERT_OK(Open("dead", {.run = trainer, .lease = absl::Seconds(60)}));
  ASSERT_OK(Open("of another run", {.run = Chief("/b", "b1")}));
  EXPECT_TRUE(tokens->ended().empty());

  ASSERT_OK(ps().DeleteWorkerSession("closed"));
  ASSERT_OK(ps().DeleteWorkerSession("of another run"));
  ASSERT_OK(ps().DeleteWorkerSession("of another run"));
  EXPECT_EQ(tokens->ended(), std::vector<std::string>{"closed"});
  ASSERT_OK(Open("newer", {.run = newer}));
  EXPECT_EQ(tokens->ended(), (std::vector<std::string>{"closed", "older"}));
  ps_clock_.AdvanceAndSettle(absl::Seconds(45));
  ps_clock_.AdvanceAndSettle(absl::Seconds(15));
  EXPECT_EQ(tokens->ended(), (std::vector<std::string>{"closed", "older", "dead"}));
}

TEST_F(WorkerSessionsTest, TheStepsOfASessionThatEndsAreCancelledAndSayWhy) {
  std::atomic<int> waiting{0};
  testing::SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    waiting.fetch_add(1);
    ASSERT_TRUE(ctx->step().cancellation->Register(
        &token, [shared] { (*shared)(absl::CancelledError("cancelled")); }));
  });
  ASSERT_OK(Open("leased", {.lease = absl::Seconds(60)}));
  ASSERT_OK(Open("older", {.run = Chief("/a", "a1", 1, "older")}));
  Step leased, fenced;
  Start("leased", Register("leased", "wait"), &leased);
  Start("older", Register("older", "wait"), &fenced);
  ASSERT_EQ(waiting.load(), 2);
  ASSERT_OK(Open("newer", {.run = Chief("/a", "a1", 2, "newer")}));
  fenced.ended.Wait();
  EXPECT_TRUE(IsFenced(fenced.status)) << fenced.status;
  EXPECT_FALSE(leased.ended.HasBeenNotified());
  ASSERT_OK(ps().DeleteWorkerSession("leased"));
  leased.ended.Wait();
  EXPECT_STATUS(leased.status, absl::StatusCode::kAborted, "It has been closed");
}

TEST_F(WorkerSessionsTest,
       WhatAStepTookGoesBackWhenItsSessionEndsAndStaysTakenWhenItFailsByItself) {
  std::atomic<int> given_back{0};
  testing::SetAsyncHook("take and wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    ASSERT_NE(StepLoans::Of(*ctx), nullptr);
    StepLoans::Of(*ctx)->Lend([&] { given_back.fetch_add(1); });
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    ASSERT_TRUE(ctx->step().cancellation->Register(
        &token, [shared] { (*shared)(absl::CancelledError("cancelled")); }));
  });
  testing::SetAsyncHook("take and fail", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    StepLoans::Of(*ctx)->Lend([&] { given_back.fetch_add(1); });
    done(absl::InvalidArgumentError("poison"));
  });
  ASSERT_OK(Open("fails", {.lease = absl::Seconds(60)}));
  ASSERT_OK(Open("dies", {.lease = absl::Seconds(60)}));
  Step failed, waiting;
  Start("fails", Register("fails", "take and fail"), &failed);
  failed.ended.Wait();
  EXPECT_STATUS(failed.status, absl::StatusCode::kInvalidArgument, "poison");
  Start("dies", Register("dies", "take and wait"), &waiting);
  EXPECT_EQ(given_back.load(), 0);
  for (const char* session : {"fails", "dies"}) {
    ASSERT_OK(ps().DeleteWorkerSession(session));
  }
  waiting.ended.Wait();
  // Who hears of the end finds it there.
  EXPECT_EQ(given_back.load(), 1);
}

TEST_F(WorkerSessionsTest, ASessionDoesNotExpireWhileAStepRunsInIt) {
  AsyncKernel::DoneCallback running;
  testing::SetAsyncHook(
      "hold", [&](KernelContext*, AsyncKernel::DoneCallback done) { running = std::move(done); });
  ASSERT_OK(Open("leased", {.lease = absl::Seconds(60)}));
  ASSERT_OK(Open("idle", {.lease = absl::Seconds(60)}));
  Step step;
  Start("leased", Register("leased", "hold"), &step);
  const auto pass_lease = [&] {
    ps_clock_.AdvanceAndSettle(absl::Seconds(45));
    ps_clock_.AdvanceAndSettle(absl::Seconds(15));
  };
  for (int i = 0; i < 3; ++i) {
    pass_lease();
    EXPECT_EQ(ps().num_sessions(), 1);
  }
  ASSERT_FALSE(step.ended.HasBeenNotified());
  running(absl::OkStatus());
  step.ended.Wait();
  EXPECT_OK(step.status);
  // The step is forgotten right after its caller has heard of its end.
  while (ps().num_sessions() > 0) pass_lease();
  EXPECT_STATUS(ps().EndRun("leased", {}), absl::StatusCode::kAborted,
                "has expired: nobody renewed it for");
}

TEST_F(WorkerSessionsTest, AStepIsASignOfLife) {
  testing::SetAsyncHook(
      "go", [](KernelContext*, AsyncKernel::DoneCallback done) { done(absl::OkStatus()); });
  ASSERT_OK(Open("leased", {.lease = absl::Seconds(60)}));
  const std::string graph = Register("leased", "go");
  for (int i = 0; i < 10; ++i) {
    Step step;
    Start("leased", graph, &step);
    step.ended.Wait();
    ASSERT_OK(step.status);
    ps_clock_.AdvanceAndSettle(absl::Seconds(40));
  }
  EXPECT_EQ(ps().num_sessions(), 1);
}

TEST_F(WorkerSessionsTest, ASessionThatWasEndedBeforeItWasOpenedStaysEnded) {
  ASSERT_OK(ps().DeleteWorkerSession("given up"));
  EXPECT_STATUS(Open("given up", {}), absl::StatusCode::kAborted, "It has been closed");
  ASSERT_OK(Open("other", {}));
  ASSERT_OK(ps().DeleteWorkerSession("other"));
  EXPECT_STATUS(Open("other", {}), absl::StatusCode::kAborted, "It has been closed");
  EXPECT_EQ(ps().num_sessions(), 0);
}

TEST_F(WorkerSessionsTest, ASessionWithoutALeaseEndsOnlyAmongTooManyIdleOnes) {
  const auto open = [&](const std::string& handle) {
    return ps().CreateWorkerSession({.handle = handle}, SessionFrom::kAnotherProcess);
  };
  const auto is_open = [&](const std::string& handle) {
    return ps().RenewSessions({handle}).empty();
  };
  const ServerLimits limits;
  const auto first_part = [&] { ps_clock_.AdvanceAndSettle(limits.idle_session_time * 0.75); };
  const auto second_part = [&] { ps_clock_.AdvanceAndSettle(limits.idle_session_time * 0.25); };
  ASSERT_OK(Open("own", {}));
  ASSERT_OK(Open("leased", {.lease = absl::Hours(24)}));
  ASSERT_OK(open("first"));
  first_part();
  second_part();
  EXPECT_EQ(ps().num_sessions(), 3);
  for (int64_t i = 0; i < limits.max_idle_sessions; ++i) ASSERT_OK(open(absl::StrCat("s", i)));
  first_part();
  EXPECT_TRUE(is_open("first"));  // a use of it
  second_part();
  EXPECT_EQ(ps().num_sessions(), 3 + limits.max_idle_sessions);
  first_part();
  second_part();
  EXPECT_EQ(ps().num_sessions(), 2 + limits.max_idle_sessions);
  for (const char* handle : {"own", "leased", "first"}) EXPECT_TRUE(is_open(handle)) << handle;
  EXPECT_FALSE(is_open("s0"));
  EXPECT_STATUS(ps().EndRun("s0", {}), absl::StatusCode::kAborted,
                "are idle (ServerLimits::max_idle_sessions); open a new session");
}

TEST_F(WorkerSessionsTest, HandlesThatNobodyHasOpenedDriveOutNoReason) {
  ASSERT_OK(Open("honest", {}));
  ASSERT_OK(ps().DeleteWorkerSession("honest"));
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_OK(ps().DeleteWorkerSession(absl::StrCat(std::string(200, 'x'), i)));
  }
  EXPECT_STATUS(Open("honest", {}), absl::StatusCode::kAborted, "It has been closed");
}

TEST_F(WorkerSessionsTest, ALongNameOfATaskIsNotKept) {
  tensorflow::CreateWorkerSessionRequest request;
  auto* const device = request.add_cluster_device_attributes();
  device->set_name(absl::StrCat(kWorker0, "/device:CPU:0"));
  const WorkerOptions options;
  const auto opener = [&] {
    const auto session =
        WorkerSession::Of(OrderOf(request), &options, SessionFrom::kAnotherProcess);
    return session.ok() ? (*session)->opener.task : std::string(session.status().message());
  };
  EXPECT_EQ(opener(), kWorker0);
  device->set_name(
      absl::StrCat("/job:", std::string(1 << 20, 'x'), "/replica:0/task:0/device:CPU:0"));
  EXPECT_EQ(opener(), "");
  // Nor what a master of our own says.
  const auto said = [&](const std::string& task) {
    const auto session = WorkerSession::Of({.handle = "a", .opener = {task, 1}}, &options,
                                           SessionFrom::kAnotherProcess);
    return session.ok() ? (*session)->opener.task : std::string(session.status().message());
  };
  EXPECT_EQ(said(kWorker0), kWorker0);
  EXPECT_EQ(said("nonsense"), "");
  EXPECT_EQ(said(absl::StrCat("/job:", std::string(1 << 20, 'x'), "/replica:0/task:0")), "");
}

TEST_F(WorkerSessionsTest, TermsThatCannotBeKeptOpenNoSession) {
  EXPECT_STATUS(Open("a", {.run = {.name = "/a"}}), absl::StatusCode::kInvalidArgument,
                "must have an id here");
  EXPECT_STATUS(Open("a", {.run = {.name = "/a", .id = "?"}}), absl::StatusCode::kInvalidArgument,
                "letters and digits");
  EXPECT_EQ(ps().num_sessions(), 0);
}

}  // namespace
}  // namespace millrace

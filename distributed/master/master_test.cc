// SPDX-License-Identifier: Apache-2.0
//
// Masters and workers of a cluster within one process, without a network. Steps travel over links
// in process, or, as the environment says, over links of bytes (master_byte_links_test).
#include "distributed/master/master.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/io_pool.h"
#include "core/notification.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/link/frame.h"
#include "distributed/link/link.h"
#include "distributed/link/peer_links.h"
#include "distributed/master/link_parts.h"
#include "distributed/testing/forwarding_control.h"
#include "distributed/testing/linked_tasks.h"
#include "distributed/testing/small_model.h"
#include "distributed/testing/unreachable_task.h"
#include "distributed/testing/watched_clock.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/local_part.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/in_process_control.h"
#include "distributed/worker/worker.h"
#include "distributed/worker/worker_options.h"
#include "gmock/gmock.h"
#include "google/protobuf/unknown_field_set.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"

// covers: clusters: a time limit covers compiling and registration; the error and the log name the
//   task or tensor that the step waits for
// covers: clusters: closing a session is bounded, even if a worker hangs

namespace millrace {
namespace {

constexpr char kPs0[] = "/job:ps/replica:0/task:0";
constexpr char kWorker0[] = "/job:worker/replica:0/task:0";
constexpr char kWorker1[] = "/job:worker/replica:0/task:1";

class MasterTest : public ::testing::Test {
 protected:
  MasterTest() {
    links_ = LinkedTasks::OfEnvironment();
    cluster_ = *ClusterSpec::Make(
        {{"ps", {"ps.example:2222"}}, {"worker", {"w0.example:1", "w1.example:1"}}});
    for (const char* task : {kPs0, kWorker0, kWorker1}) Restart(task);
  }
  ~MasterTest() override {
    for (auto& master : masters_) master->Shutdown(absl::AbortedError("Shutdown"));
    for (auto& [task, worker] : workers_) worker->Shutdown(absl::AbortedError("Shutdown"));
  }

  // A task's process ends and starts anew.
  void Restart(const std::string& task) {
    WorkerOptions options;
    options.task = task;
    options.io_pool = IoPool::Default();
    options.links = links_->of(task);
    if (auto& old = workers_[task]; old != nullptr) {
      old->Shutdown(absl::UnavailableError("Socket closed"));
      links_->Kill(task);
      graveyard_.push_back(std::move(old));
    }
    workers_[task] = std::make_unique<Worker>(std::move(options));
    links_->Begin(workers_[task].get());
  }
  std::shared_ptr<WorkerControl> Peer(absl::string_view name) {
    MutexLock lock(&mu_);
    if (const auto it = replaced_.find(std::string(name)); it != replaced_.end()) {
      return it->second;
    }
    const auto it = workers_.find(std::string(name));
    if (it == workers_.end()) return nullptr;
    return std::make_shared<Redirect>(this, std::string(name));
  }
  Master* NewMaster(const std::string& task, Clock* clock = Clock::Real()) {
    MasterOptions options;
    options.clock = clock;
    return NewMasterWith(std::move(options), task);
  }
  // What the options do not say is the cluster's.
  Master* NewMasterWith(MasterOptions options, const std::string& task = kWorker0) {
    options.task = task;
    options.cluster = cluster_;
    options.peer = [this](absl::string_view name) { return Peer(name); };
    if (options.links == nullptr) options.links = links_->parts(task);
    options.local_part = std::make_shared<PartOf>(this, task);
    masters_.push_back(std::make_unique<Master>(std::move(options)));
    return masters_.back().get();
  }
  // A session with the model's graph; its handle.
  std::string NewSessionOn(Master* master, const Scope& scope,
                           const tensorflow::ConfigProto& config = {}) {
    tensorflow::CreateSessionRequest request;
    *request.mutable_config() = config;
    const auto graph = scope.ToGraphDef();
    EXPECT_OK(graph);
    if (graph.ok()) *request.mutable_graph_def() = *graph;
    tensorflow::CreateSessionResponse response;
    EXPECT_OK(master->CreateSession(request, absl::Seconds(30), 16, &response));
    return response.session_handle();
  }
  static StatusOr<StepResult> Run(Master* master, const std::string& session,
                                  const std::vector<NamedTensor>& feeds,
                                  const std::vector<std::string>& fetches,
                                  const std::vector<std::string>& targets, int64_t timeout_ms = 0) {
    tensorflow::RunStepRequest request;
    request.set_session_handle(session);
    for (const auto& fetch : fetches) request.add_fetch(fetch);
    for (const auto& target : targets) request.add_target(target);
    request.mutable_options()->set_timeout_in_ms(timeout_ms);
    return master->RunStep(request, feeds);
  }
  // Whether the worker has no steps any more. What a link has brought is acknowledged with the next
  // step, or when its sender asks.
  bool HasNoSteps(const std::string& task) {
    EXPECT_TRUE(workers_[task]->AwaitTaken(absl::Now() + absl::Seconds(20)));
    for (int i = 0; i < 20'000 && workers_[task]->num_steps() > 0; ++i) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return workers_[task]->num_steps() == 0;
  }
  static std::vector<NamedTensor> Batch(float at) {
    return {{"x", Tensor::Vector<float>({at, at + 1, at + 2}), false},
            {"y", Tensor::Vector<float>({3 * at + 1, 3 * at + 4, 3 * at + 7}), false}};
  }

  // Goes to whichever worker has the name now.
  class Redirect : public ForwardingControl {
   public:
    Redirect(MasterTest* test, const std::string& task)
        : ForwardingControl(task, task), test_(test) {}

   private:
    std::shared_ptr<WorkerControl> To() const override {
      return MakeInProcessControl(test_->workers_.at(task()).get(), task());
    }
    MasterTest* const test_;
  };

  // Run by whichever worker has the name now.
  class PartOf : public LocalPart {
   public:
    PartOf(MasterTest* test, const std::string& task) : test_(test), task_(task) {}
    void Run(const CallOptions& options, const tensorflow::RunGraphRequest& graph,
             const tensorflow::RunGraphRequest& step, absl::Span<const NamedTensor> send,
             bool block, tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
             CallDone done) override {
      MakeLocalPart(test_->workers_.at(task_).get())
          ->Run(options, graph, step, send, block, response, received, std::move(done));
    }

   private:
    MasterTest* const test_;
    const std::string task_;
  };
  // A redirect that lets a test act, or refuse, when a call arrives.
  class Hooked : public Redirect {
   public:
    using Redirect::Redirect;
    void CreateWorkerSession(const CallOptions& o, const SessionOrder& r, Done d) override {
      const Status status = on_create ? on_create() : absl::OkStatus();
      if (!status.ok()) return d(status);
      Redirect::CreateWorkerSession(o, r, std::move(d));
    }
    void RegisterGraph(const CallOptions& o, PartOrder order, RegisteredPart* part,
                       Done d) override {
      if (on_register) on_register();
      Redirect::RegisterGraph(o, std::move(order), part, std::move(d));
    }
    std::function<Status()> on_create;
    std::function<void()> on_register;
  };
  // Opens no session before it is told not to.
  class SlowToOpen : public Redirect {
   public:
    using Redirect::Redirect;
    void CreateWorkerSession(const CallOptions& o, const SessionOrder&, Done d) override {
      auto done = std::make_shared<Done>(std::move(d));
      const auto cancelled = [done] { (*done)(absl::CancelledError("cancelled")); };
      CancellationManager::Token token;
      if (!o.cancellation->Register(&token, cancelled)) cancelled();
      asked.Notify();
    }
    Notification asked;
  };
  std::shared_ptr<Hooked> Hook(const std::string& task) {
    auto hooked = std::make_shared<Hooked>(this, task);
    MutexLock lock(&mu_);
    replaced_[task] = hooked;
    return hooked;
  }

  ClusterSpec cluster_;
  Mutex mu_;
  std::map<std::string, std::shared_ptr<WorkerControl>> replaced_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Worker>> graveyard_;
  std::vector<std::unique_ptr<Master>> masters_;
  std::unique_ptr<LinkedTasks> links_;
};

TEST_F(MasterTest, TrainsOverAParameterServerAndAWorker) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  float loss = 0;
  for (int step = 0; step < 400; ++step) {
    ASSERT_OK_AND_ASSIGN(const StepResult result,
                         Run(master, session, Batch(-1), {"loss:0"}, {"train"}));
    loss = result.fetches[0].scalar<float>();
  }
  EXPECT_LT(loss, 1e-6f);
  ASSERT_OK_AND_ASSIGN(const StepResult values,
                       Run(master, session, {}, {model.w.value.name(), model.b.value.name()}, {}));
  ExpectTensorNear(values.fetches[0], Tensor::Scalar(3.0f), 0, 1e-2);
  ExpectTensorNear(values.fetches[1], Tensor::Scalar(1.0f), 0, 1e-2);
  // Nothing of the steps is left behind.
  EXPECT_TRUE(HasNoSteps(kPs0));
  EXPECT_TRUE(HasNoSteps(kWorker0));
}

TEST_F(MasterTest, WorkersShareVariablesAndEqualPartitionsShareAPlan) {
  Master* const first = NewMaster(kWorker0);
  Master* const second = NewMaster(kWorker1);
  const SmallModel model0 = MakeSmallModel("/job:worker/task:0");
  const SmallModel model1 = MakeSmallModel("/job:worker/task:1");
  const std::string session0 = NewSessionOn(first, model0.root);
  const std::string session1 = NewSessionOn(second, model1.root);
  ASSERT_OK(Run(first, session0, {}, {}, {"init"}));
  ASSERT_OK(Run(first, session0, Batch(-1), {}, {"train"}));
  const int plans = workers_[kPs0]->num_plans();
  ASSERT_OK(Run(second, session1, Batch(-1), {}, {"train"}));
  EXPECT_EQ(workers_[kPs0]->num_plans(), plans);
  // Both at once, on that plan.
  const auto train = [&](Master* master, const std::string& session) {
    for (int step = 0; step < 200; ++step) {
      EXPECT_OK(Run(master, session, Batch(-1), {}, {"train"}));
    }
  };
  std::thread other(train, second, session1);
  train(first, session0);
  other.join();
  ASSERT_OK_AND_ASSIGN(const StepResult values,
                       Run(second, session1, {}, {model1.w.value.name()}, {}));
  ExpectTensorNear(values.fetches[0], Tensor::Scalar(3.0f), 0, 5e-2);
  EXPECT_TRUE(HasNoSteps(kPs0));
}

TEST_F(MasterTest, IsolatedSessionsHaveTheirOwnVariables) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  tensorflow::ConfigProto isolated;
  isolated.set_isolate_session_state(true);
  const std::string session = NewSessionOn(master, model.root);
  const std::string apart = NewSessionOn(master, model.root, isolated);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  EXPECT_STATUS(Run(master, apart, {}, {model.w.value.name()}, {}),
                absl::StatusCode::kFailedPrecondition, "uninitialized");
}

TEST_F(MasterTest, AnErrorNamesTaskAndNodeAndLeavesTheSessionUsable) {
  Master* const master = NewMaster(kWorker0);
  SmallModel model = MakeSmallModel();
  const Scope on_ps = model.root.WithDevice("/job:ps/task:0");
  const Output bad = TestFail(on_ps.WithName("bad"), model.w.value);
  const Output after = Add(model.root.WithDevice("/job:worker/task:0").WithName("after"), bad, bad);
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  const auto failed = Run(master, session, {}, {after.name()}, {});
  EXPECT_STATUS(failed, absl::StatusCode::kInvalidArgument,
                "From /job:ps/replica:0/task:0:\nTestFail 'bad': value must be better");
  EXPECT_NE(failed.status().message().find("[[{{node bad}}]]"), absl::string_view::npos);
  EXPECT_EQ(failed.status().message().find("[_Derived_]"), absl::string_view::npos);
  ASSERT_OK(Run(master, session, Batch(0), {"loss:0"}, {"train"}));
}

TEST_F(MasterTest, AStepThatWaitsEndsAtItsTimeLimit) {
  Master* const master = NewMaster(kWorker0);
  SmallModel model = MakeSmallModel();
  for (const char* device : {"/job:ps/task:0", "/job:worker/task:0"}) {
    const Output wait = TestWait(model.root.WithDevice(device));
    const std::string session = NewSessionOn(master, model.root);
    EXPECT_STATUS(Run(master, session, {}, {wait.name()}, {}, /*timeout_ms=*/50),
                  absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
    EXPECT_OK(Run(master, session, {}, {}, {"init"}));
  }
}

TEST_F(MasterTest, TheTimeLimitOfAStepCoversCompilingAndSaysForWhomItWaits) {
  Master* const master = NewMaster(kWorker0);
  const auto ps = Hook(kPs0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  Notification go;
  std::atomic<int> registrations{0};
  ps->on_register = [&] {
    ++registrations;
    go.Wait();
  };
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}, /*timeout_ms=*/300),
                absl::StatusCode::kDeadlineExceeded,
                "its signature on /job:worker/replica:0/task:0, which is compiled before the step "
                "can begin: registering its parts on /job:ps/replica:0/task:0 at "
                "/job:ps/replica:0/task:0");
  // Who asks again waits for the same compilation, another signature for its turn.
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}, /*timeout_ms=*/50),
                absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
  EXPECT_STATUS(Run(master, session, {}, {model.w.value.name()}, {}, /*timeout_ms=*/50),
                absl::StatusCode::kDeadlineExceeded, "Timed out waiting for notification");
  go.Notify();
  // They go on, and are found by those who ask again.
  EXPECT_OK(Run(master, session, {}, {}, {"init"}, /*timeout_ms=*/30'000));
  EXPECT_OK(Run(master, session, {}, {model.w.value.name()}, {}, /*timeout_ms=*/30'000));
  EXPECT_EQ(registrations, 2);
}

// The message of a step whose time was over when it had come to wait for `what`. On a busy machine
// the time may be over before that: then the step gets twice the time.
std::string EndOfStepThatWaits(absl::FunctionRef<Status(int timeout_ms)> run,
                               absl::string_view what) {
  Status ended;
  for (int timeout_ms = 100; timeout_ms < 60'000; timeout_ms *= 2) {
    ended = run(timeout_ms);
    EXPECT_EQ(ended.code(), absl::StatusCode::kDeadlineExceeded) << ended;
    if (absl::StrContains(ended.message(), what)) return std::string(ended.message());
  }
  ADD_FAILURE() << "no step came to wait for '" << what << "'; the last one: " << ended;
  return "";
}

TEST_F(MasterTest, AStepWhoseTimeIsOverNamesTheTensorsThatItWaitsForAndWhoWasToSendThem) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  // They are compiled: what is left is waiting.
  ASSERT_OK(Run(master, session, {}, {model.w.value.name()}, {}));
  ASSERT_OK(Run(master, session, Batch(0), {}, {"train"}));
  // On the master's task, in the thread that runs the step.
  links_->Mute(kPs0, true);
  const std::string here = EndOfStepThatWaits(
      [&](int timeout_ms) {
        return Run(master, session, {}, {model.w.value.name()}, {}, timeout_ms).status();
      },
      "the step waited for _Recv '");
  EXPECT_THAT(here, ::testing::HasSubstr(" of /job:ps/replica:0/task:0, for "));
  links_->Mute(kPs0, false);
  // On the parameter server, whose plan does not know its peers' names.
  links_->Mute(kWorker0, true);
  const std::string there = EndOfStepThatWaits(
      [&](int timeout_ms) {
        return Run(master, session, Batch(0), {}, {"train"}, timeout_ms).status();
      },
      ") on /job:ps/replica:0/task:0");
  EXPECT_THAT(there, ::testing::HasSubstr(" of /job:worker/replica:0/task:0, for "));
}

// covers: article 3-29: a waiting task names the task that it waits for, and gives up
TEST_F(MasterTest, TheLogSaysForWhomAStepWaitsEveryTenSeconds) {
  WatchedClock clock;
  MasterOptions options;
  options.log_clock = &clock;
  Master* const master = NewMasterWith(std::move(options));
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const std::string session = NewSessionOn(master, model.root);
  ::testing::internal::CaptureStderr();
  Status ended;
  std::thread step([&] { ended = Run(master, session, {}, {}, {wait.op().name()}).status(); });
  while (workers_[kPs0]->num_steps() == 0) std::this_thread::yield();
  for (int i = 0; i < 2; ++i) clock.AdvanceAndSettle(absl::Seconds(10));
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* since : {"10s", "20s"}) {
    EXPECT_NE(log.find(absl::StrCat("of session ", session, " on ", kWorker0,
                                    " still waits for /job:ps/replica:0/task:0 at "
                                    "/job:ps/replica:0/task:0 since ",
                                    since)),
              std::string::npos)
        << log;
  }
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session);
  EXPECT_OK(master->CloseSession(close));
  step.join();
  master->Shutdown(absl::AbortedError("Shutdown"));  // it has the clock
}

// A step within a node of another one, whose thread is corked: RUN must not wait for the cork.
TEST_F(MasterTest, AStepOnOtherTasksAloneDoesNotWaitForACorkOfItsOwnThread) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  // The first one opens the link.
  for (int i = 0; i < 2; ++i) {
    LinkCork cork;
    EXPECT_OK(Run(master, session, {}, {}, {model.w.initializer.name()}, /*timeout_ms=*/10'000));
  }
}

// A kernel that does not answer its cancellation keeps neither the client that closes, nor the
// lease of another session, nor the end of the master.
// (A part on another task ends at its master with its CANCEL.)
TEST_F(MasterTest, ClosingIsBoundedWhenAStepDoesNotEnd) {
  MasterOptions options;
  options.close_bound = absl::Milliseconds(50);
  Master* const master = NewMasterWith(std::move(options));
  SmallModel model = MakeSmallModel();
  const Output silent = TestSilent(model.root.WithDevice("/job:worker/task:0"));
  std::vector<std::string> sessions;
  std::vector<std::thread> steps;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(NewSessionOn(master, model.root));
    steps.emplace_back([&, i, session = sessions.back()] {
      EXPECT_STATUS(Run(master, session, {}, {}, {silent.op().name()}),
                    i == 0 ? absl::StatusCode::kCancelled : absl::StatusCode::kAborted, "");
    });
  }
  while (workers_[kWorker0]->num_steps() < 3) std::this_thread::yield();
  ::testing::internal::CaptureStderr();
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(sessions[0]);
  EXPECT_OK(master->CloseSession(close));
  EXPECT_EQ(workers_[kWorker0]->num_sessions(), 2);
  EXPECT_OK(master->Reset({}));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("still waits for /job:worker/replica:0/task:0"), std::string::npos) << log;
  EXPECT_NE(log.find("it is left behind"), std::string::npos) << log;
  EXPECT_EQ(workers_[kWorker0]->num_sessions(), 0);
  EndSilentKernels();
  for (std::thread& step : steps) step.join();
}

TEST_F(MasterTest, ClosingASessionCancelsItsSteps) {
  Master* const master = NewMaster(kWorker0);
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const std::string session = NewSessionOn(master, model.root);
  Status ended;
  std::thread step([&] { ended = Run(master, session, {}, {wait.name()}, {}).status(); });
  // The step is known to the ps once it has been started there.
  while (workers_[kPs0]->num_steps() == 0) std::this_thread::yield();
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session);
  EXPECT_OK(master->CloseSession(close));
  step.join();
  EXPECT_STATUS(ended, absl::StatusCode::kCancelled, "Session has been closed.");
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}), absl::StatusCode::kAborted,
                "is not found.");
  EXPECT_STATUS(master->CloseSession(close), absl::StatusCode::kAborted,
                "is not found. Possibly, this master has restarted.");
}

TEST_F(MasterTest, ARestartedTaskEndsItsSessionsForGoodAndANewOneWorks) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  ASSERT_OK(Run(master, session, Batch(0), {}, {"train"}));
  Restart(kPs0);
  const auto failed = Run(master, session, Batch(0), {}, {"train"});
  EXPECT_STATUS(failed, absl::StatusCode::kAborted,
                "Worker '/job:ps/replica:0/task:0' restarted during step ");
  EXPECT_NE(failed.status().message().find("variables there are lost, restore from a checkpoint"),
            absl::string_view::npos);
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}), absl::StatusCode::kAborted, "restarted");
  const std::string fresh = NewSessionOn(master, model.root);
  EXPECT_STATUS(Run(master, fresh, {}, {model.w.value.name()}, {}),
                absl::StatusCode::kFailedPrecondition, "uninitialized");
  ASSERT_OK(Run(master, fresh, {}, {}, {"init"}));
  EXPECT_OK(Run(master, fresh, Batch(0), {}, {"train"}));
}

// Its links have another version, or there are none.
// covers: clusters: a task whose links have another version, or none, is refused by name as its
//   part is registered
TEST_F(MasterTest, ATaskOfAnotherReleaseIsRefusedByNameBeforeAStepBegins) {
  class OtherRelease : public Redirect {
   public:
    using Redirect::Redirect;
    void RegisterGraph(const CallOptions& o, PartOrder order, RegisteredPart* part,
                       Done d) override {
      Redirect::RegisterGraph(o, std::move(order), part,
                              [=, this, done = std::move(d)](const Status& status) mutable {
                                part->link_version = version;
                                done(status);
                              });
    }
    uint64_t version = 0;
  };
  const auto other = std::make_shared<OtherRelease>(this, kPs0);
  {
    MutexLock lock(&mu_);
    replaced_[kPs0] = other;
  }
  Master* const master = NewMaster(kWorker0);
  for (const uint64_t version : {uint64_t{0}, kLinkVersion - uint64_t{1}}) {
    other->version = version;
    const std::string session = NewSessionOn(master, MakeSmallModel().root);
    EXPECT_STATUS(Run(master, session, {}, {}, {"init"}), absl::StatusCode::kFailedPrecondition,
                  absl::StrCat(kPs0, " at ", kPs0, " must have links of version ", kLinkVersion,
                               ", got ", version == 0 ? "none" : absl::StrCat("version ", version),
                               "; run the same release in all tasks"));
  }
  // Nothing of it is left there.
  EXPECT_EQ(workers_[kPs0]->num_plans(), 0);
}

// While tasks are replaced by those of another release, a session that is open hears of a restart:
// for its job a session that is lost, and it opens another one. A session that begins waits for
// the task (task_connector_test).
TEST_F(MasterTest, ATaskThatCameBackAsAnotherReleaseHasRestarted) {
  // The master's way to the ps, once the step is compiled.
  class OtherRelease : public PeerLinks {
   public:
    std::function<void()> before;
    void Get(absl::string_view task, Got got) override {
      if (before) std::exchange(before, nullptr)();
      got(absl::FailedPreconditionError(absl::StrCat(
          "Link to ", task, " was closed by the peer: Link: both tasks must speak version 5 of ",
          "links, got a peer of version 2; run the same release in all tasks")));
    }
  } links;
  for (const bool restarts : {false, true}) {
    MasterOptions options;
    options.links = std::make_shared<LinkParts>(&links);
    Master* const master = NewMasterWith(std::move(options));
    const std::string session = NewSessionOn(master, MakeSmallModel().root);
    // Compiled while all are of one release.
    if (restarts) links.before = [this] { Restart(kPs0); };
    const Status ended = Run(master, session, {}, {}, {"init"}).status();
    if (restarts) {
      EXPECT_STATUS(ended, absl::StatusCode::kAborted,
                    "Worker '/job:ps/replica:0/task:0' restarted during step ");
    } else {
      EXPECT_STATUS(ended, absl::StatusCode::kFailedPrecondition, "must speak version 5 of links");
    }
  }
}

// Here the first call that it gets is the registration of a part.
TEST_F(MasterTest, AnotherReleaseIsFoundByANewSignatureToo) {
  static constexpr char kRefusal[] =
      "RegisterGraph: this task speaks version 1 of Millrace's wire and its callers must, got one "
      "of version 2; run one version of Millrace on all tasks";
  class OtherRelease : public Redirect {
   public:
    using Redirect::Redirect;
    void RegisterGraph(const CallOptions&, PartOrder, RegisteredPart*, Done done) override {
      done(absl::FailedPreconditionError(kRefusal));
    }
  };
  {
    MutexLock lock(&mu_);
    replaced_[kPs0] = std::make_shared<OtherRelease>(this, kPs0);
  }
  Master* const master = NewMaster(kWorker0);
  for (const bool restarts : {false, true}) {
    const std::string session = NewSessionOn(master, MakeSmallModel().root);
    if (restarts) Restart(kPs0);
    const Status ended = Run(master, session, {}, {}, {"init"}).status();
    if (restarts) {
      EXPECT_STATUS(ended, absl::StatusCode::kAborted,
                    "Worker '/job:ps/replica:0/task:0' restarted");
    } else {
      EXPECT_STATUS(ended, absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("From ", kPs0, ":\n", kRefusal));
    }
  }
}

TEST_F(MasterTest, ARestartIsNoticedByANewSignatureToo) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  Restart(kPs0);
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}), absl::StatusCode::kAborted, "restarted");
}

TEST_F(MasterTest, AMissingTaskIsNamedAndEndsTheWait) {
  FakeClock clock;
  auto absent = std::make_shared<AbsentTask>(kPs0);
  {
    MutexLock lock(&mu_);
    replaced_[kPs0] = absent;
  }
  Master* const master = NewMaster(kWorker0, &clock);
  Status status;
  std::thread waiting([&] {
    tensorflow::CreateSessionResponse response;
    status = master->CreateSession({}, absl::Seconds(15), 16, &response);
  });
  ::testing::internal::CaptureStderr();
  clock.AwaitWaiters(1);
  EXPECT_EQ(absent->asked.load(), 1);
  clock.Advance(absl::Seconds(10));
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(5));
  waiting.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_STATUS(status, absl::StatusCode::kDeadlineExceeded,
                "must answer within 15s, got none from /job:ps/replica:0/task:0 at "
                "ps.example:2222");
  EXPECT_NE(log.find("CreateSession still waiting for response from worker: "
                     "/job:ps/replica:0/task:0 at ps.example:2222"),
            std::string::npos)
      << log;
}

TEST_F(MasterTest, StoppingTheServerEndsTheWaitForTasks) {
  FakeClock clock;
  {
    MutexLock lock(&mu_);
    replaced_[kPs0] = std::make_shared<AbsentTask>(kPs0);
  }
  Master* const master = NewMaster(kWorker0, &clock);
  Status status;
  std::thread waiting([&] {
    tensorflow::CreateSessionResponse response;
    status = master->CreateSession({}, absl::Hours(2), 16, &response);
  });
  clock.AwaitWaiters(1);
  master->Shutdown(absl::AbortedError("Shutdown"));
  waiting.join();
  EXPECT_STATUS(status, absl::StatusCode::kAborted, "");
}

TEST_F(MasterTest, SignaturesWhoseNamesJoinToOneTextAreTwo) {
  Master* const master = NewMaster(kWorker0);
  Scope root;
  const Scope on = root.WithDevice(kWorker0);
  for (const char* name : {"a", "a/b", "b/c", "c"}) {
    Const(on.WithName(name), absl::string_view(name) == "a" ? 1.0f : 2.0f);
  }
  const std::string session = NewSessionOn(master, root);
  ASSERT_OK_AND_ASSIGN(const StepResult first, Run(master, session, {}, {"a"}, {"b/c"}));
  ExpectTensorEqual(first.fetches[0], Tensor::Scalar(1.0f));
  ASSERT_OK_AND_ASSIGN(const StepResult second, Run(master, session, {}, {"a/b"}, {"c"}));
  ExpectTensorEqual(second.fetches[0], Tensor::Scalar(2.0f));
}

TEST_F(MasterTest, ASessionThatCannotBeMadeLeavesNothingOnTheTasks) {
  Master* const master = NewMaster(kWorker0);
  Hook(kPs0)->on_create = [] { return absl::UnavailableError("Socket closed"); };
  tensorflow::CreateSessionResponse response;
  EXPECT_STATUS(master->CreateSession({}, absl::Seconds(30), 16, &response),
                absl::StatusCode::kUnavailable, "From /job:ps/replica:0/task:0:\nSocket closed");
  EXPECT_EQ(workers_[kWorker0]->num_sessions(), 0);
  EXPECT_EQ(workers_[kPs0]->num_sessions(), 0);
}

TEST_F(MasterTest, ASessionForAClientThatHasGoneIsNotKept) {
  Master* const master = NewMaster(kWorker0);
  CancellationManager client;
  Hook(kPs0)->on_create = [&] {
    client.StartCancel();
    return absl::OkStatus();
  };
  tensorflow::CreateSessionResponse response;
  EXPECT_STATUS(master->CreateSessionFor(&client, {}, absl::Seconds(30), 16, &response),
                absl::StatusCode::kCancelled, "its client has gone");
  EXPECT_EQ(workers_[kWorker0]->num_sessions(), 0);
  EXPECT_EQ(workers_[kPs0]->num_sessions(), 0);
}

TEST_F(MasterTest, SessionsOfAMasterThatDiedEndWhenItsTaskComesBack) {
  const SmallModel model = MakeSmallModel();
  Master* const first = NewMaster(kWorker0);
  const std::string lost = NewSessionOn(first, model.root);
  ASSERT_OK(Run(first, lost, {}, {}, {"init"}));
  const std::string other = NewSessionOn(NewMaster(kWorker1), model.root);
  EXPECT_EQ(workers_[kPs0]->num_sessions(), 2);
  // The process of worker 0 is killed: nobody closes its session.
  Restart(kWorker0);
  Master* const second = NewMaster(kWorker0);
  const std::string fresh = NewSessionOn(second, model.root);
  EXPECT_EQ(workers_[kPs0]->num_sessions(),
            2);  // that of worker 1, and the new one
  // A second session of the same life harms nobody; neither do the variables'
  // values.
  const std::string sibling = NewSessionOn(second, model.root);
  EXPECT_EQ(workers_[kPs0]->num_sessions(), 3);
  EXPECT_OK(Run(second, fresh, {}, {model.w.value.name()}, {}));
  EXPECT_OK(Run(second, sibling, {}, {model.w.value.name()}, {}));
}

// The variables are gone with the containers: for its client a session that is lost.
TEST_F(MasterTest, AResetEndsRunningStepsAsAborted) {
  Master* const master = NewMaster(kWorker0);
  SmallModel model = MakeSmallModel();
  const Output wait = TestWait(model.root.WithDevice("/job:ps/task:0"));
  const std::string session = NewSessionOn(master, model.root);
  Status ended;
  std::thread step([&] { ended = Run(master, session, {}, {wait.name()}, {}).status(); });
  while (workers_[kPs0]->num_steps() == 0) std::this_thread::yield();
  EXPECT_OK(master->Reset({}));
  step.join();
  EXPECT_STATUS(ended, absl::StatusCode::kAborted, "closed by a reset of its master");
}

TEST_F(MasterTest, ClosingWhileASignatureIsCompiledSaysThatTheSessionWasClosed) {
  Master* const master = NewMaster(kWorker0);
  const auto ps = Hook(kPs0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session);
  ps->on_register = [&] { EXPECT_OK(master->CloseSession(close)); };
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}), absl::StatusCode::kCancelled,
                "Session has been closed.");
}

TEST_F(MasterTest, ClosingWhileTheGraphIsExtendedLeavesNothingOnTheTasks) {
  Master* const master = NewMaster(kWorker0);
  const std::string session = NewSessionOn(master, Scope());
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session);
  Hook(kWorker1)->on_create = [&] { return master->CloseSession(close); };
  Scope root;
  Const(root.WithDevice("/job:worker/task:1").WithName("one"), 1.0f);
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(session);
  *extend.mutable_graph_def() = *root.ToGraphDef();
  tensorflow::ExtendSessionResponse extended;
  EXPECT_STATUS(master->ExtendSession(extend, &extended), absl::StatusCode::kCancelled,
                "Session has been closed.");
  EXPECT_EQ(workers_[kWorker1]->num_sessions(), 0);
}

TEST_F(MasterTest, ClosingEndsTheCallThatOpensTheSessionOnAFurtherTask) {
  Master* const master = NewMaster(kWorker0);
  const std::string session = NewSessionOn(master, Scope());
  const auto slow = std::make_shared<SlowToOpen>(this, kWorker1);
  {
    MutexLock lock(&mu_);
    replaced_[kWorker1] = slow;
  }
  Scope root;
  Const(root.WithDevice("/job:worker/task:1").WithName("one"), 1.0f);
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(session);
  *extend.mutable_graph_def() = *root.ToGraphDef();
  Status ended;
  std::thread extending([&] {
    tensorflow::ExtendSessionResponse extended;
    ended = master->ExtendSession(extend, &extended);
  });
  slow->asked.Wait();
  tensorflow::CloseSessionRequest close;
  close.set_session_handle(session);
  EXPECT_OK(master->CloseSession(close));
  extending.join();
  EXPECT_STATUS(ended, absl::StatusCode::kCancelled, "Session has been closed.");
}

TEST_F(MasterTest, ASessionTalksOnlyToTheTasksItNeeds) {
  auto other_worker = std::make_shared<AbsentTask>(kWorker1);
  {
    MutexLock lock(&mu_);
    replaced_[kWorker1] = other_worker;
  }
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  tensorflow::ListDevicesRequest request;
  request.set_session_handle(session);
  tensorflow::ListDevicesResponse devices;
  ASSERT_OK(master->ListDevices(request, &devices));
  ASSERT_EQ(devices.local_device_size(), 1);
  EXPECT_EQ(devices.local_device(0).name(), std::string(kWorker0) + "/device:CPU:0");
  ASSERT_EQ(devices.remote_device_size(), 1);
  EXPECT_EQ(devices.remote_device(0).name(), std::string(kPs0) + "/device:CPU:0");
  EXPECT_NE(devices.remote_device(0).incarnation(), 0u);
  EXPECT_EQ(other_worker->asked.load(), 0);
}

TEST_F(MasterTest, ATaskThatANodeNamesIsOneOfTheSession) {
  Master* const master = NewMaster(kWorker0);
  Scope root;
  const Output one = Const(root.WithDevice("/job:worker/task:1").WithName("one"), 1.0f);
  const Output two = Add(root.WithDevice("/job:worker/task:0").WithName("two"), one, one);
  const std::string session = NewSessionOn(master, root);
  ASSERT_OK_AND_ASSIGN(const StepResult result, Run(master, session, {}, {two.name()}, {}));
  ExpectTensorEqual(result.fetches[0], Tensor::Scalar(2.0f));
}

TEST_F(MasterTest, DeviceFiltersKeepTasksOut) {
  Master* const master = NewMaster(kWorker0);
  tensorflow::ConfigProto config;
  config.add_device_filters("/job:worker/task:0");
  Scope root;
  const Output one = Const(root.WithDevice("/job:ps/task:0").WithName("one"), 1.0f);
  const std::string session = NewSessionOn(master, root, config);
  EXPECT_STATUS(Run(master, session, {}, {one.name()}, {}), absl::StatusCode::kInvalidArgument,
                "one");
}

TEST_F(MasterTest, BadRequestsAreRefused) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  EXPECT_STATUS(Run(master, "nobody", {}, {}, {"init"}), absl::StatusCode::kAborted,
                "Session nobody is not found.");
  EXPECT_STATUS(Run(master, session, {}, {}, {}), absl::StatusCode::kInvalidArgument,
                "Must specify at least one target to fetch or execute.");
  EXPECT_STATUS(Run(master, session, {}, {"nothing:0"}, {}), absl::StatusCode::kNotFound,
                "nothing:0");
  EXPECT_STATUS(Run(master, session, {{"x", Tensor::Scalar(1.0), false}}, {"loss:0"}, {}),
                absl::StatusCode::kInvalidArgument,
                "Cannot feed value of type double for Tensor 'x:0', which has type float");
  EXPECT_STATUS(Run(master, session, {{"x", TensorOf<float>({1, 1}, {1}), false}}, {"loss:0"}, {}),
                absl::StatusCode::kInvalidArgument,
                "Cannot feed value of shape [1,1] for Tensor 'x:0', which has shape [?]");
  EXPECT_STATUS(Run(master, NewSessionOn(master, Scope()), {}, {}, {"init"}),
                absl::StatusCode::kFailedPrecondition,
                "Session: must have a graph before it runs or prepares a step, got none; call "
                "Extend first");
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(session);
  extend.set_current_graph_version(7);
  tensorflow::ExtendSessionResponse extended;
  EXPECT_STATUS(master->ExtendSession(extend, &extended), absl::StatusCode::kAborted,
                "Current version is 1 but caller expected 7.");
  tensorflow::CreateSessionRequest pools;
  pools.mutable_config()->set_use_per_session_threads(true);
  tensorflow::CreateSessionResponse created;
  EXPECT_STATUS(master->CreateSession(pools, absl::Seconds(1), 16, &created),
                absl::StatusCode::kInvalidArgument,
                "Distributed session does not support session thread pool options.");
}

TEST_F(MasterTest, CallablesRunInTheOrderOfTheirFeeds) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  tensorflow::MakeCallableRequest make;
  make.set_session_handle(session);
  make.mutable_options()->add_feed("y:0");
  make.mutable_options()->add_feed("x:0");
  make.mutable_options()->add_fetch("loss:0");
  tensorflow::MakeCallableResponse made;
  ASSERT_OK(master->MakeCallable(make, &made));
  tensorflow::RunCallableRequest run;
  run.set_session_handle(session);
  run.set_handle(made.handle());
  const std::vector<Tensor> feeds = {Tensor::Vector<float>({2}), Tensor::Vector<float>({100})};
  ASSERT_OK_AND_ASSIGN(const StepResult result, master->RunCallable(run, feeds, nullptr));
  ExpectTensorEqual(result.fetches[0], Tensor::Scalar(4.0f));
  tensorflow::ReleaseCallableRequest release;
  release.set_session_handle(session);
  release.set_handle(made.handle());
  ASSERT_OK(master->ReleaseCallable(release));
  EXPECT_STATUS(master->RunCallable(run, feeds, nullptr), absl::StatusCode::kInvalidArgument,
                "No such callable handle");
}

TEST_F(MasterTest, CallablesOfASessionAreBounded) {
  MasterOptions options;
  options.limits.max_callables = 2;
  Master* const master = NewMasterWith(std::move(options));
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  tensorflow::MakeCallableRequest make;
  make.set_session_handle(session);
  make.mutable_options()->add_target("init");
  tensorflow::MakeCallableResponse made;
  ASSERT_OK(master->MakeCallable(make, &made));
  ASSERT_OK(master->MakeCallable(make, &made));
  tensorflow::MakeCallableResponse refused;
  EXPECT_STATUS(master->MakeCallable(make, &refused), absl::StatusCode::kResourceExhausted,
                "callables of a session must be at most 2 (ServerLimits::max_callables), got 3");
  tensorflow::ReleaseCallableRequest release;
  release.set_session_handle(session);
  release.set_handle(made.handle());
  ASSERT_OK(master->ReleaseCallable(release));
  EXPECT_OK(master->MakeCallable(make, &made));
}

TEST_F(MasterTest, MessagesThatASessionKeepsAreBounded) {
  MasterOptions options;
  options.limits.max_graph_bytes = 256 << 10;
  Master* const master = NewMasterWith(std::move(options));
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  tensorflow::MakeCallableRequest make;
  make.set_session_handle(session);
  for (int i = 0; i < 3000; ++i) make.mutable_options()->add_target("init");
  tensorflow::MakeCallableResponse made;
  Status status = master->MakeCallable(make, &made);
  EXPECT_OK(status);
  for (int i = 0; i < 100 && status.ok(); ++i) {
    tensorflow::MakeCallableResponse more;
    status = master->MakeCallable(make, &more);
  }
  EXPECT_STATUS(status, absl::StatusCode::kResourceExhausted,
                "bytes of a session's graph and callables must be at most 262144 "
                "(ServerLimits::max_graph_bytes)");
  Scope more;
  Const(more.WithName("large"), Tensor::Vector<std::string>({std::string(512 << 10, 'x')}));
  tensorflow::ExtendSessionRequest extend;
  extend.set_session_handle(session);
  extend.set_current_graph_version(1);
  ASSERT_OK_AND_ASSIGN(*extend.mutable_graph_def(), more.ToGraphDef());
  tensorflow::ExtendSessionResponse extended;
  EXPECT_STATUS(master->ExtendSession(extend, &extended), absl::StatusCode::kResourceExhausted,
                "ServerLimits::max_graph_bytes");
  EXPECT_OK(Run(master, session, {}, {}, {"init"}));
  tensorflow::ReleaseCallableRequest release;
  release.set_session_handle(session);
  release.set_handle(made.handle());
  ASSERT_OK(master->ReleaseCallable(release));
  EXPECT_OK(master->MakeCallable(make, &made));
}

TEST_F(MasterTest, ForgottenSignaturesAreDroppedEverywhereAndCompiledAgain) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  tensorflow::CreateSessionRequest request;
  *request.mutable_graph_def() = *model.root.ToGraphDef();
  tensorflow::CreateSessionResponse response;
  ASSERT_OK(master->CreateSession(request, absl::Seconds(30), /*max_cached_plans=*/1, &response));
  const std::string session = response.session_handle();
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK(Run(master, session, {}, {}, {"init"}));
    ASSERT_OK(Run(master, session, {}, {model.w.value.name()}, {}));
    // The thread that ended the step before may still hold on to it for a moment.
    while (workers_[kPs0]->num_plans() > 1) std::this_thread::yield();
    EXPECT_EQ(workers_[kPs0]->num_plans(), 1);
  }
}

TEST_F(MasterTest, ResetClearsTheContainers) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  ASSERT_OK(master->Reset({}));
  EXPECT_STATUS(Run(master, session, {}, {}, {"init"}), absl::StatusCode::kAborted, "not found");
  const std::string fresh = NewSessionOn(master, model.root);
  EXPECT_STATUS(Run(master, fresh, {}, {model.w.value.name()}, {}),
                absl::StatusCode::kFailedPrecondition, "uninitialized");
}

TEST_F(MasterTest, ATracedStepNamesTheNodesOfAllTasks) {
  Master* const master = NewMaster(kWorker0);
  const SmallModel model = MakeSmallModel();
  const std::string session = NewSessionOn(master, model.root);
  ASSERT_OK(Run(master, session, {}, {}, {"init"}));
  tensorflow::RunStepRequest request;
  request.set_session_handle(session);
  request.add_fetch("loss:0");
  request.mutable_options()->set_trace_level(tensorflow::RunOptions::FULL_TRACE);
  request.mutable_options()->set_output_partition_graphs(true);
  ASSERT_OK_AND_ASSIGN(const StepResult result, master->RunStep(request, Batch(0)));
  std::vector<std::string> devices;
  for (const auto& device : result.metadata.step_stats().dev_stats()) {
    devices.push_back(device.device());
    EXPECT_GT(device.node_stats_size(), 0);
  }
  std::sort(devices.begin(), devices.end());
  EXPECT_EQ(devices, (std::vector<std::string>{std::string(kPs0) + "/device:CPU:0",
                                               std::string(kWorker0) + "/device:CPU:0"}));
  EXPECT_EQ(result.metadata.partition_graphs_size(), 2);
}

}  // namespace
}  // namespace millrace

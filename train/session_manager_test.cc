// SPDX-License-Identifier: Apache-2.0
#include "train/session_manager.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/refusal.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "train/testing/shared_variables.h"

// covers: training: one rule says whether a variable is adopted, restored (a warm start: from
//   another directory's checkpoint, once) or initialised, and the log names the choice; a lost
//   session is opened again; a waiting task leaves when the run has ended, and logs every 10 s for
//   whom it waits, since when and what is missing; a wait has a limit
// covers: training: a trainer that a task refuses for good (CA, TLS, token; version of its
//   master) ends at once with its message and exit code 1
// covers: training: servers and trainers share one rule for how long an end must stand before it is
//   believed
// covers: article 2-9: Supervisor: initialises or restores, others wait; services
// covers: article 3-29: a waiting task names the task that it waits for, and gives up

namespace millrace {
namespace {

using absl::StatusCode;
using Start = SessionManager::Start;

// w = 1, b = 2, a step counter.
struct Model {
  Model() {
    w = MakeVariable(root.WithName("w"), Const(root, 1.f));
    b = MakeVariable(root.WithName("b"), Const(root, 2.f));
    step = GlobalStep(root);
    saver = *Saver::Make(root);
  }
  Scope root;
  Variable w, b, step;
  std::unique_ptr<Saver> saver;
};

// Time passes only while somebody waits, and then at once.
class LeapingClock : public Clock {
 public:
  absl::Time Now() override { return now_; }
  bool WaitUntil(CondVar*, Mutex*, absl::Time deadline) override {
    now_ = std::max(now_, deadline);
    ++waits;
    if (after_wait) after_wait();
    return true;
  }
  void SleepFor(absl::Duration duration) override { now_ += duration; }

  int waits = 0;
  std::function<void()> after_wait;

 private:
  absl::Time now_ = absl::UnixEpoch();
};

class SessionManagerTest : public ::testing::Test {
 protected:
  SessionManagerTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("manager_", RandomHexName()))) {
    EXPECT_OK(servers_.Restart());
  }
  ~SessionManagerTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  SessionManagerOptions Options(const Model& model) const {
    return {.saver = model.saver.get(),
            .checkpoint_dir = dir_,
            .global_step = model.step,
            .recovery_wait = absl::Milliseconds(1),
            .max_wait = absl::Seconds(60)};
  }
  // Gives w a value, as on a server that did not restart.
  void KeepW(float value) {
    Model model;
    ASSERT_OK(servers_.variables()->Extend(model.root));
    const Feed kept(model.w.initializer.node()->input(1).node->name(),
                    TensorOf<float>({}, {value}));
    ASSERT_OK(servers_.variables()->Run({kept}, {}, {model.w.initializer}).status());
  }
  void InitializeAll() {
    Model model;
    SessionManager chief(model.root, Options(model));
    ASSERT_OK(chief.PrepareSession(kSharedTarget).status());
  }
  // Writes a checkpoint of w = 1, b = 2, step 0 and returns its path; then restarts the servers.
  std::string SaveOne() {
    Model model;
    SessionManager chief(model.root, Options(model));
    const auto ready = chief.PrepareSession(kSharedTarget);
    EXPECT_OK(ready.status());
    const auto path = model.saver->Save(ready->session.get(), dir_ + "/m", 0);
    EXPECT_OK(path.status());
    EXPECT_OK(servers_.Restart());
    return path.value_or("");
  }
  static float Float(Session* session, const FetchName& name) {
    const auto out = session->Run({}, {name});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0].scalar<float>() : -1;
  }
  void WriteEnd(int64_t step, int64_t goal) {
    ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_));
    ASSERT_OK(WriteRunFile(fs_, dir_, {.id = "x", .name = "run", .token = "t"}));
    ASSERT_OK(WriteRunEnd(
        fs_, dir_,
        {.id = "x", .token = "t", .global_step = step, .goal = goal, .reason = "reached it"}));
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
  SharedVariables servers_;
};

// --- The rule ------------------------------------------------------------------------------------

TEST_F(SessionManagerTest, AdoptedThenRestoredThenInitialised) {
  {
    Model model;
    SessionManager manager(model.root, Options(model));
    ASSERT_OK_AND_ASSIGN(const auto ready, manager.PrepareSession(kSharedTarget));
    EXPECT_EQ(ready.start, Start::kInitialized);
    EXPECT_EQ(ready.global_step, 0);
    EXPECT_EQ(ready.restored_checkpoint, "");
  }
  {
    Model model;
    SessionManager manager(model.root, Options(model));
    ASSERT_OK_AND_ASSIGN(const auto ready, manager.PrepareSession(kSharedTarget));
    EXPECT_EQ(ready.start, Start::kAdopted);
  }
  ASSERT_OK(servers_.Restart());
  const std::string path = SaveOne();
  KeepW(7);
  Model model;
  SessionManager manager(model.root, Options(model));
  ::testing::internal::CaptureStderr();
  const auto ready = manager.PrepareSession(kSharedTarget);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(ready.status());
  EXPECT_EQ(ready->start, Start::kRestored);
  EXPECT_EQ(ready->restored_checkpoint, path);
  EXPECT_EQ(Float(ready->session.get(), model.w.value), 7);
  EXPECT_EQ(Float(ready->session.get(), model.b.value), 2);
  EXPECT_TRUE(absl::StrContains(log, absl::StrCat("SessionManager: adopted 1 variables, restored 2 "
                                                  "from ",
                                                  path, " at global step 0: b, global_step")))
      << log;
}

TEST_F(SessionManagerTest, ACheckpointToBeginFromIsForADirectoryWithoutOne) {
  const std::string elsewhere = SaveOne();
  const std::string own = dir_ + "/own";
  const auto prepare = [&](Model* model, const std::string& from) {
    SessionManagerOptions options = Options(*model);
    options.checkpoint_dir = own;
    options.begin_from = from;
    SessionManager manager(model->root, options);
    return manager.PrepareSession(kSharedTarget);
  };
  Model first;
  ASSERT_OK_AND_ASSIGN(const auto began, prepare(&first, elsewhere));
  EXPECT_EQ(began.start, Start::kRestored);
  EXPECT_EQ(began.restored_checkpoint, elsewhere);
  ASSERT_OK_AND_ASSIGN(const std::string later,
                       first.saver->Save(began.session.get(), own + "/m", 7));
  // From now on the directory has a checkpoint of its own.
  ASSERT_OK(servers_.Restart());
  Model second;
  ASSERT_OK_AND_ASSIGN(const auto went_on, prepare(&second, elsewhere));
  EXPECT_EQ(went_on.restored_checkpoint, later);

  ASSERT_OK(fs_->RecursivelyDelete(own));
  ASSERT_OK(servers_.Restart());
  Model third;
  EXPECT_STATUS(prepare(&third, dir_ + "/nothing-9").status(), StatusCode::kNotFound, "nothing-9");
  Model fourth;
  SessionManager without_saver(fourth.root, {.begin_from = elsewhere});
  EXPECT_STATUS(without_saver.PrepareSession(kSharedTarget).status(), StatusCode::kInvalidArgument,
                "begin_from must come with a Saver");
}

TEST_F(SessionManagerTest, ACheckpointToBeginFromReplacesWhatIsHeldInPart) {
  const std::string elsewhere = SaveOne();
  KeepW(7);
  Model model;
  SessionManagerOptions options = Options(model);
  options.checkpoint_dir = dir_ + "/own";
  options.begin_from = elsewhere;
  SessionManager manager(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto ready, manager.PrepareSession(kSharedTarget));
  EXPECT_EQ(ready.start, Start::kRestored);
  EXPECT_EQ(ready.restored_checkpoint, elsewhere);
  EXPECT_EQ(Float(ready.session.get(), model.w.value), 1);
  EXPECT_EQ(Float(ready.session.get(), model.b.value), 2);
}

TEST_F(SessionManagerTest, WhereACheckpointIsWaitedForNoneFromElsewhereIsTaken) {
  const std::string elsewhere = SaveOne();
  Model model;
  SessionManagerOptions options = Options(model);
  options.checkpoint_dir = dir_ + "/own";
  options.begin_from = elsewhere;
  options.wait_for_checkpoint = true;
  SessionManager manager(model.root, options);
  std::vector<std::string> not_ready;
  ASSERT_OK(manager.RecoverSession(kSharedTarget, &not_ready).status());
  EXPECT_EQ(not_ready.size(), 1u);
}

TEST_F(SessionManagerTest, RecoveryNeverInitialises) {
  KeepW(7);
  std::vector<std::string> not_ready;
  {
    Model model;
    SessionManager manager(model.root, Options(model));
    ASSERT_OK_AND_ASSIGN(const auto ready, manager.RecoverSession(kSharedTarget, &not_ready));
    EXPECT_EQ(not_ready, (std::vector<std::string>{"b", "global_step"}));
    EXPECT_EQ(Float(ready.session.get(), model.w.value), 7);
  }
  ASSERT_OK(servers_.Restart());
  const std::string path = SaveOne();
  Model model;
  SessionManager manager(model.root, Options(model));
  ASSERT_OK_AND_ASSIGN(const auto ready, manager.RecoverSession(kSharedTarget, &not_ready));
  EXPECT_TRUE(not_ready.empty());
  EXPECT_EQ(ready.start, Start::kRestored);
  EXPECT_EQ(ready.restored_checkpoint, path);
}

TEST_F(SessionManagerTest, WhereACheckpointIsWaitedForNothingIsInitialised) {
  Model model;
  FakeClock clock;
  SessionManagerOptions options = Options(model);
  options.wait_for_checkpoint = true;
  options.clock = &clock;
  SessionManager manager(model.root, options);
  StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
  std::thread thread([&] { ready = manager.PrepareSession(kSharedTarget); });
  clock.AwaitWaiters(1);
  // The checkpoint comes from another program, which has its own servers.
  Model other;
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<Session> session, NewSession());
  ASSERT_OK(session->Extend(other.root));
  for (const Variable& variable : {other.w, other.b, other.step}) {
    ASSERT_OK(session->Run({}, {}, {variable.initializer}).status());
  }
  ASSERT_OK_AND_ASSIGN(const std::string path, other.saver->Save(session.get(), dir_ + "/m", 5));
  clock.Advance(absl::Seconds(1));
  thread.join();
  ASSERT_OK(ready.status());
  EXPECT_EQ(ready->restored_checkpoint, path);
}

TEST_F(SessionManagerTest, InitOperationsAreFed) {
  Scope root;
  const Output initial =
      PlaceholderWithDefault(root.WithName("initial"), Const(root, 1.f), Shape());
  const Variable v = MakeVariable(root.WithName("v"), initial);
  SessionManager manager(root, {.init_feeds = {{initial, Tensor::Scalar<float>(9)}}});
  ASSERT_OK_AND_ASSIGN(const auto ready, manager.PrepareSession(kSharedTarget));
  EXPECT_EQ(Float(ready.session.get(), v.value), 9);
}

TEST_F(SessionManagerTest, TablesAreInitialisedInEachSessionByEveryTask) {
  Model model;
  // A variable in place of a table: only its initialiser writes it.
  const Output table = VarHandleOp(model.root.WithName("table"), DT_FLOAT, PartialShape::Scalar(),
                                   {.shared_name = "table"});
  const Operation fill =
      AssignVariableOp(model.root.WithName("fill"), table, Const(model.root, 3.f));
  model.root.AddToNodeCollection("table_initializer", fill.name());
  const Output read = ReadVariableOp(model.root.WithName("look_up"), table, DT_FLOAT);
  MakeVariable(model.root.WithName("local"), Const(model.root, 5.f), {.local = true});
  SessionManagerOptions options = Options(model);
  SessionManager manager(model.root, options);
  ASSERT_OK_AND_ASSIGN(const auto chief, manager.PrepareSession(kSharedTarget));
  EXPECT_EQ(Float(chief.session.get(), read), 3);
  EXPECT_EQ(Float(chief.session.get(), "local/Read/ReadVariableOp"), 5);
  ASSERT_OK_AND_ASSIGN(const auto worker, manager.WaitForSession(kSharedTarget));
  EXPECT_EQ(worker.start, Start::kWaited);
  EXPECT_EQ(Float(worker.session.get(), read), 3);
}

TEST_F(SessionManagerTest, ACollectionOfTablesThatNamesNoOperationIsRefused) {
  Model model;
  model.root.AddToNodeCollection("table_initializer", "nobody");
  SessionManager manager(model.root, Options(model));
  EXPECT_STATUS(manager.status(), StatusCode::kInvalidArgument,
                "SessionManager: collection 'table_initializer' must name operations of the graph, "
                "got 'nobody'");
  EXPECT_EQ(manager.PrepareSession(kSharedTarget).status(), manager.status());
}

TEST_F(SessionManagerTest, AReadyOperationOfTheCallerDecides) {
  InitializeAll();
  for (const bool is_chief : {false, true}) {
    Model model;
    SessionManagerOptions options = Options(model);
    options.ready_op = PlaceholderWithDefault(model.root.WithName("waiting"),
                                              Const<std::string>(model.root, {"the queue"}), {-1});
    if (!is_chief) options.max_wait = absl::ZeroDuration();
    SessionManager manager(model.root, options);
    if (is_chief) {
      EXPECT_STATUS(manager.PrepareSession(kSharedTarget).status(), StatusCode::kFailedPrecondition,
                    "init operations did not make the model ready");
    } else {
      EXPECT_STATUS(manager.WaitForSession(kSharedTarget).status(), StatusCode::kDeadlineExceeded,
                    "SessionManager: session was not ready after 0: variables not initialized: the "
                    "queue");
    }
  }
}

// --- What goes wrong on the way ------------------------------------------------------------------

// As TensorFlow's ready operations: an "uninitialized" error means "not ready", however often it
// comes.
TEST_F(SessionManagerTest, AReadyOperationThatFailsForWhatIsNotInitialisedIsWaitedFor) {
  InitializeAll();
  Model model;
  const Output gate = VarHandleOp(model.root.WithName("gate"), DT_STRING, PartialShape({-1}),
                                  {.shared_name = "gate"});
  const Output none = Const(model.root.WithName("none"), TensorOf<std::string>({0}, {}));
  const Operation open = AssignVariableOp(model.root.WithName("open"), gate, none);
  LeapingClock clock;
  SessionManagerOptions options = Options(model);
  options.ready_op = ReadVariableOp(model.root.WithName("ready"), gate, DT_STRING);
  options.recovery_wait = absl::Seconds(1);
  options.clock = &clock;
  clock.after_wait = [&] {
    if (clock.waits != 20) return;
    ASSERT_OK(servers_.variables()->Extend(model.root));
    ASSERT_OK(servers_.variables()->Run({}, {}, {open.name()}).status());
  };
  SessionManager worker(model.root, options);
  ASSERT_OK(worker.WaitForSession(kSharedTarget).status());
  EXPECT_EQ(clock.waits, 20);
}

TEST_F(SessionManagerTest, ASessionThatIsLostOnTheWayIsOpenedAgain) {
  const Status losses[] = {
      absl::UnavailableError("ps is gone"),
      absl::AbortedError("ps restarted"),
      FailedPrecondition("Attempting to use uninitialized value w"),
  };
  for (const Status& loss : losses) {
    for (size_t at = 0; at < 5; ++at) {
      SCOPED_TRACE(absl::StrCat(loss.message(), " at step ", at));
      ASSERT_OK(servers_.Restart());
      std::deque<Status> steps(at);
      steps.push_back(loss);
      servers_.FailRuns(steps);
      Model model;
      SessionManager manager(model.root, Options(model));
      const int made = servers_.sessions_made();
      ASSERT_OK_AND_ASSIGN(const auto ready, manager.PrepareSession(kSharedTarget));
      EXPECT_EQ(Float(ready.session.get(), model.b.value), 2);
      EXPECT_EQ(servers_.sessions_made(), made + 2);
    }
  }
}

TEST_F(SessionManagerTest, AnInitialValueThatReadsAnUninitialisedVariableIsNoLoss) {
  Scope root;
  const Output nobody = VarHandleOp(root.WithName("nobody"), DT_FLOAT, PartialShape::Scalar(),
                                    {.shared_name = "nobody"});
  MakeVariable(root.WithName("v"), ReadVariableOp(root, nobody, DT_FLOAT));
  SessionManager manager(root, {.recovery_wait = absl::Milliseconds(1)});
  EXPECT_STATUS(manager.PrepareSession(kSharedTarget).status(), StatusCode::kFailedPrecondition,
                "uninitialized");
}

TEST_F(SessionManagerTest, AnInitOperationThatForgetsAVariableIsNamedAfterAFewTries) {
  Model model;
  SessionManagerOptions options = Options(model);
  options.init_op = model.w.initializer;
  int calls = 0;
  options.init_fn = [&calls](Session*) {
    ++calls;
    return absl::OkStatus();
  };
  SessionManager manager(model.root, options);
  EXPECT_STATUS(manager.PrepareSession(kSharedTarget).status(), StatusCode::kFailedPrecondition,
                "(init_op 'w/Assign', local_init_op ''): variables not initialized: b, "
                "global_step");
  EXPECT_EQ(calls, 3);
}

TEST_F(SessionManagerTest, ATryThatWaitsForTasksEndsAndIsRepeated) {
  servers_.FailCreations({absl::DeadlineExceededError("waits for /job:ps/task:0"),
                          absl::DeadlineExceededError("waits for /job:ps/task:0")});
  Model model;
  SessionManager manager(model.root, Options(model));
  EXPECT_OK(manager.PrepareSession(kSharedTarget).status());

  FakeClock clock;
  SessionManagerOptions options = Options(model);
  options.clock = &clock;
  options.max_wait = absl::ZeroDuration();
  servers_.FailCreations({absl::DeadlineExceededError("waits for /job:ps/task:0")});
  Model other;
  options.saver = other.saver.get();
  options.global_step = other.step;
  SessionManager short_of_time(other.root, options);
  const Status given_up = short_of_time.PrepareSession(kSharedTarget).status();
  EXPECT_STATUS(given_up, StatusCode::kDeadlineExceeded,
                "session was not ready after 0: waits for /job:ps/task:0");
  // The missing task may be there the next time.
  EXPECT_EQ(ExitCode(given_up), kExitRetryable);
  servers_.FailCreations({absl::DeadlineExceededError("waits for /job:ps/task:0")});
  std::vector<std::string> not_ready;
  EXPECT_EQ(ExitCode(short_of_time.RecoverSession(kSharedTarget, &not_ready).status()),
            kExitRetryable);
}

// A wrong CA, a wrong token, TLS where there is none, a master of another version of the wire.
TEST_F(SessionManagerTest, ATaskThatRefusesUsIsNotWaitedFor) {
  for (const Status& refused :
       {AsRefusal(absl::UnavailableError("From /job:ps/replica:0/task:0: it speaks no TLS")),
        absl::UnauthenticatedError("a token must be shown, got none"),
        FailedPrecondition("this task speaks version 1 of the wire, got a caller of 2")}) {
    for (const bool is_chief : {true, false}) {
      SCOPED_TRACE(refused);
      servers_.FailCreations({refused});
      Model model;
      SessionManager manager(model.root, Options(model));
      const Status heard = is_chief ? manager.PrepareSession(kSharedTarget).status()
                                    : manager.WaitForSession(kSharedTarget).status();
      EXPECT_EQ(heard.message(), refused.message());
      EXPECT_EQ(ExitCode(heard), kExitError);
      EXPECT_FALSE(IsSessionLost(heard));
    }
  }
}

// --- Waiting -------------------------------------------------------------------------------------

TEST_F(SessionManagerTest, AWaitingTaskLooksSoonAtFirst) {
  Model model;
  FakeClock clock;
  SessionManagerOptions options = Options(model);
  options.clock = &clock;
  options.recovery_wait = absl::Seconds(1);
  SessionManager manager(model.root, options);
  StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
  std::thread thread([&] { ready = manager.WaitForSession(kSharedTarget); });
  clock.AwaitWaiters(1);
  InitializeAll();
  clock.Advance(absl::Milliseconds(10));
  thread.join();
  EXPECT_OK(ready.status());
}

// The chief initialises after `late`, just after a look of the worker. The worker then joins within
// an eighth of that time, and within recovery_wait.
TEST_F(SessionManagerTest, TheLongerAWorkerHasWaitedTheLaterItMayJoin) {
  const struct {
    absl::Duration late, at_most;
    int looks;
  } kCases[] = {{absl::Milliseconds(300), absl::Milliseconds(45), 24},
                {absl::Seconds(2), absl::Milliseconds(290), 40},
                {absl::Minutes(5), absl::Seconds(1), 350}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(absl::FormatDuration(c.late));
    ASSERT_OK(servers_.Restart());
    Model model;
    LeapingClock clock;
    const absl::Time begin = clock.Now();
    absl::Time initialized = absl::InfiniteFuture(), last = begin;
    clock.after_wait = [&] {
      if (initialized == absl::InfiniteFuture() && clock.Now() - begin >= c.late) {
        // As if it came just after the previous look.
        initialized = last;
        InitializeAll();
      }
      last = clock.Now();
    };
    SessionManagerOptions options = Options(model);
    options.clock = &clock;
    options.recovery_wait = absl::Seconds(1);
    options.max_wait = absl::Hours(1);
    SessionManager manager(model.root, options);
    ASSERT_OK(manager.WaitForSession(kSharedTarget).status());
    EXPECT_LE(clock.Now() - initialized, c.at_most);
    // A wait of minutes takes few looks.
    EXPECT_LE(clock.waits, c.looks);
  }
}

TEST_F(SessionManagerTest, AWaitingTaskSaysEveryTenSecondsWhatItWaitsForAndSinceWhen) {
  for (const bool there_was_a_chief : {false, true}) {
    SCOPED_TRACE(there_was_a_chief);
    ASSERT_OK(servers_.Restart());
    ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_));
    if (there_was_a_chief) {
      ASSERT_OK(WriteRunFile(
          fs_, dir_, {.id = "x", .name = "run", .chief = "master-0 on host7", .token = "t"}));
    }
    Model model;
    LeapingClock clock;
    SessionManagerOptions options = Options(model);
    options.clock = &clock;
    options.recovery_wait = absl::Seconds(1);
    options.max_wait = absl::Seconds(35);
    SessionManager manager(model.root, options);
    ::testing::internal::CaptureStderr();
    const Status given_up = manager.WaitForSession(kSharedTarget).status();
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(given_up.code(), StatusCode::kDeadlineExceeded) << given_up;
    const std::string since =
        absl::FormatTime("%H:%M:%S", absl::UnixEpoch(), absl::LocalTimeZone());
    const std::string line =
        absl::StrCat("waiting for the model to be ready since ", since, ", of a chief: ",
                     there_was_a_chief ? "the last one was master-0 on host7"
                                       : absl::StrCat("none has taken '", dir_, "' over yet"),
                     "; variables not initialized: w, b, global_step");
    EXPECT_EQ(std::vector<std::string>(absl::StrSplit(log, line)).size(), 4u) << log;
  }
}

TEST_F(SessionManagerTest, AStopEndsTheWaitAndTheNext) {
  Model model;
  FakeClock clock;
  SessionManagerOptions options = Options(model);
  options.clock = &clock;
  SessionManager manager(model.root, options);
  StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
  std::thread thread([&] { ready = manager.WaitForSession(kSharedTarget); });
  clock.AwaitWaiters(1);
  manager.Stop(absl::CancelledError("enough"));
  thread.join();
  EXPECT_EQ(ready.status(), absl::CancelledError("enough"));
  EXPECT_EQ(servers_.sessions_closed(), servers_.sessions_made());
  EXPECT_EQ(manager.PrepareSession(kSharedTarget).status(), absl::CancelledError("enough"));
}

TEST_F(SessionManagerTest, AnEndThatTheServersOrTheFilesTellOfEndsTheWait) {
  Model model;
  SessionManagerOptions options = Options(model);
  options.session.run = {.name = "run"};
  options.last_step = 30;
  SessionManager manager(model.root, options);
  const RunEnd end = {.global_step = 30, .reason = "reached step 30 of 30"};
  servers_.FailCreations({RunEndedError("Session", {.name = "run", .id = "x"}, end)});
  const Status told = manager.WaitForSession(kSharedTarget).status();
  EXPECT_EQ(RunEndOf(told), end) << told;
  EXPECT_EQ(ExitCode(told), kExitOk);

  // Without a known goal, an end that comes during the wait is believed.
  FakeClock clock;
  options.clock = &clock;
  options.last_step = 0;
  Model waiting_model;
  options.saver = waiting_model.saver.get();
  options.global_step = waiting_model.step;
  SessionManager waiting(waiting_model.root, options);
  StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
  std::thread thread([&] { ready = waiting.WaitForSession(kSharedTarget); });
  clock.AwaitWaiters(1);
  WriteEnd(30, 30);
  clock.Advance(absl::Seconds(1));
  thread.join();
  ASSERT_TRUE(RunEndOf(ready.status()).has_value()) << ready.status();
  EXPECT_EQ(RunEndOf(ready.status())->reason, "reached it");
  EXPECT_TRUE(absl::StrContains(ready.status().message(),
                                "run 'run' must be under way, got one "
                                "that has ended at step 30: reached it"))
      << ready.status();
  EXPECT_EQ(ExitCode(ready.status()), kExitOk);
}

TEST_F(SessionManagerTest, AnEndThatMayBeOldIsBelievedWhenItHasStayed) {
  const struct {
    int64_t last_step, step;
    bool at_once;
  } kCases[] = {
      {30, 30, true},   //
      {60, 61, true},   //
      {30, 12, false},  // the data ended
      {60, 30, false},  // started again with more steps, or the chief stopped early
      {60, -1, false},  //
      {0, 30, false},   // the end was there before the wait
  };
  for (const bool by_files : {true, false}) {
    for (const auto& c : kCases) {
      SCOPED_TRACE(absl::StrCat(by_files ? "files " : "servers ", c.last_step, " ", c.step));
      fs_->RecursivelyDelete(dir_).IgnoreError();
      if (by_files) {
        WriteEnd(c.step, 30);
      } else {
        const RunEnd end = {.global_step = c.step, .reason = "reached it"};
        servers_.FailCreations(std::deque<Status>(9, RunEndedError("Session", {}, end)));
      }
      Model model;
      FakeClock clock;
      SessionManagerOptions options = Options(model);
      options.last_step = c.last_step;
      options.clock = &clock;
      SessionManager manager(model.root, options);
      StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
      std::thread thread([&] { ready = manager.WaitForSession(kSharedTarget); });
      if (!c.at_once) {
        clock.AwaitWaiters(1);
        clock.Advance(absl::Seconds(20));
      }
      thread.join();
      ASSERT_TRUE(RunEndOf(ready.status()).has_value()) << ready.status();
      EXPECT_EQ(RunEndOf(ready.status())->global_step, c.step);
      EXPECT_EQ(ExitCode(ready.status()), kExitOk);
      servers_.FailCreations({});
    }
  }
}

TEST_F(SessionManagerTest, AChiefThatComesWithinTheGraceMakesTheEndVoid) {
  for (const bool by_files : {true, false}) {
    for (const int64_t last_step : {0, 60}) {
      SCOPED_TRACE(absl::StrCat(by_files ? "files " : "servers ", last_step));
      fs_->RecursivelyDelete(dir_).IgnoreError();
      ASSERT_OK(servers_.Restart());
      if (by_files) {
        WriteEnd(30, 30);
      } else {
        const RunEnd end = {.global_step = 30, .reason = "reached it"};
        servers_.FailCreations({RunEndedError("Session", {}, end)});
      }
      Model model;
      FakeClock clock;
      SessionManagerOptions options = Options(model);
      options.last_step = last_step;
      options.clock = &clock;
      options.max_wait = absl::Hours(24);
      const int made = servers_.sessions_made();
      SessionManager manager(model.root, options);
      StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
      std::atomic<bool> left = false;  // sequentially consistent: `ready` is written
      std::thread thread([&] {
        ready = manager.WaitForSession(kSharedTarget);
        left = true;
      });
      clock.AwaitWaiters(1);
      clock.Advance(absl::Seconds(19));
      if (by_files) {
        EXPECT_OK(WriteRunFile(fs_, dir_, {.id = "x", .name = "run", .token = "newer"}));
      }
      while (servers_.sessions_made() == made) std::this_thread::yield();
      InitializeAll();
      while (!left) {
        clock.Advance(absl::Milliseconds(1));
        std::this_thread::yield();
      }
      thread.join();
      EXPECT_OK(ready.status());
    }
  }
}

// Between two looks another chief takes the directory over and ends.
TEST_F(SessionManagerTest, AnEndOfAnotherOwnerIsNewsAlsoWhereAnEndStoodBefore) {
  WriteEnd(30, 30);
  Model model;
  FakeClock clock;
  SessionManagerOptions options = Options(model);
  options.clock = &clock;
  SessionManager manager(model.root, options);
  StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
  std::thread thread([&] { ready = manager.WaitForSession(kSharedTarget); });
  clock.AwaitWaiters(1);
  EXPECT_OK(WriteRunFile(fs_, dir_, {.id = "x", .name = "run", .token = "newer"}));
  EXPECT_OK(WriteRunEnd(fs_, dir_, {.id = "x", .token = "newer", .global_step = 60}));
  clock.Advance(absl::Seconds(1));  // of the 20 s of grace
  thread.join();
  ASSERT_TRUE(RunEndOf(ready.status()).has_value()) << ready.status();
  EXPECT_EQ(RunEndOf(ready.status())->global_step, 60);
}

TEST_F(SessionManagerTest, AnEndThatASessionTellsOfGoesByTheSameRule) {
  InitializeAll();
  const RunEnd end = {.global_step = 30, .reason = "reached step 30 of 30"};
  for (const int64_t last_step : {0, 30, 60}) {
    SCOPED_TRACE(last_step);
    servers_.FailRuns({RunEndedError("Session", {}, end)});
    Model model;
    FakeClock clock;
    SessionManagerOptions options = Options(model);
    options.last_step = last_step;
    options.clock = &clock;
    SessionManager manager(model.root, options);
    StatusOr<SessionManager::Ready> ready = absl::UnknownError("not yet");
    std::thread thread([&] { ready = manager.WaitForSession(kSharedTarget); });
    if (last_step == 60) {
      clock.AwaitWaiters(1);
      clock.Advance(absl::Seconds(1));
    }
    thread.join();
    EXPECT_EQ(RunEndOf(ready.status()).has_value(), last_step != 60) << ready.status();
    EXPECT_EQ(ready.ok(), last_step == 60) << ready.status();
  }
}

TEST_F(SessionManagerTest, TheEndOfAnotherRunIsIgnored) {
  WriteEnd(30, 30);  // of "run"
  Model model;
  FakeClock clock;
  SessionManagerOptions options = Options(model);
  options.session.run = {.name = "a copy"};
  options.last_step = 30;
  options.clock = &clock;
  options.max_wait = absl::ZeroDuration();
  SessionManager manager(model.root, options);
  EXPECT_STATUS(manager.WaitForSession(kSharedTarget).status(), StatusCode::kDeadlineExceeded,
                "session was not ready after 0");
}

TEST(IsSessionLostTest, OnlyWhatANewSessionMayMend) {
  EXPECT_TRUE(IsSessionLost(absl::UnavailableError("")));
  EXPECT_TRUE(IsSessionLost(absl::AbortedError("")));
  EXPECT_TRUE(IsSessionLost(FailedPrecondition("Attempting to use uninitialized value w")));
  EXPECT_TRUE(IsSessionLost(absl::NotFoundError(
      "ResourceApplyAdam 'update_w': Resource localhost/w/Var does not exist.")));
  EXPECT_FALSE(IsSessionLost(absl::NotFoundError("Resource localhost/q/Queue does not exist.")));
  EXPECT_FALSE(IsSessionLost(absl::OkStatus()));
  EXPECT_FALSE(IsSessionLost(FailedPrecondition("queue is closed")));
  EXPECT_FALSE(IsSessionLost(absl::InvalidArgumentError("uninitialized")));
  EXPECT_FALSE(IsSessionLost(absl::CancelledError("")));
  EXPECT_FALSE(IsSessionLost(RunEndedError("uninitialized", {}, {})));
  EXPECT_FALSE(IsSessionLost(FencedError("uninitialized", {}, "x")));
}

}  // namespace
}  // namespace millrace

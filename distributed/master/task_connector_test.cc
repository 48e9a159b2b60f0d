// SPDX-License-Identifier: Apache-2.0
//
// Waiting for tasks on a clock that stands still. What clients see of it:
// master_test.cc.
#include "distributed/master/task_connector.h"

#include <thread>

#include "core/cancellation.h"
#include "core/notification.h"
#include "core/testing/tensor_testing.h"
#include "distributed/testing/unreachable_task.h"
#include "gtest/gtest.h"

// covers: clusters: a session that is being opened waits for a task of another release as for one
//   that is not there yet; the log names it once, the error at the deadline says why

namespace millrace {
namespace {

constexpr char kPs0[] = "/job:ps/replica:0/task:0";
constexpr char kPs1[] = "/job:ps/replica:0/task:1";

// Refuses the first `refusals` questions, with `answer` when it is given, then says who it is.
class LateTask : public UnreachableTask {
 public:
  LateTask(std::string task, int refusals, Status answer = absl::OkStatus())
      : UnreachableTask(std::move(task)), answer_(std::move(answer)), left_(refusals) {}
  void GetStatus(const CallOptions&, std::vector<tensorflow::DeviceAttributes>* devices,
                 Done done) override {
    asked.fetch_add(1);
    if (left_.fetch_sub(1) > 0) return done(answer_.ok() ? Gone() : answer_);
    devices->emplace_back().set_name(task() + "/device:CPU:0");
    done(absl::OkStatus());
  }
  void CreateWorkerSession(const CallOptions&, const SessionOrder& order, Done done) override {
    if (!refuses_sessions) session = order.handle;
    done(refuses_sessions ? Gone() : absl::OkStatus());
  }
  void DeleteWorkerSession(const CallOptions&, const std::string& handle, Done done) override {
    if (session == handle) session = "";
    done(absl::OkStatus());
  }
  std::atomic<int> asked{0};
  std::string session;
  bool refuses_sessions = false;

 private:
  const Status answer_;
  std::atomic<int> left_;
};

// AwaitTasks in a thread of its own.
class Waiting {
 public:
  Waiting(std::vector<std::shared_ptr<WorkerControl>> tasks, absl::Duration timeout,
          CancellationManager* caller = nullptr)
      : thread_([this, tasks, timeout, caller] {
          AwaitOptions options;
          options.own_task = "/job:worker/replica:0/task:0";
          options.timeout = timeout;
          options.clock = &clock;
          options.ends = {.shutdown = &shutdown, .caller = caller};
          result = AwaitTasks(tasks, options);
        }) {}
  ~Waiting() { Join(); }
  // Until `task` has been asked so often and the wait goes on.
  void AwaitAsked(const LateTask& task, int times) {
    while (task.asked.load() < times) std::this_thread::yield();
    clock.AwaitWaiters(1);
  }
  void Join() {
    if (thread_.joinable()) thread_.join();
  }

  FakeClock clock;
  CancellationManager shutdown;
  StatusOr<std::vector<ReachedTask>> result = absl::UnknownError("not yet");

 private:
  std::thread thread_;
};

TEST(TaskConnectorTest, ATaskThatRefusesIsAskedAgainAfterAPauseAndKeepsItsPlace) {
  auto late = std::make_shared<LateTask>(kPs0, 2);
  auto there = std::make_shared<LateTask>(kPs1, 0);
  Waiting waiting({late, there}, absl::Seconds(60));
  for (int asked = 1; asked <= 2; ++asked) {
    waiting.AwaitAsked(*late, asked);
    waiting.clock.Advance(absl::Milliseconds(100));
  }
  waiting.Join();
  EXPECT_EQ(late->asked.load(), 3);
  EXPECT_EQ(there->asked.load(), 1);
  ASSERT_OK(waiting.result);
  ASSERT_EQ(waiting.result->size(), 2u);
  EXPECT_EQ(waiting.result->front().control, late);
  ASSERT_EQ(waiting.result->back().devices.size(), 1u);
  EXPECT_EQ(waiting.result->back().devices[0].name(), std::string(kPs1) + "/device:CPU:0");
}

TEST(TaskConnectorTest, TheLogNamesOnlyThoseWhoAreMissingEveryTenSeconds) {
  ::testing::internal::CaptureStderr();
  {
    auto missing = std::make_shared<LateTask>(kPs0, 1000);
    Waiting waiting({missing, std::make_shared<LateTask>(kPs1, 0)}, absl::Seconds(25));
    int asked = 0;
    for (const int seconds : {9, 1, 10, 5}) {
      waiting.AwaitAsked(*missing, ++asked);
      waiting.clock.Advance(absl::Seconds(seconds));
    }
    waiting.Join();
    EXPECT_STATUS(waiting.result, absl::StatusCode::kDeadlineExceeded,
                  "Session on /job:worker/replica:0/task:0: all its tasks must answer within 25s, "
                  "got none from /job:ps/replica:0/task:0 at ps.example:2222 "
                  "(/job:ps/replica:0/task:0 is gone)");
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  const std::string line = "still waiting for response from worker: ";
  size_t lines = 0;
  for (size_t at = log.find(line); at != std::string::npos; at = log.find(line, at + 1)) ++lines;
  EXPECT_EQ(lines, 2u) << log;
  EXPECT_EQ(log.find(kPs1), std::string::npos) << log;
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The ps of the last release, which is stopped soon.
TEST(TaskConnectorTest, ATaskOfAnotherReleaseIsWaitedForAndTheLogNamesItOnce) {
  const std::string refusal =
      "GetStatus: this task speaks version 1 of Millrace's wire and its callers must, got one of "
      "version 2 at ipv4:127.0.0.1:4; run one version of Millrace on all tasks";
  for (const bool is_replaced : {true, false}) {
    auto old = std::make_shared<LateTask>(kPs1, is_replaced ? 2 : 1000,
                                          absl::FailedPreconditionError(refusal));
    ::testing::internal::CaptureStderr();
    {
      // The error is what the one of another release said, also when another one is missing.
      auto other = std::make_shared<LateTask>(kPs0, is_replaced ? 0 : 1000);
      Waiting waiting({other, old}, absl::Seconds(60));
      for (int asked = 1; asked <= 2; ++asked) {
        waiting.AwaitAsked(*old, asked);
        waiting.clock.Advance(absl::Milliseconds(100));
      }
      if (!is_replaced) {
        waiting.AwaitAsked(*old, 3);
        waiting.clock.Advance(absl::Seconds(60));
      }
      waiting.Join();
      if (is_replaced) {
        ASSERT_OK(waiting.result);
        EXPECT_EQ(waiting.result->size(), 2u);
        EXPECT_EQ(old->asked.load(), 3);
      } else {
        EXPECT_STATUS(waiting.result, absl::StatusCode::kDeadlineExceeded, "(" + refusal + ")");
      }
    }
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(
        CountOf(log, std::string(kPs1) +
                         " at ps.example:2222, which is of another release, or another program: " +
                         refusal),
        1u)
        << log;
  }
}

// Each task of ours has the method, so this is another program: a proxy, perhaps, whose task comes.
TEST(TaskConnectorTest, AnotherProgramIsWaitedForAndNamedInTheEnd) {
  for (const bool comes : {true, false}) {
    auto other = std::make_shared<LateTask>(kPs0, comes ? 1 : 1000,
                                            absl::UnimplementedError("no such method"));
    Waiting waiting({other}, absl::Seconds(60));
    waiting.AwaitAsked(*other, 1);
    waiting.clock.Advance(absl::Milliseconds(100));
    if (!comes) {
      waiting.AwaitAsked(*other, 2);
      waiting.clock.Advance(absl::Seconds(60));
    }
    waiting.Join();
    if (comes) {
      ASSERT_OK(waiting.result);
    } else {
      EXPECT_STATUS(waiting.result, absl::StatusCode::kDeadlineExceeded,
                    "got none from /job:ps/replica:0/task:0 at ps.example:2222 (GetStatus: the "
                    "task must be one of Millrace, got another program: no such method)");
    }
  }
}

// What else a task refuses stays: nobody would come.
TEST(TaskConnectorTest, ATaskThatWillNotLetUsInEndsTheWait) {
  auto refuses =
      std::make_shared<LateTask>(kPs0, 1000, absl::FailedPreconditionError("it is not for us"));
  Waiting waiting({refuses}, absl::Hours(2));
  waiting.Join();
  EXPECT_STATUS(waiting.result, absl::StatusCode::kFailedPrecondition,
                "From /job:ps/replica:0/task:0:\nit is not for us");
}

TEST(TaskConnectorTest, AClientThatHasGoneEndsTheWait) {
  CancellationManager caller;
  Waiting waiting({std::make_shared<AbsentTask>(kPs0)}, absl::Hours(2), &caller);
  waiting.clock.AwaitWaiters(1);
  caller.StartCancel();
  waiting.Join();
  EXPECT_STATUS(waiting.result, absl::StatusCode::kCancelled, "its client has gone");
  Waiting late({std::make_shared<AbsentTask>(kPs0)}, absl::Hours(2), &caller);
  late.Join();
  EXPECT_STATUS(late.result, absl::StatusCode::kCancelled, "its client has gone");
}

TEST(TaskConnectorTest, TheEndOfTheServerEndsTheWait) {
  Waiting waiting({std::make_shared<AbsentTask>(kPs0)}, absl::Hours(2));
  waiting.clock.AwaitWaiters(1);
  waiting.shutdown.StartCancel();
  waiting.Join();
  EXPECT_STATUS(waiting.result, absl::StatusCode::kAborted, "the server was stopped");
}

AwaitOptions Within(absl::Duration timeout, Clock* clock) {
  AwaitOptions options;
  options.own_task = "/job:worker/replica:0/task:0";
  options.timeout = timeout;
  options.clock = clock;
  return options;
}

TEST(TaskConnectorTest, ASessionIsOpenOnAllTasksOrOnNone) {
  auto first = std::make_shared<LateTask>(kPs0, 0);
  auto second = std::make_shared<LateTask>(kPs1, 0);
  const std::vector<ReachedTask> tasks = {{first, {}}, {second, {}}};
  const SessionOrder order = {.handle = "abc"};
  FakeClock clock;
  LeaseKeeper keeper(&clock, absl::Seconds(10));
  const AwaitOptions options = Within(absl::Seconds(60), &clock);
  ASSERT_OK(OpenWorkerSessions(tasks, order, &keeper, options));
  EXPECT_EQ(first->session, "abc");
  EXPECT_EQ(second->session, "abc");
  CloseWorkerSessions({{first, "abc"}, {second, "abc"}}, &keeper, &clock);
  EXPECT_EQ(first->session, "");
  second->refuses_sessions = true;
  EXPECT_STATUS(OpenWorkerSessions(tasks, order, &keeper, options), absl::StatusCode::kUnavailable,
                "From /job:ps/replica:0/task:1:\n/job:ps/replica:0/task:1 is gone");
  EXPECT_EQ(first->session, "");
}

// Opens no session before it is told to.
class SlowTask : public UnreachableTask {
 public:
  using UnreachableTask::UnreachableTask;
  void CreateWorkerSession(const CallOptions& options, const SessionOrder&, Done done) override {
    deadline = options.deadline;
    auto shared = std::make_shared<Done>(std::move(done));
    CancellationManager::Token token;
    if (!options.cancellation->Register(
            &token, [shared] { (*shared)(absl::CancelledError("cancelled")); })) {
      (*shared)(absl::CancelledError("cancelled"));
    }
    asked.Notify();
  }
  void DeleteWorkerSession(const CallOptions&, const std::string& handle, Done done) override {
    deleted.push_back(handle);
    done(absl::OkStatus());
  }
  Notification asked;
  absl::Time deadline = absl::InfiniteFuture();
  std::vector<std::string> deleted;
};

TEST(TaskConnectorTest, WhateverEndsTheWaitEndsTheCallsThatOpenASessionAndTheirHandleIsEnded) {
  const std::vector<std::pair<CancellationManager * WaitEnds::*, absl::StatusCode>> cases = {
      {&WaitEnds::shutdown, absl::StatusCode::kAborted},
      {&WaitEnds::caller, absl::StatusCode::kCancelled},
      {&WaitEnds::closing, absl::StatusCode::kCancelled}};
  for (const auto& [end, code] : cases) {
    const auto slow = std::make_shared<SlowTask>(kPs0);
    FakeClock clock;
    LeaseKeeper keeper(&clock, absl::Seconds(10));
    CancellationManager manager;
    AwaitOptions options = Within(absl::Seconds(7), &clock);
    options.ends.*end = &manager;
    const std::vector<ReachedTask> tasks = {{slow, {}}};
    Status opened;
    std::thread opening(
        [&] { opened = OpenWorkerSessions(tasks, {.handle = "abc"}, &keeper, options); });
    slow->asked.Wait();
    // No longer than the session may wait, by the clock of calls.
    EXPECT_LE(slow->deadline, absl::Now() + absl::Seconds(7));
    manager.StartCancel();
    opening.join();
    EXPECT_EQ(opened.code(), code) << opened;
    EXPECT_EQ(slow->deleted, std::vector<std::string>{"abc"});
  }
}

}  // namespace
}  // namespace millrace

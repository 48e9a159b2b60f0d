// SPDX-License-Identifier: Apache-2.0
#include "net/call_threads.h"

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/before_wait.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "gtest/gtest.h"

// covers: clusters: slow calls block no other calls

namespace millrace {
namespace {

// The events of a network, as functions that a poller calls.
class Events {
 public:
  void Add(std::function<void()> event) {
    MutexLock lock(&mu_);
    events_.push_back(std::move(event));
    changed_.SignalAll();
  }
  void End() {
    MutexLock lock(&mu_);
    over_ = true;
    changed_.SignalAll();
  }
  bool PollOne() {
    std::function<void()> event;
    {
      MutexLock lock(&mu_);
      ++polling_;
      changed_.SignalAll();
      while (events_.empty() && !over_) changed_.Wait(&mu_);
      --polling_;
      if (events_.empty()) return false;
      event = std::move(events_.front());
      events_.pop_front();
    }
    event();
    return true;
  }
  void AwaitPollers(int n) {
    MutexLock lock(&mu_);
    while (polling_ < n) changed_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int polling_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> events_ ABSL_GUARDED_BY(mu_);
};

class Call : public LongCall {
 public:
  explicit Call(std::string name, std::function<void()> work)
      : name_(std::move(name)), work_(std::move(work)) {}
  void RunCall() override { work_(); }
  const std::string& call_name() const override { return name_; }

 private:
  const std::string name_;
  const std::function<void()> work_;
};

class CallThreadsTest : public ::testing::Test {
 protected:
  ~CallThreadsTest() override {
    events_.End();
    if (threads_ != nullptr) threads_->Shutdown(absl::InfiniteFuture());
  }
  void Start(int max_normal = 64, int num_pollers = 4) {
    CallThreads::Options options;
    options.owner = "Test";
    options.num_pollers = num_pollers;
    options.max_normal = max_normal;
    options.max_urgent = 1;
    options.idle = absl::Seconds(10);
    options.clock = &clock_;
    options.poll_one = [this] { return events_.PollOne(); };
    threads_ = *CallThreads::Start(std::move(options));
  }
  void Run(const std::string& name, std::function<void()> work,
           CallThreads::Urgency urgency = CallThreads::Urgency::kNormal) {
    events_.Add([this, call = std::make_shared<Call>(name, std::move(work)), urgency] {
      threads_->Run(call, urgency);
    });
  }
  // A light call: the thread that polls answers it.
  void Ping() {
    auto answered = std::make_shared<Notification>();
    events_.Add([answered] { answered->Notify(); });
    answered->Wait();
  }

  Events events_;
  FakeClock clock_;
  std::unique_ptr<CallThreads> threads_;
};

TEST_F(CallThreadsTest, LightCallsAreAnsweredWhateverTheLongOnesWaitFor) {
  Start();
  constexpr int kCalls = 30;
  BlockingCounter running(kCalls), ended(kCalls);
  Notification go;
  for (int i = 0; i < kCalls; ++i) {
    Run("slow", [&] {
      running.Decrement();
      go.Wait();
      ended.Decrement();
    });
  }
  running.Wait();
  events_.AwaitPollers(2);
  for (int i = 0; i < 10; ++i) Ping();
  go.Notify();
  ended.Wait();
}

TEST_F(CallThreadsTest, AboveTheBoundCallsWaitInOrderAndLightUrgentOnesAndVisitsDoNot) {
  Start(/*max_normal=*/2);
  BlockingCounter running(2), ended(2 + 5 + 10);
  Notification go;
  for (int i = 0; i < 2; ++i) {
    Run("slow", [&] {
      running.Decrement();
      go.Wait();
      ended.Decrement();
    });
  }
  running.Wait();
  Mutex mu;
  std::vector<int> order;
  for (int i = 0; i < 5; ++i) {
    Run("later", [&, i] {
      {
        MutexLock lock(&mu);
        order.push_back(i);
      }
      ended.Decrement();
    });
  }
  Ping();
  Notification urgent;
  Run(
      "urgent", [&] { urgent.Notify(); }, CallThreads::Urgency::kUrgent);
  urgent.Wait();
  // As many as come.
  BlockingCounter visits(10);
  Notification over;
  for (int i = 0; i < 10; ++i) {
    Run(
        "visit",
        [&] {
          visits.Decrement();
          BeforeWait::Run();
          over.Wait();
          ended.Decrement();
        },
        CallThreads::Urgency::kVisit);
  }
  visits.Wait();
  over.Notify();
  while (threads_->num_waiting() < 5) Ping();
  {
    MutexLock lock(&mu);
    EXPECT_TRUE(order.empty());
  }
  go.Notify();
  ended.Wait();
  MutexLock lock(&mu);
  EXPECT_EQ(order.size(), 5u);
}

TEST_F(CallThreadsTest, AThreadThatRunsACallAloneTakesNoOtherOne) {
  Start();
  for (int i = 0; i < 100; ++i) {
    events_.AwaitPollers(4);
    Notification ran;
    Run("step", [&] { ran.Notify(); });
    ran.Wait();
  }
  EXPECT_EQ(threads_->num_threads(), 4);
}

TEST_F(CallThreadsTest, ThreadsThatAreNotNeededAnyMoreParkAndEnd) {
  Start();
  constexpr int kCalls = 10;
  for (int round = 0; round < 2; ++round) {
    BlockingCounter running(kCalls);
    Notification go;
    for (int i = 0; i < kCalls; ++i) {
      Run("slow", [&] {
        running.Decrement();
        go.Wait();
      });
    }
    running.Wait();
    go.Notify();
    // Two threads polled all the time; of the others all but two are too many.
    clock_.AwaitWaiters(kCalls - 2);
    events_.AwaitPollers(4);
    EXPECT_EQ(threads_->num_threads(), kCalls + 2);
  }
  clock_.Advance(absl::Seconds(11));
  while (threads_->num_threads() > 4) Ping();
  EXPECT_EQ(threads_->num_threads(), 4);
}

TEST_F(CallThreadsTest, ShortVisitsWakeNoOtherThread) {
  Start(/*max_normal=*/64, /*num_pollers=*/1);
  std::set<std::thread::id> ran_on;
  for (int i = 0; i < 100; ++i) {
    Notification ran;
    Run(
        "visit",
        [&] {
          ran_on.insert(std::this_thread::get_id());
          ran.Notify();
        },
        CallThreads::Urgency::kVisit);
    ran.Wait();
  }
  Ping();
  EXPECT_EQ(ran_on.size(), 1u);
  // That one and the watch.
  EXPECT_EQ(threads_->num_threads(), 2);
}

TEST_F(CallThreadsTest, AVisitThatIsAboutToWaitGivesUpItsPlace) {
  Start(/*max_normal=*/64, /*num_pollers=*/1);
  for (int round = 0; round < 20; ++round) {
    Notification waits, go, ended;
    Run(
        "visit",
        [&] {
          BeforeWait::Run();
          BeforeWait::Run();
          waits.Notify();
          go.Wait();
          ended.Notify();
        },
        CallThreads::Urgency::kVisit);
    waits.Wait();
    for (int i = 0; i < 3; ++i) Ping();
    go.Notify();
    ended.Wait();
  }
  events_.AwaitPollers(1);
  // Those of earlier rounds are used again, when they are back in time.
  EXPECT_LT(threads_->num_threads(), 20);
}

// The clock stands still until the test says otherwise, so nothing but the watch can help.
TEST_F(CallThreadsTest, AVisitThatLastsLosesItsPlaceToTheWatch) {
  Start(/*max_normal=*/64, /*num_pollers=*/1);
  for (int round = 0; round < 5; ++round) {
    Notification begun, go, ended;
    Run(
        "visit",
        [&] {
          begun.Notify();
          go.Wait();
          ended.Notify();
        },
        CallThreads::Urgency::kVisit);
    begun.Wait();
    auto answered = std::make_shared<Notification>();
    events_.Add([answered] { answered->Notify(); });
    // Two looks of the watch, more when it had begun before.
    while (!answered->HasBeenNotified()) {
      clock_.Advance(absl::Milliseconds(1));
      std::this_thread::yield();
    }
    go.Notify();
    ended.Wait();
  }
}

TEST_F(CallThreadsTest, AVisitThatLastsDoesNotHoldUpTheEnd) {
  Start(/*max_normal=*/64, /*num_pollers=*/1);
  auto begun = std::make_shared<Notification>();
  auto go = std::make_shared<Notification>(), gone = std::make_shared<Notification>();
  Run(
      "a visit",
      [=] {
        begun->Notify();
        go->Wait();
        gone->Notify();
      },
      CallThreads::Urgency::kVisit);
  begun->Wait();
  events_.End();
  std::vector<std::string> left;
  std::thread stops([&] { left = threads_->Shutdown(clock_.Now()); });
  while (threads_->num_threads() > 1) {
    clock_.Advance(absl::Milliseconds(1));
    std::this_thread::yield();
  }
  stops.join();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(left[0], "a visit since ")) << left[0];
  threads_ = nullptr;
  go->Notify();
  gone->Wait();
}

TEST_F(CallThreadsTest, AStuckCallIsNamedAndLeftBehind) {
  Start();
  auto begun = std::make_shared<Notification>();
  auto go = std::make_shared<Notification>(), gone = std::make_shared<Notification>();
  Run("/service/Stuck", [=] {
    begun->Notify();
    go->Wait();
    gone->Notify();
  });
  begun->Wait();
  clock_.Advance(absl::Seconds(3));
  events_.End();
  const std::vector<std::string> left = threads_->Shutdown(clock_.Now());
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0], "/service/Stuck since 3s");
  threads_ = nullptr;
  go->Notify();
  gone->Wait();
}

}  // namespace
}  // namespace millrace

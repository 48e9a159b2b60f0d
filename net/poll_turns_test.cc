// SPDX-License-Identifier: Apache-2.0
#include "net/poll_turns.h"

#include <grpcpp/alarm.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/network_seat.h"
#include "core/notification.h"
#include "gtest/gtest.h"
#include "net/grpc_events.h"

// covers: clusters: a thread that waits for a message of a step reads the network itself

namespace millrace {
namespace {

// An event of a queue that calls a function, and goes.
class Event final : public QueueEvent {
 public:
  static void Add(grpc::CompletionQueue* queue, std::function<void()> handle) {
    auto* const event = new Event(std::move(handle));
    event->alarm_.Set(queue, std::chrono::system_clock::time_point(),
                      static_cast<QueueEvent*>(event));
  }
  void Proceed(bool) override {
    handle_();
    delete this;
  }

 private:
  explicit Event(std::function<void()> handle) : handle_(std::move(handle)) {}
  const std::function<void()> handle_;
  grpc::Alarm alarm_;
};

// A queue and its thread.
class Polled {
 public:
  explicit Polled(bool has_seat = false)
      : polled_(&queue_, has_seat), thread_([this] { Poll(); }) {}
  ~Polled() {
    polled_.Close();
    queue_.Shutdown();
    thread_.join();
  }
  grpc::CompletionQueue* queue() { return &queue_; }
  const PolledQueue& polled() const { return polled_; }
  std::thread::id thread() const { return thread_.get_id(); }
  // The thread that handles an event of this queue.
  std::thread::id Handler() {
    std::thread::id handler;
    Notification handled;
    Event::Add(&queue_, [&] {
      handler = std::this_thread::get_id();
      handled.Notify();
    });
    handled.Wait();
    return handler;
  }

 private:
  void Poll() {
    void* tag;
    bool ok;
    for (;;) {
      const auto next = polled_.Next(&tag, &ok, absl::InfiniteFuture());
      if (next == grpc::CompletionQueue::SHUTDOWN) return;
      if (next == grpc::CompletionQueue::GOT_EVENT) HandleEvent(tag, ok);
    }
  }

  grpc::CompletionQueue queue_;
  PolledQueue polled_;
  std::thread thread_;
};

// The process's seat: it stays, with its queue.
struct Seated {
  Polled at{/*has_seat=*/true};
  QueueSeat seat{at.polled()};
};
Seated& TheSeat() {
  static Seated* const seated = [] {
    auto* const made = new Seated;
    NetworkSeat::SetOfProcess(&made->seat, NetworkSeat::kNetwork);
    return made;
  }();
  return *seated;
}

// What a step waits for.
class Condition {
 public:
  void Set() {
    MutexLock lock(&mu_);
    is_set_ = true;
    seated_.Signal();
  }
  void Await() {
    const SeatWish wish;
    MutexLock lock(&mu_);
    while (!is_set_) seated_.Wait(&mu_, absl::InfiniteFuture());
  }

 private:
  Mutex mu_;
  SeatedCondVar seated_{absl::InfiniteDuration()};  // a lost wake-up hangs
  bool is_set_ ABSL_GUARDED_BY(mu_) = false;
};

// Waits that follow each other, each for a message, until this thread takes the messages.
void SitDown() {
  for (;;) {
    Condition came;
    std::atomic<bool> here{false};
    Event::Add(TheSeat().at.queue(), [&came, &here, self = std::this_thread::get_id()] {
      here = std::this_thread::get_id() == self;
      came.Set();
    });
    came.Await();
    if (here) return;
  }
}

TEST(PollTurnsTest, WithoutLinksNobodySits) {
  EXPECT_FALSE(TheSeat().seat.has_links());
  Condition came;
  std::thread::id handler;
  Event::Add(TheSeat().at.queue(), [&] {
    handler = std::this_thread::get_id();
    came.Set();
  });
  came.Await();
  EXPECT_EQ(handler, TheSeat().at.thread());
}

TEST(PollTurnsTest, AThreadThatWaitsAgainAndAgainTakesItsMessagesItself) {
  const PolledQueue::Link link(TheSeat().at.polled());
  EXPECT_TRUE(TheSeat().seat.has_links());
  SitDown();
  EXPECT_FALSE(QueueSeat::IsThisThread());
}

// Whatever comes between sitting down, sleeping and leaving: no signal of another thread is lost.
TEST(PollTurnsTest, ASignalOfAnotherThreadIsHeard) {
  const PolledQueue::Link link(TheSeat().at.polled());
  for (int round = 0; round < 300; ++round) {
    if (round % 3 == 0) SitDown();
    Condition came;
    std::thread other([&] {
      if (round % 2 == 0) std::this_thread::yield();
      came.Set();
    });
    came.Await();
    other.join();
  }
}

// By its own thread, which has stood aside meanwhile or not.
TEST(PollTurnsTest, OtherQueuesGoOnWhileAThreadSits) {
  const PolledQueue::Link link(TheSeat().at.polled());
  Polled other;
  EXPECT_EQ(other.Handler(), other.thread());
  for (int round = 0; round < 20; ++round) {
    SitDown();
    Condition came;
    std::thread asks([&] {
      EXPECT_EQ(other.Handler(), other.thread());
      came.Set();
    });
    came.Await();
    asks.join();
  }
}

TEST(PollTurnsTest, AQueueWithLinksKeepsItsThread) {
  const PolledQueue::Link link(TheSeat().at.polled());
  Polled other;
  const PolledQueue::Link others(other.polled());
  Condition came;
  SitDown();
  // Sits until the event of the other queue.
  Event::Add(other.queue(), [&] { came.Set(); });
  came.Await();
  EXPECT_EQ(other.Handler(), other.thread());
}

// Queues come and go while a thread sits again and again, and calls their threads away.
TEST(PollTurnsTest, QueuesMayGoAtAnyTime) {
  const PolledQueue::Link link(TheSeat().at.polled());
  std::atomic<bool> over{false};
  std::thread sits([&] {
    while (!over) SitDown();
  });
  for (int i = 0; i < 50; ++i) {
    Polled other;
    if (i % 2 == 0) {
      EXPECT_EQ(other.Handler(), other.thread());
    }
  }
  over = true;
  sits.join();
}

// When nobody sits any more the queue's own thread is back.
TEST(PollTurnsTest, AfterTheLastWaitTheThreadOfTheQueuePollsAgain) {
  const PolledQueue::Link link(TheSeat().at.polled());
  SitDown();
  EXPECT_EQ(TheSeat().at.Handler(), TheSeat().at.thread());
}

// The queue's own thread takes what was to wake the one in the seat, before that one serves.
TEST(PollTurnsTest, AWakeUpThatAnotherThreadTakesIsHandedOn) {
  const PolledQueue::Link link(TheSeat().at.polled());
  QueueSeat& seat = TheSeat().seat;
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(TheSeat().at.Handler(), TheSeat().at.thread());
    while (!seat.Take()) std::this_thread::yield();
    seat.Wake();
    // Time for the other thread.
    for (int i = 0; i < round; ++i) std::this_thread::yield();
    seat.Serve(absl::InfiniteFuture());
    seat.Leave();
  }
}

TEST(PollTurnsTest, ASeatIsForOneThread) {
  const PolledQueue::Link link(TheSeat().at.polled());
  QueueSeat& seat = TheSeat().seat;
  SitDown();
  while (!seat.Take()) std::this_thread::yield();
  EXPECT_FALSE(seat.Take());
  // Wakes who is to serve, before it does.
  seat.Wake();
  seat.Serve(absl::InfiniteFuture());
  seat.Leave();
  // Nobody is there, nothing happens.
  seat.Wake();
  while (!seat.Take()) std::this_thread::yield();
  seat.Serve(absl::Now() - absl::Seconds(1));
  seat.Leave();
}

}  // namespace
}  // namespace millrace

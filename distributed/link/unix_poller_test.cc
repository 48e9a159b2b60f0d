// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/unix_poller.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/network_seat.h"
#include "core/owned_fd.h"
#include "core/testing/tensor_testing.h"
#include "core/visit.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// One end of a pair of sockets: calls `on_byte` for each byte that comes.
class Bytes final : public UnixPoller::Source {
 public:
  Bytes(UnixPoller* poller, std::function<void()> on_byte)
      : Source(/*is_link=*/true), poller_(poller), on_byte_(std::move(on_byte)) {
    int fds[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    read_ = OwnedFd(fds[0]);
    write_ = OwnedFd(fds[1]);
  }
  static std::shared_ptr<Bytes> Watched(UnixPoller* poller, std::function<void()> on_byte) {
    auto source = std::make_shared<Bytes>(poller, std::move(on_byte));
    EXPECT_OK(poller->Add(source, source->read_.get(), EPOLLIN));
    return source;
  }
  void Send() {
    const char byte = 1;
    EXPECT_EQ(::send(write_.get(), &byte, 1, MSG_NOSIGNAL), 1);
  }
  void Remove() { poller_->Remove(*this, read_.get()); }

  Visit::Work* OnReady() override {
    char byte = 0;
    if (::recv(read_.get(), &byte, 1, MSG_DONTWAIT) == 1) {
      // First: who hears of the byte may Remove it.
      poller_->Arm(*this, read_.get(), EPOLLIN);
      Visit visit;
      on_byte_();
      return visit.End();
    }
    poller_->Arm(*this, read_.get(), EPOLLIN);
    return nullptr;
  }

 private:
  UnixPoller* const poller_;
  const std::function<void()> on_byte_;
  OwnedFd read_, write_;
};

// What a thread waits for: a count that others raise.
class Count {
 public:
  void Add() {
    MutexLock lock(&mu_);
    ++count_;
    seated_.Signal();
  }
  void Await(int64_t count) {
    const SeatWish wish;
    MutexLock lock(&mu_);
    while (count_ < count) seated_.Wait(&mu_, absl::InfiniteFuture());
  }

 private:
  Mutex mu_;
  // Without an end: a signal that is lost is not made good by a look at the condition.
  SeatedCondVar seated_{absl::InfiniteDuration()};
  int64_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(UnixPollerTest, WhoWaitsInTheSeatIsWokenByEventsAndByOtherThreads) {
  ASSERT_OK_AND_ASSIGN(UnixPoller* const poller, UnixPoller::Shared());
  Count count;
  const auto source = Bytes::Watched(poller, [&count] { count.Add(); });
  source->Send();
  count.Await(1);
  std::thread other([&count] { count.Add(); });
  count.Await(2);
  other.join();
  source->Remove();
}

TEST(UnixPollerTest, AWaitInTheSeatEndsAtItsLimit) {
  ASSERT_OK_AND_ASSIGN(UnixPoller* const poller, UnixPoller::Shared());
  const auto source = Bytes::Watched(poller, [] {});
  Mutex mu;
  SeatedCondVar seated;
  const SeatWish wish;
  const absl::Time limit = absl::Now() + absl::Milliseconds(2);
  MutexLock lock(&mu);
  while (absl::Now() < limit) seated.Wait(&mu, limit);
  source->Remove();
}

// Work that a message made ready never runs inside of the seat: its thread waits for something
// else, perhaps for what that work keeps from running.
TEST(UnixPollerTest, WorkOfAMessageRunsOnAThreadOfItsOwn) {
  class Work final : public Visit::Work {
   public:
    void RunVisit() noexcept override {
      thread = std::this_thread::get_id();
      done.Add();
    }
    std::thread::id thread;
    Count done;
  };
  ASSERT_OK_AND_ASSIGN(UnixPoller* const poller, UnixPoller::Shared());
  Work work;
  const auto source = Bytes::Watched(poller, [&work] { EXPECT_TRUE(Visit::Offer(&work, 1000)); });
  source->Send();
  work.done.Await(1);
  EXPECT_NE(work.thread, std::this_thread::get_id());
  source->Remove();
}

// After a pause the poller's threads are back, and the system may give one of them what was meant
// for the thread in the seat.
TEST(UnixPollerTest, AThreadOfThePollerHandsOnWhatIsForTheSeat) {
  ASSERT_OK_AND_ASSIGN(UnixPoller* const poller, UnixPoller::Shared());
  const auto source = Bytes::Watched(poller, [] {});
  const auto pass = [](absl::Duration duration) {
    for (const absl::Time end = absl::Now() + duration; absl::Now() < end;) {
      std::this_thread::yield();
    }
  };
  Count count;
  for (int64_t round = 1; round <= 30; ++round) {
    pass(absl::Milliseconds(3));
    std::thread other([&] {
      pass(absl::Microseconds(500));  // most often the other one sits by then
      count.Add();
    });
    count.Await(round);
    other.join();
  }
  source->Remove();
}

// Threads that sit down in turns, threads of the poller and others wake each other: a signal that
// is lost stops the test.
TEST(UnixPollerTest, NoSignalIsLost) {
  constexpr int kThreads = 3, kRounds = 2000;
  ASSERT_OK_AND_ASSIGN(UnixPoller* const poller, UnixPoller::Shared());
  std::vector<std::unique_ptr<Count>> counts;
  std::vector<std::shared_ptr<Bytes>> sources;
  for (int i = 0; i < kThreads; ++i) {
    counts.push_back(std::make_unique<Count>());
    sources.push_back(Bytes::Watched(poller, [count = counts.back().get()] { count->Add(); }));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const size_t next = static_cast<size_t>((i + 1) % kThreads);
      for (int64_t round = 1; round <= kRounds; ++round) {
        // By turns as an event, and by this thread itself.
        if ((round + i) % 3 == 0) {
          counts[next]->Add();
        } else {
          sources[next]->Send();
        }
        counts[static_cast<size_t>(i)]->Await(round);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& source : sources) source->Remove();
}

}  // namespace
}  // namespace millrace

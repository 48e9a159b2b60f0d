// SPDX-License-Identifier: Apache-2.0
#include "serving/client/call_retries.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/refusal.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "net/not_sent.h"
#include "net/rpc_channel.h"

// covers: serving: a client tries a call again only when it surely did not run, with growing random
//   waits within its deadline

namespace millrace {
namespace {

constexpr char kRefused[] =
    "Task at a:1 must be reachable, got: failed to connect to all addresses; last error: refused";
constexpr char kBroken[] = "Task at a:1 must be reachable, got: Socket closed";
constexpr char kQueueFull[] =
    "Task at a:1 must be reachable, got: The batch scheduling queue to which this task was "
    "submitted is full; currently 10 batches enqueued and max_enqueued_batches is 10";

// Time that passes when somebody sleeps.
class SleepClock : public Clock {
 public:
  absl::Time Now() override { return now_; }
  bool WaitUntil(CondVar*, Mutex*, absl::Time) override { return true; }
  void SleepFor(absl::Duration duration) override {
    waits.push_back(duration);
    now_ += duration;
  }

  std::vector<absl::Duration> waits;

 private:
  absl::Time now_ = absl::UnixEpoch();
};

// Ends calls with these statuses, one after the other; then with OK.
class ScriptedChannel : public RpcChannel {
 public:
  explicit ScriptedChannel(std::vector<Status> ends) : ends_(std::move(ends)) {}
  void Unary(const std::string&, const RpcOptions& options, const grpc::ByteBuffer& request,
             UnaryDone done) override {
    deadlines.push_back(options.deadline);
    const size_t i = deadlines.size() - 1;
    done(i < ends_.size() ? ends_[i] : absl::OkStatus(), request);
  }
  void Stream(const std::string&, const RpcOptions&, const grpc::ByteBuffer&, OnMessage,
              StreamDone done) override {
    done(Unimplemented("no streams"));
  }
  const std::string& address() const override { return address_; }

  std::vector<absl::Time> deadlines;  // one for each try

 private:
  const std::vector<Status> ends_;
  const std::string address_ = "a:1";
};

struct CallRetriesTest : public ::testing::Test {
  Status Call(std::vector<Status> ends, int max_retries, absl::Duration timeout) {
    channel = std::make_unique<ScriptedChannel>(std::move(ends));
    return CallWithRetries(
               channel.get(), "/s/M", grpc::ByteBuffer(),
               {.deadline = clock.Now() + timeout, .max_retries = max_retries, .clock = &clock})
        .status();
  }
  SleepClock clock;
  std::unique_ptr<ScriptedChannel> channel;
};

TEST_F(CallRetriesTest, WhatDidNotRunIsTriedAgain) {
  const Status refused = AsNotSent(absl::UnavailableError(kRefused));
  ASSERT_OK(Call({refused, absl::UnavailableError(kQueueFull), refused}, 5, absl::Minutes(1)));
  EXPECT_EQ(channel->deadlines.size(), 4u);
  // Each wait is of its half-open range, and all tries have one deadline.
  ASSERT_EQ(clock.waits.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const absl::Duration longest = absl::Milliseconds(100) * (1 << i);
    EXPECT_GE(clock.waits[i], longest / 2);
    EXPECT_LT(clock.waits[i], longest);
  }
  for (const absl::Time deadline : channel->deadlines) {
    EXPECT_EQ(deadline, absl::UnixEpoch() + absl::Minutes(1));
  }
}

TEST_F(CallRetriesTest, WhatMayHaveRunIsNot) {
  const Status ends[] = {absl::UnavailableError(kBroken),
                         absl::UnavailableError("going away"),
                         AsRefusal(AsNotSent(absl::UnavailableError(kRefused))),
                         absl::UnavailableError(kRefused),  // another task's words
                         absl::DeadlineExceededError(kRefused),
                         absl::CancelledError(kQueueFull),
                         absl::InternalError("x")};
  for (const Status& end : ends) {
    const Status got = Call({end}, 5, absl::Minutes(1));
    EXPECT_EQ(got, end);
    EXPECT_EQ(channel->deadlines.size(), 1u) << end;
  }
  EXPECT_TRUE(clock.waits.empty());
}

TEST_F(CallRetriesTest, TriesAndTimeAreBounded) {
  const std::vector<Status> many(100, AsNotSent(absl::UnavailableError(kRefused)));
  EXPECT_STATUS(Call(many, 2, absl::Minutes(1)), absl::StatusCode::kUnavailable, "; after 3 tries");
  EXPECT_EQ(channel->deadlines.size(), 3u);
  EXPECT_STATUS(Call(many, 0, absl::Minutes(1)), absl::StatusCode::kUnavailable, kRefused);
  EXPECT_EQ(channel->deadlines.size(), 1u);
  // No wait ends behind the deadline: the first is at least 50 ms.
  const absl::Time begin = clock.Now();
  EXPECT_STATUS(Call(many, 1'000'000, absl::Milliseconds(50)), absl::StatusCode::kUnavailable, "");
  EXPECT_EQ(channel->deadlines.size(), 1u);
  EXPECT_EQ(clock.Now(), begin);
  EXPECT_STATUS(Call(many, 1'000'000, absl::Seconds(5)), absl::StatusCode::kUnavailable, "tries");
  EXPECT_LT(clock.Now(), begin + absl::Seconds(5));
  EXPECT_GT(channel->deadlines.size(), 2u);
  EXPECT_LT(channel->deadlines.size(), many.size());
}

TEST(RetryWaits, GrowToTwoSeconds) {
  EXPECT_EQ(RetryWait(1, 0), absl::Milliseconds(50));
  EXPECT_EQ(RetryWait(2, 0), absl::Milliseconds(100));
  EXPECT_EQ(RetryWait(6, 0), absl::Seconds(1));
  EXPECT_EQ(RetryWait(1'000'000, 0), absl::Seconds(1));
  EXPECT_EQ(RetryWait(1'000'000, 0.5), absl::Milliseconds(1500));
}

}  // namespace
}  // namespace millrace

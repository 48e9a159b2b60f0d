// SPDX-License-Identifier: Apache-2.0
//
// Requests of many threads. Each waits on a clock that stands still: a test knows that so many wait
// when the clock says so. A step that is held keeps the places, or the threads, taken.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/session.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batching_observer.h"
#include "serving/batching/leader_batcher.h"
#include "serving/batching/step_batcher.h"
#include "serving/batching/testing/row_step.h"
#include "serving/batching/timed_batcher.h"
#include "serving/step_bounds.h"

// covers: serving: requests of many threads get their own rows, batched by what waits or by
//   parameters; deadlines and cancellations end waits in queues; a step that is forgotten under
//   load harms no request

namespace millrace {
namespace {

using absl::StatusCode;

Tensor Row(float value) { return TensorOf<float>({1, 1}, {value}); }

// What a batcher told.
class Heard : public BatchingObserver {
 public:
  using Pairs = std::vector<std::pair<int64_t, int64_t>>;
  void LeftQueue(int64_t size, absl::Duration waited) override {
    MutexLock lock(&mu_);
    waits_.emplace_back(size, absl::ToInt64Hours(waited));
  }
  void RanBatch(int64_t size, int64_t padding) override {
    MutexLock lock(&mu_);
    batches_.emplace_back(size, padding);
  }
  // Rows and hours of the requests, sorted: threads came in any order.
  Pairs waits() {
    MutexLock lock(&mu_);
    Pairs sorted = waits_;
    std::sort(sorted.begin(), sorted.end());
    return sorted;
  }
  // Rows and padding of the steps.
  Pairs batches() {
    MutexLock lock(&mu_);
    return batches_;
  }

 private:
  Mutex mu_;
  Pairs waits_ ABSL_GUARDED_BY(mu_), batches_ ABSL_GUARDED_BY(mu_);
};

// Requests that run, each in a thread of its own.
class Requests {
 public:
  Requests(StepBatcher* batcher, BatchClient client)
      : batcher_(batcher), client_(std::move(client)) {}
  ~Requests() { Join(); }

  struct Request {
    Tensor feed, result;
    Status status;
    std::thread thread;
  };
  Request* Start(PreparedStep* step, Tensor feed, const StepBounds& bounds = {}) {
    Request* const request = &requests_.emplace_back();
    request->feed = std::move(feed);
    request->thread = std::thread([this, request, step, bounds] {
      request->status =
          batcher_->Run(client_, step, bounds, {&request->feed, 1}, {&request->result, 1});
    });
    return request;
  }
  void Join() {
    for (Request& request : requests_) {
      if (request.thread.joinable()) request.thread.join();
    }
  }
  const std::list<Request>& all() const { return requests_; }

 private:
  StepBatcher* const batcher_;
  const BatchClient client_;
  std::list<Request> requests_;
};

void ExpectOwnRows(const Requests& requests) {
  for (const Requests::Request& request : requests.all()) {
    ASSERT_OK(request.status);
    ASSERT_OK_AND_ASSIGN(const Tensor want, RowStep::TenTimesPlusOne(request.feed));
    ExpectTensorEqual(request.result, want);
  }
}

// --- By what waits. One place, which the first request has.

class LeaderBatcherTest : public ::testing::Test {
 protected:
  // Afterwards `n` more requests wait.
  void Hold(RowStep* step) {
    step->Hold();
    requests_.Start(step, Row(1000));
    step->AwaitInside(1);
  }
  Requests::Request* StartToWait(PreparedStep* step, Tensor feed, const StepBounds& bounds = {}) {
    Requests::Request* const request = requests_.Start(step, std::move(feed), bounds);
    clock_.AwaitWaiters(++num_waiting_);
    return request;
  }
  Status RunNow(PreparedStep* step, const Tensor& feed, Tensor* result) {
    return batcher_.Run(client_, step, {}, {&feed, 1}, {result, 1});
  }

  FakeClock clock_{absl::Now()};
  const BatchClient client_{.label = "a test"};
  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  LeaderBatcher batcher_{1, &clock_, heard_};
  int num_waiting_ = 0;
  RowStep step_, other_;
  Requests requests_{&batcher_, client_};
};

TEST_F(LeaderBatcherTest, OneClientRunsAtOnceInStepsOfItsOwn) {
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    Tensor result;
    ASSERT_OK(RunNow(&step_, Row(value), &result));
    ExpectTensorEqual(result, Row(10 * value + 1));
  }
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{1, 1, 1}));
}

TEST_F(LeaderBatcherTest, WhatWaitsIsOneBatch) {
  Hold(&step_);
  for (int i = 0; i < 20; ++i) StartToWait(&step_, Row(static_cast<float>(i)));
  step_.Release();
  requests_.Join();
  ExpectOwnRows(requests_);
  // The first one, with another number of rows, is the proof.
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{1, 20}));
}

TEST_F(LeaderBatcherTest, AFailingRowFailsItsOwnRequestOnly) {
  Hold(&step_);
  StartToWait(&step_, Row(1));
  Requests::Request* const bad = StartToWait(&step_, Row(-1));
  StartToWait(&step_, Row(3));
  step_.Release();
  requests_.Join();
  for (const Requests::Request& request : requests_.all()) {
    EXPECT_EQ(request.status.ok(), &request != bad);
  }
  EXPECT_STATUS(bad->status, StatusCode::kInvalidArgument, "negative");
  // The one that held the place; all, the first half, the second one and its two.
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{1, 3, 1, 2, 1, 1}));
}

TEST_F(LeaderBatcherTest, OtherShapesWaitForABatchOfTheirOwn) {
  Hold(&step_);
  StartToWait(&step_, TensorOf<float>({1, 2}, {1, 2}));
  StartToWait(&step_, TensorOf<float>({1, 3}, {1, 2, 3}));
  StartToWait(&step_, TensorOf<float>({2, 2}, {1, 2, 3, 4}));
  step_.Release();
  requests_.Join();
  ExpectOwnRows(requests_);
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{1, 3, 1}));
}

TEST_F(LeaderBatcherTest, QueuesTakeTurns) {
  Hold(&step_);
  StartToWait(&step_, TensorOf<float>({1, 2}, {1, 2}));
  StartToWait(&step_, TensorOf<float>({1, 3}, {1, 2, 3}));
  StartToWait(&other_, Row(5));
  // The second one stops there, so the first step has had one turn, and the other is next.
  other_.Hold();
  step_.Release();
  other_.AwaitInside(1);
  EXPECT_EQ(step_.rows().size(), 2u);
  other_.Release();
  requests_.Join();
  ExpectOwnRows(requests_);
}

TEST_F(LeaderBatcherTest, ADeadlineEndsAWait) {
  Hold(&step_);
  Requests::Request* const late =
      StartToWait(&step_, Row(1), {.deadline = clock_.Now() + absl::Hours(1)});
  clock_.Advance(absl::Hours(1));
  late->thread.join();
  EXPECT_STATUS(late->status, StatusCode::kResourceExhausted,
                "Run() timeout exceeded while waiting in batching queue");
  step_.Release();
  requests_.Join();
  EXPECT_EQ(step_.rows(), std::vector<int64_t>{1});
}

TEST_F(LeaderBatcherTest, ACancellationEndsAWait) {
  CancellationManager cancellation, earlier;
  earlier.StartCancel();
  Hold(&step_);
  Requests::Request* const gone = StartToWait(&step_, Row(1), {.cancellation = &cancellation});
  cancellation.StartCancel();
  gone->thread.join();
  EXPECT_STATUS(gone->status, StatusCode::kCancelled, "");
  Requests::Request* const never = requests_.Start(&step_, Row(1), {.cancellation = &earlier});
  never->thread.join();
  EXPECT_STATUS(never->status, StatusCode::kCancelled, "");
  step_.Release();
  requests_.Join();
  EXPECT_EQ(step_.rows(), std::vector<int64_t>{1});
}

TEST_F(LeaderBatcherTest, AStepMayBeForgottenWhileRequestsWait) {
  Hold(&step_);
  for (int i = 0; i < 3; ++i) StartToWait(&step_, Row(static_cast<float>(i)));
  EXPECT_EQ(batcher_.num_queues(), 1);
  batcher_.Forget(&step_);
  batcher_.Forget(&other_);
  EXPECT_EQ(batcher_.num_queues(), 0);
  StartToWait(&step_, Row(7));  // has a queue of its own
  step_.Release();
  requests_.Join();
  ExpectOwnRows(requests_);
  batcher_.Forget(&step_);
  EXPECT_EQ(batcher_.num_queues(), 0);
}

TEST_F(LeaderBatcherTest, ForgettingUnderLoadHarmsNoRequest) {
  constexpr int kThreads = 8, kRuns = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < kRuns; ++k) {
        RowStep* const step = k % 2 == 0 ? &step_ : &other_;
        const auto value = static_cast<float>(kRuns * i + k);
        Tensor result;
        EXPECT_OK(RunNow(step, Row(value), &result));
        ExpectTensorEqual(result, Row(10 * value + 1));
        if (k % 10 == i) batcher_.Forget(step);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(LeaderBatcherTest, AStepThatIsNotPerRowWaitsForNoPlace) {
  RowStep sums([](const Tensor& input) -> StatusOr<Tensor> {
    return Tensor::Scalar(static_cast<float>(input.num_elements()));
  });
  Tensor result;
  ASSERT_OK(RunNow(&sums, Row(1), &result));
  Hold(&step_);
  EXPECT_OK(RunNow(&sums, TensorOf<float>({2, 1}, {1, 2}), &result));
  EXPECT_EQ(result.scalar<float>(), 2);
  step_.Release();
}

TEST_F(LeaderBatcherTest, InputsWithoutRowsRunAlone) {
  Tensor result;
  EXPECT_OK(RunNow(&step_, Tensor::Scalar(1.0f), &result));
  ASSERT_OK(RunNow(&step_, *Tensor::Zeros(DT_FLOAT, Shape{0, 1}), &result));
  EXPECT_EQ(result.dim(0), 0);
}

TEST_F(LeaderBatcherTest, TellsOfWaitsAndSteps) {
  Hold(&step_);
  StartToWait(&step_, Row(1));
  StartToWait(&step_, TensorOf<float>({2, 1}, {1, 2}));
  clock_.Advance(absl::Hours(1));
  step_.Release();
  requests_.Join();
  // The first one found a place.
  EXPECT_EQ(heard_->waits(), (Heard::Pairs{{1, 0}, {1, 1}, {2, 1}}));
  EXPECT_EQ(heard_->batches(), (Heard::Pairs{{1, 0}, {3, 0}}));
}

// --- By parameters. One thread.

class TimedBatcherTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(batcher_, TimedBatcher::Create(1, &clock_, heard_));
  }
  void TearDown() override { requests_.reset(); }
  Requests& RequestsWith(const BatchParameters& parameters) {
    requests_ = std::make_unique<Requests>(
        batcher_.get(), BatchClient{.label = "a test", .parameters = parameters});
    return *requests_;
  }

  FakeClock clock_{absl::Now()};
  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  RowStep step_;
  std::unique_ptr<TimedBatcher> batcher_;
  std::unique_ptr<Requests> requests_;
};

TEST_F(TimedBatcherTest, ABatchIsRunWhenItsTimeIsOver) {
  Requests& requests = RequestsWith({.batch_timeout = absl::Hours(1)});
  for (int i = 0; i < 5; ++i) requests.Start(&step_, Row(static_cast<float>(i)));
  clock_.AwaitWaiters(6);  // and the thread
  EXPECT_TRUE(step_.rows().empty());
  clock_.Advance(absl::Hours(1));
  requests.Join();
  ExpectOwnRows(requests);
  // The second one is the proof that the step is per row.
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{5, 1}));
}

TEST_F(TimedBatcherTest, TellsOfWaitsPaddingAndSteps) {
  Requests& requests = RequestsWith({.batch_timeout = absl::Hours(1), .allowed_batch_sizes = {4}});
  requests.Start(&step_, Row(1));
  requests.Start(&step_, TensorOf<float>({2, 1}, {1, 2}));
  clock_.AwaitWaiters(3);  // and the thread
  EXPECT_TRUE(heard_->batches().empty());
  clock_.Advance(absl::Hours(1));
  requests.Join();
  EXPECT_EQ(heard_->waits(), (Heard::Pairs{{1, 1}, {2, 1}}));
  // Three rows and one that was added; then the proof that the step is per row, of whichever
  // request came first.
  ASSERT_EQ(heard_->batches().size(), 2u);
  EXPECT_EQ(heard_->batches()[0], (std::pair<int64_t, int64_t>(4, 1)));
  EXPECT_EQ(heard_->batches()[1].second, 0);
}

TEST_F(TimedBatcherTest, ARequestInPartsIsOneThatWaited) {
  Requests& requests = RequestsWith(
      {.max_batch_size = 10, .enable_large_batch_splitting = true, .max_execution_batch_size = 4});
  requests.Start(&step_, TensorOf<float>({9, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  requests.Join();
  EXPECT_EQ(heard_->waits(), (Heard::Pairs{{9, 0}}));
  EXPECT_EQ(heard_->batches(), (Heard::Pairs{{4, 0}, {4, 0}, {1, 0}}));
}

TEST_F(TimedBatcherTest, AFullBatchIsRunAtOnce) {
  Requests& requests = RequestsWith({.max_batch_size = 4,
                                     .batch_timeout = absl::InfiniteDuration(),
                                     .max_execution_batch_size = 4});
  for (int i = 0; i < 4; ++i) requests.Start(&step_, Row(static_cast<float>(i)));
  requests.Join();
  ExpectOwnRows(requests);
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{4, 1}));
}

TEST_F(TimedBatcherTest, AFullQueueRefuses) {
  Requests& requests =
      RequestsWith({.max_batch_size = 2, .max_enqueued_batches = 1, .max_execution_batch_size = 2});
  const Tensor two = TensorOf<float>({2, 1}, {1, 2});
  step_.Hold();
  requests.Start(&step_, two);
  step_.AwaitInside(1);
  requests.Start(&step_, two);
  clock_.AwaitWaiters(2);  // the thread is in the step
  Requests::Request* const refused = requests.Start(&step_, Row(1));
  refused->thread.join();
  EXPECT_STATUS(refused->status, StatusCode::kUnavailable,
                "The batch scheduling queue to which this task was submitted is full");
  Requests::Request* const large = requests.Start(&step_, TensorOf<float>({3, 1}, {1, 2, 3}));
  large->thread.join();
  EXPECT_STATUS(large->status, StatusCode::kInvalidArgument,
                "Task size 3 is larger than maximum input batch size 2");
  step_.Release();
  requests.Join();
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{2, 2}));
}

TEST_F(TimedBatcherTest, ALargeRequestIsRunInParts) {
  Requests& requests = RequestsWith(
      {.max_batch_size = 10, .enable_large_batch_splitting = true, .max_execution_batch_size = 4});
  requests.Start(&step_, TensorOf<float>({9, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9}));
  requests.Join();
  ExpectOwnRows(requests);
  EXPECT_EQ(step_.rows(), (std::vector<int64_t>{4, 4, 1}));
  Requests::Request* const bad = requests.Start(&step_, TensorOf<float>({5, 1}, {1, 2, 3, 4, -5}));
  requests.Join();
  EXPECT_STATUS(bad->status, StatusCode::kInvalidArgument, "negative");
  EXPECT_FALSE(bad->result.has_value());
}

// Parts of constants would be put together to something that the step never gave.
TEST_F(TimedBatcherTest, OutputsThatAreNotPerRowAreNotPutTogetherFromParts) {
  const Tensor constant = TensorOf<float>({7}, {1, 2, 3, 4, 5, 6, 7});
  RowStep step([&](const Tensor&) -> StatusOr<Tensor> { return constant; });
  Requests& requests = RequestsWith(
      {.max_batch_size = 10, .enable_large_batch_splitting = true, .max_execution_batch_size = 4});
  Requests::Request* const request =
      requests.Start(&step, TensorOf<float>({5, 1}, {1, 2, 3, 4, 5}));
  requests.Join();
  ASSERT_OK(request->status);
  ExpectTensorEqual(request->result, constant);
}

// Two parts of four rows each agree with a constant of four: that proves nothing.
TEST_F(TimedBatcherTest, PartsOfOneSizeProveNothing) {
  const Tensor constant = TensorOf<float>({4}, {1, 2, 3, 4});
  RowStep step([&](const Tensor&) -> StatusOr<Tensor> { return constant; });
  Requests& requests = RequestsWith(
      {.max_batch_size = 10, .enable_large_batch_splitting = true, .max_execution_batch_size = 4});
  Requests::Request* const request =
      requests.Start(&step, TensorOf<float>({8, 1}, {1, 2, 3, 4, 5, 6, 7, 8}));
  requests.Join();
  ASSERT_OK(request->status);
  ExpectTensorEqual(request->result, constant);
}

TEST_F(TimedBatcherTest, DeadlinesAndCancellationsEndWaits) {
  Requests& requests = RequestsWith({.batch_timeout = absl::Hours(2)});
  CancellationManager cancellation;
  Requests::Request* const gone = requests.Start(&step_, Row(1), {.cancellation = &cancellation});
  Requests::Request* const late =
      requests.Start(&step_, Row(2), {.deadline = clock_.Now() + absl::Hours(1)});
  Requests::Request* const good = requests.Start(&step_, Row(3));
  clock_.AwaitWaiters(4);  // and the thread
  cancellation.StartCancel();
  gone->thread.join();
  EXPECT_STATUS(gone->status, StatusCode::kCancelled, "");
  clock_.Advance(absl::Hours(1));
  late->thread.join();
  EXPECT_STATUS(late->status, StatusCode::kResourceExhausted,
                "Run() timeout exceeded while waiting in batching queue");
  clock_.Advance(absl::Hours(1));
  requests.Join();
  ASSERT_OK(good->status);
  EXPECT_EQ(step_.rows(), std::vector<int64_t>{1});
}

TEST_F(TimedBatcherTest, AStepMayBeForgottenWhileRequestsWait) {
  Requests& requests = RequestsWith({.batch_timeout = absl::Hours(1)});
  for (int i = 0; i < 3; ++i) requests.Start(&step_, Row(static_cast<float>(i)));
  clock_.AwaitWaiters(4);  // and the thread
  EXPECT_EQ(batcher_->num_queues(), 1);
  batcher_->Forget(&step_);
  EXPECT_EQ(batcher_->num_queues(), 0);
  clock_.Advance(absl::Hours(1));
  requests.Join();
  ExpectOwnRows(requests);
}

}  // namespace
}  // namespace millrace

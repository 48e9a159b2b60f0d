// SPDX-License-Identifier: Apache-2.0
//
// What joins, when a batch closes, what is refused, which queue is next, and what each task of a
// batch gets: all without threads.

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batch_queue.h"
#include "serving/batching/batch_rows.h"
#include "serving/batching/batch_task.h"
#include "serving/batching/run_batch.h"
#include "serving/batching/step_batcher.h"
#include "serving/batching/testing/row_step.h"
#include "serving/batching/waiting_queues.h"

// covers: serving: what joins a batch, when it closes, what is refused and which queue is next are
//   TensorFlow Serving's, but for inputs that do not fit together: they share no batch
// covers: serving: a batch that fails is run again in halves; rows are handed out only when the
//   outputs of the step are proven to be per row

namespace millrace {
namespace {

using absl::StatusCode;

// A request with one input and one output.
struct TestTask {
  explicit TestTask(Tensor of) : feed(std::move(of)) {
    task.feeds = {&feed, 1};
    task.results = {&result, 1};
    task.rows = feed.dim(0);
  }
  Tensor feed, result;
  BatchTask task;
};

Tensor RowsOfWidth(int64_t rows, int64_t width) {
  return *Tensor::Zeros(DT_FLOAT, *Shape::Make({rows, width}));
}

std::vector<BatchTask*> AsVector(const BatchTasks& tasks) { return {tasks.begin(), tasks.end()}; }

// --- Rows.

TEST(BatchRowsTest, InputsMustHaveEquallyManyRows) {
  EXPECT_STATUS(BatchRowsOf({}), StatusCode::kInvalidArgument,
                "Batching Run() must have at least one input tensor");
  EXPECT_STATUS(BatchRowsOf(std::vector<Tensor>{Tensor::Scalar(1.0f)}),
                StatusCode::kInvalidArgument,
                "Batching Run() input tensors must have at least one dimension");
  EXPECT_STATUS(BatchRowsOf(std::vector<Tensor>{RowsOfWidth(2, 1), RowsOfWidth(3, 1)}),
                StatusCode::kInvalidArgument,
                "Batching Run() input tensors must have equal 0th-dimension size");
  ASSERT_OK_AND_ASSIGN(const int64_t rows,
                       BatchRowsOf(std::vector<Tensor>{RowsOfWidth(2, 1), RowsOfWidth(2, 7)}));
  EXPECT_EQ(rows, 2);
}

TEST(BatchRowsTest, RowsAreJoinedAndPaddedWithTheFirstRowOfTheLastPart) {
  const Tensor a = TensorOf<float>({1, 2}, {1, 2}), b = TensorOf<float>({2, 2}, {3, 4, 5, 6});
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinRows(std::vector<const Tensor*>{&a, &b}, 5, /*ragged=*/false));
  ExpectTensorEqual(joined, TensorOf<float>({5, 2}, {1, 2, 3, 4, 5, 6, 3, 4, 3, 4}));
}

TEST(BatchRowsTest, StringsAreJoined) {
  const Tensor a = Tensor::Of({"a", "b"}), b = Tensor::Of({"c"});
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinRows(std::vector<const Tensor*>{&a, &b}, 4, /*ragged=*/false));
  ExpectTensorEqual(joined, Tensor::Of({"a", "b", "c", "c"}));
}

TEST(BatchRowsTest, RaggedRowsAreFilledUpWithTheFirstElementOfTheirTensor) {
  const Tensor a = TensorOf<float>({2, 2}, {1, 2, 3, 4}), b = TensorOf<float>({1, 3}, {5, 6, 7});
  ASSERT_OK_AND_ASSIGN(const Tensor joined,
                       JoinRows(std::vector<const Tensor*>{&a, &b}, 3, /*ragged=*/true));
  ExpectTensorEqual(joined, TensorOf<float>({3, 3}, {1, 2, 1, 3, 4, 1, 5, 6, 7}));
  const Tensor c = TensorOf<int32_t>({1, 1, 2}, {1, 2});
  const Tensor d = TensorOf<int32_t>({1, 2, 1}, {3, 4});
  ASSERT_OK_AND_ASSIGN(const Tensor cube,
                       JoinRows(std::vector<const Tensor*>{&c, &d}, 2, /*ragged=*/true));
  ExpectTensorEqual(cube, TensorOf<int32_t>({2, 2, 2}, {1, 2, 1, 1, 3, 3, 4, 3}));
}

TEST(BatchRowsTest, WhatDoesNotFitIsRefused) {
  const Tensor a = RowsOfWidth(1, 2), b = RowsOfWidth(1, 3), empty = RowsOfWidth(1, 0);
  const Tensor text = TensorOf<std::string>({1, 2}, {"a", "b"});
  EXPECT_STATUS(JoinRows(std::vector<const Tensor*>{&a, &b}, 2, false),
                StatusCode::kInvalidArgument, "fit to shape [1,2]");
  EXPECT_STATUS(JoinRows(std::vector<const Tensor*>{&a, &text}, 2, true),
                StatusCode::kInvalidArgument, "string");
  EXPECT_STATUS(JoinRows(std::vector<const Tensor*>{&a, &empty}, 2, true),
                StatusCode::kInvalidArgument, "Got empty tensor in batch of non-empty tensors.");
  const std::vector<Tensor> as = {a}, bs = {b}, texts = {text};
  EXPECT_TRUE(FitTogether(as, as, false));
  EXPECT_FALSE(FitTogether(as, bs, false));
  EXPECT_TRUE(FitTogether(as, bs, true));
  EXPECT_FALSE(FitTogether(as, texts, true));
}

// One long row next to many short ones.
TEST(BatchRowsTest, RaggedRowsMayNotTakeManyTimesTheirMemory) {
  const Tensor wide = RowsOfWidth(1, 100'000), narrow = RowsOfWidth(1000, 1);
  EXPECT_STATUS(JoinRows(std::vector<const Tensor*>{&wide, &narrow}, 1001, true),
                StatusCode::kResourceExhausted, "[1001,100000]");
}

TEST(StepRowsTest, TwoNumbersOfRowsProveAStepAndOneMismatchSettlesIt) {
  StepRows rows("a test");
  const std::vector<Tensor> three = {RowsOfWidth(3, 1)}, two = {RowsOfWidth(2, 1)};
  EXPECT_TRUE(rows.Note(3, three));
  EXPECT_TRUE(rows.Note(3, three));
  EXPECT_FALSE(rows.is_per_row());
  EXPECT_TRUE(rows.Note(2, two));
  EXPECT_TRUE(rows.is_per_row());
  EXPECT_FALSE(rows.Note(2, three));
  EXPECT_TRUE(rows.is_alone());
  EXPECT_FALSE(rows.is_per_row());
  EXPECT_TRUE(rows.Note(3, three));
  EXPECT_TRUE(rows.is_alone());
}

// --- Queues by parameters.

class BatchQueueTest : public ::testing::Test {
 protected:
  std::shared_ptr<BatchQueue> QueueWith(const BatchParameters& parameters) {
    return std::make_shared<BatchQueue>(BatchClient{.label = "a test", .parameters = parameters},
                                        &step_);
  }
  // A task that is admitted in one part.
  TestTask* Add(BatchQueue* queue, Tensor feed, absl::Time now) {
    TestTask* const task = tasks_.emplace_back(std::make_unique<TestTask>(std::move(feed))).get();
    const auto parts = queue->PartsOf(task->task.feeds, task->task.rows);
    EXPECT_OK(parts.status());
    if (parts.ok()) {
      EXPECT_EQ(*parts, std::vector<int64_t>{task->task.rows});
    }
    queue->Add(&task->task, now);
    return task;
  }
  static Status Refused(const BatchQueue& queue, const Tensor& feed) {
    return queue.PartsOf({&feed, 1}, feed.dim(0)).status();
  }

  const absl::Time start_ = absl::FromUnixSeconds(1000);
  RowStep step_;
  std::vector<std::unique_ptr<TestTask>> tasks_;
};

TEST_F(BatchQueueTest, TheTimeoutCountsFromTheFirstTaskOfTheOpenBatch) {
  const auto queue = QueueWith({.batch_timeout = absl::Seconds(10)});
  EXPECT_EQ(queue->ReadyAt(), absl::InfiniteFuture());
  TestTask* const a = Add(queue.get(), RowsOfWidth(1, 2), start_);
  TestTask* const b = Add(queue.get(), RowsOfWidth(1, 2), start_ + absl::Seconds(9));
  EXPECT_EQ(queue->ReadyAt(), start_ + absl::Seconds(10));
  EXPECT_TRUE(queue->Take(start_ + absl::Milliseconds(9999)).empty());
  EXPECT_EQ(AsVector(queue->Take(start_ + absl::Seconds(10))),
            (std::vector<BatchTask*>{&a->task, &b->task}));
  EXPECT_TRUE(queue->empty());
  Add(queue.get(), RowsOfWidth(1, 2), start_ + absl::Seconds(20));
  EXPECT_EQ(queue->ReadyAt(), start_ + absl::Seconds(30));
}

TEST_F(BatchQueueTest, ABatchClosesWhenItIsFullOrATaskDoesNotFitIn) {
  const auto queue = QueueWith(
      {.max_batch_size = 4, .batch_timeout = absl::Hours(1), .max_execution_batch_size = 4});
  TestTask* const a = Add(queue.get(), RowsOfWidth(3, 2), start_);
  EXPECT_TRUE(queue->Take(start_).empty());
  TestTask* const b = Add(queue.get(), RowsOfWidth(2, 2), start_);
  EXPECT_EQ(queue->ReadyAt(), absl::InfinitePast());
  EXPECT_EQ(AsVector(queue->Take(start_)), (std::vector<BatchTask*>{&a->task}));
  EXPECT_TRUE(queue->Take(start_).empty());
  TestTask* const c = Add(queue.get(), RowsOfWidth(2, 2), start_);
  EXPECT_EQ(AsVector(queue->Take(start_)), (std::vector<BatchTask*>{&b->task, &c->task}));
}

TEST_F(BatchQueueTest, InputsThatDoNotFitTogetherOpenBatchesOfTheirOwn) {
  const auto queue = QueueWith({.batch_timeout = absl::Hours(1)});
  TestTask* const a = Add(queue.get(), RowsOfWidth(1, 2), start_);
  TestTask* const b = Add(queue.get(), RowsOfWidth(1, 3), start_);
  TestTask* const c = Add(queue.get(), RowsOfWidth(1, 2), start_);
  const absl::Time late = start_ + absl::Hours(1);
  EXPECT_EQ(AsVector(queue->Take(late)), (std::vector<BatchTask*>{&a->task, &c->task}));
  EXPECT_EQ(AsVector(queue->Take(late)), (std::vector<BatchTask*>{&b->task}));
  const auto ragged = QueueWith({.pad_variable_length_inputs = true});
  TestTask* const d = Add(ragged.get(), RowsOfWidth(1, 2), start_);
  TestTask* const e = Add(ragged.get(), RowsOfWidth(1, 3), start_);
  EXPECT_EQ(AsVector(ragged->Take(start_)), (std::vector<BatchTask*>{&d->task, &e->task}));
}

TEST_F(BatchQueueTest, AFullQueueAndATaskThatIsTooLargeAreRefused) {
  const auto queue =
      QueueWith({.max_batch_size = 2, .max_enqueued_batches = 2, .max_execution_batch_size = 2});
  EXPECT_STATUS(Refused(*queue, RowsOfWidth(3, 1)), StatusCode::kInvalidArgument,
                "Task size 3 is larger than maximum input batch size 2");
  Add(queue.get(), RowsOfWidth(2, 1), start_);
  Add(queue.get(), RowsOfWidth(1, 1), start_);
  EXPECT_STATUS(Refused(*queue, RowsOfWidth(2, 1)), StatusCode::kUnavailable,
                "The batch scheduling queue to which this task was submitted is full; currently 2 "
                "batches enqueued and max_enqueued_batches is 2");
  EXPECT_STATUS(Refused(*queue, RowsOfWidth(1, 7)), StatusCode::kUnavailable, "is full");
  Add(queue.get(), RowsOfWidth(1, 1), start_);  // there is room for it
}

TEST_F(BatchQueueTest, ALargeTaskIsSplitIntoTheOpenBatchAndOthers) {
  const auto queue = QueueWith({.max_batch_size = 10,
                                .max_enqueued_batches = 3,
                                .enable_large_batch_splitting = true,
                                .max_execution_batch_size = 4});
  const Tensor ten = RowsOfWidth(10, 1);
  ASSERT_OK_AND_ASSIGN(std::vector<int64_t> parts, queue->PartsOf({&ten, 1}, 10));
  EXPECT_EQ(parts, (std::vector<int64_t>{4, 4, 2}));
  Add(queue.get(), RowsOfWidth(3, 1), start_);
  ASSERT_OK_AND_ASSIGN(parts, queue->PartsOf({&ten, 1}, 9));
  EXPECT_EQ(parts, (std::vector<int64_t>{1, 4, 4}));
  EXPECT_STATUS(Refused(*queue, ten), StatusCode::kUnavailable,
                "is full; task size is 10 but scheduling capacity is only 9 "
                "(num_enqueued_batches=1, max_enqueued_batches=3, open_batch_size=3, "
                "max_execution_batch_size=4)");
  EXPECT_STATUS(Refused(*queue, RowsOfWidth(11, 1)), StatusCode::kInvalidArgument,
                "Task size 11 is larger than maximum input batch size 10");
}

TEST_F(BatchQueueTest, WhoGivesUpLeavesRoom) {
  const auto queue = QueueWith({.max_batch_size = 2, .max_execution_batch_size = 2});
  TestTask* const a = Add(queue.get(), RowsOfWidth(1, 1), start_);
  TestTask* const b = Add(queue.get(), RowsOfWidth(1, 1), start_);
  queue->Remove(&a->task);
  TestTask* const c = Add(queue.get(), RowsOfWidth(1, 1), start_);
  EXPECT_EQ(AsVector(queue->Take(start_)), (std::vector<BatchTask*>{&b->task, &c->task}));
  TestTask* const d = Add(queue.get(), RowsOfWidth(1, 1), start_);
  queue->Remove(&d->task);
  EXPECT_TRUE(queue->empty());
}

TEST_F(BatchQueueTest, QueuesTakeTurns) {
  const BatchParameters one = {.max_batch_size = 1, .max_execution_batch_size = 1};
  const auto busy = QueueWith(one), quiet = QueueWith(one);
  BatchQueues queues;
  for (int i = 0; i < 3; ++i) Add(busy.get(), RowsOfWidth(1, 1), start_);
  queues.Update(busy);
  Add(quiet.get(), RowsOfWidth(1, 1), start_);
  queues.Update(quiet);
  EXPECT_EQ(queues.ReadyAt(), absl::InfinitePast());
  std::vector<BatchQueue*> turns;
  while (!queues.empty()) turns.push_back(queues.Take(start_).queue.get());
  EXPECT_EQ(turns, (std::vector<BatchQueue*>{busy.get(), quiet.get(), busy.get(), busy.get()}));
  EXPECT_EQ(queues.Take(start_).queue, nullptr);
  EXPECT_EQ(queues.ReadyAt(), absl::InfiniteFuture());
}

// --- Queues of what waits.

TEST(WaitingQueuesTest, ALeaderTakesWhatFitsAndQueuesTakeTurns) {
  WaitingQueues waiting;
  WaitingQueue a, b;
  TestTask a1(RowsOfWidth(1, 2)), a2(RowsOfWidth(1, 3)), a3(RowsOfWidth(2, 2));
  TestTask a4(RowsOfWidth(2, 2)), b1(RowsOfWidth(1, 2));
  for (TestTask* task : {&a1, &a2, &a3, &a4}) waiting.Add(&a, &task->task);
  waiting.Add(&b, &b1.task);
  EXPECT_EQ(waiting.NextLeader(), &a1.task);
  // a4 would make five rows.
  EXPECT_EQ(AsVector(waiting.TakeBatch(&a, &a1.task, 4)),
            (std::vector<BatchTask*>{&a1.task, &a3.task}));
  EXPECT_EQ(waiting.NextLeader(), &b1.task);
  EXPECT_EQ(AsVector(waiting.TakeBatch(&b, &b1.task, 4)), (std::vector<BatchTask*>{&b1.task}));
  EXPECT_EQ(waiting.NextLeader(), &a2.task);
  waiting.Remove(&a, &a4.task);
  EXPECT_TRUE(waiting.empty());
  EXPECT_EQ(AsVector(waiting.TakeBatch(&a, &a2.task, 4)), (std::vector<BatchTask*>{&a2.task}));
  EXPECT_EQ(waiting.NextLeader(), nullptr);
}

// --- What each task gets.

class RunBatchTest : public ::testing::Test {
 protected:
  // Runs the tasks as one batch; each is done once.
  void Run(RowStep* step, const std::vector<TestTask*>& tasks,
           const BatchParameters& parameters = {}) {
    BatchTasks batch;
    for (TestTask* task : tasks) batch.splice(batch.end(), task->task.seat);
    std::vector<BatchTask*> done;
    RunBatch({step, &rows_, &parameters, &clock_}, std::move(batch),
             [&](BatchTask* task) { done.push_back(task); });
    EXPECT_EQ(done.size(), tasks.size());
  }

  FakeClock clock_{absl::Now()};
  StepRows rows_{"a test"};
};

TEST_F(RunBatchTest, EachTaskGetsItsRows) {
  RowStep step;
  TestTask a(TensorOf<float>({1, 1}, {1})), b(TensorOf<float>({2, 1}, {2, 3}));
  Run(&step, {&a, &b});
  ASSERT_OK(a.task.status);
  ASSERT_OK(b.task.status);
  ExpectTensorEqual(a.result, TensorOf<float>({1, 1}, {11}));
  ExpectTensorEqual(b.result, TensorOf<float>({2, 1}, {21, 31}));
  // The first batch of a step takes one more step, as a proof; no other does.
  EXPECT_EQ(step.rows(), (std::vector<int64_t>{3, 1}));
  TestTask c(TensorOf<float>({1, 1}, {4})), d(TensorOf<float>({1, 1}, {5}));
  Run(&step, {&c, &d});
  ExpectTensorEqual(d.result, TensorOf<float>({1, 1}, {51}));
  EXPECT_EQ(step.rows(), (std::vector<int64_t>{3, 1, 2}));
}

TEST_F(RunBatchTest, OnlyTheGuiltyFail) {
  RowStep step;
  TestTask a(TensorOf<float>({1, 1}, {1})), bad(TensorOf<float>({1, 1}, {-1}));
  TestTask c(TensorOf<float>({1, 1}, {3}));
  Run(&step, {&a, &bad, &c});
  ASSERT_OK(a.task.status);
  ASSERT_OK(c.task.status);
  EXPECT_STATUS(bad.task.status, StatusCode::kInvalidArgument, "negative");
  EXPECT_FALSE(bad.result.has_value());
  ExpectTensorEqual(c.result, TensorOf<float>({1, 1}, {31}));
  // All; the first half, which is one; the second half, and each of its two.
  EXPECT_EQ(step.rows(), (std::vector<int64_t>{3, 1, 2, 1, 1}));
}

TEST_F(RunBatchTest, OneBadTaskIsFoundByHalving) {
  RowStep step;
  std::vector<std::unique_ptr<TestTask>> tasks;
  std::vector<TestTask*> batch;
  constexpr size_t kTasks = 16, kBad = 5;
  for (size_t i = 0; i < kTasks; ++i) {
    const float value = i == kBad ? -1 : static_cast<float>(i);
    tasks.push_back(std::make_unique<TestTask>(TensorOf<float>({1, 1}, {value})));
    batch.push_back(tasks.back().get());
  }
  Run(&step, batch);
  for (size_t i = 0; i < kTasks; ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(tasks[i]->task.status.ok(), i != kBad);
    if (i == kBad) continue;
    ExpectTensorEqual(tasks[i]->result, TensorOf<float>({1, 1}, {10 * static_cast<float>(i) + 1}));
  }
  // All, 0-7, 0-3 with the proof of a step that has run with no other number of rows, 4-7, 4-5, 4,
  // the bad one, 6-7, 8-15.
  EXPECT_EQ(step.rows(), (std::vector<int64_t>{16, 8, 4, 1, 4, 2, 1, 1, 2, 8}));
}

// A step that fails for more than two rows at a time serves all of them.
TEST_F(RunBatchTest, WhatIsTooMuchAtOnceRunsInParts) {
  RowStep step([](const Tensor& input) -> StatusOr<Tensor> {
    if (input.dim(0) > 2) return absl::ResourceExhaustedError("too many rows");
    return RowStep::TenTimesPlusOne(input);
  });
  TestTask a(TensorOf<float>({1, 1}, {1})), b(TensorOf<float>({1, 1}, {2}));
  TestTask c(TensorOf<float>({1, 1}, {3})), d(TensorOf<float>({1, 1}, {4}));
  Run(&step, {&a, &b, &c, &d});
  for (TestTask* task : {&a, &b, &c, &d}) EXPECT_OK(task->task.status);
  ExpectTensorEqual(d.result, TensorOf<float>({1, 1}, {41}));
  EXPECT_EQ(step.rows(), (std::vector<int64_t>{4, 2, 1, 2}));
}

TEST_F(RunBatchTest, PaddingIsTheFirstRowOfTheLastTaskAndIsDropped) {
  RowStep step;
  const BatchParameters parameters = {
      .max_batch_size = 8, .allowed_batch_sizes = {2, 8}, .max_execution_batch_size = 8};
  TestTask a(TensorOf<float>({1, 1}, {1})), b(TensorOf<float>({2, 1}, {2, 3}));
  Run(&step, {&a, &b}, parameters);
  ASSERT_OK(b.task.status);
  ExpectTensorEqual(a.result, TensorOf<float>({1, 1}, {11}));
  ExpectTensorEqual(b.result, TensorOf<float>({2, 1}, {21, 31}));
  ExpectTensorEqual(step.inputs()[0], TensorOf<float>({8, 1}, {1, 2, 3, 2, 2, 2, 2, 2}));
  TestTask alone(TensorOf<float>({1, 1}, {7}));
  Run(&step, {&alone}, parameters);
  ExpectTensorEqual(alone.result, TensorOf<float>({1, 1}, {71}));
  EXPECT_EQ(step.rows().back(), 2);
}

TEST_F(RunBatchTest, RaggedRowsAreRunPadded) {
  RowStep step;
  TestTask a(TensorOf<float>({1, 1}, {1})), b(TensorOf<float>({1, 2}, {2, 3}));
  TestTask c(TensorOf<float>({1, 1}, {4})), d(TensorOf<float>({1, 2}, {5, 6}));
  Run(&step, {&a, &b}, {.pad_variable_length_inputs = true});
  Run(&step, {&c, &d}, {.pad_variable_length_inputs = true});
  ExpectTensorEqual(c.result, TensorOf<float>({1, 2}, {41, 41}));
  ExpectTensorEqual(d.result, TensorOf<float>({1, 2}, {51, 61}));
}

TEST_F(RunBatchTest, TasksThatEndedInTheQueueHoldNoneUp) {
  RowStep step;
  CancellationManager cancellation;
  cancellation.StartCancel();
  TestTask late(TensorOf<float>({1, 1}, {1})), gone(TensorOf<float>({1, 1}, {2}));
  TestTask good(TensorOf<float>({1, 1}, {3}));
  late.task.bounds.deadline = clock_.Now();
  gone.task.bounds.cancellation = &cancellation;
  Run(&step, {&late, &gone, &good});
  EXPECT_STATUS(late.task.status, StatusCode::kResourceExhausted,
                "Run() timeout exceeded while waiting in batching queue");
  EXPECT_STATUS(gone.task.status, StatusCode::kCancelled, "");
  ASSERT_OK(good.task.status);
  EXPECT_EQ(step.rows(), std::vector<int64_t>{1});
}

// An output of constant shape [2] looks per row to a batch of two.
TEST_F(RunBatchTest, AnOutputThatHappensToHaveTheRowsOfTheBatchIsNotSplit) {
  const Tensor constant = TensorOf<float>({2}, {1, 2});
  RowStep step([&](const Tensor&) -> StatusOr<Tensor> { return constant; });
  TestTask a(TensorOf<float>({1, 1}, {1})), b(TensorOf<float>({1, 1}, {2}));
  Run(&step, {&a, &b});
  ASSERT_OK(a.task.status);
  ASSERT_OK(b.task.status);
  ExpectTensorEqual(a.result, constant);
  ExpectTensorEqual(b.result, constant);
  EXPECT_TRUE(rows_.is_alone());
  TestTask c(TensorOf<float>({1, 1}, {1})), d(TensorOf<float>({1, 1}, {2}));
  Run(&step, {&c, &d});
  ExpectTensorEqual(d.result, constant);
  EXPECT_EQ(step.rows(), (std::vector<int64_t>{2, 1, 1, 1, 1}));
}

TEST_F(RunBatchTest, AnExceptionOfTheStepIsAnError) {
  RowStep step([](const Tensor&) -> StatusOr<Tensor> { throw std::bad_alloc(); });
  TestTask a(TensorOf<float>({1, 1}, {1})), b(TensorOf<float>({1, 1}, {2}));
  Run(&step, {&a, &b});
  EXPECT_STATUS(a.task.status, StatusCode::kResourceExhausted, "out of memory");
  EXPECT_STATUS(b.task.status, StatusCode::kResourceExhausted, "out of memory");
}

}  // namespace
}  // namespace millrace

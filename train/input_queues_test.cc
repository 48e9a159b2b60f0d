// SPDX-License-Identifier: Apache-2.0
#include "train/input_queues.h"

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "core/notification.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "train/coordinator.h"
#include "train/monitored_session.h"
#include "train/queue_runner.h"
#include "train/session_creator.h"

// covers: training: queue runners fill queues, end with the data, with an error and with a loop;
//   batches and epochs of queues

namespace millrace {
namespace {

using absl::StatusCode;

// A session of the graph with local variables, and its queue runners.
class InputQueuesTest : public ::testing::Test {
 protected:
  ~InputQueuesTest() override {
    coordinator_.RequestStop();
    EXPECT_OK(coordinator_.Join());
  }
  void Start() {
    const Operation init = LocalVariablesInitializer(root_);
    ASSERT_OK_AND_ASSIGN(session_, NewSession());
    ASSERT_OK(session_->Extend(root_));
    ASSERT_OK(session_->Run({}, {}, {init}).status());
    ASSERT_OK(StartQueueRunners(root_, session_, coordinator_).status());
  }
  // What the dequeues of `queue` give until the end of the data.
  std::string AllOf(const Output& element) {
    std::vector<std::string> all;
    while (true) {
      const auto out = session_->Run({}, {element});
      if (absl::IsOutOfRange(out.status())) break;
      EXPECT_OK(out.status());
      if (!out.ok()) break;
      all.push_back((*out)[0].scalar<std::string>());
    }
    return absl::StrJoin(all, " ");
  }

  Scope root_;
  std::shared_ptr<Session> session_;
  Coordinator coordinator_;
};

TEST_F(InputQueuesTest, AProducerGivesItsStringsEpochByEpochAndThenTheEnd) {
  const Output queue =
      StringInputProducer(root_, {"a", "b", "c"}, {.num_epochs = 2, .shuffle = false});
  const Output next = QueueDequeueV2(root_, queue, {DT_STRING})[0];
  ASSERT_OK(root_.status());
  EXPECT_EQ(queue.op().name(), "input_producer/FIFOQueueV2");
  Start();
  EXPECT_EQ(AllOf(next), "a b c a b c");
  EXPECT_OK(coordinator_.error());
}

TEST_F(InputQueuesTest, QueuesMayBeMadeAfterTheSessionWasExtended) {
  Const(root_, 1.0f);
  ASSERT_OK_AND_ASSIGN(session_, NewSession());
  ASSERT_OK(session_->Extend(root_));
  const Output queue = StringInputProducer(root_, {"a", "b"}, {.shuffle = false});
  const Output next = QueueDequeueV2(root_, queue, {DT_STRING})[0];
  ASSERT_OK(root_.status());
  ASSERT_OK(StartQueueRunners(root_, session_, coordinator_).status());
  for (const char* want : {"a", "b", "a"}) {
    ASSERT_OK_AND_ASSIGN(const auto out, session_->Run({}, {next}));
    EXPECT_EQ(out[0].scalar<std::string>(), want);
  }
}

TEST_F(InputQueuesTest, AShuffledEpochHasEachStringOnce) {
  std::vector<std::string> names;
  for (char c = 'a'; c <= 'p'; ++c) names.emplace_back(1, c);
  const Output queue = StringInputProducer(root_, names, {.num_epochs = 1, .seed = 3});
  const Output next = QueueDequeueV2(root_, queue, {DT_STRING})[0];
  Start();
  std::string all = AllOf(next);
  EXPECT_NE(all, absl::StrJoin(names, " "));
  std::sort(all.begin(), all.end());
  EXPECT_TRUE(absl::EndsWith(all, absl::StrJoin(names, ""))) << all;
}

TEST_F(InputQueuesTest, BatchesHaveRowsOfRunsAndTheLastOneMayBeSmaller) {
  for (const bool smaller : {true, false}) {
    SCOPED_TRACE(smaller);
    Scope root;
    const Output queue =
        InputProducer(root, Const(root, {1, 2, 3, 4, 5}), {.num_epochs = 1, .shuffle = false});
    const Output number = QueueDequeueV2(root, queue, {DT_INT32})[0];
    root.SetShape(number, Shape());
    const std::vector<Output> batch = Batch(root, {number, Mul(root, number, number)}, 2,
                                            {.capacity = 10, .allow_smaller_final_batch = smaller});
    ASSERT_OK(root.status());
    const Operation init = LocalVariablesInitializer(root);
    ASSERT_OK_AND_ASSIGN(std::shared_ptr<Session> session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}).status());
    Coordinator coordinator;
    ASSERT_OK_AND_ASSIGN(const int threads, StartQueueRunners(root, session, coordinator));
    EXPECT_EQ(threads, 2);
    for (int i = 1; i < 5; i += 2) {
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {batch[0], batch[1]}));
      ExpectTensorEqual(out[0], Tensor::Of<int32_t>({i, i + 1}));
      ExpectTensorEqual(out[1], Tensor::Of<int32_t>({i * i, (i + 1) * (i + 1)}));
    }
    const auto last = session->Run({}, {batch[0]});
    if (smaller) {
      ASSERT_OK(last.status());
      ExpectTensorEqual((*last)[0], Tensor::Of<int32_t>({5}));
    } else {
      EXPECT_STATUS(last.status(), StatusCode::kOutOfRange,
                    "is closed and has insufficient elements (requested 2, current size 1)");
    }
    coordinator.RequestStop();
    EXPECT_OK(coordinator.Join());
  }
}

TEST_F(InputQueuesTest, ElementsOfDifferentSizesArePaddedOrRefused) {
  const Output x = Placeholder(root_.WithName("x"), DT_INT32, {-1});
  EXPECT_EQ(Batch(root_, {x}, 2, {.dynamic_pad = true}).size(), 1u);
  ASSERT_OK(root_.status());
  EXPECT_EQ(Batch(root_, {x}, 2).size(), 1u);
  EXPECT_STATUS(root_.status(), StatusCode::kInvalidArgument,
                "Input queue 'batch': 'x:0' must have a known shape, got [?]; SetShape says what "
                "the graph does not know, dynamic_pad pads");
}

TEST_F(InputQueuesTest, AShuffledBatchIsDrawnFromWhatTheQueueHas) {
  std::vector<int32_t> numbers(50);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i);
  const Output queue = InputProducer(root_, Const(root_, Tensor::Vector<int32_t>(numbers)),
                                     {.num_epochs = 1, .shuffle = false});
  const Output number = QueueDequeueV2(root_, queue, {DT_INT32})[0];
  root_.SetShape(number, Shape());
  const Output batch =
      ShuffleBatch(root_, {number}, 10,
                   {.num_threads = 2, .capacity = 40, .min_after_dequeue = 20, .seed = 5})[0];
  ASSERT_OK(root_.status());
  EXPECT_EQ(root_.shape(batch).ToString(), "[10]");
  Start();
  std::vector<int32_t> all;
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session_->Run({}, {batch}));
    for (const int32_t v : out[0].flat<int32_t>()) all.push_back(v);
  }
  EXPECT_STATUS(session_->Run({}, {batch}).status(), StatusCode::kOutOfRange, "");
  EXPECT_FALSE(std::is_sorted(all.begin(), all.end()));
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, numbers);
}

TEST_F(InputQueuesTest, AnErrorOfAnEnqueueIsTheCoordinators) {
  const Output bad =
      CheckNumerics(root_, Div(root_, Const(root_, 0.0f), Const(root_, 0.0f)), "bad");
  const Output queue = FIFOQueueV2(root_.WithName("q"), {DT_FLOAT});
  AddQueueRunner(root_, queue, {QueueEnqueueV2(root_, queue, {bad})});
  ASSERT_OK(root_.status());
  ASSERT_OK_AND_ASSIGN(session_, NewSession());
  ASSERT_OK(session_->Extend(root_));
  Coordinator coordinator;
  ASSERT_OK(StartQueueRunners(root_, session_, coordinator).status());
  coordinator.WaitForStop();
  EXPECT_STATUS(coordinator.Join(), StatusCode::kInvalidArgument, "Queue runner of 'q': ");
}

TEST_F(InputQueuesTest, ACollectionThatNamesWhatIsNotThereIsRefused) {
  tensorflow::QueueRunnerDef def;
  def.set_queue_name("q");
  def.add_enqueue_op_name("gone");
  root_.AddToBytesCollection("queue_runners", def.SerializeAsString());
  EXPECT_STATUS(QueueRunnersOf(root_).status(), StatusCode::kInvalidArgument,
                "the runner of 'q' must name operations of the graph, got 'gone'");
  Scope other;
  other.AddToBytesCollection("queue_runners", "\xff");
  EXPECT_STATUS(QueueRunnersOf(other).status(), StatusCode::kInvalidArgument,
                "entry 0 must be a QueueRunnerDef, got 1 bytes of something else");
  Scope empty;
  StringInputProducer(empty, {});
  EXPECT_STATUS(empty.status(), StatusCode::kInvalidArgument,
                "string_input_producer requires a non-null input tensor");
}

// The loop's session starts the threads, the end of the data ends the loop, and all threads end.
TEST_F(InputQueuesTest, AMonitoredLoopEndsWithTheDataOfItsQueues) {
  const Output queue = InputProducer(root_, Const(root_, {1.f, 2.f, 3.f, 4.f, 5.f, 6.f}),
                                     {.num_epochs = 2, .capacity = 2});
  const Output number = QueueDequeueV2(root_, queue, {DT_FLOAT})[0];
  root_.SetShape(number, Shape());
  const Output batch = Batch(root_, {number}, 3, {.capacity = 3})[0];
  const Variable sum = MakeVariable(root_.WithName("sum"), Const(root_, 0.0f));
  const Operation add = AssignAddVariableOp(root_, sum.handle, ReduceSum(root_, batch));
  ASSERT_OK(root_.status());
  ASSERT_OK_AND_ASSIGN(const auto session, SingularMonitoredSession(root_, {}));
  int runs = 0;
  float total = 0;
  while (!session->ShouldStop()) {
    const auto out = session->Run({}, {}, {add});
    if (!out.ok()) {
      EXPECT_TRUE(absl::IsOutOfRange(out.status())) << out.status();
      break;
    }
    ++runs;
    ASSERT_OK_AND_ASSIGN(const auto now, session->raw_session()->Run({}, {sum.value}));
    total = now[0].scalar<float>();
  }
  EXPECT_TRUE(session->ShouldStop());
  EXPECT_OK(session->Close());
  EXPECT_EQ(runs, 4);
  EXPECT_EQ(total, 42);
}

// Its threads wait for room in their queues.
TEST_F(InputQueuesTest, AMonitoredLoopThatIsStoppedEndsItsQueueRunners) {
  const Output queue = InputProducer(root_, Const(root_, {1.f, 2.f, 3.f}), {.capacity = 2});
  const Output number = QueueDequeueV2(root_, queue, {DT_FLOAT})[0];
  root_.SetShape(number, Shape());
  const Output batch = Batch(root_, {number}, 3, {.num_threads = 3, .capacity = 3})[0];
  ASSERT_OK_AND_ASSIGN(const auto session, SingularMonitoredSession(root_, {}));
  ASSERT_OK(session->Run({}, {batch}).status());
  session->RequestStop("enough");
  // Threads may take two minutes to end; the test has one.
  EXPECT_OK(session->Close());
}

}  // namespace
}  // namespace millrace

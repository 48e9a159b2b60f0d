// SPDX-License-Identifier: Apache-2.0
#include "ops/control/queue.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/cancellation.h"
#include "core/notification.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "proto/node_def.pb.h"
#include "runtime/testing/op_test.h"

// covers: training: queues shuffle and pad; waiting ops take no thread
// covers: clusters: elements that a step took and lost are back in the queue, first and in order

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

// One attempt that runs beside others: its kernel, its inputs and outputs, its step's cancellation.
class Attempt {
 public:
  Attempt(OpTestDevice* device, const std::string& op, std::vector<Tensor> inputs,
          std::vector<DType> outputs)
      : outputs_(outputs.size()), output_types_(std::move(outputs)), step_(device->step()) {
    for (Tensor& t : inputs) {
      input_types_.push_back(t.dtype());
      inputs_.push_back(std::move(t));
    }
    node_.set_op(op);
    node_.set_name("attempt");
    const std::vector<DType> components(input_types_.begin() + 1, input_types_.end());
    const bool enqueue = op.find("Enqueue") != std::string::npos;
    SetAttr(enqueue ? components : output_types_,
            &(*node_.mutable_attr())[enqueue ? "Tcomponents" : "component_types"]);
    const OpEntry* entry = LookUpOp(op);
    EXPECT_NE(entry, nullptr);
    AddDefaultAttrs(entry->def, &node_);
    KernelConstruction construction(&node_, &entry->def, device->device(), input_types_,
                                    output_types_, 134);
    auto kernel = MakeKernel(&construction);
    EXPECT_OK(kernel.status());
    kernel_ = *std::move(kernel);
    step_.cancellation = &cancellation_;
    frame_ = KernelFrame{.step = &step_,
                         .node_name = &node_.name(),
                         .inputs = inputs_.data(),
                         .outputs = outputs_.data(),
                         .output_types = output_types_.data(),
                         .num_inputs = static_cast<uint32_t>(inputs_.size()),
                         .num_outputs = static_cast<uint32_t>(outputs_.size())};
    context_ = std::make_unique<KernelContext>(&frame_);
    kernel_->AsAsync()->ComputeAsync(context_.get(), [this](Status status) {
      status_ = std::move(status);
      EXPECT_FALSE(done_.HasBeenNotified());
      done_.Notify();
    });
  }
  bool done() const { return done_.HasBeenNotified(); }
  Status Wait() {
    done_.Wait();
    return status_;
  }
  const Tensor& output(size_t i) { return outputs_[i]; }
  void Cancel() { cancellation_.StartCancel(); }

 private:
  tensorflow::NodeDef node_;
  std::vector<EdgeValue> inputs_, outputs_;
  std::vector<DType> input_types_, output_types_;
  CancellationManager cancellation_;
  StepContext step_;
  KernelFrame frame_;
  std::unique_ptr<Kernel> kernel_;
  std::unique_ptr<KernelContext> context_;
  Status status_;
  Notification done_;
};

class FIFOQueueTest : public ::testing::Test {
 protected:
  Tensor MakeQueue(int64_t capacity = -1, const std::vector<PartialShape>& shapes = {{}},
                   const std::vector<DType>& types = {DT_INT32}) {
    return RunOp1(QueueCall(capacity, shapes, types));
  }
  OpCall QueueCall(int64_t capacity, const std::vector<PartialShape>& shapes,
                   const std::vector<DType>& types) {
    std::vector<PartialShape> known;
    for (const PartialShape& s : shapes) known.push_back(s.has_rank() ? s : PartialShape::Scalar());
    return OpCall("FIFOQueueV2")
        .Name("q")
        .Attr("component_types", types)
        .Attr("shapes", known)
        .Attr("capacity", capacity)
        .On(&device_);
  }
  std::unique_ptr<Attempt> Enqueue(const Tensor& queue, std::vector<Tensor> components) {
    components.insert(components.begin(), queue);
    return std::make_unique<Attempt>(&device_, "QueueEnqueueV2", std::move(components),
                                     std::vector<DType>());
  }
  std::unique_ptr<Attempt> EnqueueMany(const Tensor& queue, std::vector<Tensor> components) {
    components.insert(components.begin(), queue);
    return std::make_unique<Attempt>(&device_, "QueueEnqueueManyV2", std::move(components),
                                     std::vector<DType>());
  }
  std::unique_ptr<Attempt> Dequeue(const Tensor& queue, std::vector<DType> types = {DT_INT32}) {
    return std::make_unique<Attempt>(&device_, "QueueDequeueV2", std::vector<Tensor>{queue}, types);
  }
  std::unique_ptr<Attempt> DequeueMany(const Tensor& queue, int32_t n,
                                       const char* op = "QueueDequeueManyV2",
                                       std::vector<DType> types = {DT_INT32}) {
    return std::make_unique<Attempt>(&device_, op, std::vector<Tensor>{queue, Int(n)}, types);
  }
  void Close(const Tensor& queue, bool cancel_pending = false) {
    ASSERT_OK(RunOp(OpCall("QueueCloseV2")
                        .Input(queue)
                        .Attr("cancel_pending_enqueues", cancel_pending)
                        .On(&device_)));
  }
  int32_t Size(const Tensor& queue) {
    return RunOp1(OpCall("QueueSizeV2").Input(queue).On(&device_)).scalar<int32_t>();
  }

  OpTestDevice device_;
};

TEST_F(FIFOQueueTest, GivesElementsInTheOrderTheyCame) {
  const Tensor q = MakeQueue(-1, {{}, {}}, {DT_INT32, DT_STRING});
  ASSERT_OK(Enqueue(q, {Int(1), Tensor::Scalar("a")})->Wait());
  ASSERT_OK(EnqueueMany(q, {Ints({2, 3}), TensorOf<std::string>({2}, {"b", "c"})})->Wait());
  EXPECT_EQ(Size(q), 3);
  auto one = Dequeue(q, {DT_INT32, DT_STRING});
  ASSERT_OK(one->Wait());
  ExpectTensorEqual(one->output(0), Int(1));
  ExpectTensorEqual(one->output(1), Tensor::Scalar("a"));
  auto two = DequeueMany(q, 2, "QueueDequeueManyV2", {DT_INT32, DT_STRING});
  ASSERT_OK(two->Wait());
  ExpectTensorEqual(two->output(0), Ints({2, 3}));
  ExpectTensorEqual(two->output(1), TensorOf<std::string>({2}, {"b", "c"}));
  EXPECT_EQ(Size(q), 0);
}

TEST_F(FIFOQueueTest, DequeuesWaitAndAreServedInOrder) {
  const Tensor q = MakeQueue();
  auto first = Dequeue(q), second = Dequeue(q);
  EXPECT_FALSE(first->done());
  ASSERT_OK(Enqueue(q, {Int(1)})->Wait());
  ASSERT_OK(first->Wait());
  EXPECT_FALSE(second->done());
  ASSERT_OK(Enqueue(q, {Int(2)})->Wait());
  ASSERT_OK(second->Wait());
  ExpectTensorEqual(first->output(0), Int(1));
  ExpectTensorEqual(second->output(0), Int(2));
}

TEST_F(FIFOQueueTest, AFullQueueMakesEnqueuesWait) {
  const Tensor q = MakeQueue(2);
  auto many = EnqueueMany(q, {Ints({1, 2, 3, 4})});
  auto after = Enqueue(q, {Int(5)});
  EXPECT_FALSE(many->done());
  EXPECT_EQ(Size(q), 2);
  auto five = DequeueMany(q, 5);
  ASSERT_OK(five->Wait());
  ASSERT_OK(many->Wait());
  ASSERT_OK(after->Wait());
  ExpectTensorEqual(five->output(0), Ints({1, 2, 3, 4, 5}));
}

TEST_F(FIFOQueueTest, ALargeDequeueHoldsBackTheSmallOneBehindIt) {
  const Tensor q = MakeQueue();
  auto large = DequeueMany(q, 3);
  auto small = Dequeue(q);
  ASSERT_OK(EnqueueMany(q, {Ints({1, 2})})->Wait());
  EXPECT_FALSE(large->done());
  EXPECT_FALSE(small->done());
  ASSERT_OK(EnqueueMany(q, {Ints({3, 4})})->Wait());
  ASSERT_OK(large->Wait());
  ASSERT_OK(small->Wait());
  ExpectTensorEqual(large->output(0), Ints({1, 2, 3}));
  ExpectTensorEqual(small->output(0), Int(4));
}

TEST_F(FIFOQueueTest, ClosedQueueGivesWhatIsLeftAndThenTheEnd) {
  const Tensor q = MakeQueue();
  ASSERT_OK(EnqueueMany(q, {Ints({1, 2, 3})})->Wait());
  Close(q);
  EXPECT_TRUE(RunOp1(OpCall("QueueIsClosedV2").Input(q).On(&device_)).scalar<bool>());
  EXPECT_STATUS(Enqueue(q, {Int(4)})->Wait(), absl::StatusCode::kCancelled,
                "FIFOQueue 'q' is closed.");
  EXPECT_STATUS(DequeueMany(q, 4)->Wait(), absl::StatusCode::kOutOfRange,
                "FIFOQueue 'q' is closed and has insufficient elements (requested 4, current size "
                "3)");
  EXPECT_EQ(Size(q), 3);  // put back
  auto some = DequeueMany(q, 4, "QueueDequeueUpToV2");
  ASSERT_OK(some->Wait());
  ExpectTensorEqual(some->output(0), Ints({1, 2, 3}));
  EXPECT_STATUS(Dequeue(q)->Wait(), absl::StatusCode::kOutOfRange,
                "FIFOQueue 'q' is closed and has insufficient elements (requested 1, current size "
                "0)");
  EXPECT_STATUS(DequeueMany(q, 4, "QueueDequeueUpToV2")->Wait(), absl::StatusCode::kOutOfRange,
                "insufficient elements");
}

TEST_F(FIFOQueueTest, CloseEndsWaitingDequeues) {
  const Tensor q = MakeQueue();
  auto waiting = Dequeue(q);
  Close(q);
  EXPECT_STATUS(waiting->Wait(), absl::StatusCode::kOutOfRange, "is closed");
}

TEST_F(FIFOQueueTest, CloseLetsWaitingEnqueuesFinishUnlessTheyAreCancelled) {
  const Tensor q = MakeQueue(1);
  ASSERT_OK(Enqueue(q, {Int(1)})->Wait());
  auto waiting = Enqueue(q, {Int(2)});
  Close(q);
  EXPECT_FALSE(waiting->done());
  // Arrives after the close, behind one that waits.
  EXPECT_STATUS(Enqueue(q, {Int(3)})->Wait(), absl::StatusCode::kCancelled, "is closed.");
  auto both = DequeueMany(q, 2);
  ASSERT_OK(both->Wait());
  ASSERT_OK(waiting->Wait());
  ExpectTensorEqual(both->output(0), Ints({1, 2}));
  EXPECT_STATUS(Dequeue(q)->Wait(), absl::StatusCode::kOutOfRange, "is closed");
}

TEST_F(FIFOQueueTest, CloseCancelsWaitingEnqueuesWhenAskedTo) {
  const Tensor q = MakeQueue(1);
  ASSERT_OK(Enqueue(q, {Int(1)})->Wait());
  auto waiting = Enqueue(q, {Int(2)});
  Close(q, /*cancel_pending=*/true);
  EXPECT_STATUS(waiting->Wait(), absl::StatusCode::kCancelled, "Enqueue operation was cancelled");
  ASSERT_OK(Dequeue(q)->Wait());
}

TEST_F(FIFOQueueTest, ACancelledStepLeavesTheLine) {
  const Tensor q = MakeQueue();
  auto first = DequeueMany(q, 2), second = Dequeue(q);
  ASSERT_OK(Enqueue(q, {Int(1)})->Wait());
  EXPECT_FALSE(second->done());
  first->Cancel();
  EXPECT_STATUS(first->Wait(), absl::StatusCode::kCancelled, "Dequeue operation was cancelled");
  // What the cancelled attempt had collected goes to the next one.
  ASSERT_OK(second->Wait());
  ExpectTensorEqual(second->output(0), Int(1));

  const Tensor full = RunOp1(OpCall("FIFOQueueV2")
                                 .Name("full")
                                 .Attr("component_types", std::vector<DType>{DT_INT32})
                                 .Attr("capacity", int64_t{0})
                                 .On(&device_));
  auto blocked = Enqueue(full, {Int(1)});
  blocked->Cancel();
  EXPECT_STATUS(blocked->Wait(), absl::StatusCode::kCancelled, "Enqueue operation was cancelled");
}

TEST_F(FIFOQueueTest, RefusesOtherTypesAndShapes) {
  const Tensor q = MakeQueue(-1, {PartialShape({2})});
  EXPECT_STATUS(Enqueue(q, {Tensor::Scalar<float>(1)})->Wait(), kInvalid,
                "has component types [int32], got [float]");
  EXPECT_STATUS(Enqueue(q, {Ints({1, 2, 3})})->Wait(), kInvalid,
                "Shape mismatch in tuple component 0. Expected [2], got [3]");
  EXPECT_STATUS(EnqueueMany(q, {Ints({1, 2})})->Wait(), kInvalid,
                "Shape mismatch in tuple component 0. Expected [2], got []");
  EXPECT_STATUS(EnqueueMany(q, {Int(1)})->Wait(), kInvalid, "must have rank >= 1");
  EXPECT_STATUS(DequeueMany(q, -1)->Wait(), kInvalid, "n must be >= 0, got -1");
  const Tensor pairs = RunOp1(OpCall("FIFOQueueV2")
                                  .Name("pairs")
                                  .Attr("component_types", std::vector<DType>{DT_INT32, DT_INT32})
                                  .On(&device_));
  EXPECT_STATUS(EnqueueMany(pairs, {Ints({1, 2}), Ints({1})})->Wait(), kInvalid,
                "All input tensors must have the same size in the 0th dimension. Component 1 has "
                "1, and should have 2");
  EXPECT_STATUS(DequeueMany(pairs, 1, "QueueDequeueManyV2", {DT_INT32, DT_INT32})->Wait(), kInvalid,
                "require the components to have specified shapes");
}

TEST_F(FIFOQueueTest, DequeueOfNoElementsIsEmptyAndNeverWaits) {
  const Tensor q = MakeQueue(-1, {PartialShape({3})});
  auto none = DequeueMany(q, 0);
  ASSERT_OK(none->Wait());
  ExpectTensorEqual(none->output(0), TensorOf<int32_t>({0, 3}, {}));
}

TEST_F(FIFOQueueTest, ASharedQueueMustBeTheSame) {
  MakeQueue(5);
  const std::vector<DType> ints = {DT_INT32};
  ExpectOpError(QueueCall(6, {{}}, ints), kInvalid,
                "Shared queue 'q' has capacity 5 but requested capacity was 6");
  ExpectOpError(QueueCall(5, {{}}, {DT_FLOAT}), kInvalid,
                "Shared queue 'q' has component types [int32] but requested component types were "
                "[float]");
  ExpectOpError(QueueCall(5, {PartialShape({1})}, ints), kInvalid,
                "Shared queue 'q' has component shapes [[]] but requested component shapes were "
                "[[1]]");
  ExpectOpError(OpCall("FIFOQueueV2")
                    .Attr("component_types", ints)
                    .Attr("shapes", std::vector<PartialShape>{PartialShape({-1})}),
                kInvalid, "shapes[0] must be fully defined, got [?]");
}

// --- PaddingFIFOQueueV2, RandomShuffleQueueV2 ----------------------------------------------------

class OtherQueuesTest : public FIFOQueueTest {
 protected:
  OpCall PaddingCall(const std::vector<PartialShape>& shapes, const std::vector<DType>& types) {
    return OpCall("PaddingFIFOQueueV2")
        .Name("q")
        .Attr("component_types", types)
        .Attr("shapes", shapes)
        .On(&device_);
  }
  OpCall ShuffleCall(int64_t min_after_dequeue, int64_t seed, const std::string& name = "q") {
    return OpCall("RandomShuffleQueueV2")
        .Name(name)
        .Attr("component_types", std::vector<DType>{DT_INT32})
        .Attr("shapes", std::vector<PartialShape>{PartialShape::Scalar()})
        .Attr("min_after_dequeue", min_after_dequeue)
        .Attr("capacity", int64_t{100})
        .Attr("seed", seed)
        .Attr("seed2", seed)
        .On(&device_);
  }
  std::vector<int32_t> Values(const Tensor& t) {
    const auto flat = t.flat<int32_t>();
    return {flat.begin(), flat.end()};
  }
};

TEST_F(OtherQueuesTest, PaddingFillsRowsUpToTheLargestOfTheBatch) {
  const std::vector<DType> types = {DT_INT32, DT_STRING};
  const Tensor q = RunOp1(PaddingCall({PartialShape({-1, 2}), PartialShape({-1})}, types));
  ASSERT_OK(Enqueue(q, {TensorOf<int32_t>({1, 2}, {1, 2}), TensorOf<std::string>({2}, {"a", "b"})})
                ->Wait());
  ASSERT_OK(Enqueue(q, {TensorOf<int32_t>({2, 2}, {3, 4, 5, 6}), TensorOf<std::string>({0}, {})})
                ->Wait());
  auto two = DequeueMany(q, 2, "QueueDequeueManyV2", types);
  ASSERT_OK(two->Wait());
  ExpectTensorEqual(two->output(0), TensorOf<int32_t>({2, 2, 2}, {1, 2, 0, 0, 3, 4, 5, 6}));
  ExpectTensorEqual(two->output(1), TensorOf<std::string>({2, 2}, {"a", "b", "", ""}));
  // One by one they are what they were.
  ASSERT_OK(
      Enqueue(q, {TensorOf<int32_t>({1, 2}, {7, 8}), TensorOf<std::string>({0}, {})})->Wait());
  auto one = Dequeue(q, types);
  ASSERT_OK(one->Wait());
  ExpectTensorEqual(one->output(0), TensorOf<int32_t>({1, 2}, {7, 8}));
}

TEST_F(OtherQueuesTest, PaddingIsInTheCornerOfEachDimension) {
  const Tensor q = RunOp1(PaddingCall({PartialShape({-1, -1})}, {DT_INT32}));
  ASSERT_OK(Enqueue(q, {TensorOf<int32_t>({2, 1}, {1, 2})})->Wait());
  ASSERT_OK(Enqueue(q, {TensorOf<int32_t>({1, 3}, {3, 4, 5})})->Wait());
  ASSERT_OK(Enqueue(q, {TensorOf<int32_t>({0, 3}, {})})->Wait());
  auto three = DequeueMany(q, 3);
  ASSERT_OK(three->Wait());
  ExpectTensorEqual(three->output(0), TensorOf<int32_t>({3, 2, 3}, {1, 0, 0, 2, 0, 0,  //
                                                                    3, 4, 5, 0, 0, 0,  //
                                                                    0, 0, 0, 0, 0, 0}));
  EXPECT_STATUS(Enqueue(q, {Ints({1})})->Wait(), kInvalid, "Expected [?,?], got [1]");
  ExpectOpError(PaddingCall({PartialShape::Unknown()}, {DT_INT32}), kInvalid,
                "shapes[0] must have a known rank, got ");
  ExpectOpError(PaddingCall({}, {DT_INT32}), kInvalid,
                "shapes must have one shape for each of the 1 component_types, got 0");
}

TEST_F(OtherQueuesTest, AShuffleGivesEachElementOnceInAnOrderOfItsSeed) {
  std::vector<std::vector<int32_t>> orders;
  for (const auto& [seed, name] : {std::pair<int64_t, const char*>{7, "a"}, {7, "b"}, {8, "c"}}) {
    const Tensor q = RunOp1(ShuffleCall(0, seed, name));
    ASSERT_OK(EnqueueMany(q, {Ints({0, 1, 2, 3, 4, 5, 6, 7, 8, 9})})->Wait());
    auto all = DequeueMany(q, 10);
    ASSERT_OK(all->Wait());
    orders.push_back(Values(all->output(0)));
  }
  EXPECT_EQ(orders[0], orders[1]);
  EXPECT_NE(orders[0], orders[2]);
  std::vector<int32_t> sorted = orders[0];
  EXPECT_FALSE(std::is_sorted(sorted.begin(), sorted.end()));
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
}

TEST_F(OtherQueuesTest, AShuffleKeepsSomethingToDrawFromUntilItIsClosed) {
  const Tensor q = RunOp1(ShuffleCall(3, 7));
  ASSERT_OK(EnqueueMany(q, {Ints({1, 2, 3})})->Wait());
  auto waits = Dequeue(q);
  EXPECT_FALSE(waits->done());
  ASSERT_OK(Enqueue(q, {Int(4)})->Wait());
  ASSERT_OK(waits->Wait());
  auto many = DequeueMany(q, 2);
  EXPECT_FALSE(many->done());
  Close(q);
  ASSERT_OK(many->Wait());
  ASSERT_OK(Dequeue(q)->Wait());
  EXPECT_STATUS(Dequeue(q)->Wait(), absl::StatusCode::kOutOfRange,
                "RandomShuffleQueue 'q' is closed and has insufficient elements (requested 1, "
                "current size 0)");
}

TEST_F(OtherQueuesTest, KindsAreNotMixed) {
  MakeQueue(100);
  ExpectOpError(ShuffleCall(0, 7), kInvalid,
                "Shared queue 'q' has type FIFOQueue but requested type was RandomShuffleQueue");
  ExpectOpError(ShuffleCall(100, 7, "other"), kInvalid,
                "min_after_dequeue must be >= 0 and below the capacity, got 100 of 100");
  RunOp1(ShuffleCall(3, 7, "seeded"));
  RunOp1(ShuffleCall(3, 0, "seeded"));
  ExpectOpError(ShuffleCall(3, 8, "seeded"), kInvalid,
                "has random seeds (7, 7) but requested random seeds were (8, 8)");
}

TEST(QueueShapes, FollowTheHandle) {
  Scope scope;
  const Output q = FIFOQueueV2(scope, {DT_FLOAT}, {.shapes = {PartialShape({2, 3})}});
  EXPECT_EQ(scope.shape(QueueDequeueV2(scope, q, {DT_FLOAT})[0]).ToString(), "[2,3]");
  EXPECT_SHAPE("QueueDequeueManyV2", {{"component_types", std::vector<DType>{DT_FLOAT}}},
               {ShapeInput(DT_FLOAT, "[2,3]"), Int(4)}, "[4,2,3]");
  EXPECT_SHAPE("QueueDequeueUpToV2", {{"component_types", std::vector<DType>{DT_FLOAT}}},
               {ShapeInput(DT_FLOAT, "[2,3]"), Int(4)}, "[?,2,3]");
  EXPECT_SHAPE("QueueSizeV2", {}, {"[]"}, "[]");
}

}  // namespace
}  // namespace millrace

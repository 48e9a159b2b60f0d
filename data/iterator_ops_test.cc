// SPDX-License-Identifier: Apache-2.0
#include "data/iterator_ops.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/dataset_variant.h"
#include "data/initializable_iterator.h"
#include "data/optional_ops.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "proto/config.pb.h"
#include "proto/tensor.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/session.h"
#include "runtime/testing/op_test.h"

// covers: input: a dataset of this process feeds a graph by TensorFlow's iterator ops: a second
//   initialization restarts it, a wait takes no thread, a cancelled step loses no element, closing
//   ends the generator, handles choose iterators
// covers: input: iterators belong to their session

namespace millrace::data {
namespace {

using absl::StatusCode;

// A generator of 0, 1, ... that stops at each number until it may go on.
class Gate {
 public:
  GeneratorFactory factory() {
    return [this](CancellationManager* cancellation) -> StatusOr<Generator> {
      return Generator(
          [this, cancellation, next = int64_t{0}](Element* element) mutable -> StatusOr<bool> {
            CancellationManager::Token token;
            const bool registered = cancellation->Register(&token, [this] {
              MutexLock lock(&mu_);
              changed_.SignalAll();
            });
            {
              MutexLock lock(&mu_);
              ++waiting_;
              changed_.SignalAll();
              while (allowed_ <= next && !cancellation->IsCancelled()) changed_.Wait(&mu_);
              --waiting_;
            }
            if (registered) cancellation->Deregister(token);
            if (cancellation->IsCancelled()) {
              ++cancelled_;
              return absl::CancelledError("the generator was cancelled");
            }
            *element = {Tensor::Scalar(next++)};
            return true;
          });
    };
  }
  Dataset dataset() {
    return Dataset::FromGenerator(factory(), {{DT_INT64, PartialShape::Scalar()}});
  }
  void Allow(int64_t count) {
    MutexLock lock(&mu_);
    allowed_ = count;
    changed_.SignalAll();
  }
  void AwaitWaiting() {
    MutexLock lock(&mu_);
    while (waiting_ == 0) changed_.Wait(&mu_);
  }
  bool waiting() {
    MutexLock lock(&mu_);
    return waiting_ > 0;
  }
  int cancelled() const { return cancelled_; }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t allowed_ ABSL_GUARDED_BY(mu_) = 0;
  int waiting_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<int> cancelled_{0};
};

class IteratorOpsTest : public ::testing::Test {
 protected:
  // Call when the graph is complete.
  void Open() {
    ASSERT_OK(root_.status());
    ASSERT_OK_AND_ASSIGN(session_, NewSession());
    ASSERT_OK(session_->Extend(root_));
  }
  Status Initialize(const InitializableIterator& input) {
    return session_->Run({{input.dataset, input.feed}}, {}, {input.initializer}).status();
  }
  // The next element as text, or its error.
  std::string Next(const InitializableIterator& input) {
    const auto got = session_->Run({}, {input.next.begin(), input.next.end()});
    return got.ok() ? TextOf(*got) : absl::StrCat("<", got.status().message(), ">");
  }
  StatusOr<std::vector<Tensor>> NextWithin(const InitializableIterator& input, int64_t ms) {
    tensorflow::RunOptions options;
    options.set_timeout_in_ms(ms);
    return session_->Run(options, {}, {FetchName(input.next[0])}, {}, nullptr);
  }

  const Scope root_;
  std::unique_ptr<Session> session_;
};

TEST_F(IteratorOpsTest, AnIteratorGivesItsDatasetAndBeginsAnewWhenInitializedAgain) {
  const auto input = MakeInitializableIterator(
      root_, Dataset::Zip({Dataset::Range(5), Dataset::Range(10, 15)}).Batch(2));
  EXPECT_EQ(root_.shape(input.next[1]).ToString(), "[?]");
  Open();
  EXPECT_STATUS(session_->Run({}, {input.next[0]}), StatusCode::kFailedPrecondition,
                "GetNext() failed because the iterator has not been initialized");
  for (int i = 0; i < 2; ++i) {
    ASSERT_OK(Initialize(input));
    EXPECT_EQ(Next(input), "[0 1]|[10 11]");
    EXPECT_EQ(Next(input), "[2 3]|[12 13]");
  }
  EXPECT_EQ(Next(input), "[4]|[14]");
  for (int i = 0; i < 2; ++i) {
    EXPECT_STATUS(session_->Run({}, {input.next[0]}), StatusCode::kOutOfRange, "End of sequence");
  }
  // Another dataset of such elements.
  ASSERT_OK(session_->Run(
      {{input.dataset, DatasetFeed(Dataset::FromTensors(
                           {TensorOf<int64_t>({1}, {7}), TensorOf<int64_t>({1}, {8})}))}},
      {}, {input.initializer}));
  EXPECT_EQ(Next(input), "[7]|[8]");
}

TEST_F(IteratorOpsTest, AnErrorTakesThePlaceOfItsElement) {
  const auto fails_at_1 = [](Element element) -> StatusOr<Element> {
    if (element[0].scalar<int64_t>() == 1) return absl::DataLossError("one is torn");
    return element;
  };
  const auto input = MakeInitializableIterator(
      root_, Dataset::Range(3).Map(fails_at_1, {.spec = {{DT_INT64, PartialShape::Scalar()}}}));
  Open();
  ASSERT_OK(Initialize(input));
  EXPECT_EQ(Next(input), "0");
  EXPECT_STATUS(session_->Run({}, {input.next[0]}), StatusCode::kDataLoss, "one is torn");
  EXPECT_EQ(Next(input), "2");
}

TEST_F(IteratorOpsTest, AStepThatIsCancelledLosesNoElement) {
  Gate gate;
  const auto input = MakeInitializableIterator(root_, gate.dataset());
  Open();
  ASSERT_OK(Initialize(input));
  EXPECT_STATUS(NextWithin(input, 1), StatusCode::kDeadlineExceeded, "");
  EXPECT_STATUS(NextWithin(input, 1), StatusCode::kDeadlineExceeded, "");
  gate.Allow(2);
  EXPECT_EQ(Next(input), "0");
  EXPECT_EQ(Next(input), "1");
  session_.reset();
}

TEST_F(IteratorOpsTest, WhatWasMadeForACancelledStepIsKeptForTheNextAndSaved) {
  Gate gate;
  const auto input = MakeInitializableIterator(root_, gate.dataset());
  const Output state = SerializeIterator(root_, input.handle);
  const Output saved = Placeholder(root_, DT_VARIANT, PartialShape::Scalar());
  const Operation restore = DeserializeIterator(root_, input.handle, saved);
  Open();
  ASSERT_OK(Initialize(input));
  while (!gate.waiting()) {
    EXPECT_STATUS(NextWithin(input, 1), StatusCode::kDeadlineExceeded, "");
  }
  gate.Allow(1);
  // Waits until the element is made, for nobody.
  ASSERT_OK_AND_ASSIGN(const auto bytes, session_->Run({}, {state}));
  gate.Allow(2);
  ASSERT_EQ(Next(input), "0");
  ASSERT_EQ(Next(input), "1");
  ASSERT_OK(session_->Run({{saved, bytes[0]}}, {}, {restore}));
  ASSERT_EQ(Next(input), "0");
  ASSERT_EQ(Next(input), "1");
}

TEST_F(IteratorOpsTest, ManyStepsGetDistinctElementsWhileTheyWait) {
  Gate gate;
  const auto input = MakeInitializableIterator(root_, gate.dataset());
  Open();
  ASSERT_OK(Initialize(input));
  std::vector<std::string> got(24);
  std::vector<std::thread> threads;
  for (std::string& text : got) {
    threads.emplace_back([&] { text = Next(input); });
  }
  gate.AwaitWaiting();
  for (int64_t allowed = 0; allowed <= 24; ++allowed) gate.Allow(allowed);
  for (std::thread& thread : threads) thread.join();
  std::vector<bool> seen(24);
  for (const std::string& text : got) {
    int number = -1;
    ASSERT_TRUE(absl::SimpleAtoi(text, &number)) << text;
    ASSERT_FALSE(seen[static_cast<size_t>(number)]) << number;
    seen[static_cast<size_t>(number)] = true;
  }
}

TEST_F(IteratorOpsTest, CloseEndsWhatWaitsAndTheGenerator) {
  Gate gate;
  const auto input = MakeInitializableIterator(root_, gate.dataset());
  Open();
  ASSERT_OK(Initialize(input));
  std::string got;
  std::thread thread([&] { got = Next(input); });
  gate.AwaitWaiting();
  ASSERT_OK(session_->Close());
  thread.join();
  EXPECT_TRUE(absl::StrContains(got, "ancelled") || absl::StrContains(got, "closed")) << got;
  session_.reset();  // waits for the generator
  EXPECT_EQ(gate.cancelled(), 1);
}

TEST_F(IteratorOpsTest, InitializingAnewEndsWhatWaits) {
  Gate gate;
  const auto input = MakeInitializableIterator(root_, gate.dataset());
  Open();
  ASSERT_OK(Initialize(input));
  StatusOr<std::vector<Tensor>> got;
  std::thread thread([&] { got = session_->Run({}, {input.next[0]}); });
  gate.AwaitWaiting();
  ASSERT_OK(
      session_->Run({{input.dataset, DatasetFeed(Dataset::Range(3))}}, {}, {input.initializer}));
  thread.join();
  EXPECT_STATUS(got, StatusCode::kCancelled, "initialized anew");
  EXPECT_EQ(gate.cancelled(), 1);
  EXPECT_EQ(Next(input), "0");
}

TEST_F(IteratorOpsTest, OtherElementsThanTheIteratorsAreRefused) {
  const auto input =
      MakeInitializableIterator(root_, Dataset::FromTensors({TensorOf<float>({2}, {1, 2})}));
  Open();
  const auto feed = [&](const Dataset& dataset) {
    return session_->Run({{input.dataset, DatasetFeed(dataset)}}, {}, {input.initializer});
  };
  EXPECT_STATUS(feed(Dataset::Range(3)), StatusCode::kInvalidArgument,
                "component 0 must be float, got int64");
  EXPECT_STATUS(feed(Dataset::FromTensors({TensorOf<float>({3}, {1, 2, 3})})),
                StatusCode::kInvalidArgument, "component 0 must have shape [2], got [3]");
  EXPECT_STATUS(feed(Dataset::Range(1).Batch(0)), StatusCode::kInvalidArgument,
                "batch_size must be >= 1, got 0");
  EXPECT_STATUS(
      session_->Run({{input.dataset, Tensor::Scalar(Variant())}}, {}, {input.initializer}),
      StatusCode::kInvalidArgument, "dataset must be a dataset, got");
  // A dataset that does not know its elements: each is looked at.
  ASSERT_OK(feed(Dataset::Range(2).Map([](Element e) -> StatusOr<Element> { return e; })));
  EXPECT_EQ(Next(input).substr(0, 10), "<" + Next(input).substr(1, 9));
  ASSERT_OK(feed(Dataset::FromTensors({TensorOf<float>({2}, {5, 6})})));
  EXPECT_EQ(Next(input), "[5 6]");
}

TEST_F(IteratorOpsTest, ABuilderWithoutASpecSaysWhatIsMissing) {
  MakeInitializableIterator(
      root_, Dataset::Range(2).Map([](Element e) -> StatusOr<Element> { return e; }));
  EXPECT_STATUS(root_.status(), StatusCode::kInvalidArgument, "must be known, got none");
  const Scope other;
  MakeInitializableIterator(other, Dataset::Range(0, 1, 0));
  EXPECT_STATUS(other.status(), StatusCode::kInvalidArgument, "step must not be 0");
}

TEST_F(IteratorOpsTest, AStepChoosesAmongIteratorsByStringHandles) {
  const auto train = MakeInitializableIterator(root_, Dataset::Range(10));
  const auto test = MakeInitializableIterator(root_, Dataset::Range(100, 110));
  const Output choice = Placeholder(root_, DT_STRING, PartialShape::Scalar());
  const std::vector<PartialShape> shapes = {PartialShape::Scalar()};
  const Output chosen = IteratorFromStringHandleV2(root_, choice, {DT_INT64}, shapes);
  const Output next = IteratorGetNext(root_, chosen, {DT_INT64}, shapes)[0];
  const Output other_types = IteratorFromStringHandleV2(root_, choice, {DT_FLOAT}, shapes);
  const Output train_handle = IteratorToStringHandle(root_, train.handle);
  const Output test_handle = IteratorToStringHandle(root_, test.handle);
  Open();
  ASSERT_OK(Initialize(train));
  ASSERT_OK(Initialize(test));
  ASSERT_OK_AND_ASSIGN(const auto handles, session_->Run({}, {train_handle, test_handle}));
  for (const char* want : {"0 100", "1 101"}) {
    ASSERT_OK_AND_ASSIGN(const auto a, session_->Run({{choice, handles[0]}}, {next}));
    ASSERT_OK_AND_ASSIGN(const auto b, session_->Run({{choice, handles[1]}}, {next}));
    EXPECT_EQ(absl::StrCat(TextOf(a), " ", TextOf(b)), want);
  }
  EXPECT_EQ(Next(train), "2") << "one iterator, however it is reached";
  EXPECT_STATUS(session_->Run({{choice, handles[0]}}, {}, {other_types.op()}),
                StatusCode::kInvalidArgument, "component 0 must be float, got int64");
  for (const char* bad : {"", "nonsense", "\x0a\x01x"}) {
    EXPECT_FALSE(session_->Run({{choice, Tensor::Scalar(bad)}}, {next}).ok()) << bad;
  }
}

TEST_F(IteratorOpsTest, AnIteratorGoesOnFromItsSavedState) {
  const auto input = MakeInitializableIterator(root_, Dataset::Range(10).Shuffle(4).Repeat(2));
  const Output state = SerializeIterator(root_, input.handle);
  const Output saved = Placeholder(root_, DT_VARIANT, PartialShape::Scalar());
  const Operation restore = DeserializeIterator(root_, input.handle, saved);
  Open();
  ASSERT_OK(Initialize(input));
  for (int i = 0; i < 7; ++i) Next(input);
  ASSERT_OK_AND_ASSIGN(const auto bytes, session_->Run({}, {state}));
  // As a checkpoint or a message would have it.
  tensorflow::TensorProto proto;
  ASSERT_OK(TensorToProto(bytes[0], &proto));
  ASSERT_OK_AND_ASSIGN(const Tensor again, TensorFromProto(proto));
  std::vector<std::string> rest;
  for (int i = 0; i < 13; ++i) rest.push_back(Next(input));
  ASSERT_OK(Initialize(input));
  Next(input);
  ASSERT_OK(session_->Run({{saved, again}}, {}, {restore}));
  for (const std::string& want : rest) EXPECT_EQ(Next(input), want);
  EXPECT_STATUS(session_->Run({}, {input.next[0]}), StatusCode::kOutOfRange, "End of sequence");
  EXPECT_STATUS(session_->Run({{saved, Tensor::Scalar(Variant())}}, {}, {restore}),
                StatusCode::kInvalidArgument, "serialized must be what SerializeIterator gave");
}

TEST_F(IteratorOpsTest, AnOptionalIsAnElementOrTheEnd) {
  const auto fails_at_1 = [](Element element) -> StatusOr<Element> {
    if (element[0].scalar<int64_t>() == 1) return absl::DataLossError("one is torn");
    return element;
  };
  const std::vector<DType> types = {DT_INT64};
  const std::vector<PartialShape> shapes = {PartialShape::Scalar()};
  const auto input = MakeInitializableIterator(
      root_, Dataset::Range(3).Map(fails_at_1, {.spec = {{DT_INT64, shapes[0]}}}));
  const Output next = IteratorGetNextAsOptional(root_, input.handle, types, shapes);
  const Output held = Placeholder(root_, DT_VARIANT, PartialShape::Scalar());
  const Output has_value = OptionalHasValue(root_, held);
  const Output value = OptionalGetValue(root_, held, types, shapes)[0];
  const Output of_floats = OptionalGetValue(root_, held, {DT_FLOAT}, shapes)[0];
  const Output made = OptionalFromValue(root_, {Const(root_, int64_t{7})});
  const Output none = OptionalNone(root_);
  Open();
  ASSERT_OK(Initialize(input));
  ASSERT_OK_AND_ASSIGN(const auto first, session_->Run({}, {next, made, none}));
  EXPECT_STATUS(session_->Run({}, {next}), StatusCode::kDataLoss, "one is torn");
  ASSERT_OK_AND_ASSIGN(const auto third, session_->Run({}, {next}));
  ASSERT_OK_AND_ASSIGN(const auto end, session_->Run({}, {next}));
  const struct {
    Tensor optional;
    const char* want;
  } cases[] = {{first[0], "true|0"}, {third[0], "true|2"}, {first[1], "true|7"}};
  for (const auto& c : cases) {
    ASSERT_OK_AND_ASSIGN(const auto got, session_->Run({{held, c.optional}}, {has_value, value}));
    EXPECT_EQ(TextOf(got), c.want);
  }
  for (const Tensor& empty : {end[0], first[2]}) {
    ASSERT_OK_AND_ASSIGN(const auto got, session_->Run({{held, empty}}, {has_value}));
    EXPECT_EQ(TextOf(got), "false");
    EXPECT_STATUS(session_->Run({{held, empty}}, {value}), StatusCode::kInvalidArgument,
                  "The given optional does not have a value.");
  }
  EXPECT_STATUS(session_->Run({{held, first[0]}}, {of_floats}), StatusCode::kInvalidArgument,
                "component 0 must be float, got int64");
  EXPECT_STATUS(session_->Run({{held, Tensor::Scalar(Variant())}}, {has_value}),
                StatusCode::kInvalidArgument, "optional must be one");
}

TEST_F(IteratorOpsTest, SessionsHaveIteratorsOfTheirOwnUnlessTheyShareAName) {
  OpTestDevice device;
  const auto handle_of = [&](const char* session, const char* shared) {
    device.mutable_step()->session_handle = session;
    auto got = RunOp(OpCall("IteratorV2")
                         .Name("it")
                         .Attr("shared_name", std::string(shared))
                         .Attr("container", std::string())
                         .Attr("output_types", std::vector<DType>{DT_INT64})
                         .Attr("output_shapes", std::vector<PartialShape>{PartialShape::Scalar()})
                         .On(&device));
    EXPECT_OK(got);
    return got.ok() ? (*got)[0].scalar<ResourceHandle>().resource : nullptr;
  };
  const auto a = handle_of("a", ""), b = handle_of("b", "");
  EXPECT_NE(a, b);
  EXPECT_EQ(handle_of("a", ""), a);
  EXPECT_EQ(handle_of("a", "common"), handle_of("b", "common"));
  EXPECT_EQ(device.resources()->DebugStrings().size(), 3u);
  device.resources()->TellSessionEnded("a");
  const auto over = [](const std::shared_ptr<Resource>& iterator) {
    return absl::StrContains(iterator->DebugString(), "over");
  };
  EXPECT_TRUE(over(a));
  EXPECT_FALSE(over(b));
  // Whoever makes the next iterator clears what is over away.
  handle_of("c", "");
  EXPECT_EQ(device.resources()->DebugStrings().size(), 3u);
}

// --- Datasets as tensors

Tensor AfterAJourney(const Tensor& tensor) {
  tensorflow::TensorProto proto;
  EXPECT_OK(TensorToProto(tensor, &proto));
  StatusOr<Tensor> arrived = TensorFromProto(proto);
  EXPECT_OK(arrived);
  return arrived.ok() ? *arrived : Tensor();
}

TEST(DatasetVariantTest, AFedDatasetIsFoundByItsReferenceWhileTheFeedLives) {
  Tensor feed = DatasetFeed(Dataset::Range(3));
  const Tensor arrived = AfterAJourney(AfterAJourney(feed));  // passed on, as a master does
  ASSERT_OK_AND_ASSIGN(const DatasetWithOptions found, DatasetOf(arrived, "dataset"));
  EXPECT_EQ(TextOf(found.dataset), "0 1 2");
  feed = Tensor();
  EXPECT_STATUS(DatasetOf(arrived, "dataset"), StatusCode::kFailedPrecondition,
                "got one that is gone; keep the tensor that is fed");
}

TEST(DatasetVariantTest, ADatasetOfAnotherProcessIsRefusedByItsName) {
  const auto refer = [](const char* reference) {
    ResourceHandle handle;
    handle.name = reference;
    Variant variant;
    variant.type_name = "millrace.Dataset";
    variant.tensors = {Tensor::Scalar(handle)};
    return DatasetOf(Tensor::Scalar(variant), "dataset").status();
  };
  EXPECT_STATUS(refer("0123456789abcdef:1:process 7 on host3"), StatusCode::kFailedPrecondition,
                "got one of process 7 on host3; a dataset never travels");
  for (const char* bad : {":", "a:b", "a:b:c", "::"}) {
    EXPECT_STATUS(refer(bad), StatusCode::kInvalidArgument, "must be a dataset");
  }
}

TEST(DatasetVariantTest, WhatAnOpMadeIsNotFoundBehindAJourney) {
  const Tensor value = DatasetValue(Dataset::Range(3));
  ASSERT_OK_AND_ASSIGN(const Tensor copy, value.Clone());
  EXPECT_OK(DatasetOf(copy, "dataset"));
  EXPECT_STATUS(DatasetOf(AfterAJourney(value), "dataset"), StatusCode::kFailedPrecondition,
                "put the ops that make it on the task of the iterator");
}

TEST_F(IteratorOpsTest, AConstantIsOnlyAReference) {
  Tensor feed = DatasetFeed(Dataset::Range(3));
  const Output dataset = Const(root_, feed);
  const Output iterator = IteratorV2(root_, {DT_INT64}, {PartialShape::Scalar()});
  const Operation make = MakeIterator(root_, dataset, iterator);
  Open();
  ASSERT_OK(session_->Run({}, {}, {make}));
  feed = Tensor();
  EXPECT_STATUS(session_->Run({}, {}, {make}), StatusCode::kFailedPrecondition,
                "dataset must be a dataset that lives, got one that is gone");
}

}  // namespace
}  // namespace millrace::data

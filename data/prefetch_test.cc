// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/notification.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: functions run in parallel in order; prefetching fills its buffer and no more,
//   delays no element, and ends with its iterator, also during a call that blocks
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused
// covers: input: a state of another dataset is refused
// covers: article 0-7: datasets with parallel maps and prefetch

namespace millrace::data {
namespace {

// Counts in `made` what it gives, without end.
Dataset Counting(std::atomic<int64_t>* made) {
  return Dataset::FromGenerator(
      [made](CancellationManager*) -> StatusOr<Generator> {
        return Generator([made](Element* element) -> StatusOr<bool> {
          *element = {Tensor::Scalar(made->fetch_add(1))};
          return true;
        });
      },
      {{DT_INT64, PartialShape::Scalar()}});
}

// Gives `n` elements, then says `blocked` and waits until it is cancelled.
Dataset Blocking(int64_t n, Notification* blocked) {
  return Dataset::FromGenerator(
      [n, blocked](CancellationManager* cancellation) -> StatusOr<Generator> {
        return Generator([n, blocked, cancellation,
                          i = int64_t{0}](Element* element) mutable -> StatusOr<bool> {
          if (i < n) {
            *element = {Tensor::Scalar(i++)};
            return true;
          }
          Notification cancelled;
          CancellationManager::Token token;
          const bool waits = cancellation->Register(&token, [&cancelled] { cancelled.Notify(); });
          blocked->Notify();
          if (waits) {
            cancelled.Wait();
            cancellation->Deregister(token);
          }
          return absl::CancelledError("the generator was told to end");
        });
      },
      {{DT_INT64, PartialShape::Scalar()}});
}

// Everything that was scheduled before has run: for pools of one thread.
void AwaitPool(IoPool* pool) {
  Notification done;
  pool->Schedule([&done] { done.Notify(); });
  done.Wait();
}

TEST(Prefetch, GivesTheSameElements) {
  std::vector<std::string> many;
  for (int i = 0; i < 800; ++i) many.push_back(absl::StrCat(i));
  for (const int64_t size : {int64_t{1}, int64_t{2}, int64_t{10}, int64_t{1000}, kAutotune}) {
    EXPECT_EQ(ElementsOf(Dataset::Range(800).Prefetch(size)), many) << size;
    EXPECT_EQ(ElementsOf(Dataset::Range(800).Prefetch(size).Prefetch(2)), many) << size;
  }
  EXPECT_EQ(TextOf(Dataset::Range(0).Prefetch(3)), "");
  EXPECT_EQ(TextOf(Dataset::Range(3).Prefetch(0)), "0 1 2");
  EXPECT_EQ(TextOf(Dataset::Range(3).Prefetch(2).Repeat(2)), "0 1 2 0 1 2");
  EXPECT_STATUS(Dataset::Range(3).Prefetch(-2).status(), absl::StatusCode::kInvalidArgument,
                "buffer_size must be >= 0 or -1 (autotune), got -2");
}

TEST(Prefetch, RunsAheadAsFarAsItsBufferAndNoFurther) {
  IoPool pool(1);
  std::atomic<int64_t> made = 0;
  ASSERT_OK_AND_ASSIGN(const auto iterator,
                       Counting(&made).Prefetch(10).MakeIterator({.io_pool = &pool}));
  AwaitPool(&pool);
  EXPECT_EQ(made, 0) << "nothing is read before the first Next";
  for (int64_t given = 1; given <= 40; ++given) {
    ASSERT_OK(iterator->Next());
    AwaitPool(&pool);
    EXPECT_LE(made, given + 10);
    EXPECT_GE(made, given + 4) << "the low-water mark";
    EXPECT_TRUE(iterator->NextIsReady());
  }
}

// Many small elements, two large ones; known by the first, whoever pulled it.
TEST(Prefetch, IsTunedByTheSizeOfElements) {
  const struct {
    int64_t bytes;
    int64_t ahead;
  } cases[] = {{1, 64}, {(256 << 10) / 16, 15}, {100 << 10, 2}, {1 << 20, 2}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.bytes);
    IoPool pool(1);
    std::atomic<int64_t> made = 0;
    const Dataset elements = Counting(&made).Map([bytes = c.bytes](Element) -> StatusOr<Element> {
      MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Zeros(DT_UINT8, Shape{bytes}));
      return Element{std::move(tensor)};
    });
    ASSERT_OK_AND_ASSIGN(const auto iterator,
                         elements.Prefetch(kAutotune).MakeIterator({.io_pool = &pool}));
    for (int64_t given = 1; given <= 2 * c.ahead + 2; ++given) {
      ASSERT_OK(iterator->Next());
      AwaitPool(&pool);
      EXPECT_LE(made, given + c.ahead);
      EXPECT_GE(made, given + c.ahead / 4);
    }
  }
}

TEST(Prefetch, NeedsNoThreadOfThePool) {
  Notification release;
  IoPool pool(1);
  pool.Schedule([&release] { release.Wait(); });
  const Dataset nested = Dataset::Range(50).Prefetch(3).Map(
      [](Element element) -> StatusOr<Element> { return element; }, {.num_parallel_calls = 2});
  EXPECT_EQ(ElementsOf(nested.Prefetch(5).Batch(10), {.io_pool = &pool}).size(), 5u);
  release.Notify();
}

TEST(Prefetch, ErrorsKeepTheirPlace) {
  const Dataset failing = Dataset::Range(6).Map([](Element element) -> StatusOr<Element> {
    if (element[0].scalar<int64_t>() % 3 == 0) return absl::UnavailableError("none");
    return element;
  });
  EXPECT_EQ(TextOf(failing.Prefetch(4)), "<none> 1 2 <none> 4 5");
}

TEST(Prefetch, IsDestroyedInTheMiddle) {
  for (const int64_t n : {0, 3}) {
    Notification blocked;
    ASSERT_OK_AND_ASSIGN(auto iterator, Blocking(n, &blocked).Prefetch(8).MakeIterator());
    std::thread consumer;
    if (n == 0) {
      consumer = std::thread([&iterator] { RestOf(iterator.get()); });
    } else {
      ASSERT_OK(iterator->Next());
    }
    blocked.Wait();
    if (consumer.joinable()) {
      iterator->Cancel();  // nobody is inside a method when an object is destroyed
      consumer.join();
    }
    iterator.reset();
  }
}

TEST(Prefetch, OfADatasetThatIsLeftIsCancelled) {
  // Interleave drops the first dataset while its generator blocks.
  Notification blocked;
  const Dataset left = Dataset::Range(2).FlatMap([&](const Element& element) -> StatusOr<Dataset> {
    if (element[0].scalar<int64_t>() == 1) return Dataset::Range(70, 72);
    return Blocking(2, &blocked).Prefetch(8).Take(2);
  });
  ASSERT_OK_AND_ASSIGN(const auto iterator, left.MakeIterator());
  EXPECT_EQ(RestOf(iterator.get(), 2), (std::vector<std::string>{"0", "1"}));
  blocked.Wait();
  EXPECT_EQ(RestOf(iterator.get()), (std::vector<std::string>{"70", "71"}));
}

TEST(RunningAhead, HoldsNothingBackForWhatIsNotThereYet) {
  // The generator blocks behind the third element: the three are given out all the same.
  const MapFunction same = [](Element element) -> StatusOr<Element> { return element; };
  for (int kind = 0; kind < 3; ++kind) {
    Notification blocked;
    const Dataset three = Blocking(3, &blocked);
    const Dataset ahead = kind == 0   ? three.Prefetch(8)
                          : kind == 1 ? three.Map(same, {.num_parallel_calls = 3})
                                      : three.Prefetch(4).Map(same, {.num_parallel_calls = 2});
    ASSERT_OK_AND_ASSIGN(const auto iterator, ahead.MakeIterator());
    EXPECT_EQ(RestOf(iterator.get(), 3), (std::vector<std::string>{"0", "1", "2"})) << kind;
    blocked.Wait();
  }
}

TEST(Prefetch, StatesGoOn) {
  ExpectStatesGoOn(Dataset::Range(20).Prefetch(4));
  ExpectStatesGoOn(Dataset::Range(5).Shuffle(3, {.seed = 2}).Prefetch(4).Repeat(2).Prefetch(3));
}

TEST(Cancel, EndsARestoreThatRunsAGenerator) {
  Notification blocks;
  std::atomic<bool> again{false};
  const auto factory = [&](CancellationManager* cancellation) -> StatusOr<Generator> {
    return Generator(
        [&, cancellation, next = int64_t{0}](Element* element) mutable -> StatusOr<bool> {
          if (again && next == 1) {
            Notification cancelled;
            CancellationManager::Token token;
            if (cancellation->Register(&token, [&] { cancelled.Notify(); })) {
              blocks.Notify();
              cancelled.Wait();
              cancellation->Deregister(token);
            }
            return absl::CancelledError("the generator was cancelled");
          }
          *element = {Tensor::Scalar(next++)};
          return true;
        });
  };
  ASSERT_OK_AND_ASSIGN(
      const auto iterator,
      Dataset::FromGenerator(factory, {{DT_INT64, PartialShape::Scalar()}}).MakeIterator());
  EXPECT_EQ(RestOf(iterator.get(), 3).size(), 3u);
  ASSERT_OK_AND_ASSIGN(const std::string state, iterator->Save());
  again = true;
  Status restored;
  std::thread thread([&] { restored = iterator->Restore(state); });
  blocks.Wait();
  iterator->Cancel();
  thread.join();
  EXPECT_STATUS(restored, absl::StatusCode::kCancelled, "it was cancelled");
  EXPECT_STATUS(iterator->Restore(state), absl::StatusCode::kCancelled, "it was cancelled");
}

// A state that says that an endless input was read to its end.
TEST(Cancel, EndsARestoreWithoutEnd) {
  const Dataset endless = Dataset::Range(INT64_MAX).Cache();
  ASSERT_OK_AND_ASSIGN(const auto iterator, endless.MakeIterator());
  ASSERT_OK_AND_ASSIGN(std::string state, iterator->Save());
  // Its last three: not complete, no element, whole.
  state[state.size() - 3] = 1;
  Status restored;
  std::thread thread([&] { restored = iterator->Restore(state); });
  iterator->Cancel();
  thread.join();
  EXPECT_STATUS(restored, absl::StatusCode::kCancelled, "it was cancelled");
}

TEST(Cancel, WakesWhoWaits) {
  Notification blocked;
  ASSERT_OK_AND_ASSIGN(const auto iterator, Blocking(1, &blocked).MakeIterator());
  ASSERT_OK(iterator->Next());
  std::thread canceller([&] {
    blocked.Wait();
    iterator->Cancel();
  });
  EXPECT_STATUS(iterator->Next(), absl::StatusCode::kCancelled, "told to end");
  canceller.join();
  EXPECT_STATUS(iterator->Next(), absl::StatusCode::kCancelled, "Iterator: it was cancelled");
  EXPECT_STATUS(iterator->Save(), absl::StatusCode::kCancelled, "Iterator: it was cancelled");
}

TEST(Iterator, MayBeSharedByThreads) {
  ASSERT_OK_AND_ASSIGN(const auto iterator,
                       Dataset::Range(3000).Shuffle(50).Prefetch(20).MakeIterator());
  std::atomic<int64_t> sum = 0, count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      Element element;
      for (;;) {
        const StatusOr<bool> more = iterator->Next(&element);
        if (!more.ok() || !*more) return;
        sum += element[0].scalar<int64_t>();
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 3000);
  EXPECT_EQ(sum, 3000 * 2999 / 2);
}

TEST(Iterator, SaysEndOfSequence) {
  ASSERT_OK_AND_ASSIGN(const auto iterator, Dataset::Range(1).MakeIterator());
  ASSERT_OK(iterator->Next());
  EXPECT_STATUS(iterator->Next(), absl::StatusCode::kOutOfRange, "End of sequence");
  EXPECT_STATUS(iterator->Next(), absl::StatusCode::kOutOfRange, "End of sequence");
}

TEST(Iterator, RefusesStatesOfOtherDatasets) {
  ASSERT_OK_AND_ASSIGN(const auto iterator, Dataset::Range(5).MakeIterator());
  ASSERT_OK_AND_ASSIGN(const std::string state, iterator->Save());
  ASSERT_OK_AND_ASSIGN(const auto other, Dataset::Range(6).MakeIterator());
  ASSERT_OK(other->Next());
  EXPECT_STATUS(other->Restore(state), absl::StatusCode::kInvalidArgument,
                "it must be of the dataset 'Range(0, 6, 1)', got one of 'Range(0, 5, 1)'");
  EXPECT_STATUS(other->Restore("nonsense"), absl::StatusCode::kDataLoss, "Iterator state");
  EXPECT_STATUS(other->Restore(""), absl::StatusCode::kDataLoss, "ends early");
  EXPECT_EQ(RestOf(other.get()).front(), "1") << "a refused state changes nothing";
}

TEST(IteratorTimes, SayWhatLimits) {
  using Limit = IteratorTimes::Limit;
  const auto times = [](int waited, int consumed, int sources, int functions) {
    return IteratorTimes{.elements = 1,
                         .waited = absl::Seconds(waited),
                         .consumed = absl::Seconds(consumed),
                         .in_sources = absl::Seconds(sources),
                         .in_functions = absl::Seconds(functions)};
  };
  EXPECT_EQ(IteratorTimes().limit(), Limit::kNone);
  EXPECT_EQ(times(1, 10, 9, 8).limit(), Limit::kConsumer);
  EXPECT_EQ(times(5, 5, 4, 1).limit(), Limit::kSource);
  EXPECT_EQ(times(5, 5, 1, 4).limit(), Limit::kFunctions);
  EXPECT_EQ(times(5, 6, 1, 4).ToString(),
            "1 elements: waited 5s, consumed 6s, sources 1s, functions 4s; limited by functions");
}

TEST(IteratorTimes, CountWhatHappens) {
  const Dataset mapped =
      Dataset::Range(100).Map([](Element element) -> StatusOr<Element> { return element; });
  ASSERT_OK_AND_ASSIGN(const auto iterator, mapped.MakeIterator());
  RestOf(iterator.get(), 30);
  EXPECT_EQ(iterator->times().elements, 30);
  EXPECT_GT(iterator->times().waited, absl::ZeroDuration());
  EXPECT_GT(iterator->times().in_functions, absl::ZeroDuration());
}

}  // namespace
}  // namespace millrace::data

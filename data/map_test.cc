// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/io_pool.h"
#include "core/notification.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/row_function.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: functions run in parallel in order; prefetching fills its buffer and no more,
//   delays no element, and ends with its iterator, also during a call that blocks
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused
// covers: input: functions that make wrong blocks are errors
// covers: article 0-7: datasets with parallel maps and prefetch

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

int64_t Value(const Element& element) { return element[0].scalar<int64_t>(); }

StatusOr<Element> Square(Element element) {
  return Element{Tensor::Scalar(Value(element) * Value(element))};
}

// Fails for multiples of 3.
StatusOr<Element> NoThirds(Element element) {
  if (Value(element) % 3 == 0) return absl::UnavailableError(absl::StrCat("no ", Value(element)));
  return element;
}

// One call and several give the same.
class MapTest : public testing::TestWithParam<int64_t> {
 protected:
  MapOptions Options(ElementSpec spec = {}) const {
    return {.num_parallel_calls = GetParam(), .spec = std::move(spec)};
  }
};

TEST_P(MapTest, KeepsTheOrder) {
  EXPECT_EQ(TextOf(Dataset::Range(5).Map(Square, Options())), "0 1 4 9 16");
  std::vector<std::string> many;
  for (int i = 0; i < 500; ++i) many.push_back(absl::StrCat(i * i));
  EXPECT_EQ(ElementsOf(Dataset::Range(500).Map(Square, Options())), many);
  EXPECT_EQ(TextOf(Dataset::Range(0).Map(Square, Options())), "");
  EXPECT_EQ(TextOf(Dataset::Range(3).Map(Square, Options()).Repeat(2).Batch(4)), "[0 1 4 0] [1 4]");
}

TEST_P(MapTest, AnErrorStandsInThePlaceOfItsElement) {
  EXPECT_EQ(TextOf(Dataset::Range(6).Map(NoThirds, Options())), "<no 0> 1 2 <no 3> 4 5");
  EXPECT_EQ(TextOf(Dataset::Range(6).Map(NoThirds, Options()).IgnoreErrors()), "1 2 4 5");
  EXPECT_EQ(TextOf(Dataset::Range(6).Map(NoThirds, Options()).Map(Square, Options())),
            "<no 0> 1 4 <no 3> 16 25");
  // The batch that was begun is lost.
  EXPECT_EQ(TextOf(Dataset::Range(6).Map(NoThirds, Options()).Batch(2)),
            "<no 0> [1 2] <no 3> [4 5]");
}

TEST_P(MapTest, OutOfRangeEndsIt) {
  const auto until_three = [](Element element) -> StatusOr<Element> {
    if (Value(element) == 3) return absl::OutOfRangeError("enough");
    return element;
  };
  EXPECT_EQ(TextOf(Dataset::Range(9).Map(until_three, Options())), "0 1 2");
  EXPECT_EQ(TextOf(Dataset::Range(9).Map(until_three, Options()).Repeat(2)), "0 1 2 0 1 2");
}

TEST_P(MapTest, WhatThrowsOrDoesNotFitIsAnError) {
  const auto throwing = [](Element) -> StatusOr<Element> { throw std::runtime_error("thrown"); };
  EXPECT_EQ(TextOf(Dataset::Range(1).Map(throwing, Options())),
            "<Dataset.Map: an exception must not leave it, got thrown>");
  const auto nothing = [](Element) -> StatusOr<Element> { return Element(); };
  EXPECT_EQ(TextOf(Dataset::Range(1).Map(nothing, Options())),
            "<Dataset.Map: the function must return at least one component, got none>");
  EXPECT_EQ(TextOf(Dataset::Range(1).Map(Square, Options({{DT_FLOAT, PartialShape()}}))),
            "<Dataset.Map: component 0 must be float, got int64>");
}

TEST_P(MapTest, StatesGoOn) {
  ExpectStatesGoOn(Dataset::Range(9).Map(NoThirds, Options()).Map(Square, Options()));
  ExpectStatesGoOn(Dataset::Range(9).Map(Square, Options()).Repeat(2).Take(12));
}

INSTANTIATE_TEST_SUITE_P(Calls, MapTest, testing::Values(1, 2, 7));

TEST(ParallelMap, CallsAtOnce) {
  // Each call waits for another one.
  BlockingCounter both(2);
  const Dataset met = Dataset::Range(2).Map(
      [&both](Element element) -> StatusOr<Element> {
        both.Decrement();
        both.Wait();
        return element;
      },
      {.num_parallel_calls = 2});
  EXPECT_EQ(TextOf(met), "0 1");
}

TEST(ParallelMap, NeedsNoThreadOfThePool) {
  Notification release;
  IoPool pool(1);
  pool.Schedule([&release] { release.Wait(); });
  const Dataset mapped = Dataset::Range(300)
                             .Map(Square, {.num_parallel_calls = 4})
                             .Map(Square, {.num_parallel_calls = 4});
  EXPECT_EQ(ElementsOf(mapped, {.io_pool = &pool}).size(), 300u);
  release.Notify();
}

TEST(ParallelMap, MayBeDestroyedWhileItRuns) {
  for (int given = 0; given < 20; ++given) {
    const Dataset endless = Dataset::Range(1000).Repeat().Map(Square, {.num_parallel_calls = 3});
    ASSERT_OK_AND_ASSIGN(const auto iterator, endless.MakeIterator());
    RestOf(iterator.get(), given);
  }
}

TEST(Map, RefusesWhatCannotWork) {
  EXPECT_STATUS(Dataset::Range(1).Map(MapFunction()).status(), kInvalid, "got none");
  EXPECT_STATUS(Dataset::Range(1).Map(Square, {.num_parallel_calls = 0}).status(), kInvalid,
                "num_parallel_calls must be >= 1, got 0");
  EXPECT_STATUS(Dataset::Range(1).Filter(nullptr).status(), kInvalid, "got none");
  EXPECT_STATUS(Dataset::Range(1).Scan({}, nullptr).status(), kInvalid, "got none");
}

TEST(Filter, KeepsWhatThePredicateSays) {
  const auto odd = [](const Element& element) -> StatusOr<bool> {
    if (Value(element) == 4) return absl::UnavailableError("no 4");
    if (Value(element) == 7) return absl::OutOfRangeError("enough");
    return Value(element) % 2 == 1;
  };
  EXPECT_EQ(TextOf(Dataset::Range(9).Filter(odd)), "1 3 <no 4> 5");
  ExpectStatesGoOn(Dataset::Range(9).Filter(odd));
}

// What a library of the user's makes is looked at before anybody reads rows that are not there.
TEST(RowMap, AFunctionThatMakesOtherBlocksIsAnError) {
  class Broken : public RowFunction {
   public:
    Broken(int64_t more_rows, size_t columns) : more_rows_(more_rows), columns_(columns) {}
    std::string Name() const override { return "Broken"; }
    StatusOr<ElementSpec> OutputSpec(const ElementSpec& input) const override { return input; }
    StatusOr<Element> Call(const Element& element, Arena*) const override { return element; }
    Status CallBlock(const Block& in, Arena*, Block* out, Status*) const override {
      out->rows = in.rows + more_rows_;
      out->columns.assign(columns_, in.columns[0]);
      return absl::OkStatus();
    }

   private:
    const int64_t more_rows_;
    const size_t columns_;
  };
  const struct {
    int64_t more_rows;
    size_t columns;
  } cases[] = {{1, 1}, {-2, 1}, {0, 0}, {0, 2}};
  for (const auto& c : cases) {
    const Dataset broken =
        Dataset::Range(4).Map(std::make_shared<const Broken>(c.more_rows, c.columns)).Batch(2);
    const std::vector<std::string> got = ElementsOf(broken);
    ASSERT_EQ(got.size(), 2u) << c.more_rows << " " << c.columns;
    EXPECT_EQ(got[0].substr(0, 51), "<Broken: it must make 1 to 2 rows of 1 components, ");
  }
}

TEST(Filter, OfAnEndlessDatasetCanBeCancelled) {
  Notification running;
  const Dataset none =
      Dataset::Range(2).Repeat().Filter([&running](const Element&) -> StatusOr<bool> {
        if (!running.HasBeenNotified()) running.Notify();
        return false;
      });
  ASSERT_OK_AND_ASSIGN(const auto iterator, none.MakeIterator());
  IoPool pool(1);
  pool.Schedule([&] {
    running.Wait();
    iterator->Cancel();
  });
  Element element;
  EXPECT_STATUS(iterator->Next(&element), absl::StatusCode::kCancelled, "cancelled");
}

TEST(Scan, HandsTheStateOn) {
  const auto sum = [](Element state, Element element) -> StatusOr<std::pair<Element, Element>> {
    if (Value(element) == 2) return absl::UnavailableError("no 2");
    const Element next = {Tensor::Scalar(Value(state) + Value(element))};
    return std::make_pair(next, next);
  };
  const Dataset sums = Dataset::Range(5).Scan({Tensor::Scalar(int64_t{100})}, sum);
  EXPECT_EQ(TextOf(sums), "100 101 <no 2> 104 108");
  ExpectStatesGoOn(sums);
}

// Squares rows; fails for multiples of 3; counts how it is called.
class Squares : public RowFunction {
 public:
  std::string Name() const override { return "Squares"; }
  StatusOr<ElementSpec> OutputSpec(const ElementSpec& input) const override {
    if (input.size() != 1) return InvalidArgument("Squares: one component, got ", input.size());
    return input;
  }
  StatusOr<Element> Call(const Element& element, Arena*) const override {
    ++calls;
    if (Value(element) % 3 == 0) {
      return absl::UnavailableError(absl::StrCat("no ", Value(element)));
    }
    return Square(element);
  }
  Status CallBlock(const Block& in, Arena*, Block* out, Status* error) const override {
    ++block_calls;
    const absl::Span<const int64_t> values = in.columns[0].stacked.flat<int64_t>();
    std::vector<int64_t> squares;
    for (const int64_t value : values) {
      if (value % 3 == 0) {
        *error = absl::UnavailableError(absl::StrCat("no ", value));
        break;
      }
      squares.push_back(value * value);
    }
    out->rows = static_cast<int64_t>(squares.size());
    out->columns.clear();
    out->columns.push_back({.stacked = Tensor::Vector<int64_t>(squares)});
    return absl::OkStatus();
  }
  mutable int calls = 0, block_calls = 0;
};

TEST(RowFunction, GetsBlocksAndGivesTheSameElements) {
  const auto squares = std::make_shared<const Squares>();
  const Dataset mapped = Dataset::Range(8).Map(squares);
  EXPECT_EQ(TextOf(mapped), "<no 0> 1 4 <no 3> 16 25 <no 6> 49");
  EXPECT_EQ(squares->block_calls, 0);
  squares->calls = 0;
  EXPECT_EQ(TextOf(mapped.Batch(1)), "<no 0> [1] [4] <no 3> [16] [25] <no 6> [49]");
  EXPECT_EQ(TextOf(mapped.Batch(2)), "<no 0> [1 4] <no 3> [16 25] <no 6> [49]");
  EXPECT_EQ(TextOf(mapped.Batch(100)), "<no 0> <no 3> <no 6> [49]");
  EXPECT_EQ(TextOf(mapped.Skip(1).Take(2).Batch(8)), "<no 0> [1]");
  EXPECT_EQ(squares->calls, 0);
  ExpectStatesGoOn(mapped);
  ExpectStatesGoOn(mapped.Batch(2));
  EXPECT_STATUS(Dataset::Range(1).Enumerate().Map(squares).status(), kInvalid,
                "Dataset.Map: Squares: one component, got 2");
}

}  // namespace
}  // namespace millrace::data

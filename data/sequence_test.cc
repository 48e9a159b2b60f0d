// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <vector>

#include "core/cancellation.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: sources, repeat, take, skip and shard give TensorFlow's elements, with known
//   cardinality; an error takes the place of its element
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused
// covers: article 4-8: rows from a generator of the program, or fed
// covers: scenario F18: data of several trainers: shards

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Dataset Slices() {
  return Dataset::FromTensorSlices(
      {TensorOf<std::string>({3}, {"a", "b", "c"}), TensorOf<float>({3, 2}, {1, 2, 3, 4, 5, 6})});
}

TEST(MemorySources, GiveTensorsTheirSlicesAndRanges) {
  EXPECT_EQ(TextOf(Dataset::FromTensors({TensorOf<int64_t>({2}, {1, 2}), Tensor::Scalar("x")})),
            "[1 2]|x");
  EXPECT_EQ(TextOf(Slices()), "a|[1 2] b|[3 4] c|[5 6]");
  EXPECT_EQ(TextOf(Dataset::Range(3)), "0 1 2");
  EXPECT_EQ(TextOf(Dataset::Range(10, 1, -4)), "10 6 2");
  EXPECT_EQ(TextOf(Dataset::Range(3, 3)), "");
  EXPECT_EQ(TextOf(Dataset::Range(3, 0)), "");
  EXPECT_EQ(TextOf(Dataset::FromTensorSlices({TensorOf<float>({0, 2}, {})})), "");
}

TEST(MemorySources, ARangeMaySpanAllIntegers) {
  const Dataset range = Dataset::Range(INT64_MIN, INT64_MAX, INT64_MAX);
  EXPECT_EQ(range.cardinality(), 3);
  EXPECT_EQ(TextOf(range), "-9223372036854775808 -1 9223372036854775806");
  EXPECT_EQ(Dataset::Range(INT64_MIN, INT64_MAX).cardinality(), INT64_MAX);
  EXPECT_EQ(TextOf(Dataset::Range(INT64_MAX, INT64_MIN, INT64_MIN)), "9223372036854775807 -1");
}

TEST(MemorySources, SlicesDoNotChangeWhenTheElementIsWritten) {
  const Dataset slices = Slices();
  const auto iterator = slices.MakeIterator();
  ASSERT_OK(iterator);
  Element element;
  ASSERT_OK((*iterator)->Next(&element));
  element[1].mutable_flat<float>()[0] = 99;
  EXPECT_EQ(TextOf(slices), "a|[1 2] b|[3 4] c|[5 6]");
}

TEST(MemorySources, RefuseWhatCannotWork) {
  EXPECT_STATUS(Dataset().status(), absl::StatusCode::kFailedPrecondition, "got none");
  EXPECT_STATUS(Dataset().MakeIterator(), absl::StatusCode::kFailedPrecondition, "got none");
  EXPECT_STATUS(Dataset::FromTensors({}).status(), kInvalid, "at least one component");
  EXPECT_STATUS(Dataset::FromTensors({Tensor()}).status(), kInvalid, "component 0 must be a value");
  EXPECT_STATUS(Dataset::FromTensorSlices({Tensor::Scalar(1.0f)}).status(), kInvalid,
                "component 0 must have rows, got a scalar");
  EXPECT_STATUS(
      Dataset::FromTensorSlices({TensorOf<float>({2}, {1, 2}), TensorOf<float>({1}, {1})}).status(),
      kInvalid, "component 1 must have as many rows as component 0 (2), got 1");
  EXPECT_STATUS(Dataset::Range(0, 5, 0).status(), kInvalid, "step must not be 0");
  EXPECT_STATUS(Dataset::FromGenerator(nullptr, {}).status(), kInvalid, "got none");
  // The first error stays.
  EXPECT_STATUS(Dataset::Range(0, 5, 0).Batch(0).Repeat().status(), kInvalid, "Dataset.Range");
  EXPECT_STATUS(Dataset::Range(0, 5, 0).Batch(2).MakeIterator(), kInvalid, "Dataset.Range");
}

// Counts up to `n`, then ends or fails.
Dataset Counting(int64_t n, Status last = absl::OkStatus()) {
  return Dataset::FromGenerator(
      [n, last](CancellationManager*) -> StatusOr<Generator> {
        return Generator([n, last, i = int64_t{0}](Element* element) mutable -> StatusOr<bool> {
          if (i == n && !last.ok()) return last;
          if (i == n) return false;
          *element = {Tensor::Scalar(i++)};
          return true;
        });
      },
      {{DT_INT64, PartialShape::Scalar()}});
}

TEST(GeneratorSource, BeginsAnewForEachPass) {
  EXPECT_EQ(TextOf(Counting(3).Repeat(2)), "0 1 2 0 1 2");
  EXPECT_EQ(TextOf(Counting(0).Repeat()), "");
}

TEST(GeneratorSource, AnErrorEndsIt) {
  EXPECT_EQ(TextOf(Counting(2, absl::UnavailableError("gone"))), "0 1 <gone>");
}

TEST(GeneratorSource, WhatItThrowsAndWhatDoesNotFitIsAnError) {
  const auto throwing = [](CancellationManager*) -> StatusOr<Generator> {
    return Generator([](Element*) -> StatusOr<bool> { throw std::runtime_error("thrown"); });
  };
  EXPECT_EQ(TextOf(Dataset::FromGenerator(throwing, {})),
            "<Generator: an exception must not leave it, got thrown>");
  const auto of = [](Element element) {
    return [element](CancellationManager*) -> StatusOr<Generator> {
      return Generator([element](Element* out) -> StatusOr<bool> {
        *out = element;
        return true;
      });
    };
  };
  const ElementSpec spec = {{DT_FLOAT, {2}}};
  EXPECT_EQ(TextOf(Dataset::FromGenerator(of({Tensor::Scalar(int64_t{1})}), spec)),
            "<Generator: component 0 must be float, got int64>");
  EXPECT_EQ(TextOf(Dataset::FromGenerator(of({Tensor::Scalar(1.0f)}), spec)),
            "<Generator: component 0 must have shape [2], got []>");
  EXPECT_EQ(TextOf(Dataset::FromGenerator(of({}), spec)),
            "<Generator: an element must have 1 components, got 0>");
  EXPECT_EQ(TextOf(Dataset::FromGenerator(
                [](CancellationManager*) -> StatusOr<Generator> { return Generator(); }, spec)),
            "<Dataset.FromGenerator: the factory must return a generator>");
}

TEST(Sequence, TakesSkipsAndShards) {
  const Dataset five = Dataset::Range(5);
  EXPECT_EQ(TextOf(five.Take(2)), "0 1");
  EXPECT_EQ(TextOf(five.Take(0)), "");
  EXPECT_EQ(TextOf(five.Take(9)), "0 1 2 3 4");
  EXPECT_EQ(TextOf(five.Take(kForever)), "0 1 2 3 4");
  EXPECT_EQ(TextOf(five.Skip(2)), "2 3 4");
  EXPECT_EQ(TextOf(five.Skip(9)), "");
  EXPECT_EQ(TextOf(five.Skip(kForever)), "");
  EXPECT_EQ(TextOf(five.Shard(2, 0)), "0 2 4");
  EXPECT_EQ(TextOf(five.Shard(2, 1)), "1 3");
  EXPECT_EQ(TextOf(five.Shard(9, 7)), "");
  // Blocks and elements are the same.
  EXPECT_EQ(TextOf(five.Skip(1).Take(3).Repeat(2).Batch(4)), "[1 2 3 1] [2 3]");
}

TEST(Sequence, RepeatsUntilThereIsNothingToRepeat) {
  EXPECT_EQ(TextOf(Dataset::Range(2).Repeat(3)), "0 1 0 1 0 1");
  EXPECT_EQ(TextOf(Dataset::Range(2).Repeat(0)), "");
  EXPECT_EQ(TextOf(Dataset::Range(2).Repeat().Take(5)), "0 1 0 1 0");
  EXPECT_EQ(TextOf(Dataset::Range(0).Repeat()), "");
  EXPECT_EQ(TextOf(Dataset::Range(0).Repeat().Batch(2)), "");
  // Only errors are nothing, too.
  EXPECT_EQ(TextOf(Counting(0, absl::UnavailableError("gone")).Repeat()), "<gone>");
}

TEST(Sequence, ConcatenatesZipsAndEnumerates) {
  EXPECT_EQ(TextOf(Dataset::Range(2).Concatenate(Dataset::Range(5, 7))), "0 1 5 6");
  EXPECT_EQ(TextOf(Dataset::Zip({Dataset::Range(3), Slices().Take(2)})), "0|a|[1 2] 1|b|[3 4]");
  EXPECT_EQ(TextOf(Slices().Enumerate(7)), "7|a|[1 2] 8|b|[3 4] 9|c|[5 6]");
  // Rows stay together where one has an error.
  EXPECT_EQ(TextOf(Dataset::Zip({Dataset::Range(4), Counting(2, absl::UnavailableError("gone"))})),
            "0|0 1|1 <gone>");
}

TEST(Sequence, KnowsItsCardinality) {
  const Dataset five = Dataset::Range(5), endless = five.Repeat(), unknown = Counting(3);
  const struct {
    Dataset dataset;
    int64_t cardinality;
  } cases[] = {
      {five.Take(2), 2},
      {five.Skip(2), 3},
      {five.Skip(7), 0},
      {five.Shard(3, 1), 2},
      {five.Shard(3, 2), 1},
      {five.Repeat(3), 15},
      {five.Repeat(0), 0},
      {endless, kInfiniteCardinality},
      {endless.Take(7), 7},
      {endless.Skip(7), kInfiniteCardinality},
      {endless.Batch(2), kInfiniteCardinality},
      {five.Batch(2), 3},
      {five.Batch(2, {.drop_remainder = true}), 2},
      {five.Concatenate(five), 10},
      {five.Concatenate(endless), kInfiniteCardinality},
      {unknown, kUnknownCardinality},
      {unknown.Repeat(), kInfiniteCardinality},
      {unknown.Take(0), 0},
      {unknown.Take(2), kUnknownCardinality},
      {five.Concatenate(unknown), kUnknownCardinality},
      {Dataset::Zip({five, endless}), 5},
      {Dataset::Zip({five, unknown}), kUnknownCardinality},
      {Dataset::Zip({endless, endless}), kInfiniteCardinality},
      {Dataset::Zip({five.Take(0), unknown}), 0},
      {Dataset::Range(INT64_MAX).Repeat(3), INT64_MAX},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(c.dataset.cardinality(), c.cardinality) << c.dataset.DebugString();
  }
}

TEST(Sequence, GivesWhatItsSpecSays) {
  ExpectKeepsItsSpec(Slices());
  ExpectKeepsItsSpec(Slices().Enumerate().Repeat(2).Skip(1));
  ExpectKeepsItsSpec(Dataset::Zip({Slices(), Dataset::Range(5).Repeat()}));
  ExpectKeepsItsSpec(Dataset::Range(5).Repeat());
  const Dataset mixed =
      Dataset::FromTensors({TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6})})
          .Concatenate(Dataset::FromTensors({TensorOf<float>({1, 3}, {1, 2, 3})}));
  EXPECT_EQ(SpecText(mixed.spec()), "(float [?,3])");
  ExpectKeepsItsSpec(mixed);
}

TEST(Sequence, RefusesWhatCannotWork) {
  const Dataset five = Dataset::Range(5);
  EXPECT_STATUS(five.Shard(0, 0).status(), kInvalid, "num_shards must be >= 1, got 0");
  EXPECT_STATUS(five.Shard(2, 2).status(), kInvalid, "below num_shards 2, got 2");
  EXPECT_STATUS(five.Shard(2, -1).status(), kInvalid, "got -1");
  EXPECT_STATUS(five.Concatenate(Slices()).status(), kInvalid, "elements must have 1 components");
  EXPECT_STATUS(five.Concatenate(Dataset::FromTensors({Tensor::Scalar(1.0f)})).status(), kInvalid,
                "component 0 must be int64, got float");
  EXPECT_STATUS(five.Concatenate(Dataset()).status(), absl::StatusCode::kFailedPrecondition,
                "none");
  EXPECT_STATUS(Dataset::Zip({}).status(), kInvalid, "at least one dataset");
  EXPECT_STATUS(Dataset::Zip({five, Dataset()}).status(), absl::StatusCode::kFailedPrecondition,
                "none");
}

TEST(Sequence, StatesGoOn) {
  ExpectStatesGoOn(Slices());
  ExpectStatesGoOn(Dataset::FromTensors({Tensor::Scalar(1.5f)}).Repeat(3));
  ExpectStatesGoOn(Dataset::Range(7).Skip(2).Take(4).Repeat(2).Enumerate());
  ExpectStatesGoOn(Dataset::Range(7).Shard(3, 1).Concatenate(Dataset::Range(3)));
  ExpectStatesGoOn(Dataset::Zip({Dataset::Range(7), Slices()}));
  ExpectStatesGoOn(Counting(4).Repeat(2));
}

TEST(Reduce, FoldsAllElements) {
  const auto add = [](Element sum, Element x) -> StatusOr<Element> {
    return Element{Tensor::Scalar(sum[0].scalar<int64_t>() + x[0].scalar<int64_t>())};
  };
  const Element zero = {Tensor::Scalar(int64_t{0})};
  ASSERT_OK_AND_ASSIGN(const Element sum, Dataset::Range(5).Reduce(zero, add));
  EXPECT_EQ(TextOf(sum), "10");
  ASSERT_OK_AND_ASSIGN(const Element none, Dataset::Range(0).Reduce(zero, add));
  EXPECT_EQ(TextOf(none), "0");
  EXPECT_STATUS(Dataset::Range(5).Repeat().Reduce(zero, add), kInvalid, "must be finite");
  EXPECT_STATUS(Counting(1, absl::UnavailableError("gone")).Reduce(zero, add),
                absl::StatusCode::kUnavailable, "gone");
}

}  // namespace
}  // namespace millrace::data

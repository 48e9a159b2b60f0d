// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: batches stack, pad and refuse as TensorFlow's
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Passes elements on one by one: what is behind it gets no blocks.
Dataset OneByOne(const Dataset& input) {
  return input.Map([](Element element) -> StatusOr<Element> { return element; },
                   {.spec = input.spec()});
}

// [0], [0 1], [0 1 2], ...: int64 vectors of 1 to `n` elements.
Dataset Growing(int64_t n) {
  return Dataset::Range(1, n + 1).Map(
      [](Element element) -> StatusOr<Element> {
        std::vector<int64_t> values;
        for (int64_t i = 0; i < element[0].scalar<int64_t>(); ++i) values.push_back(i);
        return Element{Tensor::Vector<int64_t>(values)};
      },
      {.spec = {{DT_INT64, {-1}}}});
}

TEST(Batch, StacksRowsAndBlocksAlike) {
  const Dataset rows =
      Dataset::FromTensorSlices({TensorOf<std::string>({5}, {"a", "b", "c", "d", "e"}),
                                 TensorOf<float>({5, 2}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10})});
  for (const Dataset& dataset : {rows, OneByOne(rows)}) {
    EXPECT_EQ(TextOf(dataset.Batch(2)), "[a b]|[[1 2][3 4]] [c d]|[[5 6][7 8]] [e]|[[9 10]]");
    EXPECT_EQ(TextOf(dataset.Batch(2, {.drop_remainder = true})),
              "[a b]|[[1 2][3 4]] [c d]|[[5 6][7 8]]");
    EXPECT_EQ(TextOf(dataset.Batch(5)), "[a b c d e]|[[1 2][3 4][5 6][7 8][9 10]]");
    EXPECT_EQ(TextOf(dataset.Batch(9)), "[a b c d e]|[[1 2][3 4][5 6][7 8][9 10]]");
    EXPECT_EQ(TextOf(dataset.Batch(9, {.drop_remainder = true})), "");
    EXPECT_EQ(TextOf(dataset.Batch(2).Batch(2)),
              "[[a b][c d]]|[[[1 2][3 4]][[5 6][7 8]]] [[e]]|[[[9 10]]]");
    ExpectKeepsItsSpec(dataset.Batch(2));
    ExpectKeepsItsSpec(dataset.Batch(2, {.drop_remainder = true}));
    ExpectStatesGoOn(dataset.Batch(2).Repeat(2));
  }
  EXPECT_EQ(SpecText(rows.Batch(2).spec()), "(string [?], float [?,2])");
  EXPECT_EQ(SpecText(rows.Batch(5).spec()), "(string [5], float [5,2])");
  EXPECT_EQ(SpecText(rows.Repeat().Batch(2).spec()), "(string [2], float [2,2])");
  EXPECT_EQ(TextOf(Dataset::Range(0).Batch(3)), "");
}

TEST(Batch, DoesNotTakeMemoryForRowsThatDoNotCome) {
  EXPECT_EQ(TextOf(Dataset::Range(3).Batch(int64_t{1} << 60)), "[0 1 2]");
  EXPECT_EQ(TextOf(OneByOne(Dataset::Range(3)).Batch(int64_t{1} << 60)), "[0 1 2]");
}

TEST(Batch, LeavesTheSourceAlone) {
  const Dataset slices = Dataset::FromTensorSlices({TensorOf<int64_t>({4}, {1, 2, 3, 4})});
  ASSERT_OK_AND_ASSIGN(const auto iterator, slices.Batch(4).MakeIterator());
  ASSERT_OK_AND_ASSIGN(Element batch, iterator->Next());
  batch[0].mutable_flat<int64_t>()[0] = 99;
  EXPECT_EQ(TextOf(slices), "1 2 3 4");
  // A string that somebody else holds is copied, not moved away.
  const Element text = {Tensor::Scalar("some text that is longer than a small string")};
  const std::string want = "[" + TextOf(text) + "]";
  EXPECT_EQ(TextOf(Dataset::FromTensors(text).Batch(1)), want);
  EXPECT_EQ("[" + TextOf(text) + "]", want);
}

TEST(Batch, ShapesMustBeEqual) {
  EXPECT_EQ(TextOf(Growing(3).Batch(2)),
            "<Cannot batch tensors with different shapes in component 0. First element had shape "
            "[1] and element 1 had shape [2].> [[0 1 2]]");
  EXPECT_STATUS(Dataset::Range(1).Batch(0).status(), kInvalid, "batch_size must be >= 1, got 0");
}

TEST(MapAndBatch, IsMapThenBatch) {
  const auto twice = [](Element element) -> StatusOr<Element> {
    return Element{Tensor::Scalar(2 * element[0].scalar<int64_t>())};
  };
  EXPECT_EQ(TextOf(Dataset::Range(5).MapAndBatch(twice, 2)), "[0 2] [4 6] [8]");
  EXPECT_EQ(TextOf(Dataset::Range(5).MapAndBatch(twice, 2, {.num_parallel_calls = 2},
                                                 {.drop_remainder = true})),
            "[0 2] [4 6]");
}

TEST(PaddedBatch, PadsAtTheEnd) {
  EXPECT_EQ(TextOf(Growing(5).PaddedBatch(2)), "[[0 0][0 1]] [[0 1 2 0][0 1 2 3]] [[0 1 2 3 4]]");
  EXPECT_EQ(TextOf(Growing(3).PaddedBatch(2, {.padded_shapes = {{4}},
                                              .padding_values = {Tensor::Scalar(int64_t{-1})},
                                              .drop_remainder = true})),
            "[[0 -1 -1 -1][0 1 -1 -1]]");
  const Dataset matrices =
      Dataset::FromTensors({TensorOf<std::string>({1, 2}, {"a", "b"})})
          .Concatenate(Dataset::FromTensors({TensorOf<std::string>({2, 1}, {"c", "d"})}));
  EXPECT_EQ(TextOf(matrices.PaddedBatch(2, {.padding_values = {Tensor::Scalar("-")}})),
            "[[[a b][- -]][[c -][d -]]]");
  ExpectKeepsItsSpec(Growing(5).PaddedBatch(2));
  ExpectKeepsItsSpec(Growing(3).PaddedBatch(2, {.padded_shapes = {{4}}}));
  ExpectKeepsItsSpec(matrices.PaddedBatch(2));
  EXPECT_EQ(SpecText(Growing(3).PaddedBatch(2, {.padded_shapes = {{4}}}).spec()), "(int64 [?,4])");
  ExpectStatesGoOn(Growing(5).PaddedBatch(2));
}

TEST(PaddedBatch, SaysWhatDoesNotFit) {
  EXPECT_EQ(TextOf(Growing(2).PaddedBatch(2, {.padded_shapes = {{1}}})),
            "<Attempted to pad to a smaller size than the input element: component 0 is padded to "
            "[1], got [2]>");
  EXPECT_EQ(TextOf(Growing(1).PaddedBatch(2, {.padded_shapes = {{-1, -1}}})),
            "<All elements in a batch must have the same rank as the padded shape for component0: "
            "expected rank 2 but got element with rank 1>");
  const Dataset one = Growing(1);
  EXPECT_STATUS(one.PaddedBatch(0).status(), kInvalid, "batch_size must be >= 1, got 0");
  EXPECT_STATUS(one.PaddedBatch(1, {.padded_shapes = {{1}, {1}}}).status(), kInvalid,
                "one padded shape for each of 1 components, got 2");
  EXPECT_STATUS(one.PaddedBatch(1, {.padding_values = {Tensor::Scalar(1.0f)}}).status(), kInvalid,
                "padding value 0 must be int64, got float");
  EXPECT_STATUS(one.PaddedBatch(1, {.padding_values = {TensorOf<int64_t>({1}, {1})}}).status(),
                kInvalid, "padding value 0 must be a scalar, got shape [1]");
}

TEST(Unbatch, GivesRows) {
  const Dataset batches =
      Dataset::FromTensorSlices({TensorOf<std::string>({5}, {"a", "b", "c", "d", "e"})})
          .Enumerate()
          .Batch(2);
  EXPECT_EQ(TextOf(batches.Unbatch()), "0|a 1|b 2|c 3|d 4|e");
  EXPECT_EQ(TextOf(batches.Unbatch().Batch(3)), "[0 1 2]|[a b c] [3 4]|[d e]");
  ExpectKeepsItsSpec(batches.Unbatch());
  ExpectStatesGoOn(batches.Unbatch());
  EXPECT_EQ(TextOf(Dataset::Range(1).Unbatch()),
            "<Unbatch: component 0 must have rows, got a scalar>");
  EXPECT_EQ(
      TextOf(Dataset::FromTensors({TensorOf<int64_t>({2}, {1, 2}), TensorOf<int64_t>({1}, {1})})
                 .Unbatch()),
      "<Input element must have the same batch size in each component. Component 0 had size 2 "
      "but component 1 had size 1.>");
}

}  // namespace
}  // namespace millrace::data

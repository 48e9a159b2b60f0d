// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"

// covers: input: flat_map, interleave and windows have TensorFlow's order
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

int64_t Value(const Element& element) { return element[0].scalar<int64_t>(); }

// n elements n; 3 has none, 4 cannot be made.
StatusOr<Dataset> Many(const Element& element) {
  if (Value(element) == 4) return absl::UnavailableError("no 4");
  return Dataset::FromTensors(element).Repeat(Value(element) == 3 ? 0 : Value(element));
}

TEST(FlatMap, ReadsOneDatasetAfterTheOther) {
  EXPECT_EQ(TextOf(Dataset::Range(6).FlatMap(Many)), "1 2 2 <no 4> 5 5 5 5 5");
  EXPECT_EQ(TextOf(Dataset::Range(3).FlatMap(Many).Repeat(2)), "1 2 2 1 2 2");
  EXPECT_EQ(TextOf(Dataset::Range(0).FlatMap(Many)), "");
  ExpectStatesGoOn(Dataset::Range(6).FlatMap(Many));
  const auto wrong = [](const Element&) -> StatusOr<Dataset> { return Dataset(); };
  EXPECT_EQ(TextOf(Dataset::Range(1).FlatMap(wrong)),
            "<Dataset: it must be made by a source or a transformation, got none>");
  EXPECT_EQ(TextOf(Dataset::Range(1, 2).FlatMap(Many, {{DT_FLOAT, PartialShape()}})),
            "<Dataset.FlatMap: component 0 must be float, got int64>");
}

TEST(Interleave, HasTensorFlowsOrder) {
  // The example of TensorFlow's documentation.
  const auto six = [](const Element& element) -> StatusOr<Dataset> {
    return Dataset::FromTensors(element).Repeat(6);
  };
  for (const bool parallel : {false, true}) {
    const Dataset turns = Dataset::Range(1, 6).Interleave(
        six, {.cycle_length = 2, .block_length = 4, .parallel = parallel});
    EXPECT_EQ(TextOf(turns), "1 1 1 1 2 2 2 2 1 1 2 2 3 3 3 3 4 4 4 4 3 3 4 4 5 5 5 5 5 5");
    ExpectStatesGoOn(turns);
    EXPECT_EQ(TextOf(Dataset::Range(6).Interleave(
                  Many, {.cycle_length = 3, .block_length = 1, .parallel = parallel})),
              "1 2 2 <no 4> 5 5 5 5 5");
    // More turns than datasets.
    EXPECT_EQ(TextOf(Dataset::Range(4).Interleave(
                  Many, {.cycle_length = int64_t{1} << 40, .parallel = parallel})),
              "1 2 2");
  }
}

TEST(FlatMap, EachDatasetHasItsOwnOrderAndCache) {
  const auto shuffled = [](const Element&) -> StatusOr<Dataset> {
    return Dataset::Range(20).Shuffle(20).Batch(20);
  };
  const std::vector<std::string> orders = ElementsOf(Dataset::Range(2).FlatMap(shuffled));
  ASSERT_EQ(orders.size(), 2u);
  EXPECT_NE(orders[0], orders[1]);
  const auto cached = [](const Element& element) -> StatusOr<Dataset> {
    return Dataset::FromTensors(element).Cache().Repeat(2);
  };
  EXPECT_EQ(TextOf(Dataset::Range(3).FlatMap(cached).Repeat(2)), "0 0 1 1 2 2 0 0 1 1 2 2");
}

StatusOr<Dataset> Whole(Dataset window) { return window.Batch(100); }

TEST(Window, CutsAndSlides) {
  const Dataset seven = Dataset::Range(7);
  EXPECT_EQ(TextOf(seven.Window({.size = 3}, Whole)), "[0 1 2] [3 4 5] [6]");
  EXPECT_EQ(TextOf(seven.Window({.size = 3, .drop_remainder = true}, Whole)), "[0 1 2] [3 4 5]");
  EXPECT_EQ(TextOf(seven.Window({.size = 3, .shift = 2}, Whole)), "[0 1 2] [2 3 4] [4 5 6] [6]");
  EXPECT_EQ(TextOf(seven.Window({.size = 2, .shift = 3}, Whole)), "[0 1] [3 4] [6]");
  EXPECT_EQ(
      TextOf(seven.Window({.size = 3, .shift = 1, .stride = 2, .drop_remainder = true}, Whole)),
      "[0 2 4] [1 3 5] [2 4 6]");
  ExpectStatesGoOn(seven.Window({.size = 3, .shift = 2}, Whole));
  ExpectStatesGoOn(seven.Window({.size = 3, .shift = 2}, [](Dataset window) -> StatusOr<Dataset> {
    return window.Shuffle(3, {.seed = 4});
  }));
  EXPECT_EQ(seven
                .Window({.size = 3},
                        [](Dataset window) -> StatusOr<Dataset> {
                          EXPECT_GE(window.cardinality(), 1);
                          return window;
                        })
                .cardinality(),
            kUnknownCardinality);
  EXPECT_STATUS(seven.Window({.size = 0}, Whole).status(), kInvalid, "size must be >= 1");
  EXPECT_STATUS(seven.Window({.shift = -1}, Whole).status(), kInvalid, "shift must be >= 0");
  EXPECT_STATUS(seven.Window({.stride = 0}, Whole).status(), kInvalid, "stride must be >= 1");
  EXPECT_STATUS(seven.Window({}, nullptr).status(), kInvalid, "got none");
}

TEST(GroupByWindow, GathersByKey) {
  const auto key = [](const Element& element) -> StatusOr<int64_t> {
    if (Value(element) == 5) return absl::UnavailableError("no 5");
    return Value(element) % 2 - 1;
  };
  const auto batch = [](int64_t, Dataset window) -> StatusOr<Dataset> { return window.Batch(100); };
  const Dataset groups = Dataset::Range(10).GroupByWindow(key, batch, 3);
  EXPECT_EQ(TextOf(groups), "[0 2 4] <no 5> [1 3 7] [6 8] [9]");
  ExpectStatesGoOn(groups);
  EXPECT_STATUS(Dataset::Range(1).GroupByWindow(key, batch, 0).status(), kInvalid,
                "window_size must be >= 1, got 0");
}

}  // namespace
}  // namespace millrace::data

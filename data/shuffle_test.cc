// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/arena.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/row_function.h"
#include "data/testing/dataset_testing.h"
#include "gtest/gtest.h"
#include "ops/loops/philox.h"

// covers: input: a shuffle's order depends on seed, task and pass alone
// covers: input: a restored iterator gives what the saved one would have given, saved after any
//   element; a state that is cut is refused
// covers: input: a shuffle of rows has the order of a shuffle of objects
// covers: article 0-16: lines, skipped, parsed, shuffled over ten batches, repeated, batched
// covers: scenario F18: data of several trainers: an order for each task

namespace millrace::data {
namespace {

using Texts = std::vector<std::string>;

// The rule as the reference states it, over a plain list: words of the generator in order.
class Words {
 public:
  Words(uint64_t seed, uint64_t seed2) : stream_(seed, seed2) {}
  uint32_t Next() {
    if (used_ == 4) block_ = stream_.Next(), used_ = 0;
    return block_[used_++];
  }

 private:
  math::PhiloxStream stream_;
  math::PhiloxStream::Block block_{};
  size_t used_ = 4;
};

Texts ShuffledByTheRule(int64_t n, size_t buffer_size, Words words) {
  Texts out;
  Texts held;  // the first is the oldest place
  for (int64_t next = 0; next < n || !held.empty();) {
    for (; next < n && held.size() < buffer_size; ++next) held.push_back(absl::StrCat(next));
    const size_t chosen = words.Next() % held.size();
    out.push_back(held[chosen]);
    held[chosen] = held[0];
    held.erase(held.begin());
  }
  return out;
}

Texts Sorted(Texts texts) {
  std::sort(texts.begin(), texts.end());
  return texts;
}

// The same elements as objects: a function gives no blocks.
Dataset AsObjects(const Dataset& dataset) {
  return dataset.Map([](Element element) -> StatusOr<Element> { return element; },
                     {.spec = dataset.spec()});
}

// Numbers, a matrix and strings of several lengths.
Dataset MixedRows(int64_t n) {
  std::vector<float> numbers;
  std::vector<std::string> texts;
  for (int64_t i = 0; i < n; ++i) {
    for (int j = 0; j < 6; ++j) numbers.push_back(static_cast<float>(i) + 0.5f);
    texts.push_back(std::string(static_cast<size_t>(i % 40), 'x') + absl::StrCat(i));
  }
  return Dataset::FromTensorSlices({*Tensor::FromValues<float>(*Shape::Make({n, 2, 3}), numbers),
                                    Tensor::Vector<std::string>(texts),
                                    *Tensor::Zeros(DT_INT32, *Shape::Make({n, 0}))});
}

TEST(Shuffle, OfRowsIsThatOfObjects) {
  const ShuffleOptions seeds = {.seed = 3, .seed2 = 4};
  for (const Dataset& rows : {Dataset::Range(700), MixedRows(60), Dataset::Range(0)}) {
    for (const int64_t buffer : {1, 2, 7, 300, 1000}) {
      SCOPED_TRACE(absl::StrCat(rows.DebugString(), " ", buffer));
      const Dataset objects = AsObjects(rows);
      EXPECT_EQ(ElementsOf(rows.Shuffle(buffer, seeds).Repeat(2)),
                ElementsOf(objects.Shuffle(buffer, seeds).Repeat(2)));
      EXPECT_EQ(ElementsOf(rows.ShuffleAndRepeat(buffer, 3, seeds)),
                ElementsOf(objects.ShuffleAndRepeat(buffer, 3, seeds)));
      // In blocks.
      EXPECT_EQ(ElementsOf(rows.Shuffle(buffer, seeds).Batch(8)),
                ElementsOf(objects.Shuffle(buffer, seeds).Batch(8)));
      EXPECT_EQ(ElementsOf(rows.ShuffleAndRepeat(buffer, 2, seeds).Skip(3).Batch(301)),
                ElementsOf(objects.ShuffleAndRepeat(buffer, 2, seeds).Skip(3).Batch(301)));
    }
  }
}

// Of buffers so large that rows are fetched before they are drawn.
TEST(Shuffle, OfManyRowsIsThatOfObjects) {
  const ShuffleOptions seeds = {.seed = 3, .seed2 = 4};
  const struct {
    Dataset rows;
    int64_t buffer;
  } cases[] = {{Dataset::Range(40'000), 20'000}, {MixedRows(3'000), 1'000}, {MixedRows(60), 9'000}};
  for (const auto& [rows, buffer] : cases) {
    SCOPED_TRACE(absl::StrCat(rows.DebugString(), " ", buffer));
    const Dataset objects = AsObjects(rows);
    EXPECT_EQ(ElementsOf(rows.Shuffle(buffer, seeds).Repeat(2).Batch(500)),
              ElementsOf(objects.Shuffle(buffer, seeds).Repeat(2).Batch(500)));
    EXPECT_EQ(ElementsOf(rows.ShuffleAndRepeat(buffer, 2, seeds).Batch(77)),
              ElementsOf(objects.ShuffleAndRepeat(buffer, 2, seeds).Batch(77)));
  }
}

TEST(Shuffle, StatesOfRowsGoOn) {
  ExpectStatesGoOn(MixedRows(9).Shuffle(4, {.seed = 5}));
  ExpectStatesGoOn(MixedRows(5).ShuffleAndRepeat(8, 3, {.seed = 5}));
  ExpectStatesGoOn(MixedRows(9).Shuffle(9'000, {.seed = 5}).Batch(2));
  ExpectStatesGoOn(Dataset::Range(12).Shuffle(5, {.seed = 5}).Batch(2));
  ExpectStatesGoOn(Dataset::Range(4).Shuffle(1, {.seed = 5}).Repeat(2));
  ExpectKeepsItsSpec(MixedRows(9).Shuffle(4, {.seed = 5}).Batch(2));
}

// A state of rows is one of objects of these elements, and no other dataset's.
TEST(Shuffle, OfRowsThatAreNotOfTheSpecIsAnError) {
  class Liar : public RowFunction {
   public:
    std::string Name() const override { return "Liar"; }
    StatusOr<ElementSpec> OutputSpec(const ElementSpec&) const override {
      return ElementSpec{{DT_FLOAT, PartialShape::Scalar()}};
    }
    StatusOr<Element> Call(const Element& element, Arena*) const override { return element; }
    Status CallBlock(const Block& in, Arena*, Block* out, Status*) const override {
      *out = in;
      return absl::OkStatus();
    }
  };
  const Dataset liar = Dataset::Range(3).Map(std::make_shared<const Liar>());
  EXPECT_EQ(ElementsOf(liar.Shuffle(2)),
            Texts{"<Dataset.Shuffle: component 0 must be float [], got int64 []>"});
}

TEST(Shuffle, HasTensorFlowsOrder) {
  for (const int64_t buffer : {1, 3, 10, 100}) {
    const ShuffleOptions seeds = {.seed = 7, .seed2 = 11, .reshuffle_each_iteration = false};
    EXPECT_EQ(ElementsOf(Dataset::Range(40).Shuffle(buffer, seeds)),
              ShuffledByTheRule(40, static_cast<size_t>(buffer), Words(7, 11)))
        << buffer;
  }
}

TEST(Shuffle, EachPassHasSeedsOfTheSeedsGenerator) {
  const Dataset twice = Dataset::Range(10).Shuffle(10, {.seed = 7, .seed2 = 11}).Repeat(3);
  Words seeds(7, 11);
  Texts want;
  for (int pass = 0; pass < 3; ++pass) {
    const uint64_t seed = seeds.Next(), seed2 = seeds.Next();
    const Texts part = ShuffledByTheRule(10, 10, Words(seed, seed2));
    want.insert(want.end(), part.begin(), part.end());
  }
  EXPECT_EQ(ElementsOf(twice), want);
  // Every iterator is the same.
  EXPECT_EQ(ElementsOf(twice), want);
  // Without reshuffling, every pass is.
  const Texts same = ElementsOf(
      Dataset::Range(10).Shuffle(10, {.seed = 7, .reshuffle_each_iteration = false}).Repeat(2));
  EXPECT_EQ(Texts(same.begin(), same.begin() + 10), Texts(same.begin() + 10, same.end()));
}

TEST(Shuffle, RepeatMixesEpochsOnlyBeforeIt) {
  const ShuffleOptions seeds = {.seed = 5};
  const Dataset four = Dataset::Range(4);
  for (const Dataset& epochs :
       {four.Shuffle(4, seeds).Repeat(3), four.ShuffleAndRepeat(4, 3, seeds),
        four.Shuffle(100, seeds).Repeat(3), four.ShuffleAndRepeat(100, 3, seeds),
        four.ShuffleAndRepeat(3, 3, seeds)}) {
    const Texts got = ElementsOf(epochs);
    ASSERT_EQ(got.size(), 12u) << epochs.DebugString();
    for (int epoch = 0; epoch < 3; ++epoch) {
      EXPECT_EQ(Sorted(Texts(got.begin() + 4 * epoch, got.begin() + 4 * epoch + 4)),
                (Texts{"0", "1", "2", "3"}))
          << epochs.DebugString();
    }
  }
  const Texts mixed = ElementsOf(four.Repeat(3).Shuffle(12, seeds));
  EXPECT_NE(Sorted(Texts(mixed.begin(), mixed.begin() + 4)), (Texts{"0", "1", "2", "3"}));
  EXPECT_EQ(Sorted(mixed).size(), 12u);
}

TEST(Shuffle, EmptyDatasetsEnd) {
  EXPECT_EQ(TextOf(Dataset::Range(0).Shuffle(4)), "");
  EXPECT_EQ(TextOf(Dataset::Range(0).Shuffle(4).Repeat()), "");
  EXPECT_EQ(TextOf(Dataset::Range(0).ShuffleAndRepeat(4)), "");
  EXPECT_EQ(TextOf(Dataset::Range(3).ShuffleAndRepeat(4, 0)), "");
  EXPECT_EQ(Dataset::Range(3).ShuffleAndRepeat(4).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(Dataset::Range(3).ShuffleAndRepeat(4, 5).cardinality(), 15);
}

// covers: article 1-15: shuffled over as many batches as there are workers, in an order of its own
//   in each task
TEST(Shuffle, OfChanceDiffersByTaskPlaceAndPass) {
  const Dataset chance = Dataset::Range(100).Shuffle(100);
  const IteratorOptions job = {.seed = 9};
  EXPECT_EQ(ElementsOf(chance, job), ElementsOf(chance, job));
  EXPECT_NE(ElementsOf(chance, job), ElementsOf(chance, {.seed = 9, .task = 1}));
  EXPECT_NE(ElementsOf(chance), ElementsOf(chance));
  const Dataset pairs = Dataset::Zip({chance, chance});
  int equal = 0;
  for (const std::string& pair : ElementsOf(pairs, job)) {
    const size_t bar = pair.find('|');
    if (pair.substr(0, bar) == pair.substr(bar + 1)) ++equal;
  }
  EXPECT_LT(equal, 20);
  // Seeds of the user's are the same in every task, unless it asks.
  const Dataset seeded = Dataset::Range(100).Shuffle(100, {.seed = 3});
  EXPECT_EQ(ElementsOf(seeded, {.task = 0}), ElementsOf(seeded, {.task = 1}));
  EXPECT_NE(ElementsOf(seeded, {.task = 0, .mix_task_into_seeds = true}),
            ElementsOf(seeded, {.task = 1, .mix_task_into_seeds = true}));
}

TEST(Shuffle, IsUniform) {
  // 4! orders of 4 elements: each is to come about equally often.
  std::multiset<std::string> orders;
  const Texts got =
      ElementsOf(Dataset::Range(4).Shuffle(4, {.seed = 1}).Batch(4).Repeat(1000).Take(960));
  for (const std::string& order : got) orders.insert(order);
  const std::set<std::string> different(orders.begin(), orders.end());
  EXPECT_EQ(different.size(), 24u);
  for (const std::string& order : different) EXPECT_GT(orders.count(order), 15u) << order;
}

TEST(Shuffle, AnErrorLosesNothing) {
  const Dataset failing = Dataset::Range(6).Map([](Element element) -> StatusOr<Element> {
    if (element[0].scalar<int64_t>() == 4) return absl::UnavailableError("no 4");
    return element;
  });
  const Texts got = ElementsOf(failing.Shuffle(3, {.seed = 1}));
  EXPECT_EQ(Sorted(got), (Texts{"0", "1", "2", "3", "5", "<no 4>"}));
}

TEST(Shuffle, RefusesWhatCannotWork) {
  EXPECT_STATUS(Dataset::Range(1).Shuffle(0).status(), absl::StatusCode::kInvalidArgument,
                "Dataset.Shuffle: buffer_size must be >= 1, got 0");
  EXPECT_STATUS(Dataset::Range(1).ShuffleAndRepeat(-1).status(), absl::StatusCode::kInvalidArgument,
                "Dataset.ShuffleAndRepeat: buffer_size must be >= 1, got -1");
  // A buffer that nobody has memory for is not taken before it is filled.
  EXPECT_EQ(ElementsOf(Dataset::Range(5).Shuffle(INT64_MAX)).size(), 5u);
}

TEST(Shuffle, StatesGoOn) {
  ExpectStatesGoOn(Dataset::Range(9).Shuffle(4, {.seed = 1}));
  ExpectStatesGoOn(Dataset::Range(4).Shuffle(3, {.seed = 1}).Repeat(3));
  ExpectStatesGoOn(Dataset::Range(4).ShuffleAndRepeat(6, 3, {.seed = 1}));
  // What chance drew is part of the state.
  ExpectStatesGoOn(Dataset::Range(9).Shuffle(4).Repeat(2), {.seed = 77});
}

}  // namespace
}  // namespace millrace::data

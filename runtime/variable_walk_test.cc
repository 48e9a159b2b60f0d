// SPDX-License-Identifier: Apache-2.0
#include "runtime/testing/variable_walk.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/allocator.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/variable_storage.h"

// covers: variables: a walk over a variable sees every row in bounded memory (bytes, locks, stripes
//   counted)

namespace millrace {
namespace {

std::shared_ptr<VariableStorage> Variable(const Tensor& value) {
  auto v = std::make_shared<VariableStorage>("v", value.dtype(), PartialShape::Unknown());
  EXPECT_OK(v->Assign(*value.Clone(), true));
  return v;
}

// Every row r is filled with the value r.
Tensor RowNumbers(int64_t rows, int64_t columns) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, ShapeOf({rows, columns}));
  const absl::Span<float> values = t.mutable_raw<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(static_cast<int64_t>(i) / columns);
  }
  return t;
}

// Adds one to the first element of the rows of each variable.
Status AddOneToRows(std::vector<VariableStorage*> variables, std::vector<int64_t> indices) {
  return VariableStorage::UpdateRows<int64_t>(
      variables, indices, {}, [](absl::Span<const Shape>) { return absl::OkStatus(); },
      [](int64_t, absl::Span<char* const> rows) {
        for (char* row : rows) *reinterpret_cast<float*>(row) += 1;
      });
}

struct Walked {
  std::vector<std::string> bytes;  // of each variable
  std::vector<int64_t> rows;
  size_t largest_piece = 0;
  uint64_t epoch = 0;
};
Walked WalkAll(std::vector<std::shared_ptr<VariableStorage>> variables,
               const VariableWalkOptions& options = {}) {
  Walked walked;
  walked.bytes.resize(variables.size());
  auto walk = VariableWalk::Begin(variables, options);
  EXPECT_OK(walk.status());
  for (;;) {
    const auto rows = walk->Next();
    EXPECT_OK(rows.status());
    if (!rows.ok() || rows->begin == rows->end) break;
    size_t piece = 0;
    for (size_t k = 0; k < variables.size(); ++k) {
      walked.bytes[k].append(walk->bytes(k).data(), walk->bytes(k).size());
      piece += walk->bytes(k).size();
    }
    walked.largest_piece = std::max(walked.largest_piece, piece);
    for (int64_t row = rows->begin; row < rows->end; ++row) walked.rows.push_back(row);
  }
  walked.epoch = walk->epoch();
  return walked;
}
std::string BytesOf(const Tensor& t) { return std::string(t.bytes().data(), t.bytes().size()); }

TEST(VariableWalkTest, PassesOverEveryRowInOrderInBoundedMemory) {
  for (const bool by_rows : {false, true}) {
    const auto table = Variable(RowNumbers(1000, 64));
    const auto slot = Variable(RowNumbers(1000, 3));
    if (by_rows) {
      ASSERT_OK(AddOneToRows({table.get()}, {500}));
    }
    const Walked walked = WalkAll({table, slot}, {.piece_bytes = 10000});
    EXPECT_EQ(walked.bytes[0], BytesOf(*table->Read()));
    EXPECT_EQ(walked.bytes[1], BytesOf(*slot->Read()));
    EXPECT_EQ(walked.rows.size(), 1000u);
    EXPECT_LE(walked.largest_piece, 10000u);
    EXPECT_EQ(table->CountsForTesting().bytes_copied, 0);
  }
}

TEST(VariableWalkTest, SeesStripesThatAReaderKeepsApart) {
  const auto table = Variable(RowNumbers(1000, 64));
  const Tensor reader = *table->Read();
  ASSERT_OK(AddOneToRows({table.get()}, {0, 999}));
  Tensor expected = RowNumbers(1000, 64);
  expected.mutable_raw<float>()[0] = 1;
  expected.mutable_raw<float>()[999 * 64] = 1000;
  EXPECT_EQ(WalkAll({table}).bytes[0], BytesOf(expected));
  ExpectTensorEqual(reader, RowNumbers(1000, 64));
}

// One row of every stripe of a table of 64 floats a row.
std::vector<int64_t> ARowOfEveryStripe(int64_t rows) {
  std::vector<int64_t> result;
  for (int64_t row = 0; row < rows; row += 64) result.push_back(row);
  return result;
}

// What a save costs: a step's read, let go of before the rows are walked.
TEST(VariableWalkTest, TakesNoMemoryForRowsThatAreUpdatedMeanwhile) {
  constexpr int64_t kRows = 65536;  // 16 MiB
  const std::vector<int64_t> everywhere = ARowOfEveryStripe(kRows);
  const auto table = Variable(RowNumbers(kRows, 64));
  ASSERT_OK(AddOneToRows({table.get()}, everywhere));
  ASSERT_OK(table->Read().status());
  ASSERT_OK_AND_ASSIGN(VariableWalk walk, VariableWalk::Begin({table}));
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  int64_t most = 0;
  int pieces = 0;
  for (;;) {
    ASSERT_OK_AND_ASSIGN(const auto rows, walk.Next());
    if (rows.begin == rows.end) break;
    ++pieces;
    EXPECT_LE(walk.bytes(0).size(), VariableWalkOptions().piece_bytes);
    ASSERT_OK(AddOneToRows({table.get()}, everywhere));
    most = std::max(most, DefaultAllocatorStats().bytes_in_use - before);
  }
  EXPECT_EQ(pieces, 64);
  EXPECT_LE(most, 64 << 10);  // the counter's own precision
  EXPECT_EQ(table->CountsForTesting().bytes_copied, 0);
  EXPECT_EQ(table->CountsForTesting().stripes_apart, 0);
}

TEST(VariableWalkTest, AReadThatIsHeldMeanwhileCostsTheTableOnce) {
  constexpr int64_t kRows = 65536;
  constexpr int64_t kBytes = kRows * 64 * 4;
  const std::vector<int64_t> everywhere = ARowOfEveryStripe(kRows);
  const auto table = Variable(RowNumbers(kRows, 64));
  ASSERT_OK(AddOneToRows({table.get()}, {0}));
  ASSERT_OK_AND_ASSIGN(VariableWalk walk, VariableWalk::Begin({table}));
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  {
    ASSERT_OK_AND_ASSIGN(const Tensor reader, table->Read());
    int64_t most = 0;
    for (;;) {
      ASSERT_OK_AND_ASSIGN(const auto rows, walk.Next());
      if (rows.begin == rows.end) break;
      ASSERT_OK(AddOneToRows({table.get()}, everywhere));
      most = std::max(most, DefaultAllocatorStats().bytes_in_use - before);
    }
    EXPECT_GE(most, kBytes - (64 << 10));
    EXPECT_LE(most, kBytes + (64 << 10));
    EXPECT_EQ(table->CountsForTesting().bytes_copied, kBytes);
  }
  ASSERT_OK(table->Read().status());
  EXPECT_LE(DefaultAllocatorStats().bytes_in_use - before, 64 << 10);
}

TEST(VariableWalkTest, WalkOfChangesPassesOverTheStripesThatChanged) {
  const auto table = Variable(RowNumbers(1000, 64));  // stripes of 64 rows
  ASSERT_OK(AddOneToRows({table.get()}, {5}));
  const Walked all = WalkAll({table});
  EXPECT_EQ(all.rows.size(), 1000u);
  EXPECT_EQ(table->StripesChangedForTesting(all.epoch), 0);
  EXPECT_TRUE(WalkAll({table}, {.changed_since = all.epoch}).rows.empty());

  ASSERT_OK(AddOneToRows({table.get()}, {70, 64, 999}));
  EXPECT_EQ(table->StripesChangedForTesting(all.epoch), 2);
  const Walked changes = WalkAll({table}, {.changed_since = all.epoch});
  ASSERT_EQ(changes.rows.size(), 64u + 1000 % 64);
  EXPECT_EQ(changes.rows.front(), 64);
  EXPECT_EQ(changes.rows[63], 127);
  EXPECT_EQ(changes.rows[64], 960);
  EXPECT_EQ(changes.bytes[0].size(), changes.rows.size() * 64 * sizeof(float));
  // Each observer has its own point in time.
  EXPECT_EQ(table->StripesChangedForTesting(changes.epoch), 0);
  EXPECT_EQ(table->StripesChangedForTesting(all.epoch), 2);

  ASSERT_OK(table->Assign(RowNumbers(1000, 64), true));
  EXPECT_EQ(WalkAll({table}, {.changed_since = changes.epoch}).rows.size(), 1000u);
}

// A record's slot is its weight's first element; both change together.
TEST(VariableWalkTest, RecordsAreWholeBesideUpdates) {
  constexpr int64_t kRows = 300;
  const auto table = Variable(RowNumbers(kRows, 32));
  const auto slot = Variable(RowNumbers(kRows, 1));
  std::atomic<bool> over{false};  // release by the writer at its end, acquire by the reader
  std::thread updates([&] {
    std::vector<int64_t> all;
    for (int64_t row = 0; row < kRows; ++row) all.push_back(row * 7 % kRows);
    for (int round = 0; round < 200; ++round) {
      EXPECT_OK(AddOneToRows({slot.get(), table.get()}, all));
    }
    over.store(true, std::memory_order_release);
  });
  uint64_t epoch = 0;
  std::map<int64_t, float> latest;  // by changes alone
  bool last = false;
  while (!last) {
    last = over.load(std::memory_order_acquire);
    const Walked walked = WalkAll({table, slot}, {.piece_bytes = 5000, .changed_since = epoch});
    epoch = walked.epoch;
    for (size_t i = 0; i < walked.rows.size(); ++i) {
      float weight, slot_value;
      std::memcpy(&weight, walked.bytes[0].data() + i * 32 * sizeof(float), sizeof(float));
      std::memcpy(&slot_value, walked.bytes[1].data() + i * sizeof(float), sizeof(float));
      ASSERT_EQ(weight, slot_value);
      latest[walked.rows[i]] = weight;
    }
  }
  updates.join();
  for (int64_t row = 0; row < kRows; ++row) EXPECT_EQ(latest[row], static_cast<float>(row) + 200);
}

// Rows that are found by key: an index in front, records of weight, slot and metadata behind.
TEST(VariableWalkTest, AnIndexInFrontMakesATableOfRecordsByKey) {
  const auto weight = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({8, 4})));
  const auto slot = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({8, 1})));
  const auto last_seen = Variable(*Tensor::Zeros(DT_INT64, ShapeOf({8})));
  std::map<std::string, int64_t> index;
  const auto rows_of = [&](const std::vector<std::string>& keys) {
    std::vector<int64_t> rows;
    for (const std::string& key : keys) {
      rows.push_back(index.emplace(key, static_cast<int64_t>(index.size())).first->second);
    }
    return rows;
  };
  VariableStorage* const record[] = {weight.get(), slot.get(), last_seen.get()};
  const auto train = [&](const std::vector<std::string>& keys, int64_t step) {
    return VariableStorage::UpdateRows<int64_t>(
        record, rows_of(keys), {}, [](absl::Span<const Shape>) { return absl::OkStatus(); },
        [&](int64_t, absl::Span<char* const> rows) {
          reinterpret_cast<float*>(rows[0])[3] -= 1;
          *reinterpret_cast<float*>(rows[1]) += 2;
          *reinterpret_cast<int64_t*>(rows[2]) = step;
        });
  };
  ASSERT_OK(train({"cat", "dog"}, 1));
  ASSERT_OK(train({"dog", "emu"}, 2));
  const Walked walked = WalkAll({weight, slot, last_seen});
  const auto* seen = reinterpret_cast<const int64_t*>(walked.bytes[2].data());
  EXPECT_EQ(seen[index["cat"]], 1);
  EXPECT_EQ(seen[index["dog"]], 2);
  EXPECT_EQ(seen[index["emu"]], 2);
  EXPECT_EQ(reinterpret_cast<const float*>(walked.bytes[1].data())[index["dog"]], 4);
  EXPECT_EQ(reinterpret_cast<const float*>(walked.bytes[0].data())[index["dog"] * 4 + 3], -2);
}

TEST(VariableWalkTest, AnotherShapeEndsTheWalk) {
  const auto table = Variable(RowNumbers(1000, 64));
  ASSERT_OK_AND_ASSIGN(auto walk, VariableWalk::Begin({table}, {.piece_bytes = 1000}));
  ASSERT_OK(walk.Next());
  ASSERT_OK(table->Assign(RowNumbers(1000, 2), false));
  EXPECT_STATUS(walk.Next(), absl::StatusCode::kAborted,
                "Variable 'v' must keep its shape [1000,64] while its rows are walked, got "
                "[1000,2]");
}

TEST(VariableWalkTest, WhatCannotBeWalkedIsNamed) {
  EXPECT_STATUS(VariableWalk::Begin({}), absl::StatusCode::kInvalidArgument, "got none");
  const auto three = Variable(RowNumbers(3, 1));
  EXPECT_STATUS(VariableWalk::Begin({three, Variable(RowNumbers(2, 1))}),
                absl::StatusCode::kInvalidArgument,
                "must have the same number of rows, got shapes [3,1] and [2,1]");
  EXPECT_STATUS(VariableWalk::Begin({Variable(TensorOf<std::string>({1}, {"a"}))}),
                absl::StatusCode::kInvalidArgument, "must be numeric and have rows");
  EXPECT_STATUS(VariableWalk::Begin(
                    {std::make_shared<VariableStorage>("w", DT_FLOAT, PartialShape::Unknown())}),
                absl::StatusCode::kFailedPrecondition, "uninitialized value w");
  ASSERT_OK_AND_ASSIGN(auto twice, VariableWalk::Begin({three, three}));
  EXPECT_STATUS(twice.Next(), absl::StatusCode::kInvalidArgument, "got 'v' twice");
  EXPECT_TRUE(WalkAll({Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({0, 4})))}).rows.empty());
}

}  // namespace
}  // namespace millrace

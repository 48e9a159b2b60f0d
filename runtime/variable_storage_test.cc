// SPDX-License-Identifier: Apache-2.0
#include "runtime/variable_storage.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/fail_point.h"
#include "core/shape.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: variables: a value that was read never changes; no row is torn; no update is lost, also
//   during reads whose reader goes away (fail points stop at these moments)
// covers: variables: a read of a variable shares memory, also during row updates

namespace millrace {
namespace {

constexpr auto kNoCheck = [](absl::Span<const Tensor>) { return absl::OkStatus(); };

// fresh = old + 1 for each element of each variable.
Status AddOne(absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
  for (size_t v = 0; v < old.size(); ++v) {
    const absl::Span<const float> in = old[v].flat<float>();
    const absl::Span<float> out = fresh[v].mutable_raw<float>();
    for (size_t i = 0; i < in.size(); ++i) out[i] = in[i] + 1;
  }
  return absl::OkStatus();
}

Status AddOneTo(VariableStorage* v) { return VariableStorage::UpdateDense({v}, kNoCheck, AddOne); }

std::shared_ptr<VariableStorage> Variable(const Tensor& value) {
  auto v = std::make_shared<VariableStorage>("v", value.dtype(), PartialShape(value.shape()));
  // A copy: the variable is the only holder of its buffer.
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

// Adds one to every element of the rows, of several at once if that is possible.
Status AddOneToRows(std::vector<VariableStorage*> variables, std::vector<int64_t> indices,
                    bool exclusive = false, bool several = false) {
  size_t columns = 0;
  RowUpdateOptions options = {.exclusive = exclusive};
  if (several) {
    options.update_several = [&](int64_t, int64_t count, absl::Span<char* const> rows) {
      EXPECT_EQ(rows.size(), static_cast<size_t>(count) * variables.size());
      for (char* row : rows) {
        float* values = reinterpret_cast<float*>(row);
        for (size_t i = 0; i < columns; ++i) values[i] += 1;
      }
    };
  }
  return VariableStorage::UpdateRows<int64_t>(
      variables, indices, options,
      [&](absl::Span<const Shape> shapes) {
        columns = static_cast<size_t>(shapes[0].dim(1));
        return absl::OkStatus();
      },
      [&](int64_t, absl::Span<char* const> rows) {
        for (char* row : rows) {
          float* values = reinterpret_cast<float*>(row);
          for (size_t i = 0; i < columns; ++i) values[i] += 1;
        }
      });
}

template <typename Index>
Status Gather(const VariableStorage& v, const std::vector<Index>& indices, float* out) {
  MR_ASSIGN_OR_RETURN(const Shape table, v.shape());
  return v.GatherRows<Index>(indices, table, reinterpret_cast<char*>(out));
}

// --- Values ------------------------------------------------------------------------------------

TEST(VariableStorageTest, IsUninitializedUntilAssignedAndAfterClear) {
  VariableStorage v("w", DT_FLOAT, {2});
  EXPECT_FALSE(v.IsInitialized());
  EXPECT_STATUS(v.Read(), absl::StatusCode::kFailedPrecondition,
                "Attempting to use uninitialized value w");
  EXPECT_STATUS(AddOneTo(&v), absl::StatusCode::kFailedPrecondition, "uninitialized value w");
  ASSERT_OK(v.Assign(TensorOf<float>({2}, {1, 2}), true));
  EXPECT_TRUE(v.IsInitialized());
  ExpectTensorEqual(*v.Read(), TensorOf<float>({2}, {1, 2}));
  v.Clear();
  EXPECT_FALSE(v.IsInitialized());
  EXPECT_STATUS(v.shape(), absl::StatusCode::kFailedPrecondition, "uninitialized value w");
}

TEST(VariableStorageTest, AssignChecksTypeAndShape) {
  VariableStorage v("w", DT_FLOAT, {-1, 2});
  EXPECT_STATUS(v.Assign(TensorOf<int32_t>({1, 2}, {1, 2}), true),
                absl::StatusCode::kInvalidArgument,
                "Variable 'w' must be assigned a float tensor, got int32");
  EXPECT_STATUS(v.Assign(TensorOf<float>({2}, {1, 2}), true), absl::StatusCode::kInvalidArgument,
                "Variable 'w' must be assigned a value of shape [?,2], got shape [2]");
  EXPECT_FALSE(v.IsInitialized());
  EXPECT_OK(v.Assign(TensorOf<float>({2}, {1, 2}), false));
  EXPECT_OK(v.Assign(TensorOf<float>({1, 2}, {1, 2}), true));
}

TEST(VariableStorageTest, StringsAreAssignedAndRead) {
  VariableStorage v("s", DT_STRING, {1});
  ASSERT_OK(v.Assign(TensorOf<std::string>({1}, {"a"}), true));
  const Tensor before = *v.Read();
  ASSERT_OK(v.Assign(TensorOf<std::string>({1}, {"b"}), true));
  ExpectTensorEqual(before, TensorOf<std::string>({1}, {"a"}));
  ExpectTensorEqual(*v.Read(), TensorOf<std::string>({1}, {"b"}));
}

TEST(VariableStorageTest, AssignAdoptsABufferThatNobodyElseHolds) {
  Tensor value = TensorOf<float>({2}, {1, 2});
  const void* const memory = value.raw_data();
  VariableStorage v("w", DT_FLOAT, {2});
  ASSERT_OK(v.Assign(std::move(value), true));
  EXPECT_EQ(v.Read()->raw_data(), memory);
}

TEST(VariableStorageTest, ReadOnlyMemoryIsCopiedAndLetGo) {
  alignas(64) const float memory[4] = {1, 2, 3, 4};
  bool is_released = false;
  VariableStorage v("v", DT_FLOAT, PartialShape(Shape{2, 2}));
  {
    ASSERT_OK_AND_ASSIGN(
        Tensor value,
        Tensor::FromBuffer(
            DT_FLOAT, Shape{2, 2},
            Buffer::ReadOnly(memory, sizeof(memory), [&is_released] { is_released = true; }), 0));
    ASSERT_OK(v.Assign(std::move(value), true));
  }
  EXPECT_TRUE(is_released);
  ASSERT_OK(AddOneTo(&v));
  ASSERT_OK(AddOneToRows({&v}, {1}));
  ASSERT_OK_AND_ASSIGN(const Tensor value, v.Read());
  ExpectTensorEqual(value, Tensor::Of<float>({{2, 3}, {5, 6}}));
  EXPECT_EQ(memory[0], 1);
}

TEST(VariableStorageTest, AssignedTensorThatOthersHoldDoesNotChangeWithTheVariable) {
  const Tensor held = TensorOf<float>({2}, {1, 2});
  VariableStorage v("w", DT_FLOAT, {2});
  ASSERT_OK(v.Assign(held, true));
  ASSERT_OK(AddOneTo(&v));
  ExpectTensorEqual(held, TensorOf<float>({2}, {1, 2}));
  ExpectTensorEqual(*v.Read(), TensorOf<float>({2}, {2, 3}));
}

TEST(VariableStorageTest, VersionChangesWithEveryChange) {
  const auto v = Variable(RowNumbers(2, 2));
  uint64_t last = v->version();
  const auto changed = [&] { return std::exchange(last, v->version()) != v->version(); };
  ASSERT_OK(AddOneTo(v.get()));
  EXPECT_TRUE(changed());
  ASSERT_OK(AddOneToRows({v.get()}, {1}));
  EXPECT_TRUE(changed());
  ASSERT_OK(v->Assign(RowNumbers(2, 2), true));
  EXPECT_TRUE(changed());
  ASSERT_OK(v->Read());
  EXPECT_FALSE(changed());
  v->Clear();
  EXPECT_TRUE(changed());
}

// --- Snapshots and memory ----------------------------------------------------------------------

TEST(VariableStorageTest, SnapshotNeverChanges) {
  for (const bool by_rows : {false, true}) {
    const auto v = Variable(RowNumbers(2, 2));
    if (by_rows) {
      ASSERT_OK(AddOneToRows({v.get()}, {}));
    }
    const Tensor snapshot = *v->Read();
    ASSERT_OK(AddOneTo(v.get()));
    ASSERT_OK(AddOneToRows({v.get()}, {0, 1}));
    ASSERT_OK(AddOneTo(v.get()));
    ExpectTensorEqual(snapshot, RowNumbers(2, 2));
    ExpectTensorEqual(*v->Read(), TensorOf<float>({2, 2}, {3, 3, 4, 4}));
  }
}

TEST(VariableStorageTest, UpdateIsInPlaceWhenNobodyReads) {
  const auto v = Variable(RowNumbers(2, 2));
  const void* const memory = v->Read()->raw_data();
  ASSERT_OK(AddOneTo(v.get()));
  EXPECT_EQ(v->Read()->raw_data(), memory);
}

TEST(VariableStorageTest, TwoBuffersAreRecycledWhileEachStepReadsOne) {
  const auto v = Variable(RowNumbers(2, 2));
  std::vector<const void*> memory;
  for (int step = 0; step < 4; ++step) {
    const Tensor read = *v->Read();  // held during the update, as by a step that trains
    memory.push_back(read.raw_data());
    ASSERT_OK(AddOneTo(v.get()));
  }
  EXPECT_NE(memory[0], memory[1]);
  EXPECT_EQ(memory[0], memory[2]);
  EXPECT_EQ(memory[1], memory[3]);
}

TEST(VariableStorageTest, ReadAfterARowUpdateSharesTheBuffer) {
  const auto v = Variable(RowNumbers(1000, 64));
  const void* const memory = v->Read()->raw_data();
  ASSERT_OK(AddOneToRows({v.get()}, {2, 999}));
  for (int i = 0; i < 3; ++i) {
    const Tensor a = *v->Read();
    const Tensor b = *v->Read();
    EXPECT_TRUE(a.SharesBufferWith(b));
    EXPECT_EQ(a.raw_data(), memory);
  }
  // Nobody holds what was read: in place again.
  ASSERT_OK(AddOneToRows({v.get()}, {2}));
  EXPECT_EQ(v->Read()->raw_data(), memory);
  EXPECT_EQ(v->CountsForTesting().bytes_copied, 0);
  EXPECT_EQ(v->Read()->flat<float>()[2 * 64], 4);
  EXPECT_EQ(v->Read()->flat<float>()[999 * 64], 1000);
}

// 4096 rows of 256 bytes: 64 stripes of 64 rows.
constexpr int64_t kStripe = 16 * 1024;

TEST(VariableStorageTest, RowUpdateBesideAReaderCopiesTheStripesThatItTouches) {
  const auto v = Variable(RowNumbers(4096, 64));
  const Tensor reader = *v->Read();
  ASSERT_OK(AddOneToRows({v.get()}, {0, 1, 63, 64, 4095, 1}));
  EXPECT_EQ(v->CountsForTesting().stripes_apart, 3);
  EXPECT_EQ(v->CountsForTesting().bytes_copied, 3 * kStripe);
  ASSERT_OK(AddOneToRows({v.get()}, {2, 64, 4094}));  // apart already
  EXPECT_EQ(v->CountsForTesting().bytes_copied, 3 * kStripe);
  ExpectTensorEqual(reader, RowNumbers(4096, 64));
  float out[4 * 64];
  ASSERT_OK(Gather<int32_t>(*v, {1, 64, 4095, 65}, out));
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[64], 66);
  EXPECT_EQ(out[128], 4096);
  EXPECT_EQ(out[192], 65);
}

TEST(VariableStorageTest, ReadBesideAnOlderReaderCopiesTheWholeOnce) {
  const auto v = Variable(RowNumbers(4096, 64));
  const Tensor old = *v->Read();
  ASSERT_OK(AddOneToRows({v.get()}, {7}));
  const Tensor between = *v->Read();
  EXPECT_EQ(v->CountsForTesting().bytes_copied, kStripe + 64 * kStripe);
  EXPECT_TRUE(between.SharesBufferWith(*v->Read()));
  EXPECT_EQ(v->CountsForTesting().bytes_copied, kStripe + 64 * kStripe);
  ASSERT_OK(AddOneToRows({v.get()}, {7}));
  ExpectTensorEqual(old, RowNumbers(4096, 64));
  EXPECT_EQ(between.flat<float>()[7 * 64], 8);
  EXPECT_EQ(between.flat<float>()[8 * 64], 8);
  EXPECT_EQ(v->Read()->flat<float>()[7 * 64], 9);
}

TEST(VariableStorageTest, StripesReturnWhenTheirReadersHaveGone) {
  const auto v = Variable(RowNumbers(4096, 64));
  const void* const memory = v->Read()->raw_data();
  std::vector<int64_t> one_per_stripe;
  for (int64_t row = 0; row < 4096; row += 64) one_per_stripe.push_back(row);
  {
    const Tensor reader = *v->Read();
    ASSERT_OK(AddOneToRows({v.get()}, one_per_stripe));
    EXPECT_EQ(v->CountsForTesting().stripes_apart, 64);
  }
  // Some with every row update ...
  ASSERT_OK(AddOneToRows({v.get()}, {1}));
  const int64_t left = v->CountsForTesting().stripes_apart;
  EXPECT_LT(left, 64);
  EXPECT_GT(left, 0);
  // ... and the rest with the next Read.
  const Tensor now = *v->Read();
  EXPECT_EQ(now.raw_data(), memory);
  EXPECT_EQ(v->CountsForTesting().stripes_apart, 0);
  EXPECT_EQ(v->CountsForTesting().bytes_copied, 2 * 64 * kStripe);
  for (int64_t row = 0; row < 4096; ++row) {
    const float added = row % 64 == 0 || row == 1 ? 1 : 0;
    ASSERT_EQ(now.flat<float>()[static_cast<size_t>(row) * 64], static_cast<float>(row) + added);
  }
}

TEST(VariableStorageTest, ATableWhoseReaderStaysIsBroughtTogetherUnlessItIsLarge) {
  // 1 MiB and 8 MiB.
  for (const int64_t width : {64, 512}) {
    const auto v = Variable(RowNumbers(4096, width));
    const Tensor reader = *v->Read();
    for (int i = 0; i < 300; ++i) ASSERT_OK(AddOneToRows({v.get()}, {7, 4095}));
    EXPECT_EQ(v->CountsForTesting().stripes_apart, width == 64 ? 0 : 2);
    EXPECT_EQ(v->CountsForTesting().bytes_copied, (width == 64 ? 2 + 64 : 2) * kStripe);
    ExpectTensorEqual(reader, RowNumbers(4096, width));
    std::vector<float> out(3 * static_cast<size_t>(width));
    ASSERT_OK(Gather<int32_t>(*v, {7, 8, 4095}, out.data()));
    EXPECT_EQ(out[0], 307);
    EXPECT_EQ(out[static_cast<size_t>(width)], 8);
    EXPECT_EQ(out[2 * static_cast<size_t>(width)], 4395);
    ASSERT_OK(AddOneTo(v.get()));
    EXPECT_EQ(v->Read()->flat<float>()[7 * static_cast<size_t>(width)], 308);
  }
}

TEST(VariableStorageTest, DenseUpdateTakesUpStripesThatAreApart) {
  for (const bool reader_stays : {false, true}) {
    const auto v = Variable(RowNumbers(4096, 64));
    Tensor reader = *v->Read();
    ASSERT_OK(AddOneToRows({v.get()}, {0, 4095}));
    if (!reader_stays) reader = Tensor();
    ASSERT_OK(AddOneTo(v.get()));
    EXPECT_EQ(v->CountsForTesting().stripes_apart, 0);
    ASSERT_OK(AddOneToRows({v.get()}, {0}));
    const Tensor now = *v->Read();
    EXPECT_EQ(now.flat<float>()[0], 3);
    EXPECT_EQ(now.flat<float>()[64], 2);
    EXPECT_EQ(now.flat<float>()[4095 * 64], 4097);
    if (reader_stays) ExpectTensorEqual(reader, RowNumbers(4096, 64));
  }
}

TEST(VariableStorageTest, DenseUpdateAfterRowUpdatesIsInPlaceWhenNobodyReads) {
  const auto v = Variable(RowNumbers(4096, 64));
  ASSERT_OK(AddOneToRows({v.get()}, {3}));
  const void* const memory = v->Read()->raw_data();
  ASSERT_OK(AddOneTo(v.get()));
  EXPECT_EQ(v->Read()->raw_data(), memory);
  EXPECT_EQ(v->CountsForTesting().bytes_copied, 0);
}

TEST(VariableStorageTest, AssignedTensorThatOthersHoldKeepsItsRows) {
  const Tensor held = RowNumbers(4096, 64);
  const auto v = Variable(held);
  ASSERT_OK(AddOneToRows({v.get()}, {0}));
  ASSERT_OK(v->Assign(held, true));
  ASSERT_OK(AddOneToRows({v.get()}, {0}));
  ExpectTensorEqual(held, RowNumbers(4096, 64));
  EXPECT_EQ(v->CountsForTesting().bytes_copied, kStripe);
  EXPECT_EQ(v->Read()->flat<float>()[0], 1);
}

TEST(VariableStorageTest, NoMemoryForAReadersStripeChangesNoRow) {
  const auto v = Variable(RowNumbers(4096, 64));
  const Tensor reader = *v->Read();
  ASSERT_OK(AddOneToRows({v.get()}, {}));
  SetDefaultAllocatorLimit(1);
  const Status status = AddOneToRows({v.get()}, {0, 100});
  SetDefaultAllocatorLimit(0);
  EXPECT_STATUS(status, absl::StatusCode::kResourceExhausted,
                "Variable 'v' must keep 16384 bytes of rows for a reader, got no memory for them");
  float out[64];
  ASSERT_OK(Gather<int32_t>(*v, {0}, out));
  EXPECT_EQ(out[0], 0);
  EXPECT_OK(AddOneToRows({v.get()}, {0, 100}));
}

// --- Dense updates -----------------------------------------------------------------------------

TEST(VariableStorageTest, VariablesOfOneUpdateChangeTogether) {
  const auto a = Variable(RowNumbers(2, 2));
  const auto b = Variable(TensorOf<float>({3}, {5, 6, 7}));
  VariableStorage* const both[] = {b.get(), a.get()};
  ASSERT_OK(VariableStorage::UpdateDense(
      both,
      [](absl::Span<const Tensor> old) {
        EXPECT_EQ(old[0].shape().ToString(), "[3]");
        EXPECT_EQ(old[1].shape().ToString(), "[2,2]");
        return absl::OkStatus();
      },
      AddOne));
  ExpectTensorEqual(*a->Read(), TensorOf<float>({2, 2}, {1, 1, 2, 2}));
  ExpectTensorEqual(*b->Read(), TensorOf<float>({3}, {6, 7, 8}));
}

TEST(VariableStorageTest, RefusedCheckChangesNothing) {
  const auto v = Variable(RowNumbers(2, 2));
  const Status status = VariableStorage::UpdateDense(
      {v.get()},
      [](absl::Span<const Tensor>) { return absl::InvalidArgumentError("shapes differ"); },
      [](absl::Span<const Tensor>, absl::Span<Tensor>) {
        ADD_FAILURE() << "called after a refused check";
        return absl::OkStatus();
      });
  EXPECT_STATUS(status, absl::StatusCode::kInvalidArgument, "shapes differ");
  ExpectTensorEqual(*v->Read(), RowNumbers(2, 2));
}

TEST(VariableStorageTest, ErrorInUpdateLeavesTheOldValueOfVariablesWithAReader) {
  const auto v = Variable(RowNumbers(2, 2));
  const Tensor reader = *v->Read();
  const Status status = VariableStorage::UpdateDense(
      {v.get()}, kNoCheck, [](absl::Span<const Tensor>, absl::Span<Tensor> fresh) {
        fresh[0].mutable_raw<float>()[0] = 100;
        return absl::InternalError("half way");
      });
  EXPECT_STATUS(status, absl::StatusCode::kInternal, "half way");
  ExpectTensorEqual(*v->Read(), RowNumbers(2, 2));
}

TEST(VariableStorageTest, SameVariableTwiceIsRefused) {
  const auto v = Variable(RowNumbers(2, 2));
  VariableStorage* const twice[] = {v.get(), v.get()};
  EXPECT_STATUS(VariableStorage::UpdateDense(twice, kNoCheck, AddOne),
                absl::StatusCode::kInvalidArgument,
                "An update must name each variable once, got 'v' twice");
  EXPECT_STATUS(AddOneToRows({v.get(), v.get()}, {0}), absl::StatusCode::kInvalidArgument,
                "got 'v' twice");
}

TEST(VariableStorageTest, ConcurrentDenseUpdatesLoseNothing) {
  constexpr int kThreads = 4;
  constexpr int kUpdates = 250;
  const auto a = Variable(RowNumbers(4, 8));
  const auto b = Variable(RowNumbers(4, 8));
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kUpdates; ++i) {
        // The order in the call differs, the order of locks must not.
        VariableStorage* const both[] = {t % 2 == 0 ? a.get() : b.get(),
                                         t % 2 == 0 ? b.get() : a.get()};
        EXPECT_OK(VariableStorage::UpdateDense(both, kNoCheck, AddOne));
        const Tensor read = *a->Read();
        const float first = read.flat<float>()[0];
        // One update at a time: all elements moved equally often.
        EXPECT_EQ(read.flat<float>()[31], first + 3);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(a->Read()->flat<float>()[0], kThreads * kUpdates);
  EXPECT_EQ(b->Read()->flat<float>()[0], kThreads * kUpdates);
}

// --- Rows --------------------------------------------------------------------------------------

TEST(VariableStorageTest, GatherCopiesRowsInTheOrderOfTheIndices) {
  const auto v = Variable(RowNumbers(5, 2));
  for (const bool by_rows : {false, true}) {
    if (by_rows) {
      ASSERT_OK(AddOneToRows({v.get()}, {}));
    }
    float out[8];
    ASSERT_OK(Gather<int32_t>(*v, {4, 0, 4, 2}, out));
    const float expected[] = {4, 4, 0, 0, 4, 4, 2, 2};
    EXPECT_EQ(std::memcmp(out, expected, sizeof(out)), 0);
    EXPECT_OK(Gather<int64_t>(*v, {}, nullptr));
  }
}

TEST(VariableStorageTest, RepeatedIndicesOfAnUpdateAllCount) {
  const auto v = Variable(RowNumbers(3, 2));
  for (const bool exclusive : {false, true}) {
    ASSERT_OK(AddOneToRows({v.get()}, {1, 1, 2, 1}, exclusive));
  }
  ExpectTensorEqual(*v->Read(), TensorOf<float>({3, 2}, {0, 0, 7, 7, 4, 4}));
}

TEST(VariableStorageTest, RowUpdateGetsTheRowOfEachVariable) {
  const auto table = Variable(RowNumbers(3, 2));
  const auto slot = Variable(RowNumbers(3, 1));
  VariableStorage* const both[] = {slot.get(), table.get()};
  const int32_t indices[] = {2, 0};
  ASSERT_OK(VariableStorage::UpdateRows<int32_t>(
      both, indices, {},
      [](absl::Span<const Shape> shapes) {
        EXPECT_EQ(shapes[0].ToString(), "[3,1]");
        EXPECT_EQ(shapes[1].ToString(), "[3,2]");
        return absl::OkStatus();
      },
      [](int64_t i, absl::Span<char* const> rows) {
        float* const s = reinterpret_cast<float*>(rows[0]);
        float* const t = reinterpret_cast<float*>(rows[1]);
        EXPECT_EQ(s[0], i == 0 ? 2 : 0);
        s[0] += 10;
        t[1] = static_cast<float>(100 + i);
      }));
  ExpectTensorEqual(*slot->Read(), TensorOf<float>({3, 1}, {10, 1, 12}));
  ExpectTensorEqual(*table->Read(), TensorOf<float>({3, 2}, {0, 101, 1, 1, 2, 100}));
}

// Parts of a loop in the order that a machine with many threads might choose: backwards, each on a
// thread of its own.
RowUpdateOptions OnThreads(int parts) {
  RowUpdateOptions options;
  options.parallel_for = [parts](int64_t n, double,
                                 absl::FunctionRef<void(int64_t, int64_t)> body) {
    std::vector<std::thread> threads;
    for (int64_t part = parts; part-- > 0;) {
      threads.emplace_back([=] { body(n * part / parts, n * (part + 1) / parts); });
    }
    for (std::thread& t : threads) t.join();
  };
  return options;
}

std::vector<int64_t> ManyRows(int64_t rows, size_t count) {
  std::vector<int64_t> indices;
  for (size_t i = 0; i < count; ++i) {
    indices.push_back(static_cast<int64_t>(i * 2654435761 % static_cast<uint64_t>(rows)));
  }
  return indices;
}

TEST(VariableStorageTest, UpdatesOfOneRowComeInTheOrderOfTheIndicesWhateverTheThreads) {
  const std::vector<int64_t> indices = ManyRows(700, 5000);
  std::vector<Tensor> results;
  for (const int parts : {0, 1, 3}) {
    for (const bool exclusive : {false, true}) {
      const auto v = Variable(RowNumbers(700, 2));
      RowUpdateOptions options = parts == 0 ? RowUpdateOptions() : OnThreads(parts);
      options.exclusive = exclusive;
      VariableStorage* const one[] = {v.get()};
      ASSERT_OK(VariableStorage::UpdateRows<int64_t>(
          one, indices, options, [](absl::Span<const Shape>) { return absl::OkStatus(); },
          [](int64_t i, absl::Span<char* const> rows) {
            float* const row = reinterpret_cast<float*>(rows[0]);
            row[0] = row[0] / 2 + static_cast<float>(i);  // another order is another value
          }));
      results.push_back(*v->Read());
    }
  }
  for (const Tensor& result : results) EXPECT_TRUE(result == results[0]);
}

// Rows that come again, and rows of one lock, are in different calls.
TEST(VariableStorageTest, SeveralRowsAtOnceAreUpdatedAsOneByOne) {
  constexpr int64_t kRows = 3000;
  std::vector<int64_t> indices = ManyRows(kRows, 900);
  for (const int64_t row : {7, 7, 7 + 1024, 7, 8, 7 + 2048}) indices.push_back(row);
  // Another order is another value.
  const auto update = [](int64_t i, float* a, float* b) {
    *a = *a / 2 + static_cast<float>(i);
    *b = *b / 2 + *a;
  };
  std::vector<Tensor> results;
  for (const bool several : {false, true}) {
    const auto a = Variable(RowNumbers(kRows, 1)), b = Variable(RowNumbers(kRows, 2));
    VariableStorage* const both[] = {a.get(), b.get()};
    RowUpdateOptions options;
    int64_t calls = 0, next = 0;
    if (several) {
      options.update_several = [&](int64_t first, int64_t count, absl::Span<char* const> rows) {
        EXPECT_EQ(first, next);
        next = first + count;
        ++calls;
        std::set<char*> different(rows.begin(), rows.end());
        EXPECT_EQ(different.size(), rows.size());
        for (int64_t i = 0; i < count; ++i) {
          const auto at = static_cast<size_t>(2 * i);
          update(first + i, reinterpret_cast<float*>(rows[at]),
                 reinterpret_cast<float*>(rows[at + 1]));
        }
      };
    }
    ASSERT_OK(VariableStorage::UpdateRows<int64_t>(
        both, indices, options, [](absl::Span<const Shape>) { return absl::OkStatus(); },
        [&](int64_t i, absl::Span<char* const> rows) {
          EXPECT_FALSE(several);
          update(i, reinterpret_cast<float*>(rows[0]), reinterpret_cast<float*>(rows[1]));
        }));
    if (several) {
      EXPECT_EQ(next, static_cast<int64_t>(indices.size()));
      EXPECT_LT(calls, next / 4);
      for (VariableStorage* v : both) EXPECT_EQ(v->CountsForTesting().row_locks, 0);
    }
    results.push_back(*a->Read());
    results.push_back(*b->Read());
  }
  EXPECT_TRUE(results[0] == results[2]);
  EXPECT_TRUE(results[1] == results[3]);
}

// Many rows would keep others out for long, threads share them, and a reader has its own value.
TEST(VariableStorageTest, SeveralRowsAtOnceAreFewOfOneThread) {
  const auto v = Variable(RowNumbers(5000, 1));
  EXPECT_OK(AddOneToRows({v.get()}, ManyRows(5000, 5000), false, /*several=*/true));
  EXPECT_GT(v->CountsForTesting().row_locks, 0);
  const Tensor before = *v->Read();
  const float value = before.flat<float>()[3];
  EXPECT_OK(AddOneToRows({v.get()}, {3}, false, /*several=*/true));
  EXPECT_EQ(before.flat<float>()[3], value);
  EXPECT_EQ(v->Read()->flat<float>()[3], value + 1);
}

// Who finds one of the variables taken lets go of those that it has.
TEST(VariableStorageTest, SeveralRowsAtOnceGiveWayToWhoHasOneOfTheVariables) {
  constexpr int kRounds = 3000;
  const auto a = Variable(RowNumbers(8, 1)), b = Variable(RowNumbers(8, 1));
  std::vector<std::thread> threads;
  for (const bool reversed : {false, true}) {
    threads.emplace_back([&, reversed] {
      std::vector<VariableStorage*> both = {a.get(), b.get()};
      if (reversed) std::swap(both[0], both[1]);
      for (int i = 0; i < kRounds; ++i) EXPECT_OK(AddOneToRows(both, {0, 7}, false, true));
    });
  }
  for (VariableStorage* one : {a.get(), b.get()}) {
    threads.emplace_back([one] {
      for (int i = 0; i < kRounds; ++i) EXPECT_OK(AddOneTo(one));
    });
  }
  for (std::thread& t : threads) t.join();
  for (VariableStorage* v : {a.get(), b.get()}) {
    EXPECT_EQ(v->Read()->flat<float>()[0], 3 * kRounds);
    EXPECT_EQ(v->Read()->flat<float>()[3], 3 + kRounds);
    EXPECT_EQ(v->Read()->flat<float>()[7], 7 + 3 * kRounds);
  }
}

TEST(VariableStorageTest, OneLockIsTakenPerRunOfRowsUnderIt) {
  // 6 x 1024 rows: six rows for each lock, each twice.
  const auto table = Variable(RowNumbers(6144, 4));
  const auto slot = Variable(RowNumbers(6144, 1));
  std::vector<int64_t> indices;
  for (int twice = 0; twice < 2; ++twice) {
    for (int64_t row = 0; row < 6144; ++row) indices.push_back((row * 5) % 6144);
  }
  VariableStorage* const both[] = {table.get(), slot.get()};
  const auto update = [&](const RowUpdateOptions& options) {
    return VariableStorage::UpdateRows<int64_t>(
        both, indices, options, [](absl::Span<const Shape>) { return absl::OkStatus(); },
        [](int64_t, absl::Span<char* const> rows) { reinterpret_cast<float*>(rows[1])[0] += 1; });
  };
  ASSERT_OK(update(OnThreads(2)));
  for (VariableStorage* v : both) EXPECT_EQ(v->CountsForTesting().row_locks, 1024);
  RowUpdateOptions exclusive = OnThreads(2);
  exclusive.exclusive = true;
  ASSERT_OK(update(exclusive));
  for (VariableStorage* v : both) EXPECT_EQ(v->CountsForTesting().row_locks, 1024);
  EXPECT_EQ(slot->Read()->flat<float>()[6143], 6143 + 4);
}

TEST(VariableStorageTest, BadIndexIsNamedAndNoRowChanges) {
  const auto v = Variable(RowNumbers(3, 2));
  const struct {
    std::vector<int64_t> indices;
    const char* text;
  } cases[] = {
      {{0, 3}, "indices[1] = 3 is not in [0, 3)"},
      {{0, 1, -1}, "indices[2] = -1 is not in [0, 3)"},
      {{std::numeric_limits<int64_t>::max()}, "indices[0] = 9223372036854775807 is not in [0, 3)"},
      {{std::numeric_limits<int64_t>::min()}, "indices[0] = -9223372036854775808 is not in [0, 3)"},
  };
  std::vector<float> out(6);
  for (const auto& c : cases) {
    EXPECT_STATUS(Gather<int64_t>(*v, c.indices, out.data()), absl::StatusCode::kInvalidArgument,
                  c.text);
    EXPECT_STATUS(AddOneToRows({v.get()}, c.indices), absl::StatusCode::kInvalidArgument, c.text);
    EXPECT_STATUS(AddOneToRows({v.get()}, c.indices, true), absl::StatusCode::kInvalidArgument,
                  c.text);
  }
  ExpectTensorEqual(*v->Read(), RowNumbers(3, 2));
  // A call that fails does not end sharing.
  EXPECT_TRUE(v->Read()->SharesBufferWith(*v->Read()));
}

// The caller asked for the shape, then somebody assigned longer (or fewer) rows: what was allocated
// for the old shape must not be written or read in the new one.
TEST(VariableStorageTest, AShapeThatChangedSinceItWasAskedForIsNotGathered) {
  for (const bool by_rows : {false, true}) {
    VariableStorage v("v", DT_FLOAT, {-1, -1});
    ASSERT_OK(v.Assign(RowNumbers(4, 2), true));
    if (by_rows) {
      ASSERT_OK(AddOneToRows({&v}, {}));
    }
    const Shape asked = *v.shape();
    ASSERT_OK(v.Assign(RowNumbers(4, 1000), true));
    std::vector<float> out(8, -1);
    EXPECT_STATUS(v.GatherRows<int64_t>({3, 3, 3, 3}, asked, reinterpret_cast<char*>(out.data())),
                  absl::StatusCode::kAborted,
                  "Variable 'v' must keep its shape [4,2] while rows are gathered, got [4,1000]");
    EXPECT_EQ(out, std::vector<float>(8, -1));
    ASSERT_OK(v.Assign(RowNumbers(4, 2), true));
    EXPECT_OK(v.GatherRows<int64_t>({3, 3, 3, 3}, asked, reinterpret_cast<char*>(out.data())));
    EXPECT_EQ(out, std::vector<float>(8, 3));
  }
}

TEST(VariableStorageTest, RowUpdatesCheckTheShapeThatTheyWriteTo) {
  VariableStorage v("v", DT_FLOAT, {-1, -1});
  ASSERT_OK(v.Assign(RowNumbers(4, 1000), true));
  const Shape asked = *v.shape();
  ASSERT_OK(v.Assign(RowNumbers(4, 2), true));
  for (const bool exclusive : {false, true}) {
    bool touched = false;
    VariableStorage* const variables[] = {&v};
    const int64_t indices[] = {3};
    EXPECT_STATUS(
        VariableStorage::UpdateRows<int64_t>(
            variables, indices, {.exclusive = exclusive},
            [&](absl::Span<const Shape> shapes) -> Status {
              if (shapes[0] == asked) return absl::OkStatus();
              return absl::InvalidArgumentError(absl::StrCat("rows of ", shapes[0].ToString()));
            },
            [&](int64_t, absl::Span<char* const>) { touched = true; }),
        absl::StatusCode::kInvalidArgument, "rows of [4,2]");
    EXPECT_FALSE(touched);
  }
  ExpectTensorEqual(*v.Read(), RowNumbers(4, 2));
}

TEST(VariableStorageTest, WhatHasNoRowsIsRefused) {
  float out[4];
  const auto scalar = Variable(TensorOf<float>({}, {1}));
  EXPECT_STATUS(Gather<int32_t>(*scalar, {0}, out), absl::StatusCode::kInvalidArgument,
                "must be at least a vector to be used by rows, got shape []");
  const auto strings = Variable(TensorOf<std::string>({1}, {"a"}));
  EXPECT_STATUS(Gather<int32_t>(*strings, {0}, out), absl::StatusCode::kInvalidArgument,
                "must be of a numeric type to be used by rows, got string");
  const auto three = Variable(RowNumbers(3, 1));
  const auto two = Variable(RowNumbers(2, 1));
  EXPECT_STATUS(AddOneToRows({three.get(), two.get()}, {0}), absl::StatusCode::kInvalidArgument,
                "must have the same number of rows, got shapes [3,1] and [2,1]");
  VariableStorage empty("e", DT_FLOAT, {2, 2});
  EXPECT_STATUS(empty.GatherRows<int32_t>({0}, ShapeOf({2, 2}), reinterpret_cast<char*>(out)),
                absl::StatusCode::kFailedPrecondition, "Attempting to use uninitialized value e");
}

TEST(VariableStorageTest, EmptyRowsAndEmptyTables) {
  const auto narrow = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({3, 0})));
  EXPECT_OK(Gather<int32_t>(*narrow, {2, 1}, nullptr));
  EXPECT_OK(AddOneToRows({narrow.get()}, {2, 1}));
  EXPECT_OK(AddOneTo(narrow.get()));
  EXPECT_EQ(narrow->Read()->shape().ToString(), "[3,0]");
  const auto none = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({0, 4})));
  EXPECT_OK(Gather<int32_t>(*none, {}, nullptr));
  EXPECT_STATUS(Gather<int32_t>(*none, {0}, nullptr), absl::StatusCode::kInvalidArgument,
                "indices[0] = 0 is not in [0, 0)");
}

// Rows are all-equal at any time; a torn row is not. Row updates begin while readers run, so the
// change from shared to copied reads happens under them.
// A Read that brings stripes together makes a target while it holds no lock: the reader that it
// makes it for may be gone when it goes on, and rows may have been written in place.
TEST(VariableStorageTest, RowUpdatesBesideAReadWhoseReaderHasGoneAreNotLost) {
  constexpr int64_t kRows = 4096, kRowSize = 64;  // 64 stripes
  VariableStorage v("v", DT_FLOAT, PartialShape());
  ASSERT_OK_AND_ASSIGN(const Shape shape, Shape::Make({kRows, kRowSize}));
  ASSERT_OK_AND_ASSIGN(Tensor zeros, Tensor::Zeros(DT_FLOAT, shape));
  ASSERT_OK(v.Assign(std::move(zeros), /*validate_shape=*/true));
  const auto add_one = [&v](int64_t row) {
    VariableStorage* const variables[] = {&v};
    EXPECT_OK(VariableStorage::UpdateRows<int64_t>(
        variables, {row}, {}, [](auto) { return absl::OkStatus(); },
        [](int64_t, absl::Span<char* const> rows) { *reinterpret_cast<float*>(rows[0]) += 1; }));
  };
  add_one(0);
  Tensor held;
  ASSERT_OK_AND_ASSIGN(held, v.Read());
  constexpr int64_t kStripeRows = 64;
  for (int64_t r = 0; r < kRows; r += kStripeRows) add_one(r);  // every stripe is apart
  std::vector<std::string> passed;
  SetFailPointHook([&](absl::string_view name) {
    if (!absl::StartsWith(name, "variable/")) return absl::OkStatus();
    passed.emplace_back(name);
    if (passed.size() == 1) {
      held = Tensor();
      add_one(4000);
    } else if (passed.size() < 8) {
      add_one(0);  // in a stripe that was moved
      add_one(100);
      add_one(4000);
    }
    return absl::OkStatus();
  });
  const StatusOr<Tensor> read = v.Read();
  SetFailPointHook(nullptr);
  ASSERT_OK(read.status());
  ASSERT_GE(passed.size(), 3u);
  EXPECT_EQ(passed[0], "variable/target_allocated");
  EXPECT_EQ(passed[1], "variable/stripes_moved");
  const float again = static_cast<float>(std::min<size_t>(passed.size(), 7) - 1);
  ASSERT_OK_AND_ASSIGN(const Tensor end, v.Read());
  for (int64_t r = 0; r < kRows; ++r) {
    float want = r % kStripeRows == 0 ? 1 : 0;
    want += r == 0 || r == 4000 ? 1 : 0;
    want += r == 0 || r == 100 || r == 4000 ? again : 0;
    ASSERT_EQ(end.flat<float>()[static_cast<size_t>(r) * kRowSize], want) << "row " << r;
  }
}

TEST(VariableStorageTest, ADenseUpdateThatThrowsCountsAsAChangeOfWhatIsInPlace) {
  VariableStorage v("v", DT_FLOAT, PartialShape());
  ASSERT_OK(v.Assign(Tensor::Vector<float>({1, 2}), /*validate_shape=*/true));
  const uint64_t before = v.version();
  VariableStorage* const variables[] = {&v};
  EXPECT_THROW(VariableStorage::UpdateDense(
                   variables, [](auto) { return absl::OkStatus(); },
                   [](auto, auto) -> Status { throw std::runtime_error("half way"); })
                   .IgnoreError(),
               std::runtime_error);
  EXPECT_NE(v.version(), before);
}

TEST(VariableStorageTest, RowsAreNeverTornAndNothingIsLost) {
  constexpr int64_t kRows = 64;
  constexpr int64_t kColumns = 48;
  constexpr int kRounds = 60;
  // One row after another, exclusively, and one of the writers several rows at once.
  for (const int way : {0, 1, 2}) {
    const auto table = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({kRows, kColumns})));
    const auto slot = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({kRows, kColumns})));
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < 3 * kRows; ++i) indices.push_back(i * 7 % kRows);
    std::atomic<int> writers{2};  // release by a writer that ends, acquire by readers
    const auto check_rows = [](const float* values, size_t count) {
      for (size_t i = 0; i < count; ++i) {
        const size_t first = i - i % kColumns;
        if (values[i] != values[first]) {
          ADD_FAILURE() << "torn row: " << values[first] << " and " << values[i];
          return;
        }
      }
    };
    std::vector<std::thread> threads;
    for (int t = 0; t < 2; ++t) {
      threads.emplace_back([&, t] {
        std::vector<VariableStorage*> both = {table.get(), slot.get()};
        if (t == 1) std::swap(both[0], both[1]);
        for (int round = 0; round < kRounds; ++round) {
          EXPECT_OK(AddOneToRows(both, indices, way == 1, way == 2 && t == 1));
        }
        writers.fetch_sub(1, std::memory_order_release);
      });
    }
    threads.emplace_back([&] {
      std::vector<float> out(indices.size() * kColumns);
      while (writers.load(std::memory_order_acquire) > 0) {
        EXPECT_OK(Gather<int64_t>(*table, indices, out.data()));
        check_rows(out.data(), out.size());
      }
    });
    threads.emplace_back([&] {
      while (writers.load(std::memory_order_acquire) > 0) {
        const Tensor snapshot = *table->Read();
        const Tensor copy = *snapshot.Clone();
        check_rows(snapshot.flat<float>().data(), snapshot.flat<float>().size());
        EXPECT_TRUE(snapshot == copy);
      }
    });
    for (std::thread& t : threads) t.join();
    for (VariableStorage* v : {table.get(), slot.get()}) {
      const Tensor end = *v->Read();
      for (const float value : end.flat<float>()) EXPECT_EQ(value, 2 * 3 * kRounds);
    }
  }
}

// Rows of 2 and of 64 columns take turns; every row r is filled with r, or r + 1, ...
TEST(VariableStorageTest, RowsStayWholeWhileAssignChangesTheirLength) {
  constexpr int kRounds = 300;
  VariableStorage v("v", DT_FLOAT, {-1, -1});
  ASSERT_OK(v.Assign(RowNumbers(8, 64), true));
  std::atomic<bool> over{false};  // release by the writer at its end, acquire by readers
  std::thread assigns([&] {
    for (int i = 0; i < kRounds; ++i) EXPECT_OK(v.Assign(RowNumbers(8, i % 2 == 0 ? 2 : 64), true));
    over.store(true, std::memory_order_release);
  });
  std::thread updates([&] {
    while (!over.load(std::memory_order_acquire)) EXPECT_OK(AddOneToRows({&v}, {0, 3, 7}));
  });
  const std::vector<int64_t> indices = {7, 0, 3};
  while (!over.load(std::memory_order_acquire)) {
    const Shape table = *v.shape();
    const size_t columns = static_cast<size_t>(table.dim(1));
    std::vector<float> out(indices.size() * columns, -1);
    const Status status =
        v.GatherRows<int64_t>(indices, table, reinterpret_cast<char*>(out.data()));
    EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
    for (size_t i = 0; i < out.size(); ++i) {
      EXPECT_EQ(out[i], out[i - i % columns]) << "row " << i / columns << " is torn";
    }
  }
  assigns.join();
  updates.join();
}

// Readers hold what they read for a while; rows, the whole and the value change beneath them.
TEST(VariableStorageTest, WhatWasReadStaysAsItIsBesideEveryKindOfUpdate) {
  constexpr int64_t kRows = 512;
  constexpr int64_t kColumns = 64;
  constexpr int kRounds = 150;
  const auto v = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({kRows, kColumns})));
  std::atomic<int> writers{3};  // release by a writer that ends, acquire by readers
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        EXPECT_OK(AddOneToRows({v.get()}, ManyRows(kRows, 20 + static_cast<size_t>(t))));
      }
      writers.fetch_sub(1, std::memory_order_release);
    });
  }
  threads.emplace_back([&] {
    for (int round = 0; round < kRounds / 3; ++round) {
      EXPECT_OK(AddOneTo(v.get()));
      if (round % 10 == 0) {
        EXPECT_OK(v->Assign(*v->Read()->Clone(), true));
      }
    }
    writers.fetch_sub(1, std::memory_order_release);
  });
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<Tensor, Tensor>> held;  // what was read, and a copy
      for (size_t round = 0; writers.load(std::memory_order_acquire) > 0; ++round) {
        Tensor read = *v->Read();
        Tensor copy = *read.Clone();
        held.emplace_back(std::move(read), std::move(copy));
        if (held.size() > 1 + static_cast<size_t>(t) * 2) held.erase(held.begin());
        for (const auto& [now, then] : held) EXPECT_TRUE(now == then);
        if (round % 4 == 0) held.clear();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  // Rows are whole.
  const Tensor end = *v->Read();
  for (size_t i = 0; i < end.flat<float>().size(); ++i) {
    ASSERT_EQ(end.flat<float>()[i], end.flat<float>()[i - i % kColumns]);
  }
}

TEST(VariableStorageTest, AnUpdateThatThrowsLeavesNothingLocked) {
  const auto v = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({64, 4})));
  const uint64_t version = v->version();
  const std::vector<int64_t> rows = {3, 1, 2, 9};
  VariableStorage* const one[] = {v.get()};
  EXPECT_THROW(static_cast<void>(VariableStorage::UpdateRows<int64_t>(
                   one, rows, {}, [](absl::Span<const Shape>) { return absl::OkStatus(); },
                   [](int64_t i, absl::Span<char* const> row) {
                     if (i == 2) throw std::runtime_error("row 2");
                     *reinterpret_cast<float*>(row[0]) = 5;
                   })),
               std::runtime_error);
  EXPECT_NE(v->version(), version);
  ASSERT_OK(AddOneToRows({v.get()}, rows));
  ASSERT_OK(AddOneTo(v.get()));
  const Tensor end = *v->Read();
  EXPECT_EQ(end.flat<float>()[3 * 4], 7);
  EXPECT_EQ(end.flat<float>()[1 * 4], 7);
  EXPECT_EQ(end.flat<float>()[2 * 4], 2);
  EXPECT_EQ(end.flat<float>()[9 * 4], 2);
}

// Rows of one lock, before and after others of the same call, and calls in opposite orders.
TEST(VariableStorageTest, UpdatesThatLockRowsInAnyOrderDoNotWaitForEachOther) {
  constexpr int kRounds = 2000;
  const auto v = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({2048, 4})));
  const auto slot = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({2048, 4})));
  const std::vector<int64_t> up = {1, 2, 3, 1025, 1, 4, 5, 2, 1026};
  const std::vector<int64_t> down(up.rbegin(), up.rend());
  std::thread forwards([&] {
    for (int i = 0; i < kRounds; ++i) EXPECT_OK(AddOneToRows({v.get(), slot.get()}, up));
  });
  std::thread backwards([&] {
    for (int i = 0; i < kRounds; ++i) EXPECT_OK(AddOneToRows({slot.get(), v.get()}, down));
  });
  forwards.join();
  backwards.join();
  for (const auto& variable : {v, slot}) {
    const Tensor end = *variable->Read();
    EXPECT_EQ(end.flat<float>()[1 * 4], 4 * kRounds);
    EXPECT_EQ(end.flat<float>()[2 * 4], 4 * kRounds);
    EXPECT_EQ(end.flat<float>()[1025 * 4], 2 * kRounds);
  }
}

TEST(VariableStorageTest, DenseAndRowUpdatesMixWithoutLoss) {
  constexpr int kRounds = 100;
  const auto v = Variable(*Tensor::Zeros(DT_FLOAT, ShapeOf({8, 4})));
  std::thread dense([&] {
    for (int i = 0; i < kRounds; ++i) EXPECT_OK(AddOneTo(v.get()));
  });
  std::thread rows([&] {
    for (int i = 0; i < kRounds; ++i) EXPECT_OK(AddOneToRows({v.get()}, {0, 1, 2, 3, 4, 5, 6, 7}));
  });
  dense.join();
  rows.join();
  const Tensor end = *v->Read();
  for (const float value : end.flat<float>()) EXPECT_EQ(value, 2 * kRounds);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "saver/variable_rows.h"

#include <atomic>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/allocator.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/state/resource_rows.h"
#include "ops/state/resource_variable.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"
#include "saver/save_restore.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

// covers: variables: saves during updates: a row and its slots are of one moment (ledger), no table
//   is copied or locked for longer than a piece

namespace millrace {
namespace {

constexpr size_t kMega = size_t{1} << 20;

using Storage = std::shared_ptr<VariableStorage>;

Storage NewStorage(const std::string& name, const std::vector<int64_t>& dims, float value = 0) {
  const Shape shape = *Shape::Make(dims);
  auto variable = std::make_shared<VariableStorage>(name, DT_FLOAT, shape);
  Tensor t = *Tensor::Allocate(DT_FLOAT, shape);
  for (float& x : t.mutable_flat<float>()) x = value;
  EXPECT_OK(variable->Assign(std::move(t), true));
  return variable;
}

// Adds 1 to every number of these rows of all variables, in one update.
Status AddOne(const std::vector<Storage>& variables, const std::vector<int64_t>& rows) {
  std::vector<VariableStorage*> pointers;
  std::vector<int64_t> widths;
  for (const Storage& v : variables) {
    pointers.push_back(v.get());
    widths.push_back(v->shape()->NumElements(1, v->shape()->rank()));
  }
  return VariableStorage::UpdateRows<int64_t>(
      pointers, rows, {}, [](absl::Span<const Shape>) { return absl::OkStatus(); },
      [&](int64_t, absl::Span<char* const> row) {
        for (size_t k = 0; k < pointers.size(); ++k) {
          float* const x = reinterpret_cast<float*>(row[k]);
          for (int64_t c = 0; c < widths[k]; ++c) x[c] += 1;
        }
      });
}
std::vector<int64_t> AllRows(const Storage& v) {
  std::vector<int64_t> rows(static_cast<size_t>(v->shape()->dim(0)));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int64_t>(i);
  return rows;
}

// Reads the sources of `values` to their ends; after each piece, `between`. What was read, by
// value.
std::vector<std::vector<float>> ReadAll(const std::vector<ValueToSave>& values,
                                        const std::function<void()>& between) {
  std::vector<std::vector<float>> read(values.size());
  std::map<RowSource*, std::vector<size_t>> sources;
  for (size_t i = 0; i < values.size(); ++i) {
    if (const auto* rows = std::get_if<RowsToSave>(&values[i])) {
      sources[rows->source.get()].push_back(i);
    } else {
      const auto whole = std::get<Tensor>(values[i]).flat<float>();
      read[i].assign(whole.begin(), whole.end());
    }
  }
  for (const auto& [source, members] : sources) {
    for (bool more = true; more;) {
      const auto pieces = source->Next(RowSource::kPieceBytes);
      EXPECT_OK(pieces.status());
      if (!pieces.ok()) break;
      more = false;
      for (const size_t i : members) {
        const absl::string_view piece =
            (*pieces)[static_cast<size_t>(std::get<RowsToSave>(values[i]).member)];
        const float* const x = reinterpret_cast<const float*>(piece.data());
        read[i].insert(read[i].end(), x, x + piece.size() / sizeof(float));
        more = more || !piece.empty();
      }
      between();
    }
  }
  return read;
}

TEST(VariableRowsTest, ARowAndItsSlotsAreOfOneMomentHoweverManyUpdatesComeBetweenPieces) {
  const Storage table = NewStorage("table", {120'000, 32});
  const Storage slot = NewStorage("slot", {120'000, 32});
  const Storage count = NewStorage("count", {120'000});
  const Storage other = NewStorage("other", {500, 32});
  const std::vector<Storage> record = {table, slot, count};
  ASSERT_OK(AddOne(record, {7}));
  ASSERT_OK(AddOne({other}, {7}));
  ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({table, other, slot, count}));
  int updates = 0;
  const auto read = ReadAll(values, [&] {
    ++updates;
    ASSERT_OK(AddOne(record, AllRows(table)));
    ASSERT_OK(AddOne({other}, AllRows(other)));
  });
  EXPECT_GT(updates, 4);
  for (size_t row = 0; row < 120'000; ++row) {
    for (size_t c = 0; c < 32; ++c) {
      ASSERT_EQ(read[0][row * 32 + c], read[3][row]) << row;
      ASSERT_EQ(read[2][row * 32 + c], read[3][row]) << row;
    }
  }
  EXPECT_GT(read[0].back(), read[0].front() + 3) << "walked, not copied at first";
  EXPECT_EQ(read[1].size(), 500u * 32);
  for (const Storage& v : {table, slot, count}) EXPECT_EQ(v->CountsForTesting().bytes_copied, 0);
}

// Before the first update nobody knows what belongs together, or that it is updated by rows.
TEST(VariableRowsTest, TheFirstRowUpdatesMayComeInTheMiddleOfASave) {
  const Storage table = NewStorage("table", {120'000, 64});
  const Storage slot = NewStorage("slot", {120'000, 64});
  ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({slot, table}));
  int updates = 0;
  const auto read = ReadAll(values, [&] {
    ASSERT_OK(AddOne({table, slot},
                     updates++ == 0 ? std::vector<int64_t>{0, 1, 119'999} : AllRows(table)));
  });
  EXPECT_GT(updates, 4);
  EXPECT_EQ(read[0], read[1]);
  EXPECT_EQ(read[0].front(), 0) << "from before the first update";
  EXPECT_EQ(read[0].back(), static_cast<float>(updates - 2));
  // The stripes of three rows, out of the buffer and back.
  const auto counts = table->CountsForTesting();
  EXPECT_LE(counts.bytes_copied, 6 * (int64_t{16} << 10));
  EXPECT_EQ(counts.stripes_apart, 0);
}

TEST(VariableRowsTest, WhatIsUpdatedAsAWholeIsOfOneMomentWithItsSlots) {
  const Storage w = NewStorage("w", {512, 1024});
  const Storage m = NewStorage("m", {512, 1024});
  const Storage scalar = NewStorage("scalar", {});
  const auto add_one = [&] {
    VariableStorage* const both[] = {w.get(), m.get()};
    return VariableStorage::UpdateDense(
        both, [](absl::Span<const Tensor>) { return absl::OkStatus(); },
        [](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          for (size_t k = 0; k < old.size(); ++k) {
            const auto from = old[k].flat<float>();
            auto to = fresh[k].mutable_flat<float>();
            for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] + 1;
          }
          return absl::OkStatus();
        });
  };
  ASSERT_OK(add_one());
  std::atomic<bool> stop{false};
  std::thread updates([&] {
    while (!stop) ASSERT_OK(add_one());
  });
  for (int i = 0; i < 50; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({w, scalar, m}));
    const auto read = ReadAll(values, [] {});
    ASSERT_EQ(read[0].front(), read[0].back());
    ASSERT_EQ(read[0], read[2]);
    ASSERT_EQ(read[1], std::vector<float>{0});
  }
  stop = true;
  updates.join();
}

// Neither had an update before; they have as many rows, and only one is updated by rows.
TEST(VariableRowsTest, TheFirstWholeUpdateDuringASaveLeavesItTheValueOfItsBeginning) {
  const Storage table = NewStorage("table", {120'000, 64});
  const Storage w = NewStorage("w", {120'000, 64});
  ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({table, w}));
  int updates = 0;
  const auto read = ReadAll(values, [&] {
    VariableStorage* const whole[] = {w.get()};
    ASSERT_OK(VariableStorage::UpdateDense(
        whole, [](absl::Span<const Tensor>) { return absl::OkStatus(); },
        [](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          const auto from = old[0].flat<float>();
          auto to = fresh[0].mutable_flat<float>();
          for (size_t i = 0; i < to.size(); ++i) to[i] = from[i] + 1;
          return absl::OkStatus();
        }));
    ASSERT_OK(AddOne({table}, {3, 119'999}));
    ++updates;
  });
  EXPECT_GT(updates, 4);
  EXPECT_EQ(read[1], std::vector<float>(120'000 * 64, 0));
  EXPECT_GT(read[0].back(), 0);
}

TEST(VariableRowsTest, NoLockIsHeldForMoreThanAPiece) {
  const Storage table = NewStorage("table", {100'000, 64});
  const Storage slot = NewStorage("slot", {100'000, 64});
  ASSERT_OK(AddOne({table, slot}, {1}));
  ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({table, slot}));
  (void)ReadAll(values, [] {});
  for (const Storage& v : {table, slot}) {
    const auto counts = v->CountsForTesting();
    EXPECT_EQ(counts.bytes_copied, 0);
    EXPECT_GT(counts.most_bytes_under_row_locks, 0);
    EXPECT_LE(counts.most_bytes_under_row_locks, static_cast<int64_t>(4 * 2 * 64 * sizeof(float)))
        << "four rows";
    EXPECT_LE(counts.most_bytes_held, int64_t{256} << 10);
  }
}

TEST(VariableRowsTest, WrongVariablesAreNamed) {
  const auto none = std::make_shared<VariableStorage>("none", DT_FLOAT, PartialShape());
  EXPECT_STATUS(ValuesOfVariables({none}).status(), absl::StatusCode::kFailedPrecondition,
                "uninitialized value none");
  const Storage table = NewStorage("table", {120'000, 64});
  ASSERT_OK(AddOne({table}, {1}));
  ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({table, table}));
  const auto source = std::get<RowsToSave>(values[1]).source;
  EXPECT_EQ(std::get<RowsToSave>(values[0]).source, source);
  ASSERT_OK(source->Next(RowSource::kPieceBytes).status());
  ASSERT_OK(table->Assign(*Tensor::Zeros(DT_FLOAT, ShapeOf({2, 64})), false));
  EXPECT_STATUS(source->Next(RowSource::kPieceBytes).status(), absl::StatusCode::kAborted,
                "'table' must keep its shape [120000,64]");
}

class SavesTest : public ::testing::Test {
 protected:
  SavesTest() : directory_(JoinPath(::testing::TempDir(), "saves_" + RandomHexName())) {}
  ~SavesTest() override { FileSystem::Posix()->RecursivelyDelete(directory_).IgnoreError(); }

  // What the checkpoint has under `name`.
  std::vector<float> Saved(const std::string& path, const std::string& name) const {
    const auto reader = BundleReader::Open(FileSystem::Posix(), path);
    EXPECT_OK(reader.status());
    const auto value = (*reader)->Read(name);
    EXPECT_OK(value.status());
    const auto numbers = value->flat<float>();
    return {numbers.begin(), numbers.end()};
  }

  const std::string directory_;
};

// Ends its threads also when a test gives up.
struct Threads {
  ~Threads() {
    stop = true;
    for (std::thread& thread : all) thread.join();
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> all;
};

// The ledger: every update adds 1 to rows of the table and of its slot.
TEST_F(SavesTest, SavesAmongUpdatesOfSeveralThreadsKeepTheLedger) {
  const Storage table = NewStorage("table", {4'000, 64});
  const Storage slot = NewStorage("slot", {4'000, 64});
  std::atomic<int> updates{0};
  Threads threads;
  for (int t = 0; t < 3; ++t) {
    threads.all.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      while (!threads.stop) {
        std::vector<int64_t> rows(200);
        for (int64_t& row : rows) row = static_cast<int64_t>(random() % 4'000);
        ASSERT_OK(AddOne({table, slot}, rows));
        ++updates;
      }
    });
  }
  while (updates == 0) std::this_thread::yield();
  const std::string names[] = {"other", "slot", "table"};
  const std::string specs[] = {"", "", "8000 64 0,4000:-"};
  for (int i = 0; i < 10; ++i) {
    const std::string path = JoinPath(directory_, absl::StrCat("ckpt-", i));
    ASSERT_OK_AND_ASSIGN(auto values, ValuesOfVariables({slot, table}));
    values.insert(values.begin(), TensorOf<float>({1}, {5}));
    ASSERT_OK(SaveTensors(FileSystem::Posix(), path, names, specs, values));
    ASSERT_OK_AND_ASSIGN(const auto saved,
                         RestoreTensors(FileSystem::Posix(), path, {"slot", "table"},
                                        {"", "8000 64 0,4000:-"}, {DT_FLOAT, DT_FLOAT}));
    const auto a = saved[0].flat<float>(), b = saved[1].flat<float>();
    for (size_t k = 0; k < a.size(); ++k) ASSERT_EQ(a[k], b[k]) << "number " << k;
    for (size_t k = 0; k < a.size(); ++k) ASSERT_EQ(a[k], a[k - k % 64]) << "a torn row";
  }
}

// While one table is written, the first row updates of another one come.
TEST_F(SavesTest, ATableThatWaitsForItsTurnIsNotCopiedEither) {
  const Storage first = NewStorage("first", {120'000, 64});
  const Storage second = NewStorage("second", {180'000, 64});
  int pieces = 0;
  const StopCheck between = [&] {
    EXPECT_OK(AddOne({second}, ++pieces < 5 ? std::vector<int64_t>{3} : AllRows(second)));
    return absl::OkStatus();
  };
  ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({first, second}));
  const std::string names[] = {"first", "second"}, specs[] = {"", ""};
  const std::string path = JoinPath(directory_, "ckpt");
  ASSERT_OK(SaveTensors(FileSystem::Posix(), path, names, specs, values, between));
  EXPECT_GT(pieces, 15);
  EXPECT_GT(Saved(path, "second").back(), 1);
  EXPECT_LE(second->CountsForTesting().bytes_copied, 2 * (int64_t{16} << 10));
}

// Until the first update by rows nobody knows that there will be some, and their memory counts.
TEST_F(SavesTest, ATableThatIsKeptIsWrittenInSmallPiecesAndOneThatIsWalkedInLargeOnes) {
  const Storage table = NewStorage("table", {60'000, 64});  // 14.6 MiB
  const std::string names[] = {"table"}, specs[] = {""};
  for (const bool walked : {false, true}) {
    if (walked) {
      ASSERT_OK(AddOne({table}, {1}));
    }
    int pieces = 0;
    const StopCheck count = [&] {
      ++pieces;
      return absl::OkStatus();
    };
    ASSERT_OK_AND_ASSIGN(const auto values, ValuesOfVariables({table}));
    ASSERT_OK(SaveTensors(FileSystem::Posix(), JoinPath(directory_, "ckpt"), names, specs, values,
                          count));
    if (walked) {
      EXPECT_LT(pieces, 10);
    } else {
      EXPECT_GT(pieces, 58);
    }
  }
}

// A table of 32 MiB that is updated by rows, saved by TensorFlow's graph: SaveV2 behind a read.
struct TableModel {
  TableModel() {
    table = MakeVariable(root.WithName("table"),
                         Fill(root, Const<int32_t>(root, {131'072, 64}), Const(root, 1.0f)));
    update = ResourceScatterAdd(root, table.handle, Const<int64_t>(root, {5, 70'000}),
                                Fill(root, Const<int32_t>(root, {2, 64}), Const(root, 1.0f)));
    init = GlobalVariablesInitializer(root);
  }
  Scope root;
  Variable table;
  Operation update, init;
};

TEST_F(SavesTest, ASaveBesideAReaderCopiesNoTable) {
  TableModel m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(m.root));
  ASSERT_OK(session->Run({}, {}, {m.init.name()}).status());
  ASSERT_OK(session->Run({}, {}, {m.update.name()}).status());
  // Somebody keeps what the table was, and rows go on: a read would have to copy it all.
  ASSERT_OK_AND_ASSIGN(const auto held, session->Run({}, {m.table.value.name()}));
  ASSERT_OK(session->Run({}, {}, {m.update.name()}).status());
  SetDefaultAllocatorLimit(DefaultAllocatorStats().bytes_in_use + 4 * static_cast<int64_t>(kMega));
  const auto path = saver->Save(session.get(), JoinPath(directory_, "ckpt"), 1);
  SetDefaultAllocatorLimit(0);
  ASSERT_OK(path.status());
  const auto saved = Saved(*path, "table");
  EXPECT_EQ(saved[5 * 64], 3);
  EXPECT_EQ(saved[6 * 64], 1);
  EXPECT_EQ(held[0].flat<float>()[5 * 64], 2);
}

// One node in two signatures: what it gives a save is not what it gives others.
TEST_F(SavesTest, TheReadOfASaveIsARealOneForOthers) {
  TableModel m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(m.root));
  const std::string prefix = JoinPath(directory_, "ckpt");
  EXPECT_STATUS(saver->Save(session.get(), prefix, 1).status(),
                absl::StatusCode::kFailedPrecondition, "uninitialized");
  ASSERT_OK(session->Run({}, {}, {m.init.name()}).status());
  ASSERT_OK(saver->Save(session.get(), prefix, 2).status());
  ASSERT_OK_AND_ASSIGN(auto fetched, session->Run({}, {m.table.value.name()}));
  EXPECT_EQ(fetched[0].flat<float>()[0], 1);
  ASSERT_OK(saver->Save(session.get(), prefix, 3).status());
  // Both at once: the save has what was fetched.
  ASSERT_OK_AND_ASSIGN(fetched,
                       session->Run({{saver->def().filename_tensor_name(),
                                      Tensor::Scalar<std::string>(prefix + "-4")}},
                                    {m.table.value.name(), saver->def().save_tensor_name()}));
  EXPECT_EQ(fetched[0].flat<float>()[0], 1);
  EXPECT_EQ(Saved(prefix + "-4", "table").back(), 1);
}

// The save comes after an update that waits for the read, and its prefix is a variable, too.
TEST_F(SavesTest, WhatAnUpdateWaitsForIsSavedAsItWasRead) {
  const std::string path = JoinPath(directory_, "ckpt");
  Scope root;
  const Variable w =
      MakeVariable(root.WithName("w"), Fill(root, Const<int32_t>(root, {4, 2}), Const(root, 1.0f)));
  const Variable prefix = MakeVariable(root.WithName("prefix"), Const(root, path));
  const Operation update =
      AssignAddVariableOp(root.WithControlDependencies({w.value.op()}), w.handle,
                          Fill(root, Const<int32_t>(root, {4, 2}), Const(root, 1.0f)));
  const Output saved[] = {w.value};
  const Operation save = SaveV2(root.WithControlDependencies({update}), prefix.value,
                                Const(root, Tensor::Vector<std::string>({"w"})),
                                Const(root, Tensor::Vector<std::string>({""})), saved);
  const Operation init = GlobalVariablesInitializer(root);
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {init.name()}).status());
  ASSERT_OK(session->Run({}, {}, {save.name()}).status());
  EXPECT_EQ(Saved(path, "w"), std::vector<float>(8, 1));
  ASSERT_OK_AND_ASSIGN(const auto now, session->Run({}, {w.value.name()}));
  EXPECT_EQ(now[0].flat<float>()[0], 2);
}

}  // namespace
}  // namespace millrace

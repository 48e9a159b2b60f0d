// SPDX-License-Identifier: Apache-2.0
#include "saver/save_restore.h"

#include <gtest/gtest.h>

#include "core/allocator.h"
#include "core/random_bits.h"
#include "core/resource_handle.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/testing/op_list.h"
#include "ops/array/constant.h"
#include "proto/node_def.pb.h"
#include "runtime/resource_manager.h"
#include "runtime/testing/op_test.h"
#include "runtime/variable_storage.h"
#include "saver/checkpoint_v1.h"
#include "saver/tensor_bundle.h"

// covers: variables: a table is saved by its rows in bounded memory

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class SaveRestoreTest : public ::testing::Test {
 protected:
  SaveRestoreTest()
      : directory_(JoinPath(::testing::TempDir(), "save_restore_" + RandomHexName())),
        prefix_(JoinPath(directory_, "ckpt")) {}
  ~SaveRestoreTest() override { fs_->RecursivelyDelete(directory_).IgnoreError(); }

  OpCall Save(const std::vector<std::string>& names, const std::vector<std::string>& specs,
              std::vector<OpInput> tensors) {
    return OpCall("SaveV2")
        .Input(Tensor::Scalar(prefix_))
        .Input(Tensor::Vector<std::string>(names))
        .Input(Tensor::Vector<std::string>(specs))
        .Inputs(std::move(tensors));
  }
  OpCall Restore(const std::vector<std::string>& names, const std::vector<std::string>& specs,
                 const std::vector<DType>& dtypes) {
    return OpCall("RestoreV2")
        .Input(Tensor::Scalar(prefix_))
        .Input(Tensor::Vector<std::string>(names))
        .Input(Tensor::Vector<std::string>(specs))
        .Attr("dtypes", dtypes);
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string directory_;
  const std::string prefix_;
};

TEST_F(SaveRestoreTest, RestoresWhatWasSaved) {
  const Tensor w = TensorOf<float>({2, 2}, {1, 2, 3, 4});
  const Tensor words = TensorOf<std::string>({2}, {"a", ""});
  const Tensor step = TensorOf<int64_t>({}, {7});
  ASSERT_OK(RunOp(Save({"w", "words", "step"}, {"", "", ""}, {w, words, step})).status());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                       RunOp(Restore({"step", "w", "words"}, {"", "2 2 1,1:-", ""},
                                     {DT_INT64, DT_FLOAT, DT_STRING})));
  ASSERT_EQ(out.size(), 3u);
  ExpectTensorEqual(out[0], step);
  ExpectTensorEqual(out[1], TensorOf<float>({1, 2}, {3, 4}));
  ExpectTensorEqual(out[2], words);
}

TEST_F(SaveRestoreTest, RestoresByTheNameOfAFile) {
  const Tensor w = TensorOf<float>({2}, {1, 2});
  ASSERT_OK(RunOp(Save({"w"}, {""}, {w})).status());
  for (const char* suffix : {".index", ".meta", ".data-00000-of-00001"}) {
    ExpectTensorEqual(RunOp1(OpCall("RestoreV2")
                                 .Input(Tensor::Scalar(prefix_ + suffix))
                                 .Input(Tensor::Vector<std::string>({"w"}))
                                 .Input(Tensor::Vector<std::string>({""}))
                                 .Attr("dtypes", std::vector<DType>{DT_FLOAT})),
                      w);
  }
}

// 1000 rows of 64 numbers; row r is filled with r.
Tensor RowNumbers() {
  Tensor t = *Tensor::Allocate(DT_FLOAT, ShapeOf({1000, 64}));
  const absl::Span<float> values = t.mutable_flat<float>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i / 64);
  return t;
}

Status AddOneToRow(VariableStorage* v, int64_t row) {
  VariableStorage* const one[] = {v};
  return VariableStorage::UpdateRows<int64_t>(
      one, {row}, {}, [](absl::Span<const Shape>) { return absl::OkStatus(); },
      [](int64_t, absl::Span<char* const> rows) { *reinterpret_cast<float*>(rows[0]) += 1; });
}

// The read in front of SaveV2 is let go of; what is written is the table, each row as it is then.
TEST_F(SaveRestoreTest, ATableIsSavedByItsRowsAndNotByTheReadInFront) {
  OpTestDevice device;
  device.VariableHandle("table", RowNumbers());
  const auto table = *device.resources()->Lookup<VariableStorage>("", "table");
  ASSERT_OK(AddOneToRow(table.get(), 1));
  Tensor read = *table->Read();
  ASSERT_OK(AddOneToRow(table.get(), 2));
  EXPECT_EQ(read.flat<float>()[2 * 64], 2);
  const int64_t copied = table->CountsForTesting().bytes_copied;
  ASSERT_OK(
      RunOp(Save({"w", "part"}, {"", "2000 64 1000,1000:-"}, {read, read}).On(&device)).status());
  EXPECT_EQ(table->CountsForTesting().bytes_copied, copied);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> out,
      RunOp(Restore({"w", "part"}, {"", "2000 64 1000,1000:-"}, {DT_FLOAT, DT_FLOAT})));
  Tensor expected = RowNumbers();
  expected.mutable_flat<float>()[1 * 64] = 2;
  expected.mutable_flat<float>()[2 * 64] = 3;
  ExpectTensorEqual(out[0], expected);
  ExpectTensorEqual(out[1], expected);
}

// Beyond the table itself SaveV2 holds no tensor: a limit of 1 MiB is enough for one of 16 MiB.
TEST_F(SaveRestoreTest, ATableIsSavedInBoundedMemory) {
  OpTestDevice device;
  device.VariableHandle("table", *Tensor::Zeros(DT_FLOAT, ShapeOf({65536, 64})));
  const auto table = *device.resources()->Lookup<VariableStorage>("", "table");
  ASSERT_OK(AddOneToRow(table.get(), 1));
  OpCall save = Save({"w"}, {""}, {*table->Read()}).On(&device);
  SetDefaultAllocatorLimit(DefaultAllocatorStats().bytes_in_use + (1 << 20));
  const Status status = RunOp(save).status();
  SetDefaultAllocatorLimit(0);
  ASSERT_OK(status);
  EXPECT_EQ(table->CountsForTesting().bytes_copied, 0);
}

TEST_F(SaveRestoreTest, AVariableThatIsUpdatedAsAWholeIsSavedAsItWasRead) {
  OpTestDevice device;
  device.VariableHandle("w", RowNumbers());
  const auto w = *device.resources()->Lookup<VariableStorage>("", "w");
  const Tensor read = *w->Read();
  ASSERT_OK(w->Assign(*Tensor::Zeros(DT_FLOAT, ShapeOf({1000, 64})), true));
  ASSERT_OK(RunOp(Save({"w"}, {""}, {read}).On(&device)).status());
  ExpectTensorEqual(RunOp1(Restore({"w"}, {""}, {DT_FLOAT})), RowNumbers());
}

TEST_F(SaveRestoreTest, WrongSavesSayWhatIsWrongAndLeaveNoCheckpoint) {
  const Tensor w = TensorOf<float>({2}, {1, 2});
  ExpectOpError(Save({}, {""}, {w}), kInvalid,
                "tensor_names must have one element per tensor, got 0 for 1");
  ExpectOpError(Save({"w"}, {"", ""}, {w}), kInvalid,
                "shape_and_slices must have one element per tensor, got 2 for 1");
  ExpectOpError(Save({""}, {""}, {w}), kInvalid, "must have a name");
  ExpectOpError(Save({"w", "w"}, {"", ""}, {w, w}), kInvalid, "must be added once");
  ExpectOpError(Save({"w"}, {"4 0,3"}, {w}), kInvalid, "must have shape [3], got [2]");
  ExpectOpError(Save({"w"}, {"4 x"}, {w}), kInvalid, "got 'x'");
  ExpectOpError(Save({"h"}, {""}, {Tensor::Scalar<ResourceHandle>({})}),
                absl::StatusCode::kUnimplemented,
                "tensor 'h': a checkpoint holds numbers and strings, got dtype resource");
  ExpectOpError(OpCall("SaveV2")
                    .Input(Tensor::Vector<std::string>({prefix_}))
                    .Input(Tensor::Vector<std::string>({"w"}))
                    .Input(Tensor::Vector<std::string>({""}))
                    .Inputs({w}),
                kInvalid, "");
  ASSERT_OK_AND_ASSIGN(const auto files, fs_->GetChildren(directory_));
  EXPECT_TRUE(files.empty());
}

TEST_F(SaveRestoreTest, WrongRestoresNameWhatTheGraphAndTheFileSay) {
  ASSERT_OK(RunOp(Save({"w"}, {""}, {TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6})})).status());
  ExpectOpError(Restore({"v"}, {""}, {DT_FLOAT}), absl::StatusCode::kNotFound,
                "Key v not found in checkpoint");
  ExpectOpError(Restore({"w"}, {""}, {DT_INT32}), kInvalid,
                "tensor 'w' must have the dtype that the graph expects, int32, got float in the "
                "checkpoint");
  ExpectOpError(Restore({"w"}, {"3 3 0,1:-"}, {DT_FLOAT}), kInvalid,
                "tensor 'w' must have the full shape that the graph expects, [3,3], got [2,3]");
  ExpectOpError(Restore({}, {""}, {DT_FLOAT}), kInvalid, "tensor_names must have one element");
  ExpectOpError(Restore({"w"}, {}, {DT_FLOAT}), kInvalid, "shape_and_slices must have one element");
  ExpectOpError(Restore({"w"}, {"2 3 0,9:-"}, {DT_FLOAT}), kInvalid, "must lie in shape [2,3]");
  ASSERT_OK(fs_->DeleteFile(BundleIndexPath(prefix_)));
  ExpectOpError(Restore({"w"}, {""}, {DT_FLOAT}), absl::StatusCode::kNotFound, "ckpt.index");
}

TEST_F(SaveRestoreTest, CancelledSaveWritesNothing) {
  OpTestDevice device;
  device.cancellation()->StartCancel();
  EXPECT_STATUS(RunOp(Save({"w"}, {""}, {TensorOf<float>({1}, {1})}).On(&device)).status(),
                absl::StatusCode::kCancelled, "");
  EXPECT_FALSE(fs_->FileExists(BundleIndexPath(prefix_)));
}

TEST_F(SaveRestoreTest, MergeMakesOneCheckpoint) {
  const std::string parts[] = {prefix_ + "_temp/part-00000-of-00002",
                               prefix_ + "_temp/part-00001-of-00002"};
  const std::string none[] = {""};
  for (int i = 0; i < 2; ++i) {
    const std::string names[] = {i == 0 ? "a" : "b"};
    const ValueToSave values[] = {Tensor::Scalar<int32_t>(i)};
    ASSERT_OK(SaveTensors(fs_, parts[i], names, none, values));
  }
  ASSERT_OK(RunOp(OpCall("MergeV2Checkpoints")
                      .Input(Tensor::Vector<std::string>(parts))
                      .Input(Tensor::Scalar(prefix_)))
                .status());
  EXPECT_FALSE(fs_->FileExists(prefix_ + "_temp"));
  ExpectTensorEqual(RunOp1(Restore({"b"}, {""}, {DT_INT32})), Tensor::Scalar<int32_t>(1));
  ExpectOpError(OpCall("MergeV2Checkpoints")
                    .Input(TensorOf<std::string>({0}, {}))
                    .Input(Tensor::Scalar(prefix_)),
                kInvalid, "must have at least one part");
}

TEST(ShardedFilenameTest, HasFiveDigits) {
  const auto call = [](int32_t shard, int32_t num_shards) {
    return OpCall("ShardedFilename")
        .Input(Tensor::Scalar("run/part"))
        .Input(Tensor::Scalar<int32_t>(shard))
        .Input(Tensor::Scalar<int32_t>(num_shards));
  };
  ExpectTensorEqual(RunOp1(call(2, 12)), Tensor::Scalar("run/part-00002-of-00012"));
  ExpectOpError(call(3, 3), kInvalid, "shard must be in [0, num_shards = 3), got 3");
  ExpectOpError(call(-1, 3), kInvalid, "got -1");
  ExpectTensorEqual(RunOp1(OpCall("ShardedFilespec")
                               .Input(Tensor::Scalar("run/part"))
                               .Input(Tensor::Scalar<int32_t>(4))),
                    Tensor::Scalar("run/part-\?\?\?\?\?-of-00004"));
  ExpectOpError(
      OpCall("ShardedFilespec").Input(Tensor::Scalar("run/part")).Input(Tensor::Scalar<int32_t>(0)),
      kInvalid, "num_shards must be >= 1, got 0");
}

TEST(SaveRestoreShapes, FollowSlicesAndCountNames) {
  EXPECT_SHAPE("RestoreV2", {{"dtypes", std::vector<DType>{DT_FLOAT, DT_INT32}}},
               {"[]", "[2]", Tensor::Vector<std::string>({"", "4 3 1,2:-"})}, "<unknown>;[2,3]");
  EXPECT_SHAPE_ERROR("RestoreV2", {{"dtypes", std::vector<DType>{DT_FLOAT}}}, {"[]", "[2]", "[1]"},
                     "tensor_names must have one element per tensor");
  EXPECT_SHAPE_ERROR("RestoreV2", {{"dtypes", std::vector<DType>{DT_FLOAT}}}, {"[1]", "[1]", "[1]"},
                     "rank");
  EXPECT_SHAPE("ShardedFilename", {}, {"[]", "[]", "[]"}, "[]");
  EXPECT_SHAPE_ERROR("ShardedFilespec", {}, {"[]", "[1]"}, "rank");
  EXPECT_SHAPE_ERROR("MergeV2Checkpoints", {}, {"[]", "[]"}, "rank");
}

// The ops of this folder, of which no test in //ops knows.
constexpr const char* kOps[] = {"SaveV2", "RestoreV2", "MergeV2Checkpoints", "ShardedFilename",
                                "ShardedFilespec"};

TEST(SaveRestoreOps, HaveTensorFlowsSignatures) {
  const tensorflow::OpList list = TensorFlowOps();
  if (list.op().empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/ops.pbtxt";
  for (const char* name : kOps) {
    const OpEntry* entry = LookUpOp(name);
    ASSERT_NE(entry, nullptr) << name;
    int found = 0;
    for (const tensorflow::OpDef& theirs : list.op()) {
      if (theirs.name() != name) continue;
      ++found;
      std::string difference;
      EXPECT_TRUE(OpDefsEqual(entry->def, theirs, &difference)) << name << ": " << difference;
    }
    EXPECT_EQ(found, 1) << name;
  }
}

TEST(SaveRestoreOps, BuildersMakeTheNodesOfTheirOps) {
  Scope s;
  const Output prefix = Const(s, "ckpt"), one = Const(s, int32_t{1}), two = Const(s, int32_t{2});
  const Output names = Const<std::string>(s, {"a", "b"}), specs = Const<std::string>(s, {"", ""});
  SaveV2(s.WithName("save"), prefix, names, specs, {one, prefix});
  RestoreV2(s.WithName("restore"), prefix, names, specs, {DT_INT32, DT_STRING});
  MergeV2Checkpoints(s.WithName("merge"), names, prefix, {.delete_old_dirs = false});
  ShardedFilename(s.WithName("name"), prefix, one, two);
  ShardedFilespec(s.WithName("spec"), prefix, two);
  ASSERT_OK(s.status());
  const auto text = [&](const char* name) {
    const Node* node = s.graph()->FindNode(name);
    std::string line = absl::StrCat(node->op(), " ", node->num_inputs(), "->", node->num_outputs());
    for (const auto& attr : node->op_entry()->def.attr()) {
      absl::StrAppend(&line, " ", attr.name(), "=",
                      AttrToString(node->def().attr().at(attr.name())));
    }
    return line;
  };
  EXPECT_EQ(text("save"), "SaveV2 5->0 dtypes=[DT_INT32, DT_STRING]");
  EXPECT_EQ(text("restore"), "RestoreV2 3->2 dtypes=[DT_INT32, DT_STRING]");
  EXPECT_EQ(text("merge"), "MergeV2Checkpoints 2->0 delete_old_dirs=false");
  EXPECT_EQ(text("name"), "ShardedFilename 3->1");
  EXPECT_EQ(text("spec"), "ShardedFilespec 2->1");
}

// The first format: the session bundle that TensorFlow's own tests export.
TEST(CheckpointV1, ReadsTheTableOfSavedSlices) {
  const std::string directory = SharedDataPath("session_bundle/half_plus_two");
  if (directory.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle/half_plus_two";
  FileSystem* const fs = FileSystem::Posix();
  for (const char* pattern :
       {"export", "export-\?\?\?\?\?-of-00001", "export-*", "export-00000-of-00001"}) {
    ASSERT_OK_AND_ASSIGN(auto reader, CheckpointV1Reader::Open(fs, JoinPath(directory, pattern)));
    ASSERT_EQ(reader->entries().size(), 2u) << pattern;
    ASSERT_OK_AND_ASSIGN(const Tensor a, reader->Read("a"));
    ExpectTensorEqual(a, Tensor::Scalar<float>(0.5f));
  }
  const std::string prefix = JoinPath(directory, "export");
  const std::string names[] = {"a", "b"};
  const std::string specs[] = {"", ""};
  const DType dtypes[] = {DT_FLOAT, DT_FLOAT};
  ASSERT_OK_AND_ASSIGN(const auto tensors, RestoreTensors(fs, prefix, names, specs, dtypes));
  ExpectTensorEqual(tensors[0], Tensor::Scalar<float>(0.5f));
  ExpectTensorEqual(tensors[1], Tensor::Scalar<float>(2.0f));
  const std::string missing[] = {"a", "c"};
  EXPECT_STATUS(RestoreTensors(fs, prefix, missing, specs, dtypes).status(),
                absl::StatusCode::kNotFound, "Key c not found in checkpoint");
  const DType wrong[] = {DT_FLOAT, DT_DOUBLE};
  EXPECT_STATUS(RestoreTensors(fs, prefix, names, specs, wrong).status(), kInvalid,
                "tensor 'b' must have the dtype that the graph expects, double, got float");
}

TEST_F(SaveRestoreTest, DamagedFirstFormatIsNeverReadAsSound) {
  const std::string path = SharedDataPath("session_bundle/half_plus_two/export-00000-of-00001");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle/half_plus_two";
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFileToString(fs_, path));
  ASSERT_OK(fs_->RecursivelyCreateDirectory(directory_));
  const std::string names[] = {"a", "b"};
  const std::string specs[] = {"", ""};
  const DType dtypes[] = {DT_FLOAT, DT_FLOAT};
  int detected = 0, harmless = 0;
  const auto check = [&](const std::string& bytes) {
    ASSERT_OK_AND_ASSIGN(auto file, fs_->NewWritableFile(prefix_));
    ASSERT_OK(file->Append(bytes));
    ASSERT_OK(file->Close());
    const auto tensors = RestoreTensors(fs_, prefix_, names, specs, dtypes);
    if (!tensors.ok()) {
      ++detected;
      return;
    }
    ++harmless;
    ExpectTensorEqual((*tensors)[0], Tensor::Scalar<float>(0.5f));
    ExpectTensorEqual((*tensors)[1], Tensor::Scalar<float>(2.0f));
  };
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    check(bad);
    check(good.substr(0, i));
  }
  // What no checksum covers: padding of the footer, which its writer left to any value.
  EXPECT_GT(detected, static_cast<int>(good.size()) * 2 - 48);
  RecordProperty("detected", detected);
  RecordProperty("harmless", harmless);
}

}  // namespace
}  // namespace millrace

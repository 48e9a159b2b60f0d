// SPDX-License-Identifier: Apache-2.0
#include "saver/saver.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <functional>
#include <map>
#include <memory>
#include <set>

#include "absl/strings/match.h"
#include "core/fail_point.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "layers/initializers.h"
#include "layers/partitioner.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/slice.h"
#include "ops/state/state.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/saver.pb.h"
#include "saver/meta_graph.h"
#include "saver/save_restore.h"
#include "saver/tensor_bundle.h"

// covers: values: checkpoints of both formats; a power cut at any moment leaves the old or the new
//   one
// covers: accidents: a checkpoint that does not fit says which variable, both types and shapes, and
//   the line that made it
// covers: training: files that dead saves of a run left are deleted and nothing else, also where
//   all checkpoints are kept
// covers: article 2-20: the latest checkpoint by the state file
// covers: variables: a variable in parts is one tensor of a checkpoint; any other number of parts,
//   along any other axis, restores it bit by bit

namespace millrace {
namespace {

FileSystem* const kFiles = FileSystem::Posix();

class SaverTest : public ::testing::Test {
 protected:
  SaverTest() : directory_(JoinPath(::testing::TempDir(), "saver_" + RandomHexName())) {}
  ~SaverTest() override { kFiles->RecursivelyDelete(directory_).IgnoreError(); }

  std::string Path(absl::string_view name) const { return JoinPath(directory_, name); }
  std::vector<std::string> Files() const {
    const auto names = kFiles->GetChildren(directory_);
    return names.ok() ? *names : std::vector<std::string>();
  }
  std::string Bytes(const std::string& path) const {
    const auto bytes = ReadFileToString(kFiles, path);
    EXPECT_OK(bytes.status());
    return bytes.ok() ? *bytes : "";
  }
  void Write(const std::string& path, const std::string& bytes) const {
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(Dirname(path)));
    ASSERT_OK_AND_ASSIGN(auto file, kFiles->NewWritableFile(path));
    ASSERT_OK(file->Append(bytes));
    ASSERT_OK(file->Close());
  }
  // A checkpoint with one tensor.
  void WriteCheckpoint(absl::string_view name, float value = 0) const {
    const std::string names[] = {"w"};
    const std::string specs[] = {""};
    const ValueToSave tensors[] = {Tensor::Scalar<float>(value)};
    ASSERT_OK(SaveTensors(kFiles, Path(name), names, specs, tensors));
  }

  const std::string directory_;
};

std::unique_ptr<Session> OpenSession(const Scope& scope) {
  auto session = NewSession();
  EXPECT_OK(session.status());
  if (!session.ok()) return nullptr;
  EXPECT_OK((*session)->Extend(scope));
  return *std::move(session);
}

// "name op(inputs) @device", one line per node under `prefix`, in the order they were made.
std::string NodesUnder(const Scope& scope, const std::string& prefix) {
  std::string text;
  tensorflow::GraphDef def;
  scope.graph()->ToGraphDef(&def);
  for (const auto& node : def.node()) {
    if (node.name().rfind(prefix, 0) != 0 || node.op() == "Const") continue;
    absl::StrAppend(&text, node.name(), " ", node.op(), "(");
    for (int i = 0; i < node.input_size(); ++i) {
      absl::StrAppend(&text, i > 0 ? ", " : "", node.input(i));
    }
    absl::StrAppend(&text, ")", node.device().empty() ? "" : " @", node.device(), "\n");
  }
  return text;
}

// A model whose variables are set by hand.
struct Model {
  explicit Model(float first = 1) {
    w = MakeVariable(root.WithName("w"), Const<float>(root, {first, first + 1}));
    step =
        MakeVariable(root.WithName("global_step"), Const(root, int64_t{10}), {.trainable = false});
    init = GlobalVariablesInitializer(root);
  }
  Scope root;
  Variable w, step;
  Operation init;
};

// The names and edges of TensorFlow 1.15's Saver(sharded=True) for two resource variables; only the
// Identity between RestoreV2 and the assignment is left out.
TEST_F(SaverTest, ShardedGraphHasTensorFlowsNodes) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  EXPECT_EQ(NodesUnder(m.root, "save/"),
            "save/filename PlaceholderWithDefault(save/filename/input)\n"
            "save/Const PlaceholderWithDefault(save/filename)\n"
            "save/StringJoin StringJoin(save/Const, save/StringJoin/inputs_1)\n"
            "save/ShardedFilename ShardedFilename(save/StringJoin, save/ShardedFilename/shard, "
            "save/num_shards) @/device:CPU:0\n"
            "save/SaveV2 SaveV2(save/ShardedFilename, save/SaveV2/tensor_names, "
            "save/SaveV2/shape_and_slices, global_step/Read/ReadVariableOp, w/Read/ReadVariableOp) "
            "@/device:CPU:0\n"
            "save/control_dependency Identity(save/ShardedFilename, ^save/SaveV2) @/device:CPU:0\n"
            "save/MergeV2Checkpoints/checkpoint_prefixes Pack(save/ShardedFilename, "
            "^save/control_dependency) @/device:CPU:0\n"
            "save/MergeV2Checkpoints MergeV2Checkpoints(save/MergeV2Checkpoints/"
            "checkpoint_prefixes, save/Const) @/device:CPU:0\n"
            "save/Identity Identity(save/Const, ^save/MergeV2Checkpoints, "
            "^save/control_dependency) @/device:CPU:0\n"
            "save/RestoreV2 RestoreV2(save/Const, save/RestoreV2/tensor_names, "
            "save/RestoreV2/shape_and_slices) @/device:CPU:0\n"
            "save/AssignVariableOp AssignVariableOp(global_step, save/RestoreV2)\n"
            "save/AssignVariableOp_1 AssignVariableOp(w, save/RestoreV2:1)\n"
            "save/restore_shard NoOp(^save/AssignVariableOp, ^save/AssignVariableOp_1) "
            "@/device:CPU:0\n"
            "save/restore_all NoOp(^save/restore_shard) @/device:CPU:0\n");
  EXPECT_EQ(saver->def().filename_tensor_name(), "save/Const:0");
  EXPECT_EQ(saver->def().save_tensor_name(), "save/Identity:0");
  EXPECT_EQ(saver->def().restore_op_name(), "save/restore_all");
  EXPECT_EQ(saver->def().max_to_keep(), 5);
  EXPECT_TRUE(saver->def().sharded());
  EXPECT_EQ(saver->def().version(), tensorflow::SaverDef::V2);
}

TEST_F(SaverTest, PlainGraphHasTensorFlowsNodes) {
  Scope root;
  const Output ref = VariableV2(root.WithName("v"), {2}, DT_FLOAT);
  Variable v;
  v.name = "v";
  v.handle = ref;
  v.value = ref;
  v.dtype = DT_FLOAT;
  const Scope elsewhere = root.WithSubScope("tower").WithDevice("/job:worker");
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(elsewhere, {.variables = {v}, .sharded = false}));
  EXPECT_EQ(NodesUnder(root, "save/"),
            "save/filename PlaceholderWithDefault(save/filename/input)\n"
            "save/Const PlaceholderWithDefault(save/filename)\n"
            "save/SaveV2 SaveV2(save/Const, save/SaveV2/tensor_names, "
            "save/SaveV2/shape_and_slices, v) @/device:CPU:0\n"
            "save/control_dependency Identity(save/Const, ^save/SaveV2) @/device:CPU:0\n"
            "save/RestoreV2 RestoreV2(save/Const, save/RestoreV2/tensor_names, "
            "save/RestoreV2/shape_and_slices) @/device:CPU:0\n"
            "save/Assign Assign(v, save/RestoreV2)\n"
            "save/restore_all NoOp(^save/Assign) @/device:CPU:0\n");
  EXPECT_EQ(saver->def().save_tensor_name(), "save/control_dependency:0");
}

TEST_F(SaverTest, EachTaskWritesItsOwnShard) {
  Scope root;
  const auto variable = [&](const char* name, const char* device) {
    const Scope s = root.WithDevice(device);
    return MakeVariable(s.WithName(name), Const(s, 1.0f));
  };
  variable("b", "/job:ps/task:1");
  variable("a", "/job:ps/task:0/device:CPU:1");
  variable("c", "/job:ps/task:0");
  ASSERT_OK(Saver::Make(root).status());
  std::map<std::string, std::string> device;
  std::map<std::string, std::vector<std::string>> inputs;
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, root.ToGraphDef());
  for (const auto& node : def.node()) {
    device[node.name()] = node.device();
    inputs[node.name()] = {node.input().begin(), node.input().end()};
  }
  const std::string ps0 = "/job:ps/task:0/device:CPU:0", ps1 = "/job:ps/task:1/device:CPU:0";
  EXPECT_EQ(device["save/SaveV2"], ps0);
  EXPECT_EQ(device["save/SaveV2_1"], ps1);
  EXPECT_EQ(device["save/RestoreV2_1"], ps1);
  EXPECT_EQ(device["save/MergeV2Checkpoints"], ps0);
  EXPECT_EQ(device["save/AssignVariableOp_2"], "/job:ps/task:1");
  EXPECT_EQ(inputs["save/SaveV2"].size(), 5u);  // a and c
  EXPECT_EQ(inputs["save/SaveV2_1"].size(), 4u);
  EXPECT_EQ(inputs["save/restore_all"],
            (std::vector<std::string>{"^save/restore_all/NoOp", "^save/restore_all/NoOp_1"}));
  EXPECT_EQ(device.count("save/SaveV2_2"), 0u);
}

TEST_F(SaverTest, WrongVariablesAreRefused) {
  Scope empty;
  EXPECT_STATUS(Saver::Make(empty).status(), absl::StatusCode::kInvalidArgument,
                "at least one variable");
  Model m;
  EXPECT_STATUS(Saver::Make(m.root, {.variables = {m.w, m.w}}).status(),
                absl::StatusCode::kInvalidArgument, "got 'w' twice");
  EXPECT_STATUS(Saver::Make(m.root, {.variables = {Variable()}}).status(),
                absl::StatusCode::kInvalidArgument, "must belong to the graph");
}

TEST_F(SaverTest, AnotherProcessRestoresWhatThisOneSaved) {
  {
    Model m(1);
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
    auto session = OpenSession(m.root);
    ASSERT_OK(session->Run({}, {}, {m.init}).status());
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         saver->Save(session.get(), Path("model.ckpt"), 10));
    EXPECT_EQ(path, Path("model.ckpt-10"));
    EXPECT_EQ(saver->last_checkpoints(), std::vector<std::string>{path});
  }
  EXPECT_EQ(Files(), (std::vector<std::string>{"checkpoint", "model.ckpt-10.data-00000-of-00001",
                                               "model.ckpt-10.index", "model.ckpt-10.meta"}));
  Model m(5);
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  auto session = OpenSession(m.root);
  ASSERT_TRUE(LatestCheckpoint(kFiles, directory_).has_value());
  ASSERT_OK(saver->Restore(session.get(), *LatestCheckpoint(kFiles, directory_)));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {m.w.value, m.step.value}));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {1, 2}));
  ExpectTensorEqual(out[1], Tensor::Scalar<int64_t>(10));
}

TEST_F(SaverTest, SeveralShardsAndReferenceVariablesComeBack) {
  Scope root;
  const Output ref = VariableV2(root.WithName("old"), {2}, DT_FLOAT);
  const Output assign = Assign(root, ref, Const<float>(root, {3, 4}));
  Variable old;
  old.name = "old";
  old.handle = ref;
  old.value = ref;
  old.dtype = DT_FLOAT;
  const Scope there = root.WithDevice("/job:localhost");
  const Variable w = MakeVariable(there.WithName("w"), Const<int64_t>(there, {1, 2}));
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root, {.variables = {old, w}}));
  auto session = OpenSession(root);
  ASSERT_OK(session->Run({}, {}, {w.initializer, assign.op()}).status());
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), std::nullopt));
  EXPECT_EQ(Files(), (std::vector<std::string>{"checkpoint", "m.data-00000-of-00002",
                                               "m.data-00001-of-00002", "m.index", "m.meta"}));
  ASSERT_OK_AND_ASSIGN(auto other, NewSession());
  ASSERT_OK(other->Extend(root));
  ASSERT_OK(saver->Restore(other.get(), path));
  ASSERT_OK_AND_ASSIGN(const auto out, other->Run({}, {ref, w.value}));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {3, 4}));
  ExpectTensorEqual(out[1], TensorOf<int64_t>({2}, {1, 2}));
}

PartitionedVariable MakeTable(const Scope& root, int parts, float scale) {
  const auto shape = Shape::Make({5, 2});
  return MakePartitionedVariable(root.WithName("table"), *shape, DT_FLOAT, parts,
                                 [scale, i = 0](ScopeAt at, const Shape& part, DType) mutable {
                                   auto value = Tensor::Zeros(DT_FLOAT, part);
                                   ++i;
                                   for (float& x : value->mutable_flat<float>())
                                     x = scale * static_cast<float>(i);
                                   return Const(at, *value);
                                 });
}

TEST_F(SaverTest, PartitionedVariableIsOneTensorThatOtherPartitionsRestore) {
  std::string path;
  {
    Scope root;
    MakeTable(root, 2, 1);
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
    auto session = OpenSession(root);
    ASSERT_OK(session->Run({}, {}, {init}).status());
    ASSERT_OK_AND_ASSIGN(path, saver->Save(session.get(), Path("m"), 1));
  }
  ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(kFiles, path));
  ASSERT_EQ(reader->entries().size(), 1u);
  EXPECT_EQ(reader->entries()[0].name, "table");
  EXPECT_EQ(reader->entries()[0].slices.size(), 2u);
  ASSERT_OK_AND_ASSIGN(const Tensor whole, reader->Read("table"));
  ExpectTensorEqual(whole, TensorOf<float>({5, 2}, {1, 1, 1, 1, 1, 1, 2, 2, 2, 2}));

  Scope root;
  const PartitionedVariable table = MakeTable(root, 3, 0);
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
  auto session = OpenSession(root);
  ASSERT_OK(saver->Restore(session.get(), path));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {table.parts[0].value, table.parts[1].value,
                                                         table.parts[2].value}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 2}, {1, 1, 1, 1}));
  ExpectTensorEqual(out[1], TensorOf<float>({2, 2}, {1, 1, 2, 2}));
  ExpectTensorEqual(out[2], TensorOf<float>({1, 2}, {2, 2}));
}

// Each model begins with the checkpoint of the one before it, in other parts.
TEST_F(SaverTest, PartsAlongAnyAxisRestoreThoseAlongAnyOther) {
  const Shape shape{5, 4};
  Tensor want = *Tensor::Allocate(DT_FLOAT, shape);
  float next = 0.1f;
  for (float& x : want.mutable_flat<float>()) x = next *= -1.7f;
  std::string path;
  int step = 0;
  for (const std::vector<int64_t>& partitions : std::vector<std::vector<int64_t>>{
           {2, 1}, {3, 1}, {1, 1}, {1, 3}, {1, 4}, {5, 1}, {1, 2}, {2, 1}}) {
    SCOPED_TRACE(absl::StrCat(partitions[0], " x ", partitions[1]));
    Scope root;
    const PartitionedVariable table = MakePartitionedVariable(
        root.WithName("table"), shape, DT_FLOAT, partitions,
        [&](ScopeAt at, const InitialShape& part, DType) {
          return Slice(at, Const(at, want), ConstVector<int64_t>(at, part.var_offset),
                       ConstVector<int64_t>(at, part.shape.dims()));
        });
    std::vector<FetchName> values;
    for (const Variable& part : table.parts) values.emplace_back(part.value);
    const Output whole = WholeValue(root, table);
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
    auto session = OpenSession(root);
    if (path.empty()) {
      ASSERT_OK(session->Run({}, {}, {GlobalVariablesInitializer(root)}).status());
    } else {
      ASSERT_OK(saver->Restore(session.get(), path));
    }
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {whole}));
    ExpectTensorEqual(out[0], want);
    ASSERT_OK_AND_ASSIGN(path, saver->Save(session.get(), Path("m"), ++step));

    // One tensor in the file, in as many slices as there are parts; a single part is no slice.
    ASSERT_OK_AND_ASSIGN(auto reader, BundleReader::Open(kFiles, path));
    ASSERT_EQ(reader->entries().size(), 1u);
    EXPECT_EQ(reader->entries()[0].name, "table");
    const size_t parts = table.parts.size();
    EXPECT_EQ(reader->entries()[0].slices.size(), parts == 1 ? 0 : parts);
    if (partitions[1] == 2) {
      EXPECT_EQ(reader->entries()[0].slices[0].ToString(), "0,5:0,2");
      EXPECT_EQ(reader->entries()[0].slices[1].ToString(), "0,5:2,2");
    }
    ASSERT_OK_AND_ASSIGN(const Tensor stored, reader->Read("table"));
    ExpectTensorEqual(stored, want);
  }
}

TEST_F(SaverTest, RestoreSaysWhatIsMissing) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  auto session = OpenSession(m.root);
  EXPECT_STATUS(saver->Restore(session.get(), Path("none")), absl::StatusCode::kNotFound,
                "must exist, got no file");
  WriteCheckpoint("other-1");
  EXPECT_STATUS(saver->Restore(session.get(), Path("other-1")), absl::StatusCode::kNotFound,
                "Key global_step not found in checkpoint");
  ASSERT_OK(session->Run({}, {}, {m.init}).status());
  ASSERT_OK(saver->Save(session.get(), Path("m"), 1).status());
  ASSERT_OK(saver->Save(session.get(), Path("m"), 2).status());
  std::string data = Bytes(BundleDataPath(Path("m-2"), 0, 1));
  data[0] = static_cast<char>(data[0] ^ 1);
  Write(BundleDataPath(Path("m-2"), 0, 1), data);
  EXPECT_STATUS(saver->Restore(session.get(), Path("m-2")), absl::StatusCode::kDataLoss,
                "fails its checksum");
  EXPECT_STATUS(saver->Restore(session.get(), Path("m-2")), absl::StatusCode::kDataLoss,
                "the newest other checkpoint is '" + Path("m-1") + "'");
  ASSERT_OK(saver->Restore(session.get(), Path("m-1")));
  // A file that is gone is not a variable that the checkpoint lacks.
  ASSERT_OK(kFiles->DeleteFile(BundleDataPath(Path("m-1"), 0, 1)));
  const Status gone = saver->Restore(session.get(), Path("m-1"));
  EXPECT_STATUS(gone, absl::StatusCode::kNotFound, BundleDataPath(Path("m-1"), 0, 1));
  EXPECT_FALSE(absl::StrContains(gone.message(), "lacks a variable")) << gone;
}

// The Saver's nodes are taken up as those that a Run names.
TEST_F(SaverTest, ASaverMayBeMadeAfterTheSessionWasExtended) {
  Model m;
  auto session = OpenSession(m.root);
  ASSERT_OK(session->Run({}, {}, {m.init}).status());
  for (const bool sharded : {true, false}) {
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.sharded = sharded}));
    ASSERT_OK(saver->Save(session.get(), Path("late"), sharded ? 1 : 0).status());
    // And the first thing that the session does with it may be a restore.
    ASSERT_OK_AND_ASSIGN(auto other, Saver::Make(m.root, {.write_meta_graph = false}));
    ASSERT_OK(other->Restore(session.get(), Path(sharded ? "late-1" : "late-0")));
  }
  ASSERT_OK_AND_ASSIGN(auto deferred, Saver::Make(m.root, {.defer_build = true}));
  ASSERT_OK(deferred->Build());
  ASSERT_OK(deferred->Restore(session.get(), Path("late-1")));
}

// By their names the nodes are those of any graph that has them.
TEST_F(SaverTest, ASaverServesASessionOfAnotherScopeWithTheSameNodes) {
  Model m, other;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  auto session = OpenSession(other.root);
  ASSERT_OK(session->Run({}, {}, {other.init}).status());
  EXPECT_STATUS(saver->Save(session.get(), Path("m"), 1).status(),
                absl::StatusCode::kInvalidArgument, "got one of another Scope");
  ASSERT_OK_AND_ASSIGN(auto same, Saver::Make(other.root));
  ASSERT_OK(same->Save(session.get(), Path("m"), 1).status());
  ASSERT_OK(saver->Restore(session.get(), Path("m-1")));
}

TEST_F(SaverTest, ASessionThatKnowsNoGraphIsToldToBeExtended) {
  Model m;
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef before, m.root.ToGraphDef());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(before));
  ASSERT_OK(session->Run({}, {}, {"init"}).status());
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  const char* const late =
      "Saver: the session must have the nodes of the Saver, got one that was extended without "
      "them; extend it with the graph again";
  EXPECT_STATUS(saver->Save(session.get(), Path("m"), 1).status(), absl::StatusCode::kNotFound,
                late);
  WriteCheckpoint("m-1");
  EXPECT_STATUS(saver->Restore(session.get(), Path("m-1")), absl::StatusCode::kNotFound, late);
  EXPECT_STATUS(Saver::FromDef(saver->def())->Restore(session.get(), Path("m-1")),
                absl::StatusCode::kNotFound, late);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef after, m.root.ToGraphDef());
  ASSERT_OK(session->Extend(after));
  EXPECT_OK(saver->Save(session.get(), Path("m"), 2).status());
}

TEST_F(SaverTest, RestoreTakesACheckpointByItsFilesAndItsDirectory) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  auto session = OpenSession(m.root);
  ASSERT_OK(session->Run({}, {}, {m.init}).status());
  ASSERT_OK(saver->Save(session.get(), Path("m"), 1).status());
  for (const char* name : {"m-1.index", "m-1.meta", "m-1.data-00000-of-00001", "", "checkpoint"}) {
    auto fresh = OpenSession(m.root);
    ASSERT_OK(saver->Restore(fresh.get(), Path(name))) << name;
    ASSERT_OK_AND_ASSIGN(const auto out, fresh->Run({}, {m.step.value}));
    ExpectTensorEqual(out[0], Tensor::Scalar<int64_t>(10));
  }
  EXPECT_STATUS(saver->Restore(session.get(), Path("m-2.index")), absl::StatusCode::kNotFound,
                absl::StrCat("Saver: checkpoint '", Path("m-2"), "' must exist"));
  ASSERT_OK(kFiles->CreateDirectory(Path("empty")));
  EXPECT_STATUS(saver->Restore(session.get(), Path("empty")), absl::StatusCode::kNotFound,
                "a directory must have a whole checkpoint");
}

TEST_F(SaverTest, RestorePointsAtTheLineThatMadeAVariableThatDoesNotFit) {
  std::string path;
  {
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
    auto session = OpenSession(m.root);
    ASSERT_OK(session->Run({}, {}, {m.init}).status());
    ASSERT_OK_AND_ASSIGN(path, saver->Save(session.get(), Path("m"), 1));
  }
  struct Case {
    Tensor w;
    const char* text;
  };
  const Case cases[] = {
      {Tensor::Of({1.0f, 2.0f, 3.0f}), "must be float [3], as in the graph, got float [2]"},
      {Tensor::Scalar(1.0f), "must be float [], as in the graph, got float [2]"},
      {Tensor::Of({1.0, 2.0}), "must be double [2], as in the graph, got float [2]"},
      {Tensor::Scalar<int64_t>(7), "must be int64 [], as in the graph, got float [2]"},
  };
  for (const Case& c : cases) {
    Scope root;
    MakeVariable(root.WithName("w"), Const(root, c.w));
    const int line = __LINE__ - 1;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
    auto session = OpenSession(root);
    EXPECT_EQ(saver->Restore(session.get(), path),
              absl::InvalidArgumentError(absl::StrCat("Checkpoint '", path, "': variable 'w' ",
                                                      c.text, "; built at ", __FILE__, ":", line)));
  }
  // Several, parts of one variable, and one that is not there at all.
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  Scope root;
  MakeVariable(root.WithName("global_step"), Const<int32_t>(root, {1, 2}));
  MakeVariable(root.WithName("w"), Const<int32_t>(root, {1, 2}));
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
  EXPECT_STATUS(saver->Restore(OpenSession(root).get(), path), kInvalid,
                "variable 'global_step' must be int32 [2], as in the graph, got int64 [] (and 1 "
                "more that differ); built at ");
  Scope parts;
  const PartitionedVariable table = MakeTable(parts, 2, 1);
  ASSERT_OK_AND_ASSIGN(saver, Saver::Make(parts));
  EXPECT_STATUS(saver->Restore(OpenSession(parts).get(), path), absl::StatusCode::kNotFound,
                absl::StrCat("; variable 'table' is not in checkpoint '", path, "'; built at "));
  auto session = OpenSession(parts);
  ASSERT_OK(session->Run({}, {}, {GlobalVariablesInitializer(parts)}).status());
  ASSERT_OK_AND_ASSIGN(path, saver->Save(session.get(), Path("parts"), 1));
  Scope whole;
  MakeVariable(whole.WithName("table"), Const<float>(whole, {1, 2}));
  ASSERT_OK_AND_ASSIGN(saver, Saver::Make(whole));
  EXPECT_STATUS(saver->Restore(OpenSession(whole).get(), path), kInvalid,
                "variable 'table' must be float [2], as in the graph, got float [5,2]; built at ");
}

TEST_F(SaverTest, CompareListsWhatDiffersByItsNamesInTheCheckpoint) {
  std::string path;
  {
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
    auto session = OpenSession(m.root);
    ASSERT_OK(session->Run({}, {}, {m.init}).status());
    ASSERT_OK_AND_ASSIGN(path, saver->Save(session.get(), Path("m"), 1));
    ASSERT_OK_AND_ASSIGN(const CheckpointDifference same, saver->Compare(path));
    EXPECT_TRUE(same.fits());
    EXPECT_EQ(same.num_expected, 2);
    EXPECT_TRUE(same.unwanted.empty());
    EXPECT_STATUS(saver->Compare(Path("none")), absl::StatusCode::kNotFound, Path("none"));
    // One that does not know its graph finds nothing.
    ASSERT_OK_AND_ASSIGN(const CheckpointDifference unknown,
                         Saver::FromDef(saver->def())->Compare(Path("none")));
    EXPECT_TRUE(unknown.fits());
  }
  Scope other;
  MakeVariable(other.WithName("w"), Const(other, 1.0f));
  MakeVariable(other.WithName("b"), Const(other, 1.0f));
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(other));
  ASSERT_OK_AND_ASSIGN(const CheckpointDifference difference, saver->Compare(path));
  EXPECT_FALSE(difference.fits());
  EXPECT_EQ(difference.num_expected, 2);
  ASSERT_EQ(difference.missing.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(difference.missing[0], "'b'; built at ")) << difference.missing[0];
  ASSERT_EQ(difference.changed.size(), 1u);
  EXPECT_TRUE(
      absl::StartsWith(difference.changed[0], "'w' must be float [], got float [2]; built at "))
      << difference.changed[0];
  EXPECT_EQ(difference.unwanted, std::vector<std::string>{"global_step"});
}

TEST_F(SaverTest, DeletingACheckpointLeavesItsNeighbours) {
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(directory_));
  for (const char* name : {"m-1", "m-10", "m-1-copy", "m"}) {
    WriteCheckpoint(name);
    Write(Path(name) + ".meta", "graph");
  }
  ASSERT_OK(DeleteCheckpoint(kFiles, Path("m-1")));
  EXPECT_FALSE(CheckpointExists(kFiles, Path("m-1")));
  EXPECT_FALSE(kFiles->FileExists(Path("m-1.meta")));
  EXPECT_FALSE(kFiles->FileExists(BundleDataPath(Path("m-1"), 0, 1)));
  for (const char* name : {"m-10", "m-1-copy", "m"}) {
    EXPECT_TRUE(CheckpointExists(kFiles, Path(name))) << name;
    EXPECT_TRUE(kFiles->FileExists(Path(name) + ".meta")) << name;
  }
  EXPECT_OK(DeleteCheckpoint(kFiles, Path("m-1"))) << "there is none";
}

// --- Retention -----------------------------------------------------------------------------------

// Does what a session does for the nodes of a Saver with two shards, with files of the test's
// choice.
class FileSession : public Session {
 public:
  explicit FileSession(FileSystem* fs) : fs_(fs) {}
  Status DoExtend(const tensorflow::GraphDef&) override { return absl::OkStatus(); }
  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions&, absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName>,
                                      tensorflow::RunMetadata*) override {
    const std::string prefix = feeds[0].value.scalar<std::string>();
    if (fetches.empty()) return Restore(prefix);
    const std::string suffix = feeds.size() > 1 ? feeds[1].value.scalar<std::string>()
                                                : "_temp_0123456789abcdef0123456789abcdef/part";
    std::vector<std::string> parts;
    for (int i = 0; i < 2; ++i) {
      MR_ASSIGN_OR_RETURN(parts.emplace_back(), ShardedName(prefix + suffix, i, 2));
      const std::string names[] = {absl::StrCat("v", i)};
      const std::string specs[] = {""};
      const ValueToSave values[] = {Tensor::Scalar<int64_t>(value)};
      MR_RETURN_IF_ERROR(SaveTensors(fs_, parts.back(), names, specs, values));
    }
    MR_RETURN_IF_ERROR(MergeBundles(fs_, parts, prefix, /*delete_parts=*/true));
    return std::vector<Tensor>{feeds[0].value};
  }
  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature&) override {
    return absl::UnimplementedError("Prepare");
  }
  Status Close() override { return absl::OkStatus(); }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return std::vector<tensorflow::DeviceAttributes>();
  }

  int64_t value = 0;

 protected:
  void AddSourceLines(std::vector<std::pair<std::string, std::string>>) override {}

 private:
  StatusOr<std::vector<Tensor>> Restore(const std::string& prefix) {
    const std::string names[] = {"v0", "v1"};
    const std::string specs[] = {"", ""};
    const DType dtypes[] = {DT_INT64, DT_INT64};
    MR_ASSIGN_OR_RETURN(const auto tensors, RestoreTensors(fs_, prefix, names, specs, dtypes));
    if (tensors[0] != tensors[1]) return absl::InternalError("shards of two saves are mixed");
    value = tensors[0].scalar<int64_t>();
    return std::vector<Tensor>();
  }

  FileSystem* const fs_;
};

tensorflow::SaverDef TestDef(int max_to_keep, float hours = 10000) {
  tensorflow::SaverDef def;
  def.set_filename_tensor_name("save/Const:0");
  def.set_save_tensor_name("save/Identity:0");
  def.set_restore_op_name("save/restore_all");
  def.set_max_to_keep(max_to_keep);
  def.set_sharded(true);
  def.set_keep_checkpoint_every_n_hours(hours);
  def.set_version(tensorflow::SaverDef::V2);
  return def;
}

// The steps of the checkpoints in a directory.
std::set<std::string> Indexes(const std::string& directory) {
  std::set<std::string> found;
  const auto names = kFiles->GetChildren(directory);
  if (!names.ok()) return found;
  for (const std::string& name : *names) {
    if (name.size() > 6 && name.substr(name.size() - 6) == ".index") {
      found.insert(name.substr(0, name.size() - 6));
    }
  }
  return found;
}

TEST_F(SaverTest, OldCheckpointsGoAndTheStateFileIsTensorFlowsText) {
  auto saver = Saver::FromDef(TestDef(2));
  FileSession session(kFiles);
  for (int64_t step : {1, 2, 3, 4}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  EXPECT_EQ(Files(),
            (std::vector<std::string>{
                "checkpoint", "m-3.data-00000-of-00002", "m-3.data-00001-of-00002", "m-3.index",
                "m-4.data-00000-of-00002", "m-4.data-00001-of-00002", "m-4.index"}));
  const std::string text = Bytes(Path("checkpoint"));
  const size_t comment = text.find('#');
  EXPECT_EQ(text.substr(0, comment),
            "model_checkpoint_path: \"m-4\"\n"
            "all_model_checkpoint_paths: \"m-3\"\n"
            "all_model_checkpoint_paths: \"m-4\"\n");
  EXPECT_EQ(text.substr(comment, 10), "# crc32c: ");
  const auto state = ReadCheckpointState(kFiles, directory_);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->latest, Path("m-4"));
  EXPECT_EQ(state->all, (std::vector<std::string>{Path("m-3"), Path("m-4")}));
  // The meta graph of a checkpoint goes with it; a save of the same step stays one checkpoint.
  Write(Path("m-3.meta"), "x");
  Write(Path("m-30.meta"), "y");
  ASSERT_OK(saver->Save(&session, Path("m"), 4).status());
  EXPECT_EQ(Indexes(directory_), (std::set<std::string>{"m-3", "m-4"}));
  ASSERT_OK(saver->Save(&session, Path("m"), 5).status());
  EXPECT_EQ(Indexes(directory_), (std::set<std::string>{"m-4", "m-5"}));
  EXPECT_FALSE(kFiles->FileExists(Path("m-3.meta")));
  EXPECT_TRUE(kFiles->FileExists(Path("m-30.meta")));
}

TEST_F(SaverTest, WhoMayNotCommitLeavesTheStateFileAndOldCheckpoints) {
  for (const int commits : {0, 1}) {
    SCOPED_TRACE(commits);
    kFiles->RecursivelyDelete(directory_).IgnoreError();
    int allowed = 2;
    const auto may_commit = [&allowed]() -> Status {
      return --allowed >= 0 ? absl::OkStatus() : absl::AbortedError("taken over");
    };
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver,
                         Saver::Make(m.root, {.max_to_keep = 1, .may_commit = may_commit}));
    FileSession session(kFiles);
    ASSERT_OK(saver->Save(&session, Path("m"), 1).status());
    const std::string state = Bytes(Path("checkpoint"));
    allowed = commits;
    EXPECT_EQ(saver->Save(&session, Path("m"), 2).status(), absl::AbortedError("taken over"));
    EXPECT_EQ(Bytes(Path("checkpoint")) == state, commits == 0);
    EXPECT_EQ(Indexes(directory_), (std::set<std::string>{"m-1", "m-2"}));
    // It has it back.
    allowed = 2;
    ASSERT_OK(saver->Save(&session, Path("m"), 3).status());
    EXPECT_EQ(Indexes(directory_), std::set<std::string>{"m-3"});
  }
}

// Who is deposed while the state file is written and synced is still refused.
TEST_F(SaverTest, CommitsAreAskedForWhenOnlyTheNameOfTheStateFileIsMissing) {
  std::vector<std::string> seen;
  const auto may_commit = [&]() -> Status {
    const auto names = kFiles->GetChildren(directory_);
    EXPECT_OK(names.status());
    for (const std::string& name : *names) {
      if (absl::StartsWith(name, "checkpoint")) seen.push_back(name);
    }
    return absl::AbortedError("taken over");
  };
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.may_commit = may_commit}));
  FileSession session(kFiles);
  EXPECT_EQ(saver->Save(&session, Path("m"), 1).status(), absl::AbortedError("taken over"));
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(seen[0], "checkpoint.tmp")) << seen[0];
  EXPECT_FALSE(kFiles->FileExists(Path("checkpoint")));
  EXPECT_FALSE(kFiles->FileExists(Path(seen[0])));
}

TEST_F(SaverTest, WithoutALimitNothingIsTrackedOrDeleted) {
  auto saver = Saver::FromDef(TestDef(0));
  FileSession session(kFiles);
  for (int64_t step : {1, 2, 3}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  EXPECT_EQ(Indexes(directory_), (std::set<std::string>{"m-1", "m-2", "m-3"}));
  EXPECT_TRUE(saver->last_checkpoints().empty());
  const auto state = ReadCheckpointState(kFiles, directory_);
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->all, std::vector<std::string>{Path("m-3")});
}

TEST_F(SaverTest, OneCheckpointOfEverySoManyHoursStays) {
  FakeClock clock;
  Model m;
  ASSERT_OK_AND_ASSIGN(
      auto saver,
      Saver::Make(m.root, {.max_to_keep = 1, .keep_checkpoint_every_n_hours = 2, .clock = &clock}));
  FileSession session(kFiles);
  for (int64_t hour = 1; hour <= 6; ++hour) {
    clock.Advance(absl::Hours(1));
    ASSERT_OK(saver->Save(&session, Path("m"), hour).status());
  }
  // Kept: the first one written after 2 hours, then after 4; and the newest.
  EXPECT_EQ(Indexes(directory_), (std::set<std::string>{"m-3", "m-5", "m-6"}));
}

TEST_F(SaverTest, RestartedSaverDeletesWhatTheFormerOneWroteAndLeft) {
  FileSession session(kFiles);
  {
    auto saver = Saver::FromDef(TestDef(3));
    for (int64_t step : {1, 2, 3}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  }
  Write(Path("m-4_temp_00000000000000000000000000000000/part-00000-of-00001.index"), "x");
  Write(Path("mine_temp_00000000000000000000000000000000/notes.txt"), "x");
  Write(Path("m-4.index.tempstate0123456789abcdef"), "x");
  const auto state = ReadCheckpointState(kFiles, directory_);
  ASSERT_TRUE(state.has_value());
  auto saver = Saver::FromDef(TestDef(2));
  std::vector<std::string> paths = state->all;
  paths.push_back(Path("gone-9"));
  ASSERT_OK(saver->RecoverLastCheckpoints(paths));
  EXPECT_EQ(saver->last_checkpoints(), state->all);
  EXPECT_FALSE(kFiles->FileExists(Path("m-4_temp_00000000000000000000000000000000")));
  EXPECT_FALSE(kFiles->FileExists(Path("m-4.index.tempstate0123456789abcdef")));
  EXPECT_TRUE(kFiles->FileExists(Path("mine_temp_00000000000000000000000000000000/notes.txt")));
  ASSERT_OK(saver->Save(&session, Path("m"), 5).status());
  EXPECT_EQ(Indexes(directory_), (std::set<std::string>{"m-3", "m-5"}));
}

// --- Meta graphs ---------------------------------------------------------------------------------

TEST_F(SaverTest, EachCheckpointHasItsMetaGraphAndTakesItAlong) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.max_to_keep = 2}));
  auto session = OpenSession(m.root);
  ASSERT_OK(session->Run({}, {}, {m.init}).status());
  for (int64_t step : {1, 2}) ASSERT_OK(saver->Save(session.get(), Path("m"), step).status());
  // The graph as it is at the save, as TensorFlow does it.
  Const(m.root.WithName("added_later"), 1.0f);
  ASSERT_OK(saver->Save(session.get(), Path("m"), 3).status());
  EXPECT_EQ(Files(), (std::vector<std::string>{"checkpoint", "m-2.data-00000-of-00001", "m-2.index",
                                               "m-2.meta", "m-3.data-00000-of-00001", "m-3.index",
                                               "m-3.meta"}));
  const auto has_node = [](const tensorflow::MetaGraphDef& meta, const std::string& name) {
    for (const auto& node : meta.graph_def().node()) {
      if (node.name() == name) return true;
    }
    return false;
  };
  ASSERT_OK_AND_ASSIGN(const auto before, ReadMetaGraph(kFiles, Path("m-2.meta")));
  ASSERT_OK_AND_ASSIGN(const auto after, ReadMetaGraph(kFiles, Path("m-3.meta")));
  EXPECT_FALSE(has_node(before, "added_later"));
  EXPECT_TRUE(has_node(after, "added_later"));
  EXPECT_EQ(after.saver_def().SerializeAsString(), saver->def().SerializeAsString());
  EXPECT_EQ(after.collection_def().at("variables").bytes_list().value_size(), 2);

  // Another program goes on with it, without the code that built the graph.
  ASSERT_OK_AND_ASSIGN(const Scope imported, ImportMetaGraph(after));
  auto other = OpenSession(imported);
  ASSERT_OK(Saver::FromDef(after.saver_def())->Restore(other.get(), Path("m-3")));
  ASSERT_OK_AND_ASSIGN(const auto out, other->Run({}, {"w/Read/ReadVariableOp"}));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {1, 2}));
}

TEST_F(SaverTest, MetaGraphsAreNotWrittenWhenNobodyWantsThem) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.write_meta_graph = false}));
  FileSession session(kFiles);
  ASSERT_OK(saver->Save(&session, Path("m"), 1).status());
  EXPECT_FALSE(kFiles->FileExists(Path("m-1.meta")));
}

TEST_F(SaverTest, AnErrorOfTheGraphIsReportedBeforeAnythingIsWritten) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  m.root.UpdateStatus(absl::InvalidArgumentError("a bad node"), std::source_location::current());
  FileSession session(kFiles);
  EXPECT_STATUS(saver->Save(&session, Path("m"), 1).status(), absl::StatusCode::kInvalidArgument,
                "a bad node; built at ");
  EXPECT_TRUE(Files().empty());
}

// --- Leftovers -----------------------------------------------------------------------------------

TEST_F(SaverTest, WhatAnInterruptedSaveLeftGoesAtTheSecondSave) {
  FileSession session(kFiles);
  {
    auto saver = Saver::FromDef(TestDef(2));
    for (int64_t step : {1, 2}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  }
  const std::string hex16 = "0123456789abcdef", hex32 = hex16 + hex16;
  const std::vector<std::string> left = {
      // Between the renames of the data files and of the index; between the deletions.
      "m-3.data-00000-of-00002",
      "m-0.data-00001-of-00002",
      "m-0.meta",
      // Never finished.
      "m-3.index.tempstate" + hex16,
      "m-3.data-00000-of-00001.tempstate" + hex16,
      "m-3.meta.tmp" + hex16,
      "checkpoint.tmp" + hex16,
      "m-3.lock",
      "m-3_temp_" + hex32 + "/part-00000-of-00001.data-00000-of-00001",
  };
  const std::vector<std::string> others = {
      "m-7",  // a checkpoint of the first format, with its meta graph
      "m-7.meta",
      "m-8-00000-of-00002",
      "m-8.meta",
      "m-9.meta",  // a graph that somebody exported
      "m-3.data-notes.txt",
      "m-3.metadata",
      "m-x.meta",
      "m-3x.meta",
      "m.meta",
      "m2-3.data-00000-of-00002",
      "other-3.data-00000-of-00002",
      "m-3.meta.tmp0123",
      "m-3_temp_" + hex32.substr(1) + "/part-0",
      "m-4_temp_" + hex32 + "/notes.txt",
      "checkpoint.tmp.old",
  };
  for (const std::string& name : left) Write(Path(name), "left");
  for (const std::string& name : others) Write(Path(name), "not ours");
  // Somebody is still at these.
  Write(Path("m-4.data-00000-of-00001"), "grow");
  ASSERT_OK_AND_ASSIGN(const auto lock, kFiles->TryLockFile(Path("m-4.lock"), "somebody"));
  // And this one becomes a checkpoint.
  const std::string index = Bytes(BundleIndexPath(Path("m-2")));
  Write(Path("m-5.data-00000-of-00002"), "x");

  auto saver = Saver::FromDef(TestDef(5));
  ASSERT_OK(saver->Save(&session, Path("m"), 10).status());
  for (const std::string& name : left) EXPECT_TRUE(kFiles->FileExists(Path(name))) << name;
  Write(Path("m-4.data-00000-of-00001"), "growing");
  Write(Path("m-5.index"), index);
  Write(Path("m-6.data-00000-of-00001"), "after the first save");
  ASSERT_OK(saver->Save(&session, Path("m"), 11).status());
  for (const std::string& name : left) {
    const size_t slash = name.find('/');
    EXPECT_FALSE(kFiles->FileExists(Path(name.substr(0, slash)))) << name;
  }
  for (const std::string& name : others) EXPECT_TRUE(kFiles->FileExists(Path(name))) << name;
  for (const char* name : {"m-4.data-00000-of-00001", "m-4.lock", "m-5.data-00000-of-00002",
                           "m-6.data-00000-of-00001"}) {
    EXPECT_TRUE(kFiles->FileExists(Path(name))) << name;
  }
  for (const char* name : {"m-1", "m-2", "m-10", "m-11"}) {
    EXPECT_TRUE(CheckpointExists(kFiles, Path(name))) << name;
  }
}

// The parts of each save are in a directory of their own, which the run's next Saver knows.
TEST_F(SaverTest, WhatOwnSavesLeftGoesWithoutALimitTooAndNothingElse) {
  const std::string run = "0123456789abcdef0123456789abcdef", other = std::string(32, 'e');
  const std::string hex16 = "fedcba9876543210";
  const std::string own = "_temp_" + run.substr(0, 16) + hex16;
  const std::string foreign = "_temp_" + other;
  const std::vector<std::string> left = {
      "m-3" + own + "/part-00000-of-00001.index",
      "m-3.data-00000-of-00001",  // of the save that made the directory above
      "m-3.index.tempstate" + hex16,
      "m-3.meta",
      "m-4.meta.tmp" + hex16,
  };
  const std::vector<std::string> others = {
      "m-5" + foreign + "/part-00000-of-00001.index",
      "m-5.data-00000-of-00001",
      "m-6.data-00000-of-00001",
      "m-6.meta",
      "m2-3" + own + "/part-00000-of-00001.index",
      "m2-3.data-00000-of-00001",
      "m-7" + own + "/notes.txt",
  };
  for (const int max_to_keep : {0, 5}) {
    SCOPED_TRACE(max_to_keep);
    for (const std::string& name : left) Write(Path(name), "left");
    for (const std::string& name : others) Write(Path(name), "not ours");
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.max_to_keep = max_to_keep}));
    saver->SetRunId(run);
    FileSession session(kFiles);
    ASSERT_OK(saver->Save(&session, Path("m"), 10).status());
    ASSERT_OK(saver->Save(&session, Path("m"), 11).status());
    for (const std::string& name : left) {
      EXPECT_FALSE(kFiles->FileExists(Path(name.substr(0, name.find('/'))))) << name;
    }
    for (const std::string& name : others) {
      // Of a prefix that has one writer, where that one deletes.
      const bool deleted =
          max_to_keep > 0 && (absl::StartsWith(name, "m-5.data") || absl::StartsWith(name, "m-6."));
      EXPECT_EQ(kFiles->FileExists(Path(name)), !deleted) << name;
    }
  }
}

TEST_F(SaverTest, ARestartedSaverLeavesTheUnfinishedSavesOfOtherNamesAlone) {
  FileSession session(kFiles);
  ASSERT_OK(Saver::FromDef(TestDef(3))->Save(&session, Path("m"), 1).status());
  const std::string hex32 = "0123456789abcdef0123456789abcdef";
  const std::string part = "best-4_temp_" + hex32 + "/part-00000-of-00001.index";
  Write(Path(part), "x");
  Write(Path("best-4.index.tempstate0123456789abcdef"), "x");
  const auto saver = Saver::FromDef(TestDef(3));
  ASSERT_OK(saver->RecoverLastCheckpoints({Path("m-1")}));
  EXPECT_TRUE(kFiles->FileExists(Path(part)));
  EXPECT_TRUE(kFiles->FileExists(Path("best-4.index.tempstate0123456789abcdef")));
}

TEST_F(SaverTest, WithoutALimitLeftoversStay) {
  Write(Path("m-3.data-00000-of-00002"), "left");
  FileSession session(kFiles);
  auto saver = Saver::FromDef(TestDef(0));
  for (int64_t step : {10, 11, 12}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  EXPECT_TRUE(kFiles->FileExists(Path("m-3.data-00000-of-00002")));
}

TEST_F(SaverTest, ACheckpointOfTheFirstFormatGoesAsAWhole) {
  for (const char* name : {"m-1", "m-2-00000-of-00002", "m-2-00001-of-00002"}) {
    WriteCheckpoint("table");
    Write(Path(name), Bytes(BundleIndexPath(Path("table"))));
  }
  Write(Path("m-1.meta"), "x");
  Write(Path("m-2.meta"), "x");
  Write(Path("m-1-notes"), "x");
  Write(Path("m-2-000"), "x");
  auto saver = Saver::FromDef(TestDef(2));
  ASSERT_OK(saver->RecoverLastCheckpoints({Path("m-1"), Path("m-2")}));
  ASSERT_EQ(saver->last_checkpoints().size(), 2u);
  FileSession session(kFiles);
  for (int64_t step : {3, 4}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  for (const char* name :
       {"m-1", "m-2-00000-of-00002", "m-2-00001-of-00002", "m-1.meta", "m-2.meta"}) {
    EXPECT_FALSE(kFiles->FileExists(Path(name))) << name;
  }
  EXPECT_TRUE(kFiles->FileExists(Path("m-1-notes")));
  EXPECT_TRUE(kFiles->FileExists(Path("m-2-000")));
}

TEST_F(SaverTest, OnlyFilesOfTheFormatAreDeletedWithACheckpoint) {
  FileSession session(kFiles);
  auto saver = Saver::FromDef(TestDef(1));
  ASSERT_OK(saver->Save(&session, Path("m"), 1).status());
  Write(Path("m-1.data-notes.txt"), "x");
  ASSERT_OK(saver->Save(&session, Path("m"), 2).status());
  EXPECT_EQ(Indexes(directory_), std::set<std::string>{"m-2"});
  EXPECT_TRUE(kFiles->FileExists(Path("m-1.data-notes.txt")));
}

TEST_F(SaverTest, CheckpointsOfOtherDirectoriesAreForgottenNotDeleted) {
  FileSession session(kFiles);
  const std::string other = JoinPath(directory_, "other");
  auto saver = Saver::FromDef(TestDef(1));
  ASSERT_OK(saver->Save(&session, JoinPath(other, "m"), 1).status());
  ASSERT_OK(saver->Save(&session, Path("m"), 2).status());
  EXPECT_TRUE(CheckpointExists(kFiles, JoinPath(other, "m-1")));
}

TEST_F(SaverTest, DirectoryMayBeWrittenInSeveralWays) {
  FileSession session(kFiles);
  auto saver = Saver::FromDef(TestDef(1));
  ASSERT_OK(saver->Save(&session, Path("m"), 1).status());
  ASSERT_OK(saver->Save(&session, directory_ + "//m", 2).status());
  EXPECT_EQ(Indexes(directory_), std::set<std::string>{"m-2"});
  EXPECT_EQ(LatestCheckpoint(kFiles, directory_ + "//"), Path("m-2"));
}

TEST_F(SaverTest, PrefixOfTheStateFileIsRefused) {
  auto saver = Saver::FromDef(TestDef(1));
  FileSession session(kFiles);
  for (const std::string& prefix : {Path("checkpoint"), directory_ + "/"}) {
    EXPECT_STATUS(saver->Save(&session, prefix, std::nullopt).status(),
                  absl::StatusCode::kInvalidArgument, "must name a file other than");
  }
}

// --- State file ----------------------------------------------------------------------------------

TEST_F(SaverTest, DirectoryCanBeMoved) {
  FileSession session(kFiles);
  auto saver = Saver::FromDef(TestDef(2));
  session.value = 7;
  ASSERT_OK(saver->Save(&session, Path("m"), 1).status());
  const std::string moved = directory_ + "_moved";
  ASSERT_OK(kFiles->RenameFile(directory_, moved));
  EXPECT_EQ(LatestCheckpoint(kFiles, moved), JoinPath(moved, "m-1"));
  ASSERT_OK(saver->Restore(&session, JoinPath(moved, "m-1")));
  ASSERT_OK(kFiles->RecursivelyDelete(moved));
}

// As TensorFlow writes them by default. A copy is whole without what it was copied from.
TEST_F(SaverTest, AbsolutePathsAreFollowedUnlessTheDirectoryHasTheCheckpointItself) {
  WriteCheckpoint("from/m-7");
  WriteCheckpoint("from/m-8");
  ASSERT_OK(kFiles->CreateDirectory(Path("to")));
  const std::string state = absl::StrCat(
      "model_checkpoint_path: \"", Path("from/m-8"), "\"\nall_model_checkpoint_paths: \"",
      Path("from/m-7"), "\"\nall_model_checkpoint_paths: \"", Path("from/m-8"), "\"\n");
  Write(Path("to/checkpoint"), state);
  EXPECT_EQ(LatestCheckpoint(kFiles, Path("to")), Path("from/m-8"));
  WriteCheckpoint("to/m-7");
  EXPECT_EQ(LatestCheckpoint(kFiles, Path("to")), Path("from/m-8"));
  WriteCheckpoint("to/m-8");
  EXPECT_EQ(LatestCheckpoint(kFiles, Path("to")), Path("to/m-8"));
  ASSERT_OK(kFiles->RecursivelyDelete(Path("from")));
  EXPECT_EQ(LatestCheckpoint(kFiles, Path("to")), Path("to/m-8"));
  ASSERT_OK(DeleteCheckpoint(kFiles, Path("to/m-8")));
  EXPECT_EQ(LatestCheckpoint(kFiles, Path("to")), Path("to/m-7"));
}

TEST_F(SaverTest, WrongStateFilesFallBackToWhatIsThere) {
  WriteCheckpoint("m-9");
  WriteCheckpoint("m-10");
  // m-11 lacks its data, m-12 is cut off, m-13 has a damaged index.
  WriteCheckpoint("m-11");
  ASSERT_OK(kFiles->DeleteFile(BundleDataPath(Path("m-11"), 0, 1)));
  WriteCheckpoint("m-12");
  Write(BundleDataPath(Path("m-12"), 0, 1), "abc");
  WriteCheckpoint("m-13");
  Write(BundleIndexPath(Path("m-13")), "abc");
  WriteCheckpoint("sub/m-20");

  const struct {
    const char* what;
    std::string text;
    const char* latest;
  } cases[] = {
      {"named and whole", "model_checkpoint_path: \"m-9\"\n", "m-9"},
      {"TensorFlow's absolute path", "model_checkpoint_path: \"" + Path("m-9") + "\"", "m-9"},
      {"TensorFlow's time stamps",
       "model_checkpoint_path: \"m-9\"\nall_model_checkpoint_paths: \"m-9\"\n"
       "all_model_checkpoint_timestamps: 1.5\nlast_preserved_timestamp: 1.5\n",
       "m-9"},
      {"absolute path of another place", "model_checkpoint_path: \"/nowhere/m-9\"\n", "m-9"},
      {"relative to the directory", "model_checkpoint_path: \"sub/m-20\"\n", "sub/m-20"},
      {"relative, and nothing there", "model_checkpoint_path: \"sub/m-21\"\n", "m-10"},
      {"relative, and in the directory", "model_checkpoint_path: \"sub/m-9\"\n", "m-9"},
      {"out of the directory and back", "model_checkpoint_path: \"../../../m-20\"\n", "m-10"},
      {"missing", "model_checkpoint_path: \"m-99\"\nall_model_checkpoint_paths: \"m-9\"\n", "m-9"},
      {"missing data", "model_checkpoint_path: \"m-11\"\n", "m-10"},
      {"cut data",
       "model_checkpoint_path: \"m-12\"\nall_model_checkpoint_paths: \"m-9\"\n"
       "all_model_checkpoint_paths: \"m-12\"\n",
       "m-9"},
      {"damaged index", "model_checkpoint_path: \"m-13\"\n", "m-10"},
      {"half-written", "model_checkpoint_path: \"m-9", "m-10"},
      {"empty", "", "m-10"},
      {"empty path", "model_checkpoint_path: \"\"\n", "m-10"},
      {"no text", std::string("\x00\xff\x7f", 3), "m-10"},
      {"wrong checksum", "model_checkpoint_path: \"m-9\"\n# crc32c: 00000000\n", "m-10"},
  };
  for (const auto& c : cases) {
    Write(Path("checkpoint"), c.text);
    EXPECT_EQ(LatestCheckpoint(kFiles, directory_), Path(c.latest)) << c.what;
    EXPECT_EQ(LatestCheckpoint(kFiles, directory_ + "/"), Path(c.latest)) << c.what;
  }
  ASSERT_OK(kFiles->DeleteFile(Path("checkpoint")));
  EXPECT_EQ(LatestCheckpoint(kFiles, directory_), Path("m-10"));
  EXPECT_EQ(LatestCheckpoint(kFiles, Path("nothing")), std::nullopt);
  EXPECT_FALSE(CheckpointExists(kFiles, Path("m-11")));
  EXPECT_FALSE(CheckpointExists(kFiles, Path("")));
  EXPECT_FALSE(CheckpointExists(kFiles, directory_));
}

// Evaluators ask each second.
TEST_F(SaverTest, WhatIsWrongWithADirectoryIsToldOnce) {
  FileSession session(kFiles);
  ASSERT_OK(Saver::FromDef(TestDef(2))->Save(&session, Path("m"), 1).status());
  Write(Path("checkpoint"), "model_checkpoint_path: \"m-1");
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(LatestCheckpoint(kFiles, directory_), Path("m-1"));
  const std::string log = ::testing::internal::GetCapturedStderr();
  for (const char* const text : {"is passed over", "has no state file that names"}) {
    const size_t at = log.find(text);
    EXPECT_NE(at, std::string::npos) << log;
    EXPECT_EQ(log.find(text, at + 1), std::string::npos) << log;
  }
}

TEST_F(SaverTest, EveryFlippedBitAndCutOfTheStateFileIsDetectedOrHarmless) {
  FileSession session(kFiles);
  auto saver = Saver::FromDef(TestDef(2));
  for (int64_t step : {1, 2, 3}) ASSERT_OK(saver->Save(&session, Path("m"), step).status());
  const std::string good = Bytes(Path("checkpoint"));
  const auto check = [&](const std::string& bytes) {
    Write(Path("checkpoint"), bytes);
    const auto state = ReadCheckpointState(kFiles, directory_);
    if (state) {
      EXPECT_EQ(state->latest, Path("m-3")) << bytes;
    }
  };
  SetMinLogLevel(LogLevel::kError);
  for (size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      check(bad);
    }
    check(good.substr(0, i));
  }
  SetMinLogLevel(LogLevel::kInfo);
}

TEST_F(SaverTest, StateThatSomebodyWroteByHandHasNoChecksum) {
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(directory_));
  ASSERT_OK(WriteCheckpointState(kFiles, directory_, {Path("m-1"), {Path("m-1")}}));
  const auto ours = ReadCheckpointState(kFiles, directory_);
  ASSERT_TRUE(ours.has_value());
  EXPECT_TRUE(ours->has_checksum);
  Write(Path("checkpoint"), "model_checkpoint_path: \"m-1\"\n");
  const auto by_hand = ReadCheckpointState(kFiles, directory_);
  ASSERT_TRUE(by_hand.has_value());
  EXPECT_FALSE(by_hand->has_checksum);
}

TEST_F(SaverTest, StateOfAnotherDirectoryNeedsAbsolutePaths) {
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(directory_));
  ASSERT_OK(WriteCheckpointState(kFiles, directory_, {"/elsewhere/m-1", {"/elsewhere/m-1"}}));
  EXPECT_STATUS(WriteCheckpointState(kFiles, directory_, {"elsewhere/m-1", {}}),
                absl::StatusCode::kInvalidArgument, "or have absolute paths");
}

// --- Old or new, never between -------------------------------------------------------------------

// A Saver with one checkpoint and meta graphs.
std::unique_ptr<Saver> MetaSaver(const Model& model, FileSystem* fs) {
  auto saver = Saver::Make(model.root, {.max_to_keep = 1, .file_system = fs});
  EXPECT_OK(saver.status());
  return saver.ok() ? *std::move(saver) : nullptr;
}

// Files of checkpoints that have no index. Parts are the session's.
std::vector<std::string> Orphans(const std::string& directory) {
  std::vector<std::string> orphans;
  const auto names = kFiles->GetChildren(directory);
  EXPECT_OK(names.status());
  const std::set<std::string> indexes = Indexes(directory);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    const std::string base = name.substr(0, name.find('.'));
    if (name == "checkpoint" || absl::StrContains(name, "_temp_") || indexes.count(base) > 0) {
      continue;
    }
    orphans.push_back(name);
  }
  return orphans;
}

// Files, and directories of parts, that no checkpoint needs.
std::vector<std::string> Unfinished(const std::string& directory) {
  std::vector<std::string> unfinished = Orphans(directory);
  const auto names = kFiles->GetChildren(directory);
  EXPECT_OK(names.status());
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    for (const char* const mark : {"_temp_", ".tmp", ".tempstate", ".lock"}) {
      if (absl::StrContains(name, mark)) unfinished.push_back(name);
    }
  }
  return unfinished;
}

// After an interrupted save of `value` over `old_value`: the latest checkpoint is one of them,
// whole; the one that the state file names has its meta graph. True when it is the new one.
bool ExpectOldOrNew(const std::string& directory, int64_t old_value, int64_t value,
                    const std::string& what) {
  const auto latest = LatestCheckpoint(kFiles, directory);
  EXPECT_TRUE(latest.has_value()) << what;
  if (!latest) return false;
  const auto state = ReadCheckpointState(kFiles, directory);
  if (state && state->latest == *latest) {
    const auto meta = ReadMetaGraph(kFiles, *latest + ".meta");
    EXPECT_TRUE(meta.ok()) << what << ": " << meta.status();
    if (meta.ok()) {
      EXPECT_EQ(meta->saver_def().restore_op_name(), "save/restore_all") << what;
    }
  }
  FileSession reader(kFiles);
  const Status restored = Saver::FromDef(TestDef(2))->Restore(&reader, *latest);
  EXPECT_TRUE(restored.ok()) << what << ": " << restored;
  EXPECT_TRUE(reader.value == old_value || reader.value == value) << what << ": " << reader.value;
  return reader.value == value;
}

// What stands under the name of a save that failed may be another's, who has not written its index
// yet.
TEST_F(SaverTest, ASaveThatFailedDeletesNothingWhileAnotherGivesFilesTheirNames) {
  class FullDisk : public FileSession {
   public:
    using FileSession::FileSession;
    StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                        absl::Span<const Feed> feeds,
                                        absl::Span<const FetchName> fetches,
                                        absl::Span<const FetchName> targets,
                                        tensorflow::RunMetadata* metadata) override {
      if (!meanwhile) return FileSession::DoRun(options, feeds, fetches, targets, metadata);
      meanwhile();
      return absl::ResourceExhaustedError("disk full");
    }
    std::function<void()> meanwhile;
  };
  FullDisk session(kFiles);
  Model model;
  auto saver = MetaSaver(model, kFiles);
  const std::string data = BundleDataPath(Path("m-1"), 0, 2);
  StatusOr<std::unique_ptr<FileLock>> lock = absl::UnknownError("not taken");
  session.meanwhile = [&] {
    lock = kFiles->TryLockFile(BundleLockPath(Path("m-1")), "process 4711 on host7");
    EXPECT_OK(lock.status());
    Write(data, "another's");
  };
  EXPECT_STATUS(saver->Save(&session, Path("m"), 1).status(), absl::StatusCode::kResourceExhausted,
                "disk full");
  EXPECT_TRUE(kFiles->FileExists(data));
  // What nobody is at goes at once.
  lock = absl::UnknownError("given back");
  session.meanwhile = [&] { Write(BundleDataPath(Path("m-2"), 0, 2), "ours"); };
  EXPECT_STATUS(saver->Save(&session, Path("m"), 2).status(), absl::StatusCode::kResourceExhausted,
                "disk full");
  EXPECT_FALSE(kFiles->FileExists(BundleDataPath(Path("m-2"), 0, 2)));
}

// A task that had lost us, or another process, may finish what a save of ours gave up.
TEST_F(SaverTest, ASaveThatSomebodyFinishedAfterItHadFailedIsACheckpointAndStays) {
  class LostTask : public FileSession {
   public:
    using FileSession::FileSession;
    StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                        absl::Span<const Feed> feeds,
                                        absl::Span<const FetchName> fetches,
                                        absl::Span<const FetchName> targets,
                                        tensorflow::RunMetadata* metadata) override {
      if (is_lost) return absl::UnavailableError("connection reset");
      return FileSession::DoRun(options, feeds, fetches, targets, metadata);
    }
    bool is_lost = false;
  };
  for (const int max_to_keep : {0, 2}) {
    const std::string directory = Path(absl::StrCat("keep_", max_to_keep));
    const auto path = [&](const char* name) { return JoinPath(directory, name); };
    LostTask session(kFiles);
    auto saver = Saver::FromDef(TestDef(max_to_keep));
    ASSERT_OK(saver->Save(&session, path("m"), 1).status());
    session.is_lost = true;
    EXPECT_FALSE(saver->Save(&session, path("m"), 2).ok());
    EXPECT_FALSE(saver->Save(&session, path("m"), 3).ok());
    // One is finished, at the other somebody still is.
    FileSession other(kFiles);
    ASSERT_OK(Saver::FromDef(TestDef(0))->Save(&other, path("m"), 2).status());
    const std::string data = BundleDataPath(path("m-3"), 0, 2);
    Write(data, "another's");
    ASSERT_OK_AND_ASSIGN(auto lock,
                         kFiles->TryLockFile(BundleLockPath(path("m-3")), "process 4711 on host7"));
    session.is_lost = false;
    ASSERT_OK(saver->Save(&session, path("m"), 4).status());
    EXPECT_TRUE(CheckpointExists(kFiles, path("m-2")));
    EXPECT_TRUE(kFiles->FileExists(data));
    EXPECT_EQ(LatestCheckpoint(kFiles, directory), path("m-4"));
    // They take their turn in the list, or are left over.
    lock.reset();
    ASSERT_OK(saver->Save(&session, path("m"), 5).status());
    ASSERT_OK(saver->Save(&session, path("m"), 6).status());
    EXPECT_FALSE(kFiles->FileExists(data));
    EXPECT_EQ(Indexes(directory), max_to_keep == 0
                                      ? (std::set<std::string>{"m-1", "m-2", "m-4", "m-5", "m-6"})
                                      : (std::set<std::string>{"m-5", "m-6"}));
  }
}

TEST_F(SaverTest, ErrorAtEachFailPointLeavesTheOldOrTheNewCheckpoint) {
  // Saving a further step, and (0) the same step again; a task that was lost, and a full disk.
  for (const auto& [further, error] : {std::pair<int64_t, Status>{1, absl::AbortedError("stop")},
                                       {0, absl::AbortedError("stop")},
                                       {1, absl::ResourceExhaustedError("full")},
                                       {0, absl::ResourceExhaustedError("full")}}) {
    int passes = 0;
    std::set<std::string> names;
    for (int stop_at = 1;; ++stop_at) {
      const std::string directory =
          Path(absl::StrCat(further, "_", static_cast<int>(error.code()), "_", stop_at));
      FileSession session(kFiles);
      Model model;
      auto saver = MetaSaver(model, kFiles);
      session.value = 100;
      ASSERT_OK(saver->Save(&session, JoinPath(directory, "m"), 1).status());
      session.value = 200;
      passes = 0;
      std::string stopped_at;
      const Status stop = error;
      SetFailPointHook([&](absl::string_view name) {
        if (++passes != stop_at) return absl::OkStatus();
        stopped_at = std::string(name);
        return stop;
      });
      const Status saved = saver->Save(&session, JoinPath(directory, "m"), 1 + further).status();
      SetFailPointHook(nullptr);
      names.insert(stopped_at);
      const bool is_new = ExpectOldOrNew(directory, 100, 200, stopped_at);
      if (saved.ok()) {
        EXPECT_TRUE(is_new) << stopped_at;
      }
      // A full disk has its room again at once.
      if (absl::IsResourceExhausted(saved)) {
        EXPECT_EQ(Orphans(directory), std::vector<std::string>()) << stopped_at;
      }
      // The next save works.
      session.value = 300;
      ASSERT_OK(saver->Save(&session, JoinPath(directory, "m"), 3).status());
      EXPECT_TRUE(ExpectOldOrNew(directory, 300, 300, stopped_at));
      // What became no checkpoint is gone with the next save.
      EXPECT_EQ(Orphans(directory), std::vector<std::string>()) << stopped_at;
      if (stopped_at.empty()) break;
    }
    EXPECT_GE(names.size(), further == 1 ? 16u : 14u);
    EXPECT_EQ(names.count("saver/before_meta"), 1u);
  }
}

TEST_F(SaverTest, EveryFailingFileOperationIsReportedAndLeavesTheOldOrTheNewCheckpoint) {
  for (int64_t further : {1, 0}) {
    for (int64_t k = 1;; ++k) {
      const std::string directory = Path(absl::StrCat(further, "_", k));
      FaultyFileSystem fs(kFiles, directory);
      FileSession session(&fs);
      Model model;
      auto saver = MetaSaver(model, &fs);
      session.value = 100;
      ASSERT_OK(saver->Save(&session, JoinPath(directory, "m"), 1).status());
      const int64_t before = fs.num_operations();
      fs.FailOperation(before + k, absl::ResourceExhaustedError("disk full"));
      session.value = 200;
      const Status saved = saver->Save(&session, JoinPath(directory, "m"), 1 + further).status();
      const bool done = fs.num_operations() < before + k;
      const std::string what = done ? "nothing failed" : fs.OperationText(before + k);
      fs.FailOperation(0, absl::OkStatus());  // never again
      const bool is_new = ExpectOldOrNew(directory, 100, 200, what);
      if (saved.ok()) {
        EXPECT_TRUE(is_new) << what;
      }
      if (!saved.ok()) {
        EXPECT_EQ(saved.code(), absl::StatusCode::kResourceExhausted) << what << ": " << saved;
        // What became no checkpoint takes no more room than it had before: otherwise the disk would
        // stay full, and no later save could succeed.
        if (!absl::StartsWith(what, "delete") && !absl::StartsWith(what, "rmdir")) {
          EXPECT_EQ(Unfinished(directory), std::vector<std::string>()) << what;
        }
      }
      session.value = 300;
      ASSERT_OK(saver->Save(&session, JoinPath(directory, "m"), 3).status());
      EXPECT_TRUE(ExpectOldOrNew(directory, 300, 300, what));
      // What could not be deleted is deleted now.
      EXPECT_EQ(Indexes(directory).size(), 1u) << what;
      EXPECT_EQ(Orphans(directory), std::vector<std::string>()) << what;
      if (done) {
        ASSERT_OK(saved);
        EXPECT_GT(k, 30);
        break;
      }
    }
  }
}

// A limit on the size of files stands for the full disk: a write of a real file, in the middle of a
// real save, gets only a part of its bytes to the disk.
TEST_F(SaverTest, ADiskThatIsFullInTheMiddleOfASaveIsNamedAndLeavesRoomForTheNext) {
  Scope root;
  MakeVariable(root.WithName("large"),
               Fill(root, Const<int32_t>(root, {1000, 1000}), Const(root, 1.0f)));
  MakeVariable(root.WithName("small"), Const(root, 2.0f));
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
  auto session = OpenSession(root);
  ASSERT_OK(session->Run({}, {}, {GlobalVariablesInitializer(root)}).status());
  ASSERT_OK(saver->Save(session.get(), Path("m"), 1).status());
  ASSERT_OK_AND_ASSIGN(const auto before, kFiles->GetChildren(directory_));

  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  rlimit small = limit;
  small.rlim_cur = 1'500'000;
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status saved = saver->Save(session.get(), Path("m"), 2).status();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  ::signal(SIGXFSZ, handler);

  EXPECT_STATUS(saved, absl::StatusCode::kResourceExhausted, "': write of ");
  EXPECT_TRUE(absl::StrContains(saved.message(), Path("m-2"))) << saved;
  ASSERT_OK_AND_ASSIGN(const auto after, kFiles->GetChildren(directory_));
  EXPECT_EQ(after, before);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 3));
  EXPECT_OK(saver->Restore(session.get(), path));
}

TEST_F(SaverTest, PowerCutAnywhereLeavesTheOldOrTheNewCheckpoint) {
  for (int64_t further : {1, 0}) {
    const std::string directory = Path(absl::StrCat("disk", further));
    FaultyFileSystem fs(kFiles, directory);
    FileSession session(&fs);
    Model model;
    auto saver = MetaSaver(model, &fs);
    session.value = 100;
    ASSERT_OK(saver->Save(&session, JoinPath(directory, "m"), 1).status());
    const int64_t first = fs.num_operations();
    session.value = 200;
    ASSERT_OK(saver->Save(&session, JoinPath(directory, "m"), 1 + further).status());
    const int64_t last = fs.num_operations();
    const std::string after = Path("after");
    int cuts = 0;
    for (int64_t cut = first; cut <= last; ++cut) {
      for (Loss loss : {Loss::kEverythingUnsynced, Loss::kUnsyncedData, Loss::kUnsyncedNames,
                        Loss::kRandom, Loss::kRandom}) {
        const uint64_t seed = static_cast<uint64_t>(++cuts);
        ASSERT_OK(fs.RestoreCut(cut, loss, seed, after));
        const std::string what =
            absl::StrCat("cut ", cut, " loss ", static_cast<int>(loss), " seed ", seed, " after ",
                         cut > 0 ? fs.OperationText(cut) : "");
        const bool is_new = ExpectOldOrNew(after, 100, 200, what);
        // Save returned OK: it must have survived.
        if (cut == last) {
          EXPECT_TRUE(is_new) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace

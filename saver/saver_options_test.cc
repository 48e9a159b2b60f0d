// SPDX-License-Identifier: Apache-2.0
//
// What a Saver is asked for: what it saves and under which names, how it restores, what its files
// are called.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/state/state.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/save_restore.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"

// covers: variables: a Saver takes variables, names for them and saveables, and every option of
//   TensorFlow's; options that exclude each other are refused by name

namespace millrace {
namespace {

FileSystem* const kFiles = FileSystem::Posix();
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class SaverOptionsTest : public ::testing::Test {
 protected:
  SaverOptionsTest() : directory_(JoinPath(::testing::TempDir(), "options_" + RandomHexName())) {}
  ~SaverOptionsTest() override { kFiles->RecursivelyDelete(directory_).IgnoreError(); }

  std::string Path(absl::string_view name) const { return JoinPath(directory_, name); }
  bool Exists(absl::string_view name) const { return kFiles->FileExists(Path(name)); }
  // A session in which every variable has its initial value.
  std::unique_ptr<Session> Open(const Scope& scope) const {
    auto session = NewSession();
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Extend(scope));
    EXPECT_OK((*session)->Run({}, {}, {init_}).status());
    return *std::move(session);
  }
  // Names in a checkpoint, in order.
  std::vector<std::string> Names(const std::string& path) const {
    std::vector<std::string> names;
    const auto reader = BundleReader::Open(kFiles, path);
    EXPECT_OK(reader.status());
    if (!reader.ok()) return names;
    for (const auto& entry : (*reader)->entries()) names.push_back(entry.name);
    return names;
  }
  Tensor Value(Session* session, const Variable& variable) const {
    const auto value = session->Run({}, {variable.value.name()});
    EXPECT_OK(value.status());
    return value.ok() ? (*value)[0] : Tensor();
  }

  std::string init_ = "init";
  const std::string directory_;
};

struct Model {
  Model() {
    w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2, 3, 4}));
    b = MakeVariable(root.WithName("b"), Const<float>(root, {5}));
    Finish();
  }
  void Finish() { init = GlobalVariablesInitializer(root.WithName("init")); }
  Scope root;
  Variable w, b;
  Operation init;
};

Operation Set(const Scope& s, const Variable& v, const std::vector<float>& values) {
  return AssignVariableOp(s, v.handle, ConstVector<float>(s, values));
}

TEST_F(SaverOptionsTest, NamesOfTheCheckpointMayBeOthersThanThoseOfVariables) {
  Model m;
  ASSERT_OK_AND_ASSIGN(
      auto saver, Saver::Make(m.root, {.named_variables = {{"layer/kernel", m.w}, {"bias", m.b}}}));
  const Operation zero = Set(m.root.WithName("zero"), m.w, {0, 0, 0, 0});
  init_ = m.init.name();
  const auto session = Open(m.root);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 1));
  EXPECT_EQ(Names(path), (std::vector<std::string>{"bias", "layer/kernel"}));
  ASSERT_OK(session->Run({}, {}, {zero.name()}).status());
  ASSERT_OK(saver->Restore(session.get(), path));
  ExpectTensorEqual(Value(session.get(), m.w), TensorOf<float>({4}, {1, 2, 3, 4}));
}

// A table: keys and values, in local variables.
class TwoColumns : public Saveable {
 public:
  explicit TwoColumns(const Scope& s) {
    keys_ = MakeVariable(s.WithName("keys"), Const<std::string>(s, {"a", "b"}), {.local = true});
    values_ = MakeVariable(s.WithName("values"), Const<int64_t>(s, {1, 2}), {.local = true});
  }
  std::vector<Spec> specs() const override {
    return {{"table-keys", "", keys_.value}, {"table-values", "", values_.value}};
  }
  Operation Restore(const Scope& s, absl::Span<const Output> restored) const override {
    return Group(s.WithName("both"),
                 {AssignVariableOp(s.WithName("keys"), keys_.handle, restored[0]),
                  AssignVariableOp(s.WithName("values"), values_.handle, restored[1])});
  }
  Variable keys_, values_;
};

TEST_F(SaverOptionsTest, SaveablesAreSavedAndRestoredWithTheirOwnOp) {
  Model m;
  const auto table = std::make_shared<TwoColumns>(m.root);
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.variables = {m.w}, .saveables = {table}}));
  const Operation more = AssignVariableOp(m.root.WithName("more"), table->values_.handle,
                                          Const<int64_t>(m.root, {7, 8}));
  const auto session = Open(m.root);
  ASSERT_OK(
      session->Run({}, {}, {table->keys_.initializer.name(), table->values_.initializer.name()})
          .status());
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 1));
  EXPECT_EQ(Names(path), (std::vector<std::string>{"table-keys", "table-values", "w"}));
  ASSERT_OK(session->Run({}, {}, {more.name()}).status());
  ASSERT_OK(saver->Restore(session.get(), path));
  ExpectTensorEqual(Value(session.get(), table->keys_), TensorOf<std::string>({2}, {"a", "b"}));
  ExpectTensorEqual(Value(session.get(), table->values_), TensorOf<int64_t>({2}, {1, 2}));
  // By itself, and into another program that has another shape of it.
  ASSERT_OK_AND_ASSIGN(auto alone, Saver::Make(m.root, {.saveables = {table}, .name = "alone"}));
  ASSERT_OK(session->Extend(m.root));
  ASSERT_OK_AND_ASSIGN(const std::string other, alone->Save(session.get(), Path("alone"), 1));
  EXPECT_EQ(Names(other), (std::vector<std::string>{"table-keys", "table-values"}));
  EXPECT_STATUS(saver->Restore(session.get(), other), absl::StatusCode::kNotFound, "'w'");
}

TEST_F(SaverOptionsTest, NothingToSaveIsAnErrorUnlessAllowed) {
  Scope root;
  EXPECT_STATUS(Saver::Make(root).status(), kInvalid, "allow_empty");
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root, {.allow_empty = true}));
  (void)NoOp(root.WithName("init"));
  const auto session = Open(root);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 3));
  EXPECT_EQ(path, "");
  EXPECT_TRUE(Exists("m-3.meta"));
  EXPECT_FALSE(Exists("m-3.index"));
  EXPECT_FALSE(Exists("checkpoint"));
  EXPECT_OK(saver->Restore(session.get(), Path("m-3")));
}

// Each read waits for the assignment before it.
TEST_F(SaverOptionsTest, RestoringSequentiallyReadsOneValueAfterTheOther) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.restore_sequentially = true}));
  tensorflow::GraphDef def;
  m.root.graph()->ToGraphDef(&def);
  std::map<std::string, std::string> inputs;
  for (const auto& node : def.node()) {
    for (const std::string& input : node.input()) {
      if (input[0] == '^') inputs[node.name()] += input;
    }
  }
  EXPECT_EQ(inputs["save/RestoreV2"], "");
  EXPECT_EQ(inputs["save/RestoreV2_1"], "^save/AssignVariableOp");
  const Operation zero = Set(m.root.WithName("zero"), m.b, {0});
  const auto session = Open(m.root);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 1));
  ASSERT_OK(session->Run({}, {}, {zero.name()}).status());
  ASSERT_OK(saver->Restore(session.get(), path));
  ExpectTensorEqual(Value(session.get(), m.b), TensorOf<float>({1}, {5}));
}

TEST_F(SaverOptionsTest, ReshapeTakesValuesOfAnotherShape) {
  const std::string names[] = {"b", "w"}, specs[] = {"", ""};
  const ValueToSave values[] = {TensorOf<float>({}, {9}), TensorOf<float>({2, 2}, {6, 7, 8, 9})};
  ASSERT_OK(SaveTensors(kFiles, Path("other"), names, specs, values));
  for (const bool reshape : {false, true}) {
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.reshape = reshape}));
    const auto session = Open(m.root);
    const Status restored = saver->Restore(session.get(), Path("other"));
    if (!reshape) {
      EXPECT_STATUS(restored, kInvalid, "must be float [1], as in the graph, got float []");
      continue;
    }
    ASSERT_OK(restored);
    ExpectTensorEqual(Value(session.get(), m.w), TensorOf<float>({4}, {6, 7, 8, 9}));
    ExpectTensorEqual(Value(session.get(), m.b), TensorOf<float>({1}, {9}));
  }
  const ValueToSave fewer[] = {TensorOf<float>({}, {9}), TensorOf<float>({3}, {6, 7, 8})};
  ASSERT_OK(SaveTensors(kFiles, Path("fewer"), names, specs, fewer));
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.reshape = true}));
  const auto session = Open(m.root);
  EXPECT_STATUS(saver->Restore(session.get(), Path("fewer")), kInvalid, "Reshape");
}

TEST_F(SaverOptionsTest, StepsArePaddedAndTheFileNameIsTheGraphs) {
  Model m;
  ASSERT_OK_AND_ASSIGN(
      auto saver, Saver::Make(m.root, {.filename = Path("by_default"), .pad_step_number = true}));
  const auto session = Open(m.root);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 12));
  EXPECT_EQ(path, Path("m-00000012"));
  ASSERT_OK_AND_ASSIGN(const std::string long_path,
                       saver->Save(session.get(), Path("m"), 123'456'789));
  EXPECT_EQ(long_path, Path("m-123456789"));
  EXPECT_EQ(LatestCheckpoint(kFiles, directory_), long_path);
  ASSERT_OK(session->Run({}, {saver->def().save_tensor_name()}).status());
  EXPECT_TRUE(Exists("by_default.index"));
}

TEST_F(SaverOptionsTest, TheStateFileHasPathsAsAskedFor) {
  for (const bool relative : {true, false}) {
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.save_relative_paths = relative}));
    const auto session = Open(m.root);
    ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 1));
    ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(kFiles, Path("checkpoint")));
    EXPECT_TRUE(absl::StrContains(
        text, absl::StrCat("model_checkpoint_path: \"", relative ? "m-1" : path, "\"")))
        << text;
    EXPECT_EQ(LatestCheckpoint(kFiles, directory_), path);
  }
}

TEST_F(SaverOptionsTest, ADeferredSaverTakesTheVariablesThatAreThereWhenItIsBuilt) {
  Scope root;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root, {.defer_build = true}));
  EXPECT_EQ(root.graph()->FindNode("save/Const"), nullptr);
  const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2}));
  (void)GlobalVariablesInitializer(root.WithName("init"));
  auto early = Open(root);
  EXPECT_STATUS(saver->Save(early.get(), Path("m"), 1).status(),
                absl::StatusCode::kFailedPrecondition, "Build must come before Save");
  EXPECT_STATUS(saver->Restore(early.get(), Path("m-1")), absl::StatusCode::kFailedPrecondition,
                "Build must come before Restore");
  ASSERT_OK(saver->Build());
  EXPECT_STATUS(saver->Build(), absl::StatusCode::kFailedPrecondition, "was not built yet");
  const auto session = Open(root);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 1));
  EXPECT_EQ(Names(path), std::vector<std::string>{"w"});
  EXPECT_EQ(saver->last_checkpoints(), std::vector<std::string>{path});
  ASSERT_OK_AND_ASSIGN(auto ordinary, Saver::Make(root, {.name = "ordinary"}));
  EXPECT_STATUS(ordinary->Build(), absl::StatusCode::kFailedPrecondition, "defer_build");
}

TEST_F(SaverOptionsTest, OneSaveMayDoLessOrCallItsFilesOtherwise) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.max_to_keep = 1}));
  const auto session = Open(m.root);
  ASSERT_OK_AND_ASSIGN(const std::string first,
                       saver->SaveAs(session.get(), Path("m"), 1,
                                     {.latest_filename = "newest", .meta_graph_suffix = "graph"}));
  EXPECT_TRUE(Exists("m-1.graph"));
  EXPECT_FALSE(Exists("m-1.meta"));
  EXPECT_FALSE(Exists("checkpoint"));
  EXPECT_EQ(ReadCheckpointState(kFiles, directory_, "newest")->latest, first);
  EXPECT_EQ(LatestCheckpoint(kFiles, directory_, "newest"), first);

  // Neither counted nor a reason to delete.
  ASSERT_OK_AND_ASSIGN(const std::string second,
                       saver->SaveAs(session.get(), Path("m"), 2,
                                     {.write_meta_graph = false, .write_state = false}));
  EXPECT_FALSE(Exists("m-2.meta"));
  EXPECT_TRUE(CheckpointExists(kFiles, first));
  EXPECT_TRUE(CheckpointExists(kFiles, second));
  EXPECT_EQ(saver->last_checkpoints(), std::vector<std::string>{first});

  // The first one goes with its meta graph.
  ASSERT_OK(saver->SaveAs(session.get(), Path("m"), 3, {.latest_filename = "newest"}).status());
  EXPECT_FALSE(CheckpointExists(kFiles, first));
  EXPECT_FALSE(Exists("m-1.graph"));
  EXPECT_TRUE(CheckpointExists(kFiles, second));
}

TEST_F(SaverOptionsTest, MetaGraphsMayLackAttrsThatHaveTheirDefaults) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  const auto session = Open(m.root);
  std::vector<bool> has_container;
  for (const bool strip : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const std::string path, saver->SaveAs(session.get(), Path("m"), strip,
                                                               {.strip_default_attrs = strip}));
    ASSERT_OK_AND_ASSIGN(const auto meta, ReadMetaGraph(kFiles, path + ".meta"));
    for (const auto& node : meta.graph_def().node()) {
      if (node.name() == "w") has_container.push_back(node.attr().count("container") > 0);
    }
  }
  EXPECT_EQ(has_container, (std::vector<bool>{true, false}));
}

TEST_F(SaverOptionsTest, AProgramMayRememberTheListOfCheckpointsItself) {
  FakeClock clock;
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.max_to_keep = 2, .clock = &clock}));
  const auto session = Open(m.root);
  ASSERT_OK(saver->Save(session.get(), Path("m"), 1).status());
  ASSERT_OK(saver->Save(session.get(), Path("m"), 2).status());
  const std::vector<TimedCheckpoint> known = saver->last_checkpoints_with_time();
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[1].path, Path("m-2"));
  EXPECT_EQ(known[1].time_s, absl::ToDoubleSeconds(clock.Now() - absl::UnixEpoch()));

  ASSERT_OK_AND_ASSIGN(auto other, Saver::Make(m.root, {.max_to_keep = 2, .name = "other"}));
  ASSERT_OK(session->Extend(m.root));
  ASSERT_OK(other->SetLastCheckpointsWithTime(known));
  EXPECT_EQ(other->last_checkpoints(), (std::vector<std::string>{Path("m-1"), Path("m-2")}));
  ASSERT_OK(other->Save(session.get(), Path("m"), 3).status());
  EXPECT_FALSE(CheckpointExists(kFiles, Path("m-1")));
  EXPECT_TRUE(CheckpointExists(kFiles, Path("m-2")));
}

TEST_F(SaverOptionsTest, WrongOptionsAreNamed) {
  Model m;
  const PartitionedVariable parts = MakePartitionedVariable(
      m.root.WithName("parts"), ShapeOf({4, 2}), DT_FLOAT, 2, ZerosInitializer());
  const struct {
    SaverOptions options;
    absl::StatusCode code;
    const char* what;
  } cases[] = {
      {{.variables = {m.w}, .named_variables = {{"b", m.b}}},
       kInvalid,
       "variables and named_variables must not both be given, got 1 and 1"},
      {{.named_variables = {{"", m.b}}},
       kInvalid,
       "named_variables must have names, got '' for 'b'"},
      {{.named_variables = {{"x", m.b}, {"x", m.w}}}, kInvalid, "got 'x' twice"},
      {{.saveables = {nullptr}}, kInvalid, "got a null pointer"},
      {{.reshape = true}, kInvalid, "reshape takes whole variables only, got a part of 'parts'"},
      {{.variables = {m.w}, .reshape = true, .max_to_keep = -1},
       kInvalid,
       "max_to_keep must be >= 0, got -1"},
      {{.keep_checkpoint_every_n_hours = 0},
       kInvalid,
       "keep_checkpoint_every_n_hours must be > 0, got 0"},
      {{.filename = ""}, kInvalid, "filename must name a checkpoint"},
      {{.write_version = CheckpointFormat::kV1},
       absl::StatusCode::kUnimplemented,
       "write_version must be kV2, got kV1"},
      {{.write_version = CheckpointFormat::kV1, .defer_build = true},
       absl::StatusCode::kUnimplemented,
       "write_version must be kV2"},
  };
  for (const auto& c : cases) {
    EXPECT_STATUS(Saver::Make(m.root, c.options).status(), c.code, c.what);
  }
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root, {.variables = {m.w}}));
  const auto session = Open(m.root);
  EXPECT_STATUS(
      saver->SaveAs(session.get(), Path("m"), 1, {.latest_filename = "a/checkpoint"}).status(),
      kInvalid, "latest_filename must be a name without '/', got 'a/checkpoint'");
  EXPECT_STATUS(saver->SaveAs(session.get(), Path("m"), 1, {.meta_graph_suffix = ""}).status(),
                kInvalid, "meta_graph_suffix must be a name without '/', got ''");
  EXPECT_STATUS(
      saver->SaveAs(session.get(), Path("newest"), {}, {.latest_filename = "newest"}).status(),
      kInvalid, "other than the state file 'newest'");
}

}  // namespace
}  // namespace millrace

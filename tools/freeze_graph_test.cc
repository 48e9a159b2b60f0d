// SPDX-License-Identifier: Apache-2.0
//
// The program freeze_graph, and what run_graph makes of the graphs that it writes.

#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "formats/npy.h"
#include "gmock/gmock.h"
#include "graph/import_export.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/meta_graph.h"
#include "saver/saved_model.h"
#include "saver/saver.h"

// covers: graphs: variables of both kinds become constants with the same values, through branches
//   and loops; nodes that write them are refused by name
// covers: article 4-20: variables become constants

// covers: graphs: variables of both kinds become constants with the same values, through branches
//   and loops; nodes that write them are refused by name
// covers: article 4-20: variables become constants

namespace millrace {
namespace {

using ::testing::HasSubstr;

FileSystem* const kFiles = FileSystem::Posix();

struct Ended {
  int code;
  std::string text;  // stdout and stderr
};

Ended RunProgram(const std::string& command) {
  FILE* const pipe = popen(absl::StrCat(command, " 2>&1").c_str(), "r");
  Ended ended;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    ended.text.append(buffer, n);
  ended.code = WEXITSTATUS(pclose(pipe));
  return ended;
}
Ended Freeze(const std::string& flags) { return RunProgram("tools/freeze_graph " + flags); }

// A model y = x * w + b, w partitioned in two, trained to values that no initialiser gives, as a
// SavedModel, as a checkpoint with its meta graph, and as a GraphDef.
class FreezeGraphProgram : public ::testing::Test {
 protected:
  FreezeGraphProgram()
      : directory_(JoinPath(::testing::TempDir(), absl::StrCat("freeze_", RandomHexName()))) {}
  ~FreezeGraphProgram() override { kFiles->RecursivelyDelete(directory_).IgnoreError(); }

  std::string Path(const std::string& name) const { return JoinPath(directory_, name); }

  void SetUp() override {
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(directory_));
    Scope root;
    const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 4});
    const PartitionedVariable w = MakePartitionedVariable(root.WithName("w"), Shape({4, 1}),
                                                          DT_FLOAT, 2, ConstantInitializer(0.5));
    const Variable b = MakeVariable(root.WithName("b"), Const(root, 1.0f));
    std::vector<Output> parts;
    for (const Variable& part : w.parts) parts.push_back(part.value);
    const Output whole = ConcatV2(root.WithName("whole"), parts, Const(root, 0));
    const Output y = Add(root.WithName("y"), MatMul(root, x, whole), b.value);
    const Output z = Mul(root.WithName("z"), x, b.value);
    std::vector<Operation> train = {AssignAddVariableOp(root, b.handle, Const(root, 2.0f))};
    for (const Variable& part : w.parts) {
      train.push_back(AssignAddVariableOp(root, part.handle, part.value));
    }
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
    const Operation init = GlobalVariablesInitializer(root.WithName("init"));
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}).status());
    ASSERT_OK(session->Run({}, {}, std::vector<FetchName>(train.begin(), train.end())).status());
    ASSERT_OK(saver->Save(session.get(), Path("model.ckpt"), 7).status());
    ASSERT_OK_AND_ASSIGN(const auto graph, root.ToGraphDef());
    ASSERT_OK(WriteGraphDef(kFiles, Path("graph.pbtxt"), graph, GraphFormat::kText));
    ASSERT_OK(WriteGraphDef(kFiles, Path("graph.bin"), graph, GraphFormat::kBinary));
    ASSERT_OK_AND_ASSIGN(const auto signature, PredictSignatureDef(root, {{"x", x}}, {{"y", y}}));
    ASSERT_OK_AND_ASSIGN(auto builder, SavedModelBuilder::Open(Path("export/12")));
    ASSERT_OK(builder->AddMetaGraphAndVariables(
        session.get(), root, saver.get(), {.signatures = {{kDefaultServingSignature, signature}}}));
    ASSERT_OK(builder->Save());
    const Tensor input = TensorOf<float>({1, 4}, {1, 2, 3, 4});
    ASSERT_OK(WriteNpz(kFiles, Path("in.npz"), {{"x:0", input}}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, input}}, {y, z}));
    ExpectTensorEqual(out[0], TensorOf<float>({1, 1}, {13}));  // 1*10 + 3
  }

  // What run_graph computes from the frozen graph.
  void ExpectRuns(const std::string& frozen, const std::string& fetch, const Tensor& want) {
    const Ended ended =
        RunProgram(absl::StrCat("tools/run_graph --graph ", Path(frozen), " --feeds ",
                                Path("in.npz"), " --fetches ", fetch, " --out ", Path("out.npz")));
    ASSERT_EQ(ended.code, 0) << ended.text;
    ASSERT_OK_AND_ASSIGN(const NamedArrays out, ReadNpz(kFiles, Path("out.npz")));
    ASSERT_EQ(out.size(), 1u);
    ExpectTensorEqual(out[0].second, want);
  }

  const std::string directory_;
};

TEST_F(FreezeGraphProgram, ASavedModelsNewestVersionIsFrozenAndRuns) {
  const Ended ended =
      Freeze(absl::StrCat("--input_saved_model_dir ", Path("export"),
                          " --output_node_names y --output_graph ", Path("frozen.pb")));
  ASSERT_EQ(ended.code, 0) << ended.text;
  EXPECT_THAT(ended.text, HasSubstr("is a directory of versions; using the newest, '"));
  EXPECT_THAT(ended.text, HasSubstr("Converted 3 variables to const ops.\n"));
  EXPECT_THAT(ended.text, HasSubstr(" ops in the final graph.\n"));
  ExpectRuns("frozen.pb", "y:0", TensorOf<float>({1, 1}, {13}));
}

TEST_F(FreezeGraphProgram, AMetaGraphAndItsCheckpointAreFrozenAsText) {
  const Ended ended =
      Freeze(absl::StrCat("--input_meta_graph=", Path("model.ckpt-7.meta"),
                          " --input_checkpoint=", Path("model.ckpt-7"),
                          " --output_node_names=y,z --output_graph=", Path("frozen.pbtxt")));
  ASSERT_EQ(ended.code, 0) << ended.text;
  ExpectRuns("frozen.pbtxt", "y:0", TensorOf<float>({1, 1}, {13}));
}

TEST_F(FreezeGraphProgram, AGraphTakesValuesByName) {
  for (const std::string graph :
       {"graph.pbtxt", "graph.bin --input_binary", "graph.pbtxt --input_binary=false"}) {
    const Ended ended = Freeze(
        absl::StrCat("--input_graph ", Path(graph), " --input_checkpoint ", Path("model.ckpt-7"),
                     " --output_node_names z --output_graph ", Path("frozen.pb")));
    ASSERT_EQ(ended.code, 0) << ended.text;
    EXPECT_THAT(ended.text, HasSubstr("Converted 1 variables"));
    ExpectRuns("frozen.pb", "z:0", TensorOf<float>({1, 4}, {3, 6, 9, 12}));
  }
}

TEST_F(FreezeGraphProgram, ACheckpointIsNamedByItsFilesAndItsDirectory) {
  for (const char* name : {"model.ckpt-7.index", "model.ckpt-7.meta", "checkpoint", "",
                           "model.ckpt-7.data-00000-of-00001"}) {
    for (const std::string& graph :
         {absl::StrCat("--input_graph ", Path("graph.bin")),
          absl::StrCat("--input_meta_graph ", Path("model.ckpt-7.meta"))}) {
      const Ended ended =
          Freeze(absl::StrCat(graph, " --input_checkpoint ", Path(name),
                              " --output_node_names z --output_graph ", Path("frozen.pb")));
      ASSERT_EQ(ended.code, 0) << name << "\n" << ended.text;
      ExpectRuns("frozen.pb", "z:0", TensorOf<float>({1, 4}, {3, 6, 9, 12}));
    }
  }
}

TEST_F(FreezeGraphProgram, InitializersRunAfterTheCheckpoint) {
  // The initialisers give every variable its first value again.
  const Ended ended = Freeze(absl::StrCat(
      "--input_graph ", Path("graph.bin"), " --input_checkpoint ", Path("model.ckpt-7"),
      " --initializer_nodes init --output_node_names y --output_graph ", Path("frozen.pb")));
  ASSERT_EQ(ended.code, 0) << ended.text;
  ExpectRuns("frozen.pb", "y:0", TensorOf<float>({1, 1}, {6}));  // 0.5*10 + 1
}

TEST_F(FreezeGraphProgram, WrongInputIsNamed) {
  ASSERT_OK(WriteFileAtomically(kFiles, Path("damaged.pb"), "\x0a\xff\xff no graph"));
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(Path("empty")));
  const std::string checkpoint = absl::StrCat("--input_checkpoint ", Path("model.ckpt-7"));
  const std::string to = absl::StrCat(" --output_graph ", Path("frozen.pb"));
  const std::string y = absl::StrCat(" --output_node_names y", to);
  const std::string graph = absl::StrCat("--input_graph ", Path("graph.bin"));
  const std::string model = absl::StrCat("--input_saved_model_dir ", Path("export/12"));
  struct Case {
    std::string flags;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {"", 2, "the following arguments are required: --output_graph, --output_node_names"},
      {y, 2, "one of --input_saved_model_dir, --input_graph and --input_meta_graph is needed"},
      {model + " " + graph + y, 2, "one of --input_saved_model_dir"},
      {model + " " + checkpoint + y, 2, "argument --input_checkpoint: not allowed with"},
      {graph + y, 2, "argument --input_checkpoint: needed with a graph"},
      {model + y + " --clear_device=maybe", 2, "must be true or false, got 'maybe'"},
      {model + y + " --output_node_name=z --outputgraph=q", 2, "did you mean 'output_graph'?"},
      {model + to + " --output_node_names ''", 1, "outputs must name nodes, got none"},
      {model + to + " --output_node_names yy", 1, "has no node 'yy'"},
      {model + y + " --saved_model_tags train", 1, "it has { serve }"},
      {"--input_saved_model_dir /no/such" + y, 1, "/no/such"},
      {"--input_saved_model_dir " + Path("empty") + y, 1, "Could not find SavedModel"},
      {"--input_graph /no/such.pb " + checkpoint + y, 1, "/no/such.pb"},
      {"--input_graph " + Path("damaged.pb ") + checkpoint + y, 1, "damaged.pb"},
      {"--input_graph " + Path("graph.bin ") + "--input_binary=false " + checkpoint + y, 1,
       "graph.bin"},
      {"--input_graph " + Path("graph.pbtxt ") + "--input_binary " + checkpoint + y, 1,
       "graph.pbtxt"},
      {graph + " --input_checkpoint /no/such" + y, 1, "/no/such"},
      {graph + " --input_checkpoint " + Path("empty") + y, 1,
       "a directory must have a whole checkpoint or a SavedModel, got neither"},
      {graph + " --input_checkpoint " + Path("none-3.index") + y, 1, Path("none-3.index'")},
      {"--input_saved_model_dir " + Path("export/12/saved_model.pb") + y, 1,
       absl::StrCat("the model's directory is '", Path("export/12"), "'")},
      // Only the Saver knows where the parts of w are.
      {graph + " " + checkpoint + y, 1, "need --input_meta_graph or --input_saved_model_dir"},
      {graph + " " + checkpoint + " --initializer_nodes nobody" + y, 1, "nobody"},
      {model + " --output_node_names init" + to, 1, "must only read variable"},
      {graph + " " + checkpoint + " --output_node_names z --output_graph /no/such/frozen.pb", 1,
       "/no/such/frozen.pb"},
  };
  for (const Case& c : cases) {
    const Ended ended = Freeze(c.flags);
    EXPECT_EQ(ended.code, c.code) << c.flags << "\n" << ended.text;
    EXPECT_THAT(ended.text, HasSubstr(c.text)) << c.flags;
    EXPECT_THAT(ended.text, HasSubstr(c.code == 2 ? "freeze_graph: error: " : "freeze_graph: "));
  }
}

TEST_F(FreezeGraphProgram, HelpAndVersionExitWithZero) {
  EXPECT_EQ(Freeze("--help").code, 0);
  EXPECT_THAT(Freeze("-h").text, HasSubstr("--variable_names_whitelist NAMES"));
  EXPECT_THAT(Freeze("--version").text, HasSubstr("freeze_graph (Millrace) "));
}

// A training graph of TensorFlow 1.13 with its checkpoint: 2,577 nodes, 66 tensors in two shards,
// partitioned resource variables, an input pipeline of ops that are not known here. Its network is
// frozen and compared with the restored graph.
TEST(FreezeGraphOfTensorFlow, ACheckpointsNetworkIsFrozen) {
  const std::string meta_path = SharedDataPath("checkpoints/babyweight_1000/model.ckpt-1000.meta");
  if (meta_path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no checkpoints/babyweight_1000";
  const std::string prefix = meta_path.substr(0, meta_path.size() - std::string(".meta").size());
  const std::string features = "dnn/input_from_feature_columns/input_layer/concat:0";
  ASSERT_OK_AND_ASSIGN(Tensor input, Tensor::Allocate(DT_FLOAT, Shape({128, 15})));
  float next = -1;
  for (float& value : input.mutable_flat<float>()) value = next += 0.001f;

  ASSERT_OK_AND_ASSIGN(auto meta, ReadMetaGraph(kFiles, meta_path));
  ASSERT_OK(RemoveUnknownDefaultAttrs(&meta));
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(meta.graph_def()));
  ASSERT_OK(Saver::FromDef(meta.saver_def())->Restore(session.get(), prefix));
  ASSERT_OK_AND_ASSIGN(const auto want,
                       session->Run({{features, input}}, {"dnn/logits/BiasAdd:0"}));

  const std::string directory =
      JoinPath(::testing::TempDir(), absl::StrCat("freeze_", RandomHexName()));
  ASSERT_OK(kFiles->CreateDirectory(directory));
  const std::string frozen = JoinPath(directory, "frozen.pb");
  Ended ended =
      Freeze(absl::StrCat("--input_meta_graph ", meta_path, " --input_checkpoint ", prefix,
                          " --output_node_names dnn/logits/BiasAdd --output_graph ", frozen));
  ASSERT_EQ(ended.code, 0) << ended.text;
  const std::string in = JoinPath(directory, "in.npz"), out = JoinPath(directory, "out.npz");
  ASSERT_OK(WriteNpz(kFiles, in, {{features, input}}));
  ended = RunProgram(absl::StrCat("tools/run_graph --graph ", frozen, " --feeds ", in,
                                  " --fetches dnn/logits/BiasAdd:0 --out ", out));
  ASSERT_EQ(ended.code, 0) << ended.text;
  ASSERT_OK_AND_ASSIGN(const NamedArrays got, ReadNpz(kFiles, out));
  ExpectTensorEqual(got[0].second, want[0]);
  kFiles->RecursivelyDelete(directory).IgnoreError();
}

}  // namespace
}  // namespace millrace

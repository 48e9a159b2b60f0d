// SPDX-License-Identifier: Apache-2.0
//
// A model out of a training graph (export_model) and back for predictions (loaded_model).

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/cached_memory.h"
#include "core/fail_point.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "saver/servable_model.h"
#include "saver/tensor_bundle.h"
#include "train/adam.h"

// covers: values: a model's signatures are compiled when it is loaded; Predict by position compiles
//   nothing and takes no lock of the model; a signature that cannot run leaves the others alone
// covers: values: a model whose signature needs an op that nobody has registered is refused when it
//   is loaded, with op, signature and what to do; one whose training part needs it is served
// covers: training: an export has what its outputs need and nothing else, is complete or absent,
//   loads and predicts; wrong inputs are named
// covers: article 0-25: an interrupted export is no model
// covers: scenario F9: the final exporter

namespace millrace {
namespace {

using absl::StatusCode;

// y = keep * (x w), trained; w and its slots begin with one constant.
struct TrainingGraph {
  TrainingGraph() {
    const Scope cpu = root.WithDevice("/device:CPU:0");
    x = Placeholder(cpu.WithName("x"), DT_FLOAT, {-1, 2});
    t = Placeholder(cpu.WithName("t"), DT_FLOAT, {-1, 1});
    keep = PlaceholderWithDefault(cpu.WithName("keep"), Const(cpu, 1.0f), PartialShape::Scalar());
    const Output half = Const(cpu, Tensor::Of<float>({{0.5}, {0.5}}));
    w = MakeVariable(cpu.WithName("w"), half);
    unread = MakeVariable(cpu.WithName("unread"), half);
    scaled = Identity(cpu.WithName("scaled"), x);
    y = Mul(cpu.WithName("y"), MatMul(cpu, scaled, w.value), keep);
    const Output loss = ReduceMean(cpu, Square(cpu, Sub(cpu, y, t)));
    train =
        AdamOptimizer({.learning_rate = 0.1}).Minimize(cpu, loss, {.global_step = GlobalStep(cpu)});
    init = GlobalVariablesInitializer(cpu);
  }
  StatusOr<std::unique_ptr<Session>> Trained() const {
    MR_ASSIGN_OR_RETURN(auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    const Tensor value = Tensor::Of<float>({{2}, {3}});
    const Output initial(w.initializer.node()->input(1).node, 0);
    MR_RETURN_IF_ERROR(session->Run({{initial, value}}, {}, {w.initializer}).status());
    return session;
  }
  Scope root;
  Output x, t, keep, scaled, y;
  Variable w, unread;
  Operation train, init;
};

class ModelTest : public ::testing::Test {
 protected:
  ModelTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("model_", RandomHexName()))) {}
  ~ModelTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }

  tensorflow::MetaGraphDef ReadMeta(const std::string& directory) {
    const auto model = ReadSavedModel(fs_, directory);
    EXPECT_OK(model.status());
    return model.ok() ? model->meta_graphs(0) : tensorflow::MetaGraphDef();
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_;
};

// --- Export --------------------------------------------------------------------------------------

TEST_F(ModelTest, AnExportHasWhatTheOutputsNeedAndNothingElse) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  ASSERT_OK(ExportModel(session.get(), graph.root,
                        {.inputs = {{"x", graph.x}}, .outputs = {{"y", graph.y}}}, dir_));
  const tensorflow::MetaGraphDef meta = ReadMeta(dir_);
  std::set<std::string> nodes, ops;
  for (const tensorflow::NodeDef& node : meta.graph_def().node()) {
    EXPECT_EQ(node.device(), "") << node.name();
    if (absl::StartsWith(node.name(), "save/")) continue;
    nodes.insert(node.name());
    ops.insert(node.op());
  }
  EXPECT_EQ(ops, (std::set<std::string>{"Placeholder", "PlaceholderWithDefault", "Const",
                                        "VarHandleOp", "VarIsInitializedOp", "AssignVariableOp",
                                        "ReadVariableOp", "Identity", "MatMul", "Mul"}));
  EXPECT_EQ(nodes.count("unread"), 0u);
  EXPECT_EQ(nodes.count("t"), 0u);
  EXPECT_EQ(meta.collection_def().at("variables").bytes_list().value_size(), 1);
  EXPECT_EQ(meta.collection_def().at("trainable_variables").bytes_list().value_size(), 1);
  EXPECT_EQ(meta.collection_def().count("train_op"), 0u);
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(fs_, dir_ + "/variables/variables"));
  EXPECT_TRUE(reader->Contains("w"));
  EXPECT_FALSE(reader->Contains("w/Adam"));
  EXPECT_FALSE(reader->Contains("global_step"));
  ASSERT_OK_AND_ASSIGN(const Tensor w, reader->Read("w"));
  EXPECT_EQ(w, Tensor::Of<float>({{2}, {3}}));
  // The session that trained goes on.
  EXPECT_OK(session
                ->Run({{graph.x, Tensor::Of<float>({{1, 1}})}, {graph.t, Tensor::Of<float>({{1}})}},
                      {}, {graph.train})
                .status());
}

TEST_F(ModelTest, AnExportedModelPredictsAsItsSessionDoes) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  ASSERT_OK(ExportModel(session.get(), graph.root,
                        {.inputs = {{"x", graph.x}, {"keep", graph.keep}},
                         .outputs = {{"y", graph.y}, {"same", graph.x}},
                         .key = "both"},
                        dir_ + "/"));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_));
  ASSERT_OK_AND_ASSIGN(const NamedTensors out,
                       model.Predict({{"x", Tensor::Of<float>({{1, 0}, {1, 1}})},
                                      {"keep", Tensor::Scalar<float>(10)}},
                                     {.signature = "both"}));
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out.at("y"), Tensor::Of<float>({{20}, {50}}));
  EXPECT_EQ(out.at("same"), Tensor::Of<float>({{1, 0}, {1, 1}}));
  ASSERT_EQ(model.signatures().size(), 1u);
  const ModelSignature& signature = model.signatures().at("both");
  EXPECT_EQ(signature.method_name(), "tensorflow/serving/predict");
  EXPECT_EQ(signature.inputs().at("x").dtype(), DT_FLOAT);
  EXPECT_EQ(signature.inputs().at("x").shape().ToString(), "[?,2]");
  EXPECT_EQ(signature.outputs().at("y").name(), "y:0");
}

TEST_F(ModelTest, AnInputThatIsNoPlaceholderBecomesOne) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  // What makes `scaled` is left behind, with the placeholder that it needs. The name is taken.
  ASSERT_OK(ExportModel(session.get(), graph.root,
                        {.inputs = {{"x", graph.scaled}}, .outputs = {{"y", graph.y}}}, dir_));
  const tensorflow::MetaGraphDef meta = ReadMeta(dir_);
  EXPECT_EQ(meta.signature_def().at("serving_default").inputs().at("x").name(), "x_1:0");
  for (const tensorflow::NodeDef& node : meta.graph_def().node()) {
    EXPECT_NE(node.name(), "scaled");
    EXPECT_NE(node.name(), "x");
  }
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_));
  ASSERT_OK_AND_ASSIGN(const NamedTensors out, model.Predict({{"x", Tensor::Of<float>({{1, 2}})}}));
  EXPECT_EQ(out.at("y"), Tensor::Of<float>({{8}}));
}

TEST_F(ModelTest, SeveralSignaturesShareOneGraph) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  const Operation ready = NoOp(graph.root.WithName("ready"));
  ASSERT_OK(session->Extend(graph.root));
  // "late" is fed what "whole" computes; only "whole" needs x; "classes" is fed what nobody
  // computes.
  const Output made = Identity(graph.root.WithName("made"), graph.t);
  const Output last = Neg(graph.root.WithName("last"), made);
  const std::vector<ServingSignature> signatures = {
      {.inputs = {{"x", graph.x}}, .outputs = {{"y", graph.y}}, .key = "whole"},
      {.inputs = {{"s", graph.scaled}}, .outputs = {{"y", graph.y}}, .key = "late"},
      {.inputs = {{"m", made}}, .outputs = {{"last", last}}, .key = "own", .method = "my/method"}};
  ASSERT_OK(ExportModel(session.get(), graph.root, signatures, dir_,
                        {.tags = {"serve", "mine"}, .main_op = ready}));
  const tensorflow::MetaGraphDef meta = ReadMeta(dir_);
  EXPECT_EQ(meta.signature_def().at("late").inputs().at("s").name(), "scaled:0");
  EXPECT_EQ(meta.signature_def().at("own").inputs().at("m").name(), "m:0");
  EXPECT_EQ(meta.signature_def().at("own").method_name(), "my/method");
  EXPECT_EQ(meta.collection_def().at("saved_model_main_op").node_list().value(0), "ready");
  for (const tensorflow::NodeDef& node : meta.graph_def().node()) {
    EXPECT_NE(node.name(), "made");
    EXPECT_NE(node.name(), "t");
  }
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_, {.tags = {"mine", "serve"}}));
  const Tensor row = Tensor::Of<float>({{1, 2}});
  for (const auto& [key, name] :
       {std::pair<const char*, const char*>{"whole", "x"}, {"late", "s"}}) {
    ASSERT_OK_AND_ASSIGN(const NamedTensors out, model.Predict({{name, row}}, {.signature = key}));
    EXPECT_EQ(out.at("y"), Tensor::Of<float>({{8}})) << key;
  }
  ASSERT_OK_AND_ASSIGN(const NamedTensors out,
                       model.Predict({{"m", Tensor::Of<float>({{3}})}}, {.signature = "own"}));
  EXPECT_EQ(out.at("last"), Tensor::Of<float>({{-3}}));

  const auto refused = [&](std::vector<ServingSignature> wrong, const ExportModelOptions& options,
                           const char* text) {
    EXPECT_STATUS(ExportModel(session.get(), graph.root, wrong, dir_ + "_wrong", options),
                  StatusCode::kInvalidArgument, text);
    EXPECT_FALSE(fs_->FileExists(dir_ + "_wrong"));
  };
  refused({}, {}, "there must be at least one signature, got none");
  refused({signatures[0], signatures[0]}, {}, "keys of their own, got 'whole' twice");
  refused({signatures[0]}, {.tags = {"a", "a"}}, "tags must be names that differ, got 'a', 'a'");
  refused({signatures[0]}, {.tags = {""}}, "tags must be names that differ, got ''");
  refused({signatures[0]}, {.main_op = graph.t.op()},
          "main_op 't' must need no input and no local variable, got 't'");
  ServingSignature wrong = signatures[0];
  wrong.key = kInitOpSignature;
  refused({wrong}, {}, "the key of a signature must be a name and not '__saved_model_init_op'");
  wrong = signatures[0];
  wrong.outputs[""] = graph.y;
  refused({wrong}, {}, "an output must have a name, got '' for 'y:0'");
}

TEST_F(ModelTest, AMainOpRunsBesideTheInitializersOfLocalVariables) {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
  const Variable local = MakeVariable(root.WithName("l"), Const(root, 5.0f), {.local = true});
  const Variable saved = MakeVariable(root.WithName("v"), Const(root, 1.0f));
  const Output sum = Add(root, Add(root, x, local.value), saved.value);
  const Operation seven = AssignVariableOp(root.WithName("seven"), saved.handle, Const(root, 7.0f));
  const Operation reads = Group(root.WithName("reads"), {local.value.op()});
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {saved.initializer, local.initializer}).status());
  const ServingSignature signature = {.inputs = {{"x", x}}, .outputs = {{"y", sum}}};
  ASSERT_OK(ExportModel(session.get(), root, {&signature, 1}, dir_, {.main_op = seven}));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_));
  ASSERT_OK_AND_ASSIGN(const NamedTensors out, model.Predict({{"x", Tensor::Scalar<float>(1)}}));
  EXPECT_EQ(out.at("y").scalar<float>(), 13);
  EXPECT_STATUS(ExportModel(session.get(), root, {&signature, 1}, dir_ + "_2", {.main_op = reads}),
                StatusCode::kInvalidArgument, "no local variable, got 'l'");
}

TEST_F(ModelTest, ModelsWithoutVariablesAndWithLocalOnesWork) {
  for (const bool local : {false, true}) {
    const std::string directory = absl::StrCat(dir_, "/", local);
    Scope root;
    const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
    Output y = Mul(root, x, Const(root, 2.0f));
    if (local) {
      const Variable v = MakeVariable(root.WithName("v"), Const(root, 5.0f), {.local = true});
      y = Add(root, y, v.value);
    }
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(ExportModel(session.get(), root, {.inputs = {{"in put", x}}, .outputs = {{"y", y}}},
                          directory));
    ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(directory));
    ASSERT_OK_AND_ASSIGN(const NamedTensors out,
                         model.Predict({{"in put", Tensor::Scalar<float>(3)}}));
    EXPECT_EQ(out.at("y").scalar<float>(), local ? 11 : 6);
  }
}

TEST_F(ModelTest, AnInterruptedExportIsNoModelAndInNobodysWay) {
  const TrainingGraph graph;
  ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_ + ".unfinished/variables"));
  ASSERT_OK(WriteFileAtomically(fs_, dir_ + ".unfinished/variables/part", "half a file"));
  EXPECT_OK(CheckExportDirectory(dir_));
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  const ServingSignature signature = {.inputs = {{"x", graph.x}}, .outputs = {{"y", graph.y}}};
  ASSERT_OK(ExportModel(session.get(), graph.root, signature, dir_));
  EXPECT_FALSE(fs_->FileExists(dir_ + ".unfinished"));
  EXPECT_OK(LoadModel(dir_).status());
  EXPECT_STATUS(ExportModel(session.get(), graph.root, signature, dir_),
                StatusCode::kFailedPrecondition,
                absl::StrCat("ExportModel: the export directory '", dir_,
                             "' must be new or empty, got 3 files in it"));
}

TEST_F(ModelTest, SignaturesThatDoNotFitTheGraphAreRefused) {
  const TrainingGraph graph;
  Scope other_root;
  const Output other = Const(other_root, 1.0f);
  struct Case {
    ServingSignature signature;
    const char* text;
  };
  const Case cases[] = {
      {{}, "signature 'serving_default' must have at least one output, got none"},
      {{.inputs = {}, .outputs = {{"y", Output()}}}, "output 'y' must be a tensor of the model's"},
      {{.inputs = {{"x", other}}, .outputs = {{"y", graph.y}}},
       "input 'x' must be a tensor of the model's graph, got one of another Scope"},
      {{.inputs = {{"keep", graph.keep}}, .outputs = {{"y", graph.y}}},
       "the outputs need 'x', which must be an input; inputs are 'keep' ('keep:0')"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(CheckServingSignature(graph.root, c.signature), StatusCode::kInvalidArgument,
                  c.text);
    EXPECT_STATUS(ExportModel(nullptr, graph.root, c.signature, dir_), StatusCode::kInvalidArgument,
                  c.text);
  }
  // What a directory cannot be renamed to is found before the training, not after it.
  const std::string link = dir_ + "_link";
  std::filesystem::create_directory(dir_ + "_linked");
  std::filesystem::create_directory_symlink(dir_ + "_linked", link);
  EXPECT_FALSE(CheckExportDirectory(link).ok());
  EXPECT_STATUS(CheckExportDirectory("/"), StatusCode::kInvalidArgument, "must have a name");
  EXPECT_FALSE(fs_->FileExists(dir_));
  // A session in which nothing was initialised.
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(graph.root));
  const Status status = ExportModel(
      session.get(), graph.root, {.inputs = {{"x", graph.x}}, .outputs = {{"y", graph.y}}}, dir_);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(absl::StrContains(status.message(), "'w'") ||
              absl::StrContains(status.message(), "w/"))
      << status;
  EXPECT_FALSE(fs_->FileExists(dir_));
}

// --- By position ---------------------------------------------------------------------------------

// Three signatures over one graph: both inputs, one of them, and a kind that no program has.
class ServableModelTest : public ModelTest {
 protected:
  void SetUp() override {
    const TrainingGraph graph;
    ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
    ASSERT_OK(ExportModel(session.get(), graph.root,
                          {.inputs = {{"images", graph.x}, {"keep", graph.keep}},
                           .outputs = {{"scaled", graph.scaled}, {"y", graph.y}}},
                          dir_));
    const std::string path = JoinPath(dir_, kSavedModelFile);
    ASSERT_OK_AND_ASSIGN(tensorflow::SavedModel saved, ReadSavedModelFile(fs_, path));
    tensorflow::MetaGraphDef* const meta = saved.mutable_meta_graphs(0);
    auto& signatures = *meta->mutable_signature_def();
    signatures["plain"] = signatures.at("serving_default");
    signatures["plain"].mutable_inputs()->erase("keep");
    signatures["plain"].mutable_outputs()->erase("scaled");
    tensorflow::NodeDef* const node = meta->mutable_graph_def()->add_node();
    node->set_name("strange");
    node->set_op("NobodyHasThisKind");
    node->add_input("x");
    signatures["strange"] = signatures.at("plain");
    signatures["strange"].mutable_outputs()->at("y").set_name("strange:0");
    ASSERT_OK(WriteFileAtomically(fs_, path, saved.SerializeAsString()));
  }

  const Tensor images_ = Tensor::Of<float>({{1, 2}});
  // Without the one whose op nobody has.
  const LoadModelOptions others_ = {.signatures = {"plain", "serving_default"}};
};

TEST_F(ServableModelTest, TensorsGoByTheOrderOfTheirKeys) {
  ASSERT_OK_AND_ASSIGN(const ServableModel model, ServableModel::Load(dir_, others_));
  ASSERT_EQ(model.num_signatures(), 3);
  ASSERT_OK_AND_ASSIGN(const int both, model.FindSignature("serving_default"));
  const ServableSignature& signature = model.signature(both);
  ASSERT_EQ(signature.inputs.size(), 2u);
  EXPECT_EQ(signature.inputs[0].key, "images");
  EXPECT_EQ(signature.inputs[1].key, "keep");
  ASSERT_EQ(signature.outputs.size(), 2u);
  EXPECT_EQ(signature.outputs[0].key, "scaled");
  EXPECT_EQ(signature.outputs[1].key, "y");
  std::vector<Tensor> outputs(2);
  ASSERT_OK(model.Predict(both, {images_, Tensor::Scalar<float>(0.5)}, absl::MakeSpan(outputs)));
  ExpectTensorEqual(outputs[0], images_);
  ExpectTensorEqual(outputs[1], Tensor::Of<float>({{4}}));  // (1 * 2 + 2 * 3) / 2
  ASSERT_OK_AND_ASSIGN(const int one, model.FindSignature("plain"));
  std::vector<Tensor> output(1);
  ASSERT_OK(model.Predict(one, {images_}, absl::MakeSpan(output)));
  ExpectTensorEqual(output[0], Tensor::Of<float>({{8}}));
}

TEST_F(ServableModelTest, ASignatureThatNeedsAnOpThatNobodyHasIsAnErrorOfLoading) {
  const std::string text = absl::StrCat(
      "Model '", dir_,
      "': signature 'strange' must have ops that are registered in this program, got "
      "'NobodyHasThisKind' of node 'strange'; the library that has it must be linked, or loaded "
      "before the graph (LoadOpLibrary; --op_library of the tools); "
      "LoadModelOptions::signatures names those that are to be served");
  const auto unimplemented = StatusCode::kUnimplemented;
  EXPECT_STATUS(ServableModel::Load(dir_).status(), unimplemented, text);
  EXPECT_STATUS(LoadModel(dir_).status(), unimplemented, text);
  EXPECT_STATUS(LoadModel(dir_, {.signatures = {"plain", "strange"}}).status(), unimplemented,
                text);
  EXPECT_STATUS(LoadModel(dir_, {.signatures = {"plian"}}).status(), StatusCode::kInvalidArgument,
                "a signature to serve must be one of 'plain', 'serving_default', 'strange', got "
                "'plian'; did you mean 'plain'?");
  ASSERT_OK_AND_ASSIGN(const Model model, ReadModel(dir_));
  EXPECT_STATUS(LoadModel(model).status(), unimplemented, text);
  EXPECT_OK(LoadModel(model, {}, {"plain"}).status());
}

// What trained the model may have ops that are in no program that serves it.
TEST_F(ServableModelTest, AnOpThatNoSignatureReachesIsNotMissed) {
  const std::string path = JoinPath(dir_, kSavedModelFile);
  ASSERT_OK_AND_ASSIGN(tensorflow::SavedModel saved, ReadSavedModelFile(fs_, path));
  saved.mutable_meta_graphs(0)->mutable_signature_def()->erase("strange");
  ASSERT_OK(WriteFileAtomically(fs_, path, saved.SerializeAsString()));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_));
  EXPECT_OK(model.Predict({{"images", images_}}, {.signature = "plain"}).status());
  // The step that needs it says what to do.
  EXPECT_STATUS(model.session()->Run({{"x", images_}}, {"strange:0"}).status(),
                StatusCode::kUnimplemented, "loaded before the graph (LoadOpLibrary;");
}

TEST_F(ServableModelTest, ASignatureThatCannotBeCompiledLeavesTheOthersAlone) {
  ASSERT_OK_AND_ASSIGN(const ServableModel model, ServableModel::Load(dir_, others_));
  ASSERT_OK_AND_ASSIGN(const int strange, model.FindSignature("strange"));
  EXPECT_FALSE(model.status(strange).ok());
  std::vector<Tensor> output(1);
  EXPECT_STATUS(model.Predict(strange, {images_}, absl::MakeSpan(output)),
                model.status(strange).code(), "NobodyHasThisKind");
  EXPECT_STATUS(model.status(strange), model.status(strange).code(),
                "Predict: signature 'strange': ");
  ASSERT_OK_AND_ASSIGN(const int one, model.FindSignature("plain"));
  EXPECT_OK(model.status(one));
  EXPECT_OK(model.Predict(one, {images_}, absl::MakeSpan(output)));
}

TEST_F(ServableModelTest, AnErrorThatMayPassIsLoadsAndStaysInNoModel) {
  {
    const ScopedFailPoints busy("session/compile=error:unavailable,after=1");
    EXPECT_STATUS(ServableModel::Load(dir_, others_).status(), StatusCode::kUnavailable,
                  "signature '");
  }
  ASSERT_OK_AND_ASSIGN(const ServableModel model, ServableModel::Load(dir_, others_));
  ASSERT_OK_AND_ASSIGN(const int one, model.FindSignature("plain"));
  EXPECT_OK(model.status(one));
}

TEST_F(ServableModelTest, NothingIsCompiledAndNoLockOfTheModelIsTakenByAPredict) {
  ASSERT_OK_AND_ASSIGN(const ServableModel model, ServableModel::Load(dir_, others_));
  ASSERT_OK_AND_ASSIGN(const int one, model.FindSignature("plain"));
  ASSERT_OK_AND_ASSIGN(const auto step, model.session()->Prepare(Signature{
                                            .feeds = {"x:0"}, .fetches = {"y:0"}, .targets = {}}));
  std::vector<Tensor> output(1);
  const std::vector<Tensor> inputs = {images_};
  const ScopedFailPoints no_compiling("session/compile=error:internal");
  const auto locks_of = [&](absl::FunctionRef<Status()> run) {
    EXPECT_OK(run());  // what threads keep is there from now on
    const int64_t before = MutexLockCountForTesting();
    EXPECT_OK(run());
    return MutexLockCountForTesting() - before;
  };
  const int64_t of_step = locks_of([&] { return step->RunInto(inputs, absl::MakeSpan(output)); });
  EXPECT_EQ(locks_of([&] { return model.Predict(one, inputs, absl::MakeSpan(output)); }), of_step);
}

TEST_F(ServableModelTest, WhatDoesNotFitTheSignatureIsNamedAndLeavesNoOutput) {
  ASSERT_OK_AND_ASSIGN(const ServableModel model, ServableModel::Load(dir_, others_));
  ASSERT_OK_AND_ASSIGN(const int both, model.FindSignature("serving_default"));
  const Tensor keep = Tensor::Scalar<float>(1);
  struct Case {
    int signature;
    std::vector<Tensor> inputs;
    size_t outputs;
    const char* text;
  };
  const Case cases[] = {
      {-1, {images_, keep}, 2, "signature must be a number from 0 to 2, got -1"},
      {3, {images_, keep}, 2, "signature must be a number from 0 to 2, got 3"},
      {both, {images_}, 2, "signature 'serving_default' must be given 2 inputs, got 1"},
      {both, {images_, keep}, 1, "must be given places for 2 outputs, got 1"},
      {both,
       {keep, images_},
       2,
       "input 'images' of signature 'serving_default' must have shape [?,2], got []"},
      {both,
       {Tensor::Of<int32_t>({{1, 2}}), keep},
       2,
       "input 'images' of signature 'serving_default' must be float, got int32"},
      {both,
       {images_, Tensor()},
       2,
       "input 'keep' of signature 'serving_default' must be float, got "},
  };
  for (const Case& c : cases) {
    std::vector<Tensor> outputs(c.outputs, keep);
    EXPECT_STATUS(model.Predict(c.signature, c.inputs, absl::MakeSpan(outputs)),
                  StatusCode::kInvalidArgument, c.text);
    for (const Tensor& output : outputs) EXPECT_FALSE(output.has_value()) << c.text;
  }
  EXPECT_STATUS(model.FindSignature("serving_defualt").status(), StatusCode::kInvalidArgument,
                "must be one of 'plain', 'serving_default', 'strange'; did you mean");
}

#if !defined(__SANITIZE_ADDRESS__)
int64_t ResidentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// MODEL_MB=400 MODEL_LOADS=20 in the environment for the size of a server.
TEST_F(ModelTest, AModelThatIsGoneGivesItsMemoryBackToTheSystem) {
  const auto number = [](const char* name, int64_t otherwise) {
    const char* const text = std::getenv(name);
    return text == nullptr ? otherwise : std::stoll(text);
  };
  const auto export_rows = [&](int64_t rows, const std::string& directory) {
    Scope root;
    const Output x = Placeholder(root.WithName("x"), DT_INT32, {-1});
    const Variable table = MakeVariable(
        root.WithName("table"), Fill(root, Const<int64_t>(root, {rows, 256}), Const(root, 1.0f)));
    const Output y = Gather(root.WithName("y"), table.value, x);
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {GlobalVariablesInitializer(root)}).status());
    ASSERT_OK(
        ExportModel(session.get(), root, {.inputs = {{"x", x}}, .outputs = {{"y", y}}}, directory));
  };
  const auto use = [&](const std::string& directory, int64_t bytes) {
    ASSERT_OK_AND_ASSIGN(const ServableModel model, ServableModel::Load(directory));
    std::vector<Tensor> outputs(1);
    ASSERT_OK(model.Predict(0, {Tensor::Of<int32_t>({0, 1})}, absl::MakeSpan(outputs)));
    EXPECT_GE(ResidentBytes(), bytes);
  };
  const int64_t rows = number("MODEL_MB", 48) << 10;
  export_rows(rows, JoinPath(dir_, "large"));
  export_rows(2, JoinPath(dir_, "small"));
  use(JoinPath(dir_, "small"), 0);  // threads, registries
  ReleaseCachedMemory();            // of the exports
  const int64_t before = ResidentBytes();
  for (int64_t i = number("MODEL_LOADS", 3); i > 0; --i) {
    use(JoinPath(dir_, "large"), before + rows * 1000);
  }
  EXPECT_LE(ResidentBytes() - before, int64_t{16} << 20);
}
#endif

// --- Predict -------------------------------------------------------------------------------------

TEST_F(ModelTest, InputsThatDoNotFitTheSignatureAreNamed) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  ASSERT_OK(ExportModel(
      session.get(), graph.root,
      {.inputs = {{"images", graph.x}, {"keep", graph.keep}}, .outputs = {{"y", graph.y}}}, dir_));
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(dir_));
  const Tensor images = Tensor::Of<float>({{1, 2}});
  const Tensor keep = Tensor::Scalar<float>(1);
  struct Case {
    NamedTensors inputs;
    const char* signature;
    const char* text;
  };
  const Case cases[] = {
      {{{"images", images}, {"keep", keep}},
       "serving_defualt",
       "Predict: signature 'serving_defualt' must be one of 'serving_default'; did you mean "
       "'serving_default'?"},
      {{{"image", images}, {"keep", keep}},
       "serving_default",
       "Predict: input 'image' must be one of signature 'serving_default': 'images', 'keep'; did "
       "you mean 'images'?"},
      {{{"images", images}},
       "serving_default",
       "Predict: input 'keep' of signature 'serving_default' must be given, got 'images'"},
      {{},
       "serving_default",
       "Predict: input 'images' of signature 'serving_default' must be given, got none"},
      {{{"images", Tensor::Of<int32_t>({{1, 2}})}, {"keep", keep}},
       "serving_default",
       "Predict: input 'images' of signature 'serving_default' must be float, got int32"},
      {{{"images", Tensor()}, {"keep", keep}},
       "serving_default",
       "Predict: input 'images' of signature 'serving_default' must be float, got "},
      {{{"images", Tensor::Of<float>({{1, 2, 3}})}, {"keep", keep}},
       "serving_default",
       "Predict: input 'images' of signature 'serving_default' must have shape [?,2], got [1,3]"},
      {{{"images", Tensor::Of<float>({1, 2})}, {"keep", keep}},
       "serving_default",
       "Predict: input 'images' of signature 'serving_default' must have shape [?,2], got [2]; it "
       "is one row: did you forget the batch dimension, as in [1,2]?"},
      {{{"images", images}, {"keep", images}},
       "serving_default",
       "Predict: input 'keep' of signature 'serving_default' must have shape [], got [1,2]"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(model.Predict(c.inputs, {.signature = c.signature}).status(),
                  StatusCode::kInvalidArgument, c.text);
  }
  // The next good call works.
  EXPECT_OK(model.Predict({{"images", images}, {"keep", keep}}).status());
  EXPECT_STATUS(LoadModel(dir_ + "/nothing").status(), StatusCode::kNotFound, dir_ + "/nothing");
  EXPECT_STATUS(LoadModel(dir_, {.tags = {"train"}}).status(), StatusCode::kNotFound, "{ train }");
}

TEST_F(ModelTest, SignaturesOfDamagedModelsAreErrorsOfThoseWhoUseThem) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  ASSERT_OK(ExportModel(session.get(), graph.root,
                        {.inputs = {{"x", graph.x}}, .outputs = {{"y", graph.y}}}, dir_));
  const std::string path = JoinPath(dir_, kSavedModelFile);
  ASSERT_OK_AND_ASSIGN(const tensorflow::SavedModel good, ReadSavedModelFile(fs_, path));
  NamedTensors inputs = {{"x", Tensor::Of<float>({{1, 2}})}};
  using Change = std::function<void(tensorflow::SignatureDef*)>;
  const auto predicted = [&](const Change& change) -> StatusOr<NamedTensors> {
    tensorflow::SavedModel damaged = good;
    auto& signatures = *damaged.mutable_meta_graphs(0)->mutable_signature_def();
    change(&signatures.at("serving_default"));
    MR_RETURN_IF_ERROR(WriteFileAtomically(fs_, path, damaged.SerializeAsString()));
    MR_ASSIGN_OR_RETURN(const LoadedModel model, LoadModel(dir_));
    EXPECT_EQ(model.signatures().size(), 1u);
    return model.Predict(inputs);
  };
  // Outputs and inputs that the nodes do not have.
  EXPECT_STATUS(predicted([](auto* s) { s->mutable_outputs()->at("y").set_name("y:7"); }).status(),
                StatusCode::kInvalidArgument, "y:7");
  EXPECT_STATUS(predicted([](auto* s) { s->mutable_inputs()->at("x").set_name("x:-1"); }).status(),
                StatusCode::kInvalidArgument, "x:-1");
  EXPECT_STATUS(predicted([](auto* s) { s->mutable_outputs()->at("y").set_name("gone"); }).status(),
                StatusCode::kInvalidArgument, "output 'y' must be a tensor of the graph");
  EXPECT_STATUS(predicted([](auto* s) {
                  s->mutable_inputs()->at("x").set_dtype(tensorflow::DT_INT32);
                }).status(),
                StatusCode::kInvalidArgument,
                "input 'x' of signature 'serving_default' must be int32, got float");
  // Where the signature says nothing, or something else than the graph, the graph refuses.
  inputs = {{"x", Tensor::Of<int32_t>({{1, 2}})}};
  for (const Change& change :
       {Change([](auto* s) { s->mutable_inputs()->at("x").clear_dtype(); }),
        Change([](auto* s) { s->mutable_inputs()->at("x").set_dtype(tensorflow::DT_INT32); })}) {
    EXPECT_STATUS(predicted(change).status(), StatusCode::kInvalidArgument,
                  "Predict: input 'x' of signature 'serving_default': Cannot feed value of type "
                  "int32 for Tensor 'x:0', which has type float");
  }
  inputs = {{"x", Tensor::Of<float>({{1, 2}})}};
  // What says nothing sound of dtype and shape stops nobody: the graph knows better.
  for (const Change& change :
       {Change([](auto* s) { s->mutable_inputs()->at("x").set_dtype(tensorflow::DataType(999)); }),
        Change([](auto* s) { s->mutable_inputs()->at("x").clear_dtype(); }), Change([](auto* s) {
          s->mutable_inputs()->at("x").mutable_tensor_shape()->mutable_dim(0)->set_size(-7);
        })}) {
    ASSERT_OK_AND_ASSIGN(const NamedTensors out, predicted(change));
    EXPECT_EQ(out.at("y"), Tensor::Of<float>({{8}}));
  }
}

TEST_F(ModelTest, ManyThreadsMayPredict) {
  const TrainingGraph graph;
  ASSERT_OK_AND_ASSIGN(const auto session, graph.Trained());
  ASSERT_OK(ExportModel(session.get(), graph.root,
                        {.inputs = {{"x", graph.x}}, .outputs = {{"y", graph.y}}}, dir_));
  ASSERT_OK_AND_ASSIGN(LoadedModel loaded, LoadModel(dir_));
  const LoadedModel model = std::move(loaded);
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&model, k] {
      const float value = static_cast<float>(k);
      for (int i = 0; i < 100; ++i) {
        const auto out = model.Predict({{"x", Tensor::Of<float>({{value, value}})}});
        ASSERT_OK(out.status());
        ASSERT_EQ(out->at("y"), Tensor::Of<float>({{5 * value}}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(ModelTest, AModelThatTensorFlowWrotePredictsByAnyOfItsSignatures) {
  const std::string path = SharedDataPath("saved_models/predictor_arithmetic");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models/predictor_arithmetic";
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(path));
  std::vector<std::string> keys;
  for (const auto& [key, signature] : model.signatures()) keys.push_back(key);
  EXPECT_EQ(keys, (std::vector<std::string>{"difference", "product", "serving_default", "sum"}));
  const NamedTensors inputs = {{"x", Tensor::Scalar<float>(6)}, {"y", Tensor::Scalar<float>(4)}};
  for (const auto& [key, expected] :
       {std::pair<const char*, float>{"difference", 2}, {"product", 24}, {"sum", 10}}) {
    ASSERT_OK_AND_ASSIGN(const NamedTensors out, model.Predict(inputs, {.signature = key}));
    EXPECT_EQ(out.at("outputs").scalar<float>(), expected) << key;
  }
}

}  // namespace
}  // namespace millrace

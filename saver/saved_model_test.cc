// SPDX-License-Identifier: Apache-2.0
#include "saver/saved_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "absl/strings/match.h"
#include "core/deterministic_bytes.h"
#include "core/logging.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/faulty_file_system.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/state/state.h"
#include "proto/meta_graph.pb.h"
#include "proto/saved_model.pb.h"
#include "saver/export_marker.h"
#include "saver/meta_graph.h"
#include "saver/saved_model_reader.h"
#include "saver/tensor_bundle.h"

// covers: values: GraphDefs and SavedModels are read and written again, byte for byte
// covers: values: a SavedModel whose unread asset is missing loads

namespace millrace {
namespace {

FileSystem* const kFiles = FileSystem::Posix();
constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Output Multiply(const Scope& s, Output a, Output b) {
  return NodeBuilder(s, "Mul").Input(a).Input(b).Finish().output(0);
}

// y = w * x with a variable w that starts at 3.
struct Model {
  Model() {
    const Scope ps = root.WithDevice("/job:localhost/task:0");
    x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
    w = MakeVariable(ps.WithName("w"), Const(ps, 3.0f));
    y = Multiply(root.WithName("y"), x, w.value);
  }
  SavedModelOptions Options() {
    SavedModelOptions options;
    const auto signature = PredictSignatureDef(root, {{"x", x}}, {{"y", y}});
    EXPECT_OK(signature.status());
    if (signature.ok()) options.signatures[kDefaultServingSignature] = *signature;
    return options;
  }
  Scope root;
  Output x, y;
  Variable w;
};

class SavedModelTest : public ::testing::Test {
 protected:
  SavedModelTest() : directory_(JoinPath(::testing::TempDir(), "model_" + RandomHexName())) {}
  ~SavedModelTest() override { kFiles->RecursivelyDelete(directory_).IgnoreError(); }

  std::string Path(absl::string_view name) const { return JoinPath(directory_, name); }
  void Write(const std::string& path, absl::string_view bytes) const {
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(Dirname(path)));
    ASSERT_OK_AND_ASSIGN(auto file, kFiles->NewWritableFile(path));
    ASSERT_OK(file->Append(bytes));
    ASSERT_OK(file->Close());
  }
  // Trained: w = 5.
  void Export(bool as_text = false, bool strip_default_attrs = false) {
    Model m;
    ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    const Operation train =
        AssignVariableOp(m.root.WithName("train"), m.w.handle, Const(m.root, 5.0f));
    ASSERT_OK(session->Extend(m.root));
    ASSERT_OK(session->Run({}, {}, {train}).status());
    SavedModelOptions options = m.Options();
    options.strip_default_attrs = strip_default_attrs;
    ASSERT_OK_AND_ASSIGN(auto builder, SavedModelBuilder::Open(directory_));
    ASSERT_OK(builder->AddMetaGraphAndVariables(session.get(), m.root, saver.get(), options));
    ASSERT_OK(builder->Save(as_text));
  }
  Status Load() { return LoadSavedModel({}, directory_, {kSavedModelTagServe}).status(); }
  // The model after `change` was made to its only meta graph.
  Status LoadChanged(const std::function<void(tensorflow::MetaGraphDef*)>& change) {
    auto model = ReadSavedModel(kFiles, directory_);
    if (!model.ok()) return model.status();
    change(model->mutable_meta_graphs(0));
    const std::string before = *ReadFileToString(kFiles, Path(kSavedModelFile));
    Write(Path(kSavedModelFile), model->SerializeAsString());
    const Status status = Load();
    Write(Path(kSavedModelFile), before);
    return status;
  }

  const std::string directory_;
};

TEST_F(SavedModelTest, LoadedModelComputesWithTheTrainedVariables) {
  Export();
  ASSERT_OK_AND_ASSIGN(const auto files, kFiles->GetChildren(directory_));
  EXPECT_EQ(files, (std::vector<std::string>{kExportIsComplete, "saved_model.pb", "variables"}));
  ASSERT_OK_AND_ASSIGN(const auto sizes, ReadExportMarker(kFiles, directory_));
  EXPECT_EQ(sizes.size(), 3u) << "the model, the data and the index of its variables";
  EXPECT_OK(CheckExportMarker(kFiles, directory_));
  ASSERT_OK_AND_ASSIGN(const auto variables, kFiles->GetChildren(Path("variables")));
  EXPECT_EQ(variables,
            (std::vector<std::string>{"variables.data-00000-of-00001", "variables.index"}));
  ASSERT_OK_AND_ASSIGN(SavedModelBundle bundle,
                       LoadSavedModel({}, directory_, {kSavedModelTagServe}));
  ASSERT_OK_AND_ASSIGN(const auto signature, bundle.Signature(kDefaultServingSignature));
  EXPECT_STATUS(bundle.Signature("train").status(), kNotFound,
                "signature 'train' must be one of { serving_default }");
  EXPECT_EQ(signature.method_name(), "tensorflow/serving/predict");
  ASSERT_OK_AND_ASSIGN(
      const auto out,
      bundle.session->Run({{signature.inputs().at("x").name(), TensorOf<float>({2}, {1, 2})}},
                          {signature.outputs().at("y").name()}));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {5, 10}));
}

TEST_F(SavedModelTest, ExportSaysWhatTensorFlowsReadersLookFor) {
  Export();
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(kFiles, directory_));
  EXPECT_EQ(model.saved_model_schema_version(), 1);
  ASSERT_EQ(model.meta_graphs_size(), 1);
  const tensorflow::MetaGraphDef& meta = model.meta_graphs(0);
  EXPECT_EQ(meta.meta_info_def().tensorflow_version(), "1.15.0");
  ASSERT_EQ(meta.meta_info_def().tags_size(), 1);
  EXPECT_EQ(meta.meta_info_def().tags(0), "serve");
  EXPECT_EQ(meta.graph_def().versions().producer(), 134);
  EXPECT_EQ(meta.saver_def().restore_op_name(), "save/restore_all");
  EXPECT_EQ(meta.collection_def().at("variables").bytes_list().value_size(), 1);
  std::vector<std::string> ops;
  for (const auto& op : meta.meta_info_def().stripped_op_list().op()) {
    ops.push_back(op.name());
    EXPECT_EQ(op.summary(), "");
  }
  EXPECT_TRUE(std::is_sorted(ops.begin(), ops.end()));
  EXPECT_NE(std::find(ops.begin(), ops.end(), "VarHandleOp"), ops.end());
  for (const auto& node : meta.graph_def().node()) EXPECT_EQ(node.device(), "") << node.name();
  const auto& x = meta.signature_def().at("serving_default").inputs().at("x");
  EXPECT_EQ(x.name(), "x:0");
  EXPECT_EQ(x.dtype(), tensorflow::DT_FLOAT);
  EXPECT_EQ(x.tensor_shape().dim(0).size(), -1);
}

TEST_F(SavedModelTest, TextAndStrippedModelsLoadToo) {
  Export(/*as_text=*/true, /*strip_default_attrs=*/true);
  EXPECT_TRUE(kFiles->FileExists(Path("saved_model.pbtxt")));
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(kFiles, directory_));
  for (const auto& node : model.meta_graphs(0).graph_def().node()) {
    if (node.op() != "VarHandleOp") continue;
    EXPECT_EQ(node.attr().count("container"), 0u);
  }
  EXPECT_TRUE(model.meta_graphs(0).meta_info_def().stripped_default_attrs());
  EXPECT_OK(Load());
  // The binary file wins.
  Write(Path("saved_model.pb"), "damaged");
  EXPECT_STATUS(Load(), absl::StatusCode::kDataLoss, "saved_model.pb");
}

TEST_F(SavedModelTest, TagsMustBeTheSameSet) {
  Export();
  EXPECT_STATUS(LoadSavedModel({}, directory_, {"serve", "gpu"}).status(), kNotFound,
                "Could not find meta graph def matching supplied tags: { gpu, serve }. To inspect "
                "available tag-sets in the SavedModel, please use the SavedModel CLI: "
                "`saved_model_cli`");
  EXPECT_STATUS(LoadSavedModel({}, directory_, std::initializer_list<std::string>{}).status(),
                kNotFound, "supplied tags: {  }");
  EXPECT_STATUS(LoadSavedModel({}, Path("none"), {"serve"}).status(), kNotFound,
                "Could not find SavedModel .pb or .pbtxt at supplied export directory path: ");
}

TEST_F(SavedModelTest, AWrongPathNamesTheModelThatIsNear) {
  Export();
  for (const char* file : {"saved_model.pb", "variables", "variables/variables.index"}) {
    EXPECT_STATUS(LoadSavedModel({}, Path(file), {"serve"}).status(), kNotFound,
                  absl::StrCat("; the model's directory is '", directory_, "'"));
  }
  EXPECT_STATUS(LoadSavedModel({}, Path("variables/variables"), {"serve"}).status(), kNotFound,
                absl::StrCat("; the model's directory is '", directory_, "'"));
  Write(Path("o/p/versions/3/saved_model.pb"), "");
  EXPECT_STATUS(LoadSavedModel({}, Path("o/p/versions"), {"serve"}).status(), kNotFound,
                absl::StrCat("; its newest version is '", Path("o/p/versions/3"), "'"));
  Write(Path("o/p/run/ckpt-7.index"), "");
  Write(Path("o/p/run/checkpoint"), "");
  for (const char* name : {"o/p/run", "o/p/run/ckpt-7"}) {
    EXPECT_STATUS(LoadSavedModel({}, Path(name), {"serve"}).status(), kNotFound,
                  "; it has a checkpoint ('");
  }
}

TEST_F(SavedModelTest, BuilderRefusesWhatWouldMakeAWrongModel) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(m.root));
  ASSERT_OK_AND_ASSIGN(auto builder, SavedModelBuilder::Open(directory_));
  ASSERT_OK_AND_ASSIGN(auto meta, ExportMetaGraph(m.root, {.tags = {"serve"}}));
  EXPECT_STATUS(builder->Save(), absl::StatusCode::kFailedPrecondition, "at least one meta graph");
  EXPECT_STATUS(builder->AddMetaGraph(meta), absl::StatusCode::kFailedPrecondition,
                "use AddMetaGraphAndVariables");
  ASSERT_OK_AND_ASSIGN(auto no_tags, ExportMetaGraph(m.root));
  EXPECT_STATUS(builder->AddMetaGraphAndVariables(session.get(), no_tags), kInvalid,
                "at least one tag");
  auto wrong = meta;
  (*wrong.mutable_signature_def())["s"] = PredictSignatureDef(m.root, {}, {{"y", m.y}})->def();
  (*(*wrong.mutable_signature_def())["s"].mutable_outputs())["y"].set_name("z:0");
  EXPECT_STATUS(builder->AddMetaGraphAndVariables(session.get(), wrong), kInvalid,
                "signature 's': output 'y' must be a tensor of the graph, got 'z:0'");
  ASSERT_OK(builder->AddMetaGraphAndVariables(session.get(), meta));
  EXPECT_STATUS(builder->AddMetaGraphAndVariables(session.get(), meta),
                absl::StatusCode::kFailedPrecondition, "use AddMetaGraph");
  EXPECT_STATUS(builder->AddMetaGraph(meta), kInvalid, "got { serve } twice");
  ASSERT_OK_AND_ASSIGN(auto train, ExportMetaGraph(m.root, {.tags = {"serve", "train"}}));
  ASSERT_OK(builder->AddMetaGraph(train));
  ASSERT_OK(builder->Save());
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(kFiles, directory_));
  EXPECT_EQ(model.meta_graphs_size(), 2);
  EXPECT_STATUS(SavedModelBuilder::Open(directory_).status(), absl::StatusCode::kFailedPrecondition,
                "must be new or empty, got 2 files in it");
}

TEST_F(SavedModelTest, UninitializedVariableStopsTheExportWithoutAModel) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  ASSERT_OK(session->Extend(m.root));
  ASSERT_OK_AND_ASSIGN(auto builder, SavedModelBuilder::Open(directory_));
  EXPECT_STATUS(builder->AddMetaGraphAndVariables(session.get(), m.root, saver.get(), m.Options()),
                absl::StatusCode::kFailedPrecondition, "w");
  EXPECT_STATUS(builder->Save(), absl::StatusCode::kFailedPrecondition, "got none");
  EXPECT_STATUS(Load(), kNotFound, "Could not find SavedModel");
}

TEST_F(SavedModelTest, AssetsAreCopiedFedAndFoundAgain) {
  const std::string sources = directory_ + "_sources";
  Write(JoinPath(sources, "a/vocabulary.txt"), "one\ntwo\n");
  Write(JoinPath(sources, "b/vocabulary.txt"), "other\n");
  Write(JoinPath(sources, "c/vocabulary.txt"), "other\n");
  Scope root;
  const Output first = Const(root.WithName("first"), "unset");
  const Output second = Const(root.WithName("second"), "unset");
  const Output third = Const(root.WithName("third"), "unset");
  // The init op keeps the path that it is fed.
  const Variable path = MakeVariable(root.WithName("path"), Const(root, "none"), {.local = true});
  const Operation keep = AssignVariableOp(root.WithName("keep"), path.handle, second);
  SavedModelOptions options;
  options.assets = {{first.name(), JoinPath(sources, "a/vocabulary.txt")},
                    {second.name(), JoinPath(sources, "b/vocabulary.txt")},
                    {third.name(), JoinPath(sources, "c/vocabulary.txt")}};
  options.main_op = keep;
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(auto builder, SavedModelBuilder::Open(directory_));
  ASSERT_OK(builder->AddMetaGraphAndVariables(session.get(), root, nullptr, options));
  ASSERT_OK(builder->Save());
  ASSERT_OK(kFiles->RecursivelyDelete(sources));
  ASSERT_OK_AND_ASSIGN(const auto assets, kFiles->GetChildren(Path("assets")));
  EXPECT_EQ(assets, (std::vector<std::string>{"vocabulary.txt", "vocabulary.txt_1"}));
  ASSERT_OK_AND_ASSIGN(SavedModelBundle bundle, LoadSavedModel({}, directory_, {"serve"}));
  ASSERT_OK_AND_ASSIGN(const auto out, bundle.session->Run({}, {path.value.name()}));
  ExpectTensorEqual(out[0], Tensor::Scalar(Path("assets/vocabulary.txt_1")));
}

TEST_F(SavedModelTest, AMissingAssetFailsOnlyTheOpThatReadsIt) {
  const std::string source = directory_ + "_source";
  Write(source, "no checkpoint");
  Scope root;
  const Output path = Const(root.WithName("path"), "unset");
  NodeBuilder(root.WithName("read"), "RestoreV2")
      .Input(path)
      .Input(Const(root, TensorOf<std::string>({1}, {"v"})))
      .Input(Const(root, TensorOf<std::string>({1}, {""})))
      .Attr("dtypes", std::vector<DType>{DT_FLOAT})
      .Finish();
  SavedModelOptions options;
  options.assets = {{path.name(), source}};
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK_AND_ASSIGN(auto builder, SavedModelBuilder::Open(directory_));
  ASSERT_OK(builder->AddMetaGraphAndVariables(session.get(), root, nullptr, options));
  ASSERT_OK(builder->Save());
  ASSERT_OK(kFiles->DeleteFile(source));
  const std::string asset = Path("assets/" + Basename(source));
  ASSERT_OK(kFiles->DeleteFile(asset));

  ::testing::internal::CaptureStderr();
  EXPECT_OK(Load());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find(asset + "' does not exist"), std::string::npos) << log;
  const auto init_reads_it = [&](tensorflow::MetaGraphDef* m) {
    (*m->mutable_collection_def())["saved_model_main_op"].mutable_node_list()->add_value("read");
  };
  EXPECT_STATUS(LoadChanged(init_reads_it), kNotFound, asset);
}

TEST_F(SavedModelTest, WrongModelsAreRefusedWithTheReason) {
  Export();
  using Meta = tensorflow::MetaGraphDef;
  const auto main_op = [](Meta* meta) {
    return &(*meta->mutable_collection_def())["saved_model_main_op"];
  };
  EXPECT_STATUS(LoadChanged([&](Meta* m) { main_op(m)->mutable_node_list()->add_value("gone"); }),
                kNotFound, "the init op 'gone' of collection 'saved_model_main_op'");
  EXPECT_STATUS(LoadChanged([&](Meta* m) { main_op(m)->mutable_bytes_list()->add_value("y"); }),
                kNotFound, "must name one node, got 0");
  EXPECT_STATUS(LoadChanged([&](Meta* m) {
                  main_op(m)->mutable_node_list()->add_value("y");
                  main_op(m)->mutable_node_list()->add_value("x");
                }),
                kNotFound, "must name one node, got 2");
  EXPECT_STATUS(
      LoadChanged([](Meta* m) { (*m->mutable_signature_def())["__saved_model_init_op"]; }),
      kNotFound, "got none");
  EXPECT_STATUS(LoadChanged([](Meta* m) {
                  auto* signature = &(*m->mutable_signature_def())["serving_default"];
                  (*signature->mutable_inputs())["x"].set_name("gone:0");
                }),
                kInvalid, "signature 'serving_default': input 'x' must be a tensor of the graph");
  EXPECT_STATUS(LoadChanged([](Meta* m) { m->add_asset_file_def()->set_filename("../../etc/x"); }),
                kInvalid, "must be a file in 'assets', got '../../etc/x'");
  EXPECT_STATUS(LoadChanged([](Meta* m) {
                  m->add_asset_file_def()->set_filename("vocabulary");
                  m->mutable_asset_file_def(0)->mutable_tensor_info()->set_name("gone:0");
                }),
                kNotFound, "asset tensor 'gone:0' must be in the graph");
  EXPECT_STATUS(LoadChanged([](Meta* m) {
                  (*m->mutable_collection_def())["saved_model_assets"]
                      .mutable_any_list()
                      ->add_value()
                      ->set_value("\xff\xff");
                }),
                absl::StatusCode::kDataLoss, "must hold assets");
  EXPECT_STATUS(LoadChanged([](Meta* m) { m->mutable_saver_def()->set_restore_op_name("gone"); }),
                kNotFound, "gone");
  EXPECT_STATUS(
      LoadChanged([](Meta* m) { m->mutable_graph_def()->mutable_node(0)->add_input("nowhere"); }),
      kInvalid, "GraphDef node[0] 'x'");
  // An attr of a later TensorFlow: gone when it is the default, refused when not.
  const auto add_attr = [](Meta* m, bool value) {
    for (auto& op : *m->mutable_meta_info_def()->mutable_stripped_op_list()->mutable_op()) {
      if (op.name() != "Mul") continue;
      auto* attr = op.add_attr();
      attr->set_name("grappler_hint");
      attr->set_type("bool");
      attr->mutable_default_value()->set_b(false);
    }
    for (auto& node : *m->mutable_graph_def()->mutable_node()) {
      if (node.op() == "Mul") (*node.mutable_attr())["grappler_hint"].set_b(value);
    }
  };
  EXPECT_OK(LoadChanged([&](Meta* m) { add_attr(m, false); }));
  EXPECT_STATUS(LoadChanged([&](Meta* m) { add_attr(m, true); }), kInvalid,
                "Mul 'y': attr 'grappler_hint' is unknown to this program");
  EXPECT_OK(Load());
  ASSERT_OK(kFiles->DeleteFile(BundleDataPath(Path("variables/variables"), 0, 1)));
  EXPECT_STATUS(Load(), kNotFound, "variables.data-00000-of-00001");
  ASSERT_OK(kFiles->DeleteFile(Path("variables/variables.index")));
  EXPECT_STATUS(Load(), kNotFound, "its graph has variables");
}

// Counts how often indexes are opened.
class IndexReads : public FaultyFileSystem {
 public:
  using FaultyFileSystem::FaultyFileSystem;
  StatusOr<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(
      const std::string& path) override {
    if (absl::EndsWith(path, ".index")) ++count;
    return FaultyFileSystem::NewRandomAccessFile(path);
  }
  int count = 0;
};

// Of a checkpoint in two data files the model reads one: the other may be missing. The index is
// read once, however many nodes restore from it.
TEST_F(SavedModelTest, OnlyWhatRestoringReadsMustBeThere) {
  Export();
  const std::string prefix = Path("variables/variables");
  ASSERT_OK(kFiles->RecursivelyDelete(Dirname(prefix)));
  for (const auto& [part, name] : {std::pair("a", "unread"), std::pair("b", "w")}) {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(kFiles, Path(part)));
    ASSERT_OK(writer->Add(name, Tensor::Scalar<float>(5)));
    ASSERT_OK(writer->Finish());
  }
  ASSERT_OK(MergeBundles(kFiles, {Path("a"), Path("b")}, prefix, /*delete_parts=*/true));
  ASSERT_OK_AND_ASSIGN(auto model, ReadSavedModel(kFiles, directory_));
  auto* const graph = model.mutable_meta_graphs(0)->mutable_graph_def();
  for (int i = 0, count = graph->node_size(); i < count; ++i) {
    auto* const node = graph->mutable_node(i);
    if (node->name() == "save/restore_all") node->add_input("^again");
    if (node->op() != "RestoreV2") continue;
    auto* const again = graph->add_node();
    *again = graph->node(i);
    again->set_name("again");
  }
  IndexReads files(kFiles, directory_);
  EXPECT_TRUE(PlanLoading(&files, directory_, model.meta_graphs(0)).errors.empty());
  EXPECT_EQ(files.count, 1);
  ASSERT_OK(kFiles->DeleteFile(BundleDataPath(prefix, 0, 2)));
  EXPECT_OK(Load());
  ASSERT_OK(kFiles->DeleteFile(BundleDataPath(prefix, 1, 2)));
  EXPECT_STATUS(Load(), kNotFound, "variables.data-00001-of-00002");
}

TEST_F(SavedModelTest, WhatTheCheckpointLacksIsKnownBeforeThereIsASession) {
  Export();
  ASSERT_OK_AND_ASSIGN(const auto model, ReadSavedModel(kFiles, directory_));
  const std::string prefix = Path("variables/variables");
  const auto write = [&](const std::string& name, const Tensor& value) {
    ASSERT_OK(kFiles->RecursivelyDelete(Dirname(prefix)));
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(Dirname(prefix)));
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(kFiles, prefix));
    ASSERT_OK(writer->Add(name, value));
    ASSERT_OK(writer->Finish());
  };
  const auto refused = [&](absl::StatusCode code, const char* text) {
    const LoadPlan plan = PlanLoading(kFiles, directory_, model.meta_graphs(0));
    ASSERT_EQ(plan.errors.size(), 1u) << text;
    EXPECT_STATUS(plan.errors[0], code, text);
    EXPECT_EQ(Load(), plan.errors[0]);
  };
  EXPECT_TRUE(PlanLoading(kFiles, directory_, model.meta_graphs(0)).errors.empty());
  write("q", Tensor::Scalar<float>(5));
  refused(kNotFound, "Key w not found in checkpoint");
  write("w", Tensor::Scalar<int32_t>(5));
  refused(kInvalid, "'w' must have the dtype that the graph expects, float, got int32");
  write("w", Tensor::Scalar<float>(5));
  EXPECT_OK(Load());
  Write(BundleDataPath(prefix, 0, 1), "abc");
  refused(absl::StatusCode::kDataLoss, "must have 4 bytes, got 3; it is cut off");
  Write(BundleIndexPath(prefix), "no table");
  refused(absl::StatusCode::kDataLoss, "a table must have a footer");
  // A shape that the variable cannot have is found by the step.
  write("w", Tensor::Of<float>({1, 2}));
  EXPECT_TRUE(PlanLoading(kFiles, directory_, model.meta_graphs(0)).errors.empty());
  EXPECT_STATUS(Load(), kInvalid, "'w'");
}

TEST_F(SavedModelTest, EveryCutOfTheModelFileIsRefused) {
  Export();
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFileToString(kFiles, Path(kSavedModelFile)));
  for (size_t length = 0; length < good.size(); ++length) {
    Write(Path(kSavedModelFile), absl::string_view(good).substr(0, length));
    EXPECT_STATUS(ReadSavedModel(kFiles, directory_).status(), absl::StatusCode::kDataLoss, "")
        << length;
  }
}

TEST_F(SavedModelTest, FlippedBitsOfTheModelFileNeverCrashTheLoader) {
  Export();
  SetMinLogLevel(LogLevel::kError);
  ASSERT_OK_AND_ASSIGN(const std::string good, ReadFileToString(kFiles, Path(kSavedModelFile)));
  int loaded = 0, refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ (1 << (i % 8)));
    Write(Path(kSavedModelFile), bad);
    (Load().ok() ? loaded : refused) += 1;
  }
  SetMinLogLevel(LogLevel::kInfo);
  // A model file has no checksum: a flip may make another legal model. Most break a name or a type.
  EXPECT_GT(refused, 0);
  RecordProperty("loaded", loaded);
  RecordProperty("refused", refused);
}

TEST_F(SavedModelTest, SignaturesKnowMethodsAndRefuseInvalidTensors) {
  Model m;
  ASSERT_OK_AND_ASSIGN(const auto classify, ClassifySignatureDef(m.root, m.x, m.y, m.y));
  EXPECT_EQ(classify.method_name(), "tensorflow/serving/classify");
  EXPECT_EQ(classify.outputs().size(), 2u);
  ASSERT_OK_AND_ASSIGN(const auto regress, RegressSignatureDef(m.root, m.x, m.y));
  EXPECT_EQ(regress.inputs().at("inputs").name(), "x:0");
  EXPECT_EQ(regress.outputs().at("outputs").name(), "y:0");
  EXPECT_STATUS(ClassifySignatureDef(m.root, m.x, Output(), Output()).status(), kInvalid,
                "must have classes or scores");
  EXPECT_STATUS(PredictSignatureDef(m.root, {{"x", Output()}}, {}).status(), kInvalid,
                "input 'x': must be a tensor of the graph");
}

TEST_F(SavedModelTest, SignaturesSayDtypesAndShapes) {
  Model m;
  ASSERT_OK_AND_ASSIGN(const auto predict, PredictSignatureDef(m.root, {{"x", m.x}}, {}));
  EXPECT_EQ(predict.inputs().at("x").dtype(), DT_FLOAT);
  EXPECT_EQ(predict.inputs().at("x").shape().ToString(), "[?]");
  EXPECT_TRUE(predict.outputs().empty());
  EXPECT_TRUE(ModelSignature().inputs().empty());

  // What a file says and no program here would: kept in the message, harmless in the fields.
  tensorflow::SignatureDef def;
  tensorflow::TensorInfo& odd = (*def.mutable_inputs())["odd"];
  odd.set_name("o:0");
  odd.set_dtype(static_cast<tensorflow::DataType>(9999));
  odd.mutable_tensor_shape()->add_dim()->set_size(-5);
  (*def.mutable_inputs())["sparse"].mutable_coo_sparse()->set_values_tensor_name("v:0");
  const ModelSignature read(def);
  EXPECT_EQ(read.inputs().at("odd").name(), "o:0");
  EXPECT_EQ(read.inputs().at("odd").dtype(), DT_INVALID);
  EXPECT_EQ(read.inputs().at("odd").shape(), PartialShape());
  EXPECT_EQ(read.inputs().at("sparse").name(), "");
  EXPECT_EQ(DeterministicBytes(read.def()), DeterministicBytes(def));
}

TEST_F(SavedModelTest, MetaGraphComesBackAsAScope) {
  Model m;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(m.root));
  ASSERT_OK_AND_ASSIGN(const auto meta, ExportMetaGraph(m.root, {.saver_def = saver->def()}));
  for (const char* name : {"g.meta", "g.pbtxt"}) {
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(directory_));
    ASSERT_OK(WriteMetaGraph(kFiles, Path(name), meta));
    ASSERT_OK_AND_ASSIGN(const auto read, ReadMetaGraph(kFiles, Path(name)));
    ASSERT_OK_AND_ASSIGN(Scope scope, ImportMetaGraph(read));
    const std::vector<Variable> variables = VariablesOf(scope);
    ASSERT_EQ(variables.size(), 1u);
    EXPECT_EQ(variables[0].name, "w");
    // The imported graph trains on and saves through the nodes that it has.
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(scope));
    ASSERT_OK(session->Run({}, {}, {variables[0].initializer}).status());
    auto again = Saver::FromDef(read.saver_def());
    ASSERT_OK_AND_ASSIGN(const std::string path,
                         again->Save(session.get(), Path(absl::StrCat(name, "-ckpt")), 1));
    EXPECT_TRUE(CheckpointExists(kFiles, path));
    EXPECT_EQ(DeterministicBytes(*ExportMetaGraph(scope, {.saver_def = read.saver_def()})),
              DeterministicBytes(meta));
  }
  EXPECT_STATUS(ReadMetaGraph(kFiles, Path("none")).status(), kNotFound, "none");
  Write(Path("bad.meta"), "\xff\xff");
  EXPECT_STATUS(ReadMetaGraph(kFiles, Path("bad.meta")).status(), absl::StatusCode::kDataLoss,
                "must hold a MetaGraphDef");
  Write(Path("bad.pbtxt"), "graph_def { node { nam");
  EXPECT_STATUS(ReadMetaGraph(kFiles, Path("bad.pbtxt")).status(), absl::StatusCode::kDataLoss,
                "must hold the text of a MetaGraphDef");
}

TEST(MetaGraphTest, AnAttrThatAnOpHeedsStaysWhereItIsNotTheDefault) {
  tensorflow::OpDef producer;
  producer.set_name("Equal");
  auto* const attr = producer.add_attr();
  attr->set_name("incompatible_shape_error");
  attr->set_type("bool");
  attr->mutable_default_value()->set_b(true);
  for (const bool is_error : {false, true}) {
    tensorflow::NodeDef node;
    node.set_op("Equal");
    (*node.mutable_attr())["incompatible_shape_error"].set_b(is_error);
    ASSERT_OK(RemoveUnknownDefaultAttrs(producer, &node));
    EXPECT_EQ(node.attr().contains("incompatible_shape_error"), !is_error);
  }
}

TEST(SavedModelShared, EveryModelOfTensorFlowIsRead) {
  const std::string models = SharedDataPath("saved_models");
  if (models.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models";
  ASSERT_OK_AND_ASSIGN(const auto names, kFiles->GetChildren(models));
  int read = 0;
  for (const std::string& name : names) {
    const auto model = ReadSavedModel(kFiles, JoinPath(models, name));
    EXPECT_OK(model.status()) << name;
    if (!model.ok()) continue;
    ++read;
    for (const auto& meta : model->meta_graphs()) {
      for (const Status& error : PlanLoading(kFiles, JoinPath(models, name), meta).errors) {
        ADD_FAILURE() << name << ": " << error;
      }
    }
  }
  EXPECT_GE(read, 25);
}

}  // namespace
}  // namespace millrace

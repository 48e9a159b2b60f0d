// SPDX-License-Identifier: Apache-2.0
//
// A Model as a value: of a directory, of bytes whole and cut, of parts.

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/memory_files.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/export_marker.h"
#include "saver/export_model.h"
#include "saver/freeze_model.h"
#include "saver/loaded_model.h"
#include "saver/meta_graph.h"
#include "saver/model.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"

// covers: values: a model from bytes that are cut at any offset is an error that names the file
// covers: values: a model opens alike from its directory and from bytes

namespace millrace {
namespace {

using absl::StatusCode;

FileSystem* const kFiles = FileSystem::Posix();

// All files below a directory, by their paths in it.
void ReadAll(const std::string& directory, const std::string& prefix, NamedBytes* files) {
  ASSERT_OK_AND_ASSIGN(const auto names, kFiles->GetChildren(directory));
  for (const std::string& name : names) {
    // It is of the directory, not of the model.
    if (name == kExportIsComplete) continue;
    const std::string path = JoinPath(directory, name);
    ASSERT_OK_AND_ASSIGN(const bool is_directory, kFiles->IsDirectory(path));
    if (is_directory) {
      ReadAll(path, absl::StrCat(prefix, name, "/"), files);
    } else {
      ASSERT_OK_AND_ASSIGN((*files)[prefix + name], ReadFileToString(kFiles, path));
    }
  }
}
NamedBytes FilesOf(const std::string& directory) {
  NamedBytes files;
  ReadAll(directory, "", &files);
  return files;
}

// Words -> ids by a vocabulary in a file -> prices; and a variable in two parts.
struct Shop {
  explicit Shop(const std::string& vocabulary) {
    const Output words = Placeholder(root.WithName("words"), DT_STRING, {-1});
    const IndexTable ids = IndexTableFromFile(root.WithName("ids"), vocabulary);
    const LookupTable prices =
        StaticTable(root.WithName("prices"), Tensor::Vector<int64_t>({0, 1, 2}),
                    Tensor::Vector<float>({1.5f, 2.5f, 3.5f}), Tensor::Scalar(-1.f));
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 2.0f));
    const PartitionedVariable rows =
        MakePartitionedVariable(root.WithName("rows"), *Shape::Make({3, 2}), DT_FLOAT, 2,
                                [i = 0](ScopeAt at, const Shape&, DType) mutable {
                                  return ++i == 1 ? Const(at, Tensor::Of<float>({{1, 2}, {3, 4}}))
                                                  : Const(at, Tensor::Of<float>({{5, 6}}));
                                });
    const Output price =
        Mul(root.WithName("price"), Lookup(root, prices, Lookup(root, ids, words)), w.value);
    auto opened = NewSession();
    EXPECT_OK(opened);
    session = *std::move(opened);
    EXPECT_OK(session->Extend(root));
    EXPECT_OK(session->Run({}, {}, {GlobalVariablesInitializer(root), TablesInitializer(root)}));
    signatures = {{.inputs = {{"words", words}},
                   .outputs = {{"first", rows.parts[0].value},
                               {"price", price},
                               {"second", rows.parts[1].value}}},
                  {.outputs = {{"w", w.value}}, .key = "weight"}};
  }
  Scope root;
  std::unique_ptr<Session> session;
  std::vector<ServingSignature> signatures;
};

class ModelValueTest : public ::testing::Test {
 protected:
  ModelValueTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("model_value_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
    EXPECT_OK(WriteFileAtomically(kFiles, vocabulary(), "tea\ncoffee\nmilk\n"));
  }
  ~ModelValueTest() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(absl::string_view name) const { return JoinPath(dir_, name); }
  std::string vocabulary() const { return Path("words.txt"); }

  // The files of an exported model, which are not on disk any more.
  NamedBytes Export() const {
    const Shop shop(vocabulary());
    EXPECT_OK(ExportModel(shop.session.get(), shop.root, shop.signatures, Path("export")));
    NamedBytes files = FilesOf(Path("export"));
    EXPECT_OK(kFiles->RecursivelyDelete(Path("export")));
    return files;
  }

  static void ExpectPredicts(const LoadedModel& model) {
    ASSERT_OK_AND_ASSIGN(
        const NamedTensors out,
        model.Predict({{"words", Tensor::Vector<std::string>({"milk", "tea", "?"})}}));
    ExpectTensorEqual(out.at("price"), Tensor::Vector<float>({7, 3, -2}));
    ExpectTensorEqual(out.at("first"), Tensor::Of<float>({{1, 2}, {3, 4}}));
    ExpectTensorEqual(out.at("second"), Tensor::Of<float>({{5, 6}}));
  }

  // Reads, opens and asks; whatever the bytes are.
  static Status Use(const NamedBytes& files) {
    MR_ASSIGN_OR_RETURN(const Model model, ReadModelFromBytes(files, {.name = "cut"}));
    MR_ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(model));
    return loaded.Predict({{"words", Tensor::Vector<std::string>({"tea"})}}).status();
  }

  const std::string dir_;
};

// --- Of bytes ------------------------------------------------------------------------------------

TEST_F(ModelValueTest, AModelOfBytesNeedsNothingButItself) {
  ASSERT_OK_AND_ASSIGN(Model model, ReadModelFromBytes(Export()));
  EXPECT_EQ(model.name(), "in memory");
  ASSERT_EQ(model.signatures().size(), 2u);
  EXPECT_EQ(model.signatures().at("serving_default").outputs().size(), 3u);
  ASSERT_EQ(model.values().size(), 3u);
  std::map<std::string, std::string> values;
  for (const ModelValue& value : model.values()) values.emplace(value.slice, value.name);
  EXPECT_EQ(values, (std::map<std::string, std::string>{
                        {"", "w"}, {"3 2 0,2:0,2", "rows"}, {"3 2 2,1:0,2", "rows"}}));
  ASSERT_EQ(model.assets().size(), 1u);
  EXPECT_EQ(model.assets()[0].file_name, "words.txt");
  EXPECT_NE(model.init_op(), "");
  // A copy is the same model; sessions of it have nothing in common.
  const Model copy = model;
  ASSERT_OK_AND_ASSIGN(const LoadedModel first, LoadModel(model));
  ASSERT_OK_AND_ASSIGN(model, ReadModelFromBytes(Export(), {.name = "other"}));
  ASSERT_OK_AND_ASSIGN(const LoadedModel second, LoadModel(copy));
  ExpectPredicts(first);
  ExpectPredicts(second);
  EXPECT_EQ(copy.name(), "in memory");
}

TEST_F(ModelValueTest, ADirectoryGivesTheSameModelAsItsBytes) {
  const NamedBytes files = Export();
  for (const auto& [name, bytes] : files) {
    const std::string path = JoinPath(Path("there"), name);
    ASSERT_OK(kFiles->RecursivelyCreateDirectory(Dirname(path)));
    ASSERT_OK(WriteFileAtomically(kFiles, path, bytes));
  }
  ASSERT_OK_AND_ASSIGN(const Model there, ReadModel(Path("there")));
  ASSERT_OK_AND_ASSIGN(const Model here, ReadModelFromBytes(files));
  EXPECT_EQ(there.name(), Path("there"));
  EXPECT_EQ(there.init_op(), here.init_op());
  EXPECT_EQ(there.meta_graph()->SerializeAsString().size(),
            here.meta_graph()->SerializeAsString().size());
  ASSERT_OK_AND_ASSIGN(const auto of_there, ReadValues(there.values()));
  ASSERT_OK_AND_ASSIGN(const auto of_here, ReadValues(here.values()));
  ASSERT_EQ(of_there.size(), of_here.size());
  for (size_t i = 0; i < of_here.size(); ++i) {
    EXPECT_EQ(there.values()[i].name, here.values()[i].name);
    ExpectTensorEqual(of_there[i], of_here[i]);
  }
  ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(there));
  ExpectPredicts(loaded);
}

TEST_F(ModelValueTest, AssetsInMemoryAreOnDiskWhileTheModelIsOpen) {
  NamedBytes files = Export();
  ASSERT_OK(kFiles->CreateDirectory(Path("tmp")));
  const char* const before = std::getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  ASSERT_EQ(setenv("TMPDIR", Path("tmp").c_str(), 1), 0);
  const auto copies = [&] { return kFiles->GetChildren(Path("tmp")).value(); };
  {
    ASSERT_OK_AND_ASSIGN(const Model model, ReadModelFromBytes(files));
    EXPECT_EQ(copies().size(), 0u);
    ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(model));
    ASSERT_EQ(copies().size(), 1u);
    EXPECT_TRUE(kFiles->FileExists(JoinPath(JoinPath(Path("tmp"), copies()[0]), "words.txt")));
    ExpectPredicts(loaded);
    EXPECT_STATUS(LoadModel(model, {.target = "grpc://localhost:1"}), StatusCode::kUnimplemented,
                  "SavedModel 'in memory': asset 'words.txt' must be on disk");
  }
  EXPECT_EQ(copies().size(), 0u);
  // Nor does a load that fails leave any.
  files["assets/words.txt"] = "tea\n\n";
  EXPECT_STATUS(Use(files), StatusCode::kInvalidArgument,
                "words.txt' line 2: it must not be empty");
  files.erase("assets/words.txt");
  EXPECT_STATUS(Use(files), StatusCode::kNotFound, "words.txt");
  EXPECT_EQ(copies().size(), 0u);
  ASSERT_EQ(before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1), 0);
}

// --- Bad input -----------------------------------------------------------------------------------

TEST_F(ModelValueTest, EveryCutOfEveryFileIsANamedError) {
  SetMinLogLevel(LogLevel::kError);
  const NamedBytes whole = Export();
  ASSERT_EQ(whole.size(), 4u);
  ASSERT_OK(Use(whole));
  for (const auto& [name, bytes] : whole) {
    if (absl::StartsWith(name, "assets/")) continue;
    NamedBytes cut = whole;
    for (size_t length = 0; length < bytes.size(); ++length) {
      cut[name] = bytes.substr(0, length);
      const auto model = ReadModelFromBytes(cut, {.name = "cut"});
      EXPECT_STATUS(model, StatusCode::kDataLoss, "'cut/") << name << " at " << length;
    }
  }
  // Nobody but its reader knows how long an asset is: a shorter vocabulary, or none.
  NamedBytes cut = whole;
  const std::string words = whole.at("assets/words.txt");
  for (size_t length = 0; length < words.size(); ++length) {
    cut["assets/words.txt"] = words.substr(0, length);
    const Status status = Use(cut);
    EXPECT_TRUE(status.ok() || absl::StrContains(status.message(), "words.txt"))
        << length << ": " << status;
  }
  SetMinLogLevel(LogLevel::kInfo);
}

TEST_F(ModelValueTest, AWrongByteInTheCheckpointIsFoundByItsChecksum) {
  SetMinLogLevel(LogLevel::kError);
  const NamedBytes whole = Export();
  for (const auto& [name, bytes] : whole) {
    if (!absl::StartsWith(name, "variables/")) continue;
    for (size_t i = 0; i < bytes.size(); ++i) {
      NamedBytes damaged = whole;
      damaged[name][i] = static_cast<char>(bytes[i] ^ (1 << (i % 8)));
      const Status status = Use(damaged);
      // The footer of an index has room for longer handles, which nobody reads.
      if (status.ok() && absl::EndsWith(name, ".index") && i + 48 >= bytes.size()) continue;
      EXPECT_STATUS(status, StatusCode::kDataLoss, "'cut/variables/variables") << name << " " << i;
    }
  }
  SetMinLogLevel(LogLevel::kInfo);
}

TEST_F(ModelValueTest, WhatIsMissingIsNamed) {
  const NamedBytes whole = Export();
  const auto without = [&](const std::string& name) {
    NamedBytes files = whole;
    EXPECT_EQ(files.erase(name), 1u) << name;
    return ReadModelFromBytes(files, {.name = "m"}).status();
  };
  EXPECT_STATUS(without("saved_model.pb"), StatusCode::kNotFound, "Could not find SavedModel");
  EXPECT_STATUS(
      without("variables/variables.index"), StatusCode::kNotFound,
      "SavedModel 'm': its graph has variables; 'm/variables/variables.index' must exist");
  EXPECT_STATUS(without("variables/variables.data-00000-of-00001"), StatusCode::kNotFound,
                "m/variables/variables.data-00000-of-00001");
  EXPECT_STATUS(ReadModelFromBytes({}), StatusCode::kNotFound, "in memory");
  EXPECT_STATUS(ReadModelFromBytes({{"../saved_model.pb", ""}}), StatusCode::kInvalidArgument,
                "must be a relative path");
  EXPECT_STATUS(ReadModelFromBytes(whole, {.tags = {"train"}}), StatusCode::kNotFound, "{ train }");
  EXPECT_STATUS(ReadModel(Path("none")), StatusCode::kNotFound, Path("none"));
}

// --- Of parts ------------------------------------------------------------------------------------

// y = w x, and an op that adds 1 to w.
tensorflow::MetaGraphDef Adder() {
  Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
  const Variable w = MakeVariable(root.WithName("w"), Const(root, Tensor::Vector<float>({1, 1})));
  const Output y = Mul(root.WithName("y"), x, w.value);
  AssignAddVariableOp(root.WithName("add"), w.handle, Const(root, Tensor::Vector<float>({1, 1})));
  auto saver = Saver::Make(root);
  EXPECT_OK(saver);
  auto meta = ExportMetaGraph(root, {.tags = {"serve"}, .saver_def = (*saver)->def()});
  EXPECT_OK(meta);
  const auto signature = PredictSignatureDef(root, {{"x", x}}, {{"y", y}});
  EXPECT_OK(signature);
  (*meta->mutable_signature_def())[kDefaultServingSignature] = signature->def();
  return *std::move(meta);
}
ModelValue ValueOf(std::string name, Tensor tensor) {
  return {.name = std::move(name), .slice = "", .dtype = tensor.dtype(), .source = tensor};
}

TEST_F(ModelValueTest, SessionsOfOneModelDoNotChangeItsValues) {
  const Tensor w = Tensor::Vector<float>({5, 7});
  ASSERT_OK_AND_ASSIGN(const Model model, Model::Make("adder", Adder(), {ValueOf("w", w)}));
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle one, OpenModel({}, model));
  ASSERT_OK_AND_ASSIGN(const SavedModelBundle other, OpenModel({}, model));
  for (int i = 0; i < 3; ++i) ASSERT_OK(one.session->Run({}, {}, {"add"}));
  const Tensor x = Tensor::Vector<float>({1, 2});
  ASSERT_OK_AND_ASSIGN(auto out, one.session->Run({{"x", x}}, {"y"}));
  ExpectTensorEqual(out[0], Tensor::Vector<float>({8, 20}));
  ASSERT_OK_AND_ASSIGN(out, other.session->Run({{"x", x}}, {"y"}));
  ExpectTensorEqual(out[0], Tensor::Vector<float>({5, 14}));
  ExpectTensorEqual(w, Tensor::Vector<float>({5, 7}));
  ASSERT_OK_AND_ASSIGN(out, ReadValues(model.values()));
  ExpectTensorEqual(out[0], Tensor::Vector<float>({5, 7}));
}

TEST_F(ModelValueTest, PartsThatDoNotFitAreRefused) {
  const Tensor w = Tensor::Vector<float>({5, 7});
  const auto files = *MemoryFiles("f", {{"a", "x"}, {"b", "y"}});
  const auto asset = [&](const char* tensor, const char* name, const char* path) {
    return ModelAsset{.tensor = tensor, .file_name = name, .files = files, .path = path};
  };
  tensorflow::MetaGraphDef no_saver = Adder();
  no_saver.clear_saver_def();
  tensorflow::MetaGraphDef no_init = Adder();
  (*no_init.mutable_collection_def())["saved_model_main_op"].mutable_node_list()->add_value("gone");
  tensorflow::MetaGraphDef wrong_signature = Adder();
  wrong_signature.mutable_signature_def()
      ->at("serving_default")
      .mutable_inputs()
      ->at("x")
      .set_name("gone:0");
  struct Case {
    tensorflow::MetaGraphDef meta;
    std::vector<ModelValue> values;
    std::vector<ModelAsset> assets;
    StatusCode code;
    const char* text;
  };
  const Case cases[] = {
      {Adder(),
       {},
       {},
       StatusCode::kNotFound,
       "SavedModel 'm': value 'w', which 'save/RestoreV2' restores, must be given, got 0 others"},
      {Adder(), {ValueOf("v", w)}, {}, StatusCode::kNotFound, "must be given, got 1 others"},
      {Adder(),
       {ValueOf("w", Tensor::Vector<int32_t>({5, 7}))},
       {},
       StatusCode::kInvalidArgument,
       "value 'w' must have the dtype that the graph expects, float, got int32"},
      {no_saver,
       {ValueOf("w", w)},
       {},
       StatusCode::kInvalidArgument,
       "a graph without a restore op must have no values, got 1"},
      {no_init, {ValueOf("w", w)}, {}, StatusCode::kNotFound, "the init op 'gone' of collection"},
      {wrong_signature,
       {ValueOf("w", w)},
       {},
       StatusCode::kInvalidArgument,
       "signature 'serving_default': input 'x' must be a tensor of the graph, got 'gone:0'"},
      {Adder(),
       {ValueOf("w", w)},
       {asset("gone:0", "a", "f/a")},
       StatusCode::kNotFound,
       "asset tensor 'gone:0' must be in the graph"},
      {Adder(),
       {ValueOf("w", w)},
       {asset("x:0", "../a", "f/a")},
       StatusCode::kInvalidArgument,
       "an asset must be a file in 'assets', got '../a'"},
      {Adder(),
       {ValueOf("w", w)},
       {asset("x:0", "a", "f/a"), asset("x:0", "a", "f/b")},
       StatusCode::kInvalidArgument,
       "assets with one name must be one file, got 'f/a' and 'f/b'"},
  };
  for (const Case& c : cases) {
    EXPECT_STATUS(Model::Make("m", c.meta, c.values, c.assets), c.code, c.text);
  }
  // A shape that the variable cannot have is found by the step.
  ASSERT_OK_AND_ASSIGN(const Model wrong_shape,
                       Model::Make("m", Adder(), {ValueOf("w", Tensor::Vector<float>({1}))}));
  EXPECT_STATUS(OpenModel({}, wrong_shape).status(), StatusCode::kInvalidArgument, "'w'");
}

// --- Exported, frozen, written -------------------------------------------------------------------

TEST_F(ModelValueTest, AnExportIsAModelThatNeedsItsSessionNoMore) {
  StatusOr<Model> made = InvalidArgument("not made");
  {
    const Shop shop(vocabulary());
    made = MakeServingModel(shop.session.get(), shop.root, shop.signatures);
  }
  ASSERT_OK_AND_ASSIGN(const Model model, std::move(made));
  ASSERT_OK(kFiles->DeleteFile(vocabulary()));
  EXPECT_EQ(model.values().size(), 3u);
  ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(model));
  ExpectPredicts(loaded);
  ASSERT_OK(WriteModel(model, Path("export/1")));
  ASSERT_OK_AND_ASSIGN(const LoadedModel again, LoadModel(Path("export/1")));
  ExpectPredicts(again);
  EXPECT_STATUS(WriteModel(model, Path("export/1")), StatusCode::kFailedPrecondition,
                "must be new or empty");
}

TEST_F(ModelValueTest, AModelThatIsWrittenHasTheFilesThatItWasReadFrom) {
  const NamedBytes files = Export();
  ASSERT_OK_AND_ASSIGN(const Model model, ReadModelFromBytes(files));
  ASSERT_OK(WriteModel(model, Path("copy")));
  const NamedBytes copy = FilesOf(Path("copy"));
  ASSERT_EQ(copy.size(), files.size());
  for (const auto& [name, bytes] : files) {
    ASSERT_EQ(copy.count(name), 1u) << name;
    EXPECT_TRUE(copy.at(name) == bytes) << name;
  }
  // Two files of one name, and one file twice.
  ASSERT_OK(kFiles->RecursivelyCreateDirectory(Path("other")));
  ASSERT_OK(WriteFileAtomically(kFiles, Path("other/words.txt"), "water\n"));
  Scope root;
  const Output words = Placeholder(root.WithName("words"), DT_STRING, {-1});
  NamedOutputs outputs;
  for (const auto& [name, path] : std::map<std::string, std::string>{
           {"a", vocabulary()}, {"b", Path("other/words.txt")}, {"c", vocabulary()}}) {
    outputs[name] = Lookup(root, IndexTableFromFile(root.WithName(name), path), words);
  }
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  const ServingSignature signature = {.inputs = {{"words", words}}, .outputs = outputs};
  ASSERT_OK_AND_ASSIGN(const Model three, MakeServingModel(session.get(), root, {&signature, 1}));
  ASSERT_OK(WriteModel(three, Path("three")));
  EXPECT_EQ(kFiles->GetChildren(Path("three/assets")).value(),
            (std::vector<std::string>{"words.txt", "words.txt_1"}));
  for (const auto& loaded : {LoadModel(three), LoadModel(Path("three"))}) {
    ASSERT_OK(loaded);
    ASSERT_OK_AND_ASSIGN(
        const NamedTensors out,
        loaded->Predict({{"words", Tensor::Vector<std::string>({"coffee", "water"})}}));
    ExpectTensorEqual(out.at("a"), Tensor::Vector<int64_t>({1, -1}));
    ExpectTensorEqual(out.at("b"), Tensor::Vector<int64_t>({-1, 0}));
    ExpectTensorEqual(out.at("c"), Tensor::Vector<int64_t>({1, -1}));
  }
}

TEST_F(ModelValueTest, AFrozenModelHasConstantsAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(const Model model, ReadModelFromBytes(Export()));
  ASSERT_OK_AND_ASSIGN(const Model frozen, FreezeModel(model));
  EXPECT_TRUE(frozen.values().empty());
  EXPECT_TRUE(frozen.assets().empty());
  EXPECT_FALSE(frozen.restoring().has_value());
  EXPECT_EQ(frozen.init_op(), "");
  EXPECT_EQ(frozen.signatures().size(), 2u);
  for (const auto& node : frozen.graph().node()) {
    EXPECT_NE(node.op(), "VarHandleOp") << node.name();
    EXPECT_NE(node.op(), "RestoreV2") << node.name();
  }
  ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(frozen));
  ExpectPredicts(loaded);
  // As files it is one.
  ASSERT_OK(WriteModel(frozen, Path("frozen")));
  const NamedBytes files = FilesOf(Path("frozen"));
  EXPECT_EQ(files.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const Model again, ReadModelFromBytes(files));
  ASSERT_OK_AND_ASSIGN(const LoadedModel of_file, LoadModel(again));
  ExpectPredicts(of_file);
  // For one signature alone.
  ASSERT_OK_AND_ASSIGN(const Model weight, FreezeModel(model, {.signatures = {"weight"}}));
  EXPECT_LT(weight.graph().node_size(), 4);
  ASSERT_OK_AND_ASSIGN(const LoadedModel of_weight, LoadModel(weight));
  ASSERT_OK_AND_ASSIGN(const NamedTensors out, of_weight.Predict({}, {.signature = "weight"}));
  ExpectTensorEqual(out.at("w"), Tensor::Scalar(2.0f));
  EXPECT_STATUS(FreezeModel(model, {.signatures = {"wait"}}), StatusCode::kInvalidArgument,
                "FreezeModel 'in memory': signature 'wait' must be one of the model's, "
                "'serving_default', 'weight'");
  tensorflow::MetaGraphDef none = Adder();
  none.clear_signature_def();
  ASSERT_OK_AND_ASSIGN(const Model unsigned_model,
                       Model::Make("m", none, {ValueOf("w", Tensor::Vector<float>({1, 1}))}));
  EXPECT_STATUS(FreezeModel(unsigned_model), StatusCode::kInvalidArgument,
                "signatures must name tensors to freeze for, got none");
}

// --- Of TensorFlow -------------------------------------------------------------------------------

TEST(ModelOfTensorFlow, BytesAreReadAsTheirDirectoryIsAndEveryCutIsAnError) {
  const std::string models = SharedDataPath("saved_models");
  if (models.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models";
  SetMinLogLevel(LogLevel::kError);
  ASSERT_OK_AND_ASSIGN(const auto names, kFiles->GetChildren(models));
  int read = 0, opened = 0, constant = 0, refused = 0;
  for (const std::string& name : names) {
    const std::string directory = JoinPath(models, name);
    ASSERT_OK_AND_ASSIGN(const auto saved, ReadSavedModel(kFiles, directory));
    const std::set<std::string> set = TagSet(saved.meta_graphs(0));
    const std::vector<std::string> tags(set.begin(), set.end());
    const NamedBytes files = FilesOf(directory);
    ASSERT_OK_AND_ASSIGN(const Model there, ReadModel(directory, {.tags = tags}));
    ASSERT_OK_AND_ASSIGN(const Model here, ReadModelFromBytes(files, {.tags = tags, .name = name}));
    EXPECT_EQ(here.values().size(), there.values().size()) << name;
    ++read;
    const auto from_directory = OpenModel({}, there);
    const auto from_bytes = OpenModel({}, here);
    EXPECT_EQ(from_bytes.status().code(), from_directory.status().code())
        << name << ": " << from_bytes.status() << " and " << from_directory.status();
    opened += from_bytes.ok() ? 1 : 0;
    const StatusOr<Model> frozen =
        here.signatures().empty() ? InvalidArgument("no signature") : FreezeModel(here);
    if (frozen.ok()) {
      ++constant;
      // What has no kernel in this test has none before either.
      ASSERT_OK_AND_ASSIGN(const ServableModel before, ServableModel::Load(here));
      ASSERT_OK_AND_ASSIGN(const ServableModel after, ServableModel::Load(*frozen));
      ASSERT_EQ(after.num_signatures(), before.num_signatures()) << name;
      for (int i = 0; i < after.num_signatures(); ++i) {
        EXPECT_EQ(after.status(i).code(), before.status(i).code())
            << name << ": " << after.signature(i).key << ": " << after.status(i);
      }
    } else {
      RecordProperty(name, std::string(frozen.status().message()));
    }
    for (const auto& [file, bytes] : files) {
      if (saved.meta_graphs_size() > 1 && absl::StartsWith(file, "saved_model.pb")) continue;
      if (!absl::StartsWith(file, "variables/") && file != kSavedModelFile) continue;
      NamedBytes cut = files;
      for (size_t k = 0; k < 24; ++k) {
        cut[file] = bytes.substr(0, bytes.size() * k / 24);
        const auto model = ReadModelFromBytes(cut, {.tags = tags, .name = name});
        // Functions of TensorFlow 2 restore by themselves: what they lack, the step says.
        const Status status = model.ok() ? OpenModel({}, *model).status() : model.status();
        EXPECT_STATUS(status, StatusCode::kDataLoss, name) << file << " " << k;
        refused += status.ok() ? 0 : 1;
      }
    }
  }
  SetMinLogLevel(LogLevel::kInfo);
  EXPECT_GE(read, 25);
  EXPECT_GE(opened, 20);
  EXPECT_GE(constant, 18);
  EXPECT_GE(refused, 1000);
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
//
// Look-up tables where they outlive their session: in checkpoints, exported models and frozen
// graphs.

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "layers/lookup.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/freeze_graph.h"
#include "saver/loaded_model.h"
#include "saver/saved_model.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"
#include "saver/table_saveable.h"
#include "saver/tensor_bundle.h"

// covers: values: mutable tables are saved as `<name>-keys` and `-values`; frozen graphs carry
//   tables as constants, and refuse changes
// covers: article 4-19: vocabularies in assets/, read from where the model lies

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
FileSystem* const kFiles = FileSystem::Posix();

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

class TablesTest : public ::testing::Test {
 protected:
  TablesTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("tables_", RandomHexName()))) {
    EXPECT_OK(kFiles->RecursivelyCreateDirectory(dir_));
  }
  ~TablesTest() override { kFiles->RecursivelyDelete(dir_).IgnoreError(); }

  std::string Path(absl::string_view name) const { return JoinPath(dir_, name); }
  std::string File(absl::string_view name, const std::string& text) const {
    EXPECT_OK(WriteFileAtomically(kFiles, Path(name), text));
    return Path(name);
  }
  static std::unique_ptr<Session> Open(const Scope& scope) {
    auto session = NewSession();
    EXPECT_OK(session.status());
    EXPECT_OK((*session)->Extend(scope));
    return *std::move(session);
  }
  static Tensor Run(Session* session, const Output& output, const std::vector<Feed>& feeds = {}) {
    const auto out = session->Run(feeds, {output});
    EXPECT_OK(out.status());
    return out.ok() ? (*out)[0] : Tensor();
  }

  const std::string dir_;
};

// --- Checkpoints ---------------------------------------------------------------------------------

// A variable and two tables that change.
struct Counting {
  Counting() {
    w = MakeVariable(root.WithName("w"), Const(root, 1.0f));
    counts = MutableTable(root.WithName("model/counts"), DT_STRING, Tensor::Scalar<int64_t>(0));
    rows = MutableTable(root.WithName("rows"), DT_INT64, Tensor::Vector<float>({0, 0}));
    unsaved = MutableTable(root.WithName("unsaved"), DT_INT64, Tensor::Scalar(0.f),
                           {.checkpoint = false});
    keys = Placeholder(root.WithName("keys"), DT_STRING, {-1});
    values = Placeholder(root.WithName("values"), DT_INT64, {-1});
    add = LookupTableInsertV2(root.WithName("add"), counts.handle, keys, values);
    add_row = LookupTableInsertV2(root.WithName("add_row"), rows.handle, Const(root, Longs({7})),
                                  Const(root, Tensor::Of<float>({{1, 2}})));
    found = Lookup(root, counts, keys);
    row = Lookup(root, rows, Const(root, Longs({7, 8})));
    init = GlobalVariablesInitializer(root);
  }
  Scope root;
  Variable w;
  LookupTable counts, rows, unsaved;
  Output keys, values, found, row;
  Operation add, add_row, init;
};

TEST_F(TablesTest, ThatChangeAreSavedAndRestoredWithTheVariables) {
  const Counting model;
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(model.root));
  const auto session = Open(model.root);
  ASSERT_OK(session->Run({}, {}, {model.init, model.add_row}).status());
  ASSERT_OK(
      session
          ->Run({{model.keys, Strings({"a", "b"})}, {model.values, Longs({1, 2})}}, {}, {model.add})
          .status());
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), 3));
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(kFiles, path));
  std::vector<std::string> names;
  for (const auto& entry : reader->entries()) names.push_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"model/counts-keys", "model/counts-values",
                                             "rows-keys", "rows-values", "w"}));
  ASSERT_OK_AND_ASSIGN(const Tensor saved, reader->Read("model/counts-keys"));
  ExpectTensorEqual(saved, Strings({"a", "b"}));

  // What was there before a restore is gone.
  ASSERT_OK(
      session
          ->Run({{model.keys, Strings({"a", "c"})}, {model.values, Longs({9, 9})}}, {}, {model.add})
          .status());
  ASSERT_OK(saver->Restore(session.get(), path));
  ExpectTensorEqual(Run(session.get(), model.found, {{model.keys, Strings({"a", "b", "c"})}}),
                    Longs({1, 2, 0}));
  const auto other = Open(model.root);
  ASSERT_OK(saver->Restore(other.get(), path));
  ExpectTensorEqual(Run(other.get(), model.found, {{model.keys, Strings({"b", "c"})}}),
                    Longs({2, 0}));
  ExpectTensorEqual(Run(other.get(), model.row), Tensor::Of<float>({{1, 2}, {0, 0}}));
}

TEST_F(TablesTest, ThatChangeAreSavedAsManyPartsAndByNamesOfTheirOwn) {
  const Counting model;
  ASSERT_OK_AND_ASSIGN(const auto table, MakeTableSaveable(model.root, model.counts.handle, "c"));
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(model.root, {.saveables = {table}, .name = "one"}));
  // A second Saver takes the same node.
  ASSERT_OK(Saver::Make(model.root, {.name = "two"}).status());
  int exports = 0;
  ASSERT_OK_AND_ASSIGN(const auto def, model.root.ToGraphDef());
  for (const auto& node : def.node()) exports += node.op() == "LookupTableExportV2" ? 1 : 0;
  EXPECT_EQ(exports, 2);
  const auto session = Open(model.root);
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), {}));
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(kFiles, path));
  EXPECT_TRUE(reader->Contains("c-keys"));
  EXPECT_FALSE(reader->Contains("w"));
  // An empty table is one, too.
  ASSERT_OK(saver->Restore(session.get(), path));
}

TEST_F(TablesTest, ThatCannotBeSavedAreRefused) {
  const Counting model;
  const LookupTable fixed =
      StaticTable(model.root, Strings({"a"}), Longs({1}), Tensor::Scalar<int64_t>(0));
  EXPECT_STATUS(MakeTableSaveable(model.root, fixed.handle), kInvalid,
                "'hash_table:0' must be a table that changes to be saved, got HashTableV2");
  EXPECT_STATUS(MakeTableSaveable(model.root, Output()), kInvalid, "got an invalid output");
  model.root.AddToNodeCollection(kSaveableTables, "nobody");
  EXPECT_STATUS(Saver::Make(model.root), kInvalid,
                "collection 'saveable_objects' must name tables of the graph, got 'nobody'");
}

TEST_F(TablesTest, OfBucketsComeBackFromACheckpoint) {
  Scope root;
  const Output table = MutableDenseHashTableV2(
      root.WithName("dense"), Const(root, int64_t{-1}), Const(root, int64_t{-2}), DT_FLOAT,
      {.initial_num_buckets = 8, .use_node_name_sharing = true});
  root.AddToNodeCollection(kSaveableTables, "dense");
  const Operation add = LookupTableInsertV2(root, table, Const(root, Longs({3, 11, 19})),
                                            Const(root, Tensor::Vector<float>({3, 11, 19})));
  const Output found =
      LookupTableFindV2(root, table, Const(root, Longs({19, 3, 4})), Const(root, 0.f));
  ASSERT_OK_AND_ASSIGN(auto saver, Saver::Make(root));
  const auto session = Open(root);
  ASSERT_OK(session->Run({}, {}, {add}).status());
  ASSERT_OK_AND_ASSIGN(const std::string path, saver->Save(session.get(), Path("m"), {}));
  const auto other = Open(root);
  ASSERT_OK(saver->Restore(other.get(), path));
  ExpectTensorEqual(Run(other.get(), found), Tensor::Vector<float>({19, 3, 0}));
}

// --- Exported models -----------------------------------------------------------------------------

// words -> ids of a file's vocabulary -> prices of a list.
struct Serving {
  explicit Serving(const std::string& vocabulary) {
    words = Placeholder(root.WithName("words"), DT_STRING, {-1});
    ids = IndexTableFromFile(root.WithName("ids"), vocabulary);
    prices = StaticTable(root.WithName("prices"), Longs({0, 1, 2}),
                         Tensor::Vector<float>({1.5f, 2.5f, 3.5f}), Tensor::Scalar(-1.f));
    const LookupTable unused =
        StaticTable(root.WithName("unused"), File(vocabulary), Tensor::Scalar<int64_t>(0));
    w = MakeVariable(root.WithName("w"), Const(root, 2.0f));
    price = Mul(root.WithName("price"), Lookup(root, prices, Lookup(root, ids, words)), w.value);
    init = Group(root, {GlobalVariablesInitializer(root), TablesInitializer(root)});
  }
  static TableFile File(const std::string& path) { return {.path = path}; }
  Scope root;
  Output words, price;
  IndexTable ids;
  LookupTable prices;
  Variable w;
  Operation init;
};

TEST_F(TablesTest, GoWithTheModelThatAsksThem) {
  const std::string vocabulary = File("words.txt", "tea\ncoffee\nmilk\n");
  const Serving model(vocabulary);
  ASSERT_OK(model.root.status());
  const auto session = Open(model.root);
  ASSERT_OK(session->Run({}, {}, {model.init}).status());
  const Tensor asked = Strings({"milk", "tea", "?"});
  const Tensor wanted = Tensor::Vector<float>({7, 3, -2});
  ExpectTensorEqual(Run(session.get(), model.price, {{model.words, asked}}), wanted);
  ASSERT_OK(ExportModel(session.get(), model.root,
                        {.inputs = {{"words", model.words}}, .outputs = {{"price", model.price}}},
                        Path("export")));

  // Elsewhere, without the file that it was made from.
  ASSERT_OK(kFiles->DeleteFile(vocabulary));
  ASSERT_OK(kFiles->RenameFile(Path("export"), Path("moved")));
  EXPECT_TRUE(kFiles->FileExists(Path("moved/assets/words.txt")));
  ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(Path("moved")));
  ASSERT_OK_AND_ASSIGN(const auto out, loaded.Predict({{"words", asked}}));
  ExpectTensorEqual(out.at("price"), wanted);

  ASSERT_OK_AND_ASSIGN(const auto bytes, ReadSavedModel(kFiles, Path("moved")));
  const tensorflow::MetaGraphDef& meta = bytes.meta_graphs(0);
  for (const auto& node : meta.graph_def().node()) {
    EXPECT_FALSE(absl::StartsWith(node.name(), "unused")) << node.name();
  }
  EXPECT_EQ(meta.asset_file_def_size(), 1);
  EXPECT_EQ(meta.collection_def().at("table_initializer").node_list().value_size(), 2);
  EXPECT_EQ(meta.collection_def().at("asset_filepaths").node_list().value_size(), 1);
}

TEST_F(TablesTest, ThatChangeGoWithTheModelToo) {
  const Counting model;
  const ServingSignature signature = {.inputs = {{"keys", model.keys}},
                                      .outputs = {{"found", model.found}}};
  {
    const auto session = Open(model.root);
    ASSERT_OK(session->Run({}, {}, {model.init}).status());
    EXPECT_STATUS(ExportModel(session.get(), model.root, signature, Path("no")), kPrecondition,
                  "table 'model/counts' must have nodes that export it");
  }
  ASSERT_OK(Saver::Make(model.root).status());
  const auto session = Open(model.root);
  ASSERT_OK(session->Run({}, {}, {model.init}).status());
  ASSERT_OK(
      session->Run({{model.keys, Strings({"a"})}, {model.values, Longs({5})}}, {}, {model.add})
          .status());
  ASSERT_OK(ExportModel(session.get(), model.root, signature, Path("export")));
  ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(Path("export")));
  ASSERT_OK_AND_ASSIGN(const auto out, loaded.Predict({{"keys", Strings({"a", "b"})}}));
  ExpectTensorEqual(out.at("found"), Longs({5, 0}));
}

TEST_F(TablesTest, WithoutTheirFileFailTheLoadByItsName) {
  const std::string vocabulary = File("words.txt", "tea\ncoffee\nmilk\n");
  const Serving model(vocabulary);
  const auto session = Open(model.root);
  ASSERT_OK(session->Run({}, {}, {model.init}).status());
  ASSERT_OK(ExportModel(session.get(), model.root,
                        {.inputs = {{"words", model.words}}, .outputs = {{"price", model.price}}},
                        Path("export")));
  const std::string asset = Path("export/assets/words.txt");
  ASSERT_OK(kFiles->DeleteFile(asset));
  EXPECT_STATUS(LoadModel(Path("export")), absl::StatusCode::kNotFound, asset);
  ASSERT_OK(WriteFileAtomically(kFiles, asset, "tea\n\n"));
  EXPECT_STATUS(LoadModel(Path("export")), kInvalid,
                absl::StrCat("Table file '", asset, "' line 2: it must not be empty"));
}

// --- Frozen graphs -------------------------------------------------------------------------------

TEST_F(TablesTest, AreConstantsOfAFrozenGraph) {
  const std::string vocabulary = File("words.txt", "tea\ncoffee\nmilk\n");
  const Serving model(vocabulary);
  const auto session = Open(model.root);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef graph, model.root.ToGraphDef());
  ASSERT_OK(session->Run({}, {}, {GlobalVariablesInitializer(model.root)}).status());
  ASSERT_OK_AND_ASSIGN(const FrozenGraph frozen,
                       FreezeGraph(session.get(), graph, {.outputs = {"price"}}));
  EXPECT_EQ(frozen.tables, (std::vector<std::string>{"ids/hash_table", "prices"}));
  ASSERT_OK(kFiles->DeleteFile(vocabulary));
  ASSERT_OK_AND_ASSIGN(const auto alone, NewSession());
  ASSERT_OK(alone->Extend(frozen.graph));
  // Each step fills the tables anew, as far as it can tell.
  for (int step = 0; step < 3; ++step) {
    ASSERT_OK_AND_ASSIGN(const auto out,
                         alone->Run({{"words", Strings({"milk", "tea", "?"})}}, {"price"}));
    ExpectTensorEqual(out[0], Tensor::Vector<float>({7, 3, -2}));
  }
  // Whoever asks for the initialiser gets it.
  ASSERT_OK_AND_ASSIGN(const FrozenGraph with_own,
                       FreezeGraph(session.get(), graph,
                                   {.outputs = {"price", model.ids.table.initializer.name(),
                                                model.prices.initializer.name()}}));
  EXPECT_EQ(with_own.tables, std::vector<std::string>{});
}

TEST_F(TablesTest, ThatNobodyFillsCannotBeFrozen) {
  Scope root;
  const Output table = HashTableV2(root.WithName("bare"), DT_STRING, DT_INT64);
  const Output found = LookupTableFindV2(root.WithName("found"), table, Const(root, Strings({"a"})),
                                         Const(root, int64_t{0}));
  const auto session = Open(root);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef graph, root.ToGraphDef());
  EXPECT_STATUS(FreezeGraph(session.get(), graph, {.outputs = {found.name()}}), kPrecondition,
                "Table not initialized. HashTable 'bare'");
}

TEST_F(TablesTest, ThatChangeAreFrozenWhereTheyAreOnlyRead) {
  const Counting model;
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef graph, model.root.ToGraphDef());
  const auto session = Open(model.root);
  ASSERT_OK(session->Run({}, {}, {model.init, model.add_row}).status());
  ASSERT_OK(
      session->Run({{model.keys, Strings({"a"})}, {model.values, Longs({5})}}, {}, {model.add})
          .status());
  ASSERT_OK_AND_ASSIGN(
      const FrozenGraph frozen,
      FreezeGraph(session.get(), graph, {.outputs = {model.found.name(), model.row.name()}}));
  ASSERT_OK_AND_ASSIGN(const auto alone, NewSession());
  ASSERT_OK(alone->Extend(frozen.graph));
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK_AND_ASSIGN(const auto out, alone->Run({{"keys", Strings({"a", "b"})}},
                                                    {model.found.name(), model.row.name()}));
    ExpectTensorEqual(out[0], Longs({5, 0}));
    ExpectTensorEqual(out[1], Tensor::Of<float>({{1, 2}, {0, 0}}));
  }
  EXPECT_STATUS(
      FreezeGraph(session.get(), graph, {.outputs = {model.found.name(), model.add.name()}}),
      kInvalid, "LookupTableInsertV2 'add' must only read table 'model/counts'");
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "layers/lookup.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/fingerprint64.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/lookup/lookup_table.h"
#include "ops/sparse/sparse_tensor.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "runtime/testing/op_test.h"

// covers: values: vocabularies in programs: names of TensorFlow, collections, buckets behind the
//   vocabulary by published hashes, bad arguments

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

std::string File(const std::string& name, const std::string& text) {
  const std::string path = JoinPath(::testing::TempDir(), "lookup_test_" + name);
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
  return path;
}

// What `output` gives once the table is initialised.
StatusOr<Tensor> Value(const Scope& scope, const LookupTable& table, const Output& output) {
  OpTestDevice device;
  MR_RETURN_IF_ERROR(scope.status());
  if (table.initializer.valid()) {
    const Scope after = scope.WithControlDependencies({table.initializer});
    MR_RETURN_IF_ERROR(EvaluateGraph(scope, {}, {Const(after, 0.0f)}, &device).status());
  }
  MR_ASSIGN_OR_RETURN(std::vector<Tensor> out, EvaluateGraph(scope, {}, {output}, &device));
  return out[0];
}

std::vector<std::string> Collection(const Scope& scope, const std::string& key) {
  const auto found = scope.collections()->find(key);
  if (found == scope.collections()->end()) return {};
  const auto& list = found->second.node_list().value();
  return {list.begin(), list.end()};
}

TEST(StaticTable, MapsKeysOfListsToValues) {
  Scope scope;
  const LookupTable table = StaticTable(scope.WithName("prices"), Strings({"tea", "coffee"}),
                                        Tensor::Vector<float>({1.5f, 2.5f}), Tensor::Scalar(-1.f));
  const Output found = Lookup(scope, table, Const(scope, Strings({"coffee", "milk", "tea"})));
  ASSERT_OK_AND_ASSIGN(const Tensor values, Value(scope, table, found));
  ExpectTensorEqual(values, Tensor::Vector<float>({2.5f, -1.f, 1.5f}));
  EXPECT_EQ(table.size, 2);
  EXPECT_EQ(scope.shape(found).ToString(), "[3]");

  EXPECT_EQ(table.handle.name(), "prices:0");
  EXPECT_EQ(table.initializer.name(), "prices/table_init/InitializeTableV2");
  EXPECT_EQ(found.name(), "prices_Lookup/LookupTableFindV2:0");
  EXPECT_EQ(Collection(scope, "table_initializer"),
            std::vector<std::string>{"prices/table_init/InitializeTableV2"});
}

TEST(StaticTable, ReadsAFileThatAnExportTakesAlong) {
  Scope scope;
  const std::string path = File("prices.csv", "tea;1.5\ncoffee;2.5\n");
  const LookupTable table = StaticTable(scope,
                                        {.path = path,
                                         .key_column = 0,
                                         .value_dtype = DT_DOUBLE,
                                         .value_column = 1,
                                         .delimiter = ";"},
                                        Tensor::Scalar(0.0));
  ASSERT_OK_AND_ASSIGN(
      const Tensor values,
      Value(scope, table, Lookup(scope, table, Const(scope, Strings({"coffee", "milk"})))));
  ExpectTensorEqual(values, Tensor::Vector<double>({2.5, 0}));
  EXPECT_EQ(Collection(scope, "asset_filepaths"),
            std::vector<std::string>{"hash_table/table_init/asset_filepath:0"});
  EXPECT_EQ(Collection(scope, "table_initializer"),
            std::vector<std::string>{"hash_table/table_init/InitializeTableFromTextFileV2"});
  EXPECT_EQ(scope
                .constant_value(
                    Output(scope.graph()->FindNode("hash_table/table_init/asset_filepath"), 0))
                ->scalar<std::string>(),
            path);
}

TEST(StaticTable, TablesOfOneFileAreOne) {
  const auto shared_name = [](const TableFile& file) {
    Scope scope;
    const LookupTable table = StaticTable(scope, file, Tensor::Scalar<int64_t>(-1));
    return GetAttr<std::string>(*table.handle.node(), "shared_name").value();
  };
  EXPECT_EQ(shared_name({.path = "a.txt"}), "hash_table_a.txt_-2_-1");
  EXPECT_EQ(shared_name({.path = "a.txt", .vocab_size = 7}), "hash_table_a.txt_7_-2_-1");
  EXPECT_EQ(shared_name({.path = "b.txt", .key_column = 0, .value_column = 1}),
            "hash_table_b.txt_0_1");
}

TEST(IndexTable, GivesWordsTheirPlaces) {
  Scope scope;
  const IndexTable table = IndexTableFromTensor(scope, Strings({"emerson", "lake", "palmer"}));
  const Output ids =
      Lookup(scope, table, Const(scope, Tensor::Of({{"lake", "x"}, {"palmer", "emerson"}})));
  EXPECT_EQ(scope.shape(ids).ToString(), "[2,2]");
  ASSERT_OK_AND_ASSIGN(const Tensor values, Value(scope, table.table, ids));
  ExpectTensorEqual(values, Tensor::Of<int64_t>({{1, -1}, {2, 0}}));
  ASSERT_OK_AND_ASSIGN(const Tensor size, Value(scope, table.table, TableSize(scope, table)));
  ExpectTensorEqual(size, Tensor::Scalar<int64_t>(3));
  EXPECT_EQ(table.table.handle.name(), "string_to_index/hash_table:0");
}

TEST(IndexTable, GivesNumbersTheirPlaces) {
  for (const DType dtype : {DT_INT32, DT_INT64}) {
    Scope scope;
    const Tensor words =
        dtype == DT_INT32 ? Tensor::Vector<int32_t>({1000, -7}) : Longs({1000, -7});
    const Tensor asked = dtype == DT_INT32 ? Tensor::Vector<int32_t>({-7, 1}) : Longs({-7, 1});
    const IndexTable table = IndexTableFromTensor(scope, words, {.default_value = 5});
    ASSERT_OK_AND_ASSIGN(const Tensor ids,
                         Value(scope, table.table, Lookup(scope, table, Const(scope, asked))));
    ExpectTensorEqual(ids, Longs({1, 5}));
  }
}

TEST(IndexTable, GivesOtherWordsBucketsBehindTheVocabulary) {
  // Buckets of 10, as TensorFlow publishes them: a 9, b 2, c 2, d 5.
  Scope scope;
  const IndexTable table =
      IndexTableFromTensor(scope, Strings({"x", "a"}), {.num_oov_buckets = 10});
  const SparseTensor words = {Const(scope, Tensor::Of<int64_t>({{0, 0}, {0, 1}})),
                              Const(scope, Strings({"a", "b", "c", "d", "x"})),
                              Const(scope, Longs({1, 2}))};
  const SparseTensor ids = Lookup(scope, table, words);
  ASSERT_OK_AND_ASSIGN(const Tensor values, Value(scope, table.table, ids.values));
  ExpectTensorEqual(values, Longs({1, 2 + 2, 2 + 2, 2 + 5, 0}));
  EXPECT_EQ(ids.indices, words.indices);
  EXPECT_EQ(ids.dense_shape, words.dense_shape);
  ASSERT_OK_AND_ASSIGN(const Tensor size, Value(scope, table.table, TableSize(scope, table)));
  ExpectTensorEqual(size, Tensor::Scalar<int64_t>(12));

  // Numbers are their decimal text.
  const auto of_number = [](const Tensor& numbers, const std::string& file) {
    Scope s;
    const IndexTable t =
        IndexTableFromFile(s, file, {.num_oov_buckets = 100, .key_dtype = numbers.dtype()});
    const Output found = Lookup(s, t, Const(s, numbers));
    const auto got = Value(s, t.table, found);
    EXPECT_OK(got.status());
    const auto all = Value(s, t.table, TableSize(s, t));
    EXPECT_OK(all.status());
    EXPECT_EQ(all->scalar<int64_t>(), 102);
    return got.ok() ? *got : Tensor();
  };
  const std::string file = File("numbers.txt", "7\n-8\n");
  const int64_t bucket = 2 + FingerprintBucket("12", 100);
  ExpectTensorEqual(of_number(Longs({7, 12, -8}), file), Longs({0, bucket, 1}));
  ExpectTensorEqual(of_number(Tensor::Vector<int32_t>({12, -8}), file), Longs({bucket, 1}));
}

TEST(IndexTable, ReadsVocabularyFiles) {
  Scope scope;
  const std::string path = File("words.txt", "emerson\nlake\npalmer\n");
  const IndexTable table = IndexTableFromFile(scope, path, {.vocab_size = 2});
  ASSERT_OK_AND_ASSIGN(
      const Tensor ids,
      Value(scope, table.table,
            Lookup(scope, table, Const(scope, Strings({"lake", "palmer", "emerson"})))));
  ExpectTensorEqual(ids, Longs({1, -1, 0}));

  const LookupTable words = IndexToStringTableFromFile(scope, path);
  ASSERT_OK_AND_ASSIGN(const Tensor texts,
                       Value(scope, words, Lookup(scope, words, Const(scope, Longs({2, 0, 3})))));
  ExpectTensorEqual(texts, Strings({"palmer", "emerson", "UNK"}));
  EXPECT_EQ(words.handle.name(), "index_to_string:0");
}

TEST(IndexTable, GivesWordsOfIds) {
  Scope scope;
  const LookupTable words = IndexToStringTableFromTensor(scope, Strings({"a", "b"}), "?");
  ASSERT_OK_AND_ASSIGN(const Tensor texts,
                       Value(scope, words, Lookup(scope, words, Const(scope, Longs({1, -1, 0})))));
  ExpectTensorEqual(texts, Strings({"b", "?", "a"}));
}

TEST(LookupTables, AreInitialisedTogether) {
  Scope scope;
  const LookupTable a = StaticTable(scope, Strings({"k"}), Longs({1}), Tensor::Scalar<int64_t>(0));
  const IndexTable b = IndexTableFromTensor(scope, Strings({"k"}));
  const Operation init = TablesInitializer(scope);
  EXPECT_EQ(init.name(), "init_all_tables");
  OpTestDevice device;
  const Output done = Const(scope.WithControlDependencies({init}), 1.0f);
  const Output first = Lookup(scope, a, Const(scope, Strings({"k"})));
  const Output second = Lookup(scope, b, Const(scope, Strings({"k"})));
  EXPECT_STATUS(EvaluateGraph(scope, {}, {first}, &device), absl::StatusCode::kFailedPrecondition,
                "Table not initialized. HashTable 'hash_table'");
  ASSERT_OK(EvaluateGraph(scope, {}, {done}, &device).status());
  ASSERT_OK_AND_ASSIGN(const auto out, EvaluateGraph(scope, {}, {first, second}, &device));
  ExpectTensorEqual(out[0], Longs({1}));
  ExpectTensorEqual(out[1], Longs({0}));
}

TEST(LookupTables, WaitForNothingThatTheirScopeWaitsFor) {
  Scope scope;
  const Output before = TestInput(scope, DT_FLOAT);
  const IndexTable table =
      IndexTableFromTensor(scope.WithControlDependencies({before.op()}), Strings({"a"}));
  for (const Node* node : {table.table.handle.node(), table.table.initializer.node(),
                           table.table.default_value.node()}) {
    EXPECT_EQ(node->control_inputs().begin(), node->control_inputs().end()) << node->name();
  }
}

TEST(MutableTable, IsFilledByOpsAndNamedForCheckpoints) {
  Scope scope;
  const LookupTable table =
      MutableTable(scope.WithName("counts"), DT_STRING, Tensor::Scalar<int64_t>(0));
  OpTestDevice device;
  const Operation insert = LookupTableInsertV2(scope, table.handle, Const(scope, Strings({"a"})),
                                               Const(scope, Longs({4})));
  const Output found =
      Lookup(scope.WithControlDependencies({insert}), table, Const(scope, Strings({"a", "b"})));
  ASSERT_OK_AND_ASSIGN(const auto out, EvaluateGraph(scope, {}, {found}, &device));
  ExpectTensorEqual(out[0], Longs({4, 0}));
  EXPECT_EQ(table.handle.name(), "counts:0");
  EXPECT_EQ(Collection(scope, "saveable_objects"), std::vector<std::string>{"counts"});
  EXPECT_EQ(Collection(scope, "table_initializer"), std::vector<std::string>{});

  const LookupTable vectors =
      MutableTable(scope, DT_INT64, Tensor::Vector<float>({1, 2}), {.checkpoint = false});
  ASSERT_OK_AND_ASSIGN(
      const auto missing,
      EvaluateGraph(scope, {}, {Lookup(scope, vectors, Const(scope, Longs({1, 2})))}, &device));
  ExpectTensorEqual(missing[0], Tensor::Of<float>({{1, 2}, {1, 2}}));
  EXPECT_EQ(Collection(scope, "saveable_objects"), std::vector<std::string>{"counts"});
}

TEST(LookupTables, RefuseWhatCannotBe) {
  const Tensor words = Strings({"a", "b"}), ids = Longs({1, 2});
  const Tensor zero = Tensor::Scalar<int64_t>(0);
  using Build = std::function<void(const Scope&)>;
  const std::vector<std::pair<Build, const char*>> cases = {
      {[&](const Scope& s) { StaticTable(s, words, Longs({1}), zero); },
       "values must have the keys' shape [2], got shape [1]"},
      {[&](const Scope& s) { StaticTable(s, words, ids, Tensor::Scalar(0.f)); },
       "default_value must be int64[], got float[]"},
      {[&](const Scope& s) { StaticTable(s, words, ids, ids); },
       "default_value must be int64[], got int64[2]"},
      {[&](const Scope& s) {
         StaticTable(s, Tensor::Vector<float>({1, 2}), ids, zero);
       },
       "keys must be int32, int64 or string, got float"},
      {[&](const Scope& s) { StaticTable(s, zero, zero, zero); },
       "keys must be a vector, got shape []"},
      {[&](const Scope& s) {
         StaticTable(s, Strings({"a", "a"}), ids, zero);
       },
       "keys must have one value each, got 'a' at 0 and 1"},
      {[&](const Scope& s) { StaticTable(s, {.path = ""}, zero); }, "path must name a file"},
      {[&](const Scope& s) { StaticTable(s, {.path = "x", .vocab_size = 0}, zero); },
       "vocab_size must be >= 1, or -1 for all lines, got 0"},
      {[&](const Scope& s) {
         IndexTableFromTensor(s, Strings({"a", "b", "a"}));
       },
       "vocabulary must have different words, got 'a' at 0 and 2"},
      {[&](const Scope& s) {
         IndexTableFromTensor(s, Longs({5, 5}));
       },
       "vocabulary must have different words, got 5 at 0 and 1"},
      {[&](const Scope& s) { IndexTableFromTensor(s, Strings({})); },
       "vocabulary must have words, got none"},
      {[&](const Scope& s) { IndexTableFromTensor(s, words, {.num_oov_buckets = -1}); },
       "num_oov_buckets must be >= 0, got -1"},
      {[&](const Scope& s) { IndexTableFromFile(s, "x", {.num_oov_buckets = -1}); },
       "num_oov_buckets must be >= 0, got -1"},
      {[&](const Scope& s) { IndexTableFromFile(s, "x", {.key_dtype = DT_FLOAT}); },
       "key_dtype must be int32, int64 or string, got float"},
      {[&](const Scope& s) { IndexToStringTableFromTensor(s, ids); },
       "vocabulary must be a vector of strings, got int64[2]"},
      {[&](const Scope& s) { MutableTable(s, DT_INT64, Tensor::Of<float>({{1}})); },
       "default_value must be a scalar or a vector, got shape [1,1]"},
  };
  for (const auto& [build, message] : cases) {
    Scope scope;
    build(scope);
    EXPECT_STATUS(scope.status(), kInvalid, message);
    EXPECT_STATUS(scope.status(), kInvalid, "built at");
  }
  Scope scope;
  EXPECT_FALSE(Lookup(scope, LookupTable(), Const(scope, words)).valid());
  EXPECT_OK(scope.status());
}

}  // namespace
}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/lookup_table.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: mutable look-up tables insert, remove, export and import as TensorFlow's

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }
Tensor Long(int64_t value) { return Tensor::Scalar<int64_t>(value); }

class LookupTable : public ::testing::Test {
 protected:
  Tensor Make(const std::string& op, DType key, DType value) {
    return RunOp1(OpCall(op).On(&device_).Attr("key_dtype", key).Attr("value_dtype", value));
  }
  Tensor MakeDense(const Tensor& empty, const Tensor& deleted, DType value,
                   const PartialShape& value_shape = PartialShape::Scalar(), int64_t buckets = 8) {
    return RunOp1(OpCall("MutableDenseHashTableV2")
                      .On(&device_)
                      .Input(empty)
                      .Input(deleted)
                      .Attr("value_dtype", value)
                      .Attr("value_shape", value_shape)
                      .Attr("initial_num_buckets", buckets));
  }
  OpCall Call(const std::string& op, const Tensor& table) {
    return OpCall(op).On(&device_).Input(table);
  }
  Tensor Find(const Tensor& table, const Tensor& keys, const Tensor& missing) {
    return RunOp1(Call("LookupTableFindV2", table).Input(keys).Input(missing));
  }
  void Insert(const Tensor& table, const Tensor& keys, const Tensor& values) {
    EXPECT_OK(RunOp(Call("LookupTableInsertV2", table).Input(keys).Input(values)));
  }
  void Remove(const Tensor& table, const Tensor& keys) {
    EXPECT_OK(RunOp(Call("LookupTableRemoveV2", table).Input(keys)));
  }
  int64_t Size(const Tensor& table) {
    return RunOp1(Call("LookupTableSizeV2", table)).scalar<int64_t>();
  }
  std::vector<Tensor> Export(const Tensor& table, DType key, DType value) {
    auto out = RunOp(Call("LookupTableExportV2", table).Attr("Tkeys", key).Attr("Tvalues", value));
    EXPECT_OK(out.status());
    return out.ok() ? *out : std::vector<Tensor>(2);
  }

  OpTestDevice device_;
};

TEST_F(LookupTable, AMutableTableTakesAndLosesValues) {
  const Tensor table = Make("MutableHashTableV2", DT_STRING, DT_INT64);
  ExpectTensorEqual(Find(table, Strings({"a"}), Long(-1)), Longs({-1}));
  Insert(table, Strings({"a", "b", "a"}), Longs({1, 2, 3}));
  EXPECT_EQ(Size(table), 2);
  ExpectTensorEqual(Find(table, Strings({"b", "a", "c"}), Long(-1)), Longs({2, 3, -1}));
  Remove(table, Strings({"a", "z", "a"}));
  EXPECT_EQ(Size(table), 1);
  ExpectTensorEqual(Find(table, Strings({"b", "a"}), Long(-1)), Longs({2, -1}));

  const std::vector<Tensor> out = Export(table, DT_STRING, DT_INT64);
  ExpectTensorEqual(out[0], Strings({"b"}));
  ExpectTensorEqual(out[1], Longs({2}));
  // Import replaces.
  EXPECT_OK(
      RunOp(Call("LookupTableImportV2", table).Input(Strings({"x", "y"})).Input(Longs({7, 8}))));
  EXPECT_EQ(Size(table), 2);
  ExpectTensorEqual(Find(table, Strings({"b", "y"}), Long(-1)), Longs({-1, 8}));
}

TEST_F(LookupTable, KeysHaveAnyShapeAndMayBeNone) {
  const Tensor table = Make("MutableHashTableV2", DT_INT32, DT_FLOAT);
  Insert(table, TensorOf<int32_t>({2, 2}, {1, 2, 3, 4}),
         TensorOf<float>({2, 2}, {.1f, .2f, .3f, .4f}));
  ExpectTensorEqual(Find(table, TensorOf<int32_t>({2, 1, 2}, {4, 3, 9, 1}), Tensor::Scalar(9.f)),
                    TensorOf<float>({2, 1, 2}, {.4f, .3f, 9.f, .1f}));
  ExpectTensorEqual(Find(table, Tensor::Scalar<int32_t>(2), Tensor::Scalar(9.f)),
                    Tensor::Scalar(.2f));
  ExpectTensorEqual(Find(table, TensorOf<int32_t>({0, 3}, {}), Tensor::Scalar(9.f)),
                    TensorOf<float>({0, 3}, {}));
  Insert(table, TensorOf<int32_t>({0}, {}), TensorOf<float>({0}, {}));
  Remove(table, TensorOf<int32_t>({0}, {}));
  EXPECT_EQ(Size(table), 4);
}

TEST_F(LookupTable, HasAllTypesOfKeysAndValues) {
  const auto check = [&](const Tensor& keys, const Tensor& values, const Tensor& missing) {
    for (const char* op : {"HashTableV2", "MutableHashTableV2"}) {
      SCOPED_TRACE(absl::StrCat(op, " ", DTypeName(keys.dtype()), " ", DTypeName(values.dtype())));
      OpTestDevice device;
      const Tensor table = RunOp1(OpCall(op)
                                      .On(&device)
                                      .Attr("key_dtype", keys.dtype())
                                      .Attr("value_dtype", values.dtype()));
      EXPECT_OK(
          RunOp(OpCall("LookupTableImportV2").On(&device).Input(table).Input(keys).Input(values)));
      ExpectTensorEqual(
          RunOp1(OpCall("LookupTableFindV2").On(&device).Input(table).Input(keys).Input(missing)),
          values);
    }
  };
  for (const Tensor& keys :
       {Strings({"a", "b"}), Longs({-5, int64_t{1} << 40}), Tensor::Vector<int32_t>({-1, 1})}) {
    check(keys, Tensor::Vector<bool>({true, false}), Tensor::Scalar(false));
    check(keys, Tensor::Vector<int32_t>({3, 4}), Tensor::Scalar<int32_t>(0));
    check(keys, Longs({5, 6}), Long(0));
    check(keys, Tensor::Vector<float>({.5f, .25f}), Tensor::Scalar(0.f));
    check(keys, Tensor::Vector<double>({.5, .25}), Tensor::Scalar(0.));
    check(keys, Strings({"x", "a long one that does not fit into the object"}), Tensor::Scalar(""));
  }
}

TEST_F(LookupTable, ValuesMayBeVectors) {
  const Tensor table = RunOp1(OpCall("MutableHashTableOfTensorsV2")
                                  .On(&device_)
                                  .Attr("key_dtype", DT_INT64)
                                  .Attr("value_dtype", DT_FLOAT)
                                  .Attr("value_shape", PartialShape({2})));
  Insert(table, Longs({7, 8}), TensorOf<float>({2, 2}, {1, 2, 3, 4}));
  ExpectTensorEqual(Find(table, TensorOf<int64_t>({1, 3}, {8, 9, 7}), TensorOf<float>({2}, {5, 6})),
                    TensorOf<float>({1, 3, 2}, {3, 4, 5, 6, 1, 2}));
  const std::vector<Tensor> out = Export(table, DT_INT64, DT_FLOAT);
  ExpectTensorEqual(out[0], Longs({7, 8}));
  ExpectTensorEqual(out[1], TensorOf<float>({2, 2}, {1, 2, 3, 4}));
  Remove(table, Longs({7}));
  ExpectTensorEqual(Find(table, Longs({8, 7}), TensorOf<float>({2}, {0, 0})),
                    TensorOf<float>({2, 2}, {3, 4, 0, 0}));
  ExpectOpError(Call("LookupTableFindV2", table).Input(Longs({7})).Input(Tensor::Scalar(0.f)),
                kInvalid, "Expected shape [2] for default value, got []");
  ExpectOpError(Call("LookupTableInsertV2", table)
                    .Input(Longs({7}))
                    .Input(TensorOf<float>({1, 3}, {1, 2, 3})),
                kInvalid, "Expected shape [1,2] for value, got [1,3]");
}

TEST_F(LookupTable, ADenseTableKeepsItsKeysInTensorFlowsBuckets) {
  // bucket = key mod 8; the second probe is 1 further on, the third 2 more.
  const Tensor table = MakeDense(Long(-1), Long(-2), DT_INT64);
  Insert(table, Longs({3, 11, 19, 5}), Longs({30, 110, 190, 50}));
  EXPECT_EQ(Size(table), 4);
  std::vector<Tensor> out = Export(table, DT_INT64, DT_INT64);
  ExpectTensorEqual(out[0], TensorOf<int64_t>({8, 1}, {-1, -1, -1, 3, 11, 5, 19, -1}));
  ExpectTensorEqual(out[1], TensorOf<int64_t>({8, 1}, {0, 0, 0, 30, 110, 50, 190, 0}));

  // A removed key's bucket is marked, and found past; the next new key takes it.
  Remove(table, Longs({11, 12}));
  EXPECT_EQ(Size(table), 3);
  ExpectTensorEqual(Find(table, Longs({19, 11, 3}), Long(0)), Longs({190, 0, 30}));
  Insert(table, Longs({19}), Longs({191}));
  EXPECT_EQ(Size(table), 3);
  Insert(table, Longs({27}), Longs({270}));
  out = Export(table, DT_INT64, DT_INT64);
  ExpectTensorEqual(out[0], TensorOf<int64_t>({8, 1}, {-1, -1, -1, 3, 27, 5, 19, -1}));

  // Above 0.8 of the buckets there are twice as many.
  Insert(table, Longs({0, 1, 2, 4}), Longs({1, 2, 3, 4}));
  out = Export(table, DT_INT64, DT_INT64);
  EXPECT_EQ(out[0].dim(0), 16);
  EXPECT_EQ(Size(table), 8);
  ExpectTensorEqual(Find(table, Longs({27, 19, 5, 3, 0, 4}), Long(-7)),
                    Longs({270, 191, 50, 30, 1, 4}));

  // What was exported is found in another table.
  const Tensor other = RunOp1(OpCall("MutableDenseHashTableV2")
                                  .On(&device_)
                                  .Name("other")
                                  .Input(Long(-1))
                                  .Input(Long(-2))
                                  .Attr("value_dtype", DT_INT64)
                                  .Attr("initial_num_buckets", int64_t{4}));
  EXPECT_OK(RunOp(Call("LookupTableImportV2", other).Input(out[0]).Input(out[1])));
  EXPECT_EQ(Size(other), 8);
  ExpectTensorEqual(Find(other, Longs({27, 2, 8}), Long(-7)), Longs({270, 3, -7}));
}

TEST_F(LookupTable, ADenseTableOfATinyLoadFactorStaysSmall) {
  const Tensor table = RunOp1(OpCall("MutableDenseHashTableV2")
                                  .On(&device_)
                                  .Input(Long(-1))
                                  .Input(Long(-2))
                                  .Attr("value_dtype", DT_INT64)
                                  .Attr("initial_num_buckets", int64_t{4})
                                  .Attr("max_load_factor", 1e-30f));
  Insert(table, Longs({1, 2, 3}), Longs({1, 2, 3}));
  EXPECT_EQ(Export(table, DT_INT64, DT_INT64)[0].dim(0), 256);
  ExpectTensorEqual(Find(table, Longs({3, 4}), Long(0)), Longs({3, 0}));
}

TEST_F(LookupTable, ADenseTablesKeysMayBeVectors) {
  const Tensor table = MakeDense(Longs({-1, -1}), Longs({-2, -2}), DT_FLOAT, {3});
  Insert(table, TensorOf<int64_t>({2, 2}, {0, 1, 1, 0}),
         TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6}));
  ExpectTensorEqual(
      Find(table, TensorOf<int64_t>({3, 2}, {1, 0, 1, 1, 0, 1}), TensorOf<float>({3}, {0, 0, 0})),
      TensorOf<float>({3, 3}, {4, 5, 6, 0, 0, 0, 1, 2, 3}));
  Remove(table, TensorOf<int64_t>({1, 2}, {1, 0}));
  EXPECT_EQ(Size(table), 1);
  ExpectOpError(Call("LookupTableFindV2", table)
                    .Input(Longs({1, 2, 3}))
                    .Input(TensorOf<float>({3}, {0, 0, 0})),
                kInvalid, "must end with the table's key shape [2]");
}

TEST_F(LookupTable, ADenseTableOfStringsIsLikeAMap) {
  const Tensor table =
      MakeDense(Tensor::Scalar(""), Tensor::Scalar("deleted"), DT_INT64, PartialShape::Scalar(), 4);
  std::mt19937 random(5);
  std::map<std::string, int64_t> wanted;
  for (int64_t step = 0; step < 400; ++step) {
    const std::string key = absl::StrCat("k", random() % 60);
    if (random() % 3 != 0) {
      Insert(table, Strings({key}), Longs({step}));
      wanted[key] = step;
    } else {
      Remove(table, Strings({key}));
      wanted.erase(key);
    }
    ASSERT_EQ(Size(table), static_cast<int64_t>(wanted.size()));
  }
  for (int i = 0; i < 60; ++i) {
    const std::string key = absl::StrCat("k", i);
    const int64_t value = wanted.count(key) == 1 ? wanted[key] : -1;
    EXPECT_EQ(Find(table, Strings({key}), Long(-1)).flat<int64_t>()[0], value) << key;
  }
}

TEST_F(LookupTable, ADenseTableRefusesItsMarksAsKeys) {
  const Tensor table = MakeDense(Long(-1), Long(-2), DT_INT64);
  for (const auto& [key, name] :
       {std::pair<int64_t, const char*>{-1, "empty_key"}, {-2, "deleted_key"}}) {
    const std::string text = absl::StrCat("Using the ", name, " as a table key is not allowed");
    ExpectOpError(Call("LookupTableFindV2", table).Input(Longs({1, key})).Input(Long(0)), kInvalid,
                  text);
    ExpectOpError(Call("LookupTableInsertV2", table).Input(Longs({key})).Input(Longs({0})),
                  kInvalid, text);
    ExpectOpError(Call("LookupTableRemoveV2", table).Input(Longs({key})), kInvalid, text);
  }
  for (const auto& [keys, values] : {std::pair{Longs({1, 2}), Longs({1})},
                                     {Long(1), Long(1)},
                                     {TensorOf<int64_t>({1, 2}, {1, 2}), Longs({1})}}) {
    ExpectOpError(Call("LookupTableImportV2", table).Input(keys).Input(values), kInvalid,
                  "Expected shapes [n,1] for keys and [n,1] for values");
  }
}

TEST_F(LookupTable, SaysWhichTableIsNotInitialized) {
  const Tensor table = RunOp1(OpCall("HashTableV2")
                                  .On(&device_)
                                  .Name("words/hash_table")
                                  .Attr("key_dtype", DT_STRING)
                                  .Attr("value_dtype", DT_INT64));
  ExpectOpError(Call("LookupTableFindV2", table).Input(Strings({"a"})).Input(Long(0)),
                absl::StatusCode::kFailedPrecondition,
                "Table not initialized. HashTable 'words/hash_table' must be initialized");
  ExpectOpError(
      Call("LookupTableExportV2", table).Attr("Tkeys", DT_STRING).Attr("Tvalues", DT_INT64),
      absl::StatusCode::kFailedPrecondition, "Table not initialized.");
  EXPECT_EQ(Size(table), 0);
}

TEST_F(LookupTable, RefusesWhatIsNotTheTables) {
  const Tensor fixed = Make("HashTableV2", DT_STRING, DT_INT64);
  EXPECT_OK(RunOp(Call("InitializeTableV2", fixed).Input(Strings({"a"})).Input(Longs({1}))));
  const auto find = [&](const Tensor& keys, const Tensor& missing) {
    return Call("LookupTableFindV2", fixed).Input(keys).Input(missing);
  };
  ExpectOpError(find(Longs({1}), Long(0)), kInvalid,
                "HashTable 'op' has keys of string, got int64");
  ExpectOpError(find(Strings({"a"}), Tensor::Scalar(0.f)), kInvalid, "values of int64, got float");
  ExpectOpError(find(Strings({"a"}), Longs({1, 2})), kInvalid,
                "Expected shape [] for default value, got [2]");
  ExpectOpError(Call("LookupTableInsertV2", fixed).Input(Strings({"b"})).Input(Longs({1})),
                kInvalid, "HashTable 'op' does not change once it is initialized");
  ExpectOpError(Call("LookupTableRemoveV2", fixed).Input(Strings({"b"})), kInvalid,
                "HashTable 'op' does not change once it is initialized");
  ExpectOpError(
      Call("LookupTableExportV2", fixed).Attr("Tkeys", DT_INT64).Attr("Tvalues", DT_INT64),
      kInvalid, "HashTable 'op' has int64 by string, got int64 by int64");
  ExpectOpError(Call("LookupTableFindV2", device_.VariableHandle("v", Long(1)))
                    .Input(Strings({"a"}))
                    .Input(Long(0)),
                kInvalid, "");
}

TEST_F(LookupTable, TheOldFormsTakeReferences) {
  const auto names = TestVariable("names", Strings({"", "shared"}));
  EXPECT_OK(RunOp(OpCall("MutableHashTable")
                      .On(&device_)
                      .Attr("shared_name", std::string("shared"))
                      .Attr("key_dtype", DT_STRING)
                      .Attr("value_dtype", DT_INT64)));
  const auto call = [&](const char* op) { return OpCall(op).On(&device_).InputRef(names); };
  EXPECT_OK(RunOp(call("LookupTableInsert").Input(Strings({"a", "b"})).Input(Longs({1, 2}))));
  ExpectTensorEqual(RunOp1(call("LookupTableFind").Input(Strings({"b", "c"})).Input(Long(-1))),
                    Longs({2, -1}));
  ExpectTensorEqual(RunOp1(call("LookupTableSize")), Long(2));
  EXPECT_OK(RunOp(call("LookupTableImport").Input(Strings({"z"})).Input(Longs({9}))));
  ASSERT_OK_AND_ASSIGN(
      const auto out,
      RunOp(call("LookupTableExport").Attr("Tkeys", DT_STRING).Attr("Tvalues", DT_INT64)));
  ExpectTensorEqual(out[0], Strings({"z"}));
  ExpectTensorEqual(out[1], Longs({9}));
  ExpectOpError(OpCall("LookupTableSize").On(&device_).InputRef(TestVariable("x", Strings({"a"}))),
                kInvalid, "table_handle must be container and name of a table, got string[1]");
  ExpectOpError(
      OpCall("LookupTableSize").On(&device_).InputRef(TestVariable("x", Strings({"", "gone"}))),
      absl::StatusCode::kNotFound, "gone");
}

TEST_F(LookupTable, LargeBatchesAreFoundInParts) {
  const Tensor table = Make("MutableHashTableV2", DT_INT64, DT_INT64);
  constexpr int64_t kKeys = 100000;
  ASSERT_OK_AND_ASSIGN(Tensor keys, Tensor::Allocate(DT_INT64, Shape({kKeys})));
  ASSERT_OK_AND_ASSIGN(Tensor values, Tensor::Allocate(DT_INT64, Shape({kKeys})));
  for (int64_t i = 0; i < kKeys; ++i) {
    keys.mutable_raw<int64_t>()[static_cast<size_t>(i)] = i * 3;
    values.mutable_raw<int64_t>()[static_cast<size_t>(i)] = -i;
  }
  Insert(table, keys, values);
  ExpectTensorEqual(Find(table, keys, Long(1)), values);
}

TEST_F(LookupTable, InfersShapesOfWhatItKnows) {
  const ShapeInput table(DT_INT64, "[]"), of_vectors(DT_INT64, "[4]");
  const std::initializer_list<OpAttr> types = {{"Tin", DT_STRING}, {"Tout", DT_INT64}};
  EXPECT_SHAPE("LookupTableFindV2", types, {table, "[2,?]", "[]"}, "[2,?]");
  EXPECT_SHAPE("LookupTableFindV2", types, {of_vectors, "[2,?]", "[4]"}, "[2,?,4]");
  EXPECT_SHAPE("LookupTableFindV2", types, {"[]", "[2,?]", "[]"}, "<unknown>");
  EXPECT_SHAPE("LookupTableFindV2", types, {table, "<unknown>", "<unknown>"}, "<unknown>");
  EXPECT_SHAPE_ERROR("LookupTableFindV2", types, {of_vectors, "[2]", "[]"},
                     "Expected shape [4] for default value, got []");
  EXPECT_SHAPE_ERROR("LookupTableFindV2", types, {"[]", "[2]", "[2,2]"},
                     "default_value must be a scalar or a vector");
  EXPECT_SHAPE_ERROR("LookupTableFindV2", {{"Tout", DT_FLOAT}}, {table, "[2]", "[]"},
                     "the table has values of int64, got float");
  EXPECT_SHAPE_ERROR("LookupTableInsertV2", types, {of_vectors, "[2]", "[2]"},
                     "Expected shape [2,4] for value, got [2]");
  EXPECT_SHAPE("LookupTableSizeV2", {}, {table}, "[]");
  EXPECT_SHAPE("LookupTableExportV2", {{"Tkeys", DT_STRING}, {"Tvalues", DT_INT64}}, {table},
               "<unknown>;<unknown>");
}

}  // namespace
}  // namespace millrace

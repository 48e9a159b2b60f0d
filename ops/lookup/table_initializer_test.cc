// SPDX-License-Identifier: Apache-2.0
#include "ops/lookup/table_initializer.h"

#include <string>
#include <utility>
#include <vector>

#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: a table is initialised once, from tensors or a file: a second equal
//   initialisation is fine, another is refused; an error in a file names its line; keys with two
//   values leave the table as it was

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;

Tensor Strings(std::initializer_list<std::string> values) {
  return Tensor::Vector<std::string>(values);
}
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

// A table on a device of its own.
class Table {
 public:
  Table(DType key, DType value, const char* op = "HashTableV2")
      : handle_(RunOp1(
            OpCall(op).On(&device_).Name("t").Attr("key_dtype", key).Attr("value_dtype", value))) {}
  OpCall FromTensors(const Tensor& keys, const Tensor& values) {
    return OpCall("InitializeTableV2").On(&device_).Input(handle_).Input(keys).Input(values);
  }
  OpCall FromFile(const std::string& path, int64_t key, int64_t value, int64_t vocab_size = -1,
                  const std::string& delimiter = "\t") {
    return OpCall("InitializeTableFromTextFileV2")
        .On(&device_)
        .Input(handle_)
        .Input(Tensor::Scalar(path))
        .Attr("key_index", key)
        .Attr("value_index", value)
        .Attr("vocab_size", vocab_size)
        .Attr("delimiter", delimiter);
  }
  Tensor Find(const Tensor& keys, const Tensor& missing) {
    return RunOp1(
        OpCall("LookupTableFindV2").On(&device_).Input(handle_).Input(keys).Input(missing));
  }
  int64_t size() {
    return RunOp1(OpCall("LookupTableSizeV2").On(&device_).Input(handle_)).scalar<int64_t>();
  }

 private:
  OpTestDevice device_;
  Tensor handle_;
};

std::string File(const std::string& text) {
  static int number = 0;
  const std::string path =
      JoinPath(::testing::TempDir(), "table_initializer_" + std::to_string(number++));
  EXPECT_OK(WriteFileAtomically(FileSystem::Posix(), path, text));
  return path;
}

TEST(InitializeTable, FillsOnceAndThenStays) {
  Table table(DT_STRING, DT_INT64);
  ASSERT_OK(RunOp(table.FromTensors(Strings({"a", "b"}), Longs({1, 2}))).status());
  EXPECT_OK(RunOp(table.FromTensors(Strings({"b", "a"}), Longs({2, 1}))).status());
  ExpectOpError(table.FromTensors(Strings({"a"}), Longs({1})), kPrecondition,
                "Table was already initialized with different data. HashTable 't' has 2 entries, "
                "got 1");
  ExpectOpError(table.FromTensors(Strings({"a", "b"}), Longs({1, 3})), kPrecondition,
                "Table was already initialized with different data.");
  ExpectTensorEqual(table.Find(Strings({"b", "a", "c"}), Tensor::Scalar<int64_t>(0)),
                    Longs({2, 1, 0}));
}

TEST(InitializeTable, RefusesAKeyWithTwoValuesAndStaysAsItWas) {
  Table table(DT_STRING, DT_INT64);
  ExpectOpError(
      table.FromTensors(Strings({"a", "b", "a"}), Longs({1, 2, 3})), kPrecondition,
      "HashTable has different value for same key. Key a has 1 and trying to add value 3");
  EXPECT_EQ(table.size(), 0);
  EXPECT_OK(RunOp(table.FromTensors(Strings({"a", "b", "a"}), Longs({1, 2, 1}))).status());
  EXPECT_EQ(table.size(), 2);

  Table empty(DT_STRING, DT_INT64);
  EXPECT_OK(RunOp(empty.FromTensors(Strings({}), Longs({}))).status());
  ExpectTensorEqual(empty.Find(Strings({"a"}), Tensor::Scalar<int64_t>(7)), Longs({7}));
}

TEST(InitializeTable, RefusesOtherTypesShapesAndTables) {
  Table table(DT_STRING, DT_INT64);
  ExpectOpError(table.FromTensors(Longs({1}), Longs({1})), kInvalid, "has keys of string");
  ExpectOpError(table.FromTensors(Strings({"a"}), Strings({"b"})), kInvalid, "values of int64");
  ExpectOpError(table.FromTensors(Strings({"a", "b"}), Longs({1})), kInvalid,
                "Expected shape [2] for value, got [1]");
  Table mutable_table(DT_STRING, DT_INT64, "MutableHashTableV2");
  ExpectOpError(mutable_table.FromTensors(Strings({"a"}), Longs({1})), kInvalid,
                "MutableHashTable 't' is not initializable");
  ExpectOpError(mutable_table.FromFile(File("a\n"), kWholeLine, kLineNumber), kInvalid,
                "MutableHashTable 't' is not initializable");
  EXPECT_SHAPE_ERROR("InitializeTableV2", {}, {"[]", "[2]", "[3]"},
                     "Expected shape [2] for value, got [3]");
  EXPECT_SHAPE_ERROR("InitializeTableFromTextFileV2",
                     {{"key_index", int64_t{0}}, {"value_index", int64_t{0}}}, {"[]", "[2]"},
                     "filename must have rank 0");
}

TEST(InitializeTableFromTextFile, ReadsLinesNumbersAndColumns) {
  const std::string path = File("emerson\t3\t.5\r\nlake\t2\t1e3\npalmer\t 1 \t-inf");
  const auto text = [](const char* t) { return Tensor::Scalar(t); };
  {
    Table table(DT_STRING, DT_INT64);
    ASSERT_OK(RunOp(table.FromFile(path, 0, kLineNumber)).status());
    ExpectTensorEqual(table.Find(Strings({"palmer", "emerson", "x"}), Tensor::Scalar<int64_t>(-1)),
                      Longs({2, 0, -1}));
  }
  {
    Table table(DT_STRING, DT_INT32);
    ASSERT_OK(RunOp(table.FromFile(path, 0, 1)).status());
    ExpectTensorEqual(table.Find(Strings({"palmer", "emerson"}), Tensor::Scalar<int32_t>(-1)),
                      Tensor::Vector<int32_t>({1, 3}));
  }
  {
    Table table(DT_INT64, DT_STRING);
    ASSERT_OK(RunOp(table.FromFile(path, kLineNumber, kWholeLine)).status());
    // The carriage return belongs to the line's end.
    ExpectTensorEqual(table.Find(Longs({0, 1}), text("?")),
                      Strings({"emerson\t3\t.5", "lake\t2\t1e3"}));
  }
  {
    Table table(DT_INT32, DT_FLOAT);
    ASSERT_OK(RunOp(table.FromFile(path, 1, 2)).status());
    ExpectTensorEqual(table.Find(Tensor::Vector<int32_t>({2, 3}), Tensor::Scalar(0.f)),
                      Tensor::Vector<float>({1000.f, .5f}));
  }
  {
    Table table(DT_INT64, DT_INT64);
    ASSERT_OK(RunOp(table.FromFile(File("7\n8\n"), kWholeLine, kLineNumber)).status());
    ExpectTensorEqual(table.Find(Longs({8}), Tensor::Scalar<int64_t>(-1)), Longs({1}));
  }
  {
    Table table(DT_STRING, DT_STRING);
    ASSERT_OK(RunOp(table.FromFile(File("a,b,,d\n"), 1, 2, -1, ",")).status());
    ExpectTensorEqual(table.Find(Strings({"b"}), text("?")), Strings({""}));
  }
}

TEST(InitializeTableFromTextFile, TakesSoManyLinesAsVocabSizeSays) {
  const std::string path = File("a\nb\nc\n");
  Table two(DT_STRING, DT_INT64);
  ::testing::internal::CaptureStderr();
  ASSERT_OK(RunOp(two.FromFile(path, kWholeLine, kLineNumber, 2)).status());
  EXPECT_NE(::testing::internal::GetCapturedStderr().find(
                "the lines behind the first 2 (vocab_size) are not used"),
            std::string::npos);
  EXPECT_EQ(two.size(), 2);
  Table three(DT_STRING, DT_INT64);
  ASSERT_OK(RunOp(three.FromFile(path, kWholeLine, kLineNumber, 3)).status());
  EXPECT_EQ(three.size(), 3);
  Table four(DT_STRING, DT_INT64);
  ExpectOpError(
      four.FromFile(path, kWholeLine, kLineNumber, 4), kInvalid,
      "Table file '" + path + "': it must have as many lines as vocab_size says, 4, got 3");
  EXPECT_EQ(four.size(), 0);
  ExpectOpError(four.FromFile(path, kWholeLine, kLineNumber, 0), kInvalid,
                "vocab_size must be >= 1, or -1 for all lines, got 0");
}

TEST(InitializeTableFromTextFile, ReadsMoreLinesThanItTakesAtOnce) {
  std::string text;
  for (int i = 0; i < 10000; ++i) text += "word" + std::to_string(i) + "\n";
  Table table(DT_STRING, DT_INT64);
  ASSERT_OK(RunOp(table.FromFile(File(text), kWholeLine, kLineNumber)).status());
  EXPECT_EQ(table.size(), 10000);
  ExpectTensorEqual(table.Find(Strings({"word0", "word4095", "word4096", "word9999"}),
                               Tensor::Scalar<int64_t>(-1)),
                    Longs({0, 4095, 4096, 9999}));
  Table twice(DT_STRING, DT_INT64);
  ExpectOpError(twice.FromFile(File(text + "word17\n"), kWholeLine, kLineNumber), kPrecondition,
                "line 10001: HashTable has different value for same key. Key word17 has 17 and "
                "trying to add value 10000");
}

TEST(InitializeTableFromTextFile, NamesFileAndLineOfWhatIsWrong) {
  struct Case {
    const char* text;
    DType key, value;
    int64_t key_index, value_index;
    const char* message;
  };
  for (const Case& c : std::vector<Case>{
           {"a\n\nb\n", DT_STRING, DT_INT64, kWholeLine, kLineNumber,
            "line 2: it must not be empty"},
           {"a\nb\n\n", DT_STRING, DT_INT64, kWholeLine, kLineNumber,
            "line 3: it must not be empty"},
           {"", DT_STRING, DT_INT64, kWholeLine, kLineNumber, "it must have lines, got none"},
           {"a\t1\nb\n", DT_STRING, DT_INT64, 0, 1,
            "line 2: it must have at least 2 columns, got 1"},
           {"a\t1\nb\tx\n", DT_STRING, DT_INT64, 0, 1,
            "line 2: Field must be a valid int64, got 'x'"},
           {"a\t99999999999\n", DT_STRING, DT_INT32, 0, 1, "Field must be a valid int32"},
           {"a\t1.5.\n", DT_STRING, DT_FLOAT, 0, 1, "Field must be a valid float, got '1.5.'"},
           {"a\n", DT_STRING, DT_INT32, kWholeLine, kLineNumber,
            "Value index for line number requires table value dtype of int64, got int32"},
           {"a\n", DT_STRING, DT_INT64, kLineNumber, kLineNumber,
            "Key index for line number requires table key dtype of int64, got string"},
           {"a\n", DT_INT64, DT_FLOAT, kLineNumber, kWholeLine,
            "Value index for whole line requires string or integer table value, got float"},
           {"a\tb\n", DT_STRING, DT_BOOL, 0, 1, "Values of bool cannot be read from a file"},
       }) {
    Table table(c.key, c.value);
    const std::string path = File(c.text);
    ExpectOpError(table.FromFile(path, c.key_index, c.value_index), kInvalid, c.message);
    EXPECT_EQ(table.size(), 0) << c.message;
  }
  Table table(DT_STRING, DT_INT64);
  ExpectOpError(table.FromFile("/nowhere/words.txt", kWholeLine, kLineNumber),
                absl::StatusCode::kNotFound, "/nowhere/words.txt");
  for (const char* delimiter : {"", "ab"}) {
    ExpectOpError(table.FromFile("x", 0, 1, -1, delimiter), kInvalid,
                  "delimiter should be only 1 char");
  }
}

TEST(InitializeTableFromTextFile, LeavesATableThatHasItsContentAlone) {
  Table table(DT_STRING, DT_INT64);
  ASSERT_OK(RunOp(table.FromTensors(Strings({"a"}), Longs({5}))).status());
  EXPECT_OK(RunOp(table.FromFile("/nowhere/words.txt", kWholeLine, kLineNumber)).status());
  ExpectTensorEqual(table.Find(Strings({"a"}), Tensor::Scalar<int64_t>(-1)), Longs({5}));
}

}  // namespace
}  // namespace millrace

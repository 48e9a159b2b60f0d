// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's dataset ops, by their names, in graphs that are written as text: what an iterator
// over them gives is what the C++ combinators give.

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/record.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "data/testing/dataset_testing.h"
#include "google/protobuf/text_format.h"
#include "graph/op_registry.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "proto/op_def.pb.h"
#include "runtime/session.h"

// covers: input: a GraphDef text of TensorFlow's dataset ops gives what the C++ front end gives,
//   for each that takes no function; their signatures are TensorFlow 1.15's

namespace millrace::data {
namespace {

using absl::StatusCode;

// A graph as text. Elements are written "int64 [] string [?]".
class GraphText {
 public:
  GraphText& Int(const std::string& name, const std::vector<int64_t>& values, bool scalar = false) {
    std::string dims, list;
    if (!scalar) dims = absl::StrCat("dim { size: ", values.size(), " }");
    for (const int64_t value : values) absl::StrAppend(&list, " int64_val: ", value);
    return Constant(name, "DT_INT64", dims, list);
  }
  GraphText& Int(const std::string& name, int64_t value) { return Int(name, {value}, true); }
  GraphText& Bool(const std::string& name, bool value) {
    return Constant(name, "DT_BOOL", "", value ? "bool_val: true" : "bool_val: false");
  }
  GraphText& Text(const std::string& name, const std::vector<std::string>& values,
                  bool scalar = false) {
    std::string dims, list;
    if (!scalar) dims = absl::StrCat("dim { size: ", values.size(), " }");
    for (const std::string& value : values) absl::StrAppend(&list, " string_val: '", value, "'");
    return Constant(name, "DT_STRING", dims, list);
  }
  GraphText& Text(const std::string& name, const std::string& value) {
    return Text(name, {value}, true);
  }
  GraphText& Node(const std::string& name, const std::string& op, const std::string& inputs,
                  const std::string& attrs = "") {
    absl::StrAppend(&text_, "node { name: '", name, "' op: '", op, "'");
    for (const absl::string_view input : absl::StrSplit(inputs, ' ', absl::SkipEmpty())) {
      absl::StrAppend(&text_, " input: '", input, "'");
    }
    absl::StrAppend(&text_, " ", attrs, " }\n");
    return *this;
  }
  // A dataset op with its elements.
  GraphText& Op(const std::string& name, const std::string& op, const std::string& inputs,
                const std::string& elements, const std::string& attrs = "",
                const std::string& types_attr = "output_types") {
    return Node(name, op, inputs, attrs + ElementAttrs(elements, types_attr));
  }
  // Nodes "make" and "next" for an iterator over the dataset of node `dataset`.
  GraphText& Iterate(const std::string& dataset, const std::string& elements) {
    const std::string attrs = ElementAttrs(elements, "output_types");
    return Node("it", "IteratorV2", "",
                attrs +
                    "attr { key: 'shared_name' value { s: '' } }"
                    "attr { key: 'container' value { s: '' } }")
        .Node("make", "MakeIterator", dataset + " it")
        .Node("next", "IteratorGetNext", "it", attrs);
  }
  // 0, 1, ..., n - 1 as "range".
  GraphText& Range(int64_t n) {
    return Int("start", 0)
        .Int("stop", n)
        .Int("step", 1)
        .Op("range", "RangeDataset", "start stop step", "int64 []");
  }
  const std::string& text() const { return text_; }

 private:
  GraphText& Constant(const std::string& name, const std::string& dtype, const std::string& dims,
                      const std::string& values) {
    return Node(name, "Const", "",
                absl::StrCat("attr { key: 'dtype' value { type: ", dtype,
                             " } } attr { key: 'value' value { tensor { dtype: ", dtype,
                             " tensor_shape { ", dims, " } ", values, " } } }"));
  }
  static std::string ElementAttrs(const std::string& elements, const std::string& types_attr) {
    std::string types, shapes;
    const std::vector<std::string> words = absl::StrSplit(elements, ' ', absl::SkipEmpty());
    for (size_t i = 0; i + 1 < words.size(); i += 2) {
      absl::StrAppend(&types, " type: DT_", absl::AsciiStrToUpper(words[i]));
      absl::StrAppend(&shapes, " shape {");
      const std::string dims = words[i + 1].substr(1, words[i + 1].size() - 2);
      for (const absl::string_view dim : absl::StrSplit(dims, ',', absl::SkipEmpty())) {
        absl::StrAppend(&shapes, " dim { size: ", dim == "?" ? "-1" : dim, " }");
      }
      absl::StrAppend(&shapes, " }");
    }
    return absl::StrCat("attr { key: '", types_attr, "' value { list {", types,
                        " } } } attr { key: 'output_shapes' value { list {", shapes, " } } }");
  }

  std::string text_;
};

// A session with the graph, and how many components "next" has.
struct Opened {
  std::unique_ptr<Session> session;
  std::vector<FetchName> next;
};
StatusOr<Opened> Open(const GraphText& text, int components) {
  tensorflow::GraphDef graph;
  if (!google::protobuf::TextFormat::ParseFromString(text.text(), &graph)) {
    return InvalidArgument("the text is no graph: ", text.text());
  }
  Opened opened;
  MR_ASSIGN_OR_RETURN(opened.session, NewSession());
  MR_RETURN_IF_ERROR(opened.session->Extend(graph));
  for (int i = 0; i < components; ++i) opened.next.emplace_back(absl::StrCat("next:", i));
  return opened;
}

// All elements, joined by ' '; an error in its place.
std::string ElementsOf(const GraphText& text, int components = 1) {
  StatusOr<Opened> opened = Open(text, components);
  if (!opened.ok()) return opened.status().ToString();
  const auto made = opened->session->Run({}, {}, {"make"});
  if (!made.ok()) return made.status().ToString();
  std::vector<std::string> all;
  while (all.size() < 1000) {
    const auto got = opened->session->Run({}, opened->next);
    if (got.ok()) {
      all.push_back(TextOf(*got));
    } else if (absl::IsOutOfRange(got.status())) {
      break;
    } else {
      all.push_back(absl::StrCat("<", absl::StatusCodeToString(got.status().code()), ">"));
    }
  }
  return absl::StrJoin(all, " ");
}

// The op over range(n): its other inputs are given as constants by `more`.
std::string Over(int64_t n, const std::string& op, const std::string& inputs, GraphText more,
                 const std::string& elements, const std::string& attrs = "") {
  more.Range(n).Op("made", op, "range " + inputs, elements, attrs).Iterate("made", elements);
  return ElementsOf(more);
}

TEST(DatasetOpsTest, SourcesInMemory) {
  EXPECT_EQ(ElementsOf(GraphText().Range(4).Iterate("range", "int64 []")),
            TextOf(Dataset::Range(4)));
  GraphText tensors;
  tensors.Int("a", {1, 2, 3}).Text("b", {"x", "y", "z"});
  GraphText whole = tensors, rows = tensors;
  whole.Op("made", "TensorDataset", "a b", "int64 [3] string [3]", "", "Toutput_types")
      .Iterate("made", "int64 [3] string [3]");
  rows.Op("made", "TensorSliceDataset", "a b", "int64 [] string []", "", "Toutput_types")
      .Iterate("made", "int64 [] string []");
  const Element element = {TensorOf<int64_t>({3}, {1, 2, 3}),
                           TensorOf<std::string>({3}, {"x", "y", "z"})};
  EXPECT_EQ(ElementsOf(whole, 2), TextOf(Dataset::FromTensors(element)));
  EXPECT_EQ(ElementsOf(rows, 2), TextOf(Dataset::FromTensorSlices(element)));
}

TEST(DatasetOpsTest, WhichElements) {
  const Dataset five = Dataset::Range(5);
  for (const int64_t count : {int64_t{-1}, int64_t{0}, int64_t{2}, int64_t{9}}) {
    GraphText n;
    n.Int("n", count);
    EXPECT_EQ(Over(5, "TakeDataset", "n", n, "int64 []"), TextOf(five.Take(count))) << count;
    EXPECT_EQ(Over(5, "SkipDataset", "n", n, "int64 []"), TextOf(five.Skip(count))) << count;
  }
  for (const int64_t count : {0, 1, 3}) {
    GraphText n;
    n.Int("n", count);
    EXPECT_EQ(Over(5, "RepeatDataset", "n", n, "int64 []"), TextOf(five.Repeat(count))) << count;
  }
  EXPECT_EQ(Over(7, "ShardDataset", "n i", GraphText().Int("n", 3).Int("i", 1), "int64 []"),
            TextOf(Dataset::Range(7).Shard(3, 1)));
  for (const char* op :
       {"IgnoreErrorsDataset", "ExperimentalIgnoreErrorsDataset", "ModelDataset"}) {
    EXPECT_EQ(Over(5, op, "", GraphText(), "int64 []"), TextOf(five)) << op;
  }
  EXPECT_EQ(Over(5, "OptimizeDataset", "o",
                 GraphText().Text("o", std::vector<std::string>{"map_fusion", "x"}), "int64 []"),
            TextOf(five));
  EXPECT_EQ(Over(5, "MaxIntraOpParallelismDataset", "n", GraphText().Int("n", 1), "int64 []"),
            TextOf(five));
  EXPECT_EQ(Over(5, "PrivateThreadPoolDataset", "n", GraphText().Int("n", 1), "int64 []"),
            TextOf(five));
}

TEST(DatasetOpsTest, SeveralInputs) {
  GraphText two;
  two.Range(3)
      .Int("ten", 10)
      .Int("fifteen", 15)
      .Op("other", "RangeDataset", "ten fifteen step", "int64 []");
  GraphText concatenated = two, zipped = two;
  concatenated.Op("made", "ConcatenateDataset", "range other", "int64 []")
      .Iterate("made", "int64 []");
  zipped
      .Op("made", "ZipDataset", "range other", "int64 [] int64 []",
          "attr { key: 'N' value { i: 2 } }")
      .Iterate("made", "int64 [] int64 []");
  EXPECT_EQ(ElementsOf(concatenated),
            TextOf(Dataset::Range(3).Concatenate(Dataset::Range(10, 15))));
  EXPECT_EQ(ElementsOf(zipped, 2),
            TextOf(Dataset::Zip({Dataset::Range(3), Dataset::Range(10, 15)})));
}

TEST(DatasetOpsTest, OrderOfEqualSeeds) {
  GraphText seeds;
  seeds.Int("size", 6).Int("seed", 7).Int("seed2", 8).Int("n", 2);
  const Dataset twenty = Dataset::Range(20);
  for (const bool again : {true, false}) {
    GraphText shuffled = seeds;
    shuffled.Range(20)
        .Op("made", "ShuffleDataset", "range size seed seed2", "int64 []",
            absl::StrCat("attr { key: 'reshuffle_each_iteration' value { b: ", again, " } }"))
        .Op("twice", "RepeatDataset", "made n", "int64 []")
        .Iterate("twice", "int64 []");
    EXPECT_EQ(ElementsOf(shuffled),
              TextOf(twenty.Shuffle(6, {.seed = 7, .seed2 = 8, .reshuffle_each_iteration = again})
                         .Repeat(2)));
  }
  EXPECT_EQ(Over(20, "ShuffleAndRepeatDataset", "size seed seed2 n", seeds, "int64 []"),
            TextOf(twenty.ShuffleAndRepeat(6, 2, {.seed = 7, .seed2 = 8})));
}

TEST(DatasetOpsTest, Batches) {
  GraphText sizes;
  sizes.Int("n", 3).Bool("yes", true).Bool("no", false);
  const Dataset seven = Dataset::Range(7);
  EXPECT_EQ(Over(7, "BatchDataset", "n", sizes, "int64 [?]"), TextOf(seven.Batch(3)));
  EXPECT_EQ(Over(7, "BatchDatasetV2", "n no", sizes, "int64 [?]"), TextOf(seven.Batch(3)));
  EXPECT_EQ(Over(7, "BatchDatasetV2", "n yes", sizes, "int64 [3]"),
            TextOf(seven.Batch(3, {.drop_remainder = true})));
  for (const char* op : {"UnbatchDataset", "ExperimentalUnbatchDataset"}) {
    GraphText unbatched = sizes;
    unbatched.Range(7)
        .Op("batched", "BatchDataset", "range n", "int64 [?]")
        .Op("made", op, "batched", "int64 []")
        .Iterate("made", "int64 []");
    EXPECT_EQ(ElementsOf(unbatched), TextOf(seven.Batch(3).Unbatch())) << op;
  }
  // Batches of 3 and 1 padded to one length.
  const Dataset ragged = Dataset::Range(4).Batch(3);
  const PaddedBatchOptions padding = {.padded_shapes = {*PartialShape::Make({-1})},
                                      .padding_values = {Tensor::Scalar(int64_t{9})}};
  for (const bool second : {false, true}) {
    GraphText padded = sizes;
    padded.Range(4)
        .Int("two", 2)
        .Int("shape", std::vector<int64_t>{-1})
        .Int("nine", 9)
        .Op("batched", "BatchDataset", "range n", "int64 [?]")
        .Op("made", second ? "PaddedBatchDatasetV2" : "PaddedBatchDataset",
            absl::StrCat("batched two shape nine", second ? " no" : ""), "int64 [?,?]",
            "attr { key: 'N' value { i: 1 } }", "Toutput_types")
        .Iterate("made", "int64 [?,?]");
    EXPECT_EQ(ElementsOf(padded), TextOf(ragged.PaddedBatch(2, padding)));
    EXPECT_EQ(ElementsOf(padded), "[[0 1 2][3 9 9]]");
  }
  for (const char* op : {"SlidingWindowDataset", "ExperimentalSlidingWindowDataset"}) {
    EXPECT_EQ(Over(7, op, "n one one", sizes.Int("one", 1), "int64 [3]"),
              "[0 1 2] [1 2 3] [2 3 4] [3 4 5] [4 5 6]");
    sizes = GraphText().Int("n", 3);
  }
}

TEST(DatasetOpsTest, RunAheadAndKept) {
  const Dataset nine = Dataset::Range(9);
  for (const int64_t size : {-1, 0, 4}) {
    EXPECT_EQ(Over(9, "PrefetchDataset", "n", GraphText().Int("n", size), "int64 []"),
              TextOf(nine));
  }
  EXPECT_EQ(Over(9, "CacheDataset", "path", GraphText().Text("path", ""), "int64 []"),
            TextOf(nine));
}

// Each element of WindowDataset is a dataset, which another iterator runs over.
TEST(DatasetOpsTest, WindowsAreDatasets) {
  GraphText windows;
  windows.Range(7)
      .Int("n", 3)
      .Int("one", 1)
      .Bool("no", false)
      .Op("made", "WindowDataset", "range n n one no", "variant []")
      .Iterate("made", "variant []")
      .Node("inner", "IteratorV2", "",
            "attr { key: 'output_types' value { list { type: DT_INT64 } } } "
            "attr { key: 'output_shapes' value { list { shape { } } } } "
            "attr { key: 'shared_name' value { s: '' } } "
            "attr { key: 'container' value { s: '' } }")
      .Node("make_inner", "MakeIterator", "next inner")
      .Node("next_inner", "IteratorGetNext", "inner",
            "attr { key: 'output_types' value { list { type: DT_INT64 } } } "
            "attr { key: 'output_shapes' value { list { shape { } } } }");
  ASSERT_OK_AND_ASSIGN(const Opened opened, Open(windows, 1));
  ASSERT_OK(opened.session->Run({}, {}, {"make"}));
  std::string text;
  while (opened.session->Run({}, {}, {"make_inner"}).ok()) {
    text += "[";
    for (;;) {
      const auto got = opened.session->Run({}, {"next_inner:0"});
      if (!got.ok()) break;
      text += TextOf(*got);
    }
    text += "]";
  }
  EXPECT_EQ(text, "[012][345][6]");
}

class DatasetOpsFilesTest : public ::testing::Test {
 protected:
  DatasetOpsFilesTest() {
    std::filesystem::create_directories(dir_);
    Write("a.txt", "one\ntwo\r\n\nthree");
    Write("b.txt", "four\n");
    auto writer = RecordWriter::Open(FileSystem::Posix(), dir_ + "/r.tfrecord");
    for (const char* record : {"r0", "", "r2"}) EXPECT_OK((*writer)->Write(record));
    EXPECT_OK((*writer)->Close());
  }
  ~DatasetOpsFilesTest() override { std::filesystem::remove_all(dir_); }
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ + "/" + name, std::ios::binary) << bytes;
  }
  // The files op with constants: files, "none" compression, buffer size 0.
  std::string Files(const std::string& op, const std::vector<std::string>& names,
                    const std::string& inputs, GraphText more = {}) {
    std::vector<std::string> paths;
    for (const std::string& name : names) paths.push_back(dir_ + "/" + name);
    more.Text("files", paths).Text("none", "").Int("zero", 0);
    more.Node("made", op, "files " + inputs).Iterate("made", "string []");
    return ElementsOf(more);
  }
  const std::string dir_ =
      (std::filesystem::temp_directory_path() / ("dataset_ops_test_" + RandomHexName())).string();
};

TEST_F(DatasetOpsFilesTest, Files) {
  const std::vector<std::string> texts = {dir_ + "/a.txt", dir_ + "/b.txt"};
  EXPECT_EQ(Files("TextLineDataset", {"a.txt", "b.txt"}, "none zero"),
            TextOf(Dataset::TextLines(texts)));
  EXPECT_EQ(Files("TFRecordDataset", {"r.tfrecord"}, "none zero"),
            TextOf(Dataset::Records({dir_ + "/r.tfrecord"})));
  const GraphText lengths = GraphText().Int("one", 1).Int("two", 2).Int("six", 6);
  const Dataset fixed =
      Dataset::FixedLengthRecords({texts[0]}, 6, {.header_bytes = 1, .footer_bytes = 2});
  EXPECT_EQ(Files("FixedLengthRecordDataset", {"a.txt"}, "one six two zero", lengths),
            TextOf(fixed));
  EXPECT_EQ(Files("FixedLengthRecordDatasetV2", {"a.txt"}, "one six two zero none", lengths),
            TextOf(fixed));
  for (const char* op : {"MatchingFilesDataset", "ExperimentalMatchingFilesDataset"}) {
    EXPECT_EQ(Files(op, {"*.txt"}, ""), absl::StrJoin(texts, " ")) << op;
  }
  // A cache in a file, written by one session and read by another.
  for (int i = 0; i < 2; ++i) {
    GraphText cached;
    cached.Text("path", dir_ + "/cache");
    EXPECT_EQ(Over(4, "CacheDataset", "path", cached, "int64 []"), "0 1 2 3");
  }
  EXPECT_EQ(Files("TextLineDataset", {"missing.txt", "b.txt"}, "none zero"), "<NOT_FOUND> four");
}

TEST_F(DatasetOpsFilesTest, WrongArgumentsAreNamedWhenTheIteratorIsMade) {
  const struct {
    const char* name;
    std::string got;
    const char* want;
  } cases[] = {
      {"batch", Over(5, "BatchDataset", "n", GraphText().Int("n", 0), "int64 [?]"),
       "batch_size must be >= 1, got 0"},
      {"batch of a vector", Over(5, "BatchDataset", "n", GraphText().Int("n", {1, 2}), "int64 [?]"),
       "batch_size must be a scalar, got shape [2]"},
      {"shard", Over(5, "ShardDataset", "n n", GraphText().Int("n", 3), "int64 []"),
       "index must be >= 0 and below num_shards 3, got 3"},
      {"shards that are empty",
       Over(2, "ShardDataset", "n i", GraphText().Int("n", 3).Int("i", 0), "int64 []",
            "attr { key: 'require_non_empty' value { b: true } }"),
       "must have an element for each of the 3 shards, got 2 elements"},
      {"shuffle", Over(5, "ShuffleDataset", "n n n", GraphText().Int("n", 0), "int64 []"),
       "buffer_size must be >= 1, got 0"},
      {"prefetch", Over(5, "PrefetchDataset", "n", GraphText().Int("n", -2), "int64 []"),
       "buffer_size must be >= 0 or -1 (autotune), got -2"},
      {"window",
       Over(5, "WindowDataset", "n z n no", GraphText().Int("n", 3).Int("z", 0).Bool("no", false),
            "variant []"),
       "shift must be > 0, got 0"},
      {"types", Over(5, "TakeDataset", "n", GraphText().Int("n", 3), "float []"),
       "component 0 must be int64, got float"},
      {"shapes", Over(5, "TakeDataset", "n", GraphText().Int("n", 3), "int64 [2]"),
       "component 0 must have shape [], got [2]"},
      {"more shapes than types",
       Over(5, "TakeDataset", "n", GraphText().Int("n", 3), "int64 []",
            "attr { key: 'output_types' value { list { type: DT_INT64 type: DT_INT64 } } }"),
       ""},
      {"compression", Files("TextLineDataset", {"a.txt"}, "lz zero", GraphText().Text("lz", "LZ4")),
       "compression_type"},
      {"record length", Files("FixedLengthRecordDataset", {"a.txt"}, "zero zero zero zero"),
       "record_bytes must be >= 1"},
      {"no dataset",
       ElementsOf(GraphText()
                      .Int("n", 3)
                      .Op("made", "TakeDataset", "n n", "int64 []")
                      .Iterate("made", "int64 []")),
       "variant"},
  };
  for (const auto& c : cases) {
    EXPECT_TRUE(absl::StrContains(c.got, c.want)) << c.name << ": " << c.got;
  }
}

// --- Signatures: those of ops/signature_test.cc are of the ops that it links

void DropProse(tensorflow::OpDef* op) {
  op->clear_summary();
  op->clear_description();
  for (auto& arg : *op->mutable_input_arg()) arg.clear_description();
  for (auto& arg : *op->mutable_output_arg()) arg.clear_description();
  for (auto& attr : *op->mutable_attr()) attr.clear_description();
}

TEST(DatasetOpsTest, SignaturesAreTensorFlows) {
  const std::string path = SharedDataPath("ops/ops.pbtxt");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/ops.pbtxt";
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  tensorflow::OpList list;
  ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text.str(), &list));
  ASSERT_OK(OpRegistrationStatus());
  int compared = 0;
  for (tensorflow::OpDef theirs : list.op()) {
    const bool ours_to_have = absl::StrContains(theirs.name(), "Dataset") ||
                              absl::StrContains(theirs.name(), "Iterator") ||
                              absl::StartsWith(theirs.name(), "Optional");
    if (!ours_to_have) continue;
    const OpEntry* const entry = LookUpOp(theirs.name());
    if (entry == nullptr) continue;
    tensorflow::OpDef ours = entry->def;
    DropProse(&ours);
    DropProse(&theirs);
    EXPECT_EQ(ours.DebugString(), theirs.DebugString()) << theirs.name();
    EXPECT_NE(static_cast<int>(entry->differentiability),
              static_cast<int>(OpEntry::Differentiability::kUnknown));
    ++compared;
  }
  EXPECT_EQ(compared, 73);
}

}  // namespace
}  // namespace millrace::data

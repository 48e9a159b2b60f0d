// SPDX-License-Identifier: Apache-2.0
//
// Decoders of files and of text that people write (fuzz.h).

#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/file_system.h"
#include "core/record.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/table_reader.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/example_wire.h"
#include "distributed/cluster/cluster.h"
#include "formats/npy.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "gtest/gtest.h"
#include "proto/cluster.pb.h"
#include "proto/example.pb.h"
#include "proto/graph.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/saved_tensor_slice.pb.h"
#include "run/run_file.h"
#include "saver/checkpoint_v1.h"
#include "saver/saved_model_reader.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "saver/tensor_slice.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutator.h"
#include "tools/python_literal.h"

// covers: clusters: decoders of run files, `TF_CONFIG`, checkpoints, records, numpy's files,
//   graphs, SavedModels, Examples and Python literals survive a seeded mutator

namespace millrace {
namespace {

class FileDecodersTest : public ::testing::Test {
 protected:
  FileDecodersTest() { EXPECT_OK(fs_->RecursivelyCreateDirectory(directory_)); }
  ~FileDecodersTest() override { EXPECT_OK(fs_->RecursivelyDelete(directory_)); }
  void Write(const std::string& path, const std::string& bytes) {
    const auto file = fs_->NewWritableFile(path);
    ASSERT_OK(file);
    ASSERT_OK((*file)->Append(bytes));
    ASSERT_OK((*file)->Close());
  }
  std::string Read(const std::string& path) {
    const auto text = ReadFileToString(fs_, path);
    EXPECT_OK(text);
    return text.value_or("");
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string directory_ = absl::StrCat(::testing::TempDir(), "/decoders_", ::getpid());
};

TEST_F(FileDecodersTest, RunFiles) {
  ASSERT_OK(WriteRunFile(fs_, directory_,
                         {.id = "0123456789abcdef0123456789abcdef",
                          .name = "/logs/a",
                          .chief = "chief on host, process 1",
                          .token = "t",
                          .epoch = 3,
                          .since = "today"}));
  ASSERT_OK(WriteRunEnd(fs_, directory_,
                        {.id = "0123456789abcdef0123456789abcdef",
                         .token = "t",
                         .global_step = 7,
                         .goal = 7,
                         .checkpoint = "model.ckpt-7",
                         .reason = "done"}));
  const std::vector<std::string> corpus = {Read(RunFilePath(directory_)),
                                           Read(RunEndFilePath(directory_))};
  const std::string again = JoinPath(directory_, "again");
  ASSERT_OK(fs_->CreateDirectory(again));
  int runs = 0, ends = 0;
  Fuzz(300, corpus, [&](const std::string& bytes, Mutator* mutator) {
    Write(RunFilePath(directory_), bytes);
    Write(RunEndFilePath(directory_), bytes);
    const auto run = ReadRunFile(fs_, directory_);
    // What was read can be written: unknown fields are kept.
    const bool writes = mutator->Below(16) == 0;  // which waits for the disk
    if (run.ok() && run->has_value()) {
      ++runs;
      if (writes) {
        EXPECT_OK(WriteRunFile(fs_, again, **run));
      }
    }
    const auto end = ReadRunEnd(fs_, directory_);
    if (end.ok() && end->has_value()) {
      ++ends;
      if (writes) {
        EXPECT_OK(WriteRunEnd(fs_, again, **end));
      }
    }
  });
  // Nine of the inputs are a valid one of either kind.
  EXPECT_GE(runs, 9);
  EXPECT_GE(ends, 9);
}

TEST_F(FileDecodersTest, RecordsOfSaves) {
  ASSERT_OK(WriteRunSaves(
      fs_, directory_,
      {.id = "0123456789abcdef0123456789abcdef", .checkpoints = {"model.ckpt-6", "model.ckpt-7"}}));
  const std::string path = JoinPath(directory_, "run_saves.json");
  int valid = 0;
  Fuzz(300, {Read(path)}, [&](const std::string& bytes, Mutator*) {
    Write(path, bytes);
    const auto saves = ReadRunSaves(fs_, directory_);
    if (!saves.ok() || !saves->has_value()) return;
    ++valid;
    for (const std::string& name : (*saves)->checkpoints) {
      EXPECT_EQ(name.find('/'), std::string::npos) << name;
    }
  });
  EXPECT_GE(valid, 9);
}

TEST_F(FileDecodersTest, TF_CONFIG) {
  int clusters = 0;
  Fuzz(10'000,
       {R"({"cluster": {"ps": ["a:1", "b:2"], "worker": ["c:3"], "chief": ["d:4"]},
            "task": {"type": "ps", "index": 1}, "environment": "cloud"})",
        R"({"cluster": {"worker": {"3": "c:3", "5": "[::1]:80"}}, "task": {"type": "worker",
            "index": "5"}})"},
       [&](const std::string& bytes, Mutator*) {
         const auto config = ClusterConfig::Parse(bytes);
         if (config.ok() && !config->is_local()) {
           ++clusters;
           EXPECT_TRUE(ClusterSpec::FromProto(config->cluster().ToProto()).ok());
         }
       });
  EXPECT_GE(clusters, 300);  // of 625 valid inputs half is of each form
}

// A checkpoint whose index is written anew, and what becomes of reading it.
class CheckpointDecodersTest : public FileDecodersTest {
 protected:
  CheckpointDecodersTest() { Save(); }
  void Save() {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(fs_, prefix_));
    ASSERT_OK(writer->Add("dense/bias", Tensor::Vector<float>({1, 2, 3})));
    ASSERT_OK(writer->Add("global_step", Tensor::Scalar<int64_t>(7)));
    ASSERT_OK(writer->Add("words", Tensor::Vector<std::string>({"a", "", "mill race"})));
    ASSERT_OK(writer->Finish());
  }
  void ReadWith(const std::string& index) {
    Write(index_, index);
    const auto reader = BundleReader::Open(fs_, prefix_);
    if (!reader.ok()) {
      ++refused_;
      return;
    }
    ++opened_;
    (*reader)->CheckFiles().IgnoreError();
    for (const BundleReader::Entry& entry : (*reader)->entries()) {
      const auto tensor = (*reader)->Read(entry.name);
      if (!tensor.ok()) continue;
      ++read_;
      EXPECT_LE(tensor->TotalBytes(), kMaxFuzzedTensorBytes);
    }
  }

  const std::string prefix_ = JoinPath(directory_, "ckpt");
  const std::string index_ = BundleIndexPath(prefix_);
  int opened_ = 0, refused_ = 0;  // indexes
  int read_ = 0;                  // tensors
};

TEST_F(CheckpointDecodersTest, IndexesOfCheckpoints) {
  Fuzz(600, {Read(index_)}, [&](const std::string& bytes, Mutator*) { ReadWith(bytes); });
  // 38 inputs are valid; of the others the checksums tell.
  EXPECT_GE(opened_, 38);
  EXPECT_GE(read_, 3 * 38);
  EXPECT_GT(refused_, 0);
}

// A table in memory.
class StringFile : public leveldb::WritableFile {
 public:
  leveldb::Status Append(const leveldb::Slice& data) override {
    bytes.append(data.data(), data.size());
    return leveldb::Status::OK();
  }
  leveldb::Status Close() override { return leveldb::Status::OK(); }
  leveldb::Status Flush() override { return leveldb::Status::OK(); }
  leveldb::Status Sync() override { return leveldb::Status::OK(); }
  std::string bytes;
};

using TableEntries = std::vector<std::pair<std::string, std::string>>;

std::string TableOf(const TableEntries& entries) {
  StringFile file;
  leveldb::Options options;
  options.compression = leveldb::kNoCompression;
  leveldb::TableBuilder builder(options, &file);
  for (const auto& [key, value] : entries) builder.Add(key, value);
  EXPECT_TRUE(builder.Finish().ok());
  return file.bytes;
}

// Behind right checksums: the header and the entries themselves.
TEST_F(CheckpointDecodersTest, EntriesOfIndexes) {
  TableEntries entries;
  std::vector<std::string> values;
  {
    ASSERT_OK_AND_ASSIGN(const auto table, TableReader::Open(fs_, index_));
    const auto it = table->NewIterator();
    for (it->SeekToFirst(); it->Valid(); it->Next()) {
      entries.emplace_back(std::string(it->key()), std::string(it->value()));
      values.emplace_back(it->value());
    }
    ASSERT_OK(it->status());
  }
  ASSERT_EQ(entries.size(), 4u);  // with the header
  Fuzz(600, values, [&](const std::string& bytes, Mutator* mutator) {
    // A valid one stays where it is.
    const auto same = std::find(values.begin(), values.end(), bytes);
    const size_t place = same != values.end() ? static_cast<size_t>(same - values.begin())
                                              : mutator->Below(values.size());
    TableEntries changed = entries;
    changed[place].second = bytes;
    ReadWith(TableOf(changed));
  });
  EXPECT_GE(opened_, 38);
  EXPECT_GE(read_, 3 * 38);
  EXPECT_GT(refused_, 0);
}

// The tensors themselves: the index has their checksums.
TEST_F(CheckpointDecodersTest, DataOfCheckpoints) {
  const std::string index = Read(index_);
  const std::string data_path = BundleDataPath(prefix_, 0, 1);
  const std::string data = Read(data_path);
  int valid = 0, refused = 0;
  Fuzz(600, {data}, [&](const std::string& bytes, Mutator*) {
    Write(data_path, bytes);
    const int before = read_;
    ReadWith(index);
    if (bytes == data) {
      ++valid;
      EXPECT_EQ(read_ - before, 3);
    } else if (read_ - before < 3) {
      ++refused;
    }
  });
  EXPECT_GE(valid, 38);
  EXPECT_GT(refused, 300);
}

// Behind right checksums, too.
TEST_F(CheckpointDecodersTest, CheckpointsOfTheFirstFormat) {
  tensorflow::SavedTensorSlices header;
  auto* const meta = header.mutable_meta()->add_tensor();
  meta->set_name("w");
  meta->set_type(tensorflow::DT_FLOAT);
  meta->mutable_shape()->add_dim()->set_size(3);
  meta->add_slice()->add_extent();
  header.mutable_meta()->mutable_versions()->set_producer(1);
  tensorflow::SavedTensorSlices slice;
  slice.mutable_data()->set_name("w");
  slice.mutable_data()->mutable_slice()->add_extent();
  for (const float value : {1.0f, 2.0f, 3.0f}) {
    slice.mutable_data()->mutable_data()->add_float_val(value);
  }
  const std::string path = JoinPath(directory_, "v1");
  const std::vector<std::string> values = {header.SerializeAsString(), slice.SerializeAsString()};
  const std::string key = TensorSlice::Full(1).BundleKey("w");
  int opened = 0, read = 0;
  Fuzz(1'000, values, [&](const std::string& bytes, Mutator* mutator) {
    TableEntries entries = {{"", values[0]}, {key, values[1]}};
    const auto same = std::find(values.begin(), values.end(), bytes);
    const size_t place = same != values.end() ? static_cast<size_t>(same - values.begin())
                                              : mutator->Below(values.size());
    entries[place].second = bytes;
    Write(path, TableOf(entries));
    const auto reader = CheckpointV1Reader::Open(fs_, path);
    if (!reader.ok()) return;
    ++opened;
    for (const CheckpointV1Reader::Entry& entry : (*reader)->entries()) {
      const auto tensor = (*reader)->Read(entry.name);
      if (!tensor.ok()) continue;
      ++read;
      EXPECT_LE(tensor->TotalBytes(), kMaxFuzzedTensorBytes);
    }
  });
  // 63 inputs are valid.
  EXPECT_GE(opened, 62);
  EXPECT_GE(read, 62);
}

TEST_F(FileDecodersTest, CheckpointStates) {
  ASSERT_OK(WriteCheckpointState(
      fs_, directory_,
      {.latest = JoinPath(directory_, "model.ckpt-7"),
       .all = {JoinPath(directory_, "model.ckpt-3"), JoinPath(directory_, "model.ckpt-7")}}));
  const std::string path = JoinPath(directory_, "checkpoint");
  const std::string theirs =
      "model_checkpoint_path: \"model.ckpt-7\"\nall_model_checkpoint_paths: \"model.ckpt-7\"\n";
  ::testing::internal::CaptureStderr();  // a line for each that cannot be read
  int read = 0;
  Fuzz(1'000, {Read(path), theirs}, [&](const std::string& bytes, Mutator*) {
    Write(path, bytes);
    if (ReadCheckpointState(fs_, directory_).has_value()) ++read;
    LatestCheckpoint(fs_, directory_);
  });
  ::testing::internal::GetCapturedStderr();
  EXPECT_GE(read, 62);
}

// Event files and TFRecord files, compressed or not.
TEST_F(FileDecodersTest, Records) {
  const std::string path = JoinPath(directory_, "records");
  const std::vector<RecordCompression> kinds = {RecordCompression::kNone, RecordCompression::kZlib,
                                                RecordCompression::kGzip};
  std::vector<std::string> corpus;
  for (const RecordCompression kind : kinds) {
    ASSERT_OK_AND_ASSIGN(const auto writer, RecordWriter::Open(fs_, path, kind));
    for (const char* record : {"first", "", "the third of these records"}) {
      ASSERT_OK(writer->Write(record));
    }
    ASSERT_OK(writer->Close());
    corpus.push_back(Read(path));
  }
  int whole = 0;  // files with three records
  Fuzz(2'000, corpus, [&](const std::string& bytes, Mutator*) {
    Write(path, bytes);
    for (const RecordCompression kind : kinds) {
      const auto reader = RecordReader::Open(fs_, path, kind);
      if (!reader.ok()) continue;
      int records = 0;
      size_t read = 0;
      for (;;) {
        const auto record = (*reader)->Next();
        if (!record.ok()) break;
        ++records;
        read += record->size();
        // More than a stream of 64 KiB can inflate to.
        ASSERT_LE(read, size_t{128} << 20);
      }
      if (records == 3) ++whole;
    }
  });
  EXPECT_GE(whole, 125);
}

TEST_F(FileDecodersTest, NumpyFiles) {
  std::vector<std::string> arrays;
  for (const Tensor& tensor :
       {Tensor::Vector<float>({1, 2, 3}), Tensor::Scalar<int64_t>(-1), Tensor::Scalar(true),
        Tensor::Vector<std::string>({"a", "", "mill race"}),
        *Tensor::Zeros(DT_COMPLEX64, *Shape::Make({0, 3}))}) {
    ASSERT_OK_AND_ASSIGN(arrays.emplace_back(), FormatNpy(tensor));
  }
  int parsed = 0;
  Fuzz(20'000, arrays, [&](const std::string& bytes, Mutator*) {
    const auto tensor = ParseNpy(bytes);
    if (!tensor.ok()) return;
    ++parsed;
    EXPECT_LE(tensor->TotalBytes(), kMaxFuzzedTensorBytes);
  });
  EXPECT_GE(parsed, 1250);

  const std::string path = JoinPath(directory_, "arrays.npz");
  std::vector<std::string> archives;
  for (const NpzCompression compression : {NpzCompression::kStored, NpzCompression::kDeflate}) {
    ASSERT_OK(WriteNpz(fs_, path,
                       {{"x", Tensor::Vector<float>(std::vector<float>(500, 1.0f))},
                        {"y", Tensor::Vector<std::string>({"a", "b"})}},
                       compression));
    archives.push_back(Read(path));
  }
  int opened = 0;
  Fuzz(1'000, archives, [&](const std::string& bytes, Mutator*) {
    Write(path, bytes);
    const auto named = ReadNpz(fs_, path);
    if (!named.ok()) return;
    ++opened;
    int64_t total = 0;
    for (const auto& [name, tensor] : *named) total += tensor.TotalBytes();
    EXPECT_LE(total, kMaxFuzzedTensorBytes);
  });
  EXPECT_GE(opened, 62);
}

// With a constant, a function and an attr of each form.
tensorflow::GraphDef SomeGraph() {
  const auto graph = ParseGraphDefText(R"pb(
    node {
      name: "c"
      op: "Const"
      attr {
        key: "dtype"
        value { type: DT_FLOAT }
      }
      attr {
        key: "value"
        value {
          tensor {
            dtype: DT_FLOAT
            tensor_shape { dim { size: 3 } }
            float_val: 1
          }
        }
      }
    }
    node {
      name: "i"
      op: "Identity"
      input: "c"
      input: "^c"
      device: "/job:ps/task:0"
      attr {
        key: "T"
        value { type: DT_FLOAT }
      }
      attr {
        key: "_class"
        value { list { s: "loc:@c" } }
      }
      attr {
        key: "_f"
        value { func { name: "f" } }
      }
      attr {
        key: "_shape"
        value { shape { dim { size: -1 } } }
      }
    }
    library {
      function {
        signature {
          name: "f"
          input_arg { name: "x" type: DT_FLOAT }
          output_arg { name: "y" type: DT_FLOAT }
        }
        node_def {
          name: "n"
          op: "Identity"
          input: "x"
          attr {
            key: "T"
            value { type: DT_FLOAT }
          }
        }
        ret { key: "y" value: "n:output:0" }
      }
    }
    versions { producer: 134 }
  )pb");
  EXPECT_OK(graph);
  return graph.value_or(tensorflow::GraphDef());
}

TEST_F(FileDecodersTest, Graphs) {
  const tensorflow::GraphDef graph = SomeGraph();
  const std::string binary = JoinPath(directory_, "g.pb"), text = JoinPath(directory_, "g.pbtxt");
  ASSERT_OK(WriteGraphDef(fs_, binary, graph, GraphFormat::kBinary));
  ASSERT_OK(WriteGraphDef(fs_, text, graph, GraphFormat::kText));
  int read = 0, imported = 0;
  for (const std::string& path : {binary, text}) {
    Fuzz(2'000, {Read(path)}, [&](const std::string& bytes, Mutator*) {
      Write(path, bytes);
      auto def = ReadGraphDef(fs_, path);
      if (!def.ok()) return;
      ++read;
      Graph target;
      if (ImportGraphDef(*std::move(def), {}, &target).ok()) ++imported;
    });
  }
  // 125 inputs of each form are valid.
  EXPECT_GE(read, 250);
  EXPECT_GE(imported, 250);
}

TEST_F(FileDecodersTest, SavedModels) {
  tensorflow::SavedModel model;
  model.set_saved_model_schema_version(1);
  auto* const meta = model.add_meta_graphs();
  meta->mutable_meta_info_def()->add_tags("serve");
  *meta->mutable_graph_def() = SomeGraph();
  auto& signature = (*meta->mutable_signature_def())["serving_default"];
  (*signature.mutable_inputs())["x"].set_name("c:0");
  (*signature.mutable_outputs())["y"].mutable_coo_sparse()->set_values_tensor_name("i:0");
  signature.set_method_name("tensorflow/serving/predict");
  (*meta->mutable_collection_def())["c"].mutable_bytes_list()->add_value("bytes");
  int read = 0, found = 0;
  Fuzz(2'000, {model.SerializeAsString()}, [&](const std::string& bytes, Mutator*) {
    Write(JoinPath(directory_, kSavedModelFile), bytes);
    const auto got = ReadSavedModel(fs_, directory_);
    if (!got.ok()) return;
    ++read;
    const std::vector<std::string> tags = {"serve"};
    const auto serve = FindMetaGraph(*got, tags);
    if (!serve.ok()) return;
    ++found;
    for (const auto& [key, def] : (*serve)->signature_def()) {
      for (const auto& [name, info] : def.inputs()) TensorsOf(info);
      for (const auto& [name, info] : def.outputs()) TensorsOf(info);
    }
  });
  EXPECT_GE(read, 125);
  EXPECT_GE(found, 125);
}

// All values of a serialized Feature, as ParseExample reads them; false when it is none.
bool ReadAll(absl::string_view feature) {
  FeatureValues values;
  if (!ReadValues(feature, &values)) return false;
  // A value takes a byte at least.
  EXPECT_LE(values.count, static_cast<int64_t>(feature.size()));
  const auto n = static_cast<size_t>(values.count);
  std::vector<std::string> texts(values.kind == FeatureKind::kBytes ? n : 0);
  std::vector<float> floats(values.kind == FeatureKind::kFloat ? n : 0);
  std::vector<int64_t> integers(values.kind == FeatureKind::kInt64 ? n : 0);
  if (!texts.empty()) CopyValues(values, absl::MakeSpan(texts));
  if (!floats.empty()) CopyValues(values, absl::MakeSpan(floats));
  if (!integers.empty()) CopyValues(values, absl::MakeSpan(integers));
  return true;
}

// What ParseExample reads in a batch.
TEST(TextDecodersTest, Examples) {
  tensorflow::Example example;
  auto& features = *example.mutable_features()->mutable_feature();
  features["f"].mutable_float_list()->add_value(1.5f);
  features["i"].mutable_int64_list()->add_value(-1);
  features["b"].mutable_bytes_list()->add_value("mill");
  int good = 0;
  Fuzz(100'000, {example.SerializeAsString()}, [&](const std::string& bytes, Mutator*) {
    FeatureEntries entries(bytes);
    FeatureEntry entry;
    int values = 0;
    while (entries.Next(&entry)) values += ReadAll(entry.feature) ? 1 : 0;
    if (entries.ok() && values == 3) ++good;
  });
  EXPECT_GE(good, 6250);
}

// What ParseSequenceExample reads in a batch.
TEST(TextDecodersTest, SequenceExamples) {
  tensorflow::SequenceExample example;
  (*example.mutable_context()->mutable_feature())["c"].mutable_int64_list()->add_value(7);
  auto& steps = (*example.mutable_feature_lists()->mutable_feature_list())["s"];
  steps.add_feature()->mutable_float_list()->add_value(1.5f);
  steps.add_feature()->mutable_bytes_list()->add_value("mill");
  int good = 0;
  Fuzz(100'000, {example.SerializeAsString()}, [&](const std::string& bytes, Mutator*) {
    int values = 0;
    FeatureEntry entry;
    FeatureEntries context(bytes);
    while (context.Next(&entry)) values += ReadAll(entry.feature) ? 1 : 0;
    FeatureEntries lists(bytes, FeatureEntries::kFeatureLists);
    bool all = true;
    while (lists.Next(&entry)) {
      ListFeatures features(entry.feature);
      absl::string_view feature;
      while (features.Next(&feature)) values += ReadAll(feature) ? 1 : 0;
      all = all && features.ok();
    }
    if (all && context.ok() && lists.ok() && values == 3) ++good;
  });
  EXPECT_GE(good, 6250);
}

// What people write on the command lines of tools.
TEST(TextDecodersTest, PythonLiterals) {
  const std::vector<std::string> corpus = {
      "[[1.0, 2e3], [-0x1f, .5]]", R"({'a': [b'\x00', 'x' "y"], 'b': (1, None, True)})",
      R"([{'f': [1.0], 'i': [1_000], 's': ['\u20ac']}])", R"('''long
text''')"};
  int parsed = 0;
  Fuzz(30'000, corpus, [&](const std::string& bytes, Mutator*) {
    const auto value = ParsePythonLiteral(bytes);
    if (!value.ok()) return;
    ++parsed;
    PythonRepr(*value);
    const auto tensor = TensorFromPython(*value, DT_INVALID);
    if (!tensor.ok()) return;
    EXPECT_LE(tensor->TotalBytes(), kMaxFuzzedTensorBytes);
  });
  EXPECT_GE(parsed, 1400);  // three of four are values of one line
}

}  // namespace
}  // namespace millrace

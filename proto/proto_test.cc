// SPDX-License-Identifier: Apache-2.0
//
// The messages against bytes: literal wire bytes first, then every file that
// real TensorFlow wrote (in the shared data, if it is there).
//
// Files of TensorFlow 1.x must hold no field unknown to us, at any depth, also
// inside the messages that travel as bytes in collections, Any and events.
// Files of 2.x may; then what we do not know must survive us unchanged.

#include <google/protobuf/any.pb.h>
#include <google/protobuf/arena.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>
#include <google/protobuf/unknown_field_set.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>
#include <snappy.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/arena.h"
#include "core/testing/shared_data.h"
#include "proto/attr_value.pb.h"
#include "proto/config.pb.h"
#include "proto/control_flow.pb.h"
#include "proto/event.pb.h"
#include "proto/example.pb.h"
#include "proto/graph.pb.h"
#include "proto/manifest.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/op_def.pb.h"
#include "proto/queue_runner.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/saved_tensor_slice.pb.h"
#include "proto/saver.pb.h"
#include "proto/struct.pb.h"
#include "proto/tensor.pb.h"
#include "proto/tensor_bundle.pb.h"
#include "proto/variable.pb.h"
#include "proto/worker.pb.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

using ::google::protobuf::FieldDescriptor;
using ::google::protobuf::Message;
using ::google::protobuf::TextFormat;
using ::google::protobuf::UnknownField;
using ::google::protobuf::UnknownFieldSet;
using ::google::protobuf::util::MessageDifferencer;

constexpr int kProducer115 = 134;  // GraphDef version of TensorFlow 1.15

std::string Bytes(absl::string_view hex) { return absl::HexStringToBytes(hex); }

// With maps in order of their keys, so that equal messages give equal bytes.
std::string Deterministic(const Message& message) {
  std::string bytes;
  {
    ::google::protobuf::io::StringOutputStream stream(&bytes);
    ::google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    EXPECT_TRUE(message.SerializeToCodedStream(&coded));
  }
  return bytes;
}

// Where each unknown field lies, with its bytes: "node[3].7 = \x0a...". Map
// entries are named by their serialized key, so the order of a map is no matter.
void CollectUnknown(const Message& message, const std::string& where,
                    std::vector<std::string>* found) {
  const auto* reflection = message.GetReflection();
  const UnknownFieldSet& unknown = reflection->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const UnknownField& field = unknown.field(i);
    UnknownFieldSet one;
    one.AddField(field);
    std::string bytes;
    EXPECT_TRUE(one.SerializeToString(&bytes));
    found->push_back(absl::StrCat(where, ".", field.number(), " = ", absl::CHexEscape(bytes)));
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      CollectUnknown(reflection->GetMessage(message, field),
                     absl::StrCat(where, ".", field->name()), found);
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i) {
      const Message& element = reflection->GetRepeatedMessage(message, field, i);
      std::string label = absl::StrCat(i);
      if (field->is_map()) {
        const FieldDescriptor* key = field->message_type()->map_key();
        std::unique_ptr<Message> only_key(element.New());
        only_key->CopyFrom(element);
        only_key->GetReflection()->ClearField(only_key.get(), field->message_type()->map_value());
        only_key->GetReflection()->MutableUnknownFields(only_key.get())->Clear();
        TextFormat::PrintFieldValueToString(*only_key, key, -1, &label);
      }
      CollectUnknown(element, absl::StrCat(where, ".", field->name(), "[", label, "]"), found);
    }
  }
}

std::vector<std::string> UnknownFields(const Message& message) {
  std::vector<std::string> found;
  CollectUnknown(message, std::string(message.GetDescriptor()->name()), &found);
  std::sort(found.begin(), found.end());
  return found;
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

// Files below a folder of the shared data whose path ends so, sorted.
std::vector<std::string> FilesBelow(absl::string_view folder, absl::string_view suffix) {
  std::vector<std::string> files;
  const std::string root = SharedDataPath(folder);
  if (root.empty()) return files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string path = entry.path().string();
    if (entry.is_regular_file() && absl::EndsWith(path, suffix)) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

bool WrittenBy1x(const ::tensorflow::MetaGraphDef& meta_graph) {
  return absl::StartsWith(meta_graph.meta_info_def().tensorflow_version(), "1.") ||
         meta_graph.graph_def().versions().producer() <= kProducer115;
}

// How much of the data has been looked at; tests demand a floor of it.
struct Seen {
  int messages = 0;
  int embedded = 0;
  int with_unknown = 0;
};

// Proves that nothing of the file is lost: no unknown field when the writer was
// 1.x; and in any case the same unknown fields after one round trip.
void ExpectNothingLost(const Message& parsed, bool written_by_1x, const std::string& where,
                       Seen* seen) {
  ++seen->messages;
  const std::vector<std::string> unknown = UnknownFields(parsed);
  if (!unknown.empty()) ++seen->with_unknown;
  if (written_by_1x) {
    EXPECT_TRUE(unknown.empty()) << where << ": " << unknown.size() << " unknown fields, first "
                                 << unknown.front();
  }
  const std::string bytes = Deterministic(parsed);
  std::unique_ptr<Message> again(parsed.New());
  ASSERT_TRUE(again->ParseFromString(bytes)) << where;
  EXPECT_EQ(UnknownFields(*again), unknown) << where;
  EXPECT_EQ(Deterministic(*again), bytes) << where;
}

template <typename M>
void ExpectEmbedded(absl::string_view bytes, bool written_by_1x, const std::string& where,
                    Seen* seen) {
  M message;
  ASSERT_TRUE(message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) << where;
  ++seen->embedded;
  ExpectNothingLost(message, written_by_1x, where, seen);
}

// The messages inside the collections of a meta graph.
void ExpectCollectionsKnown(const ::tensorflow::MetaGraphDef& meta_graph, const std::string& where,
                            Seen* seen) {
  const bool is_1x = WrittenBy1x(meta_graph);
  for (const auto& [name, collection] : meta_graph.collection_def()) {
    const std::string place = absl::StrCat(where, " collection ", name);
    for (const std::string& bytes : collection.bytes_list().value()) {
      if (absl::EndsWith(name, "variables") || name == "global_step") {
        ExpectEmbedded<::tensorflow::VariableDef>(bytes, is_1x, place, seen);
      } else if (name == "cond_context") {
        ExpectEmbedded<::tensorflow::CondContextDef>(bytes, is_1x, place, seen);
      } else if (name == "while_context") {
        ExpectEmbedded<::tensorflow::WhileContextDef>(bytes, is_1x, place, seen);
      } else if (name == "queue_runners") {
        ExpectEmbedded<::tensorflow::QueueRunnerDef>(bytes, is_1x, place, seen);
      } else if (name == "savers") {
        ExpectEmbedded<::tensorflow::SaverDef>(bytes, is_1x, place, seen);
      }
    }
    for (const ::google::protobuf::Any& any : collection.any_list().value()) {
      if (any.Is<::tensorflow::AssetFileDef>()) {
        ExpectEmbedded<::tensorflow::AssetFileDef>(any.value(), is_1x, place, seen);
      } else if (any.Is<::tensorflow::serving::Signatures>()) {
        ExpectEmbedded<::tensorflow::serving::Signatures>(any.value(), is_1x, place, seen);
      } else if (any.Is<::tensorflow::serving::AssetFile>()) {
        ExpectEmbedded<::tensorflow::serving::AssetFile>(any.value(), is_1x, place, seen);
      } else if (any.Is<::tensorflow::GraphDef>()) {
        ExpectEmbedded<::tensorflow::GraphDef>(any.value(), is_1x, place, seen);
      } else if (any.Is<::tensorflow::TensorInfo>()) {
        ExpectEmbedded<::tensorflow::TensorInfo>(any.value(), is_1x, place, seen);
      } else {
        ADD_FAILURE() << place << ": no such message here: " << any.type_url();
      }
    }
  }
}

uint64_t Varint(absl::string_view* bytes) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes->front());
    bytes->remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) break;
  }
  return value;
}

uint32_t Fixed32(absl::string_view bytes) {
  uint32_t value = 0;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

using Entries = std::vector<std::pair<std::string, std::string>>;

// The entries of one block of a table file.
Entries BlockEntries(absl::string_view file, uint64_t offset, uint64_t size) {
  Entries entries;
  if (offset > file.size() || size >= file.size() - offset) {
    ADD_FAILURE() << "block outside the file";
    return entries;
  }
  absl::string_view block = file.substr(offset, size);
  std::string uncompressed;
  if (file[offset + size] == 1) {
    EXPECT_TRUE(snappy::Uncompress(block.data(), block.size(), &uncompressed));
    block = uncompressed;
  } else {
    EXPECT_EQ(file[offset + size], 0) << "block type";
  }
  const uint64_t trailer =
      block.size() < 4 ? 4 : (uint64_t{Fixed32(block.substr(block.size() - 4))} + 1) * 4;
  if (trailer > block.size()) {
    ADD_FAILURE() << "restart array larger than its block";
    return entries;
  }
  block.remove_suffix(trailer);
  std::string key;
  while (!block.empty()) {
    const uint64_t shared = Varint(&block);
    const uint64_t rest = Varint(&block);
    const uint64_t value = Varint(&block);
    if (shared > key.size() || rest > block.size() || value > block.size() - rest) {
      ADD_FAILURE() << "entry outside its block";
      return entries;
    }
    key.resize(shared);
    key.append(block.data(), rest);
    entries.emplace_back(key, std::string(block.substr(rest, value)));
    block.remove_prefix(rest + value);
  }
  return entries;
}

// All entries of a table file (the index of a checkpoint, or one in format V1).
Entries TableEntries(absl::string_view file) {
  Entries entries;
  if (file.size() < 48) {
    ADD_FAILURE() << "shorter than a footer";
    return entries;
  }
  absl::string_view footer = file.substr(file.size() - 48);
  EXPECT_EQ(footer.substr(40), Bytes("57fb808b247547db"));
  Varint(&footer);  // the block of meta data
  Varint(&footer);
  const uint64_t offset = Varint(&footer);
  const uint64_t size = Varint(&footer);
  for (const auto& [last_key, handle] : BlockEntries(file, offset, size)) {
    absl::string_view rest = handle;
    const uint64_t block = Varint(&rest);
    Entries found = BlockEntries(file, block, Varint(&rest));
    entries.insert(entries.end(), found.begin(), found.end());
  }
  return entries;
}

// The payloads of a file of records: length, checksum, payload, checksum.
std::vector<std::string> Records(absl::string_view file) {
  std::vector<std::string> records;
  while (!file.empty()) {
    uint64_t length = 0;
    if (file.size() < 16) {
      ADD_FAILURE() << "torn record";
      break;
    }
    std::memcpy(&length, file.data(), sizeof(length));
    if (length > file.size() - 16) {
      ADD_FAILURE() << "record outside the file";
      break;
    }
    records.emplace_back(file.substr(12, length));
    file.remove_prefix(16 + length);
  }
  return records;
}

TEST(Wire, TensorProtoIsTheseBytes) {
  ::tensorflow::TensorProto tensor;
  tensor.set_dtype(::tensorflow::DT_FLOAT);
  tensor.mutable_tensor_shape()->add_dim()->set_size(2);
  tensor.add_float_val(1.0f);
  tensor.add_float_val(-2.0f);
  EXPECT_EQ(Deterministic(tensor), Bytes("0801"
                                         "120412020802"
                                         "2a080000803f000000c0"));
}

TEST(Wire, NodeDefIsTheseBytes) {
  ::tensorflow::NodeDef node;
  node.set_name("y");
  node.set_op("Add");
  node.add_input("a");
  node.add_input("^b");
  node.set_device("/job:ps");
  (*node.mutable_attr())["T"].set_type(::tensorflow::DT_INT32);
  EXPECT_EQ(Deterministic(node), Bytes("0a0179"
                                       "1203416464"
                                       "1a0161"
                                       "1a025e62"
                                       "22072f6a6f623a7073"
                                       "2a070a01541202"
                                       "3003"));
}

TEST(Wire, RunGraphRequestIsTheseBytes) {
  ::tensorflow::RunGraphRequest request;
  request.set_session_handle("s");
  request.set_graph_handle("g");
  request.set_step_id(300);
  request.add_recv_key("k");
  request.set_store_errors_in_response_body(true);
  request.set_create_worker_session_called(true);
  request.set_request_id(1);
  EXPECT_EQ(Deterministic(request), Bytes("0a0167"
                                          "10ac02"
                                          "22016b"
                                          "420173"
                                          "4801"
                                          "5001"
                                          "5801"));
}

TEST(Wire, BundleEntryKeepsItsChecksumInFourBytes) {
  ::tensorflow::BundleEntryProto entry;
  entry.set_dtype(::tensorflow::DT_INT64);
  entry.mutable_shape();
  entry.set_shard_id(1);
  entry.set_offset(4);
  entry.set_size(8);
  entry.set_crc32c(0x01020304);
  EXPECT_EQ(Deterministic(entry), Bytes("0809"
                                        "1200"
                                        "1801"
                                        "2004"
                                        "2808"
                                        "3504030201"));
}

TEST(Wire, Int64OfAStructuredValueIsZigzag) {
  ::tensorflow::StructuredValue value;
  value.set_int64_value(-2);
  EXPECT_EQ(Deterministic(value), Bytes("6003"));
}

TEST(Wire, NegativeOptimizerLevelTakesTenBytes) {
  ::tensorflow::OptimizerOptions options;
  options.set_opt_level(::tensorflow::OptimizerOptions::L0);
  EXPECT_EQ(Deterministic(options), Bytes("18ffffffffffffffffff01"));
}

TEST(Wire, UnpackedListsAreReadAsWell) {
  ::tensorflow::Int64List list;
  ASSERT_TRUE(list.ParseFromString(Bytes("0801080208ac02")));
  ASSERT_EQ(list.value_size(), 3);
  EXPECT_EQ(list.value(0), 1);
  EXPECT_EQ(list.value(1), 2);
  EXPECT_EQ(list.value(2), 300);

  ::tensorflow::TensorProto tensor;
  ASSERT_TRUE(tensor.ParseFromString(Bytes("2d0000803f")));
  ASSERT_EQ(tensor.float_val_size(), 1);
  EXPECT_EQ(tensor.float_val(0), 1.0f);
}

TEST(Wire, LastFeatureOfAKeyWins) {
  ::tensorflow::Features features;
  // {"a": int64_list [1]} twice, the second with value 2.
  ASSERT_TRUE(
      features.ParseFromString(Bytes("0a0a0a016112051a030a0101"
                                     "0a0a0a016112051a030a0102")));
  ASSERT_EQ(features.feature_size(), 1);
  ASSERT_EQ(features.feature().at("a").int64_list().value_size(), 1);
  EXPECT_EQ(features.feature().at("a").int64_list().value(0), 2);
}

TEST(Wire, FieldsOfLaterVersionsSurvive) {
  // A NodeDef of 2.x: field 7 (its full type), and an attribute value with field 99.
  const std::string bytes = Bytes(
      "0a0178"
      "2a0b0a0154120618039a060101"
      "3a020801");
  ::tensorflow::NodeDef node;
  ASSERT_TRUE(node.ParseFromString(bytes));
  EXPECT_EQ(node.attr().at("T").i(), 3);
  const std::vector<std::string> unknown = UnknownFields(node);
  EXPECT_EQ(unknown,
            (std::vector<std::string>{"NodeDef.7 = :\\x02\\x08\\x01",
                                      "NodeDef.attr[\"T\"].value.99 = \\x9a\\x06\\x01\\x01"}));
  EXPECT_EQ(Deterministic(node), bytes);
}

TEST(Wire, UnknownDataTypesSurvive) {
  ::tensorflow::TensorProto tensor;
  ASSERT_TRUE(tensor.ParseFromString(Bytes("0818")));  // 24: a type of 2.x
  EXPECT_EQ(static_cast<int>(tensor.dtype()), 24);
  EXPECT_FALSE(::tensorflow::DataType_IsValid(tensor.dtype()));
  EXPECT_EQ(Deterministic(tensor), Bytes("0818"));
}

TEST(Wire, BrokenBytesAreRefused) {
  const struct {
    const char* what;
    const char* hex;
  } cases[] = {
      {"length beyond the end", "0a05616263"},
      {"torn varint", "20ff"},
      {"field number zero", "0001"},
      {"group that never ends", "0b"},
      {"end of a group that never began", "0c"},
      {"name that is not UTF-8", "0a0180"},
  };
  for (const auto& broken : cases) {
    ::tensorflow::NodeDef node;
    EXPECT_FALSE(node.ParseFromString(Bytes(broken.hex))) << broken.what;
  }
}

TEST(Wire, MessagesNestedTooDeeplyAreRefused) {
  // Lists in lists: 40 levels are read, 5000 are not.
  const auto nested = [](int depth) {
    const auto field = [](absl::string_view tag, const std::string& payload) {
      std::string bytes(tag);
      size_t size = payload.size();
      for (; size > 0x7f; size >>= 7) bytes.push_back(static_cast<char>((size & 0x7f) | 0x80));
      bytes.push_back(static_cast<char>(size));
      return bytes + payload;
    };
    std::string bytes = field(Bytes("0a"), "");  // None
    for (int i = 0; i < depth; ++i) bytes = field(Bytes("9a03"), field(Bytes("0a"), bytes));
    return bytes;
  };
  ::tensorflow::StructuredValue value;
  EXPECT_TRUE(value.ParseFromString(nested(40)));
  EXPECT_FALSE(value.ParseFromString(nested(5000)));
}

TEST(Arena, MessagesLiveOnAnArena) {
  ::google::protobuf::Arena arena;
  auto* graph = ::google::protobuf::Arena::CreateMessage<::tensorflow::GraphDef>(&arena);
  auto* node = graph->add_node();
  EXPECT_EQ(node->GetArena(), &arena);
  EXPECT_EQ((*node->mutable_attr())["value"].mutable_tensor()->GetArena(), &arena);
}

TEST(SharedFiles, GraphDefsHoldNothingUnknown) {
  if (SharedDataPath("graphs").empty()) GTEST_SKIP() << "MILLRACE_SHARED has no graphs";
  Seen seen;
  int nodes = 0;
  std::vector<std::string> files = FilesBelow("graphs", ".pb");
  for (std::string& path : FilesBelow("saved_models", "/frozen_saved_model.pb")) {
    files.push_back(std::move(path));
  }
  for (std::string& path : FilesBelow("tf_graphs/pb", ".pb")) files.push_back(std::move(path));
  for (const std::string& path : files) {
    ::tensorflow::GraphDef graph;
    ASSERT_TRUE(graph.ParseFromString(ReadFile(path))) << path;
    EXPECT_GT(graph.node_size(), 0) << path;
    nodes += graph.node_size();
    ExpectNothingLost(graph, graph.versions().producer() <= kProducer115, path, &seen);
  }
  EXPECT_GE(seen.messages, 500);
  EXPECT_GE(nodes, 5000);
}

TEST(SharedFiles, SavedModelsHoldNothingUnknown) {
  if (SharedDataPath("saved_models").empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models";
  Seen seen;
  int later = 0;
  for (const std::string& path : FilesBelow("saved_models", "/saved_model.pb")) {
    ::tensorflow::SavedModel model;
    ASSERT_TRUE(model.ParseFromString(ReadFile(path))) << path;
    // Modules of TensorFlow Hub leave it out.
    EXPECT_LE(model.saved_model_schema_version(), 1) << path;
    ASSERT_GE(model.meta_graphs_size(), 1) << path;
    const bool is_1x = std::all_of(model.meta_graphs().begin(), model.meta_graphs().end(),
                                   [](const auto& graph) { return WrittenBy1x(graph); });
    if (!is_1x) ++later;
    ExpectNothingLost(model, is_1x, path, &seen);
    for (const auto& meta_graph : model.meta_graphs()) {
      ExpectCollectionsKnown(meta_graph, path, &seen);
    }
  }
  EXPECT_GE(seen.messages - seen.embedded, 15);
  EXPECT_GE(seen.embedded, 100);
  EXPECT_GE(later, 2);
}

TEST(SharedFiles, MetaGraphsHoldNothingUnknown) {
  if (SharedDataPath("checkpoints").empty()) GTEST_SKIP() << "MILLRACE_SHARED has no checkpoints";
  Seen seen;
  std::vector<std::string> files = FilesBelow("checkpoints", ".meta");
  for (std::string& path : FilesBelow("session_bundle", ".meta")) files.push_back(std::move(path));
  ASSERT_GE(files.size(), 2u);
  for (const std::string& path : files) {
    ::tensorflow::MetaGraphDef meta_graph;
    ASSERT_TRUE(meta_graph.ParseFromString(ReadFile(path))) << path;
    EXPECT_FALSE(meta_graph.saver_def().restore_op_name().empty()) << path;
    ExpectNothingLost(meta_graph, WrittenBy1x(meta_graph), path, &seen);
    ExpectCollectionsKnown(meta_graph, path, &seen);
  }
  EXPECT_GE(seen.embedded, 10);
}

TEST(SharedFiles, CheckpointEntriesHoldNothingUnknown) {
  if (SharedDataPath("checkpoints").empty()) GTEST_SKIP() << "MILLRACE_SHARED has no checkpoints";
  Seen seen;
  std::vector<std::string> files = FilesBelow("checkpoints", ".index");
  for (std::string& path : FilesBelow("saved_models", ".index")) files.push_back(std::move(path));
  ASSERT_GE(files.size(), 20u);
  for (const std::string& path : files) {
    const Entries entries = TableEntries(ReadFile(path));
    ASSERT_FALSE(entries.empty()) << path;
    EXPECT_EQ(entries.front().first, "") << path;
    ::tensorflow::BundleHeaderProto header;
    ASSERT_TRUE(header.ParseFromString(entries.front().second)) << path;
    EXPECT_GE(header.num_shards(), 1) << path;
    EXPECT_EQ(header.version().producer(), 1) << path;
    ExpectNothingLost(header, true, path, &seen);
    for (size_t i = 1; i < entries.size(); ++i) {
      ::tensorflow::BundleEntryProto entry;
      ASSERT_TRUE(entry.ParseFromString(entries[i].second)) << path << " " << entries[i].first;
      EXPECT_NE(entry.dtype(), ::tensorflow::DT_INVALID) << path << " " << entries[i].first;
      EXPECT_LT(entry.shard_id(), header.num_shards()) << path << " " << entries[i].first;
      ExpectNothingLost(entry, true, path + " " + entries[i].first, &seen);
    }
  }
  EXPECT_GE(seen.messages, 200);
}

TEST(SharedFiles, CheckpointsOfFormatV1HoldNothingUnknown) {
  const std::string path = SharedDataPath("session_bundle/half_plus_two/export-00000-of-00001");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle/half_plus_two";
  Seen seen;
  const Entries entries = TableEntries(ReadFile(path));
  ASSERT_GE(entries.size(), 2u);
  for (const auto& [key, value] : entries) {
    ::tensorflow::SavedTensorSlices slices;
    ASSERT_TRUE(slices.ParseFromString(value));
    EXPECT_EQ(slices.has_meta(), key.empty());
    EXPECT_EQ(slices.has_data(), !key.empty());
    ExpectNothingLost(slices, true, path, &seen);
  }
}

TEST(SharedFiles, EventsLoseNothing) {
  if (SharedDataPath("events").empty()) GTEST_SKIP() << "MILLRACE_SHARED has no events";
  Seen seen;
  int graphs = 0;
  int summaries = 0;
  for (const std::string& path : FilesBelow("events", ".tfevents")) {
    const std::vector<std::string> records = Records(ReadFile(path));
    ASSERT_FALSE(records.empty()) << path;
    // Only this one comes from TensorFlow 1.x.
    const bool is_1x = absl::StrContains(path, "babyweight");
    for (const std::string& record : records) {
      ::tensorflow::Event event;
      ASSERT_TRUE(event.ParseFromString(record)) << path;
      if (&record == &records.front()) {
        EXPECT_EQ(event.file_version(), "brain.Event:2") << path;
      }
      summaries += event.has_summary() ? 1 : 0;
      ExpectNothingLost(event, is_1x, path, &seen);
      switch (event.what_case()) {
        case ::tensorflow::Event::kGraphDef:
          ++graphs;
          ExpectEmbedded<::tensorflow::GraphDef>(event.graph_def(), is_1x, path, &seen);
          break;
        case ::tensorflow::Event::kMetaGraphDef:
          ++graphs;
          ExpectEmbedded<::tensorflow::MetaGraphDef>(event.meta_graph_def(), is_1x, path, &seen);
          break;
        case ::tensorflow::Event::kTaggedRunMetadata:
          ExpectEmbedded<::tensorflow::RunMetadata>(event.tagged_run_metadata().run_metadata(),
                                                    is_1x, path, &seen);
          break;
        default:
          break;
      }
    }
  }
  EXPECT_GE(seen.messages, 20);
  EXPECT_GE(graphs, 2);
  EXPECT_GE(summaries, 5);
  EXPECT_GE(seen.with_unknown, 1);  // of 2.x: the round trip above had something to keep
}

TEST(SharedFiles, ExamplesHoldNothingUnknown) {
  const std::string path = SharedDataPath("tfrecords/mnist_train_sample.tfrecord");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tfrecords";
  Seen seen;
  for (const std::string& record : Records(ReadFile(path))) {
    ::tensorflow::Example example;
    ASSERT_TRUE(example.ParseFromString(record));
    EXPECT_GE(example.features().feature_size(), 1);
    ExpectNothingLost(example, true, path, &seen);
  }
  EXPECT_GE(seen.messages, 5);
}

TEST(SharedFiles, TextSavedModelsAndGraphsAreRead) {
  if (SharedDataPath("graphs").empty()) GTEST_SKIP() << "MILLRACE_SHARED has no graphs";
  Seen seen;
  for (const std::string& path : FilesBelow("saved_models", "/saved_model.pbtxt")) {
    ::tensorflow::SavedModel model;
    ASSERT_TRUE(TextFormat::ParseFromString(ReadFile(path), &model)) << path;
    ASSERT_GE(model.meta_graphs_size(), 1) << path;
    for (const auto& meta_graph : model.meta_graphs()) {
      EXPECT_GT(meta_graph.graph_def().node_size(), 0) << path;
      ExpectCollectionsKnown(meta_graph, path, &seen);
    }
  }
  int graphs = 0;
  for (const std::string& path : FilesBelow("graphs", ".pbtxt")) {
    ::tensorflow::GraphDef graph;
    ASSERT_TRUE(TextFormat::ParseFromString(ReadFile(path), &graph)) << path;
    EXPECT_GT(graph.node_size(), 0) << path;
    ++graphs;
  }
  EXPECT_GE(graphs, 5);
}

TEST(SharedFiles, TextAndBinaryFormOfAGraphAreEqual) {
  if (SharedDataPath("tf_graphs/pbtxt").empty())
    GTEST_SKIP() << "MILLRACE_SHARED has no tf_graphs/pbtxt";
  int pairs = 0;
  for (const std::string& path : FilesBelow("tf_graphs/pbtxt", ".pbtxt")) {
    const std::string stem = fs::path(path).stem().string();
    ::tensorflow::GraphDef from_text;
    ASSERT_TRUE(TextFormat::ParseFromString(ReadFile(path), &from_text)) << path;
    const std::string twin = SharedDataPath(absl::StrCat("tf_graphs/pb/", stem, ".pb"));
    if (twin.empty()) continue;
    ++pairs;
    ::tensorflow::GraphDef from_bytes;
    ASSERT_TRUE(from_bytes.ParseFromString(ReadFile(twin))) << twin;
    MessageDifferencer differencer;
    std::string difference;
    differencer.ReportDifferencesToString(&difference);
    differencer.set_float_comparison(MessageDifferencer::EXACT);
    EXPECT_EQ(Deterministic(from_text) == Deterministic(from_bytes) ||
                  differencer.Compare(from_text, from_bytes),
              true)
        << stem << ": " << difference;
  }
  EXPECT_GE(pairs, 200);
}

TEST(SharedFiles, OpListOf115IsRead) {
  const std::string path = SharedDataPath("ops/ops.pbtxt");
  if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no ops/ops.pbtxt";
  ::tensorflow::OpList ops;
  ASSERT_TRUE(TextFormat::ParseFromString(ReadFile(path), &ops));
  EXPECT_EQ(ops.op_size(), 1222);
  const auto add = std::find_if(ops.op().begin(), ops.op().end(),
                                [](const auto& op) { return op.name() == "AddN"; });
  ASSERT_NE(add, ops.op().end());
  EXPECT_TRUE(add->is_aggregate());
  EXPECT_TRUE(add->is_commutative());
  ASSERT_EQ(add->input_arg_size(), 1);
  EXPECT_EQ(add->input_arg(0).number_attr(), "N");
  EXPECT_EQ(add->input_arg(0).type_attr(), "T");
}

}  // namespace
}  // namespace millrace

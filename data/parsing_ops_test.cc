// SPDX-License-Identifier: Apache-2.0
//
// Of the ops of this folder that parse: each has TensorFlow's signature (those that 1.15 has not,
// that of the later version), and a builder whose node is what the definition says.

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "data/decode_csv.h"
#include "data/decode_json_example.h"
#include "data/decode_raw.h"
#include "data/parse_example.h"
#include "data/parse_sequence_example.h"
#include "google/protobuf/text_format.h"
#include "graph/graph.h"
#include "graph/op_registry.h"
#include "graph/verify.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "proto/op_def.pb.h"
#include "runtime/testing/op_test.h"

// covers: input: the parsing ops have TensorFlow's signatures

namespace millrace {
namespace {

const ParseExampleFeatures& SomeFeatures() {
  static const auto* const features = new ParseExampleFeatures{
      .sparse = {{"a", DT_INT64}, {"b", DT_STRING}},
      .dense = {{"x", {2}, TensorOf<float>({2}, {1, 2})},
                {"key of y", PartialShape::Scalar(), TensorOf<int64_t>({0}, {})}}};
  return *features;
}
const SequenceExampleFeatures& SomeSequences() {
  static const auto* const features = new SequenceExampleFeatures{
      .context = SomeFeatures(),
      .sparse_lists = {{"s", DT_FLOAT}},
      .dense_lists = {
          {.key = "d", .dtype = DT_STRING, .shape = {3}, .missing_assumed_empty = true}}};
  return *features;
}
Output Text(const Scope& s, const PartialShape& shape = PartialShape()) {
  return TestInput(s, DT_STRING, shape);
}

const std::map<std::string, std::function<void(const Scope&)>>& Calls() {
  static const auto* const calls = new std::map<std::string, std::function<void(const Scope&)>>{
      {"DecodeCSV",
       [](const Scope& s) {
         DecodeCSV(s, Text(s), {Const(s, 1.f), Const(s, "")}, {.select_cols = {1, 3}});
       }},
      {"DecodeCompressed",
       [](const Scope& s) { DecodeCompressed(s, Text(s), {.compression_type = "ZLIB"}); }},
      {"DecodeJSONExample", [](const Scope& s) { DecodeJSONExample(s, Text(s)); }},
      {"DecodePaddedRaw",
       [](const Scope& s) { DecodePaddedRaw(s, Text(s), Const(s, 4), DT_INT16); }},
      {"DecodeRaw",
       [](const Scope& s) { DecodeRaw(s, Text(s), DT_FLOAT, {.little_endian = false}); }},
      {"ParseExample", [](const Scope& s) { ParseExample(s, Text(s, {-1}), SomeFeatures()); }},
      {"ParseExampleV2",
       [](const Scope& s) {
         ParseExampleFeatures features = SomeFeatures();
         features.ragged = {{"r", DT_STRING, DT_INT32}, {"q", DT_FLOAT}};
         ParseExampleV2(s, Text(s), features);
       }},
      {"ParseSequenceExample",
       [](const Scope& s) { ParseSequenceExample(s, Text(s, {-1}), SomeSequences()); }},
      {"ParseSingleExample",
       [](const Scope& s) { ParseSingleExample(s, Text(s, {}), SomeFeatures()); }},
      {"ParseSingleSequenceExample",
       [](const Scope& s) { ParseSingleSequenceExample(s, Text(s, {}), SomeSequences()); }},
  };
  return *calls;
}

void DropProse(tensorflow::OpDef* op) {
  op->clear_summary();
  op->clear_description();
  for (auto& arg : *op->mutable_input_arg()) arg.clear_description();
  for (auto& arg : *op->mutable_output_arg()) arg.clear_description();
  for (auto& attr : *op->mutable_attr()) attr.clear_description();
}

TEST(ParsingOps, HaveTensorFlowsSignatures) {
  std::map<std::string, tensorflow::OpDef> theirs;
  for (const char* name : {"ops/ops.pbtxt", "ops/later_ops.pbtxt"}) {
    const std::string path = SharedDataPath(name);
    if (path.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no " << name;
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    tensorflow::OpList list;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text.str(), &list)) << name;
    for (const tensorflow::OpDef& op : list.op()) theirs[op.name()] = op;
  }
  for (const auto& [name, build] : Calls()) {
    const OpEntry* const entry = LookUpOp(name);
    ASSERT_NE(entry, nullptr) << name;
    ASSERT_EQ(theirs.count(name), 1u) << name;
    tensorflow::OpDef ours = entry->def, wanted = theirs[name];
    DropProse(&ours);
    DropProse(&wanted);
    EXPECT_EQ(ours.DebugString(), wanted.DebugString());
    EXPECT_EQ(entry->differentiability, OpEntry::Differentiability::kNotDifferentiable) << name;
  }
}

TEST(ParsingOps, BuildersMakeNodesThatDefinitionsDescribe) {
  for (const auto& [name, build] : Calls()) {
    SCOPED_TRACE(name);
    Scope scope;
    build(scope);
    ASSERT_OK(scope.status());
    const Node* made = nullptr;
    for (const auto& node : scope.graph()->nodes()) {
      if (node != nullptr && node->op() == name) made = node.get();
    }
    ASSERT_NE(made, nullptr);
    std::set<std::string> defined, present;
    for (const auto& attr : LookUpOp(name)->def.attr()) defined.insert(attr.name());
    for (const auto& [attr, value] : made->def().attr()) {
      if (attr[0] != '_') present.insert(attr);
    }
    EXPECT_EQ(present, defined);
    ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef graph, scope.ToGraphDef());
    EXPECT_OK(VerifyGraphDef(graph));
  }
}

// As in the graphs that TensorFlow's own builders wrote.
TEST(ParsingOps, NodesHaveTensorFlowsNames) {
  Scope scope;
  const ParseExampleOutputs parsed = ParseExample(scope, Text(scope, {-1}), SomeFeatures());
  ASSERT_OK(scope.status());
  const Node& node = *parsed.dense[0].node();
  EXPECT_EQ(node.name(), "ParseExample/ParseExample");
  const std::vector<std::string> inputs = {"ParseExample/ParseExample/names",
                                           "ParseExample/ParseExample/sparse_keys_0",
                                           "ParseExample/ParseExample/sparse_keys_1",
                                           "ParseExample/ParseExample/dense_keys_0",
                                           "ParseExample/ParseExample/dense_keys_1",
                                           "ParseExample/Const",
                                           "ParseExample/key_key_of_y"};
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_EQ(node.input(static_cast<int>(i) + 1).node->name(), inputs[i]);
  }
  const ParseExampleOutputs again =
      ParseExample(scope.WithName("mine"), Text(scope, {-1}), SomeFeatures());
  EXPECT_EQ(again.dense[0].node()->name(), "mine/ParseExample");
}

}  // namespace
}  // namespace millrace

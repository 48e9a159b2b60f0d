// SPDX-License-Identifier: Apache-2.0
#include "saver/large_constants.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/coding.h"
#include "core/deterministic_bytes.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/tensor.pb.h"
#include "proto/types.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "saver/model.h"
#include "saver/saved_model.h"
#include "saver/servable_model.h"

namespace millrace {
namespace {

// Of 80,000 bytes.
constexpr int64_t kRows = 200, kColumns = 100;
constexpr int64_t kBytes = kRows * kColumns * 4;
static_assert(kBytes >= static_cast<int64_t>(kLargeConstantBytes));

Tensor Numbers(float first) {
  Tensor numbers = *Tensor::Allocate(DT_FLOAT, *Shape::Make({kRows, kColumns}));
  for (float& x : numbers.mutable_flat<float>()) x = first++;
  return numbers;
}

tensorflow::TensorProto* ValueOf(absl::string_view name, tensorflow::GraphDef* graph) {
  for (tensorflow::NodeDef& node : *graph->mutable_node()) {
    if (node.name() == name) return (*node.mutable_attr())["value"].mutable_tensor();
  }
  ADD_FAILURE() << name;
  return nullptr;
}

// With the values where their marks are.
tensorflow::GraphDef Joined(tensorflow::GraphDef graph, const LargeConstants& constants) {
  for (const auto& [name, value] : constants) {
    const absl::Span<const char> bytes = value.bytes();
    ValueOf(name, &graph)->set_tensor_content(std::string(bytes.begin(), bytes.end()));
  }
  return graph;
}

// A field that has its length in front.
std::string Field(int field, absl::string_view bytes) {
  std::string out;
  PutVarint32(&out, static_cast<uint32_t>(field) << 3 | 2);
  PutVarint64(&out, bytes.size());
  out.append(bytes.data(), bytes.size());
  return out;
}
// Fields of NodeDef, and of the entry of an attr.
std::string Name(absl::string_view name) { return Field(1, name); }
std::string Op(absl::string_view op) { return Field(2, op); }
std::string Attr(absl::string_view fields) { return Field(5, fields); }
std::string Key(absl::string_view key) { return Field(1, key); }
std::string Value(absl::string_view attr_value) { return Field(2, attr_value); }
// AttrValue.tensor, and two fields of it.
std::string TensorField(absl::string_view fields) { return Field(8, fields); }
std::string Content(absl::string_view bytes) { return Field(4, bytes); }
std::string Header(int64_t num_floats) {
  tensorflow::TensorProto header;
  header.set_dtype(tensorflow::DT_FLOAT);
  header.mutable_tensor_shape()->add_dim()->set_size(num_floats);
  return header.SerializeAsString();
}
std::string LargeContent(char letter) {
  return Content(std::string(static_cast<size_t>(kBytes), letter));
}
const int64_t kFloats = kBytes / 4;
// Field 1000, a number; no message here has it.
const std::string kUnknown = {'\xc0', '\x3e', '\x07'};
// Attr "dtype", a float.
const std::string kFloatType = Attr(Key("dtype") + Value(std::string{'\x30', '\x01'}));

// The file of a model of these nodes, each given by its fields.
std::string ModelOf(const std::vector<std::string>& nodes) {
  std::string graph;
  for (const std::string& node : nodes) graph += Field(1, node);
  // SavedModel.meta_graphs; MetaGraphDef.meta_info_def, its tags; MetaGraphDef.graph_def
  return Field(2, Field(1, Field(4, "serve")) + Field(2, graph));
}

class LargeConstantsTest : public ::testing::Test {
 protected:
  LargeConstantsTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("constants_", RandomHexName()))),
        path_(JoinPath(dir_, "saved_model.pb")) {}
  ~LargeConstantsTest() override { fs_->RecursivelyDelete(dir_).IgnoreError(); }
  void SetUp() override { ASSERT_OK(fs_->RecursivelyCreateDirectory(dir_)); }

  // Two meta graphs, whose constants have the same names and other values.
  static tensorflow::SavedModel Model() {
    tensorflow::SavedModel model;
    model.set_saved_model_schema_version(1);
    for (const float first : {1.0f, 1000.0f}) {
      const Scope root;
      Const(root.WithName("large"), Numbers(first));
      Const(root.WithName("small"), Tensor::Of<float>({1, 2}));
      Const(root.WithName("flags"), *Tensor::Zeros(DT_BOOL, *Shape::Make({kBytes})));
      Const(root.WithName("ids"), *Tensor::Zeros(DT_INT64, *Shape::Make({kBytes / 8})));
      EXPECT_OK(root.status());
      tensorflow::MetaGraphDef* const meta = model.add_meta_graphs();
      meta->mutable_meta_info_def()->add_tags(first == 1 ? "serve" : "other");
      root.graph()->ToGraphDef(meta->mutable_graph_def());
      // As exporters write what they do not fold.
      tensorflow::TensorProto* const flags = ValueOf("flags", meta->mutable_graph_def());
      flags->clear_bool_val();
      flags->set_tensor_content(std::string(static_cast<size_t>(kBytes), '\1'));
    }
    return model;
  }
  void Write(absl::string_view bytes) { ASSERT_OK(WriteFileAtomically(fs_, path_, bytes)); }
  // In pieces as whole: the same error, or the same graph.
  void ExpectTheSameModel() {
    const StatusOr<millrace::Model> in_pieces = ReadModel(dir_, {.only_to_open = true});
    const StatusOr<millrace::Model> whole = ReadModel(dir_);
    EXPECT_EQ(in_pieces.status(), whole.status());
    if (!in_pieces.ok() || !whole.ok()) return;
    EXPECT_EQ(DeterministicBytes(Joined(in_pieces->graph(), in_pieces->constants())),
              DeterministicBytes(whole->graph()));
  }

  FileSystem* const fs_ = FileSystem::Posix();
  const std::string dir_, path_;
};

TEST_F(LargeConstantsTest, MessageAndTensorsTogetherAreTheFile) {
  const tensorflow::SavedModel whole = Model();
  Write(whole.SerializeAsString());
  const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->constants.size(), 2u);
  tensorflow::SavedModel joined = pieces->model;
  for (int i = 0; i < 2; ++i) {
    tensorflow::GraphDef* const graph = joined.mutable_meta_graphs(i)->mutable_graph_def();
    tensorflow::GraphDef original = whole.meta_graphs(i).graph_def();
    const LargeConstants& constants = pieces->constants[static_cast<size_t>(i)];
    // The bools stay, for their bytes may be any; so does what is small.
    ASSERT_EQ(constants.size(), 2u);
    for (const auto& [name, value] : constants) {
      ASSERT_TRUE(name == "large" || name == "ids") << name;
      ASSERT_OK_AND_ASSIGN(const Tensor expected, TensorFromProto(*ValueOf(name, &original)));
      ExpectTensorEqual(value, expected);
      // Nobody takes the mark for a value.
      EXPECT_FALSE(TensorFromProto(*ValueOf(name, graph)).ok());
      *ValueOf(name, graph) = *ValueOf(name, &original);
    }
  }
  EXPECT_EQ(DeterministicBytes(joined), DeterministicBytes(whole));
}

TEST_F(LargeConstantsTest, AGraphThatIsImportedIsTheOneThatWasExported) {
  const tensorflow::SavedModel whole = Model();
  Write(whole.SerializeAsString());
  const int64_t copied = ConstantBytesCopiedForTesting();
  const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(pieces.has_value());
  Graph graph;
  ASSERT_OK(
      ImportWithConstants(pieces->model.meta_graphs(1).graph_def(), pieces->constants[1], &graph));
  // The bools are copied: out of the message into their tensor, and with the message of the body.
  EXPECT_LE(ConstantBytesCopiedForTesting() - copied, 3 * kBytes);
  const Tensor* const large = graph.FindNode("large")->body()->value();
  ASSERT_NE(large, nullptr);
  EXPECT_EQ(large->buffer().get(), pieces->constants[1].at("large").buffer().get());
  tensorflow::GraphDef exported;
  graph.ToGraphDef(&exported);
  EXPECT_EQ(DeterministicBytes(exported), DeterministicBytes(whole.meta_graphs(1).graph_def()));
}

// What has a large content and is no constant has it in the message.
TEST_F(LargeConstantsTest, OtherAttrsKeepTheirBytes) {
  tensorflow::SavedModel whole = Model();
  tensorflow::GraphDef* const graph = whole.mutable_meta_graphs(0)->mutable_graph_def();
  tensorflow::NodeDef* const strange = graph->add_node();
  strange->set_name("strange");
  strange->set_op("NobodyHasThisKind");
  (*strange->mutable_attr())["value"].mutable_tensor()->CopyFrom(*ValueOf("large", graph));
  (*strange->mutable_attr())["another"].mutable_tensor()->CopyFrom(*ValueOf("ids", graph));
  // Of another size than its shape says.
  ValueOf("large", graph)->mutable_tensor_content()->push_back('x');
  // A second node of a name.
  *graph->add_node() = tensorflow::NodeDef(graph->node(3));
  ASSERT_EQ(graph->node(3).name(), "ids");
  Write(whole.SerializeAsString());
  const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->constants[0].size(), 1u);
  tensorflow::SavedModel joined = pieces->model;
  *ValueOf("ids", joined.mutable_meta_graphs(0)->mutable_graph_def()) = *ValueOf("ids", graph);
  EXPECT_EQ(DeterministicBytes(joined.meta_graphs(0)), DeterministicBytes(whole.meta_graphs(0)));
}

// However a writer orders and repeats fields, the last one counts as in the reader of the whole
// file.
TEST_F(LargeConstantsTest, FieldsInAnyOrderAndMoreThanOnceGiveTheSameGraph) {
  const std::string begin = Name("c") + Op("Const") + kFloatType;
  const std::string header = Header(kFloats), a = LargeContent('a'), b = LargeContent('b');
  const auto value = [](absl::string_view tensor) {
    return Attr(Key("value") + Value(TensorField(tensor)));
  };
  struct Case {
    std::string what, node;
    size_t num_constants;
  };
  const std::vector<Case> cases = {
      {"plain", begin + value(header + a), 1},
      {"content twice", begin + value(header + a + b), 1},
      {"content twice, then small", begin + value(Header(1) + a + Content("1234")), 0},
      {"content twice, small first", begin + value(header + Content("1234") + b), 1},
      {"content before its header", begin + value(a + header), 1},
      {"tensor twice", begin + Attr(Key("value") + Value(TensorField(a) + TensorField(header))), 1},
      {"tensor twice, both with contents",
       begin + Attr(Key("value") + Value(TensorField(header + a) + TensorField(b))), 1},
      {"value twice",
       begin + Attr(Key("value") + Value(TensorField(header + a)) + Value(TensorField(b))), 1},
      {"key twice", begin + value(header + a) + value(header + b), 1},
      {"key twice, then small", begin + value(header + a) + value(Header(1) + Content("1234")), 0},
      {"value before key", begin + Attr(Value(TensorField(header + a)) + Key("value")), 1},
      {"op behind its attrs", Name("c") + kFloatType + value(header + a) + Op("Const"), 1},
      {"op twice", Name("c") + Op("Const") + kFloatType + value(header + a) + Op("NoConst"), 0},
      {"content and float_val", begin + value(header + a + Field(5, "1234")), 0},
      {"float_val alone", begin + value(header + Field(5, LargeContent('a').substr(0, 70'000))), 0},
      {"unknown in the tensor", begin + value(header + a + kUnknown), 0},
      {"unknown in the attr",
       begin + Attr(Key("value") + Value(TensorField(header + a) + kUnknown)), 1},
      {"unknown in the node", kUnknown + begin + value(header + a), 1},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.what);
    const std::string bytes = ModelOf({one.node, Name("other") + Op("NoOp")});
    tensorflow::SavedModel whole;
    ASSERT_TRUE(whole.ParseFromString(bytes));
    Write(bytes);
    const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
    ASSERT_TRUE(pieces.has_value());
    const LargeConstants& constants = pieces->constants[0];
    EXPECT_EQ(constants.size(), one.num_constants);
    const tensorflow::GraphDef& marked = pieces->model.meta_graphs(0).graph_def();
    const tensorflow::GraphDef& expected = whole.meta_graphs(0).graph_def();
    EXPECT_EQ(DeterministicBytes(Joined(marked, constants)), DeterministicBytes(expected));
    Graph in_pieces, at_once;
    const Status imported = ImportWithConstants(marked, constants, &in_pieces);
    EXPECT_EQ(imported, ImportGraphDef(expected, {}, &at_once));
    if (!imported.ok()) continue;
    tensorflow::GraphDef first, second;
    in_pieces.ToGraphDef(&first);
    at_once.ToGraphDef(&second);
    EXPECT_EQ(DeterministicBytes(first), DeterministicBytes(second));
  }
}

TEST_F(LargeConstantsTest, AConstantOfAnotherTypeThanItsNodeIsRefusedAsWhenItIsReadWhole) {
  Write(ModelOf({Name("c") + Op("Const") + Attr(Key("dtype") + Value(std::string{'\x30', '\x03'})) +
                 Attr(Key("value") + Value(TensorField(Header(kFloats) + LargeContent('a'))))}));
  const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(pieces.has_value());
  ASSERT_EQ(pieces->constants[0].size(), 1u);
  Graph graph;
  EXPECT_STATUS(
      ImportWithConstants(pieces->model.meta_graphs(0).graph_def(), pieces->constants[0], &graph),
      absl::StatusCode::kInvalidArgument,
      "attr 'value' must be int32 as attr 'dtype' says, got float");
}

// Also small messages of a large function come through, and those behind the library.
TEST_F(LargeConstantsTest, ConstantsInFunctionsStayInTheMessage) {
  tensorflow::SavedModel whole = Model();
  tensorflow::GraphDef* const graph = whole.mutable_meta_graphs(0)->mutable_graph_def();
  tensorflow::FunctionDef* const function = graph->mutable_library()->add_function();
  function->mutable_signature()->set_name("f");
  *function->add_node_def() = graph->node(0);
  ASSERT_GE(function->ByteSizeLong(), kLargeConstantBytes);
  graph->mutable_versions()->set_producer(27);
  Write(whole.SerializeAsString());
  const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(pieces.has_value());
  EXPECT_EQ(pieces->constants[0].size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(DeterministicBytes(Joined(pieces->model.meta_graphs(i).graph_def(),
                                        pieces->constants[static_cast<size_t>(i)])),
              DeterministicBytes(whole.meta_graphs(i).graph_def()));
  }
  // A library in two parts is one.
  const std::string library = Field(2, graph->library().SerializeAsString());
  const std::string twice = Field(2, Field(2, library + library));
  Write(twice);
  const std::optional<ModelInPieces> joined = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(joined.has_value());
  ASSERT_TRUE(whole.ParseFromString(twice));
  EXPECT_EQ(whole.meta_graphs(0).graph_def().library().function_size(), 2);
  EXPECT_EQ(DeterministicBytes(joined->model), DeterministicBytes(whole));
  // One that ends within a field is not.
  Write(Field(2, Field(2, Field(2,
                                "\x0a\x05"
                                "abc"))));
  EXPECT_FALSE(ReadModelInPieces(fs_, path_).has_value());
}

// Files know how marks begin, and how many there were.
TEST_F(LargeConstantsTest, AContentThatBeginsAsAMarkIsNoneAndGetsNoBytesOfOthers) {
  const std::string large = TensorField(Header(kFloats) + LargeContent('a'));
  std::vector<std::string> forged = {"elsewhere"};
  for (int i = 0; i < 64; ++i) {
    forged.push_back(absl::StrCat("elsewhere", absl::Hex(i, absl::kZeroPad16)));
  }
  std::string attrs;  // of one node, which has one large content
  for (size_t i = 0; i < forged.size(); ++i) {
    attrs += Attr(Key(absl::StrCat("forged", i)) + Value(TensorField(Content(forged[i]))));
  }
  const std::string begin = Name("c") + Op("Const") + kFloatType;
  const std::string value = Attr(Key("value") + Value(large));
  for (const std::string& node :
       {begin + attrs + value, begin + value + attrs,
        // In place of the content before it.
        begin + Attr(Key("value") + Value(large + TensorField(Content(forged[5]))))}) {
    Write(ModelOf({node}));
    EXPECT_FALSE(ReadModelInPieces(fs_, path_).has_value());
    ExpectTheSameModel();
  }
  // In a node without a large content it is what it is.
  Write(ModelOf({begin + value, Name("d") + Op("Unknown") + attrs}));
  const std::optional<ModelInPieces> pieces = ReadModelInPieces(fs_, path_);
  ASSERT_TRUE(pieces.has_value());
  for (const auto& [name, attr] : pieces->model.meta_graphs(0).graph_def().node(1).attr()) {
    EXPECT_LT(attr.tensor().tensor_content().size(), 100u) << name;
  }
}

// covers: serving: a frozen model that is cut anywhere is refused in the words of before
TEST_F(LargeConstantsTest, CutFilesAreRefusedAsWhenTheyAreReadWhole) {
  const std::string bytes = Model().SerializeAsString();
  std::vector<size_t> cuts;
  for (size_t n = 0; n < 200; ++n) cuts.push_back(n);
  for (size_t n = 200; n < bytes.size(); n += 50'021) cuts.push_back(n);
  for (size_t n = bytes.size() - 50; n <= bytes.size(); ++n) cuts.push_back(n);
  for (const size_t n : cuts) {
    Write(absl::string_view(bytes).substr(0, n));
    ExpectTheSameModel();
    ASSERT_FALSE(HasFailure()) << n;
  }
  // A length beyond the end of what it is in.
  std::string wrong = bytes;
  for (size_t at = 0; at < 40; ++at) {
    const char before = std::exchange(wrong[at], '\x7f');
    Write(wrong);
    ExpectTheSameModel();
    ASSERT_FALSE(HasFailure()) << at;
    wrong[at] = before;
  }
}

// covers: serving: the bytes of a frozen model's constants are read once, into the tensors that its
//   session has (bytes copied are counted)
TEST_F(LargeConstantsTest, AFrozenModelIsLoadedWithoutACopy) {
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, kRows});
  const Output y = MatMul(root.WithName("y"), x, Const(root.WithName("w"), Numbers(0)));
  const std::string dir = JoinPath(dir_, "1"), other = JoinPath(dir_, "2");
  {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(ExportModel(session.get(), root, {.inputs = {{"x", x}}, .outputs = {{"y", y}}}, dir));
  }
  Tensor one = *Tensor::Zeros(DT_FLOAT, *Shape::Make({1, kRows}));
  one.mutable_flat<float>()[3] = 1;  // the row 3 of w

  int64_t copied[2];
  for (const bool in_pieces : {false, true}) {
    const int64_t before = ConstantBytesCopiedForTesting();
    ASSERT_OK_AND_ASSIGN(const millrace::Model model, ReadModel(dir, {.only_to_open = in_pieces}));
    EXPECT_EQ(model.constants().size(), in_pieces ? 1u : 0u);
    // The message is small, and tensors have the rest.
    const int64_t in_message = static_cast<int64_t>(model.graph().ByteSizeLong());
    EXPECT_EQ(in_message < kBytes, in_pieces);
    for (const auto& [name, value] : model.constants()) EXPECT_EQ(value.TotalBytes(), kBytes);
    ASSERT_OK_AND_ASSIGN(const ServableModel served, ServableModel::Load(model, {}, {}));
    copied[in_pieces] = ConstantBytesCopiedForTesting() - before;
    std::vector<Tensor> outputs(1);
    ASSERT_OK(served.Predict(0, {one}, absl::MakeSpan(outputs)));
    for (int64_t i = 0; i < kColumns; ++i) {
      EXPECT_EQ(outputs[0].flat<float>()[static_cast<size_t>(i)],
                static_cast<float>(3 * kColumns + i));
    }
    // It is not to be written.
    if (!in_pieces) continue;
    ASSERT_OK_AND_ASSIGN(const auto builder, SavedModelBuilder::Open(other));
    EXPECT_STATUS(builder->AddModel(model), absl::StatusCode::kInvalidArgument,
                  "must have its constants in its graph");
  }
  // Of a message the bytes are copied once at least: into the tensor.
  // (The rest of the model is small.)
  EXPECT_LE(copied[true] + kBytes, copied[false] + 1024);
  EXPECT_LT(copied[true], kBytes);
}

}  // namespace
}  // namespace millrace

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
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/saved_model.pb.h"
#include "proto/tensor.pb.h"
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

// covers: serving: a frozen model that is cut anywhere is refused in the words of before
TEST_F(LargeConstantsTest, CutFilesAreRefusedAsWhenTheyAreReadWhole) {
  const std::string bytes = Model().SerializeAsString();
  std::vector<size_t> cuts;
  for (size_t n = 0; n < 200; ++n) cuts.push_back(n);
  for (size_t n = 200; n < bytes.size(); n += 50'021) cuts.push_back(n);
  for (size_t n = bytes.size() - 50; n <= bytes.size(); ++n) cuts.push_back(n);
  for (const size_t n : cuts) {
    Write(absl::string_view(bytes).substr(0, n));
    EXPECT_EQ(ReadModel(dir_, {.only_to_open = true}).status(), ReadModel(dir_).status()) << n;
  }
  // A length beyond the end of what it is in.
  std::string wrong = bytes;
  for (size_t at = 0; at < 40; ++at) {
    const char before = std::exchange(wrong[at], '\x7f');
    Write(wrong);
    EXPECT_EQ(ReadModel(dir_, {.only_to_open = true}).status(), ReadModel(dir_).status()) << at;
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

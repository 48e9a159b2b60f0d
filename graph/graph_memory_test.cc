// SPDX-License-Identifier: Apache-2.0
//
// A graph whose edits run out of memory, at every allocation in turn.
#include <functional>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/deterministic_bytes.h"
#include "core/testing/counted_new.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/versions.pb.h"

// covers: steps: an edit of a graph or an import that runs out of memory at any allocation has
//   changed nothing and can be made again

namespace millrace {
namespace {

using testing::ForEveryAllocation;

const OpRegistration kOps[] = {
    OpSpec("MemorySource").Output("y: float").Shape(ScalarShape),
    OpSpec("MemoryAdd").Input("a: float").Input("b: float").Output("y: float").Shape(ScalarShape),
};

tensorflow::NodeDef Def(const std::string& op, const std::string& name) {
  tensorflow::NodeDef def;
  def.set_op(op);
  def.set_name(name);
  return def;
}

// a_source_node -> an_adding_node, ^another_source
std::unique_ptr<Graph> ThreeNodes() {
  auto graph = std::make_unique<Graph>();
  Node* const source = *graph->AddNode(Def("MemorySource", "a_source_node"));
  Node* const other = *graph->AddNode(Def("MemorySource", "another_source"));
  Node* const add = *graph->AddNode(Def("MemoryAdd", "an_adding_node"));
  EXPECT_OK(graph->AddEdge(source, 0, add, 0));
  graph->AddControlEdge(other, add);
  graph->UniqueName("ask once, so that names are kept");
  return graph;
}

// Everything that can be seen of a graph but holes.
std::string Seen(Graph* graph) {
  tensorflow::GraphDef def;
  graph->ToGraphDef(&def);
  std::string text = absl::StrCat(DeterministicBytes(def), graph->num_nodes(), " nodes\n");
  for (const auto& node : graph->nodes()) {
    if (node == nullptr) continue;
    absl::StrAppend(&text, node->name(), graph->FindNode(node->name()) == node.get(), ":");
    for (const Edge& edge : node->out_edges()) {
      absl::StrAppend(&text, " ", edge.src_output, "->", edge.dst->name(), ":", edge.dst_input);
    }
    absl::StrAppend(&text, "\n");
  }
  return absl::StrCat(text, graph->UniqueName("Fresh_Node"), graph->UniqueName("a_source_node"));
}

tensorflow::GraphDef Import() {
  tensorflow::GraphDef def;
  def.mutable_versions()->set_producer(100);
  def.mutable_versions()->add_bad_consumers(1);
  *def.add_node() = Def("MemorySource", "fresh_node");
  *def.add_node() = Def("MemoryAdd", "fresh_node/with_a_long_name");
  for (const char* input : {"fresh_node", "fresh_node", "^fresh_node"}) {
    def.mutable_node(1)->add_input(input);
  }
  def.mutable_node(1)->set_device("/job:worker/task:7");
  def.mutable_library()->add_function()->mutable_signature()->set_name("AFreshFunction");
  return def;
}

TEST(GraphMemoryTest, AnEditThatThrowsHasChangedNothingAndCanBeMadeAgain) {
  const tensorflow::GraphDef def = Import();
  const tensorflow::NodeDef node = Def("MemoryAdd", "Fresh_Node");
  const auto find = [](Graph* graph, const char* name) { return graph->FindNode(name); };
  const std::pair<const char*, std::function<Status(Graph*)>> edits[] = {
      {"AddNode", [&](Graph* g) { return g->AddNode(node).status(); }},
      {"AddEdge",
       [&](Graph* g) {
         return g->AddEdge(find(g, "another_source"), 0, find(g, "an_adding_node"), 1);
       }},
      {"AddControlEdge",
       [&](Graph* g) {
         g->AddControlEdge(find(g, "a_source_node"), find(g, "an_adding_node"));
         return absl::OkStatus();
       }},
      {"UpdateInput",
       [&](Graph* g) {
         return g->UpdateInput(find(g, "an_adding_node"), 0, find(g, "another_source"), 0);
       }},
      {"RemoveNode",
       [&](Graph* g) {
         g->RemoveNode(find(g, "another_source"));
         return absl::OkStatus();
       }},
      {"Import", [&](Graph* g) { return ImportGraphDef(def, {}, g); }},
  };
  for (const auto& [name, edit] : edits) {
    auto graph = ThreeNodes();
    const std::string before = Seen(graph.get());
    ASSERT_OK(edit(graph.get()));
    const std::string after = Seen(graph.get());
    graph = ThreeNodes();
    bool threw = false;
    ForEveryAllocation(
        [&] {
          threw = false;
          try {
            EXPECT_OK(edit(graph.get())) << name;
          } catch (const std::bad_alloc&) {
            threw = true;
          }
        },
        [&](int64_t k, bool) {
          if (threw) {
            EXPECT_EQ(Seen(graph.get()), before) << name << " " << k;
            EXPECT_OK(edit(graph.get())) << name << " " << k;
          }
          EXPECT_EQ(Seen(graph.get()), after) << name << " " << k;
          graph = ThreeNodes();
        });
  }
}

}  // namespace
}  // namespace millrace

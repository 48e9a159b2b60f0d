// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_NODE_BUILDER_H_
#define MILLRACE_GRAPH_NODE_BUILDER_H_

// NodeBuilder: adds one node to a Scope's graph. The op families' builders are
// thin functions over it:
//
//   struct MatMulAttrs { bool transpose_a = false; bool transpose_b = false; };
//   inline Output MatMul(ScopeAt at, Output a, Output b, const MatMulAttrs& attrs = {}) {
//     return NodeBuilder(at, "MatMul").Input(a).Input(b)
//         .Attr("transpose_a", attrs.transpose_a).Attr("transpose_b", attrs.transpose_b)
//         .Finish().output(0);
//   }
//
// Inputs are given in the order of the OpDef; type attrs (T, N, Tidx, ...) that inputs
// determine are inferred and need not be given. Shape inference runs in Finish.
// An error goes into the Scope; the result is then invalid. Invalid inputs make
// an invalid node without a further message.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/scope.h"  // IWYU pragma: export

namespace millrace {

// The node that Finish made.
class BuiltNode {
 public:
  BuiltNode() = default;
  explicit BuiltNode(Node* node) : node_(node) {}
  Operation operation() const { return Operation(node_); }
  // Invalid when the node is, or has no such output.
  Output output(int i) const {
    return node_ != nullptr && i < node_->num_outputs() ? Output(node_, i) : Output();
  }
  // Outputs [begin, begin + count).
  std::vector<Output> outputs(int begin, int count) const {
    std::vector<Output> result;
    for (int i = begin; i < begin + count; ++i) result.push_back(output(i));
    return result;
  }
  int num_outputs() const { return node_ == nullptr ? 0 : node_->num_outputs(); }

 private:
  Node* node_ = nullptr;
};

class NodeBuilder {
 public:
  NodeBuilder(const ScopeAt& at, absl::string_view op);
  ~NodeBuilder();
  NodeBuilder(const NodeBuilder&) = delete;
  NodeBuilder& operator=(const NodeBuilder&) = delete;

  NodeBuilder& Input(Output input);
  // A list argument (N * T, or a list of types).
  NodeBuilder& Input(absl::Span<const Output> inputs);
  template <typename T>
  NodeBuilder& Attr(absl::string_view name, const T& value) {
    SetAttr(value, MutableAttr(name));
    return *this;
  }
  NodeBuilder& ControlInput(Operation operation);
  // Instead of the scope's device.
  NodeBuilder& Device(absl::string_view device);

  BuiltNode Finish();

 private:
  tensorflow::AttrValue* MutableAttr(absl::string_view name);

  const ScopeAt at_;
  std::unique_ptr<tensorflow::NodeDef> def_;
  struct InputArg {
    bool is_list;
    std::vector<Output> outputs;
  };
  std::vector<InputArg> inputs_;
  std::vector<Operation> control_;
  bool own_device_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_NODE_BUILDER_H_

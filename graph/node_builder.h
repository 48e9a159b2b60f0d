// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_NODE_BUILDER_H_
#define MILLRACE_GRAPH_NODE_BUILDER_H_

// NodeBuilder: adds one node to a Scope's graph. The op families' builders are
// thin functions over it:
//
//   struct MatMulAttrs { bool transpose_a = false; bool transpose_b = false; };
//   inline Output MatMul(ScopeAt at, Output a, Output b, const MatMulAttrs& attrs = {}) {
//     return BuildOp(at, "MatMul", {a, b}, "transpose_a", attrs.transpose_a,
//                    "transpose_b", attrs.transpose_b);
//   }
//
// BuildOp is the short form for what is always given; a NodeBuilder itself serves builders that
// leave attrs out or add control inputs.
//
// Inputs are given in the order of the OpDef; type attrs (T, N, Tidx, ...) that inputs
// determine are inferred and need not be given. Shape inference runs in Finish.
// An error goes into the Scope; the result is then invalid. Invalid inputs make
// an invalid node without a further message.

#include <initializer_list>
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
  explicit BuiltNode(Node* node) : op_(node) {}
  const Operation& operation() const { return op_; }
  // What builders return: the first output, or the op where there is none to name.
  operator Output() const { return output(0); }       // NOLINT
  operator Operation() const { return operation(); }  // NOLINT
  // Invalid when the node is, or has no such output.
  Output output(int i) const { return i < num_outputs() ? Output(op_, i) : Output(); }
  // Outputs [begin, begin + count).
  std::vector<Output> outputs(int begin, int count) const {
    std::vector<Output> result;
    for (int i = begin; i < begin + count; ++i) result.push_back(output(i));
    return result;
  }
  int num_outputs() const { return op_.valid() ? op_.node()->num_outputs() : 0; }

 private:
  Operation op_;
};

class NodeBuilder {
 public:
  NodeBuilder(const ScopeAt& at, absl::string_view op);
  ~NodeBuilder();
  NodeBuilder(const NodeBuilder&) = delete;
  NodeBuilder& operator=(const NodeBuilder&) = delete;

  NodeBuilder& Input(const Output& input);
  // A list argument (N * T, or a list of types).
  NodeBuilder& Input(absl::Span<const Output> inputs);
  template <typename T>
  NodeBuilder& Attr(absl::string_view name, const T& value) {
    SetAttr(value, MutableAttr(name));
    return *this;
  }
  // Attr(name, value) for each pair.
  NodeBuilder& Attrs() { return *this; }
  template <typename T, typename... Rest>
  NodeBuilder& Attrs(absl::string_view name, const T& value, const Rest&... rest) {
    return Attr(name, value).Attrs(rest...);
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

// One argument of an op: a tensor, or the tensors of a list argument.
class BuilderInput {
 public:
  BuilderInput(Output output) : one_(std::move(output)) {}                        // NOLINT
  BuilderInput(absl::Span<const Output> list) : list_(list), is_list_(true) {}    // NOLINT
  BuilderInput(const std::vector<Output>& list) : list_(list), is_list_(true) {}  // NOLINT
  void AddTo(NodeBuilder* builder) const {
    is_list_ ? builder->Input(list_) : builder->Input(one_);
  }

 private:
  Output one_;
  absl::Span<const Output> list_;
  bool is_list_ = false;
};

// A node of op `op`: its inputs in the order of the OpDef, then names and values of attrs.
template <typename... Attrs>
BuiltNode BuildOp(ScopeAt at, absl::string_view op, std::initializer_list<BuilderInput> inputs,
                  const Attrs&... attrs) {
  NodeBuilder builder(at, op);
  for (const BuilderInput& input : inputs) input.AddTo(&builder);
  builder.Attrs(attrs...);
  return builder.Finish();
}

// Builders of ops without attrs, as constants: a family of many such ops is a list of
//
//   inline constexpr UnaryBuilder Sqrt{"Sqrt"};
//
// and Sqrt(scope, x) is called as any other builder.
struct UnaryBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output x) const { return BuildOp(at, op, {x}); }
};
struct BinaryBuilder {
  const char* op;
  Output operator()(ScopeAt at, Output x, Output y) const { return BuildOp(at, op, {x, y}); }
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_NODE_BUILDER_H_

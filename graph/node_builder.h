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
#include "graph/scope.h"       // IWYU pragma: export
#include "graph/tensor_arg.h"  // IWYU pragma: export

namespace millrace {

class ControlFlowContext;  // graph/control_flow_context.h
class Tensor;              // core/tensor.h

// The node that Finish made.
class BuiltNode {
 public:
  BuiltNode() = default;
  explicit BuiltNode(Node* node) : op_(node) {}
  const Operation& operation() const { return op_; }
  // What builders return: the first output, or the op where there is none to name.
  operator Output() const;     // NOLINT
  operator Operation() const;  // NOLINT
  // Invalid when the node is, or has no such output.
  Output output(int i) const;
  // Outputs [begin, begin + count).
  std::vector<Output> outputs(int begin, int count) const;
  int num_outputs() const;

 private:
  Operation op_;
};

// One argument of an op: a tensor, the values of one, or the tensors of a list argument. It refers
// to them: for the arguments of one call.
class BuilderInput {
 public:
  BuilderInput(const Output& output) : tensors_(&output, 1) {}  // NOLINT
  BuilderInput(const TensorArg& arg)                            // NOLINT
      : tensors_(&arg.output(), 1), literal_(arg.is_literal() ? &arg : nullptr) {}
  BuilderInput(absl::Span<const Output> list) : tensors_(list), is_list_(true) {}    // NOLINT
  BuilderInput(const std::vector<Output>& list) : tensors_(list), is_list_(true) {}  // NOLINT
  absl::Span<const Output> tensors() const { return tensors_; }
  bool is_list() const { return is_list_; }
  // Null unless it is values: tensors() has an invalid one then.
  const TensorArg* literal() const { return literal_; }

 private:
  absl::Span<const Output> tensors_;
  const TensorArg* literal_ = nullptr;
  bool is_list_ = false;
};

// One attr of an op; as BuilderInput.
class BuilderAttr {
 public:
  BuilderAttr() = default;
  template <typename T>
  BuilderAttr(absl::string_view name, const T& value)
      : name_(name), value_(&value), write_([](const void* v, tensorflow::AttrValue* attr) {
          SetAttr(*static_cast<const T*>(v), attr);
        }) {}
  absl::string_view name() const { return name_; }
  void WriteTo(tensorflow::AttrValue* attr) const { write_(value_, attr); }

 private:
  absl::string_view name_;
  const void* value_ = nullptr;
  void (*write_)(const void* value, tensorflow::AttrValue* attr) = nullptr;
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
  NodeBuilder& Attr(const BuilderAttr& attr);
  template <typename T>
  NodeBuilder& Attr(absl::string_view name, const T& value) {
    return Attr(BuilderAttr(name, value));
  }
  // Attr(name, value) for each pair.
  NodeBuilder& Attrs() { return *this; }
  template <typename T, typename... Rest>
  NodeBuilder& Attrs(absl::string_view name, const T& value, const Rest&... rest) {
    return Attr(name, value).Attrs(rest...);
  }
  // Attr `value` of a Const. A large tensor is shared, not copied: device functions see its dtype
  // and shape alone. `value` outlives Finish.
  NodeBuilder& Value(const Tensor& value);
  NodeBuilder& ControlInput(Operation operation);
  // Inputs are taken as they are, of whatever branch or loop: for nodes that lead from one to
  // another.
  NodeBuilder& AcrossContexts() {
    across_contexts_ = true;
    return *this;
  }
  // Instead of the scope's device.
  NodeBuilder& Device(absl::string_view device);

  BuiltNode Finish();

 private:
  // Inputs and control inputs (those of the scope, too) become tensors of the scope's branch or
  // loop.
  Status AdoptInputs();
  // Builds the node in another context than the scope's.
  BuiltNode FinishIn(ControlFlowContext* context);

  const ScopeAt at_;
  std::unique_ptr<tensorflow::NodeDef> def_;
  struct InputArg {
    bool is_list;
    std::vector<Output> outputs;
  };
  std::vector<InputArg> inputs_;
  std::vector<Operation> control_;
  const Tensor* value_ = nullptr;
  bool own_device_ = false;
  bool across_contexts_ = false;
};

// A node of op `op`, its inputs in the order of the OpDef.
BuiltNode BuildNode(const ScopeAt& at, absl::string_view op, absl::Span<const BuilderInput> inputs,
                    absl::Span<const BuilderAttr> attrs);

namespace node_builder_internal {

inline void ListAttrs(BuilderAttr*) {}
template <typename T, typename... Rest>
void ListAttrs(BuilderAttr* at, absl::string_view name, const T& value, const Rest&... rest) {
  *at = BuilderAttr(name, value);
  ListAttrs(at + 1, rest...);
}

}  // namespace node_builder_internal

// The same with names and values of attrs in turns. Whatever this makes is made in every program
// that calls a builder: all of the work is BuildNode's.
template <typename... Attrs>
BuiltNode BuildOp(const ScopeAt& at, absl::string_view op,
                  std::initializer_list<BuilderInput> inputs, const Attrs&... attrs) {
  BuilderAttr list[sizeof...(attrs) / 2 + 1];
  node_builder_internal::ListAttrs(list, attrs...);
  return BuildNode(at, op, absl::MakeConstSpan(inputs.begin(), inputs.size()),
                   absl::MakeConstSpan(list, sizeof...(attrs) / 2));
}

// Builders of ops without attrs, as constants: a family of many such ops is a list of
//
//   inline constexpr UnaryBuilder Sqrt{"Sqrt"};
//
// and Sqrt(scope, x) is called as any other builder.
struct UnaryBuilder {
  const char* op;
  Output operator()(ScopeAt at, const Output& x) const;
};
struct BinaryBuilder {
  const char* op;
  Output operator()(ScopeAt at, const TensorArg& x, const TensorArg& y) const;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_NODE_BUILDER_H_

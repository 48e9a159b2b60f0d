// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_SHAPE_INFERENCE_H_
#define MILLRACE_GRAPH_SHAPE_INFERENCE_H_

// Shape inference: what is known of every tensor's shape before a step runs.
//
// A shape function reads input shapes and attrs and sets every output's shape; it
// may ask for the value of an input that is constant in the graph (input_tensor)
// or for a shape that an int vector input describes even when only part of it is known
// (input_as_shape; graph/partial_value.h).
// Resource outputs also carry dtype and shape of what they hold (handle data).
// The outputs of a call are those of the function's results: its body is inferred with what is
// known of the arguments, calls in it likewise, up to kMaxInferredCalls deep and
// kMaxInferredNodes nodes in all; beyond nothing is known.
//
// ShapeRefiner runs the functions over a growing graph and keeps the results.
//
// Constants are small here: a value of more than kMaxConstantElements elements is not
// computed (a Const of any size is known, though), and neither is a chain deeper than
// kMaxConstantDepth.
//
// Thread-safety: thread-compatible. Failure: a contradiction is InvalidArgument, with the op's and
// the node's name put in front by the refiner.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/shape.h"  // IWYU pragma: export
#include "core/status.h"
#include "core/tensor.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/op_rule.h"  // IWYU pragma: export
#include "graph/partial_value.h"

namespace millrace {

class Node;  // graph/graph.h

inline constexpr int kMaxConstantDepth = 128;
inline constexpr int kMaxInferredCalls = 32;
inline constexpr int kMaxInferredNodes = 200'000;

// What a resource holds.
struct HandleData {
  DType dtype = DT_INVALID;
  PartialShape shape;
};

// What is known of a tensor that goes into a function or comes out of it.
struct KnownTensor {
  PartialShape shape;
  std::optional<HandleData> handle;
  // Of an argument, when it is constant. Valid during the call.
  const Tensor* value = nullptr;
};

// Infers what functions of the graph's library make of their arguments.
class FunctionShapes {
 public:
  virtual ~FunctionShapes() = default;
  // What is known of the results; empty when nothing can be said. An error of the body is one of
  // the call: NotFound for a function that is not there, InvalidArgument for other numbers of
  // arguments.
  virtual StatusOr<std::vector<KnownTensor>> Infer(const tensorflow::NameAttrList& function,
                                                   absl::Span<const KnownTensor> arguments) = 0;
};

// What the graph knows besides: the node, and what handles hold. Shape functions that need neither
// are rules (graph/op_rule.h).
class InferenceContext : public RuleContext {
 public:
  InferenceContext(const NodeAttrs& attrs, const tensorflow::OpDef* op,
                   std::vector<PartialShape> inputs,
                   std::vector<std::optional<HandleData>> input_handles, int num_outputs,
                   Source* source, FunctionShapes* functions = nullptr);

  // Op and attrs; the value of a large Const is to be had from attrs() only.
  const tensorflow::NodeDef& node() const { return attrs_.node(); }
  const NodeAttrs& attrs() const { return attrs_; }
  template <typename T>
  StatusOr<T> GetAttr(absl::string_view name) const {
    return millrace::GetAttr<T>(attrs_, name);
  }

  // [begin, end) of a named argument, as in the OpDef.
  StatusOr<ArgRange> InputRange(absl::string_view arg) const {
    return InputArgRange(node(), *op_, arg);
  }

  const std::optional<HandleData>& input_handle(int i) const {
    return input_handles_[static_cast<size_t>(i)];
  }
  void set_output_handle(int i, HandleData data) {
    output_handles_[static_cast<size_t>(i)] = std::move(data);
  }

  // Null outside of a graph.
  FunctionShapes* functions() const { return functions_; }
  // What is known of input i, as the argument of a function.
  KnownTensor KnownInput(int i);

  const std::vector<PartialShape>& outputs() const { return output_shapes_; }
  const std::vector<std::optional<HandleData>>& output_handles() const { return output_handles_; }

 private:
  NodeAttrs attrs_;
  const tensorflow::OpDef* op_;
  FunctionShapes* functions_;
  std::vector<PartialShape> input_shapes_;
  std::vector<std::optional<HandleData>> input_handles_;
  std::vector<PartialShape> output_shapes_;
  std::vector<std::optional<HandleData>> output_handles_;
};

template <typename R>
Status InferByRule(InferenceContext* c) {
  R rule;
  MR_RETURN_IF_ERROR(InitRule(&rule, c->attrs()));
  return ApplyRule(rule, c);
}

// Shape functions that many ops share.
Status UnchangedShape(InferenceContext* c);        // every output is shaped as input 0
Status ScalarShape(InferenceContext* c);           // every output is a scalar
Status NoOutputShape(InferenceContext* c);         // for ops without outputs
Status BroadcastBinaryShape(InferenceContext* c);  // NumPy broadcasting of inputs 0 and 1
// Every output unknown: for ops whose output shape really depends on values (Unique, dequeue).
Status ValueDependentShape(InferenceContext* c);
// Output `output` is input `input` passed on: its shape and what it is a handle of (Identity,
// Switch, Enter, ...).
void ForwardInputToOutput(InferenceContext* c, int input, int output);
// The outputs are the results of `function` called with inputs [first, first + size); unknown where
// it cannot be looked at. InvalidArgument for another number of results than outputs.
Status InferCall(InferenceContext* c, const tensorflow::NameAttrList& function, ArgRange inputs);

// Computes stateless nodes whose inputs are constant. Implemented by the runtime; see
// runtime/constant_evaluator.h. The inputs are in the order of the node's data inputs.
class ConstantEvaluator {
 public:
  virtual ~ConstantEvaluator() = default;
  // Unimplemented when the node has no kernel that may run here.
  virtual StatusOr<std::vector<Tensor>> Evaluate(const Node& node,
                                                 absl::Span<const Tensor> inputs) = 0;
};

class ShapeRefiner {
 public:
  // `evaluator` may be null: then only Const nodes (and shape arithmetic) are constant.
  explicit ShapeRefiner(ConstantEvaluator* evaluator = nullptr);
  ~ShapeRefiner();

  // Infers the outputs of `node`, whose inputs have been added before (back edges of loops may be
  // missing). The error names op and node.
  Status AddNode(const Node& node);
  // Unknown for a node that was not added.
  PartialShape OutputShape(const Node& node, int output) const;
  std::optional<HandleData> OutputHandle(const Node& node, int output) const;
  // Null unless the value is known now.
  const Tensor* ConstantValue(const Node& node, int output);
  // What is known of an int32 or int64 scalar or vector.
  std::optional<PartialValue> KnownInts(const Node& node, int output);
  // The partial shape that an int vector describes.
  StatusOr<PartialShape> ConstantShape(const Node& node, int output);
  // All that is known of a tensor, and such knowledge of the only output of a node: for an argument
  // of a function, from what is passed.
  KnownTensor Known(const Node& node, int output);
  void SetKnown(const Node& node, const KnownTensor& known);
  ConstantEvaluator* evaluator() const;
  // Says what holds of an output instead of what was inferred: for a loop's Merge, whose other
  // input does not exist yet.
  void ReplaceOutputShape(const Node& node, int output, PartialShape shape);
  // Merges what the caller knows into what is known (set_shape). InvalidArgument on contradiction.
  Status MergeOutputShape(const Node& node, int output, const PartialShape& shape);

 private:
  struct Impl;
  class Functions;
  static Status Infer(const Node& node, InferenceContext* context);

  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_SHAPE_INFERENCE_H_

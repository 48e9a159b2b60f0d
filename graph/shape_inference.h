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
#include "core/hash_table.h"
#include "core/shape.h"  // IWYU pragma: export
#include "core/status.h"
#include "core/tensor.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/partial_value.h"

namespace millrace {

inline constexpr int kMaxConstantDepth = 128;

// What a resource holds.
struct HandleData {
  DType dtype = DT_INVALID;
  PartialShape shape;
};

class InferenceContext {
 public:
  struct Source {  // how the context reaches the graph; supplied by the refiner
    virtual ~Source() = default;
    // Null when input i is no constant that can be computed now.
    virtual const Tensor* ConstantInput(int i) = 0;
    // Unknown when nothing is known of the shape that input i describes.
    virtual StatusOr<PartialShape> ShapeInput(int i) = 0;
  };

  InferenceContext(const NodeAttrs& attrs, const tensorflow::OpDef* op,
                   std::vector<PartialShape> inputs,
                   std::vector<std::optional<HandleData>> input_handles, int num_outputs,
                   Source* source);

  // Op and attrs; the value of a large Const is to be had from GetAttr only.
  const tensorflow::NodeDef& node() const { return attrs_.node(); }
  template <typename T>
  StatusOr<T> GetAttr(absl::string_view name) const {
    return millrace::GetAttr<T>(attrs_, name);
  }

  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  int num_outputs() const { return static_cast<int>(outputs_.size()); }
  const PartialShape& input(int i) const { return inputs_[static_cast<size_t>(i)]; }
  // [begin, end) of a named argument, as in the OpDef.
  StatusOr<ArgRange> InputRange(absl::string_view arg) const {
    return InputArgRange(node(), *op_, arg);
  }

  // The value of input i when it is constant, else null. Valid during this call.
  const Tensor* input_tensor(int i) {
    return source_ == nullptr ? nullptr : source_->ConstantInput(i);
  }
  // The shape that int vector input i describes; negative values are unknown dimensions.
  StatusOr<PartialShape> input_as_shape(int i);
  const std::optional<HandleData>& input_handle(int i) const {
    return input_handles_[static_cast<size_t>(i)];
  }

  // Requires 0 <= i < num_outputs().
  void set_output(int i, PartialShape shape) {
    outputs_[static_cast<size_t>(i)] = std::move(shape);
  }
  void set_output_handle(int i, HandleData data) {
    output_handles_[static_cast<size_t>(i)] = std::move(data);
  }

  // The input's shape with rank `rank` (unknown dimensions when its rank is unknown).
  // InvalidArgument "... must have rank R, got shape S".
  StatusOr<PartialShape> InputWithRank(int i, int rank) const;
  StatusOr<PartialShape> InputWithRankAtLeast(int i, int rank) const;

  const std::vector<PartialShape>& outputs() const { return outputs_; }
  const std::vector<std::optional<HandleData>>& output_handles() const { return output_handles_; }

 private:
  NodeAttrs attrs_;
  const tensorflow::OpDef* op_;
  std::vector<PartialShape> inputs_;
  std::vector<std::optional<HandleData>> input_handles_;
  std::vector<PartialShape> outputs_;
  std::vector<std::optional<HandleData>> output_handles_;
  Source* source_;
};

// Shape functions that many ops share.
Status UnchangedShape(InferenceContext* c);        // every output is shaped as input 0
Status ScalarShape(InferenceContext* c);           // every output is a scalar
Status NoOutputShape(InferenceContext* c);         // for ops without outputs
Status BroadcastBinaryShape(InferenceContext* c);  // NumPy broadcasting of inputs 0 and 1
// Every output unknown: for ops whose output shape really depends on values (Unique, dequeue).
Status ValueDependentShape(InferenceContext* c);
// The shapes of inputs [begin_input, end_input) merged into one; unknown when there are none.
StatusOr<PartialShape> MergeAll(InferenceContext* c, int begin_input, int end_input);
// Output `output` is input `input` passed on: its shape and what it is a handle of (Identity,
// Switch, Enter, ...).
void ForwardInputToOutput(InferenceContext* c, int input, int output);

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
  // The partial shape that an int vector describes.
  StatusOr<PartialShape> ConstantShape(const Node& node, int output);
  // Merges what the caller knows into what is known (set_shape). InvalidArgument on contradiction.
  Status MergeOutputShape(const Node& node, int output, const PartialShape& shape);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_SHAPE_INFERENCE_H_

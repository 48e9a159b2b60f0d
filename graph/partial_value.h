// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PARTIAL_VALUE_H_
#define MILLRACE_GRAPH_PARTIAL_VALUE_H_

// Partial values: what is known of the int vectors that describe shapes, element by element.
//
// Of the shape [?,28,28] the vector Shape(x) is {?, 28, 28}, x.shape[1] * x.shape[2] is 784 and
// stack([x.shape[0], 784]) is {?, 784}. A family says next to the op how its output follows:
//
//   OpSpec("Pack", ...).With(PartialValueRule(PackValue))
//   OpSpec("Rank", ...).With(PartialValueRule(RankValue, PartialValueRule::kOfShapes))
//
// A rule claims an element only when the kernel gives it: a node for which all elements are claimed
// succeeds once its inputs are there. So a rewrite may put a constant in its place. Where the
// kernel would refuse its inputs, the rule says nothing (but see may_assume_success).
//
// Thread-safety: values are thread-compatible; rules are registered with their ops and found from
// any thread, without a lock. Failure: nullopt is "nothing is known".

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/attr.h"

namespace millrace {

class OpSpec;  // graph/op_registry.h

// Values of more elements are not followed.
inline constexpr int64_t kMaxConstantElements = 1 << 12;

// An int32 or int64 scalar or vector of which single elements may be unknown.
struct PartialValue {
  bool is_scalar = false;
  std::vector<std::optional<int64_t>> elements;

  // Nullopt unless the tensor is an int scalar or vector of at most kMaxConstantElements.
  static std::optional<PartialValue> FromTensor(const Tensor& tensor);
  // Nothing known but the number of elements; nullopt when not even that is.
  static std::optional<PartialValue> Unknown(const PartialShape& shape);
  // Nullopt unless every element is known and fits `dtype` (DT_INT32 or DT_INT64).
  std::optional<Tensor> ToTensor(DType dtype) const;
};

// One output of a node, as its rule sees it.
class PartialValueContext {
 public:
  struct Source {  // how the context reaches the graph
    virtual ~Source() = default;
    virtual std::optional<PartialValue> Value(int input) = 0;
    virtual PartialShape InputShape(int input) = 0;
    virtual PartialShape OutputShape(int output) = 0;
    // The question is what the value is if the node succeeds; a failing node may be claimed.
    virtual bool MayAssumeSuccess() { return false; }
  };

  // What `attrs` refers to, and `source`, outlive the context.
  PartialValueContext(const NodeAttrs& attrs, int num_inputs, int output, DType dtype,
                      Source* source)
      : attrs_(attrs), num_inputs_(num_inputs), output_(output), dtype_(dtype), source_(source) {}

  template <typename T>
  StatusOr<T> GetAttr(absl::string_view name) const {
    return millrace::GetAttr<T>(attrs_, name);
  }
  int num_inputs() const { return num_inputs_; }
  int output() const { return output_; }  // which one is asked for
  DType dtype() const { return dtype_; }  // of that output: DT_INT32 or DT_INT64

  // Nullopt beyond the last input, too.
  std::optional<PartialValue> input(int i) const {
    return i < num_inputs_ ? source_->Value(i) : std::nullopt;
  }
  // The known value of a scalar input, the known element of a vector of one element.
  std::optional<int64_t> input_scalar(int i) const { return OneElement(i, /*is_scalar=*/true); }
  std::optional<int64_t> input_single(int i) const { return OneElement(i, /*is_scalar=*/false); }
  // Requires 0 <= i < num_inputs().
  PartialShape input_shape(int i) const { return source_->InputShape(i); }
  PartialShape output_shape() const { return source_->OutputShape(output_); }
  // True while shapes are inferred: what reads a node that fails does not run. A rewrite, which
  // would put the value in the node's place, needs nodes that succeed.
  bool may_assume_success() const { return source_->MayAssumeSuccess(); }

 private:
  std::optional<int64_t> OneElement(int i, bool is_scalar) const;

  NodeAttrs attrs_;
  int num_inputs_;
  int output_;
  DType dtype_;
  Source* source_;
};

using PartialValueFn = std::optional<PartialValue> (*)(PartialValueContext*);

// The rule of one op kind; of two for one op the first counts.
class PartialValueRule {
 public:
  // What the rule reads of the node's inputs.
  enum Reads { kValues, kOfShapes };
  explicit PartialValueRule(PartialValueFn fn, Reads reads = kValues) : fn_(fn), reads_(reads) {}
  void AddTo(OpSpec* op) const;  // for OpSpec::With

  // Null when the op has no rule: then nothing is known of its int outputs but what they are when
  // all inputs are constant. Lives as long as the process.
  static const PartialValueRule* Find(absl::string_view op);

  bool of_shapes() const { return reads_ == kOfShapes; }
  std::optional<PartialValue> operator()(PartialValueContext* context) const {
    return fn_(context);
  }

 private:
  PartialValueFn fn_;
  Reads reads_;
};

bool IsIndexType(DType type);  // DT_INT32 or DT_INT64
// An element of an int32 tensor that does not fit wraps in a step: it counts as unknown.
std::optional<int64_t> IfItFits(std::optional<int64_t> element, DType dtype);

// Rules that many ops share.
std::optional<PartialValue> FirstInputValue(PartialValueContext* c);     // Identity
std::optional<PartialValue> ReshapedInputValue(PartialValueContext* c);  // same elements, new rank
std::optional<PartialValue> ShapeOfInputValue(PartialValueContext* c);   // Shape, ShapeN

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PARTIAL_VALUE_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_OP_RULE_H_
#define MILLRACE_GRAPH_OP_RULE_H_

// Rules of ops: which inputs are legal and what shapes the outputs get, said once.
//
//   struct TileRule {
//     StatusOr<PartialShape> operator()(RuleContext* c) const {
//       MR_ASSIGN_OR_RETURN(const PartialInts multiples, c->IntVector(1, "multiples"));
//       ...
//       return PartialShape::Make(dims);
//     }
//   };
//
// The framework calls the rule twice: while the graph is built, where shapes and values of inputs
// are known in part (OpSpec::Rule), and before the kernel in every step, where they are known
// whole; the kernel then gets the shapes of its outputs (RuledKernel, runtime/kernel.h). So what
// the one accepts the other accepts, and what can be refused early is refused early.
//
// A rule is a struct: its members are the op's attrs, read once by
//
//   Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "axis", &axis); }
//
// It returns the shape of output 0, or a Status after it has set the outputs itself. An output
// whose shape depends on values that are not known stays unknown; in a step, where nothing is
// unknown, an output that stays so is one that the kernel sizes itself (Unique).
//
// A rule that finds out more than shapes (which axes are reduced, where windows stand) hands it to
// the kernel: it returns a Planned, and ctx->plan(rule) is what it has planned for the step.
//
//   StatusOr<Planned<Flags>> operator()(RuleContext* c) const {
//     ...
//     return WithPlan(PartialShape::Make(dims), reduced);
//   }
//
// Rules are pure: they look at what the context gives and nothing else.
// Failure: InvalidArgument in the form of core/status.h; the callers add op and node.

#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"   // IWYU pragma: export
#include "core/status.h"  // IWYU pragma: export
#include "core/tensor.h"
#include "graph/attr.h"  // IWYU pragma: export
#include "graph/partial_value.h"

namespace millrace {

// Reads attrs by name: ReadAttrs(attrs, "axis", &axis, "keep_dims", &keep_dims).
inline Status ReadAttrs(const NodeAttrs&) { return absl::OkStatus(); }
template <typename T, typename... Rest>
Status ReadAttrs(const NodeAttrs& attrs, absl::string_view name, T* value, Rest... rest) {
  MR_ASSIGN_OR_RETURN(*value, GetAttr<T>(attrs, name));
  return ReadAttrs(attrs, rest...);
}

// The elements of an int vector, as far as they are known.
class PartialInts {
 public:
  PartialInts() = default;  // not even their number
  explicit PartialInts(IntSpan ints);
  explicit PartialInts(const PartialValue& value);
  static PartialInts UnknownOfSize(int64_t size);

  bool has_size() const { return has_size_; }
  // Requires has_size().
  int size() const { return static_cast<int>(values_.size()); }
  // Element i where it is known; also where the size is not.
  std::optional<int64_t> at(int i) const {
    if (!has_size_ || (!unknown_.empty() && unknown_[static_cast<size_t>(i)] != 0))
      return std::nullopt;
    return values_[static_cast<size_t>(i)];
  }
  bool all_known() const { return has_size_ && unknown_.empty(); }
  // Requires all_known().
  const std::vector<int64_t>& values() const { return values_; }

 private:
  std::vector<int64_t> values_;
  std::vector<char> unknown_;  // empty when all are known
  bool has_size_ = false;
};

class RuleContext {
 public:
  struct Source {  // how the context reaches the values of inputs; the shapes are handed in
    virtual ~Source() = default;
    // Null when input i is no constant that can be computed now.
    virtual const Tensor* ConstantInput(int i) = 0;
    // Unknown when nothing is known of the shape that input i describes.
    virtual StatusOr<PartialShape> ShapeInput(int i) = 0;
    // What is known of an int32 or int64 scalar or vector whose value is not constant.
    virtual std::optional<PartialValue> PartialInput(int i) = 0;
  };

  // `source` may be null; it and the spans outlive the context.
  RuleContext(absl::Span<const PartialShape> inputs, absl::Span<PartialShape> outputs,
              Source* source)
      : inputs_(inputs), outputs_(outputs), source_(source) {}
  RuleContext(const RuleContext&) = delete;
  RuleContext& operator=(const RuleContext&) = delete;

  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  int num_outputs() const { return static_cast<int>(outputs_.size()); }
  // The shape of input i.
  const PartialShape& input(int i) const { return inputs_[static_cast<size_t>(i)]; }
  // Of inputs [begin, end).
  absl::Span<const PartialShape> inputs(int begin, int end) const {
    return inputs_.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }

  // The input's shape with rank `rank` (unknown dimensions when its rank is unknown).
  // InvalidArgument "<name> must have rank R, got shape S"; without a name "input i".
  StatusOr<PartialShape> InputWithRank(int i, int rank, absl::string_view name = {}) const;
  StatusOr<PartialShape> InputWithRankAtLeast(int i, int rank, absl::string_view name = {}) const;

  // The value of input i where it is known whole, else null. Valid during this call.
  const Tensor* input_tensor(int i) {
    return source_ == nullptr ? nullptr : source_->ConstantInput(i);
  }
  // The int vector (a scalar, too, where `allow_scalar`) at input i, as far as it is known.
  // InvalidArgument "<name> must be a vector, got shape S".
  StatusOr<PartialInts> IntVector(int i, absl::string_view name, bool allow_scalar = false);
  // The int scalar at input i where it is known. InvalidArgument "<name> must be a scalar, got
  // shape S"; a tensor of one element counts as a scalar where `allow_single`, as it always did
  // for axes.
  StatusOr<std::optional<int64_t>> IntScalar(int i, absl::string_view name,
                                             bool allow_single = false);
  // The shape that int vector input i describes; negative values are unknown dimensions.
  StatusOr<PartialShape> input_as_shape(int i);

  // Requires 0 <= i < num_outputs().
  void set_output(int i, PartialShape shape) {
    outputs_[static_cast<size_t>(i)] = std::move(shape);
  }

 protected:
  absl::Span<const PartialShape> inputs_;
  absl::Span<PartialShape> outputs_;
  Source* source_;
};

// The shape of output 0 and what the kernel needs besides shapes. A shape alone, as good as it is
// known, becomes one with an empty plan: in a step, where all is known, there is a whole one.
template <typename P>
struct Planned {
  Planned(PartialShape shape) : output(std::move(shape)) {}  // NOLINT: converts from a shape
  Planned(PartialShape shape, P made) : output(std::move(shape)), plan(std::move(made)) {}

  PartialShape output;
  P plan{};
};
template <typename P>
StatusOr<Planned<P>> WithPlan(StatusOr<PartialShape> output, P plan) {
  MR_RETURN_IF_ERROR(output.status());
  return Planned<P>(*std::move(output), std::move(plan));
}

// What rule R plans: P of the Planned<P> that it returns.
template <typename R>
using PlanOf = decltype(std::declval<const R&>()(nullptr)->plan);

// Calls a rule. What it has planned goes to `*plan`, unless that is null.
template <typename R>
Status ApplyRule(const R& rule, RuleContext* c, std::shared_ptr<const void>* plan = nullptr) {
  if constexpr (std::is_same_v<decltype(rule(c)), Status>) {
    return rule(c);
  } else {
    MR_ASSIGN_OR_RETURN(auto result, rule(c));
    if constexpr (std::is_same_v<decltype(result), PartialShape>) {
      c->set_output(0, std::move(result));
    } else {
      c->set_output(0, std::move(result.output));
      if (plan != nullptr) *plan = std::make_shared<const PlanOf<R>>(std::move(result.plan));
    }
    return absl::OkStatus();
  }
}

// Reads the attrs of a rule that has some.
template <typename R>
Status InitRule(R* rule, const NodeAttrs& attrs) {
  if constexpr (requires { rule->Init(attrs); }) {
    return rule->Init(attrs);
  } else {
    return absl::OkStatus();
  }
}

// The rule of ops whose outputs are shaped as input 0.
struct UnchangedShapeRule {
  Status operator()(RuleContext* c) const {
    for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(0));
    return absl::OkStatus();
  }
};

// The shape that an int32 or int64 vector describes; negative elements are unknown dimensions.
StatusOr<PartialShape> ShapeOfElements(const Tensor& ints);

// The shapes of inputs [begin, end) merged into one; unknown when there are none.
StatusOr<PartialShape> MergeAll(RuleContext* c, int begin_input, int end_input);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_OP_RULE_H_

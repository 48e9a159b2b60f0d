// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRADIENT_H_
#define MILLRACE_GRAPH_GRADIENT_H_

// Gradients: reverse-mode differentiation of a graph by adding nodes to it.
//
// Each op kind registers a gradient function (OpSpec::Gradient) or says that it
// has none (NotDifferentiable). A gradient is dense (an Output) or IndexedSlices
// (rows of a table); contributions along several paths are added: dense ones by
// AddN, slices by concatenation; a mix becomes dense.
//
// Gradients flow through floating, complex, resource and variant outputs only; the gradient of a
// resource (a variable's handle) is the gradient of what it holds, that of a variant (a list of
// tensors) is a variant.
//
// Source: TensorFlow's tf.gradients (name scope "gradients", one sub-scope "<op>_grad" per node).

#include <functional>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/scope.h"

namespace millrace {

// monostate: no gradient flows here.
using Gradient = std::variant<std::monostate, Output, IndexedSlices>;
inline bool HasGradient(const Gradient& g) { return g.index() != 0; }

// What a gradient function sees: the forward node and the gradients of its outputs.
class GradientContext {
 public:
  GradientContext(const Scope& scope, Node* node, std::vector<Gradient> output_gradients,
                  std::string source = "gradients");

  // New nodes go here: name, device, colocation and the line that asked for gradients are set.
  const Scope& scope() const { return scope_; }
  const Node& node() const { return *node_; }
  // Stands for the calculation of gradients that this is part of: for what is shared by the nodes
  // of one and not by several (the arrays of gradients of tensor arrays).
  const std::string& source() const { return source_; }
  Output input(int i) const { return Output(node_->input(i).node, node_->input(i).index); }
  Output output(int i) const { return Output(node_, i); }
  int num_inputs() const { return node_->num_inputs(); }
  int num_outputs() const { return node_->num_outputs(); }
  template <typename T>
  StatusOr<T> GetAttr(absl::string_view name) const {
    return millrace::GetAttr<T>(*node_, name);
  }
  // The attrs as rule R of the op reads them.
  template <typename R>
  StatusOr<R> GetRule() const {
    R rule;
    MR_RETURN_IF_ERROR(rule.Init(node_->attrs()));
    return rule;
  }

  // The gradient of output i as a dense tensor: slices are made dense, a missing one becomes zeros
  // of the output's shape (of the variable's value, for a resource). Zeros for an output of a
  // Switch are dead when that output is.
  Output dense_grad(int i = 0);
  bool has_grad(int i = 0) const { return HasGradient(output_gradients_[static_cast<size_t>(i)]); }
  const Gradient& grad(int i = 0) const { return output_gradients_[static_cast<size_t>(i)]; }

  // Inputs that are not set, or set to an invalid Output, get no gradient.
  void set_input_grad(int i, Output gradient);
  void set_input_grad(int i, IndexedSlices gradient);

  // The gradients of inputs 0, 1, ...; invalid ones (and those that are left out) get none.
  void set_input_grads(absl::Span<const Output> gradients);

  std::vector<Gradient>& input_gradients() { return input_gradients_; }

 private:
  Scope scope_;
  Node* node_;
  std::string source_;
  std::vector<Gradient> output_gradients_;
  std::vector<Gradient> input_gradients_;
};

// Gradient functions that return what they give: the gradient of input 0, or those of inputs 0, 1,
// ... They are called only where output 0 has a gradient.
template <typename Returned>
std::function<Status(GradientContext*)> GradientFnOf(Returned (*fn)(GradientContext*)) {
  static_assert(std::is_same_v<Returned, Output> || std::is_same_v<Returned, std::vector<Output>> ||
                std::is_same_v<Returned, StatusOr<Output>> ||
                std::is_same_v<Returned, StatusOr<std::vector<Output>>>);
  return [fn](GradientContext* c) -> Status {
    if (!c->has_grad(0)) return absl::OkStatus();
    const auto set = [c](const auto& gradients) {
      if constexpr (std::is_same_v<std::decay_t<decltype(gradients)>, Output>) {
        c->set_input_grads({&gradients, 1});
      } else {
        c->set_input_grads(gradients);
      }
    };
    if constexpr (requires(Returned returned) { returned.status(); }) {
      MR_ASSIGN_OR_RETURN(const auto gradients, fn(c));
      set(gradients);
    } else {
      set(fn(c));
    }
    return absl::OkStatus();
  };
}

struct GradientOptions {
  // Gradients of the ys; empty = ones.
  std::vector<Output> grad_ys = {};
  // Tensors that count as constants.
  std::vector<Output> stop_gradients = {};
  // Gradient nodes get the device and colocation of the forward node.
  bool colocate_with_ops = false;
};

// The gradients of sum(ys) with respect to each of `xs`, in their order; monostate where ys do not
// depend on an x. InvalidArgument for a y that is not floating (or is complex and has no grad_y);
// Unimplemented when a while loop is on the way; NotFound "No gradient defined for
// operation 'name' (op type: X)" for an op without gradient on the way.
StatusOr<std::vector<Gradient>> AddGradients(ScopeAt at, absl::Span<const Output> ys,
                                             absl::Span<const Output> xs,
                                             const GradientOptions& options = {});

// Why `y` has no gradient for `x`, for a message: "Floor 'f' on the way passes no gradient on",
// "Cast 'c' on the way gives int32" (of the first such node from x on), "'y:0' does not depend on
// it".
std::string WhyNoGradient(const Output& y, const Output& x);

// `gradient` as one dense tensor (UnsortedSegmentSum for slices). Invalid for monostate; slices
// without dense_shape are an error in the scope.
Output DenseGradient(ScopeAt at, const Gradient& gradient);

// Conditionals: the gradients of Switch and Merge, for the op family to register. A conditional
// runs backwards as a conditional: Switch merges what came back along its two branches (zeros that
// are alive on that branch where nothing came), Merge switches its gradient to the input that
// value_index names. Slices stay slices where both branches allow it, and variables' handles may be
// switched.
Status GradientOfSwitch(GradientContext* context);
Status GradientOfMerge(GradientContext* context);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GRADIENT_H_

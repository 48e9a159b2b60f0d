// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_FUNCTION_CUT_H_
#define MILLRACE_GRAPH_FUNCTION_CUT_H_

// How a function is differentiated: what gradients of calls, of branches and of loops of functions
// share (function_gradient.h).
//
//   CopyBody        the nodes of the function in a graph of its own
//   Differentiate   the nodes of its gradient next to them
//   Cut             which of both are the backward function, and what that takes
//
//   forward(x)            -> y, inside
//   backward(x', inside, dy) -> dx          x': those of x that it reads
//
// Thread-safety: as the graph. Failure: as AddGradients.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/function_body.h"
#include "graph/function_def.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"

namespace millrace::function_cut {

// Where the gradient of one argument is among the results of the backward function.
struct ArgumentGradient {
  enum class Kind { kNone, kDense, kSlices, kSlicesWithShape } kind = Kind::kNone;
  size_t first = 0;
};

// A function's graph with the nodes of its gradient.
struct Differentiated {
  Differentiated(const Scope& outer, std::shared_ptr<const FunctionBody> function)
      : scope(Scope::ForFunction(outer, nullptr)), body(std::move(function)) {}

  Scope scope;
  std::shared_ptr<const FunctionBody> body;
  std::vector<Output> arguments;
  std::vector<Output> results;       // what the body's _Retvals read
  HashSet<const Node*> forward;      // nodes of the body
  std::vector<const Node*> effects;  // of the body
  std::vector<Output> dys;           // _Arg nodes, one for each result that has a gradient
  std::vector<Gradient> gradients;   // of the arguments
};

// The body's nodes as a graph of their own. `known`: what is known of the arguments; may be empty.
Status CopyBody(absl::Span<const KnownTensor> known, Differentiated* d);

// Adds the gradient's nodes: from the results of which `has_dy` says that they have a gradient.
// `source`: GradientContext::source of the call.
Status Differentiate(const std::vector<bool>& has_dy, const std::string& source, Differentiated* d);

// The type of a gradient's values; DT_INVALID for none.
DType ValuesType(const Gradient& gradient);
// dx of argument `i`, dense, in the function's graph: zeros (of what a handle holds, of type
// `held`) where the function does not read it.
Output DenseOrZeros(Differentiated* d, size_t i, DType held);

// What the backward function takes in place of what is computed forward.
class Cut {
 public:
  explicit Cut(Differentiated* d) : d_(d) {}

  // Once, when d->gradients are as the backward function is to give them. Unimplemented where they
  // go through a loop of Switch and Merge.
  Status Run();

  const std::vector<ArgumentGradient>& places() const { return places_; }
  // Arguments of the backward function: of the call, by position; then `inside`; then all dys.
  const std::vector<size_t>& from_call() const { return from_call_; }
  const std::vector<OutputRef>& inside() const { return inside_; }
  std::vector<DType> inside_types() const;
  const FunctionDefParts& parts() const { return parts_; }
  std::vector<DType> result_types() const;
  bool waits_for_forward() const { return waits_for_forward_; }
  // The forward function: all arguments -> results, inside.
  FunctionDefParts ForwardParts() const;

 private:
  Status RefuseFrames() const;
  void Read(const OutputRef& tensor);
  HashSet<const Node*> ConditionalNodes() const;
  Status KeepDeadTensorsDead();
  StatusOr<OutputRef> Again(const OutputRef& tensor, std::vector<OutputRef>* order);
  void FindArguments();

  Differentiated* const d_;
  HashSet<const Node*> backward_;
  HashSet<std::pair<const Node*, int>> read_;
  std::vector<OutputRef> order_;
  std::vector<ArgumentGradient> places_;
  std::vector<size_t> from_call_;
  std::vector<OutputRef> inside_;
  FunctionDefParts parts_;
  bool waits_for_forward_ = false;
};

// Adds a function to the library of `scope`, named `name` or the next free name like it.
StatusOr<std::string> Define(const Scope& scope, absl::string_view name, const Graph& graph,
                             const FunctionDefParts& parts);

// Makes the node, whatever it did, call `function`, whose further results are of `more` types.
Status CallInstead(const Scope& scope, Node* node, const std::string& function,
                   absl::Span<const DType> more);
// A call of a function of the library.
BuiltNode CallNamed(const Scope& scope, const std::string& function,
                    const std::vector<Output>& inputs, const std::vector<DType>& results,
                    Operation after = Operation());

}  // namespace millrace::function_cut

#endif  // MILLRACE_GRAPH_FUNCTION_CUT_H_

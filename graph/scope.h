// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_SCOPE_H_
#define MILLRACE_GRAPH_SCOPE_H_

// Scope: where new nodes go: the graph, the name prefix, device, control
// dependencies and colocation that they get.
//
// A Scope is a small value; scopes made from one root share the graph and the
// first error. After an error every builder call is a no-op that returns an
// invalid Output, and status() tells the error with the source line that caused it.
//
//   Scope root;
//   Output x = Placeholder(root, DT_FLOAT, {-1, 784});
//   Output y = MatMul(root.WithName("dense"), x, w);
//   if (!root.status().ok()) ...
//
// Thread-safety: thread-compatible; scopes of one root belong to one thread at a time.

#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"  // IWYU pragma: export
#include "core/shape.h"  // IWYU pragma: export
#include "core/status.h"

namespace tensorflow {
class CollectionDef;
class GraphDef;
class NodeDef;
}  // namespace tensorflow

namespace millrace {

class ConstantEvaluator;   // graph/shape_inference.h
class ControlFlowContext;  // graph/control_flow_context.h
class Graph;               // graph/graph.h
class Node;                // graph/graph.h
class Scope;
class ShapeRefiner;  // graph/shape_inference.h
struct ScopeState;   // graph/scope.cc
class Tensor;        // core/tensor.h

// A node that a builder made. Invalid (node() == nullptr) after an error. It keeps its graph alive,
// so it may outlive the Scope. (A graph that one place owns outlives it instead.)
class Operation {
 public:
  Operation() = default;
  explicit Operation(Node* node);
  // Not inline: each call of a builder makes and ends several in the program that calls it.
  Operation(const Operation& other);
  Operation(Operation&& other) noexcept = default;
  Operation& operator=(const Operation& other);
  Operation& operator=(Operation&& other) noexcept;
  ~Operation();
  Node* node() const { return node_.get(); }
  bool valid() const { return node_ != nullptr; }
  // "" when invalid.
  std::string name() const;
  friend bool operator==(const Operation& a, const Operation& b) { return a.node_ == b.node_; }

 private:
  std::shared_ptr<Node> node_;  // of the graph's reference count
};

// An index with the line that has it; made implicitly.
struct RowIndex {
  RowIndex(int64_t i, std::source_location w = std::source_location::current())  // NOLINT
      : index(i), where(w) {}
  int64_t index;
  std::source_location where;
};

// One output of a node; as Operation.
class Output {
 public:
  Output() = default;
  // Never of a 0 that would be a null pointer: {0, 1} is a list of numbers.
  template <std::same_as<Node> N>
  Output(N* node, int index) : op_(node), index_(index) {}
  Output(Operation op, int index) : op_(std::move(op)), index_(index) {}
  Node* node() const { return op_.node(); }
  int index() const { return index_; }
  bool valid() const { return op_.valid(); }
  const Operation& op() const { return op_; }
  DType dtype() const;
  // "name:0"; "" when invalid.
  std::string name() const;
  // x[i], as in Python: element i of dimension 0, from the end where i is negative. A StridedSlice
  // that is built as operators build theirs (ops/operators.h, whose library has it).
  Output operator[](const RowIndex& row) const;
  friend bool operator==(const Output& a, const Output& b) {
    return a.op_ == b.op_ && a.index_ == b.index_;
  }
  template <typename H>
  friend H AbslHashValue(H h, const Output& o) {
    return H::combine(std::move(h), o.node(), o.index_);
  }

 private:
  Operation op_;
  int index_ = 0;
};

// A gradient or update that touches few rows: row indices[i] of a tensor of shape dense_shape
// gets values[i]. Indices may repeat: contributions add up.
struct IndexedSlices {
  Output values;       // [n, ...]
  Output indices;      // [n], int32 or int64
  Output dense_shape;  // vector; may be invalid when nobody needs it
  // No row appears twice: optimizers need not add up. Slices that are joined lose it.
  bool unique_indices = false;
};

// Chooses the device of a node from its NodeDef (name, op, attrs, device so far). The graph keeps
// it, so it must not own Outputs or Scopes of that graph. It is called for as long as the graph and
// a Scope of it live, by every builder and operator (ops/operators.h) whose node it places: what it
// refers to must live as long.
using DeviceFunction = std::function<std::string(const tensorflow::NodeDef&)>;

// Where a scope puts nodes: what WithSubScope and WithDevice have chosen. Immutable; scopes share
// it, and each node knows the one that the program, not the builder's own sub-scopes, has made.
struct ScopeHome {
  std::string prefix;                                           // "a/b/" or ""
  std::vector<std::pair<std::string, DeviceFunction>> devices;  // outermost first
};

class Scope {
 public:
  // A root with a new graph. `evaluator` is used for constant values in shape inference.
  Scope();
  explicit Scope(ConstantEvaluator* evaluator);
  Scope(const Scope& other);
  Scope(Scope&& other) noexcept;
  Scope& operator=(const Scope& other);
  Scope& operator=(Scope&& other) noexcept;
  ~Scope();
  // Builds into an existing graph (whose nodes keep their names). The error of its shape inference,
  // or InvalidArgument for a cycle.
  static StatusOr<Scope> ForGraph(std::unique_ptr<Graph> graph,
                                  ConstantEvaluator* evaluator = nullptr);

  // A root for the body of a function (graph/function_builder.h) that is built in the middle of
  // `outer`: a graph of its own with the functions of `outer` and its seed. `capture` makes a
  // tensor of another graph one of this; it is called as long as the scope and its copies live.
  static Scope ForFunction(const Scope& outer,
                           std::function<StatusOr<Output>(const Output&)> capture);
  // How many functions it is inside of.
  int function_depth() const;
  // A tensor of a graph around the function as one of this graph. InvalidArgument where there is
  // none around.
  StatusOr<Output> Captured(const Output& tensor) const;

  // Nodes made with the result are named `<prefix of this>/<name>/...`; a name used before gets _1,
  // ... "a/b/", with a slash at its end, is the full prefix of a scope to go on with.
  Scope WithSubScope(absl::string_view name) const;
  // The next node made with the result gets this name (made unique); the op kind otherwise.
  // "a/b/", with a slash at its end, is a full name that UniqueName has reserved.
  Scope WithName(absl::string_view name) const;
  // For a builder of several nodes: the sub-scope named by WithName, else `default_name`. The home
  // of its nodes is that of this scope.
  Scope CompositeScope(absl::string_view default_name) const;
  // Merged with the devices of outer scopes, the inner one wins; "" clears.
  Scope WithDevice(absl::string_view device) const;
  Scope WithDevice(const char* device) const { return WithDevice(absl::string_view(device)); }
  Scope WithDevice(const std::string& device) const {
    return WithDevice(absl::string_view(device));
  }
  // The function sees the device that the scopes inside of it have chosen; what it returns is the
  // device from there on. An empty function changes nothing.
  Scope WithDevice(DeviceFunction function) const;
  Scope WithControlDependencies(absl::Span<const Operation> operations) const;
  Scope WithControlDependencies(std::initializer_list<Operation> operations) const {
    return WithControlDependencies(absl::MakeConstSpan(operations.begin(), operations.size()));
  }
  Scope WithoutControlDependencies() const;
  // Nodes go where `operation` goes: attr _class "loc:@name", and its device.
  Scope ColocatedWith(Operation operation) const;
  // Nodes made with the result, and their errors, name `where` as the line that built them,
  // whatever line calls the builder. What a composite (a layer, loss, optimizer, ...) builds with:
  // the program's line counts, not one of the library's.
  Scope BuiltAt(std::source_location where) const;
  // The line that calls a builder counts again: for the functions that the program gives to a
  // composite (bodies of loops, model functions, initializers), which have lines of their own.
  Scope BuiltWhereCalled() const { return BuiltAt({}); }
  // What BuiltAt has set; line() is 0 when it has set nothing.
  const std::source_location& built_at() const { return built_at_; }
  // Where operators on `output` (ops/operators.h) build: the graph, name prefix and devices of the
  // scope with which the program called the builder, without control dependencies or colocation;
  // the root for imported nodes. None for an invalid output and when all scopes of the graph are
  // gone.
  static std::optional<Scope> HomeOf(const Output& output);
  // --- Branches and loops (graph/control_flow_context.h)

  // Nodes are built inside of `context`, which the graph's scopes have (AddContext); null: outside
  // of all. It is the program's own place: operators on tensors of nodes made with it build there.
  Scope InContext(ControlFlowContext* context) const;
  ControlFlowContext* context() const { return context_; }
  // Nodes may use what is in branches inside of the scope's context, as it is: gradients, which are
  // alive when what they are made of is.
  Scope AcrossBranches() const;
  // Do nodes use tensors of `context` as they are?
  bool UsesAsTheyAre(ControlFlowContext* context) const;
  // Where variables are made: outside of all branches and loops, without control dependencies.
  Scope OutsideControlFlow() const;
  // Owned by the scopes of this graph from now on.
  template <typename T>
  T* AddContext(std::unique_ptr<T> context) const {
    T* const added = context.get();
    OwnContext(std::move(context));
    return added;
  }
  // Is there any context?
  bool has_contexts() const;
  // Where the outputs of `node` are; null outside of all.
  ControlFlowContext* ContextOf(const Node& node) const;
  // For nodes that lead from one context to another.
  void SetContextOf(const Node& node, ControlFlowContext* context) const;
  // The context of this name; null when there is none.
  ControlFlowContext* FindContext(absl::string_view name) const;

  // Graph-level random seed; see ops/random/random.h.
  void SetGraphSeed(int64_t seed) const;
  std::optional<int64_t> graph_seed() const;

  Graph* graph() const;
  ShapeRefiner* refiner() const;
  // The first error, InvalidArgument etc. with "; built at file:line".
  Status status() const;
  bool ok() const;
  // Keeps the first error only.
  void UpdateStatus(const Status& status, std::source_location where) const;

  // What shape inference knows; unknown for an invalid output.
  PartialShape shape(Output output) const;
  // Merges what the caller knows (set_shape). An error goes into status().
  void SetShape(Output output, const PartialShape& shape,
                std::source_location where = std::source_location::current()) const;
  // The tensor "add:0" (or "add", its first output) of the graph. NotFound where there is none,
  // InvalidArgument for what is no name of a tensor; neither becomes the Scope's error.
  StatusOr<Output> Find(absl::string_view tensor) const;
  // The value when it is constant, else null. Valid until the graph changes.
  const Tensor* constant_value(Output output) const;

  // Collections of the graph, as a MetaGraphDef stores them ("variables", "trainable_variables",
  // ...). "cond_context" and "while_context" are brought up to date by the call.
  std::map<std::string, tensorflow::CollectionDef>* collections() const;
  void AddToNodeCollection(absl::string_view key, absl::string_view name) const;
  void AddToBytesCollection(absl::string_view key, std::string bytes) const;

  // The full name a node called `op_name` would get next in this scope, reserved for it.
  std::string UniqueName(absl::string_view op_name) const;
  // "a/b/" or "".
  const std::string& prefix() const { return here_->prefix; }
  // What WithName asked for, else `default_name`: for builders that derive several names from it.
  std::string RequestedName(absl::string_view default_name) const {
    return next_name_.empty() ? std::string(default_name) : next_name_;
  }
  // The same scope without its name prefix: for nodes that a graph has once (global_step).
  Scope WithRootPrefix() const;

  // The finished graph as GraphDef. An error when status() is one.
  StatusOr<tensorflow::GraphDef> ToGraphDef() const;
  // Refuses new nodes from now on: FailedPrecondition "Graph is finalized and cannot be modified.".
  void Finalize() const;

  // --- For NodeBuilder: what a new node gets of its scope

  // False after an error; refusal by Finalize() becomes the error.
  bool MayBuild(std::source_location where) const;
  // The full name that a node of this op asks for; not yet unique.
  std::string AskedName(absl::string_view op) const;
  // Gives `def` its unique name, _class and (unless `own_device`) its device.
  Status Prepare(bool own_device, tensorflow::NodeDef* def) const;
  // An input of a node of this op as a tensor of the scope's context; likewise a control input.
  // What leads it there was built at `where`. InvalidArgument "must be ...".
  StatusOr<Output> Adopted(const Output& tensor, absl::string_view op,
                           const std::source_location& where) const;
  StatusOr<Operation> AdoptedControl(const Operation& operation, absl::string_view op,
                                     const std::source_location& where) const;
  // What WithControlDependencies has added.
  absl::Span<const Operation> control_dependencies() const { return control_; }
  // What the node remembers (Node::set_home).
  const std::shared_ptr<const ScopeHome>& home() const { return home_; }

 private:
  explicit Scope(std::shared_ptr<ScopeState> shared);

  // This scope with another place; also its nodes' home, unless a composite scope has fixed that.
  Scope At(ScopeHome place) const;
  void OwnContext(std::unique_ptr<ControlFlowContext> context) const;

  std::shared_ptr<ScopeState> shared_;
  std::shared_ptr<const ScopeHome> here_;  // where nodes are put
  std::shared_ptr<const ScopeHome> home_;  // what they remember
  bool home_is_fixed_ = false;             // inside of a CompositeScope
  ControlFlowContext* context_ = nullptr;  // one of the shared ones
  bool across_branches_ = false;
  std::string next_name_;  // set by WithName
  std::vector<Operation> control_;
  Operation colocated_;
  std::source_location built_at_;  // set by BuiltAt
};

// A Scope together with the source line that calls a builder, or the one that the Scope carries
// (BuiltAt); made implicitly.
struct ScopeAt {
  ScopeAt(const Scope& s,  // NOLINT: every builder takes a Scope through it
          std::source_location w = std::source_location::current())
      : scope(s), where(s.built_at().line() == 0 ? w : s.built_at()) {}
  // The scope for all that a composite builds: its nodes name `where`.
  Scope here() const { return scope.BuiltAt(where); }
  const Scope& scope;
  std::source_location where;
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_SCOPE_H_

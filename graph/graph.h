// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRAPH_H_
#define MILLRACE_GRAPH_GRAPH_H_

// Graph: nodes, data edges and control edges: what a model is.
//
// A node has a unique name, a requested device and, after placement, an assigned one; its op, attrs
// and types are its body (graph/node_body.h), which copies of the node share. Data edges go from an
// output index to an input index; control edges have no index (kControlSlot). Ids are dense in
// creation order; removing a node leaves a hole.
//
// A node of an op kind that this program does not know is kept (its attrs, inputs and
// text survive); its outputs exist as far as edges refer to them, with DT_INVALID.
//
// Invariants: names are unique; each data input has at most one edge; edge types
// agree (a reference output may feed a non-reference input). Cycles are legal here only through
// NextIteration; verify (graph/verify.h) checks whole graphs.
//
// Cost: adding, replacing and removing an edge is O(1) amortised, removing a node linear in its own
// edges; how many edges its neighbours have does not matter.
//
// Failure: what returns a Status that is not OK, or throws (std::bad_alloc), has changed nothing.
// Removing needs no memory.
//
// Thread-safety: thread-compatible. Nodes live as long as the graph and keep their address; bodies
// outlive graphs.

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/node_body.h"
#include "graph/op_registry.h"
#include "graph/op_traits.h"

namespace tensorflow {
class GraphDef;
class NodeDef;
class OpDef;
class OpDef_ArgDef;  // OpDef::ArgDef
class VersionDef;
}  // namespace tensorflow

namespace millrace {

class FunctionLibrary;  // graph/function_library.h
class Graph;
class Node;
class Tensor;       // core/tensor.h
struct ScopeHome;   // graph/scope.h
struct ScopeState;  // graph/scope.cc

inline constexpr int kControlSlot = -1;

// GraphDef version that this project writes and the lowest producer it reads; TensorFlow 1.15's.
inline constexpr int kGraphVersion = 134;
inline constexpr int kGraphMinProducer = 0;

// Most outputs that edges may give a node of an unknown op: each is made for a few bytes of input.
inline constexpr int kMaxUnknownOutputs = 1 << 12;

struct Edge {
  Node* src;
  int src_output;  // kControlSlot for a control edge
  Node* dst;       // null only for a hole in an EdgeList
  int dst_input;   // kControlSlot for a control edge
  bool is_control() const { return src_output == kControlSlot; }

  uint32_t control_at = 0;  // the graph's own: place among the control inputs of dst
};

// One output of a node: "name:index" in text, "name" for index 0.
struct OutputRef {
  Node* node = nullptr;
  int index = 0;

  uint32_t edge_at = 0;  // the graph's own: place of an input's edge among node's out-edges
};

// The graph's own: where a control edge comes from and its place among the out-edges there.
struct ControlInput {
  Node* node = nullptr;
  uint32_t edge_at = 0;
};

inline const Edge& ListedAs(const Edge& edge) { return edge; }
inline Node* ListedAs(const ControlInput& input) { return input.node; }
inline bool IsHole(const Edge& edge) { return edge.dst == nullptr; }
inline bool IsHole(const ControlInput& input) { return input.node == nullptr; }

// The edges on one side of a node in the order in which they were added. A removed one leaves a
// hole, which iteration skips; when most of the list are holes it is closed up. So removing costs
// O(1) amortised, whatever the fan-out, and the order of the others stays. Iterators and references
// are valid until an edge of the node is added or removed.
template <typename Item>
class EdgeList {
 public:
  class const_iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using difference_type = std::ptrdiff_t;
    using reference = decltype(ListedAs(std::declval<const Item&>()));
    using value_type = std::decay_t<reference>;
    using pointer = const value_type*;

    const_iterator() = default;
    const_iterator(const Item* at, const Item* end) : at_(at), end_(end) { SkipHoles(); }
    reference operator*() const { return ListedAs(*at_); }
    const_iterator& operator++() {
      ++at_;
      SkipHoles();
      return *this;
    }
    const_iterator operator++(int) {
      const_iterator old = *this;
      ++*this;
      return old;
    }
    friend bool operator==(const const_iterator& a, const const_iterator& b) {
      return a.at_ == b.at_;
    }

   private:
    void SkipHoles() {
      while (at_ != end_ && IsHole(*at_)) ++at_;
    }
    const Item* at_ = nullptr;
    const Item* end_ = nullptr;
  };
  using iterator = const_iterator;
  using value_type = typename const_iterator::value_type;

  size_t size() const { return items_.size() - num_holes_; }
  bool empty() const { return size() == 0; }
  const_iterator begin() const {
    return const_iterator(items_.data(), items_.data() + items_.size());
  }
  const_iterator end() const {
    return const_iterator(items_.data() + items_.size(), items_.data() + items_.size());
  }
  // The i-th edge; linear in i where there are holes.
  typename const_iterator::reference operator[](size_t i) const {
    return num_holes_ == 0 ? ListedAs(items_[i])
                           : *std::next(begin(), static_cast<std::ptrdiff_t>(i));
  }

  // --- For the graph; all others see lists that are const.

  // Edges and holes. An edge keeps its place among them until Remove says that it has moved.
  const std::vector<Item>& places() const { return items_; }
  Item& at(uint32_t place) { return items_[place]; }
  // The next Add allocates nothing.
  void ReserveOneMore();
  void Add(const Item& item) { items_.push_back(item); }
  // When that closes the list up, `moved(item, place)` is called for each edge that is left.
  template <typename Moved>
  void Remove(uint32_t place, Moved moved);

 private:
  std::vector<Item> items_;
  uint32_t num_holes_ = 0;
};
// How many edges this thread's edits of graphs (removing, replacing, looking for duplicates) have
// looked at so far. For tests that count.
int64_t EdgesVisitedForTesting();

class Node {
 public:
  int id() const { return id_; }
  const std::string& name() const { return name_; }
  // The op kind: "MatMul".
  const std::string& op() const { return body_->op(); }
  // Null for an op kind that is neither registered nor a function of the graph.
  const OpEntry* op_entry() const { return body_->op_entry(); }
  const OpTraits& traits() const { return body_->traits(); }
  // Op and attrs, as the body has them: without name, device and inputs, and with a mark instead of
  // the bytes of a large constant. Graph::NodeToDef makes the whole message.
  const tensorflow::NodeDef& def() const { return body_->def(); }
  // For GetAttr, shape functions and kernels.
  NodeAttrs attrs() const { return NodeAttrs(name_, &body_->def(), body_->value()); }
  const std::shared_ptr<const NodeBody>& body() const { return body_; }
  const std::string& requested_device() const { return *requested_device_; }
  const std::string& assigned_device() const { return *assigned_device_; }
  void set_requested_device(absl::string_view device);
  void set_assigned_device(absl::string_view device);
  // For attrs that do not change input and output types; other copies of the node keep theirs.
  // `edit` keeps no pointer to the attr.
  void EditAttr(absl::string_view name, absl::FunctionRef<void(tensorflow::AttrValue*)> edit);

  int num_inputs() const { return static_cast<int>(inputs_.size()); }
  int num_outputs() const { return num_outputs_; }
  DType input_type(int i) const { return input_types()[static_cast<size_t>(i)]; }
  DType output_type(int i) const { return output_types()[static_cast<size_t>(i)]; }
  absl::Span<const DType> input_types() const { return body_->input_types(); }
  absl::Span<const DType> output_types() const;

  // The source of data input i; node is null while there is none.
  const OutputRef& input(int i) const { return inputs_[static_cast<size_t>(i)]; }
  absl::Span<const OutputRef> inputs() const { return inputs_; }
  // Nodes; in the order in which their edges were added.
  const EdgeList<ControlInput>& control_inputs() const { return control_inputs_; }
  // Data and control edges that leave this node, in the order they were added.
  const EdgeList<Edge>& out_edges() const { return out_edges_; }

  bool is_const() const { return Is(NodeBody::Kind::kConst); }
  // The argument and the result of a function.
  bool is_arg() const { return Is(NodeBody::Kind::kArg); }
  bool is_retval() const { return Is(NodeBody::Kind::kRetval); }
  // Each also for the op with "Ref" in front.
  bool is_switch() const { return Is(NodeBody::Kind::kSwitch); }
  bool is_merge() const { return Is(NodeBody::Kind::kMerge); }
  bool is_enter() const { return Is(NodeBody::Kind::kEnter); }
  bool is_exit() const { return Is(NodeBody::Kind::kExit); }
  bool is_next_iteration() const { return Is(NodeBody::Kind::kNextIteration); }
  bool is_loop_cond() const { return Is(NodeBody::Kind::kLoopCond); }
  // Also of _HostSend and _HostRecv.
  bool is_send() const { return Is(NodeBody::Kind::kSend); }
  bool is_recv() const { return Is(NodeBody::Kind::kRecv); }
  bool is_stateful() const;

  Graph* graph() const { return graph_; }
  // "file:line" of the program line that made the node; empty for imported ones.
  const std::string& built_at() const { return *built_at_; }
  void set_built_at(absl::string_view where);
  // The scope that the program called the node's builder with, where operators on its outputs
  // build (Scope::HomeOf); null for imported nodes. Valid as long as the graph.
  const ScopeHome* home() const { return home_; }
  void set_home(const std::shared_ptr<const ScopeHome>& home);

 private:
  // An edge stands in both of its nodes, each with its place in the other: only the graph writes
  // them, which has both. Setters or a key for it would open the same members in more words.
  friend class Graph;
  Node(Graph* graph, int id, std::string name, std::shared_ptr<const NodeBody> body);
  bool Is(NodeBody::Kind kind) const { return body_->kind() == kind; }

  Graph* const graph_;
  const int id_;
  int num_outputs_;  // more than the body's types for an unknown op
  const std::string name_;
  std::shared_ptr<const NodeBody> body_;
  // In the graph's table of texts.
  const std::string* requested_device_;
  const std::string* assigned_device_;
  const std::string* built_at_;
  const ScopeHome* home_ = nullptr;  // one of the graph's
  std::vector<OutputRef> inputs_;
  EdgeList<ControlInput> control_inputs_;
  EdgeList<Edge> out_edges_;
};

// As GetAttr of a message (graph/attr.h); the value of a Const is shared, not copied.
template <typename T>
StatusOr<T> GetAttr(const Node& node, absl::string_view name) {
  return GetAttr<T>(node.attrs(), name);
}
inline bool HasAttr(const Node& node, absl::string_view name) { return HasAttr(node.def(), name); }

// For messages about a node whose op kind was not known when it was added: "; add the node again:
// its op has been registered since" where that is so, else nothing.
std::string RegisteredSince(const Node& node);

// The attrs of a node for the builder of its kernel: in a message with its name and requested
// device, which a stateful kernel may take for its own. (Not for a constant, whose message may be
// large.) The node outlives it.
class NamedAttrs {
 public:
  explicit NamedAttrs(const Node& node);
  const NodeAttrs& attrs() const { return attrs_; }

 private:
  std::shared_ptr<tensorflow::NodeDef> named_;
  NodeAttrs attrs_;
};

// Owned by one place, or shared: an Output (graph/scope.h) keeps a graph that is shared alive.
class Graph : public std::enable_shared_from_this<Graph> {
 public:
  Graph();
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Differs between all graphs of this process.
  int64_t id() const { return id_; }

  // Adds a node without edges; fills defaults of missing attrs and derives input and output types.
  // The `input` field of `def` is ignored, except that it gives the number of inputs of an unknown
  // op. InvalidArgument: bad or duplicate name, missing or illegal attr.
  StatusOr<Node*> AddNode(const tensorflow::NodeDef& def);
  // The same for a Const whose value is `value`, which CanShare (graph/node_body.h).
  StatusOr<Node*> AddConst(const tensorflow::NodeDef& def, const Tensor& value);
  // The same for a node that shares a body which another node has or bodies() has made. For names
  // only that verification has passed or another graph has.
  StatusOr<Node*> AddNode(absl::string_view name, std::shared_ptr<const NodeBody> body);
  // Gives the node another op and attrs. InvalidArgument unless all its inputs and outputs keep
  // their types; further outputs may come behind them.
  Status ReplaceBody(Node* node, std::shared_ptr<const NodeBody> body);
  // Room for `count` more nodes.
  void ReserveNodes(int count);
  // Makes bodies for nodes of this graph.
  NodeBodies* bodies() { return &bodies_; }
  // Removes the node and its edges.
  void RemoveNode(Node* node);

  // InvalidArgument: index out of range, input already connected, types differ. For a node of an
  // unknown op kind, outputs come into being when an edge refers to them.
  Status AddEdge(Node* src, int src_output, Node* dst, int dst_input);
  // No effect when the edge exists, and when there is none.
  void AddControlEdge(Node* src, Node* dst);
  void RemoveControlEdge(Node* src, Node* dst);
  // Replaces the source of a data input (or connects it).
  Status UpdateInput(Node* dst, int dst_input, Node* src, int src_output);

  Node* FindNode(absl::string_view name) const;
  // Does any node have this name, whatever the case of its letters?
  bool HasNameIgnoringCase(absl::string_view name);
  // A name that no node has: `prefix`, else prefix_1, prefix_2, ... (case-insensitive).
  std::string UniqueName(absl::string_view prefix);

  // By id; null where a node has been removed.
  absl::Span<const std::unique_ptr<Node>> nodes() const { return nodes_; }
  int num_node_ids() const { return static_cast<int>(nodes_.size()); }
  int num_nodes() const { return num_nodes_; }
  // Is there an Enter, Exit, NextIteration or LoopCond?
  bool has_loops() const { return num_loop_nodes_ > 0; }

  const tensorflow::VersionDef& versions() const { return *versions_; }
  tensorflow::VersionDef* mutable_versions() { return versions_.get(); }
  // The functions that nodes may call.
  const FunctionLibrary& library() const { return *library_; }
  const std::shared_ptr<const FunctionLibrary>& shared_library() const { return library_; }
  // Nodes that are added from now on may call those of `library`, which is not null.
  void set_library(std::shared_ptr<const FunctionLibrary> library);
  // The versions and, without a copy, the library of `from`.
  void TakeVersionsAndLibrary(const Graph& from);

  // The one copy of a device or source line, valid as long as the graph.
  const std::string* Text(absl::string_view text);
  // Keeps a scope's home as long as the graph; returns it.
  const ScopeHome* KeepHome(const std::shared_ptr<const ScopeHome>& home);

  // What the Scopes that build into this graph share, while there is one.
  std::shared_ptr<ScopeState> scope() const { return scope_.lock(); }
  void set_scope(std::weak_ptr<ScopeState> scope) { scope_ = std::move(scope); }

  // Nodes in id order, from `first_id` on; inputs written as TensorFlow writes them. The device is
  // the assigned one when there is one and `assigned` is true, otherwise the requested one.
  void ToGraphDef(tensorflow::GraphDef* def, int first_id = 0, bool assigned = false) const;
  tensorflow::NodeDef NodeToDef(const Node& node) const;
  // The same into `*def`, which is empty.
  void WriteNode(const Node& node, tensorflow::NodeDef* def) const;

 private:
  StatusOr<Node*> AddNode(const tensorflow::NodeDef& def, const Tensor* value);
  void Connect(Node* src, int src_output, Node* dst, int dst_input);
  void RemoveOutEdge(Node* src, uint32_t at);
  void RemoveControlInput(Node* dst, uint32_t at);

  struct NamesIgnoringCase;
  NamesIgnoringCase* names_ignoring_case();
  void NoteName(absl::string_view name, bool added);
  Node* Insert(std::string name, std::shared_ptr<const NodeBody> body);

  const int64_t id_;
  std::vector<std::unique_ptr<Node>> nodes_;
  struct Tables;
  const std::unique_ptr<Tables> tables_;
  // Null until a caller asks, and after it could not follow a change.
  std::unique_ptr<NamesIgnoringCase> names_ignoring_case_;
  const std::string* last_text_ = nullptr;
  std::weak_ptr<ScopeState> scope_;
  NodeBodies bodies_;
  int num_nodes_ = 0;
  int num_loop_nodes_ = 0;
  std::unique_ptr<tensorflow::VersionDef> versions_;
  std::shared_ptr<const FunctionLibrary> library_;
};

// All nodes, the source of every edge before its destination; an edge from a NextIteration to a
// Merge (the back edge of a loop) does not count. Ties are in id order. InvalidArgument names the
// nodes of a cycle.
StatusOr<std::vector<Node*>> TopologicalOrder(const Graph& graph);

// The same over anything that has numbered nodes: AddInput() for every input of node 0, then of
// node 1, ... EndNode() after each. Inputs are numbers of nodes, back edges left out.
class Dependencies {
 public:
  void AddInput(int source) { sources_.push_back(source); }
  void EndNode() { end_.push_back(sources_.size()); }
  int num_nodes() const { return static_cast<int>(end_.size()); }
  absl::Span<const int> inputs(int node) const {
    const size_t i = static_cast<size_t>(node);
    const size_t begin = i == 0 ? 0 : end_[i - 1];
    return absl::MakeConstSpan(sources_).subspan(begin, end_[i] - begin);
  }
  // `name` is asked for the nodes of a cycle.
  StatusOr<std::vector<int>> Order(absl::FunctionRef<std::string(int)> name) const;

 private:
  std::vector<int> sources_;
  std::vector<size_t> end_;
};

// tf-core B1.3: first [A-Za-z0-9.], then [A-Za-z0-9_./-]*. `internal` admits a leading '_', which
// is reserved for nodes that the runtime makes.
bool IsLegalNodeName(absl::string_view name, bool internal);

// What the OpDef asks of the attrs that `node` has or lacks; other attrs are left alone. The
// message begins with "attr 'name' ".
Status ValidateNodeAttrs(const tensorflow::NodeDef& node, const tensorflow::OpDef& op);

// "a", "a:2", "^a" -> node name and output index (kControlSlot for "^a").
struct TensorName {
  std::string node;
  int index = 0;
};
StatusOr<TensorName> ParseTensorName(absl::string_view text);
// The same without a copy: `node` points into `text`. False for text that is no tensor name.
bool SplitTensorName(absl::string_view text, absl::string_view* node, int* index);
// "a:0" always with its index, as TensorInfo and feeds have it.
std::string TensorNameString(const Node& node, int index);

// Input and output types of a node from its op and attrs, lists expanded.
Status NodeTypes(const tensorflow::NodeDef& node, const tensorflow::OpDef& op,
                 std::vector<DType>* inputs, std::vector<DType>* outputs);
// How many tensors `arg` stands for: 1, the value of its number attr or the length of its type
// list.
StatusOr<int> ArgSize(const tensorflow::NodeDef& node, const tensorflow::OpDef_ArgDef& arg);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GRAPH_H_

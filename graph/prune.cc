// SPDX-License-Identifier: Apache-2.0
#include "graph/prune.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/hash_table.h"
#include "core/new_message.h"
#include "core/shape.h"
#include "graph/attr.h"
#include "graph/copy.h"
#include "graph/missing_op_hint.h"
#include "proto/node_def.pb.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

using TensorKey = std::pair<const Node*, int>;

bool IsPlaceholder(const Node& node) { return node.traits().feeding == Feeding::kRequired; }

Status UnknownOpFetched(absl::string_view fetch, const Node& node) {
  return Unimplemented(
      "Fetch '", fetch, "': op kind '", node.op(),
      "' must be known to this program to be fetched from, got one that is not registered",
      MissingOpHint(node));
}

// The work of one BuildRunGraph.
class Rewriter {
 public:
  Rewriter(const Graph& from, const RunSignature& signature, const RunGraphOptions& options)
      : from_(from), signature_(signature), options_(options) {}

  StatusOr<RunGraph> Build();

 private:
  Status ResolveFeeds();
  Status ResolveFetches();
  Status ResolveTargets();
  void MarkNeeded();
  Status AddFeedNodes();
  Status CopyNeeded();
  Status AddFetchNodes();

  // The feed that stands for this output, or -1.
  int FeedOf(const Node* node, int index) const {
    if (feed_of_.empty()) return -1;
    auto it = feed_of_.find(TensorKey(node, index));
    return it == feed_of_.end() ? -1 : it->second;
  }
  // The feed that takes over the control edges of `node`, or -1.
  int ControlFeedOf(const Node& node) const { return IsPlaceholder(node) ? FeedOf(&node, 0) : -1; }
  StatusOr<Node*> AddBoundaryNode(bool feed, size_t i, const TensorKey& tensor, DType type);

  const Graph& from_;
  const RunSignature& signature_;
  const RunGraphOptions& options_;

  std::vector<TensorKey> feeds_, fetches_;
  std::vector<const Node*> targets_;
  HashMap<TensorKey, int> feed_of_;
  std::vector<bool> needed_;  // by node id
  std::vector<bool> feed_needed_;

  RunGraph result_;
  std::vector<Node*> copies_;  // by node id
};

Status Rewriter::ResolveFeeds() {
  for (size_t i = 0; i < signature_.feeds.size(); ++i) {
    const std::string& text = signature_.feeds[i];
    MR_ASSIGN_OR_RETURN(const OutputRef fed, FindFed(from_, text));
    const TensorKey key(fed.node, fed.index);
    if (!feed_of_.emplace(key, static_cast<int>(i)).second) {
      return InvalidArgument("Endpoint \"", text, "\" fed more than once.");
    }
    feeds_.push_back(key);
    result_.signature.feed_types.push_back(TensorType(*fed.node, fed.index));
  }
  return absl::OkStatus();
}

Status Rewriter::ResolveFetches() {
  for (const std::string& text : signature_.fetches) {
    MR_ASSIGN_OR_RETURN(const TensorName name, ParseTensorName(text));
    if (name.index == kControlSlot) {
      return InvalidArgument("Fetch '", text, "' must name a tensor, got a control edge");
    }
    const Node* node = from_.FindNode(name.node);
    if (node == nullptr) {
      return absl::NotFoundError(
          absl::StrCat("FetchOutputs node ", text, ": not found", NearestNode(from_, name.node)));
    }
    if (node->num_outputs() == 0) {
      if (node->op_entry() == nullptr) {
        return UnknownOpFetched(text, *node);
      }
      return InvalidArgument(
          "Tried to fetch data for '", text,
          "', which produces no output.  To run to a node but not fetch any data, "
          "pass '",
          text, "' as a target");
    }
    if (name.index >= node->num_outputs()) {
      return InvalidArgument("FetchOutputs ", text, ": output index too large, must be < ",
                             node->num_outputs());
    }
    const TensorKey key(node, name.index);
    if (FeedOf(node, name.index) >= 0) {
      return InvalidArgument(text, " is both fed and fetched.");
    }
    const DType type = TensorType(*node, name.index);
    if (type == DT_INVALID) {
      return UnknownOpFetched(text, *node);
    }
    fetches_.push_back(key);
    result_.signature.fetch_types.push_back(type);
  }
  return absl::OkStatus();
}

Status Rewriter::ResolveTargets() {
  std::vector<std::string> missing;
  for (const std::string& name : signature_.targets) {
    const Node* node = from_.FindNode(name);
    if (node == nullptr) {
      missing.push_back(name);
    } else {
      targets_.push_back(node);
    }
  }
  if (!missing.empty()) {
    return absl::NotFoundError(
        absl::StrCat("PruneForTargets: Some target nodes not found: ", absl::StrJoin(missing, ", "),
                     NearestNode(from_, missing.front())));
  }
  return absl::OkStatus();
}

void Rewriter::MarkNeeded() {
  needed_.assign(static_cast<size_t>(from_.num_node_ids()), false);
  feed_needed_.assign(feeds_.size(), false);
  std::vector<const Node*> stack;
  const auto need = [&](const Node* node, int feed) {
    if (feed >= 0) {
      feed_needed_[static_cast<size_t>(feed)] = true;
    } else if (!needed_[static_cast<size_t>(node->id())]) {
      needed_[static_cast<size_t>(node->id())] = true;
      stack.push_back(node);
    }
  };
  for (const TensorKey& fetch : fetches_) need(fetch.first, -1);
  for (const Node* target : targets_) need(target, ControlFeedOf(*target));
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    for (const OutputRef& input : node->inputs()) {
      if (input.node != nullptr) need(input.node, FeedOf(input.node, input.index));
    }
    for (const Node* control : node->control_inputs()) need(control, ControlFeedOf(*control));
  }
}

StatusOr<Node*> Rewriter::AddBoundaryNode(bool feed, size_t i, const TensorKey& tensor,
                                          DType type) {
  const auto& [source, index] = tensor;
  const auto def = NewMessage<tensorflow::NodeDef>();
  auto set = [&def](const char* name, const auto& value) {
    SetAttr(value, &(*def->mutable_attr())[name]);
  };
  def->set_op(feed ? "_Arg" : "_Retval");
  set("T", type);
  set("index", static_cast<int64_t>(i));
  if (feed && IsPlaceholder(*source) && HasAttr(*source, "shape")) {
    const PartialShape shape = PlaceholderShape(*source, from_.versions().producer());
    set("_output_shapes", std::vector<PartialShape>{shape});
  }
  // A name that neither graph has; which of the two nodes comes first does not matter.
  const std::string name =
      absl::StrCat(feed ? "_arg_" : "_retval_", source->name(), "_", index, "_", i);
  std::string unique = name;
  for (int k = 1; from_.FindNode(unique) != nullptr || result_.graph->FindNode(unique) != nullptr;
       ++k) {
    unique = absl::StrCat(name, "_", k);
  }
  def->set_name(unique);
  def->set_device(options_.device);
  MR_ASSIGN_OR_RETURN(Node * node, result_.graph->AddNode(*def));
  node->set_assigned_device(options_.device);
  node->set_built_at(source->built_at());
  return node;
}

Status Rewriter::AddFeedNodes() {
  std::vector<Node*>& nodes = result_.signature.feed_nodes;
  nodes.assign(feeds_.size(), nullptr);
  for (size_t i = 0; i < feeds_.size(); ++i) {
    if (!feed_needed_[i]) continue;
    MR_ASSIGN_OR_RETURN(nodes[i],
                        AddBoundaryNode(true, i, feeds_[i], result_.signature.feed_types[i]));
  }
  return absl::OkStatus();
}

Status Rewriter::CopyNeeded() {
  Graph* to = result_.graph.get();
  to->ReserveNodes(static_cast<int>(std::count(needed_.begin(), needed_.end(), true)));
  copies_.assign(static_cast<size_t>(from_.num_node_ids()), nullptr);
  for (const auto& node : from_.nodes()) {
    if (node == nullptr || !needed_[static_cast<size_t>(node->id())]) continue;
    MR_ASSIGN_OR_RETURN(copies_[static_cast<size_t>(node->id())], CopyNode(*node, to));
  }
  const std::vector<Node*>& feed_nodes = result_.signature.feed_nodes;
  for (const auto& node : from_.nodes()) {
    if (node == nullptr || !needed_[static_cast<size_t>(node->id())]) continue;
    Node* copy = copies_[static_cast<size_t>(node->id())];
    for (int k = 0; k < node->num_inputs(); ++k) {
      const OutputRef& input = node->input(k);
      if (input.node == nullptr) continue;
      const int feed = FeedOf(input.node, input.index);
      if (feed < 0) {
        MR_RETURN_IF_ERROR(
            to->AddEdge(copies_[static_cast<size_t>(input.node->id())], input.index, copy, k));
        continue;
      }
      if (IsRef(node->input_type(k))) {
        return InvalidArgument("Feed '", signature_.feeds[static_cast<size_t>(feed)],
                               "' must not be needed as a reference, got consumer ", node->op(),
                               " '", node->name(), "' (input ", k, "), which changes it");
      }
      MR_RETURN_IF_ERROR(to->AddEdge(feed_nodes[static_cast<size_t>(feed)], 0, copy, k));
    }
    for (const Node* control : node->control_inputs()) {
      const int feed = ControlFeedOf(*control);
      to->AddControlEdge(feed >= 0 ? feed_nodes[static_cast<size_t>(feed)]
                                   : copies_[static_cast<size_t>(control->id())],
                         copy);
    }
  }
  return absl::OkStatus();
}

Status Rewriter::AddFetchNodes() {
  for (size_t i = 0; i < fetches_.size(); ++i) {
    const TensorKey& fetch = fetches_[i];
    MR_ASSIGN_OR_RETURN(Node * retval,
                        AddBoundaryNode(false, i, fetch, result_.signature.fetch_types[i]));
    MR_RETURN_IF_ERROR(result_.graph->AddEdge(copies_[static_cast<size_t>(fetch.first->id())],
                                              fetch.second, retval, 0));
    result_.signature.fetch_nodes.push_back(retval);
  }
  for (const Node* target : targets_) {
    const int feed = ControlFeedOf(*target);
    result_.signature.target_nodes.push_back(
        feed >= 0 ? result_.signature.feed_nodes[static_cast<size_t>(feed)]
                  : copies_[static_cast<size_t>(target->id())]);
  }
  return absl::OkStatus();
}

StatusOr<RunGraph> Rewriter::Build() {
  if (signature_.fetches.empty() && signature_.targets.empty()) {
    return absl::InvalidArgumentError("Must specify at least one target to fetch or execute.");
  }
  result_.graph = std::make_unique<Graph>();
  result_.graph->TakeVersionsAndLibrary(from_);
  MR_RETURN_IF_ERROR(ResolveFeeds());
  MR_RETURN_IF_ERROR(ResolveFetches());
  MR_RETURN_IF_ERROR(ResolveTargets());
  MarkNeeded();
  MR_RETURN_IF_ERROR(AddFeedNodes());
  MR_RETURN_IF_ERROR(CopyNeeded());
  MR_RETURN_IF_ERROR(AddFetchNodes());
  return std::move(result_);
}

}  // namespace

Status PruneForTargets(Graph* graph, absl::Span<Node* const> targets) {
  std::vector<bool> needed(static_cast<size_t>(graph->num_node_ids()), false);
  std::vector<const Node*> stack;
  const auto need = [&](const Node* node) {
    if (node == nullptr || needed[static_cast<size_t>(node->id())]) return;
    needed[static_cast<size_t>(node->id())] = true;
    stack.push_back(node);
  };
  for (const Node* target : targets) {
    if (target == nullptr || graph->FindNode(target->name()) != target) {
      return absl::InvalidArgumentError("Prune: each target must be a node of the graph");
    }
    need(target);
  }
  while (!stack.empty()) {
    const Node* node = stack.back();
    stack.pop_back();
    for (const OutputRef& input : node->inputs()) need(input.node);
    for (const Node* control : node->control_inputs()) need(control);
  }
  for (int id = 0; id < static_cast<int>(needed.size()); ++id) {
    Node* node = graph->nodes()[static_cast<size_t>(id)].get();
    if (node != nullptr && !needed[static_cast<size_t>(id)]) graph->RemoveNode(node);
  }
  return absl::OkStatus();
}

StatusOr<RunGraph> BuildRunGraph(const Graph& graph, const RunSignature& signature,
                                 const RunGraphOptions& options) {
  return Rewriter(graph, signature, options).Build();
}

}  // namespace millrace

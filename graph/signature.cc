// SPDX-License-Identifier: Apache-2.0
#include "graph/signature.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/did_you_mean.h"
#include "core/hash_table.h"
#include "graph/attr.h"
#include "graph/batch_hint.h"
#include "graph/graph.h"
#include "graph/placeholder_shape.h"
#include "graph/shape_inference.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

size_t IndexOf(const std::vector<std::string>& sorted, const std::string& name) {
  return static_cast<size_t>(std::lower_bound(sorted.begin(), sorted.end(), name) - sorted.begin());
}

bool HasPlaceholderShape(const Node& node) { return node.traits().feeding != Feeding::kNone; }

PartialShape KnownShape(const Graph& graph, const Node& node, int index, FedShapes shapes) {
  if (HasPlaceholderShape(node)) return PlaceholderShape(node, graph.versions().producer());
  if (shapes == FedShapes::kOfPlaceholders) return PartialShape();
  // Inputs first; a node that inference refuses (or a loop) leaves its consumers unknown.
  ShapeRefiner refiner;
  HashSet<const Node*> seen = {&node};
  std::vector<std::pair<const Node*, int>> stack = {{&node, 0}};
  while (!stack.empty()) {
    auto& [top, next_input] = stack.back();
    if (next_input < top->num_inputs()) {
      const Node* source = top->input(next_input++).node;
      if (source != nullptr && seen.insert(source).second) stack.emplace_back(source, 0);
      continue;
    }
    refiner.AddNode(*top).IgnoreError();
    stack.pop_back();
  }
  return refiner.OutputShape(node, index);
}

}  // namespace

std::string SignatureKey(const RunSignature& signature) {
  std::string key;
  for (const std::vector<std::string>* names :
       {&signature.feeds, &signature.fetches, &signature.targets}) {
    AppendNames(
        *names, [](const std::string& name) -> const std::string& { return name; }, &key);
  }
  return key;
}

std::string CanonicalTensorName(const std::string& name) {
  const StatusOr<TensorName> parsed = ParseTensorName(name);
  if (!parsed.ok() || parsed->index == kControlSlot) return name;
  return absl::StrCat(parsed->node, ":", parsed->index);
}

// --- Names ---------------------------------------------------------------------------------------

StatusOr<BoundSignature> BindSignature(const RunSignature& names,
                                       absl::FunctionRef<bool(const std::string&)> is_operation) {
  if (names.fetches.empty() && names.targets.empty()) {
    return absl::InvalidArgumentError("Must specify at least one target to fetch or execute.");
  }
  std::vector<std::string> feed_names, result_names;
  HashMap<std::string, size_t> fed;
  for (size_t i = 0; i < names.feeds.size(); ++i) {
    feed_names.push_back(CanonicalTensorName(names.feeds[i]));
    if (!fed.emplace(feed_names.back(), i).second) {
      return InvalidArgument("Endpoint \"", feed_names.back(), "\" fed more than once.");
    }
  }
  std::set<std::string> fetches, targets;
  for (const std::string& target : names.targets) {
    // A target may be given by a tensor's name, too.
    const StatusOr<TensorName> name = ParseTensorName(target);
    targets.insert(name.ok() ? name->node : target);
  }
  for (const std::string& fetch : names.fetches) {
    if (is_operation(fetch)) {
      targets.insert(fetch);
      continue;
    }
    result_names.push_back(CanonicalTensorName(fetch));
    if (!fed.contains(result_names.back())) fetches.insert(result_names.back());
  }

  BoundSignature bound;
  bound.signature.feeds = feed_names;
  std::sort(bound.signature.feeds.begin(), bound.signature.feeds.end());
  bound.signature.fetches.assign(fetches.begin(), fetches.end());
  bound.signature.targets.assign(targets.begin(), targets.end());
  for (const std::string& name : feed_names) {
    bound.feed_to.push_back(IndexOf(bound.signature.feeds, name));
  }
  for (const std::string& name : result_names) {
    const auto it = fed.find(name);
    if (it != fed.end()) {
      bound.results.push_back({true, it->second});
    } else {
      bound.results.push_back({false, IndexOf(bound.signature.fetches, name)});
    }
  }
  bound.feeds_in_order = feed_names == bound.signature.feeds;
  bound.results_in_order = result_names == bound.signature.fetches;  // and none of them is fed
  return bound;
}

bool IsOperation(const Graph& graph, const std::string& name) {
  const Node* node = graph.FindNode(name);
  return node != nullptr && node->num_outputs() == 0 && node->op_entry() != nullptr;
}

// --- Feeds ---------------------------------------------------------------------------------------

std::string NearestNode(const Graph& graph, absl::string_view name) {
  DidYouMean best(name);
  for (const auto& node : graph.nodes()) {
    if (node != nullptr) best.Consider(node->name());
  }
  return best.Hint();
}

StatusOr<OutputRef> FindFed(const Graph& graph, const std::string& name) {
  MR_ASSIGN_OR_RETURN(const TensorName parsed, ParseTensorName(name));
  if (parsed.index == kControlSlot) {
    return InvalidArgument("Feed '", name, "' must name a tensor, got a control edge");
  }
  OutputRef fed;
  fed.node = graph.FindNode(parsed.node);
  fed.index = parsed.index;
  if (fed.node == nullptr) {
    return absl::NotFoundError(absl::StrCat("FeedInputs: unable to find feed output ", name,
                                            NearestNode(graph, parsed.node)));
  }
  if (fed.index >= fed.node->num_outputs()) {
    return InvalidArgument("FeedInputs: ", name, " should have output index < ",
                           fed.node->num_outputs());
  }
  return fed;
}

DType TensorType(const Node& node, int index) {
  const DType type = WithoutRef(node.output_type(index));
  if (type != DT_INVALID) return type;
  for (const Edge& edge : node.out_edges()) {
    if (edge.src_output != index || edge.is_control()) continue;
    const DType wanted = WithoutRef(edge.dst->input_type(edge.dst_input));
    if (wanted != DT_INVALID) return wanted;
  }
  return DT_INVALID;
}

PartialShape PlaceholderShape(const Node& node, int producer) {
  if (!HasPlaceholderShape(node)) return PartialShape();
  const StatusOr<PartialShape> shape = GetAttr<PartialShape>(node, "shape");
  return shape.ok() ? ShapeOfPlaceholder(node.op(), *shape, producer) : PartialShape();
}

StatusOr<std::vector<FeedRule>> FeedRules(const Graph& graph, const RunSignature& signature,
                                          FedShapes shapes) {
  std::vector<FeedRule> rules;
  for (const std::string& name : signature.feeds) {
    MR_ASSIGN_OR_RETURN(const OutputRef fed, FindFed(graph, name));
    rules.push_back(
        {name, TensorType(*fed.node, fed.index), KnownShape(graph, *fed.node, fed.index, shapes)});
  }
  return rules;
}

Status CheckFeedsGiven(const BoundSignature& bound, absl::Span<const Tensor> feeds) {
  if (feeds.size() != bound.feed_to.size()) {
    return InvalidArgument("Run: the signature has ", bound.feed_to.size(), " feeds, got ",
                           feeds.size(), " tensors");
  }
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (feeds[i].has_value()) continue;
    return InvalidArgument("Cannot feed Tensor '", bound.signature.feeds[bound.feed_to[i]],
                           "' without a value, got an empty Tensor");
  }
  return absl::OkStatus();
}

Status CheckFeeds(const BoundSignature& bound, absl::Span<const FeedRule> rules,
                  absl::Span<const Tensor> feeds) {
  MR_RETURN_IF_ERROR(CheckFeedsGiven(bound, feeds));
  for (size_t i = 0; i < feeds.size(); ++i) {
    const Tensor& value = feeds[i];
    const FeedRule& rule = rules[bound.feed_to[i]];
    if (rule.type != DT_INVALID && value.dtype() != rule.type) {
      return InvalidArgument("Cannot feed value of type ", DTypeName(value.dtype()),
                             " for Tensor '", rule.name, "', which has type ",
                             DTypeName(rule.type));
    }
    if (!rule.shape.IsCompatibleWith(value.shape())) {
      return InvalidArgument("Cannot feed value of shape ", value.shape().ToString(),
                             " for Tensor '", rule.name, "', which has shape ",
                             rule.shape.ToString(), BatchHint(rule.shape, value.shape()));
    }
  }
  return absl::OkStatus();
}

// --- Results -------------------------------------------------------------------------------------

Status CheckFetched(const RunSignature& signature, absl::Span<const Tensor> fetched) {
  for (size_t i = 0; i < fetched.size(); ++i) {
    if (fetched[i].has_value()) continue;
    // Both sentences are TensorFlow's: of its session in one process, and of its cluster.
    return InvalidArgument("Retval[", i, "] does not have value. The tensor returned for ",
                           signature.fetches[i],
                           " was not valid. It is in a branch that was not taken");
  }
  return absl::OkStatus();
}

void ArrangeResults(const BoundSignature& bound, absl::Span<const Tensor> feeds,
                    absl::Span<Tensor> fetched, absl::Span<Tensor> results) {
  for (size_t i = 0; i < bound.results.size(); ++i) {
    const BoundSignature::Source& source = bound.results[i];
    results[i] = source.fed ? feeds[source.index] : fetched[source.index];
  }
  // A caller may be the only one to hold what it fetched.
  for (Tensor& tensor : fetched) tensor = Tensor();
}

}  // namespace millrace

// SPDX-License-Identifier: Apache-2.0
#include "graph/rewrite/common_subexpressions.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/hash/hash.h"
#include "core/deterministic_bytes.h"
#include "core/hash_table.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "graph/node_body.h"
#include "graph/pure.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// Of large constants only so much is hashed; equality looks at all.
constexpr size_t kHashedBytes = 256;

// Placement has done what `_class` asks for; the value of a constant is compared as a tensor.
bool IsPlain(const Node& node, absl::string_view attr) {
  return attr != "_class" && (attr != "value" || node.body()->value() == nullptr);
}

absl::string_view BytesOf(const Tensor& tensor) {
  return absl::string_view(tensor.bytes().data(), tensor.bytes().size());
}

size_t HashOf(const Tensor& tensor) {
  if (tensor.dtype() == DT_STRING) return absl::HashOf(tensor.raw<std::string>());
  return absl::HashOf(tensor.dtype(), tensor.shape(), BytesOf(tensor).substr(0, kHashedBytes));
}

bool AreEqual(const Tensor* a, const Tensor* b) {
  if (a == nullptr || b == nullptr) return a == b;
  if (a->dtype() != b->dtype() || a->shape() != b->shape()) return false;
  if (a->dtype() == DT_STRING) return a->raw<std::string>() == b->raw<std::string>();
  // Of types without bytes (handles, variants) nothing can be said.
  return BytesOf(*a) == BytesOf(*b) && (BytesOf(*a).size() > 0 || a->num_elements() == 0);
}

bool HaveEqualAttrs(const Node& a, const Node& b) {
  if (a.body() == b.body()) return true;
  const auto count = [](const Node& node) {
    return std::count_if(node.def().attr().begin(), node.def().attr().end(),
                         [&](const auto& attr) { return IsPlain(node, attr.first); });
  };
  if (!AreEqual(a.body()->value(), b.body()->value()) || count(a) != count(b)) return false;
  return std::all_of(a.def().attr().begin(), a.def().attr().end(), [&](const auto& attr) {
    if (!IsPlain(a, attr.first)) return true;
    const auto it = b.def().attr().find(attr.first);
    return it != b.def().attr().end() &&
           DeterministicBytes(attr.second) == DeterministicBytes(it->second);
  });
}

std::vector<int> SortedControls(const Node& node) {
  std::vector<int> ids;
  for (const Node* control : node.control_inputs()) ids.push_back(control->id());
  std::sort(ids.begin(), ids.end());
  return ids;
}

// Op and attrs, whatever the order of these.
size_t HashOfBody(const Node& node) {
  size_t attrs = 0;
  for (const auto& [name, value] : node.def().attr()) {
    if (IsPlain(node, name)) attrs += absl::HashOf(name, DeterministicBytes(value));
  }
  if (node.body()->value() != nullptr) attrs += HashOf(*node.body()->value());
  return absl::HashOf(node.op(), attrs);
}

size_t HashOf(const Node& node, size_t body) {
  std::vector<std::pair<int, int>> inputs;
  for (const OutputRef& input : node.inputs()) {
    inputs.emplace_back(input.node == nullptr ? -1 : input.node->id(), input.index);
  }
  return absl::HashOf(body, inputs, SortedControls(node), node.assigned_device());
}

bool AreEqual(const Node& a, const Node& b) {
  return a.op_entry() == b.op_entry() && a.assigned_device() == b.assigned_device() &&
         std::equal(a.inputs().begin(), a.inputs().end(), b.inputs().begin(), b.inputs().end(),
                    [](const OutputRef& x, const OutputRef& y) {
                      return x.node == y.node && x.index == y.index;
                    }) &&
         SortedControls(a) == SortedControls(b) && HaveEqualAttrs(a, b);
}

// Everything that reads `node` reads `by` instead.
Status Merge(Graph* graph, Node* node, Node* by) {
  const std::vector<Edge> edges(node->out_edges().begin(), node->out_edges().end());
  graph->RemoveNode(node);
  for (const Edge& edge : edges) {
    MR_RETURN_IF_ERROR(graph->AddEdge(by, edge.src_output, edge.dst, edge.dst_input));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<int> MergeCommonSubexpressions(RewriteContext* context) {
  HashMap<size_t, Node*> first;  // by hash; of two that clash one is not found
  first.reserve(context->Order().size());
  // By body, which many nodes share: its hash, if the node is pure.
  HashMap<const NodeBody*, std::optional<size_t>> bodies;
  int merged = 0;
  for (const int id : context->Order()) {
    Node* node = context->node(id);
    if (node == nullptr) continue;
    const auto [body, is_new] = bodies.try_emplace(node->body().get());
    if (is_new && CheckIsPure(*node).ok()) body->second = HashOfBody(*node);
    if (!body->second) continue;
    Node*& same = first[HashOf(*node, *body->second)];
    if (same == nullptr) {
      same = node;
    } else if (!context->IsKept(*node) && AreEqual(*same, *node)) {
      MR_RETURN_IF_ERROR(Merge(context->graph(), node, same));
      ++merged;
    }
  }
  return merged;
}

}  // namespace millrace

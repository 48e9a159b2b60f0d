// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_SIGNATURE_H_
#define MILLRACE_GRAPH_SIGNATURE_H_

// Signatures: what a Run asks for by name, and what the names mean.
//
//   a caller's lists --BindSignature--> the canonical signature, and where in it each tensor is
//   fed tensors      --CheckFeeds-----> accepted, or the error that names the feed
//   fetched tensors  --ArrangeResults-> the results in the caller's order
//
// These are the only places that know the rules; the session of this process, a client of a cluster
// and a master all call them, so that what one accepts, the others accept, with the same text.
//
// Canonical: tensors are "node:index", targets nodes; each list is sorted and has each name once.
// Lists that differ in order, in duplicates or in "x" for "x:0" have one canonical signature, which
// is compiled once. A fetch of an operation (a node without outputs) is a target that has no
// result; a fetched tensor that is also fed is the tensor that was fed.
//
// Thread-safety: pure functions of their arguments; graphs are only read.
// Failure: InvalidArgument and NotFound, with the name.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

class Graph;       // graph/graph.h
class Node;        // graph/graph.h
struct OutputRef;  // graph/graph.h

// What one Run asks for, by name: feeds and fetches are tensors ("x" or "x:0"), targets nodes.
struct RunSignature {
  std::vector<std::string> feeds = {};
  std::vector<std::string> fetches = {};
  std::vector<std::string> targets = {};
};

// A list of names as part of a key. Names are a caller's text and may hold any separator, so each
// list begins with its size and each name with its length.
template <typename Names, typename NameOf>
void AppendNames(const Names& names, const NameOf& name_of, std::string* key) {
  const auto append_size = [key](size_t size) {
    key->append(reinterpret_cast<const char*>(&size), sizeof(size));
  };
  append_size(names.size());
  for (const auto& item : names) {
    const std::string& name = name_of(item);
    append_size(name.size());
    key->append(name);
  }
}
// Equal for equal signatures only: the names of feeds, fetches and targets, in this order.
std::string SignatureKey(const RunSignature& signature);

// "x" and "x:0" name one tensor; names that do not parse stay as they are, for the error.
std::string CanonicalTensorName(const std::string& name);

struct BoundSignature {
  RunSignature signature;       // canonical
  std::vector<size_t> feed_to;  // caller's feed -> feed of `signature`
  struct Source {
    bool fed;      // else fetched
    size_t index;  // caller's feed, or fetch of `signature`
  };
  std::vector<Source> results;  // one per tensor that is returned
  // The caller's order is the canonical one: tensors need not be moved about.
  bool feeds_in_order = false;
  bool results_in_order = false;
  // False when everything that is fetched was fed.
  bool runs() const { return !signature.fetches.empty() || !signature.targets.empty(); }
};

// `is_operation` tells of a name whether it is that of a node that has no outputs.
//   InvalidArgument: nothing to fetch or execute; a tensor fed twice.
StatusOr<BoundSignature> BindSignature(const RunSignature& names,
                                       absl::FunctionRef<bool(const std::string&)> is_operation);
// Of a node of an op kind that is known.
bool IsOperation(const Graph& graph, const std::string& name);

// What may be fed for one tensor.
struct FeedRule {
  std::string name;
  DType type = DT_INVALID;  // DT_INVALID: any
  PartialShape shape;       // what is known of it
};
// Which shapes of feeds are looked at.
enum class FedShapes {
  kInferred,        // of a placeholder its attr, of any other tensor what inference finds
  kOfPlaceholders,  // the former alone
};
// For each feed of a canonical signature.
StatusOr<std::vector<FeedRule>> FeedRules(const Graph& graph, const RunSignature& signature,
                                          FedShapes shapes = FedShapes::kInferred);
// InvalidArgument unless `feeds`, in the caller's order, has a value for each feed.
Status CheckFeedsGiven(const BoundSignature& bound, absl::Span<const Tensor> feeds);
// The same, and unless each is of the right dtype and shape. `rules` are those of bound.signature.
Status CheckFeeds(const BoundSignature& bound, absl::Span<const FeedRule> rules,
                  absl::Span<const Tensor> feeds);

// InvalidArgument when one of `fetched` (in the order of the canonical signature) has no value: it
// is in a branch that was not taken.
Status CheckFetched(const RunSignature& signature, absl::Span<const Tensor> fetched);
// `results` has bound.results.size() places; `fetched` is left empty.
void ArrangeResults(const BoundSignature& bound, absl::Span<const Tensor> feeds,
                    absl::Span<Tensor> fetched, absl::Span<Tensor> results);

// --- Parts of the rules that pruning shares ------------------------------------------------------

// "; did you mean 'x'?" for a node or tensor that is not in the graph; "" when nothing is near.
std::string NearestNode(const Graph& graph, absl::string_view name);

// The tensor that a feed names.
//   InvalidArgument: a malformed name, a control edge, an output that the node does not have.
//   NotFound: no such node.
StatusOr<OutputRef> FindFed(const Graph& graph, const std::string& name);
// The type of an output without its reference; for an op kind that is not known the type that a
// consumer wants, DT_INVALID without one.
DType TensorType(const Node& node, int index);
// Attr "shape" of a Placeholder, PlaceholderV2 or PlaceholderWithDefault; up to producer 21 a
// scalar means "unknown".
PartialShape PlaceholderShape(const Node& node, int producer);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_SIGNATURE_H_

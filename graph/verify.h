// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_VERIFY_H_
#define MILLRACE_GRAPH_VERIFY_H_

// Verify: everything structural about a graph is checked once, here; what runs afterwards trusts
// it.
//
// After VerifyGraphDef returned OK: names are legal and unique; every input names an output
// that exists, with the type that the op asks for; attrs obey their OpDef; constants are well
// formed; cycles go through NextIteration into Merge only; loops have an Enter and no node mixes
// frames; colocation names nodes; functions are complete and do not call themselves; versions
// agree. Ops that this program does not know are checked as far as the graph alone allows.
//
// VerifyNodes is what an import uses: it verifies some of the nodes of a message (those that a
// growing graph lacks) and leaves what it has found out, so that nothing is looked at twice.
//
// Thread-safety: pure functions. Cost: one pass, linear in the message (n log n in the nodes);
// memory is allocated only in proportion to the message.
// Failure: InvalidArgument with the first thing that is wrong (NotFound for a refused unknown op):
//   GraphDef node[17] 'dense/BiasAdd': input 1 refers to 'dense/bias:2', but 'dense/bias' has 1
//   output

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/node_body.h"
#include "proto/graph.pb.h"
#include "proto/versions.pb.h"

namespace millrace {

// Bounds against sizes that only an attack or a mistake has.
inline constexpr int kMaxGraphNodes = 10'000'000;
inline constexpr int64_t kMaxGraphOutputs = 32'000'000;  // declared or referred to, of all nodes
inline constexpr int kMaxAttrNesting = 64;               // functions with functions as attrs

enum class UnknownOps { kKeep, kRefuse };

struct VerifyOptions {
  UnknownOps unknown_ops = UnknownOps::kKeep;
  // Names that begin with '_' are legal: graphs that the runtime itself made.
  bool allow_internal_names = false;
  // Inputs may name nodes that the message lacks (they are mapped to others on import).
  bool allow_missing_inputs = false;
};

Status VerifyGraphDef(const tensorflow::GraphDef& def, const VerifyOptions& options = {});

// Nodes of a message on their way into a graph, and what verification found out about them.
struct IncomingNodes {
  const tensorflow::GraphDef* def = nullptr;
  // Null, or the same message: then attrs are moved out of its nodes.
  tensorflow::GraphDef* taken = nullptr;
  std::vector<int> indices;  // which of its nodes, ascending
  // Null, or values of Const nodes by their names, for which marks stand in the message. They have
  // the dtypes and shapes that the message says, and NodeBodies::CanShare.
  const std::map<std::string, Tensor>* constants = nullptr;
  // What the graph has that they go into; verification adds the functions of the message.
  std::shared_ptr<const FunctionLibrary> library = FunctionLibrary::Empty();

  // Where an input comes from.
  struct Source {
    int node;   // position in `indices`; -1: not among them (only with allow_missing_inputs)
    int index;  // output; kControlSlot for a control input
  };
  // For each node, its inputs as the message lists them: the next of `sources` up to `ends`.
  std::vector<Source> sources;
  std::vector<size_t> ends;
  std::vector<std::shared_ptr<const NodeBody>> bodies;
  bool has_loops = false;
};

// VerifyGraphDef of the nodes at `indices`; versions and the functions that are new to the library
// are verified whole. Fills in the rest. `bodies` makes the bodies; its owner is the graph that the
// nodes go into, and it looks into `nodes->library` from then on. With `taken`, an error leaves the
// message without some of its attrs.
Status VerifyNodes(const VerifyOptions& options, NodeBodies* bodies, IncomingNodes* nodes);
// Of a graph in memory: what AddNode and AddEdge cannot see: inputs without source, cycles, frames.
Status VerifyGraph(const Graph& graph);

// How many nodes of messages and graphs have been verified in this process. For tests that count.
int64_t NodesVerifiedForTesting();

// tf-core B1.6.
Status VerifyVersions(const tensorflow::VersionDef& versions);
// The functions of `library` that are not in `known`, and that none of all calls itself.
Status VerifyFunctions(const FunctionLibrary& library, const FunctionLibrary& known,
                       const VerifyOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_GRAPH_VERIFY_H_

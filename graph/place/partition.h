// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PLACE_PARTITION_H_
#define MILLRACE_GRAPH_PLACE_PARTITION_H_

// Partitioning: cuts a placed graph into one graph per location (device or task).
//
// An edge from one partition to another becomes a _Send where it starts and a _Recv where it ends:
//   * one pair per (source tensor, destination partition), however many consumers there are;
//   * an edge that carries a reference has a pair of its own, and its _Recv runs after the
//     consumer's other inputs, because the read of a variable must be late; other _Recvs have
//     no inputs and can be issued when the step starts;
//   * with floats_as_bfloat16 a float is rounded by a Cast before its _Send, and a Cast behind its
//     _Recv makes it a float again: once per pair;
//   * the control edges from one partition to one node become one pair: an empty float
//     constant after all the sources, _Send, _Recv and an Identity before the node;
//   * inside of a loop a _Recv runs once in each iteration that has what it receives: after the
//     control loop of its device (control_loops.h).
// The name on the wire is "edge_<id>_<source node>". Ids and names depend only on the order of
// nodes and edges: the same graph is always cut in the same way, and graphs that are equal except
// for the names of devices give partitions that are equal except for these.
//
// Versions are copied into each partition, the function library is shared. Nodes keep name, device
// and body (graph/node_body.h): no attr or constant is copied, so a partition that stays in this
// process is best handed on as the Graph that it is.
// Thread-safety: the graph is only read. Failure: nothing is returned then.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/status.h"
#include "graph/graph.h"
#include "proto/graph.pb.h"

namespace millrace {

struct PartitionOptions {
  // The partition of a node; its assigned device when empty.
  std::function<std::string(const Node&)> node_to_loc = nullptr;
  // Put before the number in the names of added nodes: "<node>/_S12". Each level of partitioning
  // (master "_S", worker "_G") has its own, so that a cut of a cut has no clash of names.
  std::string new_name_mark = "_";
  // The graph is a part of one that was cut before: it has the control loops that it needs.
  bool has_control_loops = false;
  // What is sent gets its wave (waves.h): for partitions that talk over a network.
  bool marks_waves = false;
  // Floats travel as bfloat16, rounded to the nearest, ties to even: half the bytes, and 8 bits of
  // precision. As floats travel references, tensors that a client feeds (the outputs of an _Arg) or
  // fetches (the input of a _Retval), and what an op on files (OpTraits::uses_files) takes or
  // gives, so that a checkpoint has the bits of its variables.
  bool floats_as_bfloat16 = false;
  // Incarnation of a device (full name), 0 when unknown; 0 for all when empty.
  std::function<uint64_t(absl::string_view device)> get_incarnation = nullptr;
};

using GraphPartitions = std::map<std::string, std::unique_ptr<Graph>>;

// The partitions by location. Locations without nodes have none.
//   InvalidArgument: a node without device or location; an edge between partitions that must pass
//     a reference or resource handle; a loop on several devices without LoopCond.
//   Unimplemented: an edge from an op that is not registered; floats_as_bfloat16 without Cast.
StatusOr<GraphPartitions> PartitionGraph(const Graph& graph, const PartitionOptions& options = {});

// The same; a graph that is at one location becomes the partition itself, nothing is copied.
StatusOr<GraphPartitions> PartitionGraph(std::unique_ptr<Graph> graph,
                                         const PartitionOptions& options = {});

// The same as GraphDefs with assigned devices, for RegisterGraph.
Status PartitionGraph(const Graph& graph, const PartitionOptions& options,
                      std::map<std::string, tensorflow::GraphDef>* partitions);

// Writes the incarnations of devices that were unknown (0) when the graph was cut into the _Send
// and _Recv nodes of `graph`.
void FillIncarnations(Graph* graph,
                      const std::function<uint64_t(absl::string_view device)>& get_incarnation);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PLACE_PARTITION_H_
